"""The wheel and the source archive carry the data, and a wheel works in an empty environment."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)], check=True, capture_output=True)
    return out


def names(folder: str) -> set[str]:
    return {p.relative_to(ROOT).as_posix() for p in (ROOT / folder).rglob("*") if p.is_file() and not p.name.startswith(".")}


@pytest.mark.parametrize("folder", ["hardware", "models", "formats"])
def test_wheel_and_archive_carry_the_data(dist: Path, folder: str) -> None:
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        held = {n.removeprefix("inferplan/_data/") for n in wheel.namelist() if n.startswith("inferplan/_data/")}
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        packed = {n.split("/", 1)[1] for n in archive.getnames() if "/" in n}
    assert names(folder)
    assert names(folder) <= held
    assert names(folder) <= packed


def test_wheel_works_in_an_empty_environment(dist: Path, tmp_path: Path) -> None:
    env = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", str(env)], check=True)
    subprocess.run([str(env / "bin/pip"), "install", "--quiet", str(next(dist.glob("*.whl")))], check=True, capture_output=True)
    run = subprocess.run(
        [str(env / "bin/inferplan"), "estimate", "--model", "7b", "--gpu", "h100", "--dtype", "fp8", "--html", "page.html"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert "Llama 2 7B on one NVIDIA H100 SXM5 80GB" in run.stdout
    assert "uPlot" in (tmp_path / "page.html").read_text(), "pages need their assets"
    code = "import inferplan, pathlib; from inferplan.specs.catalog import find; print(find('hardware', 'a100'), find('models', '7b'))"
    run = subprocess.run([str(env / "bin/python"), "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert run.stdout.count("_data") == 2, "the data comes from the wheel"
