"""Number formats and precisions: the bits of a weight matrix or a cached token, scales included, and which part of a model is kept in what.

Knows no model, no engine, no hardware and no clock: `compute` is the dtype a format is multiplied in where a part supports
it; what a part falls back to without that support is the hardware's to say. The formats themselves are data (`formats/`).
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal

from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator

from inferplan.errors import NotFound, SpecError, Unsupported, shown
from inferplan.shown import Shown
from inferplan.specs.base import Record, Spec, complaint
from inferplan.specs.catalog import folders, hyphened, normalise
from inferplan.specs.document import read_text
from inferplan.specs.quantity import Source

Numeric = float | NDArray[Any]
Use = Literal["weights", "kv"]
Dtype = Literal["fp32", "fp16", "bf16", "fp8", "fp6", "fp4", "int8", "int4"]

PARTS = (
    "embedding", "aux_embedding", "head", "attention", "indexer", "mlp", "mlp_aux", "router", "shared_expert", "experts",
    "recurrent", "norm", "vision", "mtp", "other",
)  # fmt: skip
BODY = ("attention", "indexer", "mlp", "mlp_aux", "shared_expert", "experts", "recurrent", "mtp")
MIXES_FILE = "gguf-mixes.yaml"
_LOOSE = Field(strict=False)
_Count = Annotated[int, Field(ge=0, le=2**31)]
_Bits = Annotated[float, Field(gt=0, le=4096)]


def _groups(length: Numeric, size: int) -> Numeric:
    """How many groups of `size` it takes to cover `length`; 0 means one group for all."""
    return -(-length // size) if size else length * 0 + 1


class Pack(Record):
    """`values` that lie together in a word of `bits` (as many as they need, if unsaid), along inputs, outputs or the flat matrix."""

    values: Annotated[int, Field(gt=0)]
    bits: Annotated[int, Field(gt=0)] | None = None
    along: Literal["in", "out", "all"] = "in"

    def stored_bits(self, rows: Numeric, cols: Numeric, bits: float) -> Numeric:
        """Bits of a matrix of `bits`-wide values in whole words."""
        word = bits * self.values if self.bits is None else self.bits
        if self.along == "in":
            return rows * _groups(cols, self.values) * word
        if self.along == "out":
            return cols * _groups(rows, self.values) * word
        return _groups(rows * cols, self.values) * word


class Table(Record):
    """Numbers beside the values: scales, zeros, indices of `bits` each.

    per
        `[outputs, inputs]` (of a cache: `[tokens, elements]`) that share one number, 0 for all of them and `head` for the
        elements of one head; or a run of so many values of the flattened matrix.
    """

    what: str
    bits: _Bits
    per: Annotated[tuple[_Count, _Count | Literal["head"]], _LOOSE] | Annotated[int, Field(gt=0)]
    pack: Pack | None = None

    def matrix_bits(self, rows: Numeric, cols: Numeric) -> Numeric:
        """Bits beside a matrix of `rows` outputs by `cols` inputs."""
        if isinstance(self.per, int):
            return _groups(rows * cols, self.per) * self.bits
        out, inner = self.per
        if inner == "head":
            raise Unsupported(f"the {self.what} is per attention head, which a weight matrix has not")
        down, across = _groups(rows, out), _groups(cols, inner)
        return self.pack.stored_bits(down, across, self.bits) if self.pack else down * across * self.bits

    def token_bits(self, elements: Numeric, heads: Numeric) -> Numeric:
        """Bits beside the `elements` of one cached token in `heads` heads; what several tokens share is spread over them."""
        if isinstance(self.per, int):
            return elements / self.per * self.bits
        tokens, inner = self.per
        if tokens == 0:
            return elements * 0.0
        return (heads if inner == "head" else _groups(elements, inner)) * self.bits / tokens

    def sequence_bits(self, elements: Numeric) -> Numeric:
        """Bits beside a sequence's cache that do not grow with its tokens."""
        if isinstance(self.per, int) or self.per[0] or self.per[1] in (0, "head"):
            return elements * 0.0
        return _groups(elements, int(self.per[1])) * self.bits

    @property
    def nominal_bits(self) -> float:
        """Bits per value where each dimension is large; 0 for what is shared by a whole row, column or tensor."""
        if isinstance(self.per, int):
            return self.bits / self.per
        out, inner = self.per
        return self.bits / (out * inner) if out and inner and inner != "head" else 0.0


