"""All splits of a kind at once: which fit, which an SLO rules out, and how much a replica could serve at most. Knows no price.

Bounds only: what is ruled out here stays ruled out, and the rate is above what closed form and simulation will find.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from inferplan.deployment import in_flight
from inferplan.engine.segment import Segment
from inferplan.engine.step import Setting, before, step
from inferplan.errors import InferplanError
from inferplan.memory.capacity import Capacity, capacity
from inferplan.planner.candidate import Candidate, Kind
from inferplan.planner.targets import Target, Targets
from inferplan.serving.batch_times import Workload
from inferplan.specs.engine import SLOTTED
from inferplan.specs.parallel import Parallel
from inferplan.units import show

SIZES, FINE, MOST = 24, 300, 4096
MARGIN = 1.06  # contexts and lengths are taken at their means, so that the closed form can lie a little above
NO_ROOM, UNKNOWN = "does not start", "not modelled"
SLACK = 0.9  # of a limit on gaps: a step of the batch that keeps it lies near it, and bounds must not rule out what does


@dataclass(frozen=True, slots=True)
class Screened:
    """A candidate with the most that it could serve, or with the reason why it falls out.

    reason
        '' where it does not fit: `why` opens that.
    group
        the reason in a few words, under which candidates are counted.
    exceeds
        by how many times an idle replica exceeds the limit that it misses by most.
    """

    candidate: Candidate
    most_per_s: float
    reason: str = ""
    group: str = ""
    exceeds: float = 0.0


def screened(
    kind: Kind, splits: Sequence[Parallel], work: Workload, targets: Targets, *, utilization: float | None = None
) -> list[Screened]:
    """Every split of a kind looked at, those with as many pipeline stages in one call."""
    found: list[Screened] = []
    for pp in dict.fromkeys(int(p.pp) for p in splits):
        some = [p for p in splits if p.pp == pp]
        try:
            found += _together(kind, some, pp, work, targets, utilization)
        except InferplanError as e:
            found += [Screened(Candidate(kind, p), 0.0, str(e), UNKNOWN) for p in some]
    return found


def _together(kind: Kind, splits: list[Parallel], pp: int, work: Workload, targets: Targets, utilization: float | None) -> list[Screened]:
    wide = Parallel(*(np.array([float(getattr(p, n)) for p in splits])[:, None] if n != "pp" else pp for n in ("tp", "pp", "dp", "ep")))
    held = _held(kind, wide, work, utilization)
    fits = np.broadcast_to(held.fits, (len(splits), 1))[:, 0]
    setting = Setting(wide, kind.efficiency, kind.engine.timed_as, kind.network).checked()
    bounds = _Bounds(kind, setting, work, targets, held)
    most, worst = bounds.most_per_s(), bounds.worst()
    return [_answer(Candidate(kind, p), bool(fits[i]), float(most[i]), worst[i]) for i, p in enumerate(splits)]


def _held(kind: Kind, split: Parallel, work: Workload, utilization: float | None) -> Capacity:
    """What splits of a kind hold, started for the longest request."""
    return capacity(
        kind.model, kind.hardware, kind.precision, split, kind.engine, max_model_len=work.input.longest + work.output.longest,
        utilization=utilization, max_num_seqs=1 if kind.engine.policy in SLOTTED else None,
    )  # fmt: skip


def _answer(candidate: Candidate, fits: bool, most: float, worst: tuple[Target, float] | None) -> Screened:
    if not fits:
        return Screened(candidate, 0.0, "", NO_ROOM)
    if worst is not None and worst[1] > worst[0].limit_s:
        target, value = worst
        reason = f"an idle replica has {target.name} of at least {show(value, 's')}, the limit is {show(target.limit_s, 's')}"
        return Screened(candidate, 0.0, reason, f"misses {target.name} even idle", value / target.limit_s)
    if most <= 0:
        return Screened(candidate, 0.0, "", NO_ROOM)
    return Screened(candidate, most)


def why(candidate: Candidate, work: Workload, utilization: float | None = None) -> str:
    """In a line why a candidate does not start."""
    return _held(candidate.kind, candidate.parallel, work, utilization).reason() or "the cache has no room for one request"


@dataclass(frozen=True, eq=False)
class _Bounds:
    """Times of all splits of a kind, arrays over (splits, ...)."""

    kind: Kind
    setting: Setting
    work: Workload
    targets: Targets
    held: Capacity

    def _pass_s(self, segment: Segment) -> np.ndarray:
        k = self.kind
        found = step(k.model, k.hardware, k.precision, segment, setting=self.setting)
        return np.asarray(found.time_s)

    @cached_property
    def _gaps_s(self) -> tuple[np.ndarray, np.ndarray]:
        """Batch sizes, and a decode step of each over all splits."""
        n = np.unique(np.geomspace(1, MOST, SIZES).round())
        held = in_flight(n, self.setting.parallel)
        context = float(self.work.contexts.mean())
        return n, np.broadcast_to(self._pass_s(Segment(held, 1, before(context, 1))), (self._splits, n.size))

    @property
    def _splits(self) -> int:
        return int(np.size(self.setting.parallel.tp))

    @cached_property
    def _prompts_s(self) -> dict[float, np.ndarray]:
        """A prompt of each length that matters in one pass, alone, shape (splits,); engines that cut it take longer."""
        shares = {t.share for t in self.targets.limits if t.metric == "ttft" and t.share is not None}
        means = {self.work.input.mean} if any(t.metric == "ttft" and t.share is None for t in self.targets.limits) else set()
        tokens = np.array(sorted({*means, *(float(self.work.input.quantile(q)) for q in shares)}))
        found = self._prefill_s(tokens)
        return {float(n): found[:, i] for i, n in enumerate(tokens)}

    def _prefill_s(self, tokens: np.ndarray) -> np.ndarray:
        cached = np.asarray(self.work.cached(tokens))
        dp = np.asarray(self.setting.parallel.dp)
        return np.broadcast_to(self._pass_s(Segment(dp * 1.0, tokens - cached, cached)), (self._splits, tokens.size))

    def _places(self) -> np.ndarray:
        """Requests that run at once at most: each with its mean context, or its longest where that is set aside."""
        c = self.held
        whole = c.engine.choice("reservation") == "whole"
        tokens = float(self.work.input.longest + self.work.output.longest) if whole else float(self.work.contexts.mean())
        at = replace(c, launch=replace(c.launch, max_model_len=np.asarray(tokens)))
        limit = np.inf if c.engine.policy in SLOTTED else np.asarray(c.launch.max_num_seqs)
        most = np.minimum(np.minimum(np.asarray(at.max_concurrency) * 1.2, c.state_limit), limit) * c.groups
        return np.broadcast_to(most, (self._splits, 1))[:, 0]

    def most_per_s(self) -> np.ndarray:
        """The most that a replica of each split could serve while its steps keep the limit on gaps, shape (splits,).

        A prompt counts as what one more adds to a pass over prompts, in which all weights are read already.
        """
        sizes, known = self._gaps_s
        n = np.unique(np.geomspace(1, MOST, FINE).round())
        gaps = np.array([np.interp(n, sizes, row) for row in known])
        limit = min((t.limit_s for t in self.targets.limits if t.metric == "tpot"), default=np.inf)
        allowed = (n[None, :] <= self._places()[:, None]) & (gaps * SLACK <= limit)
        allowed[:, 0] = True
        rates = n / (self.work.steps * gaps + n * self._added_s[:, None] * self._blocked)
        return np.asarray(MARGIN * np.where(allowed, rates, 0.0).max(axis=1))

    @property
    def _added_s(self) -> np.ndarray:
        """What one more prompt adds to a pass over prompts, shape (splits,)."""
        prompt = self.work.input.mean
        cached, dp = float(np.max(self.work.cached(prompt))), np.asarray(self.setting.parallel.dp)
        both = np.broadcast_to(self._pass_s(Segment(dp * np.array([[1.0, 2.0]]), prompt - cached, cached)), (self._splits, 2))
        return np.asarray(np.maximum(both[:, 1] - both[:, 0], 0.0))

    @property
    def _blocked(self) -> np.ndarray:
        """The part of a prefill for which the others wait, shape (splits, 1)."""
        p = self.setting.parallel
        return np.broadcast_to(1 / np.asarray(p.pp * p.dp, dtype=float), (self._splits, 1))

    def worst(self) -> list[tuple[Target, float] | None]:
        """For each split the limit that an idle replica exceeds by most, with a bound of its value there."""
        _, gaps = self._gaps_s
        front = float(self.kind.efficiency.front_end_s(self.kind.engine.timed_as, len(self.kind.model.order), 0.0))
        found: list[list[tuple[Target, float]]] = [[] for _ in range(self._splits)]
        for target in self.targets.limits:
            for i, value in enumerate(self._idle_s(target, gaps[:, 0], front)):
                found[i].append((target, float(value)))
        return [max(each, key=lambda p: p[1] / p[0].limit_s, default=None) for each in found]

    def _idle_s(self, target: Target, gap: np.ndarray, front: float) -> np.ndarray:
        if target.metric == "tpot":
            return gap if self.work.steps > 0 else 0.0 * gap
        q = target.share
        prompt = self.work.input.mean if q is None else float(self.work.input.quantile(q))
        if target.metric == "ttft":
            return self._prompts_s[prompt] + front
        steps = self.work.steps if q is None else float(self.work.output.quantile(q)) - 1
        return np.asarray(steps * gap * SLACK + front)
