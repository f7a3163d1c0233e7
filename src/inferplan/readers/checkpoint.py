"""What a safetensors checkpoint stores, beside the Model its config.json describes: bytes by part, and where the two counts differ.

Knows the names that published checkpoints use; reads headers, no weight. A difference is named by its reason
(prediction modules, buffers, a tied head stored twice) or left as unexplained, never dropped.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from inferplan.errors import NotFound, SpecError
from inferplan.readers.huggingface.config import load_config
from inferplan.readers.safetensors import Checkpoint as Stored
from inferplan.readers.safetensors import LogicalWeight, read_checkpoint
from inferplan.specs.document import resolve
from inferplan.specs.model import Model
from inferplan.specs.precision import Precision

LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d{1,6})\.")
VISION = re.compile(
    r"(^|\.)(vision\w*|visual|vit|mm_projector|multi_modal_projector|audio\w*|embed_vision|embed_audio|image\w*|patch_embed\w*)\."
)
BUFFERS = (
    (re.compile(r"(rotary_emb\.inv_freq|rope\.freqs|\.inv_freq)$"), "rotary frequencies"),
    (re.compile(r"\.(attn|attention|self_attn)\.(bias|masked_bias)$"), "causal masks"),
    (re.compile(r"(position_ids|num_batches_tracked|\.std_bias|\.std_scale|layer_scalar)$"), "buffers"),
    (re.compile(r"(e_score_correction_bias|expert_bias|e_score_correction\.bias|moe_statics\.e_score_correction_bias)$"),
    "router corrections"),
)  # fmt: skip
PARTS = (
    (r"(^|\.)(lm_head|embed_out|output)\.|(^|\.)head\.weight", "head"), (r"per_layer|wpe|embed_positions", "aux_embedding"),
    (r"(embed_tokens|wte|tok_embeddings|word_embeddings|embed_in)\.|(^|\.)embed\.weight", "embedding"), (r"indexer", "indexer"),
    (r"norm|(^|\.)ln_|layernorm", "norm"), (r"shared_expert_gate|(mlp|block_sparse_moe|ffn|mixer|feed_forward)\.gate\.|router", "router"),
    (r"shared_(expert|mlp)", "shared_expert"), (r"experts\.", "experts"),
    (r"linear_attn|mamba|ssm|conv1d|A_log|dt_bias|mixer\.(in_proj|out_proj|D)", "recurrent"),
    (r"(self_attn|self_attention|attention|attn)\.|mixer\.[qkvo]_proj", "attention"), (r"(mlp|feed_forward|ffn|mixer)\.", "mlp"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Difference:
    """Values a checkpoint stores that are not parameters of the model, or the reverse (negative), with the reason."""

    reason: str
    values: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint's content. `values` are logical: packed weights unpacked, scales not counted.

    `scale_bytes` are those of scales, zero points and other companions, within `stored_bytes`. `unexplained` is what is left
    of values minus model parameters after the `differences`; it says nothing where shards are `missing`.
    """

    path: Path
    model: Model
    stored_bytes: int
    scale_bytes: int
    values: int
    bytes_by_part: dict[str, int]
    bytes_by_dtype: dict[str, int]
    bytes_by_format: dict[str, int]
    differences: tuple[Difference, ...]
    unexplained: int
    missing: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """The differences in words."""
        found = [f"{d.values:,} values are {d.reason}" for d in self.differences]
        found += [f"{len(self.missing)} shards are not here: {', '.join(self.missing[:3])}"] if self.missing else []
        if self.unexplained and not self.missing:
            more = "more" if self.unexplained > 0 else "fewer"
            found.append(f"{abs(self.unexplained):,} values {more} than the model has, for no reason known here")
        return tuple(found)


def open_checkpoint(path: str | os.PathLike[str], model: Model | None = None) -> Checkpoint:
    """What a .safetensors file, an index or a folder stores, against `model` or the config.json beside it.

    Raises SpecError for broken files, for a packed layout whose bits nothing states, and where there is no config.json.
    """
    stored = read_checkpoint(path)
    if model is None:
        place = resolve(path)
        config = (place if place.is_dir() else place.parent) / "config.json"
        if not config.is_file():
            raise SpecError("has no config.json beside it, which names the architecture", file=place)
        model = load_config(config)
    return compared(stored, model)


