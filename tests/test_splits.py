"""Context parallelism, pipelines, overlap, uneven experts and images: hand counts and what must hold."""

import numpy as np
import pytest

from inferplan import names
from inferplan.deployment import estimate
from inferplan.engine.operators import operators
from inferplan.engine.segment import Segment
from inferplan.engine.step import Setting, Step, chunked, decode, prefill
from inferplan.errors import SpecError, Unsupported
from inferplan.memory.capacity import capacity
from inferplan.ops.moe import distinct_experts, popularity, touched_experts
from inferplan.roofline.efficiency import Efficiency
from inferplan.specs.parallel import Parallel

LLAMA, DEEPSEEK, MIXTRAL = names.model("llama-3.1-70b"), names.model("deepseek-v3"), names.model("qwen3-30b-a3b")
H100 = names.hardware("h100")
BF16 = names.precision("bf16")


def setting(**ways: int) -> Setting:
    return Setting(Parallel(**ways), Efficiency.default())


def wires(step: Step, end: str) -> list[tuple[str, float, float, float]]:
    return [(op.wire.kind, float(op.wire.bytes), float(op.wire.ranks), op.count) for op in step.ops if op.wire and op.name.endswith(end)]


def test_context_ranks_share_a_prompt() -> None:
    """Four ranks do a quarter of the products each; weights are read whole on each; logits belong to one."""
    one, four = (prefill(LLAMA, H100, BF16, input_tokens=32768, setting=setting(tp=8, cp=cp)) for cp in (1, 4))
    heads = sum(float(op.flops) for op in one.ops if op.name == "head")
    assert float(four.flops) == pytest.approx((float(one.flops) - heads) / 4 + heads, rel=1e-12)
    assert sum(float(op.weight_bytes) for op in four.ops if op.kind == "matmul") == pytest.approx(
        sum(float(op.weight_bytes) for op in one.ops if op.kind == "matmul"), rel=1e-12
    )
    assert float(four.kv_bytes) == pytest.approx(float(one.kv_bytes) / 4, rel=1e-12)


def test_context_ranks_gather_keys_and_values() -> None:
    """8 KV heads over tp 8: each rank holds a quarter of 32,768 tokens x 2 x 128 x 2 B of one head in each of 80 layers."""
    step = prefill(LLAMA, H100, BF16, input_tokens=32768, setting=setting(tp=8, cp=4))
    assert wires(step, "context.gather") == [("all_gather", 32768 / 4 * 2 * 128 * 2, 4, 80)]


def test_a_single_token_is_on_every_context_rank() -> None:
    """A decode step reads a part of the cache on each rank and adds up the results of 64 heads x 128 over tp 8."""
    one, two = (decode(LLAMA, H100, BF16, context=5000, batch=3, setting=setting(tp=8, cp=cp)) for cp in (1, 2))
    assert float(two.kv_bytes) == pytest.approx(float(one.kv_bytes) / 2, rel=1e-12)
    assert float(two.weight_bytes) == pytest.approx(float(one.weight_bytes), rel=1e-12)
    scores = [sum(float(op.flops) for op in step.ops if op.name.endswith("scores")) for step in (one, two)]
    assert scores[1] == pytest.approx(scores[0] / 2, rel=1e-12)
    assert wires(two, "context.reduce") == [("all_reduce", 2 * 3 * 64 * 128 / 8, 2, 80)]
    assert not wires(two, "context.gather")


def test_decode_context_parallel_of_a_latent() -> None:
    """The latent lies once per group: queries of 128 heads x 576 are gathered, results of 128 x 512 scattered."""
    one, eight = (decode(DEEPSEEK, H100, BF16, context=5000, batch=2, setting=setting(tp=8, dcp=dcp)) for dcp in (1, 8))
    assert float(eight.kv_bytes) == pytest.approx(float(one.kv_bytes) / 8, rel=1e-12)
    layers = len(DEEPSEEK.order)
    assert sum(w[3] for w in wires(eight, "context.query")) == layers
    assert wires(eight, "context.query")[0][:3] == ("all_gather", 2 * 2 * 128 * 576 / 8, 8)
    assert wires(eight, "context.scatter")[0][:3] == ("reduce_scatter", 2 * 2 * 128 * 512 / 8 * 8, 8)


def test_context_ranks_hold_more_tokens() -> None:
    one, two = (capacity(LLAMA, H100, BF16, Parallel(tp=8, cp=cp), max_model_len=32768) for cp in (1, 2))
    assert float(two.kv_cache_tokens) == pytest.approx(2 * float(one.kv_cache_tokens), rel=1e-3)
    with pytest.raises(Unsupported, match="does not deal out cached tokens"):
        capacity(LLAMA, H100, BF16, Parallel(tp=8, cp=2), "sglang", max_model_len=32768)


