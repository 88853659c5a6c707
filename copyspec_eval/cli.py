"""The `copyspec-eval` command: the only code that parses argv, prints and sets exit codes.

A command is a function that takes the parsed arguments and returns its exit code, or None for 0;
plus its parser in `_parser`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeAlias

from copyspec_eval.errors import CopySpecError, DataError, OptionError

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: its own, or 1 after a one-line error.

    Wrong usage exits with 2, as argparse does.
    """
    arguments = _parser().parse_args(argv)
    try:
        code: int | None = arguments.command(arguments)
    except CopySpecError as error:
        print(f"copyspec-eval: error: {error}", file=sys.stderr)
        return 1
    return code or 0


def run(arguments: argparse.Namespace) -> None:
    """Hand everything after `run` to lm-eval's command line, our model and tasks registered."""
    from copyspec_eval.harness import autoload

    autoload.register_model()
    autoload.register_tasks()
    from lm_eval.__main__ import cli_evaluate

    # lm-eval inserts a missing `run` only before two or more arguments, so it is always given.
    sys.argv = ["lm-eval", "run", *arguments.lm_eval_arguments]
    cli_evaluate()


def replay(arguments: argparse.Namespace) -> None:
    """Print what a drafter makes of recorded answers: forwards, copied share, and so on."""
    from copyspec_eval.decoding import earlier_runs
    from copyspec_eval.decoding.replay import Trace, read_traces, replay_turn
    from copyspec_eval.drafters.registry import drafter_factory, longest_draft
    from copyspec_eval.drafters.thresholds import acceptance_thresholds
    from copyspec_eval.reports.replayed import replay_figures, replay_table

    if not 0 <= arguments.token_cost < math.inf:
        raise OptionError(f"--token-cost {arguments.token_cost} is no cost; usual is 0.01")
    options = earlier_runs.draft_options(arguments.drafter_args, arguments.drafter)
    if options.recycle:
        raise OptionError("recycle=true is of a model's logits, which no trace has; leave it out")
    drafter_factory(options)  # refuses a drafter without a store before one is read
    traces: Iterable[Trace] = read_traces(arguments.traces)
    earlier = earlier_runs.EarlierAnswers()
    if options.store_paths:
        notes: list[str] = []
        earlier = earlier_runs.recorded_tokens(options.store_paths, arguments.traces, notes)
        traces = list(traces)
        earlier_runs.check_shared(traces, earlier, options.store_paths)
        _print_notes(notes)
    make_drafter = drafter_factory(options, earlier.in_order)
    longest, cost = longest_draft(options), arguments.token_cost
    thresholds = acceptance_thresholds({0: 1.0, longest: 1.0 + cost * longest})
    turns = [
        replay_turn(trace, make_drafter(), thresholds, earlier=earlier.to("", trace.id, trace.turn))
        for trace in traces
    ]
    figures = replay_figures(turns, cost)
    print(json.dumps(figures, indent=2) if arguments.json else replay_table(figures).rstrip())


def compare(arguments: argparse.Namespace) -> int:
    """Print where two runs' answers and scores differ, or the two arms of one; 1 if answers do."""
    from copyspec_eval.reports import comparison, equivalence, runs

    if arguments.run_b is None:
        a, b = runs.read_arms(arguments.run_a)
    else:
        a, b = runs.read_run(arguments.run_a), runs.read_run(arguments.run_b)
    pairs = equivalence.compare_answers(a, b)
    if arguments.rescore:
        from copyspec_eval.harness.rescoring import rescore

        pairs = rescore(pairs, arguments.rescore, {run.dtype for run in (a, b) if run.dtype})
    scores = equivalence.compare_scores(a, b)
    if not pairs and not any(score.num_documents for score in scores):
        raise DataError(f"{a.folder}, {b.folder}: nothing to compare; give two runs of one task")
    result = pairs, equivalence.reordered_documents(a, b), scores
    if arguments.json:
        print(json.dumps(comparison.comparison_figures(*result), indent=2))
    else:
        print(comparison.comparison_tables(*result), end="")
    _print_notes([*a.notes, *b.notes])
    return int(equivalence.fails(pairs))


def report(arguments: argparse.Namespace) -> None:
    """Print runs' scores, speed and equality, and write them with a page for the browser."""
    from copyspec_eval.reports import (
        files,
        leaderboard,
        leaderboard_forms,
        overview,
        recorded,
        shards,
    )

    runs = [recorded.read_recorded(folder) for folder in arguments.runs]
    board = leaderboard.leaderboard(shards.joined(runs))
    if arguments.out:
        written = files.write(board, arguments.out)
    if arguments.format == "table":
        print(overview.overview(board), end="")
        if len(arguments.runs) == 1:
            print(f"\n{overview.files(arguments.runs[0])}", end="")
    else:
        print(leaderboard_forms.FORMS[arguments.format](board), end="")
    if arguments.out:
        print("".join(f"{path}\n" for path in written), end="", file=sys.stderr)


def merge(arguments: argparse.Namespace) -> None:
    """Write shards of one run as that run."""
    from copyspec_eval.reports.merging import merge_shards

    _print_notes(merge_shards(arguments.runs, arguments.out))
    print(arguments.out)


