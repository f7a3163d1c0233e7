"""Error bands: where four of five measurements lie about an estimate, by quantity, engine and how well it is known. Knows no estimate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from inferplan.errors import SpecError
from inferplan.ops import Numeric
from inferplan.specs.base import Record
from inferplan.specs.quantity import refusal

TimeName = Literal["tpot", "ttft"]
Known = Literal["measured", "inherited", "waiting"]
"""`measured`: kernels timed on this class of parts and an engine whose runs were fitted; `inherited`: one of both taken from relatives;
`waiting`: requests wait for cache, so that a small error of the cache becomes a large one of the wait."""

Factor = Annotated[float, Field(gt=0, le=1e3)]


class Band(Record):
    """The 10th and 90th percentile of measured over estimated, from runs that the fit had not seen.

    rows, covered
        how many residuals stand behind it, and the share of unseen runs that it held when their model had no part in it.

    >>> low, high = Band(low=0.8, high=1.25).of(2.0)
    >>> float(low), float(high)
    (1.6, 2.5)
    """

    low: Factor
    high: Factor
    rows: int | None = None
    covered: float | None = None
    note: str | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Band:
        if self.low > self.high:
            raise refusal(SpecError("must not be above high", field="low", value=self.low))
        return self

    def of(self, value: Numeric, floor: Numeric = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """The ends of the band about an estimated time, none of them below its floor; arrays broadcast."""
        low, high = (np.asarray(np.maximum(end * value, floor)) for end in (self.low, self.high))
        return low, high


Table = Mapping[TimeName, Mapping[str, Mapping[Known, Band]]]


def band(table: Table, quantity: TimeName, engine: str, part: str, known: Known) -> Band | None:
    """The band of an estimate; None where none is listed. The table goes by quantity (tpot, ttft), engine, and how well it is known.

    An entry of the engine on the part (`vllm on h100-sxm5-80gb`) goes before that of the engine, and that before `default`; an engine
    without a band for what is `waiting` or `inherited` takes that of all engines.

    >>> wide, own = Band(low=0.5, high=2.0), Band(low=0.9, high=1.1)
    >>> table = {"tpot": {"default": {"measured": wide, "inherited": wide}, "vllm on h100": {"measured": own}}}
    >>> band(table, "tpot", "vllm", "h100", "measured").low, band(table, "tpot", "vllm", "h200", "measured").low
    (0.9, 0.5)
    >>> band(table, "ttft", "vllm", "h100", "measured") is None
    True
    """
    own = table.get(quantity, {})
    return next((own[key][known] for key in (f"{engine} on {part}", engine, "default") if known in own.get(key, {})), None)
