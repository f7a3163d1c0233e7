"""How near kernels, links and engines come to the sheet: a calibration file, and what it says of a kernel on a class of parts.

Knows no operator's work and no model. Peaks and bandwidths stay where they are, in the hardware files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Self

import numpy as np
from pydantic import BeforeValidator, Field

from inferplan import units
from inferplan.errors import SpecError, Unsupported, shown
from inferplan.ops import Numeric
from inferplan.roofline.bands import Band, Known, Tail, TimeName, band, tail_band
from inferplan.roofline.optime import IDEAL, Basis, Kernel, kernel_s
from inferplan.specs.base import Record, Spec
from inferplan.specs.catalog import normalise, shipped_file
from inferplan.specs.document import load_yaml, resolve
from inferplan.specs.hardware import Accelerator
from inferplan.specs.link import links
from inferplan.specs.quantity import Source, refusal

FOLDER = "calibration"
CORE = re.compile(r"-v\d+(-[a-z]+)?$")
"""What follows the name of an engine where a calibration means an older core of it."""
ALIASES = {"head": "matmul", "attention": "attention_decode"}
SIBLINGS = {
    "bf16": (),
    "fp32": ("bf16",),
    "fp8": ("fp8-block", "bf16"),
    "fp8-block": ("fp8", "bf16"),
    "int8": ("fp8", "bf16"),
    "nvfp4": ("mxfp4-mxfp8", "fp8", "bf16"),
    "mxfp4-mxfp8": ("nvfp4", "fp8-block", "fp8", "bf16"),
    "int8-weight-only": ("int4-weight-only", "bf16"),
    "int4-weight-only": ("mxfp4-weight-only", "int8-weight-only", "bf16"),
    "mxfp4-weight-only": ("int4-weight-only", "int8-weight-only", "bf16"),
}


def _seconds(raw: Any) -> Any:
    """Seconds from a text with its unit; zero may be written `0 s`."""
    if not isinstance(raw, str):
        raise refusal(SpecError("needs a time with its unit, like '4.2 us'", value=raw if isinstance(raw, (int, float)) else None))
    try:
        return units.parse(raw, "s")
    except SpecError as e:
        raise refusal(e) from None


Share = Annotated[float, Field(gt=0, le=1)]
Time = Annotated[float, BeforeValidator(_seconds)]
Stated = Literal["measured", "inherited", "assumed"]


class Fitted(Record):
    """What was fitted, or is assumed, for one kernel on one class of parts.

    `rows` and `error` say how many measurements stand behind it and their median distance from the fit, as a share;
    `held_out` is the same for parts that the fit had not seen. `peak` names the rate that `eff_flops` is a share of on parts that
    state it, where that is not the one their products are counted at: kernels that accumulate in fp16 on parts that do so faster.
    """

    eff_flops: Share = 1.0
    peak: Literal["fp16_fp16acc"] | None = None
    eff_bandwidth: Share
    launch: Time
    basis: Stated
    rows: int | None = None
    error: float | None = None
    held_out: float | None = None
    note: str | None = None


class Entry(Fitted):
    """The numbers of a class, and those of single engines' kernels where they were measured apart."""

    engines: dict[str, Fitted] = Field(default_factory=dict)


class LinkRate(Record):
    """What collectives reach on a link.

    eff, eff_switch
        share of the one-way bandwidth in exchanges between devices, and in reductions inside the switch.
    base, hop, hop_bulk
        start-up of a library's collective, and what each further round adds: `hop` where a flag rides with every word, which takes
        half of the bandwidth, `hop_bulk` where data goes in bulk at all of it. Where `hop_bulk` is absent, bulk rounds cost `hop`.
    switch
        start-up of a reduction inside the switch.
    one_shot
        start-up of the single kernel in which engines reduce short messages; absent where they do not.
    ranks
        the most ranks that `one_shot` serves.
    """

    eff: Share = 1.0
    eff_switch: Share | None = None
    base: Time = 0.0
    hop: Time = 0.0
    hop_bulk: Time | None = None
    switch: Time = 0.0
    one_shot: Time | None = None
    ranks: int | None = None
    basis: Stated = "assumed"
    rows: int | None = None
    error: float | None = None
    held_out: float | None = None
    note: str | None = None


