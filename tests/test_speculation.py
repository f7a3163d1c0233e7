"""Speculative decoding: equations and their limits, drafts counted, rounds, acceptance files, memory, command line, measured gains."""

import csv
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferplan.cli.app import main
from inferplan.cli.options import Asked
from inferplan.deployment import Estimate
from inferplan.engine.step import Setting
from inferplan.errors import SpecError, Unsupported
from inferplan.formula import FORMULAS
from inferplan.names import hardware, model, precision
from inferplan.report.speculation import record
from inferplan.report.speculation_plots import plot_speculation
from inferplan.roofline.efficiency import Efficiency
from inferplan.specs.parallel import ONE, Parallel
from inferplan.speculation import theory
from inferplan.speculation.acceptance import Acceptance, of_length, of_rates, of_typical, read_lengths
from inferplan.speculation.answer import Speculation, speculate
from inferplan.speculation.drafts import HEADS, draft_model, draft_parallel, head_of
from inferplan.speculation.host import Host, host, shipped
from inferplan.speculation.rounds import Target, Tree, rounds, turns_to_loss
from inferplan.terms import TERMS

ROOT = Path(__file__).parents[1]
BF16 = precision("bf16")
rates = st.floats(0, 1)
costs = st.floats(0, 2)
drafts = st.integers(1, 32)


# the equations


@pytest.mark.parametrize("g", [1, 4, 64])
def test_limits_of_the_expected_tokens(g: int) -> None:
    assert float(theory.expected_tokens(0.0, g)) == 1.0
    assert float(theory.expected_tokens(1.0, g)) == g + 1
    assert float(theory.expected_tokens(1 - 1e-12, g)) == pytest.approx(g + 1, rel=1e-10)
    assert float(theory.expected_tokens(1e-300, g)) == 1.0


@given(a=st.floats(0.01, 0.99), g=drafts)
def test_expected_tokens_are_a_sum_of_powers(a: float, g: int) -> None:
    assert float(theory.expected_tokens(a, g)) == pytest.approx(sum(a**i for i in range(g + 1)), rel=1e-12)


@given(low=rates, high=rates, g=drafts, c=costs)
def test_more_acceptance_never_slows_down(low: float, high: float, g: int, c: float) -> None:
    low, high = sorted((low, high))
    slow, fast = (theory.walltime_factor(theory.expected_tokens(a, g), g, c) for a in (low, high))
    assert fast >= slow - 1e-12


@given(g=drafts)
def test_without_acceptance_and_cost_nothing_is_gained(g: int) -> None:
    assert float(theory.walltime_factor(theory.expected_tokens(0.0, g), g, 0.0)) == 1.0
    near = float(theory.walltime_factor(theory.expected_tokens(1e-9, g), g, 1e-9))
    assert near == pytest.approx(1.0, abs=1e-6)


@settings(max_examples=60)
@given(low=rates, high=rates, c=costs)
def test_the_best_number_grows_with_acceptance(low: float, high: float, c: float) -> None:
    low, high = sorted((low, high))
    assert theory.best_draft_tokens(high, c) >= theory.best_draft_tokens(low, c)


@settings(max_examples=60)
@given(a=st.floats(0, 0.999), low=costs, high=costs)
def test_the_best_number_falls_with_cost(a: float, low: float, high: float) -> None:
    low, high = sorted((low, high))
    assert theory.best_draft_tokens(a, low) >= theory.best_draft_tokens(a, high)


@given(a=st.floats(0.01, 0.99), c=st.floats(0.01, 1.5))
def test_corollary_3_9(a: float, c: float) -> None:
    """Some number of drafts gains exactly where a exceeds c; then one draft does, by (1 + a) / (1 + c)."""
    if abs(a - c) > 1e-9:
        assert bool(theory.gains(a, c)) == (float(theory.best_draft_tokens(a, c)) > 0)
    assert float(theory.walltime_factor(theory.expected_tokens(a, 1), 1, c)) == pytest.approx((1 + a) / (1 + c), rel=1e-12)


@given(a=st.floats(0.001, 0.999), g=st.integers(1, 20))
def test_the_rate_behind_an_accepted_length(a: float, g: int) -> None:
    assert float(theory.rate_of(theory.expected_tokens(a, g), g)) == pytest.approx(a, abs=1e-9)


@pytest.mark.parametrize("tokens", [0.9, 5.1, float("nan")])
def test_no_rate_behind_an_impossible_length(tokens: float) -> None:
    with pytest.raises(SpecError, match="between 1 and one more"):
        theory.rate_of(tokens, 4)


