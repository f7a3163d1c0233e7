"""A model spec as the YAML text that reads back to it: defaults left out, one line per part. Knows no architecture."""

from __future__ import annotations

from typing import Any

from inferplan.specs.model import Model, Stack

_ORDER = (
    "name",
    "title",
    "aliases",
    "checkpoints",
    "family",
    "architecture",
    "sources",
    "published",
    "total",
    "note",
    "context",
    "dtype",
    "precision",
    "hidden",
    "vocab",
    "head",
    "head_bias",
    "embedding_width",
    "positions",
    "layers",
    "blocks",
    "norms",
    "norm_bias",
    "extra",
    "mtp",
    "towers",
)
_WIDTH = 140
_BLOCK = {"mixer", "mixers", "ffn", "ffns", "layers"}
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./+()* ")


def model_yaml(model: Model) -> str:
    """The YAML text of a model spec; its total is always stated, so that a later edit that breaks it is noticed.

    >>> text = model_yaml(Model.from_mapping({"name": "m", "title": "M", "hidden": 8, "vocab": 10, "layers": "a",
    ...     "blocks": {"a": {"ffn": {"kind": "dense", "width": 16}}}}))
    >>> print(text.splitlines()[2])
    total: 568
    """
    data = model.model_dump(exclude_defaults=True)
    data["total"] = model.params
    for stack in (data, *data.get("towers", {}).values()):
        stack["blocks"] = {name: _singular(block) for name, block in stack["blocks"].items()}
    for piece, source in _pieces(data, model):
        piece["kind"] = source
    lines: list[str] = []
    for key in sorted(data, key=_ORDER.index):
        lines += _entry(key, data[key], 0)
    return "\n".join(lines) + "\n"


def _singular(block: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for many, one in (("mixers", "mixer"), ("ffns", "ffn")):
        pieces = block.pop(many, ())
        if len(pieces) == 1:
            found[one] = dict(pieces[0])
        elif pieces:
            found[many] = [dict(p) for p in pieces]
    return {**found, **block}


def _pieces(data: dict[str, Any], model: Model) -> list[tuple[dict[str, Any], str]]:
    """Every mixer and feed-forward mapping with its kind, which a dump without defaults leaves out."""
    found: list[tuple[dict[str, Any], str]] = []
    stacks: list[tuple[dict[str, Any], Stack]] = [(data, model)]
    stacks += [(data["towers"][n], t) for n, t in model.towers.items()]
    for stack, spec in stacks:
        for name, block in stack["blocks"].items():
            written = [p for key in ("mixer", "mixers", "ffn", "ffns") for p in _as_list(block.get(key))]
            pieces = (*spec.blocks[name].mixers, *spec.blocks[name].ffns)
            found += [(w, p.kind) for w, p in zip(written, pieces, strict=True)]
    return found


def _as_list(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _entry(key: str, value: Any, depth: int) -> list[str]:
    """The lines of one key: on one line where it fits, else opened up."""
    pad = "  " * depth
    flow = f"{pad}{_text(key)}: {_flow(value)}"
    nested = isinstance(value, dict) and (key in ("sources", "blocks", "towers", "checkpoints") or bool(_BLOCK & set(value)))
    if (
        not isinstance(value, (dict, list, tuple))
        or (len(flow) <= _WIDTH and not nested and depth > 0)
        or (not nested and len(flow) <= 100)
    ):
        return [flow]
    lines = [f"{pad}{_text(key)}:"]
    if isinstance(value, dict):
        for k, v in sorted(value.items(), key=lambda kv: kv[0] != "kind"):
            lines += _entry(str(k), v, depth + 1)
        return lines
    return lines + [f"{pad}  - {_flow(v)}" for v in value]


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        items = sorted(value.items(), key=lambda kv: kv[0] != "kind")
        return "{" + ", ".join(f"{_text(str(k))}: {_flow(v)}" for k, v in items) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_flow(v) for v in value) + "]"
    return _text(value)


def _text(value: Any) -> str:
    """A scalar as YAML reads it back: plain where that is safe, else in double quotes."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if not isinstance(value, str):
        return str(value)
    plain = (
        value
        and set(value) <= _PLAIN
        and value[0].isalpha()
        and value == value.strip()
        and value not in ("true", "false", "null", "y", "n")
    )
    if plain or (value and set(value) <= _PLAIN and value[0] == "("):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'
