"""Several estimates side by side. Knows no equation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from inferplan.deployment import Estimate, sustained_usd_per_million_tokens, usd_per_million_tokens
from inferplan.report.estimates import value
from inferplan.report.screen import table
from inferplan.report.words import requests, with_band
from inferplan.units import show, significant

if TYPE_CHECKING:
    from rich.console import Console


def show_comparison(found: list[Estimate], out: Console) -> None:
    """One row per estimate, what they share above."""
    load = found[0].load
    shared = f", {found[0].gpus} devices each" if found[0].gpus > 1 and len({e.gpus for e in found}) == 1 else ""
    out.print(f"{load.input_tokens:,} tokens in, {load.output_tokens:,} out, batch {load.batch:,}{shared}", style="bold")
    out.print(comparison_table(found))
    if any(e.tpot_band_s for e in found):
        out.print("In brackets: where four of five measurements are expected (80 % band), in the unit of the time.")
    out_of_all = with_prompts(found)
    if out_of_all:
        out.print(out_of_all)
    for e in found:
        if not e.fits:
            room = e.capacity.reason() or f"room for {requests(e.max_sequences)}"
            out.print(f"{e.model.name} on {e.hardware.name} in {e.precision.name} does not fit: {room}.")


def with_prompts(found: list[Estimate]) -> str:
    """What tokens cost where the prompts' share is counted, cheapest first, of those that fit; empty where fewer than two have a price."""
    costs = [(cost, _titled(e, found)) for e in found if e.fits and (cost := sustained_usd_per_million_tokens(e)) is not None]
    if len(costs) < 2:
        return ""
    told = ", ".join(f"{name} {cost:,.2f}" for cost, name in sorted(costs))
    return f"tokens/s and USD/Mtok are of decoding alone. USD per million output tokens with the prompts in it, cheapest first: {told}."


def _titled(e: Estimate, among: list[Estimate]) -> str:
    """An estimate by what tells it from the others."""
    kept = [k for k, of in NAMES.items() if len({of(x) for x in among}) > 1] or ["model"]
    return " ".join(NAMES[k](e) for k in kept)


NAMES: dict[str, Callable[[Estimate], str]] = {
    "model": lambda e: e.model.name, "gpu": lambda e: e.hardware.name, "devices": lambda e: f"{e.gpus:,}",
    "precision": lambda e: e.precision.name,
}  # fmt: skip
"""What tells estimates apart, under the heads of the table."""


def comparison_table(found: list[Estimate]) -> Any:
    """The figures that a choice hangs on; columns that are the same everywhere are left out, rates of what does not fit are blank."""
    names = {k: [of(e) for e in found] for k, of in NAMES.items()}
    kept = [k for k, v in names.items() if len(set(v)) > 1] or ["model"]
    rows = []
    for i, e in enumerate(found):
        rows.append((*(names[k][i] for k in kept), *_figures(e)))
    head = (*kept, "weights", "room for", "TTFT", "TPOT", "floor", "tokens/s", "USD/Mtok")
    return table(head, rows, right=range(len(kept), len(head)))


def _figures(e: Estimate) -> tuple[str, ...]:
    usd = usd_per_million_tokens(e, e.output_tokens_per_s)
    return (
        show(value(e.capacity.weight_bytes_per_gpu), "B", binary=True),
        f"{e.max_sequences:,.0f}" if e.fits else "no",
        with_band(e.ttft_s, e.ttft_band_s),
        with_band(e.tpot_s, e.tpot_band_s),
        show(e.floor_tpot_s, "s"),
        significant(e.output_tokens_per_s) if e.fits else "",
        "" if usd is None or not e.fits else f"{value(usd):,.2f}",
    )
