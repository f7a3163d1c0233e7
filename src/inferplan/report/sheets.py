"""A plan as CSV, Parquet, Markdown and as a workbook whose formulas stay live. Computes no figure that the plan does not hold."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from inferplan.errors import InferplanError, escaped
from inferplan.planner.plan import Choice, Plan
from inferplan.planner.rows import choice_rows
from inferplan.report.files import csv_text, harmless
from inferplan.report.plan import headline, sentence, swing_text, usd
from inferplan.terms import TERMS
from inferplan.units import show

if TYPE_CHECKING:
    from collections.abc import Sequence

MONTHS = 24


def plan_csv(p: Plan, *, comment: bool = True) -> str:
    """A row per choice under the glossary's keys, in base units; as a comment in front what was asked, what is answered, and units."""
    rows = choice_rows(p)
    columns = list(rows[0])
    if not comment:
        return csv_text(rows, columns)
    named = [f"{c} [{TERMS[c].unit}] {TERMS[c].meaning}" for c in columns if c in TERMS and TERMS[c].unit]
    lines = [headline(p), sentence(p), p.targets.text, *named]
    return "".join(f"# {_line(text)}\n" for text in lines if text) + csv_text(rows, columns)


def _line(text: str) -> str:
    return " ".join(text.split())


def plan_parquet(p: Plan) -> bytes:
    """A row per choice as Parquet; raises InferplanError where pyarrow is not there."""
    arrow, parquet = pyarrow()
    out = io.BytesIO()
    parquet.write_table(arrow.Table.from_pylist(choice_rows(p)), out)
    return out.getvalue()


