"""Error bands of served runs, from residuals that a fit had not seen: calibration/bands.yaml, written by tools/fit_serving.py.

Bands as tools/residual_bands.py makes them, of predictions with the model left out and with the part left out together, tried without one
model at a time. Where requests wait for cache the ends stay: too few models are among those runs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import residual_bands
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
    """Weights of served runs by their series."""
    return residual_bands.balance(list(zip(*(d[column] for column in SERIES), strict=True)))


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
