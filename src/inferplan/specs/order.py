"""The order of a model's layers as a short text, such as `(local*5 + global)*8 + local*2`. Knows no layer, only their names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from itertools import groupby

from inferplan.errors import SpecError

MAX_LAYERS = 4096
_TOKEN = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*|\d+|[*+()])")


def expand(text: str) -> tuple[str, ...]:
    """The block name of every layer in order.

    >>> expand("dense + (local*2 + global)*2")
    ('dense', 'local', 'local', 'global', 'local', 'local', 'global')
    """
    tokens: list[str] = []
    at = 0
    text = text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if not match or len(tokens) > 10_000:
            raise SpecError("is not an order of layers like '(local*5 + global)*8 + local*2'", value=text)
        tokens.append(match[1])
        at = match.end()
    names, rest = _sum(tokens, text, 0)
    if rest:
        raise SpecError(f"has '{rest[0]}' where '+' or the end was expected", value=text)
    return tuple(names)


def _sum(tokens: list[str], text: str, depth: int) -> tuple[list[str], list[str]]:
    names, tokens = _product(tokens, text, depth)
    while tokens and tokens[0] == "+":
        more, tokens = _product(tokens[1:], text, depth)
        names = names + more
        if len(names) > MAX_LAYERS:
            raise SpecError(f"has more than {MAX_LAYERS} layers", value=text)
    return names, tokens


def _product(tokens: list[str], text: str, depth: int) -> tuple[list[str], list[str]]:
    if not tokens or depth > 20:
        raise SpecError("ends where a layer was expected", value=text)
    first, tokens = tokens[0], tokens[1:]
    if first == "(":
        names, tokens = _sum(tokens, text, depth + 1)
        if not tokens or tokens[0] != ")":
            raise SpecError("lacks a closing parenthesis", value=text)
        tokens = tokens[1:]
    elif first[0].isalpha() or first[0] == "_":
        names = [first]
    else:
        raise SpecError(f"has '{first}' where a layer was expected", value=text)
    if tokens and tokens[0] == "*":
        if len(tokens) < 2 or not tokens[1].isdigit() or not 0 < len(names) * int(tokens[1]) <= MAX_LAYERS:
            raise SpecError(f"needs a count of 1 to {MAX_LAYERS} layers after '*'", value=text)
        names, tokens = names * int(tokens[1]), tokens[2:]
    return names, tokens


def shorten(names: Iterable[str]) -> str:
    """A short text of this grammar for an order of layers: repeated stretches in parentheses, nested where that helps.

    >>> shorten(["a", "a", "b"] * 3 + ["a"]), shorten(["a"] * 32), shorten((["a", "b"] * 3 + ["c"]) * 4)
    ('(a*2 + b)*3 + a', 'a*32', '((a + b)*3 + c)*4')
    """
    return _shortest(tuple(names))


@cache
def _shortest(order: tuple[str, ...]) -> str:
    best = _runs(order)
    if len(set(order)) < 2:
        return best
    for start in range(min(len(order), 8)):
        for period in range(2, (len(order) - start) // 2 + 1):
            times = _repeats(order, start, period)
            if times > 1:
                end = start + times * period
                parts = (_runs(order[:start]), f"({_shortest(order[start : start + period])})*{times}", _shortest(order[end:]))
                best = min(best, " + ".join(p for p in parts if p), key=len)
    return best


def _repeats(order: tuple[str, ...], start: int, period: int) -> int:
    """How often the stretch of `period` names at `start` stands in a row."""
    times = 1
    while order[start + times * period : start + (times + 1) * period] == order[start : start + period]:
        times += 1
    return times


def _runs(order: Iterable[str]) -> str:
    runs = [(name, len(list(run))) for name, run in groupby(order)]
    return " + ".join(name if n == 1 else f"{name}*{n}" for name, n in runs)
