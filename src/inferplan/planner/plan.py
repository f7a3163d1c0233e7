"""A plan: the fleet that reaches a goal at the least cost, proven by simulation, with runners-up and what it hangs on. Knows no screen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from inferplan.deployment import remedies
from inferplan.errors import InferplanError, NoFeasiblePlan
from inferplan.planner.candidate import parts
from inferplan.planner.cost import Bill, Offer, break_even_per_s, drawn_w
from inferplan.planner.demand import Demand
from inferplan.planner.fleet import Fleet, cheapest_fleet, profile_replicas, replicas_needed, thresholds_per_s
from inferplan.planner.goal import Goal
from inferplan.planner.pools import PoolBench, Pools
from inferplan.planner.proof import Bench, Tried
from inferplan.planner.replica import Replica, started
from inferplan.planner.rows import choice_rows
from inferplan.planner.screening import NO_ROOM
from inferplan.planner.search import TOO_MANY, Fallen, Market, Option, Search, search
from inferplan.planner.targets import Target, Targets
from inferplan.planner.whatif import Swing, measure_first, swings
from inferplan.serving.batch_times import Workload
from inferplan.serving.continuous import Continuous
from inferplan.shown import Shown

TELL = Callable[[str, int, int], None]
Proven = tuple[Option, Bench | PoolBench | None]
NOT_SIMULATED, CLOSED = "not simulated", "--finalists 0 plans in closed form"
MORE = 4  # times as many finalists as asked for are simulated at most


@dataclass(frozen=True, slots=True)
class Latency:
    """One limit and what it is compared with, in seconds: at the mean and at the peak in closed form, and simulated at the peak.

    In the reading by share the times are those of the limit's own percentile; the share that keeps all limits is beside the plan.
    """

    target: Target
    at_mean_s: float
    at_peak_s: float
    simulated_s: float | None
    half_width_s: float | None

    @property
    def shown_s(self) -> float:
        """The most trusted value at the peak: simulated where there is one."""
        return self.at_peak_s if self.simulated_s is None else self.simulated_s

    @property
    def margin_s(self) -> float:
        """What is left to the limit at the peak."""
        return self.target.limit_s - self.shown_s


@dataclass(frozen=True)
class Choice:
    """One fleet that reaches the goal.

    rate_per_s
        what a replica takes while it keeps the limits: proven by simulation where `tried` is set, else in closed form, else measured.
    tried
        the simulation with what is kept in hand used up: at the planned peak over `queueing`.
    at_peak
        the simulation at the planned peak.
    pools
        replicas for prefill and for decode at the peak, where they are apart.
    """

    name: str
    gpus_per_replica: int
    rate_per_s: float
    fleet: Fleet
    bill: Bill | None
    latencies: tuple[Latency, ...]
    replica: Replica | None = None
    tried: Tried | None = None
    at_peak: Tried | None = None
    load_mean: float | None = None
    load_peak: float | None = None
    pools: tuple[int, int] | None = None

    @property
    def verdict(self) -> str:
        """`meets`, `misses`, `undecided` by simulation; `closed form` or `measured` where there was none."""
        return self.tried.verdict if self.tried else "closed form" if self.replica is not None else "measured"

    @property
    def part(self) -> str:
        """The part's name, '' for a measured replica of none."""
        return self.replica.candidate.kind.hardware.name if self.replica else self.fleet.offer.part if self.fleet.offer else ""


