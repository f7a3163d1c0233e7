"""Where the bytes of weights and caches go in a format: codes, scales beside them, what stays wide. Knows no part and no time."""

from __future__ import annotations

from dataclasses import dataclass

from inferplan.engine.cache_bytes import GROWING, WINDOWED, scale_bytes, token_bytes
from inferplan.engine.weight_ops import tensor_of
from inferplan.memory.weights import placed_bytes
from inferplan.specs.cache import CacheEntry
from inferplan.specs.model import Model
from inferplan.specs.precision import Format, Precision
from inferplan.specs.weights import Weight

SMALL = ("vector", "scan", "conv")


@dataclass(frozen=True, slots=True)
class Stored:
    """Bytes of weights by what they are; they add up to what is stored.

    code_bytes
        quantised values themselves.
    scale_bytes
        scales, zeros, group indices, padding to whole groups and words.
    wide_bytes
        tensors that stay in 16 or 32 bit: norms, mostly token table and head; biases.
    code_params
        parameters that are quantised.
    """

    code_bytes: float = 0.0
    scale_bytes: float = 0.0
    wide_bytes: float = 0.0
    code_params: float = 0.0

    @property
    def total_bytes(self) -> float:
        """All of them."""
        return self.code_bytes + self.scale_bytes + self.wide_bytes

    @property
    def bits_per_weight(self) -> float:
        """Bits of a quantised parameter with its scales; 0 where none is."""
        return 8 * (self.code_bytes + self.scale_bytes) / self.code_params if self.code_params else 0.0

    def __add__(self, other: Stored) -> Stored:
        pairs = ((getattr(self, n), getattr(other, n)) for n in ("code_bytes", "scale_bytes", "wide_bytes", "code_params"))
        return Stored(*(one + two for one, two in pairs))


def stored(model: Model, precision: Precision) -> Stored:
    """Where the bytes of all weights go; the total is that of `weight_bytes`.

    >>> from inferplan.names import model, precision
    >>> found = stored(model("llama-2-7b"), precision("int4-g128"))
    >>> round(found.bits_per_weight, 3), round(found.code_bytes / 1e9, 2), round(found.wide_bytes / 1e9, 2)
    (4.125, 3.24, 0.52)
    """
    return sum(stored_by_part(model, precision).values(), Stored())


def stored_by_part(model: Model, precision: Precision) -> dict[str, Stored]:
    """The same for each part: embedding, attention, mlp, experts, norm ..."""
    found: dict[str, Stored] = {}
    for block, layers, w, whole in placed_bytes(model, precision):
        codes, params = _codes(model, precision, block, layers, w)
        quantised = _quantised_bytes(model, precision, block, layers, w)
        found[w.part] = found.get(w.part, Stored()) + Stored(codes, quantised - codes, whole - quantised, params)
    return found


def _chosen(model: Model, precision: Precision, block: str, layers: tuple[int, ...], w: Weight) -> list[tuple[Format, int]]:
    """The narrow formats of a tensor with the layers that have it; none for vectors and convolutions."""
    if w.use in SMALL or w.buffer:
        return []
    if precision.mix is not None and layers:
        chosen = precision.formats_of(w.part, tensor_of(model, model.blocks[block], w), layers)
    else:
        chosen = [(precision.format_of(w.part), max(1, len(layers)))]
    return [(f, n) for f, n in chosen if f.quantised]


def _codes(model: Model, precision: Precision, block: str, layers: tuple[int, ...], w: Weight) -> tuple[float, float]:
    """Bytes of codes, and how many parameters they stand for."""
    each = float(w.rows) * w.cols * w.copies
    chosen = _chosen(model, precision, block, layers, w)
    return sum(each * n * f.bits / 8 for f, n in chosen), sum(each * n for _, n in chosen)


def _quantised_bytes(model: Model, precision: Precision, block: str, layers: tuple[int, ...], w: Weight) -> float:
    return sum(float(f.bytes(w.rows, w.cols)) * w.copies * n for f, n in _chosen(model, precision, block, layers, w))


@dataclass(frozen=True, slots=True)
class Cached:
    """Bytes of a model's cache: of one token over all layers, codes and scales, and what a sequence keeps whatever its length."""

    token_code_bytes: float
    token_scale_bytes: float
    sequence_scale_bytes: float

    @property
    def token_bytes(self) -> float:
        """Of one more token, windows not yet full."""
        return self.token_code_bytes + self.token_scale_bytes


def cached(model: Model, precision: Precision) -> Cached:
    """Where the bytes of a cache go.

    The article's int8 with a scale per channel of K and per token and head of V, on 32 layers of 8 KV heads of 128: 2,048 codes a layer
    and token, 8 fp16 scales of V beside them, and 1,024 fp16 scales of K a layer for the whole sequence.

    >>> from inferplan.names import model, precision
    >>> cached(model("llama-3.1-8b"), precision("bf16", "int8"))
    Cached(token_code_bytes=65536.0, token_scale_bytes=512.0, sequence_scale_bytes=65536.0)
    """
    entries = [(n, entry) for n, entry in model.cache() if entry.kind in (*GROWING, *WINDOWED)]
    whole = sum(float(token_bytes(entry, precision)) * n for n, entry in entries)
    codes = sum(_token_codes(entry, precision) * n for n, entry in entries)
    fixed = sum(float(scale_bytes(entry, precision)) * n for n, entry in entries)
    return Cached(codes, whole - codes, fixed)


def _token_codes(entry: CacheEntry, precision: Precision) -> float:
    """Bytes of values alone that one more token adds to one layer."""
    whole = float(token_bytes(entry, precision))
    if entry.bytes_per_token is not None or not whole:
        return whole
    kv = precision.kv
    if entry.rope_elements or entry.kind in ("mla", "compressed"):
        latent = entry.k_elements - entry.rope_elements
        bits = latent * kv.bits + entry.rope_elements * (kv.rope or kv).bits
    else:
        bits = entry.k_elements * kv.bits + entry.v_elements * (kv.value or kv).bits
    return bits / 8 / entry.every
