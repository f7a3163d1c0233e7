"""Published tables as case files: a collection of measurements and one of disaggregated runs in, validation/*.csv out. Predicts nothing.

Usage: python tools/table_cases.py offline COLLECTION.csv
       python tools/table_cases.py disaggregated COLLECTION.csv

A collection is a table with one measured value per row; its columns are those that `offline` and `disaggregated` read below. Rows
are taken or left out by rule alone, never by how well they are predicted; validation/left_out.csv counts what is left out by reason.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

from inferplan import names
from inferplan.errors import InferplanError
from inferplan.memory.weights import weight_bytes

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "validation"
COLUMNS = (
    "case", "source", "group", "date", "model", "gpu", "gpus", "engine", "engine_version", "weights", "kv", "tp", "pp", "dp", "ep",
    "network", "input_tokens", "output_tokens", "batch", "concurrency", "requests", "rate_per_s", "length_ratio", "context", "max_num_seqs",
    "max_num_batched_tokens", "max_model_len", "utilization", "quantity", "value", "note",
)  # fmt: skip
Row = dict[str, str]


class LeftOut(Exception):
    """A row that is not tabulated, with the rule that says so."""


REGIMES = ("batch1_decode", "prefill", "batch_throughput", "latency_e2e", "serving_slo")
GPUS = {
    "A100 SXM (40GB per paper, Polaris/JLSE)": "a100-sxm4-40gb", "H100 80GB SXM": "h100-sxm5-80gb", "GH200 96GB": "gh200-96gb",
    "MI300X 192GB": "mi300x", "MI250": "mi250", "Intel Max 1550": "max-1550", "Gaudi2": "gaudi2", "A100 80GB SXM": "a100-sxm4-80gb",
    "A100 80GB PCIe": "a100-pcie-80gb", "L40S": "l40s", "H200 141GB SXM": "h200-sxm5-141gb", "B200 180GB SXM": "b200-sxm",
    "GB200 192GB NVL72": "gb200", "RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000-server", "A100 80GB": "a100-sxm4-80gb",
    "H20 96GB": "h20-96gb", "RTX 4090": "rtx-4090", "Jetson AGX Orin": "jetson-agx-orin-64gb",
    "A100 80GB SXM (330W cap)": "a100-sxm4-80gb", "A10G": "a10g", "A100 (PCIe; variant unstated)": "a100-pcie-80gb",
    "RX 7900 XTX": "rx-7900-xtx", "NVIDIA GB10 (DGX Spark)": "dgx-spark", "Inferentia2 (Inf2.48xlarge)": "inferentia2",
    "Trainium1 (trn1.32xlarge)": "trainium1", "Intel Arc Pro B60": "arc-pro-b60", "TPU v4": "tpu-v4",
    "Apple M4 Max 64GB (40-core assumed)": "m4-max-40c", "NVIDIA H100-SXM-80GB": "h100-sxm5-80gb",
    "NVIDIA H200-SXM-141GB": "h200-sxm5-141gb", "NVIDIA H100-NVL-94GB": "h100-nvl-94gb", "NVIDIA H100-PCIe-80GB": "h100-pcie-80gb",
    "NVIDIA GH200 Grace Hopper Superchip 144GB": "gh200-144gb", "NVIDIA GH200 Grace Hopper Superchip 96GB": "gh200-96gb",
    "NVIDIA L40S": "l40s", "NVIDIA B200-SXM-180GB": "b200-sxm", "NVIDIA GB200": "gb200", "NVIDIA H200-NVL-141GB": "h200-nvl-141gb",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000-server", "AMD Instinct MI300X 192GB HBM3": "mi300x",
    "AMD Instinct MI325X 256GB HBM3e": "mi325x", "AMD Instinct MI300X-NPS1-SPX-192GB-750W": "mi300x",
    "AMD MI300X-NPS1-SPX-192GB-750W": "mi300x",
}  # fmt: skip
ENGINES = {
    "vLLM": "vllm", "vllm": "vllm", "vLLM (ROCm)": "vllm", "vLLM (XPU)": "vllm", "TensorRT-LLM": "tensorrt-llm", "SGLang": "sglang",
    "Deepspeed": "deepspeed", "Deepspeed-MII": "deepspeed", "ds-inference": "deepspeed", "HF transformers": "transformers",
    "gpt-fast (torch.compile)": "gpt-fast", "LMDeploy TurboMind": "lmdeploy", "FasterTransformer": "fastertransformer",
    "MLC-LLM": "mlc-llm", "MLX (mlx-lm)": "mlx", "Transformers NeuronX": "neuronx",
}  # fmt: skip
WEIGHTS = {
    "fp16": "fp16", "bf16": "bf16", "fp8": "fp8", "fp4": "nvfp4", "nvfp4": "nvfp4", "int8": "int8", "gptq-int4": "gptq-int4",
    "gptq-int8": "gptq-int8", "awq": "awq-int4-g128", "awq-int4": "awq-int4-g128", "awq-int4-g128": "awq-int4-g128",
    "fp8-block128": "fp8-block", "mxfp4": "mxfp4", "q4f16_1": "int4-g32", "int4-g32": "int4-g32", "int4-weight-only": "awq-int4-g128",
    "mlx-bf16": "bf16", "mlx-q8": "mlx-q8-g64", "mlx-q6": "mlx-q6-g64", "mlx-q5": "mlx-q5-g64", "mlx-q4": "mlx-q4-g64",
    "mlx-q5 g32": "mlx-q5-g32", "mlx-q4 g32": "mlx-q4-g32",
}  # fmt: skip
KV = {"fp8": "fp8", "int8": "int8-tensor", "": "", "fp16": "", "bf16": ""}
QUANTITIES = {
    "total_tok_s": ("total_tokens_per_s", 1.0), "total_output_tok_s": ("output_tokens_per_s", 1.0),
    "decode_tok_s_per_seq": ("decode_tokens_per_s", 1.0), "tpot_ms": ("tpot_s", 1e-3), "ttft_ms": ("ttft_s", 1e-3),
    "e2e_s": ("e2e_s", 1.0), "prefill_tok_s": ("prefill_tokens_per_s", 1.0), "phase_time_s": ("ttft_s", 1.0),
}  # fmt: skip


def published(x: Row) -> Row:
    """What rows of all tables have in common."""
    if x["regime"] not in REGIMES:
        raise LeftOut("no measurement of a model's speed, or an unverified one")
    if "llama" in x["engine"].lower() or "ollama" in x["engine"].lower():
        raise LeftOut("llama.cpp: tabulated elsewhere")
    engine = ENGINES.get(x["engine"])
    if engine is None:
        raise LeftOut(f"engine: {x['engine']}")
    if x["gpu"] not in GPUS:
        raise LeftOut(f"part not in the catalog, or not one part: {x['gpu']}")
    if x["weight_dtype"] not in WEIGHTS:
        raise LeftOut(f"weights as '{x['weight_dtype']}'")
    if x["metric"] not in QUANTITIES:
        raise LeftOut(f"quantity: {x['metric']}")
    quantity, scale = QUANTITIES[x["metric"]]
    tokens = {name: x[key] for name, key in (("input_tokens", "input_len"), ("output_tokens", "output_len"))}
    note = x["notes"] if len(x["notes"]) < 120 else ""
    return {
        "source": x["source"], "group": x["source_group"], "date": x["date"], "model": _model(x["model"]), "gpu": GPUS[x["gpu"]],
        "gpus": _whole(x["num_gpus"]), "engine": engine, "engine_version": x["engine_version"], "weights": WEIGHTS[x["weight_dtype"]],
        "kv": KV.get(x["kv_dtype"], ""), "tp": _whole(x["tp"]), "pp": _whole(x["pp"]), "ep": _whole(x["ep"]), **tokens,
        "quantity": quantity, "value": repr(float(x["value"]) * scale), "note": note,
    }  # fmt: skip


MODELS = {
    "Megatron GPT-20B (random/Megatron)": "megatron-gpt-20b", "Megatron GPT-530B (random/Megatron)": "megatron-gpt-530b",
    "Megatron GPT-175B (random/Megatron)": "gpt-3-175b", "Megatron GPT-6.7B (random/Megatron)": "megatron-gpt-6.7b",
    "Megatron GPT-1.3B (random/Megatron)": "megatron-gpt-1.3b", "Megatron GPT-350M (random/Megatron)": "megatron-gpt-350m",
    "Megatron GPT-89B (random/Megatron)": "megatron-gpt-89b", "PaLM 540B": "palm-540b",
}  # fmt: skip


@cache
def _known(text: str) -> bool:
    try:
        names.model(text)
    except InferplanError:
        return False
    return True


def _model(text: str) -> str:
    own = MODELS.get(text, text)
    if not _known(own):
        raise LeftOut(f"model not in the catalog: {text}")
    return own


def _whole(text: str) -> str:
    return f"{float(text):g}" if text else ""


def batched(x: Row) -> Row:
    """A static batch of identical requests; Argonne's throughput is (in + out) x batch / latency."""
    row = published(x)
    batch = x["batch_or_concurrency"]
    if not batch.isdigit() or not row["input_tokens"].isdigit():
        raise LeftOut("batch or lengths not stated")
    if not row["output_tokens"].isdigit() and row["quantity"] not in ("ttft_s", "prefill_tokens_per_s"):
        if row["quantity"] not in ("tpot_s", "decode_tokens_per_s"):
            raise LeftOut("batch or lengths not stated")
        row = {**row, "context": str(max(1, int(row["input_tokens"]))), "input_tokens": "", "output_tokens": ""}
    if row["engine"] == "transformers" and row["tp"] not in ("", "1"):
        row |= {"pp": row["tp"], "tp": "1"}  # device_map: layers in turn on the devices
    return {**row, "batch": batch, "output_tokens": "" if row["output_tokens"] == "0" else row["output_tokens"]}


