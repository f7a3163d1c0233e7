"""`inferplan plot`: the options of an estimate in, one picture in a file out. Does no arithmetic."""

from __future__ import annotations

from typing import Annotated

import typer

from inferplan.cli import options as o
from inferplan.errors import SpecError, near_misses

app = typer.Typer(add_completion=False)
PICTURES = ("roofline", "breakdown", "batch", "context", "memory")
ELSEWHERE = {
    "comparison": "compare", "plan": "plan", "latencies": "simulate", "load-curve": "load-curve", "batching": "batching",
    "formats": "quantize", "speculation": "speculate", "frontier": "pareto", "parity": "validate",
}  # fmt: skip
"""Pictures of other answers, and the commands whose --plot draws them."""


def _named(picture: str) -> str:
    """The picture that a word means; raises SpecError that says where another is made."""
    name = picture.lower()
    if name in PICTURES:
        return name
    command = ELSEWHERE.get(name) or (name if name in ELSEWHERE.values() else None)
    if command:
        raise SpecError(f"is drawn by the command that makes it: inferplan {command} ... --plot FILE", field="PICTURE", value=picture)
    told = near_misses(name, [*PICTURES, *ELSEWHERE], n=2, cutoff=0.5) or f"; one of {', '.join(PICTURES)}"
    raise SpecError(f"is no picture{told}", field="PICTURE", value=picture)


@app.command()
@o.asks
def plot(
    picture: Annotated[str, typer.Argument(help="roofline, breakdown, batch, context or memory", metavar="PICTURE")],
    output: Annotated[str, typer.Option("--output", "-o", help="File to write; its ending chooses PNG, SVG or PDF.")],
    asked: o.Asked,
) -> int:
    """Draw an estimate.

    \b
    roofline    operators against the roofs of the part
    breakdown   where a prefill and a decode step go
    batch       rates and times by requests at once
    context     times and cache as contexts grow
    memory      what lies in a device, and the least

    Pictures of other answers are drawn by the command that makes them:

    \b
    inferplan compare ... --plot FILE      times, room
    inferplan plan ... --plot FILE         cost, latency, use
    inferplan simulate ... --plot FILE     latencies, timeline
    inferplan load-curve ... --plot FILE   latency by load
    inferplan batching ... --plot FILE     both kinds
    inferplan quantize ... --plot FILE     by format
    inferplan speculate ... --plot FILE    the gain
    inferplan pareto ... --plot FILE       the frontier
    inferplan validate ... --plot FILE     parity
    """  # noqa: D301 - the backspace tells click to keep lines
    from inferplan.report import canvas, plots
    from inferplan.report.screen import console

    name = _named(picture)
    canvas.ending(output)
    result = asked.estimate()
    written = plots.write_picture(plots.PICTURES[name](result), output)
    console(error=True).print(f"{written}: {name} of {result.model.title} on {result.hardware.title}")
    return 0
