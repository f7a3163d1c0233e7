"""Pictures: axes with units, as many roofs and points as there are, shares that sum, files written whole and the same each time."""

import itertools
import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import matplotlib.style  # noqa: F401 - read before settings are compared
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from inferplan.cli.app import main
from inferplan.cli.options import Asked
from inferplan.deployment import Estimate
from inferplan.errors import SpecError
from inferplan.report import canvas, plots
from inferplan.report.plots import PICTURES, write_picture

MAGIC = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<?xml", "pdf": b"%PDF-"}
CASES = {
    "dense": Asked("7b", "h100", "fp8"),
    "does not fit": Asked("gpt-oss-120b", "h100", utilization=0.88),
    "many devices": Asked("deepseek-v3", "b200", "nvfp4-moe", tp=8, batch=64),
    "hybrid": Asked("qwen3.5-27b", "4090", "q4_k_m"),
    "other vendor": Asked("llama-3.1-70b", "mi300x"),
    "stages": Asked("llama-3.1-70b", "h100", "bf16", tp=2, pp=4, batch=32, isl=64, osl=32),
    "states only": Asked("mamba-2.8b", "a100", "bf16"),
    "cells": Asked("llama-3.1-8b", "4090", "q4_k_m", engine="llama.cpp"),
}
SLOW = ("other vendor", "cells", "many devices", "stages")
GRID = [pytest.param(c, p, marks=[pytest.mark.slow] if c in SLOW else []) for c, p in itertools.product(CASES, PICTURES)]
_KEPT: dict[str, Estimate] = {}


def case(name: str) -> Estimate:
    if name not in _KEPT:
        _KEPT[name] = CASES[name].estimate()
    return _KEPT[name]


def panels(ax: Axes) -> list[Axes]:
    return list(ax.figure.axes)


def marked(ax: Axes, gid: str) -> list:
    return [line for line in ax.lines if (line.get_gid() or "").startswith(gid)]


@pytest.mark.parametrize(("name", "picture"), GRID)
def test_every_picture_of_every_case(name: str, picture: str) -> None:
    ax = PICTURES[picture](case(name))
    assert isinstance(ax, Axes)
    assert case(name).model.title in ax.get_title(loc="left")
    assert case(name).hardware.title.split()[-2] in ax.get_title(loc="left")
    for panel in panels(ax):
        numbers = np.concatenate([np.asarray(line.get_ydata(), float) for line in panel.lines] or [np.zeros(1)])
        assert np.all(np.isfinite(numbers))


UNITS = {
    "roofline": ("intensity, FLOP/B", "estimated rate, TFLOP/s"),
    "breakdown": ("share of the estimated time, %", ""),
    "batch": ("", "tokens/s"),
    "context": ("", "TPOT, ms"),
    "memory": ("", "memory per device, GiB"),
}


@pytest.mark.parametrize("picture", PICTURES)
def test_axes_have_units(picture: str) -> None:
    ax = PICTURES[picture](case("dense"))
    assert (ax.get_xlabel(), ax.get_ylabel()) == UNITS[picture]
    if picture in ("batch", "context"):
        lower = panels(ax)[1]
        assert lower.get_xlabel() == {"batch": "batch, sequences", "context": "context, tokens"}[picture]
        assert lower.get_ylabel() == {"batch": "TPOT, ms", "context": "cache per device, GiB"}[picture]


def test_roofline_has_the_roofs_of_the_part() -> None:
    ax = plots.plot_roofline(case("dense"))
    found = {line.get_gid().removeprefix("roof "): float(line.get_ydata()[0]) for line in marked(ax, "roof")}
    assert found == {"bf16, fp16": pytest.approx(989.4e12, rel=1e-3), "fp8, int8": pytest.approx(1978.9e12, rel=1e-3)}
    ridges = {line.get_gid().removeprefix("ridge "): float(line.get_xdata()[0]) for line in marked(ax, "ridge")}
    assert ridges["bf16, fp16"] == pytest.approx(295.3, rel=1e-3)
    assert ridges["fp8, int8"] == pytest.approx(590.7, rel=1e-3)
    assert any("ridge 295" in text.get_text() for text in ax.texts)
    b200 = plots.plot_roofline(case("many devices"))
    assert [line.get_gid() for line in marked(b200, "roof")] == ["roof bf16, fp16", "roof fp8, fp6, int8", "roof fp4"]


