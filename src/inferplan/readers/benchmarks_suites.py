"""Results of benchmark suites as nested objects: GuideLLM, and GenAI-Perf with its successor AIPerf. Knows no file.

GuideLLM's `inter_token_latency_ms` is the mean gap weighted by tokens; its `time_per_output_token_ms` counts the first token in, and is
left out. In GenAI-Perf and AIPerf `inter_token_latency` is a request's mean gap after its first token, which is TPOT here.
"""

from __future__ import annotations

import re

from inferplan.errors import SpecError
from inferplan.readers.benchmarks_fields import Fields, Rows, row_of, rows_of

GUIDELLM = (
    ("time_to_first_token_ms", "ttft_s", 1e-3), ("inter_token_latency_ms", "itl_s", 1e-3), ("request_latency", "e2e_s", 1.0),
)  # fmt: skip
GUIDELLM_RATES = (
    ("requests_per_second", "requests_per_s"), ("output_tokens_per_second", "output_tokens_per_s"),
    ("tokens_per_second", "total_tokens_per_s"),
)  # fmt: skip
AIPERF = (("time_to_first_token", "ttft_s"), ("inter_token_latency", "tpot_s"), ("request_latency", "e2e_s"))
AIPERF_RATES = (
    ("request_throughput", "requests_per_s"), ("output_token_throughput", "output_tokens_per_s"),
    ("total_token_throughput", "total_tokens_per_s"),
)  # fmt: skip
SECONDS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
PERCENTILE = re.compile(r"p\d{2}\Z")


def of_guidellm(found: Fields) -> Rows:
    """A report of GuideLLM: a run for each strategy of the sweep."""
    runs = found.own["benchmarks"]
    if not isinstance(runs, list) or not runs:
        raise SpecError("must be a list of benchmarks with at least one", file=found.file, field="benchmarks")
    model = found.under("args").text("model")
    return [row for n, run in enumerate(runs, 1) for row in _guidellm_run(Fields.of(run, found.file, f"benchmark {n}"), model)]


def _guidellm_run(run: Fields, model: str | None) -> Rows:
    metrics = run.under("metrics")
    if not metrics.own:
        raise SpecError("has no metrics", file=run.file, field=run.place)
    sent = metrics.under("request_totals").number("successful")
    tokens = [metrics.under(name, "successful").number("mean") for name in ("prompt_token_count", "output_token_count")]
    common = row_of(
        case=run.text("id_", "run_id"), model=model or run.under("config", "backend").text("model") or _worker_model(run),
        input_tokens=tokens[0], output_tokens=tokens[1], requests=sent, **_guidellm_load(run, sent),
    )  # fmt: skip
    times: dict[str, dict[str, float]] = {"mean": {}}
    for name, quantity, scale in GUIDELLM:
        for statistic, value in _guidellm_values(metrics.under(name, "successful")).items():
            times.setdefault(statistic, {})[quantity] = value * scale
    rates = {quantity: metrics.under(name, "successful").number("mean") for name, quantity in GUIDELLM_RATES}
    return rows_of(common, times, rates)


def _worker_model(run: Fields) -> str | None:
    return run.under("worker").text("backend_model")


def _guidellm_values(found: Fields) -> dict[str, float]:
    """Mean and percentiles of a distribution; the median is the mean of none, and stands as such."""
    values = {name: found.number(name) for name in ("mean", "median")}
    percentiles = found.under("percentiles")
    values |= {name: percentiles.number(name) for name in percentiles.own if PERCENTILE.match(name) and name != "p50"}
    return {name: value for name, value in values.items() if value is not None}


def _guidellm_load(run: Fields, sent: float | None) -> dict[str, float | None]:
    """What a strategy means: one client, several, arrivals at a rate, or all at once."""
    strategy = run.under("config", "strategy") if "config" in run.own else run.under("args", "strategy")
    kind = strategy.text("type_", "type") or ("concurrent" if strategy.own.get("max_concurrency") else "")
    if kind == "synchronous":
        return {"concurrency": 1}
    if kind == "concurrent":
        return {"concurrency": strategy.number("streams") or strategy.number("max_concurrency")}
    if kind in ("constant", "poisson", "async"):
        rate = strategy.number("rate")
        return {"rate_per_s": rate, "arrival_cv": None if kind == "poisson" else 0}
    if kind == "throughput":
        return {"concurrency": strategy.number("max_concurrency") or sent}
    raise SpecError(
        "is no strategy known here: synchronous, concurrent, throughput, constant, async, poisson", file=run.file,
        field=f"{strategy.place}, type_", value=kind or "nothing",
    )  # fmt: skip


def of_aiperf(found: Fields) -> Rows:
    """A result of GenAI-Perf or AIPerf (profile_export_*.json)."""
    config = found.under("input_config")
    stimulus = config.under("perf_analyzer", "stimulus")
    loads = (config.under("loadgen"), stimulus, config, found)
    clients = next((c for load in loads if (c := _number(load, "concurrency")) is not None), None)
    rate = next((r for load in loads if (r := _number(load, "request_rate")) is not None), None)
    common = row_of(
        case=found.text("benchmark_id"), model=_model(found, config), input_tokens=found.under("input_sequence_length").number("avg"),
        output_tokens=found.under("output_sequence_length").number("avg"), concurrency=clients if rate is None else None, rate_per_s=rate,
        requests=found.under("request_count").number("avg") or found.under("request_latency").number("count"),
    )  # fmt: skip
    times: dict[str, dict[str, float]] = {"mean": {}}
    for name, quantity in AIPERF:
        for statistic, value in _aiperf_seconds(found.under(name)).items():
            times.setdefault(statistic, {})[quantity] = value
    return rows_of(common, times, {quantity: found.under(name).number("avg") for name, quantity in AIPERF_RATES})


def _number(found: Fields, name: str) -> float | None:
    """A number, or the only one of a list."""
    value = found.own.get(name)
    only = value[0] if isinstance(value, list) and len(value) == 1 else value
    return Fields({name: only}, found.file, found.place).number(name)


def _model(found: Fields, config: Fields) -> str | None:
    return config.text("model_names", "model") or config.under("endpoint").text("model_names") or found.text("model")


def _aiperf_seconds(found: Fields) -> dict[str, float]:
    unit = found.text("unit") or "ms"
    if unit not in SECONDS:
        raise SpecError(f"is not one of {', '.join(SECONDS)}", file=found.file, field=f"{found.place}, unit", value=unit)
    named = {"mean": "avg", "median": "p50"} | {name: name for name in found.own if PERCENTILE.match(name) and name != "p50"}
    values = {statistic: found.number(name) for statistic, name in named.items()}
    return {statistic: value * SECONDS[unit] for statistic, value in values.items() if value is not None}
