"""Results as JSON and CSV, written whole or not at all. Knows no quantity."""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import stat
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from inferplan.errors import SpecError

ESCAPED = "backslashreplace"
RISKY = ("=", "+", "-", "@", "\t", "\r")  # what a formula of a spreadsheet begins with


def json_text(value: Any) -> str:
    """JSON of plain values and numpy scalars; infinities and NaN become null."""
    return json.dumps(_plain(value), indent=2, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float):
        return None if not math.isfinite(value) else int(value) if value.is_integer() and abs(value) < 2**53 else value
    return value


def harmless(value: Any) -> Any:
    """A text that no spreadsheet takes for a formula: what begins with = + - @ or a tab gets a quote in front.

    >>> harmless("=1+1"), harmless("h100"), harmless(-1.0)
    ("'=1+1", 'h100', -1.0)
    """
    return f"'{value}" if isinstance(value, str) and value.lstrip(" ").startswith(RISKY) else value


def csv_text(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """CSV of mappings with the given columns; no text in it is a formula to a spreadsheet."""
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({c: _cell(row.get(c)) for c in columns})
    return out.getvalue()


def _cell(value: Any) -> Any:
    value = _plain(value)
    return "" if value is None else harmless(value)


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text as `write_bytes` does; what UTF-8 cannot hold is escaped."""
    return write_bytes(path, text.encode("utf-8", ESCAPED))


def write_bytes(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write a file so that a reader sees the old one or the new one, never a part; raises SpecError where it cannot be written.

    A symlink is followed. What is not a regular file is never replaced: a character device and the standard output are
    written to, anything else is refused.
    """
    try:
        found = _found(path)
        if found is not None and _is_stdout(found):
            _to_stdout(data)
            return Path(path)
        if found is not None and stat.S_ISCHR(found.st_mode):
            Path(path).write_bytes(data)
            return Path(path)
        return _replaced(Path(os.path.realpath(path)), data, found)
    except OSError as e:
        raise SpecError(f"cannot be written: {os.strerror(e.errno or 0)}", file=path) from None


def _found(path: str | os.PathLike[str]) -> os.stat_result | None:
    """What stands at the end of a path, None for nothing; raises SpecError for what cannot take a text."""
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return None
    except ValueError:
        raise SpecError("is not a usable file name", file=path) from None
    if stat.S_ISREG(found.st_mode):
        if not os.access(path, os.W_OK):
            raise SpecError(f"cannot be written: {os.strerror(errno.EACCES)}", file=path)
    elif not (stat.S_ISCHR(found.st_mode) or _is_stdout(found)):
        kind = "a directory" if stat.S_ISDIR(found.st_mode) else "not a regular file"
        raise SpecError(f"cannot be written: it is {kind}", file=path)
    return found


def _is_stdout(found: os.stat_result) -> bool:
    try:
        return os.path.samestat(found, os.fstat(1))
    except OSError:
        return False


def _to_stdout(data: bytes) -> None:
    sys.stdout.flush()
    if (binary := getattr(sys.stdout, "buffer", None)) is not None:
        binary.write(data)
        binary.flush()
    else:
        sys.stdout.write(data.decode("utf-8", ESCAPED))


def _replaced(target: Path, data: bytes, found: os.stat_result | None) -> Path:
    """The target, once a whole new file has taken its place; the mode of an old one is kept."""
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        Path(temporary).chmod(stat.S_IMODE(found.st_mode) if found else 0o666 & ~_umask())
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return target


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def refuse_same(output: str | os.PathLike[str], source: str | os.PathLike[str]) -> None:
    """Raise SpecError where an output would replace the very file that is read."""
    if os.path.exists(output) and os.path.exists(source) and os.path.samefile(output, source):  # noqa: PTH110, PTH121 - true for odd names
        raise SpecError("is the input itself; name another file for the output", file=output)


def stem(path: str | os.PathLike[str]) -> str:
    """A file's name without its folder and ending.

    >>> stem("runs/my.csv")
    'my'
    """
    return Path(path).stem
