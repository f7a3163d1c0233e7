"""Static beside continuous batching: screen, record and picture. Knows no equation beyond shares of what it is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from inferplan.deployment import Estimate
from inferplan.errors import DoesNotFit, Unsupported
from inferplan.report.canvas import (
    BLUE,
    DASHED,
    DOTTED,
    GROUND,
    MIXED,
    SMALL,
    VERMILION,
    canvas,
    panels,
    plain,
    powers_of_two,
    title,
    unit_axis,
)
from inferplan.report.estimates import deployed, front_end_words
from inferplan.report.screen import Bold, put, table
from inferplan.report.words import band_words, devices, drawn_devices, engine, resolved, with_band
from inferplan.serving.batch_times import Workload, prefill_steps, reservation, reserved_tokens
from inferplan.serving.continuous import Continuous, Serving, continuous
from inferplan.serving.lengths import Lengths
from inferplan.serving.likely import Likely
from inferplan.serving.static import Static, gain, static
from inferplan.shown import Shown
from inferplan.terms import TERMS
from inferplan.units import show, significant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import Console

SCHEMA = "inferplan/batching/3"
QUANTILES = (50, 90, 99)
ALIKE = 1.0005
UNBOUNDED = "grows"  # a queue that is asked for more than it serves
NUMBERS = (
    "requests_per_s", "output_tokens_per_s", "ttft_s", "tpot_s", "e2e_s", "wait_s", "running", "waiting", "load", "busy",
    "cache_reserved", "cache_used",
)  # fmt: skip
EMPTY = "cache kept empty"
TIMES = ("ttft", "tpot", "itl", "e2e")
BANDED = ("ttft", "tpot", "e2e")
ENDS = ("low", "high")
BEYOND_MOST = 3.0  # times what continuous batching serves at most, up to which loads are drawn
COLUMNS = (
    "batching", "rate_per_s", "concurrency", "places", "stable", *NUMBERS, "padding", "idle", "returned_s",
    *(f"{name}_p{q}_s" for name in TIMES for q in QUANTILES), *(f"running_p{q}" for q in QUANTILES),
    *(f"{name}_{end}_s" for name in BANDED for end in ENDS),
    *(f"{name}_p{q}_{end}_s" for name in TIMES for q in QUANTILES for end in ENDS),
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Compared(Shown):
    """Both kinds of batching under the same loads: arrival rates, or numbers of clients.

    static
        None where not one request fits with its longest length set aside.
    """

    estimate: Estimate
    workload: Workload
    kind: str
    loads: np.ndarray
    continuous: Continuous
    static: Static | None

    @property
    def single(self) -> bool:
        """Whether there is one load."""
        return bool(self.loads.size == 1)


def compared(
    e: Estimate, workload: Workload, *, rate_per_s: np.ndarray | None = None, clients: np.ndarray | None = None,
    max_num_seqs: int | None = None, batch: int | None = None,
) -> Compared:  # fmt: skip
    """Both kinds of batching at each load of an array; without one at 1, 2, 4 ... clients up to all places.

    Raises DoesNotFit where not even continuous batching runs a request, Unsupported for a model that writes no tokens.
    """
    if not e.model.generates:
        raise Unsupported(f"{e.model.title} writes no tokens: its requests take one pass, see 'inferplan estimate'")
    if rate_per_s is None and clients is None:
        places = continuous(e, workload, clients=1, max_num_seqs=max_num_seqs).times.most
        clients = 2 ** np.arange(int(np.ceil(np.log2(places))) + 1)
    front_s = float(e.front_end_s(workload.input.mean))
    running = continuous(e, workload, rate_per_s=rate_per_s, clients=clients, max_num_seqs=max_num_seqs).with_front(front_s)
    loads = np.asarray(clients if rate_per_s is None else rate_per_s, dtype=float)
    try:
        beside = static(e, workload, rate_per_s=rate_per_s, clients=clients, batch=batch).with_front(front_s)
    except DoesNotFit:
        beside = None
    return Compared(e, workload, "concurrency" if rate_per_s is None else "rate_per_s", loads, running, beside)


def rows(c: Compared) -> list[dict[str, Any]]:
    """A row per load and kind under the glossary's keys, in base units; infinite where more arrives than can be served."""
    found = []
    for i, load in enumerate(c.loads.tolist()):
        both: list[tuple[str, Serving, int]] = [("static", c.static, c.static.most)] if c.static else []
        both.append(("continuous", c.continuous, c.continuous.times.most))
        for name, s, places in both:
            row: dict[str, Any] = {"batching": name, "rate_per_s": None, "concurrency": None, c.kind: load, "places": places}
            row |= {"stable": bool(s.stable[i])} | {key: float(getattr(s, key)[i]) for key in NUMBERS}
            row |= _own(s, i)
            found.append(row | _bands(likely(c, s, i), row))
    return found


