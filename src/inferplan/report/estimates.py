"""An estimate as a record for files and as a screen for people. Knows no equation beyond sums of what it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from inferplan.deployment import Estimate
from inferplan.engine.step import Step
from inferplan.report.screen import table
from inferplan.units import show, significant

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = "inferplan/estimate/1"


def record(e: Estimate) -> dict[str, Any]:
    """The estimate under the glossary's keys, in base units."""
    return {
        "schema": SCHEMA,
        "model": e.model.name,
        "hardware": e.hardware.name,
        "precision": e.precision.name,
        "kv_format": e.precision.kv.name,
        "batch": e.batch,
        "input_tokens": e.input_tokens,
        "output_tokens": e.output_tokens,
        "params": e.counts.total,
        "active_params": e.counts.active,
        "active_read_params": e.counts.active_read,
        "weight_bytes": e.fit.weight_bytes,
        "weight_bytes_by_part": e.weight_parts,
        "kv_bytes_per_token": e.kv_bytes_per_token,
        "kv_bytes_per_token_unbounded": e.kv_bytes_per_token_unbounded,
        "state_bytes_per_sequence": e.state_bytes_per_sequence,
        "sequence_bytes": float(np.asarray(e.fit.sequence_bytes)),
        "needed_bytes": float(np.asarray(e.fit.needed_bytes)),
        "usable_bytes": e.fit.usable_bytes,
        "left_bytes": float(np.asarray(e.fit.left_bytes)),
        "fits": bool(e.fit.fits),
        "max_sequences": float(np.asarray(e.fit.sequences)),
        "bytes_per_token": e.bytes_per_token,
        "computed_in": e.computed_in,
        "ttft_s": e.ttft_s,
        "tpot_s": e.tpot_s,
        "e2e_s": e.e2e_s,
        "decode_tokens_per_s": e.decode_tokens_per_s,
        "output_tokens_per_s": e.batch * e.decode_tokens_per_s,
        "prefill": pass_record(e.prefill),
        "decode": pass_record(e.decode),
        "efficiency": "ideal",
        "doubts": {name: str(q) for name, q in e.hardware.doubts().items()},
    }


def pass_record(step: Step) -> dict[str, Any]:
    """One pass; where it was evaluated over several contexts, the mean over them."""
    numbers = {
        name: float(np.mean(getattr(step, name)))
        for name in ("flops", "weight_bytes", "kv_bytes", "bytes", "intensity", "memory_s", "compute_s", "floor_s")
    }
    return {**numbers, "bound": bound(step)}


def bound(step: Step) -> str:
    """The roof that binds most of the pass."""
    return "memory" if float(np.mean(step.memory_s)) >= float(np.mean(step.compute_s)) else "compute"


def sentence(e: Estimate) -> str:
    """The answer first."""
    room = float(np.asarray(e.fit.sequences))
    if not e.fit.fits:
        return f"Does not fit: {show(-float(np.asarray(e.fit.left_bytes)), 'B', binary=True)} too much for {e.hardware.title}."
    many = "any number of such requests" if not np.isfinite(room) else f"{room:,.0f} such request{'s' if room != 1 else ''}"
    return (
        f"Fits, with room for {many} at once (before any engine overhead).\n"
        f"At the roof one request takes {show(e.e2e_s, 's')}: {show(e.ttft_s, 's')} to the first token, then "
        f"{significant(e.decode_tokens_per_s)} tokens/s."
    )


def why(e: Estimate) -> str:
    """What binds, against which ceiling."""
    lines = []
    for name, step in (("Prefill", e.prefill), ("Decode", e.decode)):
        rates = {op.rate for op in step.ops if op.rate not in ("none", "fp32") and op.kind in ("matmul", "experts")}
        ridges = ", ".join(f"{significant(e.hardware.ridge(r))} ({e.hardware.computed_in(r)})" for r in sorted(rates, key=e.hardware.ridge))
        lines.append(
            f"{name} is {bound(step)}-bound: {significant(float(np.mean(step.intensity)))} FLOP/B; the ridge is at {ridges} FLOP/B."
        )
    fallbacks = [f"{asked} is stored, {got} is computed" for asked, got in e.computed_in.items() if asked != got]
    return "\n".join([*lines, *(f"On this part {f}." for f in fallbacks)])


