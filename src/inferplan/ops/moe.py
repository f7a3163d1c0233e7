"""Mixtures of experts: how many distinct experts a batch of tokens touches. Knows no size of an expert and no part."""

from __future__ import annotations

import numpy as np

from inferplan.formula import formula
from inferplan.ops import Numeric

ROUNDS = 64


@formula(
    "experts * (1 - (1 - top_k / experts) ** tokens)", unit="experts", ref="expected distinct experts under uniform independent routing"
)
def distinct_experts(experts: Numeric, top_k: Numeric, tokens: Numeric) -> Numeric:
    """Expected number of experts that at least one of `tokens` tokens uses.

    Measured for 256 experts, top 8: 164 at 32 tokens and 226 at 64.

    >>> round(distinct_experts(256, 8, 32), 1), round(distinct_experts(256, 8, 64), 1)
    (163.3, 222.4)
    """
    return experts * (1 - (1 - top_k / experts) ** tokens)


def popularity(experts: int, top_k: float, skew: float) -> np.ndarray:
    """The chance that a token uses each expert, the favourite first: a power law of exponent `skew`, no chance above 1, `top_k` in all.

    >>> popularity(4, 2, 0.0).tolist(), popularity(4, 2, 1.0).round(3).tolist()
    ([0.5, 0.5, 0.5, 0.5], [0.96, 0.48, 0.32, 0.24])
    """
    weight: np.ndarray = np.arange(1, experts + 1, dtype=float) ** -skew
    chance: np.ndarray = np.minimum(1.0, weight * top_k / weight.sum())
    for _ in range(ROUNDS):
        free = chance < 1
        missing = top_k - chance.sum()
        if missing <= 1e-12 * top_k or not free.any():
            break
        chance = np.where(free, np.minimum(1.0, chance * (1 + missing / chance[free].sum())), 1.0)
    return chance


def touched_experts(experts: int, top_k: float, tokens: Numeric, skew: float = 0.0) -> Numeric:
    """Expected distinct experts where popularity falls as rank ** -skew; at 0 the plain formula. Broadcasts over tokens.

    >>> round(float(touched_experts(256, 8, 32)), 1), round(float(touched_experts(256, 8, 32, skew=0.5)), 1)
    (163.3, 147.3)
    """
    if not skew:
        return distinct_experts(experts, top_k, tokens)
    found: Numeric = np.zeros(np.shape(tokens))
    for chance in popularity(experts, top_k, skew):
        found = found + (1 - (1 - chance) ** np.asarray(tokens))
    return found
