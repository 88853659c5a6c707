"""Judges' ratings in reports."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from judge_server import shown_by_fastchat
from recorded_runs import manifest, turn, write_run
from run_folders import write_conversations

from copyspec_eval.reports.conversations import read_ratings
from copyspec_eval.reports.leaderboard import leaderboard
from copyspec_eval.reports.leaderboard_forms import as_markdown, csv_files
from copyspec_eval.reports.recorded import read_recorded

QUESTIONS = [
    {"question_id": 81 + number, "category": category, "turns": [f"Q{number}", f"R{number}"]}
    for number, category in enumerate(("writing", "math", "writing"))
]
SCORES = {(81, 1): 7.0, (81, 2): 5.5, (82, 1): 9.0, (82, 2): 3.0, (83, 1): 8.0}


def judgements(scores: dict[tuple[int, int], float], **changes: Any) -> list[dict[str, Any]]:
    """Rows of FastChat's, for the answers of `run_in`."""
    judge = {"model": "org__model", "judge": ["gpt-4", "single-v1"], "judgment": "", "tstamp": 1.0}
    rows = []
    for (number, which), score in scores.items():
        row = judge | {"question_id": number, "turn": which, "score": score}
        rows.append(row | {"user_prompt": f"Judge: mt_bench {number}.{which}"} | changes)
    return rows


def run_in(folder: Path) -> Path:
    """Three conversations with their records and samples."""
    rows = [
        replace(turn("r", doc, number), category=str(question["category"]), task="mt_bench")
        for doc, question in enumerate(QUESTIONS)
        for number in (1, 2)
    ]
    write_run(folder, rows, manifest("r"))
    write_conversations(folder, "mt_bench", QUESTIONS, "mt_bench {question_id}.{turn}")
    return folder


def write(folder: Path, rows: Iterable[dict[str, Any]], judge: str = "gpt-4_single") -> Path:
    file = folder / "fastchat" / "mt_bench" / "model_judgment" / f"{judge}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_ratings_stand_in_every_form_with_fastchats_means(tmp_path):
    unrated = judgements({(83, 2): -1})
    file = write(run_in(tmp_path), judgements(SCORES) + unrated)
    write(tmp_path, judgements({(81, 1): 2.0}), "gpt-4_single-all-references")
    board = leaderboard([read_recorded(tmp_path)])
    by_turn = board.by_turn["rating_gpt-4"]
    ours = [by_turn[0, 1], by_turn[0, 2], board.lines.at[0, "rating_gpt-4"]]
    assert ours == pytest.approx([8.0, 4.25, 6.5])
    assert shown_by_fastchat(file) == pytest.approx(ours, abs=1e-6)
    assert board.by_category.at[(0, 1, "writing"), "rating_gpt-4"] == 7.5
    text = as_markdown(board)
    assert "rating by gpt-4 6.50, rating by gpt-4-all-references 2.00" in text
    assert "| rating" in text.partition("## By turn")[2]
    assert all("rating_gpt-4" in file.partition("\n")[0] for file in csv_files(board).values())


@pytest.mark.parametrize(
    "changes",
    [
        *({"user_prompt": "Judge: another answer"}, {"question_id": 99}, {"turn": 3}, {"turn": 0}),
        *({"score": 11}, {"score": "high"}, {"score": None}),
    ],
    ids=str,
)
def test_what_is_no_rating_of_these_answers_is_left_out(tmp_path, changes):
    wrong = judgements({(81, 1): 1.0}, **changes)
    write(run_in(tmp_path), judgements(SCORES) + wrong)
    notes: list[str] = []
    assert {(r.question_id, r.turn): r.score for r in read_ratings(tmp_path, notes)} == SCORES
    [note] = notes
    assert note.endswith("no ratings of this run's answers, left out: 1 rows")


def test_a_run_without_samples_has_no_ratings(tmp_path):
    write_run(tmp_path, [turn("r", 0, 1)], manifest("r"))
    write(tmp_path, judgements(SCORES))
    notes: list[str] = []
    assert read_ratings(tmp_path, notes) == []
    assert "its ratings are left out" in notes[0]
