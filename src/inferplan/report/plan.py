"""A plan on a screen and as a record: a sentence, choices, limits, money, what it hangs on, what fell out. Computes no figure."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from inferplan.planner.plan import Choice, Plan
from inferplan.planner.rows import choice_row, latency_record
from inferplan.planner.trust import trust
from inferplan.planner.whatif import Swing
from inferplan.report.screen import Bold, console, table
from inferplan.units import show, significant

if TYPE_CHECKING:
    from rich.console import Console

    from inferplan.planner.fleet import Fleet

SCHEMA = "inferplan/plan/1"
SHOWN, OF_A_PART = 8, 2
INPUTS = {
    "traffic": "traffic", "peak": "peak over the mean", "price": "price", "times": "step times", "output": "output lengths",
    "input": "prompt lengths", "hits": "hits of the prefix cache", "accept": "drafts kept",
}  # fmt: skip


def usd(value: float | None) -> str:
    """Money in whole dollars from a hundred on, else with three figures.

    >>> usd(12345.6), usd(0.01234), usd(None)
    ('$12,346', '$0.0123', 'unknown')
    """
    if value is None:
        return "unknown"
    return f"${value:,.0f}" if abs(value) >= 100 else f"${significant(value)}"


def sentence(p: Plan) -> str:
    """The plan in one sentence."""
    c, f = p.best, p.best.fleet
    spare = f.replicas - f.at_peak
    many = f"{f.replicas:,} replica{'s' if f.replicas > 1 else ''}"
    kept = f" ({f.at_peak:,} for the peak and {spare:,} for failures{_nodes(f, spare)})" if spare else ""
    if c.replica is None:
        what = f"Run {many}{kept}, {f.gpus:,} device{'s' if f.gpus > 1 else ''} in all"
    else:
        kind, held = c.replica.candidate, f"{c.gpus_per_replica:,} device{'s' if c.gpus_per_replica > 1 else ''}"
        what = (
            f"Run {many}{kept} of {kind.kind.model.title} in {kind.kind.precision.name} on {held} each: "
            f"{f.gpus:,} x {kind.kind.hardware.title}"
        ) + _beside(c)
    if c.bill is None or f.offer is None:
        return f"{what}."
    billed = f" (billed as {f.billed_gpus:,})" if f.billed_gpus != f.gpus else ""
    blended = usd(c.bill.usd_per_million_blended_tokens)
    return f"{what}{billed}, {f.offer.name}: {usd(c.bill.usd_per_month)} a month, {blended} per million tokens at the mean load."


def _nodes(f: Fleet, spare: int) -> str:
    """Why spares are more than the rule says: what fails at once is a node with several replicas on it."""
    nodes = f.kept_units - f.units
    if not 0 < nodes < spare:
        return ""
    return ", as many as a node holds" if nodes == 1 else f", as many as {nodes:,} nodes hold"


def _beside(c: Choice) -> str:
    """Drafts, pools and limits of a choice in words."""
    found = []
    if c.replica is not None and c.replica.draft is not None:
        d = c.replica.draft
        found.append(f"with {d.name} drafts of {d.tokens} tokens")
    if c.replica is not None and c.replica.candidate.max_num_seqs:
        found.append(f"at most {c.replica.candidate.max_num_seqs:,} requests at once on each")
    if c.pools is not None:
        found.append(f"{c.pools[0]:,} for prefill and {c.pools[1]:,} for decode at the peak")
    return f", {', '.join(found)}" if found else ""


def _ways(c: Choice) -> str:
    """The split of a choice, with drafts and pools, for a table."""
    assert c.replica is not None
    parts = [c.replica.candidate.split.replace("one device", "1 device")]
    parts += [c.replica.draft.name] if c.replica.draft is not None else []
    parts += [f"{c.pools[0]}+{c.pools[1]} pools"] if c.pools is not None else []
    return ", ".join(parts)


def headline(p: Plan) -> str:
    """What was asked."""
    d = p.demand
    name = p.best.replica.candidate.kind.model.title if p.best.replica else "A measured replica"
    return f"{name} for {significant(d.mean_per_s)} requests/s in the mean, {significant(d.peak_per_s)} at the peak"


def show_plan(p: Plan, out: Console) -> None:
    """The whole screen."""
    out.print(Bold(headline(p)), style="bold")
    out.print("\n".join(_asked(p)) + "\n")
    out.print(sentence(p))
    for line in _why(p):
        out.print(line)
    if p.best.replica is not None:
        _show_choices(p, out)
        _show_limits(p, out)
    _show_load(p, out)
    if p.best.bill is not None:
        _show_money(p, out)
    _show_hangs(p, out)
    _show_fallen(p, out)
    out.print("")
    for line in _assumptions(p):
        out.print(line)


def _asked(p: Plan) -> list[str]:
    d, w, s = p.demand, p.work, p.goal.safety
    growth = f", {100 * d.growth_per_month:+g} % a month over {d.months:g} months" if d.months and d.growth_per_month else ""
    cached = f", {100 * w.hit_rate:g} % cached" if w.hit_rate else ""
    source = "as given" if d.source == "given" else d.source
    lines = [f"traffic: {source}{growth}", f"prompts {w.input.text}, outputs {w.output.text}{cached}"]
    if p.targets.limits:
        lines.append(f"limits: {p.targets.text} (goodput as {p.targets.variant})")
    hand = f"{100 * (1 - s.queueing):.3g} % of a replica for queueing, {s.redundancy} for failures, {100 * s.buffer:g} % beyond the peak"
    return [*lines, f"kept in hand: {hand}"]


def _why(p: Plan) -> list[str]:
    c = p.best
    if not c.latencies:
        return []
    tight = min(c.latencies, key=lambda late: late.margin_s / late.target.limit_s)
    text = f"A replica takes {significant(c.rate_per_s)} requests/s; {tight.target.name} binds."
    if c.tried is not None:
        whole = "whole " if c.pools else ""
        runs = f"{len(c.tried.values)} runs: {c.tried.verdict}"
        text += f" Simulated {whole}at {significant(c.tried.rate_per_s)} requests/s, {runs}."
    return [text]


def _show_choices(p: Plan, out: Console) -> None:
    rows = []
    shown = _shown(p)
    for c in shown:
        assert c.replica is not None
        k = c.replica.candidate
        f, b = c.fleet, c.bill
        money = [usd(b.usd_per_month), usd(b.usd_per_million_blended_tokens)] if b else ["", ""]
        load = f"{100 * (c.load_mean or 0):.0f}/{100 * (c.load_peak or 0):.0f}"
        rows.append([k.kind.hardware.name, k.kind.precision.name, _ways(c), f"{f.gpus:,}", f"{f.at_mean}/{f.at_peak}/{f.replicas}", *money,
                     load, c.verdict.replace("closed form", "untried")])  # fmt: skip
    head = ["Part", "weights", "split", "devices", "replicas", "a month", "per M", "load %", "simulated"]
    out.print("\nChoices: replicas at mean/peak/with spares, money at the mean, load at mean/peak")
    out.print(table(head, rows, right=(3, 4, 5, 6, 7)))
    if len(p.choices) > len(shown):
        out.print(f"and {len(p.choices) - len(shown)} more (--csv, --json)")


def _shown(p: Plan) -> list[Choice]:
    """The choices on the screen: the best, no more than two of a part."""
    found: list[Choice] = []
    for c in p.choices:
        if sum(other.part == c.part for other in found) < OF_A_PART and len(found) < SHOWN:
            found.append(c)
    return found


def _show_limits(p: Plan, out: Console) -> None:
    rows = []
    for late in p.best.latencies:
        simulated = "" if late.simulated_s is None else f"{show(late.simulated_s, 's')} +- {show(late.half_width_s or 0.0, 's')}"
        rows.append([late.target.name, show(late.at_mean_s, "s"), show(late.at_peak_s, "s"), simulated, show(late.target.limit_s, "s"),
                     f"{100 * late.margin_s / late.target.limit_s:.0f} %"])  # fmt: skip
    out.print("\nTimes of the plan against its limits")
    out.print(table(["", "mean load", "peak", "peak, simulated", "limit", "left"], rows, right=range(1, 6)))
    if p.targets.kind == "share" and p.best.at_peak is not None:
        kept, half = 100 * float(p.best.at_peak.mean[0]), 100 * float(p.best.at_peak.half_width[0])
        out.print(f"{kept:.2f} +- {half:.2f} % of requests keep all limits at the peak.")


def _show_load(p: Plan, out: Console) -> None:
    d, f = p.demand, p.best.fleet
    rows = [
        ["today", significant(d.mean_per_s), significant(d.peak_per_s)],
        [f"in {d.months:g} months", significant(d.later_mean_per_s), significant(d.later_peak_per_s)],
        ["planned", significant(d.planned_mean_per_s), significant(d.planned_peak_per_s)],
    ]
    kept = [r for r in rows if r[0] != "in 0 months"]
    out.print("\nRequests per second")
    out.print(table(["", "mean", "peak"], kept, right=(1, 2)))
    if f.probability is not None:
        out.print(f"Enough of {f.kept_units:,} units are up with probability {f.probability:.5f}; {f.units:,} are needed at the peak.")
    out.print("\nReplicas up to which peak rate")
    rows = [[f"{n:,}", significant(rate, 4), _month(p, rate)] for n, rate in p.thresholds]
    out.print(table(["replicas", "requests/s", "reached"], rows, right=(0, 1)))
    if p.scaled_replicas is not None:
        mean = sum(p.scaled_replicas) / len(p.scaled_replicas)
        ends = f"{min(p.scaled_replicas)} to {max(p.scaled_replicas)} replicas"
        cost = f", {usd(p.scaled_usd_per_month)} a month with the same spares" if p.scaled_usd_per_month is not None else ""
        out.print(f"Scaled with the profile without delay: {ends}, {mean:.3g} in the mean{cost}: a lower bound.")


def _month(p: Plan, rate: float) -> str:
    month = p.demand.month_of(rate)
    return "today" if month == 0 else "" if month is None else f"in month {month:.1f}"


def _show_money(p: Plan, out: Console) -> None:
    b = p.best.bill
    assert b is not None
    rows = [
        ["a month", usd(b.usd_per_month)],
        ["a million input tokens", usd(b.usd_per_million_input_tokens) if p.best.replica else ""],
        ["a million output tokens", usd(b.usd_per_million_output_tokens) if p.best.replica else ""],
        ["a million output tokens, all on them", usd(b.usd_per_million_tokens_all_on_output)],
        ["a million tokens, blended", usd(b.usd_per_million_blended_tokens)],
        ["a thousand requests", usd(b.usd_per_thousand_requests)],
    ]
    if b.kwh_per_month is not None:
        rows.append(["energy a month", f"{b.kwh_per_month:,.0f} kWh"])
        rows.append(["energy per output token", f"{significant(b.joules_per_output_token or 0.0)} J"])
    if b.kg_co2_per_month is not None:
        rows.append(["CO2 a month", f"{b.kg_co2_per_month:,.0f} kg"])
    if p.break_even_per_s is not None:
        rows.append([f"cheaper than {usd(p.goal.money.api_usd_per_million)} per M from", f"{significant(p.break_even_per_s)} requests/s"])
    out.print("\nMoney and energy at the mean load, not at saturation")
    out.print(table(["", ""], [r for r in rows if r[1]], right=(1,)))


def swing_text(s: Swing) -> str:
    """One change of an input in words."""
    change = "none" if s.factor == 0 else f"{100 * (s.factor - 1):+.0f} %"
    what = INPUTS[s.input] + (f" of {s.basis}" if s.input == "price" else f" ({s.basis})" if s.basis else "")
    return f"{what} {change}"


def _show_hangs(p: Plan, out: Console) -> None:
    if not p.swings:
        return
    rows = []
    for s in p.swings:
        cost = "" if s.usd_per_h is None else usd(s.usd_per_h * p.goal.money.hours_per_month)
        fleet = ("none would do", "", "") if s.fleet is None else (f"{s.fleet.replicas:,}", f"{s.fleet.gpus:,}", cost)
        note = f"then best: {s.best}" if s.best else ""
        rows.append([swing_text(s), *fleet, note])
    out.print("\nWhat it hangs on: the same replica under one change at a time")
    out.print(table(["", "replicas", "devices", "a month", ""], rows, right=(1, 2, 3)))
    if p.first is not None:
        out.print(f"Measure first: {INPUTS[p.first.input]}, whose change moves the answer most.")


def _show_fallen(p: Plan, out: Console) -> None:
    if not p.fallen:
        return
    out.print(f"\nOf {p.candidates:,} candidates {len(p.choices):,} are left; the others, and the nearest of each")
    rows = [[f"{f.count:,}", f.group, f"{f.example}: {f.reason}"] for f in p.fallen]
    out.print(table(["", "why", "nearest"], rows, right=(0,)))


def _assumptions(p: Plan) -> list[str]:
    c, lines = p.best, []
    if c.replica is not None:
        if c.replica.draft is not None:
            lines.append(f"{100 * c.replica.draft.accept:g} % of drafts are kept: as given, not known here.")
        lines.append(f"Step times may be off by {trust(c.replica.estimate).text}; a replica gets Poisson arrivals of its own.")
    o = c.fleet.offer
    if o is not None:
        dated = f", {o.date}" if o.date else ""
        kind = "energy included" if o.provider == "owned" else "as given" if o.source == "given" else "indicative"
        source = "" if o.source == "given" else f", {o.source}{dated}"
        lines.append(f"Price: {usd(o.usd_per_gpu_h)} per device and hour{source}; {kind}.")
    if c.bill is not None and c.bill.kwh_per_month is not None:
        m = p.goal.money
        power = "rated power all the time, an upper bound" if m.idle_share == 1 else f"idle power {100 * m.idle_share:g} % of the rated one"
        lines.append(f"Energy: {power}, PUE {m.pue:g}.")
    return [*lines, "See also: inferplan launch ... (what starts a replica, or its manifest); --csv, --xlsx, --html FILE; docs/plan.md."]


def plan_record(p: Plan) -> dict[str, Any]:
    """The plan under the glossary's keys, in base units."""
    d, w = p.demand, p.work
    return {
        "schema": SCHEMA,
        "sentence": sentence(p),
        "demand": {
            "mean_per_s": d.mean_per_s, "peak_per_s": d.peak_per_s, "planned_mean_per_s": d.planned_mean_per_s,
            "planned_peak_per_s": d.planned_peak_per_s, "growth_per_month": d.growth_per_month, "months": d.months, "buffer": d.buffer,
            "source": d.source,
        },
        "input_tokens": w.input.mean, "output_tokens": w.output.mean, "hit_rate": w.hit_rate,
        "slo": p.targets.text, "slo_variant": p.targets.variant if p.targets.limits else "",
        "queueing": p.goal.safety.queueing, "redundancy": p.goal.safety.redundancy,
        "choices": [_choice_record(c) for c in p.choices],
        "thresholds": [{"replicas": n, "rate_per_s": rate, "month": d.month_of(rate)} for n, rate in p.thresholds],
        "sensitivity": [_swing_record(s, p) for s in p.swings],
        "measure_first": INPUTS[p.first.input] if p.first else None,
        "fallen": [{"why": f.group, "count": f.count, "nearest": f.example, "reason": f.reason} for f in p.fallen],
        "candidates": p.candidates, "looked": p.looked,
        "scaled_usd_per_month": p.scaled_usd_per_month,
        "scaled_replicas": list(p.scaled_replicas) if p.scaled_replicas is not None else None,
    }  # fmt: skip


def _choice_record(c: Choice) -> dict[str, Any]:
    tried = c.tried
    runs = {"runs": len(tried.values) if tried else 0, "simulated_rate_per_s": tried.rate_per_s if tried else None}
    kept = float(c.at_peak.shares.mean()) if c.at_peak is not None else None
    return choice_row(c) | runs | {
        "slo_share": kept, "enough_probability": c.fleet.probability, "latencies": [latency_record(late) for late in c.latencies]
    }  # fmt: skip


def _swing_record(s: Swing, p: Plan) -> dict[str, Any]:
    return {
        "input": s.input, "factor": s.factor, "basis": s.basis, "replicas": s.fleet.replicas if s.fleet else None,
        "gpus": s.fleet.gpus if s.fleet else None,
        "usd_per_month": None if s.usd_per_h is None else s.usd_per_h * p.goal.money.hours_per_month, "best": s.best,
    }  # fmt: skip


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[Callable[[str, int, int], None] | None]:
    """What is being done on stderr, where stderr is a terminal; else nothing."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    with Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=console(error=True), transient=True) as bar:
        task = bar.add_task("", total=1)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)
