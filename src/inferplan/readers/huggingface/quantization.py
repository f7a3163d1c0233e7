"""A published quantisation config to the text of a Precision: which parts are kept in which format, and how the KV cache is.

Knows the methods and their fields, not how many bits a format takes. A Precision speaks of parts (attention, experts ...);
where a list of names covers only some layers of a part, the format that holds most of the part's parameters is taken
and a remark says so. A method or a setting without a format here is refused by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from inferplan.errors import NotFound, SpecError, Unsupported, shown
from inferplan.readers.huggingface.module_names import Patterns, Placed, outside, placed
from inferplan.specs.model import Model
from inferplan.specs.precision import BODY, Precision, library

PLAIN = "bf16"
LISTS = (
    "modules_to_not_convert",
    "ignore",
    "exclude_modules",
    "ignored_layers",
    "exclude",
    "skip_modules",
    "llm_int8_skip_modules",
    "ignored_modules",
)


class Reading(NamedTuple):
    """The precision's text (None: nothing is quantised) and remarks on what it leaves out."""

    precision: str | None
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Scheme:
    """What a config says: the format of what it quantises, exceptions by names (last wins), names it leaves out, the KV cache.

    only
        the parts the method touches, all of the body where unsaid; `head`, `embedding`, `vision` say whether those are quantised.
    listed
        nothing is quantised unless an exception names it.
    """

    format: str
    skip: list[str] = field(default_factory=list)
    groups: list[tuple[str, list[str]]] = field(default_factory=list)
    parts: dict[str, str] = field(default_factory=dict)
    only: tuple[str, ...] | None = None
    listed: bool = False
    head: bool = False
    embedding: bool = False
    vision: bool = False
    kv: str | None = None
    notes: list[str] = field(default_factory=list)


# ---------------------------------------------------------------------------------------------------------- entry


def precision_of(data: dict[str, Any], model: Model, *, beside: dict[str, Any] | None = None) -> str | None:
    """The text of the precision that a configuration states, None where it is not quantised; see `reading_of`."""
    return reading_of(data, model, beside=beside).precision


def reading_of(data: dict[str, Any], model: Model, *, beside: dict[str, Any] | None = None) -> Reading:
    """The precision that a configuration states, with remarks on what a precision by parts leaves out.

    `beside` is a ModelOpt `hf_quant_config.json` from the same folder. The text is the name of a preset or format where
    one fits exactly, else `body=...,part=...`. Raises Unsupported for a method without a format here, SpecError for a
    field that makes no sense.
    """
    found = stated(data)
    scheme = scheme_of(data, found, beside)
    if scheme is None:
        return Reading(None)
    tally = tallied(model, scheme)
    formats = {part: counts.most_common(1)[0][0] for part, counts in tally.items()}
    notes = (*scheme.notes, *remarks(tally, formats))
    return Reading(written(formats, scheme.kv, tally), notes)


def stated(data: dict[str, Any]) -> dict[str, Any] | None:
    """The quantisation mapping of a configuration: at the top, inside the text decoder's, or by its older names."""
    nested = [data.get(key) for key in ("text_config", "llm_config", "language_config")]
    thinker = data.get("thinker_config")
    nested += [thinker, thinker.get("text_config")] if isinstance(thinker, dict) else []
    for place in (data, *(n for n in nested if isinstance(n, dict))):
        for key in ("quantization_config", "compression_config", "quantization"):
            value = place.get(key)
            if value is None or value == {}:
                continue
            if not isinstance(value, dict):
                raise SpecError("must be a mapping", field=key, value=value)
            return value
    return None


def scheme_of(data: dict[str, Any], config: dict[str, Any] | None, beside: dict[str, Any] | None) -> Scheme | None:
    """What the files say, or None where they quantise nothing."""
    inner = beside.get("quantization", beside) if beside else None
    if inner is not None and not isinstance(inner, dict):
        raise SpecError("must be a mapping", field="quantization", value=inner)
    if config is None:
        scheme = modelopt(inner) if inner and inner.get("quant_algo") else None
    else:
        scheme = METHODS[method_of(config)](config)
        if scheme is not None and inner and scheme.kv is None:
            scheme.kv = kv_of(inner)
    return _fp4_experts(data, scheme)


