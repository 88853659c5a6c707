"""Answers of earlier runs: how they are found, what is refused, what they change in a replay."""

import json
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_rows import ROW

from copyspec_eval import records
from copyspec_eval.cli import main
from copyspec_eval.cli.replay import replay_turn
from copyspec_eval.drafters.registry import drafter_factory, store_option, store_text
from copyspec_eval.drafters.suffix import SuffixDrafter
from copyspec_eval.errors import CopySpecError, OptionError
from copyspec_eval.reports.earlier_runs import Asked, EarlierAnswers, Trace, read_earlier
from copyspec_eval.types import Draft, DraftOptions, Verdict

THRESHOLDS = (0.0006,) * 96
PROMPT = tuple(range(100, 120))
few_tokens = st.lists(st.integers(0, 3), min_size=1, max_size=25)


def write_traces(path: Path, *rows: dict[str, Any]) -> Path:
    some = {"category": "c", "turn": 1, "prompt_ids": PROMPT}
    path.write_text("".join(json.dumps(some | row) + "\n" for row in rows))
    return path


def write_records(folder: Path, *rows: records.TurnRecord) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for row in rows:
        records.append(folder / "turns.jsonl", row)
    return folder


class Watched(SuffixDrafter):
    """Keeps its drafts, each with the text that it was proposed for."""

    def __init__(self, tree: bool = False) -> None:
        super().__init__(tree=tree)
        self.drafts: list[tuple[list[int], Draft]] = []

    def propose(self, max_tokens: int, thresholds: Sequence[float]) -> Draft:
        draft = super().propose(max_tokens, thresholds)
        self.drafts.append((self._context.token_ids[self._context.num_earlier :], draft))
        return draft


def test_the_very_first_tokens_are_drafted_from_the_answer_to_the_same_request():
    drafter = SuffixDrafter()
    drafter.start([1, 2, 3], earlier=[[7, 8, 9, 7, 5]])
    draft = drafter.propose(10, THRESHOLDS)
    assert (draft.token_ids, draft.source, draft.position) == ((7, 8, 9, 7, 5), "earlier", -2)


def test_a_changed_token_costs_one_forward():
    answer = tuple(range(10, 30))
    earlier = (*answer[:9], 5, *answer[10:])
    turn = replay_turn(
        Trace("c", 1, PROMPT, answer), SuffixDrafter(), THRESHOLDS, earlier=[earlier]
    )
    assert turn.counts.num_forwards == 2
    assert turn.counts.drafts is not None
    assert turn.counts.drafts["earlier"].num_accepted == 19


def test_the_later_of_two_earlier_answers_is_preferred_and_the_prompt_keeps_its_places():
    drafter = SuffixDrafter()
    drafter.start([1, 2, 3, 4, 3], earlier=[[7, 8], [7, 9]])
    assert drafter.propose(10, THRESHOLDS).token_ids == (7, 9)
    drafter = SuffixDrafter()
    drafter.start([1, 2, 3, 4, 1, 2], earlier=[[7]])
    drafter.observe([3], Verdict(0, 3))
    draft = drafter.propose(10, THRESHOLDS)
    assert (draft.token_ids[0], draft.position, draft.source) == (4, 3, "context")


@given(few_tokens, st.lists(few_tokens, max_size=6), few_tokens, st.booleans())
def test_every_draft_says_where_it_is_from(prompt, earlier, answer, tree):
    drafter = Watched(tree)
    turn = replay_turn(Trace("c", 1, tuple(prompt), tuple(answer)), drafter, THRESHOLDS,
                       earlier=earlier)  # fmt: skip
    counts = turn.counts
    accepted = sum(source.num_accepted for source in (counts.drafts or {}).values())
    # The last forward may end in the draft.
    assert counts.num_tokens == len(answer)
    assert (counts.num_forwards or 0) + accepted - len(answer) in (0, 1)
    seen_before = {token for one in earlier for token in one} | {*prompt[-16:]}
    for text, draft in drafter.drafts:
        positions = draft.positions or (draft.position,) * bool(draft.token_ids)
        for node, position in enumerate(positions):
            source = draft.source_of(node)
            assert draft.token_ids[node] >= 0
            if source == "context":
                assert position < len(text) or tree
                assert position >= len(text) or text[position] == draft.token_ids[node]
            else:
                assert (source, position) == ("earlier", -2)
                assert draft.token_ids[node] in seen_before
    assert earlier or "earlier" not in (counts.drafts or {})


