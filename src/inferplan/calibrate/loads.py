"""The load that a row of a case file names: a loop of clients, a stream of arrivals, or one static batch. Knows no time."""

from __future__ import annotations

from dataclasses import dataclass

from inferplan.calibrate.cases import Case
from inferplan.deployment import MAX_BATCH, MAX_TOKENS
from inferplan.errors import SpecError, Unsupported

INFERENCEMAX = ("inferencemax", "disaggregated")
INFERENCEMAX_RATIO = 0.8
MAX_REQUESTS = 10**6


@dataclass(frozen=True, slots=True)
class Loop:
    """Requests that come and go: `clients` that each wait for their answer, or arrivals at `rate_per_s`; one of the two is None.

    requests
        how many are sent; None: ten for each client, or so many that only the steady state counts.
    ratio
        lengths are uniform from this share of nominal up to nominal.
    cv
        of the gaps between arrivals: 1 Poisson, 0 constant.
    """

    input_tokens: int
    output_tokens: int
    clients: int | None
    rate_per_s: float | None
    requests: int | None
    ratio: float
    cv: float
    cached: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One static batch: prefill of all prompts, then decode steps at `context`, or over the run of the outputs where it is None."""

    input_tokens: int | None
    output_tokens: int | None
    batch: int
    context: int | None
    cached: int

    def queued(self) -> Loop | None:
        """The same requests sent at once to an engine that does not hold them all: those that it does not hold wait. None without lengths.

        >>> Batch(100, 20, 4, None, 0).queued().clients
        4
        """
        if self.input_tokens is None or self.output_tokens is None or self.context is not None:
            return None
        return Loop(self.input_tokens, self.output_tokens, self.batch, None, self.batch, 1.0, 1.0, self.cached)


def load_of(case: Case) -> Loop | Batch:
    """The load of a row; raises SpecError for numbers outside their range, Unsupported where something is missing or contradicts.

    >>> from pathlib import Path
    >>> load_of(Case("a", "tpot_s", 0.01, {"batch": "4", "input_tokens": "100", "output_tokens": "20"}, Path()))
    Batch(input_tokens=100, output_tokens=20, batch=4, context=None, cached=0)
    """
    clients, rate = case.count("concurrency", 1, MAX_BATCH), case.number("rate_per_s", 1e-9, 1e9)
    given = [name for name in ("concurrency", "rate_per_s", "batch") if case.text(name)]
    if len(given) > 1:
        raise Unsupported(f"the row names both {given[0]} and {given[1]}: which of them holds the load back is not known")
    tokens = case.count("input_tokens", 1, MAX_TOKENS), case.count("output_tokens", 1, MAX_TOKENS)
    cached = case.count("cached_tokens", 0, MAX_TOKENS) or 0
    if clients is None and rate is None:
        return Batch(*tokens, case.count("batch", 1, MAX_BATCH) or 1, case.count("context", 1, MAX_TOKENS), cached)
    if tokens[0] is None or tokens[1] is None:
        raise Unsupported(f"the row names no {'input' if tokens[0] is None else 'output'}_tokens")
    if cached >= tokens[0]:
        raise SpecError(f"must be below the input tokens, {tokens[0]:,}", field="cached_tokens", value=cached)
    return Loop(tokens[0], tokens[1], clients, rate, case.count("requests", 1, MAX_REQUESTS), _ratio(case), _cv(case), cached)


def _ratio(case: Case) -> float:
    said = case.number("length_ratio", 0, 1)
    return said if said is not None else INFERENCEMAX_RATIO if case.text("protocol") in INFERENCEMAX else 1.0


def _cv(case: Case) -> float:
    said = case.number("arrival_cv", 0, 100)
    return 1.0 if said is None else said


def share_of(text: str | None) -> float | None:
    """The quantile that a statistic's name means, None for the mean; raises SpecError for another text.

    >>> share_of("p99"), share_of("median"), share_of("mean"), share_of(None)
    (0.99, 0.5, None, None)
    """
    name = (text or "mean").lower()
    if name in ("mean", "avg"):
        return None
    if name == "median":
        return 0.5
    try:
        share = float(name.removeprefix("p")) / 100 if name.startswith("p") else -1.0
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise SpecError("must be mean, median or a percentile such as p99", field="statistic", value=text)
    return share
