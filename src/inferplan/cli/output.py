"""How an answer leaves a command: a picture, a page and rows into files, then the record as JSON or the screen. Does no arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import Console

    from inferplan.report.html.page import Page

Html = Annotated[
    str | None, typer.Option("--html", help="Also write a page into FILE.html: charts, tables that sort, numbers opened; needs no network.")
]


def check_html(path: str | None) -> None:
    """Raise SpecError for a file that no page goes into, before anything is computed."""
    if path is not None:
        from inferplan.report.html.render import ending

        ending(path)


def write_html(path: str | None, page: Callable[[], Page]) -> None:
    """Write the page where one was asked for, whole or not at all."""
    if path is not None:
        from inferplan.report import files
        from inferplan.report.html.render import rendered

        files.write_text(path, rendered(page()))


def put_out(
    *, as_json: bool, csv: str | None, plot: str | None, record: Callable[[], dict[str, Any]],
    rows: Callable[[], Iterable[Mapping[str, Any]]], columns: Sequence[str], picture: Callable[[], Axes], screen: Callable[[Console], None],
    html: str | None = None, page: Callable[[], Page] | None = None,
) -> None:  # fmt: skip
    """Write and print what was asked for; nothing else is made. Raises SpecError for a file that cannot be written."""
    from inferplan.report import canvas, files
    from inferplan.report.screen import console

    if plot:
        canvas.write_picture(picture(), plot)
    if page is not None:
        write_html(html, page)
    if csv:
        files.write_text(csv, files.csv_text(rows(), columns))
    if as_json:
        typer.echo(files.json_text(record()))
    else:
        screen(console())
