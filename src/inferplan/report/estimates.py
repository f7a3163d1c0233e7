"""An estimate as a record for files and as a screen for people. Knows no equation beyond sums of what it is given."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from inferplan.deployment import (
    Batches,
    Estimate,
    batches,
    joules_per_million_tokens,
    price,
    remedies,
    usd_per_million_tokens,
)
from inferplan.engine.step import Step
from inferplan.report.screen import Bold, put, table
from inferplan.report.words import devices, engine, requests, resolved, shortage, split, under, ways
from inferplan.units import parse, show, significant

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = "inferplan/estimate/5"
KWH = parse("1 kWh", "J")
PASS = (
    "flops", "weight_bytes", "kv_bytes", "bytes", "wire_bytes", "intensity", "memory_s", "compute_s", "link_s", "host_s", "floor_s",
    "time_s", "overhead_s",
)  # fmt: skip


def value(x: Any) -> float:
    """A result as one number: the mean over the points it was evaluated at."""
    return float(np.mean(x))


def percent(share: float) -> str:
    """A share of a roof, with a decimal where it is below ten per cent."""
    return f"{100 * share:.{1 if share < 0.0995 else 0}f} %"


def record(e: Estimate) -> dict[str, Any]:
    """The estimate under the glossary's keys, in base units."""
    return {"schema": SCHEMA, **_asked(e), **_counted(e), **_memory(e), **_times(e), **_costs(e)}


def flat(record: dict[str, Any]) -> dict[str, Any]:
    """A record's plain values, and those of its passes under dotted names."""
    found = {k: v for k, v in record.items() if not isinstance(v, dict)}
    for name in ("prefill", "decode"):
        found |= {f"{name}.{k}": v for k, v in record[name].items()}
    return found


def batch_record(e: Estimate) -> dict[str, np.ndarray]:
    """What more requests at once give, a column per quantity in base units."""
    b = batches(e)
    names = ("batch", "output_tokens_per_s", "ttft_s", "tpot_s", "floor_tpot_s", "mfu", "mbu")
    found = {name: getattr(b, name) for name in names}
    costs = {"usd_per_million_tokens": usd_per_million_tokens, "joules_per_million_tokens": joules_per_million_tokens}
    return found | {name: x for name, of in costs.items() if (x := of(e, b.output_tokens_per_s)) is not None}


def operator_record(step: Step, name: str) -> list[dict[str, Any]]:
    """The operators of a pass, a row each in base units; means over the contexts it was evaluated at."""
    return [
        {
            "pass": name, "operator": op.name, "kernel": op.kind, "type": op.rate, "count": op.count, "flops": value(op.flops),
            "weight_bytes": value(op.weight_bytes), "kv_bytes": value(op.kv_bytes), "time_s": value(step.op_s(op)) + value(step.wire_s(op)),
        }
        for op in step.ops
    ]  # fmt: skip


def deployed(e: Estimate, *names: str) -> dict[str, Any]:
    """What was deployed under the glossary's keys, as every record begins: all of it, or those of `names`, in one order."""
    found = {
        "model": e.model.name,
        "hardware": e.hardware.name,
        "gpus": e.gpus,
        "precision": e.precision.name,
        "kv_format": e.precision.kv.name,
        "engine": e.engine.name,
        "engine_version": e.engine.version,
        "efficiency": e.setting.efficiency.name,
        **ways(e),
    }
    return {name: x for name, x in found.items() if not names or name in names}


def _asked(e: Estimate) -> dict[str, Any]:
    return {
        **deployed(e),
        "batch": e.load.batch,
        "input_tokens": e.load.input_tokens,
        "output_tokens": e.load.output_tokens,
        "cached_tokens": e.load.cached,
        "context": e.load.context,
        "images": e.load.images,
        "image_patches": e.load.patches,
        "host": e.setting.host.name if e.setting.host else None,
        "host_layers": e.setting.offload.layers,
        "host_experts": e.setting.offload.experts,
        "host_head": e.setting.offload.head,
        "overlap": e.setting.overlap,
        "expert_skew": e.setting.skew,
        "expert_imbalance": e.setting.imbalance,
        "computed_in": e.computed_in,
        "doubts": {name: str(q) for name, q in e.hardware.doubts().items()},
    }


