"""How FLOPs are counted: as the algorithm needs them, or as a counter of matrix products sees a plain implementation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Convention:
    """Switches of the count.

    causal
        attend only pairs at or before the query; off: the full rectangle that a kernel without a mask computes.
    head_everywhere
        apply the output head to every position, whatever the segment asks.
    expand_latent
        MLA expands keys and values of all cached tokens in each pass; off: the cheaper of expanding and absorbing.
    scans
        count the elementwise work of recurrences; off: matrix products alone.
    conv_padding
        a convolution also runs over the kernel - 1 padded positions.
    select
        sparse attention reads only the chosen tokens; off: all of them, masked.
    every_expert
        run every token through every expert and mask, as some plain implementations do.
    """

    causal: bool = True
    head_everywhere: bool = False
    expand_latent: bool = False
    scans: bool = True
    conv_padding: bool = False
    select: bool = True
    every_expert: bool = False


ALGORITHM = Convention()
MATRIX_COUNTER = Convention(causal=False, head_everywhere=True, expand_latent=True, scans=False, conv_padding=True, select=False)
