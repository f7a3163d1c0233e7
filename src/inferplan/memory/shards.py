"""Bytes of weights on one rank: tensors divided over tensor and expert ranks, layers over stages. Knows no engine's reserve."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferplan.engine.split import ways
from inferplan.errors import SpecError
from inferplan.memory.weights import placed_bytes, weight_bytes_by_part
from inferplan.ops import Numeric
from inferplan.specs.ffns import Experts
from inferplan.specs.model import Model
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
        >>> round(float(Padding(256, 128).factor(gpt_oss, 2880, Parallel())), 4)
        1.0904
        """
        width = experts.width / parallel.moe_tp
        grown: Numeric = np.ceil(width / self.width) * self.width / width * (np.ceil(hidden / self.hidden) * self.hidden / hidden)
        return grown


NO_PADDING = Padding()


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


def stage_weight_bytes(
    model: Model, precision: Precision, parallel: Parallel, padding: Padding = NO_PADDING, *,
    towers_divided: bool = False, dense_over_group: bool = False, mtp: bool = False,
) -> list[Numeric]:  # fmt: skip
    """Bytes of weights on one rank of each pipeline stage; token tables and towers lie on the first stage, the head on the last.

    A tied table lies on both. Broadcasts over tp, dp and ep; pp is one number. `towers_divided` deals encoders out over the
    tensor-parallel ranks as well, `dense_over_group` dense blocks and vocabulary over all data-parallel ranks; `mtp` adds the
    model's prediction modules to the last stage.

    >>> from inferplan.specs.model import Model
    >>> model = Model.from_mapping({"name": "m", "title": "M", "hidden": 64, "vocab": 100, "layers": "a*2",
    ...     "blocks": {"a": {"ffn": {"kind": "dense", "width": 128}}}})
    >>> float(sum(stage_weight_bytes(model, Precision.named("bf16"), Parallel(pp=2)))) == 2 * model.params
    True
    """
    counts = stage_layers(len(model.order), int(np.asarray(parallel.pp)))
    ends = np.cumsum(counts)
    found: list[Numeric] = [0.0] * len(counts)
    for name, layers, w, size in placed_bytes(model, precision):
        dealt = parallel.tp if towers_divided and w.part == "vision" else ways(w, model.blocks.get(name), parallel)
        dealt = parallel.group if dense_over_group and w.part in _DENSE else dealt
        share = size / dealt * _growth(model, precision, name, w, parallel, padding)
        stages = np.searchsorted(ends, layers, side="right") if layers else np.zeros(0, dtype=int)
        inside = (np.bincount(stages, minlength=len(counts)) / len(layers)).tolist() if layers else _outside(model, w, len(counts))
        found = [total + share * part for total, part in zip(found, inside, strict=True)]
    if mtp and model.mtp:
        found[-1] = found[-1] + weight_bytes_by_part(model, precision, mtp=True)["mtp"] / parallel.tp
    return found


def _outside(model: Model, w: Weight, stages: int) -> list[float]:
    """The share of a tensor outside the layers that each stage holds."""
    first, last = w.part in (*_TABLES, "vision", "other"), w.part in _HEAD or (w.part == "embedding" and model.head == "tied")
    if stages > 1 and first and last:
        return [1.0, *([0.0] * (stages - 2)), 1.0]
    place = 0 if first else stages - 1
    return [float(i == place) for i in range(stages)]


def _growth(model: Model, precision: Precision, block: str, w: Weight, parallel: Parallel, padding: Padding) -> Numeric:
    experts = model.blocks[block].experts if block else None
    if w.part != "experts" or experts is None or padding == NO_PADDING or not precision.format_of("experts").name.startswith("mxfp4"):
        return 1.0
    return padding.factor(experts, model.hidden, parallel)
