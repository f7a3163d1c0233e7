"""What an engine keeps from the cache opened: total memory, activations, graphs, communication. Knows no page and no weight."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from inferplan.explain.node import Node, by_formula, derived, leaf, product, total, word
from inferplan.explain.sources import counted, engine_number, given, part_number
from inferplan.formula import Record, trace
from inferplan.memory.activations import (
    activation_bytes,
    compute_buffer_bytes,
    element_bytes_of,
    image_bytes,
    packs_experts,
    state_transient_bytes,
)
from inferplan.memory.capacity import Capacity
from inferplan.memory.reserve import DRIVER_BYTES, DRIVER_SHARE, rope_table_bytes
from inferplan.memory.reserve import total_bytes as total_of

SETTINGS = {
    "hidden_copies": ("hidden_copies", 0.0),
    "width_copies": ("width_copies", 0.0),
    "logit_bytes": ("logit_bytes", 4.0),
    "copies": ("hidden_copies_beside_logits", 1.0),
    "constant_bytes": ("beside_logits_bytes", 0.0),
}


def total_memory(c: Capacity) -> Node:
    """Memory of one device as a program sees it."""
    usable = part_number("usable_bytes", c.hardware.usable, c.hardware)
    if float(np.asarray(c.total_bytes)) == usable.value:
        return usable.named("total_bytes")
    if float(np.asarray(c.total_bytes)) != total_of(c.hardware):
        return leaf("total_bytes", c.total_bytes, "B", "given: the memory that a log prints")
    why = "fitted: what the driver keeps, from start-up logs of eight parts"
    kept, share = leaf("driver_bytes", DRIVER_BYTES, "B", why), leaf("driver_share", DRIVER_SHARE, "", why)
    return derived("total_bytes", "usable_bytes - (driver_bytes + driver_share * usable_bytes)", "B", usable, kept, share)


def engine_value(c: Capacity, label: str, setting: str, value: float, unit: str = "") -> Node:
    """A number in use, with the rule of the engine's file that states it, or as given where none states just that."""
    for rule in reversed(c.engine.settings.get(setting, ())):
        if rule.holds(c.engine.version or c.engine.newest, c.hardware) and rule.number.value == value:
            only = c.engine.model_copy(update={"settings": {setting: (rule.model_copy(update={"ranks_from": 1}),)}})
            return engine_number(label, only, setting, unit, c.hardware)
    return given(label, value, unit)


def utilization(c: Capacity) -> Node:
    """The share of memory that the engine takes."""
    value = float(np.asarray(c.launch.utilization))
    found = engine_value(c, "utilization", "utilization", value)
    if c.engine.policy != "static-fraction" or not c.engine.number_or("reserved_bytes", 0.0, c.hardware) or "given" not in found.source:
        return found
    own = _static_fraction(c)
    return own if np.isclose(own.mean, value, rtol=1e-12) else found


def _static_fraction(c: Capacity) -> Node:
    """SGLang's own choice: what it reserves for a chunk, graphs and ranks, off the usable memory."""

    def number(name: str, unit: str = "B") -> Node:
        return engine_number(name, c.engine, name, unit, c.hardware, default=0.0)

    usable = part_number("usable_bytes", c.hardware.usable, c.hardware)
    ranks = derived("ranks", "tp * pp", "", given("tp", c.parallel.tp), given("pp", c.parallel.pp))
    chunk = engine_value(c, "tokens", "max_num_batched_tokens", float(np.asarray(c.launch.max_num_batched_tokens)), "tokens")
    seqs = engine_value(c, "sequences", "max_num_seqs", float(np.asarray(c.launch.max_num_seqs)))
    summed = total("reserved", "B", [
        number("reserved_bytes"),
        product("of_tokens", "B", number("reserved_per_token_bytes"), chunk),
        product("of_graphs", "B", number("reserved_per_graph_bytes"), seqs),
        product("of_ranks", "B", number("reserved_per_rank_bytes"), ranks),
        number("reserved_piecewise_bytes"),
    ])  # fmt: skip
    kept = derived("kept", "maximum(reserved, reserved_least_bytes)", "B", summed, number("reserved_least_bytes"))
    return derived("utilization", "(usable_bytes - kept) / usable_bytes", "", usable, kept)


