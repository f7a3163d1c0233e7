"""From per-layer blocks to a model: equal layers become one named block, the order a short text. Knows no architecture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from inferplan.specs.model import Block
from inferplan.specs.order import shorten

Layers = Sequence[tuple[str, Block]]


def stacked(layers: Layers) -> dict[str, Any]:
    """The `blocks` and `layers` fields of a stack from its layers in order, each with the label it would like to have."""
    names: dict[Block, str] = {}
    order = []
    for label, block in layers:
        if block not in names:
            taken = set(names.values())
            names[block] = next(n for n in (label, *(f"{label}{i}" for i in range(2, 5000))) if n not in taken)
        order.append(names[block])
    return {"blocks": {name: block for block, name in names.items()}, "layers": shorten(order)}


def label(*parts: str | None) -> str:
    """A block's name from what sets it apart.

    >>> label("local", "moe"), label("", None)
    ('local_moe', 'layer')
    """
    return "_".join(p for p in parts if p) or "layer"


def uniform(block: Block, layers: int) -> Layers:
    """A stack of equal layers."""
    return [("layer", block)] * layers


def zipped(mixers: Iterable[tuple[str, Any]], ffns: Iterable[tuple[str, Any]], **common: Any) -> Layers:
    """Layers of one mixer and one feed-forward part each; a part is named only where it varies."""
    m, f = list(mixers), list(ffns)
    name_m, name_f = len({a for a, _ in m}) > 1, len({a for a, _ in f}) > 1
    return [
        (label(a if name_m else None, c if name_f else None), Block(mixers=_tuple(b), ffns=_tuple(d), **common))
        for (a, b), (c, d) in zip(m, f, strict=True)
    ]


def _tuple(piece: Any) -> tuple[Any, ...]:
    return () if piece is None else piece if isinstance(piece, tuple) else (piece,)
