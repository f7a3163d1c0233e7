"""A simulated run as rows, as a record, on a screen, and while it runs. Knows no scheduler and computes no figure."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from inferplan.deployment import Estimate
from inferplan.errors import SpecError
from inferplan.report.estimates import deployed, front_end_words
from inferplan.report.screen import Bold, console, table
from inferplan.report.words import devices
from inferplan.serving.served import Served
from inferplan.serving.summary import QUANTILES, TIMES
from inferplan.terms import TERMS
from inferplan.units import show, significant

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = "inferplan/simulate/3"
CSV_COLUMNS = (
    "arrival_s", "input_tokens", "output_tokens", "queue_s", "ttft_s", "tpot_s", "itl_max_s", "e2e_s", "preemptions", "cached_tokens",
    "replica",
)  # fmt: skip
ROWS = 100_000
"""Rows of a text that are made at once."""


@contextmanager
def progress(total: int, *, quiet: bool = False) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr with rate and time left, where stderr is a terminal; else nothing."""
    import sys

    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
    with Progress(*columns, console=console(error=True), transient=True) as bar:
        task = bar.add_task("", total=total, rate="")

        def tell(done: int, of: int) -> None:
            speed = bar.tasks[0].speed
            bar.update(task, completed=done, total=of, rate=f"{speed:,.0f}/s" if speed else "")

        yield tell


def rows_text(served: Served, columns: tuple[str, ...]) -> str:
    """CSV of the rows; what is not known is left empty."""
    found = served.columns
    return csv_columns({name: found[name] for name in columns})


def series_text(served: Served) -> str:
    """CSV of batch and cache over time by replica, with the requests that wait then."""
    parts = {name: [] for name in ("replica", "t_s", "running", "waiting", "kv_tokens")}  # type: dict[str, list[Any]]
    for place, s in enumerate(served.series):
        columns = (np.full(s.t_s.size, place), s.t_s, s.running, waiting_at(served, s.t_s, s.running, place), s.kv_tokens)
        for name, values in zip(parts, columns, strict=True):
            parts[name].append(values)
    return csv_columns({name: np.concatenate(values) if values else np.empty(0) for name, values in parts.items()})


def waiting_at(served: Served, t_s: Any, running: Any, replica: int) -> Any:
    """Requests of a replica that have arrived and neither run nor are done, at given times."""
    own = served.replica == replica
    arrived = np.searchsorted(np.sort(served.requests.arrival_s[own]), t_s, side="right")
    ended = np.searchsorted(np.sort(served.last_s[own]), t_s, side="right")
    return np.maximum(arrived - ended - running, 0)


def csv_columns(columns: dict[str, Any]) -> str:
    """CSV of columns of numbers, each number in its shortest form."""
    out = io.StringIO()
    out.write(",".join(columns) + "\n")
    size = len(next(iter(columns.values())))
    for start in range(0, size, ROWS):
        cells = [["" if x != x else repr(x) for x in values[start : start + ROWS].tolist()] for values in columns.values()]  # noqa: PLR0124 - NaN
        out.write("".join(",".join(row) + "\n" for row in zip(*cells, strict=True)))
    return out.getvalue()


def parquet_bytes(served: Served, path: str) -> bytes:
    """The rows as Parquet; raises SpecError where pyarrow is not there."""
    out = io.BytesIO()
    try:
        served.frame().to_parquet(out, index=False)
    except ImportError:
        raise SpecError("needs pyarrow to be written: pip install 'inferplan[parquet]'", field="--parquet", value=path) from None
    return out.getvalue()


def setting(e: Estimate, served: Served) -> dict[str, Any]:
    """What was simulated."""
    s = served.schedule
    return {
        **deployed(e, "model", "hardware", "gpus", "precision", "engine", "engine_version"),
        "scheduler": s.scheduler, "kv_cache_tokens": s.kv_tokens, "block_size": s.block,
        "max_num_seqs": s.max_num_seqs, "max_num_batched_tokens": s.max_num_batched_tokens, "chunked_prefill": s.chunked,
        "prefix_caching": s.prefix_caching, "watermark": s.watermark, "draft_tokens": s.draft_tokens,
        "replicas": int(served.replica.max()) + 1 if served.replica.size else 1,
    }  # fmt: skip


