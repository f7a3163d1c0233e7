"""A validation on a screen and as a record. Knows no prediction."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from inferplan.calibrate.validate import Outcome, Summary, grouped, summary
from inferplan.report.screen import table

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = "inferplan/validate/1"


def record(found: list[Outcome], by: list[str]) -> dict[str, Any]:
    """Summary over all, by group, and the reasons of refusals."""
    groups = [{**dict(zip(by, key, strict=True)), **asdict(s)} for key, s in grouped(found, by).items()]
    reasons = Counter(o.refused for o in found if o.refused)
    return {"schema": SCHEMA, "all": asdict(summary(found)), "by": by, "groups": groups, "refused": dict(reasons.most_common())}


def show_validation(found: list[Outcome], by: list[str], out: Console) -> None:
    """The whole screen."""
    whole = summary(found)
    out.print(f"{whole.predicted:,} of {whole.rows:,} rows predicted, {whole.exact:,} of them exact.", style="bold")
    rows = [(*key, *_cells(s)) for key, s in grouped(found, by).items()]
    head = (*by, "rows", "predicted", "exact", "median error", "mean", "worst", "within 0.5 %")
    out.print(
        table(head, [*rows, *([("all", *[""] * (len(by) - 1), *_cells(whole))] if len(rows) > 1 else [])], right=range(len(by), len(head)))
    )
    reasons = Counter(o.refused for o in found if o.refused)
    for reason, count in reasons.most_common(10):
        out.print(f"refused {count}: {reason}")
    if len(reasons) > 10:
        out.print(f"and {len(reasons) - 10} more reasons: see --csv")


def _percent(x: float | None) -> str:
    return "" if x is None else f"{100 * x:.3g} %"


def _cells(s: Summary) -> tuple[str, ...]:
    inside = _percent(s.within["0.005"]) if s.predicted else ""
    return (
        f"{s.rows:,}",
        f"{s.predicted:,}",
        f"{s.exact:,}",
        _percent(s.median_error),
        _percent(s.mean_error),
        _percent(s.worst_error),
        inside,
    )