@dataclass(frozen=True)
class Plan(Shown):
    """The answer to a goal.

    choices
        the plan, then the runners-up, by what was to be small.
    fallen
        why every other candidate fell out, by reason.
    thresholds
        peak rates up to which so many replicas do.
    swings, first
        what it hangs on, and what to measure first.
    scaled_replicas
        in each step of the profile, what scaling without delay would run; None without a profile.
    """

    goal: Goal
    demand: Demand
    work: Workload
    targets: Targets
    choices: tuple[Choice, ...]
    fallen: tuple[Fallen, ...] = ()
    thresholds: tuple[tuple[int, float], ...] = ()
    swings: tuple[Swing, ...] = ()
    first: Swing | None = None
    scaled_replicas: tuple[int, ...] | None = None
    candidates: int = 0
    looked: int = 0

    @property
    def best(self) -> Choice:
        """The plan itself."""
        return self.choices[0]

    @property
    def scaled_usd_per_month(self) -> float | None:
        """What those replicas would cost by the device and hour, with the spares of the plan; None without a profile or a price.

        A lower bound: replicas start without delay, and nodes are let go in part.
        """
        f = self.best.fleet
        if self.scaled_replicas is None or f.offer is None:
            return None
        kept = sum(self.scaled_replicas) / len(self.scaled_replicas) + f.replicas - f.at_peak
        return kept * f.gpus_per_replica * f.offer.usd_per_gpu_h * self.goal.money.hours_per_month

    @property
    def break_even_per_s(self) -> float | None:
        """The mean rate above which the plan costs less than the interface of the goal; None without a price of either."""
        b, elsewhere = self.best.bill, self.goal.money.api_usd_per_million
        if b is None or elsewhere is None:
            return None
        return float(break_even_per_s(b.usd_per_month, elsewhere, b.input_tokens + b.output_tokens, b.hours))

    def frame(self) -> Any:
        """The choices as a pandas DataFrame, a row each, under the glossary's keys in base units."""
        import pandas as pd

        return pd.DataFrame(choice_rows(self))


def plan(goal: Goal | dict[str, Any] | str, *, progress: TELL | None = None) -> Plan:
    """The fleet that reaches a goal at the least cost; a goal is a record, a mapping of its fields, or the path of a YAML file.

    Raises NoFeasiblePlan, with the smallest change that would help, where nothing does; SpecError for a goal that is none.

    >>> found = plan({"traffic": {"rate_per_s": 200.0, "peak_per_s": 800.0}, "measured": {"rate_per_s": 120.0},
    ...     "safety": {"queueing": 0.65, "buffer": 0.2, "redundancy": "none"}})
    >>> found.best.fleet.at_mean, found.best.fleet.at_peak
    (4, 13)
    """
    asked = Goal.load(goal) if isinstance(goal, str) else Goal.from_mapping(goal) if isinstance(goal, dict) else goal
    demand, work = asked.asked()
    if asked.measured is not None:
        return _of_measured(asked, demand, work)
    targets = asked.targets
    found = search(asked, demand, work, targets, progress=progress)
    proven = _proven(found, progress)
    if not proven:
        raise NoFeasiblePlan(smallest_change(found))
    return _answer(found, proven)


def _of_measured(goal: Goal, demand: Demand, work: Workload) -> Plan:
    """Sizing by a replica that was measured: no search, no latency."""
    m = goal.measured
    assert m is not None
    rate = m.rate_per_s if m.rate_per_s is not None else float(m.tokens_per_s or 0) / (work.input.mean + work.output.mean)
    offers = _offers_of_measured(goal, demand)
    fleet = cheapest_fleet(demand, rate, m.gpus, offers, queueing=goal.safety.queueing, rule=goal.safety.rule)
    bill = None if fleet.usd_per_h is None else _bill(goal, demand, work, fleet, 0.0, None, 1.0)
    choice = Choice(f"a replica measured at {rate:g} requests/s ({m.source})", m.gpus, rate, fleet, bill, ())
    return Plan(
        goal, demand, work, Targets(()), (choice,), thresholds=tuple(thresholds_per_s(rate, goal.safety.queueing, fleet.at_peak)),
        scaled_replicas=_scaled(goal, demand, rate), candidates=1, looked=1,
    )  # fmt: skip


def _offers_of_measured(goal: Goal, demand: Demand) -> list[Offer]:
    if goal.search.gpus is None:
        return []
    return [o for part in parts(goal) for o in Market(goal, demand).offers(part)]


def _scaled(goal: Goal, demand: Demand, rate_per_s: float) -> tuple[int, ...] | None:
    if len(demand.profile) < 2:
        return None
    return tuple(int(n) for n in profile_replicas(demand, rate_per_s, goal.safety.queueing))


