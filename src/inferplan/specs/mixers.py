"""Token mixers of a layer: attention in its kinds and recurrences, each with its weights and its cache. Knows no FLOP and no clock.

Every record answers `weights(hidden)`, the tensors of one layer, and `cache()`, what one layer keeps per sequence.
Widths are in elements; `hidden` is the width of the residual stream.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from inferplan.specs.base import Record
from inferplan.specs.cache import CacheEntry, State
from inferplan.specs.weights import Part, Weight, linear, norm, vector

Count = Annotated[int, Field(gt=0, le=10**8)]
Optional0 = Annotated[int, Field(ge=0, le=10**8)]


class Indexer(Record):
    """The small scorer of sparse attention: it picks the `top_k` cached tokens (or blocks of `block` tokens) that a query reads.

    `inputs` is the width its queries are projected from; `own` is False where a layer reuses the choice of an earlier one.
    """

    heads: Count
    head_dim: Count
    top_k: Count
    inputs: Count
    block: Count = 1
    key_bytes: Count | None = None
    every: Count = 1
    own: bool = True
    form: Literal["dsa", "plain"] = "dsa"

    def weights(self, hidden: int) -> list[Weight]:
        """Query, key and head-weight projections with the key norm (DeepSeek-V3.2), or query and key with their norms."""
        queries = linear("indexer.q", "indexer", self.inputs, self.heads * self.head_dim)
        keys = linear("indexer.k", "indexer", hidden, self.head_dim)
        if self.form == "plain":
            return [queries, keys, norm("indexer.qk_norm", self.head_dim, copies=2)]
        return [queries, keys, norm("indexer.k_norm", self.head_dim, bias=True), linear("indexer.weights", "indexer", hidden, self.heads)]

    def cache(self) -> CacheEntry:
        """One key per token (or per compressed entry), shared by the indexer's heads."""
        return CacheEntry("index", self.head_dim, 0, self.head_dim, bytes_per_token=self.key_bytes, every=self.every)


