"""Pages of `--html`: what they say, that nothing in them runs that is not theirs, and how they behave in a browser."""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferplan.cli.app import main
from inferplan.errors import escaped
from inferplan.explain import Node
from inferplan.explain.node import derived, leaf
from inferplan.report.html.figures import Drawing, chart_html
from inferplan.report.html.page import Axis, Bar, Bars, Chart, Fact, Mark, Page, Part, Series, Titled
from inferplan.report.html.recorded import recorded, told
from inferplan.report.html.render import ASSETS, rendered, sort_key
from inferplan.report.html.thin import MOST, thinned
from inferplan.report.html.trees import Pool
from inferplan.report.screen import table
from inferplan.units import show

ROOT = Path(__file__).parents[1]
EVIL = "<script>alert(1)</script>"
WORSE = "</script><img src=x onerror=alert(2)>&\"'"
VOID = {"meta", "link", "br", "img", "hr", "input"}
ESTIMATE = ["estimate", "-m", "7b", "-g", "h100", "-d", "fp8"]
PLAN = ["plan", "-m", "llama-3.1-8b", "--rate", "20", "--peak", "45", "--slo", "ttft.p95=300ms,tpot.p95=20ms", "--gpu", "h100,l40s",
        "--dtype", "fp8", "--tp", "1", "--finalists", "0", "--growth", "0.03", "--months", "12"]  # fmt: skip
COMMANDS = {
    "estimate": ESTIMATE,
    "compare": ["compare", "-m", "7b", "-g", "h100,a100", "-d", "bf16,fp8"],
    "plan": PLAN,
    "simulate": ["simulate", "-m", "7b", "-g", "a100", "--rate", "2", "--requests", "300", "--slo", "ttft=500ms,tpot=50ms"],
    "validate": ["validate", "examples/serving.csv"],
}

OTHERS = {
    "batching": ["batching", "-m", "7b", "-g", "h100"],
    "load-curve": ["load-curve", "-m", "7b", "-g", "a100", "--rate", "1", "--requests", "100", "--isl", "256", "--osl", "32",
                   "--points", "4", "--slo", "ttft=500ms,tpot=40ms"],
    "quantize": ["quantize", "-m", "7b", "-g", "h100,a100"],
    "speculate": ["speculate", "-m", "llama-3.1-70b", "--draft", "8b", "-g", "h100", "--gpus", "4", "--accept", "0.8"],
    "pareto": ["pareto", "--model", "llama-3.1-70b,llama-3.1-8b", "--gpu", "h100", "--dtype", "fp8", "--tp", "1,2,4", "--batch", "1,8,64"],
    "sweep": ["sweep", "--model", "llama-3.1-8b", "--gpu", "h100,l40s", "--dtype", "fp8", "--batch", "1,8"],
}  # fmt: skip
EVERY = [*COMMANDS, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]


class Parsed(HTMLParser):
    """What stands in a page: tags with attributes, ids, headings, cells, scripts, and text outside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        last = self.open.pop()
        assert last == tag, f"</{tag}> closes <{last}>"

    def handle_data(self, data: str) -> None:
        inside = self.open[-1] if self.open else ""
        (self.scripts if inside == "script" else self.styles if inside == "style" else self.text).append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def data(self) -> Any:
        return json.loads(self.scripts[0])


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The page of a command, made once."""
    folder = tmp_path_factory.mktemp("pages")

    def page(name: str) -> Path:
        path = folder / f"{name}.html"
        if not path.exists():
            run = [sys.executable, "-m", "inferplan", *(COMMANDS | OTHERS)[name], "--html", str(path)]
            subprocess.run(run, check=True, cwd=ROOT, capture_output=True)
        return path

    return page


