"""Fit what older cores of engines, engines without serving runs, and parts without kernel timings take, to published static batches.

Usage: python tools/fit_tables.py

Reads validation/offline.csv and writes calibration/tables.yaml. A static batch is one prefill and its decode steps; both are kernels at the
shares that calibration/kernels.yaml and default.yaml hold, times a start-up factor, collectives times a factor, the host's own time beside
them, and time per step and sequence. Constants are of an engine's core and of a class of parts, never of a model. They are fitted to
relative errors with priors; `held_out` is the median error of models (or parts) left out of their own fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import yaml
from fit_kernels import SHARPNESS
from least_squares import levenberg_marquardt, soft

from inferplan.calibrate.cases import Case, read_cases
from inferplan.calibrate.deployed import Deployment
from inferplan.calibrate.loads import Batch, load_of
from inferplan.engine.step import Step
from inferplan.errors import InferplanError
from inferplan.roofline.efficiency import Efficiency, Overhead
from inferplan.roofline.optime import host_wait_s, soft_maximum
from inferplan.specs.document import load_yaml
from inferplan.specs.engine import Engine

ROOT = Path(__file__).parents[1]
ROWS, FILE = ROOT / "validation" / "offline.csv", ROOT / "calibration" / "tables.yaml"
SPREAD = 0.1  # relative error of a row that counts as one
TRUST = 3.0  # how much a prior weighs, against rows
KINDS = ("matmul", "experts", "attention_decode", "attention_prefill")
PRIORS = {
    "launch": (1.0, 0.7), "collectives": (1.2, 0.5), "host": (4e-3, 1.5), "host_layer": (5e-4, 1.5), "per_step": (5e-4, 1.5),
    "per_sequence": (2e-5, 1.5), "matmul eff_bandwidth": (0.8, 0.3), "matmul eff_flops": (0.6, 0.4),
    "attention_decode eff_bandwidth": (0.7, 0.5), "attention_decode eff_flops": (0.02, 1.5),
}  # fmt: skip  # value, and the standard deviation of its logarithm
ENGINE = ("launch", "collectives", "host", "per_step", "per_sequence")
DECODE = ("attention_decode eff_bandwidth", "attention_decode eff_flops")
MATMUL = ("matmul eff_bandwidth", "matmul eff_flops")
Constants = dict[str, float]


@dataclass(frozen=True)
class Group:
    """Rows that share constants: an engine's core on parts of some classes. `kernels` are written for `classes`."""

    core: str
    level: str  # "" the engine's entry, else the vendor or class it is for
    classes: tuple[str, ...]
    constants: tuple[str, ...]
    kernels: tuple[str, ...] = ()
    general: bool = False  # kernels hold for the class whatever the engine
    held: str = "model"
    parts: tuple[str, ...] = ()  # where given, of these parts alone, and kernels are written for them

    def has(self, part: str) -> bool:
        """Whether it is about a part; those with kernels of their own are about no other group's."""
        return part in self.parts if self.parts else part not in OWN_PARTS


OWN_PARTS = ("h20-96gb", "h20-141gb")
NVIDIA = ("nvidia-hopper", "nvidia-ampere-dc")
FORMATS = ("bf16", "fp8", "fp8-block", "int4-weight-only", "int8-weight-only")
GROUPS = (
    # 78 multiprocessors, 51 GB/s each: more than one can ask for. Held for all formats, since the bytes are what they wait for.
    Group("sglang", "", ("nvidia-hopper",), (), ("matmul eff_bandwidth",), general=True, parts=OWN_PARTS),
    Group("vllm-v0", "", NVIDIA, ENGINE, DECODE, held="gpu"),
    Group("vllm-v0-eager", "", ("nvidia-ampere-dc", "nvidia-ampere-consumer"), ("collectives", "host_layer", "per_step")),
    Group("vllm-v0-async", "", NVIDIA, ("launch", "collectives", "host", "per_step")),
    Group("vllm-v0", "amd-cdna3", ("amd-cdna3",), ENGINE, DECODE),
    Group("vllm-v0", "amd-cdna2", ("amd-cdna2",), ENGINE, DECODE),
    Group("vllm-v0", "intel-xe-hpc", ("intel-xe-hpc",), ("collectives", "host", "per_sequence")),
    Group("tensorrt-llm-v0", "", (*NVIDIA, "nvidia-ada"), ENGINE, held="gpu"),
    Group("deepspeed", "", NVIDIA, ENGINE, DECODE),
    Group("deepspeed", "intel-gaudi", ("intel-gaudi",), ENGINE, (*MATMUL, *DECODE), general=True),
    Group("transformers", "", (*NVIDIA, "nvidia-ada"), ("host_layer",)),
    Group("lmdeploy", "", NVIDIA, ("launch", "host", "per_step", "per_sequence"), held="input_tokens"),
    Group("gpt-fast", "", NVIDIA, ("launch", "collectives", "per_step")),
    Group("fastertransformer", "", NVIDIA, ("launch", "collectives", "per_step", "per_sequence")),
    Group("mlc-llm", "", ("nvidia-ampere-dc", "nvidia-ampere-consumer", "nvidia-ada"), ("launch", "collectives", "per_step")),
    Group("neuronx", "", ("aws-neuron",), ("launch", "collectives", "per_step", "per_sequence"), MATMUL, general=True),
    Group("mlx", "", ("apple-m",), ("launch", "per_step"), held="weights"),
)


