"""Sweeps: one call over a product of axes, the same in chunks, and memory that does not grow with the number of points."""

import subprocess
import sys

import numpy as np
import pytest

import inferplan as ip
from inferplan.engine.step import Setting
from inferplan.errors import SpecError
from inferplan.roofline.efficiency import Efficiency
from inferplan.specs.parallel import Parallel

AXES = {"batch": np.linspace(1, 300, 13), "context": np.linspace(64, 50_000, 17), "tp": [1, 2, 4, 8]}


def time_s(batch, context, tp):
    model, part, precision = ip.model("llama-3.1-70b"), ip.hardware("h100"), ip.precision("fp8")
    setting = Setting(Parallel(tp=tp), Efficiency.default(), "vllm")
    return np.asarray(ip.decode(model, part, precision, batch=batch, context=context, setting=setting).time_s)


@pytest.mark.parametrize("size", [1000, 97, 1])
def test_chunks_are_the_grid(size):
    axes = AXES if size > 1 else {"batch": [1.0, 8.0], "context": [128.0, 4096.0], "tp": [1.0, 4.0]}
    whole = time_s(**ip.grid(**axes)).ravel()
    parts = np.concatenate([np.atleast_1d(time_s(**chunk)) for chunk in ip.chunks(size, **axes)])
    np.testing.assert_allclose(parts, whole, rtol=1e-13)


def test_axes_have_values():
    with pytest.raises(SpecError, match="context: holds no value"):
        ip.grid(batch=[1], context=[])
    with pytest.raises(SpecError, match="size: 0: must be 1 or more"):
        next(ip.chunks(0, batch=[1]))


@pytest.mark.slow
def test_ten_million_points_take_no_more_memory_than_one():
    code = """
import resource, numpy as np, inferplan as ip
from inferplan.engine.step import Setting
from inferplan.specs.parallel import Parallel
of = ip.model("llama-3.1-70b"), ip.hardware("h100"), ip.precision("fp8")
peaks, count = [], 0
for chunk in ip.chunks(batch=np.linspace(1, 500, 1600), context=np.linspace(100, 100_000, 1600), tp=[1, 2, 4, 8]):
    tp = chunk.pop("tp")
    count += np.asarray(ip.decode(*of, **chunk, setting=Setting(Parallel(tp=tp))).floor_s).size
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
assert count == 1600 * 1600 * 4
print(peaks[3], peaks[-1])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    early, late = map(float, done.stdout.split())
    assert late < early + 16
