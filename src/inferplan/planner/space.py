"""What a sweep covers: axes of models, parts, formats, splits and loads, and what stays the same. Knows no time and no byte.

Points are numbered: cases (one deployment each) in the order of the axes, the last axis fastest, and in a case pairs of lengths
within batches. So a piece of a sweep is a range of numbers, and any machine can do it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import compress, product
from math import isfinite, prod
from typing import Annotated, Any, Self

import numpy as np
from pydantic import BeforeValidator, model_validator

from inferplan import __version__
from inferplan.deployment import MAX_BATCH, MAX_TOKENS, price
from inferplan.errors import SpecError
from inferplan.planner import axes
from inferplan.planner.points import Case, Fixed
from inferplan.readers.opening import open_model
from inferplan.roofline.efficiency import Efficiency
from inferplan.specs.base import Spec
from inferplan.specs.engine import Engine
from inferplan.specs.hardware import Accelerator
from inferplan.specs.model import Model
from inferplan.specs.parallel import Parallel
from inferplan.specs.precision import Precision
from inferplan.specs.quantity import refusal

MAX_POINTS, MAX_CASES = 10**9, 10**6
WAYS = ("tp", "pp", "dp", "ep", "dcp", "cp")
NAMED = ("model", "hardware", "precision", "kv_format", "engine")
LOADS = ("batch", "input_tokens", "output_tokens")
MAX_WAYS = 4096


def _within(check: Callable[[Any], Any]) -> BeforeValidator:
    """A validator whose SpecError keeps its place in the file."""

    def checked(raw: Any) -> Any:
        try:
            return check(raw)
        except SpecError as e:
            raise refusal(e) from None

    return BeforeValidator(checked)


def _counts(most: int) -> BeforeValidator:
    return _within(lambda raw: axes.numbers(raw, 1, most))


def _bounded(low: float, high: float) -> BeforeValidator:
    def check(raw: Any) -> Any:
        if raw is not None and (isinstance(raw, bool) or not isinstance(raw, (int, float)) or not (isfinite(raw) and low <= raw <= high)):
            raise SpecError(f"must be a number from {low:g} to {high:g}", value=raw)
        return raw if raw is None else float(raw)

    return _within(check)


def _whole(low: int, high: int) -> BeforeValidator:
    def check(raw: Any) -> Any:
        if raw is not None and (isinstance(raw, bool) or not isinstance(raw, int) or not low <= raw <= high):
            raise SpecError(f"must be a whole number from {low:,} to {high:,}", value=raw)
        return raw

    return _within(check)


Names = Annotated[tuple[str, ...], _within(axes.names)]
Ways = Annotated[tuple[int, ...], _counts(MAX_WAYS)]
Tokens = Annotated[tuple[int, ...], _counts(MAX_TOKENS)]
Limit = Annotated[int | None, _whole(1, MAX_TOKENS)]


class Space(Spec):
    """The grid of a sweep.

    model, hardware, precision, kv_format, engine
        names as on the command line; `auto` is the format that a checkpoint comes in, and for the cache what the precision says. An
        engine may name its release: `vllm@0.11.0`.
    tp, pp, dp, ep, dcp, cp, batch, input_tokens, output_tokens
        whole numbers and ranges, see `axes.numbers`.
    gpus
        numbers of devices: only splits that take so many are kept; unsaid, all.
    max_points
        the most points that this grid may have.

    >>> space = Space.from_mapping({"model": "7b", "hardware": ["h100", "a100"], "tp": "1,2", "batch": "1..64x2"})
    >>> space.cases, space.points
    (4, 28)
    """

    model: Names
    hardware: Names
    precision: Names = ("auto",)
    kv_format: Names = ("auto",)
    engine: Names = ("vllm",)
    tp: Ways = (1,)
    pp: Ways = (1,)
    dp: Ways = (1,)
    ep: Ways = (1,)
    dcp: Ways = (1,)
    cp: Ways = (1,)
    gpus: Annotated[tuple[int, ...], _counts(10**6)] | None = None
    batch: Annotated[tuple[int, ...], _counts(MAX_BATCH)] = (1,)
    input_tokens: Tokens = (1024,)
    output_tokens: Tokens = (256,)
    cached_tokens: Annotated[int, _whole(0, MAX_TOKENS)] = 0
    efficiency: str = "default"
    network: str | None = None
    utilization: Annotated[float | None, _bounded(0.01, 1)] = None
    max_model_len: Limit = None
    max_num_seqs: Limit = None
    max_num_batched_tokens: Limit = None
    overlap: Annotated[float, _bounded(0, 1)] = 0.0
    usd_per_gpu_h: Annotated[float | None, _bounded(0, 1e6)] = None
    max_points: Annotated[int, _whole(1, 10**12)] = MAX_POINTS

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.cached_tokens >= self.input_tokens[0]:
            rule = f"must be below the shortest input, {self.input_tokens[0]:,}"
            raise refusal(SpecError(rule, field="cached_tokens", value=self.cached_tokens))
        ways = prod(len(getattr(self, way)) for way in WAYS)
        if ways > MAX_CASES:
            raise refusal(SpecError(f"make {ways:,} splits, where a grid may have {MAX_CASES:,}", field="x".join(WAYS)))
        if not self.splits:
            raise refusal(SpecError("no split takes so many devices; name others, or more tp, pp, dp, cp", field="gpus"))
        self._check_size()
        return self

    def _check_size(self) -> None:
        """Raises for a grid larger than it may be, with the size that it would have."""
        sizes = ", ".join(f"{len(getattr(self, n)):,} {n}" for n in (*NAMED, *LOADS) if len(getattr(self, n)) > 1)
        made = f"{sizes}, {len(self.splits):,} splits"
        if self.cases > MAX_CASES:
            rule = f"would be evaluated one by one ({made}), where a grid may have {MAX_CASES:,}; leave out values, or sweep in parts"
            raise refusal(SpecError(rule, field="deployments", value=f"{self.cases:,}"))
        if self.points > self.max_points:
            rule = f"are more than the {self.max_points:,} that this grid may have ({made}); leave out values, or raise max_points"
            raise refusal(SpecError(rule, field="points", value=f"{self.points:,}"))

    @property
    def splits(self) -> tuple[tuple[int, ...], ...]:
        """Splits (tp, pp, dp, ep, dcp, cp) that are kept."""
        return _splits(tuple(getattr(self, way) for way in WAYS), self.gpus)

    @property
    def cases(self) -> int:
        """Deployments: all that is not load."""
        return prod(len(getattr(self, name)) for name in NAMED) * len(self.splits)

    @property
    def pairs(self) -> int:
        """Pairs of input and output tokens."""
        return len(self.input_tokens) * len(self.output_tokens)

    @property
    def points(self) -> int:
        """Points in all."""
        return self.cases * len(self.batch) * self.pairs

    @property
    def fixed(self) -> Fixed:
        """What is the same for all points."""
        return Fixed(
            self.cached_tokens, self.efficiency, self.network, self.utilization, self.max_model_len, self.max_num_seqs,
            self.max_num_batched_tokens, self.overlap,
        )  # fmt: skip

    def case(self, number: int) -> Case:
        """The deployment of that number, from 0; raises the errors of names that mean nothing."""
        *names, split = _at(number, [len(getattr(self, name)) for name in NAMED] + [len(self.splits)])
        model, hardware, precision, kv, engine = (getattr(self, n)[i] for n, i in zip(NAMED, names, strict=True))
        part, usd_per_h = _part(hardware)
        return Case(
            _model(model), part, _precision(model, precision, kv, engine), _engine(engine), Parallel(*self.splits[split]), self.fixed,
            usd_per_h if self.usd_per_gpu_h is None else self.usd_per_gpu_h,
        )  # fmt: skip

    def named(self) -> Iterator[tuple[str, str, str]]:
        """Each name of each axis, and the catalog name it means: (axis, name, meaning); raises for one that means nothing."""
        for text in self.model:
            yield "model", text, _model(text).name
        for text in self.hardware:
            yield "hardware", text, _part(text)[0].name
        for text in self.engine:
            yield "engine", text, f"{_engine(text).name}@{_engine(text).version}"
        for model, text, kv in product(self.model, self.precision, self.kv_format):
            found = _precision(model, text, kv, self.engine[0])
            yield "precision of " + model, f"{text}, {kv}", f"{found.name}, {found.kv.name}"

    def resolved(self) -> Self:
        """The same, once every name means something and no two of an axis mean the same; raises SpecError or NotFound."""
        seen: dict[tuple[str, str], str] = {}
        for axis, text, meaning in self.named():
            other = seen.setdefault((axis, meaning), text)
            if other != text:
                raise SpecError(f"means the same as '{other}', {meaning}: every row would stand twice", field=axis, value=text)
        Efficiency.load(self.efficiency)
        return self

    def digest(self) -> str:
        """A fingerprint of all that rows depend on: the grid, what its names mean here, the calibration, the version."""
        return _digest(self)

    def loads(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Batches (b,), and input and output tokens of each pair (p,)."""
        inputs, outputs = np.array(self.input_tokens, dtype=float), np.array(self.output_tokens, dtype=float)
        return np.array(self.batch, dtype=float), np.repeat(inputs, len(outputs)), np.tile(outputs, len(inputs))