def compared(stored: Stored, model: Model) -> Checkpoint:
    """The summary of stored tensors against a model."""
    weights = stored.logical(packed_bits(model))
    parts: Counter[str] = Counter()
    formats: Counter[str] = Counter()
    for w in weights:
        parts[part_of(w.name, len(model.order))] += w.stored_bytes
        formats[w.format_name] += w.stored_bytes
    found = tuple(differences(weights, model))
    values = sum(w.elements for w in weights)
    rest = values - sum(d.values for d in found) - model.params
    scales, by_part, by_format = sum(w.scale_bytes for w in weights), dict(parts.most_common()), dict(formats.most_common())
    return Checkpoint(
        stored.path, model, stored.total_bytes, scales, values, by_part, stored.bytes_by_dtype, by_format, found, rest, stored.missing
    )


def packed_bits(model: Model) -> int | None:
    """Bits of a packed value, from the model's precision; None where that does not say."""
    if model.precision is None:
        return None
    try:
        precision = Precision.named(model.precision)
    except NotFound:
        return None
    widths = {f.bits for f in (precision.weights, *(f for _, f in precision.overrides)) if f.bits < 8}  # noqa: PLR2004 - wider values are not packed
    bits = next(iter(widths), None) if len(widths) == 1 else None
    return int(bits) if bits is not None and float(bits).is_integer() else None


def part_of(name: str, layers: int) -> str:
    """The part of a model that a stored tensor belongs to; layers from `layers` on are prediction modules.

    >>> part_of("model.layers.3.mlp.experts.7.down_proj.weight", 4), part_of("model.layers.4.mlp.gate.weight", 4)
    ('experts', 'mtp')
    """
    if VISION.search(name):
        return "vision"
    place = LAYER.search(name)
    if name.startswith(("mtp.", "model.mtp.")) or (place and int(place[1]) >= layers):
        return "mtp"
    return next((part for pattern, part in PARTS if re.search(pattern, name)), "other")


def differences(weights: Iterable[LogicalWeight], model: Model) -> list[Difference]:
    """Values that are not the model's parameters, by reason."""
    values: Counter[str] = Counter()
    stored: Counter[str] = Counter()
    for w in weights:
        reason = _reason(w, model)
        if reason and w.elements:
            values[reason] += w.elements
            stored[reason] += w.stored_bytes
    return [Difference(reason, count, stored[reason]) for reason, count in values.items()]


def _reason(w: LogicalWeight, model: Model) -> str | None:
    """Why a stored weight is not among the model's parameters, None where it is."""
    part = part_of(w.name, len(model.order))
    if part == "mtp":
        return "prediction modules"
    kind = next((reason for pattern, reason in BUFFERS if pattern.search(w.name)), None)
    if kind == "router corrections":
        return kind if any(b.buffer for b in model.weights()) else None
    if kind and not (kind == "causal masks" and _projected(w)):
        return kind
    if part == "head" and model.head == "tied" and w.name.endswith("weight"):
        return "the tied head, stored a second time"
    if part == "vision" and not model.towers:
        return "encoders that the model does not count"
    return "keys and values of layers that read an earlier layer's" if _shared(w, model) else None


def _projected(w: LogicalWeight) -> bool:
    """Whether a `...attn.bias` is the bias of a projection and not a mask over positions."""
    return len(w.shape) <= 1 and w.elements > 1


def _shared(w: LogicalWeight, model: Model) -> bool:
    place = LAYER.search(w.name)
    if not place or not re.search(r"\.(k_proj|v_proj|k_norm|v_norm)\.", w.name) or int(place[1]) >= len(model.order):
        return False
    return any(getattr(m, "keys", "") == "shared" for m in model.blocks[model.order[int(place[1])]].mixers)
