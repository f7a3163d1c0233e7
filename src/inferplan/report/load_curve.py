"""A load curve as rows, as a record and on a screen. Computes no figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from inferplan.deployment import Estimate
from inferplan.report.estimates import deployed
from inferplan.report.grid import Grid
from inferplan.report.screen import Bold, table
from inferplan.report.serving import beside_remark
from inferplan.report.words import band_words
from inferplan.serving.summary import LoadCurve
from inferplan.units import show, significant

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = "inferplan/load-curve/3"
_TIMES = {"ttft_s": ("mean", "p99"), "tpot_s": ("mean", "p99"), "e2e_s": ("mean", "p99")}
_RATES = ("requests_per_s", "output_tokens_per_s", "mean_in_flight", "preemptions", "slo_share", "goodput_per_s", "slo_met")
_ENDS = ("", "_low", "_high")
_STATED = tuple((t, f"{k}{end}") for t, keys in _TIMES.items() for k in keys for end in _ENDS)
CURVE_COLUMNS = ("offered_per_s", *_RATES, *(f"{t}.{k}" for t, k in _STATED))


def curve_rows(found: LoadCurve) -> list[dict[str, Any]]:
    """A row per rate, in base units."""
    return [
        {"offered_per_s": rate, **{k: s.get(k) for k in _RATES}, **{f"{t}.{k}": s[t][k] for t, k in _STATED}}
        for rate, s in found.points
    ]


def curve_record(e: Estimate, found: LoadCurve, source: str) -> dict[str, Any]:
    """The curve under the glossary's keys."""
    return {
        "schema": SCHEMA, **deployed(e, "model", "hardware", "gpus", "engine"), "source": source,
        "knee_per_s": found.knee_per_s, "capacity_per_s": found.capacity_per_s, "largest_per_s": found.largest_per_s,
        "slo": found.slo.text if found.slo else None, "partial": found.partial, "points": curve_rows(found),
    }  # fmt: skip


def sentence(found: LoadCurve) -> str:
    """The answer first: the largest rate within limits, and the knee; '' where neither is known."""
    lines = []
    if found.largest_per_s is not None and found.slo is not None:
        lines.append(f"Up to {significant(found.largest_per_s)} requests/s meet {found.slo.text}.")
    if np.isfinite(found.knee_per_s):
        knee, most = significant(found.knee_per_s), significant(found.capacity_per_s)
        lines.append(f"The knee lies at {knee} requests/s; all at once, {most} are served.")
    return "\n".join(lines)


def show_curve(e: Estimate, found: LoadCurve, source: str, out: Console) -> None:
    """The whole screen."""
    out.print(Bold(f"{e.model.title} on {e.gpus:,} x {e.hardware.title}, {e.engine.title} {e.engine.version}"), style="bold")
    out.print(f"requests: {source}, stretched to each rate\n")
    if found.partial:
        out.print("Interrupted: the curve ends early.")
    if said := sentence(found):
        out.print(said)
    out.print("")
    out.print(curve_table(found))
    if any(s["ttft_s"]["mean_low"] is not None for _, s in found.points):
        out.print("")
        out.print(_band_table(found))
    if lines := beside_remark(e, found.points[0][1]["front_end_s"]) if found.points else []:
        out.print("\n" + "\n".join(lines))


def curve_table(found: LoadCurve) -> Grid:
    """A row per rate."""
    head = ["Offered/s", "served/s", "in flight", "TTFT", "TTFT p99", "TPOT", "TPOT p99", "E2E", "E2E p99"]
    rows = [_cells(rate, s, found) for rate, s in found.points]
    if found.slo:
        head.append("in limits")
    return table(head, rows, right=range(len(head)))


def _band_table(found: LoadCurve) -> Grid:
    """Where four of five measurements of each time are expected."""
    head = ["80 % band at", "TTFT", "TTFT p99", "TPOT", "TPOT p99", "E2E", "E2E p99"]
    rows = [[significant(rate), *(band_words(_ends(s, t, k)) for t, keys in _TIMES.items() for k in keys)] for rate, s in found.points]
    return table(head, rows, right=range(len(head)))


def _ends(s: dict[str, Any], time: str, key: str) -> tuple[float, float] | None:
    low, high = s[time][f"{key}_low"], s[time][f"{key}_high"]
    return None if low is None else (low, high)


def _cells(rate: float, s: dict[str, Any], found: LoadCurve) -> list[str]:
    times = [("" if s[t][k] is None else show(s[t][k], "s")) for t, keys in _TIMES.items() for k in keys]
    cells = [significant(rate), significant(s["requests_per_s"]), significant(s["mean_in_flight"])]
    return [*cells, *times, *([f"{100 * s['slo_share']:.3g} %"] if found.slo else [])]
