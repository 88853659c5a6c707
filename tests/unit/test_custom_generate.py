"""`custom_generate` gives what `model.generate` gives: sequences, scores, streams, noise."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from tiny_models import ARCHITECTURES, VOCABULARY, prompts, skip_if_refused, tiny_model
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    DynamicCache,
    MaxLengthCriteria,
    StoppingCriteria,
)

import copyspec_eval
from copyspec_eval.errors import ModelError, OptionError, RequestError

SAMPLED = {
    "do_sample": True,
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.95,
    "repetition_penalty": 1.1,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "processors": {"do_sample": False, "repetition_penalty": 1.2, "no_repeat_ngram_size": 4},
    "sampled": SAMPLED,
}


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        yield


LENGTHS = (18, 12, 17, 5)
NOT_IN_FLOAT64 = ("gemma2", "gpt_oss", "mixtral")
"""There transformers' experts fail, and its padded rows are NaN (as those of Bloom)."""


def padded(count: int) -> dict[str, torch.Tensor]:
    """Inputs of some prompts, padded on the left with token 0."""
    longest = sorted(prompts(), key=len)[-1]
    rows = [longest[:length] for length in LENGTHS[:count]]
    most = max(map(len, rows))
    ids = [[0] * (most - len(row)) + list(row) for row in rows]
    mask = [[0] * (most - len(row)) + [1] * len(row) for row in rows]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def both(model: Any, inputs: dict[str, torch.Tensor], **settings: Any) -> tuple[Any, Any]:
    """Twice in a row by plain `generate`, and by ours, from the same seed."""
    answers = []
    for custom in (None, copyspec_eval.custom_generate):
        torch.manual_seed(5)
        given = {"max_new_tokens": 24, "pad_token_id": 0} | settings
        answers.append(
            [model.generate(**inputs, custom_generate=custom, **given) for _ in range(2)]
        )
    return answers[0], answers[1]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_the_sequences_of_generate(model_type: str, count: int, settings: str) -> None:
    skip_if_refused(model_type)
    dtype = torch.float32 if model_type in NOT_IN_FLOAT64 else torch.float64
    theirs, ours = both(tiny_model(model_type, dtype), padded(count), **SETTINGS[settings])
    for one, other in zip(theirs, ours, strict=True):
        assert one.tolist() == other.tolist()
        assert one.dtype == other.dtype


@pytest.mark.parametrize("settings", [{"do_sample": False}, SAMPLED])
@pytest.mark.parametrize("count", [1, 4])
def test_rows_that_end_alone(count: int, settings: dict[str, Any]) -> None:
    eos = {"eos_token_id": list(range(3, VOCABULARY, 5))}
    theirs, ours = both(tiny_model("llama", torch.float64), padded(count), **settings, **eos)
    for one, other in zip(theirs, ours, strict=True):
        assert one.tolist() == other.tolist()
    lengths = (theirs[0] != 0).sum(-1)
    assert theirs[0].shape[1] < padded(count)["input_ids"].shape[1] + 24 or len(set(lengths)) > 1


def test_scores_and_logits() -> None:
    model = tiny_model("qwen2", torch.float64)
    settings = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    [theirs, _], [ours, _] = both(model, padded(2), **settings, **SAMPLED)
    assert type(theirs) is type(ours)
    assert theirs.sequences.tolist() == ours.sequences.tolist()
    for name in ("scores", "logits"):
        one, other = torch.stack(theirs[name]), torch.stack(ours[name])
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


class Even(StoppingCriteria):
    """Ends where prompt and answer have enough even tokens."""

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        return (input_ids % 2 == 0).sum(-1) >= 14


