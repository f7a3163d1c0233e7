"""How much a deployment holds as an engine really reserves it: weights, reserve, cache, tokens, requests, and whether it starts.

Everything is of one rank; with pipeline stages the one that holds least decides. Knows no clock. Loads, lengths and splits
broadcast; only the number of pipeline stages is a single one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferplan.engine.split import divides
from inferplan.errors import SpecError
from inferplan.memory.activations import activation_bytes, compute_buffer_bytes, element_bytes_of, packs_experts
from inferplan.memory.paging import Paging, padded, paging
from inferplan.memory.reserve import (
    budget_bytes,
    free_budget_bytes,
    graph_bytes,
    non_torch_bytes,
    rope_table_bytes,
    static_budget_bytes,
    static_fraction,
    total_bytes,
)
from inferplan.memory.shards import Holding, device_layers, host_weight_bytes, shards
from inferplan.memory.stage_weights import stage_weight_bytes
from inferplan.ops import Numeric
from inferplan.specs.engine import SLOTTED, Engine
from inferplan.specs.hardware import Accelerator
from inferplan.specs.model import Model
from inferplan.specs.offload import NOTHING, Offload
from inferplan.specs.parallel import ONE, Parallel
from inferplan.specs.precision import Precision
from inferplan.units import GIB


@dataclass(frozen=True, slots=True)
class Launch:
    """What an engine is started with: lengths and loads, given or its own defaults."""

    max_model_len: Numeric
    max_num_seqs: Numeric
    max_num_batched_tokens: Numeric
    utilization: Numeric
    block_size: Numeric
    draft_tokens: int = 0
    eager: bool = False
    flash_attention: bool = True

    @property
    def chunked(self) -> Numeric:
        """Whether the longest request takes several steps."""
        return np.asarray(self.max_num_batched_tokens) < self.max_model_len


@dataclass(frozen=True, slots=True)
class Stage:
    """One rank of one pipeline stage: where its memory goes and what its cache holds."""

    weight_bytes: Numeric
    activation_bytes: Numeric
    available_bytes: Numeric
    paging: Paging

    @property
    def blocks(self) -> Numeric:
        """Blocks of cache."""
        return self.paging.blocks(self.available_bytes)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a deployment holds. Bytes are of the rank that decides; tokens and requests of one attention group, times `groups`."""

    model: Model
    hardware: Accelerator
    precision: Precision
    parallel: Parallel
    engine: Engine
    launch: Launch
    total_bytes: Numeric
    non_torch_bytes: Numeric
    graph_bytes: Numeric
    graphs_inside: bool
    stages: tuple[Stage, ...]
    offload: Offload = NOTHING
    host_paging: Paging | None = None

    @property
    def host_bytes(self) -> Numeric:
        """Host memory of all ranks together: weights that lie there, and the caches of the layers that the host computes."""
        if not self.offload.any:
            return 0.0
        hosted = self.engine.choice("token_table") == "host"
        weights: Numeric = host_weight_bytes(self.model, self.precision, self.offload, table_hosted=hosted)
        if not self.offload.computed:
            whole, kept = (shards(self.model, self.precision, self.parallel, offload=o) for o in (NOTHING, self.offload))
            away = sum((a.bytes * (1 - b.inside[0] / a.inside[0]) for a, b in zip(whole, kept, strict=True) if a.inside[0]), 0.0)
            weights = away * self.parallel.gpus
        caches = self.host_paging.request_bytes(*self._request) * self.launch.max_num_seqs if self.host_paging is not None else 0.0
        return weights + caches

    def _least(self, values: list[Numeric]) -> Numeric:
        least: Numeric = np.min(np.broadcast_arrays(*values), axis=0)
        return least

    def _most(self, values: list[Numeric]) -> Numeric:
        most: Numeric = np.max(np.broadcast_arrays(*values), axis=0)
        return most

    @property
    def weight_bytes_per_gpu(self) -> Numeric:
        """Weights, with rotary tables, on the fullest rank."""
        return self._most([s.weight_bytes for s in self.stages])

    @property
    def activation_bytes(self) -> Numeric:
        """The activation peak of the rank that needs most."""
        return self._most([s.activation_bytes for s in self.stages])

    @property
    def kv_cache_bytes_per_gpu(self) -> Numeric:
        """Cache left on the rank that has least; negative where weights and reserve already exceed the budget."""
        return self._least([s.available_bytes for s in self.stages])

    def holding(self, cache_bytes: Numeric) -> Capacity:
        """The same with so many bytes of cache on every rank, as a log printed them."""
        return replace(self, stages=tuple(replace(s, available_bytes=cache_bytes) for s in self.stages))

    @property
    def reserved_cache_bytes(self) -> Numeric:
        """Cache that the engine lays out: all that is left, or the cells of its slots where it lays out just these."""
        if self.engine.policy in SLOTTED:
            return self.launch.max_num_seqs * self.request_bytes
        return self.kv_cache_bytes_per_gpu

    @property
    def blocks(self) -> Numeric:
        """Blocks of cache; the stage with fewest decides."""
        return self._least([s.blocks for s in self.stages])

    @property
    def kv_cache_tokens(self) -> Numeric:
        """Tokens of cache as one engine prints them; with data parallelism each group has as many."""
        if self.engine.policy in SLOTTED:
            return self.launch.max_num_seqs * padded(self.launch.max_model_len, self.engine.number_or("cell_multiple", 1))
        return self._least([s.paging.tokens(self.blocks, *self._request) for s in self.stages])

    @property
    def max_concurrency(self) -> Numeric:
        """Requests of the longest length that the cache holds at once, as the engine prints it."""
        return self._least([s.paging.concurrency(self.blocks, *self._request) for s in self.stages])

    @property
    def _request(self) -> tuple[Numeric, Numeric]:
        return self.launch.max_model_len, self.launch.max_num_batched_tokens

    @property
    def max_sequences(self) -> Numeric:
        """Requests of the longest length that run at once: by cache, by state blocks and by the engine's own limit.

        Where slots are laid out at start, their number is the user's choice and no limit.
        """
        held = np.minimum(np.floor(self.max_concurrency), self.state_limit)
        return held if self.engine.policy in SLOTTED else np.minimum(held, self.launch.max_num_seqs)

    @property
    def state_limit(self) -> Numeric:
        """Sequences that have a block for their recurrent states; infinite where the model has none."""
        return self._least([s.paging.state_limit(self.blocks) for s in self.stages])

    @property
    def max_context(self) -> Numeric:
        """The longest single request that the cache holds, at most the model's own context."""
        longest = self._least([s.paging.longest(self.blocks, self.launch.max_num_batched_tokens) for s in self.stages])
        return np.minimum(longest, self.model.context) if self.model.context else longest

    @property
    def request_bytes(self) -> Numeric:
        """Bytes reserved on one rank for one request of the longest length."""
        return self._most([s.paging.request_bytes(*self._request) for s in self.stages])

    @property
    def request_fixed_bytes(self) -> Numeric:
        """The part of it that does not grow with the length: windows and states."""
        return self._most([s.paging.fixed_bytes(*self._request) for s in self.stages])

    @property
    def kv_bytes_per_token_per_gpu(self) -> Numeric:
        """Bytes that one more token of a long request costs on one rank."""
        return self._most([s.paging.token_bytes for s in self.stages])

    @property
    def groups(self) -> Numeric:
        """Attention groups, each with a cache of its own."""
        return self.parallel.dp

    @property
    def even(self) -> NDArray[np.bool_]:
        """Where heads come out even over the devices, as engines ask that divide them; llama.cpp and the ideal do not ask."""
        if self.engine.policy in SLOTTED:
            return np.ones(np.shape(self.parallel.tp), dtype=bool)
        even = np.ones(np.shape(self.parallel.tp), dtype=bool)
        for block in self.model.blocks.values():
            even = even & np.asarray(divides(block, self.parallel), dtype=bool)
        return even

    @property
    def _heads(self) -> str:
        """The heads of the first block that does not come out even, in words."""
        block = next(b for b in self.model.blocks.values() if not np.all(divides(b, self.parallel)))
        mixer: Any = next(m for m in block.mixers if hasattr(m, "heads") or hasattr(m, "value_heads"))
        kv = f" and {mixer.kv_heads} KV heads" if hasattr(mixer, "kv_heads") else ""
        return f"{getattr(mixer, 'heads', None) or mixer.value_heads} query heads{kv}"

    @property
    def fits(self) -> Numeric:
        """Whether the engine starts: an even split, cache for one request of the longest length, a state block for every sequence."""
        starts = (np.asarray(self.kv_cache_bytes_per_gpu) > 0) & (np.asarray(self._checked) >= 1)
        return starts & (np.asarray(self.launch.max_num_seqs) <= self.state_limit) & self.even

    @property
    def _checked(self) -> Numeric:
        """Requests of the longest length by the engine's own check, which in some releases counts a request over all stages."""
        if self.engine.policy in SLOTTED:
            return self.max_concurrency / self.launch.max_num_seqs
        if self.engine.choice("length_check") == "none":
            return np.inf + 0 * self.max_concurrency
        if self.engine.choice("stage_check") != "all-layers" or len(self.stages) == 1:
            return self.max_concurrency
        whole = sum((s.paging.request_bytes(*self._request) for s in self.stages), 0.0)
        return self.kv_cache_bytes_per_gpu / whole

    @property
    def graphs_at_risk(self) -> Numeric:
        """Where CUDA graphs outside the budget exceed what it leaves: the engine can run out of memory after its check."""
        beside = (1 - np.asarray(self.launch.utilization)) * self.total_bytes
        return np.zeros(np.shape(beside), dtype=bool) if self.graphs_inside else self.graph_bytes > beside

    def reason(self) -> str:
        """In a line why it does not start, or '' where it does, for a single point."""
        if not np.all(self.even):
            return f"{self._heads} do not come out even over {int(np.max(self.parallel.tp))} devices"
        left = float(np.min(self.kv_cache_bytes_per_gpu)) / GIB
        weights, budget = float(np.max(self.weight_bytes_per_gpu)) / GIB, float(np.max(self.launch.utilization * self.total_bytes)) / GIB
        if left > 0 and self.engine.policy in SLOTTED and float(np.min(self._checked)) < 1:
            asked = float(np.max(self.reserved_cache_bytes)) / GIB
            return f"the cache asked for takes {asked:.2f} GiB, {left:.2f} are left"
        if left <= 0 and weights > budget:
            return f"weights of {weights:.2f} GiB per device exceed the budget of {budget:.2f} GiB"
        if left <= 0:
            return f"weights and reserve exceed the budget of {budget:.2f} GiB by {-left:.2f} GiB"
        if float(np.min(self.max_concurrency)) >= 1 > float(np.min(self._checked)):
            return f"{self.engine.title} {self.engine.version} compares one request over all stages with the {left:.2f} GiB of one"
        if float(np.min(self._checked)) < 1:
            need, most = float(np.max(self.request_bytes)) / GIB, int(np.min(self.max_context))
            length = int(np.max(self.launch.max_model_len))
            return f"one request of {length:,} tokens needs {need:.2f} GiB, {left:.2f} are left: enough for {most:,} tokens"
        if np.any(np.asarray(self.launch.max_num_seqs) > self.state_limit):
            asked, most = int(np.max(self.launch.max_num_seqs)), int(np.min(self.state_limit))
            return f"{asked:,} sequences are allowed, but only {most:,} have a block for their recurrent states"
        return ""


