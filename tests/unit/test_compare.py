"""What differs between two runs, or the arms of one, is named, and nothing else."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded_runs import turn, write_run
from run_folders import CONVERSATION, sample, sha256, write_log

from copyspec_eval.cli import main
from copyspec_eval.harness.rescoring import rescore
from copyspec_eval.records import AnswerKey
from copyspec_eval.reports import comparison
from copyspec_eval.reports.comparison import Pair, compare_answers, compare_scores, fails
from copyspec_eval.reports.runs import Answer, Run, read_arms, read_run
from copyspec_eval.types import Difference


def answer(doc_id=0, turn=1, text="yes", tokens=None, prompt="Q", repeat=0):
    ids = None if tokens is None else tuple(tokens)
    return Answer(AnswerKey("t", doc_id, turn, repeat), prompt, sha256(prompt), text, ids, {})


def run(*answers):
    return Run(Path("run"), {each.key: each for each in answers}, {})


def scored(metric, values):
    return {"t": {metric: dict(enumerate(values))}}


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
    for both in ((a, b), (b, a)):
        [pair] = compare_answers(*map(run, both))
        assert (pair.status, pair.compared_by, pair.position) == outcome


def test_another_order_of_documents_is_not_worth_a_line(tmp_path, capsys):
    rows = [sample(doc, ["Q"], [["A"]]) for doc in range(98)]
    write_log(tmp_path / "a", rows)
    write_log(tmp_path / "b", rows[::-1])
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    shown = capsys.readouterr()
    assert "identical: 98 of 98 answers" in shown.out
    assert len((shown.out + shown.err).splitlines()) < 10


YES, NO = answer(), answer(text="no")
AFTER_YES, AFTER_NO = answer(turn=2, prompt="Q yes R"), answer(turn=2, prompt="Q no R")


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([NO, AFTER_NO], ["diverged", "not_comparable"]),
        ([YES, AFTER_NO], ["identical", "other_prompt"]),
        ([AFTER_NO], ["missing", "not_comparable"]),
        ([answer(prompt="P"), AFTER_NO], ["other_prompt", "not_comparable"]),
        ([NO, AFTER_YES], ["diverged", "identical"]),
        ([NO, replace(AFTER_YES, text="no")], ["diverged", "diverged"]),
        ([AFTER_YES, YES], ["identical", "identical"]),
        ([YES], ["identical", "missing"]),
    ],
)
def test_an_earlier_turn_explains_another_prompt(others, expected):
    pairs = compare_answers(run(YES, AFTER_YES), run(*others))
    assert [pair.status for pair in pairs] == expected
    assert fails(pairs) is (expected != ["identical", "identical"])


def test_other_documents_and_repeats_explain_nothing():
    a = run(YES, answer(repeat=1), answer(1, 2))
    b = run(NO, answer(repeat=1, prompt="P"), answer(1, 2, prompt="P"))
    statuses = [pair.status for pair in compare_answers(a, b)]
    assert statuses == ["diverged", "other_prompt", "other_prompt"]


def test_right_or_wrong_is_tested_by_mcnemar():
    a = scored("acc,none", [1, 1, 0, 0, 0, 0, 0, 0])
    [score] = compare_scores(a, scored("acc,none", [1, 0, 1, 1, 1, 1, 1, 0]))
    assert (score.a, score.b, score.difference) == (2 / 8, 6 / 8, 4 / 8)
    assert (score.num_documents, score.num_unpaired, score.discordant) == (8, 0, (1, 5))
    assert score.p_value == pytest.approx(2 * (1 + 6) / 2**6)
    assert score.interval is None
    [same] = compare_scores(a, a)
    assert (same.difference, same.discordant, same.p_value) == (0, (0, 0), 1)


def test_other_scores_get_an_interval():
    a, b = scored("f1,none", [0.5, 0.25, 1.0, 0.0]), [0.75, 0.25, 0.5, 0.25, 0.9]
    score: Any
    [score] = compare_scores(a, scored("f1,none", b))
    assert (score.difference, score.num_documents, score.num_unpaired) == (0.0, 4, 1)
    assert (score.p_value, score.discordant) == (None, None)
    low, high = score.interval
    assert -0.5 <= low < 0 < high <= 0.25
    assert compare_scores(a, scored("f1,none", b)) == [score], "the same each time"
    [same], [single] = (compare_scores(a, other) for other in (a, scored("f1,none", [0.75])))
    [alone] = compare_scores(a, {})
    assert same.interval == (0, 0)
    assert (single.difference, single.interval, single.num_unpaired) == (0.25, None, 3)
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
    figures = comparison.comparison_figures(compare_answers(a, b), [])
    rendered = comparison.comparison_tables(figures)
    assert [line for line in rendered.splitlines() if line.startswith("- ")] == [
        r"- t doc 0 turn 1: diverged at token 1: A 2 'b|\n**c**', B 9 'd|\nd|\nd|\nd|\nd|\nd|\nd|'",
        r"- t doc 1 turn 1: diverged at character 4: A '\u2028end', B ends",
        "- t doc 2 turn 1 repeat 1: another prompt",
        "- t doc 5 turn 1: missing in A",
    ]
    assert rendered.endswith(
        "\nNOT EQUAL: 2 diverged, 1 missing, 1 other prompt; identical: 3 of 7 answers\n"
    )
    first, *_, last = json.loads(json.dumps(figures))["differences"]
    assert figures["turns"][0]["compared_by"] == "both"
    assert first["b"] == {"token_id": 9, "text": ("d|\n" * 30)[:20]}
    assert (last["doc_id"], last["a"]) == (5, None)


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
    pairs = [near_tie, Pair(AnswerKey("t", 0, 2, 0), "not_comparable", None, None, YES, YES)]
    assert not fails(pairs)
    figures = comparison.comparison_figures(pairs, [])
    rendered = comparison.comparison_tables(figures)
    assert "- t doc 0 turn 1: near-tie at token 0: A 1, B 2\n" in rendered
    assert rendered.endswith("identical: 0 of 2 answers, 1 near-tie, 1 not comparable\n")
    assert figures["differences"][0]["difference"]["margin"] == 0.01


def test_command_exits_by_the_answers(tmp_path, capsys):
    a, b, scores, nothing = (str(tmp_path / name) for name in "abcd")
    write_log(Path(a), [CONVERSATION])
    write_log(Path(b), [sample(7, ["Q", "Q no R"], [["no"], ["no"]], acc=True)])
    write_log(Path(scores), [sample(1, [], [], f1=0.5)])
    write_log(Path(nothing), [sample(1, [], [])])
    assert main(["compare", a, a]) == 0
    assert capsys.readouterr().out.endswith("\nidentical: 2 of 2 answers\n")
    assert main(["compare", a, b]) == 1
    assert "NOT EQUAL: 1 diverged, 1 not comparable" in capsys.readouterr().out
    assert main(["compare", a, b, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["counts"]["not_comparable"] == 1
    assert main(["compare", scores, scores]) == 0
    capsys.readouterr()
    assert main(["compare", nothing, nothing]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith(": nothing to compare; give two runs of one task\n")


def answered(doc, drafted, difference):
    """A row of a paired run whose baseline answered [1, 2, 3]."""
    row: Any = turn("r", doc, 1)
    counts = replace(row.counts, num_tokens=len(drafted))
    baseline = replace(row.baseline, token_ids=(1, 2, 3), difference=difference)
    texts = {"answer": "no" if difference else "yes", "text": "yes"}
    return replace(row, token_ids=tuple(drafted), counts=counts, baseline=baseline, **texts)


SAME = answered(0, [1, 2, 3], None)
OTHER = answered(1, [1, 5, 3], Difference(1, 5, 2, None, 0.0))


@pytest.mark.parametrize(
    ("rows", "code"),
    # What counts are the tokens that both arms have: a record of equality is not believed.
    [([SAME], 0), ([SAME, OTHER], 1), ([answered(0, [1, 5, 3], None)], 1)],
)
def test_the_arms_of_a_run_are_compared_token_by_token(tmp_path, capsys, rows, code):
    assert main(["compare", str(write_run(tmp_path, rows))]) == code
    assert ("1 diverged" in capsys.readouterr().out) == bool(code)
    [(baseline, drafted)] = read_arms(read_run(tmp_path)).values()
    assert [each.token_ids for each in baseline.answers.values()] == [(1, 2, 3)] * len(rows)
    assert [each.token_ids for each in drafted.answers.values()] == [r.token_ids for r in rows]
    assert [each.text for each in drafted.answers.values()] == [row.answer for row in rows]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"baseline": None}, "no paired run; give two runs"),
        ({"token_ids": ()}, "its rows have no token ids"),
        ({"token_ids": None}, "its rows have no token ids"),
    ],
)
def test_a_run_without_both_arms_or_tokens_is_refused(tmp_path, capsys, changes, message):
    assert main(["compare", str(write_run(tmp_path, [replace(SAME, **changes)]))]) == 1
    assert message in capsys.readouterr().err


def test_messages_to_a_chat_server_are_rescored_as_the_model_reads_them(byte_model):
    """With the options of docs/serving.md."""
    settings = {"return_token_ids": True, "max_gen_toks": 4, "until": []}
    messages, margins = json.dumps([{"role": "user", "content": "Hi"}]), []
    # The first as lm-eval logs them.
    for prompt in (json.dumps([messages]), "user: Hi\nassistant: ", messages):
        a, b = (
            replace(answer(prompt=prompt, tokens=ids), gen_kwargs=settings)
            for ids in ([1, 2], [1, 3])
        )
        pair: Any
        [pair] = rescore(compare_answers(run(a), run(b)), str(byte_model), ["torch.float32"])
        assert pair.difference.position == 1
        margins.append(pair.difference.margin)
    assert margins[0] == margins[1] != margins[2]
