"""How long one machine's accelerator takes: streams, matrix products, attention, launches, all-reduces, passes of Llama shapes.

    python validation/device_check.py --gpu h200-sxm -o FOLDER

Needs Python 3.10 and PyTorch, and no inferplan. Knows no prediction: it writes rows that `inferplan validate FOLDER/cases.csv` predicts
and `tools/fit_kernels.py` reads, as they come, so that an interrupt loses none. docs/device-check.md says what is measured and how.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import difflib
import gc
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

CHECKOUT = Path(__file__).resolve().parents[1]
INTERRUPTED = 130
MIB, GIB = 2**20, 2**30

# ---- shapes and points: what is measured, what it moves and multiplies; nothing here needs PyTorch ----


@dataclass(frozen=True)
class Shape:
    """A dense Llama: the integers of the catalog (models/llama), with which tests compare them."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    vocab: int
    tied: bool

    @property
    def qkv(self) -> int:
        """Rows of the joined matrix of queries, keys and values."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def products(self) -> dict[str, tuple[int, int]]:
        """Matrix products of a layer and of the head as (n, k), joined as engines join them."""
        attention = self.heads * self.head_dim
        return {
            "qkv": (self.qkv, self.hidden),
            "o": (self.hidden, attention),
            "gate_up": (2 * self.width, self.hidden),
            "down": (self.hidden, self.width),
            "head": (self.vocab, self.hidden),
        }

    @property
    def params(self) -> int:
        """All parameters, a tied table once."""
        layer = sum(n * k for name, (n, k) in self.products.items() if name != "head") + 2 * self.hidden
        tables = self.vocab * self.hidden * (1 if self.tied else 2)
        return self.layers * layer + tables + self.hidden


SHAPES = {
    "llama-3.2-1b": Shape(layers=16, hidden=2048, heads=32, kv_heads=8, head_dim=64, width=8192, vocab=128256, tied=True),
    "llama-3.2-3b": Shape(layers=28, hidden=3072, heads=24, kv_heads=8, head_dim=128, width=8192, vocab=128256, tied=True),
    "llama-3.1-8b": Shape(layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, width=14336, vocab=128256, tied=False),
}
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
FITTED = ("bf16", "fp8", "int8")  # formats that the tables of tools/fit_kernels.py know


@dataclass(frozen=True)
class Stream:
    """A buffer read (summed up), written (filled) or copied."""

    kind: str
    size: int
    format: str = "fp32"
    flops = 0.0

    @property
    def moved(self) -> float:
        """Bytes over the memory bus: of a copy both ways."""
        return self.size * (2.0 if self.kind == "copy" else 1.0)

    @property
    def what(self) -> str:
        """The point in words."""
        return f"{self.kind} {show_bytes(self.size)}"


@dataclass(frozen=True)
class Gemm:
    """A product of (m, k) activations with the (n, k) weights of a layer; results in 16 bit (int8: as PyTorch has it, in 32)."""

    format: str
    m: int
    n: int
    k: int

    @property
    def flops(self) -> float:
        """A multiply-add is 2 FLOP."""
        return 2.0 * self.m * self.n * self.k

    @property
    def moved(self) -> float:
        """Weights and activations at their width, results at 2 bytes, each once."""
        return BYTES[self.format] * (self.n * self.k + self.m * self.k) + 2.0 * self.m * self.n

    @property
    def what(self) -> str:
        """The point in words."""
        return f"m {self.m} n {self.n} k {self.k}"


@dataclass(frozen=True)
class Attention:
    """Scores and values of one layer. Decode: one query per sequence over `tokens` cached. Prefill: causal over `tokens` new ones."""

    phase: str
    format: str
    batch: int
    tokens: int
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def pairs(self) -> float:
        """Attended pairs of query and key."""
        return self.batch * (self.tokens if self.phase == "decode" else self.tokens * (self.tokens + 1) / 2)

    @property
    def flops(self) -> float:
        """Scores and the weighted sum, each 2 FLOP per pair and element."""
        return 4.0 * self.pairs * self.heads * self.head_dim

    @property
    def moved(self) -> float:
        """Keys and values of all tokens once, queries and results."""
        queries = self.batch * (1 if self.phase == "decode" else self.tokens)
        wide = BYTES[self.format]
        return wide * self.head_dim * (2.0 * self.batch * self.tokens * self.kv_heads + 2.0 * queries * self.heads)

    @property
    def what(self) -> str:
        """The point in words."""
        heads = f"heads {self.heads}/{self.kv_heads} of {self.head_dim}"
        return f"{self.phase} batch {self.batch} {'context' if self.phase == 'decode' else 'tokens'} {self.tokens} {heads}"


@dataclass(frozen=True)
class Launch:
    """What a kernel costs that does next to nothing."""

    how: str
    format: str = ""
    flops = 0.0
    moved = 0.0

    @property
    def what(self) -> str:
        """The point in words."""
        return LAUNCHES[self.how]


LAUNCHES = {
    "alone": "a kernel, one launched after the other",
    "in graph": "a kernel of a captured graph of 200",
    "graph": "a captured graph of one kernel, one replayed after the other",
    "round trip": "a kernel launched and waited for",
}


@dataclass(frozen=True)
class AllReduce:
    """A sum over ranks of which each holds `size` bytes."""

    ranks: int
    size: int
    format: str
    flops = 0.0
    moved = 0.0

    @property
    def what(self) -> str:
        """The point in words."""
        return f"{self.ranks} ranks {show_bytes(self.size)}"


@dataclass(frozen=True)
class Pass:
    """One pass of a whole model. Decode: a token per sequence, `tokens` in cache with it. Prefill: prompts of `tokens`."""

    model: str
    phase: str
    format: str
    batch: int
    tokens: int
    eager: bool = False

    @property
    def shape(self) -> Shape:
        """The model's integers."""
        return SHAPES[self.model]

    @property
    def new(self) -> int:
        """New tokens of a sequence."""
        return 1 if self.phase == "decode" else self.tokens

    @property
    def flops(self) -> float:
        """Products over all new tokens, the head over the last of each sequence, attention."""
        s = self.shape
        layer = sum(Gemm(self.format, self.batch * self.new, n, k).flops for name, (n, k) in s.products.items() if name != "head")
        attention = Attention(self.phase, self.format, self.batch, self.tokens, s.heads, s.kv_heads, s.head_dim).flops
        return s.layers * (layer + attention) + Gemm(self.format, self.batch, *s.products["head"]).flops

    @property
    def moved(self) -> float:
        """Weights once, of an untied token table the rows in use, and keys and values of all tokens."""
        s, wide = self.shape, BYTES[self.format]
        table = (0 if s.tied else s.vocab * s.hidden) - self.batch * self.new * s.hidden
        return float(wide * (s.params - table) + self.cache_bytes)

    @property
    def cache_bytes(self) -> int:
        """Keys and values of all sequences."""
        s = self.shape
        return 2 * s.layers * s.kv_heads * s.head_dim * self.batch * self.tokens * BYTES[self.format]

    @property
    def what(self) -> str:
        """The point in words."""
        length = f"{'context' if self.phase == 'decode' else 'tokens'} {self.tokens}"
        return f"{self.model} {self.phase} batch {self.batch} {length}{' eager' if self.eager else ''}"