class Layout(Record):
    """How values are stored: `bits` of one code, how codes are packed into words, and the tables beside them."""

    bits: _Bits
    pack: Pack | None = None
    tables: Annotated[tuple[Table, ...], _LOOSE] = ()

    @property
    def element_bits(self) -> float:
        """Bits that one code takes as packed: 3.2 where ten 3-bit codes share 32 bits."""
        return self.pack.bits / self.pack.values if self.pack and self.pack.bits else self.bits

    @property
    def block(self) -> int:
        """Inputs that make a whole group: those of a packed block, or that share a scale; 1 where each stands alone."""
        shared = [t.per[1] for t in self.tables if not isinstance(t.per, int) and isinstance(t.per[1], int)]
        return self.pack.values if self.pack and self.pack.bits else max(shared, default=1) or 1

    @property
    def bits_per_element(self) -> float:
        """Nominal bits per value, group scales included: the limit for a large matrix of whole groups."""
        return self.element_bits + sum(t.nominal_bits for t in self.tables)

    def payload_bits(self, rows: Numeric, cols: Numeric) -> Numeric:
        """Bits of the codes alone of a matrix of `rows` outputs by `cols` inputs, in whole words."""
        return self.pack.stored_bits(rows, cols, self.bits) if self.pack else rows * cols * self.bits

    def matrix_bits(self, rows: Numeric, cols: Numeric) -> Numeric:
        """Bits of a matrix of `rows` outputs by `cols` inputs, codes and tables."""
        return self.payload_bits(rows, cols) + sum(t.matrix_bits(rows, cols) for t in self.tables)

    def token_bits(self, elements: Numeric, heads: Numeric) -> Numeric:
        """Bits of one cached token of `elements` in `heads` heads."""
        return self.payload_bits(1, elements) + sum(t.token_bits(elements, heads) for t in self.tables)

    def sequence_bits(self, elements: Numeric) -> Numeric:
        """Bits of a sequence's cache that do not grow with its tokens."""
        return elements * 0.0 + sum(t.sequence_bits(elements) for t in self.tables)


class Format(Layout):
    """A number format: how a weight matrix or a cache is stored in it, and what it is multiplied in.

    compute
        dtype of the matrix product where a part supports it: `fp8` for fp8, `int8` for w8a8, 16 bit for weight-only formats.
    applies_to
        `weights`, `kv` or both; `holds` says of a cache format whether it takes `heads` (K and V) and an MLA `latent`.
    value, rope
        the layout of V, and of the rotary part of a latent, where they differ.
    latent
        the only (latent, rotary) widths a format is made for.
    residual_tokens
        newest tokens that stay in 16 bit.
    """

    name: str
    title: str
    family: str = ""
    aliases: Annotated[tuple[str, ...], _LOOSE] = ()
    compute: Dtype
    applies_to: Annotated[tuple[Use, ...], _LOOSE] = ("weights",)
    holds: Annotated[tuple[Literal["heads", "latent"], ...], _LOOSE] = ("heads", "latent")
    value: Layout | None = None
    rope: Layout | None = None
    latent: Annotated[tuple[_Count, _Count], _LOOSE] | None = None
    residual_tokens: _Count = 0
    source: Source | None = None
    note: str | None = None

    @property
    def quantised(self) -> bool:
        """Whether a value takes fewer than 16 bits."""
        return self.bits < 16

    def bytes(self, rows: Numeric, cols: Numeric) -> Numeric:
        """Bytes of a weight matrix of `rows` outputs by `cols` inputs, with scales, in whole groups and words. Arrays broadcast.

        >>> named_format("awq").bytes(4096, 4096), named_format("fp8-block").bytes(4096, 4096)
        (8716288.0, 16781312.0)
        """
        self._serves("weights")
        return self.matrix_bits(rows, cols) / 8

    def kv_bytes_per_token(
        self, k_elements: Numeric, v_elements: Numeric = 0, *, head_dim: Numeric, v_head_dim: Numeric | None = None
    ) -> Numeric:
        """Bytes that one token keeps in one layer: K of `k_elements` (KV heads x head_dim) and V of `v_elements`, scales included.

        A scale per head covers `head_dim` elements of K and `v_head_dim` of V (unsaid: V has as many heads as K). What a
        group of tokens shares is spread over them; what a whole sequence shares is in `kv_bytes_per_sequence`.
        Raises Unsupported where the format keeps only MLA latents.

        >>> kv = named_format("int8", "kv")
        >>> kv.kv_bytes_per_token(1024, 1024, head_dim=128), named_format("q8_0", "kv").kv_bytes_per_token(1024, 1024, head_dim=128)
        (2064.0, 2176.0)
        """
        self._serves("kv", "heads")
        heads = k_elements / head_dim
        v_heads = heads * (v_elements > 0) if v_head_dim is None else v_elements / v_head_dim
        return self.token_bits(k_elements, heads) / 8 + (self.value or self).token_bits(v_elements, v_heads) / 8

    def kv_bytes_per_sequence(
        self, k_elements: Numeric, v_elements: Numeric = 0, *, head_dim: Numeric, v_head_dim: Numeric | None = None
    ) -> Numeric:
        """Bytes per sequence and layer that do not grow with its length: scales per channel, and what a 16-bit window costs more.

        >>> named_format("int8", "kv").kv_bytes_per_sequence(1024, 1024, head_dim=128)
        2048.0
        """
        fixed = self.sequence_bits(k_elements) / 8 + (self.value or self).sequence_bits(v_elements) / 8
        if not self.residual_tokens:
            return fixed
        grown = self.kv_bytes_per_token(k_elements, v_elements, head_dim=head_dim, v_head_dim=v_head_dim)
        return fixed + self.residual_tokens * (2 * (k_elements + v_elements) - grown)

    def latent_bytes_per_token(self, latent: int, rope: int) -> Numeric:
        """Bytes that one token keeps in one MLA layer: a latent of `latent` elements and its rotary part of `rope`, stored once.

        Raises Unsupported where the format keeps K and V apart, or is made for other widths.

        >>> named_format("fp8_ds_mla", "kv").latent_bytes_per_token(512, 64), named_format("bf16", "kv").latent_bytes_per_token(512, 64)
        (656.0, 1152.0)
        """
        self._serves("kv", "latent")
        if self.latent and (latent, rope) != self.latent:
            made_for = " + ".join(map(str, self.latent))
            raise Unsupported(f"the KV format {self.name} is made for an MLA latent of {made_for} elements, not {latent} + {rope}")
        if self.rope is None:
            return self.token_bits(latent + rope, 1) / 8
        return (self.token_bits(latent, 1) + self.rope.token_bits(rope, 1)) / 8

    def paired(self, value: Format) -> Format:
        """A cache format with K in this one and V in another (`q8_0/q4_0`)."""
        if self.value or value.value or self.residual_tokens or value.residual_tokens:
            raise Unsupported(f"a cache cannot be kept as {self.name}/{value.name}: one of them already says what V is in")
        layout = Layout(bits=value.bits, pack=value.pack, tables=value.tables)
        changes = {"name": f"{self.name}/{value.name}", "title": f"{self.title} K, {value.title} V", "aliases": ()}
        return self.model_copy(update={**changes, "value": layout, "holds": ("heads",)})

    def _serves(self, use: Use, kept: str | None = None) -> None:
        if use not in self.applies_to:
            raise Unsupported(f"the format {self.name} is not one for {'weights' if use == 'weights' else 'a KV cache'}")
        if kept and kept not in self.holds:
            what = "an MLA latent" if kept == "latent" else "K and V per head"
            raise Unsupported(f"the KV format {self.name} cannot hold {what}")


