"""Encoder-decoder and encoder-only families: T5, BART and its kin, Whisper, Moonshine, and BERT with its descendants.

Knows their shapes from the modules of the published implementations; no image and no decoder-only family.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from inferplan.readers.huggingface.assemble import Layers, uniform
from inferplan.readers.huggingface.audio import stem
from inferplan.readers.huggingface.defaults import typed
from inferplan.readers.huggingface.dense import by_type
from inferplan.readers.huggingface.encoders import conv, dense, depth, divided, idle, layer, scale, table, tower, vector
from inferplan.readers.huggingface.fields import Fields
from inferplan.specs.ffns import Dense
from inferplan.specs.mixers import Attention
from inferplan.specs.model import Block, Extra, Tower

Parts = dict[str, Any]
Reader = Callable[[Fields], Parts]


def class_of(f: Fields) -> str:
    """The class the file names, or nothing."""
    names = f.data.get("architectures") or [""]
    return str(names[0]) if isinstance(names, list) else ""


# T5 -----------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class T5Shape:
    """The numbers both halves of a T5 share."""

    hidden: int
    heads: int
    head_dim: int
    ffn: Dense
    buckets: int
    every: bool

    def mixer(self, *, first: bool, **more: Any) -> Attention:
        """Attention with a table of relative positions on the first layer, or on every one."""
        buckets = self.buckets if first or self.every else 0
        return Attention(heads=self.heads, kv_heads=self.heads, head_dim=self.head_dim, relative_buckets=buckets, **more)

    def encoder(self, layers: int) -> Layers:
        """Layers of the encoder."""
        return self._stack(layers, lambda first: (self.mixer(first=first, causal=False, cached=False),), 2)

    def decoder(self, layers: int) -> Layers:
        """Layers of the decoder: self attention, then attention to the encoder's outputs."""
        cross = Attention(heads=self.heads, kv_heads=self.heads, head_dim=self.head_dim, memory=self.hidden, causal=False)
        return self._stack(layers, lambda first: (self.mixer(first=first), cross), 3)

    def _stack(self, layers: int, mixers: Callable[[bool], tuple[Attention, ...]], norms: int) -> Layers:
        blocks = [Block(mixers=mixers(i == 0), ffns=(self.ffn,), norms=norms) for i in range(layers)]
        return [("layer" if i or self.every else "first", block) for i, block in enumerate(blocks)]


def t5_shape(f: Fields, *, every: bool = False) -> T5Shape:
    """T5's numbers; `feed_forward_proj` says whether the block is gated."""
    gated = f.text("feed_forward_proj", default="relu").startswith("gated-")
    return T5Shape(
        hidden=f.count("d_model", essential=True),
        heads=f.count("num_heads", essential=True),
        head_dim=f.count("d_kv"),
        ffn=Dense(width=f.count("d_ff"), gated=gated),
        buckets=f.count("relative_attention_num_buckets", default=32),
        every=every,
    )


def t5(f: Fields, *, every: bool = False) -> Parts:
    """T5, mT5, Flan-T5 and UMT5 (relative positions on every layer). A file that says its head is not tied stores one of its own."""
    shape = t5_shape(f, every=every)
    layers = depth(f, "num_layers", essential=True)
    if class_of(f).endswith("EncoderModel"):
        return {"hidden": shape.hidden, "layers": shape.encoder(layers), "head": "none"}
    encoder = tower(shape.hidden, shape.encoder(layers), norm_bias=False, counts_as="encoder")
    head = {"head": "none"} if class_of(f).endswith("T5Model") else {}
    return {
        "hidden": shape.hidden,
        "layers": shape.decoder(depth(f, "num_decoder_layers", "num_layers")),
        "towers": {"encoder": encoder},
        **head,
    }


def umt5(f: Fields) -> Parts:
    """UMT5: T5 with a table of relative positions on every layer."""
    return t5(f, every=True)


def t5gemma(f: Fields) -> Parts:
    """T5Gemma: Gemma 2 as an encoder and as a decoder with cross attention, each with a token table of its own."""
    one, two = (typed(f, key, "t5_gemma_module") for key in ("encoder", "decoder"))
    memory = one.count("hidden_size")
    inner = gemma_half(one, 4, causal=False, cached=False)
    words = table("words", one.count("vocab_size"), memory, part="embedding")
    encoder = tower(memory, inner, norm_bias=False, extra=(words,), counts_as="encoder")
    layers = [(name, block.model_copy(update={"mixers": (*block.mixers, _looking(block, memory))})) for name, block in gemma_half(two, 6)]
    return {
        "hidden": two.count("hidden_size"),
        "layers": layers,
        "towers": {"encoder": encoder},
        "vocab": two.count("vocab_size"),
        "head": tied_or_own(f),
        "context": two.maybe("max_position_embeddings"),
    }