def likely(c: Compared, s: Serving, i: int) -> Likely | None:
    """Where four of five measurements lie about the times at a load; None where there is no end to them."""
    if not bool(s.stable[i]):
        return None
    waiting = c.kind == "concurrency" and float(c.loads[i]) > _limit(s)[0]
    return Likely(c.estimate, waiting)


def _bands(found: Likely | None, row: dict[str, Any]) -> dict[str, float | None]:
    """The ends of the bands of a row's means and percentiles."""
    ends: dict[str, float | None] = {}
    for name in TIMES:
        for mark, share in (("", None), *((f"_p{q}", q / 100) for q in QUANTILES)):
            value, first = row.get(f"{name}{mark}_s"), row.get(f"ttft{mark}_s")
            if value is not None and first is not None:
                low, high = (found and _ends_of(found, name, value, first, share)) or (None, None)
                ends |= {f"{name}{mark}_low_s": low, f"{name}{mark}_high_s": high}
    return ends


def _ends_of(found: Likely, name: str, value: float, first: float, share: float | None) -> tuple[float, float] | None:
    return found.whole(value, first, share) if name == "e2e" else found.ends("ttft" if name == "ttft" else "tpot", value, share)


def _own(s: Serving, i: int) -> dict[str, Any]:
    """What only one kind has: waste and the end of the batch, or percentiles."""
    if isinstance(s, Static):
        return {key: float(getattr(s, key)[i]) for key in ("padding", "idle", "returned_s")}
    laws = {name: getattr(s, f"{name}_quantile_s") for name in ("ttft", "tpot", "itl", "e2e")}
    found = {f"{name}_p{q}_s": float(law(q / 100)[i]) for name, law in laws.items() for q in QUANTILES}
    found |= {f"running_p{q}": float(s.running_quantile(q / 100)[i]) for q in QUANTILES} if isinstance(s, Continuous) else {}
    return {"padding": 0.0, "idle": 0.0, **found}


def record(c: Compared) -> dict[str, Any]:
    """The comparison as one record."""
    e, work = c.estimate, c.workload
    return {
        "schema": SCHEMA,
        **deployed(e, "model", "hardware", "gpus", "precision", "engine", "engine_version", "efficiency"),
        "input_tokens": _law(work.input),
        "output_tokens": _law(work.output),
        "hit_rate": work.hit_rate,
        "rows": rows(c),
    }


def _law(lengths: Lengths) -> dict[str, Any]:
    return {"law": lengths.text, "mean": lengths.mean, "cv": lengths.cv, "longest": lengths.longest}


def load_words(c: Compared, load: float) -> str:
    """A load in words."""
    if c.kind == "rate_per_s":
        return f"{significant(load)} requests/s"
    return f"{load:,.0f} client{'s' if load != 1 else ''}"


