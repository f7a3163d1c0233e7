"""Over how many ranks each weight tensor is divided under tensor and expert parallelism. Knows no bytes and no clock.

Heads, feed-forward columns and vocabulary are divided; norms, routers, latent down-projections and indexers are held by every
rank. KV heads are divided until each rank has one, then held by several.
"""

from __future__ import annotations

import numpy as np

from inferplan.ops import Numeric
from inferplan.specs.mixers import Attention
from inferplan.specs.model import Block
from inferplan.specs.parallel import Parallel
from inferplan.specs.weights import Weight

WHOLE = {"q_a", "kv_a", "kv", "decay_a", "gate_a", "latent_down", "latent_up", "relative_bias", "router"}
DIVIDED = {"attention", "mlp", "shared_expert", "recurrent", "embedding", "aux_embedding", "head", "experts"}
ROW_PARALLEL = ("o", "down", "out", "o_b")  # their inputs are divided, so that a rank adds up a part of every output


def ways(w: Weight, block: Block | None, parallel: Parallel) -> Numeric:
    """Over how many ranks a tensor's bytes and products are divided.

    >>> from inferplan.specs.weights import linear
    >>> ways(linear("attention.q", "attention", 64, 64), None, Parallel(tp=4))
    4
    >>> ways(linear("mla.kv_a", "attention", 64, 8), None, Parallel(tp=4))
    1
    """
    last = w.name.rsplit(".", 1)[-1]
    if w.part not in DIVIDED or last in WHOLE or (w.use == "vector" and w.part != "recurrent"):
        return 1
    if w.part == "experts":
        return parallel.group
    if last in ("k", "v") and w.part == "attention" and block is not None:
        return np.minimum(parallel.tp, kv_heads(block, w))
    return parallel.tp


def kv_heads(block: Block, w: Weight) -> int:
    """KV heads of the attention that a key or value projection belongs to."""
    first = w.name.split(".", 1)[0]
    for i, mixer in enumerate(block.mixers):
        if isinstance(mixer, Attention) and first == (f"attention{i}" if i else "attention"):
            return mixer.kv_heads
    return 1


def divides(block: Block, parallel: Parallel) -> Numeric:
    """Where tensor parallelism comes out even: query heads divide by tp, KV heads by tp or tp by KV heads."""
    tp = np.asarray(parallel.tp)
    even: Numeric = np.ones(tp.shape, dtype=bool)
    for mixer in block.mixers:
        heads = getattr(mixer, "heads", None) or getattr(mixer, "value_heads", None)
        if heads:
            even = even & (heads % tp == 0)
        if isinstance(mixer, Attention):
            even = even & ((mixer.kv_heads % tp == 0) | (tp % mixer.kv_heads == 0))
    return even