Point = Stream | Gemm | Attention | Launch | AllReduce | Pass


def show_bytes(count: float) -> str:
    """A size as text: 16 MiB."""
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count:g} B"


@dataclass(frozen=True)
class Section:
    """Points that share a part of the minutes, the most telling first."""

    name: str
    share: float
    points: tuple[Point, ...]


def plan(format: str, *, small: bool, models: Sequence[str], ranks: int, products: Sequence[str] = ("fp8", "int8")) -> list[Section]:
    """All sections, with matrix products in `format` and in `products`. The small set is for processors and for trying the script out."""
    sections = [
        Section("launch", 1, tuple(Launch(how) for how in LAUNCHES)),
        Section("stream", 5, tuple(_streams(small))),
        Section("gemm", 30, tuple(_gemms((format, *products), small))),
        Section("attention", 20, tuple(_attentions(format, small))),
        *(Section(f"model {m}", 40 / len(models), tuple(_passes(m, format, small))) for m in models),
    ]
    if ranks > 1:
        sections.append(Section("all-reduce", 8, tuple(AllReduce(ranks, 4**i, format) for i in (10, 5, 13, 7, 12, 6, 11, 8, 9, 14))))
    return [s for s in sections if s.points]


def _streams(small: bool) -> Iterator[Stream]:
    for size in (256 * MIB, 16 * MIB) if small else (1 * GIB, 64 * MIB, 4 * GIB, 256 * MIB, 16 * MIB, 4 * MIB, MIB):
        for kind in ("read", "copy", "write"):
            yield Stream(kind, size)


def _gemms(formats: Sequence[str], small: bool) -> Iterator[Gemm]:
    """Matrices of layers and a head; PyTorch's int8 product takes no fewer than 17 rows."""
    one, three, eight = (SHAPES[m].products for m in SHAPES)
    matrices = [one["qkv"], one["gate_up"]]
    if not small:
        matrices += [eight["qkv"], eight["o"], eight["gate_up"], eight["down"], three["gate_up"], eight["head"]]
    for m in (1, 64, 8, 512) if small else (1, 8192, 64, 512, 8, 4096, 256, 2048, 16, 1024, 128, 32, 4, 2):
        for n, k in matrices:
            yield from (Gemm(each, m, n, k) for each in formats if each != "int8" or m > 16)


def _attentions(format: str, small: bool) -> Iterator[Attention]:
    names = ("llama-3.2-1b",) if small else ("llama-3.1-8b", "llama-3.2-1b")
    decode = [(1, 2048), (4, 512)] if small else [(b, c) for c in (2048, 8192, 512, 32768, 131072) for b in (1, 32, 8, 128)]
    prefill = [(1, 512), (1, 128)] if small else [(1, 2048), (1, 8192), (1, 512), (1, 32768), (1, 128), (8, 2048), (8, 512), (32, 512)]
    for phase, loads in (("decode", decode), ("prefill", prefill)):
        for batch, tokens in loads:
            for s in (SHAPES[name] for name in names):
                yield Attention(phase, format, batch, tokens, s.heads, s.kv_heads, s.head_dim)


def _passes(model: str, format: str, small: bool) -> Iterator[Pass]:
    if small:
        loads = [("decode", 1, 512), ("prefill", 1, 128), ("decode", 4, 128), ("prefill", 1, 32), ("decode", 1, 128)]
    else:
        loads = [("decode", 1, 2048), ("prefill", 1, 2048), ("decode", 32, 2048), ("prefill", 1, 512), ("decode", 128, 512)]
        loads += [("decode", 8, 8192), ("prefill", 8, 512), ("decode", 1, 512), ("prefill", 1, 8192), ("decode", 8, 2048)]
        loads += [("prefill", 1, 128), ("decode", 128, 2048), ("decode", 32, 8192), ("prefill", 4, 2048), ("decode", 1, 32768)]
        loads += [("decode", 8, 512), ("decode", 1, 8192), ("decode", 32, 512), ("prefill", 32, 128), ("decode", 256, 512)]
        loads += [("decode", 64, 8192)]
    for phase, batch, tokens in loads:
        yield Pass(model, phase, format, batch, tokens)
    if not small:
        yield Pass(model, "decode", format, 1, 512, eager=True)


# ---- samples and the files they go to ----


class Refused(Exception):
    """A point that this device or this PyTorch does not do, with the reason in one line."""


class Dead(Exception):
    """The device no longer answers: nothing more can be measured."""