def sentence(c: Compared) -> str:
    """The answer first."""
    if c.static is None:
        need = f"{reserved_tokens(c.estimate, c.workload):,.0f} tokens"
        return f"Static batching cannot run: no request fits with its longest length, {need}, set aside. {_alone(c)}"
    if not c.single:
        return _full(c, c.static)
    load = load_words(c, float(c.loads[0]))
    if c.kind == "concurrency":
        return _clients(c, c.static, load)
    keeps, beside = bool(c.continuous.stable[0]), bool(c.static.stable[0])
    if not keeps:
        whose = "continuous batching does not keep up, static batching does" if beside else "neither keeps up"
        return f"At {load} {whose}: {_most(c, c.static)}"
    lead = f"At {load} continuous batching gives the first token after {_s(c.continuous.ttft_s)} and all after {_s(c.continuous.e2e_s)}"
    if not beside:
        return f"{lead}; static batching cannot keep up: {_most(c, c.static)}"
    return f"{lead}, static batching after {_s(c.static.ttft_s)} and {_s(c.static.e2e_s)}."


def _alone(c: Compared) -> str:
    most = c.continuous.times.rates_per_s[-1] * c.workload.output.mean
    return f"Continuous batching makes up to {significant(float(most))} tokens/s with {c.continuous.times.most:,} requests at once."


def _most(c: Compared, s: Static) -> str:
    rates = float(c.continuous.times.rates_per_s[-1]), s.most / float(s.run.time_s[-1])
    return f"continuous batching serves at most {significant(rates[0])}, static batching {significant(rates[1])} requests/s."


def _clients(c: Compared, s: Static, load: str) -> str:
    made, before = float(c.continuous.output_tokens_per_s[0]), float(s.output_tokens_per_s[0])
    return (
        f"With {load} continuous batching makes {significant(made)} tokens/s, {_times(made / before)} the {significant(before)} of"
        f" static batching; a request takes {_s(c.continuous.e2e_s)} instead of {_s(s.returned_s)} to the end of its batch."
    )


def _times(ratio: float) -> str:
    return f"{significant(ratio)} times"


def _full(c: Compared, s: Static) -> str:
    g = gain(c.continuous, s)
    lead = f"At full load continuous batching serves {_times(g.total)} as much as static batching"
    return f"{lead}, {c.continuous.times.most:,} requests at once instead of {s.most:,}."


def _s(seconds: Any) -> str:
    """Seconds of the first load; below a microsecond none."""
    value = float(np.ravel(seconds)[0])
    return UNBOUNDED if np.isinf(value) else "0 s" if value < 1e-6 else show(value, "s")


def _number(value: float) -> str:
    """A count or a rate; below a thousandth none."""
    return UNBOUNDED if np.isinf(value) else significant(value if value >= 1e-3 else 0.0)


def why(c: Compared) -> str:
    """Where the gain comes from."""
    s, work = c.static, c.workload
    if s is None:
        return ""
    g, longest = gain(c.continuous, s), float(s.run.output_tokens[-1])
    lines = [
        f"A static batch of {s.most:,} runs to its longest output, {longest:,.0f} tokens where the mean is {work.output.mean:,.0f}:"
        f" {100 * (1 - 1 / g.finished):.1f} % of its output positions belong to requests that have finished."
        if g.finished > ALIKE
        else f"A static batch of {s.most:,} has no finished rows to speak of: outputs are about equally long."
    ]
    aside, held = reserved_tokens(c.estimate, work), float(work.contexts.mean())
    lines.append(f"Each of its requests keeps {aside:,.0f} tokens of cache; a running request holds {held:,.0f} in the mean.")
    lines.append(
        f"At full load the gain is {_times(g.total)}: {significant(g.finished)} (no finished rows) x {significant(g.places)} (requests at"
        f" once) x {significant(g.steps)} (steps of larger batches, prefills)."
    )
    return "\n".join(lines)


def show_batching(c: Compared, out: Console, *, asked_model: str, asked_gpu: str) -> None:
    """The whole screen."""
    put(screen(c, asked_model=asked_model, asked_gpu=asked_gpu), out)


def screen(c: Compared, *, asked_model: str, asked_gpu: str) -> Iterator[Any]:
    """The pieces of the screen, from top to bottom."""
    e = c.estimate
    yield Bold(f"{e.model.title} on {devices(e)} {e.hardware.title}")
    yield table(("", ""), _echo(c, asked_model, asked_gpu))
    yield "\n" + sentence(c)
    if reasons := why(c):
        yield reasons
    for found in [one_table(c)] if c.single else many_tables(c):
        yield ""
        yield found
    yield ""
    yield waste_table(c)
    yield "\n" + "\n".join(remarks(c))


