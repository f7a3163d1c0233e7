"""The peak of activations that an engine profiles before it sizes its cache: inside a layer, at the sampler, in buffers. Knows no cache.

The peak is the larger of two moments, not their sum: a layer at full chunk, and the logits of all sequences at the sampler.
"""

from __future__ import annotations

import numpy as np

from inferplan.formula import formula
from inferplan.ops import Numeric
from inferplan.specs.engine import Engine
from inferplan.specs.ffns import Dense, Experts
from inferplan.specs.hardware import Accelerator
from inferplan.specs.mixers import Attention, LatentAttention
from inferplan.specs.model import Model
from inferplan.specs.parallel import ONE, Parallel
from inferplan.specs.precision import Precision


@formula("element_bytes * tokens * (hidden_copies * hidden + width_copies * width)", unit="B", ref="vllm-project/vllm#10517")
def layer_peak_bytes(
    tokens: Numeric, hidden: Numeric, width: Numeric, element_bytes: Numeric, hidden_copies: Numeric, width_copies: Numeric
) -> Numeric:
    """Activations inside one layer: copies of the residual stream and of the feed-forward width, for all tokens of a chunk.

    >>> round(layer_peak_bytes(29000, 4096, 14336, 2, 3, 3) / 2**30, 2)  # 2.99 GiB were logged
    2.99
    """
    return element_bytes * tokens * (hidden_copies * hidden + width_copies * width)


@formula(
    "element_bytes * tokens * top_k * (hidden_copies * hidden + width_copies * width)",
    unit="B",
    ref="vLLM 0.19 start-up logs of four mixtures",
)
def expert_peak_bytes(
    tokens: Numeric, top_k: Numeric, hidden: Numeric, width: Numeric, element_bytes: Numeric, hidden_copies: Numeric, width_copies: Numeric
) -> Numeric:
    """Buffers of the fused experts: every token once for each expert it uses.

    >>> round(expert_peak_bytes(8192, 6, 2048, 1408, 2, 1, 3) / 2**30, 2)
    0.57
    """
    return element_bytes * tokens * top_k * (hidden_copies * hidden + width_copies * width)


@formula("rows * vocab * logit_bytes + element_bytes * tokens * hidden * copies + constant_bytes", unit="B", ref="vLLM start-up logs")
def sampler_peak_bytes(
    rows: Numeric, vocab: Numeric, logit_bytes: Numeric, tokens: Numeric, hidden: Numeric, element_bytes: Numeric, copies: Numeric,
    constant_bytes: Numeric,
) -> Numeric:  # fmt: skip
    """The sampler's peak: logits of `rows` sequences with their sorted copies, beside the hidden states of the chunk.

    >>> round(sampler_peak_bytes(1024, 128256, 14, 8192, 4096, 2, 1.64, 0.045 * 2**30) / 2**30, 2)  # 1.89 GiB were logged
    1.86
    """
    return rows * vocab * logit_bytes + element_bytes * tokens * hidden * copies + constant_bytes


def activation_bytes(
    model: Model, engine: Engine, parallel: Parallel = ONE, *, tokens: Numeric, sequences: Numeric, first: bool = True, last: bool = True,
    element_bytes: float = 2.0, packed_experts: bool = False, chunked: Numeric = False, hardware: Accelerator | None = None,
) -> Numeric:  # fmt: skip
    """The activation peak of one rank of one pipeline stage for `tokens` per step and at most `sequences` sequences.

    `chunked` says that a longest request takes several steps.
    `first` and `last` say whether the stage has the towers and the sampler; a stage between others keeps what it passes on.
    Kernels for `packed_experts` (mxfp4) keep no buffers beside the sampler's.
    Engines that profile nothing (a static fraction, cells) have none here.
    """
    layer, experts = layer_bytes(model, engine, parallel, tokens=tokens, element_bytes=element_bytes, hardware=hardware)
    kept = engine.choice("moe_workspace") == "kept" and not packed_experts
    sampler: Numeric = 0.0
    if last:
        logit = engine.number_or("logit_bytes", 4.0, hardware) + (element_bytes - 2)
        rows = sampled_rows(engine, tokens=tokens, sequences=sequences, chunked=chunked)
        sampler = sampler_peak_bytes(
            rows, model.head_vocab or model.vocab, logit, tokens, model.hidden, element_bytes,
            engine.number_or("hidden_copies_beside_logits", 1.0, hardware), engine.number_or("beside_logits_bytes", 0.0, hardware),
        )  # fmt: skip
    peak = np.maximum(layer, sampler) + experts if kept else np.maximum(np.maximum(layer, experts), sampler)
    passed = 0.0 if first and last else 2 * element_bytes * tokens * model.hidden
    images = image_bytes(model, engine, tokens=tokens, sequences=sequences) if first else 0.0
    return peak + passed + images + state_transient_bytes(model, engine, tokens=tokens, sequences=sequences)


