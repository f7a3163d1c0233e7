"""The published accuracy page of llama.cpp: validation/LLAMA.md, from predictions made by tools/fit_llama.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from markdown_table import table
from residual_bands import HEAD as BAND_HEAD
from residual_bands import LEAST, WIDEST, Table, rows_of

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "validation" / "LLAMA.md"
PHASES = {"decode": "decode_tokens_per_s", "prefill": "prefill_tokens_per_s"}
SHOWN = ("in sample", "one part out", "one model out")
SLICE = ["quantity", "part", "weights", "group"]
SLICES = "## Worst slices first"

HEAD = """# How far estimates lie from llama.cpp

Written by `python tools/fit_llama.py`; do not edit. {rows:,} of the rows of [llama.csv](README.md), {decode} of decoding one sequence and
{prefill} of prompts, on {parts} parts of {classes} classes with {models} models. Errors are of the time, predicted over measured.

- **in sample**: constants of calibration/llama.yaml, fitted to these rows: six for each class, around those of its vendor; two for each
  vendor and three in all for block formats, experts and the host.
- **one part out**, **one model out**: each part's (each model's) rows predicted from constants fitted to all others, which is what a
  part or a model that nobody measured gets. Most rows are of 7B and 8B Llamas, and each of those models comes from a benchmark of its
  own: with one of them out, most of that benchmark is out as well, its builds, formats and parts.
- **roofline alone**: the slower of bytes over bandwidth and FLOPs over the peak. **two derates**: that over one share for decoding and one
  for prompts, the medians over all rows, which is what most calculators do.

## All rows

{overall}
## By source

{sources}
## By vendor

{vendors}
## By class of parts

{classes_table}
## By format of the weights

{formats}
## By part

{parts_table}
## By model

{models_table}
## What a measurement is over its prediction, part left out

Speeds, measured over predicted: four of five rows lie between the 10th and the 90th percentile.

{ratios}
## Bands

The 80 % bands of TPOT (decoding) and TTFT (prompts) in calibration/llama.yaml: measured over predicted time, from the 10th to the 90th
percentile, ends moved outwards until bands made without a part, and those made without a model, hold 80 % of its rows; `held` is the lesser
of the two shares then. Where nothing up to {widest:g} does so, since sources contradict each other, `held` is what the percentiles of
some hold of the others, and the ends are those of all rows, or of the vendor's band (of all vendors') where that is wider. `measured`:
the part or the model left out of the fit. `inherited` of a vendor: its classes left out of the fit whole, one at a time; of all: its
vendors. Below {least} rows a class takes its vendor's band, a vendor that of all; so do processors, of which there are no rows. An
estimate's `inherited` band is never narrower than the `measured` one, nor that of TTFT than that of TPOT.

{bands}
{slices_title}

Phase, part, format and source; `in` in sample, `part` and `model` left out, `sign` the signed median with the part left out.

{slices}
## What stands behind the worst

- LocalScore's submissions from L40, L40S, A100 PCIe, H100 and RTX PRO 6000 Max-Q all decode at 170 to 230 GB/s, whatever the part's
  bandwidth, and an RTX 5080 at half the rate of slower cards: perhaps llamafile had no kernels for them. Rows of llamafile count half in
  the fit. Those above the roof (an M3 at 130 times its bandwidth) are shown and not fitted to.
- One laptop (mac_llm_bench, M5) reaches a third of its bandwidth with every model, where two other sources reach 0.7 and 0.9 of it on
  chips of the same class.
- `f16` prompts of May 2024 on A100 SXM, L40S and four RTX 5000 Ada run at a tenth to a third of what cards of the same class do; why is
  not known.
- Builds from before flash attention was the default (2024) take longer over long prompts; a row's build moves it, and no constant knows it.
- Over several parts prompts go through the stages in lots of `n_batch` (2,048 tokens), which estimates do not know: on four
  parts and 4,096 tokens they are about a fifth too fast for it.
