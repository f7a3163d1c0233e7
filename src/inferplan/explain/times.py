"""Seconds of a pass opened: operators, collectives, overhead and the floor. Knows no memory and no price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from inferplan.engine.op import Op
from inferplan.engine.step import Step
from inferplan.explain.node import Node, by_formula, derived, leaf, product, total, word
from inferplan.explain.shapes import unless_one
from inferplan.explain.sources import counted, engine_added, fitted, given, part_number
from inferplan.explain.wires import collective_s
from inferplan.explain.work import Piece, View, context_message, pieces, width
from inferplan.roofline.comm import host_link
from inferplan.specs.hardware import Accelerator


@dataclass(frozen=True, slots=True)
class Opened:
    """A pass whose operators stand beside what they are made of."""

    step: Step
    view: View
    pairs: tuple[tuple[Op, Piece], ...]

    @property
    def hardware(self) -> Accelerator:
        """The part."""
        return self.step.hardware

    @property
    def bandwidth(self) -> Node:
        """Its memory bandwidth."""
        return _bandwidth(self.hardware)

    def peak(self, rate: str) -> Node:
        """Its dense peak for operands of a number type."""
        return part_number("peak", self.hardware.peak_quantity(rate), self.hardware)

    def stream(self, label: str, name: str, unit: str, ops: Sequence[tuple[Op, Piece]] | None = None) -> Node:
        """One stream summed over operators."""
        chosen = self.pairs if ops is None else ops
        return total(label, unit, [piece[name].named(word(op.name)) for op, piece in chosen if name in piece])


def opened(step: Step, view: View) -> Opened:
    """The operators of a pass with their work."""
    own = [op for op in step.ops if op.kind != "collective"]
    return Opened(step, view, tuple(zip(own, pieces(view, step.setting.offload), strict=True)))


def streams(run: Opened) -> bool:
    """Whether the device reads what lies in host memory over the link."""
    return bool(np.all(np.asarray(run.step.streamed) > 0))


def on_device(run: Opened) -> list[tuple[Op, Piece]]:
    """What the device computes: its own, and what has weights in host memory where these are streamed."""
    return [pair for pair in run.pairs if not pair[0].hosted or (streams(run) and "weight_bytes" in pair[1])]


def hosted(run: Opened) -> list[tuple[Op, Piece]]:
    """What lies in host memory."""
    return [pair for pair in run.pairs if pair[0].hosted]


def moved_bytes(run: Opened) -> Node:
    """Bytes that must cross the memory bus: weights and cache."""
    weights, cache = run.stream("weight_bytes", "weight_bytes", "B"), run.stream("kv_bytes", "kv_bytes", "B")
    return derived("moved_bytes", "weight_bytes + kv_bytes", "B", weights, cache)


def memory_s(run: Opened) -> Node:
    """Seconds at full memory bandwidth."""
    own = [pair for pair in run.pairs if not pair[0].hosted]
    return derived("memory_s", "moved_bytes / bandwidth", "s", _moved(run, own), run.bandwidth)


def _moved(run: Opened, pairs: Sequence[tuple[Op, Piece]]) -> Node:
    weights, cache = (run.stream(name, name, "B", pairs) for name in ("weight_bytes", "kv_bytes"))
    return derived("moved_bytes", "weight_bytes + kv_bytes", "B", weights, cache)


def compute_s(run: Opened) -> Node:
    """Seconds at the dense peak of each number type."""
    return _compute_s("compute_s", run, on_device(run), run.hardware)


def _compute_s(label: str, run: Opened, pairs: Sequence[tuple[Op, Piece]], part: Accelerator) -> Node:
    found = []
    for rate in sorted({op.rate for op, _ in pairs if op.rate != "none"}):
        flops = run.stream("flops", "flops", "FLOP", [pair for pair in pairs if pair[0].rate == rate])
        peak = part_number("peak", part.peak_quantity(rate), part)
        found.append(derived(word(f"compute_{rate}_s"), "flops / peak", "s", flops, peak))
    return total(label, "s", found, empty="no products")


def floor_s(run: Opened) -> Node:
    """The slowest roof."""
    if not hosted(run):
        return derived("floor_s", "maximum(memory_s, compute_s)", "s", memory_s(run), compute_s(run))
    if not run.step.setting.offload.computed:
        weights = run.stream("weight_bytes", "weight_bytes", "B", hosted(run))
        link = derived("link_s", "weight_bytes / link", "s", weights, _link(run))
        return derived("floor_s", "maximum(maximum(memory_s, compute_s), link_s)", "s", memory_s(run), compute_s(run), link)
    own = _compute_s("compute_s", run, [pair for pair in run.pairs if not pair[0].hosted], run.hardware)
    host = run.step.setting.host
    assert host is not None
    there = derived("host_s", "moved_bytes / bandwidth", "s", _moved(run, hosted(run)), _bandwidth(host))
    return derived("floor_s", "maximum(maximum(memory_s, compute_s), host_s)", "s", memory_s(run), own, there)


def _bandwidth(part: Accelerator) -> Node:
    found = part.memory.bandwidth
    assert found is not None
    return part_number("bandwidth", found, part)


def _link(run: Opened) -> Node:
    """The link between host memory and the device."""
    name, found = host_link(run.hardware, run.step.setting.host, devices=int(np.max(run.step.parallel.gpus)))
    why = f"link {name}: between host memory and {run.hardware.title}, at most its share of the host's bandwidth"
    return leaf("link", found, "B/s", why)


def step_s(run: Opened, label: str) -> Node:
    """The estimate of a pass: never below its floor."""
    ops = total("operators_s", "s", [op_s(run, op, piece) for op, piece in run.pairs])
    wires = total("collectives_s", "s", [w for w in (wire_s(run, op) for op in run.step.ops) if w is not None])
    if run.step.setting.overlap and not wires.is_zero:
        share = given("overlap", run.step.setting.overlap)
        wires = derived("collectives_s", "all_s - minimum(overlap * all_s, operators_s)", "s", wires.named("all_s"), share, ops)
    terms = [ops, *(n for n in (wires, overhead_s(run)) if not n.is_zero)]
    host = _host_s(run)
    if not host.is_zero:
        busy = total("device_s", "s", [ops, wires])
        terms.append(by_formula("waited_s", "host_wait_s", device_s=busy, host_s=host))
    return derived(label, f"maximum({' + '.join(t.label for t in terms)}, floor_s)", "s", *terms, floor_s(run))


def overhead_s(run: Opened) -> Node:
    """What engine and host add."""
    terms = [
        _added(run, "per_step"),
        product("of_layers", "s", counted("layers", run.step.layers, run.view.run.model), _added(run, "per_layer")),
        product("of_expert_layers", "s", _layers(run, "experts"), _added(run, "per_expert_layer")),
        product("of_recurrent_layers", "s", _layers(run, "recurrence"), _added(run, "per_recurrent_layer")),
        product("of_sequences", "s", run.view.sequences, _added(run, "per_sequence")),
    ]
    return total("overhead_s", "s", terms, empty="no overhead in the ideal calibration")


def _host_s(run: Opened) -> Node:
    """What the host does beside the devices."""
    layers = product("of_layers", "s", counted("layers", run.step.layers, run.view.run.model), _added(run, "host_layer"))
    return total("host_s", "s", [_added(run, "host"), layers], empty="nothing beside the devices")


def _added(run: Opened, name: str) -> Node:
    """Seconds of the engine's own, by their name in its overhead."""
    return engine_added(name, run.step.setting.efficiency, run.step.setting.engine, run.hardware.architecture)


