"""Limits on times, and the share of requests that keep them. Knows no engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inferplan.errors import SpecError
from inferplan.serving.served import Served
from inferplan.units import parse, show

NAMES = ("ttft", "tpot", "itl", "e2e")


@dataclass(frozen=True, slots=True)
class Slo:
    """Times that a request must keep, in seconds, and the share of requests that must keep all of them.

    >>> Slo.parse("ttft=500ms,tpot=50ms,share=0.95").text
    'TTFT <= 500 ms, TPOT <= 50.0 ms for 95 % of requests'
    """

    limits: tuple[tuple[str, float], ...]
    share: float = 0.99

    @classmethod
    def parse(cls, text: str, field: str = "--slo") -> Slo:
        """Limits as text: `ttft=500ms,tpot=50ms,e2e=10s,share=0.95`; raises SpecError."""
        limits, share = [], 0.99
        for part in text.split(","):
            name, _, value = (w.strip() for w in part.partition("="))
            if name == "share":
                share = _share(value, field)
            elif name in NAMES:
                limits.append((name, limit_s(name, value, field)))
            else:
                raise SpecError("must be like 'ttft=500ms,tpot=50ms,share=0.95'; there are ttft, tpot, itl, e2e", field=field, value=text)
        if not limits or len({n for n, _ in limits}) < len(limits):
            raise SpecError("needs at least one limit, and each once", field=field, value=text)
        return cls(tuple(limits), share)

    @property
    def text(self) -> str:
        """The limits in words."""
        limits = ", ".join(f"{name.upper()} <= {show(limit, 's')}" for name, limit in self.limits)
        return f"{limits} for {100 * self.share:g} % of requests"

    def kept(self, served: Served) -> NDArray[np.bool_]:
        """Which requests keep all limits; what is not served keeps none, and an answer of one token keeps those on gaps."""
        times = {"ttft": served.ttft_s, "tpot": served.tpot_s, "itl": served.itl_max_s, "e2e": served.e2e_s}
        return keeping(served.done, times, self.limits)

    def met(self, served: Served) -> bool:
        """Whether the share of requests that must keep the limits does."""
        return bool(self.kept(served).mean() >= self.share)


def keeping(done: NDArray[np.bool_], times: Mapping[str, NDArray[np.float64]], limits: Iterable[tuple[str, float]]) -> NDArray[np.bool_]:
    """Which requests are done and keep all limits, each on the time of its name; a time that there is not, NaN, keeps its limit.

    >>> keeping(np.array([True, True, False]), {"tpot": np.array([0.1, np.nan, 0.1])}, [("tpot", 0.2)]).tolist()
    [True, True, False]
    """
    found = done.copy()
    for name, limit in limits:
        found &= np.nan_to_num(times[name], nan=0.0) <= limit
    return found


def _share(value: str, field: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise SpecError("share must lie above 0 and at most at 1", field=field, value=value)
    return share


def limit_s(name: str, value: str, field: str) -> float:
    """The seconds of a limit as text, such as 500ms; raises SpecError whose rule names the limit."""
    try:
        found = parse(value, "s")
    except SpecError as e:
        raise SpecError(f"{name} {e.rule}", field=field, value=value) from None
    if found <= 0:
        raise SpecError(f"{name} must be above 0", field=field, value=value)
    return found
