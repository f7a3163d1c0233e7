"""What a spelling of a model that is no name of the catalog means: requantised copies, names of files, other owners. Opens no spec.

Knows the index of the catalog and how people mark the number format in a name; it knows no shape and asks no network.

- `Qwen3-32B-FP8`, `TheBloke/Mixtral-8x7B-Instruct-v0.1-AWQ`, `qwen3-32b-q4_k_m.gguf`: the model without the ending, and the
  precision that the ending says. An ending that says none (`-GGUF`), or two that disagree, is handed on as it stands, so
  that whoever needs a precision refuses it by name.
- `Qwen/Qwen2.5-VL-7B`: an owner in front of any name of a model of which that owner has a repository here.
- `someone/Qwen3-32B`: another owner in front of the full name of a repository here, or of the model's own name, if it is
  that of one model only. Short names (`someone/qwen`) are refused: what another owner calls so need not be that model.
- `llama-3-1-8b`: hyphens where the catalog has dots, if one model only is spelt so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from inferplan.specs.catalog import entries, normalise, seen_spellings

_LONGEST = 200
_FILE = re.compile(r"(?:-\d{5}-of-\d{5})?\.gguf$", re.IGNORECASE)
_JOINT = re.compile(r"\.(?=(?:i?q\d|quantized|w\d+a\d+|bf16|fp?16|fp8|gguf)(?:\W|_|$)|i?q\d_)", re.IGNORECASE)
_GGUF_TYPE = r"(?:ud-)?(?:i?q\d-(?:k|0|1|nl|xxs|xs|s|m)(?:-(?:s|m|l|xl|p))?|tq\d-0)"
_WORD = (
    rf"{_GGUF_TYPE}|fp8(?:-(?:dynamic|block|kv|static|channel))?|nvfp4|fp4|mxfp[48]|[bf]f?16|fp16|fp32|int[48]|w\d+a\d+"
    r"|awq(?:-(?:int4|4bit))?|gptq(?:-(?:int|w)?\d(?:bit)?(?:-\d+g)?)?|(?:bnb-|mlx-|ud-mlx-)?\dbit|exl[23]|autoround|mlx|gguf"
)
_FILLERS = ("quantized", "unsloth", "qat", "imatrix", "imat")
_ENDING = re.compile(rf"(?P<base>.+?)(?P<words>(?:-(?:{'|'.join(_FILLERS)}))*(?:-(?:{_WORD}))+)")
_WORDS = re.compile(rf"-({'|'.join(_FILLERS)}|{_WORD})(?=-|$)")
_MEANS = {"fp8-kv": "body=fp8,kv=fp8"}
_SIZE_ALONE = re.compile(r"[\d.]+[bm]")
_HUBS = ("hf.co/", "huggingface.co/")


@dataclass(frozen=True, slots=True)
class Meant:
    """The file of a catalog model that a spelling means, and in words how it differs from the spelling; None where it does not."""

    path: Path
    note: str | None


@dataclass(slots=True)
class _Known:
    """The spellings of the catalog: each with its model; names of repositories, and texts without dots, with all models they could be."""

    models: dict[str, str] = field(default_factory=dict)
    paths: dict[str, Path] = field(default_factory=dict)
    repositories: dict[str, set[str]] = field(default_factory=dict)
    undotted: dict[str, set[str]] = field(default_factory=dict)
    owners: dict[str, set[str]] = field(default_factory=dict)

    def add(self, spelling: str, model: str) -> None:
        """Note one spelling of a model."""
        key = normalise(spelling)
        self.models.setdefault(key, model)
        self.undotted.setdefault(key.replace(".", "-"), set()).add(model)
        if spelling.count("/") == 1:
            owner, _, name = spelling.partition("/")
            self.owners.setdefault(model, set()).add(normalise(owner))
            self.repositories.setdefault(normalise(name), set()).add(model)

    def model(self, owner: str, base: str) -> tuple[str, bool] | None:
        """The model of an owner (perhaps '') and a normalised name, and whether the owner is one of those who publish it here."""
        whole = f"{owner}-{base}" if owner else base
        if (exact := self.models.get(whole) or _only(self.undotted.get(whole.replace(".", "-")))) is not None:
            return exact, True
        found = _only(self.repositories.get(base)) or self.models.get(base) or _only(self.undotted.get(base.replace(".", "-")))
        if found is None or (owner and _SIZE_ALONE.fullmatch(base)):
            return None
        if not owner or owner in self.owners.get(found, ()):
            return found, True
        full_name = len(self.repositories.get(base, ())) == 1 or base == found
        return (found, False) if full_name else None


def _only(models: set[str] | None) -> str | None:
    return next(iter(models)) if models and len(models) == 1 else None


def _known() -> _Known:
    known = _Known()
    for entry in entries("models"):
        known.paths[entry.name] = entry.path
        for spelling in (entry.name, *entry.aliases):
            known.add(spelling, entry.name)
    for spelling, model in seen_spellings("models"):
        if model in known.paths:
            known.models.setdefault(normalise(spelling), model)
    return known


def meant(text: str) -> Meant | None:
    """The catalog model that a spelling means which is no name of it, None where that cannot be said.

    >>> meant("TheBloke/Llama-2-7B-32K-AWQ") is None, meant("TheBloke/Mixtral-8x7B-Instruct-v0.1-AWQ").path.stem
    (True, 'mixtral-8x7b')
    """
    if len(text) > _LONGEST or text.startswith((".", "/", "~")):
        return None
    known = _known()
    for owner, name in _readings(text):
        for base in dict.fromkeys((name, _split(name)[0])):
            if base and (found := known.model(owner, base)) is not None:
                model, of_owner = found
                note = None if of_owner else f"taken for {model}, of which '{owner}' has no repository in the catalog"
                return Meant(known.paths[model], note)
    return None


def _readings(text: str) -> Iterator[tuple[str, str]]:
    """What may be the owner ('' for none) and the name in a text, both normalised; an owner may also stand before `--` or `_`."""
    text = _JOINT.sub("-", _FILE.sub("", _without_hub(text)))
    if text.count("/") > 1:
        return
    if "/" not in text and "--" not in text:
        yield "", normalise(text)
    for joint in ("/", "--", "_"):
        owner, found, name = text.partition(joint)
        if found:
            yield normalise(owner), normalise(name)
            return


def _without_hub(text: str) -> str:
    return next((text[len(hub) :] for hub in _HUBS if text.lower().startswith(hub)), text)


def _split(name: str) -> tuple[str, list[str]]:
    """A normalised name without the ending that says a format, and the words of that ending."""
    found = _ENDING.fullmatch(name)
    return (found["base"], [w for w in _WORDS.findall(found["words"]) if w not in _FILLERS]) if found else (name, [])


def precision_in(text: str) -> str | None:
    """The precision that the ending of a name says, None where it has none; an ending that is not clear comes back as it stands.

    >>> [precision_in(t) for t in ("Qwen3-32B-Q4_K_M.gguf", "a/B-7B-quantized.w4a16", "B-7B-FP8-dynamic", "B-7B", "B-7B-GGUF:Q4_0")]
    ['q4_k_m', 'w4a16', 'fp8-dynamic', None, 'q4_0']
    """
    if len(text) > _LONGEST:
        return None
    text = _JOINT.sub("-", _FILE.sub("", text))
    words = _split(normalise(text))[1]
    of_mlx = "mlx" in words or normalise(text).startswith("mlx-community-")
    words = [w for w in words if w != "gguf" or len(words) == 1]
    words = [f"mlx-{w}" if of_mlx and re.fullmatch(r"\dbit", w) else w for w in words if w != "mlx"]
    said = "-".join(w.replace("-", "_") if re.fullmatch(_GGUF_TYPE, w) else w for w in words)
    return _MEANS.get(said, said) or None
