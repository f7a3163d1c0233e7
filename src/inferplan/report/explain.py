"""An explained number as a tree on a screen and as a record for files. Knows no equation: it shows those it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from inferplan.deployment import Estimate
from inferplan.explain import Node
from inferplan.report.estimates import deployed
from inferplan.units import show

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

SCHEMA = "inferplan/explain/1"
DEPTH = 3


def record(node: Node, quantity: str, e: Estimate, *, depth: int | None = None) -> dict[str, Any]:
    """The tree under plain keys, in base units; numbers over the contexts of an output are lists. `depth` None means all of it."""
    return {
        "schema": SCHEMA,
        "quantity": quantity,
        **deployed(e, "model", "hardware", "precision", "kv_format"),
        "tree": branch(node, depth),
    }


def branch(node: Node, depth: int | None = None) -> dict[str, Any]:
    """One node and what is below it, down to `depth` levels; what is cut off is counted."""
    value = node.value.tolist() if isinstance(node.value, np.ndarray) else node.value
    found: dict[str, Any] = {"label": node.label, "value": value, "unit": node.unit}
    if not node.equation:
        return {**found, "source": node.source}
    found["equation"] = node.equation
    if depth is not None and depth <= 0:
        return {**found, "hidden": below(node)} if node.children else found
    return {**found, "children": [branch(child, None if depth is None else depth - 1) for child in node.children]}


def below(node: Node) -> int:
    """How many nodes stand below one."""
    return sum(1 for _ in node.walk()) - 1


def show_explanation(node: Node, e: Estimate, out: Console, *, depth: int = DEPTH) -> None:
    """The tree down to `depth` levels, under the case it is for."""
    out.print(_printable(f"{e.model.title} on {e.gpus} x {e.hardware.title}, {e.precision.summary}"), style="bold")
    load = e.load
    out.print(f"batch {load.batch:,}, {load.input_tokens:,} tokens in, {load.output_tokens:,} out\n")
    out.print(tree(node, depth))
    if depth_of(node) > depth:
        out.print(f"\n{depth_of(node)} levels in all; --depth shows more of them.")


def depth_of(node: Node) -> int:
    """Levels below a node."""
    return 1 + max(map(depth_of, node.children)) if node.children else 0


def tree(node: Node, depth: int) -> Tree:
    """The node as a tree of lines."""
    from rich.tree import Tree

    found = Tree(line(node, cut=depth <= 0), guide_style="dim")
    _grow(found, node, depth)
    return found


def _grow(place: Tree, node: Node, depth: int) -> None:
    if depth <= 0:
        return
    for child in node.children:
        _grow(place.add(line(child, cut=depth <= 1)), child, depth - 1)


def line(node: Node, *, cut: bool) -> Text:
    """Label and value, then the equation or the source."""
    from rich.text import Text

    found = Text(overflow="fold")
    found.append(node.label, style="bold").append(f"  {value_text(node)}")
    if node.equation:
        hidden = f"  [{below(node)} below]" if cut and node.children else ""
        return found.append(f"  = {node.equation}", style="cyan").append(hidden, style="dim")
    return found.append(f"  {_printable(node.source)}", style="dim")


def value_text(node: Node) -> str:
    """The value with its unit; over contexts the mean and the range."""
    if not isinstance(node.value, np.ndarray):
        return number_text(node.value, node.unit)
    low, high = number_text(float(node.value.min()), node.unit), number_text(float(node.value.max()), node.unit)
    return f"{number_text(node.mean, node.unit)} ({low} to {high})"


def number_text(value: float, unit: str) -> str:
    """A number with its unit, whole numbers in full below ten million.

    >>> number_text(524288.0, "B"), number_text(4096.0, ""), number_text(3.35e12, "B/s"), number_text(0.00344, "s")
    ('524,288 B', '4,096', '3.350 TB/s', '3.440 ms')
    """
    if float(value).is_integer() and abs(value) < 1e7 and unit != "s":
        return f"{int(value):,} {unit}".rstrip()
    return show(value, unit, digits=4)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
