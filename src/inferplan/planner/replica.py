"""One replica in closed form: the largest rate at which it keeps the limits, and its times at a rate. Knows no price and no fleet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from inferplan.deployment import Estimate, estimate
from inferplan.errors import DoesNotFit
from inferplan.planner.candidate import Candidate
from inferplan.planner.goal import Draft
from inferplan.planner.targets import Target, Targets
from inferplan.serving.batch_times import BatchTimes, Workload, batch_times, cache_slots, slots, used_slots
from inferplan.serving.continuous import Continuous, Room, open_loop
from inferplan.speculation.acceptance import of_rates
from inferplan.speculation.answer import speculate
from inferplan.speculation.drafts import draft_named

POINTS, CLOSE = 12, 0.002  # rates looked at in one call, and the width at which the largest is found, as a share of it
DRAFTED = 16  # batches at which rounds are looked at
IDLE = 1e-6  # load at which a replica counts as idle


@dataclass(frozen=True, slots=True)
class Drafting:
    """Drafts of a replica: who, how many tokens, with what chance each is kept.

    sizes, beside_each_s
        batches, and what a round of each takes beside its verify: drafts, and what engine and host add to them.
    """

    name: str
    tokens: int
    accept: float
    sizes: tuple[float, ...]
    beside_each_s: tuple[float, ...]

    def beside_s(self, batch: float) -> float:
        """What a round of a batch takes beside its verify."""
        return float(np.interp(batch, self.sizes, self.beside_each_s))


@dataclass(frozen=True, eq=False)
class Replica:
    """A deployment with the times of its batches.

    front_s
        what host and front end take for a prompt beside its kernels, in the mean.
    """

    candidate: Candidate
    estimate: Estimate
    work: Workload
    times: BatchTimes
    room: Room
    front_s: float
    draft: Drafting | None = None

    @property
    def gpus(self) -> int:
        """Devices."""
        return self.candidate.gpus

    @property
    def most_per_s(self) -> float:
        """The most requests per second that it can serve, whatever they wait."""
        return float(self.times.rates_per_s.max())

    @property
    def prefill_share(self) -> float:
        """The part of device time that prompts take where as much is served as can be."""
        at = int(np.argmax(self.times.rates_per_s))
        decode, prompts = self.work.steps * float(self.times.decode_s[at]), float(self.times.prefill_s[at]) * (at + 1) * self.times.blocked
        return prompts / (prompts + decode) if prompts + decode > 0 else 1.0

    def at(self, rate_per_s: np.ndarray | float) -> Continuous:
        """Its steady state under Poisson arrivals."""
        return open_loop(self.times, self.work.output, np.asarray(rate_per_s, dtype=float), self.room)

    def value_s(self, found: Continuous, target: Target) -> np.ndarray:
        """What a limit is compared with, at the rates of a steady state."""
        front = self.front_s if target.metric in ("ttft", "e2e") else 0.0
        if target.share is None:
            return np.asarray(getattr(found, f"{target.metric}_s")) + front
        quantile: Callable[[float], np.ndarray] = getattr(found, f"{target.metric}_quantile_s")
        return np.asarray(np.where(found.stable, quantile(target.share), np.inf)) + front

    def idle_s(self, target: Target) -> float:
        """The same for a replica that has nothing else to do."""
        return float(self.value_s(self.at(np.array([self.most_per_s * IDLE])), target)[0])

    def misses(self, targets: Targets) -> tuple[Target, float] | None:
        """The limit that an idle replica exceeds by most, and its value there; None where it keeps all: no number of replicas mends it."""
        found = [(t, self.idle_s(t)) for t in targets.limits]
        worst = max(found, key=lambda p: p[1] / p[0].limit_s, default=None)
        return worst if worst is not None and worst[1] > worst[0].limit_s else None

    def largest_rate_per_s(self, targets: Targets) -> float:
        """The largest rate at which each limit is kept in closed form; 0 where even an idle replica misses one.

        In the reading by share each time must keep its limit by itself, which is necessary and not enough: simulation decides.
        """
        most = self.most_per_s
        for target in sorted(targets.limits, key=lambda t: ("tpot", "ttft", "e2e").index(t.metric)):
            most = self._largest(target, most) if most > 0 else 0.0
        return most

    def _largest(self, target: Target, most: float) -> float:
        """The largest rate up to `most` at which one limit is kept: many rates at once where that is cheap, else one after the other."""
        if self._kept(np.array([most]), target).all():
            return most
        points = POINTS if target.metric == "tpot" else 1
        low, high = 0.0, most
        while high - low > CLOSE * high and high > IDLE * most:
            rates = low + (high - low) * np.arange(1, points + 1) / (points + 1)
            good = self._kept(rates, target)
            first_bad = int(np.argmin(good)) if not good.all() else points
            low, high = float(rates[first_bad - 1]) if first_bad else low, float(rates[first_bad]) if first_bad < points else high
        return low

    def _kept(self, rates: np.ndarray, target: Target) -> np.ndarray:
        return np.asarray(self.value_s(self.at(rates), target) <= target.limit_s)

    def capped(self, max_num_seqs: int) -> Replica:
        """The same with at most so many requests at once."""
        n = min(max_num_seqs, self.times.most)
        t = self.times
        filled = np.asarray(t.filled)
        cut = replace(
            t, decode_s=t.decode_s[:n], prompts_s=t.prompts_s[:, :n], passes=t.passes[:, :n], filled=filled[:n] if filled.ndim else t.filled
        )
        return replace(self, candidate=replace(self.candidate, max_num_seqs=n), times=cut)

    def slower(self, prompts: float, gaps: float) -> Replica:
        """The same where prefills take `prompts` times and decode steps `gaps` times as long."""
        t = self.times
        return replace(self, times=replace(t, decode_s=t.decode_s * gaps, prompts_s=t.prompts_s * prompts), front_s=self.front_s * prompts)


def started(candidate: Candidate, work: Workload, utilization: float | None = None) -> Estimate:
    """The deployment of a candidate, started for the longest request of a workload, whether it fits or not."""
    kind = candidate.kind
    return estimate(
        kind.model, kind.hardware, kind.precision, input_tokens=work.input.longest, output_tokens=work.output.longest,
        parallel=candidate.parallel, engine=kind.engine.name, version=kind.engine.version, efficiency=kind.efficiency,
        network=kind.network, max_num_seqs=candidate.max_num_seqs, max_num_batched_tokens=candidate.max_num_batched_tokens,
        utilization=utilization,
    )  # fmt: skip


def replica(candidate: Candidate, work: Workload, *, utilization: float | None = None) -> Replica:
    """The replica of a candidate for a workload, started for its longest request; raises the errors of what does not run."""
    e = started(candidate, work, utilization)
    if not bool(e.capacity.fits):
        raise DoesNotFit(e.capacity.reason() or "the cache has no room for one request of the longest length")
    most = slots(e, work, candidate.max_num_seqs)
    if most < 1:
        raise DoesNotFit("the cache has no room for one request of the longest length")
    front_s = float(e.front_end_s(work.input.mean))
    return Replica(candidate, e, work, batch_times(e, work, most), Room(used_slots(e, work), cache_slots(e, work)), front_s)


def drafted(found: Replica, asked: Draft) -> Replica:
    """The same replica with drafts: rounds in place of steps, their memory taken off; raises the errors of what does not run.

    A round's time is shared out over the tokens that it yields, so that gaps are means over rounds.
    """
    e, work = found.estimate, found.work
    with_draft = speculate(
        e, draft_named(e.model, e.precision, asked.name), of_rates([asked.accept]), draft_tokens=asked.tokens
    )  # fmt: skip
    held = replace(e, capacity=with_draft.held)
    most = slots(held, work, found.candidate.max_num_seqs) if bool(with_draft.held.fits) else 0
    if most < 1:
        raise DoesNotFit("the cache has no room for one request beside the draft")
    most = min(most, found.times.most)
    sizes = np.unique(np.geomspace(1, most, DRAFTED).round())
    rounds = with_draft.at(sizes, asked.tokens)
    beside = np.broadcast_to(np.asarray(rounds.draft_s + rounds.overhead_s, dtype=float), sizes.shape)
    own = found.capped(most).times
    gaps = np.interp(np.arange(1, most + 1), sizes, np.broadcast_to(np.asarray(rounds.tpot_s, dtype=float), sizes.shape))
    drafting = Drafting(asked.name, asked.tokens, asked.accept, tuple(sizes.tolist()), tuple(beside.tolist()))
    chosen = replace(found.candidate, draft=f"{asked.name}, {asked.tokens} drafts of which {100 * asked.accept:g} % are kept")
    room = Room(used_slots(held, work), cache_slots(held, work))
    return replace(found, candidate=chosen, estimate=held, times=replace(own, decode_s=gaps), room=room, draft=drafting)
