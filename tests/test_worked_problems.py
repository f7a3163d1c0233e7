"""Worked problems of public texts, figure by figure: `data/worked_problems.csv` has each as printed, with its source.

They hold at efficiency 1 without overhead. Where an author used a rule of thumb or slipped, the row's note says so, the figure is
tested from the author's own inputs, and a test further down says what the tool makes of the real ones.
"""

import csv
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import inferplan as ip
from inferplan.deployment import Batches, estimate
from inferplan.engine.convention import Convention
from inferplan.engine.op import Op
from inferplan.engine.segment import Segment
from inferplan.engine.step import IDEAL, Setting, Step, verify
from inferplan.memory.capacity import capacity
from inferplan.memory.fit import Fit
from inferplan.ops.gemm import gemm_flops
from inferplan.roofline.bounds import intensity
from inferplan.roofline.comm import Tier, comm_s, within_s
from inferplan.roofline.efficiency import Efficiency, LinkRate
from inferplan.specs.hardware import Accelerator
from inferplan.specs.model import Model
from inferplan.specs.parallel import Parallel
from inferplan.speculation.theory import expected_tokens, operations_factor, walltime_factor

PROBLEMS = set(range(1, 20))
UNITS = {"": 1, "1e9": 1e9, "GB": 1e9, "GiB": 2**30, "s": 1, "ms": 1e-3, "us": 1e-6, "1/s": 1, "FLOP/B": 1}
MARKS = {"author's own inputs": "author-own-inputs", "rule of thumb": "rule-of-thumb"}
BF16 = ip.precision("bf16")


@dataclass(frozen=True)
class Figure:
    """One printed figure."""

    problem: int
    case: str
    quantity: str
    inputs: dict[str, float | str]
    printed: str
    unit: str
    within: str
    source: str
    note: str

    @property
    def unit_in_last_place(self) -> float:
        return float(Decimal(1).scaleb(int(Decimal(self.printed).as_tuple().exponent)))

    @property
    def bounds(self) -> tuple[float, float]:
        """From where to where a value is printed like this: half a unit around, a unit above where digits were cut off, or as stated."""
        printed, last = float(self.printed), self.unit_in_last_place
        if self.within == "cut":
            return printed, printed + last
        spread = float(self.within) if self.within else last / 2
        return printed - spread, printed + spread

    def __str__(self) -> str:
        said = next((f"-{mark}" for start, mark in MARKS.items() if self.note.startswith(start)), "")
        return f"{self.problem}-{self.case}-{self.quantity}{said}"


def inputs(text: str) -> dict[str, float | str]:
    pairs = (item.split("=") for item in text.split(";"))
    return {name: _value(value) for name, value in pairs}


