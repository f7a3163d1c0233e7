"""The picture of the README: `python tools/readme_picture.py` writes docs/assets/overview.png from the tool itself.

On the left where decoding and prefill of a model lie under the roofs of a part; on the right what served runs took against what was
estimated, runs that nothing was fitted to. On white, so that it is legible on light and dark pages.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np

import inferplan as ip
from inferplan.calibrate.cases import read_cases
from inferplan.calibrate.summary import summary
from inferplan.calibrate.validate import Outcome, outcomes
from inferplan.report.canvas import BLUE, DARK, DASHED, GREEN, STYLE, VERMILION, title, unit_axis
from inferplan.report.plots import plot_roofline

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs" / "assets" / "overview.png"
PARTS = {"h100": (BLUE, "o"), "a100": (VERMILION, "s"), "l40s": (GREEN, "^")}


def measured(ax: Any, found: list[Outcome]) -> None:
    """End-to-end times of served runs: measured against estimated, a colour and mark for each part."""
    values = np.array([(o.case.value, o.predicted) for o in found], dtype=float)
    low, high = values.min() / 1.3, values.max() * 1.3
    line = np.array([low, high])
    ax.plot(line, line, color=DARK, lw=0.7)
    for factor in (0.8, 1.2):
        ax.plot(line, factor * line, color=DARK, lw=0.5, ls=DASHED)
    for name, (colour, mark) in PARTS.items():
        own = np.array([(o.case.value, o.predicted) for o in found if o.case.row["gpu"].startswith(name)], dtype=float)
        ax.scatter(own[:, 0], own[:, 1], s=11, marker=mark, color=colour, alpha=0.75, lw=0, label=f"{name.upper()}, {len(own)} runs")
    ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    unit_axis(ax.xaxis, "measured", "s", (low, high))
    unit_axis(ax.yaxis, "estimated", "s", (low, high))
    ax.legend(loc="upper left", title="dashed: 20 % off")
    error = summary(found).median_error or 0.0
    models = len({o.case.row["model"] for o in found})
    title(ax, f"End to end under vLLM, {len(found)} served runs, {models} models", f"nothing fitted: median error {100 * error:.1f} %")


def main(target: Path = TARGET) -> None:
    """Draw and write it."""
    from matplotlib import style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    cases = [c for c in read_cases(ROOT / "validation" / "open_loop.csv")[0] if c.quantity == "e2e_s" and c.row["statistic"] == "mean"]
    with style.context(STYLE):
        figure = Figure(figsize=(7.4, 3.1), layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2)
        plot_roofline(ip.estimate(ip.model("7b"), ip.hardware("h100"), ip.precision("fp8")), ax=left)
        measured(right, outcomes(cases))
        out = io.BytesIO()
        figure.savefig(out, dpi=200)
    Image.open(out).convert("RGB").quantize(96).save(target, optimize=True)


if __name__ == "__main__":
    main(*(Path(p) for p in sys.argv[1:2]))
