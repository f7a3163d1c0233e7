"""Continuous batching in steady state, in closed form: requests join and leave a batch at every step. Knows no model and no part.

With n requests at work each is served at a rate of 1 / S(n), which makes it a symmetric queue whose means do not depend on the law of the
outputs: the number at work follows a birth-death law, whatever S(n) is. Beyond the most that run at once requests wait in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from inferplan.deployment import Estimate
from inferplan.errors import SpecError
from inferplan.formula import formula
from inferplan.ops import Numeric
from inferplan.serving.batch_times import BatchTimes, Workload, batch_times, cache_slots, no_room, slots, used_slots
from inferplan.serving.lengths import Lengths
from inferplan.serving.queueing import States, birth_death, fixed_service_factor, over_idle, service_factor

BONOMI = "Bonald, Proutiere 2002; Cohen 1979: symmetric queue with rate n / (m (a + b n) + p n); Poisson arrivals, load < 1, no cap"
MET, WITHIN, IN_STEP, PROMPTS_AHEAD = 32, 4, 6, 12  # points: batches met, places in a step, prompts in a step, prompts ahead


@formula("rate_per_s * (tokens * per_sequence_s + prefill_s)", unit="1", ref=BONOMI)
def shared_load(rate_per_s: Numeric, tokens: Numeric, per_sequence_s: Numeric, prefill_s: Numeric = 0) -> Numeric:
    """The load of a device whose steps take `fixed_s + per_sequence_s n`: what one more request adds, times their rate. Stable below 1.

    >>> round(shared_load(5.0, 200, 0.0005), 9)
    0.5
    """
    return rate_per_s * (tokens * per_sequence_s + prefill_s)


@formula(
    "where(load < 1, load * (1 + tokens * fixed_s / (tokens * per_sequence_s + prefill_s)) / (1 - load + (load == 1)), inf)",
    unit="requests",
    ref=BONOMI,
)
def shared_running(load: Numeric, tokens: Numeric, fixed_s: Numeric, per_sequence_s: Numeric, prefill_s: Numeric = 0) -> Numeric:
    """The mean batch, which is negative binomial; 21 where the load is a half and the fixed part 20 times that of a sequence.

    >>> round(float(shared_running(0.5, 200, 0.01, 0.0005)), 9)
    21.0
    """
    return over_idle(load * (1 + tokens * fixed_s / (tokens * per_sequence_s + prefill_s)), load)


@formula("where(load < 1, (fixed_s + per_sequence_s) / (1 - load + (load == 1)), inf)", unit="s", ref=BONOMI)
def shared_tpot_s(load: Numeric, fixed_s: Numeric, per_sequence_s: Numeric) -> Numeric:
    """The mean gap between tokens: a step of one sequence, over what the load leaves.

    >>> round(float(shared_tpot_s(0.5, 0.01, 0.0005)), 9)
    0.021
    """
    return over_idle(fixed_s + per_sequence_s, load)


@formula("where(load < 1, (tokens * (fixed_s + per_sequence_s) + prefill_s) / (1 - load + (load == 1)), inf)", unit="s", ref=BONOMI)
def shared_time_s(load: Numeric, tokens: Numeric, fixed_s: Numeric, per_sequence_s: Numeric, prefill_s: Numeric = 0) -> Numeric:
    """The mean time of a request of `tokens`: what it takes alone, over what the load leaves.

    >>> round(float(shared_time_s(0.5, 200, 0.01, 0.0005)), 9)
    4.2
    """
    return over_idle(tokens * (fixed_s + per_sequence_s) + prefill_s, load)


@dataclass(frozen=True, slots=True, eq=False)
class Serving:
    """Steady state under a load. Arrays of the shape of the loads; means over requests, infinite where more arrives than can be served.

    requests_per_s
        served: what arrives, or the most that can be served.
    ttft_s
        from arrival to the first token: waiting for a place, for the running step, prefill.
    wait_s
        the part of it that is spent waiting for a place.
    running, waiting
        requests at work and requests that wait for a place, in the mean.
    load
        what arrives over the most that can be served; stable below 1. In a closed loop what is served over it.
    busy
        the share of time in which anything runs.
    cache_used, cache_reserved
        the share of the cache that holds tokens, and that is set aside.
    front_s
        what host and front end take for a prompt beside the engine's steps, where `with_front` has put it into times.
    """

    requests_per_s: np.ndarray
    output_tokens_per_s: np.ndarray
    ttft_s: np.ndarray
    tpot_s: np.ndarray
    e2e_s: np.ndarray
    wait_s: np.ndarray
    running: np.ndarray
    waiting: np.ndarray
    load: np.ndarray
    busy: np.ndarray
    cache_used: np.ndarray
    cache_reserved: np.ndarray
    stable: np.ndarray
    front_s: float = field(default=0.0, kw_only=True)

    def with_front(self, front_s: float) -> Self:
        """The same as clients measure it, where host and front end take so many seconds for a prompt, in the mean."""
        return replace(self, ttft_s=self.ttft_s + front_s, e2e_s=self.e2e_s + front_s, front_s=self.front_s + front_s)


def counts(mean: np.ndarray, most: int, more: np.ndarray) -> np.ndarray:
    """The chances of 0 ... most - 1 events, what is left over given to the last; a new last axis replaces that of the mean, of size 1.

    Poisson, or where `more` is above 0 negative binomial with a variance of mean / (1 - more).

    >>> counts(np.array([0.5]), 3, np.array([0.0])).round(4).tolist()
    [0.6065, 0.3033, 0.0902]
    """
    k = np.arange(1, most)
    ratio = (mean * (1 - more) + (k - 1) * more) / k
    none = np.exp(mean * (1 - more) * np.where(more > 0, np.log1p(-more) / np.where(more > 0, more, 1.0), -1.0))
    found: np.ndarray = none * np.concatenate([np.ones_like(mean), np.cumprod(ratio, axis=-1)], axis=-1)
    found[..., -1] = np.maximum(1 - found[..., :-1].sum(axis=-1), 0.0)
    return found


def _around(mean: np.ndarray, most: int, more: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of events and their chances; where the mean is large the numbers lie around it."""
    middle = np.minimum(mean, most / 2)
    return np.arange(most) + (mean - middle), counts(middle, most, more)


