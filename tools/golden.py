"""Write tests/data/golden.csv anew: what estimates say today. A commit that changes a row says in CHANGELOG.md which way and why.

Usage: python tools/golden.py
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import inferplan as ip
from inferplan.specs.parallel import Parallel

TABLE = Path(__file__).parents[1] / "tests" / "data" / "golden.csv"
CASES = (
    ("llama-2-7b", "h100", "fp8", 1, 1, "vllm"),
    ("llama-2-7b", "a100", "fp16", 1, 1, "vllm"),
    ("llama-3.1-8b", "h100", "bf16", 1, 64, "vllm"),
    ("llama-3.1-8b", "rtx-4090", "awq", 1, 8, "vllm"),
    ("llama-3.1-8b", "m3-max", "q4_k_m", 1, 1, "llama.cpp"),
    ("llama-3.1-70b", "h100", "fp8", 4, 32, "vllm"),
    ("llama-3.1-70b", "mi300x", "fp8", 2, 32, "sglang"),
    ("llama-3.1-70b", "b200", "nvfp4", 2, 64, "tensorrt-llm"),
    ("llama-3.1-405b", "h200", "fp8", 8, 16, "vllm"),
    ("mixtral-8x7b", "h100", "bf16", 2, 16, "tgi"),
    ("deepseek-v3", "h200", "fp8-block", 8, 64, "sglang"),
    ("gpt-oss-120b", "h100", "mxfp4", 1, 8, "vllm"),
    ("gpt-oss-20b", "rtx-4090", "mxfp4", 1, 1, "llama.cpp"),
    ("gemma-3-27b", "h100", "bf16", 1, 8, "vllm"),
    ("qwen3-30b-a3b", "h100", "fp8", 1, 32, "vllm"),
    ("qwen3-next-80b-a3b", "h200", "fp8", 2, 16, "vllm"),
    ("mamba-2.8b", "a100", "bf16", 1, 16, "ideal"),
    ("t5-large", "a10", "fp16", 1, 4, "ideal"),
    ("bert-base", "l4", "fp16", 1, 32, "ideal"),
    ("llama-3.1-8b", "tpu-v5e", "int8", 4, 16, "ideal"),
)
ASKED = ("model", "hardware", "precision", "tp", "batch", "engine")
KEPT = (
    "weight_bytes", "kv_bytes_per_token", "weight_bytes_per_gpu", "activation_bytes", "kv_cache_bytes_per_gpu", "max_sequences", "ttft_s",
    "tpot_s", "floor_ttft_s", "floor_tpot_s",
)  # fmt: skip


def row(model: str, hardware: str, precision: str, tp: int, batch: int, engine: str) -> dict[str, Any]:
    """What one estimate says, under the keys of its record."""
    of = ip.model(model), ip.hardware(hardware), ip.precision(precision)
    record = ip.estimate(*of, batch=batch, parallel=Parallel(tp=tp), engine=engine).record()
    asked = dict(zip(ASKED, (model, hardware, precision, tp, batch, engine), strict=True))
    return {**asked, **{key: f"{float(record[key]):.9g}" for key in KEPT}}


def main() -> None:
    """Write the table."""
    with TABLE.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, (*ASKED, *KEPT), lineterminator="\n")
        writer.writeheader()
        writer.writerows(row(*case) for case in CASES)


if __name__ == "__main__":
    main()
