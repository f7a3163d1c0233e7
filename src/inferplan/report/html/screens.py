"""Pages of answers whose screen says all: its text and tables, with pictures of their rows. Computes no figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from inferplan.planner.pareto import ASKED
from inferplan.report import batching, load_curve, quantization, speculation, sweep
from inferplan.report.html.estimate import facts
from inferplan.report.html.page import Axis, Bar, Bars, Chart, Fact, Mark, Page, Part, Series, Titled
from inferplan.report.html.recorded import recorded, told
from inferplan.terms import TERMS
from inferplan.units import show, significant

if TYPE_CHECKING:
    import pandas as pd

    from inferplan.deployment import Estimate
    from inferplan.planner.sweep import Tally
    from inferplan.quantization.answer import Quantized
    from inferplan.serving.summary import LoadCurve
    from inferplan.speculation.answer import Speculation

Pieces = Iterable[Any]
Row = Mapping[str, Any]
Groups = Sequence[tuple[str, Sequence[Fact]]]
COLOURS = ("blue", "vermilion", "green", "orange", "sky", "purple", "black")
LOOKS = ("line", "dashed", "dotted")
UNDER = "The deployment, one request alone"


def page(
    command: str, pieces: Pieces, answer: str = "", *, headline: str = "", rows: str = "", figures: Sequence[Chart | Bars] = (),
    groups: Groups = (),
) -> Page:  # fmt: skip
    """The page of a screen's pieces; without a sentence of its own the headline is the answer, under another one.

    rows
        what tables are called that have no other name than that of their first column.
    """
    screen = told(pieces, answer)
    rest = [Titled(rows, p.grid) if rows and isinstance(p, Titled) and p.title == p.grid.columns[0] else p for p in screen.rest]
    return Page(command, headline or screen.headline, answer or screen.headline, screen.why, groups, screen.asked, figures, rest)


def line_chart(
    title: str, rows: Sequence[Row], x: str, y: str, by: Callable[[Row], str], *, log: bool = False, note: str = "",
    marks: Sequence[Mark] = (),
) -> Chart:  # fmt: skip
    """Two columns of rows under the glossary's keys, a line for each value of `by`."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(by(row), []).append(row)
    series = [
        Series(name, _column(own, x), _column(own, y), COLOURS[i % 7], LOOKS[i // 7 % 3]) for i, (name, own) in enumerate(groups.items())
    ]
    return Chart(title, axis(x, log=log), axis(y, log=log), series, marks, note)


def _column(rows: Sequence[Row], name: str) -> np.ndarray:
    return np.array([np.nan if row[name] is None else row[name] for row in rows], dtype=float)


def axis(name: str, *, log: bool = False) -> Axis:
    """The axis of a glossary key."""
    term = TERMS.get(name)
    return Axis(term.label, term.unit, log=log) if term else Axis(name, log=log)


def compared(found: batching.Compared, *, asked_model: str, asked_gpu: str) -> Page:
    """The page of static against continuous batching."""
    rows = batching.rows(found)
    x = "rate_per_s" if found.kind == "rate_per_s" else "concurrency"
    names = (
        ("output_tokens_per_s", "Output rate against load"),
        ("e2e_s", "Time of a request against load"),
        ("ttft_s", "TTFT against load"),
    )
    figures = (
        [line_chart(f"{title} against load", rows, x, y, lambda row: str(row["batching"]), log=True) for y, title in names]
        if not found.single
        else []
    )
    pieces = batching.screen(found, asked_model=asked_model, asked_gpu=asked_gpu)
    return page("batching", pieces, batching.sentence(found), figures=figures, groups=[(UNDER, facts(found.estimate))])


def curve(e: Estimate, found: LoadCurve, source: str) -> Page:
    """The page of a load curve."""
    pieces = recorded(lambda out: load_curve.show_curve(e, found, source, out))
    rows = load_curve.curve_rows(found)
    marks = [Mark("x", rate, f"{what} {significant(rate)}/s", colour)
             for rate, what, colour in ((found.knee_per_s, "knee", "dark"), (found.largest_per_s, "within limits up to", "green"))
             if rate is not None and np.isfinite(rate)]  # fmt: skip
    x, series = [row["offered_per_s"] for row in rows], []
    for name, colour in (("ttft_s", "blue"), ("tpot_s", "green"), ("e2e_s", "vermilion")):
        for key, look in (("mean", "line"), ("p99", "dashed")):
            series.append(Series(f"{TERMS[name].label}, {key}", x, _column(rows, f"{name}.{key}"), colour, look))
    limits = [Mark("y", limit, f"{name.upper()} limit") for name, limit in (found.slo.limits if found.slo else ())]
    times = Chart(
        "Latency against offered load", Axis("offered load", "requests/s"), Axis("time", "s", log=True), series, [*marks, *limits]
    )
    return page("load-curve", pieces, load_curve.sentence(found), figures=[times] if rows else [], groups=[(UNDER, facts(e))], rows="Rates")


def formats(found: Sequence[Quantized], *, asked_model: str, asked_gpus: Sequence[str]) -> Page:
    """The page of formats of weights and cache."""
    rows = [row for row in quantization.rows(found) if row["tpot_s"] is not None]
    pieces = quantization.screen(found, asked_model=asked_model, asked_gpus=asked_gpus)
    figures: list[Chart | Bars] = [_stored(quantization.rows(found[:1]))]
    for part in dict.fromkeys(row["hardware"] for row in rows):
        own = [row for row in rows if row["hardware"] == part]
        figures.append(line_chart(f"TPOT on {part} by format, weights/cache", own, "batch", "tpot_s", _format, log=True))
    groups = [(f"{q.base.hardware.title}, {q.base.precision.summary}, one request alone", facts(q.base)) for q in found]
    return page("quantize", pieces, "\n".join(map(quantization.sentence, found)), figures=figures, groups=groups)


def _format(row: Row) -> str:
    return f"{row['weight_format']}/{row['kv_format']}"


def _stored(rows: Sequence[Row]) -> Bars:
    """Bytes of weights by format, piece by piece."""
    kinds = (("code_bytes", "values", "blue"), ("scale_bytes", "scales", "vermilion"), ("wide_bytes", "kept wide", "light"))
    each = {row["weight_format"]: row for row in rows}
    bars = [Bar(name, [Part(what, float(row[key]), colour) for key, what, colour in kinds], show(row["weight_bytes"], "B", binary=True))
            for name, row in each.items()]  # fmt: skip
    return Bars("Weights as stored", Axis("weights", "B", shown="GiB"), bars)


def drafted(found: Speculation, *, asked_model: str, asked_draft: str, asked_gpu: str) -> Page:
    """The page of speculative decoding."""
    rows = [row for row in speculation.rows(found) if row["draft_tokens"] in (*speculation.LENGTHS, found.draft_tokens)]

    def length(row: Row) -> str:
        return f"{row['draft_tokens']:g} draft token{'s' if row['draft_tokens'] != 1 else ''}"

    even = [Mark("y", 1.0, "no gain, no loss")]
    gain = line_chart("Gain against batch", rows, "batch", "speed_up", length, note="Above 1 it gains, below 1 it loses.", marks=even)
    pieces = speculation.screen(found, asked_model=asked_model, asked_draft=asked_draft, asked_gpu=asked_gpu)
    groups = [("Without drafts, one request alone", facts(found.plain))]
    return page("speculate", pieces, speculation.sentence(found), figures=[gain], groups=groups)


def swept(found: Tally, out_path: str | None) -> Page:
    """The page of what stands out of a sweep."""
    return page("sweep", recorded(lambda out: sweep.show_sweep(found, out_path, out)), headline="What stands out of a sweep")


def frontier(found: pd.DataFrame, x: str, y: str) -> Page:
    """The page of a frontier: all rows as points, those that no other beats as lines, model by model and length by length."""
    front = sweep.rows_of(found, x)
    names = [n for n in ASKED if n in front and front[n].nunique() > 1]
    groups = front.groupby(names, sort=False, observed=True) if names else [((), front)]
    series = [_of_rows("every configuration", found, x, y, "light", "circle")]
    series += [_of_rows(", ".join(map(str, key)) or "the frontier", rows, x, y, COLOURS[i % 7], LOOKS[i // 7 % 3])
               for i, (key, rows) in enumerate(groups)]  # fmt: skip
    chart = Chart("Every configuration, and those that no other beats", _frontier_axis(x), _frontier_axis(y), series)
    pieces = recorded(lambda out: sweep.show_frontier(found, x, y, out))
    headline = f"Frontier of {sweep.label(x)} and {sweep.label(y)}"
    return page("pareto", pieces, headline=headline, rows="On the frontier", figures=[chart] if len(front) else [])


def _of_rows(label: str, rows: pd.DataFrame, x: str, y: str, colour: str, look: str) -> Series:
    names = [f"{sweep.deployment(row)}, batch {row['batch']:g}" for row in rows.to_dict("records")]
    return Series(label, rows[x].to_numpy(dtype=float), rows[y].to_numpy(dtype=float), colour, look, names=names)


def _frontier_axis(name: str) -> Axis:
    term = TERMS.get(name)
    return Axis(sweep.label(name), term.unit if term else "", log=True)
