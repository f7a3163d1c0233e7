"""The cheapest replicas that carry a demand: bounds for all candidates, closed form for the promising, limits tuned for the best.

Branch and bound: candidates are looked at in the order of the least that their fleet can cost, until the next cannot be among the best.
Knows no screen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from inferplan.errors import DoesNotFit, InferplanError, Unsupported
from inferplan.planner.candidate import Candidate, Kind, kinds
from inferplan.planner.cost import Offer, drawn_w, listed_offers, listed_purchase_usd, owned_usd_per_h
from inferplan.planner.demand import Demand
from inferplan.planner.fleet import Fleet, added, cheapest_fleet
from inferplan.planner.goal import Draft, Goal, Owned
from inferplan.planner.pools import Pools, pools
from inferplan.planner.replica import Replica, drafted, replica
from inferplan.planner.screening import NO_ROOM, UNKNOWN, Screened, screened, why
from inferplan.planner.targets import Targets
from inferplan.serving.batch_times import Workload
from inferplan.specs.hardware import Accelerator

KEPT = 5  # candidates that are known in full at the end, beside the best of other parts
OTHERS, NEAR = 6, 2.5  # parts beyond those that are looked at in full as well, where they can cost at most so many times the best
LOOKED = 400
GAIN = 1.02  # by which other limits or drafts must raise what a replica takes to be chosen
DEARER, TOO_MANY, UNPRICED = "dearer", "more devices than allowed", "no price listed"
TOO_LONG, NO_GAIN = "longer than the model's context", "other limits or drafts: no gain"


@dataclass(frozen=True)
class Option:
    """A replica with the rate that it takes, and the fleet of it.

    rate_per_s
        the largest rate at which it keeps the limits: in closed form, or by simulation where it was tried.
    pools, rates_per_s, counts
        where prefill and decode have replicas of their own: what one of each takes, and how many of each there are at the peak;
        `rate_per_s` is then that of both over their number.
    """

    replica: Replica
    rate_per_s: float
    fleet: Fleet
    pools: Pools | None = None
    rates_per_s: tuple[float, float] = (0.0, 0.0)
    counts: tuple[int, int] = (0, 0)

    @property
    def candidate(self) -> Candidate:
        """What was chosen."""
        return self.replica.candidate


@dataclass(frozen=True, slots=True)
class Fallen:
    """Candidates that fell out for one reason: how many, and the nearest of them in a line."""

    group: str
    count: int
    example: str
    reason: str


@dataclass(frozen=True)
class Market:
    """What parts can be had for, and how fleets of them compare."""

    goal: Goal
    demand: Demand

    def offers(self, part: Accelerator) -> list[Offer]:
        """All offers for a part: your own price, an owned device, or the list's."""
        m = self.goal.money
        for name, price in m.prices.items():
            if self._means(name, part):
                return [Offer(part.name, "your price", "", price, m.node_gpus)]
        for name, own in m.owned.items():
            if self._means(name, part):
                return self._owned(part, own)
        return _listed(part, tuple(m.kinds), tuple(m.providers))

    def _means(self, name: str, part: Accelerator) -> bool:
        """Whether a name is that of a part; the parts that are searched, which may stand in files, come before those of the catalog."""
        searched = {_named(text) for text in self.goal.search.gpus or ()}
        return name == part.name or (name not in searched and _named(name) == part.name)

    def _owned(self, part: Accelerator, own: Owned) -> list[Offer]:
        m = self.goal.money
        listed = listed_purchase_usd(part) if own.purchase_usd is None else (own.purchase_usd, "given")
        if listed is None:
            return []
        power = part.power.value if part.power is not None else 0.0
        cost = float(owned_usd_per_h(listed[0], own.years, power, m.pue, m.usd_per_kwh, own.running_usd_per_h))
        return [Offer(part.name, "owned", f"over {own.years:g} years", cost, own.node_gpus, listed[1])]

    def fleet(self, kind: Kind, rate_per_s: float, gpus: int, at_peak: int | None = None) -> Fleet:
        """The cheapest fleet of replicas that take a rate each."""
        s = self.goal.safety
        return cheapest_fleet(self.demand, rate_per_s, gpus, self.offers(kind.hardware), queueing=s.queueing, rule=s.rule, at_peak=at_peak)

    def key(self, kind: Kind, fleet: Fleet) -> float:
        """What is to be small: cost, devices or power of the fleet."""
        objective = self.goal.search.objective
        if objective == "energy":
            power = kind.hardware.power
            return float("inf") if power is None else float(drawn_w(power.value, 1.0)) * fleet.gpus
        if objective == "gpus" or fleet.usd_per_h is None:
            return float(fleet.gpus)
        return fleet.usd_per_h


