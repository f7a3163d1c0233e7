"""The JSON Schema of a plan's record, made from the glossary. Knows no value."""

from __future__ import annotations

from typing import Any

from inferplan.planner.rows import CHOICE_KEYS
from inferplan.planner.targets import METRICS
from inferplan.report.plan import SCHEMA
from inferplan.terms import TERMS

TEXT = ("model", "hardware", "weight_format", "kv_format", "engine", "engine_version", "provider", "price_type", "verdict")
NUMBER: dict[str, Any] = {"type": "number", "minimum": 0}
MAYBE: dict[str, Any] = {"type": ["number", "null"]}
WORDS: dict[str, Any] = {"type": "string"}
MAYBE_WORDS: dict[str, Any] = {"type": ["string", "null"]}
LATENCY = {
    "metric": {"enum": list(METRICS)}, "statistic": WORDS, "limit_s": NUMBER, "at_mean_s": MAYBE, "at_peak_s": MAYBE,
    "simulated_s": MAYBE, "half_width_s": MAYBE, "margin_s": MAYBE,
}  # fmt: skip
DEMAND = {
    "mean_per_s": NUMBER, "peak_per_s": NUMBER, "planned_mean_per_s": NUMBER, "planned_peak_per_s": NUMBER,
    "growth_per_month": {"type": "number"}, "months": NUMBER, "buffer": NUMBER, "source": WORDS,
}  # fmt: skip
SWING = {
    "input": WORDS, "factor": NUMBER, "basis": WORDS, "replicas": MAYBE, "gpus": MAYBE, "usd_per_month": MAYBE, "best": MAYBE_WORDS,
}  # fmt: skip


def plan_schema() -> dict[str, Any]:
    """The schema of `inferplan plan --json`: base units, every key present; null where a number is not known.

    >>> plan_schema()["properties"]["choices"]["items"]["properties"]["usd_per_month"]["unit"]
    'USD'
    """
    choice = {key: _said(key) for key in CHOICE_KEYS}
    choice |= {"runs": NUMBER, "simulated_rate_per_s": MAYBE, "slo_share": MAYBE, "enough_probability": MAYBE, "latencies": _list(LATENCY)}
    whole = {
        "schema": {"const": SCHEMA}, "sentence": WORDS, "demand": _object(DEMAND), "input_tokens": NUMBER, "output_tokens": NUMBER,
        "hit_rate": NUMBER, "slo": WORDS, "slo_variant": WORDS, "queueing": NUMBER, "redundancy": WORDS, "choices": _list(choice),
        "thresholds": _list({"replicas": NUMBER, "rate_per_s": NUMBER, "month": MAYBE}), "sensitivity": _list(SWING),
        "measure_first": MAYBE_WORDS, "fallen": _list({"why": WORDS, "count": NUMBER, "nearest": WORDS, "reason": WORDS}),
        "candidates": NUMBER, "looked": NUMBER, "scaled_usd_per_month": MAYBE,
        "scaled_replicas": {"type": ["array", "null"], "items": {"type": "integer"}},
    }  # fmt: skip
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA, **_object(whole)}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "additionalProperties": False, "properties": properties}


def _list(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": _object(properties)}


def _said(key: str) -> dict[str, Any]:
    term = TERMS[key]
    form = MAYBE_WORDS if key in TEXT else MAYBE
    return {**form, "description": term.meaning, **({"unit": term.unit} if term.unit else {})}
