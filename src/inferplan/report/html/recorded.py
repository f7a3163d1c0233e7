"""The screen of an answer, taken up piece by piece in place of a terminal, so that page and screen say the same. Knows no quantity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from inferplan.report.grid import Grid
from inferplan.report.html.page import Titled
from inferplan.report.screen import Bold

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(slots=True)
class Recorder:
    """Takes what a console would print; headlines become Bold."""

    pieces: list[Any] = field(default_factory=list)

    def print(self, piece: Any = "", *, style: str | None = None) -> None:
        """Keep a piece."""
        self.pieces.append(Bold(piece) if style == "bold" and isinstance(piece, str) else piece)


def recorded(show: Callable[[Console], None]) -> list[Any]:
    """The pieces that a screen prints, from top to bottom."""
    found = Recorder()
    show(cast("Console", found))
    return found.pieces


@dataclass(frozen=True, slots=True)
class Told:
    """A screen taken apart: its headline, what stands before the answer, the lines after it up to the first table, and the rest."""

    headline: str
    asked: Sequence[Titled | str]
    why: Sequence[str]
    rest: Sequence[Titled | str]


def told(pieces: Iterable[Any], answer: str = "") -> Told:
    """Take a screen apart at its sentence, which is left out; without one all that follows the headline comes after it.

    A line after an empty one, right before a table, is that table's heading.
    """
    flow = list(_flow(pieces))
    headline = next((str(piece) for piece in flow if isinstance(piece, Bold)), "")
    body = [piece for piece in flow if not (isinstance(piece, Bold) and piece == headline)]
    at = next((i for i, piece in enumerate(body) if answer and isinstance(piece, str) and piece.strip() == answer.strip()), -1)
    asked, after = body[: max(at, 0)], body[at + 1 :]
    first = next((i for i, piece in enumerate(after) if isinstance(piece, Titled)), len(after))
    return Told(headline, _lined(asked), _lined(after[:first]), _lined(after[first:]))


def _lined(pieces: Iterable[Any]) -> list[Any]:
    """The same with each text as its lines."""
    return [part for piece in pieces for part in ([piece] if isinstance(piece, Titled) else lines(piece))]


def lines(text: str) -> list[str]:
    """The lines of a text that say something."""
    return [line.strip() for line in text.split("\n") if line.strip()]


def _flow(pieces: Iterable[Any]) -> Iterable[Any]:
    """Tables with their headings, and texts; empty lines are left out."""
    held: str | None = None
    for piece in pieces:
        if isinstance(piece, Grid):
            heading = held if held is not None and _heads(held) else None
            if held is not None and heading is None:
                yield held
            yield Titled((heading or "").strip() or piece.title or piece.columns[0], piece)
            held = None
            continue
        if held is not None:
            yield held
        held = piece if isinstance(piece, str) and piece.strip() else None
    if held is not None:
        yield held


def _heads(text: str) -> bool:
    """Whether a text is the heading of what follows: one line after an empty one, that is no sentence."""
    return not isinstance(text, Bold) and text.startswith("\n") and "\n" not in text.strip() and not text.rstrip().endswith(".")
