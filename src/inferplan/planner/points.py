"""Many loads of one deployment in one call: memory, times and rates as columns over batch and lengths. Knows no grid and no file.

A point is what `deployment.estimate` answers for one load, by the same steps; what does not fit is marked, never raised.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferplan.deployment import POINTS, check_formats, check_splits, in_flight, times_of_step
from inferplan.engine.segment import Segment
from inferplan.engine.step import Setting, Step, decode, step
from inferplan.errors import InferplanError
from inferplan.memory.capacity import Capacity, capacity
from inferplan.planner.contexts import Runs, knots, means
from inferplan.planner.cost import usd_per_million
from inferplan.roofline.efficiency import Efficiency
from inferplan.specs.engine import SLOTTED, Engine
from inferplan.specs.hardware import Accelerator
from inferplan.specs.model import Model
from inferplan.specs.parallel import Parallel
from inferplan.specs.precision import Precision

Floats = NDArray[np.float64]
REASONS = (
    "",
    "heads do not come out even over the devices",
    "weights exceed the memory budget",
    "weights and reserve exceed the memory budget",
    "one request does not fit the cache",
    "more sequences are allowed than have a block for their recurrent states",
    "there is room for fewer requests than the batch",
)
UNEVEN, WEIGHTS, RESERVE, LENGTH, STATES, ROOM = range(1, 7)
BOUNDS = ("memory", "compute")


@dataclass(frozen=True, slots=True)
class Fixed:
    """What is the same for all points: options of the engine and of the calibration; None for the engine's own."""

    cached_tokens: int = 0
    efficiency: str = "default"
    network: str | None = None
    utilization: float | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    overlap: float = 0.0


@dataclass(frozen=True, slots=True)
class Case:
    """One deployment: all that stays the same while batch and lengths vary.

    usd_per_h
        price of one device, NaN where none is known.
    """

    model: Model
    hardware: Accelerator
    precision: Precision
    engine: Engine
    parallel: Parallel
    fixed: Fixed = Fixed()
    usd_per_h: float = np.nan

    @property
    def gpus(self) -> int:
        """Devices in all."""
        return int(self.parallel.gpus)

    def setting(self) -> Setting:
        """How its passes are run; raises the errors of what cannot be."""
        split, fixed = self.parallel.checked(), self.fixed
        check_formats(self.model, self.precision)
        check_splits(self.model, split, 0.0, 1.0)
        return Setting(split, _calibration(fixed.efficiency), self.engine.timed_as, fixed.network, overlap=fixed.overlap).checked()


@dataclass(frozen=True, slots=True)
class Block:
    """Points of one case, flat: batch slowest, then the pairs of lengths.

    labels
        what is the same for all of them, by column.
    columns
        an array for each other column; texts as codes, with what they stand for in `words`.
    """

    labels: dict[str, Any]
    columns: dict[str, NDArray[Any]]
    words: dict[str, tuple[str, ...]]

    def __len__(self) -> int:
        return len(self.columns["batch"])


def points(case: Case, batch: Floats, input_tokens: Floats, output_tokens: Floats) -> Block:
    """The product of batches (b,) with pairs of input and output tokens (p,), as b x p points.

    >>> from inferplan.names import hardware, model, precision
    >>> one = Case(model("7b"), hardware("h100"), precision("fp8"), Engine.find("vllm"), Parallel())
    >>> found = points(one, np.array([1.0, 8.0]), np.array([1024.0]), np.array([256.0]))
    >>> found.columns["fits"].tolist(), (found.columns["tpot_s"] * 1e3).round(2).tolist()  # as `inferplan estimate` says
    ([True, True], [4.38, 5.93])
    """
    axes = {
        "batch": np.repeat(batch, len(input_tokens)).astype(np.int64),
        "input_tokens": np.tile(input_tokens, len(batch)).astype(np.int64),
        "output_tokens": np.tile(output_tokens, len(batch)).astype(np.int64),
    }
    try:
        found, words = _answered(case, batch, input_tokens, output_tokens)
    except InferplanError as e:
        found, words = _refused(len(axes["batch"])), {"reason": (str(e),), "bound": BOUNDS}
    return Block(_labels(case), {**axes, **found}, words)


def _labels(case: Case) -> dict[str, Any]:
    names = {
        "model": case.model.name, "hardware": case.hardware.name, "precision": case.precision.name, "kv_format": case.precision.kv.name,
        "engine": case.engine.name, "engine_version": case.engine.version,
    }  # fmt: skip
    return {**names, "gpus": case.gpus, **{way: int(number) for way, number in asdict(case.parallel).items()}}


