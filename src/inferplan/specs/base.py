"""The common ground of all spec files: frozen pydantic records, and pydantic's complaints as one SpecError line.

Knows no part, no model and no unit.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from inferplan.errors import SpecError, escaped
from inferplan.specs.document import load_yaml

_PYDANTIC = frozenset(dir(BaseModel)) - {"model_dump", "model_copy"}
LONGEST_LINE = 200  # characters of a title; screens are 160 wide at most


def _one_line(text: str) -> str:
    if not text.isprintable() or len(text) > LONGEST_LINE:
        raise ValueError(f"must be one line of at most {LONGEST_LINE} characters, none of which controls a terminal")
    return text


def as_line(text: str) -> str:
    r"""A text of a foreign file as it may stand in headings.

    >>> as_line("a\nb")
    'a\\nb'
    """
    return escaped(text)[:LONGEST_LINE]


Line = Annotated[str, AfterValidator(_one_line)]
"""A text that stands in headings."""


class Record(BaseModel):
    """A frozen record with no unknown keys and no silent coercion from text to number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True, defer_build=True)

    def __dir__(self) -> list[str]:
        """The fields and what follows from them, for completion: pydantic's own names are left out."""
        return sorted({name for name in super().__dir__() if not name.startswith("_")} - _PYDANTIC)


class Spec(Record):
    """A record that stands in a file of its own."""

    @classmethod
    def load(cls, path: Any) -> Self:
        """The spec in a YAML file; raises SpecError naming file, field, value and rule."""
        return cls.from_mapping(load_yaml(path), file=path)

    @classmethod
    def from_mapping(cls, data: dict[str, Any], *, file: Any = None) -> Self:
        """The spec in a mapping already read."""
        try:
            return cls.model_validate(data)
        except ValidationError as e:
            raise complaint(e, file) from None
        except SpecError as e:
            raise e.within(file) from None


_RULES = {
    "extra_forbidden": "is not a field that is known here",
    "missing": "is required and missing",
    "finite_number": "must be a finite number",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be text",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
}


def complaint(error: ValidationError, file: Any = None) -> SpecError:
    """The first thing pydantic found, as one line: file, dotted field, value, rule."""
    errors = error.errors(include_url=False)
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    field = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("function-", "tagged-union")))
    context = first.get("ctx", {})
    cause = context.get("error")
    if isinstance(cause, SpecError):
        return SpecError(cause.rule, file=file, field=".".join(p for p in (field, cause.field) if p), value=cause.value)
    rule = str(cause) if cause else _RULES.get(first["type"], first["msg"].replace("\n", " ").replace("Input should", "must"))
    value = None if first["type"] in ("missing", "extra_forbidden") else first.get("input")
    return SpecError(rule, file=file, field=field or None, value=value if not isinstance(value, (dict, list)) else None)
