"""A judge's ratings of a run, asked for and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from pytablewriter import MarkdownTableWriter

from copyspec_eval.reports import export
from copyspec_eval.reports.runs import Run
from copyspec_eval.scoring.judge import AnswerTurn, Judge, Judged, judge_all
from copyspec_eval.scoring.mt_bench import Grading, file_name, gradings, guide
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
    given = guide(prompts, references)
    model = export.model_name(run)
    results: dict[str, Judged] = {}
    for task, found in export.conversations(run).items():
        asked = [grading for each in found for grading in gradings(task, each, given)]
        path = run.folder / "fastchat" / task / "model_judgment"
        path /= f"{file_name(judge.name)}_single.jsonl"
        results[task] = judge_all(judge.rate, asked, path, model, judge.name, concurrency)
    return results


def render(results: Mapping[str, Judged]) -> str:
    """Markdown: means per task, turn and category; below, how many are unjudged and why."""
    headers = ["task", "turn", "category", "answers", "unjudged", "rating"]
    rows = [[task, *row] for task, judged in results.items() for row in _rows(judged)]
    table: str = MarkdownTableWriter(headers=headers, value_matrix=rows).dumps()
    return table + _unjudged(results)


def _rows(judged: Judged) -> list[list[Any]]:
    """Both turns and each of them, over all categories and in each."""
    rows = []
    for name, turns in (("both", (1, 2)), ("1", (1,)), ("2", (2,))):
        of_turn = [grading for grading in judged.gradings if grading.turn in turns]
        by_category: dict[str, list[Grading]] = {}
        for grading in of_turn:
            by_category.setdefault(grading.category, []).append(grading)
        for category, part in {"all": of_turn, **by_category}.items():
            rows.append([name, category, *_figures(part, judged.scores)])
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


def _figures(gradings: Sequence[Grading], scores: Mapping[AnswerTurn, float]) -> tuple[Any, ...]:
    answers = [(grading.question_id, grading.turn) for grading in gradings]
    known = [scores[answer] for answer in answers if answer in scores]
    mean = f"{fmean(known):.2f}" if known else ""
    return len(answers), len(answers) - len(known), mean


def _listed(names: Sequence[str]) -> str:
    more = f", … and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
