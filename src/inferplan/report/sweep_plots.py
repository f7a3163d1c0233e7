"""The picture of a sweep: every configuration, the frontier of each part or format, axes with units. Computes no figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from inferplan.planner.pareto import ASKED, FLAG, figures, frontier, truth
from inferplan.report.canvas import DARK, LIGHT, SMALL, canvas, settled, title, unit_axis
from inferplan.terms import TERMS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
MOST = 20_000
"""Points that are drawn at most; of more, an even share."""
LENGTHS = (("input_tokens", "in"), ("output_tokens", "out"))
KINDS = ("hardware", "precision", "engine", "kv_format", "gpus", "tp")
AXES = {
    "decode_tokens_per_s": ("output for one user", "tok/s"),
    "sustained_tokens_per_s_per_gpu": ("output per device", "tok/s"),
    "sustained_usd_per_million_tokens": ("price of a million output tokens", "USD"),
    "e2e_s": ("time of a request", "s"),
}


def plot_frontier(found: pd.DataFrame, x: str, y: str, *, ax: Axes | None = None) -> Axes:
    """All rows that fit as points, and frontiers as lines: of each model and length, or where there is one of both, of each part.

    In the latter case the frontier over all parts, the rows flagged, is drawn wide behind them. Axes are logarithmic.
    """
    with canvas(ax) as ax:
        kept = found[_usable(found, x, y)]
        lines = _lines(kept)
        _cloud(ax, kept, x, y)
        for i, (name, rows) in enumerate(lines[: len(MARKS)]):
            _line(ax, rows, x, y, name, i)
        if not _asked(kept):
            front = kept[kept[FLAG].to_numpy(dtype=bool)].sort_values(x)
            told = "best of all" if len(lines) > 1 else None
            ax.plot(front[x], front[y], color=DARK, lw=2.6, alpha=0.28, zorder=1.5, gid="frontier", label=told)
        _finish(ax, kept, x, y, len(found), len(lines))
        return ax


def _asked(rows: pd.DataFrame) -> list[str]:
    """Columns of what is asked for in which rows differ."""
    return [name for name in ASKED if name in rows and rows[name].nunique() > 1]


def _lines(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Rows by what differs first, with its name: models and lengths, else part, format, engine ..."""
    names = _asked(rows) or [name for name in KINDS if name in rows and rows[name].nunique() > 1][:1]
    if not names:
        return [("all", rows)]
    groups = rows.groupby(names, sort=True, observed=True)
    return [(", ".join(_value(n, v) for n, v in zip(names, key, strict=True)), some) for key, some in groups]


def _value(name: str, value: Any) -> str:
    """A value as a legend says it."""
    if name in ("input_tokens", "output_tokens"):
        return f"{value:,} {'in' if name == 'input_tokens' else 'out'}"
    return str(value) if isinstance(value, str) else f"{_words(name)} {value}"


def _usable(found: pd.DataFrame, x: str, y: str) -> Any:
    values = found[[x, y]].to_numpy(dtype=float)
    keep = np.all(np.isfinite(values) & (values > 0), axis=1)
    return keep & truth(found["fits"]) if "fits" in found else keep


def _cloud(ax: Axes, rows: pd.DataFrame, x: str, y: str) -> None:
    shown = rows.iloc[:: max(1, -(-len(rows) // MOST))]
    ax.plot(shown[x], shown[y], ls="", marker=".", ms=1.2, color=LIGHT, zorder=1, gid="points", rasterized=True)


def _line(ax: Axes, rows: pd.DataFrame, x: str, y: str, name: str, i: int) -> None:
    front = rows[frontier(figures(rows, x), figures(rows, y))].sort_values(x)
    every = max(1, len(front) // 12)
    ax.plot(front[x], front[y], marker=MARKS[i], ms=2.4, lw=0.9, markevery=every, label=name, gid=f"line {name}", color=f"C{i}")


def _words(name: str) -> str:
    return "tensor parallel" if name == "tp" else TERMS[name].label if name in TERMS else name


def _finish(ax: Axes, rows: pd.DataFrame, x: str, y: str, points: int, groups: int) -> None:
    ax.set(xscale="log", yscale="log")
    for axis, limits, name in ((ax.xaxis, ax.set_xlim, x), (ax.yaxis, ax.set_ylim, y)):
        values = rows[name].to_numpy(dtype=float)
        low, high = (float(values.min()) / 1.3, float(values.max()) * 1.3) if values.size else (1.0, 10.0)
        limits(low, high)
        text, unit = AXES.get(name, (_words(name), TERMS[name].unit if name in TERMS else ""))
        unit_axis(axis, text, unit, (low, high), shown=None if unit in ("s", "B") else unit or None)
    models = sorted(set(rows["model"].astype(str))) if "model" in rows else []
    what = models[0] if len(models) == 1 else f"{len(models)} models" if models else "sweep"
    some = f"{len(MARKS)} of {groups:,} frontiers" if groups > len(MARKS) else ""
    counted = f"{points:,} configuration{'' if points == 1 else 's'}, {len(rows):,} fit{'s' if len(rows) == 1 else ''}"
    lengths = [f"{int(rows[n].iloc[0]):,} tokens {w}" for n, w in LENGTHS if n in rows and rows[n].nunique() == 1]
    title(ax, f"{what}: {counted}", *([", ".join(lengths)] if lengths else []), *([some] if some else []))
    if groups > 1 or rows.empty:
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=SMALL)
    settled(ax)
