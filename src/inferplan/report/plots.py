"""Pictures of an estimate: roofline, where a pass goes, batch and context sweeps, memory of a device. Knows no equation of its own.

Each function draws on `ax`, or on a figure of its own that no window shows, and returns the axes; `write_picture` makes a file.
Where a picture has two panels, the axes returned are the upper one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from inferplan.deployment import Batches, Estimate, batches, in_flight
from inferplan.engine.op import Op
from inferplan.engine.step import Step, decode
from inferplan.memory.capacity import Capacity, capacity
from inferplan.memory.shards import Holding, shards
from inferplan.report.canvas import (
    BEYOND,
    BLACK,
    BLUE,
    DARK,
    DASHED,
    DOTTED,
    GREEN,
    GREY,
    GROUND,
    LIGHT,
    ORANGE,
    PALE,
    PURPLE,
    SAND,
    SKY,
    SMALL,
    VERMILION,
    YELLOW,
    along,
    canvas,
    label_apart,
    near,
    panels,
    plain,
    powers_of_two,
    settled,
    title,
    unit_axis,
    write_picture,
)  # fmt: skip
from inferplan.report.words import drawn_devices
from inferplan.terms import TERMS
from inferplan.units import show, significant

if TYPE_CHECKING:
    from matplotlib.axes import Axes


__all__ = ["PICTURES", "plot_batch", "plot_breakdown", "plot_context", "plot_memory", "plot_roofline", "write_picture"]

PHASES = (("prefill", "o", BLUE), ("decode", "^", VERMILION))
TYPES = ("bf16", "fp16", "fp8", "mxfp8", "fp6", "fp4", "int8")
WORDS = {
    "scores": "attention", "state": "recurrence", "head": "head", "experts.grouped": "experts", "experts.router": "router",
    "index_scores": "indexer", "dense.gate_up": "MLP gate, up", "dense.up": "MLP up", "dense.down": "MLP down", "attention.qkv": "QKV",
    "attention.o": "output", "mla.o": "output", "mla.down": "MLA down", "mla.q_b": "Q up", "mla.kv_b": "KV up",
    "experts.shared.gate_up": "shared gate, up", "experts.shared.down": "shared down",
}  # fmt: skip
GROUPS = {
    "attention, projections": SKY, "attention, scores": BLUE, "recurrent": PURPLE, "MLP": GREEN, "experts": ORANGE,
    "embedding, head": YELLOW, "vision, audio": BLACK, "norms, other": LIGHT, "communication": VERMILION, "engine overhead": DARK,
}  # fmt: skip
HATCHES = {"attention, scores": "\\\\\\\\", "experts": "....", "recurrent": "||||", "communication": "////"}
"""What tells parts apart where colours do not."""
GROUP_OF = {
    "attention": "attention, projections", "indexer": "attention, projections", "recurrent": "recurrent", "mlp": "MLP", "mlp_aux": "MLP",
    "experts": "experts", "router": "experts", "shared_expert": "experts", "head": "embedding, head", "embedding": "embedding, head",
    "aux_embedding": "embedding, head", "vision": "vision, audio", "conv_frontend": "vision, audio",
}  # fmt: skip
WEIGHTS = {
    "attention, projections": "attention weights", "recurrent": "recurrent weights", "MLP": "MLP weights", "experts": "expert weights",
}  # fmt: skip
LABELLED, LEAST_SHARE = 4, 0.04  # operators of a pass that are named, and the share of it that each must have
UNFIT = "does\u00a0not\u00a0fit"  # a title keeps it on one line
HEAP = 9.0  # typographic points within which operators share a label


def heading(ax: Axes, e: Estimate, *more: str) -> None:
    """Title: which model on what, in which precision, under which load."""
    load = f"{e.load.input_tokens:,} tokens in, {e.load.output_tokens:,} out, batch {e.load.batch:,}{'' if e.fits else f': {UNFIT}'}"
    title(ax, f"{e.model.title} on {drawn_devices(e)}{e.hardware.title}", e.precision.summary, load, *more)


def engine_name(e: Estimate) -> str:
    """The engine's title where it is short, or else its catalog name."""
    return e.engine.title if len(e.engine.title) <= 16 else e.engine.name


