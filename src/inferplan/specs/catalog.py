"""Names to files: accelerators, models, number formats and engines by name or alias. Knows where files lie, not what is in them.

Folders are searched in this order: those of `$INFERPLAN_PATH`, the checkout when run from one, the copy in the wheel.
An earlier folder shadows a later one. An exact name opens no file; an alias opens one `INDEX.csv`.
"""

from __future__ import annotations

import csv
import difflib
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from inferplan.errors import NotFound, SpecError, shown
from inferplan.specs.document import load_yaml, read_text, resolve

PATH_VARIABLE = "INFERPLAN_PATH"
KINDS = ("hardware", "models", "formats", "engines")
INDEX = "INDEX.csv"
SPELLINGS = "spellings.csv"
_ONE_OF = {"hardware": "hardware", "models": "model", "formats": "format", "engines": "engine"}
_NOT_SPECS = frozenset({"architectures", "links"})
_SUFFIXES = (".yaml", ".yml", ".json", ".gguf", ".safetensors")
_COLUMNS = ("alias", "name", "path", "title", "group")
_BRANDS = re.compile(r"(?:(?:nvidia|geforce|tesla|amd|radeon|instinct|intel|apple|google|aws|huawei)-)+(?=.)")
_GAPS = re.compile(r"[-\s_/\\,:;()\[\]]+")
_SIZES = re.compile(r"(?<=\d)-(gi?b)\b")
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the catalog: what can be listed without opening the spec itself. `group` is the vendor or family."""

    name: str
    title: str
    aliases: tuple[str, ...]
    group: str
    path: Path


def normalise(text: str) -> str:
    """A name as the catalog compares it: lower case, blanks, underscores, slashes and brackets as single hyphens.

    >>> normalise("A100 (40 GB)"), normalise("meta-llama/Llama-3.1-70B"), normalise("meta-llama--Llama-3.1-70B")
    ('a100-40gb', 'meta-llama-llama-3.1-70b', 'meta-llama-llama-3.1-70b')
    """
    return hyphened(text[: 4 * _LONGEST_NAME]).strip("-")


def hyphened(text: str) -> str:
    """A text of any length as names are compared: where it holds a name, it holds the normalised name."""
    text = _GAPS.sub("-", text.lower())
    return _SIZES.sub(r"\1", text) if "-g" in text else text


def _keys(kind: str, text: str) -> list[str]:
    """The normalised spellings to look for; a hardware name may be written with or without its maker's brand."""
    plain = normalise(text)
    bare = _BRANDS.sub("", plain, count=1) if kind == "hardware" and _BRANDS.match(plain) else plain
    return [key for key in dict.fromkeys((plain, bare)) if 0 < len(key) <= _LONGEST_NAME]


def search_path(environ: Mapping[str, str] | None = None) -> list[Path]:
    """The folders that may hold `hardware/`, `models/` ...: the user's own first. `environ` stands in for the environment."""
    environ = os.environ if environ is None else environ
    own = [_own_folder(part) for part in environ.get(PATH_VARIABLE, "").split(os.pathsep) if part]
    return [*own, *_shipped()]


@cache
def _shipped() -> tuple[Path, ...]:
    """The folders of this installation: those of the checkout it runs from, and those inside the package."""
    package = Path(__file__).resolve().parents[1]
    checkout = package.parents[1]
    runs_from_checkout = package.parent.name == "src" and (checkout / "pyproject.toml").is_file()
    return (*([checkout] if runs_from_checkout else []), package / "_data")


def _own_folder(text: str) -> Path:
    folder = resolve(text)
    if not folder.is_dir():
        raise SpecError("is not a folder; it should hold hardware/, models/, formats/ or engines/", field=PATH_VARIABLE, value=text)
    return folder


def folders(kind: str, environ: Mapping[str, str] | None = None) -> list[Path]:
    """The folders of one kind that exist, in the order in which they are searched."""
    _check_kind(kind)
    return [folder for root in search_path(environ) if (folder := root / kind).is_dir()]


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise SpecError(f"is not one of {', '.join(KINDS)}", field="kind", value=kind)


def data_file(kind: str, filename: str, environ: Mapping[str, str] | None = None) -> Path:
    """A table that lies beside the specs of a kind, such as `links.yaml`; the first one on the search path."""
    _check_kind(kind)
    return shipped_file(kind, filename, environ)


def shipped_file(folder: str, filename: str, environ: Mapping[str, str] | None = None) -> Path:
    """A file of any folder of data: the user's own, else the shipped one. Raises NotFound where neither is there."""
    for root in search_path(environ):
        if (path := root / folder / filename).is_file():
            return path
    raise NotFound(f"no {folder}/{filename} on the search path")


