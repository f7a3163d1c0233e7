"""Trees of explained numbers as a list of nodes without repetition, for a page to unfold. Knows how nodes are shown, no equation."""

from __future__ import annotations

from dataclasses import dataclass, field

from inferplan.explain import Node
from inferplan.report.explain import value_text

Entry = tuple[str, str, str, str, tuple[int, ...]]


@dataclass(slots=True)
class Pool:
    """Nodes that differ, each as label, value, equation, source and the places of its children."""

    entries: list[Entry] = field(default_factory=list)
    _places: dict[Entry, int] = field(default_factory=dict)
    _seen: dict[int, tuple[Node, int]] = field(default_factory=dict)

    def add(self, node: Node) -> int:
        """The place of a node, which is a new one only where none that reads alike, down to its leaves, is there already."""
        if id(node) in self._seen:
            return self._seen[id(node)][1]
        entry = (node.label, value_text(node), node.equation, node.source, tuple(self.add(child) for child in node.children))
        if entry not in self._places:
            self._places[entry] = len(self.entries)
            self.entries.append(entry)
        self._seen[id(node)] = (node, self._places[entry])
        return self._places[entry]
