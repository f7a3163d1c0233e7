"""`inferplan validate`: predictions beside the known values of a case file."""

from __future__ import annotations

from typing import Annotated

import typer

from inferplan.errors import SpecError

app = typer.Typer(add_completion=False)


@app.command()
def validate(
    cases: Annotated[str, typer.Argument(metavar="CASES.csv", help="A case file: see docs/case-files.md.")],
    by: Annotated[str, typer.Option("--by", help="Columns to group by, with commas.")] = "quantity",
    csv: Annotated[str | None, typer.Option("--csv", help="Write one row per case and quantity to FILE.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> int:
    """Compare predictions with the known values of a case file."""
    from inferplan.calibrate.cases import read_cases
    from inferplan.calibrate.validate import COLUMNS, outcomes
    from inferplan.report import files
    from inferplan.report.screen import console
    from inferplan.report.validation import record, show_validation

    if csv:
        files.refuse_same(csv, cases)
    found, columns = read_cases(cases)
    groups = [c.strip() for c in by.split(",") if c.strip()]
    for column in groups:
        if column not in (*columns, "quantity", "case"):
            raise SpecError("is not a column of the case file", field="--by", value=column)
    results = outcomes(found)
    if csv:
        own = [c for c in columns if c not in COLUMNS]
        files.write_text(csv, files.csv_text([o.row() for o in results], [*COLUMNS, *own]))
    if as_json:
        typer.echo(files.json_text(record(results, groups)))
    else:
        show_validation(results, groups, console())
    return 0
