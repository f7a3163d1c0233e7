"""A number format or a precision on a screen and as a record. Knows no model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inferplan.report.screen import table
from inferplan.report.words import heading
from inferplan.specs.precision import PARTS, Precision

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = "inferplan/precision/1"


def record(precision: Precision) -> dict[str, Any]:
    """What each part is kept in, with exact bits per element."""
    parts = {part: precision.format_of(part) for part in PARTS}
    return {
        "schema": SCHEMA,
        "name": precision.name,
        "title": precision.title,
        "kv": precision.kv.name,
        "mix": precision.mix,
        "parts": {
            p: {"format": f.name, "bits_per_element": f.bits_per_element, "computed_in": precision.compute_of(p)} for p, f in parts.items()
        },
    }


def show_precision(precision: Precision, out: Console, *, asked: str) -> None:
    """The whole screen."""
    out.print(heading(precision.title, asked, precision.name), style="bold")
    rows = []
    for part in PARTS:
        f = precision.format_of(part)
        rows.append((part, f.name, f"{f.bits_per_element:.6g}", precision.compute_of(part), f.source.title if f.source else ""))
    out.print(table(("Part", "format", "bits per element", "computed in", "source"), rows, right=(2,)))
    out.print()
    kv = precision.kv
    out.print(
        f"KV cache: {kv.name}, {kv.kv_bytes_per_token(1024, 1024, head_dim=128):,.0f} B per token for 8 KV heads of 128 (K and V)"
        if "heads" in kv.holds
        else f"KV cache: {kv.name}"
    )
    if precision.mix:
        out.print("A file mix: the type of a tensor depends on its role and layer; above stands that of most.")
