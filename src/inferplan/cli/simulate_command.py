"""`inferplan simulate`: requests through an engine, a row each. Does no arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from inferplan.cli import serving_options as o
from inferplan.cli.app import INTERRUPTED
from inferplan.cli.options import Asked
from inferplan.cli.output import Html, check_html, write_html

if TYPE_CHECKING:
    from inferplan.report.html.page import Page
    from inferplan.serving.served import Served

app = typer.Typer(add_completion=False)


@app.command()
@o.asks
def simulate(
    asked: Asked,
    traffic: o.Traffic,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON, in base units.")] = False,
    csv: Annotated[str | None, typer.Option("--csv", help="Write a row per request to FILE.")] = None,
    parquet: Annotated[str | None, typer.Option("--parquet", help="Write a row per request to FILE as Parquet (needs pyarrow).")] = None,
    series: Annotated[str | None, typer.Option("--series", help="Write batch, cache and queue over time to FILE as CSV.")] = None,
    plot: Annotated[str | None, typer.Option("--plot", help="Draw latencies and the timeline into FILE, a PNG, SVG or PDF.")] = None,
    html: Html = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on the screen.")] = False,
) -> int:
    """Requests through an engine, step by step: queue, time to first token, gaps and end of each.

    Ctrl-C ends a run early and keeps what is served; the exit code is then 130.
    """
    from inferplan.report import canvas, files
    from inferplan.report.screen import console
    from inferplan.report.serving import CSV_COLUMNS, parquet_bytes, progress, record, rows_text, series_text, show_served
    from inferplan.serving.summary import summary

    if plot:
        canvas.ending(plot)
    check_html(html)
    for path in (csv, parquet, series, plot, html):
        if path and traffic.trace:
            files.refuse_same(path, traffic.trace)
    ready = o.prepared(asked, traffic)
    with progress(len(ready.requests), quiet=quiet) as told:
        served = ready.run(ready.requests, series=bool(series or plot or html), progress=told)
    found = summary(served, ready.slo, ready.likely)
    if csv:
        files.write_text(csv, rows_text(served, CSV_COLUMNS))
    if parquet:
        files.write_bytes(parquet, parquet_bytes(served, parquet))
    if series:
        files.write_text(series, series_text(served))
    if plot:
        from inferplan.report.serving_plots import plot_served

        canvas.write_picture(plot_served(served, ready.slo, likely=ready.likely), plot)
    write_html(html, lambda: _page(ready, served, found))
    if as_json:
        typer.echo(files.json_text(record(ready.estimate, served, found, ready.source)))
    else:
        show_served(ready.estimate, served, found, ready.source, console())
    return INTERRUPTED if served.partial else 0


def _page(ready: o.Prepared, served: Served, found: dict[str, Any]) -> Page:
    from inferplan.report.html.simulate import page

    return page(ready.estimate, served, found, ready.source, ready.slo)