def hash_of(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def sound(text: str) -> Parsed:
    """A page that is well formed and asks nothing of anyone; returns it parsed."""
    page = Parsed(text)
    assert page.open == []
    assert text.startswith("<!doctype html>")
    assert page.named("html") == [{"lang": "en"}]
    targets = [a[name] for _, a in page.tags for name in ("src", "href", "srcset", "action", "poster", "data") if name in a]
    assert targets == ["#answer"], "the only link leads within"
    assert not [a for _, a in page.tags for name in a if name.startswith("on") or name == "style"], "policy would block them"
    policy = next(a["content"] for a in page.named("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert [s for s in re.findall(r"'sha256-[^']*'", policy)] == [
        hash_of(page.scripts[1]),
        hash_of(page.scripts[2]),
        hash_of(page.styles[0]),
    ]
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert {a["aria-labelledby"] for _, a in page.tags if "aria-labelledby" in a} <= set(ids)
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))
    assert text.count("<table") == text.count("<caption") > 0
    assert all(a.get("scope") in ("col", "row") for a in page.named("th"))
    assert len(text) < 2e6
    return page


@pytest.mark.parametrize("name", EVERY)
def test_pages_are_sound(pages: Callable[[str], Path], name: str) -> None:
    page = sound(pages(name).read_text())
    for chart in page.data["charts"]:
        for axis in (chart["x"], chart["y"]):
            assert axis["unit"] or re.search("requests|replicas|tokens|months|step|devices|clients|batch|speed-up", axis["label"]), (
                "an axis has its unit"
            )
        for s in chart["series"]:
            assert 0 < len(s["x"]) == len(s["y"]) <= MOST
            assert all(
                low <= y <= high for low, y, high in zip(s.get("low", ()), s["y"], s.get("high", ()), strict=False) if low is not None
            )