def test_splits_of_context_broadcast() -> None:
    """cp, dcp, tp, batch and the prompt's length in one call as one by one."""
    tokens, cp = np.array([1.0, 7.0, 8.0, 9.0, 5000.0])[:, None], np.array([1, 2, 4])
    whole = prefill(LLAMA, H100, BF16, input_tokens=tokens, batch=2, setting=setting(tp=8, cp=cp))
    for i, n in enumerate(tokens[:, 0]):
        for j, ways in enumerate(cp):
            one = prefill(LLAMA, H100, BF16, input_tokens=n, batch=2, setting=setting(tp=8, cp=int(ways)))
            assert np.broadcast_to(whole.time_s, (5, 3))[i, j] == pytest.approx(float(one.time_s), rel=1e-12)
            assert np.broadcast_to(whole.floor_s, (5, 3))[i, j] == pytest.approx(float(one.floor_s), rel=1e-12)


def test_context_parallelism_is_refused_where_it_is_not_counted() -> None:
    for name in ("mamba-2.8b", "bert-base"):
        with pytest.raises(Unsupported, match="decoders of attention alone"):
            estimate(names.model(name), H100, BF16, parallel=Parallel(cp=2))
    with pytest.raises(Unsupported, match="does not deal out"):
        capacity(LLAMA, H100, BF16, Parallel(tp=2, dcp=2), "tgi", max_model_len=4096)


def test_dcp_must_divide_tp() -> None:
    with pytest.raises(SpecError, match="must divide tp"):
        estimate(LLAMA, H100, BF16, parallel=Parallel(tp=4, dcp=3))


def test_a_pipeline_fills_with_microbatches() -> None:
    """One prompt gains nothing from stages; of 8 steps through 4 stages each takes its own time, 11 / 4 of it in all."""
    one = estimate(LLAMA, H100, BF16, parallel=Parallel(tp=2, pp=4), input_tokens=1000)
    assert one.microbatches == 1
    assert one.prefill_s == pytest.approx(float(one.prefill.time_s), rel=1e-12)
    many = estimate(LLAMA, H100, BF16, parallel=Parallel(tp=2, pp=4), input_tokens=8192, batch=8, max_num_batched_tokens=8192)
    assert many.microbatches == 8
    step = prefill(LLAMA, H100, BF16, input_tokens=8192, setting=many.setting)
    assert many.prefill_s == pytest.approx(float(step.time_s) * 11 / 4, rel=1e-12)
    assert many.floor_ttft_s == pytest.approx(float(many.prefill.floor_s) / 4, rel=1e-12)


