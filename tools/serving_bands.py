"""Error bands of served runs, from residuals that a fit had not seen: calibration/bands.yaml, written by tools/fit_serving.py.

A band's ends are the 10th and 90th percentile of measured over predicted, of predictions with the model left out and with the part left
out together. Models differ from each other more than the runs of one, so that the percentiles of all but one model hold fewer than 80 % of
the runs of that one: ends are moved outwards, both by the same factor, until bands made without a model hold 80 % of its runs, over all.
Where requests wait for cache the ends stay: too few models are among those runs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from residual_bands import Made, Table, made
from residual_bands import written as bands_written

from inferplan.roofline.efficiency import Efficiency

PATH = Path(__file__).parents[1] / "calibration" / "bands.yaml"
SERIES = ["model", "engine", "gpu", "weights"]
UNSEEN = "default on nvidia"  # all classes that were left out are of this vendor; those of others: tools/table_bands.py


def without_class(shipped: Efficiency, architecture: str, parts: set[str]) -> Efficiency:
    """A calibration whose kernels know nothing of a class of parts: it takes what its vendor's other classes share."""
    gone = {architecture, *parts}
    kernels = {
        kind: {variant: {level: e for level, e in levels.items() if level not in gone} for variant, levels in variants.items()}
        for kind, variants in shipped.kernels.items()
    }
    return shipped.model_copy(update={"kernels": kernels})


def balance(d: pd.DataFrame) -> np.ndarray:
    """Each series of runs counts by the square root of its number; 1 in the mean."""
    weight = np.sqrt(1 / d.groupby(SERIES).case.transform("size"))
    return (weight / weight.mean()).to_numpy()


def band(d: pd.DataFrame, known: np.ndarray, predicted: list[np.ndarray], *, widen: bool = True) -> Made:
    """A band; predictions with the model left out stand first."""
    ratios = [np.log(known / p) for p in predicted]
    return made(ratios, balance(d), [d.model.to_numpy()], widen=widen)


Predicted = dict[str, list[np.ndarray]]


def written(d: pd.DataFrame, waiting: np.ndarray, seen: Predicted, unseen: Predicted) -> str:
    """The file: `seen` holds predictions on classes whose kernels were timed, `unseen` those without the class's kernels."""
    lines = [
        "# Written by tools/fit_serving.py from validation/serving.csv; do not edit, run it again. Measured over estimated, 10th and 90th",
        "# percentile of runs that the fit had not seen (tools/serving_bands.py says how).",
        "name: bands",
    ]
    table: Table = {}
    for quantity, predicted in seen.items():
        known = d[f"{quantity}_s"].to_numpy()
        both = [*unseen[quantity], *predicted]
        pick = {"measured": (~waiting, predicted), "waiting": (waiting, predicted), "inherited": (~waiting, both)}
        own = {n: band(d[rows], known[rows], [p[rows] for p in found], widen=n != "waiting") for n, (rows, found) in pick.items()}
        table[quantity] = {"default": {name: own[name] for name in ("measured", "waiting")}, UNSEEN: {"inherited": own["inherited"]}}
    return "\n".join([*lines, *bands_written(table)]) + "\n"
