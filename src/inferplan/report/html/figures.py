"""Charts as data for the page's script, bars as drawings of their own: units on axes, legends, rounding. Knows no quantity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inferplan.report.canvas import plain, prefixed, round_step
from inferplan.report.html.page import Axis, Bar, Bars, Chart, Series
from inferplan.report.html.text import escape
from inferplan.report.html.thin import rule, thinned
from inferplan.units import UNITS, show, significant

BINARY = ("KiB", "MiB", "GiB", "TiB")
DIGITS = 6
LINE, HEAD, THICK, FOOT = 46, 16, 18, 22  # pixels: a bar with its words, the words alone, the bar, the axis below
SWATCH = {"dashed": "6 3", "dotted": "2 3"}


@dataclass(slots=True)
class Drawing:
    """Charts of a page, as its script reads them, and how many figures there are."""

    charts: list[dict[str, Any]] = field(default_factory=list)
    figures: int = 0

    def next(self) -> str:
        """A name that no other figure has."""
        self.figures += 1
        return f"figure-{self.figures}"


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis with the unit that it is shown in, and what a base unit is divided by."""

    axis: Axis
    unit: str
    by: float

    @classmethod
    def of(cls, axis: Axis, values: Iterable[Any]) -> Scale:
        """With a unit that fits the upper part of all values."""
        known = np.concatenate([np.asarray(v, dtype=float).ravel() for v in values] or [np.empty(0)])
        known = known[np.isfinite(known) & ((known > 0) if axis.log else True)]
        if not known.size or axis.unit in ("", "%"):
            return cls(axis, axis.unit, 1.0)
        low, high = float(np.abs(known).min()), float(np.abs(known).max())
        shown = axis.shown or prefixed(low**0.25 * high**0.75 if axis.log else high, axis.unit)
        return cls(axis, shown, UNITS.get(shown, (1.0, ""))[0])

    def told(self, values: Any) -> list[float | None]:
        """Values in the shown unit, short; None for what cannot be drawn."""
        scaled = np.asarray(values, dtype=float) / self.by
        fine = np.isfinite(scaled) & ((scaled > 0) if self.axis.log else True)
        return [_short(v) if ok else None for v, ok in zip(scaled.tolist(), fine.tolist(), strict=True)]

    def record(self) -> dict[str, Any]:
        """As the script reads it."""
        return {"label": self.axis.label, "unit": self.unit, "log": self.axis.log}


def _drawn(value: float, axis: Axis) -> bool:
    return math.isfinite(value) and (value > 0 or not axis.log)


def _short(value: float) -> float | int:
    found = float(f"{value:.{DIGITS}g}")
    return int(found) if found.is_integer() and abs(found) < 2**53 else found


def chart_html(chart: Chart, drawing: Drawing) -> str:
    """The place of a chart, its legend and notes; its data go to the page's script."""
    name, place = drawing.next(), len(drawing.charts)
    x = Scale.of(chart.x, [s.x for s in chart.series])
    y = Scale.of(chart.y, [v for s in chart.series for v in (s.y, s.low, s.high) if v is not None])
    marks = [{"axis": m.axis, "value": _short(m.value / (x if m.axis == "x" else y).by), "label": m.label, "colour": m.colour}
             for m in chart.marks if _drawn(m.value, chart.x if m.axis == "x" else chart.y)]  # fmt: skip
    drawing.charts.append(
        {"title": chart.title, "x": x.record(), "y": y.record(), "series": [_series(s, x, y) for s in chart.series], "marks": marks}
    )
    legend = "".join(f'<li><button type="button" aria-pressed="true">{_swatch(s)}{escape(s.label)}</button></li>' for s in chart.series)
    long = max((np.size(s.y) for s in chart.series), default=0)
    notes = "".join(f'<p class="note">{escape(n)}</p>' for n in (chart.note, rule(long)) if n)
    about = (
        f"Chart: {chart.title}. Arrow keys go from point to point, plus and minus zoom, 0 shows the whole. Its values are in a table below."
    )
    return (
        f'<figure aria-labelledby="{name}"><h3 id="{name}">{escape(chart.title)}</h3><ul class="legend">{legend}</ul>'
        f'<div class="over"><span>{escape(_axis_text(y))}</span><span class="tools">{_TOOLS}</span></div>'
        f'<div class="plot" data-chart="{place}" tabindex="0" role="application" aria-label="{escape(about)}"></div>{notes}'
        f'<details class="values" data-chart="{place}"><summary>Values as a table</summary></details></figure>'
    )


