"""Which layer is which: lists of words, letters, periods and indices to one label per layer. Knows no width and no architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from inferplan.readers.huggingface.fields import Fields

T = TypeVar("T")
SPARSE = {"sparse": True, "moe": True, "dense": False}
SLIDES = {"sliding_attention": True, "full_attention": False}
INDEXERS = {"full": True, "F": True, "shared": False, "S": False}


def words(f: Fields, names: tuple[str, ...], layers: int, known: Mapping[str, T]) -> list[T] | None:
    """What each layer's word stands for, from the first list stated under `names`; None where no list is.

    >>> words(Fields({"layer_types": ["conv", "full_attention"]}), ("layer_types",), 2, {"conv": 0, "full_attention": 1})
    [0, 1]
    """
    for name in names:
        if isinstance(f.raw(name, default=None), list):
            return [_word(f, name, value, known) for value in f.per_layer(name, layers)]
    return None


def _word(f: Fields, name: str, value: Any, known: Mapping[str, T]) -> T:
    if not isinstance(value, str) or value not in known:
        raise f.refuse(name, f"holds a kind of layer that is not one of {', '.join(known)}", value)
    return known[value]


def by_words(f: Fields, names: tuple[str, ...], layers: int, known: Mapping[str, T], rule: Callable[[int], T]) -> list[T]:
    """The same, or by `rule` of the layer's number where the file has no list."""
    listed = words(f, names, layers, known)
    return [rule(i) for i in range(layers)] if listed is None else listed


def sparse_after(f: Fields, layers: int, first: int, *, known: Mapping[str, bool] = SPARSE) -> list[bool]:
    """Which layers hold experts: as listed, else from `first_k_dense_replace` (or `first`) on, every `moe_layer_freq`-th or as that lists.

    >>> sparse_after(Fields({}), 4, 1)
    [False, True, True, True]
    """
    listed = words(f, ("mlp_layer_types",), layers, known)
    if listed is not None:
        return listed
    freq = f.raw("moe_layer_freq", default=1)
    if isinstance(freq, list):
        return [bool(v) for v in f.per_layer("moe_layer_freq", layers)]
    start, step = f.count("first_k_dense_replace", default=first, least=0), f.checked(freq, "moe_layer_freq")
    return [i >= start and i % step == 0 for i in range(layers)]


def owns_indexer(f: Fields, layers: int, *, rule: Callable[[int], bool] | None = None) -> list[bool]:
    """Which layers choose tokens themselves, the others following an earlier layer: as listed, by a pattern of F and S, or by period.

    >>> owns_indexer(Fields({"index_topk_pattern": "FFSS"}), 4)
    [True, True, False, False]
    """
    listed = words(f, ("indexer_types",), layers, INDEXERS)
    if listed is not None:
        return listed
    pattern = f.raw("index_topk_pattern", default=None)
    if pattern is not None:
        letters = Fields({"index_topk_pattern": list(pattern)}, file=f.file, at=f.at) if isinstance(pattern, (str, list)) else f
        return words(letters, ("index_topk_pattern",), layers, INDEXERS) or []
    if rule is not None:
        return [rule(i) for i in range(layers)]
    period, offset = f.count("index_topk_freq", default=1), f.count("index_skip_topk_offset", default=2, least=0)
    return [max(i - offset + 1, 0) % period == 0 for i in range(layers)]
