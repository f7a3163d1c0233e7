"""What an engine leaves for the cache: total memory as programs see it, budget, graphs, communication. Knows no page and no request."""

from __future__ import annotations

import numpy as np

from inferplan.formula import formula
from inferplan.ops import Numeric
from inferplan.specs.engine import Engine
from inferplan.specs.hardware import Accelerator
from inferplan.specs.mixers import Attention, LatentAttention
from inferplan.specs.model import Model
from inferplan.specs.parallel import Parallel
from inferplan.units import parse

DRIVER_BYTES = parse("0.39 GiB", "B")
DRIVER_SHARE = 0.0013


def total_bytes(hardware: Accelerator) -> float:
    """Memory of one device as a program sees it.

    NVIDIA's tool prints more than programs get: the driver keeps 0.39 GiB and 0.13 %, fitted to eight parts (H100 79.65 printed
    and 79.19 seen, B200 179.06 and 178.36, RTX 3090 24.0 and 23.58 GiB); AMD's and unified memories agree.

    >>> round(total_bytes(Accelerator.find("h100")) / 2**30, 2)
    79.15
    """
    apart = hardware.vendor == "NVIDIA" and not hardware.unified
    return hardware.usable_bytes - (DRIVER_BYTES + DRIVER_SHARE * hardware.usable_bytes if apart else 0.0)


@formula(
    "utilization * total_bytes - weight_bytes - activation_bytes - non_torch_bytes - graph_bytes",
    unit="B",
    ref="vLLM; graphs count from 0.21 on. Held on 50 launches to 0.01 GiB",
)
def budget_bytes(
    utilization: Numeric, total_bytes: Numeric, weight_bytes: Numeric, activation_bytes: Numeric, non_torch_bytes: Numeric,
    graph_bytes: Numeric,
) -> Numeric:  # fmt: skip
    """Bytes left for the cache out of a fraction of the total.

    >>> round(budget_bytes(0.95, 79.19, 14.99, 1.89, 0.25, 0), 2)  # 58.11 GiB were logged
    58.1
    """
    return utilization * total_bytes - weight_bytes - activation_bytes - non_torch_bytes - graph_bytes


@formula("utilization * (total_bytes - non_torch_bytes) - weight_bytes", unit="B", ref="SGLang mem_fraction_static: weights and cache")
def static_budget_bytes(utilization: Numeric, total_bytes: Numeric, non_torch_bytes: Numeric, weight_bytes: Numeric) -> Numeric:
    """Bytes of cache where weights and cache together are a fraction of what was free at start.

    >>> static_budget_bytes(0.5, 82.0, 2.0, 16.0)
    24.0
    """
    return utilization * (total_bytes - non_torch_bytes) - weight_bytes


@formula(
    "utilization * (total_bytes - weight_bytes - activation_bytes - non_torch_bytes)",
    unit="B",
    ref="TensorRT-LLM free_gpu_memory_fraction; TGI after its warm-up",
)
def free_budget_bytes(
    utilization: Numeric, total_bytes: Numeric, weight_bytes: Numeric, activation_bytes: Numeric, non_torch_bytes: Numeric
) -> Numeric:
    """Bytes of cache out of a fraction of what is free once the engine is loaded.

    >>> round(free_budget_bytes(0.9, 178.36, 36.92, 0.68, 4.53), 2)  # 122.61 GiB were logged
    122.61
    """
    return utilization * (total_bytes - weight_bytes - activation_bytes - non_torch_bytes)


def static_fraction(engine: Engine, hardware: Accelerator, parallel: Parallel, *, tokens: Numeric, sequences: Numeric) -> Numeric:
    """SGLang's own choice of mem_fraction_static for a prefill chunk of `tokens` and graphs up to `sequences`.

    >>> from inferplan.specs.parallel import ONE
    >>> h100 = Accelerator.find("h100")
    >>> round(float(static_fraction(Engine.find("sglang", "0.5.10"), h100, ONE, tokens=8192, sequences=256)), 3)
    0.83
    """
    ranks = parallel.tp * parallel.pp
    if not engine.number_or("reserved_bytes", 0.0, hardware):
        return engine.number("utilization", hardware, ranks=parallel.tp)
    kept = engine.number("reserved_bytes", hardware) + engine.number("reserved_per_token_bytes", hardware) * tokens
    kept = kept + engine.number("reserved_per_graph_bytes", hardware) * sequences
    kept = kept + engine.number("reserved_per_rank_bytes", hardware) * ranks + engine.number_or("reserved_piecewise_bytes", 0.0, hardware)
    kept = np.maximum(kept, engine.number_or("reserved_least_bytes", 0.0, hardware))
    return (hardware.usable_bytes - kept) / hardware.usable_bytes


def graph_bytes(model: Model, engine: Engine, hardware: Accelerator | None = None, *, stages: int = 1) -> Numeric:
    """Memory of captured CUDA graphs on one rank: a constant, a part for each layer and one for experts; 0 for engines that state none.

    >>> from inferplan.readers.opening import open_model
    >>> round(graph_bytes(open_model("llama-3.1-8b").model, Engine.find("vllm", "0.19.0")) / 2**30, 2)  # 0.91 GiB were logged
    0.86
    """
    layers = -(-len(model.order) // stages)
    experts = any(block.experts for block in model.blocks.values())
    constant = engine.number_or("graph_bytes", 0.0, hardware) + experts * engine.number_or("graph_expert_bytes", 0.0, hardware)
    return constant + engine.number_or("graph_layer_bytes", 0.0, hardware) * layers


def non_torch_bytes(engine: Engine, hardware: Accelerator | None, parallel: Parallel) -> Numeric:
    """Context, communication buffers and workspaces outside the allocator, by release and number of ranks that exchange in a layer."""
    plain = engine.number_or("non_torch_bytes", 0.0, hardware, ranks=parallel.group)
    staged = engine.number_or("stage_non_torch_bytes", -1.0, hardware)
    return np.where((np.asarray(parallel.pp) > 1) & (np.asarray(parallel.group) == 1) & (staged >= 0), staged, plain)


def rope_table_bytes(model: Model, engine: Engine) -> float:
    """The table of rotary angles that an engine keeps beside the weights: positions x rotary width x 2 B.

    An architecture with scaled angles keeps more positions, which the engine's file states.

    >>> from inferplan.readers.opening import open_model
    >>> rope_table_bytes(open_model("llama-3.1-8b").model, Engine.find("vllm")) / 2**20
    32.0
    """
    if engine.choice("rope_table") != "kept" or not model.context:
        return 0.0
    widths = [_rotary(m) for block in model.blocks.values() for m in block.mixers]
    tables = engine.number_or(f"rope_tables_{model.architecture}", 1.0)
    return float(model.context * max(widths, default=0) * 2 * tables)


def _rotary(mixer: object) -> int:
    if isinstance(mixer, Attention):
        return mixer.head_dim
    return mixer.rope if isinstance(mixer, LatentAttention) else 0