_TOOLS = "".join(f'<button type="button" aria-label="{said}">{text}</button>'
                 for text, said in (("+", "Zoom in"), ("\u2212", "Zoom out"), ("Whole", "Show the whole chart")))  # fmt: skip


def _axis_text(scale: Scale) -> str:
    return f"{scale.axis.label}, {scale.unit}" if scale.unit and scale.unit != scale.axis.label else scale.axis.label


def _series(s: Series, x: Scale, y: Scale) -> dict[str, Any]:
    """A series as the script reads it, thinned where it is long."""
    order = np.argsort(np.asarray(s.x, dtype=float), kind="stable")
    kept = order[thinned(np.asarray(s.y, dtype=float)[order])]
    found: dict[str, Any] = {"label": s.label, "colour": s.colour, "look": s.look}
    found |= {"x": x.told(np.asarray(s.x)[kept]), "y": y.told(np.asarray(s.y)[kept])}
    if s.low is not None and s.high is not None:
        found |= {"low": y.told(np.asarray(s.low)[kept]), "high": y.told(np.asarray(s.high)[kept])}
    if s.names is not None:
        found["names"] = [s.names[i] for i in kept]
    return found


def _swatch(s: Series) -> str:
    shapes = {
        "circle": '<circle cx="9" cy="6" r="4.5"/>', "square": '<path d="M5 2h8v8H5z"/>', "triangle": '<path d="M9 1l5 9.5H4z"/>',
        "diamond": '<path d="M9 .5L14.5 6 9 11.5 3.5 6z"/>',
    }  # fmt: skip
    dash = f' stroke-dasharray="{SWATCH[s.look]}"' if s.look in SWATCH else ""
    inner = shapes.get(s.look) or f'<path d="M0 6h18" stroke-width="2.5"{dash}/>'
    kind = f"f-{s.colour}" if s.look in shapes else f"s-{s.colour}"
    return f'<svg width="18" height="12" aria-hidden="true" class="{kind}">{inner}</svg>'


def bars_html(bars: Bars, drawing: Drawing) -> str:
    """Bars as a drawing, with a legend that switches their pieces where there are several kinds, and their values as a table."""
    name = drawing.next()
    scale = Scale.of(bars.axis, [_ends(bar) for bar in bars.bars])
    top = 1.02 * max((max(_ends(bar)) for bar in bars.bars), default=1.0)
    top = max(top, *(1.02 * m.value for m in bars.limits)) if bars.limits else top or 1.0
    high = LINE * len(bars.bars) + FOOT + 20
    drawn = "".join(_bar(bar, i, top, scale, list(_kinds(bars))) for i, bar in enumerate(bars.bars))
    lines = "".join(_limit(m.value, m.label, top, high) for m in bars.limits)
    notes = f'<p class="note">{escape(bars.note)}</p>' if bars.note else ""
    said = escape(f"Bars: {bars.title}. Their values are in a table below.")
    drawn = f"{_ticks(scale, top, high)}{drawn}{lines}"
    return (
        f'<figure aria-labelledby="{name}"><h3 id="{name}">{escape(bars.title)}</h3>{_bar_legend(bars)}'
        f'<div class="bars"><svg height="{high}" role="img" aria-label="{said}">{drawn}</svg></div>'
        f"{notes}<details><summary>Values as a table</summary>{_bar_table(bars, scale)}</details></figure>"
    )


def _ends(bar: Bar) -> list[float]:
    return [sum(p.value for p in bar.parts), *([bar.floor] if bar.floor is not None else []), *(bar.band or ())]


def _kinds(bars: Bars) -> dict[str, str]:
    return {p.label: p.colour for bar in bars.bars for p in bar.parts}


def _bar_legend(bars: Bars) -> str:
    kinds = _kinds(bars)
    if len(kinds) < 2:
        return ""
    made = "".join(
        f'<li><button type="button" aria-pressed="true" data-part="{i}"><svg width="12" height="12" aria-hidden="true" class="f-{colour}">'
        f'<rect width="12" height="12"/></svg>{escape(label)}</button></li>'
        for i, (label, colour) in enumerate(kinds.items())
    )  # fmt: skip
    return f'<ul class="legend">{made}</ul>'