def find(kind: str, text: str | os.PathLike[str], *, environ: Mapping[str, str] | None = None) -> Path:
    """The file that a name, an alias or a path means.

    A text that starts with `./`, `../`, `/` or `~`, or ends like a file (.yaml, .json, .gguf ...), is a path. Anything
    else is a name first, in any case and spelling of blanks; only then a file or folder that happens to exist.
    Raises NotFound, with near misses.

    >>> find("hardware", "NVIDIA H100").name
    'h100-sxm5-80gb.yaml'
    """
    if not isinstance(text, str) or _is_path(text):
        path = resolve(text)
        if not path.exists():
            raise NotFound(f"no file or folder called '{shown(os.fspath(text))}'")
        return path
    if (named := by_name(kind, text, environ=environ)) is not None:
        return named
    if text and len(text) <= 4096 and "\0" not in text and os.path.exists(text):  # noqa: PTH110 - also true for odd names
        return Path(text)
    raise NotFound(f"no {_ONE_OF[kind]} called '{shown(text)}'{_near(kind, text, environ) or f'; see inferplan list {kind}'}")


def by_name(kind: str, text: str, *, environ: Mapping[str, str] | None = None) -> Path | None:
    """The file that a name or an alias means, None where there is none; files of that name are not looked for."""
    for folder in folders(kind, environ):
        if (path := _in_folder(kind, folder, text)) is not None:
            return path
    return None


def _is_path(text: str) -> bool:
    starts = text.startswith(("./", "../", "/", "~", ".\\", "..\\")) or text in (".", "..") or Path(text).is_absolute()
    return starts or text.lower().endswith(_SUFFIXES)


def _in_folder(kind: str, folder: Path, text: str) -> Path | None:
    """The file that a name means in one folder: by its stem, else by the index, else by the spellings seen in public tables."""
    keys = _keys(kind, text)
    for key in keys:
        if (path := _by_stem(folder, key)) is not None:
            return path
    return _by_alias(kind, folder, keys) or _by_spelling(folder, normalise(text))


def _by_stem(folder: Path, key: str) -> Path | None:
    """The file `key`.yaml in a folder or one level below."""
    for place in (folder, *_subfolders(folder)):
        if (path := place / f"{key}.yaml").is_file() and (place != folder or key not in _NOT_SPECS):
            return path
    return None


def _subfolders(folder: Path) -> list[Path]:
    return sorted(Path(item.path) for item in os.scandir(folder) if item.is_dir() and not item.name.startswith((".", "_")))


def _by_alias(kind: str, folder: Path, keys: list[str]) -> Path | None:
    found = {path for _, path in _aliases(folder, starting=keys)}
    if not found and not _mentions(folder / INDEX, keys):
        return None
    found = found or {path for alias, path in _aliases(folder) if set(_keys(kind, alias)) & set(keys)}
    if len(found) > 1:
        both = " and ".join(sorted(Path(path).name for path in found))
        raise SpecError(f"is an alias of {both}; each name must mean one file", file=folder, value=keys[0])
    path = next((folder / path for path in found), None)
    if path is not None and not path.is_file():
        raise SpecError("lists a file that is not there; the index must be written anew", file=folder / INDEX, value=path.name)
    return path


def _mentions(table: Path, keys: Iterable[str]) -> bool:
    """Whether a table could hold one of the keys in some spelling; a folder without the table could."""
    if not table.is_file():
        return True
    text = hyphened(read_text(table))
    return any(key in text for key in keys)


def _aliases(folder: Path, *, starting: Iterable[str] | None = None) -> list[tuple[str, str]]:
    """Each alias with the path of its file, relative to the folder where it stands in an index; those spelt like `starting`, if given."""
    if (index := folder / INDEX).is_file():
        return [(row["alias"], row["path"]) for row in _rows(index, _COLUMNS, starting) if row["alias"] != row["name"]]
    every = [(alias, str(entry.path)) for entry in _scanned(folder) for alias in entry.aliases]
    return every if starting is None else [(alias, path) for alias, path in every if alias in starting]


def _by_spelling(folder: Path, key: str) -> Path | None:
    table = folder / SPELLINGS
    if not table.is_file() or not _mentions(table, [key]):
        return None
    name = next((row["name"] for row in _rows(table, ("spelling", "name")) if normalise(row["spelling"]) == key), None)
    return _by_stem(folder, name) if name else None


