"""Results of serving benchmarks as flat objects: vLLM `bench serve`, SGLang `bench_serving`, InferenceMAX. Knows no file.

Field names are those of vllm/benchmarks/serve.py, sglang/bench_serving.py and InferenceMAX utils/process_result.py.
"""

from __future__ import annotations

import re

from inferplan.readers.benchmarks_fields import Fields, Rows, row_of, rows_of

NAMED = re.compile(r"(mean|median|p\d+(?:\.\d+)?)_(ttft|tpot|itl|e2el|e2e_latency)(_ms)?\Z")
QUANTITIES = {"ttft": "ttft_s", "tpot": "tpot_s", "itl": "itl_s", "e2el": "e2e_s", "e2e_latency": "e2e_s"}
ENGINES = {"trt": "tensorrt-llm", "trtllm": "tensorrt-llm", "tensorrt-llm": "tensorrt-llm", "tgi": "tgi", "vllm": "vllm"}


def _timed(found: Fields, suffix: str, scale: float) -> dict[str, dict[str, float]]:
    """By statistic the times that a result has, in seconds, from names such as `p99_ttft_ms`."""
    times: dict[str, dict[str, float]] = {"mean": {}}
    for name in found.own:
        at = NAMED.match(name)
        if at and (at[3] or "") == suffix and (value := found.number(name)) is not None:
            times.setdefault(at[1], {})[QUANTITIES[at[2]]] = value * scale
    return times


def _load(found: Fields, sent: float) -> dict[str, float | None]:
    """Clients or arrivals: without a limit on both all requests come at once, which is as many clients as requests."""
    rate, clients = found.rate("request_rate"), found.number("max_concurrency")
    if clients is not None and clients >= sent and rate is not None:
        clients = None  # a limit that no moment reaches
    burst = found.number("burstiness")
    return {
        "concurrency": min(clients, sent) if clients is not None else sent if rate is None else None,
        "rate_per_s": rate,
        "arrival_cv": burst**-0.5 if rate is not None and burst not in (None, 0.0, 1.0) else None,
        "requests": sent,
    }


def _throughputs(found: Fields) -> dict[str, float | None]:
    total = found.number("total_token_throughput") or found.number("total_throughput")
    output, incoming = found.number("output_throughput"), found.number("input_throughput")
    if total is None and output is not None and incoming is not None:
        total = output + incoming
    return {"requests_per_s": found.number("request_throughput"), "output_tokens_per_s": output, "total_tokens_per_s": total}


def _means(found: Fields, done: float) -> dict[str, float | None]:
    tokens = found.number("total_input_tokens"), found.number("total_output_tokens")
    return {
        name: None if total is None or done == 0 else total / done
        for name, total in zip(("input_tokens", "output_tokens"), tokens, strict=True)
    }


def of_vllm(found: Fields) -> Rows:
    """A result of `vllm bench serve --save-result`, or of benchmark_serving.py before it."""
    done = found.needed("completed")
    backend = found.text("backend", "endpoint_type") or ""
    common = row_of(
        case=found.text("label", "date"), model=found.text("model_id"), engine=ENGINES.get(backend), tokenizer=found.text("tokenizer_id"),
        **_means(found, done), **_load(found, found.number("num_prompts") or done),
    )  # fmt: skip
    return rows_of(common, _timed(found, "_ms", 1e-3), _throughputs(found))


def of_sglang(found: Fields) -> Rows:
    """A line of `sglang.bench_serving`'s result: random data sets say their nominal lengths, others are taken at their means."""
    done, server = found.needed("completed"), found.under("server_info")
    lengths = _means(found, done)
    nominal = found.number("random_input_len"), found.number("random_output_len"), found.number("random_range_ratio")
    if (found.text("dataset_name") or "").startswith("random") and None not in nominal and (nominal[2] or 0) <= 1:
        lengths = dict(zip(("input_tokens", "output_tokens", "length_ratio"), nominal, strict=True))
    backend = found.text("backend") or ""
    common = row_of(
        case=found.text("tag"), model=found.text("model_id", "model") or server.text("model_path"),
        engine="sglang" if backend.startswith("sglang") else ENGINES.get(backend), tp=server.number("tp_size"), dp=server.number("dp_size"),
        ep=server.number("ep_size"), pp=server.number("pp_size"),
        draft="accepted" if (found.number("accept_length") or 0) > 1 else None, **lengths, **_load(found, done),
    )  # fmt: skip
    return rows_of(common, _timed(found, "_ms", 1e-3), _throughputs(found))


def of_inferencemax(found: Fields) -> Rows:
    """An aggregated result of InferenceMAX (InferenceX), flat or as its database gives it; times are in seconds, throughputs per GPU.

    Engine names lose what is told of the runtime, such as dynamo-. Runs with separate pools, or with drafts, say so.
    """
    metrics = found.under("metrics") if "metrics" in found.own else found
    pools = found.flag("disagg")
    tp, pp = found.number("tp") or found.number("decode_tp"), found.number("pp")
    ep = found.number("ep") or found.number("decode_ep")
    gpus = None if pools or tp is None else tp * (pp or 1)
    attention = found.flag("dp_attention") or found.flag("decode_dp_attention")
    framework = (found.text("framework") or "").removeprefix("dynamo-").split("-")[0]
    drafts = found.text("spec_decoding", "spec_method", "mtp") or ""
    per_gpu = {"total_tokens_per_s": "tput_per_gpu", "output_tokens_per_s": "output_tput_per_gpu"}
    rates = {q: None if gpus is None or (v := metrics.number(name)) is None else v * gpus for q, name in per_gpu.items()}
    common = row_of(
        case=found.text("date", "image"), model=found.text("model"), gpu=(found.text("hw", "hardware") or "").split("-")[0] or None,
        engine=ENGINES.get(framework, framework or None), gpus=gpus, tp=tp, pp=pp, dp=tp if attention else None, ep=ep,
        input_tokens=found.number("isl"), output_tokens=found.number("osl"), concurrency=found.needed("conc"),
        protocol="disaggregated" if pools else "inferencemax", precision=found.text("precision"),
        draft=drafts if drafts.lower() not in ("", "none", "off", "false") else None,
    )  # fmt: skip
    return rows_of(common, _timed(metrics, "", 1.0), rates)