@dataclass(frozen=True, slots=True)
class Point:
    """An operator of a pass over all layers that have it: FLOPs, bytes with activations, estimated seconds, share of the pass."""

    name: str
    rate: str
    flops: float
    moved_bytes: float
    time_s: float
    share: float

    @property
    def place(self) -> tuple[float, float]:
        """FLOP per byte, and FLOP/s."""
        return self.flops / self.moved_bytes, self.flops / self.time_s


def operator_points(e: Estimate, step: Step) -> list[Point]:
    """The operators that multiply, equal ones of all layer kinds as one, in order of their time; means over contexts."""
    found: dict[tuple[str, str, str], list[Op]] = {}
    for op in step.ops:
        if float(np.mean(op.flops)) > 0:
            found.setdefault((short_name(e, op), op.kind, op.rate), []).append(op)
    whole = float(np.mean(step.time_s))
    points = []
    for (name, _, rate), ops in found.items():
        moved = sum(float(np.mean(op.weight_bytes + op.kv_bytes + op.act_bytes)) for op in ops)
        flops, time_s = (sum(float(np.mean(x)) for x in xs) for xs in ([op.flops for op in ops], [step.op_s(op) for op in ops]))
        if moved > 0 and time_s > 0:
            points.append(Point(name, rate, flops, moved, time_s, time_s / whole))
    return sorted(points, key=lambda p: -p.time_s)


def short_name(e: Estimate, op: Op) -> str:
    """An operator's name without its layer kind, in words."""
    kind, _, rest = op.name.partition(".")
    name = rest if rest and kind in e.model.blocks else op.name
    return WORDS.get(name, name.replace(".", " ").replace("_", " "))


def roofs(e: Estimate) -> list[tuple[str, float, bool]]:
    """The dense peaks of the part: number types with the same peak as one text, FLOP/s, and whether an operator here runs at it."""
    used = {e.hardware.computed_in(op.rate) for step in (e.prefill, e.decode) for op in step.ops if op.rate != "none"}
    known = {t: q.value for t in TYPES if (q := getattr(e.hardware.peak, t)) is not None}
    known |= {t: e.hardware.peak_flops_per_s(t) for t in sorted(used) if t not in known}
    found: dict[float, list[str]] = {}
    for name, value in known.items():
        near = next((v for v in found if abs(v / value - 1) < 0.02), value)
        found.setdefault(near, []).append(name)
    return [(", ".join(names), value, bool(used & set(names))) for value, names in sorted(found.items())]


def plot_roofline(estimate: Estimate, *, ax: Axes | None = None) -> Axes:
    """Operators of both phases against the roofs of the part: estimated FLOP/s over FLOP per byte of weights, cache and activations.

    The area of a point is its operator's share of the pass. Roofs that no operator uses are thin.
    """
    phases = [(operator_points(estimate, step), *look) for step, look in ((getattr(estimate, p[0]), p) for p in PHASES)]
    with canvas(ax) as ax:
        heading(ax, estimate)
        places = np.array([p.place for points, *_ in phases for p in points])
        tops = roofs(estimate)
        bandwidth = estimate.hardware.bandwidth_bytes_per_s
        x = _span(ax, tops, bandwidth, places[:, 0])
        y = min(places[:, 1].min() / 4, x[0] * bandwidth / 2), tops[-1][1] * 2.5
        ax.set(xscale="log", yscale="log", xlim=x, ylim=y)
        unit_axis(ax.xaxis, TERMS["intensity"].label, "FLOP/B", x)
        unit_axis(ax.yaxis, "estimated rate", "FLOP/s", y)
        _draw_roofs(ax, tops, bandwidth, x)
        for points, name, marker, colour in phases:
            at = np.array([p.place for p in points])
            ax.scatter(
                at[:, 0],
                at[:, 1],
                s=[5 + 90 * p.share for p in points],
                marker=marker,
                c=colour,
                alpha=0.75,
                lw=0.3,
                ec="white",
                label=name,
            )
        _draw_key(ax)
        _label_points(ax, phases, tops, bandwidth, x)
        return ax


def roof_text(name: str, peak: float, bandwidth: float) -> str:
    """A roof in words: number types, peak, ridge point."""
    return f"{name} {show(peak, 'FLOP/s')}, ridge {significant(peak / bandwidth)}"


