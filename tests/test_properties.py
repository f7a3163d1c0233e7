"""What must hold for any model of the catalog on any part, in any precision, split and load: bounds, order, conservation, round trips."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import yaml
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import inferplan as ip
from inferplan.deployment import batches, estimate
from inferplan.engine.cache_bytes import sequence_bytes
from inferplan.engine.segment import Segment
from inferplan.engine.step import Setting, Step, chunked, decode, mixed, prefill, step, verify
from inferplan.errors import Unsupported
from inferplan.memory.fit import fit
from inferplan.memory.stage_weights import stage_weight_bytes
from inferplan.memory.weights import placed_bytes, weight_bytes
from inferplan.ops.moe import distinct_experts
from inferplan.report.estimates import operator_record, record
from inferplan.roofline.efficiency import Efficiency
from inferplan.specs.catalog import names
from inferplan.specs.hardware import Accelerator
from inferplan.specs.mixers import Attention
from inferplan.specs.model import Model
from inferplan.specs.order import expand, shorten
from inferplan.specs.parallel import ONE, Parallel
from inferplan.specs.precision import Precision
from inferplan.specs.write import model_yaml
from inferplan.units import exact, parse, show

MODELS, PARTS = names("models"), names("hardware")
FORMATS = ("bf16", "fp8", "fp8-block", "w4a16", "awq", "nvfp4", "int8", "q4_k_m", "q8_0")
DEFAULT = Efficiency.load("default")
TIGHT = 1 - 1e-12

models, parts, formats = st.sampled_from(MODELS), st.sampled_from(PARTS), st.sampled_from(FORMATS)
batch_sizes = st.one_of(st.integers(1, 16), st.integers(1, 4096))
lengths = st.one_of(st.integers(1, 512), st.integers(1, 200_000))
splits = st.sampled_from(
    [ONE, Parallel(tp=2), Parallel(tp=8), Parallel(pp=2), Parallel(dp=4, ep=4), Parallel(tp=2, dp=4, ep=8), Parallel(tp=4, ep=2)]
)
calibrations = st.sampled_from([Efficiency.ideal(), DEFAULT])


@st.composite
def loads(draw: st.DrawFn) -> tuple[Segment, ...]:
    """One to three segments: decodes, prompts, chunks and verifies in any mixture."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        new = draw(st.one_of(st.just(1), st.integers(2, 8), st.integers(9, 20_000)))
        logits = draw(st.sampled_from([0, 1, new]))
        found.append(Segment(draw(batch_sizes), new, draw(st.one_of(st.just(0), lengths)), logits=logits))
    return tuple(found)


def setting_of(split: Parallel, efficiency: Efficiency) -> Setting:
    """How a pass is run, with InfiniBand where a part has no links of its own."""
    return Setting(split, efficiency, network="ib-ndr")


def number(value: object) -> float:
    return float(np.asarray(value))


@cache
def model_of(name: str) -> Model:
    return ip.model(name)


@cache
def part_of(name: str) -> Accelerator:
    return ip.hardware(name)


@cache
def precision_of(name: str) -> Precision:
    return ip.precision(name)


def passed(model: str, part: Accelerator, precision: str, setting: Setting, *segments: Segment) -> Step:
    """A pass, or none where the part lacks a rate or a bandwidth, or the model a format."""
    try:
        found = step(model_of(model), part, precision_of(precision), *segments, setting=setting)
        assert number(found.time_s) >= number(found.floor_s) >= 0
    except Unsupported:
        assume(False)
    return found


def varied(part: Accelerator, *, bandwidth: float = 1.0, peak: float = 1.0) -> Accelerator:
    """The same part with its bandwidth or all its rates times a factor."""
    memory = part.memory
    if memory.bandwidth is not None:
        memory = memory.model_copy(update={"bandwidth": memory.bandwidth.model_copy(update={"value": memory.bandwidth.value * bandwidth})})
    rates = {n: q.model_copy(update={"value": q.value * peak}) for n, q in part.peak if q is not None}
    vector = part.vector.model_copy(update={"value": part.vector.value * peak}) if part.vector is not None else None
    return part.model_copy(update={"memory": memory, "peak": part.peak.model_copy(update=rates), "vector": vector})


# bounds


