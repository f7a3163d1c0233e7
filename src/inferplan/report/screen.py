"""How text reaches a terminal or a pipe: width, colour, wrapping. Knows no quantity."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from inferplan.errors import escaped
from inferplan.report.grid import Grid, wrapped

if TYPE_CHECKING:
    from rich.console import Console

NARROWEST, WIDEST, PIPED = 40, 160, 100


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

    class Terminal(Console):
        """Rich's console, which would let control characters of a text through to the terminal."""

        def print(self, *pieces: Any, **how: Any) -> None:
            """As rich prints, with the lines of texts escaped."""
            super().print(*("\n".join(map(escaped, p.split("\n"))) if isinstance(p, str) else p for p in pieces), **how)

    look: Any = {"highlight": False, "emoji": False, "markup": False, "force_jupyter": False}
    if not terminal:
        look |= {"color_system": None}
    return Terminal(file=stream, width=width, no_color=plain, force_terminal=terminal, **look)


class Bold(str):
    """A headline."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Plain:
    """What a pipe gets: plain lines without blanks at their ends, written without loading rich for texts and tables."""

    stream: Any
    width: int

    def print(self, piece: Any = "", *, style: str | None = None) -> None:
        """Write a text, wrapped to the width, a table, or anything that rich can show."""
        if isinstance(piece, Grid):
            lines = piece.lines(self.width)
        elif isinstance(piece, str):
            lines = [part for line in piece.split("\n") for part in wrapped(escaped(line), self.width)]
        else:
            lines = [line.rstrip() for line in self._rendered(piece)]
        self.stream.write("\n".join(lines) + "\n")

    def _rendered(self, piece: Any) -> list[str]:
        import io

        out = io.StringIO()
        rich_console(out, self.width, plain=True).print(piece)
        return out.getvalue().rstrip("\n").split("\n")


def put(pieces: Iterable[Any], out: Console) -> None:
    """Print the pieces of a screen from top to bottom, headlines in bold."""
    for piece in pieces:
        out.print(piece, style="bold" if isinstance(piece, Bold) else None)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None, right: Iterable[int] = ()) -> Grid:
    """A plain table; the columns numbered in `right` are aligned to the right."""
    return Grid(tuple(columns), [["" if cell is None else str(cell) for cell in row] for row in rows], title, frozenset(right))
