"""Rows in figures: rates, percentiles, goodput, and the load curve with its knee. Knows no engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferplan.errors import NoFeasiblePlan, SpecError
from inferplan.serving.likely import Ends, Likely
from inferplan.serving.requests import Requests
from inferplan.serving.served import Served
from inferplan.serving.slo import Slo
from inferplan.shown import Shown

Floats = NDArray[np.float64]
QUANTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
TIMES = ("queue_s", "ttft_s", "tpot_s", "itl_max_s", "e2e_s")
BANDED = ("mean", *QUANTILES)
"""Statistics that have a band, where one is known; the time before a prompt is scheduled and the longest gap have none."""


def summary(served: Served, slo: Slo | None = None, likely: Likely | None = None) -> dict[str, Any]:
    """The figures of a run under the glossary's keys, in base units; times as mean and percentiles over what was served.

    Beside each stands where four of five measurements of it are expected (`mean_low`, `mean_high`, ...); None where `likely` knows no band.
    """
    done, r = served.done, served.requests
    span = _span(served)
    found: dict[str, Any] = {
        "requests": len(r),
        "served": int(done.sum()),
        "partial": served.partial,
        "makespan_s": span,
        "requests_per_s": _rate(done.sum(), span),
        "output_tokens_per_s": _rate(r.output_tokens[done].sum(), span),
        "total_tokens_per_s": _rate((r.input_tokens + r.output_tokens)[done].sum(), span),
        "mean_in_flight": _rate((served.finish_s - r.arrival_s)[done].sum(), span),
        "preemptions": int(served.preempted.sum()),
        "front_end_s": float(np.mean(served.front_s)),
        "cached_share": float(served.cached_tokens[done].sum() / max(1, r.input_tokens[done].sum())),
    }
    times = {name: statistics(getattr(served, name)[done]) for name in TIMES}
    found |= {name: own | bands(times, name, likely) for name, own in times.items()}
    if slo is not None:
        kept = slo.kept(served)
        found |= {"slo": slo.text, "slo_met": slo.met(served), "slo_share": float(kept.mean()), "goodput_per_s": _rate(kept.sum(), span)}
    return found


def statistics(values: Floats) -> dict[str, float | None]:
    """Mean, percentiles and maximum of what is known; None where nothing is."""
    known = values[np.isfinite(values)]
    if not known.size:
        return dict.fromkeys(("mean", *QUANTILES, "max"), None)
    marks = np.quantile(known, list(QUANTILES.values()))
    return {"mean": float(known.mean()), **dict(zip(QUANTILES, marks.tolist(), strict=True)), "max": float(known.max())}


def bands(times: Mapping[str, Mapping[str, float | None]], name: str, likely: Likely | None) -> dict[str, float | None]:
    """The ends of the bands about a time's mean and percentiles, None where no band is known."""
    found: dict[str, float | None] = {}
    for key in BANDED:
        ends = None if likely is None else _ends(times, name, key, likely)
        found[f"{key}_low"], found[f"{key}_high"] = ends or (None, None)
    return found


def _ends(times: Mapping[str, Mapping[str, float | None]], name: str, key: str, likely: Likely) -> Ends | None:
    value, first, share = times[name][key], times["ttft_s"][key], QUANTILES.get(key)
    if value is None or first is None:
        return None
    if name == "e2e_s":
        return likely.whole(value, first, share)
    return likely.ends("ttft" if name == "ttft_s" else "tpot", value, share) if name in ("ttft_s", "tpot_s") else None


def _span(served: Served) -> float:
    """From the first arrival to the last answer."""
    if not served.done.any():
        return 0.0
    return float(np.nanmax(served.finish_s) - np.nanmin(served.requests.arrival_s))


def _rate(count: Any, span: float) -> float:
    return float(count) / span if span > 0 else float("nan")


@dataclass(frozen=True, slots=True, eq=False)
class LoadCurve(Shown):
    """Latency against offered load: a run for each rate, and the largest rate that meets the limits.

    points
        offered rate in requests per second and the summary there, by rate.
    knee_per_s
        the rate at which the curve of mean end-to-end time bends most: farthest below the chord between its ends, both axes scaled to 1.
    largest_per_s
        the largest rate that meets the limits, by bisection to `precision` of itself; None where none were stated.
    """

    points: list[tuple[float, dict[str, Any]]]
    knee_per_s: float
    capacity_per_s: float
    largest_per_s: float | None
    slo: Slo | None
    partial: bool = False