@settings(max_examples=60, deadline=None)
@given(models, parts, formats, splits, calibrations, loads())
def test_no_time_beats_the_roofs(model, part, precision, split, efficiency, segments):
    found = passed(model, part_of(part), precision, setting_of(split, efficiency), *segments)
    rates = {op.rate for op in found.ops if op.rate != "none"}
    fastest = max((found.hardware.peak_flops_per_s(r) for r in rates), default=np.inf)
    for time in (number(found.floor_s), number(found.time_s)):
        assert np.isfinite(time)
        assert time >= number(found.bytes) / found.hardware.bandwidth_bytes_per_s * TIGHT
        assert time >= number(found.compute_s) * TIGHT
        assert time >= number(found.flops) / fastest * TIGHT
    assert number(found.time_s) >= number(found.floor_s)
    assert 0 <= number(found.mfu) <= 1 / TIGHT
    assert 0 <= number(found.mbu) <= 1 / TIGHT


# order


@settings(max_examples=60, deadline=None)
@given(models, parts, formats, splits, calibrations, batch_sizes, lengths.map(lambda n: n + 1), st.integers(1, 64), st.integers(1, 5000))
def test_more_requests_and_longer_ones_are_never_faster(model, part, precision, split, efficiency, batch, context, more, longer):
    setting = setting_of(split, efficiency)

    def times(b, c):
        found = passed(model, part_of(part), precision, setting, Segment(b, 1, c - 1))
        return number(found.floor_s), number(found.time_s)

    here = times(batch, context)
    for other in (times(batch + more, context), times(batch, context + longer)):
        assert other[0] >= here[0] * TIGHT
        assert other[1] >= here[1] * TIGHT


@settings(max_examples=60, deadline=None)
@given(models, parts, formats, calibrations, loads(), st.floats(1.01, 20))
def test_a_faster_part_is_never_slower(model, part, precision, efficiency, segments, factor):
    setting = Setting(ONE, efficiency)
    here = passed(model, part_of(part), precision, setting, *segments)
    for better in (varied(part_of(part), bandwidth=factor), varied(part_of(part), peak=factor)):
        other = passed(model, better, precision, setting, *segments)
        assert number(other.floor_s) <= number(here.floor_s) / TIGHT
        assert number(other.time_s) <= number(here.time_s) / TIGHT
    both = passed(model, varied(part_of(part), bandwidth=factor, peak=factor), precision, setting, *segments)
    assert number(both.floor_s) == pytest.approx(number(here.floor_s) / factor, rel=1e-9)


# conservation


def latent(model: Model) -> bool:
    return any(m.kind in ("mla", "compressed") for block in model.blocks.values() for m in block.mixers)


