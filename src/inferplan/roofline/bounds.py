"""The two roofs: time to move bytes, time to do FLOPs, and which of them binds. Knows no operator by name and no model."""

from __future__ import annotations

import numpy as np

from inferplan.formula import formula
from inferplan.ops import Numeric


@formula("moved_bytes / bandwidth_bytes_per_s", unit="s", ref="Williams, Waterman, Patterson 2009: the memory roof")
def memory_s(moved_bytes: Numeric, bandwidth_bytes_per_s: Numeric) -> Numeric:
    """Seconds to move bytes at full bandwidth: 14 GB per token at 2 TB/s are 7 ms.

    >>> memory_s(14e9, 2e12)
    0.007
    """
    return moved_bytes / bandwidth_bytes_per_s


@formula("flops / peak_flops_per_s", unit="s", ref="Williams, Waterman, Patterson 2009: the compute roof")
def compute_s(flops: Numeric, peak_flops_per_s: Numeric) -> Numeric:
    """Seconds to do FLOPs at the dense peak.

    >>> round(compute_s(2 * 70e9 * 8192, 16 * 1.97e14), 3)
    0.364
    """
    return flops / peak_flops_per_s


@formula("maximum(memory_time_s, compute_time_s)", unit="s", ref="perfect overlap of the two")
def roof_s(memory_time_s: Numeric, compute_time_s: Numeric) -> Numeric:
    """The floor: no pass can end before both its bytes are moved and its FLOPs are done.

    >>> float(roof_s(0.007, 0.001))
    0.007
    """
    return np.maximum(memory_time_s, compute_time_s)


@formula("flops / moved_bytes", unit="FLOP/B", ref="Williams, Waterman, Patterson 2009")
def intensity(flops: Numeric, moved_bytes: Numeric) -> Numeric:
    """Arithmetic intensity: FLOPs per byte moved; below a part's ridge point a pass is bound by memory.

    >>> intensity(14e9, 14e9)
    1.0
    """
    return flops / moved_bytes