def gemma_half(f: Fields, norms: int, **attention: Any) -> Layers:
    """Gemma 2's layers, sliding and full in turn."""
    count, bias = depth(f, "num_hidden_layers"), "qkvo" if f.flag("attention_bias") else ""
    layers = []
    for kind in by_type(f, count, lambda i: not i % 2):
        window = f.count("sliding_window") if kind == "sliding_attention" else None
        mixer = Attention(
            heads=f.count("num_attention_heads"),
            kv_heads=f.count("num_key_value_heads"),
            head_dim=f.count("head_dim"),
            bias=bias,
            window=window,
            **attention,
        )
        block = Block(mixers=(mixer,), ffns=(Dense(width=f.count("intermediate_size")),), norms=norms)
        layers.append(("local" if window else "global", block))
    return layers


def _looking(block: Block, memory: int) -> Attention:
    own = block.mixers[0]
    assert isinstance(own, Attention)
    return own.model_copy(update={"memory": memory, "causal": False, "window": None})


# BART and its kin ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bart:
    """What sets a family apart. `spare` rows precede the positions; without `positions` they are computed, not stored."""

    spare: int = 0
    positions: bool = True
    embedding_norm: bool = False
    final_norm: bool = False
    bias: str = "qkvo"
    shared: bool = True


BARTS = {
    "bart": Bart(spare=2, embedding_norm=True),
    "plbart": Bart(spare=2, embedding_norm=True),
    "mbart": Bart(spare=2, embedding_norm=True, final_norm=True),
    "pegasus": Bart(final_norm=True),
    "marian": Bart(),
    "blenderbot": Bart(final_norm=True),
    "blenderbot-small": Bart(embedding_norm=True),
    "m2m_100": Bart(positions=False, final_norm=True),
    "led": Bart(embedding_norm=True),
    "whisper": Bart(final_norm=True, bias="qvo", shared=False),
}


def half_layers(
    f: Fields, which: str, hidden: int, bias: str, *, memory_tokens: int | None = None, extra: tuple[Extra, ...] = ()
) -> Layers:
    """Layers of the encoder, or of the decoder with attention to the encoder's outputs."""
    heads, head_dim = divided(f, hidden, f"{which}_attention_heads", essential=True)
    inner = f.count(f"{which}_ffn_dim", essential=True)
    count = depth(f, f"{which}_layers", essential=True)
    if which == "encoder":
        return uniform(layer(heads, head_dim, inner, bias=bias, extra=extra), count)
    own = Attention(heads=heads, kv_heads=heads, head_dim=head_dim, bias=bias)
    cross = own.model_copy(update={"memory": hidden, "memory_tokens": memory_tokens, "causal": False})
    return uniform(Block(mixers=(own, cross), ffns=(Dense(width=inner, gated=False, bias=True),), norms=3, norm_bias=True), count)


def bart(f: Fields, traits: Bart) -> Parts:
    """BART, mBART, Pegasus, Marian and the like; a class of the decoder alone leaves the encoder out."""
    hidden, norms = f.count("d_model", essential=True), traits.embedding_norm + traits.final_norm
    places = f.count("max_position_embeddings") + traits.spare if traits.positions else 0
    own = copies(f, hidden) if traits.shared else ()
    parts = {
        "hidden": hidden,
        "layers": half_layers(f, "decoder", hidden, traits.bias),
        "norms": norms,
        "norm_bias": True,
        "positions": places,
        "extra": own,
    }
    if alone(f):
        return {**parts, "extra": ()}
    tables = (table("positions", places, hidden),) if places else ()
    encoder = tower(hidden, half_layers(f, "encoder", hidden, traits.bias), norms=norms, extra=tables, counts_as="encoder")
    return {**parts, "towers": {"encoder": encoder}, **headless(f)}


def copies(f: Fields, hidden: int) -> tuple[Extra, ...]:
    """Token tables beside the decoder's: the encoder's and an unused one, where the file does not tie them."""
    if f.flag("tie_word_embeddings", default=True):
        return ()
    rows = f.count("vocab_size", essential=True)
    return (table("encoder.words", rows, hidden, part="embedding"), idle("unused.words", rows * hidden))