@pytest.mark.parametrize("name", ["expected_tokens", "walltime_factor", "operations_factor", "speed_up", "acceptance_rate", "kept_mass"])
def test_the_text_of_a_formula_is_its_function(name: str) -> None:
    found, rng = FORMULAS[name], np.random.default_rng(3)
    assert found.unit is not None
    assert "2211.17192" in found.ref or name == "speed_up"
    for _ in range(30):
        values = {k: float(rng.integers(1, 9)) if k == "g" else float(rng.uniform(0.05, 0.95)) for k in found.arguments}
        assert found.function(**values) == pytest.approx(found.evaluate(**values), rel=1e-12)


def distributions(rng: np.random.Generator, words: int) -> tuple[np.ndarray, np.ndarray]:
    p, q = rng.dirichlet(np.ones(words), 2)
    return p, q


@given(seed=st.integers(0, 2**31), words=st.integers(2, 50), lenience=st.floats(0.05, 1))
def test_divergence_is_half_the_distance_and_lenience_keeps_more(seed: int, words: int, lenience: float) -> None:
    p, q = distributions(np.random.default_rng(seed), words)
    exact = float(theory.divergence(p, q))
    assert exact == pytest.approx(np.abs(p - q).sum() / 2, abs=1e-12)
    assert float(theory.divergence(p, p)) == pytest.approx(0, abs=1e-12)
    assert -1e-12 <= float(theory.divergence(p, q, lenience)) <= exact + 1e-12


