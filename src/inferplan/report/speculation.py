"""Speculative decoding as a record for files and as a screen for people. Knows no equation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from inferplan.report.estimates import deployed, value
from inferplan.report.screen import Bold, put, table
from inferplan.report.words import devices, requests, resolved, split, under
from inferplan.speculation.answer import WIDEST, Speculation
from inferplan.speculation.rounds import Rounds
from inferplan.units import show, significant

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = "inferplan/speculation/2"
PER_ROUND = ("tokens_per_round", "draft_cost", "verify_ratio", "draft_s", "verify_s", "overhead_s", "round_s", "decode_s")
GAINS = ("speed_up", "free_verify_speed_up", "tpot_s", "tpot_low_s", "tpot_high_s", "output_tokens_per_s")
ROW = ("batch", "draft_tokens", *PER_ROUND, *GAINS)
DEPLOYED = (
    "model", "hardware", "gpus", "precision", "kv_format", "engine", "engine_version", "efficiency", "tp", "pp", "dp", "ep",
)  # fmt: skip
LENGTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
LOSSY = "Typical acceptance, as Medusa is run, changes what is written at temperatures above 0: measure it on your own evaluation set."
EXACT = "What is written keeps the model's own distribution, sampled or greedy: drafts are kept or replaced so that it does."


def record(s: Speculation) -> dict[str, Any]:
    """The answer under the glossary's keys, in base units: at the load, then by batch and draft length."""
    return {"schema": SCHEMA, **_asked(s), **_at_load(s), **_memory(s), "sweep": rows(s)}


def rows(s: Speculation) -> list[dict[str, Any]]:
    """One row per batch and draft length."""
    found, shape = s.sweep, (len(s.batches), len(s.lengths))
    cells = {name: np.broadcast_to(np.asarray(cell, dtype=float), shape).ravel() for name, cell in _cells(s, found).items()}
    return [{name: known(cell[i]) for name, cell in cells.items()} for i in range(shape[0] * shape[1])]


def known(cell: Any) -> float | None:
    """A figure, None where there is none."""
    return None if np.isnan(cell) else float(cell)


def _cells(s: Speculation, r: Rounds) -> dict[str, Any]:
    low, high = s.tpot_band_s(r.tpot_s) or (np.nan, np.nan)
    named = {"tokens_per_round": r.tokens, "draft_cost": r.cost, "tpot_low_s": low, "tpot_high_s": high}
    return {name: named[name] if name in named else getattr(r, name) for name in ROW}


def _asked(s: Speculation) -> dict[str, Any]:
    e = s.plain
    return {
        **deployed(e, *DEPLOYED),
        "input_tokens": e.load.input_tokens,
        "output_tokens": e.load.output_tokens,
        "draft": s.draft.name,
        "draft_params": s.draft.params,
        "tree_tokens": s.tree.nodes if s.tree else None,
        "acceptance_rate": s.acceptance.rate,
        "exact": s.draft.exact,
    }


def _at_load(s: Speculation) -> dict[str, Any]:
    at = int(np.flatnonzero(s.batches == s.plain.load.batch)[0])
    found = {name: known(value(cell)) for name, cell in _cells(s, s.here).items()}
    whole = {name: int(found[name] or 0) for name in ("batch", "draft_tokens")}
    return {**found, **whole, "best_draft_tokens": int(s.best_lengths[at]), "turns_to_loss_batch": s.turns_to_loss}


def _memory(s: Speculation) -> dict[str, Any]:
    names = ("draft_weight_bytes", "draft_kv_bytes_per_token", "kv_cache_tokens", "tokens_lost", "max_sequences", "fits")
    return {name: getattr(s, name) for name in names} | {"reason": s.held.reason()}


def sentence(s: Speculation) -> str:
    """The answer first."""
    e, gain = s.plain, s.speed_up
    sure = "" if e.setting.ideal else "about "
    drafts = f"{s.draft_tokens} draft token{'s' if s.draft_tokens > 1 else ''}"
    which = f"{drafts}, the best number for this load" if s.chosen else drafts
    how = f"{sure}{gain:.2f} times as fast" if gain > 1 else f"slower, {sure}{gain:.2f} times as fast,"
    rates = f"{significant(value(1 / s.here.tpot_s))} tokens/s per sequence instead of {significant(value(1 / s.here.decode_s))}"
    lines = [f"Decoding gets {how} with {which}: {rates}."]
    if not s.fits:
        why = s.held.reason() or f"there is room for {requests(s.max_sequences)}, not {e.load.batch:,}"
        lines.insert(0, f"Does not fit with the draft {under(e)}: {why}.")
    return "\n".join([*lines, loads(s), EXACT if s.draft.exact else LOSSY])


