"""What encoders beside the decoder do in a pass that opens sequences: of speech for cross attention, of images for the prompt.

Knows no part and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from inferplan.engine.op import Op, Pass
from inferplan.engine.segment import Segment
from inferplan.engine.weight_ops import of_weight, stem
from inferplan.ops import Numeric
from inferplan.ops.attention import attention_flops
from inferplan.specs.mixers import Attention
from inferplan.specs.model import Tower
from inferplan.specs.precision import Precision


@dataclass(frozen=True, slots=True)
class Seen:
    """How many things a tower looks at for a sequence that opens, and over how many positions each."""

    things: Callable[[Segment], Numeric]
    positions: Callable[[Segment], Numeric]

    def over(self, run: Pass, each: Callable[[Numeric], Numeric]) -> Numeric:
        """A figure of one thing over all that the busiest group sees."""
        return run.local(lambda s: s.sequences * self.things(s) * each(self.positions(s)))


def towers(run: Pass) -> list[Op]:
    """The operators of all encoders that have something to look at."""
    return [op for tower in run.model.towers.values() for op in of_tower(run, tower)]


def of_tower(run: Pass, tower: Tower) -> Iterator[Op]:
    """An encoder of the text model, or the tower of images where segments bring some, in the format its weights are kept in."""
    if tower.counts_as == "encoder":
        length = tower.tokens
        yield from encoder(run, tower, Seen(lambda s: s.opens, lambda s: s.memory if length is None else length))
    elif tower is run.model.vision_tower and any(np.any(s.images) for s in run.segments):
        own = replace(run, precision=_whole(run.precision.format_of("vision").name))
        for op in encoder(own, tower, Seen(lambda s: s.images, lambda s: s.patches)):
            yield replace(op, name=f"vision.{op.name}", part="vision")


def _whole(name: str) -> Precision:
    return Precision.named(name)


def encoder(run: Pass, tower: Tower, seen: Seen) -> Iterator[Op]:
    """An encoder's pass over its own positions: every one looks at all of its thing, or at those of its window.

    A class token joins the patches of each thing in the layers.
    """
    more = tower.class_tokens
    positions, patches = seen.over(run, lambda n: n + more), seen.over(run, lambda n: n)
    for count, name, block in tower.groups():
        for w in block.weights(tower.hidden):
            op = of_weight(run, w, positions, block)
            yield replace(op, name=f"{name}.{op.name}").times(count)
        for m in block.mixers:
            if isinstance(m, Attention):
                pairs = seen.over(run, lambda n, window=m.window: (n + more) * np.minimum(n + more, window or np.inf))  # type: ignore[misc]
                flops = attention_flops(m.heads, m.head_dim, m.value_dim, pairs) * 1.0
                yield Op(f"{name}.scores", "attention_prefill", "attention", "bf16", flops).times(count)
    for e, share in zip(tower.extra, tower.positions_kept(), strict=True):
        yield stem(run, e, patches * share)