GENERATING = [n for n in MODELS if model_of(n).generates]


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(GENERATING), st.lists(st.integers(1, 5000), min_size=2, max_size=5))
def test_chunks_of_a_prompt_do_its_work(name, pieces):
    """Heads aside, a prompt in pieces has the FLOPs of the whole; latents may be expanded anew for each piece, which costs more."""
    model, part, bf16 = model_of(name), part_of("h100"), precision_of("bf16")
    ends = np.cumsum(pieces)
    parts = [step(model, part, bf16, Segment(1, n, int(end - n), logits=0)) for n, end in zip(pieces, ends, strict=True)]
    whole = number(step(model, part, bf16, Segment(1, int(ends[-1]), logits=0)).flops)
    found = sum(number(p.flops) for p in parts)
    if latent(model):
        assert found >= whole * (1 - 1e-9)
    else:
        assert found == pytest.approx(whole, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(models, st.sampled_from(["fp8", "int8"]))
def test_half_the_width_is_half_the_bytes(name, narrow):
    """Of every matrix that an 8-bit format without group scales quantises, next to those that it leaves alone."""
    model, wide = model_of(name), precision_of("bf16")
    try:
        half = precision_of(narrow)
        found = placed_bytes(model, half)
    except Unsupported:
        assume(False)
    for (_, layers, w, size), (*_, before) in zip(found, placed_bytes(model, wide), strict=True):
        kept = half.format_of(w.part)
        if w.use in ("matmul", "expert") and kept.quantised:
            copies = w.copies * max(1, len(layers))
            scales = copies * (kept.matrix_bits(w.rows, w.cols) - kept.payload_bits(w.rows, w.cols)) / 8
            biases = copies * w.bias * 2
            assert size - scales - biases == pytest.approx((before - biases) / 2, rel=1e-12), w.name
            assert scales <= copies * 4 * (w.rows + w.cols)
        elif not kept.quantised:
            assert size == before, w.name


@settings(max_examples=60, deadline=None)
@given(models, formats, loads())
def test_one_device_sends_nothing(model, precision, segments):
    found = passed(model, part_of("h100"), precision, Setting(), *segments)
    assert all(op.wire is None for op in found.ops)
    assert number(found.wire_bytes) == 0


def even(model: Model, ways: int) -> bool:
    """Whether attention, feed-forward width, experts and vocabulary all divide by `ways`."""
    for block in model.blocks.values():
        for m in block.mixers:
            if not isinstance(m, Attention) or m.indexer or m.query_experts or m.keys != "own" or m.heads % ways or m.kv_heads % ways:
                return False
        for ffn in block.ffns:
            if ffn.width % ways or getattr(ffn, "latent", None) or (getattr(ffn, "shared", None) and ffn.shared.width % ways):
                return False
    return (model.head_vocab or model.vocab) % ways == 0


EVEN = [n for n in GENERATING if even(model_of(n), 4)]
SHARED = ("matmul", "experts", "head", "attention_decode", "attention_prefill")


@settings(max_examples=60, deadline=None)
@given(models, formats, st.sampled_from([Parallel(tp=2), Parallel(tp=4), Parallel(tp=4, ep=2), Parallel(tp=8, ep=8)]), loads())
def test_ranks_together_lose_nothing(model, precision, split, segments):
    one = passed(model, part_of("h100"), precision, Setting(), *segments)
    many = passed(model, part_of("h100"), precision, Setting(split), *segments)
    ranks = number(split.tp)
    assert number(many.flops) * ranks >= number(one.flops) * (1 - 1e-9)
    assert number(many.weight_bytes) * ranks >= number(one.weight_bytes) * (1 - 1e-9)
    assert number(many.kv_bytes) * ranks >= number(one.kv_bytes) * (1 - 1e-9)
    spec, kept = model_of(model), precision_of(precision)
    assert number(stage_weight_bytes(spec, kept, split)[0]) * ranks >= weight_bytes(spec, kept) * (1 - 1e-9)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(EVEN), formats, st.sampled_from([2, 4]), loads())
def test_ranks_share_evenly_what_divides(name, precision, ways, segments):
    """Products, their weights and the cache come out at exactly a rank's share; what is elementwise or held whole is left out."""
    one = passed(name, part_of("h100"), precision, Setting(), *segments)
    many = passed(name, part_of("h100"), precision, Setting(Parallel(tp=ways)), *segments)
    for whole, part in zip(one.ops, [op for op in many.ops if op.kind != "collective"], strict=True):
        if whole.kind in SHARED and whole.part not in ("router", "vision", "other"):
            assert number(part.flops) * ways == pytest.approx(number(whole.flops), rel=1e-9), whole.name
            assert number(part.weight_bytes) * ways == pytest.approx(number(whole.weight_bytes), rel=1e-9), whole.name
            assert number(part.kv_bytes) * ways == pytest.approx(number(whole.kv_bytes), rel=1e-9), whole.name


# shares


