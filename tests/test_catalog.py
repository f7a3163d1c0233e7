"""Names to files: aliases, near misses, the user's own folders, and how little is opened."""

import csv
import shutil
from pathlib import Path

import pytest

from inferplan.errors import NotFound, SpecError
from inferplan.specs import catalog

DATA = Path(__file__).parent / "data"
ROOT = Path(__file__).parents[1]
HARDWARE = ROOT / "hardware"
NAMES = [(row["text"], row["name"]) for row in csv.DictReader((DATA / "hardware_names.csv").read_text().splitlines())]
SPELLINGS = [(row["spelling"], row["name"]) for row in csv.DictReader((HARDWARE / "spellings.csv").read_text().splitlines())]


@pytest.fixture
def own(tmp_path):
    """A folder of one's own on the search path, with a part that is also called h100."""
    folder = tmp_path / "own" / "hardware" / "lab"
    folder.mkdir(parents=True)
    (folder / "my-card.yaml").write_text("name: my-card\ntitle: My card\naliases: [h100, 777]\nvendor: Lab\n")
    return {catalog.PATH_VARIABLE: str(tmp_path / "own")}


@pytest.mark.parametrize(("text", "name"), NAMES)
def test_what_people_type(text, name):
    assert catalog.find("hardware", text).stem == name


def test_spellings_of_public_tables():
    assert len(SPELLINGS) > 150
    for text, name in SPELLINGS:
        assert catalog.find("hardware", text).stem == name


def test_index_is_fresh():
    assert (HARDWARE / "INDEX.csv").read_text() == catalog.index_text(HARDWARE)


@pytest.mark.parametrize("kind", [kind for kind in catalog.KINDS if (ROOT / kind / "INDEX.csv").is_file()])
def test_every_index_is_fresh(kind):
    assert (ROOT / kind / "INDEX.csv").read_text() == catalog.index_text(ROOT / kind)


def test_no_alias_stands_for_two_parts():
    seen: dict[str, str] = {}
    for entry in catalog.entries("hardware"):
        for spelling in {catalog.normalise(s) for s in (entry.name, *entry.aliases)}:
            assert seen.setdefault(spelling, entry.name) == entry.name


