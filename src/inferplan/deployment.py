"""One deployment answered: memory as the engine reserves it, times of prefill and decode beside their floors. Knows no screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from inferplan.engine.cache_bytes import kv_bytes_per_token, kv_bytes_per_token_unbounded, sequence_bytes, state_bytes_per_sequence
from inferplan.engine.segment import Segment
from inferplan.engine.step import Setting, Step, decode, step
from inferplan.errors import InferplanError, SpecError, Unsupported
from inferplan.memory.capacity import Capacity, capacity
from inferplan.memory.offloading import offload_of
from inferplan.memory.weights import weight_bytes, weight_bytes_by_part
from inferplan.ops import Numeric
from inferplan.roofline.bands import Band, Known, TimeName
from inferplan.roofline.efficiency import Efficiency
from inferplan.roofline.optime import Basis
from inferplan.roofline.pipeline import pipelined_s
from inferplan.shown import Shown
from inferplan.specs.counts import Counts, counts
from inferplan.specs.engine import SLOTTED, Engine
from inferplan.specs.hardware import Accelerator, Price, prices
from inferplan.specs.mixers import Attention, LatentAttention
from inferplan.specs.model import Model
from inferplan.specs.offload import Offload
from inferplan.specs.parallel import ONE, Parallel
from inferplan.specs.precision import PARTS, Precision
from inferplan.units import GIB

MAX_TOKENS = 10**8
MAX_BATCH = 10**6
POINTS = 64  # of the contexts of an output, or of the chunks of a prompt, that stand for all
MOST_SHOWN = 1024.0  # requests at once, beyond which no screen looks
HIGH_UTILIZATION = 0.95  # what operators raise the budget to before they buy more memory
LARGER = ("h100", "h200", "b200", "mi355x")


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of a deployment: `batch` requests at once, each of `input_tokens` (of which `cached` are known) and `output_tokens`.

    context
        the tokens at which decode steps are looked at; None for all that the output runs through.
    images, patches
        images of each request, and positions of one in the vision tower; their tokens are among the input tokens.
    """

    input_tokens: int = 1024
    output_tokens: int = 256
    batch: int = 1
    cached: int = 0
    context: int | None = None
    images: int = 0
    patches: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of one request at its end."""
        return max(self.input_tokens + self.output_tokens, self.context or 0)

    @property
    def contexts(self) -> np.ndarray:
        """Contexts of the decode steps (one fewer than output tokens: prefill gives the first), at most 64 of them, evenly spread."""
        if self.context is not None:
            return np.array([float(self.context)])
        steps = max(self.output_tokens - 1, 1)
        ends: np.ndarray = np.linspace(self.input_tokens + 1, self.input_tokens + steps, min(steps, POINTS))
        whole: np.ndarray = ends.round()
        distinct: np.ndarray = whole[np.append(True, np.diff(whole) > 0)]  # np.unique would load numpy.ma, a tenth of the start-up
        return distinct

    @property
    def middle_context(self) -> float:
        """The context in the middle of the output."""
        return float(np.mean(self.contexts))

    def checked(self) -> Load:
        """The same, once its numbers are sensible; raises SpecError."""
        limits = {"input_tokens": MAX_TOKENS, "output_tokens": MAX_TOKENS, "batch": MAX_BATCH}
        for name, most in limits.items():
            if not 1 <= getattr(self, name) <= most:
                raise SpecError(f"must lie between 1 and {most:,}", field=name, value=getattr(self, name))
        if not 0 <= self.cached < self.input_tokens:
            raise SpecError(f"must lie between 0 and {self.input_tokens - 1:,}, below the input tokens", field="cached", value=self.cached)
        if self.context is not None and not 1 <= self.context <= MAX_TOKENS:
            raise SpecError(f"must lie between 1 and {MAX_TOKENS:,}", field="context", value=self.context)
        for name in ("images", "patches"):
            if not 0 <= getattr(self, name) <= MAX_BATCH:
                raise SpecError(f"must lie between 0 and {MAX_BATCH:,}", field=name, value=getattr(self, name))
        return self


@dataclass(frozen=True, slots=True)
class Estimate(Shown):
    """What a deployment does with one load. Times are estimates of the calibration in `setting`; `floor_...` are physical bounds.

    utilization, max_num_batched_tokens
        what was asked for, None for the engine's default.
    """

    model: Model
    hardware: Accelerator
    precision: Precision
    setting: Setting
    load: Load
    counts: Counts
    capacity: Capacity
    prefill: Step
    decode: Step
    prefill_step: Step
    utilization: float | None = None
    max_num_batched_tokens: int | None = None

    @property
    def engine(self) -> Engine:
        """The engine whose reserve and overhead are counted."""
        return self.capacity.engine

    @property
    def gpus(self) -> int:
        """Devices in all."""
        return int(np.asarray(self.setting.parallel.gpus))

    @property
    def prefill_s(self) -> float:
        """Time until the prompts of the batch are done: the engine's steps of prefill, one after the other or through pipeline stages."""
        return float(np.mean(self.prefill_step.time_s) * times_of_step(self.microbatches, self.setting.parallel.pp))

    @property
    def ttft_s(self) -> float:
        """Time to the first token as a client measures it: the steps of prefill, and what host and front end take for a prompt beside."""
        return self.prefill_s + self.prompt_front_end_s

    @property
    def floor_ttft_s(self) -> float:
        """Its floor: all prompts in one pass, at best spread over the stages."""
        return float(np.asarray(self.prefill.floor_s / self.setting.parallel.pp))

    @property
    def microbatches(self) -> float:
        """Steps in which the engine takes the prompts up."""
        return float(steps_of(self.load, self.load.batch, self.step_tokens))

    @property
    def step_tokens(self) -> float:
        """Tokens that the engine takes into one step of prefill; 0 for no limit."""
        return float(np.asarray(self.capacity.launch.max_num_batched_tokens))

    def front_end_s(self, input_tokens: Numeric) -> Numeric:
        """Seconds that host and front end take for a prompt of so many tokens, cached ones included, beside the engine's steps."""
        return self.setting.efficiency.front_end_s(self.setting.engine, len(self.model.order), input_tokens)

    @property
    def prompt_front_end_s(self) -> float:
        """The same for one prompt of the load; 0 for a model that makes no tokens."""
        return float(self.front_end_s(self.load.input_tokens)) if self.model.generates else 0.0

    @property
    def apart_s(self) -> float:
        """The part of it that prompts spend side by side."""
        return self.setting.efficiency.apart_s(self.setting.engine)

    @property
    def tpot_s(self) -> float:
        """Mean gap between output tokens, over the contexts that the output runs through."""
        return float(np.mean(self.decode.time_s))

    @property
    def floor_tpot_s(self) -> float:
        """Its floor."""
        return float(np.mean(self.decode.floor_s))

    @property
    def e2e_s(self) -> float:
        """A whole request: first token, then the gaps."""
        return self.ttft_s + (self.load.output_tokens - 1) * self.tpot_s

    @property
    def basis(self) -> Basis:
        """How well times are known: `measured` where kernels of prefill and decode and the engine are, `ideal` for floors."""
        steps = [self.prefill_step, self.decode] if self.model.generates else [self.prefill_step]
        return next((found for step in steps if (found := step.basis) != "measured"), "measured")

    def band(self, quantity: TimeName, *, waiting: bool = False) -> Band | None:
        """Where four of five measurements of a time lie about its estimate, as shares of it; None for floors and where nothing is known.

        `waiting` says that requests wait for cache.
        """
        of, place = self.setting.efficiency, (self.setting.engine, self.hardware.name)
        known: Known = "measured" if self.basis == "measured" else "inherited"
        own = of.band(quantity, *place, known, self.hardware.architecture)
        waits = of.band(quantity, *place, "waiting", self.hardware.architecture) if waiting else None
        return own.wider(waits) if own is not None else waits

    @property
    def tpot_band_s(self) -> tuple[float, float] | None:
        """The ends of the 80 % band of TPOT."""
        return _ends(self.band("tpot"), self.tpot_s, self.floor_tpot_s)

    @property
    def ttft_band_s(self) -> tuple[float, float] | None:
        """The ends of the 80 % band of TTFT."""
        return _ends(self.band("ttft"), self.ttft_s, self.floor_ttft_s)

    @property
    def e2e_band_s(self) -> tuple[float, float] | None:
        """The ends of the 80 % band of a whole request, both of its parts taken to miss the same way."""
        first, gap = self.ttft_band_s, self.tpot_band_s
        if first is None or gap is None:
            return None
        low, high = (a + (self.load.output_tokens - 1) * b for a, b in zip(first, gap, strict=True))
        return low, high

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens per second of one sequence while it decodes."""
        return 1 / self.tpot_s

    @property
    def output_tokens_per_s(self) -> float:
        """Tokens per second of all sequences while they decode."""
        return self.load.batch / self.tpot_s

    @property
    def weight_parts(self) -> dict[str, float]:
        """Weight bytes of the whole model by part."""
        return weight_bytes_by_part(self.model, self.precision)

    @property
    def weight_bytes(self) -> float:
        """Weight bytes of the whole model."""
        return weight_bytes(self.model, self.precision)

    @property
    def sequence_bytes(self) -> float:
        """The ideal cache of one sequence at its full length, over all devices that hold it once."""
        return float(np.asarray(sequence_bytes(self.model, self.precision, float(self.load.tokens))))

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes that one more token adds, windows not yet full."""
        return float(kv_bytes_per_token(self.model, self.precision))

    @property
    def kv_bytes_per_token_unbounded(self) -> float:
        """The same without windowed layers."""
        return float(kv_bytes_per_token_unbounded(self.model, self.precision))

    @property
    def state_bytes_per_sequence(self) -> float:
        """Constant recurrent states of one sequence."""
        return state_bytes_per_sequence(self.model, self.precision)

    @property
    def bytes_per_token(self) -> float:
        """Bytes one decode step moves on one device for each token the deployment makes."""
        return float(np.mean(self.decode.bytes)) / self.load.batch

    @property
    def max_sequences(self) -> float:
        """Requests of this length that run at once under the engine, over all attention groups."""
        return float(np.asarray(self.capacity.max_sequences * self.capacity.groups))

    @property
    def fits(self) -> bool:
        """Whether the engine starts and holds the batch."""
        return bool(self.capacity.fits) and self.max_sequences >= self.load.batch

    @property
    def computed_in(self) -> dict[str, str]:
        """For each number type the precision asks for, the one that this part multiplies in."""
        rates = sorted({op.rate for op in self.decode.ops if op.rate not in ("none", "fp32")})
        return {rate: self.hardware.computed_in(rate) for rate in rates}


