"""The model catalog: specs that load and add up, names that resolve, counts and cache bytes against independent tables."""

import csv
from functools import cache
from pathlib import Path

import pytest

from inferplan.engine.cache_bytes import (
    kv_bytes_per_token,
    kv_bytes_per_token_unbounded,
    state_bytes,
    state_bytes_per_sequence,
    token_bytes,
)
from inferplan.specs import catalog
from inferplan.specs.counts import counts
from inferplan.specs.model import Model
from inferplan.specs.precision import Precision
from inferplan.specs.write import model_yaml

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "models"
DATA = Path(__file__).parent / "data"
FILES = sorted(MODELS.glob("*/*.yaml"))
BF16 = Precision.named("bf16")


@cache
def spec(text):
    return Model.load(catalog.find("models", text))


def table(name):
    return list(csv.DictReader((DATA / name).read_text(encoding="utf-8").splitlines()))


@pytest.fixture(scope="module")
def loaded():
    return {path: spec(path.stem) for path in FILES}


def test_every_spec_loads_and_states_its_total(loaded):
    assert len(loaded) > 300
    for path, model in loaded.items():
        assert model.name == path.stem
        assert model.total == model.params, path.stem
        assert model.family == path.parent.name


def test_every_spec_says_where_it_comes_from(loaded):
    for model in loaded.values():
        assert model.sources["shapes"].title
        published = model.published
        assert published is not None or model.architecture
        if published is not None:
            assert published.total == model.params + published.beyond
            assert published.source in model.sources
            assert bool(published.note) == bool(published.beyond), model.name


def test_most_totals_are_confirmed_by_a_published_one(loaded):
    stated = [m.published for m in loaded.values() if m.published is not None]
    explained = [p for p in stated if p.beyond == 0 or (p.note or "").startswith("also counts")]
    assert len(explained) > 260


def test_specs_are_written_as_the_writer_writes_them(loaded):
    for path, model in loaded.items():
        assert path.read_text(encoding="utf-8") == model_yaml(model)


def test_no_two_specs_are_the_same_model(loaded):
    seen = {}
    for model in loaded.values():
        tensors = tuple(sorted((w.name, w.rows, w.cols, w.copies, w.bias) for w in model.weights()))
        key = (tensors, tuple(model.cache()), model.context, model.dtype, model.published)
        assert seen.setdefault(key, model.name) == model.name


def test_every_checkpoint_has_a_precision_that_is_known(loaded):
    texts = {text for m in loaded.values() for text in (*m.checkpoints.values(), m.precision) if text is not None}
    assert {"fp8-block", "awq-int4-g128", "nf4", "mxfp4"} <= texts
    for text in texts:
        assert Precision.named(text).weights.bits <= 16


def test_index_is_fresh_and_every_name_means_one_model():
    assert (MODELS / catalog.INDEX).read_text(encoding="utf-8") == catalog.index_text(MODELS)


def test_every_alias_and_checkpoint_resolves_in_any_case():
    aliases = [(text, entry.path) for entry in catalog.entries("models") for text in entry.aliases]
    assert len(aliases) > 2500
    for text, path in aliases[::61]:
        assert catalog.find("models", text.upper()) == path


@pytest.mark.parametrize("row", table("model_names.csv"), ids=lambda row: row["text"])
def test_what_people_type(row):
    assert catalog.find("models", row["text"]).stem == row["name"]


def test_spellings_of_public_tables():
    rows = list(csv.DictReader((MODELS / catalog.SPELLINGS).read_text(encoding="utf-8").splitlines()))
    assert len(rows) > 150
    assert {row["name"] for row in rows} <= set(catalog.names("models"))
    for row in rows[::9]:
        assert catalog.find("models", row["spelling"]).stem == row["name"]


COLUMNS = {
    "total": "total", "embed": "embedding", "lm_head": "head", "aux_embed": "aux_embedding", "active": "active",
    "active_excl_input_embed": "active_read", "attention": "attention", "ssm_linear": "recurrent", "mlp": "mlp", "router": "router",
    "shared_expert": "shared_expert", "experts": "experts", "norm": "norm", "vision_audio": "vision", "other": "other",
    "head_bias": "head_bias", "moe_layers": "moe_layers", "router_bias_buffers": "router_buffers", "mtp_unique": "mtp",
    "mtp_dup_embed_head": "mtp_copies",
}  # fmt: skip


@pytest.mark.parametrize("row", table("model_params.csv"), ids=lambda row: row["model"])
def test_counts_equal_those_of_instantiated_models(row):
    model = spec(row["model"])
    found = counts(model)
    got = {column: getattr(found, name) for column, name in COLUMNS.items()}
    moe = next((i for i, name in enumerate(model.order) if model.blocks[name].experts), None)
    got |= {"first_layer": found.per_layer[0], "first_moe_layer": 0 if moe is None else found.per_layer[moe]}
    assert {k: v for k, v in got.items() if row[k]} == {k: int(row[k]) for k in got if row[k]}


def by_model(name):
    found = {}
    for row in table(name):
        found.setdefault(row["model"], []).append(row)
    return found


CACHES = by_model("model_cache.csv")


@pytest.mark.parametrize("name", CACHES)
def test_cache_bytes(name):
    model, first = spec(name), CACHES[name][0]
    assert kv_bytes_per_token_unbounded(model, BF16) == float(first["model_bytes_per_token_unbounded"])
    assert kv_bytes_per_token(model, BF16) == float(first["model_bytes_per_token"])
    assert state_bytes_per_sequence(model, BF16) == float(first["model_state_bytes"])


@pytest.mark.parametrize("name", CACHES)
def test_cache_bytes_of_each_kind_of_layer(name):
    model = spec(name)
    groups = {}
    for count, entry in model.cache():
        key = (float(token_bytes(entry, BF16)), entry.window, state_bytes(entry, BF16, model.dtype))
        groups[key] = groups.get(key, 0) + count
    for row in CACHES[name]:
        window = int(row["window"]) if row["window"] else None
        assert groups[float(row["bytes_per_token"]), window, float(row["state_bytes"])] == int(row["layers"]), row["kind"]
