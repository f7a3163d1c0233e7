"""`inferplan list`: what the catalog holds."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

app = typer.Typer(add_completion=False)


class Kind(StrEnum):
    """What can be listed."""

    hardware = "hardware"
    models = "models"
    formats = "formats"
    engines = "engines"


@app.command(name="list")
def listed(
    kind: Annotated[Kind, typer.Argument(help="hardware, models, formats or engines")],
    pattern: Annotated[
        str | None, typer.Argument(metavar="[FILTER]", help="Keep what contains this text in its name, title, group or aliases.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    csv: Annotated[str | None, typer.Option("--csv", help="Write CSV to FILE.")] = None,
) -> int:
    """List what the catalog holds."""
    from inferplan.report import files
    from inferplan.report.screen import console, table

    rows = _formats() if kind is Kind.formats else _entries(kind.value)
    kept = [row for row in rows if pattern is None or pattern.lower() in " ".join(str(v) for v in row.values()).lower()]
    columns = ("name", "title", "group", "aliases")
    if csv:
        files.write_text(csv, files.csv_text(kept, columns))
    if as_json:
        typer.echo(files.json_text(kept))
    elif not csv:
        out = console()
        if kept:
            out.print(table(columns, [[row[c] for c in columns] for row in kept]))
        console(error=True).print(f"{len(kept)} of {len(rows)} {kind.value}")
    return 0


def _entries(kind: str) -> list[dict[str, Any]]:
    from inferplan.specs.catalog import entries

    return [{"name": e.name, "title": e.title, "group": e.group, "aliases": ", ".join(e.aliases)} for e in entries(kind)]


def _formats() -> list[dict[str, Any]]:
    """Precisions first, then the formats for weights and for caches."""
    from inferplan.specs.precision import library, named_format

    held = library()
    rows = [
        {"name": p.name, "title": p.title or p.name, "group": "precision", "aliases": ", ".join(p.aliases)}
        for p in {p.name: p for p in held.presets.values()}.values()
    ]
    rows += [
        {"name": m.name, "title": f"GGUF {m.name.upper()}", "group": "GGUF mix", "aliases": ""}
        for m in {m.name: m for m in held.mixes.values()}.values()
    ]
    for use, group in (("weights", "weights"), ("kv", "KV cache")):
        found = {f.name: f for f in (named_format(name, use) for name in held.names(use))}.values()  # type: ignore[arg-type]
        rows += [{"name": f.name, "title": f.title, "group": f"{group}: {f.family}", "aliases": ", ".join(f.aliases)} for f in found]
    return rows
