"""Formats of weights and cache compared on one deployment: bytes, speed, room, and from which batch one stops paying. Knows no screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from inferplan.deployment import MOST_SHOWN, Batches, Estimate, batches, in_flight, usd_per_million_tokens
from inferplan.engine.step import decode
from inferplan.errors import SpecError, Unsupported
from inferplan.quantization.quality import Quality, published
from inferplan.quantization.stored import Cached, Stored, cached, stored
from inferplan.quantization.support import own_cache, refusal
from inferplan.specs.precision import Format, Precision

BASE = "bf16"
EIGHT_BIT = "fp8"
FEW = (1, 8)  # batches that stand before the most at once
SWEEP = 2.0 ** np.arange(0, 12.01, 0.25)  # batches among which a crossing is looked for, up to 4,096
MOST_FORMATS = 32
Run = Callable[[str, str], Estimate]


@dataclass(frozen=True, slots=True, eq=False)
class Option:
    """One format of weights with one of the cache on a deployment.

    reason
        in a line why the part or the engine does not run it; '' where it does, whether it fits or not.
    loads
        times at 1, 8 and the most requests at once; None where it does not run.
    """

    base: Estimate
    precision: Precision
    estimate: Estimate | None
    reason: str
    loads: Batches | None

    @property
    def stored(self) -> Stored:
        """Where the bytes of the weights go."""
        return stored(self.base.model, self.precision)

    @property
    def cached(self) -> Cached:
        """Where the bytes of the cache go."""
        return cached(self.base.model, self.precision)

    @property
    def runs(self) -> bool:
        """Whether part and engine take it."""
        return self.estimate is not None

    @property
    def fits(self) -> bool:
        """Whether the batch fits as well."""
        return self.estimate is not None and self.estimate.fits

    @property
    def saving(self) -> float:
        """The share of 16-bit weights that is saved."""
        return 1 - self.stored.total_bytes / stored(self.base.model, Precision.named(BASE)).total_bytes

    @property
    def body(self) -> Format | None:
        """The narrow format of most quantised parameters; None where none is quantised."""
        formats = {part: self.precision.format_of(part) for part in {w.part for w in self.base.model.weights()}}
        sizes = {part: sum(w.params for w in self.base.model.weights() if w.part == part) for part in formats}
        narrow = [part for part, f in formats.items() if f.quantised]
        return formats[max(narrow, key=sizes.__getitem__)] if narrow else None

    @property
    def asked_in(self) -> str:
        """The number type in which quantised parts would be multiplied where a part supports it."""
        body = self.body
        if body is None:
            return BASE
        return self.precision.compute if self.precision.compute else body.compute

    @property
    def computed_in(self) -> str:
        """The one in which this part multiplies them."""
        return self.base.hardware.computed_in(self.asked_in)

    @property
    def product_gain(self) -> float:
        """How many times as fast products are at the peak: 1 where weights are widened to 16 bit before."""
        part = self.base.hardware
        return part.peak_flops_per_s(self.asked_in) / part.peak_flops_per_s(BASE)

    @property
    def reads_only(self) -> bool:
        """Whether weights are narrow but products are those of 16 bit."""
        return self.body is not None and self.computed_in in ("bf16", "fp16", "fp32")

    @property
    def speed_up(self) -> np.ndarray:
        """TPOT of 16-bit weights and cache over this one's at the same batches, whether those fit or not; NaN where it does not run."""
        if self.loads is None:
            return np.full(len(FEW) + 1, np.nan)
        found: np.ndarray = _tpot_s(self.base, self.loads.batch) / self.loads.tpot_s
        return found

    def tpot_band_s(self, at: int) -> tuple[float, float] | None:
        """The ends of the 80 % band of TPOT at one of the loads; None where it does not run or no band is known."""
        band = None if self.estimate is None else self.estimate.band("tpot")
        if band is None or self.loads is None:
            return None
        low, high = band.of(self.loads.tpot_s, self.loads.floor_tpot_s)
        return float(low[at]), float(high[at])

    @property
    def usd_per_million_tokens(self) -> float | None:
        """Price of a million output tokens at the most requests at once; None where no price is listed or it does not fit."""
        if self.estimate is None or self.loads is None or not self.fits:
            return None
        found = usd_per_million_tokens(self.estimate, self.loads.output_tokens_per_s[-1])
        return None if found is None else float(found)

    @property
    def kv_cache_tokens(self) -> float:
        """Tokens of cache of all attention groups; 0 where it does not run or start."""
        if self.estimate is None:
            return 0.0
        c = self.estimate.capacity
        return max(0.0, float(np.min(c.kv_cache_tokens)) * float(np.asarray(c.groups)))

    @property
    def max_sequences(self) -> float:
        """Requests of this length at once; 0 where it does not run or start."""
        return max(0.0, self.estimate.max_sequences) if self.estimate is not None and self.estimate.capacity.fits else 0.0

    @property
    def cache_copies(self) -> float:
        """How often the devices together keep each cached token: more than once where there are more of them than KV heads."""
        e = self.estimate or self.base
        p = e.setting.parallel
        whole = e.kv_bytes_per_token
        if not whole:
            return 1.0
        return float(sum(np.max(s.paging.token_bytes) for s in e.capacity.stages) * p.tp * p.cp / whole)

    @property
    def quality(self) -> tuple[Quality, ...]:
        """What was published of it; mostly nothing."""
        return published(self.base.model, self.precision)


