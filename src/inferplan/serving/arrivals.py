"""When requests arrive: open streams by their law, all at once, and closed loops of clients. Knows no length and no step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from inferplan.errors import SpecError

Floats = NDArray[np.float64]
DAY_S = 86400.0
MAX_RATE_PER_S = 1e9
MAX_CLIENTS = 10**6
FORMS = "'poisson:5', 'gamma:5,cv=2', 'constant:5', 'diurnal:5,peak=1.9', 'at-once' or 'closed:64'"


class Arrivals(Protocol):
    """A law of arrivals."""

    def times(self, rng: np.random.Generator, n: int) -> Floats:
        """Seconds of `n` arrivals, never decreasing."""
        ...


@dataclass(frozen=True, slots=True)
class Gamma:
    """A stream whose gaps are gamma distributed: `cv` 1 is Poisson, 0 a constant gap, more than 1 bursts.

    >>> Gamma(5.0, cv=0.0).times(np.random.default_rng(0), 3).tolist()
    [0.2, 0.4, 0.6000000000000001]
    """

    open: ClassVar[bool] = True
    rate_per_s: float
    cv: float = 1.0

    @property
    def mean(self) -> float:
        """Mean gap in seconds."""
        return 1 / self.rate_per_s

    @property
    def second_moment(self) -> float:
        """Mean squared gap in seconds squared."""
        return (1 + self.cv**2) * self.mean**2

    def times(self, rng: np.random.Generator, n: int) -> Floats:
        """Seconds of `n` arrivals; the first comes after one gap."""
        if self.cv == 0:
            gaps = np.full(n, self.mean)
        else:
            shape = 1 / self.cv**2
            gaps = rng.gamma(shape, self.mean / shape, n)
        found: Floats = np.cumsum(gaps)
        return found

    def at(self, rate_per_s: float) -> Gamma:
        """The same law at another rate."""
        return replace(self, rate_per_s=rate_per_s)


def poisson(rate_per_s: float) -> Gamma:
    """Arrivals that know nothing of each other."""
    return Gamma(rate_per_s, 1.0)


def constant(rate_per_s: float) -> Gamma:
    """Arrivals in equal gaps."""
    return Gamma(rate_per_s, 0.0)


@dataclass(frozen=True, slots=True)
class Diurnal:
    """A Poisson stream whose rate swings over the day as a cosine: lowest at time 0, `peak` times the mean half a period later.

    peak
        highest rate over the mean, from 1 to 2.
    """

    open: ClassVar[bool] = True
    rate_per_s: float
    peak: float = 1.9
    period_s: float = DAY_S

    def rate_at(self, t_s: Floats) -> Floats:
        """Rate at a time."""
        found: Floats = self.rate_per_s * (1 - (self.peak - 1) * np.cos(2 * math.pi * t_s / self.period_s))
        return found

    def times(self, rng: np.random.Generator, n: int) -> Floats:
        """Seconds of `n` arrivals, thinned from a stream at the highest rate (Lewis and Shedler 1979)."""
        highest = self.rate_per_s * self.peak
        found, start, have = [], 0.0, 0
        while have < n:
            tried = start + np.cumsum(rng.exponential(1 / highest, max(1024, int((n - have) * self.peak * 1.05))))
            kept = tried[rng.random(tried.size) * highest < self.rate_at(tried)]
            found.append(kept)
            start, have = float(tried[-1]), have + kept.size
        joined: Floats = np.concatenate(found)[:n]
        return joined

    def at(self, rate_per_s: float) -> Diurnal:
        """The same swing around another mean."""
        return replace(self, rate_per_s=rate_per_s)


@dataclass(frozen=True, slots=True)
class AtOnce:
    """All at time 0, as a benchmark with an infinite request rate sends them."""

    open: ClassVar[bool] = True

    def times(self, rng: np.random.Generator, n: int) -> Floats:
        """`n` zeros."""
        return np.zeros(n)


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`clients` that each keep one request in flight and send the next one `think_s` after the last token of the former."""

    open: ClassVar[bool] = False
    clients: int
    think_s: float = 0.0

    def times(self, rng: np.random.Generator, n: int) -> Floats:
        """The first request of each client is there at time 0; the others come when their turn is, which no law knows (NaN)."""
        found: Floats = np.where(np.arange(n) < self.clients, 0.0, np.nan)
        return found


def parse(text: str, field: str = "arrivals") -> Gamma | Diurnal | AtOnce | ClosedLoop:
    """The law that a text means; raises SpecError, which names the forms, for any other text.

    >>> parse("poisson:5"), parse("closed:64,think=0.5")
    (Gamma(rate_per_s=5.0, cv=1.0), ClosedLoop(clients=64, think_s=0.5))
    """
    name, _, rest = text.strip().partition(":")
    if name not in _READERS or bool(rest) == (name == "at-once"):
        raise SpecError(f"is no law of arrivals; write {FORMS}", field=field, value=text)
    main, options = _numbers(rest, field, text)
    return _READERS[name](_Words(text, field, main, options))


@dataclass(frozen=True, slots=True)
class _Words:
    """A text taken apart: its first number and its named ones."""

    text: str
    field: str
    main: float
    options: dict[str, float]

    def refuse(self, rule: str) -> SpecError:
        return SpecError(rule, field=self.field, value=self.text)

    def rate(self) -> float:
        if not 0 < self.main <= MAX_RATE_PER_S:
            raise self.refuse("needs a rate in requests per second above 0 and at most 1e9")
        return self.main

    def option(self, name: str, default: float, low: float, high: float) -> float:
        value = self.options.get(name, default)
        if not low <= value <= high:
            raise self.refuse(f"{name} must lie between {low:g} and {high:g}")
        return value

    def only(self, *names: str) -> _Words:
        wrong = [name for name in self.options if name not in names]
        if wrong:
            raise self.refuse(f"has no option '{wrong[0]}'" + (f"; it has {', '.join(names)}" if names else ""))
        return self


def _numbers(rest: str, field: str, text: str) -> tuple[float, dict[str, float]]:
    main, options = 0.0, {}
    for i, part in enumerate(p.strip() for p in rest.split(",") if rest):
        name, equals, value = part.rpartition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or (i == 0) == bool(equals):
            raise SpecError(f"is no law of arrivals; write {FORMS}", field=field, value=text)
        if i == 0:
            main = number
        else:
            options[name] = number
    return main, options


def _closed(words: _Words) -> ClosedLoop:
    if not 1 <= words.main <= MAX_CLIENTS or words.main != math.floor(words.main):
        raise words.refuse(f"needs a whole number of clients from 1 to {MAX_CLIENTS:,}")
    return ClosedLoop(int(words.main), words.only("think").option("think", 0.0, 0.0, 1e9))


def _diurnal(words: _Words) -> Diurnal:
    words.only("peak", "period")
    return Diurnal(words.rate(), words.option("peak", 1.9, 1.0, 2.0), words.option("period", DAY_S, 1.0, 1e9))


_READERS: dict[str, Callable[[_Words], Gamma | Diurnal | AtOnce | ClosedLoop]] = {
    "poisson": lambda w: poisson(w.only().rate()),
    "constant": lambda w: constant(w.only().rate()),
    "gamma": lambda w: Gamma(w.rate(), w.only("cv").option("cv", 1.0, 0.0, 100.0)),
    "diurnal": _diurnal,
    "at-once": lambda w: AtOnce(),
    "closed": _closed,
}
