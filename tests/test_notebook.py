"""What a notebook sees: results as HTML and short text, completion, near misses, one call for each answer, and the two notebooks."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inferplan as ip
from inferplan.report.faces import FACES, NODES, html_of

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
GOAL = {
    "model": "llama-3.1-8b", "traffic": {"rate_per_s": 20.0}, "slo": "ttft.p95=300ms,tpot.p95=20ms",
    "search": {"gpus": ["l40s"], "dtype": ["fp8"]}, "proof": {"finalists": 0},
}  # fmt: skip


def an_estimate(**more: Any) -> Any:
    return ip.estimate("llama-3.1-8b", "h100", "fp8", **more)


RESULTS: dict[str, Callable[[], Any]] = {
    "estimate": an_estimate,
    "comparison": lambda: ip.compare(an_estimate(), [an_estimate(batch=8)]),
    "accelerator": lambda: ip.hardware("h100"),
    "model": lambda: ip.model("mixtral"),
    "precision": lambda: ip.precision("awq"),
    "quantization": lambda: ip.quantize("7b", "h100", ["bf16", "fp8"], ["bf16"]),
    "speculation": lambda: ip.speculate(an_estimate(), "eagle3", 0.7),
    "batching": lambda: ip.batching(an_estimate(), clients=[1, 8]),
    "served": lambda: ip.simulate(ip.requests("poisson:2", count=20), an_estimate()),
    "load curve": lambda: ip.load_curve(ip.requests("poisson:1", count=40), an_estimate(), points=3),
    "validation": lambda: ip.validate(ROOT / "examples" / "cases.csv"),
    "command": lambda: ip.launch_command(an_estimate()),
    "fit": lambda: ip.fit(ip.model("7b"), ip.hardware("h100"), ip.precision("fp8"), tokens=1000, batch=np.array([1, 8])),
    "explanation": lambda: an_estimate().explain("tpot"),
    "plan": lambda: ip.plan(GOAL),
}
DRAWN = ("estimate", "comparison", "quantization", "speculation", "batching", "served", "load curve", "validation", "plan")


class Checked(HTMLParser):
    """Tags that open and close in order, and no script, link or colour of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "iframe", "link", "img")
        assert not any("color:" in (v or "") or (k or "").startswith("on") for k, v in attrs)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def words(html: str) -> str:
    page = Checked()
    page.feed(html)
    page.close()
    assert not page.open
    return " ".join(page.words)


class Printer:
    def text(self, text: str) -> None:
        self.said = text


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_shows_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as ipykernel does
    found, printer = RESULTS[name](), Printer()
    html = found._repr_html_()
    assert words(html).strip()
    assert len(html) < 60_000
    type(found).__dict__["_repr_pretty_"](found, printer, False)
    assert 0 < len(printer.said) < 8_000
    assert "\x1b" not in printer.said
    assert all(line == line.rstrip() for line in printer.said.splitlines())


def test_no_kind_of_result_is_left_out() -> None:
    kinds = {f"{type(make()).__module__}.{type(make()).__qualname__}" for make in RESULTS.values()}
    bases = {"inferplan.report.notebook.Estimate": "inferplan.deployment.Estimate"}
    assert {bases.get(k, k) for k in kinds} == set(FACES)


@pytest.mark.parametrize("name", DRAWN)
def test_results_have_a_picture_and_rows(name: str, tmp_path: Path) -> None:
    found = RESULTS[name]()
    picture = ip.plot(found)
    data, look = picture._repr_png_()
    assert data.startswith(b"\x89PNG")
    assert len(data) < 100_000
    assert look["width"] > 200
    assert picture.save(tmp_path / "p.svg").read_text().count("<svg") == 1
    assert len(ip.frame(found)) >= 1
    assert repr(picture).startswith("Picture('")


def test_texts_of_users_are_escaped() -> None:
    wild = "<script>alert(1)</script>"
    part = ip.hardware("h100").model_copy(update={"title": wild})
    model = ip.model("7b").model_copy(update={"title": wild, "note": wild})
    for found in (ip.estimate(model, part, "fp8"), part, model, ip.estimate(model, part, "fp8").explain("tpot")):
        html = found._repr_html_()
        assert "<script" not in html
        words(html)


def test_a_large_tree_is_cut_and_says_so() -> None:
    html = html_of(ip.estimate("deepseek-v3", "h200", "fp8", parallel=8).explain("tpot"))
    assert html.count("<details") + html.count("<div") <= NODES + 10
    assert "deeper nodes are not shown" in html


def test_names_and_specs_give_the_same_estimate() -> None:
    spec = ip.estimate(ip.model("7b"), ip.hardware("h100"), ip.precision("fp8"), parallel=ip.Parallel(tp=2))
    assert ip.estimate("7b", "h100", "fp8", parallel=2).tpot_s == spec.tpot_s
    assert ip.estimate("7b", "h100").precision.name == "fp16"
    with pytest.raises(ip.SpecError, match="name the precision"):
        ip.estimate(ip.model("7b"), "h100")


