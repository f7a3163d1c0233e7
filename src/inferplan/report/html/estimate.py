"""The page of one estimate: what its screen says, with pictures that answer and every headline number opened. Computes no figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from inferplan.deployment import Batches, Estimate, batches
from inferplan.errors import Unsupported
from inferplan.explain import Node, explain
from inferplan.report import canvas, estimates, plots
from inferplan.report.html.page import Axis, Bar, Bars, Chart, Fact, Mark, Page, Part, Series
from inferplan.report.html.recorded import told
from inferplan.report.words import engine
from inferplan.terms import TERMS
from inferplan.units import show, significant

if TYPE_CHECKING:
    from inferplan.engine.step import Step

NAMES = {
    canvas.BLUE: "blue", canvas.VERMILION: "vermilion", canvas.GREEN: "green", canvas.ORANGE: "orange", canvas.SKY: "sky",
    canvas.PURPLE: "purple", canvas.YELLOW: "yellow", canvas.BLACK: "black", canvas.DARK: "dark", canvas.GREY: "grey",
    canvas.LIGHT: "light", canvas.PALE: "pale", canvas.SAND: "sand", "white": "free",
}  # fmt: skip
BAND = "80 % of measurements lie in the band"
ROOF_POINTS = 41  # of a roof, so that it can be pointed at anywhere
BATCHES = 4  # sizes from one power of two to the next


def page(e: Estimate, *, asked_model: str, asked_gpu: str, verbose: bool = False) -> Page:
    """The whole page."""
    screen = told(estimates.screen(e, asked_model=asked_model, asked_gpu=asked_gpu, verbose=verbose), estimates.sentence(e))
    return Page("estimate", screen.headline, estimates.sentence(e), screen.why, [("", facts(e))], screen.asked, figures(e), screen.rest)


def facts(e: Estimate) -> list[Fact]:
    """The numbers that a choice hangs on, each with its band or floor and its tree."""
    first = [_timed(e, "ttft", "TTFT" if e.model.generates else "the pass", e.floor_ttft_s)]
    first += [_timed(e, "tpot", "TPOT", e.floor_tpot_s), _timed(e, "e2e", "whole request", None)] if e.model.generates else []
    rates = [Fact("output tokens/s", significant(e.output_tokens_per_s), f"batch {e.load.batch:,}", tree(e, "output_tokens_per_s"))]
    room = f"{e.max_sequences:,.0f}" if np.isfinite(e.max_sequences) else "any number"
    per_token = [Fact("KV cache per token", show(e.kv_bytes_per_token, "B"), "", tree(e, "kv_bytes"))] if e.model.generates else []
    held = [
        Fact("weights", show(e.weight_bytes, "B", binary=True), f"{e.counts.total:,} parameters", tree(e, "weights")),
        *per_token,
        Fact("room for requests", room, e.capacity.reason() or f"under {engine(e)}", tree(e, "max_batch")),
    ]
    return [*first, *(rates if e.model.generates else []), *held, *(_used(e) if e.model.generates else [])]


def _used(e: Estimate) -> list[Fact]:
    """Shares of the roofs, and money where a price is known."""
    of = "of a decode step"
    found = [Fact(name.upper(), estimates.percent(estimates.value(getattr(e.decode, name))), of, tree(e, name)) for name in ("mfu", "mbu")]
    cost = tree(e, "usd_per_million_tokens")
    return found + ([Fact("a million output tokens", f"{cost.mean:,.2f} USD", "while decoding", cost)] if cost is not None else [])


def _timed(e: Estimate, name: str, label: str, floor_s: float | None) -> Fact:
    ends = getattr(e, f"{name}_band_s")
    band = [f"80 % from {show(ends[0], 's')} to {show(ends[1], 's')}"] if ends else []
    floor = [f"floor {show(floor_s, 's')}"] if floor_s is not None else []
    return Fact(label, show(getattr(e, f"{name}_s"), "s"), "; ".join([*band, *floor]), tree(e, name))


def tree(e: Estimate, quantity: str) -> Node | None:
    """The tree of a number, or None where the part's file lacks what it takes."""
    try:
        return explain(quantity, e)
    except Unsupported:
        return None


def figures(e: Estimate) -> list[Chart | Bars]:
    """All pictures of an estimate."""
    found: list[Chart | Bars] = [roofline(e)]
    if e.fits and e.model.generates:
        found += batch_charts(e)
    return [*found, breakdown(e), memory(e)]


