"""Every command and Python block of the README and of docs/ runs, and every link to a file leads somewhere."""

import re
import shlex
from pathlib import Path

import pytest

from inferplan.cli.app import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[tuple[str, str]]:
    return [(page.name, text) for page in PAGES for kind, text in FENCE.findall(page.read_text()) if kind == language]


def commands() -> list[tuple[str, str]]:
    lines = [(page, line[2:]) for page, text in blocks("console") for line in text.splitlines() if line.startswith("$ ")]
    return [(page, line.split("#")[0].strip()) for page, line in lines if line.startswith("inferplan ")]


@pytest.mark.parametrize(("page", "command"), commands())
def test_commands_run(page: str, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    assert main(shlex.split(command)[1:]) == 0, f"{page}: {command}"
    out, err = capsys.readouterr()
    assert out
    assert "inferplan:" not in err


@pytest.mark.parametrize(("page", "text"), blocks("python"))
def test_python_blocks_run(page: str, text: str) -> None:
    exec(compile(text, page, "exec"), {})  # noqa: S102 - the project's own documentation


def test_the_screen_in_the_readme_is_the_screen(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    shown = next(text for page, text in blocks("text") if page == "README.md")
    first, *rest = [line.rstrip() for line in shown.splitlines()]
    assert main(shlex.split(first[2:])[1:]) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert printed[: len(rest)] == rest


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_to_files_are_live(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} -> {target}"


def test_the_readme_says_how_to_set_up_and_test() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text
    assert (ROOT / ".ci" / "run").read_text().count("make ") == 2
