"""A published `config.json` to a Model: finds the text decoder, its class defaults, the towers beside it and its quantisation.

Knows where things stand in such a file; the shapes of each family live in the sibling modules. An architecture that is not
understood is refused by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from inferplan.errors import SpecError, Unsupported
from inferplan.readers.huggingface.assemble import stacked
from inferplan.readers.huggingface.defaults import class_defaults
from inferplan.readers.huggingface.families import reader_of, refuse_drafts
from inferplan.readers.huggingface.fields import Fields
from inferplan.readers.huggingface.quantization import reading_of
from inferplan.readers.huggingface.towers import towers_of, uncounted
from inferplan.specs.base import as_line, complaint
from inferplan.specs.document import load_json
from inferplan.specs.model import Model

QUANT_CONFIG = "hf_quant_config.json"
NESTED = ("text_config", "llm_config", "language_config", "language_model", "thinker_config")
DTYPES = {
    **{"float32": "fp32", "float": "fp32", "float64": "fp32", "double": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16"},
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "int8", "uint8"), "bf16"),
}
ASSUMED = "bf16 (assumed): the file states no dtype"


def load_config(path: Path) -> Model:
    """The Model that a `config.json` describes; the file's name, or its folder's, becomes the model's name."""
    data = load_json(path, infinity=True)
    name = path.parent.name if path.name == "config.json" and path.parent.name else path.stem
    quantised = path.with_name(QUANT_CONFIG)
    beside = load_json(quantised) if path.name == "config.json" and quantised.is_file() else None
    return with_assumption(read_config(data, file=path, name=name or "model", beside=beside), data)


def read_config(data: dict[str, Any], *, file: Any = None, name: str = "model", beside: dict[str, Any] | None = None) -> Model:
    """The Model that a configuration describes; `beside` is a `hf_quant_config.json` from the same place.

    Raises SpecError for a missing or absurd field and Unsupported for an architecture or a quantisation that is not understood.
    """
    try:
        return quantised_model(data, _model(data, file, name), beside)
    except ValidationError as e:
        raise complaint(e, file) from None
    except SpecError as e:
        raise e.within(file) from None
    except Unsupported as e:
        raise Unsupported(f"{file}: {e}" if file is not None else str(e)) from None
    except RecursionError:
        raise SpecError("nests configurations too deeply", file=file) from None


def _model(data: dict[str, Any], file: Any, name: str) -> Model:
    outer = fields_of(data, file, "")
    refuse_drafts(data.get("model_type"))
    text = text_fields(outer)
    kind, reader = reader_of(type_of(text))
    text.defaults = class_defaults().get(str(text.data["model_type"]), {})
    parts = reader(text)
    stack = stacked(parts.pop("layers"))
    names = data.get("architectures")
    architecture = names[0] if isinstance(names, list) and names else ""
    head = parts.pop("head", None) or ("tied" if tied(outer, text) else "own")
    stated: dict[str, Any] = {
        "name": name,
        "title": as_line(name.replace("--", "/")),
        "family": kind,
        "architecture": str(architecture),
        "vocab": parts.pop("vocab", None) or vocabulary(text),
        "head": head,
        "context": context(text),
        "dtype": dtype(outer, text) or "bf16",
        "towers": towers_of(outer, text),
        "note": uncounted(outer),
        **stack,
    }
    return Model(**{**stated, **parts})


def quantised_model(data: dict[str, Any], model: Model, beside: dict[str, Any] | None = None) -> Model:
    """The model with the precision its configuration states, and what that leaves out as a remark."""
    reading = reading_of(data, model, beside=beside)
    notes = [n for n in (model.note, *reading.notes) if n]
    return model.model_copy(update={"precision": reading.precision, "note": "; ".join(notes) or None})


