"""Fit llama.cpp's kernels to public benchmarks of it: writes calibration/llama.yaml and validation/LLAMA.md.

Usage: python tools/fit_llama.py

Of each class of parts six numbers: the start-up of a kernel, the share of the bandwidth that products of 16-bit weights reach, that of
attention over its cache while it decodes, and three shares of the peak: of quantised products, of 16-bit ones, of attention over prompts.
A class stands around its vendor and a vendor around a value in general, with priors; block formats reach a part of the bandwidth share of
16-bit weights, one number for each vendor and family. Rows count by relative error, those beyond SPREAD linearly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from fit_kernels import SHARPNESS
from least_squares import STEP, levenberg_marquardt, soft
from llama_bands import bands
from llama_results import PAGE, page
from residual_bands import Table
from residual_bands import written as bands_written

from inferplan.calibrate.cases import Case, read_cases
from inferplan.calibrate.deployed import Deployment
from inferplan.calibrate.loads import Batch, load_of
from inferplan.calibrate.times import batch_times
from inferplan.deployment import Estimate, times_of_step
from inferplan.engine.op import Op
from inferplan.engine.step import Step
from inferplan.errors import InferplanError
from inferplan.roofline.efficiency import Efficiency, block_family
from inferplan.roofline.optime import soft_maximum

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "validation" / "llama.csv"
OUTPUT = ROOT / "calibration" / "llama.yaml"
ENGINE = "llama.cpp"
DECODE = "decode_tokens_per_s"
SPREAD = 0.1  # relative error of a row that counts as one
TRUST = 0.5  # weight of a row whose front end ships kernels of its own
ROOM = 1.001  # a row above the roof is mislabelled; so much is rounding
KINDS = ("matmul", "experts", "attention_decode", "attention_prefill", "elementwise")
SHARP = np.array([SHARPNESS.get(kind, 1.0) for kind in KINDS])  # norms multiply nothing: one time alone
FAMILIES = ("bf16", "fp16", "legacy", "k-quant", "low-bit", "mxfp4")
FEW = 4  # rows from which a number counts as measured
LOW_BIT = 0.65  # of the share of K quants: 1 to 3 bits beside 4 on one part, llama.cpp tools/quantize/README.md @311c2c9f0ebd
ACTIVATIONS = 0.6  # of the share of 16-bit weights: what norms and activations between kernels reach
MOST = 0.95  # of the bandwidth: no stream reaches more on any part that was timed
SCORES = 0.5  # share of the peak of attention while it decodes; no row is bound by it
OF_CLASS = {  # in general, and how far vendors and classes spread about it, in logarithms
    "launch": (10e-6, 0.4, 0.25), "bandwidth": (0.85, 0.1, 0.25), "quantised": (0.18, 0.6, 0.3), "plain": (0.45, 0.4, 0.3),
    "prompts": (0.12, 0.6, 0.35), "cache": (0.35, 0.3, 0.25),
}  # fmt: skip
OF_VENDOR = {"legacy": (0.95, 0.15), "k-quant": (0.85, 0.2)}
OF_ALL = {"mxfp4": (0.9, 0.2), "expert_rate": (0.6, 0.5), "per_step": (200e-6, 0.7)}


def read() -> list[Case]:
    """The rows of public benchmarks."""
    return read_cases(ROWS)[0]


def pass_of(case: Case) -> tuple[Estimate, Step, float, float]:
    """A row's estimate, its pass, how many times that pass counts, and the tokens it makes."""
    load = load_of(case)
    assert isinstance(load, Batch)
    e = batch_times(Deployment.of(case).estimator(case, Efficiency.default()), load).estimate
    if case.quantity == DECODE:
        return e, e.decode, 1.0, 1.0
    assert load.input_tokens is not None
    steps = float(times_of_step(e.microbatches, e.setting.parallel.pp))
    return e, e.prefill_step, steps, float(load.batch * (load.input_tokens - load.cached))