def test_a_sweep_is_one_call() -> None:
    axes = {"model": "7b", "hardware": "h100", "batch": "1,8"}
    assert ip.sweep(**axes).equals(ip.sweep(ip.Space.from_mapping(axes)))
    with pytest.raises(ip.SpecError, match="give one of the two"):
        ip.sweep(ip.Space.from_mapping(axes), batch=2)


def test_simulated_under_an_estimate_is_simulated_under_its_parts() -> None:
    from inferplan.serving.protocol import case_steps

    e, asked = an_estimate(), ip.requests("poisson:2", count=30)
    schedule = ip.Schedule.of(e.capacity)
    one = ip.simulate(asked, e)
    steps = ip.simulate(asked, case_steps(e, schedule, asked.longest), schedule)
    assert np.array_equal(one.finish_s, steps.finish_s)
    assert one.e2e_s == pytest.approx(steps.e2e_s + e.prompt_front_end_s, rel=1e-12)


def test_only_public_names_are_listed_and_each_is_explained() -> None:
    assert set(dir(ip)) == {*ip.__all__, "__version__"}
    assert ip.__all__ == sorted(ip.__all__)
    for name in ip.__all__:
        found = getattr(ip, name)
        if inspect.isfunction(found) or inspect.isclass(found):
            assert (inspect.getdoc(found) or "").strip(), name
    assert "Raises NotFound" in (ip.estimate.__doc__ or "")
    assert list(inspect.signature(ip.estimate).parameters)[:3] == ["model", "hardware", "precision"]


@pytest.mark.parametrize("found", [ip.model("7b"), ip.hardware("h100"), ip.precision("fp8")], ids=lambda f: type(f).__name__)
def test_completion_offers_what_is_ours(found: Any) -> None:
    offered = dir(found)
    assert not {"parse_obj", "model_json_schema", "construct", "model_fields"} & set(offered)
    assert "name" in offered
    for name in offered:
        getattr(found, name)


@pytest.mark.parametrize(("wrong", "near"), [("estmate", "estimate"), ("sweeep", "sweep"), ("Plann", "Plan")])
def test_a_wrong_name_gives_near_misses(wrong: str, near: str) -> None:
    with pytest.raises(AttributeError, match=f"near it: .*{near}"):
        getattr(ip, wrong)


def test_errors_are_one_line_in_a_notebook() -> None:
    with pytest.raises(ip.NotFound) as caught:
        ip.hardware("h10")
    assert caught.value._render_traceback_() == [f"NotFound: {caught.value}"]
    assert "h100" in str(caught.value)


def test_importing_stays_quick() -> None:
    heavy = "numpy", "pandas", "pydantic", "rich"
    code = f"import sys, inferplan as ip; dir(ip); print(sorted({{m.split('.')[0] for m in sys.modules}} & {set(heavy)}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ})
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_the_notebooks_are_small_and_have_their_outputs(path: Path) -> None:
    assert path.stat().st_size < 300_000
    cells = json.loads(path.read_text())["cells"]
    code = [c for c in cells if c["cell_type"] == "code"]
    assert [c["execution_count"] for c in code] == list(range(1, len(code) + 1))
    assert sum(bool(c["outputs"]) for c in code) >= len(code) - 2
    assert not any(o["output_type"] in ("error",) or o.get("name") == "stderr" for c in code for o in c["outputs"])
    assert not re.search(r"\\u001b|/tmp/|/home/|/root/", path.read_text())


def test_runs_on_an_estimate_have_its_front_end() -> None:
    e = an_estimate()
    found = ip.simulate(ip.requests("poisson:2", count=20), e)
    assert np.asarray(found.front_s) == pytest.approx(np.full(20, e.prompt_front_end_s), rel=1e-12)
    assert "host and front end take beside the steps" in html_of(found)
    curve = ip.load_curve(ip.requests("poisson:1", count=20), e, points=3)
    assert [s["front_end_s"] for _, s in curve.points] == pytest.approx([e.prompt_front_end_s] * 3, rel=1e-12)
    assert "host and front end take beside the steps" in html_of(curve)


def test_there_are_two_notebooks() -> None:
    assert [p.name for p in NOTEBOOKS] == ["from-model-card-to-plan.ipynb", "reading-a-roofline.ipynb"]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
@pytest.mark.filterwarnings("ignore")
def test_the_notebooks_run_again_and_say_the_same(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    package = str(Path(ip.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])]))
    kept = nbformat.read(path, as_version=4)
    ran = nbformat.read(path, as_version=4)
    NotebookClient(ran, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    for was, now in zip(kept.cells, ran.cells, strict=True):
        assert texts(was) == texts(now), was.source


def texts(cell: Any) -> list[str]:
    return [text for o in cell.get("outputs", []) for text in (o.get("text"), (o.get("data") or {}).get("text/plain")) if text]