def test_roofline_points_are_the_operators_that_multiply() -> None:
    e = case("dense")
    prefill, decode = plots.plot_roofline(e).collections
    assert (prefill.get_label(), decode.get_label()) == ("prefill", "decode")
    assert tuple(prefill.get_facecolor()[0]) != tuple(decode.get_facecolor()[0])
    assert prefill.get_paths()[0].vertices.shape != decode.get_paths()[0].vertices.shape
    assert len(prefill.get_offsets()) == len(decode.get_offsets()) == 6  # QKV, output, MLP twice, attention, head
    for step, drawn in ((e.prefill, prefill), (e.decode, decode)):
        points = plots.operator_points(e, step)
        assert sum(p.flops for p in points) == pytest.approx(float(np.mean(step.flops)))
        assert np.asarray(drawn.get_offsets()) == pytest.approx(np.array([p.place for p in points]))
        assert list(drawn.get_sizes()) == sorted(drawn.get_sizes(), reverse=True)


def test_equal_operators_of_two_layer_kinds_are_one_point() -> None:
    points = plots.operator_points(case("hybrid"), case("hybrid").decode)
    names = [p.name for p in points]
    assert names.count("MLP gate, up") == 1
    assert sum(op.name.endswith("dense.gate_up") for op in case("hybrid").decode.ops) == 2


@pytest.mark.parametrize("name", CASES)
def test_no_point_lies_above_its_roof(name: str) -> None:
    e = case(name)
    for step in (e.prefill, e.decode):
        for p in plots.operator_points(e, step):
            intensity, rate = p.place
            assert rate <= 1.000001 * min(e.hardware.peak_flops_per_s(p.rate), intensity * e.hardware.bandwidth_bytes_per_s)


def test_at_efficiency_1_points_lie_on_their_roofs() -> None:
    e = Asked("7b", "h100", "fp8", efficiency="ideal").estimate()
    for p in plots.operator_points(e, e.decode):
        intensity, rate = p.place
        assert rate == pytest.approx(min(e.hardware.peak_flops_per_s(p.rate), intensity * e.hardware.bandwidth_bytes_per_s), rel=1e-3)


@pytest.mark.parametrize("name", CASES)
def test_breakdown_sums_to_the_pass(name: str) -> None:
    e = case(name)
    for step in (e.prefill, e.decode):
        assert sum(plots.time_by_group(step).values()) == pytest.approx(float(np.mean(step.time_s)), rel=1e-6)
    ax = plots.plot_breakdown(e)
    for row in (0, 1):
        assert sum(bar.get_width() for bars in ax.containers for bar in [bars[row]]) == pytest.approx(100)
    assert len(marked(ax, "floor")) == 2
    at = float(marked(ax, "floor")[1].get_xdata()[0])
    assert at == pytest.approx(100 * e.floor_tpot_s / e.tpot_s)
    assert ("communication" in plots.time_by_group(e.decode)) == (e.gpus > 1)


def test_batch_shows_floor_limit_and_where_compute_binds() -> None:
    e = case("dense")
    upper = plots.plot_batch(e)
    for panel in panels(upper):
        (limit,) = marked(panel, "limit")
        assert float(limit.get_xdata()[0]) == e.max_sequences
        assert not marked(panel, "ridge")  # full heads of 7B: the cache keeps every batch bound by memory
    (time,), (floor,) = marked(panels(upper)[1], "estimate"), marked(panels(upper)[1], "floor")
    assert np.all(time.get_ydata() > floor.get_ydata())
    assert floor.is_dashed()
    (rate,) = marked(upper, "estimate")
    assert rate.get_ydata() == pytest.approx(rate.get_xdata() / time.get_ydata())
    short = plots.plot_batch(case("stages"))
    (ridge,) = marked(short, "ridge")
    assert f"compute-bound from {ridge.get_xdata()[0]:,.0f}" in [t.get_text() for t in short.texts]


