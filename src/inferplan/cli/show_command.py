"""`inferplan show`: every number of one part, model or format."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from inferplan.errors import NotFound, shown

app = typer.Typer(add_completion=False)


class Kind(StrEnum):
    """What can be shown."""

    hardware = "hardware"
    model = "model"
    precision = "precision"


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Name, alias, Hub id or path of a part, a model or a format.")],
    kind: Annotated[Kind | None, typer.Option("--kind", help="Which of the three, where a name means several.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON in base units.")] = False,
) -> int:
    """Show every number of a part, a model or a format, with its source."""
    tried: list[str] = []
    order: dict[Kind, Callable[[str], tuple[Any, Callable[..., None]]]] = {
        Kind.hardware: _hardware,
        Kind.model: _model,
        Kind.precision: _format,
    }
    for one, opened in order.items():
        if kind is not None and one is not kind:
            continue
        try:
            record, drawn = opened(name)
        except NotFound as e:
            tried.append(str(e))
            continue
        return _print(record, drawn, as_json, name)
    raise NotFound("; ".join(tried))


def _print(record: Any, drawn: Callable[..., None], as_json: bool, name: str) -> int:
    from inferplan.report.files import json_text
    from inferplan.report.screen import console

    if as_json:
        typer.echo(json_text(record()))
    else:
        drawn(console(), asked=name)
    return 0


def _hardware(name: str) -> tuple[Any, Callable[..., None]]:
    from inferplan.specs.catalog import by_name, find, near_names

    path = by_name("hardware", name)
    if path is None and name.lower().endswith((".yaml", ".yml")):
        path = find("hardware", name)
        path = None if _is_model_file(path) else path
    if path is None:
        near = near_names("hardware", name)
        raise NotFound(f"no hardware called '{shown(name)}'" + (f"; near it: {', '.join(near)}" if near else ""))
    from inferplan.report.hardware import record, show_hardware
    from inferplan.specs.hardware import Accelerator

    part = Accelerator.load(path)
    return lambda: record(part), lambda out, asked: show_hardware(part, out, asked=asked)


def _is_model_file(path: Any) -> bool:
    from inferplan.specs.document import load_yaml

    return "blocks" in load_yaml(path)


def _model(name: str) -> tuple[Any, Callable[..., None]]:
    from inferplan.readers.opening import open_model
    from inferplan.report.models import record, show_model

    model = open_model(name).told
    return lambda: record(model), lambda out, asked: show_model(model, out, asked=asked)


def _format(name: str) -> tuple[Any, Callable[..., None]]:
    from inferplan.report.formats import record, show_precision
    from inferplan.specs.precision import Precision

    found = Precision.named(name)
    return lambda: record(found), lambda out, asked: show_precision(found, out, asked=asked)