@dataclass(frozen=True)
class Run:
    """One static batch: seconds measured, and what its passes consist of (first pass, one decode step)."""

    case: Case
    seconds: float
    steps: float
    first: float
    batch: float
    layers: float
    core: str
    architecture: str
    kernel_s: np.ndarray
    bytes_s: np.ndarray
    flops_s: np.ndarray
    rest: np.ndarray


def bare() -> Efficiency:
    """The shipped kernels and links, without what engines add and without what this script writes."""
    shipped = load_yaml(ROOT / "calibration" / "default.yaml")
    shipped["include"] = [name for name in shipped["include"] if name != FILE.name]
    with TemporaryDirectory() as folder:
        for name in shipped["include"]:
            (Path(folder) / name).write_text((ROOT / "calibration" / name).read_text())
        path = Path(folder) / "untabled.yaml"
        path.write_text(yaml.safe_dump(shipped | {"name": "untabled"}))
        found = Efficiency.load(path)
    return found.model_copy(update={"engines": {"default": Overhead()}})


def passes(found: Step) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Seconds of a pass: kernels by kind without start-up, their bytes and FLOPs at the roof; then start-ups, others, collectives."""
    part = found.hardware
    kernel_s, bytes_s, flops_s, rest = np.zeros(4), np.zeros(4), np.zeros(4), np.zeros(3)
    for op in found.ops:
        rest[2] += _mean(found.wire_s(op))
        if op.kind == "collective":
            continue
        started = _mean(op.count) * found.kernel(op).launch_s
        rest[0] += started
        kind = "matmul" if op.kind == "head" else op.kind
        if kind not in KINDS:
            rest[1] += _mean(found.op_s(op)) - started
            continue
        at = KINDS.index(kind)
        kernel_s[at] += _mean(found.op_s(op)) - started
        bytes_s[at] += _mean(op.weight_bytes + op.kv_bytes + op.act_bytes) / part.bandwidth_bytes_per_s
        flops_s[at] += _mean(op.flops) / part.peak_flops_per_s(op.rate) if op.rate != "none" else 0.0
    return kernel_s, bytes_s, flops_s, rest


def _mean(values: Any) -> float:
    return float(np.mean(np.asarray(values)))


def seconds_of(case: Case, load: Batch) -> tuple[float, float, float]:
    """Seconds of a run that a row's value means; then its decode steps, and 1 where its prefill counts."""
    inputs, outputs = load.input_tokens or 0, load.output_tokens or 1
    decoding = {"tpot_s": case.value, "decode_tokens_per_s": 1 / case.value}
    prompting = {"ttft_s": case.value, "prefill_tokens_per_s": load.batch * inputs / case.value}
    if case.quantity in decoding:
        return decoding[case.quantity], 1.0, 0.0
    if case.quantity in prompting:
        return prompting[case.quantity], 0.0, 1.0
    tokens = {"output_tokens_per_s": outputs, "total_tokens_per_s": inputs + outputs}.get(case.quantity, 0)
    return (load.batch * tokens / case.value if tokens else case.value), outputs - 1.0, 1.0


