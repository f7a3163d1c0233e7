"""A scheduler with its settings: what an engine of some release does on some part, or what a user says. Knows no step time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from inferplan.errors import DoesNotFit, SpecError, Unsupported
from inferplan.memory.capacity import Capacity
from inferplan.serving.batches import Batches
from inferplan.serving.machine import Book, Machine
from inferplan.serving.policies import Alternating, Mixed, PrefillFirst, Reserving, Retracting
from inferplan.serving.steps import Steps
from inferplan.specs.engine import Engine
from inferplan.specs.hardware import Accelerator

MAX_TOKENS = 10**12
STEP_TOKENS = 8192
"""Tokens of a step where an engine's rules state none: assumed."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One scheduler and what it is set to.

    scheduler
        `vllm-v1`, `vllm-v0`, `vllm-v0-chunked`, `sglang`, `tgi`, `tgi-v2`, `tensorrt-llm`, `tensorrt-llm-max-utilization`,
        `static` or `dynamic`.
    kv_tokens, block
        tokens of cache, and tokens of one of its blocks.
    max_num_seqs, max_num_batched_tokens
        requests at once, and tokens of a step, at most.
    chunked
        whether prompts are divided over steps.
    whole_prompt
        whether an admission asks for room for the whole prompt.
    watermark
        share of the cache that an admission leaves free.
    prefix_caching
        whether blocks are found again by hash.
    draft_tokens
        guesses per step of speculative decoding; 0: none.
    served_ratio, patience
        of TGI before chunks: share of the running requests that must wait, and decode steps after which fewer will do.
    foreseen, foreseen_least, foreseen_steps, clip_tokens, headroom
        of SGLang: share of declared outputs that is foreseen at first and at least, decode steps between the two, declared tokens
        that count at most, and decode steps that must find room after a retraction.
    recv_interval
        of SGLang: decode steps between two looks for new requests (`--scheduler-recv-interval`).
    """

    scheduler: str = "vllm-v1"
    kv_tokens: int = MAX_TOKENS
    block: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    chunked: bool = True
    whole_prompt: bool = True
    watermark: float = 0.0
    prefix_caching: bool = False
    draft_tokens: int = 0
    served_ratio: float = 0.3
    patience: int = 20
    foreseen: float = 0.7
    foreseen_least: float = 0.098
    foreseen_steps: int = 600
    clip_tokens: int = 4096
    headroom: int = 20
    recv_interval: int = 1

    def __post_init__(self) -> None:
        if self.scheduler not in SCHEDULERS:
            raise SpecError(f"is no scheduler; there are {', '.join(SCHEDULERS)}", field="scheduler", value=self.scheduler)
        whole = {
            "kv_tokens": MAX_TOKENS, "block": 1024, "max_num_seqs": 10**7, "max_num_batched_tokens": 10**9, "clip_tokens": 10**9,
            "recv_interval": 10**6,
        }  # fmt: skip
        for name, most in whole.items():
            value = getattr(self, name)
            if not (1 <= value <= most and value == int(value)):
                raise SpecError(f"must be a whole number from 1 to {most:,}", field=name, value=value)
        if self.recv_interval > 1 and self.scheduler != "sglang":
            raise SpecError("is SGLang's alone", field="recv_interval", value=self.recv_interval)
        if not 0 <= self.watermark < 1:
            raise SpecError("must be a share from 0 to below 1", field="watermark", value=self.watermark)
        if self.prefix_caching and self.scheduler not in CACHING:
            raise SpecError(f"is simulated for {', '.join(sorted(CACHING))} only", field="prefix caching", value=self.scheduler)

    @property
    def batching(self) -> bool:
        """Whether it is a scheduler that runs a batch until all of it are done."""
        return self.scheduler in ("static", "dynamic")

    @property
    def blocks(self) -> int:
        """Blocks of cache."""
        return self.kv_tokens // self.block

    @property
    def slots(self) -> int:
        """Requests at once: no more than a step has tokens for."""
        return min(self.max_num_seqs, max(1, self.max_num_batched_tokens // (self.draft_tokens + 1)))

    def refuse(self, longest: int, prompt: int, reserved: int) -> None:
        """Raise DoesNotFit where the longest request, the longest prompt or reservation could never be served."""
        reserves = self.scheduler in ("tgi", "tgi-v2", "tensorrt-llm", "static", "dynamic", "sglang")
        most, what = (reserved + (self.scheduler == "sglang"), "with its declared output ") if reserves else (longest, "")
        if -(-most // self.block) > self.blocks:
            raise DoesNotFit(f"the longest request {what}takes {most:,} tokens of cache, and there are {self.kv_tokens:,}")
        recomputed = longest - 1 if self.scheduler in ("vllm-v1", "vllm-v0", "sglang", "tensorrt-llm-max-utilization") else prompt
        if not self.chunked and not self.batching and recomputed > self.max_num_batched_tokens:
            raise DoesNotFit(
                f"without chunked prefill a prompt must fit a step: {recomputed:,} tokens, {self.max_num_batched_tokens:,} allowed"
            )

    def machine(self, book: Book, steps: Steps) -> Machine | Batches:
        """An engine under this scheduler, idle at time 0."""
        if self.batching:
            return Batches(book, steps, size=self.max_num_seqs, tokens=self.kv_tokens, waits=self.scheduler == "static")
        fluid = self.draft_tokens > 0 or self.scheduler == "sglang"
        block, blocks = (1, self.kv_tokens) if fluid else (self.block, self.blocks)
        shape = {"block": block, "blocks": blocks, "budget": self.max_num_batched_tokens, "slots": self.slots}
        found = SCHEDULERS[self.scheduler](self, book, steps, shape)
        found.width = self.draft_tokens + 1
        if self.prefix_caching and book.prefixes is not None:
            found.share_prefixes()
        return found

    def but(self, **changed: Any) -> Schedule:
        """The same with other settings; None leaves one as it is."""
        return replace(self, **{name: value for name, value in changed.items() if value is not None})

    @classmethod
    def of(cls, held: Capacity, scheduler: str | None = None) -> Schedule:
        """What an engine does by default: its scheduler and settings by release and part, with the cache that it has there.

        Raises DoesNotFit where the engine does not start.
        """
        if not bool(np.all(held.fits)):
            raise DoesNotFit(held.reason())
        engine, launch, hardware = held.engine, held.launch, held.hardware
        chosen = scheduler or engine.choice("scheduler", hardware)
        if not chosen:
            raise Unsupported(f"no scheduler is known for {engine.title}; name one of {', '.join(SCHEDULERS)}")
        plain, number = cls(), _numbers(engine, hardware)
        budget, groups = int(np.asarray(launch.max_num_batched_tokens)) or STEP_TOKENS, int(np.asarray(held.groups))
        return cls(
            scheduler=chosen,
            kv_tokens=max(1, int(np.asarray(held.kv_cache_tokens))) * groups,
            block=max(1, int(np.asarray(launch.block_size))),
            max_num_seqs=int(number("running_requests", float(np.asarray(launch.max_num_seqs)))) * groups,
            max_num_batched_tokens=budget * groups,
            chunked=engine.choice("chunked_prefill", hardware) != "off",
            whole_prompt=engine.choice("admission", hardware) != "first-chunk",
            watermark=number("watermark", plain.watermark),
            served_ratio=number("waiting_served_ratio", plain.served_ratio),
            patience=int(number("max_waiting_tokens", plain.patience)),
            foreseen=number("new_token_ratio", plain.foreseen),
            foreseen_least=number("new_token_ratio_least", plain.foreseen_least),
            foreseen_steps=int(number("new_token_ratio_steps", plain.foreseen_steps)),
            clip_tokens=int(number("clip_tokens", plain.clip_tokens)),
            headroom=int(number("retract_steps", plain.headroom)),
        )


def _numbers(engine: Engine, hardware: Accelerator) -> Callable[[str, float], float]:
    """What an engine sets a number to on a part, or what it is elsewhere."""
    return lambda name, default: float(np.asarray(engine.number_or(name, default, hardware)))


def graph_sizes(held: Capacity) -> tuple[int, ...]:
    """Sequences of the decode steps that an engine captures as graphs; none where it is not known to pad steps to them."""
    stride = int(np.asarray(held.engine.number_or("graph_stride_above_256", 0, held.hardware)))
    if not stride:
        return ()
    largest = int(np.asarray(held.engine.number_or("captured_sequences", 256, held.hardware)))
    most = max(1, min(largest, int(np.asarray(held.launch.max_num_seqs))))
    sizes = [1, 2, 4, *range(8, min(largest, 256) + 1, 8), *range(256 + stride, largest + 1, stride)]
    return tuple(size for size in sizes if size <= most)


def _mixed(s: Schedule, book: Book, steps: Steps, shape: dict[str, int]) -> Machine:
    return Mixed(book, steps, chunked=s.chunked, whole=s.whole_prompt, watermark=int(s.watermark * shape["blocks"]), **shape)


def _prefill_first(s: Schedule, book: Book, steps: Steps, shape: dict[str, int]) -> Machine:
    return PrefillFirst(book, steps, chunked=False, watermark=int(s.watermark * shape["blocks"]), **shape)


def _reserving(s: Schedule, book: Book, steps: Steps, shape: dict[str, int]) -> Machine:
    return Reserving(book, steps, chunked=s.chunked, **shape)


def _alternating(s: Schedule, book: Book, steps: Steps, shape: dict[str, int]) -> Machine:
    return Alternating(book, steps, chunked=False, served_ratio=s.served_ratio, patience=s.patience, **shape)


def _retracting(s: Schedule, book: Book, steps: Steps, shape: dict[str, int]) -> Machine:
    return Retracting(
        book, steps, chunked=s.chunked, ratio=s.foreseen, least=s.foreseen_least, clip=s.clip_tokens, headroom=s.headroom,
        decay=(s.foreseen - s.foreseen_least) / max(s.foreseen_steps, 1), interval=s.recv_interval, **shape,
    )  # fmt: skip


SCHEDULERS: dict[str, Callable[[Schedule, Book, Steps, dict[str, int]], Machine]] = {
    "vllm-v1": _mixed,
    "vllm-v0": _prefill_first,
    "vllm-v0-chunked": _mixed,
    "sglang": _retracting,
    "tgi": _reserving,
    "tgi-v2": _alternating,
    "tensorrt-llm": _reserving,
    "tensorrt-llm-max-utilization": _mixed,
    "static": _mixed,
    "dynamic": _mixed,
}
CACHING = frozenset({"vllm-v1", "vllm-v0", "vllm-v0-chunked", "sglang"})
