"""`custom_generate` gives what `model.generate` gives: sequences, scores, streams, noise."""

import copy
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from asking import model_from
from tiny_models import VARIED_FIRST, VOCABULARY, prompts, skip_if_refused, tiny_model
from transformers import BloomConfig, DynamicCache, MaxLengthCriteria, StoppingCriteria

import copyspec_eval
from copyspec_eval.errors import ModelError, OptionError, RequestError

SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": 0.8, "top_k": 40, "top_p": 0.95}
SAMPLED |= {"repetition_penalty": 1.1}
GREEDY: dict[str, Any] = {"do_sample": False}
ENDING = {"eos_token_id": list(range(3, VOCABULARY, 5))}
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": GREEDY | ENDING,
    "processors": GREEDY | {"repetition_penalty": 1.2, "no_repeat_ngram_size": 4},
    "sampled": SAMPLED | ENDING,
}
IN_BOTH_WAYS = pytest.mark.parametrize("settings", [GREEDY, SAMPLED])


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        yield


LENGTHS = (18, 12, 17, 5)
NOT_IN_FLOAT64 = ("gemma2", "gpt_oss", "mixtral")
"""There transformers' experts fail, and its padded rows are NaN (as those of Bloom)."""


def padded(count: int) -> dict[str, torch.Tensor]:
    longest, most = max(prompts(), key=len), LENGTHS[0]
    ids = [[0] * (most - length) + [*longest[:length]] for length in LENGTHS[:count]]
    mask = [[0] * (most - length) + [1] * length for length in LENGTHS[:count]]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


OURS: dict[str, Any] = {"custom_generate": copyspec_eval.custom_generate}
USUAL: dict[str, Any] = {"max_new_tokens": 24, "pad_token_id": 0}


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


@pytest.mark.parametrize(("count", "settings"), [*((4, name) for name in SETTINGS), (1, "sampled")])
@pytest.mark.parametrize("model_type", VARIED_FIRST)
def test_the_sequences_of_generate(model_type: str, count: int, settings: str) -> None:
    skip_if_refused(model_type)
    dtype = torch.float32 if model_type in NOT_IN_FLOAT64 else torch.float64
    both(tiny_model(model_type, dtype), padded(count), **SETTINGS[settings])


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
    both(model, inputs, do_sample=False)


def streamer_into(puts: list[list[int]]) -> Any:
    return SimpleNamespace(
        put=lambda value: puts.append(value.flatten().tolist()), end=lambda: puts.append([])
    )


@pytest.mark.parametrize("is_bound", [False, True])
def test_a_streamer(is_bound: bool) -> None:
    puts: list[list[int]] = []
    streamer, inputs = streamer_into(puts), padded(1)
    given: dict[str, Any] = {**OURS, "streamer": streamer}
    if is_bound:
        streamer.put(inputs["input_ids"])
        given = {"custom_generate": partial(copyspec_eval.custom_generate, streamer=streamer)}
    output = tiny_model("llama", torch.float64).generate(**inputs, **GREEDY, **USUAL, **given)
    assert [token for put in puts for token in put] == output[0].tolist()
    assert puts[3:][-1] == []


def test_options_of_drafting() -> None:
    ask = partial(tiny_model("llama", torch.float64).generate, **padded(1), **GREEDY, **USUAL)
    expected = ask().tolist()
    for options in ({"gamma": 2}, {"drafter": "none"}, {"tree": True}):
        assert ask(**OURS, **options).tolist() == expected


def test_a_model_with_its_model_cache() -> None:
    shape: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4}
    both(model_from(BloomConfig(**shape, eos_token_id=None)), padded(3), do_sample=False)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"num_beams": 2}, RequestError, "beam search"),
        ({"output_attentions": True, "return_dict_in_generate": True}, RequestError, "output_att"),
        ({"drafter": "suffixx"}, OptionError, "did you mean 'suffix'"),
        ({"token_type_ids": torch.zeros(1, 5, dtype=torch.long)}, Exception, "token_type_ids"),
        ({"assistant_model": tiny_model("llama")}, RequestError, "assistant_model"),
    ],
)
def test_what_is_refused(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tiny_model("llama").generate(**padded(1), **OURS, **USUAL, **given)


def test_inputs_that_are_refused() -> None:
    model, inputs = tiny_model("llama"), padded(2)
    ask = partial(model.generate, **OURS, **USUAL, do_sample=False)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    cache = DynamicCache(config=model.config)
    model(ids[:, :4], past_key_values=cache, use_cache=True)
    refused: list[tuple[str, dict[str, Any]]] = [
        ("on the left", {"attention_mask": mask.flip(-1)}),
        ("row 1 of attention_mask has no token", {"attention_mask": mask * mask.new([[1], [0]])}),
        ("attention_mask holds 2; ", {"attention_mask": 2 * mask}),
        (r"attention_mask has the shape \(2, 17\)", {"attention_mask": mask[:, 1:]}),
        ("position_ids", {"position_ids": mask.cumsum(-1)}),
        ("position_ids", {"position_ids": torch.arange(18)[None]}),
        (r"\(Even\) are for one prompt; input_ids have 2", {"stopping_criteria": [Even()]}),
        ("streamer is for one prompt", {"streamer": streamer_into([])}),
        ("past_key_values holds tokens", {"past_key_values": cache}),
    ]
    for message, given in refused:
        with pytest.raises(RequestError, match=message):
            ask(**inputs | given)
    with pytest.raises(ModelError, match="training mode"):
        copy.deepcopy(tiny_model("qwen2")).train().generate(**padded(1), **OURS)