def argonne(x: Row) -> Row:
    """As `batched`; repeats of one figure's rows in another are left out in `offline`."""
    row = batched(x)
    if x["pp"] not in ("", "1.0") and x["engine"] == "vLLM":
        raise LeftOut("pipeline of a static batch under vLLM")
    if "EP" in x["notes"]:
        row |= {"ep": _whole(x["ep"]) or row["tp"]}
    return row


def static_table(x: Row) -> Row:
    """TensorRT-LLM up to 0.9: static batches; output tokens per second and GPU, over the whole latency."""
    row = batched({**x, "metric": "total_output_tok_s"} if x["metric"] == "output_tok_s_per_gpu" else x)
    if x["metric"] == "output_tok_s_per_gpu":
        if not row["tp"]:
            raise LeftOut("split not stated")
        row["value"] = repr(float(row["value"]) * float(x["num_gpus"]))
    return row


SENT = {
    ("128", "128"): 30000, ("128", "2048"): 3000, ("128", "4096"): 1500, ("500", "2000"): 3000, ("1000", "1000"): 3000,
    ("1024", "2048"): 3000, ("1000", "2000"): 3000, ("2048", "128"): 3000, ("2048", "2048"): 1500, ("5000", "500"): 1500,
    ("20000", "2000"): 1000,
}  # fmt: skip
"""Requests of each pair of lengths: assumed, not checked against the documentation of TensorRT-LLM's tables."""


