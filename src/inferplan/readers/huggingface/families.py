"""Which reader serves which model type. Knows the names of architectures, not their shapes."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from inferplan.errors import Unsupported
from inferplan.readers.huggingface import dense, experts, hybrid, latent, legacy
from inferplan.readers.huggingface.fields import Fields

Reader = Callable[[Fields], dict[str, Any]]


def _dense(name: str) -> Reader:
    return lambda f: dense.decoder(f, dense.TRAITS[name])


READERS: dict[str, Reader] = {
    **{name: _dense(name) for name in dense.TRAITS},
    **legacy.READERS,
    **experts.READERS,
    **latent.READERS,
    **hybrid.READERS,
}

SAME_AS = {
    "qwen2_5": "qwen2", "yi": "llama", "aquila": "llama", "deepseek_llm": "llama", "xverse": "llama", "phi-msft": "phi", "RefinedWeb": "falcon",
    "RefinedWebModel": "falcon", "kimi_k2": "deepseek_v3", "glm_text": "glm", "mistral_text": "mistral", "granite_text": "granite",
}  # fmt: skip


def reader_of(model_type: str) -> tuple[str, Reader]:
    """The canonical model type and its reader; Unsupported by name where there is none, never a guess."""
    name = SAME_AS.get(model_type, model_type)
    if name in READERS:
        return name, READERS[name]
    near = difflib.get_close_matches(model_type, READERS, n=3)
    hint = f"; known ones near it: {', '.join(near)}" if near else ""
    raise Unsupported(f"model type '{model_type[:60]}' is not understood: its layers have no reader here{hint}")