def _fp4_experts(data: dict[str, Any], scheme: Scheme | None) -> Scheme | None:
    """DeepSeek-V4 states beside its config that the experts are kept in 4-bit floating point."""
    stated_dtype = data.get("expert_dtype")
    if stated_dtype in (None, "fp8", "bf16", "bfloat16"):
        return scheme
    if stated_dtype != "fp4":
        raise Unsupported(f"expert_dtype '{shown(stated_dtype)}' has no format here")
    scheme = scheme or Scheme(PLAIN, only=())
    if "experts" not in scheme.parts and not scheme.groups:
        scheme.parts["experts"] = "mxfp4-a8"
    return scheme


def method_of(config: dict[str, Any]) -> str:
    """The method a mapping names, or the one its fields tell where the name is missing."""
    name = config.get("quant_method")
    if name is None:
        return _unnamed(config)
    if not isinstance(name, str):
        raise SpecError("must be text", field="quantization_config.quant_method", value=name)
    key = name.lower().replace("_", "-").removesuffix("-marlin")
    key = {"intel/auto-round": "auto-round", "autoround": "auto-round", "bnb": "bitsandbytes"}.get(key, key)
    if key not in METHODS:
        raise Unsupported(f"quantisation method '{shown(name)}' has no format here; known: {', '.join(sorted(METHODS))}")
    return key


def _unnamed(config: dict[str, Any]) -> str:
    if "quant_algo" in config or isinstance(config.get("quantization"), dict):
        return "modelopt"
    if "config_groups" in config:
        return "compressed-tensors"
    if "load_in_4bit" in config or "load_in_8bit" in config:
        return "bitsandbytes"
    if "weight_block_size" in config or "activation_scheme" in config:
        return "fp8"
    if {"bits", "group_size"} <= config.keys():
        return "gptq" if "desc_act" in config else "awq" if "zero_point" in config else "mlx"
    raise SpecError("is required and missing: without it the method is unknown", field="quantization_config.quant_method")


# ------------------------------------------------------------------------------------------------- fields of a mapping


def number(config: dict[str, Any], *names: str, default: float | None = None) -> float:
    """A number from a mapping; SpecError where it is absent or something else."""
    value = next((config[n] for n in names if config.get(n) is not None), default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1 <= value <= 2**20:
        raise SpecError("must be a number", field=f"quantization_config.{names[0]}", value="missing" if value is None else value)
    return value


def listed(config: dict[str, Any], *names: str) -> list[str]:
    """The names that a list (or several) of a mapping holds."""
    found: list[str] = []
    for name in names:
        value = config.get(name) or []
        if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) for v in value):
            raise SpecError(
                "must be a list of names",
                field=f"quantization_config.{name}",
                value=value if isinstance(value, (str, int)) else type(value).__name__,
            )
        found += value
    return found


def mapping(config: dict[str, Any], name: str) -> dict[str, Any]:
    """A nested mapping, empty where it is absent."""
    value = config.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise SpecError(
            "must be a mapping", field=f"quantization_config.{name}", value=value if isinstance(value, (str, int)) else type(value).__name__
        )
    return value


def known(name: str, what: str) -> str:
    """A format's name, once there is such a format."""
    try:
        return library().format(name, "weights").name
    except NotFound:
        raise Unsupported(f"{what} has no weight format here (looked for {name})") from None


KV = {"fp8": "fp8", "fp8-e4m3": "fp8", "int8": "int8", "nvfp4": "nvfp4", "fp4": "nvfp4"}


def kv_of(config: dict[str, Any]) -> str | None:
    """The KV format a mapping states, None where it leaves the cache alone."""
    scheme = config.get("kv_cache_scheme")
    if scheme is None:
        scheme = config.get("kv_cache_quant_algo")
    if scheme is None or scheme == {}:
        return None
    if isinstance(scheme, dict):
        bits, kind = int(number(scheme, "num_bits")), str(scheme.get("type", "float"))
        key = {(8, "float"): "fp8", (8, "int"): "int8", (4, "float"): "nvfp4"}.get((bits, kind), f"{kind}{bits}")
    else:
        key = str(scheme).lower().replace("_", "-")
    if key in ("none", "auto"):
        return None
    if key not in KV:
        raise Unsupported(f"kv_cache_scheme '{shown(key)}' has no KV format here; known: {', '.join(KV)}")
    return KV[key]


