"""The accuracy pages of published tables: validation/OFFLINE.md and DISAGGREGATED.md, by `inferplan validate`'s own predictions.

Usage: python tools/table_results.py [offline | disaggregated]
"""

from __future__ import annotations

import csv
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from markdown_table import table

from inferplan.calibrate.cases import Case, read_cases
from inferplan.calibrate.predict import Predictor
from inferplan.calibrate.summary import Summary, summary
from inferplan.calibrate.validate import Outcome, outcomes
from inferplan.roofline.efficiency import Efficiency

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "validation"
BANDS = ROOT / "calibration" / "table_bands.yaml"
LEAST = 4
APART = ("model", "gpu", "prefill_workers", "decode_workers", "decode_dp", "decode_tp")


def predicted(path: Path, efficiency: str, keep: Callable[[Case], bool] = lambda case: True) -> list[Outcome]:
    """Each row of a case file predicted or refused, over all cores."""
    groups: dict[tuple[str, ...], list[Case]] = defaultdict(list)
    for case in read_cases(path)[0]:
        if keep(case):
            groups[tuple(case.row.get(column, "") for column in APART)].append(case)
    jobs = sorted(groups.values(), key=len, reverse=True)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(_outcomes, jobs, [efficiency] * len(jobs))
        return [o for part in found for o in part]


def _outcomes(cases: list[Case], efficiency: str) -> list[Outcome]:
    return outcomes(cases, Predictor(Efficiency.load(efficiency)))


OFFLINE = """# How far estimates lie from published tables

Written by `python tools/table_results.py offline`; do not edit. {rows:,} measured values: static batches (Argonne's LLM-Inference-Bench,
TensorRT-LLM up to 0.9, FasterTransformer, Neuron, LMDeploy ...), saturated engines (TensorRT-LLM from 0.14 on, MLPerf Offline) and
MLPerf's arrivals, tabulated from a collection by `tools/table_cases.py`, whose rules README.md sums up. Each row names its source.

- **estimate**: the shipped calibration. Constants of calibration/tables.yaml (cores, engines and classes of parts, never a model) were
  fitted to the static batches in 16 bit among these rows; saturated engines, MLPerf and rows of narrow weights were not fitted to, but
  for the few that `tools/fit_tables.py` names. What models and parts left out of their own fit get stands in that file's notes.
- **roofline**: `--efficiency ideal`, which is what peak and bandwidth of the sheets allow, queues simulated the same way.

`sign` is the median of signed errors; of throughputs above 0 where the estimate is too fast. `held` is the share of rows in the 80 % band
of their estimate.

## All rows

{overall}
## Bands

The 80 % bands of calibration/table_bands.yaml (`tools/table_bands.py`): measured over predicted times of batches that do not wait for
arrivals, with the model and with the part left out of what was fitted, ends moved outwards until bands made without a model, and those
made without a part, hold 80 % of its rows. `held` is the lesser of those shares; where it is below 80 % the measurements contradict each
other, and the ends are the percentiles of all, or those of the general band where that is wider. `default on ...`: other makers' parts,
predicted as if nobody had measured an engine on them; `default, inherited`: makers without any row.

{bands}
## By source

{groups}
## By engine

{engines}
## By part

{parts}
## By model

{models}
## Worst slices first

Source, engine, part and quantity with at least {least} predicted rows.

{slices}
## What stands behind slices above 25 %

{why}
## Left out by rule

{left}
"""

