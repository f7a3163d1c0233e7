"""Work of single operators, in FLOPs and counts: matrix products, attention, recurrences, mixtures. Knows no clock, no part, no model."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

Numeric = float | NDArray[Any]
