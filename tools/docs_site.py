"""What the site shows beside docs/: pages of the repository's other folders, and pages made from the code. A hook of mkdocs (mkdocs.yml).

Links are written as they work in the repository; those that leave docs/ are turned here to where the site has that page. A link to a
file that the site has not becomes its words with the file's path.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import posixpath
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).parent)]
from markdown_table import table  # noqa: E402

MEASURED = ("README.md", "RESULTS.md", "OFFLINE.md", "LLAMA.md", "OPEN_LOOP.md", "DISAGGREGATED.md", "CALIBRATE.md", "serving.png")
OUTSIDE = {
    "README.md": "index.md",
    "README.zh-CN.md": "zh.md",
    "ARCHITECTURE.md": "project/ARCHITECTURE.md",
    "CONTRIBUTING.md": "project/CONTRIBUTING.md",
    "CHANGELOG.md": "project/CHANGELOG.md",
    "calibration/README.md": "project/calibration.md",
    **{f"validation/{name}": f"measured/{name}" for name in MEASURED},
}
WHERE = {site: path for path, site in OUTSIDE.items()}
LINK = re.compile(r"\[((?:[^][`]|`[^`]*`)*)\]\(([^)\s]+)\)")
log = logging.getLogger("mkdocs.plugins.inferplan")


def on_files(files: Any, config: Any) -> Any:
    """The pages that do not lie in docs/."""
    from mkdocs.structure.files import File

    for path, site in OUTSIDE.items():
        files.append(File.generated(config, site, abs_src_path=str(ROOT / path)))
    for site, make in PAGES.items():
        files.append(File.generated(config, site, content=make()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page with its links as the site has them."""
    here = page.file.src_uri
    return relinked(markdown, WHERE.get(here, f"docs/{here}"), here)


def relinked(markdown: str, source: str, here: str) -> str:
    """Links of a file `source` of the repository that the site shows as `here`, turned to where the site has what they mean.

    >>> relinked("see [memory](docs/memory.md#sglang), [it](LICENSE)", "README.md", "index.md")
    'see [memory](memory.md#sglang), it (`LICENSE`)'
    >>> relinked("![](../validation/serving.png)", "docs/how-to/x.md", "how-to/x.md")
    '![](../validation/serving.png)'
    """

    def turn(match: re.Match[str]) -> str:
        text, (target, _, anchor) = match[1], match[2].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        site = OUTSIDE.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if site is not None:
            return f"[{text}]({posixpath.relpath(site, posixpath.dirname(here) or '.')}{'#' + anchor if anchor else ''})"
        if not (ROOT / path).exists():
            return match[0]
        return text if text.strip("`") == path else f"{text} (`{path}`)"

    return LINK.sub(turn, markdown)


def glossary() -> str:
    """Every quantity that is shown or exported."""
    from inferplan.terms import TERMS

    rows = [[f"`{t.key}`", t.label, t.unit or "", _cell(t.meaning)] for t in TERMS.values()]
    head = "Keys of JSON, CSV and Parquet, labels on screens and axes, base units. From `inferplan.terms`.\n\n"
    return f"# Glossary\n\n{head}{table(['key', 'on screens', 'unit', 'meaning'], rows)}"


def equations() -> str:
    """Every formula with its text, unit and reference, by module."""
    from inferplan.formula import FORMULAS

    for path in sorted((ROOT / "src" / "inferplan").rglob("*.py")):
        if "@formula(" in path.read_text():
            importlib.import_module(".".join(path.relative_to(ROOT / "src").with_suffix("").parts))
    rooms: dict[str, list[Any]] = {}
    for formula in FORMULAS.values():
        name = formula.function.__module__.removeprefix("inferplan.")
        if name != formula.function.__module__:
            rooms.setdefault(name, []).append(formula)
    order = sorted(rooms, key=lambda name: (FLOORS.index(name.split(".")[0]), name))
    return "".join(["# Equations\n\n", EQUATIONS, *(_room(name, rooms[name]) for name in order)])


