"""llama.cpp's public benchmarks against estimates: floors of accuracy that a change may not lower, and the fit that makes its constants."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from inferplan import names
from inferplan.calibrate.cases import read_cases
from inferplan.calibrate.predict import Predictor
from inferplan.deployment import estimate
from inferplan.errors import DoesNotFit
from inferplan.explain import explain
from inferplan.roofline.efficiency import Efficiency
from inferplan.specs.catalog import entries
from inferplan.specs.hardware import Accelerator
from inferplan.specs.precision import Precision

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import fit_llama as tool  # noqa: E402
from llama_results import SLICE, SLICES  # noqa: E402

A_CLASS = 4  # rows of each class, phase and source in the default suite
MARGIN = 0.02
NEVER_SEEN = {"model": (0.12, 0.20), "part": (0.10, 0.16)}  # medians of decode and prefill


def sample() -> list:
    """A few rows of each class, phase and source, the same ones each time."""
    groups: dict[tuple, list] = {}
    for case in read_cases(tool.ROWS)[0]:
        if case.row["host_class"] != "board":
            part = Accelerator.find(case.row["gpu"])
            groups.setdefault((part.architecture, case.quantity, case.row["group"]), []).append(case)
    return [rows[i] for rows in groups.values() for i in np.unique(np.linspace(0, len(rows) - 1, A_CLASS).astype(int))]


def test_a_few_rows_of_each_class() -> None:
    """Decode within 11 % and prefill within 19 % in the median, each class and source counting alike."""
    predictor, found = Predictor(), {True: [], False: []}
    for case in sample():
        try:
            predicted = predictor.predict(case).value
        except DoesNotFit:
            continue
        found[case.quantity == tool.DECODE].append(abs(case.value / predicted - 1))
    assert min(len(found[True]), len(found[False])) > 40
    assert np.median(found[True]) <= 0.11
    assert np.median(found[False]) <= 0.19


def test_every_row_names_its_source_and_what_the_catalog_has() -> None:
    cases = read_cases(tool.ROWS)[0]
    known = {kind: {e.name for e in entries(kind)} for kind in ("hardware", "models")}
    assert len(cases) == len({c.name for c in cases})
    assert all(c.row["source"] and c.row["quality"] and c.row["date"] for c in cases)
    assert {c.row["gpu"] for c in cases} <= known["hardware"]
    assert {c.row["model"] for c in cases} <= known["models"]


def test_shipped_kernels_are_those_of_llama_cpp_and_stay_below_the_sheet() -> None:
    eff = Efficiency.default()
    own = eff.kernel("matmul", "int8", "nvidia-ada", stored="q4_k", engine="llama.cpp", part="rtx-4090")
    assert own.origin == "llama.cpp.matmul.k-quant.nvidia-ada"
    assert own.basis == "measured"
    assert own != eff.kernel("matmul", "int8", "nvidia-ada", stored="q4_k", engine="vllm", part="rtx-4090")
    new = eff.kernel("matmul", "int8", "nvidia-rubin", stored="q4_k", engine="llama.cpp")
    assert (new.origin, new.basis) == ("llama.cpp.matmul.k-quant.nvidia", "inherited")
    for families in eff.engine_kernels["llama.cpp"].values():
        for levels in families.values():
            assert "default" not in levels  # parts of other makers, and processors, take the shared kernels
            assert all(entry.eff_bandwidth <= tool.MOST and entry.eff_flops <= 1 for entry in levels.values())
    cpu = {engine: eff.kernel("matmul", "bf16", "cpu-x86", stored="q4_k", engine=engine) for engine in ("llama.cpp", "vllm")}
    assert cpu["llama.cpp"] == cpu["vllm"]


@pytest.mark.parametrize(("gpu", "weights"), [("rtx-4090", "f16"), ("m3-max-30c", "q4_k_m"), ("rx-7900-xtx", "q8_0")])
def test_opened_times_are_the_times(gpu: str, weights: str) -> None:
    """Kernels that accumulate in fp16 take a share of that rate, and the opened number says so."""
    model, part, precision = names.model("llama-3.2-3b"), Accelerator.find(gpu), Precision.named(weights)
    e = estimate(model, part, precision, engine="llama.cpp", input_tokens=512, output_tokens=2)
    for quantity in ("ttft", "tpot"):
        assert float(np.mean(explain(quantity, e).value)) == pytest.approx(getattr(e, f"{quantity}_s"), rel=1e-9)


def test_gguf_files_with_mxfp4_experts() -> None:
    """11.27 GiB is what llama-bench prints for the published file of gpt-oss-20b, benches/dgx-spark.md @4c7e9893c4ca."""
    e = estimate(names.model("gpt-oss-20b"), Accelerator.find("rtx-4090"), Precision.named("gguf-mxfp4"), engine="llama.cpp")
    assert e.weight_bytes / 2**30 == pytest.approx(11.27, abs=0.05)


def test_chips_with_fewer_cores() -> None:
    """Their rates are the cores' share of the full chip's."""
    few = [e.name for e in entries("hardware") if e.name[0] == "m" and e.name.endswith("c") and "apple" in str(e.path)]
    whole = {"m3-max": "m3-max-40c", "m4-max": "m4-max-40c", "m5-max": "m5-max-40c"}
    for name in few:
        short = name.rsplit("-", 1)[0]
        chips = Accelerator.find(name), Accelerator.find(whole.get(short, short))
        rates = [chip.peak_flops_per_s("fp16") for chip in chips]
        cores = [chip.units.value for chip in chips if chip.units]
        assert rates[0] / rates[1] == pytest.approx(cores[0] / cores[1], rel=2e-3)


@cache
def fitted() -> tuple[tool.Fit, np.ndarray]:
    fit = tool.Fit(tool.Rows.read(tool.read()))
    return fit, fit.fit(np.ones(len(fit.rows)))


@pytest.mark.slow
def test_the_shipped_constants_are_those_of_the_fit() -> None:
    fit, x = fitted()
    of_class, _, formats, shared = fit.parts(x)
    shipped = Efficiency.default().engine_kernels["llama.cpp"]
    for i, (name, vendor) in enumerate(zip(fit.rows.classes, fit.rows.vendor_of, strict=True)):
        peaks, widths = tool.table(of_class[i], formats[vendor], shared)
        for f, family in enumerate(tool.FAMILIES):
            entry = shipped["matmul"][family][name]
            assert entry.eff_bandwidth == pytest.approx(widths[0, f], rel=0.02)
            assert entry.eff_flops == pytest.approx(peaks[0, f], rel=0.02)
            assert entry.launch == pytest.approx(np.exp(of_class[i, 0]), rel=0.02)


@pytest.mark.slow
def test_the_fit_s_seconds_are_those_of_estimates() -> None:
    """The pieces that the fit adds up are the estimate's: every twentieth row within 1 %."""
    fit, x = fitted()
    predicted = dict(zip(fit.rows.d.case, fit.predict(x), strict=True))
    seconds, predictor = dict(zip(fit.rows.d.case, fit.rows.d.seconds, strict=True)), Predictor()
    for case in [c for c in read_cases(tool.ROWS)[0] if c.name in predicted][::20]:
        assert seconds[case.name] * case.value / predictor.predict(case).value == pytest.approx(predicted[case.name], rel=0.01), case.name


