"""The page of a validation: predictions beside known values, errors in order, the rows that are farthest off. Computes no figure."""

from __future__ import annotations

from collections import Counter

import numpy as np

from inferplan.calibrate.summary import Summary, label, summary
from inferplan.calibrate.validate import Outcome
from inferplan.report import opened
from inferplan.report.grid import Grid
from inferplan.report.html.compare import COLOURS
from inferplan.report.html.page import Axis, Chart, Fact, Page, Series, Titled
from inferplan.report.html.recorded import recorded, told
from inferplan.report.parity import NEAR, PANELS
from inferplan.report.screen import table
from inferplan.report.validation import percent_of, show_validation
from inferplan.terms import TERMS
from inferplan.units import show

LOOKS = ("circle", "triangle", "square", "diamond")
CLASSES = 7
WORST = 25


def page(found: list[Outcome], by: list[str], column: str, source: str, *, cases: int | None = None) -> Page:
    """The whole page; points are told apart by a column of the case file."""
    whole = summary(found)
    screen = told(recorded(lambda out: show_validation(found, by, out, cases=cases)))
    tables = [Titled(f"By {', '.join(by)}", p.grid) if isinstance(p, Titled) else p for p in screen.rest]
    worst = [Titled(f"The {WORST} rows that are farthest off", _worst(found, column))] if whole.predicted else []
    asked = [Titled("", table(("", ""), [("cases", source), ("grouped by", ", ".join(by)), ("colours by", column)]))]
    answer = "\n".join([screen.headline, *_said(whole)])
    return Page("validate", f"Predictions beside the known values of {source}", answer, screen.why, [("", facts(found, whole))],
                asked, figures(found, column), [*tables, *worst])  # fmt: skip


def _percent(x: float | None, *, sign: str = "") -> str:
    return "none" if x is None else f"{percent_of(x, sign=sign)} %"


def _said(s: Summary) -> list[str]:
    if s.median_error is None:
        return []
    held = f" {_percent(s.covered)} of known values lie in the band of their prediction." if s.covered is not None else ""
    return [f"Half of them are within {_percent(s.median_error)} of the known value, nine in ten within {_percent(s.p90_error)}.{held}"]


def facts(found: list[Outcome], s: Summary) -> list[Fact]:
    """Errors in the middle and at the end, opened."""
    if s.median_error is None:
        return []
    made = [
        Fact("median error", _percent(s.median_error), f"{s.predicted:,} rows", opened.error_quantile(found, "median_error", 0.5)),
        Fact("nine in ten within", _percent(s.p90_error), "", opened.error_quantile(found, "p90_error", 0.9)),
        Fact("worst", _percent(s.worst_error), "", opened.error_quantile(found, "worst_error", 1.0)),
        Fact("signed median", _percent(s.signed_median, sign="+"), "above 0: predicted too large",
             opened.error_quantile(found, "signed_median", 0.5, signed=True)),
    ]  # fmt: skip
    if s.covered is not None:
        made.append(Fact("in their band", _percent(s.covered), f"of {s.banded:,} rows with one; 80 % are meant to be"))
    return made


def _drawn(found: list[Outcome]) -> list[Outcome]:
    return [o for o in found if o.predicted is not None and o.predicted > 0 and o.case.value > 0 and np.isfinite(o.predicted)]


def figures(found: list[Outcome], column: str) -> list[Chart]:
    """A parity chart for each of the most frequent quantities, and the errors in order."""
    shown = _drawn(found)
    if not shown:
        return []
    quantities = [name for name, _ in Counter(o.case.quantity for o in shown).most_common(PANELS)]
    return [errors(shown, quantities), *(parity([o for o in shown if o.case.quantity == q], q, column) for q in quantities)]


def parity(shown: list[Outcome], quantity: str, column: str) -> Chart:
    """Predicted against known; the lines are equality and 20 % to either side."""
    values = np.array([o.case.value for o in shown] + [o.predicted for o in shown], dtype=float)
    ends = np.geomspace(values.min() / 1.2, values.max() * 1.2, 33)
    names = [name for name, _ in Counter(label(o, column) for o in shown).most_common()]
    kept = names[: CLASSES - (len(names) > CLASSES)]
    groups = {name: [o for o in shown if label(o, column) == name] for name in kept}
    if len(kept) < len(names):
        groups[f"{len(names) - len(kept):,} others"] = [o for o in shown if label(o, column) not in kept]
    points = [_points(name or f"no {column}", own, i) for i, (name, own) in enumerate(groups.items())]
    lines = [Series("equal", ends, ends, "dark", "line"), Series("20 % below", ends, (1 - NEAR) * ends, "dark", "dotted"),
             Series("20 % above", ends, (1 + NEAR) * ends, "dark", "dotted")]  # fmt: skip
    term = TERMS.get(quantity)
    title = term.label if term else quantity
    unit = term.unit if term else ""
    error = _percent(summary(shown).median_error)
    return Chart(f"{title}: predicted against known", Axis("known", unit, log=True), Axis("predicted", unit, log=True), [*points, *lines],
                 note=f"{len(shown):,} rows, median error {error}; colours by {column}.")  # fmt: skip


def _points(name: str, own: list[Outcome], place: int) -> Series:
    predicted = np.array([o.predicted for o in own], dtype=float)
    banded = any(o.low is not None and o.low != o.high for o in own)
    low, high = (np.array([np.nan if (v := getattr(o, end)) is None else v for o in own], dtype=float) for end in ("low", "high"))
    names = [o.case.name for o in own]
    return Series(name, np.array([o.case.value for o in own]), predicted, COLOURS[place % 6] if place < 6 else "grey", LOOKS[place % 4],
                  low if banded else None, high if banded else None, names)  # fmt: skip


def errors(shown: list[Outcome], quantities: list[str]) -> Chart:
    """Signed errors in order, a line for each quantity."""
    series = []
    for i, quantity in enumerate(quantities):
        own = sorted((o for o in shown if o.case.quantity == quantity), key=lambda o: o.error or 0.0)
        at = 100 * (np.arange(len(own)) + 0.5) / len(own)
        look = ("line", "dashed", "dotted")[i % 3]
        term = TERMS.get(quantity)
        series.append(
            Series(
                term.label if term else quantity,
                at,
                [100 * (o.error or 0.0) for o in own],
                COLOURS[i % 7],
                look,
                names=[o.case.name for o in own],
            )
        )
    note = "Above 0: predicted too large."
    return Chart("Errors in order", Axis("rows, from the lowest error", "%"), Axis("predicted over known, less 1", "%"), series, note=note)


def _worst(found: list[Outcome], column: str) -> Grid:
    """The rows with the largest errors."""
    rows = sorted((o for o in found if o.error is not None), key=lambda o: -abs(o.error or 0.0))[:WORST]
    cells = []
    for o in rows:
        unit = TERMS[o.case.quantity].unit if o.case.quantity in TERMS else ""
        band = [show(v, unit) if v is not None else "" for v in (o.low, o.high)] if o.low != o.high else ["", ""]
        values = show(o.case.value, unit), show(o.predicted or 0.0, unit)
        cells.append((o.case.name, label(o, column), o.case.quantity, *values, *band, _percent(o.error, sign="+")))
    return table(("Case", column, "quantity", "known", "predicted", "80 % from", "to", "error"), cells, right=(3, 4, 5, 6, 7))