def _span(ax: Axes, tops: list[tuple[str, float, bool]], bandwidth: float, intensities: np.ndarray) -> tuple[float, float]:
    """Intensities from left to right, so wide that the words of each roof have room on the left of its ridge point."""
    figure: Any = ax.figure
    wide = ax.bbox.width / figure.dpi * 72
    right = np.log10(max(intensities.max(), tops[-1][1] / bandwidth) * 3)
    left = np.log10(intensities.min() / 3)
    for name, peak, _ in tops:
        share = min(2.85 * len(roof_text(name, peak, bandwidth)) / wide + 0.06, 0.8)
        left = min(left, (np.log10(peak / bandwidth) - share * right) / (1 - share))
    return float(10**left), float(10**right)


def _draw_roofs(ax: Axes, tops: list[tuple[str, float, bool]], bandwidth: float, x: tuple[float, float]) -> None:
    ridge = tops[-1][1] / bandwidth
    ax.plot([x[0], ridge], [x[0] * bandwidth, tops[-1][1]], color=BLACK, lw=0.9, zorder=1.5)
    for name, peak, used in tops:
        at = peak / bandwidth
        ax.plot([at, x[1]], [peak, peak], color=BLACK, lw=0.9 if used else 0.35, zorder=1.5, gid=f"roof {name}")
        ax.plot([at], [peak], marker="D", ms=2.2, color=BLACK, zorder=1.6, gid=f"ridge {name}")
        ax.annotate(
            roof_text(name, peak, bandwidth), (at, peak), (-4, 0), textcoords="offset points", ha="right", va="center", fontsize=SMALL,
            color=BLACK if used else DARK,
        )  # fmt: skip


def _draw_key(ax: Axes) -> None:
    key = ax.legend(loc="lower right", title="area: share of the pass", title_fontsize=SMALL, alignment="left")
    for handle in key.legend_handles:
        handle.set_sizes([16])  # type: ignore[union-attr]


def _label_points(ax: Axes, phases: Any, tops: list[tuple[str, float, bool]], bandwidth: float, x: tuple[float, float]) -> None:
    """Names of the operators that take most of a pass, clear of roofs and points; the memory roof says its bandwidth."""
    slope = np.geomspace(x[0], tops[-1][1] / bandwidth, 150)
    lines = [np.column_stack([slope, slope * bandwidth])]
    lines += [np.column_stack([flat := np.geomspace(peak / bandwidth, x[1], 60), np.full_like(flat, peak)]) for _, peak, _ in tops]
    lines += [np.repeat([p.place for p in points], [3 + round(60 * p.share) for p in points], axis=0) for points, *_ in phases]
    middle = tuple(lines[0][60])
    settled(ax)
    ax.annotate(
        show(bandwidth, "B/s"), middle, (-3, 3), textcoords="offset points", ha="center", va="center", fontsize=SMALL,
        rotation=along(ax, tuple(lines[0][0]), middle), rotation_mode="anchor",
    )  # fmt: skip
    for points, _, _, colour in phases:
        chosen = [p for p in points[:LABELLED] if p.share >= LEAST_SHARE]
        heaps = near(ax, [p.place for p in chosen], HEAP)
        texts = ["\n".join(f"{chosen[i].name} {100 * chosen[i].share:.0f} %" for i in heap) for heap in heaps]
        label_apart(ax, [chosen[h[0]].place for h in heaps], texts, np.concatenate(lines), fontsize=SMALL, color=colour)


def group_of(op: Op) -> str:
    """The part of a breakdown that an operator counts to."""
    if op.kind in ("attention_decode", "attention_prefill", "indexer"):
        return "attention, scores"
    return "norms, other" if op.kind == "elementwise" else GROUP_OF.get(op.part, "norms, other")


def time_by_group(step: Step) -> dict[str, float]:
    """Estimated seconds of a pass by part and kind, with communication and overhead; they sum to the pass."""
    found = dict.fromkeys(GROUPS, 0.0)
    for op in step.ops:
        found[group_of(op)] += float(np.mean(step.op_s(op)))
        found["communication"] += float(np.mean(step.wire_s(op)))
    found["engine overhead"] += float(np.mean(step.overhead_s))
    return {name: seconds for name, seconds in found.items() if seconds > 0}


