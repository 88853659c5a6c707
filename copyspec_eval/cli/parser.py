"""The arguments of each command."""

from __future__ import annotations

import argparse
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NoReturn, TypeAlias

from copyspec_eval.cli import commands
from copyspec_eval.redaction import masked

_Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"


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

    # No argument starts with NUL, so nothing here is an option of ours: not even --help.
    command = choices.add_parser(
        "run", help="lm-eval's `run`, with our model and tasks", prefix_chars="\0", add_help=False
    )
    command.add_argument("lm_eval_arguments", nargs=argparse.REMAINDER)
    command.set_defaults(command=commands.run)

    command = choices.add_parser(
        "replay", help="count a drafter's forwards on recorded answers, without a model"
    )
    command.add_argument("--drafter", required=True, metavar="NAME", help="copyspec, none, …")
    command.add_argument(
        "--drafter-args",
        default="",
        metavar="K=V,…",
        help="such as gamma=3, or tree=true,store=FILE: FILE has earlier answers, by id and turn",
    )
    command.add_argument("--traces", required=True, type=Path, metavar="FILE", help="JSONL")
    command.add_argument(
        "--token-cost",
        type=float,
        default=0.01,
        metavar="ALPHA",
        help="cost of a draft token, in steps of one token (0.01)",
    )
    command.add_argument("--json", action="store_true", help="print JSON instead of a table")
    command.set_defaults(command=commands.replay)

    command = choices.add_parser(
        "compare", help="check whether two runs gave the same answers; exit code 1 if not"
    )
    command.add_argument(
        "run_a", type=Path, metavar="RUN_A", help="the folder that lm_eval wrote to"
    )
    command.add_argument(
        "run_b",
        type=Path,
        nargs="?",
        metavar="RUN_B",
        help="another; left out, the two arms of a paired run are compared",
    )
    command.add_argument(
        "--rescore",
        metavar="MODEL",
        help="load the model that gave the answers and separate near-ties from divergences",
    )
    command.add_argument("--json", action="store_true", help="print JSON instead of tables")
    command.set_defaults(command=commands.compare)

    command = choices.add_parser("report", help="print figures of runs; write tables and a page")
    command.add_argument(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="folder that lm_eval --output_path wrote to",
    )
    command.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where to put LEADERBOARD.md, leaderboard*.csv, .json and report.html",
    )
    command.add_argument("--format", choices=["table", "md", "csv", "json"], default="table")
    command.set_defaults(command=commands.report)

    command = choices.add_parser(
        "merge", help="put shards of one run together, which answered different documents"
    )
    command.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="folder of a shard, made with --samples"
    )
    command.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="the folder of the whole run"
    )
    command.set_defaults(command=commands.merge)

    command = choices.add_parser("tiny", help="print the folder of the embedded model")
    command.set_defaults(command=commands.tiny)

    _add_exactness(choices)
    _add_paper(choices)
    _add_judge(choices)
    _add_redundant(choices)
    _add_export(choices)
    return parser


def _add_exactness(choices: _Commands) -> None:
    command = choices.add_parser(
        "exactness", help="check on this machine how outputs are those of plain decoding"
    )
    command.add_argument("model", metavar="MODEL", help="a Hub name or a folder")
    command.add_argument("--dtype", metavar="NAME", help="such as bfloat16 (the checkpoint's)")
    command.add_argument("--device", metavar="NAME", help="such as cuda:0")
    command.add_argument(
        "--batch-sizes", type=int, nargs="+", default=[1, 8], metavar="N", help="(1 8)"
    )
    command.set_defaults(command=commands.exactness)


def _add_judge(choices: _Commands) -> None:
    command = choices.add_parser(
        "judge",
        help="have a chat model rate a run's conversations, or choose between those of two runs",
        epilog="A judgement that takes over 300 seconds, retries included, is given up. What is "
        "rated is kept; the same command asks for the rest.",
    )
    _add_run(command)
    command.add_argument(
        "--against",
        type=Path,
        metavar="RUN",
        help="another run of the same task; its answers are put beside these, in both orders",
    )
    command.add_argument(
        "--all-references",
        action="store_true",
        help="show reference answers on MT-Redundant's second turns too, as FastChat does",
    )
    _add_chat_model(command, "the judge, such as gpt-4")
    command.set_defaults(command=commands.judge)


def _add_redundant(choices: _Commands) -> None:
    command = choices.add_parser(
        "redundant",
        help="make a variant of a question file whose second turns ask for the first answer again, "
        "changed",
    )
    command.add_argument("questions", type=Path, metavar="QUESTIONS", help="in FastChat's format")
    command.add_argument("--out", type=Path, required=True, metavar="FILE", help="of the variant")
    _add_chat_model(command, "the model that writes the second turns")
    command.set_defaults(command=commands.redundant)


def _add_chat_model(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument("--model", required=True, metavar="NAME", help=what)
    command.add_argument(
        "--base-url", metavar="URL", help="an OpenAI-compatible server; OpenAI's if not given"
    )
    command.add_argument(
        "--concurrency", type=int, default=4, metavar="N", help="requests at a time (4)"
    )


def _add_paper(choices: _Commands) -> None:
    command = choices.add_parser(
        "paper",
        help="reproduce a table of the paper: make the runs that it needs, and print it",
        epilog="A run that is there already is kept, and one that was cut short goes on. Tables: "
        "main, categories, gamma, copied-tokens, draft-model, self-correction, context-length, "
        "similarity.",
    )
    command.add_argument("table", metavar="TABLE", help="see below")
    command.add_argument("--model", required=True, metavar="NAME", help="a Hub name or a folder")
    command.add_argument("--draft-model", metavar="NAME", help="for the tables that have one")
    command.add_argument(
        "--limit", type=int, metavar="N", help="documents of each task (the paper's)"
    )
    command.add_argument(
        "--model-args", default="", metavar="K=V,…", help="more of lm-eval's --model_args"
    )
    command.add_argument("--batch-size", default="1", metavar="N", help="(1)")
    command.add_argument(
        "--out", type=Path, default=Path("runs/paper"), metavar="DIR", help="(runs/paper)"
    )
    command.add_argument(
        "--plan", action="store_true", help="print the commands, and how long they take, alone"
    )
    command.add_argument(
        "--tokens-per-second",
        type=float,
        default=35.5,
        metavar="N",
        help="of plain decoding, for the estimate (35.5, the paper's Llama-3.1-8B)",
    )
    command.set_defaults(command=commands.paper)


def _add_export(choices: _Commands) -> None:
    command = choices.add_parser("export", help="write a run's answers in another tool's format")
    formats = command.add_subparsers(metavar="FORMAT", required=True)
    for name, function, what in (
        (
            "fastchat",
            commands.export_fastchat,
            "MT-Bench and MT-Redundant answers, as model_answer files",
        ),
        ("evalplus", commands.export_evalplus, "HumanEval programs, as samples to evaluate"),
        (
            "turns",
            commands.export_turns,
            "counts, times and settings of every turn, as turns.parquet",
        ),
    ):
        command = formats.add_parser(name, help=what)
        _add_run(command)
        command.add_argument(
            "--out", type=Path, required=True, metavar="DIR", help="the folder to write to"
        )
        command.set_defaults(command=function)


def _add_run(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", type=Path, metavar="RUN", help="the folder that lm_eval wrote to")


def _version() -> str:
    try:
        return version("copyspec-eval")
    except PackageNotFoundError:
        return "(not installed)"
