"""The runs that a table of the paper needs: commands of lm-eval, run one after the other."""

import ctypes
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from lm_eval._cli.utils import key_val_to_dict, try_parse_json

from copyspec_eval import journal
from copyspec_eval.errors import DataError, OptionError
from copyspec_eval.harness.recorded import VARIABLE, environment_arguments, recorded
from copyspec_eval.redaction import NOT_RECORDED, masked

_COMMAND = "command.json"

MT_REDUNDANT, MT_BENCH = "mt_redundant_paper", "mt_bench_paper"
GSM8K = "gsm8k_self_correction_paper"
CNN_DAILYMAIL = "cnn_dailymail_extractive_paper"
HUMANEVAL, MBPP = "humaneval_evalplus_paper", "mbpp_evalplus_paper"
_DIE_WITH_PARENT = 1  # <sys/prctl.h>


class Task(NamedTuple):
    """One of our tasks as the paper has it; tokens as of Qwen2.5-7B; no `score` for a rating."""

    name: str
    num_turns: int
    num_documents: int
    tokens_per_answer: int
    score: str = ""
    is_whole: bool = True


TASKS = {
    MT_REDUNDANT: Task("MT-Redundant", 2, 80, 410),
    CNN_DAILYMAIL: Task("CNN/DM", 1, 101, 100, "rougeL_unstemmed", is_whole=False),
    GSM8K: Task("GSM-8K", 3, 104, 100, "acc_turn3", is_whole=False),
    MT_BENCH: Task("MT-Bench", 2, 80, 430),
    HUMANEVAL: Task("HumanEval", 1, 164, 300, "pass@1_base"),
    MBPP: Task("MBPP", 1, 378, 200, "pass@1_base"),
}
"""In the order of the paper's main table, which has all but the last."""


@dataclass(frozen=True, slots=True)
class Request:
    """The options of `copyspec-eval paper`; a run gets the `secrets` through its environment."""

    model: str
    out: Path
    limit: int | None = None
    draft_model: str | None = None
    model_args: Mapping[str, Any] = field(default_factory=dict)
    batch_size: str = "1"
    tasks: Sequence[str] = ()  # in place of a table's own
    is_base: bool = False  # whether prompts are completed, since the model has no chat template
    options: Mapping[str, str] = field(default_factory=dict)  # further ones of lm-eval
    secrets: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A task, answered by several arms in turn, and by the baseline.

    >>> arms = ("copyspec+gamma=2", "copyspec+gamma=10")
    >>> PlannedRun(Request("org/model", Path("runs")), "mt_bench_paper", arms).folder.name
    'model-mt_bench-copyspec-gamma2-to-copyspec-gamma10'
    """

    request: Request
    task: str
    arms: tuple[str, ...]
    exact: bool = True

    @property
    def folder(self) -> Path:
        """Named after its first and last arm: tables that need the same run share it."""
        names = []
        for arm in dict.fromkeys((self.arms[0], self.arms[-1])):
            brief = re.sub(r"draft_model=[^+]*[/\\]", "draft_model=", arm).replace("=", "")
            names.append(re.sub(r"[^\w.]+", "-", brief))
        task = self.task.removesuffix("_paper")
        return self.request.out / f"{Path(self.request.model).name}-{task}-{'-to-'.join(names)}"

    @property
    def num_documents(self) -> int:
        num_documents = TASKS[self.task].num_documents
        return min(num_documents, self.request.limit or num_documents)

    @property
    def num_tokens(self) -> int:
        """About how many all arms and the baseline generate."""
        task = TASKS[self.task]
        answers = self.num_documents * task.num_turns
        return answers * task.tokens_per_answer * (len(self.arms) + 1)

    @property
    def command(self) -> list[str]:
        """Arguments of lm-eval; as in the reference, every turn is prefilled anew."""
        folder, request = self.folder, self.request
        arguments = [f"pretrained={request.model}", f"arms={':'.join(self.arms)}"]
        arguments += [] if self.exact else ["exact=false"]
        others = {"prefix_cache": 0, **request.model_args}
        arguments += [f"{name}={value}" for name, value in others.items()]
        command = ["run", "--model", "copyspec", "--model_args", ",".join(arguments)]
        command += ["--tasks", self.task, "--confirm_run_unsafe_code"]
        is_chat = self.task not in (MT_REDUNDANT, MT_BENCH) and not request.is_base
        command += ["--apply_chat_template"] if is_chat else []
        command += itertools.chain.from_iterable(request.options.items())
        if request.limit or not TASKS[self.task].is_whole:
            command += ["--limit", str(self.num_documents)]
        command += ["--batch_size", request.batch_size, "--log_samples"]
        # Both names identify the run, so that commands can be copied and run in one folder.
        cache = folder / f"{folder.name}-answers"
        return [*command, "--output_path", str(folder), "--use_cache", str(cache)]

    @property
    def in_shell(self) -> str:
        return shlex.join(["copyspec-eval", *self.command])


def arguments(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Model arguments as commands show them, and those that a run gets through its environment."""
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


def make(runs: Sequence[PlannedRun]) -> None:
    """Run what has not finished yet."""
    for run in runs:
        _check_folder(run)
    for run in runs:
        _check_folder(run)  # again: two models of one name would share it
        folder = run.folder
        if any(folder.glob("*/results_*.json")):  # lm-eval writes them last
            continue
        folder.mkdir(parents=True, exist_ok=True)
        journal.replace(folder / _COMMAND, json.dumps(run.command) + "\n")
        print(run.in_shell, file=sys.stderr, flush=True)
        hidden = environment_arguments() | dict(run.request.secrets)
        environment = os.environ | {VARIABLE: json.dumps(hidden)}
        # What lm-eval prints is not the table.
        command = [sys.executable, "-m", "copyspec_eval", *run.command]
        how: dict[str, Any] = {"stdout": 2, "env": environment, "preexec_fn": _end_with_parent}
        if code := subprocess.run(command, **how).returncode:
            reason = f"its run failed (exit code {code})"
            raise DataError(f"{folder}: {reason}; repeat the command to resume")


def _check_folder(run: PlannedRun) -> None:
    path = run.folder / _COMMAND
    try:
        made = journal.parsed(journal.read(path)) if path.exists() else run.command
    except ValueError as error:
        raise DataError(f"{path}: cannot be read ({error}); remove the folder") from error
    if made != run.command:
        reason = f"has a run of another command ({_COMMAND} there)"
        raise DataError(f"{run.folder}: {reason}; give another --out")


def _end_with_parent() -> None:
    """Have Linux end this process when its parent is killed, which can then end none itself."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
