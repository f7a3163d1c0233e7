"""Seconds that the screening of a plan takes over 20 parts, 6 formats and all splits, and what stands behind it.

Run it as `python benchmarks/plan.py`; it prints a line per stage. Simulation of the finalists is left out (`--finalists 3` adds it).
"""

from __future__ import annotations

import sys
import time
from functools import partial

from inferplan.planner.goal import Goal
from inferplan.planner.plan import plan
from inferplan.planner.search import Search

PARTS = [
    "h100", "h200", "b200", "b300", "gb200", "gh200-96gb", "a100-sxm4-80gb", "a100-sxm4-40gb", "a100-pcie-80gb", "h100-pcie-80gb",
    "h100-nvl-94gb", "mi300x", "mi325x", "mi355x", "l40s", "l40", "a10g", "rtx-4090", "rtx-5090", "rtx-pro-6000-server",
]  # fmt: skip
FORMATS = ["bf16", "fp8", "int8", "awq", "nvfp4", "w4a16"]


def goal(model: str, finalists: int) -> Goal:
    """The plan that is timed."""
    return Goal.from_mapping({
        "model": model, "traffic": {"rate_per_s": 20.0, "peak_factor": 2.0}, "slo": "ttft.p95=1s,tpot.p95=50ms",
        "search": {"gpus": PARTS, "dtype": FORMATS}, "money": {"prices": dict.fromkeys(("mi325x", "mi355x"), 4.0)},
        "proof": {"finalists": finalists},
    })  # fmt: skip


def main() -> None:
    finalists = int(sys.argv[sys.argv.index("--finalists") + 1]) if "--finalists" in sys.argv else 0
    for model in ("llama-3.3-70b", "qwen3-30b-a3b"):
        asked = goal(model, finalists)
        demand, work = asked.asked()
        at = [time.perf_counter(), time.process_time()]
        found = Search(asked, demand, work, asked.targets)
        spent = {}
        for what, stage in (("bounds", found.screen), ("closed form", found.branch), ("limits", partial(found.tune, 3))):
            stage()
            spent[what] = time.perf_counter() - at[0], time.process_time() - at[1]
        for what, (wall, cpu) in spent.items():
            print(f"{model}: {what}: {wall:.2f} s, {cpu:.2f} s of a core, {len(found.every):,} candidates, {found.looked} looked at")
        if finalists:
            begun = time.perf_counter()
            plan(asked)
            print(f"{model}: whole plan with {finalists} finalists: {time.perf_counter() - begun:.2f} s")


if __name__ == "__main__":
    main()