def test_the_page_says_what_the_screen_says(pages: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(Parsed(pages("estimate").read_text()).text)
    assert main(ESTIMATE) == 0
    words = re.sub(r"[^\S\n]+", " ", capsys.readouterr().out).split()
    gone = re.sub(r"\s+", "", text)
    assert [w for w in words if w not in gone and not set(w) <= {"\u2500"}] == []
    assert main([*ESTIMATE, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for name in ("tpot_s", "ttft_s", "tpot_low_s", "tpot_high_s", "floor_tpot_s", "e2e_s"):
        assert show(found[name], "s") in text


def made(title: str = "T", words: str = "w") -> Page:
    """A page with a text at every place that takes one."""
    tree = derived(
        "both",
        "one + two",
        "s",
        leaf("one", 1.0, "s", words),
        derived("two", "three * 2", "s", leaf("three", np.array([1.0, 2.0]), "s", words)),
    )
    chart = Chart(title, Axis(words, "s"), Axis(words, "B", log=True), [Series(words, [1, 2], [1e9, 2e9], "blue", names=[words, words])],
                  [Mark("x", 1.0, words)], words)  # fmt: skip
    bars = Bars(title, Axis(words, "s"), [Bar(words, [Part(words, 1.0, "blue"), Part("b", 2.0, "green")], words, 0.5, (2.0, 4.0))], words,
                [Mark("x", 3.0, words)])  # fmt: skip
    grid = Titled(title, table((words, "b"), [(words, "1 ms"), ("x", words)], right=(1,)))
    inputs = Titled("", table(("", ""), [(words, words)]))
    return Page(words, title, words, [words], [("", [Fact(words, words, words, tree)]), (words, [Fact(words, words)])], [inputs, words],
                [chart, bars], [grid, words])  # fmt: skip


@pytest.mark.parametrize("evil", [EVIL, WORSE, "<!--", "]]>", "$title ${data} $$", "\u2028\u2029\x00", "\u202e\x1b[31m", "&lt;b&gt;"])
def test_text_of_others_stays_text(evil: str) -> None:
    tame, wild = sound(rendered(made("w", "w"))), sound(rendered(made(evil, evil)))
    assert [tag for tag, _ in wild.tags] == [tag for tag, _ in tame.tags]
    assert "".join(wild.text).count(escaped(evil)) >= 20
    assert wild.data["charts"][0]["title"] == escaped(evil)
    assert wild.scripts[1:] == tame.scripts[1:]


def test_cells_are_sorted_by_their_first_number() -> None:
    cells = ["1.95 s (1.3-3.6)", "188 ms (143-407)", "50.2 ms (42-60)", "no", "1.07 s (0.84-2.0)"]
    assert [sort_key(c) for c in cells] == [1.95, 0.188, pytest.approx(0.0502), None, 1.07]


def test_a_mark_that_a_logarithmic_axis_has_no_place_for_is_left_out() -> None:
    drawing, marks = Drawing(), [Mark("x", 0.0, "nothing"), Mark("x", 2.0, "two"), Mark("y", 0.0, "zero")]
    chart_html(Chart("t", Axis("x", log=True), Axis("y"), [Series("s", [1.0, 3.0], [1.0, 2.0], "blue")], marks), drawing)
    assert [m["label"] for m in drawing.charts[0]["marks"]] == ["two", "zero"]


def test_names_from_files_stay_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "<img src=x onerror=alert(3)>.yaml"
    own = re.sub(r"^aliases:\n(?:  - .*\n)+", "", (ROOT / "models/llama/llama-2-7b.yaml").read_text(), flags=re.MULTILINE)
    own = own.replace("name: llama-2-7b", f"name: {json.dumps(model.stem)}").replace("title: Llama 2 7B", f"title: {json.dumps(EVIL)}")
    model.write_text(own)
    page = tmp_path / "page.html"
    assert main(["estimate", "-m", str(model), "-g", "h100", "--html", str(page)]) == 0, capsys.readouterr().err
    assert EVIL in "".join(sound(page.read_text()).text)
    lines = (ROOT / "examples" / "serving.csv").read_text().splitlines()
    place = lines[0].split(",").index("case") if "case" in lines[0].split(",") else 0
    cells = [line.split(",") for line in lines[1:]]
    for i, row in enumerate(cells):
        row[place] = f"{WORSE.replace(chr(34), '')} {i}"
    cases = tmp_path / "cases.csv"
    cases.write_text("\n".join([lines[0], *(",".join(row) for row in cells)]))
    assert main(["validate", str(cases), "--html", str(page)]) == 0
    assert "onerror=alert(2)" in "".join(sound(page.read_text()).text)


@given(st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), max_size=400), st.integers(8, 60))
def test_thinning_keeps_ends_and_extremes(values: list[float], most: int) -> None:
    kept = thinned(values, most)
    assert kept.size <= most
    assert (np.diff(kept) > 0).all()
    found, some = np.array(values), np.isfinite(values).any() if values else False
    if values:
        assert kept[0] == 0
        assert kept[-1] == len(values) - 1
    if some:
        assert np.nanmin(found[kept]) == np.nanmin(found)
        assert np.nanmax(found[kept]) == np.nanmax(found)


def test_a_long_run_is_thinned_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "long.html"
    run = [
        "simulate",
        "-m",
        "7b",
        "-g",
        "h100",
        "--arrivals",
        "poisson:20",
        "--requests",
        "6000",
        "--isl",
        "64",
        "--osl",
        "8",
        "--html",
        str(page),
    ]
    assert main(run) == 0, capsys.readouterr().err
    found = sound(page.read_text())
    assert "6,000 points: of each of 999 equal stretches the lowest and the highest are drawn." in found.text
    assert max(len(s["x"]) for c in found.data["charts"] for s in c["series"]) <= MOST


def test_a_tree_has_each_node_once_and_whole() -> None:
    from inferplan.deployment import estimate
    from inferplan.explain import explain
    from inferplan.names import hardware, model, precision

    node, pool = explain("e2e", estimate(model("7b"), hardware("h100"), precision("fp8"))), Pool()
    root = pool.add(node)
    assert len(pool.entries) == len(set(pool.entries)) < sum(1 for _ in node.walk())

    def same(node: Node, place: int) -> bool:
        label, _, equation, source, children = pool.entries[place]
        alike = (label, equation, source) == (node.label, node.equation, node.source)
        return alike and len(children) == len(node.children) and all(map(same, node.children, children))

    assert same(node, root)


def test_every_headline_number_is_what_its_tree_gives() -> None:
    from inferplan.deployment import estimate
    from inferplan.names import hardware, model, precision
    from inferplan.report.html.estimate import facts
    from inferplan.specs.parallel import Parallel
    from inferplan.units import parse

    cases = (
        ("7b", "h100", Parallel(), 1), ("llama-3.1-70b", "h100", Parallel(tp=4, dp=2), 8), ("llama-3.1-8b", "a100", Parallel(pp=2), 4),
        ("deepseek-v3", "h200", Parallel(tp=1, dp=8, ep=8), 16),
    )  # fmt: skip
    for name, part, ways, batch in cases:
        e = estimate(model(name), hardware(part), precision("fp8"), parallel=ways, batch=batch)
        found = facts(e)
        assert len(found) >= 9
        for fact in found:
            assert fact.tree is not None
            number, _, unit = fact.value.replace(",", "").partition(" ")
            shown = float(number) / 100 if unit == "%" else parse(fact.value.replace(",", ""), fact.tree.unit) if unit else float(number)
            assert fact.tree.mean == pytest.approx(shown, rel=6e-3, abs=6e-3 if unit == "%" else 0), (name, fact.label)


def test_a_plan_opens_to_its_own_numbers() -> None:
    from inferplan.planner.plan import plan
    from inferplan.report import opened

    measured = {
        "traffic": {"rate_per_s": 200.0, "peak_per_s": 800.0, "growth_per_month": 0.02, "months": 6.0}, "safety": {"buffer": 0.2},
        "measured": {"rate_per_s": 12.0, "gpus": 2}, "search": {"gpus": ["h100"]},
    }  # fmt: skip
    searched = {
        "model": ["llama-3.1-8b"], "traffic": {"rate_per_s": 20.0, "peak_per_s": 60.0}, "slo": "ttft.p95=500ms,tpot.p95=30ms",
        "search": {"gpus": ["h100"], "dtype": ["fp8"], "tp": [1]}, "proof": {"finalists": 0},
    }  # fmt: skip
    for goal in (measured, {**measured, "money": {"prices": {"h100": 2.5}, "node_gpus": 8}}, searched):
        found = plan(goal)
        f, b = found.best.fleet, found.best.bill
        assert b is not None
        pairs = [(opened.replicas, f.replicas), (opened.at_peak, f.at_peak),
                 (opened.gpus, f.gpus), (opened.billed_gpus, f.billed_gpus), (opened.usd_per_h, f.usd_per_h),
                 (opened.usd_per_month, b.usd_per_month), (opened.usd_per_million_blended_tokens, b.usd_per_million_blended_tokens),
                 (opened.planned_peak, found.demand.planned_peak_per_s)]  # fmt: skip
        for tree, known in pairs:
            assert tree(found).value == pytest.approx(known, rel=1e-12)


def test_runs_and_validations_open_to_their_own_numbers() -> None:
    from inferplan.calibrate.cases import Case
    from inferplan.calibrate.summary import summary
    from inferplan.calibrate.validate import Outcome
    from inferplan.report import opened

    rows = [Outcome(Case("", "tpot_s", v, {}, Path()), p) for v, p in ((1.0, 1.1), (2.0, 1.0), (3.0, 3.3), (4.0, 4.1))]
    s = summary(rows)
    for share, known in ((0.5, s.median_error), (0.9, s.p90_error), (1.0, s.worst_error)):
        node = opened.error_quantile(rows, "error", share)
        assert node is not None
        assert node.value == pytest.approx(known)
    signed = opened.error_quantile(rows, "error", 0.5, signed=True)
    assert signed is not None
    assert signed.value == pytest.approx(s.signed_median)
    assert opened.error_quantile([Outcome(Case("", "params", 0.0, {}, Path()), 1.0)], "error", 0.5) is None


def test_a_run_that_served_nothing_has_a_page() -> None:
    from dataclasses import replace

    from inferplan.cli.options import Asked
    from inferplan.cli.serving_options import Traffic, prepared
    from inferplan.report.html import simulate
    from inferplan.serving.summary import summary

    ready = prepared(Asked("7b", "a100"), Traffic(rate=2.0, requests=5))
    whole = ready.run(ready.requests, series=True)
    none = replace(whole, finish_s=np.full(5, np.nan), partial=True)
    page = sound(rendered(simulate.page(ready.estimate, none, summary(none), ready.source)))
    assert "Interrupted before any request was served." in page.text
    assert page.data["charts"] == []


def test_a_screen_is_taken_apart_at_its_sentence() -> None:
    def show_it(out: Any) -> None:
        out.print("Head", style="bold")
        out.print(table(("", ""), [("model", "m")]))
        out.print("\nThe answer.")
        out.print("because")
        out.print("\nMoney at the mean")
        out.print(table(("a", "b"), [("1", "2")]))
        out.print("")
        out.print("A remark.\nAnother.")

    found = told(recorded(show_it), "The answer.")
    assert found.headline == "Head"
    assert [p.grid.rows for p in found.asked if isinstance(p, Titled)] == [[["model", "m"]]]
    assert found.why == ["because"]
    assert [p.title if isinstance(p, Titled) else p for p in found.rest] == ["Money at the mean", "A remark.", "Another."]


@pytest.mark.parametrize("name", [*COMMANDS, *OTHERS])
def test_a_wrong_ending_is_refused_before_anything_is_done(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "page.pdf"
    assert main([*(COMMANDS | OTHERS)[name], "--html", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "must end in .html or .htm" in err
    assert not path.exists()


def test_what_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ESTIMATE, "--html", str(tmp_path / "none" / "page.html")]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert list(tmp_path.iterdir()) == []


def test_pages_load_only_when_asked_for() -> None:
    code = (
        "import sys; from inferplan.cli.app import main; main(['estimate', '-m', '7b', '-g', 'h100']); "
        "sys.exit(any(n.startswith('inferplan.report.html') or n in ('matplotlib', 'pandas') for n in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True).returncode == 0


def test_the_library_is_whole_and_licensed() -> None:
    assert "MIT" in (ASSETS / "uplot" / "LICENSE").read_text()
    assert "1.6.32" in (ASSETS / "uplot" / "uPlot.iife.min.js").read_text()[:200]
    assert "uPlot 1.6.32" in (ROOT / "THIRD_PARTY.md").read_text()


# In a browser.

ARGUMENTS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's Chromium or another one that is there; without one the tests are left out, or fail where it is required."""
    found = next((p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name))), None)
    if found is None:
        reason = "no Chromium is installed (apt-get install chromium)"
        if os.environ.get("INFERPLAN_BROWSER") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=found, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture
def opened_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a file; afterwards there was no message, no error and no request but for the file itself."""
    troubles: list[str] = []
    contexts = []

    def opened(path: Path, *, width: int = 1280, scheme: str = "light") -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: troubles.append(f"console: {m.text}"))
        page.on("pageerror", lambda e: troubles.append(f"error: {e}"))
        page.on("request", lambda r: troubles.append(f"request: {r.url[:100]}") if r.url != path.as_uri() else None)
        page.goto(path.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert troubles == []


def until(page: Any, expression: str) -> None:
    """Wait until an expression is true; the page's policy forbids the browser's own way, which evaluates text."""
    for _ in range(200):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(25)
    pytest.fail(f"never true: {expression}")


@pytest.mark.browser
def test_tables_sort_and_trees_open(
    pages: Callable[[str], Path], opened_page: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    page = opened_page(pages("estimate"))
    assert main([*ESTIMATE, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    answer = page.locator("#answer").inner_text()
    assert show(found["ttft_s"], "s") in answer
    fact = page.locator("details.fact:has(.name:text-is('TPOT'))")
    assert fact.locator(".value").inner_text() == show(found["tpot_s"], "s")

    table_of = page.get_by_role("region", name="Where a decode step goes")
    heading = table_of.locator("th", has_text="time")
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    up = table_of.locator("tbody tr").evaluate_all("rows => rows.map(r => Number(r.cells[1].dataset.v))")
    assert up == sorted(up)
    heading.locator("button").press("Enter")
    assert heading.get_attribute("aria-sort") == "descending"
    down = table_of.locator("tbody tr").evaluate_all("rows => rows.map(r => Number(r.cells[1].dataset.v))")
    assert down == sorted(up, reverse=True)
    assert len(set(down)) > 3
    assert table_of.locator("th[aria-sort=ascending]").count() == 0

    fact.locator("summary").first.click()
    assert "mean(step_s)" in fact.locator(".equation").inner_text()
    depth = 0
    while (closed := fact.locator("details.node:not([open])")).count() and depth < 12:
        closed.last.locator("> summary").press("Enter")
        until(page, "[...document.querySelectorAll('.node[open]')].every(n => n.children.length > 1)")
        depth += 1
    assert depth > 4
    assert fact.locator(".leaf .source").last.inner_text()


@pytest.mark.browser
def test_charts_answer_to_mouse_keys_and_buttons(pages: Callable[[str], Path], opened_page: Callable[..., Any]) -> None:
    page = opened_page(pages("estimate"))
    figure = page.locator("figure", has_text="TPOT against requests at once")
    plot, tip = figure.locator(".plot"), figure.locator(".tip")
    plot.scroll_into_view_if_needed()
    box = figure.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.8)
    assert re.search(r"requests at once: [\d.]+estimate: [\d.]+ ms \(80 % from [\d.]+ to [\d.]+\)floor: [\d.]+ ms", tip.text_content())

    ink = """canvas => {
      const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
      const pen = copy.getContext("2d", { willReadFrequently: true });
      pen.drawImage(canvas, 0, 0);
      const d = pen.getImageData(0, 0, copy.width, copy.height).data;
      return d.filter((_, i) => i % 4 === 2 && d[i] > d[i - 2] + 60 && d[i + 1] > 100).length;
    }"""
    before = figure.locator("canvas").evaluate(ink)
    legend = figure.locator(".legend button", has_text="estimate")
    legend.click()
    assert legend.get_attribute("aria-pressed") == "false"
    assert figure.locator("canvas").evaluate(ink) < before / 5
    legend.press("Space")
    assert figure.locator("canvas").evaluate(ink) == pytest.approx(before, rel=0.05)

    picture = figure.locator("canvas").evaluate("c => c.toDataURL()")
    figure.get_by_role("button", name="Zoom in").click()
    assert figure.locator("canvas").evaluate("c => c.toDataURL()") != picture
    figure.get_by_role("button", name="Show the whole chart").click()
    assert figure.locator("canvas").evaluate("c => c.toDataURL()") == picture
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.3 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.7 * box["height"], steps=4)
    page.mouse.up()
    page.mouse.move(0, 0)
    assert figure.locator("canvas").evaluate("c => c.toDataURL()") != picture
    plot.focus()
    plot.press("0")
    plot.press("ArrowRight")
    plot.press("ArrowRight")
    said = figure.locator("[aria-live]").text_content()
    assert "requests at once: 2" in said
    plot.press("ArrowDown")
    assert figure.locator("[aria-live]").text_content() == said, "the floor at the same place is said together with the estimate"

    values = figure.locator("details.values")
    values.locator("summary").click()
    values.locator("table").wait_for()
    assert values.locator("th").all_inner_texts() == ["series", "requests at once", "TPOT, ms", "from", "to"]
    assert values.locator("tbody tr").count() > 20

    bars = page.locator("figure", has_text="Where the time goes")
    first = bars.locator(".part").nth(0)
    wide = float(first.get_attribute("width")[:-1])
    bars.locator(".legend button").first.click()
    assert first.get_attribute("width") == "0%"
    assert float(bars.locator(".part").nth(1).get_attribute("x")[:-1]) == 0
    bars.locator(".legend button").first.click()
    assert float(first.get_attribute("width")[:-1]) == wide


CONTRAST = """() => {
  const rgb = (t) => t.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const light = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const own = (e) => getComputedStyle(e).backgroundColor;
  const ground = (e) => { while (/, 0\\)$/.test(own(e))) e = e.parentElement; return rgb(own(e)); };
  const found = [];
  for (const e of document.querySelectorAll("main *, header *, footer *")) {
    if (e instanceof SVGElement || ![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) || !e.offsetParent) continue;
    if (e.closest(".unseen")) continue;
    const [a, b] = [light(rgb(getComputedStyle(e).color)), light(ground(e))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) found.push(e.tagName + " " + e.className + " " + ratio.toFixed(2) + " " + e.textContent.slice(0, 30));
  }
  return found;
}"""


@pytest.mark.browser
def test_themes_differ_and_are_legible(pages: Callable[[str], Path], opened_page: Callable[..., Any]) -> None:
    light, dark = "rgb(255, 255, 255)", "rgb(20, 23, 26)"
    page = opened_page(pages("estimate"))
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == light
    assert page.evaluate(CONTRAST) == []
    picture = page.locator("canvas").first.evaluate("c => c.toDataURL()")
    button = page.locator("#theme")
    assert button.inner_text() == "Dark theme"
    button.click()
    assert page.evaluate(ground) == dark
    assert page.evaluate(CONTRAST) == []
    assert page.locator("canvas").first.evaluate("c => c.toDataURL()") != picture
    assert button.inner_text() == "Light theme"
    page.emulate_media(media="print")
    assert page.evaluate(ground) == light, "paper is light"
    system = opened_page(pages("estimate"), scheme="dark")
    assert system.evaluate(ground) == dark
    system.keyboard.press("Tab")
    assert system.evaluate("document.activeElement.className") == "skip"
    system.keyboard.press("Tab")
    assert system.evaluate("getComputedStyle(document.activeElement).outlineWidth") == "3px"


@pytest.mark.browser
@pytest.mark.parametrize("name", EVERY)
def test_pages_fit_a_phone_and_paper(pages: Callable[[str], Path], opened_page: Callable[..., Any], name: str) -> None:
    page = opened_page(pages(name), width=360)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    until(page, "[...document.querySelectorAll('details.values')].every(d => d.querySelector('table'))")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.locator(".plot canvas").count() == page.locator(".plot").count()
    assert len(page.pdf(format="A4")) > 10_000
    assert page.evaluate("document.documentElement.dataset.print") is None


@pytest.mark.browser
def test_texts_of_others_do_not_run(tmp_path: Path, opened_page: Callable[..., Any]) -> None:
    path = tmp_path / "evil.html"
    path.write_text(rendered(made(EVIL + WORSE, EVIL + WORSE)))
    page = opened_page(path)
    page.on("dialog", lambda d: pytest.fail(f"it ran: {d.message}"))
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.locator(".plot").focus()
    page.locator(".plot").press("ArrowRight")
    assert EVIL in page.locator(".tip").first.text_content()
    assert page.locator("img").count() == 0


@pytest.mark.browser
def test_the_policy_lets_nothing_load(pages: Callable[[str], Path], browser: Any) -> None:
    page = browser.new_page()
    page.goto(pages("estimate").as_uri())
    assert page.evaluate("fetch('data:text/plain,x').then(() => 'allowed', () => 'blocked')") == "blocked"
    picture = """new Promise((done) => {
      const image = Object.assign(new Image(), { onload: () => done("allowed"), onerror: () => done("blocked") });
      image.src = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw==";
    })"""
    assert page.evaluate(picture) == "blocked"
    page.close()
