"""The capacity that a row of a case file asks for: its columns as text to an engine's launch. Knows no file and no prediction error."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from inferplan.errors import SpecError, Unsupported
from inferplan.memory.capacity import Capacity, capacity
from inferplan.specs.engine import Engine
from inferplan.specs.hardware import Accelerator
from inferplan.specs.model import Model
from inferplan.specs.parallel import Parallel
from inferplan.specs.precision import Precision
from inferplan.units import GIB


def capacity_of(model: Model, precision: Precision, columns: Mapping[str, str]) -> Capacity:
    """What the deployment in a row holds: columns `gpu`, `gpus`, `engine`, `engine_version`, `tp`, `pp`, `dp`, `ep`, `utilization`,
    `max_model_len`, `max_num_seqs`, `max_num_batched_tokens`, `block_size`, `draft_tokens`, `eager`, `total_gib`; blank is the default.

    `total_gib` is the memory that the device shows to programs; `cache_gib`, where given, is the cache that a log printed as
    available, from which tokens and requests then follow.

    Raises Unsupported where part or engine are not named, SpecError for a cell that is not a number.

    >>> from inferplan.readers.opening import open_model
    >>> row = {"gpu": "h100", "engine": "vllm", "engine_version": "0.19.0", "utilization": "0.95", "max_model_len": "8192"}
    >>> round(float(capacity_of(open_model("llama-3.1-8b").model, Precision.named("bf16"), row).kv_cache_tokens), -3)
    476000.0
    """
    for name in ("gpu", "engine"):
        if not columns.get(name):
            raise Unsupported(f"the row names no {name}, without which its memory cannot be told")
    total = _number(columns, "total_gib")
    cache = _number(columns, "cache_gib")
    found = capacity(
        model, Accelerator.find(columns["gpu"]), precision, split_of(columns),
        Engine.find(columns["engine"], columns.get("engine_version") or None), utilization=_number(columns, "utilization"),
        draft_tokens=int(_number(columns, "draft_tokens") or 0), eager=columns.get("eager", "") in ("1", "yes", "true", "True"),
        total=None if total is None else total * GIB, max_model_len=_number(columns, "max_model_len"),
        max_num_seqs=_number(columns, "max_num_seqs"), max_num_batched_tokens=_number(columns, "max_num_batched_tokens"),
        block_size=_number(columns, "block_size"),
    )  # fmt: skip
    return found if cache is None else found.holding(cache * GIB)


def split_of(columns: Mapping[str, str]) -> Parallel:
    """The split that a row names. Where tp x pp x dp exceeds the devices in `gpus`, tp counts the data-parallel groups as well.

    >>> split_of({"tp": "8", "dp": "8", "ep": "8", "gpus": "8"})
    Parallel(tp=1, pp=1, dp=8, ep=8, dcp=1, cp=1)
    """
    tp, pp, dp, ep, gpus = (int(_number(columns, name) or 1) for name in ("tp", "pp", "dp", "ep", "gpus"))
    if columns.get("gpus") and tp * pp * dp > gpus and tp % dp == 0:
        tp //= dp
    return Parallel(tp, pp, dp, ep).checked()


def _number(columns: Mapping[str, str], name: str) -> float | None:
    text = (columns.get(name) or "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        raise SpecError("must be a number", field=name, value=text) from None
    if not np.isfinite(value) or value < 0:
        raise SpecError("must be finite and not negative", field=name, value=text)
    return value


QUANTITIES: dict[str, Callable[[Capacity], float]] = {
    "weight_bytes_per_gpu": lambda found: float(found.weight_bytes_per_gpu),
    "kv_cache_bytes_per_gpu": lambda found: float(found.reserved_cache_bytes),
    "kv_cache_tokens": lambda found: float(found.kv_cache_tokens),
    "max_concurrency": lambda found: float(found.max_concurrency),
}
