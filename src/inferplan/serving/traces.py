"""Traces of requests in files, by the columns that public ones have: Azure, BurstGPT, Mooncake, vidur and a plain form. Knows no engine."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from inferplan.errors import SpecError
from inferplan.serving.requests import MAX_REQUESTS, Requests

MAX_BYTES = 4 * 2**30
HASH_TOKENS = {"mooncake": 512, "plain": 512}


@dataclass(frozen=True, slots=True)
class Form:
    """The columns of a kind of trace: arrival, prompt and output; how an arrival becomes seconds; where block hashes stand."""

    name: str
    arrival: str
    inputs: str
    outputs: str
    seconds: Callable[[list[Any]], Any]
    hashes: str | None = None
    most: str | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests of a file, the form it has, and how many of its rows have no prompt or no output and are left out."""

    requests: Requests
    form: str
    dropped: int


def _numbers(values: list[Any]) -> Any:
    return np.array(values, dtype=float)


def _milliseconds(values: list[Any]) -> Any:
    return np.array(values, dtype=float) / 1e3


def _dates(values: list[Any]) -> Any:
    """Dates such as 2023-11-16 18:17:03.9799600, in UTC."""
    plain = [str(v).strip().removesuffix("Z").removesuffix("+00:00") for v in values]
    return np.array(plain, dtype="datetime64[ns]").astype(np.int64) / 1e9


FORMS = (
    Form("plain", "arrival_s", "input_tokens", "output_tokens", _numbers, "hash_ids", "max_tokens"),
    Form("azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", _dates),
    Form("burstgpt", "Timestamp", "Request tokens", "Response tokens", _numbers),
    Form("mooncake", "timestamp", "input_length", "output_length", _milliseconds, "hash_ids"),
    Form("vidur", "arrived_at", "num_prefill_tokens", "num_decode_tokens", _numbers),
)


def read_trace(path: str, *, limit: int | None = None, hash_tokens: int | None = None) -> Trace:
    """The requests of a CSV, JSONL or Parquet file, times from its first one on, at most `limit` of them.

    The form is known by the columns. Raises SpecError naming file, line, column and rule for the first row that breaks one.
    """
    try:
        columns = _columns(path, limit or MAX_REQUESTS)
    except OSError as e:
        raise SpecError(f"cannot be read: {e.strerror or 'it is no trace'}", file=path) from None
    form = next((f for f in FORMS if {f.arrival, f.inputs, f.outputs} <= set(columns)), None)
    if form is None:
        known = "; ".join(f"{f.arrival}, {f.inputs}, {f.outputs} ({f.name})" for f in FORMS)
        raise SpecError(f"has none of the known sets of columns: {known}", file=path)
    if not columns[form.arrival]:
        raise SpecError("has a header and no requests", file=path)
    return _trace(path, form, columns, hash_tokens)


def _trace(path: str, form: Form, columns: dict[str, list[Any]], hash_tokens: int | None) -> Trace:
    when = _checked(path, form.arrival, columns[form.arrival], form.seconds)
    tokens = [_checked(path, name, columns[name], _numbers) for name in (form.inputs, form.outputs)]
    for name, values in ((form.arrival, when), (form.inputs, tokens[0]), (form.outputs, tokens[1])):
        wrong = ~np.isfinite(values) | (values < 0 if name != form.arrival else False) | (values > 1e12)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise SpecError("must be a finite number from 0", file=path, field=f"{name}, row {row + 1:,}", value=columns[name][row])
    kept = np.flatnonzero((tokens[0] >= 1) & (tokens[1] >= 1))
    if not kept.size:
        raise SpecError("has no request with a prompt and an output", file=path)
    most = _checked(path, form.most, columns[form.most], _numbers)[kept] if form.most and form.most in columns else None
    prefixes = _prefixes(path, columns[form.hashes], kept) if form.hashes and form.hashes in columns else None
    try:
        found = Requests.of(
            when[kept] - when[kept].min(), tokens[0][kept], tokens[1][kept], max_tokens=most, prefixes=prefixes,
            hash_tokens=hash_tokens or HASH_TOKENS.get(form.name, 16),
        )  # fmt: skip
    except SpecError as e:
        raise e.within(path) from None
    return Trace(found, form.name, int(when.size - kept.size))


