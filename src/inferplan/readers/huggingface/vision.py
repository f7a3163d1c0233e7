"""Image encoders: the shapes of each kind of vision transformer, from the mapping that describes it.

Knows nothing of what a decoder does with the result; the projectors live in a module of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from inferplan.readers.huggingface import encoders
from inferplan.readers.huggingface.assemble import Layers
from inferplan.readers.huggingface.encoders import conv, dense, divided, idle, layer, perceptron, ratio, scale, table, tower, vector
from inferplan.readers.huggingface.fields import Fields
from inferplan.specs.model import Extra, Tower

Reader = Callable[[Fields], Tower]


def width(f: Fields) -> int:
    """Width of the encoder's residual stream."""
    return f.count("embed_dim", "hidden_size")


def depth(f: Fields) -> int:
    """Number of layers."""
    return encoders.depth(f, "depth", "num_hidden_layers")


def heads_of(f: Fields, hidden: int) -> tuple[int, int]:
    """Number of heads and the width of one."""
    return divided(f, hidden, "num_heads", "num_attention_heads", "attention_heads")


def inner_width(f: Fields, hidden: int) -> int:
    """Width of the feed-forward block: stated, or a multiple of the residual stream."""
    return f.maybe("intermediate_size", "mlp_dim") or multiple(f, hidden)


def multiple(f: Fields, hidden: int) -> int:
    """The residual stream times `mlp_ratio`, rounded down."""
    return max(1, int(hidden * ratio(f, "mlp_ratio", 4, most=100)))


def sides(f: Fields, name: str) -> tuple[int, int]:
    """A size given once for both directions, or twice."""
    value = f.raw(name)
    if isinstance(value, list) and len(value) == 2:
        return f.checked(value[0], name), f.checked(value[1], name)
    one = f.checked(value, name)
    return one, one


