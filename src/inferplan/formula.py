"""Equations that state themselves: a formula's text is an executable expression, and a trace links results to the formulas that fed them.

Knows no physics. Closed, the recorder costs one context-variable read per call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
R = TypeVar("R")

NAMESPACE = {
    "where": np.where,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "floor": np.floor,
    "ceil": np.ceil,
    "log2": np.log2,
    "log": np.log,
    "exp": np.exp,
    "sqrt": np.sqrt,
    "abs": np.abs,
    "inf": np.inf,
}


@dataclass(frozen=True, slots=True)
class Formula:
    """An equation as text over the arguments' names, its unit and reference, and the function that computes it."""

    name: str
    text: str
    unit: str
    ref: str
    arguments: tuple[str, ...]
    function: Callable[..., Any]

    def evaluate(self, **values: Any) -> Any:
        """The text itself, evaluated on values; a test holds this against the function."""
        return eval(self.text, {"__builtins__": {}}, {**NAMESPACE, **values})  # noqa: S307 - the project's own constant text


@dataclass(slots=True)
class Record:
    """One evaluation: the formula, what went in and came out, and for each input the record that made it, if any did."""

    formula: Formula
    inputs: dict[str, Any]
    result: Any
    made_by: dict[str, Record]


@dataclass(slots=True)
class Trace:
    """All evaluations since the recorder was opened, found again by the object they returned."""

    records: list[Record] = field(default_factory=list)
    by_result: dict[int, Record] = field(default_factory=dict)

    def add(self, formula: Formula, inputs: dict[str, Any], result: Any) -> None:
        """Keep one evaluation; results are held, so that an object's identity stays its own."""
        made_by = {name: self.by_result[id(value)] for name, value in inputs.items() if id(value) in self.by_result}
        record = Record(formula, inputs, result, made_by)
        self.records.append(record)
        self.by_result[id(result)] = record

    def of(self, result: Any) -> Record | None:
        """The record that made a result."""
        return self.by_result.get(id(result))


_open: ContextVar[Trace | None] = ContextVar("inferplan_trace", default=None)
FORMULAS: dict[str, Formula] = {}


def formula(text: str, *, unit: str, ref: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function with its equation. The text uses the function's argument names and may call where, minimum, maximum, floor, ceil.

    >>> @formula("2 * m * n * k", unit="FLOP")
    ... def product_flops(m, n, k):
    ...     return 2 * m * n * k
    >>> FORMULAS["product_flops"].evaluate(m=2, n=3, k=4)
    48
    """

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        arguments = tuple(inspect.signature(function).parameters)
        entry = Formula(function.__name__, text, unit, ref, arguments, function)
        FORMULAS[entry.name] = entry

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            result = function(*args, **kwargs)
            trace = _open.get()
            if trace is not None:
                trace.add(entry, dict(zip(arguments, args, strict=False)) | kwargs, result)
            return result

        return call

    return wrap


@contextmanager
def trace() -> Iterator[Trace]:
    """Record every formula evaluated inside the block."""
    recorder = Trace()
    token = _open.set(recorder)
    try:
        yield recorder
    finally:
        _open.reset(token)
