"""Options that say of all rows of a case file what its columns leave out. Does no arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

import typer

from inferplan.errors import SpecError

KEPT = ("case", "quantity", "value", "unit")
COLUMNS = {"dtype": "weights", "kv_dtype": "kv"}
Cases = Annotated[str, typer.Argument(metavar="CASES", help="A case file (CSV) or a benchmark's result: see docs/case-files.md.")]


@dataclass(frozen=True, slots=True)
class Told:
    """What options say of all rows: it goes before what the file says."""

    model: Annotated[str | None, typer.Option("--model", "-m", help="The model of all rows: goes before what the file says.")] = None
    gpu: Annotated[str | None, typer.Option("--gpu", "-g", help="The accelerator of all rows.")] = None
    engine: Annotated[str | None, typer.Option("--engine", help="The serving engine of all rows.")] = None
    engine_version: Annotated[str | None, typer.Option("--engine-version", help="Release of the engine of all rows.")] = None
    dtype: Annotated[str | None, typer.Option("--dtype", "-d", help="The precision of the weights of all rows.")] = None
    kv_dtype: Annotated[str | None, typer.Option("--kv-dtype", help="The format of the KV cache of all rows.")] = None
    gpus: Annotated[int | None, typer.Option("--gpus", help="Devices.", min=1)] = None
    tp: Annotated[int | None, typer.Option("--tp", help="Tensor parallel.", min=1)] = None
    pp: Annotated[int | None, typer.Option("--pp", help="Pipeline stages.", min=1)] = None
    dp: Annotated[int | None, typer.Option("--dp", help="Attention data parallel groups.", min=1)] = None
    ep: Annotated[int | None, typer.Option("--ep", help="Ways in which experts are dealt out.", min=1)] = None
    more: Annotated[list[str] | None, typer.Option("--set", help="COLUMN=VALUE: any other column of all rows; may be repeated.")] = None

    @property
    def columns(self) -> dict[str, str]:
        """The columns that are told; raises SpecError for a `--set` that is no column."""
        told = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "more"}
        found = {COLUMNS.get(name, name): str(value) for name, value in told.items() if value}
        return found | dict(_set(text) for text in self.more or [])


def _set(text: str) -> tuple[str, str]:
    """One `--set`."""
    column, sign, value = (part.strip() for part in text.partition("="))
    if not sign or not column or not value:
        raise SpecError("must be COLUMN=VALUE", field="--set", value=text)
    if column in KEPT:
        raise SpecError("is each row's own", field="--set", value=text)
    return column, value