@dataclass(frozen=True)
class Sample:
    """Seconds of one launch (of a pass: one pass), a figure per repeat."""

    seconds: tuple[float, ...]
    how: str = ""

    @property
    def median(self) -> float:
        """The middle of the repeats."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """The distance between the quartiles over the median; NaN for fewer than three repeats."""
        if len(self.seconds) < 3:
            return math.nan
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / self.median


@dataclass(frozen=True)
class Facts:
    """What the rows say of the machine."""

    gpu: str
    device: str
    measured: str
    torch: str
    runtime: str = ""
    driver: str = ""
    clock_mhz: str = ""
    power_limit_w: str = ""
    total_gib: float | None = None
    collectives: str = ""

    @property
    def source(self) -> str:
        """Where a row comes from."""
        parts = [self.device, f"PyTorch {self.torch}", self.runtime, f"driver {self.driver}" if self.driver else ""]
        return "device_check, " + ", ".join(p for p in parts if p)


CASES = (
    "case", "source", "measured", "model", "gpu", "gpus", "engine", "engine_version", "weights", "kv", "batch", "context", "input_tokens",
    "eager", "quantity", "value", "unit", "spread", "repeats", "total_gib", "device", "runtime", "driver", "clock_mhz", "power_limit_w",
)  # fmt: skip
MEASURED = (
    "section", "what", "format", "how", "seconds", "spread", "repeats", "flops", "bytes", "flops_per_s", "bytes_per_s", "refused",
    "gpu", "measured", "at_s", "device", "torch",
)  # fmt: skip
OPERATORS = {
    "gemm": ("part", "engine", "version", "format", "m", "n", "k", "latency_us", "source"),
    "attention_decode": (
        "part", "engine", "version", "kv", "heads", "kv_heads", "head_dim", "batch", "context", "latency_us", "source",
    ),
    "attention_prefill": (
        "part", "engine", "version", "format", "kv", "heads", "kv_heads", "head_dim", "batch", "tokens", "latency_us", "source",
    ),
    "collectives": ("part", "engine", "version", "kind", "ranks", "bytes", "latency_us", "source"),
}  # fmt: skip
"""Columns as in validation/operators/*.csv."""


def case_row(facts: Facts, point: Pass, sample: Sample) -> dict[str, Any]:
    """The row of a pass in a case file: `tpot_s` of a decode step, `ttft_s` of a prefill. Eager steps are marked, and not predicted."""
    decode = point.phase == "decode"
    return {
        "case": point.what, "source": facts.source, "measured": facts.measured, "model": point.model, "gpu": facts.gpu, "gpus": 1,
        "engine": "pytorch", "engine_version": facts.torch, "weights": point.format, "kv": point.format, "batch": point.batch,
        "context": point.tokens if decode else "", "input_tokens": "" if decode else point.tokens, "eager": "yes" if point.eager else "",
        "quantity": "tpot_s" if decode else "ttft_s", "value": f"{sample.median:.6g}", "unit": "s", "spread": show(sample.spread),
        "repeats": len(sample.seconds), "total_gib": show(facts.total_gib), "device": facts.device, "runtime": facts.runtime,
        "driver": facts.driver, "clock_mhz": facts.clock_mhz, "power_limit_w": facts.power_limit_w,
    }  # fmt: skip


def operator_row(facts: Facts, point: Point, sample: Sample) -> tuple[str, dict[str, Any]] | None:
    """The table of validation/operators that a point belongs to, and its row there; None for what those tables do not hold."""
    row: dict[str, Any] = {"part": facts.gpu, "engine": "pytorch", "version": facts.torch, "source": f"device_check-{facts.measured}"}
    row["latency_us"] = f"{sample.median * 1e6:.5g}"
    if isinstance(point, AllReduce) and facts.collectives.startswith("nccl"):
        name, _, version = facts.collectives.partition(" ")
        return "collectives", row | {"engine": name, "version": version, "kind": "all_reduce", "ranks": point.ranks, "bytes": point.size}
    if isinstance(point, Gemm) and point.format in FITTED:
        return "gemm", row | {"format": point.format, "m": point.m, "n": point.n, "k": point.k}
    if isinstance(point, Attention) and point.format in FITTED:
        row |= {"heads": point.heads, "kv_heads": point.kv_heads, "head_dim": point.head_dim, "batch": point.batch, "kv": point.format}
        if point.phase == "decode":
            return "attention_decode", row | {"context": point.tokens}
        return "attention_prefill", row | {"tokens": point.tokens, "format": point.format}
    return None


def show(number: float | None) -> str:
    """A number in four digits; blank for none."""
    return "" if number is None or math.isnan(number) else f"{number:.4g}"


@dataclass
class Book:
    """The files of a run. Every row is on disk when `add` or `refuse` returns."""

    folder: Path
    facts: Facts
    now: Callable[[], float] = time.monotonic
    found: list[tuple[str, Point, Sample]] = field(default_factory=list)
    refused: int = 0
    _start: float = field(init=False)

    def __post_init__(self) -> None:
        self._start = self.now()

    def add(self, section: str, point: Point, sample: Sample) -> None:
        """A measured point, in every file that holds such points."""
        seconds = sample.median
        self._measured(
            section, point.what, format=point.format, how=sample.how, seconds=f"{seconds:.6g}", spread=show(sample.spread),
            repeats=len(sample.seconds), flops=f"{point.flops:.10g}", bytes=f"{point.moved:.10g}",
            flops_per_s=f"{point.flops / seconds:.4g}", bytes_per_s=f"{point.moved / seconds:.4g}",
        )  # fmt: skip
        if isinstance(point, Pass):
            self._append("cases.csv", CASES, case_row(self.facts, point, sample))
        if (told := operator_row(self.facts, point, sample)) is not None:
            self._append(f"operators/{told[0]}.csv", OPERATORS[told[0]], told[1])
        self.found.append((section, point, sample))

    def refuse(self, section: str, what: str, reason: str, format: str = "") -> None:
        """What was not measured, and why."""
        self._measured(section, what, format=format, refused=one_line(reason))
        self.refused += 1

    def _measured(self, section: str, what: str, **cells: Any) -> None:
        facts = self.facts
        cells |= {"gpu": facts.gpu, "measured": facts.measured, "device": facts.device, "torch": facts.torch}
        self._append("measured.csv", MEASURED, {"section": section, "what": what, "at_s": f"{self.now() - self._start:.1f}", **cells})

    def _append(self, name: str, columns: Sequence[str], row: dict[str, Any]) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        new = not path.exists()
        with path.open("a", newline="", encoding="utf-8") as f:
            writer = csv.DictWriter(f, columns, restval="", lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerow(row)
            f.flush()
            os.fsync(f.fileno())


def one_line(text: str) -> str:
    """An error's first line that says something, cut to what a table holds."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else "no reason given")[:200]


# ---- the run: sections in turn, each within its share of the minutes ----


class Bench(Protocol):
    """What times a point; raises Refused, Dead, or an error of PyTorch."""

    def time(self, point: Point) -> Sample: ...  # noqa: D102
    def alive(self) -> bool: ...  # noqa: D102


def run(sections: Sequence[Section], bench: Bench, book: Book, *, until: float, tell: Callable[[str], None] = lambda _: None) -> None:
    """Measure all sections until the clock of the book says `until`; what a section leaves of its share goes to those after it."""
    for i, section in enumerate(sections):
        weights = sum(s.share for s in sections[i:])
        end = book.now() + max(until - book.now(), 0.0) * section.share / weights
        tell(f"{section.name}: {len(section.points)} points, {max(end - book.now(), 0):.0f} s at most")
        for done, point in enumerate(section.points):
            if book.now() >= end:
                left = len(section.points) - done
                book.refuse(section.name, f"{left} of {len(section.points)} points", "the section's share of the minutes was over")
                break
            measure(bench, book, section.name, point)


def measure(bench: Bench, book: Book, section: str, point: Point) -> None:
    """One point timed, or refused with its reason. Raises Dead where the device no longer answers."""
    try:
        sample = bench.time(point)
    except (Refused, RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError, MemoryError, OSError, EOFError) as e:
        book.refuse(section, point.what, f"{type(e).__name__}: {e}" if not isinstance(e, Refused) else str(e), point.format)
        if not bench.alive():
            raise Dead(one_line(str(e))) from e
        return
    if not all(0 < s < math.inf for s in sample.seconds):
        book.refuse(section, point.what, f"timed {min(sample.seconds):g} s: below what the clock tells", point.format)
        return
    book.add(section, point, sample)


# ---- PyTorch: everything below `Torch` needs it ----


class Torch:
    """Times points on one device of PyTorch: cuda (ROCm too), mps or cpu.

    Launches of one repeat are captured into a graph where the device has graphs. They go over copies of their operands that together
    exceed the cache, and a large buffer is written before each repeat, so that weights and caches come from memory as in a served step.
    Repeats are timed by events of the device, elsewhere by the clock around work that is waited for.
    """

    LEAST, MOST, ENOUGH_S, TOO_LONG_S = 5, 40, 0.15, 10.0
    MOST_LAUNCHES, REPEAT_S, PASSES_S = 64, 1e-3, 2e-2

    def __init__(self, kind: str, seed: int = 0) -> None:
        import torch

        self.torch, self.kind, self.device = torch, kind, torch.device(kind)
        torch.manual_seed(seed)
        self.graphs = kind == "cuda"
        self.side = torch.cuda.Stream() if self.graphs else None
        if kind == "cuda":
            torch.cuda.set_device(0)
            if hasattr(torch.backends.cuda, "enable_cudnn_sdp"):
                torch.backends.cuda.enable_cudnn_sdp(False)  # flash attention where it takes the inputs
        self.cache = self._cache_bytes()
        self.buffer = torch.empty(self._flush_bytes() // 4, dtype=torch.float32, device=self.device)
        gc.collect()
        gc.freeze()  # every capture collects garbage: what PyTorch itself holds need not be looked through each time
        self.model: Llama | None = None
        self.ranks: Ranks | None = None
        self.timers: dict[type, Callable[[Any], Sample]] = {
            Stream: self.stream, Gemm: self.gemm, Attention: self.attention, Launch: self.launch, AllReduce: self.all_reduce,
            Pass: self.a_pass,
        }  # fmt: skip

    # the device

    def _cache_bytes(self) -> int:
        """The last cache, at least 64 MiB: what a property does not tell is taken to be small."""
        properties = self.torch.cuda.get_device_properties(0) if self.kind == "cuda" else None
        return max(int(getattr(properties, "L2_cache_size", 0) or 0), 64 * MIB)

    def _flush_bytes(self) -> int:
        return min(max(4 * self.cache, 512 * MIB), self.total_bytes() // 16)

    def total_bytes(self) -> int:
        """Memory that the device shows to programs."""
        if self.kind == "cuda":
            return int(self.torch.cuda.mem_get_info()[1])
        if self.kind == "mps":
            return int(self.torch.mps.recommended_max_memory())
        return host_bytes("MemTotal")

    def free_bytes(self) -> int:
        """Memory that is left."""
        if self.kind == "cuda":
            self.torch.cuda.empty_cache()
            return int(self.torch.cuda.mem_get_info()[0])
        if self.kind == "mps":
            return self.total_bytes() - int(self.torch.mps.current_allocated_memory())
        return host_bytes("MemAvailable")

    def wait(self) -> None:
        """Until the device has done all it was given."""
        if self.kind != "cpu":
            getattr(self.torch, self.kind).synchronize()

    def alive(self) -> bool:
        """Whether the device still computes; after some errors nothing on it does."""
        self.release()
        try:
            self.torch.ones(1, device=self.device).add_(1)
            self.wait()
        except RuntimeError:
            return False
        return True

    def release(self) -> None:
        """Give memory back that nothing refers to."""
        gc.collect()
        if self.kind != "cpu":
            getattr(self.torch, self.kind).empty_cache()

    def need(self, count: float) -> None:
        """Raise Refused unless so many bytes are free."""
        if count > (free := self.free_bytes()):
            raise Refused(f"needs {show_bytes(count)} of memory, {show_bytes(free)} are free")

    def warm(self, seconds: float = 1.0) -> None:
        """Bring clocks up with matrix products."""
        a = self.torch.randn(1024, 1024, device=self.device)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in range(20):
                a @ a
            self.wait()

    def filled(self, shape: tuple[int, ...], format: str) -> Any:
        """A tensor of normal numbers: constant ones would let the device draw less power and clock higher than in use."""
        torch = self.torch
        if format == "int8":
            return torch.randint(-127, 128, shape, dtype=torch.int8, device=self.device)
        if format == "fp8":
            return torch.randn(shape, dtype=torch.bfloat16, device=self.device).to(self.dtype("fp8"))
        return torch.randn(shape, dtype=self.dtype(format), device=self.device)

    def dtype(self, format: str) -> Any:
        """PyTorch's type of a format; fp8 is e4m3, in AMD's own coding on parts that have only that."""
        torch = self.torch
        if format == "fp8":
            arch = getattr(torch.cuda.get_device_properties(0), "gcnArchName", "") if torch.version.hip else ""
            return torch.float8_e4m3fnuz if arch.startswith("gfx94") else torch.float8_e4m3fn
        return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[format]

    # timing

    def time(self, point: Point) -> Sample:
        """As `Bench` says."""
        if not isinstance(point, Pass):
            self.model = None
        with self.torch.inference_mode():
            return self.timers[type(point)](point)

    def timed(self, launches: Sequence[Callable[[], Any]], *, repeat_s: float = REPEAT_S, cold: bool = True, graph: bool = True) -> Sample:
        """Seconds of one launch; a repeat goes over `launches` in turn until it is long enough to time."""
        once = self.elapsed(launches[0])
        if once > self.TOO_LONG_S:
            raise Refused(f"takes {once:.3g} s at a time")
        once = once if once > 1 else min(self.elapsed(launches[0]) for _ in range(2))
        most = self.MOST_LAUNCHES if self.kind != "cpu" else 1
        count = max(1, min(most, math.ceil(repeat_s / max(once, 1e-7))))

        def repeat() -> None:
            for i in range(count):
                launches[i % len(launches)]()

        body = self.captured(repeat) if graph and self.graphs else repeat
        if body is not repeat:
            body()
        seconds: list[float] = []
        end = time.monotonic() + self.ENOUGH_S
        while len(seconds) < (self.LEAST if once < 0.5 else 3) or (len(seconds) < self.MOST and time.monotonic() < end):
            if cold:
                self.buffer.fill_(len(seconds))
            seconds.append(self.elapsed(body) / count)
        return Sample(tuple(seconds), "graph" if body is not repeat else "one by one")

    def elapsed(self, body: Callable[[], Any]) -> float:
        """Seconds of some work, by events where the device has them."""
        if self.kind == "cuda":
            first, last = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            body()
            last.record()
            last.synchronize()
            return float(first.elapsed_time(last)) * 1e-3
        self.wait()
        start = time.perf_counter()
        body()
        self.wait()
        return time.perf_counter() - start

    def captured(self, body: Callable[[], None]) -> Callable[[], None]:
        """The work as a graph's replay."""
        cuda = self.torch.cuda
        self.side.wait_stream(cuda.current_stream())
        with cuda.stream(self.side):
            body()
        cuda.current_stream().wait_stream(self.side)
        self.wait()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, stream=self.side):
            body()
        return graph.replay

    def copies(self, count: float) -> int:
        """How many copies of so many bytes together exceed the cache several times; one where the buffer alone does."""
        return 1 if self.kind == "cpu" else max(1, min(self.MOST_LAUNCHES, math.ceil(4 * self.cache / max(count, 1.0))))

    # points

    def stream(self, point: Stream) -> Sample:
        """A buffer of fp32 summed up, filled or copied."""
        held = (2 if point.kind == "copy" else 1) * point.size
        copies = self.copies(held)
        self.need(1.1 * copies * held)
        buffers = [self.filled((point.size // 4,), "fp32") for _ in range(copies)]
        if point.kind == "copy":
            targets = [self.torch.empty_like(b) for b in buffers]
            return self.timed([lambda b=b, t=t: t.copy_(b) for b, t in zip(buffers, targets, strict=True)])
        if point.kind == "write":
            return self.timed([lambda b=b: b.fill_(1.0) for b in buffers])
        return self.timed([lambda b=b: b.sum() for b in buffers])

    def gemm(self, point: Gemm) -> Sample:
        """A product as a layer has it: activations times transposed weights."""
        copies = self.copies(BYTES[point.format] * point.n * point.k)
        self.need(1.2 * (copies + 2) * point.moved)
        product = self.product(point.format)
        x, w = self.filled((point.m, point.k), point.format), self.filled((point.n, point.k), point.format)
        weights = [w, *(w.clone() for _ in range(copies - 1))]
        return self.timed([lambda w=w: product(x, w) for w in weights])

    def refusal(self, format: str) -> str:
        """Why the device or this PyTorch does not multiply in a format; blank where it does."""
        try:
            self.product(format)(self.filled((32, 64), format), self.filled((64, 64), format))
            self.wait()
        except (Refused, RuntimeError, NotImplementedError, TypeError, AttributeError) as e:
            return one_line(str(e))
        return ""

    def product(self, format: str) -> Callable[[Any, Any], Any]:
        """The function that multiplies in a format; raises Refused where this PyTorch has none."""
        torch = self.torch
        if format == "int8":
            return lambda x, w: torch._int_mm(x, w.t())
        if format != "fp8":
            return torch.nn.functional.linear  # type: ignore[no-any-return]
        if not hasattr(torch, "_scaled_mm") or self.kind != "cuda":
            raise Refused(f"PyTorch {torch.__version__} has no fast product of 8-bit floats on {self.kind}")
        one, fast = torch.ones((), dtype=torch.float32, device=self.device), not torch.version.hip
        return lambda x, w: torch._scaled_mm(x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=fast)

    def attention(self, point: Attention) -> Sample:
        """Scores and values of one layer, with as many cached keys and values as the point says."""
        b, t, h, g, d = point.batch, point.tokens, point.heads, point.kv_heads, point.head_dim
        copies = self.copies(2 * b * t * g * d * BYTES[point.format])
        self.need(1.1 * copies * point.moved + 64 * MIB)
        new = 1 if point.phase == "decode" else t
        q = self.filled((b, h, new, d), point.format)
        caches = [self.filled((2, b, g, t, d), point.format) for _ in range(copies)]
        return self.timed([lambda c=c: attend(self.torch, q, c[0], c[1]) for c in caches])

    def launch(self, point: Launch) -> Sample:
        """A kernel that adds to one element, launched in four ways."""
        x = self.torch.zeros(1, device=self.device)

        def two_hundred() -> None:
            for _ in range(200):
                x.add_(1)

        def waited() -> None:
            x.add_(1)
            self.wait()

        if point.how == "round trip" or self.kind != "cuda":
            if point.how not in ("round trip", "alone"):
                raise Refused("this device has no graphs")
            body = waited if point.how == "round trip" else two_hundred
            return self.by_clock(body, 1 if point.how == "round trip" else 200)
        if point.how == "graph":
            replay = self.captured(lambda: x.add_(1))
            return self.by_clock(lambda: [replay() for _ in range(200)], 200)
        return self.by_clock(self.captured(two_hundred) if point.how == "in graph" else two_hundred, 200)

    def by_clock(self, body: Callable[[], Any], count: int) -> Sample:
        """Seconds of one of `count` by the host's clock around work that is waited for."""
        seconds = []
        for i in range(self.MOST + 3):
            self.wait()
            start = time.perf_counter()
            body()
            self.wait()
            seconds.append((time.perf_counter() - start) / count)
            if i < 3:
                seconds.clear()
        return Sample(tuple(seconds), "clock")

    def all_reduce(self, point: AllReduce) -> Sample:
        """The slowest rank's seconds, repeat by repeat."""
        if self.ranks is None:
            self.release()
            self.ranks = Ranks(point.ranks, self.kind)
        try:
            return self.ranks.time(point)
        except (Refused, EOFError, OSError):  # ranks that failed or hang answer no more in step: the next point starts new ones
            self.close()
            raise

    def a_pass(self, point: Pass) -> Sample:
        """A whole pass, back to back as a loop of decoding has it; its weights are many times the cache."""
        if self.model is None or self.model.name != point.model:
            self.model = None
            self.need(1.05 * BYTES[point.format] * point.shape.params)
            self.model = Llama(self, point.model, point.format)
        model, s = self.model, point.shape
        self.need(1.05 * point.cache_bytes + 4 * BYTES[point.format] * point.batch * point.new * (2 * s.width + s.qkv))
        caches = [self.filled((2, point.batch, s.kv_heads, point.tokens, s.head_dim), point.format) for _ in range(s.layers)]
        tokens = self.torch.randint(0, s.vocab, (point.batch, point.new), device=self.device)
        model.reach(point.tokens)

        def one() -> None:
            model(tokens, caches, point.tokens - point.new)

        return self.timed([one], repeat_s=self.PASSES_S, cold=False, graph=not point.eager)

    def close(self) -> None:
        """End what was started beside this process."""
        if self.ranks is not None:
            self.ranks.close()
            self.ranks = None


def attend(torch: Any, q: Any, k: Any, v: Any) -> Any:
    """Attention with grouped queries, q (batch, heads, new, dim) over k and v (batch, kv heads, tokens, dim); causal unless one is new.

    One new token: the queries of a group stand as rows beside each other, so that a kernel reads keys and values once.
    """
    batch, heads, new, dim = q.shape
    function = torch.nn.functional.scaled_dot_product_attention
    if new == 1:
        return function(q.reshape(batch, k.shape[1], heads // k.shape[1], dim), k, v).reshape(batch, heads, 1, dim)
    if heads == k.shape[1]:
        return function(q, k, v, is_causal=True)
    return function(q, k, v, is_causal=True, enable_gqa=True)


class Llama:
    """A Llama of random weights as plain PyTorch, over caches of fixed length that the caller holds."""

    def __init__(self, bench: Torch, name: str, format: str) -> None:
        self.name, self.torch, self.shape, self.bench, self.format = name, bench.torch, SHAPES[name], bench, format
        s = self.shape
        self.layers = [{part: self.weights(*s.products[part]) for part in ("qkv", "o", "gate_up", "down")} for _ in range(s.layers)]
        for layer in self.layers:
            layer |= {"attention_norm": self.ones(), "mlp_norm": self.ones()}
        self.table, self.norm = self.weights(s.vocab, s.hidden), self.ones()
        self.head = self.table if s.tied else self.weights(s.vocab, s.hidden)
        self.cos = self.sin = None

    def weights(self, rows: int, columns: int) -> Any:
        """A matrix that keeps the size of what it is applied to."""
        return self.bench.filled((rows, columns), self.format).mul_(columns**-0.5)

    def ones(self) -> Any:
        """The weights of a norm."""
        return self.torch.ones(self.shape.hidden, dtype=self.bench.dtype(self.format), device=self.bench.device)

    @property
    def params(self) -> int:
        """Parameters that are held."""
        held = [w for layer in self.layers for w in layer.values()] + [self.table, self.norm]
        return sum(w.numel() for w in held) + (0 if self.head is self.table else self.head.numel())

    def reach(self, tokens: int) -> None:
        """Angles of so many positions; the sine carries the sign of its half, so that a rotation is two products of a rolled vector."""
        torch, d = self.torch, self.shape.head_dim
        turns = 500000.0 ** (-torch.arange(0, d, 2, device=self.bench.device).float() / d)
        angles = torch.outer(torch.arange(tokens, device=self.bench.device).float(), turns)
        to = self.bench.dtype(self.format)
        self.cos = torch.cat((angles.cos(), angles.cos()), -1).to(to)
        self.sin = torch.cat((-angles.sin(), angles.sin()), -1).to(to)

    def __call__(self, tokens: Any, caches: Sequence[Any], past: int) -> Any:
        """The next token of each sequence, after `tokens` (batch, new) that follow `past` cached ones; writes their keys and values."""
        F = self.torch.nn.functional
        x = F.embedding(tokens, self.table)
        for w, cache in zip(self.layers, caches, strict=True):
            x = x + self.mix(self.normed(x, w["attention_norm"]), w, cache, past)
            gate, up = F.linear(self.normed(x, w["mlp_norm"]), w["gate_up"]).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, w["down"])
        logits = F.linear(self.normed(x[:, -1], self.norm), self.head)
        return self.torch.softmax(logits.float(), -1).argmax(-1)

    def normed(self, x: Any, weight: Any) -> Any:
        """Root mean square norm."""
        return self.torch.nn.functional.rms_norm(x, (self.shape.hidden,), weight, 1e-5)

    def mix(self, x: Any, w: dict[str, Any], cache: Any, past: int) -> Any:
        """One layer's attention."""
        F, s, (batch, new, _) = self.torch.nn.functional, self.shape, x.shape
        qkv = F.linear(x, w["qkv"]).view(batch, new, -1, s.head_dim).transpose(1, 2)
        turned, values = qkv[:, : s.heads + s.kv_heads], qkv[:, s.heads + s.kv_heads :]
        cos, sin = self.cos[past : past + new], self.sin[past : past + new]
        turned = self.torch.addcmul(turned * cos, turned.roll(s.head_dim // 2, -1), sin)
        cache[0, :, :, past : past + new] = turned[:, s.heads :]
        cache[1, :, :, past : past + new] = values
        mixed = attend(self.torch, turned[:, : s.heads], cache[0, :, :, : past + new], cache[1, :, :, : past + new])
        return F.linear(mixed.transpose(1, 2).reshape(batch, new, -1), w["o"])


class Ranks:
    """Processes, one per device, that time all-reduces together: over NCCL (RCCL) on cuda, over Gloo elsewhere."""

    WAIT_S = 90.0

    def __init__(self, count: int, kind: str) -> None:
        import torch.multiprocessing as several

        made = several.get_context("spawn")
        self.meeting = tempfile.TemporaryDirectory(prefix="device-check-")
        self.ends, self.processes = [], []
        for rank in range(count):
            ours, theirs = made.Pipe()
            process = made.Process(target=a_rank, args=(rank, count, kind, f"file://{self.meeting.name}/meet", theirs), daemon=True)
            process.start()
            theirs.close()
            self.ends.append(ours)
            self.processes.append(process)

    def time(self, point: AllReduce) -> Sample:
        """Seconds of one all-reduce: of each repeat the slowest rank's."""
        for end in self.ends:
            end.send((point.size, point.format))
        found = []
        for end in self.ends:
            if not end.poll(self.WAIT_S):
                raise Refused(f"a rank did not answer within {self.WAIT_S:.0f} s")
            told = end.recv()
            if isinstance(told, str):
                raise Refused(told)
            found.append(told)
        return Sample(tuple(max(each) for each in zip(*found, strict=True)), "one by one")

    def close(self) -> None:
        """End the processes."""
        for end in self.ends:
            end.close()
        for process in self.processes:
            process.join(2)
            if process.is_alive():
                process.kill()
                process.join()
        self.meeting.cleanup()


def a_rank(rank: int, count: int, kind: str, meeting: str, end: Any) -> None:
    """One rank: for each size that comes through the pipe, seconds per all-reduce of 20 repeats, or the reason why not."""
    import torch
    import torch.distributed as together

    if kind == "cuda":
        torch.cuda.set_device(rank)
    together.init_process_group("nccl" if kind == "cuda" else "gloo", init_method=meeting, rank=rank, world_size=count)
    types = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    try:
        while True:
            size, format = end.recv()
            try:
                end.send(reduced(torch, together, torch.zeros(max(1, size // BYTES[format]), dtype=types[format], device=kind), kind))
            except RuntimeError as e:
                end.send(one_line(str(e)))
    except (EOFError, OSError):  # the other end is closed: nothing more is asked
        pass


def reduced(torch: Any, together: Any, x: Any, kind: str) -> list[float]:
    """Seconds of one all-reduce, repeat by repeat. The ranks start each repeat together, and agree on how long repeats are."""

    def seconds(launches: int) -> float:
        together.barrier()
        if kind == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(launches):
            together.all_reduce(x)
        if kind == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / launches

    seconds(1)
    slowest = torch.tensor([seconds(2)], device=kind)
    together.all_reduce(slowest, op=together.ReduceOp.MAX)
    once = max(float(slowest), 1e-7)
    launches = max(1, min(50, math.ceil(2e-3 / once)))
    return [seconds(launches) for _ in range(max(3, min(20, int(1.0 / (once * launches)))))]


# ---- what the machine says of itself ----

SMI = ("driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit", "power.draw", "temperature.gpu")


def smi(index: str = "0") -> dict[str, str]:
    """What nvidia-smi prints of a device; nothing where there is none."""
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={','.join(SMI)}", "--format=csv,noheader,nounits", "-i", index],
            capture_output=True, text=True, timeout=20, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return {}
    cells = [c.strip() for c in done.stdout.splitlines()[0].split(",")] if done.stdout.strip() else []
    return {name: c for name, c in zip(SMI, cells, strict=False) if not c.startswith("[")}


def visible_index(torch: Any) -> str:
    """The device as nvidia-smi knows it: by its own identity where PyTorch tells it, else the first one visible."""
    identity = getattr(torch.cuda.get_device_properties(0), "uuid", None)
    if identity is not None:
        return f"GPU-{identity}"
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"


def host_bytes(what: str) -> int:
    """Memory of the host, `MemTotal` or `MemAvailable`; all of it where the system tells only that."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="utf-8")
    except OSError:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = re.search(rf"^{what}:\s*(\d+) kB$", text, re.MULTILINE)
    if found is None:
        raise Refused(f"/proc/meminfo does not tell {what}")
    return int(found[1]) * 1024


def cpu_title() -> str:
    """The processor's name and how many cores are open to the process."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    name = found[1].strip() if found else platform.processor() or platform.machine()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores"


def facts_of(bench: Torch, gpu: str, state: dict[str, str]) -> Facts:
    """What rows say of this machine."""
    torch, kind = bench.torch, bench.kind
    title = torch.cuda.get_device_name(0) if kind == "cuda" else cpu_title() if kind == "cpu" else "Apple GPU"
    runtime = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}" if torch.version.cuda else ""
    today = datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()  # noqa: UP017 - UTC is of Python 3.11
    return Facts(
        gpu=gpu, device=title.replace(",", ""), measured=today, torch=torch.__version__,
        runtime=runtime if kind == "cuda" else "", driver=state.get("driver_version", ""),
        clock_mhz=state.get("clocks.sm", ""), power_limit_w=state.get("power.limit", ""), total_gib=bench.total_bytes() / GIB,
        collectives=library(torch) if kind == "cuda" else "gloo",
    )  # fmt: skip


def library(torch: Any) -> str:
    """The library of collectives and its release; blank where PyTorch was built without one."""
    try:
        release = torch.cuda.nccl.version()
    except (AttributeError, ImportError, RuntimeError):
        return ""
    return f"{'rccl' if torch.version.hip else 'nccl'} {'.'.join(str(n) for n in release)}"


def canonical(gpu: str, catalog: Path = CHECKOUT / "hardware") -> str:
    """The catalog's own name of a part; the text as it is where the script stands alone. Raises SystemExit for a part it does not know."""
    index = catalog / "INDEX.csv"
    wanted = re.sub(r"[\s_/()]+", "-", gpu.strip().lower()).strip("-")
    if not index.is_file():
        return wanted
    with index.open(newline="", encoding="utf-8") as f:
        names = {row["alias"]: row["name"] for row in csv.DictReader(f)}
    names |= {path.stem: path.stem for path in catalog.glob("*/*.yaml")}
    if wanted in names:
        return names[wanted]
    near = difflib.get_close_matches(wanted, names, 3)
    raise SystemExit(fault(f"--gpu: {gpu!r}: is not in the catalog{'; near it: ' + ', '.join(near) if near else ''}"))


