"""The picture of a plan: cost of each choice against the latency that binds it, and use of the fleet over time. Knows no equation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from inferplan.errors import Unsupported
from inferplan.planner.plan import Choice, Latency, Plan
from inferplan.report.canvas import (
    BLACK,
    BLUE,
    DARK,
    DASHED,
    DOTTED,
    GREEN,
    GROUND,
    ORANGE,
    PURPLE,
    SKY,
    SMALL,
    VERMILION,
    canvas,
    divided,
    label_apart,
    settled,
    title,
    unit_axis,
)
from inferplan.units import significant

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKS = (("o", BLUE), ("s", VERMILION), ("^", GREEN), ("D", ORANGE), ("v", PURPLE), ("P", SKY), ("X", BLACK))
HEIGHT = 1.75  # times the height of a picture of one panel
NAMED = 3  # choices that are named beside their points
POINTS = 121


def plot_plan(p: Plan, *, ax: Axes | None = None) -> Axes:
    """Above, what each choice costs a month against the binding time at the peak; below, the chosen fleet's use over months or a day.

    A traffic that neither grows nor has a profile has no lower panel.
    Without prices the devices stand in for the cost, without limits the devices of a replica for the time. Returns the upper panel.
    Raises Unsupported for a plan from a measured replica, which knows no time and no use.
    """
    if p.best.replica is None:
        raise Unsupported("a plan from a measured replica has one choice and no times: there is nothing to draw")
    own = ax is None
    with canvas(ax) as ax:
        figure: Any = ax.figure
        varies = bool(use(p)[2])
        if own and varies:
            width, height = figure.get_size_inches()
            figure.set_size_inches(width, HEIGHT * height)
        d = p.demand
        name = p.best.replica.candidate.kind.model.title
        load = f"{significant(d.mean_per_s)} requests/s in the mean, {significant(d.peak_per_s)} at the peak"
        title(ax, name, load, *([p.targets.text] if p.targets.limits else []))
        if varies:
            grid = divided(ax, 2, 1, height_ratios=(1.35, 1))
            _draw_use(figure.add_subplot(grid[1]), p)
        _draw_choices(ax, p)
        return ax


def binding(c: Choice) -> Latency | None:
    """The time of a choice that lies nearest to its limit; None without limits."""
    return min(c.latencies, key=lambda late: late.margin_s / late.target.limit_s, default=None)


def costs(p: Plan) -> tuple[np.ndarray, str, str]:
    """What each choice costs, with the words and the unit of an axis: USD a month, or devices where there is no price."""
    if all(c.bill is not None for c in p.choices):
        return np.array([c.bill.usd_per_month for c in p.choices if c.bill is not None]), "cost a month", "USD"
    return np.array([float(c.fleet.gpus) for c in p.choices]), "fleet", "devices"


def _across(p: Plan) -> tuple[np.ndarray, str, str]:
    """The horizontal place of each choice: its binding time over the limit, in per cent, else the devices of a replica."""
    tight = [binding(c) for c in p.choices]
    if any(late is None for late in tight):
        return np.array([float(c.gpus_per_replica) for c in p.choices]), "devices of a replica", ""
    shares = [100 * (1 - late.margin_s / late.target.limit_s) for late in tight if late is not None]
    one = {late.target.name for late in tight if late is not None}
    return np.array(shares), f"{one.pop() if len(one) == 1 else 'the time that binds'} at the peak, of its limit", "%"


def _draw_choices(ax: Axes, p: Plan) -> None:
    y, words, unit = costs(p)
    x, across, share = _across(p)
    parts = [c.replica.candidate.kind.hardware.name if c.replica else "" for c in p.choices]
    order = list(dict.fromkeys(parts))
    for i, part in enumerate(order):
        mark, colour = MARKS[i % len(MARKS)]
        own = np.array([name == part for name in parts])
        ax.plot(x[own], y[own], ls="", marker=mark, ms=3, color=colour, alpha=0.8, mew=0, label=part, gid=f"choices {part}")
    ax.plot(x[:1], y[:1], ls="", marker="o", ms=7, mfc="none", mec=BLACK, mew=0.9, label="chosen", gid="chosen")
    log = y.max() > 10 * y.min() > 0
    low, high = (y.min() / 1.5, y.max() * 1.5) if log else (0.0, 1.18 * float(y.max()))
    right = max(105.0, 1.1 * float(x.max())) if share else 1.15 * float(x.max())
    if log:
        ax.set_yscale("log")
    ax.set(ylim=(low, high), xlim=(0, right))
    unit_axis(ax.yaxis, words, unit, (low, high), shown=unit)
    unit_axis(ax.xaxis, across, share, (0.0, right), shown=share or None)
    if share:
        ax.axvline(100, color=VERMILION, lw=0.9, gid="limit", label="limit")
    ax.legend(loc="upper center", bbox_to_anchor=(0.44, -0.2), ncols=3, fontsize=SMALL)
    settled(ax)
    first = range(min(NAMED, len(p.choices)))
    label_apart(ax, [(x[i], y[i]) for i in first], [_short(p.choices[i]) for i in first], np.column_stack([x, y]), fontsize=SMALL)


def _short(c: Choice) -> str:
    assert c.replica is not None
    k = c.replica.candidate
    return f"{c.fleet.gpus:,} x {k.kind.hardware.name}\n{k.kind.precision.name}, {k.split}"


def use(p: Plan) -> tuple[np.ndarray, dict[str, np.ndarray], str, str]:
    """Use of the chosen fleet in per cent of what it takes: places in time, values by name, what the places are, and their unit.

    Over the months until the day that is planned for; where traffic does not grow, over the steps of its profile; else now.
    """
    d, f, takes = p.demand, p.best.fleet, p.best.rate_per_s
    spread, all_ = 100 / (takes * f.at_peak), 100 / (takes * f.replicas)
    if d.months and d.growth_per_month:
        months = np.linspace(0, d.months, POINTS)
        growth = (1 + d.growth_per_month) ** months
        return months, {"peak": d.peak_per_s * growth * spread, "mean": d.mean_per_s * growth * spread}, "months from now", ""
    if len(d.profile) > 1:
        steps = np.arange(len(d.profile) + 1.0)
        rates = d.mean_per_s * np.array([*d.profile, d.profile[-1]]) * d.growth
        return steps, {"spares down": rates * spread, "all up": rates * all_}, "step of the profile", ""
    now = np.array([0.0, 1.0])
    return now, {"peak": np.full(2, d.later_peak_per_s * spread), "mean": np.full(2, d.later_mean_per_s * spread)}, "", ""


def _draw_use(ax: Axes, p: Plan) -> None:
    places, values, words, _ = use(p)
    stepped = words.startswith("step")
    for (name, y), look, colour in zip(values.items(), ("-", DASHED), (BLUE, GREEN), strict=True):
        ax.plot(places, y, ls=look, color=colour, label=name, gid=f"use {name}", drawstyle="steps-post" if stepped else "default")
    kept = 100 * p.goal.safety.queueing
    top = 1.3 * max(100.0, *(float(y.max()) for y in values.values()))
    for level, look, text in ((100.0, "-", "all that replicas take"), (kept, DOTTED, f"planned: {kept:g} %")):
        ax.axhline(level, color=VERMILION if level == 100 else DARK, lw=0.8, ls=look, gid="level", label=text)
    ax.set(xlim=(places[0], places[-1]), ylim=(0, top))
    unit_axis(ax.yaxis, "use of the fleet", "%", (0.0, 100.0))
    if words:
        ax.set_xlabel(words)
    else:
        ax.set_xticks([])
    _say_next(ax, p, words, top)
    ax.legend(loc="upper left", ncols=2, fontsize=SMALL)


def _say_next(ax: Axes, p: Plan, words: str, top: float) -> None:
    """Where the next replica is needed, in months."""
    if not words.startswith("months"):
        return
    for replicas, rate in p.thresholds:
        month = p.demand.month_of(rate)
        if month is not None and 0 < month < p.demand.months:
            ax.axvline(month, color=DARK, lw=0.4, gid="step")
            style: Any = {"rotation": 90, "ha": "right", "va": "bottom", "fontsize": SMALL, "color": DARK, "bbox": GROUND}
            said = f"{replicas:,} suffice{'s' if replicas == 1 else ''} to here"
            ax.annotate(said, (month, 0.02 * top), (-1, 0), textcoords="offset points", **style)