class Added(Record):
    """What an engine and its host add to a step: per step, per layer, per layer with experts or a recurrence, and per sequence in it.

    launch
        the share of a kernel's start-up, as it was timed alone, that is left in the engine's steps: captured graphs and kernels that
        start before the last one ends make it smaller than 1, small kernels between the timed ones larger.
    collectives
        how much longer collectives take in a step than alone, since ranks wait for the slowest.
    host, host_layer
        what the host does beside the devices, per pass and per layer: prepare the next pass, and launch kernels that no graph holds.
        Devices wait where they are quicker.
    per_prompt_layer, per_input_token
        what a prompt takes beside its kernels: the host launches its first pass layer by layer, and reads its tokens, one after another.
    per_prompt
        what passes besides before its first token is out, whoever else comes: processes that hand a request and its answer on.
    """

    per_step: Time = 0.0
    per_layer: Time = 0.0
    per_sequence: Time = 0.0
    per_expert_layer: Time = 0.0
    per_recurrent_layer: Time = 0.0
    host: Time = 0.0
    host_layer: Time = 0.0
    launch: Annotated[float, Field(gt=0, le=10)] = 1.0
    collectives: Annotated[float, Field(ge=1, le=10)] = 1.0
    per_prompt_layer: Time = 0.0
    per_input_token: Time = 0.0
    per_prompt: Time = 0.0
    basis: Stated = "assumed"
    rows: int | None = None
    error: float | None = None
    note: str | None = None


class Overhead(Added):
    """The same of an engine on any part, and `parts` where it is another on a class of parts, or on those of a vendor."""

    parts: dict[str, Added] = Field(default_factory=dict)

    def on(self, architecture: str | None) -> Added:
        """What the engine adds on a class of parts: its own entry, that of its vendor, or the general one."""
        levels = (architecture, architecture.split("-")[0]) if architecture else ()
        return next((self.parts[level] for level in levels if level in self.parts), self)


class Copy(Record):
    """The share of a host link's bandwidth that copies reach."""

    eff: Share = 1.0
    basis: Stated = "assumed"
    note: str | None = None


class Operator(Protocol):
    """An operator as `op_time` sees it: its kind, number type, work and launches."""

    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def rate(self) -> str: ...  # noqa: D102
    @property
    def flops(self) -> Numeric: ...  # noqa: D102
    @property
    def weight_bytes(self) -> Numeric: ...  # noqa: D102
    @property
    def kv_bytes(self) -> Numeric: ...  # noqa: D102
    @property
    def act_bytes(self) -> Numeric: ...  # noqa: D102
    @property
    def count(self) -> Numeric: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class _Found:
    """An entry with the level of the calibration it came from."""

    entry: Entry
    origin: str
    exact: bool


Sharpness = Annotated[float, Field(ge=1)] | Literal["max"]


