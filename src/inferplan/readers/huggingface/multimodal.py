"""Text decoders that exist only inside multimodal models, Llama 3.2 Vision and others. Knows no encoder."""

from __future__ import annotations

from typing import Any

from inferplan.readers.huggingface.assemble import uniform
from inferplan.readers.huggingface.dense import TRAITS, Traits, decoder, depth, feed_forward, grouped_attention, width
from inferplan.readers.huggingface.encoders import dense, table, vector
from inferplan.readers.huggingface.fields import Fields
from inferplan.specs.ffns import Experts, SharedExpert
from inferplan.specs.model import Block, Extra

MLLAMA_IMAGE_ROWS = 8
VOXTRAL_TIME_RANK = 32


def mllama(f: Fields) -> dict[str, Any]:
    """Llama 3.2 Vision: the listed layers look at the image alone; the token table has eight more rows than the head."""
    hidden, layers, traits = width(f), depth(f), TRAITS["llama"]
    ffn = feed_forward(f, traits)
    looking = grouped_attention(f, traits, memory=hidden, causal=False, qk_norm="head", bias="")
    kinds = {
        "self": Block(mixers=(grouped_attention(f, traits, bias=""),), ffns=(ffn,)),
        "cross": Block(mixers=(looking,), ffns=(ffn,), extra=(vector("gates", 2),)),
    }
    crossed = f.indices("cross_attention_layers", layers) if f.raw("cross_attention_layers", default=None) else set(range(3, layers, 5))
    names = ["cross" if i in crossed else "self" for i in range(layers)]
    rows = table("image_words", MLLAMA_IMAGE_ROWS, hidden, part="embedding")
    return {"hidden": hidden, "layers": [(n, kinds[n]) for n in names], "extra": (rows,)}


def voxtral_realtime(f: Fields) -> dict[str, Any]:
    """Voxtral Realtime: Mistral with a small perceptron per layer that scales its norm by the time step."""
    hidden, traits = width(f), TRAITS["mistral"]
    scaling = (dense("time_1", hidden, VOXTRAL_TIME_RANK), dense("time_2", VOXTRAL_TIME_RANK, hidden))
    mixer = grouped_attention(f, traits, window=f.maybe("sliding_window"))
    block = Block(mixers=(mixer,), ffns=(feed_forward(f, traits),), extra=scaling)
    return {"hidden": hidden, "layers": uniform(block, depth(f))}


def molmo2(f: Fields) -> dict[str, Any]:
    """Molmo 2: a second token table for marks of images; q and k norms per head or over all heads."""
    per_head = f.one_of("qk_norm_type", ("qwen3", "olmo"), default="olmo") == "qwen3"
    traits = Traits(bias_flags=(("attention_bias", "qkv"),), qk_norm="head" if per_head else "full")
    rows = table("image_words", f.count("additional_vocab_size", default=128), width(f), part="embedding")
    return {**decoder(f, traits), "extra": (rows,), "head": "own"}


def ernie_vl(f: Fields) -> dict[str, Any]:
    """ERNIE 4.5 VL: experts for text and narrower ones for images side by side, of which a text token only reaches the first."""
    widths = [f.checked(w, "moe_intermediate_size") for w in f.items("moe_intermediate_size")]
    if len(widths) != 2:
        raise f.refuse("moe_intermediate_size", "must give the width of text and of image experts", widths)
    hidden, layers, experts = width(f), depth(f), f.count("moe_num_experts")
    traits = Traits(bias_flags=(("use_bias", "qkvo"),))
    shared = SharedExpert(width=f.count("moe_num_shared_experts") * widths[0]) if f.maybe("moe_num_shared_experts") else None
    sparse = Experts(experts=experts, top_k=f.count("moe_k"), width=widths[0], correction_bias="parameter", shared=shared)
    images = (
        Extra(name="image_experts", part="experts", rows=experts * 3 * widths[1], cols=hidden, use="lookup"),
        Extra(name="image_router", part="router", rows=experts, cols=hidden, bias=experts, use="lookup"),
    )
    mixer = grouped_attention(f, traits)
    kinds = {
        "dense": Block(mixers=(mixer,), ffns=(feed_forward(f, traits),)),
        "sparse": Block(mixers=(mixer,), ffns=(sparse,), extra=images),
    }
    default = ["dense" if i == 0 else "sparse" for i in range(layers)]
    names = [str(k) for k in f.per_layer("mlp_layer_types", layers)] if "mlp_layer_types" in f else default
    for name in names:
        if name not in kinds:
            raise f.refuse("mlp_layer_types", "is a kind of layer this family does not have (dense, sparse)", name)
    return {"hidden": hidden, "layers": [(n, kinds[n]) for n in names]}


READERS = {
    "molmo2_text": molmo2, "ernie4_5_vl_moe_text": ernie_vl, "glm_ocr_text": lambda f: decoder(f, Traits(norms=4)), "mllama_text_model":
    mllama, "voxtral_realtime_text": voxtral_realtime,
}  # fmt: skip
