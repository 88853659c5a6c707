"""`generate`: answers of a loaded model, faster where they repeat what is in the prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from copyspec_eval.api.answers import Answer
from copyspec_eval.decoding.draft_model import DraftModel
from copyspec_eval.decoding.model_copy import one_at_a_time
from copyspec_eval.decoding.sequence import Sequence as Request
from copyspec_eval.drafters.registry import drafter_factory
from copyspec_eval.errors import OptionError, RequestError
from copyspec_eval.session.requests import SequenceBuilder
from copyspec_eval.session.session import Arm, Session, checked_draft_model
from copyspec_eval.session.settings import draft_options, parse_arms, parse_bytes
from copyspec_eval.session.span_characters import span_characters
from copyspec_eval.types import PAPER_DELTA, DraftOptions, Generation

Message = Mapping[str, Any]
Prompt = str | Sequence[Message]
"""A text as it is, or a conversation for the chat template."""

_INSTEAD = {
    "max_length": "max_new_tokens",
    "max_time": "max_new_tokens",
    "num_return_sequences": "the prompt several times",
    "stop_strings": "stop",
}


class Streamer(Protocol):
    """transformers' interface of e.g. its `TextStreamer`."""

    def put(self, value: torch.Tensor) -> None: ...
    def end(self) -> None: ...


def generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Prompt | Sequence[Prompt],
    *,
    max_new_tokens: int = 512,
    stop: str | Sequence[str] = (),
    drafter: str | None = None,
    gamma: int | None = None,
    num_draft_tokens: int | None = None,
    store: bool = False,
    tree: bool = False,
    recycle: bool = False,
    draft_model: PreTrainedModel | None = None,
    delta: int = PAPER_DELTA,
    exact: bool = True,
    batch_size: int = 1,
    prefix_cache: int | str = "2GB",
    seed: int = 0,
    streamer: Streamer | None = None,
    **settings: Any,
) -> list[Answer]:
    """Answer prompts with a loaded model, greedily or by sampling, as its own settings say.

    The first call for a model tries its cache and measures its steps, which takes seconds. Later
    calls reuse the results as long as the model's weights stay the same.

    Args:
        model: a decoder-only model of transformers, loaded and in evaluation mode.
        tokenizer: the model's.
        prompts: a text, which is read as it is; a conversation, i.e. a list of messages such as
            `{"role": "user", "content": "…"}`, to which the tokenizer's chat template is applied;
            or a list of such prompts.
        max_new_tokens: the most tokens of an answer.
        stop: a text, or several, that end an answer and are cut off its `text`.
        drafter: `suffix`, `copyspec` (the paper's rule) or `none`; by default `suffix`, or
            `copyspec` where `gamma` is given.
        gamma: the paper's γ: how many trailing tokens must have occurred before.
        num_draft_tokens: the most tokens of a draft; by default the drafter's own number.
        store: also copy from the call's earlier answers.
        tree: draft several continuations at once; needs `exact=False`.
        recycle: fill such trees with the runners-up of the model's own logits.
        draft_model: a smaller loaded model of the same tokenizer, which drafts where the drafter
            does not.
        delta: how many tokens the draft model proposes at a time.
        exact: whether the tokens are those of plain decoding, bit for bit, whatever was drafted.
        batch_size: prompts answered side by side.
        prefix_cache: the most memory, in bytes or e.g. "2GB", for keys and values of earlier
            prompts and answers, which a longer prompt then reuses; 0 for none.
        seed: of the random numbers, if the answers are sampled.
        streamer: gets a single prompt's tokens as they come, e.g. transformers' `TextStreamer`.
        **settings: of transformers' `GenerationConfig`, over the model's own: `do_sample`,
            `temperature`, `repetition_penalty`, …

    Returns:
        one answer per prompt, in their order; a single prompt gives a list of one.

    Raises:
        OptionError, ModelError, RequestError: an option is not possible, the model cannot be
            served, or a prompt is empty or leaves no room for an answer. Each is one line.
    """
    options = python_options(
        drafter,
        gamma,
        exact,
        num_draft_tokens=num_draft_tokens,
        store=store,
        tree=tree,
        recycle=recycle,
        draft_model=None if draft_model is None else type(draft_model).__name__,
        delta=delta,
    )
    if not isinstance(model, torch.nn.Module):
        raise RequestError(
            f"model is a {type(model).__name__}; pass a loaded model, e.g. "
            "AutoModelForCausalLM.from_pretrained(NAME)"
        )
    if not isinstance(batch_size, int) or batch_size < 1:
        raise OptionError(f"batch_size must be at least 1, got {batch_size!r}")
    prefix_bytes = parse_bytes("prefix_cache", prefix_cache)
    stops = [stop] if isinstance(stop, str) else list(stop)

    def decode(token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return str(tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    for name in settings.keys() & _INSTEAD.keys():
        raise RequestError(f"{name} is not read; use {_INSTEAD[name]} instead")
    if not isinstance(max_new_tokens, int) or max_new_tokens < 1:
        raise RequestError(f"max_new_tokens must be at least 1, got {max_new_tokens!r}")
    builder, on_commit = SequenceBuilder(tokenizer.pad_token_id, decode), put_to(streamer)
    requests = [
        builder.build(model, prompt_ids, settings, max_new_tokens, stops, seed, on_commit=on_commit)
        for prompt_ids in _token_ids(tokenizer, prompts, max_new_tokens, model)
    ]
    if streamer is not None and len(requests) != 1:
        raise OptionError(f"streamer is for one prompt, not {len(requests)}; pass one at a time")
    with one_at_a_time(model, draft_model):
        session = Session(model, tokenizer, [options], exact=exact, rows=batch_size)
        drafts = None
        if draft_model is not None:
            drafts = DraftModel(checked_draft_model(draft_model), delta)
        arm = Arm(options, drafter_factory(options), session.prefix_cache(prefix_bytes), drafts)
        engine = session.engine(arm, batch_size)
        engine.check(requests)
        if streamer is not None:
            streamer.put(torch.tensor([requests[0].prompt_ids]))
        generations = engine.generate(requests)
    if streamer is not None:
        streamer.end()
    return [
        _answer(request, generation, stops, decode)
        for request, generation in zip(requests, generations, strict=True)
    ]


def python_options(
    drafter: str | None, gamma: int | None, exact: bool, **others: Any
) -> DraftOptions:
    """As `draft_options`, checked; `store` is a switch here."""
    options = draft_options(drafter, gamma, **others)
    if options.store_paths:
        raise OptionError(f"store must be True or False, got {options.store!r}")
    return parse_arms(options, exact=exact)[0]


def _answer(
    request: Request, generation: Generation, stops: Sequence[str], decode: Callable[..., str]
) -> Answer:
    text = decode(generation.token_ids, skip_special_tokens=True)
    for stop in stops:
        text = text.partition(stop)[0]
    token_ids, spans = generation.token_ids, generation.spans
    texts = span_characters(decode, request.prompt_ids, token_ids, spans)
    return Answer(text, token_ids, spans, generation.counts, generation.attempts, *texts)


def _token_ids(
    tokenizer: PreTrainedTokenizerBase,
    prompts: Prompt | Sequence[Prompt],
    max_new_tokens: int,
    model: PreTrainedModel,
) -> Iterator[list[int]]:
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    is_list = isinstance(prompts, Sequence) and not isinstance(prompts, str)
    is_one = not is_list or (len(prompts) and isinstance(prompts[0], Mapping))
    for number, prompt in enumerate([prompts] if is_one else prompts):
        text: Any = prompt
        is_text = isinstance(prompt, str)
        if not is_text:
            if not isinstance(prompt, Sequence):
                raise RequestError(
                    f"prompt {number} is of type {type(prompt).__name__}; pass a text or a list of "
                    "messages, and token ids through model.generate with custom_generate"
                )
            if not getattr(tokenizer, "chat_template", None):
                raise OptionError("the tokenizer has no chat template; pass texts, not messages")
            messages: Any = list(prompt)
            text = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        token_ids: list[int] = tokenizer(text, add_special_tokens=is_text)["input_ids"]
        if not token_ids:
            raise RequestError(f"prompt {number} is empty; a model needs a token to go on from")
        if most is not None and len(token_ids) + max_new_tokens > most:
            raise RequestError(
                f"a prompt of {len(token_ids)} tokens and max_new_tokens={max_new_tokens} exceed "
                f"the model's {most} positions; shorten one of them"
            )
        yield token_ids


def put_to(streamer: Streamer | None) -> Callable[[list[int]], None]:
    if streamer is None:
        return lambda token_ids: None
    return lambda token_ids: streamer.put(torch.tensor(token_ids))
