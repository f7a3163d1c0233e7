"""How engines keep caches: pages, blocks, groups of layers, pools, cells. Knows no clock and not how much memory there is.

All byte counts are of one rank. What a request takes is `fixed + per token`, rounded up to blocks; the ideal size is elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from inferplan.errors import Unsupported
from inferplan.formula import formula
from inferplan.memory.layer_kinds import LayerKind, all_full, layer_kinds, without_index
from inferplan.ops import Numeric
from inferplan.specs.engine import Engine
from inferplan.specs.model import Model
from inferplan.specs.parallel import ONE, Parallel
from inferplan.specs.precision import Precision


@formula("ceil(length / multiple) * multiple", unit="tokens", ref="cells and pages are laid out in multiples")
def padded(length: Numeric, multiple: Numeric) -> Numeric:
    """A length rounded up to a multiple.

    >>> float(padded(20000, 256))
    20224.0
    """
    return np.ceil(length / multiple) * multiple


@formula(
    "align * ceil(state_page_bytes / (align * token_bytes))",
    unit="tokens",
    ref="the attention block is inflated until its page holds a recurrent state",
)
def inflated_block(state_page_bytes: Numeric, token_bytes: Numeric, align: Numeric) -> Numeric:
    """Tokens of an attention block whose page is as large as one layer's recurrent state.

    >>> float(inflated_block(3207168, 4096, 16))
    784.0
    """
    return align * np.ceil(state_page_bytes / (align * token_bytes))


@formula(
    "ceil(minimum(window - 1 + chunk, length) / block) + 1",
    unit="blocks",
    ref="the window and the chunk being computed, and one block for where it begins",
)
def window_blocks(length: Numeric, window: Numeric, chunk: Numeric, block: Numeric) -> Numeric:
    """Blocks that a windowed layer holds for a request of `length` tokens, prefilled in chunks.

    >>> float(window_blocks(131072, 128, 1024, 16)), float(window_blocks(8192, 1024, 8192, 16))
    (73.0, 513.0)
    """
    return np.ceil(np.minimum(window - 1 + chunk, length) / block) + 1


@dataclass(frozen=True, slots=True)
class Group:
    """Layer kinds in a block allocator: `groups` groups of layers with `block` tokens per page, or `state_blocks` pages per request."""

    kind: LayerKind
    groups: Numeric
    block: Numeric
    state_blocks: Numeric = 0

    def blocks(self, length: Numeric, chunk: Numeric) -> Numeric:
        """Blocks one request of `length` tokens takes in all groups of this kind."""
        if self.kind.kept == "state":
            return self.groups * self.state_blocks + 0 * length
        if self.kind.window is not None:
            return self.groups * window_blocks(length, self.kind.window, chunk, self.block)
        return self.groups * np.ceil(length / self.block)


@dataclass(frozen=True, slots=True)
class BlockPaging:
    """One pool of equal blocks. A block id costs `block_bytes`: a page in each of the layers of one group.

    printed
        what the engine prints as tokens: `blocks` spread evenly over the groups, or `concurrency` times the longest request.
    round_up
        blocks are rounded up, as where a fraction of free memory is asked for.
    """

    groups: tuple[Group, ...]
    block_bytes: Numeric
    printed: str = "blocks"
    round_up: bool = False
    padding_layers: Numeric = 0

    def blocks(self, available_bytes: Numeric) -> Numeric:
        """Blocks that the memory yields, never below zero."""
        count = np.asarray(available_bytes, dtype=float) / self.block_bytes
        return np.maximum(np.ceil(count) if self.round_up else np.floor(count), 0)

    def request_blocks(self, length: Numeric, chunk: Numeric) -> Numeric:
        """Blocks that one request of `length` tokens takes."""
        return sum((g.blocks(length, chunk) for g in self.groups), 0.0 * length)

    def concurrency(self, blocks: Numeric, length: Numeric, chunk: Numeric) -> Numeric:
        """Requests of `length` tokens that the blocks hold at once."""
        return blocks / self.request_blocks(length, chunk)

    def tokens(self, blocks: Numeric, length: Numeric, chunk: Numeric) -> Numeric:
        """The printed number of tokens."""
        if self.printed == "concurrency":
            return np.floor(self.concurrency(blocks, length, chunk) * length)
        paged = [g.block for g in self.groups if g.kind.kept != "state"]
        if not paged:
            return 0.0 * blocks
        tokens: Numeric = blocks // sum(g.groups for g in self.groups) * reduce(np.minimum, paged)
        return tokens

    def request_bytes(self, length: Numeric, chunk: Numeric) -> Numeric:
        """Bytes reserved for one request of `length` tokens."""
        return self.request_blocks(length, chunk) * self.block_bytes

    @property
    def token_bytes(self) -> Numeric:
        """Bytes that one more token of a long request costs."""
        growing = [g for g in self.groups if g.kind.kept == "full"]
        return sum((g.groups * self.block_bytes / g.block for g in growing), 0.0)

    def fixed_bytes(self, length: Numeric, chunk: Numeric) -> Numeric:
        """Bytes of a request of `length` tokens that do not grow: windows and states."""
        fixed = [g for g in self.groups if g.kind.kept != "full"]
        return sum((g.blocks(length, chunk) * self.block_bytes for g in fixed), 0.0)

    def state_limit(self, blocks: Numeric) -> Numeric:
        """Sequences for which the pool has a state block; infinite without states."""
        has = any(g.kind.kept == "state" for g in self.groups)
        return blocks if has else np.inf + 0 * blocks

    def longest(self, blocks: Numeric, chunk: Numeric) -> Numeric:
        """The longest single request that the blocks hold."""
        return _longest(lambda length: self.request_blocks(length, chunk) <= blocks, np.shape(blocks))


@dataclass(frozen=True, slots=True)
class PoolPaging:
    """Token pools (SGLang): one for full layers, one for windows with `window_share` tokens for each of them, one for states."""

    full_bytes: Numeric
    window_bytes: Numeric
    state_bytes: Numeric
    page: Numeric
    window: int | None = None
    window_share: float = 1.0
    state_share: float = 0.0

    @property
    def block_bytes(self) -> Numeric:
        """Bytes of one page of tokens in all pools."""
        return self.page * self._bytes

    @property
    def _bytes(self) -> Numeric:
        return self.full_bytes + self.window_share * self.window_bytes

    def blocks(self, available_bytes: Numeric) -> Numeric:
        """Pages of the full pool."""
        left = np.asarray(available_bytes, dtype=float) / (1 + self.state_share * (np.asarray(self.state_bytes) > 0))
        pages: Numeric = np.maximum(np.floor(np.floor(left / self._bytes) / self.page), 0)
        return pages

    def tokens(self, blocks: Numeric, length: Numeric, chunk: Numeric) -> Numeric:
        """Tokens of the full pool, as printed."""
        return blocks * self.page + 0 * length

    def window_tokens(self, blocks: Numeric) -> Numeric:
        """Tokens of the window pool."""
        return np.floor(blocks * self.page * self.window_share)

    def concurrency(self, blocks: Numeric, length: Numeric, chunk: Numeric) -> Numeric:
        """Requests of `length` tokens that both pools hold at once."""
        whole = blocks * self.page / padded(length, self.page)
        if self.window is None:
            return whole
        return np.minimum(whole, self.window_tokens(blocks) / padded(np.minimum(self.window + chunk, length), self.page))

    def request_bytes(self, length: Numeric, chunk: Numeric) -> Numeric:
        """Bytes of one request of `length` tokens."""
        return padded(length, self.page) * self.full_bytes + self.fixed_bytes(length, chunk)

    @property
    def token_bytes(self) -> Numeric:
        """Bytes that one more token of a long request costs."""
        return self.full_bytes

    def fixed_bytes(self, length: Numeric, chunk: Numeric) -> Numeric:
        """Bytes that do not grow with a long request."""
        if self.window is None:
            return self.state_bytes + 0.0 * length
        return padded(np.minimum(self.window + chunk, length), self.page) * self.window_bytes + self.state_bytes

    def state_limit(self, blocks: Numeric) -> Numeric:
        """Sequences for which the state pool has room; infinite without states."""
        if not np.any(self.state_bytes):
            return np.inf + 0 * blocks
        limit: Numeric = np.floor(blocks * self.block_bytes * self.state_share / self.state_bytes)
        return limit

    def longest(self, blocks: Numeric, chunk: Numeric) -> Numeric:
        """The longest single request."""

        def fits(length: Numeric) -> Numeric:
            inside = padded(np.minimum((self.window or 0) + chunk, length), self.page) <= self.window_tokens(blocks)
            return (padded(length, self.page) <= blocks * self.page) & (inside | (self.window is None))

        return _longest(fits, np.shape(blocks))


@dataclass(frozen=True, slots=True)
class CellPaging:
    """Cells laid out at start (llama.cpp): each slot has all cells of its context, windows theirs, states one per slot."""

    kinds: tuple[LayerKind, ...]
    multiple: Numeric

    def kind_bytes(self, kind: LayerKind, length: Numeric, chunk: Numeric) -> Numeric:
        """Bytes of one kind of layers for one slot of `length` tokens, evaluated `chunk` tokens at a time."""
        if kind.kept == "state":
            return kind.layers * kind.state_bytes + 0 * length
        if kind.window is None:
            return kind.layers * padded(length, self.multiple) * kind.token_bytes
        cells = np.minimum(padded(length, self.multiple), padded(kind.window + chunk, self.multiple))
        return kind.layers * cells * kind.token_bytes

    def request_bytes(self, length: Numeric, chunk: Numeric) -> Numeric:
        """Bytes of one slot of `length` tokens."""
        return sum((self.kind_bytes(k, length, chunk) for k in self.kinds), 0.0 * length)

    @property
    def block_bytes(self) -> Numeric:
        """Bytes of one cell multiple of the layers that grow; single bytes where none does, as in a model of states alone."""
        grown: Numeric = self.multiple * self.token_bytes
        return np.where(np.asarray(grown) > 0, grown, 1.0)

    @property
    def token_bytes(self) -> Numeric:
        """Bytes that one more token of a long context costs."""
        return sum((k.layers * k.token_bytes for k in self.kinds if k.kept == "full"), 0.0)

    def fixed_bytes(self, length: Numeric, chunk: Numeric) -> Numeric:
        """Bytes that do not grow."""
        return sum((self.kind_bytes(k, length, chunk) for k in self.kinds if k.kept != "full"), 0.0 * length)

    def blocks(self, available_bytes: Numeric) -> Numeric:
        """Cell multiples that the memory yields."""
        return np.maximum(np.floor(np.asarray(available_bytes, dtype=float) / self.block_bytes), 0)

    def concurrency(self, blocks: Numeric, length: Numeric, chunk: Numeric) -> Numeric:
        """Slots of `length` tokens that the memory holds."""
        return blocks * self.block_bytes / np.maximum(self.request_bytes(length, chunk), 1)

    def tokens(self, blocks: Numeric, length: Numeric, chunk: Numeric) -> Numeric:
        """Tokens of all slots that the memory holds."""
        return np.floor(self.concurrency(blocks, length, chunk)) * length

    def state_limit(self, blocks: Numeric) -> Numeric:
        """States lie within the slots: no limit of their own."""
        return np.inf + 0 * blocks

    def longest(self, blocks: Numeric, chunk: Numeric) -> Numeric:
        """The longest context of one slot."""
        return _longest(lambda length: self.request_bytes(length, chunk) <= blocks * self.block_bytes, np.shape(blocks))


@dataclass(frozen=True, slots=True)
class NoPaging:
    """Layers that keep nothing between passes, as those of an encoder: memory for caches bounds no number of requests."""

    block_bytes: Numeric = 0.0
    token_bytes: Numeric = 0.0

    def blocks(self, available_bytes: Numeric) -> Numeric:
        """Without bound, once anything is left."""
        return np.where(np.asarray(available_bytes) > 0, np.inf, 0.0)

    def tokens(self, blocks: Numeric, length: Numeric, chunk: Numeric) -> Numeric:
        """No token is kept."""
        return np.zeros(np.shape(blocks))

    def concurrency(self, blocks: Numeric, length: Numeric, chunk: Numeric) -> Numeric:
        """Requests of any length: without bound."""
        return blocks + 0 * length

    def request_bytes(self, length: Numeric, chunk: Numeric) -> Numeric:
        """Nothing."""
        return 0.0 * length

    def fixed_bytes(self, length: Numeric, chunk: Numeric) -> Numeric:
        """Nothing."""
        return 0.0 * length

    def state_limit(self, blocks: Numeric) -> Numeric:
        """No states, no limit."""
        return np.full(np.shape(blocks), np.inf)

    def longest(self, blocks: Numeric, chunk: Numeric) -> Numeric:
        """As long as the model takes."""
        return blocks


Paging = BlockPaging | PoolPaging | CellPaging | NoPaging


def _longest(fits: Callable[[Numeric], Numeric], shape: tuple[int, ...]) -> Numeric:
    """The largest length that fits, where what is needed never falls with the length: by bisection up to 2**31 tokens."""
    low = np.zeros(shape)
    high = low + 2.0**31
    for _ in range(32):
        middle = np.floor((low + high) / 2)
        inside = fits(middle)
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    return low


def paging(
    model: Model, precision: Precision, engine: Engine, parallel: Parallel = ONE, *, block_size: Numeric | None = None,
    layers: Iterable[int] | None = None, draft_tokens: int = 0, prefix_caching: bool | None = None, latent: str | None = None,
) -> Paging:  # fmt: skip
    """How an engine of one release keeps the caches of a model on one rank.

    >>> from inferplan.readers.opening import open_model
    >>> gemma = open_model("gemma-3-27b").model
    >>> pages = paging(gemma, Precision.named("bf16"), Engine.find("vllm", "0.19.0"))
    >>> blocks = pages.blocks(19.53 * 2**30)
    >>> sum(g.groups for g in pages.groups), float(round(pages.concurrency(blocks, 8192, 8192), 2))
    (7, 4.46)
    """
    kinds = layer_kinds(model, precision, parallel, engine, layers=layers, draft_tokens=draft_tokens, latent=latent)
    if engine.choice("index_in_pool") == "forgotten":
        kinds = [without_index(k, precision, parallel) for k in kinds]
    block = engine.number_or("block_size", 1) if block_size is None else block_size
    if not kinds:
        return NoPaging()
    if engine.policy == "ideal":
        return CellPaging(tuple(replace(k, token_bytes=k.token_bytes / parallel.cache_ways) for k in kinds), 1)
    if np.any(np.asarray(parallel.cache_ways) > 1) and engine.policy in ("cells", "static-fraction", "rest"):
        raise Unsupported(f"{engine.title} does not deal out cached tokens over devices (dcp {parallel.dcp}, cp {parallel.cp})")
    if engine.policy == "cells":
        windows = kinds if engine.choice("windows") == "own-cells" else all_full(kinds)
        return CellPaging(tuple(windows), engine.number("cell_multiple"))
    if engine.policy == "static-fraction" and any(k.kept != "state" for k in kinds):
        return _pools(kinds, engine, block)
    if engine.choice("allocator") != "groups":
        kinds = all_full(kinds)
    states = _state_blocks(engine, draft_tokens, prefix_caching)
    return block_paging(kinds, engine, block * parallel.cache_ways, parallel.cache_ways, states=states, draft_tokens=draft_tokens)


def _state_blocks(engine: Engine, draft_tokens: int, prefix_caching: bool | None) -> Numeric:
    """State blocks per request and group: one, a second with prefix caching, and one for each drafted token."""
    plain = engine.number_or("state_blocks", 1)
    if prefix_caching is not None:
        plain = 2.0 if prefix_caching else 1.0
    return plain + draft_tokens


def _pools(kinds: Sequence[LayerKind], engine: Engine, block: Numeric) -> PoolPaging:
    def total(kept: str) -> Numeric:
        return sum((k.layers * k.token_bytes for k in kinds if k.kept == kept), 0.0)

    windows = [k.window for k in kinds if k.window is not None]
    own = bool(windows) and engine.choice("windows") == "own-pool" and any(k.kept == "full" for k in kinds)
    states = sum((k.layers * k.state_bytes for k in kinds if k.kept == "state"), 0.0)
    full = total("full") + (0.0 if own else total("window"))
    share = float(engine.number_or("window_share", 1.0))
    return PoolPaging(
        full, total("window") if own else 0.0, states, block, max(w for w in windows if w) if own else None, share,
        float(engine.number_or("state_share", 0.0)) if np.any(states) else 0.0,
    )  # fmt: skip


def block_paging(
    kinds: Sequence[LayerKind], engine: Engine, block: Numeric, interleave: Numeric = 1, *, states: Numeric = 1, draft_tokens: int = 0
) -> BlockPaging:
    """Layers in one pool of blocks: alone, or as groups of equal size where kinds differ. `interleave` ranks share a block's tokens."""
    printed, up = engine.choice("printed_tokens") or "blocks", engine.policy == "fraction-of-free"
    if all(k.kept == "full" for k in kinds):
        size = sum((k.layers * k.token_bytes for k in kinds), 0.0)
        whole = LayerKind("full", 1, size)
        return BlockPaging((Group(whole, 1, block),), block * size / interleave, printed, up)
    if any(e.kind == "compressed" for k in kinds for e in k.entry):
        return _unequal_pages(kinds, block, interleave, printed)
    page, sizes = _equal_pages(kinds, engine, block, interleave, draft_tokens)
    per_group = _group_layers([k.layers for k in kinds], float(engine.number_or("group_slack", 1.25)))
    groups = tuple(Group(k, -(-k.layers // per_group), size, states) for k, size in zip(kinds, sizes, strict=True))
    spare = per_group * sum(g.groups for g in groups) - sum(k.layers for k in kinds)
    return BlockPaging(groups, page * per_group, printed, up, spare)


def _unequal_pages(kinds: Sequence[LayerKind], block: Numeric, interleave: Numeric, printed: str) -> BlockPaging:
    """Pages of compressed entries at their own size, as shares of the largest one: no engine's padding is known well enough."""
    largest = reduce(np.maximum, [k.token_bytes for k in kinds])
    groups = tuple(Group(k, k.layers * k.token_bytes / largest, block) for k in kinds)
    return BlockPaging(groups, block * largest / interleave, printed)


def _group_layers(counts: Sequence[int], slack: float) -> int:
    """Layers per group: those of the rarest kind, unless the most frequent one is barely larger.

    >>> _group_layers([52, 10], 1.25), _group_layers([13, 12], 1.25), _group_layers([12], 1.25)
    (10, 13, 12)
    """
    fewest, most = min(counts), max(counts)
    return most if most < slack * fewest else fewest


def _equal_pages(
    kinds: Sequence[LayerKind], engine: Engine, block: Numeric, interleave: Numeric, draft_tokens: int
) -> tuple[Numeric, list[Numeric]]:
    """Bytes of the common page, and the tokens of a block of each kind: smaller pages take more tokens until they are equal."""
    held = [k for k in kinds if k.kept != "state"]
    states = [k.state_bytes + draft_tokens * k.draft_bytes for k in kinds if k.kept == "state"]
    if states and held:
        align = engine.number_or("state_align_tokens", 16)
        needed = inflated_block(reduce(np.maximum, states), reduce(np.maximum, [k.token_bytes for k in held]), align)
        block = np.maximum(block, needed)
    pages = [block * k.token_bytes / interleave for k in held]
    page = reduce(np.maximum, [*pages, *([] if held else states)])
    return page, [block if k.kept == "state" else page / k.token_bytes * interleave for k in kinds]
