"""Room for the cache opened: budget, weights and reserve of a rank, blocks, what a request takes. Knows no clock and no price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from inferplan.explain.node import Node, by_formula, derived, leaf, product, total, word
from inferplan.explain.reserve import activations, engine_value, graphs, non_torch, rope_table, total_memory, utilization
from inferplan.explain.shapes import entry_bytes, tensor_bytes, unless_one
from inferplan.explain.sources import counted, engine_number, given
from inferplan.memory.capacity import Capacity, Stage
from inferplan.memory.layer_kinds import LayerKind, replicated
from inferplan.memory.paging import BlockPaging, CellPaging, Group, NoPaging, PoolPaging
from inferplan.memory.shards import Holding, Shard, device_layers, shards
from inferplan.memory.stage_weights import latent_copy_bytes, rounding_bytes
from inferplan.specs.cache import CacheEntry
from inferplan.specs.engine import SLOTTED


@dataclass(frozen=True, slots=True)
class Room:
    """A capacity with one of its stages looked at."""

    held: Capacity
    index: int

    @property
    def stage(self) -> Stage:
        """The stage."""
        return self.held.stages[self.index]

    @property
    def length(self) -> Node:
        """The longest request."""
        return leaf("length", self.held.launch.max_model_len, "tokens", "given: --max-model-len, else --isl and --osl together")

    @property
    def chunk(self) -> Node:
        """Tokens of one step."""
        value, engine = self.held.launch.max_num_batched_tokens, self.held.engine
        found = engine_number("chunk", engine, "max_num_batched_tokens", "tokens", self.held.hardware, default=0.0)
        if found.value == float(np.asarray(value)):
            return found
        return leaf("chunk", value, "tokens", f"engine {engine.title} {engine.version}: without chunked prefill a whole request")

    def count(self, label: str, value: object, unit: str = "", what: str = "shapes") -> Node:
        """Something counted from the model."""
        return counted(label, value, self.held.model, unit, what=what)


def rooms(held: Capacity) -> list[Room]:
    """Each pipeline stage."""
    return [Room(held, i) for i in range(len(held.stages))]


def least(label: str, unit: str, nodes: Sequence[Node]) -> Node:
    """The smallest of the stages' figures; of a single stage its own."""
    if len(nodes) == 1:
        return nodes[0].named(label)
    named = [node.named(f"stage_{i + 1}") for i, node in enumerate(nodes)]
    return derived(label, f"least({', '.join(n.label for n in named)})", unit, *named)


def max_batch(held: Capacity) -> Node:
    """Requests of the longest length that run at once, over all attention groups."""
    concurrency = max_concurrency(held)
    limits = [] if slots_are_asked(held) else [engine_limit(held)]
    if np.all(np.isfinite(np.asarray(held.state_limit))):
        limits.append(state_limit(held))
    names = ", ".join(limit.label for limit in limits)
    text = f"least(floor(max_concurrency), {names})" if limits else "floor(max_concurrency)"
    groups = unless_one(given("dp", held.groups))
    return derived("max_batch", text + (" * dp" if groups else ""), "requests", concurrency, *limits, *([groups] if groups else []))


def slots_are_asked(held: Capacity) -> bool:
    """Whether the engine lays out as many slots as it is asked for."""
    return held.engine.policy in SLOTTED


def engine_limit(held: Capacity) -> Node:
    """The engine's own limit on sequences."""
    value = float(np.asarray(held.launch.max_num_seqs))
    found = engine_number("max_num_seqs", held.engine, "max_num_seqs", "", held.hardware, default=0.0)
    if found.value == value:
        return found
    return leaf("max_num_seqs", value, "", f"engine {held.engine.title} {held.engine.version}: its limit of sequences on these ranks")


def max_concurrency(held: Capacity) -> Node:
    """Requests of the longest length that the cache holds."""
    least_blocks = blocks(held)
    return least("max_concurrency", "requests", [concurrency(room, least_blocks) for room in rooms(held)])


def blocks(held: Capacity) -> Node:
    """Blocks of cache of the stage that has fewest."""
    return least("blocks", "blocks", [stage_blocks(room) for room in rooms(held)])


def kv_cache_tokens(held: Capacity) -> Node:
    """Tokens of cache as the engine prints them; cells are laid out for its slots, whatever else is left."""
    if slots_are_asked(held):
        room, slots = Room(held, 0), given("slots", held.launch.max_num_seqs, option="--batch")
        multiple = engine_number("multiple", held.engine, "cell_multiple", "", held.hardware, default=1.0)
        cells = by_formula("cells", "padded", length=room.length, multiple=multiple)
        return product("kv_cache_tokens", "tokens", slots, cells)
    found = blocks(held)
    return least("kv_cache_tokens", "tokens", [tokens(room, found) for room in rooms(held)])


