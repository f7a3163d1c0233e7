"""Names to files: aliases, near misses, the user's own folders, and how little is opened."""

import csv
import re
import shutil
from pathlib import Path

import pytest

from inferplan.errors import NotFound, SpecError
from inferplan.readers.model_names import meant
from inferplan.readers.opening import open_model
from inferplan.specs import catalog
from inferplan.specs.model import Model
from inferplan.specs.precision import Precision

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


@pytest.mark.parametrize("text", ["", " ", "-", "\0", "h" * 5000, "links", "architectures", "*", "../h100", "[", "é", "nvidia", "gaudi"])
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


REQUANTISED = [
    ("Qwen3-32B-FP8", "qwen3-32b", "fp8-block"),
    ("someone/Qwen3-32B-FP8-dynamic", "qwen3-32b", "fp8-dynamic"),
    ("Mixtral-8x7B-Instruct-v0.1-AWQ", "mixtral-8x7b", "awq-int4-g128"),
    ("TheBloke/Llama-2-13B-GPTQ", "llama-2-13b", "gptq-int4-g128"),
    ("someone/Llama-2-13b-hf-GPTQ", "llama-2-13b", "gptq"),
    ("someone/Qwen3-14B-NVFP4", "qwen3-14b", "nvfp4"),
    ("someone/Qwen3-14B-quantized.w4a16", "qwen3-14b", "w4a16"),
    ("qwen3-14b-w4a16", "qwen3-14b", "w4a16"),
    ("Qwen3-32B-Q4_K_M.gguf", "qwen3-32b", "q4_k_m"),
    ("qwen3-32b-q8_0-00001-of-00002.gguf", "qwen3-32b", "q8_0"),
    ("google_gemma-3-1b-it-Q4_K_M.gguf", "gemma-3-1b", "q4_k_m"),
    ("starcoder2-3b.Q4_K_M.gguf", "starcoder2-3b", "q4_k_m"),
    ("hf.co/unsloth/Qwen3-8B-GGUF:Q6_K", "qwen3-8b", "q6_k"),
    ("gemma-3-27b-it-qat-q4_0-gguf", "gemma-3-27b", "q4_0"),
    ("mlx-community/Qwen3-8B-4bit", "qwen3-8b", "mlx-4bit"),
    ("someone/Qwen3-8B-FP8-KV", "qwen3-8b", "body=fp8,kv=fp8"),
    ("Falcon3-10B-Instruct-Q4_K_M", "falcon3-10b", "q4_k_m"),
]


@pytest.mark.parametrize(("text", "name", "precision"), REQUANTISED)
def test_a_format_at_the_end_of_a_name(text, name, precision):
    opened = open_model(text)
    assert (opened.model.name, opened.precision) == (name, precision)
    assert Precision.named(precision)


def test_a_precision_read_from_a_name_is_said():
    assert open_model("qwen3-14b-w4a16").note == "precision w4a16 read from the name"
    assert open_model("Qwen/Qwen3-32B-FP8").note is None, "the catalog knows this checkpoint"
    assert open_model("qwen3-14b").note is None


@pytest.mark.parametrize("text", ["unsloth/Qwen3-8B-GGUF", "Qwen3-8B-4bit", "Qwen3-32B-UD-Q4_K_XL.gguf", "gemma-2-9b-it-Q4_K_M-fp16.gguf"])
def test_an_ending_that_is_not_clear_is_refused_where_a_precision_is_needed(text):
    said = open_model(text).precision
    with pytest.raises(NotFound, match="no precision called"):
        Precision.named(said)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Qwen/Qwen2.5-VL-7B", "qwen2.5-vl-7b"),
        ("Qwen/Qwen3-Next-80B-A3B", "qwen3-next-80b-a3b"),
        ("ByteDance-Seed/Seed-OSS-36B", "seed-oss-36b"),
        ("stepfun-ai/Step-3.7-Flash", "step-3.7-flash"),
        ("stepfun-ai--Step-3.7-Flash-FP8", "step-3.7-flash"),
        ("llama-3-1-8b", "llama-3.1-8b"),
        ("30b", "llama-30b"),
        ("65b", "llama-65b"),
    ],
)
def test_an_owner_in_front_and_short_names(text, name):
    opened = open_model(text)
    assert (opened.model.name, opened.note) == (name, None)


def test_another_owner_needs_the_full_name_and_is_named(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    opened = open_model("someone/Qwen3-32B")
    assert opened.model.name == "qwen3-32b"
    assert "'someone' has no repository" in opened.note
    for text in ("someone/7b", "someone/qwen3", "someone/llama3", "google/gemma", "someone/7b-AWQ", "a/b/Qwen3-32B"):
        assert meant(text) is None, text


@pytest.mark.parametrize(
    "text", ["", ".gguf", "-FP8", "Q4_K_M", "fp8", "/Qwen3-32B-FP8", "./Qwen3-32B-Q4_K_M.gguf", "x" * 5000, "Qwen3-33B-FP8"]
)
def test_texts_that_mean_no_model(text):
    assert meant(text) is None


@pytest.mark.parametrize(
    ("text", "context", "owner"),
    [
        ("codellama/CodeLlama-7b-Python-hf", 16384, "llama-2-7b"),
        ("lmsys/longchat-7b-v1.5-32k", 32768, "llama-2-7b"),
        ("01-ai/Yi-1.5-9B-Chat-16K", 16384, "yi-9b"),
        ("Qwen/Qwen2.5-7B-Instruct-1M", 1010000, "qwen2.5-7b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", 262144, "qwen3-30b-a3b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", 131072, "qwen2.5-14b"),
        ("mistralai/Devstral-Small-2-24B-Instruct-2512", 393216, "mistral-small-3.1-24b"),
        ("meta-llama/Meta-Llama-Guard-2-8B", 8192, "llama-3-8b"),
    ],
)
def test_another_context_is_another_model(text, context, owner):
    model, like = open_model(text).model, open_model(owner).model
    assert model.context == context
    assert (model.params, model.blocks, model.order) == (like.params, like.blocks, like.order)


def test_no_name_of_a_model_states_another_context():
    """A name with a count of thousands of tokens, `-32k`, is that of a model which has them."""
    stated = 0
    for entry in catalog.entries("models", environ={}):
        for alias in (entry.name, *entry.aliases):
            if found := re.search(r"-(\d{1,4})k(?:-(?:instruct|chat|base))?$", catalog.normalise(alias)):
                context = Model.load(entry.path).context
                if "minimax-m1" in alias.lower():
                    continue  # its 40k and 80k are budgets for thinking
                stated += 1
                assert abs(context / (int(found[1]) * 1024) - 1) < 0.35, (alias, context)
    assert stated > 20


def test_a_name_of_the_catalog_costs_no_look_through_it(monkeypatch):
    monkeypatch.setattr(catalog, "entries", lambda *a, **k: pytest.fail("the catalog was listed"))
    assert open_model("qwen3-32b").model.name == "qwen3-32b"
    assert open_model("Qwen/Qwen3-32B-FP8").precision == "fp8-block"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("rtx-6000-pro", "rtx-pro-6000-workstation"),
        ("RTX 6000 Pro Max-Q", "rtx-pro-6000-max-q"),
        ("ascend910b", "ascend-910b2"),
        ("m4-max-40", "m4-max-40c"),
    ],
)
def test_parts_typed_short(text, name):
    assert catalog.find("hardware", text).stem == name


def test_a_name_of_several_parts_lists_them():
    with pytest.raises(NotFound, match=r"no hardware called 'gaudi'; near it: gaudi3, gaudi2$"):
        catalog.find("hardware", "gaudi")