def run_of(case: Case, efficiency: Efficiency) -> Run | None:
    """A row as its passes; None for other loads, and where the engine does not hold the batch."""
    try:
        load, deployment = load_of(case), Deployment.of(case)
        if not isinstance(load, Batch):
            return None
        context = load.context if load.context or load.output_tokens else load.input_tokens
        e = deployment.estimator(case, efficiency)(
            input_tokens=load.input_tokens or load.context or 1, output_tokens=load.output_tokens or 1, batch=load.batch, context=context
        )
    except InferplanError:
        return None
    if not e.fits:
        return None
    seconds, steps, first = seconds_of(case, load)
    made = [np.array(pair) for pair in zip(passes(e.prefill), passes(e.decode), strict=True)]
    core = Engine.find(deployment.engine, deployment.version).timed_as
    return Run(case, seconds, steps, first, load.batch, len(e.model.order), core, e.hardware.architecture, *made)


def plain(case: Case) -> bool:
    """Whether a row says what its kernels do: 16-bit weights and caches, one pass through all layers, no benchmark of alike routes.

    Argonne's TensorRT-LLM runs send identical prompts and decode greedily, so that all sequences choose the same experts.
    """
    routed = "Mixtral" in case.row["model"] and case.row["engine"] == "tensorrt-llm" and case.row["group"].startswith("argonne")
    narrow = case.row["weights"] not in ("fp16", "bf16") or case.row["kv"] not in ("", "fp16", "bf16")
    eight_bit = case.row["engine"] in ("mlx", "mlc-llm", "gpt-fast") or case.row["group"].startswith("trtllm")
    return not routed and (not narrow or eight_bit) and case.row["pp"] in ("", "1")


class Table:
    """Runs of a group as arrays."""

    def __init__(self, runs: list[Run]) -> None:
        self.runs = runs
        self.seconds, self.batch, self.layers = (np.array([getattr(r, name) for r in runs]) for name in ("seconds", "batch", "layers"))
        self.count = np.array([[r.first, r.steps] for r in runs])
        self.kernel_s, self.bytes_s, self.flops_s, self.rest = (
            np.array([getattr(r, name) for r in runs]) for name in ("kernel_s", "bytes_s", "flops_s", "rest")
        )

    def predict(self, c: Constants) -> np.ndarray:
        """Seconds of each run."""
        device = c.get("launch", 1.0) * self.rest[..., 0] + self.rest[..., 1] + c.get("collectives", 1.0) * self.rest[..., 2]
        for at, kind in enumerate(KINDS):
            device = device + self._kernel(c, at, kind)
        host = c.get("host", 0.0) + c.get("host_layer", 0.0) * self.layers[:, None]
        passed = device + host_wait_s(device, host) + c.get("per_step", 0.0) + c.get("per_sequence", 0.0) * self.batch[:, None]
        return np.asarray((passed * self.count).sum(axis=1))

    def _kernel(self, c: Constants, at: int, kind: str) -> np.ndarray:
        if f"{kind} eff_bandwidth" not in c:
            return np.asarray(self.kernel_s[..., at])
        if f"{kind} eff_flops" not in c:
            return np.asarray(np.maximum(self.kernel_s[..., at], self.bytes_s[..., at] / c[f"{kind} eff_bandwidth"]))
        compute = self.flops_s[..., at] / c[f"{kind} eff_flops"]
        memory = self.bytes_s[..., at] / c[f"{kind} eff_bandwidth"]
        return np.asarray(soft_maximum(compute, memory, SHARPNESS[kind]))


def fixed(core: str) -> Constants:
    """What serving runs say of an engine."""
    own = Efficiency.default().overhead(core)
    return {name: getattr(own, name) for name in ("launch", "collectives", "per_step", "per_sequence")}


def fit(runs: list[Run], names: tuple[str, ...]) -> Constants:
    """The constants of a group; efficiencies are at most 1. Where only kernels are fitted, the engine is that of the serving runs."""
    table = Table(runs)
    start = np.log([PRIORS[name][0] for name in names])
    spread = np.array([PRIORS[name][1] for name in names])
    weight = np.sqrt(1 / _sizes([(r.case.row["model"], r.case.row["gpu"]) for r in runs]))
    weight = weight / weight.mean()

    told = {} if "per_step" in names or "host_layer" in names or "host" in names else fixed(runs[0].core)

    def constants(x: np.ndarray) -> Constants:
        return told | {name: float(min(np.exp(v), 1.0) if "eff_" in name else np.exp(v)) for name, v in zip(names, x, strict=True)}

    def residuals(x: np.ndarray) -> np.ndarray:
        miss = weight * (np.log(table.predict(constants(x))) - np.log(table.seconds)) / SPREAD
        return np.append(soft(miss), TRUST * (x - start) / spread)

    return constants(levenberg_marquardt(residuals, start))