def written(p: np.ndarray, q: np.ndarray, count: int, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    """Tokens that rejection sampling writes with draft q for target p, and the share of drafts kept: the algorithm itself."""
    words = np.arange(len(p))
    draft = rng.choice(words, count, p=q)
    kept = rng.random(count) < np.minimum(1, p[draft] / q[draft])
    rest = np.maximum(p - q, 0)
    tokens = np.where(kept, draft, rng.choice(words, count, p=rest / rest.sum()))
    return np.bincount(tokens, minlength=len(p)) / count, float(kept.mean())


def test_the_exact_scheme_writes_the_targets_distribution_and_keeps_what_the_equation_says() -> None:
    count, apart, off = 20_000, 0, 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        p, q = distributions(rng, 6)
        shares, kept = written(p, q, count, rng)
        apart += np.any(np.abs(shares - p) > 4.5 * np.sqrt(p * (1 - p) / count) + 1e-12)
        a = float(theory.acceptance_rate(theory.divergence(p, q)))
        off += abs(kept - a) > 3 * np.sqrt(a * (1 - a) / count)
    assert apart == 0
    assert off <= 1


@pytest.mark.parametrize(("a", "g"), [(0.8, 4), (0.3, 7), (0.95, 2)])
def test_simulated_rounds_yield_the_expected_tokens(a: float, g: int) -> None:
    kept = np.random.default_rng(5).random((40_000, g)) < a
    lengths = 1 + np.cumprod(kept, axis=1).sum(axis=1)
    assert lengths.mean() == pytest.approx(float(theory.expected_tokens(a, g)), abs=4 * lengths.std() / 200)


# who drafts


@pytest.mark.parametrize(
    ("name", "billions"),
    [("llama-2-7b", 0.24), ("llama-2-13b", 0.37), ("llama-2-70b", 0.99), ("llama-3.1-8b", 0.25), ("llama-3-70b", 0.99)],
)
def test_eagle_heads_have_the_published_number_of_parameters(name: str, billions: float) -> None:
    """Trainable parameters in billions, arXiv:2401.15077 section 4 and the README of SafeAILab/EAGLE."""
    assert round(head_of(model(name), BF16, "eagle").params / 1e9, 2) == billions


def test_an_eagle_head_counted_by_hand() -> None:
    h, width, vocab = 4096, 14336, 128256
    layer = 2 * h * h + 2 * h * 1024 + 3 * h * width
    assert head_of(model("8b"), BF16, "eagle").params == layer + h + 2 * h * h + h
    attention = 2 * h * h + 2 * (2 * h * 1024) + h * h
    assert head_of(model("8b"), BF16, "eagle3").params == attention + 3 * h * width + 4 * h + 3 * h * h + 32000 * h
    assert head_of(model("8b"), BF16, "medusa").params == h * h + h + h * vocab


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v3.2", "glm-4.5-air", "qwen3.5-27b", "nemotron-3-super-120b-a12b"])
def test_prediction_modules_are_the_models_own(name: str) -> None:
    found = model(name)
    draft = head_of(found, BF16, "mtp")
    each = sum(w.params for w in found.mtp_weights() if not w.buffer) / found.mtp.modules
    assert draft.params == pytest.approx(each, rel=1e-6)
    assert draft.weight_bytes(ONE) == 0.0 == draft.kv_bytes_per_token(ONE)


def test_what_a_head_shares_is_read_but_not_stored() -> None:
    draft = head_of(model("8b"), precision("fp8"), "eagle")
    assert float(draft.weight_bytes(ONE)) == 2 * draft.params
    assert draft.precision.format_of("head").name == "bf16"
    assert float(draft.weight_bytes(Parallel(tp=4))) == pytest.approx(2 * draft.params / 4, rel=1e-3)
    assert draft.kv_bytes_per_token(ONE) == 2 * 2 * 1024


def test_medusa_has_a_head_per_draft() -> None:
    draft = head_of(model("7b"), BF16, "medusa")
    assert float(draft.weight_bytes(ONE, 5)) == 5 * float(draft.weight_bytes(ONE))
    assert not draft.exact


@pytest.mark.parametrize("name", ["mixtral-8x7b", "gpt-oss-120b", "qwen3-next-80b-a3b", "jamba-mini", "gemma-3-27b", "deepseek-v3"])
def test_what_is_not_published_is_said_to_be_assumed(name: str) -> None:
    assert len(head_of(model(name), BF16, "eagle").assumed) > 1


@pytest.mark.parametrize(
    ("name", "kind", "error", "words"),
    [
        ("8b", "mtp", Unsupported, "has no multi-token-prediction"),
        ("mamba-2.8b", "eagle", Unsupported, "has no attention"),
        ("deepseek-v3", "eagle3", Unsupported, "latent attention"),
        ("8b", "hydra", SpecError, "is not one of eagle"),
    ],
)
def test_heads_that_there_are_not(name: str, kind: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        head_of(model(name), BF16, kind)


def test_a_draft_must_be_smaller_and_write() -> None:
    with pytest.raises(SpecError, match="is not smaller than the model itself"):
        draft_model(model("8b"), model("70b"), BF16)
    with pytest.raises(Unsupported, match="writes no tokens"):
        draft_model(model("8b"), model("bert-base"), BF16)


def test_how_drafts_are_split() -> None:
    split, small = Parallel(tp=8, dp=2, ep=16), draft_model(model("70b"), model("8b"), BF16)
    assert draft_parallel(small, split, None) == Parallel(8, 1, 2, 1)
    assert draft_parallel(small, split, 2) == Parallel(2, 1, 2, 1)
    assert draft_parallel(head_of(model("deepseek-v3"), BF16, "mtp"), split, None) == Parallel(8, 1, 2, 16)
    for tp in (3, 16, 0):
        with pytest.raises(SpecError, match="must divide"):
            draft_parallel(small, split, tp)
    with pytest.raises(SpecError, match="split like the model itself"):
        draft_parallel(head_of(model("deepseek-v3"), BF16, "mtp"), split, 2)


# rounds


def target(name: str = "8b", engine: str = "vllm", efficiency: Efficiency | None = None, **more: object) -> Target:
    return Target(model(name), hardware("h100"), BF16, Setting(efficiency=efficiency or Efficiency.default(), engine=engine), **more)


CASES = {
    "model": (lambda t: draft_model(t.model, model("llama-3.2-1b"), BF16), None),
    "eagle": (lambda t: head_of(t.model, BF16, "eagle"), None),
    "tree": (lambda t: head_of(t.model, BF16, "eagle3"), Tree(60)),
    "medusa": (lambda t: head_of(t.model, BF16, "medusa"), None),
    "ngram": (lambda t: head_of(t.model, BF16, "ngram"), None),
}


@pytest.mark.parametrize(("case", "eager"), [*((case, False) for case in CASES), ("tree", True)])
def test_a_sweep_is_its_points(case: str, eager: bool) -> None:
    """Across the length from which attention runs through another kernel, too."""
    make, tree = CASES[case]
    t = target(eager=eager)
    draft, accept, batch, g = make(t), of_rates([0.7]), np.array([1.0, 90.0]), np.array([1.0, 7.0, 8.0])
    whole = rounds(t, draft, accept, batch=batch[:, None], draft_tokens=g, context=700, tree=tree)
    for i, j in np.ndindex(2, 3):
        one = rounds(t, draft, accept, batch=batch[i], draft_tokens=g[j], context=700, tree=tree)
        for name in ("speed_up", "verify_s", "draft_s", "overhead_s", "tokens", "tpot_s", "cost"):
            grid = np.broadcast_to(np.asarray(getattr(whole, name)), (2, 3))
            assert float(grid[i, j]) == pytest.approx(float(np.asarray(getattr(one, name))), rel=1e-12), (name, i, j)


@pytest.mark.parametrize("case", CASES)
def test_the_gain_is_tokens_over_what_a_round_costs(case: str) -> None:
    make, tree = CASES[case]
    t = target()
    r = rounds(t, make(t), of_rates([0.6]), batch=np.array([1.0, 64.0]), draft_tokens=5, context=700, tree=tree)
    np.testing.assert_allclose(r.speed_up, r.tokens / (r.verify_ratio + 5 * r.cost), rtol=1e-12)
    assert np.all(np.asarray(r.verify_ratio) >= 1 - 1e-12)
    assert np.all(np.asarray(r.speed_up) <= np.asarray(r.free_verify_speed_up) + 1e-12)


def test_at_the_roof_c_is_the_ratio_of_bytes() -> None:
    big, small = model("llama-3.1-70b"), model("llama-3.1-8b")
    t = Target(big, hardware("h100"), BF16, Setting())
    r = rounds(t, draft_model(big, small, BF16), of_rates([0.8]), batch=1, draft_tokens=4, context=1)
    assert float(r.cost) == pytest.approx(small.params / big.params, rel=0.08)
    assert float(r.overhead_s) == 0.0


def test_the_gain_falls_with_the_batch_of_a_dense_model_and_is_lost() -> None:
    t = target()
    batch = 2.0 ** np.arange(11)
    r = rounds(t, head_of(t.model, BF16, "eagle"), of_rates([0.7]), batch=batch, draft_tokens=6, context=600)
    assert np.all(np.diff(np.asarray(r.speed_up)) < 1e-9)
    at = turns_to_loss(batch, np.asarray(r.speed_up))
    assert at is not None
    around = rounds(t, head_of(t.model, BF16, "eagle"), of_rates([0.7]), batch=np.array([0.9 * at, 1.1 * at]), draft_tokens=6, context=600)
    assert np.asarray(around.speed_up)[0] > 1 > np.asarray(around.speed_up)[1]


def test_turning_points() -> None:
    batch = np.array([1.0, 2.0, 4.0])
    assert turns_to_loss(batch, np.array([1.5, 1.2, 1.1])) is None
    assert turns_to_loss(batch, np.array([0.9, 1.2, 1.1])) == 1
    assert turns_to_loss(batch, np.array([1.5, 1.0, 0.5])) == 2


def test_a_verify_of_experts_reads_more_of_them() -> None:
    t = Target(model("qwen3-30b-a3b"), hardware("h100"), BF16, Setting())
    dense = target(efficiency=Efficiency.ideal())
    few, one = (rounds(x, head_of(x.model, BF16, "ngram"), of_rates([0.5]), batch=1, draft_tokens=7, context=100) for x in (t, dense))
    assert float(few.verify_ratio) > 3
    assert float(one.verify_ratio) < 1.01


def test_drafts_split_less_wide_take_longer_on_the_device() -> None:
    t = Target(model("llama-3.1-70b"), hardware("h100"), BF16, Setting(Parallel(tp=4)))
    small = draft_model(t.model, model("8b"), BF16)
    wide, narrow = (rounds(t, small, of_rates([0.8]), batch=1, draft_tokens=4, context=500, draft_tp=tp) for tp in (None, 1))
    assert float(narrow.draft_s) > 3 * float(wide.draft_s)


def test_host_times_where_kernels_are_launched_one_by_one() -> None:
    slow = Host(eager_layer="1 ms", eager_pass="2 ms", basis="assumed")  # type: ignore[arg-type]
    t = target("7b", eager=True, own_host=slow)
    r = rounds(t, head_of(t.model, BF16, "eagle"), of_rates([0.8]), batch=1, draft_tokens=4, context=500)
    assert float(r.decode_s) == float(r.verify_s) == pytest.approx(34e-3)
    assert float(r.draft_s) == pytest.approx(4 * 3e-3)


def test_engines_without_times_of_their_own_have_the_general_ones() -> None:
    assert host("tgi") == shipped().engines["default"]
    assert host("vllm", ideal=True) == host("ideal").model_copy(update={"note": None})


@pytest.mark.parametrize("wrong", [0, 2.5, 257, -1])
def test_draft_tokens_out_of_range(wrong: float) -> None:
    t = target()
    with pytest.raises(SpecError, match="must be whole and lie between 1 and 256"):
        rounds(t, head_of(t.model, BF16, "ngram"), of_rates([0.5]), batch=1, draft_tokens=wrong, context=9)


def test_a_tree_holds_its_depth() -> None:
    t = target()
    with pytest.raises(SpecError, match="more tokens than are drafted in a row"):
        rounds(t, head_of(t.model, BF16, "eagle"), of_rates([0.5]), batch=1, draft_tokens=6, context=9, tree=Tree(6))


# acceptance


def test_rates_by_position() -> None:
    found = of_rates([0.8, 0.5, 0.25])
    np.testing.assert_allclose(found.tokens(np.arange(6.0)), [1, 1.8, 2.2, 2.3, 2.325, 2.33125])
    assert found.rate is None
    assert of_rates([0.5, 0.5]).rate == 0.5
    np.testing.assert_allclose(of_rates([0.5, 0.5]).tokens(3), theory.expected_tokens(0.5, 3))


@pytest.mark.parametrize("wrong", [[-0.1], [1.1], [0.5, float("nan")], [], [0.5] * 300])
def test_rates_out_of_range(wrong: list[float]) -> None:
    with pytest.raises(SpecError, match="must"):
        of_rates(wrong)


def test_an_accepted_length_of_a_tree_is_just_that() -> None:
    found = of_length(4.35, 6, chain=False)
    assert found.rate is None
    assert float(found.tokens(6)) == 4.35
    assert np.isnan(float(found.tokens(5)))
    for wrong in (0.5, 8.0, float("nan"), float("inf")):
        with pytest.raises(SpecError, match="between 1 and 7"):
            of_length(wrong, 6, chain=False)


@pytest.mark.parametrize("kind", [k for k in HEADS if k != "model"])
def test_published_acceptances_name_their_source(kind: str) -> None:
    found, _ = of_typical(kind)
    assert found.said.startswith("published: ")
    assert shipped().typical[kind].source in shipped().sources


def test_no_acceptance_is_at_hand_for_a_model_of_ones_own() -> None:
    with pytest.raises(SpecError, match="must be given for this draft"):
        of_typical("model")


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "lengths.csv"
    path.write_text(text)
    return path


def test_lengths_of_single_passes_are_cut_short_for_fewer_drafts(tmp_path: Path) -> None:
    found = read_lengths(file(tmp_path, "accepted_length,draft_tokens\n1,4\n3,4\n5,4\n5,4\n"))
    np.testing.assert_allclose(found.tokens(np.arange(6.0)), [1, 1.75, 2.5, 3, 3.5, np.nan])


def test_lengths_of_a_chain_give_its_equation_back(tmp_path: Path) -> None:
    kept = np.random.default_rng(2).random((4000, 6)) < 0.7
    lengths = 1 + np.cumprod(kept, axis=1).sum(axis=1)
    found = read_lengths(file(tmp_path, "accepted_length\n" + "\n".join(map(str, lengths))))
    for g in range(1, 7):
        assert float(found.tokens(g)) == pytest.approx(float(theory.expected_tokens(0.7, g)), rel=0.03)


def test_means_by_draft_tokens_and_counts(tmp_path: Path) -> None:
    found = read_lengths(file(tmp_path, "draft_tokens,accepted_length,count\n1,1.9,10\n3,2.8,1\n3,2.4,3\n"))
    assert float(found.tokens(1)) == 1.9
    assert np.isnan(float(found.tokens(2)))
    assert float(found.tokens(3)) == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no column"),
        ("length\n2\n", "has no column 'accepted_length'"),
        ("accepted_length\n", "holds no accepted length"),
        ("accepted_length\nabc\n", "line 2, accepted_length: abc: must be a number"),
        ("accepted_length\nnan\n", "must be between 1 and 257"),
        ("accepted_length\n0.5\n", "must be between 1 and 257"),
        ("accepted_length\n1e9\n", "must be between 1 and 257"),
        ("accepted_length,draft_tokens\n4,2\n", "must not exceed one more than the draft tokens"),
        ("accepted_length,draft_tokens\n2,1.5\n", "must be whole and between 0 and 256"),
        ("accepted_length,draft_tokens\n2\n", "has not as many cells"),
        ("accepted_length\n2,3\n", "has not as many cells"),
        ("accepted_length,count\n2,-1\n", "must be between 0"),
        ('accepted_length\n"2', "is not a CSV file"),
    ],
)
def test_broken_files_of_accepted_lengths(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SpecError, match=re.escape(words)) as found:
        read_lengths(file(tmp_path, text))
    assert "lengths.csv" in str(found.value)


