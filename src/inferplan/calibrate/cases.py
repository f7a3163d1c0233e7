"""Case files: one row per measured quantity (long form) or per run with a column per quantity (wide form). Knows no prediction.

Columns that are not known are kept and can be grouped by. `model` may be a path relative to the case file. What a benchmark printed as
its result is read as if it were such a file.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferplan.errors import SpecError
from inferplan.readers.benchmarks import result_rows
from inferplan.specs.document import read_text

MAX_CASE_BYTES = 256 * 1024 * 1024
QUANTITIES = (
    "params",
    "active_params",
    "kv_bytes_per_token",
    "kv_bytes_per_token_unbounded",
    "state_bytes_per_sequence",
    "weight_bytes",
    "tpot_s",
    "ttft_s",
    "itl_s",
    "e2e_s",
    "decode_tokens_per_s",
    "prefill_tokens_per_s",
    "output_tokens_per_s",
    "total_tokens_per_s",
    "requests_per_s",
    "weight_bytes_per_gpu",
    "kv_cache_bytes_per_gpu",
    "kv_cache_tokens",
    "max_concurrency",
)
SCALES = {
    "": 1.0,
    "B": 1.0,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "kB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
    "tok/s": 1.0,
    "tokens/s": 1.0,
    "tokens": 1.0,
    "1/s": 1.0,
    "params": 1.0,
}


@dataclass(frozen=True, slots=True)
class Case:
    """One known value of one quantity, with the row it stands in."""

    name: str
    quantity: str
    value: float
    row: dict[str, str]
    folder: Path

    def text(self, column: str) -> str | None:
        """A column's text, None where absent or blank."""
        return self.row.get(column) or None

    def number(self, column: str, low: float, high: float) -> float | None:
        """A column's number, None where absent or blank; raises SpecError for what is none, or lies outside."""
        text = self.text(column)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            raise SpecError("must be a number", field=column, value=text) from None
        if not low <= value <= high:
            raise SpecError(f"must lie between {low:,g} and {high:,g}", field=column, value=text)
        return value

    def count(self, column: str, low: int, high: int) -> int | None:
        """A column's number to the nearest whole one: benchmarks print tokens as means."""
        value = self.number(column, low, high)
        return None if value is None else round(value)


def read_cases(path: str | Path, told: Mapping[str, str] | None = None) -> tuple[list[Case], list[str]]:
    """The cases of a file and its own columns, in order; what is `told` of a column goes before what the file says, in every row.

    Raises SpecError for a file that is neither the result of a known benchmark nor a CSV with a `model` column and at least one known
    quantity.
    """
    place = Path(path)
    try:
        return _read(place, dict(told or {}))
    except csv.Error as e:
        raise SpecError(f"is not a CSV file that can be read: {e}", file=place) from None


def _read(place: Path, told: dict[str, str]) -> tuple[list[Case], list[str]]:
    text = read_text(place, limit=MAX_CASE_BYTES)
    if (rows := result_rows(text, file=place)) is not None:
        columns = list(dict.fromkeys([*(c for row in rows for c in row), *told]))
        wide = [q for q in QUANTITIES if q in columns]
        whole: list[dict[str, Any]] = [{**dict.fromkeys(columns, ""), **row} for row in rows]
        return [case for number, row in enumerate(whole, start=1) for case in _of_row(row, number, wide, place, told)], columns
    return _read_table(text, place, told)


def _read_table(text: str, place: Path, told: dict[str, str]) -> tuple[list[Case], list[str]]:
    if (at := text.find("\0")) >= 0:
        line = text.count("\n", 0, at) + 1
        raise SpecError("holds a NUL byte, which no CSV file has", file=place, field=f"line {line}")
    # newline="": the reader itself ends lines at \n, \r\n and \r
    table = csv.DictReader(io.StringIO(text, newline=""), restkey="_more", strict=True)
    columns = [c for c in table.fieldnames or [] if c]
    if len(set(columns)) != len(columns):
        raise SpecError("stands twice among the columns", file=place, field=next(c for c in columns if columns.count(c) > 1))
    if "model" not in columns and "model" not in told:
        raise SpecError("has no column 'model'", file=place)
    long = {"quantity", "value"} <= set(columns)
    wide = [q for q in QUANTITIES if q in columns]
    if not long and not wide:
        raise SpecError("has neither columns 'quantity' and 'value' nor a column named by a quantity", file=place)
    cases = [case for number, row in enumerate(table, start=2) for case in _of_row(row, number, wide, place, told)]
    return cases, [*columns, *(c for c in told if c not in columns)]


def _of_row(row: dict[str, Any], line: int, wide: list[str], place: Path, told: dict[str, str]) -> Iterator[Case]:
    if "_more" in row:
        raise SpecError("has more cells than columns", file=place, field=f"line {line}")
    cells = {k: (v or "").strip() for k, v in row.items()} | told
    name = cells.get("case") or str(line - 1)
    if "value" in cells and cells.get("quantity"):
        yield Case(name, cells["quantity"], _number(cells, "value", line, place) * _scale(cells, line, place), cells, place.parent)
    for quantity in wide:
        if cells[quantity]:
            yield Case(name, quantity, _number(cells, quantity, line, place), cells, place.parent)


def _number(cells: dict[str, str], column: str, line: int, place: Path) -> float:
    try:
        value = float(cells[column])
    except ValueError:
        raise SpecError("must be a number", file=place, field=f"line {line}, {column}", value=cells[column]) from None
    quantity = cells.get("quantity", "") if column == "value" else column
    signed = quantity == "kv_cache_bytes_per_gpu" or quantity not in QUANTITIES  # an engine out of memory prints how far below zero it is
    if not math.isfinite(value) or (value < 0 and not signed):
        raise SpecError("must be finite and not negative", file=place, field=f"line {line}, {column}", value=cells[column])
    return value


def _scale(cells: dict[str, str], line: int, place: Path) -> float:
    unit = cells.get("unit", "")
    if unit not in SCALES:
        raise SpecError(f"is not one of {', '.join(u for u in SCALES if u)}", file=place, field=f"line {line}, unit", value=unit)
    return SCALES[unit]
