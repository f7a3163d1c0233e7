"""Headline numbers of plans, simulations and validations as trees, in the equations they are made by. Knows no screen and no page."""

from __future__ import annotations

from typing import Any

import numpy as np

from inferplan.calibrate.validate import Outcome
from inferplan.explain.node import Node, by_formula, derived, leaf
from inferplan.planner.plan import Plan
from inferplan.serving.served import Served

COST = "planned: the offer under which the fleet costs least"


def planned_peak(p: Plan) -> Node:
    """The rate that capacity is planned for."""
    d, source = p.demand, "given" if p.demand.source == "given" else p.demand.source
    rates = leaf("peak_per_s", d.peak_per_s, "1/s", f"traffic: {source}")
    growth = leaf("growth_per_month", d.growth_per_month, "", "given: --growth"), leaf("months", d.months, "", "given: --months")
    buffer = leaf("buffer", d.buffer, "", "given: --buffer")
    return derived("planned_peak_per_s", "peak_per_s * (1 + growth_per_month) ** months * (1 + buffer)", "1/s", rates, *growth, buffer)


def replicas(p: Plan) -> Node:
    """Replicas that are kept: those for the peak, and spares."""
    f = p.best.fleet
    spares = leaf("spares", f.replicas - f.at_peak, "", f"redundancy: {p.goal.safety.redundancy}, in units that fail at once")
    return derived("replicas", "at_peak + spares", "", at_peak(p), spares)


def at_peak(p: Plan) -> Node:
    """Replicas for the planned peak: by what one takes, or where pools are apart by their simulation."""
    c = p.best
    if c.pools is not None:
        return leaf("at_peak", c.fleet.at_peak, "", f"{c.verdict} in simulation: {c.pools[0]:,} for prefill, {c.pools[1]:,} for decode")
    how = f"simulation, which {c.verdict} the limits there" if c.tried else c.verdict
    rate = leaf("per_replica_per_s", c.rate_per_s, "1/s", f"largest rate within the limits: {how}")
    queueing = leaf("queueing", p.goal.safety.queueing, "", "given: --queueing, the share of that rate which is planned on a replica")
    return by_formula("at_peak", "replicas_needed", rate_per_s=planned_peak(p), per_replica_per_s=rate, queueing=queueing)


def gpus(p: Plan) -> Node:
    """Devices that work or stand by."""
    each = leaf("gpus_per_replica", p.best.gpus_per_replica, "", "planned: the split of a replica")
    return derived("gpus", "replicas * gpus_per_replica", "", replicas(p), each)


def billed_gpus(p: Plan) -> Node:
    """Devices that are paid for: whole nodes."""
    f, o = p.best.fleet, p.best.fleet.offer
    if o is None or o.node_gpus == 1:
        return derived("billed_gpus", "gpus", "", gpus(p))
    each = leaf("gpus_per_replica", f.gpus_per_replica, "", "planned: the split of a replica")
    node = leaf("node_gpus", o.node_gpus, "", f"{o.name}: devices rented together")
    fits = o.node_gpus >= f.gpus_per_replica
    nodes = "ceil(replicas / floor(node_gpus / gpus_per_replica))" if fits else "replicas * ceil(gpus_per_replica / node_gpus)"
    return derived("billed_gpus", f"{nodes} * node_gpus", "", replicas(p), each, node)


def usd_per_h(p: Plan) -> Node:
    """What the fleet costs for an hour; only where there is an offer."""
    o = p.best.fleet.offer
    assert o is not None
    source = f"{o.name}: {o.source}{f', {o.date}' if o.date else ''}; {COST}"
    return derived(
        "usd_per_h", "billed_gpus * usd_per_gpu_h", "USD/h", billed_gpus(p), leaf("usd_per_gpu_h", o.usd_per_gpu_h, "USD/h", source)
    )


def usd_per_month(p: Plan) -> Node:
    """What the fleet costs in a month."""
    return derived(
        "usd_per_month", "usd_per_h * hours", "USD", usd_per_h(p), leaf("hours", p.goal.money.hours_per_month, "", "given: --hours")
    )


def usd_per_million_blended_tokens(p: Plan) -> Node:
    """The bill over tokens in and out, at the mean load of the day that is planned for."""
    d, w = p.demand, p.work
    mean = leaf("mean_per_s", d.mean_per_s, "1/s", f"traffic: {d.source}")
    grown = leaf("growth_per_month", d.growth_per_month, "", "given: --growth"), leaf("months", d.months, "", "given: --months")
    rate = derived("later_mean_per_s", "mean_per_s * (1 + growth_per_month) ** months", "1/s", mean, *grown)
    lengths = [
        leaf(n, law.mean, "", f"given: {law.text}, in the mean") for n, law in (("input_tokens", w.input), ("output_tokens", w.output))
    ]
    tokens = derived("tokens", "input_tokens + output_tokens", "", *lengths)
    return by_formula("usd_per_million_blended_tokens", "usd_per_million", usd_per_h=usd_per_h(p), rate_per_s=rate, tokens=tokens)


def served_rate(served: Served, label: str, what: str, counts: Any) -> Node:
    """So much of something a second: what requests that were served have of it, over the time from first arrival to last answer."""
    many = f"counted: {int(served.done.sum()):,} requests that were served"
    first = leaf("first_arrival_s", float(np.nanmin(served.requests.arrival_s)), "s", "of the requests")
    last = leaf("last_answer_s", float(np.nanmax(served.finish_s)), "s", f"simulated: {served.schedule.scheduler}")
    span = derived("makespan_s", "last_answer_s - first_arrival_s", "s", last, first)
    return derived(label, f"{what} / makespan_s", "1/s", leaf(what, float(np.sum(counts)), "", many), span)


def served_time(served: Served, name: str, share: float) -> Node:
    """A percentile of a time over the requests that were served."""
    at = leaf("share", share, "", "the percentile")
    return derived(f"{name[:-2]}_p{100 * share:g}_s", f"quantile({name}, share)", "s", _served_times(served, name), at)


def _served_times(served: Served, name: str) -> Node:
    """A time of each request that was served; of what begins with its arrival the part in the engine, and what host and front end take."""
    beside = np.broadcast_to(served.front_s if name in ("ttft_s", "e2e_s") else 0.0, served.done.shape)
    values = getattr(served.with_front(0.0), name)
    known = served.done & np.isfinite(values)
    source = f"simulated: {int(known.sum()):,} requests under {served.schedule.scheduler}"
    if not np.any(beside):
        return leaf(name, values[known], "s", source)
    front = leaf("front_end_s", beside[known], "s", "calibration: what host and front end take for each prompt beside the steps")
    return derived(name, "in_engine_s + front_end_s", "s", leaf("in_engine_s", values[known], "s", source), front)


def error_quantile(found: list[Outcome], label: str, share: float, *, signed: bool = False) -> Node | None:
    """A percentile of relative errors, absolute ones unless `signed`; None where one is infinite or there is none."""
    rows = [o for o in found if o.error is not None]
    known = np.array([o.case.value for o in rows], dtype=float)
    if not known.size or np.any(known == 0):
        return None
    made = leaf("predicted", np.array([o.predicted for o in rows], dtype=float), "", f"predicted: {len(rows):,} rows")
    values = leaf("value", known, "", f"known: {len(rows):,} rows of the case file")
    text = "predicted / value - 1" if signed else "abs(predicted / value - 1)"
    errors = derived("errors", text, "", made, values)
    return derived(label, "quantile(errors, share)", "", errors, leaf("share", share, "", "the percentile"))