# a deployment


def spoken(asked: Asked, kind: str, accept: Acceptance, **more: object) -> Speculation:
    plain = asked.estimate()
    draft = head_of(plain.model, plain.precision, kind) if kind in HEADS else draft_model(plain.model, model(kind), BF16)
    return speculate(plain, draft, accept, **more)  # type: ignore[arg-type]


def seventy(**more: object) -> Speculation:
    return spoken(Asked("llama-3.1-70b", "h100", gpus=4), "8b", of_rates([0.8]), **more)


def test_the_best_number_is_chosen_for_the_load() -> None:
    found = seventy()
    gains = np.asarray(found.at(1.0, np.arange(1.0, 17)).speed_up)
    assert found.chosen
    assert found.draft_tokens == 1 + int(np.argmax(gains))
    assert found.speed_up == pytest.approx(float(gains.max()), rel=1e-12)


def test_draft_memory_counts() -> None:
    found, plain = seventy(draft_tokens=4), Asked("llama-3.1-70b", "h100", gpus=4).estimate()
    own, added = float(plain.capacity.kv_bytes_per_token_per_gpu), found.draft_kv_bytes_per_token
    left = float(plain.capacity.kv_cache_bytes_per_gpu) - found.draft_weight_bytes
    assert added == 4 * 8192
    assert found.draft_weight_bytes == pytest.approx(2 * 8_030_261_248 / 4, rel=0.01)
    assert found.kv_cache_tokens == pytest.approx(left / (own + added), rel=1e-3)
    assert found.tokens_lost > 0
    assert found.max_sequences < plain.max_sequences


