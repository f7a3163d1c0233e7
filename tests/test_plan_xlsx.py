"""The workbook of a plan: its formulas, evaluated here, give the plan's own figures and follow when an assumption is changed."""

import io
import math
import re

import pytest

from inferplan.planner.plan import plan
from inferplan.report.files import csv_text, harmless
from inferplan.report.sheets import HEAD, plan_csv, plan_markdown, plan_workbook

openpyxl = pytest.importorskip("openpyxl")
CELL = re.compile(r"(?:(\w+)!)?\$?([A-Z]{1,2})\$?(\d+)")


def round_up(x, places):
    assert places == 0
    return math.ceil(x)


class Book:
    """A small evaluator of the operators and functions that the workbook uses."""

    def __init__(self, data: bytes, changed: dict[tuple[str, str], float] | None = None) -> None:
        self.book = openpyxl.load_workbook(io.BytesIO(data))
        for (sheet, cell), value in (changed or {}).items():
            self.book[sheet][cell].value = value

    def value(self, sheet: str, cell: str):
        found = self.book[sheet][cell].value
        if not (isinstance(found, str) and found.startswith("=")):
            return found

        def refer(match: re.Match[str]) -> str:
            return f"ref({match[1] or sheet!r}, {match[2] + match[3]!r})"

        text = CELL.sub(refer, found[1:]).replace("^", "**")
        text = re.sub(r"(?<![<>=])=(?!=)", "==", text).replace("IF(", "when(")
        names = {"ref": self.value, "MAX": max, "MIN": min, "ROUNDUP": round_up, "INT": math.floor, "when": lambda c, a, b: a if c else b}
        return eval(text, {"__builtins__": {}}, names)  # noqa: S307 - formulas that this test has just written

    def column(self, name: str, row: int = 2):
        return self.value("Plan", f"{openpyxl.utils.get_column_letter(HEAD.index(name) + 1)}{row}")


def measured(**safety):
    return plan({
        "traffic": {"rate_per_s": 200.0, "peak_per_s": 800.0, "growth_per_month": 0.03, "months": 6.0},
        "lengths": {"input": "1000", "output": "200"}, "measured": {"rate_per_s": 120.0, "gpus": 2},
        "safety": {"queueing": 0.65, "buffer": 0.2, **safety}, "search": {"gpus": ["h100"]},
        "money": {"prices": {"h100": 2.5}, "node_gpus": 8},
    })  # fmt: skip


@pytest.mark.parametrize(
    "safety",
    [{"redundancy": "none"}, {"redundancy": "n+2"}, {"redundancy": "zone", "zones": 3}, {"redundancy": "n+1/zone", "zones": 2},
     {"redundancy": "p>=0.999", "node_availability": 0.95}],
    ids=lambda s: s["redundancy"],
)  # fmt: skip
def test_formulas_give_the_plans_figures(safety):
    found = measured(**safety)
    f, b, book = found.best.fleet, found.best.bill, Book(plan_workbook(found))
    assert b is not None
    assert book.value("Assumptions", "B18") == pytest.approx(found.demand.planned_peak_per_s)
    assert (book.column("replicas at the mean"), book.column("replicas at the peak")) == (f.at_mean, f.at_peak)
    assert (book.column("replicas kept"), book.column("devices"), book.column("billed devices")) == (f.replicas, f.gpus, f.billed_gpus)
    assert book.column("USD a month") == pytest.approx(b.usd_per_month)
    assert book.column("USD per M tokens") == pytest.approx(b.usd_per_million_blended_tokens)
    assert book.column("USD per M output tokens, all on it") == pytest.approx(b.usd_per_million_tokens_all_on_output)


def test_formulas_follow_what_a_reader_changes():
    data = plan_workbook(measured(redundancy="none"))
    plain = Book(data)
    cheaper = Book(data, {("Assumptions", "B15"): -0.3})
    assert cheaper.column("USD a month") == pytest.approx(0.7 * plain.column("USD a month"))
    fuller = Book(data, {("Assumptions", "B9"): 1.0})
    assert fuller.column("replicas at the peak") == math.ceil(800 * 1.03**6 * 1.2 / 120)
    still = Book(data, {("Assumptions", "B6"): 0.0})
    assert still.column("replicas at the peak") == 13  # ceil(960 / 78)
    assert still.column("replicas at the mean") == 4  # ceil(240 / 78)
    dearer = Book(data, {("Plan", "F2"): 5.0})
    assert dearer.column("USD per h") == pytest.approx(2 * plain.column("USD per h"))


def test_growth_sheet_counts_replicas_by_month():
    book = Book(plan_workbook(measured(redundancy="none")))
    assert [book.value("Growth", f"D{row}") for row in (2, 8)] == [13, math.ceil(800 * 1.03**6 * 1.2 / 78)]


def test_every_formula_can_be_evaluated():
    book = Book(plan_workbook(measured(redundancy="zone", zones=3)))
    for sheet in book.book:
        for row in sheet.iter_rows():
            for cell in row:
                value = book.value(sheet.title, cell.coordinate)
                assert value is None or isinstance(value, str) or math.isfinite(value)


def test_texts_of_the_user_become_no_formulas():
    risky = ("=1", "+1", "-1", "@x", "\tx", " =1")
    assert [harmless(t) for t in risky] == [f"'{t}" for t in risky]
    assert [harmless(t) for t in ("x=1", -1)] == ["x=1", -1]
    assert csv_text([{"name": "=1", "value": -1.5}], ["name", "value"]) == "name,value\n'=1,-1.5\n"
    found = plan({"traffic": {"rate_per_s": 1.0}, "measured": {"rate_per_s": 1.0, "source": "=HYPERLINK(1)\n|x"}})
    cells = [c for sheet in Book(plan_workbook(found)).book for row in sheet.iter_rows() for c in row]
    assert not any(isinstance(c.value, str) and c.value.startswith("=") and "HYPERLINK" in c.value for c in cells)
    assert all(not line.startswith("=") for line in plan_csv(found).splitlines())
    assert "\\|x" in plan_markdown(found)


def test_csv_comes_with_and_without_its_comment():
    found = measured(redundancy="none")
    with_, without = plan_csv(found), plan_csv(found, comment=False)
    assert with_.endswith(without)
    assert with_.startswith("# ")
    assert without.startswith("model,hardware,")
    assert len(without.splitlines()) == 2
