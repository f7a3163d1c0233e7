"""A model on a screen and as a record: counts, layers, caches, weights in common precisions. Knows no equation."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from inferplan.engine.cache_bytes import (
    entry_bytes,
    kv_bytes_per_token,
    kv_bytes_per_token_unbounded,
    state_bytes,
    state_bytes_per_sequence,
)
from inferplan.memory.weights import weight_bytes
from inferplan.report.screen import table
from inferplan.report.words import heading
from inferplan.specs.counts import Counts, counts
from inferplan.specs.mixers import Attention
from inferplan.specs.model import Model
from inferplan.specs.precision import Precision
from inferplan.units import show

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = "inferplan/model/1"
SHOWN = ("bf16", "fp8", "awq", "q4_k_m")


def record(model: Model) -> dict[str, Any]:
    """The model under the glossary's keys, in base units; caches at bf16."""
    c, bf16 = counts(model), Precision.named("bf16")
    return {
        "schema": SCHEMA,
        "name": model.name,
        "title": model.title,
        "family": model.family,
        "architecture": model.architecture,
        "params": c.total,
        "active_params": c.active,
        "active_read_params": c.active_read,
        "counts": _counts(c),
        "hidden": model.hidden,
        "vocab": model.vocab,
        "layers": len(model.order),
        "layer_order": model.layers,
        "context": model.context,
        "dtype": model.dtype,
        "kv_bytes_per_token": kv_bytes_per_token(model, bf16),
        "kv_bytes_per_token_unbounded": kv_bytes_per_token_unbounded(model, bf16),
        "state_bytes_per_sequence": state_bytes_per_sequence(model, bf16),
        "caches": [_cache(n, e, model) for n, e in model.cache()],
        "weight_bytes": {p: weight_bytes(model, Precision.named(p)) for p in SHOWN},
        "published": model.published.model_dump() if model.published else None,
        "sources": {k: s.model_dump() for k, s in model.sources.items()},
        "checkpoints": model.checkpoints,
        "note": model.note,
    }


def _counts(c: Counts) -> dict[str, Any]:
    found = asdict(c)
    return {**found, "per_layer": list(found["per_layer"])}


def _cache(layers: int, entry: Any, model: Model) -> dict[str, Any]:
    bf16 = Precision.named("bf16")
    return {
        "kind": entry.kind,
        "layers": layers,
        "bytes_per_entry": entry_bytes(entry, bf16),
        "tokens_per_entry": entry.every,
        "window": entry.window,
        "fixed_tokens": entry.fixed_tokens,
        "state_bytes": state_bytes(entry, bf16, model.dtype),
    }


def show_model(model: Model, out: Console, *, asked: str) -> None:
    """The whole screen."""
    c = counts(model)
    out.print(heading(model.title, asked, model.name), style="bold")
    out.print(facts_table(model, c))
    for found in (parts_table(c), layers_table(model), cache_table(model), weights_table(model, c)):
        out.print()
        out.print(found)
    out.print()
    for line in (*rule_of_thumb(model, c), *sources(model)):
        out.print(line)


def facts_table(model: Model, c: Counts) -> Any:
    """Totals and widths."""
    rows = [("parameters", f"{c.total:,}")]
    if c.experts:
        rows += [("active per token", f"{c.active:,}")]
    rows += [("read per decoded token", f"{c.active_read:,}")]
    if model.published:
        beyond = model.published.total - c.total
        rows += [
            (
                "published total",
                f"{model.published.total:,}"
                + (
                    f"  ({beyond:+,}: {model.published.note})"
                    if beyond and model.published.note
                    else f"  ({beyond:+,})"
                    if beyond
                    else "  (equal)"
                ),
            )
        ]
    if c.mtp:
        rows += [("multi-token prediction", f"{c.mtp:,} more" + (f", and {c.mtp_copies:,} copied" if c.mtp_copies else ""))]
    rows += [
        ("width, vocabulary", f"{model.hidden:,}, {model.vocab:,} ({model.head} head)"),
        ("layers", f"{len(model.order)}: {model.layers}"),
    ]
    rows += [("context", f"{model.context:,} tokens" if model.context else "not stated"), ("stored as", model.precision or model.dtype)]
    return table(("", ""), rows)


def parts_table(c: Counts) -> Any:
    """Parameters by what they are for."""
    names = {
        "embedding": c.embedding,
        "per-layer tables, positions": c.aux_embedding,
        "attention": c.attention,
        "recurrent": c.recurrent,
        "feed-forward": c.mlp,
        "router": c.router,
        "shared experts": c.shared_expert,
        "routed experts": c.experts,
        "norms": c.norm,
        "head": c.head + c.head_bias,
        "vision and audio": c.vision,
        "other": c.other,
    }
    rows = [(name, f"{n:,}", f"{100 * n / c.total:.2f} %") for name, n in names.items() if n]
    return table(("Parameters", "count", "share"), rows, right=(1, 2))