class Efficiency(Spec):
    """A calibration: kernels by kind, number format and class of parts, and those that engines ship themselves; links; engines.

    >>> Efficiency.ideal().kernel("matmul", "bf16", "nvidia-hopper").eff_flops
    1.0
    >>> Efficiency.default().kernel("matmul", "bf16", "nvidia-hopper").basis
    'measured'
    """

    name: str
    title: str = ""
    base: str | None = None
    include: tuple[str, ...] = Field(default=(), strict=False)
    sources: dict[str, Source] = Field(default_factory=dict)
    sharpness: dict[str, Sharpness] = Field(default_factory=dict)
    kernels: dict[str, dict[str, dict[str, Entry]]] = Field(default_factory=dict)
    links: dict[str, LinkRate] = Field(default_factory=dict)
    copies: dict[str, Copy] = Field(default_factory=dict)
    engines: dict[str, Overhead] = Field(default_factory=dict)
    bands: dict[TimeName, dict[str, dict[Known | Tail, Band]]] = Field(default_factory=dict)
    engine_kernels: dict[str, dict[str, dict[str, dict[str, Entry]]]] = Field(default_factory=dict)

    @classmethod
    def ideal(cls) -> Efficiency:
        """Efficiency 1, no start-up, no overhead: with it every time is a floor."""
        return _ideal()

    @classmethod
    def default(cls) -> Efficiency:
        """The calibration that is shipped."""
        return _shipped(_default_path())

    @classmethod
    def load(cls, path: Any) -> Self:
        """The calibration that a text means: `ideal`, `default`, or the path of a file.

        A file may state only what it changes, with `base: default`; a section's entries then replace those of the same name.
        """
        if isinstance(path, str) and path in ("ideal", "default"):
            return cls.ideal() if path == "ideal" else cls.default()  # type: ignore[return-value]
        if isinstance(path, str) and not path.lower().endswith((".yaml", ".yml")) and not resolve(path).exists():
            raise SpecError("is no calibration: it must be default, ideal, or a file in YAML", field="efficiency", value=path)
        return cls.from_mapping(_read(resolve(path)), file=path)

    @property
    def is_ideal(self) -> bool:
        """Whether this is the calibration of floors."""
        return self.name == "ideal"

    def kernel(
        self, kind: str, rate: str, architecture: str, *, stored: str | None = None, engine: str | None = None, part: str | None = None
    ) -> Kernel:
        """What a kernel reaches.

        kind
            matmul, experts, attention_decode, attention_prefill, indexer, recurrence, conv, lookup, elementwise, head.
        rate, stored
            the number type it multiplies in on this part, and the format its weights (for attention its cache) are stored in.
        architecture, part, engine
            class of the part, and, where they are known, its catalog name and the engine, whose own entries go first.

        Looks on the part and its class, then its vendor, then in general; on each level for the format itself, then for its nearest kin.
        An engine that ships all kernels of a kind itself has a table of its own (`engine_kernels`), which goes before the shared one.
        Raises Unsupported for a kind that the calibration does not know.
        """
        kind = ALIASES.get(kind, kind)
        if self.is_ideal:
            return IDEAL
        if kind not in self.kernels:
            raise Unsupported(f"the calibration '{self.name}' has no kernels of kind '{shown(kind)}'; it has {', '.join(self.kernels)}")
        wanted = variant(kind, rate, stored)
        own = self.engine_kernels.get(normalise(engine), {}).get(kind) if engine else None
        places = [(own, f"{engine}.{kind}", (block_family(stored), wanted))] if own else []
        for table, place, names in (*places, (self.kernels[kind], kind, (wanted,))):
            found = next(_entries(table, place, names, architecture, part), None)
            if found is not None:
                return self._as_kernel(kind, found, engine)
        raise Unsupported(f"the calibration '{self.name}' has nothing on {kind} in {rate} for {architecture}, nor in general")

    def entry(
        self, kind: str, wanted: str, architecture: str, part: str | None = None, *, engine: str = "", family: str = ""
    ) -> Entry:  # fmt: skip
        """The entry that a kernel variant is looked up in: of all engines, or that of an `engine` which ships it itself, by `family`.

        Raises Unsupported where there is none.
        """
        kind = ALIASES.get(kind, kind)
        table = (self.engine_kernels.get(engine, {}) if engine else self.kernels).get(kind, {})
        found = next(_entries(table, kind, (family, wanted) if engine else (wanted,), architecture, part), None)
        if found is None:
            raise Unsupported(f"the calibration '{self.name}' has nothing on {kind} in {wanted} for {architecture}, nor in general")
        return found.entry

    def _as_kernel(self, kind: str, found: _Found, engine: str | None) -> Kernel:
        entry: Fitted = found.entry
        origin = found.origin
        name = next((name for name in _cores(engine) if name in found.entry.engines), None) if engine else None
        if name is not None:
            entry, origin = found.entry.engines[name], f"{origin}.{name}"
        basis: Basis = entry.basis if found.exact or entry.basis == "assumed" else "inherited"
        sharpness = self.sharpness.get(kind, "max")
        exponent = float("inf") if sharpness == "max" else sharpness
        return Kernel(entry.eff_flops, entry.eff_bandwidth, entry.launch, exponent, basis, origin, entry.peak)

    def kernel_of(self, op: Operator, hardware: Accelerator, *, stored: str | None = None, engine: str | None = None) -> Kernel:
        """What the kernel of an operator reaches on a part."""
        rate = "none" if op.rate == "none" else hardware.computed_in(op.rate)
        return self.kernel(op.kind, rate, hardware.architecture, stored=stored, engine=engine, part=hardware.name)

    def op_time(self, op: Operator, hardware: Accelerator, *, stored: str | None = None, engine: str | None = None) -> Numeric:
        """Seconds of an operator on a part, without its collectives. All its bytes count: weights, cache and activations."""
        kernel = self.kernel_of(op, hardware, stored=stored, engine=engine)
        peak = np.inf if op.rate == "none" else hardware.peak_quantity(op.rate, kernel.peak).value
        moved = op.weight_bytes + op.kv_bytes + op.act_bytes
        launches = op.count * self.overhead(engine or "default", hardware.architecture).launch
        return kernel_s(op.flops, moved, launches, peak, hardware.bandwidth_bytes_per_s, kernel)

    def link(self, name: str, kind: str) -> LinkRate:
        """What collectives reach on a link: by its name, by its kind (switch, mesh, torus, host, network), or in general."""
        if self.is_ideal:
            return _IDEAL_LINK
        found = next((self.links[key] for key in (name, kind, "default") if key in self.links), None)
        if found is None:
            raise Unsupported(f"the calibration '{self.name}' has nothing on the link '{shown(name)}', nor on links in general")
        return found

    def copy_rate(self, name: str) -> Copy:
        """What copies from host memory reach on a link: as the calibration says, else as the table of links does, else in general."""
        if self.is_ideal:
            return Copy()
        listed = links().links.get(name)
        if name not in self.copies and listed is not None and listed.practical is not None:
            return Copy(eff=listed.practical.value, basis="measured", note=listed.practical.note)
        found = self.copies.get(name) or self.copies.get("default")
        if found is None:
            raise Unsupported(f"the calibration '{self.name}' has nothing on copies over the link '{shown(name)}', nor in general")
        return found

    def overhead(self, engine: str, architecture: str | None = None) -> Added:
        """What an engine adds to a step on a class of parts; an older core (`vllm-v0`) without an entry is like the engine itself,
        an engine without one like `default`.

        >>> Efficiency.default().overhead("vllm-v0").per_sequence > Efficiency.default().overhead("vllm").per_sequence
        True
        """
        return Added() if self.is_ideal else self.overheads(engine).on(architecture)

    def overheads(self, engine: str) -> Overhead:
        """The same on all classes of parts."""
        names = (*_cores(normalise(engine)), "default")
        return next((self.engines[name] for name in names if name in self.engines), Overhead())

    def host_s(self, engine: str, layers: int, architecture: str | None = None) -> float:
        """Seconds that the host takes for a pass of so many layers, beside the devices.

        >>> Efficiency.default().host_s("vllm", 32), Efficiency.default().host_s("transformers", 32) > 0.01
        (0.0, True)
        """
        own = self.overhead(engine, architecture)
        return own.host + layers * own.host_layer

    def band(self, quantity: TimeName, engine: str, part: str, known: Known, architecture: str = "") -> Band | None:
        """Where four of five measurements of a mean time lie about its estimate; None for floors, and where nothing is known.

        >>> shipped = Efficiency.default()
        >>> near, far = (shipped.band("tpot", "vllm", "", "inherited", name) for name in ("nvidia-hopper", "amd-cdna3"))
        >>> far.high / far.low > near.high / near.low
        True
        """
        return None if self.is_ideal else band(self.bands, quantity, normalise(engine), part, known, architecture)

    def tail_band(self, quantity: TimeName, share: float, own: Band | None) -> Band | None:
        """The same of the time that a `share` of requests does not exceed, where `own` is the band of the mean."""
        return None if self.is_ideal else tail_band(self.bands, quantity, share, own)

    def front_end_s(self, engine: str, layers: int, input_tokens: Numeric) -> Numeric:
        """Seconds that engine and host take for a prompt beside its kernels, for a model of `layers` layers: its own turn and `apart_s`.

        >>> float(Efficiency.ideal().front_end_s("vllm", 32, 1000))
        0.0
        """
        own = self.overhead(engine)
        return self.apart_s(engine) + own.per_prompt_layer * layers + own.per_input_token * np.asarray(input_tokens)

    def apart_s(self, engine: str) -> float:
        """The part of it that prompts spend side by side, not one after another.

        >>> Efficiency.ideal().apart_s("vllm")
        0.0
        """
        return self.overhead(engine).per_prompt

    def step_overhead_s(
        self, engine: str, layers: int, sequences: Numeric, *, expert_layers: Numeric = 0, recurrent_layers: Numeric = 0,
        architecture: str | None = None,
    ) -> Numeric:  # fmt: skip
        """Seconds that engine and host add to one step of `layers` layers, some with experts or a recurrence, over `sequences` sequences.

        >>> float(Efficiency.ideal().step_overhead_s("vllm", 32, 8))
        0.0
        """
        own = self.overhead(engine, architecture)
        special = expert_layers * own.per_expert_layer + recurrent_layers * own.per_recurrent_layer
        return own.per_step + layers * own.per_layer + special + np.asarray(sequences) * own.per_sequence