def _proven(found: Search, progress: TELL | None) -> list[Proven]:
    """Finalists by simulation in their new order, then the rest in closed form.

    There are more finalists than asked for where one in closed form would still come before the last of them.
    """
    count = found.goal.proof.finalists
    tried: list[Proven] = []
    rest = list(found.options)
    while rest and count and len(tried) < MORE * count:
        keys = sorted(found.key(o) for o, _ in tried)
        if len(keys) >= count and found.key(rest[0]) >= keys[count - 1]:
            break
        if progress:
            progress("simulation", len(tried), max(count, len(tried) + 1))
        if (answer := _simulated(found, rest.pop(0))) is not None:
            tried.append(answer)
    tried.sort(key=lambda p: found.rank(p[0]))
    return [*tried, *((o, None) for o in rest)]


def _simulated(found: Search, option: Option) -> Proven | None:
    """An option with the rate that simulation proves; None, with the reason kept, where it proves none."""
    try:
        bench = Bench.of(option.replica, found.targets, found.goal.proof)
        if option.pools is not None:
            return _pooled(found, option, option.pools, bench)
        good, bad = bench.largest_rate_per_s(option.rate_per_s)
    except InferplanError as e:
        found.drop(NOT_SIMULATED, option.candidate.name, str(e))
        return None
    if not good:
        found.drop("misses in simulation at every rate", option.candidate.name, f"at {bad:.3g} requests/s: not proven")
        return None
    good = _fewer(found, bench, good, bad)
    fleet = found.market.fleet(option.candidate.kind, good, option.replica.gpus)
    return None if found.too_many(option.candidate.name, fleet) else (replace(option, rate_per_s=good, fleet=fleet), bench)


def _pooled(found: Search, option: Option, both: Pools, bench: Bench) -> Proven | None:
    """Pools with as many replicas as simulation asks for; None, with the reason kept, where more and more do not do."""
    q, peak = found.goal.safety.queueing, found.demand.planned_peak_per_s
    together = PoolBench(both, bench)
    counts = [int(replicas_needed(peak, rate, q)) for rate in option.rates_per_s]
    front, back, last = together.proven(counts[0], counts[1], peak / q)
    if last.verdict != "meets":
        found.drop("misses in simulation", option.candidate.name, f"{last.verdict} with {front} + {back} replicas")
        return None
    return found.divided(option, both, (peak / front / q, peak / back / q), (front, back)), together


def _fewer(found: Search, bench: Bench, good: float, bad: float) -> float:
    """The proven rate, raised where one replica fewer is proven too: the last step of the number is decided by its own simulation."""
    q, peak = found.goal.safety.queueing, found.demand.planned_peak_per_s
    while (n := int(replicas_needed(peak, good, q))) > 1 and peak / ((n - 1) * q) < bad:
        rate = peak / ((n - 1) * q)
        if bench.at(rate).verdict != "meets":
            break
        good = rate
    return good


def _answer(found: Search, proven: list[Proven]) -> Plan:
    choices = tuple(_choice(found, option, bench) for option, bench in proven)
    best = proven[0][0]
    tried = [option for option, bench in proven if bench is not None]
    moved = swings(found, best, tried or [option for option, _ in proven])
    q = found.goal.safety.queueing
    return Plan(
        found.goal, found.demand, found.work, found.targets, choices, tuple(found.reasons()),
        tuple(thresholds_per_s(best.rate_per_s, q, best.fleet.at_peak)), tuple(moved),
        measure_first(moved, best.fleet.usd_per_h, best.fleet.gpus), _scaled(found.goal, found.demand, best.rate_per_s),
        len(found.every) + found.unscreened, found.looked,
    )  # fmt: skip


def _choice(found: Search, option: Option, bench: Bench | PoolBench | None) -> Choice:
    """A fleet with its times at the mean and at the peak, its use and its bill."""
    r, fleet, demand = option.replica, option.fleet, found.demand
    peak, mean = demand.planned_peak_per_s / fleet.at_peak, demand.later_mean_per_s / fleet.replicas
    tried, simulated = _runs(found, option, bench)
    steady = r.at(np.array([mean, peak]))
    bill = None if fleet.usd_per_h is None else _bill(found.goal, demand, found.work, fleet, r.prefill_share, r, float(steady.busy[0]))
    times = _latencies(r, found.targets, steady, simulated) if option.pools is None else _pool_latencies(found, option, simulated)
    return Choice(
        option.candidate.name, r.gpus, option.rate_per_s, fleet, bill, times, r, tried, simulated, mean / r.most_per_s,
        peak / r.most_per_s, option.counts if option.pools else None,
    )  # fmt: skip


