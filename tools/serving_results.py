"""The published accuracy page of serving runs: validation/RESULTS.md, from predictions made by tools/fit_serving.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from markdown_table import table
from serving_bands import SERIES

from inferplan.calibrate.cases import Case
from inferplan.calibrate.validate import Outcome
from inferplan.report import canvas
from inferplan.report.parity import plot_parity
from inferplan.roofline.bands import Known, TimeName
from inferplan.roofline.efficiency import Efficiency

ROOT = Path(__file__).parents[1]
KNOWN: tuple[Known, ...] = ("measured", "inherited", "waiting")
SEEN = "nvidia-hopper"  # a class of the vendor whose classes were left out
PICTURE = ROOT / "validation" / "serving.png"
PAGE = ROOT / "validation" / "RESULTS.md"
PEERS = ROOT / "validation" / "aiconfigurator.csv"
Found = dict[str, np.ndarray]

HEAD = """# How far estimates lie from served traffic

Written by `python tools/fit_serving.py`; do not edit. {rows:,} runs of the public InferenceMAX sweeps ([README.md](README.md)): clients
in a closed loop, ten prompts each, lengths uniform from 0.8 to 1 of nominal. Errors are of the mean time per output token (TPOT) and of the
mean time to first token (TTFT).

- **in sample**: constants of calibration/serving.yaml, fitted to these runs: ten for TPOT (two of each engine, four shared) and six for
  TTFT (one of each engine, one more of SGLang and of TensorRT-LLM, one shared). Kernels and links come from timings of kernels alone.
- **one model out**, **one part out**: each model's (each part's) runs predicted from constants fitted to all others, which is what a
  model or a part that nobody measured gets.
- **the plain roofline**: efficiency 1, nothing added. **two constants**: {compute:.0%} of the peak and {bandwidth:.0%} of the
  bandwidth, the pair with the smallest median error of TPOT over all these runs.
- AIConfigurator 0.12.0 on the same runs, by its measured kernels and in the mode that predicts most, with the share that it predicts.

## All runs

{overall}
![Predicted against measured, model left out](serving.png)

## Bands

The 80 % bands of calibration/bands.yaml are percentiles of measured over predicted, with the model and with the part left out, moved
outwards until bands made without a model hold 80 % of its runs. `held` is the share of runs in the shipped band when predicted with the
model left out. `waiting`: the cache holds fewer requests than there are clients. `inherited`: kernels of the class of parts left out too.

{bands}
## Worst slices first, TPOT with the model left out

`in` in sample, `model` and `part` left out, `sign` the signed median with the model left out, `TTFT` its median error, model left out,
`held` the share of runs whose TPOT lies in its band, model left out.

{slices}
## Beside AIConfigurator, slice by slice

Median errors of TPOT and TTFT with the model left out, beside those of AIConfigurator's modes over the runs that they predict, with their
share. Ours are of all runs, since all are predicted. Worst of ours first.

{peers}
### By format of the weights

{formats}
## By load, TPOT with the model left out

{loads}
What stands behind the worst: FP8 DeepSeek under SGLang lies below the estimate at few clients (the mark of multi-token prediction, which
no label states), and above it on B300. TTFT above a second at many clients is requests that wait for cache, where a small error of the
cache is a large one of the wait, so that means of TTFT errors are far above their medians.
"""


def page(d: pd.DataFrame, tpot: Found, ttft: Found, shares: tuple[float, float], waiting: np.ndarray, shipped: Efficiency) -> str:
    """The whole page; predictions by how they were made, the two constants, which runs wait for cache, and the calibration with bands."""
    d = d.merge(pd.read_csv(PEERS), on="case", how="left", validate="one_to_one")
    inside = {name: held(d, found["one model out"], name, waiting, shipped) for name, found in (("tpot", tpot), ("ttft", ttft))}
    return HEAD.format(
        rows=len(d), overall=_overall(d, tpot, ttft), slices=_slices(d, tpot, ttft, inside["tpot"]), loads=_loads(d, tpot),
        compute=shares[0], bandwidth=shares[1], bands=_bands(d, inside, waiting, shipped), peers=_peers(d, tpot, ttft, SLICE),
        formats=_peers(d, tpot, ttft, ["weights"]),
    )  # fmt: skip


def held(d: pd.DataFrame, predicted: np.ndarray, quantity: TimeName, waiting: np.ndarray, shipped: Efficiency) -> np.ndarray:
    """Whether each run's known value lies in the shipped band about a prediction."""
    bands = {known: shipped.band(quantity, "vllm", "", known, SEEN) for known in KNOWN}
    low, high = (np.where(waiting, getattr(bands["waiting"], end), getattr(bands["measured"], end)) for end in ("low", "high"))
    ratio = d[f"{quantity}_s"].to_numpy() / predicted
    return (ratio >= low) & (ratio <= high)


