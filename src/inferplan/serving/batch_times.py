"""What requests that run together cost one another: decode steps, prefills between them, room in the cache. Knows no arrival and no queue.

Times come from the engine's own steps, asked for all batch sizes in one call; here they are only averaged and added up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from inferplan.deployment import Estimate, in_flight
from inferplan.engine.segment import Segment
from inferplan.engine.step import before, step
from inferplan.errors import DoesNotFit, SpecError, Unsupported
from inferplan.ops import Numeric
from inferplan.serving.lengths import Lengths
from inferplan.specs.engine import SLOTTED

AGES, PROMPTS, CHUNKS = 16, 8, 8  # points that stand for the lengths a batch holds, for the laws of prompts, for the chunks of one
MOST = 16_384  # requests at once that are looked at one by one
ONE_BY_ONE, FURTHER = 48, 64  # batch sizes asked of the engine: each at first, then evenly spread in the logarithm


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """Lengths of prompts and of outputs, drawn apart, and the share of a prompt's tokens that a prefix cache already holds."""

    input: Lengths
    output: Lengths
    hit_rate: float = 0.0

    @classmethod
    def of(cls, e: Estimate) -> Workload:
        """Requests all alike, as an estimate has them."""
        load = e.load
        return cls(Lengths.fixed(load.input_tokens), Lengths.fixed(load.output_tokens), load.cached / load.input_tokens)

    def checked(self) -> Workload:
        """The same, once the hit rate is a share; raises SpecError."""
        if not 0 <= self.hit_rate < 1:
            raise SpecError("must lie from 0 to below 1", field="hit_rate", value=self.hit_rate)
        return self

    def cached(self, tokens: Numeric) -> Numeric:
        """Cached tokens of a prompt: at least one token is always computed."""
        found: Numeric = np.minimum(np.floor(self.hit_rate * np.asarray(tokens) + 1e-9), np.asarray(tokens) - 1)
        return found

    @property
    def steps(self) -> float:
        """Decode steps of a request in the mean: one fewer than output tokens, since prefill gives the first."""
        return self.output.mean - 1

    @property
    def contexts(self) -> np.ndarray:
        """Contexts of the decode steps that a batch is in at a random time, as points of equal weight, shape (k,)."""
        found: np.ndarray = self.input.mean + ages(self.output)
        return found


def ages(output: Lengths) -> np.ndarray:
    """How many tokens a running request has made, seen at a random time: points of equal weight with the exact mean.

    Long outputs are met more often: the mean is E[N (N - 1) / 2] / E[N - 1].

    >>> float(ages(Lengths.fixed(129)).mean()), round(float(ages(Lengths.exponential(128)).mean()))
    (64.5, 128)
    """
    steps = output.values - 1
    whole = float(steps @ output.probabilities)
    if whole == 0:
        return np.ones(1)
    run = np.cumsum(steps * output.probabilities) + steps * (1 - np.cumsum(output.probabilities))  # E[min(N - 1, x)]
    shares = (np.arange(AGES) + 0.5) / AGES
    points = np.interp(shares, np.append(0.0, run / whole), np.append(0.0, steps))
    mean = float((output.values * steps / 2) @ output.probabilities) / whole
    found: np.ndarray = points * (mean / points.mean())
    return found


def points_of(lengths: Lengths, count: int = PROMPTS) -> np.ndarray:
    """A law as points of equal weight with its exact mean; one point where all lengths are alike."""
    if lengths.values.size == 1:
        return lengths.values
    points = lengths.quantile((np.arange(count) + 0.5) / count)
    found: np.ndarray = points * (lengths.mean / points.mean())
    return found


