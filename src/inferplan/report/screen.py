"""How text reaches a terminal: width, colour, tables. Knows no quantity."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

NARROWEST, WIDEST, PIPED = 40, 160, 100


def console(*, error: bool = False) -> Console:
    """A console on stdout (or stderr): no colour when piped or when NO_COLOR is set, 100 columns when piped."""
    from rich.console import Console

    stream = sys.stderr if error else sys.stdout
    tty = stream.isatty()
    width = shutil.get_terminal_size((PIPED, 40)).columns if tty or "COLUMNS" in os.environ else PIPED
    plain = not tty or "NO_COLOR" in os.environ
    return Console(
        file=stream, width=min(max(width, NARROWEST), WIDEST), no_color=plain, highlight=False, emoji=False, markup=False, soft_wrap=False
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None, right: Iterable[int] = ()) -> Table:
    """A plain table; the columns numbered in `right` are aligned to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    numbers = set(right)
    bare = not any(columns)
    found = Table(
        box=None if bare else box.SIMPLE_HEAD,
        show_header=not bare,
        title=title,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        show_edge=False,
    )
    for i, column in enumerate(columns):
        found.add_column(column, justify="right" if i in numbers else "left", overflow="fold")
    for row in rows:
        found.add_row(*(cell if isinstance(cell, Text) else Text("" if cell is None else str(cell)) for cell in row))
    return found
