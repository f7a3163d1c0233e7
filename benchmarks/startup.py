"""Start-up of the command line over `import numpy, pydantic`, interleaved in one run. Usage: python benchmarks/startup.py [runs]."""

import statistics
import subprocess
import sys
import time
from pathlib import Path

BASE = ("python -c 'import numpy, pydantic'", [sys.executable, "-c", "import numpy, pydantic"])
TOOL = [str(Path(sys.executable).with_name("inferplan"))]
COMMANDS = [
    ("--help", [*TOOL, "--help"]),
    ("show a100", [*TOOL, "show", "a100"]),
    ("show 7b", [*TOOL, "show", "7b"]),
    ("estimate", [*TOOL, "estimate", "-m", "7b", "-g", "h100", "-d", "fp8"]),
]


def took(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    times: dict[str, list[float]] = {name: [] for name, _ in (BASE, *COMMANDS)}
    for _ in range(runs):
        for name, command in (BASE, *COMMANDS):
            times[name].append(took(command))
    base = statistics.median(times[BASE[0]])
    for name, found in times.items():
        print(f"{name:<36} median {statistics.median(found):.3f} s, {statistics.median(found) / base:.2f} x")


if __name__ == "__main__":
    main()
