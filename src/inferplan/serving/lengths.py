"""Lengths of prompts and outputs as distributions over whole numbers of tokens. Knows no request, no arrival and no clock."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inferplan.errors import SpecError

Floats = NDArray[np.float64]
MAX_TOKENS = 10**8
DENSE, SPARSE = 4096, 4096  # whole numbers kept one by one, and points that stand for longer ones
TAIL = 1e-9
Z95 = 1.6448536269514722  # the 95th percentile of a standard normal
FORMS = "'512', 'uniform:800-1024', 'uniform:0.8-1.0:1024', 'exponential:128', 'lognormal:512,1500' (mean, p95) or 'file:lengths.csv'"


@dataclass(frozen=True, slots=True, eq=False)
class Lengths:
    """A length in tokens as a probability for each whole number.

    values
        lengths in tokens, increasing, shape (k,).
    probabilities
        of the same shape, summing to 1.

    >>> found = Lengths.parse("uniform:0.8-1.0:1000")
    >>> found.mean, found.shortest, found.longest, round(found.cv, 4)
    (900.0, 800, 1000, 0.0645)
    """

    values: Floats
    probabilities: Floats
    text: str

    @classmethod
    def of(cls, values: ArrayLike, weights: ArrayLike, text: str) -> Lengths:
        """The distribution of some lengths with weights, repeats joined; raises SpecError for lengths that are none."""
        given = np.asarray(values, dtype=float)
        bad = given[~((given >= 1) & (given <= MAX_TOKENS) & (given == np.floor(given)))]
        if given.size == 0 or bad.size:
            rule = f"lengths must be whole numbers from 1 to {MAX_TOKENS:,}"
            raise SpecError(rule, field="lengths", value=float(bad[0]) if bad.size else text)
        distinct, place = np.unique(given, return_inverse=True)
        mass = np.bincount(place.ravel(), np.broadcast_to(np.asarray(weights, dtype=float), given.shape).ravel(), minlength=distinct.size)
        kept = mass > 0
        return cls(distinct[kept], mass[kept] / mass.sum(), text)

    @classmethod
    def fixed(cls, tokens: float) -> Lengths:
        """Always the same length."""
        return cls.of([tokens], 1.0, f"{tokens:g}")

    @classmethod
    def uniform(cls, low: float, high: float) -> Lengths:
        """Each whole number from `low` to `high`, both included, alike."""
        if not 1 <= low <= high <= MAX_TOKENS:
            raise SpecError(f"needs 1 <= low <= high <= {MAX_TOKENS:,}", field="uniform", value=f"{low:g}-{high:g}")
        if high - low > 10**6:
            raise SpecError("spans more than 1,000,000 lengths", field="uniform", value=f"{low:g}-{high:g}")
        return cls.of(np.arange(int(low), int(high) + 1), 1.0, f"uniform:{low:g}-{high:g}")

    @classmethod
    def exponential(cls, mean: float, most: float | None = None) -> Lengths:
        """The exponential law on whole numbers, which is the geometric one, with that mean before it is cut at `most`.

        >>> round(Lengths.exponential(128).mean, 3), round(float(Lengths.exponential(128).mean_of_max(8)) / 128, 3)
        (128.0, 2.711)
        """
        if not 1 <= mean <= MAX_TOKENS / 100:
            raise SpecError(f"mean must lie between 1 and {MAX_TOKENS // 100:,}", field="exponential", value=mean)
        stay = 1 - 1 / mean

        def cdf(x: Floats) -> Floats:
            below: Floats = -np.expm1(np.floor(x) * math.log(stay)) if stay else (x >= 1).astype(float)
            return below

        return cls._by_cdf(cdf, mean * math.log(1 / TAIL) + 1, f"exponential:{mean:g}").capped(most)

    @classmethod
    def lognormal(cls, mean: float, p95: float, most: float | None = None) -> Lengths:
        """A lognormal law by its mean and 95th percentile, rounded to whole numbers of at least 1.

        Raises SpecError for a pair that no such law has: the percentile exceeds the mean by at most exp(1.645^2 / 2) = 3.87 times.
        """
        if not 1 <= mean <= MAX_TOKENS / 100 or not 1 < p95 / mean <= math.exp(Z95**2 / 2):
            raise SpecError("needs a mean from 1 and a p95 of 1 to 3.87 times the mean", field="lognormal", value=f"{mean:g},{p95:g}")
        sigma = Z95 - math.sqrt(max(Z95**2 - 2 * math.log(p95 / mean), 0.0))
        mu = math.log(mean) - sigma**2 / 2

        def cdf(x: Floats) -> Floats:
            scaled = (np.log(np.maximum(x, TAIL)) - mu) / (sigma * math.sqrt(2))
            return np.array([0.5 * math.erfc(-z) for z in scaled])

        top = math.exp(mu + 6 * sigma)
        return cls._by_cdf(lambda x: cdf(x + 0.5), top, f"lognormal:{mean:g},{p95:g}").capped(most)

    @classmethod
    def _by_cdf(cls, cdf: Callable[[Floats], Floats], top: float, text: str) -> Lengths:
        """Whole numbers one by one at first, then points between which the mass is shared out halfway."""
        whole = np.arange(1, min(DENSE, math.ceil(top)) + 1, dtype=float)
        far = np.unique(np.round(np.geomspace(DENSE, max(top, DENSE), SPARSE))) if top > DENSE else np.empty(0)
        values: Floats = np.unique(np.concatenate([whole, far]))
        edges = np.append(np.floor((values[1:] + values[:-1]) / 2), np.inf)
        edges[-1] = values[-1] * 10
        reached = np.maximum.accumulate(cdf(edges))
        reached[-1] = 1.0
        return cls.of(values, np.diff(reached, prepend=0.0), text)

    @classmethod
    def empirical(cls, lengths: ArrayLike, text: str = "measured") -> Lengths:
        """The lengths of a sample, each as often as it occurs."""
        return cls.of(lengths, 1.0, text)

    @classmethod
    def parse(cls, text: str, field: str = "lengths") -> Lengths:
        """The distribution that a text means; raises SpecError, which names the forms, for any other text.

        >>> Lengths.parse("512").mean, Lengths.parse("uniform:100-300").mean
        (512.0, 200.0)
        """
        name, _, rest = text.strip().partition(":")
        reader = _READERS.get(name if rest else "fixed", _unknown)
        try:
            return reader(rest or name)
        except SpecError as e:
            raise e if e.file is not None else SpecError(e.rule, field=field, value=text) from None

    @property
    def mean(self) -> float:
        """E[N]."""
        return float(self.values @ self.probabilities)

    @property
    def second_moment(self) -> float:
        """E[N^2]."""
        return float(self.values**2 @ self.probabilities)

    @property
    def variance(self) -> float:
        """Var[N]."""
        return float((self.values - self.mean) ** 2 @ self.probabilities)

    @property
    def cv(self) -> float:
        """Standard deviation over mean."""
        return math.sqrt(self.variance) / self.mean

    @property
    def shortest(self) -> int:
        """The least length that occurs."""
        return int(self.values[0])

    @property
    def longest(self) -> int:
        """The greatest length that occurs, a law without bound being cut where 1e-9 of it are left."""
        return int(self.values[-1])

    def cdf(self, x: ArrayLike) -> Floats:
        """P(N <= x), of the shape of x."""
        sums = np.append(0.0, np.cumsum(self.probabilities))
        found: Floats = np.minimum(sums, 1.0)[np.searchsorted(self.values, np.asarray(x, dtype=float), side="right")]
        return found

    def quantile(self, q: ArrayLike) -> Floats:
        """The least length that a share q does not exceed."""
        sums = np.cumsum(self.probabilities)
        found: Floats = self.values[np.minimum(np.searchsorted(sums, np.asarray(q, dtype=float) - 1e-12), self.values.size - 1)]
        return found

    def mean_of_max(self, count: ArrayLike) -> Floats:
        """E[max of `count` independent lengths], of the shape of count: what a batch that waits for its longest member runs.

        >>> round(float(Lengths.uniform(1, 2).mean_of_max(2)), 3)
        1.75
        """
        sums = np.minimum(np.cumsum(self.probabilities), 1.0)
        powers = sums ** np.asarray(count, dtype=float)[..., None]
        found: Floats = np.diff(powers, prepend=0.0, axis=-1) @ self.values
        return found

    def capped(self, most: float | None) -> Lengths:
        """The law of min(N, most)."""
        return self if most is None else Lengths.of(np.minimum(self.values, most), self.probabilities, f"{self.text},max={most:g}")

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
        """`n` independent lengths."""
        if self.values.size == 1:
            return np.full(n, int(self.values[0]), dtype=np.int64)
        places = np.searchsorted(np.cumsum(self.probabilities), rng.random(n), side="right")
        found: NDArray[np.int64] = self.values[np.minimum(places, self.values.size - 1)].astype(np.int64)
        return found


def _number(text: str) -> float:
    try:
        found = float(text.replace("_", ""))
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise SpecError(f"is no length; write {FORMS}", value=text)
    return found


def _unknown(text: str) -> Lengths:
    raise SpecError(f"is no length; write {FORMS}", value=text)


def _options(text: str, count: int) -> tuple[list[float], float | None]:
    """Numbers with commas, and a `max=` behind them."""
    parts = [p.strip() for p in text.split(",")]
    most = next((_number(p[4:]) for p in parts if p.startswith("max=")), None)
    found = [_number(re.sub(r"^(mean|p95)=", "", p)) for p in parts if not p.startswith("max=")]
    if len(found) != count:
        raise SpecError(f"takes {count} number{'s' if count > 1 else ''}; write {FORMS}", value=text)
    return found, most


def _uniform(text: str) -> Lengths:
    parts, _, nominal = text.partition(":")
    ends = parts.split("-")
    if len(ends) != 2:
        raise SpecError(f"needs two ends; write {FORMS}", value=text)
    low, high = _number(ends[0]), _number(ends[1])
    if not nominal:
        return Lengths.uniform(low, high)
    whole = _number(nominal)
    return Lengths.uniform(max(1, math.floor(low * whole + 1e-9)), math.floor(high * whole + 1e-9))


def _exponential(text: str) -> Lengths:
    (mean,), most = _options(text, 1)
    return Lengths.exponential(mean, most)


def _lognormal(text: str) -> Lengths:
    (mean, p95), most = _options(text, 2)
    return Lengths.lognormal(mean, p95, most)


def _file(text: str) -> Lengths:
    """The lengths in a column of a CSV file; `file.csv:column` names one, else the first is taken."""
    path, _, column = text.rpartition(":") if not os.path.exists(text) and ":" in text else (text, "", "")  # noqa: PTH110 - true for odd names
    return Lengths.empirical(read_lengths(path, column or None), f"file:{text}")


def read_lengths(path: str, column: str | None = None) -> Floats:
    """A column of whole numbers in a CSV file with a header; raises SpecError naming the line of the first bad one."""
    import csv

    try:
        with Path(path).open(encoding="utf-8", newline="") as stream:
            rows = csv.reader(stream)
            head = [c.strip() for c in next(rows, [])]
            if column is not None and column not in head:
                raise SpecError(f"has no column '{column}'; it has {', '.join(head)}", file=path)
            place = head.index(column) if column else 0
            found = [_cell(path, rows.line_num, row, place) for row in rows if row]
    except (OSError, UnicodeDecodeError, ValueError, csv.Error) as e:
        raise SpecError(f"cannot be read: {getattr(e, 'strerror', None) or 'it is not CSV text'}", file=path) from None
    if not found:
        raise SpecError("has a header and no lengths", file=path)
    return np.array(found)


def _cell(path: str, line: int, row: list[str], place: int) -> float:
    text = row[place].strip() if place < len(row) else ""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (1 <= value <= MAX_TOKENS and value == math.floor(value)):
        raise SpecError(f"must be a whole number from 1 to {MAX_TOKENS:,}", file=path, field=f"line {line}", value=text or "nothing")
    return value


_READERS: dict[str, Callable[[str], Lengths]] = {
    "fixed": lambda text: Lengths.fixed(_number(text)),
    "uniform": _uniform,
    "exponential": _exponential,
    "geometric": _exponential,
    "lognormal": _lognormal,
    "file": _file,
}
