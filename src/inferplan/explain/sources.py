"""Leaves and where they come from: a spec's number, an option, a shape, a calibration, an engine's file. Knows no equation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from inferplan.explain.node import Node, leaf
from inferplan.ops import Numeric
from inferplan.roofline.efficiency import Efficiency
from inferplan.specs.engine import Engine
from inferplan.specs.hardware import Accelerator, Price
from inferplan.specs.model import Model
from inferplan.specs.precision import Layout
from inferplan.specs.quantity import Quantity, Source


def given(label: str, value: Any, unit: str = "", *, option: str = "") -> Node:
    """An option of the question."""
    return leaf(label, value, unit, f"given: {option or '--' + label.replace('_', '-')}")


def counted(label: str, value: Any, model: Model, unit: str = "", *, what: str = "shapes") -> Node:
    """Something counted from the model's layers."""
    return leaf(label, value, unit, f"counted: {what} of {model.title}")


def stated(label: str, number: Quantity, sources: Mapping[str, Source], *, owner: str) -> Node:
    """A number of a spec file, with its source's title, kind and confidence."""
    return leaf(label, number.value, number.unit, provenance(number, sources, owner))


def provenance(number: Quantity, sources: Mapping[str, Source], owner: str) -> str:
    """The source of a number in words."""
    listed = sources.get(number.source or "")
    trust = ", ".join(x for x in (number.kind, f"{number.confidence} confidence" if number.confidence else "") if x)
    return f"{owner}: {listed.title if listed else 'no document'}" + (f" ({trust})" if trust else "") + _note(number.note)


def _note(note: str | None) -> str:
    return f"; {note}" if note else ""


def part_number(label: str, number: Quantity, part: Accelerator) -> Node:
    """A number of the accelerator's file."""
    return stated(label, number, part.sources, owner=part.title)


def format_number(label: str, value: float, unit: str, layout: Layout) -> Node:
    """A number of a number format's file."""
    source: Source | None = getattr(layout, "source", None)
    name = getattr(layout, "name", "layout")
    return leaf(label, value, unit, f"format {name}: {source.title} ({source.kind})" if source else f"format {name}: its layout")


def fitted(label: str, value: float, unit: str, eff: Efficiency, basis: str, origin: str, note: str | None = None) -> Node:
    """A number of the calibration."""
    return leaf(label, value, unit, f"calibration {eff.name}: {basis} ({origin})" + _note(note))


def engine_added(label: str, eff: Efficiency, engine: str, architecture: str | None = None) -> Node:
    """Seconds that an engine adds, by their name in its overhead on a class of parts."""
    own = eff.overhead(engine, architecture)
    return fitted(label, getattr(own, label), "s", eff, own.basis, f"overhead of {engine}", own.note)


def engine_number(
    label: str, engine: Engine, setting: str, unit: str, hardware: Accelerator | None = None, *, default: float | None = None,
    ranks: Numeric = 1,
) -> Node:  # fmt: skip
    """A number of an engine's release, with the source of the rule that gives it; the default where no rule holds."""
    chosen = None
    for rule in engine.settings.get(setting, ()):
        if rule.holds(engine.version or engine.newest, hardware) and np.all(np.asarray(ranks) >= rule.ranks_from):
            chosen = rule
    name = f"engine {engine.title} {engine.version}"
    if chosen is None:
        assert default is not None, setting
        return leaf(label, default, unit, f"{name}: nothing stated on {setting.replace('_', ' ')}, taken as {default:g}")
    return leaf(label, chosen.number.value, unit, provenance(chosen.number, engine.sources, name))


def price_per_h(price: Price) -> Node:
    """A listed price of one device."""
    assert price.usd_per_h is not None
    where = f"price list: {price.cloud} {price.instance}, {price.price_type}, {price.date}, {price.confidence} confidence, {price.source}"
    return leaf("usd_per_h", price.usd_per_h, "USD/h", where)