def capacity(
    model: Model, hardware: Accelerator, precision: Precision, parallel: Parallel = ONE, engine: Engine | str = "vllm", *,
    version: str | None = None, max_model_len: Numeric | None = None, max_num_seqs: Numeric | None = None,
    max_num_batched_tokens: Numeric | None = None, utilization: Numeric | None = None, block_size: Numeric | None = None,
    draft_tokens: int = 0, prefix_caching: bool | None = None, eager: bool = False, flash_attention: bool = True,
    total: Numeric | None = None, latent: str | None = None, offload: Offload = NOTHING,
) -> Capacity:  # fmt: skip
    """What a deployment holds under an engine of one release; what is not given is the engine's default on that part.

    `total` replaces the memory that the device shows to programs, in bytes; `offload` says what lies in host memory. Raises Unsupported
    where a number is not known.

    >>> from inferplan.readers.opening import open_model
    >>> found = capacity(open_model("llama-3.1-8b").model, Accelerator.find("h100"), Precision.named("bf16"), version="0.19.0",
    ...     max_model_len=8192, utilization=0.95)
    >>> round(float(found.kv_cache_bytes_per_gpu) / 2**30, 1), bool(found.fits)  # 58.11 GiB were logged
    (58.1, True)
    """
    chosen = Engine.find(engine, version) if isinstance(engine, str) else engine.at(version) if version else engine
    shown = total_bytes(hardware) if total is None else total
    given = {"max_model_len": max_model_len, "max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens}
    launch = launched(
        model, hardware, parallel, chosen, given, utilization=utilization, block_size=block_size, draft_tokens=draft_tokens,
        eager=eager, flash_attention=flash_attention,
    )  # fmt: skip
    inside = chosen.choice("graphs") == "inside"
    pp = int(np.asarray(parallel.pp))
    graphs = 0.0 if eager else graph_bytes(model, chosen, hardware, stages=pp)
    if inside:
        graphs = graphs * chosen.number_or("graph_estimate_share", 1.0, hardware)
    inner = graphs if inside else 0.0
    stages = _stages(model, hardware, precision, parallel, chosen, launch, shown, inner, prefix_caching, latent, offload)
    hosted = range(int(offload.layers)) if offload.computed else range(0)
    beside = paging(model, precision, chosen, parallel, block_size=launch.block_size, layers=hosted) if hosted else None
    outside = non_torch_bytes(chosen, hardware, parallel)
    return Capacity(
        model, hardware, precision, parallel, chosen, launch, shown, outside, graphs, inside, stages, offload, beside
    )  # fmt: skip


def launched(
    model: Model, hardware: Accelerator, parallel: Parallel, engine: Engine, given: dict[str, Numeric | None], *,
    utilization: Numeric | None, block_size: Numeric | None, draft_tokens: int, eager: bool, flash_attention: bool,
) -> Launch:  # fmt: skip
    """The launch with every default filled in."""
    length = given["max_model_len"] if given["max_model_len"] is not None else model.context
    if length is None:
        raise SpecError("must be given, since the model states no context", field="max_model_len")
    ranks = parallel.tp
    chunk = given["max_num_batched_tokens"]
    if chunk is None:
        chunk = _default_chunk(engine, hardware, ranks, length)
    seqs = given["max_num_seqs"]
    if seqs is None:
        seqs = np.minimum(engine.number("max_num_seqs", hardware, ranks=ranks), np.maximum(chunk, 1))
    if utilization is None and engine.policy == "static-fraction":
        utilization = static_fraction(engine, hardware, parallel, tokens=chunk, sequences=seqs)
    if utilization is None:
        utilization = engine.number("utilization", hardware, ranks=ranks)
    block = block_size if block_size is not None else engine.number_or("block_size", 1, hardware)
    return Launch(length, seqs, chunk, utilization, block, draft_tokens, eager, flash_attention)


def _default_chunk(engine: Engine, hardware: Accelerator, ranks: Numeric, length: Numeric) -> Numeric:
    """Tokens per step: the default, none for the ideal, or the whole length where an engine does not yet prefill in chunks."""
    if engine.policy == "ideal":
        return 0
    plain = engine.number("max_num_batched_tokens", hardware, ranks=ranks)
    if engine.choice("core") != "v0":
        return plain
    above = engine.number_or("chunked_above_tokens", np.inf, hardware)
    return np.where(np.asarray(length) > above, plain, np.maximum(length, 2048))


def _stages(
    model: Model, hardware: Accelerator, precision: Precision, parallel: Parallel, engine: Engine, launch: Launch, total: Numeric,
    graphs: Numeric, prefix_caching: bool | None, latent: str | None, offload: Offload,
) -> tuple[Stage, ...]:  # fmt: skip
    holding = Holding.of(engine, hardware)
    weights = stage_weight_bytes(model, precision, parallel, holding, offload=offload, mtp=launch.draft_tokens > 0)
    table = rope_table_bytes(model, engine)
    counts = device_layers(len(model.order), len(weights), offload)
    found, start = [], len(model.order) - sum(counts)
    for i, (held, count) in enumerate(zip(weights, counts, strict=True)):
        layers = range(start, start + count)
        start += count
        pages = paging(
            model, precision, engine, parallel, block_size=launch.block_size, layers=layers, draft_tokens=launch.draft_tokens,
            prefix_caching=prefix_caching, latent=latent,
        )  # fmt: skip
        peak = _peak(model, hardware, precision, parallel, engine, launch, i == 0, i == len(weights) - 1)
        left = _left(engine, hardware, parallel, launch, total, held + table, peak, graphs)
        found.append(Stage(held + table, peak, left, pages))
    return tuple(found)


def _peak(
    model: Model, hardware: Accelerator, precision: Precision, parallel: Parallel, engine: Engine, launch: Launch, first: bool, last: bool
) -> Numeric:
    if engine.policy == "cells":
        batch, cells = launch.max_num_batched_tokens, launch.max_model_len
        expand = engine.choice("latent_prefill") == "expanded"
        return compute_buffer_bytes(model, batch=batch, cells=cells, flash_attention=launch.flash_attention, expand_latent=expand)
    if engine.policy in ("static-fraction", "ideal"):
        return 0.0
    return activation_bytes(
        model, engine, parallel, tokens=launch.max_num_batched_tokens, sequences=launch.max_num_seqs, first=first, last=last,
        element_bytes=element_bytes_of(precision), packed_experts=packs_experts(precision), chunked=launch.chunked, hardware=hardware,
    )  # fmt: skip


def _left(
    engine: Engine, hardware: Accelerator, parallel: Parallel, launch: Launch, total: Numeric, weights: Numeric, peak: Numeric,
    graphs: Numeric,
) -> Numeric:  # fmt: skip
    """Bytes of cache left by the engine's own rule."""
    outside = non_torch_bytes(engine, hardware, parallel)
    if engine.policy == "static-fraction":
        return static_budget_bytes(launch.utilization, total, outside, weights)
    if engine.policy in ("fraction-of-free", "rest"):
        return free_budget_bytes(launch.utilization, total, weights, peak, outside)
    return budget_bytes(launch.utilization, total, weights, peak, outside, graphs)
