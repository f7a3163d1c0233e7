"""`inferplan merge`: the shards of a sweep put together. Does no arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def merge(
    folders: Annotated[list[str], typer.Argument(metavar="FOLDER...", help="Folders of pieces that shards left, such as out.csv.parts.")],
    out: Annotated[str, typer.Option("--out", "-o", help="The file to write, in the format that the shards were started for.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print what stands out as JSON, in base units.")] = False,
) -> int:
    """Put the shards of a sweep together: the same file as of a sweep in one go.

    Pieces that are missing or of another sweep are refused, those that lie in two folders count once. The folders stay.
    """
    from inferplan.errors import SpecError
    from inferplan.report import files
    from inferplan.report.screen import console
    from inferplan.report.sweep import record, show_sweep
    from inferplan.report.sweep_files import Pieces, Target, finished

    found = [Pieces.at(Path(folder)) for folder in folders]
    manifest = found[0].manifest
    target = Target.of(out, manifest.points)
    if not target.whole or target.ending != manifest.ending:
        raise SpecError(f"must end in .{manifest.ending}, for which the shards were started", file=out)
    tally = finished(found, target, keep=True)
    if as_json:
        typer.echo(files.json_text(record(tally, out)))
    else:
        show_sweep(tally, out, console())
    return 0 if tally.fitting else 1
