"""Several arms in one run: how they are named, and what they leave."""

import json
import os
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from in_process import evaluate_into, rows_in

from copyspec_eval.cli import main
from copyspec_eval.errors import DataError, OptionError
from copyspec_eval.manifest import read_manifests
from copyspec_eval.reports.leaderboard import leaderboard
from copyspec_eval.reports.recorded import read_recorded
from copyspec_eval.reports.runs import read_arms, read_run
from copyspec_eval.session.settings import parse_arms
from copyspec_eval.types import DraftOptions

ARMS = "none:copyspec+gamma=1:copyspec+gamma=2+num_draft_tokens=0:suffix+store"


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        ("copyspek", r"unknown drafter 'copyspek' \(did you mean 'copyspec'\?\)"),
        ("copyspec+gama=3", r"unknown setting of the arm copyspec 'gama' \(did you mean 'gamma'"),
        ("copyspec+gamma=x", r"gamma must be an integer of at least 1 \(usual: 3\), got 'x'"),
        ("copyspec+tree", "tree=true is not for drafter=copyspec; pass drafter=suffix"),
        ("copyspec:none:copyspec", "arms=copyspec:none:copyspec: copyspec is listed twice"),
        ("none", "arms=none: only the baseline; add a drafter, e.g. suffix"),
        ("suffix+store=runs/a", "an arm cannot copy from earlier runs"),
        (["copyspec", 3], r"arms=\['copyspec', 3\] is no list of drafters"),
        (3, "arms=3 is no list of drafters"),
    ],
)
def test_wrong_arms_are_refused(arms: object, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_arms(DraftOptions(), arms)


def test_shared_settings_hold_for_arms_without_their_own() -> None:
    shared = DraftOptions(gamma=4, num_draft_tokens=7)
    first, second = parse_arms(shared, ["copyspec", "copyspec+gamma=2+num_draft_tokens=0"])
    assert (first.gamma, first.num_draft_tokens) == (4, 7)
    assert (second.gamma, second.num_draft_tokens) == (2, 0)
    assert parse_arms(shared, None) == (shared,)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, byte_model: Path, questions: Path) -> Path:
    folder = tmp_path_factory.mktemp("arms")
    with mock.patch.dict(os.environ, COPYSPEC_DATA_DIR=str(questions)):
        evaluate_into(folder, byte_model, f"arms={ARMS}", limit=4)
    return folder


def test_every_arm_answers_every_request(run: Path) -> None:
    rows = rows_in(run)
    asked = [(doc, turn) for doc in range(4) for turn in (1, 2)]
    runs = {row.run_id for row in rows}
    assert len(runs) == 3
    answered = [(row.run_id, row.doc_id, row.turn) for row in rows]
    assert sorted(answered) == sorted((run_id, *each) for run_id in runs for each in asked)
    assert all(row.baseline and row.token_ids == row.baseline.token_ids for row in rows)
    assert not any(row.baseline and row.baseline.difference for row in rows)
    baselines = {(row.doc_id, row.turn, str(row.baseline.counts)) for row in rows if row.baseline}
    assert len(baselines) == len(asked), "one baseline for all arms"


def test_each_arm_is_a_run_with_its_own_settings(run: Path) -> None:
    drafting = [manifest.spec.drafting for manifest in read_manifests(run, []).values()]
    assert [each["drafter"] for each in drafting] == ["copyspec", "copyspec", "suffix"]
    assert [each["gamma"] for each in drafting] == [1, 2, 3]
    assert drafting[1]["num_draft_tokens"] == 0
    assert all(each["arms"] == ["copyspec", "copyspec", "suffix + store"] for each in drafting)
    drafts = {row.run_id: row.counts.drafts for row in rows_in(run) if row.drafter == "copyspec"}
    assert [*map(bool, drafts.values())] == [True, False], "looking alone copies nothing"


def test_arms_are_lines_with_equal_scores(run: Path) -> None:
    recorded = read_recorded(run)
    assert recorded.cut_short == {}
    board = leaderboard([recorded])
    assert list(board.lines["turns"]) == [8, 8, 8]
    names = ["copyspec, gamma=1, num_draft_tokens=10", "copyspec, gamma=2, num_draft_tokens=0"]
    assert sorted(board.lines["drafter"]) == [*names, "suffix + store"]
    assert board.lines["identical"].tolist() == [1.0] * 3
    assert len(set(board.lines["baseline_tokens_per_second"])) == 1


def test_arms_are_compared_one_by_one_and_one_wrong_arm_fails(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run, tmp_path / "forged")
    file = tmp_path / "forged" / "turns.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[-1]["token_ids"][0] += 1
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["compare", str(tmp_path / "forged")]) == 1
    capsys.readouterr()
    assert list(read_arms(read_run(run))) == [
        "copyspec, gamma=1, num_draft_tokens=10, delta=5",
        "copyspec, gamma=2, num_draft_tokens=0, delta=5",
        "suffix + store, gamma=3, num_draft_tokens=96, delta=5",
    ]
    assert main(["compare", str(run)]) == 0
    assert capsys.readouterr().out.count("identical") >= 3


def test_a_run_that_goes_on_is_the_same_lines(
    byte_model: Path, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first start answered comes from lm-eval's cache in the second."""
    monkeypatch.setenv("COPYSPEC_DATA_DIR", str(questions))
    cache: dict[str, Any] = {"use_cache": str(tmp_path / "answers")}
    out = tmp_path / "run"
    evaluate_into(out, byte_model, f"arms={ARMS}", limit=2, **cache)
    evaluate_into(out, byte_model, f"arms={ARMS}", limit=2, **cache)
    recorded = read_recorded(out)
    assert recorded.cut_short == {}
    board = leaderboard([recorded])
    assert list(board.lines["turns"]) == [4, 4, 4]
    assert board.lines["runs"].tolist() == [1, 1, 1]


def test_no_arms_without_answers_or_beside_a_drafter(byte_model: Path, tmp_path: Path) -> None:
    (tmp_path / "turns.jsonl").write_text("")
    with pytest.raises(DataError, match="no sample logs"):
        read_arms(read_run(tmp_path))
    with pytest.raises(OptionError, match="names the drafters; leave drafter=suffix out"):
        evaluate_into(tmp_path, byte_model, "arms=copyspec,drafter=suffix")
