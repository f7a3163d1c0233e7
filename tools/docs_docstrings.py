"""Docstrings of this project as Markdown: terms with their meaning indented below become lists, doctests become code. For mkdocstrings."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

TERM = re.compile(r"^(\w[\w, `]*)\n((?: {4}.*(?:\n|$))+)", re.MULTILINE)
DOCTEST = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


def as_markdown(text: str) -> str:
    r"""A docstring as Markdown.

    >>> as_markdown("A roof.\n\nbase, hop\n    start-up of\n    a round\n\n>>> 1 + 1\n2")
    'A roof.\n\n- `base`, `hop`: start-up of a round\n\n```pycon\n>>> 1 + 1\n2\n```'
    """
    blocks = [f"```pycon\n{block}\n```" if block.startswith(">>>") else TERM.sub(_term, block) for block in _blocks(text)]
    return re.sub(r"\n{3,}", "\n\n", "\n\n".join(blocks))


def _blocks(text: str) -> list[str]:
    found: list[str] = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        joined = found and found[-1].startswith(">>>") and block.startswith(">>>")
        found[-1:] = [f"{found[-1]}\n\n{block}"] if joined else [*found[-1:], block]
    return found


def _term(match: re.Match[str]) -> str:
    names = ", ".join(f"`{name.strip(' `')}`" for name in match[1].split(","))
    return f"- {names}: {' '.join(match[2].split())}\n"


class Docstrings(Extension):
    """Turns every docstring before it is parsed."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """An object with its docstring as Markdown."""
        if obj.docstring is not None and not obj.is_alias:
            obj.docstring.value = as_markdown(obj.docstring.value)