def plot_breakdown(estimate: Estimate, *, ax: Axes | None = None) -> Axes:
    """Where the time of a prefill and of a decode step goes, as shares of the estimate; the floor is a line across each bar."""
    steps = (("prefill", estimate.prefill), ("decode step", estimate.decode))
    with canvas(ax) as ax:
        heading(ax, estimate)
        times = [time_by_group(step) for _, step in steps]
        floors = [100 * float(np.mean(step.floor_s)) / float(np.mean(step.time_s)) for _, step in steps]
        for group, colour in GROUPS.items():
            shares = [100 * t.get(group, 0.0) / sum(t.values()) for t in times]
            if any(shares):
                left = [100 * sum(v for k, v in t.items() if _before(k, group)) / sum(t.values()) for t in times]
                look: Any = {"color": colour, "ec": "white", "lw": 0.4, "hatch": HATCHES.get(group, "")}
                bars = ax.barh([1, 0], shares, 0.5, left=left, label=group, **look)
                _write_shares(ax, bars, floors, colour)
        for y, at, (_, step) in zip((1, 0), floors, steps, strict=True):
            _draw_floor(ax, y, at, f"{TERMS['floor_s'].label} {show(float(np.mean(step.floor_s)), 's')}")
        ax.set(xlim=(0, 100), ylim=(-0.55, 1.6))
        ax.set_yticks([1, 0], [f"{name}\n{show(float(np.mean(step.time_s)), 's')}" for name, step in steps])
        ax.tick_params(axis="y", length=0)
        ax.grid(visible=False, axis="y")
        unit_axis(ax.xaxis, "share of the estimated time", "%", (0, 100))
        ax.legend(loc="upper center", bbox_to_anchor=(0.42, -0.2), ncol=2)
        return ax


def _before(one: str, other: str) -> bool:
    order = list(GROUPS)
    return order.index(one) < order.index(other)


def _write_shares(ax: Axes, bars: Any, floors: Iterable[float], colour: str) -> None:
    """The share within each piece that is wide enough, beside the line of the floor where that crosses the piece."""
    ink = "white" if colour in (BLUE, GREEN, VERMILION, BLACK, DARK) else BLACK
    for bar, floor in zip(bars, floors, strict=True):
        left, right = bar.get_x(), bar.get_x() + bar.get_width()
        if right - left >= 5:
            pieces = [(left, min(floor, right)), (max(floor, left), right)] if abs(floor - (left + right) / 2) < 4 else [(left, right)]
            x = max(pieces, key=lambda piece: piece[1] - piece[0])
            text, ground = f"{right - left:.0f}", {"fc": colour, "ec": "none", "pad": 0.8}
            ax.text(sum(x) / 2, bar.get_y() + bar.get_height() / 2, text, ha="center", va="center", fontsize=SMALL, color=ink, bbox=ground)


def _draw_floor(ax: Axes, y: float, at: float, text: str) -> None:
    ax.plot([at, at], [y - 0.33, y + 0.33], color=BLACK, lw=1.2, ls=(0, (2, 1)), gid="floor")
    ax.text(at, y + 0.36, text, ha="right" if at > 60 else "left", va="bottom", fontsize=SMALL)


def plot_batch(estimate: Estimate, *, ax: Axes | None = None) -> Axes:
    """Output rate and time per output token against the batch: estimate, floor, what the engine has room for, where compute binds."""
    room = estimate.max_sequences
    most = 2.0 ** np.ceil(np.log2(max(2 * min(room, 2048.0), 4 * estimate.load.batch, 32)))
    found = batches(estimate, np.unique(np.append(2.0 ** np.arange(0, np.log2(most) + 0.1, 0.25), float(estimate.load.batch)).round()))
    with canvas(ax) as ax:
        heading(ax, estimate)
        upper, lower = panels(ax)
        rates = found.output_tokens_per_s, found.batch / found.floor_tpot_s
        _draw_pair(upper, found.batch, *rates, label=TERMS["floor_s"].label)
        _draw_pair(lower, found.batch, found.tpot_s, found.floor_tpot_s, label=TERMS["floor_s"].label)
        if (likely := estimate.band("tpot")) is not None:
            _draw_band(lower, found.batch, *likely.of(found.tpot_s, found.floor_tpot_s))
            _draw_band(upper, found.batch, *(found.batch / end for end in likely.of(found.tpot_s, found.floor_tpot_s)))
        upper.set(xscale="log", yscale="log", xlim=(1, most))
        unit_axis(upper.yaxis, TERMS["output_tokens_per_s"].label, "", (float(rates[0].min()), float(rates[1].max())))
        _from_zero(lower, found.tpot_s * (likely.high if likely else 1.0), 1.08)
        powers_of_two(lower.xaxis, 1, most)
        lower.set_xlabel("batch, sequences")
        at = found.batch == estimate.load.batch
        upper.plot(found.batch[at], rates[0][at], "o", color=BLUE, gid="load", clip_on=False)
        lower.plot(found.batch[at], found.tpot_s[at], "o", color=BLUE, gid="load", clip_on=False)
        _mark_limit(upper, lower, room, _room(estimate), 0.04)
        _mark_ridge(upper, lower, compute_bound_from(found))
        lower.legend(loc="upper left")
        return upper


