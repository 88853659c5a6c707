"""A judge's ratings of a run, or choices between two, asked for and as a table."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pandas import DataFrame

from copyspec_eval import journal
from copyspec_eval.errors import DataError, printable
from copyspec_eval.reports.conversations import conversations
from copyspec_eval.reports.export import model_name
from copyspec_eval.reports.runs import Run
from copyspec_eval.reports.tables import number, terminal
from copyspec_eval.scoring.chat import ChatModel
from copyspec_eval.scoring.judging import Judged, file_name, judge_all, matches
from copyspec_eval.sources import locate, read_jsonl

_MAX_LINES, _MAX_NAMES = 20, 10


def judge_runs(
    runs: Sequence[Run], model: ChatModel, concurrency: int, all_references: bool = False
) -> dict[str, Judged]:
    """Have one run's answers rated, or the better of two runs', by task, into FastChat's files."""
    names = [model_name(run) for run in runs]
    if len({*names}) < len(names):
        names = [file_name(run.folder.resolve().name) for run in runs]
    prompts = [row.fields for row in read_jsonl(locate("mt_bench/judge_prompts.jsonl"))]
    references = {}
    for where, row in read_jsonl(locate("mt_bench/reference_answer_gpt-4.jsonl")):
        if not isinstance(number := row.get("question_id"), int):
            reason = f"question_id is {number!r:.60}, not a number; copy the file again"
            raise DataError(f"{where}: {reason}")
        references[number] = row
    in_runs = [conversations(run) for run in runs]
    kind, end = ("single", "") if len(runs) == 1 else ("pair", f"-{names[1]}")
    kind += "-all-references" * all_references
    results: dict[str, Judged] = {}
    for task in in_runs[0]:
        in_task = [by_task.get(task, []) for by_task in in_runs]
        asked = matches(task, in_task, references, all_references)
        folder = journal.subfolder(runs[0].folder, "fastchat", task, "model_judgment")
        path = folder / f"{file_name(model.name)}_{kind}{end}.jsonl"
        results[task] = judge_all(model, asked, prompts, path, names, concurrency)
    return results


def ratings_table(results: Mapping[str, Judged]) -> str:
    """Means per task, turn and category; below, how many are unjudged and why."""
    headers = ["task", "turn", "category", "answers", "unjudged", "rating"]
    rows = [[task, *row] for task, judged in results.items() for row in _rating_rows(judged)]
    return terminal(headers, rows) + _unjudged(results)


def _rating_rows(judged: Judged) -> Iterator[list[Any]]:
    graded = [
        (match.turn, match.conversations[0].category, judged.rows.get(match.key, {}).get("score"))
        for match in judged.matches
    ]
    ratings = DataFrame(graded, columns=["turn", "category", "rating"]).astype({"rating": float})
    for name, turns in (("both", (1, 2)), ("1", (1,)), ("2", (2,))):
        in_turns = ratings[ratings["turn"].isin(turns)]
        for category, part in [("all", in_turns), *in_turns.groupby("category", sort=False)]:
            mean = number(part["rating"].mean(), ".2f")
            yield [name, category, len(part), part["rating"].isna().sum(), mean]


def _unjudged(results: Mapping[str, Judged]) -> str:
    """How many, and a line per reason; notes on lines of the files that were skipped."""
    notes = [f"note: {printable(note)}" for judged in results.values() for note in judged.notes]
    names: dict[str, list[str]] = {}
    for task, judged in results.items():
        for (question_id, turn), reason in sorted(judged.reasons.items()):
            names.setdefault(reason, []).append(f"{task} {question_id} turn {turn}")
    if not names:
        return "".join(f"{note}\n" for note in notes)
    lines = []
    for reason, answers in names.items():
        more = len(answers) - _MAX_NAMES
        listed = ", ".join(answers[:_MAX_NAMES]) + (f", … and {more} more" if more > 0 else "")
        lines.append(f"- {printable(reason)}: {listed}")
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES:] = [f"- … and {len(lines) - _MAX_LINES} more reasons"]
    total = sum(map(len, names.values()))
    heading = f"Not judged, and in no mean: {total}; repeat the command to ask for them"
    return "\n".join(["", heading, *lines, *notes, ""])


def verdicts_table(results: Mapping[str, Judged]) -> str:
    """A row per task and turn: wins, ties, and FastChat's win rate; a tie is half a win."""
    headers = ["task", "turn", "pairs", "unjudged", "first wins", "second wins", "ties"]
    rows = []
    for task, judged in results.items():
        for turn in (1, 2):
            count = judged.verdicts(turn)
            decided = count.total()
            rate = (count["a"] + count["tie"] / 2) / decided if decided else None
            unjudged = sum(asked == turn for _, asked in judged.reasons)
            counts = [count[name] for name in ("a", "b", "tie")]
            rows.append([task, turn, decided + unjudged, unjudged, *counts, number(rate, ".1%")])
    return terminal([*headers, "first's win rate"], rows) + _unjudged(results)
