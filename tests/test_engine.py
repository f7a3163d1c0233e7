"""Properties of a pass: what must hold for every model, part, load and split."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import inferplan as ip
from inferplan.engine.segment import Segment
from inferplan.engine.step import Setting, Step, chunked, decode, mixed, prefill, step, verify
from inferplan.specs.catalog import names
from inferplan.specs.parallel import Parallel

H100, A100 = ip.hardware("h100"), ip.hardware("a100")
BF16, FP8 = ip.precision("bf16"), ip.precision("fp8")
SOME = (
    "llama-3.1-8b",
    "gpt-oss-20b",
    "deepseek-v3",
    "qwen3-30b-a3b",
    "gemma-3-27b",
    "qwen3.5-27b",
    "nemotron-h-56b",
    "llama-4-scout",
    "mamba-2.8b",
)
MODELS = {name: ip.model(name) for name in SOME}
models = st.sampled_from(SOME)
tokens = st.integers(1, 50_000)
batches = st.integers(1, 512)


def number(value: object) -> float:
    return float(np.asarray(value))


@settings(max_examples=60, deadline=None)
@given(models, batches, tokens)
def test_no_pass_beats_its_roofs(name: str, batch: int, context: int) -> None:
    found = decode(MODELS[name], H100, FP8, batch=batch, context=context)
    assert number(found.floor_s) >= number(found.bytes) / H100.bandwidth_bytes_per_s * (1 - 1e-12)
    assert number(found.floor_s) >= number(found.flops) / H100.peak_flops_per_s("fp8") * (1 - 1e-12)


@settings(max_examples=60, deadline=None)
@given(models, batches, tokens)
def test_more_work_is_never_faster(name: str, batch: int, context: int) -> None:
    model = MODELS[name]
    here = number(decode(model, H100, BF16, batch=batch, context=context).floor_s)
    assert number(decode(model, H100, BF16, batch=batch + 1, context=context).floor_s) >= here
    assert number(decode(model, H100, BF16, batch=batch, context=context + 1).floor_s) >= here
    assert number(decode(model, A100, BF16, batch=batch, context=context).floor_s) >= here


@settings(max_examples=40, deadline=None)
@given(models, st.integers(2, 4000), st.integers(1, 4))
def test_chunks_do_the_work_of_the_prompt(name: str, prompt: int, pieces: int) -> None:
    model = MODELS[name]
    cuts = np.unique(np.linspace(0, prompt, pieces + 1).astype(int))
    parts = [step(model, H100, BF16, Segment(1, b - a, a, logits=float(b == prompt))) for a, b in zip(cuts, cuts[1:], strict=False)]
    whole = number(prefill(model, H100, BF16, input_tokens=prompt).flops)
    found = sum(number(p.flops) for p in parts)
    if any(m.kind == "mla" for block in model.blocks.values() for m in block.mixers):
        assert found >= whole * (1 - 1e-12), "a chunk may pay for expanding or absorbing the latent"
    else:
        assert found == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize("name", SOME)
def test_a_mixed_batch_shares_the_weights(name: str) -> None:
    model = MODELS[name]
    both = mixed(model, H100, BF16, batch=8, context=1000, chunk=512)
    decodes, prompt = decode(model, H100, BF16, batch=8, context=1000), chunked(model, H100, BF16, chunk=512, cached=0)
    assert number(both.flops) == pytest.approx(number(decodes.flops) + number(prompt.flops), rel=1e-9)
    assert number(both.kv_bytes) == pytest.approx(number(decodes.kv_bytes) + number(prompt.kv_bytes), rel=1e-9)
    assert number(both.weight_bytes) < number(decodes.weight_bytes) + number(prompt.weight_bytes)


@pytest.mark.parametrize("name", SOME)
def test_verify_of_no_draft_is_decode(name: str) -> None:
    model = MODELS[name]
    one, same = decode(model, H100, BF16, batch=4, context=777), verify(model, H100, BF16, batch=4, context=777, draft=0)
    assert number(one.flops) == number(same.flops)
    assert number(one.bytes) == number(same.bytes)


@pytest.mark.parametrize("name", SOME)
def test_one_device_says_nothing_over_the_wire(name: str) -> None:
    assert all(op.wire is None for op in decode(MODELS[name], H100, BF16, context=100).ops)
    assert number(decode(MODELS[name], H100, BF16, context=100, setting=Setting(Parallel(tp=2))).wire_bytes) > 0


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize(
    "split", [Parallel(tp=2), Parallel(tp=8), Parallel(tp=4, ep=4), Parallel(tp=1, dp=8, ep=8), Parallel(tp=2, dp=4, ep=8)]
)
def test_ranks_together_do_at_least_the_work(name: str, split: Parallel) -> None:
    """Nothing gets lost in a split: all ranks together do the FLOPs of one device, and hold at least its weights and caches."""
    one, many = (decode(MODELS[name], H100, BF16, batch=64, context=2000, setting=Setting(p)) for p in (Parallel(), split))
    gpus = number(split.gpus)
    assert number(many.flops) * gpus >= number(one.flops) * (1 - 1e-9)
    assert number(many.weight_bytes) * gpus >= number(one.weight_bytes) * (1 - 1e-9)
    assert number(many.kv_bytes) * gpus >= number(one.kv_bytes) * (1 - 1e-9)
    assert number(many.bytes) <= number(one.bytes) * (1 + 1e-9)


def test_kv_heads_replicate_beyond_their_number() -> None:
    model = MODELS["llama-3.1-8b"]
    kv = [number(decode(model, H100, BF16, batch=8, context=4000, setting=Setting(Parallel(tp=tp))).kv_bytes) for tp in (1, 2, 4, 8, 16)]
    assert kv[0] == pytest.approx(8 * kv[3], rel=1e-9)
    assert kv[4] == pytest.approx(kv[3], rel=1e-9)


def test_latents_are_on_every_rank() -> None:
    model = MODELS["deepseek-v3"]
    one, eight = (number(decode(model, H100, BF16, batch=8, context=4000, setting=Setting(Parallel(tp=tp))).kv_bytes) for tp in (1, 8))
    assert eight == pytest.approx(one, rel=1e-9)
    dealt = number(decode(model, H100, BF16, batch=8, context=4000, setting=Setting(Parallel(tp=8, dcp=8))).kv_bytes)
    assert dealt == pytest.approx(one / 8, rel=1e-9)


def test_halving_the_width_halves_the_bytes() -> None:
    model = MODELS["llama-3.1-8b"]
    fp32, bf16 = (number(decode(model, H100, ip.precision(p), context=2000).bytes) for p in ("fp32", "bf16"))
    assert fp32 == pytest.approx(2 * bf16, rel=1e-3)


@pytest.mark.parametrize("name", SOME)
def test_shares_add_up(name: str) -> None:
    found = decode(MODELS[name], H100, FP8, batch=3, context=500)
    for field in ("part", "kind", "name"):
        flops, moved = zip(*found.by(field).values(), strict=True)
        assert sum(map(number, flops)) == pytest.approx(number(found.flops), rel=1e-9)
        assert sum(map(number, moved)) == pytest.approx(number(found.bytes), rel=1e-9)


@pytest.mark.parametrize("name", SOME)
def test_vector_equals_scalar_over_batch_context_and_split(name: str) -> None:
    model = MODELS[name]
    b, c, tp = np.array([1.0, 7.0, 300.0])[:, None, None], np.array([5.0, 3000.0])[None, :, None], np.array([1.0, 4.0])[None, None, :]
    grid = decode(model, H100, FP8, batch=b, context=c, setting=Setting(Parallel(tp=tp)))
    for quantity in ("flops", "bytes", "floor_s"):
        whole = np.broadcast_to(getattr(grid, quantity), (3, 2, 2))
        for i, j, k in np.ndindex(3, 2, 2):
            one = decode(
                model, H100, FP8, batch=float(b[i, 0, 0]), context=float(c[0, j, 0]), setting=Setting(Parallel(tp=float(tp[0, 0, k])))
            )
            assert whole[i, j, k] == pytest.approx(number(getattr(one, quantity)), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", names("models"))
def test_every_model_on_every_part(name: str) -> None:
    """No warning and no NaN; a part without a bandwidth or a rate is refused, never guessed."""
    model = ip.model(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ops = decode(model, H100, BF16, batch=np.array([1.0, 64.0]), context=np.array([[1.0], [5000.0]])).ops
        for part in PARTS:
            try:
                floor = np.asarray(Step(ops, part, Setting()).floor_s)
            except ip.Unsupported:
                continue
            assert np.all(np.isfinite(floor)) and np.all(floor > 0), part.name  # noqa: PT018


PARTS = [ip.hardware(name) for name in names("hardware")]


def test_the_catalog_is_wide() -> None:
    assert len(PARTS) >= 163
    assert len(names("models")) >= 120