def with_assumption(model: Model, data: dict[str, Any]) -> Model:
    """The model with a remark where its configuration does not say what its tensors are kept in."""
    outer = Fields(data)
    if dtype(outer, text_fields(outer)) is not None:
        return model
    return model.model_copy(update={"note": "; ".join(n for n in (model.note, ASSUMED) if n)})


def type_of(f: Fields) -> str:
    """The model type a mapping names."""
    value = f.raw("model_type", default=None)
    if not isinstance(value, str) or not value:
        raise f.refuse("model_type", "is required and missing: without it the architecture is unknown", value)
    return value


def fields_of(data: dict[str, Any], file: Any, at: str, default_type: str | None = None) -> Fields:
    """Checked access to a mapping, with the defaults of the class that it names."""
    kind = data.get("model_type") or default_type
    return Fields(data, file=file, at=at, defaults=class_defaults().get(kind) if isinstance(kind, str) else None)


def text_fields(outer: Fields) -> Fields:
    """The mapping that describes the text decoder: the file itself, or the one nested in it."""
    for key in NESTED:
        if isinstance(outer.data.get(key), dict):
            nested: dict[str, Any] = outer.data[key]
            inner_type = nested.get("model_type") or outer.defaults.get(key)
            if not isinstance(inner_type, str):
                inner_type = DEFAULT_TEXT.get(str(outer.data.get("model_type")))
            kind = {**nested, "model_type": inner_type} if inner_type else dict(nested)
            inner = Fields(kind, file=outer.file, at=f"{outer.at}{key}.", defaults=class_defaults().get(str(inner_type)))
            inner.nested = True
            return text_fields(inner)
    kind_of = outer.data.get("model_type")
    if isinstance(kind_of, str) and kind_of in FLAT_TEXT:
        return Fields(
            {**outer.data, "model_type": FLAT_TEXT[kind_of]},
            file=outer.file,
            at=outer.at,
            defaults=class_defaults().get(FLAT_TEXT[kind_of]),
        )
    return outer


DEFAULT_TEXT: dict[str, str] = {
    "llava": "llama",
    "llava_next": "llama",
    "internvl_chat": "internlm2",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "mistral3": "mistral",
    "paligemma": "gemma",
    "llama4": "llama4_text",
    "mllama": "mllama_text_model",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen2_vl": "qwen2_vl_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "glm4v": "glm4v_text",
    "glm4v_moe": "glm4v_moe_text",
    "lfm2_vl": "lfm2",
    "smolvlm": "llama",
    "idefics3": "llama",
}
FLAT_TEXT = {
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen2_vl": "qwen2_vl_text",
    "gemma3": "gemma3_text",
    "llama4": "llama4_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "phi3_v": "phi3",
}


def tied(outer: Fields, text: Fields) -> bool:
    """Whether the head is the token table: as the file's top level says, then the text decoder's, then the class."""
    for f in (outer, text):
        if "tie_word_embeddings" in f:
            return f.flag("tie_word_embeddings")
    return (text if text is outer else outer).flag("tie_word_embeddings", default=text.flag("tie_word_embeddings", default=False))


def vocabulary(f: Fields) -> int:
    """Rows of the token table."""
    return f.count("padded_vocab_size") if "padded_vocab_size" in f else f.count("vocab_size", essential=True)


def context(f: Fields) -> int | None:
    """The longest sequence the file states."""
    return f.maybe("max_position_embeddings", "n_positions", "seq_length", "max_seq_len", "max_sequence_length", "n_ctx")


def dtype(outer: Fields, text: Fields) -> str | None:
    """The dtype of unquantised tensors, None where the file does not say."""
    for f in (outer, text):
        for key in ("torch_dtype", "dtype"):
            stated = f.data.get(key)
            if stated is None or stated == "auto":
                continue
            name = stated.removeprefix("torch.") if isinstance(stated, str) else ""
            if name not in DTYPES:
                raise f.refuse(key, f"is not one of {', '.join(DTYPES)}", stated)
            return DTYPES[name]
    return None