class Attention(Record):
    """Softmax attention over cached keys and values: multi-head, grouped or multi-query; full, windowed, chunked, cross or sparse.

    bias
        the projections with a bias, as letters of q, k, v, o.
    qk_norm
        `head`: one scale of head_dim for all heads; `full`: a scale over the whole projection width.
    gate
        `elementwise`: a second query-sized projection gates the output; `headwise`: one number per head.
    keys
        `own`: projects and caches its own; `shared`: reads an earlier layer's cache; `as_values`: one projection serves both.
    inputs
        width of what is projected, where it is not the residual stream (Zamba concatenates two).
    query_experts
        queries and outputs come from so many experts (JetMoE): `heads` counts those of the experts one token uses.
    memory, memory_tokens
        cross attention: width and number of the vectors it looks at.
    conv_state
        elements of past inputs kept for short convolutions on keys, values or the layer's outputs (Zaya, Inkling).
    """

    kind: Literal["attention"] = "attention"
    heads: Count
    kv_heads: Count
    head_dim: Count
    v_head_dim: Count | None = None
    window: Count | None = None
    chunk: Count | None = None
    bias: Annotated[str, Field(pattern=r"^q?k?v?o?$")] = ""
    qk_norm: Literal["none", "head", "full"] = "none"
    qk_norm_bias: bool = False
    v_norm: bool = False
    gate: Literal["none", "elementwise", "headwise"] = "none"
    gate_bias: bool = False
    sinks: bool = False
    keys: Literal["own", "shared", "as_values"] = "own"
    inputs: Count | None = None
    outputs: Count | None = None
    query_experts: Optional0 = 0
    memory: Count | None = None
    memory_tokens: Count | None = None
    causal: bool = True
    cached: bool = True
    relative_buckets: Optional0 = 0
    in_norm: bool = False
    out_norm: bool = False
    shared_weights: bool = False
    indexer: Indexer | None = None
    conv_state: Optional0 = 0
    part: Part = "attention"

    @property
    def value_dim(self) -> int:
        """Width of one value head."""
        return self.v_head_dim or self.head_dim

    def weights(self, hidden: int) -> list[Weight]:
        """Projections q, k, v, o, then norms, gate and sinks."""
        source = self.inputs or hidden
        index = self.indexer.weights(hidden) if self.indexer else []
        return [*self._projections(source, self.outputs or hidden), *self._small(source), *index]

    def _projections(self, source: int, outputs: int) -> list[Weight]:
        q, k, v = self.heads * self.head_dim, self.kv_heads * self.head_dim, self.kv_heads * self.value_dim
        memory, part = self.memory or source, self.part
        if self.query_experts:
            return self._expert_projections(source, outputs)
        own = [linear("k", part, memory, k, bias="k" in self.bias)] if self.keys != "shared" else []
        own += [linear("v", part, memory, v, bias="v" in self.bias)] if self.keys == "own" else []
        out = linear("o", part, self.heads * self.value_dim, outputs, bias="o" in self.bias)
        return [linear("q", part, source, q, bias="q" in self.bias), *own, out]

    def _expert_projections(self, source: int, outputs: int) -> list[Weight]:
        kv = self.kv_heads * self.head_dim
        q = linear("q", "experts", source, kv, copies=self.query_experts, use="expert")
        o = linear("o", "experts", kv, outputs, copies=self.query_experts, use="expert")
        return [q, linear("k", self.part, source, kv), linear("v", self.part, source, kv), o]

    def _small(self, source: int) -> list[Weight]:
        q, k = self.heads * self.head_dim, self.kv_heads * self.head_dim
        small = [norm("in_norm", source)] if self.in_norm else []
        if self.qk_norm != "none":
            widths = (q, k) if self.qk_norm == "full" else (self.head_dim, self.head_dim)
            small += [norm("q_norm", widths[0], bias=self.qk_norm_bias)]
            small += [norm("k_norm", widths[1], bias=self.qk_norm_bias)] if self.keys != "shared" else []
        small += [norm("v_norm", self.value_dim)] if self.v_norm else []
        small += [norm("out_norm", self.heads * self.value_dim)] if self.out_norm else []
        if self.gate != "none":
            numbers = self.heads * (self.value_dim if self.gate == "elementwise" else 1)
            small += [linear("gate", self.part, source, numbers, bias=self.gate_bias)]
        small += [vector("sinks", self.part, self.heads)] if self.sinks else []
        small += [vector("relative_bias", self.part, self.relative_buckets * self.heads)] if self.relative_buckets else []
        return small

    def cache(self) -> list[CacheEntry]:
        """Keys and values per cached token, and the index key of a sparse layer."""
        conv = [CacheEntry("short_conv", states=(State("conv", self.conv_state),))] if self.conv_state else []
        if not self.cached or self.keys == "shared":
            return conv
        kind = "cross" if self.memory else "sliding" if self.window else "chunked" if self.chunk else "full"
        entry = CacheEntry(
            kind, self.kv_heads * self.head_dim, self.kv_heads * self.value_dim, self.head_dim,
            window=self.window or self.chunk, fixed_tokens=self.memory_tokens if self.memory else None,
        )  # fmt: skip
        return [entry, *conv, self.indexer.cache()] if self.indexer and self.indexer.own else [entry, *conv]


