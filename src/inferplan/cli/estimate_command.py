"""`inferplan estimate`: options in, one screen or record out; several models, parts or precisions make a comparison. Does no arithmetic."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Annotated, Any

import typer

from inferplan.cli import options as o

app = typer.Typer(add_completion=False)


@app.command()
def estimate(
    model: o.Model,
    gpu: o.Gpu,
    dtype: o.Dtype = "auto",
    kv_dtype: o.KvDtype = "auto",
    batch: o.Batch = 1,
    isl: o.Isl = 1024,
    osl: o.Osl = 256,
    cached: o.Cached = 0,
    gpus: o.Gpus = None,
    tp: o.Tp = None,
    pp: o.Pp = 1,
    dp: o.Dp = 1,
    ep: o.Ep = 1,
    dcp: o.Dcp = 1,
    engine: o.EngineName = "vllm",
    engine_version: o.EngineVersion = None,
    max_model_len: o.MaxLen = None,
    utilization: o.Utilization = None,
    efficiency: o.EfficiencyName = "default",
    network: o.Network = None,
    memory: o.MemorySize = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON, in base units.")] = False,
    csv: Annotated[str | None, typer.Option("--csv", help="Write the record as CSV rows to FILE.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also every operator of a decode step.")] = False,
) -> int:
    """Memory and time of a model on a part, beside the physical floor.

    --model, --gpu and --dtype take several values with commas: the answer is then a comparison.
    """
    given = o.Asked(
        model, gpu, dtype, kv_dtype, batch, isl, osl, cached, gpus, tp, pp, dp, ep, dcp, engine, engine_version, max_model_len, utilization,
        efficiency, network, memory,
    )  # fmt: skip
    asked = [
        replace(given, model=m, gpu=g, dtype=d)
        for m, g, d in product(o.listed(model), o.listed(gpu), [dtype] if "=" in dtype else o.listed(dtype))
    ]
    return one(asked[0], as_json, csv, verbose) if len(asked) == 1 else several(asked, as_json, csv)


def one(asked: o.Asked, as_json: bool, csv: str | None, verbose: bool) -> int:
    """A single estimate."""
    from inferplan.report import files
    from inferplan.report.estimates import record, show_estimate
    from inferplan.report.screen import console

    found = asked.estimate()
    if csv:
        rows = [flat(record(found))]
        files.write_text(csv, files.csv_text(rows, list(rows[0])))
    if as_json:
        typer.echo(files.json_text(record(found)))
    else:
        show_estimate(found, console(), asked_model=asked.model, asked_gpu=asked.gpu, verbose=verbose)
    return 0 if found.fits else 1


def several(asked: list[o.Asked], as_json: bool, csv: str | None) -> int:
    """A comparison; done unless none of them fits."""
    from inferplan.report import files
    from inferplan.report.comparison import show_comparison
    from inferplan.report.estimates import record
    from inferplan.report.screen import console

    found = [a.estimate() for a in asked]
    records = [record(e) for e in found]
    if csv:
        rows = [flat(r) for r in records]
        files.write_text(csv, files.csv_text(rows, list(rows[0])))
    if as_json:
        typer.echo(files.json_text(records))
    else:
        show_comparison(found, console())
    return 0 if any(e.fits for e in found) else 1


def flat(record: dict[str, Any]) -> dict[str, Any]:
    """A record's plain values, and those of its passes under dotted names."""
    found = {k: v for k, v in record.items() if not isinstance(v, dict)}
    for name in ("prefill", "decode"):
        found |= {f"{name}.{k}": v for k, v in record[name].items()}
    return found