@dataclass(frozen=True, eq=False)
class BatchTimes:
    """Seconds of n requests that run together, for n = 1 ... N.

    decode_s
        one decode step of n sequences, shape (N,).
    prompts_s
        what the prefill of one prompt adds to the steps it shares, by points of the law of prompts, shape (points, N).
    passes
        steps in which that prefill takes part, each as long as a decode step besides, shape (points, N); 0 where prefills run alone.
    steps
        decode steps of one request in the mean.
    blocked
        the part of a prefill's time for which the others wait: 1, or less where stages or groups of devices work side by side.
    filled
        the part of the prompt tokens of a step that one prompt takes in the mean, in steps, shape (N,): no more than a step's go into one.
    """

    decode_s: np.ndarray
    prompts_s: np.ndarray
    passes: np.ndarray
    steps: float
    blocked: float = 1.0
    filled: np.ndarray | float = 0.0

    @classmethod
    def linear(cls, fixed_s: float, per_sequence_s: float, most: int, steps: float, *, prefill_s: float = 0.0) -> BatchTimes:
        """Steps of `fixed_s + per_sequence_s n`; the first token takes a step too, longer by `prefill_s`."""
        n = np.arange(1, most + 1)
        return cls(fixed_s + per_sequence_s * n, np.full((1, most), prefill_s), np.ones((1, most)), steps)

    @property
    def most(self) -> int:
        """N, the most requests that run at once."""
        return int(self.decode_s.size)

    @cached_property
    def prefill_s(self) -> np.ndarray:
        """What a prefill adds in the mean over prompts, shape (N,)."""
        return np.asarray(self.prompts_s.mean(axis=0))

    @cached_property
    def own_s(self) -> np.ndarray:
        """A prefill with its own steps, without those of others, by points of the law of prompts, shape (points, N)."""
        return np.asarray(self.passes * self.decode_s + self.prompts_s)

    @cached_property
    def alone_s(self) -> np.ndarray:
        """A request's own steps and prefill, without what others' prefills add, shape (N,)."""
        return np.asarray(self.steps * self.decode_s + self.own_s.mean(axis=0))

    @cached_property
    def time_s(self) -> np.ndarray:
        """The time of a request while n run, S(n), shape (N,): in it each of the others starts once and delays it by a prefill.

        It is no less than what the prompts of all n need where steps are full of them.
        """
        n = np.arange(1, self.most + 1)
        shared = self.alone_s + (n - 1) * self.blocked * self.prefill_s
        return np.asarray(np.maximum(shared, n * self.blocked * self._turn_s))

    @property
    def _turn_s(self) -> np.ndarray:
        """For how long a prompt keeps other prompts from being prefilled, shape (N,)."""
        return np.asarray(self.filled * self.decode_s + self.prefill_s)

    @cached_property
    def rates_per_s(self) -> np.ndarray:
        """Requests finished per second while n run, n / S(n), shape (N,)."""
        return np.asarray(np.arange(1, self.most + 1) / self.time_s)

    @cached_property
    def step_s(self) -> np.ndarray:
        """The mean of a step while n run, with the prompts in it, shape (N,)."""
        return np.asarray(self.decode_s / (1 - self._prefilling))

    @property
    def _prefilling(self) -> np.ndarray:
        """The share of time that prefills add, shape (N,)."""
        return np.asarray(np.minimum(self.rates_per_s * self.prefill_s * self.blocked, 1 - 1e-9))

    @cached_property
    def met_s(self) -> np.ndarray:
        """The mean of the step that an arrival falls into, E[s^2] / E[s], shape (N,).

        A step takes on the prompts that came during the one before: s = T + j p with j a Poisson number of mean s times their rate.
        """
        share = self._prefilling
        prompt = np.where(self.prefill_s > 0, (self.prompts_s**2).mean(axis=0) / np.where(self.prefill_s > 0, self.prefill_s, 1.0), 0.0)
        square = self.decode_s**2 + (2 * self.decode_s + prompt) * share * self.step_s
        return np.asarray(square / (1 - share**2) / self.step_s)

    @property
    def rest_s(self) -> np.ndarray:
        """The mean rest of a running step, for n = 0 ... N - 1 requests that an arrival meets, shape (N,): nothing runs at 0."""
        return np.append(0.0, self.met_s[:-1] / 2)

    @cached_property
    def ahead(self) -> np.ndarray:
        """How many prompts of others an arrival has in its way that becomes the n-th, in the mean, shape (N,).

        Those that came in the same step; where prompts take whole steps, those that queue for them (Pollaczek-Khinchine).
        """
        met, rate = self.met_s[:-1], self.rates_per_s[:-1]
        joined = np.append(0.0, rate * met)
        turn = self._turn_s[:-1] * self.blocked
        idle = np.maximum(1 - rate * turn, 1e-9)
        queued = np.append(0.0, rate * turn / (2 * idle))
        return np.asarray(np.minimum(np.where(np.asarray(self.filled) > 1, queued, joined), np.arange(self.most)))

    @cached_property
    def first_s(self) -> np.ndarray:
        """From the first step of a prefill to the first token, for the n-th request, in the mean over prompts, shape (N,)."""
        whole = self.own_s.mean(axis=0) + self.ahead * self.delay_s
        return np.asarray(np.minimum(whole, self.time_s) if self.steps > 0 else self.time_s)

    @property
    def delay_s(self) -> np.ndarray:
        """What each prompt ahead delays a prefill by, shape (N,)."""
        return np.asarray(np.where(np.asarray(self.filled) > 1, self._turn_s, self.prefill_s) * self.blocked)

    @cached_property
    def gap_s(self) -> np.ndarray:
        """The mean gap between tokens while n run, shape (N,)."""
        return np.asarray((self.time_s - self.first_s) / self.steps if self.steps > 0 else self.step_s)

    @property
    def chunk_share(self) -> np.ndarray:
        """The share of steps in which some prompt is prefilled while n run, shape (N,)."""
        passes = np.maximum(self.passes.mean(axis=0), 1.0)
        return np.asarray(np.minimum(self.rates_per_s * passes * self.blocked * self.step_s, 1.0))

    @property
    def chunk_s(self) -> np.ndarray:
        """A step in which a prompt is prefilled, while n run, shape (N,)."""
        share = self.chunk_share
        return np.asarray(self.decode_s + np.where(share > 0, (self.step_s - self.decode_s) / np.where(share > 0, share, 1.0), 0.0))


