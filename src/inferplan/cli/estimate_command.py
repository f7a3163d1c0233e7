"""`inferplan estimate`: options in, one screen or record out; several models, parts or precisions make a comparison. Does no arithmetic."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Annotated

import typer

from inferplan.cli import options as o
from inferplan.cli.output import Html, check_html, write_html

if TYPE_CHECKING:
    from inferplan.deployment import Estimate
    from inferplan.report.html.page import Page

app = typer.Typer(add_completion=False)


@app.command()
@o.asks
def estimate(
    asked: o.Asked,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON, in base units.")] = False,
    csv: Annotated[str | None, typer.Option("--csv", help="Write the record as CSV rows to FILE.")] = None,
    plot: Annotated[str | None, typer.Option("--plot", help="Also draw the roofline, or several, into FILE: PNG, SVG or PDF.")] = None,
    html: Html = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also every operator of a decode step.")] = False,
) -> int:
    """Memory and time of a model on a part, beside the physical floor.

    --model, --gpu and --dtype take several values with commas: the answer is then a comparison.
    """
    check_html(html)
    if plot:
        from inferplan.report.canvas import ending

        ending(plot)
    dtypes = [asked.dtype] if "=" in asked.dtype else o.listed(asked.dtype)
    each = [replace(asked, model=m, gpu=g, dtype=d) for m, g, d in product(o.listed(asked.model), o.listed(asked.gpu), dtypes)]
    if len(each) == 1:
        return one(each[0], as_json, csv, plot, html, verbose)
    return several(each, as_json, csv, plot, html)


def one(asked: o.Asked, as_json: bool, csv: str | None, plot: str | None, html: str | None, verbose: bool) -> int:
    """A single estimate."""
    from inferplan.report import files
    from inferplan.report.estimates import flat, record, show_estimate
    from inferplan.report.screen import console

    found = asked.estimate()
    if plot:
        from inferplan.report import plots

        plots.write_picture(plots.plot_roofline(found), plot)
    write_html(html, lambda: _page(found, asked, verbose))
    if csv:
        rows = [flat(record(found))]
        files.write_text(csv, files.csv_text(rows, list(rows[0])))
    if as_json:
        typer.echo(files.json_text(record(found)))
    else:
        show_estimate(found, console(), asked_model=asked.model, asked_gpu=asked.gpu, verbose=verbose)
    return 0 if found.fits else 1


def _page(found: Estimate, asked: o.Asked, verbose: bool) -> Page:
    from inferplan.report.html.estimate import page

    return page(found, asked_model=asked.model, asked_gpu=asked.gpu, verbose=verbose)


def _compared(found: list[Estimate], asked: list[o.Asked]) -> Page:
    from inferplan.report.html.compare import page

    return page(found, [(a.model, a.gpu) for a in asked])


def several(asked: list[o.Asked], as_json: bool, csv: str | None, plot: str | None, html: str | None) -> int:
    """A comparison; done unless none of them fits."""
    from inferplan.report import files
    from inferplan.report.comparison import show_comparison
    from inferplan.report.estimates import flat, record
    from inferplan.report.screen import console

    found = [a.estimate() for a in asked]
    if plot:
        from inferplan.report import canvas
        from inferplan.report.comparison_plots import plot_comparison

        canvas.write_picture(plot_comparison(found), plot)
    records = [record(e) for e in found]
    write_html(html, lambda: _compared(found, asked))
    if csv:
        rows = [flat(r) for r in records]
        files.write_text(csv, files.csv_text(rows, list(rows[0])))
    if as_json:
        typer.echo(files.json_text(records))
    else:
        show_comparison(found, console())
    return 0 if any(e.fits for e in found) else 1
