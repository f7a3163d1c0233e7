"""A number with its equation and what went into it, as a tree. Knows how to evaluate an equation's text, and no quantity by name.

A node's value is made by evaluating its equation on its children, so that text and number cannot drift apart.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from types import CodeType
from typing import Any

import numpy as np

from inferplan.formula import FORMULAS, NAMESPACE
from inferplan.ops import Numeric
from inferplan.roofline.optime import soft_maximum
from inferplan.shown import Shown


def least(*values: Numeric) -> Numeric:
    """The smallest of several."""
    return reduce(np.minimum, values)


def evenly(first: float, last: float, points: float) -> Numeric:
    """Whole numbers evenly spread from the first to the last, at most so many of them."""
    return np.unique(np.round(np.linspace(first, last, int(points))))


WORDS = {
    **NAMESPACE, "mean": np.mean, "quantile": np.quantile, "inf": np.inf, "evenly": evenly, "least": least, "soft_maximum": soft_maximum,
}  # fmt: skip
SHOWN = 6


@dataclass(frozen=True, slots=True, eq=False)
class Node(Shown):
    """A value in a base unit: either with the equation that makes it from its children, or with the source it comes from.

    label
        a word that equations above use as its name.
    value
        a number, or an array over the contexts that an output runs through.
    equation
        an executable expression over the children's labels; '' for a leaf.
    source
        where a leaf comes from; '' elsewhere.
    """

    label: str
    value: Numeric
    unit: str
    equation: str = ""
    source: str = ""
    children: tuple[Node, ...] = ()

    def walk(self) -> Iterator[Node]:
        """The node itself and all below it."""
        ahead = [self]
        while ahead:
            node = ahead.pop()
            yield node
            ahead += reversed(node.children)

    def named(self, label: str) -> Node:
        """The same under another name."""
        return replace(self, label=label)

    @property
    def mean(self) -> float:
        """Its value, or the mean over contexts."""
        return self.value if isinstance(self.value, float) else float(np.mean(self.value))

    @property
    def is_zero(self) -> bool:
        """Whether it is nothing everywhere."""
        return self.value == 0 if isinstance(self.value, float) else not np.any(self.value)


def evaluate(equation: str, values: Mapping[str, Numeric]) -> Numeric:
    """An equation's text on values by name.

    >>> float(evaluate("2 * batch * length", {"batch": 3, "length": 4}))
    24.0
    """
    found = eval(_compiled(equation), {"__builtins__": {}, **WORDS, **values})  # noqa: S307 - the project's own text over labels
    return plain(found)


@lru_cache(maxsize=4096)
def _compiled(equation: str) -> CodeType:
    return compile(equation, "<equation>", "eval")


def plain(value: Any) -> Numeric:
    """A float, or a vector that is not the same number throughout."""
    if isinstance(value, (int, float)):
        return float(value)
    array = np.asarray(value, dtype=float)
    return float(array) if array.ndim == 0 else array


def leaf(label: str, value: Any, unit: str, source: str) -> Node:
    """A number that comes from somewhere."""
    return Node(label, plain(value), unit, source=source)


def derived(label: str, equation: str, unit: str, *children: Node) -> Node:
    """The number that an equation makes of its children.

    >>> derived("bytes", "2 * params", "B", leaf("params", 7e9, "", "given")).value
    14000000000.0
    """
    return Node(label, evaluate(equation, {c.label: c.value for c in children}), unit, equation, children=children)


def by_formula(label: str, name: str, /, **inputs: Node) -> Node:
    """The number that one of the project's stated formulas makes; the inputs take its arguments' names."""
    stated = FORMULAS[name]
    return derived(label, stated.text, stated.unit, *(node.named(argument) for argument, node in inputs.items()))


def product(label: str, unit: str, *factors: Node | str | None, over: Sequence[Node | None] = ()) -> Node:
    """Factors multiplied, and divided by those in `over`; a text is a constant or an expression, None is left out."""
    top = [f for f in factors if f is not None]
    below = [f for f in over if f is not None]
    text = " * ".join(f if isinstance(f, str) else f.label for f in top) + "".join(f" / {f.label}" for f in below)
    nodes: dict[str, Node] = {n.label: n for n in (*top, *below) if isinstance(n, Node)}
    return derived(label, text, unit, *nodes.values())


def total(label: str, unit: str, terms: Iterable[Node], *, empty: str = "nothing of the kind") -> Node:
    """The sum of terms: the largest few by name, the others as one child that opens again. Terms of zero are left out."""
    found = sorted((t for t in terms if not t.is_zero), key=lambda t: -abs(t.mean))
    if not found:
        return leaf(label, 0.0, unit, f"counted: {empty}")
    if len(found) > SHOWN + 1:
        others = total(f"others_{len(found) - SHOWN}", unit, found[SHOWN:])
        found = [*found[:SHOWN], others]
    found = distinct(found)
    return derived(label, " + ".join(t.label for t in found), unit, *found)


def distinct(nodes: Iterable[Node]) -> list[Node]:
    """The same with labels that differ: later ones of a name are numbered."""
    seen: dict[str, int] = {}
    found = []
    for node in nodes:
        seen[node.label] = count = seen.get(node.label, 0) + 1
        found.append(node if count == 1 else node.named(f"{node.label}_{count}"))
    return found


def word(text: str) -> str:
    """A name as equations may use it.

    >>> word("layer.attention.qkv"), word("1x"), word("floor")
    ('layer_attention_qkv', 'n1x', 'floor_')
    """
    found = re.sub(r"[^0-9A-Za-z_]+", "_", text).strip("_") or "n"
    found = f"n{found}" if found[0].isdigit() else found
    return f"{found}_" if keyword.iskeyword(found) or found in WORDS else found
