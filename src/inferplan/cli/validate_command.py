"""`inferplan validate`: predictions beside the known values of a case file or the result of a benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from inferplan.cli.app import INTERRUPTED
from inferplan.errors import SpecError

app = typer.Typer(add_completion=False)
KEPT = ("case", "quantity", "value", "unit")


@app.command()
def validate(
    cases: Annotated[str, typer.Argument(metavar="CASES", help="A case file (CSV) or a benchmark's result: see docs/case-files.md.")],
    model: Annotated[str | None, typer.Option("--model", "-m", help="The model of all rows: goes before what the file says.")] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", "-g", help="The accelerator of all rows.")] = None,
    engine: Annotated[str | None, typer.Option("--engine", help="The serving engine of all rows.")] = None,
    engine_version: Annotated[str | None, typer.Option("--engine-version", help="Its release.")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", "-d", help="The precision of the weights of all rows.")] = None,
    kv_dtype: Annotated[str | None, typer.Option("--kv-dtype", help="The format of the KV cache of all rows.")] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", help="Devices.", min=1)] = None,
    tp: Annotated[int | None, typer.Option("--tp", help="Tensor parallel.", min=1)] = None,
    pp: Annotated[int | None, typer.Option("--pp", help="Pipeline stages.", min=1)] = None,
    dp: Annotated[int | None, typer.Option("--dp", help="Attention data parallel groups.", min=1)] = None,
    ep: Annotated[int | None, typer.Option("--ep", help="Ways in which experts are dealt out.", min=1)] = None,
    more: Annotated[list[str] | None, typer.Option("--set", help="COLUMN=VALUE: any other column of all rows; may be repeated.")] = None,
    by: Annotated[str | None, typer.Option("--by", help="Columns to group by, with commas; unsaid: quantity, and statistic.")] = None,
    efficiency: Annotated[str, typer.Option("--efficiency", help="Calibration of times: ideal, default, or a file.")] = "default",
    csv: Annotated[str | None, typer.Option("--csv", help="Write one row per case and quantity to FILE.")] = None,
    plot: Annotated[str | None, typer.Option("--plot", help="Draw predicted against known values into FILE, a PNG, SVG or PDF.")] = None,
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
    for path in (csv, plot):
        if path:
            files.refuse_same(path, cases)
    told: dict[str, str | int | None] = {
        "model": model, "gpu": gpu, "engine": engine, "engine_version": engine_version, "weights": dtype, "kv": kv_dtype, "gpus": gpus,
        "tp": tp, "pp": pp, "dp": dp, "ep": ep,
    }  # fmt: skip
    found, columns = read_cases(cases, columns_told(told, more))
    groups = _groups(by, columns)
    with progress(len(found), quiet=quiet) as tell:
        results = outcomes(found, Predictor(Efficiency.load(efficiency)), progress=tell)
    if csv:
        own = [c for c in columns if c not in COLUMNS]
        files.write_text(csv, files.csv_text([o.row() for o in results], [*COLUMNS, *own]))
    if plot:
        from inferplan.report.parity import plot_parity

        first = groups[0] if by and groups[0] != "quantity" else "engine"
        canvas.write_picture(plot_parity(results, first), plot)
    if as_json:
        typer.echo(files.json_text(record(results, groups, cases=len(found))))
    else:
        show_validation(results, groups, console(), cases=len(found))
    return INTERRUPTED if len(results) < len(found) else 0


def columns_told(told: Mapping[str, str | int | None], more: list[str] | None) -> dict[str, str]:
    """What options say of columns, those of `--set` among them."""
    found = {name: str(value) for name, value in told.items() if value}
    for text in more or []:
        column, sign, value = text.partition("=")
        if not sign or not column.strip() or not value.strip():
            raise SpecError("must be COLUMN=VALUE", field="--set", value=text)
        if column.strip() in KEPT:
            raise SpecError("is each row's own", field="--set", value=text)
        found[column.strip()] = value.strip()
    return found


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
