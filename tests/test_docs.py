"""The documentation is true: every command and Python block runs, screens and figures are those of now, every link leads somewhere.

A block that cannot run here has the reason before it: `<!-- not run: REASON -->`. A command whose line ends in `# exits with 1` does so.
"""

import doctest
import importlib
import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from inferplan.cli.app import main

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import docs_site  # noqa: E402
import refresh_docs  # noqa: E402

READMES = [ROOT / "README.md", ROOT / "README.zh-CN.md"]
PAGES = [*READMES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINKED = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "calibration" / "README.md", ROOT / "hardware" / "README.md",
          *sorted((ROOT / "validation").glob("*.md"))]  # fmt: skip
SLOW = {
    "docs/calibrate.md": "a fit takes half a minute",
    "docs/how-to/dask.md": "starts Dask workers",
    "docs/plan.md": "simulates finalists under three seeds",
    "docs/accuracy.md": "predicts 497 measured values twice",
    "docs/simulate.md": "simulates a million tokens and 71 measured runs",
    "docs/how-to/compare-quantisations.md": "all formats on several parts",
    "docs/how-to/plan-a-fleet.md": "simulates finalists, and searches all parts twice",
}
FENCE = re.compile(r"^(<!-- not run: (?P<why>[^\n]+) -->\n)?(?P<indent> *)```(?P<kind>\w+)\n(?P<text>.*?)^ *```", re.MULTILINE | re.DOTALL)
PROMPTS = {"console": "$ inferplan ", "text": "$ inferplan ", "sh": "inferplan "}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, *kinds: str) -> list[str]:
    """The blocks of these languages that are to run."""
    found = [m for m in FENCE.finditer(page.read_text()) if m["kind"] in kinds]
    return ["\n".join(line.removeprefix(m["indent"]) for line in m["text"].splitlines()) for m in found if not m["why"]]


def commands(page: Path) -> list[str]:
    found = []
    for kind, prompt in PROMPTS.items():
        found += [
            (page.read_text().find(line), line) for text in blocks(page, kind) for line in text.splitlines() if line.startswith(prompt)
        ]
    return [line for _, line in sorted(found)]


def paged(pages: list[Path]) -> list[object]:
    """Pages as cases of a test, the slow ones marked."""
    return [pytest.param(p, id=name_of(p), marks=[pytest.mark.slow] if name_of(p) in SLOW else []) for p in pages]


@pytest.mark.parametrize("page", paged([p for p in PAGES if commands(p) and p != READMES[1]]))
def test_commands_run_and_screens_are_those_of_now(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(refresh_docs.workplace(tmp_path))
    monkeypatch.delenv("COLUMNS", raising=False)
    printed = {}
    for command in commands(page):
        code = main(refresh_docs.arguments(command))
        out, err = capsys.readouterr()
        assert code == (1 if command.endswith("# exits with 1") else 0), f"{command}: {err}"
        assert out or err, command
        assert "inferplan:" not in err
        printed[command] = [line.rstrip() for line in out.splitlines()]
    assert refresh_docs.with_screens(page.read_text(), printed.__getitem__) == page.read_text(), "python tools/refresh_docs.py"


@pytest.mark.parametrize("page", paged([p for p in PAGES if blocks(p, "python")]))
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(refresh_docs.workplace(tmp_path))
    for text in blocks(page, "python"):
        exec(compile(text, str(page), "exec"), {"__name__": "docs"})  # noqa: S102 - the project's own documentation


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "pycon")], ids=name_of)
def test_doctests_of_pages_hold(page: Path) -> None:
    for text in blocks(page, "pycon"):
        runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
        assert runner.run(doctest.DocTestParser().get_doctest(text, {}, str(page), None, None)).failed == 0


def test_specs_in_the_page_on_files_are_well_formed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in blocks(ROOT / "docs" / "file-forms.md", "yaml"):
        path = tmp_path / f"{yaml.safe_load(text)['name']}.yaml"
        path.write_text(text)
        assert main(["check", str(path)]) == 0, capsys.readouterr().err


def test_every_block_that_does_not_run_says_why() -> None:
    marked = [m for p in PAGES for m in re.findall(r"<!-- not run[^>]*-->\n *```\w+\n", p.read_text())]
    assert marked
    assert all(re.match(r"<!-- not run: \S.{10,} -->", m) for m in marked)
    assert all((ROOT / name).exists() and reason for name, reason in SLOW.items())


def shown_figures(page: Path) -> list[tuple[str, str]]:
    return refresh_docs.FIGURE.findall(page.read_text())


def test_figures_are_those_of_the_pages_that_scripts_write() -> None:
    named = {page: dict(shown_figures(page)) for page in PAGES if shown_figures(page)}
    known = refresh_docs.figures()
    assert {READMES[0], READMES[1], ROOT / "docs" / "accuracy.md"} <= set(named)
    for page in named:
        assert refresh_docs.with_figures(page.read_text(), known) == page.read_text(), f"{page.name}: python tools/refresh_docs.py"


@pytest.mark.slow
def test_figures_of_runs_under_arrival_rates_are_those_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    record = json.loads("\n".join(refresh_docs.printed("$ inferplan validate validation/open_loop.csv --by quantity,statistic --json")))
    found = {f"open.{g['quantity'].removesuffix('_s')}.{g['statistic']}": f"{100 * g['median_error']:.1f} %" for g in record["groups"]}
    shown = [(key, value) for page in PAGES for key, value in shown_figures(page) if key.startswith("open.")]
    assert shown
    assert all(found[key] == value for key, value in shown)


def test_no_figure_begins_a_line_where_markdown_would_take_it_for_a_block_of_html() -> None:
    assert [f"{p.name}: {line}" for p in PAGES for line in p.read_text().splitlines() if line.lstrip().startswith("<!--f:")] == []


