"""Quantisation: bytes known by hand, properties, crossings, refusals, command line, pictures, measured gains."""

import csv
import importlib
import json
import math
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferplan.cli.app import main
from inferplan.deployment import Estimate, estimate
from inferplan.engine.cache_bytes import kv_bytes_per_token
from inferplan.errors import NotFound, SpecError
from inferplan.memory.weights import weight_bytes
from inferplan.names import hardware, model, precision
from inferplan.quantization.answer import SWEEP, Quantized, crossing, quantized, window
from inferplan.quantization.quality import published
from inferplan.quantization.stored import Stored, cached, stored, stored_by_part
from inferplan.quantization.support import caution, own_cache, refusal, support
from inferplan.readers.opening import open_model
from inferplan.report.quantization import MEASURE, ROW, record, rows
from inferplan.report.quantization_plots import plot_quantization
from inferplan.roofline.efficiency import Efficiency
from inferplan.specs.engine import Engine
from inferplan.specs.parallel import Parallel
from inferplan.specs.precision import Precision
from inferplan.terms import TERMS

ROOT = Path(__file__).parents[1]
SEVEN, EIGHT = model("llama-2-7b"), model("llama-3.1-8b")
NARROWER = ("bf16", "gptq-int8-g128", "gptq-int4-g128", "gptq-int3-g128", "gptq-int2-g128")


def run(weights: str, kv: str, gpu: str = "h100", **options: object) -> Estimate:
    return estimate(EIGHT, hardware(gpu), precision(weights, kv), **options)  # type: ignore[arg-type]


@cache
def answer(gpu: str = "h100") -> Quantized:
    return quantized(lambda w, kv: run(w, kv, gpu), ["bf16", "fp8", "int8", "w4a16"], ["bf16", "fp8"])


# bytes


def test_a_7b_in_16_8_and_4_bit() -> None:
    wide, eight, four = (stored(SEVEN, precision(name)) for name in ("fp16", "int8", "int4-g128"))
    assert wide.total_bytes == 2 * SEVEN.params
    body = SEVEN.params - 2 * 32000 * 4096 - 65 * 4096  # all but token table, head and norms
    assert (eight.code_bytes, four.code_bytes) == (body, body / 2)
    assert four.scale_bytes == body / 128 * 2
    assert eight.wide_bytes == four.wide_bytes == 2 * (SEVEN.params - body)
    assert four.bits_per_weight == pytest.approx(4.125, rel=1e-12)


def test_the_scales_of_the_int8_cache_by_hand() -> None:
    layers, heads, size = 32, 8, 128
    found = cached(EIGHT, precision("bf16", "int8"))
    assert found.token_code_bytes == layers * 2 * heads * size  # K and V, a byte each
    assert found.token_scale_bytes == layers * heads * 2  # V: a 16-bit scale per token and head
    assert found.sequence_scale_bytes == layers * heads * size * 2  # K: a 16-bit scale per channel, for all tokens
    four = cached(EIGHT, precision("bf16", "int4"))
    assert (four.token_code_bytes, four.token_scale_bytes) == (layers * heads * size, layers * 2 * heads * 2 * 2)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b", "gpt-oss-20b", "deepseek-v3", "gemma-2-9b"])
@pytest.mark.parametrize("weights", ["bf16", "fp8", "awq", "nvfp4", "mxfp4", "q4_k_m"])
def test_parts_add_up_to_the_weights(name: str, weights: str) -> None:
    shape, kept = model(name), precision(weights)
    found = stored(shape, kept)
    assert found.total_bytes == pytest.approx(weight_bytes(shape, kept), rel=1e-12)
    assert min(found.code_bytes, found.scale_bytes, found.wide_bytes) >= 0
    assert sum(stored_by_part(shape, kept).values(), Stored()) == found


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3", "gemma-2-9b"])
@pytest.mark.parametrize("kv", ["bf16", "fp8", "q8_0"])
def test_parts_add_up_to_the_cache(name: str, kv: str) -> None:
    shape, kept = model(name), precision("bf16", kv)
    found = cached(shape, kept)
    assert found.token_bytes == pytest.approx(float(kv_bytes_per_token(shape, kept)), rel=1e-12)
    assert found.token_scale_bytes >= 0


