"""Recurrences: FLOPs of a token's state update in its step form. Knows no part, no format and no kernel's chunking."""

from __future__ import annotations

from inferplan.formula import formula
from inferplan.ops import Numeric


@formula("7 * tokens * state", unit="FLOP", ref="Gu and Dao 2023: decay, input, update (5 per element), then the product with C (2)")
def selective_scan_flops(tokens: Numeric, state: Numeric) -> Numeric:
    """FLOPs of a selective state space over `tokens`, with `state` elements per sequence and layer.

    >>> selective_scan_flops(10, 128)
    8960
    """
    return 7 * tokens * state


@formula("8 * tokens * state", unit="FLOP", ref="Yang et al. 2024: decay, read with k, rank-one correction, read with q")
def delta_rule_flops(tokens: Numeric, state: Numeric) -> Numeric:
    """FLOPs of the gated delta rule over `tokens` with a key-by-value state of `state` elements over all heads.

    >>> delta_rule_flops(1, 16384)
    131072
    """
    return 8 * tokens * state


@formula("5 * tokens * state", unit="FLOP", ref="linear attention: decay, outer product, read with q")
def linear_attention_flops(tokens: Numeric, state: Numeric) -> Numeric:
    """FLOPs of linear attention with decay over `tokens` with `state` elements over all heads.

    >>> linear_attention_flops(1, 100)
    500
    """
    return 5 * tokens * state