REASONS = """- **Intel Max 1550 under vLLM**: the collection holds the same setting twice, 9 times apart (15.7 and 146 ms a token
  at batch 1 on one
  card), and four cards are slower than one. No constant of kernels does that; the fitted host time of 53 ms a pass is the host's launch
  of single kernels.
- **MLPerf, time to first token and per token**: arrivals are as near to the most that a system serves as its submitter could go, and both
  follow the queue and the number that runs, which double within a few per cent of load. The throughput of the same systems (Offline) is
  predicted within {mlperf} in the median. Replicas, lengths and caches are taken by rule, since results do not state them.
- **MLPerf 4.1 on MI300X**: the submitter's own build, whose kernels are not stated; AMD's classes here have no kernels timed alone.
- **Mixtral under TensorRT-LLM at Argonne**: prompts are identical and decoded greedily, so that all sequences choose the same experts:
  the step reads a quarter of the weights that different prompts need, and is measured below the roof of reading them.
- **Llama 3 8B on one A100 40GB under vLLM at Argonne**: 1.5 to 10 times slower than the same on two, where the cache should hold the
  batch.
- **A100 PCIe over two cards**: whether the pair has a bridge is not stated, and times are those of none.
- **Llama 4 Maverick under TensorRT-LLM**: 1.9 times too fast on H100, where half of the memory is left for the cache, and a third too
  slow on B200; the split of experts and attention is not stated.
- **Quantised weights in Transformers and vLLM 0.6**: AutoGPTQ's and AutoAWQ's kernels of 2024 widen weights apart; times here are of
  fused ones.
- **bloom-176b, int8 under DeepSpeed**: weights are widened in kernels of their own.
- **DGX Spark prefill**: a hybrid of recurrent layers and experts in nvfp4 on a part whose kernels were not timed alone.
"""


def offline() -> None:
    found, ideal = predicted(FOLDER / "offline.csv", "default"), predicted(FOLDER / "offline.csv", "ideal")
    roof = {(o.case.name, o.case.quantity): o for o in ideal}
    pairs = [(o, roof[o.case.name, o.case.quantity]) for o in found]
    mlperf = summary(o for o in found if o.case.row["group"].startswith("mlperf") and o.case.quantity == "output_tokens_per_s")
    page = OFFLINE.format(
        rows=len(found), overall=_by(pairs, []), groups=_by(pairs, ["group"]), engines=_by(pairs, ["engine"]), parts=_by(pairs, ["gpu"]),
        models=_by(pairs, ["model"]), slices=_by(pairs, ["group", "engine", "gpu", "quantity"], least=LEAST), least=LEAST,
        why=REASONS.format(mlperf=_percent(mlperf.median_error)), left=_left("offline"), bands=_bands(),
    )  # fmt: skip
    (FOLDER / "OFFLINE.md").write_text(page)


DISAGGREGATED = """# How far estimates lie from runs with separate pools

Written by `python tools/table_results.py disaggregated`; do not edit. {rows:,} runs of the InferenceMAX sweeps in which one pool of
workers reads prompts and another decodes ([README.md](README.md)): clients in a closed loop, ten prompts each, lengths from 0.8 to 1 of
nominal. Both pools are simulated, with a cache that crosses between them. Nothing was fitted to these runs.

{overall}
## By part, engine and precision

{slices}
## By clients

{clients}
## What stands behind the misses

{why}
## Left out by rule

{left}
"""
BEHIND = """- **Routers and runtime**: Dynamo's front end, router and the hand-over between workers are not modelled; in the runs
  of few clients
  they are most of the time to first token, which is estimated too low there.
- **TTFT at many clients** is a queue: all clients start at once, so that its mean is about half of the time in which the prefill pool
  reads one prompt of each, and an error of a prompt's reading is one of the whole wait. SGLang's front end was fitted to aggregated
  runs of at most 512 clients, where it stands for all that is not told apart.
- **Multi-token prediction**: DeepSeek runs are published with and without it, and no label tells them apart. TPOT estimated too high,
  by up to 1.7 times, is its mark; so is the spread between runs of equal settings.
- **Experts over 32 devices and more**: ranks wait for the busiest, and all-to-all runs in kernels of its own (DeepEP, and
  TensorRT-LLM's over NVLink).
"""


