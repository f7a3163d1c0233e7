"""A fitted calibration as the YAML that reads back to it, with where it comes from. Knows no clock."""

from __future__ import annotations

from typing import Any

import numpy as np
import yaml

from inferplan.calibrate.fit import Calibrated
from inferplan.roofline.efficiency import Added, Entry, Fitted, Overhead
from inferplan.units import exact

TIMES = (
    "per_step", "per_layer", "per_sequence", "per_expert_layer", "per_recurrent_layer", "host", "host_layer", "per_prompt_layer",
    "per_input_token", "per_prompt",
)  # fmt: skip


def calibration_yaml(found: Calibrated, *, name: str, source: str, date: str) -> str:
    """The file: only what differs from the base it was fitted over, which must be the shipped one.

    `source` names the rows' file, `date` the day of the fit, as 2026-11-30.
    """
    rows = len(found.cases)
    middle = [float(np.median(np.abs(errors))) for errors in (found.before, found.after)]
    title = f"fitted to {rows} rows of {source}: median error {100 * middle[0]:.1f} % before, {100 * middle[1]:.1f} % after"
    data: dict[str, Any] = {
        "name": name,
        "title": title,
        "base": "default",
        "sources": {"cases": {"title": source, "date": date, "kind": "measured"}},
        "kernels": _kernels(found, ""),
        "engine_kernels": {engine: _kernels(found, engine) for engine in sorted({k.engine for k in found.kernels if k.engine})},
        "engines": _engines(found),
        "bands": {
            quantity: {place: {"measured": band.model_dump(exclude_none=True)} for place, band in places.items()}
            for quantity, places in found.bands().items()
        },
    }
    head = "".join(f"# {line}\n" for line in factors(found))
    return head + yaml.safe_dump(data, sort_keys=False, width=140, allow_unicode=True)


def factors(found: Calibrated) -> list[str]:
    """What was fitted, a line each: the factor on the base, its standard deviation, and whether the rows identify it."""
    lines = ["Factors on the base calibration, with the standard deviation of their logarithm:"]
    for f in found.fitted:
        said = "" if f.identified else ", not identified by the rows: near its prior"
        lines.append(f"  {f.parameter.name}: {f.factor:.3f} (+-{f.spread:.2f}{said})")
    return lines


def _kernels(found: Calibrated, engine: str) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for k in found.kernels:
        if k.engine == engine:
            table.setdefault(k.kind, {}).setdefault(k.key, {})[k.part] = _entry(k.entry(found.efficiency), len(found.cases))
    return table


def _entry(entry: Fitted, rows: int) -> dict[str, Any]:
    own: dict[str, Any] = {
        "eff_flops": _share(entry.eff_flops), "eff_bandwidth": _share(entry.eff_bandwidth), "launch": _time(entry.launch),
        "basis": "measured", "rows": rows,
    }  # fmt: skip
    if entry.peak:
        own["peak"] = entry.peak
    if isinstance(entry, Entry) and entry.engines:
        own["engines"] = {name: _entry(fitted, rows) for name, fitted in entry.engines.items()}
    return own


def _engines(found: Calibrated) -> dict[str, Any]:
    names = sorted({f.parameter.owner for f in found.fitted if f.parameter.kind == "engine"})
    return {name: _overhead(found.efficiency.overheads(name), len(found.cases)) for name in names}


def _overhead(own: Added, rows: int) -> dict[str, Any]:
    times = {field: _time(getattr(own, field)) for field in TIMES if getattr(own, field)}
    found = {**times, "launch": _share(own.launch), "collectives": _share(own.collectives), "basis": "measured", "rows": rows}
    parts = own.parts if isinstance(own, Overhead) else {}
    return found | ({"parts": {level: _overhead(added, rows) for level, added in parts.items()}} if parts else {})


def _time(seconds: float) -> str:
    return exact(float(f"{seconds:.5g}"), "s")


def _share(x: float) -> float:
    return round(float(x), 4)
