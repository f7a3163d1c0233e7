"""Predictions beside known values: one row per case and quantity, and a summary. Knows no screen.

A row that cannot be predicted is counted as refused, with its reason; it never stops the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from statistics import mean, median
from typing import Any

from inferplan.calibrate.cases import Case
from inferplan.engine.cache_bytes import kv_bytes_per_token, kv_bytes_per_token_unbounded, state_bytes_per_sequence
from inferplan.errors import InferplanError, Unsupported
from inferplan.memory.capacity import Capacity
from inferplan.memory.case_columns import capacity_of
from inferplan.memory.weights import weight_bytes
from inferplan.readers.opening import Opened, open_model
from inferplan.specs.counts import counts
from inferplan.specs.document import resolve
from inferplan.specs.precision import Precision

COLUMNS = ("case", "quantity", "value", "predicted", "low", "high", "error", "refused")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One case answered or refused. `error` is (predicted - value) / value; the band is absent for exact quantities."""

    case: Case
    predicted: float | None = None
    refused: str = ""

    @property
    def error(self) -> float | None:
        """Signed relative error; for a known value of zero, 0 where the prediction is zero too, else infinite."""
        if self.predicted is None:
            return None
        if self.case.value == 0:
            return 0.0 if self.predicted == 0 else float("inf")
        return (self.predicted - self.case.value) / self.case.value

    def row(self) -> dict[str, Any]:
        """The row of an errors file: the columns named in COLUMNS, then the case's own."""
        own = {k: v for k, v in self.case.row.items() if k not in COLUMNS}
        exact = self.predicted
        return {
            "case": self.case.name,
            "quantity": self.case.quantity,
            "value": self.case.value,
            "predicted": exact,
            "low": exact,
            "high": exact,
            "error": self.error,
            "refused": self.refused,
            **own,
        }


def outcomes(cases: Iterable[Case], *, progress: Callable[[int], None] | None = None) -> list[Outcome]:
    """Each case predicted or refused, in order."""
    found = []
    for i, case in enumerate(cases):
        found.append(_outcome(case))
        if progress:
            progress(i + 1)
    return found


def _outcome(case: Case) -> Outcome:
    predictor = PREDICTORS.get(case.quantity)
    if predictor is None:
        return Outcome(case, refused=f"the quantity '{case.quantity}' is not predicted yet; those that are: {', '.join(PREDICTORS)}")
    try:
        return Outcome(case, predicted=float(predictor(case)))
    except InferplanError as e:
        return Outcome(case, refused=str(e))


@lru_cache(maxsize=512)
def _opened(text: str, folder: str) -> Opened:
    """The model of a case; a path is taken relative to the case file."""
    beside = resolve(folder) / text
    return open_model(str(beside)) if beside.exists() else open_model(text)


def _model(case: Case) -> Opened:
    name = case.text("model")
    if name is None:
        raise Unsupported("the row names no model")
    return _opened(name, str(case.folder))


def _precision(case: Case) -> Precision:
    """The weight format a row names, else that of the checkpoint; the cache format it names, else the 16-bit one."""
    opened = _model(case)
    named = Precision.named(case.text("weights") or opened.precision or opened.model.dtype)
    return named.with_kv(case.text("kv") or "bf16")


def _capacity(case: Case) -> Capacity:
    """What the engine of a row holds; engines load checkpoints stored in fp32 as 16-bit ones."""
    opened, asked = _model(case), _precision(case)
    return capacity_of(opened.model, Precision.named("bf16").with_kv(asked.kv.name) if asked.name == "fp32" else asked, case.row)


PREDICTORS: dict[str, Callable[[Case], Any]] = {
    "params": lambda case: counts(_model(case).model).total,
    "active_params": lambda case: counts(_model(case).model).active,
    "kv_bytes_per_token": lambda case: kv_bytes_per_token(_model(case).model, _precision(case)),
    "kv_bytes_per_token_unbounded": lambda case: kv_bytes_per_token_unbounded(_model(case).model, _precision(case)),
    "state_bytes_per_sequence": lambda case: state_bytes_per_sequence(_model(case).model, _precision(case)),
    "weight_bytes": lambda case: weight_bytes(_model(case).model, _precision(case)),
    "weight_bytes_per_gpu": lambda case: _capacity(case).weight_bytes_per_gpu,
    "kv_cache_bytes_per_gpu": lambda case: _capacity(case).reserved_cache_bytes,
    "kv_cache_tokens": lambda case: _capacity(case).kv_cache_tokens,
    "max_concurrency": lambda case: _capacity(case).max_concurrency,
}


@dataclass(frozen=True, slots=True)
class Summary:
    """What a set of outcomes says: coverage and absolute relative errors."""

    rows: int
    predicted: int
    exact: int
    median_error: float | None
    mean_error: float | None
    worst_error: float | None
    signed_median: float | None
    within: dict[str, float]


def summary(found: Iterable[Outcome]) -> Summary:
    """Coverage, share exact to the last unit, and median, mean and worst absolute error."""
    rows = list(found)
    errors = [o.error for o in rows if o.error is not None]
    sizes = [abs(e) for e in errors]
    within = {f"{p}": sum(s <= p for s in sizes) / len(sizes) if sizes else 0.0 for p in (0.005, 0.1, 0.2, 0.3)}
    return Summary(
        len(rows),
        len(errors),
        sum(s == 0 for s in sizes),
        median(sizes) if sizes else None,
        mean(sizes) if sizes else None,
        max(sizes) if sizes else None,
        median(errors) if errors else None,
        within,
    )


def grouped(found: Iterable[Outcome], columns: Iterable[str]) -> dict[tuple[str, ...], Summary]:
    """A summary per distinct value of the columns (`quantity` or any column of the case file)."""
    groups: dict[tuple[str, ...], list[Outcome]] = {}
    names = list(columns)
    for o in found:
        key = tuple(o.case.quantity if c == "quantity" else o.case.name if c == "case" else o.case.row.get(c, "") for c in names)
        groups.setdefault(key, []).append(o)
    return {key: summary(rows) for key, rows in sorted(groups.items())}