def sampled_rows(engine: Engine, *, tokens: Numeric, sequences: Numeric, chunked: Numeric) -> Numeric:
    """Sequences whose logits are profiled: all that are allowed, none where an engine's profile of chunks chooses no token.

    >>> old = Engine.find("vllm", "0.6.4")
    >>> int(sampled_rows(old, tokens=29000, sequences=256, chunked=False)), int(sampled_rows(old, tokens=512, sequences=256, chunked=True))
    (256, 0)
    """
    rows = np.minimum(sequences, tokens)
    return np.where(chunked, 0, rows) if engine.choice("chunked_profile") == "unsampled" else rows


def element_bytes_of(precision: Precision) -> float:
    """Bytes of one activation: 4 where norms and cache are both kept in 32 bit, as a model run in fp32 keeps them, else 2."""
    return 4.0 if precision.format_of("norm").bits == 32 and precision.kv.bits == 32 else 2.0


def packs_experts(precision: Precision) -> bool:
    """Whether routed experts are kept in mxfp4, whose kernels pad the weights and keep no buffers beside the sampler's."""
    return precision.format_of("experts").name.startswith("mxfp4")


def state_transient_bytes(model: Model, engine: Engine, *, tokens: Numeric, sequences: Numeric) -> Numeric:
    """What a passing need of recurrent layers, taken for lasting, adds while graphs are estimated; 0 for other models.

    It grows with the batched tokens and, as each captured batch counts it once more, with the sequences.

    >>> from inferplan.readers.opening import open_model
    >>> engine, qwen = Engine.find("vllm", "0.28.0"), open_model("qwen3.5-27b").model
    >>> round(float(state_transient_bytes(qwen, engine, tokens=8192, sequences=1024)) / 2**30, 1)
    8.2
    """
    each = engine.number_or("state_transient_bytes", 0.0)
    if not any(entry.states for _, entry in model.cache()):
        return 0.0 * tokens
    return each * tokens * np.minimum(sequences, engine.number_or("captured_sequences", np.inf))