def test_ngrams_take_no_memory_and_modules_what_the_engine_counts() -> None:
    assert spoken(Asked("8b", "h100"), "ngram", of_rates([0.3])).tokens_lost == 0
    found = spoken(Asked("deepseek-v3", "h200", gpus=8), "mtp", of_rates([0.8]), draft_tokens=1)
    assert found.draft_weight_bytes > 1e9
    assert float(found.held.kv_bytes_per_token_per_gpu) > float(found.plain.capacity.kv_bytes_per_token_per_gpu)
    assert found.tokens_lost > 0


def test_a_load_that_fits_alone_may_not_fit_with_a_draft() -> None:
    asked = Asked("llama-3.1-70b", "h100", "fp8", gpus=1, isl=512, osl=128)
    plain: Estimate = asked.estimate()
    found = spoken(asked, "8b", of_rates([0.8]), draft_tokens=3)
    assert plain.fits
    assert not found.fits
    assert "exceed" in found.held.reason()


def test_measured_lengths_bind_the_draft_tokens() -> None:
    accept = Acceptance(lengths=((2, 2.4), (4, 2.9)))
    found = spoken(Asked("8b", "h100"), "eagle", accept)
    assert found.draft_tokens in (2, 4)
    assert sorted(found.lengths) == [2, 4]
    with pytest.raises(SpecError, match="there is one for 2, 4"):
        spoken(Asked("8b", "h100"), "eagle", accept, draft_tokens=3)
    with pytest.raises(SpecError, match="needs the draft tokens"):
        spoken(Asked("8b", "h100"), "eagle", accept, tree=Tree(20))


