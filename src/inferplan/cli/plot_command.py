"""`inferplan plot`: the options of an estimate in, one picture in a file out. Does no arithmetic."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from inferplan.cli import options as o

app = typer.Typer(add_completion=False)


class Picture(StrEnum):
    """What can be drawn."""

    roofline = "roofline"
    breakdown = "breakdown"
    batch = "batch"
    context = "context"
    memory = "memory"


@app.command()
@o.asks
def plot(
    picture: Annotated[Picture, typer.Argument(help="roofline, breakdown, batch, context or memory")],
    output: Annotated[str, typer.Option("--output", "-o", help="File to write; its ending chooses PNG, SVG or PDF.")],
    asked: o.Asked,
) -> int:
    """Draw an estimate.

    roofline: operators of both phases against the roofs of the part. breakdown: where a prefill and a decode step go.
    batch, context: rates, times and cache as the load grows. memory: what lies in a device, beside the least it takes.
    """
    from inferplan.report import canvas, plots
    from inferplan.report.screen import console

    canvas.ending(output)
    result = asked.estimate()
    written = plots.write_picture(plots.PICTURES[picture.value](result), output)
    console(error=True).print(f"{written}: {picture.value} of {result.model.title} on {result.hardware.title}")
    return 0
