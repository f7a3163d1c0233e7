"""Texts as they may stand in HTML: nothing in them is markup, and none changes the direction of what follows. Knows no page."""

from __future__ import annotations

from html import escape as quoted

from inferplan.errors import escaped


def escape(text: str) -> str:
    r"""A text as HTML shows it: markup quoted, newlines, control characters and direction marks as escapes.

    >>> escape("<b>" + chr(0x202E) + chr(0))
    '&lt;b&gt;\\u202e\\x00'
    """
    return quoted(escaped(text))
