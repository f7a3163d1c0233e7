"""A model, a split and segments to the list of operators of one pass, each with FLOPs and bytes by stream. Knows no part and no clock.

Bytes are those that must cross the memory bus at the least: each weight once per pass, each cached entry read once, each new one
written; activations are listed apart. All figures are of one rank: the busiest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from inferplan.engine.convention import ALGORITHM, Convention
from inferplan.engine.cores import of_mixer
from inferplan.engine.op import Op, Pass, Wire
from inferplan.engine.segment import Segment
from inferplan.engine.weight_ops import head, lookup, of_block, of_weight, stem
from inferplan.ops import Numeric
from inferplan.ops.attention import attention_flops
from inferplan.specs.ffns import Experts
from inferplan.specs.mixers import Attention
from inferplan.specs.model import Block, Model, Tower
from inferplan.specs.parallel import ONE, Parallel
from inferplan.specs.precision import Precision

__all__ = ["Op", "operators"]


def operators(
    model: Model, precision: Precision, segments: Sequence[Segment], convention: Convention = ALGORITHM, parallel: Parallel = ONE
) -> list[Op]:
    """The operators of one pass over `segments` that share it, on the busiest rank.

    >>> attention = {"kind": "attention", "heads": 4, "kv_heads": 2, "head_dim": 16}
    >>> model = Model.from_mapping({"name": "m", "title": "M", "hidden": 64, "vocab": 256, "layers": "a*4",
    ...     "blocks": {"a": {"mixer": attention, "ffn": {"kind": "dense", "width": 160}}}})
    >>> ops = operators(model, Precision.named("bf16"), [Segment(1, 1, 64)])
    >>> sum(op.flops for op in ops if op.part == "mlp")
    245760.0
    """
    run = Pass(model, precision, parallel, tuple(segments), convention)
    found = [lookup(run, w) for w in model.embeddings()]
    if not parallel.single:
        found[0] = replace(found[0], wire=Wire("all_reduce", 2.0 * model.hidden * run.tokens, parallel.tp))
    for count, name, block in model.groups():
        found += [replace(op, name=f"{name}.{op.name}").times(count) for op in layer(run, block, model.hidden)]
    found += [of_weight(run, w, run.tokens) for w in model.around()]
    found += [op for tower in model.towers.values() if tower.counts_as == "encoder" for op in encoder(run, tower)]
    return [*found, *head(run), *_stages(run)]


def layer(run: Pass, block: Block, hidden: int) -> list[Op]:
    """The operators of one layer, kernels fused as engines fuse them."""
    found = [*of_block(run, block, hidden), *(op for mixer in block.mixers for op in of_mixer(run, mixer))]
    return [*fused(found), *_exchanges(run, block)]


def fused(ops: Sequence[Op]) -> list[Op]:
    """Operators that share a kernel joined into one."""
    found: dict[str, Op] = {}
    for i, op in enumerate(ops):
        key = op.fuse or f"{i}"
        found[key] = found[key].joined(op) if key in found else replace(op, name=op.fuse or op.name)
    return list(found.values())


def _exchanges(run: Pass, block: Block) -> Iterator[Op]:
    """What ranks tell each other after a layer's mixers and after its feed-forward parts."""
    if run.parallel.single:
        return
    message = 2.0 * run.model.hidden * run.tokens
    reduce = Wire("all_reduce", message, run.parallel.tp)
    if block.mixers:
        yield _collective("attention.reduce", reduce)
    moe = block.experts
    if moe is not None:
        yield from _expert_exchanges(run, moe, message)
    elif block.ffns:
        yield _collective("mlp.reduce", reduce)


def _expert_exchanges(run: Pass, moe: Experts, message: Numeric) -> Iterator[Op]:
    """Tokens to their experts and back: a reduction where all ranks hold all tokens, else a dispatch and a combine."""
    group, width = run.parallel.group, run.width_of(run.precision.compute_of("experts"))
    yield _collective("experts.reduce", Wire("all_reduce", message, run.parallel.tp))
    if (run.parallel.dp == 1) if isinstance(run.parallel.dp, (int, float)) else False:
        return
    copies = run.tokens * moe.top_k * run.model.hidden * (1 - 1 / run.parallel.dp)
    yield _collective("experts.dispatch", Wire("all_to_all", width * copies / run.parallel.tp, group))
    yield _collective("experts.combine", Wire("all_to_all", 2.0 * copies / run.parallel.tp, group))


def _collective(name: str, wire: Wire) -> Op:
    return Op(name, "collective", "wire", "none", 0.0 * wire.bytes, wire=wire)


def _stages(run: Pass) -> list[Op]:
    """Hidden states handed from stage to stage."""
    pp = run.parallel.pp
    if isinstance(pp, (int, float)) and pp == 1:
        return []
    return [_collective("stages.send", Wire("send", 2.0 * run.model.hidden * run.tokens * (pp - 1), pp))]


def encoder(run: Pass, tower: Tower) -> Iterator[Op]:
    """An encoder's pass over its own tokens, on segments that open a sequence."""
    positions = run.local(lambda s: s.sequences * s.opens * (s.memory if tower.tokens is None else tower.tokens))
    pairs = run.local(lambda s: s.sequences * s.opens * (s.memory if tower.tokens is None else tower.tokens) ** 2)
    for count, name, block in tower.groups():
        for w in block.weights(tower.hidden):
            op = of_weight(run, w, positions, block)
            yield replace(op, name=f"{name}.{op.name}").times(count)
        for m in block.mixers:
            if isinstance(m, Attention):
                flops = attention_flops(m.heads, m.head_dim, m.value_dim, pairs) * 1.0
                yield Op(f"{name}.scores", "attention_prefill", "attention", "bf16", flops).times(count)
    for e in tower.extra:
        yield stem(run, e, positions)
