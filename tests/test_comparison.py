"""Estimates side by side on a screen: what does not fit has no price, and prompts are counted where the cheapest is named."""

import csv
from pathlib import Path

import pytest

from inferplan.cli.app import main

LONG_PROMPTS = ["compare", "-m", "llama-3.1-70b", "-g", "h100,mi300x,b200", "--gpus", "2", "-d", "fp8", "-b", "32", "--isl", "8192"]


def test_the_cheapest_is_named_with_the_prompts_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The sentence gives what a sweep of the same load gives, in order, and a part that holds too few requests is not in it."""
    assert main(LONG_PROMPTS) == 0
    said = " ".join(capsys.readouterr().out.split())
    told = said.partition("cheapest first: ")[2].partition(". ")[0].split(", ")
    grid = f"sweep --model llama-3.1-70b --gpu h100,mi300x,b200 --tp 2 --dtype fp8 --batch 32 --isl 8192 --osl 256 -o {tmp_path}/grid.csv"
    assert main(grid.split()) == 0
    capsys.readouterr()
    with (tmp_path / "grid.csv").open() as file:
        rows = [row for row in csv.DictReader(line for line in file if not line.startswith("#")) if row["fits"] == "True"]
    expected = sorted((float(row["sustained_usd_per_million_tokens"]), row["hardware"]) for row in rows)
    assert told == [f"{name} {usd:,.2f}" for usd, name in expected]
    assert len(told) == 2


def test_what_does_not_fit_has_no_rate_and_no_price(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert main(LONG_PROMPTS) == 0
    cells = {line.split()[0]: len(line.split()) for line in capsys.readouterr().out.splitlines() if line[:4] in ("h100", "mi30", "b200")}
    assert cells["mi300x"] == cells["b200-sxm"] == cells["h100-sxm5-80gb"] + 2


def test_one_that_fits_needs_no_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "-m", "llama-3.1-70b", "-g", "h100,b200", "-d", "fp8", "-b", "32", "--isl", "8192"]) == 0
    assert "cheapest first" not in capsys.readouterr().out
