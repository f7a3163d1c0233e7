"""The page of several estimates side by side. Computes no figure."""

from __future__ import annotations

from collections.abc import Callable

from inferplan.deployment import Estimate
from inferplan.report import estimates
from inferplan.report.comparison import show_comparison
from inferplan.report.grid import Grid
from inferplan.report.html.estimate import BAND, facts
from inferplan.report.html.page import Axis, Bar, Bars, Chart, Page, Part, Series, Titled
from inferplan.report.html.recorded import recorded, told
from inferplan.report.screen import table
from inferplan.report.words import engine, requests, resolved
from inferplan.terms import TERMS
from inferplan.units import show, significant

COLOURS = ("blue", "vermilion", "green", "orange", "sky", "purple", "black", "grey")
NAMED: dict[str, Callable[[Estimate], str]] = {
    "model": lambda e: e.model.name, "part": lambda e: e.hardware.name, "precision": lambda e: e.precision.name,
    "devices": lambda e: f"x {e.gpus:,}",
}  # fmt: skip


def page(found: list[Estimate], asked: list[tuple[str, str]]) -> Page:
    """The whole page; `asked` is each model and part as typed."""
    screen = told(recorded(lambda out: show_comparison(found, out)))
    fitting = [e for e in found if e.fits]
    opened = [(title(e, found), facts(e)) for e in found]
    side = [Titled("Side by side", p.grid) if isinstance(p, Titled) else p for p in (*screen.why, *screen.rest)]
    bands = [Titled("Times with their bands and floors", _bands(found))]
    headline = f"{len(found):,} deployments compared: {screen.headline}"
    return Page("compare", headline, sentence(found), side, opened, [_resolved(found, asked)], _figures(fitting), bands)


def title(e: Estimate, among: list[Estimate]) -> str:
    """An estimate by what tells it from the others."""
    several = {name: len({of(x) for x in among}) > 1 for name, of in NAMED.items()}
    words = [NAMED["model"](e)] if several["model"] else []
    words += [f"{'on ' if words else ''}{NAMED['part'](e)}"] if several["part"] or not any(several.values()) else []
    words += [f"{'in ' if words else ''}{NAMED['precision'](e)}"] if several["precision"] else []
    return " ".join([*words, *([NAMED["devices"](e)] if several["devices"] else [])])


def sentence(found: list[Estimate]) -> str:
    """Which is fastest and which takes most, in words."""
    fitting = [e for e in found if e.fits]
    if not fitting:
        return "None of them fits."
    count = f"{len(fitting):,} of {len(found):,} fit" if len(fitting) < len(found) else f"All {len(found):,} fit"
    first = min(fitting, key=lambda e: e.ttft_s)
    generating = all(e.model.generates for e in fitting)
    told_of = f"{title(first, found)} is fastest{' to the first token' if generating else ''} with {show(first.ttft_s, 's')}"
    if generating:
        then = min(fitting, key=lambda e: e.tpot_s)
        told_of += " and" if then is first else f", {title(then, found)}"
        told_of += f" per token after it with {show(then.tpot_s, 's')}"
    roomy = max(fitting, key=lambda e: e.max_sequences)
    return f"{count}: {told_of}; {title(roomy, found)} has room for {requests(roomy.max_sequences)}, the most."


def _resolved(found: list[Estimate], asked: list[tuple[str, str]]) -> Titled:
    """How each name was taken, once."""
    models = [resolved(model, e.model.name) for (model, _), e in zip(asked, found, strict=True)]
    parts = [resolved(gpu, e.hardware.name) for (_, gpu), e in zip(asked, found, strict=True)]
    words = (("model", models), ("gpu", parts), ("precision", [e.precision.summary for e in found]), ("engine", [engine(e) for e in found]),
             ("times", [f"by calibration '{e.setting.efficiency.name}'" for e in found]))  # fmt: skip
    return Titled("", table(("", ""), [(name, "; ".join(dict.fromkeys(each))) for name, each in words]))


def _bands(found: list[Estimate]) -> Grid:
    rows = []
    for e in found:
        for name, floor_s in (("ttft", e.floor_ttft_s), ("tpot", e.floor_tpot_s))[: 2 if e.model.generates else 1]:
            ends = getattr(e, f"{name}_band_s") or ()
            band = [*(show(end, "s") for end in ends), *([""] * (0 if ends else 2))]
            rows.append((title(e, found), TERMS[f"{name}_s"].label, show(getattr(e, f"{name}_s"), "s"), *band, show(floor_s, "s")))
    return table(("Which", "time", "estimate", "80 % from", "to", "floor"), rows, right=(2, 3, 4, 5))


def _figures(found: list[Estimate]) -> list[Chart | Bars]:
    """Times as bars with bands and floors, and room against time per token."""
    if not found:
        return []
    generating = all(e.model.generates for e in found)
    times = [_times(found, "ttft"), *([_times(found, "tpot")] if generating else [])]
    return [*times, *([_rates(found)] if generating else [])]


def _times(found: list[Estimate], name: str) -> Bars:
    bars = []
    for e in found:
        value, floor = getattr(e, f"{name}_s"), getattr(e, f"floor_{name}_s")
        bars.append(Bar(title(e, found), [Part("estimate", value, "blue")], show(value, "s"), floor, getattr(e, f"{name}_band_s")))
    return Bars(TERMS[f"{name}_s"].label, Axis(TERMS[f"{name}_s"].label, "s"), bars, f"The dashed line is the floor; {BAND} about the end.")


def _rates(found: list[Estimate]) -> Chart:
    """What one user sees against what all get, as more requests share each deployment."""
    series = []
    for i, e in enumerate(found):
        b = estimates.batch_record(e)
        names = [f"{n:,.0f} requests at once, TPOT {show(t, 's')}" for n, t in zip(b["batch"], b["tpot_s"], strict=True)]
        look = "line" if i < len(COLOURS) else "dashed" if i < 2 * len(COLOURS) else "dotted"
        series.append(Series(title(e, found), 1 / b["tpot_s"], b["output_tokens_per_s"], COLOURS[i % len(COLOURS)], look, names=names))
    axes = Axis("tokens/s of one request", log=True), Axis("output tokens/s of all", log=True)
    peak = max(float(max(s.y)) for s in series)
    return Chart("All requests against one, as more share a deployment", *axes, series, note=f"Up to {significant(peak)} tokens/s.")
