"""A serving engine as data: its defaults and memory constants by version, memory size, part and split. Knows no model and no formula.

A number or a choice is a list of rules; of those that hold, the last one counts. Every rule names its source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator

from inferplan import units
from inferplan.errors import SpecError, Unsupported, shown
from inferplan.specs.base import Record
from inferplan.specs.catalog import find, normalise
from inferplan.specs.hardware import Accelerator
from inferplan.specs.quantity import Quantity, Sourced, quantity, refusal

Numeric = float | NDArray[Any]
Policy = Literal["fraction-of-total", "static-fraction", "fraction-of-free", "rest", "cells", "ideal"]
SLOTTED: tuple[Policy, ...] = ("cells", "ideal")  # under these the number of slots is the user's choice
_LOOSE = Field(strict=False)
_RELEASE = re.compile(r"(?<![\d.-])\d{1,3}(?:\.\d+)+|\A\d{1,3}\Z")
_MONTH = re.compile(r"(20\d\d)(?:[-_. ]?([01]\d))?")
_UNTAGGED = re.compile(r"(?<![\d.])0\.1\.dev\d+")


def version_key(text: str) -> tuple[int, ...]:
    """A release number as something that compares: its leading integers.

    >>> version_key("0.6.4.post1"), version_key("v0.11.0rc2") < version_key("0.11.1")
    ((0, 6, 4), True)
    """
    found = _RELEASE.search(text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


class Rule(Record):
    """When something holds: from one release until before another, for parts with so much memory, for so many ranks.

    since, until
        releases; the second is the first one that is different.
    memory_from, memory_below
        of one device, as text with a unit.
    parts, not_parts
        beginnings of part names, such as `a100`; classes count too, such as `nvidia-hopper`.
    ranks_from
        devices that exchange within a layer, at least.
    """

    since: str = "0"
    until: str | None = None
    memory_from: str | None = None
    memory_below: str | None = None
    parts: Annotated[tuple[str, ...], _LOOSE] = ()
    not_parts: Annotated[tuple[str, ...], _LOOSE] = ()
    ranks_from: int = 1

    @model_validator(mode="after")
    def _readable(self) -> Self:
        for field in ("since", "until"):
            text = getattr(self, field)
            if text is not None and not re.fullmatch(r"\d+(\.\d+)*", text):
                raise refusal(SpecError("must be a release number, like '0.11'", field=field, value=text))
        for text in (self.memory_from, self.memory_below):
            if text is not None:
                units.parse(text, "B")
        return self

    def holds(self, version: str, hardware: Accelerator | None) -> bool:
        """Whether the rule is for this release and part; without a part, rules that ask for one do not hold."""
        key = version_key(version)
        if key < version_key(self.since) or (self.until is not None and key >= version_key(self.until)):
            return False
        if hardware is None:
            return not (self.memory_from or self.memory_below or self.parts)
        return self._fits(hardware)

    def _fits(self, hardware: Accelerator) -> bool:
        names = (normalise(hardware.name), hardware.architecture)
        size = hardware.usable_bytes
        if any(name.startswith(part) for name in names for part in self.not_parts):
            return False
        if self.parts and not any(name.startswith(part) for name in names for part in self.parts):
            return False
        above = self.memory_from is None or size >= units.parse(self.memory_from, "B")
        return above and (self.memory_below is None or size < units.parse(self.memory_below, "B"))


_CONDITIONS = frozenset(Rule.model_fields)


class NumberRule(Rule):
    """A number that holds under the rule's conditions."""

    number: Quantity


class ChoiceRule(Rule):
    """A word that holds under the rule's conditions, with where that is known from."""

    choice: str
    source: str | None = None
    kind: str | None = None
    note: str | None = None


def _number_rule(raw: Any) -> Any:
    """A rule's mapping with its number apart: `{since: ..., value: 0.9, source: ...}`. Texts with a unit of bytes are bytes."""
    if not isinstance(raw, dict):
        return raw
    rest = {k: v for k, v in raw.items() if k not in _CONDITIONS}
    unit = "B" if isinstance(rest.get("value"), str) and units.bare(rest["value"]) == "B" else ""
    try:
        return {**{k: v for k, v in raw.items() if k in _CONDITIONS}, "number": quantity(rest, unit)}
    except SpecError as e:
        raise refusal(e) from None


NumberRules = Annotated[tuple[Annotated[NumberRule, BeforeValidator(_number_rule)], ...], _LOOSE]
ChoiceRules = Annotated[tuple[ChoiceRule, ...], _LOOSE]