def _echo(c: Compared, asked_model: str, asked_gpu: str) -> list[tuple[str, str]]:
    e, work = c.estimate, c.workload
    hits = f", {100 * work.hit_rate:.3g} % of a prompt cached" if work.hit_rate else ""
    load = ", ".join(f"{significant(x)}" if c.kind == "rate_per_s" else f"{x:,.0f}" for x in c.loads)
    kind = "requests/s, arriving at random" if c.kind == "rate_per_s" else "clients, each sending its next request at once"
    return [
        ("model", resolved(asked_model, e.model.name)),
        ("gpu", resolved(asked_gpu, e.hardware.name)),
        ("precision", e.precision.summary),
        ("engine", f"{engine(e)}; times by calibration '{e.setting.efficiency.name}'"),
        ("lengths", f"{length_words(work.input)} tokens in{hits}, {length_words(work.output)} out"),
        ("load", f"{load} {kind}"),
    ]


def length_words(lengths: Lengths) -> str:
    """A law of lengths in words."""
    if lengths.values.size == 1:
        return f"{lengths.mean:,.0f}"
    return f"{lengths.text} (mean {lengths.mean:,.0f}, up to {lengths.longest:,})"


def one_table(c: Compared) -> Any:
    """Both kinds at one load, a row per quantity."""
    s, k = c.static, c.continuous
    cells = [
        ("requests at once, at most", *(f"{x.most:,}" if x else "" for x in (s,)), f"{k.times.most:,}"),
        *(_row(name, s, k, _number) for name in ("running", "waiting")),
        _row("load", s, k, lambda v: f"{100 * v:.0f} %"),
        *(_row(name, s, k, _number) for name in ("requests_per_s", "output_tokens_per_s")),
        _row("wait_s", s, k, _s),
        *((TERMS[f"{name}_s"].label, *(_banded(c, x, name) if x else "" for x in (s, k))) for name in BANDED),
        ("  the whole batch", _s(s.returned_s) if s else "", ""),
        *((f"{label}, p99", "", _banded(c, k, name, 0.99)) for name, (label, _) in zip(TIMES, _tails(k), strict=True)),
    ]
    return table(("Mean over requests", "static", "continuous"), cells, right=(1, 2))


def _tails(k: Continuous) -> list[tuple[str, Any]]:
    laws = {"TTFT": k.ttft_quantile_s, "TPOT": k.tpot_quantile_s, "one gap": k.itl_quantile_s, "end to end": k.e2e_quantile_s}
    return list(laws.items())


def _banded(c: Compared, s: Serving, name: str, share: float | None = None, i: int = 0) -> str:
    """A time at a load with its band."""
    value, first = (_time_at(s, n, share, i) for n in (name, "ttft"))
    found = likely(c, s, i)
    return _s(value) if found is None else with_band(value, _ends_of(found, name, value, first, share), _s(value))


def _time_at(s: Serving, name: str, share: float | None, i: int) -> float:
    return float(getattr(s, f"{name}_s")[i] if share is None else getattr(s, f"{name}_quantile_s")(share)[i])


def _row(name: str, s: Static | None, k: Continuous, words: Any) -> tuple[str, str, str]:
    cells = [words(float(getattr(x, name)[0])) if x else "" for x in (s, k)]
    return TERMS[name].label, cells[0], cells[1]


