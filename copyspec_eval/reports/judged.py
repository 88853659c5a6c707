"""A judge's ratings of a run, asked for and as a table."""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pandas import DataFrame

from copyspec_eval import journal
from copyspec_eval.errors import printable
from copyspec_eval.reports.conversations import conversations
from copyspec_eval.reports.export import model_name
from copyspec_eval.reports.runs import Run
from copyspec_eval.reports.tables import number, terminal
from copyspec_eval.scoring.chat import ChatModel
from copyspec_eval.scoring.mt_bench import (
    Guide,
    Judge,
    Judged,
    file_name,
    gradings,
    guide,
    judge_all,
)
from copyspec_eval.scoring.pairwise import JudgedPairs, judge_pairs, pairs_of
from copyspec_eval.sources import locate, read_jsonl

_MAX_LINES, _MAX_NAMES = 20, 10


def judge_run(
    run: Run, judge: Judge, concurrency: int, all_references: bool = False
) -> dict[str, Judged]:
    """Have all answers that a judge can rate rated, by task, into files of FastChat's format."""
    _, judge_data = _judge_data()
    results: dict[str, Judged] = {}
    for task, in_task in conversations(run).items():
        each_asked = (gradings(task, each, judge_data, all_references) for each in in_task)
        asked = list(itertools.chain.from_iterable(each_asked))
        path = _judgement_file(run, task, judge.name, "single", all_references)
        results[task] = judge_all(judge.rate, asked, path, model_name(run), judge.name, concurrency)
    return results


def judge_two_runs(
    a: Run, b: Run, model: ChatModel, concurrency: int, all_references: bool = False
) -> dict[str, JudgedPairs]:
    """Have the judge choose between two runs' answers, by task, see `pairwise`."""
    names = model_name(a), model_name(b)
    if names[0] == names[1]:
        names = file_name(a.folder.resolve().name), file_name(b.folder.resolve().name)
    prompts, judge_data = _judge_data()
    conversations_b = conversations(b)
    results: dict[str, JudgedPairs] = {}
    for task, in_a in conversations(a).items():
        pairs = pairs_of(task, in_a, conversations_b.get(task, []), judge_data, all_references)
        path = _judgement_file(a, task, model.name, "pair", all_references, f"-{names[1]}")
        results[task] = judge_pairs(model, pairs, prompts, path, names, concurrency)
    return results


def _judge_data() -> tuple[list[dict[str, Any]], Guide]:
    """The rows of FastChat's judge prompts, and what these and its reference answers say."""
    files = (
        locate(f"mt_bench/{name}.jsonl") for name in ("judge_prompts", "reference_answer_gpt-4")
    )
    prompts, references = ([row.fields for row in read_jsonl(file)] for file in files)
    return prompts, guide(prompts, references)


def _judgement_file(
    run: Run, task: str, judge: str, kind: str, all_references: bool, end: str = ""
) -> Path:
    folder = journal.subfolder(run.folder, "fastchat", task, "model_judgment")
    references = "-all-references" if all_references else ""
    return folder / f"{file_name(judge)}_{kind}{references}{end}.jsonl"


def ratings_table(results: Mapping[str, Judged]) -> str:
    """Means per task, turn and category; below, how many are unjudged and why."""
    headers = ["task", "turn", "category", "answers", "unjudged", "rating"]
    rows = [[task, *row] for task, judged in results.items() for row in _rating_rows(judged)]
    notes = [f"note: {printable(note)}\n" for judged in results.values() for note in judged.notes]
    return terminal(headers, rows) + _unjudged(results) + "".join(notes)


def _rating_rows(judged: Judged) -> Iterator[list[Any]]:
    asked, scores = judged.gradings, judged.scores
    graded = [(g.turn, g.category, scores.get((g.question_id, g.turn))) for g in asked]
    ratings = DataFrame(graded, columns=["turn", "category", "rating"]).astype({"rating": float})
    for name, turns in (("both", (1, 2)), ("1", (1,)), ("2", (2,))):
        in_turns = ratings[ratings["turn"].isin(turns)]
        for category, part in [("all", in_turns), *in_turns.groupby("category", sort=False)]:
            mean = number(part["rating"].mean(), ".2f")
            yield [name, category, len(part), part["rating"].isna().sum(), mean]


def _unjudged(results: Mapping[str, Judged]) -> str:
    """How many, and a line per reason; nothing if all are judged."""
    names: dict[str, list[str]] = {}
    for task, judged in results.items():
        for (question_id, turn), reason in sorted(judged.reasons.items()):
            names.setdefault(reason, []).append(f"{task} {question_id} turn {turn}")
    if not names:
        return ""
    lines = []
    for reason, answers in names.items():
        more = len(answers) - _MAX_NAMES
        listed = ", ".join(answers[:_MAX_NAMES]) + (f", … and {more} more" if more > 0 else "")
        lines.append(f"- {printable(reason)}: {listed}")
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES:] = [f"- … and {len(lines) - _MAX_LINES} more reasons"]
    total = sum(map(len, names.values()))
    heading = f"Unjudged, and in no mean: {total}; start again to ask for them"
    return "\n".join(["", heading, *lines, ""])


def verdicts_table(results: Mapping[str, JudgedPairs]) -> str:
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
    reasons = dict.fromkeys(why for judged in results.values() for why in judged.reasons.values())
    table = terminal([*headers, "first's win rate"], rows)
    return table + "".join(f"- unjudged: {printable(reason)}\n" for reason in reasons)
