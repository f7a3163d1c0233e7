"""What lies between an encoder and the text decoder: mergers, perceptrons, resamplers, and how many tokens come out of them.

One function per family of multimodal models. It is given the file's top level, the mapping of the encoder, the encoder itself and
the width of the decoder, and returns the encoder joined with its projector (or several towers).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from inferplan.readers.huggingface.defaults import typed
from inferplan.readers.huggingface.encoders import conv, dense, depth, divided, idle, joined, perceptron, ratio, scale, table, tower, vector
from inferplan.readers.huggingface.fields import Fields
from inferplan.readers.huggingface.vision import grid, sam
from inferplan.specs.ffns import Dense
from inferplan.specs.mixers import Attention
from inferplan.specs.model import Block, Extra, Tower


@dataclass(frozen=True)
class Case:
    """A file's top level, the mappings of its decoder and of one encoder, the encoder read from it, and the decoder's width."""

    outer: Fields
    decoder: Fields
    inner: Fields
    encoder: Tower
    text: int

    @property
    def hidden(self) -> int:
        """Width of the encoder."""
        return self.encoder.hidden

    @property
    def taken(self) -> int:
        """From how many layers of the encoder features are taken."""
        value = self.outer.raw("vision_feature_layer", default=-1)
        return len(value) if isinstance(value, list) and value else 1

    def patches(self) -> int | None:
        """Patches per image, where the file fixes the image."""
        return grid(self.inner) if self.inner.raw("image_size", default=None) else None

    def shrunk(self, factor: int) -> int | None:
        """Tokens per image once squares of `factor` patches are joined."""
        patches = self.patches()
        return max(1, patches // factor**2) if patches else None

    def towers(self, *extra: Extra, tokens: int | None = None, name: str = "vision", **more: Tower) -> dict[str, Tower]:
        """The encoder with its projector, and further towers."""
        return {name: joined(self.encoder, *extra, tokens=tokens), **more}


Projector = Callable[[Case], dict[str, Tower]]


def built_in(c: Case) -> dict[str, Tower]:
    """Encoders whose last layer already speaks the decoder's width (Qwen-VL, GLM-V)."""
    return c.towers()


def llava(c: Case) -> dict[str, Tower]:
    """LLaVA: two projections from the features of one layer or several."""
    bias = c.outer.flag("multimodal_projector_bias", default=True)
    return c.towers(*perceptron("projector", c.hidden * c.taken, c.text, c.text, bias=bias), tokens=c.patches())


def llava_next(c: Case) -> dict[str, Tower]:
    """LLaVA-NeXT and OneVision: LLaVA with a learned end-of-row vector; the number of tokens follows the image."""
    bias = c.outer.flag("multimodal_projector_bias", default=True)
    return c.towers(*perceptron("projector", c.hidden * c.taken, c.text, c.text, bias=bias), vector("newline", c.text))


def vipllava(c: Case) -> dict[str, Tower]:
    """ViP-LLaVA: a norm over the features of several layers."""
    layers = c.outer.raw("vision_feature_layer", default=[-2, -5, -8, -11, 6])
    wide = c.hidden * (len(layers) if isinstance(layers, list) else 1)
    return c.towers(scale("projector.norm", wide), *perceptron("projector", wide, c.text, c.text, bias=True), tokens=c.patches())


def video_llava(c: Case) -> dict[str, Tower]:
    """Video-LLaVA: one encoder for images and an equal one for video."""
    bias = c.outer.flag("multimodal_projector_bias", default=True)
    return c.towers(*perceptron("projector", c.hidden, c.text, c.text, bias=bias), tokens=c.patches(), video=c.encoder)


def gemma3(c: Case) -> dict[str, Tower]:
    """Gemma 3: pooled patches, a norm and one matrix."""
    tokens = c.outer.count("mm_tokens_per_image", default=256)
    return c.towers(dense("projector", c.hidden, c.text), scale("projector.norm", c.hidden, bias=False), tokens=tokens)


