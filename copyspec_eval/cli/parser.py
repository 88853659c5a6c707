"""The arguments of each command."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from copyspec_eval.cli import commands
from copyspec_eval.redaction import masked

_Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"
_Function: TypeAlias = "Callable[[argparse.Namespace], int | None]"

_RUN: dict[str, Any] = {"type": Path, "metavar": "RUN"}
_DIR: dict[str, Any] = {"type": Path, "metavar": "DIR"}
_FILE: dict[str, Any] = {"type": Path, "metavar": "FILE"}
_RUN_FOLDER = "the folder that lm_eval wrote to"
_MODEL = "a Hub name or a folder"


class _Parser(argparse.ArgumentParser):
    """Of arguments that it does not know, it names no values: a key may be among them."""

    def error(self, message: str) -> NoReturn:
        start, unknown, words = message.partition("unrecognized arguments: ")
        names = [word.partition("=")[0] for word in words.split() if word.startswith("-")]
        super().error(masked(start) + unknown + " ".join(names))


def parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="copyspec-eval",
        description="Evaluate language models with speculative copying.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {_version()}")
    choices = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_run(choices)
    _add_replay(choices)
    _add_compare(choices)
    _add_report(choices)
    _add_merge(choices)
    _add_command(choices, commands.tiny, "print the folder of the embedded model")
    _add_exactness(choices)
    _add_paper(choices)
    _add_judge(choices)
    _add_redundant(choices)
    _add_export(choices)
    return parser


def _add_command(
    choices: _Commands, function: _Function, what: str, name: str | None = None, **options: Any
) -> _Parser:
    """A command that is called as its function is."""
    command = choices.add_parser(name or function.__name__, help=what, **options)
    command.set_defaults(command=function)
    return command


def _add_run(choices: _Commands) -> None:
    what = "lm-eval's `run`, with our model and tasks"
    # No argument starts with NUL, so nothing here is an option of ours: not even --help.
    command = _add_command(choices, commands.run, what, prefix_chars="\0", add_help=False)
    command.add_argument("lm_eval_arguments", nargs=argparse.REMAINDER)


def _add_replay(choices: _Commands) -> None:
    what = "count a drafter's forwards on recorded answers, without a model"
    command = _add_command(choices, commands.replay, what)
    command.add_argument("--drafter", required=True, metavar="NAME", help="copyspec, none, …")
    what = "such as gamma=3, or tree=true,store=FILE: FILE has earlier answers, by id and turn"
    command.add_argument("--drafter-args", default="", metavar="K=V,…", help=what)
    command.add_argument("--traces", required=True, **_FILE, help="JSONL")
    what = "cost of a draft token, in steps of one token (0.01)"
    command.add_argument("--token-cost", type=float, default=0.01, metavar="ALPHA", help=what)
    command.add_argument("--json", action="store_true", help="print JSON instead of a table")


def _add_compare(choices: _Commands) -> None:
    what = "check whether two runs gave the same answers; exit code 1 if not"
    command = _add_command(choices, commands.compare, what)
    command.add_argument("run_a", type=Path, metavar="RUN_A", help=_RUN_FOLDER)
    what = "another; left out, the two arms of a paired run are compared"
    command.add_argument("run_b", type=Path, nargs="?", metavar="RUN_B", help=what)
    what = "load the model that gave the answers and separate near-ties from divergences"
    command.add_argument("--rescore", metavar="MODEL", help=what)
    command.add_argument("--json", action="store_true", help="print JSON instead of tables")


def _add_report(choices: _Commands) -> None:
    what = "print figures of runs; write tables and a page"
    command = _add_command(choices, commands.report, what)
    what = "folder that lm_eval --output_path wrote to"
    command.add_argument("runs", nargs="+", **_RUN, help=what)
    what = "where to put LEADERBOARD.md, leaderboard*.csv, .json and report.html"
    command.add_argument("--out", **_DIR, help=what)
    command.add_argument("--format", choices=["table", "md", "csv", "json"], default="table")


def _add_merge(choices: _Commands) -> None:
    what = "put shards of one run together, which answered different documents"
    command = _add_command(choices, commands.merge, what)
    command.add_argument("runs", nargs="+", **_RUN, help="folder of a shard, made with --samples")
    command.add_argument("--out", required=True, **_DIR, help="the folder of the whole run")


def _add_exactness(choices: _Commands) -> None:
    what = "check on this machine how outputs are those of plain decoding"
    command = _add_command(choices, commands.exactness, what)
    command.add_argument("model", metavar="MODEL", help=_MODEL)
    command.add_argument("--dtype", metavar="NAME", help="such as bfloat16 (the checkpoint's)")
    command.add_argument("--device", metavar="NAME", help="such as cuda:0")
    command.add_argument(
        "--batch-sizes", type=int, nargs="+", default=[1, 8], metavar="N", help="(1 8)"
    )


def _add_judge(choices: _Commands) -> None:
    what = "have a chat model rate a run's conversations, or choose between those of two runs"
    command = _add_command(
        choices,
        commands.judge,
        what,
        epilog="A judgement that takes over 300 seconds, retries included, is given up. What is "
        "rated is kept; the same command asks for the rest.",
    )
    command.add_argument("run", **_RUN, help=_RUN_FOLDER)
    what = "another run of the same task; its answers are put beside these, in both orders"
    command.add_argument("--against", **_RUN, help=what)
    what = "show reference answers on MT-Redundant's second turns too, as FastChat does"
    command.add_argument("--all-references", action="store_true", help=what)
    _add_chat_model(command, "the judge, such as gpt-4")


def _add_redundant(choices: _Commands) -> None:
    what = (
        "make a variant of a question file whose second turns ask for the first answer again, "
        "changed"
    )
    command = _add_command(choices, commands.redundant, what)
    command.add_argument("questions", type=Path, metavar="QUESTIONS", help="in FastChat's format")
    command.add_argument("--out", required=True, **_FILE, help="of the variant")
    _add_chat_model(command, "the model that writes the second turns")


def _add_chat_model(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument("--model", required=True, metavar="NAME", help=what)
    what = "an OpenAI-compatible server; OpenAI's if not given"
    command.add_argument("--base-url", metavar="URL", help=what)
    what = "requests at a time (4)"
    command.add_argument("--concurrency", type=int, default=4, metavar="N", help=what)


def _add_paper(choices: _Commands) -> None:
    command = _add_command(
        choices,
        commands.paper,
        "reproduce a table of the paper: make the runs that it needs, and print it",
        epilog="A run that is there already is kept, and one that was cut short goes on. Tables: "
        "main, categories, gamma, copied-tokens, draft-model, self-correction, context-length, "
        "similarity.",
    )
    command.add_argument("table", metavar="TABLE", help="see below")
    command.add_argument("--model", required=True, metavar="NAME", help=_MODEL)
    command.add_argument("--draft-model", metavar="NAME", help="for the tables that have one")
    what = "documents of each task (the paper's)"
    command.add_argument("--limit", type=int, metavar="N", help=what)
    what = "more of lm-eval's --model_args"
    command.add_argument("--model-args", default="", metavar="K=V,…", help=what)
    command.add_argument("--batch-size", default="1", metavar="N", help="(1)")
    command.add_argument("--out", default=Path("runs/paper"), **_DIR, help="(runs/paper)")
    what = "print the commands, and how long they take, alone"
    command.add_argument("--plan", action="store_true", help=what)
    what = "of plain decoding, for the estimate (35.5, the paper's Llama-3.1-8B)"
    command.add_argument("--tokens-per-second", type=float, default=35.5, metavar="N", help=what)


def _add_export(choices: _Commands) -> None:
    command = choices.add_parser("export", help="write a run's answers in another tool's format")
    formats = command.add_subparsers(metavar="FORMAT", required=True)
    fastchat = "MT-Bench and MT-Redundant answers, as model_answer files"
    evalplus = "HumanEval programs, as samples to evaluate"
    turns = "counts, times and settings of every turn, as turns.parquet"
    for command in (
        _add_command(formats, commands.export_fastchat, fastchat, "fastchat"),
        _add_command(formats, commands.export_evalplus, evalplus, "evalplus"),
        _add_command(formats, commands.export_turns, turns, "turns"),
    ):
        command.add_argument("run", **_RUN, help=_RUN_FOLDER)
        command.add_argument("--out", required=True, **_DIR, help="the folder to write to")


def _version() -> str:
    try:
        return version("copyspec-eval")
    except PackageNotFoundError:
        return "(not installed)"