FLOORS = ("ops", "roofline", "memory", "serving", "speculation", "planner")


EQUATIONS = """Each is a function that states itself: the text below is the one that `inferplan explain` shows, and a test evaluates it
against the function on random inputs, scalar and array. How they go together is told in [How counts work](../how-counts-work.md) and
[How times work](../how-times-work.md). Arguments are in base units: seconds, bytes, FLOP, FLOP/s, B/s.
"""


def _room(name: str, found: list[Any]) -> str:
    parts = [f"\n## {name}\n"]
    for f in found:
        said = (inspect.getdoc(f.function) or "").split("\n\n")[0].replace("\n", " ")
        text = textwrap.fill(f"{f.name} = {f.text}", 88, subsequent_indent="    ", break_long_words=False)
        source = f" Source: {f.ref}." if f.ref else ""
        parts.append(f"\n### {f.name}\n\n{said}\n\n```text\n{text}\n```\n\nUnit: {f.unit if f.unit != '1' else 'none'}.{source}\n")
    return "".join(parts)


def commands() -> str:
    """Every command with its arguments and options, as the program itself has them."""
    from inferplan.cli.app import COMMANDS

    rows = [[f"[`{name}`](#{name})", _cell(text)] for name, text in COMMANDS.items()]
    return "".join(["# Command line\n\n", CLI, table(["command", "what it answers"], rows), *(_command(name) for name in COMMANDS)])


CLI = """`inferplan COMMAND --help` says the same in the terminal, `inferplan --version` the version, `inferplan --install-completion`
sets up completion. Results go to the standard output, remarks and progress to the standard error. [Exit codes](exit-codes.md).

"""


def command_of(name: str) -> Any:
    """A command as typer makes it, with a context to ask it in."""
    import typer

    module = importlib.import_module(f"inferplan.cli.{name.replace('-', '_')}_command")
    command = typer.main.get_command(module.app)
    context: Any = command.context_class(command, info_name=name)
    return command, context


def _command(name: str) -> str:
    from inferplan.cli.examples import EXAMPLES

    command, context = command_of(name)
    said = inspect.cleandoc(command.help or "").replace("\b", "")
    usage = " ".join(["inferplan", name, *command.collect_usage_pieces(context)])
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    shown = "\n".join(f"$ {line}" for line in EXAMPLES[name])
    parts = [f"\n## {name}\n\n{said}\n\n```text\n{usage}\n```\n\n```console\n{shown}\n```\n"]
    if arguments:
        parts.append("\n" + table(["argument", "meaning"], [[f"`{p.metavar or p.name}`", _cell(p.help or "")] for p in arguments]))
    return "".join([*parts, "\n" + table(["option", "meaning"], [_option(p, context) for p in options])])


def _option(option: Any, context: Any) -> list[str]:
    names, text = option.get_help_record(context)
    return [f"`{_cell(re.sub(' +', ' ', names))}`", _cell(text)]


def exit_codes() -> str:
    """Exit codes with the errors that end in them."""
    from inferplan import errors
    from inferplan.cli.app import INTERRUPTED

    kinds = [e for _, e in inspect.getmembers(errors, inspect.isclass) if issubclass(e, errors.InferplanError)]
    rows = [["0", "done"], *_ends(kinds, 1), *_ends(kinds, 2)]
    rows += [["2", "a wrong option or argument, or a file that cannot be read or written"]]
    rows += [[str(INTERRUPTED), "interrupted (Ctrl-C); what was done by then is kept where a command says so"]]
    return f"# Exit codes\n\n{EXITS}{table(['code', 'when'], rows)}"


EXITS = """An error is one line on the standard error that begins with `inferplan:` and names file, field, value and rule; nothing is half
written. Scripts can rely on the code. Names in parentheses are what the Python functions raise.

"""