def _ends(band: Band | None, estimate_s: float, floor_s: float) -> tuple[float, float] | None:
    if band is None:
        return None
    low, high = band.of(np.array([estimate_s]), floor_s)
    return float(low[0]), float(high[0])


def estimate(
    model: Model,
    hardware: Accelerator,
    precision: Precision,
    *,
    input_tokens: int = 1024,
    output_tokens: int = 256,
    batch: int = 1,
    cached: int = 0,
    parallel: Parallel = ONE,
    engine: str = "vllm",
    version: str | None = None,
    efficiency: Efficiency | str = "default",
    network: str | None = None,
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    utilization: float | None = None,
    context: int | None = None,
    images: int = 0,
    image_patches: int | None = None,
    host: Accelerator | None = None,
    gpu_layers: int | None = None,
    cpu_experts: int = 0,
    cpu_offload_bytes: float = 0.0,
    overlap: float = 0.0,
    expert_skew: float = 0.0,
    expert_imbalance: float = 1.0,
) -> Estimate:
    """The estimate of one model on one kind of part, split over `parallel`, under an engine and a calibration of times.

    `host` is the part that computes, or lends its memory, for layers beyond `gpu_layers`, for the experts of the first `cpu_experts`
    layers, or for `cpu_offload_bytes` of weights per device. `context` looks at decode steps of that many tokens alone; `images` of
    `image_patches` positions each go through the vision tower for every request. `overlap` is the share of collectives hidden behind
    operators; `expert_skew` and `expert_imbalance` say how unevenly experts are used.

    Raises SpecError for a load or split outside its range, Unsupported where the part lacks a number that is needed.
    """
    load = Load(input_tokens, output_tokens if model.generates else 1, batch, cached, context, images).checked()
    load = replace(load, patches=_patches(model, load, image_patches)).checked()
    check_formats(model, precision)
    split = parallel.checked()
    calibration = Efficiency.load(efficiency) if isinstance(efficiency, str) else efficiency
    found = Engine.find(engine, version)
    offload = offload_of(
        model, precision, found, split, gpu_layers=gpu_layers, cpu_experts=cpu_experts, cpu_offload_bytes=cpu_offload_bytes,
        host_named=host is not None,
    )  # fmt: skip
    _check_host(offload, host, split, found, asked=gpu_layers is not None or cpu_experts > 0 or cpu_offload_bytes > 0)
    check_splits(model, split, expert_skew, expert_imbalance)
    _check_limits(max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=max_num_seqs, max_model_len=max_model_len)
    setting = Setting(split, calibration, found.timed_as, network, offload, host, overlap, expert_skew, expert_imbalance).checked()
    held = capacity(
        model, hardware, precision, split, found, max_model_len=max_model_len or load.tokens, utilization=utilization,
        max_num_seqs=max_num_seqs or slots(found, load.batch), max_num_batched_tokens=max_num_batched_tokens, offload=offload,
    )  # fmt: skip
    limit = float(np.asarray(held.launch.max_num_batched_tokens))
    whole = first_pass(model, hardware, precision, load, batch, setting)
    return Estimate(
        model=model,
        hardware=hardware,
        precision=precision,
        setting=setting,
        load=load,
        counts=counts(model),
        capacity=held,
        prefill=whole,
        decode=decode(model, hardware, precision, context=load.contexts, batch=in_flight(batch, split), setting=setting),
        prefill_step=whole if steps_of(load, batch, limit) == 1 else first_step(model, hardware, precision, load, batch, setting, limit),
        utilization=utilization,
        max_num_batched_tokens=max_num_batched_tokens,
    )