def _layers(run: Opened, kind: str) -> Node:
    """Layers that have an operator of a kind."""
    name = "expert_layers" if kind == "experts" else "recurrent_layers"
    return counted(name, run.step.layers_of(kind), run.view.run.model, what=f"layers with {kind}")


def op_s(run: Opened, op: Op, piece: Piece) -> Node:
    """Seconds of one operator: start-up, then the slower of its compute and memory time, on the device or on the host."""
    label, setting = word(op.name), run.step.setting
    if not op.hosted:
        return _on(run, op, piece, run.hardware, label)
    if setting.host is not None and setting.offload.computed and not (streams(run) and "weight_bytes" in piece):
        return _on(run, op, piece, setting.host, label)
    rest = _on(run, op, {name: node for name, node in piece.items() if name != "weight_bytes"}, run.hardware, "device_s")
    copied = setting.efficiency.copy_rate(host_link(run.hardware, setting.host)[0])
    share = fitted("eff", copied.eff, "", setting.efficiency, copied.basis, "copies from host memory", copied.note)
    crossing = product("link_s", "s", piece["weight_bytes"], over=[_link(run), share])
    return derived(label, "maximum(device_s, link_s)", "s", rest, crossing)


def _on(run: Opened, op: Op, piece: Piece, part: Accelerator, label: str) -> Node:
    """Seconds of one operator on a part."""
    setting = run.step.setting
    kernel = setting.efficiency.kernel_of(op, part, stored=op.stored or None, engine=setting.engine)

    def share(name: str, value: float, unit: str = "") -> Node:
        return fitted(name, value, unit, setting.efficiency, kernel.basis, kernel.origin)

    launches = leaf("launches", op.count, "", f"counted: launches of {op.name} in {run.view.run.model.title}")
    start = product("launch_s", "s", launches, share("launch", kernel.launch_s, "s"), _own(run, "launch"))
    piece = _uneven(run, op, piece)
    moved = total("moved_bytes", "B", [piece[n] for n in ("weight_bytes", "kv_bytes", "act_bytes") if n in piece])
    memory = product("memory_s", "s", moved, over=[_bandwidth(part), share("eff_bandwidth", kernel.eff_bandwidth)])
    if op.rate == "none" or "flops" not in piece:
        return derived(label, "launch_s + memory_s", "s", start, memory)
    peak = part_number("peak", part.peak_quantity(op.rate, kernel.peak), part)
    compute = product("compute_s", "s", piece["flops"], over=[peak, share("eff_flops", kernel.eff_flops)])
    if np.isinf(kernel.sharpness):
        return derived(label, "launch_s + maximum(compute_s, memory_s)", "s", start, compute, memory)
    text = "launch_s + soft_maximum(compute_s, memory_s, sharpness)"
    return derived(label, text, "s", start, compute, memory, share("sharpness", kernel.sharpness))