def loads(s: Speculation) -> str:
    """At which loads drafts pay."""
    at, room = s.turns_to_loss, s.max_sequences
    drafts, one = ("One draft", "s") if s.draft_tokens == 1 else (f"{s.draft_tokens} drafts", "")
    if at is None:
        return f"{drafts} pay{one} at every load up to {WIDEST:,} requests at once."
    if at <= 1:
        return f"{drafts} {'does' if one else 'do'} not pay even for one request; the table shows where others do."
    beyond = f", more than the {room:,.0f} that fit" if np.isfinite(room) and at > room else ""
    return f"From {at:,.0f} requests at once{beyond}, {drafts.lower()} turn{one} into a loss."


def why(s: Speculation) -> str:
    """What a round costs, against the decode step that it takes the place of."""
    r = s.here
    parts = {"drafts": r.draft_s, "verify": r.verify_s, "engine and host": r.overhead_s}
    pieces = ", ".join(f"{name} {show(value(x), 's')}" for name, x in parts.items() if value(x))
    first = f"A round yields {value(r.tokens):.2f} tokens and takes {show(value(r.round_s), 's')}: {pieces}."
    second = f"A decode step takes {show(value(r.decode_s), 's')}, so c is {value(r.cost):.3f} and a verify costs"
    return f"{first}\n{second} {value(r.verify_ratio):.2f} steps; were it 1.00, the gain would be {value(r.free_verify_speed_up):.2f}."


def show_speculation(s: Speculation, out: Console, *, asked_model: str, asked_draft: str, asked_gpu: str) -> None:
    """The whole screen."""
    put(screen(s, asked_model=asked_model, asked_draft=asked_draft, asked_gpu=asked_gpu), out)


def screen(s: Speculation, *, asked_model: str, asked_draft: str, asked_gpu: str) -> Iterator[Any]:
    """The pieces of the screen, from top to bottom."""
    e = s.plain
    yield Bold(f"{e.model.title} with {s.draft.title} drafting, on {devices(e)} {e.hardware.title}")
    yield table(("", ""), _echo(s, asked_model, asked_draft, asked_gpu))
    yield "\n" + sentence(s)
    yield why(s)
    for found in (length_table(s), batch_table(s), memory_table(s)):
        yield ""
        yield found
    yield "\n" + "\n".join([*remarks(s), see_also(asked_model)])


def _echo(s: Speculation, asked_model: str, asked_draft: str, asked_gpu: str) -> list[tuple[str, str]]:
    e, ranks = s.plain, split(s.plain)
    kept = s.draft.precision
    named = "" if kept is None else f", {kept.title if s.draft.kind == 'model' else kept.weights.name}"
    draft = f"{s.draft.params:,} parameters of its own{' per head' if s.draft.parallel_heads else ''}{named}"
    tree = f", a tree of {s.tree.nodes} tokens" if s.tree else ""
    return [
        ("model", resolved(asked_model, e.model.name)),
        ("draft", f"{resolved(asked_draft, s.draft.name)}: {draft}{tree}" if s.draft.model else s.draft.title),
        ("gpu", resolved(asked_gpu, e.hardware.name) + (f", {ranks}" if ranks else "")),
        ("precision", e.precision.summary),
        ("engine", f"{'none' if e.engine.policy == 'ideal' else e.engine.title}; times by calibration '{e.setting.efficiency.name}'"),
        ("workload", f"{e.load.input_tokens:,} tokens in, {e.load.output_tokens:,} out, batch {e.load.batch:,}"),
        ("acceptance", acceptance_text(s)),
    ]


def acceptance_text(s: Speculation) -> str:
    """The acceptance in words."""
    a = s.acceptance
    if a.rate is not None:
        return f"{a.rate:.3g} of drafts, {a.said}"
    if a.positions:
        return f"{', '.join(f'{p:.3g}' for p in a.positions)} by position, {a.said}"
    return f"{value(s.here.tokens):.2f} tokens with {s.draft_tokens} drafts, {a.said}"