def state_limit(held: Capacity) -> Node:
    """Sequences that have room for their recurrent states."""
    found = blocks(held)
    return least("state_limit", "requests", [_state_limit(room, found) for room in rooms(held) if _has_states(room)])


def _has_states(room: Room) -> bool:
    return bool(np.all(np.isfinite(np.asarray(room.stage.paging.state_limit(room.held.blocks)))))


def _state_limit(room: Room, found: Node) -> Node:
    pages = room.stage.paging
    if isinstance(pages, BlockPaging):
        return derived("state_limit", "blocks", "requests", found)
    assert isinstance(pages, PoolPaging)
    share, each = _setting(room, "state_share", pages.state_share), room.count("state_bytes", pages.state_bytes, "B", "states of a rank")
    text = "floor(blocks * block_bytes * state_share / state_bytes)"
    return derived("state_limit", text, "requests", found, block_bytes(room), share, each)


def _setting(room: Room, name: str, value: float) -> Node:
    return engine_number(name, room.held.engine, name, "", room.held.hardware, default=float(value))


def stage_blocks(room: Room) -> Node:
    """Blocks that the memory left on a rank yields."""
    pages, left = room.stage.paging, available(room)
    if isinstance(pages, NoPaging):
        return derived("blocks", "where(available_bytes > 0, inf, 0)", "blocks", left)
    size = block_bytes(room)
    if isinstance(pages, BlockPaging):
        rounded = "ceil" if pages.round_up else "floor"
        return derived("blocks", f"maximum({rounded}(available_bytes / block_bytes), 0)", "blocks", left, size)
    if isinstance(pages, CellPaging):
        return derived("blocks", "maximum(floor(available_bytes / block_bytes), 0)", "blocks", left, size)
    share = _setting(room, "state_share", pages.state_share)
    split = " / (1 + state_share)" if np.any(pages.state_bytes) else ""
    text = f"maximum(floor(floor(available_bytes{split} / token_bytes) / page), 0)"
    return derived("blocks", text, "blocks", left, *([share] if split else []), pool_bytes(room), _page(room))


def _page(room: Room) -> Node:
    return _setting(room, "block_size", float(np.asarray(room.held.launch.block_size))).named("page")


def pool_bytes(room: Room) -> Node:
    """Bytes of one token in the pools for full layers and windows."""
    pages = room.stage.paging
    assert isinstance(pages, PoolPaging)
    if not np.any(pages.window_bytes):
        return _whole_token(room, LayerKind("full", 1, pages.full_bytes))
    full = room.count("full_bytes", pages.full_bytes, "B", "cached token in the full layers of a rank")
    window = room.count("window_bytes", pages.window_bytes, "B", "cached token in the windowed layers of a rank")
    return derived("token_bytes", "full_bytes + window_share * window_bytes", "B", full, _setting(room, "window_share", 1.0), window)


def block_bytes(room: Room) -> Node:
    """Bytes of one block on a rank."""
    pages = room.stage.paging
    if isinstance(pages, PoolPaging):
        return product("block_bytes", "B", _page(room), pool_bytes(room))
    if isinstance(pages, CellPaging):
        return _cell_multiple(room, pages)
    assert isinstance(pages, BlockPaging)
    held = [g for g in pages.groups if g.kind.kept != "state"]
    if not held:
        return room.count("block_bytes", pages.block_bytes, "B", "page of recurrent states of one group of layers")
    first, ways = held[0], [unless_one(given(name, getattr(room.held.parallel, name))) for name in ("dcp", "cp")]
    page = _block(room, first)
    per_token = kind_bytes(room, first.kind)
    page_bytes = float(np.asarray(first.block * first.kind.token_bytes / room.held.parallel.cache_ways))
    layers = unless_one(room.count("layers_per_group", float(np.asarray(pages.block_bytes)) / page_bytes, "", "layers of one group"))
    return product("block_bytes", "B", page, per_token, layers, over=ways)


def _cell_multiple(room: Room, pages: CellPaging) -> Node:
    """Bytes of one multiple of cells; single bytes where no layer grows."""
    kinds = [product("full", "B", room.count("layers", k.layers), kind_bytes(room, k)) for k in pages.kinds if k.kept == "full"]
    if not kinds:
        return room.count("block_bytes", 1, "B", "single bytes, since no layer grows, in the caches")
    return product("block_bytes", "B", _setting(room, "cell_multiple", 1.0), total("token_bytes", "B", kinds))


def kind_bytes(room: Room, kind: LayerKind) -> Node:
    """Bytes one token adds to a layer of a kind on one rank; of all layers where the pool holds them together."""
    if not kind.entry:
        return _whole_token(room, kind)
    found = [rank_entry(room, e) for e in kind.entry if e.k_elements]
    opened = found[0].named("token_bytes") if len(found) == 1 else total("token_bytes", "B", found)
    return opened if np.isclose(opened.mean, float(np.asarray(kind.token_bytes)), rtol=1e-12) else _as_laid(room, kind)


