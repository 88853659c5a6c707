"""The summarising task: its data, its prompts that fit, and its scores."""

import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lm_eval.models.huggingface import HFLM
from scripted_lm import Scripted, evaluated

from copyspec_eval.errors import DataError
from copyspec_eval.harness import reference_prompts
from copyspec_eval.harness.tasks import ARTICLE_PROMPT, CnnDailyMailTask, GSM8KSelfCorrectionTask
from copyspec_eval.scoring.cnn_dailymail import UNSTEMMED, score_summary, sentences, verbatim_share

ARTICLE = 'It rained on Monday. "I was wet," said Ann. On Tuesday it\nsnowed! Nobody came.'
ROW = {"id": "a", "article": ARTICLE, "highlights": "It rained on Monday. Ann was wet."}
CONFIG: dict[str, Any] = {"task": "cnn_dailymail_extractive", "test_split": "test"}


def write(folder: Path, rows: list[Any], name: str = "test.jsonl") -> Path:
    path = folder / "cnn_dailymail" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def question(article: str) -> str:
    return ARTICLE_PROMPT.replace("{article}", article)


@pytest.mark.parametrize(
    ("summary", "rouge1", "rouge2", "verbatim"),
    [
        (ROW["highlights"], 1, 1, 0.5),
        # With stemming, 4 of 4 and 7 words are common, in this order, and 3 of 3 and 6 pairs.
        ("It rains on Monday", 2 * 4 / (4 + 7), 2 * 3 / (3 + 6), 0),
        *((nothing, 0, 0, 0) for nothing in ("", " \n", "…", "1. \n- ")),
    ],
)
def test_scores_by_hand(summary, rouge1, rouge2, verbatim):
    scores = score_summary(summary, ARTICLE, ROW["highlights"])
    wanted = {"rouge1": rouge1, "rouge2": rouge2, "rougeL": rouge1, "verbatim": verbatim}
    assert scores == pytest.approx(wanted)


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
        *(("It  rained on\nMonday.", 1), ("it rained on Monday.", 0)),
        ("1. It rained on Monday.\n2. On Tuesday it snowed!", 1),
        ("It rained on Tuesday. Nobody came. Nobody went. Nobody came.", 0.5),
    ],
)
def test_verbatim_by_hand(summary, share):
    assert verbatim_share(summary, ARTICLE) == share


TEXTS = st.text(st.sampled_from(["a", "B", "7", ".", "!", '"', "'", "”", ")", "-", " ", "\n"]))


@given(TEXTS, st.integers(0, 99), st.integers(0, 99))
def test_any_part_of_the_article_is_verbatim(article, start, length):
    part = article[start : start + length]
    assert verbatim_share(part, article) == (1 if sentences(part) else 0)


@given(TEXTS)
def test_sentences_lose_no_letter(text):
    assert re.findall("[aB]", " ".join(sentences(text))) == re.findall("[aB]", text)


def test_files_are_read_in_order_of_their_names(local_data):
    write(local_data, [ROW | {"id": "b"}], "b.jsonl")
    write(local_data, [ROW | {"more": 1}], "a.jsonl")
    write(local_data, [], "notes.txt")
    assert list(CnnDailyMailTask(CONFIG).test_docs()) == [ROW, ROW | {"id": "b"}]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (ROW | {"article": " "}, "article is ' '; give a non-empty string"),
        (ROW | {"id": 3}, "id is 3; give a non-empty string"),
        ({"id": "a", "text": "x"}, "article is None; give a non-empty string"),
    ],
)
def test_bad_rows_are_named(local_data, row, message):
    path = write(local_data, [ROW, row])
    with pytest.raises(DataError) as caught:
        CnnDailyMailTask(CONFIG)
    assert str(caught.value) == f"{path}:2: {message}"


@pytest.mark.parametrize(
    ("task", "name", "config", "files"),
    [
        (CnnDailyMailTask, "abisee/cnn_dailymail", "3.0.0", "cnn_dailymail/*.jsonl"),
        (GSM8KSelfCorrectionTask, "openai/gsm8k", "main", "gsm8k/test.jsonl"),
    ],
)
def test_without_local_data_the_hub_is_asked(task, name, config, files, local_data, monkeypatch):
    with pytest.raises(DataError) as missing:
        task(CONFIG)
    assert str(missing.value) == (
        f"{local_data / files}: no such file; put a copy of the test split of {name} there, or "
        "unset COPYSPEC_DATA_DIR to download it"
    )
    row = ROW | {"question": "1+2?", "answer": "#### 3"}
    load = Mock(return_value=datasets.Dataset.from_list([row]))
    monkeypatch.delenv("COPYSPEC_DATA_DIR")
    monkeypatch.setattr("copyspec_eval.harness.tasks.load_dataset", load)
    [doc] = task(CONFIG).test_docs()
    assert doc.items() <= row.items()
    load.assert_called_once_with(name, config, split="test")
    load.side_effect = ConnectionError("no\nnetwork")
    with pytest.raises(DataError) as offline:
        task(CONFIG)
    assert str(offline.value) == (
        f"cannot download {name} (no network); copy its test split to FOLDER/{files} and set "
        "COPYSPEC_DATA_DIR=FOLDER"
    )