def many_tables(c: Compared) -> list[Any]:
    """A table for each kind, a row per load."""
    s, k = c.static, c.continuous
    tails = k.ttft_quantile_s(0.99)
    unit, found = "requests/s" if c.kind == "rate_per_s" else "clients", []
    for name, x in (("Static", s), ("Continuous", k)):
        if x is None:
            continue
        cells = [[_load(c, load), significant(x.output_tokens_per_s[i]), *_times_of(x, i)] for i, load in enumerate(c.loads)]
        heads = [f"{name}, {unit}", "tokens/s", "TTFT", "TPOT", "E2E"]
        if x is k:
            heads += ["TTFT, p99", *(["gain"] if s else [])]
            gains = k.output_tokens_per_s / s.output_tokens_per_s if s else tails
            cells = [[*row, _s(t), *([significant(g)] if s else [])] for row, t, g in zip(cells, tails, gains, strict=True)]
        found.append(table(heads, cells, right=range(len(heads))))
    banded = (_band_table(c, x) for x in (s, k) if x is not None)
    return [*found, *(t for t in banded if t is not None)]


def _band_table(c: Compared, x: Serving) -> Any:
    """Where four of five measurements of each time are expected, a row per load; None where no band is known."""
    name = "continuous" if isinstance(x, Continuous) else "static"
    rows = []
    for i, load in enumerate(c.loads):
        found = likely(c, x, i)
        values = [_time_at(x, n, None, i) for n in BANDED]
        ends = [_ends_of(found, n, v, values[0], None) if found else None for n, v in zip(BANDED, values, strict=True)]
        rows.append((_load(c, load), *map(band_words, ends)))
    head = (f"80 % band, {name}", "TTFT", "TPOT", "E2E")
    return table(head, rows, right=range(4)) if any(row[1] for row in rows) else None


def _load(c: Compared, load: float) -> str:
    return significant(load) if c.kind == "rate_per_s" else f"{load:,.0f}"


def _times_of(x: Serving, i: int) -> list[str]:
    return [_s(getattr(x, name)[i]) for name in ("ttft_s", "tpot_s", "e2e_s")]


def waste_table(c: Compared) -> Any:
    """What is computed or kept for nothing, at the last load."""
    at = c.loads.size - 1
    s, k = c.static, c.continuous
    of = {"padding": "of computed prompt positions", "idle": "of computed output positions"}
    waste = [(TERMS[n].label, f"{100 * getattr(s, n)[at]:.1f} %" if s else "", "0.0 %", note) for n, note in of.items()]
    kept = [
        (TERMS[n].label, *(f"{100 * getattr(x, n)[at]:.1f} %" if x else "" for x in (s, k)), "of the cache")
        for n in ("cache_reserved", "cache_used")
    ]
    head = f"Waste at {load_words(c, float(c.loads[at]))}"
    return table((head, "static", "continuous", ""), [*waste, *kept], right=(1, 2))


def remarks(c: Compared) -> list[str]:
    """Which assumptions carried weight, and where to look next."""
    e = c.estimate
    lines = [
        f"Times are {'floors' if e.setting.ideal else 'estimates'} of the calibration '{e.setting.efficiency.name}', the same for both."
    ]
    lines.append(
        "Static: prompts padded to the longest, the longest request's cache set aside in one piece, finished rows computed to the end"
        " of the batch." + (" Its waits are approximate, within a quarter." if c.kind == "rate_per_s" else "")
    )
    if c.single and rows(c)[-1]["tpot_low_s"] is not None:
        lines.append("In brackets: where four of five measurements are expected (80 % band), in the unit of the time.")
    mixed = "prefills share steps with decodes" if prefill_steps(e) == "mixed" else "decodes wait while prompts are prefilled"
    aside = "cache is taken as requests grow" if reservation(e) == "as-needed" else "cache is set aside for the longest request"
    lines.append(f"Continuous, by the habits of {e.engine.title}: {mixed}; {aside}. Preemption costs nothing here.")
    lines += front_end_words(c.continuous.front_s)
    if c.kind == "rate_per_s":
        lines.append(
            "Arrivals are Poisson; burstier ones wait longer. Means do not depend on the law of outputs until all places are taken."
        )
    else:
        lines.append("A closed loop in steady state: the burst of prompts with which a benchmark begins is not in the times.")
    if not (c.continuous.stable.all() and (c.static is None or c.static.stable.all())):
        lines.append(f"'{UNBOUNDED}': more arrives than is served, and waits grow without end.")
    if e.model.context and c.workload.input.longest + c.workload.output.longest > e.model.context:
        longest = c.workload.input.longest + c.workload.output.longest
        lines.append(f"Warning: requests of up to {longest:,} tokens, but the model takes {e.model.context:,}; engines refuse longer ones.")
    lines.append("See also: inferplan estimate ...; batching ... --rate 1,2,4; --output-lengths exponential:256; --plot FILE; --json.")
    return lines


