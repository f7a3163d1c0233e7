"""Finalists simulated: the limits under several seeds, with an interval of confidence and a verdict. Knows no price and no fleet."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from inferplan.errors import Unsupported
from inferplan.planner.goal import Proof
from inferplan.planner.replica import Replica
from inferplan.planner.targets import Targets
from inferplan.serving.arrivals import poisson
from inferplan.serving.batch_times import Workload
from inferplan.serving.front_end import with_front_end
from inferplan.serving.requests import Requests
from inferplan.serving.schedule import Schedule, graph_sizes
from inferplan.serving.served import Served
from inferplan.serving.simulate import simulate
from inferplan.serving.speculative import Acceptance
from inferplan.serving.steps import Steps, TableSteps, table_steps

Verdict = Literal["meets", "misses", "undecided"]
MOST_TRIES, CLOSE, UP, DOWN = 14, 1.02, 1.06, 0.9
WARM = 3.0  # times of a request until a replica that begins empty is taken to be in its steady state
MOST_WARM = 20  # times as many requests as count are spent on that at most, before and after them
Run = tuple[NDArray[np.float64], float]  # limits of one run as `Tried.values` has them, and the share of requests that keep all


def t_quantile(confidence: float, freedom: int) -> float:
    """Student's t for a two-sided interval, by the expansion of Hill (1970) to the third order: within 1 % from 3 degrees on.

    >>> round(t_quantile(0.95, 4), 2), round(t_quantile(0.95, 14), 3)
    (2.77, 2.145)
    """
    z, n = NormalDist().inv_cdf(0.5 + confidence / 2), freedom
    terms = ((z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384)
    return float(z + sum(term / n ** (i + 1) for i, term in enumerate(terms)))


@dataclass(frozen=True, slots=True, eq=False)
class Tried:
    """Limits at one rate, over runs with seeds of their own.

    values
        for each run and limit its statistic, shape (runs, limits); in the reading by share the share that keeps all, shape (runs, 1).
    shares
        for each run the share of requests that keep all limits.
    """

    rate_per_s: float
    targets: Targets
    values: NDArray[np.float64]
    shares: NDArray[np.float64]
    confidence: float

    @property
    def mean(self) -> NDArray[np.float64]:
        """The mean over runs, for each limit."""
        return np.asarray(self.values.mean(axis=0))

    @property
    def half_width(self) -> NDArray[np.float64]:
        """Half of the interval of confidence about it."""
        runs = len(self.values)
        spread = np.where(np.isfinite(self.values).all(axis=0), self.values, 0.0).std(axis=0, ddof=1)
        return np.asarray(t_quantile(self.confidence, runs - 1) * spread / math.sqrt(runs))

    @property
    def verdict(self) -> Verdict:
        """`meets` where every interval lies within its limit, `misses` where one lies wholly beyond, else `undecided`."""
        sign = -1.0 if self.targets.kind == "share" else 1.0
        room = sign * (self.targets.bounds() - self.mean)
        if np.all(room >= self.half_width):
            return "meets"
        return "misses" if np.any(room < -self.half_width) else "undecided"


@dataclass(eq=False)
class Bench:
    """A replica ready to be simulated at any rate: its scheduler, its step times, the requests of each seed."""

    replica: Replica
    targets: Targets
    proof: Proof
    schedule: Schedule
    steps: TableSteps
    tried: dict[float, Tried] = field(default_factory=dict)

    @classmethod
    def of(cls, replica: Replica, targets: Targets, proof: Proof) -> Bench:
        """For a replica; raises DoesNotFit or Unsupported where its engine is not simulated."""
        e, work, draft = replica.estimate, replica.work, replica.draft
        if draft and work.hit_rate:
            raise Unsupported("drafts are not simulated with a prefix cache")
        schedule = Schedule.of(e.capacity)
        schedule = schedule.but(
            max_num_seqs=min(schedule.max_num_seqs, replica.times.most), prefix_caching=True if work.hit_rate else None,
            draft_tokens=draft.tokens if draft else None,
        )  # fmt: skip
        steps = table_steps(
            e.model, e.hardware, e.precision, e.setting, most_decodes=schedule.slots, most_context=work.input.longest + work.output.longest,
            most_tokens=min(schedule.max_num_batched_tokens, 2**20), graphs=graph_sizes(e.capacity),
            draft=draft.tokens if draft else 0,
        )  # fmt: skip
        return cls(replica, targets, proof, schedule, steps)

    def at(self, rate_per_s: float) -> Tried:
        """The limits at a rate, with more seeds while the verdict is undecided, up to the most."""
        if rate_per_s not in self.tried:
            self.tried[rate_per_s] = over_seeds(self.proof, self.targets, rate_per_s, lambda seed: self._run(rate_per_s, seed))
        return self.tried[rate_per_s]

    def largest_rate_per_s(self, start_per_s: float) -> tuple[float, float]:
        """The largest rate at which the limits are met, and the least at which they are not, within 2 %; (0, ...) where none is met."""
        good, bad, rate = 0.0, math.inf, start_per_s
        for _ in range(MOST_TRIES):
            if self.at(rate).verdict == "meets":
                good = rate
            else:
                bad = rate
            if good and bad < math.inf:
                if bad <= good * CLOSE:
                    break
                rate = (good + bad) / 2
            else:
                rate = good * UP if good else bad * DOWN
        return good, bad

    def _run(self, rate_per_s: float, seed: int) -> Run:
        """The limits in one run: of requests that arrive after the replica has filled and long before arrivals end."""
        requests, kept = self.requests(rate_per_s, seed)
        draft = self.replica.draft
        kept_guesses = Acceptance(draft.tokens, draft.accept) if draft else None
        served = simulate(requests, self._steps(rate_per_s), self.schedule, seed=seed, acceptance=kept_guesses)
        return self.read(served, kept)

    def _steps(self, rate_per_s: float) -> Steps:
        """Step times at a rate: drafts take what they take at the batch that runs in the mean."""
        if self.replica.draft is None:
            return self.steps
        running = self.replica.at(rate_per_s).running
        return replace(self.steps, beside_s=self.replica.draft.beside_s(max(1.0, float(running))), known={})

    def read(self, served: Served, kept: NDArray[np.bool_]) -> Run:
        """The limits over the requests `kept` of a run, front end included, and the share of them that keeps all."""
        if served.partial:
            raise KeyboardInterrupt
        seen = with_front_end(served, self.replica.estimate)
        return self.targets.values(seen, kept), float(_shares(self.targets).values(seen, kept)[0]) if self.targets.limits else 1.0

    def requests(self, rate_per_s: float, seed: int) -> tuple[Requests, NDArray[np.bool_]]:
        """The requests of a run, and which of them count."""
        work = self.replica.work
        found = self.replica.at(rate_per_s)
        stay = float(found.e2e_s) if bool(found.stable) else float(self.replica.times.time_s[-1])
        asked, kept = drawn(self.proof, work, rate_per_s, WARM * stay, seed)
        if work.hit_rate:
            asked = asked.sharing(round(work.hit_rate * work.input.mean), block=self.schedule.block)
        return asked, kept


def over_seeds(proof: Proof, targets: Targets, rate_per_s: float, run: Callable[[int], Run]) -> Tried:
    """The limits over runs with seeds of their own: as many as asked for, and more while the verdict is undecided."""
    values, shares = [], []
    for seed in range(proof.most_seeds):
        value, share = run(proof.seed + seed)
        values.append(value)
        shares.append(share)
        found = Tried(rate_per_s, targets, np.array(values), np.array(shares), proof.confidence)
        if len(values) >= proof.seeds and found.verdict != "undecided":
            break
    return found


def drawn(proof: Proof, work: Workload, rate_per_s: float, warm_s: float, seed: int) -> tuple[Requests, NDArray[np.bool_]]:
    """Poisson arrivals at a rate, and which of them count: those between `warm_s` after the first and as long before the last."""
    edge = min(math.ceil(warm_s * rate_per_s), MOST_WARM * proof.requests)
    count = proof.requests + 2 * edge
    place = np.arange(count)
    asked = Requests.drawn(poisson(rate_per_s), work.input, work.output, count, seed=seed)
    return asked, (place >= edge) & (place < edge + proof.requests)


def _shares(targets: Targets) -> Targets:
    """The same limits, read by the share of requests that keep them all."""
    return Targets(targets.limits, "share")
