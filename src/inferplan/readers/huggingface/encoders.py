"""Pieces of an encoder beside a text decoder: layers that see all positions at once, and the tensors around them.

Knows no family.
"""

from __future__ import annotations

from typing import Any

from inferplan.readers.huggingface.assemble import Layers, stacked
from inferplan.readers.huggingface.fields import Fields
from inferplan.specs.ffns import Dense
from inferplan.specs.mixers import Attention
from inferplan.specs.model import Block, Extra, Tower
from inferplan.specs.weights import Part

MOST_LAYERS = 10_000


def depth(f: Fields, *names: str, essential: bool = False) -> int:
    """A number of layers, refused where no model could have so many."""
    layers = f.count(*names, essential=essential)
    if layers > MOST_LAYERS:
        raise f.refuse(f.stated(*names), f"must be at most {MOST_LAYERS:,}", layers)
    return layers


def divided(f: Fields, hidden: int, *names: str, essential: bool = False) -> tuple[int, int]:
    """The heads a field names, and their width, where they divide the residual stream.

    >>> divided(Fields({"num_heads": 16}), 1280, "num_heads")
    (16, 80)
    """
    heads = f.count(*names, essential=essential)
    if hidden % heads:
        raise f.refuse(f.stated(*names), f"must divide the width {hidden}", heads)
    return heads, hidden // heads


def ratio(f: Fields, name: str, default: float, most: float = 1.0) -> float:
    """A positive number of at most `most`."""
    return f.factor(name, most=most, default=default)


def dense(name: str, inputs: int, outputs: int, *, bias: bool = False, copies: int = 1) -> Extra:
    """A projection from `inputs` to `outputs` features."""
    return Extra(name=name, rows=outputs, cols=inputs, copies=copies, bias=outputs if bias else 0, use="matmul")


def conv(name: str, inputs: int, outputs: int, taps: int, *, bias: bool = False, copies: int = 1, rate: float = 1.0) -> Extra:
    """A convolution with `taps` positions in its kernel, computed `rate` times per position of the layers behind it."""
    return Extra(name=name, rows=outputs, cols=inputs * taps, copies=copies, bias=outputs if bias else 0, use="conv", rate=rate)


def scale(name: str, width: int, *, bias: bool = True, copies: int = 1) -> Extra:
    """A normalisation over `width` features, with a bias unless it has none."""
    return Extra(name=name, part="norm", rows=width, copies=copies, bias=width if bias else 0)


def table(name: str, rows: int, width: int, *, part: Part = "aux_embedding") -> Extra:
    """A table of which a pass reads some rows: positions, token types."""
    return Extra(name=name, part=part, rows=rows, cols=width, use="lookup")


def vector(name: str, length: int, *, copies: int = 1) -> Extra:
    """A vector (or the elements of a small tensor) applied elementwise."""
    return Extra(name=name, rows=length, copies=copies)


def perceptron(name: str, inputs: int, inner: int, outputs: int, *, bias: bool = False, copies: int = 1) -> tuple[Extra, ...]:
    """Two projections with an activation between them.

    >>> sum(e.weight().params for e in perceptron("projector", 1024, 4096, 4096, bias=True))
    20979712
    """
    return (dense(f"{name}_1", inputs, inner, bias=bias, copies=copies), dense(f"{name}_2", inner, outputs, bias=bias, copies=copies))


def idle(name: str, elements: int) -> Extra:
    """Parameters that the file keeps and no pass of the language model reads."""
    return Extra(name=name, rows=elements, use="lookup")


def layer(
    heads: int, head_dim: int, inner: int, *, kv_heads: int | None = None, bias: str = "qkvo", gated: bool = False, mlp_bias: bool = True,
    norms: int = 2, norm_bias: bool = True, extra: tuple[Extra, ...] = (), **attention: Any,
) -> Block:  # fmt: skip
    """A transformer layer without a causal mask and without a cache."""
    mixer = Attention(heads=heads, kv_heads=kv_heads or heads, head_dim=head_dim, bias=bias, causal=False, cached=False, **attention)
    return Block(mixers=(mixer,), ffns=(Dense(width=inner, gated=gated, bias=mlp_bias),), norms=norms, norm_bias=norm_bias, extra=extra)


def tower(hidden: int, layers: Layers, *, norms: int = 1, norm_bias: bool = True, extra: tuple[Extra, ...] = (), **more: Any) -> Tower:
    """Layers of one width with what stands before and after them."""
    return Tower(hidden=hidden, norms=norms, norm_bias=norm_bias, extra=extra, **stacked(layers), **more)


def joined(encoder: Tower, *extra: Extra, tokens: int | None = None) -> Tower:
    """The same tower with further tensors and, where it is a constant, the number of tokens it hands to the decoder."""
    return encoder.model_copy(update={"extra": (*encoder.extra, *extra), "tokens": tokens or encoder.tokens})
