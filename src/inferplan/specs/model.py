"""A model's architecture: integers, the order of its layers, and from these every weight tensor and cache entry.

Knows no number format, no engine and no clock. Published totals stand beside the counted ones; a spec whose shapes do not
add up to the total it states is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from inferplan.errors import NotFound, SpecError
from inferplan.shown import Shown
from inferplan.specs.base import Line, Record, Spec
from inferplan.specs.cache import CacheEntry
from inferplan.specs.ffns import Experts, FeedForward
from inferplan.specs.mixers import Count, Mixer, Optional0
from inferplan.specs.order import expand
from inferplan.specs.weights import Part, Use, Weight, linear, norm, params, vector

Loose = Field(strict=False)
PLAIN_DTYPES = frozenset({"fp32", "fp16", "bf16"})  # known without the format files


class Extra(Record):
    """A weight tensor that no other field describes, with its shape: a projector, a layer scale, a position table."""

    name: str
    part: Part = "other"
    rows: Annotated[int, Field(gt=0)]
    cols: Annotated[int, Field(gt=0)] = 1
    copies: Count = 1
    bias: Optional0 = 0
    use: Use = "vector"
    rate: Annotated[float, Field(gt=0, le=1e6, strict=False)] = 1.0

    def weight(self) -> Weight:
        """The tensor."""
        return Weight(self.name, self.part, self.rows, self.cols, self.copies, self.bias, self.use, rate=self.rate)


class Block(Record):
    """One kind of layer: mixers and feed-forward parts (several of either run side by side or in turn) and its norms of `hidden`.

    Parts marked `shared_weights` are one set of tensors for all layers of the same `share_group` (Zamba 2 alternates two);
    with `repeated` the whole layer is (a loop runs it several times, each time with a cache of its own).
    """

    mixers: Annotated[tuple[Mixer, ...], Loose] = ()
    ffns: Annotated[tuple[FeedForward, ...], Loose] = ()
    norms: Optional0 = 2
    norm_bias: bool = False
    extra: Annotated[tuple[Extra, ...], Loose] = ()
    share_group: Optional0 = 0
    repeated: bool = False

    @model_validator(mode="before")
    @classmethod
    def _singular(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = dict(data)
        for one, many in (("mixer", "mixers"), ("ffn", "ffns")):
            if one in data:
                if many in data:
                    raise SpecError(f"stands beside '{many}': give one of the two", field=one)
                data[many] = [data.pop(one)]
        return data

    def weights(self, hidden: int, *, first: bool = True) -> list[Weight]:
        """Every tensor of one such layer; weights shared between layers are listed on the first one only."""
        if self.repeated and not first:
            return []
        found: list[Weight] = [norm("norms", hidden, bias=self.norm_bias, copies=self.norms)] if self.norms else []
        for i, piece in enumerate((*self.mixers, *self.ffns)):
            if first or not getattr(piece, "shared_weights", False):
                found += [w.named(f"{piece.kind}{i}" if i and piece in self.mixers else piece.kind) for w in piece.weights(hidden)]
        return found + [e.weight() for e in self.extra]

    @property
    def shares(self) -> bool:
        """Whether some of its weights are shared between layers."""
        return self.repeated or any(getattr(piece, "shared_weights", False) for piece in (*self.mixers, *self.ffns))

    @property
    def experts(self) -> Experts | None:
        """Its mixture of experts, if it has one."""
        return next((f for f in self.ffns if isinstance(f, Experts)), None)

    def cache(self) -> list[CacheEntry]:
        """What its mixers keep."""
        return [entry for mixer in self.mixers for entry in mixer.cache()]


class Stack(Record):
    """Layers of one width in order, with what stands before and after them."""

    hidden: Count
    blocks: dict[str, Block]
    layers: str
    norms: Optional0 = 1
    norm_bias: bool = False
    extra: Annotated[tuple[Extra, ...], Loose] = ()

    def __hash__(self) -> int:
        """Equal stacks have equal layers, so that results can be kept by model."""
        return hash((self.hidden, self.layers, tuple(self.blocks)))

    @field_validator("blocks")
    @classmethod
    def _named(cls, blocks: dict[str, Block]) -> dict[str, Block]:
        if not blocks:
            raise SpecError("needs at least one kind of layer")
        return blocks

    @model_validator(mode="after")
    def _known(self) -> Stack:
        for name in self.order:
            if name not in self.blocks:
                raise SpecError(f"names a layer that is not among blocks ({', '.join(self.blocks)})", field="layers", value=name)
        return self

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The block name of every layer."""
        return expand(self.layers)

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many layers of each block, in order of first appearance."""
        return dict(Counter(self.order))

    def groups(self) -> Iterator[tuple[int, str, Block]]:
        """Each block with its name and number of layers."""
        for name, count in self.counts.items():
            yield count, name, self.blocks[name]

    def layer_weights(self) -> Iterator[tuple[int, str, list[Weight]]]:
        """Tensors of one layer, with how many layers hold exactly these."""
        seen: set[int] = set()
        for count, name, block in self.groups():
            if block.shares and block.share_group not in seen:
                yield 1, name, block.weights(self.hidden)
                seen.add(block.share_group)
                count -= 1
            if count:
                yield count, name, block.weights(self.hidden, first=not block.shares)

    def weights(self) -> list[Weight]:
        """Every tensor of the stack; `copies` counts those of all layers."""
        found = [replace(w.named(name), copies=w.copies * count) for count, name, group in self.layer_weights() for w in group]
        return found + self.around()

    def around(self) -> list[Weight]:
        """Tensors beside the layers: extras and the final norm."""
        extras = [e.weight() for e in self.extra]
        return extras + ([norm("final_norm", self.hidden, bias=self.norm_bias, copies=self.norms)] if self.norms else [])


JOINERS = ("projector", "merger", "patch_merger")


class Tower(Stack):
    """An encoder beside the decoder. A `vision` tower (or audio) is counted apart; an `encoder` is part of the text model."""

    counts_as: Literal["vision", "encoder"] = "vision"
    tokens: Count | None = None

    def weights(self) -> list[Weight]:
        """Every tensor, filed under vision where it is a vision or audio tower."""
        found = super().weights()
        return [replace(w, part="vision") for w in found] if self.counts_as == "vision" else found

    @property
    def patches(self) -> int | None:
        """Positions of one image where the tower fixes its size: rows of the position table without that of a class token."""
        table = next((e.rows for e in self.extra if e.name == "positions"), None)
        if table is None or self.tokens is None or self.counts_as == "encoder":
            return None
        return table - self.class_tokens

    @property
    def class_tokens(self) -> int:
        """Tokens that stand for a whole image beside its patches."""
        return sum(e.name == "class_token" for e in self.extra)

    def positions_kept(self) -> list[float]:
        """For each extra tensor the share of positions that reaches it: projectors behind a joining or a pooling see fewer.

        The share is that of tokens to patches where both are known, else the inverse of how many rows of `hidden` the first joining
        matrix takes in.
        """
        kept, found = 1.0, []
        for e in self.extra:
            if e.use == "matmul" and e.name.startswith(JOINERS) and self.counts_as == "vision":
                joined = self.hidden / e.cols if e.cols % self.hidden == 0 else 1.0
                kept = self.tokens / self.patches if self.tokens and self.patches else min(kept, joined)
            found.append(kept)
        return found


class MultiTokenPrediction(Record):
    """Modules that predict further tokens: each runs the blocks in `layers`, with tensors that join hidden state and next embedding.

    `extra` holds the tensors of one module; `stored_copies` says that checkpoints repeat embedding and head beside it.
    """

    modules: Count
    layers: str
    extra: Annotated[tuple[Extra, ...], Loose] = ()
    stored_copies: bool = False


class Source(Record):
    """Where numbers of a file come from."""

    title: str
    url: str | None = None
    date: str | None = None
    kind: str = "published"
    note: str | None = None


class Published(Record):
    """A stated parameter total and what it counts beyond the parameters of the model itself."""

    total: Count | Annotated[int, Field(gt=0)]
    source: str
    beyond: Annotated[int, Field()] = 0
    note: str | None = None


class Model(Shown, Stack, Spec):
    """A language model: embedding, layers, head; towers and multi-token-prediction modules beside them.

    total
        the exact number of parameters, tied matrices once, without multi-token-prediction modules.
    precision
        what the weights of this very checkpoint are kept in, where that is not plain `dtype`.
    checkpoints
        further names of checkpoints with these shapes, each with the precision of its weights.
    """

    name: str
    title: Line
    aliases: Annotated[tuple[str, ...], Loose] = ()
    family: str = ""
    architecture: str = ""
    sources: dict[str, Source] = Field(default_factory=dict)
    total: Annotated[int, Field(gt=0)] | None = None
    published: Published | None = None
    vocab: Count
    head: Literal["own", "tied", "none"] = "own"
    head_bias: bool = False
    head_vocab: Count | None = None
    embedding_width: Count | None = None
    positions: Optional0 = 0
    context: Count | None = None
    dtype: str = "bf16"
    precision: str | None = None
    checkpoints: dict[str, str] = Field(default_factory=dict)
    towers: dict[str, Tower] = Field(default_factory=dict)
    mtp: MultiTokenPrediction | None = None
    note: str | None = None

    @model_validator(mode="after")
    def _adds_up(self) -> Model:
        for name in expand(self.mtp.layers) if self.mtp else ():
            if name not in self.blocks:
                raise SpecError("is not among blocks", field="mtp.layers", value=name)
        if self.total is not None and self.total != self.params:
            raise SpecError(f"is stated, but the shapes add up to {self.params:,}", field="total", value=f"{self.total:,}")
        return self

    @field_validator("dtype")
    @classmethod
    def _format(cls, text: str) -> str:
        if text not in PLAIN_DTYPES:
            from inferplan.specs.precision import named_format

            try:
                named_format(text)
            except NotFound as e:
                raise SpecError(str(e), field="dtype", value=text) from None
        return text

    def __hash__(self) -> int:
        """By name and layers."""
        return hash((self.name, self.hidden, self.layers, self.vocab))

    def weights(self) -> list[Weight]:
        """Every weight tensor, tied matrices once, without multi-token-prediction modules."""
        return [*self.embeddings(), *super().weights(), *self.heads(), *(w.named(n) for n, t in self.towers.items() for w in t.weights())]

    def embeddings(self) -> list[Weight]:
        """The token table and learned positions."""
        width = self.embedding_width or self.hidden
        table = [Weight("embedding", "embedding", self.vocab, width, use="lookup")]
        return table + ([Weight("positions", "aux_embedding", self.positions, self.hidden, use="lookup")] if self.positions else [])

    def heads(self) -> list[Weight]:
        """The output projection where it has weights of its own, and its bias."""
        rows = self.head_vocab or self.vocab
        own = [linear("head", "head", self.embedding_width or self.hidden, rows)] if self.head == "own" else []
        return own + ([vector("head_bias", "head", self.vocab)] if self.head_bias else [])

    @cached_property
    def params(self) -> int:
        """Parameters in all, tied matrices once, multi-token-prediction modules left out."""
        return params(self.weights())

    def mtp_weights(self) -> list[Weight]:
        """Tensors of the multi-token-prediction modules that are theirs alone."""
        if not self.mtp:
            return []
        block = [w for name in expand(self.mtp.layers) for w in self.blocks[name].weights(self.hidden)]
        module = [*block, *(e.weight() for e in self.mtp.extra)]
        return [replace(w.named("mtp"), copies=w.copies * self.mtp.modules) for w in module]

    @property
    def vision_tower(self) -> Tower | None:
        """The tower of images, if there is one."""
        found = self.towers.get("vision")
        return found if found is not None and found.counts_as == "vision" else None

    @property
    def generates(self) -> bool:
        """Whether it writes one token after the other; an encoder does not and keeps no cache."""
        return bool(self.cache())

    def cache(self) -> list[tuple[int, CacheEntry]]:
        """Each kind of cache entry with the number of layers that keep it."""
        return [(count, entry) for count, _, block in self.groups() for entry in block.cache()]
