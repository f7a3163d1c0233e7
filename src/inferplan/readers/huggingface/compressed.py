"""DeepSeek-V4 and families with its several residual streams: windowed and compressed attention, hyper-connections.

Knows the shapes of their modules, not how a field is checked.
"""

from __future__ import annotations

from typing import Any

from inferplan.readers.huggingface.assemble import zipped
from inferplan.readers.huggingface.dense import depth, heads_of, width
from inferplan.readers.huggingface.experts import number, routed
from inferplan.readers.huggingface.fields import Fields
from inferplan.readers.huggingface.orders import by_words, words
from inferplan.specs.ffns import Experts, SharedExpert
from inferplan.specs.mixers import CompressedAttention, Indexer
from inferplan.specs.model import Extra
from inferplan.specs.weights import Part, Use

FINE, COARSE = 4, 128
KINDS = {"sliding_attention": 0, "compressed_sparse_attention": FINE, "heavily_compressed_attention": COARSE}
HASHED = {"hash_moe": True, "moe": False, "sparse": False}


def ratios(f: Fields, layers: int) -> list[int]:
    """How many tokens each layer folds into one compressed entry by its kind: 0 (the window alone), 4 (with an indexer) or 128."""
    listed = f.data.get("compress_ratios")
    if not isinstance(listed, list):
        return by_words(f, ("layer_types",), layers, KINDS, lambda i: FINE if i > 1 and i % 2 else COARSE)
    found = [f.checked(r, "compress_ratios", 0) for r in f.per_layer("compress_ratios", layers)]
    strange = next((r for r in found if r not in KINDS.values()), None)
    if strange is not None:
        raise f.refuse("compress_ratios", "is not one of 0, 4, 128", strange)
    return found


def compressed_attention(f: Fields, ratio: int) -> CompressedAttention:
    """One layer's attention; the fine kind overlaps its windows and has an indexer."""
    fine, every = ratio == FINE, _rate(f, ratio)
    index = Indexer(
        heads=f.count("index_n_heads"), head_dim=f.count("index_head_dim"), top_k=f.count("index_topk"), inputs=f.count("q_lora_rank"),
        every=every or 1,
    ) if fine else None  # fmt: skip
    return CompressedAttention(
        heads=heads_of(f), head_dim=f.count("head_dim"), rope=_rope(f), q_rank=f.count("q_lora_rank"),
        o_groups=f.count("o_groups"), o_rank=f.count("o_lora_rank"), window=f.count("sliding_window"), every=every, overlap=fine,
        indexer=index,
    )  # fmt: skip


def _rate(f: Fields, ratio: int) -> int | None:
    """Tokens per entry of a kind: its usual ratio, or what `compress_rates` says of it."""
    if not ratio:
        return None
    stated = f.sub("compress_rates")
    return stated.maybe(next(k for k, v in KINDS.items() if v == ratio)) or ratio


def _rope(f: Fields) -> int:
    """The rotary part of a head: stated, or the stated fraction of it."""
    share = f.raw("partial_rotary_factor", default=None)
    if "qk_rope_head_dim" not in f and isinstance(share, (int, float)) and not isinstance(share, bool) and 0 <= share <= 1:
        return int(f.count("head_dim") * share)
    return f.count("qk_rope_head_dim", default=0, least=0)


def hyper_connections(hidden: int, streams: int, rows: int, scales: int = 3) -> tuple[Extra, ...]:
    """The mixing of residual streams before attention and before the feed-forward part: a projection of all streams to `rows` numbers."""
    where: tuple[tuple[str, Part], ...] = (("attention", "attention"), ("ffn", "mlp"))
    shapes = _mixing(hidden, streams, rows, scales)
    return tuple(Extra(name=f"{w}_hc.{n}", part=part, rows=r, cols=c, use=use) for w, part in where for n, r, c, use in shapes)


def _mixing(hidden: int, streams: int, rows: int, scales: int) -> tuple[tuple[str, int, int, Use], ...]:
    return (("mix", rows, streams * hidden, "matmul"), ("base", rows, 1, "vector"), ("scale", scales, 1, "vector"))


def stream_head(hidden: int, streams: int) -> tuple[Extra, ...]:
    """The weighted sum of residual streams before the final norm."""
    return tuple(Extra(name=f"hc_head.{n}", rows=r, cols=c, use=use) for n, r, c, use in _mixing(hidden, streams, streams, 1))


def v4_experts(f: Fields) -> Experts:
    """Experts as wide as the one shared expert beside them, which has a bias by `mlp_bias`."""
    inner = number(f, "moe_intermediate_size", "intermediate_size")
    if inner is None:
        raise f.refuse("moe_intermediate_size", "is required and missing")
    return routed(f, width=inner, shared=SharedExpert(width=inner, bias=f.flag("mlp_bias")), correction_bias="buffer")


def hashed_layers(f: Fields, layers: int) -> list[bool]:
    """Which layers route by a table of token ids: as listed, else the first `num_hash_layers`."""
    listed = words(f, ("mlp_layer_types",), layers, HASHED)
    first = f.count("num_hash_layers", default=3, least=0)
    return [i < first for i in range(layers)] if listed is None else listed


def deepseek_v4(f: Fields) -> dict[str, Any]:
    """DeepSeek-V4: windowed and compressed attention, hyper-connections, hash routing on the first layers."""
    count, hidden, streams = depth(f), width(f), f.count("hc_mult")
    moe = v4_experts(f)
    plain = moe.model_copy(update={"correction_bias": "none"})
    mixers = [(f"every{r}" if r else "window", compressed_attention(f, r)) for r in ratios(f, count)]
    ffns = [("hash", plain) if h else ("moe", moe) for h in hashed_layers(f, count)]
    extra = hyper_connections(hidden, streams, (2 + streams) * streams)
    return {"hidden": hidden, "layers": zipped(mixers, ffns, extra=extra), "extra": stream_head(hidden, streams)}


READERS = {"deepseek_v4": deepseek_v4, "deepseek_ref": deepseek_v4}
