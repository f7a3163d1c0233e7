"""Pictures of simulated runs: latencies as distributions, batch and cache over time, the load curve. Knows no equation of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from inferplan.report.canvas import (
    BLUE,
    DARK,
    DASHED,
    DOTTED,
    GREEN,
    GROUND,
    LOOKS,
    MIXED,
    ORANGE,
    SMALL,
    VERMILION,
    canvas,
    settled,
    title,
    unit_axis,
)
from inferplan.report.serving import waiting_at
from inferplan.serving.likely import Likely
from inferplan.serving.served import Served
from inferplan.serving.slo import Slo
from inferplan.serving.summary import LoadCurve
from inferplan.units import show, significant

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TIMES = (("ttft_s", "TTFT", BLUE), ("tpot_s", "TPOT", GREEN), ("itl_max_s", "longest gap", ORANGE), ("e2e_s", "end to end", VERMILION))
BINS = 400
BANDED = (0.5, 0.9, 0.99)
ENDLESS = 1e11  # tokens from which on a cache counts as one without a limit
SLO_TIMES = {"ttft": BLUE, "tpot": GREEN, "itl": ORANGE, "e2e": VERMILION}
MARKS = ("o", "^", "s")


def plot_served(served: Served, slo: Slo | None = None, *, likely: Likely | None = None, ax: Axes | None = None) -> Axes:
    """A run in three panels: times as cumulative distributions, requests over time, cache over time; returns the first.

    Where bands are known, four of five measurements of a percentile are expected along the bar about it.
    """
    with canvas(ax) as ax:
        figure: Any = ax.figure
        if served.series:
            ax, requests, cache = _thirds(ax)
            _timeline(requests, cache, served)
        title(ax, _run_words(served))
        plot_times(served, slo, likely=likely, ax=ax)
        settled(figure.axes[0])
        return ax


def _run_words(served: Served) -> str:
    """What ran, for a title."""
    count = int(served.done.sum())
    return f"{count:,} request{'' if count == 1 else 's'} under {served.schedule.scheduler}{', interrupted' if served.partial else ''}"


def _thirds(ax: Axes) -> tuple[Axes, Axes, Axes]:
    """Three panels of a figure, one above the other, the lower two with a common axis of time."""
    figure: Any = ax.figure
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, 2.2 * height)
    grid = figure.add_gridspec(3, 1, height_ratios=(1.3, 1, 1))
    ax.set_subplotspec(grid[0])
    middle = figure.add_subplot(grid[1])
    return ax, middle, figure.add_subplot(grid[2], sharex=middle)


def plot_times(served: Served, slo: Slo | None = None, *, likely: Likely | None = None, ax: Axes | None = None) -> Axes:
    """The share of requests within a time, for each kind of time, and the limits that were stated."""
    with canvas(ax) as ax:
        least, most = np.inf, 0.0
        for (name, label, colour), look in zip(TIMES, LOOKS, strict=False):
            values = np.sort(getattr(served, name)[served.done])
            values = values[np.isfinite(values) & (values > 0)]
            if not values.size:
                continue
            share = 100 * np.arange(values.size + 1) / values.size
            text = f"{label} {_time(values, 0.5)}, {_time(values, 0.99)}"
            ax.step(np.append(values[:1], values), share, where="post", color=colour, ls=look, label=text)
            if likely is not None:
                _shade(ax, served, name, likely, colour)
            least, most = min(least, values[max(0, int(values.size * 0.001))]), max(most, values[-1])
        limits = slo.limits if slo else ()
        known = [least, most, *(limit for _, limit in limits)] if most else [1e-3, 1.0]
        low, high = min(known) / 1.5, max(known) * 1.5
        ax.set(xscale="log", xlim=(low, high), ylim=(0, 102))
        for name, limit in limits:
            _limit(ax, name, limit)
        unit_axis(ax.xaxis, "time", "s", (low, high))
        unit_axis(ax.yaxis, "share of requests", "%", (0.0, 102.0))
        where: Any = {"ncols": 2, "fontsize": SMALL, "title_fontsize": SMALL, "alignment": "left"}
        ax.legend(loc="upper center", bbox_to_anchor=(0.44, -0.16), title="median, 99th percentile", **where)
        return ax


def _shade(ax: Axes, served: Served, name: str, likely: Likely, colour: str) -> None:
    """The bands about the median, the 90th and the 99th percentile, as bars."""
    for share in BANDED:
        value, first = (float(np.nanquantile(getattr(served, n)[served.done], share)) for n in (name, "ttft_s"))
        ends = None
        if name == "e2e_s":
            ends = likely.whole(value, first, share)
        elif name in ("ttft_s", "tpot_s"):
            ends = likely.ends("ttft" if name == "ttft_s" else "tpot", value, share)
        if ends is not None:
            label = "80 % band at p50, p90, p99" if (name, share) == ("ttft_s", BANDED[0]) else None
            ax.plot(ends, (100 * share, 100 * share), color=colour, alpha=0.45, lw=2.4, solid_capstyle="butt", gid="band", label=label)


def _limit(ax: Axes, name: str, limit: float) -> None:
    """A stated limit: a thin line that says which it is."""
    ax.axvline(limit, color=SLO_TIMES[name], lw=0.6, gid="limit")
    text = f"{name.upper()} limit {show(limit, 's')}"
    style: Any = {"rotation": 90, "ha": "right", "va": "center", "fontsize": SMALL, "color": SLO_TIMES[name], "bbox": GROUND}
    ax.annotate(text, (limit, 50), (-1.5, 0), textcoords="offset points", **style)


def _time(values: Any, q: float) -> str:
    return show(float(np.quantile(values, q)), "s")


def _timeline(requests: Axes, cache: Axes, served: Served) -> None:
    """Requests that run and wait, and tokens in cache, of all replicas, over time."""
    end = max(float(s.t_s[-1]) for s in served.series if s.t_s.size)
    t = np.linspace(0, end, BINS)
    running, waiting, tokens = np.zeros(BINS), np.zeros(BINS), np.zeros(BINS)
    for place, s in enumerate(served.series):
        row = np.maximum(np.searchsorted(s.t_s, t, side="right") - 1, 0)
        running += s.running[row]
        tokens += s.kv_tokens[row]
        waiting += waiting_at(served, t, s.running[row], place)
    requests.fill_between(t, running, color=BLUE, alpha=0.35, lw=0, label="running")
    requests.plot(t, waiting, color=VERMILION, lw=0.9, label="waiting")
    requests.set(ylabel="requests", ylim=(0, None), xlim=(0, end))
    requests.locator_params(axis="y", integer=True)
    requests.legend(loc="best", fontsize=SMALL)
    requests.tick_params(labelbottom=False)
    limit = served.schedule.kv_tokens * len(served.series)
    cache.fill_between(t, tokens, color=GREEN, alpha=0.35, lw=0)
    bounded = limit < ENDLESS
    top = 1.12 * max(limit if bounded else 0.0, float(tokens.max()), 1.0)
    if bounded:
        cache.axhline(limit, color=DARK, lw=0.8, gid="limit")
        style: Any = {"textcoords": "offset points", "ha": "right", "va": "bottom", "fontsize": SMALL, "color": DARK}
        cache.annotate(f"cache of {limit:,} tokens", (end, limit), (-2, 1.5), **style)
    cache.set(ylim=(0, top), xlim=(0, end))
    unit_axis(cache.xaxis, "time", "s", (0, end))
    unit_axis(cache.yaxis, "tokens in cache", "", (0, top))


def plot_curve(found: LoadCurve, heading: tuple[str, ...] = (), *, ax: Axes | None = None) -> Axes:
    """Latency against the rate of requests: mean and p99 of TTFT, TPOT and end to end, with the knee and the largest rate within limits.

    heading
        lines of a title that say what serves whom.
    """
    with canvas(ax) as ax:
        rates = np.array([r for r, _ in found.points])
        every = []
        for (name, label, colour), mark in zip((TIMES[0], TIMES[1], TIMES[3]), MARKS, strict=True):
            for key, style in (("mean", "-"), ("p99", DASHED)):
                y = np.array([np.nan if s[name][key] is None else s[name][key] for _, s in found.points], dtype=float)
                if key == "mean" and found.points and found.points[0][1][name]["mean_low"] is not None:
                    lower, upper = (np.array([s[name][f"mean_{end}"] for _, s in found.points], dtype=float) for end in ("low", "high"))
                    ax.fill_between(rates, lower, upper, color=colour, alpha=0.15, lw=0, gid="band")
                look: Any = {"color": colour, "ls": style, "marker": mark if key == "mean" else None, "ms": 2.2, "lw": 1.0}
                ax.plot(rates, y, label=f"{label}, {key}", **look)
                every.append(y)
        low, high = float(np.nanmin(every)) / 1.5, float(np.nanmax(every)) * 1.5
        for name, limit in found.slo.limits if found.slo else ():
            ax.axhline(limit, color=SLO_TIMES[name], lw=0.8, ls=DOTTED, gid="limit", label=f"{name.upper()} limit")
        marks: Any = ((found.largest_per_s, "-", "within limits to"), (found.knee_per_s, MIXED, "knee"))
        for rate, style, text in marks:
            if rate is not None and np.isfinite(rate):
                ax.axvline(rate, color=DARK, ls=style, lw=0.8, label=f"{text} {significant(rate)}/s")
        ax.set(yscale="log", ylim=(low, high), xlim=(0, float(rates.max()) * 1.03), xlabel="offered load, requests/s")
        title(ax, *(heading or ("Latency against offered load",)))
        unit_axis(ax.yaxis, "time", "s", (low, high))
        ax.legend(loc="upper center", bbox_to_anchor=(0.44, -0.17), ncols=3, fontsize=SMALL)
        return ax
