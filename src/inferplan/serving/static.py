"""Static batching in steady state, in closed form: a batch is admitted, padded to its longest member, and kept until all have finished.

Knows no scheduler beside this one. Rows that have finished go on being computed until the batch ends, as in a plain generate loop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from inferplan.deployment import Estimate, in_flight
from inferplan.engine.segment import Segment
from inferplan.engine.step import before, step
from inferplan.errors import SpecError
from inferplan.formula import formula
from inferplan.ops import Numeric
from inferplan.serving.batch_times import MOST, Workload, ages, held_at, no_room, reserved_tokens
from inferplan.serving.continuous import Continuous, Serving
from inferplan.serving.lengths import Lengths
from inferplan.serving.queueing import kingman_wait_s
from inferplan.specs.engine import SLOTTED

ONE_BY_ONE, FURTHER = 16, 24  # batch sizes asked of the engine: each at first, then evenly spread in the logarithm


@formula("1 - mean / longest", unit="1", ref="a batch computes every row as long as its longest member's")
def waste(mean: Numeric, longest: Numeric) -> Numeric:
    """The share of a batch's rows times tokens that belongs to no request: 1 - 1 / H_B for exponential lengths.

    >>> round(waste(128.0, 128.0 * 2.717857), 4)
    0.6321
    """
    return 1 - mean / longest


def longest_of(lengths: Lengths, count: float) -> Lengths:
    """The law of the longest of `count` independent lengths, which need not be a whole number.

    >>> round(longest_of(Lengths.uniform(1, 2), 2).mean, 9)
    1.75
    """
    powers = np.minimum(np.cumsum(lengths.probabilities), 1.0) ** count
    return Lengths.of(lengths.values, np.maximum(np.diff(powers, prepend=0.0), 0.0), f"longest of {count:g}")


@dataclass(frozen=True, slots=True, eq=False)
class BatchRun:
    """A batch of each size in `sizes` from its start to its end; arrays of that shape, means over the laws of lengths.

    input_tokens, output_tokens
        of the longest member.
    cv2
        squared coefficient of variation of the whole run, from the law of the longest output.
    """

    sizes: np.ndarray
    prefill_s: np.ndarray
    gap_s: np.ndarray
    input_tokens: np.ndarray
    output_tokens: np.ndarray
    cv2: np.ndarray

    @property
    def time_s(self) -> np.ndarray:
        """From start to end."""
        return np.asarray(self.prefill_s + (self.output_tokens - 1) * self.gap_s)

    def at(self, batch: np.ndarray) -> BatchRun:
        """The same for other sizes, interpolated."""
        names = ("prefill_s", "gap_s", "input_tokens", "output_tokens", "cv2")
        return BatchRun(batch, *(np.interp(batch, self.sizes, getattr(self, name)) for name in names))


@dataclass(frozen=True, slots=True, eq=False)
class Static(Serving):
    """Steady state of static batching. Answers are streamed: the first token comes with the prefill; `e2e_s` is the mean to a request's own
    last token, `returned_s` to the end of its batch, when everything is returned that is not streamed.

    batch
        requests in a batch, in the mean.
    most
        requests that a batch takes at most.
    padding, idle
        the share of prompt positions that are padding, and of output positions of requests that have finished.
    run
        batches of every size.
    """

    returned_s: np.ndarray
    batch: np.ndarray
    most: int
    padding: np.ndarray
    idle: np.ndarray
    run: BatchRun

    def with_front(self, front_s: float) -> Self:
        """As `Serving` says."""
        found = super(Static, self).with_front(front_s)  # slots make a second class, which super() without names does not know
        return replace(found, returned_s=self.returned_s + front_s)


@dataclass(frozen=True, slots=True)
class Gain:
    """What continuous batching makes of a device at full load over static batching, as factors that multiply to `total`.

    finished
        no rows of finished requests: the longest output of a batch over the mean one.
    places
        more requests at once, since cache is not set aside for lengths that do not come.
    steps
        longer steps of larger batches, and prefills between them: below 1, or above where prefills were padded.
    """

    total: float
    finished: float
    places: float

    @property
    def steps(self) -> float:
        """What is left of the total."""
        return self.total / (self.finished * self.places)


def gain(continuous: Continuous, static: Static) -> Gain:
    """The gain at full load, and where it comes from."""
    run, times = static.run, continuous.times
    most = float(times.rates_per_s[-1] / (static.most / run.time_s[-1]))
    return Gain(most, float(run.output_tokens[-1]) / continuous.output.mean, times.most / static.most)


def static_slots(e: Estimate, workload: Workload, batch: int | None = None) -> int:
    """The most requests in a batch: each has its longest length set aside, in one piece."""
    c = e.capacity
    limit = np.inf if e.engine.policy in SLOTTED else float(np.min(c.launch.max_num_seqs * c.groups))
    room = float(held_at(e, reserved_tokens(e, workload)))
    return int(min(room, float(np.min(c.state_limit * c.groups)), limit, MOST, batch or np.inf))


def batch_run(e: Estimate, workload: Workload, most: int) -> BatchRun:
    """Batches of 1 to `most` requests by the engine's own steps: one padded prefill, then decodes of all rows to the longest output."""
    further = np.geomspace(ONE_BY_ONE, max(most, ONE_BY_ONE), FURTHER).round()
    sizes = np.asarray(sorted({*(n for n in (*range(1, ONE_BY_ONE), *further) if n < most), float(most)}), dtype=float)
    outputs = [longest_of(workload.output, size) for size in sizes]
    padded = np.array([longest_of(workload.input, size).mean for size in sizes])
    made = [ages(law) for law in outputs]
    contexts = np.array([np.resize(points, max(map(len, made))) for points in made]) + padded[:, None]
    held = np.asarray(in_flight(sizes, e.setting.parallel))
    run = step(e.model, e.hardware, e.precision, Segment(held[:, None], 1, before(contexts, 1)), setting=e.setting)
    known = np.asarray(workload.cached(padded))
    first = step(e.model, e.hardware, e.precision, Segment(sizes, padded - known, known), setting=e.setting)
    gap = np.broadcast_to(run.time_s, contexts.shape).mean(axis=1)
    prefill = np.broadcast_to(first.time_s, sizes.shape)
    mean, variance = np.array([law.mean for law in outputs]), np.array([law.variance for law in outputs])
    return BatchRun(sizes, prefill, gap, padded, mean, variance * gap**2 / (prefill + (mean - 1) * gap) ** 2)


