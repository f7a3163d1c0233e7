"""One operator's work to seconds, given the efficiencies of its kernel. Knows no part, no file and no operator by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from inferplan.formula import formula
from inferplan.ops import Numeric

Basis = Literal["ideal", "measured", "inherited", "assumed"]


@dataclass(frozen=True, slots=True)
class Kernel:
    """What a kernel reaches on a class of parts: shares of peak and bandwidth, its start-up, how sharply the slower roof wins.

    eff_flops, eff_bandwidth
        shares of the dense peak and of the memory bandwidth of the sheet, above 0 and at most 1.
    launch_s
        seconds of one launch beside its work, as one of a captured graph.
    sharpness
        exponent of the soft maximum of compute and memory time: 1 is their sum, infinity the slower of the two.
    basis
        `measured` on the class, `inherited` from relatives of it, `assumed`, or `ideal`.
    origin
        where the numbers stand in the calibration: kind, variant and level.
    peak
        the rate of the sheet that `eff_flops` is a share of on parts that state it; None for the one products are counted at.
    """

    eff_flops: float
    eff_bandwidth: float
    launch_s: float
    sharpness: float
    basis: Basis
    origin: str = ""
    peak: str | None = None


IDEAL = Kernel(1.0, 1.0, 0.0, float("inf"), "ideal", "ideal")


@formula(
    "maximum(first_s, second_s) * (1 + (minimum(first_s, second_s) / maximum(first_s, second_s)) ** sharpness) ** (1 / sharpness)",
    unit="s",
    ref="p-norm: between the maximum (perfect overlap) and the sum (none)",
)
def soft_maximum(first_s: Numeric, second_s: Numeric, sharpness: Numeric) -> Numeric:
    """The p-norm of two times: their maximum at infinite sharpness, their sum at 1; exact where one of them is zero.

    >>> float(soft_maximum(3.0, 4.0, 2.0)), float(soft_maximum(3.0, 4.0, float("inf"))), float(soft_maximum(0.0, 0.0, 3.0))
    (5.0, 4.0, 0.0)
    """
    slower, faster = np.maximum(first_s, second_s), np.minimum(first_s, second_s)
    ratio = faster / np.where(slower > 0, slower, 1.0)
    found: Numeric = slower * (1 + ratio**sharpness) ** (1 / np.asarray(sharpness, float))
    return found


HOST_SHARPNESS = 3.0
"""How sharply the slower of host and devices wins; batch 1 to 64 on one to four H100 and A100 under vLLM before 0.8 lie on it."""


@formula(
    "(device_s**3 + host_s**3) ** (1 / 3) - device_s",
    unit="s",
    ref="host and devices work beside each other, and wait at a step's end",
)
def host_wait_s(device_s: Numeric, host_s: Numeric) -> Numeric:
    """How much longer a pass takes than its devices, since the host needs so long for what it does beside them.

    >>> round(float(host_wait_s(3.0, 5.0)), 2), float(host_wait_s(3.0, 0.0))
    (2.34, 0.0)
    """
    found: Numeric = soft_maximum(device_s, host_s, HOST_SHARPNESS) - device_s
    return found


@formula(
    "launch_s + maximum(flops / (peak * eff_flops), moved_bytes / (bandwidth * eff_bandwidth))"
    " * (1 + (minimum(flops / (peak * eff_flops), moved_bytes / (bandwidth * eff_bandwidth))"
    " / maximum(flops / (peak * eff_flops), moved_bytes / (bandwidth * eff_bandwidth))) ** sharpness) ** (1 / sharpness)",
    unit="s",
    ref="Williams, Waterman, Patterson 2009, with achieved shares of both roofs and a start-up",
)
def op_s(
    flops: Numeric,
    moved_bytes: Numeric,
    *,
    peak: Numeric,
    bandwidth: Numeric,
    eff_flops: Numeric = 1.0,
    eff_bandwidth: Numeric = 1.0,
    launch_s: Numeric = 0.0,
    sharpness: Numeric = np.inf,
) -> Numeric:
    """Seconds of an operator: start-up, then the soft maximum of its compute and its memory time. Everything broadcasts.

    `peak` in FLOP/s (a multiply-add is 2 FLOP), `bandwidth` in B/s. As it stands, at efficiency 1 without start-up, it is the
    floor: no kernel can be faster. `peak` may be infinite where nothing is multiplied.

    >>> float(op_s(0.0, 14e9, peak=312e12, bandwidth=2e12))
    0.007
    >>> round(float(op_s(2 * 4096**3, 3 * 2 * 4096**2, peak=989.4e12, bandwidth=3.35e12, eff_flops=0.8, launch_s=4e-6)) * 1e6, 1)
    177.6
    """
    compute_time_s = np.asarray(flops) / (np.asarray(peak, float) * eff_flops)
    memory_time_s = np.asarray(moved_bytes) / (np.asarray(bandwidth, float) * eff_bandwidth)
    return launch_s + soft_maximum(compute_time_s, memory_time_s, sharpness)


def kernel_s(flops: Numeric, moved_bytes: Numeric, launches: Numeric, peak: Numeric, bandwidth: Numeric, kernel: Kernel) -> Numeric:
    """Seconds of `launches` like launches that do `flops` and move `moved_bytes` together.

    The soft maximum is homogeneous, so the total of equal layers is that of their sums. Bytes are all that a kernel moves:
    weights, cache and activations.

    >>> round(float(kernel_s(0.0, 14e9, 32, 312e12, 2e12, Kernel(0.8, 0.8, 5e-6, 3.0, "measured"))), 6)
    0.00891
    """
    return op_s(
        flops,
        moved_bytes,
        peak=peak,
        bandwidth=bandwidth,
        eff_flops=kernel.eff_flops,
        eff_bandwidth=kernel.eff_bandwidth,
        launch_s=np.asarray(launches) * kernel.launch_s,
        sharpness=kernel.sharpness,
    )