class Template(Record):
    """Formats that differ in a number, by name: `gptq-int{bits}-g{group}` with the values it may have, listed or between two."""

    form: str
    aliases: Annotated[tuple[str, ...], _LOOSE] = ()
    choices: dict[str, Annotated[tuple[float, ...], _LOOSE]] = Field(default_factory=dict)
    between: dict[str, Annotated[tuple[float, float], _LOOSE]] = Field(default_factory=dict)
    names: dict[str, Annotated[tuple[str, ...], _LOOSE]] = Field(default_factory=dict)
    format: dict[str, Any]

    def match(self, key: str) -> dict[str, float] | None:
        """The values that a normalised name fills in, or None where the name is not of this form or a value is not allowed."""
        key = self._full(key)
        for form in (self.form, *self.aliases):
            found = _pattern(form).fullmatch(key)
            values = {name: float(text) for name, text in found.groupdict().items()} if found else None
            if values and all(self._allows(name, value) for name, value in values.items()):
                return values
        return None

    def _full(self, key: str) -> str:
        return next((normalise(name) for name, short in self.names.items() if key in map(normalise, short)), key)

    def _allows(self, name: str, value: float) -> bool:
        low, high = self.between.get(name, (1.0, 0.0))
        return value in self.choices.get(name, ()) or low <= value <= high

    def filled(self, values: Mapping[str, float]) -> dict[str, Any]:
        """The mapping of the format that these values make."""
        plain = {name: int(value) if value.is_integer() else value for name, value in values.items()}
        texts = {name: str(plain[name] if name in self.choices else value) for name, value in values.items()}
        return {"name": self.form.format(**texts), **_filled(self.format, plain)}


@cache
def _pattern(form: str) -> re.Pattern[str]:
    """What a normalised name of a template's form looks like, its `{placeholders}` as named numbers."""
    pieces = re.split(r"\{(\w+)\}", form.lower().replace("_", "-"))
    return re.compile("".join(rf"(?P<{p}>\d+(?:\.\d+)?)" if i % 2 else re.escape(p) for i, p in enumerate(pieces)))


