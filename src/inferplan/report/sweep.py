"""A sweep and a frontier on a screen and as records. Computes no figure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from inferplan.planner.pareto import ASKED, FLAG
from inferplan.planner.sweep import Tally
from inferplan.report.screen import Bold, table
from inferplan.report.words import WAYS
from inferplan.terms import TERMS
from inferplan.units import show, significant

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

SCHEMA, FRONTIER_SCHEMA = "inferplan/sweep/2", "inferplan/pareto/2"
WORDS = {
    "sustained_tokens_per_s_per_gpu": "throughput",
    "tpot_s": "speed",
    "sustained_usd_per_million_tokens": "price",
}
SHOWN = 24
"""Rows of a frontier on a screen; all of them stand in files."""


def record(tally: Tally, out: str | None) -> dict[str, Any]:
    """What a sweep found, under the glossary's keys."""
    return {"schema": SCHEMA, "points": tally.points, "fitting": tally.fitting, "out": out, "best": tally.best}


def show_sweep(tally: Tally, out_path: str | None, out: Console) -> None:
    """The answer, then the points that stand out."""
    out.print(Bold(f"{tally.points:,} configurations, {tally.fitting:,} of them fit"), style="bold")
    if not tally.best:
        out.print("Nothing fits: the column 'reason' says why for each." if out_path else "Nothing fits; --out FILE writes why for each.")
        return
    out.print("")
    rows = [(WORDS[name], *_cells(row)) for name, row in tally.best.items()]
    out.print(table(("Best in", *_HEAD), rows, right=range(1, 7)))
    more = f"inferplan pareto {out_path}" if out_path else "--out FILE for every row, inferplan pareto with the same options"
    out.print(f"\nTimes are estimates; in files their floors stand beside them. See also: {more}")


_HEAD = ("TPOT", "tok/s/device", "USD/Mtok", "batch", "in", "out", "of")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    figures = (figure(n, row[n]) for n in ("tpot_s", "sustained_tokens_per_s_per_gpu", "sustained_usd_per_million_tokens"))
    return (*figures, *(f"{int(row[n]):,}" for n in ("batch", "input_tokens", "output_tokens")), deployment(row))


def deployment(row: dict[str, Any]) -> str:
    """Model, format, part and split in a few words."""
    ways = split(row)
    return f"{row['model']} {row['precision']} on {row['hardware']}{', ' + ways if ways else ''}"


def split(row: dict[str, Any]) -> str:
    """The ways of a split that are more than one."""
    ways = [f"{way} {int(row[way])}" for way in WAYS if way in row and int(row[way]) > 1]
    return " ".join(ways)


def figure(name: str, value: Any) -> str:
    """A figure of a column as text with its unit."""
    if value is None or not isinstance(value, (int, float)) or math.isnan(value):
        return ""
    unit = TERMS[name].unit if name in TERMS else ""
    if unit in ("s", "B"):
        return show(float(value), unit, binary=unit == "B")
    return f"{value:,.2f}" if unit == "USD" else significant(float(value))


def frontier_record(found: pd.DataFrame, x: str, y: str) -> dict[str, Any]:
    """The frontier's rows and how many there were."""
    front = rows_of(found, x)
    return {"schema": FRONTIER_SCHEMA, "x": x, "y": y, "points": len(found), "frontier": front.drop(columns=FLAG).to_dict("records")}


def rows_of(found: pd.DataFrame, x: str) -> pd.DataFrame:
    """Rows on the frontier, in rising order of the first figure, model by model and length by length."""
    front = found[found[FLAG]]
    return front.sort_values([*(name for name in ASKED if name in front), x], kind="stable")


def show_frontier(found: pd.DataFrame, x: str, y: str, out: Console) -> None:
    """The frontier row by row: what is the same everywhere above, then what differs."""
    front = rows_of(found, x)
    several = sum(name in found and found[name].nunique() > 1 for name in ASKED)
    where = "the frontiers of their models and lengths" if several else "the frontier"
    head = f"{len(front):,} of {len(found):,} configurations are on {where}: {label(x)} and {label(y)}"
    out.print(Bold(head), style="bold")
    if not len(front):
        out.print("None fits, so nothing is on it.")
        return
    same = [name for name in _NAMES if name in front and front[name].nunique(dropna=False) == 1]
    if same:
        out.print(", ".join(f"{label(name)} {front[name].iloc[0]}" for name in same if front[name].iloc[0] != 1 or name == "batch"))
    kept = _thinned(front)
    names = [name for name in _NAMES if name in front and name not in same]
    cells = [[*(_plain(row[name]) for name in names), figure(x, row[x]), figure(y, row[y])] for row in kept.to_dict("records")]
    out.print("")
    out.print(table((*map(label, names), label(x), label(y)), cells, right=_right(names)))
    if len(kept) < len(front):
        out.print(f"\n{len(kept):,} of its {len(front):,} rows, evenly spread; --out FILE writes all.")


_NAMES = (
    "model", "hardware", "gpus", "precision", "kv_format", "engine", "engine_version", *WAYS, "input_tokens", "output_tokens", "batch",
)  # fmt: skip
_TEXT = ("model", "hardware", "precision", "kv_format", "engine", "engine_version")
_SHORT = {**{way: way for way in WAYS}, "sustained_tokens_per_s_per_gpu": "tok/s/device"}


def label(name: str) -> str:
    """What a column is called on a screen."""
    return _SHORT.get(name) or (TERMS[name].label if name in TERMS else name)


def _right(names: list[str]) -> list[int]:
    return [i for i, name in enumerate([*names, "", ""]) if name not in _TEXT]


def _plain(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _thinned(front: pd.DataFrame) -> pd.DataFrame:
    """At most about as many rows as a screen takes, evenly spread over each frontier, its ends among them."""
    import pandas as pd

    if len(front) <= SHOWN:
        return front
    names = [name for name in ASKED if name in front]
    groups = [rows for _, rows in front.groupby(names, sort=False, observed=True)] if names else [front]
    share = max(2, SHOWN // len(groups))
    return pd.concat([_spread(rows, share) for rows in groups[:SHOWN]])


def _spread(rows: pd.DataFrame, count: int) -> pd.DataFrame:
    """So many rows, evenly spread, first and last among them."""
    return rows.iloc[sorted({round(i * (len(rows) - 1) / (count - 1)) for i in range(count)})]