def _counted(e: Estimate) -> dict[str, Any]:
    return {
        "params": e.counts.total,
        "active_params": e.counts.active,
        "active_read_params": e.counts.active_read,
        "weight_bytes": e.weight_bytes,
        "weight_bytes_by_part": e.weight_parts,
        "kv_bytes_per_token": e.kv_bytes_per_token,
        "kv_bytes_per_token_unbounded": e.kv_bytes_per_token_unbounded,
        "state_bytes_per_sequence": e.state_bytes_per_sequence,
        "sequence_bytes": e.sequence_bytes,
        "bytes_per_token": e.bytes_per_token,
    }


def _memory(e: Estimate) -> dict[str, Any]:
    c = e.capacity
    names = ["weight_bytes_per_gpu", "activation_bytes", "non_torch_bytes", "graph_bytes", "kv_cache_bytes_per_gpu", "request_bytes"]
    names += ["kv_cache_tokens", "max_concurrency", "max_context", "total_bytes"]
    return {
        **{name: value(getattr(c, name)) for name in names},
        "utilization": value(c.launch.utilization),
        "max_model_len": value(c.launch.max_model_len),
        "max_num_seqs": value(c.launch.max_num_seqs),
        "max_num_batched_tokens": value(c.launch.max_num_batched_tokens),
        "usable_bytes": e.hardware.usable_bytes,
        "host_bytes": value(c.host_bytes),
        "max_sequences": e.max_sequences,
        "fits": e.fits,
        "reason": c.reason(),
    }


def _times(e: Estimate) -> dict[str, Any]:
    names = ("ttft_s", "tpot_s", "e2e_s", "floor_ttft_s", "floor_tpot_s", "decode_tokens_per_s", "output_tokens_per_s")
    found: dict[str, Any] = {name: getattr(e, name) for name in names} | {"prefill_s": e.prefill_s, "front_end_s": e.prompt_front_end_s}
    for name in ("ttft", "tpot", "e2e"):
        found[f"{name}_low_s"], found[f"{name}_high_s"] = getattr(e, f"{name}_band_s") or (None, None)
    found["basis"] = e.basis
    return {**found, "mfu": value(e.prefill.mfu), "mbu": value(e.decode.mbu), "prefill": _pass(e.prefill), "decode": _pass(e.decode)}


def _pass(step: Step) -> dict[str, Any]:
    """One pass; where it was evaluated over several contexts, the mean over them."""
    return {**{name: value(getattr(step, name)) for name in PASS}, "mfu": value(step.mfu), "mbu": value(step.mbu), "bound": bound(step)}


def _costs(e: Estimate) -> dict[str, Any]:
    listed = price(e.hardware)
    return {
        "usd_per_gpu_h": listed.usd_per_h if listed else None,
        "usd_per_million_tokens": usd_per_million_tokens(e, e.output_tokens_per_s),
        "joules_per_million_tokens": joules_per_million_tokens(e, e.output_tokens_per_s),
    }


def bound(step: Step) -> str:
    """The roof that binds most of the pass."""
    roofs = {name: value(seconds) for name, seconds in step.roofs.items()}
    return max(roofs, key=lambda name: roofs[name])


def sentence(e: Estimate) -> str:
    """The answer first."""
    if not e.fits:
        return f"Does not fit {under(e)}: {shortage(e)}."
    sure = "" if e.setting.ideal else "about "
    if not e.model.generates:
        what = f"{e.load.batch:,} inputs" if e.load.batch > 1 else "One input"
        takes = "take" if e.load.batch > 1 else "takes"
        first = f"Fits {under(e)}; an encoder, which writes no tokens."
        return f"{first}\n{what} of {e.load.input_tokens:,} tokens {takes} {sure}{show(e.ttft_s, 's')}."
    return (
        f"Fits, with room for {requests(e.max_sequences)} at once {under(e)}.\n"
        f"One request takes {sure}{show(e.e2e_s, 's')}: {show(e.ttft_s, 's')} to the first token, then"
        f" {significant(e.decode_tokens_per_s)} tokens/s."
    )


def why(e: Estimate) -> str:
    """What binds, against which ceiling."""
    lines = []
    for name, step in passes(e):
        ridges = ", ".join(f"{significant(ridge)} ({rate})" for rate, ridge in ridges_of(step).items())
        lines.append(f"{name} is {bound(step)}-bound: {significant(value(step.intensity))} FLOP/B, where the ridge is at {ridges}.")
    if e.setting.offload.any:
        lines.append(_hosted(e))
    fallbacks = [f"{asked} is stored, {got} is computed" for asked, got in e.computed_in.items() if asked != got]
    return "\n".join([*lines, *(f"On this part {f}." for f in fallbacks)])


