"""Matrix products. A multiply-add is 2 FLOP. Knows nothing of formats, parts or models."""

from __future__ import annotations

from inferplan.formula import formula
from inferplan.ops import Numeric


@formula("2 * m * n * k", unit="FLOP", ref="a multiply-add counts 2")
def gemm_flops(m: Numeric, n: Numeric, k: Numeric) -> Numeric:
    """FLOPs of an (m, k) by (k, n) product.

    >>> gemm_flops(1, 4096, 4096)
    33554432
    """
    return 2 * m * n * k


@formula("2 * positions * channels * kernel", unit="FLOP", ref="depthwise: each channel has its own kernel")
def depthwise_flops(positions: Numeric, channels: Numeric, kernel: Numeric) -> Numeric:
    """FLOPs of a depthwise convolution over `positions` outputs.

    >>> depthwise_flops(10, 64, 4)
    5120
    """
    return 2 * positions * channels * kernel