def _runs(found: Search, option: Option, bench: Bench | PoolBench | None) -> tuple[Tried | None, Tried | None]:
    """The simulations with what is kept in hand used up, and at the planned peak itself."""
    q, peak, n = found.goal.safety.queueing, found.demand.planned_peak_per_s, option.fleet.at_peak
    if isinstance(bench, Bench):
        return bench.at(peak / n / q), bench.at(peak / n)
    if bench is None:
        return None, None
    return bench.at(*option.counts, peak / q), bench.at(*option.counts, peak)


def _pool_latencies(found: Search, option: Option, tried: Tried | None) -> tuple[Latency, ...]:
    """Times of pools: first tokens of the one, the rest of the other."""
    assert option.pools is not None
    out = []
    for i, target in enumerate(found.targets.limits):
        r = option.pools.prefill if target.metric == "ttft" else option.pools.decode
        own = option.rates_per_s[0 if target.metric == "ttft" else 1] * found.goal.safety.queueing
        share = found.demand.later_mean_per_s / found.demand.planned_peak_per_s
        out.append(_latency(r, found.targets, i, r.at(np.array([own * share, own])), tried))
    return tuple(out)


def _latencies(r: Replica, targets: Targets, steady: Continuous, tried: Tried | None) -> tuple[Latency, ...]:
    return tuple(_latency(r, targets, i, steady, tried) for i in range(len(targets.limits)))


def _latency(r: Replica, targets: Targets, i: int, steady: Continuous, tried: Tried | None) -> Latency:
    """The limit of number `i`, where `steady` holds the rates at the mean and at the peak."""
    target = targets.limits[i]
    mean, peak = (float(v) for v in r.value_s(steady, target))
    known = tried is not None and targets.kind == "percentiles"
    simulated, half = (float(tried.mean[i]), float(tried.half_width[i])) if known and tried else (None, None)
    return Latency(target, mean, peak, simulated, half)


def _bill(goal: Goal, demand: Demand, work: Workload, fleet: Fleet, prefill: float, r: Replica | None, busy: float) -> Bill:
    m = goal.money
    power = r.candidate.kind.hardware.power if r is not None else None
    drawn = None if power is None else float(drawn_w(power.value, busy, m.idle_share, m.pue)) * fleet.billed_gpus
    lengths = (work.input.mean, work.output.mean)
    return Bill(fleet.usd_per_h or 0.0, demand.later_mean_per_s, *lengths, prefill, drawn, m.hours_per_month, m.kg_co2_per_kwh)


def smallest_change(found: Search) -> str:
    """Why nothing does, and the smallest single change under which something would."""
    groups = found.groups()
    told = [f"no plan among {len(found.every):,} candidates"]
    idle = [m for g, members in groups.items() if g.startswith("misses") for m in members if m[2] > 0]
    if TOO_MANY in groups:
        name, _, need = min(groups[TOO_MANY], key=lambda m: m[2])
        told.append(f"the smallest fleet, {name}, needs at least {need:,.0f} devices (--max-gpus {need:.0f})")
    elif idle:
        name, reason, size = min(idle, key=lambda m: m[2])
        times = f"{size:,.0f}" if size >= 100 else f"{size:.3g}"
        told.append(f"no number of replicas mends it: {name}: {reason}; a limit {times} times as long would do, or a faster split")
    else:
        first = next((f for f in found.reasons() if f.group.startswith("misses")), next(iter(found.reasons()), None))
        if first is not None:
            told.append(f"{first.group}: {first.example}: {first.reason}")
            told += _remedy(found) if first.group == NO_ROOM else [CLOSED] if first.group == NOT_SIMULATED else []
    return "; ".join(told)


def _remedy(found: Search) -> list[str]:
    """The smallest single change under which the candidate with most memory would start; nothing where none is found."""
    none = [s.candidate for s in found.every if s.group == NO_ROOM]
    if not none:
        return []
    c = max(none, key=lambda c: c.gpus * c.kind.hardware.usable_bytes)
    change = next(iter(remedies(started(c, found.work, found.goal.search.utilization))), None)
    return [] if change is None else [f"{c.split} on {c.kind.hardware.name} would start with {change.what}"]
