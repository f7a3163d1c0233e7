"""Prefill and decode in pools of their own: what a replica of each takes, and the whole simulated together. Knows no price.

Both pools are replicas of one candidate. A prompt's cache crosses to the decoding pool, which shows in the gap to the second token.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from inferplan.errors import Unsupported
from inferplan.planner.goal import Search
from inferplan.planner.proof import Bench, Run, Tried, drawn, over_seeds
from inferplan.planner.replica import Replica
from inferplan.planner.targets import Target, Targets
from inferplan.serving.batch_times import Workload, batch_times, slots
from inferplan.serving.continuous import Continuous
from inferplan.serving.lengths import Lengths
from inferplan.serving.queueing import mg1_wait_s
from inferplan.serving.simulate import Prefilling, simulate

WAITS = 400  # points that stand for the law of waits
MOST_TOGETHER = 24  # replicas that are simulated at once; larger fleets shrink in proportion, rounded to the harder side
BUSY = 0.9  # load of a prefilling replica where nothing limits first tokens: at 1 its queue would have no end
WARM = 2.0  # as in `proof`, of a time that is that of the fullest batch


@dataclass(frozen=True, eq=False)
class Pools:
    """A candidate that only prefills and the same that only decodes, and the way between them.

    transfer_s, per_token_s
        seconds until a cache has crossed: fixed, and per token of the prompt.
    """

    prefill: Replica
    decode: Replica
    transfer_s: float
    per_token_s: float

    def prefill_rate_per_s(self, targets: Targets) -> float:
        """The largest rate of a prefilling replica within the limits on first tokens."""
        own = tuple(t for t in targets.limits if t.metric == "ttft")
        return self.prefill.largest_rate_per_s(Targets(own, targets.kind)) if own else self.prefill.most_per_s * BUSY

    def decode_rate_per_s(self, targets: Targets) -> float:
        """The largest rate of a decoding replica within the limits on gaps, the crossing shared out over the gaps."""
        return self.decode.largest_rate_per_s(targets)


@dataclass(frozen=True, eq=False)
class Filling(Replica):
    """A replica that only prefills: a queue of prompts, each computed alone (M/G/1; waits exponential beyond those that do not wait).

    Prompts that share a step go faster, so that this is on the safe side for short ones.
    """

    def value_s(self, found: Continuous, target: Target) -> np.ndarray:
        """As `Replica` says, of first tokens."""
        service = self.times.own_s[:, 0]
        rate = np.where(found.stable, found.requests_per_s, np.inf)[..., None]
        load = np.minimum(rate * service.mean(), 1.0)
        wait = np.asarray(mg1_wait_s(np.minimum(rate, 1e12), load, (service**2).mean()))
        if target.share is None:
            return np.asarray(wait[..., 0] + service.mean() + self.front_s)
        ranks = (np.arange(WAITS) + 0.5) / WAITS
        some = np.where(load > 1 - ranks, wait / np.maximum(load, 1e-12) * np.log(np.maximum(load / (1 - ranks), 1.0)), 0.0)
        whole = (some[..., None] + service).reshape(*found.stable.shape, -1)
        return np.asarray(np.quantile(whole, target.share, axis=-1, method="higher") + self.front_s)


@dataclass(frozen=True, eq=False)
class Decoding(Replica):
    """A replica that gets prompts with their cache: its first gap holds the crossing and the wait for a place."""

    crossing_s: float = 0.0

    def value_s(self, found: Continuous, target: Target) -> np.ndarray:
        """As `Replica` says; first tokens are not made here."""
        if target.metric == "ttft":
            return np.where(found.stable, 0.0, np.inf)
        if target.metric == "tpot":
            beside = (self.crossing_s + np.asarray(found.ttft_s)) / max(self.work.steps, 1.0)
            return super().value_s(found, target) + beside
        return super().value_s(found, target) + self.crossing_s


def pools(found: Replica, search: Search) -> Pools:
    """The two sides of a replica that does both; raises Unsupported where they are not simulated."""
    e, work = found.estimate, found.work
    if work.hit_rate:
        raise Unsupported("pools are not simulated with a prefix cache")
    only = Workload(work.input, Lengths.fixed(1), 0.0)
    most = max(1, min(slots(e, only, found.candidate.max_num_seqs), found.times.most))
    first = Filling(found.candidate, e, only, batch_times(e, only, most), found.room, found.front_s)
    per_token = e.kv_bytes_per_token / (search.transfer_bytes_per_s * found.gpus)
    t = found.times
    plain = replace(t, prompts_s=0.0 * t.prompts_s, passes=0.0 * t.passes, filled=0.0)
    crossing = search.transfer_s + per_token * work.input.mean
    last = Decoding(found.candidate, e, work, plain, found.room, found.front_s, crossing_s=crossing)
    return Pools(first, last, search.transfer_s, per_token)


@dataclass(eq=False)
class PoolBench:
    """Pools ready to be simulated: so many replicas that prefill, so many that decode, at the rate of the whole."""

    pools: Pools
    bench: Bench
    tried: dict[tuple[int, int, float], Tried] = field(default_factory=dict)

    def at(self, prefill: int, decode: int, rate_per_s: float) -> Tried:
        """The limits with so many replicas of each kind at a rate, with more seeds while the verdict is undecided."""
        key = (prefill, decode, rate_per_s)
        if key not in self.tried:
            self.tried[key] = over_seeds(self.bench.proof, self.bench.targets, rate_per_s, lambda seed: self._run(*key, seed))
        return self.tried[key]

    def _run(self, prefill: int, decode: int, rate_per_s: float, seed: int) -> Run:
        front, back, rate = shrunk(prefill, decode, rate_per_s)
        b = self.bench
        stay = float(self.pools.prefill.times.time_s[0] + self.pools.decode.times.time_s[-1])
        asked, kept = drawn(b.proof, self.pools.decode.work, rate, WARM * stay, seed)
        side = Prefilling(b.schedule, b.steps, front, self.pools.transfer_s, self.pools.per_token_s)
        served = simulate(asked, b.steps, b.schedule, seed=seed, replicas=back, routing="least-requests", prefilling=side)
        return b.read(served, kept)

    def proven(self, prefill: int, decode: int, rate_per_s: float, tries: int = 6) -> tuple[int, int, Tried]:
        """Replicas of each kind with which the limits are met at a rate: more of the side that misses, else fewer while they still are."""
        for _ in range(tries):
            found = self.at(prefill, decode, rate_per_s)
            if found.verdict == "meets":
                return self._fewer(prefill, decode, rate_per_s)
            prefill, decode = self._more(found, prefill, decode)
        return prefill, decode, found

    def _fewer(self, prefill: int, decode: int, rate_per_s: float) -> tuple[int, int, Tried]:
        """The same with one replica after the other taken away from either side, as long as the limits are met."""
        for side in (0, 1):
            while (prefill, decode)[side] > 1:
                fewer = prefill - (side == 0), decode - (side == 1)
                if self.at(*fewer, rate_per_s).verdict != "meets":
                    break
                prefill, decode = fewer
        return prefill, decode, self.at(prefill, decode, rate_per_s)

    def _more(self, found: Tried, prefill: int, decode: int) -> tuple[int, int]:
        limits = found.targets.limits
        if found.targets.kind == "share":
            return prefill + 1, decode + 1
        over = found.mean + found.half_width > found.targets.bounds()
        late = any(bad and t.metric == "ttft" for t, bad in zip(limits, over, strict=True))
        slow = any(bad and t.metric != "ttft" for t, bad in zip(limits, over, strict=True))
        return prefill + late, decode + slow


def shrunk(prefill: int, decode: int, rate_per_s: float, most: int = MOST_TOGETHER) -> tuple[int, int, float]:
    """A smaller fleet of nearly the same ratio with its part of the rate, at least as hard on both sides.

    >>> shrunk(4, 8, 10.0), shrunk(40, 60, 100.0)
    ((4, 8, 10.0), (9, 14, 23.333333333333332))
    """
    whole = prefill + decode
    if whole <= most:
        return prefill, decode, rate_per_s
    front, back = max(1, prefill * most // whole), max(1, decode * most // whole)
    return front, back, rate_per_s * max(front / prefill, back / decode)
