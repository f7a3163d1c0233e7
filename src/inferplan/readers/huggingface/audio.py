"""Sound encoders: convolutions over a spectrogram, then a transformer or a conformer. Knows nothing of the decoder behind them."""

from __future__ import annotations

from collections.abc import Callable

from inferplan.readers.huggingface import encoders
from inferplan.readers.huggingface.encoders import conv, dense, divided, layer, scale, table, tower, vector
from inferplan.readers.huggingface.fields import Fields
from inferplan.specs.ffns import Dense
from inferplan.specs.mixers import Attention
from inferplan.specs.model import Block, Extra, Tower

Reader = Callable[[Fields], Tower]


def width(f: Fields) -> int:
    """Width of the encoder's residual stream."""
    return f.count("d_model", "hidden_size", "hidden_dim")


def depth(f: Fields) -> int:
    """Number of layers."""
    return encoders.depth(f, "encoder_layers", "num_hidden_layers", "num_layers", "num_blocks")


def inner_width(f: Fields) -> int:
    """Width of the feed-forward block."""
    return f.count("encoder_ffn_dim", "intermediate_size")


def heads_of(f: Fields, hidden: int) -> tuple[int, int]:
    """Number of heads and the width of one."""
    return divided(f, hidden, "encoder_attention_heads", "num_attention_heads", "num_heads")


def stem(f: Fields, hidden: int) -> tuple[Extra, Extra]:
    """Whisper's two convolutions of three frames; the second halves the frames."""
    return conv("conv_1", f.count("num_mel_bins"), hidden, 3, bias=True, rate=2), conv("conv_2", hidden, hidden, 3, bias=True)


def whisper(f: Fields, *, bias: str = "qvo", positions: bool = True) -> Tower:
    """Whisper's encoder: keys without a bias, a table of positions that is a parameter.

    >>> w = {"d_model": 1280, "encoder_layers": 32, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120}
    >>> t = whisper(Fields({**w, "num_mel_bins": 128, "max_source_positions": 1500}))
    >>> sum(x.params for x in t.weights())
    636968960
    """
    hidden = width(f)
    heads, head_dim = heads_of(f, hidden)
    places = (table("positions", f.count("max_source_positions"), hidden),) if positions else ()
    block = layer(heads, head_dim, inner_width(f), bias=bias, kv_heads=f.maybe("num_key_value_heads"))
    return tower(hidden, [("layer", block)] * depth(f), extra=(*stem(f, hidden), *places))


def qwen_omni(f: Fields) -> Tower:
    """Qwen2.5-Omni: Whisper without stored positions, two marker rows and an output projection."""
    base = whisper(f, positions=False)
    outputs = f.count("output_dim")
    extra = (*base.extra, table("marks", 2, outputs), dense("out", base.hidden, outputs, bias=True))
    return base.model_copy(update={"extra": extra})


def qwen3_asr(f: Fields) -> Tower:
    """Qwen3-ASR: three strided two-dimensional convolutions in place of Whisper's stem, biases on all projections."""
    hidden, channels = width(f), f.count("downsample_hidden_size")
    heads, head_dim = heads_of(f, hidden)
    bands = f.count("num_mel_bins")
    for _ in range(3):
        bands = (bands + 1) // 2
    extra = (
        conv("conv_1", 1, channels, 9, bias=True),
        conv("conv_2", channels, channels, 9, bias=True, copies=2),
        dense("conv_out", channels * bands, hidden),
    )
    return tower(hidden, [("layer", layer(heads, head_dim, inner_width(f)))] * depth(f), extra=extra)


def qwen3_omni(f: Fields) -> Tower:
    """Qwen3-Omni: the Qwen3-ASR encoder with two projections behind it."""
    base = qwen3_asr(f)
    extra = (
        *base.extra,
        dense("out_1", base.hidden, base.hidden, bias=True),
        dense("out_2", base.hidden, f.count("output_dim"), bias=True),
    )
    return base.model_copy(update={"extra": extra})


def gemma4(f: Fields) -> Tower:
    """Gemma 4: two strided convolutions, then conformer layers of two half-step feed-forward blocks, attention and a convolution."""
    hidden = f.count("hidden_size")
    heads, head_dim = heads_of(f, hidden)
    taps = f.count("conv_kernel_size")
    convolution = (dense("conv.in", hidden, 2 * hidden), conv("conv.depthwise", 1, hidden, taps), dense("conv.out", hidden, hidden))
    small = (vector("attention.scale", head_dim), dense("attention.positions", hidden, hidden))
    block = Block(
        mixers=(Attention(heads=heads, kv_heads=heads, head_dim=head_dim, causal=False, cached=False, window=_window(f)),),
        ffns=(Dense(width=4 * hidden, gated=False), Dense(width=4 * hidden, gated=False)),
        norms=9,
        extra=(*small, *convolution),
    )
    first, second = (f.checked(c, "subsampling_conv_channels") for c in _two(f, "subsampling_conv_channels"))
    stem = (conv("conv_1", 1, first, 9), conv("conv_2", first, second, 9), scale("conv_norms", first + second, bias=False))
    ends = (dense("in", 32 * second, hidden), dense("out", hidden, f.count("output_proj_dims"), bias=True))
    return tower(hidden, [("layer", block)] * depth(f), norms=0, extra=(*stem, *ends))


