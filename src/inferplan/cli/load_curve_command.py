"""`inferplan load-curve`: latency against offered load, the knee, and the largest rate that meets limits. Does no arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from inferplan.cli import serving_options as o
from inferplan.cli.app import INTERRUPTED
from inferplan.cli.options import Asked
from inferplan.cli.output import Html, check_html, put_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from inferplan.deployment import Estimate
    from inferplan.report.html.page import Page
    from inferplan.serving.summary import LoadCurve

app = typer.Typer(add_completion=False)


@app.command()
@o.asks
def load_curve(
    asked: Asked,
    traffic: o.Traffic,
    points: Annotated[int, typer.Option("--points", help="Rates on the curve.")] = 10,
    most: Annotated[
        float | None, typer.Option("--most", help="Highest rate, per second; unsaid: a tenth above what is served at most.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the curve as JSON, in base units.")] = False,
    csv: Annotated[str | None, typer.Option("--csv", help="Write a row per rate to FILE.")] = None,
    plot: Annotated[str | None, typer.Option("--plot", help="Draw the curve into FILE, a PNG, SVG or PDF.")] = None,
    html: Html = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on the screen.")] = False,
) -> int:
    """Latency against offered load. The same requests come at each rate; with --slo also the largest rate that meets it.

    The exit code is 1 where no rate does.
    """
    from inferplan.report import canvas
    from inferplan.report.load_curve import CURVE_COLUMNS, curve_record, curve_rows, show_curve
    from inferplan.report.serving import progress
    from inferplan.serving.summary import curve_of

    if plot:
        canvas.ending(plot)
    check_html(html)
    ready = o.prepared(asked, traffic)
    with progress(points, quiet=quiet) as told:
        found = curve_of(ready.requests, ready.run, points=points, most=most, slo=ready.slo, progress=told, likely=ready.likely)
    put_out(
        as_json=as_json, csv=csv, plot=plot, record=lambda: curve_record(ready.estimate, found, ready.source),
        rows=lambda: curve_rows(found), columns=CURVE_COLUMNS, picture=lambda: _picture(ready.estimate, found),
        screen=lambda out: show_curve(ready.estimate, found, ready.source, out), html=html, page=lambda: _page(ready, found),
    )  # fmt: skip
    return INTERRUPTED if found.partial else 0


def _page(ready: o.Prepared, found: LoadCurve) -> Page:
    from inferplan.report.html.screens import curve

    return curve(ready.estimate, found, ready.source)


def _picture(e: Estimate, found: LoadCurve) -> Axes:
    from inferplan.report.serving_plots import plot_curve
    from inferplan.report.words import drawn_devices

    return plot_curve(found, (f"{e.model.title} on {drawn_devices(e)}{e.hardware.title}", f"{e.precision.summary}, {e.engine.title}"))
