"""The page of a simulated run: its screen, distributions of times, what ran and waited over time. Computes no figure."""

from __future__ import annotations

from typing import Any

import numpy as np

from inferplan.deployment import Estimate
from inferplan.planner.trust import trust
from inferplan.report import opened
from inferplan.report.html.estimate import facts as deployed_facts
from inferplan.report.html.page import Axis, Chart, Fact, Mark, Page, Series
from inferplan.report.html.recorded import recorded, told
from inferplan.report.serving import sentence, show_served, waiting_at
from inferplan.report.serving_plots import ENDLESS
from inferplan.serving.served import Served
from inferplan.serving.slo import Slo
from inferplan.serving.summary import QUANTILES
from inferplan.terms import TERMS
from inferplan.units import show, significant

TIMES = (("ttft_s", "blue", "line"), ("tpot_s", "green", "dashed"), ("itl_max_s", "orange", "dotted"), ("e2e_s", "vermilion", "line"))
SHOWN = (("ttft_s", ("p50", "p99")), ("tpot_s", ("p50", "p99")), ("e2e_s", ("p50", "p99")))


def page(e: Estimate, served: Served, found: dict[str, Any], source: str, slo: Slo | None = None) -> Page:
    """The whole page; a run that served nothing is its sentence and what was asked."""
    answer = sentence(served, found)
    screen = told(recorded(lambda out: show_served(e, served, found, source, out)), answer)
    groups = [("", facts(served, found))] if found["served"] else []
    groups.append(("The deployment, under one request of mean lengths", deployed_facts(e)))
    pictures = figures(e, served, slo) if found["served"] else []
    return Page("simulate", screen.headline, answer, screen.why, groups, screen.asked, pictures, screen.rest)


def facts(served: Served, found: dict[str, Any]) -> list[Fact]:
    """Rates, percentiles and what keeps the limits."""
    done, r = served.done, served.requests
    made = []
    if np.isfinite(found["requests_per_s"]):
        counted = (
            ("requests_per_s", "requests/s", "requests", done),
            ("output_tokens_per_s", "output tokens/s", "output_tokens", r.output_tokens[done]),
        )
        made += [
            Fact(label, significant(found[name]), "served", opened.served_rate(served, name, what, n)) for name, label, what, n in counted
        ]
    for name, marks in SHOWN:
        made += [Fact(f"{TERMS[name].label} {m}", show(found[name][m], "s"), "", opened.served_time(served, name, QUANTILES[m]))
                 for m in marks if found[name][m] is not None]  # fmt: skip
    if "slo_met" in found:
        made.append(Fact("keep the limits", f"{100 * found['slo_share']:.4g} %", found["slo"]))
    return made


def figures(e: Estimate, served: Served, slo: Slo | None) -> list[Chart]:
    """Distributions, and where the run was watched the timeline."""
    return [times(e, served, slo), arrivals(served), *(timeline(served) if any(s.t_s.size for s in served.series) else [])]


def times(e: Estimate, served: Served, slo: Slo | None) -> Chart:
    """The share of requests within a time."""
    series = []
    for name, colour, look in TIMES:
        values = np.sort(getattr(served, name)[served.done])
        values = values[np.isfinite(values) & (values > 0)]
        if values.size:
            series.append(Series(TERMS[name].label, values, 100 * np.arange(1, values.size + 1) / values.size, colour, look))
    marks = [Mark("x", limit, f"{name.upper()} limit") for name, limit in (slo.limits if slo else ())]
    sure = f"Step times may be off by {trust(e).text}."
    return Chart("Times as distributions", Axis("time", "s", log=True), Axis("requests within it", "%"), series, marks, sure)


def arrivals(served: Served) -> Chart:
    """When each request came and how long it waited for its first token and for its end."""
    at = served.requests.arrival_s[served.done]
    names = (("e2e_s", "vermilion", "triangle"), ("ttft_s", "blue", "circle"))
    series = [Series(TERMS[n].label, at, getattr(served, n)[served.done], colour, look) for n, colour, look in names]
    return Chart("Times by arrival", Axis("arrival", "s"), Axis("time", "s", log=True), series)


def timeline(served: Served) -> list[Chart]:
    """Requests that run and wait, and tokens in cache, over all replicas."""
    t = np.unique(np.concatenate([s.t_s for s in served.series]))
    running, waiting, tokens = np.zeros(t.size), np.zeros(t.size), np.zeros(t.size)
    for place, s in enumerate(served.series):
        if s.t_s.size:
            row = np.searchsorted(s.t_s, t, side="right") - 1
            now = np.where(row >= 0, s.running[np.maximum(row, 0)], 0)
            running += now
            tokens += np.where(row >= 0, s.kv_tokens[np.maximum(row, 0)], 0.0)
            waiting += waiting_at(served, t, now, place)
    over, limit = Axis("time", "s"), served.schedule.kv_tokens * len(served.series)
    both = [Series("running", t, running, "blue", "step"), Series("waiting", t, waiting, "vermilion", "step")]
    room = [Mark("y", float(limit), f"cache of {limit:,} tokens")] if limit < ENDLESS else []
    held = [Series("tokens in cache", t, tokens, "green", "step")]
    return [Chart("Requests over time", over, Axis("requests"), both), Chart("Cache over time", over, Axis("tokens in cache"), held, room)]
