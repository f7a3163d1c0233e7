"""The JSON Schema of an estimate's record, made from the glossary. Knows no value."""

from __future__ import annotations

from typing import Any

from inferplan.report.estimates import PASS, SCHEMA
from inferplan.terms import TERMS

_TEXT = ("model", "hardware", "precision", "kv_format", "engine", "engine_version", "efficiency", "reason")
_COUNTS = (
    "gpus", "tp", "pp", "dp", "ep", "dcp", "cp", "batch", "input_tokens", "output_tokens", "cached_tokens", "images", "image_patches",
    "host_experts", "params", "active_params", "active_read_params",
)  # fmt: skip
_NUMBERS = (
    "weight_bytes", "kv_bytes_per_token", "kv_bytes_per_token_unbounded", "state_bytes_per_sequence", "sequence_bytes",
    "bytes_per_token", "weight_bytes_per_gpu", "activation_bytes", "non_torch_bytes", "graph_bytes", "kv_cache_bytes_per_gpu",
    "request_bytes", "kv_cache_tokens", "max_context", "total_bytes", "utilization", "max_model_len", "max_num_seqs",
    "max_num_batched_tokens", "usable_bytes", "ttft_s", "prefill_s", "front_end_s", "tpot_s", "e2e_s", "floor_ttft_s", "floor_tpot_s",
    "decode_tokens_per_s", "output_tokens_per_s", "mfu", "mbu", "host_layers", "host_bytes", "overlap", "expert_skew",
    "expert_imbalance",
)  # fmt: skip
BANDS = ("ttft_low_s", "ttft_high_s", "tpot_low_s", "tpot_high_s", "e2e_low_s", "e2e_high_s")
_MAYBE = ("context", "max_concurrency", "max_sequences", "usd_per_gpu_h", "usd_per_million_tokens", "joules_per_million_tokens", *BANDS)
_SIGNED = ("kv_cache_bytes_per_gpu",)


def estimate_schema() -> dict[str, Any]:
    """The schema of `inferplan estimate --json`: base units, every key present; null where a number is not known or has no bound.

    >>> estimate_schema()["properties"]["tpot_s"]
    {'type': 'number', 'minimum': 0, 'description': 'mean gap between output tokens after the first', 'unit': 's'}
    """
    whole: dict[str, Any] = {"schema": {"const": SCHEMA, "description": TERMS["schema"].meaning}}
    whole |= {key: _said(key, {"type": "string"}) for key in _TEXT}
    whole |= {key: _said(key, {"type": "integer", "minimum": 0}) for key in _COUNTS}
    whole |= {key: _number(key) for key in _NUMBERS}
    whole |= {key: _said(key, {"type": ["number", "null"]}) for key in _MAYBE}
    whole["basis"] = _said("basis", {"enum": ["measured", "inherited", "ideal"]})
    whole["host"] = _said("host", {"type": ["string", "null"]})
    whole["host_head"] = _said("host_head", {"type": "boolean"})
    whole["fits"] = _said("fits", {"type": "boolean"})
    whole["weight_bytes_by_part"] = _said("weight_bytes_by_part", {"type": "object", "additionalProperties": {"type": "number"}})
    whole |= {key: _said(key, {"type": "object", "additionalProperties": {"type": "string"}}) for key in ("computed_in", "doubts")}
    one = {key: _number(key) for key in (*PASS, "mfu", "mbu")} | {"bound": _said("bound", {"enum": ["memory", "compute", "link", "host"]})}
    whole |= {key: {**_object(one), "description": TERMS[key].meaning} for key in ("prefill", "decode")}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA, **_object(whole)}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "additionalProperties": False, "properties": properties}


def _number(key: str) -> dict[str, Any]:
    return _said(key, {"type": "number"} if key in _SIGNED else {"type": "number", "minimum": 0})


def _said(key: str, form: dict[str, Any]) -> dict[str, Any]:
    term = TERMS[key]
    return {**form, "description": term.meaning, **({"unit": term.unit} if term.unit else {})}
