"""The estimate as a whole: times beside floors, encoders, limits, what a precision changes, parts without a memory size."""

from __future__ import annotations

import re

import numpy as np
import pytest

from inferplan.cli.app import main
from inferplan.deployment import Estimate, Load, batches, estimate, remedies
from inferplan.errors import Unsupported
from inferplan.names import hardware, model, precision
from inferplan.report.estimates import record, ridges_of


def of(name: str, part: str, dtype: str, **more: object) -> Estimate:
    return estimate(model(name), hardware(part), precision(dtype), **more)  # type: ignore[arg-type]


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["estimate", *words])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(("tokens_in", "tokens_out", "expected"), [(10, 1, [11]), (10, 2, [11]), (10, 4, [11, 12, 13])])
def test_contexts_are_those_of_the_decode_steps(tokens_in: int, tokens_out: int, expected: list[int]) -> None:
    assert Load(tokens_in, tokens_out).contexts.tolist() == expected


def test_many_contexts_are_sampled_evenly_between_the_ends() -> None:
    found = Load(1000, 5001).contexts
    assert (found[0], found[-1], len(found)) == (1001, 6000, 64)
    assert np.ptp(np.diff(found)) <= 1


@pytest.mark.parametrize("part", ["h100", "a100", "rtx-4090", "mi300x", "m3-max", "tpu-v5e"])
@pytest.mark.parametrize("batch", [1, 16])
def test_no_estimate_lies_below_its_floor(part: str, batch: int) -> None:
    e = of("llama-3.1-8b", part, "bf16", batch=batch)
    assert e.ttft_s >= e.floor_ttft_s > 0
    assert e.tpot_s >= e.floor_tpot_s > 0


@pytest.mark.parametrize(
    ("engine", "layers_s", "apart_s"), [("vllm", 32 * 362e-6, 0.0), ("sglang", 32 * 1025e-6, 0.1134), ("tensorrt-llm", 32 * 85e-6, 0.0187)]
)
def test_a_first_token_has_the_steps_and_the_front_end(engine: str, layers_s: float, apart_s: float) -> None:
    """By hand from calibration/serving.yaml: 32 layers, 1,024 tokens of 5.6 us, and what passes beside; in the gaps there is none of it."""
    e = of("llama-3.1-8b", "h100", "fp8", engine=engine, batch=4)
    front_s = apart_s + layers_s + 1024 * 5.6e-6
    assert e.prompt_front_end_s == pytest.approx(front_s, rel=1e-9)
    assert e.ttft_s == pytest.approx(e.prefill_s + front_s, rel=1e-12)
    assert e.prefill_s == pytest.approx(float(np.mean(e.prefill_step.time_s)) * e.microbatches, rel=1e-12)
    assert e.e2e_s == pytest.approx(e.prefill_s + front_s + 255 * e.tpot_s, rel=1e-12)
    assert batches(e, np.array([4.0])).ttft_s == pytest.approx([e.ttft_s], rel=1e-9)
    told = record(e)
    assert (told["ttft_s"], told["prefill_s"], told["front_end_s"]) == (e.ttft_s, e.prefill_s, e.prompt_front_end_s)


@pytest.mark.parametrize(
    ("name", "more"), [("llama-3.1-8b", {"efficiency": "ideal"}), ("llama-3.1-8b", {"engine": "pytorch"}), ("bert-base", {})]
)
def test_floors_loops_of_pytorch_and_encoders_have_no_front_end(name: str, more: dict[str, str]) -> None:
    e = of(name, "h100", "bf16", input_tokens=256, **more)
    assert (e.prompt_front_end_s, e.ttft_s) == (0, e.prefill_s)