def test_the_record_speaks_the_glossary() -> None:
    found = record(seventy(draft_tokens=4))
    assert set(found) - {"sweep", "schema"} <= set(TERMS)
    assert set(found["sweep"][0]) <= set(TERMS)
    assert len(found["sweep"]) == len({(r["batch"], r["draft_tokens"]) for r in found["sweep"]})


def test_stages_and_groups_have_an_answer() -> None:
    for asked in (Asked("llama-3.1-70b", "h100", tp=2, pp=2, batch=8), Asked("deepseek-v3", "h200", gpus=8, tp=1, dp=8, ep=8, batch=64)):
        found = spoken(asked, "mtp" if "deep" in asked.model else "8b", of_rates([0.8]), draft_tokens=2)
        assert 0.3 < found.speed_up < 2.6


# pictures


def test_the_picture_shows_lengths_and_batches() -> None:
    found = seventy(draft_tokens=4)
    upper = plot_speculation(found)
    lower = upper.figure.axes[1]
    drawn = {line.get_gid() for line in upper.lines}
    assert {"drafts 4", "drafts 1", "even", "loss"} <= drawn
    assert upper.get_xlabel() == "batch, sequences"
    assert (upper.get_ylabel(), lower.get_ylabel()) == ("speed-up, times", "speed-up, times")
    at = next(line for line in upper.lines if line.get_gid() == "loss")
    assert at.get_xdata()[0] == found.turns_to_loss
    assert sum((line.get_gid() or "").startswith("batch ") for line in lower.lines) >= 3
    for axes in (upper, lower):
        assert all(np.all(np.isfinite(np.asarray(line.get_ydata(), dtype=float))) for line in axes.lines)


def test_a_tree_has_one_panel() -> None:
    plain = Asked("8b", "h100").estimate()
    found = speculate(plain, head_of(plain.model, plain.precision, "medusa"), of_length(2.3, 5, chain=False), draft_tokens=5, tree=Tree(64))
    assert len(plot_speculation(found).figure.axes) == 1


