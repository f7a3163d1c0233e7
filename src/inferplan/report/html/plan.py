"""The page of a plan: choices, limits and money as on its screen, with pictures and headline numbers opened. Computes no figure."""

from __future__ import annotations

import numpy as np

from inferplan.planner.demand import grown_per_s
from inferplan.planner.plan import Choice, Plan
from inferplan.report import opened
from inferplan.report.html.compare import COLOURS
from inferplan.report.html.estimate import facts as replica_facts
from inferplan.report.html.page import Axis, Bar, Bars, Chart, Fact, Mark, Page, Part, Series
from inferplan.report.html.recorded import recorded, told
from inferplan.report.plan import sentence, show_plan, swing_text, usd
from inferplan.units import show

LEAST_MONTHS, AHEAD = 12, 1.5  # months on the axis at least, and times those that are planned for
LOOKS = ("circle", "triangle", "square", "diamond")


def page(p: Plan) -> Page:
    """The whole page."""
    screen = told(recorded(lambda out: show_plan(p, out)), sentence(p))
    groups = [("", facts(p))]
    if p.best.replica is not None:
        groups.append(("One request alone on a replica", replica_facts(p.best.replica.estimate)))
    return Page("plan", screen.headline, sentence(p), screen.why, groups, screen.asked, figures(p), screen.rest)


def facts(p: Plan) -> list[Fact]:
    """Money, replicas and devices opened; times against their limits."""
    f, b = p.best.fleet, p.best.bill
    found = []
    if b is not None and f.offer is not None:
        hours = f"{usd(b.usd_per_h)} an hour, {f.offer.name}"
        found += [Fact("a month", usd(b.usd_per_month), hours, opened.usd_per_month(p)),
                  Fact("a million tokens, blended", usd(b.usd_per_million_blended_tokens), "at the mean load",
                       opened.usd_per_million_blended_tokens(p))]  # fmt: skip
    kept = f"{f.at_mean:,} at the mean, {f.at_peak:,} at the peak"
    found += [
        Fact("replicas", f"{f.replicas:,}", kept, opened.replicas(p)),
        Fact("devices", f"{f.gpus:,}", f"billed {f.billed_gpus:,}", opened.gpus(p)),
    ]
    for late in p.best.latencies:
        how = "simulated" if late.simulated_s is not None else "closed form"
        half = f" +- {show(late.half_width_s, 's')}" if late.half_width_s else ""
        beside = f"{how}{half}, at the peak; limit {show(late.target.limit_s, 's')}"
        found.append(Fact(late.target.name, show(late.shown_s, "s"), beside))
    return found


def figures(p: Plan) -> list[Chart | Bars]:
    """Pictures of a plan; those that say nothing are left out."""
    found: list[Chart | Bars] = [candidates(p)] if p.best.replica is not None and len(p.choices) > 1 else []
    found += [months(p)] if p.demand.growth_per_month and p.best.load_peak is not None else []
    found += [profile(p)] if p.scaled_replicas is not None else []
    return found + ([swings(p)] if any(s.usd_per_h is not None for s in p.swings) else [])


def candidates(p: Plan) -> Chart:
    """Money, or devices where there is no price, against the first limit's time or what a replica takes."""
    priced = all(c.bill is not None for c in p.choices)
    timed = p.best.latencies[0].target if p.best.latencies else None
    y = Axis("cost of a month", "USD", log=True) if priced else Axis("devices", log=True)
    x = Axis(f"{timed.name} at the planned peak", "s", log=True) if timed else Axis("requests/s of a replica", log=True)
    parts: dict[str, list[Choice]] = {}
    for c in p.choices[1:]:
        parts.setdefault(c.part, []).append(c)
    series = [_points("the plan", p.choices[:1], "black", "diamond", priced)]
    series += [_points(part, own, COLOURS[i % 6], LOOKS[i % 3], priced) for i, (part, own) in enumerate(parts.items())]
    marks = [Mark("x", timed.limit_s, "limit", "vermilion")] if timed else []
    note = f"{len(p.choices):,} fleets that reach the goal. Times are simulated where the name says so, else in closed form."
    return Chart("Cost against latency of what reaches the goal", x, y, series, marks, note)


def _points(label: str, found: tuple[Choice, ...] | list[Choice], colour: str, look: str, priced: bool) -> Series:
    x = [c.latencies[0].shown_s if c.latencies else c.rate_per_s for c in found]
    y = [c.bill.usd_per_month if priced and c.bill else float(c.fleet.gpus) for c in found]
    return Series(label, x, y, colour, look, names=[f"{c.name}, {c.fleet.gpus:,} devices, {c.verdict}" for c in found])


def months(p: Plan) -> Chart:
    """How full the fleet of the plan is month by month, as traffic grows."""
    c, d = p.best, p.demand
    t = np.linspace(0.0, max(LEAST_MONTHS, AHEAD * d.months), 61)
    later = 100 * np.asarray(grown_per_s(1.0, d.growth_per_month, t), dtype=float) / d.growth
    loads = (
        ((c.load_peak or 0.0) / (1 + d.buffer), "at the peak, on the replicas for it", "vermilion"),
        (c.load_mean or 0.0, "in the mean, on all replicas", "blue"),
    )
    series = [Series(label, t, load * later, colour, "line" if i else "dashed") for i, (load, label, colour) in enumerate(loads)]
    marks = [Mark("y", 100.0, "all that the replicas can serve"), Mark("x", d.months, "planned for", "green")]
    return Chart(
        "Load through the months", Axis("months from today"), Axis("load", "%"), series, marks, "Without the buffer beyond the peak."
    )


def profile(p: Plan) -> Chart:
    """Traffic and replicas through the profile, if they were scaled without delay."""
    found = p.scaled_replicas or ()
    steps, f = np.arange(len(found) + 1), p.best.fleet
    wide = np.append(found, found[-1:])
    series = [
        Series("scaled with the profile", steps, wide, "blue", "step"),
        Series("kept by the plan", steps, np.full(steps.size, f.replicas), "black", "dashed"),
    ]
    note = "Scaling without delay is a lower bound." + (
        f" It would cost {usd(p.scaled_usd_per_month)} a month." if p.scaled_usd_per_month else ""
    )
    return Chart("Replicas through the profile", Axis("step of the profile"), Axis("replicas"), series, note=note)


def swings(p: Plan) -> Bars:
    """What the plan costs under one change at a time."""
    hours, b = p.goal.money.hours_per_month, p.best.bill
    assert b is not None
    bars = [Bar("as planned", [Part("a month", b.usd_per_month, "green")], usd(b.usd_per_month))]
    for s in p.swings:
        if s.usd_per_h is not None:
            cost = s.usd_per_h * hours
            bars.append(Bar(swing_text(s), [Part("a month", cost, "blue")], f"{usd(cost)}{f', then best: {s.best}' if s.best else ''}"))
    return Bars("What the cost hangs on: one change at a time", Axis("cost of a month", "USD"), bars)