def recorded() -> dict[tuple[str, ...], tuple[float, float]]:
    """Median errors with the part and the model left out, as the page has them by phase, part, format and source."""
    lines = tool.PAGE.read_text().split(SLICES)[1].split("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.endswith(" % |")]
    return {tuple(row[:4]): (percent(row[6]), percent(row[7])) for row in rows}


def percent(text: str) -> float:
    return float(text.removesuffix(" %")) / 100


@pytest.mark.slow
def test_no_slice_is_worse_than_the_page_says() -> None:
    """Parts and models left out: within the medians of the page in all, and by phase, part, format and source at most 2 points above it."""
    fit, x = fitted()
    known, rows = recorded(), fit.rows
    decode = rows.column("quantity") == tool.DECODE
    slices = rows.d.groupby(SLICE).indices
    assert len(known) == len(slices)
    for at, (name, column) in enumerate((("part", "part"), ("model", "shape"))):
        e = np.abs(tool.held_out(fit, x, column) / rows.column("seconds") - 1)
        assert (np.median(e[decode]) <= NEVER_SEEN[name][0], np.median(e[~decode]) <= NEVER_SEEN[name][1]) == (True, True), name
        now = {("decode" if key[0] == tool.DECODE else "prefill", *key[1:]): float(np.median(e[index])) for key, index in slices.items()}
        worse = {key: (median, known[key][at]) for key, median in now.items() if median > known[key][at] + MARGIN}
        assert not worse, name