def pyarrow() -> tuple[Any, Any]:
    """The modules pyarrow and its Parquet writer; raises InferplanError where they are not there."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise InferplanError("--parquet: needs pyarrow: pip install 'inferplan[parquet]'") from None
    return arrow, parquet


def openpyxl() -> Any:
    """The module openpyxl; raises InferplanError where it is not there."""
    try:
        import openpyxl as found
    except ImportError:
        raise InferplanError("--xlsx: needs openpyxl: pip install 'inferplan[xlsx]'") from None
    return found


def plan_markdown(p: Plan) -> str:
    """The plan as Markdown: the sentence, choices, limits, what it hangs on."""
    parts = [f"# {_cell(headline(p))}", _cell(sentence(p)), f"Limits: {p.targets.text}." if p.targets.limits else ""]
    head = ["choice", "devices", "mean / peak / kept", "USD a month", "USD per M tokens", "verdict"]
    rows = [[c.name, f"{c.fleet.gpus:,}", f"{c.fleet.at_mean} / {c.fleet.at_peak} / {c.fleet.replicas}",
             usd(c.bill.usd_per_month) if c.bill else "", usd(c.bill.usd_per_million_blended_tokens) if c.bill else "", c.verdict]
            for c in p.choices]  # fmt: skip
    parts.append(_markdown(head, rows))
    if p.best.latencies:
        limits = [[late.target.name, show(late.shown_s, "s"), show(late.target.limit_s, "s")] for late in p.best.latencies]
        parts.append(_markdown(["time at the peak", "value", "limit"], limits))
    if p.swings:
        moved = [[swing_text(s), f"{s.fleet.replicas:,}" if s.fleet else "none would do"] for s in p.swings]
        parts.append(_markdown(["one change", "replicas"], moved))
    if p.fallen:
        parts.append(_markdown(["fell out", "why", "nearest"], [[f"{f.count:,}", f.group, f"{f.example}: {f.reason}"] for f in p.fallen]))
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown(head: Sequence[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(c) for c in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return _line(text).replace("|", "\\|")


# the workbook

ASSUMED = (
    ("mean", "requests per second today, mean", "1/s"),
    ("peak", "requests per second today, peak", "1/s"),
    ("growth", "growth a month", "share"),
    ("months", "months until the day that is planned for", "months"),
    ("buffer", "planned beyond the peak", "share"),
    ("queueing", "share of a replica's rate that is planned on it", "share"),
    ("spare", "spare units for failures", "units"),
    ("zones", "zones", ""),
    ("input", "input tokens of a request, mean", "tokens"),
    ("output", "output tokens of a request, mean", "tokens"),
    ("hours", "hours of a month", "h"),
    ("price", "price change, for all parts", "share"),
)
AT = {name: f"Assumptions!$B${row}" for row, (name, _, _) in enumerate(ASSUMED, start=4)}
HEAD = (
    "choice", "part", "devices per replica", "replica takes (1/s)", "provider", "USD per device and h", "devices of a node",
    "replicas at the mean", "replicas at the peak", "replicas kept", "devices", "billed devices", "USD per h", "USD a month",
    "USD per M tokens", "USD per M output tokens, all on it", "use at the mean", "use at the peak", "verdict",
)  # fmt: skip


def plan_workbook(p: Plan) -> bytes:
    """A workbook: assumptions to change, choices and growth computed from them by formulas. Raises InferplanError without openpyxl."""
    book = openpyxl().Workbook()
    _assumptions_sheet(book.active, p)
    _plan_sheet(book.create_sheet("Plan"), p)
    _growth_sheet(book.create_sheet("Growth"))
    _limits_sheet(book.create_sheet("Limits"), p)
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()


def _words(text: str) -> str:
    """A text in a workbook, which holds no control character."""
    return str(harmless(escaped(text)))


def _assumptions_sheet(sheet: Any, p: Plan) -> None:
    d, s, rule = p.demand, p.goal.safety, p.goal.safety.rule
    spare = rule.spare if rule.kind in ("spare", "zonal") else p.best.fleet.kept_units - p.best.fleet.units if rule.kind == "chance" else 0
    values = {
        "mean": d.mean_per_s, "peak": d.peak_per_s, "growth": d.growth_per_month, "months": d.months, "buffer": d.buffer,
        "queueing": s.queueing, "spare": spare, "zones": s.zones, "input": p.work.input.mean, "output": p.work.output.mean,
        "hours": p.goal.money.hours_per_month, "price": 0.0,
    }  # fmt: skip
    sheet.title = "Assumptions"
    sheet.append([_words(headline(p))])
    sheet.append([_words(sentence(p))])
    sheet.append(["assumption", "value", "unit"])
    for name, meaning, unit in ASSUMED:
        sheet.append([meaning, values[name], unit])
    sheet.append([])
    sheet.append(["planned mean (1/s)", f"={AT['mean']}*(1+{AT['growth']})^{AT['months']}*(1+{AT['buffer']})"])
    sheet.append(["planned peak (1/s)", f"={AT['peak']}*(1+{AT['growth']})^{AT['months']}*(1+{AT['buffer']})"])
    sheet.append(["mean on that day (1/s)", f"={AT['mean']}*(1+{AT['growth']})^{AT['months']}"])
    sheet.append([])
    sheet.append(["Change column B, and prices on the sheet Plan: all else follows. What a replica takes comes from inferplan,"])
    sheet.append([f"for limits {p.targets.text or 'of a measurement'}; with other lengths or limits make a new plan."])
    sheet.append([f"Redundancy: {_words(s.redundancy)}" + ("; spares are those of this plan" if rule.kind == "chance" else "")])
    for column, width in (("A", 50), ("B", 16), ("C", 10)):
        sheet.column_dimensions[column].width = width


PLANNED = {name: f"Assumptions!$B${len(ASSUMED) + row}" for name, row in (("mean", 5), ("peak", 6), ("day", 7))}


def needed(rate: str, per_replica: str) -> str:
    """The formula of replicas for a rate."""
    return f"MAX(1,ROUNDUP({rate}/({per_replica}*{AT['queueing']})-0.000000001,0))"


def kept(kind: str, at_peak: str, each: str) -> str:
    """The formula of replicas with spares, where `each` stand on what fails at once."""
    units = f"ROUNDUP({at_peak}/{each},0)"
    held = {
        "zone": f"ROUNDUP({units}*{AT['zones']}/({AT['zones']}-1)-0.000000001,0)",
        "zonal": f"{AT['zones']}*(ROUNDUP({units}/{AT['zones']},0)+{AT['spare']})",
    }.get(kind, f"({units}+{AT['spare']})")
    return f"{at_peak}+({held}-{units})*{each}"


def billed(replicas: str, gpus: str, node: str) -> str:
    """The formula of devices that are paid for: whole nodes."""
    within = f"ROUNDUP({replicas}/INT({node}/{gpus}),0)*{node}"
    return f"IF({node}=1,{replicas}*{gpus},IF({node}>={gpus},{within},{replicas}*ROUNDUP({gpus}/{node},0)*{node}))"


def _plan_sheet(sheet: Any, p: Plan) -> None:
    sheet.append(list(HEAD))
    for row, c in enumerate(p.choices, start=2):
        sheet.append(_plan_cells(c, row, p.goal.safety.rule.kind))
    for i, name in enumerate(HEAD):
        sheet.column_dimensions[sheet.cell(1, i + 1).column_letter].width = max(12, min(40, len(name)))
    sheet.freeze_panes = "B2"


def _plan_cells(c: Choice, row: int, kind: str) -> list[Any]:
    """One choice, columns A to S."""
    offer = c.fleet.offer
    each = f"MAX(1,INT($G{row}/$C{row}))"
    spares = f"I{row}+{c.fleet.replicas - c.fleet.at_peak}" if c.pools else kept(kind, f"I{row}", each)
    tokens = f"{PLANNED['day']}*3600*{AT['hours']}"
    return [
        _words(c.name), _words(c.part), c.gpus_per_replica, c.rate_per_s, _words(offer.name) if offer else "",
        offer.usd_per_gpu_h if offer else None, offer.node_gpus if offer else 1,
        f"=MIN(I{row},{needed(PLANNED['mean'], f'D{row}')})", f"={needed(PLANNED['peak'], f'D{row}')}",
        f"={spares}", f"=J{row}*C{row}", f"={billed(f'J{row}', f'C{row}', f'G{row}')}",
        f"=L{row}*F{row}*(1+{AT['price']})", f"=M{row}*{AT['hours']}",
        f"=N{row}*1000000/({tokens}*({AT['input']}+{AT['output']}))", f"=N{row}*1000000/({tokens}*{AT['output']})",
        f"={PLANNED['day']}/(J{row}*D{row})", f"={PLANNED['peak']}/(I{row}*D{row})", c.verdict,
    ]  # fmt: skip


def _growth_sheet(sheet: Any) -> None:
    sheet.append(["month", "mean (1/s)", "peak with what is planned beyond it (1/s)", "replicas at the peak", "devices at the peak"])
    for month in range(MONTHS + 1):
        row = month + 2
        sheet.append([
            month, f"={AT['mean']}*(1+{AT['growth']})^A{row}", f"={AT['peak']}*(1+{AT['growth']})^A{row}*(1+{AT['buffer']})",
            f"={needed(f'C{row}', 'Plan!$D$2')}", f"=D{row}*Plan!$C$2",
        ])  # fmt: skip
    for column in "BCDE":
        sheet.column_dimensions[column].width = 20


def _limits_sheet(sheet: Any, p: Plan) -> None:
    at = ["at the mean (s)", "at the peak (s)", "simulated at the peak (s)", "half of its interval (s)"]
    sheet.append(["choice", "time", "limit (s)", *at])
    for c in p.choices:
        for late in c.latencies:
            cells = [late.target.limit_s, late.at_mean_s, late.at_peak_s, late.simulated_s, late.half_width_s]
            sheet.append([_words(c.name), late.target.name, *cells])
    sheet.column_dimensions["A"].width = 50
