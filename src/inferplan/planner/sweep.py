"""A grid evaluated: its points in chunks that can be done anywhere and in any order, as one table, and what stands out. Knows no file.

A chunk is a range of the grid's pieces and depends on nothing but the grid, so that a sweep done by one process, by many, or by many
machines has the same rows, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from inferplan.errors import SpecError
from inferplan.planner.carry import carry
from inferplan.planner.points import Block, Case, points
from inferplan.planner.space import Space

if TYPE_CHECKING:
    import pandas as pd

CHUNK = 2**18
"""Points of a chunk at most, which are what an interrupt can lose."""
CASES = 32
"""Calls of a chunk at most, where each gives few points."""
IN_MEMORY = 20_000_000
"""Points of a table in memory at most, of about 200 bytes each."""
LABELS = ("model", "hardware", "gpus", "precision", "kv_format", "engine", "engine_version", "tp", "pp", "dp", "ep", "dcp", "cp")
AXES = ("batch", "input_tokens", "output_tokens")
COLUMNS = (
    *LABELS, *AXES, "fits", "reason", "max_sequences", "weight_bytes_per_gpu", "kv_cache_bytes_per_gpu", "ttft_s", "floor_ttft_s", "tpot_s",
    "floor_tpot_s", "bound", "e2e_s", "decode_tokens_per_s", "output_tokens_per_s", "sustained_tokens_per_s",
    "sustained_tokens_per_s_per_gpu", "sustained_usd_per_million_tokens",
)  # fmt: skip
TEXTS = ("model", "hardware", "precision", "kv_format", "engine", "engine_version", "reason", "bound")
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Layout:
    """How a grid is divided: pieces of `batches` x `pairs` points of one case, `group` pieces to a chunk."""

    space: Space
    batches: int
    pairs: int
    group: int

    @classmethod
    def of(cls, space: Space) -> Layout:
        """The division of a grid, the same wherever it is asked for.

        >>> found = Layout.of(Space(model="7b", hardware="h100", batch="1..1000", input_tokens="1..1000"))
        >>> found.batches, found.pairs, found.group, found.chunks
        (262, 1000, 1, 4)
        """
        pairs = min(space.pairs, CHUNK)
        batches = min(len(space.batch), max(1, CHUNK // pairs))
        return cls(space, batches, pairs, max(1, min(CASES, CHUNK // (batches * pairs))))

    @property
    def per_case(self) -> int:
        """Pieces of a case."""
        return -(-len(self.space.batch) // self.batches) * -(-self.space.pairs // self.pairs)

    @property
    def chunks(self) -> int:
        """Chunks in all."""
        return -(-self.space.cases * self.per_case // self.group)

    def pieces(self, chunk: int) -> Iterable[tuple[int, slice, slice]]:
        """The pieces of a chunk: number of the case, which batches, which pairs of lengths."""
        across = -(-self.space.pairs // self.pairs)
        for number in range(chunk * self.group, min((chunk + 1) * self.group, self.space.cases * self.per_case)):
            case, place = divmod(number, self.per_case)
            b, p = divmod(place, across)
            yield case, slice(b * self.batches, (b + 1) * self.batches), slice(p * self.pairs, (p + 1) * self.pairs)


def blocks(space: Space, chunk: int) -> list[Block]:
    """The points of a chunk, a block for each of its pieces."""
    batch, inputs, outputs = space.loads()
    return [points(_case(space, case), batch[b], inputs[p], outputs[p]) for case, b, p in Layout.of(space).pieces(chunk)]


@lru_cache(maxsize=4)
def _case(space: Space, number: int) -> Case:
    """Neighbouring pieces are mostly of one case."""
    return space.case(number)


@dataclass(frozen=True, slots=True)
class Table:
    """Blocks joined: arrays of one length, texts as codes into `words` (-1 for none)."""

    columns: dict[str, NDArray[Any]]
    words: dict[str, tuple[str, ...]]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @classmethod
    def of(cls, parts: Sequence[Block], names: Sequence[str] = COLUMNS) -> Table:
        """The columns of these names, over all blocks in turn."""
        columns, words = {}, {}
        counts = [len(block) for block in parts]
        for name in names:
            if name in TEXTS:
                columns[name], words[name] = _coded(parts, counts, name)
            elif name in LABELS:
                columns[name] = np.repeat([block.labels[name] for block in parts], counts)
            else:
                columns[name] = np.concatenate([block.columns[name] for block in parts])
        return cls(columns, words)

    def frame(self) -> pd.DataFrame:
        """The same as a pandas table, texts as categories."""
        import pandas as pd

        coded = {n: pd.Categorical.from_codes(self.columns[n], list(words)) for n, words in self.words.items()}
        return pd.DataFrame({name: coded.get(name, column) for name, column in self.columns.items()}, copy=False)


def _coded(parts: Sequence[Block], counts: list[int], name: str) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """A column of texts as codes into those that occur, in the order in which blocks have them."""
    place: dict[str, int] = {}
    found = []
    for block, count in zip(parts, counts, strict=True):
        if name not in block.columns:
            found.append(np.full(count, place.setdefault(block.labels[name], len(place)), dtype=np.int32))
            continue
        own, words = block.columns[name].astype(np.intp), block.words[name]
        used = np.bincount(own + 1, minlength=len(words) + 1)[1:]
        codes = [place.setdefault(word, len(place)) if used[i] else -1 for i, word in enumerate(words)]
        found.append(np.array([*codes, -1], dtype=np.int32)[own])
    return np.concatenate(found), tuple(place)


BEST = {"sustained_tokens_per_s_per_gpu": max, "tpot_s": min, "sustained_usd_per_million_tokens": min}
"""What stands out of a sweep: the point with most or least of these, of those that fit."""


@dataclass(slots=True)
class Tally:
    """How many points there are and fit, and the best of them, by what they are best in."""

    points: int = 0
    fitting: int = 0
    best: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, parts: Sequence[Block]) -> Tally:
        """Of the points of some blocks; of equal ones the first counts."""
        found = cls()
        for block in parts:
            found.add(cls(len(block), int(np.count_nonzero(block.columns["fits"])), _best(block)))
        return found

    def add(self, other: Tally) -> None:
        """Count another one's points after these."""
        self.points, self.fitting = self.points + other.points, self.fitting + other.fitting
        for name, row in other.best.items():
            held = self.best.get(name)
            if held is None or (row[name] != held[name] and BEST[name](row[name], held[name]) == row[name]):
                self.best[name] = row


