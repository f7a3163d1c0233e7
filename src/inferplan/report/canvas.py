"""How a picture is made: figure and style, units on axes, labels that keep apart, files written whole. Knows no quantity by name."""

from __future__ import annotations

import io
import math
import os
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from inferplan.errors import SpecError, escaped
from inferplan.report.files import write_bytes
from inferplan.units import UNITS, show

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

BLUE, VERMILION, GREEN, ORANGE, SKY, PURPLE, YELLOW, BLACK = (
    "#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7", "#F0E442", "#000000",
)  # fmt: skip  # Okabe and Ito: told apart by colour-blind readers too
DARK, MIDDLE, GREY, LIGHT, BEYOND = "#555555", "#777777", "#8C8C8C", "#C8C8C8", "#F2F2F2"
PALE, SAND = "#CFE4F1", "#B8A98A"
DASHED, DOTTED, MIXED, LONG = (0, (3, 1.5)), (0, (1, 1)), (0, (4, 1.2, 1, 1.2)), (0, (6, 1.5))
LOOKS: tuple[Any, ...] = ("-", DASHED, MIXED, DOTTED, LONG, (0, (3, 1, 1, 1, 1, 1)))  # tell lines apart where colours do not
SMALL = 5.5  # points of a text inside a picture
GROUND = {"fc": "white", "ec": "none", "alpha": 0.75, "pad": 0.6}  # behind a text that lies on lines
STYLE = Path(__file__).with_name("inferplan.mplstyle")
ENDINGS: dict[str, dict[str, None] | None] = {"png": None, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
TITLE_WIDTH = 50
LONGEST = 120  # characters of a line in a picture
COUNTS = {"billions": 1e9, "millions": 1e6}  # words for large numbers without a unit
ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)
OUTSIDE, TEXT = 1000.0, 100.0


@contextmanager
def canvas(ax: Axes | None = None) -> Iterator[Axes]:
    """Axes to draw on in the shipped style: the given ones, or those of a new figure that no window and no global state knows."""
    from matplotlib import style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with style.context(STYLE):
        if ax is None:
            figure = Figure()
            FigureCanvasAgg(figure)
            ax = figure.add_subplot()
        yield ax


def panels(ax: Axes) -> tuple[Axes, Axes]:
    """The place of `ax` divided into two, one above the other, with a common horizontal axis."""
    grid = divided(ax, 2, 1)
    lower: Axes = ax.figure.add_subplot(grid[1], sharex=ax)
    ax.tick_params(labelbottom=False)
    return ax, lower


def divided(ax: Axes, rows: int, columns: int, **shares: Any) -> Any:
    """The place of `ax` as a grid, of which `ax` itself keeps the first cell."""
    from matplotlib.gridspec import GridSpec

    place, box = ax.get_subplotspec(), ax.get_position()
    whole: Any = (ax.figure, box.x0, box.y0, box.x1, box.y1)
    grid: Any = place.subgridspec(rows, columns, **shares) if place else GridSpec(rows, columns, *whole, **shares)
    ax.set_subplotspec(grid[0])
    return grid


def title(ax: Axes, *lines: str) -> None:
    """A title of lines, each broken where it is longer than the picture is wide."""
    ax.set_title("\n".join(part for line in lines for part in textwrap.wrap(line, TITLE_WIDTH)))


def plain(value: float) -> str:
    """A number on an axis: thousands separated, no exponent, no trailing zeros.

    >>> plain(0.30000000000000004), plain(1000000.0)
    ('0.3', '1,000,000')
    """
    return f"{value:,.12g}"