def test_the_screen_says_what_of_a_first_token_the_front_end_is(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = said(capsys, "-m", "llama-3.1-8b", "-g", "h100", "-d", "fp8")
    e = of("llama-3.1-8b", "h100", "fp8")
    assert f"{1e3 * e.ttft_s:.1f} ms to the first token" in out
    assert "TTFT has about 17.3 ms that host and front end take beside the steps." in " ".join(out.split())
    assert re.search(rf"^prefill +{1e3 * float(np.mean(e.prefill.time_s)):.1f} ms", out, re.MULTILINE), "the table of steps has steps alone"
    assert "front end" not in said(capsys, "-m", "llama-3.1-8b", "-g", "h100", "-d", "fp8", "--efficiency", "ideal")[1]


def test_the_ideal_calibration_gives_operators_in_turn_and_no_more() -> None:
    e = of("llama-2-7b", "h100", "fp16", efficiency="ideal", engine="ideal")
    steps = [float(np.mean(e.decode.op_s(op))) for op in e.decode.ops]
    assert e.tpot_s == pytest.approx(sum(steps), rel=1e-12)
    assert e.tpot_s < 1.02 * e.floor_tpot_s


def test_batches_grow_throughput_and_never_shorten_a_step() -> None:
    b = batches(of("llama-3.1-8b", "h100", "bf16"))
    assert np.all(np.diff(b.tpot_s) > 0)
    assert np.all(np.diff(b.output_tokens_per_s) > 0)
    assert b.batch.tolist() == [2.0**i for i in range(len(b.batch))]


def test_an_encoder_has_one_pass(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "-m", "bert-base", "-g", "h100", "--isl", "512", "-b", "8")
    assert code == 0
    assert "8 inputs of 512 tokens take" in out
    assert "decode" not in out.lower()
    assert "tokens/s" not in out


def test_an_encoder_attends_to_both_sides() -> None:
    e = of("bert-base", "h100", "fp16", input_tokens=512)
    scores = next(op for op in e.prefill.ops if op.name == "layer.scores")
    assert float(np.asarray(scores.flops)) == 12 * 2 * 12 * (64 + 64) * 512**2


def test_a_request_beyond_the_context_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Warning: 100,256 tokens, but the model takes 4,096" in said(capsys, "-m", "7b", "-g", "h100", "--isl", "100000")[1]
    assert "Warning" not in said(capsys, "-m", "7b", "-g", "h100", "--isl", "1000")[1]


@pytest.mark.parametrize("dtype", ["mxfp4", "nvfp4-experts"])
def test_a_precision_that_changes_nothing_is_refused(dtype: str) -> None:
    with pytest.raises(Unsupported, match="changes nothing here: it quantises experts"):
        of("llama-3.1-8b", "h100", dtype)
    assert of("gpt-oss-20b", "h100", "mxfp4").weight_bytes < 14e9


def test_a_checkpoint_in_fp32_is_run_in_16_bits(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "-m", "t5-large", "-g", "h100")
    assert code == 0
    assert "precision  bf16, bf16 KV" in out
    assert "ridge is at 295 (bf16)" in out


def test_each_ridge_stands_once() -> None:
    e = of("gpt-oss-120b", "h100", "nvfp4-moe")
    assert list(ridges_of(e.decode)) == ["bf16"]


@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "jamba-1.5-mini", "deepseek-v3"])
def test_a_part_without_an_fp32_rate_takes_hybrids(name: str) -> None:
    assert of(name, "tpu-v5e", "bf16").floor_tpot_s > 0


def test_a_part_without_a_memory_size_asks_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = said(capsys, "-m", "7b", "-g", "graviton4")
    assert code == 2
    assert err.count("\n") == 1
    assert "--memory" in err
    code, out, _ = said(capsys, "-m", "7b", "-g", "graviton4", "--memory", "512 GB", "--engine", "llama.cpp")
    assert code == 0
    assert "Usable memory is assumed: as given." in out
    code, _, err = said(capsys, "-m", "7b", "-g", "graviton4", "--memory", "lots")
    assert code == 2
    assert "memory: lots" in err


def test_a_load_that_just_misses_fits_with_a_larger_budget() -> None:
    e = of("gpt-oss-120b", "h100", "mxfp4", utilization=0.88)
    found = remedies(e)
    assert not e.fits
    assert "--utilization 0.95" in found[0].what
    assert of("gpt-oss-120b", "h100", "mxfp4", utilization=0.95).max_sequences == found[0].sequences


def test_a_batch_that_no_offloading_makes_room_for_is_said_not_to_fit(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "-m", "llama-3.1-8b", "-g", "a100", "-b", "2000")
    assert code == 1
    assert "Does not fit" in out


@pytest.mark.parametrize("engine", ["ideal", "llama.cpp"])
def test_slots_are_the_users_choice(engine: str) -> None:
    e = of("llama-2-7b", "h100", "fp16", engine=engine, batch=8)
    assert e.fits
    assert e.max_sequences > 50


def test_a_file_of_ones_own_is_looked_at_with_check(capsys: pytest.CaptureFixture[str], tmp_path: object) -> None:
    from pathlib import Path

    from inferplan.specs.write import model_yaml

    path = Path(str(tmp_path)) / "mine.yaml"
    path.write_text(model_yaml(model("llama-2-7b").model_copy(update={"name": "mine", "aliases": ()})))
    assert f"inferplan check {path}" in said(capsys, "-m", str(path), "-g", "h100")[1].replace("\n", " ")


def test_a_record_has_no_number_that_is_not_finite() -> None:
    import json

    text = json.dumps(record(of("bert-base", "h100", "fp16")), default=float)
    assert "NaN" not in text
