"""The summarising task: its data, its prompts that fit, and its scores."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lm_eval.models.huggingface import HFLM
from scripted_lm import Scripted, evaluated, figures

from copyspec_eval.errors import DataError
from copyspec_eval.harness import reference_prompts
from copyspec_eval.harness.tasks import ARTICLE_PROMPT, CnnDailyMailTask
from copyspec_eval.scoring.cnn_dailymail import UNSTEMMED, score_summary, sentences, verbatim_share

ARTICLE = 'It rained on Monday. "I was wet," said Ann. On Tuesday it\nsnowed! Nobody came.'
ROW = {"id": "a", "article": ARTICLE, "highlights": "It rained on Monday. Ann was wet."}
CONFIG: dict[str, Any] = {
    "task": "cnn_dailymail_extractive",
    "class": CnnDailyMailTask,
    "test_split": "test",
    "output_type": "generate_until",
    "generation_kwargs": {"until": [], "do_sample": False, "max_gen_toks": 256},
}


def write(folder: Path, rows: list[Any], name: str = "test.jsonl") -> Path:
    path = folder / "cnn_dailymail" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def question(article: str) -> str:
    return ARTICLE_PROMPT.replace("{article}", article)


def test_the_reference_itself_scores_one():
    scores = score_summary(ROW["highlights"], ARTICLE, ROW["highlights"])
    assert (scores["rouge1"], scores["rouge2"], scores["rougeL"]) == (1, 1, 1)
    assert scores["verbatim"] == 0.5


def test_rouge_by_hand():
    """Of 4 and 7 words 4 are common, in this order; of 3 and 6 pairs 3 are."""
    scores = score_summary("It rains on Monday", ARTICLE, ROW["highlights"])
    assert scores["rouge1"] == pytest.approx(2 * 4 / (4 + 7)), "with stemming"
    assert scores["rouge2"] == pytest.approx(2 * 3 / (3 + 6))
    assert scores["rougeL"] == pytest.approx(2 * 4 / (4 + 7))


@pytest.mark.parametrize("summary", ["", " \n", "…", "1. \n- "])
def test_nothing_scores_nothing(summary):
    scores = score_summary(summary, ARTICLE, ROW["highlights"])
    assert set(scores.values()) == {0}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("One. Two? Three! Four", ["One.", "Two?", "Three!", "Four"]),
        ("1. One.\n2) Two.\n- Three\n• Four", ["One.", "Two.", "Three", "Four"]),
        ("“One.” (Two.) 'Three.' 3.5 m.", ["One.", "(Two.)", "'Three.'", "3.5 m."]),
        ("One\n\n  two   words. ", ["One", "two words."]),
        ("In 2015. 12 came.", ["In 2015.", "12 came."]),
    ],
)
def test_sentences(text, parts):
    assert sentences(text) == parts


@pytest.mark.parametrize(
    ("summary", "share"),
    [
        ("It rained on Monday.", 1),
        ("It  rained on\nMonday.", 1),
        ("1. It rained on Monday.\n2. On Tuesday it snowed!", 1),
        ("It rained on Tuesday. Nobody came. Nobody went. Nobody came.", 0.5),
        ("it rained on Monday.", 0),
    ],
)
def test_verbatim_by_hand(summary, share):
    assert verbatim_share(summary, ARTICLE) == share


TEXTS = st.text(st.sampled_from(["a", "B", "7", ".", "!", '"', "'", "”", ")", "-", " ", "\n"]))


@given(TEXTS, st.integers(0, 99), st.integers(0, 99))
def test_any_part_of_the_article_is_verbatim(article, start, length):
    part = article[start : start + length]
    assert verbatim_share(part, article) == (1 if sentences(part) else 0)


@given(TEXTS, TEXTS, TEXTS)
def test_scores_are_shares(summary, article, highlights):
    scores = score_summary(summary, article, highlights)
    for value in scores.values():
        assert 0 <= value <= 1


@given(TEXTS)
def test_sentences_lose_no_letter(text):
    letters = [character for character in text if character in "aB"]
    assert [character for part in sentences(text) for character in part if character in "aB"] == (
        letters
    )


def test_files_are_read_in_order_of_their_names(local_data):
    write(local_data, [ROW | {"id": "b"}], "b.jsonl")
    write(local_data, [ROW | {"more": 1}], "a.jsonl")
    write(local_data, [], "notes.txt")
    assert list(CnnDailyMailTask(CONFIG).test_docs()) == [ROW, ROW | {"id": "b"}]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (ROW | {"article": " "}, "article is ' '; give a non-empty string"),
        (ROW | {"highlights": ""}, "highlights is ''; give a non-empty string"),
        (ROW | {"id": 3}, "id is 3; give a non-empty string"),
        ({"id": "a", "text": "x"}, "article is None; give a non-empty string"),
        ([1], "a list, not a JSON object; "),
    ],
)
def test_bad_rows_are_named(local_data, row, message):
    path = write(local_data, [ROW, row])
    with pytest.raises(DataError) as caught:
        CnnDailyMailTask(CONFIG)
    assert str(caught.value).startswith(f"{path}:2: {message}")
    assert "\n" not in str(caught.value)


def test_missing_and_blank_files(local_data):
    with pytest.raises(DataError, match=r"cnn_dailymail/\*\.jsonl: no such file; put .*unset COPY"):
        CnnDailyMailTask(CONFIG)
    write(local_data, []).write_text("\n\n")
    with pytest.raises(DataError, match=r"test\.jsonl: no rows in it; copy the file again"):
        CnnDailyMailTask(CONFIG)


def test_without_local_data_the_hub_is_asked(monkeypatch):
    load = Mock(return_value=datasets.Dataset.from_list([ROW]))
    monkeypatch.delenv("COPYSPEC_DATA_DIR", raising=False)
    monkeypatch.setattr("copyspec_eval.harness.tasks.load_dataset", load)
    assert list(CnnDailyMailTask(CONFIG).test_docs()) == [ROW]
    load.assert_called_once_with("abisee/cnn_dailymail", "3.0.0", split="test")
    load.side_effect = ConnectionError("no\nnetwork")
    with pytest.raises(DataError, match=r"^cannot download .* \(no network\); copy .*DIR=FOLDER$"):
        CnnDailyMailTask(CONFIG)


@pytest.fixture(scope="module")
def hf(byte_model):
    return HFLM(str(byte_model), device="cpu")


def prompt_of(task: CnnDailyMailTask, lm: Any, **options: Any) -> str:
    template = {"apply_chat_template": True, "chat_template": lm.apply_chat_template}
    task.build_all_requests(**({"limit": 1} | template | options))
    prompt: str = task.instances[0].args[0]
    return prompt


def test_a_long_article_is_cut_at_its_end(local_data, hf):
    """The byte model has a token per byte, and 2,048 - 256 of them for a prompt."""
    article = " ".join(f"Word{number} é." for number in range(500))
    assert len(article) > 5000
    write(local_data, [ROW | {"article": article}, ROW])
    task = CnnDailyMailTask(CONFIG)
    prompt = prompt_of(task, hf)
    whole = "user: " + question(article) + "\nassistant: "
    start, end = whole.split(article)
    assert prompt.startswith(start)
    assert prompt.endswith(end)
    remaining = prompt.removeprefix(start).removesuffix(end)
    assert article.startswith(remaining + " ")
    one_more = article[: article.index(" ", len(remaining) + 1)]
    room = 2048 - 256
    assert len(hf.tok_encode(prompt)) <= room < len(hf.tok_encode(start + one_more + end))
    [batch], _ = hf.tok_batch_encode([prompt], left_truncate_len=room)
    assert hf.tok_decode(batch.tolist()) == prompt, "so lm-eval cuts nothing"


def test_system_instruction_and_budget_count(local_data, hf):
    write(local_data, [ROW | {"article": "word " * 1000}])
    task = CnnDailyMailTask(CONFIG | {"generation_kwargs": {"until": [], "max_new_tokens": 1000}})
    prompt = prompt_of(task, hf, system_instruction="Be brief.")
    assert prompt.startswith("system: Be brief.\nuser: Article:\nword word ")
    assert 1048 - 5 <= len(prompt) <= 1048


def test_short_articles_and_servers_are_left_alone(local_data, hf):
    write(local_data, [ROW])
    task = CnnDailyMailTask(CONFIG)
    assert prompt_of(task, hf) == f"user: {question(ARTICLE)}\nassistant: "
    prompt = prompt_of(task, hf, apply_chat_template=False, chat_template=None)
    assert prompt == f"User: {question(ARTICLE)}\n\nAssistant:"

    def template(messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        return messages[-1]["content"]

    write(local_data, [ROW | {"article": "word " * 5000}])
    prompt = prompt_of(CnnDailyMailTask(CONFIG), hf, chat_template=template)
    assert prompt == question("word " * 5000)


def test_an_article_without_room_keeps_a_word(local_data, hf):
    write(local_data, [ROW | {"article": "word " * 1000}])
    prompt = prompt_of(CnnDailyMailTask(CONFIG), hf, system_instruction="x" * 3000)
    assert "Article:\nword\n\n" in prompt


def test_the_papers_task_has_rouge_as_its_code_takes_it(local_data, monkeypatch):
    monkeypatch.setattr(reference_prompts, "summary_prompt", lambda: "Sum up: {article}!")
    write(local_data, [ROW | {"highlights": "A dog barks.\nDogs bark."}])
    task = CnnDailyMailTask(CONFIG | {"dataset_kwargs": {"prompts": "reference"}})
    [doc] = task.test_docs()
    assert task.user_turns(doc) == [f"Sum up: {doc['article']}!"]
    scores = task.process_results(doc, ["Dogs bark."])
    assert {name: scores[name] for name in UNSTEMMED} == pytest.approx(
        {
            "rouge1_unstemmed": 4 / 7,
            "rouge2_unstemmed": 0.4,
            "rougeL_unstemmed": 4 / 7,
            "rougeLsum_unstemmed": 4 / 7,
        }
    )
    ours = CnnDailyMailTask(CONFIG).process_results(doc, ["Dogs bark."])
    assert not ours.keys() & {*UNSTEMMED}
    assert ours["rouge1"] == scores["rouge1"]


@pytest.mark.parametrize("predict_only", [False, True])
def test_evaluation(local_data, predict_only):
    write(local_data, [ROW, ROW])
    lm = Scripted(*["It rained on Monday. Ann was wet."] * 2)
    scores = {"rouge1": 1, "rouge2": 1, "rougeL": 1, "verbatim": 0.5, "answered": 1}
    task, options = CONFIG["task"], {"predict_only": predict_only}
    assert figures(lm, task, **options) == ({"bypass": 999} if predict_only else scores)
    assert evaluated(lm, task, **options)["samples"][task][1]["target"] == ROW["highlights"]