def plot_batching(c: Compared, *, ax: Axes | None = None) -> Axes:
    """Above, what both kinds make of the load: tokens per second over clients, or time of a request over arrival rate. Below, waste."""
    grid = _grid(c)
    swept = _swept(c, grid)
    e, work = c.estimate, c.workload
    with canvas(ax) as ax:
        title(ax, f"{e.model.title} on {drawn_devices(e)}{e.hardware.title}, {e.engine.name}", _short(work))
        upper, lower = panels(ax)
        _draw_answer(upper, c, swept)
        _draw_waste(lower, swept)
        if c.kind == "concurrency":
            for panel in (upper, lower):
                panel.set_xscale("log")
            upper.set_xlim(grid[0], grid[-1])
            powers_of_two(lower.xaxis, grid[0], grid[-1])
            lower.set_xlabel("clients")
        else:
            upper.set_xlim(0, grid[-1])
            unit_axis(lower.xaxis, "arrivals, requests/s", "", (0.0, float(grid[-1])))
        return upper


def _short(work: Workload) -> str:
    vary = work.input.values.size + work.output.values.size > 2
    return f"{work.input.mean:,.0f} tokens in, {work.output.mean:,.0f} out{' in the mean' if vary else ''}"


def _grid(c: Compared) -> np.ndarray:
    """Loads over which a picture is drawn: past the most that continuous batching takes, and past all that were asked."""
    most = c.continuous.times.most
    if c.kind == "concurrency":
        top = 2 ** np.ceil(np.log2(max(2 * most, c.loads.max(), 8)))
        return np.asarray(sorted({*np.geomspace(1, top, 80).round(), float(most), *([float(c.static.most)] if c.static else [])}))
    served = float(c.continuous.times.rates_per_s[-1])
    top = min(max(1.1 * served, 1.1 * float(c.loads.max())), BEYOND_MOST * served)
    return np.linspace(top / 200, top, 200)


def _swept(c: Compared, grid: np.ndarray) -> Compared:
    given: dict[str, Any] = {"clients": grid} if c.kind == "concurrency" else {"rate_per_s": grid}
    beside = None if c.static is None else static(c.estimate, c.workload, batch=c.static.most, **given).with_front(c.static.front_s)
    running = continuous(c.estimate, c.workload, times=c.continuous.times, **given).with_front(c.continuous.front_s)
    return Compared(c.estimate, c.workload, c.kind, grid, running, beside)


def _draw_answer(ax: Axes, c: Compared, swept: Compared) -> None:
    """One line per kind, with the asked loads as points and the most that each takes as a line."""
    name, label, unit = ("output_tokens_per_s", "tokens/s", "") if c.kind == "concurrency" else ("e2e_s", TERMS["e2e_s"].label, "s")
    spans = []
    top = float(swept.loads[-1])
    for kind, one, all_ in (("static", c.static, swept.static), ("continuous", c.continuous, swept.continuous)):
        if one is None or all_ is None:
            continue
        colour, look, mark = (VERMILION, DASHED, "s") if kind == "static" else (BLUE, "-", "o")
        values = np.where(all_.stable, getattr(all_, name), np.nan)
        ax.plot(swept.loads, values, color=colour, ls=look, label=kind, gid=kind)
        if all_ is swept.continuous:
            _draw_band(ax, swept, name)
        points = np.where(one.stable & (c.loads <= top), getattr(one, name), np.nan)
        ax.plot(c.loads, points, mark, color=colour, ms=2.5, gid=f"{kind} asked", clip_on=False)
        spans.append(values[np.isfinite(values)])
    ax.set_yscale("log")
    low, high = min(s.min() for s in spans if s.size), max(s.max() for s in spans if s.size)
    if c.kind == "rate_per_s":
        high = min(high, 40 * low)
    ax.set_ylim(low / 1.5, high * 1.5)
    unit_axis(ax.yaxis, label, unit, (low / 1.5, high * 1.5))
    ax.legend(loc="upper left" if c.kind == "concurrency" else "upper center")
    _draw_limits(ax, c, swept.loads)