def _sizes(keys: list[Any]) -> np.ndarray:
    return np.array([keys.count(key) for key in keys], dtype=float)


def errors(runs: list[Run], c: Constants) -> np.ndarray:
    table = Table(runs)
    return np.asarray(np.abs(table.predict(c) / table.seconds - 1))


def held_out(runs: list[Run], names: tuple[str, ...], column: str) -> float | None:
    """The median error of each value's runs under constants fitted to all others; None where there is but one value."""
    values = sorted({r.case.row[column] for r in runs})
    if len(values) < 2:
        return None
    found = [errors([r for r in runs if r.case.row[column] == v], fit([r for r in runs if r.case.row[column] != v], names)) for v in values]
    return float(np.median(np.concatenate(found)))


HEAD = """# Written by tools/fit_tables.py from validation/offline.csv; do not edit, run it again.
# Cores of engines before those of serving.yaml (-v0), engines without serving runs, and parts and classes without kernel timings.
# error: median over the rows; note: the same for models, parts or settings that the fit had not seen.
"""


def written(made: Iterable[tuple[Group, Constants, int, float, float | None]]) -> str:
    """The calibration file."""
    engines: dict[str, Any] = {}
    kernels: dict[str, Any] = {}
    efficiency = bare()
    for group, c, rows, error, held in made:
        tail = {"basis": "inherited" if group.general else "measured", "rows": rows, "error": round(error, 3), "note": _note(group, held)}
        own = {name: _shown(name, value) for name, value in c.items() if " " not in name} | tail
        if group.constants and group.level:
            engines.setdefault(group.core, {"basis": "assumed"}).setdefault("parts", {})[group.level] = own
        elif group.constants:
            engines[group.core] = own
        _add_kernels(kernels, group, c, tail, efficiency)
    whole = {"name": "tables", "engines": engines, "kernels": kernels}
    return HEAD + yaml.safe_dump(whole, sort_keys=False, default_flow_style=None, width=300)


def _note(group: Group, held: float | None) -> str:
    return f"{group.held} left out {held:.3f}" if held is not None else "one setting, none left out"


def _add_kernels(kernels: dict[str, Any], group: Group, c: Constants, tail: dict[str, Any], efficiency: Efficiency) -> None:
    for kind in dict.fromkeys(name.split(" ")[0] for name in group.kernels):
        shares = {name.split(" ")[1]: float(f"{c[name]:.4g}") for name in group.kernels if name.startswith(kind + " ")}
        for form in FORMATS if group.parts else FORMATS[:1]:
            table = kernels.setdefault(kind, {}).setdefault(form, {})
            for level in group.parts or group.classes:
                own = efficiency.kernel(kind, form, group.classes[0] if group.parts else level, engine=group.core)
                so_far = {"eff_flops": own.eff_flops, "eff_bandwidth": own.eff_bandwidth, "launch": f"{own.launch_s * 1e6:.2f} us"}
                entry = so_far | shares | tail
                if group.general:
                    table[level] = entry
                    continue
                there = {} if level in efficiency.kernels[kind][form] else so_far | {"basis": "inherited"}
                table.setdefault(level, there).setdefault("engines", {})[group.core] = entry


def _shown(name: str, value: float) -> Any:
    return float(f"{value:.3f}") if name in ("launch", "collectives") else f"{value * 1e6:.4g} us"


def main(said: Callable[[str], None] = print) -> None:
    efficiency = bare()
    cases = [c for c in read_cases(ROWS)[0] if c.row["batch"] and plain(c)]
    runs = [r for r in (run_of(c, efficiency) for c in cases) if r is not None]
    made = []
    for group in GROUPS:
        own = [r for r in runs if r.core == group.core and r.architecture in group.classes and group.has(r.case.row["gpu"])]
        names = (*group.constants, *group.kernels)
        c = fit(own, names)
        error, held = float(np.median(errors(own, c))), held_out(own, names, group.held)
        made.append((group, c, len(own), error, held))
        said(
            f"{group.core:18} {group.level:14} {len(own):5} {error:.3f} {held if held is None else round(held, 3)} "
            + str({k: float(f"{v:.3g}") for k, v in c.items()})
        )
    FILE.write_text(written(made))


if __name__ == "__main__":
    main()
