"""`inferplan explain`: one number of an estimate, opened as a tree. Does no arithmetic."""

from __future__ import annotations

from typing import Annotated

import typer

from inferplan.cli import options as o
from inferplan.errors import SpecError

app = typer.Typer(add_completion=False)
Wanted = Annotated[str, typer.Argument(help="tpot, ttft, e2e, kv_bytes, weights, max_batch, mfu ...; a wrong word lists all.")]


@app.command()
@o.asks
def explain(
    quantity: Wanted,
    asked: o.Asked,
    depth: Annotated[int | None, typer.Option("--depth", help="Levels to show; unsaid: 3 on a screen, all in JSON.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the tree as JSON, in base units.")] = False,
) -> int:
    """Open one number of an estimate: its equation, its inputs, and where each of them comes from."""
    if depth is not None and depth < 0:
        raise SpecError("must be 0 or more", field="--depth", value=depth)
    return shown(quantity, asked, depth, as_json)


def shown(quantity: str, asked: o.Asked, depth: int | None, as_json: bool) -> int:
    """The tree on the screen or as JSON."""
    from inferplan.explain import explain as opened
    from inferplan.report import files
    from inferplan.report.explain import DEPTH, record, show_explanation
    from inferplan.report.screen import console

    found = asked.estimate()
    node = opened(quantity, found)
    if as_json:
        typer.echo(files.json_text(record(node, quantity, found, depth=depth)))
    else:
        show_explanation(node, found, console(), depth=DEPTH if depth is None else depth)
    return 0
