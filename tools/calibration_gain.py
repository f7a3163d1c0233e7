"""What 20 rows of one deployment do for its other rows: validation/CALIBRATE.md.

Usage: python tools/calibration_gain.py

Deployments are those with 34 rows of times or more in serving.csv, offline.csv and open_loop.csv whose median error under the shipped
calibration is 15 % or more, the worst twelve: `calibrate` is fitted to 20 of their rows, evenly spread, and judged on the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from markdown_table import table

from inferplan.calibrate.cases import Case, read_cases
from inferplan.calibrate.fit import calibrate, spread_over
from inferplan.calibrate.predict import Predictor
from inferplan.calibrate.summary import summary
from inferplan.calibrate.times import TIMES
from inferplan.calibrate.validate import outcomes
from inferplan.roofline.efficiency import Efficiency

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "validation" / "CALIBRATE.md"
FILES = ("serving.csv", "offline.csv", "open_loop.csv")
COLUMNS = ("model", "gpu", "engine", "engine_version", "weights", "tp")
FITTED, LEAST, WORTH, MOST = 20, 34, 0.15, 12

HEAD = """# What 20 rows of a deployment do for its other rows

Written by `python tools/calibration_gain.py`; do not edit. `inferplan calibrate` is fitted to 20 rows of a deployment, evenly spread over
them, and judged on the others. Deployments are the worst {shown} of those with at least {least} rows whose median error is 15 % or more.
{halved} of {shown} come down to half or less.

{rows}"""


def deployments() -> dict[tuple[str, ...], list[Case]]:
    """Rows of times by deployment, those with enough of them."""
    found: dict[tuple[str, ...], list[Case]] = defaultdict(list)
    for name in FILES:
        for case in read_cases(ROOT / "validation" / name)[0]:
            if case.quantity in TIMES:
                found[(name, *(case.text(column) or "" for column in COLUMNS))].append(case)
    return {key: cases for key, cases in found.items() if len(cases) >= LEAST}


def error(cases: Sequence[Case], efficiency: Efficiency) -> float:
    """Median error of cases."""
    return summary(outcomes(cases, Predictor(efficiency))).median_error or 0.0


def gain(cases: Sequence[Case]) -> tuple[float, float, int]:
    """Median error of the rows that were not fitted to, before and after, and how many they are."""
    fitted = spread_over(cases, FITTED)
    kept = {id(case) for case in fitted}
    rest = [case for case in cases if id(case) not in kept]
    found = calibrate(fitted, Efficiency.default())
    return error(rest, Efficiency.default()), error(rest, found.efficiency), len(rest)


def main() -> None:
    every = deployments()
    errors = {key: error(cases, Efficiency.default()) for key, cases in every.items()}
    worst = sorted((key for key, e in errors.items() if e >= WORTH), key=lambda key: -errors[key])[:MOST]
    lines, halved = [], 0
    for key in worst:
        before, after, count = gain(every[key])
        halved += after <= before / 2
        lines.append([*key, str(count), f"{100 * before:.1f} %", f"{100 * after:.1f} %", f"{after / before:.2f}"])
        print(" ".join(lines[-1]), flush=True)
    rows = table(["file", *COLUMNS, "other rows", "before", "after", "ratio"], lines)
    PAGE.write_text(HEAD.format(shown=len(worst), least=LEAST, halved=halved, rows=rows))


if __name__ == "__main__":
    main()