# ---- the command ----


def fault(text: str) -> int:
    """Say what is wrong on one line of stderr; the exit code of bad input."""
    print(f"device_check: {text}", file=sys.stderr)
    return 2


def arguments() -> argparse.ArgumentParser:
    """The command's options."""
    made = argparse.ArgumentParser(prog="device_check.py", description=(__doc__ or "").splitlines()[0])
    made.add_argument("--gpu", required=True, help="the accelerator's name in the catalog, such as h200-sxm: what the rows are named by")
    made.add_argument("-o", "--output", required=True, metavar="FOLDER", help="a new or empty folder for the rows")
    made.add_argument("--minutes", type=float, default=5.0, help="for all sections together (5)")
    made.add_argument("--device", choices=("auto", "cuda", "mps", "cpu"), default="auto", help="cuda stands for ROCm too")
    made.add_argument("--dtype", choices=("auto", "bf16", "fp16"), default="auto", help="of models, attention and plain products")
    made.add_argument("--sections", default="", help="only some, with commas: launch,stream,gemm,attention,model,all-reduce")
    made.add_argument("--models", default="", help=f"only these shapes, with commas: {','.join(SHAPES)}")
    made.add_argument("--size", choices=("auto", "small", "full"), default="auto", help="the set of points: full on cuda, else small")
    made.add_argument("--ranks", type=int, default=0, help="ranks of the all-reduces (all visible devices)")
    made.add_argument("--seed", type=int, default=0)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write, say where. Exit codes: 0 done, 1 the device failed, 2 bad input, 130 interrupted."""
    asked = arguments().parse_args(argv)
    start = time.monotonic()
    if not 0.05 <= asked.minutes <= 24 * 60:
        return fault(f"--minutes: {asked.minutes:g}: must lie between 0.05 and 1440")
    gpu, folder, models = canonical(asked.gpu), Path(asked.output), named(asked.models) or list(SHAPES)
    if unknown := [m for m in models if m not in SHAPES]:
        return fault(f"--models: {unknown[0]}: is none of {', '.join(SHAPES)}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        return fault(f"-o: {folder}: must be a new or empty folder, so that rows of two runs do not mix")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        return fault(f"-o: {folder}: cannot be made: {e.strerror}")
    try:
        import torch
    except ImportError as e:
        return fault(f"needs PyTorch, which is not there: {one_line(str(e))}")
    kind = chosen_device(torch, asked.device)
    if kind is None:
        return fault(f"--device: {asked.device}: PyTorch {torch.__version__} sees none")
    small = asked.size == "small" or (asked.size == "auto" and kind != "cuda")
    if small and not asked.models:
        models = models[:1]
    ranks = asked.ranks or (torch.cuda.device_count() if kind == "cuda" else 1)
    if kind == "cuda" and ranks > torch.cuda.device_count():
        return fault(f"--ranks: {ranks}: only {torch.cuda.device_count()} devices are visible")
    format = asked.dtype if asked.dtype != "auto" else half(torch, kind)
    bench = Torch(kind, asked.seed)
    refused = {name: why for name in ("fp8", "int8") if (why := bench.refusal(name))}
    sections = plan(format, small=small, models=models, ranks=ranks, products=[p for p in ("fp8", "int8") if p not in refused])
    wanted, there = named(asked.sections), [s.name for s in sections]
    if unknown := [w for w in wanted if not any(name.startswith(w) for name in there)]:
        return fault(f"--sections: {unknown[0]}: is none of {', '.join(there)}")
    sections = [s for s in sections if not wanted or any(s.name.startswith(w) for w in wanted)]
    # 57 s of a minute: the last point of a section may run over
    return carried_out(bench, gpu, folder, sections, refused, until=start + 57 * asked.minutes)


def named(text: str) -> list[str]:
    """A list with commas."""
    return [t.strip() for t in text.split(",") if t.strip()]


def chosen_device(torch: Any, asked: str) -> str | None:
    """The kind of device to run on, None where what was asked for is not there."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    return next((k for k, found in there.items() if found and asked in (k, "auto")), None)