def length_table(s: Speculation) -> Any:
    """What draft lengths give at the load."""
    lengths = np.array([g for g in s.lengths if g in LENGTHS or g == s.draft_tokens])
    r = s.at(float(s.plain.load.batch), lengths)
    rows = []
    for i, g in enumerate(lengths):
        cells = {name: np.broadcast_to(np.asarray(cell, dtype=float), lengths.shape)[i] for name, cell in _cells(s, r).items()}
        mark = " <-" if g == s.draft_tokens else ""
        shown = (f"{cells['tokens_per_round']:.2f}", f"{cells['draft_cost']:.3f}", f"{cells['verify_ratio']:.2f}")
        rows.append((f"{g:.0f}{mark}", *shown, show(cells["round_s"], "s"), show(cells["tpot_s"], "s"), f"{cells['speed_up']:.2f}"))
    head = (f"Draft tokens, batch {s.plain.load.batch:,}", "tokens per round", "c", "verify / decode", "round", "TPOT", "speed-up")
    return table(head, rows, right=range(1, 7))


def batch_table(s: Speculation) -> Any:
    """What more requests at once do to the gain."""
    r = s.at(s.batches, s.draft_tokens)
    wide = [np.broadcast_to(np.asarray(x, dtype=float), s.batches.shape) for x in (r.decode_s, r.tpot_s, r.verify_ratio, r.speed_up)]
    rows = []
    for i, n in enumerate(s.batches):
        plain, tpot, ratio, gain = (x[i] for x in wide)
        best = f"{s.best_lengths[i]:.0f}" if s.best_lengths[i] else "none"
        figures = (show(plain, "s"), show(tpot, "s"), f"{ratio:.2f}", f"{gain:.2f}")
        rows.append((f"{n:,.0f}", *figures, best, f"{s.best_gains[i]:.2f}", significant(n / tpot)))
    plural = "s" if s.draft_tokens > 1 else ""
    head = ("At once", "TPOT", f"{s.draft_tokens} draft{plural}", "verify / decode", "speed-up", "best number", "speed-up", "tokens/s")
    return table(head, rows, right=range(8))


def memory_table(s: Speculation) -> Any:
    """What the draft takes on one device, and what that costs."""
    c = s.plain.capacity
    own = value(c.kv_bytes_per_token_per_gpu)
    with_draft = own + s.draft_kv_bytes_per_token if not s.draft.inside else value(s.held.kv_bytes_per_token_per_gpu)
    rows = [
        (
            "weights",
            show(value(c.weight_bytes_per_gpu), "B", binary=True),
            show(s.draft_weight_bytes + value(c.weight_bytes_per_gpu), "B", binary=True),
        ),
        ("KV per token", f"{own:,.0f} B", f"{with_draft:,.0f} B"),
        ("cache tokens", f"{value(c.kv_cache_tokens):,.0f}", f"{s.kv_cache_tokens:,.0f}"),
        ("room for", f"{s.plain.max_sequences:,.0f}", f"{s.max_sequences:,.0f}"),
    ]
    return table(("Memory of one device", "without", "with the draft"), rows, right=(1, 2))


def remarks(s: Speculation) -> list[str]:
    """Which assumptions carried weight."""
    lines = [f"Assumed of the draft: {'; '.join(s.draft.assumed)}."] if s.draft.assumed else []
    if s.vocabularies_differ and s.draft.model is not None:
        words = f"{s.plain.model.vocab:,} and {s.draft.model.vocab:,}"
        lines.append(
            f"Warning: the vocabularies differ ({words} tokens); an exact scheme needs one tokenizer, so engines refuse most such pairs."
        )
    if s.tree is not None and s.acceptance.positions:
        lines.append("The tree's tokens per round are those of a chain: a lower bound; give its own accepted length (--accept-length).")
    if s.acceptance.said.startswith("published"):
        lines.append("Acceptance is another model's or text's; measure your own and give it with --accept.")
    h = s.target.host
    if not s.plain.setting.ideal:
        lines.append(
            f"Times of engine and host in a round are {'fitted' if h.basis == 'inherited' else h.basis}{f' ({h.note})' if h.note else ''}."
        )
        lines += bands(s)
        lines.append("Rounds are counted at the middle of the output, decode alone: prefill, queueing and uneven acceptance come on top.")
    if s.plain.model.note:
        lines.append(f"Model: {s.plain.model.note}")
    return lines


def bands(s: Speculation) -> list[str]:
    """Where four of five measurements of TPOT are expected, and what of gains."""
    found = s.plain.band("tpot")
    if found is None:
        return []
    shares = f"{found.low - 1:+.0%} to {found.high - 1:+.0%}"
    return [f"80 % band of TPOT without drafts: {shares} ({s.plain.basis}); with drafts taken as wide. Gains: docs/speculation.md."]


def see_also(asked_model: str) -> str:
    """Where to look next."""
    return f"See also: inferplan estimate --model {asked_model} ...; --plot FILE, --csv FILE, --json; docs/speculation.md."
