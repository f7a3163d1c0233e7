"""The picture of a comparison: times of each estimate with its band and its floor, and requests at once. Knows no equation."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from inferplan.deployment import Estimate
from inferplan.report.canvas import BLACK, BLUE, DARK, SMALL, TITLE_WIDTH, VERMILION, canvas, divided, line_of, plain, title, unit_axis
from inferplan.terms import TERMS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW, PANEL, HEAD = 0.13, 0.42, 0.42  # inches: of an estimate, around a panel, of the title
MOST = 60
"""Estimates that are drawn; of more, the first."""
BETWEEN = 2.5  # from which ratio of the largest to the smallest an axis is logarithmic
LONGEST = 30  # characters of a name at the axis


def plot_comparison(found: Sequence[Estimate], *, ax: Axes | None = None) -> Axes:
    """TTFT, TPOT and requests at once of each estimate, a row each, in three panels; returns the first.

    A point is the estimate, the bar through it the 80 % band, the upright stroke the floor; what does not fit is hollow.
    """
    shown = list(found[:MOST])
    own = ax is None
    with canvas(ax) as ax:
        figure: Any = ax.figure
        if own:
            figure.set_size_inches(figure.get_size_inches()[0], HEAD + 3 * (PANEL + ROW * len(shown)))
        grid = divided(ax, 3, 1)
        panels = [ax, figure.add_subplot(grid[1]), figure.add_subplot(grid[2])]
        _times(panels[0], shown, "ttft")
        _times(panels[1], shown, "tpot")
        _room(panels[2], shown)
        for panel in panels:
            _names(panel, names_of(shown))
        load = shown[0].load
        more = [f"the first {MOST} of {len(found):,}"] if len(found) > MOST else []
        lines = [f"{load.input_tokens:,} tokens in, {load.output_tokens:,} out, batch {load.batch:,}", *_shared(shown), *more]
        told = [part for line in lines for part in textwrap.wrap(line, TITLE_WIDTH)]
        if own:
            figure.suptitle("\n".join(told), x=0.01, ha="left", fontsize=6.5)
        else:
            title(ax, *told)
        panels[0].legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, fontsize=SMALL)
        return ax


def _parts(found: Sequence[Estimate]) -> list[tuple[str, str, str, str]]:
    """Model, devices, part and precision of each."""
    return [(e.model.name, f"{e.gpus:,} devices" if e.gpus > 1 else "one device", e.hardware.name, e.precision.name) for e in found]


def names_of(found: Sequence[Estimate]) -> list[str]:
    """What tells each estimate apart from the others, in words."""
    every = _parts(found)
    differ = [i for i in range(4) if len({parts[i] for parts in every}) > 1] or [0]
    return [line_of(", ".join(parts[i] for i in differ), LONGEST) for parts in every]


def _shared(found: Sequence[Estimate]) -> list[str]:
    """What all estimates have in common, for the title."""
    every = _parts(found)
    same = [every[0][i] for i in range(4) if len({parts[i] for parts in every}) == 1]
    return [", ".join(same)] if same else []


def _names(ax: Axes, names: Sequence[str]) -> None:
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.set_yticks(range(len(names)), names, fontsize=SMALL)
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False, axis="y")


def _scale(ax: Axes, values: Sequence[float], label: str, unit: str) -> None:
    """A logarithmic axis where values lie far apart, else one from zero."""
    low, high = min(values), max(values)
    if low > 0 and high / low > BETWEEN:
        ax.set_xscale("log")
        span = (low / 1.3, high * 1.6)
    else:
        span = (0.0, 1.15 * high or 1.0)
    ax.set_xlim(span)
    unit_axis(ax.xaxis, label, unit, span)


def _times(ax: Axes, found: Sequence[Estimate], kind: str) -> None:
    every: list[float] = []
    for y, e in enumerate(found):
        value, floor, band = (getattr(e, name) for name in (f"{kind}_s", f"floor_{kind}_s", f"{kind}_band_s"))
        ends = band or (value, value)
        first = {"band": "80 % band", "floor": TERMS["floor_s"].label, "estimate": "estimate"} if y == 0 else {}
        ax.plot(ends, (y, y), color=BLUE, lw=3.2, alpha=0.3, solid_capstyle="butt", gid="band", label=first.get("band"))
        ax.plot([floor], [y], ls="", marker="|", ms=6, mew=1.2, color=BLACK, gid="floor", label=first.get("floor"))
        look: Any = {"mfc": BLUE if e.fits else "white", "mec": BLUE, "mew": 0.8}
        ax.plot([value], [y], "o", ms=3.2, gid="estimate", label=first.get("estimate"), **look)
        every += [value, floor, *ends]
    _scale(ax, [v for v in every if np.isfinite(v)], TERMS[f"{kind}_s"].label, "s")


def _room(ax: Axes, found: Sequence[Estimate]) -> None:
    values = [float(np.floor(e.max_sequences)) if np.isfinite(e.max_sequences) else 0.0 for e in found]
    ax.barh(range(len(found)), values, height=0.6, color=DARK, lw=0, gid="room")
    for y, (value, e) in enumerate(zip(values, found, strict=True)):
        text = plain(value) if e.fits else f"{plain(value)}: does not fit" if value else "no room"
        style: Any = {"va": "center", "fontsize": SMALL, "color": BLACK if e.fits else VERMILION}
        ax.annotate(text, (value, y), (2, 0), textcoords="offset points", **style)
    top = 1.4 * max(values) or 1.0
    ax.set_xlim(0, top)
    unit_axis(ax.xaxis, "requests at once", "", (0.0, top))