def _as_laid(room: Room, kind: LayerKind) -> Node:
    engine = room.held.engine
    return leaf("token_bytes", kind.token_bytes, "B", f"counted: a cached token on a rank as {engine.title} {engine.version} lays it out")


def _whole_token(room: Room, kind: LayerKind) -> Node:
    """A token in all layers of the stage, where that is the sum of its entries."""
    c = room.held
    counts = device_layers(len(c.model.order), len(c.stages), c.offload)
    start = len(c.model.order) - sum(counts) + sum(counts[: room.index])
    names = c.model.order[start : start + counts[room.index]]
    found = []
    for name in dict.fromkeys(names):
        layers = room.count("layers", names.count(name))
        entries = [e for e in c.model.blocks[name].cache() if e.k_elements]
        found += [product(word(f"{name}_{e.kind}"), "B", layers, rank_entry(room, e)) for e in entries]
    opened = total("token_bytes", "B", found)
    return opened if np.isclose(opened.mean, float(np.asarray(kind.token_bytes)), rtol=1e-12) else _as_laid(room, kind)


def rank_entry(room: Room, entry: CacheEntry) -> Node:
    """One cached entry of one layer on one rank: KV heads are dealt out, latents lie on each."""
    c = room.held
    each, tp = entry_bytes(entry, c.model, c.precision.kv), unless_one(given("tp", c.parallel.tp))
    every = unless_one(room.count("every", entry.every, "", "tokens per entry"))
    if tp is None or replicated(entry):
        return product(word(entry.kind), "B", each, over=[every])
    heads = room.count("kv_heads", entry.k_elements / entry.head_dim)
    here = by_formula("heads_per_rank", "heads_per_rank", kv_heads=heads, tp=tp)
    return product(word(entry.kind), "B", each, here, over=[heads, every])


def request_blocks(room: Room, pages: BlockPaging) -> Node:
    """Blocks that one request takes in all groups of layers."""
    return total("request_blocks", "blocks", [_group_blocks(room, g) for g in pages.groups])


def _block(room: Room, g: Group) -> Node:
    """Tokens of a block: the engine's own, unless pages are made equal."""
    found = engine_value(room.held, "block", "block_size", float(np.asarray(g.block)), "tokens")
    if "given" not in found.source:
        return found
    return room.count("block", g.block, "tokens", "tokens of a block, which make the page equal to the largest one,")


def _group_blocks(room: Room, g: Group) -> Node:
    groups = unless_one(room.count("groups", g.groups, "", "groups of layers"))
    if g.kind.kept == "state":
        states = room.count("state_blocks", g.state_blocks, "", "blocks of states per request")
        return product("states", "blocks", groups, states)
    size = _block(room, g)
    if g.kind.window is not None:
        window = room.count("window", g.kind.window, "tokens")
        each = by_formula("each", "window_blocks", length=room.length, window=window, chunk=room.chunk, block=size)
        return product("windows", "blocks", groups, each)
    each = derived("each", "ceil(length / block)", "blocks", room.length, size)
    return product("whole_length", "blocks", groups, each)


def concurrency(room: Room, found: Node) -> Node:
    """Requests of the longest length that the blocks hold at once."""
    pages = room.stage.paging
    if isinstance(pages, BlockPaging):
        return derived("max_concurrency", "blocks / request_blocks", "requests", found, request_blocks(room, pages))
    if isinstance(pages, CellPaging):
        text = "blocks * block_bytes / maximum(request_bytes, 1)"
        return derived("max_concurrency", text, "requests", found, block_bytes(room), _cells(room, pages))
    if isinstance(pages, NoPaging):
        return derived("max_concurrency", "blocks", "requests", found)
    whole = derived("in_the_full_pool", "blocks * page / (ceil(length / page) * page)", "requests", found, _page(room), room.length)
    if pages.window is None:
        return whole.named("max_concurrency")
    share, window = _setting(room, "window_share", 1.0), room.count("window", pages.window, "tokens")
    text = "floor(blocks * page * window_share) / (ceil(minimum(window + chunk, length) / page) * page)"
    inside = derived("in_the_window_pool", text, "requests", found, _page(room), share, window, room.chunk, room.length)
    return derived("max_concurrency", "minimum(in_the_full_pool, in_the_window_pool)", "requests", whole, inside)


def _cells(room: Room, pages: CellPaging) -> Node:
    return total("request_bytes", "B", [_cell_kind(room, pages, k) for k in pages.kinds])


