"""A fitted calibration on a screen and as a record. Knows no fit."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from inferplan.calibrate.fit import Calibrated, Factor
from inferplan.report.screen import table
from inferplan.report.validation import IN_BRACKETS, REASONS

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = "inferplan/calibrate/1"


def record(found: Calibrated) -> dict[str, Any]:
    """What was fitted, how well the rows identify it, and errors before and after."""
    return {
        "schema": SCHEMA,
        "rows": len(found.cases),
        "partial": found.partial,
        "median_error_before": _median(found.before),
        "median_error_after": _median(found.after),
        "median_error_unseen": _median(np.expm1(-found.unseen)),
        "factors": [
            {
                "owner": f.parameter.owner, "field": f.parameter.field, "factor": f.factor, "spread": f.spread,
                "prior_spread": f.parameter.spread, "identified": f.identified,
            }
            for f in found.fitted
        ],
        "bands": {q: {place: [b.low, b.high] for place, b in places.items()} for q, places in found.bands().items()},
        "refused": dict(Counter(found.refused).most_common()),
    }  # fmt: skip


def show_calibration(found: Calibrated, out: Console, *, rows: int, output: str) -> None:
    """The whole screen."""
    if found.partial:
        out.print("Interrupted: the best fit so far was kept.", style="bold")
    before, after, unseen = _median(found.before), _median(found.after), _median(np.expm1(-found.unseen))
    out.print(f"{len(found.cases):,} of {rows:,} rows fitted: median error {_percent(before)} before, {_percent(after)} now,", style="bold")
    out.print(f"{_percent(unseen)} where each row is taken as if the fit had not seen it.", style="bold")
    lines = [(f.parameter.owner, f.parameter.field, f"{f.factor:.3f}", _range(f), "yes" if f.identified else "no") for f in found.fitted]
    out.print(table(("Of", "factor on", "fitted", "80 % from, to", "identified"), lines, right=(2, 3)))
    if not all(f.identified for f in found.fitted):
        out.print("What the rows do not identify stays near the shipped value.")
    for quantity, places in found.bands().items():
        for place, band in places.items():
            out.print(f"Band of {quantity.upper()} with {place}: {band.low - 1:+.0%} to {band.high - 1:+.0%}, from {band.rows} rows.")
    for reason, count in Counter(IN_BRACKETS.sub("", r) for r in found.refused).most_common(REASONS):
        out.print(f"refused {count:,}: {reason}")
    out.print(f"Written: {output}. Use it with --efficiency {output}.")


def _range(f: Factor) -> str:
    """The 80 % interval of a factor whose logarithm is normal."""
    half = 1.2816 * f.spread
    return f"{f.factor * np.exp(-half):.2f}, {f.factor * np.exp(half):.2f}"


def _median(errors: np.ndarray) -> float:
    return float(np.median(np.abs(errors)))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