# ------------------------------------------------------------------------------------------------------------- methods


def fp8(config: dict[str, Any]) -> Scheme:
    """fp8 in blocks, or with one scale per tensor; ModelOpt may have made the experts NVFP4 afterwards."""
    block = config.get("weight_block_size")
    if block is not None and block != [128, 128]:
        raise Unsupported(f"fp8 in blocks of {shown(block)} has no weight format here; blocks of [128, 128] have")
    scheme = Scheme("fp8-block" if block else "fp8", kv=kv_of(config), vision=True)
    if config.get("moe_quant_algo") is not None:
        scheme.groups = _by_layer(config)
        scheme.parts = {} if scheme.groups else {"experts": algorithm(config["moe_quant_algo"], config)}
        return scheme
    scheme.skip = listed(config, *LISTS)
    return scheme


def fbgemm(config: dict[str, Any]) -> Scheme:
    """fp8 with a scale per output row."""
    return Scheme("fp8-channel", skip=listed(config, *LISTS), kv=kv_of(config))


def awq(config: dict[str, Any]) -> Scheme:
    """AWQ: 4 bits in groups."""
    bits, group = int(number(config, "bits", "w_bit", default=4)), int(number(config, "group_size", "q_group_size", default=128))
    return Scheme(known(f"awq-int{bits}-g{group}", f"AWQ at {bits} bits in groups of {group}"), skip=listed(config, *LISTS))


def _gptq_format(bits: float, group: float) -> str:
    form = f"gptq-int{int(bits)}-" + ("channel" if group <= 0 else f"g{int(group)}")
    return known(form, f"GPTQ at {bits:g} bits in groups of {group:g}")


def gptq(config: dict[str, Any]) -> Scheme:
    """GPTQ: by bits and group; `dynamic` names exceptions, with a minus for what is left alone."""
    bits, group = number(config, "bits"), number(config, "group_size", default=128)
    scheme = Scheme(_gptq_format(bits, group), skip=listed(config, *LISTS), head=config.get("lm_head") is True)
    for name, change in mapping(config, "dynamic").items():
        pattern = "re:" + name.removeprefix("-:").removeprefix("+:")
        if name.startswith("-:"):
            scheme.skip.append(pattern)
        elif isinstance(change, dict):
            scheme.groups.append(
                (_gptq_format(number(change, "bits", default=bits), number(change, "group_size", default=group)), [pattern])
            )
    return scheme


def marlin(config: dict[str, Any]) -> Scheme:
    """Marlin's own checkpoints: int4 with fp16 scales and no zero points."""
    group = int(number(config, "group_size", default=128))
    return Scheme(known(f"int4-g{group}", f"Marlin in groups of {group}"), skip=listed(config, *LISTS))


def bitsandbytes(config: dict[str, Any]) -> Scheme:
    """The bitsandbytes formats: 8 bits, or in 4 with or without quantised scales."""
    four = config.get("load_in_4bit", config.get("_load_in_4bit"))
    eight = config.get("load_in_8bit", config.get("_load_in_8bit"))
    if not four and not eight:
        raise SpecError("states neither load_in_4bit nor load_in_8bit", field="quantization_config")
    double = bool(config.get("bnb_4bit_use_double_quant"))
    name = ("nf4" if double else "nf4-single") if four else "llm-int8"
    return Scheme(name, skip=listed(config, *LISTS), vision=True)


def mxfp4(config: dict[str, Any]) -> Scheme:
    """gpt-oss: the experts' matrices and nothing else."""
    return Scheme("mxfp4", skip=listed(config, *LISTS), only=("experts",))


def hqq(config: dict[str, Any]) -> Scheme:
    """HQQ: bits and group of its weight parameters."""
    inner = mapping(mapping(config, "quant_config"), "weight_quant_params") or config
    bits, group = int(number(inner, "nbits", "bits")), int(number(inner, "group_size", default=64))
    return Scheme(known(f"hqq-int{bits}-g{group}", f"HQQ at {bits} bits in groups of {group}"), skip=listed(config, *LISTS))


