"""Which rows of a sweep no other row beats: the frontier between two figures. Knows no equation of performance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inferplan.errors import NotFound, SpecError
from inferplan.terms import TERMS

if TYPE_CHECKING:
    import pandas as pd

X, Y = "decode_tokens_per_s", "sustained_tokens_per_s_per_gpu"
LESS = ("usd", "joules", "bytes", "gpus")
FLAG = "pareto"
ASKED = ("model", "input_tokens", "output_tokens")
"""What is asked for rather than chosen: unless `by` says otherwise, rows are compared with those that agree in these."""


def frontier(x: ArrayLike, y: ArrayLike, group: ArrayLike | None = None) -> NDArray[np.bool_]:
    """Which points no other point beats, more being better in both: as good or better in both and better in one.

    Points with NaN are never among them; equal points are all, or none. `group` holds numbers: only points of one group are compared.
    Takes a sort of the points, O(n log n).

    >>> frontier([1.0, 2.0, 2.0, 3.0, 3.0, float("nan")], [5.0, 4.0, 4.0, 1.0, 2.0, 9.0]).tolist()
    [True, True, True, False, True, False]
    """
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    g = np.zeros(a.shape, dtype=np.int64) if group is None else np.asarray(group, dtype=np.int64)
    found = np.zeros(a.shape, dtype=bool)
    known = np.flatnonzero(~(np.isnan(a) | np.isnan(b)))
    if known.size:
        order = known[np.lexsort((-b[known], -a[known], g[known]))]
        found[order] = _unbeaten(a[order], b[order], g[order])
    return found


def _unbeaten(x: NDArray[Any], y: NDArray[Any], group: NDArray[Any]) -> NDArray[np.bool_]:
    """The same for points sorted by group, then falling x, then falling y: the best y of its x, above all y of larger x in its group."""
    first = np.append(True, group[1:] != group[:-1])
    fresh = first | np.append(True, x[1:] != x[:-1])
    heads = np.flatnonzero(fresh)
    ranks = np.unique(y, return_inverse=True)[1].astype(np.int64) + 1
    offset = np.cumsum(first) * (len(y) + 2)  # so that a running maximum begins anew in each group
    best = np.maximum.accumulate((ranks + offset)[heads])
    before = np.append(-1, best[:-1])
    opens = first[heads] | ((ranks + offset)[heads] > before)
    column = np.cumsum(fresh) - 1
    found: NDArray[np.bool_] = opens[column] & (y == y[heads][column])
    return found


def less_is_better(name: str) -> bool:
    """Whether a column is one to keep low: times, money, energy, bytes, devices.

    >>> less_is_better("tpot_s"), less_is_better("decode_tokens_per_s"), less_is_better("sustained_usd_per_million_tokens")
    (True, False, True)
    """
    unit = TERMS[name].unit if name in TERMS else ""
    return unit == "s" or any(word in name for word in LESS)


def pareto(table: pd.DataFrame, *, x: str = X, y: str = Y, by: Sequence[str] | None = None, flag: str = FLAG) -> pd.DataFrame:
    """The table with one more column, `flag`: whether no other row that fits beats this one in both `x` and `y`.

    Times, money, energy, bytes and devices are better the less, all else the more. Rows whose `fits` is false, or that lack one of both
    figures, are not on the frontier. Rows are compared with those that have the same values in the columns `by`; unsaid, the same model and
    lengths, as far as there are such columns; `()` for all with all.

    Raises NotFound for a column that is not there, SpecError for one that holds no numbers.

    >>> import pandas as pd
    >>> rows = pd.DataFrame({"tpot_s": [0.01, 0.02, 0.02], "sustained_tokens_per_s_per_gpu": [50.0, 90.0, 70.0], "fits": True})
    >>> pareto(rows, x="tpot_s")["pareto"].tolist()
    [True, True, False]
    """
    sides = [figures(table, name) for name in (x, y)]
    if "fits" in table:
        sides[0] = np.where(truth(table["fits"]), sides[0], np.nan)
    names = [name for name in ASKED if name in table] if by is None else list(by)
    for name in names:
        _column(table, name)
    group = table.groupby(names, sort=False, observed=True, dropna=False).ngroup().to_numpy() if names else None
    return table.assign(**{flag: frontier(sides[0], sides[1], group)})


def _column(table: pd.DataFrame, name: str) -> Any:
    if name not in table:
        raise NotFound(f"no column called '{name}'; there are {', '.join(map(str, table.columns[:40]))}")
    return table[name]


def figures(table: pd.DataFrame, name: str) -> NDArray[np.float64]:
    """A column so that more is better; raises NotFound where there is none, SpecError where it holds no numbers."""
    try:
        found = _column(table, name).to_numpy(dtype=float)
    except (TypeError, ValueError):
        raise SpecError("must be a column of numbers", field=name) from None
    return np.asarray(-found if less_is_better(name) else found)


def truth(column: Any) -> NDArray[np.bool_]:
    """A column of truths, or of what files make of them."""
    values = column.to_numpy()
    if values.dtype == bool:
        return np.asarray(values)
    return np.array([str(v).strip().lower() in ("true", "1", "1.0") for v in values], dtype=bool)
