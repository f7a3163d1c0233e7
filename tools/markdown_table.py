"""Tables of the published accuracy pages. Knows no measurement."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table of cells as they are.

    >>> print(table(["part", "rows"], [["h100", "12"]]), end="")
    | part | rows |
    |---|---|
    | h100 | 12 |
    """
    rule = "|".join(["---"] * len(head))
    return "\n".join([f"| {' | '.join(head)} |", f"|{rule}|", *(f"| {' | '.join(line)} |" for line in lines)]) + "\n"
