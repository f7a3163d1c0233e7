"""The ends of a predicted time's 80 % band, from the bands of its deployment. Knows no case and no fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from inferplan.calibrate.loads import Batch, Loop
from inferplan.calibrate.times import RATES, Times
from inferplan.deployment import Estimate
from inferplan.roofline.bands import Band

GAPS, INVERSES = ("tpot_s", "itl_s"), {"decode_tokens_per_s": "tpot_s", "prefill_tokens_per_s": "ttft_s"}
Ends = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Banded:
    """Bands of TPOT and TTFT under a load; None where none is known."""

    tpot: Band | None
    ttft: Band | None
    load: Loop | Batch

    @classmethod
    def of(cls, e: Estimate, load: Loop | Batch) -> Self:
        """The bands of a deployment under a load: wider where its clients are more than the cache holds."""
        waiting = isinstance(load, Loop) and (load.clients or 0) > e.max_sequences
        return cls(e.band("tpot", waiting=waiting), e.band("ttft", waiting=waiting), load)

    def ends(self, times: Times, quantity: str, share: float | None, value: float) -> Ends | None:
        """The ends of a quantity's band, in its unit; None where no band is known of it.

        A whole request takes both of its parts to miss the same way; a rate is the inverse of a time, and that of requests which come
        at a rate of their own has no band.
        """
        if quantity == "e2e_s":
            return self._whole(times, share, value)
        named = self._time_of(quantity)
        if named == "e2e_s":
            whole = times.value(named, None)
            found = self._whole(times, None, whole)
            return found and (value * whole / found[1], value * whole / found[0])
        band = self.tpot if named in GAPS else self.ttft if named == "ttft_s" else None
        if band is None:
            return None
        return (value * band.low, value * band.high) if named == quantity else (value / band.high, value / band.low)

    def _time_of(self, quantity: str) -> str | None:
        """The time whose inverse a rate is; of a time, itself; None where a rate is given."""
        at_one_context = isinstance(self.load, Batch) and self.load.context is not None
        if quantity == "output_tokens_per_s" and at_one_context:
            return "tpot_s"
        if quantity in RATES:
            return None if isinstance(self.load, Loop) and self.load.rate_per_s is not None else "e2e_s"
        return INVERSES.get(quantity, quantity)

    def _whole(self, times: Times, share: float | None, value: float) -> Ends | None:
        if self.tpot is None or self.ttft is None:
            return None
        first = min(times.value("ttft_s", share), value)
        gaps = value - first
        return self.ttft.low * first + self.tpot.low * gaps, self.ttft.high * first + self.tpot.high * gaps