def _cores(engine: str) -> tuple[str, ...]:
    """An engine's name with its core, then without.

    >>> _cores("vllm-v0"), _cores("vllm-v0-async"), _cores("vllm")
    (('vllm-v0', 'vllm'), ('vllm-v0-async', 'vllm'), ('vllm',))
    """
    base = CORE.sub("", engine)
    return (engine,) if base == engine else (engine, base)


def _entries(
    table: Mapping[str, Mapping[str, Entry]], place: str, wanted: tuple[str, ...], architecture: str, part: str | None
) -> Iterator[_Found]:
    """Entries of a kind from the nearest to the most general: on each level the wanted formats in turn, then kin of the last."""
    chain = [name for name in (*wanted, *SIBLINGS.get(wanted[-1], ()), "any") if name in table]
    own = tuple(level for level in (part, architecture) if level)
    for levels in (own, (architecture.split("-")[0],), ("default",)):
        for name in chain:
            for level in levels:
                if level in table[name]:
                    exact = levels is own and name in (*wanted, "any")
                    yield _Found(table[name][level], f"{place}.{name}.{level}", exact)


_IDEAL_LINK = LinkRate(eff_switch=1.0, one_shot="0 s")  # type: ignore[arg-type]


def variant(kind: str, rate: str, stored: str | None = None) -> str:
    """The kernel variant that a number type and a stored format mean, as calibrations name it.

    >>> variant("matmul", "fp16"), variant("matmul", "bf16", "awq-int4"), variant("experts", "fp8", "fp8-block")
    ('bf16', 'int4-weight-only', 'fp8-block')
    >>> variant("attention_decode", "bf16", "fp8"), variant("experts", "bf16", "mxfp4"), variant("matmul", "fp4")
    ('fp8', 'mxfp4-weight-only', 'nvfp4')
    """
    held = normalise(stored or "")
    if kind in ("attention_prefill", "indexer"):
        return "fp8" if rate == "fp8" else "bf16"
    if kind == "attention_decode":
        return "fp8" if _bits(held) <= 8 else "bf16"
    if rate in ("bf16", "fp16"):
        return _weight_only(held)
    if rate in ("fp8", "mxfp8"):
        return "mxfp4-mxfp8" if _bits(held) == 4 else "fp8-block" if re.search("block|128x128|deepseek|mxfp8", held) else "fp8"
    return {"fp4": "nvfp4", "nvfp4": "nvfp4", "mxfp4": "nvfp4", "int8": "int8", "fp32": "fp32", "tf32": "fp32"}.get(rate, "bf16")