def non_torch(c: Capacity) -> Node:
    """Context and communication buffers outside the allocator."""
    value = float(np.asarray(c.non_torch_bytes))
    for setting in ("non_torch_bytes", "stage_non_torch_bytes"):
        found = engine_value(c, "non_torch_bytes", setting, value, "B")
        if "given" not in found.source:
            return found
    return engine_number("non_torch_bytes", c.engine, "non_torch_bytes", "B", c.hardware, default=value)


def graphs(c: Capacity) -> Node:
    """Captured graphs, where the engine counts them in its budget."""
    name = f"engine {c.engine.title} {c.engine.version}"
    if not c.graphs_inside:
        return leaf("graph_bytes", 0.0, "B", f"{name}: graphs lie outside the budget")
    layers = counted("layers", -(-len(c.model.order) // len(c.stages)), c.model)
    terms = [
        engine_number("graph_bytes", c.engine, "graph_bytes", "B", c.hardware, default=0.0).named("constant"),
        product("of_layers", "B", engine_number("each", c.engine, "graph_layer_bytes", "B", c.hardware, default=0.0), layers),
    ]
    if any(block.experts for block in c.model.blocks.values()):
        terms.append(engine_number("experts", c.engine, "graph_expert_bytes", "B", c.hardware, default=0.0))
    whole = total("captured", "B", terms)
    share = engine_number("graph_estimate_share", c.engine, "graph_estimate_share", "", c.hardware, default=1.0)
    found = derived("graph_bytes", "captured * graph_estimate_share", "B", whole, share)
    if np.isclose(found.mean, float(np.asarray(c.graph_bytes)), rtol=1e-12):
        return found
    return leaf("graph_bytes", c.graph_bytes, "B", f"{name}: as launched")


def rope_table(c: Capacity) -> Node:
    """The table of rotary angles that an engine keeps beside the weights."""
    source = f"counted: positions x rotary width of {c.model.title}, as {c.engine.title} keeps them"
    return leaf("rotary_table", rope_table_bytes(c.model, c.engine), "B", source)


def recorded(c: Capacity, label: str, record: Record) -> Node:
    """A formula that was evaluated, its inputs as leaves with their sources."""
    inputs = {name: _input(c, name, float(np.asarray(value))) for name, value in record.inputs.items()}
    return by_formula(label, record.formula.name, **inputs)


def _input(c: Capacity, name: str, value: float) -> Node:
    if name in SETTINGS:
        setting, default = SETTINGS[name]
        found = engine_number(name, c.engine, setting, "", c.hardware, default=default)
        if found.value == value:
            return found
        return leaf(name, value, "", f"{found.source}, adapted to the layer and the width of an element")
    launch = {"tokens": "max_num_batched_tokens", "rows": "max_num_seqs", "batch": "max_num_batched_tokens"}
    if name in launch:
        found = engine_value(c, name, launch[name], value)
        return found if "given" not in found.source else leaf(name, value, "", f"engine {c.engine.title} {c.engine.version}: as launched")
    if name == "cells":
        return leaf(name, value, "tokens", "given: --max-model-len, else --isl and --osl together")
    if name == "element_bytes":
        return leaf(name, value, "B", "counted: an activation of the model's type")
    return counted(name, value, c.model, what="shapes on one rank")


def largest(records: Sequence[Record], name: str) -> Record | None:
    """The record of a formula that came out largest."""
    found = [r for r in records if r.formula.name == name]
    return max(found, key=lambda r: float(np.max(np.asarray(r.result))), default=None)


def activations(c: Capacity, index: int) -> Node:
    """The activation peak that the engine profiles on a stage."""
    first, last = index == 0, index == len(c.stages) - 1
    engine, launch = c.engine, c.launch
    if engine.policy == "cells":
        return _compute_buffer(c)
    if engine.policy in ("static-fraction", "ideal"):
        return leaf("activation_bytes", 0.0, "B", f"engine {engine.title}: profiles no activations")
    element, packed = element_bytes_of(c.precision), packs_experts(c.precision)
    with trace() as seen:
        activation_bytes(
            c.model, engine, c.parallel, tokens=launch.max_num_batched_tokens, sequences=launch.max_num_seqs, first=first, last=last,
            element_bytes=element, packed_experts=packed, chunked=launch.chunked, hardware=c.hardware,
        )  # fmt: skip
    peak = _peak(c, seen.records, kept=engine.choice("moe_workspace") == "kept" and not packed)
    terms = [peak, *_beside(c, first, last, element)]
    return peak.named("activation_bytes") if len(terms) == 1 else total("activation_bytes", "B", terms)


def _peak(c: Capacity, records: Sequence[Record], *, kept: bool) -> Node:
    """The larger of a layer at full chunk and the sampler, with buffers of experts beside them or among them."""
    names = {"layer": "layer_peak_bytes", "sampler": "sampler_peak_bytes", "experts": "expert_peak_bytes"}
    found = {label: r for label, name in names.items() if (r := largest(records, name)) is not None}
    nodes = {label: recorded(c, label, r) for label, r in found.items()}
    among = [n for label, n in nodes.items() if not (kept and label == "experts")]
    text = reduce(lambda t, n: f"maximum({t}, {n.label})", among[1:], among[0].label if among else "0")
    if kept and "experts" in nodes:
        text += " + experts"
    if not nodes:
        return leaf("peak", 0.0, "B", f"engine {c.engine.title}: states no activations of this stage")
    return derived("peak", text, "B", *nodes.values())


def _beside(c: Capacity, first: bool, last: bool, element: float) -> list[Node]:
    tokens = float(np.asarray(c.launch.max_num_batched_tokens))
    found = []
    if not (first and last):
        wide = leaf("element_bytes", element, "B", "counted: an activation of the model's type")
        nodes = wide, _input(c, "tokens", tokens), counted("hidden", c.model.hidden, c.model)
        found.append(product("passed_on", "B", "2", *nodes))
    images = float(np.asarray(image_bytes(c.model, c.engine, tokens=tokens, sequences=c.launch.max_num_seqs))) if first else 0.0
    if images:
        found.append(leaf("images", images, "B", f"engine {c.engine.title} {c.engine.version}: what profiling images adds"))
    transient = float(np.asarray(state_transient_bytes(c.model, c.engine, tokens=tokens, sequences=c.launch.max_num_seqs)))
    if transient:
        why = f"engine {c.engine.title} {c.engine.version}: a passing need of recurrent layers, counted while graphs are estimated"
        found.append(leaf("transient", transient, "B", why))
    return found


def _compute_buffer(c: Capacity) -> Node:
    """llama.cpp's compute buffer: logits, and scores or expanded latents of the layer that needs most."""
    launch, expand = c.launch, c.engine.choice("latent_prefill") == "expanded"
    with trace() as seen:
        compute_buffer_bytes(
            c.model, batch=launch.max_num_batched_tokens, cells=launch.max_model_len, flash_attention=launch.flash_attention,
            expand_latent=expand,
        )  # fmt: skip
    logits = largest(seen.records, "logits_buffer_bytes")
    other = largest(seen.records, "expanded_latent_bytes") or largest(seen.records, "scores_buffer_bytes")
    assert logits is not None
    first = recorded(c, "logits", logits)
    if other is None:
        return first.named("activation_bytes")
    second = recorded(c, word(other.formula.name), other)
    text = f"logits + {second.label}" if launch.flash_attention else f"maximum(logits, {second.label})"
    return derived("activation_bytes", text, "B", first, second)
