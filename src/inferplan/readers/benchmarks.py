"""What benchmarks print as results, to rows of a case file: JSON, lines of JSON, and llama-bench's CSV. Knows no model and no prediction.

One row per run and statistic: `mean` with the throughputs, then `median`, `p90`, `p99` ... as far as the file has them. Tokens are the
means of what was sent and received. What a file does not say (part, split, precision) stays out.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any

from inferplan.errors import SpecError
from inferplan.readers.benchmarks_fields import Fields, Rows
from inferplan.readers.benchmarks_llama import of_llama_bench
from inferplan.readers.benchmarks_serving import of_inferencemax, of_sglang, of_vllm
from inferplan.readers.benchmarks_suites import of_aiperf, of_guidellm

MAX_RESULTS = 100_000
KINDS: tuple[tuple[str, tuple[str, ...], Callable[[Fields], Rows]], ...] = (
    ("llama-bench -o json or csv", ("n_prompt", "n_gen"), of_llama_bench),
    ("InferenceMAX", ("hw", "conc", "framework"), of_inferencemax),
    ("InferenceMAX", ("hardware", "conc", "framework", "metrics"), of_inferencemax),
    ("SGLang bench_serving", ("completed", "output_throughput", "mean_e2e_latency_ms"), of_sglang),
    ("SGLang bench_serving", ("completed", "output_throughput", "median_e2e_latency_ms"), of_sglang),
    ("vLLM bench serve", ("completed", "request_throughput", "output_throughput"), of_vllm),
    ("GuideLLM", ("benchmarks",), of_guidellm),
    ("GenAI-Perf or AIPerf", ("request_throughput", "request_latency"), of_aiperf),
)
"""Kinds of results: a name, the fields by which one is known, and its reader; the first that fits counts."""


def result_rows(text: str, *, file: Any) -> Rows | None:
    """Rows of a case file from the text of a benchmark's result; None where the text is another kind of table.

    Raises SpecError for JSON that is broken, or that no known benchmark writes.

    >>> rows = result_rows('[{"n_prompt": 512, "n_gen": 0, "avg_ts": 5000.0, "model_type": "llama 8B Q4_0"}]', file="x.json")
    >>> rows[0]["input_tokens"], rows[0]["prefill_tokens_per_s"], rows[0]["weights"]
    ('512', '5000.0', 'q4_0')
    """
    start = text.lstrip()[:1]
    if start in ("{", "["):
        return [row for found in _objects(text, file) for row in _rows(found)]
    head = text.partition("\n")[0]
    if "n_prompt" in head and "n_gen" in head and "avg_ts" in head:
        return [row for found in _table(text, file) for row in _rows(found)]
    return None


def _rows(found: Fields) -> Rows:
    for _, names, read in KINDS:
        if all(name in found.own for name in names):
            return read(found)
    known = ", ".join(dict.fromkeys(name for name, _, _ in KINDS))
    raise SpecError(f"is not the result of a benchmark known here ({known})", file=found.file, field=found.place or None)


def _objects(text: str, file: Any) -> list[Fields]:
    """The results in a JSON text: one object, a list of them, or one on each line."""
    try:
        value = _parsed(text, file)
    except json.JSONDecodeError as e:
        lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
        if len(lines) < 2 or e.lineno == 1 and not e.msg.startswith("Extra data"):
            raise SpecError(f"is not valid JSON: {e.msg} (line {e.lineno}, column {e.colno})", file=file) from None
        return [_of_line(n, line, file) for n, line in lines[: MAX_RESULTS + 1]]
    several = value if isinstance(value, list) else [value]
    if len(several) > MAX_RESULTS:
        raise SpecError(f"holds more than {MAX_RESULTS:,} results", file=file)
    if not several:
        raise SpecError("holds no result", file=file)
    return [Fields.of(item, file, f"result {n}" if isinstance(value, list) else "") for n, item in enumerate(several, 1)]


def _of_line(number: int, line: str, file: Any) -> Fields:
    if number > MAX_RESULTS:
        raise SpecError(f"holds more than {MAX_RESULTS:,} lines", file=file)
    try:
        return Fields.of(_parsed(line, file), file, f"line {number}")
    except json.JSONDecodeError as e:
        raise SpecError(f"is not valid JSON: {e.msg} (column {e.colno})", file=file, field=f"line {number}") from None


def _parsed(text: str, file: Any) -> Any:
    """A JSON value; the words NaN and Infinity, which Python writes into such files, are let through to the fields that hold them."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise SpecError("is nested too deep", file=file) from None
    except ValueError as e:
        raise SpecError(f"is not valid JSON: {str(e)[:80]}", file=file) from None


def _table(text: str, file: Any) -> list[Fields]:
    table = csv.DictReader(io.StringIO(text, newline=""), restkey="_more", strict=True)
    found = []
    for number, row in enumerate(table, start=2):
        if "_more" in row or None in row.values():
            raise SpecError(f"has {'more' if '_more' in row else 'fewer'} cells than columns", file=file, field=f"line {number}")
        found.append(Fields.of(dict(row), file, f"line {number}"))
    if not found:
        raise SpecError("has a header and no results", file=file)
    return found
