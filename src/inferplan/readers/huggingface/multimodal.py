"""Text decoders that exist only inside multimodal models: Llama 3.2 Vision and Voxtral Realtime. Knows no encoder."""

from __future__ import annotations

from typing import Any

from inferplan.readers.huggingface.assemble import uniform
from inferplan.readers.huggingface.dense import TRAITS, depth, feed_forward, grouped_attention, width
from inferplan.readers.huggingface.encoders import dense, table, vector
from inferplan.readers.huggingface.fields import Fields
from inferplan.specs.model import Block

MLLAMA_IMAGE_ROWS = 8
VOXTRAL_TIME_RANK = 32


def mllama(f: Fields) -> dict[str, Any]:
    """Llama 3.2 Vision: the listed layers look at the image alone, behind two gates; eight more rows in the token table than in the head."""
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


READERS = {"mllama_text_model": mllama, "voxtral_realtime_text": voxtral_realtime}