def eetq(config: dict[str, Any]) -> Scheme:
    """EETQ: int8 weights with a scale per output."""
    return Scheme("int8-weight-only", skip=listed(config, *LISTS))


TORCHAO = {
    "int8weightonly": "int8-weight-only", "int8dynamicactivationint8weight": "int8", "float8weightonly": "fp8-weight-only",
    "float8dynamicactivationfloat8weight": "fp8-channel", "float8staticactivationfloat8weight": "fp8",
}  # fmt: skip


def torchao(config: dict[str, Any]) -> Scheme:
    """torchao: by the name of its configuration class, written in words or as a class."""
    kind = config.get("quant_type")
    first: Any = kind.get("default", kind) if isinstance(kind, dict) else {"_type": kind, "_data": config.get("quant_type_kwargs")}
    inner: dict[str, Any] = first if isinstance(first, dict) else {"_type": first}
    data: dict[str, Any] = inner["_data"] if isinstance(inner.get("_data"), dict) else {}
    name = str(inner.get("_type")).lower().replace("_", "").removesuffix("config")
    if name in ("int4weightonly", "autoquant"):
        group = int(number(data, "group_size", default=128))
        return Scheme(known(f"tinygemm-int4-g{group}", f"torchao int4 in groups of {group}"), skip=listed(config, *LISTS))
    if name not in TORCHAO:
        raise Unsupported(f"torchao type '{shown(name)}' has no weight format here")
    return Scheme(TORCHAO[name], skip=listed(config, *LISTS))


def exllama(config: dict[str, Any]) -> Scheme:
    """EXL2 and EXL3: an average number of bits, and one of the head."""
    name, bits = str(config["quant_method"]).lower(), number(config, "bits")
    head = number(config, "head_bits", "lm_head_bits", default=6)
    scheme = Scheme(known(f"{name}-{bits:g}" if bits % 1 else f"{name}-{bits:.1f}", f"{name} at {bits:g} bits"))
    scheme.parts["head"] = known(f"{name}-{head:.1f}" if not head % 1 else f"{name}-{head:g}", f"{name} at {head:g} bits")
    return scheme


def mlx(config: dict[str, Any]) -> Scheme:
    """MLX: bits and group, embedding and head included; single modules may differ or stay as they are."""
    mode = config.get("mode", "affine")
    if mode == "mxfp4":
        return Scheme("mxfp4", embedding=True, head=True)
    if mode != "affine":
        raise Unsupported(f"MLX mode '{shown(mode)}' has no weight format here")
    bits, group = int(number(config, "bits")), int(number(config, "group_size", default=64))
    scheme = Scheme(known(f"mlx-q{bits}-g{group}", f"MLX at {bits} bits in groups of {group}"), embedding=True, head=True)
    for name, change in config.items():
        if change is False:
            scheme.skip.append(name)
        elif isinstance(change, dict) and "bits" in change:
            form = f"mlx-q{int(number(change, 'bits'))}-g{int(number(change, 'group_size', default=group))}"
            scheme.groups.append((known(form, f"MLX {form}"), [name]))
    return scheme


def auto_round(config: dict[str, Any]) -> Scheme:
    """AutoRound: packed as GPTQ or AWQ packs; `extra_config` names modules of other bits."""
    packing = str(config.get("packing_format", "auto_round:auto_gptq"))
    bits, group = number(config, "bits"), number(config, "group_size", default=128)
    kind = str(config.get("data_type", "int"))
    if kind in ("mx_fp", "nv_fp", "fp8", "fp"):
        name = {("mx_fp", 4): "mxfp4-a4", ("mx_fp", 8): "mxfp8", ("nv_fp", 4): "nvfp4", ("fp8", 8): "fp8", ("fp", 8): "fp8"}.get(
            (kind, int(bits))
        )
        if name is None:
            raise Unsupported(f"AutoRound data type {kind} at {bits:g} bits has no weight format here")
        return Scheme(name, skip=_sixteen(config))
    name = known(f"awq-int{int(bits)}-g{int(group)}", f"AutoRound {bits:g} bits") if "awq" in packing else _gptq_format(bits, group)
    scheme = Scheme(name, skip=_sixteen(config))
    for module, change in mapping(config, "extra_config").items():
        if isinstance(change, dict) and change.get("bits") not in (None, 16, bits):
            scheme.groups.append((_gptq_format(number(change, "bits"), number(change, "group_size", default=group)), [module]))
    return scheme


