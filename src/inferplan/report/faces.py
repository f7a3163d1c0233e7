"""Results as a notebook shows them: the screens of the command line as HTML and as text. Knows no equation.

HTML has no colours of its own: it takes those of the page, light or dark. Every text of a user is escaped.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from typing import Any

from inferplan.report.grid import Grid
from inferplan.report.screen import Plain, rich_console

WIDTH = 100
NODES = 400
"""Nodes of an explanation that are shown; of a larger tree, its upper levels."""
Draw = Callable[[Any, Any], None]


@dataclass(slots=True)
class Page:
    """Takes the place of a console: what is printed on it becomes HTML.

    >>> page = Page()
    >>> page.print("a < b")
    >>> page.html
    '<div style="line-height:1.35;text-align:left"><p style="margin:0.4em 0">a &lt; b</p></div>'
    """

    parts: list[str] = field(default_factory=list)

    def print(self, piece: Any = "", *, style: str | None = None) -> None:
        """One piece of a screen: text, a table, or anything that rich can show."""
        if isinstance(piece, Grid):
            self.parts.append(_table(piece))
        elif isinstance(piece, str):
            self.parts += [_paragraph(part, bold=style == "bold") for part in piece.split("\n\n") if part.strip()]
        else:
            self.parts.append(f"<pre>{escape(_plain(piece))}</pre>")

    @property
    def html(self) -> str:
        """All of it."""
        return f'<div style="line-height:1.35;text-align:left">{"".join(self.parts)}</div>'


def _paragraph(text: str, *, bold: bool) -> str:
    words = escape(text.strip("\n")).replace("\n", "<br>")
    return f'<p style="margin:0.4em 0">{f"<strong>{words}</strong>" if bold else words}</p>'


def _side(column: int, grid: Grid) -> str:
    """Notebooks have a style of their own, which an attribute would not change."""
    return f"text-align:{'right' if column in grid.right else 'left'}"


def _table(grid: Grid) -> str:
    def row(cells: Any, tag: str) -> str:
        drawn = (f"<{tag} style='{_side(i, grid)}'>{escape(c)}</{tag}>" for i, c in enumerate(cells))
        return f"<tr>{''.join(drawn)}</tr>"

    title = f'<caption style="text-align:left;caption-side:top"><strong>{escape(grid.title)}</strong></caption>' if grid.title else ""
    head = f"<thead>{row(grid.columns, 'th')}</thead>" if any(grid.columns) else ""
    body = "".join(row(cells, "td") for cells in grid.rows)
    return f'<table cellpadding="3" style="margin:0.5em 0">{title}{head}<tbody>{body}</tbody></table>'


def _plain(piece: Any) -> str:
    out = io.StringIO()
    rich_console(out, WIDTH, plain=True).print(piece)
    return out.getvalue().rstrip("\n")


def html_of(found: Any) -> str:
    """What a notebook shows of a result."""
    draw = _face(found)
    if draw is _explained:
        return _tree(found)
    page = Page()
    draw(found, page)
    return page.html


def text_of(found: Any) -> str:
    """The same as plain text, 100 characters wide."""
    out = io.StringIO()
    _face(found)(found, Plain(out, WIDTH))
    return out.getvalue().rstrip("\n")


def _face(found: Any) -> Draw:
    for kind in type(found).__mro__:
        if (draw := FACES.get(f"{kind.__module__}.{kind.__qualname__}")) is not None:
            return draw
    raise TypeError(f"{type(found).__name__} has no screen")


def _estimate(e: Any, out: Any) -> None:
    from inferplan.report.estimates import show_estimate

    show_estimate(e, out, asked_model=e.model.name, asked_gpu=e.hardware.name)


def _plan(p: Any, out: Any) -> None:
    from inferplan.report.plan import show_plan

    show_plan(p, out)


def _hardware(part: Any, out: Any) -> None:
    from inferplan.report.hardware import show_hardware

    show_hardware(part, out, asked=part.name)


def _model(model: Any, out: Any) -> None:
    from inferplan.report.models import show_model

    show_model(model, out, asked=model.name)


def _precision(precision: Any, out: Any) -> None:
    from inferplan.report.formats import show_precision

    show_precision(precision, out, asked=precision.name)


def _speculation(s: Any, out: Any) -> None:
    from inferplan.report.speculation import show_speculation

    e = s.plain
    show_speculation(s, out, asked_model=e.model.name, asked_draft=s.draft.name, asked_gpu=e.hardware.name)


def _served(served: Any, out: Any) -> None:
    from inferplan.report.estimates import front_end_words
    from inferplan.report.serving import remarks, sentence, times_table
    from inferplan.serving.summary import summary

    found = summary(served)
    out.print(f"{int(served.done.sum()):,} of {len(served.requests):,} requests under {served.schedule.scheduler}", style="bold")
    out.print(sentence(served, found))
    if found["served"]:
        out.print(times_table(found))
        out.print("\n".join(remarks(served, found) + front_end_words(found["front_end_s"])))


def _curve(curve: Any, out: Any) -> None:
    from inferplan.report.estimates import front_end_words
    from inferplan.report.load_curve import curve_table, sentence

    out.print("Latency against offered load", style="bold")
    if said := sentence(curve):
        out.print(said)
    out.print(curve_table(curve))
    if curve.points and (beside := front_end_words(curve.points[0][1]["front_end_s"])):
        out.print("\n".join(beside))


def _batching(c: Any, out: Any) -> None:
    from inferplan.report.batching import show_batching

    show_batching(c, out, asked_model=c.estimate.model.name, asked_gpu=c.estimate.hardware.name)


def _command(command: Any, out: Any) -> None:
    from inferplan.report.launch import script

    text = script(command, None)
    if isinstance(out, Page):
        out.parts.append(f"<pre>{escape(text)}</pre>")
    else:
        out.stream.write(text + "\n")
    for remark in command.remarks:
        out.print(remark)


def _fit(f: Any, out: Any) -> None:
    import numpy as np

    from inferplan.report.screen import table
    from inferplan.units import show

    cases = np.broadcast_arrays(np.asarray(f.batch), np.asarray(f.needed_bytes), np.asarray(f.fits))
    rows = [[f"{b:,.0f}", show(float(n), "B", binary=True), "yes" if ok else "no"] for b, n, ok in zip(*map(np.ravel, cases), strict=True)]
    out.print(f"{show(f.weight_bytes, 'B', binary=True)} of weights in {show(f.usable_bytes, 'B', binary=True)} of memory", style="bold")
    out.print(table(("batch", "weights and caches", "fits"), rows[:50], right=(0, 1)))


def _comparison(c: Any, out: Any) -> None:
    from inferplan.report.comparison import show_comparison

    show_comparison(list(c.estimates), out)


def _quantization(q: Any, out: Any) -> None:
    from inferplan.report.quantization import show_quantization

    base = q.answers[0].base
    show_quantization(q.answers, out, asked_model=base.model.name, asked_gpus=[a.base.hardware.name for a in q.answers])


def _validation(v: Any, out: Any) -> None:
    from inferplan.report.validation import show_validation

    show_validation(v.outcomes, v.by, out)


def _explained(node: Any, out: Any) -> None:
    from inferplan.report.explain import DEPTH, tree

    out.print(tree(node, DEPTH))


FACES: dict[str, Draw] = {
    "inferplan.deployment.Estimate": _estimate,
    "inferplan.planner.plan.Plan": _plan,
    "inferplan.specs.hardware.Accelerator": _hardware,
    "inferplan.specs.model.Model": _model,
    "inferplan.specs.precision.Precision": _precision,
    "inferplan.speculation.answer.Speculation": _speculation,
    "inferplan.serving.served.Served": _served,
    "inferplan.serving.summary.LoadCurve": _curve,
    "inferplan.report.batching.Compared": _batching,
    "inferplan.launch.command.Command": _command,
    "inferplan.memory.fit.Fit": _fit,
    "inferplan.report.answers.Comparison": _comparison,
    "inferplan.report.answers.Quantization": _quantization,
    "inferplan.report.answers.Validation": _validation,
    "inferplan.explain.node.Node": _explained,
}
"""The screen of each kind of result, by the name of its class."""


def _tree(node: Any) -> str:
    """An explanation as a tree that opens by click or key, its first level open."""
    from inferplan.report.explain import below, depth_of

    depth = depth_of(node)
    while depth > 1 and _count(node, depth) > NODES:
        depth -= 1
    hidden = below(node) + 1 - _count(node, depth)
    cut = f'<p style="margin:0.4em 0">{hidden:,} deeper nodes are not shown.</p>' if hidden else ""
    return f'<div style="line-height:1.35;text-align:left">{_branch(node, depth, level=0)}{cut}</div>'


def _count(node: Any, depth: int) -> int:
    return 1 + (sum(_count(child, depth - 1) for child in node.children) if depth > 0 else 0)


def _branch(node: Any, depth: int, *, level: int) -> str:
    from inferplan.report.explain import value_text

    said = f"= <code>{escape(node.equation)}</code>" if node.equation else f"<em>{escape(node.source)}</em>"
    line = f"<strong>{escape(node.label)}</strong> {escape(value_text(node))} {said}"
    if not node.children or depth <= 0:
        return f'<div style="margin-left:{1.2 if level else 0}em">{line}</div>'
    inner = "".join(_branch(child, depth - 1, level=level + 1) for child in node.children)
    return f'<details style="margin-left:{1.2 if level else 0}em"{" open" if level == 0 else ""}><summary>{line}</summary>{inner}</details>'