@pytest.fixture(scope="module")
def hf(byte_model):
    return HFLM(str(byte_model), device="cpu")


def prompt_of(
    folder: Path, article: str, lm: Any, budget: Any = ("max_gen_toks", 256), **options: Any
) -> str:
    """Of the first of two articles."""
    write(folder, [ROW | {"article": article}, ROW])
    task = CnnDailyMailTask(CONFIG | {"generation_kwargs": dict([budget])})
    template = {"apply_chat_template": True, "chat_template": lm.apply_chat_template}
    task.build_all_requests(**({"limit": 1} | template | options))
    prompt: str = task.instances[0].args[0]
    return prompt


def test_a_long_article_is_cut_at_its_end(local_data, hf):
    """The byte model has a token per byte, and 2,048 - 256 of them for a prompt."""
    article = " ".join(f"Word{number} é." for number in range(500))
    prompt, room = prompt_of(local_data, article, hf), 2048 - 256
    start, end = f"user: {question(article)}\nassistant: ".split(article)
    assert prompt.startswith(start)
    assert prompt.endswith(end)
    remaining = prompt.removeprefix(start).removesuffix(end)
    assert article.startswith(remaining + " ")
    one_more = article[: article.index(" ", len(remaining) + 1)]
    assert len(hf.tok_encode(prompt)) <= room < len(hf.tok_encode(start + one_more + end))
    [batch], _ = hf.tok_batch_encode([prompt], left_truncate_len=room)
    assert hf.tok_decode(batch.tolist()) == prompt, "so lm-eval cuts nothing"


def test_system_instruction_and_budget_count(local_data, hf):
    prompt = prompt_of(
        local_data, "word " * 1000, hf, ("max_new_tokens", 1000), system_instruction="Be brief."
    )
    assert prompt.startswith("system: Be brief.\nuser: Article:\nword word ")
    assert 1048 - 5 <= len(prompt) <= 1048
    prompt = prompt_of(local_data, "word " * 1000, hf, system_instruction="x" * 3000)
    assert "Article:\nword\n\n" in prompt, "one word stays"


def test_short_articles_and_servers_are_left_alone(local_data, hf):
    assert prompt_of(local_data, ARTICLE, hf) == f"user: {question(ARTICLE)}\nassistant: "
    prompt = prompt_of(local_data, ARTICLE, hf, apply_chat_template=False, chat_template=None)
    assert prompt == f"User: {question(ARTICLE)}\n\nAssistant:"

    def template(messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        return messages[-1]["content"]

    article = "word " * 5000
    assert prompt_of(local_data, article, hf, chat_template=template) == question(article)


def test_the_papers_task_has_rouge_as_its_code_takes_it(local_data, monkeypatch):
    monkeypatch.setattr(reference_prompts, "summary_prompt", lambda: "Sum up: {article}!")
    write(local_data, [ROW | {"highlights": "A dog barks.\nDogs bark."}])
    task = CnnDailyMailTask(CONFIG | {"dataset_kwargs": {"prompts": "reference"}})
    [doc] = task.test_docs()
    assert task.user_turns(doc) == [f"Sum up: {doc['article']}!"]
    scores = task.process_results(doc, ["Dogs bark."])
    shares = dict.fromkeys(UNSTEMMED, 4 / 7) | {"rouge2_unstemmed": 0.4}
    assert {name: scores[name] for name in UNSTEMMED} == pytest.approx(shares)
    ours = CnnDailyMailTask(CONFIG).process_results(doc, ["Dogs bark."])
    assert not ours.keys() & {*UNSTEMMED}
    assert ours["rouge1"] == scores["rouge1"]


def test_evaluation(local_data):
    write(local_data, [ROW, ROW])
    results = evaluated(Scripted(*["It rained on Monday. Ann was wet."] * 2), CONFIG["task"])
    figures = results["results"][CONFIG["task"]]
    scores = {"rouge1": 1, "rouge2": 1, "rougeL": 1, "verbatim": 0.5, "answered": 1}
    assert {name: figures[f"{name},none"] for name in scores} == scores
    assert results["samples"][CONFIG["task"]][1]["target"] == ROW["highlights"]
