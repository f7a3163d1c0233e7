"""docs/questions.md from validation/questions.yaml: what people asked, the published answer, and what one command says.

Usage: python tools/questions_page.py
"""

from __future__ import annotations

import contextlib
import io
import json
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from inferplan.cli.app import main as inferplan
from inferplan.units import show

ROOT = Path(__file__).parents[1]
QUESTIONS = ROOT / "validation" / "questions.yaml"
PAGE = ROOT / "docs" / "questions.md"
UNITS = {"bytes": "B", "s": "s", "flops": "FLOP"}
TITLES = {"memory": "Does it fit", "speed": "How fast", "fleets": "How many"}

HEAD = """# Questions that people ask

Written by `python tools/questions_page.py` from `validation/questions.yaml`; do not edit. Questions are from public threads,
paraphrased, with the answer that maintainers gave, that was measured, or that follows from the model's shape; beside it stands what
one command says. Every command is a test that compares the two. {asked} questions, {answered} of them answered by {checks} commands; the
others say why not.
"""


@cache
def ran(command: str) -> tuple[int, str, str]:
    """Exit code, output and remarks of a command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = inferplan(shlex.split(command))
    return code, out.getvalue(), err.getvalue()


def answer(command: str, key: str) -> Any:
    """A value out of the JSON answer of a command; list entries by number."""
    found = json.loads(ran(f"{command} --json")[1])
    for part in key.split("."):
        found = found[int(part) if part.isdigit() else part]
    return found


def questions() -> dict[str, list[dict[str, Any]]]:
    """All questions by group."""
    found: dict[str, list[dict[str, Any]]] = yaml.safe_load(QUESTIONS.read_text())
    return found


def shown(key: str, value: Any) -> str:
    """A value with its unit.

    >>> shown("fits", True), shown("request_bytes", 2**30), shown("ttft_s.p99", 2.0), shown("kv_cache_tokens", 3532976)
    ('yes', '1.00 GiB', '2.00 s', '3,532,976')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    parts = [word for name in key.split(".") for word in name.split("_")]
    unit = next((UNITS[word] for word in parts if word in UNITS), None)
    if unit:
        return f"{value:,} B" if isinstance(value, int) and "token" in parts else show(float(value), unit, binary=unit == "B")
    return f"{value:,}" if isinstance(value, int) else f"{value:,.5g}"


def line(check: dict[str, Any]) -> str:
    """A command with what it says and what was published."""
    command = f"`inferplan {check['command']}`"
    if "refused" in check:
        return f"- {command}: refused with exit code 1, \"{check['refused']}\""
    if "said" in check:
        return f"- {command}: \"{check['said']}\""
    key = check["key"]
    return f"- {command}: `{key}` **{shown(key, answer(check['command'], key))}**, published {shown(key, check['value'])}"


def without(question: dict[str, Any]) -> str:
    """What stands where no single command answers."""
    return f"- Tested: {question['property']}." if "property" in question else f"- No command: {question['not_computed']}."


def entry(question: dict[str, Any]) -> str:
    """A question with its answers."""
    below = [line(check) for check in question.get("checks", ())] or [without(question)]
    work = ["", f"By hand: {question['work']}."] if "work" in question else []
    return "\n".join([f"**{question['question']}**", "", f"{question['answer']} ({question['source']}).", *work, "", *below, ""])


def page() -> str:
    """The whole page."""
    asked = [q for group in questions().values() for q in group]
    checks = sum(len(q.get("checks", ())) for q in asked)
    head = HEAD.format(asked=len(asked), answered=sum("checks" in q for q in asked), checks=checks)
    groups = [f"## {TITLES[name]}\n\n" + "\n".join(entry(q) for q in group) for name, group in questions().items()]
    return "\n".join([head, *groups]).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
