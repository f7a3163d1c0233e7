"""What latencies a plan must keep, in either of two readings: a percentile of each time, or the share of requests that keeps all.

Knows no engine, and neither how a time comes about.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from inferplan.errors import SpecError
from inferplan.serving.served import Served
from inferplan.serving.slo import Slo, keeping, limit_s
from inferplan.units import show

METRICS = ("ttft", "tpot", "e2e")
MEAN = "mean"
FORMS = "'ttft.p95=500ms,tpot.p95=50ms' (a percentile of each time) or 'ttft=500ms,tpot=50ms,share=0.95' (requests that keep all)"
_NAME = re.compile(r"(ttft|tpot|e2e)\.(mean|p\d{1,2}(?:\.\d{1,3})?)\Z")


@dataclass(frozen=True, slots=True)
class Target:
    """A time that must not be exceeded: by its mean (`share` None), or by more than 1 - `share` of requests."""

    metric: str
    share: float | None
    limit_s: float

    @property
    def name(self) -> str:
        """The time and its statistic in words: `TTFT p95`."""
        return f"{self.metric.upper()} {self.statistic}"

    @property
    def statistic(self) -> str:
        """The statistic: `mean` or `p95`."""
        return MEAN if self.share is None else f"p{100 * self.share:g}"

    @property
    def text(self) -> str:
        """In words, with its limit."""
        return f"{self.name} <= {show(self.limit_s, 's')}"


@dataclass(frozen=True, slots=True)
class Targets:
    """Limits on times.

    kind
        `percentiles`: each time's own statistic must keep its limit. `share`: so many requests must keep all limits at once, which is
        harder; what is not served keeps none.

    >>> Targets.parse("ttft.p95=500ms,tpot.p99=50ms").text
    'TTFT p95 <= 500 ms, TPOT p99 <= 50.0 ms'
    >>> Targets.parse("ttft=500ms,tpot=50ms,share=0.95").text
    '95 % of requests keep TTFT <= 500 ms and TPOT <= 50.0 ms'
    """

    limits: tuple[Target, ...]
    kind: Literal["percentiles", "share"] = "percentiles"

    @classmethod
    def parse(cls, text: str, field: str = "slo") -> Targets:
        """The limits that a text means; raises SpecError, which names the forms, for any other text."""
        parts = [p.strip() for p in text.split(",") if p.strip()]
        if not any("." in p.partition("=")[0] for p in parts):
            return cls._shared(text, field)
        found = []
        for part in parts:
            name, _, value = (w.strip() for w in part.partition("="))
            match = _NAME.match(name)
            if not match:
                raise SpecError(f"is no limit; write {FORMS}", field=field, value=part)
            found.append(Target(match[1], _share(match[2], field, part), limit_s(name, value, field)))
        if len({(t.metric, t.share) for t in found}) < len(found):
            raise SpecError("names a limit twice", field=field, value=text)
        return cls(tuple(found))

    @classmethod
    def _shared(cls, text: str, field: str) -> Targets:
        try:
            slo = Slo.parse(text, field)
        except SpecError as e:
            raise SpecError(f"{e.rule}; write {FORMS}" if "must be like" in e.rule else e.rule, field=field, value=e.value) from None
        if any(name not in METRICS for name, _ in slo.limits):
            raise SpecError("plans keep ttft, tpot and e2e", field=field, value=text)
        return cls(tuple(Target(name, slo.share, limit) for name, limit in slo.limits), "share")

    @property
    def share(self) -> float | None:
        """The share of requests that must keep all limits; None where each time has its own percentile."""
        return self.limits[0].share if self.kind == "share" else None

    @property
    def text(self) -> str:
        """All limits in words."""
        if self.kind == "percentiles":
            return ", ".join(t.text for t in self.limits)
        limits = " and ".join(f"{t.metric.upper()} <= {show(t.limit_s, 's')}" for t in self.limits)
        return f"{100 * float(self.share or 0):g} % of requests keep {limits}"

    @property
    def variant(self) -> str:
        """Which reading of goodput this is, in words."""
        return "a percentile of each time" if self.kind == "percentiles" else "the share of requests that keep all limits"

    def values(self, served: Served, kept: NDArray[np.bool_]) -> NDArray[np.float64]:
        """For each limit its statistic over the requests `kept` of a run.

        In the reading by share a single value: the share of requests that keep all. What is not served keeps none.
        """
        times = {"ttft": served.ttft_s, "tpot": served.tpot_s, "e2e": served.e2e_s}
        if self.kind == "share":
            return np.array([keeping(served.done, times, ((t.metric, t.limit_s) for t in self.limits))[kept].mean()])
        return np.array([_statistic(np.where(served.done, times[t.metric], np.inf)[kept], t) for t in self.limits])

    def bounds(self) -> NDArray[np.float64]:
        """What those values must not exceed; in the reading by share what they must reach."""
        return np.array([self.share]) if self.kind == "share" else np.array([t.limit_s for t in self.limits])


def _statistic(values: NDArray[np.float64], target: Target) -> float:
    known = values[~np.isnan(values)]
    if not known.size:
        return 0.0
    return float(known.mean() if target.share is None else np.quantile(known, target.share, method="higher"))


def _share(text: str, field: str, value: str) -> float | None:
    if text == MEAN:
        return None
    found = float(text[1:]) / 100
    if not 0 < found < 1:
        raise SpecError("must be a percentile between 0 and 100", field=field, value=value)
    return found