def static(
    e: Estimate, workload: Workload | None = None, *, rate_per_s: Numeric | None = None, clients: Numeric | None = None,
    batch: int | None = None,
) -> Static:  # fmt: skip
    """Steady state of a deployment under static batching: by arrival rates, or by numbers of clients that each wait for their answer.

    A batch takes what waits when the last one ends, at most `batch` or what fits. Waits in an open loop are approximate, within a quarter
    at a load of about 0.2 and a tenth elsewhere: the rest of a running batch, then that of full batches for others.
    Raises DoesNotFit where not one request runs, SpecError unless exactly one kind of load is given.
    """
    if (rate_per_s is None) == (clients is None):
        raise SpecError("give either arrival rates or a number of clients", field="load")
    work = (workload or Workload.of(e)).checked()
    most = static_slots(e, work, batch)
    if most < 1:
        raise no_room(e)
    run = batch_run(e, work, most)
    if rate_per_s is not None:
        return _open(e, work, run, np.asarray(rate_per_s, dtype=float))
    count = np.asarray(clients, dtype=float)
    at = run.at(np.minimum(count, most))
    rate = at.sizes / at.time_s
    ones = np.ones(count.shape)
    return _static(e, work, run, at, rate, (count - at.sizes) / rate, ones * (rate * run.time_s[-1] / most), ones, ones > 0)


