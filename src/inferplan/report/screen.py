"""How text reaches a terminal: width, colour, tables. Knows no quantity."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table

NARROWEST, WIDEST, PIPED = 40, 160, 100
LEAST = 16  # characters of a last column that are enough to fold it


def console(*, error: bool = False) -> Console:
    """A console on stdout (or stderr), 100 columns wide when piped.

    No colour when piped, unless FORCE_COLOR is set, nor where NO_COLOR is; either counts where it is not empty, and NO_COLOR first.
    """
    stream = sys.stderr if error else sys.stdout
    tty = stream.isatty()
    width = shutil.get_terminal_size((PIPED, 40)).columns if tty or "COLUMNS" in os.environ else PIPED
    width = min(max(width, NARROWEST), WIDEST)
    plain = bool(os.environ.get("NO_COLOR"))
    if tty or (os.environ.get("FORCE_COLOR") and not plain):
        return rich_console(stream, width, plain=plain, terminal=True)
    return cast("Console", Plain(stream, width))


def rich_console(stream: Any, width: int, *, plain: bool, terminal: bool = False) -> Console:
    """Rich's console with nothing guessed from the text, nor from where it runs."""
    from rich.console import Console

    look: Any = {"highlight": False, "emoji": False, "markup": False, "force_jupyter": False}
    if not terminal:
        look |= {"color_system": None}
    return Console(file=stream, width=width, no_color=plain, force_terminal=terminal, **look)


class Bold(str):
    """A headline."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Plain:
    """What a pipe gets: plain lines, written without loading rich; whatever is more than that is left to rich."""

    stream: Any
    width: int

    def print(self, piece: Any = "", *, style: str | None = None) -> None:
        """Write a text, wrapped to the width, a table, or anything that rich can show."""
        lines = piece.lines(self.width) if isinstance(piece, Grid) else self._wrapped(piece) if isinstance(piece, str) else None
        if lines is None:
            rich_console(self.stream, self.width, plain=True).print(piece, style=style)
        else:
            self.stream.write("\n".join(lines) + "\n")

    def _wrapped(self, text: str) -> list[str] | None:
        lines = text.split("\n")
        if not all(line.isascii() and line.isprintable() for line in lines):
            return None
        return [part for line in lines for part in (textwrap.wrap(line, self.width, break_on_hyphens=False) or [""])]


def put(pieces: Iterable[Any], out: Console) -> None:
    """Print the pieces of a screen from top to bottom, headlines in bold."""
    for piece in pieces:
        out.print(piece, style="bold" if isinstance(piece, Bold) else None)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None, right: Iterable[int] = ()) -> Grid:
    """A plain table; the columns numbered in `right` are aligned to the right."""
    return Grid(tuple(columns), [["" if cell is None else str(cell) for cell in row] for row in rows], title, frozenset(right))


def _plain(lines: Iterable[Iterable[str]]) -> bool:
    return all(cell.isascii() and cell.isprintable() for line in lines for cell in line)


@dataclass(frozen=True, slots=True)
class Grid:
    """A plain table: written out line by line where it fits the width, which is much quicker, and folded by rich where it does not."""

    columns: tuple[str, ...]
    rows: list[list[str]]
    title: str | None
    right: frozenset[int]

    def lines(self, width: int) -> list[str] | None:
        """The table line by line, or None where it does not fit or holds more than plain text."""
        head = any(self.columns)
        every = [list(self.columns), *self.rows] if head else self.rows
        widths = [max(map(len, cells)) for cells in zip(*every, strict=True)]
        gaps = (3, 2, 1) if head else (2,)
        gap = next((g for g in gaps if sum(widths) + g * (len(widths) - 1) <= width), 0)
        if not gap:
            gap, widths[-1] = gaps[0], width - sum(widths[:-1]) - gaps[0] * (len(widths) - 1)
        foldable = len(widths) - 1 not in self.right and widths[-1] >= LEAST
        if not (foldable or widths[-1] > 0 and max(map(len, (line[-1] for line in every))) <= widths[-1]) or not _plain(every):
            return None
        found = [folded for line in every for folded in self._folded_lines(line, widths, gap)]
        rule = ["\u2500" * (sum(widths) + gap * (len(widths) - 1))] if head else []
        return [*([self.title] if self.title else []), *found[: len(rule)], *rule, *found[len(rule) :]]

    def _folded_lines(self, cells: list[str], widths: list[int], gap: int) -> list[str]:
        """A row, its last cell on as many lines as it takes."""
        ends = textwrap.wrap(cells[-1], widths[-1], break_on_hyphens=False) or [""]
        blank = [""] * (len(cells) - 1)
        return [self._line([*(blank if i else cells[:-1]), end], widths, gap) for i, end in enumerate(ends)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        """Lines of text, or rich's own table."""
        from rich.segment import Segment

        lines = self.lines(options.max_width)
        if lines is None:
            yield self._folded()
            return
        bold = console.get_style("bold")
        heads = bool(self.title) + any(self.columns)
        for i, line in enumerate(lines):
            yield Segment(line + "\n", bold if i < heads else None)

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
