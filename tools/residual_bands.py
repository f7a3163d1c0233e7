"""80 % bands from residuals that no fit had seen, for the scripts that write them. Knows no measurement, no engine and no file.

A band's ends are the 10th and 90th percentile of measured over predicted. Parts and models differ from each other more than the runs of
one, so that the percentiles of all but one hold fewer than 80 % of the runs of that one: ends are moved outwards, both by the same factor,
until bands made without a part (and those made without a model) hold 80 % of its runs, over all. None goes beyond the farthest residual.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

ENDS, HELD = (0.1, 0.9), 0.8
WIDEST = 3.0
LEAST = 7  # rows; fewer have no tenth to speak of
FACTORS = np.arange(1.0, WIDEST, 0.01)


@dataclass(frozen=True)
class Made:
    """A band. `factor` is how far its ends were moved out, `covered` the least share that bands made without a part or model held.

    agreed
        whether some factor held enough; if not, no band made of some holds the others.
    note
        what is to be said instead of the factor.
    """

    low: float
    high: float
    rows: int
    covered: float | None
    factor: float
    agreed: bool = True
    note: str = ""

    @property
    def line(self) -> str:
        """The band as a line of a calibration."""
        held = "" if self.covered is None else f"covered: {self.covered:.2f}, "
        note = self.note or (f"ends moved out by {self.factor:.2f}" if self.agreed else "measurements contradict each other")
        return f"{{low: {self.low:.3f}, high: {self.high:.3f}, rows: {self.rows}, {held}note: {note}}}"

    @property
    def cells(self) -> list[str]:
        """The band as cells of a table: from, to, rows, moved out by, held."""
        held = "" if self.covered is None else f"{self.covered:.0%}"
        return [f"{self.low - 1:+.0%}", f"{self.high - 1:+.0%}", str(self.rows), f"{self.factor:.2f}" if self.agreed else "", held]


HEAD = ("from", "to", "rows", "moved out", "held")


def balance(keys: Sequence[object]) -> np.ndarray:
    """Weights by which each series of runs counts by the square root of its number; 1 in the mean."""
    _, place, size = np.unique([str(key) for key in keys], return_inverse=True, return_counts=True)
    weight = np.sqrt(1 / size[place])
    return np.asarray(weight / weight.mean())


def ends(log_ratio: np.ndarray, weight: np.ndarray, factor: float = 1.0) -> tuple[float, float]:
    """Weighted percentiles of the logarithms, moved outwards from their middle, but not beyond the farthest of them.

    The estimate itself, at 0, lies between them.
    """
    order = np.argsort(log_ratio, kind="stable")
    share = (np.cumsum(weight[order]) - weight[order] / 2) / weight.sum()
    low, high = np.interp(ENDS, share, log_ratio[order])
    middle, half = (low + high) / 2, (high - low) / 2
    low, high = max(middle - factor * half, log_ratio.min()), min(middle + factor * half, log_ratio.max())
    return min(float(low), 0.0), max(float(high), 0.0)


def held(ratios: Sequence[np.ndarray], weight: np.ndarray, unit: np.ndarray, factor: float) -> float:
    """The share of runs that a band made without their unit (part, model) holds, by the first way of predicting them."""
    inside = np.zeros(len(unit), bool)
    for value in np.unique(unit):
        out = unit == value
        low, high = ends(np.concatenate([r[~out] for r in ratios]), np.tile(weight[~out], len(ratios)), factor)
        inside[out] = (ratios[0][out] >= low) & (ratios[0][out] <= high)
    return float(inside.mean())


def made(
    ratios: Sequence[np.ndarray], weight: np.ndarray, units: Iterable[np.ndarray], *, widen: bool = True, general: Made | None = None
) -> Made:
    """The band of runs: `ratios` holds logarithms of measured over predicted, an array for each way of predicting.

    `units` say what is left out, in turn. Where nothing can be left out (one part, one model) ends move as the spread of a small sample
    is too small. Where no factor up to WIDEST holds enough, since some contradict the others, the ends are the percentiles of all, or
    those of the `general` band where that is wider.
    """
    told = [unit for unit in units if len(np.unique(unit)) > 1]
    rows = len(weight)
    factor, covered = (rows + 1) / (rows - 1) if widen else 1.0, None
    agreed = not told
    if told:
        tried = FACTORS if widen else FACTORS[:1]
        agreed = not widen or least_held(ratios, weight, told, WIDEST) >= HELD
        factor = next((float(x) for x in tried if not widen or least_held(ratios, weight, told, float(x)) >= HELD), 1.0) if agreed else 1.0
        covered = least_held(ratios, weight, told, factor)
    low, high = (float(end) for end in np.exp(ends(np.concatenate(ratios), np.tile(weight, len(ratios)), factor)))
    if not agreed and general is not None:
        low, high = min(low, general.low), max(high, general.high)
    return Made(low, high, rows, covered, factor, agreed)


def least_held(ratios: Sequence[np.ndarray], weight: np.ndarray, units: Iterable[np.ndarray], factor: float) -> float:
    """The least of the shares held over the kinds of units."""
    return min(held(ratios, weight, unit, factor) for unit in units)


Table = dict[str, dict[str, dict[str, Made]]]


def written(table: Table) -> list[str]:
    """The lines of a calibration's section of bands: by quantity, by engine or place, by how well it is known."""
    lines = ["bands:"]
    for quantity, places in table.items():
        lines.append(f"  {quantity}:")
        for place, known in places.items():
            lines.append(f"    {place}:")
            lines += [f"      {name}: {band.line}" for name, band in known.items()]
    return lines


def rows_of(table: Table) -> list[list[str]]:
    """The rows of a page's table: quantity, place, how well it is known, then the band's cells."""
    return [
        [quantity.upper(), place, name, *band.cells]
        for quantity, places in table.items()
        for place, known in places.items()
        for name, band in known.items()
    ]