def layers_table(model: Model) -> Any:
    """Each kind of layer in words."""
    rows = [(name, count, "; ".join(_piece(p) for p in (*block.mixers, *block.ffns))) for count, name, block in model.groups()]
    return table(("Layer", "count", "what it holds"), rows, right=(1,))


def _piece(piece: Any) -> str:
    stated = piece.model_dump(exclude_defaults=True)
    stated.pop("kind", None)
    return f"{piece.kind} " + ", ".join(f"{k} {_value(v)}" for k, v in stated.items())


def _value(value: Any) -> str:
    return "(" + ", ".join(f"{k} {v}" for k, v in value.items()) + ")" if isinstance(value, dict) else str(value)


def cache_table(model: Model) -> Any:
    """What each kind of layer keeps per sequence, at bf16; layers that keep the same are one row."""
    merged: dict[tuple[str, str, str], int] = {}
    for row in (_cache(n, e, model) for n, e in model.cache()):
        per = f"{row['bytes_per_entry']:,.0f} B" + (f" per {row['tokens_per_entry']} tokens" if row["tokens_per_entry"] > 1 else "")
        keeps = f"{row['state_bytes']:,.0f} B state" if row["state_bytes"] else per
        limit = f"last {row['window']:,}" if row["window"] else f"{row['fixed_tokens']:,} fixed" if row["fixed_tokens"] else ""
        merged[(row["kind"], keeps, limit)] = merged.get((row["kind"], keeps, limit), 0) + row["layers"]
    rows: list[tuple[Any, ...]] = [(kind, layers, keeps, limit) for (kind, keeps, limit), layers in merged.items()]
    bf16 = Precision.named("bf16")
    unbounded = f"{kv_bytes_per_token_unbounded(model, bf16):,.0f} B beyond windows"
    rows.append(("all layers", len(model.order), f"{kv_bytes_per_token(model, bf16):,.0f} B per token", unbounded))
    state = state_bytes_per_sequence(model, bf16)
    if state:
        rows.append(("", "", f"{state:,.0f} B state per sequence", ""))
    return table(("Cache (bf16)", "layers", "per token and layer", "kept"), rows, right=(1, 2))


def weights_table(model: Model, c: Counts) -> Any:
    """Stored bytes in common precisions."""
    rows = []
    for name in SHOWN:
        precision = Precision.named(name)
        size = weight_bytes(model, precision)
        rows.append((name, show(size, "B"), show(size, "B", binary=True), f"{8 * size / c.total:.2f}", precision.title))
    return table(("Weights as", "decimal", "binary", "bits per parameter", ""), rows, right=(1, 2, 3))


def rule_of_thumb(model: Model, c: Counts) -> list[str]:
    """The founding article's two rules beside the exact figures, where they apply."""
    rough = float(f"{c.active / 1e9:.1g}") if c.active < 3e9 else float(round(c.active / 1e9))
    read = 2 * c.active_read
    of = "active parameters" if c.experts else "parameters"
    lines = [
        f"Rule of thumb: {rough:g} B {of} at 2 bytes = {2 * rough:g} GB per token, {rough:.2g} ms at 2 TB/s;"
        f" exactly {show(read, 'B', digits=4)} of weights per token, {show(read / 2e12, 's')}."
    ]
    full = [m for _, _, b in model.groups() for m in b.mixers if isinstance(m, Attention) and m.cached and not m.memory]
    if full and len({(m.kv_heads, m.head_dim) for m in full}) == 1 and len(full) == len(model.counts):
        m = full[0]
        lines.append(
            f"KV bytes = 2 x batch x length x {len(model.order)} layers x {m.kv_heads} KV heads x {m.head_dim} x bytes:"
            f" {2 * len(model.order) * m.kv_heads * m.head_dim * 2:,} B per token at 2 bytes."
        )
    return lines


def sources(model: Model) -> list[str]:
    """Where the numbers come from."""
    lines = [f"Source {key}: {s.title}" + (f" ({s.url})" if s.url else "") + f", {s.kind}" for key, s in model.sources.items()]
    if model.checkpoints:
        lines.append("Checkpoints: " + ", ".join(f"{name} ({p})" for name, p in model.checkpoints.items()))
    if model.aliases:
        lines.append("Also called: " + ", ".join(model.aliases))
    return lines + ([f"Note: {model.note}"] if model.note else [])