def roofs(step: Step, op: Op) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Seconds at the peak and at the bandwidth, and launches, over the points of a pass."""
    part, family = step.hardware, block_family(op.stored)
    peak = np.inf if op.rate == "none" else part.peak_quantity(op.rate, rate_of(op.kind, family)).value
    moved = np.asarray(op.weight_bytes + op.kv_bytes + op.act_bytes, float)
    found = np.broadcast_arrays(np.asarray(op.flops, float) / peak, moved / part.bandwidth_bytes_per_s, np.asarray(op.count, float))
    return tuple(np.ravel(x) for x in found)  # type: ignore[return-value]


def rate_of(kind: str, family: str) -> str | None:
    """The rate of the sheet that a kernel is a share of where it is not the plain one: products added up in fp16."""
    return "fp16_fp16acc" if kind == "attention_prefill" or family == "fp16" else None


def pieces(step: Step, times: float) -> Iterator[tuple[int, int, float, float, float]]:
    """Operators as kind, family, seconds at the peak, seconds at the bandwidth, launches; equal intensities as one."""
    found: dict[tuple[int, int, float], np.ndarray] = {}
    for op in step.ops:
        kind = "matmul" if op.kind == "head" else op.kind
        if kind not in KINDS:
            continue
        family = FAMILIES.index(block_family(op.stored) or "bf16") if kind in ("matmul", "experts") else 0
        for point in zip(*roofs(step, op), strict=True):
            ratio = round(float(np.log((point[1] + 1e-30) / (point[0] + 1e-30))), 3)
            key = KINDS.index(kind), family, ratio
            found[key] = found.get(key, 0.0) + np.array(point) * times / points(step)
    for (k, f, _), sums in found.items():
        yield k, f, *sums


def points(step: Step) -> int:
    """Points of a pass, such as the chunks of a prompt."""
    return max(int(np.size(x)) for op in step.ops for x in (op.flops, op.kv_bytes, op.act_bytes, op.weight_bytes))


def others_s(step: Step) -> float:
    """Seconds of what is not fitted: lookups, recurrences, convolutions, copies between devices."""
    rest = [op for op in step.ops if op.kind not in (*KINDS, "head", "collective")]
    return float(sum(np.mean(step.op_s(op)) for op in rest) + sum(np.mean(step.wire_s(op)) for op in step.ops))


@dataclass
class Rows:
    """Rows that can be predicted, and the pieces of their passes as arrays."""

    d: pd.DataFrame
    pieces: np.ndarray

    @classmethod
    def read(cls, cases: list[Case]) -> Rows:
        """The rows of cases; those that do not fit on the part are left out."""
        lines, found = [], []
        for case in cases:
            try:
                e, step, times, tokens = pass_of(case)
            except InferplanError:
                continue
            floor = e.floor_tpot_s if case.quantity == DECODE else e.floor_ttft_s
            part = e.hardware
            own = {"part": part.name, "class": part.architecture, "vendor": part.vendor, "shape": e.model.name}
            own["maker"] = part.architecture.split("-")[0]
            seconds = {"seconds": tokens / case.value, "floor": floor, "times": times, "others": times * others_s(step)}
            found += [(len(lines), *piece) for piece in pieces(step, times)]
            lines.append({**case.row, **own, **seconds, "case": case.name, "quantity": case.quantity, "value": case.value})
        return cls(pd.DataFrame(lines).fillna(""), np.array(found))

    def __len__(self) -> int:
        return len(self.d)

    def column(self, name: str) -> np.ndarray:
        """A column as an array."""
        return self.d[name].to_numpy()

    @cached_property
    def classes(self) -> list[str]:
        """Classes of parts that have rows."""
        return sorted(set(self.d["class"]))

    @cached_property
    def vendors(self) -> list[str]:
        """Their vendors, as calibrations name them."""
        return sorted({name.split("-")[0] for name in self.classes})

    @cached_property
    def vendor_of(self) -> np.ndarray:
        """The vendor of each class."""
        return np.array([self.vendors.index(name.split("-")[0]) for name in self.classes])

    @cached_property
    def class_of(self) -> np.ndarray:
        """The class of each row."""
        return np.array([self.classes.index(name) for name in self.d["class"]])

    @cached_property
    def weight(self) -> np.ndarray:
        """Each series of rows counts by the square root of its number; 0 for labels that say why a row is no measure of the part."""
        size = self.d.groupby(["part", "group", "weights", "quantity"]).seconds.transform("size").to_numpy()
        sound = (self.column("host_class") != "board") & (self.column("seconds") * ROOM >= self.column("floor"))
        w = np.where(self.column("front") == "llamafile", TRUST, 1.0) * np.sqrt(1 / size) * sound
        return np.asarray(w / w[sound].mean())


class Fit:
    """The constants as one vector: of classes, of vendors, formats of vendors, of all."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        sizes = (len(rows.classes) * len(OF_CLASS), len(rows.vendors) * len(OF_CLASS), len(rows.vendors) * len(OF_VENDOR), len(OF_ALL))
        self.ends = np.cumsum(sizes)
        self.general = np.log([v for v, _, _ in OF_CLASS.values()])
        self.formats = np.log([v for v, _ in OF_VENDOR.values()])
        self.shared = np.log([v for v, _ in OF_ALL.values()])

    @property
    def start(self) -> np.ndarray:
        """The priors."""
        r = self.rows
        return np.concatenate([
            np.tile(self.general, len(r.classes) + len(r.vendors)), np.tile(self.formats, len(r.vendors)), self.shared,
        ])  # fmt: skip

    def parts(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Logarithms: classes x constants, vendors x constants, vendors x families, those of all."""
        of_class, of_vendor, formats, shared = np.split(x, self.ends[:-1])
        return of_class.reshape(-1, len(OF_CLASS)), of_vendor.reshape(-1, len(OF_CLASS)), formats.reshape(-1, len(OF_VENDOR)), shared

    @cached_property
    def _at(self) -> tuple[np.ndarray, ...]:
        """Row, kind and family of each piece; then its seconds at the peak and the bandwidth, and its launches."""
        p = self.rows.pieces
        return p[:, 0].astype(int), p[:, 1].astype(int), p[:, 2].astype(int), p[:, 3], p[:, 4], p[:, 5]

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Seconds of each row's pass, never below its floor."""
        row, kind, _, compute, memory, launches = self._at
        of_class, _, _, shared = self.parts(x)
        launch = np.exp(of_class[:, 0])[self.rows.class_of[row]]
        rate, width = self.shares(x)
        each = soft_maximum(compute / rate, memory / width, SHARP[kind]) + launch * launches
        total = np.bincount(row, each, len(self.rows)) + self.rows.column("others") + np.exp(shared[2]) * self.rows.column("times")
        return np.asarray(np.maximum(total, self.rows.column("floor")))

    def shares(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Shares of peak and bandwidth of each piece."""
        row, kind, family, *_ = self._at
        tables = self.tables(x)
        at = self.rows.class_of[row]
        return tuple(np.stack([t[i] for t in tables])[at, kind, family] for i in (0, 1))  # type: ignore[return-value]

    def tables(self, x: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of each class, shares of peak and bandwidth by kind and family."""
        of_class, _, formats, shared = self.parts(x)
        return [table(of_class[i], formats[v], shared) for i, v in enumerate(self.rows.vendor_of)]

    def residuals(self, x: np.ndarray, use: np.ndarray) -> np.ndarray:
        """Rows by relative error, then every constant by its prior."""
        of_class, of_vendor, formats, shared = self.parts(x)
        miss = np.sqrt(self.rows.weight * use) * soft(np.log(self.predict(x) / self.rows.column("seconds")) / SPREAD)
        near = (of_class - of_vendor[self.rows.vendor_of]) / [s for _, _, s in OF_CLASS.values()]
        about = (of_vendor - self.general) / [s for _, s, _ in OF_CLASS.values()]
        tied = (formats - self.formats) / [s for _, s in OF_VENDOR.values()]
        return np.concatenate([miss, near.ravel(), about.ravel(), tied.ravel(), (shared - self.shared) / [s for _, s in OF_ALL.values()]])

    def slopes(self, x: np.ndarray, r: np.ndarray, use: np.ndarray) -> np.ndarray:
        """Slopes of the residuals; a constant of all classes at once, since each moves the rows of its class alone."""
        n, found = len(self.rows), np.zeros((len(r), len(x)))
        first, second, third, last = self.ends
        vendor_of_row = self.rows.vendor_of[self.rows.class_of]
        groups = [(0, first, len(OF_CLASS), self.rows.class_of), (second, third, len(OF_VENDOR), vendor_of_row)]
        for low, high, wide, of_row in groups:
            for k in range(wide):
                unit = np.zeros(len(x))
                unit[low + k : high : wide] = STEP
                found[np.arange(n), low + k + wide * of_row] = (self.residuals(x + unit, use)[:n] - r[:n]) / STEP
        for k in range(third, last):
            unit = np.zeros(len(x))
            unit[k] = STEP
            found[:n, k] = (self.residuals(x + unit, use)[:n] - r[:n]) / STEP
        found[n:] = self._prior_slopes
        return found

    @cached_property
    def _prior_slopes(self) -> np.ndarray:
        x, none = self.start, np.zeros(len(self.rows))
        at = self.residuals(x, none)[len(self.rows) :]
        return np.array([(self.residuals(x + STEP * unit, none)[len(self.rows) :] - at) / STEP for unit in np.eye(len(x))]).T

    def fit(self, use: np.ndarray, start: np.ndarray | None = None) -> np.ndarray:
        """The constants fitted to the rows in use."""
        return levenberg_marquardt(
            lambda x: self.residuals(x, use), self.start if start is None else start, lambda x, r: self.slopes(x, r, use), rounds=40,
            least_move=1e-3,
        )  # fmt: skip


def table(own: np.ndarray, formats: np.ndarray, shared: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shares of peak and bandwidth by kind and family, of a class or a vendor."""
    _, bandwidth, quantised, plain, prompts, cache = np.exp(own)
    legacy, k_quant, mxfp4, expert_rate = np.exp([*formats, *shared[:2]])
    part = np.array([1.0, 1.0, legacy, k_quant, LOW_BIT * k_quant, mxfp4])
    rate = np.array([plain, plain, quantised, quantised, quantised, plain])
    flat = np.ones(len(FAMILIES))
    peaks = np.stack([rate, rate * expert_rate, SCORES * flat, prompts * flat, flat])
    widths = np.stack([bandwidth * part, bandwidth * part, cache * flat, bandwidth * flat, ACTIVATIONS * bandwidth * flat])
    return np.minimum(peaks, 1.0), np.minimum(widths, MOST)


def held_out(fit: Fit, x: np.ndarray, column: str) -> np.ndarray:
    """Predictions of each value's rows from constants fitted to all others."""
    found, values = np.zeros(len(fit.rows)), fit.rows.column(column)
    for value in sorted(set(values)):
        out = values == value
        found[out] = fit.predict(fit.fit(np.where(out, 0.0, 1.0), x))[out]
    return found


def two_constants(rows: Rows, use: np.ndarray) -> np.ndarray:
    """What calculators with one derate for each phase say: the floor over the median share of it that the rows reach."""
    decode, floor, seconds = rows.column("quantity") == DECODE, rows.column("floor"), rows.column("seconds")
    shares = {phase: np.median((floor / seconds)[(decode == phase) & use]) for phase in (True, False)}
    return np.asarray(floor / np.where(decode, shares[True], shares[False]))


def entries(fit: Fit, x: np.ndarray, errors: dict[str, float]) -> dict[str, dict[str, dict[str, str]]]:
    """The kernels of the file, by kind, family and level."""
    r = fit.rows
    of_class, of_vendor, formats, shared = fit.parts(x)
    levels = [(name, of_class[i], formats[v]) for i, (name, v) in enumerate(zip(r.classes, r.vendor_of, strict=True))]
    levels += [(name, of_vendor[i], formats[i]) for i, name in enumerate(r.vendors)]
    found: dict[str, dict[str, dict[str, str]]] = {}
    for name, own, of_format in levels:
        peaks, widths = table(own, of_format, shared)
        for k, kind in enumerate(KINDS):
            for f, family in enumerate(FAMILIES) if kind in ("matmul", "experts") else [(0, "any")]:
                said = shares_of(kind, family, peaks[k, f], widths[k, f])
                text = f"{{{said}, launch: {np.exp(own[0]) * 1e6:.1f} us, {basis_of(r, name, k, f, errors.get(name))}}}"
                found.setdefault(kind, {}).setdefault(family, {})[name] = text
    return found


def shares_of(kind: str, family: str, peak: float, width: float) -> str:
    """The shares of an entry."""
    rate = rate_of(kind, family)
    peaks = f"eff_flops: {peak:.3f}, {f'peak: {rate}, ' if rate else ''}"
    return f"{'' if kind == 'elementwise' else peaks}eff_bandwidth: {width:.3f}"


def basis_of(rows: Rows, level: str, kind: int, family: int, error: float | None) -> str:
    """What stands behind an entry: fitted rows of the class with such kernels, others of the class or its vendor, or priors alone."""
    at = rows.pieces[:, :3].astype(int)
    kin = at[(at[:, 1] == kind) & (at[:, 2] == family), 0]
    of, fitted = rows.column("class"), rows.weight > 0
    own = int(np.sum(fitted[np.unique(kin)] & (of[np.unique(kin)] == level)))
    if error is not None and own >= FEW and FAMILIES[family] != "low-bit":
        return f"basis: measured, rows: {own}, error: {error:.3f}"
    near = sum(str(name).split("-")[0] == level.split("-")[0] for name in of[fitted])
    return "basis: inherited" if near >= FEW else "basis: assumed"


def written(fit: Fit, x: np.ndarray, held: np.ndarray, of: Table) -> str:
    """The calibration as a file; errors are of parts left out, `of` holds the bands."""
    error = np.abs(held / fit.rows.column("seconds") - 1)
    errors = {name: float(np.median(error[fit.rows.class_of == i])) for i, name in enumerate(fit.rows.classes)}
    lines = [
        "# Written by tools/fit_llama.py from validation/llama.csv; do not edit, run it again.",
        "# Kernels that llama.cpp ships itself, by family of GGUF tensor types. A class has six constants of its own and shares the",
        "# others, so that its entries go together. rows: of the class with such kernels; error: median over the class, the part left out.",
        "# inherited: too few such rows, so that other formats of the class, or its vendor, stand behind it; assumed: priors alone.",
        "name: llama",
        "engine_kernels:",
        f"  {ENGINE}:",
    ]
    for kind, families in entries(fit, x, errors).items():
        lines.append(f"    {kind}:")
        for family, levels in families.items():
            lines.append(f"      {family}:")
            lines += [f"        {name}: {line}" for name, line in levels.items()]
    per_step = float(np.exp(fit.parts(x)[3][2]))
    lines += [
        "engines:",
        f"  {ENGINE}: {{per_step: {per_step * 1e6:.0f} us, per_sequence: 20 us, basis: measured, rows: {len(fit.rows)}, "
        f"error: {np.median(error):.3f}, note: per_sequence assumed}}",
    ]
    return "\n".join([*lines, *bands_written(of)]) + "\n"


def said(label: str, predicted: np.ndarray, rows: Rows) -> Iterator[str]:
    """A line for each phase."""
    error = predicted / rows.column("seconds") - 1
    for phase, of in (("decode", rows.column("quantity") == DECODE), ("prefill", rows.column("quantity") != DECODE)):
        e = error[of]
        yield (
            f"{label:18} {phase:8} {of.sum():4} rows  median {np.median(np.abs(e)):.3f}  mean {np.abs(e).mean():.3f}  "
            f"within 20 % {np.mean(np.abs(e) <= 0.2):.3f}  signed {np.median(e):+.3f}"
        )


def predictions(fit: Fit) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The constants, and the rows as each way of predicting has them."""
    use = np.ones(len(fit.rows))
    x = fit.fit(use)
    found = {"in sample": fit.predict(x)}
    found |= {f"one {name} out": held_out(fit, x, column) for name, column in (("part", "part"), ("model", "shape"))}
    found["roofline alone"] = fit.rows.column("floor")
    found["two derates"] = two_constants(fit.rows, fit.rows.weight > 0)
    return x, found


def main() -> None:
    fit = Fit(Rows.read(read()))
    x, found = predictions(fit)
    unseen = {f"one {column} out": held_out(fit, x, column) for column in ("class", "maker")}
    of = bands(fit.rows.d, found | unseen, fit.rows.weight, ENGINE)
    OUTPUT.write_text(written(fit, x, found["one part out"], of))
    PAGE.write_text(page(fit.rows.d, found, of))
    for name, predicted in found.items():
        for line in said(name, predicted, fit.rows):
            print(line)


if __name__ == "__main__":
    main()
