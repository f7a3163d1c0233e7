"""What a set of outcomes says: coverage, errors in the middle and at the end, what bands hold. Knows no prediction and no screen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from inferplan.calibrate.validate import Outcome

SHARES = (0.005, 0.1, 0.2, 0.3)


@dataclass(frozen=True, slots=True)
class Summary:
    """Coverage and absolute relative errors, None where nothing is predicted.

    exact
        rows predicted to the last unit.
    signed_median
        of signed errors: above 0 where predictions are too large.
    within
        by a share as text, the share of predicted rows whose error is at most that.
    banded, covered
        rows whose prediction has a band, and the share of them whose known value lies in it.
    """

    rows: int
    predicted: int
    exact: int
    median_error: float | None
    mean_error: float | None
    p90_error: float | None
    worst_error: float | None
    signed_median: float | None
    within: dict[str, float]
    banded: int
    covered: float | None


def summary(found: Iterable[Outcome]) -> Summary:
    """Coverage, shares within errors, and median, mean, 90th percentile and worst absolute error.

    >>> from pathlib import Path
    >>> from inferplan.calibrate.cases import Case
    >>> rows = [Outcome(Case("", "tpot_s", 1.0, {}, Path()), p, low=0.9 * p, high=1.1 * p) for p in (1.0, 1.05, 1.2, 1.4)]
    >>> s = summary(rows)
    >>> round(s.median_error, 4), round(s.signed_median, 4), s.within["0.2"], s.covered
    (0.125, 0.125, 0.75, 0.5)
    """
    rows = list(found)
    errors = np.array([o.error for o in rows if o.error is not None], dtype=float)
    inside = [o.covered for o in rows if o.covered is not None]
    sizes = np.sort(np.abs(errors))
    some = bool(sizes.size)
    return Summary(
        rows=len(rows),
        predicted=sizes.size,
        exact=int((sizes == 0).sum()),
        median_error=_quantile(sizes, 0.5) if some else None,
        mean_error=float(sizes.mean()) if some else None,
        p90_error=_quantile(sizes, 0.9) if some else None,
        worst_error=float(sizes[-1]) if some else None,
        signed_median=_quantile(np.sort(errors), 0.5) if some else None,
        within={f"{p}": float((sizes <= p + 1e-12).mean()) if some else 0.0 for p in SHARES},
        banded=len(inside),
        covered=sum(inside) / len(inside) if inside else None,
    )


def _quantile(ordered: np.ndarray, share: float) -> float:
    """Between the two nearest of ordered values; infinite errors stay infinite."""
    at = share * (ordered.size - 1)
    low, part = int(at), at - int(at)
    return float(ordered[low] if not part else ordered[low] * (1 - part) + ordered[low + 1] * part)


def grouped(found: Iterable[Outcome], columns: Iterable[str]) -> dict[tuple[str, ...], Summary]:
    """A summary per distinct value of the columns (`quantity` or any column of the case file)."""
    groups: dict[tuple[str, ...], list[Outcome]] = {}
    names = list(columns)
    for o in found:
        groups.setdefault(tuple(label(o, c) for c in names), []).append(o)
    return {key: summary(rows) for key, rows in sorted(groups.items())}


def label(found: Outcome, column: str) -> str:
    """What a row says in a column."""
    own = {"quantity": found.case.quantity, "case": found.case.name}
    return own.get(column, found.case.row.get(column, ""))
