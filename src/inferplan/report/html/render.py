"""A page as one HTML file: everything escaped, styles and scripts within, a policy that lets nothing else load. Knows no quantity."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from string import Template

from inferplan.errors import SpecError, escaped
from inferplan.explain import Node
from inferplan.report.explain import value_text
from inferplan.report.grid import Grid
from inferplan.report.html.figures import Drawing, bars_html, chart_html
from inferplan.report.html.page import Bars, Chart, Fact, Page, Titled
from inferplan.report.html.text import escape
from inferplan.report.html.trees import Pool
from inferplan.units import UNITS

ASSETS = Path(__file__).parents[1] / "assets"
ENDINGS = (".html", ".htm")
WORDY = 34  # characters from which on a cell is broken over lines
_CELL = re.compile(r"\$?([+-]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*(%|[A-Za-zµ$/]*)(?:\s*\([^)]*\))?\Z")
PLAIN = ("%", "x")  # what may stand behind a number that is sorted as it is


def ending(path: str | os.PathLike[str]) -> None:
    """Raise SpecError for a file whose name is not that of a page."""
    if Path(path).suffix.lower() not in ENDINGS:
        raise SpecError("must end in .html or .htm", file=path, value=Path(path).suffix or None)


def rendered(page: Page) -> str:
    """The whole file."""
    pool, drawing = Pool(), Drawing()
    parts = [_answer(page), _facts(page.facts, pool), _inputs(page.inputs)]
    parts += [_figures(page.figures, drawing), _rest(page.rest)]
    style = _asset("uplot/uPlot.min.css") + _asset("page.css")
    library, script = _asset("uplot/uPlot.iife.min.js"), _asset("page.js")
    return Template(_asset("page.html")).substitute(
        policy=policy(style, library, script), version=escape(_version()), title=escape(page.headline), headline=escape(page.headline),
        command=escape(page.command), body="\n".join(part for part in parts if part), style=style, library=library, script=script,
        data=json_within({"nodes": pool.entries, "charts": drawing.charts}),
    )  # fmt: skip


def _version() -> str:
    from inferplan import __version__

    return __version__


@cache
def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def policy(style: str, *scripts: str) -> str:
    """What a browser may load for the page: its own style and scripts, by their hashes, and nothing else."""
    own = " ".join(_hash(script) for script in scripts)
    return f"default-src 'none'; script-src {own}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode()}'"


def json_within(value: object) -> str:
    r"""JSON that may stand within a script element, whatever its texts hold.

    >>> json_within(["</script><!--"])
    '["\\u003c/script\\u003e\\u003c!--"]'
    """
    text = json.dumps(_honest(value), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _honest(value: object) -> object:
    """The same, with control characters and direction marks of its texts as escapes."""
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, dict):
        return {name: _honest(one) for name, one in value.items()}
    return [_honest(one) for one in value] if isinstance(value, (list, tuple)) else value


def sort_key(text: str) -> float | None:
    """What a cell is sorted by: its number in base units, whatever stands in brackets behind it, or None for words.

    >>> sort_key("1,234"), sort_key("12.5 ms"), sort_key("$3"), sort_key("40 %"), sort_key("80.0 GiB"), sort_key("h100")
    (1234.0, 0.0125, 3.0, 40.0, 85899345920.0, None)
    >>> sort_key("1.95 s (1.3-3.6)"), sort_key("0 B (0 %)"), sort_key("1.5x"), sort_key("3 of 4")
    (1.95, 0.0, 1.5, None)
    """
    match = _CELL.match(text.strip())
    if not match or not (match[2] in PLAIN or match[2] in UNITS):
        return None
    return float(match[1].replace(",", "")) * UNITS.get(match[2], (1.0, ""))[0]


def _section(name: str, title: str, inner: str) -> str:
    return f'<section aria-labelledby="{name}">\n<h2 id="{name}">{escape(title)}</h2>\n{inner}\n</section>' if inner else ""


def _paragraphs(lines: Iterable[str], kind: str = "") -> str:
    return "\n".join(f"<p{kind}>{escape(line)}</p>" for line in lines)


def _answer(page: Page) -> str:
    first = _paragraphs(page.answer.split("\n"), ' class="answer"')
    why = "\n".join(_piece(piece, 2) for piece in page.why)
    return f'<section id="answer" aria-label="Answer">\n{first}\n{why}\n</section>'


def _facts(groups: Sequence[tuple[str, Sequence[Fact]]], pool: Pool) -> str:
    made = "\n".join(_group(title, facts, pool) for title, facts in groups if facts)
    hint = '<p class="hint">Those with an arrow open to their equation, what went into it, and where that comes from.</p>\n'
    return _section("numbers", "Headline numbers", hint + made) if made else ""


def _group(title: str, facts: Sequence[Fact], pool: Pool) -> str:
    inner = f'<div class="facts">{"".join(_fact(f, pool) for f in facts)}</div>'
    return f'<details class="group"><summary><h3>{escape(title)}</h3></summary>{inner}</details>' if title else inner


def _fact(fact: Fact, pool: Pool) -> str:
    beside = f'<span class="beside">{escape(fact.beside)}</span>'
    shown = f'<span class="name">{escape(fact.label)}</span><span class="value">{escape(fact.value)}</span>{beside}'
    if fact.tree is None:
        return f'<div class="fact">{shown}</div>'
    return f'<details class="fact"><summary>{shown}</summary><div class="tree">{_root(fact.tree, pool)}</div></details>'


def _root(node: Node, pool: Pool) -> str:
    """The equation of a headline number with its inputs; what is below them is unfolded by the page's script."""
    pool.add(node)
    head = f'<b>{escape(node.label)}</b> <span class="num">{escape(value_text(node))}</span>'
    if not node.children:
        return f'<p class="leaf">{head} <span class="source">{_origin(node)}</span></p>'
    inputs = "".join(f"<li>{_branch(child, pool)}</li>" for child in node.children)
    return f'<p class="equation">{head} <code>= {escape(node.equation)}</code></p><ul class="branch">{inputs}</ul>'


