"""One weight tensor of a model as a record, and the sums over a list of them. Knows no architecture and no number format.

Parameters, stored bytes, bytes read and FLOPs of matrix products are all sums over the same list, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

Part = Literal[
    "embedding", "aux_embedding", "head", "attention", "indexer", "mlp", "mlp_aux", "router", "shared_expert",
    "experts", "recurrent", "norm", "vision", "other",
]  # fmt: skip
Use = Literal["matmul", "expert", "lookup", "vector", "conv", "scan"]


@dataclass(frozen=True, slots=True)
class Weight:
    """`copies` equal tensors of `rows` outputs by `cols` inputs (a vector has one column), each with `bias` more elements.

    `use` says how a pass touches it: `matmul` once per token, `expert` for the tokens routed to it, `lookup` one row per
    token, `conv` once per token and position, `vector` elementwise, `scan` inside a recurrence. `rate` is how often per
    position, where a stem runs over more or fewer of them.
    """

    name: str
    part: Part
    rows: int
    cols: int = 1
    copies: int = 1
    bias: int = 0
    use: Use = "matmul"
    buffer: bool = False
    rate: float = 1.0

    @property
    def params(self) -> int:
        """Parameters in all copies, bias included."""
        return self.copies * (self.rows * self.cols + self.bias)

    def named(self, prefix: str) -> Weight:
        """The same tensor under a longer name."""
        return replace(self, name=f"{prefix}.{self.name}" if prefix else self.name)


def linear(name: str, part: Part, inputs: int, outputs: int, *, bias: bool = False, copies: int = 1, use: Use = "matmul") -> Weight:
    """A dense projection from `inputs` to `outputs` features.

    >>> linear("q", "attention", 4096, 4096).params
    16777216
    """
    return Weight(name, part, outputs, inputs, copies, outputs if bias else 0, use)


def vector(name: str, part: Part, length: int, *, copies: int = 1, buffer: bool = False) -> Weight:
    """A vector applied elementwise: a norm, a bias of its own, a sink, a scale."""
    return Weight(name, part, length, 1, copies, 0, "vector", buffer)


def norm(name: str, width: int, *, bias: bool = False, copies: int = 1, part: Part = "norm") -> Weight:
    """A normalisation's scale and, where it has one, its bias."""
    return Weight(name, part, width, 1, copies, width if bias else 0, "vector")


def params(weights: Iterable[Weight]) -> int:
    """Parameters in a list of tensors; buffers (router correction biases) are not parameters and not counted."""
    return sum(w.params for w in weights if not w.buffer)