@pytest.mark.parametrize("tree", [False, True])
def test_other_requests_earlier_answers_and_those_of_the_run_are_told_apart(tree):
    options = DraftOptions("suffix", store=("runs/base",), tree=tree)
    make_drafter = drafter_factory(options, earlier=[[5, 6, 7, 8]])
    run = Trace("c", 1, (1,), (20, 21, 22, 23))
    replay_turn(run, make_drafter(), THRESHOLDS)
    for prompt, source in (((5, 6), "earlier"), ((20, 21), "store")):
        drafter = make_drafter()
        drafter.start(prompt)
        draft = drafter.propose(10, THRESHOLDS)
        assert len(draft.token_ids) >= 2
        assert draft.source_of(0) == draft.source == source


def test_what_is_asked_decides_what_is_found():
    earlier = EarlierAnswers(
        [(Asked("a", "0", 1), [1]), (Asked("a", "0", 1), [2]), (Asked("a", "0", 2), [3])]
    )
    assert [list(ids) for ids in earlier.to("a", 0, 1)] == [[1], [2]]
    assert [list(ids) for ids in earlier.to("a", 0, 2)] == [[3]]
    assert earlier.to("a", 1, 1) == earlier.to("b", 0, 1) == earlier.to("a", None, 1) == ()
    assert [list(ids) for ids in earlier.in_order] == [[1], [2], [3]]


def test_the_digest_is_of_the_answers_and_their_requests():
    def digest(*answers: tuple[Asked, list[int]]) -> str:
        return EarlierAnswers(answers).digest

    one = digest((Asked("a", "0", 1), [1, 2]))
    assert one == digest((Asked("a", "0", 1), [1, 2]))
    others = [digest((Asked("a", "0", 1), [1, 3])), digest((Asked("a", "0", 2), [1, 2])), digest()]
    assert len({one, *others}) == 4


def test_rows_of_a_folder_come_in_the_order_of_their_runs(tmp_path):
    rows = [replace(ROW, run_id=run, doc_id=doc) for run, doc in (("2", 7), ("1", 8))]
    folder = write_records(tmp_path / "run", *rows)
    actual = read_earlier([str(folder)], [])
    assert [answer.asked for answer in actual] == [
        Asked("mt_bench", "8", 1),
        Asked("mt_bench", "7", 1),
    ]
    assert actual[0].token_ids == array("i", range(10))
    assert (actual[0].text, actual[0].whole_text, actual[0].has_eos) == (ROW.text, ROW.answer, True)
    assert read_earlier([str(folder / "turns.jsonl")], []) == actual
    assert len(read_earlier([str(folder), str(folder / "turns.jsonl")], [])) == 4


@pytest.mark.parametrize("token", [-1, 2**31, 10**30])
def test_token_ids_of_no_tokenizer_leave_the_text(tmp_path, token):
    folder = write_records(tmp_path / "run", ROW)
    row = json.loads((folder / "turns.jsonl").read_text()) | {"token_ids": [5, token]}
    (folder / "turns.jsonl").write_text(json.dumps(row) + "\n")
    notes: list[str] = []
    assert [(answer.token_ids, answer.text) for answer in read_earlier([str(folder)], notes)] == [
        (None, ROW.text)
    ]


