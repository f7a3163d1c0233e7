"""Shares of a sweep, and what says that pieces belong together. Knows no folder and writes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferplan import __version__
from inferplan.errors import SpecError
from inferplan.planner.space import Space
from inferplan.planner.sweep import COLUMNS, Layout

SCHEMA = "inferplan/sweep-parts/1"
MAX_SHARDS = 100_000


@dataclass(frozen=True, slots=True)
class Shard:
    """The i-th of n shares of a sweep's chunks, counted from 1: every n-th chunk, so that shares take alike."""

    number: int = 1
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """The share that a text such as `2/8` means.

        >>> Shard.parse("2/8")
        Shard(number=2, of=8)
        """
        match = re.fullmatch(r"\s*([0-9]{1,6})\s*/\s*([0-9]{1,6})\s*", text)
        if match is None:
            raise SpecError("must be a share such as 2/8, the second of eight", field="shard", value=text)
        found = cls(int(match[1]), int(match[2]))
        if not 1 <= found.number <= found.of <= MAX_SHARDS:
            raise SpecError(f"must count from 1 up to the number of shares, at most {MAX_SHARDS:,}", field="shard", value=text)
        return found

    def chunks(self, total: int) -> range:
        """Numbers of the chunks in this share.

        >>> list(Shard(2, 3).chunks(8))
        [1, 4, 7]
        """
        return range(self.number - 1, total, self.of)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a folder of pieces belongs to: the fingerprint of grid and version, its size, columns and format."""

    digest: str
    version: str
    grid: Mapping[str, Any]
    columns: tuple[str, ...]
    ending: str
    chunks: int
    points: int

    @classmethod
    def of(cls, space: Space, columns: Sequence[str], ending: str) -> Manifest:
        """The manifest of a sweep that is to be written."""
        wanted = tuple(columns)
        unknown = next((name for name in wanted if name not in COLUMNS), None)
        if unknown is not None or not wanted or len(set(wanted)) < len(wanted):
            raise SpecError(f"must be different ones of {', '.join(COLUMNS)}", field="columns", value=unknown)
        grid = space.model_dump(mode="json", exclude_defaults=True)
        return cls(space.digest(), __version__, grid, wanted, ending, Layout.of(space).chunks, space.points)

    def record(self) -> dict[str, Any]:
        """As a mapping."""
        return {
            "schema": SCHEMA, "digest": self.digest, "version": self.version, "chunks": self.chunks, "points": self.points,
            "ending": self.ending, "columns": list(self.columns), "grid": dict(self.grid),
        }  # fmt: skip

    @classmethod
    def read(cls, record: Mapping[str, Any], file: Any) -> Manifest:
        """The manifest that a mapping holds; raises SpecError for one that is none."""
        kinds = {"digest": str, "version": str, "ending": str, "chunks": int, "points": int, "columns": list, "grid": dict}
        for name, kind in kinds.items():
            if not isinstance(record.get(name), kind) or isinstance(record[name], bool):
                raise SpecError("is not a manifest of a sweep as this version writes them", file=file, field=name)
        if record.get("schema") != SCHEMA or record["chunks"] < 1 or not set(record["columns"]) <= set(COLUMNS):
            raise SpecError(f"is not of the form {SCHEMA}", file=file, field="schema", value=record.get("schema"))
        return cls(**{**{name: record[name] for name in kinds}, "columns": tuple(record["columns"])})

    def refuse_other(self, other: Manifest, file: Any) -> None:
        """Raise SpecError, naming the first difference, where pieces of `other` do not go with those of this one."""
        if self.version != other.version:
            rule, value = f"wrote the pieces there, where this is {self.version}", other.version
            raise SpecError(f"{rule}; delete them, or name another file", file=file, field="version", value=value)
        for name in ("digest", "columns", "ending", "chunks"):
            if getattr(self, name) != getattr(other, name):
                what = "the grid, or what its names mean here, is another" if name == "digest" else f"its {name} are others"
                rule = f"holds pieces of another sweep ({what}); delete it, or name another file"
                raise SpecError(rule, file=file, field=_differing(self.grid, other.grid) if name == "digest" else None)


def _differing(own: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    return next((name for name in {**own, **other} if own.get(name) != other.get(name)), None)


def missing(done: Iterable[int], total: int) -> list[int]:
    """Numbers of the chunks that are not there.

    >>> missing([0, 2], 4)
    [1, 3]
    """
    there = set(done)
    return [number for number in range(total) if number not in there]