def first_step(
    model: Model, hardware: Accelerator, precision: Precision, load: Load, batch: Numeric, setting: Setting, limit: float
) -> Step:
    """One step of the prefill of `batch` prompts, where a step takes `limit` tokens."""
    return step(model, hardware, precision, step_segment(load, batch, limit), setting=setting)


def first_pass(model: Model, hardware: Accelerator, precision: Precision, load: Load, batch: Numeric, setting: Setting) -> Step:
    """The pass over `batch` prompts, with what their images or sounds take."""
    segment = Segment(batch, load.input_tokens - load.cached, load.cached, images=load.images, patches=load.patches)
    return step(model, hardware, precision, segment, setting=setting)


def _patches(model: Model, load: Load, given: int | None) -> int:
    """Positions of one image: given, or those of the model's own image size. Raises where there is no tower, or neither is known."""
    if not load.images:
        if given is not None:
            raise SpecError("says nothing without images", field="image_patches", value=given)
        return 0
    tower = model.vision_tower
    if tower is None:
        raise Unsupported(f"{model.title} has no vision tower, so it takes no images")
    if tower.patches is not None and given not in (None, tower.patches):
        raise SpecError(f"must be {tower.patches:,}, the size of an image that {model.title} takes", field="image_patches", value=given)
    least = load.images * (tower.tokens or 1)
    if load.input_tokens - load.cached < least:
        raise SpecError(f"are {least:,} tokens, more than the new input tokens", field="images", value=load.images)
    found = tower.patches if given is None else given
    if found is None:
        raise SpecError(f"must be given, since {model.title} takes images of any size", field="image_patches")
    return found