def show_estimate(e: Estimate, out: Console, *, asked_model: str, asked_gpu: str, verbose: bool = False) -> None:
    """The whole screen."""
    out.print(f"{e.model.title} on one {e.hardware.title}", style="bold")
    out.print(
        table(
            ("", ""),
            (
                ("model", _resolved(asked_model, e.model.name)),
                ("gpu", _resolved(asked_gpu, e.hardware.name)),
                ("precision", e.precision.summary),
                ("workload", f"{e.input_tokens:,} tokens in, {e.output_tokens:,} out, batch {e.batch:,}"),
            ),
        )
    )
    out.print("\n" + sentence(e))
    out.print(why(e))
    for found in (memory_table(e), time_table(e), *([parts_table(e)] if verbose else [])):
        out.print()
        out.print(found)
    out.print()
    for line in remarks(e):
        out.print(line)


def _resolved(asked: str, name: str) -> str:
    return name if asked == name else f"{asked} -> {name}"


def memory_table(e: Estimate) -> Any:
    """Where the memory goes."""
    usable, each = e.fit.usable_bytes, float(np.asarray(e.fit.sequence_bytes))
    kv = e.batch * each

    def share(x: float) -> str:
        return f"{100 * x / usable:.1f} %"

    rows = [
        ("weights", show(e.fit.weight_bytes, "B", binary=True), share(e.fit.weight_bytes), f"{e.counts.total:,} parameters"),
        (
            f"cache of {e.batch:,} x {e.input_tokens + e.output_tokens:,} tokens",
            show(kv, "B", binary=True),
            share(kv),
            f"{e.kv_bytes_per_token:,.0f} B per token",
        ),
        ("left", show(float(np.asarray(e.fit.left_bytes)), "B", binary=True), share(float(np.asarray(e.fit.left_bytes))), ""),
        ("usable", show(usable, "B", binary=True), "100 %", e.hardware.usable.kind),
    ]
    return table(("Memory", "size", "share", ""), rows, right=(1, 2))


def time_table(e: Estimate) -> Any:
    """Prefill and one decode step against the two roofs."""
    rows = []
    for name, step in (("prefill", e.prefill), ("decode step", e.decode)):
        memory, compute = float(np.mean(step.memory_s)), float(np.mean(step.compute_s))
        moved, flops = float(np.mean(step.bytes)), float(np.mean(step.flops))
        rows.append(
            (
                name,
                show(max(memory, compute), "s"),
                bound(step),
                show(memory, "s"),
                show(compute, "s"),
                show(moved, "B"),
                show(flops, "FLOP"),
            )
        )
    return table(("Time at the roof", "floor", "bound by", "memory", "compute", "bytes", "work"), rows, right=(1, 3, 4, 5, 6))


def parts_table(e: Estimate) -> Any:
    """Where a decode step's bytes and FLOPs go, by part."""
    total_b, total_f = float(np.mean(e.decode.bytes)), float(np.mean(e.decode.flops))
    rows = []
    for name, (flops, moved) in e.decode.by("part").items():
        f, b = float(np.mean(flops)), float(np.mean(moved))
        rows.append((name, show(b, "B"), f"{100 * b / total_b:.1f} %", show(f, "FLOP"), f"{100 * f / total_f:.1f} %"))
    return table(("Where a decode step goes", "bytes", "share", "work", "share"), rows, right=(1, 2, 3, 4))


def remarks(e: Estimate) -> list[str]:
    """Which assumptions carried weight, and where to look next."""
    lines = ["These are floors: efficiency 1, one device, no engine overhead; real serving is slower."]
    doubts = e.hardware.doubts()
    used = [f"{name} {q}" for name, q in doubts.items() if name.startswith(("memory", "peak"))]
    if used:
        lines.append(f"Low-confidence numbers of this part: {', '.join(used[:4])}.")
    if e.hardware.usable.kind == "assumed":
        lines.append("Usable memory is assumed to be the capacity: the driver's figure is not known.")
    if e.model.note:
        lines.append(f"Model: {e.model.note}")
    lines.append(f"See also: inferplan show {e.model.name}; inferplan show {e.hardware.name}; --verbose; --json.")
    return lines
