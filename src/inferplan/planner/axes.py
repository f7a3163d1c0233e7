"""What a user writes for an axis of a grid to its values: numbers with ranges, names in a list. Knows no quantity."""

from __future__ import annotations

import math
import re
from typing import Any

from inferplan.errors import SpecError

MAX_VALUES = 1_000_000
"""Values of one axis at most."""
LEAST_FACTOR = 1.0001
"""Of a geometric range: the fewest steps stay below the values that an axis may have."""
FORMS = "such as 1, 1,2,4, 1..8, 1..256x2 or 128..4096+128"
_RANGE = re.compile(r"(\d{1,18})\s*\.\.\s*(\d{1,18})(?:\s*([x*+])\s*(\d{1,18}(?:\.\d{1,9})?))?\Z", re.ASCII)


def numbers(raw: Any, least: int, most: int) -> tuple[int, ...]:
    """The whole numbers that a number, a text or a list of them means, in rising order, each once; all from `least` to `most`.

    A text holds numbers and ranges, with commas: `1..8` is every whole number, `128..4096+128` every 128th, `1..256x2` each twice the one
    before (the factor may be a fraction; values are rounded). The last one stands only where a step meets it.

    Raises SpecError for anything else, for values out of range, and for more than a million of them.

    >>> numbers("1..256x2", 1, 4096)
    (1, 2, 4, 8, 16, 32, 64, 128, 256)
    >>> numbers([1, "10..30 +10"], 1, 100), numbers(8, 1, 100), numbers("4..6, 1", 1, 100)
    ((1, 10, 20, 30), (8,), (1, 4, 5, 6))
    """
    found: set[int] = set()
    for item in _items(raw):
        found |= _numbers_of(item, least, most)
        if len(found) > MAX_VALUES:
            raise SpecError(f"has more than {MAX_VALUES:,} values, the most that an axis may have", value=_text(raw))
    if not found:
        raise SpecError("must name at least one value", value=_text(raw))
    return tuple(sorted(found))


def names(raw: Any) -> tuple[str, ...]:
    """The names that a text or a list of texts means, in the order given; a text with `=` in it is one name, commas and all.

    >>> names("7b, 13b"), names(["fp8", "body=q4_k,head=q6_k"])
    (('7b', '13b'), ('fp8', 'body=q4_k,head=q6_k'))
    """
    found: list[str] = []
    for item in _items(raw):
        if not isinstance(item, str):
            raise SpecError("must be a name, or a list of names", value=item)
        parts = [item] if "=" in item else item.split(",")
        found += [part.strip() for part in parts if part.strip()]
    if not found:
        raise SpecError("must name at least one", value=_text(raw))
    twice = next((name for name in found if found.count(name) > 1), None)
    if twice:
        raise SpecError("stands twice", value=twice)
    return tuple(found)


def _items(raw: Any) -> list[Any]:
    found = list(raw) if isinstance(raw, (list, tuple)) else [raw]
    if len(found) > MAX_VALUES:
        raise SpecError(f"has more than {MAX_VALUES:,} values, the most that an axis may have")
    return found


def _text(raw: Any) -> Any:
    return raw if isinstance(raw, (str, int, float)) else None


def _numbers_of(item: Any, least: int, most: int) -> set[int]:
    if isinstance(item, bool) or not isinstance(item, (int, str)):
        raise SpecError(f"must be whole numbers, {FORMS}", value=item)
    if isinstance(item, int):
        return {_inside(item, least, most)}
    found: set[int] = set()
    for part in item.split(","):
        found |= _part(part.strip(), least, most)
    return found


def _part(text: str, least: int, most: int) -> set[int]:
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return {_inside(int(text), least, most)}
    if not (match := _RANGE.match(text)):
        raise SpecError(f"must be whole numbers, {FORMS}", value=text)
    first, last = _inside(int(match[1]), least, most), _inside(int(match[2]), least, most)
    if last < first:
        raise SpecError("runs downward; write the smaller end first", value=text)
    return _geometric(first, last, float(match[4]), text) if match[3] in ("x", "*") else _even(first, last, match[4] or "1", text)


def _even(first: int, last: int, step: str, text: str) -> set[int]:
    if "." in step or int(step) < 1:
        raise SpecError("must step by a whole number from 1", value=text)
    if (last - first) // int(step) >= MAX_VALUES:
        raise SpecError(f"has {(last - first) // int(step) + 1:,} values, where an axis may have {MAX_VALUES:,}", value=text)
    return set(range(first, last + 1, int(step)))


def _geometric(first: int, last: int, factor: float, text: str) -> set[int]:
    if first < 1 or factor < LEAST_FACTOR:
        raise SpecError("must begin at 1 or more and step by a factor above 1", value=text)
    steps = math.floor(math.log(last / first) / math.log(factor) + 1e-9)  # what logarithms lose of a last value that is met
    return {round(first * factor**i) for i in range(steps + 1)}


def _inside(value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise SpecError(f"must lie between {least:,} and {most:,}", value=value)
    return value
