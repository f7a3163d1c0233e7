"""Write the model catalog from a table of names and folders of published configurations.

Usage: make_models.py FOLDER [FOLDER ...]. Each folder holds files called `org--name.json` or `org--name_config.json`, and
perhaps `org--name_hf_quant_config.json` beside them. `models_table.yaml` says which of them is which model; shapes it
states itself are read in the same way, and a row may be like another one but for its context, and take some of its names.
A spec whose configuration is in none of the folders stays as it is.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml

from inferplan.errors import InferplanError
from inferplan.readers.huggingface.config import read_config
from inferplan.specs.catalog import SPELLINGS, normalise, write_index
from inferplan.specs.counts import counts
from inferplan.specs.document import load_json
from inferplan.specs.model import Model, Published, Source
from inferplan.specs.weights import Weight
from inferplan.specs.write import model_yaml

HERE = Path(__file__).resolve().parent
MODELS = HERE.parent / "models"
TABLE = HERE / "models_table.yaml"
NOTHING = "(?!)"


@dataclass(frozen=True)
class Configs:
    """Folders of published configurations."""

    folders: tuple[Path, ...]

    def path(self, stem: str, ending: str = "") -> Path | None:
        """The file of a configuration, or None."""
        names = [f"{stem}{ending}.json"] if ending else [f"{stem}.json", f"{stem}_config.json"]
        return next((path for folder in self.folders for name in names if (path := folder / name).is_file()), None)

    def model(self, stem: str) -> Model | None:
        """The model that a configuration describes, with the precision that it or the file beside it states."""
        if (path := self.path(stem)) is None:
            return None
        beside = self.path(stem, "_hf_quant_config")
        data = load_json(path, infinity=True)
        return read_config(data, file=path.name, name="model", beside=load_json(beside) if beside else None)


def shapes(model: Model) -> list[tuple[str, int, int, int, int, str]]:
    """What two checkpoints of one spec must share: every tensor's shape, under whatever names."""
    kinds: dict[tuple[Any, ...], int] = {}
    for w in model.weights():
        key = (w.part, w.rows, w.cols, w.bias, w.use)
        kinds[key] = kinds.get(key, 0) + w.copies
    return sorted((*key[:4], n, key[4]) for key, n in kinds.items())


def hub_id(stem: str) -> str:
    """The Hub id that a configuration's file name stands for."""
    return stem.replace("--", "/", 1)


def built(name: str, entry: dict[str, Any], configs: Configs) -> Model | None:
    """The spec of one row of the table, or None where its configuration is not at hand."""
    model = shaped(entry, configs)
    if model is None:
        return None
    update: dict[str, Any] = {"name": name, "title": entry["title"], "family": entry["folder"], **named(name, entry, model, configs)}
    update["architecture"] = model.architecture or model.family
    update["sources"], update["published"] = sourced(entry, model)
    update["total"] = model.params
    notes = [n for n in (entry.get("note"), model.note) if n]
    update |= {"note": "; ".join(notes) or None} | {k: entry[k] for k in ("context", "precision", "dtype") if k in entry}
    return Model.model_validate(model.model_copy(update=update).model_dump())


def shaped(entry: dict[str, Any], configs: Configs) -> Model | None:
    """The shapes of a row: those of a spec written before it, stated in the row, or of its configuration."""
    if "like" in entry:
        return Model.load(MODELS / f"{entry['like']}.yaml").model_copy(update={"note": None, "published": None})
    return read_config(entry["shape"], name="model") if "shape" in entry else configs.model(entry["config"])


def named(name: str, entry: dict[str, Any], model: Model, configs: Configs) -> dict[str, Any]:
    """Aliases and checkpoints: those of the table, the configuration's own id, and siblings that read to the same shapes."""
    aliases, checkpoints = list(entry.get("aliases", ())), dict(entry.get("checkpoints", {}))
    for stem in ([entry["config"]] if "config" in entry else []) + entry.get("same", []):
        if re.search(entry.get("gives", NOTHING), normalise(stem)):
            continue
        stored = precision_of(name, stem, entry, model, configs)
        if stored is not None:
            checkpoints[hub_id(stem)] = stored
        elif hub_id(stem) not in aliases:
            aliases.insert(0, hub_id(stem))
    aliases = [a for a in aliases if a not in checkpoints and normalise(a) != name]
    return {"aliases": tuple(first_spellings(aliases)), "checkpoints": checkpoints}


def precision_of(name: str, stem: str, entry: dict[str, Any], model: Model, configs: Configs) -> str | None:
    """The precision of a sibling where it is another than the model's; a sibling not at hand keeps what the written spec says of it."""
    sibling = configs.model(stem)
    if sibling is None:
        written = Model.load(MODELS / entry["folder"] / f"{name}.yaml")
        if hub_id(stem) not in (*written.aliases, *written.checkpoints):
            raise SystemExit(f"{name}: {stem} is missing")
        return written.checkpoints.get(hub_id(stem))
    if shapes(sibling) != shapes(model):
        raise SystemExit(f"{name}: {stem} has other shapes")
    context = entry.get("context", model.context)
    if sibling.context != context and stem not in (entry.get("config"), *entry.get("other_context", ())):
        raise SystemExit(f"{name}: {stem} has a context of {sibling.context}, not {context}")
    return sibling.precision if sibling.precision != model.precision else None