def _check_host(offload: Offload, host: Accelerator | None, parallel: Parallel, engine: Engine, *, asked: bool) -> None:
    """Raises SpecError where the host must be named or is none, Unsupported where a split and a computing host do not go together."""
    if host is not None and not asked:
        raise SpecError("says nothing while no layer, no expert and no weight is offloaded", field="host", value=host.name)
    if host is not None and not host.is_cpu:
        raise SpecError("must be a processor of a host, such as ryzen-9950x or epyc-9654", field="host", value=host.name)
    if not offload.computed or not offload.any:
        return
    if host is None:
        raise SpecError(f"must name the host's processor, which computes under {engine.title}, such as ryzen-9950x", field="host")
    if int(np.asarray(parallel.gpus)) > int(np.asarray(parallel.pp)):
        raise Unsupported(f"layers computed by the host go with pipeline stages only ({engine.title})")


def _check_limits(**limits: int | None) -> None:
    """Raises SpecError for a limit of the engine outside its range."""
    for name, value in limits.items():
        if value is not None and not 1 <= value <= MAX_TOKENS:
            raise SpecError(f"must lie between 1 and {MAX_TOKENS:,}", field=name, value=value)


def check_splits(model: Model, parallel: Parallel, skew: float, imbalance: float) -> None:
    """Raises where a split or an unevenness asks for what the model does not have."""
    routed = any(block.experts for block in model.blocks.values())
    if (skew or imbalance != 1) and not routed:
        raise SpecError(f"says nothing of {model.title}, which has no experts", field="expert_skew" if skew else "expert_imbalance")
    if not 1 <= imbalance <= max(1, int(np.max(parallel.ep))):
        raise SpecError(f"must lie between 1 and the {int(np.max(parallel.ep))} expert ranks", field="expert_imbalance", value=imbalance)
    plain = all(isinstance(m, (Attention, LatentAttention)) and m.cached for block in model.blocks.values() for m in block.mixers)
    if np.any(np.asarray(parallel.cp) > 1) and not plain:
        raise Unsupported(f"context parallelism is counted for decoders of attention alone, and {model.title} is none")


