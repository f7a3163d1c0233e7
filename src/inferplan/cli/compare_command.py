"""`inferplan compare`: the same load on several models, parts or precisions, side by side."""

from __future__ import annotations

import typer

from inferplan.cli.estimate_command import estimate

SAID = """The same load on several models, parts or precisions, side by side.

Give several values with commas to --model, --gpu or --dtype: each combination is a row. All else, such as --gpus, is the same for all.
"""
app = typer.Typer(add_completion=False)
app.command(help=SAID)(estimate)
