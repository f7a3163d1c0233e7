"""The names checkpoints give to the weights of a Model, and whether a pattern of a quantisation list covers one. Knows no format.

A list names modules as `model.layers.3.self_attn.q_proj`, as a part of such a name, as a glob, or (after `re:`) as a
regular expression. Families spell their modules differently, so each weight has several candidate names.
"""

from __future__ import annotations

import fnmatch
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from inferplan.errors import SpecError, Unsupported
from inferplan.specs.model import Model
from inferplan.specs.order import expand
from inferplan.specs.weights import Weight

MAX_PATTERNS = 100_000
MAX_GENERAL = 500
MAX_REGEX = 200
MAX_STARS = 6

ATTENTION = ("self_attn", "attention", "attn", "mixer", "self_attention")
FEED_FORWARD = ("mlp", "feed_forward", "ffn", "mixer", "block_sparse_moe")
LEAVES: dict[str, tuple[str, ...]] = {
    "q": ("q_proj", "qkv_proj", "wq", "wqkv", "query_key_value"), "k": ("k_proj", "qkv_proj", "wk", "wqkv", "query_key_value"),
    "v": ("v_proj", "qkv_proj", "wv", "wqkv", "query_key_value"), "o": ("o_proj", "wo", "dense", "out_proj"), "gate": ("q_proj",
    "g_proj", "gate_proj"),
    "q_a": ("q_a_proj", "wq_a", "fused_qkv_a_proj"), "q_b": ("q_b_proj", "wq_b"), "kv_a": ("kv_a_proj_with_mqa", "wkv_a"),
    "kv_b": ("kv_b_proj", "wkv_b"), "kv": ("wkv", "kv_proj"), "o_a": ("wo_a", "o_a_proj"), "o_b": ("wo_b", "o_b_proj"),
    "gate_up": ("gate_proj", "up_proj", "gate_up_proj", "w1", "w3"), "up": ("up_proj", "fc1", "c_fc", "dense_h_to_4h", "w1"),
    "down": ("down_proj", "fc2", "c_proj", "dense_4h_to_h", "w2"),
    "latent_down": ("fc1_latent_proj",), "latent_up": ("fc2_latent_proj",),
    "qkvz": ("in_proj_qkvz", "in_proj_qkv", "in_proj_z"), "ba": ("in_proj_ba", "in_proj_a", "in_proj_b"), "out": ("out_proj", "o_proj"),
    "in": ("in_proj",), "x": ("x_proj",), "dt": ("dt_proj",), "qkv": ("qkv_proj", "q_proj", "k_proj", "v_proj"), "gate_a": ("g_a_proj",),
    "gate_b": ("g_b_proj",), "decay_a": ("f_a_proj",), "decay_b": ("f_b_proj",), "beta": ("b_proj",), "gates": ("rg_lru",),
}  # fmt: skip
RECURRENT = {
    "gated_delta": ("linear_attn",),
    "kda": ("self_attn", "linear_attn"),
    "lightning": ("self_attn",),
    "short_conv": ("conv",),
    "rg_lru": ("temporal_block",),
}
INDEXER = {
    "indexer.q": ("indexer.wq_b", "indexer.q_proj"), "indexer.k": ("indexer.wk", "indexer.k_proj"),
    "indexer.weights": ("indexer.weights_proj", "indexers_proj"), "compressor.kv_gate": ("compressor.wkv", "compressor.wgate"),
    "indexer.compressor.kv_gate": ("indexer.compressor.wkv", "indexer.compressor.wgate"),
}  # fmt: skip
PREFIXES = (
    "model.language_model.model.", "language_model.model.", "model.language_model.", "model.text_model.", "thinker.model.", "backbone.",
    "transformer.",
    "model.decoder.", "text_model.",
)  # fmt: skip
ASIDE = {
    "vision": (
        "vision",
        "visual",
        "vit",
        "mm_projector",
        "multi_modal_projector",
        "audio",
        "embed_vision",
        "image",
        "patch_embed",
        "siglip",
    ),
    "head": ("lm_head", "head", "output", "embed_out"),
    "embedding": ("embed_tokens", "wte", "tok_embeddings", "embed", "word_embeddings"),
}