@dataclass(frozen=True, slots=True)
class Crossing:
    """Between which batches weights that are only stored narrow are faster than others.

    start
        the batch from which they are: 1 for any, None for none up to 4,096. Of a mixture of experts few requests may read too little.
    batch
        the one from which they no longer are: 1 where they never are, None where they are up to 4,096.
    """

    option: Option
    other: Precision
    start: float | None
    batch: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Quantized:
    """Formats compared on one part: `base` is 16-bit weights and cache, whether it fits or not."""

    base: Estimate
    options: tuple[Option, ...]
    crossings: tuple[Crossing, ...]

    def best(self, measure: Callable[[Option], float]) -> Option | None:
        """The option that fits and is largest by a measure; None where none fits."""
        return max((o for o in self.options if o.fits), key=measure, default=None)


def quantized(run: Run, weights: Sequence[str], kv: Sequence[str]) -> Quantized:
    """Each format of weights with each of the cache, as `run` estimates a pair of names.

    Raises NotFound for an unknown format, SpecError for one that stands twice; what a part or an engine does not run is an option with
    its reason. Raises Unsupported for a model that writes no tokens.

    >>> from functools import partial
    >>> from inferplan.deployment import estimate
    >>> from inferplan.names import hardware, model, precision
    >>> part, shape = hardware("a100"), model("llama-2-7b")
    >>> found = quantized(lambda w, kv: estimate(shape, part, precision(w, kv)), ["bf16", "awq"], ["bf16"])
    >>> [round(o.stored.total_bytes / 1e9, 2) for o in found.options], found.options[1].computed_in
    ([13.48, 3.89], 'bf16')
    """
    _checked(weights, kv)
    base = run(BASE, BASE)
    if not base.model.generates:
        raise Unsupported(f"{base.model.title} writes no tokens, by whose times formats are compared: 'inferplan estimate' has its pass")
    options = tuple(_option(base, run, w, k) for k in kv for w in weights)
    return Quantized(base, options, tuple(_crossings(base, run, options)))


def _checked(weights: Sequence[str], kv: Sequence[str]) -> None:
    """Raises SpecError for an empty or long list and for names of the same format, NotFound for an unknown one."""
    _distinct("formats", weights, [_weights(name) for name in _listed("formats", weights)])
    _distinct("kv", kv, [_cache(name) for name in _listed("kv", kv)])