def _hosted(e: Estimate) -> str:
    """What lies in host memory, and what becomes of it in a decode step."""
    offload, step = e.setting.offload, e.decode
    layers = [f"{offload.layers:.3g} of {len(e.model.order)} layers"] if offload.layers else []
    more = f"{offload.experts - int(offload.layers)} {'further ' if layers else ''}layers"
    layers += [f"the experts of {more}"] if offload.experts > offload.layers else []
    them = "it" if layers == [] else "them"
    layers += ["the output projection"] if offload.head else []
    took = f"its memory gives {them} up in {show(value(step.host_s), 's')}" if offload.computed else ""
    crossed = f"they cross the link in {show(value(step.link_s), 's')}"
    return f"Host memory holds {' and '.join(layers)}; in a decode step {took or crossed} at the least."


def passes(e: Estimate) -> list[tuple[str, Step]]:
    """The passes that the model makes, by name."""
    return [("Prefill", e.prefill), ("Decode", e.decode)] if e.model.generates else [("The pass", e.prefill)]


def ridges_of(step: Step) -> dict[str, float]:
    """The ridge of each number type that a tenth of the matrix work or more runs in, lowest first."""
    work: dict[str, float] = {}
    for op in step.ops:
        if op.kind in ("matmul", "experts") and op.rate != "none":
            rate = step.hardware.computed_in(op.rate)
            work[rate] = work.get(rate, 0.0) + value(op.flops)
    main = [rate for rate, flops in work.items() if flops >= sum(work.values()) / 10]
    return {rate: step.hardware.ridge(rate) for rate in sorted(main, key=step.hardware.ridge)}


def show_estimate(e: Estimate, out: Console, *, asked_model: str, asked_gpu: str, verbose: bool = False) -> None:
    """The whole screen."""
    put(screen(e, asked_model=asked_model, asked_gpu=asked_gpu, verbose=verbose), out)


def screen(e: Estimate, *, asked_model: str, asked_gpu: str, verbose: bool = False) -> Iterator[Any]:
    """The pieces of the screen, from top to bottom."""
    yield Bold(f"{e.model.title} on {devices(e)} {e.hardware.title}")
    yield table(("", ""), _echo(e, asked_model, asked_gpu))
    yield "\n" + sentence(e)
    yield why(e)
    tables = [memory_table(e), request_table(e), time_table(e), parts_table(e)]
    if e.fits and e.model.generates:
        tables.append(batch_table(e, batches(e)))
    if verbose:
        tables.append(operator_table(e))
    for found in tables:
        yield ""
        yield found
    yield "\n" + "\n".join([*help_lines(e), *remarks(e), see_also(e, asked_model, asked_gpu)])


def _echo(e: Estimate, asked_model: str, asked_gpu: str) -> list[tuple[str, str]]:
    load, ranks = e.load, split(e)
    cached = f", {load.cached:,} of them cached" if load.cached else ""
    seen = f", {load.images:,} image{'s' if load.images > 1 else ''} of {load.patches:,} patches" if load.images else ""
    at = f", decode at {load.context:,} tokens" if load.context else ""
    more = [f"{name} {x:g}" for name, x, plain in _stated(e) if x != plain]
    rows = [
        ("model", resolved(asked_model, e.model.name)),
        ("gpu", resolved(asked_gpu, e.hardware.name)),
        ("precision", e.precision.summary),
        ("engine", f"{engine(e)}; times by calibration '{e.setting.efficiency.name}'"),
        ("workload", f"{load.input_tokens:,} tokens in{cached}, {load.output_tokens:,} out, batch {load.batch:,}{seen}{at}"),
    ]
    rows += [("taken", ", ".join(more))] if more else []
    host = [("host", e.setting.host.title)] if e.setting.host else []
    return [*rows[:2], *host, *([("split", ranks)] if ranks else []), *rows[2:]]


def _stated(e: Estimate) -> list[tuple[str, float, float]]:
    """What was stated about a pass beside its load: name, value, and the value that says nothing."""
    s = e.setting
    return [("overlap", s.overlap, 0.0), ("expert skew", s.skew, 0.0), ("expert imbalance", s.imbalance, 1.0)]


