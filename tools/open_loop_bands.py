"""Error bands of percentiles under arrival rates: calibration/percentiles.yaml and validation/OPEN_LOOP.md.

Usage: python tools/open_loop_bands.py

None of the runs of validation/open_loop.csv was fitted to. Percentiles of TTFT and of whole requests miss by more than means do: they hang
on the longest queue. Those of a request's mean gap were not measured there; most of a whole request is its gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from markdown_table import table
from residual_bands import HEAD as BAND_HEAD
from residual_bands import Table as Bands
from residual_bands import balance, made, rows_of
from residual_bands import written as bands_written
from table_results import predicted

from inferplan.calibrate.summary import Summary, grouped, summary
from inferplan.calibrate.validate import Outcome

ROOT = Path(__file__).parents[1]
ROWS, FILE, PAGE = ROOT / "validation" / "open_loop.csv", ROOT / "calibration" / "percentiles.yaml", ROOT / "validation" / "OPEN_LOOP.md"
TIMES = {"ttft": "ttft_s", "e2e": "e2e_s"}
TAILS = ("p90", "p99")
SERIES = ("model", "gpu", "workload")
HEAD = """# Written by tools/open_loop_bands.py from validation/open_loop.csv; do not edit, run it again. Measured over
# estimated, 10th and 90th percentile of runs of vLLM, none of which was fitted to. A percentile has the wider ends of these and of the band
# of its mean.
name: percentiles
"""
TEXT = """# How far estimates lie from served runs under arrival rates

Written by `python tools/open_loop_bands.py`; do not edit. {rows} figures of {runs} runs of vLLM 0.15.1 under arrivals at a rate
([README.md](README.md)), simulated request by request. Nothing was fitted to them.

`held` is the share of figures in their 80 % band. Means have the bands of closed loops (RESULTS.md). Percentiles have bands from these
runs, moved outwards until bands made without a model hold 80 % of its figures (`model out`: that share), and where the band of the mean
is wider, its ends: no percentile is surer than the mean.

{overall}
## Bands of percentiles

{bands}
As measured over predicted. Percentiles from the 75th to the 95th have the band of p90, those above that of p99; those below have that of
the mean. TPOT's have those of whole requests, most of which is their gaps.

## By model

{models}
## By part

{parts}
"""


def bands(found: Sequence[Outcome]) -> Bands:
    """Bands by time and percentile."""
    whole: Bands = {}
    for name, quantity in TIMES.items():
        own = {}
        for tail in TAILS:
            rows = [o for o in found if o.case.quantity == quantity and o.case.row["statistic"] == tail and o.predicted]
            ratio = np.log([o.case.value / (o.predicted or 1.0) for o in rows])
            models = np.array([o.case.row["model"] for o in rows])
            own[tail] = made([ratio], balance([tuple(o.case.row[c] for c in SERIES) for o in rows]), [models])
        whole[name] = {"default": own}
    whole["tpot"] = whole["e2e"]
    return whole


def page(found: Sequence[Outcome], of: Bands) -> str:
    """The page, of outcomes under the bands that were made."""
    shown = {name: {"percentiles": of[name]["default"]} for name in TIMES}
    return TEXT.format(
        rows=len(found), runs=sum(o.case.quantity == "itl_s" for o in found), overall=by(found, ("quantity", "statistic"), of),
        bands=table(["", "", "of", *BAND_HEAD], rows_of(shown)), models=by(found, ("model",)), parts=by(found, ("gpu",)),
    )  # fmt: skip


def by(found: Sequence[Outcome], columns: Sequence[str], of: Bands | None = None) -> str:
    """A table of errors and of what bands hold."""
    groups = grouped(found, columns) | {_all(columns): summary(found)}
    lines = [[*key, *_cells(s), *([_unseen(key, of)] if of else [])] for key, s in groups.items()]
    return table([*columns, "rows", "median", "mean", "sign", "held", *(["model out"] if of else [])], lines)


def _all(columns: Sequence[str]) -> tuple[str, ...]:
    return ("all", *[""] * (len(columns) - 1))


def _cells(s: Summary) -> list[str]:
    shown = [s.median_error or 0.0, s.mean_error or 0.0]
    sign, held = f"{100 * (s.signed_median or 0.0):+.1f} %", f"{100 * (s.covered or 0.0):.0f} %"
    return [str(s.rows), *(f"{100 * x:.1f} %" for x in shown), sign, held]


def _unseen(key: tuple[str, ...], of: Bands) -> str:
    own = of.get(key[0].removesuffix("_s"), {}).get("default", {}).get(key[1] if len(key) > 1 else "")  # type: ignore[call-overload]
    return "" if own is None or own.covered is None else f"{own.covered:.0%}"


def main() -> None:
    first = bands(predicted(ROWS, "default"))
    FILE.write_text(HEAD + "\n".join(bands_written(first)) + "\n")
    found = predicted(ROWS, str(ROOT / "calibration" / "default.yaml"))
    PAGE.write_text(page(found, first))
    for line in rows_of(first):
        print(*line)
    print(f"held: {summary(found).covered:.3f}")


if __name__ == "__main__":
    main()