def block_family(stored: str | None) -> str:
    """The family of a GGUF tensor type, whose kernels are alike: fp16, legacy, k-quant, low-bit or mxfp4; '' for any other.

    >>> [block_family(name) for name in ("fp16", "q4_0", "q6_k", "iq4_xs", "iq2_xs", "mxfp4", "bf16", None)]
    ['fp16', 'legacy', 'k-quant', 'k-quant', 'low-bit', 'mxfp4', '', '']
    """
    held = normalise(stored or "")
    return next((family for pattern, family in _FAMILIES if re.fullmatch(pattern, held)), "")


_FAMILIES = (
    (r"fp16|f16", "fp16"), (r"q[458]-[01]", "legacy"), (r"q[4568]-k|iq4-\w+", "k-quant"), (r"(?:i?q|tq)[123]-\w+", "low-bit"),
    (r"mxfp4", "mxfp4"),
)  # fmt: skip


def _weight_only(held: str) -> str:
    bits = _bits(held)
    if bits >= 16:
        return "bf16"
    if bits > 4:
        return "int8-weight-only"
    return "mxfp4-weight-only" if "fp4" in held and "bnb" not in held else "int4-weight-only"


_WIDTH = re.compile(r"(?:int|fp|float|nf|i?q|w|kv|tq|fp8-|-)(\d{1,2})(?!\d)|(\d)-?bit")