def test_compute_binds_near_the_ridge_point() -> None:
    e = Asked("llama-3.1-8b", "h100", "bf16", isl=8, osl=8).estimate()
    (ridge,) = marked(plots.plot_batch(e), "ridge")
    assert float(ridge.get_xdata()[0]) == pytest.approx(e.hardware.ridge("bf16"), rel=0.05)


@pytest.mark.parametrize("name", ["dense", "many devices", "hybrid", "stages"])
def test_context_limit_is_where_the_cache_is_full(name: str) -> None:
    e = case(name)
    longest = plots.longest_context(e)
    have, each = float(np.asarray(e.capacity.kv_cache_bytes_per_gpu)), plots.per_group(e)
    assert each * plots.request_bytes(e.capacity, longest) <= have
    assert each * plots.request_bytes(e.capacity, 1.3 * longest) > have
    upper = plots.plot_context(e)
    (kept,), (least,) = marked(panels(upper)[1], "estimate"), marked(panels(upper)[1], "floor")
    assert np.all(kept.get_ydata() >= 0.999 * least.get_ydata())
    assert marked(upper, "floor")[0].is_dashed()


@pytest.mark.parametrize("name", CASES)
def test_memory_pieces_sum_to_the_device(name: str) -> None:
    e = case(name)
    slices, budget = plots.memory_slices(e)
    c = e.capacity
    stage = c.stages[plots.fullest(c)]
    weights = plots.rank_weights(c, plots.fullest(c))
    assert sum(weights.values()) == pytest.approx(float(np.asarray(stage.weight_bytes)), rel=1e-6)
    held = sum(s.bytes for s in slices)
    if e.fits:
        assert held == pytest.approx(float(np.asarray(c.total_bytes)))
        assert budget <= held
    assert all(s.bytes > 0 for s in slices)
    ax = plots.plot_memory(e)
    left = [bars[0].get_height() for bars in ax.containers if bars[0].get_x() < 0.5]
    assert sum(left) == pytest.approx(held)
    assert [float(line.get_ydata()[0]) for line in marked(ax, "limit")] == pytest.approx([float(np.asarray(c.total_bytes)), budget])


def test_padding_of_the_engine_is_apart_from_the_weights() -> None:
    e = case("does not fit")
    engine, least = plots.rank_weights(e.capacity, 0), plots.rank_weights(plots.ideal(e), 0)
    assert engine["experts"] == least["experts"]
    assert engine["padding, tables"] == pytest.approx(0.0904 * engine["experts"], rel=0.02)
    assert "padding, tables" not in least
    assert "exceed the budget" in plots.plot_memory(e).get_title(loc="left").replace("\n", " ")


@pytest.mark.parametrize("picture", PICTURES)
def test_texts_do_not_overlap_and_stay_inside(picture: str) -> None:
    ax = PICTURES[picture](case("dense"))
    figure = ax.figure
    figure.draw_without_rendering()
    width, height = figure.get_size_inches() * figure.dpi
    assert width / figure.dpi * 25.4 == pytest.approx(80, abs=0.1)
    texts = [t for panel in panels(ax) for t in panel.texts if t.get_text() and not t.get_rotation()]
    boxes = [_extent(t) for t in texts]
    for a, b in itertools.combinations(boxes, 2):
        assert not a.overlaps(b)
    titles = [_extent(panel._left_title) for panel in panels(ax)]  # noqa: SLF001
    for box in [*boxes, *titles, *(panel.xaxis.label.get_window_extent() for panel in panels(ax))]:
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= width + 1
        assert box.y1 <= height + 1


def _extent(text: object):
    from matplotlib.text import Text

    return Text.get_window_extent(text)  # of the words, without an annotation's line


def test_letters_are_large_enough_for_print() -> None:
    for picture in ("roofline", "memory"):
        ax = PICTURES[picture](case("many devices"))
        sizes = [t.get_fontsize() for t in ax.figure.findobj(mpl.text.Text) if t.get_text()]
        assert min(sizes) >= 5.5


def test_colours_of_a_picture_differ() -> None:
    colours = [*plots.GROUPS.values(), plots.SAND, plots.PALE]
    assert len(set(colours)) == len(colours)


