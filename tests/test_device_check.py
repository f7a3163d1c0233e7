"""validation/device_check.py: its shapes are the catalog's, its counts inferplan's own, and what it writes is read by what it is for.

No accelerator and no PyTorch is needed: a stand-in gives the seconds. Where PyTorch is there, its part runs on the processor too.
"""

from __future__ import annotations

import ast
import csv
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inferplan as ip
from inferplan.calibrate.cases import read_cases
from inferplan.cli.app import main
from inferplan.engine.operators import operators
from inferplan.engine.segment import Segment
from inferplan.engine.step import step
from inferplan.specs.counts import counts
from inferplan.specs.engine import Engine

ROOT = Path(__file__).parents[1]


def _module(folder: str, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


CHECK = _module("validation", "device_check")
FIT = _module("tools", "fit_kernels")
FACTS = CHECK.Facts(
    gpu="h200-sxm5-141gb", device="NVIDIA H200", measured="2030-01-02", torch="2.9.0+cu128", runtime="CUDA 12.8", driver="570.1",
    clock_mhz="1980", power_limit_w="700.00", total_gib=139.8, collectives="nccl 2.27.3",
)  # fmt: skip
LOADS = [("decode", 1, 1), ("decode", 1, 2048), ("decode", 64, 777), ("prefill", 1, 512), ("prefill", 3, 4096)]


class Fake:
    """Stands in for a device: `seconds` of each point, none of which anybody measured."""

    def __init__(self, seconds: Callable[[Any], float], alive: bool = True) -> None:
        self.seconds, self.answers = seconds, alive

    def time(self, point: Any) -> Any:
        at = self.seconds(point)
        return CHECK.Sample((at, at * 1.02, at * 0.98, at), "stand-in")

    def alive(self) -> bool:
        return self.answers


def whole_plan(**but: Any) -> list[Any]:
    return CHECK.plan("bf16", **{"small": False, "models": list(CHECK.SHAPES), "ranks": 2, **but})  # type: ignore[no-any-return]


def written(folder: Path, seconds: Callable[[Any], float], sections: Sequence[Any] | None = None) -> Any:
    book = CHECK.Book(folder, FACTS, now=lambda: 0.0)
    CHECK.run(whole_plan() if sections is None else sections, Fake(seconds), book, until=1.0)
    return book


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as f:
        return list(csv.DictReader(f))


def roofed(point: Any) -> float:
    """Some seconds that rise with the work."""
    return float(1e-5 + point.flops / 5e14 + point.moved / 4e12)


# shapes and counts


@pytest.mark.parametrize("name", CHECK.SHAPES)
def test_shapes_are_the_catalogs(name: str) -> None:
    shape, model = CHECK.SHAPES[name], ip.model(name)
    block = model.blocks["layer"]
    mixer, ffn = block.mixers[0], block.ffns[0]
    own = (shape.layers, shape.hidden, shape.vocab, shape.heads, shape.kv_heads, shape.head_dim, shape.width, shape.tied)
    assert own == (
        len(model.order), model.hidden, model.vocab, mixer.heads, mixer.kv_heads, mixer.head_dim, ffn.width, model.head == "tied",
    )  # fmt: skip
    assert set(model.order) == {"layer"}
    assert shape.params == counts(model).total


@pytest.mark.parametrize("name", CHECK.SHAPES)
@pytest.mark.parametrize("format", ["bf16", "fp16"])
@pytest.mark.parametrize("load", LOADS)
def test_passes_do_and_move_what_inferplan_counts(name: str, format: str, load: tuple[str, int, int]) -> None:
    phase, batch, tokens = load
    segment = Segment(batch, 1, tokens - 1) if phase == "decode" else Segment(batch, tokens)
    found = step(ip.model(name), ip.hardware("h200"), ip.precision(format, kv=format), segment)
    point = CHECK.Pass(name, phase, format, batch, tokens)
    norms = sum(op.weight_bytes for op in found.ops if op.part == "norm")
    assert norms == 2 * (2 * point.shape.layers + 1) * point.shape.hidden, "so that nothing else is left out of the sum below"
    assert point.flops == pytest.approx(float(found.flops), rel=1e-12)
    assert point.moved == pytest.approx(float(found.bytes), rel=1e-12)
    assert point.cache_bytes == pytest.approx(float(found.kv_bytes), rel=1e-12)


@pytest.mark.parametrize("name", CHECK.SHAPES)
@pytest.mark.parametrize("load", LOADS)
def test_operators_do_and_move_what_inferplan_counts(name: str, load: tuple[str, int, int]) -> None:
    phase, batch, tokens = load
    new = 1 if phase == "decode" else tokens
    ops = {op.name.rsplit(".", 1)[-1]: op for op in operators(ip.model(name), ip.precision("bf16"), [Segment(batch, new, tokens - new)])}
    shape = CHECK.SHAPES[name]
    for part, (n, k) in shape.products.items():
        op, point = ops[part], CHECK.Gemm("bf16", batch if part == "head" else batch * new, n, k)
        assert point.flops * op.count == pytest.approx(float(op.flops), rel=1e-12), part
        assert point.moved * op.count == pytest.approx(float(op.weight_bytes + op.act_bytes), rel=1e-12), part
    op = ops["scores"]
    point = CHECK.Attention(phase, "bf16", batch, tokens, shape.heads, shape.kv_heads, shape.head_dim)
    assert op.kind == ("attention_decode" if new <= 8 else "attention_prefill")
    assert point.flops * op.count == pytest.approx(float(op.flops), rel=1e-12)
    assert point.moved * op.count == pytest.approx(float(op.kv_bytes + op.act_bytes), rel=1e-12)


# files and who reads them


def test_tables_of_operators_have_the_columns_of_those_in_validation(tmp_path: Path) -> None:
    written(tmp_path, roofed)
    for name in ("gemm", "attention_decode", "attention_prefill", "collectives"):
        ours, theirs = ((folder / "operators" / f"{name}.csv").read_text().splitlines()[0] for folder in (tmp_path, ROOT / "validation"))
        assert ours == theirs
    assert {r["kind"] for r in rows(tmp_path / "operators" / "collectives.csv")} == {"all_reduce"}
    assert {(r["engine"], r["version"]) for r in rows(tmp_path / "operators" / "collectives.csv")} == {("nccl", "2.27.3")}


def test_kernel_fits_read_the_rows_and_count_the_same_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = written(tmp_path, roofed)
    monkeypatch.setattr(FIT, "ROWS", tmp_path / "operators")
    points = [p for _, p, _ in book.found]
    kinds = {
        "matmul": [p for p in points if isinstance(p, CHECK.Gemm)],
        "attention_decode": [p for p in points if isinstance(p, CHECK.Attention) and p.phase == "decode"],
        "attention_prefill": [p for p in points if isinstance(p, CHECK.Attention) and p.phase == "prefill"],
    }
    cache = ip.hardware("h200").cache.value
    for kind, own in kinds.items():
        if kind == "attention_decode":  # the reader leaves out what other timings found in the cache
            own = [p for p in own if p.moved < 2e6 or p.moved > 2 * cache]
        read = FIT.KINDS[kind]()
        assert len(read) == len(own) > 10
        np.testing.assert_allclose(read.flops, [p.flops for p in own], rtol=1e-12)
        np.testing.assert_allclose(read.moved, [p.moved for p in own], rtol=1e-12)
        np.testing.assert_allclose(read.seconds, [roofed(p) for p in own], rtol=1e-3)
        fitted = FIT.fit(read, kind)
        assert np.median(FIT.errors(read, fitted, kind)) < 0.25
    reduced = FIT.collectives()
    assert (reduced.message == reduced["bytes"]).all()


def test_validate_predicts_the_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Seconds that are the estimates themselves come back without an error: nothing is lost or mistaken between the two."""
    part = ip.hardware("h200").with_memory("139.8 GiB")

    def estimated(point: Any) -> float:
        of = {"batch": point.batch, "output_tokens": 1, "engine": "pytorch"}
        model = ip.model(point.model)
        if point.phase == "decode":
            return ip.estimate(model, part, ip.precision("bf16"), input_tokens=point.tokens, context=point.tokens, **of).tpot_s
        return ip.estimate(model, part, ip.precision("bf16"), input_tokens=point.tokens, **of).ttft_s

    sections = [s for s in whole_plan() if s.name.startswith("model ")]
    book = written(tmp_path, estimated, sections)
    assert book.refused == 0
    found, _ = read_cases(tmp_path / "cases.csv")
    assert len(found) == sum(len(s.points) for s in sections)
    assert main(["validate", str(tmp_path / "cases.csv"), "--json", "--csv", str(tmp_path / "errors.csv"), "-q"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["all"]["worst_error"] < 1e-5
    assert record["all"]["rows"] - record["all"]["predicted"] == len(CHECK.SHAPES), "the eager steps, and nothing else"
    assert list(record["refused"]) == ["times of eager mode are not predicted: calibrations are of captured graphs"]
    assert {r["source"] for r in rows(tmp_path / "cases.csv")} == {FACTS.source}
    assert FACTS.source == "device_check, NVIDIA H200, PyTorch 2.9.0+cu128, CUDA 12.8, driver 570.1"


@pytest.mark.parametrize("gpu", ["h200", "rtx-4090", "mi300x", "xeon-8480plus", "m3-max-40c"])
def test_small_rows_are_predicted_on_parts_of_all_kinds(tmp_path: Path, capsys: pytest.CaptureFixture[str], gpu: str) -> None:
    facts = CHECK.Facts(gpu=CHECK.canonical(gpu), device="d", measured="2030-01-02", torch="2.13.0", total_gib=23.5)
    book = CHECK.Book(tmp_path, facts, now=lambda: 0.0)
    sections = [s for s in whole_plan(small=True, models=["llama-3.2-1b"], ranks=1) if s.name.startswith("model")]
    CHECK.run(sections, Fake(roofed), book, until=1.0)
    assert main(["validate", str(tmp_path / "cases.csv"), "--json", "-q"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["all"]["predicted"] == record["all"]["rows"] == 5


def test_every_measurement_stands_in_measured_csv(tmp_path: Path) -> None:
    book = written(tmp_path, lambda p: 2e-3)
    found = rows(tmp_path / "measured.csv")
    assert len(found) == len(book.found) == sum(len(s.points) for s in whole_plan())
    copy = next(r for r in found if r["what"] == "copy 1 GiB")
    assert (copy["bytes"], copy["bytes_per_s"], copy["repeats"], copy["how"]) == ("2147483648", "1.074e+12", "4", "stand-in")
    assert float(copy["spread"]) == pytest.approx(0.01)


def test_types_that_fits_do_not_know_stay_out_of_their_tables(tmp_path: Path) -> None:
    sections = [s for s in CHECK.plan("fp16", small=True, models=["llama-3.2-1b"], ranks=1) if s.name in ("gemm", "attention")]
    written(tmp_path, roofed, sections)
    assert {r["format"] for r in rows(tmp_path / "operators" / "gemm.csv")} == {"fp8", "int8"}
    assert not (tmp_path / "operators" / "attention_decode.csv").exists()
    assert "fp16" in {r["format"] for r in rows(tmp_path / "measured.csv")}


def test_spread_is_of_the_quartiles() -> None:
    assert CHECK.Sample((1.0, 2.0, 3.0, 4.0, 5.0)).spread == pytest.approx(2 / 3)
    assert np.isnan(CHECK.Sample((1.0, 2.0)).spread)
    assert CHECK.show(float("nan")) == CHECK.show(None) == ""


# a run


def test_what_cannot_be_measured_is_a_line_with_its_reason(tmp_path: Path) -> None:
    def seconds(point: Any) -> float:
        if isinstance(point, CHECK.Gemm) and point.m == 8192:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has a total capacity of ...")
        if isinstance(point, CHECK.Gemm) and point.format == "fp8":
            raise CHECK.Refused("needs 3 GiB of memory, 1 GiB are free")
        return 0.0 if isinstance(point, CHECK.Stream) else 1e-3

    book = written(tmp_path, seconds)
    refused = [r for r in rows(tmp_path / "measured.csv") if r["refused"]]
    assert len(refused) == book.refused
    reasons = {r["refused"] for r in refused}
    assert reasons == {
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB.", "needs 3 GiB of memory, 1 GiB are free",
        "timed 0 s: below what the clock tells",
    }  # fmt: skip
    assert {r["format"] for r in refused if "3 GiB" in r["refused"]} == {"fp8"}
    assert {int(r["m"]) for r in rows(tmp_path / "operators" / "gemm.csv")} >= {1, 4096}
    assert 8192 not in {int(r["m"]) for r in rows(tmp_path / "operators" / "gemm.csv")}


def test_an_interrupt_loses_nothing(tmp_path: Path) -> None:
    calls: list[Any] = []

    def seconds(point: Any) -> float:
        calls.append(point)
        if len(calls) == 40:
            raise KeyboardInterrupt
        return 1e-3

    with pytest.raises(KeyboardInterrupt):
        written(tmp_path, seconds)
    assert len(rows(tmp_path / "measured.csv")) == 39
    assert len(rows(tmp_path / "operators" / "gemm.csv")) == sum(isinstance(p, CHECK.Gemm) for p in calls[:39]) > 0


def test_a_device_that_no_longer_answers_ends_the_run(tmp_path: Path) -> None:
    def fails(point: Any) -> float:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    book = CHECK.Book(tmp_path, FACTS, now=lambda: 0.0)
    with pytest.raises(CHECK.Dead, match="illegal memory access"):
        CHECK.run(whole_plan(), Fake(fails, alive=False), book, until=1.0)
    assert len(rows(tmp_path / "measured.csv")) == 1


def test_sections_keep_to_the_minutes(tmp_path: Path) -> None:
    clock = [0.0]

    def seconds(point: Any) -> float:
        clock[0] += 0.5
        return 1e-3

    book = CHECK.Book(tmp_path, FACTS, now=lambda: clock[0])
    told: list[str] = []
    CHECK.run(whole_plan(), Fake(seconds), book, until=60.0, tell=told.append)
    sections = whole_plan()
    assert 60.0 <= clock[0] <= 60.0 + 0.5 * len(sections), "each section runs over by one point at most"
    assert len(told) == len(sections)
    cut = [r for r in rows(tmp_path / "measured.csv") if "share of the minutes" in r["refused"]]
    measured = {s.name: sum(1 for name, _, _ in book.found if name == s.name) for s in sections}
    assert {r["section"] for r in cut} == {s.name for s in sections if measured[s.name] < len(s.points)}
    for row in cut:
        left, _, whole, _ = row["what"].split()
        assert int(whole) - int(left) == measured[row["section"]]
    assert all(measured.values()), "none is left out"


def test_what_one_section_leaves_goes_to_the_next(tmp_path: Path) -> None:
    clock = [0.0]

    def seconds(point: Any) -> float:
        clock[0] += 1.0
        return 1e-3

    few = CHECK.Section("few", 9, (CHECK.Launch("alone"),))
    many = CHECK.Section("many", 1, tuple(CHECK.Stream("read", n * 2**20) for n in range(1, 30)))
    CHECK.run([few, many], Fake(seconds), CHECK.Book(tmp_path, FACTS, now=lambda: clock[0]), until=20.0)
    assert clock[0] == 20.0


def test_the_first_points_of_a_section_span_its_range() -> None:
    sections = {s.name: s.points for s in whole_plan()}
    early = sections["gemm"][: len(sections["gemm"]) // 4]
    assert {min(p.m for p in early), max(p.m for p in early)} == {1, 8192}
    assert {p.format for p in early} == {"bf16", "fp8", "int8"}
    assert min(p.m for p in sections["gemm"] if p.format == "int8") > 16
    for name in CHECK.SHAPES:
        assert {p.phase for p in sections[f"model {name}"][:2]} == {"decode", "prefill"}
    assert len({p for points in sections.values() for p in points}) == sum(len(points) for points in sections.values()), "none twice"


def test_the_page_says_what_is_measured() -> None:
    page = (ROOT / "docs" / "device-check.md").read_text()
    table = [[c.strip() for c in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| ")]
    told = {cells[0]: (float(cells[1]), int(cells[2])) for cells in table if len(cells) == 4 and cells[1].isdigit()}
    found: dict[str, tuple[float, int]] = {}
    for section in whole_plan():
        name = "model ..." if section.name.startswith("model") else section.name
        share, points = found.get(name, (0.0, 0))
        found[name] = (share + section.share, points + len(section.points))
    assert found == told


# the command


def test_needs_the_standard_library_alone_until_it_measures() -> None:
    tree = ast.parse((ROOT / "validation" / "device_check.py").read_text())
    top = [n for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom))]
    names = {a.name.split(".")[0] for n in top if isinstance(n, ast.Import) for a in n.names}
    names |= {n.module.split(".")[0] for n in top if isinstance(n, ast.ImportFrom) and n.module}
    assert names <= set(sys.stdlib_module_names)
    every = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    every |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert not any(name.startswith("inferplan") for name in every)


def test_parts_are_named_as_the_catalog_names_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert CHECK.canonical("H200-SXM") == "h200-sxm5-141gb"
    assert CHECK.canonical("A100 (80GB)", tmp_path) == "a100-80gb", "without a checkout the text stands"
    with pytest.raises(SystemExit) as e:
        CHECK.canonical("h20o")
    assert e.value.code == 2
    assert "'h20o': is not in the catalog; near it: h20" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--minutes", "0"], "--minutes: 0: must lie between 0.05 and 1440"),
        (["--minutes", "nan"], "--minutes: nan: must lie between"),
        (["--gpu", "h999"], "--gpu: 'h999': is not in the catalog"),
        (["--models", "llama-3.1-8b,gpt"], "--models: gpt: is none of llama-3.2-1b"),
        (["-o", "{full}"], "must be a new or empty folder"),
        (["-o", "{full}/a"], "must be a new or empty folder"),
        (["-o", "{full}/a/b"], "cannot be made"),
        ([], "needs PyTorch, which is not there"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "a").write_text("something\n")
    monkeypatch.setitem(sys.modules, "torch", None)
    asked = ["--gpu", "h200", "-o", str(tmp_path / "new"), *(m.format(full=full) for m in more)]
    try:
        code = CHECK.main(asked)
    except SystemExit as e:
        code = e.code
    assert code == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert [p.name for p in full.iterdir()] == ["a"]


def test_what_nvidia_smi_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    def says(text: str) -> None:
        done = subprocess.CompletedProcess([], 0, stdout=text)
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)

    says("570.86.15, 1980, 1980, 3201, 700.00, 121.34, 36\n")
    assert CHECK.smi()["driver_version"] == "570.86.15"
    assert CHECK.smi()["power.limit"] == "700.00"
    says("570.86.15, 1980, 1980, 3201, [N/A], 121.34, 36\n")
    assert "power.limit" not in CHECK.smi()
    says("")
    assert CHECK.smi() == {}

    def absent(*_: Any, **__: Any) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "run", absent)
    assert CHECK.smi() == {}


def test_the_summary_names_the_best_and_the_files(tmp_path: Path) -> None:
    text = CHECK.summary(written(tmp_path, roofed))
    best = max((p for p in whole_plan()[1].points if p.kind == "copy"), key=lambda p: p.moved / roofed(p))
    assert f"{best.what}: {best.moved / roofed(best) / 1e9:,.4g} GB/s" in text
    assert "cases.csv for 'inferplan validate'" in text
    assert CHECK.summary(CHECK.Book(tmp_path / "empty", FACTS)).endswith("none")


# the engine that rows are predicted under


def test_plain_pytorch_sets_nothing_aside_and_adds_next_to_nothing() -> None:
    load = {"input_tokens": 4096, "output_tokens": 64, "batch": 4}
    part, model = ip.hardware("h200"), ip.model("llama-3.2-1b")
    e = ip.estimate(model, part, ip.precision("bf16"), engine="torch", **load)
    assert e.engine.name == "pytorch"
    assert float(np.max(e.decode.overhead_s)) < 50e-6, "a graph's replay, and no engine"
    assert e.ttft_s == pytest.approx(float(e.prefill.time_s)), "all prompts in one pass"
    assert e.tpot_s < ip.estimate(model, part, ip.precision("bf16"), engine="vllm", **load).tpot_s
    assert float(e.capacity.reserved_cache_bytes) == 4 * (4096 + 64) * 32768
    assert Engine.find("pytorch").choice("reservation") == "whole"


# with PyTorch, on the processor


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("torch")
    monkeypatch.setitem(CHECK.SHAPES, "tiny", CHECK.Shape(3, 64, 8, 2, 16, 96, 50, tied=False))
    found = CHECK.Torch("cpu")
    found.buffer = found.buffer[:1024]
    return found


@pytest.mark.filterwarnings("default")
def test_a_decode_step_goes_on_where_a_prefill_ended(bench: Any) -> None:
    torch = bench.torch
    bench.dtype = lambda format: torch.float64
    bench.filled = lambda shape, format: torch.randn(shape, dtype=torch.float64)
    model = CHECK.Llama(bench, "tiny", "bf16")
    assert model.params == CHECK.SHAPES["tiny"].params
    model.reach(9)
    tokens = torch.randint(0, 50, (2, 9))
    whole, parted = ([torch.zeros(2, 2, 2, 9, 16, dtype=torch.float64) for _ in range(3)] for _ in range(2))
    at_once = model(tokens, whole, 0)
    model(tokens[:, :8], parted, 0)
    assert torch.equal(model(tokens[:, 8:], parted, 8), at_once)
    assert max(float((a - b).abs().max()) for a, b in zip(whole, parted, strict=True)) < 1e-12


@pytest.mark.filterwarnings("default")
def test_points_are_timed_on_a_processor(bench: Any, tmp_path: Path) -> None:
    points = (
        CHECK.Launch("alone"), CHECK.Launch("graph"), CHECK.Stream("copy", 2**20), CHECK.Stream("read", 2**20),
        CHECK.Gemm("bf16", 3, 64, 32), CHECK.Gemm("int8", 32, 64, 32), CHECK.Gemm("fp8", 32, 64, 32),
        CHECK.Attention("decode", "bf16", 2, 33, 8, 2, 16), CHECK.Attention("prefill", "bf16", 2, 33, 8, 2, 16),
        CHECK.Pass("tiny", "decode", "bf16", 2, 9), CHECK.Pass("tiny", "prefill", "bf16", 1, 9),
    )  # fmt: skip
    book = CHECK.Book(tmp_path, FACTS)
    CHECK.run([CHECK.Section("all", 1, points)], bench, book, until=book.now() + 60)
    refused = {r["what"]: r["refused"] for r in rows(tmp_path / "measured.csv") if r["refused"]}
    assert set(refused) == {CHECK.Launch("graph").what, CHECK.Gemm("fp8", 32, 64, 32).what}
    assert len(book.found) == len(points) - 2