def _ends(kinds: list[Any], code: int) -> list[list[str]]:
    found = [e for e in kinds if e.exit_code == code and e.__name__ != "InferplanError"]
    said = [(e.__name__, (inspect.getdoc(e) or "").split("\n\n")[0].replace("\n", " ").rstrip(".")) for e in found]
    return [[str(code), f"{text[0].lower()}{text[1:]} (`{name}`)"] for name, text in said]


def python_reference() -> str:
    """What `import inferplan` gives, by what it is for."""
    import inferplan

    where = {name: f"inferplan.{module}.{name}" for module, names in inferplan._PLACES.items() for name in names}
    left = set(where) - {name for _, names in API for name in names}
    groups = [*API, *([("More", sorted(left))] if left else [])]
    return "".join(["# Python\n\n", PYTHON, *(_group(title, names, where) for title, names in groups)])


PYTHON = """What `import inferplan as ip` gives; nothing else is promised to stay. Names load when they are first used. Loads are keyword
arguments in base units, and every estimator takes arrays that broadcast.

"""
API = [
    ("Names to specs", ["model", "hardware", "precision", "Model", "Accelerator", "Precision"]),
    ("A deployment answered", ["estimate", "Estimate", "fit", "Fit"]),
    ("Counts", ["counts", "Counts", "weight_bytes", "weight_bytes_by_part", "kv_bytes_per_token", "kv_bytes_per_token_unbounded",
                "sequence_bytes", "state_bytes_per_sequence", "distinct_experts"]),
    ("One pass", ["Segment", "step", "prefill", "decode", "Step", "grid", "chunks"]),
    ("Serving", ["Requests", "Lengths", "Workload", "Schedule", "Slo", "simulate", "simulate_case", "closed_loop", "read_trace",
                 "continuous", "static", "LinearSteps", "table_steps"]),
    ("Sweeps and plans", ["Space", "sweep", "pareto", "Goal", "plan", "Plan"]),
    ("Launching", ["launch_command", "launch_manifest", "launch_benchmark"]),
    ("Errors", ["InferplanError", "SpecError", "NotFound", "Unsupported", "DoesNotFit", "NoFeasiblePlan"]),
]  # fmt: skip


def _group(title: str, names: list[str], where: dict[str, str]) -> str:
    return f"\n## {title}\n" + "".join(f"\n::: {where[name]}\n" for name in names if name in where)


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")


PAGES = {
    "reference/cli.md": commands,
    "reference/exit-codes.md": exit_codes,
    "reference/api.md": python_reference,
    "reference/equations.md": equations,
    "reference/glossary.md": glossary,
}


def foreign(site: Path) -> Iterator[str]:
    """What pages and style sheets of a built site would load from another host: scripts, styles, images, fonts, frames."""
    loads = re.compile(r"<(?:script|img|iframe|source|audio|video|embed)\b[^>]*?\b(?:src|srcset)=\"?((?:https?:)?//[^\"\s>]+)")
    kinds = "stylesheet|preload|preconnect|icon|modulepreload|dns-prefetch"
    links = re.compile(rf"<link\b(?=[^>]*rel=\"?(?:{kinds}))[^>]*href=\"?((?:https?:)?//[^\"\s>]+)")
    styles = re.compile(r"(?:url\(|@import\s+)[\"']?((?:https?:)?//[^\"')\s]+)")
    for path in sorted(site.rglob("*")):
        patterns = {".html": (loads, links, styles), ".css": (styles,)}.get(path.suffix, ())
        for pattern in patterns:
            yield from (f"{path.relative_to(site)}: {found}" for found in pattern.findall(path.read_text(encoding="utf-8")))


def main(folder: str) -> int:
    """Say what a built site would load from elsewhere; 0 where that is nothing."""
    site = Path(folder)
    if not (site / "index.html").exists():
        sys.exit(f"{site}: no site")
    found = list(foreign(site))
    print("\n".join(found) or f"{site}: {sum(1 for _ in site.rglob('*.html'))} pages, nothing is loaded from another host")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