def gemma4(c: Case) -> dict[str, Tower]:
    """Gemma 4: one matrix per encoder."""
    tokens = c.outer.maybe("vision_soft_tokens_per_image") or c.inner.maybe("default_output_length")
    return c.towers(dense("projector", c.hidden, c.text), tokens=tokens)


def paligemma(c: Case) -> dict[str, Tower]:
    """PaliGemma: one projection."""
    return c.towers(dense("projector", c.hidden, c.outer.maybe("projection_dim") or c.text, bias=True), tokens=c.patches())


def lfm2(c: Case) -> dict[str, Tower]:
    """LFM2-VL: squares of patches joined, a norm where the file says so, two projections."""
    wide = c.hidden * c.outer.count("downsample_factor") ** 2
    norm = (scale("projector.norm", wide),) if c.outer.flag("projector_use_layernorm", default=True) else ()
    bias = c.outer.flag("projector_bias", default=True)
    return c.towers(*norm, *perceptron("projector", wide, c.outer.count("projector_hidden_size"), c.text, bias=bias))


def idefics3(c: Case) -> dict[str, Tower]:
    """Idefics3 and SmolVLM: squares of patches joined by one matrix."""
    factor = c.outer.count("scale_factor")
    return c.towers(dense("projector", c.hidden * factor**2, c.text), tokens=c.shrunk(factor))


def idefics2(c: Case) -> dict[str, Tower]:
    """Idefics2: a gated projection, then a perceiver that leaves a fixed number of tokens."""
    p = typed(c.outer, "perceiver_config", "idefics2_perceiver")
    wide, latents = c.decoder.count("intermediate_size"), p.count("resampler_n_latents")
    attention = Attention(
        heads=p.count("resampler_n_heads"),
        kv_heads=p.count("num_key_value_heads"),
        head_dim=p.count("resampler_head_dim"),
        memory=c.text,
        causal=False,
        cached=False,
    )
    block = Block(mixers=(attention,), ffns=(Dense(width=4 * c.text),), norms=3)
    perceiver = tower(
        c.text,
        [("layer", block)] * depth(p, "resampler_depth"),
        norm_bias=False,
        extra=(table("latents", latents, c.text),),
        tokens=latents,
    )
    return c.towers(dense("projector.gate_up", c.hidden, 2 * wide), dense("projector.down", wide, c.text), perceiver=perceiver)


