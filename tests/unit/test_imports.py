"""Imports run down the floors and never in a circle, and the light modules stay light."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import copyspec_eval

PACKAGE = Path(copyspec_eval.__file__).parent

# From the top down; an import goes to a strictly lower line, or stays in its own folder.
FLOORS = (
    ("__init__", "__main__"),
    ("cli",),
    ("paper",),
    ("api", "harness"),
    ("session",),
    ("serving",),
    ("decoding", "reports"),
    ("drafters", "scoring", "records", "manifest", "sources"),
    ("sandbox",),
    ("types", "journal", "provenance"),
    ("announced", "errors", "loops", "paths"),
    ("redaction",),
)
LEVELS = {unit: level for level, units in enumerate(reversed(FLOORS)) for unit in units}


def read_package() -> dict[str, str]:
    """Source by dotted name inside the package: `cli`, `harness.lm`, `harness.__init__`."""
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path.read_text(encoding="utf-8")
        for path in PACKAGE.rglob("*.py")
    }


def find_violations(sources: dict[str, str]) -> list[str]:
    """One line per import that goes up or sideways, and one per circle."""
    edges = {name: sorted(set(imported_modules(name, sources))) for name in sources}
    wrong = [
        f"{name} imports {target}"
        for name, targets in edges.items()
        for target in targets
        if not may_import(name.partition(".")[0], target.partition(".")[0])
    ]
    return wrong + [f"circle: {' > '.join(circle)}" for circle in find_circles(edges)]


def may_import(unit: str, target: str) -> bool:
    return unit == target or LEVELS[unit] > LEVELS[target]


def imported_modules(name: str, sources: dict[str, str]) -> Iterator[str]:
    """Modules of the package that `name` imports, wherever in its text."""
    folder = ["copyspec_eval", *name.split(".")[:-1]]
    for node in ast.walk(ast.parse(sources[name])):
        if isinstance(node, ast.Import):
            dotted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) - node.level + 1] if node.level else []
            parts = [*base, *(node.module or "").split(".")]
            dotted = [".".join(filter(None, [*parts, alias.name])) for alias in node.names]
        else:
            continue
        for module in dotted:
            if module.split(".")[0] == "copyspec_eval":
                yield resolve(module.split(".")[1:], sources)


def resolve(parts: list[str], sources: dict[str, str]) -> str:
    """The longest prefix of `parts` that is a module; the rest names something inside it."""
    for end in range(len(parts), 0, -1):
        name = ".".join(parts[:end])
        if name in sources:
            return name
        if f"{name}.__init__" in sources:
            return f"{name}.__init__"
    return "__init__"


def find_circles(edges: dict[str, list[str]]) -> list[list[str]]:
    """The import circles met while walking depth first; empty exactly when there is none."""
    circles: list[list[str]] = []
    finished: set[str] = set()

    def walk(name: str, trail: list[str]) -> None:
        if name in trail:
            circles.append([*trail[trail.index(name) :], name])
        elif name not in finished:
            for target in edges[name]:
                walk(target, [*trail, name])
            finished.add(name)

    for name in edges:
        walk(name, [])
    return circles


def test_every_module_stands_on_a_floor():
    units = {name.partition(".")[0] for name in read_package()}
    assert units <= LEVELS.keys(), "give the new module a line in FLOORS"


def test_imports_run_down():
    assert find_violations(read_package()) == []


@pytest.mark.parametrize(
    ("sources", "violation"),
    [
        ({"types": "from copyspec_eval.cli import main", "cli": ""}, "types imports cli"),
        ({"types": "def late():\n    import copyspec_eval.cli", "cli": ""}, "types imports cli"),
        (
            {"reports.page": "from copyspec_eval.decoding import engine", "decoding.engine": ""},
            "reports.page imports decoding.engine",
        ),
        (
            {"drafters.a": "from .. import harness", "harness.__init__": ""},
            "drafters.a imports harness.__init__",
        ),
        (
            {"records": "from copyspec_eval import name_from_the_top", "__init__": ""},
            "records imports __init__",
        ),
        (
            {"drafters.a": "from .b import x", "drafters.b": "from . import a"},
            "circle: drafters.a > drafters.b > drafters.a",
        ),
    ],
)
def test_a_wrong_import_is_caught(sources, violation):
    assert find_violations(sources) == [violation]


def test_a_right_import_passes():
    sources = {
        "harness.lm": "from copyspec_eval.decoding.engine import Engine\nfrom . import autoload",
        "harness.autoload": "import copyspec_eval.types",
        "decoding.engine": "import torch",
        "types": "from typing import Any",
    }
    assert find_violations(sources) == []


def test_light_modules_import_neither_torch_nor_transformers():
    program = (
        "import sys, copyspec_eval, copyspec_eval.cli, copyspec_eval.harness.autoload\n"
        "print({'torch', 'transformers', 'lm_eval'} & sys.modules.keys() or 'light')"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "light"