def _best(block: Block) -> dict[str, dict[str, Any]]:
    found = {}
    for name, better in BEST.items():
        values = np.where(block.columns["fits"], block.columns[name], np.nan)
        if not np.all(np.isnan(values)):
            found[name] = row_of(block, int(np.nanargmax(values) if better is max else np.nanargmin(values)))
    return found


def row_of(block: Block, place: int) -> dict[str, Any]:
    """One point as plain values."""
    found: dict[str, Any] = dict(block.labels)
    for name, column in block.columns.items():
        value = column[place].item()
        found[name] = (block.words[name][value] if value >= 0 else None) if name in block.words else value
    return {name: found[name] for name in COLUMNS}


@dataclass(frozen=True, slots=True)
class Chunk:
    """The function that workers run: the blocks of a chunk of this grid, once it means the same there as here."""

    space: Space
    digest: str

    def __call__(self, number: int) -> list[Block]:
        """The blocks of that chunk; raises SpecError where version, models, parts or calibration differ from those asked for."""
        if self.space.digest() != self.digest:
            raise SpecError("differs on a worker: version, models, parts or calibration are not those of this machine", field="grid")
        return blocks(self.space, number)


@dataclass(frozen=True, slots=True)
class Counting:
    """The same, of which only what stands out comes back."""

    chunk: Chunk

    def __call__(self, number: int) -> Tally:
        """What stands out of that chunk."""
        return Tally.of(self.chunk(number))


def sweep(
    space: Space, *, executor: Executor | None = None, jobs: int = 1, names: Sequence[str] = COLUMNS, progress: Progress | None = None
) -> pd.DataFrame:
    """Every point of a grid as a row, in base units, in the order of the axes (the last fastest).

    `fits` and `reason` say whether an engine would run it; where a rule forbids a point its figures are NaN. `jobs` processes, or any
    executor of `concurrent.futures`, share the work; the rows are the same. Raises SpecError for more points than memory should hold:
    those belong into a file, see `inferplan sweep --out`.

    >>> found = sweep(Space(model="7b", hardware="h100,a100", precision="fp16", batch="1,8"))
    >>> found[["hardware", "batch", "fits"]].values.tolist()
    [['h100-sxm5-80gb', 1, True], ['h100-sxm5-80gb', 8, True], ['a100-sxm4-80gb', 1, True], ['a100-sxm4-80gb', 8, True]]
    """
    if space.points > IN_MEMORY:
        rule = f"are more than the {IN_MEMORY:,} of a table in memory; write them to a file with inferplan sweep --out"
        raise SpecError(rule, field="points", value=f"{space.points:,}")
    total = Layout.of(space.resolved()).chunks
    found: dict[int, list[Block]] = {}
    for number, parts in carry(Chunk(space, space.digest()), range(total), executor=executor, jobs=jobs):
        found[number] = parts
        if progress is not None:
            progress(len(found), total)
    return Table.of([block for number in range(total) for block in found[number]], names).frame()
