"""A validation on a screen and as a record. Knows no prediction."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from inferplan.calibrate.summary import Summary, grouped, summary
from inferplan.calibrate.validate import Outcome
from inferplan.report.screen import table

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = "inferplan/validate/2"
REASONS = 10


def record(found: list[Outcome], by: list[str], *, cases: int | None = None) -> dict[str, Any]:
    """Summary over all, by group, and the reasons of refusals; `cases` is how many there are where a run ended early."""
    groups = [{**dict(zip(by, key, strict=True)), **asdict(s)} for key, s in grouped(found, by).items()]
    return {
        "schema": SCHEMA,
        "partial": cases is not None and cases > len(found),
        "all": asdict(summary(found)),
        "by": by,
        "groups": groups,
        "refused": dict(_reasons(found)),
    }


def _reasons(found: list[Outcome]) -> list[tuple[str, int]]:
    return Counter(o.refused for o in found if o.refused).most_common()


def show_validation(found: list[Outcome], by: list[str], out: Console, *, cases: int | None = None) -> None:
    """The whole screen."""
    whole = summary(found)
    if cases is not None and cases > len(found):
        out.print(f"Interrupted after {len(found):,} of {cases:,} rows.", style="bold")
    counted = f", {whole.exact:,} of them exact" if whole.exact else ""
    out.print(f"{whole.predicted:,} of {whole.rows:,} rows predicted{counted}.", style="bold")
    columns = _columns(whole)
    groups = grouped(found, by)
    rows = [(*key, *(_cell(s, c) for c in columns)) for key, s in groups.items()]
    if len(rows) > 1:
        rows.append(("all", *[""] * (len(by) - 1), *(_cell(whole, c) for c in columns)))
    head = (*by, *columns)
    out.print(table(head, rows, right=range(len(by), len(head))))
    reasons = _reasons(found)
    for reason, count in reasons[:REASONS]:
        out.print(f"refused {count}: {reason}")
    if len(reasons) > REASONS:
        out.print(f"and {len(reasons) - REASONS} more reasons: see --csv")


def _columns(whole: Summary) -> list[str]:
    """Counted quantities are looked at for how many are exact, times for how many come near."""
    near = ["exact", "<=0.5%"] if whole.exact else []
    far = ["<=10%", "<=20%", "<=30%"] if whole.exact < whole.predicted else []
    return ["rows", "predicted", "median", "mean", "signed", "p90", "worst", *near, *far, *(["in band"] if whole.banded else [])]


def _cell(s: Summary, column: str) -> str:
    counts = {"rows": s.rows, "predicted": s.predicted, "exact": s.exact}
    if column in counts:
        return f"{counts[column]:,}"
    if column.startswith("<="):
        return f"{100 * s.within[f'{float(column[2:-1]) / 100:g}']:.3g}%" if s.predicted else ""
    sizes = {"median": s.median_error, "mean": s.mean_error, "p90": s.p90_error, "worst": s.worst_error, "in band": s.covered}
    signed = s.signed_median if column == "signed" else None
    return _percent(signed, sign="+") if column == "signed" else _percent(sizes[column])


def _percent(x: float | None, *, sign: str = "") -> str:
    return "" if x is None else f"{100 * x:{sign}.3g}%" if abs(x) < 10 else f"{100 * x:{sign}.0f}%"
