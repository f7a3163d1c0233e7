"""Fit what engines add to their kernels to public serving runs: writes calibration/serving.yaml and validation/RESULTS.md.

Usage: python tools/fit_serving.py

A run's mean time per output token is that of a decode step at the mean context, and of the prompts that share steps with it:
n / output_tokens of a prompt per step, with n clients or as many as the cache holds. All of it is linear in the constants but for their
positivity; they are fitted to relative errors, with priors, by damped least squares with soft outliers. What a simulation of the same
runs leaves of the time to first token is then laid to what engine and host take for a prompt beside its kernels: launching its first pass
layer by layer, reading its tokens, and what passes besides, whoever else comes.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from least_squares import levenberg_marquardt, soft
from serving_bands import PATH as BANDS
from serving_bands import balance, without_class
from serving_bands import written as bands_written
from serving_baselines import derate, derated, roofs
from serving_results import PAGE, page, write_picture

from inferplan import names
from inferplan.deployment import Estimate, estimate
from inferplan.engine.segment import Segment
from inferplan.engine.step import Setting, Step, decode, prefill, step
from inferplan.memory.capacity import capacity
from inferplan.roofline.efficiency import Efficiency, Overhead
from inferplan.serving.front_end import front_end_wait_s
from inferplan.serving.protocol import simulate_case
from inferplan.serving.schedule import Schedule
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


def written_now() -> Efficiency:
    """The calibration as its files say now: this script writes some of them."""
    return Efficiency.load(ROOT / "calibration" / "default.yaml")


def parts(found: Step) -> np.ndarray:
    """Seconds of a pass: kernels without start-up, start-ups, collectives; then layers with experts and with a recurrence."""
    launch = sum(float(np.asarray(op.count)) * found.kernel(op).launch_s for op in found.ops if op.kind != "collective")
    ops = sum(float(np.asarray(found.op_s(op))) for op in found.ops)
    wires = sum(float(np.asarray(found.wire_s(op))) for op in found.ops)
    return np.array([ops - launch, launch, wires, float(found.layers_of("experts")), float(found.layers_of("recurrence"))])


model_of, part_of = cache(names.model), cache(names.hardware)


@cache
def precision_of(weights: str, kv: str) -> Any:
    return names.precision(weights).with_kv(kv or "bf16")


def passes(row: Any, kernels: Efficiency) -> tuple[Step, Step, bool, float, float]:
    """A run's decode step, the pass that takes a prompt up, whether decodes share it, how often it comes, and sequences in a step."""
    split = Parallel(int(row.tp), int(row.pp), int(row.dp), int(row.ep))
    setting = Setting(split, kernels, row.engine)
    model, part, precision = model_of(row.model), part_of(row.gpu), precision_of(row.weights, row.kv)
    inputs, outputs = LENGTHS * row.input_tokens, LENGTHS * row.output_tokens
    held = capacity(
        model, part, precision, split, row.engine, max_model_len=float(row.max_model_len), max_num_seqs=float(row.concurrency),
        max_num_batched_tokens=float(row.max_num_batched_tokens), utilization=float(row.utilization),
    )  # fmt: skip
    tokens = float(np.asarray(held.kv_cache_tokens * held.groups))
    whole = row.engine == "tensorrt-llm"  # it admits what it can finish
    n = min(float(row.concurrency), max(1.0, tokens / (inputs + (row.output_tokens if whole else outputs / 2))))
    step_of = decode(model, part, precision, context=inputs + outputs / 2, batch=n, setting=setting)
    alone = row.engine == "sglang"
    if alone:
        prompt = prefill(model, part, precision, input_tokens=inputs, setting=setting)
    else:
        prompt = step(model, part, precision, Segment(n, 1, inputs + outputs / 2), Segment(1, inputs), setting=setting)
    return step_of, prompt, not alone, n / outputs, n


def features(row: Any, kernels: Efficiency | None = None) -> np.ndarray:
    """A run as the terms that constants multiply: work, start-ups, collectives, expert and recurrent layers, sequences."""
    step_of, prompt, shared, often, n = passes(row, kernels or bare())
    own, more = parts(step_of), parts(prompt)
    more = more - own if shared else more
    more[3:] = 0.0
    return np.append(own + often * more, n)


def work(row: Any) -> np.ndarray:
    """A run as `serving_baselines.derate` takes it."""
    step_of, prompt, shared, often, _ = passes(row, Efficiency.ideal())
    return np.array([*roofs(step_of), *(roofs(prompt) + (0.0 if shared else roofs(step_of))), often])


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
        "# launch, per_step, per_prompt_layer and per_prompt are of each engine, the others shared. error: median of TPOT over its rows.",
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
        apart = f"per_prompt: {v[f'per_prompt {name}'] * 1e3:.1f} ms, " if name in APART else ""
        lines.append(
            f"  {name}: {{per_step: {v[f'per_step {name}'] * 1e6:.0f} us, launch: {v[f'launch {name}']:.3f}, {shared}, "
            f"per_prompt_layer: {v[f'per_prompt_layer {name}'] * 1e6:.0f} us, {apart}"
            f"basis: measured, rows: {own.sum()}, error: {error:.3f}}}"
        )
    lines.append(f"  default: {{per_step: 500 us, {shared}, basis: inherited, note: what the fitted engines share}}")
    return "\n".join(lines) + "\n"