def _filled(item: Any, values: Mapping[str, float]) -> Any:
    if isinstance(item, dict):
        return {key: _filled(member, values) for key, member in item.items()}
    if isinstance(item, list):
        return [_filled(member, values) for member in item]
    if isinstance(item, str) and "{" in item:
        return values[item[1:-1]] if re.fullmatch(r"\{\w+\}", item) else item.format(**values)
    return item


class Preset(Spec):
    """A precision by name: the format of the body, of what stays wider (`base`), of single parts, and of the KV cache."""

    name: str
    title: str = ""
    aliases: Annotated[tuple[str, ...], _LOOSE] = ()
    weights: str
    base: str = "bf16"
    parts: dict[str, str] = Field(default_factory=dict)
    kv: str | None = None
    state: str | None = None
    compute: Dtype | None = None
    mix: str | None = None


class FormatFile(Spec):
    """A file of `formats/`: the formats of one family, with what its checkpoints do with embedding, head and norms."""

    name: str
    title: str
    sources: dict[str, Source] = Field(default_factory=dict)
    parts: dict[str, str] = Field(default_factory=dict)
    kv: str | None = None
    state: str | None = None
    formats: Annotated[tuple[Format, ...], _LOOSE] = ()
    templates: Annotated[tuple[Template, ...], _LOOSE] = ()
    presets: Annotated[tuple[Preset, ...], _LOOSE] = ()

    @model_validator(mode="before")
    @classmethod
    def _with_sources(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("formats"), list):
            return data
        return {**data, "formats": [completed(item, data) for item in data["formats"]]}

    def made(self, key: str) -> Format | None:
        """The format that a normalised name makes of one of the templates."""
        for template in self.templates:
            if (values := template.match(key)) is not None:
                try:
                    return Format.model_validate(completed(template.filled(values), {"name": self.name, "sources": self.sources}))
                except ValidationError as e:
                    raise complaint(e, f"{self.name}.yaml") from None
        return None


def completed(item: Any, file: Mapping[str, Any]) -> Any:
    """A format's mapping with its family and, in place of the key, the source that the file lists under it."""
    if not isinstance(item, dict):
        return item
    key, sources = item.get("source"), file.get("sources", {})
    if not isinstance(key, str) or key not in sources:
        raise SpecError(f"must be one of the file's sources ({', '.join(sources)})", field=f"formats.{item.get('name')}.source", value=key)
    return {**item, "source": sources[key], "family": file.get("name", "")}


@dataclass(frozen=True, slots=True)
class Library:
    """Everything that the format files hold, by normalised name."""

    files: Mapping[str, FormatFile]
    formats: Mapping[tuple[Use, str], Format]
    presets: Mapping[str, Preset]
    mixes_file: Path

    @property
    def rules(self) -> Mixes:
        """The file mixes, read when they are first asked for."""
        return _mixes(self.mixes_file)[0]

    @property
    def mixes(self) -> Mapping[str, Mix]:
        """The file mixes by normalised name."""
        return _mixes(self.mixes_file)[1]

    def mix_called(self, key: str) -> Mix | None:
        """The file mix of a normalised name, which may start with `gguf-`; the file is only read where it could name it."""
        bare = key.removeprefix("gguf-")
        if bare not in hyphened(read_text(self.mixes_file)):
            return None
        return self.mixes.get(key) or self.mixes.get(bare)

    def format(self, text: str, use: Use) -> Format:
        """The format of a name or alias; raises NotFound with near misses."""
        key = normalise(text)
        found = self.formats.get((use, key)) or self._made(key)
        if found is None or use not in found.applies_to:
            raise NotFound(f"no {'KV' if use == 'kv' else 'weight'} format called '{shown(text)}'{_near(text, self.names(use))}")
        return found

    def mix(self, text: str) -> Mix:
        """The file mix of a name; raises NotFound with near misses."""
        if (found := self.mixes.get(normalise(text))) is None:
            raise NotFound(f"no GGUF file mix called '{shown(text)}'{_near(text, (m.name for m in self.rules.mixes))}")
        return found

    def tensor_type(self, mix: Mix, tensor: Tensor) -> str:
        """The type of a tensor in a mix, or the one it falls back to where its columns are not whole blocks."""
        found = self.rules.chosen(mix, tensor)
        if (tensor.role == "output" or (tensor.tied and tensor.role == "token_embd")) and self._odd(mix.base, tensor):
            found = "q8_0"
        if self._odd(found, tensor):
            found = self.rules.fallback.get(found, "fp16")
        return "fp16" if self._odd(found, tensor) else found

    def _odd(self, name: str, tensor: Tensor) -> bool:
        return tensor.cols % self.format(name, "weights").block != 0

    def names(self, use: Use) -> list[str]:
        """Names and aliases, those that templates give by name included."""
        listed = [n for (kept, _), f in self.formats.items() if kept == use for n in (f.name, *f.aliases)]
        templates = [t for file in self.files.values() for t in file.templates if use in t.format.get("applies_to", ["weights"])]
        return listed + [n for t in templates for name, aliases in t.names.items() for n in (name, *aliases)]

    def _made(self, key: str) -> Format | None:
        return next((f for file in self.files.values() if (f := file.made(key))), None)