class LatentAttention(Record):
    """Multi-head latent attention (DeepSeek-V2): keys and values are expanded from one cached latent of `kv_rank` + `rope` elements.

    `q_rank` absent means a single query projection. `gate` adds an output gate as wide as the values (Kimi K3), `head_gate` one
    number per head (Ling), `sinks` one logit per head. With `query_gate` one projection of twice the rank makes queries and such a
    gate at once (A.X K2). With `keys` `shared` the layer reads an earlier layer's latent.
    """

    kind: Literal["mla"] = "mla"
    heads: Count
    q_rank: Count | None = None
    kv_rank: Count
    nope: Count
    rope: Optional0
    v: Count
    bias: bool = False
    gate: bool = False
    head_gate: bool = False
    query_gate: bool = False
    sinks: bool = False
    keys: Literal["own", "shared"] = "own"
    window: Count | None = None
    cached: bool = True
    indexer: Indexer | None = None

    def weights(self, hidden: int) -> list[Weight]:
        """Down and up projections of queries and latent, their norms, the output projection."""
        out = linear("o", "attention", self.heads * self.v, hidden, bias=self.bias)
        index = self.indexer.weights(hidden) if self.indexer and self.indexer.own else []
        return [*self._queries(hidden), *self._latent(hidden), *self._small(hidden), out, *index]

    def _queries(self, hidden: int) -> list[Weight]:
        qk = self.heads * (self.nope + self.rope)
        if not self.q_rank:
            return [linear("q", "attention", hidden, qk)]
        down = [linear("q_a", "attention", hidden, self.q_rank, bias=self.bias), norm("q_a_norm", self.q_rank)]
        if self.query_gate:
            return [*down, linear("q_gate", "attention", 2 * self.q_rank, qk + self.heads * self.v)]
        return [*down, linear("q_b", "attention", self.q_rank, qk)]

    def _latent(self, hidden: int) -> list[Weight]:
        own = [linear("kv_a", "attention", hidden, self.kv_rank + self.rope, bias=self.bias), norm("kv_a_norm", self.kv_rank)]
        expand = linear("kv_b", "attention", self.kv_rank, self.heads * (self.nope + self.v))
        return [*(own if self.keys == "own" else []), expand]

    def _small(self, hidden: int) -> list[Weight]:
        gate = [linear("gate", "attention", hidden, self.heads * self.v)] if self.gate else []
        gate += [linear("head_gate", "attention", hidden, self.heads)] if self.head_gate else []
        return gate + ([vector("sinks", "attention", self.heads)] if self.sinks else [])

    def cache(self) -> list[CacheEntry]:
        """The latent with its rotary part, stored once and shared by all heads."""
        if not self.cached:
            return []
        entry = CacheEntry("mla", self.kv_rank + self.rope, 0, self.kv_rank + self.rope, rope_elements=self.rope, window=self.window)
        index = [self.indexer.cache()] if self.indexer and self.indexer.own else []
        return index if self.keys == "shared" else [entry, *index]


class Mamba1(Record):
    """Selective state space (Gu and Dao 2023): a state of `inner` x `state` per sequence, read and written each step."""

    kind: Literal["mamba1"] = "mamba1"
    inner: Count
    state: Count
    conv: Count
    dt_rank: Count
    bias: bool = False
    conv_bias: bool = True
    inner_norms: bool = False
    state_dtype: str | None = None
    shared_weights: bool = False

    def weights(self, hidden: int) -> list[Weight]:
        """In, convolution, x, dt and out projections; the state matrix A and the skip D."""
        return [
            linear("in", "recurrent", hidden, 2 * self.inner, bias=self.bias),
            Weight("conv", "recurrent", self.inner, self.conv, 1, self.inner if self.conv_bias else 0, "conv"),
            linear("x", "recurrent", self.inner, self.dt_rank + 2 * self.state),
            linear("dt", "recurrent", self.dt_rank, self.inner, bias=True),
            Weight("a", "recurrent", self.inner, self.state, use="scan"),
            Weight("d", "recurrent", self.inner, use="scan"),
            *([norm("dt_norm", self.dt_rank), norm("bc_norm", self.state, copies=2)] if self.inner_norms else []),
            linear("out", "recurrent", self.inner, hidden, bias=self.bias),
        ]

    def cache(self) -> list[CacheEntry]:
        """The last conv - 1 inputs and the state."""
        states = (State("conv", self.inner * (self.conv - 1)), State("ssm", self.inner * self.state, self.state_dtype))
        return [CacheEntry("mamba1", states=states)]