def candidates(model: Model, w: Weight) -> list[str]:
    """Names below the layer that the published checkpoints give to one weight of a layer.

    `w.name` begins with the kind of its block (`attention.q`, `dense.gate_up`).
    """
    kind, _, rest = w.name.partition(".")
    leaf = rest.rsplit(".", 1)[-1]
    if w.part == "indexer":
        return [f"{c}.{name}" for c in ATTENTION for name in INDEXER.get(rest, (rest,))]
    leaves = LEAVES.get(leaf, (leaf,))
    return [f"{at}.{name}" for at in _containers(model, w, kind) for name in leaves]


def _containers(model: Model, w: Weight, kind: str) -> list[str]:
    if w.part == "experts":
        inside = ("",) if model.family.startswith("gemma4") else FEED_FORWARD
        return [f"{c}.experts.0".lstrip(".") for c in inside]
    if w.part == "shared_expert":
        return [f"{c}.{s}" for c in FEED_FORWARD for s in ("shared_expert", "shared_experts", "shared_mlp")] + ["shared_mlp"]
    if w.part == "recurrent":
        return list(RECURRENT.get(re.sub(r"\d+$", "", kind), ("mixer", "mamba")))
    return list(ATTENTION if w.part == "attention" else FEED_FORWARD)


@dataclass(slots=True)
class Patterns:
    """A list of module patterns, sorted by the layer they speak of so that a long list costs no more than a short one."""

    literal: dict[int | None, list[str]] = field(default_factory=dict)
    expressions: dict[int | None, list[re.Pattern[str]]] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, items: Iterable[str], layers: int) -> Patterns:
        """The patterns of a list, for a model of so many layers (and a few prediction layers after them)."""
        found = cls()
        for number, text in enumerate(items):
            if number >= MAX_PATTERNS:
                raise SpecError(f"holds more than {MAX_PATTERNS:,} names", field="quantization_config")
            found._add(text, layers)
        general = len(found.literal.get(None, ())) + len(found.expressions.get(None, ()))
        if general > MAX_GENERAL:
            raise SpecError(
                f"holds more than {MAX_GENERAL} patterns that speak of no single layer", field="quantization_config", value=general
            )
        return found

    def _add(self, text: str, layers: int) -> None:
        self.texts.append(text)
        if text.startswith("re:"):
            self.expressions.setdefault(None, []).append(expression(text[3:]))
            return
        plain = _normal(re.sub(r"\.(weight|bias)$", "", text))
        wild = any(c in plain for c in "*?[")
        for layer in _layers_of(plain, layers):
            if wild:
                self.expressions.setdefault(layer, []).append(_glob(plain))
            else:
                self.literal.setdefault(layer, []).append(f".{plain}.")

    def covers(self, names: Iterable[str], layer: int | None = None) -> bool:
        """Whether any pattern covers any of the full names of a module in `layer`."""
        keys = (None,) if layer is None else (None, layer)
        literal = [p for key in keys for p in self.literal.get(key, ())]
        expressions = [p for key in keys for p in self.expressions.get(key, ())]
        return any(any(p in f".{n}." for p in literal) or any(e.match(v) for e in expressions for v in _variants(n)) for n in names)

    def mentions(self, part: str) -> bool:
        """Whether the list names a part outside the layers: `vision`, `head` or `embedding`."""
        if part == "vision":
            return any(word in text for text in self.texts for word in ASIDE["vision"])
        return self.covers(ASIDE[part]) or self.covers(f"model.{word}" for word in ASIDE[part])


def _variants(name: str) -> tuple[str, ...]:
    """A name under the prefixes that multimodal checkpoints put before it, for regular expressions anchored at the start."""
    return (
        name,
        name.replace("model.", "model.language_model.", 1),
        name.replace("model.", "language_model.model.", 1),
        name.removeprefix("model."),
    )