def exactness(arguments: argparse.Namespace) -> None:
    """Print which widths of step have the same bits on this machine."""
    from copyspec_eval.harness.width_classes import class_lines

    given = {"dtype": arguments.dtype, "device": arguments.device}
    options = {name: value for name, value in given.items() if value is not None}
    for line in class_lines(arguments.model, options, arguments.widest, arguments.batch_sizes):
        print(line, flush=True)


def tiny(arguments: argparse.Namespace) -> None:
    """Print the folder of the embedded model, for backends that do not know its name."""
    from copyspec_eval.paths import TINY, model_path

    print(model_path(TINY))


def judge(arguments: argparse.Namespace) -> int:
    """Print a judge's ratings of a run's MT-Bench and MT-Redundant answers; 1 if one has none."""
    from copyspec_eval.reports import judged, runs
    from copyspec_eval.scoring.judge import Judge

    rater = Judge(arguments.model, arguments.base_url)
    results = judged.judge_run(runs.read_run(arguments.run), rater, arguments.concurrency)
    print(judged.ratings_table(results), end="")
    return int(any(result.reasons for result in results.values()))


def export_fastchat(arguments: argparse.Namespace) -> None:
    """Write a run's conversations as FastChat's answer files."""
    from copyspec_eval.reports import export, runs

    folder = arguments.out or arguments.run / "fastchat"
    for path in export.write_fastchat(runs.read_run(arguments.run), folder):
        print(path)


def export_evalplus(arguments: argparse.Namespace) -> None:
    """Write a run's programs as EvalPlus's samples."""
    from copyspec_eval.reports import export, runs

    folder = arguments.out or arguments.run / "evalplus"
    print(export.write_evalplus(runs.read_run(arguments.run), folder))


def export_turns(arguments: argparse.Namespace) -> None:
    """Write a run's turns, counts and settings as parquet."""
    from copyspec_eval.reports import export

    folder = arguments.out or arguments.run / "turns"
    print(export.write_turns(arguments.run, folder / "turns.parquet"))


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        print(f"note: {note}", file=sys.stderr)


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
    command.set_defaults(command=replay)

    command = commands.add_parser(
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
    command.set_defaults(command=compare)

    command = commands.add_parser("report", help="print figures of runs; write tables and a page")
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
    command.set_defaults(command=report)

    command = commands.add_parser(
        "merge", help="put shards of one run together, which answered different documents"
    )
    command.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="folder of a shard, made with --samples"
    )
    command.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="the folder of the whole run"
    )
    command.set_defaults(command=merge)

    command = commands.add_parser("tiny", help="print the folder of the embedded model")
    command.set_defaults(command=tiny)

    _add_exactness(commands)
    _add_judge(commands)
    _add_export(commands)
    return parser


def _add_exactness(commands: _Commands) -> None:
    command = commands.add_parser(
        "exactness", help="measure which widths of step have the same bits on this machine"
    )
    command.add_argument("model", metavar="MODEL", help="a Hub name or a folder")
    command.add_argument("--dtype", metavar="NAME", help="such as bfloat16 (the checkpoint's)")
    command.add_argument("--device", metavar="NAME", help="such as cuda:0")
    command.add_argument(
        "--widest", type=int, default=97, metavar="N", help="tokens of the widest step (97)"
    )
    command.add_argument(
        "--batch-sizes", type=int, nargs="+", default=[1, 2, 4, 8], metavar="N", help="(1 2 4 8)"
    )
    command.set_defaults(command=exactness)


def _add_judge(commands: _Commands) -> None:
    command = commands.add_parser(
        "judge",
        help="have a chat model rate a run's MT-Bench and MT-Redundant answers",
        epilog="A judgement that takes over 300 seconds, retries included, is given up. What is "
        "rated is kept; the same command asks for the rest.",
    )
    _add_run(command)
    command.add_argument("--model", required=True, metavar="NAME", help="the judge, such as gpt-4")
    command.add_argument(
        "--base-url", metavar="URL", help="an OpenAI-compatible server; OpenAI's if not given"
    )
    command.add_argument(
        "--concurrency", type=int, default=4, metavar="N", help="requests at a time (4)"
    )
    command.set_defaults(command=judge)


def _add_export(commands: _Commands) -> None:
    command = commands.add_parser("export", help="write a run's answers in another tool's format")
    formats = command.add_subparsers(metavar="FORMAT", required=True)
    for name, function, what in (
        ("fastchat", export_fastchat, "MT-Bench and MT-Redundant answers, as model_answer files"),
        ("evalplus", export_evalplus, "HumanEval programs, as samples to evaluate"),
        ("turns", export_turns, "counts, times and settings of every turn, as turns.parquet"),
    ):
        command = formats.add_parser(name, help=what)
        _add_run(command)
        command.add_argument(
            "--out", type=Path, metavar="DIR", help=f"the folder to write to (RUN/{name})"
        )
        command.set_defaults(command=function)


def _add_run(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", type=Path, metavar="RUN", help="the folder that lm_eval wrote to")


def _version() -> str:
    try:
        return version("copyspec-eval")
    except PackageNotFoundError:
        return "(not installed)"