@settings(max_examples=30, deadline=None)
@given(i=st.integers(0, len(NARROWER) - 2), name=st.sampled_from(["llama-2-7b", "mixtral-8x7b", "qwen3-8b", "gemma-2-9b"]))
def test_narrower_never_stores_more(i: int, name: str) -> None:
    shape = model(name)
    wide, narrow = (stored(shape, precision(w)) for w in NARROWER[i : i + 2])
    assert narrow.total_bytes < wide.total_bytes
    assert not wide.code_params or narrow.code_params == wide.code_params


def test_devices_replicate_a_cache_of_few_heads() -> None:
    for tp, copies in ((1, 1), (8, 1), (16, 2)):
        found = quantized(lambda w, kv, tp=tp: run(w, kv, parallel=Parallel(tp=tp)), ["bf16"], ["bf16", "fp8"])  # type: ignore[misc]
        assert [o.cache_copies for o in found.options] == pytest.approx([copies, copies])


# speed and room


def test_savings_and_gains_are_those_of_the_estimates() -> None:
    q = answer()
    plain = run("bf16", "bf16")
    for o in q.options:
        assert o.estimate is not None
        assert o.loads is not None
        assert o.saving == pytest.approx(1 - weight_bytes(EIGHT, o.precision) / weight_bytes(EIGHT, precision("bf16")))
        assert o.loads.batch.tolist()[:2] == [1, 8]
        assert o.loads.batch[-1] == min(o.max_sequences, 1024)
        assert o.loads.tpot_s[0] == pytest.approx(o.estimate.tpot_s, rel=2e-3)  # at the middle context
        assert o.speed_up[0] == pytest.approx(plain.tpot_s / o.estimate.tpot_s, rel=2e-3)
    assert q.options[0].speed_up == pytest.approx(np.ones(3))


def test_products_and_reads() -> None:
    on = {gpu: {o.precision.name: o for o in answer(gpu).options} for gpu in ("a100", "h100")}
    assert (on["h100"]["fp8"].computed_in, on["h100"]["fp8"].reads_only) == ("fp8", False)
    assert (on["a100"]["fp8"].computed_in, on["a100"]["fp8"].reads_only) == ("bf16", True)
    assert on["h100"]["fp8"].product_gain == pytest.approx(2, rel=1e-3)
    assert on["a100"]["fp8"].product_gain == 1
    assert on["a100"]["int8"].product_gain == pytest.approx(2, rel=1e-3)
    assert all(parts["w4a16"].reads_only and not parts["bf16"].reads_only for parts in on.values())


def test_a_narrower_cache_holds_more_and_no_fewer_requests() -> None:
    by = {(o.precision.name, o.precision.kv.name): o for o in answer().options}
    for weights in ("bf16", "fp8", "w4a16"):
        wide, narrow = by[weights, "bf16"], by[weights, "fp8"]
        assert narrow.kv_cache_tokens == pytest.approx(2 * wide.kv_cache_tokens, rel=1e-3)
        assert narrow.max_sequences > wide.max_sequences


# crossings


def test_at_the_crossing_both_are_equally_fast() -> None:
    narrow, wide = run("w4a16", "bf16", "a100"), run("bf16", "bf16", "a100")
    at = crossing(narrow, wide, 2.0 ** np.arange(0, 12.01, 1 / 64))
    assert at is not None
    assert crossing(narrow, wide, np.array([0.98 * at])) is None
    assert crossing(narrow, wide, np.array([1.02 * at])) == pytest.approx(1.02 * at)
    coarse = crossing(narrow, wide)
    assert coarse == pytest.approx(at, rel=0.02)


def test_one_call_over_batches_is_as_many_calls() -> None:
    narrow, wide = run("w4a16", "bf16"), run("fp8", "bf16")
    slower = [crossing(narrow, wide, np.array([b])) is not None for b in SWEEP]
    first = next(i for i, s in enumerate(slower) if s)
    at = crossing(narrow, wide)
    assert at is not None
    assert SWEEP[first - 1] <= at <= SWEEP[first]