def _normal(text: str) -> str:
    """A name with the usual prefixes as `model.`."""
    for prefix in PREFIXES:
        if text.startswith(prefix):
            return "model." + text.removeprefix(prefix)
    return text


def _layers_of(text: str, layers: int) -> list[int | None]:
    """The layers a name speaks of: one, those whose number begins as written before a star, or (None) no single one."""
    found = re.search(r"(?:^|[.*])(?:layers|h|blocks)\.(\d{1,6})(\*)?(?=\.|$|\*)", text)
    if not found or text.startswith("mtp") or any(word in text.split("layers")[0] for word in ASIDE["vision"]):
        return [None]
    if found[2] and found.end() == len(text):
        return [i for i in range(layers + 8) if str(i).startswith(found[1])]
    return [int(found[1])]


def _glob(text: str) -> re.Pattern[str]:
    """A glob as an expression that covers what lies below a module as well."""
    if text.count("*") > MAX_STARS or len(text) > MAX_REGEX:
        raise SpecError(f"has more than {MAX_STARS} stars or {MAX_REGEX} characters", field="quantization_config", value=text)
    body = fnmatch.translate(text).removesuffix(r"\Z").removesuffix(r"\z")
    return re.compile(rf"{body}(\..*)?\Z", re.DOTALL)


def expression(text: str) -> re.Pattern[str]:
    r"""A regular expression of a list, once it is short and cannot take exponential time.

    >>> bool(expression(r".*mlp\.(gate|up)_proj.*").match("model.layers.0.mlp.up_proj"))
    True
    """
    nested = re.search(r"\([^()]*[*+{][^()]*\)\s*[*+{]", text)
    if len(text) > MAX_REGEX or nested or len(re.findall(r"(?<!\\)[*+{]", text)) > MAX_STARS or re.search(r"\\[1-9]|\(\?[^:]", text):
        raise Unsupported(f"quantization_config: the expression '{text[:60]}' is longer or more involved than what is read here")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return re.compile(text)
    except (re.error, Warning, OverflowError, RecursionError) as e:
        raise SpecError(f"is not a regular expression: {str(e)[:60]}", field="quantization_config", value=text) from None


@dataclass(frozen=True, slots=True)
class Placed:
    """The matrices of one weight in one layer (None: outside the layers): its part, parameters, and the names it may have."""

    part: str
    layer: int | None
    params: int
    names: tuple[str, ...]


def placed(model: Model) -> Iterator[Placed]:
    """Every matrix that a quantiser may change, layer by layer; vectors, convolutions and lookups are not among them."""
    known = {name: _matrices(model, block.weights(model.hidden)) for name, block in model.blocks.items()}
    for layer, name in enumerate(model.order):
        for part, params, below in known[name]:
            yield Placed(part, layer, params, tuple(f"model.layers.{layer}.{b}" for b in below))
    if model.mtp:
        for offset, name in enumerate(expand(model.mtp.layers) * model.mtp.modules):
            layer = len(model.order) + offset
            for _, params, below in known[name]:
                names = (
                    f"{stem}.{b}" for b in below for stem in (f"model.layers.{layer}", f"mtp.layers.{offset}", f"model.mtp.layers.{offset}")
                )
                yield Placed("mtp", layer, params, tuple(names))


def _matrices(model: Model, weights: list[Weight]) -> list[tuple[str, int, list[str]]]:
    return [(w.part, w.params, candidates(model, w)) for w in weights if w.use in ("matmul", "expert") and w.part not in ("router", "norm")]


def outside(model: Model) -> Counter[str]:
    """Parameters of the matrices outside the layers that a quantiser may change."""
    found: Counter[str] = Counter(embedding=model.vocab * (model.embedding_width or model.hidden))
    for w in model.heads():
        found["head"] += w.params
    for tower in model.towers.values():
        found["vision"] += sum(w.params for w in tower.weights() if w.part == "vision" and w.use == "matmul")
    return found
