"""A picture of formats: memory of one device, time between tokens, requests at once, a bar for each. Knows no equation."""

from __future__ import annotations

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
STACK = (("values", "code_bytes", BLUE), ("scales", "scale_bytes", VERMILION), ("wide", "wide_bytes", ORANGE), ("cache", "", SKY))
WIDTH, ROW, HEAD = 6.6, 0.16, 1.25  # inches
MOST_PARTS = len(PARTS)
WIDE = 9  # characters beside a bar, from which on it gets more room


def plot_quantization(answers: Sequence[Quantized], *, ax: Axes | None = None) -> Axes:
    """Bars by format: what lies in a device of the first part, TPOT of one request, and requests at once on up to four parts."""
    answers = [replace(q, options=kept) for q, kept in zip(answers[:MOST_PARTS], _drawn(answers[:MOST_PARTS]), strict=True)]
    own = ax is None
    with canvas(ax) as ax:
        figure: Any = ax.figure
        if own:
            figure.set_size_inches(WIDTH, HEAD + ROW * len(answers[0].options) * (1 + 0.35 * (len(answers) - 1)))
        left, middle, right = _columns(ax)
        _draw_memory(left, answers[0])
        _draw_latency(middle, answers)
        _draw_capacity(right, answers)
        e = answers[0].base
        parts = ", ".join(f"{drawn_devices(e)}{q.base.hardware.name}" for q in answers)
        lines = f"{e.model.title} on {parts}", f"{e.load.input_tokens:,} tokens in, {e.load.output_tokens:,} out, {e.engine.title}"
        if own:
            figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=6.5)
        else:
            title(left, *lines)
        return left


def _drawn(answers: Sequence[Quantized]) -> list[tuple[Option, ...]]:
    """The options that run on one of the parts at least, or all where none does."""
    kept = [any(o.runs for o in same) for same in zip(*(q.options for q in answers), strict=True)]
    return [tuple(o for o, keep in zip(q.options, kept, strict=True) if keep or not any(kept)) for q in answers]


def _columns(ax: Axes) -> tuple[Axes, Axes, Axes]:
    """The place of `ax` divided into three beside one another, with a common vertical axis."""
    grid = divided(ax, 1, 3)
    others = [ax.figure.add_subplot(grid[i], sharey=ax) for i in (1, 2)]
    for other in others:
        other.tick_params(labelleft=False)
    return ax, others[0], others[1]


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
        ax.barh(rows, sizes[:, i], left=starts[:, i], height=0.72, color=colour, label=label, gid=label, lw=0)
    held = float(np.max(q.base.capacity.total_bytes))
    ax.axvline(held, color=BLACK, lw=0.7, ls=DASHED, gid="device", label="device")
    top = max(held, float(sizes.sum(axis=1).max())) * 1.04
    ax.set(xlim=(0, top), ylim=(len(rows) - 0.5, -0.5))
    ax.set_yticks(rows, names(q))
    ax.tick_params(axis="y", length=0)
    ax.grid(False, axis="y")
    unit_axis(ax.xaxis, f"one {q.base.hardware.name}", "B", (0.0, top), shown="GiB")
    ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncol=5, fontsize=SMALL, columnspacing=0.7, handlelength=0.9, borderaxespad=0.2)
    _say_missing(ax, q.options, rows)


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
    ax.tick_params(axis="y", length=0)
    ax.grid(False, axis="y")


def _draw_latency(ax: Axes, answers: Sequence[Quantized]) -> None:
    values = [[float(o.loads.tpot_s[0]) if o.loads is not None and o.fits else np.nan for o in q.options] for q in answers]
    words = [
        [_shown(o, v) if np.isfinite(v) else _missing(o) for v, o in zip(row, q.options, strict=True)]
        for row, q in zip(values, answers, strict=True)
    ]
    _bars(ax, answers, values, words)
    unit_axis(ax.xaxis, f"{TERMS['tpot_s'].label} of one request", "s", (0.0, float(ax.get_xlim()[1])), shown="ms")
    if len(answers) > 1:
        look = {"ncol": min(2, len(answers)), "fontsize": SMALL, "columnspacing": 0.7, "handlelength": 0.9, "borderaxespad": 0.2}
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