def aya(c: Case) -> dict[str, Tower]:
    """Aya Vision: squares of patches joined, a norm, and a gated pair of projections."""
    factor = c.outer.count("downsample_factor")
    wide, inner = c.hidden * factor**2, c.outer.maybe("alignment_intermediate_size") or c.text
    pair = (dense("projector_1", wide, inner, bias=True), dense("projector_2", inner // 2, c.text, bias=True))
    return c.towers(scale("projector.norm", wide), *pair, tokens=c.shrunk(factor))


def cohere2(c: Case) -> dict[str, Tower]:
    """Command A Vision: as Aya, without the norm."""
    factor, inner = c.outer.count("downsample_factor"), c.outer.count("alignment_intermediate_size")
    pair = (dense("projector_1", c.hidden * factor**2, inner, bias=True), dense("projector_2", inner // 2, c.text, bias=True))
    return c.towers(*pair, tokens=c.shrunk(factor))


def mistral3(c: Case) -> dict[str, Tower]:
    """Mistral 3 with Pixtral: a norm, a patch merger, two projections."""
    bias, merge = c.outer.flag("multimodal_projector_bias"), c.outer.count("spatial_merge_size", default=2)
    merger = (scale("projector.norm", c.hidden, bias=False), dense("patch_merger", c.hidden * merge**2, c.hidden))
    return c.towers(*merger, *perceptron("projector", c.hidden * c.taken, c.text, c.text, bias=bias))


def internvl(c: Case) -> dict[str, Tower]:
    """InternVL: squares of patches joined, a norm, two projections."""
    factor = int(1 / ratio(c.outer, "downsample_ratio", 0.5))
    wide = c.hidden * factor**2
    return c.towers(scale("projector.norm", wide), *perceptron("projector", wide, c.text, c.text, bias=True), tokens=c.shrunk(factor))


def aligner(c: Case) -> dict[str, Tower]:
    """DeepSeek-VL: two projections."""
    return c.towers(*perceptron("projector", c.hidden, c.text, c.text, bias=True), tokens=c.patches())


def llama4(c: Case) -> dict[str, Tower]:
    """Llama 4: one matrix behind the encoder's adapter."""
    return c.towers(dense("projector", c.inner.count("vision_output_dim"), c.text))


def mllama(c: Case) -> dict[str, Tower]:
    """Llama 3.2 Vision: one projection of the last and some middle layers; its outputs feed cross attention."""
    return c.towers(dense("projector", c.inner.count("vision_output_dim"), c.text, bias=True))


def kimi(c: Case) -> dict[str, Tower]:
    """Kimi-VL and K2.5: a norm, then two projections of joined patches."""
    wide = c.hidden * _product(c.inner, "merge_kernel_size")
    return c.towers(
        scale("projector.norm", c.outer.count("projection_hidden_size", default=c.hidden)),
        *perceptron("projector", wide, wide, c.text, bias=True),
    )


def _product(f: Fields, name: str) -> int:
    found = 1
    for value in f.items(name):
        found *= f.checked(value, name)
    return found


def minimax(c: Case) -> dict[str, Tower]:
    """MiniMax-M3-VL: a perceptron per patch and one per square of patches."""
    wide, merged = c.outer.count("projector_hidden_size"), c.text * c.inner.count("spatial_merge_size") ** 2
    per_patch = perceptron("projector", c.hidden, wide, c.text, bias=True)
    return c.towers(*per_patch, *perceptron("merger", merged, wide, c.text, bias=True))


def ernie(c: Case) -> dict[str, Tower]:
    """ERNIE 4.5 VL: a resampler over space and time."""
    wide = c.hidden * c.inner.count("spatial_merge_size") ** 2
    space = (*perceptron("space", wide, wide, wide, bias=True), scale("space.norm", wide))
    frames = c.inner.count("temporal_merge_size", default=2)
    time = (*perceptron("time", frames * wide, wide, wide, bias=True), scale("time.norm", wide))
    return c.towers(*space, *time, dense("out", wide, c.text, bias=True), scale("out.norm", c.text, bias=False))


def ovis2(c: Case) -> dict[str, Tower]:
    """Ovis 2: a table of visual words as wide as the file's own `hidden_size`."""
    return c.towers(dense("visual_table", c.inner.count("vocab_size"), c.outer.maybe("hidden_size") or c.text))


def hyperclova(c: Case) -> dict[str, Tower]:
    """HyperCLOVA X Vision: Qwen2.5-VL's encoder and one more projection."""
    return c.towers(dense("projector", c.inner.count("out_hidden_size"), c.text, bias=True))


def video_llama3(c: Case) -> dict[str, Tower]:
    """VideoLLaMA 3: two projections."""
    return c.towers(*perceptron("projector", c.hidden, c.text, c.text, bias=True))


def paddle(c: Case) -> dict[str, Tower]:
    """PaddleOCR-VL: a norm and two projections of joined patches."""
    wide = c.hidden * c.inner.count("spatial_merge_size") ** 2
    return c.towers(scale("projector.norm", c.hidden), *perceptron("projector", wide, wide, c.text, bias=True))


def aria(c: Case) -> dict[str, Tower]:
    """Aria: learned queries look at the patches, then a perceptron."""
    hidden, queries = c.hidden, c.outer.count("max_value_projector_patch_to_query_dict", default=256)
    look = (dense("projector.qkv", hidden, hidden, copies=3), dense("projector.attention", hidden, hidden, bias=True, copies=5))
    norms = scale("projector.norms", hidden, copies=3)
    return c.towers(
        table("queries", queries, hidden), *look, norms, dense("projector_1", hidden, c.text), dense("projector_2", c.text, c.text)
    )


def got_ocr(c: Case) -> dict[str, Tower]:
    """GOT-OCR 2: two strided convolutions and one projection."""
    inputs = c.inner.count("output_channels", default=256)
    convs = (conv("upsampler_1", inputs, 2 * inputs, 9), conv("upsampler_2", 2 * inputs, c.text, 9))
    return c.towers(*convs, dense("projector", c.text, c.text, bias=True), tokens=256)


def step(c: Case) -> dict[str, Tower]:
    """Step 3.7: two strided convolutions and one matrix."""
    bias = c.outer.flag("projector_bias")
    convs = (conv("downsample_1", c.hidden, 2 * c.hidden, 9, bias=True), conv("downsample_2", 2 * c.hidden, 4 * c.hidden, 9, bias=True))
    return c.towers(*convs, dense("projector", 4 * c.hidden, c.text, bias=bias))


def molmo2(c: Case) -> dict[str, Tower]:
    """Molmo 2: attention over the features of some layers pools them, then a gated projection."""
    a = typed(c.outer, "adapter_config", "molmo2_adapter")
    head_dim, inputs = a.count("head_dim"), a.count("hidden_size") * len(a.items("vision_feature_layer", "vit_layers"))
    queries, keys = a.count("num_attention_heads") * head_dim, a.count("num_key_value_heads") * head_dim
    bias, wide, inner = a.flag("attention_bias", default=True), a.count("hidden_size"), a.count("intermediate_size")
    pool = (
        dense("pool.q", inputs, queries, bias=bias),
        dense("pool.kv", inputs, keys, bias=bias, copies=2),
        dense("pool.out", queries, wide, bias=bias),
    )
    outputs = a.count("text_hidden_size", default=c.text)
    return c.towers(*pool, dense("projector.gate_up", wide, 2 * inner, bias=a.flag("mlp_bias")), dense("projector.down", inner, outputs))


def minicpm(c: Case) -> dict[str, Tower]:
    """MiniCPM-V 4.6: further mergers of joined patches."""
    wide = c.hidden * _product(c.outer, "merge_kernel_size")
    times = c.outer.count("merger_times", default=1)
    between = perceptron("merger.inner", wide, wide, c.hidden, bias=True, copies=times - 1) if times > 1 else ()
    return c.towers(*between, *perceptron("merger", wide, wide, c.text, bias=True), scale("merger.norm", wide, copies=times))


def phi4(c: Case) -> dict[str, Tower]:
    """Phi-4 multimodal, images: two marker vectors and two projections."""
    return c.towers(vector("marks", 2 * c.hidden), *perceptron("projector", c.hidden, c.text, c.text, bias=True))


def qformer_blip(c: Case) -> dict[str, Tower]:
    """BLIP-2 and InstructBLIP: learned queries pass a Q-Former and one projection."""
    kind = "blip_2_qformer" if c.outer.data.get("model_type") == "blip-2" else "instructblip_qformer"
    q = typed(c.outer, "qformer_config", kind)
    queries = c.outer.count("num_query_tokens", default=32)
    former = qformer(q, queries, c.hidden, words=kind != "blip_2_qformer" or q.flag("use_qformer_text_input"), outputs=c.text)
    return c.towers(qformer=former)


def qformer(q: Fields, queries: int, memory: int, *, words: bool, outputs: int) -> Tower:
    """A Q-Former: BERT layers over learned queries, every other one looking at the encoder; with `words` a text path beside them."""
    hidden = q.count("hidden_size")
    heads, head_dim = divided(q, hidden, "num_attention_heads")
    shape: dict[str, Any] = {
        "heads": heads,
        "kv_heads": heads,
        "head_dim": head_dim,
        "bias": "qkvo",
        "causal": False,
        "cached": False,
    }
    own, cross = Attention(**shape), Attention(**shape, memory=memory)
    ffn = Dense(width=q.count("intermediate_size"), gated=False, bias=True)
    text = (idle("text_path", 2 * hidden * ffn.width + ffn.width + 3 * hidden),) if words else ()
    plain = Block(mixers=(own,), ffns=(ffn,), norms=2, norm_bias=True, extra=text)
    looking = Block(mixers=(own, cross), ffns=(ffn,), norms=3, norm_bias=True, extra=text)
    every = q.count("cross_attention_frequency", default=2)
    layers = [("plain", plain) if i % every else ("cross", looking) for i in range(depth(q, "num_hidden_layers"))]
    tables = (
        (table("words", q.count("vocab_size"), hidden), table("positions", q.count("max_position_embeddings"), hidden)) if words else ()
    )
    extra = (table("queries", queries, hidden), *tables, dense("projector", hidden, outputs, bias=True))
    return tower(hidden, layers, extra=extra, tokens=queries)


def audio_linear(c: Case) -> dict[str, Tower]:
    """Qwen2-Audio: one projection; pairs of frames are averaged (750 tokens for 30 seconds)."""
    return c.towers(dense("projector", c.hidden, c.text, bias=True), tokens=_frames(c, 2), name="audio")


def audio_flamingo(c: Case) -> dict[str, Tower]:
    """Audio Flamingo 3: two projections."""
    bias = c.outer.flag("projector_bias", default=True)
    return c.towers(*perceptron("projector", c.hidden, c.text, c.text, bias=bias), tokens=_frames(c, 2), name="audio")


def voxtral(c: Case) -> dict[str, Tower]:
    """Voxtral: frames joined to the width of the feed-forward block, two matrices."""
    wide = c.inner.count("intermediate_size", "encoder_ffn_dim")
    return c.towers(*perceptron("projector", wide, c.text, c.text), tokens=_frames(c, max(1, wide // c.hidden)), name="audio")


def voxtral_realtime(c: Case) -> dict[str, Tower]:
    """Voxtral Realtime: frames joined, two matrices."""
    return c.towers(*perceptron("projector", c.hidden * c.outer.count("downsample_factor"), c.text, c.text), name="audio")


def _frames(c: Case, joint: int) -> int | None:
    frames = c.inner.maybe("max_source_positions")
    return frames // joint or None if frames else None


def audio_asr(c: Case) -> dict[str, Tower]:
    """Qwen3-ASR: two projections, to the width that the encoder's mapping names."""
    return c.towers(*perceptron("projector", c.hidden, c.hidden, c.inner.count("output_dim", default=c.text), bias=True), name="audio")


def audio_glm(c: Case) -> dict[str, Tower]:
    """GLM-ASR: four frames joined, two projections."""
    return c.towers(*perceptron("projector", c.inner.count("intermediate_size"), 2 * c.text, c.text, bias=True), name="audio")


def audio_moss(c: Case) -> dict[str, Tower]:
    """MOSS: frames joined, two projections and a norm."""
    wide = c.hidden * c.outer.count("audio_merge_size", default=4)
    bias = c.outer.flag("projector_bias", default=True)
    return c.towers(*perceptron("projector", wide, c.text, c.text, bias=bias), scale("projector.norm", c.text), name="audio")


def audio_gemma4(c: Case) -> dict[str, Tower]:
    """Gemma 4: one matrix."""
    return c.towers(dense("projector", c.inner.count("output_proj_dims"), c.text), name="audio")


def audio_phi4(c: Case) -> dict[str, Tower]:
    """Phi-4 multimodal: two projections for speech alone and two for speech with images."""
    rate = c.inner.count("downsample_rate", default=1)
    up = dense("projector_1", c.hidden * rate, c.text, bias=True, copies=2)
    return c.towers(up, dense("projector_2", c.text, c.text, bias=True, copies=2), name="audio")


def audio_granite(c: Case) -> dict[str, Tower]:
    """Granite Speech: windows of frames pass a Q-Former."""
    q = typed(c.outer, "projector_config", "blip_2_qformer")
    window, rate = c.outer.count("window_size", default=15), c.outer.count("downsample_rate", default=5)
    queries, memory = max(1, window // rate), q.count("encoder_hidden_size")
    former = qformer(q, queries, memory, words=q.flag("use_qformer_text_input"), outputs=c.text)
    return c.towers(name="audio", qformer=former)


def deepseek_hybrid(c: Case) -> dict[str, Tower]:
    """DeepSeek-VL hybrid: SigLIP beside SAM at a higher resolution, each projected to half the decoder's width, then joined."""
    high = typed(c.outer, "high_res_vision_config", "sam_vision_model")
    encoder, width = sam(high), high.count("output_channels", default=256)
    neck = (dense("neck_b_1", encoder.hidden, width), conv("neck_b_2", width, width, 9), scale("neck_b.norm", width, copies=2))
    down = (conv("down_1", width, 2 * width, 9), conv("down_2", 2 * width, 4 * width, 9), vector("alpha", 1))
    half = dense("projector", 4 * width, c.text // 2, bias=True)
    out = dense("projector.out", c.text, c.text, bias=True)
    fine = joined(encoder, *neck, *down, half)
    return c.towers(dense("projector", c.hidden, c.text // 2, bias=True), out, tokens=c.patches(), high_resolution=fine)


def built_in_audio(c: Case) -> dict[str, Tower]:
    """Encoders whose output already has the decoder's width."""
    return c.towers(name="audio")


OWN_WIDTH = (
    "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen2_5_omni_thinker", "qwen3_omni_moe_thinker",
    "glm4v", "glm4v_moe", "glm46v", "glm_ocr", "glmga", "exaone4_5", "hunyuan_vl", "cosmos3_omni",
)  # fmt: skip

IMAGES: dict[str, Projector] = {
    "llava": llava, "llava_next": llava_next, "llava_next_video": llava_next, "llava_onevision": llava_next, "vipllava": vipllava,
    "video_llava": video_llava, "gemma3": gemma3, "shieldgemma2": gemma3, "gemma4": gemma4, "paligemma": paligemma, "lfm2_vl": lfm2,
    "idefics3": idefics3, "smolvlm": idefics3, "idefics2": idefics2, "aya_vision": aya, "cohere2_vision": cohere2,
    "mistral3": mistral3, "mistral_large4": mistral3, "ministral3": mistral3, "lighton_ocr": mistral3, "internvl": internvl,
    "qianfan_ocr": internvl, "deepseek_vl": aligner, "deepseek_vl_hybrid": deepseek_hybrid, "llama4": llama4, "mllama": mllama,
    "kimi_k25": kimi, "kimi_vl": kimi, "minimax_m3_vl": minimax, "ernie4_5_vl_moe": ernie, "ovis2": ovis2,
    "hyperclovax_vision_v2": hyperclova, "video_llama_3": video_llama3, "paddleocr_vl": paddle, "aria": aria, "got_ocr2": got_ocr,
    "step3p7": step, "molmo2": molmo2, "minicpmv4_6": minicpm, "minicpmv4_7": minicpm, "minicpm_ocr": minicpm,
    "phi4_multimodal": phi4, "blip-2": qformer_blip, "instructblip": qformer_blip, "instructblipvideo": qformer_blip,
    **dict.fromkeys(OWN_WIDTH, built_in),
}  # fmt: skip

SOUNDS: dict[str, Projector] = {
    "qwen2_audio": audio_linear, "audioflamingo3": audio_flamingo, "musicflamingo": audio_flamingo, "voxtral": voxtral,
    "voxtral_realtime": voxtral_realtime, "qwen3_asr": audio_asr, "glmasr": audio_glm, "moss_transcribe_diarize": audio_moss,
    "gemma4": audio_gemma4,
    "phi4_multimodal": audio_phi4, "granite_speech": audio_granite, "granite_speech_plus": audio_granite,
    "qwen2_5_omni_thinker": built_in_audio, "qwen3_omni_moe_thinker": built_in_audio,
}  # fmt: skip