def _draw_band(ax: Axes, x: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """Where four of five measurements lie."""
    ax.fill_between(x, low, high, color=BLUE, alpha=0.15, lw=0, gid="band", label="80 % band")


def _room(e: Estimate) -> str:
    """What limits the batch, with a place for the number."""
    c = e.capacity
    cached = float(np.asarray(np.floor(c.max_concurrency) * c.groups))
    return "room for {} (cache)" if cached <= e.max_sequences else f"at most {{}} ({engine_name(e)} limit)"


def compute_bound_from(found: Batches) -> float:
    """The smallest batch from which the floor of a decode step is its compute, between those of a sweep; infinite where there is none."""
    excess = np.log(found.mfu / found.mbu)
    bound = np.flatnonzero(excess >= 0)
    if not len(bound):
        return np.inf
    pair = slice(max(bound[0] - 1, 0), bound[0] + 1)
    return float(np.ceil(np.exp(np.interp(0.0, excess[pair], np.log(found.batch[pair])))))


def _draw_pair(ax: Axes, x: np.ndarray, estimate: np.ndarray, floor: np.ndarray, *, label: str) -> None:
    ax.plot(x, estimate, color=BLUE, label="estimate", gid="estimate")
    ax.plot(x, floor, color=BLACK, lw=0.9, ls=DASHED, label=label, gid="floor")


def _from_zero(ax: Axes, seconds: np.ndarray, room: float) -> None:
    """A linear axis of TPOT that begins at zero and ends at `room` times the largest value."""
    top = room * float(np.max(seconds))
    ax.set_ylim(0, top)
    unit_axis(ax.yaxis, TERMS["tpot_s"].label, "s", (0.0, top))


def _mark_limit(upper: Axes, lower: Axes, value: float, text: str, height: float) -> None:
    """A vertical line where the engine's memory ends, in both panels; the ground beyond is grey."""
    low, high = upper.get_xlim()
    if value >= high:
        return
    for ax in (upper, lower):
        ax.axvspan(max(value, low), high, color=BEYOND, lw=0, zorder=0, gid="beyond")
        if value > low:
            ax.axvline(value, color=VERMILION, lw=0.8, gid="limit")
    shown = text.format(plain(round(value))) if value >= low else "nothing fits"
    _beside(upper, value if value >= low else high, shown, height, VERMILION)


def _mark_ridge(upper: Axes, lower: Axes, value: float) -> None:
    """A vertical line where compute begins to bind."""
    if not np.isfinite(value):
        return
    for ax in (upper, lower):
        ax.axvline(value, color=GREEN, lw=0.8, ls=DOTTED, gid="ridge")
    _beside(upper, value, f"compute-bound from {plain(round(value))}", 0.17, GREEN)


def _beside(ax: Axes, value: float, text: str, height: float, colour: str) -> None:
    """A text on that side of a vertical line where there is room."""
    low, high = np.log(ax.get_xlim())
    side, shift = ("right", -2) if np.log(value) - low > 0.45 * (high - low) else ("left", 2)
    ax.annotate(
        text, (value, height), (shift, 0), xycoords=("data", "axes fraction"), textcoords="offset points", ha=side, va="bottom",
        fontsize=SMALL, color=colour, bbox=GROUND,
    )  # fmt: skip


def plot_context(estimate: Estimate, *, ax: Axes | None = None) -> Axes:
    """Time per output token, and the cache of the batch on one device, against the context: estimate, floor and what the engine has."""
    e = estimate
    longest = longest_context(e)
    most = float(e.model.context or max(16 * e.load.tokens, 8192))
    contexts = np.unique(np.geomspace(min(128.0, most / 8), most, 97).round())
    run = decode(e.model, e.hardware, e.precision, context=contexts, batch=in_flight(e.load.batch, e.setting.parallel), setting=e.setting)
    with canvas(ax) as ax:
        heading(ax, e)
        upper, lower = panels(ax)
        _draw_pair(upper, contexts, _wide(run.time_s, contexts), _wide(run.floor_s, contexts), label=TERMS["floor_s"].label)
        upper.set(xscale="log", xlim=(contexts[0], most))
        likely = e.band("tpot")
        if likely is not None:
            _draw_band(upper, contexts, *likely.of(_wide(run.time_s, contexts), _wide(run.floor_s, contexts)))
        _from_zero(upper, _wide(run.time_s, contexts) * (likely.high if likely else 1.0), 1.45)
        _draw_cache(lower, e, contexts)
        powers_of_two(lower.xaxis, contexts[0], most)
        lower.set_xlabel("context, tokens")
        _mark_limit(upper, lower, longest, "room up to {} tokens", 0.68)
        upper.legend(loc="upper left", ncol=3)
        return upper


def _wide(values: Any, like: np.ndarray) -> np.ndarray:
    return np.broadcast_to(np.asarray(values, dtype=float), like.shape)


def per_group(e: Estimate) -> float:
    """Sequences of the busiest attention group."""
    return float(np.ceil(e.load.batch / np.asarray(e.setting.parallel.dp)))


def longest_context(e: Estimate) -> float:
    """The context up to which the engine holds the batch."""
    c = e.capacity
    chunk = c.launch.max_num_batched_tokens
    blocks = np.floor(np.asarray(c.blocks) / per_group(e))
    return min(float(np.asarray(s.paging.longest(blocks, chunk))) for s in c.stages)


def request_bytes(held: Capacity, tokens: Any) -> np.ndarray:
    """Bytes of one device that an engine reserves for a request of so many tokens."""
    return np.asarray(replace(held, launch=replace(held.launch, max_model_len=tokens)).request_bytes, dtype=float)


def ideal(e: Estimate) -> Capacity:
    """The same deployment without an engine: the least that must lie in memory."""
    return capacity(e.model, e.hardware, e.precision, e.setting.parallel, "ideal", max_model_len=e.load.tokens)


def _draw_cache(ax: Axes, e: Estimate, contexts: np.ndarray) -> None:
    kept, least = (per_group(e) * request_bytes(c, contexts) for c in (e.capacity, ideal(e)))
    ax.plot(contexts, kept, color=BLUE, label=f"as {engine_name(e)} reserves", gid="estimate")
    ax.plot(contexts, least, color=BLACK, lw=0.9, ls=DASHED, label="the least", gid="floor")
    have = float(np.asarray(e.capacity.kv_cache_bytes_per_gpu))
    high = 4 * float(max(kept.max(), have))
    low = min(float(least[-40]) ** 1.5 / high**0.5, float(np.min(least)) / 1.5, *([have / 4] if have > 0 else []))
    if have > 0:
        ax.axhline(have, color=VERMILION, lw=0.8, gid="limit")
        shift, side = ((3, 2), "bottom") if have > kept[0] else ((3, -2), "top")
        text = f"{_gib(have)} for cache"
        ax.annotate(text, (contexts[0], have), shift, textcoords="offset points", va=side, fontsize=SMALL, color=VERMILION)
    else:
        ax.annotate("no memory left for cache", (0.03, 0.9), xycoords="axes fraction", va="top", fontsize=SMALL, color=VERMILION)
    ax.set(yscale="log", ylim=(low, high))
    unit_axis(ax.yaxis, "cache per device", "B", (low, high), shown="GiB")
    ax.legend(loc="lower right")


def rank_weights(c: Capacity, stage: int) -> dict[str, float]:
    """Bytes of weights on one device of a pipeline stage by group; what the engine adds to them (padding, tables) apart."""
    found = dict.fromkeys(GROUPS, 0.0)
    for shard in shards(c.model, c.precision, c.parallel, Holding.of(c.engine, c.hardware), c.offload):
        found[GROUP_OF.get(shard.weight.part, "norms, other")] += shard.inside[stage] * shard.whole / float(np.asarray(shard.dealt))
    found["padding, tables"] = float(np.asarray(c.stages[stage].weight_bytes)) - sum(found.values())
    return {name: size for name, size in found.items() if size > 1}


@dataclass(frozen=True, slots=True)
class Slice:
    """A piece of a device's memory."""

    label: str
    bytes: float
    colour: str
    hatch: str = ""


def weight_slices(c: Capacity, stage: int) -> list[Slice]:
    """Weights of one device, group by group."""
    return [Slice(WEIGHTS.get(name, name), size, GROUPS.get(name, SAND)) for name, size in rank_weights(c, stage).items()]


def fullest(c: Capacity) -> int:
    """The pipeline stage that has least memory left for cache."""
    return int(np.argmin([float(np.asarray(s.available_bytes)) for s in c.stages]))


def memory_slices(e: Estimate) -> tuple[list[Slice], float]:
    """Memory of the device that has least cache, piece by piece from the weights up, and the bytes the engine lets itself use."""
    c = e.capacity
    stage = fullest(c)
    held = c.stages[stage]
    graphs, cache = float(np.asarray(c.graph_bytes)), float(np.asarray(held.available_bytes))
    load = per_group(e) * float(request_bytes(c, e.load.tokens))
    fixed = weight_slices(c, stage)
    fixed += [Slice("activations", float(np.asarray(held.activation_bytes)), VERMILION)]
    fixed += [Slice("outside the allocator", float(np.asarray(c.non_torch_bytes)), DARK)]
    fixed += [Slice("captured graphs", graphs, GREY)] if c.graphs_inside else []
    budget = sum(s.bytes for s in fixed) + cache
    fixed += [Slice("cache of the load", load, BLUE), Slice("cache, spare", cache - load, PALE)]
    fixed += [] if c.graphs_inside else [Slice("captured graphs", graphs, GREY)]
    left = float(np.asarray(c.total_bytes)) - sum(max(s.bytes, 0.0) for s in fixed)
    return [s for s in (*fixed, Slice("left free", left, "white", "////")) if s.bytes > 0], budget


def plot_memory(estimate: Estimate, *, ax: Axes | None = None) -> Axes:
    """Memory of one device, stacked: what the engine reserves, and beside it the least that weights and the load's cache take."""
    e = estimate
    slices, budget = memory_slices(e)
    total, stacked = float(np.asarray(e.capacity.total_bytes)), sum(s.bytes for s in slices)
    with canvas(ax) as ax:
        heading(ax, e, *([] if e.fits else [e.capacity.reason() or f"room for only {e.max_sequences:,.0f} of {e.load.batch:,} requests"]))
        _stack(ax, 0, slices)
        _stack(ax, 1, least_slices(e))
        for size, look, text in ((total, "-", "memory"), (budget, DASHED, "engine's budget")):
            ax.plot([-0.42, 1.42], [size, size], color=BLACK, lw=0.9, ls=look, gid="limit", label=f"{text} {_gib(size)}")
        top = 1.05 * max(total, stacked)
        ax.set(xlim=(-0.5, 1.5), ylim=(0, top))
        ax.set_xticks([0, 1], [f"{engine_name(e)}\n{e.engine.version}", "the least\nfor the load"])
        ax.tick_params(axis="x", length=0)
        ax.grid(visible=False, axis="x")
        unit_axis(ax.yaxis, "memory per device", "B", (0, top), shown="GiB")
        handles, labels = ax.get_legend_handles_labels()
        ax.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.03, 0.5))
        return ax


def _gib(size: float) -> str:
    return show(size, "B", binary=True)


def _stack(ax: Axes, x: int, slices: Iterable[Slice]) -> None:
    bottom = 0.0
    for s in slices:
        label = f"{s.label} {_gib(s.bytes)}" if x == 0 else None
        ax.bar(x, s.bytes, 0.7, bottom=bottom, color=s.colour, hatch=s.hatch, ec=LIGHT if s.hatch else "white", lw=0.3, label=label)
        bottom += s.bytes


def least_slices(e: Estimate) -> list[Slice]:
    """The least that weights and the caches of the batch take on one device."""
    c = ideal(e)
    return [*weight_slices(c, fullest(c)), Slice("cache of the load", per_group(e) * float(np.asarray(c.request_bytes)), BLUE)]


PICTURES: dict[str, Callable[..., Axes]] = {
    "roofline": plot_roofline,
    "breakdown": plot_breakdown,
    "batch": plot_batch,
    "context": plot_context,
    "memory": plot_memory,
}
