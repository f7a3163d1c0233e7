"""What ranks tell each other in a pass: reductions, copies of tokens for experts, caches and queries between context ranks, stages.

Knows no link and no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from inferplan.engine.cache_bytes import entry_bytes
from inferplan.engine.op import Op, Pass, Wire
from inferplan.ops import Numeric
from inferplan.specs.ffns import Experts
from inferplan.specs.mixers import Attention, LatentAttention
from inferplan.specs.model import Block


def exchanges(run: Pass, block: Block) -> Iterator[Op]:
    """What follows a layer's mixers and its feed-forward parts."""
    if run.parallel.single:
        return
    message = 2.0 * run.model.hidden * run.tokens
    reduce = Wire("all_reduce", message, run.parallel.tp)
    for mixer in block.mixers:
        yield from of_context(run, mixer)
    if block.mixers:
        yield collective("attention.reduce", reduce)
    moe = block.experts
    if moe is not None:
        yield from _of_experts(run, moe, message)
    elif block.ffns:
        yield collective("mlp.reduce", reduce)


def collective(name: str, wire: Wire) -> Op:
    """An operator that is a collective alone."""
    return Op(name, "collective", "wire", "none", 0.0 * wire.bytes, wire=wire)


def is_one(ways: Numeric) -> bool:
    """Whether a way of splitting is 1 at every point."""
    return bool(np.all(np.asarray(ways) == 1))


def _of_experts(run: Pass, moe: Experts, message: Numeric) -> Iterator[Op]:
    """Tokens to their experts and back: a reduction where all ranks hold all tokens, else a dispatch and a combine."""
    group, width = run.parallel.group, run.width_of(run.precision.compute_of("experts"))
    yield collective("experts.reduce", Wire("all_reduce", message, run.parallel.tp))
    if is_one(run.parallel.dp):
        return
    copies = run.tokens * moe.top_k * run.model.hidden * (1 - 1 / run.parallel.dp)
    yield collective("experts.dispatch", Wire("all_to_all", width * copies / run.parallel.tp, group))
    yield collective("experts.combine", Wire("all_to_all", 2.0 * copies / run.parallel.tp, group))


def of_context(run: Pass, mixer: Any) -> Iterator[Op]:
    """What ranks that share one cache tell each other in a layer.

    A prompt's ranks gather all keys and values. A single token's query goes to all of them and their partial results are added up:
    within `dcp` ranks of a tensor-parallel group, that hold different heads, and over `cp` groups, that hold the same.
    """
    if is_one(run.parallel.cache_ways) or not isinstance(mixer, (Attention, LatentAttention)) or not mixer.cached:
        return
    for phase, part, there in run.phases():
        for op in _of_prompt(part, mixer) if phase == "prefill" else _of_token(part, mixer):
            yield op if np.ndim(there) == 0 else replace(op, count=op.count * there)


def _of_prompt(run: Pass, mixer: Attention | LatentAttention) -> Iterator[Op]:
    p = run.parallel
    if not is_one(p.cp):
        yield collective("context.gather", Wire("all_gather", held_bytes(run, mixer), p.cp, p.tp))


def _of_token(run: Pass, mixer: Attention | LatentAttention) -> Iterator[Op]:
    p = run.parallel
    query, result = (2.0 * run.tokens * numbers for numbers in heads_of(mixer))
    if not is_one(p.dcp):
        yield collective("context.query", Wire("all_gather", query / p.tp, p.dcp))
        yield collective("context.scatter", Wire("reduce_scatter", result / p.tp * p.dcp, p.dcp))
    if not is_one(p.cp):
        yield collective("context.reduce", Wire("all_reduce", result / p.tp, p.cp, p.tp))


def held_bytes(run: Pass, m: Attention | LatentAttention) -> Numeric:
    """Bytes of keys and values of one layer that each context rank of a prompt holds."""
    entry = m.model_copy(update={"keys": "own"}).cache()[0]
    ways = np.minimum(run.parallel.tp, m.kv_heads) if isinstance(m, Attention) else 1
    each = entry_bytes(entry, run.precision) / ways / run.parallel.cp
    return run.local(lambda s: s.sequences * (s.past + s.new)) * each


def heads_of(m: Attention | LatentAttention) -> tuple[int, int]:
    """Numbers of all heads' queries and results of one token: of latent attention in the latent itself."""
    if isinstance(m, LatentAttention):
        return m.heads * (m.kv_rank + m.rope), m.heads * m.kv_rank
    return m.heads * m.head_dim, m.heads * m.value_dim


def stages(run: Pass) -> list[Op]:
    """Hidden states handed from stage to stage."""
    p = run.parallel
    if is_one(p.pp):
        return []
    return [collective("stages.send", Wire("send", 2.0 * run.model.hidden * run.tokens * (p.pp - 1), p.pp, p.tp * p.cp))]