_OFFERS: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[Offer]] = {}


@lru_cache(maxsize=256)
def _named(text: str) -> str:
    return Accelerator.find(text).name


def _listed(part: Accelerator, wanted: tuple[str, ...], providers: tuple[str, ...]) -> list[Offer]:
    key = (part.name, wanted, providers)
    if key not in _OFFERS:
        _OFFERS[key] = listed_offers(part, wanted, providers)
    return _OFFERS[key]


@dataclass(eq=False)
class Search:
    """One search under way, and what it has found.

    unscreened
        kinds of which no split was looked at.
    """

    goal: Goal
    demand: Demand
    work: Workload
    targets: Targets
    progress: Callable[[str, int, int], None] | None = None
    every: list[Screened] = field(default_factory=list)
    fallen: list[tuple[str, str, str, float]] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)
    plain: list[Option] = field(default_factory=list)
    unscreened: int = 0
    looked: int = 0

    @cached_property
    def market(self) -> Market:
        """Prices."""
        return Market(self.goal, self.demand)

    def drop(self, group: str, name: str, reason: str, size: float = 0.0) -> None:
        """Keep why a candidate falls out; of a group the one with the least `size` is shown."""
        self.fallen.append((group, name, reason, size))

    def too_many(self, name: str, fleet: Fleet, needs: str = "needs") -> bool:
        """Whether a fleet has more devices than are allowed, the reason kept where it has."""
        limit = self.goal.search.max_gpus
        if limit is None or fleet.gpus <= limit:
            return False
        self.drop(TOO_MANY, name, f"{needs} {fleet.gpus:,} devices, {limit:,} are allowed", fleet.gpus)
        return True

    def rank(self, option: Option) -> tuple[float, int, str]:
        """By what options are sorted: what is to be small, then devices, then the name."""
        return self.key(option), option.fleet.gpus, option.candidate.name

    def tell(self, what: str, done: int, total: int) -> None:
        """Progress to whoever asked for it."""
        if self.progress:
            self.progress(what, done, total)

    def screen(self) -> None:
        """Bounds of every candidate."""
        listed = list(kinds(self.goal))
        for i, (kind, title, reason) in enumerate(listed):
            self.tell("screening", i, len(listed))
            group, why_not = (UNKNOWN, reason) if kind is None else self._ruled_out(kind)
            if group:
                self.drop(group, title, why_not)
                self.unscreened += 1
            elif kind is not None:
                splits = kind.splits(self.goal)
                self.every += screened(kind, splits, self.work, self.targets, utilization=self.goal.search.utilization)

    def _ruled_out(self, kind: Kind) -> tuple[str, str]:
        """Why no split of a kind is looked at, and the group of that reason; two empty texts where there is no reason."""
        longest, context = self.work.input.longest + self.work.output.longest, kind.model.context
        if context is not None and longest > context:
            return TOO_LONG, f"requests of up to {longest:,} tokens, {kind.model.title} takes {context:,} (max= cuts a law of lengths)"
        if self.goal.search.objective == "cost" and not self.market.offers(kind.hardware):
            asked = f"no {' or '.join(self.goal.money.kinds)} price listed"
            return UNPRICED, f"{asked}; give one (--price {kind.hardware.name}=USD)"
        if self.goal.search.objective == "energy" and kind.hardware.power is None:
            return UNKNOWN, "no rated power is known"
        return "", ""

    def bounded(self) -> list[tuple[float, Screened]]:
        """Candidates that may do, by the least that their fleet can cost."""
        found = []
        for s in self.every:
            if s.most_per_s <= 0:
                self.drop(s.group, s.candidate.name, s.reason, s.exceeds)
                continue
            fleet = self.market.fleet(s.candidate.kind, s.most_per_s, s.candidate.gpus)
            if not self.too_many(s.candidate.name, fleet, "needs at least"):
                found.append((self.market.key(s.candidate.kind, fleet), s))
        return sorted(found, key=lambda p: (p[0], p[1].candidate.gpus, p[1].candidate.name))

    def look(self, s: Screened) -> Option | None:
        """A candidate in closed form; None where it falls out after all."""
        self.looked += 1
        try:
            found = replica(s.candidate, self.work, utilization=self.goal.search.utilization)
        except InferplanError as e:
            self.drop(NO_ROOM if e.exit_code == 1 else UNKNOWN, s.candidate.name, str(e))
            return None
        return self.option(found)

    def option(self, found: Replica) -> Option | None:
        """The fleet of a replica; None, with the reason kept, where it cannot be."""
        name = found.candidate.name
        rate = found.largest_rate_per_s(self.targets)
        if rate <= 0:
            missed = found.misses(self.targets)
            if missed is None:
                missed = (self.targets.limits[0], found.idle_s(self.targets.limits[0]))
            target, value = missed
            reason = f"an idle replica has {target.name} of {1e3 * value:,.4g} ms, the limit is {1e3 * target.limit_s:,.4g} ms"
            self.drop(f"misses {target.name} even idle", name, reason, value / target.limit_s)
            return None
        fleet = self.market.fleet(found.candidate.kind, rate, found.gpus)
        return None if self.too_many(name, fleet) else Option(found, rate, fleet)

    def key(self, option: Option) -> float:
        """What is to be small."""
        return self.market.key(option.candidate.kind, option.fleet)

    def branch(self) -> None:
        """Closed form in the order of bounds until the next candidate cannot be among the best; then the best of other parts."""
        queue = self.bounded()
        left = []
        for i, (bound, s) in enumerate(queue):
            worst = sorted(self.key(o) for o in self.options)[KEPT - 1] if len(self.options) >= KEPT else float("inf")
            if bound >= worst or self.looked >= LOOKED:
                left = queue[i:]
                break
            self.tell("closed form", i, len(queue))
            if (found := self.look(s)) is not None:
                self.options.append(found)
        self._others(left)
        self.options.sort(key=self.rank)

    def _others(self, left: list[tuple[float, Screened]]) -> None:
        """The best candidate of parts that are not among the best, where it can be near; the rest is dearer."""
        seen = {o.candidate.kind.hardware.name for o in self.options}
        best = min((self.key(o) for o in self.options), default=float("inf"))
        for bound, s in left:
            part = s.candidate.kind.hardware.name
            if part not in seen and bound <= NEAR * best and len(seen) < OTHERS + KEPT and (found := self.look(s)) is not None:
                self.options.append(found)
                seen.add(part)
                continue
            self.drop(DEARER, s.candidate.name, self._at_least(bound, best), bound)

    def _at_least(self, bound: float, best: float) -> str:
        unit = {"cost": "USD/h", "gpus": "devices", "energy": "W"}[self.goal.search.objective]
        return f"costs at least {bound:,.4g} {unit}, the best {best:,.4g}" if unit == "USD/h" else f"takes at least {bound:,.4g} {unit}"

    def tune(self, count: int) -> None:
        """Other limits for the best: fewer requests at once, other tokens per step, drafts; kept where a replica takes more."""
        self.plain = list(self.options)
        for i, option in enumerate(self.plain[:count]):
            self.tell("tuning", i, count)
            for changed in self._variants(option):
                better = self._better(self.options[i], changed)
                if better is not None:
                    self.options[i] = better
        self.options.sort(key=self.rank)

    def _variants(self, option: Option) -> list[Replica]:
        s, found, c = self.goal.search, [], option.candidate
        for tokens in s.max_num_batched_tokens or []:
            try:
                found.append(replica(replace(c, max_num_batched_tokens=tokens), self.work, utilization=s.utilization))
            except InferplanError:
                continue
        if s.draft is not None:
            found += self._drafted(option.replica, s.draft)
        most = option.replica.times.most
        caps = s.max_num_seqs or self._caps(option.replica)
        found += [r.capped(cap) for r in (option.replica, *found) for cap in caps if cap < most]
        return found

    def divide(self, count: int) -> None:
        """The best candidates once more, in pools for prefill and for decode; kept beside the others where they are not dearer than all."""
        worst = max((self.key(o) for o in self.options), default=float("inf"))
        for i, option in enumerate(self.plain[:count]):
            self.tell("pools", i, count)
            name = f"{option.candidate.name}, in pools"
            try:
                both = pools(option.replica, self.goal.search)
            except InferplanError as e:
                self.drop(UNKNOWN, name, str(e))
                continue
            rates = both.prefill_rate_per_s(self.targets), both.decode_rate_per_s(self.targets)
            if min(rates) <= 0:
                self.drop("misses in pools even idle", name, "a limit is missed by an idle pool")
                continue
            divided = self.divided(option, both, rates)
            if self.key(divided) <= worst:
                self.options.append(divided)
            else:
                reason = f"takes {divided.fleet.gpus:,} devices, in one pool {option.fleet.gpus:,}"
                self.drop(DEARER, name, reason, self.key(divided))
        self.options.sort(key=self.rank)

    def divided(self, option: Option, both: Pools, rates: tuple[float, float], at_peak: tuple[int, int] | None = None) -> Option:
        """An option in pools whose replicas take `rates` each; `at_peak` says their numbers at the peak otherwise."""
        kind, n = option.candidate.kind, at_peak or (None, None)
        front, back = (self.market.fleet(kind, r, both.decode.gpus, at_peak=k) for r, k in zip(rates, n, strict=True))
        named = f"{front.at_peak} for prefill and {back.at_peak} for decode"
        chosen = replace(option.candidate, pooled=named)
        rate = 1 / (1 / rates[0] + 1 / rates[1])
        return Option(replace(option.replica, candidate=chosen), rate, added(front, back), both, rates, (front.at_peak, back.at_peak))

    def _drafted(self, found: Replica, asked: Draft) -> list[Replica]:
        """The same with drafts, nothing where they do not run."""
        try:
            return [drafted(found, asked)]
        except (DoesNotFit, Unsupported) as e:
            self.drop(UNKNOWN, f"{found.candidate.name}, {asked.name}", str(e))
            return []

    def _caps(self, found: Replica) -> list[int]:
        """Batches whose mean gap just keeps the limit, and somewhat fewer."""
        limit = min((t.limit_s for t in self.targets.limits if t.metric == "tpot"), default=None)
        if limit is None:
            return []
        keep = int((found.times.gap_s <= limit).sum())
        return sorted({n for n in (keep, int(0.8 * keep)) if n >= 1}, reverse=True)

    def _better(self, option: Option, changed: Replica) -> Option | None:
        rate = changed.largest_rate_per_s(self.targets)
        fleet = self.market.fleet(changed.candidate.kind, max(rate, option.rate_per_s / 1000), changed.gpus)
        if rate > GAIN * option.rate_per_s and self.market.key(changed.candidate.kind, fleet) <= self.key(option):
            return Option(changed, rate, fleet)
        reason = f"a replica takes {rate:.3g} requests/s so, {option.rate_per_s:.3g} otherwise"
        self.drop(NO_GAIN, changed.candidate.name, reason, -rate)
        return None

    def groups(self) -> dict[str, list[tuple[str, str, float]]]:
        """All that fell out, as (name, reason, size), by the group of their reason."""
        found: dict[str, list[tuple[str, str, float]]] = {}
        for group, name, reason, size in self.fallen:
            found.setdefault(group, []).append((name, reason, size))
        return found

    def reasons(self) -> list[Fallen]:
        """Why the others fell out, by reason, with the nearest of each."""
        found = []
        for group, members in self.groups().items():
            name, reason, _ = min(members, key=lambda m: m[2])
            found.append(Fallen(group, len(members), name, reason or self._opened(name)))
        return sorted(found, key=lambda f: -f.count)

    def _opened(self, name: str) -> str:
        """Why a candidate does not fit, asked only for the one that is shown."""
        s = next(s for s in self.every if s.candidate.name == name)
        return why(s.candidate, self.work, self.goal.search.utilization)


def search(
    goal: Goal, demand: Demand, work: Workload, targets: Targets, *, progress: Callable[[str, int, int], None] | None = None, tune: int = 3
) -> Search:
    """The whole search: bounds, closed form, limits of the best `tune`."""
    found = Search(goal, demand, work, targets, progress)
    found.screen()
    found.branch()
    found.tune(tune)
    if goal.search.disaggregated:
        found.divide(tune)
    return found
