"""Bytes of a model's cache in a number format: per token, per sequence, per layer kind. Knows no part, no engine's paging and no clock."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from inferplan.ops import Numeric
from inferplan.specs.cache import CacheEntry
from inferplan.specs.model import Model
from inferplan.specs.precision import Precision, named_format

GROWING = ("full", "mla", "index", "compressed")
WINDOWED = ("sliding", "chunked")


def entry_bytes(entry: CacheEntry, precision: Precision) -> Numeric:
    """Bytes of one cached entry of one layer, scales included; 0 for states.

    An entry whose layout is fixed in bytes keeps it unless the cache is in plain 16 or 32 bit of the model.
    """
    if entry.bytes_per_token is not None:
        return float(entry.bytes_per_token)
    if not entry.k_elements:
        return 0.0
    if entry.rope_elements or entry.kind in ("mla", "compressed"):
        return precision.kv.latent_bytes_per_token(entry.k_elements - entry.rope_elements, entry.rope_elements)
    heads_v = entry.v_elements / (entry.k_elements / entry.head_dim) if entry.v_elements else None
    return precision.kv.kv_bytes_per_token(entry.k_elements, entry.v_elements, head_dim=entry.head_dim, v_head_dim=heads_v)


def token_bytes(entry: CacheEntry, precision: Precision) -> Numeric:
    """Bytes that one more token adds to one layer while nothing is dropped; 0 for caches of fixed length."""
    return 0.0 if entry.fixed_tokens is not None or entry.kind == "cross" else entry_bytes(entry, precision) / entry.every


def state_bytes(entry: CacheEntry, precision: Precision, dtype: str) -> float:
    """Bytes of one layer's constant states of a sequence; `dtype` is the model's own, for states that name none.

    Engines run fp32 checkpoints in 16 bit, and so are their states.
    """
    wanted = precision.state.name if precision.state else "bf16" if dtype == "fp32" else dtype
    return float(sum(s.elements * named_format(s.dtype or wanted).bits / 8 for s in entry.states))


def kept_entries(entry: CacheEntry, tokens: Numeric) -> Numeric:
    """Entries that a sequence of `tokens` holds in one layer: capped by a window, thinned by compression, or fixed."""
    if entry.fixed_tokens is not None:
        return entry.fixed_tokens + 0 * tokens
    whole = tokens // entry.every
    return whole if entry.window is None else np.minimum(whole, entry.window)


def kv_bytes_per_token(model: Model, precision: Precision, *, kinds: Iterable[str] = (*GROWING, *WINDOWED)) -> Numeric:
    """Bytes that one more token adds over all layers of the given kinds, windows not yet full.

    >>> from inferplan.specs.model import Model
    >>> attention = {"kind": "attention", "heads": 32, "kv_heads": 8, "head_dim": 128}
    >>> model = Model.from_mapping({"name": "m", "title": "M", "hidden": 4096, "vocab": 100, "layers": "a*32",
    ...     "blocks": {"a": {"mixer": attention, "ffn": {"kind": "dense", "width": 14336}}}})
    >>> kv_bytes_per_token(model, Precision.named("bf16"))
    131072.0
    """
    wanted = set(kinds)
    return sum((count * token_bytes(entry, precision) for count, entry in model.cache() if entry.kind in wanted), 0.0)


def kv_bytes_per_token_unbounded(model: Model, precision: Precision) -> Numeric:
    """The same without windowed layers: what a long sequence keeps growing by."""
    return kv_bytes_per_token(model, precision, kinds=GROWING)


def state_bytes_per_sequence(model: Model, precision: Precision) -> float:
    """Bytes of constant states of one sequence over all layers."""
    return sum((count * state_bytes(entry, precision, model.dtype) for count, entry in model.cache()), 0.0)


def sequence_bytes(model: Model, precision: Precision, tokens: Numeric) -> Numeric:
    """Bytes that a sequence of `tokens` keeps at the least: windows capped, states and per-sequence scales included. Broadcasts.

    This is the ideal figure; engines round up to blocks and pages, and some reserve windowed layers in full.
    """
    total = 0.0 * tokens + state_bytes_per_sequence(model, precision)
    for count, entry in model.cache():
        total = total + count * (kept_entries(entry, tokens) * entry_bytes(entry, precision) + scale_bytes(entry, precision))
    return total


def scale_bytes(entry: CacheEntry, precision: Precision) -> Numeric:
    """Bytes per sequence and layer that do not grow: per-channel scales."""
    if not entry.k_elements or entry.rope_elements or entry.bytes_per_token is not None or entry.kind in ("mla", "compressed"):
        return 0.0
    return precision.kv.kv_bytes_per_sequence(entry.k_elements, entry.v_elements, head_dim=entry.head_dim)
