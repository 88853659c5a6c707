"""A judge's ratings of a run, asked for and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pandas import DataFrame

from copyspec_eval.reports import export
from copyspec_eval.reports.runs import Run
from copyspec_eval.reports.tables import number, terminal
from copyspec_eval.scoring.judge import Judge, Judged, judge_all
from copyspec_eval.scoring.mt_bench import file_name, gradings, guide
from copyspec_eval.sources import locate, read_jsonl

_MAX_LINES = 20
_MAX_NAMES = 10


def judge_run(run: Run, judge: Judge, concurrency: int) -> dict[str, Judged]:
    """Have all answers of `run` to MT-Bench and MT-Redundant rated, by task.

    The judgements are in `fastchat/<task>/model_judgment/<judge>_single.jsonl` of the run's folder,
    and only those that are not there yet are asked for. FastChat shows them:
    `python -m fastchat.llm_judge.show_result --bench-name mt_bench --input-file FILE`, for
    MT-Redundant, too, since second turns are shown under that name alone.

    Raises:
        DataError: as `judge_all` and `export.conversations`, or the judge's data are missing.
    """
    prompts, references = (
        [row.fields for row in read_jsonl(locate(f"mt_bench/{name}.jsonl"))]
        for name in ("judge_prompts", "reference_answer_gpt-4")
    )
    judge_data = guide(prompts, references)
    model = export.model_name(run)
    results: dict[str, Judged] = {}
    for task, conversations in export.conversations(run).items():
        asked = [grading for each in conversations for grading in gradings(task, each, judge_data)]
        path = run.folder / "fastchat" / task / "model_judgment"
        path /= f"{file_name(judge.name)}_single.jsonl"
        results[task] = judge_all(judge.rate, asked, path, model, judge.name, concurrency)
    return results


def ratings_table(results: Mapping[str, Judged]) -> str:
    """A table of means per task, turn and category; below, how many are unjudged and why."""
    headers = ["task", "turn", "category", "answers", "unjudged", "rating"]
    rows = [[task, *row] for task, judged in results.items() for row in _rows(judged)]
    notes = [note for judged in results.values() for note in judged.notes]
    return terminal(headers, rows) + _unjudged(results) + "".join(f"note: {n}\n" for n in notes)


def _rows(judged: Judged) -> list[list[Any]]:
    """Both turns and each of them, over all categories and in each."""
    ratings = DataFrame(
        [(g.turn, g.category, judged.scores.get((g.question_id, g.turn))) for g in judged.gradings],
        columns=["turn", "category", "rating"],
    ).astype({"rating": float})
    rows = []
    for name, turns in (("both", (1, 2)), ("1", (1,)), ("2", (2,))):
        of_turn = ratings[ratings["turn"].isin(turns)]
        for category, part in [("all", of_turn), *of_turn.groupby("category", sort=False)]:
            mean = number(part["rating"].mean(), ".2f")
            rows.append([name, category, len(part), part["rating"].isna().sum(), mean])
    return rows


def _unjudged(results: Mapping[str, Judged]) -> str:
    """How many, and a line per reason; nothing if all are judged."""
    names: dict[str, list[str]] = {}
    for task, judged in results.items():
        for (question_id, turn), reason in sorted(judged.reasons.items()):
            names.setdefault(reason, []).append(f"{task} {question_id} turn {turn}")
    if not names:
        return ""
    lines = [f"- {reason}: {_listed(answers)}" for reason, answers in names.items()]
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES:] = [f"- … and {len(lines) - _MAX_LINES} more reasons"]
    total = sum(map(len, names.values()))
    return "\n".join(
        ["", f"Unjudged, and in no mean: {total}; start again to ask for them", *lines, ""]
    )


def _listed(names: Sequence[str]) -> str:
    more = f", … and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
