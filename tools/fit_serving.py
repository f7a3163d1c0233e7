"""Fit what engines add to their kernels to public serving runs: writes calibration/serving.yaml and validation/RESULTS.md.

Usage: python tools/fit_serving.py

A run's mean time per output token is that of a decode step at the mean context, and of the prompts that share steps with it:
n / output_tokens of a prompt per step, with n clients or as many as the cache holds. All of it is linear in the constants but for their
positivity; they are fitted to relative errors, with priors, by damped least squares with soft outliers. What a simulation of the same
runs leaves of the time to first token is then laid to what engine and host take for a prompt beside its kernels: launching its first pass
layer by layer, and reading its tokens.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from least_squares import levenberg_marquardt, soft
from serving_results import PAGE, page

from inferplan import names
from inferplan.deployment import estimate
from inferplan.engine.segment import Segment
from inferplan.engine.step import Setting, Step, decode, prefill, step
from inferplan.memory.capacity import capacity
from inferplan.roofline.efficiency import Efficiency, Overhead
from inferplan.serving.protocol import front_end_wait_s, simulate_case
from inferplan.specs.parallel import Parallel

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "validation" / "serving.csv"
ENGINES = ("vllm", "sglang", "tensorrt-llm")
LENGTHS = 0.9  # lengths are uniform from 0.8 to 1 of nominal
SPREAD = 0.1  # relative error of a row that counts as one
TRUST = 3.0  # how much a prior weighs, against rows
PRIORS = {
    "launch": (1.0, 0.5), "per_step": (400e-6, 0.5), "per_sequence": (4e-6, 0.7), "collectives": (1.0, 0.3),
    "per_expert_layer": (5e-6, 1.0), "per_recurrent_layer": (10e-6, 1.0),
}  # fmt: skip  # value, and the standard deviation of its logarithm
OWN = ("launch", "per_step")  # of each engine; the others are shared by all
SHARED = ("per_sequence", "collectives", "per_expert_layer", "per_recurrent_layer")


@cache
def bare() -> Efficiency:
    """The shipped kernels and links, without what engines add."""
    return Efficiency.default().model_copy(update={"engines": {name: Overhead() for name in ("default", *ENGINES)}})


def parts(found: Step) -> np.ndarray:
    """Seconds of a pass: kernels without start-up, start-ups, collectives; then layers with experts and with a recurrence."""
    launch = sum(float(np.asarray(op.count)) * kernel(found, op).launch_s for op in found.ops if op.kind != "collective")
    ops = sum(float(np.asarray(found.op_s(op))) for op in found.ops)
    wires = sum(float(np.asarray(found.wire_s(op))) for op in found.ops)
    return np.array([ops - launch, launch, wires, float(found.layers_of("experts")), float(found.layers_of("recurrence"))])


def kernel(found: Step, op: Any) -> Any:
    part = found.hardware
    rate = "none" if op.rate == "none" else part.computed_in(op.rate)
    return found.setting.efficiency.kernel(
        op.kind, rate, part.architecture, stored=op.stored or None, engine=found.setting.engine, part=part.name
    )


model_of, part_of = cache(names.model), cache(names.hardware)


@cache
def precision_of(weights: str, kv: str) -> Any:
    return names.precision(weights).with_kv(kv or "bf16")


def features(row: Any) -> np.ndarray:
    """A run as the terms that constants multiply: work, start-ups, collectives, expert and recurrent layers, sequences."""
    split = Parallel(int(row.tp), int(row.pp), int(row.dp), int(row.ep))
    setting = Setting(split, bare(), row.engine)
    model, part, precision = model_of(row.model), part_of(row.gpu), precision_of(row.weights, row.kv)
    inputs, outputs = LENGTHS * row.input_tokens, LENGTHS * row.output_tokens
    held = capacity(
        model, part, precision, split, row.engine, max_model_len=float(row.max_model_len), max_num_seqs=float(row.concurrency),
        max_num_batched_tokens=float(row.max_num_batched_tokens),
    )  # fmt: skip
    tokens = float(np.asarray(held.kv_cache_tokens * held.groups))
    whole = row.engine == "tensorrt-llm"  # it admits what it can finish
    n = min(float(row.concurrency), max(1.0, tokens / (inputs + (row.output_tokens if whole else outputs / 2))))
    own = parts(decode(model, part, precision, context=inputs + outputs / 2, batch=n, setting=setting))
    if row.engine == "sglang":
        more = parts(prefill(model, part, precision, input_tokens=inputs, setting=setting))
    else:
        both = Segment(n, 1, inputs + outputs / 2), Segment(1, inputs)
        more = parts(step(model, part, precision, *both, setting=setting)) - own
    more[3:] = 0.0
    found = own + n / outputs * more
    return np.append(found, n)


def names_of() -> list[str]:
    return [f"{name} {engine}" for name in OWN for engine in ENGINES] + list(SHARED)


def priors() -> tuple[np.ndarray, np.ndarray]:
    found = [PRIORS[name.split(" ")[0]] for name in names_of()]
    return np.log([value for value, _ in found]), np.array([spread for _, spread in found])


def predict(x: np.ndarray, f: np.ndarray, engine: np.ndarray) -> np.ndarray:
    """Seconds per output token of each run."""
    v = np.exp(x)
    launch, each, (sequence, wire, expert, recurrent) = v[:3][engine], v[3:6][engine], v[6:]
    return f[:, 0] + launch * f[:, 1] + wire * f[:, 2] + expert * f[:, 3] + recurrent * f[:, 4] + sequence * f[:, 5] + each


def fit(f: np.ndarray, engine: np.ndarray, seconds: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The constants' logarithms: Levenberg-Marquardt on relative errors, those beyond SPREAD counted linearly."""
    start, spread = priors()

    def residuals(x: np.ndarray) -> np.ndarray:
        miss = weight * (np.log(predict(x, f, engine)) - np.log(seconds)) / SPREAD
        return np.append(soft(miss), TRUST * (x - start) / spread)

    return levenberg_marquardt(residuals, start)


