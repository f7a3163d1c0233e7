"""The encoders beside a text decoder: which mapping of a file describes one, and which reader serves it.

An encoder that is there and not understood is never dropped in silence: `uncounted` names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from inferplan.readers.huggingface import audio, vision
from inferplan.readers.huggingface.defaults import class_defaults
from inferplan.readers.huggingface.dense import width
from inferplan.readers.huggingface.encoders import dense, tower
from inferplan.readers.huggingface.fields import Fields
from inferplan.readers.huggingface.projectors import IMAGES, SOUNDS, Case, Projector
from inferplan.specs.model import Block, Tower

Reader = Callable[[Fields], Tower]

KEYS: dict[str, tuple[tuple[str, ...], Mapping[str, Reader], Mapping[str, Projector]]] = {
    "vision": (("vision_config",), vision.READERS, IMAGES),
    "audio": (("audio_config", "encoder_config"), audio.READERS, SOUNDS),
}
OTHERS = ("img_processor", "embd_layer", "vision_tower", "mm_vision_tower", "visual", "audio_processor")
HANDLED = {"deepseek_vl_hybrid": ("high_res_vision_config",)}
ENCODERS = (
    "vision",
    "image",
    "visual",
    "vit",
    "vq",
    "audio",
    "speech",
    "sound",
    "acoustic",
    "semantic",
    "talker",
    "code2wav",
    "token2wav",
    "codec",
)
WITHIN = ("thinker_config",)


def towers_of(outer: Fields, text: Fields) -> dict[str, Tower]:
    """The encoders a file describes with the projectors behind them, by name (`vision`, `audio`, `qformer` ...); empty for text models."""
    top = _top(outer)
    if _type(top) == "fuyu":
        return _fuyu(top, text)
    found: dict[str, Tower] = {}
    for name in KEYS:
        case = _case(top, text, name)
        if case:
            found |= KEYS[name][2][_type(top)](case)
    return found


def _fuyu(f: Fields, text: Fields) -> dict[str, Tower]:
    """Fuyu has no encoder: patches are projected into the decoder at once, which is a tower of one empty layer."""
    side, hidden = f.count("patch_size"), width(text)
    patches = dense("patch_embedding", side * side * f.count("num_channels", default=3), hidden, bias=True)
    return {"vision": tower(hidden, [("none", Block(norms=0))], norms=0, extra=(patches,))}


def uncounted(outer: Fields) -> str | None:
    """A remark that names each encoder of the file that is not counted, or None."""
    top = _top(outer)
    missing = [f"{f.at}{key}{kind}" for f in {id(outer): outer, id(top): top}.values() for key, kind in _strangers(f)]
    return f"parameters leave out what has no reader here: {', '.join(missing)}" if missing else None


def _type(f: Fields) -> str:
    value = f.data.get("model_type")
    return value if isinstance(value, str) else ""


def _top(outer: Fields) -> Fields:
    """The mapping whose siblings are the encoders: the file's top level, or the part of an any-to-any model that reads."""
    for key in WITHIN:
        nested = outer.data.get(key)
        if isinstance(nested, dict):
            kind = (
                nested.get("model_type")
                or class_defaults().get(str(outer.data.get("model_type")), {}).get(key)
                or f"{outer.data.get('model_type')}_thinker"
            )
            return Fields({**nested, "model_type": kind}, file=outer.file, at=f"{outer.at}{key}.", defaults=class_defaults().get(str(kind)))
    return outer


def _stated(f: Fields, name: str) -> tuple[str, str | None]:
    """The key that describes an encoder and the model type of the encoder; no type where there is none."""
    keys, known, _ = KEYS[name]
    key = next((k for k in keys if isinstance(f.data.get(k), dict)), None)
    default = next(((k, f.defaults[k]) for k in keys if isinstance(f.defaults.get(k), str)), None)
    if key is None:
        if default is None or any(k in f.data for k in keys) or _text_only(f):
            return keys[0], None
        return default
    kind = str(f.data[key].get("model_type") or (default[1] if default else ""))
    named = next((k for k in (kind, f"{kind}_vision", f"{kind}_audio") if k in known), None)
    if named is None and default and kind == _type(f):
        named = default[1]
    return key, named or kind or "of no stated type"


def _text_only(f: Fields) -> bool:
    """Whether the file names a class of a text decoder alone and mentions no encoder."""
    names = f.data.get("architectures")
    return isinstance(names, list) and bool(names) and all(str(n).endswith("ForCausalLM") for n in names) and _type(f) != "phi4_multimodal"


def _case(f: Fields, text: Fields, name: str) -> Case | None:
    key, kind = _stated(f, name)
    _, known, projectors = KEYS[name]
    if kind not in known or _type(f) not in projectors or kind is None:
        return None
    inner = f.sub(key, defaults=class_defaults().get(kind, {}))
    return Case(outer=f, decoder=text, inner=inner, encoder=known[kind](inner), text=width(text))


def _encoder(key: str, value: object) -> bool:
    return key.endswith("_config") and isinstance(value, dict) and any(word in key.split("_") for word in ENCODERS)


def _strangers(f: Fields) -> list[tuple[str, str]]:
    known_keys = {key for keys, _, _ in KEYS.values() for key in keys}.union(HANDLED.get(_type(f), ()))
    found = [(k, "") for k, v in f.data.items() if v and (k in OTHERS or (k not in known_keys and _encoder(k, v)))]
    for name, (_, known, projectors) in KEYS.items():
        key, kind = _stated(f, name)
        if kind is not None and (kind not in known or _type(f) not in projectors):
            found.append((key, f" ({kind})"))
    return found
