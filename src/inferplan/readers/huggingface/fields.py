"""Checked access to the fields of a published configuration, by any of their spellings, with the defaults of its class.

Knows how a field is read and refused, not what an architecture does with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from inferplan.errors import SpecError

LARGEST = 10**8
NONE: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers"), (0,)),
    **dict.fromkeys(("shared_intermediate_size", "moe_num_shared_experts", "type_vocab_size", "pre_seq_len", "sliding_window"), (0,)),
    **dict.fromkeys(("position_buckets", "max_relative_positions"), (-1, 0)),
}
_MISSING: Any = object()


class Fields:
    """One mapping of a configuration file. `at` is where it stands in the file, for messages.

    A value that is absent or null is taken from `defaults` (what the class of that model type assumes), then from the `default` of
    the call; where neither exists it is a SpecError. `essential` fields never come from the class
    unless the mapping is nested, where files leave out what equals the default: a flat file that lacks them says too little.
    """

    def __init__(self, data: dict[str, Any], *, file: Any = None, at: str = "", defaults: dict[str, Any] | None = None) -> None:
        self.data, self.file, self.at, self.defaults = data, file, at, defaults or {}
        self.nested = False

    def __contains__(self, name: str) -> bool:
        """Whether the file itself states a value."""
        return self.data.get(name) is not None

    def refuse(self, name: str, rule: str, value: Any = None) -> SpecError:
        """The error for a field of this mapping."""
        return SpecError(rule, file=self.file, field=f"{self.at}{name}", value=value)

    def raw(self, *names: str, default: Any = _MISSING, essential: bool = False) -> Any:
        """The first stated value among spellings, then the class's, then `default`."""
        for name in names:
            if self.data.get(name) is not None:
                return self.data[name]
        if self.nested or not essential:
            for name in names:
                if self.defaults.get(name) is not None:
                    return self.defaults[name]
        if default is not _MISSING:
            return default
        raise self.refuse(names[0], "is required and missing")

    def stated(self, *names: str) -> str:
        """The spelling that the file uses."""
        return next((n for n in names if self.data.get(n) is not None), names[0])

    def count(self, *names: str, default: Any = _MISSING, essential: bool = False, least: int = 1) -> int:
        """A whole number from `least` to a hundred million."""
        value = self.raw(*names, default=default, essential=essential)
        if value is default and default is not _MISSING:
            return value  # type: ignore[no-any-return]
        return self.checked(value, self.stated(*names), least)

    def checked(self, value: Any, name: str, least: int = 1) -> int:
        """The value, once it is a whole number from `least` to a hundred million."""
        if isinstance(value, float) and value.is_integer() and abs(value) <= LARGEST:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refuse(name, "must be a whole number", value)
        if not least <= value <= LARGEST:
            raise self.refuse(name, f"must lie between {least} and {LARGEST:,}", value)
        return value

    def maybe(self, *names: str) -> int | None:
        """A whole number of at least 1, or None where it is absent, null or a value by which such a field says "none"."""
        value, name = self.raw(*names, default=None), self.stated(*names)
        if value is None or self._says_none(name, value):
            return None
        return self.checked(value, name)

    def _says_none(self, name: str, value: Any) -> bool:
        """Whether a value below 1 is one that published files or the class itself use for "none"."""
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value >= 1:
            return False
        return value in NONE.get(name, ()) or value == self.defaults.get(name)

    def stated_or_null(self, name: str) -> int | None:
        """A whole number where a null that the file states means that there is none, whatever the class assumes."""
        return None if name in self.data and self.data[name] is None else self.maybe(name)

    def factor(self, name: str, *, most: float, default: Any = _MISSING) -> float:
        """A number above 0 and at most `most`, whole or not."""
        value = self.raw(name, default=default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
            raise self.refuse(name, f"must be a number above 0 and at most {most:g}", value)
        return float(value)

    def flag(self, *names: str, default: bool = False) -> bool:
        """True or false (0 and 1 are taken for them)."""
        value = self.raw(*names, default=default)
        if value in (0, 1):
            return bool(value)
        raise self.refuse(self.stated(*names), "must be true or false", value)

    def text(self, *names: str, default: Any = _MISSING) -> str:
        """A text."""
        value = self.raw(*names, default=default)
        if not isinstance(value, str):
            raise self.refuse(self.stated(*names), "must be text", value)
        return value

    def items(self, *names: str, default: Any = _MISSING) -> list[Any]:
        """A list."""
        value = self.raw(*names, default=default)
        if value is default and default is not _MISSING:
            return value  # type: ignore[no-any-return]
        if not isinstance(value, (list, tuple)) or len(value) > 100_000:
            raise self.refuse(self.stated(*names), "must be a list", value)
        return list(value)

    def indices(self, name: str, layers: int) -> set[int]:
        """A list of layer numbers, negative ones counted from the end."""
        found = [self.checked(i, name, -layers) for i in self.items(name, default=[])]
        return {i % layers for i in found if i < layers}

    def per_layer(self, name: str, layers: int) -> list[Any]:
        """A list with one value for each layer."""
        values = self.items(name)
        if len(values) < layers:
            raise self.refuse(name, f"has {len(values)} values for {layers} layers")
        return values[:layers]

    def sub(self, *names: str, defaults: dict[str, Any] | None = None) -> Fields:
        """A nested mapping; an absent one is empty, so that only class defaults speak."""
        value = self.data.get(self.stated(*names))
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.refuse(self.stated(*names), "must be a mapping", value)
        return Fields(value, file=self.file, at=f"{self.at}{self.stated(*names)}.", defaults=defaults)

    def one_of(self, name: str, allowed: Iterable[str], default: Any = _MISSING) -> str:
        """A text from a known set."""
        value = self.text(name, default=default)
        known = sorted(allowed)
        if value not in known:
            raise self.refuse(name, f"is not one of {', '.join(known)}", value)
        return value
