"""How a result shows itself where a notebook asks: it hands itself to the screens of the top floor. Knows no screen and no quantity.

This is the one call upwards in the house. It goes by name, and only when something is looked at.
"""

from __future__ import annotations

import importlib
from typing import Any

FACES = "inferplan.report.faces"


class Shown:
    """A base for results: HTML in a notebook, plain text where IPython prints."""

    __slots__ = ()

    def __init_subclass__(cls, **named: Any) -> None:
        """IPython asks a class itself before its bases, and would find the long `__repr__` of a dataclass there."""
        super().__init_subclass__(**named)
        cls._repr_pretty_ = Shown._repr_pretty_  # type: ignore[method-assign]

    def _repr_html_(self) -> str:
        """The screen of the command line as HTML: a headline, sentences, tables."""
        found: str = importlib.import_module(FACES).html_of(self)
        return found

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """The same as text."""
        printer.text(importlib.import_module(FACES).text_of(self))
