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

TimeName = Literal["tpot", "ttft", "e2e"]
Known = Literal["measured", "inherited", "waiting"]
"""`measured`: kernels timed on this class of parts and an engine whose runs were fitted; `inherited`: one of both taken from relatives;
`waiting`: requests wait for cache, so that a small error of the cache becomes a large one of the wait."""
Tail = Literal["p90", "p99"]
"""Percentiles of requests that arrive on their own, which miss by more than means do."""
TAILS: tuple[tuple[float, Tail], ...] = ((0.75, "p90"), (0.95, "p99"))
"""From which share of requests on a percentile is taken for which measured one: below 0.75 it has the band of the mean."""

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


    def wider(self, other: Band | None) -> Band:
        """The band that holds both.

        >>> Band(low=0.8, high=1.1).wider(Band(low=0.9, high=1.3))
        Band(low=0.8, high=1.3, rows=None, covered=None, note=None)
        """
        if other is None or (self.low <= other.low and self.high >= other.high):
            return self
        return Band(low=min(self.low, other.low), high=max(self.high, other.high))


Table = Mapping[TimeName, Mapping[str, Mapping[Known | Tail, Band]]]


def band(table: Table, quantity: TimeName, engine: str, part: str, known: Known, architecture: str = "") -> Band | None:
    """The band of a mean time; None where none is listed. The table goes by quantity, by engine and place, and by how well it is known.

    An entry of the engine on the part (`vllm on h100-sxm5-80gb`) goes before that of the engine on the class of parts and on those of its
    vendor (`llama.cpp on apple-m`, `llama.cpp on apple`), that before the engine's own, and that before `default on amd-cdna3`,
    `default on amd` and `default`. What is inherited, or waits, is never surer than what is measured, nor a first token than the tokens
    after it: such bands are at least as wide at either end.

    >>> wide, own = Band(low=0.5, high=2.0), Band(low=0.9, high=1.1)
    >>> table = {"tpot": {"default": {"measured": wide, "inherited": wide}, "vllm on h100": {"measured": own}}}
    >>> band(table, "tpot", "vllm", "h100", "measured").low, band(table, "tpot", "vllm", "h200", "measured").low
    (0.9, 0.5)
    >>> band(table, "ttft", "vllm", "h100", "measured") is None
    True
    """
    places = _places(engine, part, architecture)
    found = _listed(table, quantity, places, known)
    if found is None:
        return None
    if known != "measured":
        found = found.wider(_listed(table, quantity, places, "measured"))
    return found.wider(band(table, "tpot", engine, part, known, architecture)) if quantity == "ttft" else found


def tail_band(table: Table, quantity: TimeName, share: float, own: Band | None) -> Band | None:
    """The band of a percentile, the time that a `share` of requests does not exceed; `own` is the band of the mean.

    Below the 75th percentile it is that of the mean; above, it holds that of the mean and that of the percentile as it was measured where
    requests arrive on their own, since no percentile is surer than the mean. None where `own` is.

    >>> table = {"ttft": {"default": {"p99": Band(low=0.4, high=2.0)}}}
    >>> own = Band(low=0.3, high=1.5)
    >>> tail_band(table, "ttft", 0.99, own).high, tail_band(table, "ttft", 0.5, own) == own
    (2.0, True)
    """
    tail = next((name for above, name in reversed(TAILS) if share > above), None)
    return own if tail is None or own is None else own.wider(_listed(table, quantity, ("default",), tail))


def _places(engine: str, part: str, architecture: str) -> tuple[str, ...]:
    levels = [level for level in (part, architecture, architecture.split("-")[0]) if level]
    return (*(f"{engine} on {level}" for level in levels), engine, *(f"default on {level}" for level in levels[-2:]), "default")


def _listed(table: Table, quantity: TimeName, places: tuple[str, ...], known: Known | Tail) -> Band | None:
    own = table.get(quantity, {})
    return next((own[place][known] for place in places if known in own.get(place, {})), None)