def first_spellings(texts: list[str]) -> list[str]:
    """The texts without those that the catalog reads alike."""
    return list({normalise(text): text for text in reversed(texts)}.values())[::-1]


def sourced(entry: dict[str, Any], model: Model) -> tuple[dict[str, Source], Published | None]:
    """Where the shapes and the published total come from."""
    sources = {"shapes": Source(**entry["source"])}
    if "published" not in entry:
        return sources, None
    stated = dict(entry["published"])
    sources["total"] = Source(**stated.pop("source"))
    beyond = stated["total"] - model.params
    note = stated.get("note") or explained(beyond, model)
    if beyond and not note:
        raise SystemExit(f"{entry['title']}: the published total exceeds the count by {beyond:,} without a reason")
    return sources, Published(total=stated["total"], source="total", beyond=beyond, note=note)


def explained(beyond: int, model: Model) -> str | None:
    """In words, what adds up to the difference between a published total and the count."""
    reasons = [(n, text) for n, text in known_extras(model) if n]
    for size in range(1, len(reasons) + 1):
        for chosen in combinations(reasons, size):
            if sum(n for n, _ in chosen) == beyond:
                return "also counts " + " and ".join(f"{text} ({n:,})" for n, text in chosen)
    return None


def known_extras(model: Model) -> Iterator[tuple[int, str]]:
    """What checkpoints store beside the parameters of the model."""
    found = counts(model)
    yield found.mtp, "multi-token prediction"
    yield found.mtp_copies, "its copies of embedding and head"
    yield found.router_buffers, "router correction biases"
    if model.head == "tied":
        yield model.vocab * (model.embedding_width or model.hidden), "the tied head a second time"
    head_dim = next((m.head_dim for b in model.blocks.values() for m in b.mixers if m.kind == "attention"), 0)
    layers, context = len(model.order), model.context or 0
    yield layers * head_dim // 2, "rotary frequencies of every layer"
    yield layers * context**2, "causal masks of every layer"
    yield layers * (context**2 + 1), "causal masks and their fill value"
    yield layers * (context**2 + head_dim // 8), "causal masks and rotary frequencies"
    yield layers * (context**2 + head_dim // 8 + 1), "causal masks, their fill value and rotary frequencies"
    yield block_scales(model.weights()), "fp8 block scales"


def block_scales(weights: list[Weight]) -> int:
    """Scales of 128 x 128 blocks of the matrices that an fp8 checkpoint keeps in fp8."""
    wide = ("attention", "mlp", "experts", "shared_expert", "indexer")
    return sum(w.copies * -(-w.rows // 128) * -(-w.cols // 128) for w in weights if w.part in wide and w.use in ("matmul", "expert"))


def spread(table: dict[str, Any]) -> None:
    """Move names to the rows that take them: those of a model of the same shapes and another context, by the pattern in `takes`."""
    for entry in (e for e in table.values() if "takes" in e):
        owner = table[entry["like"].rpartition("/")[2]]
        owner["gives"] = "|".join([entry["takes"], *([owner["gives"]] if "gives" in owner else [])])
        pattern = re.compile(entry["takes"])
        for kind in ("aliases", "spellings", "same"):
            held = owner.get(kind, [])
            entry[kind] = entry.get(kind, []) + [text for text in held if pattern.search(normalise(str(text)))]
            owner[kind] = [text for text in held if not pattern.search(normalise(str(text)))]
        stored = owner.get("checkpoints", {})
        entry["checkpoints"] = {text: p for text, p in stored.items() if pattern.search(normalise(text))}
        owner["checkpoints"] = {text: p for text, p in stored.items() if not pattern.search(normalise(text))}


def write_spellings(table: dict[str, Any]) -> None:
    """Spellings seen in public tables of measurements that are no aliases of their own."""
    rows = sorted((str(spelling), name) for name, entry in table.items() for spelling in entry.get("spellings", ()))
    text = "spelling,name\n" + "".join(f"{spelling},{name}\n" for spelling, name in rows)
    (MODELS / SPELLINGS).write_text(text, encoding="utf-8")


def main(folders: list[str]) -> int:
    """Write every spec that can be made, the spellings and the index; report those that cannot."""
    configs = Configs(tuple(Path(f) for f in folders))
    table = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    spread(table)
    refused = 0
    for name, entry in table.items():
        try:
            model = built(name, entry, configs)
        except InferplanError as e:
            refused += 1
            sys.stderr.write(f"{name}: {e}\n")
            continue
        if model is not None:
            path = MODELS / entry["folder"] / f"{name}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(model_yaml(model), encoding="utf-8")
    write_spellings(table)
    write_index(MODELS)
    return 1 if refused else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
