"""Step times made beforehand: a linear law, a table from the engine's passes, or a user's table. Knows no scheduler and no request.

A pass is a sum of operators of four kinds: those over all new tokens, those over rows that need the head, attention of decodes and
attention of prompts. So a table needs no four axes: one of tokens, one of rows, one of decodes and their context, one of prompt tokens
and the tokens that they attend to. Bytes and FLOPs of attention are products of two axes, which linear interpolation gives exactly.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inferplan.engine.segment import Segment
from inferplan.engine.step import Setting, Step, step
from inferplan.errors import SpecError, Unsupported
from inferplan.specs.hardware import Accelerator
from inferplan.specs.model import Model
from inferplan.specs.precision import Precision

Floats = NDArray[np.float64]
ENDLESS = 1 << 60
CORES = frozenset({"attention_decode", "attention_prefill", "indexer", "recurrence"})
"""Kinds of operators that look at one sequence at a time."""


class Steps(Protocol):
    """Seconds of a step, as the loop asks for them."""

    def decode(self, n: int, held: float) -> tuple[float, float, int]:
        """A step of `n` decodes that hold `held` tokens before it: seconds, seconds more per further step, steps for which this holds."""
        ...

    def mixed(self, n: int, held: float, chunk: int, pairs: float, prompts: int) -> float:
        """A step of `n` decodes and `chunk` prompt tokens of `prompts` prompts, which attend to `pairs` tokens in all; n may be 0."""
        ...


@dataclass(frozen=True, slots=True)
class LinearSteps:
    """A step takes `base_s`, and so much more per decode, per token that decodes attend to, per prompt token and per pair of them.

    >>> LinearSteps(0.01, 0.0005).decode(10, 5000)[0]
    0.015
    """

    base_s: float
    per_decode_s: float = 0.0
    per_context_token_s: float = 0.0
    per_prompt_token_s: float = 0.0
    per_prompt_pair_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("base_s", "per_decode_s", "per_context_token_s", "per_prompt_token_s", "per_prompt_pair_s"):
            value = getattr(self, name)
            if not 0 <= value < 1e6:
                raise SpecError("must be a number of seconds from 0", field=name, value=value)

    def decode(self, n: int, held: float) -> tuple[float, float, int]:
        """As `Steps` says."""
        each = self.per_context_token_s
        return self.base_s + self.per_decode_s * n + each * (held + n), each * n, ENDLESS

    def mixed(self, n: int, held: float, chunk: int, pairs: float, prompts: int) -> float:
        """As `Steps` says."""
        decodes = self.base_s + self.per_decode_s * n + self.per_context_token_s * (held + n)
        return decodes + self.per_prompt_token_s * chunk + self.per_prompt_pair_s * pairs


@dataclass(frozen=True, slots=True)
class Curve:
    """A function of one number, linear between points and beyond the last two."""

    x: list[float]
    y: list[float]

    def at(self, x: float) -> float:
        """Its value."""
        xs, ys = self.x, self.y
        if len(xs) == 1:
            return ys[0]
        i = below(xs, x)
        return ys[i] + (ys[i + 1] - ys[i]) * (x - xs[i]) / (xs[i + 1] - xs[i])


@dataclass(frozen=True, slots=True)
class Surface:
    """A function of two numbers, linear in each between the points of a grid and beyond its last two; a row of `z` per value of `x`."""

    x: list[float]
    y: list[float]
    z: list[list[float]]

    def row(self, x: float) -> Curve:
        """The curve in the second number at a value of the first."""
        xs = self.x
        if len(xs) == 1:
            return Curve(self.y, self.z[0])
        i = below(xs, x)
        share = (x - xs[i]) / (xs[i + 1] - xs[i])
        return Curve(self.y, [a + (b - a) * share for a, b in zip(self.z[i], self.z[i + 1], strict=True)])

    def at(self, x: float, y: float) -> float:
        """Its value, four points around it."""
        xs, ys = self.x, self.y
        if len(xs) == 1 or len(ys) == 1:
            return self.row(x).at(y)
        i, j = below(xs, x), below(ys, y)
        low, high = self.z[i], self.z[i + 1]
        share, step, width = (x - xs[i]) / (xs[i + 1] - xs[i]), y - ys[j], ys[j + 1] - ys[j]
        before, after = low[j] + (low[j + 1] - low[j]) * step / width, high[j] + (high[j + 1] - high[j]) * step / width
        return before * (1 - share) + after * share


def below(points: list[float], x: float) -> int:
    """The place of the point at or below `x`, never that of the last one: a line through it and the next is what `x` lies on."""
    return bisect_right(points, x, 1, len(points) - 1) - 1


def curve(x: Floats, y: ArrayLike) -> Curve:
    """A curve through points."""
    return Curve(x.tolist(), np.broadcast_to(np.asarray(y, dtype=float), x.shape).tolist())


def surface(x: Floats, y: Floats, z: ArrayLike) -> Surface:
    """A surface through a grid of shape (x, y)."""
    return Surface(x.tolist(), y.tolist(), np.broadcast_to(np.asarray(z, dtype=float), (x.size, y.size)).tolist())


@dataclass(slots=True)
class TableSteps:
    """Step times of a deployment from four tables.

    tokens
        what is done once per new token, weights read and layers launched included.
    rows
        head, sampling and what the engine adds per sequence.
    decodes, prompts
        attention: of decodes by their number and mean context, of prompts by tokens and tokens attended to per token.
    new
        tokens that a decode computes: 1, or 1 + draft.
    graphs
        batch sizes that captured graphs exist for: a step of decodes alone runs at the next larger one.
    beside_s
        seconds of each step beside the table's, such as a draft model's.
    twice_s
        seconds of kernels that both attention tables count, though a step of both kinds launches them once.
    """

    tokens: Curve
    rows: Curve
    decodes: Surface
    prompts: Surface
    new: int = 1
    graphs: tuple[int, ...] = ()
    beside_s: float = 0.0
    twice_s: float = 0.0
    known: dict[int, tuple[float, Curve]] = field(default_factory=dict)

    def decode(self, n: int, held: float) -> tuple[float, float, int]:
        """As `Steps` says; it holds up to the next context of the table."""
        found = self.known.get(n)
        if found is None:
            found = self.known[n] = self._batch(n)
        fixed, contexts = found
        xs, ys = contexts.x, contexts.y
        context = held / n + 1
        i = below(xs, context)
        more = (ys[i + 1] - ys[i]) / (xs[i + 1] - xs[i])
        valid = ENDLESS if i == len(xs) - 2 else int(xs[i + 1] - context) + 1
        return fixed + ys[i] + more * (context - xs[i]), more, valid

    def _batch(self, n: int) -> tuple[float, Curve]:
        """What does not depend on the context of `n` decodes, and what does."""
        padded = next((size for size in self.graphs if size >= n), n)
        return self.tokens.at(padded * self.new) + self.rows.at(padded) + self.beside_s, self.decodes.row(n)

    def mixed(self, n: int, held: float, chunk: int, pairs: float, prompts: int) -> float:
        """As `Steps` says."""
        fixed = self.tokens.at(n * self.new + chunk) + self.rows.at(n + prompts) + self.prompts.at(chunk, pairs / chunk)
        if not n:
            return fixed
        found = self.known.get(n)
        if found is None:
            found = self.known[n] = self._batch(n)
        return fixed + found[1].at(held / n + 1) + self.beside_s - self.twice_s


def table_steps(
    model: Model, hardware: Accelerator, precision: Precision, setting: Setting, *, most_decodes: int, most_context: int,
    most_tokens: int, draft: int = 0, graphs: tuple[int, ...] = (), beside_s: float = 0.0,
) -> TableSteps:  # fmt: skip
    """The tables of a deployment, from four calls of `engine.step` over grids.

    most_decodes, most_context, most_tokens
        decodes at once, tokens of one request, and new tokens of one step that the grids reach to.
    draft
        guesses that a decode step verifies.

    Raises Unsupported for a model that writes no tokens.
    """
    if not model.generates:
        raise Unsupported(f"{model.title} writes no tokens: its requests take one pass, see 'inferplan estimate'")

    def passed(*segments: Segment) -> Step:
        return step(model, hardware, precision, *segments, setting=setting)

    new = draft + 1
    tokens = _spread(most_tokens + most_decodes * new, 512, 160)
    flat = passed(Segment(tokens, 1, 1))
    rows = _spread(most_decodes + 64, 64, 48)
    n, contexts = _spread(most_decodes, 8, 32), np.unique(np.append(_spread(most_context, 1, 40), most_context))
    alone = passed(Segment(n[:, None], new, np.maximum(contexts - 1, 0), logits=new))
    chunk, reach = _spread(most_tokens, 1, 40), _spread(most_context, 1, 40)
    return TableSteps(
        tokens=curve(tokens, _seconds(flat, weights=True)),
        rows=curve(rows, _row_seconds(passed(Segment(rows, new, 1, logits=new)))),
        decodes=surface(n, contexts, _seconds(alone, weights=False)),
        prompts=surface(chunk, reach, _seconds(passed(_prompts(chunk[:, None], reach)), weights=False)),
        new=new, graphs=graphs, beside_s=beside_s,
        twice_s=sum(float(np.max(one.op_s(op))) for one in (passed(Segment(1, 1, 0)),) for op in one.ops if op.kind == "recurrence"),
    )  # fmt: skip


def _spread(most: float, dense: int, points: int) -> Floats:
    """Whole numbers from 1 up to `most`: all up to `dense`, then so many in equal ratios."""
    far = np.geomspace(dense, max(most, dense + 1), points)
    found: Floats = np.unique(np.round(np.concatenate([np.arange(1, dense + 1), far]))).astype(float)
    return found


def _prompts(chunk: Floats, reach: Floats) -> Segment:
    """Prompts of `chunk` tokens in all whose tokens attend to `reach` on the mean: one with a past, or several without, of equal length."""
    alone = reach >= (chunk + 1) / 2
    each = np.where(alone, chunk, 2 * reach - 1)
    return Segment(chunk / each, each, np.where(alone, reach - (chunk + 1) / 2, 0.0))


def _is_row(op: Any) -> bool:
    return op.kind == "head" or op.name in ("head", "sampling")


def _seconds(found: Step, *, weights: bool) -> Floats:
    """Seconds of operators over all tokens, with exchanges, layers' overhead; or of those that look at one sequence at a time."""
    ops = [op for op in found.ops if (op.kind not in CORES) == weights and not (weights and _is_row(op))]
    total: Any = sum((found.op_s(op) + found.wire_s(op) for op in ops), np.zeros(1))
    if weights:  # what devices wait for the host is taken before attention, which hides a little of it
        total = total + found.waited_s(total) + found.added_s(0)
    return np.asarray(total, dtype=float)


