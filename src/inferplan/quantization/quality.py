"""Published figures of what quantised models still score: the table `validation/quality.csv`. Knows no format and measures nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from inferplan.errors import SpecError
from inferplan.specs.catalog import shipped_file
from inferplan.specs.document import table_rows
from inferplan.specs.model import Model
from inferplan.specs.precision import Precision

FOLDER, FILE = "validation", "quality.csv"
LARGEST = 1e3  # a ratio of scores beyond is a slip
COLUMNS = ("model", "checkpoint", "weights", "kv", "measure", "better", "quantised", "base", "ratio", "source", "url", "note")


@dataclass(frozen=True, slots=True)
class Quality:
    """A published figure: `ratio` is the quantised model's score over that of the 16-bit one, or its perplexity over the other's.

    model, checkpoint
        the catalog's name of the shape, and whose weights were measured: several checkpoints can share a shape.
    better
        `higher` for scores, `lower` for perplexity.
    """

    model: str
    checkpoint: str
    weights: str
    kv: str
    measure: str
    better: str
    ratio: float
    source: str
    url: str
    note: str

    @property
    def recovery(self) -> float | None:
        """The share of the score that is kept; None for a perplexity, which is no share of anything."""
        return self.ratio if self.better == "higher" else None


def published(model: Model, precision: Precision) -> tuple[Quality, ...]:
    """What was published for checkpoints of that shape in these weight and cache formats, in the order of the table; mostly nothing.

    >>> from inferplan.names import model, precision
    >>> [(q.measure, q.ratio) for q in published(model("llama-3.1-70b"), precision("w4a16"))]
    [('OpenLLM v1', 0.9983)]
    >>> published(model("llama-3.1-70b"), precision("w4a16", "int8"))
    ()
    """
    kv = precision.kv.name if precision.kv.quantised else ""
    return tuple(q for q in _table(shipped_file(FOLDER, FILE)) if (q.model, q.weights, q.kv) == (model.name, precision.name, kv))


@cache
def _table(path: Path) -> tuple[Quality, ...]:
    return tuple(_row(path, line, row) for line, row in enumerate(table_rows(path, COLUMNS), start=2))


def _row(path: Path, line: int, row: dict[str, str]) -> Quality:
    try:
        ratio = float(row["ratio"])
    except ValueError:
        ratio = math.nan
    if not 0 < ratio < LARGEST:
        raise SpecError(f"must be a number above 0 and below {LARGEST:,.0f}", file=path, field=f"line {line}, ratio", value=row["ratio"])
    if row["better"] not in ("higher", "lower"):
        raise SpecError("must be higher or lower", file=path, field=f"line {line}, better", value=row["better"])
    model, checkpoint, weights, kv, measure = (row[name] for name in ("model", "checkpoint", "weights", "kv", "measure"))
    return Quality(model, checkpoint, weights, kv, measure, row["better"], ratio, row["source"], row["url"], row["note"])
