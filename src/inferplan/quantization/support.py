"""Which formats an engine loads, and in which layout of its own it keeps a cache: the table `engines/formats.csv`. Knows no bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from inferplan.errors import SpecError
from inferplan.specs.catalog import data_file
from inferplan.specs.document import table_rows
from inferplan.specs.engine import Engine
from inferplan.specs.hardware import Accelerator
from inferplan.specs.precision import Format, Precision, Use, named_format

FILE = "formats.csv"
COLUMNS = ("engine", "use", "format", "native", "as", "source", "note")
USUAL = {
    "llama.cpp": ("bf16,q8_0,q6_k,q4_k_m,q4_0", "bf16,q8_0,q4_0"),
    "ik-llama.cpp": ("bf16,q8_0,q6_k,q4_k_m,q4_0", "bf16,q8_0,q4_0"),
    "": ("bf16,fp8,int8,awq,nvfp4", "bf16,fp8"),
}


@dataclass(frozen=True, slots=True)
class Supported:
    """A row: an engine takes a family of formats, or one format by name.

    native
        only on parts whose matrix units multiply in the format's own type.
    own
        name of the layout in which the engine keeps such a cache, '' for the format's own.
    """

    engine: str
    use: str
    format: str
    native: bool
    own: str
    source: str
    note: str


def usual(engine: Engine) -> tuple[str, str]:
    """Formats of weights and of the cache that are compared under an engine where none are named."""
    return USUAL.get(engine.name, USUAL[""])


def support(engine: str) -> list[Supported]:
    """What is known of an engine's formats; nothing for one that the table does not list.

    >>> [row.format for row in support("llama.cpp") if row.use == "weights"]
    ['float', 'gguf', 'mxfp4']
    """
    return [row for row in _table(data_file("engines", FILE)) if row.engine == engine]


@cache
def _table(path: Path) -> tuple[Supported, ...]:
    return tuple(_row(path, line, row) for line, row in enumerate(table_rows(path, COLUMNS), start=2))


def _row(path: Path, line: int, row: dict[str, str]) -> Supported:
    for column, known in (("use", ("weights", "kv")), ("native", ("yes", ""))):
        if row[column] not in known:
            rule = f"must be {' or '.join(word or 'empty' for word in known)}"
            raise SpecError(rule, file=path, field=f"line {line}, {column}", value=row[column])
    return Supported(row["engine"], row["use"], row["format"], row["native"] == "yes", row["as"], row["source"], row["note"])


def _found(engine: str, use: Use, names: tuple[str, ...]) -> Supported | None:
    """The row that is nearest to a format: by its name, else by its family."""
    rows = {row.format: row for row in support(engine) if row.use == use}
    return next((rows[name] for name in names if name in rows), None)


def own_cache(engine: Engine, kv: Format) -> Format:
    """The layout in which an engine keeps a cache of that width.

    >>> own_cache(Engine.find("tensorrt-llm"), named_format("int8", "kv")).name
    'int8-tensor-kv'
    """
    row = _found(engine.name, "kv", (kv.name,))
    return named_format(row.own, "kv") if row is not None and row.own else kv


def caution(engine: Engine, precision: Precision) -> str:
    """What an engine's makers say of weights in a format that it loads, '' for nothing."""
    body = _body(precision)
    row = _found(engine.name, "weights", (body.name, body.family))
    return row.note if row is not None else ""


def refusal(engine: Engine, hardware: Accelerator, precision: Precision) -> str:
    """In a line why an engine does not run a precision on a part, '' where it does or where the table says nothing of the engine.

    >>> from inferplan.names import hardware, precision
    >>> refusal(Engine.find("llama.cpp"), hardware("h100"), precision("awq"))
    'llama.cpp loads no awq weights (float, gguf, mxfp4)'
    >>> refusal(Engine.find("tensorrt-llm"), hardware("a100"), precision("fp8"))
    'TensorRT-LLM runs fp8 weights only on parts that multiply in fp8'
    """
    uses: tuple[tuple[Use, Format, str], ...] = (("weights", _body(precision), "weights"), ("kv", precision.kv, "cache"))
    for use, fmt, what in uses:
        if not any(row.use == use for row in support(engine.name)):
            continue
        row = _found(engine.name, use, (fmt.name, fmt.family))
        if row is None:
            taken = ", ".join(row.format for row in support(engine.name) if row.use == use)
            return f"{engine.title} {'loads' if use == 'weights' else 'keeps'} no {_said(fmt, use)} {what} ({taken})"
        if row.native and hardware.computed_in(fmt.compute) != fmt.compute and fmt.quantised and fmt.compute not in ("bf16", "fp16"):
            return f"{engine.title} runs {_said(fmt, use)} {what} only on parts that multiply in {fmt.compute}"
    return ""


def _body(precision: Precision) -> Format:
    """The narrowest format among the body and the parts that differ from it."""
    return min((precision.weights, *(f for _, f in precision.overrides)), key=lambda f: f.bits)


def _said(fmt: Format, use: Use) -> str:
    return fmt.family if use == "weights" and fmt.family not in ("integer", "microscaling", "float", "fp8") else fmt.name
