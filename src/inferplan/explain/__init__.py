"""Every headline number as a tree of equations down to sources. Knows the estimate's parts, no screen and no option's spelling."""

from inferplan.explain.node import Node, evaluate
from inferplan.explain.quantities import QUANTITIES, explain

__all__ = ["QUANTITIES", "Node", "evaluate", "explain"]