def _bands(d: pd.DataFrame, inside: Found, waiting: np.ndarray, shipped: Efficiency) -> str:
    lines = []
    for quantity, found in inside.items():
        for known in KNOWN:
            band = shipped.band(quantity, "vllm", "", known, SEEN)
            rows = waiting if known == "waiting" else ~waiting
            share = f"{found[rows].mean():.0%}" if known != "inherited" else ""
            lines.append([quantity.upper(), known, f"{band.low - 1:+.0%}", f"{band.high - 1:+.0%}", str(rows.sum()), share])
        lines.append([quantity.upper(), "all", "", "", str(len(d)), f"{found.mean():.0%}"])
    return table(["", "known", "from", "to", "runs", "held"], lines)


def write_picture(d: pd.DataFrame, tpot: np.ndarray, ttft: np.ndarray) -> None:
    """Predicted against measured, a panel each for TPOT and TTFT."""
    found = []
    for quantity, predicted in (("tpot_s", tpot), ("ttft_s", ttft)):
        for row, value in zip(d.to_dict("records"), predicted, strict=True):
            case = Case(row["case"], quantity, row[quantity], {"engine": row["engine"]}, ROOT)
            found.append(Outcome(case, predicted=float(value)))
    canvas.write_picture(plot_parity(found, "engine"), PICTURE)


def _errors(predicted: np.ndarray, known: np.ndarray) -> np.ndarray:
    error = np.abs(np.asarray(predicted, float) / np.asarray(known, float) - 1)
    return error[np.isfinite(error)]


def _overall(d: pd.DataFrame, tpot: Found, ttft: Found) -> str:
    lines = []
    for title, found, column in (("TPOT", tpot, "tpot_s"), ("TTFT", ttft, "ttft_s")):
        modes = {f"AIConfigurator, {mode}": d[f"{mode}_{column}"].to_numpy() for mode in ("silicon", "hybrid")}
        for name, predicted in {**found, **modes}.items():
            e = _errors(predicted, d[column].to_numpy())
            shares = (np.median(e), e.mean(), np.percentile(e, 90), np.mean(e <= 0.1), np.mean(e <= 0.2), np.mean(e <= 0.3))
            lines.append([title, name, f"{len(e) / len(d):.0%}", *(f"{100 * s:.1f} %" for s in shares)])
    return table(["", "prediction", "predicted", "median", "mean", "90th", "within 10 %", "20 %", "30 %"], lines)


def _slices(d: pd.DataFrame, tpot: Found, ttft: Found, inside: np.ndarray) -> str:
    lines = []
    for key, rows in d.groupby(SERIES).indices.items():
        known = d.tpot_s.to_numpy()[rows]
        errors = [float(np.median(_errors(tpot[name][rows], known))) for name in ("in sample", "one model out", "one part out")]
        sign = float(np.median(tpot["one model out"][rows] / known - 1))
        first = float(np.median(_errors(ttft["one model out"][rows], d.ttft_s.to_numpy()[rows])))
        more = (f"{100 * sign:+.1f} %", f"{100 * first:.1f} %", f"{100 * inside[rows].mean():.0f} %")
        lines.append((errors[1], [*key, str(len(rows)), *(f"{100 * e:.1f} %" for e in errors), *more]))
    head = ["model", "engine", "part", "weights", "runs", "in", "model", "part", "sign", "TTFT", "held"]
    return table(head, [line for _, line in sorted(lines, key=lambda pair: -pair[0])])


SLICE = ["model", "engine", "gpu"]


def _peers(d: pd.DataFrame, tpot: Found, ttft: Found, columns: list[str]) -> str:
    """Our errors and AIConfigurator's in each slice."""
    lines = []
    for key, rows in d.groupby(columns).indices.items():
        cells: list[str] = []
        for made, column in ((tpot, "tpot_s"), (ttft, "ttft_s")):
            known = d[column].to_numpy()[rows]
            cells.append(_median(_errors(made["one model out"][rows], known)))
            for mode in ("silicon", "hybrid"):
                e = _errors(d[f"{mode}_{column}"].to_numpy()[rows], known)
                cells += [_median(e), f"{len(e) / len(rows):.0%}"]
        worst = float(np.median(_errors(tpot["one model out"][rows], d.tpot_s.to_numpy()[rows])))
        lines.append((-worst, [*(key if isinstance(key, tuple) else (key,)), str(len(rows)), *cells]))
    modes = ["silicon", "predicted", "hybrid", "predicted"]
    return table([*columns, "runs", "TPOT", *modes, "TTFT", *modes], [line for _, line in sorted(lines)])


def _median(e: np.ndarray) -> str:
    return f"{100 * np.median(e):.1f} %" if e.size else ""


def _loads(d: pd.DataFrame, tpot: Found) -> str:
    lines = []
    for column in ("concurrency", "engine", "gpu"):
        for value, rows in d.groupby(column).indices.items():
            known = d.tpot_s.to_numpy()[rows]
            e = _errors(tpot["one model out"][rows], known)
            sign = float(np.median(tpot["one model out"][rows] / known - 1))
            lines.append(
                [column, str(value), str(len(rows)), f"{100 * np.median(e):.1f} %", f"{100 * e.mean():.1f} %", f"{100 * sign:+.1f} %"]
            )
    return table(["by", "", "runs", "median", "mean", "sign"], lines)
