"""`copyspec_eval.generate` and the package's public names."""

import gc
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from asking import generated
from byte_model import loaded, save_byte_model

import copyspec_eval
from copyspec_eval import generate
from copyspec_eval.errors import CopySpecError

TEXT = "to be or not to be, that is the question: to be or not to"


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`generate` of a small model whose tokens are bytes."""
    folder = tmp_path_factory.mktemp("bytes")
    save_byte_model(folder, eos_factor=1.7)
    return partial(generate, *loaded(folder))


def test_the_public_names() -> None:
    names = ["Answer", "__version__", "custom_generate", "generate"]
    assert dir(copyspec_eval) == copyspec_eval.__all__ == names
    assert all(getattr(copyspec_eval, name) for name in names)
    with pytest.raises(AttributeError, match="no attribute 'generat'"):
        copyspec_eval.generat  # noqa: B018


def test_answers_are_those_of_plain_decoding(ask: Any) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    sample = partial(ask, [TEXT, turns, "abc " * 9], max_new_tokens=80)
    plain, answers, batch = sample(drafter="none"), sample(), sample(batch_size=2, store=True)
    model, tokenizer = ask.args
    assert list(answers[0].token_ids) == generated(model, tokenizer(TEXT)["input_ids"], 80)
    assert [each.token_ids for each in answers] == [each.token_ids for each in plain]
    assert [each.text for each in batch] == [each.text for each in plain]
    assert answers[0].prompt == TEXT
    assert answers[1].prompt == "user: a\nassistant: b\nassistant: "
    assert ask(turns, max_new_tokens=80)[0].text == answers[1].text
    assert max(each.tokens_per_forward for each in answers) > 1.5
    assert all(each.tokens_per_forward == 1 for each in plain)
    assert max(each.copied_share for each in answers) > 0.3
    assert all(each.tokens_per_second > 0 for each in answers)
    assert {each.finish_reason for each in answers} <= {"eos", "length"}


def test_stop_strings_are_cut_off(ask: Any) -> None:
    [whole] = ask(TEXT, max_new_tokens=40)
    stop = whole.text[10:12]
    [answer] = ask(TEXT, max_new_tokens=40, stop=stop)
    assert answer.text == whole.text.partition(stop)[0]
    assert answer.finish_reason == "stop"
    assert answer.whole_text.endswith(stop)


def test_sampling_goes_by_the_seed(ask: Any) -> None:
    sample = partial(ask, [TEXT, TEXT], max_new_tokens=20, do_sample=True)
    first, other = ([each.text for each in sample(seed=seed)] for seed in (0, 1))
    assert first == [each.text for each in sample(drafter="none", batch_size=2)]
    assert len({*first, *other}) == 4


def test_a_conversation_goes_on_where_it_was(ask: Any) -> None:
    question = "x" * 600
    [first] = ask(question, max_new_tokens=4)
    longer = partial(ask, question + first.text + "y", max_new_tokens=4)
    [second], [without] = longer(), longer(prefix_cache=0)
    assert second.counts.num_reused_tokens
    assert not without.counts.num_reused_tokens
    assert second.token_ids == without.token_ids


def test_a_streamer_hears_every_token(ask: Any) -> None:
    received: list[list[int]] = []
    streamer = SimpleNamespace(
        put=lambda value: received.append(value.flatten().tolist()), end=lambda: received.append([])
    )
    [answer] = ask(TEXT, max_new_tokens=40, streamer=streamer)
    prompt, *steps, last = received
    assert prompt == ask.args[1](TEXT)["input_ids"]
    assert [token for step in steps for token in step] == list(answer.token_ids)
    assert last == []
    assert len(steps) == answer.counts.num_forwards


def test_a_draft_model(ask: Any) -> None:
    sample = partial(ask, "qwerty", max_new_tokens=30)
    [answer] = sample(drafter="none", draft_model=ask.args[0], delta=3)
    assert answer.token_ids == sample()[0].token_ids
    assert answer.tokens_per_forward > 2


def test_it_shows_itself_with_marks(ask: Any) -> None:
    [answer] = ask("<b>" * 30, max_new_tokens=40)
    shown = answer._repr_html_()
    assert "<mark" in shown
    assert "<b>" not in shown
    assert "copied from" in shown
    assert f"40 tokens in {answer.counts.num_forwards} forwards" in shown
    plain = replace(answer, text="a & b", whole_text="a & b", spans=(), span_characters=())
    assert "a &amp; b" in plain._repr_html_()


def test_nothing_keeps_a_model_alive(byte_model: Path) -> None:
    model, tokenizer = loaded(byte_model)
    generate(model, tokenizer, "abc", max_new_tokens=2)
    watched = weakref.ref(model)
    del model
    gc.collect()
    assert watched() is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompts": ["a", ""]}, "prompt 1 is empty"),
        ({"prompts": ["a", "b"], "streamer": object()}, "streamer is for one prompt"),
        ({"prompts": torch.tensor([1])}, "prompt 0 is of type Tensor; pass a text or a list of me"),
        ({"model": "gpt2"}, "model is a str; pass a loaded model"),
        ({"tree": True}, "exact=False"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        ({"max_new_token": 9}, r"unknown .* 'max_new_token' \(did you mean 'max_new_tokens'"),
        ({"max_new_tokens": 4000}, "2048 positions"),
        ({"max_length": 9}, "use max_new_tokens"),
        ({"temprature": 1.0}, "unknown generation setting 'temprature'"),
        ({"cache_implementation": "quantized"}, "cache_implementation='quantized'"),
        ({"prefix_cache": "big"}, r"prefix_cache must be a size, e\.g\. 2GB, or 0 .*, got 'big'"),
        ({"store": "runs/base"}, "store must be true"),
    ],
)
def test_options_that_are_refused(ask: Any, options: dict[str, Any], message: str) -> None:
    given = {"prompts": TEXT, "model": ask.args[0], "tokenizer": ask.args[1], **options}
    with pytest.raises(CopySpecError, match=message) as refusal:
        generate(**given)
    assert "\n" not in str(refusal.value)
    assert ask([]) == []
