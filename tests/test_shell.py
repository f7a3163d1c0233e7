"""The command line as a person meets it: widths, colours, pipes, completion, help, near misses, and what is said of wrong input."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from inferplan.cli.app import COMMANDS, main
from inferplan.cli.completion import MOST, SHELLS, answers, names_of, script
from inferplan.cli.examples import EXAMPLES, FIRST
from inferplan.errors import InferplanError
from inferplan.report.grid import Grid, wide, wrapped
from inferplan.report.screen import Bold, rich_console
from inferplan.specs.catalog import names
from inferplan.specs.precision import Precision

ROOT = Path(__file__).parents[1]
WIDTHS = (60, 80, 120, 200)
LEAST_COLUMNS, MOST_COLUMNS = 40, 160
SCREENS = [
    "estimate -m 7b -g h100 -d fp8",
    "estimate -m deepseek-v3 -g h200 --tp 8 -b 64 -v",
    "compare -m 7b,llama-3.1-70b -g h100,a100,l40s -d bf16,fp8",
    "batching -m 7b -g h100 -d fp8 --rate 1,5 --output-lengths exponential:256",
    "batching -m 7b -g h100 -d fp8 --concurrency 4",
    "simulate -m 7b -g h100 -d fp8 --rate 5 -n 20 --slo ttft=500ms,tpot=50ms",
    "load-curve -m 7b -g h100 -d fp8 -n 20 --points 3",
    "quantize -m 7b -g h100,l40s",
    "speculate -m llama-3.1-8b -g h100 --draft eagle3",
    "sweep --model 7b --gpu h100,a100 --batch 1,8",
    "pareto --model 7b --gpu h100,a100 --batch 1..8x2",
    "explain tpot -m 7b -g h100",
    "list hardware rtx",
    "list models qwen3",
    "list formats",
    "list engines",
    "show deepseek-v3",
    "show q4_k_m",
    "check models/llama/llama-2-7b.yaml",
    "validate examples/cases.csv",
    "plan -m llama-3.1-8b --rate 20 --slo tpot.p95=20ms -g l40s,h100 -d fp8 --finalists 0",
    "--help",
    *(f"{name} --help" for name in COMMANDS),
]


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("command", SCREENS)
def test_screens_keep_the_width(
    command: str, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """No line is longer than the screen but for a single word, none ends in blanks, no number stands apart from its unit."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(command.split()) == 0
    out, err = capsys.readouterr()
    room = min(max(columns, LEAST_COLUMNS), MOST_COLUMNS)
    for line in (out + err).splitlines():
        assert line == line.rstrip()
        assert wide(line) <= room or len(line.split()) == 1, line
    assert not re.search(r"^\s*(?:[KMGT]iB|[kMGT]B|ms|us|%)\s*$", out, re.MULTILINE), "a unit alone on a line"


TABLE = Grid(
    ("Model", "weights", "time to first token", "note"),
    [["llama-2-7b", "12.6 GiB", "1.13 s", "one two three four"], ["a-much-longer-name-70b", "131 GiB", "50.8 ms", ""]],
    "A title", frozenset({1, 2}),
)  # fmt: skip


@pytest.mark.parametrize("width", range(24, 90, 3))
def test_a_table_says_the_same_at_every_width(width: int) -> None:
    lines = TABLE.lines(width)
    text = " ".join(" ".join(lines).split())
    for row in TABLE.rows:
        for cell in row[:3]:
            assert cell in text
        assert all(word in text for word in row[3].split())
    assert all(len(line) <= width or len(line.split()) == 1 for line in lines)
    assert all(line == line.rstrip() for line in lines)


def test_words_of_two_columns_are_counted_as_such() -> None:
    lines = Grid(("Name", "note"), [["\u6a21\u578b", "\u4e00\u4e2a \u6a21\u578b " * 6]], None, frozenset()).lines(24)
    assert all(wide(line) <= 24 for line in lines)
    assert wrapped("a" * 30 + " b", 10) == ["a" * 30, "b"]