class Mamba2(Record):
    """State-space duality (Dao and Gu 2024): heads of `head_dim` with a state of `state` each, B and C shared in `groups`.

    `out_bias` says whether the output projection has a bias where that differs from the input projection.
    """

    kind: Literal["mamba2"] = "mamba2"
    heads: Count
    head_dim: Count
    groups: Count
    state: Count
    conv: Count
    bias: bool = False
    out_bias: bool | None = None
    conv_bias: bool = True
    norm: bool = True
    chunk: Count = 256
    state_dtype: str | None = None
    shared_weights: bool = False

    @property
    def inner(self) -> int:
        """Width of all heads."""
        return self.heads * self.head_dim

    @property
    def conv_dim(self) -> int:
        """Channels that pass through the convolution: x, B and C."""
        return self.inner + 2 * self.groups * self.state

    def weights(self, hidden: int) -> list[Weight]:
        """One fused in projection (gate, x, B, C, dt), convolution, per-head A, D and dt bias, gated norm, out."""
        return [
            linear("in", "recurrent", hidden, self.inner + self.conv_dim + self.heads, bias=self.bias),
            Weight("conv", "recurrent", self.conv_dim, self.conv, 1, self.conv_dim if self.conv_bias else 0, "conv"),
            Weight("a_d_dt", "recurrent", self.heads, 1, 3, use="scan"),
            *([norm("norm", self.inner)] if self.norm else []),
            linear("out", "recurrent", self.inner, hidden, bias=self.bias if self.out_bias is None else self.out_bias),
        ]

    def cache(self) -> list[CacheEntry]:
        """The last conv - 1 inputs and the state."""
        states = (State("conv", self.conv_dim * (self.conv - 1)), State("ssm", self.inner * self.state, self.state_dtype))
        return [CacheEntry("mamba2", states=states)]


class GatedDelta(Record):
    """Gated delta rule (Yang et al. 2024): a `key_dim` x `value_dim` state per value head."""

    kind: Literal["gated_delta"] = "gated_delta"
    key_heads: Count
    value_heads: Count
    key_dim: Count
    value_dim: Count
    conv: Count
    state_dtype: str | None = None
    chunk: Count = 64

    @property
    def keys(self) -> int:
        """Width of all key heads."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Width of all value heads."""
        return self.value_heads * self.value_dim

    def weights(self, hidden: int) -> list[Weight]:
        """Projections of q, k, v and gate, of beta and alpha, convolution, per-head decay, norm, out."""
        return [
            linear("qkvz", "recurrent", hidden, 2 * self.keys + 2 * self.values),
            linear("ba", "recurrent", hidden, 2 * self.value_heads),
            Weight("conv", "recurrent", 2 * self.keys + self.values, self.conv, use="conv"),
            Weight("a_dt", "recurrent", self.value_heads, 1, 2, use="scan"),
            norm("norm", self.value_dim),
            linear("out", "recurrent", self.values, hidden),
        ]

    def cache(self) -> list[CacheEntry]:
        """The last conv - 1 inputs and the state."""
        conv = State("conv", (2 * self.keys + self.values) * (self.conv - 1))
        state = State("state", self.value_heads * self.key_dim * self.value_dim, self.state_dtype)
        return [CacheEntry("gated_delta", states=(conv, state))]


class KimiDelta(Record):
    """Kimi delta attention: the gated delta rule with a decay per channel, its projection low-rank where `decay_rank` is set."""

    kind: Literal["kda"] = "kda"
    heads: Count
    head_dim: Count
    conv: Count
    decay_rank: Count | None = None
    gate_rank: Count | None = None
    chunk: Count = 64

    @property
    def inner(self) -> int:
        """Width of all heads."""
        return self.heads * self.head_dim

    def weights(self, hidden: int) -> list[Weight]:
        """Projections of q, k, v, low-rank decay and output gate, beta, three convolutions, decay, norm, out."""
        return [
            linear("qkv", "recurrent", hidden, self.inner, copies=3),
            Weight("conv", "recurrent", self.inner, self.conv, 3, use="conv"),
            Weight("a", "recurrent", self.heads, use="scan"),
            Weight("dt_bias", "recurrent", self.inner, use="scan"),
            *self._low_rank("decay", hidden, self.decay_rank),
            linear("beta", "recurrent", hidden, self.heads),
            *self._low_rank("gate", hidden, self.gate_rank),
            norm("norm", self.head_dim),
            linear("out", "recurrent", self.inner, hidden),
        ]

    def _low_rank(self, name: str, hidden: int, rank: int | None) -> list[Weight]:
        if rank is None:
            return [linear(name, "recurrent", hidden, self.inner)]
        return [linear(f"{name}_a", "recurrent", hidden, rank), linear(f"{name}_b", "recurrent", rank, self.inner)]

    def cache(self) -> list[CacheEntry]:
        """The last conv - 1 inputs of q, k and v, and a state that is always fp32."""
        conv = State("conv", 3 * self.inner * (self.conv - 1))
        return [CacheEntry("kda", states=(conv, State("state", self.heads * self.head_dim**2, "fp32")))]


