"""The floors of ARCHITECTURE.md: a module imports only from floors below its own, or from its own floor."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "inferplan"
FLOORS = (
    ("errors", "units", "terms", "formula", "shown"),
    ("specs",),
    ("readers",),
    ("ops",),
    ("roofline",),
    ("engine",),
    ("memory",),
    ("deployment", "names", "explain"),
    ("serving", "speculation", "quantization"),
    ("calibrate", "planner", "launch"),
    ("report",),
    ("cli", "__main__"),
)
LEVEL = {name: level for level, names in enumerate(FLOORS) for name in names}
MODULES = sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
        found |= {n.split(".")[1] for n in names if n.startswith("inferplan.")}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_only_from_below(path: Path) -> None:
    own = LEVEL[room(path)]
    above = {name for name in imported(path) if LEVEL[name] > own}
    assert not above, f"{path.relative_to(ROOT)} (floor {own}) imports from above: {sorted(above)}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_pandas_and_matplotlib_load_only_where_used(path: Path) -> None:
    tree = ast.parse(path.read_text())
    top = [n for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom))]
    names = {a.name.split(".")[0] for n in top for a in n.names} | {
        n.module.split(".")[0] for n in top if isinstance(n, ast.ImportFrom) and n.module
    }
    assert not names & {"pandas", "matplotlib"}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_below_the_edge_nothing_prints_or_asks_the_clock(path: Path) -> None:
    if room(path) in ("cli", "report"):
        return
    calls = {n.func.id for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    assert not calls & {"print", "input"}


def bodies() -> list[tuple[int, str]]:
    found = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                first = node.body[0]
                doc = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
                body = node.body[1:] if doc else node.body
                lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
                found.append((lines, f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"))
    return sorted(found)


def test_functions_are_short() -> None:
    found = bodies()
    lengths = [n for n, _ in found]
    assert lengths[len(lengths) // 2] <= 10, "median body"
    assert lengths[int(len(lengths) * 0.9)] <= 25, "nine in ten"
    assert found[-1][0] <= 60, f"the longest is {found[-1]}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_each_module_says_what_it_knows(path: Path) -> None:
    doc = ast.get_docstring(ast.parse(path.read_text()))
    assert doc, "a module begins with what it knows"
    assert len(doc.split()) >= 5
