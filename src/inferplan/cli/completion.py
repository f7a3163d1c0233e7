"""Completion of a command line: names of commands, options, models, parts, formats, engines, files. Reads indexes only.

A shell asks by running `inferplan` with `_INFERPLAN_COMPLETE` set and the words so far; the answer is a candidate on each line. The scripts
for the shells are few lines each and know nothing of inferplan.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any

from inferplan.errors import SpecError, shown

ASKING = "_INFERPLAN_COMPLETE"
CURRENT = "_INFERPLAN_CURRENT"
FILES = "\x00files"
MOST = 300
"""Candidates that are offered at most."""
NAMED = re.compile(r"^  - \{?name: ([\w.+-]+)", re.MULTILINE)
FORMAT = re.compile(r"^  - \{?name: ([\w.+-]+)((?:(?!^  - ).*\n)*)", re.MULTILINE)
CACHED = re.compile(r"applies_to:.*\bkv\b")
SAFE = re.compile(r"[\w.+:@-]+")
"""Names that mean themselves in a shell: others, of files of one's own, are not offered, since shells put them in as they are."""
LINK = re.compile(r"^  ([a-z0-9][\w.+-]*):", re.MULTILINE)
SHELLS = ("bash", "zsh", "fish")
CALIBRATIONS = ("default", "ideal")
KIND_OF = {
    "model": "models", "draft": "models", "gpu": "hardware", "host": "hardware", "owned": "hardware", "engine": "engines",
    "dtype": "formats",
    "formats": "formats", "draft_dtype": "formats", "kv_dtype": "kv", "kv": "kv", "efficiency": "calibrations", "network": "links",
}  # fmt: skip
"""Options whose values are names of the catalog."""
PATHS = (
    "csv", "plot", "html", "output", "out", "path", "cases", "goal", "trace", "xlsx", "parquet", "markdown", "series", "file", "config",
)  # fmt: skip
ARGUMENTS = {
    "picture": ("roofline", "breakdown", "batch", "context", "memory"),
    "shell": SHELLS,
    "quantity": ("tpot", "ttft", "e2e", "floor_tpot", "floor_ttft", "weights", "kv_bytes", "max_batch", "mfu", "mbu", "step", "memory"),
    "name": ("models", "hardware", "formats"),
}

BASH = """_inferplan() {
    local IFS=$'\\n' words
    words=$(printf '%s\\n' "${COMP_WORDS[@]:1:COMP_CWORD-1}")
    local current="${COMP_LINE:0:COMP_POINT}"
    current="${current##*[[:space:]]}"
    COMPREPLY=($(_INFERPLAN_COMPLETE="$words" _INFERPLAN_CURRENT="$current" "${COMP_WORDS[0]}" 2>/dev/null))
    if [[ "${COMPREPLY[0]}" == "%files" ]]; then COMPREPLY=($(compgen -f -- "$current")); compopt -o filenames 2>/dev/null; fi
    if [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" != -* && "$current" == *,* ]]; then compopt -o nospace 2>/dev/null; fi
    [[ $COMP_WORDBREAKS == *:* && "$current" == *:* ]] && COMPREPLY=("${COMPREPLY[@]#"${current%:*}:"}")
    return 0
}
complete -o nosort -F _inferplan inferplan 2>/dev/null || complete -F _inferplan inferplan
"""
ZSH = """#compdef inferplan
_inferplan() {
    local -a found
    local asked="${(F)words[2,CURRENT-1]}"
    found=("${(@f)$(_INFERPLAN_COMPLETE="$asked" _INFERPLAN_CURRENT="$words[CURRENT]" ${words[1]} 2>/dev/null)}")
    if [[ "$found[1]" == "%files" ]]; then _files; return; fi
    compadd -U -Q -- $found
}
compdef _inferplan inferplan
"""
FISH = """function __inferplan_complete
    set -l tokens (commandline -opc)
    set -l current (commandline -ct)
    set -lx _INFERPLAN_COMPLETE (string join \\n -- $tokens[2..-1] | string collect --allow-empty)
    set -lx _INFERPLAN_CURRENT "$current"
    set -l found ($tokens[1] 2>/dev/null)
    if test "$found[1]" = "%files"
        __fish_complete_path "$current"
    else
        printf "%s\\n" $found
    end
end
complete -c inferplan -f -a "(__inferplan_complete)"
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
PLACES = {
    "bash": ".local/share/bash-completion/completions/inferplan", "zsh": ".zfunc/_inferplan",
    "fish": ".config/fish/completions/inferplan.fish",
}  # fmt: skip
AFTER = {
    "bash": "It holds in the next shell, where bash-completion is installed; else add to ~/.bashrc: source {path}",
    "zsh": "It holds in the next shell once ~/.zshrc has: fpath+=~/.zfunc; autoload -Uz compinit && compinit",
    "fish": "It holds in the next shell.",
}


def script(shell: str) -> str:
    """The completion of a shell, to be sourced; raises SpecError for another than bash, zsh and fish."""
    name = Path(shell.strip()).name.lower()
    if name not in SCRIPTS:
        raise SpecError(f"must be one of {', '.join(SHELLS)}", field="SHELL", value=shown(shell))
    return SCRIPTS[name]


def install(shell: str) -> str:
    """Write the completion where the shell looks for it, and say what is to be done; raises SpecError where it cannot be written."""
    from inferplan.report.files import write_text

    name, text = Path(shell.strip()).name.lower(), script(shell)
    path = Path.home() / PLACES[name]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise SpecError(f"cannot be made ({os.strerror(e.errno or 0)})", file=path.parent) from None
    write_text(path, text)
    return f"{path} is written. {AFTER[name].format(path=path)}"


def _values(parameter: Any) -> Callable[[], Iterable[str]] | None:
    kind_of = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    if isinstance(kind_of, type) and issubclass(kind_of, Enum):
        return lambda: [str(c.value) for c in kind_of]
    if parameter.name in KIND_OF:
        kind = KIND_OF[parameter.name]
        return lambda: names_of(kind)
    if parameter.name in PATHS:
        return lambda: [FILES]
    if parameter.param_type_name == "argument" and parameter.name in ARGUMENTS:
        listed = ARGUMENTS[parameter.name]
        return lambda: [n for kind in listed for n in names_of(kind)] if parameter.name == "name" else listed
    return None


def names_of(kind: str) -> list[str]:
    """Names and aliases of one kind, from the indexes alone.

    >>> "h100-sxm5-80gb" in names_of("hardware"), "7b" in names_of("models"), "fp8" in names_of("formats")
    (True, True, True)
    """
    from inferplan.specs.catalog import INDEX, folders

    if kind == "calibrations":
        return list(CALIBRATIONS)
    if kind in ("formats", "kv"):
        return _formats(kind)
    if kind == "links":
        return _links()
    found: list[str] = []
    for folder in folders(kind):
        index = folder / INDEX
        if index.is_file():
            with index.open(encoding="utf-8", newline="") as table:
                found += [row["alias"] for row in csv.DictReader(table) if "/" not in row["alias"]]
        else:
            found += [p.stem for p in folder.rglob("*.yaml")]
    return sorted(name for name in set(found) if SAFE.fullmatch(name))


def _formats(kind: str) -> list[str]:
    """Names of formats: lines of their files that begin one, or of the cache's alone."""
    from inferplan.specs.catalog import folders

    found: set[str] = {"auto"}
    for folder in folders("formats"):
        for path in sorted(folder.glob("*.yaml")):
            text = path.read_text(encoding="utf-8")
            if kind == "formats":
                found |= set(NAMED.findall(text))
            else:
                found |= {name for name, rest in FORMAT.findall(text) if path.stem == "kv" or CACHED.search(rest)}
    return sorted(found)


