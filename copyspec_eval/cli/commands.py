"""What each command does with its parsed arguments; each returns an exit code, or None for 0."""

import argparse
import itertools
import json
import math
import sys
import webbrowser
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import mkdtemp

from copyspec_eval.errors import CopySpecError, DataError, OptionError, print_error, printable


def run(arguments: argparse.Namespace) -> None:
    """Hand everything after `run` to lm-eval's command line, with our models and tasks."""
    from copyspec_eval.harness import autoload

    autoload.register_model()
    autoload.register_tasks()
    autoload.watch_evaluations()
    autoload.watch_command()
    from lm_eval.__main__ import cli_evaluate

    # lm-eval inserts a missing `run` only before two or more arguments, so it is always given.
    sys.argv = ["lm-eval", "run", *arguments.lm_eval_arguments]
    cli_evaluate()


def replay(arguments: argparse.Namespace) -> None:
    from copyspec_eval.cli.replay import replay_turn
    from copyspec_eval.drafters.registry import drafter_factory, longest_draft, parse_draft_options
    from copyspec_eval.drafters.thresholds import acceptance_threshold
    from copyspec_eval.reports import earlier_runs
    from copyspec_eval.reports.tables import replay_figures, replay_table

    if not 0 <= arguments.token_cost < math.inf:
        raise OptionError(
            f"--token-cost must be at least 0, got {arguments.token_cost} (default: 0.01)"
        )
    options = parse_draft_options(arguments.drafter_args, arguments.drafter)
    drafter_factory(options)  # refuses a drafter without a store before one is read
    earlier, notes = earlier_runs.EarlierAnswers(), list[str]()
    if options.store_paths:
        earlier = earlier_runs.earlier_for_replay(options.store_paths, arguments.traces, notes)
    _print_notes(notes)
    make_drafter = drafter_factory(options, earlier.in_order)
    cost = arguments.token_cost
    limits = longest_draft(options), acceptance_threshold(cost)
    replayed = (
        (trace, replay_turn(trace, make_drafter(), *limits, earlier.to("", trace.id, trace.turn)))
        for trace in earlier_runs.read_traces(arguments.traces)
    )
    figures = replay_figures(replayed, cost)
    _show(json.dumps(figures, indent=2) if arguments.json else replay_table(figures))


def compare(arguments: argparse.Namespace) -> int:
    """Print where two runs' answers and scores differ, or the arms of one; 1 if answers do."""
    from copyspec_eval.reports import comparison
    from copyspec_eval.reports.runs import read_arms, read_run

    run_a, folder_b = read_run(arguments.run_a), arguments.run_b
    pairs = {"": (run_a, read_run(folder_b))} if folder_b else read_arms(run_a)
    figures = {}
    for name, (a, b) in pairs.items():
        answers = comparison.compare_answers(a, b)
        scores = comparison.compare_scores(a.scores, b.scores)
        if arguments.rescore:
            from copyspec_eval.harness.rescoring import rescore

            dtypes = {run.dtype for run in (a, b) if run.dtype}
            answers = rescore(answers, arguments.rescore, dtypes)
        if not answers and not any(score.num_documents for score in scores):
            places = f"{a.folder}, {b.folder}"
            raise DataError(f"{places}: nothing to compare; give two runs of one task")
        figures[name] = comparison.comparison_figures(answers, scores)
    if arguments.json:
        [only] = figures.values() if len(figures) == 1 else [figures]
        print(json.dumps(only, indent=2))
    else:
        for name, each in figures.items():
            title = f"{name}:\n" if len(figures) > 1 else ""
            _show(title + comparison.comparison_tables(each))
    _print_notes(note for pair in pairs.values() for run in pair for note in run.notes)
    return int(not all(each["equal"] for each in figures.values()))


