"""Every picture that there is: drawn, written in each format, legible at 80 mm, the same bytes each time, sensible at extremes."""

from __future__ import annotations

import xml.dom.minidom
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inferplan as ip
from inferplan.calibrate.cases import read_cases
from inferplan.calibrate.predict import Predictor
from inferplan.calibrate.validate import outcomes
from inferplan.cli.app import COMMANDS, main
from inferplan.cli.plot_command import ELSEWHERE, PICTURES
from inferplan.planner.sweep import sweep
from inferplan.report import plots
from inferplan.report.batching import compared, plot_batching
from inferplan.report.canvas import LONGEST, SMALL, canvas, decades, title, write_picture
from inferplan.report.comparison_plots import MOST, names_of, plot_comparison
from inferplan.report.parity import plot_parity
from inferplan.report.plan_plots import plot_plan, use
from inferplan.report.quantization_plots import plot_quantization
from inferplan.report.serving_plots import plot_curve, plot_served
from inferplan.report.speculation_plots import plot_speculation
from inferplan.report.sweep_plots import plot_frontier
from inferplan.roofline.efficiency import Efficiency
from inferplan.serving.summary import curve_of

ROOT = Path(__file__).parents[1]
WIDTH_IN, LEAST_PT = 3.15, 5.0
GROWING = {
    "model": "llama-3.1-8b", "traffic": {"rate_per_s": 20, "growth_per_month": 0.05, "months": 6}, "slo": "ttft.p95=2s,tpot.p95=60ms",
    "search": {"gpus": ["h100", "l40s"], "dtype": ["fp8"]}, "proof": {"finalists": 0},
}  # fmt: skip


def an_estimate(**more: Any) -> Any:
    return ip.estimate(ip.model("7b"), ip.hardware("h100"), ip.precision("fp8"), **more)


def a_plan(**traffic: Any) -> Any:
    return ip.plan({**GROWING, "traffic": traffic or GROWING["traffic"]})


def a_run(count: int) -> Any:
    schedule = ip.Schedule.of(an_estimate().capacity)
    requests = ip.Requests(np.arange(count) / 5.0, np.full(count, 256), np.full(count, 32), np.full(count, 32))
    return ip.simulate(requests, ip.LinearSteps(0.005, 0.0001, 1e-9, 2e-5), schedule, series=True)


def a_curve(points: int) -> Any:
    schedule = ip.Schedule.of(an_estimate().capacity)
    requests = ip.Requests(np.arange(40) / 5.0, np.full(40, 256), np.full(40, 32), np.full(40, 32))
    return curve_of(requests, lambda r: ip.simulate(r, ip.LinearSteps(0.005, 0.0001), schedule), points=points)


def some_outcomes() -> Any:
    found, _ = read_cases(str(ROOT / "examples" / "cases.csv"), {})
    return outcomes(found, Predictor(Efficiency.default()))


def quantized_answers() -> Any:
    from inferplan.cli.options import Asked
    from inferplan.cli.quantize_command import _found

    return _found(Asked("7b", "h100,l40s"), "bf16,fp8,awq", "bf16")


def a_speculation() -> Any:
    from inferplan.cli.options import Asked
    from inferplan.cli.speculate_command import _found

    return _found(Asked("llama-3.1-8b", "h100").estimate(), "eagle3", "0.7", None, None, None, None, None, False)


def frontier_of(**axes: Any) -> Any:
    found = ip.pareto(sweep(ip.Space.from_mapping({"model": "7b", "hardware": "h100", **axes}).resolved()))
    return plot_frontier(found, "decode_tokens_per_s", "sustained_tokens_per_s_per_gpu")


DRAWN: dict[str, Callable[[], Any]] = {
    **{f"{name}{which}": (lambda name=name, more=more: plots.PICTURES[name](an_estimate(**more)))
       for name in PICTURES for which, more in (("", {}), (" of one token", {"input_tokens": 1, "output_tokens": 1}),
                                                (" beyond memory", {"batch": 5000, "input_tokens": 4000}))},
    "comparison": lambda: plot_comparison([an_estimate(batch=b) for b in (1, 64)]),
    "comparison of one": lambda: plot_comparison([an_estimate()]),
    "comparison of 500": lambda: plot_comparison([an_estimate()] * 500),
    "plan that grows": lambda: plot_plan(a_plan()),
    "plan with a profile": lambda: plot_plan(a_plan(rate_per_s=20, profile=[0.5, 1, 2, 1])),
    "plan of one rate": lambda: plot_plan(a_plan(rate_per_s=1)),
    "plan of a huge rate": lambda: plot_plan(a_plan(rate_per_s=1e6)),
    "run of one": lambda: plot_served(a_run(1)),
    "run": lambda: plot_served(a_run(50), ip.Slo.parse("ttft=500ms,tpot=50ms")),
    "curve": lambda: plot_curve(a_curve(3)),
    "batching": lambda: plot_batching(compared(an_estimate(), ip.Workload(ip.Lengths.fixed(512), ip.Lengths.fixed(64)))),
    "batching beyond all": lambda: plot_batching(
        compared(an_estimate(), ip.Workload(ip.Lengths.fixed(512), ip.Lengths.fixed(64)), rate_per_s=np.array([1e6]))),
    "formats": lambda: plot_quantization(quantized_answers()),
    "speculation": lambda: plot_speculation(a_speculation()),
    "frontier": lambda: frontier_of(batch="1..64x2", precision=["bf16", "fp8"]),
    "frontier of one point": lambda: frontier_of(batch=1),
    "parity": lambda: plot_parity(some_outcomes()),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWN)
