"""Sweeps in files: pieces in a folder while a sweep runs, one file when it is done, tables read back. Knows no quantity by name.

A piece is written whole or not at all under the number of its chunk, so that a sweep that was killed goes on where it stopped.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from inferplan.errors import SpecError, escaped
from inferplan.planner.shards import Manifest, missing
from inferplan.planner.sweep import AXES, LABELS, TEXTS, Chunk, Table, Tally
from inferplan.report.files import csv_text, harmless, json_text, write_bytes, write_text
from inferplan.specs.document import load_json

if TYPE_CHECKING:
    import pandas as pd

ENDINGS = ("csv", "parquet", "xlsx")
MANIFEST = "_manifest.json"
XLSX_ROWS = 1_048_575  # 2^20 of a sheet, one of them the header
READ_BYTES = 8 * 2**30  # of a file that is read whole: more is for tools that stream
_PIECE = re.compile(r"part-(\d{6,12})\.(csv|parquet)\Z")
_ROWS = 16_384  # that are text at once while a piece is written


@dataclass(frozen=True, slots=True)
class Target:
    """Where a sweep goes: a file, or a folder that keeps the pieces as they are; and the folder that holds them meanwhile."""

    path: Path
    ending: str
    whole: bool

    @classmethod
    def of(cls, text: str, points: int) -> Target:
        """The target that an option names, a folder where it ends in a slash; raises SpecError where it cannot become one."""
        path = Path(text)
        ending, whole = path.suffix.lower().lstrip("."), not text.endswith("/")
        allowed = ENDINGS if whole else ENDINGS[:2]
        if ending not in allowed:
            forms = ", ".join(f".{e}" if whole else f".{e}/" for e in allowed)
            raise SpecError(f"must end in one of {forms}", file=text, value=ending or None)
        if whole and path.exists() and not path.is_file():
            raise SpecError("cannot be written: it is not a regular file (end it in / to keep pieces in a folder)", file=text)
        if not path.absolute().parent.is_dir():
            raise SpecError("cannot be written: its folder does not exist", file=text)
        if ending == "xlsx" and points > XLSX_ROWS:
            raise SpecError(f"takes {XLSX_ROWS:,} rows below its header, and these are {points:,}; write .csv or .parquet", file=text)
        _check_libraries(ending, text)
        return cls(path, ending, whole)

    @property
    def folder(self) -> Path:
        """The folder of the pieces."""
        return self.path.with_name(self.path.name + ".parts") if self.whole else self.path


def _check_libraries(ending: str, text: str) -> None:
    """Raises SpecError before any work where the library for a format is not there."""
    try:
        if ending == "parquet":
            import pyarrow  # noqa: F401
        elif ending == "xlsx":
            import openpyxl  # noqa: F401
    except ImportError as e:
        raise SpecError(f"needs {e.name} to be written: pip install 'inferplan[{ending}]'", file=text) from None


@dataclass(frozen=True, slots=True)
class Written:
    """A piece as a worker hands it back: its bytes, and what stands out of it."""

    data: bytes
    tally: Tally


@dataclass(frozen=True, slots=True)
class Writing:
    """The function that workers run: the chunk of a number as the bytes of its piece."""

    chunk: Chunk
    columns: tuple[str, ...]
    ending: str

    def __call__(self, number: int) -> Written:
        """The piece; raises what the chunk raises."""
        found = self.chunk(number)
        return Written(encoded(Table.of(found, self.columns), self.ending), Tally.of(found))


@dataclass(frozen=True, slots=True)
class Pieces:
    """A folder of pieces and the manifest that says what they belong to."""

    folder: Path
    manifest: Manifest

    @classmethod
    def begin(cls, folder: Path, manifest: Manifest) -> Pieces:
        """The folder, made where there is none; raises SpecError where it holds pieces of another sweep, or anything else."""
        try:
            folder.mkdir(exist_ok=True)
        except OSError as e:
            raise SpecError(f"cannot be made: {os.strerror(e.errno or 0)}", file=folder) from None
        if (folder / MANIFEST).exists():
            manifest.refuse_other(cls.at(folder).manifest, folder / MANIFEST)
        elif any(not entry.name.startswith(f".{MANIFEST}") for entry in folder.iterdir()):
            raise SpecError("holds other files; name a folder that is empty or of this sweep", file=folder)
        else:
            write_text(folder / MANIFEST, json_text(manifest.record()))
        return cls(folder, manifest)

    @classmethod
    def at(cls, folder: Path) -> Pieces:
        """A folder that is there; raises SpecError where it holds no sweep."""
        if not (folder / MANIFEST).is_file():
            raise SpecError(f"holds no {MANIFEST}, so it is no folder of a sweep's pieces", file=folder)
        return cls(folder, Manifest.read(load_json(folder / MANIFEST), folder / MANIFEST))

    @property
    def ending(self) -> str:
        """The format of the pieces: a spreadsheet's are CSV until it is whole."""
        return "csv" if self.manifest.ending == "xlsx" else self.manifest.ending

    def path(self, number: int) -> Path:
        """The file of a piece."""
        return self.folder / f"part-{number:06d}.{self.ending}"

    def done(self) -> set[int]:
        """Numbers of the pieces that are there."""
        found = set()
        for entry in self.folder.iterdir():
            match = _PIECE.match(entry.name)
            if match and match[2] == self.ending and entry.stat().st_size:
                found.add(int(match[1]))
        return found

    def put(self, number: int, piece: Written) -> None:
        """Write a piece, what stands out of it first."""
        write_text(self._aside(number), json_text(asdict(piece.tally)))
        write_bytes(self.path(number), piece.data)

    def _aside(self, number: int) -> Path:
        return self.folder / f"_part-{number:06d}.json"

    def tally(self, number: int) -> Tally:
        """What stands out of a piece."""
        told = load_json(self._aside(number))
        try:
            return Tally(int(told["points"]), int(told["fitting"]), dict(told["best"]))
        except (KeyError, TypeError, ValueError):
            raise SpecError("is not what a sweep wrote beside its pieces", file=self._aside(number)) from None

    def sweep_out(self) -> None:
        """Take away what a killed run left half written."""
        for entry in self.folder.glob(".*part-*"):
            entry.unlink(missing_ok=True)