@lru_cache(maxsize=8)
def _splits(ways: tuple[tuple[int, ...], ...], gpus: tuple[int, ...] | None) -> tuple[tuple[int, ...], ...]:
    every = tuple(product(*ways))
    return every if gpus is None else tuple(compress(every, np.isin(Parallel(*np.array(every).T).gpus, gpus)))


def _at(number: int, sizes: list[int]) -> list[int]:
    """A number's places along axes of these sizes, the last one fastest."""
    places = []
    for size in reversed(sizes):
        number, place = divmod(number, size)
        places.append(place)
    return places[::-1]


@lru_cache(maxsize=256)
def _opened(text: str) -> tuple[Model, str]:
    opened = open_model(text)
    return opened.model, opened.precision or opened.model.dtype


def _model(text: str) -> Model:
    return _opened(text)[0]


@lru_cache(maxsize=256)
def _part(text: str) -> tuple[Accelerator, float]:
    """A part with its listed price, NaN where there is none."""
    found = Accelerator.find(text)
    listed = price(found)
    return found, np.nan if listed is None or listed.usd_per_h is None else float(listed.usd_per_h)


@lru_cache(maxsize=64)
def _engine(text: str) -> Engine:
    name, _, version = text.partition("@")
    return Engine.find(name, version or None)


@lru_cache(maxsize=1024)
def _precision(model: str, text: str, kv: str, engine: str) -> Precision:
    """The precision that a text means; `auto` is what the checkpoint comes in, where engines load fp32 as 16-bit."""
    if text == "auto":
        stored = _opened(model)[1]
        text = "bf16" if stored == "fp32" and _engine(engine).name != "ideal" else stored
    return Precision.named(text, None if kv == "auto" else kv)


@lru_cache(maxsize=8)
def _digest(space: Space) -> str:
    specs: list[Any] = [_model(name) for name in space.model] + [_part(name)[0] for name in space.hardware]
    specs += [_engine(name) for name in space.engine] + [Efficiency.load(space.efficiency)]
    specs += [_precision(m, p, k, e) for m, p, k, e in product(space.model, space.precision, space.kv_format, space.engine)]
    prices = [_part(name)[1] for name in space.hardware]
    texts = [__version__, json.dumps(space.model_dump(exclude={"max_points"}), sort_keys=True), repr(prices)]
    return hashlib.sha256("\n".join([*texts, *(spec.model_dump_json() for spec in specs)]).encode()).hexdigest()[:32]
