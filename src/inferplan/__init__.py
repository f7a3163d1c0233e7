"""inferplan: roofline performance calculator and capacity planner for LLM inference.

What a notebook imports; nothing else is public. Names load when they are first used.

>>> import inferplan as ip
>>> found = ip.estimate(ip.model("7b"), ip.hardware("a100"), ip.precision("fp16"), input_tokens=1024, output_tokens=256)
>>> round(found.floor_tpot_s * 1e3, 1)
6.8
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferplan.engine.cache_bytes import kv_bytes_per_token, kv_bytes_per_token_unbounded, sequence_bytes, state_bytes_per_sequence
    from inferplan.engine.grid import chunks, grid
    from inferplan.engine.segment import Segment
    from inferplan.engine.step import Step, decode, prefill, step
    from inferplan.errors import DoesNotFit, InferplanError, NoFeasiblePlan, NotFound, SpecError, Unsupported
    from inferplan.launch.benchmark import launch_benchmark
    from inferplan.launch.manifest import launch_manifest
    from inferplan.memory.fit import Fit, fit
    from inferplan.memory.weights import weight_bytes, weight_bytes_by_part
    from inferplan.names import hardware, model, precision
    from inferplan.ops.moe import distinct_experts
    from inferplan.planner.goal import Goal
    from inferplan.planner.pareto import pareto
    from inferplan.planner.plan import Plan, plan
    from inferplan.planner.space import Space
    from inferplan.report.answers import (
        Comparison,
        Picture,
        Quantization,
        Validation,
        batching,
        compare,
        frame,
        launch_command,
        load_curve,
        plot,
        quantize,
        requests,
        simulate,
        speculate,
        sweep,
        validate,
    )
    from inferplan.report.notebook import Estimate, estimate
    from inferplan.serving.batch_times import Workload
    from inferplan.serving.continuous import continuous
    from inferplan.serving.lengths import Lengths
    from inferplan.serving.protocol import simulate_case
    from inferplan.serving.requests import Requests, closed_loop
    from inferplan.serving.schedule import Schedule
    from inferplan.serving.slo import Slo
    from inferplan.serving.static import static
    from inferplan.serving.steps import LinearSteps, table_steps
    from inferplan.serving.traces import read_trace
    from inferplan.specs.counts import Counts, counts
    from inferplan.specs.hardware import Accelerator
    from inferplan.specs.model import Model
    from inferplan.specs.parallel import Parallel
    from inferplan.specs.precision import Precision

__version__ = "0.1.0"

_PLACES = {
    "engine.cache_bytes": ("kv_bytes_per_token", "kv_bytes_per_token_unbounded", "sequence_bytes", "state_bytes_per_sequence"),
    "engine.grid": ("chunks", "grid"),
    "engine.segment": ("Segment",),
    "engine.step": ("Step", "decode", "prefill", "step"),
    "errors": ("DoesNotFit", "InferplanError", "NoFeasiblePlan", "NotFound", "SpecError", "Unsupported"),
    "launch.benchmark": ("launch_benchmark",),
    "launch.manifest": ("launch_manifest",),
    "memory.fit": ("Fit", "fit"),
    "memory.weights": ("weight_bytes", "weight_bytes_by_part"),
    "names": ("hardware", "model", "precision"),
    "ops.moe": ("distinct_experts",),
    "planner.goal": ("Goal",),
    "planner.pareto": ("pareto",),
    "planner.plan": ("Plan", "plan"),
    "planner.space": ("Space",),
    "report.answers": (
        "Comparison", "Picture", "Quantization", "Validation", "batching", "compare", "frame", "launch_command", "load_curve", "plot",
        "quantize", "requests", "simulate", "speculate", "sweep", "validate",
    ),
    "report.notebook": ("Estimate", "estimate"),
    "serving.batch_times": ("Workload",),
    "serving.continuous": ("continuous",),
    "serving.lengths": ("Lengths",),
    "serving.protocol": ("simulate_case",),
    "serving.requests": ("Requests", "closed_loop"),
    "serving.schedule": ("Schedule",),
    "serving.slo": ("Slo",),
    "serving.static": ("static",),
    "serving.steps": ("LinearSteps", "table_steps"),
    "serving.traces": ("read_trace",),
    "specs.counts": ("Counts", "counts"),
    "specs.hardware": ("Accelerator",),
    "specs.model": ("Model",),
    "specs.parallel": ("Parallel",),
    "specs.precision": ("Precision",),
}  # fmt: skip
_WHERE = {name: module for module, names in _PLACES.items() for name in names}
__all__ = [
    "Accelerator",
    "Comparison",
    "Counts",
    "DoesNotFit",
    "Estimate",
    "Fit",
    "Goal",
    "InferplanError",
    "Lengths",
    "LinearSteps",
    "Model",
    "NoFeasiblePlan",
    "NotFound",
    "Parallel",
    "Picture",
    "Plan",
    "Precision",
    "Quantization",
    "Requests",
    "Schedule",
    "Segment",
    "Slo",
    "Space",
    "SpecError",
    "Step",
    "Unsupported",
    "Validation",
    "Workload",
    "batching",
    "chunks",
    "closed_loop",
    "compare",
    "continuous",
    "counts",
    "decode",
    "distinct_experts",
    "estimate",
    "fit",
    "frame",
    "grid",
    "hardware",
    "kv_bytes_per_token",
    "kv_bytes_per_token_unbounded",
    "launch_benchmark",
    "launch_command",
    "launch_manifest",
    "load_curve",
    "model",
    "pareto",
    "plan",
    "plot",
    "precision",
    "prefill",
    "quantize",
    "read_trace",
    "requests",
    "sequence_bytes",
    "simulate",
    "simulate_case",
    "speculate",
    "state_bytes_per_sequence",
    "static",
    "step",
    "sweep",
    "table_steps",
    "validate",
    "weight_bytes",
    "weight_bytes_by_part",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        from inferplan.errors import near_misses

        told = "" if name.startswith("_") else near_misses(name, __all__)
        raise AttributeError(f"module 'inferplan' has no attribute {name!r}{told}")
    return getattr(importlib.import_module(f"inferplan.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
