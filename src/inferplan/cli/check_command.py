"""`inferplan check`: is a file of one's own well formed, and what follows from it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from inferplan.errors import NotFound, SpecError

app = typer.Typer(add_completion=False)


@app.command()
def check(
    file: Annotated[str, typer.Argument(help="A part or model in YAML, a config.json, a GGUF or safetensors file, or a folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON in base units.")] = False,
) -> int:
    """Check a file of your own and print what follows from it: parameters, KV per token, ridge points."""
    from inferplan.report.files import json_text
    from inferplan.report.screen import console
    from inferplan.specs.document import resolve

    path = resolve(file)
    if not path.exists() and not path.is_symlink():
        raise NotFound(f"no file or folder called '{file}'")
    record, shown = _part(path) if _is_part(path) else _model(path)
    if as_json:
        typer.echo(json_text(record()))
    else:
        out = console()
        shown(out)
        out.print("No fault found.")
    return 0


def _is_part(path: Path) -> bool:
    """Whether a YAML file describes an accelerator: it has `memory` or `peak`, a model has `blocks`."""
    from inferplan.specs.document import load_yaml

    if path.suffix.lower() not in (".yaml", ".yml"):
        return False
    data = load_yaml(path)
    if "blocks" in data or "layers" in data:
        return False
    if {"memory", "peak"} & set(data):
        return True
    raise SpecError("is neither a part (memory, peak) nor a model (blocks, layers)", file=path)


def _part(path: Path) -> tuple[Any, Any]:
    from inferplan.report.hardware import record, show_hardware
    from inferplan.specs.hardware import Accelerator

    part = Accelerator.load(path)
    return lambda: record(part), lambda out: show_hardware(part, out, asked=part.name)


def _model(path: Path) -> tuple[Any, Any]:
    from inferplan.readers.opening import open_path
    from inferplan.report.models import record, show_model

    model = open_path(path).model
    _known_precisions(model, path)
    return lambda: record(model), lambda out: show_model(model, out, asked=model.name)


def _known_precisions(model: Any, path: Path) -> None:
    """Raise SpecError where the precision of the model or of one of its checkpoints is not known here."""
    from inferplan.specs.precision import Precision

    stated = {"precision": model.precision} if model.precision else {}
    for field, text in (stated | {f"checkpoints.{name}": text for name, text in model.checkpoints.items()}).items():
        try:
            Precision.named(text)
        except NotFound as e:
            raise SpecError(str(e), file=path, field=field, value=text) from None