def image_bytes(model: Model, engine: Engine, *, tokens: Numeric, sequences: Numeric) -> Numeric:
    """What profiling images adds for a model with a vision tower: a constant, or a part for each image of the profiled batch.

    An image takes its share of the batched tokens, except where it is looked at by cross attention and takes none.
    """
    if not any(t.counts_as == "vision" for t in model.towers.values()):
        return 0.0
    crossed = any(entry.kind == "cross" for _, entry in model.cache())
    each = engine.number_or("crossed_image_bytes" if crossed else "image_bytes", 0.0)
    room = np.maximum(tokens // engine.number_or("image_tokens", 1.0), 1)
    images = sequences if crossed else np.minimum(sequences, room)
    return engine.number_or("tower_bytes", 0.0) + each * images


def layer_bytes(
    model: Model, engine: Engine, parallel: Parallel, *, tokens: Numeric, element_bytes: float, hardware: Accelerator | None = None
) -> tuple[Numeric, Numeric]:
    """The peak inside the widest dense layer, and the buffers of the largest expert layer; 0 where there is none."""
    hidden_copies, width_copies = engine.number_or("hidden_copies", 0.0, hardware), engine.number_or("width_copies", 0.0, hardware)
    if not np.any(hidden_copies):
        return 0.0 * tokens, 0.0 * tokens
    dense: Numeric = 0.0
    experts: Numeric = 0.0
    for block in model.blocks.values():
        for ffn in block.ffns:
            if isinstance(ffn, Dense):
                copies = width_copies * (1.0 if ffn.gated else 2 / 3)
                peak = layer_peak_bytes(tokens, model.hidden, ffn.width / parallel.tp, element_bytes, hidden_copies, copies)
                dense = np.maximum(dense, peak)
            else:
                experts = np.maximum(experts, _experts(ffn, model, engine, parallel, tokens, element_bytes))
    return np.maximum(dense, layer_peak_bytes(tokens, model.hidden, 0, element_bytes, hidden_copies, 0)), experts


def _experts(ffn: Experts, model: Model, engine: Engine, parallel: Parallel, tokens: Numeric, element_bytes: float) -> Numeric:
    hidden, width = ffn.latent or model.hidden, ffn.width / parallel.moe_tp
    return expert_peak_bytes(
        tokens, ffn.top_k, hidden, width, element_bytes,
        engine.number_or("expert_hidden_copies", 1.0), engine.number_or("expert_width_copies", 3.0),
    )  # fmt: skip


@formula("4 * batch * (vocab + hidden)", unit="B", ref="llama.cpp compute buffer with flash attention")
def logits_buffer_bytes(batch: Numeric, vocab: Numeric, hidden: Numeric) -> Numeric:
    """llama.cpp's buffer for the output of one micro-batch: logits and hidden states in fp32.

    >>> round(logits_buffer_bytes(512, 151936, 5120) / 2**20, 2)  # 306.75 MiB were logged
    306.75
    """
    return 4 * batch * (vocab + hidden)


@formula("4 * batch * (heads * cells + cells + 2 * hidden + 2 * query)", unit="B", ref="llama.cpp compute buffer without flash attention")
def scores_buffer_bytes(batch: Numeric, heads: Numeric, cells: Numeric, hidden: Numeric, query: Numeric) -> Numeric:
    """llama.cpp's buffer for attention scores in fp32 with their mask, of one layer; `query` is heads x head_dim.

    >>> round(scores_buffer_bytes(512, 48, 8192, 6144, 6144) / 2**20, 2)  # 832 MiB were logged
    832.0
    """
    return 4 * batch * (heads * cells + cells + 2 * hidden + 2 * query)


@formula("2 * cells * heads * (key + value)", unit="B", ref="ik_llama.cpp with latents and flash attention")
def expanded_latent_bytes(cells: Numeric, heads: Numeric, key: Numeric, value: Numeric) -> Numeric:
    """Keys and values of one layer expanded from all cached latents, in 16 bit.

    >>> expanded_latent_bytes(131072, 128, 192, 128) / 2**20  # 11,718 MiB were logged, with the logits and more beside it
    10240.0
    """
    return 2 * cells * heads * (key + value)


def compute_buffer_bytes(
    model: Model, *, batch: Numeric, cells: Numeric, flash_attention: bool = True, expand_latent: bool = False
) -> Numeric:
    """llama.cpp's compute buffer on one device that holds all layers and the output.

    Not counted: weights copied in for layers left on the host, and copies for pipelining over devices.
    """
    logits = logits_buffer_bytes(batch, model.head_vocab or model.vocab, model.hidden)
    mixers = [m for block in model.blocks.values() for m in block.mixers]
    if flash_attention:
        latent = [m for m in mixers if isinstance(m, LatentAttention)] if expand_latent else []
        grown = [expanded_latent_bytes(cells, m.heads, m.nope + m.rope, m.v) for m in latent]
        return logits + (np.max(np.broadcast_arrays(*grown), axis=0) if grown else 0.0 * cells)
    scores = [_scores(model, m.heads, _head_dim(m), batch, cells) for m in mixers if m.kind in ("attention", "mla", "compressed")]
    return np.maximum(logits, np.max(np.broadcast_arrays(*scores), axis=0)) if scores else logits + 0.0 * cells


def _head_dim(mixer: object) -> int:
    if isinstance(mixer, Attention):
        return mixer.head_dim
    return int(getattr(mixer, "nope", 0) + getattr(mixer, "rope", 0)) or int(getattr(mixer, "head_dim", 0))


def _scores(model: Model, heads: int, head_dim: int, batch: Numeric, cells: Numeric) -> Numeric:
    return scores_buffer_bytes(batch, heads, cells, model.hidden, heads * head_dim)