def steps_of(load: Load, batch: Numeric, limit: float) -> Numeric:
    """Steps of prefill that so many prompts take where a step takes `limit` tokens; a longer prompt takes steps of its own.

    >>> float(steps_of(Load(1000), 20, 8192)), float(steps_of(Load(20000), 2, 8192))
    (3.0, 6.0)
    """
    new = load.input_tokens - load.cached
    if limit <= 0:
        return 0.0 * np.asarray(batch, dtype=float) + 1.0
    if new > limit:
        steps: Numeric = np.asarray(batch, dtype=float) * np.ceil(new / limit)
        return steps
    return np.ceil(np.asarray(batch, dtype=float) * new / limit)


def step_segment(load: Load, batch: Numeric, limit: float) -> Segment:
    """One step of prefill: a share of the prompts, or for prompts longer than a step an array over their chunks."""
    new, steps = load.input_tokens - load.cached, steps_of(load, batch, limit)
    if limit <= 0 or new <= limit:
        return Segment(np.asarray(batch, dtype=float) / steps, new, load.cached, images=load.images, patches=load.patches)
    chunks = int(np.ceil(new / limit))
    at = np.linspace(0, chunks - 1, min(chunks, POINTS)).round()
    ends, first = np.where(at == chunks - 1, 1.0, 0.0), np.where(at == 0, 1.0, 0.0)
    taken = np.minimum(limit, new - at * limit)
    return Segment(1.0, taken, load.cached + at * limit, logits=ends, images=load.images * first, patches=load.patches)


def times_of_step(steps: Numeric, stages: Numeric) -> Numeric:
    """How many times the duration of one step all of them take through the stages of a pipeline."""
    found: Numeric = steps * pipelined_s(1.0, steps, stages)
    return found


def slots(engine: Engine, batch: int) -> int | None:
    """The slots to lay out at start where an engine does so; else None, its own limit."""
    return batch if engine.policy in SLOTTED else None


def check_formats(model: Model, precision: Precision) -> None:
    """Raises Unsupported where a precision quantises only parts that the model does not have."""
    narrow = [part for part in PARTS if precision.format_of(part).quantised]
    if narrow and precision.mix is None and not {w.part for w in model.weights()} & set(narrow):
        raise Unsupported(f"{precision.name} changes nothing here: it quantises {', '.join(narrow)}, and {model.title} has none")


def in_flight(batch: Numeric, parallel: Parallel) -> Numeric:
    """Sequences that share one pass: with pipeline stages the batch runs as that many microbatches in turn."""
    share: Numeric = np.maximum(np.asarray(batch, dtype=float) / parallel.pp, np.minimum(np.asarray(batch, dtype=float), 1.0))
    return share


