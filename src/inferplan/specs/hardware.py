"""Accelerators and their prices: memory, dense peaks, links and power, each number with its source.

Knows which number type a matrix product runs in on a part; knows no model, no efficiency and no time.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, field_validator, model_validator

from inferplan.errors import SpecError, Unsupported, shown
from inferplan.shown import Shown
from inferplan.specs.base import Line, Record
from inferplan.specs.catalog import data_file, find, folders, normalise
from inferplan.specs.document import read_text
from inferplan.specs.quantity import BytesPerS, BytesQ, FlopsPerS, Hertz, Pure, Quantity, Sourced, Watts, quantity, refusal

FLOATS = ("fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "fp6", "mxfp6", "fp4", "mxfp4", "nvfp4")
DTYPES = (*FLOATS, "int8", "int4")
PLAUSIBLE_RIDGE = (0.5, 10_000.0)


def _texts(raw: Any) -> Any:
    """A list of texts as people write it: one text alone counts, and so does an alias such as 4090 without quotes."""
    raw = [raw] if isinstance(raw, str) else raw
    whole = isinstance(raw, list) and not any(isinstance(item, bool) for item in raw)
    return [str(item) if isinstance(item, int) else item for item in raw] if whole else raw


Names = Annotated[tuple[str, ...], BeforeValidator(_texts), Field(strict=False)]


class Memory(Record):
    """The memory that weights and cache lie in. `usable` is what the driver reports; capacity is the marketing figure."""

    type: str | None = None
    capacity: BytesQ | None = None
    usable: BytesQ | None = None
    bandwidth: BytesPerS | None = None


class Peak(Record):
    """Dense matrix rates by number type, with fp32 accumulation. `fp16_fp16acc` and `fp8_fp16acc` accumulate in fp16."""

    fp32: FlopsPerS | None = None
    tf32: FlopsPerS | None = None
    fp16: FlopsPerS | None = None
    bf16: FlopsPerS | None = None
    fp8: FlopsPerS | None = None
    mxfp8: FlopsPerS | None = None
    fp6: FlopsPerS | None = None
    fp4: FlopsPerS | None = None
    int8: FlopsPerS | None = None
    int4: FlopsPerS | None = None
    fp16_fp16acc: FlopsPerS | None = None
    fp8_fp16acc: FlopsPerS | None = None


class Attachment(Record):
    """The scale-up link of one device: bandwidth one way, and the most devices that it joins (`domain`).

    `pair` is the one-way rate between two devices where the links of a device do not pool, as in a full mesh.
    """

    name: str
    bandwidth: BytesPerS | None = None
    pair: BytesPerS | None = None
    domain: int | None = Field(default=None, ge=1)
    note: str | None = None


class Pcie(Record):
    """The host interface."""

    gen: int = Field(ge=1, le=9)
    lanes: int = Field(ge=1)


class Architecture(Record):
    """A class of parts that compute alike: what their matrix units take, and what a stored type is computed in otherwise."""

    title: str
    native: Names = ()
    fallback: dict[str, Names] = Field(default_factory=dict)
    note: str | None = None


class Architectures(Sourced):
    """The table `hardware/architectures.yaml`: a fallback that all classes share, and the classes with their differences."""

    fallback: dict[str, Names]
    source: str
    classes: dict[str, Architecture]

    def chain(self, name: str, dtype: str) -> tuple[str, ...]:
        """The types to try, in order, for a matrix product of operands stored in `dtype` on a class of parts."""
        own = self.classes[name].fallback.get(dtype)
        return own if own is not None else self.fallback[dtype]


def architectures(environ: Mapping[str, str] | None = None) -> Architectures:
    """The classes of parts that the shipped and the user's own folders know.

    >>> architectures().chain("nvidia-hopper", "fp8")
    ('fp8', 'bf16', 'fp16', 'fp32')
    """
    tables = tuple(path for folder in folders("hardware", environ) if (path := folder / "architectures.yaml").is_file())
    return _architectures(tables or (data_file("hardware", "architectures.yaml", environ),))


@cache
def _architectures(tables: tuple[Path, ...]) -> Architectures:
    shipped = Architectures.load(tables[-1])
    own = {name: one for table in reversed(tables[:-1]) for name, one in Architectures.load(table).classes.items()}
    return shipped.model_copy(update={"classes": {**shipped.classes, **own}})


class Accelerator(Shown, Sourced):
    """One device as software sees it, or one card where `dies` says that software sees several.

    >>> h100 = Accelerator.find("h100")
    >>> h100.title, h100.computed_in("mxfp4"), round(h100.ridge("bf16"), 1)
    ('NVIDIA H100 SXM5 80GB', 'bf16', 295.3)
    """

    name: str
    title: Line
    aliases: Names = ()
    vendor: Line
    family: str | None = None
    architecture: str = "generic"
    form: str | None = None
    year: int | None = Field(default=None, ge=1990, le=2100)
    status: Literal["shipping", "announced"] = "shipping"
    dies: int = Field(default=1, ge=1)
    memory: Memory
    peak: Peak = Field(default_factory=Peak)
    vector: FlopsPerS | None = None
    units: Pure | None = None
    clock: Hertz | None = None
    cache: BytesQ | None = None
    link: Attachment | None = None
    host_link: Attachment | None = None
    unified: bool = False
    pcie: Pcie | None = None
    power: Watts | None = None
    native: Names | None = None
    fallback: dict[str, Names] = Field(default_factory=dict)
    notes: Names = ()
    _computed: dict[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def find(cls, text: str, *, environ: Mapping[str, str] | None = None) -> Self:
        """The accelerator that a name, an alias or a path means."""
        return cls.load(find("hardware", text, environ=environ))

    @classmethod
    def from_mapping(cls, data: dict[str, Any], *, file: Any = None) -> Self:
        """The accelerator in a mapping already read; its name must be the stem of the file."""
        part = super().from_mapping(data, file=file)
        if file is not None and normalise(part.name) != normalise(Path(file).stem):
            raise SpecError(f"must equal the file name, '{Path(file).stem}'", file=file, field="name", value=part.name)
        return part

    @field_validator("architecture")
    @classmethod
    def _known_class(cls, name: str) -> str:
        known = architectures().classes
        if name not in known:
            raise refusal(SpecError(f"is not a class of parts; known are {', '.join(known)}", value=name))
        return name

    @field_validator("fallback")
    @classmethod
    def _known_types(cls, table: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for dtype in (*table, *(one for chain in table.values() for one in chain)):
            if dtype not in DTYPES:
                raise refusal(SpecError(f"is not a number type; known are {', '.join(DTYPES)}", value=dtype))
        return table

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for check in (_check_memory, _check_order, _check_ridge):
            check(self)
        return self

    @property
    def native_types(self) -> tuple[str, ...]:
        """What the matrix units take, from the part or else from its class."""
        return self.native if self.native is not None else architectures().classes[self.architecture].native

    def computed_in(self, dtype: str) -> str:
        """The number type in which a matrix product of operands stored in `dtype` runs on this part.

        The first type of the fallback chain that has a peak here. int4 is stored only: engines widen it before the
        product, even where the part has an int4 rate. Raises Unsupported where no type of the chain has a peak.

        >>> Accelerator.find("a100").computed_in("fp8"), Accelerator.find("b200").computed_in("nvfp4")
        ('bf16', 'fp4')
        """
        if dtype in self._computed:
            return self._computed[dtype]
        if dtype not in DTYPES:
            raise Unsupported(f"'{shown(dtype)}' is not a number type known here; known are {', '.join(DTYPES)}")
        own = self.fallback.get(dtype)
        chain = own if own is not None else architectures().chain(self.architecture, dtype)
        found = next((candidate for candidate in chain if self._rate(candidate) is not None), None)
        if found is None:
            raise Unsupported(f"{self.title}: no peak is known for {dtype}, nor for what it falls back to ({', '.join(chain)})")
        self._computed[dtype] = found
        return found

    def _rate(self, dtype: str) -> Quantity | None:
        rate: Quantity | None = getattr(self.peak, dtype, None)
        return rate if rate is not None or dtype != "fp32" else self.vector

    def peak_quantity(self, dtype: str, instead: str | None = None) -> Quantity:
        """The dense peak at which operands stored in `dtype` are multiplied here, with its source; the rate `instead` where it is stated.

        >>> [str(Accelerator.find("rtx-4090").peak_quantity("fp16", rate)) for rate in (None, "fp16_fp16acc")]
        ['165.2 TFLOP/s', '330.3 TFLOP/s']
        """
        own: Quantity | None = getattr(self.peak, instead, None) if instead else None
        rate = own if own is not None else self._rate(self.computed_in(dtype))
        assert rate is not None
        return rate

    def peak_flops_per_s(self, dtype: str) -> float:
        """The dense peak at which operands stored in `dtype` are multiplied here; a multiply-add is 2 FLOP.

        >>> Accelerator.find("h100").peak_flops_per_s("fp8")
        1978900000000000.0
        """
        return self.peak_quantity(dtype).value

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """The memory bandwidth of the sheet; raises Unsupported where none is published."""
        if self.memory.bandwidth is None:
            raise Unsupported(f"{self.title}: no memory bandwidth is published")
        return self.memory.bandwidth.value

    def ridge(self, dtype: str) -> float:
        """The intensity in FLOP/B above which a product in `dtype` is bound by compute: peak over memory bandwidth.

        >>> round(Accelerator.find("a100").ridge("bf16"), 1)
        153.0
        """
        return self.peak_flops_per_s(dtype) / self.bandwidth_bytes_per_s

    def with_memory(self, text: str) -> Self:
        """The same part with so much usable memory, for parts that take what is installed, such as CPUs.

        >>> Accelerator.find("h100").with_memory("94 GiB").usable_bytes / 1024**3
        94.0
        """
        try:
            given = quantity({"value": text, "kind": "assumed", "note": "as given"}, "B")
        except SpecError as e:
            raise SpecError(e.rule, field="memory", value=e.value) from None
        return self.model_copy(update={"memory": self.memory.model_copy(update={"usable": given})})

    @property
    def usable(self) -> Quantity:
        """The memory that the driver offers; where it is not known, the capacity, labelled `assumed`."""
        if self.memory.usable is not None:
            return self.memory.usable
        if self.memory.capacity is None:
            raise Unsupported(f"{self.title}: no memory size is known, since it takes what is installed; state it (--memory 512GB)")
        note = "the capacity; what the driver leaves of it is not known"
        return self.memory.capacity.model_copy(update={"kind": "assumed", "note": note})

    @property
    def usable_bytes(self) -> float:
        """The bytes that the driver offers, see `usable`.

        >>> Accelerator.find("h100").usable_bytes / 1024**2
        81559.0
        """
        return self.usable.value

    @property
    def is_cpu(self) -> bool:
        """Whether this is a host's processor."""
        return self.architecture.startswith("cpu")

    @property
    def domain(self) -> int:
        """The most devices that the scale-up link joins; 1 where there is none."""
        return self.link.domain if self.link and self.link.domain else 1