FIGURES = (
    "max_sequences", "weight_bytes_per_gpu", "kv_cache_bytes_per_gpu", "ttft_s", "floor_ttft_s", "tpot_s", "floor_tpot_s", "e2e_s",
    "decode_tokens_per_s", "output_tokens_per_s", "sustained_tokens_per_s", "sustained_tokens_per_s_per_gpu",
    "sustained_usd_per_million_tokens",
)  # fmt: skip


def _refused(count: int) -> dict[str, NDArray[Any]]:
    """Points that a rule forbids: no figure is known."""
    unknown = {name: np.full(count, np.nan) for name in FIGURES}
    return {"fits": np.zeros(count, dtype=bool), "reason": np.zeros(count, np.int8), "bound": np.full(count, -1, np.int8), **unknown}


def _answered(case: Case, batch: Floats, inputs: Floats, outputs: Floats) -> tuple[dict[str, NDArray[Any]], dict[str, tuple[str, ...]]]:
    setting, shape = case.setting(), (len(batch), len(inputs))
    tokens = outputs if case.model.generates else np.ones_like(outputs)
    held = _held(case, batch, inputs + tokens)
    limit = np.broadcast_to(np.asarray(held.launch.max_num_batched_tokens, dtype=float), (1, shape[1]))[0]
    first = _first_tokens(case, setting, inputs, _prefills(case, setting, batch, inputs, limit))
    steps = _decodes(case, setting, batch, inputs, tokens) if case.model.generates else _no_decodes(shape)
    found = {**_memory(case, held, batch), **first, **steps, **_rates(case, batch[:, None], tokens, first["ttft_s"], steps["tpot_s"])}
    return {name: np.broadcast_to(column, shape).reshape(-1) for name, column in found.items()}, {"reason": REASONS, "bound": BOUNDS}


def _held(case: Case, batch: Floats, lengths: Floats) -> Capacity:
    """What the engine holds, over lengths (p,), or (b, p) where it lays out a slot for each request of the batch."""
    fixed = case.fixed
    slots = fixed.max_num_seqs or (batch[:, None] if case.engine.policy in SLOTTED else None)
    return capacity(
        case.model, case.hardware, case.precision, case.parallel, case.engine, max_model_len=fixed.max_model_len or lengths,
        max_num_seqs=slots, max_num_batched_tokens=fixed.max_num_batched_tokens, utilization=fixed.utilization,
    )  # fmt: skip


def _memory(case: Case, held: Capacity, batch: Floats) -> dict[str, NDArray[Any]]:
    """Whether the batch fits and why not, by code, and the bytes that decide."""
    left, weights = np.asarray(held.kv_cache_bytes_per_gpu), np.asarray(held.weight_bytes_per_gpu)
    room = np.asarray(held.max_sequences * held.groups, dtype=float)
    enough = room >= batch[:, None]
    starts = np.asarray(held.fits)
    rules = (
        (~np.asarray(held.even), UNEVEN),
        ((left <= 0) & (weights > held.launch.utilization * held.total_bytes), WEIGHTS),
        (left <= 0, RESERVE),
        (np.asarray(held.launch.max_num_seqs) > held.state_limit, STATES),
        (~starts, LENGTH),
        (~enough, ROOM),
    )
    shape = np.broadcast_shapes(enough.shape, *(np.shape(rule) for rule, _ in rules))
    reason = np.select([np.broadcast_to(rule, shape) for rule, _ in rules], [code for _, code in rules], 0)
    return {
        "fits": starts & enough, "reason": reason.astype(np.int8), "max_sequences": room,
        "weight_bytes_per_gpu": weights.astype(float), "kv_cache_bytes_per_gpu": left.astype(float),
    }  # fmt: skip


def _prefills(case: Case, setting: Setting, batch: Floats, inputs: Floats, limit: Floats) -> dict[str, Floats]:
    """Seconds of the batch's prefill and its floor, (b, p); each distinct pair of prompt and step size is asked for once."""
    pairs, back = np.unique(np.stack([inputs, limit]), axis=1, return_inverse=True)
    new, most = pairs[0] - case.fixed.cached_tokens, pairs[1]
    found = np.empty((len(batch), len(new)))
    long = (most > 0) & (new > most)
    if np.any(~long):
        found[:, ~long] = _whole_prompts(case, setting, batch[:, None], new[~long], most[~long])
    if np.any(long):
        found[:, long] = _long_prompts(case, setting, batch[:, None], new[long], most[long])
    whole = _pass(case, setting, Segment(batch[:, None], new, case.fixed.cached_tokens))
    floor = np.broadcast_to(np.asarray(whole.floor_s / case.parallel.pp, dtype=float), found.shape)
    where = np.asarray(back).reshape(-1)
    return {"ttft_s": found[:, where], "floor_ttft_s": floor[:, where]}


