"""Bytes of a model's weights in a precision, by part. Knows no part of hardware and no engine's overhead."""

from __future__ import annotations

from functools import lru_cache

from inferplan.engine.weight_ops import tensor_of
from inferplan.specs.model import Model
from inferplan.specs.precision import Precision
from inferplan.specs.weights import Weight

BIAS_BYTES = 2.0
BUFFER_BYTES = 4.0


def weight_bytes(model: Model, precision: Precision, *, mtp: bool = False) -> float:
    """Bytes of all weights with their scales; biases in 16 bit, router correction buffers in 32.

    `mtp` adds the multi-token-prediction modules, with the copies of embedding and head that some checkpoints store.

    >>> model = Model.from_mapping({"name": "m", "title": "M", "hidden": 64, "vocab": 100, "layers": "a*2",
    ...     "blocks": {"a": {"ffn": {"kind": "dense", "width": 128}}}})
    >>> weight_bytes(model, Precision.named("bf16")) == 2 * model.params
    True
    """
    return sum(weight_bytes_by_part(model, precision, mtp=mtp).values())


@lru_cache(maxsize=256)
def _by_part(model: Model, precision: Precision, mtp: bool) -> tuple[tuple[str, float], ...]:
    found: dict[str, float] = {}
    for name, layers, w in _placed(model):
        found[w.part] = found.get(w.part, 0.0) + _bytes(model, precision, name, layers, w)
    for w in model.mtp_weights() if mtp else ():
        found["mtp"] = found.get("mtp", 0.0) + _plain_bytes(precision, "mtp", w)
    if mtp and model.mtp and model.mtp.stored_copies:
        table = precision.format_of("embedding").bytes(model.vocab, model.hidden) + precision.format_of("head").bytes(
            model.vocab, model.hidden
        )
        found["mtp"] += model.mtp.modules * float(table)
    return tuple(found.items())


def weight_bytes_by_part(model: Model, precision: Precision, *, mtp: bool = False) -> dict[str, float]:
    """The same for each part: embedding, attention, mlp, experts, norm ..."""
    return dict(_by_part(model, precision, mtp))


def placed_bytes(model: Model, precision: Precision) -> list[tuple[str, tuple[int, ...], Weight, float]]:
    """Each tensor with its block, the layers that hold it (none outside the layers) and its bytes over all of them."""
    return [(name, layers, w, _bytes(model, precision, name, layers, w)) for name, layers, w in _placed(model)]


def _placed(model: Model) -> list[tuple[str, tuple[int, ...], Weight]]:
    """Each tensor of one layer with the layers that hold it; tensors outside the layers with none."""
    found: list[tuple[str, tuple[int, ...], Weight]] = []
    where = {name: [i for i, n in enumerate(model.order) if n == name] for name in model.blocks}
    for count, name, weights in model.layer_weights():
        layers, where[name] = where[name][:count], where[name][count:]
        found += [(name, tuple(layers), w) for w in weights]
    inside = {id(w) for _, _, w in found}
    outside = [*model.embeddings(), *model.around(), *model.heads()]
    outside += [w for t in model.towers.values() for w in t.weights()]
    return found + [("", (), w) for w in outside if id(w) not in inside]


def _bytes(model: Model, precision: Precision, block: str, layers: tuple[int, ...], w: Weight) -> float:
    if not layers or w.use in ("vector", "scan", "conv") or precision.mix is None:
        return max(1, len(layers)) * _plain_bytes(precision, w.part, w)
    tensor = tensor_of(model, model.blocks[block], w)
    chosen = precision.formats_of(w.part, tensor, layers)
    return sum(n * float(f.bytes(w.rows, w.cols)) for f, n in chosen) * w.copies + len(layers) * w.copies * w.bias * BUFFER_BYTES


def _plain_bytes(precision: Precision, part: str, w: Weight) -> float:
    """Bytes of a tensor by its part alone; small vectors and convolutions stay in the format of norms."""
    if w.buffer:
        return w.params * BUFFER_BYTES
    fmt = precision.format_of("norm" if w.use in ("vector", "scan", "conv") and precision.format_of(part).quantised else part)
    if w.use in ("vector", "scan", "conv"):
        return w.params * fmt.bits / 8
    return w.copies * (float(fmt.bytes(w.rows, w.cols)) + w.bias * BIAS_BYTES)
