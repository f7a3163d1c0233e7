"""Screens and figures of the documentation, as the program and the accuracy pages have them now.

`python tools/refresh_docs.py` writes them, `--check` only says which pages are behind (exit code 1). Two things are kept:

- screens: a `text` block that begins with `$ inferplan ...` shows what that prints; a line `...` stands for lines left out;
- figures: `<!--f:NAME-->...<!--/f-->` is a figure of a page that another script writes, or of a calibration file.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
SCREEN = re.compile(r"^```text\n(\$ inferplan [^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FIGURE = re.compile(r"<!--f:([\w.-]+)-->(.*?)<!--/f-->")
LEFT_OUT = "..."


def pages() -> list[Path]:
    """The pages that are kept."""
    return [*sorted(ROOT.glob("README*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def workplace(folder: Path) -> Path:
    """A folder in which commands of the documentation find what a checkout has, and write nothing into it."""
    for path in ROOT.iterdir():
        if path.is_dir() and not path.name.startswith(".") and path.name not in ("site", "build", "dist"):
            (folder / path.name).symlink_to(path)
    return folder


def printed(command: str) -> list[str]:
    """The lines that a command writes to the standard output, as into a pipe."""
    from inferplan.cli.app import main

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        main(arguments(command))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def arguments(command: str) -> list[str]:
    """A command line of the documentation as arguments, its comment left out.

    >>> arguments("$ inferplan show 7b   # exit code 1")
    ['show', '7b']
    """
    return shlex.split(command.removeprefix("$ "), comments=True)[1:]


def kept(shown: list[str], lines: list[str]) -> list[str]:
    """A screen as it is now: the same parts of it as are shown, found again by their first lines with all figures masked.

    >>> kept(["a 1", "b 2", "...", "d 4"], ["a 5", "b 6", "c 7", "d 8", "e 9"])
    ['a 5', 'b 6', '...', 'd 8']
    """
    found, at = [], 0
    for part in _parts(shown):
        if part:
            at = _find(part[0], lines, at)
            found += lines[at : at + len(part)]
            at += len(part)
        found.append(LEFT_OUT)
    return found[:-1]


def _parts(shown: list[str]) -> Iterator[list[str]]:
    part: list[str] = []
    for line in shown:
        if line == LEFT_OUT:
            yield part
            part = []
        else:
            part.append(line)
    yield part


def _find(first: str, lines: list[str], start: int) -> int:
    wanted = _masked(first)
    place = next((i for i in range(start, len(lines)) if _masked(lines[i]) == wanted), None)
    if place is None:
        raise ValueError(f"no line like {first!r} any more")
    return place


def _masked(line: str) -> str:
    return re.sub(r"[\d.,]+ ?[munkGMT]?(?:s|i?B)?\b|[\d.,]+|\s+|[─]+", "#", line)


def with_screens(text: str, run: Callable[[str], list[str]] = printed) -> str:
    """A page with its screens as they are now; blocks of several commands, and those that are marked as not run, are none."""

    def turn(match: re.Match[str]) -> str:
        shown = [line.rstrip() for line in match[2].splitlines()]
        if any(line.startswith("$ ") for line in shown) or text[: match.start()].rstrip().endswith("-->"):
            return match[0]
        lines = kept(shown, run(match[1])) if shown else []
        return "```text\n" + "\n".join([match[1], *lines]) + "\n```"

    return SCREEN.sub(turn, text)


def with_figures(text: str, known: dict[str, str]) -> str:
    """A page with its figures as they are now; a figure that is not known is an error."""

    def turn(match: re.Match[str]) -> str:
        if match[1] not in known:
            raise ValueError(f"no figure is called {match[1]!r}; there are {', '.join(sorted(known))}")
        return f"<!--f:{match[1]}-->{known[match[1]]}<!--/f-->"

    return FIGURE.sub(turn, text)


@cache
def rows(page: str, heading: str) -> list[dict[str, str]]:
    """The table under a heading of a page, a mapping per row; columns without a name are numbered, later ones of a name have a 2.

    Without a heading, the table above the first one.
    """
    text = (ROOT / page).read_text()
    text = text.split(f"\n## {heading}", 1)[1] if heading else text
    lines = [line for line in re.split(r"\n## ", text)[0].splitlines() if line.startswith("|")]
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines if not set(line) <= set("|-")]
    head = [name or str(i) for i, name in enumerate(cells[0])]
    head = [f"{name}2" if name in head[:i] else name for i, name in enumerate(head)]
    return [dict(zip(head, line, strict=True)) for line in cells[1:]]


def row(page: str, heading: str, **wanted: str) -> dict[str, str]:
    """The one row that has these cells; a name that is none of Python's is given with its column's number, as `_0`."""
    keys = {k.removeprefix("_") if k[1:].isdigit() else k: v for k, v in wanted.items()}
    (found,) = [r for r in rows(page, heading) if all(r[k] == v for k, v in keys.items())]
    return found


def figures() -> dict[str, str]:
    """Every figure that a page may name, from the accuracy pages, the calibration and the pages of exact counts."""
    return served() | tables() | llama() | pools() | arrivals() | calibrated() | front_ends() | memory() | catalog()


def served() -> dict[str, str]:
    """Of validation/RESULTS.md."""
    page = "validation/RESULTS.md"
    found = {"served.runs": re.search(r"([\d,]+) runs", (ROOT / page).read_text())[1]}  # type: ignore[index]
    kinds = {"in": "in sample", "model": "one model out", "part": "one part out", "silicon": "AIConfigurator, silicon",
             "hybrid": "AIConfigurator, hybrid", "roofline": "the plain roofline", "constants": "two constants"}  # fmt: skip
    for quantity in ("TPOT", "TTFT"):
        for key, text in kinds.items():
            r = row(page, "All runs", _0=quantity, prediction=text)
            found |= {f"served.{quantity.lower()}.{key}": r["median"], f"served.{quantity.lower()}.{key}.predicted": _space(r["predicted"])}
            found[f"served.{quantity.lower()}.{key}.within20"] = r["20 %"]
        band = row(page, "Bands", _0=quantity, known="measured")
        found |= {f"band.{quantity.lower()}.from": _space(band["from"]), f"band.{quantity.lower()}.to": _space(band["to"])}
        found[f"band.{quantity.lower()}.held"] = _space(row(page, "Bands", _0=quantity, known="all")["held"])
    worst = rows(page, "Worst slices first, TPOT with the model left out")[0]
    model, part = worst["model"].split("/")[-1], worst["part"].removesuffix("-sxm").upper()
    found |= {"worst.model": model, "worst.weights": worst["weights"], "worst.part": part, "worst.engine": worst["engine"]}
    found |= {"worst.runs": worst["runs"], "worst.tpot": worst["model2"], "worst.ttft": worst["TTFT"]}
    return found | {"worst.held": _space(worst["held"])}


def tables() -> dict[str, str]:
    """Of validation/OFFLINE.md."""
    page = "validation/OFFLINE.md"
    whole, worst = rows(page, "All rows")[0], rows(page, "By part")[0]
    found = {f"offline.{key}": whole[key] for key in ("rows", "predicted", "median")}
    found |= {"offline.within20": whole["within 20 %"], "offline.roofline": whole["roofline median"]}
    return found | {"offline.worst.part": worst["gpu"], "offline.worst": worst["median"], "offline.worst.rows": worst["rows"]}


def llama() -> dict[str, str]:
    """Of validation/LLAMA.md."""
    page = "validation/LLAMA.md"
    text = (ROOT / page).read_text()
    found = {"llama.rows": re.search(r"([\d,]+) of the rows", text)[1], "llama.parts": re.search(r"on (\d+) parts", text)[1]}  # type: ignore[index]
    for phase in ("decode", "prefill"):
        for key, text in (("part", "one part out"), ("model", "one model out"), ("derates", "two derates")):
            found[f"llama.{phase}.{key}"] = row(page, "All rows", _0=phase, prediction=text)["median"]
    return found


def pools() -> dict[str, str]:
    """Of validation/DISAGGREGATED.md."""
    whole = rows("validation/DISAGGREGATED.md", "")
    found = {f"pools.{r['quantity'].removesuffix('_s')}": r["median"] for r in whole}
    return found | {"pools.runs": whole[0]["rows"]}


def arrivals() -> dict[str, str]:
    """Medians over served runs under arrival rates, which nothing was fitted to, of validation/OPEN_LOOP.md."""
    whole = [r for r in rows("validation/OPEN_LOOP.md", "") if r["statistic"]]
    return {f"open.{r['quantity'].removesuffix('_s')}.{r['statistic']}": r["median"] for r in whole}


def calibrated() -> dict[str, str]:
    """Of validation/CALIBRATE.md."""
    match = re.search(r"(\d+) of (\d+) come down to half or less", (ROOT / "validation/CALIBRATE.md").read_text())
    return {"calibrate.half": match[1], "calibrate.of": match[2]}  # type: ignore[index]


def front_ends() -> dict[str, str]:
    """What host and front end take for a prompt, of calibration/serving.yaml."""
    engines = yaml.safe_load((ROOT / "calibration/serving.yaml").read_text())["engines"]
    found = {
        f"front.{name}": f"{float(e['per_prompt_layer'].split()[0]) / 1e3:.2g} ms" for name, e in engines.items() if "per_prompt_layer" in e
    }
    return found | {"front.token": engines["vllm"]["per_input_token"]}


def memory() -> dict[str, str]:
    """Of docs/memory.md, whose table tests hold to the code."""
    match = re.search(r"\| weights per GPU \| (\d+) of (\d+) within 1.5 %", (ROOT / "docs/memory.md").read_text())
    return {"memory.weights": match[1], "memory.logs": match[2]}  # type: ignore[index]


def catalog() -> dict[str, str]:
    """How much the catalog holds."""
    found = {}
    for kind, word in (("hardware", "parts"), ("models", "models")):
        with (ROOT / kind / "INDEX.csv").open(newline="") as file:
            lines = [r for r in csv.DictReader(file) if r["title"]]
        found |= {f"catalog.{word}": str(len(lines)), f"catalog.{word}.groups": str(len({r["group"] for r in lines} - {"generic"}))}
    return {k.replace("parts.groups", "makers").replace("models.groups", "families"): v for k, v in found.items()}


def _space(share: str) -> str:
    """Per cent as the pages write them: `72%` as `72 %`."""
    return re.sub(r"(?<=\d)%", " %", share)


def refreshed(path: Path, known: dict[str, str]) -> str:
    """A page as it should be."""
    return with_figures(with_screens(path.read_text()), known)


def main() -> int:
    """Write what has changed, or say so."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where a page is behind")
    check = parser.parse_args().check
    os.environ.pop("COLUMNS", None)
    behind = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(workplace(Path(folder)))
        known = figures()
        for path in pages():
            text = refreshed(path, known)
            if text != path.read_text():
                behind.append(str(path.relative_to(ROOT)))
                if not check:
                    path.write_text(text)
        os.chdir(ROOT)
    print("\n".join(f"{'behind' if check else 'written'}: {name}" for name in behind) or "all pages are as they should be")
    return 1 if check and behind else 0


if __name__ == "__main__":
    sys.exit(main())
