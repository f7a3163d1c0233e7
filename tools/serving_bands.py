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

from inferplan.roofline.efficiency import Efficiency

PATH = Path(__file__).parents[1] / "calibration" / "bands.yaml"
SERIES = ["model", "engine", "gpu", "weights"]
ENDS, HELD = (0.1, 0.9), 0.8
WIDEST = 3.0


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


def ends(log_ratio: np.ndarray, weight: np.ndarray, factor: float = 1.0) -> tuple[float, float]:
    """Weighted percentiles of the logarithms, moved outwards from their middle."""
    order = np.argsort(log_ratio)
    share = (np.cumsum(weight[order]) - weight[order] / 2) / weight.sum()
    low, high = np.interp(ENDS, share, log_ratio[order])
    middle, half = (low + high) / 2, (high - low) / 2
    return middle - factor * half, middle + factor * half


def held(d: pd.DataFrame, ratios: list[np.ndarray], factor: float) -> float:
    """The share of runs that a band made without their model holds."""
    inside = np.zeros(len(d), bool)
    for name in d.model.unique():
        out = (d.model == name).to_numpy()
        low, high = ends(np.concatenate([r[~out] for r in ratios]), np.tile(balance(d[~out]), len(ratios)), factor)
        inside[out] = (ratios[0][out] >= low) & (ratios[0][out] <= high)
    return float(inside.mean())


def band(d: pd.DataFrame, known: np.ndarray, predicted: list[np.ndarray], *, widen: bool = True) -> str:
    """A band as a line of the calibration; predictions with the model left out stand first."""
    ratios = [np.log(known / p) for p in predicted]
    factors = np.arange(1.0, WIDEST, 0.01)
    factor = next((float(x) for x in factors if held(d, ratios, float(x)) >= HELD), WIDEST) if widen else 1.0
    low, high = np.exp(ends(np.concatenate(ratios), np.tile(balance(d), len(ratios)), factor))
    covered = held(d, ratios, factor)
    return f"{{low: {low:.3f}, high: {high:.3f}, rows: {len(d)}, covered: {covered:.2f}, note: ends moved out by {factor:.2f}}}"


Predicted = dict[str, list[np.ndarray]]


def written(d: pd.DataFrame, waiting: np.ndarray, seen: Predicted, unseen: Predicted) -> str:
    """The file: `seen` holds predictions on classes whose kernels were timed, `unseen` those without the class's kernels."""
    lines = [
        "# Written by tools/fit_serving.py from validation/serving.csv; do not edit, run it again. Measured over estimated, 10th and 90th",
        "# percentile of runs that the fit had not seen (tools/serving_bands.py says how).",
        "name: bands",
        "bands:",
    ]
    for quantity, predicted in seen.items():
        known = d[f"{quantity}_s"].to_numpy()
        both = [*unseen[quantity], *predicted]
        pick = {"measured": (~waiting, predicted), "inherited": (~waiting, both), "waiting": (waiting, predicted)}
        lines += [f"  {quantity}:", "    default:"]
        for name, (rows, found) in pick.items():
            lines.append(f"      {name}: {band(d[rows], known[rows], [p[rows] for p in found], widen=name != 'waiting')}")
    return "\n".join(lines) + "\n"