def test_an_index_refuses_an_alias_of_two(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(f"name: {name}\naliases: [same]\n")
    with pytest.raises(SpecError, match=r"two\.yaml: aliases: same: is already the name or alias of 'one'"):
        catalog.write_index(tmp_path)


def test_a_lookup_refuses_an_alias_of_two(tmp_path):
    folder = tmp_path / "hardware"
    folder.mkdir()
    for name in ("one", "two"):
        (folder / f"{name}.yaml").write_text(f"name: {name}\naliases: [same]\n")
    with pytest.raises(SpecError, match=r"same: is an alias of one\.yaml and two\.yaml"):
        catalog.find("hardware", "same", environ={catalog.PATH_VARIABLE: str(tmp_path)})


@pytest.mark.parametrize("text", ["h10", "H-100x", "b2000", "rtx-40900"])
def test_near_misses(text):
    with pytest.raises(NotFound, match=r"^no hardware called '.*'; near it: ") as e:
        catalog.find("hardware", text)
    assert "\n" not in str(e.value)


def test_near_misses_start_with_the_nearest():
    with pytest.raises(NotFound, match=r"^no hardware called 'h10'; near it: h100, "):
        catalog.find("hardware", "h10")


@pytest.mark.parametrize("text", ["", " ", "-", "\0", "h" * 5000, "links", "architectures", "*", "../h100", "[", "é", "nvidia"])
def test_odd_texts_are_not_found(text):
    with pytest.raises((NotFound, SpecError)):
        catalog.find("hardware", text)


def test_unknown_kind():
    with pytest.raises(SpecError, match="kind: bolts: is not one of hardware, models, formats, engines"):
        catalog.find("bolts", "h100")


def test_own_folder_shadows(own):
    assert catalog.find("hardware", "h100", environ=own).stem == "my-card"
    assert catalog.find("hardware", "777", environ=own).stem == "my-card"
    assert catalog.find("hardware", "MY_CARD", environ=own).stem == "my-card"
    assert catalog.find("hardware", "h100", environ={}).stem == "h100-sxm5-80gb"
    assert catalog.find("hardware", "h200", environ=own).stem == "h200-sxm5-141gb"
    assert "my-card" in catalog.names("hardware", environ=own)


def test_a_broken_file_does_not_stop_other_lookups(own, tmp_path):
    (tmp_path / "own" / "hardware" / "broken.yaml").write_text("a: [1\n")
    assert catalog.find("hardware", "a100", environ=own).stem == "a100-sxm4-80gb"
    assert catalog.find("hardware", "broken", environ=own).stem == "broken"


def test_an_index_that_lists_a_missing_file(own, tmp_path):
    catalog.write_index(tmp_path / "own" / "hardware")
    (tmp_path / "own" / "hardware" / "lab" / "my-card.yaml").unlink()
    with pytest.raises(SpecError, match=r"my-card\.yaml: lists a file that is not there"):
        catalog.find("hardware", "777", environ=own)


def test_paths(tmp_path, monkeypatch):
    file = tmp_path / "part.yaml"
    file.write_text("name: part\n")
    (tmp_path / "h100").mkdir()
    (tmp_path / "checkpoint").mkdir()
    monkeypatch.chdir(tmp_path)
    assert catalog.find("hardware", str(file)) == file
    assert catalog.find("hardware", file) == file
    assert catalog.find("hardware", "part.yaml") == Path("part.yaml")
    assert catalog.find("models", "./checkpoint") == Path("checkpoint")
    assert catalog.find("models", "checkpoint") == Path("checkpoint")
    assert catalog.find("hardware", "h100").stem == "h100-sxm5-80gb", "a name wins over a folder of the same name"
    with pytest.raises(NotFound, match="no file or folder called 'absent.yaml'"):
        catalog.find("hardware", "absent.yaml")


def test_hub_ids_are_names(tmp_path):
    folder = tmp_path / "models" / "llama"
    folder.mkdir(parents=True)
    (folder / "llama-3.1-70b.yaml").write_text("name: llama-3.1-70b\naliases: [meta-llama/Llama-3.1-70B]\n")
    environ = {catalog.PATH_VARIABLE: str(tmp_path)}
    for text in ("meta-llama/Llama-3.1-70B", "meta-llama--Llama-3.1-70B", "Llama 3.1 70B", "META-LLAMA/llama-3.1-70b"):
        assert catalog.find("models", text, environ=environ).stem == "llama-3.1-70b"
    with pytest.raises(NotFound, match="no model called 'meta-llama/Llama-3.1-71B'; near it: "):
        catalog.find("models", "meta-llama/Llama-3.1-71B", environ=environ)


def test_a_brand_is_optional_for_hardware_only(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "gemma.yaml").write_text("name: gemma\n")
    environ = {catalog.PATH_VARIABLE: str(tmp_path)}
    assert catalog.find("hardware", "nvidia h100").stem == "h100-sxm5-80gb"
    with pytest.raises(NotFound):
        catalog.find("models", "google/gemma", environ=environ)


@pytest.mark.parametrize(("text", "opened"), [("h100-sxm5-80gb", set()), ("H100_SXM5_80GB", set()), ("h100", {"INDEX.csv"})])
def test_how_little_is_opened(monkeypatch, text, opened):
    seen = set()
    real = catalog.read_text
    monkeypatch.setattr(catalog, "read_text", lambda path: (seen.add(Path(path).name), real(path))[1])
    monkeypatch.setattr(catalog, "load_yaml", lambda path: pytest.fail(f"{path} was opened"))
    catalog.find("hardware", text, environ={})
    assert seen == opened


def test_entries_come_from_the_index_alone(monkeypatch):
    monkeypatch.setattr(catalog, "load_yaml", lambda path: pytest.fail(f"{path} was opened"))
    entry = next(e for e in catalog.entries("hardware", environ={}) if e.name == "h100-sxm5-80gb")
    assert (entry.title, entry.group) == ("NVIDIA H100 SXM5 80GB", "NVIDIA")
    assert "h100" in entry.aliases
    assert entry.path.is_file()


def test_the_same_names_with_and_without_an_index(tmp_path):
    copy = tmp_path / "hardware"
    shutil.copytree(HARDWARE / "amd", copy / "amd")
    environ = {catalog.PATH_VARIABLE: str(tmp_path)}
    scanned = catalog.entries("hardware", environ=environ)
    catalog.write_index(copy)
    assert catalog.entries("hardware", environ=environ) == scanned