def _near(text: str, names: Iterable[str]) -> str:
    """'; near it: ...' with up to four names, as they are written, or nothing."""
    spelt = {normalise(name): name for name in names}
    near = difflib.get_close_matches(normalise(text), spelt, n=4, cutoff=0.5)
    return f"; near it: {', '.join(spelt[key] for key in near)}" if near else ""


def library() -> Library:
    """The format files on the search path; a name in an earlier folder shadows the same name in a later one."""
    return _gathered(tuple(path for path, _ in _texts(tuple(folders("formats")))))


def _naming(key: str) -> Library:
    """The format files that could name a normalised key: reading all of them takes longer than all that most commands do besides."""
    return _gathered(tuple(path for path, text in _texts(tuple(folders("formats"))) if key in text))


@cache
def _texts(places: tuple[Path, ...]) -> tuple[tuple[Path, str], ...]:
    """The format files, a file of an earlier folder in place of one of the same name later, with their texts normalised."""
    found: dict[str, Path] = {}
    for folder in places:
        found = {path.name: path for path in sorted(folder.glob("*.yaml"))} | found
    if MIXES_FILE not in found:
        raise NotFound(f"no formats/{MIXES_FILE} on the search path")
    mixes = found.pop(MIXES_FILE)
    order = [path for folder in places for path in found.values() if path.parent == folder]
    return tuple((path, hyphened(read_text(path))) for path in [*order, mixes])


@cache
def _gathered(paths: tuple[Path, ...]) -> Library:
    """What the files hold between them, those of earlier folders first."""
    files: dict[str, FormatFile] = {}
    formats: dict[tuple[Use, str], Format] = {}
    presets: dict[str, Preset] = {}
    for folder, group in groupby((path for path in paths if path.name != MIXES_FILE), lambda path: path.parent):
        own = [_file(path) for path in group]
        files |= {file.name: file for file in own}
        formats = _names(own, folder) | formats
        presets = {normalise(n): p for file in own for p in file.presets for n in (*p.aliases, p.name)} | presets
    return Library(files, formats, presets, _mixes_path())


def _mixing() -> Library:
    """What file mixes are made of: GGUF, plain and microscaling types, and whatever the user's own folders hold."""
    texts = _texts(tuple(folders("formats")))
    shipped = texts[-1][0].parent
    return _gathered(tuple(path for path, _ in texts if path.parent != shipped or path.stem in ("float", "gguf", "microscaling")))


def _family(name: str) -> FormatFile:
    """The file of a family."""
    return _file(next(path for path, _ in _texts(tuple(folders("formats"))) if path.stem == name))


def _mixes_path() -> Path:
    return _texts(tuple(folders("formats")))[-1][0]


@cache
def _mixes(path: Path) -> tuple[Mixes, dict[str, Mix]]:
    held = Mixes.load(path)
    return held, {normalise(n): mix for mix in held.mixes for n in (mix.name, *mix.aliases)}


@cache
def _file(path: Path) -> FormatFile:
    file = FormatFile.load(path)
    if file.name != path.stem:
        raise SpecError(f"must equal the file's name, '{path.stem}'", file=path, field="name", value=file.name)
    return file


def _names(files: Iterable[FormatFile], folder: Path) -> dict[tuple[Use, str], Format]:
    """The formats of one folder by use and every spelling; raises SpecError where two formats share one."""
    taken: dict[tuple[Use, str], Format] = {}
    for item in (f for file in files for f in file.formats):
        for use in item.applies_to:
            for spelling in {normalise(n) for n in (item.name, *item.aliases)}:
                if (owner := taken.setdefault((use, spelling), item)) is not item:
                    raise SpecError(f"is a name of '{owner.name}' as well", file=folder, field=f"formats.{item.name}", value=spelling)
    return taken