def test_draws_on_axes_that_are_given() -> None:
    figure = Figure(figsize=(8, 6))
    given = figure.subplots(2, 3).flat
    for ax, picture in zip(given, PICTURES.values(), strict=False):
        assert picture(case("dense"), ax=ax) is ax
    assert len(figure.axes) == 8  # two of the pictures have a second panel
    free = Figure().add_axes((0.1, 0.1, 0.4, 0.8))
    assert plots.plot_batch(case("dense"), ax=free) is free
    assert free.get_position().height < 0.45


def test_no_global_state_is_touched(tmp_path: Path) -> None:
    code = (
        "import sys, matplotlib as mpl, matplotlib.style; before = dict(dict.items(mpl.rcParams))\n"
        "from inferplan.cli.options import Asked; from inferplan.report.plots import PICTURES, write_picture\n"
        "e = Asked('7b', 'h100', 'fp8').estimate()\n"
        f"[write_picture(draw(e), r'{tmp_path}/' + name + '.png') for name, draw in PICTURES.items() if name != 'memory']\n"
        "assert dict(dict.items(mpl.rcParams)) == before; assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert not run.stderr
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("ending", MAGIC)
def test_files_have_the_format_of_their_ending(ending: str, tmp_path: Path) -> None:
    ax = plots.plot_memory(case("dense"))
    path = write_picture(ax, tmp_path / f"a.{ending.upper()}")
    assert path.read_bytes().startswith(MAGIC[ending])
    assert [p.name for p in tmp_path.iterdir()] == [f"a.{ending.upper()}"]
    assert path.stat().st_mode & 0o444


@pytest.mark.parametrize("ending", ["svg", *(pytest.param(e, marks=pytest.mark.slow) for e in ("png", "pdf"))])
def test_the_same_picture_gives_the_same_bytes(ending: str, tmp_path: Path) -> None:
    first, second = (write_picture(plots.plot_roofline(case("hybrid")), tmp_path / f"{i}.{ending}").read_bytes() for i in range(2))
    assert first == second


@pytest.mark.parametrize("name", ["a.jpg", "a", "png", "a.svg.gz", ".png"])
def test_other_endings_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="png, .svg or .pdf") as refused:
        write_picture(plots.plot_memory(case("dense")), tmp_path / name)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.svg"
    target.write_text("old")
    ax = plots.plot_memory(case("dense"))

    def fails(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fails)
        with pytest.raises(SpecError, match="cannot be written: No space left"):
            write_picture(ax, target)
    with monkeypatch.context() as patch:
        patch.setattr(Figure, "savefig", fails)
        with pytest.raises(OSError, match="No space"):
            write_picture(ax, target)
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.svg"]
    with pytest.raises(SpecError, match="cannot be written"):
        write_picture(ax, tmp_path / "nowhere" / "a.svg")
    (tmp_path / "b.svg").mkdir()
    with pytest.raises(SpecError, match="cannot be written"):
        write_picture(ax, tmp_path / "b.svg")


def test_ticks_of_logarithmic_axes() -> None:
    assert canvas.decades(0.5, 200) == [1.0, 3.0, 10.0, 30.0, 100.0]
    assert canvas.decades(1, 1e9)[:3] == [1.0, 100.0, 10_000.0]
    assert canvas.decades(3, 30) == [5.0, 10.0, 20.0]
    assert [canvas.round_step(x) for x in (1.0, 80.0, 178.0)] == [0.2, 20.0, 50.0]


@pytest.mark.parametrize("picture", PICTURES)
def test_command_line(picture: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "a.svg"
    assert main(["plot", picture, "-o", str(target), "-m", "7b", "-g", "h100", "-d", "fp8"]) == 0
    out, err = capsys.readouterr()
    assert not out
    assert picture in err
    assert target.read_bytes().startswith(MAGIC["svg"])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["roofline", "-o", "a.gif", "-m", "7b", "-g", "h100"], "must end in .png, .svg or .pdf"),
        (["roofline", "-o", "nowhere/a.svg", "-m", "7b", "-g", "h100"], "cannot be written"),
        (["rooflin", "-o", "a.svg", "-m", "7b", "-g", "h100"], "roofline"),
        (["memory", "-m", "7b", "-g", "h100"], "--output"),
        (["memory", "-o", "a.svg", "-m", "7b", "-g", "h10"], "h10"),
    ],
)
def test_command_line_refuses(args: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plot", *args]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert words in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())
