"""Options for offloading as an engine understands them, to layers in host memory. Knows no link and no time."""

from __future__ import annotations

import numpy as np

from inferplan.engine.split import ways
from inferplan.errors import SpecError, Unsupported
from inferplan.memory.weights import placed_bytes
from inferplan.specs.engine import Engine
from inferplan.specs.model import Model
from inferplan.specs.offload import NOTHING, Offload
from inferplan.specs.parallel import ONE, Parallel
from inferplan.specs.precision import Precision
from inferplan.units import show


def offload_of(
    model: Model, precision: Precision, engine: Engine, parallel: Parallel = ONE, *, gpu_layers: int | None = None, cpu_experts: int = 0,
    cpu_offload_bytes: float = 0.0, host_named: bool = False,
) -> Offload:  # fmt: skip
    """What an engine keeps in host memory.

    gpu_layers
        layers on the devices, counted from the last; one more than the model has keeps the output projection there too.
    cpu_experts
        layers, from the first, whose routed experts lie in host memory.
    cpu_offload_bytes
        bytes of weights per device that go to host memory, the first layers first.
    host_named
        whether the host's processors are known, so that they can compute where the choice is free.

    Raises Unsupported for what the engine does not offer, SpecError for a number outside its range.

    >>> from inferplan.readers.opening import open_model
    >>> model = open_model("llama-3.1-8b").model
    >>> found = offload_of(model, Precision.named("q4_k_m"), Engine.find("llama.cpp"), gpu_layers=20)
    >>> found.layers, found.head, found.computed
    (12.0, True, True)
    """
    if gpu_layers is None and not cpu_experts and not cpu_offload_bytes:
        return NOTHING
    how, layers = engine.choice("offload"), len(model.order)
    if how not in ("computed", "streamed", "either"):
        raise Unsupported(f"{engine.title} keeps no weights in host memory")
    _check_words(engine, how, gpu_layers is not None or bool(cpu_experts), bool(cpu_offload_bytes))
    if cpu_experts and not any(block.experts for block in model.blocks.values()):
        raise SpecError(f"asks for experts, and {model.title} has none", field="cpu_experts", value=cpu_experts)
    if cpu_experts > layers:
        raise SpecError(f"must be at most the model's {layers} layers", field="cpu_experts", value=cpu_experts)
    if cpu_experts and not any(model.blocks[name].experts for name in model.order[:cpu_experts]):
        raise SpecError(f"asks for layers before the first with experts in {model.title}", field="cpu_experts", value=cpu_experts)
    if gpu_layers is not None and gpu_layers < 0:
        raise SpecError("must be 0 or more", field="gpu_layers", value=gpu_layers)
    first = 0.0 if gpu_layers is None else float(max(0, layers - gpu_layers))
    if cpu_offload_bytes:
        first = _layers_of(model, precision, parallel, cpu_offload_bytes)
    computed = how == "computed" or (how == "either" and host_named and not cpu_offload_bytes)
    head = gpu_layers is not None and gpu_layers <= layers
    found = Offload(first, cpu_experts, head, computed, float(engine.number_or("offload_stream_from", np.inf)))
    return found.checked(layers)


def _check_words(engine: Engine, how: str, counts: bool, size: bool) -> None:
    """Raises Unsupported where an engine takes the other kind of option."""
    if size and how == "computed":
        raise Unsupported(f"{engine.title} counts layers (--gpu-layers, --cpu-experts), it takes no size to offload")
    if counts and how == "streamed":
        raise Unsupported(f"{engine.title} takes a size to offload (--cpu-offload 10GiB), no number of layers")


def _layers_of(model: Model, precision: Precision, parallel: Parallel, size: float) -> float:
    """How many layers, from the first, so many bytes of one rank's weights are; at most all of them."""
    if not 0 <= size < np.inf:
        raise SpecError("must be 0 or more", field="cpu_offload_bytes", value=size)
    each = np.zeros(len(model.order))
    for name, layers, w, whole in placed_bytes(model, precision):
        if layers:
            each[list(layers)] += whole / len(layers) / float(np.asarray(ways(w, model.blocks.get(name), parallel)))
    if size > each.sum():
        rule = f"is more than the {show(each.sum(), 'B', binary=True)} of layers on a device"
        raise SpecError(rule, field="cpu_offload_bytes", value=show(size, "B", binary=True))
    return float(np.interp(size, np.concatenate(([0.0], np.cumsum(each))), np.arange(len(each) + 1)))