def alone(f: Fields) -> bool:
    """Whether the file names a class of the decoder without its encoder."""
    return class_of(f).endswith("ForCausalLM")


def headless(f: Fields) -> Parts:
    """No head where the file names a bare model."""
    return {"head": "none"} if class_of(f).endswith("Model") and not class_of(f).endswith(("HeadModel", "MTModel")) else {}


def marian(f: Fields) -> Parts:
    """Marian: BART without norms around the stacks; halves of different languages may have tables of their own."""
    parts = bart(f, BARTS["marian"])
    if f.flag("share_encoder_decoder_embeddings", default=True) or alone(f):
        return parts
    hidden = parts["hidden"]
    rows, source = f.maybe("decoder_vocab_size") or f.count("vocab_size"), f.count("vocab_size", essential=True)
    encoder: Tower = parts["towers"]["encoder"]
    encoder = encoder.model_copy(update={"extra": (*encoder.extra, table("words", source, hidden, part="embedding"))})
    return {**parts, "vocab": rows, "towers": {"encoder": encoder}}


def led(f: Fields) -> Parts:
    """LED: BART whose encoder has windows and a second set of q, k, v for its global tokens."""
    hidden, windows = f.count("d_model", essential=True), f.raw("attention_window", default=512)
    heads, head_dim = divided(f, hidden, "encoder_attention_heads", essential=True)
    sizes = windows if isinstance(windows, list) else [windows]
    second = (dense("global.qkv", hidden, hidden, bias=True, copies=3),)
    window = max(f.checked(w, "attention_window") for w in sizes)
    block = layer(heads, head_dim, f.count("encoder_ffn_dim"), window=window, extra=second)
    places = (table("positions", f.count("max_encoder_position_embeddings"), hidden),)
    encoder = tower(hidden, uniform(block, depth(f, "encoder_layers")), extra=places, counts_as="encoder")
    layers = half_layers(f, "decoder", hidden, "qkvo")
    return {
        "hidden": hidden,
        "layers": layers,
        "norm_bias": True,
        "positions": f.count("max_decoder_position_embeddings"),
        "towers": {"encoder": encoder},
        "extra": copies(f, hidden),
    }


def whisper(f: Fields) -> Parts:
    """Whisper: an encoder of sound whose positions are stored, a decoder that looks at its frames (1500 for 30 seconds)."""
    hidden, frames = f.count("d_model", essential=True), f.count("max_source_positions")
    bias = BARTS["whisper"].bias
    parts = {
        "hidden": hidden,
        "layers": half_layers(f, "decoder", hidden, bias, memory_tokens=frames),
        "norm_bias": True,
        "positions": f.count("max_target_positions"),
        "context": f.count("max_target_positions"),
    }
    if alone(f):
        return parts
    extra = (*stem(f, hidden), table("positions", frames, hidden))
    encoder = tower(hidden, half_layers(f, "encoder", hidden, bias), extra=extra, counts_as="encoder", tokens=frames)
    return {**parts, "towers": {"encoder": encoder}, **headless(f)}


def moonshine(f: Fields) -> Parts:
    """Moonshine: three convolutions over samples, rotary positions, a gated block in the decoder alone."""
    hidden, inner = f.count("hidden_size", essential=True), f.count("intermediate_size")
    bias = "qkv" if f.flag("attention_bias") else ""
    shape: dict[str, dict[str, Any]] = {}
    for which in ("encoder", "decoder"):
        heads, head_dim = divided(f, hidden, f"{which}_num_attention_heads", essential=True)
        shape[which] = {"heads": heads, "kv_heads": f.maybe(f"{which}_num_key_value_heads") or heads, "head_dim": head_dim, "bias": bias}
    own = Attention(**shape["decoder"])
    cross = own.model_copy(update={"memory": hidden, "causal": False})
    block = Block(mixers=(own, cross), ffns=(Dense(width=inner, bias=True),), norms=3)
    blind = Attention(**shape["encoder"], causal=False, cached=False)
    seeing = Block(mixers=(blind,), ffns=(Dense(width=inner, gated=False, bias=True),))
    convs = (
        conv("conv_1", 1, hidden, 127),
        conv("conv_2", hidden, 2 * hidden, 7, bias=True),
        conv("conv_3", 2 * hidden, hidden, 3, bias=True),
        scale("group_norm", hidden),
    )
    encoder = tower(hidden, uniform(seeing, depth(f, "encoder_num_hidden_layers")), norm_bias=False, extra=convs, counts_as="encoder")
    return {
        "hidden": hidden,
        "layers": uniform(block, depth(f, "decoder_num_hidden_layers")),
        "towers": {"encoder": encoder},
        **headless(f),
    }