def test_dearer_widening_stops_paying_earlier() -> None:
    base = Efficiency.default()
    old = base.kernels["matmul"]["int4-weight-only"]["nvidia-hopper"]
    found = []
    for share in (0.25, 0.5, 0.75):
        entry = old.model_copy(update={"eff_flops": share})
        matmul = {**base.kernels["matmul"], "int4-weight-only": {"nvidia-hopper": entry}}
        e = base.model_copy(update={"kernels": {**base.kernels, "matmul": matmul}})
        at = crossing(run("w4a16", "bf16", efficiency=e), run("bf16", "bf16", efficiency=e))
        found.append(math.inf if at is None else at)
    assert found == sorted(found)
    assert found[0] < found[1]


def test_crossings_without_a_reason() -> None:
    plain = run("bf16", "bf16")
    assert crossing(plain, plain) == 1.0
    assert crossing(run("w4a16", "bf16", efficiency="ideal"), run("bf16", "bf16", efficiency="ideal"), np.array([1.0, 2.0])) is None


def test_experts_pay_only_from_some_requests_on() -> None:
    experts, part, split = model("deepseek-v3"), hardware("h200"), Parallel(tp=8)
    narrow, wide = (estimate(experts, part, precision(w, "bf16"), parallel=split) for w in ("w4a16", "bf16"))
    start, stop = window(narrow, wide)
    assert start is not None
    assert stop is not None
    assert 1 < start < 8 < stop
    below, above = (window(narrow, wide, np.array([start * x]))[0] for x in (0.9, 1.1))
    assert (below is None, above is None) == (True, False)


def test_crossings_are_of_weights_that_are_only_stored_narrow() -> None:
    names = {(c.option.precision.name, c.other.name) for c in answer("h100").crossings}
    assert names == {("w4a16", "bf16"), ("w4a16", "fp8")}
    assert {(c.option.precision.name, c.other.name) for c in answer("a100").crossings} == {("w4a16", "bf16"), ("fp8", "bf16")}


# what does not run


def test_the_table_of_engines_names_what_exists() -> None:
    known = {n: precision(n).weights for n in ("bf16", "awq", "gptq", "int8", "fp8", "nvfp4", "q4_k", "llm-int8", "exl2-4.0", "mxfp4")}
    known |= {n: precision(n).weights for n in ("w4a8", "torchao-int4")}
    families = {f.family for f in known.values()} | {"mxfp4", "int8"}
    for engine in ("vllm", "sglang", "tensorrt-llm", "tgi", "llama.cpp", "ik-llama.cpp"):
        found = support(Engine.find(engine).name)
        assert {row.use for row in found} == {"weights", "kv"}
        for row in found:
            assert row.source.startswith("https://")
            assert row.use == "kv" or row.format in families, row
            if row.own:
                assert own_cache(Engine.find(engine), precision("bf16", row.format).kv).name == row.own


def test_refusals() -> None:
    llama, trt = Engine.find("llama.cpp"), Engine.find("tensorrt-llm")
    assert refusal(llama, hardware("h100"), precision("q4_k_m")) == ""
    assert "no fp8 weights" in refusal(llama, hardware("h100"), precision("fp8"))
    assert refusal(trt, hardware("h100"), precision("fp8", "fp8")) == ""
    assert "only on parts that multiply in fp4" in refusal(trt, hardware("h100"), precision("nvfp4"))
    assert "keeps no int8-kv cache" in refusal(Engine.find("vllm"), hardware("h100"), precision("bf16", "int8"))
    assert refusal(Engine.find("ideal"), hardware("h100"), precision("q4_k_m", "int4")) == ""
    assert "experimental" in caution(Engine.find("vllm"), precision("q4_k_m"))