def test_control_characters_of_a_cell_do_not_reach_the_screen() -> None:
    assert "\x1b" not in "".join(Grid(("a",), [["x\x1b[31m"]], None, frozenset()).lines(20))


def test_control_characters_of_a_text_do_not_reach_a_terminal() -> None:
    out = io.StringIO()
    rich_console(out, 40, plain=False, terminal=True).print(Bold("x\x1b[31m\u202ey\nz"), style="bold")
    assert out.getvalue() == "\x1b[1mx\\x1b[31m\\u202ey\x1b[0m\n\x1b[1mz\x1b[0m\n"


def shell(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    command = [sys.executable, "-m", "inferplan", *words]
    return subprocess.run(command, capture_output=True, text=True, env={**kept, **environ}, check=False, cwd=ROOT)


def test_colours_are_only_where_they_are_wanted() -> None:
    words = ("estimate", "-m", "7b", "-g", "h100")
    assert "\x1b[" not in shell(*words).stdout
    assert "\x1b[" in shell(*words, FORCE_COLOR="1").stdout
    assert "\x1b[3" not in shell(*words, FORCE_COLOR="1", NO_COLOR="1").stdout
    assert "\x1b[" in shell(*words, FORCE_COLOR="1", NO_COLOR="").stdout


@pytest.mark.parametrize("words", ["list models", "--help", "estimate --help", "estimate -m 7b -g h100", "show h100 --json"])
def test_a_pipe_that_closes_is_no_error(words: str) -> None:
    text = f"{sys.executable} -m inferplan {words} | head -1"
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0
    assert not re.search(r"Traceback|Error|inferplan:", done.stderr)


def test_help_in_all_its_spellings(capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for words in ([], ["--help"], ["-h"], ["help"]):
        assert main(words) == 0
        said.append(capsys.readouterr().out)
    assert len(set(said)) == 1
    assert all(" ".join(line.split()) in " ".join(said[0].split()) for line in COMMANDS.values())
    for words in (["help", "estimate"], ["estimate", "-h"]):
        assert main(words) == 0
        assert "Usage: inferplan estimate" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_exit_codes_stand_in_the_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*name.split(), "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Exit codes: 0 done; 1 does not fit, or no plan; 2 wrong input, in one line on stderr; 130 interrupted." in said


def test_every_command_has_examples() -> None:
    assert list(EXAMPLES) == list(COMMANDS)
    lines = [line for each in (*EXAMPLES.values(), FIRST) for line in each]
    assert all(line.startswith("inferplan ") for line in lines)


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_examples_stand_in_the_help(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*name.split(), "--help"]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    told = " ".join(said.replace("\\\n", " ").split())
    assert all(line in told for line in (EXAMPLES[name] if name else FIRST))


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that examples of the help read."""
    for source, name in (("plan.yaml", "goals.yaml"), ("serving.csv", "runs.csv"), ("my-card.yaml", "my-card.yaml")):
        (tmp_path / name).write_text((ROOT / "examples" / source).read_text())
    (tmp_path / "config.json").write_text((ROOT / "examples" / "tiny-llama" / "config.json").read_text())
    (tmp_path / "mine.yaml").write_text("name: mine\ntitle: mine\nbase: default\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


LONG = ("plan", "calibrate")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in LONG else []) for n in ["", *COMMANDS]])
def test_examples_of_the_help_run(name: str, desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if name in ("merge", "pareto"):
        for shard in (["--shard", "1/2"], ["--shard", "2/2"]) if name == "merge" else ([],):
            assert main([*EXAMPLES["sweep"][0].split()[1:], *shard]) == 0
    for line in EXAMPLES[name] if name else FIRST:
        assert main(line.split()[1:]) == 0, line
        out, err = capsys.readouterr()
        assert out or err, line
        assert "inferplan:" not in err


WRONG = {
    "estimat": "no command called 'estimat'; near it: estimate, simulate",
    "estimate": "Missing option '--model' / '-m', such as --model 7b --gpu h100",
    "estimate -m 7bb -g h100": "no model called '7bb'; near it: 7b",
    "estimate -m 7b -g h10": "no hardware called 'h10'; near it: h100",
    "estimate -m 7b -g zzzz": "see inferplan list hardware",
    "estimate -m 7b -g h100 -d fp9": "no precision called 'fp9'; near it: fp8",
    "estimate -m 7b -g h100 -b x": "--batch: x: must be a whole number",
    "estimate -m 7b -g h100 --isl 1e9": "--isl: 1e9: must be a whole number",
    "estimate -m 7b -g h100 --overlap x": "--overlap: x: must be a number",
    "estimate -m 7b -g h100 --efficiency nope": "--efficiency: nope: is no calibration: it must be default, ideal, or a file in YAML",
    "estimate -m 7b -g h100 --network nope": "no link called 'nope'",
    "estimate -m 7b -g h100 --bacth 3": "No such option: --bacth (Possible options: --batch",
    "plan": "give --rate, --users or --trace, or a file of goals",
    "plan --rate 5": "model: is required and missing; give --model",
    "plan -m 7b --rate 5": "give --slo, such as ttft.p95=500ms",
    "plan -m 7b --rate -5 --slo tpot.p95=50ms": "--rate: -5.0: must be greater than 0",
    "plan -m 7b --rate 5 --slo tpot=x": "--slo: x: tpot needs a number with its unit, like '50 ms'",
    "plan -m 7b --rate 5 --slo tpot.p95=50ms --redundancy n+x": "--redundancy: n+x: is no rule",
    "simulate -m 7b -g h100 --scheduler nope": "--scheduler: nope: is no scheduler; there are vllm-v1",
    "simulate -m 7b -g h100 --routing nope": "--routing: nope: is no rule",
    "simulate -m 7b -g h100 --requests 0": "--requests: 0: must be from 1",
    "load-curve -m 7b -g h100 --points 1": "--points: 1: must be from 3 to 200",
    "speculate -m 7b -g h100": "Missing option '--draft', such as --draft eagle3, or a smaller model",
    "speculate -m 7b -g h100 --draft eagle3 --accept 2": "--accept: 2.0: must lie between 0 and 1",
    "sweep --model 7b --gpu h100 --tp x": "--tp: x: must be whole numbers",
    "list": "Choose from: hardware, models, formats, engines",
    "list things": "'things' is not one of 'hardware'",
    "show h10": "no hardware called 'h10'; near it: h100",
    "calibrate examples/cases.csv -o x.yaml --rows 0": "--rows: 0: must be at least 1",
    "help nothing": "no command called 'nothing'",
    "--show-completion csh": "SHELL: csh: must be one of bash, zsh, fish",
}


@pytest.mark.parametrize("command", WRONG)
def test_wrong_input_is_one_line_that_helps(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert main(command.split()) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("inferplan: ")
    assert err.count("\n") == 1
    assert WRONG[command] in err


def test_names_of_files_keep_blanks_and_letters_of_all_kinds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "mod\u00e8le \u6a21\u578b"
    folder.mkdir()
    text = (ROOT / "models" / "llama" / "llama-2-7b.yaml").read_text().replace("name: llama-2-7b", "name: mine", 1)
    (folder / "mine.yaml").write_text(text)
    assert main(["estimate", "-g", "h100", "--csv", str(folder / "out put.csv"), "-m", str(folder / "mine.yaml")]) == 0
    assert (folder / "out put.csv").read_text().startswith("schema") or (folder / "out put.csv").stat().st_size > 100
    capsys.readouterr()
    assert main(["estimate", "-m", "\u6a21\u578b", "-g", "h100"]) == 2
    assert "no model called '\u6a21\u578b'" in capsys.readouterr().err


def test_what_can_be_completed() -> None:
    assert set(answers([], "")) >= {*COMMANDS, "help"}
    assert answers([], "est") == ["estimate"]
    assert "h100-sxm5-80gb" in answers(["estimate", "--gpu"], "h100")
    assert answers(["estimate", "-g"], "a100,h100-n") == ["a100,h100-nvl", "a100,h100-nvl-94", "a100,h100-nvl-94gb"]
    assert "7b" in answers(["plan", "-m"], "7")
    assert {"fp8", "auto", "q4_k_m"} <= set(answers(["estimate", "-d"], ""))
    assert {"fp8", "int8-kv"} <= set(answers(["estimate", "--kv-dtype"], ""))
    assert "modelopt" not in answers(["estimate", "-d"], "")
    assert "vllm" in answers(["estimate", "--engine"], "v")
    assert "ib-ndr" in answers(["estimate", "--network"], "ib")
    assert answers(["estimate"], "--mod") == ["--model"]
    assert answers(["list"], "h") == ["hardware"]
    assert answers(["list", "hardware"], "h") == []
    assert answers(["plot", "-m", "7b"], "roof") == ["roofline"]
    assert answers(["validate"], "") == ["%files"]
    assert answers(["estimate", "-m"], "./mod") == ["%files"]
    assert len(answers(["show"], "")) <= MOST


def test_completed_names_are_names() -> None:
    assert set(names("hardware")) <= set(names_of("hardware"))
    assert set(names("models")) <= set(names_of("models"))
    assert {name for name in names_of("formats") if name != "auto" and not is_precision(name)} <= set(names_of("kv"))


def is_precision(name: str) -> bool:
    try:
        Precision.named(name)
    except InferplanError:
        return False
    return True


def test_names_that_a_shell_would_run_are_not_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hardware").mkdir()
    for name in ("mine-1", "$(touch x)", "a b", "a;b"):
        (tmp_path / "hardware" / f"{name}.yaml").write_text("")
    monkeypatch.setenv("INFERPLAN_PATH", str(tmp_path))
    found = names_of("hardware")
    assert "mine-1" in found
    assert not [name for name in found if set(name) & set("$ ;(")]


@pytest.mark.parametrize("index", [b"\xff\xfe", b"foo,bar\n1,2\n"])
def test_an_index_that_does_not_read_completes_nothing(tmp_path: Path, index: bytes) -> None:
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "INDEX.csv").write_bytes(index)
    found = shell(INFERPLAN_PATH=str(tmp_path), _INFERPLAN_COMPLETE="estimate\n--gpu", _INFERPLAN_CURRENT="h1")
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_completion_is_quick() -> None:
    environ = {**os.environ, "_INFERPLAN_COMPLETE": "estimate\n--gpu", "_INFERPLAN_CURRENT": "h1"}
    took = []
    for _ in range(5):
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "inferplan"], env=environ, capture_output=True, text=True, check=True)
        took.append(time.perf_counter() - start)
    assert "h100" in done.stdout.split()
    base = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import numpy, pydantic"], check=True)
        base.append(time.perf_counter() - start)
    assert min(took) < max(0.3, 2 * min(base))


@pytest.mark.parametrize("name", SHELLS)
def test_the_scripts_of_shells(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["--show-completion", f"/bin/{name}"]) == 0
    assert capsys.readouterr().out == script(name)
    assert main(["--install-completion", name]) == 0
    written = [p for p in tmp_path.rglob("*inferplan*") if p.is_file()]
    assert len(written) == 1
    assert written[0].read_text() == script(name)
    assert str(written[0]) in capsys.readouterr().out


def test_bash_completes() -> None:
    text = f"""
inferplan() {{ {sys.executable} -m inferplan "$@"; }}
eval "$(inferplan --show-completion bash)"
COMP_LINE='inferplan estimate --gpu h100-nv'; COMP_POINT=${{#COMP_LINE}}
COMP_WORDS=(inferplan estimate --gpu h100-nv); COMP_CWORD=3
_inferplan
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["h100-nvl", "h100-nvl-94", "h100-nvl-94gb"]