def _bar(bar: Bar, place: int, top: float, scale: Scale, order: list[str]) -> str:
    y, at, kinds, total = place * LINE + 4, 0.0, [], sum(p.value for p in bar.parts)
    for p in bar.parts:
        wide = 100 * p.value / top
        share = f" ({100 * p.value / total:.1f} %)" if len(bar.parts) > 1 and total else ""
        tip = escape(f"{p.label}: {_value(p.value, scale)}{share}")
        data = f'data-bar="{place}" data-part="{order.index(p.label)}" data-share="{wide:.4f}" data-tip="{tip}"'
        box = f'x="{at:.4f}%" width="{wide:.4f}%" y="{y + HEAD}" height="{THICK}"'
        kinds.append(f'<rect class="part f-{p.colour}" {data} {box}><title>{tip}</title></rect>')
        at += wide
    words = f'<text x="0" y="{y + 11}">{escape(bar.label)} <tspan class="said" dx="6">{escape(bar.text)}</tspan></text>'
    return words + "".join(kinds) + _band(bar, y + HEAD, top, scale) + _floor(bar, y + HEAD, top, scale)


def _floor(bar: Bar, y: float, top: float, scale: Scale) -> str:
    if bar.floor is None:
        return ""
    at, tip = f"{100 * bar.floor / top:.4f}%", escape(f"floor: {_value(bar.floor, scale)}")
    return f'<line class="floor" data-tip="{tip}" x1="{at}" x2="{at}" y1="{y - 3}" y2="{y + THICK + 3}"><title>{tip}</title></line>'


def _band(bar: Bar, y: float, top: float, scale: Scale) -> str:
    if bar.band is None:
        return ""
    low, high = (f"{100 * end / top:.4f}%" for end in bar.band)
    middle, tip = y + THICK / 2, escape(f"80 % from {_value(bar.band[0], scale)} to {_value(bar.band[1], scale)}")
    ends = "".join(f'<line x1="{x}" x2="{x}" y1="{y + 4}" y2="{y + THICK - 4}"/>' for x in (low, high))
    return f'<g class="band" data-tip="{tip}"><title>{tip}</title><line x1="{low}" x2="{high}" y1="{middle}" y2="{middle}"/>{ends}</g>'


def _limit(value: float, label: str, top: float, high: float) -> str:
    at, tip = f"{100 * value / top:.4f}%", escape(label)
    return f'<line class="limit" data-tip="{tip}" x1="{at}" x2="{at}" y1="{HEAD}" y2="{high - FOOT - 16}"><title>{tip}</title></line>'


def _ticks(scale: Scale, top: float, high: float) -> str:
    """Lines at round numbers, and the axis in words below them."""
    step = round_step(top / scale.by)
    made = []
    for n in range(int(top / scale.by / step) + 1):
        at = 100 * n * step * scale.by / top
        anchor = "start" if n == 0 else "end" if at > 95 else "middle"
        made.append(f'<line class="gridline" x1="{at:.3f}%" x2="{at:.3f}%" y1="0" y2="{high - FOOT - 16}"/>'
                    f'<text class="tick" x="{at:.3f}%" y="{high - FOOT - 2}" text-anchor="{anchor}">{plain(n * step)}</text>')  # fmt: skip
    return "".join(made) + f'<text class="tick" x="100%" y="{high - 4}" text-anchor="end">{escape(_axis_text(scale))}</text>'


def _value(value: float, scale: Scale) -> str:
    if scale.unit in BINARY:
        return show(value, "B", binary=True)
    unit = scale.axis.unit
    return f"{significant(value)} {unit}".strip() if unit in ("", "%") else show(value, unit)


def _bar_table(bars: Bars, scale: Scale) -> str:
    """Values of all pieces, with floors and bands where there are any."""
    floors, bands = any(b.floor is not None for b in bars.bars), any(b.band for b in bars.bars)
    head = ["bar", "piece", bars.axis.label, *(["floor"] if floors else []), *(["80 % from", "to"] if bands else [])]
    rows = []
    for bar in bars.bars:
        beside = [*([bar.floor] if floors else []), *((bar.band or (None, None)) if bands else ())]
        for n, p in enumerate(bar.parts):
            values = [p.value, *(beside if n == 0 else [None] * len(beside))]
            rows.append([bar.label, p.label, *("" if v is None else _value(v, scale) for v in values)])
    return plain_table(head, rows, f"Values of the bars: {bars.title}")


def plain_table(head: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> str:
    """A small table that does not sort."""
    heads = "".join(f'<th scope="col">{escape(text)}</th>' for text in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    table = f'<table><caption class="unseen">{escape(title)}</caption><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(title)}">{table}</div>'
