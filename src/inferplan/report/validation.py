"""A validation on a screen and as a record. Knows no prediction."""

from __future__ import annotations

import re
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
IN_BRACKETS = re.compile(r" \([^()]*\)")


def record(found: list[Outcome], by: list[str], *, cases: int | None = None) -> dict[str, Any]:
    """Summary over all, by group, and the reasons of refusals; `cases` is how many there are where a run ended early."""
    groups = [{**dict(zip(by, key, strict=True)), **asdict(s)} for key, s in grouped(found, by).items()]
    return {
        "schema": SCHEMA,
        "partial": cases is not None and cases > len(found),
        "all": asdict(summary(found)),
        "by": by,
        "groups": groups,
        "refused": dict(Counter(o.refused for o in found if o.refused).most_common()),
    }


def show_validation(found: list[Outcome], by: list[str], out: Console, *, cases: int | None = None) -> None:
    """The whole screen."""
    whole = summary(found)
    if cases is not None and cases > len(found):
        out.print(f"Interrupted after {len(found):,} of {cases:,} rows.", style="bold")
    counted = f", {whole.exact:,} of them exact" if whole.exact else ""
    out.print(f"{whole.predicted:,} of {whole.rows:,} rows predicted{counted}. Errors and shares in %.", style="bold")
    columns = _columns(whole)
    groups = grouped(found, by)
    rows = [(*key, *(_cell(s, c) for c in columns)) for key, s in groups.items()]
    if len(rows) > 1:
        rows.append(("all", *[""] * (len(by) - 1), *(_cell(whole, c) for c in columns)))
    head = (*by, *columns)
    out.print(table(head, rows, right=range(len(by), len(head))))
    reasons = Counter(IN_BRACKETS.sub("", o.refused) for o in found if o.refused).most_common()
    for reason, count in reasons[:REASONS]:
        out.print(f"refused {count:,}: {reason}")
    if len(reasons) > REASONS:
        out.print(f"and {len(reasons) - REASONS} more reasons: see --csv")


def _columns(whole: Summary) -> list[str]:
    """Counted quantities are looked at for how many are exact, times for how many come near: columns that say nothing are left out."""
    near = ["exact", "<=0.5"] if whole.exact else []
    far = ["<=10", "<=20", "<=30"] if whole.predicted and whole.within["0.1"] < 1 else []
    return ["rows", "median", "mean", "signed", "p90", "worst", *near, *far, *(["in band"] if whole.banded else [])]


def _cell(s: Summary, column: str) -> str:
    if column == "rows":
        return f"{s.rows:,}" if s.predicted == s.rows else f"{s.predicted:,}/{s.rows:,}"
    if column == "exact":
        return f"{s.exact:,}"
    if column.startswith("<="):
        return f"{100 * s.within[f'{float(column[2:]) / 100:g}']:.0f}" if s.predicted else ""
    sizes = {
        "median": s.median_error, "mean": s.mean_error, "p90": s.p90_error, "worst": s.worst_error, "signed": s.signed_median,
        "in band": s.covered,
    }  # fmt: skip
    return percent_of(sizes[column], sign="+" if column == "signed" else "")


def percent_of(x: float | None, *, sign: str = "") -> str:
    """A share in per cent to three digits, in whole ones from ten times on.

    >>> percent_of(0.08432), percent_of(-0.5, sign="+"), percent_of(31.774), percent_of(None)
    ('8.43', '-50', '3,177', '')
    """
    return "" if x is None else f"{100 * x:{sign}.3g}" if abs(x) < 10 else f"{100 * x:{sign},.0f}"