def saturated(x: Row) -> Row:
    """TensorRT-LLM from 0.14 on: all requests sent at once, in-flight batching as far as the cache allows, over the whole run.

    Requests as SENT assumes them, at most 3,000, after which the rate is steady.
    """
    row = published(x)
    sent = min(3000, SENT[x["input_len"], x["output_len"]])
    tokens = str(max(8192, int(x["input_len"]) + 2048))  # a whole prompt beside the decodes of a step
    return {**row, "concurrency": str(sent), "requests": str(sent), "max_num_seqs": "2048", "max_num_batched_tokens": tokens}


RELEASES = {"v4.1": "0.11", "v5.1": "1.0"}


def mlperf(x: Row) -> Row:
    """MLPerf on one machine of one kind of part, seen as one of its replicas: the least tp whose weights take at most 55 % of a device.

    Offline: all samples at once, 2,000 of them for each replica. Server and Interactive: Poisson arrivals at the rate that was served.
    Lengths are those of the data set in the mean, taken as uniform from near 0 to twice the mean. Caches are fp8. Builds of vLLM are the
    submitters' own, so that the release which they started from is not stated.
    """
    if "nodes=1;" not in x["notes"]:
        raise LeftOut("more than one node")
    engine = "TensorRT-LLM" if x["engine"].startswith("TensorRT") else "vLLM" if x["engine"].startswith("vLLM") else x["engine"]
    row = published({**x, "engine": engine})
    inputs, outputs = x["input_len"], x["output_len"]
    if not inputs or not outputs:
        raise LeftOut("batch or lengths not stated")
    tp, replicas = _replicas(row, float(x["num_gpus"]))
    row |= {"engine_version": RELEASES[x["engine_version"]] if engine == "TensorRT-LLM" else ""}
    row |= {"kv": "fp8", "gpus": str(tp), "tp": str(tp), "length_ratio": "0.01", "max_model_len": "2048", "max_num_seqs": "1024"}
    row |= {"input_tokens": str(round(2 * float(inputs))), "output_tokens": str(round(2 * float(outputs)))}
    row |= {"max_num_batched_tokens": "8192"}
    row["note"] = f"{x['batch_or_concurrency']}, a replica of {x['num_gpus']} devices; {x['notes'].split('; ')[0]}"
    if row["quantity"] == "output_tokens_per_s":
        row["value"] = repr(float(row["value"]) / replicas)
    return {**row, "requests": "2000"} | _arrivals(x, replicas)