def test_prompts_take_the_steps_of_the_engine() -> None:
    """Small steps read the weights again and again; a prompt longer than a step is done in chunks over what is already there."""
    small, large = (estimate(LLAMA, H100, BF16, parallel=Parallel(tp=4), batch=16, max_num_batched_tokens=n) for n in (512, 16384))
    assert (small.microbatches, large.microbatches) == (32, 1)
    assert small.prefill_s > large.prefill_s
    assert small.floor_ttft_s == large.floor_ttft_s
    long = estimate(LLAMA, H100, BF16, parallel=Parallel(tp=4), input_tokens=32768, max_num_batched_tokens=8192)
    chunks = [chunked(LLAMA, H100, BF16, chunk=8192, cached=n * 8192, setting=long.setting).time_s for n in range(3)]
    last = prefill(LLAMA, H100, BF16, input_tokens=32768, cached=24576, setting=long.setting).time_s
    assert long.prefill_s == pytest.approx(float(sum(chunks) + last), rel=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_overlap_hides_a_share_of_the_collectives(share: float) -> None:
    e = estimate(LLAMA, H100, BF16, parallel=Parallel(tp=8), batch=16, overlap=share)
    plain = estimate(LLAMA, H100, BF16, parallel=Parallel(tp=8), batch=16)
    sent = sum(np.mean(plain.decode.wire_s(op)) for op in plain.decode.ops)
    assert e.tpot_s == pytest.approx(plain.tpot_s - share * sent, rel=1e-12)


def test_popular_experts_are_fewer_distinct_ones() -> None:
    tokens = np.array([1.0, 8.0, 64.0, 4096.0])
    assert touched_experts(128, 8, tokens) == pytest.approx(distinct_experts(128, 8, tokens))
    even, mild, strong = (touched_experts(128, 8, tokens, skew) for skew in (0.0, 0.5, 1.2))
    assert np.all(even[1:3] > mild[1:3])
    assert np.all(mild[1:3] > strong[1:3])
    assert even[0] == pytest.approx(8)
    assert mild[0] == pytest.approx(8)
    assert strong[0] == pytest.approx(8)
    for skew in (0.0, 0.7, 2.0, 4.0):
        chance = popularity(128, 8, skew)
        assert chance.sum() == pytest.approx(8, rel=1e-9)
        assert np.all((chance > 0) & (chance <= 1))
        assert np.all(np.diff(chance) <= 0)


def test_popularity_against_drawing() -> None:
    """Distinct experts of independent draws with these chances, on average."""
    chance, rng = popularity(64, 6, 0.8), np.random.default_rng(3)
    drawn = (rng.random((4000, 16, 64)) < chance).any(axis=1).sum(axis=1)
    assert float(touched_experts(64, 6, 16, 0.8)) == pytest.approx(drawn.mean(), abs=4 * drawn.std() / np.sqrt(4000))


def test_uneven_experts_change_the_estimate_but_not_the_work() -> None:
    plain, uneven = (estimate(MIXTRAL, H100, BF16, parallel=Parallel(dp=4, ep=4), batch=4096, expert_imbalance=x) for x in (1.0, 1.5))
    grown = sum(np.mean(uneven.decode.op_s(op)) for op in uneven.decode.ops if op.kind == "experts")
    assert grown > sum(np.mean(plain.decode.op_s(op)) for op in plain.decode.ops if op.kind == "experts")
    assert np.all(uneven.decode.floor_s == plain.decode.floor_s)
    with pytest.raises(SpecError, match="imbalance"):
        estimate(MIXTRAL, H100, BF16, expert_imbalance=0.5)
    with pytest.raises(SpecError, match="between 1 and the 4 expert ranks"):
        estimate(MIXTRAL, H100, BF16, parallel=Parallel(dp=4, ep=4), expert_imbalance=5)
    with pytest.raises(SpecError, match="has no experts"):
        estimate(LLAMA, H100, BF16, expert_skew=0.5)


def clip_large_flops(patches: int, tokens: int) -> float:
    """CLIP ViT-L/14 by hand: 24 layers of width 1,024 over patches and a class token, and LLaVA's projector of two matrices."""
    n = patches + 1
    layer = 2 * n * (4 * 1024 * 1024 + 2 * 1024 * 4096) + 2 * 2 * n * n * 1024
    return 24 * layer + 2 * patches * 588 * 1024 + 2 * tokens * (1024 * 4096 + 4096 * 4096)


def test_the_vision_tower_is_counted_with_the_prompt() -> None:
    llava = names.model("llava-1.5-7b")
    assert llava.vision_tower is not None
    assert llava.vision_tower.patches == 576
    e = estimate(llava, H100, BF16, images=2, batch=3, input_tokens=1500)
    plain = estimate(llava, H100, BF16, batch=3, input_tokens=1500)
    seen = sum(float(op.flops) for op in e.prefill.ops if op.part == "vision")
    assert seen == pytest.approx(6 * clip_large_flops(576, 576), rel=1e-12)
    assert float(e.prefill.flops) - float(plain.prefill.flops) == pytest.approx(seen, rel=1e-9)
    assert e.tpot_s == plain.tpot_s
    assert e.ttft_s > plain.ttft_s


def test_projectors_behind_a_joining_see_fewer_positions() -> None:
    """Qwen2.5-VL joins squares of four patches, Gemma 3 pools 4,096 to 256."""
    qwen, gemma = names.model("qwen2.5-vl-7b").vision_tower, names.model("gemma-3-27b").vision_tower
    assert qwen is not None
    assert gemma is not None
    kept = {e.name: share for e, share in zip(qwen.extra, qwen.positions_kept(), strict=True)}
    assert (kept["patch_embedding"], kept["merger_1"], kept["merger_2"]) == (1, 0.25, 0.25)
    assert gemma.patches == 4096
    assert gemma.positions_kept()[-2:] == [1 / 16, 1 / 16]


def test_windowed_patches_attend_to_their_window() -> None:
    """28 of 32 layers of Qwen2.5-VL's tower look at 64 patches, four at all: 16 heads of 80 both ways."""
    ops = operators(names.model("qwen2.5-vl-7b"), BF16, [Segment(1, 1000, 0, images=2, patches=1024)])
    scores = {op.name: float(op.flops) for op in ops if op.part == "vision" and op.name.endswith("scores")}
    each = 2 * 2 * 16 * 80 * 2 * 1024
    assert scores == {"vision.window.scores": 28 * each * 64, "vision.full.scores": 4 * each * 1024}


def test_images_come_with_new_tokens_whatever_is_cached() -> None:
    llava = names.model("llava-1.5-7b")
    warm, cold = (estimate(llava, H100, BF16, images=1, input_tokens=1000, cached=n) for n in (100, 0))
    seen = [sum(float(op.flops) for op in e.prefill.ops if op.part == "vision") for e in (warm, cold)]
    assert seen[0] == seen[1] > 0


def test_images_need_a_tower_and_a_size() -> None:
    with pytest.raises(SpecError, match="are 1,152 tokens"):
        estimate(names.model("llava-1.5-7b"), H100, BF16, images=2, input_tokens=1000)
    with pytest.raises(SpecError, match="must be 576"):
        estimate(names.model("llava-1.5-7b"), H100, BF16, images=1, image_patches=7)
    with pytest.raises(Unsupported, match="no vision tower"):
        estimate(LLAMA, H100, BF16, images=1)
    with pytest.raises(SpecError, match="images of any size"):
        estimate(names.model("qwen2.5-vl-7b"), H100, BF16, images=1)


def test_a_fixed_context_is_looked_at_alone() -> None:
    e = estimate(names.model("llama-3.1-8b"), H100, BF16, context=4000)
    step = decode(names.model("llama-3.1-8b"), H100, BF16, context=4000, setting=e.setting)
    assert e.tpot_s == pytest.approx(float(step.time_s), rel=1e-12)
    assert e.capacity.launch.max_model_len == 4000
