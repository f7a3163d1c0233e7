"""`inferplan validate`: predictions beside the known values of a case file or the result of a benchmark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from inferplan.cli.app import INTERRUPTED
from inferplan.cli.case_options import Cases, Told
from inferplan.cli.options import asking
from inferplan.cli.output import Html, check_html, write_html
from inferplan.errors import SpecError

if TYPE_CHECKING:
    from inferplan.calibrate.validate import Outcome
    from inferplan.report.html.page import Page

app = typer.Typer(add_completion=False)


@app.command()
@asking(told=Told)
def validate(
    cases: Cases,
    told: Told,
    by: Annotated[str | None, typer.Option("--by", help="Columns to group by, with commas; unsaid: quantity, and statistic.")] = None,
    efficiency: Annotated[str, typer.Option("--efficiency", "--calibration", help="Times by: ideal, default, or a file.")] = "default",
    csv: Annotated[str | None, typer.Option("--csv", help="Write one row per case and quantity to FILE.")] = None,
    plot: Annotated[str | None, typer.Option("--plot", help="Draw predicted against known values into FILE, a PNG, SVG or PDF.")] = None,
    html: Html = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on the screen.")] = False,
) -> int:
    """Compare predictions with the known values of a case file or of a benchmark's result.

    Ctrl-C ends it early and shows what is done; the exit code is then 130.
    """
    from inferplan.calibrate.cases import read_cases
    from inferplan.calibrate.predict import Predictor
    from inferplan.calibrate.validate import COLUMNS, outcomes
    from inferplan.report import canvas, files
    from inferplan.report.screen import console
    from inferplan.report.serving import progress
    from inferplan.report.validation import record, show_validation
    from inferplan.roofline.efficiency import Efficiency

    if plot:
        canvas.ending(plot)
    check_html(html)
    for path in (csv, plot, html):
        if path:
            files.refuse_same(path, cases)
    found, columns = read_cases(cases, told.columns)
    groups = _groups(by, columns)
    first = groups[0] if by and groups[0] != "quantity" else "engine"
    with progress(len(found), quiet=quiet) as tell:
        results = outcomes(found, Predictor(Efficiency.load(efficiency)), progress=tell)
    if csv:
        own = [c for c in columns if c not in COLUMNS]
        files.write_text(csv, files.csv_text([o.row() for o in results], [*COLUMNS, *own]))
    if plot:
        from inferplan.report.parity import plot_parity

        canvas.write_picture(plot_parity(results, first), plot)
    write_html(html, lambda: _page(results, groups, first, str(cases), len(found)))
    if as_json:
        typer.echo(files.json_text(record(results, groups, cases=len(found))))
    else:
        show_validation(results, groups, console(), cases=len(found))
    return INTERRUPTED if len(results) < len(found) else 0


def _page(results: list[Outcome], groups: list[str], column: str, source: str, cases: int) -> Page:
    from inferplan.report.html.validate import page

    return page(results, groups, column, source, cases=cases)


def _groups(by: str | None, columns: list[str]) -> list[str]:
    """The columns to group by; unsaid those that tell kinds of values apart."""
    if by is None:
        return ["quantity", *(["statistic"] if "statistic" in columns else [])]
    groups = [c.strip() for c in by.split(",") if c.strip()]
    for column in groups:
        if column not in (*columns, "quantity", "case"):
            raise SpecError("is not a column of the case file", field="--by", value=column)
    if not groups:
        raise SpecError("must name a column", field="--by", value=by)
    return groups
