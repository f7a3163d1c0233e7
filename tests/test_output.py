"""Where output goes: files written whole or not at all, devices never replaced, closed and full streams, readers who leave."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from inferplan.cli.app import main
from inferplan.errors import SpecError
from inferplan.report.files import refuse_same, write_text

TOOL = [sys.executable, "-m", "inferplan"]


def shell(line: str) -> tuple[int, str]:
    """The exit code and stderr of a bash line in which `$TOOL` is the command."""
    env = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(
        ["bash", "-c", line.replace("$TOOL", '"$PYTHON" -m inferplan')], capture_output=True, text=True, env=env, check=False
    )
    return done.returncode, done.stderr


def test_a_symlink_is_followed_and_stays(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "rows.csv", tmp_path / "link.csv"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    target.unlink()
    write_text(link, "anew")
    assert target.read_text() == "anew"
    assert [p.name for p in target.parent.iterdir()] == ["rows.csv"]


def test_the_mode_of_a_replaced_file_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "rows.csv"
    target.write_text("old")
    target.chmod(0o600)
    write_text(target, "new")
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (os.mkfifo, "it is not a regular file"),
        (Path.mkdir, "it is a directory"),
        (loop, "Too many levels of symbolic links"),
    ],
)
def test_what_cannot_take_a_text_is_refused_and_stays(tmp_path: Path, build, words: str) -> None:
    target = tmp_path / "x"
    build(target)
    before = target.lstat()
    with pytest.raises(SpecError, match=words):
        write_text(target, "new")
    assert (target.lstat().st_ino, target.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize(("kind", "written"), [(stat.S_IFCHR, True), (stat.S_IFBLK, False), (stat.S_IFSOCK, False)])
def test_devices_are_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int, written: bool) -> None:
    """A stand-in for the device: a plain file whose status says what it is, so that no real node is at risk."""
    target = tmp_path / "device"
    target.write_text("")
    plain = target.stat()
    monkeypatch.setattr(Path, "stat", lambda self, **_: os.stat_result((kind | 0o666, *tuple(plain)[1:])))
    if written:
        write_text(target, "through")
    else:
        with pytest.raises(SpecError, match="is not a regular file"):
            write_text(target, "through")
    assert target.read_text() == ("through" if written else "")
    assert os.stat(target).st_ino == plain.st_ino  # noqa: PTH116 - Path.stat is replaced


def test_standard_output_by_name_is_standard_output() -> None:
    done = subprocess.run([*TOOL, "list", "hardware", "h100", "--csv", "/dev/stdout"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "name,title,group,aliases"


def test_the_input_is_never_the_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases, link = tmp_path / "e.csv", tmp_path / "link.csv"
    cases.write_text("model,params\n7b,6738415616\n")
    link.symlink_to(cases)
    for output in (cases, link):
        assert main(["validate", str(cases), "--csv", str(output)]) == 2
        assert "is the input itself" in capsys.readouterr().err
    assert cases.read_text() == "model,params\n7b,6738415616\n"
    refuse_same(tmp_path / "other.csv", cases)


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs /dev/full")
@pytest.mark.parametrize("command", ["show 7b", "show 7b --json", "--help", "list models"])
def test_a_full_output_is_one_line(command: str) -> None:
    assert shell(f"$TOOL {command} > /dev/full") == (2, "inferplan: the output cannot be written: No space left on device\n")


@pytest.mark.parametrize("command", ["show 7b", "estimate -m 7b -g h100 --json", "list hardware h100", "--version"])
def test_a_closed_output_is_no_error(command: str) -> None:
    code, err = shell(f"$TOOL {command} >&-")
    assert code == 0
    assert "Traceback" not in err


@pytest.mark.parametrize("command", ["show 7b", "show 7b --json", "list models --json", "show --help", "--help"])
def test_a_reader_who_leaves_is_no_error(command: str) -> None:
    assert shell(f"$TOOL {command} | true; exit ${{PIPESTATUS[0]}}") == (0, "")


INTERRUPTED = """
import builtins, sys
from inferplan.cli.app import main
real = builtins.__import__
wanted = sys.argv[1]
def stop(name, *rest, **named):
    if name == wanted:
        raise KeyboardInterrupt
    return real(name, *rest, **named)
builtins.__import__ = stop
sys.exit(main(["show", "7b"]))
"""


@pytest.mark.parametrize("module", ["typer", "inferplan.report.screen"])
def test_an_interrupt_while_modules_load_ends_with_130(module: str) -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, module], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (130, "inferplan: interrupted")


def test_the_package_runs_by_name_and_loads_as_little_as_the_script() -> None:
    code = "import os, runpy, sys; os._exit = sys.exit; sys.argv = ['inferplan', '--version']; "
    code += "\ntry: runpy.run_module('inferplan', run_name='__main__')\nexcept SystemExit as e: assert not e.code\n"
    code += "print([m for m in ('numpy', 'pydantic', 'yaml', 'rich.table', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0].startswith("inferplan ")
    assert done.stdout.splitlines()[-1] == "[]"