def memory_table(e: Estimate) -> Any:
    """Where one device's memory goes under the engine, and what the load would take at the least."""
    c, whole = e.capacity, e.hardware.usable_bytes
    beside = whole - value(c.launch.utilization) * value(c.total_bytes)
    per_token = f"{value(c.kv_bytes_per_token_per_gpu):,.0f} B per token of a long request"
    copies = int(np.asarray(e.setting.parallel.cp))  # all weights lie on each context rank
    ideal = (e.weight_bytes * copies - value(c.host_bytes) + e.load.batch * e.sequence_bytes) / e.gpus
    graphs, kept = value(c.graph_bytes), f"{value(c.kv_cache_tokens):,.0f} tokens, {per_token}"
    rows = [
        ("weights", value(c.weight_bytes_per_gpu), f"{e.counts.total:,} parameters" + (f" over {e.gpus} devices" if e.gpus > 1 else "")),
        ("activations, peak", value(c.activation_bytes), f"{value(c.launch.max_num_batched_tokens):,.0f} tokens in a step"),
        ("context, collectives", value(c.non_torch_bytes), ""),
        ("CUDA graphs", graphs, "inside the budget" if c.graphs_inside else "outside the budget"),
        ("KV cache" if e.model.generates else "free", value(c.kv_cache_bytes_per_gpu), kept if e.model.generates else ""),
        ("left outside the budget", beside, f"utilization {value(c.launch.utilization):.3g}"),
        ("usable", whole, e.hardware.usable.kind),
        ("this load at the least", ideal, "weights and caches alone"),
    ]
    cells = [(n, show(b, "B", binary=True), f"{100 * b / whole:.1f} %", note) for n, b, note in rows if b or n in ("KV cache", "usable")]
    if value(c.host_bytes):
        cells.append(("in host memory", show(value(c.host_bytes), "B", binary=True), "", "weights and caches of all devices together"))
    return table(("Memory of one device", "size", "share", ""), cells, right=(1, 2))


def request_table(e: Estimate) -> Any:
    """What a request takes: estimate, the band that holds four of five measurements, and the floor."""
    first = ("TTFT" if e.model.generates else "the pass", e.ttft_s, e.ttft_band_s, e.floor_ttft_s)
    whole = e.floor_ttft_s + (e.load.output_tokens - 1) * e.floor_tpot_s
    more = [("TPOT", e.tpot_s, e.tpot_band_s, e.floor_tpot_s), ("whole request", e.e2e_s, e.e2e_band_s, whole)]
    rows = []
    for name, estimated, ends, floor in [first, *(more if e.model.generates else [])]:
        rows.append((name, show(estimated, "s"), *(show(end, "s") for end in ends or ()), *([""] * (0 if ends else 2)), show(floor, "s")))
    return table(("One request", "estimate", "80 % from", "to", "floor"), rows, right=(1, 2, 3, 4))


BASES = {
    "measured": "The band held 80 % of measurements that no fit had seen, of this engine or class of parts where there are enough.",
    "inherited": "Kernels or engine were not measured here but are those of relatives; the band is of parts, classes or makers left out.",
}


def time_table(e: Estimate) -> Any:
    """Prefill and one decode step: estimate, floor and what binds."""
    rows = []
    for name, step in (("prefill", e.prefill), ("decode step", e.decode)) if e.model.generates else (("pass", e.prefill),):
        figures = (show(value(step.time_s), "s"), show(value(step.floor_s), "s"), bound(step), significant(value(step.intensity)))
        used = (percent(value(step.mfu)), percent(value(step.mbu)))
        rows.append((name, *figures, *used, show(value(step.bytes), "B"), show(value(step.flops), "FLOP")))
    head = ("Time", "estimate", "floor", "bound by", "FLOP/B", "MFU", "MBU", "bytes", "work")
    return table(head, rows, right=(1, 2, 4, 5, 6, 7, 8))


def parts_table(e: Estimate) -> Any:
    """Where a decode step, or the one pass of an encoder, goes by part: bytes, work and time."""
    step = e.decode if e.model.generates else e.prefill
    total_s = value(step.time_s)
    rows = []
    for part, (flops, moved) in step.by("part").items():
        seconds = sum(value(step.op_s(op)) + value(step.wire_s(op)) for op in step.ops if op.part == part)
        if seconds or value(moved):
            rows.append((part, show(seconds, "s"), f"{100 * seconds / total_s:.1f} %", show(value(moved), "B"), show(value(flops), "FLOP")))
    over = value(step.overhead_s)
    if over:
        rows.append(("engine and host", show(over, "s"), f"{100 * over / total_s:.1f} %", "", ""))
    return table(
        (f"Where {'a decode step' if e.model.generates else 'the pass'} goes", "time", "share", "bytes", "work"), rows, right=(1, 2, 3, 4)
    )


