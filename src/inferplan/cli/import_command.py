"""`inferplan import`: a published configuration becomes a model spec of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inferplan.errors import SpecError

app = typer.Typer(add_completion=False)


@app.command(name="import")
def imported(
    source: Annotated[str, typer.Argument(metavar="CONFIG", help="A config.json, a GGUF file, a folder, a Hub id or a catalog name.")],
    output: Annotated[str | None, typer.Option("--output", "-o", help="Where to write the YAML; unsaid: print it.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="The spec's name; unsaid: the output file's.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> int:
    """Write a model spec from a published config.json, a GGUF file or a Hub id."""
    from inferplan.readers.opening import open_model
    from inferplan.report.files import write_text
    from inferplan.report.screen import console
    from inferplan.specs.write import model_yaml

    opened = open_model(source)
    chosen = name or (Path(output).stem if output else opened.model.name)
    model = opened.model.model_copy(update={"name": chosen, "precision": opened.precision})
    text = model_yaml(model)
    if output is None:
        typer.echo(text, nl=False)
        return 0
    if Path(output).is_file() and not force:
        raise SpecError("exists already; --force replaces it", file=output)
    write_text(output, text)
    console(error=True).print(f"{output}: {model.params:,} parameters from {opened.origin}")
    return 0
