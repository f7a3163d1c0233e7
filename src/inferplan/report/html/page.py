"""What a page is made of: facts that open, charts, bars, tables of the screen, text. Knows no quantity and no HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from inferplan.explain import Node
from inferplan.report.grid import Grid


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis shows, its base unit, and whether it is logarithmic; `shown` is the unit to show it in, else one that fits."""

    label: str
    unit: str = ""
    log: bool = False
    shown: str | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one kind along an axis, in base units.

    look
        `line`, `dashed`, `dotted`, `step`, or a marker of points: `circle`, `triangle`, `square`, `diamond`.
    low, high
        ends of an error band about y.
    names
        what each point is called.
    """

    label: str
    x: Any
    y: Any
    colour: str
    look: str = "line"
    low: Any = None
    high: Any = None
    names: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """A line across a chart at a value of one axis."""

    axis: str
    value: float
    label: str
    colour: str = "ink"


@dataclass(frozen=True, slots=True)
class Chart:
    """Series against two axes."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    marks: Sequence[Mark] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a bar, in the base unit of its axis."""

    label: str
    value: float
    colour: str


@dataclass(frozen=True, slots=True)
class Bar:
    """Pieces end to end, with what is written beside them, a floor and the ends of an error band where there are any."""

    label: str
    parts: Sequence[Part]
    text: str
    floor: float | None = None
    band: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars on a common axis from zero; `limits` are lines across all of them."""

    title: str
    axis: Axis
    bars: Sequence[Bar]
    note: str = ""
    limits: Sequence[Mark] = ()


@dataclass(frozen=True, slots=True)
class Fact:
    """A headline number as text, what stands beside it, and its tree where it can be opened."""

    label: str
    value: str
    beside: str = ""
    tree: Node | None = None


@dataclass(frozen=True, slots=True)
class Titled:
    """A table of the screen under a heading."""

    title: str
    grid: Grid


@dataclass(frozen=True, slots=True)
class Page:
    """One answer: headline, sentence, why, what belongs right below it, facts, inputs, figures, then the rest in the order of the screen.

    facts
        by title; those under one are folded away until they are asked for.
    """

    command: str
    headline: str
    answer: str
    why: Sequence[Titled | str] = ()
    facts: Sequence[tuple[str, Sequence[Fact]]] = ()
    inputs: Sequence[Titled | str] = ()
    figures: Sequence[Chart | Bars] = ()
    rest: Sequence[Titled | str] = field(default=())