def _weights(name: str) -> str:
    return Precision.named(name).name


def _cache(name: str) -> str:
    return Precision.named(BASE, name).kv.name


def _listed(field: str, names: Sequence[str]) -> Sequence[str]:
    if not 1 <= len(names) <= MOST_FORMATS or not all(n.strip() for n in names):
        raise SpecError(f"must name 1 to {MOST_FORMATS} formats, with commas between them", field=field, value=",".join(names))
    return names


def _distinct(field: str, names: Sequence[str], found: Sequence[str]) -> None:
    for i, (name, one) in enumerate(zip(names, found, strict=True)):
        if one in found[:i]:
            first = names[found.index(one)]
            raise SpecError("stands twice" if first == name else f"is {one}, which '{first}' names already", field=field, value=name)


def _option(base: Estimate, run: Run, weights: str, kv: str) -> Option:
    kept = own_cache(base.engine, Precision.named(BASE, kv).kv)
    precision = Precision.named(weights, kept.name)
    try:
        reason = refusal(base.engine, base.hardware, precision)
        found = None if reason else run(weights, kept.name)
    except Unsupported as e:
        found, reason = None, str(e)
    return Option(base, precision, found, reason, None if found is None else _loads(found))


def _loads(e: Estimate) -> Batches:
    """Times at 1, 8 and the most requests at once."""
    return batches(e, np.array([*FEW, min(max(e.max_sequences, 1.0), MOST_SHOWN)]))


def _crossings(base: Estimate, run: Run, options: Sequence[Option]) -> list[Crossing]:
    """For each narrow format whose products stay 16 bit: against 16-bit weights, and against fp8 where the part and the engine have it."""
    found = []
    for o in options:
        if o.estimate is None or not o.reads_only:
            continue
        for name in (BASE, EIGHT_BIT):
            other = Precision.named(name, o.precision.kv.name)
            natively = name == BASE or base.hardware.computed_in(EIGHT_BIT) == EIGHT_BIT
            if natively and other.name != o.precision.name and not refusal(base.engine, base.hardware, other):
                found.append(Crossing(o, other, *window(o.estimate, run(name, o.precision.kv.name))))
    return found


def crossing(one: Estimate, other: Estimate, batch: np.ndarray = SWEEP) -> float | None:
    """The batch from which `one` decodes no faster than `other`: the first where it never does, None where it does at the last."""
    return window(one, other, batch)[1]


def window(one: Estimate, other: Estimate, batch: np.ndarray = SWEEP) -> tuple[float | None, float | None]:
    """The batches from which `one` decodes faster than `other`, and no longer does.

    Both are stepped once over all batches; between two of them the logarithm of their ratio is taken as straight over that of the batch.
    """
    ratio = np.log(_tpot_s(one, batch) / _tpot_s(other, batch))
    faster = np.flatnonzero(ratio < 0)
    if not len(faster):
        return None, float(batch[0])
    first, last = int(faster[0]), int(faster[-1])
    start = float(batch[0]) if first == 0 else _zero(ratio, batch, first - 1)
    return start, None if last == len(batch) - 1 else _zero(ratio, batch, last)


def _zero(ratio: np.ndarray, batch: np.ndarray, i: int) -> float:
    """Where a ratio's logarithm is 0 between the batches `i` and `i + 1`."""
    share = ratio[i] / (ratio[i] - ratio[i + 1])
    return float(batch[i] * (batch[i + 1] / batch[i]) ** share)


def _tpot_s(e: Estimate, batch: np.ndarray) -> np.ndarray:
    """Seconds between tokens at the middle of the output, for all batch sizes in one call."""
    at_once = in_flight(batch, e.setting.parallel)
    run = decode(e.model, e.hardware, e.precision, context=e.load.middle_context, batch=at_once, setting=e.setting)
    return np.broadcast_to(np.asarray(run.time_s, dtype=float), batch.shape)