def _check_memory(part: Accelerator) -> None:
    usable, capacity = part.memory.usable, part.memory.capacity
    if usable and capacity and usable.value > capacity.value:
        raise refusal(SpecError(f"is above the capacity of {capacity}", field="memory.usable", value=str(usable)))


def _check_order(part: Accelerator) -> None:
    """Narrower floats are never slower: fp8 >= bf16 >= fp32 on the vector units."""
    rates = [("fp8", part.peak.fp8), ("bf16", part.peak.bf16), ("fp32", part.vector)]
    known = [(name, rate) for name, rate in rates if rate is not None]
    for (narrow, fast), (wide, slow) in zip(known, known[1:], strict=False):
        if fast.value < slow.value:
            raise refusal(SpecError(f"is below the {wide} rate of {slow}; one of them is wrong", field=f"peak.{narrow}", value=str(fast)))


def _check_ridge(part: Accelerator) -> None:
    """A unit slip moves a ridge point by a factor of a thousand, so that it leaves every plausible range."""
    bandwidth = part.memory.bandwidth
    rates = [(f"peak.{name}", rate) for name, rate in part.peak if rate is not None]
    low, high = PLAUSIBLE_RIDGE
    for field, rate in rates if bandwidth else ():
        ridge = rate.value / bandwidth.value if bandwidth else low
        if not low <= ridge <= high:
            rule = f"with {bandwidth} of memory bandwidth gives a ridge of {ridge:.3g} FLOP/B, outside {low:g} to {high:g}; check the units"
            raise refusal(SpecError(rule, field=field, value=str(rate)))


