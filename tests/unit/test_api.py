"""What Python calls: `generate`, and `custom_generate` as transformers' own decoding."""

import copy
import gc
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from asking import generated, model_from
from byte_model import loaded
from tiny_models import ARCHITECTURES, VOCABULARY, prompts, skip_if_refused, tiny_model
from transformers import BloomConfig, DynamicCache, MaxLengthCriteria, StoppingCriteria

import copyspec_eval
from copyspec_eval import generate
from copyspec_eval.errors import CopySpecError, ModelError, RequestError
from copyspec_eval.paths import TINY, model_path

TEXT = "to be or not to be, that is the question: to be or not to"


@pytest.fixture(scope="module")
def ask(byte_model: Path) -> Any:
    return partial(generate, *loaded(byte_model))


def streamer() -> Any:
    """With the `puts` that it got, and an empty one for the end."""
    puts: list[list[int]] = []
    made = SimpleNamespace(puts=puts, end=lambda: puts.append([]))
    made.put = lambda token_ids: puts.append(token_ids.flatten().tolist())
    return made


def test_the_public_names() -> None:
    names = ["Answer", "__version__", "custom_generate", "generate", "stream"]
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
    hearing = streamer()
    [answer] = ask(TEXT, max_new_tokens=40, streamer=hearing)
    prompt, *steps, last = hearing.puts
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
    assert "copied from" in shown
    assert "<b>" not in shown
    assert f"40 tokens in {answer.counts.num_forwards} forwards" in shown
    plain = replace(answer, whole_text="a & b\nc", spans=(), span_characters=())
    assert "a &amp; b<br>c" in plain._repr_html_()


def test_its_repr_is_a_line_of_text_and_figures(ask: Any) -> None:
    [answer] = ask(TEXT, max_new_tokens=40)
    shown = repr(replace(answer, text="tea\n" * 90))
    assert shown.startswith(r"Answer('tea\ntea\n")
    assert "\n" not in shown
    assert f"…', length: 40 tokens in {answer.counts.num_forwards} forwards (" in shown
    assert len(shown) < 200


def test_a_name_is_as_good_as_a_loaded_model(ask: Any, byte_model: Path, monkeypatch: Any) -> None:
    [answer] = ask(TEXT, max_new_tokens=20)
    name = str(byte_model)
    for model, tokenizer in ((name, None), (name, name), (ask.args[0], name), (name, ask.args[1])):
        [other] = generate(model, tokenizer, TEXT, max_new_tokens=20)
        assert other.token_ids == answer.token_ids
    asked: dict[str, Any] = {}

    def load(source: str, **options: Any) -> Any:
        asked.update(options, source=source)
        return ask.args[0]

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", load)
    assert generate(TINY, prompts="a", max_new_tokens=2)
    assert asked == {"source": model_path(TINY)}, "all else is as transformers has it"


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
        (
            {"prompts": torch.tensor([1])},
            "prompt 0 is neither text .* item of type Tensor; for token",
        ),
        (
            {"prompts": [1, 2]},
            "prompt 0 is neither text .* it has an item of type int; for token ids, use",
        ),
        ({"prompts": [[1, 2]]}, "prompt 0 is neither text .* it has an item of type int; for"),
        ({"prompts": None}, "there are no prompts; pass prompts=TEXT"),
        ({"model": "no/such", "tokenizer": None}, "model='no/such' cannot be loaded: "),
        ({"model": "no/such", "prompts": None}, "there are no prompts; pass prompts=TEXT"),
        ({"model": 5}, "model is of type int; pass a loaded model, or the name of one"),
        ({"tokenizer": None}, "a loaded model needs its tokenizer; pass tokenizer"),
        ({"tokenizer": 5}, "tokenizer is of type int; pass a loaded one, or the name of one"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        ({"max_new_token": 9}, r"unknown .* 'max_new_token' \(did you mean 'max_new_tokens'"),
        ({"max_new_tokens": 4000}, "2048 positions"),
        ({"max_length": 9}, "use max_new_tokens"),
        ({"cache_implementation": "quantized"}, "cache_implementation='quantized'"),
        ({"store": "runs/base"}, "store must be true"),
        ({"store": ("runs/base",)}, "store must be true"),
    ],
)
def test_options_that_are_refused(ask: Any, options: dict[str, Any], message: str) -> None:
    given = {"prompts": TEXT, "model": ask.args[0], "tokenizer": ask.args[1], **options}
    with pytest.raises(CopySpecError, match=message) as refusal:
        generate(**given)
    assert "\n" not in str(refusal.value)
    assert ask([]) == []


SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": 0.8, "top_k": 40, "top_p": 0.95}
SAMPLED |= {"repetition_penalty": 1.1}
GREEDY: dict[str, Any] = {"do_sample": False}
PROCESSED: dict[str, Any] = GREEDY | {"repetition_penalty": 1.2, "no_repeat_ngram_size": 4}
IN_BOTH_WAYS = pytest.mark.parametrize("settings", [GREEDY, SAMPLED])
LENGTHS = (18, 12, 17, 5)
NOT_IN_FLOAT64 = ("gemma2", "gpt_oss", "mixtral")
"""There transformers' experts fail, and its padded rows are NaN (as those of Bloom)."""
OURS: dict[str, Any] = {"custom_generate": copyspec_eval.custom_generate}
USUAL: dict[str, Any] = {"max_new_tokens": 24, "pad_token_id": 0}


def padded(count: int) -> dict[str, torch.Tensor]:
    longest, most = max(prompts(), key=len), LENGTHS[0]
    ids = [[0] * (most - length) + [*longest[:length]] for length in LENGTHS[:count]]
    mask = [[0] * (most - length) + [1] * length for length in LENGTHS[:count]]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def both(model: Any, inputs: dict[str, torch.Tensor], **settings: Any) -> tuple[Any, Any]:
    """Twice in a row by plain `generate`, and by ours, from the same seed; the same sequences."""
    answers = []
    for custom in ({}, OURS):
        torch.manual_seed(5)
        given = {**USUAL, **custom, **settings}
        answers.append([model.generate(**inputs, **given) for _ in range(2)])
    for one, other in zip(*answers, strict=True):
        assert type(one) is type(other)
        one, other = (getattr(each, "sequences", each) for each in (one, other))
        assert one.tolist() == other.tolist()
        assert one.dtype == other.dtype
    return answers[0], answers[1]


MORE = [(4, PROCESSED), (1, GREEDY), (1, PROCESSED), (1, SAMPLED)]


@pytest.mark.parametrize(
    ("count", "settings"),
    [(4, GREEDY), (4, SAMPLED), *(pytest.param(*each, marks=pytest.mark.slow) for each in MORE)],
)
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_the_sequences_of_generate(model_type: str, count: int, settings: dict[str, Any]) -> None:
    skip_if_refused(model_type)
    dtype = torch.float32 if model_type in NOT_IN_FLOAT64 else torch.float64
    both(tiny_model(model_type, dtype), padded(count), **settings)


@IN_BOTH_WAYS
@pytest.mark.parametrize("count", [1, 4])
def test_rows_that_end_alone(count: int, settings: dict[str, Any]) -> None:
    eos = {"eos_token_id": list(range(3, VOCABULARY, 5))}
    [answer, _], _ = both(tiny_model("llama", torch.float64), padded(count), **settings, **eos)
    lengths = (answer != 0).sum(-1)
    assert answer.shape[1] < LENGTHS[0] + 24 or len(set(lengths)) > 1


def test_scores_and_logits() -> None:
    settings = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    model = tiny_model("qwen2", torch.float64)
    [theirs, _], [ours, _] = both(model, padded(2), **settings, **SAMPLED)
    for name in ("scores", "logits"):
        one, other = torch.stack(theirs[name]), torch.stack(ours[name])
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


class Even(StoppingCriteria):
    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        return (input_ids % 2 == 0).sum(-1) >= 14


class Unsure(StoppingCriteria):
    """Ends at the third step whose best score is low; it has a state, and reads all scores."""

    calls = 0

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        self.calls += 1
        best = torch.stack([step.softmax(-1).amax(-1) for step in scores])
        assert len(best) == input_ids.shape[1] - LENGTHS[0]
        return (best < 0.5).sum(0) >= 3


