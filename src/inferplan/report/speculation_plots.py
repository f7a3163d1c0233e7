"""Pictures of speculative decoding: gain against batch by draft length, and against draft length by batch. Knows no equation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from inferplan.report.canvas import (
    BEYOND,
    BLACK,
    BLUE,
    DASHED,
    GREEN,
    GROUND,
    LOOKS,
    ORANGE,
    PURPLE,
    SKY,
    SMALL,
    VERMILION,
    canvas,
    panels,
    plain,
    powers_of_two,
    title,
)
from inferplan.report.words import drawn_devices
from inferplan.speculation.answer import Speculation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY)
LINES, EVERY, HEADROOM = 5, 0.25, 1.5  # the last: room above the lines for a legend


def plot_speculation(s: Speculation, *, ax: Axes | None = None) -> Axes:
    """Gain against batch for some draft lengths, above; against draft length for some batches, below. The axes returned are the upper."""
    with canvas(ax) as ax:
        e = s.plain
        load = f"{e.load.input_tokens:,} tokens in, {e.load.output_tokens:,} out"
        title(ax, f"{e.model.title}, draft: {s.draft.title}", f"on {drawn_devices(e)}{e.hardware.title}, {e.precision.summary}", load)
        if len(s.lengths) == 1:
            _against_batch(ax, s)
            ax.set_xlabel("batch, sequences")
            return ax
        upper, lower = panels(ax)
        upper.tick_params(labelbottom=True)
        upper.set_xlabel("batch, sequences")
        place: Any = lower.get_subplotspec()
        lower.remove()  # its axis would be that of the upper one
        lower = ax.figure.add_subplot(place)
        _against_batch(upper, s)
        _against_length(lower, s)
        return upper


def chosen_lengths(s: Speculation) -> list[int]:
    """Draft lengths that get a line: the one asked for and a few around it."""
    known = [int(g) for g in s.lengths]
    wanted = {s.draft_tokens, *(g for g in (1, 2, 4, 8, 16) if g in known)}
    near = sorted(wanted, key=lambda g: (abs(np.log2(g / s.draft_tokens)), g))
    return sorted(near[:LINES])


def chosen_batches(s: Speculation) -> list[int]:
    """Loads that get a line: the one asked for and a few up to what fits."""
    powers = s.batches[np.log2(s.batches) % 1 == 0]
    found = powers[np.unique(np.linspace(0, len(powers) - 1, LINES - 1).round().astype(int))]
    return sorted({int(b) for b in found} | {s.plain.load.batch})[: LINES + 1]


def _against_batch(ax: Axes, s: Speculation) -> None:
    most = 2.0 ** np.ceil(np.log2(max(32.0, 2 * s.batches[-1], min(4 * (s.turns_to_loss or 1.0), 4096.0))))
    batch = np.unique((2.0 ** np.arange(0, np.log2(most) + 0.1, EVERY)).round())
    for colour, look, g in zip(COLOURS, LOOKS, chosen_lengths(s), strict=False):
        gain = np.broadcast_to(np.asarray(s.at(batch, g).speed_up, dtype=float), batch.shape)
        drawn: Any = {"color": colour, "ls": look, "lw": 1.6 if g == s.draft_tokens else 0.9}
        ax.plot(batch, gain, label=f"{g} draft{'s' if g > 1 else ''}", gid=f"drafts {g}", **drawn)
    ax.set(xscale="log", xlim=(1, most))
    powers_of_two(ax.xaxis, 1, most)
    _frame(ax)
    room = s.max_sequences
    if np.isfinite(room) and room < most:
        ax.axvspan(max(room, 1), most, color=BEYOND, lw=0, zorder=0, gid="beyond")
        text = f"room for {plain(round(room))}" if room >= 1 else "nothing fits"
        ax.annotate(text, (0.99, 0.03), xycoords="axes fraction", ha="right", va="bottom", fontsize=SMALL, bbox=GROUND)
    at = s.turns_to_loss
    if at is not None and 1 < at <= most:
        ax.plot([at], [1.0], "o", ms=3, color=BLACK, gid="loss", clip_on=False, zorder=3)
        ax.plot([at, at], [0, 1], color=BLACK, lw=0.5, ls=DASHED, gid="loss line", zorder=1)
        side, shift = ("right", -2) if at * at > most else ("left", 2)
        style: Any = {"textcoords": "offset points", "ha": side, "va": "bottom", "fontsize": SMALL, "bbox": GROUND}
        ax.annotate(f"a loss from {plain(at)}", (at, 0), (shift, 2), **style)
    ax.legend(loc="upper right", ncol=3)


def _against_length(ax: Axes, s: Speculation) -> None:
    from matplotlib.ticker import MaxNLocator

    for colour, look, batch in zip(COLOURS, LOOKS, chosen_batches(s), strict=False):
        gain = np.broadcast_to(np.asarray(s.at(float(batch), s.lengths).speed_up, dtype=float), s.lengths.shape)
        drawn: Any = {"color": colour, "ls": look, "lw": 1.6 if batch == s.plain.load.batch else 0.9}
        ax.plot(s.lengths, gain, label=f"batch {plain(batch)}", gid=f"batch {batch}", **drawn)
        top = int(np.nanargmax(gain))
        ax.plot(s.lengths[top], gain[top], "o", ms=2.5, color=colour, gid="best")
    ax.set_xlim(s.lengths[0], s.lengths[-1])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("draft tokens (point: the best number)")
    _frame(ax)
    ax.legend(loc="upper right", ncol=3)


def _frame(ax: Axes) -> None:
    """An axis of gains from zero, with the line below which drafts are a loss."""
    top = HEADROOM * max(float(np.nanmax(np.asarray(line.get_ydata(), dtype=float))) for line in ax.lines)
    ax.set_ylim(0, max(top, 1.5))
    ax.axhline(1.0, color=BLACK, lw=0.7, ls=DASHED, gid="even", zorder=1)
    ax.set_ylabel("speed-up, times")
