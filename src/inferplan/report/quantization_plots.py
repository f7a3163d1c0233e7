"""A picture of formats: memory of one device, time between tokens, requests at once, a bar for each. Knows no equation."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from inferplan.quantization.answer import Option, Quantized
from inferplan.report.canvas import (
    BLACK,
    BLUE,
    DASHED,
    GREEN,
    MIDDLE,
    ORANGE,
    PURPLE,
    SKY,
    SMALL,
    TITLE_WIDTH,
    VERMILION,
    canvas,
    divided,
    plain,
    title,
    unit_axis,
)
from inferplan.report.words import drawn_devices
from inferplan.terms import TERMS
from inferplan.units import significant

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PARTS = (GREEN, PURPLE, MIDDLE, BLACK)
HATCHES = ("", "////", "....", "")  # tell pieces of a stack apart where colours do not
STACK = (("values", "code_bytes", BLUE), ("scales", "scale_bytes", VERMILION), ("wide", "wide_bytes", ORANGE), ("cache", "", SKY))
BAR, GAP, PANEL, HEAD = 0.095, 0.05, 0.42, 0.32  # inches: of a bar with its number, between formats, around a panel, of the title
MOST_PARTS = len(PARTS)
WIDE = 9  # characters beside a bar, from which on it gets more room


def plot_quantization(answers: Sequence[Quantized], *, ax: Axes | None = None) -> Axes:
    """Bars by format, one panel below the other: memory of a device of the first part, TPOT of one request, requests at once.

    The latter two for up to four parts; returns the first panel.
    """
    answers = [replace(q, options=kept) for q, kept in zip(answers[:MOST_PARTS], _drawn(answers[:MOST_PARTS]), strict=True)]
    own = ax is None
    with canvas(ax) as ax:
        figure: Any = ax.figure
        if own:
            heights = _heights(len(answers[0].options), len(answers))
            figure.set_size_inches(figure.get_size_inches()[0], HEAD + sum(heights))
        first, second, third = _rows(ax, _heights(len(answers[0].options), len(answers)))
        _draw_memory(first, answers[0])
        _draw_latency(second, answers)
        _draw_capacity(third, answers)
        e = answers[0].base
        parts = ", ".join(f"{drawn_devices(e)}{q.base.hardware.name}" for q in answers)
        lines = f"{e.model.title} on {parts}", f"{e.load.input_tokens:,} tokens in, {e.load.output_tokens:,} out, {e.engine.title}"
        if own:
            figure.suptitle("\n".join(textwrap.wrap(lines[0], TITLE_WIDTH) + [lines[1]]), x=0.01, ha="left", fontsize=6.5)
        else:
            title(first, *lines)
        return first


def _drawn(answers: Sequence[Quantized]) -> list[tuple[Option, ...]]:
    """The options that run on one of the parts at least, or all where none does."""
    kept = [any(o.runs for o in same) for same in zip(*(q.options for q in answers), strict=True)]
    return [tuple(o for o, keep in zip(q.options, kept, strict=True) if keep or not any(kept)) for q in answers]


def _heights(options: int, parts: int) -> list[float]:
    """Inches of the three panels: a bar per format in the first, one per format and part in the others."""
    return [PANEL + options * (BAR * many + GAP) for many in (1, parts, parts)]


def _rows(ax: Axes, heights: Sequence[float]) -> tuple[Axes, Axes, Axes]:
    """The place of `ax` divided into three, one above the other."""
    grid = divided(ax, 3, 1, height_ratios=heights)
    return ax, ax.figure.add_subplot(grid[1]), ax.figure.add_subplot(grid[2])


def names(q: Quantized) -> list[str]:
    """A label for each option: the cache is named where there are several."""
    several = len({o.precision.kv.name for o in q.options}) > 1
    return [f"{o.precision.name}, {o.precision.kv.name} KV" if several else o.precision.name for o in q.options]


def slices(o: Option) -> list[float]:
    """Bytes of one device: values, scales and wide weights as they share it, then the cache that is left; nothing where it does not run."""
    if o.estimate is None:
        return [0.0] * len(STACK)
    s, c = o.stored, o.estimate.capacity
    share = float(np.max(c.weight_bytes_per_gpu)) / s.total_bytes
    left = max(0.0, float(np.min(c.kv_cache_bytes_per_gpu)))
    return [share * getattr(s, field) if field else left for _, field, _ in STACK]


def _draw_memory(ax: Axes, q: Quantized) -> None:
    rows, sizes = np.arange(len(q.options)), np.array([slices(o) for o in q.options])
    starts = np.cumsum(sizes, axis=1) - sizes
    for i, (label, _, colour) in enumerate(STACK):
        look: Any = {"color": colour, "hatch": HATCHES[i], "ec": "white", "lw": 0}
        ax.barh(rows, sizes[:, i], left=starts[:, i], height=0.72, label=label, gid=label, **look)
    held = float(np.max(q.base.capacity.total_bytes))
    ax.axvline(held, color=BLACK, lw=0.7, ls=DASHED, gid="device", label="device")
    top = max(held, float(sizes.sum(axis=1).max())) * 1.04
    ax.set_xlim(0, top)
    _formats(ax, q)
    unit_axis(ax.xaxis, f"memory of one {q.base.hardware.name}", "B", (0.0, top), shown="GiB")
    ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncol=5, fontsize=SMALL, columnspacing=0.7, handlelength=0.9, borderaxespad=0.2)
    _say_missing(ax, q.options, rows)


def _formats(ax: Axes, q: Quantized) -> None:
    """The formats as a vertical axis, from the top."""
    ax.set_ylim(len(q.options) - 0.5, -0.5)
    ax.set_yticks(range(len(q.options)), names(q), fontsize=SMALL)
    ax.tick_params(axis="y", length=0)
    ax.grid(False, axis="y")


def _say_missing(ax: Axes, options: Sequence[Option], rows: np.ndarray) -> None:
    for o, row in zip(options, rows, strict=True):
        if not o.runs:
            ax.annotate("not run", (0, row), (2, 0), textcoords="offset points", va="center", fontsize=SMALL, color=MIDDLE)


def _bars(ax: Axes, answers: Sequence[Quantized], values: Sequence[Sequence[float]], words: Sequence[Sequence[str]]) -> None:
    """A group of bars per format, one per part, each with its number or why there is none."""
    height, rows = 0.76 / len(answers), np.arange(len(answers[0].options))
    for i, (q, sizes, texts) in enumerate(zip(answers, values, words, strict=True)):
        at = rows + (i - (len(answers) - 1) / 2) * height
        shown = np.nan_to_num(np.asarray(sizes, dtype=float))
        ax.barh(at, shown, height=0.92 * height, color=PARTS[i], lw=0, label=q.base.hardware.name, gid=q.base.hardware.name)
        for y, size, text in zip(at, shown, texts, strict=True):
            ax.annotate(text, (size, y), (1.5, 0), textcoords="offset points", va="center", fontsize=SMALL)
    longest = max(len(text) for texts in words for text in texts)
    top = (1.28 if longest < WIDE else 1.75) * max(max(np.nan_to_num(np.asarray(v, dtype=float)), default=0.0) for v in values)
    ax.set_xlim(0, top or 1.0)
    _formats(ax, answers[0])


def _draw_latency(ax: Axes, answers: Sequence[Quantized]) -> None:
    values = [[float(o.loads.tpot_s[0]) if o.loads is not None and o.fits else np.nan for o in q.options] for q in answers]
    words = [
        [_shown(o, v) if np.isfinite(v) else _missing(o) for v, o in zip(row, q.options, strict=True)]
        for row, q in zip(values, answers, strict=True)
    ]
    _bars(ax, answers, values, words)
    unit_axis(ax.xaxis, f"{TERMS['tpot_s'].label} of one request", "s", (0.0, float(ax.get_xlim()[1])), shown="ms")
    if len(answers) > 1:
        look = {"ncol": 2, "fontsize": SMALL, "columnspacing": 0.7, "handlelength": 0.9, "borderaxespad": 0.2}
        ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), **look)


def _shown(o: Option, tpot_s: float) -> str:
    """A time in milliseconds with the ends of its band."""
    ends = o.tpot_band_s(0)
    return f"{1e3 * tpot_s:.3g}" + (f" ({significant(1e3 * ends[0], 2)}-{significant(1e3 * ends[1], 2)})" if ends else "")


def _draw_capacity(ax: Axes, answers: Sequence[Quantized]) -> None:
    values = [[o.max_sequences for o in q.options] for q in answers]
    words = [
        [plain(round(v)) if v else _missing(o) for v, o in zip(row, q.options, strict=True)] for row, q in zip(values, answers, strict=True)
    ]
    _bars(ax, answers, values, words)
    unit_axis(ax.xaxis, "requests at once", "", (0.0, float(ax.get_xlim()[1])))


def _missing(o: Option) -> str:
    return "no room" if o.runs else "not run"
