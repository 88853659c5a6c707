"""Runs all hostile programs at one level, and prints what became of them as JSON.

python -m containing.programs LEVEL
"""

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

# A program is a function that says whether it was refused, or raises OSError.
_CALL = """
try:
    refused = {}()
except OSError:
    refused = True
print("refused" if refused else "done")
"""


@dataclass(frozen=True, slots=True)
class Program:
    """A hostile program.

    Attributes:
        name: the kind of attack, which its file's name begins with, and its function's name.
        tries: what it says that it tries.
        source: its text.
    """

    name: str
    tries: str
    source: str

    @property
    def kind(self) -> str:
        """Of attack."""
        return self.name.partition("/")[0]


def programs() -> list[Program]:
    """All of them, by name; each has the beginning of its file, too, and what they share."""
    listed = []
    shared = (FOLDER / "_shared.py").read_text()
    for path in FOLDER.glob("[!_]*.py"):
        text = path.read_text()
        functions = [
            each
            for each in ast.parse(text).body
            if isinstance(each, ast.FunctionDef) and not each.name.startswith("_")
        ]
        lines = text.splitlines()[: functions[0].lineno - 1]
        head = "\n".join(line for line in lines if not line.startswith("from _shared import"))
        for each in functions:
            source = (
                f"{shared}\n{head}\n{ast.get_source_segment(text, each)}\n{_CALL.format(each.name)}"
            )
            name = f"{path.stem.partition('_')[0]}/{each.name}"
            tries = " ".join((ast.get_docstring(each) or "").split())
            listed.append(Program(name, tries, source))
    return sorted(listed, key=lambda program: program.name)


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