def unit_axis(axis: Axis, label: str, unit: str, span: tuple[float, float], *, shown: str | None = None) -> None:
    """Label an axis with the unit `shown`, or a prefix that fits the upper part of its span, and put ticks at round numbers of it.

    Data stay in base units. Logarithmic axes get decades, and 2 and 5 between them where there are few.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, MultipleLocator, NullLocator

    low, high = span
    log = axis.get_scale() == "log"
    shown = shown or prefixed(low**0.25 * high**0.75 if log else high, unit)
    if not unit and not shown:
        shown = next((word for word, size in COUNTS.items() if high >= 2 * size), "")
    scale = COUNTS.get(shown) or UNITS.get(shown, (1.0, ""))[0]
    axis.set_label_text(f"{label}, {shown}" if shown and shown != label else label)
    axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value / scale)))
    if log:
        axis.set_major_locator(FixedLocator([scale * t for t in decades(low / scale, high / scale)]))
        axis.set_minor_locator(NullLocator())
    else:
        axis.set_major_locator(MultipleLocator(scale * round_step((high - low) / scale)))


def prefixed(value: float, unit: str) -> str:
    """The unit with the prefix that a number would be shown with; times stay in seconds and their parts.

    >>> prefixed(2e12, "FLOP/s"), prefixed(0.02, "s"), prefixed(4000.0, "s"), prefixed(7.0, "tokens")
    ('TFLOP/s', 'ms', 's', 'tokens')
    """
    if unit == "s" and value >= 1:
        return "s"
    return show(value, unit).partition(" ")[2]


def decades(low: float, high: float) -> list[float]:
    """Ticks of a logarithmic axis from `low` to `high`: at least two of them, also where it is shorter than a decade.

    >>> decades(0.5, 2000), decades(3, 30), decades(150, 210)
    ([1.0, 10.0, 100.0, 1000.0], [5.0, 10.0, 20.0], [160.0, 180.0, 200.0])
    """
    span = math.log10(high / low)
    every, between = max(1, math.ceil(span / 7)), (1.0, 2.0, 5.0) if span < 2 else (1.0, 3.0) if span < 3 else (1.0,)
    powers = range(math.floor(math.log10(low)) // every * every, math.ceil(math.log10(high)) + 1, every)
    found = [t for t in (m * 10.0**p for p in powers for m in between) if low <= t <= high]
    if len(found) > 2:
        return found
    step = round_step(high - low, 4)
    return [step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def round_step(span: float, ticks: int = 5) -> float:
    """A round distance at which about `ticks` ticks cover a span.

    >>> round_step(80), round_step(0.9)
    (20.0, 0.2)
    """
    base = 10.0 ** math.floor(math.log10(span / ticks))
    return next(base * m for m in ROUND if span / (base * m) <= ticks)


def powers_of_two(axis: Axis, low: float, high: float) -> None:
    """A logarithmic axis with ticks at powers of two, at most about seven of them."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    every = max(1, math.ceil((last - first + 1) / 7))
    axis.set_major_locator(FixedLocator([2.0**p for p in range(first, last + 1, every)]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axis.set_minor_locator(NullLocator())


def short(value: float) -> str:
    """A count with k for 1024 from 8192 on, as contexts are named.

    >>> short(4096), short(131072), short(2**20)
    ('4,096', '128k', '1M')
    """
    if value >= 2**20 and value % 2**20 == 0:
        return f"{value / 2**20:,.0f}M"
    return f"{value / 1024:,.0f}k" if value >= 8192 and value % 1024 == 0 else f"{value:,.0f}"


def settled(ax: Axes) -> None:
    """Let the figure find its layout, so that places on it can be measured."""
    figure: Any = ax.figure
    _legible(figure)
    figure.draw_without_rendering()


def _legible(figure: Any) -> None:
    """Texts and names as they may stand in a picture: control characters, which no SVG may hold, as escapes; endless lines cut."""
    from matplotlib.text import Text

    for artist in figure.findobj():
        if (name := artist.get_gid()) is not None:
            artist.set_gid(line_of(str(name)))
        if isinstance(artist, Text):
            found = "\n".join(line_of(line) for line in artist.get_text().split("\n"))
            if found != artist.get_text():
                artist.set_text(found)


def line_of(text: str, most: int = LONGEST) -> str:
    r"""A line of a picture: no control character, and at most so many characters.

    >>> line_of("a" + chr(27), 9), line_of("a long name", 6)
    ('a\\x1b', 'a lon…')
    """
    text = escaped(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def label_apart(ax: Axes, points: Sequence[tuple[float, float]], texts: Sequence[str], avoid: np.ndarray, **style: Any) -> None:
    """Write a text beside each point so that texts keep clear of one another and of `avoid`, an array (n, 2) of points in data units.

    Texts are measured on a layout that is `settled`; offsets are in points, so that they hold at any resolution.
    """
    figure: Any = ax.figure
    pixels, frame = figure.dpi / 72, _box(ax.get_window_extent())
    written: list[Any] = [*ax.texts, *([legend] if (legend := ax.get_legend()) else [])]
    taken, boxes = ax.transData.transform(avoid), np.array([_box(t.get_window_extent()) for t in written]).reshape(-1, 4)
    style = {"textcoords": "offset points", "ha": "center", "va": "center", **style}
    for point, text in zip(points, texts, strict=True):
        at = np.asarray(ax.transData.transform(point))
        drawn = ax.annotate(text, point, (0, 0), **style)
        extent = _box(drawn.get_window_extent())
        drawn.remove()
        size = extent[2:] - extent[:2]
        best = _best_offset(at, size, pixels, taken, boxes, frame)
        boxes = np.vstack([boxes, _around(at + pixels * best, size, pixels)])
        taken = np.concatenate([taken, _leader(at, pixels * best)])
        line = {"arrowstyle": "-", "lw": 0.4, "color": MIDDLE, "shrinkA": 0, "shrinkB": 1.5}
        ax.annotate(text, point, tuple(best), arrowprops=line, **style)


def near(ax: Axes, points: Sequence[tuple[float, float]], distance: float) -> list[list[int]]:
    """Indices of points in heaps: each lies within `distance` typographic points of the first of its heap, on a settled layout."""
    figure: Any = ax.figure
    places = ax.transData.transform(points) if len(points) else np.empty((0, 2))
    heaps: list[list[int]] = []
    for i, place in enumerate(places):
        heap = next((h for h in heaps if np.hypot(*(places[h[0]] - place)) <= distance * figure.dpi / 72), None)
        if heap is None:
            heaps.append([i])
        else:
            heap.append(i)
    return heaps


def along(ax: Axes, start: tuple[float, float], end: tuple[float, float]) -> float:
    """The angle, in degrees, at which a line between two points in data units appears on a settled layout."""
    across = np.diff(ax.transData.transform([start, end]), axis=0)[0]
    return float(np.degrees(np.arctan2(across[1], across[0])))


def _box(extent: Any) -> np.ndarray:
    return np.array([extent.x0, extent.y0, extent.x1, extent.y1])


def _around(center: np.ndarray, size: np.ndarray, pixels: float) -> np.ndarray:
    half = size / 2 + pixels
    return np.concatenate([center - half, center + half])


def _offsets(size: np.ndarray) -> Iterator[np.ndarray]:
    """Places around a point, in points, near ones first."""
    for gap in (4.0, 8.0, 13.0, 20.0, 28.0, 38.0, 50.0, 64.0, 80.0):
        for angle in np.linspace(0, 2 * np.pi, 24, endpoint=False):
            direction = np.array([np.cos(angle), np.sin(angle)])
            yield direction * (gap + np.abs(direction) @ size / 2)


def _leader(at: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Points on the line from a point to its text."""
    found: np.ndarray = at + np.linspace(0.0, 0.85, 16)[:, None] * offset
    return found


def _inside(points: np.ndarray, box: np.ndarray) -> int:
    return int(np.all((points >= box[:2]) & (points <= box[2:]), axis=1).sum())


def _best_offset(at: np.ndarray, size: np.ndarray, pixels: float, points: np.ndarray, boxes: np.ndarray, frame: np.ndarray) -> np.ndarray:
    """The offset, in typographic points, at which a text hides least; its line is looked at only where the text itself does well."""
    best, least = np.zeros(2), np.inf
    others = points[np.abs(points - at).max(axis=1, initial=0.0) > 2 * pixels]
    for offset in _offsets(size / pixels):
        cost = np.hypot(*offset) / 20 + _cost(at, pixels * offset, size, pixels, points, boxes, frame)
        cost += _crossings(_leader(at, pixels * offset), others, 1.5 * pixels) * 5 if cost < least else 0
        if cost < least:
            best, least = offset, cost
    return best


def _crossings(line: np.ndarray, points: np.ndarray, distance: float) -> int:
    """How many points of a line lie near others."""
    points = points[np.all((points > line.min(axis=0) - distance) & (points < line.max(axis=0) + distance), axis=1)]
    if not len(points):
        return 0
    gaps = np.abs(line[:, None, :] - points[None, :, :]).max(axis=2)
    return int((gaps < distance).any(axis=1).sum())


def _cost(
    at: np.ndarray, offset: np.ndarray, size: np.ndarray, pixels: float, points: np.ndarray, boxes: np.ndarray, frame: np.ndarray
) -> float:
    """How much a text would hide: points below it, other texts under it or its line, its own part outside the frame."""
    box = _around(at + offset, size, pixels)
    over = np.all((box[:2] < boxes[:, 2:]) & (boxes[:, :2] < box[2:]), axis=1).sum()
    line = _leader(at, offset)[:, None, :]
    crossed = np.all((line >= boxes[None, :, :2]) & (line <= boxes[None, :, 2:]), axis=2).sum()
    outside = bool(np.any(box[:2] < frame[:2]) or np.any(box[2:] > frame[2:]))
    return float(_inside(points, box) + 5 * crossed + TEXT * over + OUTSIDE * outside)


def ending(path: str | os.PathLike[str]) -> str:
    """The format that a file name asks for; raises SpecError for any but png, svg and pdf.

    >>> ending("a/roofline.SVG")
    'svg'
    """
    found = Path(path).suffix.lower().lstrip(".")
    if found not in ENDINGS:
        raise SpecError("must end in .png, .svg or .pdf (the formats that pictures are written in)", file=path, value=found or None)
    return found


def _fix(figure: Any) -> None:
    """Let the layout be found once and keep it in whole ten thousandths: its solver is not the same to the last digit each time."""
    _legible(figure)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for panel in figure.axes:
        panel.set_position(np.round(panel.get_position().bounds, 4))


def png_bytes(ax: Axes, dpi: int) -> bytes:
    """The figure of `ax` as a PNG of so many dots per inch."""
    from matplotlib import style

    data, figure = io.BytesIO(), cast(Any, ax.figure)
    with style.context(STYLE):
        _legible(figure)
        figure.savefig(data, format="png", dpi=dpi)
    return data.getvalue()


def write_picture(ax: Axes, path: str | os.PathLike[str]) -> Path:
    """Write the figure of `ax` as the file's ending asks, whole or not at all; the same picture gives the same bytes."""
    from matplotlib import style

    kind, data = ending(path), io.BytesIO()
    figure: Any = ax.figure
    with style.context(STYLE):
        _fix(figure)
        figure.savefig(data, format=kind, metadata=ENDINGS[kind])
    return write_bytes(path, data.getvalue())