def operator_table(e: Estimate) -> Any:
    """Every operator of a decode step."""
    step = e.decode
    rows = []
    for op in step.ops:
        seconds = value(step.op_s(op)) + value(step.wire_s(op))
        moved = value(op.weight_bytes) + value(op.kv_bytes)
        rows.append((op.name, op.kind, op.rate, f"{op.count:,}", show(seconds, "s"), show(moved, "B"), show(value(op.flops), "FLOP")))
    return table(("Operator", "kernel", "type", "times", "time", "bytes", "work"), rows, right=(3, 4, 5, 6))


def batch_table(e: Estimate, b: Batches) -> Any:
    """What more requests at once give and cost."""
    usd, joules = usd_per_million_tokens(e, b.output_tokens_per_s), joules_per_million_tokens(e, b.output_tokens_per_s)
    rows = []
    for i, n in enumerate(b.batch):
        money = "" if usd is None else f"{np.asarray(usd)[i]:,.2f}"
        energy = "" if joules is None else f"{np.asarray(joules)[i] / KWH:,.2f}"
        times = (show(b.ttft_s[i], "s"), show(b.tpot_s[i], "s"), show(b.floor_tpot_s[i], "s"))
        used = (percent(b.mfu[i]), percent(b.mbu[i]))
        rows.append((f"{n:,.0f}", significant(b.output_tokens_per_s[i]), *times, *used, money, energy))
    head = ("Requests at once", "tokens/s", "TTFT", "TPOT", "floor", "MFU", "MBU", "USD/Mtok", "kWh/Mtok")
    return table(head, rows, right=range(9))


def help_lines(e: Estimate) -> list[str]:
    """Where it does not fit: the single changes that would do."""
    if e.fits:
        return []
    found = remedies(e)
    if not found:
        return ["No single change that was tried makes it fit: shorter requests, fp8 or int4 cache or weights, 2 to 8 times the devices."]
    return ["It would fit with:"] + [f"  {c.what} (room for {requests(c.sequences)})" for c in found[:6]]


def remarks(e: Estimate) -> list[str]:
    """Which assumptions carried weight, and where to look next."""
    lines = []
    if e.model.context and e.load.tokens > e.model.context:
        lines.append(f"Warning: {e.load.tokens:,} tokens, but the model takes {e.model.context:,}; engines refuse longer requests.")
    if e.setting.ideal:
        lines.append("Times are floors: efficiency 1, no overhead, exchanges between devices for nothing but their bytes.")
    else:
        lines.append(f"Times are estimates of the calibration '{e.setting.efficiency.name}'; the floor is what physics allows.")
        lines += [BASES[e.basis]] if e.tpot_band_s else []
    if e.model.generates:
        lines += front_end_words(e.prompt_front_end_s)
    listed = price(e.hardware)
    if listed:
        lines.append(
            f"Price: {listed.usd_per_h:.2f} USD per device and hour, {listed.cloud}, on demand, {listed.date}; energy at rated power."
        )
    used = [f"{name} {q}" for name, q in e.hardware.doubts().items() if name.startswith(("memory", "peak"))]
    if used:
        lines.append(f"Low-confidence numbers of this part: {', '.join(used[:4])}.")
    if e.hardware.usable.kind == "assumed":
        lines.append(f"Usable memory is assumed: {e.hardware.usable.note or 'the capacity'}.")
    if e.model.note:
        lines.append(f"Model: {e.model.note}")
    return lines


def front_end_words(each_s: float) -> list[str]:
    """What of a time to first token host and front end take beside the engine's steps, where they take anything."""
    return [f"TTFT has about {show(each_s, 's')} that host and front end take beside the steps."] if each_s else []


def see_also(e: Estimate, asked_model: str, asked_gpu: str) -> str:
    """Commands that open the numbers further; a file of one's own is looked at with `check`."""
    looks = [f"{'check' if os.path.exists(asked) else 'show'} {asked}" for asked in (asked_model, asked_gpu)]  # noqa: PTH110 - any text
    return "See also: inferplan " + "; ".join([*looks, "explain tpot ...", "plot roofline ...", "--json"]) + "."
