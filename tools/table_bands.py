"""Error bands of older cores, of engines without serving runs, and of makers without kernel timings: calibration/table_bands.yaml.

Usage: python tools/table_bands.py

From the batches of validation/offline.csv that do not wait for arrivals. A row speaks of TPOT, or of TTFT where it is a first token's:
whole batches of at least LONG output tokens are nearly all decode steps.

- An engine's core (`vllm-v0`), and a core on a class of parts of another maker than NVIDIA: rows that tools/fit_tables.py fits are
  predicted with their model and with their part left out, others as they are, since nothing was fitted to them.
- `default on amd` (intel, aws) and on classes of theirs, and `default` for makers without any row: rows of those parts predicted as if no
  table had been there, from kernels of the makers' sheets and engines as they are on NVIDIA's parts. Where such rows say nothing of TTFT,
  it has the wider ends of TPOT there and of TTFT on NVIDIA's unseen classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from fit_tables import GROUPS, ROWS, Group, Run, Table, bare, fit, plain, run_of
from residual_bands import LEAST, Made, balance, made, rows_of
from residual_bands import Table as Bands
from residual_bands import written as bands_written

from inferplan.calibrate.cases import Case, read_cases
from inferplan.calibrate.deployed import Deployment
from inferplan.calibrate.predict import Predictor
from inferplan.calibrate.validate import outcomes
from inferplan.roofline.bands import Known, TimeName
from inferplan.roofline.efficiency import Efficiency
from inferplan.specs.engine import Engine
from inferplan.specs.hardware import Accelerator

ROOT = Path(__file__).parents[1]
PATH = ROOT / "calibration" / "table_bands.yaml"
LONG = 32
NO_ROWS = "no such rows - TPOT here and TTFT on unseen classes of NVIDIA"
FIRST = ("ttft_s", "prefill_tokens_per_s")
RATES = ("tokens_per_s", "requests_per_s")
WAYS = ("model", "gpu")
QUANTITIES: tuple[TimeName, ...] = ("tpot", "ttft")
SERVED = ("vllm", "sglang", "tensorrt-llm")  # cores with serving runs, whose bands on NVIDIA's parts are those of such runs
TABLED = tuple(dict.fromkeys(group.core for group in GROUPS if group.core not in SERVED))
HEAD = """# Written by tools/table_bands.py from validation/offline.csv; do not edit, run it again. Measured over estimated, 10th and 90th
# percentile of rows that no fit had seen (tools/table_bands.py says which).
name: table bands
"""


@dataclass(frozen=True)
class Row:
    """A measurement of TPOT or TTFT, and logarithms of measured over predicted times: model left out, part left out."""

    case: Case
    quantity: str
    core: str
    architecture: str
    ratios: tuple[float, float]

    @property
    def maker(self) -> str:
        """As calibrations name it."""
        return self.architecture.split("-")[0]

    @property
    def series(self) -> tuple[str, ...]:
        """What counts once by the square root of its rows."""
        return (self.core, *(self.case.row[column] for column in ("gpu", "model", "weights")))


def quantity_of(case: Case) -> str | None:
    """The time that a row speaks of; None for arrivals, whose times are queues, and for short outputs."""
    if case.row["rate_per_s"]:
        return None
    if case.quantity in FIRST:
        return "ttft" if not case.row["concurrency"] else None
    alone = case.quantity in ("tpot_s", "itl_s", "decode_tokens_per_s")
    return "tpot" if alone or int(case.row["output_tokens"] or 1) >= LONG else None


def core_of(case: Case) -> str:
    """The core that a row ran on."""
    deployment = Deployment.of(case)
    return Engine.find(deployment.engine, deployment.version).timed_as


def class_of(case: Case) -> str:
    """The class of its part."""
    return Accelerator.find(case.row["gpu"]).architecture


def predicted(cases: list[Case], efficiency: Efficiency) -> Iterator[Row]:
    """Rows predicted by a calibration as it is."""
    for o in outcomes(cases, Predictor(efficiency)):
        quantity = quantity_of(o.case)
        if quantity and o.predicted and np.isfinite(o.predicted):
            ratio = float(np.log(o.case.value / o.predicted)) * (-1 if o.case.quantity.endswith(RATES) else 1)
            yield Row(o.case, quantity, core_of(o.case), class_of(o.case), (ratio, ratio))


def left_out(group: Group, runs: list[Run]) -> Iterator[Row]:
    """The rows of a group with their model, and with their part, left out of its fit; of but one, by its own column."""
    names = (*group.constants, *group.kernels)
    ways = [_unseen(runs, names, column if len({r.case.row[column] for r in runs}) > 1 else group.held) for column in WAYS]
    for i, run in enumerate(runs):
        quantity = quantity_of(run.case)
        if quantity:
            yield Row(run.case, quantity, run.core, run.architecture, (float(ways[0][i]), float(ways[1][i])))


def _unseen(runs: list[Run], names: tuple[str, ...], column: str) -> np.ndarray:
    values = np.array([r.case.row[column] for r in runs])
    found = np.zeros(len(runs))
    for value in np.unique(values):
        out = values == value
        rest = [r for r, o in zip(runs, out, strict=True) if not o]
        own = Table([r for r, o in zip(runs, out, strict=True) if o])
        found[out] = np.log(own.seconds / own.predict(fit(rest or runs, names)))
    return found


def untabled(shipped: Efficiency) -> Efficiency:
    """The shipped calibration as it would be without a table of any maker but NVIDIA."""
    kept = {name: own.model_copy(update={"parts": {}}) for name, own in shipped.engines.items() if name not in ("neuronx", "mlx")}
    return shipped.model_copy(update={"engines": kept, "kernels": bare().kernels})


def rows() -> tuple[list[Row], list[Row]]:
    """Rows by what the shipped calibration makes of them unseen, then those of other makers as if nobody had tabled them."""
    cases = [c for c in read_cases(ROWS)[0] if quantity_of(c)]
    efficiency, found, seen = bare(), [], set()
    runs = [r for r in (run_of(c, efficiency) for c in cases if c.row["batch"] and plain(c)) if r is not None]
    for group in GROUPS:
        own = [r for r in runs if r.core == group.core and r.architecture in group.classes and group.has(r.case.row["gpu"])]
        seen |= {(r.case.name, r.case.quantity) for r in own}
        found += list(left_out(group, own))
    rest = [c for c in cases if (c.name, c.quantity) not in seen]
    others = [c for c in cases if not class_of(c).startswith(("nvidia", "apple"))]
    shipped = Efficiency.load(ROOT / "calibration" / "default.yaml")
    return found + list(predicted(rest, shipped)), list(predicted(others, untabled(shipped)))


def band_of(own: list[Row], general: Made | None = None, *, unit: str = "") -> Made:
    """The band of rows; `unit` maker: bands are tried without one maker, else without a model and without a part."""
    ratios = [np.array([r.ratios[i] for r in own]) for i in (0, 1)]
    units = [np.array([r.maker for r in own])] if unit else [np.array([r.case.row[column] for r in own]) for column in WAYS]
    return made(ratios, balance([r.series for r in own]), units, general=general)


def served(quantity: TimeName, known: Known) -> Made:
    """The band of served runs."""
    band = Efficiency.load(ROOT / "calibration" / "bands.yaml").band(quantity, "", "", known, "nvidia-hopper")
    assert band is not None
    return Made(band.low, band.high, band.rows or 0, band.covered, 1.0)


def bands(found: list[Row], blind: list[Row]) -> Bands:
    """All bands, by quantity and place."""
    table: Bands = {}
    for quantity in QUANTITIES:
        own, others = ([r for r in rows if r.quantity == quantity] for rows in (found, blind))
        makers = _makers(others, quantity)
        table[quantity] = _cores(own, quantity, makers) | makers | {"default": {"inherited": band_of(others, unit="maker")}}
    for place, known in table["tpot"].items():
        if place.startswith("default on ") and place not in table["ttft"]:
            table["ttft"][place] = {name: _first(band) for name, band in known.items()}
    return table


def _first(gap: Made) -> Made:
    """TTFT of a maker of which only TPOT was measured."""
    other = served("ttft", "inherited")
    return Made(min(gap.low, other.low), max(gap.high, other.high), 0, None, 1.0, note=NO_ROWS)


def _cores(own: list[Row], quantity: TimeName, makers: dict[str, dict[str, Made]]) -> dict[str, dict[str, Made]]:
    places: dict[str, list[Row]] = {}
    for r in own:
        if r.maker != "nvidia":
            places.setdefault(f"{r.core} on {r.architecture}", []).append(r)
        elif r.core in TABLED:
            places.setdefault(r.core, []).append(r)
    general = served(quantity, "measured")
    found = {}
    for name, of in sorted(places.items()):
        if len(of) >= LEAST:
            wide = makers.get(f"default on {of[0].maker}", {}).get("inherited", general) if " on " in name else general
            found[name] = _both(of, wide, both=" on " in name)
    return found


def _makers(others: list[Row], quantity: TimeName) -> dict[str, dict[str, Made]]:
    """Bands of other makers' parts, never surer than those of served runs on parts that were timed."""
    places: dict[str, list[Row]] = {}
    for r in others:
        for level in (r.maker, r.architecture):
            places.setdefault(f"default on {level}", []).append(r)
    found = {name: _both(of, None, both=True) for name, of in sorted(places.items()) if len(of) >= LEAST}
    return {name: {known: _at_least(band, served(quantity, "measured")) for known, band in own.items()} for name, own in found.items()}


def _at_least(band: Made, other: Made) -> Made:
    return replace(band, low=min(band.low, other.low), high=max(band.high, other.high))


def _both(own: list[Row], general: Made | None, *, both: bool) -> dict[str, Made]:
    """A band of a place holds whatever its kernels were taken from."""
    band = band_of(own, general)
    return {"measured": band, "inherited": band} if both else {"measured": band}


def main() -> None:
    table = bands(*rows())
    PATH.write_text(HEAD + "\n".join(bands_written(table)) + "\n")
    for line in rows_of(table):
        print(*line)


if __name__ == "__main__":
    main()