def load_curve(
    run: Callable[[float], Served], capacity_per_s: float, *, points: int = 10, slo: Slo | None = None, precision: float = 0.01,
    progress: Callable[[int, int], None] | None = None, likely: Likely | None = None,
) -> LoadCurve:  # fmt: skip
    """Runs at `points` rates up to 1.1 times a capacity, then bisection for the largest rate that meets the limits.

    run
        the simulation at an offered rate, with the same requests each time.
    Raises NoFeasiblePlan where not even a hundredth of the capacity meets them.
    """
    if not 3 <= points <= 200:
        raise SpecError("must be from 3 to 200", field="points", value=points)
    rates = capacity_per_s * np.linspace(1.1 / points, 1.1, points)
    found: list[tuple[float, dict[str, Any]]] = []
    steps = points + (round(np.log2(100 / precision)) if slo else 0)

    def at(rate: float) -> Served:
        served = run(rate)
        found.append((rate, summary(served, slo, likely)))
        if progress:
            progress(len(found), max(steps, len(found)))
        return served

    for rate in rates:
        if at(float(rate)).partial:
            return LoadCurve(sorted(found, key=lambda p: p[0])[:-1] or found, float("nan"), capacity_per_s, None, slo, partial=True)
    largest = None if slo is None else _largest(at, slo, list(found), capacity_per_s, precision)
    ordered = sorted(found, key=lambda p: p[0])
    return LoadCurve(ordered, knee([r for r, _ in ordered], [s["e2e_s"]["mean"] for _, s in ordered]), capacity_per_s, largest, slo)


def curve_of(
    requests: Requests, run: Callable[[Requests], Served], *, points: int = 10, most: float | None = None, slo: Slo | None = None,
    progress: Callable[[int, int], None] | None = None, likely: Likely | None = None,
) -> LoadCurve:  # fmt: skip
    """The load curve of a stream of requests, stretched to each rate.

    Its capacity is the rate at which the same requests are served when all are there at once; `most` states another end of the curve.
    Raises SpecError for a closed loop, or for requests that all come at once.
    """
    if requests.clients or not requests.rate_per_s > 0:
        raise SpecError("needs an open stream of requests, at any rate: poisson, gamma, constant, diurnal or a trace", field="arrivals")
    if most is not None and not 0 < most <= 1e9:
        raise SpecError("must lie above 0 and at most at 1e9", field="--most", value=most)
    at_once = run(replace(requests, arrival_s=np.zeros(len(requests))))
    capacity = most / 1.1 if most else len(requests) / float(np.nanmax(at_once.finish_s)) if not at_once.partial else float("nan")
    if at_once.partial:
        return LoadCurve([], float("nan"), capacity, None, slo, partial=True)
    return load_curve(lambda rate: run(requests.scaled(rate)), capacity, points=points, slo=slo, progress=progress, likely=likely)


def _largest(
    at: Callable[[float], Served], slo: Slo, found: list[tuple[float, dict[str, Any]]], capacity: float, precision: float
) -> float:
    """Bisection between a rate that meets the limits and one that does not; the runs so far give both where they can."""
    good = max((r for r, s in found if s["slo_met"]), default=0.0)
    bad = min((r for r, s in found if not s["slo_met"] and r > good), default=0.0)
    if not good:
        good = capacity / 100
        if not slo.met(at(good)):
            raise NoFeasiblePlan(f"no load meets {slo.text}: not even {good:.3g} requests/s, a hundredth of the capacity")
        bad = min(r for r, _ in found)
    while not bad:
        tried = good * 2
        if slo.met(at(tried)):
            good = tried
            if good > 64 * capacity:
                return good
        else:
            bad = tried
    while bad - good > precision * good:
        middle = (good + bad) / 2
        if slo.met(at(middle)):
            good = middle
        else:
            bad = middle
    return good


def knee(rates: list[float], times: list[float | None]) -> float:
    """Where a rising curve bends most (Satopaa et al. 2011): the point farthest below the chord between its ends, axes scaled to 1.

    >>> knee([1, 2, 3, 4, 5], [1.0, 1.1, 1.2, 1.4, 6.0])
    4.0
    """
    x, y = np.array(rates, dtype=float), np.array([np.nan if t is None else t for t in times], dtype=float)
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]
    if x.size < 3 or y[-1] <= y[0]:
        return float("nan")
    return float(x[np.argmax((x - x[0]) / (x[-1] - x[0]) - (y - y[0]) / (y[-1] - y[0]))])
