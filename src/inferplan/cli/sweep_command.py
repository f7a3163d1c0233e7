"""`inferplan sweep`: a grid, every point a row. Does no arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from inferplan.cli.options import listed
from inferplan.cli.output import Html, check_html, write_html
from inferplan.cli.sweep_options import Grid, spans
from inferplan.errors import SpecError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from inferplan.planner.shards import Shard
    from inferplan.planner.space import Space
    from inferplan.planner.sweep import Chunk, Tally
    from inferplan.report.html.page import Page

app = typer.Typer(add_completion=False)
SMALL = 4  # chunks that are done sooner than processes start


@app.command()
@spans
def sweep(
    grid: Grid,
    path: Annotated[str | None, typer.Argument(metavar="[GRID.yaml]", help="A grid; options replace its axes.", show_default=False)] = None,
    out: Annotated[
        str | None, typer.Option("--out", "-o", help="Write a row per point to FILE.csv, .parquet or .xlsx; FOLDER.parquet/ keeps pieces.")
    ] = None,
    columns: Annotated[str | None, typer.Option("--columns", help="Only these columns, with commas.")] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", help="Processes; unsaid: one per processor for a large grid.")] = None,
    scheduler: Annotated[str | None, typer.Option("--scheduler", help="Dask workers: tcp://host:port, or local.")] = None,
    shard: Annotated[str | None, typer.Option("--shard", help="Only a share, such as 2/8; see inferplan merge.")] = None,
    html: Html = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what stands out as JSON, in base units.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on the screen.")] = False,
) -> int:
    """A grid of models, parts, formats, splits and loads: memory, times beside their floors, rates and price of every point.

    With --out the sweep can be killed at any time: the same command goes on where it stopped. The exit code is 1 where nothing fits.
    """
    from inferplan.planner.carry import MAX_JOBS
    from inferplan.planner.shards import Shard
    from inferplan.report import files
    from inferplan.report.screen import console
    from inferplan.report.sweep import record, show_sweep

    if jobs is not None and not 1 <= jobs <= MAX_JOBS:
        raise SpecError(f"must be from 1 to {MAX_JOBS:,}", field="--jobs", value=jobs)
    if shard and not out:
        raise SpecError("needs --out, whose pieces are to be merged", field="--shard", value=shard)
    if jobs is not None and scheduler not in (None, "local"):
        raise SpecError("is of no account with a scheduler, whose workers do the work", field="--jobs", value=jobs)
    check_html(html)
    space, share = grid.space(path), Shard.parse(shard) if shard else Shard()
    chosen = None if columns is None else tuple(listed(columns))
    if chosen is not None and not out:
        raise SpecError("needs --out, which has them", field="--columns", value=columns)
    with _executor(scheduler, jobs) as executor:
        options = {"executor": executor, "jobs": 1 if executor is not None else jobs, "quiet": quiet}
        found = written(space, share, out, chosen, **options) if out else tallied(space, **options)
    if found is None:
        return 0
    write_html(html, lambda: _page(found, out))
    if as_json:
        typer.echo(files.json_text(record(found, out)))
    else:
        show_sweep(found, out, console())
    return 0 if found.fitting else 1


def _page(found: Tally, out: str | None) -> Page:
    from inferplan.report.html.screens import swept

    return swept(found, out)


def _executor(scheduler: str | None, jobs: int | None) -> AbstractContextManager[Any]:
    from contextlib import nullcontext

    from inferplan.planner.carry import dask_executor

    return nullcontext() if scheduler is None else dask_executor(None if scheduler == "local" else scheduler, jobs=jobs)


def _jobs(jobs: int | None, chunks: int) -> int:
    from inferplan.planner.carry import cores

    return jobs if jobs is not None else cores() if chunks > SMALL else 1


def _chunk(space: Space) -> Chunk:
    from inferplan.planner.sweep import Chunk

    return Chunk(space, space.digest())


def tallied(space: Space, *, executor: Any, jobs: int | None, quiet: bool) -> Tally:
    """What stands out of a grid, without its rows."""
    from inferplan.planner.carry import carry
    from inferplan.planner.sweep import Counting, Layout, Tally
    from inferplan.report.serving import progress

    total, parts = Layout.of(space).chunks, {}
    with progress(total, quiet=quiet) as told:
        for number, tally in carry(Counting(_chunk(space)), range(total), executor=executor, jobs=_jobs(jobs, total)):
            parts[number] = tally
            if told:
                told(len(parts), total)
    found = Tally()
    for number in range(total):
        found.add(parts[number])
    return found


def written(
    space: Space, share: Shard, out: str, columns: tuple[str, ...] | None, *, executor: Any, jobs: int | None, quiet: bool
) -> Tally | None:
    """What stands out of a grid, once its rows are written; None where pieces of other shares are still to come."""
    from inferplan.planner.carry import carry
    from inferplan.planner.shards import Manifest, missing
    from inferplan.planner.sweep import COLUMNS
    from inferplan.report.serving import progress
    from inferplan.report.sweep_files import Pieces, Target, Writing, finished

    target = Target.of(out, space.points)
    manifest = Manifest.of(space, columns or COLUMNS, target.ending)
    pieces = Pieces.begin(target.folder, manifest)
    done = pieces.done()
    todo = [number for number in share.chunks(manifest.chunks) if number not in done]
    work = Writing(_chunk(space), manifest.columns, pieces.ending)
    ended = len(done)
    if ended:
        typer.echo(f"{ended:,} of {manifest.chunks:,} pieces are there already", err=True)
    with progress(manifest.chunks, quiet=quiet) as told:
        for number, piece in carry(work, todo, executor=executor, jobs=_jobs(jobs, len(todo))):
            pieces.put(number, piece)
            ended += 1
            if told:
                told(ended, manifest.chunks)
    if share.of > 1:
        left = len(missing(pieces.done(), manifest.chunks))
        rest = f"{left:,} still to come" if left else "all are there"
        typer.echo(f"Shard {share.number}/{share.of} is done: {ended:,} of {manifest.chunks:,} pieces in {target.folder}, {rest}.")
        typer.echo(f"See also: inferplan merge {target.folder} ... --out {target.path}")
        return None
    return finished([pieces], target, keep=False)