def _two(f: Fields, name: str) -> list[object]:
    values = f.items(name)
    if len(values) != 2:
        raise f.refuse(name, "must have two entries", values)
    return values


def _window(f: Fields) -> int:
    return f.count("attention_chunk_size") + f.count("attention_context_left", least=0) + f.count("attention_context_right", least=0)


def phi4(f: Fields) -> Tower:
    """Phi-4 multimodal: conformer layers with gated half-step blocks, and a stem of depthwise and pointwise convolutions."""
    hidden, wide = f.count("hidden_size"), f.count("ext_pw_out_channel")
    heads, head_dim = heads_of(f, hidden)
    middle = f.count("depthwise_separable_out_channel")
    ffn = Dense(width=f.count("intermediate_size"), bias=True)
    convolution = (
        scale("conv.norm", hidden),
        vector("conv.glu", wide, copies=2),
        dense("conv.in", hidden, 2 * wide, bias=True),
        conv("conv.depthwise", 1, hidden * f.count("depthwise_multiplier"), f.count("kernel_size"), bias=True),
        dense("conv.pointwise", hidden * f.count("depthwise_multiplier"), middle, bias=True),
        dense("conv.out", hidden, wide, bias=True),
    )
    mixer = Attention(heads=heads, kv_heads=heads, head_dim=head_dim, bias="qkvo", causal=False, cached=False)
    block = Block(mixers=(mixer,), ffns=(ffn, ffn), norms=4, norm_bias=True, extra=convolution)
    return tower(hidden, [("layer", block)] * depth(f), norms=0, extra=_phi4_stem(f, hidden, heads))


def _phi4_stem(f: Fields, hidden: int, heads: int) -> tuple[Extra, ...]:
    channels, bands = f.count("nemo_conv_channels"), f.count("nemo_final_size", default=f.count("input_size") // f.count("time_reduction"))
    halvings = (f.count("time_reduction") - 1).bit_length()
    distance = f.count("bias_max_distance") * (1 if f.flag("bias_symmetric") else 2)
    return (
        conv("conv.depthwise", 1, channels, 9, bias=True, copies=halvings),
        dense("conv.pointwise", channels, channels, bias=True, copies=halvings - 1),
        dense("conv.out", channels * bands, hidden, bias=True),
        table("relative_positions", distance, heads),
    )


def granite(f: Fields) -> Tower:
    """Granite Speech: conformer layers with relative positions in blocks, and a middle loop through the output classes."""
    hidden, outputs = f.count("hidden_dim"), f.count("output_dim")
    head_dim, heads = f.count("dim_head"), f.count("num_heads")
    wide, half = f.count("conv_expansion_factor") * hidden, Dense(width=f.count("feedforward_mult") * hidden, gated=False, bias=True)
    convolution = (
        table("attention.positions", 2 * f.count("max_pos_emb") + 1, head_dim),
        dense("conv.in", hidden, 2 * wide, bias=True),
        conv("conv.depthwise", 1, wide, f.count("conv_kernel_size")),
        scale("conv.batch_norm", wide),
        dense("conv.out", wide, hidden, bias=True),
    )
    mixer = Attention(heads=heads, kv_heads=heads, head_dim=head_dim, bias="o", causal=False, cached=False, window=f.count("context_size"))
    block = Block(mixers=(mixer,), ffns=(half, half), norms=5, norm_bias=True, extra=convolution)
    ends = (
        dense("in", f.count("input_dim"), hidden, bias=True),
        dense("out", hidden, outputs, bias=True),
        dense("middle", outputs, hidden, bias=True),
    )
    return tower(hidden, [("layer", block)] * depth(f), norms=0, extra=ends)


def glm(f: Fields) -> Tower:
    """GLM-ASR: Whisper's shape with grouped keys and rotary positions."""
    return whisper(f, positions=False)


def voxtral_realtime(f: Fields) -> Tower:
    """Voxtral Realtime: causal, gated, with windows; a bias on the last of the three feed-forward matrices."""
    hidden, heads = f.count("hidden_size"), f.count("num_attention_heads")
    block = layer(
        heads,
        f.count("head_dim"),
        f.count("intermediate_size"),
        kv_heads=f.maybe("num_key_value_heads"),
        bias="qvo",
        gated=True,
        mlp_bias=False,
        norm_bias=False,
        window=f.maybe("sliding_window"),
        extra=(vector("mlp.down.bias", hidden),),
    )
    return tower(hidden, [("layer", block)] * depth(f), norm_bias=False, extra=stem(f, hidden))


READERS: dict[str, Reader] = {
    "qwen2_audio_encoder": whisper, "voxtral_encoder": whisper, "audioflamingo3_encoder": whisper, "moss_transcribe_diarize_audio":
    whisper, "whisper": whisper, "qwen2_5_omni_audio_encoder": qwen_omni, "qwen3_asr_encoder": qwen3_asr,
    "qwen3_omni_moe_audio_encoder": qwen3_omni, "gemma4_audio": gemma4, "phi4_multimodal_audio": phi4, "granite_speech_encoder":
    granite, "granite_speech_plus_encoder": granite, "glmasr_encoder": glm, "voxtral_realtime_encoder": voxtral_realtime,
}  # fmt: skip
