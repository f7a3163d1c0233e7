"""What several screens and pictures say alike of a deployment: resolved names, devices, split, engine, why it does not fit.

Knows no equation and no layout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from inferplan.units import parse, show, significant

if TYPE_CHECKING:
    from inferplan.deployment import Estimate

WAYS = ("tp", "pp", "dp", "ep", "dcp", "cp")


def resolved(asked: str, name: str) -> str:
    """A name as it was typed, and what it was taken for.

    >>> resolved("h100", "h100-sxm5-80gb"), resolved("llama-3.1-8b", "llama-3.1-8b")
    ('h100 -> h100-sxm5-80gb', 'llama-3.1-8b')
    """
    return name if asked == name else f"{asked} -> {name}"


def heading(title: str, asked: str, name: str) -> str:
    """A title with how its name was found, where it was found by another."""
    return title + (f"  ({resolved(asked, name)})" if asked != name else "")


def devices(e: Estimate) -> str:
    """How many devices, before the title of one."""
    return "one" if e.gpus == 1 else f"{e.gpus:,} x"


def drawn_devices(e: Estimate) -> str:
    """The same above a picture, where a single one goes without saying."""
    return "" if e.gpus == 1 else f"{e.gpus} x "


def ways(e: Estimate) -> dict[str, int]:
    """The split, by kind of parallelism."""
    return {name: int(np.asarray(getattr(e.setting.parallel, name))) for name in WAYS}


def split(e: Estimate) -> str:
    """The kinds of parallelism in use; '' on a single device."""
    return ", ".join(f"{name} {n}" for name, n in ways(e).items() if n > 1)


def engine(e: Estimate) -> str:
    """The engine with its release."""
    return "none" if e.engine.name == "ideal" else f"{e.engine.title} {e.engine.version}"


def under(e: Estimate) -> str:
    """Whose reserve is counted."""
    return "before any engine overhead" if e.engine.name == "ideal" else f"under {engine(e)}"


def requests(count: float) -> str:
    """A number of requests in words."""
    return "any number of such requests" if not np.isfinite(count) else f"{count:,.0f} such request{'s' if count != 1 else ''}"


def shortage(e: Estimate) -> str:
    """Why a batch does not fit."""
    return e.capacity.reason() or f"there is room for {requests(e.max_sequences)}, not {e.load.batch:,}"


def with_band(value_s: float, ends: tuple[float, float] | None, text: str = "") -> str:
    """A time with the ends of its 80 % band, in the unit of the time; `text` in place of the time's own.

    >>> with_band(0.00438, (0.0036, 0.0053)), with_band(0.9, (0.62, 6.5)), with_band(0.9, None)
    ('4.38 ms (3.6-5.3)', '900 ms (620-6,500)', '900 ms')
    """
    shown = text or show(value_s, "s")
    if ends is None or not value_s:
        return shown
    unit = parse(f"1 {show(value_s, 's').split(' ')[1]}", "s")
    low, high = (significant(end / unit, 2) for end in ends)
    return f"{shown} ({low}-{high})"


def band_words(ends: tuple[float, float] | None) -> str:
    """The ends of a band alone.

    >>> band_words((0.0036, 0.0053)), band_words((0.62, 6.5)), band_words(None)
    ('3.6-5.3 ms', '620-6,500 ms', '')
    """
    return "" if ends is None else f"{with_band(ends[0], ends).partition('(')[2].rstrip(')')} {show(ends[0], 's').split(' ')[1]}"