def _sixteen(config: dict[str, Any]) -> list[str]:
    extra = mapping(config, "extra_config")
    return [name for name, change in extra.items() if isinstance(change, dict) and number(change, "bits", default=4) >= 16]  # noqa: PLR2004 - bits


QUARK = {
    ("fp8_e4m3", "per_tensor"): "fp8",
    ("fp8_e4m3", "per_channel"): "fp8-channel",
    ("int8", "per_channel"): "int8",
    ("fp4", "per_group"): "mxfp4",
}


def quark(config: dict[str, Any]) -> Scheme:
    """Quark: the global setting of weights and inputs, and names left out."""
    inner = mapping(config, "global_quant_config")
    weight, inputs = mapping(inner, "weight"), inner.get("input_tensors")
    key = (str(weight.get("dtype")), str(weight.get("qscheme")))
    name = QUARK.get(key)
    if name is None:
        raise Unsupported(f"Quark weights of {shown(' '.join(key))} have no format here")
    cache = "fp8" if mapping(inner, "output_tensors").get("dtype") == "fp8_e4m3" or config.get("kv_cache_group") else None
    return Scheme("mxfp4-a4" if name == "mxfp4" and inputs else name, skip=listed(config, *LISTS), kv=cache)


# ------------------------------------------------------------------------------------------- ModelOpt and its kin

ALGORITHMS = {
    "FP8": "fp8", "FP8_PER_CHANNEL_PER_TOKEN": "fp8-channel", "FP8_PB_WO": "fp8-block", "FP8_PB": "fp8-block", "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A16_NVFP4": "nvfp4-weight-only", "NVFP4_W4A16": "nvfp4-weight-only", "MXFP8": "mxfp8", "MXFP4": "mxfp4",
    "W4A8_MXFP4_FP8": "mxfp4-a8",
    "W8A16": "int8-weight-only", "W8A8_SQ_PER_CHANNEL": "int8", "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": "int8", "INT8_SQ": "int8",
}  # fmt: skip
GROUPED = {"W4A16": "int4-g{}", "W4A16_AWQ": "int4-g{}", "INT4_AWQ": "int4-g{}", "INT4_BLOCKWISE_WEIGHT_ONLY": "int4-g{}"}


def algorithm(name: Any, config: dict[str, Any]) -> str:
    """The format of a ModelOpt algorithm."""
    key = str(name).upper()
    if key in GROUPED:
        return known(GROUPED[key].format(int(number(config, "group_size", default=128))), f"ModelOpt {key}")
    if key in ("W4A8_AWQ", "W4AFP8"):
        return "int4-fp8"
    if key not in ALGORITHMS:
        raise Unsupported(
            f"ModelOpt algorithm '{shown(name)}' has no weight format here; known: {', '.join(sorted({*ALGORITHMS, *GROUPED}))}"
        )
    return ALGORITHMS[key]


