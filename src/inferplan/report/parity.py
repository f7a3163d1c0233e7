"""The picture of a validation: what was predicted against what is known, a panel per quantity. Knows no prediction."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from inferplan.calibrate.summary import label, summary
from inferplan.calibrate.validate import Outcome
from inferplan.errors import Unsupported
from inferplan.report.canvas import (
    BLACK,
    BLUE,
    DARK,
    DASHED,
    GREEN,
    LIGHT,
    ORANGE,
    PURPLE,
    SKY,
    SMALL,
    TITLE_WIDTH,
    VERMILION,
    canvas,
    unit_axis,
)
from inferplan.terms import TERMS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (BLUE, VERMILION, GREEN, ORANGE, SKY, PURPLE, BLACK)
PANELS, COLUMNS = 6, 3
NEAR = 0.2
SIDE, SINGLE, LINE = 1.72, 2.6, 0.11  # inches: height of a row of panels, of one panel alone, of a line of the legend
MARKS = ("o", "s", "^", "D", "v", "P", "X")


def plot_parity(found: list[Outcome], column: str = "engine", *, ax: Axes | None = None) -> Axes:
    """Predicted against measured on logarithmic axes, one panel per quantity (the six with most rows) and one colour per value of a column.

    The line is equality, the dashed ones 20 % above and below. Raises Unsupported where nothing was predicted. Returns the first panel.
    """
    shown = [o for o in found if o.predicted is not None and o.predicted > 0 and o.case.value > 0 and np.isfinite(o.predicted)]
    if not shown:
        raise Unsupported("there is nothing to draw: no row with a known value above 0 was predicted")
    quantities = [name for name, _ in Counter(o.case.quantity for o in shown).most_common(PANELS)]
    colours = _colours(shown, column)
    with canvas(ax) as ax:
        panels = _panels(ax, len(quantities), len(colours))
        for panel, quantity in zip(panels, quantities, strict=True):
            _panel(panel, [o for o in shown if o.case.quantity == quantity], quantity, column, colours)
        _legend(ax, colours, column)
        return panels[0]


def _colours(shown: list[Outcome], column: str) -> dict[str, Any]:
    """A colour for each value of the column, the frequent ones first; what is beyond the palette shares a grey."""
    names = [name for name, _ in Counter(label(o, column) for o in shown).most_common()]
    return {name: COLOURS[i] if i < len(COLOURS) else LIGHT for i, name in enumerate(names)}


def _panels(ax: Axes, count: int, colours: int) -> list[Axes]:
    """A grid of panels two wide, with room below for a legend."""
    figure: Any = ax.figure
    wide, rows = min(count, 2), -(-count // 2)
    lines = -(-min(colours, len(COLOURS) + 1) // COLUMNS) + 2
    figure.set_size_inches(figure.get_size_inches()[0], (SINGLE if wide == 1 else rows * SIDE) + lines * LINE)
    grid = figure.add_gridspec(rows, wide)
    ax.set_subplotspec(grid[0, 0])
    return [ax, *(figure.add_subplot(grid[i // wide, i % wide]) for i in range(1, count))]


def _panel(ax: Axes, shown: list[Outcome], quantity: str, column: str, colours: dict[str, Any]) -> None:
    values = np.array([(o.case.value, o.predicted) for o in shown], dtype=float)
    low, high = float(values.min()) / 1.4, float(values.max()) * 1.4
    line = np.array([low, high])
    ax.plot(line, line, color=DARK, lw=0.7, gid="equal")
    for factor in (1 - NEAR, 1 + NEAR):
        ax.plot(line, factor * line, color=DARK, lw=0.5, ls=DASHED, gid="near")
    labels = np.array([label(o, column) for o in shown])
    size = float(np.clip(400 / len(shown), 2.0, 14.0))
    for (name, colour), mark in zip(colours.items(), (*MARKS, *[MARKS[0]] * len(colours)), strict=False):
        own = values[labels == name]
        if own.size:
            ax.scatter(own[:, 0], own[:, 1], s=size, color=colour, marker=mark, alpha=0.6, lw=0, gid=f"points:{name}")
    ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    term = TERMS.get(quantity)
    unit = term.unit if term else ""
    unit_axis(ax.xaxis, "measured", unit, (low, high))
    unit_axis(ax.yaxis, "predicted", unit, (low, high))
    error = summary(shown).median_error
    rows = f"{len(shown):,} row{'' if len(shown) == 1 else 's'}"
    words = textwrap.wrap(term.label if term else quantity, TITLE_WIDTH // 2)
    ax.set_title("\n".join([*words, rows, f"median error {100 * (error or 0.0):.3g} %"]), fontsize=SMALL)


def _legend(ax: Axes, colours: dict[str, Any], column: str) -> None:
    """One legend for all panels, below them."""
    from matplotlib.lines import Line2D

    named = list(colours)[: len(COLOURS)]
    looks: Any = {"ls": "", "ms": 3}
    marks = [
        Line2D([], [], marker=mark, color=colours[name], label=name or f"no {column}", **looks)
        for name, mark in zip(named, MARKS, strict=False)
    ]
    if len(colours) > len(COLOURS):
        marks.append(Line2D([], [], marker="o", color=LIGHT, label=f"{len(colours) - len(COLOURS)} others", **looks))
    figure: Any = ax.figure
    figure.legend(handles=marks, title=column, loc="outside lower center", ncols=COLUMNS, fontsize=SMALL, title_fontsize=SMALL)
