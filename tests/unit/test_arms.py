"""Several arms in one run: how they are named, and what they leave."""

import json
import os
import shutil
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
        ("copyspec+tree", "tree=true is not for drafter=copyspec; pass drafter=suffix"),
        ("copyspec:none:copyspec", "arms=copyspec:none:copyspec: copyspec is listed twice"),
        ("none", "arms=none: only the baseline; add a drafter, e.g. suffix"),
        ("suffix+store=runs/a", "an arm cannot copy from earlier runs"),
        (["copyspec", 3], r"arms=\['copyspec', 3\] is no list of drafters"),
        (3, "arms=3 is no list of drafters"),
    ],
)
def test_wrong_arms_are_refused(arms, message):
    with pytest.raises(OptionError, match=message):
        parse_arms(DraftOptions(), arms)


def test_no_arms_without_answers_or_beside_a_drafter(byte_model, tmp_path):
    (tmp_path / "turns.jsonl").write_text("")
    with pytest.raises(DataError, match="no sample logs"):
        read_arms(read_run(tmp_path))
    with pytest.raises(OptionError, match="names the drafters; leave drafter=suffix out"):
        evaluate_into(tmp_path, byte_model, "arms=copyspec,drafter=suffix")


def test_shared_settings_hold_for_arms_without_their_own():
    shared = DraftOptions(gamma=4, num_draft_tokens=7)
    arms = parse_arms(shared, ["copyspec", "copyspec+gamma=2+num_draft_tokens=0"])
    assert [(arm.gamma, arm.num_draft_tokens) for arm in arms] == [(4, 7), (2, 0)]
    assert parse_arms(shared, None) == (shared,)


@pytest.fixture(scope="module")
def run(tmp_path_factory, byte_model, questions):
    folder = tmp_path_factory.mktemp("arms")
    options = {"limit": 2, "use_cache": str(folder / "answers")}
    with mock.patch.dict(os.environ, COPYSPEC_DATA_DIR=str(questions)):
        evaluate_into(folder / "run", byte_model, f"arms={ARMS}", **options)
        shutil.copytree(folder / "run", folder / "continued")
        evaluate_into(folder / "continued", byte_model, f"arms={ARMS}", **options)
    return folder / "run"


@pytest.mark.parametrize("name", ["run", "continued"])
def test_arms_are_lines_with_equal_scores(run, name):
    """What the first start answered comes from lm-eval's cache in the second."""
    recorded = read_recorded(run.with_name(name))
    assert recorded.cut_short == {}
    lines = leaderboard([recorded]).lines
    names = ["copyspec, gamma=1, num_draft_tokens=10", "copyspec, gamma=2, num_draft_tokens=0"]
    assert sorted(lines["drafter"]) == [*names, "suffix + store"]
    for column, wanted in (("turns", 4), ("runs", 1), ("identical", 1.0)):
        assert lines[column].tolist() == [wanted] * 3
    assert len(set(lines["baseline_tokens_per_second"])) == 1


def test_each_arm_is_a_run_that_answers_every_request(run):
    rows = rows_in(run)
    asked = [(doc, turn) for doc in range(2) for turn in (1, 2)]
    answered = sorted((row.run_id, row.doc_id, row.turn) for row in rows)
    assert answered == sorted(
        (run_id, *each) for run_id in {r.run_id for r in rows} for each in asked
    )
    assert all(row.baseline and row.token_ids == row.baseline.token_ids for row in rows)
    assert not any(row.baseline and row.baseline.difference for row in rows)
    baselines = {(row.doc_id, row.turn, str(row.baseline.counts)) for row in rows if row.baseline}
    assert len(baselines) == len(asked), "one baseline for all arms"
    drafts = {row.run_id: row.counts.drafts for row in rows if row.drafter == "copyspec"}
    assert [*map(bool, drafts.values())] == [True, False], "looking alone copies nothing"
    drafting = [manifest.spec.drafting for manifest in read_manifests(run, []).values()]
    settings = [(each["drafter"], each["gamma"]) for each in drafting]
    assert settings == [("copyspec", 1), ("copyspec", 2), ("suffix", 3)]
    assert drafting[1]["num_draft_tokens"] == 0
    assert all(each["arms"] == ["copyspec", "copyspec", "suffix + store"] for each in drafting)


def test_arms_are_compared_one_by_one_and_one_wrong_arm_fails(run, tmp_path, capsys):
    assert list(read_arms(read_run(run))) == [
        "copyspec, gamma=1, num_draft_tokens=10, delta=5",
        "copyspec, gamma=2, num_draft_tokens=0, delta=5",
        "suffix + store, gamma=3, num_draft_tokens=96, delta=5",
    ]
    assert main(["compare", str(run)]) == 0
    assert capsys.readouterr().out.count("identical") >= 3
    forged = tmp_path / "forged"
    shutil.copytree(run, forged)
    rows = [json.loads(line) for line in (forged / "turns.jsonl").read_text().splitlines()]
    rows[-1]["token_ids"][0] += 1
    (forged / "turns.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["compare", str(forged)]) == 1