def named_format(text: str, use: Use = "weights") -> Format:
    """The format that a name or alias means, as a weight format or as one for the KV cache (`int8` is another thing there).

    A cache format may name K and V apart, as `q8_0/q4_0`. Raises NotFound, with near misses.

    >>> named_format("gptq-int4-g64").bits_per_element, named_format("Q4_K").bits_per_element, named_format("exl2-4.65").bits_per_element
    (4.3125, 4.5, 4.65)
    """
    if use == "kv" and text.count("/") == 1:
        keys, values = (named_format(part, "kv") for part in text.split("/"))
        return keys if keys == values else keys.paired(values)
    key = normalise(text)
    return _naming(key).formats.get((use, key)) or library().format(text, use)


class Rule(Record):
    """One line of a file mix: the type of tensors of these roles, in these layers, of models with so many heads and experts."""

    roles: Annotated[tuple[str, ...], _LOOSE]
    type: str
    layers: Literal["all", "more", "first-8th", "first-16th", "first-2", "first-4", "middle"] = "all"
    gqa: _Count = 1
    experts: _Count | None = None
    min_experts: _Count = 0
    imatrix: bool | None = None


class Raise(Record):
    """What models of so many `layers` with shared KV heads keep V in, where a mix says one of the types `from`."""

    layers: _Count
    gqa: _Count
    types: Annotated[tuple[str, ...], _LOOSE] = Field(alias="from")
    type: str


class Mix(Record):
    """A file mix: the type of most tensors, of the output (or tied table), of the token table, and the exceptions in order."""

    name: str
    aliases: Annotated[tuple[str, ...], _LOOSE] = ()
    base: str
    output: str = "q6_k"
    token_embd: str | None = None
    low: bool = False
    imatrix: bool = False
    use: Annotated[tuple[str, ...], _LOOSE] = ()
    rules: Annotated[tuple[Rule, ...], _LOOSE] = ()


@dataclass(frozen=True, slots=True)
class Tensor:
    """What a mix looks at: the tensor's role, layer (from 0) and columns; the model's layers, query heads per KV head and experts.

    `tied` says that the token table serves as output, `imatrix` that the file was made with an importance matrix (None: as
    is usual for the mix).
    """

    role: str
    layer: int
    layers: int
    cols: int
    gqa: int = 1
    experts: int = 1
    tied: bool = False
    imatrix: bool | None = None


class Mixes(Spec):
    """The file of GGUF mixes and the rules they share."""

    name: str
    title: str
    sources: dict[str, Source]
    unquantized: str
    attention_v: Annotated[tuple[str, ...], _LOOSE]
    raised: Raise
    fallback: dict[str, str]
    groups: dict[str, Annotated[tuple[Rule, ...], _LOOSE]]
    mixes: Annotated[tuple[Mix, ...], _LOOSE]

    def chosen(self, mix: Mix, tensor: Tensor) -> str:
        """The type of a tensor before its shape is looked at."""
        if "norm" in tensor.role or tensor.role in ("ffn_gate_inp", "router", "ssm_conv1d"):
            return self.unquantized
        if tensor.role in ("output", "token_embd"):
            return mix.output if tensor.role == "output" or tensor.tied else mix.token_embd or mix.base
        rules = (*(rule for group in mix.use for rule in self.groups[group]), *mix.rules)
        found = next((rule.type for rule in rules if self._fits(rule, mix, tensor)), mix.base)
        large = tensor.layers == self.raised.layers and tensor.gqa >= self.raised.gqa and tensor.role in self.attention_v
        return self.raised.type if large and not mix.low and found in self.raised.types else found

    def _fits(self, rule: Rule, mix: Mix, t: Tensor) -> bool:
        plain = "attn_v" if t.role in self.attention_v else re.sub(r"_(exps|shexp)$", "", t.role)
        of_model = t.gqa >= rule.gqa and t.experts >= rule.min_experts and rule.experts in (None, t.experts)
        imatrix = mix.imatrix if t.imatrix is None else t.imatrix
        role = t.role in rule.roles or plain in rule.roles
        return role and of_model and rule.imatrix in (None, imatrix) and in_layers(rule.layers, t.layer, t.layers)


def in_layers(which: str, layer: int, layers: int) -> bool:
    """Whether a mix's choice of layers holds for `layer` of `layers`.

    `more` is llama.cpp's choice of layers that get more bits: the first and last eighth and every third of the rest.

    >>> sum(in_layers("more", i, 32) for i in range(32))
    16
    """
    eighth = layers // 8
    ends = layer < eighth or layer >= 7 * layers // 8
    return {
        "all": True,
        "more": ends or (layer - eighth) % 3 == 2,
        "middle": not ends,
        "first-8th": layer < eighth,
        "first-16th": layer < layers // 16,
        "first-2": layer < 2,
        "first-4": layer < 4,
    }[which]


