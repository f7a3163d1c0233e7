"""Fields of a benchmark's result, read with care: what is absent is None, what is broken is named. Knows no benchmark."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from inferplan.errors import SpecError

LARGEST = 1e18
Rows = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Fields:
    """A JSON object with the file and the place that it stands at."""

    own: Mapping[str, Any]
    file: Any
    place: str = ""

    @classmethod
    def of(cls, value: Any, file: Any, place: str = "") -> Self:
        """The fields of a value; raises SpecError where it is no object."""
        if not isinstance(value, Mapping):
            raise SpecError("must be a JSON object", file=file, field=place or None, value=value)
        return cls(value, file, place)

    def at(self, name: str) -> str:
        """A field's name with the place of its object."""
        return f"{self.place}, {name}" if self.place else name

    def under(self, *names: str) -> Self:
        """The object below some names, an empty one where any is absent or null."""
        found = self
        for name in names:
            value = found.own.get(name)
            found = type(self).of({} if value is None else value, self.file, found.at(name))
        return found

    def number(self, name: str) -> float | None:
        """A number from 0, None where absent, null or empty; numbers may stand as text.

        Raises SpecError for what is no number, infinite or negative.
        """
        value = self.own.get(name)
        if value is None or value == "":
            return None
        try:
            found = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            found = math.nan
        if not 0 <= found <= LARGEST:
            raise SpecError("must be a finite number from 0", file=self.file, field=self.at(name), value=value)
        return found

    def needed(self, name: str) -> float:
        """A number that must be there."""
        found = self.number(name)
        if found is None:
            raise SpecError("is missing", file=self.file, field=self.at(name))
        return found

    def rate(self, name: str) -> float | None:
        """A number in which infinity, as a word or a number, means that there is no limit, as absence does."""
        value = self.own.get(name)
        endless = value in ("inf", "Infinity") or (isinstance(value, float) and math.isinf(value) and value > 0)
        return None if endless else self.number(name)

    def text(self, *names: str) -> str | None:
        """The first of some fields that holds text or a number, or a list of one, as text."""
        for name in names:
            value = self.own.get(name)
            value = value[0] if isinstance(value, list) and len(value) == 1 else value
            if isinstance(value, (str, int, float)) and str(value).strip():
                return str(value).strip()
        return None

    def flag(self, name: str) -> bool:
        """Whether a field says yes."""
        return str(self.own.get(name, "")).lower() in ("true", "1", "yes")


def row_of(**cells: Any) -> dict[str, str]:
    """A row of a case file: numbers in full, what is None left out, whole numbers without a point where they count something."""
    return {name: _cell(name, value) for name, value in cells.items() if value is not None}


def rows_of(common: dict[str, str], times: dict[str, dict[str, float]], rates: dict[str, float | None]) -> Rows:
    """A row for each statistic that has a value; what the whole run yields stands with the means. Zeros were not measured.

    >>> rows_of({"model": "7b"}, {"mean": {"ttft_s": 0.0}, "p99": {"ttft_s": 0.5}}, {"requests_per_s": None})
    [{'model': '7b', 'statistic': 'p99', 'ttft_s': '0.5'}]
    """
    cells = {statistic: {**values, **(rates if statistic == "mean" else {})} for statistic, values in times.items()}
    some = {statistic: {q: v for q, v in values.items() if v} for statistic, values in cells.items()}
    return [{**common, "statistic": statistic, **row_of(**values)} for statistic, values in some.items() if values]


def _cell(name: str, value: Any) -> str:
    counts = not name.endswith("_s")
    return str(int(value)) if counts and isinstance(value, float) and value.is_integer() else str(value)
