"""A GGUF file to a Model and the precision of its weights, cross-checked against the file's own tensors.

The shapes come from the same readers as those of published configurations; this module knows which tensors a file holds
beside the model's parameters, and how its number formats spread over the parts. It reads no weight.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from inferplan.errors import NotFound, SpecError, Unsupported
from inferplan.readers.gguf import Gguf, GgufTensor
from inferplan.readers.gguf_architectures import Header, published
from inferplan.readers.huggingface.config import read_config
from inferplan.specs.base import as_line
from inferplan.specs.model import Model
from inferplan.specs.precision import BODY, library, mix_type

LARGEST_GAP = 0.005  # share of the values by which tensors may differ from the model that the metadata describes
MOST_OTHER = 0.02  # share of the values that may lie in other types than the mix gives them
TABLES = re.compile(r"(?:^|\.)(?:rope_freqs|rope_factors_(?:long|short)|attn_rot_embd|layer_output_scale)\.(?:weight|bias)$")
SCALES = re.compile(r"\.(?:scale|input_scale)$")
FILE_TYPES = {
    0: "gguf-f32", 1: "gguf-f16", 2: "q4_0", 3: "q4_1", 7: "q8_0", 8: "q5_0", 9: "q5_1", 10: "q2_k", 11: "q3_k_s", 12: "q3_k_m",
    13: "q3_k_l", 14: "q4_k_s", 15: "q4_k_m", 16: "q5_k_s", 17: "q5_k_m", 18: "q6_k", 19: "iq2_xxs", 20: "iq2_xs", 21: "q2_k_s",
    22: "iq3_xs", 23: "iq3_xxs", 24: "iq1_s", 25: "iq4_nl", 26: "iq3_s", 27: "iq3_m", 28: "iq2_s", 29: "iq2_m", 30: "iq4_xs",
    31: "iq1_m", 32: "gguf-bf16", 36: "tq1_0", 37: "tq2_0", 38: "mxfp4_moe",
}  # fmt: skip
"""File mixes by the number in `general.file_type`."""


def model_of_gguf(gguf: Gguf, *, name: str | None = None) -> tuple[Model, str | None]:
    """The Model in a GGUF file and the text of the precision of its weights (a file mix, or part by part).

    Raises Unsupported for an architecture that is not understood; SpecError where a field is missing or absurd, and where
    the file's tensors hold more than 0.5 % more or fewer values than the model has parameters. A smaller gap is remarked in
    the model's `note`.
    """
    header = Header(gguf)
    model = read_config(published(header), file=gguf.path, name=name or _name(gguf))
    precision = precision_of_gguf(gguf, header)
    note = "; ".join(n for n in (model.note, *remarks(gguf, header, model)) if n)
    return model.model_copy(
        update={"note": note or None, "precision": precision, "title": as_line(str(gguf.metadata.get("general.name") or model.title))}
    ), precision


def _name(gguf: Gguf) -> str:
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", gguf.path.stem)
    return stem or "model"


# ------------------------------------------------------------------------------------------------------ cross-check


def counted(gguf: Gguf, header: Header, model: Model) -> Iterator[GgufTensor]:
    """The tensors that hold the model's parameters and router corrections: tables, scales and prediction layers are not among them."""
    sharing = {i for i, name in enumerate(model.order) if any(getattr(m, "keys", "") == "shared" for m in model.blocks[name].mixers)}
    for tensor in gguf.tensors:
        place = re.match(r"blk\.(\d+)\.(.*)", tensor.name)
        layer, role = (int(place[1]), place[2]) if place else (-1, tensor.name)
        if TABLES.search(tensor.name) or layer >= header.layers or (SCALES.search(role) and header.arch != "gemma4"):
            continue
        if layer in sharing and re.match(r"attn_(k|v|k_norm)\.", role):
            continue
        yield tensor


def remarks(gguf: Gguf, header: Header, model: Model) -> Iterator[str]:
    """How the tensors differ from the model, in words; SpecError where they cannot be the same model."""
    if gguf.missing:
        yield f"{len(gguf.missing)} parts of the file are not here: its tensors could not be compared with the model"
        return
    found = sum(t.elements for t in counted(gguf, header, model))
    expected = model.params + sum(w.params for w in model.weights() if w.buffer)
    gap = found - expected
    if abs(gap) > LARGEST_GAP * expected:
        raise SpecError(
            f"holds {found:,} values in its tensors, but its metadata describes a model of {expected:,} ({gap / expected:+.1%})",
            file=gguf.path, field=f"{header.arch} tensors",
        )  # fmt: skip
    if gap:
        more = "more" if gap > 0 else "fewer"
        yield f"the file's tensors hold {abs(gap):,} values {more} than the model has parameters ({gap / expected:+.4%})"


def stored_bytes(gguf: Gguf) -> dict[str, int]:
    """Exact bytes of each part of a file as stored, prediction layers under `mtp`.

    >>> from pathlib import Path
    >>> stored_bytes(Gguf(Path("m.gguf"), 3, {}, (GgufTensor("blk.0.attn_q.weight", "Q8_0", (64, 64), 4352, 0),)))
    {'attention': 4352}
    """
    totals: Counter[str] = Counter()
    for tensor in gguf.tensors:
        totals[part_of(tensor.name)] += tensor.nbytes
    return dict(totals)