def _replicas(row: Row, devices: float) -> tuple[int, float]:
    held = weight_bytes(names.model(row["model"]), names.precision(row["weights"]))
    tp = 1
    while held / tp > 0.55 * names.hardware(row["gpu"]).usable_bytes:
        tp *= 2
    if devices < tp or devices % tp:
        raise LeftOut("devices that the rule for tp does not divide")
    return tp, devices / tp


def _arrivals(x: Row, replicas: float) -> Row:
    if x["batch_or_concurrency"] == "Offline":
        return {"concurrency": "2000"}
    if x["metric"] == "total_output_tok_s":
        raise LeftOut("throughput of an open loop, which is its arrival rate")
    rate = float(x["served_tok_s"]) / float(x["output_len"]) / replicas
    return {"rate_per_s": f"{rate:.6g}"}


def with_rates(rows: list[Row]) -> list[Row]:
    """Rows with what the same system and scenario of MLPerf served."""
    served = {_system(x): x["value"] for x in rows if x["metric"] == "total_output_tok_s"}
    return [{**x, "served_tok_s": served.get(_system(x), "")} for x in rows]


def _system(x: Row) -> tuple[str, ...]:
    return (x["source_group"], x["batch_or_concurrency"], *x["notes"].split("; ")[:3])


def ranked(x: Row) -> Row:
    """DeepSeek under attention-data-parallel ranks: every rank holds its own requests."""
    row = batched(x)
    return {**row, "dp": row["tp"], "ep": row["tp"], "concurrency": row["batch"], "requests": str(2 * int(row["batch"])), "batch": ""}


TAKEN: dict[str, Callable[[Row], Row]] = {
    "argonne_all": argonne, "argonne_fig5_parallel": argonne, "argonne_fig3_quant": argonne, "argonne_fig1b": argonne,
    "argonne_fig16_power": argonne, "argonne_fig22_ttft": argonne,
    "trtllm_v0.5": static_table, "trtllm_v0.6.1": static_table, "trtllm_v0.8.0": static_table, "trtllm_v0.9.0": static_table,
    "trtllm_blog_h200launch": static_table, "trtllm_blog_falcon_h200": static_table,
    "trtllm_v0.14": saturated, "trtllm_v0.20": saturated, "trtllm_v1.0": saturated, "trtllm_dsr1_bestperf": ranked,
    "mlperf_v4.1": mlperf, "mlperf_v5.1": mlperf,
}  # fmt: skip


def offline(rows: list[Row]) -> tuple[list[Row], Counter[tuple[str, str]]]:
    """Rows of the case file, and what is left out by table and reason."""
    found: list[Row] = []
    out: Counter[tuple[str, str]] = Counter()
    seen: set[tuple[str, ...]] = set()
    for x in with_rates(rows):
        try:
            row = once(TAKEN.get(x["source_group"], batched)(x), seen)
        except LeftOut as e:
            out[x["source_group"], str(e)] += 1
            continue
        found.append({"case": x["row_id"], **row})
    return found, out


def once(row: Row, seen: set[tuple[str, ...]]) -> Row:
    """The row, unless a figure of Argonne's repeats the setting of another; raises LeftOut."""
    key = tuple(row.get(c, "") for c in COLUMNS if c not in ("case", "source", "group", "date", "value", "note"))
    if row["group"].startswith("argonne_fig") and key in seen:
        raise LeftOut("the same setting as another row of the collection")
    if row["group"].startswith("argonne"):
        seen.add(key)
    return row


