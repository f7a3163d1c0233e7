"""A million (batch, context, tp) points in one call against scalar calls, in one run. Usage: python benchmarks/points.py [model] [part]."""

import resource
import sys
import time

import numpy as np

import inferplan as ip
from inferplan.engine.step import Setting, decode
from inferplan.roofline.efficiency import Efficiency
from inferplan.specs.parallel import Parallel

KIB_PER_MIB = 1024  # Linux counts resident memory in KiB


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KIB_PER_MIB


def main() -> None:
    model, part = ip.model(sys.argv[1] if len(sys.argv) > 1 else "llama-3.1-70b"), ip.hardware(sys.argv[2] if len(sys.argv) > 2 else "h100")
    precision = ip.precision("fp8")
    before = peak_mib()
    for title, efficiency in (("floor", Efficiency.ideal()), ("estimate", Efficiency.default())):
        for side in (50, 150, 500):
            batch, context = np.linspace(1, 500, side)[:, None, None], np.linspace(100, 100_000, side)[None, :, None]
            setting = Setting(Parallel(tp=np.array([1.0, 2.0, 4.0, 8.0])), efficiency)
            start = time.perf_counter()
            found = decode(model, part, precision, batch=batch, context=context, setting=setting)
            times = found.floor_s if efficiency.is_ideal else found.time_s
            grid = time.perf_counter() - start
            points = int(np.asarray(times).size)
            print(f"{title}: {points:>9,} points in {grid:6.3f} s, {1e9 * grid / points:7.1f} ns each, peak +{peak_mib() - before:.0f} MiB")
        start = time.perf_counter()
        for i in range(50):
            one = decode(model, part, precision, batch=1.0 + i, context=2000.0, setting=Setting(Parallel(tp=4), efficiency))
            _ = one.floor_s if efficiency.is_ideal else one.time_s
        each = (time.perf_counter() - start) / 50
        print(f"{title}: scalar call {1e3 * each:.2f} ms, {each * points / grid:,.0f} times a point of the grid")


if __name__ == "__main__":
    main()