@dataclass(frozen=True, slots=True)
class Price:
    """What one device costs: per hour from a cloud, or once from a list. All prices are indicative and dated."""

    gpu: str
    cloud: str
    instance: str
    gpus: int
    usd_per_h: float | None
    list_price_usd: float | None
    price_type: str
    date: str
    source: str
    confidence: str
    note: str


def prices(*, gpu: str | None = None, environ: Mapping[str, str] | None = None) -> Iterator[Price]:
    """The rows of `hardware/prices.csv`, of one catalog name or of all; `usd_per_h` is per device.

    >>> min(row.usd_per_h for row in prices(gpu="h100-sxm5-80gb") if row.usd_per_h)
    1.99
    """
    path = data_file("hardware", "prices.csv", environ)
    for number, row in enumerate(csv.DictReader(io.StringIO(read_text(path))), start=2):
        if gpu is None or row.get("gpu") == gpu:
            yield _price(row, path, number)


def _price(row: dict[str, str], path: Path, line: int) -> Price:
    try:
        return Price(
            gpu=row["gpu"],
            cloud=row["cloud"],
            instance=row["instance"],
            gpus=int(row["gpus"]),
            usd_per_h=_usd(row["usd_per_gpu_h"]),
            list_price_usd=_usd(row["list_price_usd"]),
            price_type=row["price_type"],
            date=row["date"],
            source=row["source"],
            confidence=row["confidence"],
            note=row["note"],
        )
    except KeyError as e:
        raise SpecError(f"has no column '{e.args[0]}'", file=path) from None
    except (TypeError, ValueError):
        raise SpecError("holds a number that cannot be read", file=path, field=f"line {line}") from None


def _usd(text: str) -> float | None:
    return float(text) if text else None
