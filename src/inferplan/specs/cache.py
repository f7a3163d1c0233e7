"""What one layer keeps for a sequence between steps: entries per token, windows, constant states. Knows no number format and no engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class State:
    """A tensor of constant size per sequence; `dtype` is fixed by the architecture, or None for the model's own."""

    name: str
    elements: int
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One kind of cache of one layer.

    kind
        full, sliding, chunked, mla, index, compressed, cross, mamba1, mamba2, gated_delta, kda, short_conv, ...
    k_elements, v_elements
        elements kept per cached token (MLA keeps its latent and rotary part once, as `k_elements`).
    head_dim
        length over which a per-head scale is shared.
    rope_elements
        the part of an MLA entry that stays in 16 bit in layouts that quantise the latent.
    bytes_per_token
        set where the layout is fixed in bytes whatever the KV format (an fp8 index key with its scale).
    every
        one entry per so many tokens.
    window
        entries kept at most, None without a bound; `fixed_tokens` for caches of a length of their own (cross attention).
    """

    kind: str
    k_elements: int = 0
    v_elements: int = 0
    head_dim: int = 0
    rope_elements: int = 0
    bytes_per_token: int | None = None
    every: int = 1
    window: int | None = None
    fixed_tokens: int | None = None
    states: tuple[State, ...] = ()
