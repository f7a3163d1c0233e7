"""The numbers that can be opened, by name, each as a tree for one estimate. Knows no screen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from inferplan.deployment import POINTS, Estimate, price, step_segment
from inferplan.engine.convention import ALGORITHM
from inferplan.engine.op import Pass
from inferplan.engine.segment import Segment
from inferplan.errors import NotFound, Unsupported, near_misses, shown
from inferplan.explain import room, shapes
from inferplan.explain.node import Node, derived, leaf, product, total
from inferplan.explain.shapes import unless_one
from inferplan.explain.sources import counted, engine_added, given, part_number, price_per_h
from inferplan.explain.times import Opened, compute_s, floor_s, memory_s, moved_bytes, opened, step_s
from inferplan.explain.work import View

DECODE = "counted: a decode step makes one token of each sequence"


def tokens_of(e: Estimate, which: str) -> Node:
    """Input or output tokens of a request."""
    if which == "input_tokens":
        return given(which, e.load.input_tokens, "tokens", option="--isl")
    if not e.model.generates:
        return leaf(which, e.load.output_tokens, "tokens", f"counted: {e.model.title} generates nothing, so one pass is all")
    return given(which, e.load.output_tokens, "tokens", option="--osl")


def batch(e: Estimate) -> Node:
    """Requests at once."""
    return given("batch", e.load.batch)


def contexts(e: Estimate) -> Node:
    """Contexts that the output runs through, or the one that was asked for."""
    if e.load.context is not None:
        return given("contexts", e.load.context, "tokens", option="--context")
    points = leaf("points", POINTS, "", "assumed: so many contexts, evenly spread, stand for all")
    steps = derived("steps", "maximum(output_tokens - 1, 1)", "", tokens_of(e, "output_tokens"))
    text = "evenly(input_tokens + 1, input_tokens + steps, minimum(steps, points))"
    return derived("contexts", text, "tokens", tokens_of(e, "input_tokens"), steps, points)


def length(e: Estimate) -> Node:
    """Tokens of a request at its end."""
    both = tokens_of(e, "input_tokens"), tokens_of(e, "output_tokens")
    if e.load.context is None:
        return derived("length", "input_tokens + output_tokens", "tokens", *both)
    return derived("length", "maximum(input_tokens + output_tokens, context)", "tokens", *both, given("context", e.load.context, "tokens"))


def prefill(e: Estimate) -> Opened:
    """The pass over the prompts."""
    cached = given("past", e.load.cached, "tokens", option="--cached")
    new = derived("new", "input_tokens - past", "tokens", tokens_of(e, "input_tokens"), cached) if e.load.cached else None
    seen = Segment(1, 1, images=e.load.images, patches=e.load.patches)
    view = _view(e, batch(e).named("sequences"), new or tokens_of(e, "input_tokens").named("new"), cached, seen)
    return opened(e.prefill, view)


def decode(e: Estimate) -> Opened:
    """One decode step at each of the contexts."""
    past = derived("past", "maximum(contexts - 1, 0)", "tokens", contexts(e))
    pp, sequences = unless_one(given("pp", e.setting.parallel.pp)), batch(e).named("sequences")
    if pp is not None:
        sequences = derived("sequences", "maximum(batch / pp, minimum(batch, 1))", "", batch(e), pp)
    return opened(e.decode, _view(e, sequences, leaf("new", 1, "tokens", DECODE), past))


def _view(e: Estimate, sequences: Node, new: Node, past: Node, like: Segment | None = None) -> View:
    """A pass of one segment; logits and images as in the segment given."""
    segment = replace(like or Segment(1, 1), sequences=sequences.value, new=new.value, past=past.value)
    return View(Pass(e.model, e.precision, e.setting.parallel, (segment,), ALGORITHM, e.setting.skew), sequences, new, past)


def mean(label: str, unit: str, over: Node) -> Node:
    """The mean over the contexts that the output runs through."""
    return derived(label, f"mean({over.label})", unit, over)


def ttft(e: Estimate) -> Node:
    """Time to first token: the steps of prefill, and what host and front end take beside, where they take anything."""
    steps, beside = prefill_time(e), front_end(e)
    return steps.named("ttft_s") if beside.is_zero else derived("ttft_s", "prefill_s + front_end_s", "s", steps, beside)


def front_end(e: Estimate) -> Node:
    """What host and front end take for a prompt: its passage, its launches layer by layer, its tokens read."""
    if not e.model.generates:
        return leaf("front_end_s", 0, "s", f"counted: {e.model.title} makes no tokens")
    layers, tokens = counted("layers", len(e.model.order), e.model), tokens_of(e, "input_tokens")
    whole, of_layer, of_token = (
        engine_added(name, e.setting.efficiency, e.setting.engine) for name in ("per_prompt", "per_prompt_layer", "per_input_token")
    )
    terms = [whole, product("of_layers", "s", layers, of_layer), product("of_tokens", "s", tokens, of_token)]
    return total("front_end_s", "s", terms, empty="the calibration knows nothing beside the steps")


def prefill_time(e: Estimate) -> Node:
    """The steps of prefill, one after the other or through the stages of a pipeline."""
    each = mean("each_s", "s", step_s(prefill_step(e), "step_s"))
    stages = unless_one(given("stages", e.setting.parallel.pp, option="--pp"))
    steps = unless_one(steps_of(e))
    if stages is None:
        return product("prefill_s", "s", each, steps)
    count = steps or leaf("steps", 1, "", "counted: one step takes all prompts")
    return derived("prefill_s", "each_s * (steps + stages - 1) / stages", "s", each, count, stages)


def steps_of(e: Estimate) -> Node:
    """Steps in which the engine takes the prompts up."""
    new = e.load.input_tokens - e.load.cached
    if e.step_tokens <= 0:
        return leaf("steps", 1, "", "counted: without an engine's limit one step takes all prompts")
    tokens, limit = _new(e), room.Room(e.capacity, 0).chunk.named("step_tokens")
    text = "batch * ceil(new / step_tokens)" if new > e.step_tokens else "ceil(batch * new / step_tokens)"
    return derived("steps", text, "", batch(e), tokens, limit)


def _new(e: Estimate) -> Node:
    """Tokens of a prompt that are not cached."""
    if not e.load.cached:
        return tokens_of(e, "input_tokens").named("new")
    cached = given("cached", e.load.cached, "tokens")
    return derived("new", "input_tokens - cached", "tokens", tokens_of(e, "input_tokens"), cached)


def prefill_step(e: Estimate) -> Opened:
    """One step of the prefill: a share of the prompts, or each chunk of a long one."""
    segment = step_segment(e.load, e.load.batch, e.step_tokens)
    if e.load.input_tokens - e.load.cached <= e.step_tokens or e.step_tokens <= 0:
        steps = unless_one(steps_of(e))
        sequences = product("sequences", "", batch(e), over=[steps]) if steps else batch(e).named("sequences")
        return opened(e.prefill_step, _view(e, sequences, _new(e), given("past", e.load.cached, "tokens", option="--cached"), segment))
    limit = room.Room(e.capacity, 0).chunk.named("step_tokens")
    why = "counted: multiples of a step, evenly spread where there are many"
    done = leaf("done", np.asarray(segment.past) - e.load.cached, "tokens", why)
    new = derived("new", "minimum(step_tokens, whole - done)", "tokens", limit, _new(e).named("whole"), done)
    past = derived("past", "cached + done", "tokens", given("cached", e.load.cached, "tokens"), done)
    one = leaf("sequences", 1, "", "counted: a prompt longer than a step is alone in it")
    return opened(e.prefill_step, _view(e, one, new, past, segment))


def tpot(e: Estimate) -> Node:
    """Mean gap between output tokens."""
    return mean("tpot_s", "s", step_s(decode(e), "step_s"))


def e2e(e: Estimate) -> Node:
    """A whole request."""
    return derived("e2e_s", "ttft_s + (output_tokens - 1) * tpot_s", "s", ttft(e), tokens_of(e, "output_tokens"), tpot(e))


def floor_ttft(e: Estimate) -> Node:
    """The floor of the prefill."""
    stages = unless_one(given("stages", e.setting.parallel.pp, option="--pp"))
    return product("floor_ttft_s", "s", floor_s(prefill(e)), over=[stages])


def floor_tpot(e: Estimate) -> Node:
    """The floor of a decode step."""
    return mean("floor_tpot_s", "s", floor_s(decode(e)))


def bytes_per_token(e: Estimate) -> Node:
    """Bytes one decode step moves on one device for each token."""
    return derived("bytes_per_token", "mean(moved_bytes) / batch", "B", moved_bytes(decode(e)), batch(e))


def flops_per_token(e: Estimate) -> Node:
    """FLOPs one decode step does on one device for each token."""
    return derived("flops_per_token", "mean(flops) / batch", "FLOP", decode(e).stream("flops", "flops", "FLOP"), batch(e))


def intensity(e: Estimate) -> Node:
    """FLOPs per byte of a decode step."""
    run = decode(e)
    return derived("intensity", "mean(flops / moved_bytes)", "FLOP/B", run.stream("flops", "flops", "FLOP"), moved_bytes(run))


def ridge(e: Estimate) -> Node:
    """The intensity at which the part turns compute-bound, in the number type that does most of the work."""
    run = decode(e)
    flops: dict[str, float] = {}
    for op, _ in run.pairs:
        if op.rate != "none":
            flops[op.rate] = flops.get(op.rate, 0.0) + float(np.mean(op.flops))
    if not flops:
        raise Unsupported(f"{e.model.title} multiplies nothing, so there is no ridge point")
    return derived("ridge", "peak / bandwidth", "FLOP/B", run.peak(max(flops, key=lambda rate: flops[rate])), run.bandwidth)


def mfu(e: Estimate) -> Node:
    """Share of the peak that a decode step reaches."""
    run = decode(e)
    return derived("mfu", "mean(compute_s / step_s)", "", compute_s(run), step_s(run, "step_s"))


def mbu(e: Estimate) -> Node:
    """Share of the bandwidth that a decode step reaches."""
    run = decode(e)
    return derived("mbu", "mean(memory_s / step_s)", "", memory_s(run), step_s(run, "step_s"))


def decode_tokens_per_s(e: Estimate) -> Node:
    """Tokens per second of one sequence."""
    return derived("decode_tokens_per_s", "1 / tpot_s", "tok/s", tpot(e))


def output_tokens_per_s(e: Estimate) -> Node:
    """Tokens per second of all sequences."""
    return derived("output_tokens_per_s", "batch / tpot_s", "tok/s", batch(e), tpot(e))


def gpus(e: Estimate) -> Node:
    """Devices in all."""
    ways = [given(name, getattr(e.setting.parallel, name)) for name in ("tp", "pp", "dp", "cp")]
    return product("gpus", "", *ways)


def usd_per_million_tokens(e: Estimate) -> Node:
    """Price of a million output tokens."""
    found = price(e.hardware)
    if found is None or found.usd_per_h is None:
        raise Unsupported(f"{e.hardware.title}: no price per hour is listed")
    text = "gpus * usd_per_h / 3600 / output_tokens_per_s * 1e6"
    return derived("usd_per_million_tokens", text, "USD", gpus(e), price_per_h(found), output_tokens_per_s(e))


def joules_per_million_tokens(e: Estimate) -> Node:
    """Energy of a million output tokens at the rated power."""
    if e.hardware.power is None:
        raise Unsupported(f"{e.hardware.title}: no rated power is published")
    power = part_number("power", e.hardware.power, e.hardware)
    return derived("joules_per_million_tokens", "gpus * power / output_tokens_per_s * 1e6", "J", gpus(e), power, output_tokens_per_s(e))


QUANTITIES: dict[str, Callable[[Estimate], Node]] = {
    "tpot": tpot,
    "ttft": ttft,
    "prefill": prefill_time,
    "front_end": front_end,
    "e2e": e2e,
    "floor_tpot": floor_tpot,
    "floor_ttft": floor_ttft,
    "decode_tokens_per_s": decode_tokens_per_s,
    "output_tokens_per_s": output_tokens_per_s,
    "kv_bytes": lambda e: shapes.kv_per_token(e.model, e.precision),
    "sequence_bytes": lambda e: shapes.cache_bytes("sequence_bytes", e.model, e.precision, length(e)),
    "cache_bytes": lambda e: shapes.cache_bytes("cache_bytes", e.model, e.precision, length(e), batch(e)),
    "weights": lambda e: shapes.weights(e.model, e.precision),
    "params": lambda e: shapes.params(e.model),
    "active_params": lambda e: shapes.active_params(e.model),
    "bytes_per_token": bytes_per_token,
    "flops_per_token": flops_per_token,
    "max_batch": lambda e: room.max_batch(e.capacity),
    "kv_cache_tokens": lambda e: room.kv_cache_tokens(e.capacity),
    "intensity": intensity,
    "ridge": ridge,
    "mfu": mfu,
    "mbu": mbu,
    "usd_per_million_tokens": usd_per_million_tokens,
    "joules_per_million_tokens": joules_per_million_tokens,
}


def explain(quantity: str, estimate: Estimate) -> Node:
    """The tree of one number of an estimate: each node's value is its equation over its children, each leaf names its source.

    `quantity` is one of QUANTITIES, or a glossary key such as `tpot_s`. Raises NotFound for another word, Unsupported where the
    part's file lacks a number (a price, a rated power).

    >>> from inferplan.deployment import estimate
    >>> from inferplan.names import hardware, model, precision
    >>> found = explain("kv_bytes", estimate(model("llama-2-7b"), hardware("a100"), precision("fp16")))
    >>> found.value, found.equation
    (524288.0, '2 * layers * kv_heads * head_dim * bytes_per_element')
    """
    key = quantity.strip().lower().replace("-", "_")
    key = ALIASES.get(key, key.removesuffix("_s") if key.removesuffix("_s") in QUANTITIES else key)
    if key not in QUANTITIES:
        hint = near_misses(key, QUANTITIES) or f"; there are {', '.join(QUANTITIES)}"
        raise NotFound(f"no quantity called '{shown(quantity)}'{hint}")
    return QUANTITIES[key](estimate)


ALIASES = {
    "kv_bytes_per_token": "kv_bytes",
    "weight_bytes": "weights",
    "max_sequences": "max_batch",
    "floor_s": "floor_tpot",
}
