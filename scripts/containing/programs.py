"""Runs all hostile programs at one level, and prints what became of them as JSON.

python -m containing.programs LEVEL
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from containing.unprivileged import as_nobody
from copyspec_eval.sandbox.commands import Outcome
from copyspec_eval.sandbox.programs import VARIABLE, run_all

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "programs" / "hostile"
LEVELS = ("bubblewrap", "landlock", "limits")
REFUSED, DONE = "refused", "done"


@dataclass(frozen=True, slots=True)
class Program:
    """A hostile program.

    Attributes:
        name: its folder, the kind of attack, and its file's name.
        tries: what it says that it tries.
        source: its text.
    """

    name: str
    tries: str
    source: str

    @property
    def kind(self) -> str:
        """Its folder."""
        return self.name.partition("/")[0]


def programs() -> list[Program]:
    """All of them, by name."""
    return [
        Program(
            str(path.relative_to(FOLDER).with_suffix("")),
            ast.get_docstring(ast.parse(path.read_text())) or "",
            path.read_text(),
        )
        for path in sorted(FOLDER.glob("*/*.py"))
    ]


def outcomes(level: str) -> dict[str, str]:
    """By name, what each program printed at a level; why it ended, if in another way."""
    os.environ[VARIABLE] = level
    tried = programs()
    ended = run_all([program.source for program in tried])
    return {
        program.name: _outcome(ended_so) for program, ended_so in zip(tried, ended, strict=True)
    }


def _outcome(ended: Outcome) -> str:
    # Some need permissions before they come to what they try.
    if ended.status == "error" and "PermissionError" in ended.reason:
        return REFUSED
    return ended.stdout.strip() if ended.status == "ok" else ended.reason


def outcomes_as_nobody(level: str) -> dict[str, str] | None:
    """`outcomes` of a user without rights; None if there can be none, or the level has none."""
    paths = [str(ROOT / "scripts"), *sys.path]
    command = as_nobody(
        ["env", f"PYTHONPATH={':'.join(paths)}", sys.executable, "-m", __name__, level]
    )
    if command is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
    if "does not work on this machine" in done.stderr:
        return None
    if done.returncode:
        raise RuntimeError(done.stderr)
    printed: dict[str, str] = json.loads(done.stdout)
    return printed


if __name__ == "__main__":
    print(json.dumps(outcomes(sys.argv[1])))
