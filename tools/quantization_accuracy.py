"""Predicted against measured speed-ups of quantised models: `python tools/quantization_accuracy.py` prints the docs' tables.

Reads validation/quantization.csv: pairs of runs that differ in formats alone. A row that cannot be predicted is refused with its reason.
`--rows` prints each row as well. `--fit` looks for the constants of calibration/quantized.yaml and unfused.yaml; nothing is written.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from math import log
from statistics import mean, median

import numpy as np
from measured_gains import ROOT, Outcome, Row, calibration, known, refusals, rows_of

from inferplan.deployment import Load, estimate
from inferplan.engine.segment import Segment
from inferplan.engine.step import Setting, decode, step
from inferplan.errors import InferplanError
from inferplan.roofline.efficiency import Efficiency, Entry, Fitted
from inferplan.serving.batch_times import Workload
from inferplan.serving.continuous import continuous
from inferplan.serving.lengths import Lengths
from inferplan.specs.hardware import Accelerator
from inferplan.specs.parallel import Parallel
from inferplan.specs.precision import Precision
from inferplan.speculation.host import host

ROWS = ROOT / "validation" / "quantization.csv"
PLACES, CLIENTS = 2048, 20_000  # of a benchmark that sends everything at once
ASKED = ("a100", "h100", "rtx-4090")
TITLES = {
    "gpt-fast": "compiled PyTorch, batch 1 (gpt-fast)",
    "qwen25_speed": "Qwen2.5, batch 1 (Qwen)",
    "qwen3_speed": "Qwen3, batch 1 (Qwen)",
    "vllm_rtn": "Llama 3.1 8B, batch 1 to 16, 256 in, 32 out (vLLM)",
    "argonne_fig3_quant": "Llama 3 8B, batch 1 to 64 (Argonne)",
    "xiongjiedai": "Llama 3 8B, batch 1 (llama.cpp, 15 parts)",
    "llamacpp_disc_4167": "Llama 2 7B, batch 1 (llama.cpp, Apple)",
    "mlc-llm-perf-bench": "Llama 2, batch 1, 2023 (MLC)",
    "premai": "Llama 2 7B, batch 1, 2024 (Prem)",
    "bloom_176b": "BLOOM, batch 1 to 128, 2022 (Hugging Face)",
    "trtllm_v0.14": "all that fits (TensorRT-LLM 0.14)",
    "qserve": "all that fits (QServe)",
    "vllm_blog_fp8kv": "gpt-oss (vLLM)",
    "autogptq": "MOSS (AutoGPTQ)",
}


def read() -> list[Row]:
    """The measured rows."""
    return rows_of(ROWS)


def outcome(row: Row, efficiency: Efficiency | None = None) -> Outcome:
    """A row predicted or refused."""
    if row["unknown"]:
        return Outcome(row, refused=row["unknown"])
    try:
        found = efficiency or calibration(row["efficiency"] or "default")
        predict = saturated_s if row["quantity"] == "saturated" else time_s
        narrow, plain = (predict(row, row[f"{p}weights"], row[f"{p}kv"], found) for p in ("", "base_"))
        return Outcome(row, plain / narrow)
    except InferplanError as e:
        return Outcome(row, refused=str(e))


def time_s(row: Row, weights: str, kv: str, efficiency: Efficiency) -> float:
    """Seconds between tokens, or of the whole batch from prompt to last token."""
    shape, part, kept = known(row["model"]), Accelerator.find(row["gpu"]), Precision.named(weights, kv or None)
    batch = float(row["batch"])
    load = Load(max(1, int(row["input_tokens"])), int(row["output_tokens"]), int(batch))
    setting = Setting(split(row), efficiency, row["engine"])
    gaps = np.asarray(decode(shape, part, kept, context=load.contexts, batch=batch, setting=setting).time_s)
    if row["kernels"] == "eager":
        gaps = np.maximum(gaps, host("transformers").eager_s(len(shape.order)))
    gap = float(gaps.mean())
    if row["quantity"] == "tpot":
        return gap
    first = step(shape, part, kept, Segment(batch, load.input_tokens, 0), setting=setting).time_s
    return float(np.asarray(first)) + (load.output_tokens - 1) * gap


def saturated_s(row: Row, weights: str, kv: str, efficiency: Efficiency) -> float:
    """Seconds per output token of all together, as many requests at once as the engine holds."""
    tokens = int(row["input_tokens"]), int(row["output_tokens"])
    e = estimate(
        known(row["model"]), Accelerator.find(row["gpu"]), Precision.named(weights, kv or None), input_tokens=tokens[0],
        output_tokens=tokens[1], parallel=split(row), engine=row["engine"], efficiency=efficiency, max_num_seqs=PLACES,
    )  # fmt: skip
    work = Workload(Lengths.fixed(tokens[0]), Lengths.fixed(tokens[1]))
    return 1 / float(continuous(e, work, clients=np.array([CLIENTS]), max_num_seqs=PLACES).output_tokens_per_s[0])


def split(row: Row) -> Parallel:
    """Tensor parallel, or pipeline stages where layers are dealt out."""
    return Parallel(tp=int(row["tp"] or 1), pp=int(row["pp"] or 1))


def width(row: Row) -> str:
    """What is narrow: fp8, 8 bit, 4 bit, or the cache alone."""
    if row["weights"] == row["base_weights"]:
        return f"{row['kv']} cache"
    cache_too = f" and cache in {row['kv']}" if row["kv"] != row["base_kv"] else ""
    name = row["weights"]
    return (
        "fp8" if name.startswith("fp8") else "int8" if "8" in name.split("-")[0] or "int8" in name or name == "w8a16" else "int4"
    ) + cache_too


def summary(found: Iterable[Outcome]) -> Iterator[tuple[str, ...]]:
    """Cells of the table: slice, format, kernels, rows, measured and predicted in the median, median error, bias, worst."""
    asked = [o for o in found if not o.refused]
    now = [o for o in asked if o.row["kernels"] == "fused"]
    yield from totals(now)
    yield cells("all, whatever the kernels", "all", "all", asked)
    yield cells("of these A100, H100, RTX 4090", "all", "all", [o for o in asked if o.row["gpu"].startswith(ASKED)])
    slices: dict[tuple[str, str, str, str], list[Outcome]] = {}
    for o in sorted(asked, key=lambda o: (o.row["kernels"] != "fused", o.row["kernels"], list(TITLES).index(o.row["group"]), width(o.row))):
        slices.setdefault((TITLES[o.row["group"]], width(o.row), o.row["engine"], o.row["kernels"]), []).append(o)
    for (title, format_, engine, kernels), rows in slices.items():
        yield cells(f"{title}, {engine}", format_, kernels, rows)


def totals(now: list[Outcome]) -> Iterator[tuple[str, ...]]:
    """What is asked of the whole: fused kernels, the three best known parts, by format and batch."""
    weights = [o for o in now if o.row["weights"] != o.row["base_weights"]]
    best = [o for o in weights if o.row["gpu"].startswith(ASKED)]
    yield cells("**all with fused kernels**", "all", "fused", weights)
    yield cells("**of these A100, H100, RTX 4090**", "all", "fused", best)
    for name in ("fp8", "int8", "int4"):
        yield cells("of these", name, "fused", [o for o in best if width(o.row).startswith(name)])
    steps: dict[str, Callable[[Outcome], bool]] = {
        "of these batch 1": lambda o: o.row["batch"] == "1",
        "of these batch 4 to 64": lambda o: o.row["batch"] not in ("", "1"),
        "of these all that fits": lambda o: o.row["quantity"] == "saturated",
    }
    for title, test in steps.items():
        yield cells(title, "all", "fused", [o for o in best if test(o)])


def cells(title: str, format_: str, kernels: str, found: list[Outcome]) -> tuple[str, ...]:
    """One line of the table."""
    errors = [o.error for o in found]
    middle = median(o.measured for o in found), median(o.predicted or 0.0 for o in found)
    return (
        title, format_, kernels, str(len(found)), f"{middle[0]:.2f}", f"{middle[1]:.2f}", f"{100 * median(map(abs, errors)):.1f} %",
        f"{100 * median(errors):+.1f} %", f"{100 * max(errors, key=abs):+.0f} %",
    )  # fmt: skip


def kernel_table() -> Iterator[tuple[str, ...]]:
    """Speed-ups of single matrix products of at least 30 million weights on an A100, by rows: measured beside the calibration."""
    timed = rows_of(ROOT / "validation" / "operators" / "gemm.csv")
    rows = [r for r in timed if r["part"] == "a100-sxm4-80gb" and r["engine"] == "tensorrt-llm"]
    plain = {(r["m"], r["n"], r["k"]): float(r["latency_us"]) for r in rows if r["format"] == "bf16"}
    for name, bits in (("int4-weight-only", 4.125), ("int8-weight-only", 8.0)):
        by_m: dict[int, list[tuple[float, float]]] = {}
        for r in rows:
            key = (r["m"], r["n"], r["k"])
            if r["format"] == name and key in plain and int(r["n"]) * int(r["k"]) >= 3e7:
                by_m.setdefault(int(r["m"]), []).append((plain[key] / float(r["latency_us"]), fitted_gain(name, bits, *map(int, key))))
        for m, pairs in sorted(by_m.items()):
            yield name, str(m), str(len(pairs)), f"{median(p[0] for p in pairs):.2f}", f"{median(p[1] for p in pairs):.2f}"


def fitted_gain(name: str, bits: float, m: int, n: int, k: int) -> float:
    """What the calibration makes of one product in 16 bit over one with narrow weights."""
    part, found = Accelerator.find("a100"), []
    for variant, stored in (("bf16", "bf16"), (name, name)):
        kernel = Efficiency.default().kernel("matmul", "bf16", part.architecture, stored=stored, engine="tensorrt-llm")
        moved = n * k * (2.0 if variant == "bf16" else bits / 8) + 2 * m * (n + k)
        sides = (
            2.0 * m * n * k / (part.peak_flops_per_s("bf16") * kernel.eff_flops),
            moved / (part.bandwidth_bytes_per_s * kernel.eff_bandwidth),
        )
        found.append(kernel.launch_s + sum(side**kernel.sharpness for side in sides) ** (1 / kernel.sharpness))
    return float(found[0] / found[1])


SHARES, STARTS = (0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9), (4, 6, 8, 10, 12, 15, 18, 22)
LOW, LATE = (0.05, 0.06, 0.07, 0.08, 0.09, 0.1, 0.15, 0.2, 0.22, 0.25), (10, 20, 40)
FITS: tuple[tuple[str, str, str | None, dict[str, str], tuple[float, ...], tuple[int, ...]], ...] = (
    ("int4-weight-only", "nvidia-hopper", None, {"group": "vllm_rtn", "weights": "w4a16", "kernels": "fused"}, SHARES, STARTS),
    ("int8-weight-only", "nvidia-hopper", None, {"group": "vllm_rtn", "weights": "w8a16", "kernels": "fused"}, SHARES, STARTS),
    ("int4-weight-only", "nvidia-hopper", None, {"group": "vllm_rtn", "weights": "w4a16", "kernels": "unfused"}, LOW, LATE),
    ("int8-weight-only", "nvidia-hopper", None, {"group": "vllm_rtn", "weights": "w8a16", "kernels": "unfused"}, LOW, LATE),
    ("int4-weight-only", "nvidia-ampere-dc", "vllm", {"group": "qwen25_speed", "weights": "awq", "engine": "vllm"}, SHARES, STARTS),
    (
        "int8-weight-only",
        "nvidia-ampere-dc",
        "vllm",
        {"group": "qwen25_speed", "weights": "gptq-int8-g128", "engine": "vllm"},
        SHARES,
        STARTS,
    ),
)


def fits() -> Iterator[tuple[str, str, float, int, float]]:
    """For each fit: variant, class, the share of bandwidth and the start-up that lie nearest to its rows, and the mean error."""
    for name, level, engine, chosen, shares, starts in FITS:
        rows = [r for r in read() if not r["unknown"] and all(r[k] == v for k, v in chosen.items())]
        tried = ((miss(rows, changed(name, level, engine, share, start)), share, start) for share, start in product(shares, starts))
        least, share, start = min(tried)
        yield name, level, share, start, least


def miss(rows: list[Row], efficiency: Efficiency) -> float:
    """How far predictions lie from what was measured, as the mean distance of their logarithms."""
    found = [outcome(row, efficiency) for row in rows]
    return mean(abs(log((o.predicted or 1.0) / o.measured)) for o in found if not o.refused)


def changed(name: str, level: str, engine: str | None, share: float, start: int) -> Efficiency:
    """The calibration with other constants for one kernel; its share of FLOP/s stays."""
    base = Efficiency.default()
    old = base.kernels["matmul"][name][level]
    given = {"eff_flops": old.eff_flops, "eff_bandwidth": share, "launch": f"{start} us", "basis": "inherited"}
    new = (
        old.model_copy(update={"engines": {**old.engines, engine: Fitted.model_validate(given)}}) if engine else Entry.model_validate(given)
    )
    matmul = {**base.kernels["matmul"], name: {**base.kernels["matmul"][name], level: new}}
    return base.model_copy(update={"kernels": {**base.kernels, "matmul": matmul}})


def main(argv: list[str]) -> int:
    """Print the tables, the rows too with `--rows`, or the fits with `--fit`."""
    if "--fit" in argv:
        for name, level, share, start, least in fits():
            print(f"{name:18} {level:18} bandwidth {share:.2f} start {start} us: {100 * least:.1f} %")
        return 0
    found = [outcome(row) for row in read()]
    print("| rows | format | kernels | n | measured | predicted | error | bias | worst |\n|---|---|---|---|---|---|---|---|---|")
    for line in summary(found):
        print(f"| {' | '.join(line)} |")
    print("\n| products on an A100 | rows m | n | measured | calibration |\n|---|---|---|---|---|")
    for line in kernel_table():
        print(f"| {' | '.join(line)} |")
    for reason, count in refusals(found).items():
        print(f"{count} refused: {reason}")
    for o in found if "--rows" in argv else ():
        print(
            f"{o.row['case']} {o.row['group']:20} {width(o.row):6} {o.measured:.2f} {o.predicted or 0:.2f} {100 * o.error:+.0f} %"
            if not o.refused
            else f"{o.row['case']} {o.refused}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