@dataclass(frozen=True, slots=True)
class Batches:
    """The same deployment with more requests at once: arrays over `batch`."""

    batch: np.ndarray
    ttft_s: np.ndarray
    tpot_s: np.ndarray
    floor_tpot_s: np.ndarray
    mfu: np.ndarray
    mbu: np.ndarray

    @property
    def output_tokens_per_s(self) -> np.ndarray:
        """Output tokens per second of all sequences."""
        rate: np.ndarray = self.batch / self.tpot_s
        return rate


def batches(e: Estimate, sizes: np.ndarray | None = None) -> Batches:
    """What happens as more requests share the deployment: powers of two up to what the engine holds, at the middle context."""
    load, setting = e.load, e.setting
    most = max(1.0, min(e.max_sequences, MOST_SHOWN))
    batch = 2.0 ** np.arange(0, np.floor(np.log2(most)) + 1) if sizes is None else np.asarray(sizes, dtype=float)
    run = decode(e.model, e.hardware, e.precision, context=load.middle_context, batch=in_flight(batch, setting.parallel), setting=setting)
    first = first_step(e.model, e.hardware, e.precision, load, batch, setting, e.step_tokens)
    each = first.time_s if load.input_tokens - load.cached <= e.step_tokens or e.step_tokens <= 0 else np.mean(first.time_s)
    ttft = each * times_of_step(steps_of(load, batch, e.step_tokens), setting.parallel.pp) + e.prompt_front_end_s
    wide = [np.broadcast_to(np.asarray(x, dtype=float), batch.shape) for x in (ttft, run.time_s, run.floor_s, run.mfu, run.mbu)]
    return Batches(batch, *wide)


def price(hardware: Accelerator) -> Price | None:
    """The lowest on-demand price per device, the more trusted and later rows first; None where none is listed."""
    rank = {"high": 0, "medium": 1, "low": 2}
    rows = [p for p in prices(gpu=hardware.name) if p.usd_per_h is not None and p.price_type == "on-demand"]
    return min(rows, key=lambda p: (rank.get(p.confidence, 3), p.usd_per_h or 0.0), default=None)


def usd_per_million_tokens(e: Estimate, tokens_per_s: Numeric) -> Numeric | None:
    """Price of a million output tokens while decoding at that rate, at the listed price of all devices."""
    found = price(e.hardware)
    return None if found is None or found.usd_per_h is None else e.gpus * found.usd_per_h / 3600 / tokens_per_s * 1e6


def sustained_usd_per_million_tokens(e: Estimate) -> float | None:
    """The same with the prefills of the batch in it, as `sustained_usd_per_million_tokens` of a sweep; None without a price or output.

    >>> from inferplan import estimate
    >>> found = estimate("8b", "h100", "fp8", batch=8)
    >>> sustained_usd_per_million_tokens(found) > usd_per_million_tokens(found, found.output_tokens_per_s)
    True
    """
    if not e.model.generates:
        return None
    found = usd_per_million_tokens(e, e.load.batch * e.load.output_tokens / e.e2e_s)
    return None if found is None else float(found)


def joules_per_million_tokens(e: Estimate, tokens_per_s: Numeric) -> Numeric | None:
    """Energy of a million output tokens at the parts' full rated power: an upper bound."""
    return None if e.hardware.power is None else e.gpus * e.hardware.power.value / tokens_per_s * 1e6


@dataclass(frozen=True, slots=True)
class Change:
    """One change that makes a load fit."""

    what: str
    sequences: float


def remedies(e: Estimate) -> list[Change]:
    """Single changes that would make the batch fit, smallest first: shorter, narrower cache or weights, more or other parts."""
    found = []
    for what, changed in _candidates(e):
        try:
            held = changed()
        except InferplanError:
            continue
        if _holds(e, held):
            found.append(Change(what, float(np.asarray(held.max_sequences * held.groups))))
    return found


