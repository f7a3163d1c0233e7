"""Results as JSON and CSV, written whole or not at all. Knows no quantity."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from inferplan.errors import SpecError


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


def csv_text(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """CSV of mappings with the given columns."""
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({c: _cell(row.get(c)) for c in columns})
    return out.getvalue()


def _cell(value: Any) -> Any:
    value = _plain(value)
    return "" if value is None else value


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a file so that a reader sees the old text or the new one, never a part; raises SpecError where it cannot be written."""
    target = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as e:
        raise SpecError(f"cannot be written: {os.strerror(e.errno or 0)}", file=path) from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(target)
    except OSError as e:
        Path(temporary).unlink(missing_ok=True)
        raise SpecError(f"cannot be written: {os.strerror(e.errno or 0)}", file=path) from None
    return target
