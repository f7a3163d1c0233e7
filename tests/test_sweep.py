"""Sweeps: points as single estimates have them, grids that refuse the absurd, files that survive kills, carriers that lose nothing."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import openpyxl
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import inferplan as ip
from inferplan.cli.app import main
from inferplan.deployment import estimate
from inferplan.errors import InferplanError, SpecError
from inferplan.planner import axes
from inferplan.planner.carry import carry, dask_executor
from inferplan.planner.contexts import Runs, knots, means
from inferplan.planner.points import Case, Fixed, points
from inferplan.planner.shards import Shard
from inferplan.planner.space import Space
from inferplan.planner.sweep import CHUNK, COLUMNS, Layout, Tally, blocks
from inferplan.report.estimates import bound
from inferplan.serving.arrivals import poisson
from inferplan.serving.lengths import Lengths
from inferplan.serving.requests import Requests
from inferplan.serving.simulate import simulate
from inferplan.serving.steps import LinearSteps
from inferplan.specs.engine import Engine
from inferplan.specs.parallel import Parallel
from inferplan.terms import TERMS

PARTS = ["h100", "h100,a100"]
SMALL = {"model": "7b", "hardware": "h100,a100", "precision": "fp8,bf16", "tp": "1,2", "batch": "1..64x2", "input_tokens": "128,1024"}
WAYS = {
    "dense": ("llama-3.1-70b", "h100", "fp8", "vllm", Parallel(tp=4), Fixed()),
    "experts": ("gpt-oss-120b", "h200", "mxfp4", "vllm", Parallel(tp=2, ep=2), Fixed()),
    "latent": ("deepseek-v3", "h200", "fp8", "sglang", Parallel(tp=8, ep=8), Fixed(cached_tokens=20)),
    "cells": ("llama-3.1-8b", "4090", "q4_k_m", "llama.cpp", Parallel(), Fixed()),
    "chunked attention": ("llama-4-scout", "h100", "bf16", "vllm", Parallel(tp=8), Fixed(max_num_batched_tokens=2048)),
    "windows, old core": ("gemma-3-27b", "h100", "bf16", "vllm@0.6.0", Parallel(tp=2), Fixed(utilization=0.8)),
    "recurrent": ("qwen3-next-80b-a3b", "h100", "bf16", "vllm", Parallel(tp=4), Fixed(max_num_seqs=32)),
    "stages": ("llama-3.1-70b", "mi300x", "bf16", "tensorrt-llm", Parallel(tp=2, pp=2), Fixed(max_model_len=70_000)),
    "roof": ("llama-3.1-70b", "h100", "bf16", "ideal", Parallel(tp=2, pp=2, dp=2), Fixed(efficiency="ideal")),
    "states only": ("mamba-2.8b", "a100", "bf16", "vllm", Parallel(), Fixed()),
    "encoder": ("bert-base", "a100", "bf16", "vllm", Parallel(), Fixed()),
}


def case_of(name: str) -> Case:
    model, part, precision, engine, split, fixed = WAYS[name]
    engine, _, version = engine.partition("@")
    return Case(ip.model(model), ip.hardware(part), ip.precision(precision), Engine.find(engine, version or None), split, fixed)


def scalar(case: Case, batch: int, inputs: int, outputs: int) -> ip.Estimate:
    f = case.fixed
    return estimate(
        case.model, case.hardware, case.precision, batch=batch, input_tokens=inputs, output_tokens=outputs, parallel=case.parallel,
        engine=case.engine.name, version=case.engine.version, cached=f.cached_tokens, efficiency=f.efficiency, utilization=f.utilization,
        max_model_len=f.max_model_len, max_num_seqs=f.max_num_seqs, max_num_batched_tokens=f.max_num_batched_tokens,
    )  # fmt: skip


# Points


@pytest.mark.parametrize("name", WAYS)
def test_a_point_is_the_estimate(name: str) -> None:
    """Times to 5 in 10,000 (gaps over many contexts are averaged over lines between knots), all else as it is."""
    case, rng = case_of(name), np.random.default_rng(3)
    inputs, outputs = np.repeat([30.0, 1024, 5000, 40_000], 4), np.tile([1.0, 2, 300, 20_000], 4)
    found = points(case, np.array([1.0, 7, 300]), inputs, outputs)
    assert found.words["reason"][0] == ""
    for i in rng.choice(len(found), 12, replace=False):
        row = {n: c[i].item() for n, c in found.columns.items()}
        e = scalar(case, *(row[n] for n in ("batch", "input_tokens", "output_tokens")))
        for figure in ("ttft_s", "floor_ttft_s", "max_sequences"):
            assert row[figure] == pytest.approx(getattr(e, figure), rel=1e-12)
        assert row["fits"] == e.fits == (row["reason"] == 0)
        assert row["weight_bytes_per_gpu"] == pytest.approx(float(np.max(e.capacity.weight_bytes_per_gpu)), rel=1e-12)
        if case.model.generates:
            for figure in ("tpot_s", "floor_tpot_s", "e2e_s", "decode_tokens_per_s", "output_tokens_per_s"):
                assert row[figure] == pytest.approx(getattr(e, figure), rel=5e-4)
            assert row["tpot_s"] >= row["floor_tpot_s"]
            assert found.words["bound"][row["bound"]] == bound(e.decode)
        else:
            assert np.isnan(row["tpot_s"])
            assert row["e2e_s"] == row["ttft_s"]


def test_short_outputs_are_exact() -> None:
    """Where every context of the output is a knot, there is nothing in between to be a line."""
    case = case_of("dense")
    row = points(case, np.array([4.0]), np.array([1.0]), np.array([16.0])).columns
    assert row["tpot_s"][0] == pytest.approx(scalar(case, 4, 1, 16).tpot_s, rel=1e-12)


def test_what_a_part_or_a_rule_forbids_is_a_row() -> None:
    loads = {"batch": "1,4096", "input_tokens": "1024,100000"}
    space = Space(model="llama-3.1-70b", hardware="h100", precision="bf16", tp="1,3,4", ep="1,5", **loads)
    found = ip.sweep(space)
    assert len(found) == space.points == 24
    refused = found[found.ep == 5]
    assert not refused.fits.any()
    assert refused.tpot_s.isna().all()
    assert refused.reason.str.contains("ep: 5: must divide tp x dp").all()
    rest = found[found.ep == 1].set_index(["tp", "batch", "input_tokens"])
    assert rest.loc[(1, 1, 1024), "reason"] == "weights exceed the memory budget"
    assert rest.loc[(3, 1, 1024), "reason"] == "heads do not come out even over the devices"
    assert rest.loc[(4, 4096, 1024), "reason"] == "there is room for fewer requests than the batch"
    assert rest.loc[(4, 1, 1024), "fits"]
    assert (found.fits == (found.reason == "")).all()


SOME = st.lists(st.integers(1, 3000), min_size=1, max_size=5)


@given(SOME, SOME, st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_means_of_lines_are_exact(inputs: list[int], outputs: list[int], seed: int) -> None:
    """The mean over whole contexts of any function that is a line between knots, against summing it up."""
    runs = Runs.of(np.repeat(np.array(inputs, float), len(outputs)), np.tile(np.array(outputs, float), len(inputs)))
    at = knots(ip.model("gemma-3-27b"), int(runs.last.max()))
    y = np.random.default_rng(seed).uniform(1, 2, (2, len(at)))
    found = means(runs, at, {"y": y})["y"]
    for p, (first, last) in enumerate(zip(runs.first, runs.last, strict=True)):
        every = np.arange(first, last + 1)
        for b in range(2):
            assert found[b, p] == pytest.approx(np.interp(every, at, y[b]).mean(), rel=1e-9)


# Grids


def test_axes_in_words() -> None:
    assert axes.numbers("1..100x3", 1, 1000) == (1, 3, 9, 27, 81)
    assert axes.numbers("1..10x1.5", 1, 1000) == (1, 2, 3, 5, 8)
    assert axes.numbers([5, "1..3", "8 .. 16 + 4"], 1, 1000) == (1, 2, 3, 5, 8, 12, 16)
    assert axes.numbers("7..7x2", 1, 10) == (7,)
    assert axes.names(["a,b", "body=x,head=y"]) == ("a", "b", "body=x,head=y")


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.floats(1.01, 64))
@settings(max_examples=100, deadline=None)
def test_geometric_ranges_stay_within_their_ends(a: int, b: int, factor: float) -> None:
    low, high = sorted((a, b))
    found = axes.numbers(f"{low}..{high}x{factor:.4f}", 1, 10**6)
    assert found[0] == low
    assert found[-1] <= high
    assert list(found) == sorted(set(found))


ODD = {
    "batch": ["0", "-3", "1..0", "1,,2", "x", "1..2..3", "1..8y2", "1..8x1", "1..8x0", "1..8+0", "1..8+1.5", "nan", "1e3", "\u0661", 2.5,
              True, None, [], "", [[1]], {"a": 1}, "1..1000001", "9" * 30, "1..9x" + "9" * 30],
    "utilization": [float("nan"), float("inf"), -1, 2, "0.9", True],
    "max_num_seqs": [0, -1, 1.5, "8", 10**12],
    "cached_tokens": [-1, 1024, 10**10, "1"],
    "usd_per_gpu_h": [-1.0, float("nan"), "2 USD"],
    "overlap": [-0.1, 1.1],
    "model": [3, [], "", None, {"a": 1}, ["7b", "7b"], [["7b"]], "no-such-model-at-all"],
    "hardware": ["h10", 4, "../../etc/passwd"],
    "precision": ["fp9"],
    "kv_format": ["fp99"],
    "engine": ["vlm", "vllm,vllm@0.33.0"],
    "efficiency": ["/nonexistent.yaml", 3],
    "gpus": [3, 0, "a"],
    "max_points": [0, 1.0],
}  # fmt: skip


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in ODD.items() for v in values])
def test_hostile_values_are_one_line_that_names_them(field: str, value: object) -> None:
    with pytest.raises(InferplanError) as caught:
        Space.from_mapping({**SMALL, field: value}, file="grid.yaml").resolved()
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 500
    if field not in ("model", "hardware", "precision", "kv_format", "engine", "efficiency") or not isinstance(value, str):
        assert text.startswith("grid.yaml: " + field)


def test_unknown_and_missing_fields() -> None:
    with pytest.raises(SpecError, match=r"^grid.yaml: batchs: is not a field that is known here"):
        Space.from_mapping({**SMALL, "batchs": 1}, file="grid.yaml")
    with pytest.raises(SpecError, match=r"^grid.yaml: hardware: is required"):
        Space.from_mapping({"model": "7b"}, file="grid.yaml")


@pytest.mark.parametrize(
    ("axes_", "words"),
    [
        ({"batch": "1..1000000", "input_tokens": "1..100000"}, "points: 800,000,000,000: are more than the 1,000,000,000"),
        ({"input_tokens": "1..100000000"}, "has 100,000,000 values, where an axis may have 1,000,000"),
        ({w: "1..50" for w in ("tp", "pp", "dp", "ep")}, "make 6,250,000 splits, where a grid may have 1,000,000"),
        ({"tp": "1..800", "pp": "1..500"}, "1,600,000: would be evaluated one by one"),
        ({"batch": "1..100", "max_points": 50}, "raise max_points"),
    ],
)
def test_absurd_grids_say_how_large_they_are(axes_: dict, words: str) -> None:
    start = time.process_time()
    with pytest.raises(SpecError) as caught:
        Space.from_mapping({**SMALL, **axes_}, file="grid.yaml")
    assert words in str(caught.value)
    assert time.process_time() - start < 5


def test_names_that_mean_the_same_are_refused() -> None:
    with pytest.raises(SpecError, match="means the same as '7b'"):
        Space.from_mapping({**SMALL, "model": "7b,llama-2-7b"}, file="g.yaml").resolved()


def test_gpus_keep_the_splits_that_take_so_many() -> None:
    space = Space(model="7b", hardware="h100", tp="1..8x2", pp="1,2", dp="1,2", gpus="4")
    assert {s[0] * s[1] * s[2] for s in space.splits} == {4}
    assert space.cases == 4
    assert (ip.sweep(space).gpus == 4).all()


def test_the_digest_holds_all_that_rows_depend_on(tmp_path: Path) -> None:
    one = Space.from_mapping(SMALL)
    assert one.digest() == Space.from_mapping({**SMALL, "batch": [1, 2, 4, 8, 16, 32, 64], "max_points": 10**6}).digest()
    assert one.digest() != Space.from_mapping({**SMALL, "batch": "1..32x2"}).digest()
    assert one.digest() != Space.from_mapping({**SMALL, "utilization": 0.8}).digest()
    mine = tmp_path / "mine.yaml"
    text = (Path(ip.__file__).parents[2] / "models" / "llama" / "llama-2-7b.yaml").read_text().replace("name: llama-2-7b", "name: mine")
    mine.write_text(text)
    of_file = {**SMALL, "model": str(mine)}
    code = f"import inferplan as ip; print(ip.Space.from_mapping({of_file!r}).digest())"
    digests = set()
    for edited in (text, text.replace("context: 4096", "context: 8192")):
        mine.write_text(edited)
        digests.add(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert len(digests) == 2


@given(st.integers(1, 2000), st.integers(1, 3000), st.integers(1, 300), st.sampled_from(["1", "1,2", "1..8"]), st.sampled_from(PARTS))
@settings(max_examples=60, deadline=None)
def test_chunks_cover_each_point_once_and_stay_small(b: int, i: int, o: int, tp: str, part: str) -> None:
    space = Space(model="7b", hardware=part, tp=tp, batch=f"1..{b}", input_tokens=f"1..{i}", output_tokens=f"1..{o}", max_points=10**12)
    layout, reached = Layout.of(space), 0
    for chunk in range(layout.chunks):
        size = 0
        for case, batches, pairs in layout.pieces(chunk):
            rows = len(range(*batches.indices(b))) * len(range(*pairs.indices(i * o)))
            at = case * b * i * o + batches.start * i * o + (pairs.start if layout.batches == 1 else 0)
            assert at == reached + size
            size += rows
        assert 0 < size <= CHUNK
        reached += size
    assert reached == space.points


# Tables


def test_rows_are_in_the_order_of_the_axes_and_in_base_units() -> None:
    space = Space.from_mapping(SMALL)
    found = ip.sweep(space)
    assert list(found.columns) == list(COLUMNS)
    assert set(COLUMNS) <= set(TERMS)
    assert len(found) == space.points
    axes_ = ["hardware", "precision", "tp", "batch", "input_tokens"]
    expected = [
        (h, p, t, b, i) for h in ("h100-sxm5-80gb", "a100-sxm4-80gb") for p in ("fp8", "bf16") for t in (1, 2)
        for b in (1, 2, 4, 8, 16, 32, 64) for i in (128, 1024)
    ]  # fmt: skip
    assert list(found[axes_].itertuples(index=False, name=None)) == expected
    assert np.allclose(found.e2e_s, found.ttft_s + 255 * found.tpot_s)
    assert np.allclose(found.sustained_tokens_per_s_per_gpu, found.batch * 256 / found.e2e_s / found.gpus)
    assert (found.floor_tpot_s <= found.tpot_s).all()
    assert (found.floor_ttft_s <= found.ttft_s).all()


def test_a_price_of_ones_own() -> None:
    found = ip.sweep(Space.from_mapping({**SMALL, "usd_per_gpu_h": 3.6}))
    assert np.allclose(found.sustained_usd_per_million_tokens, 3.6 / 3600 / found.sustained_tokens_per_s_per_gpu * 1e6)


def test_tables_in_memory_have_a_limit() -> None:
    with pytest.raises(SpecError, match="points: 40,960,000: are more than the 20,000,000"):
        ip.sweep(Space(model="7b", hardware="h100", batch="1..4096", input_tokens="1..10000"))


def test_what_stands_out_is_the_best_that_fits() -> None:
    space = Space.from_mapping(SMALL)
    found, frame = Tally(), ip.sweep(space)
    for chunk in range(Layout.of(space).chunks):
        found.add(Tally.of(blocks(space, chunk)))
    fitting = frame[frame.fits]
    assert (found.points, found.fitting) == (len(frame), len(fitting))
    assert found.best["tpot_s"]["tpot_s"] == fitting.tpot_s.min()
    assert found.best["sustained_tokens_per_s_per_gpu"]["batch"] == fitting.batch[fitting.sustained_tokens_per_s_per_gpu.idxmax()]


# Carriers


def simulated(work: tuple[int, float, float]) -> tuple[float, float]:
    """A batch of requests under one plan: mean time to first token and end to end."""
    seed, rate, base_s = work
    asked = Requests.drawn(poisson(rate), Lengths.exponential(200, 2000), Lengths.exponential(50, 500), 200, seed=seed)
    served = simulate(asked, LinearSteps(base_s, 1e-4, 1e-8, 2e-5), seed=seed)
    return float(served.ttft_s.mean()), float(served.e2e_s.mean())


PLANS = [(seed, rate, base_s) for seed in range(3) for rate in (1.0, 4.0) for base_s in (0.01, 0.02)]


def slow_square(x: int) -> int:
    time.sleep(0.15)
    return x * x


def dies_once(path: str) -> str:
    """The first worker that gets it dies at once, as if killed for memory."""
    try:
        Path(path).touch(exist_ok=False)
    except FileExistsError:
        return path
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


def dies(_: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def refuses(x: int) -> int:
    raise SpecError("is refused", field="x", value=x)


@pytest.mark.parametrize("jobs", [1, 2])
def test_simulations_are_carried_alike(jobs: int) -> None:
    """Seeds x rates x plans: the same figures from one process, from several, and from another kind of executor."""
    here = [simulated(plan) for plan in PLANS]
    assert [dict(carry(simulated, PLANS, jobs=jobs))[plan] for plan in PLANS] == here
    if jobs == 1:
        with ThreadPoolExecutor(2) as pool:
            assert [dict(carry(simulated, PLANS, executor=pool))[plan] for plan in PLANS] == here


def test_few_tasks_are_on_their_way_at_once() -> None:
    taken = []
    with ThreadPoolExecutor(1) as pool:
        for done, _ in enumerate(carry(abs, (taken.append(i) or i for i in range(100)), executor=pool, ahead=3)):
            assert len(taken) <= done + 4
    assert len(taken) == 100


def test_a_worker_that_dies_loses_nothing(tmp_path: Path) -> None:
    marks = [str(tmp_path / f"mark{i}") for i in range(2)]
    assert sorted(task for task, _ in carry(dies_once, marks, jobs=2)) == marks


def test_work_that_kills_every_worker_is_given_up() -> None:
    with pytest.raises(InferplanError, match="a worker died 4 times over one piece of work"):
        list(carry(dies, [1], jobs=2))


def test_errors_of_the_work_come_through() -> None:
    for jobs in (1, 2):
        with pytest.raises(SpecError, match="x: 1: is refused"):
            list(carry(refuses, [1], jobs=jobs))
    with pytest.raises(SpecError, match="jobs: 0: must be from 1"):
        list(carry(abs, [1], jobs=0))


def test_processes_make_the_same_rows() -> None:
    space = Space.from_mapping({**SMALL, "tp": "1..8", "pp": "1..2", "batch": "1..8"})
    assert Layout.of(space).chunks == 2
    pd.testing.assert_frame_equal(ip.sweep(space, jobs=2), ip.sweep(space), check_exact=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_dask_makes_the_same_rows_and_survives_a_killed_worker() -> None:
    space = Space.from_mapping({**SMALL, "tp": "1..8", "pp": "1..8", "batch": "1..8"})
    here = ip.sweep(space)
    from distributed import Client, LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        with dask_executor(cluster.scheduler_address) as executor:
            pd.testing.assert_frame_equal(ip.sweep(space, executor=executor), here, check_exact=True)
            assert [dict(carry(simulated, PLANS, executor=executor))[plan] for plan in PLANS] == [simulated(plan) for plan in PLANS]
        victims = list(client.run(os.getpid).values())
        with dask_executor(cluster.scheduler_address) as executor:
            found = {}
            for i, (task, result) in enumerate(carry(slow_square, range(24), executor=executor)):
                found[task] = result
                if i == 2:
                    os.kill(victims[0], signal.SIGKILL)
            assert found == {x: x * x for x in range(24)}


@pytest.mark.filterwarnings("ignore")
def test_a_scheduler_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferplan.planner.carry.ANSWERS_WITHIN", "1s")
    code, out, err = run(capsys, "sweep", *ASKED, "--scheduler", "tcp://127.0.0.1:9")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("inferplan: --scheduler: tcp://127.0.0.1:9: does not answer")


# Files


ASKED = ("--model", "7b", "--gpu", "h100", "--dtype", "fp8,bf16", "--tp", "1,2,3", "--pp", "1,2", "--batch", "1..16x2", "--isl", "128,1024")
MANY = (*ASKED, "--dp", "1..8")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    out, err = capsys.readouterr()
    return code, out, err


def test_a_file_has_every_row_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    code, out, err = run(capsys, "sweep", *ASKED, "--out", str(path))
    assert (code, err) == (0, "")
    assert out.splitlines()[0].startswith("120 configurations, ")
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert len(rows) == 120
    assert len({tuple(r[n] for n in ("hardware", "precision", "tp", "pp", "batch", "input_tokens")) for r in rows}) == 120
    assert {p.name for p in tmp_path.iterdir()} == {"rows.csv"}
    space = Space(model="7b", hardware="h100", precision="fp8,bf16", tp="1,2,3", pp="1,2", batch="1..16x2", input_tokens="128,1024")
    frame = ip.sweep(space)
    blank = {n: [""] for n in frame if n != "reason"}
    back = pd.read_csv(path, keep_default_na=False, na_values=blank)
    for name in frame:
        same = back[name].astype(str) == frame[name].astype(str)
        assert same.all(), name


@pytest.mark.parametrize("ending", ["parquet", "xlsx"])
def test_other_formats_hold_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path, ending: str) -> None:
    paths = [tmp_path / f"rows.{e}" for e in ("csv", ending)]
    for path in paths:
        assert run(capsys, "sweep", *ASKED, "--columns", "model,tp,batch,fits,reason,tpot_s", "--out", str(path))[0] == 0
    one = pd.read_csv(paths[0]).fillna({"reason": ""})
    two = (pd.read_parquet if ending == "parquet" else pd.read_excel)(paths[1]).astype({"reason": object}).fillna({"reason": ""})
    assert list(one) == list(two) == ["model", "tp", "batch", "fits", "reason", "tpot_s"]
    for name in one:
        exact = ending == "parquet" or name != "tpot_s"  # a spreadsheet keeps 16 digits
        values = one[name].dropna().tolist()
        assert two[name].dropna().tolist() == (values if exact else pytest.approx(values, rel=1e-15))


def test_unknown_prices_are_kept_beside_pieces(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    card = Path(__file__).parents[1] / "examples" / "my-card.yaml"
    asked = ("sweep", "--model", "7b", "--gpu", str(card), "--batch", "1,2,4")
    assert run(capsys, *asked, "--out", str(tmp_path / "whole.csv"))[0] == 0
    pieces = [str(tmp_path / f"s{i}.csv") for i in (1, 2)]
    for i, piece in enumerate(pieces, 1):
        assert run(capsys, *asked, "--out", piece, "--shard", f"{i}/2")[0] == 0
    assert run(capsys, "merge", *(f"{p}.parts" for p in pieces), "--out", str(tmp_path / "merged.csv"))[0] == 0
    assert (tmp_path / "merged.csv").read_text() == (tmp_path / "whole.csv").read_text()


def test_names_are_no_formulas_in_a_workbook(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    card = (Path(__file__).parents[1] / "examples" / "my-card.yaml").read_text()
    for name in ("=1+1", "a\x1bb"):
        (tmp_path / f"{name}.yaml").write_text(card.replace("name: my-card", f"name: {json.dumps(name)}"))
        asked = ("sweep", "--model", "7b", "--gpu", str(tmp_path / f"{name}.yaml"), "--batch", "1")
        assert run(capsys, *asked, "--out", str(tmp_path / "out.xlsx"))[0] == 0
        cells = list(openpyxl.load_workbook(tmp_path / "out.xlsx")["sweep"].iter_rows())[1]
        assert not [c for c in cells if c.data_type == "f"]
        assert cells[1].value == {"=1+1": "'=1+1", "a\x1bb": "a\\x1bb"}[name]


def test_shards_make_the_whole(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    whole, merged = tmp_path / "whole.csv", tmp_path / "merged.csv"
    assert run(capsys, "sweep", *MANY, "--out", str(whole))[0] == 0
    for i in (1, 2, 3):
        code, out, _ = run(capsys, "sweep", *MANY, "--out", str(tmp_path / f"s{i}.csv"), "--shard", f"{i}/3")
        assert code == 0
        assert f"Shard {i}/3 is done" in out
    folders = [str(tmp_path / f"s{i}.csv.parts") for i in (1, 2, 3)]
    code, _, err = run(capsys, "merge", *folders[:2], "--out", str(merged))
    assert code == 2
    assert "are missing of" in err
    assert not merged.exists()
    assert run(capsys, "merge", *folders, folders[0], "--out", str(merged))[0] == 0
    assert merged.read_bytes() == whole.read_bytes()
    assert run(capsys, "sweep", *ASKED, "--out", str(tmp_path / "other.csv"), "--shard", "1/2")[0] == 0
    err = run(capsys, "merge", folders[0], str(tmp_path / "other.csv.parts"), "--out", str(merged))[2]
    assert "holds pieces of another sweep" in err
    assert run(capsys, "merge", *folders, "--out", str(tmp_path / "merged.parquet"))[0] == 2
    assert run(capsys, "merge", str(tmp_path), "--out", str(merged))[0] == 2


def test_shards_may_share_a_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for i in (2, 1):
        assert run(capsys, "sweep", *MANY, "--out", str(tmp_path / "a.csv"), "--shard", f"{i}/2")[0] == 0
    assert run(capsys, "merge", str(tmp_path / "a.csv.parts"), "--out", str(tmp_path / "a.csv"))[0] == 0
    run(capsys, "sweep", *MANY, "--out", str(tmp_path / "b.csv"))
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "-1/2", "1/0", "1/9999999", ""])
def test_odd_shards_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="shard"):
        Shard.parse(text)


@contextmanager
def started(path: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "inferplan", "sweep", *MANY, "--out", str(path), "-q", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        yield process


def killed_after(path: Path, pieces: int, sent: int, *words: str) -> tuple[int, str]:
    """Exit code and complaints of a sweep that gets a signal as soon as so many pieces are there."""
    folder = path.with_name(path.name + ".parts")
    with started(path, *words) as process:
        while process.poll() is None:
            if folder.is_dir() and len(list(folder.glob("part-*"))) >= pieces:
                process.send_signal(sent)
                break
            time.sleep(0.001)
        _, err = process.communicate(timeout=120)
    return process.returncode, err


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_killed_sweep_goes_on(capsys: pytest.CaptureFixture[str], tmp_path: Path, jobs: int) -> None:
    """Killed twice, at other places, then run to its end: the same bytes as in one go, and nothing left beside them."""
    whole, path = tmp_path / "whole.csv", tmp_path / "rows.csv"
    run(capsys, "sweep", *MANY, "--out", str(whole))
    folder, total = path.with_name("rows.csv.parts"), None
    for pieces in (1, 2):
        assert killed_after(path, pieces, signal.SIGKILL, "-j", str(jobs))[0] == -signal.SIGKILL
        assert not path.exists()
        kept = list(folder.glob("part-*"))
        assert len(kept) >= pieces
        total = json.loads((folder / "_manifest.json").read_text())["chunks"]
    (folder / ".part-000009.csv.half").write_text("half a row, as a kill in the middle of a write leaves it")
    code, _, err = run(capsys, "sweep", *MANY, "--out", str(path), "-q")
    assert code == 0
    assert f"{len(kept):,} of {total:,} pieces are there already" in err
    assert path.read_bytes() == whole.read_bytes()
    assert {p.name for p in tmp_path.iterdir()} == {"rows.csv", "whole.csv"}


def test_an_interrupted_sweep_ends_with_130_and_goes_on(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    assert killed_after(path, 1, signal.SIGINT) == (130, "inferplan: interrupted\n")
    assert run(capsys, "sweep", *MANY, "--out", str(path))[0] == 0
    assert len(path.read_text().splitlines()) == 1 + 120 * 8


def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    path, children = tmp_path / "rows.csv", set[str]()
    folder = path.with_name("rows.csv.parts")
    with started(path, "-j", "2") as process:
        while process.poll() is None and not (folder.is_dir() and list(folder.glob("part-*"))):
            children |= set(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
            time.sleep(0.01)
        process.kill()
    until = time.monotonic() + 60
    while (alive := [c for c in children if running(c)]) and time.monotonic() < until:
        time.sleep(0.05)
    assert children
    assert not alive


def running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_another_grid_is_refused_where_pieces_lie(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    run(capsys, "sweep", *ASKED, "--out", str(path), "--shard", "1/2")
    kept = {p.name: p.read_bytes() for p in (tmp_path / "rows.csv.parts").iterdir()}
    code, out, err = run(capsys, "sweep", *ASKED, "--kv-dtype", "fp8", "--out", str(path))
    assert (code, out) == (2, "")
    assert "rows.csv.parts/_manifest.json: kv_format: holds pieces of another sweep" in err
    assert run(capsys, "sweep", *ASKED, "--columns", "model,tp", "--out", str(path))[0] == 2
    manifest = tmp_path / "rows.csv.parts" / "_manifest.json"
    manifest.write_text(manifest.read_text().replace(ip.__version__, "0.0.1"))
    assert "version: 0.0.1: wrote the pieces there" in run(capsys, "sweep", *ASKED, "--out", str(path))[2]
    for text in ("", "{", "[]", '{"schema": "x"}', '{"chunks": -1}'):
        manifest.write_text(text)
        code, _, err = run(capsys, "sweep", *ASKED, "--out", str(path))
        assert code == 2
        assert "_manifest.json" in err
        assert err.count("\n") == 1
    assert {p.name for p in (tmp_path / "rows.csv.parts").iterdir()} == set(kept)


def test_folders_and_files_that_are_not_a_sweeps_are_left_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "rows.csv.parts").mkdir()
    (tmp_path / "rows.csv.parts" / "diary.txt").write_text("mine")
    for out in ("rows.csv", "nowhere/rows.csv", "rows.txt", "rows", "rows.xlsx/", "."):
        code, printed, err = run(capsys, "sweep", *ASKED, "--out", f"{tmp_path}/{out}")
        assert (code, printed) == (2, ""), out
        assert err.count("\n") == 1
    assert [p.name for p in tmp_path.rglob("*")] == ["rows.csv.parts", "diary.txt"]


def test_a_folder_keeps_pieces(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(capsys, "sweep", *MANY, "--out", f"{tmp_path}/rows.parquet/")[0] == 0
    assert run(capsys, "sweep", *MANY, "--out", f"{tmp_path}/rows.csv")[0] == 0
    whole = pd.read_parquet(tmp_path / "rows.parquet")
    assert len(whole) == len(pd.read_csv(tmp_path / "rows.csv")) == 960
    codes = [run(capsys, "pareto", f"{tmp_path}/rows.{kind}", "--json") for kind in ("parquet", "csv")]
    assert codes[0][0] == 0
    assert json.loads(codes[0][1])["frontier"] == json.loads(codes[1][1])["frontier"]


def test_grids_in_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    grid = tmp_path / "grid.yaml"
    grid.write_text("model: 7b\nhardware: [h100]\nbatch: 1..8x2\ntp: [1, 2]\n")
    assert run(capsys, "sweep", str(grid))[1].startswith("8 configurations")
    assert run(capsys, "sweep", str(grid), "--batch", "1,2,3")[1].startswith("6 configurations")
    for text in ("model: 7b\nhardware: h100\nbatch: &a 1\n", "- 1\n", "model: [7b\n", "\x00", "model: 7b\nmodel: 8b\n", "a: " * 100):
        grid.write_text(text)
        code, out, err = run(capsys, "sweep", str(grid))
        assert (code, out) == (2, "")
        assert str(grid) in err
        assert err.count("\n") == 1
    assert run(capsys, "sweep", str(tmp_path / "none.yaml"))[0] == 2
    assert run(capsys, "sweep", "--model", "7b")[0] == 2


def test_nothing_that_fits_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "sweep", "--model", "deepseek-v3", "--gpu", "4090", "--batch", "1,2")
    assert code == 1
    assert "2 configurations, 0 of them fit" in out
    assert run(capsys, "pareto", "--model", "deepseek-v3", "--gpu", "4090")[0] == 1


def test_the_record(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, "sweep", *ASKED, "--json")[1])
    assert (found["schema"], found["points"]) == ("inferplan/sweep/2", 120)
    assert set(found["best"]["tpot_s"]) == set(COLUMNS)


def test_csv_keeps_commas_and_infinities() -> None:
    from inferplan.planner.sweep import Table
    from inferplan.report.sweep_files import encoded

    table = Table({"reason": np.array([0, 1, -1]), "tpot_s": np.array([np.nan, np.inf, 0.1])}, {"reason": ('a,"b"', "")})
    assert list(csv.reader(io.StringIO(encoded(table, "csv").decode()))) == [["reason", "tpot_s"], ['a,"b"', ""], ["", "inf"], ["", "0.1"]]