def balance(d: pd.DataFrame) -> np.ndarray:
    """Each series of runs counts by the square root of its number."""
    weight = np.sqrt(1 / d.groupby(["model", "engine", "gpu", "weights"]).tpot_s.transform("size"))
    return (weight / weight.mean()).to_numpy()


def rows() -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    d = pd.read_csv(ROWS)
    d["kv"] = d.kv.fillna("")
    return d, np.array([features(row) for row in d.itertuples()]), d.engine.map({e: i for i, e in enumerate(ENGINES)}).to_numpy()


def held_out(d: pd.DataFrame, f: np.ndarray, engine: np.ndarray, column: str) -> np.ndarray:
    """Predictions of each value's runs from constants fitted to all others."""
    found, weight = np.zeros(len(d)), balance(d)
    for value in d[column].unique():
        out = (d[column] == value).to_numpy()
        x = fit(f[~out], engine[~out], d.tpot_s.to_numpy()[~out], weight[~out])
        found[out] = predict(x, f[out], engine[out])
    return found


def said(label: str, predicted: np.ndarray, seconds: np.ndarray) -> str:
    error = np.abs(predicted / seconds - 1)
    return f"{label:36} median {np.median(error):.3f}  mean {error.mean():.3f}  within 20 % {np.mean(error <= 0.2):.3f}"


def written(x: np.ndarray, d: pd.DataFrame, f: np.ndarray, engine: np.ndarray, front: np.ndarray) -> str:
    v = dict(zip((*names_of(), *FRONT), np.exp([*x, *front]), strict=True))
    lines = [
        "# Written by tools/fit_serving.py from validation/serving.csv; do not edit, run it again.",
        "# launch, per_step and per_prompt_layer are of each engine, the others shared. error: median of TPOT over the engine's rows.",
        "name: serving",
        "engines:",
    ]
    shared = (
        f"per_sequence: {v['per_sequence'] * 1e6:.2f} us, per_expert_layer: {v['per_expert_layer'] * 1e6:.2f} us, "
        f"per_recurrent_layer: {v['per_recurrent_layer'] * 1e6:.1f} us, collectives: {v['collectives']:.3f}, "
        f"per_input_token: {v['per_input_token'] * 1e6:.1f} us"
    )
    for i, name in enumerate(ENGINES):
        own = engine == i
        error = np.median(np.abs(predict(x, f, engine) / d.tpot_s.to_numpy() - 1)[own])
        lines.append(
            f"  {name}: {{per_step: {v[f'per_step {name}'] * 1e6:.0f} us, launch: {v[f'launch {name}']:.3f}, {shared}, "
            f"per_prompt_layer: {v[f'per_prompt_layer {name}'] * 1e6:.0f} us, basis: measured, rows: {own.sum()}, error: {error:.3f}}}"
        )
    lines.append(f"  default: {{per_step: 500 us, {shared}, basis: inherited, note: what the fitted engines share}}")
    return "\n".join(lines) + "\n"