def _links() -> list[str]:
    from inferplan.specs.catalog import data_file

    text = data_file("hardware", "links.yaml").read_text(encoding="utf-8")
    return sorted(set(LINK.findall(text.partition("\nlinks:\n")[2].partition("\nnccl:")[0])))


def answers(words: list[str], current: str) -> list[str]:
    """Candidates for the word that is being typed, after the words before it.

    >>> answers([], "est"), answers(["estimate", "--gpu"], "a100,h100-nvl")[0]
    (['estimate'], 'a100,h100-nvl')
    """
    from inferplan.cli.app import COMMANDS

    name = next((w for w in words if w in COMMANDS), None)
    if name is None:
        return _starting([*COMMANDS, "help", "--version", "--help", "--show-completion", "--install-completion"], current)
    from inferplan.cli.group import loaded

    command = loaded(name)
    values = {p.name: found for p in command.params if (found := _values(p))}
    option = next((p for p in command.params if words and words[-1].startswith("-") and words[-1] in (*p.opts, *p.secondary_opts)), None)
    if option is not None and not getattr(option, "is_flag", False):
        return _of_value(values[option.name](), current) if option.name in values else []
    if current.startswith("-"):
        return _starting([o for p in command.params if p.param_type_name == "option" for o in (*p.opts, *p.secondary_opts)], current)
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    place = _given(command, words[words.index(name) + 1 :])
    argument = arguments[place] if place < len(arguments) else None
    return _of_value(values[argument.name](), current) if argument is not None and argument.name in values else []


def _given(command: Any, words: list[str]) -> int:
    """How many arguments stand among the words: those that are neither an option nor the value of one."""
    valued = {o for p in command.params if not getattr(p, "is_flag", False) for o in p.opts if p.param_type_name == "option"}
    before = ["", *words]
    return sum(not word.startswith("-") and last not in valued for last, word in zip(before, words, strict=False))


def _of_value(found: Iterable[str], current: str) -> list[str]:
    """Candidates for the last of several values with commas; a path is left to the shell."""
    listed = list(found)
    if listed == [FILES] or current.startswith(("./", "/", "~", "../")):
        return ["%files"]
    head, comma, last = current.rpartition(",")
    return [head + comma + name for name in _starting(listed, last)]


def _starting(found: Iterable[str], start: str) -> list[str]:
    return [name for name in found if name.lower().startswith(start.lower())][:MOST]


def asked() -> bool:
    """Whether a shell asks for candidates; they are then printed. Indexes that do not read give none: commands say why."""
    words = os.environ.get(ASKING)
    if words is None:
        return False
    import sys

    with suppress(OSError, UnicodeError, KeyError, csv.Error):
        found = answers([w for w in words.split("\n") if w], os.environ.get(CURRENT, ""))
        sys.stdout.write("".join(f"{name}\n" for name in found))
    return True