def _candidates(e: Estimate) -> Iterator[tuple[str, Callable[[], Capacity]]]:
    """Changes to try, each with the capacity it would give."""
    c = e.capacity
    length = float(np.asarray(c.launch.max_model_len))

    def held(
        hardware: Accelerator = e.hardware,
        precision: Precision = e.precision,
        parallel: Parallel = e.setting.parallel,
        max_model_len: float = length,
        max_num_seqs: float = float(np.asarray(c.launch.max_num_seqs)),
        utilization: float | None = e.utilization,
        offload: Offload = c.offload,
    ) -> Capacity:
        return capacity(
            e.model, hardware, precision, parallel, e.engine, max_model_len=max_model_len, max_num_seqs=max_num_seqs,
            utilization=utilization, max_num_batched_tokens=e.max_num_batched_tokens, offload=offload,
        )  # fmt: skip

    most = int(np.asarray(c.max_context)) if np.isfinite(float(np.asarray(c.max_context))) else 0
    if e.load.batch == 1 and 1 <= most < length:
        yield f"at most {most:,} tokens per request", partial(held, max_model_len=most)
    if float(np.max(c.launch.utilization)) < HIGH_UTILIZATION:
        yield f"a larger budget (--utilization {HIGH_UTILIZATION})", partial(held, utilization=HIGH_UTILIZATION)
    states = float(np.min(c.state_limit))
    if e.load.batch <= states < float(np.max(c.launch.max_num_seqs)):
        yield f"at most {states:,.0f} sequences (--max-num-seqs {states:.0f})", partial(held, max_num_seqs=states)
    for kv in ("fp8", "int4"):
        yield f"KV cache in {kv}", partial(_with_kv, held, e.precision, kv)
    for weights in ("fp8", "w4a16"):
        yield f"weights in {weights}", partial(held, precision=replaced(e.precision, weights))
    if (not c.offload.any or c.offload.layers) and np.all(c.even) and (offloaded := _offloaded(e, held)) is not None:
        yield offloaded
    tp = e.setting.parallel.tp
    for ways in () if c.offload.computed else (1, 2, 4, 8) if not np.all(c.even) else (2 * tp, 4 * tp, 8 * tp):
        wider = replace(e.setting.parallel, tp=ways)
        yield f"tensor parallel over {int(np.asarray(wider.tp))} devices", partial(held, parallel=wider)
    for name in LARGER:
        other = Accelerator.find(name)
        if other.usable_bytes > e.hardware.usable_bytes:
            yield f"{other.title} instead", partial(held, hardware=other)


def _offloaded(e: Estimate, held: Callable[..., Capacity]) -> tuple[str, Callable[[], Capacity]] | None:
    """The least that would have to lie in host memory, as the engine's own option says it; nothing where it has none."""
    layers, how = len(e.model.order), e.engine.choice("offload")
    if how == "computed":
        below, above = 0, layers
        while below < above:
            middle = (below + above + 1) // 2
            below, above = (middle, above) if _holds(e, held(offload=_keeping(e, middle))) else (below, middle - 1)
        return f"at most {below:,} layers on the device (--gpu-layers {below} --host ...)", partial(held, offload=_keeping(e, below))
    if how != "streamed" or int(np.asarray(e.setting.parallel.pp)) > 1:
        return None
    c = e.capacity
    missing = float(np.max(c.request_bytes)) * e.load.batch / float(np.asarray(c.groups)) - float(np.min(c.kv_cache_bytes_per_gpu))
    size = max(1, int(np.ceil(missing / GIB)) + 1)
    try:
        offload = offload_of(e.model, e.precision, e.engine, e.setting.parallel, cpu_offload_bytes=size * GIB)
    except SpecError:
        return None  # more than all of its layers
    return f"{size} GiB of weights in host memory (--cpu-offload {size}GiB)", partial(held, offload=offload)


def _keeping(e: Estimate, layers: int) -> Offload:
    return offload_of(e.model, e.precision, e.engine, e.setting.parallel, gpu_layers=layers)


def _holds(e: Estimate, held: Capacity) -> bool:
    return bool(held.fits) and float(np.asarray(held.max_sequences * held.groups)) >= e.load.batch


def _with_kv(held: Callable[..., Capacity], precision: Precision, kv: str) -> Capacity:
    return held(precision=precision.with_kv(kv))


def replaced(precision: Precision, weights: str) -> Precision:
    """Another format of weights with the same cache."""
    return Precision.named(weights).model_copy(update={"kv": precision.kv})