class Unsure(StoppingCriteria):
    """Ends at the third step whose best score is low; it has a state, and reads all scores."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        self.calls += 1
        best = torch.stack([step.softmax(-1).amax(-1) for step in scores])
        assert len(best) == input_ids.shape[1] - padded(1)["input_ids"].shape[1]
        return (best < 0.5).sum(0) >= 3


@pytest.mark.parametrize("settings", [{"do_sample": False}, SAMPLED])
def test_stopping_criteria(settings: dict[str, Any]) -> None:
    model, inputs = tiny_model("llama", torch.float64), padded(1)
    length = inputs["input_ids"].shape[1]
    theirs, ours = both(model, inputs, **settings, stopping_criteria=[Even()])
    assert theirs[0].tolist() == ours[0].tolist()
    assert theirs[0].shape[1] < length + 24
    theirs, ours = both(
        model, inputs, **settings, stopping_criteria=[MaxLengthCriteria(length + 9)]
    )
    assert theirs[0].tolist() == ours[0].tolist()
    assert theirs[0].shape[1] == length + 9


@pytest.mark.parametrize("settings", [{"do_sample": False}, SAMPLED])
def test_a_criterion_that_reads_scores_and_counts_its_calls(settings: dict[str, Any]) -> None:
    model, inputs, unsure = tiny_model("llama", torch.float64), padded(1), Unsure()
    theirs, ours = both(
        model,
        inputs,
        stopping_criteria=[unsure],
        return_dict_in_generate=True,
        output_scores=True,
        **settings,
    )
    assert theirs[0].sequences.tolist() == ours[0].sequences.tolist()
    num_tokens = [each.sequences.shape[1] - inputs["input_ids"].shape[1] for each in theirs]
    assert min(num_tokens) < 24
    assert unsure.calls == 2 * sum(num_tokens)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.float32])
def test_positions_and_masks_as_transformers_prepares_them(dtype: torch.dtype) -> None:
    model, inputs = tiny_model("llama", torch.float64), padded(3)
    mask = inputs["attention_mask"]
    inputs["position_ids"] = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 7)
    inputs["attention_mask"] = mask.to(dtype)
    theirs, ours = both(model, inputs, do_sample=False)
    assert theirs[0].tolist() == ours[0].tolist()


class Heard:
    """A streamer that remembers."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.puts = 0
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        self.puts += 1
        self.tokens += value.flatten().tolist()

    def end(self) -> None:
        self.ended = True


@pytest.mark.parametrize("is_bound", [False, True])
def test_a_streamer(is_bound: bool) -> None:
    model, received = tiny_model("llama", torch.float64), Heard()
    inputs = padded(1)
    if is_bound:
        received.put(inputs["input_ids"])
        given: dict[str, Any] = {
            "custom_generate": partial(copyspec_eval.custom_generate, streamer=received)
        }
    else:
        given = {"custom_generate": copyspec_eval.custom_generate, "streamer": received}
    output = model.generate(**inputs, do_sample=False, max_new_tokens=24, pad_token_id=0, **given)
    assert received.tokens == output[0].tolist()
    assert received.ended
    assert received.puts > 2


def test_options_of_drafting() -> None:
    model = tiny_model("llama", torch.float64)
    expected = model.generate(**padded(1), do_sample=False, max_new_tokens=24, pad_token_id=0)
    for options in ({"gamma": 2}, {"drafter": "none"}, {"tree": True, "recycle": True}):
        ours = model.generate(
            **padded(1),
            do_sample=False,
            max_new_tokens=24,
            pad_token_id=0,
            custom_generate=copyspec_eval.custom_generate,
            **options,
        )
        assert ours.tolist() == expected.tolist()


def test_a_model_with_its_model_cache() -> None:
    auto: Any = AutoModelForCausalLM
    shape: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4}
    torch.manual_seed(0)
    model = auto.from_config(BloomConfig(**shape, eos_token_id=None)).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    theirs, ours = both(model, padded(3), do_sample=False)
    assert theirs[0].tolist() == ours[0].tolist()


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
        tiny_model("llama").generate(
            **padded(1),
            custom_generate=copyspec_eval.custom_generate,
            max_new_tokens=4,
            pad_token_id=0,
            **given,
        )


def test_inputs_that_are_refused() -> None:
    model, inputs = tiny_model("llama"), padded(2)
    ask = partial(
        model.generate,
        custom_generate=copyspec_eval.custom_generate,
        max_new_tokens=4,
        pad_token_id=0,
        do_sample=False,
    )
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    with pytest.raises(RequestError, match="on the left"):
        ask(ids, attention_mask=mask.flip(-1))
    with pytest.raises(RequestError, match=r"row 1 of attention_mask has no token"):
        ask(ids, attention_mask=mask * torch.tensor([[1], [0]]))
    with pytest.raises(RequestError, match="attention_mask holds 2; "):
        ask(ids, attention_mask=2 * mask)
    with pytest.raises(RequestError, match=r"attention_mask has the shape \(2, 17\)"):
        ask(ids, attention_mask=mask[:, 1:])
    for others in (mask.cumsum(-1), torch.arange(18)[None]):
        with pytest.raises(RequestError, match="position_ids"):
            ask(**inputs, position_ids=others)
    with pytest.raises(RequestError, match=r"\(Even\) are for one prompt; input_ids have 2"):
        ask(**inputs, stopping_criteria=[Even()])
    with pytest.raises(RequestError, match="streamer is for one prompt"):
        ask(**inputs, streamer=Heard())
    cache = DynamicCache(config=model.config)
    model(inputs["input_ids"][:, :4], past_key_values=cache, use_cache=True)
    with pytest.raises(RequestError, match="past_key_values holds tokens"):
        ask(**inputs, past_key_values=cache)
    training = tiny_model("qwen2", torch.float32).train()
    try:
        with pytest.raises(ModelError, match="training mode"):
            training.generate(
                **padded(1), custom_generate=copyspec_eval.custom_generate, max_new_tokens=4
            )
    finally:
        training.eval()
