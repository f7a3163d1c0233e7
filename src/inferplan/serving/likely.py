"""Where four of five measurements lie about the times of a load: means, percentiles, whole requests. Knows no scheduler and no fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from inferplan.deployment import Estimate
from inferplan.roofline.bands import Band, TimeName
from inferplan.serving.requests import Requests

Ends = tuple[float, float]
Part = Literal["tpot", "ttft"]


@dataclass(frozen=True, slots=True)
class Likely:
    """The 80 % bands of a deployment's times under a load.

    waiting
        whether more clients ask than the cache holds, so that they wait for it.

    >>> import inferplan as ip
    >>> found = Likely(ip.estimate(ip.model("7b"), ip.hardware("h100"), ip.precision("fp8")))
    >>> low, high = found.ends("ttft", 0.1)
    >>> low < 0.1 < high
    True
    """

    estimate: Estimate
    waiting: bool = False

    @classmethod
    def of(cls, e: Estimate, requests: Requests, replicas: int = 1) -> Self:
        """The bands of a simulated run."""
        return cls(e, waiting=(requests.clients or 0) > replicas * e.max_sequences)

    def band(self, part: Part, share: float | None = None) -> Band | None:
        """The band of a part of a request, as shares of its estimate: of the mean, or of what a `share` of requests does not exceed."""
        return self._tail(part, share, self.estimate.band(part, waiting=self.waiting))

    def _tail(self, quantity: TimeName, share: float | None, own: Band | None) -> Band | None:
        return own if share is None else self.estimate.setting.efficiency.tail_band(quantity, share, own)

    def ends(self, part: Part, value_s: float, share: float | None = None) -> Ends | None:
        """The ends about a TTFT or TPOT; None where no band is known, or where the time has no bound."""
        band = self.band(part, share)
        return None if band is None or not np.isfinite(value_s) else (value_s * band.low, value_s * band.high)

    def whole(self, value_s: float, first_s: float, share: float | None = None) -> Ends | None:
        """The ends about a whole request, `first_s` of which goes by until its first token; in the mean both parts miss the same way."""
        first, gap = self.band("ttft"), self.band("tpot")
        if first is None or gap is None or not np.isfinite(value_s):
            return None
        if not value_s:
            return 0.0, 0.0
        early = min(first_s, value_s) / value_s
        own = Band(low=first.low * early + gap.low * (1 - early), high=first.high * early + gap.high * (1 - early))
        band = self._tail("e2e", share, own) or own
        return value_s * band.low, value_s * band.high
