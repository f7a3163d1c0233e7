"""What engines and hosts add to a round of drafts and verify, and acceptances that were published. Knows no model and no equation.

The numbers stand in `calibration/speculation.yaml`, each with its basis: fitted on public rows, or assumed.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated

from pydantic import Field

from inferplan.ops import Numeric
from inferplan.roofline.efficiency import CORE, FOLDER, Stated, Time
from inferplan.specs.base import Record, Spec
from inferplan.specs.catalog import normalise, shipped_file
from inferplan.specs.document import load_yaml
from inferplan.specs.quantity import Source

FILE = "speculation.yaml"
EAGER = "transformers"


class Host(Record):
    """Times of one engine.

    draft_step
        beside the device's work of each draft pass: launch, choice of the next token.
    tree_step
        the same of a pass over a tree, in addition.
    round, tree_round
        once per round: comparison, caches put right; and in addition for a tree.
    per_sequence
        once per round for each sequence.
    lookup
        one search for n-grams, each sequence's.
    eager_layer, eager_pass
        the host's own time for a layer and a pass where kernels are launched one by one: the device waits where it is the quicker.
    """

    draft_step: Time = 0.0
    tree_step: Time = 0.0
    round: Time = 0.0
    tree_round: Time = 0.0
    per_sequence: Time = 0.0
    lookup: Time = 0.0
    eager_layer: Time = 0.0
    eager_pass: Time = 0.0
    basis: Stated = "assumed"
    note: str | None = None

    def eager_s(self, layers: Numeric) -> Numeric:
        """The host's time for a pass of so many layers."""
        return self.eager_pass + layers * self.eager_layer


class Typical(Record):
    """An acceptance that was published: rates by position, or mean `lengths` for so many `draft_tokens` (in a tree of `tree` tokens)."""

    positions: Annotated[tuple[float, ...], Field(strict=False)] = ()
    draft_tokens: Annotated[tuple[int, ...], Field(strict=False)] = ()
    lengths: Annotated[tuple[float, ...], Field(strict=False)] = ()
    tree: int | None = None
    of: str
    source: str


class Speculative(Spec):
    """The file."""

    name: str
    title: str = ""
    sources: dict[str, Source] = Field(default_factory=dict)
    engines: dict[str, Host]
    typical: dict[str, Typical] = Field(default_factory=dict)


def host(engine: str, *, ideal: bool = False) -> Host:
    """What an engine adds; nothing where times are floors.

    >>> host("vllm", ideal=True).draft_step, host("no such engine") == host("default")
    (0.0, True)
    """
    if ideal:
        return Host()
    engines = shipped().engines
    name = CORE.sub("", normalise(engine))  # cores of an engine are taken to be alike here
    return engines.get(name) or engines["default"]


@cache
def shipped() -> Speculative:
    """The file that is shipped, or the first on the search path."""
    path = shipped_file(FOLDER, FILE)
    return Speculative.from_mapping(load_yaml(path), file=path)