def simulated(d: pd.DataFrame) -> np.ndarray:
    """Mean seconds to first token and per output token of each run, request by request, with no front end."""
    shipped = Efficiency.default()
    engines = {n: o.model_copy(update={"per_prompt_layer": 0.0, "per_input_token": 0.0}) for n, o in shipped.engines.items()}
    plain, found = shipped.model_copy(update={"engines": engines}), []
    for row in d.itertuples():
        split = Parallel(int(row.tp), int(row.pp), int(row.dp), int(row.ep))
        e = estimate(
            model_of(row.model), part_of(row.gpu), precision_of(row.weights, row.kv), parallel=split, engine=row.engine, efficiency=plain,
            input_tokens=int(row.input_tokens), output_tokens=int(row.output_tokens), max_model_len=int(row.max_model_len),
            max_num_seqs=int(row.concurrency), max_num_batched_tokens=int(row.max_num_batched_tokens),
        )  # fmt: skip
        case = simulate_case(e, concurrency=int(row.concurrency), input_tokens=int(row.input_tokens), output_tokens=int(row.output_tokens))
        found.append((case.ttft_mean_s, case.tpot_mean_s))
    return np.array(found)


FRONT = ("per_prompt_layer vllm", "per_prompt_layer sglang", "per_prompt_layer tensorrt-llm", "per_input_token")
FRONT_PRIORS = np.log([3e-4, 3e-4, 3e-4, 5e-6])


def first_tokens(x: np.ndarray, d: pd.DataFrame, plain: np.ndarray, engine: np.ndarray) -> np.ndarray:
    """Mean seconds to first token with what a prompt takes beside its kernels, the opening burst one after the other."""
    layers = np.array([len(model_of(name).order) for name in d.model])
    each = np.exp(x[:3])[engine] * layers + np.exp(x[3]) * LENGTHS * d.input_tokens.to_numpy()
    return plain + np.asarray(front_end_wait_s(each, d.concurrency.to_numpy(), 10))


def fit_front(d: pd.DataFrame, plain: np.ndarray, engine: np.ndarray) -> np.ndarray:
    """The front ends' constants."""
    weight, seconds = balance(d), np.log(d.ttft_s.to_numpy())

    def residuals(x: np.ndarray) -> np.ndarray:
        miss = weight * (np.log(first_tokens(x, d, plain, engine)) - seconds) / (2 * SPREAD)
        return np.append(soft(miss), (x - FRONT_PRIORS) / 1.5)

    return levenberg_marquardt(residuals, FRONT_PRIORS)


def front_held_out(d: pd.DataFrame, plain: np.ndarray, engine: np.ndarray, column: str) -> np.ndarray:
    """Predictions of each value's runs from front ends fitted to all others."""
    found = np.zeros(len(d))
    for value in d[column].unique():
        out = (d[column] == value).to_numpy()
        found[out] = first_tokens(fit_front(d[~out], plain[~out], engine[~out]), d[out], plain[out], engine[out])
    return found


def main() -> None:
    d, f, engine = rows()
    seconds, first = d.tpot_s.to_numpy(), d.ttft_s.to_numpy()
    x = fit(f, engine, seconds, balance(d))
    tpot = {"in sample": predict(x, f, engine)}
    tpot |= {f"one {name} out": held_out(d, f, engine, column) for name, column in (("model", "model"), ("part", "gpu"))}
    path = ROOT / "calibration" / "serving.yaml"
    path.write_text(written(x, d, f, engine, FRONT_PRIORS))
    plain, per_token = simulated(d).T
    front = fit_front(d, plain, engine)
    ttft = {"in sample": first_tokens(front, d, plain, engine)}
    ttft |= {f"one {name} out": front_held_out(d, plain, engine, column) for name, column in (("model", "model"), ("part", "gpu"))}
    path.write_text(written(x, d, f, engine, front))
    tpot["simulated request by request"] = per_token
    tpot["the priors alone"] = predict(priors()[0], f, engine)
    ttft["without a front end"] = plain
    PAGE.write_text(page(d, tpot, ttft))
    for label, found, known in (("TPOT", tpot, seconds), ("TTFT", ttft, first)):
        for name, predicted in found.items():
            print(said(f"{label} {name}", predicted, known))


if __name__ == "__main__":
    main()
