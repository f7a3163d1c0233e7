"""How text reaches a terminal: width, colour, tables. Knows no quantity."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
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


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None, right: Iterable[int] = ()) -> Grid:
    """A plain table; the columns numbered in `right` are aligned to the right."""
    return Grid(tuple(columns), [["" if cell is None else str(cell) for cell in row] for row in rows], title, frozenset(right))


@dataclass(frozen=True, slots=True)
class Grid:
    """A plain table: written out line by line where it fits the width, which is much quicker, and folded by rich where it does not."""

    columns: tuple[str, ...]
    rows: list[list[str]]
    title: str | None
    right: frozenset[int]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        """Lines of text, or rich's own table."""
        from rich.segment import Segment

        head = any(self.columns)
        lines = [list(self.columns), *self.rows] if head else self.rows
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        simple = all(cell.isascii() and cell.isprintable() for line in lines for cell in line)
        gap = next((g for g in ((3, 2, 1) if head else (2,)) if sum(widths) + g * (len(widths) - 1) <= options.max_width), 0)
        if not simple or not gap:
            yield self._folded()
            return
        if self.title:
            yield Segment(self.title + "\n", console.get_style("bold"))
        for i, line in enumerate(lines):
            yield Segment(self._line(line, widths, gap) + "\n", console.get_style("bold") if head and i == 0 else None)
            if head and i == 0:
                yield Segment("\u2500" * (sum(widths) + gap * (len(widths) - 1)) + "\n")

    def _line(self, cells: list[str], widths: list[int], gap: int) -> str:
        padded = (c.rjust(w) if i in self.right else c.ljust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True)))
        return (" " * gap).join(padded).rstrip()

    def _folded(self) -> Table:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        bare = not any(self.columns)
        found = Table(
            box=None if bare else box.SIMPLE_HEAD, show_header=not bare, title=self.title, title_justify="left", title_style="bold",
            pad_edge=False, show_edge=False,
        )  # fmt: skip
        for i, column in enumerate(self.columns):
            found.add_column(column, justify="right" if i in self.right else "left", overflow="fold")
        for row in self.rows:
            found.add_row(*map(Text, row))
        return found
