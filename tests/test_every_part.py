"""Every model of the catalog on every part that has the numbers: no warning, no NaN, no time below its floor, in five precisions.

The default suite samples the product and looks at whole records. The slow test goes through all of it, parts of a class in one
array, without collectives; and through records of every model on a few parts, so that each part is met by many models.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import inferplan as ip
from inferplan.deployment import estimate
from inferplan.engine.segment import Segment
from inferplan.engine.step import Setting, Step, step
from inferplan.errors import Unsupported
from inferplan.memory.weights import weight_bytes
from inferplan.report.estimates import batch_record, record
from inferplan.roofline.efficiency import Efficiency
from inferplan.specs.catalog import names
from inferplan.specs.hardware import Accelerator
from inferplan.specs.model import Model
from inferplan.specs.parallel import ONE, Parallel
from inferplan.specs.precision import Precision

MODELS = names("models")
WEIGHTS = ("bf16", "fp8", "w4a16", "q4_k_m")
WIDE = Parallel(tp=8)
DEFAULT = Efficiency.load("default")


def complete(part: Accelerator) -> bool:
    """Whether a part states what an estimate needs: a bandwidth, a memory size and a rate for 16-bit products."""
    try:
        return part.bandwidth_bytes_per_s > 0 and part.usable_bytes > 0 and part.peak_flops_per_s("bf16") > 0
    except Unsupported:
        return False


ALL = {name: ip.hardware(name) for name in names("hardware")}
PARTS = {name: part for name, part in ALL.items() if complete(part)}


@cache
def model_of(name: str) -> Model:
    return ip.model(name)


@cache
def precision_of(weights: str, kv: str | None) -> Precision:
    return Precision.named(weights, kv=kv)


def keeps_heads(model: Model) -> bool:
    """Whether the model has a cache of keys and values that may be put into 8 bit."""
    return any(entry.k_elements for _, entry in model.cache())


def numbers(data: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a record, with its dotted name."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from numbers(value, f"{name}.{key}")
    elif isinstance(data, list | tuple):
        for i, value in enumerate(data):
            yield from numbers(value, f"{name}.{i}")
    elif data is not None and not isinstance(data, str | bool):
        yield name, float(data)


UNBOUNDED = {".max_concurrency", ".max_context", ".max_sequences"}


def look_at(model: str, part: str, weights: str, kv: str | None = None, batch: int = 1) -> None:
    """One estimate: all its numbers are finite, its times are not below their floors, its shares are shares."""
    spec, hardware = model_of(model), PARTS[part]
    precision = precision_of(weights, kv)
    held = weight_bytes(spec, precision) <= 0.95 * hardware.usable_bytes
    engine = "llama.cpp" if weights == "q4_k_m" else "vllm"
    e = estimate(spec, hardware, precision, batch=batch, parallel=ONE if held else WIDE, engine=engine, network="ib-ndr")
    found = record(e)
    for name, value in numbers(found):
        assert math.isfinite(value) or (name in UNBOUNDED and value == math.inf and not keeps_heads(spec)), (name, value)
    assert found["ttft_s"] >= found["floor_ttft_s"] > 0
    assert found["tpot_s"] >= found["floor_tpot_s"] > 0
    assert found["e2e_s"] >= found["ttft_s"]
    assert 0 < found["mfu"] <= 1 + 1e-12
    assert 0 < found["mbu"] <= 1 + 1e-12
    assert found["total_bytes"] <= found["usable_bytes"]
    assert bool(found["reason"]) <= (not found["fits"])
    for name, column in batch_record(e).items():
        assert np.all(np.isfinite(column)), name


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(MODELS), st.sampled_from(sorted(PARTS)), st.sampled_from(WEIGHTS), st.sampled_from([None, "fp8"]), st.integers(1, 256)
)
@example("llama-3.1-405b", "rtx-4090", "bf16", "fp8", 1)
@example("bert-base", "m1", "fp8", None, 64)
@example("mamba-2.8b", "mi300x", "w4a16", None, 8)
def test_any_model_on_any_part(model: str, part: str, weights: str, kv: str | None, batch: int) -> None:
    look_at(model, part, weights, kv if keeps_heads(model_of(model)) else None, batch)


def test_most_parts_are_complete_and_the_others_say_what_they_lack() -> None:
    assert len(PARTS) >= 140
    for name, part in ALL.items():
        if name not in PARTS:
            with pytest.raises(Unsupported, match=r"bandwidth|memory|peak"):
                record(estimate(model_of("llama-3.1-8b"), part, precision_of("bf16", None)))


# the whole product


ASKED = ("bf16", "fp16", "fp8", "fp32")  # what the precisions below multiply in


def computed(part: Accelerator, dtype: str) -> str:
    """The number type that a part multiplies in, or none where it has no rate for it."""
    try:
        return part.computed_in(dtype)
    except Unsupported:
        return ""


def class_of(part: Accelerator) -> tuple[Any, ...]:
    """Parts that a calibration and the fallbacks of number types treat alike."""
    own = any(part.name in levels for kinds in DEFAULT.kernels.values() for levels in kinds.values())
    return part.architecture, part.name if own else "", part.vector is None, *(computed(part, dtype) for dtype in ASKED)


def together(parts: list[Accelerator]) -> Accelerator:
    """Parts of a class as one whose bandwidth and rates are columns, a row per part."""

    def column(values: list[float]) -> np.ndarray:
        return np.array(values)[:, None]

    first = parts[0]
    bandwidth = first.memory.bandwidth.model_copy(update={"value": column([p.memory.bandwidth.value for p in parts])})  # type: ignore
    rates = {
        name: rate.model_copy(update={"value": column([getattr(p.peak, name).value for p in parts])})
        for name, rate in first.peak
        if rate is not None and all(getattr(p.peak, name) is not None for p in parts)
    }
    vector = first.vector and first.vector.model_copy(update={"value": column([p.vector.value for p in parts])})  # type: ignore
    memory = first.memory.model_copy(update={"bandwidth": bandwidth})
    peak = first.peak.model_copy(update={name: rates.get(name) for name, _ in first.peak})
    return first.model_copy(update={"memory": memory, "peak": peak, "vector": vector})


@cache
def classes() -> list[Accelerator]:
    groups: dict[tuple[Any, ...], list[Accelerator]] = {}
    for part in PARTS.values():
        groups.setdefault(class_of(part), []).append(part)
    return [together(parts) for parts in groups.values()]


PRECISIONS = [*((weights, None) for weights in WEIGHTS), ("bf16", "fp8")]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_model_on_every_part(name: str) -> None:
    """One device and eight, a pass that has a prompt and decodes in it, in five precisions."""
    model, setting = model_of(name), Setting(Parallel(tp=np.array([1, 8])), DEFAULT)
    segments = [Segment(1, 1024), *([Segment(4, 1, 1279)] if model.generates else [])]
    for weights, kv in PRECISIONS[: 5 if keeps_heads(model) else 4]:
        run = step(model, classes()[0], precision_of(weights, kv), *segments, setting=setting)
        ops = tuple(replace(op, wire=None) for op in run.ops if op.kind != "collective")
        for part in classes():
            found = Step(ops, part, setting, run.layers, run.sequences)
            floor, kernels = np.asarray(found.floor_s), np.asarray(sum(found.op_s(op) for op in ops))
            assert np.all(np.isfinite(kernels) & np.isfinite(floor) & (floor > 0)), (part.architecture, weights)
            assert np.all(kernels >= floor * (1 - 1e-9)), (part.architecture, weights)


@pytest.mark.slow
@pytest.mark.parametrize("place", range(len(MODELS)))
def test_records_of_every_model_and_every_part(place: int) -> None:
    """A whole record of each model, on parts, in precisions and for batches that take turns."""
    weights, kv = PRECISIONS[place % len(PRECISIONS)]
    part = sorted(PARTS)[place % len(PARTS)]
    look_at(MODELS[place], part, weights, kv if keeps_heads(model_of(MODELS[place])) else None, batch=1 + place % 9)