def _bits(held: str) -> int:
    """The width that a format's name states, 16 where it states none: int4, w4a16, q4-k, nvfp4, fp8-block, bnb-4bit."""
    if re.search("awq|gptq|hqq|nf4", held):
        return 8 if re.search("int8|8bit|w8", held) else 4
    if "e4m3" in held or "e5m2" in held:
        return 8
    found = _WIDTH.search(held)
    return int(found[1] or found[2]) if found else 16


@cache
def _ideal() -> Efficiency:
    return Efficiency(name="ideal", title="efficiency 1, no overhead")


def _default_path() -> Path:
    return shipped_file(FOLDER, "default.yaml")


@cache
def _shipped(path: Path) -> Efficiency:
    return Efficiency.from_mapping(_read(path), file=path)


def _read(path: Path, depth: int = 0) -> dict[str, Any]:
    """A calibration's mapping over those it includes (files of its own folder) and over the one it is based on."""
    if depth > 4:
        raise SpecError("includes files more than four deep", file=path, field="include")
    own = load_yaml(path)
    below: list[dict[str, Any]] = []
    if own.get("base") == "default":
        below.append(_read(_default_path(), depth + 1))
    elif own.get("base") is not None:
        raise SpecError("must be 'default', the only calibration that others build on", file=path, field="base", value=own["base"])
    below += [_read(path.parent / _file_name(name, path), depth + 1) for name in own.get("include") or ()]
    merged: dict[str, Any] = {}
    for layer in (*below, own):
        merged = _over(merged, layer)
    return merged


def _file_name(name: Any, path: Path) -> str:
    if not isinstance(name, str) or Path(name).name != name:
        raise SpecError("must name a file of the same folder", file=path, field="include", value=name)
    return name


def _over(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """One mapping over another, key by key; a leaf entry, which states a basis, replaces the lower one as a whole."""
    merged = dict(low)
    for key, item in high.items():
        old = merged.get(key)
        deeper = isinstance(item, dict) and isinstance(old, dict) and "basis" not in item
        merged[key] = _over(old or {}, item) if deeper else item
    return merged
