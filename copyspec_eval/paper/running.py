"""Makes the runs of a table, one after the other; what is done is kept, whatever ends it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from lm_eval._cli.utils import key_val_to_dict, try_parse_json

from copyspec_eval import journal
from copyspec_eval.errors import DataError, OptionError
from copyspec_eval.harness.recorded import VARIABLE, environment_arguments, recorded
from copyspec_eval.paper.plan import PlannedRun, Request, in_shell
from copyspec_eval.redaction import NOT_RECORDED, masked

_COMMAND = "command.json"


def arguments(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Model arguments as commands have them, and those that a run gets by its environment."""
    try:
        parsed = try_parse_json(text) if text.startswith("{") else key_val_to_dict(text)
    except ValueError as error:
        raise OptionError(f"--model-args: {masked(str(error))}") from None
    given = dict(parsed)
    typed = {
        name: value
        for name, value in recorded(given).items()
        if value == given[name] and not re.search("[,\"'({[]", str(value))
    }
    elsewhere = {name: value for name, value in given.items() if name not in typed}
    return {name: typed.get(name, NOT_RECORDED) for name in given}, elsewhere


def make(runs: Iterable[PlannedRun], request: Request) -> None:
    """Run what is not there yet."""
    runs = list(runs)
    hidden = environment_arguments() | dict(request.secrets)
    environment = os.environ | {VARIABLE: json.dumps(hidden)}
    for run in runs:
        _check_folder(run, request)
    for run in runs:
        folder, command = run.folder(request), run.command(request)
        if any(folder.glob("*/results_*.json")):  # lm-eval writes them last
            continue
        folder.mkdir(parents=True, exist_ok=True)
        journal.replace(folder / _COMMAND, json.dumps(command) + "\n")
        print(in_shell(command), file=sys.stderr, flush=True)
        # What lm-eval prints is not the table.
        command = [sys.executable, "-m", "copyspec_eval", *command]
        if code := subprocess.run(command, stdout=2, env=environment).returncode:
            reason = f"its run failed (exit code {code})"
            raise DataError(f"{folder}: {reason}; the same command goes on")


def _check_folder(run: PlannedRun, request: Request) -> None:
    path = run.folder(request) / _COMMAND
    if not path.exists():
        return
    try:
        made = journal.parsed(journal.read(path))
    except ValueError as error:
        raise DataError(f"{path}: cannot be read ({error}); remove the folder") from error
    if made != run.command(request):
        reason = f"has a run of another command ({path.name} there)"
        raise DataError(f"{path.parent}: {reason}; give another --out")
