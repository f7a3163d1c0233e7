"""How many drafted tokens a verify keeps: from a rate, from rates by position, or from measured accepted lengths. Knows no clock.

An accepted length counts the token that the target adds itself: 1 where no draft is kept, one more than the draft tokens where all are.
"""

from __future__ import annotations

import csv
import io
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from inferplan.errors import SpecError
from inferplan.ops import Numeric
from inferplan.specs.document import read_text
from inferplan.speculation.host import shipped
from inferplan.speculation.theory import expected_tokens, rate_of

MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_DRAFT_TOKENS = 256
COLUMN = "accepted_length"


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Tokens per verify by the number of drafts.

    positions
        the rate at which each position is kept once all before it are; the last holds for all further ones.
    lengths
        mean accepted length by draft tokens, where it was measured.
    said
        in words, where it comes from.
    """

    positions: tuple[float, ...] = ()
    lengths: tuple[tuple[int, float], ...] = ()
    said: str = ""

    @property
    def rate(self) -> float | None:
        """The rate, where it is the same at every position."""
        return self.positions[0] if len(set(self.positions)) == 1 else None

    def tokens(self, g: Numeric) -> Numeric:
        """Tokens that a verify of `g` drafts yields in the mean; not a number where it was not measured.

        >>> float(Acceptance((0.8,)).tokens(4)), round(float(Acceptance((0.8, 0.5)).tokens(3)), 2)
        (3.3616, 2.4)
        """
        if self.rate is not None:
            return expected_tokens(self.rate, g)
        count = np.asarray(g, dtype=float)
        by_count: np.ndarray = self._table(int(np.max(count, initial=0)))[count.astype(int)]
        return by_count

    def _table(self, most: int) -> np.ndarray:
        """Tokens per verify of 0 to `most` drafts."""
        if self.positions:
            rates = np.array(self.positions)[np.minimum(np.arange(most), len(self.positions) - 1)]
            return np.append(1.0, 1 + np.cumsum(np.cumprod(rates)))
        known = {0: 1.0, **dict(self.lengths)}
        return np.array([known.get(n, np.nan) for n in range(most + 1)])

    @property
    def most(self) -> int | None:
        """The most drafts for which it answers; None for any number."""
        return None if self.positions else max(n for n, _ in self.lengths)


def of_rates(rates: Iterable[float], said: str = "given") -> Acceptance:
    """Acceptance at a rate, or at rates by position; raises SpecError for one outside 0 to 1."""
    found = tuple(rates)
    if not found or len(found) > MAX_DRAFT_TOKENS:
        raise SpecError(f"must be 1 to {MAX_DRAFT_TOKENS} numbers", field="accept", value=len(found))
    for rate in found:
        if not 0 <= rate <= 1:
            raise SpecError("must lie between 0 and 1", field="accept", value=rate)
    return Acceptance(positions=found, said=said)


def of_text(text: str) -> Acceptance:
    """The acceptance that a text means: a rate, rates by position with commas, or the path of a file of accepted lengths.

    >>> of_text("0.8").rate, of_text("0.8,0.6").positions
    (0.8, (0.8, 0.6))
    """
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        return read_lengths(text)
    return of_rates(rates)


def of_length(tokens: float, draft_tokens: int, *, chain: bool, said: str = "given") -> Acceptance:
    """Acceptance from a mean accepted length: of a chain also the rate that it implies, of a tree just that length.

    Raises SpecError where it is not between 1 and one more than the draft tokens.

    >>> round(of_length(3.3616, 4, chain=True).rate, 4)
    0.8
    """
    if not (math.isfinite(tokens) and 1 <= tokens <= draft_tokens + 1):
        raise SpecError(f"must lie between 1 and {draft_tokens + 1}, one more than the draft tokens", field="accept_length", value=tokens)
    if not chain:
        return Acceptance(lengths=((draft_tokens, tokens),), said=said)
    return Acceptance(positions=(float(rate_of(tokens, draft_tokens)),), said=said)


def of_typical(kind: str) -> tuple[Acceptance, int | None]:
    """The acceptance that was published for a kind of draft, and the tokens of its tree; raises SpecError where none is at hand.

    >>> found, tree = of_typical("eagle")
    >>> found.positions[0], tree
    (0.79, None)
    """
    known = shipped().typical
    if kind not in known:
        raise SpecError("must be given for this draft (--accept): a rate, rates by position, or a file of accepted lengths", field="accept")
    found = known[kind]
    said = f"published: {found.of} ({shipped().sources[found.source].title})"
    lengths = tuple(zip(found.draft_tokens, found.lengths, strict=True))
    return Acceptance(positions=found.positions, lengths=lengths, said=said), found.tree


def read_lengths(path: str | Path) -> Acceptance:
    """Acceptance from a CSV file of measured accepted lengths: a column `accepted_length` and, unless each row is one pass with as many
    drafts as the longest shows, a column `draft_tokens`; a column `count` says how often.

    The mean by draft tokens counts. For fewer drafts than measured it is the mean of the same passes cut short, where each row is one
    pass (whole numbers). Raises SpecError naming file, line and rule.
    """
    place = Path(path)
    try:
        rows = _rows(place)
    except csv.Error as e:
        raise SpecError(f"is not a CSV file that can be read: {e}", file=place) from None
    if not rows:
        raise SpecError("holds no accepted length", file=place)
    return Acceptance(lengths=tuple(sorted(_means(rows).items())), said=f"{len(rows):,} rows of {place.name}")


def _rows(place: Path) -> list[tuple[int, float, float]]:
    """Draft tokens, accepted length and count of each row."""
    table = csv.DictReader(io.StringIO(read_text(place, limit=MAX_FILE_BYTES), newline=""), restkey="_more", strict=True)
    if COLUMN not in (table.fieldnames or []):
        raise SpecError(f"has no column '{COLUMN}'", file=place)
    found = []
    for line, row in enumerate(table, start=2):
        if "_more" in row or None in row.values():
            raise SpecError("has not as many cells as there are columns", file=place, field=f"line {line}")
        length = _number(row, COLUMN, line, place, low=1, high=MAX_DRAFT_TOKENS + 1)
        drafts = _number(row, "draft_tokens", line, place, low=0, high=MAX_DRAFT_TOKENS, whole=True) if row.get("draft_tokens") else np.nan
        count = _number(row, "count", line, place, low=0, high=1e12) if row.get("count") else 1.0
        if length > drafts + 1:
            raise SpecError("must not exceed one more than the draft tokens", file=place, field=f"line {line}, {COLUMN}", value=row[COLUMN])
        found.append((drafts, length, count))
    longest = max((math.ceil(n) - 1 for d, n, _ in found if math.isnan(d)), default=0)
    return [(longest if math.isnan(d) else int(d), n, c) for d, n, c in found if c > 0]


def _number(row: dict[str, str], column: str, line: int, place: Path, *, low: float, high: float, whole: bool = False) -> float:
    field = f"line {line}, {column}"
    try:
        value = float(row[column])
    except ValueError:
        raise SpecError("must be a number", file=place, field=field, value=row[column]) from None
    if not low <= value <= high or (whole and value != int(value)):
        raise SpecError(f"must be {'whole and ' if whole else ''}between {low:g} and {high:g}", file=place, field=field, value=row[column])
    return value


def _means(rows: list[tuple[int, float, float]]) -> dict[int, float]:
    """Mean accepted length by draft tokens, cut short where fewer drafts were not measured themselves."""
    groups: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for drafts, length, count in rows:
        groups[drafts].append((length, count))
    arrays = {g: np.array(pairs).T for g, pairs in groups.items()}
    found = {g: float(np.average(lengths, weights=counts)) for g, (lengths, counts) in arrays.items() if g > 0}
    for g in sorted(arrays, reverse=True):
        lengths, counts = arrays[g]
        if np.all(lengths == np.floor(lengths)):
            found |= {n: float(np.average(np.minimum(lengths, n + 1), weights=counts)) for n in range(1, g) if n not in groups}
    return found
