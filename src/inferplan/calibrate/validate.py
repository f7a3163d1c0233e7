"""Predictions beside known values: one row per case and quantity. Knows no equation and no screen.

A row that cannot be predicted is counted as refused, with its reason; it never stops the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from inferplan.calibrate.cases import Case
from inferplan.calibrate.predict import Prediction, Predictor
from inferplan.errors import InferplanError

COLUMNS = ("case", "quantity", "value", "predicted", "low", "high", "error", "refused")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One case answered or refused. `error` is (predicted - value) / value; a counted quantity is its own band."""

    case: Case
    predicted: float | None = None
    refused: str = ""
    low: float | None = None
    high: float | None = None

    @property
    def error(self) -> float | None:
        """Signed relative error; for a known value of zero, 0 where the prediction is zero too, else infinite."""
        if self.predicted is None:
            return None
        if self.case.value == 0:
            return 0.0 if self.predicted == 0 else float("inf")
        return (self.predicted - self.case.value) / self.case.value

    @property
    def covered(self) -> bool | None:
        """Whether the known value lies in the band, its ends included; None where there is none."""
        if self.low is None or self.high is None or self.low == self.high:
            return None
        return self.low <= self.case.value <= self.high

    def row(self) -> dict[str, Any]:
        """The row of an errors file: the columns named in COLUMNS, then the case's own."""
        own = {k: v for k, v in self.case.row.items() if k not in COLUMNS}
        return {
            "case": self.case.name,
            "quantity": self.case.quantity,
            "value": self.case.value,
            "predicted": self.predicted,
            "low": self.low,
            "high": self.high,
            "error": self.error,
            "refused": self.refused,
            **own,
        }


def outcomes(
    cases: Sequence[Case], predictor: Predictor | None = None, *, progress: Callable[[int, int], None] | None = None
) -> list[Outcome]:
    """Each case predicted or refused, in order. An interrupt from the keyboard ends it early: what is done by then is returned."""
    own, found = predictor or Predictor(), []
    try:
        for case in cases:
            found.append(_outcome(case, own))
            if progress:
                progress(len(found), len(cases))
    except KeyboardInterrupt:
        return found
    return found


def _outcome(case: Case, predictor: Predictor) -> Outcome:
    try:
        made: Prediction = predictor.predict(case)
    except InferplanError as e:
        return Outcome(case, refused=str(e))
    return Outcome(case, predicted=made.value, low=made.low, high=made.high)
