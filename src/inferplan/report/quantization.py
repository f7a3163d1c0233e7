"""Formats of weights and cache compared, as records for files and as a screen for people. Knows no equation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from inferplan.quantization.answer import BASE, FEW, SWEEP, Crossing, Option, Quantized
from inferplan.quantization.quality import Quality
from inferplan.quantization.stored import Cached, cached
from inferplan.quantization.support import caution
from inferplan.report.estimates import deployed
from inferplan.report.screen import Bold, put, table
from inferplan.report.words import WAYS, devices, engine, requests, resolved, shortage, split
from inferplan.specs.precision import Precision
from inferplan.units import show, significant

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = "inferplan/quantization/3"
ROW = (
    "hardware", "weight_format", "kv_format", "runs", "reason", "fits", "weight_bytes", "code_bytes", "scale_bytes", "wide_bytes",
    "bits_per_weight", "saving", "bytes_per_token", "computed_in", "product_gain", "kv_bytes_per_token", "kv_scale_bytes_per_token",
    "kv_scale_bytes_per_sequence", "cache_copies", "kv_cache_tokens", "max_sequences", "ttft_s", "ttft_low_s",
    "ttft_high_s", "batch", "tpot_s", "tpot_low_s", "tpot_high_s", "output_tokens_per_s", "speed_up_over_bf16", "usd_per_million_tokens",
)  # fmt: skip
MEASURE = "measure on your own evaluation set"


def rows(answers: Sequence[Quantized]) -> list[dict[str, Any]]:
    """A row per part, format of weights, of the cache, and batch: 1, 8 and the most at once; a single one where it does not run."""
    return [row for q in answers for o in q.options for row in _rows(o)]


def _rows(o: Option) -> Iterator[dict[str, Any]]:
    shared = _stored_row(o) | _room_row(o)
    if o.loads is None or o.estimate is None:
        yield shared
        return
    gains, b = o.speed_up, o.loads
    usd = [None] * (len(b.batch) - 1) + [o.usd_per_million_tokens]
    for i, batch in enumerate(b.batch):
        times: dict[str, float | None] = {
            "batch": float(batch), "tpot_s": float(b.tpot_s[i]), "output_tokens_per_s": float(b.output_tokens_per_s[i]),
        }  # fmt: skip
        times["tpot_low_s"], times["tpot_high_s"] = o.tpot_band_s(i) or (None, None)
        yield shared | times | {"speed_up_over_bf16": float(gains[i]), "usd_per_million_tokens": usd[i]}


def _stored_row(o: Option) -> dict[str, Any]:
    s, c = o.stored, o.cached
    return {
        "hardware": o.base.hardware.name,
        "weight_format": o.precision.name,
        "kv_format": o.precision.kv.name,
        "weight_bytes": s.total_bytes,
        **{name: getattr(s, name) for name in ("code_bytes", "scale_bytes", "wide_bytes", "bits_per_weight")},
        "saving": o.saving,
        "kv_bytes_per_token": c.token_bytes,
        "kv_scale_bytes_per_token": c.token_scale_bytes,
        "kv_scale_bytes_per_sequence": c.sequence_scale_bytes,
    }


def _room_row(o: Option) -> dict[str, Any]:
    found: dict[str, Any] = {"runs": o.runs, "reason": o.reason, "fits": o.fits}
    if o.estimate is None:
        return found
    why = "" if o.fits else _why_not(o)
    return found | {
        "reason": why,
        "bytes_per_token": o.estimate.bytes_per_token,
        "computed_in": o.computed_in,
        "product_gain": o.product_gain,
        "cache_copies": o.cache_copies,
        "kv_cache_tokens": o.kv_cache_tokens,
        "max_sequences": o.max_sequences,
        "ttft_s": o.estimate.ttft_s,
    }


def record(answers: Sequence[Quantized]) -> dict[str, Any]:
    """The comparison as one record, in base units."""
    e = answers[0].base
    return {
        "schema": SCHEMA,
        **deployed(e, "model", "gpus", "engine", "engine_version", "efficiency", *WAYS),
        "input_tokens": e.load.input_tokens,
        "output_tokens": e.load.output_tokens,
        "rows": rows(answers),
        "crossings": [_crossing_row(q, c) for q in answers for c in q.crossings],
        "quality": [_quality_row(q) for q in _qualities(answers)],
    }


def _crossing_row(q: Quantized, c: Crossing) -> dict[str, Any]:
    p = c.option.precision
    names = {"hardware": q.base.hardware.name, "weight_format": p.name, "kv_format": p.kv.name}
    return names | {"against": c.other.name, "starts_paying_at": c.start, "stops_paying_at": c.batch}


def _quality_row(q: Quality) -> dict[str, Any]:
    shown = ("checkpoint", "measure", "better", "ratio", "source", "url", "note")
    return {"weight_format": q.weights, "kv_format": q.kv or None, **{name: getattr(q, name) for name in shown}}


def _qualities(answers: Sequence[Quantized]) -> list[Quality]:
    return list(dict.fromkeys(q for o in answers[0].options for q in o.quality))


def sentence(q: Quantized) -> str:
    """The answer first."""
    e = q.base
    where = f"On {devices(e)} {e.hardware.title}"
    quick, full = q.best(lambda o: -float(o.loads.tpot_s[0]) if o.loads else -np.inf), q.best(_full_rate)
    if quick is None or full is None:
        return f"{where} none of these formats fits{_closest(q)}."
    plain = f"; 16 bit does not fit ({e.capacity.reason() or f'room for {requests(e.max_sequences)}'})" if not e.fits else ""
    first = f"{where} {_name(q, quick)} answers one request fastest: {_tpot(quick, 0)} per token{_gain(quick, 0)}{plain}."
    rate = f"{significant(_full_rate(full))} tokens/s with {full.max_sequences:,.0f} requests at once"
    return f"{first}\nMost is served in {_name(q, full)}: {rate}{_room(q, full)}."


def _full_rate(o: Option) -> float:
    return float(o.loads.output_tokens_per_s[-1]) if o.loads is not None else -np.inf


def _room(q: Quantized, full: Option) -> str:
    own = q.base.max_sequences if q.base.capacity.fits else 0.0
    return f", {full.max_sequences / own:.2g} times as many as in 16 bit" if own >= 1 and full.max_sequences > own else ""


def _closest(q: Quantized) -> str:
    running = [o for o in q.options if o.estimate is not None]
    least = min(running, key=lambda o: o.stored.total_bytes, default=None)
    return f"; of the least, {_name(q, least)}, {_why_not(least)}" if least is not None else ""


def _why_not(o: Option) -> str:
    assert o.estimate is not None
    return shortage(o.estimate)


def _name(q: Quantized, o: Option) -> str:
    caches = {x.precision.kv.name for x in q.options}
    return f"{o.precision.name} with a cache in {o.precision.kv.name}" if len(caches) > 1 else o.precision.name


def _tpot(o: Option, i: int) -> str:
    return show(float(o.loads.tpot_s[i]), "s") if o.loads is not None else ""


def _gain(o: Option, i: int) -> str:
    gain = float(o.speed_up[i])
    return f", {gain:.2f} times as fast as in 16 bit" if abs(gain - 1) > 0.005 else ""


def show_quantization(answers: Sequence[Quantized], out: Console, *, asked_model: str, asked_gpus: Sequence[str]) -> None:
    """The whole screen."""
    put(screen(answers, asked_model=asked_model, asked_gpus=asked_gpus), out)


def screen(answers: Sequence[Quantized], *, asked_model: str, asked_gpus: Sequence[str]) -> Iterator[Any]:
    """The pieces of the screen, from top to bottom."""
    e = answers[0].base
    yield Bold(f"{e.model.title}: formats of weights and cache")
    yield table(("", ""), _echo(answers, asked_model, asked_gpus))
    yield "\n" + "\n".join(sentence(q) for q in answers)
    yield ""
    yield memory_table(answers[0])
    for q in answers:
        yield ""
        yield time_table(q)
        for piece in (crossing_table(q), room_table(q)):
            if piece is not None:
                yield ""
                yield piece
    for piece in (cache_table(answers[0]), quality_table(answers)):
        if piece is not None:
            yield ""
            yield piece
    yield "\n" + "\n".join(remarks(answers))


def _echo(answers: Sequence[Quantized], asked_model: str, asked_gpus: Sequence[str]) -> list[tuple[str, str]]:
    e, ranks = answers[0].base, split(answers[0].base)
    pairs = zip(asked_gpus, (q.base.hardware.name for q in answers), strict=True)
    return [
        ("model", resolved(asked_model, e.model.name)),
        ("gpu", "; ".join(resolved(*pair) for pair in pairs) + (f", {ranks}" if ranks else "")),
        ("engine", f"{engine(e)}; times by calibration '{e.setting.efficiency.name}'"),
        ("workload", f"{e.load.input_tokens:,} tokens in, {e.load.output_tokens:,} out, batch {e.load.batch:,}"),
    ]


def _weights(q: Quantized) -> list[Option]:
    """An option for each format of weights, whatever the cache."""
    return list({o.precision.name: o for o in q.options}.values())


def memory_table(q: Quantized) -> Any:
    """What is stored, on whatever part."""
    cells = []
    for o in _weights(q):
        s = o.stored
        bits = f"{s.bits_per_weight:.4g}" if s.code_params else "16"
        sizes = [show(x, "B", binary=True) if x else "0" for x in (s.total_bytes, s.code_bytes, s.scale_bytes, s.wide_bytes)]
        cells.append((o.precision.name, *sizes, bits, f"{100 * o.saving:.0f} %"))
    head = ("Weights", "stored", "values", "scales", "wide", "bits", "saved")
    return table(head, cells, right=range(1, 7))


def time_table(q: Quantized) -> Any:
    """Speed by format on a part."""
    full = f"{FEW[-1]}"
    head = (f"{q.base.hardware.name}", "KV", "products", "TTFT", "TPOT, 1", full, "most", "gain, 1", full, "most")
    return table(head, [_time_cells(o) for o in q.options], right=range(3, 10))


def _time_cells(o: Option) -> tuple[str, ...]:
    names = (o.precision.name, o.precision.kv.name)
    if o.estimate is None or o.loads is None:
        return (*names, "not run", *[""] * 7)
    times = [show(float(t), "s") for t in (o.estimate.ttft_s, *o.loads.tpot_s)]
    gains = [f"{g:.2f}" for g in o.speed_up]
    if not o.fits:
        times[-1], gains[-1] = "no room", ""
    return (*names, products(o), *times, *gains)


def products(o: Option) -> str:
    """Whether products get faster too, or only the reads."""
    if o.body is None:
        return o.computed_in
    return f"{o.computed_in}, reads only" if o.reads_only else f"{o.computed_in}, {o.product_gain:.2g}x"


def room_table(q: Quantized) -> Any:
    """Tokens and requests that fit, against 16 bit, and what they make."""
    cells, own = [], _base_tokens(q)
    for o in q.options:
        if o.estimate is None:
            continue
        tokens, usd = o.kv_cache_tokens, o.usd_per_million_tokens
        made = (significant(_full_rate(o)), "" if usd is None else f"{usd:,.2f}") if o.fits else ("", "")
        fitted = (
            (f"{tokens:,.0f}", f"{tokens / own:.2f}x" if own else "", f"{o.max_sequences:,.0f}") if o.max_sequences else ("0", "", "none")
        )
        cells.append((o.precision.name, o.precision.kv.name, *fitted, *made, show(o.estimate.bytes_per_token, "B")))
    head = (f"Room on {q.base.hardware.name}", "KV", "cache tokens", "of 16 bit", "at once", "tokens/s", "USD/Mtok", "read per token")
    return table(head, cells, right=range(2, 8)) if cells else None


def _base_tokens(q: Quantized) -> float:
    c = q.base.capacity
    return max(0.0, float(np.min(c.kv_cache_tokens)) * float(np.asarray(c.groups))) if q.base.capacity.fits else 0.0


def crossing_table(q: Quantized) -> Any:
    """From which batch weights that are only stored narrow stop paying; caches that do not change it share a line."""
    lines: dict[tuple[str, ...], list[str]] = {}
    for c in q.crossings:
        fits = c.option.max_sequences
        beyond = "more than fit" if c.batch is not None and fits and c.batch > fits else ""
        lines.setdefault((c.option.precision.name, c.other.name, *_window(c), beyond), []).append(c.option.precision.kv.name)
    head = (f"Stops paying on {q.base.hardware.name}", "against", "pays from batch", "stops at", "", "KV")
    return table(head, [(*line, ", ".join(kv)) for line, kv in lines.items()], right=(2, 3)) if lines else None


def _window(c: Crossing) -> tuple[str, str]:
    """From which batch narrow weights pay, and until which."""
    if c.start is None:
        return "never", ""
    return f"{c.start:,.0f}", f"none to {SWEEP[-1]:,.0f}" if c.batch is None else f"{c.batch:,.0f}"


def cache_table(q: Quantized) -> Any:
    """Bytes of the cache by format, scales apart."""
    base = cached(q.base.model, Precision.named(BASE, BASE))
    cells = []
    for o in {o.precision.kv.name: o for o in q.options}.values():
        c = o.cached
        if not c.token_bytes:
            continue
        saved = f"{100 * (1 - c.token_bytes / base.token_bytes):.1f} %"
        own = (f"{c.token_bytes:,.0f} B", f"{c.token_code_bytes:,.0f} B", _overhead(c), f"{c.sequence_scale_bytes:,.0f} B", saved)
        cells.append((o.precision.kv.name, *own, f"{o.cache_copies:.3g}"))
    head = ("KV cache, all layers", "per token", "values", "scales", "per sequence", "saved", "copies")
    return table(head, cells, right=range(1, 7))


def _overhead(c: Cached) -> str:
    return f"{c.token_scale_bytes:,.0f} B ({100 * c.token_scale_bytes / c.token_code_bytes:.2g} %)" if c.token_code_bytes else ""


def quality_table(answers: Sequence[Quantized]) -> Any:
    """What was published on quality; where nothing was, what to do."""
    cells: list[tuple[str, str, str]] = []
    for o in {(o.precision.name, o.precision.kv.name): o for o in answers[0].options}.values():
        found, both = o.quality, o.precision.kv.quantised and o.body is not None
        if (not o.precision.kv.quantised and o.body is None) or (both and not found):
            continue
        name = o.precision.name if not o.precision.kv.quantised else f"cache in {o.precision.kv.name}"
        measures = "; ".join(_quality(q) for q in found) or MEASURE
        cells.append((name, ", ".join(dict.fromkeys(q.checkpoint for q in found)), measures))
    return table(("Quality", "of", "published"), cells) if cells else None


def _quality(q: Quality) -> str:
    if q.better == "lower":
        return f"{q.measure} {100 * (q.ratio - 1):+.2g} %"
    return f"{100 * q.ratio:.1f} % of {q.measure}"


def remarks(answers: Sequence[Quantized]) -> list[str]:
    """Which assumptions carried weight, and where quality figures are from."""
    e = answers[0].base
    options = [o for q in answers for o in q.options]
    sources = list(dict.fromkeys(f"{q.source} ({q.url})" for q in _qualities(answers)))
    lines = [f"Quality: {'; '.join(sources)}. Another model, text or task keeps more or less."] if sources else []
    if any(o.precision.kv.quantised and o.body is not None for o in options):
        lines.append("Narrow weights and a narrow cache together: measure them on your own evaluation set as well.")
    lines += list(dict.fromkeys(f"Not run: {o.reason}{_where(o)}." for o in options if o.reason))
    lines += [
        f"16 bit does not fit {q.base.hardware.name}; gains over it are what they would be if it did." for q in answers if not q.base.fits
    ]
    lines += list(dict.fromkeys(f"{o.precision.name} in {e.engine.title}: {note}." for o in options if (note := _cautious(o))))
    if not e.setting.ideal:
        lines += [*_bands(options), *_assumed(options)]
    lines.append("Gains are against bf16 weights and cache at the same batch; 'most' is as many requests as fit, at most 1,024.")
    if e.model.note:
        lines.append(f"Model: {e.model.note}")
    lines.append("See also: inferplan estimate --dtype ...; --plot FILE, --csv FILE, --json; docs/quantization.md.")
    return lines


def _bands(options: Sequence[Option]) -> Iterator[str]:
    """Where four of five measurements are expected about the times, by formats that have the same band."""
    same: dict[tuple[str, ...], list[str]] = {}
    for o in options:
        if o.estimate is not None and o.estimate.tpot_band_s:
            named = tuple(f"{q.upper()} {b.low - 1:+.0%} to {b.high - 1:+.0%}" for q in ("ttft", "tpot") if (b := o.estimate.band(q)))
            same.setdefault((*named, o.estimate.basis), []).append(f"{o.precision.name}{_where(o)}")
    for said, names in same.items():
        yield f"80 % band of {', '.join(dict.fromkeys(names))} ({said[-1]}): {', '.join(said[:-1])}."


def _where(o: Option) -> str:
    return f"; {o.base.hardware.title} does not" if "only on parts" in o.reason else ""


def _cautious(o: Option) -> str:
    """What an engine's makers say of a format, where it bears on this part."""
    note = caution(o.base.engine, o.precision)
    return note if o.runs and o.body is not None and (o.reads_only or "where a part lacks" not in note) else ""