def _draw_band(ax: Axes, swept: Compared, name: str) -> None:
    """Where four of five measurements of continuous batching are expected: whole requests, or the inverse of TPOT for what it makes."""
    k = swept.continuous
    values = np.where(k.stable, getattr(k, name), np.nan)
    if name == "e2e_s":
        found = [likely(swept, k, i) for i in range(swept.loads.size)]
        ends = [b and b.whole(float(v), float(t)) for b, v, t in zip(found, values, k.ttft_s, strict=True)]
        low, high = np.transpose([pair or (np.nan, np.nan) for pair in ends])
    elif (band := swept.estimate.band("tpot")) is not None:
        low, high = values / band.high, values / band.low
    else:
        return
    if np.isfinite(low).any():
        ax.fill_between(swept.loads, low, high, color=BLUE, alpha=0.15, lw=0, gid="band", label="80 % band")


def _draw_limits(ax: Axes, c: Compared, loads: np.ndarray) -> None:
    """Where each kind has no more to give: all places taken, or the most that it serves."""
    for s, colour, height in ((c.static, VERMILION, 0.17), (c.continuous, BLUE, 0.05)):
        if s is None:
            continue
        places, rate = _limit(s)
        at, text = (places, f"{places:,.0f} at once") if c.kind == "concurrency" else (rate, f"at most {plain(float(f'{rate:.3g}'))}/s")
        ax.axvline(at, color=colour, lw=0.7, ls=(0, (2, 1.5)), gid="limit")
        share = np.log(at / loads[0]) / np.log(loads[-1] / loads[0]) if c.kind == "concurrency" else at / loads[-1]
        side, shift = ("right", -2) if share > 0.55 else ("left", 2)
        clear = 0.5 if c.kind == "rate_per_s" and side == "left" else height
        ax.annotate(
            text, (at, clear), (shift, 0), xycoords=("data", "axes fraction"), textcoords="offset points", ha=side, va="bottom",
            fontsize=SMALL, color=colour, bbox=GROUND,
        )  # fmt: skip


def _limit(s: Serving) -> tuple[float, float]:
    """Places, and the most requests per second."""
    if isinstance(s, Static):
        return float(s.most), s.most / float(s.run.time_s[-1])
    assert isinstance(s, Continuous)
    return float(s.times.most), float(s.times.rates_per_s[-1])


def _draw_waste(ax: Axes, swept: Compared) -> None:
    """Shares in per cent, in the colours of the panel above: finished rows, padding, cache set aside and not filled."""
    s, k = swept.static, swept.continuous
    if s is not None:
        for share, look, label in ((s.idle, "-", "finished rows"), (s.padding, DOTTED, "prompt padding"), (_empty(s), DASHED, EMPTY)):
            if np.any(share > 0):
                ax.plot(swept.loads, np.where(s.stable, 100 * share, np.nan), color=VERMILION, ls=look, label=f"static: {label}", gid=label)
    ax.plot(swept.loads, 100 * _empty(k), color=BLUE, ls=MIXED, label=f"continuous: {EMPTY}", gid="continuous")
    ax.set_ylim(-3, 150)
    unit_axis(ax.yaxis, "waste", "%", (0.0, 100.0))
    ax.set_yticks(range(0, 101, 20))
    ax.legend(loc="upper center", fontsize=SMALL, ncol=2)


def _empty(s: Serving) -> np.ndarray:
    """The share of the cache set aside that holds no token."""
    found: np.ndarray = 1 - np.minimum(s.cache_used / s.cache_reserved, 1.0)
    return found
