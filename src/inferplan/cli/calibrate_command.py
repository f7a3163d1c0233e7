"""`inferplan calibrate`: a calibration of one's own, fitted to the times of a case file or of a benchmark's result."""

from __future__ import annotations

from typing import Annotated

import typer

from inferplan.cli.app import INTERRUPTED
from inferplan.cli.case_options import Cases, Told
from inferplan.cli.options import asking
from inferplan.errors import SpecError

app = typer.Typer(add_completion=False)


@app.command()
@asking(told=Told)
def calibrate(
    cases: Cases,
    told: Told,
    output: Annotated[str, typer.Option("--output", "-o", help="The calibration to write, a YAML file.")],
    name: Annotated[str | None, typer.Option("--name", help="Name of the calibration; unsaid: that of the file.")] = None,
    most: Annotated[int, typer.Option("--rows", help="Fit to so many rows, evenly spread over the file.", min=1)] = 300,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was fitted as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on the screen.")] = False,
) -> int:
    """Fit the efficiencies of the parts and the overheads of the engines in a case file, over the shipped calibration.

    Says which of them the rows identify; the others stay near what is shipped. `--efficiency FILE` uses the result with any command.
    Ctrl-C keeps the best fit so far; the exit code is then 130.
    """
    import datetime

    from inferplan.calibrate.cases import read_cases
    from inferplan.calibrate.fit import calibrate as fit
    from inferplan.calibrate.fit import spread_over
    from inferplan.report import files
    from inferplan.report.calibration import record, show_calibration
    from inferplan.report.calibration_file import calibration_yaml
    from inferplan.report.screen import console
    from inferplan.report.serving import progress
    from inferplan.roofline.efficiency import Efficiency

    files.refuse_same(output, cases)
    if not output.endswith((".yaml", ".yml")):
        raise SpecError("must end in .yaml or .yml", field="--output", value=output)
    rows, _ = read_cases(cases, told.columns)
    chosen = spread_over(rows, most)
    with progress(len(chosen), quiet=quiet) as tell:
        found = fit(chosen, Efficiency.default(), progress=tell)
    source, today = files.stem(cases), datetime.date.today().isoformat()
    files.write_text(output, calibration_yaml(found, name=name or files.stem(output), source=source, date=today))
    if as_json:
        typer.echo(files.json_text(record(found)))
    else:
        show_calibration(found, console(), rows=len(rows), output=output)
    return INTERRUPTED if found.partial else 0
