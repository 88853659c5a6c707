"""What differs between two runs is named, and nothing else."""

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_folders import CONVERSATION, sample, sha256, write_log

from copyspec_eval.cli import main
from copyspec_eval.harness.rescoring import rescore
from copyspec_eval.records import AnswerKey
from copyspec_eval.reports import comparison
from copyspec_eval.reports.comparison import Pair, compare_answers, compare_scores, fails
from copyspec_eval.reports.runs import Answer, Run, Scores
from copyspec_eval.types import Difference


def answer(
    doc_id: int = 0,
    turn: int = 1,
    text: str = "yes",
    tokens: Sequence[int] | None = None,
    prompt: str = "Q",
    repeat: int = 0,
    task: str = "t",
) -> Answer:
    ids = None if tokens is None else tuple(tokens)
    return Answer(task, doc_id, turn, repeat, prompt, sha256(prompt), text, ids, {})


def run(*answers: Answer, scores: Scores | None = None) -> Run:
    return Run(Path("run"), {each.key: each for each in answers}, scores or {}, None)


def outcomes(a: Run, b: Run) -> list[tuple[Any, ...]]:
    return [(pair.status, pair.compared_by, pair.position) for pair in compare_answers(a, b)]


@pytest.mark.parametrize(
    ("a", "b", "outcome"),
    [
        (answer(tokens=[1, 2]), answer(tokens=[1, 2]), ("identical", "tokens", None)),
        (answer(tokens=[1, 2]), answer(), ("identical", "text", None)),
        (answer(tokens=[1, 2, 3]), answer(tokens=[1, 4, 3]), ("diverged", "tokens", 1)),
        (answer(tokens=[1, 2]), answer(tokens=[1, 2, 3]), ("diverged", "tokens", 2)),
        (answer(text="", tokens=[]), answer(text="", tokens=[7]), ("diverged", "tokens", 0)),
        (answer(text="cat", tokens=[1]), answer(text="car"), ("diverged", "text", 2)),
        (answer(text="cat", tokens=[1]), answer(text="ca", tokens=[1]), ("diverged", "text", 2)),
        (answer(prompt="P"), answer(prompt="Q"), ("other_prompt", None, None)),
    ],
)
def test_one_answer(a, b, outcome):
    assert outcomes(run(a), run(b)) == [outcome]
    assert outcomes(run(b), run(a)) == [outcome]


def test_an_earlier_turn_explains_another_prompt():
    first, second = answer(), answer(turn=2, prompt="Q yes R")
    other_first, other_second = answer(text="no"), answer(turn=2, prompt="Q no R")

    def statuses(*answers: Answer) -> list[str]:
        return [pair.status for pair in compare_answers(run(first, second), run(*answers))]

    assert statuses(other_first, other_second) == ["diverged", "not_comparable"]
    assert statuses(first, other_second) == ["identical", "other_prompt"]
    assert statuses(other_second) == ["missing", "not_comparable"]
    assert statuses(answer(prompt="P"), other_second) == ["other_prompt", "not_comparable"]
    assert statuses(other_first, second) == ["diverged", "identical"], "equal prompts compare"
    assert statuses(other_first, replace(second, text="no")) == ["diverged", "diverged"]
    later = compare_answers(run(answer(), answer(1, 2)), run(answer(text="no"), answer(1, 2, "no")))
    assert [pair.status for pair in later] == ["diverged", "diverged"], "documents are apart"


