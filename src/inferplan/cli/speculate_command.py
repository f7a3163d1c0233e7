"""`inferplan speculate`: what a draft gains on a deployment, where it turns into a loss, what memory it takes. Does no arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from inferplan.cli import options as o
from inferplan.cli.output import Html, check_html, put_out
from inferplan.errors import SpecError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from inferplan.deployment import Estimate
    from inferplan.report.html.page import Page
    from inferplan.speculation.answer import Speculation

app = typer.Typer(add_completion=False)
MOST_NODES = MOST_RANKS = 4096


@app.command()
@o.asks
def speculate(
    draft: Annotated[str, typer.Option("--draft", help="A smaller model by name or path, or eagle, eagle3, medusa, mtp, ngram.")],
    asked: o.Asked,
    accept: Annotated[
        str | None, typer.Option("--accept", help="Share of drafts kept, 0.8, or by position, 0.8,0.7, or a CSV file of accepted lengths.")
    ] = None,
    accept_length: Annotated[
        float | None,
        typer.Option("--accept-length", help="Tokens per round in the mean, the model's own among them; needs --draft-tokens."),
    ] = None,
    draft_tokens: Annotated[int | None, typer.Option("--draft-tokens", help="Drafts in a row per round; unsaid: the best number.")] = None,
    tree: Annotated[int | None, typer.Option("--tree", help="Tokens verified per sequence, where drafts form a tree.")] = None,
    draft_tp: Annotated[int | None, typer.Option("--draft-tp", help="Devices that share the draft; unsaid: as the model.")] = None,
    draft_dtype: Annotated[str | None, typer.Option("--draft-dtype", help="Precision of the draft; unsaid: as stored.")] = None,
    eager: Annotated[bool, typer.Option("--eager", help="Kernels launched one by one, as research code on transformers does.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON, in base units.")] = False,
    csv: Annotated[str | None, typer.Option("--csv", help="Write a row per batch and draft length to FILE.")] = None,
    plot: Annotated[
        str | None, typer.Option("--plot", help="Draw gain against batch and draft length into FILE, a PNG, SVG or PDF.")
    ] = None,
    html: Html = None,
) -> int:
    """What speculative decoding gains on a deployment, and from which batch it is a loss."""
    _check(draft_tokens, tree, draft_tp, accept, accept_length)
    if plot:
        from inferplan.report.canvas import ending

        ending(plot)
    check_html(html)
    found = _found(asked.estimate(), draft, accept, accept_length, draft_tokens, tree, draft_tp, draft_dtype, eager)
    return _shown(found, asked, draft, as_json, csv, plot, html)


def _check(draft_tokens: int | None, tree: int | None, draft_tp: int | None, accept: str | None, accept_length: float | None) -> None:
    from inferplan.speculation.acceptance import MAX_DRAFT_TOKENS

    said = {"--draft-tokens": (draft_tokens, 1, MAX_DRAFT_TOKENS), "--tree": (tree, 2, MOST_NODES), "--draft-tp": (draft_tp, 1, MOST_RANKS)}
    for name, (value, low, high) in said.items():
        if value is not None and not low <= value <= high:
            raise SpecError(f"must lie between {low} and {high:,}", field=name, value=value)
    if accept is not None and accept_length is not None:
        raise SpecError("stands beside --accept: give one of the two", field="--accept-length", value=accept_length)
    if accept_length is not None and draft_tokens is None:
        raise SpecError("needs the draft tokens at which it was measured (--draft-tokens)", field="--accept-length", value=accept_length)
    if tree is not None and draft_tokens is None:
        raise SpecError("needs the draft tokens in a row beside it (--draft-tokens)", field="--tree", value=tree)


def _found(
    e: Estimate, name: str, accept: str | None, accept_length: float | None, draft_tokens: int | None, tree: int | None,
    draft_tp: int | None, dtype: str | None, eager: bool,
) -> Speculation:  # fmt: skip
    from inferplan.speculation.acceptance import of_length, of_text, of_typical
    from inferplan.speculation.answer import speculate as answered
    from inferplan.speculation.drafts import draft_named
    from inferplan.speculation.rounds import Tree

    draft = draft_named(e.model, e.precision, name, dtype)
    if accept_length is not None and draft_tokens is not None:
        acceptance = of_length(accept_length, draft_tokens, chain=tree is None)
    elif accept is not None:
        acceptance = of_text(accept)
    else:
        acceptance, published = of_typical(draft.kind)
        draft_tokens = draft_tokens or (acceptance.most if published else None)
        tree = tree or published
    return answered(
        e, draft, acceptance, draft_tokens=draft_tokens, tree=Tree(tree) if tree else None, draft_tp=draft_tp, eager=eager
    )  # fmt: skip


def _shown(found: Speculation, asked: o.Asked, draft: str, as_json: bool, csv: str | None, plot: str | None, html: str | None
) -> int:
    from inferplan.report.speculation import ROW, record, rows, show_speculation

    put_out(
        as_json=as_json, csv=csv, plot=plot, record=lambda: record(found), rows=lambda: rows(found), columns=ROW,
        picture=lambda: _picture(found),
        screen=lambda out: show_speculation(found, out, asked_model=asked.model, asked_draft=draft, asked_gpu=asked.gpu),
        html=html, page=lambda: _page(found, asked, draft),
    )  # fmt: skip
    return 0 if found.fits else 1


def _page(found: Speculation, asked: o.Asked, draft: str) -> Page:
    from inferplan.report.html.screens import drafted

    return drafted(found, asked_model=asked.model, asked_draft=draft, asked_gpu=asked.gpu)


def _picture(found: Speculation) -> Axes:
    from inferplan.report.speculation_plots import plot_speculation

    return plot_speculation(found)
