"""An accelerator on a screen and as a record: every number with its source, kind and confidence, and the ridge points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inferplan.errors import Unsupported
from inferplan.report.screen import table
from inferplan.report.words import heading
from inferplan.specs.hardware import Accelerator, Price, prices
from inferplan.specs.quantity import Quantity
from inferplan.units import significant

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = "inferplan/hardware/1"
ASKED = ("fp32", "bf16", "fp16", "fp8", "int8", "int4", "mxfp4", "nvfp4")


def record(part: Accelerator) -> dict[str, Any]:
    """The part's numbers in base units, each with its provenance, and what follows from them."""
    numbers = {
        field: {"value": q.value, "unit": q.unit, "source": q.source, "kind": q.kind, "confidence": q.confidence, "note": q.note}
        for field, q in part.numbers().items()
    }
    return {
        "schema": SCHEMA,
        "name": part.name,
        "title": part.title,
        "vendor": part.vendor,
        "family": part.family,
        "architecture": part.architecture,
        "aliases": list(part.aliases),
        "numbers": numbers,
        "computed_in": computed(part),
        "ridge": ridges(part),
        "domain": part.domain,
        "sources": {k: s.model_dump() for k, s in part.sources.items()},
        "notes": list(part.notes),
    }


def computed(part: Accelerator) -> dict[str, str | None]:
    """For each number type, the one this part multiplies it in; None where no rate is known."""
    found: dict[str, str | None] = {}
    for dtype in ASKED:
        try:
            found[dtype] = part.computed_in(dtype)
        except Unsupported:
            found[dtype] = None
    return found


def ridges(part: Accelerator) -> dict[str, float]:
    """Ridge points of the types this part has a rate for, FLOP/B."""
    if part.memory.bandwidth is None:
        return {}
    return {dtype: part.ridge(dtype) for dtype, into in computed(part).items() if into is not None}


def show_hardware(part: Accelerator, out: Console, *, asked: str) -> None:
    """The whole screen."""
    out.print(heading(part.title, asked, part.name), style="bold")
    about = (part.vendor, part.family, part.form, part.year, part.status, f"class {part.architecture}")
    out.print(", ".join(str(a) for a in about if a))
    out.print()
    out.print(numbers_table(part))
    out.print()
    out.print(ridge_table(part))
    priced = list(prices(gpu=part.name))
    if priced:
        out.print()
        out.print(price_table(priced))
    out.print()
    for key, s in part.sources.items():
        out.print(f"Source {key}: {s.title}" + (f" ({s.url})" if s.url else "") + f", {s.kind}" + (f"; {s.note}" if s.note else ""))
    for note in part.notes:
        out.print(f"Note: {note}")
    if part.aliases:
        out.print("Also called: " + ", ".join(part.aliases))


def numbers_table(part: Accelerator) -> Any:
    """Each number with where it comes from; low confidence is marked."""
    rows = [
        (field, _number(field, q), q.source or "", q.kind, ("LOW" if q.confidence == "low" else q.confidence) or "", q.note or "")
        for field, q in part.numbers().items()
    ]
    return table(("Number", "value", "source", "kind", "confidence", "note"), rows, right=(1,))


def _number(field: str, q: Quantity) -> str:
    """A value as text; integer rates count operations that are not floating-point ones."""
    return str(q).replace("FLOP/s", "OP/s") if field.startswith("peak.int") else str(q)


def ridge_table(part: Accelerator) -> Any:
    """What each stored type is computed in, and the intensity at which compute binds."""
    ridge = ridges(part)
    rows = [(dtype, into or "no rate known", significant(ridge[dtype]) if dtype in ridge else "") for dtype, into in computed(part).items()]
    return table(("Stored as", "computed in", "ridge, FLOP/B"), rows, right=(2,))


def price_table(rows: list[Price]) -> Any:
    """Dated, indicative prices of one device."""
    cells = [(p.cloud, p.instance, _price(p), p.price_type, p.date, p.confidence) for p in rows]
    return table(("Price from", "instance", "per device", "type", "date", "confidence"), list(dict.fromkeys(cells)), right=(2,))


def _price(p: Price) -> str:
    return f"{p.usd_per_h:.2f} USD/h" if p.usd_per_h is not None else f"{p.list_price_usd:,.0f} USD" if p.list_price_usd is not None else ""