def test_repeats_are_no_turns_of_each_other():
    a = run(answer(), answer(repeat=1))
    b = run(answer(text="no"), answer(repeat=1, prompt="P"))
    assert [pair.status for pair in compare_answers(a, b)] == ["diverged", "other_prompt"]


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Conversations of one to three turns, some with tokens, in any order."""
    documents = draw(st.lists(st.integers(0, 20), unique=True, min_size=1, max_size=6))
    turns = draw(st.integers(1, 3))
    tokens = st.none() | st.lists(st.integers(0, 3), max_size=4)
    return run(
        *(
            answer(doc_id, turn, draw(st.text("ab", max_size=3)), draw(tokens), str(turn))
            for doc_id in documents
            for turn in range(1, turns + 1)
        )
    )


@given(runs())
def test_a_run_is_identical_to_itself(a):
    pairs = compare_answers(a, a)
    assert {pair.status for pair in pairs} == {"identical"}
    assert len(pairs) == len(a.answers)
    assert not fails(pairs)


@given(runs(), runs())
def test_the_other_way_round_is_the_mirror_image(a, b):
    mirrored = [replace(pair, a=pair.b, b=pair.a) for pair in compare_answers(b, a)]
    assert compare_answers(a, b) == mirrored


@given(runs(), st.data(), st.sampled_from(["missing", "diverged", "other_prompt"]))
def test_one_change_is_named_and_nothing_else(a, data, change):
    key = data.draw(st.sampled_from(list(a.answers)))
    changed = {
        "missing": [],
        "diverged": [replace(a.answers[key], text="another", token_ids=None)],
        "other_prompt": [replace(a.answers[key], prompt_sha256=sha256("another"))],
    }[change]
    others = [each for each in a.answers.values() if each.key != key]
    pairs = compare_answers(a, run(*others, *changed))
    assert [(p.key, p.status) for p in pairs if p.status != "identical"] == [(key, change)]
    assert fails(pairs)


def test_right_or_wrong_is_tested_by_mcnemar():
    a = run(scores={"t": {"acc,none": dict(enumerate([1, 1, 0, 0, 0, 0, 0, 0]))}})
    b = run(scores={"t": {"acc,none": dict(enumerate([1, 0, 1, 1, 1, 1, 1, 0]))}})
    [score] = compare_scores(a, b)
    assert (score.a, score.b, score.difference) == (2 / 8, 6 / 8, 4 / 8)
    assert (score.num_documents, score.num_unpaired, score.discordant) == (8, 0, (1, 5))
    assert score.p_value == pytest.approx(2 * (1 + 6) / 2**6)
    assert score.interval is None
    [same] = compare_scores(a, a)
    assert (same.difference, same.discordant, same.p_value) == (0, (0, 0), 1)


def test_other_scores_get_an_interval():
    a = run(scores={"t": {"f1,none": dict(enumerate([0.5, 0.25, 1.0, 0.0]))}})
    b = run(scores={"t": {"f1,none": dict(enumerate([0.75, 0.25, 0.5, 0.25, 0.9]))}})
    [score] = compare_scores(a, b)
    assert (score.difference, score.num_documents, score.num_unpaired) == (0.0, 4, 1)
    assert (score.p_value, score.discordant) == (None, None)
    assert score.interval is not None
    low, high = score.interval
    assert -0.5 <= low < 0 < high <= 0.25
    many = run(scores={"t": {"f1,none": {i: math.sin(i) for i in range(40)}}})
    none = run(scores={"t": {"f1,none": dict.fromkeys(range(40), 0.0)}})
    assert compare_scores(many, none) == compare_scores(many, none), "the same each time"
    [same] = compare_scores(a, a)
    assert same.interval == (0, 0)
    [single] = compare_scores(a, run(scores={"t": {"f1,none": {0: 0.75}}}))
    assert (single.difference, single.interval, single.num_unpaired) == (0.25, None, 3)
    [alone] = compare_scores(a, run())
    assert (alone.a, alone.num_documents, alone.num_unpaired) == (None, 0, 4)


def test_lines_name_each_difference_and_hold_any_text():
    a = run(
        answer(0, text="a b|\n**c**", tokens=[1, 2, 3]),
        answer(1, text="same\u2028end"),
        answer(2, repeat=1, text="same"),
        *map(answer, (3, 4, 6)),
    )
    b = run(
        answer(0, text="a " + "d|\n" * 30, tokens=[1, 9]),
        answer(1, text="same"),
        answer(2, repeat=1, text="same", prompt="P"),
        *map(answer, (4, 6, 3, 5)),
    )
    result = compare_answers(a, b), compare_scores(a, b)
    rendered = comparison.comparison_tables(comparison.comparison_figures(*result))
    assert [line for line in rendered.splitlines() if line.startswith("- ")] == [
        r"- t doc 0 turn 1: diverged at token 1: A 2 'b|\n**c**', B 9 'd|\nd|\nd|\nd|\nd|\nd|\nd|'",
        r"- t doc 1 turn 1: diverged at character 4: A '\u2028end', B ends",
        "- t doc 2 turn 1 repeat 1: another prompt",
        "- t doc 5 turn 1: missing in A",
    ]
    assert rendered.endswith(
        "\nNOT EQUAL: 2 diverged, 1 missing, 1 other prompt; identical: 3 of 7 answers\n"
    )
    figures = json.loads(json.dumps(comparison.comparison_figures(*result)))
    assert figures["equal"] is False
    assert figures["counts"]["answers"] == 7
    assert figures["turns"][0]["compared_by"] == "both"
    assert [each["doc_id"] for each in figures["differences"]] == [0, 1, 2, 5]
    assert figures["differences"][0]["b"] == {"token_id": 9, "text": ("d|\n" * 30)[:20]}
    assert figures["differences"][3]["a"] is None


def test_twenty_lines_are_enough():
    pairs = compare_answers(run(*map(answer, range(25))), run(answer(99)))
    figures = comparison.comparison_figures(pairs, [])
    lines = comparison.comparison_tables(figures).splitlines()
    assert sum("missing in" in line for line in lines) == 20
    assert "- … and 6 more (--json lists all)" in lines
    assert len(figures["differences"]) == 26


def test_a_near_tie_is_named_and_does_not_fail():
    [diverged] = compare_answers(run(answer(tokens=[1])), run(answer(tokens=[2])))
    difference = Difference(0, 1, 2, margin=0.01, noise=0.01)
    near_tie = replace(diverged, status="near_tie", difference=difference)
    not_comparable = Pair(AnswerKey("t", 0, 2, 0), "not_comparable", None, None, answer(), answer())
    pairs = [near_tie, not_comparable]
    assert not fails(pairs)
    figures = comparison.comparison_figures(pairs, [])
    rendered = comparison.comparison_tables(figures)
    assert "- t doc 0 turn 1: near-tie at token 0: A 1, B 2\n" in rendered
    assert rendered.endswith("identical: 0 of 2 answers, 1 near-tie, 1 not comparable\n")
    assert figures["differences"][0]["difference"]["margin"] == 0.01


def test_command_exits_by_the_answers(tmp_path, capsys):
    a, b, c = (str(tmp_path / name) for name in "abc")
    write_log(Path(a), [CONVERSATION])
    write_log(Path(b), [sample(7, ["Q", "Q no R"], [["no"], ["no"]], acc=True)])
    write_log(Path(c), [sample(1, [], [], f1=0.5)])
    assert main(["compare", a, a]) == 0
    assert capsys.readouterr().out.endswith("\nidentical: 2 of 2 answers\n")
    assert main(["compare", a, b]) == 1
    assert "NOT EQUAL: 1 diverged, 1 not comparable" in capsys.readouterr().out
    assert main(["compare", a, b, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["counts"]["not_comparable"] == 1
    assert main(["compare", c, c]) == 0
    capsys.readouterr()
    write_log(Path(c), [sample(1, [], [])])
    assert main(["compare", c, c]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith(": nothing to compare; give two runs of one task\n")


def test_command_needs_neither_torch_nor_lm_eval(tmp_path):
    write_log(tmp_path, [CONVERSATION])
    program = (
        "import sys; from copyspec_eval.cli import main; main(['compare', *sys.argv[1:]])\n"
        "print({'torch', 'transformers', 'lm_eval'} & sys.modules.keys() or 'light')"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.endswith("light\n")


def test_what_a_server_was_asked_to_report_does_not_keep_answers_from_being_rescored(byte_model):
    """With the options of docs/serving.md."""
    settings = {"return_token_ids": True, "max_gen_toks": 4, "until": []}
    a, b = (replace(answer(tokens=ids), gen_kwargs=settings) for ids in ([1, 2], [1, 3]))
    [pair] = rescore(compare_answers(run(a), run(b)), str(byte_model), ["torch.float32"])
    assert pair.difference is not None
    assert pair.difference.position == 1


def test_messages_to_a_chat_server_are_rescored_as_the_model_reads_them(byte_model):
    messages = json.dumps([{"role": "user", "content": "Hi"}])
    # As lm-eval logs them.
    chat, text = json.dumps([messages]), "user: Hi\nassistant: "
    margins = []
    for prompt in (chat, text, messages):
        a, b = (
            replace(answer(prompt=prompt, tokens=ids), gen_kwargs={"max_gen_toks": 4, "until": []})
            for ids in ([1, 2], [1, 3])
        )
        [pair] = rescore(compare_answers(run(a), run(b)), str(byte_model), ["torch.float32"])
        assert pair.difference is not None
        margins.append(pair.difference.margin)
    assert margins[0] == margins[1] != margins[2]
