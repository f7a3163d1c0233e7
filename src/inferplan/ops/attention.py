"""Attention: how many (query, key) pairs a pass attends, FLOPs of scores and values, entries read. Knows no part, format or model.

`new` tokens of a sequence follow `past` cached ones; a causal query sees itself and all before it, at most `window` of them.
"""

from __future__ import annotations

import numpy as np

from inferplan.formula import formula
from inferplan.ops import Numeric


@formula("new * past + new * (new + 1) / 2", unit="pairs", ref="sum of past + 1 ... past + new")
def causal_pairs(new: Numeric, past: Numeric) -> Numeric:
    """Pairs of one sequence under full causal attention.

    >>> causal_pairs(4, 0), causal_pairs(1, 1023)
    (10.0, 1024.0)
    """
    return new * past + new * (new + 1) / 2


def _capped(n: Numeric, window: Numeric) -> Numeric:
    """The sum of min(j, window) for j = 1 ... n."""
    inside: Numeric = np.minimum(n, window)
    return inside * (inside + 1) / 2 + (n - inside) * window


@formula(
    "minimum(past+new, window)*(minimum(past+new, window)+1)/2 + (past+new-minimum(past+new, window))*window"
    " - minimum(past, window)*(minimum(past, window)+1)/2 - (past-minimum(past, window))*window",
    unit="pairs",
    ref="sum of min(position, window)",
)
def window_pairs(new: Numeric, past: Numeric, window: Numeric) -> Numeric:
    """Pairs of one sequence where each query sees at most `window` keys: sliding windows and top-k selection.

    >>> float(window_pairs(1, 5000, 4096)), float(window_pairs(3, 0, 2))
    (4096.0, 5.0)
    """
    return _capped(past + new, window) - _capped(past, window)


@formula(
    "(floor((past+new)/chunk) - floor(past/chunk)) * chunk*(chunk+1)/2"
    " + ((past+new) % chunk)*((past+new) % chunk + 1)/2 - (past % chunk)*(past % chunk + 1)/2",
    unit="pairs",
    ref="each query sees its own chunk up to itself",
)
def chunk_pairs(new: Numeric, past: Numeric, chunk: Numeric) -> Numeric:
    """Pairs of one sequence under chunked local attention (Llama 4).

    >>> float(chunk_pairs(4, 0, 2)), float(chunk_pairs(1, 3, 2))
    (6.0, 2.0)
    """
    total, before = past + new, past
    whole = (np.floor(total / chunk) - np.floor(before / chunk)) * chunk * (chunk + 1) / 2
    left, cut = total % chunk, before % chunk
    return whole + left * (left + 1) / 2 - cut * (cut + 1) / 2


@formula("new * (minimum(past, window - 1) + new)", unit="pairs", ref="the rectangle that a kernel without a causal mask computes")
def rectangle_pairs(new: Numeric, past: Numeric, window: Numeric) -> Numeric:
    """Pairs of the full query-by-key rectangle, with at most `window` - 1 keys kept from the past.

    >>> float(rectangle_pairs(16, 0, float("inf"))), float(rectangle_pairs(1, 64, 16))
    (256.0, 16.0)
    """
    return new * (np.minimum(past, window - 1) + new)


@formula("2 * heads * (qk_dim + v_dim) * pairs", unit="FLOP", ref="scores q.k and the weighted sum of values")
def attention_flops(heads: Numeric, qk_dim: Numeric, v_dim: Numeric, pairs: Numeric) -> Numeric:
    """FLOPs of scores and values over `pairs`.

    >>> attention_flops(32, 128, 128, 1024)
    16777216
    """
    return 2 * heads * (qk_dim + v_dim) * pairs


@formula("2 * heads * (head_dim + 1) * pairs", unit="FLOP", ref="DeepSeek-V3.2: index scores and their weighted sum over heads")
def indexer_flops(heads: Numeric, head_dim: Numeric, pairs: Numeric) -> Numeric:
    """FLOPs of an indexer's scores over `pairs`.

    >>> indexer_flops(4, 16, 256)
    34816
    """
    return 2 * heads * (head_dim + 1) * pairs
