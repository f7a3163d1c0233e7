"""How far a replica's times may be off: the 80 % band of its estimate, as factors on prefill and on decode steps. Knows no fleet.

The one place to change when bands change.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferplan.deployment import Estimate

ASSUMED_LOW, ASSUMED_HIGH = 0.8, 1.25


@dataclass(frozen=True, slots=True)
class Trust:
    """Where four of five measurements lie about the estimate, as shares of it: of prefills and of decode steps.

    basis
        `band` where it comes from measured runs, `assumed` where no band is known, `ideal` for floors, which nothing can beat.
    """

    prefill: tuple[float, float]
    decode: tuple[float, float]
    basis: str

    @property
    def text(self) -> str:
        """The band in words."""
        low, high = (100 * (end - 1) for end in self.decode)
        return f"{low:+.0f} to {high:+.0f} % on decode steps ({'80 % band of measured runs' if self.basis == 'band' else self.basis})"


def trust(e: Estimate) -> Trust:
    """The band of an estimate: that of its calibration where there is one, else one that is assumed and labelled so.

    >>> import inferplan as ip
    >>> found = trust(ip.estimate(ip.model("7b"), ip.hardware("h100"), ip.precision("fp8")))
    >>> found.decode[0] < 1 < found.decode[1], found.basis in ("band", "assumed")
    (True, True)
    """
    if e.setting.efficiency.is_ideal:
        return Trust((1.0, 1.0), (1.0, 1.0), "ideal")
    first, gap = e.band("ttft"), e.band("tpot")
    if first is None or gap is None:
        return Trust((ASSUMED_LOW, ASSUMED_HIGH), (ASSUMED_LOW, ASSUMED_HIGH), "assumed")
    return Trust((first.low, first.high), (gap.low, gap.high), "band")