def half(torch: Any, kind: str) -> str:
    """bf16 where the device multiplies in it, else fp16."""
    if kind != "cuda" or torch.version.hip or torch.cuda.get_device_capability(0)[0] >= 8:
        return "bf16"
    return "fp16"


def carried_out(
    bench: Torch, gpu: str, folder: Path, sections: Sequence[Section], refused: dict[str, str], *, until: float
) -> int:  # fmt: skip
    """The run with its facts, its summary and its exit code."""
    bench.warm()
    index = visible_index(bench.torch) if bench.kind == "cuda" else ""
    states = [smi(index) if index else {}]
    facts = facts_of(bench, gpu, states[0])
    book, code = Book(folder, facts), 0

    def tell(text: str) -> None:
        states.append(smi(index) if index else {})
        write_facts(folder, bench, facts, states)
        print(text, file=sys.stderr, flush=True)

    try:
        if any(s.name == "gemm" for s in sections):
            for format, why in refused.items():
                book.refuse("gemm", "all products", why, format)
        run(sections, bench, book, until=until, tell=tell)
        tell("done")
    except KeyboardInterrupt:
        print("interrupted: what is measured is written", file=sys.stderr)
        code = INTERRUPTED
    except Dead as e:
        print(f"device_check: the device no longer answers: {e}", file=sys.stderr)
        code = 1
    except OSError as e:
        code = fault(f"-o: {folder}: cannot be written: {one_line(str(e))}")
    finally:
        bench.close()
    print(summary(book))
    return code