class ShortConv(Record):
    """Gated short convolution (LFM2)."""

    kind: Literal["short_conv"] = "short_conv"
    width: Count
    conv: Count
    bias: bool = False

    def weights(self, hidden: int) -> list[Weight]:
        """In projection to three gates, convolution, out."""
        return [
            linear("in", "recurrent", hidden, 3 * self.width, bias=self.bias),
            Weight("conv", "recurrent", self.width, self.conv, 1, self.width if self.bias else 0, "conv"),
            linear("out", "recurrent", self.width, hidden, bias=self.bias),
        ]

    def cache(self) -> list[CacheEntry]:
        """The last conv - 1 inputs."""
        return [CacheEntry("short_conv", states=(State("conv", self.width * (self.conv - 1)),))]


class Lightning(Record):
    """Lightning linear attention (MiniMax-01): a head_dim x head_dim state per head."""

    kind: Literal["lightning"] = "lightning"
    heads: Count
    head_dim: Count
    block: Count = 256

    @property
    def inner(self) -> int:
        """Width of all heads."""
        return self.heads * self.head_dim

    def weights(self, hidden: int) -> list[Weight]:
        """Fused q, k, v projection, output gate, norm, out."""
        return [
            linear("qkv", "recurrent", hidden, 3 * self.inner),
            linear("gate", "recurrent", hidden, self.inner),
            norm("norm", self.inner),
            linear("out", "recurrent", self.inner, hidden),
        ]

    def cache(self) -> list[CacheEntry]:
        """The state, always fp32 in engines."""
        return [CacheEntry("lightning", states=(State("state", self.heads * self.head_dim**2, "fp32"),))]


class GatedRecurrence(Record):
    """Real-gated linear recurrent unit (Griffin): a state of `width`, block-diagonal gates in `blocks`."""

    kind: Literal["rg_lru"] = "rg_lru"
    width: Count
    blocks: Count
    conv: Count

    def weights(self, hidden: int) -> list[Weight]:
        """Two in projections, convolution, two block-diagonal gates, decay, out."""
        block = self.width // self.blocks
        return [
            linear("in", "recurrent", hidden, self.width, bias=True, copies=2),
            Weight("conv", "recurrent", self.width, self.conv, 1, self.width, "conv"),
            linear("gates", "recurrent", block, block, bias=True, copies=2 * self.blocks),
            Weight("decay", "recurrent", self.width, use="scan"),
            linear("out", "recurrent", self.width, hidden, bias=True),
        ]

    def cache(self) -> list[CacheEntry]:
        """The last conv - 1 inputs and the state."""
        return [CacheEntry("rg_lru", states=(State("conv", self.width * (self.conv - 1)), State("state", self.width, "fp32")))]


class Rwkv(Record):
    """Time mixing of RWKV-4: a decaying weighted mean of values, three numbers per channel; no softmax and no convolution."""

    kind: Literal["rwkv"] = "rwkv"
    width: Count
    hidden: Count

    def weights(self, hidden: int) -> list[Weight]:
        """Key, value and receptance projections, per-channel decay and bonus, mixing vectors, out."""
        return [
            linear("kvr", "recurrent", hidden, self.width, copies=3),
            Weight("decay_first", "recurrent", self.width, 1, 2, use="scan"),
            vector("mix", "recurrent", hidden, copies=3),
            linear("out", "recurrent", self.width, hidden),
        ]

    def cache(self) -> list[CacheEntry]:
        """The last input of time and channel mixing, and numerator, denominator and maximum in fp32."""
        return [CacheEntry("rwkv", states=(State("conv", 2 * self.hidden), State("state", 3 * self.width, "fp32")))]


