"""Time of a pass through pipeline stages in several microbatches. Knows no model and no part."""

from __future__ import annotations

from inferplan.formula import formula
from inferplan.ops import Numeric


@formula("pass_s * (microbatches + stages - 1) / (microbatches * stages)", unit="s", ref="Huang et al. 2019 (GPipe): bubbles of a pipeline")
def pipelined_s(pass_s: Numeric, microbatches: Numeric, stages: Numeric) -> Numeric:
    """Seconds until the last of equal microbatches has left the last stage.

    `pass_s` is the time of all work through all stages in turn. One microbatch keeps all stages but one idle and gains nothing;
    many approach the time divided by the stages. Broadcasts.

    >>> pipelined_s(8.0, 1, 4), pipelined_s(8.0, 4, 4)
    (8.0, 3.5)
    """
    return pass_s * (microbatches + stages - 1) / (microbatches * stages)
