"""Bytes of weights on one rank: tensors divided over tensor and expert ranks, layers over stages. Knows no engine's reserve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferplan.engine.split import ways
from inferplan.errors import SpecError
from inferplan.memory.activations import packs_experts
from inferplan.memory.weights import placed_bytes
from inferplan.ops import Numeric
from inferplan.specs.engine import Engine
from inferplan.specs.ffns import Experts
from inferplan.specs.hardware import Accelerator
from inferplan.specs.model import Model
from inferplan.specs.offload import NOTHING, Offload
from inferplan.specs.parallel import Parallel
from inferplan.specs.precision import Precision
from inferplan.specs.weights import Weight

_HEAD = ("head",)
_DENSE = ("mlp", "shared_expert", "embedding", "head")
_TABLES = ("embedding", "aux_embedding")


@dataclass(frozen=True, slots=True)
class Padding:
    """What an engine rounds the width and the input of 4-bit experts up to, per rank; 1 leaves them as they are."""

    width: float = 1
    hidden: float = 1

    def factor(self, experts: Experts, hidden: int, parallel: Parallel) -> Numeric:
        """By how much the experts' bytes grow.

        >>> gpt_oss = Experts(experts=128, top_k=4, width=2880)
        >>> round(float(Padding(128, 256).factor(gpt_oss, 2880, Parallel())), 4)
        1.0904
        """
        width = experts.width / parallel.moe_tp
        grown: Numeric = np.ceil(width / self.width) * self.width / width * (np.ceil(hidden / self.hidden) * self.hidden / hidden)
        return grown


NO_PADDING = Padding()


@dataclass(frozen=True, slots=True)
class Holding:
    """How an engine holds weights.

    towers_divided, dense_over_group
        encoders are dealt out over the tensor-parallel ranks as well; dense blocks and vocabulary over all data-parallel ranks.
    latent_copies, rounded
        what `latent_copy_bytes` and `rounding_bytes` of stage_weights say is added.
    table_hosted
        the token table stays with the host, but for the copy that a tied head needs.
    """

    padding: Padding = NO_PADDING
    towers_divided: bool = False
    dense_over_group: bool = False
    latent_copies: bool = False
    rounded: bool = False
    table_hosted: bool = False

    @classmethod
    def of(cls, engine: Engine, hardware: Accelerator | None) -> Holding:
        """That of an engine's release on a part."""
        return cls(
            padding_of(engine, hardware),
            engine.choice("towers") == "divided",
            engine.choice("dense_over") == "group",
            engine.choice("latent_copies") == "kept",
            engine.choice("weight_rounding") == "torch",
            engine.choice("token_table") == "host",
        )


PLAIN = Holding()


@dataclass(frozen=True, slots=True)
class Shard:
    """A tensor as one rank holds it.

    layers, whole
        the layers that hold it (none outside the layers) and its bytes over all of them, over all ranks.
    dealt, growth
        over how many ranks it is divided, and by how much padding makes it larger.
    inside
        the share of it that lies on each pipeline stage; what is offloaded lies on none.
    """

    block: str
    layers: tuple[int, ...]
    weight: Weight
    whole: float
    dealt: Numeric
    growth: Numeric
    inside: tuple[float, ...]

    @property
    def bytes(self) -> Numeric:
        """Bytes on one rank over all stages."""
        return self.whole / self.dealt * self.growth


def shards(
    model: Model, precision: Precision, parallel: Parallel, holding: Holding = PLAIN, offload: Offload = NOTHING
) -> list[Shard]:
    """Every tensor of the model as one rank holds it. Broadcasts over tp, dp and ep; pp is one number."""
    stages, found = int(np.asarray(parallel.pp)), []
    for name, layers, w, size in placed_bytes(model, precision):
        dealt = _dealt(model, name, w, parallel, holding)
        inside = _inside(model, layers, w, stages, offload, holding.table_hosted)
        found.append(Shard(name, layers, w, size, dealt, _growth(model, precision, name, w, parallel, holding.padding), inside))
    return found


def _dealt(model: Model, block: str, w: Weight, parallel: Parallel, holding: Holding) -> Numeric:
    if holding.dense_over_group and w.part in _DENSE:
        return parallel.group
    if holding.towers_divided and w.part == "vision":
        return parallel.tp
    return ways(w, model.blocks.get(block), parallel)