class MatrixLstm(Record):
    """Matrix memory of xLSTM: a key_dim x value_dim state, a normaliser and a maximum per head."""

    kind: Literal["mlstm"] = "mlstm"
    heads: Count
    key_dim: Count
    value_dim: Count
    bias: bool = False
    state_dtype: str | None = "fp32"
    chunk: Count = 64

    @property
    def values(self) -> int:
        """Width of all heads."""
        return self.heads * self.value_dim

    def weights(self, hidden: int) -> list[Weight]:
        """Projections of q, k, v and output gate, input and forget gates (always with a bias), per-head norm, out."""
        return [
            linear("qk", "recurrent", hidden, self.heads * self.key_dim, bias=self.bias, copies=2),
            linear("v_gate", "recurrent", hidden, self.values, bias=self.bias, copies=2),
            linear("if", "recurrent", hidden, self.heads, bias=True, copies=2),
            norm("norm", self.values, bias=self.bias),
            linear("out", "recurrent", self.values, hidden, bias=self.bias),
        ]

    def cache(self) -> list[CacheEntry]:
        """Memory, normaliser and maximum."""
        elements = self.heads * (self.key_dim * self.value_dim + self.key_dim + 1)
        return [CacheEntry("mlstm", states=(State("state", elements, self.state_dtype),))]


class Compressor(Record):
    """Folds `every` tokens into one cached entry (DeepSeek-V4); `overlap` keeps two interleaved windows, doubling its projections."""

    every: Count
    head_dim: Count
    overlap: bool

    def weights(self, name: str, part: Part, hidden: int) -> list[Weight]:
        """Entry and gate projections, position bias, norm."""
        width = self.head_dim * (2 if self.overlap else 1)
        position = Weight(f"{name}.position", part, width, self.every, use="vector")
        return [linear(f"{name}.kv_gate", part, hidden, width, copies=2), position, norm(f"{name}.norm", self.head_dim)]


class CompressedAttention(Record):
    """Attention over a short window plus compressed entries (DeepSeek-V4): one key-value head whose keys serve as values.

    `every` is how many tokens one compressed entry stands for, absent on layers with the window alone. An indexer, where present,
    has compressed keys of its own. The output projection is low-rank in `groups`.
    """

    kind: Literal["compressed"] = "compressed"
    heads: Count
    head_dim: Count
    rope: Optional0 = 0
    q_rank: Count
    o_groups: Count
    o_rank: Count
    window: Count
    every: Count | None = None
    overlap: bool = False
    indexer: Indexer | None = None

    def weights(self, hidden: int) -> list[Weight]:
        """Low-rank queries, one key-value projection, grouped low-rank output, sinks, compressor and indexer."""
        width = self.heads * self.head_dim
        return [
            linear("q_a", "attention", hidden, self.q_rank),
            norm("q_a_norm", self.q_rank),
            linear("q_b", "attention", self.q_rank, width),
            linear("kv", "attention", hidden, self.head_dim),
            norm("kv_norm", self.head_dim),
            linear("o_a", "attention", width // self.o_groups, self.o_rank, copies=self.o_groups),
            linear("o_b", "attention", self.o_groups * self.o_rank, hidden),
            vector("sinks", "attention", self.heads),
            *self._compressed(hidden),
        ]

    def _compressed(self, hidden: int) -> list[Weight]:
        if not self.every:
            return []
        main = Compressor(every=self.every, head_dim=self.head_dim, overlap=self.overlap).weights("compressor", "indexer", hidden)
        if not self.indexer:
            return main
        i = self.indexer
        keys = Compressor(every=self.every, head_dim=i.head_dim, overlap=self.overlap).weights("indexer.compressor", "indexer", hidden)
        queries = linear("indexer.q", "indexer", self.q_rank, i.heads * i.head_dim)
        return [*main, *keys, queries, linear("indexer.weights", "indexer", hidden, i.heads)]

    def cache(self) -> list[CacheEntry]:
        """The window, one entry per `every` tokens, and the indexer's compressed keys."""
        window = CacheEntry("sliding", self.head_dim, 0, self.head_dim, rope_elements=self.rope, window=self.window)
        if not self.every:
            return [window]
        entries = [window, CacheEntry("compressed", self.head_dim, 0, self.head_dim, rope_elements=self.rope, every=self.every)]
        return (
            [*entries, CacheEntry("index", self.indexer.head_dim, 0, self.indexer.head_dim, every=self.every)] if self.indexer else entries
        )


Mixer = Annotated[
    Attention
    | LatentAttention
    | CompressedAttention
    | Mamba1
    | Mamba2
    | GatedDelta
    | KimiDelta
    | ShortConv
    | Lightning
    | GatedRecurrence
    | Rwkv
    | MatrixLstm,
    Field(discriminator="kind"),
]