@settings(max_examples=60, deadline=None)
@given(models, parts, formats, splits, loads())
def test_parts_of_a_pass_add_up(model, part, precision, split, segments):
    found = passed(model, part_of(part), precision, setting_of(split, DEFAULT), *segments)
    for field in ("part", "kind", "name"):
        flops, moved = zip(*found.by(field).values(), strict=True)
        assert sum(map(number, flops)) == pytest.approx(number(found.flops), rel=1e-9)
        assert sum(map(number, moved)) == pytest.approx(number(found.bytes), rel=1e-9)
    pieces = sum(row["time_s"] for row in operator_record(found, "pass")) + number(found.overhead_s)
    assert number(found.time_s) == pytest.approx(max(pieces, number(found.floor_s)), rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(models, formats, st.integers(1, 32))
def test_parts_of_the_memory_add_up(model, precision, batch):
    try:
        found = record(estimate(model_of(model), part_of("b200"), precision_of(precision), batch=batch))
    except Unsupported:
        assume(False)
    assert sum(found["weight_bytes_by_part"].values()) == pytest.approx(found["weight_bytes"], rel=1e-12)
    budget = found["utilization"] * found["total_bytes"]
    taken = [found[k] for k in ("weight_bytes_per_gpu", "activation_bytes", "non_torch_bytes", "graph_bytes", "kv_cache_bytes_per_gpu")]
    assert sum(taken) == pytest.approx(budget, rel=1e-9), "the newest release counts graphs in its budget"


# round trips

BASES = ["B", "B/s", "FLOP", "FLOP/s", "s", "W", "J", "Hz", "USD", "USD/h"]
positive = st.floats(min_value=1e-12, max_value=1e24, allow_nan=False, allow_infinity=False)


@given(positive, st.sampled_from(BASES), st.integers(3, 15))
def test_what_is_shown_is_read(value, unit, digits):
    assert parse(exact(value, unit), unit) == value
    text = show(value, unit, digits=digits).replace(",", "")
    assert parse(text, unit) == pytest.approx(value, rel=10.0 ** (1 - digits))


letters = st.sampled_from(["a", "b", "c"])


@given(st.lists(letters, min_size=1, max_size=40))
@example(["a", "a", "b"] * 8)
def test_an_order_of_layers_is_read_as_it_was_written(order):
    assert expand(shorten(order)) == tuple(order)


@st.composite
def stacks(draw: st.DrawFn) -> Model:
    """A model of random shapes: up to three blocks of attention, latents or recurrences with dense or expert layers."""
    hidden, blocks = draw(st.integers(8, 4096)), {}
    for name in draw(st.lists(letters, min_size=1, max_size=3, unique=True)):
        heads, kv = draw(st.integers(1, 8)), draw(st.integers(1, 8))
        mixer = draw(
            st.sampled_from(
                [
                    {"kind": "attention", "heads": heads * kv, "kv_heads": kv, "head_dim": 8, "bias": draw(st.sampled_from(["", "qkv"]))},
                    {"kind": "attention", "heads": heads * kv, "kv_heads": kv, "head_dim": 16, "window": draw(st.integers(1, 4096))},
                    {"kind": "mla", "heads": heads, "kv_rank": 32, "nope": 16, "rope": 8, "v": 16},
                ]
            )
        )
        width = draw(st.integers(1, 10_000))
        ffn = draw(
            st.sampled_from(
                [{"kind": "dense", "width": width}, {"kind": "dense", "width": width, "gated": False}]
                + [{"kind": "experts", "experts": 16, "top_k": draw(st.integers(1, 16)), "width": width, "shared": {"width": width}}]
            )
        )
        blocks[name] = {"mixer": mixer, "ffn": ffn}
    order = draw(st.lists(st.sampled_from(sorted(blocks)), min_size=1, max_size=24))
    return Model.from_mapping(
        {
            "name": "m", "title": draw(st.text("abc: #'\"-", min_size=1, max_size=12).filter(str.strip)), "hidden": hidden,
            "vocab": draw(st.integers(1, 300_000)), "head": draw(st.sampled_from(["own", "tied"])), "layers": shorten(order),
            "blocks": {n: b for n, b in blocks.items() if n in order}, "context": draw(st.integers(1, 10**6)),
        }
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(stacks())
def test_a_spec_is_read_as_it_was_written(model):
    text = model_yaml(model)
    again = Model.from_mapping(yaml.safe_load(text))
    assert (again.params, again.order, again.blocks) == (model.params, model.order, model.blocks)
    assert model_yaml(again) == text


@settings(max_examples=40, deadline=None)
@given(models)
def test_a_model_of_the_catalog_is_read_as_it_was_written(name):
    model = model_of(name)
    again = Model.from_mapping(yaml.safe_load(model_yaml(model)))
    assert again == model.model_copy(update={"total": model.params})


@pytest.mark.parametrize("text", [*FORMATS, "body=fp8,attention=bf16", "w8a16", "nf4", "gptq-int4-g128"])
def test_a_precision_is_found_by_its_own_name(text):
    found = precision_of(text)
    assert Precision.named(found.name, kv=found.kv.name) == found


# one point is the same as many

ARRAYS = {
    "batch": st.lists(batch_sizes, min_size=1, max_size=3),
    "tokens": st.lists(st.integers(9, 50_000), min_size=1, max_size=3),
    "tp": st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=2),
}


def equal(whole: object, shape: tuple[int, ...], one) -> None:
    """Every point of an array against the same call on that point alone."""
    wide = np.broadcast_to(np.asarray(whole), shape)
    for at in np.ndindex(shape):
        assert wide[at] == pytest.approx(number(one(at)), rel=1e-12, abs=0), at


FACES = {
    "prefill": lambda of, b, n, s: prefill(*of, input_tokens=n, batch=b, setting=s),
    "cached": lambda of, b, n, s: prefill(*of, input_tokens=n + 500, batch=b, cached=500, setting=s),
    "chunked": lambda of, b, n, s: chunked(*of, chunk=n, cached=1000, batch=b, setting=s),
    "decode": lambda of, b, n, s: decode(*of, context=n, batch=b, setting=s),
    "verify": lambda of, b, n, s: verify(*of, context=n, draft=3, batch=b, setting=s),
    "mixed": lambda of, b, n, s: mixed(*of, batch=b, context=n, chunk=512, setting=s),
}


@settings(max_examples=30, deadline=None)
@given(models, formats, st.sampled_from(sorted(FACES)), calibrations, st.fixed_dictionaries(ARRAYS))
def test_faces_of_a_pass_on_arrays_and_on_points(model, precision, face, efficiency, axes):
    of = model_of(model), part_of("h100"), precision_of(precision)
    b, n, tp = np.array(axes["batch"])[:, None, None], np.array(axes["tokens"])[:, None], np.array(axes["tp"])

    def run(b, n, tp):
        return FACES[face](of, b, n, Setting(Parallel(tp=tp), efficiency))

    try:
        whole = run(b, n, tp)
        assert np.all(np.isfinite(whole.time_s))
    except Unsupported:
        assume(False)
    shape = np.broadcast_shapes(b.shape, n.shape, tp.shape)
    for at in np.ndindex(shape):
        one = run(b[at[0], 0, 0], n[at[1], 0], tp[at[2]])
        for quantity in ("flops", "bytes", "floor_s", "time_s", "mfu", "mbu"):
            found = np.broadcast_to(np.asarray(getattr(whole, quantity)), shape)[at]
            assert found == pytest.approx(number(getattr(one, quantity)), rel=1e-12, abs=0), (quantity, at)


@settings(max_examples=40, deadline=None)
@given(models, formats, st.lists(lengths, min_size=2, max_size=4), st.lists(batch_sizes, min_size=1, max_size=3))
def test_caches_and_fits_on_arrays_and_on_points(model, precision, tokens, sizes):
    spec, kept = model_of(model), precision_of(precision)
    n, b = np.array(tokens), np.array(sizes)[:, None]
    try:
        whole = sequence_bytes(spec, kept, n)
        weight_bytes(spec, kept)
    except Unsupported:
        assume(False)
    equal(whole, n.shape, lambda at: sequence_bytes(spec, kept, tokens[at[0]]))
    held = fit(spec, part_of("h200"), kept, tokens=n, batch=b)
    for quantity in ("needed_bytes", "left_bytes", "fits", "sequences"):
        equal(
            getattr(held, quantity), np.broadcast_shapes(n.shape, b.shape),
            lambda at, q=quantity: getattr(fit(spec, part_of("h200"), kept, tokens=tokens[at[1]], batch=sizes[at[0]]), q),
        )  # fmt: skip


@given(st.integers(1, 512), st.lists(st.integers(0, 10_000), min_size=1, max_size=5), st.data())
def test_experts_touched_on_arrays_and_on_points(experts, tokens, data):
    top_k = data.draw(st.integers(1, experts))
    whole = np.asarray(distinct_experts(experts, top_k, np.array(tokens)))
    equal(whole, whole.shape, lambda at: distinct_experts(experts, top_k, tokens[at[0]]))
    assert np.all(whole <= experts)
    assert np.all(whole >= np.minimum(np.array(tokens), 1) * top_k * (1 - 1e-12))


@settings(max_examples=20, deadline=None)
@given(models, formats, st.lists(st.integers(1, 256), min_size=2, max_size=4))
def test_batches_are_single_ones(model, precision, sizes):
    try:
        e = estimate(model_of(model), part_of("h200"), precision_of(precision), output_tokens=2)
        found = batches(e, np.array(sizes))
    except Unsupported:
        assume(False)
    for i, size in enumerate(sizes):
        one = batches(e, np.array([size]))
        for quantity in ("ttft_s", "tpot_s", "floor_tpot_s", "mfu", "mbu", "output_tokens_per_s"):
            assert getattr(found, quantity)[i] == pytest.approx(getattr(one, quantity)[0], rel=1e-12), quantity


def test_one_device_in_a_sweep_of_splits_sends_nothing():
    tp = np.array([1, 2])
    found = decode(model_of("llama-3.1-8b"), part_of("h100"), precision_of("bf16"), context=100, setting=Setting(Parallel(tp=tp)))
    assert np.asarray(found.wire_bytes)[0] == 0 < np.asarray(found.wire_bytes)[1]