# BERT and its descendants -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bert:
    """What sets a family apart. `pooler` and `types` are the pooling layer of the bare model and the table of token types.

    `two_biases`: a head that is not tied has a bias beside the one of its own.
    """

    pooler: bool = True
    types: bool = True
    positions: bool = True
    relative: bool = False
    classifier: str = "pooled"
    two_biases: bool = False


BERTS = {
    "bert": Bert(two_biases=True),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), Bert(classifier="dense", two_biases=True)),
    "distilbert": Bert(pooler=False, types=False, classifier="dense"),
    "electra": Bert(pooler=False, classifier="dense"),
    "mpnet": Bert(types=False, relative=True, classifier="dense"),
}


def bert_blocks(f: Fields, hidden: int) -> Layers:
    """BERT's layers: attention to all positions and a block of two matrices, biases everywhere."""
    heads, head_dim = divided(f, hidden, "num_attention_heads", "n_heads", essential=True)
    block = layer(heads, head_dim, f.count("intermediate_size", "hidden_dim"))
    return uniform(block, depth(f, "num_hidden_layers", "n_layers", essential=True))


def bert(f: Fields, traits: Bert) -> Parts:
    """BERT and its descendants, with the head that the class in the file has."""
    hidden = f.count("hidden_size", "dim", essential=True)
    narrow = f.maybe("embedding_size") or hidden
    extra = [scale("embedding.norm", narrow)]
    extra += [table("token_types", f.count("type_vocab_size"), narrow)] if traits.types and f.maybe("type_vocab_size") else []
    extra += [table("positions", f.count("max_position_embeddings"), narrow)] if traits.positions else []
    extra += [dense("embedding.projection", narrow, hidden, bias=True)] if narrow != hidden else []
    if traits.relative:
        extra.append(table("relative_positions", f.count("relative_attention_num_buckets", default=32), f.count("num_attention_heads")))
    parts = bert_head(f, traits, hidden, narrow)
    extra += parts.pop("extra")
    return {"hidden": hidden, "layers": bert_blocks(f, hidden), "norms": 0, "extra": tuple(extra), "embedding_width": narrow, **parts}


def bert_head(f: Fields, traits: Bert, hidden: int, narrow: int) -> Parts:
    """What stands behind the layers: a pooler, a classifier, or the transform in front of the tied token table and a bias."""
    name = class_of(f)
    pooler = (dense("pooler", hidden, hidden, bias=True),)
    if name.endswith(("MaskedLM", "LMHeadModel", "CausalLM", "PreTraining")) or not name:
        second = (vector("bias", f.count("vocab_size", essential=True)),) if traits.two_biases and tied_or_own(f) == "own" else ()
        front = (dense("transform", hidden, narrow, bias=True), scale("transform.norm", narrow), *second)
        return {"head": tied_or_own(f), "head_bias": True, "extra": front}
    if name.endswith("Classification"):
        labels = labels_of(f)
        within = pooler if traits.classifier == "dense" or traits.pooler else ()
        within = () if name.endswith("TokenClassification") else within
        return {"head": "none", "extra": (*within, dense("classifier", hidden, labels, bias=True))}
    if name.endswith("Model"):
        return {"head": "none", "extra": pooler if traits.pooler else ()}
    raise f.refuse("architectures", "is a class whose head is not understood here", name)


def labels_of(f: Fields) -> int:
    """Classes of a classifier: those the file names, else two."""
    names = f.raw("id2label", default=None)
    return len(names) if isinstance(names, dict) and names else f.maybe("num_labels") or 2


def tied_or_own(f: Fields) -> str:
    """The head of a masked language model is the token table unless the file says otherwise."""
    return "tied" if f.flag("tie_word_embeddings", default=True) else "own"


