"""What simpler rules make of the same runs: the plain roofline, and one that takes two constant shares of peak and bandwidth."""

from __future__ import annotations

from typing import Any

import numpy as np

from inferplan.engine.step import Step
from inferplan.roofline.efficiency import Efficiency

SHARES = np.arange(0.15, 1.001, 0.05)


def roofs(found: Step) -> np.ndarray:
    """Seconds of a pass at the full peak, and at the full bandwidth."""
    return np.array([float(np.asarray(found.compute_s)), float(np.asarray(found.memory_s))])


def derate(work: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """The shares of peak and bandwidth with the smallest median error over all runs, which flatters the rule: none is left out.

    `work` holds compute and memory seconds of each run's decode step, then of the same with a prompt, and how many of those come.
    """
    own, both, often = work[:, :2], work[:, 2:4], work[:, 4]

    def error(shares: tuple[float, float]) -> float:
        alone, mixed = (np.max(part / np.array(shares), axis=1) for part in (own, both))
        return float(np.median(np.abs((alone + often * (mixed - alone)) / seconds - 1)))

    return min(((a, b) for a in SHARES for b in SHARES), key=error)


def derated(shares: tuple[float, float], kinds: Any) -> Efficiency:
    """A calibration of two constants: no start-up, no overhead, exchanges between devices as fast as their links."""
    entry = {"eff_flops": shares[0], "eff_bandwidth": shares[1], "launch": "0 s", "basis": "assumed"}
    return Efficiency.from_mapping(
        {
            "name": "two constants",
            "kernels": {kind: {"any": {"default": entry}} for kind in kinds},
            "links": {"default": {"one_shot": "0 s", "eff_switch": 1.0}},
        }
    )

