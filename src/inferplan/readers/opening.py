"""What a user names as a model to a Model: a catalog name, a file or folder of any known kind, a Hub id. Knows no screen.

The order: files that exist, then the catalog by name, then by what the name can only mean (`model_names`), then the Hub.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from inferplan.errors import NotFound, SpecError, Unsupported
from inferplan.specs import catalog
from inferplan.specs.model import Model


@dataclass(frozen=True, slots=True)
class Opened:
    """A model, how its name was resolved, and the precision its weights come in, where the source says so.

    note
        in words, what was read from the name alone: a precision, or an owner that the catalog does not know.
    """

    model: Model
    origin: str
    precision: str | None
    note: str | None = None

    @property
    def stored(self) -> str:
        """The precision that the weights are kept in: of the checkpoint, else the dtype of the model."""
        return self.precision or self.model.dtype

    @property
    def served(self) -> str:
        """The same as engines load it where nothing else is asked for: checkpoints in fp32 as 16-bit ones."""
        return "bf16" if self.stored == "fp32" else self.stored

    @property
    def told(self) -> Model:
        """The model with what was read from its name alone among its notes, for people to see."""
        return self.model.model_copy(update={"note": "; ".join(n for n in (self.note, self.model.note) if n)}) if self.note else self.model


def open_model(text: str) -> Opened:
    """The model that a text means.

    Raises NotFound for an unknown name, SpecError for a broken file, Unsupported for an architecture that is not understood.

    >>> open_model("7b").model.name
    'llama-2-7b'
    >>> open_model("Mixtral-8x7B-Instruct-v0.1-AWQ").precision, open_model("Qwen3-32B-Q4_K_M.gguf").precision
    ('awq-int4-g128', 'q4_k_m')
    """
    try:
        path = catalog.find("models", text)
    except NotFound as e:
        return _from_name(text, e)
    return open_path(path, text)


def _from_name(text: str, unknown: NotFound) -> Opened:
    """The model that a spelling can only mean, else the one that the Hub holds under it."""
    from inferplan.readers.hub import is_repo_id
    from inferplan.readers.model_names import meant

    if (found := meant(text)) is not None:
        opened = _from_spec(found.path, text)
        return replace(opened, note="; ".join(n for n in (found.note, opened.note) if n) or None)
    if not is_repo_id(text):
        raise unknown
    return _from_hub(text, unknown)


def open_path(path: Path, text: str = "") -> Opened:
    """The model in a file or folder, by its kind; `text` is the name that led there."""
    if path.is_dir():
        return _from_folder(path)
    suffix = path.suffix.lower()
    if suffix in (".yaml", ".yml"):
        return _from_spec(path, text)
    if suffix == ".json":
        from inferplan.readers.huggingface.config import load_config

        model = load_config(path)
        return Opened(model, str(path), model.precision)
    if suffix == ".gguf":
        return _from_gguf(path)
    if suffix == ".safetensors":
        return _from_folder(path.parent)
    raise SpecError("is not a kind of model file known here (.yaml, .json, .gguf, .safetensors, or a folder)", file=path)


def _from_spec(path: Path, text: str) -> Opened:
    """A spec; its weights are those of the checkpoint that the text names, else of the format that the text ends in."""
    from inferplan.readers.model_names import precision_in

    model = Model.load(path)
    wanted = catalog.normalise(text)
    for of_whole in (True, False):
        for name, precision in model.checkpoints.items():
            if catalog.normalise(name if of_whole else name.rpartition("/")[2]) == wanted:
                return Opened(model, model.name, precision)
    said = precision_in(text)
    if said is None or (model.precision or "").startswith(said):
        return Opened(model, model.name, model.precision)
    return Opened(model, model.name, said, f"precision {said} read from the name")


def _from_folder(folder: Path) -> Opened:
    """A folder that holds a config.json, or one GGUF file."""
    from inferplan.readers.huggingface.config import load_config

    config = folder / "config.json"
    if config.exists():
        model = load_config(config)
        return Opened(model, str(config), model.precision)
    parts = sorted(folder.glob("*.gguf"))
    if parts:
        return _from_gguf(parts[0])
    raise SpecError("holds neither a config.json nor a .gguf file", file=folder)


def _from_gguf(path: Path) -> Opened:
    from inferplan.readers.gguf import read_gguf
    from inferplan.readers.gguf_model import model_of_gguf

    model, precision = model_of_gguf(read_gguf(path))
    return Opened(model, str(path), precision)


def _from_hub(repo_id: str, unknown: NotFound) -> Opened:
    """A Hub repository's configuration; where the Hub cannot be asked, both reasons in one line."""
    from inferplan.readers.hub import fetch_model
    from inferplan.readers.huggingface.config import read_config, with_assumption

    try:
        found = fetch_model(repo_id)
    except (SpecError, Unsupported, NotFound) as e:
        raise NotFound(f"{unknown}; and from the Hub: {e}") from None
    model = read_config(found.config, file=f"hub:{repo_id}/config.json", name=repo_id.replace("/", "--"), beside=found.quantization)
    model = with_assumption(model, found.config)
    return Opened(model, f"Hub {repo_id}", model.precision)