def batch_times(e: Estimate, workload: Workload, most: int) -> BatchTimes:
    """The times of up to `most` requests at once, by the engine's own steps: decodes over the contexts that a batch holds, and prefills.

    Between some hundred batch sizes times are interpolated.
    """
    sizes = _sizes(most)
    every = np.arange(1, most + 1)

    def wide(values: np.ndarray) -> np.ndarray:
        return np.array([np.interp(every, sizes, row) for row in np.broadcast_to(values, (len(values), sizes.size))])

    decode = decode_s(e, sizes, workload.contexts)
    prompts, passes, filled = prefills(e, workload, sizes, decode)
    p = e.setting.parallel
    blocked = 1 / float(np.asarray(p.pp * p.dp))
    return BatchTimes(wide(decode[None])[0], wide(prompts), wide(passes), workload.steps, blocked, wide(filled[None])[0])


def _sizes(most: int) -> np.ndarray:
    """Batch sizes to ask for."""
    further = np.geomspace(ONE_BY_ONE, max(most, ONE_BY_ONE), FURTHER).round()
    found = np.concatenate([np.arange(1.0, ONE_BY_ONE + 1), further])
    return np.asarray(sorted({*found[found < most], float(most)}))


def decode_s(e: Estimate, sizes: np.ndarray, contexts: np.ndarray) -> np.ndarray:
    """Seconds of a decode step of each size, the mean over contexts, shape (sizes,)."""
    held = in_flight(sizes, e.setting.parallel)
    run = step(e.model, e.hardware, e.precision, Segment(np.asarray(held)[:, None], 1, before(contexts, 1)), setting=e.setting)
    return np.asarray(np.broadcast_to(run.time_s, (sizes.size, contexts.size)).mean(axis=1))