def seen_spellings(kind: str, *, environ: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
    """The spellings seen in public tables that are no aliases of their own, each with the name it means."""
    tables = [table for folder in folders(kind, environ) if (table := folder / SPELLINGS).is_file()]
    return [(row["spelling"], row["name"]) for table in tables for row in _rows(table, ("spelling", "name"))]


def _near(kind: str, text: str, environ: Mapping[str, str] | None) -> str:
    """'; near it: ...' with up to four spellings of different specs, or nothing."""
    found = near_names(kind, text, environ=environ)
    return f"; near it: {', '.join(found)}" if found else ""


def near_names(kind: str, text: str, *, environ: Mapping[str, str] | None = None) -> list[str]:
    """Up to four spellings near a text that mean different specs.

    >>> near_names("hardware", "h10")[:2]
    ['h100', 'h20']
    """
    key = _keys(kind, text)[-1:] or [""]
    spellings = {alias: entry.name for entry in entries(kind, environ=environ) for alias in (*entry.aliases, entry.name)}
    near: dict[str, str] = {}
    for spelling in difflib.get_close_matches(key[0], spellings, n=12, cutoff=0.55):
        near.setdefault(spellings[spelling], spelling)
    ranked = sorted(near.values(), key=lambda s: -len(os.path.commonprefix([s, key[0]])))
    return ranked[:4]


def names(kind: str, *, environ: Mapping[str, str] | None = None) -> list[str]:
    """The names of one kind, sorted.

    >>> "h100-sxm5-80gb" in names("hardware")
    True
    """
    return sorted(entry.name for entry in entries(kind, environ=environ))


def entries(kind: str, *, environ: Mapping[str, str] | None = None) -> list[Entry]:
    """What the catalog holds of one kind, from the index alone; a name in an earlier folder shadows the same name in a later one."""
    found: dict[str, Entry] = {}
    for folder in folders(kind, environ):
        for entry in _listed(folder):
            found.setdefault(entry.name, entry)
    return sorted(found.values(), key=lambda entry: entry.name)


def _listed(folder: Path) -> list[Entry]:
    """The entries of one folder: from its index, or by reading its files where it has none."""
    return _indexed(folder) if (folder / INDEX).is_file() else list(_scanned(folder))


def _indexed(folder: Path) -> list[Entry]:
    aliases: dict[str, list[str]] = {}
    heads: list[dict[str, str]] = []
    for row in _rows(folder / INDEX, _COLUMNS):
        if row["alias"] == row["name"]:
            heads.append(row)
        else:
            aliases.setdefault(row["name"], []).append(row["alias"])
    return [Entry(row["name"], row["title"], tuple(aliases.get(row["name"], ())), row["group"], folder / row["path"]) for row in heads]


def _scanned(folder: Path, *, strict: bool = False) -> Iterator[Entry]:
    """The entries of the files themselves. A file that cannot be read keeps its stem as its name, unless `strict`."""
    for place in (folder, *_subfolders(folder)):
        for path in sorted(place.glob("*.yaml")):
            if (place != folder or path.stem not in _NOT_SPECS) and path.is_file():
                yield _entry(path, strict)


def _entry(path: Path, strict: bool) -> Entry:
    try:
        data: dict[str, Any] = load_yaml(path)
    except SpecError as e:
        if strict:
            raise
        data = {"title": f"broken: {e.rule}"}
    aliases, checkpoints = data.get("aliases"), data.get("checkpoints")
    group = data.get("vendor") or data.get("family") or path.parent.name
    texts = tuple(str(a) for a in aliases) if isinstance(aliases, list) else ()
    texts += tuple(str(c) for c in checkpoints) if isinstance(checkpoints, dict) else ()
    return Entry(path.stem, str(data.get("title") or path.stem), texts, str(group), path)


def _rows(path: Path, columns: tuple[str, ...], starting: Iterable[str] | None = None) -> list[dict[str, str]]:
    """The rows of a CSV file, every cell text, or only those whose first cell is one of `starting`; SpecError where a column is missing."""
    text = read_text(path)
    if starting is not None:
        chosen = "|".join(map(re.escape, starting))
        text = "\n".join([text.partition("\n")[0], *re.findall(rf"^(?:{chosen}),.*$", text, re.MULTILINE)])
    table = csv.reader(io.StringIO(text))
    head = next(table, [])
    missing = [column for column in columns if column not in head]
    if missing:
        raise SpecError(f"has no column '{missing[0]}'", file=path)
    return [dict(zip(head, row + [""] * (len(head) - len(row)), strict=False)) for row in table if row]


def index_text(folder: str | os.PathLike[str]) -> str:
    """The text that the index of a folder should have, from its files; raises SpecError where a name or alias stands twice."""
    folder = Path(folder)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    taken: dict[str, str] = {}
    for entry in sorted(_scanned(folder, strict=True), key=lambda entry: entry.name):
        path = entry.path.relative_to(folder).as_posix()
        _claim(taken, folder, entry)
        writer.writerow([entry.name, entry.name, path, entry.title, entry.group])
        writer.writerows([alias, entry.name, path, "", ""] for alias in entry.aliases)
    return out.getvalue()


def _claim(taken: dict[str, str], folder: Path, entry: Entry) -> None:
    for spelling in (entry.name, *entry.aliases):
        for key in _keys(folder.name, spelling):
            owner = taken.setdefault(key, entry.name)
            if owner != entry.name:
                raise SpecError(f"is already the name or alias of '{owner}'", file=entry.path, field="aliases", value=spelling)


def write_index(folder: str | os.PathLike[str]) -> Path:
    """Write `INDEX.csv` of a folder such as `hardware/` anew, and return its path."""
    text = index_text(folder)
    path = Path(folder) / INDEX
    path.write_text(text, encoding="utf-8")
    return path
