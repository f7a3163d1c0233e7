"""A number with its unit and where it comes from. Knows units and sources, but no part, no model and no field by name.

Arithmetic never happens on a `Quantity`: code takes `.value`, a float in base units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from inferplan import units
from inferplan.errors import SpecError
from inferplan.specs.base import Record, Spec

Kind = Literal["vendor", "measured", "published", "derived", "fitted", "assumed"]
Confidence = Literal["high", "medium", "low"]

_EXAMPLES = {**units.EXAMPLES, "Hz": "1980 MHz", "": "0.82"}


def refusal(error: SpecError) -> PydanticCustomError:
    """A SpecError in the form in which a validator may raise it, so that the field's place is added to it."""
    return PydanticCustomError("spec", "{error}", {"error": error})


def _date(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class Source(Record):
    """Where numbers come from: a document, a log, a formula. `kind` says how far it can be trusted."""

    title: str
    url: str | None = Field(default=None, pattern=r"^https?://[^\s<>\"']+$")
    date: Annotated[str | None, BeforeValidator(_date)] = None
    kind: Kind
    note: str | None = None


class Quantity(Record):
    """A number in base units, with its provenance.

    `kind` and `confidence` are the number's own where it states them, else those of its source and its file.

    >>> quantity({"value": "3.35 TB/s", "source": "ds"}, "B/s").value
    3350000000000.0
    """

    value: float
    unit: str
    source: str | None = None
    kind: Kind | None = None
    confidence: Confidence | None = None
    note: str | None = None

    def __str__(self) -> str:
        return units.exact(self.value, self.unit)


def quantity(raw: Any, unit: str) -> Quantity:
    """The quantity that a mapping `{value: 3.35 TB/s, source: key, note: ...}` states, in the base unit `unit`.

    Raises SpecError for a bare number, a missing or wrong unit, and for values that are not finite and above zero.

    >>> quantity({"value": "80 GiB", "kind": "assumed"}, "B").value / 1024**3
    80.0
    """
    if isinstance(raw, Quantity):
        if raw.unit != unit:
            raise SpecError(f"is in '{raw.unit}', where '{unit}' belongs")
        return raw
    if not isinstance(raw, Mapping) or "value" not in raw:
        shown = raw if isinstance(raw, (str, int, float)) else None
        raise SpecError(f"needs a value with its source, like {{value: {_EXAMPLES.get(unit, '1')}, source: ...}}", value=shown)
    value = _number(raw["value"], unit)
    if value <= 0:
        raise SpecError("must be above zero", value=raw["value"], field="value")
    return Quantity.model_validate({**raw, "value": value, "unit": unit})


def _number(raw: Any, unit: str) -> float:
    """A value in base units. A pure number (a count, a fraction) may be written without quotes."""
    text = repr(raw) if unit == "" and isinstance(raw, (int, float)) and not isinstance(raw, bool) else raw
    try:
        return units.parse(text, unit)
    except SpecError as e:
        raise SpecError(e.rule, value=e.value, field="value") from None


def _reader(unit: str) -> Callable[[Any], Quantity]:
    def read(raw: Any) -> Quantity:
        try:
            return quantity(raw, unit)
        except SpecError as e:
            raise refusal(e) from None

    return read


BytesQ = Annotated[Quantity, BeforeValidator(_reader("B"))]
BytesPerS = Annotated[Quantity, BeforeValidator(_reader("B/s"))]
FlopsPerS = Annotated[Quantity, BeforeValidator(_reader("FLOP/s"))]
Seconds = Annotated[Quantity, BeforeValidator(_reader("s"))]
Watts = Annotated[Quantity, BeforeValidator(_reader("W"))]
Hertz = Annotated[Quantity, BeforeValidator(_reader("Hz"))]
UsdPerH = Annotated[Quantity, BeforeValidator(_reader("USD/h"))]
Pure = Annotated[Quantity, BeforeValidator(_reader(""))]


class Sourced(Spec):
    """A spec whose numbers name the file's sources, and inherit kind and confidence from there."""

    sources: dict[str, Source] = Field(default_factory=dict)
    confidence: Confidence | None = None

    @model_validator(mode="before")
    @classmethod
    def _provenance(cls, data: Any) -> Any:
        return with_provenance(data) if isinstance(data, dict) else data

    def numbers(self) -> dict[str, Quantity]:
        """Every quantity of the spec by its dotted field, in the order of the file."""
        return dict(_quantities(self, ""))

    def doubts(self) -> dict[str, Quantity]:
        """The quantities a report should warn about: those of low confidence and those only assumed."""
        return {field: q for field, q in self.numbers().items() if q.confidence == "low" or q.kind == "assumed"}


def _quantities(item: Any, field: str) -> Iterator[tuple[str, Quantity]]:
    if isinstance(item, Quantity):
        yield field, item
        return
    members: Any = item if isinstance(item, Record) else item.items() if isinstance(item, dict) else ()
    for name, member in members:
        yield from _quantities(member, f"{field}.{name}" if field else str(name))


def with_provenance(data: dict[str, Any]) -> dict[str, Any]:
    """A spec's mapping in which every number has taken over the kind of its source and the confidence of its file.

    Raises (as a validator) for a number that names no source, or one that the file does not list.

    >>> file = {"sources": {"ds": {"kind": "vendor"}}, "power": {"value": "700 W", "source": "ds"}}
    >>> with_provenance(file)["power"]["kind"]
    'vendor'
    """
    sources = data.get("sources")
    listed = sources if isinstance(sources, dict) else {}

    def inherit(item: Any, field: str) -> Any:
        if isinstance(item, list):
            return [inherit(member, f"{field}[{i}]") for i, member in enumerate(item)]
        if not isinstance(item, dict):
            return item
        if "value" in item:
            return {**_origin(item, field, listed, data.get("confidence")), **item}
        return {key: inherit(member, f"{field}.{key}" if field else str(key)) for key, member in item.items()}

    return {key: item if key == "sources" else inherit(item, str(key)) for key, item in data.items()}


def _origin(number: dict[str, Any], field: str, listed: dict[str, Any], confidence: Any) -> dict[str, Any]:
    """The kind and confidence that a number takes over."""
    source = number.get("source")
    if source is None:
        if "kind" in number:
            return {"confidence": confidence}
        raise refusal(SpecError("names no source; add 'source: ...', or 'kind: assumed' for a guess", field=field))
    if not isinstance(source, str) or source not in listed:
        known = ", ".join(listed) or "none"
        raise refusal(SpecError(f"is not among the file's sources ({known})", field=f"{field}.source", value=source))
    origin = listed[source]
    return {"kind": origin.get("kind") if isinstance(origin, dict) else getattr(origin, "kind", None), "confidence": confidence}