def test_a_figure_that_nobody_writes_is_an_error() -> None:
    with pytest.raises(ValueError, match="no figure is called"):
        refresh_docs.with_figures("<!--f:nothing.such-->1<!--/f-->", {})
    with pytest.raises(ValueError, match="no line like"):
        refresh_docs.kept(["TTFT 1 ms"], ["TPOT 1 ms"])


def links(page: Path) -> list[str]:
    text = FENCE.sub("", page.read_text())
    return [m[2] for m in docs_site.LINK.finditer(text)]


def anchors(path: Path) -> set[str]:
    """Names of headings as renderers make them."""
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", re.sub(r"<!--.*?-->", "", h)).strip().lower()) for h in heads}


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_links_are_live(page: Path) -> None:
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            assert re.fullmatch(r"https://[a-z0-9.-]+\.[a-z]{2,}(:\d+)?(/[^\s<>\"]*)?", link), f"{page.name}: {link}"
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        if path.is_relative_to(ROOT / "docs") and str(path.relative_to(ROOT / "docs")) in docs_site.PAGES:
            continue  # made from the code for the site; mkdocs checks it
        assert path.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(path), f"{page.name}: {link}"


def test_links_of_readmes_work_without_the_site() -> None:
    for page in READMES:
        assert all((ROOT / link.partition("#")[0]).exists() for link in links(page) if not link.startswith("https:"))


def test_no_page_is_missing_from_the_site() -> None:
    text = (ROOT / "mkdocs.yml").read_text().split("\nnav:")[1]
    listed = re.findall(r": (\S+\.md)$", text, re.MULTILINE)
    there = {str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")}
    made = {site for site in docs_site.OUTSIDE.values() if site.endswith(".md")} | set(docs_site.PAGES)
    assert len(listed) == len(set(listed))
    assert set(listed) == there | made, "mkdocs.yml lists other pages than there are"


def test_both_readmes_say_the_same() -> None:
    english, chinese = (page.read_text() for page in READMES)
    assert commands(READMES[0]) == commands(READMES[1])  # and so run above
    assert blocks(READMES[0], "text")[0] == blocks(READMES[1], "text")[0]
    assert sorted(shown_figures(READMES[0])) == sorted(shown_figures(READMES[1]))
    assert len(re.findall(r"^## ", english, re.MULTILINE)) == len(re.findall(r"^## ", chinese, re.MULTILINE))
    assert len(re.findall(r"^\|", english, re.MULTILINE)) == len(re.findall(r"^\|", chinese, re.MULTILINE))
    assert len(re.findall(r"^- ", english, re.MULTILINE)) == len(re.findall(r"^- ", chinese, re.MULTILINE)) >= 6
    assert {link for link in links(READMES[0]) if link != "README.zh-CN.md"} <= set(links(READMES[1]))
    code = [re.sub(r"\s*#.*", "", "\n".join(blocks(page, "python", "console"))) for page in READMES]
    assert code[0] == code[1]


def test_the_readmes_say_how_to_set_up_and_test() -> None:
    for page in READMES:
        assert "make demo" in page.read_text()
        assert "make test" in page.read_text()
    assert all(f"make {what}" in (ROOT / ".ci" / "run").read_text() for what in ("test", "slow", "docs"))


def test_the_picture_of_the_readmes_is_small() -> None:
    for page in READMES:
        (target,) = [link for link in links(page) if link.endswith((".png", ".svg"))]
        assert 10_000 < (ROOT / target).stat().st_size < 150_000


def test_the_citation_names_this_version() -> None:
    import inferplan

    found = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert found["version"] == inferplan.__version__
    assert found["authors"] == [{"name": "The inferplan developers"}]
    assert all(f"version {inferplan.__version__}," in page.read_text() for page in READMES)


def test_reference_pages_have_every_command_option_term_and_formula() -> None:
    from inferplan.cli.app import COMMANDS
    from inferplan.terms import TERMS

    page = docs_site.commands()
    for name in COMMANDS:
        command, _ = docs_site.command_of(name)
        section = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
        assert all(o in section for p in command.params if p.param_type_name == "option" and not p.hidden for o in p.opts), name
    assert all(f"| `{key}` |" in docs_site.glossary() for key in TERMS)
    assert "roof_s = maximum(memory_time_s, compute_time_s)" in docs_site.equations()
    assert all(f"| {code} |" in docs_site.exit_codes() for code in (0, 1, 2, 130))
    assert all(f".{name}\n" in docs_site.python_reference() for name in importlib.import_module("inferplan").__all__)


def test_what_a_site_loads_from_elsewhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<link rel="stylesheet" href="https://a.example/x.css"><link rel=icon href=here.png><script src="//b.example/x.js"></script>'
        '<a href="https://c.example">a link is no load</a><img alt="" src="https://d.example/y.png"><script src="assets/z.js"></script>'
    )
    (tmp_path / "x.css").write_text("@font-face{src:url(https://e.example/f.woff2)} a{background:url(data:image/png;base64,xx)}")
    found = list(docs_site.foreign(tmp_path))
    assert [re.search(r"(\w)\.example", f)[1] for f in found] == ["b", "d", "a", "e"]


@pytest.mark.parametrize("module", ["docs_site", "refresh_docs", "markdown_table"])
def test_doctests_of_the_tools_hold(module: str) -> None:
    found = doctest.testmod(importlib.import_module(module))
    assert found.failed == 0


def test_docstrings_become_markdown() -> None:
    pytest.importorskip("griffe")
    assert doctest.testmod(importlib.import_module("docs_docstrings")).failed == 0