SIDES = tuple(f"{side}_{name}" for side in ("prefill", "decode") for name in ("workers", "tp", "pp", "dp", "ep"))
POOLED = (
    "case", "source", "measured", "protocol", "model", "gpu", "engine", "engine_version", "weights", "kv", *SIDES, "input_tokens",
    "output_tokens", "concurrency", "length_ratio", "max_num_batched_tokens", "tpot_s", "ttft_s",
)  # fmt: skip
KINDS = {"workers": "num_workers", "tp": "tp_size", "pp": "pp_size", "dp": "attention_dp_size", "ep": "moe_ep_size"}


def pooled(x: Row) -> Row:
    """A run through separate pools of workers."""
    if not x["prefill_num_workers"] or not x["decode_num_workers"]:
        raise LeftOut("number of workers not stated")
    if x["protocol"] != "inferencemax" or x["wip"] != "False" or not x["concurrency"]:
        raise LeftOut("another protocol, or its clients not stated")
    sides = {f"{side}_{name}": _whole(x[f"{side}_{key}"]) for side in ("prefill", "decode") for name, key in KINDS.items()}
    for side in ("prefill", "decode"):
        size = {key: float(x[f"{side}_{key}_size"]) for key in ("tp", "attention_dp", "moe_tp", "moe_ep")}
        if size["tp"] * size["attention_dp"] != size["moe_tp"] * size["moe_ep"]:
            raise LeftOut("attention and experts split over different numbers of devices")
    runtime = x["engine"] == "tensorrt-llm" or "-rc" in x["engine_version"]  # the version is that of Dynamo
    return sides | {
        "case": x["case"], "source": x["source"], "measured": x["measured"], "protocol": "disaggregated", "model": x["model"],
        "gpu": x["gpu"], "engine": x["engine"], "engine_version": "" if runtime else x["engine_version"],
        "weights": {"fp4": "nvfp4", "fp8": "fp8-block"}[x["precision_label"]], "kv": "fp8" if x["engine"] == "tensorrt-llm" else "",
        "input_tokens": x["input_tokens"], "output_tokens": x["output_tokens"], "concurrency": _whole(x["concurrency"]),
        "length_ratio": "0.8", "max_num_batched_tokens": "8192", "tpot_s": x["tpot_s"], "ttft_s": x["ttft_s"],
    }  # fmt: skip


def disaggregated(rows: list[Row]) -> tuple[list[Row], Counter[tuple[str, str]]]:
    """Rows of the case file, and what is left out by part and reason."""
    found: list[Row] = []
    out: Counter[tuple[str, str]] = Counter()
    for x in rows:
        if x["mode"] != "disagg":
            continue
        try:
            found.append(pooled(x))
        except LeftOut as e:
            out[x["gpu"], str(e)] += 1
    return found, out


def note(kind: str, out: Counter[tuple[str, str]]) -> None:
    """Write what is left out beside what the other case file leaves out."""
    path, columns = FOLDER / "left_out.csv", ("file", "group", "rows", "rule")
    kept: list[Row] = []
    if path.exists():
        with path.open(newline="") as file:
            kept = [row for row in csv.DictReader(file) if row["file"] != kind]
    ordered = sorted(out.items(), key=lambda pair: (-pair[1], pair[0]))
    own = [{"file": kind, "group": group, "rows": str(count), "rule": rule} for (group, rule), count in ordered]
    write(path, columns, kept + own)


def write(path: Path, columns: tuple[str, ...], rows: list[Row]) -> None:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, columns, lineterminator="\n", restval="", extrasaction="ignore")
        table.writeheader()
        table.writerows(rows)


def main(arguments: list[str]) -> None:
    kind, path = arguments
    with Path(path).open(newline="") as file:
        rows = list(csv.DictReader(file))
    made = {"offline": (offline, COLUMNS), "disaggregated": (disaggregated, POOLED)}
    if kind not in made:
        raise SystemExit(f"'{kind}' is not one of {', '.join(made)}")
    tabulate, columns = made[kind]
    found, out = tabulate(rows)
    write(FOLDER / f"{kind}.csv", columns, found)
    note(kind, out)


if __name__ == "__main__":
    main(sys.argv[1:])
