"""The ends of a predicted time's 80 % band, from the bands of its deployment. Knows no case and no fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from inferplan.calibrate.loads import Batch, Loop
from inferplan.calibrate.times import RATES, Times
from inferplan.deployment import Estimate
from inferplan.serving.likely import Ends, Likely, Part

BANDED: dict[str, Part] = {
    "tpot_s": "tpot", "itl_s": "tpot", "decode_tokens_per_s": "tpot", "ttft_s": "ttft", "prefill_tokens_per_s": "ttft",
}  # fmt: skip
"""The time whose band each quantity has, itself or its inverse."""
INVERSES = ("decode_tokens_per_s", "prefill_tokens_per_s")


@dataclass(frozen=True, slots=True)
class Banded:
    """Bands of times under a load; None where none is known."""

    likely: Likely | None
    load: Loop | Batch

    @classmethod
    def of(cls, e: Estimate, load: Loop | Batch) -> Self:
        """The bands of a deployment under a load: wider where its clients are more than the cache holds."""
        waiting = isinstance(load, Loop) and (load.clients or 0) > e.max_sequences
        return cls(Likely(e, waiting), load)

    def ends(self, times: Times, quantity: str, share: float | None, value: float) -> Ends | None:
        """The ends of a quantity's band, in its unit; None where no band is known of it.

        A whole request takes both of its parts to miss the same way; a rate is the inverse of a time, and that of requests which come
        at a rate of their own has no band.
        """
        if self.likely is None:
            return None
        share = None if isinstance(self.load, Batch) else share
        if quantity == "e2e_s":
            return self.likely.whole(value, times.value("ttft_s", share), share)
        of_steps = quantity == "output_tokens_per_s" and self._at_one_context
        if quantity in RATES and not of_steps:
            return self._rate(times, value)
        inverse = of_steps or quantity in INVERSES
        part = BANDED.get(quantity, "tpot")
        if not inverse:
            return self.likely.ends(part, value, share)
        found = self.likely.ends(part, 1 / value, share)
        return found and (1 / found[1], 1 / found[0])

    @property
    def _at_one_context(self) -> bool:
        """Whether output is counted over decode steps alone."""
        return isinstance(self.load, Batch) and self.load.context is not None

    def _rate(self, times: Times, value: float) -> Ends | None:
        """The ends of what a whole run yields per second; None where requests come at a rate of their own."""
        if self.likely is None or (isinstance(self.load, Loop) and self.load.rate_per_s is not None):
            return None
        whole = times.value("e2e_s", None)
        found = self.likely.whole(whole, times.value("ttft_s", None))
        return found and (value * whole / found[1], value * whole / found[0])
