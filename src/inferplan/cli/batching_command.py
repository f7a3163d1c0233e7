"""`inferplan batching`: static beside continuous batching under a load. Does no arithmetic."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inferplan.cli import options as o
from inferplan.cli.output import Html, check_html, put_out
from inferplan.cli.serving_options import InputLaw, OutputLaw
from inferplan.errors import SpecError

if TYPE_CHECKING:
    from inferplan.report.batching import Compared
    from inferplan.report.html.page import Page
    from inferplan.serving.batch_times import Workload

app = typer.Typer(add_completion=False)
MOST_LOADS, MOST_CLIENTS, MOST_RATE = 1000, 10**6, 1e9


@app.command()
@o.asks
def batching(
    asked: o.Asked,
    rate: Annotated[str | None, typer.Option("--rate", help="Requests that arrive per second; several with commas.")] = None,
    concurrency: Annotated[str | None, typer.Option("--concurrency", help="Clients in a closed loop; several with commas.")] = None,
    inputs: InputLaw = None,
    outputs: OutputLaw = None,
    hit_rate: Annotated[float | None, typer.Option("--hit-rate", help="Share of a prompt that a prefix cache holds.")] = None,
    static_batch: Annotated[int | None, typer.Option("--static-batch", help="Requests in a static batch; unsaid: all that fit.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON, in base units.")] = False,
    csv: Annotated[str | None, typer.Option("--csv", help="Write a row per load and kind of batching to FILE.")] = None,
    plot: Annotated[str | None, typer.Option("--plot", help="Also draw both into FILE, a PNG, SVG or PDF.")] = None,
    html: Html = None,
) -> int:
    """Static against continuous batching: throughput, latency and waste, in closed form.

    Without --rate or --concurrency: 1, 2, 4 ... clients, up to as many as run at once.
    """
    from inferplan.report import canvas
    from inferplan.report.batching import COLUMNS, compared, plot_batching, record, rows, show_batching

    for field, value, unsaid in (("--batch", asked.batch, 1), ("--context", asked.context, None)):
        if value != unsaid:
            raise SpecError("is of no account here: batches follow from --rate, --concurrency and --static-batch", field=field, value=value)
    loads = _loads(rate, concurrency)
    if static_batch is not None and static_batch < 1:
        raise SpecError("must be 1 or more", field="--static-batch", value=static_batch)
    if plot:
        canvas.ending(plot)
    check_html(html)
    work, sized = _workload(asked, inputs, outputs, hit_rate)
    found = compared(sized.estimate(), work, max_num_seqs=asked.max_num_seqs, batch=static_batch, **loads)
    put_out(
        as_json=as_json, csv=csv, plot=plot, record=lambda: record(found), rows=lambda: rows(found), columns=COLUMNS,
        picture=lambda: plot_batching(found),
        screen=lambda out: show_batching(found, out, asked_model=asked.model, asked_gpu=asked.gpu),
        html=html, page=lambda: _page(found, asked),
    )  # fmt: skip
    return 0 if found.continuous.stable.any() else 1


def _page(found: Compared, asked: o.Asked) -> Page:
    from inferplan.report.html.screens import compared as page

    return page(found, asked_model=asked.model, asked_gpu=asked.gpu)


def _loads(rate: str | None, concurrency: str | None) -> dict[str, Any]:
    """The loads as arrays; raises SpecError for both kinds at once and for what is no load."""
    import numpy as np

    if rate is not None and concurrency is not None:
        raise SpecError("give --rate or --concurrency, not both", field="--rate", value=rate)
    if rate is not None:
        return {"rate_per_s": np.array(_numbers(rate, "--rate", MOST_RATE, whole=False))}
    if concurrency is not None:
        return {"clients": np.array(_numbers(concurrency, "--concurrency", MOST_CLIENTS, whole=True), dtype=int)}
    return {}


def _numbers(text: str, field: str, most: float, *, whole: bool) -> list[float]:
    parts = o.listed(text)
    if len(parts) > MOST_LOADS:
        raise SpecError(f"takes at most {MOST_LOADS:,} numbers", field=field, value=len(parts))
    found = []
    for part in parts:
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if not 0 < value <= most or (whole and value != int(value)):
            rule = f"must be {'whole numbers from 1' if whole else 'numbers above 0'} to {most:,.0f}, with commas between them"
            raise SpecError(rule, field=field, value=part)
        found.append(value)
    return found


def _workload(asked: o.Asked, inputs: str | None, outputs: str | None, hit_rate: float | None) -> tuple[Workload, o.Asked]:
    """The laws of lengths, and the options with the longest lengths in place of --isl and --osl: the engine is started for those."""
    from inferplan.serving.batch_times import Workload
    from inferplan.serving.lengths import Lengths

    if hit_rate is not None and not 0 <= hit_rate < 1:
        raise SpecError("must lie from 0 to below 1", field="--hit-rate", value=hit_rate)
    for field, value in (("--isl", asked.isl), ("--osl", asked.osl)):
        if value < 1:
            raise SpecError("must be 1 or more", field=field, value=value)
    share = hit_rate if hit_rate is not None else asked.cached / asked.isl
    prompts = Lengths.parse(inputs, "--input-lengths") if inputs is not None else Lengths.fixed(asked.isl)
    answers = Lengths.parse(outputs, "--output-lengths") if outputs is not None else Lengths.fixed(asked.osl)
    return Workload(prompts, answers, share), replace(asked, isl=prompts.longest, osl=answers.longest)