def deployed(row: Any, efficiency: Efficiency) -> Estimate:
    """The deployment of a run."""
    return estimate(
        model_of(row.model), part_of(row.gpu), precision_of(row.weights, row.kv), engine=row.engine, efficiency=efficiency,
        parallel=Parallel(int(row.tp), int(row.pp), int(row.dp), int(row.ep)), input_tokens=int(row.input_tokens),
        output_tokens=int(row.output_tokens), max_model_len=int(row.max_model_len), max_num_seqs=int(row.concurrency),
        max_num_batched_tokens=int(row.max_num_batched_tokens), utilization=float(row.utilization),
    )  # fmt: skip


def simulated(d: pd.DataFrame, shipped: Efficiency | None = None) -> np.ndarray:
    """Mean seconds to first token and per output token of each run, request by request, with no front end."""
    shipped = shipped or written_now()
    engines = {n: o.model_copy(update=dict.fromkeys(PROMPTS, 0.0)) for n, o in shipped.engines.items()}
    shipped, found = shipped.model_copy(update={"engines": engines}), []
    for row in d.itertuples():
        e = deployed(row, shipped)
        looks = None if np.isnan(row.recv_interval) else int(row.recv_interval)
        case = simulate_case(
            e, concurrency=int(row.concurrency), input_tokens=int(row.input_tokens), output_tokens=int(row.output_tokens),
            schedule=Schedule.of(e.capacity).but(recv_interval=looks),
        )  # fmt: skip
        found.append((case.ttft_mean_s, case.tpot_mean_s))
    return np.array(found)


PROMPTS = ("per_prompt_layer", "per_prompt", "per_input_token")
APART = ENGINES[1:]  # under vLLM a constant fits large models as well as one per layer, and small ones under arrivals far worse
FRONT = (*(f"per_prompt_layer {engine}" for engine in ENGINES), *(f"per_prompt {engine}" for engine in APART), "per_input_token")
FRONT_PRIORS = np.log([*[3e-4] * len(ENGINES), *[2e-3] * len(APART), 5e-6])


def first_tokens(x: np.ndarray, d: pd.DataFrame, plain: np.ndarray, engine: np.ndarray) -> np.ndarray:
    """Mean seconds to first token with what a prompt takes beside its kernels, the opening burst one after the other."""
    layers = np.array([len(model_of(name).order) for name in d.model])
    v = np.exp(x)
    apart = np.array([0.0, *v[3:5]])[engine]
    each = apart + v[:3][engine] * layers + v[5] * LENGTHS * d.input_tokens.to_numpy()
    return plain + np.asarray(front_end_wait_s(each, d.concurrency.to_numpy(), 10, apart))


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


def waits(d: pd.DataFrame) -> np.ndarray:
    """Whether the cache holds fewer requests of each run than it has clients."""
    found = []
    for row in d.itertuples():
        e = deployed(row, Efficiency.ideal())
        found.append(e.max_sequences < row.concurrency)
    return np.array(found)


def unseen_classes(d: pd.DataFrame, f: np.ndarray, engine: np.ndarray, plain: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """TPOT and TTFT of each run without kernels of its class of parts, from constants fitted to the other classes."""
    classes = np.array([part_of(name).architecture for name in d.gpu])
    tpot, ttft = np.zeros(len(d)), np.zeros(len(d))
    for name in np.unique(classes):
        out = classes == name
        rest, parts_of = d[~out], set(d.gpu[out].map(lambda gpu: part_of(gpu).name))
        x = fit(f[~out], engine[~out], rest.tpot_s.to_numpy(), balance(rest))
        blind = without_class(bare(), name, parts_of)
        tpot[out] = predict(x, np.array([features(row, blind) for row in d[out].itertuples()]), engine[out])
        slow = simulated(d[out], without_class(written_now(), name, parts_of))[:, 0]
        ttft[out] = first_tokens(fit_front(rest, plain[~out], engine[~out]), d[out], slow, engine[out])
    return tpot, ttft


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
    outs = ("one model out", "one part out")
    seen = {"tpot": [tpot[name] for name in outs], "ttft": [ttft[name] for name in outs]}
    unseen = {name: [found] for name, found in zip(("tpot", "ttft"), unseen_classes(d, f, engine, plain), strict=True)}
    waiting = waits(d)
    BANDS.write_text(bands_written(d, waiting, seen, unseen))
    shares = derate(np.array([work(row) for row in d.itertuples()]), seconds)
    simple = {"the plain roofline": Efficiency.ideal(), "two constants": derated(shares, bare().kernels)}
    for name, efficiency in simple.items():
        ttft[name], tpot[name] = simulated(d, efficiency).T
    PAGE.write_text(page(d, tpot, ttft, shares, waiting, written_now()))
    write_picture(d, tpot["one model out"], ttft["one model out"])
    for label, found, known in (("TPOT", tpot, seconds), ("TTFT", ttft, first)):
        for name, predicted in found.items():
            print(said(f"{label} {name}", predicted, known))


if __name__ == "__main__":
    main()
