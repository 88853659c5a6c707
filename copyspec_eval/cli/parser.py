"""The arguments of each command, which has the name of its function in `commands`."""

from __future__ import annotations

import argparse
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from copyspec_eval.redaction import masked

_Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"

_RUN: dict[str, Any] = {"type": Path, "metavar": "RUN"}
_DIR: dict[str, Any] = {"type": Path, "metavar": "DIR"}
_FILE: dict[str, Any] = {"type": Path, "metavar": "FILE"}
_RUN_FOLDER = "the folder that lm_eval wrote to"
_MODEL = "a Hub name or a folder"


class _Parser(argparse.ArgumentParser):
    """Names unknown arguments without their values: a key may be among them."""

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
    choices = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    _add_run(choices)
    _add_replay(choices)
    _add_compare(choices)
    _add_report(choices)
    _add_merge(choices)
    choices.add_parser("tiny", help="print the folder of the embedded model")
    _add_exactness(choices)
    _add_paper(choices)
    _add_judge(choices)
    _add_redundant(choices)
    _add_export(choices)
    return parser


def _add_run(choices: _Commands) -> None:
    what = "lm-eval's `run`, with our model and tasks"
    # No argument starts with NUL, so nothing here is an option of ours: not even --help.
    command = choices.add_parser("run", help=what, prefix_chars="\0", add_help=False)
    command.add_argument("lm_eval_arguments", nargs=argparse.REMAINDER)


def _add_replay(choices: _Commands) -> None:
    what = "count a drafter's forwards on recorded answers, without a model"
    command = choices.add_parser("replay", help=what)
    add = command.add_argument
    add("--drafter", required=True, metavar="NAME", help="copyspec, none, …")
    what = "such as gamma=3, or tree=true,store=FILE: FILE has earlier answers, by id and turn"
    add("--drafter-args", default="", metavar="K=V,…", help=what)
    add("--traces", required=True, **_FILE, help="JSONL")
    what = "cost of a draft token, in steps of one token (0.01)"
    add("--token-cost", type=float, default=0.01, metavar="ALPHA", help=what)
    add("--json", action="store_true", help="print JSON instead of a table")


def _add_compare(choices: _Commands) -> None:
    what = "check whether two runs gave the same answers; exit code 1 if not"
    command = choices.add_parser("compare", help=what)
    add = command.add_argument
    add("run_a", type=Path, metavar="RUN_A", help=_RUN_FOLDER)
    what = "another; left out, the two arms of a paired run are compared"
    add("run_b", type=Path, nargs="?", metavar="RUN_B", help=what)
    what = "load the model that gave the answers and separate near-ties from divergences"
    add("--rescore", metavar="MODEL", help=what)
    add("--json", action="store_true", help="print JSON instead of tables")


def _add_report(choices: _Commands) -> None:
    command = choices.add_parser("report", help="print figures of runs; write tables and a page")
    add = command.add_argument
    add("runs", nargs="+", **_RUN, help="folder that lm_eval --output_path wrote to")
    what = "where to put LEADERBOARD.md, leaderboard*.csv, .json and report.html"
    add("--out", **_DIR, help=what)
    add("--format", choices=["table", "md", "csv", "json"], default="table")


def _add_merge(choices: _Commands) -> None:
    what = "put shards of one run together, which answered different documents"
    command = choices.add_parser("merge", help=what)
    add = command.add_argument
    add("runs", nargs="+", **_RUN, help="folder of a shard, made with --samples")
    add("--out", required=True, **_DIR, help="the folder of the whole run")


def _add_exactness(choices: _Commands) -> None:
    what = "check on this machine how outputs are those of plain decoding"
    command = choices.add_parser("exactness", help=what)
    add = command.add_argument
    add("model", metavar="MODEL", help=_MODEL)
    add("--dtype", metavar="NAME", help="such as bfloat16 (the checkpoint's)")
    add("--device", metavar="NAME", help="such as cuda:0")
    add("--batch-sizes", type=int, nargs="+", default=[1, 8], metavar="N", help="(1 8)")


def _add_paper(choices: _Commands) -> None:
    command = choices.add_parser(
        "paper",
        help="reproduce a table of the paper: make the runs that it needs, and print it",
        epilog="A run that is there already is kept, and one that was cut short goes on. Tables: "
        "main, categories, gamma, copied-tokens, draft-model, self-correction, context-length, "
        "similarity.",
    )
    add = command.add_argument
    add("table", metavar="TABLE", help="see below")
    add("--model", required=True, metavar="NAME", help=_MODEL)
    add("--draft-model", metavar="NAME", help="for the tables that have one")
    add("--limit", type=int, metavar="N", help="documents of each task (the paper's)")
    add("--model-args", default="", metavar="K=V,…", help="more of lm-eval's --model_args")
    add("--batch-size", default="1", metavar="N", help="(1)")
    add("--out", default=Path("runs/paper"), **_DIR, help="(runs/paper)")
    what = "print the commands, and how long they take, alone"
    add("--plan", action="store_true", help=what)
    what = "of plain decoding, for the estimate (35.5, the paper's Llama-3.1-8B)"
    add("--tokens-per-second", type=float, default=35.5, metavar="N", help=what)


def _add_judge(choices: _Commands) -> None:
    command = choices.add_parser(
        "judge",
        help="have a chat model rate a run's conversations, or choose between those of two runs",
        epilog="A judgement that takes over 300 seconds, retries included, is given up. What is "
        "rated is kept; the same command asks for the rest.",
    )
    add = command.add_argument
    add("run", **_RUN, help=_RUN_FOLDER)
    what = "another run of the same task; its answers are put beside these, in both orders"
    add("--against", **_RUN, help=what)
    what = "show reference answers on MT-Redundant's second turns too, as FastChat does"
    add("--all-references", action="store_true", help=what)
    _add_chat_model(command, "the judge, such as gpt-4")


def _add_redundant(choices: _Commands) -> None:
    what = "make a variant of a question file whose second turns ask for the first answer again, "
    command = choices.add_parser("redundant", help=f"{what}changed")
    command.add_argument("questions", type=Path, metavar="QUESTIONS", help="in FastChat's format")
    command.add_argument("--out", required=True, **_FILE, help="of the variant")
    _add_chat_model(command, "the model that writes the second turns")


def _add_chat_model(command: argparse.ArgumentParser, what: str) -> None:
    add = command.add_argument
    add("--model", required=True, metavar="NAME", help=what)
    add("--base-url", metavar="URL", help="an OpenAI-compatible server; OpenAI's if not given")
    add("--concurrency", type=int, default=4, metavar="N", help="requests at a time (4)")


def _add_export(choices: _Commands) -> None:
    what = "write a run's answers in another tool's format"
    formats = choices.add_parser("export", help=what)
    choices = formats.add_subparsers(metavar="FORMAT", dest="format", required=True)
    for name, what in {
        "fastchat": "MT-Bench and MT-Redundant answers, as model_answer files",
        "evalplus": "HumanEval programs, as samples to evaluate",
        "turns": "counts, times and settings of every turn, as turns.parquet",
    }.items():
        command = choices.add_parser(name, help=what)
        command.add_argument("run", **_RUN, help=_RUN_FOLDER)
        command.add_argument("--out", required=True, **_DIR, help="the folder to write to")


def _version() -> str:
    try:
        return version("copyspec-eval")
    except PackageNotFoundError:
        return "(not installed)"