def report(arguments: argparse.Namespace) -> None:
    from copyspec_eval.reports import leaderboard, leaderboard_forms
    from copyspec_eval.reports.page.build import write_report
    from copyspec_eval.reports.recorded import read_runs, run_folders

    folders, skipped = list[Path](), list[DataError]()
    for each in arguments.runs:
        try:
            folders += run_folders(each)
        except DataError as error:
            skipped.append(error)
    if not folders:
        raise skipped[0]
    _print_notes(f"skipped: {error}" for error in skipped)
    runs = read_runs(folders)
    board = leaderboard.leaderboard(runs)
    folder = arguments.out
    if arguments.open and folder is None:
        folder = Path(mkdtemp(prefix="copyspec-report-"))
    written = write_report(board, folder) if folder else []
    if arguments.format == "table":
        _show(leaderboard_forms.overview(board, arguments.wide))
    else:
        _show(leaderboard_forms.FORMS[arguments.format](board))
    for path in written:
        print(printable(str(path)), file=sys.stderr)
    if board.lines.empty:
        raise DataError(f"{', '.join(str(run.folder) for run in runs)}: no answers to report")
    if arguments.open and not webbrowser.open((page := folder / "report.html").resolve().as_uri()):
        raise DataError(f"{page}: no browser could be started; open the file yourself")


def exactness(arguments: argparse.Namespace) -> None:
    import torch

    from copyspec_eval.decoding import kernels
    from copyspec_eval.decoding.exactness import mismatches, text_tokens
    from copyspec_eval.drafters.registry import LONGEST_DRAFT
    from copyspec_eval.harness.lm import CopySpecLM
    from copyspec_eval.types import FIXED_WIDTHS, ExactMode

    given = {"dtype": arguments.dtype, "device": arguments.device}
    options = {name: value for name, value in given.items() if value is not None}
    lm = CopySpecLM(arguments.model, drafter="none", exact=False, **options)
    model, token_ids = lm.prepare().model, text_tokens(lm.tokenizer)
    dtype, threads = str(lm.model.dtype).removeprefix("torch."), torch.get_num_threads()
    print(f"{arguments.model}, {dtype}, {lm.device}, {threads} threads", flush=True)
    modes = [ExactMode(), *map(ExactMode, FIXED_WIDTHS)]
    if not kernels.serve(lm.model):
        print("invariant: not available, our kernels do not serve this model here", flush=True)
        del modes[0]
    for size, mode in itertools.product(arguments.batch_sizes, modes):
        name = f"batch {size}, {mode.name}{f' {mode.width}' if mode.width else ''}"
        longest, holds = mode.num_draft_tokens or LONGEST_DRAFT, True
        for what, module in mismatches(model, token_ids, mode, longest, size):
            print(f"{name}: differs {what}, first in {module}", flush=True)
            holds = False
        if holds:
            print(f"{name}: holds", flush=True)


def tiny(arguments: argparse.Namespace) -> None:
    from copyspec_eval.paths import TINY, model_path

    print(model_path(TINY))


def doctor(arguments: argparse.Namespace) -> int:
    """Print what this machine offers; 1 if something that every run needs is broken."""
    from copyspec_eval.cli.doctor import examine

    findings = list(examine())
    width = max(len(name) for name, _, _ in findings)
    for name, text, _ in findings:
        _show(f"{name:{width}}  {text}")
    broken = [name for name, _, is_broken in findings if is_broken]
    _show(f"broken: {', '.join(broken)}" if broken else "nothing that a run needs is broken")
    return int(bool(broken))


def completion(arguments: argparse.Namespace) -> None:
    from copyspec_eval.errors import needing

    with needing("shtab", "completion", "completion"):
        import shtab
    for action in all_actions(arguments.parser):
        if action.type is Path:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(arguments.parser, arguments.shell))


def all_actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """All arguments of a parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from all_actions(below)


def judge(arguments: argparse.Namespace) -> int:
    """Print a judge's ratings of a run, or its choices between two; 1 if one is missing."""
    from copyspec_eval.reports import judged
    from copyspec_eval.reports.runs import read_run
    from copyspec_eval.scoring.chat import ChatModel

    model = ChatModel(arguments.model, arguments.base_url)
    folders = [arguments.run, *([arguments.against] if arguments.against else [])]
    runs, how = list(map(read_run, folders)), (arguments.concurrency, arguments.all_references)
    results = judged.judge_runs(runs, model, *how)
    show = judged.ratings_table if len(runs) == 1 else judged.verdicts_table
    _show(show(results))
    return int(any(result.reasons for result in results.values()))


