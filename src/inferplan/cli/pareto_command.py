"""`inferplan pareto`: the frontier of a sweep. Does no arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inferplan.cli.options import listed
from inferplan.cli.output import Html, check_html, write_html
from inferplan.cli.sweep_options import Grid, spans
from inferplan.errors import SpecError

if TYPE_CHECKING:
    import pandas as pd

    from inferplan.report.html.page import Page

app = typer.Typer(add_completion=False)
COST = ("e2e_s", "sustained_usd_per_million_tokens")


@app.command()
@spans
def pareto(
    grid: Grid,
    path: Annotated[
        str | None, typer.Argument(metavar="[SWEEP|GRID.yaml]", help="A file or folder of inferplan sweep, or a grid.", show_default=False)
    ] = None,
    x: Annotated[str | None, typer.Option("--x", help="First figure, a column; unsaid: decode_tokens_per_s, speed for one user.")] = None,
    y: Annotated[str | None, typer.Option("--y", help="Second figure; unsaid: sustained_tokens_per_s_per_gpu.")] = None,
    cost: Annotated[bool, typer.Option("--cost", help="Price of tokens against the time of a request.")] = False,
    by: Annotated[str | None, typer.Option("--by", help="A frontier for each of these; unsaid: model and lengths; none: one.")] = None,
    out: Annotated[str | None, typer.Option("--out", "-o", help="Write all rows, flagged as pareto, to FILE.csv or .parquet.")] = None,
    plot: Annotated[str | None, typer.Option("--plot", help="Draw rows and frontiers into FILE, a PNG, SVG or PDF.")] = None,
    html: Html = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", help="Processes.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the frontier as JSON, in base units.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on the screen.")] = False,
) -> int:
    """The configurations that no other beats: by default output tokens per second and device against the speed that one user sees.

    The exit code is 1 where nothing fits.
    """
    from inferplan.planner.pareto import FLAG, X, Y
    from inferplan.planner.pareto import pareto as flagged
    from inferplan.report import canvas, files
    from inferplan.report.screen import console
    from inferplan.report.sweep import frontier_record, show_frontier

    if cost and (x or y):
        raise SpecError("names both figures; leave it out, or --x and --y", field="--cost")
    first, second = COST if cost else (x or X, y or Y)
    if plot:
        canvas.ending(plot)
    check_html(html)
    if out and Path(out).suffix.lower() not in (".csv", ".parquet"):
        raise SpecError("must end in .csv or .parquet", field="--out", value=out)
    for written in (out, plot, html):
        if written and path:
            files.refuse_same(written, path)
    found = flagged(_rows(grid, path, jobs, quiet), x=first, y=second, by=_groups(by))
    if out:
        _write(found, out)
    if plot:
        from inferplan.report.sweep_plots import plot_frontier

        canvas.write_picture(plot_frontier(found, first, second), plot)
    write_html(html, lambda: _page(found, first, second))
    if as_json:
        typer.echo(files.json_text(frontier_record(found, first, second)))
    else:
        show_frontier(found, first, second, console())
    return 0 if found[FLAG].any() else 1


def _page(found: pd.DataFrame, x: str, y: str) -> Page:
    from inferplan.report.html.screens import frontier

    return frontier(found, x, y)


def _groups(by: str | None) -> list[str] | None:
    return None if by is None else [] if by == "none" else listed(by)


def _rows(grid: Grid, path: str | None, jobs: int, quiet: bool) -> pd.DataFrame:
    """The rows of a sweep's file, or of a grid that is swept now."""
    from inferplan.planner.sweep import Layout, sweep
    from inferplan.report.serving import progress
    from inferplan.report.sweep_files import read_table

    if path is None or Path(path).suffix.lower() in (".yaml", ".yml"):
        space = grid.space(path)
        with progress(Layout.of(space).chunks, quiet=quiet) as told:
            return sweep(space, jobs=jobs, progress=told)
    if grid != Grid():
        raise SpecError("is swept already; options of a grid go with none or a .yaml", file=path)
    return read_table(Path(path))


def _write(found: pd.DataFrame, out: str) -> None:
    from inferplan.report import files

    if out.lower().endswith(".csv"):
        files.write_text(out, found.to_csv(index=False))
        return
    import io

    data = io.BytesIO()
    try:
        found.to_parquet(data, index=False)
    except ImportError:
        raise SpecError("needs pyarrow to be written: pip install 'inferplan[parquet]'", field="--out", value=out) from None
    files.write_bytes(out, data.getvalue())
