"""What a fleet costs: offers of parts, owned parts, whole nodes, energy, money per million tokens. Knows no time of a model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from inferplan.formula import formula
from inferplan.ops import Numeric
from inferplan.specs.hardware import Accelerator, Price, prices

HOURS_PER_MONTH = 730.0  # a twelfth of the 8760 of a year
TRUST = {"high": 0, "medium": 1, "low": 2}


@formula(
    "purchase_usd / (years * 8760) + power_w / 1000 * pue * usd_per_kwh + running_usd_per_h",
    unit="USD/h",
    ref="straight-line depreciation over all hours of the years, energy at the meter of the building",
)
def owned_usd_per_h(
    purchase_usd: Numeric, years: Numeric, power_w: Numeric, pue: Numeric, usd_per_kwh: Numeric, running_usd_per_h: Numeric = 0
) -> Numeric:
    """What an owned device costs per hour, whether it works or not.

    >>> round(owned_usd_per_h(30_000, 4, 1000, 1.3, 0.12), 4)
    1.0122
    """
    return purchase_usd / (years * 8760) + power_w / 1000 * pue * usd_per_kwh + running_usd_per_h


@formula("usd_per_h * 1e6 / (rate_per_s * tokens * 3600)", unit="USD", ref="price over what is made at the load that is there")
def usd_per_million(usd_per_h: Numeric, rate_per_s: Numeric, tokens: Numeric) -> Numeric:
    """Money per million tokens of a fleet that gets `rate_per_s` requests of `tokens` tokens each, however much it could take.

    >>> round(usd_per_million(10.0, 5.0, 200), 3)
    2.778
    """
    return usd_per_h * 1e6 / (rate_per_s * tokens * 3600)


@formula("power_w * (idle_share + (1 - idle_share) * busy) * pue", unit="W", ref="linear in use (Barroso, Hoelzle 2007)")
def drawn_w(power_w: Numeric, busy: Numeric, idle_share: Numeric = 1, pue: Numeric = 1) -> Numeric:
    """Power that a device draws at the building's meter when it is busy for a share of time; at an idle share of 1 its rated power.

    >>> round(drawn_w(700.0, 0.5, 0.2, 1.3), 6)
    546.0
    """
    return power_w * (idle_share + (1 - idle_share) * busy) * pue


@dataclass(frozen=True, slots=True)
class Offer:
    """One way to get a part.

    usd_per_gpu_h
        price of one device for an hour.
    node_gpus
        devices that are rented together; 1 where the price is one per device, for any number of them.
    """

    part: str
    provider: str
    kind: str
    usd_per_gpu_h: float
    node_gpus: int = 1
    source: str = "given"
    date: str = ""

    @property
    def name(self) -> str:
        """Who and how, in words."""
        return f"{self.provider} {self.kind}".strip()

    def per_node(self, gpus: int) -> int:
        """Replicas of so many devices on one node; 0 where a replica takes several nodes."""
        return self.node_gpus // gpus if self.node_gpus >= gpus else 0

    def billed_gpus(self, replicas: int, gpus: int) -> int:
        """Devices that are paid for: whole nodes, and no replica over two of them that fits one.

        >>> Offer("h100", "x", "on-demand", 2.0, 8).billed_gpus(3, 4), Offer("h100", "x", "on-demand", 2.0, 1).billed_gpus(3, 4)
        (16, 12)
        """
        if self.node_gpus == 1:
            return replicas * gpus
        each = self.per_node(gpus)
        nodes = math.ceil(replicas / each) if each else replicas * math.ceil(gpus / self.node_gpus)
        return nodes * self.node_gpus

    def usd_per_h(self, replicas: int, gpus: int) -> float:
        """What the fleet costs for an hour."""
        return self.billed_gpus(replicas, gpus) * self.usd_per_gpu_h


def listed_offers(
    hardware: Accelerator, kinds: Sequence[str] = ("on-demand",), providers: Sequence[str] = (), rows: Iterable[Price] | None = None
) -> list[Offer]:
    """Offers of the price list for a part, of the most trusted rows that there are for each kind of price, of some providers or of all.

    >>> from inferplan.names import hardware
    >>> {o.provider for o in listed_offers(hardware("h100"), providers=["lambda"])}
    {'Lambda'}
    """
    wanted = {p.strip().lower() for p in providers}
    found = [
        p
        for p in (prices(gpu=hardware.name) if rows is None else rows)
        if p.gpu == hardware.name and p.usd_per_h is not None and p.price_type in kinds and (not wanted or p.cloud.lower() in wanted)
    ]
    kept = []
    for kind in kinds:
        own = [p for p in found if p.price_type == kind]
        best = min((TRUST.get(p.confidence, 3) for p in own), default=0)
        kept += [p for p in own if TRUST.get(p.confidence, 3) == best]
    return [_offer(p) for p in kept]


def _offer(p: Price) -> Offer:
    return Offer(p.gpu, p.cloud, p.price_type, float(p.usd_per_h or 0.0), max(1, p.gpus), p.source, p.date)


def listed_purchase_usd(hardware: Accelerator) -> tuple[float, str] | None:
    """The list price of a device with its source, the most trusted row first; None where none is listed."""
    rows = [p for p in prices(gpu=hardware.name) if p.list_price_usd is not None]
    best = min(rows, key=lambda p: (TRUST.get(p.confidence, 3), p.list_price_usd or 0.0), default=None)
    return None if best is None else (float(best.list_price_usd or 0.0), f"{best.source}, {best.date or 'undated'}")


def cheapest(offers: Sequence[Offer], replicas: int, gpus: int) -> Offer | None:
    """The offer under which a fleet costs least; None where there is none."""
    return min(offers, key=lambda o: (o.usd_per_h(replicas, gpus), o.node_gpus, o.provider), default=None)


@dataclass(frozen=True, slots=True)
class Bill:
    """What a fleet costs in a month at a load, and per million tokens.

    prefill_share
        the part of device time that prompts take, by which the bill is shared out among input and output tokens.
    drawn_w
        power of the fleet at the building's meter; None where the part's power is not known.
    """

    usd_per_h: float
    rate_per_s: float
    input_tokens: float
    output_tokens: float
    prefill_share: float
    drawn_w: float | None
    hours: float = HOURS_PER_MONTH
    kg_co2_per_kwh: float | None = None

    @property
    def usd_per_month(self) -> float:
        """For a month of so many hours."""
        return self.usd_per_h * self.hours

    @property
    def usd_per_million_input_tokens(self) -> float:
        """The share of prompts over input tokens."""
        return float(usd_per_million(self.usd_per_h * self.prefill_share, self.rate_per_s, self.input_tokens))

    @property
    def usd_per_million_output_tokens(self) -> float:
        """The share of decode steps over output tokens."""
        return float(usd_per_million(self.usd_per_h * (1 - self.prefill_share), self.rate_per_s, self.output_tokens))

    @property
    def usd_per_million_tokens_all_on_output(self) -> float:
        """The whole bill over output tokens, as many quote it."""
        return float(usd_per_million(self.usd_per_h, self.rate_per_s, self.output_tokens))

    @property
    def usd_per_million_blended_tokens(self) -> float:
        """The whole bill over tokens in and out."""
        return float(usd_per_million(self.usd_per_h, self.rate_per_s, self.input_tokens + self.output_tokens))

    @property
    def usd_per_thousand_requests(self) -> float:
        """The whole bill over requests."""
        return float(usd_per_million(self.usd_per_h, self.rate_per_s, 1.0)) / 1000

    @property
    def kwh_per_month(self) -> float | None:
        """Energy of a month."""
        return None if self.drawn_w is None else self.drawn_w / 1000 * self.hours

    @property
    def joules_per_output_token(self) -> float | None:
        """Energy over output tokens."""
        return None if self.drawn_w is None else self.drawn_w / (self.rate_per_s * self.output_tokens)

    @property
    def kg_co2_per_month(self) -> float | None:
        """Emissions of a month, where an intensity was given."""
        return None if self.kwh_per_month is None or self.kg_co2_per_kwh is None else self.kwh_per_month * self.kg_co2_per_kwh


@formula("usd_per_month / (api_usd_per_million * tokens / 1e6) / (hours * 3600)", unit="1/s", ref="equal bills")
def break_even_per_s(usd_per_month: Numeric, api_usd_per_million: Numeric, tokens: Numeric, hours: Numeric = HOURS_PER_MONTH) -> Numeric:
    """The mean rate above which a fleet costs less than an interface that bills by the token.

    >>> round(float(break_even_per_s(10_000, 1.0, 2000)), 3)
    1.903
    """
    return usd_per_month / (api_usd_per_million * np.asarray(tokens) / 1e6) / (hours * 3600)