# the command line

BASE = ("speculate", "--model", "llama-3.1-70b", "--gpu", "h100", "--gpus", "4", "--draft", "8b")


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(list(args))
    out, err = capsys.readouterr()
    return code, out, err


def test_the_screen_answers_first(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    code, out, err = run(capsys, *BASE, "--accept", "0.8", "--draft-tokens", "4")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "Llama 3.1 70B with Llama 3.1 8B drafting, on 4 x NVIDIA H100 SXM5 80GB"
    answer = next(i for i, line in enumerate(lines) if line.startswith("Decoding gets about"))
    assert answer < next(i for i, line in enumerate(lines) if line.startswith("Draft tokens, batch 1"))
    for words in ("4 drafts turn into a loss", "keeps the model's own distribution", "so c is 0.", "cache tokens", "best number"):
        assert words in out
    assert "vocabularies differ" not in out


@pytest.mark.parametrize(("draft", "exact"), [("eagle", True), ("eagle3", True), ("ngram", True), ("medusa", False)])
def test_only_exact_schemes_are_called_exact(capsys: pytest.CaptureFixture[str], draft: str, exact: bool) -> None:
    code, out, _ = run(capsys, "speculate", "-m", "8b", "-g", "h100", "--draft", draft)
    assert code == 0
    assert ("keeps the model's own distribution" in out) == exact
    assert ("Typical acceptance" in out) != exact
    assert "published: " in out


def test_other_vocabularies_are_noted(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "speculate", "-m", "llama-2-70b", "-g", "h100", "--gpus", "4", "--draft", "8b", "--accept", "0.7")
    assert "the vocabularies differ (32,000 and 128,256 tokens)" in out.replace("\n", " ")


def test_padding_is_no_other_vocabulary() -> None:
    qwen = spoken(Asked("qwen2.5-72b", "h100", gpus=4), "qwen2.5-0.5b", of_rates([0.7]), draft_tokens=3)
    assert qwen.plain.model.vocab != qwen.draft.model.vocab
    assert not qwen.vocabularies_differ


def test_json_and_csv_agree(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "sweep.csv"
    code, out, _ = run(capsys, *BASE, "--accept", "0.8,0.7,0.6", "--json", "--csv", str(path))
    found = json.loads(out)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert code == 0
    assert found["schema"] == "inferplan/speculation/2"
    assert found["acceptance_rate"] is None
    assert len(rows) == len(found["sweep"])
    assert float(rows[0]["speed_up"]) == found["sweep"][0]["speed_up"]


def test_a_file_of_lengths_and_a_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lengths, picture = file(tmp_path, "accepted_length,draft_tokens\n4,6\n7,6\n1,6\n"), tmp_path / "gain.png"
    code, out, _ = run(capsys, *BASE, "--accept", str(lengths), "--plot", str(picture))
    assert code == 0
    assert "3 rows of lengths.csv" in out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_what_does_not_fit_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "speculate", "-m", "70b", "-g", "h100", "--draft", "8b", "--accept", "0.8")
    assert code == 1
    assert "Does not fit with the draft" in out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--accept", "1.5"), "accept: 1.5: must lie between 0 and 1"),
        (("--accept", "-0.1"), "must lie between 0 and 1"),
        (("--accept", "nan"), "must lie between 0 and 1"),
        (("--accept", "0.5,2"), "must lie between 0 and 1"),
        (("--accept", "no-such-file.csv"), "no-such-file.csv"),
        ((), "must be given for this draft (--accept)"),
        (("--accept", "0.8", "--draft-tokens", "-1"), "--draft-tokens: -1: must lie between 1 and 256"),
        (("--accept", "0.8", "--draft-tokens", "1000000"), "--draft-tokens: 1000000: must lie between"),
        (("--accept", "0.8", "--tree", "10"), "--tree: 10: needs the draft tokens"),
        (("--accept", "0.8", "--tree", "3", "--draft-tokens", "4"), "tree: 3: must hold more tokens"),
        (("--accept", "0.8", "--draft-tp", "3"), "--draft-tp: 3: must divide"),
        (("--accept", "0.8", "--accept-length", "3", "--draft-tokens", "4"), "give one of the two"),
        (("--accept-length", "3"), "needs the draft tokens"),
        (("--accept-length", "6", "--draft-tokens", "4"), "must lie between 1 and 5"),
        (("--accept-length", "nan", "--draft-tokens", "4"), "must lie between 1 and 5"),
        (("--accept", "0.8", "--plot", "gain.txt"), "must end in .png"),
        (("--accept", "0.8", "--draft-dtype", "fp99"), "no precision called 'fp99'"),
    ],
)
def test_wrong_options_are_one_line(capsys: pytest.CaptureFixture[str], more: tuple[str, ...], words: str) -> None:
    code, out, err = run(capsys, *BASE, *more)
    assert code == 2
    assert not out
    assert err.count("\n") == 1
    assert words in err


