"""What a plan hangs on: the same fleet under other traffic, prices, lengths and times. Knows no screen."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from inferplan.errors import InferplanError
from inferplan.planner.fleet import Fleet
from inferplan.planner.goal import Draft
from inferplan.planner.replica import Replica, drafted, replica
from inferplan.planner.search import Market, Option, Search
from inferplan.planner.trust import trust
from inferplan.serving.batch_times import Workload
from inferplan.serving.lengths import Lengths

MORE_TRAFFIC, LESS_PRICE, LONGER, HIGHER_PEAK, LESS_KEPT = 1.5, 0.7, 1.2, 1.5, 0.8


@dataclass(frozen=True, slots=True)
class Swing:
    """One change of an input and the fleet that the best choice needs then; `fleet` None: none would do.

    input
        `traffic`, `peak`, `price`, `times`, `output`, `input`, `hits` of the prefix cache or `accept`, the share of drafts that is kept.
    uncertain
        whether the input is something that can be measured rather than decided.
    best
        name of the part that would be best then, where that is another one.
    """

    input: str
    factor: float
    fleet: Fleet | None
    usd_per_h: float | None
    uncertain: bool
    best: str | None = None
    basis: str = ""


def swings(found: Search, best: Option, others: list[Option]) -> list[Swing]:
    """Changes one at a time: traffic, its peak, prices, times at either end of their band, lengths, hits of the prefix cache.

    `others`, the best among them, are as well known as the best: only with those can it be compared.
    """
    low, high = _times(found, best)
    return [
        _traffic(found, best, others, MORE_TRAFFIC), _traffic(found, best, others, 1 / MORE_TRAFFIC), _peak(found, best),
        *_prices(best, others), high, low,
        _lengths(found, best, "output"), _lengths(found, best, "input"),
        *(s for s in (_hits(found, best), _accepted(found, best)) if s is not None),
    ]  # fmt: skip


def _swing(name: str, factor: float, fleet: Fleet | None, *, uncertain: bool = False, best: str | None = None, basis: str = "") -> Swing:
    return Swing(name, factor, fleet, None if fleet is None else fleet.usd_per_h, uncertain, best, basis)


def _traffic(found: Search, best: Option, others: list[Option], factor: float) -> Swing:
    market = Market(found.goal, found.demand.scaled(factor))

    def key(o: Option) -> float:
        return market.key(o.candidate.kind, market.fleet(o.candidate.kind, o.rate_per_s, o.replica.gpus))

    first = min((o for o in others if o.pools is None), key=key, default=best)
    fleet = market.fleet(best.candidate.kind, best.rate_per_s, best.replica.gpus)
    return _swing("traffic", factor, fleet, best=first.candidate.name if key(first) < key(best) else None)


def _peak(found: Search, best: Option) -> Swing:
    demand = replace(found.demand, peak_per_s=found.demand.peak_per_s * HIGHER_PEAK)
    fleet = Market(found.goal, demand).fleet(best.candidate.kind, best.rate_per_s, best.replica.gpus)
    return _swing("peak", HIGHER_PEAK, fleet, uncertain=found.goal.traffic.peak_per_s is None and found.goal.traffic.trace is None)


def _prices(best: Option, options: list[Option]) -> list[Swing]:
    """The best part cheaper; and the first other part that would be best if it alone were so much cheaper."""
    part = best.candidate.kind.hardware.name
    if best.fleet.usd_per_h is None:
        return []
    own = Swing("price", LESS_PRICE, best.fleet, best.fleet.usd_per_h * LESS_PRICE, False, basis=part)
    others = [o for o in options if o.candidate.kind.hardware.name != part and o.fleet.usd_per_h is not None]
    nearest = min(others, key=lambda o: o.fleet.usd_per_h or 0.0, default=None)
    if nearest is None:
        return [own]
    usd, name = (nearest.fleet.usd_per_h or 0.0) * LESS_PRICE, nearest.candidate.kind.hardware.name
    wins = nearest.candidate.name if usd < best.fleet.usd_per_h else None
    return [own, Swing("price", LESS_PRICE, nearest.fleet, usd, False, wins, name)]


def _times(found: Search, best: Option) -> tuple[Swing, Swing]:
    band = trust(best.replica.estimate)
    ends = []
    for i in (0, 1):
        rate = best.replica.slower(band.prefill[i], band.decode[i]).largest_rate_per_s(found.targets)
        ends.append(_swing("times", band.decode[i], _fleet(found, best, rate), uncertain=True, basis=band.basis))
    return ends[0], ends[1]


def _fleet(found: Search, best: Option, closed_per_s: float) -> Fleet | None:
    """The fleet where closed form finds another rate: what simulation had said of the old one is taken to hold in proportion."""
    if closed_per_s <= 0:
        return None
    before = best.replica.largest_rate_per_s(found.targets)
    rate = best.rate_per_s * closed_per_s / before
    return found.market.fleet(best.candidate.kind, rate, best.replica.gpus)


def _lengths(found: Search, best: Option, which: str) -> Swing:
    law: Lengths = getattr(found.work, which)
    longer = Lengths.of(np.maximum(np.round(law.values * LONGER), 1), law.probabilities, f"{law.text} x {LONGER:g}")
    work = replace(found.work, input=longer) if which == "input" else replace(found.work, output=longer)
    return _other_work(found, best, which, LONGER, work)


def _hits(found: Search, best: Option) -> Swing | None:
    if not found.work.hit_rate:
        return None
    return _other_work(found, best, "hits", 0.0, replace(found.work, hit_rate=0.0))


def _other_work(found: Search, best: Option, name: str, factor: float, work: Workload) -> Swing:
    try:
        changed = _rebuilt(found, best, work, found.goal.search.draft)
    except InferplanError:
        return _swing(name, factor, None, uncertain=True)
    return _swing(name, factor, _fleet(found, best, changed.largest_rate_per_s(found.targets)), uncertain=True)


def _rebuilt(found: Search, best: Option, work: Workload, draft: Draft | None) -> Replica:
    """The same replica, drafts and limits included, for other requests."""
    changed = replica(replace(best.candidate, draft="", pooled="", max_num_seqs=None), work, utilization=found.goal.search.utilization)
    if best.replica.draft is not None and draft is not None:
        changed = drafted(changed, draft)
    return changed.capped(best.candidate.max_num_seqs) if best.candidate.max_num_seqs else changed


def _accepted(found: Search, best: Option) -> Swing | None:
    """Drafts kept less often."""
    asked = found.goal.search.draft
    if best.replica.draft is None or asked is None:
        return None
    fewer = asked.model_copy(update={"accept": asked.accept * LESS_KEPT})
    changed = _rebuilt(found, best, found.work, fewer)
    return _swing("accept", LESS_KEPT, _fleet(found, best, changed.largest_rate_per_s(found.targets)), uncertain=True)


def measure_first(found: list[Swing], usd_per_h: float | None, gpus: int) -> Swing | None:
    """The uncertain input whose change costs most; one under which no fleet would do goes before all."""
    open_ones = [s for s in found if s.uncertain]
    impossible = next((s for s in open_ones if s.fleet is None), None)
    if impossible is not None or not open_ones:
        return impossible

    def change(s: Swing) -> tuple[float, float]:
        money = abs(s.usd_per_h - usd_per_h) if usd_per_h is not None and s.usd_per_h is not None else 0.0
        return money, abs((s.fleet.gpus if s.fleet else 0) - gpus)

    most = max(open_ones, key=change)
    return most if max(change(most)) > 0 else None