class Engine(Sourced):
    """A serving engine, bound to one release.

    policy
        how it divides memory: a fraction of the total (vLLM), weights and cache as a static fraction (SGLang), a fraction of
        what is free once the engine is loaded (TensorRT-LLM), all the rest (TGI), cells for a stated context (llama.cpp).
    newest
        the release that an unstated version means; `calendar` tells which one was current in a month, and `cores` which one's
        rules hold for a release that was started with another core than its default (`0.8.3 V0`).
    """

    name: str
    title: str
    aliases: Annotated[tuple[str, ...], _LOOSE] = ()
    policy: Policy
    newest: str
    version: str = ""
    calendar: dict[str, str] = Field(default_factory=dict)
    cores: dict[str, str] = Field(default_factory=dict)
    settings: dict[str, NumberRules] = Field(default_factory=dict)
    choices: dict[str, ChoiceRules] = Field(default_factory=dict)
    notes: Annotated[tuple[str, ...], _LOOSE] = ()

    @classmethod
    def find(cls, name: str, version: str | None = None, *, environ: Mapping[str, str] | None = None) -> Engine:
        """The engine of a name or alias, at a release, else at the newest one known.

        >>> Engine.find("vllm", "0.11.0").number("utilization"), Engine.find("vllm").number("utilization")
        (0.9, 0.92)
        """
        return _read(find("engines", name, environ=environ)).at(version)

    def at(self, version: str | None) -> Engine:
        """The same engine at another release, a month such as `2025-10`, a year (its middle), or a text that holds either."""
        return self.model_copy(update={"version": self._release(version or "")})

    def _release(self, text: str) -> str:
        release = self._dated(text)
        named = re.search(r"\bV[01]\b", text)
        if named is None or named[0] not in self.cores or self._core(release) == named[0].lower():
            return release
        return self.cores[named[0]]

    def _core(self, release: str) -> str:
        rules = [rule for rule in self.choices.get("core", ()) if rule.holds(release, None)]
        return rules[-1].choice if rules else ""

    def _dated(self, text: str) -> str:
        if _UNTAGGED.search(text):
            return self.newest
        if found := _RELEASE.search(text):
            return found[0]
        if found := _MONTH.search(text):
            month = f"{found[1]}-{found[2] or '06'}"
            return next((self.calendar[m] for m in sorted(self.calendar, reverse=True) if m <= month), self.newest)
        return self.newest

    def number(self, name: str, hardware: Accelerator | None = None, *, ranks: Numeric = 1) -> Numeric:
        """A number of this release on a part; broadcasts over `ranks`. Raises Unsupported where no rule holds."""
        found: Numeric | None = None
        for rule in self.settings.get(name, ()):
            if rule.holds(self.version or self.newest, hardware):
                value = rule.number.value
                found = value if found is None or rule.ranks_from <= 1 else np.where(np.asarray(ranks) >= rule.ranks_from, value, found)
        if found is None:
            raise Unsupported(f"{self.title} {self.version}: its {name.replace('_', ' ')} is not known")
        return float(found) if np.ndim(found) == 0 else found

    def number_or(self, name: str, default: float, hardware: Accelerator | None = None, *, ranks: Numeric = 1) -> Numeric:
        """The same, or a default where no rule holds."""
        try:
            return self.number(name, hardware, ranks=ranks)
        except Unsupported:
            return default

    def choice(self, name: str, hardware: Accelerator | None = None) -> str:
        """A word of this release: which allocator, whether graphs count, what a printed figure means; '' where none is stated."""
        rules = [rule for rule in self.choices.get(name, ()) if rule.holds(self.version or self.newest, hardware)]
        return rules[-1].choice if rules else ""

    @property
    def timed_as(self) -> str:
        """The name under which calibrations know this release: the engine's, with an older core where one is stated.

        >>> Engine.find("vllm", "0.5.3").timed_as, Engine.find("vllm", "0.11.0").timed_as
        ('vllm-v0', 'vllm')
        """
        return self.choice("timed_as") or self.name

    def numbers(self) -> dict[str, Quantity]:
        """Every number by setting and place in its list."""
        return {f"{name}[{i}]": rule.number for name, rules in self.settings.items() for i, rule in enumerate(rules)}


@cache
def _read(path: Path) -> Engine:
    engine = Engine.load(path)
    if normalise(engine.name) != normalise(path.stem):
        raise SpecError(f"must equal the file name, '{path.stem}'", file=path, field="name", value=shown(engine.name))
    return engine