def test_a_torn_row_is_named(tmp_path):
    folder = write_records(tmp_path / "run", ROW, replace(ROW, doc_id=4))
    torn = (folder / "turns.jsonl").read_bytes()[:-100]
    (folder / "turns.jsonl").write_bytes(torn)
    notes: list[str] = []
    assert len(read_earlier([str(folder)], notes)) == 1
    assert "unreadable rows left out: 1" in notes[0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", r"store=.*nowhere: no such file or folder; pass true, false, or"),
        ("empty", r"store=.*empty: no turns\*\.jsonl there; name the --output_path"),
        ("nothing", r"store=.*nothing: no answers there"),
        ("no_ids.jsonl", r"store=.*no_ids.jsonl: no answers there"),
        ("bytes.jsonl", r"bytes.jsonl:1: not"),
        ("x" * 300, r"store=.*x: File name too long; name the --output_path"),
    ],
)
def test_what_has_no_answers_is_refused(tmp_path, name, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing" / "turns.jsonl").write_text("{}\n")
    write_traces(tmp_path / "no_ids.jsonl", {"answer_ids": [1]})
    (tmp_path / "bytes.jsonl").write_bytes(b"\x80\n")
    with pytest.raises(CopySpecError, match=message) as refusal:
        read_earlier([str(tmp_path / name)], [])
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("value", [1, "", None, [], ["a", ""], "a:", [1], {"a": 1}, 0.5])
def test_what_is_neither_a_switch_nor_paths_is_refused(value):
    with pytest.raises(
        OptionError, match=r"^store must be true, false or the folder of an earlier run, got .*"
    ):
        DraftOptions("suffix", store=store_option(value))


def test_the_label_names_the_runs_and_not_their_places(tmp_path):
    paths = (f"{tmp_path}/one/", f"{tmp_path}/two/turns.jsonl", f"{tmp_path}/x.jsonl")
    assert DraftOptions("suffix", store=paths).label == "suffix + store=one:two:x.jsonl"
    assert store_text(paths[:2]) == f"{tmp_path}/one:{tmp_path}/two/turns.jsonl"
    assert DraftOptions("suffix", store=True).label == "suffix + store"
    assert DraftOptions("suffix").label == "suffix"


def replayed(traces: Path, switches: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    arguments = ["--drafter", "suffix", "--traces", str(traces), "--json"]
    assert main(["replay", *arguments, "--drafter-args", switches]) == 0
    figures: dict[str, Any] = json.loads(capsys.readouterr().out)
    return figures


@pytest.mark.parametrize("tree", ["false", "true"])
def test_a_replay_counts_what_earlier_runs_give(tmp_path, tree, capsys):
    answer = list(range(10, 40))
    traces = write_traces(
        tmp_path / "t.jsonl",
        {"id": "x/1", "answer_ids": answer},
        {"id": "x/1", "turn": 2, "answer_ids": list(range(50, 60))},
    )
    store = write_traces(
        tmp_path / "s.jsonl", {"id": "x/1", "answer_ids": [*answer[:20], 5, *answer[21:]]}
    )
    without = replayed(traces, f"tree={tree}", capsys)
    figures = replayed(traces, f"tree={tree},store={store}", capsys)
    assert "earlier_share" not in without["total"]
    assert without["by_turn"]["1"]["forwards"] == 30
    assert figures["by_turn"]["1"]["forwards"] == 3
    assert figures["by_turn"]["1"]["earlier_share"] == 28 / 30
    assert figures["by_turn"]["2"]["forwards"] == without["by_turn"]["2"]["forwards"] == 10
    assert figures["by_turn"]["2"]["earlier_share"] is None, "nothing was drafted from there"
    assert "earlier_share" in figures["by_category"]["c"]


def test_a_replay_takes_records_too(tmp_path, capsys):
    traces = write_traces(tmp_path / "t.jsonl", {"id": 3, "answer_ids": list(range(10))})
    folder = write_records(tmp_path / "run", ROW)
    assert replayed(traces, f"store={folder}", capsys)["total"]["forwards"] == 1


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("other.jsonl", "other.jsonl: no answer has the id and turn of a trace; name answers"),
        ("t.jsonl", "t.jsonl is what is replayed; name answers of another run"),
        ("./t.jsonl", "t.jsonl is what is replayed; name answers of another run"),
        ("nowhere", "store=nowhere: no such file or folder"),
        ("other.jsonl:nowhere", "store=nowhere: no such file or folder"),
        ("texts", "store=texts: answers without token ids; a replay has no tokenizer"),
    ],
)
def test_a_replay_refuses_in_one_line(tmp_path, store, message, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_traces(tmp_path / "t.jsonl", {"id": 1, "answer_ids": [5, 6]})
    write_traces(
        tmp_path / "other.jsonl",
        {"id": 2, "answer_ids": [5, 6]},
        {"id": 1, "turn": 2, "answer_ids": [5, 6]},
        {"answer_ids": [5, 6]},
    )
    write_records(tmp_path / "texts", replace(ROW, doc_id=1, token_ids=None))
    arguments = ["replay", "--drafter", "suffix", "--traces", "t.jsonl"]
    assert main([*arguments, "--drafter-args", f"store={store}"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.count("\n") == 1


def test_earlier_runs_are_for_drafters_with_a_store(capsys):
    arguments = ["replay", "--traces", "t.jsonl", "--drafter-args", "store=runs/a"]
    assert main([*arguments, "--drafter", "copyspec"]) == 1
    assert (
        "store=runs/a is not for drafter=copyspec; pass drafter=suffix" in capsys.readouterr().err
    )
