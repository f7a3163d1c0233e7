"""Measured speed-ups and what is predicted for them, as the accuracy tools of quantization and speculation share them. Predicts nothing."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from inferplan.readers.opening import open_model
from inferplan.roofline.efficiency import Efficiency
from inferplan.specs.model import Model

ROOT = Path(__file__).parents[1]
Row = dict[str, str]


@dataclass(frozen=True)
class Outcome:
    """A row, and what came of it: a predicted speed-up, or the reason why there is none."""

    row: Row
    predicted: float | None = None
    refused: str = ""

    @property
    def measured(self) -> float:
        """The speed-up that was measured."""
        return float(self.row["speed_up"])

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return (self.predicted or 0.0) / self.measured - 1


def rows_of(path: Path) -> list[Row]:
    """The measured rows of a file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@cache
def known(name: str) -> Model:
    """A model of the catalog."""
    return open_model(name).model


@cache
def calibration(name: str) -> Efficiency:
    """A calibration by name, or in a file of this checkout."""
    return Efficiency.load(str(ROOT / name) if name.endswith(".yaml") else name)


def refusals(found: Iterable[Outcome]) -> dict[str, int]:
    """How many rows are refused for each reason, the most frequent first."""
    return dict(Counter(o.refused for o in found if o.refused).most_common())
