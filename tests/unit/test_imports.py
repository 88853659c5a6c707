"""Imports run down the floors and never in a circle."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import copyspec_eval

PACKAGE = Path(copyspec_eval.__file__).parent

# From the top down; an import goes to a strictly lower line, or stays in its own folder.
FLOORS = (
    ("__init__", "__main__"),
    ("cli",),
    ("audit",),
    ("paper",),
    ("api", "harness"),
    ("pairs", "session"),
    ("serving",),
    ("decoding", "reports"),
    ("drafters", "scoring", "records", "manifest", "sources"),
    ("openai_api", "sandbox"),
    ("types", "journal", "provenance"),
    ("announced", "errors", "loops", "paths"),
    ("redaction",),
)
LEVELS = {unit: level for level, units in enumerate(reversed(FLOORS)) for unit in units}
MODULES = {
    path.relative_to(PACKAGE).with_suffix("").parts: path.read_text("utf-8")
    for path in PACKAGE.rglob("*.py")
}
"""Source by parts of the name inside the package: `harness lm`, `harness __init__`."""

Name = tuple[str, ...]


def imported(folder: Name, source: str) -> Iterator[Name]:
    """What of the package it imports, wherever in its text."""
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level <= 1, "imports of other folders are absolute"
            base = ".".join(("copyspec_eval", *folder)) if node.level else ""
            names = [f"{base}.{node.module or ''}.{alias.name}" for alias in node.names]
        parts = [tuple(filter(None, name.split("."))) for name in names]
        yield from (module_of(name[1:]) for name in parts if name[0] == "copyspec_eval")


def module_of(name: Name) -> Name:
    """Of the longest beginning that is a module; the rest names something inside it."""
    for end in range(len(name), 0, -1):
        for module in (name[:end], (*name[:end], "__init__")):
            if module in MODULES:
                return module
    return ("__init__",)


def test_imports_run_down():
    edges = {name: {*imported(name[:-1], source)} for name, source in MODULES.items()}
    assert {name[0] for name in edges} <= LEVELS.keys(), "give the new module a line in FLOORS"
    pairs = [(name, target) for name, targets in edges.items() for target in targets]
    assert len(pairs) > len(edges), "most modules import others"
    levels = {pair: LEVELS[pair[0][0]] - LEVELS[pair[1][0]] for pair in pairs}
    assert [(a, b) for (a, b), steps in levels.items() if a[0] != b[0] and steps <= 0] == []
    TopologicalSorter(edges).prepare()  # raises CycleError
