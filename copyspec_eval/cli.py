"""The `copyspec-eval` command: the only code that parses argv, prints and sets exit codes.

A command is a function that takes the parsed arguments, plus its parser in `_parser`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from copyspec_eval.errors import CopySpecError, unknown_option
from copyspec_eval.types import DraftOptions


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, or 1 after a one-line error.

    Wrong usage exits with 2, as argparse does.
    """
    arguments = _parser().parse_args(argv)
    try:
        arguments.command(arguments)
    except CopySpecError as error:
        print(f"copyspec-eval: error: {error}", file=sys.stderr)
        return 1
    return 0


def run(arguments: argparse.Namespace) -> None:
    """Hand everything after `run` to lm-eval's own command line, with our model and tasks known."""
    from copyspec_eval.harness import autoload

    autoload.register_model()
    autoload.register_tasks()
    from lm_eval.__main__ import cli_evaluate

    # lm-eval inserts a missing `run` only before two or more arguments, so it is always given.
    sys.argv = ["lm-eval", "run", *arguments.lm_eval_arguments]
    cli_evaluate()


def replay(arguments: argparse.Namespace) -> None:
    """Print what a drafter makes of recorded answers: forwards, copied share, and so on."""
    from copyspec_eval.decoding.replay import read_traces, replay_turn
    from copyspec_eval.drafters.registry import drafter_factory
    from copyspec_eval.reports import replayed

    options = _draft_options(arguments.drafter, arguments.drafter_args)
    make_drafter = drafter_factory(options)
    turns = [replay_turn(trace, make_drafter()) for trace in read_traces(arguments.traces)]
    if arguments.json:
        print(json.dumps(replayed.figures(turns), indent=2))
    else:
        print(replayed.render(turns), end="")


def _draft_options(drafter: str, pairs: str) -> DraftOptions:
    """`DraftOptions` of a name and `key=value,…`, where every value is an integer."""
    known = {field.name for field in fields(DraftOptions)} - {"drafter"}
    values: dict[str, Any] = {}
    for pair in filter(None, pairs.split(",")):
        name, _, value = pair.partition("=")
        if name not in known:
            raise unknown_option("drafter argument", name, known)
        values[name] = int(value) if value.removeprefix("-").isdecimal() else value
    return DraftOptions(drafter, **values)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="copyspec-eval",
        description="Evaluate language models with speculative copying.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {_version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    # No argument starts with NUL, so nothing here is an option of ours: not even --help.
    command = commands.add_parser(
        "run", help="lm-eval's `run`, with our model and tasks", prefix_chars="\0", add_help=False
    )
    command.add_argument("lm_eval_arguments", nargs=argparse.REMAINDER)
    command.set_defaults(command=run)

    command = commands.add_parser(
        "replay", help="count a drafter's forwards on recorded answers, without a model"
    )
    command.add_argument("--drafter", required=True, metavar="NAME", help="copyspec, none, …")
    command.add_argument("--drafter-args", default="", metavar="K=V,…", help="such as gamma=3")
    command.add_argument("--traces", required=True, type=Path, metavar="FILE", help="JSONL")
    command.add_argument("--json", action="store_true", help="print JSON instead of a table")
    command.set_defaults(command=replay)
    return parser


def _version() -> str:
    try:
        return version("copyspec-eval")
    except PackageNotFoundError:
        return "(not installed)"