def test_what_does_not_run_is_a_row_with_its_reason() -> None:
    found = quantized(lambda w, kv: run(w, kv, engine="tensorrt-llm"), ["bf16", "nvfp4"], ["bf16", "int8"])
    assert [o.precision.kv.name for o in found.options[::2]] == ["bf16", "int8-tensor-kv"]
    narrow = found.options[1]
    assert not narrow.runs
    assert narrow.stored.total_bytes < found.options[0].stored.total_bytes
    assert np.isnan(narrow.speed_up).all()
    row = next(r for r in rows([found]) if r["weight_format"] == "nvfp4")
    assert "fp4" in row["reason"]
    assert "tpot_s" not in row


@pytest.mark.parametrize(
    ("weights", "kv", "rule"),
    [
        ([], ["bf16"], "must name 1 to 32 formats"),
        (["bf16", "bf16"], ["bf16"], "stands twice"),
        (["w4a16", "int4"], ["bf16"], "is w4a16, which 'w4a16' names already"),
        (["bf16"], ["int8", "int8-kv"], "is int8-kv, which 'int8' names already"),
    ],
)
def test_lists_are_checked(weights: list[str], kv: list[str], rule: str) -> None:
    with pytest.raises(SpecError, match=rule):
        quantized(run, weights, kv)


def test_unknown_formats_have_near_misses() -> None:
    with pytest.raises(NotFound, match=r"'awqq'; near it: awq"):
        quantized(run, ["awqq"], ["bf16"])
    with pytest.raises(NotFound, match=r"no KV format called 'fp9'"):
        quantized(run, ["bf16"], ["fp9"])


# quality