def _assumed(options: Sequence[Option]) -> Iterator[str]:
    """What times rest on."""
    e = options[0].base
    if any(o.runs and o.reads_only for o in options) and e.setting.efficiency.name == "default":
        yield "Where only reads get faster, fused kernels (Marlin's kind) are taken; without them: --efficiency calibration/unfused.yaml."
    yield from _kernels(options)
    narrow = next((o for o in options if o.runs and o.precision.kv.bits < 8), None)
    if narrow is not None:
        yield f"A cache in {narrow.precision.kv.name} is read by kernels calibrated on 8 bit: unpacking 4 bit comes on top."
    if any(o.runs and o.precision.kv.quantised for o in options):
        yield "A narrow cache is read by attention kernels of 2025 and later; older ones were slower with it than with 16 bit."


def _kernels(options: Sequence[Option]) -> Iterator[str]:
    """Where the speed of narrow products is from, if it was not measured on that class of parts: a line for each part."""
    found: dict[str, dict[str, list[str]]] = {}
    for o in options:
        if (where := _basis(o)) and o.precision.name not in (own := found.setdefault(o.base.hardware.name, {}).setdefault(where, [])):
            own.append(o.precision.name)
    for part, sources in found.items():
        pieces = [f"{' and '.join(names)} {where}" for where, names in sources.items()]
        yield f"Kernels on {part}, not measured there: {'; '.join(pieces)}."


def _basis(o: Option) -> str:
    """Basis and place in the calibration of the kernel that most narrow weights go through; '' for one that was measured."""
    if o.estimate is None or o.body is None:
        return ""
    e = o.estimate
    ops = [op for op in e.decode.ops if op.kind in ("matmul", "experts") and op.stored == o.body.name]
    if not ops:
        return ""
    k = e.decode.kernel(max(ops, key=lambda op: float(np.max(op.weight_bytes))))
    free = ", as if widening cost nothing" if o.reads_only and ".bf16." in k.origin else ""
    return "" if k.basis == "measured" else f"{k.basis} ({k.origin}{free})"