def grid(f: Fields) -> int:
    """Patches in an image of the stated size.

    >>> grid(Fields({"image_size": 896, "patch_size": 14}))
    4096
    """
    image, patch = sides(f, "image_size"), sides(f, "patch_size")
    if image[0] < patch[0] or image[1] < patch[1]:
        raise f.refuse("image_size", "must hold at least one patch", f.raw("image_size"))
    return (image[0] // patch[0]) * (image[1] // patch[1])


def patch_elements(f: Fields) -> int:
    """Numbers in one patch: pixels x channels x frames."""
    high, wide = sides(f, "patch_size")
    return high * wide * f.count("num_channels", "in_channels", "in_chans", default=3) * f.count("temporal_patch_size", default=1)


def patches(f: Fields, hidden: int, *, bias: bool) -> Extra:
    """The patch embedding: each patch is projected once, whether the file calls it a convolution or not."""
    return dense("patch_embedding", patch_elements(f), hidden, bias=bias)


@dataclass(frozen=True, slots=True)
class Vit:
    """What sets a plain vision transformer apart. `positions` names the field of its table, `grid` for one row per patch.

    `pooled` marks a pooling head that exists unless `vision_use_head` is false, `scales` the layer scales of one layer.
    A pair (field, letters) in `bias_flags` turns biases on by a field of the file; `grouped` allows fewer key than query heads,
    `by_ratio` takes the feed-forward width from `mlp_ratio` whatever else is stated.
    """

    patch_bias: bool = True
    positions: str | None = "grid"
    class_token: bool = False
    norms: int = 1
    bias: str = "qkvo"
    bias_flags: tuple[tuple[str, str], ...] = ()
    mlp_bias: bool | str = True
    gated: bool = False
    norm_bias: bool = True
    pooled: bool = False
    scales: int = 0
    grouped: bool = False
    by_ratio: bool = False


VITS: dict[str, Vit] = {
    "siglip_vision_model": Vit(pooled=True),
    "siglip2_vision_model": Vit(positions="num_patches", pooled=True),
    "phi4_multimodal_vision": Vit(pooled=True),
    "idefics2_vision": Vit(),
    "idefics3_vision": Vit(),
    "smolvlm_vision": Vit(),
    "video_llama_3_vision": Vit(positions=None),
    "paddleocr_vl_vision": Vit(),
    "clip_vision_model": Vit(patch_bias=False, class_token=True, norms=2),
    "blip_2_vision_model": Vit(class_token=True, bias="o", bias_flags=(("qkv_bias", "qkv"),)),
    "instructblip_vision_model": Vit(class_token=True, bias="o", bias_flags=(("qkv_bias", "qkv"),)),
    "instructblipvideo_vision_model": Vit(class_token=True, bias="o", bias_flags=(("qkv_bias", "qkv"),)),
    "pixtral": Vit(patch_bias=False, positions=None, bias="", gated=True, mlp_bias=False, norm_bias=False),
    "minimax_m3_vl_vision": Vit(patch_bias=False, positions=None),
    "ernie4_5_vl_moe_vision": Vit(patch_bias=False, positions=None),
    "molmo2_vision": Vit(positions="num_position_embeddings", norms=0, bias="", bias_flags=(("attention_bias", "qkvo"),), grouped=True),
    "step3p5_vision": Vit(patch_bias=False, scales=2, by_ratio=True),
}  # fmt: skip


def letters(f: Fields, traits: Vit) -> str:
    """The projections that carry a bias."""
    on = set(traits.bias).union(*(which for field, which in traits.bias_flags if f.flag(field)))
    return "".join(c for c in "qkvo" if c in on)


def vit(f: Fields, traits: Vit) -> Tower:
    """A plain vision transformer."""
    hidden = width(f)
    heads, head_dim = heads_of(f, hidden)
    inner = multiple(f, hidden) if traits.by_ratio else inner_width(f, hidden)
    block = layer(
        heads,
        head_dim,
        inner,
        bias=letters(f, traits),
        gated=traits.gated,
        norm_bias=traits.norm_bias,
        kv_heads=f.maybe("num_key_value_heads") if traits.grouped else None,
        mlp_bias=f.flag(traits.mlp_bias) if isinstance(traits.mlp_bias, str) else traits.mlp_bias,
        extra=(vector("layer_scale", hidden, copies=traits.scales),) if traits.scales else (),
    )
    pooling = pooling_head(hidden, inner) if traits.pooled and f.flag("vision_use_head", default=True) else ()
    extra = (patches(f, hidden, bias=traits.patch_bias), *_places(f, traits, hidden), *pooling)
    return tower(hidden, [("layer", block)] * depth(f), norms=traits.norms, norm_bias=traits.norm_bias, extra=extra)


def _places(f: Fields, traits: Vit, hidden: int) -> tuple[Extra, ...]:
    token = (vector("class_token", hidden),) if traits.class_token else ()
    if traits.positions is None:
        return token
    rows = grid(f) if traits.positions == "grid" else f.maybe(traits.positions) or grid(f)
    return (*token, table("positions", rows + len(token), hidden))


def pooling_head(hidden: int, inner: int) -> tuple[Extra, ...]:
    """SigLIP's attention pooling: stored with the model, unused by a language model."""
    return (idle("pooling_head", 4 * hidden * hidden + 4 * hidden + 3 * hidden + 2 * hidden * inner + inner + hidden),)


def qwen2(f: Fields) -> Tower:
    """Qwen2-VL: `hidden_size` is the decoder's width, `embed_dim` the encoder's; a merger joins 2 x 2 patches."""
    hidden, outputs = f.count("embed_dim"), f.count("hidden_size")
    heads, head_dim = heads_of(f, hidden)
    block = layer(heads, head_dim, multiple(f, hidden))
    merged = hidden * f.count("spatial_merge_size") ** 2
    extra = (patches(f, hidden, bias=False), scale("merger.norm", hidden), *perceptron("merger", merged, merged, outputs, bias=True))
    return tower(hidden, [("layer", block)] * depth(f), norms=0, extra=extra)


def qwen2_5(f: Fields) -> Tower:
    """Qwen2.5-VL and Omni: gated blocks with windows of pixels except on the listed layers."""
    hidden, outputs = f.count("hidden_size"), f.count("out_hidden_size")
    heads, head_dim = heads_of(f, hidden)
    side = f.count("window_size", default=112) // sides(f, "patch_size")[0]
    full = f.indices("fullatt_block_indexes", depth(f))
    shape: dict[str, Any] = {"kv_heads": f.maybe("num_key_value_heads"), "gated": True, "norm_bias": False}
    kinds = {
        "window": layer(heads, head_dim, f.count("intermediate_size"), window=max(side, 1) ** 2, **shape),
        "full": layer(heads, head_dim, f.count("intermediate_size"), **shape),
    }
    names = ["full" if i in full else "window" for i in range(depth(f))]
    merged = hidden * f.count("spatial_merge_size") ** 2
    merger = (scale("merger.norm", hidden, bias=False), *perceptron("merger", merged, merged, outputs, bias=True))
    return tower(hidden, [(n, kinds[n]) for n in names], norms=0, extra=(patches(f, hidden, bias=False), *merger))


def qwen3(f: Fields) -> Tower:
    """Qwen3-VL and Qwen3.5: a table of positions, a merger, and one more merger per layer whose states reach the decoder early."""
    hidden, outputs = f.count("hidden_size"), f.count("out_hidden_size")
    heads, head_dim = heads_of(f, hidden)
    block = layer(heads, head_dim, f.count("intermediate_size"))
    merged = hidden * f.count("spatial_merge_size") ** 2
    extra = [patches(f, hidden, bias=True), table("positions", f.count("num_position_embeddings"), hidden)]
    extra += [scale("merger.norm", hidden), *perceptron("merger", merged, merged, outputs, bias=True)]
    return tower(hidden, [("layer", block)] * depth(f), norms=0, extra=tuple(extra))


def qwen3_stacked(f: Fields) -> Tower:
    """Qwen3-VL: as `qwen3`, with the mergers of the layers in `deepstack_visual_indexes`."""
    base = qwen3(f)
    early = len(f.items("deepstack_visual_indexes", default=[]))
    if not early:
        return base
    merged = base.hidden * f.count("spatial_merge_size") ** 2
    mergers = perceptron("deepstack", merged, merged, f.count("out_hidden_size"), bias=True, copies=early)
    return base.model_copy(update={"extra": (*base.extra, scale("deepstack.norm", merged, copies=early), *mergers)})


def glm4v(f: Fields) -> Tower:
    """GLM-4.1V to 4.6V: gated blocks as wide inside as the decoder; a strided convolution and a gated merger join patches."""
    hidden, outputs = f.count("hidden_size"), f.count("out_hidden_size")
    heads, head_dim = heads_of(f, hidden)
    bias = "qkv" if f.flag("attention_bias") else ""
    block = layer(heads, head_dim, outputs, bias=bias, gated=True, mlp_bias=False, norm_bias=False)
    extra = (
        table("positions", grid(f), hidden),
        patches(f, hidden, bias=True),
        *glm_merger(f, hidden, outputs, f.count("intermediate_size")),
    )
    return tower(hidden, [("layer", block)] * depth(f), norms=2, norm_bias=False, extra=extra)


def glm_merger(f: Fields, hidden: int, outputs: int, inner: int) -> tuple[Extra, ...]:
    """GLM's downsampling convolution and gated merger."""
    taps = f.count("spatial_merge_size") ** 2
    return (
        conv("downsample", hidden, outputs, taps, bias=True),
        dense("merger.in", outputs, outputs),
        scale("merger.norm", outputs),
        dense("merger.gate_up", outputs, 2 * inner),
        dense("merger.down", inner, outputs),
    )


def glm_ocr(f: Fields) -> Tower:
    """GLM-OCR: q and k norms, biases throughout, no table of positions, a merger three times as wide as the decoder."""
    hidden, outputs = f.count("hidden_size"), f.count("out_hidden_size")
    heads, head_dim = heads_of(f, hidden)
    bias = f.flag("attention_bias")
    block = layer(
        heads,
        head_dim,
        f.count("intermediate_size"),
        bias="qkvo" if bias else "",
        gated=True,
        mlp_bias=bias,
        norm_bias=False,
        qk_norm="head",
    )
    merger = glm_merger(f, hidden, outputs, outputs * f.count("in_channels", default=3))
    return tower(hidden, [("layer", block)] * depth(f), norm_bias=False, extra=(patches(f, hidden, bias=True), *merger))


def llama4(f: Fields) -> Tower:
    """Llama 4: a class token, one norm before and one after, and an adapter on shuffled pixels."""
    hidden = f.count("hidden_size")
    heads, head_dim = heads_of(f, hidden)
    inner, wide = f.count("intermediate_size"), f.count("projector_input_dim")
    adapter = perceptron("adapter", inner, wide, f.count("projector_output_dim"))
    extra = (vector("class_token", hidden), table("positions", grid(f) + 1, hidden), patches(f, hidden, bias=False), *adapter)
    block = layer(heads, head_dim, inner)
    return tower(
        hidden, [("layer", block)] * depth(f), norms=2, extra=extra, tokens=max(1, int(grid(f) * ratio(f, "pixel_shuffle_ratio", 0.5) ** 2))
    )


def mllama(f: Fields) -> Tower:
    """Llama 3.2 Vision: local layers, then gated global ones, with position tables for each arrangement of tiles."""
    hidden = f.count("hidden_size")
    heads, head_dim = heads_of(f, hidden)
    inner = f.count("intermediate_size")
    local = layer(heads, head_dim, inner, bias="")
    whole = layer(heads, head_dim, inner, bias="", extra=(vector("gates", 2),))
    layers: Layers = [("local", local)] * depth(f) + [("global", whole)] * encoders.depth(f, "num_global_layers")
    tiles, rows = f.count("max_num_tiles"), grid(f) + 1
    shapes = 1 + (len(f.items("supported_aspect_ratios", default=[])) or _arrangements(tiles))
    extra = (
        vector("class_token", hidden),
        patches(f, hidden, bias=False),
        vector("gates", 3),
        table("positions", rows, hidden),
        table("tile_positions", shapes, tiles * rows * hidden),
        table("tile_embeddings", 2 * shapes, tiles * hidden),
    )
    return tower(hidden, layers, norms=2, extra=extra)


def _arrangements(tiles: int) -> int:
    return sum(1 for a in range(1, tiles + 1) for b in range(1, tiles + 1) if a * b <= tiles)


def gemma4(f: Fields) -> Tower:
    """Gemma 4: gated blocks with four norms and q, k norms; two tables of positions, one per direction."""
    hidden = f.count("hidden_size")
    heads = f.count("num_attention_heads")
    bias = "qkvo" if f.flag("attention_bias") else ""
    block = layer(
        heads,
        f.maybe("head_dim") or hidden // heads,
        f.count("intermediate_size"),
        kv_heads=f.maybe("num_key_value_heads"),
        bias=bias,
        gated=True,
        mlp_bias=False,
        norms=4,
        norm_bias=False,
        qk_norm="head",
    )
    extra = (table("positions", 2 * f.count("position_embedding_size"), hidden), patches(f, hidden, bias=False))
    return tower(hidden, [("layer", block)] * depth(f), norms=0, extra=extra)


def internvl(f: Fields) -> Tower:
    """InternVL in its library form: class token, layer scales, optional biases and q, k norms."""
    hidden = f.count("hidden_size")
    heads, head_dim = heads_of(f, hidden)
    biased = f.one_of("norm_type", ("layer_norm", "rms_norm"), default="layer_norm") == "layer_norm"
    block = layer(
        heads,
        head_dim,
        f.count("intermediate_size"),
        bias="qkvo" if f.flag("attention_bias") else "o",
        norm_bias=biased,
        qk_norm="full" if f.flag("use_qk_norm") else "none",
        extra=(vector("layer_scale", hidden, copies=2),),
    )
    places = (table("positions", grid(f) + 1, hidden),) if f.flag("use_absolute_position_embeddings", default=True) else ()
    mask = (idle("mask_token", hidden),) if f.flag("use_mask_token") else ()
    extra = (vector("class_token", hidden), patches(f, hidden, bias=True), *places, *mask)
    return tower(hidden, [("layer", block)] * depth(f), norms=0 if f.flag("use_mean_pooling", default=True) else 1, extra=extra)


def kimi(f: Fields) -> Tower:
    """MoonViT (Kimi-VL, K2.5): a plane of positions. Files written before the library knew it spell the fields with `vt_`."""
    hidden = f.count("vt_hidden_size", "hidden_size")
    heads, head_dim = divided(f, hidden, "vt_num_attention_heads", "num_attention_heads")
    places = table("positions", f.count("pos_emb_height", "init_pos_emb_height") * f.count("pos_emb_width", "init_pos_emb_width"), hidden)
    block = layer(heads, head_dim, f.count("vt_intermediate_size", "intermediate_size"))
    layers = encoders.depth(f, "vt_num_hidden_layers", "num_hidden_layers")
    return tower(hidden, [("layer", block)] * layers, extra=(patches(f, hidden, bias=True), places))


def ovis2(f: Fields) -> Tower:
    """Ovis 2: a gated encoder that ends in a distribution over visual words."""
    traits = Vit(
        bias="",
        bias_flags=(("qkv_bias", "qkvo"),),
        mlp_bias="mlp_bias",
        gated=True,
        norms=2,
        norm_bias=False,
    )
    base = vit(f, traits)
    words = f.count("vocab_size") - f.count("num_visual_indicator_tokens", default=5)
    inputs = base.hidden * f.count("hidden_stride") ** 2
    return base.model_copy(update={"extra": (*base.extra, dense("visual_words", inputs, words), scale("visual_words.norm", words))})


def hunyuan(f: Fields) -> Tower:
    """Hunyuan-VL: positions for the longest image, and a merger by two convolutions."""
    hidden, outputs = f.count("hidden_size"), f.count("out_hidden_size", "text_hidden_size")
    heads, head_dim = heads_of(f, hidden)
    block = layer(heads, head_dim, f.count("intermediate_size"))
    rows = (f.count("max_image_size") // sides(f, "patch_size")[0]) ** 2 + 1
    taps, wide = f.count("spatial_merge_size") ** 2, 4 * hidden
    merger = (
        conv("merger.conv", hidden, 2 * hidden, taps, bias=True),
        dense("merger.out", 2 * hidden, wide, bias=True),
        dense("merger.mlp", wide, outputs, bias=True),
        vector("merger.marks", wide + 3 * outputs),
        scale("merger.before", hidden, bias=False),
        scale("merger.after", outputs, bias=False),
    )
    return tower(
        hidden, [("layer", block)] * depth(f), norms=0, extra=(patches(f, hidden, bias=True), table("positions", rows, hidden), *merger)
    )


def sam(f: Fields) -> Tower:
    """The SAM encoder: windows except on the listed layers, relative positions per layer, and a neck of two convolutions."""
    hidden, outputs = f.count("hidden_size"), f.count("output_channels", default=256)
    heads, head_dim = heads_of(f, hidden)
    side, window = sides(f, "image_size")[0] // sides(f, "patch_size")[0], f.count("window_size")
    inner, relative = f.maybe("mlp_dim") or 4 * hidden, f.flag("use_rel_pos", default=True)
    bias = "qkvo" if f.flag("qkv_bias", default=True) else "o"
    kinds = {
        name: layer(
            heads,
            head_dim,
            inner,
            bias=bias,
            window=area,
            extra=(vector("relative_positions", (4 * reach - 2) * head_dim),) if relative else (),
        )
        for name, reach, area in (("full", side, None), ("window", window, window**2))
    }
    full = f.indices("global_attn_indexes", depth(f))
    places = (table("positions", side * side, hidden),) if f.flag("use_abs_pos", default=True) else ()
    neck = (dense("neck_1", hidden, outputs), conv("neck_2", outputs, outputs, 9), scale("neck.norm", outputs, copies=2))
    names = ["full" if i in full else "window" for i in range(depth(f))]
    return tower(hidden, [(n, kinds[n]) for n in names], norms=0, extra=(patches(f, hidden, bias=True), *places, *neck))


def minicpm(f: Fields) -> Tower:
    """MiniCPM-V 4.6: SigLIP with a window merger set in after one of its layers."""
    base = vit(f, Vit())
    hidden, inner = base.hidden, inner_width(f, base.hidden)
    high, wide = sides(f, "window_kernel_size")
    joint = hidden * high * wide
    attention = (dense("window_merger.qkvo", hidden, hidden, bias=True, copies=4), scale("window_merger.norm_1", hidden))
    merger = (scale("window_merger.norm_2", joint), *perceptron("window_merger", joint, inner * high * wide, hidden, bias=True))
    return base.model_copy(update={"extra": (*base.extra, *attention, *merger)})


def _plain(traits: Vit) -> Reader:
    return lambda f: vit(f, traits)


READERS: dict[str, Reader] = {
    **{name: _plain(traits) for name, traits in VITS.items()}, "qwen2_vl_vision": qwen2, "qwen2_5_vl_vision": qwen2_5,
    "qwen2_5_omni_vision_encoder": qwen2_5, "exaone4_5_vision": qwen2_5, "qwen3_vl_vision": qwen3_stacked, "qwen3_vl_moe_vision":
    qwen3_stacked, "qwen3_omni_moe_vision_encoder": qwen3_stacked, "qwen3_5_vision": qwen3, "qwen3_5_moe_vision": qwen3, "glm4v_vision":
    glm4v, "glm4v_moe_vision": glm4v, "glm_ocr_vision": glm_ocr, "llama4_vision_model": llama4, "mllama_vision_model": mllama,
    "gemma4_vision": gemma4, "internvl_vision": internvl, "qianfan_ocr_vision": internvl, "kimi_k25_vision": kimi, "moonvit": kimi,
    "ovis2_vision": ovis2, "hunyuan_vl_vision": hunyuan, "got_ocr2_vision": sam, "sam_vision_model": sam, "minicpmv4_6_vision": minicpm,
    "minicpmv4_7_vision": minicpm, "minicpm_ocr_vision": minicpm,
}  # fmt: skip