def _by_layer(config: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """The formats of a `quantized_layers` map, each with the modules it names."""
    found: dict[str, list[str]] = {}
    for module, setting in mapping(config, "quantized_layers").items():
        if not isinstance(setting, dict):
            raise SpecError("must be a mapping", field=f"quantization_config.quantized_layers.{module[:60]}", value=setting)
        found.setdefault(algorithm(setting.get("quant_algo"), setting), []).append(module)
    return list(found.items())


def modelopt(config: dict[str, Any]) -> Scheme | None:
    """ModelOpt: one algorithm, or a map of modules under MIXED_PRECISION."""
    if isinstance(config.get("quantization"), dict):
        config = {**config, **config["quantization"]}
    name = config.get("quant_algo")
    if name is None:
        return Scheme(PLAIN, only=(), kv=kv_of(config)) if kv_of(config) else None
    if str(name).upper() == "MIXED_PRECISION":
        groups = _by_layer(config)
        if not groups:
            raise SpecError("is required for MIXED_PRECISION", field="quantization_config.quantized_layers")
        return Scheme(PLAIN, groups=groups, listed=True, kv=kv_of(config), skip=listed(config, *LISTS))
    return Scheme(algorithm(name, config), skip=listed(config, *LISTS), kv=kv_of(config))


def compressed_tensors(config: dict[str, Any]) -> Scheme:
    """compressed-tensors: groups of weights with their targets, and names left out."""
    sparsity = mapping(config, "sparsity_config").get("format", "dense")
    if sparsity != "dense" or "24" in str(config.get("format", "")):
        raise Unsupported(f"compressed-tensors with sparsity ({shown(sparsity)}, {shown(config.get('format'))}) has no weight format here")
    groups = mapping(config, "config_groups")
    scheme = Scheme(PLAIN, skip=listed(config, *LISTS), kv=kv_of(config), listed=True, vision=True)
    for key, group in groups.items():
        if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
            if isinstance(group, dict) and group.get("weights") is None:
                continue
            raise SpecError("must be a mapping with weights", field=f"quantization_config.config_groups.{key}", value=type(group).__name__)
        name, targets = compressed(group["weights"], group.get("input_activations")), listed(group, "targets")
        if not targets or any(t in ("Linear", "LinearBase", "MoE", "FusedMoE") for t in targets):
            scheme.format, scheme.listed = name, False
        named = [t for t in targets if "." in t or t.startswith("re:") or t == "lm_head"]
        scheme.groups += [(name, named)] if named else []
    if scheme.listed and not scheme.groups:
        raise SpecError("holds no group that quantises weights", field="quantization_config.config_groups")
    return scheme


def compressed(weights: dict[str, Any], inputs: Any) -> str:
    """The format of one group of compressed-tensors, from its bits, type, strategy and what its inputs are quantised to."""
    bits, kind = int(number(weights, "num_bits")), str(weights.get("type", "int"))
    group = weights.get("group_size")
    strategy = str(weights.get("strategy") or ("group" if group else "tensor"))
    acts = f"{inputs.get('type', 'int')}{int(number(inputs, 'num_bits', default=8))}" if isinstance(inputs, dict) and inputs else None
    name = _eight(kind, strategy, acts, weights) if bits == 8 else _four(kind, strategy, acts, weights) if bits == 4 else None  # noqa: PLR2004
    if name is None:
        what = f"{kind}{bits} weights by {strategy}{f' of {group}' if group else ''} with {acts or '16-bit'} inputs"
        raise Unsupported(f"compressed-tensors: {shown(what)} have no weight format here")
    return name


def _eight(kind: str, strategy: str, acts: str | None, weights: dict[str, Any]) -> str | None:
    if kind == "int":
        return {"int8": "int8", None: "int8-weight-only"}.get(acts) if strategy in ("channel", "tensor") else None
    if strategy == "block":
        return "fp8-block" if weights.get("block_structure") in (None, [128, 128], "128x128") else None
    if strategy == "group":
        return "mxfp8" if weights.get("group_size") == 32 else None  # noqa: PLR2004 - a block of MXFP8
    if acts is None:
        return "fp8-weight-only"
    return {"tensor": "fp8", "channel": "fp8-channel"}.get(strategy)


def _four(kind: str, strategy: str, acts: str | None, weights: dict[str, Any]) -> str | None:
    group = weights.get("group_size")
    if kind == "float":
        names = {16: {None: "nvfp4-weight-only", "float4": "nvfp4"}, 32: {None: "mxfp4", "float8": "mxfp4-a8", "float4": "mxfp4-a4"}}
        return names.get(group, {}).get(acts) if isinstance(group, int) else None
    if strategy != "group" or not isinstance(group, int):
        return None
    if acts == "float8":
        return "int4-fp8" if group == 128 else None  # noqa: PLR2004 - the only group of that format
    if acts is not None:
        return None
    symmetric = weights.get("symmetric", True)
    return known(f"int4-g{group}" if symmetric else f"awq-int4-g{group}", f"compressed-tensors int4 in groups of {group}")


METHODS: dict[str, Callable[[dict[str, Any]], Scheme | None]] = {
    "fp8": fp8, "fbgemm-fp8": fbgemm, "awq": awq, "gptq": gptq, "gptqmodel": gptq, "marlin": marlin, "bitsandbytes": bitsandbytes,
    "mxfp4": mxfp4,
    "hqq": hqq, "eetq": eetq, "torchao": torchao, "exl2": exllama, "exl3": exllama, "mlx": mlx, "auto-round": auto_round, "quark": quark,
    "modelopt": modelopt, "modelopt-fp4": modelopt, "modelopt-mixed": modelopt, "compressed-tensors": compressed_tensors,
}  # fmt: skip


# ------------------------------------------------------------------------------------------------------- parts


Tally = dict[str, Counter[str]]


def tallied(model: Model, scheme: Scheme) -> Tally:
    """Parameters of each part by format."""
    layers = len(model.order)
    skip, groups = Patterns.of(scheme.skip, layers), [(name, Patterns.of(items, layers)) for name, items in scheme.groups]
    found: Tally = {}
    for item in placed(model):
        found.setdefault(item.part, Counter())[_format(item, scheme, skip, groups)] += item.params
    for part, params in outside(model).items():
        if params:
            found[part] = Counter({_aside(part, scheme, skip, groups): params})
    return found


def _format(item: Placed, scheme: Scheme, skip: Patterns, groups: list[tuple[str, Patterns]]) -> str:
    if skip.covers(item.names, item.layer) or item.part not in BODY:
        return PLAIN
    for name, patterns in reversed(groups):
        if patterns.covers(item.names, item.layer):
            return name
    if item.part in scheme.parts:
        return scheme.parts[item.part]
    if scheme.listed or (scheme.only is not None and item.part not in scheme.only):
        return PLAIN
    return scheme.format


def _aside(part: str, scheme: Scheme, skip: Patterns, groups: list[tuple[str, Patterns]]) -> str:
    """The format of embedding, head or towers: as named, else 16 bits unless the method takes them along."""
    if part in scheme.parts:
        return scheme.parts[part]
    if part != "vision":
        named = next((name for name, patterns in reversed(groups) if patterns.mentions(part)), None)
        if named:
            return named
    along = {"head": scheme.head, "embedding": scheme.embedding, "vision": scheme.vision and not scheme.listed}[part]
    return scheme.format if along and not skip.mentions(part) else PLAIN


def remarks(tally: Tally, formats: dict[str, str]) -> Iterator[str]:
    """What each part's single format leaves out."""
    for part, counts in tally.items():
        whole = sum(counts.values())
        for name, params in counts.items():
            if name != formats[part]:
                yield f"{part}: {params / whole:.1%} of its parameters are kept in {name}, taken as {formats[part]} like the rest"


def written(formats: dict[str, str], kv: str | None, tally: Tally) -> str | None:
    """The shortest text of a precision with these formats: a preset's or format's name, else part by part."""
    weight: Counter[str] = Counter()
    for part, counts in tally.items():
        if part in BODY:
            weight[formats[part]] += sum(counts.values())
    if set(formats.values()) == {PLAIN}:
        return None if kv is None else f"body={PLAIN},kv={kv}"
    body = next((name for name, _ in weight.most_common() if name != PLAIN), PLAIN)
    if kv is None and (name := _named(formats, body)):
        return name
    body = weight.most_common(1)[0][0]
    different = {part: name for part, name in formats.items() if name != (body if part in BODY else PLAIN)}
    return ",".join([f"body={body}", *(f"{p}={n}" for p, n in different.items()), *([f"kv={kv}"] if kv else [])])


def _named(formats: dict[str, str], body: str) -> str | None:
    """The format or preset that keeps every part of the model as wanted."""
    presets = dict.fromkeys(p.name for p in library().presets.values())
    for name in (body, *presets):
        found = Precision.named(name)
        if all(found.format_of(part).name == wanted for part, wanted in formats.items()) and found.kv.name == PLAIN:
            return name
    return None