def write_facts(folder: Path, bench: Torch, facts: Facts, states: Sequence[dict[str, str]]) -> None:
    """device.json: the machine, and what nvidia-smi said before each section."""
    count = bench.torch.cuda.device_count() if bench.kind == "cuda" else 1
    told = {**facts.__dict__, "devices": count, "cache_bytes": bench.cache, "states": list(states), "python": sys.version.split()[0]}
    beside = folder / "device.json.part"
    beside.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    beside.replace(folder / "device.json")


def summary(book: Book) -> str:
    """The best of each kind, how many rows there are, and what to do with them."""
    lines = [f"{book.facts.device} ({book.facts.gpu}), PyTorch {book.facts.torch}: {len(book.found)} points, {book.refused} refused"]
    lines += [f"  {text}" for text in highlights(book.found)]
    uses = {"measured.csv": "", "cases.csv": " for 'inferplan validate'", "operators": " for tools/fit_kernels.py"}
    there = [f"{name}{use}" for name, use in uses.items() if (book.folder / name).exists()]
    lines.append(f"rows in {book.folder}: {', '.join(there) or 'none'}")
    return "\n".join(lines)


def highlights(found: Sequence[tuple[str, Point, Sample]]) -> Iterator[str]:
    """A line for the best stream, the best product of each format, launches and passes."""
    streams = [(p.moved / s.median, p) for _, p, s in found if isinstance(p, Stream)]
    for kind in dict.fromkeys(p.kind for _, p in streams):
        rate, best = max(((r, p) for r, p in streams if p.kind == kind), key=lambda each: each[0])
        yield f"{best.what}: {rate / 1e9:,.4g} GB/s"
    products = [(p.flops / s.median, p) for _, p, s in found if isinstance(p, Gemm)]
    for format in dict.fromkeys(p.format for _, p in products):
        rate, most = max(((r, p) for r, p in products if p.format == format), key=lambda each: each[0])
        yield f"product in {format}, {most.what}: {rate / 1e12:,.4g} TFLOP/s"
    for _, p, s in found:
        if isinstance(p, Launch):
            yield f"{p.what}: {s.median * 1e6:.3g} us"
        if isinstance(p, Pass):
            yield f"{p.what}: {s.median * 1e3:.4g} ms, {p.moved / s.median / 1e9:,.4g} GB/s, {p.flops / s.median / 1e12:,.4g} TFLOP/s"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
