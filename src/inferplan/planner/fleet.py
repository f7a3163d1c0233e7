"""How many replicas carry a demand with what is kept in hand, where each takes so much. Knows no latency and no model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inferplan.formula import formula
from inferplan.ops import Numeric
from inferplan.planner.cost import Offer
from inferplan.planner.demand import Demand
from inferplan.planner.redundancy import Redundancy

EPS = 1e-9  # of a replica: what rates lose in floating point must not call for another one


@formula("maximum(ceil(rate_per_s / (per_replica_per_s * queueing) - 1e-9), 1)", unit="1", ref="rate over what one takes, rounded up")
def replicas_needed(rate_per_s: Numeric, per_replica_per_s: Numeric, queueing: Numeric = 1) -> Numeric:
    """Replicas that carry a rate where each just keeps its limits at `per_replica_per_s`, and a share `queueing` of that is planned on it.

    >>> float(replicas_needed(240, 120, 0.65)), float(replicas_needed(960, 120, 0.65))
    (4.0, 13.0)
    """
    found: Numeric = np.maximum(np.ceil(np.asarray(rate_per_s, dtype=float) / (per_replica_per_s * queueing) - EPS), 1)
    return found


@dataclass(frozen=True, slots=True)
class Fleet:
    """Replicas of a kind for a demand.

    at_mean, at_peak
        replicas that carry the planned mean and peak.
    replicas
        those at the peak with spares for failures.
    units, kept_units
        things that fail at once: those that carry the peak, and those that are kept.
    probability
        the chance that enough units are up; None where the availability of a node is not known.
    """

    gpus_per_replica: int
    at_mean: int
    at_peak: int
    replicas: int
    units: int
    kept_units: int
    probability: float | None
    offer: Offer | None = None

    @property
    def gpus(self) -> int:
        """Devices that work or stand by."""
        return self.replicas * self.gpus_per_replica

    @property
    def billed_gpus(self) -> int:
        """Devices that are paid for: whole nodes."""
        return self.offer.billed_gpus(self.replicas, self.gpus_per_replica) if self.offer else self.gpus

    @property
    def usd_per_h(self) -> float | None:
        """What it costs for an hour; None without a price."""
        return self.offer.usd_per_h(self.replicas, self.gpus_per_replica) if self.offer else None


def fleet_of(
    demand: Demand, per_replica_per_s: float, gpus: int, *, queueing: float, rule: Redundancy, offer: Offer | None = None,
    at_peak: int | None = None,
) -> Fleet:  # fmt: skip
    """The fleet of replicas of `gpus` devices each that carries a demand; `at_peak` says the number at the peak otherwise.

    >>> from inferplan.planner.demand import Demand
    >>> found = fleet_of(Demand(200, 800, buffer=0.2), 120.0, 1, queueing=0.65, rule=Redundancy.parse("n+1"))
    >>> found.at_mean, found.at_peak, found.replicas
    (4, 13, 14)
    """
    peak = at_peak or int(replicas_needed(demand.planned_peak_per_s, per_replica_per_s, queueing))
    mean = min(peak, int(replicas_needed(demand.planned_mean_per_s, per_replica_per_s, queueing)))
    each = max(1, offer.per_node(gpus)) if offer else 1
    units = math.ceil(peak / each)
    kept = rule.units(units)
    return Fleet(gpus, mean, peak, peak + (kept - units) * each, units, kept, rule.probability(units, kept), offer)


def cheapest_fleet(
    demand: Demand, per_replica_per_s: float, gpus: int, offers: list[Offer], *, queueing: float, rule: Redundancy,
    at_peak: int | None = None,
) -> Fleet:  # fmt: skip
    """The fleet under the offer that makes it cheapest; without an offer where there is none."""
    ways: Sequence[Offer | None] = offers or [None]
    found = (fleet_of(demand, per_replica_per_s, gpus, queueing=queueing, rule=rule, offer=o, at_peak=at_peak) for o in ways)
    return min(found, key=lambda f: (f.usd_per_h or 0.0, f.gpus))


def profile_replicas(demand: Demand, per_replica_per_s: float, queueing: float) -> NDArray[np.int64]:
    """Replicas in each step of the demand's profile on the day that is planned for: what scaling without delay would run."""
    rates = demand.planned_mean_per_s * np.asarray(demand.profile)
    return np.asarray(replicas_needed(rates, per_replica_per_s, queueing)).astype(np.int64)


def thresholds_per_s(per_replica_per_s: float, queueing: float, around: int, *, before: int = 2, after: int = 3) -> list[tuple[int, float]]:
    """The rates up to which so many replicas do, around a number of them: beyond each the next replica is needed.

    >>> thresholds_per_s(120.0, 0.65, 4, before=1, after=1)
    [(3, 234.0), (4, 312.0), (5, 390.0)]
    """
    return [(n, n * per_replica_per_s * queueing) for n in range(max(1, around - before), around + after + 1)]


def added(a: Fleet, b: Fleet) -> Fleet:
    """Two fleets of replicas alike, as one: pools for prefill and for decode, each with its own spares."""
    chance = None if a.probability is None or b.probability is None else a.probability * b.probability
    return Fleet(
        a.gpus_per_replica, a.at_mean + b.at_mean, a.at_peak + b.at_peak, a.replicas + b.replicas, a.units + b.units,
        a.kept_units + b.kept_units, chance, a.offer,
    )  # fmt: skip