@IN_BOTH_WAYS
def test_stopping_criteria(settings: dict[str, Any]) -> None:
    ask = partial(both, tiny_model("llama", torch.float64), padded(1), **settings)
    for criterion, most in ((Even(), 23), (MaxLengthCriteria(LENGTHS[0] + 9), 9)):
        [answer, _], _ = ask(stopping_criteria=[criterion])
        assert answer.shape[1] <= LENGTHS[0] + most
    unsure = Unsure()
    with_scores = {"return_dict_in_generate": True, "output_scores": True}
    theirs, _ = ask(stopping_criteria=[unsure], **with_scores)
    num_tokens = [each.sequences.shape[1] - LENGTHS[0] for each in theirs]
    assert min(num_tokens) < 24
    assert unsure.calls == 2 * sum(num_tokens), "a criterion may count its calls"


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.float32])
def test_positions_and_masks_as_transformers_prepares_them(dtype: torch.dtype) -> None:
    model, inputs = tiny_model("llama", torch.float64), padded(3)
    mask = inputs["attention_mask"]
    inputs["position_ids"] = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 7)
    inputs["attention_mask"] = mask.to(dtype)
    both(model, inputs, **GREEDY)


@pytest.mark.parametrize("is_bound", [False, True])
def test_a_streamer_of_transformers(is_bound: bool) -> None:
    inputs, hearing = padded(1), streamer()
    given: dict[str, Any] = {**OURS, "streamer": hearing}
    if is_bound:
        hearing.put(inputs["input_ids"])
        given = {"custom_generate": partial(copyspec_eval.custom_generate, streamer=hearing)}
    output = tiny_model("llama", torch.float64).generate(**inputs, **GREEDY, **USUAL, **given)
    assert [token for put in hearing.puts for token in put] == output[0].tolist()
    assert hearing.puts[-1] == []
    assert len(hearing.puts) > 3


def test_options_of_drafting() -> None:
    ask = partial(tiny_model("llama", torch.float64).generate, **padded(1), **GREEDY, **USUAL)
    expected = ask().tolist()
    for options in ({"gamma": 2}, {"drafter": "none"}, {"tree": True}):
        assert ask(**OURS, **options).tolist() == expected


def test_a_model_with_its_model_cache() -> None:
    shape: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4}
    both(model_from(BloomConfig(**shape, eos_token_id=None)), padded(3), **GREEDY)


MASK = padded(2)["attention_mask"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_beams": 2}, "beam search"),
        ({"output_attentions": True, "return_dict_in_generate": True}, "output_att"),
        ({"drafter": "suffixx"}, "did you mean 'suffix'"),
        ({"token_type_ids": torch.zeros(1, 5, dtype=torch.long)}, "token_type_ids"),
        ({"assistant_model": tiny_model("llama")}, "assistant_model"),
        ({"attention_mask": MASK.flip(-1)}, "attention_mask is not, .* pad prompts on the left"),
        ({"attention_mask": MASK * MASK.new([[1], [0]])}, "leave rows without a token out"),
        ({"attention_mask": 2 * MASK}, "attention_mask is not, in each row, zeros .* by a one"),
        ({"attention_mask": MASK[:, 1:]}, "followed by a one for each token"),
        ({"position_ids": MASK.cumsum(-1)}, "position_ids"),
        ({"position_ids": torch.arange(18)[None]}, "position_ids"),
        ({"stopping_criteria": [Even()]}, r"\(Even\) are for one prompt; input_ids have 2"),
        ({"streamer": streamer()}, "streamer is for one prompt"),
    ],
)
def test_what_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises((CopySpecError, ValueError), match=message):
        tiny_model("llama").generate(**padded(2) | {**OURS, **USUAL, **GREEDY, **given})


def test_models_and_caches_that_are_refused() -> None:
    model, inputs = copy.deepcopy(tiny_model("qwen2")), padded(1)
    cache = DynamicCache(config=model.config)
    model(inputs["input_ids"][:, :4], past_key_values=cache, use_cache=True)
    with pytest.raises(RequestError, match="past_key_values holds tokens"):
        model.generate(**inputs, **OURS, **USUAL, past_key_values=cache)
    with pytest.raises(ModelError, match="training mode"):
        model.train().generate(**inputs, **OURS)