- Parts at a low power limit (RTX 6000 Ada, L40S, L4) run quantised prompts at 0.6 to 0.8 of the share of the peak that
  cards of their class with more power do.
"""


def page(d: pd.DataFrame, found: dict[str, np.ndarray], of: Table) -> str:
    """The whole page; predictions in seconds by how they were made."""
    decode = int((d.quantity == PHASES["decode"]).sum())
    return HEAD.format(
        rows=len(d), decode=decode, prefill=len(d) - decode, parts=d.part.nunique(), classes=d["class"].nunique(),
        models=d["shape"].nunique(), overall=_overall(d, found), sources=_by(d, found, "group"), vendors=_by(d, found, "vendor"),
        classes_table=_by(d, found, "class"), formats=_by(d, found, "weights"), parts_table=_by(d, found, "part"),
        models_table=_by(d, found, "shape"), ratios=_ratios(d, found["one part out"]), least=LEAST, widest=WIDEST,
        bands=table(["", "band", "known", *BAND_HEAD], rows_of(of)), slices_title=SLICES, slices=_slices(d, found),
    )  # fmt: skip


def _overall(d: pd.DataFrame, found: dict[str, np.ndarray]) -> str:
    lines = []
    for phase, quantity in PHASES.items():
        of = (d.quantity == quantity).to_numpy()
        for name, predicted in found.items():
            e = _errors(d, predicted)[of]
            size = np.abs(e)
            shares = [np.median(size), size.mean(), np.percentile(size, 90), *(np.mean(size <= s) for s in (0.1, 0.2, 0.3))]
            lines.append([phase, name, str(of.sum()), *(f"{100 * s:.1f} %" for s in shares), f"{100 * np.median(e):+.1f} %"])
    return table(["", "prediction", "rows", "median", "mean", "90th", "within 10 %", "20 %", "30 %", "sign"], lines)


def _by(d: pd.DataFrame, found: dict[str, np.ndarray], column: str) -> str:
    lines = []
    for phase, quantity in PHASES.items():
        of = d[d.quantity == quantity]
        for value, index in sorted(of.groupby(column).groups.items()):
            e = [_errors(d, found[name])[index] for name in SHOWN]
            lines.append([phase, str(value), str(len(index)), *(_median(x) for x in e), f"{100 * np.median(e[1]):+.1f} %"])
    return table(["", column, "rows", "in", "part", "model", "sign"], lines)


def _ratios(d: pd.DataFrame, predicted: np.ndarray) -> str:
    ratio = predicted / d.seconds.to_numpy()
    lines = []
    for phase, quantity in PHASES.items():
        of = d[d.quantity == quantity]
        groups = [("all", of.index), *((str(k), i) for k, i in sorted(of.groupby("class").groups.items()))]
        for name, index in groups:
            lines.append([phase, name, str(len(index)), *(f"{q:.2f}" for q in np.quantile(ratio[index], [0.1, 0.25, 0.5, 0.75, 0.9]))])
    return table(["", "class", "rows", "10th", "25th", "50th", "75th", "90th"], lines)


def _slices(d: pd.DataFrame, found: dict[str, np.ndarray]) -> str:
    lines = []
    for key, index in d.groupby(SLICE).groups.items():
        e = [_errors(d, found[name])[index] for name in SHOWN]
        phase = "decode" if key[0] == PHASES["decode"] else "prefill"
        cells = [phase, *(str(k) for k in key[1:]), str(len(index)), *(_median(x) for x in e), f"{100 * np.median(e[1]):+.1f} %"]
        lines.append((-float(np.median(np.abs(e[1]))), cells))
    return table(["phase", "part", "weights", "source", "rows", "in", "part", "model", "sign"], [line for _, line in sorted(lines)])


def _errors(d: pd.DataFrame, predicted: np.ndarray) -> np.ndarray:
    return np.asarray(predicted / d.seconds.to_numpy() - 1)


def _median(e: np.ndarray) -> str:
    return f"{100 * np.median(np.abs(e)):.1f} %"
