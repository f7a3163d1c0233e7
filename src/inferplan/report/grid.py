"""How a table becomes lines of a width: as it is, folded, dealt out over several, or a row at a time. Knows no quantity.

A number is never broken, and no line ends in blanks. Only a single value that is wider than the screen makes a line longer than it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inferplan.errors import escaped

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

LEAST = 16  # characters of a last column that are enough to fold it
INDENT = "  "
RULE = "\u2500"


def wide(text: str) -> int:
    """Columns of a terminal that a text takes: two for most characters of China and Japan.

    >>> wide("ab"), wide("\u4f60\u597d")
    (2, 4)
    """
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def wrapped(text: str, width: int) -> list[str]:
    """A text as lines of at most a width, broken between words; a single word may be longer. Blanks before it begin every line.

    >>> wrapped("one two three", 8), wrapped("", 8), wrapped("  one two", 6)
    (['one two', 'three'], [''], ['  one', '  two'])
    """
    indent = text[: len(text) - len(text.lstrip(" "))] if text.strip() else ""
    width = max(width - len(indent), 1)
    lines, room = [""], width
    for word in text[len(indent) :].split(" "):
        size = wide(word)
        if lines[-1] and size + 1 > room:
            lines[-1] = lines[-1].rstrip()
            lines.append("")
            room = width
        if not word and not lines[-1] and len(lines) > 1:
            continue
        start = room == width
        lines[-1] += word if start else f" {word}"
        room -= size if start else size + 1
    return [f"{indent}{line.rstrip()}".rstrip() for line in lines]


@dataclass(frozen=True, slots=True)
class Grid:
    """A plain table; the columns numbered in `right` are aligned to the right."""

    columns: tuple[str, ...]
    rows: list[list[str]]
    title: str | None
    right: frozenset[int]

    def lines(self, width: int) -> list[str]:
        """The table line by line, in the first form that fits the width."""
        found = self._whole(width) or self._last_folded(width) or self._all_folded(width) or self._dealt(width) or self._stacked(width)
        return [*(wrapped(self.title, width) if self.title else []), *found]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        """Lines of text, the heading in bold."""
        from rich.segment import Segment

        lines = self.lines(options.max_width)
        heads = next((i for i, line in enumerate(lines) if line and not line.strip(RULE)), bool(self.title))
        for i, line in enumerate(lines):
            yield Segment(line + "\n", console.get_style("bold") if i < heads else None)

    @property
    def _gaps(self) -> tuple[int, ...]:
        return (3, 2, 1) if any(self.columns) else (2,)

    def _every(self) -> list[list[str]]:
        every = [list(self.columns), *self.rows] if any(self.columns) else self.rows
        return [[escaped(cell) for cell in line] for line in every]

    def _natural(self) -> list[int]:
        return [max(map(wide, cells)) for cells in zip(*self._every(), strict=True)]

    def _whole(self, width: int) -> list[str] | None:
        widths = self._natural()
        gap = next((g for g in self._gaps if sum(widths) + g * (len(widths) - 1) <= width), 0)
        return self._drawn(widths, gap) if gap or len(widths) <= 1 and sum(widths) <= width else None

    def _last_folded(self, width: int) -> list[str] | None:
        """The last column on several lines, where it is text."""
        *widths, _ = self._natural()
        gap = self._gaps[0]
        rest = width - sum(widths) - gap * len(widths)
        if len(widths) in self.right or rest < LEAST or self._longest_word(len(widths)) > rest:
            return None
        return self._drawn([*widths, rest], gap)

    def _all_folded(self, width: int) -> list[str] | None:
        """Columns of text, and headings, on several lines; numbers stay whole."""
        most = self._natural()
        least = [self._narrowest(i) for i in range(len(most))]
        gap = next((g for g in self._gaps if sum(least) + g * (len(least) - 1) <= width), 0)
        if not gap:
            return None
        widths, spare = least, width - sum(least) - gap * (len(least) - 1)
        while spare > 0 and (wants := [i for i in range(len(most)) if widths[i] < most[i]]):
            poorest = max(wants, key=lambda i: most[i] / widths[i])
            widths[poorest] += 1
            spare -= 1
        return self._drawn(widths, gap)

    def _longest_word(self, column: int) -> int:
        return max(wide(word) for line in self._every() for word in line[column].split(" "))

    def _narrowest(self, column: int) -> int:
        """The width below which a column cannot go: a word of text or of a heading, or a whole number with its unit."""
        if column not in self.right:
            return self._longest_word(column)
        head = max(map(wide, self.columns[column].split(" ")))
        return max(head, *(wide(row[column]) for row in self.rows)) if self.rows else head

    def _dealt(self, width: int) -> list[str] | None:
        """Several tables below one another, each with the columns that say which row it is."""
        key = self._key()
        rest = [i for i in range(len(self.columns)) if i not in key]
        lean = [self._narrowest(i) for i in range(len(self.columns))]
        base = sum(lean[i] for i in key)
        if not any(self.columns) or not rest or base + 1 > width / 2 or any(base + lean[i] + len(key) > width for i in rest):
            return None
        pieces, chosen, room = [], list(key), width - base - 2 * len(key)
        for i in rest:
            if len(chosen) > len(key) and lean[i] + 2 > room:
                pieces.append(chosen)
                chosen, room = list(key), width - base - 2 * len(key)
            chosen.append(i)
            room -= lean[i] + 2
        parts = [self._of(columns).lines(width) for columns in (*pieces, chosen)]
        return [line for i, part in enumerate(parts) for line in ([""] if i else []) + part]

    def _key(self) -> list[int]:
        """The first columns that tell rows apart, or the first one where none do."""
        for count in range(1, len(self.columns)):
            if len({tuple(row[:count]) for row in self.rows}) == len(self.rows):
                return list(range(count))
            if count in self.right:
                break
        return [0]

    def _of(self, columns: Sequence[int]) -> Grid:
        right = frozenset(k for k, i in enumerate(columns) if i in self.right)
        return Grid(tuple(self.columns[i] for i in columns), [[row[i] for i in columns] for row in self.rows], None, right)

    def _stacked(self, width: int) -> list[str]:
        """A row at a time: what it is, then its values by name."""
        key, found = self._key(), []
        for row in [[escaped(cell) for cell in row] for row in self.rows]:
            found += wrapped(", ".join(row[i] for i in key if row[i]), width)
            pairs = [f"{self.columns[i]} {row[i]}".strip() for i in range(len(row)) if i not in key and row[i]]
            found += [INDENT + line for line in _listed(pairs, width - len(INDENT))]
        return found

    def _drawn(self, widths: list[int], gap: int) -> list[str]:
        every = self._every()
        found = [self._folded(line, widths, gap) for line in every]
        if not any(self.columns):
            return [line for lines in found for line in lines]
        rule = RULE * (sum(widths) + gap * (len(widths) - 1))
        return [*found[0], rule, *(line for lines in found[1:] for line in lines)]

    def _folded(self, cells: list[str], widths: list[int], gap: int) -> list[str]:
        """A row, its cells on as many lines as they take."""
        each = [[cell] if wide(cell) <= w else wrapped(cell, w) for cell, w in zip(cells, widths, strict=True)]
        tall = max(map(len, each), default=0)
        heads = tall > 1 and cells == [escaped(c) for c in self.columns]
        filled = [[""] * (tall - len(lines)) + lines if heads else lines + [""] * (tall - len(lines)) for lines in each]
        return [self._line([lines[k] for lines in filled], widths, gap) for k in range(tall)]

    def _line(self, cells: list[str], widths: list[int], gap: int) -> str:
        blanks = [" " * max(0, w - wide(c)) for c, w in zip(cells, widths, strict=True)]
        padded = (blank + c if i in self.right else c + blank for i, (c, blank) in enumerate(zip(cells, blanks, strict=True)))
        return (" " * gap).join(padded).rstrip()


def _listed(pairs: Sequence[str], width: int) -> list[str]:
    """Pairs with commas between them, on lines that end between two of them where they can."""
    lines: list[str] = []
    for i, pair in enumerate(pairs):
        text = pair + ("," if i + 1 < len(pairs) else "")
        if lines and wide(lines[-1]) + 1 + wide(text) <= width:
            lines[-1] += f" {text}"
        else:
            lines += wrapped(text, width)
    return lines


