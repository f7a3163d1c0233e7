"""A plan as records under the glossary's keys, in base units: a row per choice, and what it was asked. Knows no screen and no file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferplan.planner.plan import Choice, Latency, Plan

CHOICE_KEYS = (
    "model", "hardware", "weight_format", "kv_format", "engine", "engine_version", "tp", "pp", "dp", "ep", "max_num_seqs",
    "max_num_batched_tokens", "gpus_per_replica", "replica_rate_per_s", "replicas_mean", "replicas_peak", "replicas", "gpus", "billed_gpus",
    "provider", "price_type", "usd_per_gpu_h", "usd_per_h", "usd_per_month", "usd_per_million_input_tokens",
    "usd_per_million_output_tokens", "usd_per_million_output_tokens_all", "usd_per_million_blended_tokens", "usd_per_thousand_requests",
    "load_mean", "load_peak", "kwh_per_month", "joules_per_output_token", "kg_co2_per_month", "verdict",
)  # fmt: skip


def choice_row(c: Choice) -> dict[str, Any]:
    """One choice; what is not known is None."""
    f = c.fleet
    found = dict.fromkeys(CHOICE_KEYS) | _replica(c) | _money(c)
    return found | {
        "gpus_per_replica": c.gpus_per_replica, "replica_rate_per_s": c.rate_per_s, "replicas_mean": f.at_mean, "replicas_peak": f.at_peak,
        "replicas": f.replicas, "gpus": f.gpus, "billed_gpus": f.billed_gpus, "load_mean": c.load_mean, "load_peak": c.load_peak,
        "verdict": c.verdict,
    }  # fmt: skip


def _replica(c: Choice) -> dict[str, Any]:
    if c.replica is None:
        return {"model": c.name, "hardware": c.part or None}
    kind, p, held = c.replica.candidate.kind, c.replica.candidate.parallel, c.replica.estimate.capacity
    return {
        "model": kind.model.name, "hardware": kind.hardware.name, "weight_format": kind.precision.name, "kv_format": kind.precision.kv.name,
        "engine": kind.engine.name, "engine_version": kind.engine.version, "tp": int(p.tp), "pp": int(p.pp), "dp": int(p.dp),
        "ep": int(p.ep), "max_num_seqs": c.replica.candidate.max_num_seqs or int(held.launch.max_num_seqs),
        "max_num_batched_tokens": int(held.launch.max_num_batched_tokens),
    }  # fmt: skip


def _money(c: Choice) -> dict[str, Any]:
    o, b = c.fleet.offer, c.bill
    if o is None or b is None:
        return {}
    return {
        "provider": o.provider, "price_type": o.kind, "usd_per_gpu_h": o.usd_per_gpu_h, "usd_per_h": b.usd_per_h,
        "usd_per_month": b.usd_per_month, "usd_per_million_input_tokens": b.usd_per_million_input_tokens,
        "usd_per_million_output_tokens": b.usd_per_million_output_tokens,
        "usd_per_million_output_tokens_all": b.usd_per_million_tokens_all_on_output,
        "usd_per_million_blended_tokens": b.usd_per_million_blended_tokens, "usd_per_thousand_requests": b.usd_per_thousand_requests,
        "kwh_per_month": b.kwh_per_month, "joules_per_output_token": b.joules_per_output_token, "kg_co2_per_month": b.kg_co2_per_month,
    }  # fmt: skip


def latency_columns(c: Choice) -> dict[str, Any]:
    """Times of a choice as columns such as `ttft_p95_s`, each with its limit and what is left to it at the planned peak."""
    found: dict[str, Any] = {}
    for late in c.latencies:
        name = f"{late.target.metric}_{late.target.statistic}"
        found |= {f"{name}_s": late.shown_s, f"{name}_limit_s": late.target.limit_s, f"{name}_margin_s": late.margin_s}
    return found


def latency_record(late: Latency) -> dict[str, Any]:
    """One limit with what it is compared with."""
    return {
        "metric": late.target.metric, "statistic": late.target.statistic, "limit_s": late.target.limit_s, "at_mean_s": late.at_mean_s,
        "at_peak_s": late.at_peak_s, "simulated_s": late.simulated_s, "half_width_s": late.half_width_s, "margin_s": late.margin_s,
    }  # fmt: skip


def choice_rows(p: Plan) -> list[dict[str, Any]]:
    """A row per choice, the plan first."""
    return [choice_row(c) | latency_columns(c) for c in p.choices]