def _open(e: Estimate, work: Workload, run: BatchRun, rate: np.ndarray) -> Static:
    """Poisson arrivals: the batch is what arrives while one runs."""
    most = run.sizes[-1]
    load = rate * run.time_s[-1] / most
    stable = load < 1
    at = run.at(np.where(stable, settled(run, rate), most))
    busy = np.minimum(rate * at.time_s / at.sizes, 1.0)
    rest = busy * at.time_s * (1 + at.cv2) / 2
    wait = np.where(stable, rest + bulk_wait_s(load, run.time_s[-1], most, run.cv2[-1]), np.inf)
    return _static(e, work, run, at, np.where(stable, rate, most / run.time_s[-1]), wait, load, busy, stable)


@formula(
    "where(load < 1, load ** 2 * time_s * (1 / most + cv2) / 2 / (1 - load + (load == 1))"
    " * exp(-maximum(1 - load, 0) * (1 - 1 / most) ** 2 / (3 * load * (1 / most + cv2))), inf)",
    unit="s",
    ref="Kingman for batches, whose arrivals have a squared variation of 1 / most, less what the rest of the running batch has in it;"
    " factor of Kraemer and Langenbach-Belz 1976 for arrivals that regular, its exponent halved, which is nearer to simulated bulk"
    " queues; exact with that rest for batches of one; load < 1",
)
def bulk_wait_s(load: Numeric, time_s: Numeric, most: Numeric, cv2: Numeric) -> Numeric:
    """How long full batches wait for others, the running one not counted, about.

    >>> round(float(bulk_wait_s(0.9, 4.0, 32, 0.0)), 3)
    0.166
    """
    spread = 1 / np.asarray(most, dtype=float) + cv2
    idle = np.maximum(1 - np.asarray(load, dtype=float), 0)
    regular = np.exp(-idle * (1 - 1 / np.asarray(most, dtype=float)) ** 2 / (3 * load * spread))
    found: Numeric = load * kingman_wait_s(load, time_s, 1 / np.asarray(most, dtype=float), cv2) * regular
    return found


def settled(run: BatchRun, rate_per_s: np.ndarray) -> np.ndarray:
    """The batch that arrives while one like it runs, at least 1 and at most the largest: the least solution of b = rate x time(b)."""
    excess = rate_per_s[..., None] * run.time_s - run.sizes
    short = np.concatenate([excess <= 0, np.ones((*excess.shape[:-1], 1), dtype=bool)], axis=-1)
    first = np.minimum(short.argmax(axis=-1), run.sizes.size - 1)
    before_it = np.maximum(first - 1, 0)
    high = np.take_along_axis(excess, first[..., None], -1)[..., 0]
    low = np.take_along_axis(excess, before_it[..., None], -1)[..., 0]
    part = np.where((first > 0) & (low > 0) & (high < low), low / np.where(high < low, low - high, 1.0), 1.0)
    size = run.sizes[before_it] + np.clip(part, 0, 1) * (run.sizes[first] - run.sizes[before_it])
    return np.asarray(size)


def _static(
    e: Estimate, work: Workload, run: BatchRun, at: BatchRun, rate: np.ndarray, wait: np.ndarray, load: np.ndarray, busy: np.ndarray,
    stable: np.ndarray,
) -> Static:  # fmt: skip
    own = at.prefill_s + (work.output.mean - 1) * at.gap_s
    held, most, reserved = np.asarray(busy * at.sizes), int(run.sizes[-1]), reserved_tokens(e, work)
    live = work.input.mean * work.output.mean + work.output.second_moment / 2
    holds = float(held_at(e, reserved))
    return Static(
        requests_per_s=rate,
        output_tokens_per_s=rate * work.output.mean,
        ttft_s=wait + at.prefill_s,
        tpot_s=at.gap_s,
        e2e_s=wait + own,
        wait_s=wait,
        running=held,
        waiting=rate * wait,
        load=load,
        busy=busy,
        cache_used=held / holds * live / (at.output_tokens * reserved),
        cache_reserved=held / holds,
        stable=stable,
        returned_s=wait + at.time_s,
        batch=at.sizes,
        most=most,
        padding=np.maximum(waste(work.input.mean, at.input_tokens), 0.0),
        idle=np.maximum(waste(work.output.mean, at.output_tokens), 0.0),
        run=run,
    )
