"""Which options a release of an engine or a benchmark has, and what each sets: the table `engines/options.csv`. Knows no model."""

from __future__ import annotations

import csv
import io
import re
import shlex
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from inferplan.errors import SpecError, Unsupported, shown
from inferplan.specs.catalog import data_file
from inferplan.specs.document import read_text
from inferplan.specs.engine import version_key

FILE = "options.csv"
COLUMNS = ("engine", "tool", "sets", "of", "flag", "value", "since", "until", "source", "note")
TOOLS = ("serve", "bench", "config", "cluster", "image", "fact", "known")
_BUILD = re.compile(r"b?(\d{3,6})")


class Variable(str):
    """A word that is the value of an environment variable where the command runs: with text around it, or times a number.

    >>> Variable("LEADER_ADDRESS", after=":20000"), Variable("NODE_RANK", times=4).shell
    ('$(LEADER_ADDRESS):20000', '"$((NODE_RANK * 4))"')
    """

    __slots__ = ("after", "before", "name", "times")
    name: str
    before: str
    after: str
    times: int

    def __new__(cls, name: str, before: str = "", after: str = "", times: int = 1) -> Variable:
        """The word, which as a plain string reads as Kubernetes writes it."""
        word = super().__new__(cls, f"{before}$({name}){after}")
        word.name, word.before, word.after, word.times = name, before, after, times
        return word

    @property
    def shell(self) -> str:
        """The word for a shell."""
        value = f"${self.name}" if self.times == 1 else f"$(({self.name} * {self.times}))"
        return f'{shlex.quote(self.before) if self.before else ""}"{value}"{shlex.quote(self.after) if self.after else ""}'


def release_key(text: str) -> tuple[int, ...]:
    """A release as something that compares: version numbers by their parts, builds of llama.cpp by their number.

    >>> release_key("0.11.0"), release_key("b6089"), release_key("nightly")
    ((0, 11, 0), (6089,), ())
    """
    build = _BUILD.fullmatch(text.strip())
    return (int(build[1]),) if build else version_key(text)


@dataclass(frozen=True, slots=True)
class Option:
    """A row: what a flag sets in which releases.

    of
        the word of ours that the row stands for, such as a format; '' for any value.
    value
        what follows the flag: `{}` for the value itself, '' for a switch.
    since, until
        the first release that has it, and the first that has it no more, '' for none.
    """

    engine: str
    tool: str
    sets: str
    of: str
    flag: str
    value: str
    since: str
    until: str
    source: str
    note: str

    def holds(self, key: tuple[int, ...]) -> bool:
        """Whether a release has it."""
        return release_key(self.since) <= key and (not self.until or key < release_key(self.until))

    def words(self, value: object = "") -> list[str]:
        """The flag and its value as words of a command."""
        filled = value if isinstance(value, Variable) else self.value.replace("{}", str(value))
        return [*([self.flag] if self.flag else []), *([filled] if self.value else [])]


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one release of an engine or a benchmark.

    release
        the release asked for, '' for none; `remark` says what stands in for one that the table does not know.
    """

    name: str
    title: str
    release: str
    key: tuple[int, ...]
    remark: str = ""

    @classmethod
    def of(cls, name: str, title: str, release: str = "") -> Options:
        """The options of a release; of the newest one in the table where it is later, unknown or not said.

        Raises Unsupported for an engine that the table does not have, and for a release before its first.

        >>> Options.of("vllm", "vLLM", "0.11.0").find("serve", "tp").flag, Options.of("vllm", "vLLM", "0.4.3").program("serve")[:2]
        ('--tensor-parallel-size', ['python3', '-m'])
        """
        known = {row.sets: row.value for row in rows() if row.engine == name and row.tool == "known"}
        if not known:
            raise Unsupported(f"no options of {title} are known; they are of {', '.join(engines())}")
        newest, oldest = release_key(known["newest"]), release_key(known["oldest"])
        key = release_key(release)
        if key and key < oldest:
            raise Unsupported(f"options of {title} are known from {known['oldest']} on, not of {shown(release)}")
        if not key:
            said = f"; '{shown(release)}' is no release" if release else ""
            return cls(name, title, "", newest, f"options are those of {title} {known['newest']}{said}")
        if key > newest and key[: len(newest)] != newest:
            remark = f"{title} {shown(release)} is newer than the options known here, which are those of {known['newest']}"
            return cls(name, title, release, newest, remark)
        return cls(name, title, release, key)

    @property
    def said(self) -> str:
        """Engine and release in words."""
        return f"{self.title} {self.release}".strip()

    def find(self, tool: str, sets: str, of: str = "") -> Option | None:
        """The row that sets something in this release, for one word or for any value; None where there is none."""
        found = [row for row in rows() if row.engine == self.name and row.tool == tool and row.sets == sets and row.of in (of, "")]
        return next((row for row in reversed(found) if row.holds(self.key)), None)

    def needed(self, tool: str, sets: str, of: str = "", *, what: str = "") -> Option:
        """The same; raises Unsupported, with the releases that have it, where this one has none."""
        row = self.find(tool, sets, of)
        if row is not None:
            return row
        others = [r for r in rows() if r.engine == self.name and r.tool == tool and r.sets == sets and r.of in (of, "")]
        when = ", ".join(f"from {r.since}{f' until {r.until}' if r.until else ' on'}" for r in others)
        what = what or (f"{sets.replace('_', ' ')} {of}".strip())
        raise Unsupported(f"{self.said} has no option for {what}{f' (known {when})' if when else ''}")

    def program(self, tool: str) -> list[str]:
        """The words that start the server or the benchmark."""
        return shlex.split(self.needed(tool, "program", what="a benchmark of its own" if tool == "bench" else "").value)

    def words(self, tool: str, wishes: list[Wish]) -> list[str]:
        """Flags and values of wishes, in their order; raises Unsupported for one that this release cannot say."""
        return [word for wish in wishes for word in self.needed(tool, wish.sets, wish.of, what=wish.what).words(wish.value)]


@dataclass(frozen=True, slots=True)
class Wish:
    """Something that a command must say: what is set, to which value, in which of our words, and how to call it in an error."""

    sets: str
    value: object = ""
    of: str = ""
    what: str = ""


def engines() -> list[str]:
    """Engines and benchmarks that the table knows."""
    return list(dict.fromkeys(row.engine for row in rows() if row.tool == "known"))


def rows() -> tuple[Option, ...]:
    """Every row of the table."""
    return _table(data_file("engines", FILE))


@cache
def _table(path: Path) -> tuple[Option, ...]:
    reader = csv.DictReader(io.StringIO(read_text(path)))
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise SpecError(f"must have the columns {', '.join(COLUMNS)}", file=path)
    return tuple(_row(path, line, row) for line, row in enumerate(reader, start=2))


def _row(path: Path, line: int, row: dict[str, str]) -> Option:
    if None in row or None in row.values():
        raise SpecError("has more or fewer cells than there are columns", file=path, field=f"line {line}")
    found = Option(**row)
    if found.tool not in TOOLS:
        raise SpecError(f"must be one of {', '.join(TOOLS)}", file=path, field=f"line {line}, tool", value=found.tool)
    for name, text in (("since", found.since), ("until", found.until)):
        if not release_key(text) and (text or (name == "since" and found.tool != "known")):
            raise SpecError("must be a release, like 0.11 or b6089", file=path, field=f"line {line}, {name}", value=text)
    return replace(found, since=found.since or "0")