def _first_tokens(case: Case, setting: Setting, inputs: Floats, steps: dict[str, Floats]) -> dict[str, Floats]:
    """The same with what host and front end take for a prompt beside the steps, which a model that makes no tokens has none of."""
    if not case.model.generates:
        return steps
    beside = np.asarray(setting.efficiency.front_end_s(setting.engine, len(case.model.order), inputs), dtype=float)
    return {**steps, "ttft_s": steps["ttft_s"] + beside}


def _pass(case: Case, setting: Setting, segment: Segment) -> Step:
    return step(case.model, case.hardware, case.precision, segment, setting=setting)


def _whole_prompts(case: Case, setting: Setting, batch: Floats, new: Floats, limit: Floats) -> Floats:
    """Prompts that fit into a step: as many to a step as it takes, one step after the other, (b, n)."""
    steps = np.where(limit > 0, np.ceil(batch * new / np.where(limit > 0, limit, 1.0)), 1.0)
    each = _pass(case, setting, Segment(batch / steps, new, case.fixed.cached_tokens)).time_s
    return np.asarray(each * times_of_step(steps, case.parallel.pp), dtype=float)


def _long_prompts(case: Case, setting: Setting, batch: Floats, new: Floats, limit: Floats) -> Floats:
    """Prompts longer than a step, in chunks of it: the mean over at most 64 chunks of each, times their number, (b, n)."""
    chunks = np.ceil(new / limit)
    at = [np.unique(np.linspace(0, c - 1, int(min(c, POINTS))).round()) for c in chunks]
    counts = np.array([len(a) for a in at])
    place, most, whole, last = np.concatenate(at), np.repeat(limit, counts), np.repeat(new, counts), np.repeat(chunks, counts) - 1
    taken = np.minimum(most, whole - place * most)
    segment = Segment(1.0, taken, case.fixed.cached_tokens + place * most, logits=np.where(place == last, 1.0, 0.0))
    each = np.broadcast_to(np.asarray(_pass(case, setting, segment).time_s, dtype=float), place.shape)
    mean = np.add.reduceat(each, np.append(0, np.cumsum(counts)[:-1])) / counts
    return np.asarray(mean * times_of_step(batch * chunks, case.parallel.pp), dtype=float)


def _decodes(case: Case, setting: Setting, batch: Floats, inputs: Floats, outputs: Floats) -> dict[str, NDArray[Any]]:
    """Mean gap between tokens, its floor and the roof that binds, (b, p)."""
    runs = Runs.of(inputs, outputs)
    at = knots(case.model, int(runs.last.max()))
    each = np.asarray(in_flight(batch, setting.parallel))[:, None]
    run = decode(case.model, case.hardware, case.precision, context=at, batch=each, setting=setting)
    rows = {"tpot_s": run.time_s, "floor_tpot_s": run.floor_s, "excess_s": np.asarray(run.compute_s) - run.memory_s}
    wide = {name: np.broadcast_to(np.asarray(y, float), (len(batch), len(at))) for name, y in rows.items()}
    found: dict[str, NDArray[Any]] = means(runs, at, wide)
    return {"bound": (found.pop("excess_s") > 0).view(np.int8), **found}


def _no_decodes(shape: tuple[int, int]) -> dict[str, NDArray[Any]]:
    """Of an encoder, which writes no tokens."""
    return {"tpot_s": np.full(shape, np.nan), "floor_tpot_s": np.full(shape, np.nan), "bound": np.full(shape, -1, np.int8)}


def _rates(case: Case, batch: Floats, outputs: Floats, ttft_s: Floats, tpot_s: Floats) -> dict[str, Floats]:
    """What follows from the times: a whole request, rates of a sequence and of all, and what a million tokens cost."""
    e2e_s = ttft_s + (outputs - 1) * tpot_s if case.model.generates else ttft_s
    sustained = batch * outputs / e2e_s if case.model.generates else np.full_like(ttft_s, np.nan)
    return {
        "e2e_s": e2e_s,
        "decode_tokens_per_s": 1 / tpot_s,
        "output_tokens_per_s": batch / tpot_s,
        "sustained_tokens_per_s": sustained,
        "sustained_tokens_per_s_per_gpu": sustained / case.gpus,
        "sustained_usd_per_million_tokens": np.asarray(usd_per_million(case.gpus * case.usd_per_h, sustained, 1.0)),
    }


@lru_cache(maxsize=16)
def _calibration(name: str) -> Efficiency:
    return Efficiency.load(name)
