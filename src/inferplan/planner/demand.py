"""Traffic in the mean, at its peak, and after growth: users, profiles and traces to requests per second. Knows no device and no price."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inferplan.errors import SpecError
from inferplan.formula import formula
from inferplan.ops import Numeric

WINDOW_S = 60.0
MAX_MONTHS = 120


@formula("users * active_share * requests_per_user_min / 60", unit="1/s", ref="users are not concurrency: a rate, by counting")
def user_rate_per_s(users: Numeric, active_share: Numeric, requests_per_user_min: Numeric) -> Numeric:
    """Requests per second of so many users, of whom a share is active and sends so many requests a minute.

    >>> round(user_rate_per_s(10_000, 0.2, 0.4), 2)
    13.33
    """
    return users * active_share * requests_per_user_min / 60


@formula("rate_per_s * (1 + growth_per_month)**months", unit="1/s", ref="compound growth")
def grown_per_s(rate_per_s: Numeric, growth_per_month: Numeric, months: Numeric) -> Numeric:
    """A rate after so many months of growth by a share per month.

    >>> round(grown_per_s(100.0, 0.05, 12), 2)
    179.59
    """
    return rate_per_s * (1 + growth_per_month) ** months


def peak_over_mean(profile: ArrayLike) -> float:
    """The highest value of a profile over its mean; raises SpecError for a profile without traffic.

    >>> peak_over_mean([1, 1, 2, 4])
    2.0
    """
    values = np.asarray(profile, dtype=float)
    if values.size == 0 or not np.all(np.isfinite(values) & (values >= 0)) or values.sum() <= 0:
        raise SpecError("must be numbers from 0, not all of them 0", field="profile", value=str(profile))
    return float(values.max() / values.mean())


def windowed_rates_per_s(arrival_s: ArrayLike, window_s: float = WINDOW_S) -> NDArray[np.float64]:
    """The rate in each whole window of a trace, in time's order, shape (windows,); the rest behind the last whole one is left out.

    Raises SpecError for a trace that is shorter than a window.

    >>> windowed_rates_per_s([0, 1, 2, 61, 119.9, 120], 60).tolist()
    [0.05, 0.03333333333333333]
    """
    when = np.asarray(arrival_s, dtype=float)
    windows = int((when.max() - when.min()) // window_s) if when.size else 0
    if windows < 1:
        raise SpecError(f"must span at least {window_s:g} s to show a peak", field="trace", value=f"{when.size} requests")
    place = ((when - when.min()) // window_s).astype(int)
    found: NDArray[np.float64] = np.bincount(place[place < windows], minlength=windows) / window_s
    return found


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests per second in the mean and at the peak, today; how they grow and swing.

    growth_per_month, months
        compound growth, and the months until the day that is planned for.
    buffer
        share that is planned beyond the peak, for what no forecast sees.
    profile
        rates over a period in equal steps, over their mean; one value where only mean and peak are known.
    source
        where the rates come from, in words.

    >>> d = Demand(200.0, 800.0, buffer=0.2)
    >>> d.planned_mean_per_s, d.planned_peak_per_s
    (240.0, 960.0)
    """

    mean_per_s: float
    peak_per_s: float
    growth_per_month: float = 0.0
    months: float = 0.0
    buffer: float = 0.0
    profile: tuple[float, ...] = (1.0,)
    source: str = "given"

    @property
    def growth(self) -> float:
        """What rates are multiplied by until the day that is planned for."""
        return float(grown_per_s(1.0, self.growth_per_month, self.months))

    @property
    def later_mean_per_s(self) -> float:
        """The mean on that day, without the buffer."""
        return self.mean_per_s * self.growth

    @property
    def later_peak_per_s(self) -> float:
        """The peak on that day, without the buffer."""
        return self.peak_per_s * self.growth

    @property
    def planned_mean_per_s(self) -> float:
        """The mean that capacity is planned for."""
        return self.later_mean_per_s * (1 + self.buffer)

    @property
    def planned_peak_per_s(self) -> float:
        """The peak that capacity is planned for."""
        return self.later_peak_per_s * (1 + self.buffer)

    def scaled(self, factor: float) -> Demand:
        """The same traffic, so many times as much of it."""
        return replace(self, mean_per_s=self.mean_per_s * factor, peak_per_s=self.peak_per_s * factor)

    def month_of(self, rate_per_s: float) -> float | None:
        """After how many months the peak with its buffer reaches a rate; 0 where it does today, None where it never does.

        >>> round(Demand(1.0, 2.0, growth_per_month=0.1).month_of(4.0), 2), Demand(1.0, 2.0).month_of(4.0)
        (7.27, None)
        """
        now = self.peak_per_s * (1 + self.buffer)
        if now >= rate_per_s:
            return 0.0
        return float(np.log(rate_per_s / now) / np.log1p(self.growth_per_month)) if self.growth_per_month > 0 else None
