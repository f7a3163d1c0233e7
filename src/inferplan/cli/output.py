"""How an answer leaves a command: a picture and rows into files, then the record as JSON or the screen. Does no arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import Console


def put_out(
    *, as_json: bool, csv: str | None, plot: str | None, record: Callable[[], dict[str, Any]],
    rows: Callable[[], Iterable[Mapping[str, Any]]], columns: Sequence[str], picture: Callable[[], Axes], screen: Callable[[Console], None],
) -> None:  # fmt: skip
    """Write and print what was asked for; nothing else is made. Raises SpecError for a file that cannot be written."""
    from inferplan.report import canvas, files
    from inferplan.report.screen import console

    if plot:
        canvas.write_picture(picture(), plot)
    if csv:
        files.write_text(csv, files.csv_text(rows(), columns))
    if as_json:
        typer.echo(files.json_text(record()))
    else:
        screen(console())
