"""What estimates said when the table was last written: `python tools/golden.py` writes it anew, and CHANGELOG.md says why it moved."""

import csv
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import golden  # noqa: E402 - a tool of the repository, not of the package

with golden.TABLE.open(newline="") as stream:
    ROWS = list(csv.DictReader(stream))


def test_every_case_is_in_the_table() -> None:
    assert [tuple(row[k] for k in golden.ASKED) for row in ROWS] == [tuple(map(str, case)) for case in golden.CASES]


@pytest.mark.parametrize(
    ("case", "expected"), list(zip(golden.CASES, ROWS, strict=True)), ids=[f"{c[0]}-{c[1]}-{c[2]}" for c in golden.CASES]
)
def test_numbers_stay(case: tuple, expected: dict[str, str]) -> None:
    found = golden.row(*case)
    for key in golden.KEPT:
        assert float(found[key]) == pytest.approx(float(expected[key]), rel=1e-7), f"{key}: {found[key]}, was {expected[key]}"