def _checked(path: str, name: str, values: list[Any], convert: Callable[[list[Any]], Any]) -> Any:
    """A column as numbers; where that fails, the row that is to blame."""
    try:
        return convert(values)
    except (ValueError, TypeError, OverflowError):
        for row, value in enumerate(values):
            try:
                convert([value])
            except (ValueError, TypeError, OverflowError):
                what = "a date" if convert is _dates else "a number"
                raise SpecError(f"must be {what}", file=path, field=f"{name}, row {row + 1:,}", value=value or "nothing") from None
        raise SpecError("cannot be read as one column", file=path, field=name) from None


def _prefixes(path: str, values: list[Any], kept: Any) -> list[tuple[int, ...]]:
    """Hashes of each prompt's blocks, numbered from 0 in order of appearance."""
    number: dict[Any, int] = {}
    found = []
    for row in kept:
        value = values[row]
        try:
            hashes = value.strip("[] ").replace(",", " ").split() if isinstance(value, str) else () if value is None else list(value)
            found.append(tuple(number.setdefault(h, len(number)) for h in hashes))
        except TypeError:
            raise SpecError("must be a list of hashes", file=path, field=f"hash_ids, row {row + 1:,}", value=value) from None
    return found


def _columns(path: str, limit: int) -> dict[str, list[Any]]:
    if Path(path).stat().st_size > MAX_BYTES:
        raise SpecError("is larger than 4 GiB", file=path)
    ending = Path(path).suffix.lower()
    if ending in (".parquet", ".pq"):
        return _parquet(path, limit)
    rows = _lines(path) if ending in (".jsonl", ".json", ".ndjson") else _csv(path)
    return _transposed(path, rows, limit)


def _transposed(path: str, rows: Iterable[dict[str, Any]], limit: int) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for number, row in enumerate(rows):
        if number == limit:
            break
        if not columns:
            columns = {name: [] for name in row}
        if row.keys() != columns.keys():
            other = next(iter(row.keys() ^ columns.keys()))
            raise SpecError(f"differs from the first row in the column '{other}'", file=path, field=f"row {number + 1:,}")
        for name, value in row.items():
            columns[name].append(value)
    return columns


def _csv(path: str) -> Iterator[dict[str, Any]]:
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as stream:
            rows = csv.reader(stream)
            head = [name.strip() for name in next(rows, [])]
            any_row = False
            for row in rows:
                if not row:
                    continue
                if len(row) != len(head):
                    raise SpecError(f"has {len(row)} cells under {len(head)} columns", file=path, field=f"line {rows.line_num:,}")
                any_row = True
                yield dict(zip(head, row, strict=True))
            if not any_row:
                raise SpecError("has a header and no requests" if head else "is empty", file=path)
    except (UnicodeDecodeError, csv.Error):
        raise SpecError("is not CSV text", file=path) from None


def _lines(path: str) -> Iterator[dict[str, Any]]:
    with Path(path).open(encoding="utf-8") as stream:
        try:
            for number, line in enumerate(stream, 1):
                if not line.strip():
                    continue
                row = _object(line)
                if row is None:
                    raise SpecError("must be a JSON object", file=path, field=f"line {number:,}", value=line.strip())
                yield row
        except UnicodeDecodeError:
            raise SpecError("is not JSON text", file=path) from None


def _object(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _parquet(path: str, limit: int) -> dict[str, list[Any]]:
    import pandas as pd

    try:
        frame = pd.read_parquet(path)
    except ImportError:
        raise SpecError("needs pyarrow to be read: pip install 'inferplan[parquet]'", file=path) from None
    except Exception as e:  # what a damaged file raises has no class in common: ArrowInvalid, OSError, KeyError, ...
        why = (str(e).splitlines() or ["it is none"])[0].rpartition("': ")[2]  # without the path, which the message names already
        raise SpecError(f"cannot be read as Parquet: {why}", file=path) from None
    return {str(name): frame[name].head(limit).tolist() for name in frame}


def read_columns(path: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Columns of numbers from 0 of a CSV file; raises SpecError naming the one that lacks or the first bad row."""
    try:
        columns = _columns(path, MAX_REQUESTS)
    except OSError as e:
        raise SpecError(f"cannot be read: {e.strerror or 'it is no table'}", file=path) from None
    found = {}
    for name in names:
        if name not in columns:
            raise SpecError(f"has no column '{name}'; it needs {', '.join(names)}", file=path)
        values = found[name] = _checked(path, name, columns[name], _numbers)
        wrong = ~(np.isfinite(values) & (values >= 0))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise SpecError("must be a finite number from 0", file=path, field=f"{name}, row {row + 1:,}", value=columns[name][row])
    return found
