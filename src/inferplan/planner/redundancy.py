"""How many units to keep so that enough are up: N + k, spare units in each zone, loss of a zone, or a probability. Knows no rate, no price.

A unit is what fails at once: a node with the replicas on it, or a replica over several nodes.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

from inferplan.errors import SpecError
from inferplan.formula import formula
from inferplan.ops import Numeric

MOST = 1_000_000
FORMS = "'none', 'n+1', 'n+2/zone', 'zone' or 'p>=0.999'"
_SPARE = re.compile(r"n\+(\d{1,4})(/zone)?\Z")
_CHANCE = re.compile(r"p\s*>=\s*([0-9.]+)\Z")


@formula("1 / (1 + failures_per_day * repair_days)", unit="1", ref="renewal theory: mean time up over mean time up and down")
def availability(failures_per_day: Numeric, repair_days: Numeric) -> Numeric:
    """The share of time in which a node is up that fails so often and takes so long to repair.

    >>> round(availability(0.0065, 2), 5)
    0.98717
    """
    return 1 / (1 + failures_per_day * repair_days)


def enough_probability(units: int, needed: int, up: float) -> float:
    """The chance that at least `needed` of `units` are up, each on its own with chance `up`: the binomial sum, exact.

    >>> [round(enough_probability(n, 8, 0.95), 5) for n in (8, 9, 10)]
    [0.66342, 0.92879, 0.9885]
    """
    if needed > units:
        return 0.0
    if up >= 1 or needed <= 0:
        return 1.0
    if up <= 0:
        return 0.0
    down = np.arange(0, units - needed + 1)
    choose = np.array([math.lgamma(units + 1) - math.lgamma(k + 1) - math.lgamma(units - k + 1) for k in down.tolist()])
    return min(1.0, float(np.exp(choose + down * math.log1p(-up) + (units - down) * math.log(up)).sum()))


def units_for_probability(needed: int, up: float, target: float) -> int:
    """The fewest units of which at least `needed` are up with chance `target`; raises SpecError where no number does.

    >>> units_for_probability(8, 0.98717, 0.999), units_for_probability(8, 0.95, 0.98)
    (10, 10)
    """
    if not 0 < up <= 1:
        raise SpecError("must lie above 0 and at most at 1", field="node_availability", value=up)
    if not 0 < target < 1:
        raise SpecError("must lie above 0 and below 1", field="redundancy", value=target)
    low, high = needed, needed
    while enough_probability(high, needed, up) < target:
        low, high = high, high * 2 + 1
        if high > MOST:
            raise SpecError("is out of reach with so low an availability", field="redundancy", value=target)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough_probability(middle, needed, up) >= target else (middle, high)
    return high if enough_probability(low, needed, up) < target else low


def units_for_zone_loss(needed: Numeric, zones: int) -> Numeric:
    """Units over `zones` zones of which `needed` are left when one zone is lost: ceil(n z / (z - 1)), spread evenly but for one.
    >>> float(units_for_zone_loss(8, 3)), float(units_for_zone_loss(7, 3))
    (12.0, 11.0)
    """
    if zones < 2:
        raise SpecError("must be 2 or more to survive the loss of one", field="zones", value=zones)
    found: Numeric = np.ceil(np.asarray(needed, dtype=float) * zones / (zones - 1) - 1e-12)
    return found


@dataclass(frozen=True, slots=True)
class Redundancy:
    """What must hold when something fails.

    kind
        `spare`: `spare` units beyond those needed; `zonal`: so many beyond those needed in each zone; `zone`: a whole zone may be lost;
        `chance`: enough are up with probability `chance`.

    >>> [Redundancy.parse(t, zones=3, up=0.95).units(8) for t in ("none", "n+1", "n+1/zone", "zone", "p>=0.98")]
    [8, 9, 12, 12, 10]
    """

    kind: Literal["spare", "zonal", "zone", "chance"] = "spare"
    spare: int = 0
    chance: float = 0.0
    zones: int = 1
    up: float | None = None

    @classmethod
    def parse(cls, text: str, *, zones: int = 1, up: float | None = None) -> Redundancy:
        """The rule that a text means; raises SpecError, which names the forms, for any other text."""
        bare = text.strip().lower()
        if bare == "none":
            return cls(zones=zones, up=up)
        if bare == "zone":
            units_for_zone_loss(1, zones)
            return cls("zone", zones=zones, up=up)
        if match := _SPARE.match(bare):
            return cls("zonal" if match[2] else "spare", int(match[1]), zones=zones, up=up)
        if match := _CHANCE.match(bare):
            return cls._chance(match[1], text, zones, up)
        raise SpecError(f"is no rule; write {FORMS}", field="redundancy", value=text)

    @classmethod
    def _chance(cls, number: str, text: str, zones: int, up: float | None) -> Redundancy:
        try:
            target = float(number)
        except ValueError:
            target = 0.0
        if not 0 < target < 1:
            raise SpecError("needs a probability above 0 and below 1", field="redundancy", value=text)
        if up is None:
            raise SpecError("needs node_availability", field="redundancy", value=text)
        units_for_probability(1, up, target)
        return cls("chance", chance=target, zones=zones, up=up)

    def units(self, needed: int) -> int:
        """Units to keep where `needed` of them carry the load."""
        if self.kind == "chance":
            return units_for_probability(needed, float(self.up or 0), self.chance)
        if self.kind == "zone":
            return int(units_for_zone_loss(needed, self.zones))
        if self.kind == "zonal":
            return self.zones * (math.ceil(needed / self.zones) + self.spare)
        return needed + self.spare

    def probability(self, needed: int, units: int) -> float | None:
        """The chance that enough of them are up; None where the availability of a node is not known."""
        return None if self.up is None else enough_probability(units, needed, self.up)