def weighted_quantile(values: np.ndarray, weights: np.ndarray, q: float) -> np.ndarray:
    """The least of the values along the last axis that a share q of their weight does not exceed.

    >>> float(weighted_quantile(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0]), 0.5))
    2.0
    """
    values, weights = np.broadcast_arrays(values, weights)
    order = np.argsort(values, axis=-1)
    sums = np.cumsum(np.take_along_axis(weights, order, -1), axis=-1)
    place = np.minimum((sums < q * sums[..., -1:] * (1 - 1e-12)).sum(axis=-1), values.shape[-1] - 1)
    found = np.take_along_axis(np.take_along_axis(values, order, -1), place[..., None], -1)
    return np.asarray(found[..., 0])


@dataclass(frozen=True, slots=True, eq=False)
class Continuous(Serving):
    """Steady state of continuous batching, with the laws that percentiles are taken from.

    states
        how often so many requests are at work or wait; all at N where more arrives than can be served.
    times
        what n requests at work cost.
    open
        whether requests arrive on their own, or each client sends its next when it has its answer.
    """

    states: States
    times: BatchTimes
    output: Lengths
    open: bool = True

    @property
    def _departures(self) -> np.ndarray:
        """How often a request leaves n at work behind or is one of them, for n = 1 ... N, shape (..., N): the law that requests see."""
        within = self.states.probability[..., 1:].copy()
        within[..., -1] += self.states.beyond
        return np.asarray(within * self.times.rates_per_s)

    def running_quantile(self, q: float) -> np.ndarray:
        """The batch that a share q of time does not exceed."""
        return np.asarray(np.minimum(self.states.quantile(q), self.times.most))

    def tpot_quantile_s(self, q: float) -> np.ndarray:
        """The mean gap of a short request that a share q of them do not exceed; long requests are nearer to the mean."""
        return weighted_quantile(self.times.gap_s, self._departures, q)

    def itl_quantile_s(self, q: float) -> np.ndarray:
        """The single gap that a share q of them do not exceed: steps that carry a prompt are longer ones."""
        share, seen = self.times.chunk_share, self._departures
        values = np.stack([self.times.decode_s, self.times.chunk_s], axis=-1).ravel()
        weights = np.stack([seen * (1 - share), seen * share], axis=-1)
        return weighted_quantile(values, weights.reshape(*weights.shape[:-2], -1), q)

    def ttft_quantile_s(self, q: float) -> np.ndarray:
        """The time to the first token that a share q of requests does not exceed; infinite where it is not stable.

        Over the batch that requests meet, the step they fall into, where in it, the law of prompts, and how many others are ahead.
        """
        t, at, wait = self.times, *self._met()
        steps, chance = self._fallen_into(at)
        within = wait[..., None, None] + steps[..., None] * (np.arange(WITHIN) + 0.5) / WITHIN * self.open
        behind = np.asarray(np.broadcast_to(t.filled, t.decode_s.shape) > 1)[at - 1][..., None]
        ahead = np.where(behind, t.ahead[at - 1][..., None], steps * self._others(at)[0])[..., None]
        many, likely = _around(ahead, PROMPTS_AHEAD, 0.0 * ahead)
        others = many * t.delay_s[at - 1][..., None, None]
        own = np.moveaxis(t.own_s, 0, -1)[at - 1]
        values = within[..., None, None] + own[..., None, None, :, None] + others[..., None, None, :]
        weights = np.broadcast_to((chance[..., None] * likely)[..., None, None, :], values.shape)
        flat = (*self.stable.shape, -1)
        return np.where(self.stable, weighted_quantile(values.reshape(flat), weights.reshape(flat), q), np.inf) + self.front_s

    def _others(self, at: np.ndarray) -> tuple[np.ndarray, ...]:
        """Of the requests that the n-th to join meets: rate, decode step and prefill, shapes (..., MET, 1); no rate for the first."""
        t, place = self.times, np.maximum(at - 2, 0)
        rate = np.where(at > 1, t.rates_per_s[place], 0.0)
        found = rate, t.decode_s[place], t.prefill_s[place] * t.blocked
        return tuple(x[..., None] for x in found)

    def _fallen_into(self, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Steps that arrivals fall into and how likely, by prompts in them, shapes (..., MET, IN_STEP): long steps are met more often.

        The number of prompts varies like a Poisson one whose mean follows the step before: by 1 / (1 - share^2) more.
        """
        rate, decode, prefill = self._others(at)
        share = np.minimum(rate * prefill, 1 - 1e-9)
        many, likely = _around(rate * decode / (1 - share), IN_STEP, share**2)
        steps = np.where(rate > 0, decode + many * prefill, 0.0)
        weight = likely * np.where(rate > 0, steps, 1.0)
        return steps, weight / weight.sum(axis=-1, keepdims=True)

    def _met(self) -> tuple[np.ndarray, np.ndarray]:
        """Batches that requests join, and how long they wait for their place, by points of equal weight, shapes (..., MET).

        Those who wait join a full batch; in an open loop their waits are exponential, in a closed one all alike.
        """
        ranks = (np.arange(MET) + 0.5) / MET
        sums = np.cumsum(self._departures, axis=-1)
        joined = 1 + (sums[..., None, :] < ranks[:, None] * sums[..., -1:, None]).sum(axis=-1)
        arrives = self.states.probability[..., -1] + self.states.beyond if self.open else (self.wait_s > 0) * 1.0
        share = np.maximum(arrives, 1e-300)[..., None]
        among = np.clip((ranks - (1 - share)) / share, 0.0, 1.0)
        shape = -np.log1p(-np.minimum(among, 1 - 1e-12)) if self.open else (among > 0) * 1.0
        mean = np.where(np.isfinite(self.wait_s), self.wait_s, 0.0)[..., None] / share
        return np.minimum(joined, self.times.most), shape * np.where(among > 0, mean, 0.0)

    def e2e_quantile_s(self, q: float) -> np.ndarray:
        """The time to the last token that a share q of requests does not exceed: long outputs, at a pace that swings with the batch.

        The longer a request runs, the nearer its pace comes to the mean.
        """
        steps = np.asarray(self.output.quantile((np.arange(200) + 0.5) / 200)) - 1
        steps *= (self.output.mean - 1) / max(steps.mean(), 1e-300)
        pace = np.stack([self.tpot_quantile_s((i + 0.5) / 20) for i in range(20)], axis=-1)
        swing = (pace - pace.mean(axis=-1, keepdims=True))[..., None, :] * self._kept(steps)[..., None]
        values = self.ttft_s[..., None, None] + steps[:, None] * (self.tpot_s[..., None, None] + swing)
        flat = values.reshape(*values.shape[:-2], -1)
        return np.where(self.stable, weighted_quantile(flat, np.ones_like(flat), q), np.inf)

    def _kept(self, steps: np.ndarray) -> np.ndarray:
        """How much of the batch's swing is left in the mean pace of a request of so many steps, shape (..., steps).

        The batch forgets exponentially, in the time after which a surplus of requests is worked off.
        """
        n = np.minimum(np.maximum(self.running, 1.0), self.times.most)
        every = np.arange(1, self.times.most + 1)
        slope = np.gradient(self.times.rates_per_s) if self.times.most > 1 else self.times.rates_per_s
        forgets = np.maximum(np.interp(n, every, slope), 1e-12)
        x = np.maximum(steps * self.tpot_s[..., None] * forgets[..., None], 1e-9)
        return np.asarray(np.sqrt(2 / x * (1 + np.expm1(-x) / x)))


@dataclass(frozen=True, slots=True)
class Room:
    """Requests that the cache would hold at once if each took what it has filled, and if each took what is set aside for it."""

    used: float = np.inf
    reserved: float = np.inf


NO_LIMIT = Room()


def open_loop(times: BatchTimes, output: Lengths, rate_per_s: Numeric, room: Room = NO_LIMIT) -> Continuous:
    """Steady state under Poisson arrivals at `rate_per_s`, an array of any shape: the law of the batch is birth-death with n / S(n).

    The wait beyond the most that run at once is that of exponential outputs, times the factor of their law: within about a tenth.
    """
    rate = np.asarray(rate_per_s, dtype=float)
    births = np.broadcast_to(rate[..., None], (*rate.shape, times.most))
    states = birth_death(births, times.rates_per_s, repeats=True)
    last = np.zeros(times.most + 1)
    last[-1] = 1.0
    shown = States(np.where(states.stable[..., None], states.probability, last), np.where(states.stable, states.ratio, 0.0))
    queued = np.where(states.stable, states.queued, np.inf) * waiting_factor(times, output, rate)
    return _continuous(times, output, shown, rate, queued, states.stable, room)


def closed_loop(times: BatchTimes, output: Lengths, clients: Numeric, room: Room = NO_LIMIT) -> Continuous:
    """Steady state of `clients` that each send their next request at once: X = n / S(n) with as many at work as can be."""
    count = np.asarray(clients)
    if np.any(count < 1) or np.any(count != np.floor(count)):
        raise SpecError("must be whole numbers from 1", field="concurrency", value=str(clients))
    at_work = np.minimum(count, times.most).astype(int)
    states = States((np.arange(times.most + 1) == at_work[..., None]).astype(float), np.zeros(count.shape))
    rate = np.append(0.0, times.rates_per_s)[at_work]
    return _continuous(times, output, states, rate, count - at_work, np.ones(count.shape, dtype=bool), room, closed=True)


def waiting_factor(times: BatchTimes, output: Lengths, rate_per_s: np.ndarray) -> np.ndarray:
    """What the wait of exponential outputs is multiplied by for another law: that of as many servers at the same load."""
    spread = output.variance * float(times.decode_s[-1]) ** 2 / float(times.alone_s[-1]) ** 2
    fixed = fixed_service_factor(rate_per_s / times.rates_per_s[-1], times.most)
    return np.asarray(service_factor(spread, fixed))


def _continuous(
    times: BatchTimes,
    output: Lengths,
    states: States,
    rate: np.ndarray,
    queued: np.ndarray,
    stable: np.ndarray,
    room: Room,
    *,
    closed: bool = False,
) -> Continuous:
    served = np.where(stable, rate, times.rates_per_s[-1])
    n = np.arange(times.most + 1)
    per_request = np.append(0.0, times.rates_per_s)

    def seen(values: np.ndarray) -> np.ndarray:
        """The mean over requests of a value that n at work have."""
        return np.asarray(states.expect(per_request * np.append(0.0, values)) / served)

    wait = np.where(queued > 0, queued / served, 0.0)
    first = seen(times.first_s + (0.0 if closed else times.rest_s)) + wait
    gap, running = seen(times.gap_s), states.expect(n)
    return Continuous(
        requests_per_s=served,
        output_tokens_per_s=served * output.mean,
        ttft_s=first,
        tpot_s=gap,
        e2e_s=first + (output.mean - 1) * gap,
        wait_s=wait,
        running=running,
        waiting=queued,
        load=rate / times.rates_per_s[-1],
        busy=1 - states.probability[..., 0],
        cache_used=running / room.used,
        cache_reserved=running / room.reserved,
        stable=stable,
        states=states,
        times=times,
        output=output,
        open=not closed,
    )


def continuous(
    e: Estimate, workload: Workload | None = None, *, rate_per_s: Numeric | None = None, clients: Numeric | None = None,
    max_num_seqs: int | None = None, times: BatchTimes | None = None,
) -> Continuous:  # fmt: skip
    """Steady state of a deployment under continuous batching: an open loop by arrival rates, or a closed one by numbers of clients.

    What one request needs and what the engine reserves come from the estimate; lengths from `workload`, else all alike.
    Raises DoesNotFit where no request runs, SpecError unless exactly one kind of load is given.
    """
    if (rate_per_s is None) == (clients is None):
        raise SpecError("give either arrival rates or a number of clients", field="load")
    work = (workload or Workload.of(e)).checked()
    most = times.most if times is not None else slots(e, work, max_num_seqs)
    if most < 1:
        raise no_room(e)
    found = times or batch_times(e, work, most)
    room = Room(used_slots(e, work), cache_slots(e, work))
    if rate_per_s is not None:
        return open_loop(found, work.output, _positive(rate_per_s), room)
    return closed_loop(found, work.output, np.asarray(clients), room)


def _positive(rate_per_s: Numeric) -> np.ndarray:
    rate = np.asarray(rate_per_s, dtype=float)
    if not np.all((rate > 0) & np.isfinite(rate)):
        raise SpecError("must be above 0 and finite", field="rate", value=str(rate_per_s))
    return rate