def _row_seconds(found: Step) -> Floats:
    """Seconds of the head and of what the engine adds per sequence."""
    total: Any = sum((found.op_s(op) + found.wire_s(op) for op in found.ops if _is_row(op)), np.zeros(1))
    return np.asarray(total + found.added_s(found.sequences) - found.added_s(0), dtype=float)


def linear_steps(table: TableSteps, *, decodes: int = 64, context: int = 1024, chunk: int = 1024) -> LinearSteps:
    """The linear law that passes through a table at a middle load: slopes from its differences there."""
    base, each = table.decode(1, 0)[0], table.decode(decodes, 0)[0]
    per_decode = (each - base) / (decodes - 1) if decodes > 1 else 0.0
    full = table.decode(decodes, decodes * context)[0]
    per_context = (full - each) / (decodes * context)
    short = table.mixed(0, 0, chunk, chunk * (chunk + 1) / 2, 1)
    long = table.mixed(0, 0, chunk, chunk * (context + (chunk + 1) / 2), 1)
    per_pair = max(0.0, (long - short) / (chunk * context))
    per_token = max(0.0, (short - base - per_pair * chunk * (chunk + 1) / 2) / chunk)
    return LinearSteps(max(0.0, base - per_decode), max(0.0, per_decode), max(0.0, per_context), per_token, per_pair)


