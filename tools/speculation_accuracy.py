"""Predicted against measured gains of speculative decoding: `python tools/speculation_accuracy.py` prints the table of docs/speculation.md.

Reads validation/speculation.csv. A row whose source does not state what is needed is refused with the reason, never guessed. `--rows`
prints each row as well. `--fit [ENGINE ...]` fits the times of calibration/speculation.yaml to the rows and says how far each source lies
from a fit on the others; nothing is written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from math import log
from statistics import mean, median

import measured_gains
from measured_gains import ROOT, Row, calibration, known, refusals, rows_of

from inferplan.engine.step import Setting
from inferplan.errors import InferplanError
from inferplan.specs.hardware import Accelerator
from inferplan.specs.parallel import Parallel
from inferplan.specs.precision import Precision
from inferplan.speculation.acceptance import of_length, of_rates
from inferplan.speculation.drafts import draft_named
from inferplan.speculation.host import Host, shipped
from inferplan.speculation.rounds import Rounds, Target, Tree, rounds
from inferplan.speculation.theory import best_draft_tokens, expected_tokens, walltime_factor

ROWS = ROOT / "validation" / "speculation.csv"
LARGE = 16  # sequences from which a pass counts as shared by many
SIGN = 0.2  # what a wrong sign at every large batch weighs in a fit, as a mean distance of logarithms
SLICES = {
    "leviathan2023": "small models as drafts, T5 on a TPU v4 (Leviathan et al.)",
    "leviathan_expected": "lenience and bigrams, expected by the authors at a stated cost (Leviathan et al.)",
    "spec_bench": "EAGLE, EAGLE-2, EAGLE-3, Medusa, n-grams, batch 1 (Spec-Bench)",
    "eagle1": "EAGLE, batch 1 to 4 (its paper)",
    "hass": "EAGLE-2, HASS, batch 1 (HASS paper)",
    "vllm_20780": "EAGLE, EAGLE-3, chains of 2 to 7, batch 1 (vLLM)",
    "eagle3_sglang": "EAGLE, EAGLE-3, batch 1 to 64 (SGLang)",
    "sglang_4716": "EAGLE-3 on eight devices, batch 1 (SGLang)",
    "specforge_339": "EAGLE-3 on a mixture of experts (SGLang)",
    "trtllm_r1_mtp": "MTP of DeepSeek-R1, batch 1 (TensorRT-LLM)",
    "llama_cpp": "small models as drafts, quantised (llama.cpp)",
}


class Outcome(measured_gains.Outcome):
    """The same with what a draft is judged by: the load, and whether gain or loss is told right."""

    @property
    def large(self) -> bool:
        """Whether many sequences share the pass."""
        return int(self.row["batch"] or 0) >= LARGE

    @property
    def right(self) -> bool:
        """Whether gain or loss is predicted where it was measured."""
        return ((self.predicted or 0.0) > 1) == (self.measured > 1)


def read() -> list[Row]:
    """The measured rows."""
    return rows_of(ROWS)


def outcome(row: Row) -> Outcome:
    """A row predicted or refused."""
    if row["unknown"]:
        return Outcome(row, refused=row["unknown"])
    if row["cost"]:
        return Outcome(row, at_cost(row))
    try:
        return Outcome(row, float(found_of(row).speed_up))
    except InferplanError as e:
        return Outcome(row, refused=str(e))


def at_cost(row: Row) -> float:
    """What theorem 3.8 gives at a stated cost, for the stated number of drafts or the best one."""
    a, c = float(row["accept_rate"]), float(row["cost"])
    g = float(row["draft_tokens"] or best_draft_tokens(a, c))
    return float(walltime_factor(expected_tokens(a, g), g, c))


def found_of(row: Row, host: Host | None = None) -> Rounds:
    """The rounds of a row."""
    target, g = replace(target_of(row), own_host=host), int(row["draft_tokens"])
    draft = draft_named(target.model, target.precision, row["draft"], row["draft_weights"] or None)
    tree = Tree(int(row["tree"])) if row["tree"] else None
    if row["accept_rate"]:
        acceptance = of_rates([float(row["accept_rate"])])
    else:
        acceptance = of_length(float(row["accept_length"]), g, chain=tree is None)
    return rounds(target, draft, acceptance, batch=float(row["batch"]), draft_tokens=g, context=float(row["context"]), tree=tree)


def target_of(row: Row) -> Target:
    """The model of a row and how it is run."""
    engine = row["engine"]
    setting = Setting(Parallel(tp=int(row["tp"] or 1)), calibration(row["efficiency"] or "default"), engine)
    part = Accelerator.find(row["gpu"])
    return Target(known(row["model"]), part, Precision.named(row["weights"]), setting, eager=engine == "transformers")


def summary(found: Iterable[Outcome]) -> Iterator[tuple[str, ...]]:
    """Cells of the table: slice, rows, median error, bias, worst, right sign."""
    asked = list(found)
    for name, title in SLICES.items():
        yield cells(title, [o for o in asked if o.row["group"] == name and not o.refused])
    heads = [o for o in asked if not o.row["group"].startswith("leviathan") and not o.refused]
    yield cells("all but Leviathan", heads)
    yield cells(f"of these batch {LARGE} and more", [o for o in heads if o.large])


def cells(title: str, found: list[Outcome]) -> tuple[str, ...]:
    """One line of the table."""
    errors = [o.error for o in found]
    worst = max(errors, key=abs)
    right = sum(o.right for o in found)
    return (
        title, str(len(found)), f"{100 * median(map(abs, errors)):.1f} %", f"{100 * median(errors):+.1f} %", f"{100 * worst:+.0f} %",
        f"{right} of {len(found)}",
    )  # fmt: skip


FITTED = {
    "vllm": ("draft_step", "round"),
    "sglang": ("draft_step", "round", "tree_round", "per_sequence"),
    "tensorrt-llm": ("draft_step", "round"),
    "transformers": ("eager_layer", "draft_step", "tree_round", "lookup"),
}
START = {"per_sequence": 1e-4}
FACTORS = (0.25, 0.5, 0.7, 0.85, 0.95, 1.05, 1.15, 1.4, 2.0, 4.0)


def gains(rows: list[Row], host: Host) -> list[tuple[float, float, bool]]:
    """Predicted gain, measured gain, and whether many sequences share the pass, of each row."""
    return [(float(found_of(row, host).speed_up), float(row["speed_up"]), int(row["batch"]) >= LARGE) for row in rows]


def miss(rows: list[Row], host: Host) -> float:
    """How far predictions lie from what was measured, as the mean distance of their logarithms."""
    return mean(abs(log(found / real)) for found, real, _ in gains(rows, host))


def cost(rows: list[Row], host: Host) -> float:
    """What the fit makes small: that distance, and SIGN times the share of gains taken for losses, or the reverse, at large batches."""
    found = gains(rows, host)
    signs = [(f > 1) == (real > 1) for f, real, large in found if large]
    return mean(abs(log(f / real)) for f, real, _ in found) + (SIGN * (1 - mean(signs)) if signs else 0.0)


def fitted(rows: list[Row], engine: str) -> Host:
    """The times that lie nearest to rows: one after the other from START on, as long as any gets better; the others as shipped."""
    best = shipped().engines[engine].model_copy(update={name: START.get(name, 1e-3) for name in FITTED[engine]})
    least, better = cost(rows, best), True
    while better:
        better = False
        for name, factor in product(FITTED[engine], FACTORS):
            tried = best.model_copy(update={name: getattr(best, name) * factor})
            if (error := cost(rows, tried)) < least - 1e-5:
                best, least, better = tried, error, True
    return best


def fit() -> None:
    """Print what a fit gives for each engine, on all rows and held out by source."""
    every = [row for row in read() if not (row["unknown"] or row["cost"])]
    asked = [engine for engine in FITTED if engine in sys.argv] or list(FITTED)
    for engine in asked:
        names = FITTED[engine]
        rows = [row for row in every if row["engine"] == engine]
        found = fitted(rows, engine)
        said = ", ".join(f"{name}: {1e6 * getattr(found, name):.0f} us" for name in names)
        sys.stdout.write(f"{engine}: {{{said}}} on {len(rows)} rows, {100 * miss(rows, found):.1f} %\n")
        groups = sorted({row["group"] for row in rows})
        for group in groups if len(groups) > 1 else []:
            others = fitted([row for row in rows if row["group"] != group], engine)
            own = [row for row in rows if row["group"] == group]
            sys.stdout.write(f"  {group} from the others: {100 * miss(own, others):.1f} % on {len(own)} rows\n")


def main() -> None:
    """Print the table, or what a fit gives."""
    if "--fit" in sys.argv:
        fit()
        return
    found = [outcome(row) for row in read()]
    out = sys.stdout
    out.write("| rows | n | median error | bias | worst | right sign |\n|---|---|---|---|---|---|\n")
    for line in summary(found):
        out.write(f"| {' | '.join(line)} |\n")
    out.write(f"\n{sum(bool(o.refused) for o in found)} of {len(found)} rows refused:\n")
    for reason, count in refusals(found).items():
        out.write(f"{count:4} {reason}\n")
    if "--rows" in sys.argv:
        for o in found:
            if not o.refused:
                r = o.row
                said = f"{r['row']:16} {r['model']:14} {r['method']:24} {r['gpu']:15} batch {r['batch']:>3}"
                out.write(f"{said} {r['draft_tokens']:>2} {r['tree']:>2} {o.measured:5.2f} {o.predicted:5.2f} {100 * o.error:+5.0f} %\n")


if __name__ == "__main__":
    main()