def record(e: Estimate, served: Served, found: dict[str, Any], source: str) -> dict[str, Any]:
    """The run under the glossary's keys, in base units."""
    return {"schema": SCHEMA, **setting(e, served), "source": source, **found}


def sentence(served: Served, found: dict[str, Any]) -> str:
    """The answer first."""
    if not found["served"]:
        return "Interrupted before any request was served."
    state = f"Interrupted: {found['served']:,} of {found['requests']:,}" if served.partial else f"All {found['requests']:,}"
    rate = "" if not np.isfinite(found["requests_per_s"]) else f": {significant(found['requests_per_s'])} requests/s, "
    text = f"{state} requests served in {show(found['makespan_s'], 's')}{rate}{significant(found['output_tokens_per_s'])} output tokens/s."
    if "slo_met" in found:
        verb = "Meets" if found["slo_met"] else "Misses"
        kept = f"{100 * found['slo_share']:.4g} % keep the limits, a goodput of {significant(found['goodput_per_s'])} requests/s"
        text += f"\n{verb} {found['slo']}: {kept}."
    return text


def show_served(e: Estimate, served: Served, found: dict[str, Any], source: str, out: Console) -> None:
    """The whole screen."""
    s = served.schedule
    copies = int(served.replica.max()) + 1
    out.print(Bold(f"{e.model.title} on {'' if copies == 1 else f'{copies:,} times '}{devices(e)} {e.hardware.title}"), style="bold")
    batched = f"{s.max_num_seqs:,} requests at once" + ("" if s.batching else f", {s.max_num_batched_tokens:,} tokens per step")
    out.print(
        table(
            ("", ""),
            [
                ("requests", source),
                ("engine", f"{e.engine.title} {e.engine.version}; times by calibration '{e.setting.efficiency.name}'"),
                (
                    "scheduler",
                    f"{s.scheduler}, {batched}, cache of {s.kv_tokens:,} tokens" + (", prefix caching" if s.prefix_caching else ""),
                ),
            ],
        )
    )
    out.print("\n" + sentence(served, found))
    if found["served"]:
        out.print("")
        out.print(times_table(found))
        out.print("\n" + "\n".join(remarks(served, found) + beside_remark(e, found["front_end_s"])))


def times_table(found: dict[str, Any]) -> Any:
    """Mean and percentiles of each time, under those that have one their 80 % band."""
    head, kept = ("Time", "mean", *QUANTILES, "max"), ("mean", *QUANTILES)
    rows = []
    for t in TIMES:
        rows.append((TERMS[t].label, *(_time(found[t][k]) for k in (*kept, "max"))))
        if found[t]["mean_low"] is not None:
            rows += [(word, *(_time(found[t][f"{k}_{end}"]) for k in kept), "") for word, end in (("  80 % from", "low"), ("  to", "high"))]
    return table(head, rows, right=range(1, len(head)))


def _time(seconds: float | None) -> str:
    return "" if seconds is None else show(seconds, "s")


def beside_remark(e: Estimate, front_s: float) -> list[str]:
    """What of a run's times host and front end take, or that steps of one's own leave it out."""
    known = bool(np.any(e.front_end_s(e.load.input_tokens)))
    if front_s or not known:
        return front_end_words(front_s)
    return ["Step times of one's own: TTFT is that of the steps alone, without host and front end."]


def band_remark(found: dict[str, Any]) -> list[str]:
    """What bands say, where there are any."""
    if found["ttft_s"]["mean_low"] is None:
        return []
    return ["80 %: four of five measurements are expected there, as measured runs under arrivals lay (validation/OPEN_LOOP.md)."]


def remarks(served: Served, found: dict[str, Any]) -> list[str]:
    """What else is worth knowing."""
    lines = [f"On the mean {significant(found['mean_in_flight'])} requests were in flight.", *band_remark(found)]
    if found["preemptions"]:
        lines.append(f"{found['preemptions']:,} preemptions: the cache ran out, and the youngest computed their tokens again.")
    if served.schedule.prefix_caching:
        lines.append(f"{100 * found['cached_share']:.3g} % of prompt tokens lay in cache.")
    if served.slot_steps:
        used = served.requests.output_tokens[served.done].sum() / served.slot_steps
        lines.append(f"{100 * used:.3g} % of the slots' steps made a token; the others waited for the longest answer of their batch.")
    return lines
