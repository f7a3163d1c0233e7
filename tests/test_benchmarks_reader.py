"""Results of benchmarks as rows of a case file. The results are made by hand, with the field names that the benchmarks write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferplan.calibrate.cases import read_cases
from inferplan.cli.app import main
from inferplan.errors import SpecError
from inferplan.readers.benchmarks import result_rows
from inferplan.readers.benchmarks_llama import weights_of

VLLM = {
    "date": "20260101-120000", "endpoint_type": "vllm", "backend": "vllm", "label": None, "model_id": "meta-llama/Llama-3.1-8B",
    "tokenizer_id": "meta-llama/Llama-3.1-8B", "num_prompts": 80, "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 8,
    "duration": 20.0, "completed": 80, "failed": 0, "total_input_tokens": 40960, "total_output_tokens": 5120, "request_throughput": 4.0,
    "request_goodput": None, "output_throughput": 256.0, "total_token_throughput": 2304.0, "mean_ttft_ms": 40.0, "median_ttft_ms": 38.0,
    "std_ttft_ms": 3.0, "p99_ttft_ms": 70.0, "mean_tpot_ms": 8.0, "median_tpot_ms": 7.9, "std_tpot_ms": 0.2, "p99_tpot_ms": 9.0,
    "mean_itl_ms": 8.1, "median_itl_ms": 7.8, "std_itl_ms": 1.0, "p99_itl_ms": 20.0, "mean_e2el_ms": 544.0, "p99.9_e2el_ms": 700.0,
}  # fmt: skip
SGLANG = {
    "tag": None, "backend": "sglang", "dataset_name": "random", "request_rate": 4.0, "max_concurrency": None, "sharegpt_output_len": None,
    "random_input_len": 1024, "random_output_len": 256, "random_range_ratio": 0.5, "duration": 10.0, "completed": 40,
    "total_input_tokens": 30720, "total_output_tokens": 7680, "total_output_tokens_retokenized": 7679, "request_throughput": 4.0,
    "input_throughput": 3072.0, "output_throughput": 768.0, "mean_e2e_latency_ms": 2000.0, "median_e2e_latency_ms": 1900.0,
    "std_e2e_latency_ms": 10.0, "p99_e2e_latency_ms": 3000.0, "mean_ttft_ms": 50.0, "median_ttft_ms": 45.0, "std_ttft_ms": 1.0,
    "p99_ttft_ms": 90.0, "mean_tpot_ms": 9.0, "median_tpot_ms": 9.0, "std_tpot_ms": 1.0, "p99_tpot_ms": 11.0, "mean_itl_ms": 9.0,
    "median_itl_ms": 8.5, "std_itl_ms": 2.0, "p95_itl_ms": 12.0, "p99_itl_ms": 15.0, "concurrency": 3.7, "accept_length": None,
    "server_info": {"model_path": "Qwen/Qwen3-32B", "tp_size": 2, "dp_size": 1, "ep_size": 1},
}  # fmt: skip
MAX = {
    "hw": "h200-trt", "conc": 64, "model": "deepseek-ai/DeepSeek-R1-0528", "framework": "dynamo-trt", "precision": "fp8", "tp": 8, "ep": 8,
    "dp_attention": "true", "isl": 1024, "osl": 1024, "is_multinode": False, "disagg": False, "spec_decoding": "none",
    "tput_per_gpu": 500.0, "output_tput_per_gpu": 240.0, "input_tput_per_gpu": 260.0, "mean_ttft": 0.4, "median_ttft": 0.35,
    "p99_ttft": 2.0, "mean_tpot": 0.03, "median_tpot": 0.029, "mean_intvty": 33.3, "mean_itl": 0.03, "mean_e2el": 28.0, "std_ttft": 0.1,
}  # fmt: skip


def spread(mean: float) -> dict[str, Any]:
    percentiles = {"p001": 0.0, "p50": mean, "p90": 1.5 * mean, "p99": 2 * mean, "p999": 3 * mean}
    return {"successful": {"mean": mean, "median": mean, "std_dev": 0.1, "count": 30, "percentiles": percentiles}}


GUIDELLM = {
    "metadata": {"version": 1}, "args": {"target": "http://localhost:8000", "model": "Qwen/Qwen3-8B"},
    "benchmarks": [
        {
            "id_": f"run-{n}", "config": {"strategy": strategy}, "duration": 30.0,
            "metrics": {
                "request_totals": {"successful": 30, "errored": 0, "incomplete": 2, "total": 32},
                "prompt_token_count": spread(512.0), "output_token_count": spread(128.0), "requests_per_second": spread(1.0),
                "output_tokens_per_second": spread(128.0), "tokens_per_second": spread(640.0), "time_to_first_token_ms": spread(30.0),
                "inter_token_latency_ms": spread(7.0), "time_per_output_token_ms": spread(99.0), "request_latency": spread(0.92),
            },
        }
        for n, strategy in enumerate((
            {"type_": "synchronous"}, {"type_": "concurrent", "streams": 8}, {"type_": "concurrent", "max_concurrency": 4},
            {"type_": "poisson", "rate": 2.5}, {"type_": "constant", "rate": 2.5}, {"type_": "throughput", "max_concurrency": None},
        ))
    ],
}  # fmt: skip


def stat(unit: str, avg: float) -> dict[str, Any]:
    return {
        "unit": unit,
        "avg": avg,
        "p50": 0.9 * avg,
        "p90": 1.2 * avg,
        "p99": 1.5 * avg,
        "min": 0.0,
        "max": 9 * avg,
        "std": 1.0,
        "count": 160,
    }


AIPERF = {
    "schema_version": "1.3", "aiperf_version": "0.10.0", "benchmark_id": "f43c", "request_throughput": {"unit": "requests/sec", "avg": 3.0},
    "request_latency": stat("ms", 1500.0), "request_count": {"unit": "requests", "avg": 160.0}, "time_to_first_token": stat("ms", 100.0),
    "inter_token_latency": stat("ms", 11.0), "output_token_throughput": {"unit": "tokens/sec", "avg": 384.0},
    "output_sequence_length": stat("tokens", 128.0), "input_sequence_length": stat("tokens", 550.0),
    "input_config": {"endpoint": {"model_names": ["Qwen/Qwen3-0.6B"], "type": "chat"}, "loadgen": {"concurrency": 16}},
}  # fmt: skip
GENAI = {
    **{k: v for k, v in AIPERF.items() if "version" not in k and k not in ("request_count", "benchmark_id")},
    "input_config": {"model_names": ["small_model"], "perf_analyzer": {"stimulus": {"concurrency": 1}}},
}
LLAMA = {
    "build_commit": "abc123", "build_number": 6000, "cpu_info": "AMD Ryzen 9 9950X", "gpu_info": "NVIDIA GeForce RTX 4090",
    "backends": "CUDA", "model_filename": "/models/Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", "model_type": "llama 8B Q4_K - Medium",
    "model_size": 4912898304,
    "model_n_params": 8030261312, "n_batch": 2048, "n_ubatch": 512, "type_k": "q8_0", "type_v": "q8_0", "n_gpu_layers": 99,
    "n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ns": 50_000_000, "stddev_ns": 1, "avg_ts": 10000.0, "stddev_ts": 1.0,
    "samples_ns": [1], "samples_ts": [1.0],
}  # fmt: skip


def rows(value: Any) -> list[dict[str, str]]:
    found = result_rows(json.dumps(value), file="r.json")
    assert found is not None
    return found


def by_statistic(found: list[dict[str, str]]) -> dict[str, dict[str, str]]:
    return {row["statistic"]: row for row in found}


def test_vllm() -> None:
    found = by_statistic(rows(VLLM))
    assert set(found) == {"mean", "median", "p99", "p99.9"}
    shared = {
        "case": "20260101-120000", "model": "meta-llama/Llama-3.1-8B", "engine": "vllm", "tokenizer": "meta-llama/Llama-3.1-8B",
        "input_tokens": "512", "output_tokens": "64", "concurrency": "8", "requests": "80",
    }  # fmt: skip
    assert found["p99"] == {**shared, "statistic": "p99", "ttft_s": "0.07", "tpot_s": "0.009000000000000001", "itl_s": "0.02"}
    mean = {name: float(found["mean"][name]) for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s")}
    assert mean == {"ttft_s": 0.04, "tpot_s": 0.008, "itl_s": pytest.approx(0.0081), "e2e_s": 0.544}
    assert (found["mean"]["requests_per_s"], found["mean"]["output_tokens_per_s"]) == ("4.0", "256.0")
    assert found["mean"]["total_tokens_per_s"] == "2304.0"
    assert float(found["p99.9"]["e2e_s"]) == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("change", "load"),
    [
        ({"max_concurrency": None}, {"concurrency": "80"}),
        ({"max_concurrency": 200}, {"concurrency": "80"}),
        ({"request_rate": 5.0, "max_concurrency": None}, {"rate_per_s": "5.0"}),
        ({"request_rate": 5.0, "max_concurrency": 80}, {"rate_per_s": "5.0"}),
        ({"request_rate": 5.0, "max_concurrency": 8}, {"rate_per_s": "5.0", "concurrency": "8"}),
        ({"request_rate": 5.0, "max_concurrency": None, "burstiness": 0.25}, {"rate_per_s": "5.0", "arrival_cv": "2"}),
    ],
)
def test_loads_of_vllm(change: dict[str, Any], load: dict[str, str]) -> None:
    row = rows({**VLLM, **change})[0]
    assert {k: row[k] for k in ("concurrency", "rate_per_s", "arrival_cv") if k in row} == load


def test_sglang() -> None:
    found = by_statistic(rows(SGLANG))
    assert set(found) == {"mean", "median", "p99", "p95"}
    mean = found["mean"]
    assert (mean["model"], mean["engine"], mean["tp"], mean["rate_per_s"]) == ("Qwen/Qwen3-32B", "sglang", "2", "4.0")
    assert (mean["input_tokens"], mean["output_tokens"], mean["length_ratio"]) == ("1024", "256", "0.5")
    assert (mean["total_tokens_per_s"], mean["e2e_s"], found["p95"]["itl_s"]) == ("3840.0", "2.0", "0.012")
    assert "draft" not in mean


def test_sglang_on_a_data_set_takes_the_means() -> None:
    row = rows({**SGLANG, "dataset_name": "sharegpt"})[0]
    assert (row["input_tokens"], row["output_tokens"], "length_ratio" in row) == ("768", "192", False)


def test_sglang_with_accepted_drafts_says_so() -> None:
    assert rows({**SGLANG, "accept_length": 2.4})[0]["draft"] == "accepted"


def test_lines_of_results_and_the_word_infinity() -> None:
    lines = "\n".join(json.dumps({**SGLANG, "request_rate": float("inf"), "max_concurrency": n}) for n in (1, 16))
    found = result_rows(lines + "\n\n", file="r.jsonl") or []
    assert [row["concurrency"] for row in found if row["statistic"] == "mean"] == ["1", "16"]
    assert not any("rate_per_s" in row for row in found)


def test_inferencemax() -> None:
    found = by_statistic(rows(MAX))
    mean = found["mean"]
    named = {k: mean[k] for k in ("gpu", "engine", "gpus", "tp", "dp", "ep", "concurrency", "protocol", "precision")}
    assert named == {
        "gpu": "h200", "engine": "tensorrt-llm", "gpus": "8", "tp": "8", "dp": "8", "ep": "8", "concurrency": "64",
        "protocol": "inferencemax", "precision": "fp8",
    }  # fmt: skip
    assert (mean["total_tokens_per_s"], mean["output_tokens_per_s"], mean["ttft_s"]) == ("4000.0", "1920.0", "0.4")
    assert found["p99"] == {**{k: v for k, v in found["p99"].items() if k != "ttft_s"}, "ttft_s": "2.0"}
    assert "draft" not in mean


def test_inferencemax_as_its_database_gives_it() -> None:
    flat = ("tput_per_gpu", "output_tput_per_gpu", "mean_ttft", "mean_tpot")
    row = {
        "hardware": "b300", "framework": "vllm", "model": "minimax-m2.5", "precision": "fp8", "spec_method": "mtp", "disagg": False,
        "decode_tp": 2, "decode_ep": 1, "isl": 1024, "osl": 1024, "conc": 64, "metrics": {k: MAX[k] for k in flat},
    }  # fmt: skip
    found = rows([row])[0]
    assert (found["gpu"], found["tp"], found["draft"], found["total_tokens_per_s"]) == ("b300", "2", "mtp", "1000.0")


def test_separate_pools_are_not_taken_for_one() -> None:
    row = rows({**MAX, "disagg": True})[0]
    assert row["protocol"] == "disaggregated"
    assert "total_tokens_per_s" not in row


def test_guidellm() -> None:
    found = rows(GUIDELLM)
    means = [row for row in found if row["statistic"] == "mean"]
    loads = [{k: row.get(k) for k in ("concurrency", "rate_per_s", "arrival_cv")} for row in means]
    assert loads == [
        {"concurrency": "1", "rate_per_s": None, "arrival_cv": None},
        {"concurrency": "8", "rate_per_s": None, "arrival_cv": None},
        {"concurrency": "4", "rate_per_s": None, "arrival_cv": None},
        {"concurrency": None, "rate_per_s": "2.5", "arrival_cv": None},
        {"concurrency": None, "rate_per_s": "2.5", "arrival_cv": "0"},
        {"concurrency": "30", "rate_per_s": None, "arrival_cv": None},
    ]
    first = means[0]
    assert (first["model"], first["input_tokens"], first["output_tokens"], first["requests"]) == ("Qwen/Qwen3-8B", "512", "128", "30")
    assert (float(first["ttft_s"]), float(first["itl_s"]), first["e2e_s"], "tpot_s" in first) == (0.03, 0.007, "0.92", False)
    assert (first["requests_per_s"], first["output_tokens_per_s"], first["total_tokens_per_s"]) == ("1.0", "128.0", "640.0")
    assert {row["statistic"] for row in found} == {"mean", "median", "p90", "p99"}
    assert [row["ttft_s"] for row in found if row["statistic"] == "p99"] == ["0.06"] * 6


def test_guidellm_before_its_configs() -> None:
    run = {**GUIDELLM["benchmarks"][0], "args": {"strategy": {"type_": "async", "rate": 3.0}}, "worker": {"backend_model": "a/b"}}
    del run["config"]
    row = rows({"benchmarks": [run]})[0]
    assert (row["model"], row["rate_per_s"], row["arrival_cv"]) == ("a/b", "3.0", "0")


def test_aiperf() -> None:
    found = by_statistic(rows(AIPERF))
    assert set(found) == {"mean", "median", "p90", "p99"}
    mean = found["mean"]
    assert (mean["model"], mean["concurrency"], mean["requests"], mean["input_tokens"]) == ("Qwen/Qwen3-0.6B", "16", "160", "550")
    assert (mean["ttft_s"], mean["tpot_s"], mean["e2e_s"], mean["requests_per_s"]) == ("0.1", "0.011", "1.5", "3.0")
    assert float(found["p99"]["ttft_s"]) == pytest.approx(0.15)


def test_genai_perf() -> None:
    mean = by_statistic(rows(GENAI))["mean"]
    assert (mean["model"], mean["concurrency"], mean["requests"], mean["tpot_s"]) == ("small_model", "1", "160", "0.011")


def test_units_of_aiperf_are_read() -> None:
    assert by_statistic(rows({**AIPERF, "time_to_first_token": stat("sec", 0.1)}))["mean"]["ttft_s"] == "0.1"
    with pytest.raises(SpecError, match="time_to_first_token, unit: fortnights"):
        rows({**AIPERF, "time_to_first_token": stat("fortnights", 0.1)})


def test_llama_bench() -> None:
    tests = [LLAMA, {**LLAMA, "n_prompt": 0, "n_gen": 128, "n_depth": 4096, "avg_ts": 100.0}, {**LLAMA, "n_gen": 128, "avg_ts": 640.0}]
    prompt, decode, both = rows(tests)
    assert prompt == {
        "case": "pp512", "model": "Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", "gpu": "NVIDIA GeForce RTX 4090", "engine": "llama.cpp",
        "gpu_layers": "99", "host": "AMD Ryzen 9 9950X", "weights": "q4_k_m", "kv": "q8_0", "batch": "1", "statistic": "mean",
        "input_tokens": "512", "prefill_tokens_per_s": "10000.0",
    }  # fmt: skip
    assert (decode["case"], decode["context"], decode["decode_tokens_per_s"]) == ("tg128 @ d4096", "4160", "100.0")
    assert (both["case"], both["input_tokens"], both["output_tokens"], both["e2e_s"]) == ("pp512+tg128", "512", "128", "1.0")


def test_llama_bench_at_a_depth_computes_only_the_prompt() -> None:
    row = rows([{**LLAMA, "n_depth": 2048}])[0]
    assert (row["input_tokens"], row["cached_tokens"]) == ("2560", "2048")


def test_llama_bench_as_a_table() -> None:
    names = ["model_filename", "model_type", "gpu_info", "cpu_info", "n_gpu_layers", "n_prompt", "n_gen", "n_depth", "avg_ts"]
    lines = [",".join(names), ",".join(f'"{LLAMA[name]}"' for name in names), ""]
    found = result_rows("\n".join(lines), file="r.csv")
    assert found is not None
    assert (found[0]["input_tokens"], found[0]["prefill_tokens_per_s"]) == ("512", "10000.0")


def test_llama_bench_on_several_devices_or_none() -> None:
    two = rows([{**LLAMA, "gpu_info": "NVIDIA GeForce RTX 4090, NVIDIA GeForce RTX 4090", "n_gpu_layers": -1}])[0]
    assert (two["gpu"], two["pp"], "gpu_layers" in two) == ("NVIDIA GeForce RTX 4090", "2", False)
    none = rows([{**LLAMA, "n_gpu_layers": 0}])[0]
    assert (none["gpu"], "gpu_layers" in none) == ("AMD Ryzen 9 9950X", False)


@pytest.mark.parametrize(
    ("text", "weights"),
    [("llama 7B all F32", "f32"), ("qwen2 1.5B Q8_0", "q8_0"), ("llama 8B Q3_K - Large", "q3_k_l"), ("gpt-oss 20B MXFP4 MoE", "mxfp4"),
     ("gemma3 4B IQ2_XXS - 2.0625 bpw", "iq2_xxs"), ("llama 8B", None), ("", None)],
)  # fmt: skip
def test_formats_in_types_of_llama_bench(text: str, weights: str | None) -> None:
    assert weights_of(text) == weights


def test_a_table_that_is_no_result_is_left_alone() -> None:
    assert result_rows("model,params\n7b,1\n", file="a.csv") is None
    assert result_rows("", file="a.csv") is None


def test_one_run_is_predicted_where_the_rest_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(VLLM))
    assert main(["validate", str(path), "--gpu", "h100", "--tp", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["by"] == ["quantity", "statistic"]
    assert found["all"]["predicted"] == found["all"]["rows"] == 14
    assert main(["validate", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["refused"] == {"the row names no gpu": 14}


def test_llama_bench_is_predicted_as_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps([LLAMA, {**LLAMA, "n_prompt": 0, "n_gen": 128, "avg_ts": 120.0}]))
    assert main(["validate", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["all"]["predicted"] == 2


def test_layers_on_the_host_count_where_they_are_named(tmp_path: Path) -> None:
    from inferplan.calibrate.validate import outcomes

    path = tmp_path / "bench.json"
    path.write_text(json.dumps([{**LLAMA, "n_prompt": 0, "n_gen": 128, "n_gpu_layers": n, "avg_ts": 50.0} for n in (99, 16)]))
    whole, half = outcomes(read_cases(path)[0])
    assert whole.predicted is not None
    assert half.predicted is not None
    assert half.predicted < 0.5 * whole.predicted


def test_cases_of_results_know_their_statistic_and_columns(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(VLLM))
    cases, columns = read_cases(path, {"gpu": "h100", "model": "7b"})
    assert {c.row["statistic"] for c in cases} == {"mean", "median", "p99", "p99.9"}
    assert "gpu" in columns
    assert {c.row["model"] for c in cases} == {"7b"}


BROKEN = [
    ("[]", "holds no result"),
    ("{}", "is not the result of a benchmark known here (llama-bench"),
    ('{"a": 1', "is not valid JSON"),
    (json.dumps(VLLM)[:-40], "is not valid JSON"),
    ("[1, 2]", "result 1: 1: must be a JSON object"),
    ("[" * 100_000, "is nested too deep"),
    (json.dumps(SGLANG) + "\n" + json.dumps(SGLANG)[:50], "line 2: is not valid JSON"),
    (json.dumps(SGLANG) + "\n[]", "line 2: []: must be a JSON object"),
    (json.dumps({**VLLM, "mean_ttft_ms": "fast"}), "mean_ttft_ms: fast: must be a finite number"),
    (json.dumps({**VLLM, "mean_ttft_ms": float("nan")}), "mean_ttft_ms: nan: must be a finite number"),
    (json.dumps({**VLLM, "mean_ttft_ms": float("inf")}), "mean_ttft_ms: inf: must be a finite number"),
    (json.dumps({**VLLM, "mean_ttft_ms": -1}), "mean_ttft_ms: -1: must be"),
    (json.dumps({**VLLM, "mean_ttft_ms": True}), "mean_ttft_ms: True: must be"),
    (json.dumps({**VLLM, "mean_ttft_ms": {"a": 1}}), "mean_ttft_ms: {'a': 1}: must be"),
    (json.dumps({**VLLM, "completed": None}), "completed: is missing"),
    (json.dumps({**VLLM, "request_rate": -2}), "request_rate: -2: must be"),
    ('{"completed": 1e999, "request_throughput": 1, "output_throughput": 1}', "completed: inf: must be"),
    ('{"completed": 1' + "0" * 5000 + ', "request_throughput": 1, "output_throughput": 1}', "is not valid JSON"),
    (json.dumps({**MAX, "conc": None}), "conc: is missing"),
    (json.dumps({"benchmarks": []}), "benchmarks: must be a list of benchmarks"),
    (json.dumps({"benchmarks": {"a": 1}}), "benchmarks: must be a list of benchmarks"),
    (json.dumps({"benchmarks": [3]}), "benchmark 1: 3: must be a JSON object"),
    (json.dumps({"benchmarks": [{"metrics": {}}]}), "benchmark 1: has no metrics"),
    (json.dumps({"benchmarks": [{"metrics": {"a": 1}, "config": {"strategy": {"type_": "ramp"}}}]}), "type_: ramp: is no strategy"),
    (json.dumps({"benchmarks": [{"metrics": {"request_totals": 3}, "config": {}}]}), "request_totals: 3: must be a JSON object"),
    (json.dumps({**AIPERF, "request_latency": 3}), "request_latency: 3: must be a JSON object"),
    (json.dumps([{**LLAMA, "avg_ts": 0}]), "result 1, avg_ts: 0.0: must be above 0"),
    (json.dumps([{**LLAMA, "n_prompt": 0}]), "tests neither a prompt nor a decode"),
    ("n_prompt,n_gen,avg_ts\n", "has a header and no results"),
    ("n_prompt,n_gen,avg_ts\n512,0\n", "line 2: has fewer cells"),
    ("n_prompt,n_gen,avg_ts\n512,0,1,2\n", "line 2: has more cells"),
    ("n_prompt,n_gen,avg_ts\n512,0,many\n", "line 2, avg_ts: many: must be a finite number"),
]


@pytest.mark.parametrize(("text", "words"), BROKEN, ids=[words[:30] for _, words in BROKEN])
def test_broken_results_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(text)
    assert main(["validate", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("inferplan: ")
    assert "result.json: " in err
    assert words in err


WHOLE = {"vllm": VLLM, "sglang": SGLANG, "max": MAX, "guidellm": GUIDELLM, "aiperf": AIPERF, "llama": [LLAMA]}


@pytest.mark.parametrize("name", WHOLE)
def test_files_cut_short_anywhere_are_refused(name: str) -> None:
    text = json.dumps(WHOLE[name])
    for end in range(1, len(text), max(1, len(text) // 40)):
        with pytest.raises(SpecError):
            result_rows(text[:end], file="r.json")


JSON = st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=5), lambda x: st.lists(x, max_size=3), max_leaves=4)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(WHOLE)), st.data(), JSON)
def test_any_value_in_any_field_is_a_row_or_one_error(name: str, data: st.DataObject, value: Any) -> None:
    whole = WHOLE[name]
    result = whole[0] if isinstance(whole, list) else whole
    field = data.draw(st.sampled_from(sorted(result)))
    try:
        found = result_rows(json.dumps([{**result, field: value}]), file="r.json")
    except SpecError as e:
        found, said = None, str(e)
    if found is None:
        assert said.startswith("r.json: ")
        assert "\n" not in said
    else:
        assert all(isinstance(v, str) for row in found for v in row.values())