def _origin(node: Node) -> str:
    return escape("= " + node.equation if node.equation else node.source)


def _branch(node: Node, pool: Pool) -> str:
    head = f'<b>{escape(node.label)}</b> <span class="num">{escape(value_text(node))}</span>'
    if not node.children:
        return f'<div class="leaf">{head} <span class="source">{_origin(node)}</span></div>'
    return f'<details class="node" data-node="{pool.add(node)}"><summary>{head} <code>= {escape(node.equation)}</code></summary></details>'


def _inputs(pieces: Sequence[Titled | str]) -> str:
    return _section("asked", "What was asked", "\n".join(_piece(p) for p in pieces))


def _figures(figures: Sequence[Chart | Bars], drawing: Drawing) -> str:
    if not figures:
        return ""
    hint = (
        '<p class="hint">Point at a chart for its values, drag over it to zoom, double-click for the whole; the names above it switch what'
        " is shown. With the keyboard: arrows go from point to point and line to line, + and - zoom, 0 shows the whole.</p>"
        "<noscript><p>Charts need scripting, and so do the lower levels of equations; all else on this page does not.</p></noscript>\n"
    )
    made = "\n".join(chart_html(f, drawing) if isinstance(f, Chart) else bars_html(f, drawing) for f in figures)
    return _section("charts", "Charts", f'{hint}<div class="figures">{made}</div>')


def _rest(pieces: Sequence[Titled | str]) -> str:
    return _section("tables", "Tables and remarks", "\n".join(_piece(p) for p in pieces))


def _piece(piece: Titled | str, level: int = 3) -> str:
    if isinstance(piece, str):
        return f"<p>{escape(piece)}</p>"
    return grid_html(piece.grid, piece.title, level)


def grid_html(grid: Grid, title: str = "", level: int = 3) -> str:
    """A table of the screen, under a heading of a level: of names and values where it has no heads, else one that sorts."""
    if not any(grid.columns) and len(grid.columns) == 2:
        rows = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(said)}</td></tr>' for name, said in grid.rows)
        head = f"<h{level}>{escape(title)}</h{level}>" if title else ""
        caption = f'<caption class="unseen">{escape(title or "Inputs")}</caption>'
        return f'<div class="block">{head}<table class="asked">{caption}<tbody>{rows}</tbody></table></div>'
    grid = _kept(grid)
    body = "".join(f"<tr>{''.join(_cell(text, i, grid) for i, text in enumerate(row))}</tr>" for row in grid.rows)
    named = escape(title or "Table")
    head = "".join(_heading(text, i, title, grid) for i, text in enumerate(grid.columns))
    table = f'<table><caption class="unseen">{named}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    scroll = f'<div class="scroll" tabindex="0" role="region" aria-label="{named}">{table}</div>'
    return f'<div class="block"><h{level}>{named}</h{level}>{scroll}</div>'


def _kept(grid: Grid) -> Grid:
    """The same without columns that have neither a head nor a cell."""
    kept = [i for i, text in enumerate(grid.columns) if text or any(row[i] for row in grid.rows)]
    right = frozenset(kept.index(i) for i in grid.right if i in kept)
    return Grid(tuple(grid.columns[i] for i in kept), [[row[i] for i in kept] for row in grid.rows], grid.title, right)


def _heading(text: str, place: int, title: str, grid: Grid) -> str:
    kind = ' class="right"' if place in grid.right else ""
    shown = "" if text == title and place not in grid.right else text
    if not shown:
        said = "Name" if place == 0 else "Note"
        return f'<th scope="col"{kind} aria-sort="none"><button type="button"><span class="unseen">{said}</span></button></th>'
    return f'<th scope="col"{kind} aria-sort="none"><button type="button">{escape(shown)}</button></th>'


def _cell(text: str, place: int, grid: Grid) -> str:
    value = sort_key(text)
    kinds = [*(["right"] if place in grid.right else []), *(["words"] if len(text) > WORDY else [])]
    kinds += ["below"] if place == 0 and text.startswith(" ") else []
    kind = f' class="{" ".join(kinds)}"' if kinds else ""
    data = "" if value is None else f' data-v="{value:.9g}"'
    return f'<th scope="row"{kind}{data}>{escape(text)}</th>' if place == 0 else f"<td{kind}{data}>{escape(text)}</td>"
