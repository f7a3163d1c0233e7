"""How much of the prompts of a trace a cache of blocks would spare, requests taken one after the other. Knows no engine and no clock."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from inferplan.errors import SpecError
from inferplan.serving.requests import Requests


def cached_blocks(requests: Requests, blocks: int | None = None) -> NDArray[np.int64]:
    """Blocks at the head of each prompt that a cache of `blocks` blocks of the trace's hashes holds, requests in order of arrival.

    The least recently used block goes first; all blocks of a request are used in order, whether found or not; a match ends at the first
    that is not found. None: a cache without bound. This is a bound on what an engine finds, which runs requests beside each other, keeps
    their answers in the same cache and computes the last block of a prompt again. Raises SpecError where the trace has no hashes.

    >>> asked = Requests.of([0, 1, 2], [3, 3, 3], 1, prefixes=[(0, 1, 2), (0, 1, 3), (0, 1, 2)], hash_tokens=1)
    >>> cached_blocks(asked).tolist(), cached_blocks(asked, 3).tolist(), cached_blocks(asked, 2).tolist()
    ([0, 2, 3], [0, 2, 2], [0, 0, 0])
    """
    if requests.prefixes is None:
        raise SpecError("needs requests with prefixes: hash_ids in the trace, or a shared prefix", field="cached blocks")
    if blocks is not None and blocks < 1:
        raise SpecError("must be a whole number from 1", field="blocks", value=blocks)
    kept: OrderedDict[int, None] = OrderedDict()
    found = np.zeros(len(requests), dtype=np.int64)
    for i, chain in enumerate(requests.prefixes):
        found[i] = next((n for n, block in enumerate(chain) if block not in kept), len(chain))
        for block in chain:
            kept[block] = None
            kept.move_to_end(block)
            if blocks is not None and len(kept) > blocks:
                kept.popitem(last=False)
    return found


def cached_share(requests: Requests, blocks: int | None = None) -> float:
    """The share of the hashed blocks that `cached_blocks` finds; 0 where there are none.

    >>> cached_share(Requests.of([0, 1], [2, 2], 1, prefixes=[(0, 1), (0, 2)], hash_tokens=1))
    0.25
    """
    found = cached_blocks(requests, blocks)
    return float(found.sum() / max(1, sum(map(len, requests.prefixes or ()))))