@dataclass(slots=True)
class FileSteps:
    """Step times of a user's own measurements: decode steps by batch and context, prompts by tokens and tokens before them.

    A step of both kinds takes the decodes' time and the prompts' time less `floor_s`, the least decode step: weights are read once.
    """

    decodes: Surface
    prompts: Surface
    floor_s: float

    def decode(self, n: int, held: float) -> tuple[float, float, int]:
        """As `Steps` says; contexts are looked up for each step."""
        now, then = self.decodes.at(n, held / n + 1), self.decodes.at(n, held / n + 2)
        return now, then - now, 16

    def mixed(self, n: int, held: float, chunk: int, pairs: float, prompts: int) -> float:
        """As `Steps` says."""
        alone = self.prompts.at(chunk, max(0.0, pairs / chunk - (chunk + 1) / 2))
        return alone if not n else self.decodes.at(n, held / n + 1) + max(0.0, alone - self.floor_s)


def file_steps(path: str) -> FileSteps:
    """Step times of a CSV file with the columns batch, context, chunk, past, time_s.

    Rows with batch 0 are prompts of `chunk` tokens after `past` ones, rows with chunk 0 are steps of `batch` decodes at a context; each
    kind must fill a grid. Raises SpecError naming what is missing.
    """
    from inferplan.serving.traces import read_columns

    names = ("batch", "context", "chunk", "past", "time_s")
    rows = read_columns(path, names)
    if not np.all(rows["time_s"] > 0):
        raise SpecError("must be above 0", file=path, field="time_s", value=float(rows["time_s"].min()))
    decoding = rows["chunk"] == 0
    if np.any(decoding == (rows["batch"] == 0)):
        raise SpecError("each row must have either a batch or a chunk above 0", file=path)
    decodes = _grid(path, rows, decoding, "batch", "context")
    return FileSteps(decodes, _grid(path, rows, ~decoding, "chunk", "past"), min(map(min, decodes.z)))


def _grid(path: str, rows: dict[str, Floats], kept: NDArray[np.bool_], first: str, second: str) -> Surface:
    x, y, z = (rows[name][kept] for name in (first, second, "time_s"))
    xs, ys = np.unique(x), np.unique(y)
    if not xs.size or x.size != xs.size * ys.size or len(set(zip(x.tolist(), y.tolist(), strict=True))) != x.size:
        raise SpecError(f"rows must give each pair of {first} and {second} once", file=path, field=first, value=f"{x.size} rows")
    order = np.lexsort((y, x))
    return surface(xs, ys, z[order].reshape(xs.size, ys.size))