# ---------------------------------------------------------------------------------------------------- precision

PARTS = (
    (r"nextn\.", "mtp"), (r"(^|_)norm|norm_?\d*\.|^output_norm", "norm"), (r"per_layer_token_embd", "aux_embedding"),
    (r"position_embd|token_types", "aux_embedding"),
    (r"token_embd", "embedding"), (r"^output\.", "head"), (r"indexer\.", "indexer"), (r"^(ssm|shortconv|time_mix)", "recurrent"),
    (r"^attn_", "attention"),
    (r"ffn_gate_inp|exp_probs", "router"), (r"_(ch)?exps\.", "experts"), (r"_shexp\.", "shared_expert"), (r"^ffn_", "mlp"),
    (r"^(altup|laurel|inp_gate|proj)", "mlp_aux"),
)  # fmt: skip


def part_of(name: str) -> str:
    """The part of a model that a tensor belongs to, by its name.

    >>> part_of("blk.3.ffn_down_exps.weight"), part_of("token_embd.weight"), part_of("blk.0.attn_norm.weight")
    ('experts', 'embedding', 'norm')
    """
    role = re.sub(r"^blk\.\d+\.", "", name)
    return next((part for pattern, part in PARTS if re.search(pattern, role)), "other")


def precision_of_gguf(gguf: Gguf, header: Header) -> str | None:
    """The text of the precision of a file's weights.

    The name of a file mix where nearly all bytes lie in the types that the mix would choose; else part by part, each in the
    type that holds most of its values. None where the file holds no tensor.
    """
    matrices = [t for t in gguf.tensors if len(t.shape) > 1 and part_of(t.name) not in ("norm", "router") and not TABLES.search(t.name)]
    if not matrices:
        return None
    number = gguf.metadata.get("general.file_type")
    mix = FILE_TYPES.get(number) if isinstance(number, int) else None
    if mix and _follows(mix, matrices, header):
        return mix
    return by_part(gguf.tensors)


def _follows(mix: str, tensors: list[GgufTensor], header: Header) -> bool:
    """Whether all but a small share of a file's values lie in the types the mix gives their tensors."""
    plain = {"gguf-f32": ("F32",), "gguf-f16": ("F16", "F32"), "gguf-bf16": ("BF16", "F32", "F16")}
    other = 0
    for t in tensors:
        same = t.type in plain[mix] if mix in plain else t.type.lower() in _expected(mix, t, header)
        other += 0 if same else t.elements
    return other <= MOST_OTHER * sum(t.elements for t in tensors)


def _expected(mix: str, tensor: GgufTensor, header: Header) -> set[str]:
    """The types that a mix may give a tensor: small recurrent ones stay wide."""
    place = re.match(r"blk\.(\d+)\.", tensor.name)
    role = re.sub(r"^blk\.\d+\.", "", tensor.name).rpartition(".")[0]
    if role.startswith(("ssm_a", "ssm_d", "ssm_conv1d", "shortconv.conv")):
        return {"f32", "f16", "bf16"}
    heads, kv = header.number("attention.head_count", 1), header.number("attention.head_count_kv", 1)
    model = {"gqa": heads // kv or 1, "experts": header.number("expert_count", 1), "tied": not header.has("output.weight")}
    layer = min(int(place[1]), header.layers - 1) if place else 0
    try:
        found = {mix_type(mix, role, layer, header.layers, tensor.shape[-1], imatrix=with_matrix, **model) for with_matrix in (True, False)}
    except NotFound:
        return set()
    return {{"fp16": "f16", "fp32": "f32"}.get(name, name) for name in found}


def format_name(kind: str) -> str:
    """The weight format of a stored type; Unsupported where there is none."""
    name = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}.get(kind, kind.lower())
    try:
        return library().format(name, "weights").name
    except NotFound:
        raise Unsupported(f"GGUF tensors of type {kind} have no weight format here") from None


def by_part(tensors: tuple[GgufTensor, ...]) -> str:
    """Each part in the type that holds most of its values: `body=q4_k,head=q6_k,norm=fp32,...`."""
    tally: dict[str, Counter[str]] = {}
    for tensor in tensors:
        if not TABLES.search(tensor.name) and not SCALES.search(tensor.name):
            tally.setdefault(part_of(tensor.name), Counter())[tensor.type] += tensor.elements
    formats = {part: format_name(counts.most_common(1)[0][0]) for part, counts in tally.items()}
    weight: Counter[str] = Counter()
    for part, counts in tally.items():
        if part in BODY:
            weight[formats[part]] += sum(counts.values())
    body = weight.most_common(1)[0][0] if weight else "bf16"
    different = {part: name for part, name in formats.items() if part not in BODY or name != body}
    return ",".join([f"body={body}", *(f"{part}={name}" for part, name in different.items()), "kv=fp16", "state=fp32"])