def _inside(model: Model, layers: tuple[int, ...], w: Weight, stages: int, offload: Offload, table_hosted: bool) -> tuple[float, ...]:
    """The share of a tensor that each stage holds."""
    if not layers:
        return (0.0,) * stages if is_hosted(model, w, offload, table_hosted) else _outside(model, w, stages)
    counts = device_layers(len(model.order), stages, offload)
    ends = len(model.order) - sum(counts) + np.cumsum(counts)
    where = np.minimum(np.searchsorted(ends, layers, side="right"), stages - 1)
    kept = 1 - hosted_share(layers, w, offload)
    return tuple((np.bincount(where, kept, minlength=stages) / len(layers)).tolist())


def padding_of(engine: Engine, hardware: Accelerator | None) -> Padding:
    """What an engine's kernels for 4-bit experts on a part round up to.

    >>> padding_of(Engine.find("vllm", "0.14.1"), Accelerator.find("h100")), padding_of(Engine.find("vllm", "0.14.1"), None)
    (Padding(width=64.0, hidden=256.0), Padding(width=128.0, hidden=256.0))
    """
    width, hidden = (engine.number_or(f"expert_{side}_multiple", 1.0, hardware) for side in ("width", "hidden"))
    return Padding(float(width), float(hidden))


def stage_layers(layers: int, stages: int) -> list[int]:
    """Layers of each pipeline stage: equal, with what is left over on the stages before the last, from the back.

    >>> stage_layers(32, 4), stage_layers(61, 4)
    ([8, 8, 8, 8], [15, 15, 16, 15])
    """
    if not 1 <= stages <= layers:
        raise SpecError(f"must lie between 1 and the model's {layers} layers", field="pp", value=stages)
    found = [layers // stages] * stages
    for i in range(layers % stages):
        found[-2 - i if i + 2 <= stages else -1] += 1
    return found


def device_layers(layers: int, stages: int, offload: Offload = NOTHING) -> list[int]:
    """Layers of each stage; where the host computes with the first ones, the stages share the rest. Raises SpecError."""
    hosted = int(offload.layers) if offload.computed else 0
    if hosted < layers and stages > layers - hosted:
        raise SpecError(f"must be at most the {layers - hosted} layers that stay on the devices", field="pp", value=stages)
    if offload.any and not offload.computed and stages > 1:
        raise SpecError("must be 1 where weights are streamed from host memory", field="pp", value=stages)
    return [0] * stages if hosted == layers else stage_layers(layers - hosted, stages)


def hosted_share(layers: Sequence[int], w: Weight, offload: Offload) -> NDArray[Any]:
    """For each of a tensor's layers the share of it that lies in host memory."""
    first = max(offload.layers, offload.experts) if w.use == "expert" else offload.layers
    share: NDArray[Any] = np.clip(first - np.asarray(layers, dtype=float), 0.0, 1.0)
    return share


def is_hosted(model: Model, w: Weight, offload: Offload, table_hosted: bool) -> bool:
    """Whether a tensor outside the layers lies in host memory alone."""
    if w.part in _TABLES:
        return (table_hosted or offload.head) and (model.head != "tied" or offload.head)
    return offload.head and w.part in _HEAD


def host_weight_bytes(model: Model, precision: Precision, offload: Offload, *, table_hosted: bool = False) -> float:
    """Bytes of weights that lie in host memory, of all ranks together; a tied table that the device needs too lies on both."""
    found = 0.0
    for _, layers, w, size in placed_bytes(model, precision):
        if layers:
            found += size * float(hosted_share(layers, w, offload).sum()) / len(layers)
        elif is_hosted(model, w, offload, table_hosted) or (table_hosted and w.part in _TABLES):
            found += size
    return found


def _outside(model: Model, w: Weight, stages: int) -> tuple[float, ...]:
    """The share of a tensor outside the layers that each stage holds."""
    first, last = w.part in (*_TABLES, "vision", "other"), w.part in _HEAD or (w.part == "embedding" and model.head == "tied")
    if stages > 1 and first and last:
        return (1.0, *([0.0] * (stages - 2)), 1.0)
    place = 0 if first else stages - 1
    return tuple(float(i == place) for i in range(stages))


def _growth(model: Model, precision: Precision, block: str, w: Weight, parallel: Parallel, padding: Padding) -> Numeric:
    experts = model.blocks[block].experts if block else None
    if w.part != "experts" or experts is None or padding == NO_PADDING or not packs_experts(precision):
        return 1.0
    return padding.factor(experts, model.hidden, parallel)
