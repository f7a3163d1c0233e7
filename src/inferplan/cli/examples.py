"""What the help of each command shows as examples. Knows no option's meaning; a test runs them all."""

from __future__ import annotations

import re
import textwrap

EXAMPLES = {
    "estimate": (
        "inferplan estimate --model 8b --gpu h100 --dtype fp8",
        "inferplan estimate -m llama-3.1-70b -g h100 --gpus 4 -d fp8 -b 32 --isl 8192",
    ),
    "plan": (
        "inferplan plan -m 8b -g h100,l40s --rate 20 --slo ttft.p95=500ms",
        "inferplan plan goals.yaml --finalists 0 --csv plan.csv --html plan.html",
    ),
    "simulate": (
        "inferplan simulate -m 8b -g h100 --rate 4 --requests 300",
        "inferplan simulate -m 8b -g h100 --concurrency 32 --html run.html",
    ),
    "load-curve": ("inferplan load-curve -m 8b -g h100 --slo ttft=500ms,tpot=20ms",),
    "batching": ("inferplan batching -m 8b -g h100 --rate 1,4,8",),
    "launch": (
        "inferplan launch -m 8b -g h100 -d fp8",
        "inferplan launch -m llama-3.1-70b -g h100 --gpus 4 -d fp8 --as kubernetes",
    ),
    "quantize": (
        "inferplan quantize -m 8b -g a100,h100",
        "inferplan quantize -m 8b -g h100 --formats bf16,fp8 --kv bf16,fp8",
    ),
    "speculate": (
        "inferplan speculate -m llama-3.1-70b -g h100 --gpus 4 -d fp8 --draft eagle3",
        "inferplan speculate -m llama-3.1-70b -g h100 --gpus 4 --draft 8b --accept 0.8",
    ),
    "sweep": ("inferplan sweep --model 8b --gpu h100,l40s --batch 1..64x2 --out grid.csv",),
    "merge": ("inferplan merge grid.csv.parts --out grid.csv",),
    "pareto": (
        "inferplan pareto --model 8b --gpu h100,l40s --batch 1..64x2",
        "inferplan pareto grid.csv --cost",
    ),
    "compare": (
        "inferplan compare -m llama-3.1-70b -g h100,h200,mi300x --gpus 2 -d fp8",
        "inferplan compare -m 8b -g l40s -d bf16,fp8,awq --batch 16",
    ),
    "plot": ("inferplan plot roofline -m 8b -g h100 -o roofline.png",),
    "explain": ("inferplan explain tpot -m 8b -g h100 --depth 5",),
    "list": (
        "inferplan list hardware amd",
        "inferplan list models qwen3",
    ),
    "show": (
        "inferplan show h100",
        "inferplan show llama-3.1-8b",
    ),
    "check": ("inferplan check my-card.yaml",),
    "import": ("inferplan import config.json --output model.yaml",),
    "validate": (
        "inferplan validate runs.csv --by engine,quantity",
        "inferplan validate runs.csv --efficiency mine.yaml --html runs.html",
    ),
    "calibrate": ("inferplan calibrate runs.csv --output mine.yaml",),
}
WIDTH = 54  # of an example, which fits 60 columns with its margins
FIRST = ("inferplan estimate --model 7b --gpu h100 --dtype fp8", "inferplan help estimate", "inferplan list models llama")
"""Where one begins who calls the program by its name alone."""


def paragraph(lines: tuple[str, ...]) -> str:
    """Examples as the paragraph of a help text, which keeps its lines; a long one goes on in a second, as shells take it.

    >>> paragraph(("inferplan show h100",)).splitlines()[1:]
    ['Example:', '  inferplan show h100']
    """
    each = [f"  {part}" for line in lines for part in _folded(line)]
    return "\n".join(["\b", "Example:" if len(lines) == 1 else "Examples:", *each])


def _folded(line: str) -> list[str]:
    """A command as lines, an option beside its value."""
    kept = re.sub(r"(?<= )(-\S+) (?!-)", "\\1\0", line)
    found = textwrap.wrap(kept, WIDTH, subsequent_indent="    ", break_on_hyphens=False)
    return [part.replace("\0", " ") for part in (*(f"{part} \\" for part in found[:-1]), found[-1])]