def test_every_published_figure_is_of_a_known_model_and_format() -> None:
    with (ROOT / "validation" / "quality.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert len(found) > 60
    for row in found:
        shape, kept = open_model(row["model"]).model, Precision.named(row["weights"])
        assert (shape.name, kept.name) == (row["model"], row["weights"])
        assert row["url"].startswith("https://")
        if row["quantised"]:
            assert float(row["ratio"]) == pytest.approx(float(row["quantised"]) / float(row["base"]), abs=1e-4)
        assert row["measure"] in {q.measure for q in published(shape, kept)}


def test_no_figure_is_made_up() -> None:
    assert published(EIGHT, precision("nvfp4")) == ()
    assert published(EIGHT, precision("w4a16", "fp8")) == ()
    assert [q.recovery for q in published(model("llama-2-70b"), precision("q4_k_m"))] == [None]


# the command


def command(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(["quantize", "--model", "llama-3.1-8b", *words])
    return code, *capsys.readouterr()


def test_the_screen_answers_first(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    code, out, _ = command("--gpu", "a100,h100", "--formats", "bf16,fp8,w4a16", "--kv", "bf16,int8", capsys=capsys)
    assert code == 0
    said = out.split("\n\n")
    assert said[1].startswith("On one NVIDIA A100 SXM4 80GB w4a16 answers one request fastest") or "w4a16" in said[1]
    assert "Not run: vLLM keeps no int8-kv cache" in out
    assert "512 B (0.78 %)" in out
    assert "98.9 % of OpenLLM v1" in out.replace("\n", " ")
    assert "Stops paying on h100-sxm5-80gb" in out
    assert MEASURE in out


def test_the_record_and_the_rows_have_the_keys_of_the_glossary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command(
        "--gpu", "h100", "--formats", "bf16,w4a16", "--kv", "fp8", "--json", "--csv", str(tmp_path / "x.csv"), capsys=capsys
    )
    found = json.loads(out)
    assert code == 0
    assert set(ROW) <= set(TERMS)
    assert set(found) - {"rows", "crossings", "quality"} <= set(TERMS)
    assert {"against", "stops_paying_at"} <= set(found["crossings"][0])
    written = list(csv.DictReader((tmp_path / "x.csv").read_text().splitlines()))
    assert [float(r["batch"]) for r in written[:2]] == [1, 8]
    assert len(written) == len(found["rows"]) == 6
    assert float(written[3]["weight_bytes"]) == weight_bytes(EIGHT, precision("w4a16"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--formats", "bf16,q4km"], "no precision called 'q4km'; near it: "),
        (["--formats", ""], "--formats: must name 1 to 32 formats"),
        (["--formats", "fp8,fp8"], "--formats: fp8: stands twice"),
        (["--kv", "fp8,kv-fp8"], "kv-fp8"),
        (["--dtype", "fp8"], "--dtype: fp8: is of no account here"),
        (["--plot", "x.jpeg"], "must end in .png, .svg or .pdf"),
        (["--gpu", "h100,h100"], "names a part twice"),
        (["--gpu", "h1000"], "h1000"),
        (["--isl", "0"], "--isl"),
    ],
)
def test_wrong_input_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = command("--gpu", "h100", *words, capsys=capsys)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert said in err


def test_nothing_that_fits_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", "--model", "70b", "--gpu", "4090", "--formats", "bf16,fp8", "--kv", "bf16"]) == 1
    assert "none of these formats fits" in capsys.readouterr().out.replace("\n", " ")


def test_the_picture(tmp_path: Path) -> None:
    found = [answer("a100"), answer("h100")]
    ax = plot_quantization(found)
    bars = {p.get_gid() for p in ax.patches} | {b.get_label() for b in ax.containers}
    assert {"values", "scales", "wide", "cache"} <= bars
    assert len(ax.figure.axes) == 3
    assert [t.get_text() for t in ax.get_yticklabels()][:2] == ["bf16, bf16 KV", "fp8, bf16 KV"]
    latency = ax.figure.axes[1]
    assert latency.containers[0][0].get_width() == pytest.approx(float(found[0].options[0].speed_up[0] * _tpot(found[0])))


def _tpot(q: Quantized) -> float:
    loads = q.options[0].loads
    assert loads is not None
    return float(loads.tpot_s[0])


def test_the_record_is_whole() -> None:
    found = record([answer()])
    assert len(found["rows"]) == 3 * len(answer().options)
    assert found["quality"]


# measured


@cache
def accuracy() -> ModuleType:
    sys.path.insert(0, str(ROOT / "tools"))
    return importlib.import_module("quantization_accuracy")


def test_pairs_state_their_source_and_ratio() -> None:
    for row in accuracy().read():
        assert row["source"]
        narrow, plain = float(row["quantised"]), float(row["base"])
        assert min(narrow / plain, plain / narrow) == pytest.approx(min(float(row["speed_up"]), 1 / float(row["speed_up"])), rel=1e-3)
        assert row["weights"] != row["base_weights"] or row["kv"] != row["base_kv"]


def test_measured_gains_on_a_sample() -> None:
    """Every seventh pair of A100, H100 and RTX 4090 with fused kernels: within 15 % in the median."""
    tool = accuracy()
    asked = [r for r in tool.read() if r["gpu"].startswith(tool.ASKED) and r["kernels"] == "fused" and r["quantity"] != "saturated"][::7]
    found = [tool.outcome(r) for r in asked]
    assert not any(o.refused for o in found)
    assert median(abs(o.error) for o in found) <= 0.10
    for name in ("fp8", "int8", "int4"):
        assert median(abs(o.error) for o in found if tool.width(o.row).startswith(name)) <= 0.15, name


@pytest.mark.slow
def test_the_tables_in_the_docs_are_the_tables() -> None:
    tool = accuracy()
    found = [tool.outcome(row) for row in tool.read()]
    text = (ROOT / "docs" / "quantization.md").read_text()
    lines = [f"| {' | '.join(line)} |" for line in (*tool.summary(found), *tool.kernel_table())]
    missing = [line for line in lines if line not in text]
    assert not missing, "run tools/quantization_accuracy.py"
    assert sum(tool.refusals(found).values()) == 4


def test_unfused_kernels_lose() -> None:
    e = Efficiency.load(str(ROOT / "calibration" / "unfused.yaml"))
    plain, narrow = (run(w, "bf16", efficiency=e) for w in ("bf16", "w4a16"))
    assert crossing(narrow, plain) == 1.0
    assert 2.5 < narrow.tpot_s / plain.tpot_s < 4
    assert replace(plain.setting, efficiency=e).ideal is False