def prefills(e: Estimate, workload: Workload, sizes: np.ndarray, decode: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What a prefill adds while so many run, in how many steps it takes part, and how many it fills, shapes (points, sizes) and (sizes,).

    A prompt is cut into even chunks that fit beside the decodes into the engine's tokens per step, and some of them stand for all.
    """
    mixed, dp = prefill_steps(e) == "mixed", float(np.asarray(e.setting.parallel.dp))
    whole = points_of(workload.input)[:, None]
    known = np.asarray(workload.cached(whole))
    others = np.asarray(in_flight(sizes - 1, e.setting.parallel)) if mixed else np.zeros(1)
    fills = (whole - known) / _room(e, others / dp)
    chunks = np.maximum(np.ceil(fills), 1.0)
    size = (whole - known) / chunks
    shares = (np.arange(CHUNKS) + 0.5) / CHUNKS if np.any(chunks > 1) else np.full(1, 0.5)
    past = known[..., None] + np.maximum(shares * (whole - known)[..., None] - size[..., None] / 2, 0.0)
    prompt = Segment(dp, size[..., None], past, logits=1 / chunks[..., None])
    parts = [Segment(others[:, None], 1, before(float(workload.contexts.mean()), 1)), prompt] if mixed else [prompt]
    found = np.asarray(step(e.model, e.hardware, e.precision, *parts, setting=e.setting).time_s)
    passes = np.broadcast_to(chunks, (len(whole), sizes.size))
    mean = np.broadcast_to(found, (*passes.shape[:1], max(others.size, 1), shares.size)).mean(axis=-1)
    added = np.maximum(mean - decode, 0.0) * passes if mixed else mean * passes
    return added, passes if mixed else 0.0 * passes, np.broadcast_to(fills.mean(axis=0) if mixed else 0.0, sizes.shape)


def _room(e: Estimate, decodes: np.ndarray) -> np.ndarray:
    """Tokens of a prompt that a step takes beside its decodes: at least one, any number where the engine has no limit."""
    budget = float(np.asarray(e.capacity.launch.max_num_batched_tokens)) or np.inf
    return np.asarray(np.maximum(budget - decodes, 1.0))


def prefill_steps(e: Estimate) -> str:
    """`mixed` where an engine prefills in steps that also decode, `alone` where decodes wait; raises Unsupported where it is not known."""
    return _habit(e, "prefill_steps", "whether it decodes while it prefills")


def reservation(e: Estimate) -> str:
    """`as-needed` where a request takes cache as it grows, `whole` where its longest length is set aside before it starts."""
    return _habit(e, "reservation", "how it sets cache aside")


def _habit(e: Estimate, name: str, what: str) -> str:
    found = e.engine.choice(name)
    if not found:
        raise Unsupported(f"{e.engine.title} {e.engine.version}: {what} is not known")
    return found


def held_at(e: Estimate, tokens: Numeric) -> np.ndarray:
    """Requests of so many tokens that the cache holds at once over all attention groups, fractions included; 0 where there is none."""
    c = e.capacity
    at = replace(c, launch=replace(c.launch, max_model_len=np.asarray(tokens, dtype=float)))
    found: np.ndarray = np.maximum(np.asarray(at.max_concurrency * c.groups, dtype=float), 0.0)
    return found


def reserved_tokens(e: Estimate, workload: Workload) -> float:
    """Tokens that a request is given where its longest length is set aside: no more than the engine and the model take."""
    longest = float(workload.input.longest + workload.output.longest)
    return float(min(longest, np.max(e.capacity.launch.max_model_len), e.model.context or np.inf))


def cache_slots(e: Estimate, workload: Workload) -> float:
    """Requests at once that the cache holds in the mean of their lives, or with their longest length where that is set aside."""
    if reservation(e) == "whole":
        return float(held_at(e, reserved_tokens(e, workload)))
    return used_slots(e, workload)


def used_slots(e: Estimate, workload: Workload) -> float:
    """Requests at once that the cache would hold if each took only what it has filled, in the mean over their lives."""
    return _harmonic(held_at(e, workload.contexts))


def _harmonic(values: np.ndarray) -> float:
    return float(1 / np.mean(1 / values)) if np.all(values > 0) else 0.0


def slots(e: Estimate, workload: Workload, max_num_seqs: int | None = None) -> int:
    """Requests that run at once at most: by cache, by blocks for states, by the engine's limit or a given one; 0 where none runs."""
    c = e.capacity
    limit = c.launch.max_num_seqs if max_num_seqs is None and e.engine.policy not in SLOTTED else max_num_seqs or np.inf
    most = [cache_slots(e, workload), float(np.min(c.state_limit * c.groups)), float(np.min(np.asarray(limit) * c.groups))]
    starts = e.engine.policy in SLOTTED or bool(np.all(c.fits))
    return int(min(*most, MOST)) if starts else 0


def no_room(e: Estimate) -> DoesNotFit:
    """The error of a deployment in which not one request runs."""
    why = e.capacity.reason() or "the cache has no room for one request of the longest length"
    return DoesNotFit(f"does not run under {e.engine.title} {e.engine.version}: {why}; 'inferplan estimate' lists changes that would do")