def test_an_encoder_has_nothing_to_draft(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "speculate", "-m", "bert-base", "-g", "a100", "--draft", "ngram", "--accept", "0.3")
    assert (code, out) == (2, "")
    assert "writes no tokens" in err


@pytest.mark.parametrize(
    ("draft", "words"),
    [("405b", "is not smaller"), ("llama-3.1-70b", "is not smaller"), ("no-such-model", "no-such-model"), ("mtp", "has no multi-token")],
)
def test_wrong_drafts_are_one_line(capsys: pytest.CaptureFixture[str], draft: str, words: str) -> None:
    code, out, err = run(capsys, "speculate", "-m", "llama-3.1-70b", "-g", "h100", "--gpus", "4", "--draft", draft, "--accept", "0.8")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert words in err


def test_no_table_and_no_picture_library_is_loaded_unasked() -> None:
    code = (
        "import sys; from inferplan.cli.app import main; sys.stdout = open('/dev/null', 'w');"
        "main(['speculate', '-m', '8b', '-g', 'h100', '--draft', 'eagle', '--accept', '0.7']);"
        "sys.exit(bool({'pandas', 'matplotlib'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# what was measured


def _accuracy() -> ModuleType:
    sys.path.insert(0, str(ROOT / "tools"))
    return importlib.import_module("speculation_accuracy")


ACCURACY = _accuracy()
PREDICTED = 94
# the largest median distance from what was measured that is accepted, in percent
MOST = {
    "leviathan2023": 15, "leviathan_expected": 5, "spec_bench": 10, "eagle1": 20, "hass": 15, "vllm_20780": 15, "eagle3_sglang": 12,
    "sglang_4716": 20, "specforge_339": 15, "trtllm_r1_mtp": 10, "llama_cpp": 60,
}  # fmt: skip
_KEPT: list = []


def outcomes() -> list:
    if not _KEPT:
        _KEPT.extend(ACCURACY.outcome(row) for row in ACCURACY.read())
    return _KEPT


def median_error(found: list) -> float:
    return 100 * float(np.median([abs(o.error) for o in found]))


@pytest.mark.parametrize("group", MOST)
def test_measured_gains(group: str) -> None:
    found = [o for o in outcomes() if o.row["group"] == group and not o.refused]
    assert found
    assert median_error(found) <= MOST[group], [(o.row["row"], round(o.error, 2)) for o in found]


def test_measured_gains_together() -> None:
    found = [o for o in outcomes() if not o.refused and not o.row["group"].startswith("leviathan")]
    assert median_error(found) <= 12
    assert sum(o.right for o in found) >= 0.9 * len(found)


def test_gain_or_loss_where_many_share_a_pass() -> None:
    """Eleven of the twelve rows; EAGLE at 24 sequences, measured at 0.93, is missed, and at 32 it is a close call."""
    found = [o for o in outcomes() if not o.refused and o.large and not o.row["group"].startswith("leviathan")]
    assert len(found) == 12
    assert sum(o.right for o in found) >= 10


def test_rows_are_refused_for_what_their_source_does_not_say() -> None:
    found = outcomes()
    assert sum(not o.refused for o in found) == PREDICTED
    assert all(o.refused == o.row["unknown"] for o in found)
    assert len({o.row["row"] for o in found}) == len(found)
    assert all(o.row["source"] for o in found)


def test_lenience_lies_below_what_the_authors_print() -> None:
    """By 4 to 7 %, at the cost they state and their best number of drafts."""
    found = [o.error for o in outcomes() if "lenience" in o.row["method"]]
    assert len(found) == 4
    assert all(-0.07 < e < -0.04 for e in found)


def test_the_table_in_the_docs_is_the_table() -> None:
    text = (ROOT / "docs" / "speculation.md").read_text()
    for title, count, error, _, _, right in ACCURACY.summary(outcomes()):
        line = next(line for line in text.splitlines() if line.startswith(f"| {title} |"))
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert cells[1] == count
        told, real = (float(x.rstrip(" %")) for x in (cells[2], error))
        assert abs(told - real) <= max(2.0, 0.25 * real), f"{title}: run tools/speculation_accuracy.py"
        assert abs(int(cells[5].split()[0]) - int(right.split()[0])) <= 1
