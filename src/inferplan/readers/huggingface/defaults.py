"""What the configuration class of each model type assumes for fields that a file leaves out. Knows no field's meaning."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from inferplan.readers.huggingface.fields import Fields


@cache
def class_defaults() -> dict[str, dict[str, Any]]:
    """The declared defaults of each model type."""
    text = files("inferplan.readers.huggingface").joinpath("class_defaults.json").read_text(encoding="utf-8")
    table: dict[str, dict[str, Any]] = json.loads(text)["defaults"]
    return table


def typed(parent: Fields, key: str, kind: str) -> Fields:
    """The mapping under `key` (empty where it is absent), read with the defaults of model type `kind`.

    >>> typed(Fields({}), "vision_config", "siglip_vision_model").count("num_hidden_layers")
    12
    """
    return parent.sub(key, defaults=class_defaults().get(kind, {}))
