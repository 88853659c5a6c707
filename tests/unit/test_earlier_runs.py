"""Answers of earlier runs: how they are found, what is refused, what they change in a replay."""

import json
from array import array
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_runs import write_run
from sample_rows import ROW

from copyspec_eval.cli import main
from copyspec_eval.cli.replay import replay_turn
from copyspec_eval.drafters.registry import drafter_factory, store_option
from copyspec_eval.drafters.suffix import SuffixDrafter
from copyspec_eval.errors import CopySpecError, OptionError
from copyspec_eval.reports.earlier_runs import EarlierAnswers, RequestId, Trace, read_earlier
from copyspec_eval.types import DraftOptions, Verdict

LIMITS = 96, 0.0006
PROMPT = tuple(range(100, 120))
few_tokens = st.lists(st.integers(0, 3), min_size=1, max_size=25)


def write_traces(path, *rows):
    some = {"category": "c", "turn": 1, "prompt_ids": PROMPT}
    path.write_text("".join(json.dumps(some | row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("prompt", "answers", "drafted"),
    [([1, 2, 3], [[7, 8, 9, 7, 5]], (7, 8, 9, 7, 5)), ([1, 2, 3, 4, 3], [[7, 8], [7, 9]], (7, 9))],
    ids=["one answer", "the later"],
)
def test_the_first_tokens_are_drafted_from_the_answer_to_the_same_request(prompt, answers, drafted):
    drafter = SuffixDrafter()
    drafter.start(prompt, earlier=answers)
    draft = drafter.propose(10, *LIMITS)
    assert (draft.token_ids, draft.source, draft.position) == (drafted, "earlier", -2)


@given(few_tokens, st.lists(few_tokens, max_size=6), few_tokens, st.booleans())
def test_every_draft_says_where_it_is_from(prompt, earlier, answer, tree):
    drafter, text = SuffixDrafter(tree=tree), [*prompt]
    drafter.start(prompt, earlier=earlier)
    of_earlier = {token for one in earlier for token in [*one, *prompt[-16:]]}
    for token in answer:
        draft = drafter.propose(10, *LIMITS)
        positions = draft.positions or (draft.position,) * bool(draft.token_ids)
        for node, position in enumerate(positions):
            if draft.source_of(node) == "context":
                assert position < len(text) or tree
                assert position >= len(text) or text[position] == draft.token_ids[node]
            else:
                assert (draft.source_of(node), position) == ("earlier", -2)
                assert draft.token_ids[node] in of_earlier
        drafter.observe([token], Verdict(0, token))
        text.append(token)


@pytest.mark.parametrize("tree", [False, True])
def test_other_requests_earlier_answers_and_those_of_the_run_are_told_apart(tree):
    options = DraftOptions("suffix", store=("runs/base",), tree=tree)
    make_drafter = drafter_factory(options, earlier=[[5, 6, 7, 8]])
    run = Trace("c", 1, (1,), (20, 21, 22, 23))
    replay_turn(run, make_drafter(), *LIMITS)
    for prompt, source in (((5, 6), "earlier"), ((20, 21), "store")):
        drafter = make_drafter()
        drafter.start(prompt)
        draft = drafter.propose(10, *LIMITS)
        assert len(draft.token_ids) >= 2
        assert draft.source_of(0) == draft.source == source


def test_the_digest_is_of_the_answers_and_their_requests():
    first, second = RequestId("a", "0", 1), RequestId("a", "0", 2)
    several = [[(first, [1, 2])], [(first, [1, 3])], [(second, [1, 2])], []]
    digests = [[EarlierAnswers(answers).digest for answers in several] for _ in range(2)]
    assert digests[0] == digests[1]
    assert len({*digests[0]}) == 4


def test_rows_of_a_folder_come_in_the_order_of_their_runs(tmp_path):
    rows = [replace(ROW, run_id=run, doc_id=doc) for run, doc in (("2", 7), ("1", 8))]
    folder = write_run(tmp_path / "run", rows)
    actual = read_earlier([str(folder)], [])
    asked = [RequestId("mt_bench", document, 1) for document in "87"]
    assert [answer.request for answer in actual] == asked
    assert actual[0].token_ids == array("i", range(10))
    assert (actual[0].text, actual[0].whole_text, actual[0].has_eos) == (ROW.text, ROW.answer, True)
    assert read_earlier([str(folder / "turns.jsonl")], []) == actual
    assert len(read_earlier([str(folder), str(folder / "turns.jsonl")], [])) == 4


@pytest.mark.parametrize("token", [-1, 2**31, 10**30])
def test_token_ids_of_no_tokenizer_leave_the_text(tmp_path, token):
    folder = write_run(tmp_path / "run", [ROW])
    row = json.loads((folder / "turns.jsonl").read_text()) | {"token_ids": [5, token]}
    (folder / "turns.jsonl").write_text(json.dumps(row) + "\n")
    [answer] = read_earlier([str(folder)], [])
    assert (answer.token_ids, answer.text) == (None, ROW.text)


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


@pytest.mark.parametrize("value", ["", None, [], ["a", ""], [1], {"a": 1}, 0.5])
def test_what_is_neither_a_switch_nor_paths_is_refused(value):
    message = r"^store must be true, false or the folder of an earlier run, got .*"
    with pytest.raises(OptionError, match=message):
        DraftOptions("suffix", store=store_option(value))


def replayed(traces, switches, capsys):
    arguments = ["--drafter", "suffix", "--traces", str(traces), "--json"]
    assert main(["replay", *arguments, "--drafter-args", switches]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("tree", ["false", "true"])
def test_a_replay_counts_what_earlier_runs_give(tmp_path, tree, capsys):
    answer, after = list(range(10, 40)), {"id": "x/1", "turn": 2, "answer_ids": [*range(50, 60)]}
    traces = write_traces(tmp_path / "t.jsonl", {"id": "x/1", "answer_ids": answer}, after)
    stored = {"id": "x/1", "answer_ids": [*answer[:20], 5, *answer[21:]]}
    store = write_traces(tmp_path / "s.jsonl", stored)
    without = replayed(traces, f"tree={tree}", capsys)
    figures = replayed(traces, f"tree={tree},store={store}", capsys)
    assert "earlier_share" not in without["total"]
    assert without["by_turn"]["1"]["forwards"] == 30
    first, second = figures["by_turn"].values()
    assert (first["forwards"], first["earlier_share"]) == (3, 28 / 30)
    assert second["forwards"] == without["by_turn"]["2"]["forwards"] == 10
    assert second["earlier_share"] is None, "nothing was drafted from there"
    assert "earlier_share" in figures["by_category"]["c"]


def test_a_replay_takes_records_too(tmp_path, capsys):
    traces = write_traces(tmp_path / "t.jsonl", {"id": 3, "answer_ids": list(range(10))})
    folder = write_run(tmp_path / "run", [ROW])
    assert replayed(traces, f"store={folder}", capsys)["total"]["forwards"] == 1


@pytest.mark.parametrize(
    ("drafter", "store", "message"),
    [
        ("suffix", "other.jsonl", "other.jsonl: no answer has the id and turn of a trace; name an"),
        ("suffix", "t.jsonl", "t.jsonl is being replayed; name answers of another run"),
        ("suffix", "./t.jsonl", "t.jsonl is being replayed; name answers of another run"),
        ("suffix", "other.jsonl:nowhere", "store=nowhere: no such file or folder"),
        ("suffix", "texts", "store=texts: answers without token ids; a replay has no tokenizer"),
        ("copyspec", "nowhere", "store=nowhere is not for drafter=copyspec; pass drafter=suffix"),
    ],
)
def test_a_replay_refuses_in_one_line(tmp_path, drafter, store, message, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    row = {"id": 1, "answer_ids": [5, 6]}
    write_traces(tmp_path / "t.jsonl", row)
    others = row | {"id": 2}, row | {"turn": 2}, {"answer_ids": [5, 6]}
    write_traces(tmp_path / "other.jsonl", *others)
    write_run(tmp_path / "texts", [replace(ROW, doc_id=1, token_ids=None)])
    arguments = ["replay", "--drafter", drafter, "--traces", "t.jsonl"]
    assert main([*arguments, "--drafter-args", f"store={store}"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.count("\n") == 1