def _own(run: Opened, name: str) -> Node | None:
    """A factor of the engine's own, or nothing where it is 1."""
    eff, engine = run.step.setting.efficiency, run.step.setting.engine
    own = eff.overhead(engine, run.hardware.architecture)
    found = fitted(f"{name}_factor", getattr(own, name), "", eff, own.basis, f"{name} under {engine}", own.note)
    return unless_one(found)


def _uneven(run: Opened, op: Op, piece: Piece) -> Piece:
    """The work of the busiest expert rank."""
    factor = run.step.setting.imbalance
    if op.kind != "experts" or factor == 1:
        return piece
    more = given("imbalance", factor, option="--expert-imbalance")
    return {n: product(n, node.unit, node.named("even"), more) if n in ("flops", "act_bytes") else node for n, node in piece.items()}


def wire_s(run: Opened, op: Op) -> Node | None:
    """Seconds of the collective that ends an operator, over all its layers."""
    if op.wire is None or np.all(np.asarray(op.wire.ranks) <= 1):
        return None
    count = leaf("count", op.count, "", f"counted: how often {op.name} ends in a collective")
    each = collective_s("each", op.wire, message(run.view, op), ranks(run.view, op), run.step)
    return product(word(op.name), "s", count, each, _own(run, "collectives"))


def ranks(v: View, op: Op) -> Node:
    """The ranks that take part."""
    assert op.wire is not None
    last = op.name.rsplit(".", 1)[-1]
    if op.wire.kind == "send":
        return v.option("pp") or leaf("pp", 1, "", "given: --pp")
    if last in ("gather", "query", "scatter") or op.name.endswith("context.reduce"):
        ways = v.option("dcp" if last in ("query", "scatter") else "cp")
        assert ways is not None
        return ways.named("ranks")
    found = v.group if op.wire.kind == "all_to_all" else v.option("tp")
    assert found is not None
    return found.named("ranks")


def message(v: View, op: Op) -> Node:
    """Bytes that one rank holds before the collective: hidden states in 16 bit, logits, or copies for experts."""
    model, last = v.run.model, op.name.rsplit(".", 1)[-1]
    hidden, tp = counted("hidden", model.hidden, model), v.option("tp")
    if op.name == "head":
        table = model.heads()[0] if model.head == "own" else model.embeddings()[0]
        return product("message_bytes", "B", "2", v.rows, counted("rows", table.rows, model), over=[tp])
    if ".context." in f".{op.name}":
        return context_message(v, op)
    if last in ("dispatch", "combine"):
        return _copies(v, op, last, hidden, tp)
    if last == "send":
        pp: Any = v.option("pp")
        return derived("message_bytes", "2 * hidden * tokens * (pp - 1)", "B", hidden, v.tokens, pp)
    return product("message_bytes", "B", "2", hidden, v.tokens)


def _copies(v: View, op: Op, last: str, hidden: Node, tp: Node | None) -> Node:
    """Copies of tokens that go to experts on other ranks."""
    moe = next(b.experts for name, b in v.run.model.blocks.items() if b.experts and op.name.startswith(f"{name}."))
    assert moe is not None
    dp: Any = v.option("dp")
    top_k, two = v.count("top_k", moe.top_k), leaf("width_bytes", 2, "B", "counted: results in 16 bit")
    each = width(v, "experts") if last == "dispatch" else two
    text = "width_bytes * tokens * top_k * hidden * (1 - 1 / dp)" + (" / tp" if tp else "")
    return derived("message_bytes", text, "B", each, v.tokens, top_k, hidden, dp, *([tp] if tp else []))