def _value(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def figures() -> list[Figure]:
    with (Path(__file__).parent / "data" / "worked_problems.csv").open(newline="") as file:
        return [Figure(**row | {"problem": int(row["problem"]), "inputs": inputs(row["inputs"])}) for row in csv.DictReader(file)]


FIGURES = figures()
ANSWERS: dict[tuple[int, str], Callable[..., float]] = {}


def answers(quantity: str, *problems: int) -> Callable[[Callable[..., float]], Callable[..., float]]:
    """The function computes this quantity of these problems."""

    def register(function: Callable[..., float]) -> Callable[..., float]:
        for problem in problems:
            assert (problem, quantity) not in ANSWERS
            ANSWERS[problem, quantity] = function
        return function

    return register


# what the texts speak of: a part of given roofs, several chips taken as one, a model of so many parameters


def part(bandwidth: float, peak: float = 1e15, int8: float | None = None) -> Accelerator:
    rates = {"bf16": (peak, "FLOP/s"), "int8": (int8, "OP/s")}
    given = {"kind": "assumed", "note": "as the text has it"}
    return Accelerator.from_mapping(
        {
            "name": "given",
            "title": "Given part",
            "vendor": "none",
            "memory": {"capacity": {"value": "16 GB", **given}, "bandwidth": {"value": f"{bandwidth:.0f} B/s", **given}},
            "peak": {name: {"value": f"{rate:.0f} {unit}", **given} for name, (rate, unit) in rates.items() if rate},
        }
    )


@cache
def dense(params: float) -> Model:
    """A model of that many weights, all in matrices that each token passes, without a cache."""
    block = {"ffn": {"kind": "dense", "width": 10_000, "gated": False}, "norms": 0}
    name = f"dense-{params:g}"
    rest = {"name": name, "title": name, "hidden": 5000, "vocab": 1, "head": "none", "norms": 0}
    return Model.from_mapping({**rest, "layers": f"a*{params / 1e8:.0f}", "blocks": {"a": block}})


THIRTY = Model.from_mapping(
    {
        "name": "thirty",
        "title": "30B, 100 kB of cache per token",
        "hidden": 8000,
        "vocab": 1,
        "head": "none",
        "norms": 0,
        "layers": "a*50",
        "blocks": {
            "a": {
                "mixer": {"kind": "attention", "heads": 64, "kv_heads": 4, "head_dim": 125},
                "ffn": {"kind": "dense", "width": 29_000, "gated": False},
                "norms": 0,
            }
        },
    }
)


def given_step(weights: float, cache: float, batch: float, flops: float, where: Accelerator) -> Step:
    """A decode step of given bytes and FLOPs: weights and their products, then caches that are read."""
    products = Op("weights", "matmul", "mlp", "bf16", flops * batch, weight_bytes=weights)
    return Step((products, Op("cache", "attention_decode", "attention", "bf16", 0.0, kv_bytes=cache * batch)), where, IDEAL)


def rate(batch: float, tpot: float) -> float:
    """Output tokens per second of all sequences."""
    one = np.ones(1)
    return float(Batches(batch * one, one, tpot * one, tpot * one, one, one).output_tokens_per_s[0])


# the figures


@answers("moved", 1)
def moved(params: float, weights: str, bandwidth: float) -> float:
    return float(ip.decode(dense(params), part(bandwidth), ip.precision(weights), context=1).bytes)


@answers("step", 1)
def step_of_weights(params: float, weights: str, bandwidth: float) -> float:
    return float(ip.decode(dense(params), part(bandwidth), ip.precision(weights), context=1).floor_s)


@answers("sequence", 2)
def sequence(model: str, tokens: float) -> float:
    return float(ip.sequence_bytes(ip.model(model), BF16, tokens))


@answers("critical_batch", 3)
def critical_batch(weights: str, bandwidth: float, bf16: float, int8: float) -> float:
    """The first batch that the roof of compute binds."""
    batch = np.arange(1.0, 512.0)
    found = ip.decode(dense(7e9), part(bandwidth, bf16, int8), ip.precision(weights), context=1, batch=batch)
    return float(batch[np.argmax(found.bound == "compute")])


@answers("intensity", 4)
def intensity_of_attention(cached: float, new: float) -> float:
    """Multi-head attention in bf16 without a mask; `cached` counts the new tokens too, queries and results move as well."""
    segment = Segment(1, new, cached - new)
    found = ip.step(ip.model("llama-2-13b"), ip.hardware("v5e"), BF16, segment, convention=Convention(causal=False))
    (scores,) = (op for op in found.ops if op.name.endswith("scores"))
    return float(intensity(scores.flops, scores.kv_bytes + scores.act_bytes))


@answers("step", 5)
def step_of_thirty(batch: float, context: float, chips: float, bandwidth: float, peak: float) -> float:
    precision = ip.precision("body=int8-weight-only,kv=bf16")
    return float(ip.decode(THIRTY, part(chips * bandwidth, chips * peak), precision, context=context, batch=batch).time_s)


@answers("step", 6, 7, 10)
def step_of_given(
    weights: float, cache: float, batch: float, chips: float, bandwidth: float, flops: float, peak: float, memory: float = 0
) -> float:
    return float(given_step(weights, cache, batch, flops, part(chips * bandwidth, chips * peak)).time_s)


@answers("tokens_per_s", 6, 7)
def tokens_per_s(batch: float, **given: float) -> float:
    return rate(batch, step_of_given(batch=batch, **given))


@answers("params", 8)
def params(layers: float, hidden: float, width: float, heads: float, kv_heads: float, head_dim: float, vocab: float) -> float:
    mixer = {"kind": "attention", "heads": int(heads), "kv_heads": int(kv_heads), "head_dim": int(head_dim)}
    block = {"mixer": mixer, "ffn": {"kind": "dense", "width": int(width)}, "norms": 0}
    shape = {"hidden": int(hidden), "vocab": int(vocab), "head": "tied", "norms": 0, "layers": f"a*{layers:.0f}", "blocks": {"a": block}}
    return Model.from_mapping({"name": "tied", "title": "Tied", **shape}).params


@answers("token", 9)
def token(model: str, kv: str) -> float:
    return float(ip.kv_bytes_per_token(ip.model(model), ip.precision("bf16", kv=kv)))


@answers("cache", 10)
def cache_of_batch(cache: float, batch: float, weights: float, memory: float, **_: float) -> float:
    held = Fit(memory, weights, cache, batch)
    return float(held.needed_bytes) - held.weight_bytes


@answers("needed", 10)
def needed(cache: float, batch: float, weights: float, memory: float, **_: float) -> float:
    return float(Fit(memory, weights, cache, batch).needed_bytes)


@answers("slice", 10)
def slice_of_batch(cache: float, batch: float, weights: float, memory: float, **_: float) -> float:
    return least_slice(weights, cache, batch, memory)


@answers("tokens_per_s", 10)
def rate_per_chip(batch: float, tpot: float, chips: float = 1) -> float:
    return rate(batch, tpot) / chips


def least_slice(weights: float, cache: float, batch: float, memory: float) -> float:
    """The smallest power of two of chips that holds weights and caches."""
    return next(float(chips) for chips in 2.0 ** np.arange(12) if Fit(chips * memory, weights, cache, batch).fits)


@answers("chips", 11)
def chips(weights: float, sequence: float, memory: float) -> float:
    return float(Fit(memory, weights, sequence, 0).needed_bytes / memory)


@answers("slice", 11)
def slice_of_one(weights: float, sequence: float, memory: float) -> float:
    return least_slice(weights, sequence, 1, memory)


@answers("sequences", 11)
def sequences(room: float, sequence: float) -> float:
    return float(Fit(room, 0.0, sequence, 1).sequences)


@answers("queries_per_s", 11)
def queries_per_s(batch: float, tpot: float, output_tokens: float, chips: float) -> float:
    return rate(batch, tpot) / output_tokens / chips


@answers("step", 11)
def step_of_full_memory(weights: float, bandwidth: float) -> float:
    return float(given_step(weights, 0.0, 1, 0.0, part(bandwidth)).floor_s)


@answers("ttft", 12)
def ttft(params: float, tokens: float, chips: float, peak: float, share: float) -> float:
    kernels = {"eff_flops": share, "eff_bandwidth": 1, "launch": "0 us", "basis": "assumed"}
    kinds = {kind: {"any": {"default": kernels}} for kind in ("matmul", "lookup")}
    forty = Efficiency.from_mapping({"name": "forty", "kernels": kinds, "engines": {"vllm": {}}})
    where = part(chips * 8.1e11, chips * peak)
    return float(ip.prefill(dense(params), where, BF16, input_tokens=tokens, setting=Setting(efficiency=forty)).time_s)


@answers("accepted", 13)
def accepted(acceptance: float, draft: float, **_: float) -> float:
    return float(expected_tokens(acceptance, draft))


@answers("speed_up", 13, 19)
def faster(acceptance: float, draft: float, cost: float) -> float:
    return float(walltime_factor(expected_tokens(acceptance, draft), draft, cost))


@answers("operations", 19)
def operations(acceptance: float, draft: float, cost: float) -> float:
    return float(operations_factor(expected_tokens(acceptance, draft), draft, cost))


@answers("distinct", 14)
def distinct(tokens: float, experts: float, top_k: float) -> float:
    return float(ip.distinct_experts(experts, top_k, tokens))


@answers("token_per_rank", 15)
def token_per_rank(tp: float) -> float:
    split = Parallel(tp=int(tp), ep=int(tp))
    held = capacity(ip.model("deepseek-v3"), ip.hardware("b200"), ip.precision("fp8"), split, max_model_len=8192)
    return float(held.kv_bytes_per_token_per_gpu)


def gpt_oss(tokens: float, chunk: float) -> tuple[float, float]:
    """Bytes that vLLM reserves for a request: in all, and on windowed layers."""
    held = capacity(
        ip.model("gpt-oss-120b"), ip.hardware("h100"), BF16, version="0.19.0", max_model_len=tokens, max_num_batched_tokens=chunk
    )
    return float(held.request_bytes), float(held.request_fixed_bytes)


@answers("full_layers", 16)
def full_layers(tokens: float, chunk: float) -> float:
    whole, windowed = gpt_oss(tokens, chunk)
    return whole - windowed


@answers("windowed_layers", 16)
def windowed_layers(tokens: float, chunk: float) -> float:
    return gpt_oss(tokens, chunk)[1]


@answers("ridge", 17)
def ridge(part: str, dtype: str) -> float:
    return ip.hardware(part).ridge(dtype)


@answers("ring", 18)
def ring(message: float, ranks: float, bandwidth: float) -> float:
    return float(within_s("all_reduce", message, ranks, Tier("given", "link", bandwidth), LinkRate()))


@pytest.mark.parametrize("figure", FIGURES, ids=str)
def test_figure(figure: Figure) -> None:
    found = ANSWERS[figure.problem, figure.quantity](**figure.inputs) / UNITS[figure.unit]
    low, high = figure.bounds
    assert low - 1e-9 * abs(low) <= found <= high + 1e-9 * abs(high), figure.source


def test_no_problem_is_lost() -> None:
    answered = {problem for problem, _ in ANSWERS}
    assert answered == PROBLEMS == {f.problem for f in FIGURES}
    assert ANSWERS.keys() == {(f.problem, f.quantity) for f in FIGURES}


def test_no_figure_stands_twice_or_without_a_source() -> None:
    names = [(f.problem, f.case, f.quantity) for f in FIGURES]
    assert len(set(names)) == len(names)
    assert all(f.source for f in FIGURES)


# what the tool makes of the same settings with the real models and parts


@pytest.mark.parametrize(("cached", "new"), [(1024, 24), (8192, 2048), (2, 1)])
def test_4_intensity_is_the_formula(cached: float, new: float) -> None:
    assert intensity_of_attention(cached, new) == pytest.approx(cached * new / (cached + new), rel=1e-12)


@pytest.mark.parametrize(("weights", "least"), [("bf16", 241), ("w8a16", 121), ("int8", 240)])
def test_3_critical_batch_of_the_catalog_part(weights: str, least: int) -> None:
    """Ridge times bytes over FLOPs per weight, rounded up; scales and the rows looked up for each token add a little."""
    v5e, model, precision, batch = ip.hardware("v5e"), dense(7e9), ip.precision(weights), np.arange(1.0, 512.0)
    found = ip.decode(model, v5e, precision, context=1, batch=batch)
    first = float(batch[np.argmax(found.bound == "compute")])
    roofs_meet = v5e.ridge(precision.compute_of("mlp")) * ip.weight_bytes(model, precision) / (2 * 7e9)
    assert np.ceil(roofs_meet) == least
    assert least <= first <= least + 1


def test_5_thirty_billion_is_what_it_says() -> None:
    assert THIRTY.params == 30e9 + 8000
    assert ip.kv_bytes_per_token(THIRTY, BF16) == 100e3


def test_5_the_floor_lies_below_the_sum_that_the_text_takes() -> None:
    """A perfect overlap of attention with products would hide 5 ms of them; kernels in turn, as in the text, do not."""
    precision, where = ip.precision("body=int8-weight-only,kv=bf16"), part(16 * 8.1e11, 16 * 1.97e14)
    found = ip.decode(THIRTY, where, precision, context=8192, batch=256)
    assert float(found.floor_s) == pytest.approx((30e9 + 256 * 8192 * 100e3) / (16 * 8.1e11), rel=1e-3)
    assert float(found.time_s) == pytest.approx((256 * 8192 * 100e3) / (16 * 8.1e11) + 2 * 256 * 30e9 / (16 * 1.97e14), rel=2e-3)


@pytest.mark.parametrize("batch", [1, 8, 16, 32, 64, 240])
def test_6_llama_2_13b_on_8_v5e(batch: int) -> None:
    """The real figures: the token table is not read but for a row, norms lie on each rank, 819 GB/s: within 1 % of the text's."""
    model, setting = ip.model("llama-2-13b"), Setting(Parallel(tp=8))
    found = ip.decode(model, ip.hardware("v5e"), BF16, context=8192, batch=batch, setting=setting)
    products = model.params - 32_000 * 5120
    assert float(found.memory_s) == pytest.approx((2 * products + batch * 819_200 * 8192) / (8 * 819e9), rel=2e-4)
    assert float(found.floor_s) == pytest.approx((26e9 + 6.7e9 * batch) / 6.56e12, rel=0.01)


def test_7_eight_kv_heads_for_forty_cut_the_cache_by_five() -> None:
    """The text keeps 26 GB of weights; with fewer KV heads their projections shrink as well."""
    wide = ip.model("llama-2-13b")
    block = wide.blocks["layer"]
    mixer = block.mixers[0].model_copy(update={"kv_heads": 8})
    shape = {"hidden": 5120, "vocab": 32_000, "layers": "layer*40"}
    blocks = {"layer": {"mixer": mixer.model_dump(), "ffn": block.ffns[0].model_dump()}}
    narrow = Model.from_mapping({"name": "narrow", "title": "Narrow", **shape, "blocks": blocks})
    assert float(ip.sequence_bytes(wide, BF16, 8192.0)) == 5 * float(ip.sequence_bytes(narrow, BF16, 8192.0))
    assert float(ip.sequence_bytes(narrow, BF16, 8192.0)) / 1e9 == pytest.approx(1.34, abs=0.005)
    assert wide.params - narrow.params == 40 * 2 * 5120 * 32 * 128


def test_10_llama_3_70b_on_8_v5e() -> None:
    """The smallest slice and 17 ms come out with all that the text leaves out: the head in 16 bit, scales, exact bytes per token."""
    model, precision = ip.model("llama-3-70b"), ip.precision("w8a16", kv="int8-tensor")

    def on(chips: int):
        return estimate(
            model, ip.hardware("v5e"), precision, input_tokens=8191, output_tokens=1, batch=32, parallel=Parallel(tp=chips),
            engine="ideal", efficiency="ideal",
        )  # fmt: skip

    assert not on(4).fits
    found = on(8)
    assert found.fits
    assert round(float(found.decode.floor_s[-1]) * 1e3) == 17


@pytest.mark.parametrize(("weights", "kv", "chips"), [("bf16", "bf16", 16), ("w8a16", "int8-tensor", 8), ("w4a16", "int4", 4)])
def test_11_the_smallest_slice_of_llama_3_70b(weights: str, kv: str, chips: int) -> None:
    def fits(tp: int) -> bool:
        split, precision = Parallel(tp=tp), ip.precision(weights, kv=kv)
        return estimate(
            ip.model("llama-3-70b"), ip.hardware("v5e"), precision, input_tokens=8191, output_tokens=1, parallel=split,
            engine="ideal", efficiency="ideal",
        ).fits  # fmt: skip

    assert next(tp for tp in (1, 2, 4, 8, 16) if fits(tp)) == chips


@pytest.mark.parametrize("halvings", [0, 1, 2])
def test_11_the_room_left_holds_43_sequences_in_each_width(halvings: int) -> None:
    """The text prints 43, 52 and 67; chips, weights and caches all halve, so that what is left holds the same number."""
    share = 2.0**-halvings
    assert float(Fit(16 * share * 16e9, 140e9 * share, 327_680 * 8192 * share, 1).sequences) == 43


def test_11_more_ranks_than_kv_heads_hold_copies() -> None:
    """The text deals 8 KV heads out over 16 chips; tensor parallelism alone copies them, context parallelism deals them out."""
    model, v5e = ip.model("llama-3-70b"), ip.hardware("v5e")
    plain, dealt = (float(ip.decode(model, v5e, BF16, context=8192, setting=Setting(Parallel(tp=16, dcp=dcp))).kv_bytes) for dcp in (1, 2))
    assert plain == 2 * dealt == 327_680 * 8192 / 8


def test_11_cache_dealt_out_over_16_chips() -> None:
    """As in the text each chip keeps a sixteenth of a sequence, so that 16 chips of 16 GB hold 43 and more."""
    model, v5e = ip.model("llama-3-70b"), ip.hardware("v5e")
    held = capacity(model, v5e, BF16, Parallel(tp=16, dcp=2), "ideal", max_model_len=8192, max_num_seqs=43)
    assert float(held.request_bytes) == 327_680 * 8192 / 16
    assert held.fits


def test_12_llama_3_70b_prefill_is_the_rule_and_attention() -> None:
    """2 FLOP per weight of a layer and token; the table is looked up, the head serves one position; attention adds 8 %."""
    model, tokens = ip.model("llama-3-70b"), 8192
    found = ip.prefill(model, ip.hardware("v5e"), BF16, input_tokens=tokens, setting=Setting(Parallel(tp=8)))
    flops = {kind: 8 * float(f) for kind, (f, _) in found.by("kind").items()}
    norms, table = 161 * 8192, 128_256 * 8192
    assert flops["matmul"] == gemm_flops(tokens, 1, model.params - norms - 2 * table)
    assert flops["head"] == gemm_flops(1, 1, table)
    assert flops["attention_prefill"] == 4 * 64 * 128 * 80 * tokens * (tokens + 1) / 2
    assert float(found.compute_s) * 8 / 16 / 0.4 == pytest.approx(0.91, rel=0.06)


@pytest.mark.parametrize(("tokens", "measured"), [(32, 164), (64, 226)])
def test_14_distinct_experts_as_measured_and_as_read(tokens: int, measured: int) -> None:
    model, precision = ip.model("deepseek-v3"), ip.precision("fp8")
    expected = ip.distinct_experts(256, 8, tokens)
    assert expected == pytest.approx(measured, rel=0.02)
    read = float(ip.decode(model, ip.hardware("b200"), precision, context=1024, batch=tokens).by("part")["experts"][1])
    assert read / ip.weight_bytes_by_part(model, precision)["experts"] == pytest.approx(expected / 256, rel=1e-9)


def test_15_a_rank_reads_the_latent_whole() -> None:
    model, b200 = ip.model("deepseek-v3"), ip.hardware("b200")
    for tp in (1, 8):
        short, long = (
            ip.decode(model, b200, ip.precision("fp8"), context=context, setting=Setting(Parallel(tp=tp))) for context in (1000, 1001)
        )
        assert float(long.kv_bytes - short.kv_bytes) == 70_272


def test_18_on_h100_the_switch_beats_the_ring() -> None:
    found = float(comm_s("all_reduce", 16 * 2**20, 8, ip.hardware("h100"), Efficiency.ideal()))
    assert found == pytest.approx((1 + 1 / 8) * 16 * 2**20 / 450e9)
    assert found < 65.2e-6


@pytest.mark.parametrize("draft", sorted({int(f.inputs["draft"]) for f in FIGURES if f.problem == 19}))
def test_19_operations_times_speed_up_is_what_a_verify_costs(draft: int) -> None:
    """At no cost of drafting the kept tokens cancel: a verify does draft + 1 times the products and reads the weights once."""
    model, h100 = dense(7e9), ip.hardware("h100")
    one, pass_ = ip.decode(model, h100, BF16, context=1), verify(model, h100, BF16, context=1, draft=draft)
    assert float(pass_.weight_bytes) == pytest.approx(float(one.weight_bytes), rel=1e-4)
    found = float(pass_.flops / one.flops)
    rows = [f for f in FIGURES if f.problem == 19 and f.inputs["draft"] == draft]
    for case in {f.case for f in rows}:
        printed = {f.quantity: float(f.printed) for f in rows if f.case == case}
        more, gain = printed["operations"], printed["speed_up"]
        assert abs(more * gain - found) <= 0.005 * (more + gain)