def _cell_kind(room: Room, pages: CellPaging, kind: LayerKind) -> Node:
    layers, multiple = room.count("layers", kind.layers), _setting(room, "cell_multiple", 1.0)
    if kind.kept == "state":
        return product("states", "B", layers, room.count("state_bytes", kind.state_bytes, "B", "states of one layer on a rank"))
    cells = by_formula("cells", "padded", length=room.length, multiple=multiple)
    if kind.window is None:
        return product("full", "B", layers, cells, kind_bytes(room, kind))
    span = derived("span", "window + chunk", "tokens", room.count("window", kind.window, "tokens"), room.chunk)
    most = by_formula("window_cells", "padded", length=span, multiple=multiple)
    held = derived("held", "minimum(cells, window_cells)", "tokens", cells, most)
    return product("window", "B", layers, held, kind_bytes(room, kind))


def tokens(room: Room, found: Node) -> Node:
    """Tokens of cache as printed."""
    pages, label = room.stage.paging, "kv_cache_tokens"
    if isinstance(pages, PoolPaging):
        return product(label, "tokens", found, _page(room))
    if isinstance(pages, NoPaging):
        return leaf(label, 0.0, "tokens", "counted: no layer keeps tokens")
    assert isinstance(pages, BlockPaging)
    if pages.printed == "concurrency":
        return derived(label, "floor(max_concurrency * length)", "tokens", concurrency(room, found), room.length)
    paged = [g.block for g in pages.groups if g.kind.kept != "state"]
    if not paged:
        return leaf(label, 0.0, "tokens", "counted: no layer keeps tokens")
    groups = room.count("groups", sum((g.groups for g in pages.groups), 0.0), "", "groups of layers that share the blocks")
    block = room.count("block", reduce(np.minimum, paged), "tokens", "tokens of the smallest block")
    return derived(label, "floor(blocks / groups) * block", "tokens", found, groups, block)


def available(room: Room) -> Node:
    """Bytes left for the cache on a rank, by the engine's own rule."""
    c, index = room.held, room.index
    parts = {
        "utilization": utilization(c),
        "total_bytes": total_memory(c),
        "weight_bytes": rank_weights(room),
        "non_torch_bytes": non_torch(c),
    }
    if c.engine.policy == "static-fraction":
        return by_formula("available_bytes", "static_budget_bytes", **parts)
    parts["activation_bytes"] = activations(c, index)
    if c.engine.policy in ("fraction-of-free", "rest"):
        return by_formula("available_bytes", "free_budget_bytes", **parts)
    return by_formula("available_bytes", "budget_bytes", **parts, graph_bytes=graphs(c))


def rank_weights(room: Room) -> Node:
    """Weights of one rank of a stage, by part, with rotary tables."""
    c = room.held
    by_part: dict[str, list[Node]] = {}
    for shard in shards(c.model, c.precision, c.parallel, Holding.of(c.engine, c.hardware), c.offload):
        by_part.setdefault(shard.weight.part, []).append(_rank_tensor(room, shard))
    found = [total(word(part), "B", terms) for part, terms in by_part.items()]
    return total("weight_bytes", "B", [*found, *_beside_weights(room), rope_table(c)])


def _beside_weights(room: Room) -> list[Node]:
    """What an engine holds with the tensors: copies of latent up-projections, and what the allocator rounds up."""
    c, found = room.held, []
    holding = Holding.of(c.engine, c.hardware)
    if holding.latent_copies:
        copies = latent_copy_bytes(c.model, c.precision, c.parallel, offload=c.offload)[room.index]
        why = f"engine {c.engine.title}: factors of the latent up-projection, kept in 16 bit beside it"
        found += [leaf("latent_copies", copies, "B", why)] if np.any(copies) else []
    if holding.rounded:
        rests = rounding_bytes(c.model, c.precision, c.parallel, holding, offload=c.offload)[room.index]
        found.append(leaf("rounding", rests, "B", f"engine {c.engine.title}: the allocator keeps large tensors in whole 2 MiB"))
    return found


def _rank_tensor(room: Room, shard: Shard) -> Node:
    c, dealt, grown = room.held, float(np.asarray(shard.dealt)), float(np.asarray(shard.growth))
    whole = tensor_bytes(c.model, c.precision, shard.block, shard.layers, shard.weight).named("whole")
    over = leaf("ranks", dealt, "", "given: --tp, --dp and --ep, as far as KV heads go round") if dealt != 1 else None
    growth = leaf("padding", grown, "", f"engine {c.engine.title}: 4-bit experts are padded to whole tiles") if grown != 1 else None
    share = room.count("share", shard.inside[room.index], "", "share of its layers that lie on this stage")
    return product(word(f"{shard.block}.{shard.weight.name}"), "B", whole, growth, unless_one(share), over=[over])