def disaggregated() -> None:
    found = predicted(FOLDER / "disaggregated.csv", "default")
    page = DISAGGREGATED.format(
        rows=len({o.case.name for o in found}), overall=_by(_alone(found), ["quantity"]),
        slices=_by(_alone(found), ["gpu", "engine", "weights", "input_tokens", "output_tokens", "quantity"]),
        clients=_by(_alone(_by_clients(o) for o in found), ["concurrency", "quantity"]), why=BEHIND, left=_left("disaggregated"),
    )  # fmt: skip
    (FOLDER / "DISAGGREGATED.md").write_text(page)


def _bands() -> str:
    """The bands as the calibration has them; those of a place hold for what is measured and inherited alike."""
    lines = []
    for quantity, places in Efficiency.load(BANDS).bands.items():
        for place, known in places.items():
            names = ", ".join(known) if len({(b.low, b.high) for b in known.values()}) == 1 else ""
            for name, b in known.items() if not names else [(names, next(iter(known.values())))]:
                held = "" if b.covered is None else f"{b.covered:.0%}"
                lines.append([quantity.upper(), place, name, f"{b.low - 1:+.0%}", f"{b.high - 1:+.0%}", str(b.rows or ""), held])
    return table(["", "band", "known", "from", "to", "rows", "held"], lines)


def _alone(found: Iterable[Outcome]) -> list[Pair]:
    return [(o, None) for o in found]


def _by_clients(o: Outcome) -> Outcome:
    """The same with its clients as a range."""
    clients = int(o.case.row["concurrency"])
    low, high = next(band for band in CLIENTS if band[0] <= clients <= band[1])
    return replace(o, case=replace(o.case, row=o.case.row | {"concurrency": f"{low} to {high:,}"}))


CLIENTS = ((1, 15), (16, 127), (128, 1023), (1024, 10**6))
Pair = tuple[Outcome, Outcome | None]


def _by(pairs: Iterable[Pair], columns: Sequence[str], *, least: int = 1) -> str:
    """A table of errors by columns of the case file, the worst median first."""
    groups: dict[tuple[str, ...], list[Pair]] = defaultdict(list)
    for pair in pairs:
        row = pair[0].case.row | {"quantity": pair[0].case.quantity}
        groups[tuple(row[c] for c in columns)].append(pair)
    banded = any(o.low is not None for pairs in groups.values() for o, _ in pairs)
    lines = []
    for key, own in groups.items():
        estimate, roof = summary(o for o, _ in own), summary(o for _, o in own if o is not None)
        if estimate.predicted >= least:
            held = [_percent(estimate.covered, 0)] if banded else []
            roofline = [_percent(roof.median_error)] if roof.rows else []
            lines.append((-(estimate.median_error or 0.0), [*(key or ("all",)), *_cells(estimate), *held, *roofline]))
    head = [*(columns or [""]), "rows", "predicted", "median", "mean", "90th", "within 20 %", "sign", *(["held"] if banded else [])]
    if any(len(line) > len(head) for _, line in lines):
        head.append("roofline median")
    return table(head, [line for _, line in sorted(lines, key=lambda pair: pair[0])])


def _cells(s: Summary) -> list[str]:
    shown = [_percent(v) for v in (s.median_error, s.mean_error, s.p90_error, s.within["0.2"])]
    sign = "" if s.signed_median is None else f"{100 * s.signed_median:+.1f} %"
    return [f"{s.rows:,}", f"{s.predicted:,}", *shown, sign]


def _percent(share: float | None, digits: int = 1) -> str:
    return "" if share is None else f"{100 * share:.{digits}f} %"


def _left(kind: str) -> str:
    with (FOLDER / "left_out.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["file"] == kind]
    return table(["table", "rows", "rule"], [[row["group"], row["rows"], row["rule"]] for row in rows])


def main(arguments: Sequence[str]) -> None:
    made = {"offline": offline, "disaggregated": disaggregated}
    for name in arguments or made:
        made[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