def redundant(arguments: argparse.Namespace) -> int:
    from copyspec_eval.paper.redundant import write_redundant
    from copyspec_eval.scoring.chat import ChatModel
    from copyspec_eval.sources import read_questions

    questions = read_questions(arguments.questions)
    model = ChatModel(arguments.model, arguments.base_url)
    reasons = write_redundant(model, questions, arguments.out, arguments.concurrency)
    _print_notes(f"question {number}: not written: {reason}" for number, reason in reasons.items())
    _show(arguments.out)
    return int(bool(reasons))


def audit(arguments: argparse.Namespace) -> int:
    """Audit two engines; 0 for rounding at most, 1 for more, 2 if it cannot be told."""
    from copyspec_eval.audit import findings, session

    names = ("a", "b", "limit", "out", "rescore", "tokenizer", "gen_kwargs")
    try:
        order = session.Order(
            **{name: getattr(arguments, name) for name in names},
            tasks=tuple(filter(None, arguments.tasks.split(","))),
            levels=_levels(arguments.concurrency),
            runs_code=arguments.confirm_run_unsafe_code,
        )
        result = session.audit(order)
    except (CopySpecError, OSError) as error:  # 1 is for an engine that is broken
        print_error(error)
        return 2
    lines = findings.lines(result, order.out)
    if result["verdict"] != "identical":
        lines += findings.exactness_commands(result)
    _show("\n".join(lines))
    return findings.exit_code(result)


def _levels(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"--concurrency {text}: give numbers, e.g. 1,8,32") from None


def paper(arguments: argparse.Namespace) -> None:
    from copyspec_eval import journal
    from copyspec_eval.paper import plan, tables

    model_args, secrets = plan.arguments(arguments.model_args)
    names = ("out", "limit", "draft_model", "batch_size", "tasks", "is_base")
    given = {name: getattr(arguments, name) for name in names}
    template = arguments.template and json.dumps({"template": arguments.template})
    options = {
        "--gen_kwargs": arguments.gen_kwargs,
        "--system_instruction": arguments.system_instruction,
        "--metadata": template,
    }
    given["options"] = {name: value for name, value in options.items() if value}
    requests = [
        plan.Request(model, **given, model_args=model_args, secrets=secrets)
        for model in dict.fromkeys(arguments.model)
    ]
    table = tables.table_named(arguments.table, requests[0])
    runs = [run for request in requests for run in table.runs(request)]
    if arguments.plan:
        _show(tables.planned(runs, arguments.tokens_per_second))
        return
    with journal.alone(arguments.out / "paper"):
        plan.make(runs)
        _show(tables.write(table, runs, arguments.out / f"{arguments.table}.md"))


def export(arguments: argparse.Namespace) -> None:
    from copyspec_eval import journal
    from copyspec_eval.reports import export
    from copyspec_eval.reports.runs import read_run
    from copyspec_eval.reports.turns import read_turns

    if arguments.format == "turns":
        written = [arguments.out / "turns.parquet"]
        journal.replace(written[0], read_turns([arguments.run]).to_parquet(index=False))
    elif arguments.format == "tensorboard":
        written = export.write_tensorboard(read_turns([arguments.run]), arguments.out)
    elif arguments.format == "evalplus":
        written = [export.write_evalplus(read_run(arguments.run), arguments.out)]
    else:
        written = export.write_fastchat(read_run(arguments.run), arguments.out)
    _show("\n".join(map(str, written)))


def _print_notes(notes: Iterable[str]) -> None:
    for note in dict.fromkeys(notes):
        print(f"note: {printable(note)}", file=sys.stderr)


def _show(output: object) -> None:
    """Print `output`, with what could harm a terminal escaped: others chose names in it."""
    print("\n".join(map(printable, str(output).rstrip("\n").split("\n"))))
