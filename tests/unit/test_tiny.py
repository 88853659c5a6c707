"""The embedded model's conversations, tokens and training."""

import itertools
import json
import random
import re

import pytest
import torch
from tiny import programs, training
from tiny.conversations import training_conversation
from tiny.documents import DOCUMENTS, documents
from tiny.tokenizer import encode, train_tokenizer
from tiny.training import Settings, Trainer
from tiny.words import FIRST_NAMES, LAST_NAMES, Draw, is_name_held_out, is_number_held_out

from copyspec_eval.errors import DataError
from copyspec_eval.harness.tasks import QUICKSTART
from copyspec_eval.paths import tasks_dir
from copyspec_eval.scoring.gsm8k import extract_program

HELD_OUT = {
    f"{first} {last}".lower()
    for first, last in itertools.product(FIRST_NAMES, LAST_NAMES)
    if is_name_held_out(first, last)
}
NAMES = re.compile(rf"\b(?:{'|'.join(FIRST_NAMES)}) (?:{'|'.join(LAST_NAMES)})\b", re.IGNORECASE)
NUMBERS = re.compile(r"(?<![\d:])\d{2,}(?![\d:])")
"""Times of day are no numbers here."""


def names_and_numbers(text: str) -> tuple[set[str], set[int]]:
    names = {name.lower() for name in NAMES.findall(text)}
    return names, {int(number) for number in NUMBERS.findall(text)}


@pytest.fixture(scope="module")
def training_texts() -> list[str]:
    rng = random.Random(3)
    turns = [turn for _ in range(2000) for turn in training_conversation(rng)]
    return [text for turn in turns for text in (turn.user, turn.answer)]


def test_training_sees_nothing_that_is_held_out(training_texts):
    names, numbers = names_and_numbers("\n".join(training_texts))
    assert min(len(names), len(numbers)) > 500
    assert not names & HELD_OUT
    assert not any(map(is_number_held_out, numbers))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_use_only_what_is_held_out(name, training_texts):
    """After a change of the generator: run scripts/quickstart_documents, and train again."""
    drawn = documents(name)
    lines = (tasks_dir() / QUICKSTART / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == drawn
    assert len({document["turns"][0] for document in drawn}) == len(drawn) >= 40
    for document in drawn:
        names, numbers = names_and_numbers("\n".join(document["turns"] + document["answers"]))
        assert names <= HELD_OUT
        assert all(map(is_number_held_out, numbers))
        assert not set(document["answers"][:1]) & set(training_texts)


@pytest.mark.parametrize("problem", programs.PROBLEMS, ids=lambda problem: problem.question[:20])
def test_solutions_are_what_the_programs_print(problem, capsys):
    draw = Draw(random.Random(2), held_out=True)
    numbers = {name: draw.number(*limits) for name, limits in problem.given.items()}
    exec(extract_program(programs.program(problem, numbers)) or "", {})
    assert capsys.readouterr().out == f"{programs.solution(problem, numbers)}\n"


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(0, num_conversations=300)


def test_encoding_follows_the_chat_template_and_any_text_round_trips(tokenizer):
    text = "première line_two\n\n  def f(x):\treturn x_1 + 42  # ≥ \N{GRINNING FACE}"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert len(tokenizer("1234").input_ids) == 4
    turns = training_conversation(random.Random(0))
    ids, learned = encode(tokenizer, turns)
    messages = [
        {"role": role, "content": text}
        for turn in turns
        for role, text in (("user", turn.user), ("assistant", turn.answer))
    ]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False)
    assert tokenizer(rendered).input_ids == ids
    remaining = tokenizer.decode([token for token, is_ in zip(ids, learned, strict=True) if is_])
    assert remaining == "".join(f"{turn.answer}<|end|>" for turn in turns if turn.learned)


def test_an_interrupted_training_resumes(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "_SAVE_SECONDS", -1)  # after every step
    settings = Settings(steps=3, conversations=2, layers=1)
    uninterrupted = Trainer(tokenizer, settings, "commit")
    assert list(uninterrupted.run()) == [1, 2, 3]

    file = tmp_path / "checkpoint.pt"
    for done in Trainer(tokenizer, settings, "commit").run(file):
        if done == 2:
            break
    second = Trainer(tokenizer, settings, "a later commit")
    assert list(second.run(file)) == [3]
    assert (second.losses, second.commit) == (uninterrupted.losses, "commit")
    assert all(map(torch.equal, second.model.parameters(), uninterrupted.model.parameters()))
    for other, named in ((Settings(9, seed=1, layers=1), "seed=0"), (Settings(9), "layers=1")):
        with pytest.raises(DataError, match=named):
            next(Trainer(tokenizer, other, "commit").run(file))
