"""Pages of answers whose screen says all: its text and tables, with what pictures there are. Knows no quantity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from inferplan.report.html.page import Bars, Chart, Fact, Page
from inferplan.report.html.recorded import lines, recorded, told

if TYPE_CHECKING:
    from rich.console import Console


def page(
    command: str, show: Callable[[Console], None], *, answer: str = "", figures: Sequence[Chart | Bars] = (), facts: Sequence[Fact] = ()
) -> Page:
    """The page of a screen; without a sentence of its own its first line after the headline, or the headline, is the answer."""
    screen = told(recorded(show), answer)
    first = lines(answer) or [w for w in screen.why if isinstance(w, str)][:1] or [screen.headline]
    rest = [w for w in screen.why if w not in first]
    return Page(command, screen.headline or first[0], "\n".join(first), rest, [("", facts)], screen.asked, figures, screen.rest)