def mix_type(mix: str, role: str, layer: int, layers: int, cols: int, **of_model: Any) -> str:
    """The name of the tensor type that llama-quantize gives a tensor in a file mix such as `q4_k_m`.

    `role` is the tensor's name in the file (token_embd, output, attn_q, attn_v, attn_qkv, ffn_down, ffn_down_exps ...; norms
    and the router stay fp32), `layer` counts from 0 among `layers`, `cols` its inputs; further words are those of `Tensor`:
    gqa (query heads per KV head), experts, tied, imatrix. Raises NotFound for an unknown mix.

    >>> mix_type("q4_k_m", "attn_v", 0, 32, 4096, gqa=4), mix_type("q4_k_m", "ffn_down", 4, 32, 14336)
    ('q6_k', 'q4_k')
    """
    held = library()
    return held.tensor_type(held.mix(mix), Tensor(role, layer, layers, cols, **of_model))


_ROLES = {
    "attention": {"q": "attn_q", "k": "attn_k", "v": "attn_v", "qkv": "attn_qkv", "kv_b": "attn_kv_b", "o": "attn_output"},
    "mlp": {"gate_up": "ffn_up", "up": "ffn_up", "gate": "ffn_gate", "down": "ffn_down"},
    "experts": {"gate_up": "ffn_up_exps", "up": "ffn_up_exps", "gate": "ffn_gate_exps", "down": "ffn_down_exps"},
    "shared_expert": {"gate_up": "ffn_up_shexp", "up": "ffn_up_shexp", "gate": "ffn_gate_shexp", "down": "ffn_down_shexp"},
    "embedding": {"embedding": "token_embd"},
    "aux_embedding": {},
    "head": {"head": "output"},
    "norm": {},
    "router": {},
}


def tensor_role(name: str, part: str) -> str:
    """The GGUF role of a weight by its part and the last word of its dotted name; `other` where mixes make no exception.

    >>> tensor_role("block.attention.v", "attention"), tensor_role("experts.down", "experts"), tensor_role("final_norm", "norm")
    ('attn_v', 'ffn_down_exps', 'norm')
    """
    if part in ("norm", "router"):
        return part
    if part == "aux_embedding":
        return "token_embd"
    return _ROLES.get(part, {}).get(name.rsplit(".", 1)[-1], "other")


class Precision(Shown, Record):
    """What each part of a model is kept in: the body's format, exceptions by part, the KV cache, recurrent states.

    overrides
        (part, format) pairs; a part that is not among them has the body's format.
    state
        format of recurrent states, None for the one the model states itself.
    compute
        dtype of the matrix products of quantised parts where it is not the format's own.
    mix
        the GGUF file mix that decides per tensor; `formats_of` answers for it, `format_of` gives the type of most tensors.
    """

    name: str
    title: str
    weights: Format
    overrides: Annotated[tuple[tuple[str, Format], ...], _LOOSE] = ()
    kv: Format
    state: Format | None = None
    compute: Dtype | None = None
    mix: str | None = None

    def format_of(self, part: str) -> Format:
        """The format of a part: one of PARTS.

        >>> Precision.named("fp8").format_of("attention").name, Precision.named("fp8").format_of("head").name
        ('fp8', 'bf16')
        """
        if part not in PARTS:
            raise SpecError(f"is not one of {', '.join(PARTS)}", field="part", value=part)
        return dict(self.overrides).get(part, self.weights)

    def compute_of(self, part: str) -> str:
        """The dtype in which a part's matrices are multiplied where the hardware supports it."""
        own = self.format_of(part)
        return self.compute if self.compute and own.quantised else own.compute

    def formats_of(self, part: str, tensor: Tensor | None = None, which: Iterable[int] | None = None) -> list[tuple[Format, int]]:
        """The formats of one tensor over the layers of a model, each with the number of layers that have it.

        Only file mixes differ by tensor and layer: there `tensor` says what it is (its `layer` is passed over), and `which`
        names the layers that hold it, unsaid all. Else it is the part's format in all of them.

        >>> down = Tensor("ffn_down", 0, layers=32, cols=14336)
        >>> [(f.name, n) for f, n in Precision.named("q4_k_m").formats_of("mlp", down)]
        [('q6_k', 16), ('q4_k', 16)]
        """
        layers = list(which) if which is not None else range(tensor.layers if tensor else 1)
        if self.mix is None or tensor is None or part in ("vision", "other"):
            return [(self.format_of(part), len(layers))]
        held = _mixing()
        mix = held.mix(self.mix)
        names = Counter(held.tensor_type(mix, replace(tensor, layer=layer)) for layer in layers)
        return [(held.format(name, "weights"), count) for name, count in names.items()]

    def with_kv(self, text: str) -> Precision:
        """The same with another KV format; `auto` keeps the one it has."""
        return self if normalise(text) == "auto" else self.model_copy(update={"kv": named_format(text, "kv")})

    @classmethod
    def named(cls, text: str, kv: str | None = None) -> Precision:
        """The precision that a text means, with another KV format where `kv` names one.

        The text is a preset or file mix (`fp8`, `q4_k_m`), any weight format (`gptq-int3-g64`, `exl2-4.65`), bit widths
        (`w4a16`, `w8a8kv8`), or parts one by one: `body=q4_k,head=q6_k,kv=int8,compute=int8,state=fp32`.
        Raises NotFound with near misses.

        >>> Precision.named("int8", kv="int8").summary, Precision.named("body=fp8,attention=bf16").format_of("attention").name
        ('int8 weights and matmuls, int8-kv KV', 'bf16')
        """
        found = _assigned(text) if "=" in text else _from_preset(_preset(text))
        return found if kv is None else found.with_kv(kv)

    @property
    def summary(self) -> str:
        """In words: the weights and the KV cache."""
        return f"{self.title}, {self.kv.name} KV"


