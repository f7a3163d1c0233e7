"""`inferplan quantize`: what formats of weights and cache save and cost. Does no arithmetic."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from inferplan.cli import options as o
from inferplan.cli.output import Html, check_html, put_out
from inferplan.errors import SpecError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from inferplan.deployment import Estimate
    from inferplan.quantization.answer import Quantized
    from inferplan.report.html.page import Page

app = typer.Typer(add_completion=False)


@app.command()
@o.asks
def quantize(
    asked: o.Asked,
    formats: Annotated[
        str | None, typer.Option("--formats", help="Formats of the weights, with commas: bf16, fp8, int8, awq, gptq, nvfp4, q4_k_m ...")
    ] = None,
    kv: Annotated[str | None, typer.Option("--kv", help="Formats of the KV cache, with commas: bf16, fp8, int8, int4 ...")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON, in base units.")] = False,
    csv: Annotated[str | None, typer.Option("--csv", help="Write a row per part, format and batch to FILE.")] = None,
    plot: Annotated[
        str | None, typer.Option("--plot", help="Draw memory, latency and capacity by format into FILE, a PNG, SVG or PDF.")
    ] = None,
    html: Html = None,
) -> int:
    """What formats of weights and cache save and cost: bytes, speed, room, money. --gpu takes several, with commas."""
    for name, value in (("--dtype", asked.dtype), ("--kv-dtype", asked.kv_dtype)):
        if value != "auto":
            raise SpecError("is of no account here: say --formats and --kv", field=name, value=value)
    if plot:
        from inferplan.report.canvas import ending

        ending(plot)
    check_html(html)
    return _shown(_found(asked, formats, kv), asked, as_json, csv, plot, html)


def _found(asked: o.Asked, formats: str | None, kv: str | None) -> list[Quantized]:
    from inferplan.quantization.answer import quantized
    from inferplan.quantization.support import usual
    from inferplan.specs.engine import Engine

    weights, caches = usual(Engine.find(asked.engine))

    def answer(gpu: str) -> Quantized:
        def run(weights: str, cache: str) -> Estimate:
            return replace(asked, gpu=gpu, dtype=weights, kv_dtype=cache).estimate()

        with o.named_as_options("formats", "kv"):
            return quantized(run, o.listed(weights if formats is None else formats), o.listed(caches if kv is None else kv))

    gpus = o.listed(asked.gpu)
    if len(set(gpus)) < len(gpus):
        raise SpecError("names a part twice", field="--gpu", value=asked.gpu)
    return [answer(gpu) for gpu in gpus]


def _shown(found: list[Quantized], asked: o.Asked, as_json: bool, csv: str | None, plot: str | None, html: str | None
) -> int:
    from inferplan.report.quantization import ROW, record, rows, show_quantization

    put_out(
        as_json=as_json, csv=csv, plot=plot, record=lambda: record(found), rows=lambda: rows(found), columns=ROW,
        picture=lambda: _picture(found),
        screen=lambda out: show_quantization(found, out, asked_model=asked.model, asked_gpus=o.listed(asked.gpu)),
        html=html, page=lambda: _page(found, asked),
    )  # fmt: skip
    return 0 if any(option.fits for q in found for option in q.options) else 1


def _page(found: list[Quantized], asked: o.Asked) -> Page:
    from inferplan.report.html.screens import formats

    return formats(found, asked_model=asked.model, asked_gpus=o.listed(asked.gpu))


def _picture(found: list[Quantized]) -> Axes:
    from inferplan.report.quantization_plots import plot_quantization

    return plot_quantization(found)