def test_it_is_legible_at_80_mm(name: str) -> None:
    """Default width 80 mm, no text under 5 pt, every axis named, nothing beyond the edge, no two titles or labels on each other."""
    ax = DRAWN[name]()
    figure = ax.figure
    assert figure.get_size_inches()[0] == pytest.approx(WIDTH_IN)
    figure.draw_without_rendering()
    edge = figure.bbox
    for panel in figure.axes:
        assert panel.get_ylabel() or panel.get_yticklabels(), "an axis without a name"
        for text in (panel.title, panel._left_title, panel.xaxis.label, panel.yaxis.label, *panel.texts):
            if text.get_text() and text.get_visible():
                assert text.get_fontsize() >= LEAST_PT
                box = text.get_window_extent()
                assert box.x0 >= edge.x0 - 2, text.get_text()
                assert box.x1 <= edge.x1 + 2, text.get_text()
        legend = panel.get_legend()
        if legend:
            box = legend.get_window_extent()
            assert box.x0 >= edge.x0 - 2
            assert box.x1 <= edge.x1 + 2
            assert min(t.get_fontsize() for t in legend.get_texts()) >= LEAST_PT
        labels = [t.get_window_extent() for t in panel.get_xticklabels() if t.get_text() and t.get_visible()]
        shown = [b for b in labels if edge.x0 - 20 <= b.x0 and b.x1 <= edge.x1 + 20]
        assert all(a.x1 <= b.x0 for a, b in zip(shown, shown[1:], strict=False)), "tick labels on each other"


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
@pytest.mark.parametrize("name", ["comparison", "plan that grows", "run"])
def test_the_same_picture_gives_the_same_bytes(name: str, kind: str, tmp_path: Path) -> None:
    first, second = (write_picture(DRAWN[name](), tmp_path / f"{i}.{kind}").read_bytes() for i in range(2))
    assert first == second
    assert len(first) > 1000


def test_the_small_text_is_not_too_small() -> None:
    assert SMALL >= LEAST_PT


@pytest.mark.parametrize(("low", "high"), [(1, 1.01), (0.9, 1.1), (150, 210), (1, 10), (1, 1e9), (1e-9, 1e12), (3, 3.0001)])
def test_logarithmic_axes_have_ticks(low: float, high: float) -> None:
    found = decades(low, high)
    assert 2 <= len(found) <= 12
    assert all(low <= t <= high * (1 + 1e-9) for t in found)


def test_names_tell_estimates_apart() -> None:
    both = [ip.estimate(ip.model("7b"), ip.hardware(part), ip.precision("fp8")) for part in ("h100", "l40s")]
    assert names_of(both) == ["h100-sxm5-80gb", "l40s"]
    assert len(names_of([both[0]] * (MOST + 1))) == MOST + 1


def test_the_use_of_a_plan_ends_within_what_it_takes() -> None:
    p = a_plan()
    places, values, words, _ = use(p)
    assert words == "months from now"
    assert places[-1] == 6
    assert values["peak"][-1] <= 100 * p.goal.safety.queueing + 1e-9
    assert np.all(np.diff(values["peak"]) > 0)


def test_plot_says_where_other_pictures_are_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(ELSEWHERE.values()) <= set(COMMANDS)
    for name, command in ELSEWHERE.items():
        assert main(["plot", name, "-m", "7b", "-g", "h100", "-o", "x.png"]) == 2
        assert f"inferplan {command} ... --plot FILE" in capsys.readouterr().err
    assert main(["plot", "roofing", "-m", "7b", "-g", "h100", "-o", "x.png"]) == 2
    assert "near it: roofline" in capsys.readouterr().err
    assert main(["plot", "--help"]) == 0
    told = capsys.readouterr().out
    assert all(f"inferplan {command} ... --plot FILE" in told for command in ELSEWHERE.values())


def test_texts_of_others_are_drawn_as_they_are(tmp_path: Path) -> None:
    with canvas() as ax:
        title(ax, "$ not {math $$ \x1b[31m")
        ax.set_xlabel("long " * 2000)
        ax.plot([0, 1], gid="points:\x1b[31m")
    write_picture(ax, tmp_path / "x.svg")
    xml.dom.minidom.parseString((tmp_path / "x.svg").read_bytes())
    assert ax.get_title(loc="left") == "$ not {math $$ \\x1b[31m"
    assert len(ax.get_xlabel()) == LONGEST


def test_comparisons_and_plans_are_drawn_by_their_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "c.svg"
    assert main(["compare", "-m", "7b", "-g", "h100,l40s", "--plot", str(picture)]) == 0
    assert "<svg" in picture.read_text()
    asked = ["plan", "-m", "7b", "-g", "h100", "--rate", "5", "--slo", "tpot.p95=50ms", "--finalists", "0", "--plot"]
    assert main([*asked, str(tmp_path / "p.pdf")]) == 0
    assert (tmp_path / "p.pdf").read_bytes().startswith(b"%PDF")
    assert main([*asked, "p.gif"]) == 2
    assert "must end in .png, .svg or .pdf" in capsys.readouterr().err
