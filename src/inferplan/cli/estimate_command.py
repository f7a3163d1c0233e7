"""`inferplan estimate`: options in, one screen or record out. Does no arithmetic."""

from __future__ import annotations

from typing import Annotated

import typer

from inferplan.errors import SpecError

app = typer.Typer(add_completion=False)


@app.command()
def estimate(
    model: Annotated[str, typer.Option("--model", "-m", help="Catalog name, Hub id, or a path to YAML, config.json, GGUF or a folder.")],
    gpu: Annotated[str, typer.Option("--gpu", "-g", help="Name, alias or path of an accelerator.")],
    dtype: Annotated[
        str, typer.Option("--dtype", "-d", help="Precision of the weights: bf16, fp8, awq, q4_k_m ...; auto: as the checkpoint.")
    ] = "auto",
    kv_dtype: Annotated[str, typer.Option("--kv-dtype", help="Format of the KV cache; auto: as the precision says.")] = "auto",
    batch: Annotated[int, typer.Option("--batch", "-b", help="Sequences decoded together.")] = 1,
    isl: Annotated[int, typer.Option("--isl", help="Input tokens per request.")] = 1024,
    osl: Annotated[int, typer.Option("--osl", help="Output tokens per request.")] = 256,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON, in base units.")] = False,
    csv: Annotated[str | None, typer.Option("--csv", help="Write the record as one CSV row to FILE.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also where a decode step goes.")] = False,
) -> int:
    """Memory, bytes per token and the ideal roofline of prefill and decode for a model on one part."""
    from inferplan.deployment import estimate as estimated
    from inferplan.readers.opening import open_model
    from inferplan.report import files
    from inferplan.report.estimates import record, show_estimate
    from inferplan.report.screen import console
    from inferplan.specs.hardware import Accelerator
    from inferplan.specs.precision import Precision

    opened = open_model(model)
    precision = Precision.named(
        opened.precision or opened.model.dtype if dtype == "auto" else dtype, kv=None if kv_dtype == "auto" else kv_dtype
    )
    part = Accelerator.find(gpu)
    for option, value in (("--isl", isl), ("--osl", osl), ("--batch", batch)):
        if value < 1:
            raise SpecError("must be 1 or more", field=option, value=value)
    result = estimated(opened.model, part, precision, input_tokens=isl, output_tokens=osl, batch=batch)
    found = record(result)
    if csv:
        flat = {k: v for k, v in found.items() if not isinstance(v, dict)}
        files.write_text(csv, files.csv_text([flat], list(flat)))
    if as_json:
        typer.echo(files.json_text(found))
    else:
        show_estimate(result, console(), asked_model=model, asked_gpu=gpu, verbose=verbose)
    return 0 if found["fits"] else 1
