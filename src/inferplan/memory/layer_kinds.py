"""What the layers of one rank keep for a sequence: bytes per token, windows, constant states. Knows no page and no amount of memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from inferplan.engine.cache_bytes import entry_bytes, state_bytes
from inferplan.formula import formula
from inferplan.ops import Numeric
from inferplan.specs.cache import CacheEntry
from inferplan.specs.engine import Engine
from inferplan.specs.mixers import LatentAttention, Mixer
from inferplan.specs.model import Model
from inferplan.specs.order import expand
from inferplan.specs.parallel import ONE, Parallel
from inferplan.specs.precision import Precision

Kept = Literal["full", "window", "state"]
_REPLICATED = ("mla", "index", "compressed")


@formula("maximum(kv_heads / tp, 1)", unit="heads", ref="each rank holds one head at least, so heads repeat where tp exceeds them")
def heads_per_rank(kv_heads: Numeric, tp: Numeric) -> Numeric:
    """KV heads that one tensor-parallel rank caches.

    >>> float(heads_per_rank(8, 4)), float(heads_per_rank(2, 8))
    (2.0, 1.0)
    """
    return np.maximum(kv_heads / tp, 1)


@dataclass(frozen=True, slots=True)
class LayerKind:
    """Layers of a rank that keep the same: bytes per token, a window, or a state of constant size with bytes per drafted token."""

    kept: Kept
    layers: int
    token_bytes: Numeric = 0.0
    window: int | None = None
    state_bytes: Numeric = 0.0
    draft_bytes: Numeric = 0.0
    entry: tuple[CacheEntry, ...] = ()


def layer_kinds(
    model: Model, precision: Precision, parallel: Parallel = ONE, engine: Engine | None = None, *,
    layers: Iterable[int] | None = None, draft_tokens: int = 0, latent: str | None = None,
) -> list[LayerKind]:  # fmt: skip
    """What the layers of one rank keep, by kind; `layers` names those of a pipeline stage, else all.

    With `draft_tokens` the attention layers of the model's own prediction modules are cached as well.
    """
    names = list(model.order) if layers is None else [model.order[i] for i in layers]
    if draft_tokens and model.mtp and (layers is None or len(model.order) - 1 in layers):
        names += [n for n in expand(model.mtp.layers) if model.blocks[n].mixers] * model.mtp.modules
    own = _for_engine(model, precision, engine)
    how = latent or (engine.choice("latent") if engine else "")
    found: dict[object, LayerKind] = {}
    for name in dict.fromkeys(names):
        for mixer in model.blocks[name].mixers:
            for kind in _kinds(mixer, model, own, parallel, engine, how):
                key = (kind.kept, kind.window, kind.entry)
                seen = found.get(key)
                found[key] = replace(kind, layers=names.count(name) + (seen.layers if seen else 0))
    return list(found.values())


def _for_engine(model: Model, precision: Precision, engine: Engine | None) -> Precision:
    """The precision with the layout an engine has for sparse latents in 8 bit."""
    sparse = any(e.kind == "index" for _, e in model.cache()) and any(e.kind == "mla" for _, e in model.cache())
    wanted = engine.choice("sparse_latent_format") if engine else ""
    if sparse and wanted and precision.kv.bits == 8 and precision.kv.name != wanted:
        return precision.with_kv(wanted)
    return precision


def _kinds(mixer: Mixer, model: Model, precision: Precision, parallel: Parallel, engine: Engine | None, latent: str) -> list[LayerKind]:
    entries = _expanded(mixer) if latent == "expanded" and isinstance(mixer, LatentAttention) else mixer.cache()
    states = tuple(e for e in entries if e.states)
    found = [_state_kind(mixer, e, model, precision, parallel, engine) for e in states]
    grows: dict[int | None, list[CacheEntry]] = {}
    for e in entries:
        if e.k_elements:
            grows.setdefault(_window(e, engine), []).append(e)
    for window, group in grows.items():
        size = sum((_token_bytes(e, precision, parallel) for e in group), 0.0)
        found.append(LayerKind("full" if window is None else "window", 1, size, window, entry=tuple(group)))
    return found


def _window(entry: CacheEntry, engine: Engine | None) -> int | None:
    if entry.kind == "chunked" and engine is not None and engine.choice("chunked") == "full":
        return None
    return entry.fixed_tokens or entry.window


def _token_bytes(entry: CacheEntry, precision: Precision, parallel: Parallel) -> Numeric:
    """Bytes one token adds to one layer of one rank; latents lie on every rank whole."""
    whole = entry_bytes(entry, precision) / entry.every
    if replicated(entry):
        return whole
    kv_heads = entry.k_elements / entry.head_dim
    return whole / kv_heads * heads_per_rank(kv_heads, parallel.tp)


def replicated(entry: CacheEntry) -> bool:
    """Whether every tensor-parallel rank caches an entry whole: latents and index keys, which belong to no head."""
    return entry.kind in _REPLICATED or bool(entry.rope_elements) or not entry.head_dim


def _state_kind(
    mixer: Mixer, entry: CacheEntry, model: Model, precision: Precision, parallel: Parallel, engine: Engine | None
) -> LayerKind:
    fixed = engine.choice("state_format") if engine else ""
    states = tuple(replace(s, dtype=fixed) for s in entry.states) if fixed else entry.states
    conv = tuple(s for s in states if s.name == "conv")
    kernel = getattr(mixer, "conv", 0)
    drafted = state_bytes(replace(entry, states=conv), precision, model.dtype) / max(kernel - 1, 1) if kernel else 0.0
    size = state_bytes(replace(entry, states=states), precision, model.dtype)
    return LayerKind("state", 1, state_bytes=size / parallel.tp, draft_bytes=drafted / parallel.tp, entry=(entry,))


def _expanded(mixer: LatentAttention) -> list[CacheEntry]:
    """Keys and values per head of latent attention, for engines that do not keep the latent."""
    dim = mixer.nope + mixer.rope
    return [CacheEntry("full", mixer.heads * dim, mixer.heads * mixer.v, dim)]


def without_index(kind: LayerKind, precision: Precision, parallel: Parallel) -> LayerKind:
    """The same without the index keys of sparse attention, as an engine sizes its pool that forgets them."""
    index = [e for e in kind.entry if e.kind == "index"]
    return replace(kind, token_bytes=kind.token_bytes - sum((_token_bytes(e, precision, parallel) for e in index), 0.0))


def all_full(kinds: Sequence[LayerKind]) -> list[LayerKind]:
    """The same where windowed layers keep every token."""
    return [replace(k, kept="full", window=None) if k.kept == "window" else k for k in kinds]