def roofline(e: Estimate) -> Chart:
    """Roofs as lines, operators of the passes as points."""
    points = [(name, plots.operator_points(e, step), look) for name, step, look in _phases(e)]
    x = np.array([p.place[0] for _, found, _ in points for p in found])
    tops, bandwidth = plots.roofs(e), e.hardware.bandwidth_bytes_per_s
    right = max(float(x.max()), tops[-1][1] / bandwidth) * 3
    lines = []
    for name, peak, used in tops:
        at = np.geomspace(min(float(x.min()), peak / bandwidth) / 3, right, ROOF_POINTS)
        at = np.unique(np.append(at, peak / bandwidth))
        label = f"roof {plots.roof_text(name, peak, bandwidth)}"
        lines.append(Series(label, at, np.minimum(at * bandwidth, peak), "black" if used else "grey", "line" if used else "dotted"))
    operators = [
        Series(name, [p.place[0] for p in found], [p.place[1] for p in found], colour, look,
               names=[f"{p.name}, {100 * p.share:.1f} % of the pass" for p in found])
        for name, found, (look, colour) in points
    ]  # fmt: skip
    return Chart("Roofline: operators under the roofs of the part", Axis(TERMS["intensity"].label, "FLOP/B", log=True),
                 Axis("estimated rate", "FLOP/s", log=True), [*operators, *lines],
                 note=f"Memory moves {show(bandwidth, 'B/s')} at most: the slope. Means over the contexts of the output.")  # fmt: skip


def _phases(e: Estimate) -> list[tuple[str, Step, tuple[str, str]]]:
    looks = (("circle", "blue"), ("triangle", "vermilion"))
    return [(name.lower(), step, look) for (name, step), look in zip(estimates.passes(e), looks, strict=False)]


def _swept(e: Estimate) -> Batches:
    """Batches up to what there is room for, closer than on the screen, and the one that was asked for."""
    most = max(1.0, min(e.max_sequences, 2048.0))
    sizes = np.append(2.0 ** np.arange(0, np.log2(most) + 1e-9, 1 / BATCHES), [most, float(e.load.batch)])
    return batches(e, np.unique(sizes.round()))


def batch_charts(e: Estimate) -> list[Chart]:
    """Rate and time per token against requests at once, with band and floor."""
    b, likely = _swept(e), e.band("tpot")
    low, high = likely.of(b.tpot_s, b.floor_tpot_s) if likely else (None, None)
    rates = (b.batch / high, b.batch / low) if low is not None and high is not None else (None, None)
    floor, at = TERMS["floor_s"].label, [Mark("x", float(e.load.batch), f"asked: {e.load.batch:,}")]
    room = [Mark("x", float(e.max_sequences), f"room for {e.max_sequences:,.0f}", "vermilion")] if np.isfinite(e.max_sequences) else []
    x, note = Axis("requests at once", log=True), BAND + "." if likely else ""

    def pair(estimated: Any, least: Any, ends: tuple[Any, Any], label: str) -> list[Series]:
        return [Series("estimate", b.batch, estimated, "blue", low=ends[0], high=ends[1]), Series(label, b.batch, least, "black", "dashed")]

    return [
        Chart("Output rate against requests at once", x, Axis("output tokens/s", log=True),
              pair(b.output_tokens_per_s, b.batch / b.floor_tpot_s, rates, f"{floor}: no faster"), [*at, *room], note),
        Chart("TPOT against requests at once", x, Axis(TERMS["tpot_s"].label, "s"), pair(b.tpot_s, b.floor_tpot_s, (low, high), floor),
              [*at, *room], note),
    ]  # fmt: skip


def breakdown(e: Estimate) -> Bars:
    """Where each pass goes."""
    bars = []
    for name, step in estimates.passes(e):
        whole_s = float(np.mean(step.time_s))
        shares = {group: 100 * seconds / whole_s for group, seconds in plots.time_by_group(step).items()}
        parts = [Part(group, share, NAMES[plots.GROUPS[group]]) for group, share in shares.items()]
        floor = float(np.mean(step.floor_s))
        bars.append(Bar("decode step" if name == "Decode" else name.lower(), parts, f"{show(whole_s, 's')}, floor {show(floor, 's')}",
                        floor=100 * floor / whole_s))  # fmt: skip
    return Bars("Where the time goes", Axis("share of the estimated time", "%"), bars, "The dashed line is the floor.")


def memory(e: Estimate) -> Bars:
    """Memory of one device: as the engine takes it, and the least."""
    slices, _ = plots.memory_slices(e)
    total = float(np.asarray(e.capacity.total_bytes))

    def bar(label: str, found: list[plots.Slice], text: str) -> Bar:
        return Bar(label, [Part(s.label, s.bytes, NAMES[s.colour]) for s in found], text)

    least = plots.least_slices(e)
    bars = [bar(engine(e) if e.engine.name != "ideal" else "without an engine", slices, f"of {show(total, 'B', binary=True)}"),
            bar("the least for this load", least, show(sum(s.bytes for s in least), "B", binary=True))]  # fmt: skip
    why = "" if e.fits else e.capacity.reason() or f"Room for only {e.max_sequences:,.0f} of {e.load.batch:,} requests."
    limits = [Mark("x", total, f"memory of the device {show(total, 'B', binary=True)}")]
    return Bars("Memory of one device", Axis("memory", "B", shown="GiB"), bars, why, limits)
