"""Which reader serves which model type. Knows the names of architectures, not their shapes."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from inferplan.errors import Unsupported
from inferplan.readers.huggingface import dense, encdec, exotic, experts, hybrid, latent, legacy, multimodal, remote
from inferplan.readers.huggingface.fields import Fields

Reader = Callable[[Fields], dict[str, Any]]


def _dense(name: str) -> Reader:
    return lambda f: dense.decoder(f, dense.TRAITS[name])


READERS: dict[str, Reader] = {
    **{name: _dense(name) for name in dense.TRAITS},
    **legacy.READERS,
    **latent.READERS,
    **hybrid.READERS,
    **experts.READERS,
    **exotic.READERS,
    **remote.READERS,
    **encdec.READERS,
    **multimodal.READERS,
    "deci": lambda f: remote.decilm(f) if "num_key_value_heads_per_layer" in f else hybrid.deci(f),
}

SAME_AS = {
    "qwen2_5": "qwen2", "yi": "llama", "aquila": "llama", "deepseek_llm": "llama", "xverse": "llama", "skywork": "llama", "Yi": "llama",
    "stablelm_epoch": "stablelm", "hunyuan_vl_text": "hunyuan_v1_dense", "paddleocr_vl_text": "ernie4_5",
    "qwen2_5_omni_text": "qwen2", "granite_docling_text": "granite", "phi4_multimodal": "phi3", "phi4mm": "phi3",
    "kimi_k2": "deepseek_v3", "glm_text": "glm", "mistral_text": "mistral", "granite_text": "granite",
}  # fmt: skip


DRAFTS = ("gemma4_assistant", "gemma4_unified_assistant", "muse_glimmer_assistant", "diffusion_gemma")


def refuse_drafts(model_type: object) -> None:
    """Refuse a file whose text decoder is only part of what it describes: drafters tied to a larger model, diffusion decoders."""
    if model_type in DRAFTS:
        raise Unsupported(f"model type '{model_type}' is not understood: its text decoder has parts outside it that have no reader here")


def reader_of(model_type: str) -> tuple[str, Reader]:
    """The canonical model type and its reader; Unsupported by name where there is none, never a guess."""
    name = SAME_AS.get(model_type, model_type)
    if name in READERS:
        return name, READERS[name]
    near = difflib.get_close_matches(model_type, READERS, n=3)
    hint = f"; known ones near it: {', '.join(near)}" if near else ""
    raise Unsupported(f"model type '{model_type[:60]}' is not understood: its layers have no reader here{hint}")