def tally_of(folders: Sequence[Pieces]) -> Tally:
    """What stands out of all pieces, in their order."""
    found = Tally()
    for number, folder in sorted(_places(folders).items()):
        found.add(folder.tally(number))
    return found


def finished(folders: Sequence[Pieces], target: Target, *, keep: bool) -> Tally:
    """What stands out, once all pieces are one file; their folder goes then, unless it is to be kept or is the target itself."""
    found = tally_of(folders)
    if not target.whole:
        for folder in folders:
            folder.sweep_out()
        return found
    assemble(folders, target.path)
    if not keep:
        shutil.rmtree(target.folder)
    return found


def _places(folders: Sequence[Pieces]) -> dict[int, Pieces]:
    """Where each piece lies; one that lies in several folders, which is the same in all, counts once."""
    found: dict[int, Pieces] = {}
    for folder in folders:
        for number in folder.done():
            found.setdefault(number, folder)
    return found


def assemble(folders: Sequence[Pieces], path: Path) -> None:
    """Write all pieces in order as one file, whole or not at all; raises SpecError where one is missing or does not belong."""
    first = folders[0].manifest
    for folder in folders[1:]:
        first.refuse_other(folder.manifest, folder.folder / MANIFEST)
    places = _places(folders)
    if lacking := missing(places, first.chunks):
        some = ", ".join(map(str, lacking[:5])) + (" ..." if len(lacking) > 5 else "")
        rule = f"are missing of {first.chunks:,} ({some}); run the shards that lack them"
        raise SpecError(rule, field="pieces", value=f"{len(lacking):,}")
    paths = [places[number].path(number) for number in range(first.chunks)]
    with _replacing(path) as temporary:
        JOINED[first.ending](paths, temporary)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A file to write to that takes the place of `path` once it is whole; raises SpecError where it cannot be written."""
    target = Path(os.path.realpath(path))
    temporary: Path | None = None
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}.")
        os.close(handle)
        temporary = Path(name)
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(target)
    except OSError as e:
        raise SpecError(f"cannot be written: {os.strerror(e.errno) if e.errno else e}", file=path) from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _join_csv(paths: Sequence[Path], out: Path) -> None:
    """The texts one after the other, the header once."""
    with out.open("wb") as stream:
        for i, path in enumerate(paths):
            with path.open("rb") as part:
                header = part.readline()
                if i == 0:
                    stream.write(header)
                shutil.copyfileobj(part, stream, 2**20)


def _join_parquet(paths: Sequence[Path], out: Path) -> None:
    """A row group for each piece."""
    import pyarrow as pa
    from pyarrow import parquet

    writer = None
    try:
        for path in paths:
            table = parquet.read_table(path)
            writer = writer or parquet.ParquetWriter(out, table.schema, use_dictionary=_texts(table.column_names))
            writer.write_table(table)
    except pa.ArrowException as e:
        raise SpecError(f"cannot be read: {str(e).splitlines()[0][:100]}", file=path) from None
    finally:
        if writer is not None:
            writer.close()


def _join_xlsx(paths: Sequence[Path], out: Path) -> None:
    from openpyxl import Workbook

    book = Workbook(write_only=True)
    sheet = book.create_sheet("sweep")
    for i, path in enumerate(paths):
        with path.open(encoding="utf-8", newline="") as part:
            rows = csv.reader(part)
            names = next(rows)
            if i == 0:
                sheet.append(names)
            kinds = [_kind(name) for name in names]
            for row in rows:
                sheet.append([None if cell == "" else kind(cell) for kind, cell in zip(kinds, row, strict=True)])
    book.save(out)


def _kind(name: str) -> Callable[[str], Any]:
    """How a cell of a column is read."""
    if name in TEXTS:
        return lambda cell: harmless(escaped(cell))
    if name == "fits":
        return lambda cell: cell == "True"
    return int if name in LABELS or name in AXES else _number


def _number(cell: str) -> float | str:
    """A number; a spreadsheet has none that is infinite."""
    found = float(cell)
    return found if np.isfinite(found) else cell


JOINED: dict[str, Callable[[Sequence[Path], Path], None]] = {"csv": _join_csv, "parquet": _join_parquet, "xlsx": _join_xlsx}


def encoded(table: Table, ending: str) -> bytes:
    """A table as the bytes of a file of that kind, the same for the same table."""
    return _parquet(table) if ending == "parquet" else _csv(table)


def _csv(table: Table) -> bytes:
    """CSV: numbers in the shortest form that reads back the same, what is not known left empty."""
    out = io.StringIO()
    out.write(csv_text([], list(table.columns)))
    for start in range(0, len(table), _ROWS):
        cells = [_cells(table, name, slice(start, start + _ROWS)) for name in table.columns]
        out.write("".join([",".join(row) + "\n" for row in zip(*cells, strict=True)]))
    return out.getvalue().encode()


def _cells(table: Table, name: str, rows: slice) -> list[str]:
    values = table.columns[name][rows]
    if name in table.words:
        words = [*(_quoted(word) for word in table.words[name]), ""]
        return [words[code] for code in values.tolist()]
    if values.dtype.kind != "f":
        return list(map(str, values.tolist()))
    distinct, back = np.unique(values, return_inverse=True)  # many figures change with few of the axes
    if len(distinct) > len(values) // 4:
        return _numbers(values)
    texts = _numbers(distinct)
    return [texts[i] for i in back.tolist()]


def _numbers(values: Any) -> list[str]:
    return ["" if x != x else repr(x) for x in values.tolist()]  # noqa: PLR0124 - NaN


def _quoted(word: str) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow([word])
    return out.getvalue() if word else ""


def _parquet(table: Table) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    arrays = {name: _arrow(table, name, column) for name, column in table.columns.items()}
    out = io.BytesIO()
    parquet.write_table(pa.table(arrays), out, use_dictionary=_texts(arrays))
    return out.getvalue()


def _arrow(table: Table, name: str, column: Any) -> Any:
    import pyarrow as pa

    if name not in table.words:
        return pa.array(column)
    return pa.DictionaryArray.from_arrays(pa.array(column, mask=column < 0), pa.array(table.words[name], pa.string()))


def _texts(names: Any) -> list[str]:
    """Columns with few distinct values, which a dictionary makes small."""
    return [name for name in names if name in TEXTS or name in LABELS or name in AXES]


def read_table(path: Path) -> pd.DataFrame:
    """A sweep in a file, or in a folder of pieces, as a table; raises SpecError for one that cannot be read."""
    if path.is_dir():
        import pandas as pd

        held = Pieces.at(path)
        if lacking := missing(held.done(), held.manifest.chunks):
            raise SpecError(f"lacks {len(lacking):,} of {held.manifest.chunks:,} pieces; let the sweep end, or merge its shards", file=path)
        return pd.concat([_read(held.path(n)) for n in range(held.manifest.chunks)], ignore_index=True)
    if not path.is_file():
        raise SpecError("cannot be read: there is no such file" if not path.exists() else "is not a regular file", file=path)
    return _read(path)


def _exactly(version: str) -> dict[str, Any]:
    """What makes pandas read numbers back as they are: from 3.1 on it always does, and warns where it is told to."""
    return {} if tuple(map(int, version.split(".")[:2])) >= (3, 1) else {"float_precision": "round_trip"}


def _read(path: Path) -> pd.DataFrame:
    import pandas as pd

    if path.stat().st_size > READ_BYTES:
        raise SpecError(f"is larger than the {READ_BYTES // 2**30} GiB that are read into memory", file=path)
    readers: dict[str, Callable[[Path], Any]] = {
        ".csv": lambda p: pd.read_csv(p, low_memory=False, **_exactly(pd.__version__)),
        ".parquet": pd.read_parquet,
        ".xlsx": pd.read_excel,
    }
    if path.suffix.lower() not in readers:
        raise SpecError("must end in .csv, .parquet or .xlsx", file=path)
    try:
        found: pd.DataFrame = readers[path.suffix.lower()](path)
    except ImportError as e:
        raise SpecError(f"needs a library to be read: {str(e).splitlines()[0][:80]}", file=path) from None
    except Exception as e:  # noqa: BLE001 - readers of foreign files raise many kinds
        raise SpecError(f"cannot be read: {str(e).splitlines()[0][:100] if str(e) else type(e).__name__}", file=path) from None
    if found.columns.has_duplicates or not len(found.columns):
        raise SpecError("must have a header with different names", file=path)
    if path.suffix.lower() != ".parquet" and "reason" in found:
        found["reason"] = found["reason"].astype(object).fillna("")  # a column without a word is one of numbers
    return found