def _preset(text: str) -> Preset:
    """The preset of a name, a mix, a weight format or bit widths."""
    key = normalise(text)
    if (preset := _naming(key).presets.get(key)) is not None:
        return preset
    if (mix := _naming(key).mix_called(key)) is not None:
        return _mix_preset(mix)
    if widths := re.fullmatch(r"(w\d+a\d+.*?)-?kv(\d+)", key):
        bits = {"16": "bf16", "8": "int8", "4": "int4"}
        if widths[2] not in bits:
            raise NotFound(f"no KV format of {widths[2]} bits; kv16, kv8 and kv4 are known")
        return _preset(widths[1]).model_copy(update={"name": key, "kv": bits[widths[2]]})
    try:
        return _format_preset(named_format(text))
    except NotFound:
        held = library()
        presets = [n for p in held.presets.values() for n in (p.name, *p.aliases)]
        names = [*presets, *(m.name for m in held.rules.mixes), *held.names("weights")]
        raise NotFound(f"no precision called '{shown(text)}'{_near(text, names)}") from None


def _format_preset(found: Format) -> Preset:
    """Weights in one format, and around them what the format's family does."""
    file = _family(found.family)
    return Preset(name=found.name, title=found.title, weights=found.name, parts=file.parts, kv=file.kv, state=file.state)


def _mix_preset(mix: Mix) -> Preset:
    file = _family("gguf")
    experts = next((rule.type for rule in mix.rules if "ffn_down_exps" in rule.roles), mix.base)
    parts = {**file.parts, "head": mix.output, "embedding": mix.token_embd or mix.base, "experts": experts}
    title = f"GGUF {mix.name.upper()}"
    return Preset(name=mix.name, title=title, weights=mix.base, parts=parts, kv=file.kv, state=file.state, mix=mix.name)


def _from_preset(preset: Preset) -> Precision:
    base = named_format(preset.base)
    wider = [part for part in PARTS if part not in BODY]
    body = named_format(preset.weights)
    formats = {part: base for part in wider if base != body}
    for part, name in preset.parts.items():
        formats[part] = body if name == "body" else named_format(name)
    return Precision(
        name=preset.name,
        title=preset.title or preset.name,
        weights=body,
        overrides=tuple(formats.items()),
        kv=named_format(preset.kv or preset.base, "kv"),
        state=named_format(preset.state) if preset.state else None,
        compute=preset.compute,
        mix=preset.mix,
    )


def _assigned(text: str) -> Precision:
    """The precision of a text like `body=q4_k,head=q6_k,kv=int8`."""
    given: dict[str, str] = {}
    for name, value in _assignments(text):
        if name in given or name not in (*PARTS, "body", "base", "kv", "state", "compute"):
            rule = "stands twice" if name in given else f"is not body, base, kv, state, compute or one of {', '.join(PARTS)}"
            raise SpecError(rule, field="precision", value=name)
        given[name] = value
    if "body" not in given:
        raise SpecError("needs a body, as in 'body=q4_k,head=q6_k'", field="precision", value=text)
    parts = {part: given[part] for part in PARTS if part in given}
    data = {"name": shown(text), "weights": given["body"], "parts": parts}
    return _from_preset(Preset.from_mapping(data | {key: given[key] for key in ("base", "kv", "state", "compute") if key in given}))


def _assignments(text: str) -> Iterator[tuple[str, str]]:
    for item in text.split(","):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not name or not value:
            raise SpecError("needs the form part=format", field="precision", value=item)
        yield name.lower().replace("-", "_"), value
