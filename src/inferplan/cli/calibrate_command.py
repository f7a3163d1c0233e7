"""`inferplan calibrate`: a calibration of one's own, fitted to the times of a case file or of a benchmark's result."""

from __future__ import annotations

from typing import Annotated

import typer

from inferplan.errors import SpecError

app = typer.Typer(add_completion=False)
INTERRUPTED = 130


@app.command()
def calibrate(
    cases: Annotated[str, typer.Argument(metavar="CASES", help="A case file (CSV) or a benchmark's result: see docs/case-files.md.")],
    output: Annotated[str, typer.Option("--output", "-o", help="The calibration to write, a YAML file.")],
    name: Annotated[str | None, typer.Option("--name", help="Its name; unsaid, that of the file.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="The model of all rows: goes before what the file says.")] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", "-g", help="The accelerator of all rows.")] = None,
    engine: Annotated[str | None, typer.Option("--engine", help="The serving engine of all rows.")] = None,
    engine_version: Annotated[str | None, typer.Option("--engine-version", help="Its release.")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", "-d", help="The precision of the weights of all rows.")] = None,
    kv_dtype: Annotated[str | None, typer.Option("--kv-dtype", help="The format of the KV cache of all rows.")] = None,
    tp: Annotated[int | None, typer.Option("--tp", help="Tensor parallel.", min=1)] = None,
    more: Annotated[list[str] | None, typer.Option("--set", help="COLUMN=VALUE: any other column of all rows; may be repeated.")] = None,
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
    from inferplan.calibrate.written import calibration_yaml
    from inferplan.cli.validate_command import columns_told
    from inferplan.report import files
    from inferplan.report.calibration import record, show_calibration
    from inferplan.report.screen import console
    from inferplan.report.serving import progress
    from inferplan.roofline.efficiency import Efficiency

    files.refuse_same(output, cases)
    if not output.endswith((".yaml", ".yml")):
        raise SpecError("must end in .yaml or .yml", field="--output", value=output)
    told: dict[str, str | int | None] = {
        "model": model, "gpu": gpu, "engine": engine, "engine_version": engine_version, "weights": dtype, "kv": kv_dtype, "tp": tp,
    }  # fmt: skip
    rows, _ = read_cases(cases, columns_told(told, more))
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