def modernbert(f: Fields) -> Parts:
    """ModernBERT: gated blocks, no biases, windows on two layers of three, no norm in front of the first attention."""
    hidden = f.count("hidden_size", essential=True)
    heads, head_dim = divided(f, hidden, "num_attention_heads", essential=True)
    count, every = depth(f, "num_hidden_layers", essential=True), f.maybe("global_attn_every_n_layers") or 3
    kinds = by_type(f, count, lambda i: bool(i % every))
    norm_bias, bias = f.flag("norm_bias"), "qkvo" if f.flag("attention_bias") else ""
    layers = []
    for i, kind in enumerate(kinds):
        window = f.count("local_attention", "sliding_window") if kind == "sliding_attention" else None
        block = layer(
            heads,
            head_dim,
            f.count("intermediate_size"),
            bias=bias,
            gated=True,
            mlp_bias=f.flag("mlp_bias"),
            norms=2 if i else 1,
            norm_bias=norm_bias,
            window=window,
        )
        layers.append(("first" if not i else "local" if window else "global", block))
    extra, head = modernbert_head(f, hidden, norm_bias)
    return {"hidden": hidden, "layers": layers, "norms": 2, "norm_bias": norm_bias, "extra": extra, **head}


def modernbert_head(f: Fields, hidden: int, norm_bias: bool) -> tuple[tuple[Extra, ...], Parts]:
    """ModernBERT's prediction head or classifier."""
    name = class_of(f)
    if name.endswith("Model"):
        return (), {"head": "none"}
    front = (dense("transform", hidden, hidden, bias=f.flag("classifier_bias")), scale("transform.norm", hidden, bias=norm_bias))
    if name.endswith("Classification"):
        labels = labels_of(f)
        return (*front, dense("classifier", hidden, labels, bias=True)), {"head": "none"}
    return front, {"head": tied_or_own(f), "head_bias": f.flag("decoder_bias", default=True)}


def deberta(f: Fields) -> Parts:
    """DeBERTa v2 and v3: a table of relative positions, projected by each layer's own q and k or by weights beside them."""
    parts = bert(f, Bert(pooler=False, two_biases=True, positions=f.flag("position_biased_input", default=True)))
    hidden, kinds = parts["hidden"], str(f.raw("pos_att_type", default=""))
    extra, beside = list(parts["extra"]), 0
    if f.flag("relative_attention"):
        reach = f.maybe("position_buckets") or f.maybe("max_relative_positions") or f.count("max_position_embeddings")
        extra.append(table("relative_positions", 2 * reach, hidden))
        beside = 0 if f.flag("share_att_key") else sum(kind in kinds for kind in ("c2p", "p2c"))
    if "layer_norm" in str(f.raw("norm_rel_ebd", default="none")).lower():
        extra.append(scale("relative_positions.norm", hidden))
    if taps := f.maybe("conv_kernel_size"):
        extra += [conv("conv", hidden // f.count("conv_groups", default=1), hidden, taps, bias=True), scale("conv.norm", hidden)]
    own = (dense("relative.projection", hidden, hidden, bias=True, copies=beside),) if beside else ()
    layers = [(name, block.model_copy(update={"extra": own})) for name, block in parts["layers"]]
    return {**parts, "layers": layers, "extra": tuple(extra)}


def nomic(f: Fields) -> Parts:
    """Nomic BERT: rotary positions and gated blocks, no biases; norms with them."""
    hidden = f.count("hidden_size", "n_embd", essential=True)
    heads = f.count("num_attention_heads", "n_head", essential=True)
    head_dim = f.maybe("head_dim") or hidden // heads
    bias = "qkvo" if f.flag("qkv_proj_bias", "attention_bias") else ""
    block = layer(
        heads, head_dim, f.count("intermediate_size", "n_inner"), bias=bias, gated=True, mlp_bias=f.flag("mlp_bias", "mlp_fc1_bias")
    )
    parts = bert_head(f, Bert(pooler=False, classifier="dense"), hidden, hidden)
    types = (table("token_types", f.count("type_vocab_size"), hidden),) if f.maybe("type_vocab_size") else ()
    extra = (scale("embedding.norm", hidden), *types, *parts.pop("extra"))
    return {"hidden": hidden, "layers": uniform(block, depth(f, "num_hidden_layers", "n_layer")), "norms": 0, "extra": extra, **parts}


def _bart(name: str) -> Reader:
    return lambda f: bart(f, BARTS[name])


def _bert(name: str) -> Reader:
    return lambda f: bert(f, BERTS[name])


READERS: dict[str, Reader] = {
    "t5": t5, "mt5": t5, "umt5": umt5, **{name: _bart(name) for name in BARTS}, "marian": marian, "led": led, "whisper": whisper,
    "moonshine": moonshine, **{name: _bert(name) for name in BERTS}, "modernbert": modernbert, "deberta-v2": deberta, "t5gemma":
    t5gemma, "nomic_bert": nomic,
}  # fmt: skip
