"""`generate`: answers of a loaded model, faster where they repeat the prompt."""

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from copyspec_eval import types
from copyspec_eval.decoding.draft_model import DraftModel
from copyspec_eval.decoding.sequence import Sequence as Request
from copyspec_eval.drafters.registry import drafter_factory
from copyspec_eval.errors import OptionError, RequestError
from copyspec_eval.paths import model_path
from copyspec_eval.records import SpanCharacters, segments
from copyspec_eval.session.loading import loading
from copyspec_eval.session.requests import SequenceBuilder
from copyspec_eval.session.session import Arm, Session, checked_draft_model, one_at_a_time
from copyspec_eval.session.settings import check_bool, draft_options, parse_arms, parse_bytes
from copyspec_eval.session.span_characters import span_characters

Prompt = str | Sequence[Mapping[str, Any]]
"""A text as it is, or a conversation for the chat template."""
_MARK = "background:rgba(255,176,0,.35);border-radius:3px"
_LONGEST_BEGINNING = 60  # characters of an answer in its repr
_LONGEST_SOURCE = 60  # characters of a source in a tooltip
_INSTEAD = dict.fromkeys(("max_length", "max_time"), "max_new_tokens")
_INSTEAD |= {"num_return_sequences": "the prompt several times", "stop_strings": "stop"}


@dataclass(frozen=True, slots=True, repr=False)
class Answer:
    """One answered prompt; a notebook shows it with its copied text marked.

    Attributes:
        text: the answer without special tokens, cut before a stop string.
        token_ids: as generated, with the EOS token if it ended on one.
        spans: the stretches of `token_ids` that were copied, and where from.
        counts: forwards, drafted and accepted tokens, seconds.
        attempts: the forwards that verified a draft, in order.
        prompt: the prompt as the model read it, special tokens included.
        whole_text: the text of `token_ids`, special tokens included.
        span_characters: where the spans stand in `whole_text`, and their sources in prompt and
            `whole_text` together.
    """

    text: str
    token_ids: tuple[int, ...]
    spans: tuple[types.Span, ...]
    counts: types.TurnCounts
    attempts: tuple[types.Attempt, ...]
    prompt: str
    whole_text: str
    span_characters: tuple[SpanCharacters, ...]

    @property
    def finish_reason(self) -> types.FinishReason | None:
        """`eos`, `stop` (a stop string, or another criterion) or `length`."""
        return self.counts.finish_reason

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of this answer, with its prefill."""
        return len(self.token_ids) / (self.counts.seconds or float("nan"))

    @property
    def tokens_per_forward(self) -> float:
        """Tokens per forward, of which the prefill is one; 1 without drafts."""
        return len(self.token_ids) / (self.counts.num_forwards or 1)

    @property
    def copied_share(self) -> float:
        """Share of the tokens that were copied, between 0 and 1."""
        drafts = self.counts.drafts or {}
        copied = sum(drafts[source].num_accepted for source in types.COPIED if source in drafts)
        return copied / len(self.token_ids)

    def __repr__(self) -> str:
        """The beginning of the text, what ended it, and the figures, on one line."""
        cut = "…" if len(self.text) > _LONGEST_BEGINNING else ""
        text = self.text[:_LONGEST_BEGINNING] + cut
        return f"Answer({text!r}, {self.finish_reason}: {self._figures()})"

    def _repr_html_(self) -> str:
        """The answer for a notebook: copied text marked, its source in the tooltip.

        GitHub removes all styles, so elements alone have to tell copied text and lines.
        """
        return (
            f'<div style="white-space:pre-wrap">{"".join(self._pieces())}</div>'
            f'<div style="opacity:.7;font-size:85%">{self._figures()}</div>'
        )

    def _figures(self) -> str:
        return (
            f"{len(self.token_ids)} tokens in {self.counts.num_forwards} forwards "
            f"({self.tokens_per_forward:.2f} a forward), {self.copied_share:.0%} copied, "
            f"{self.tokens_per_second:.0f} tokens/s"
        )

    def _pieces(self) -> Iterator[str]:
        for piece, *source in segments(self.whole_text, self.span_characters):
            text = html.escape(piece).replace("\n", "<br>")
            if source:
                title = html.escape(self._source_text(*source), quote=True)
                text = f'<b style="font-weight:inherit">{text}</b>'
                text = f'<mark style="{_MARK};color:inherit" title="{title}">{text}</mark>'
            yield text

    def _source_text(self, start: int, end: int) -> str:
        if start < 0:
            return "from an earlier answer"
        copied = (self.prompt + self.whole_text)[start:end]
        where = "the prompt" if start < len(self.prompt) else "this answer"
        cut = "…" if len(copied) > _LONGEST_SOURCE else ""
        return f"copied from {where}: {copied[:_LONGEST_SOURCE]}{cut}"


def generate(
    model: PreTrainedModel | str,
    tokenizer: PreTrainedTokenizerBase | str | None = None,
    prompts: Prompt | Sequence[Prompt] | None = None,
    *,
    max_new_tokens: int = 512,
    stop: str | Sequence[str] = (),
    drafter: str | None = None,
    gamma: int | None = None,
    num_draft_tokens: int | None = None,
    store: bool = False,
    tree: bool = False,
    draft_model: PreTrainedModel | None = None,
    delta: int = types.PAPER_DELTA,
    exact: bool = True,
    batch_size: int = 1,
    prefix_cache: int | str = "2GB",
    seed: int = 0,
    streamer: Any = None,
    **settings: Any,
) -> list[Answer]:
    """Answer prompts with a model, greedily or by sampling, as its generation config says.

    The first call for a model tests its cache and its exact mode, which takes seconds. Later calls
    reuse the results as long as the model's weights stay the same.

    Args:
        model: a decoder-only model of transformers, loaded and in evaluation mode; or a Hub name or
            folder, which this call loads as transformers does: `generate(NAME, prompts=…)`.
        tokenizer: the model's, or its name; by default the one of that name or folder.
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
        draft_model: a smaller loaded model of the same tokenizer, which drafts where the drafter
            does not.
        delta: how many tokens the draft model proposes at a time.
        exact: whether the tokens are those of plain decoding, bit for bit, whatever was drafted.
        batch_size: how many prompts are decoded together.
        prefix_cache: the most memory, in bytes or e.g. "2GB", for keys and values of earlier
            prompts and answers, which a longer prompt then reuses; 0 for none.
        seed: of the random numbers that sampled answers use.
        streamer: receives a single prompt's tokens, e.g. transformers' `TextStreamer`.
        **settings: of transformers' `GenerationConfig`, over the model's own: `do_sample`,
            `temperature`, `repetition_penalty`, …

    Returns:
        one answer per prompt, in their order; a single prompt gives a list of one.

    Raises:
        OptionError, ModelError, RequestError: an option is invalid, the model is not supported, or
            a prompt is empty or leaves no room for an answer. Each message is one line.
    """
    chosen: dict[str, Any] = {"num_draft_tokens": num_draft_tokens, "delta": delta}
    chosen |= {"store": check_bool("store", store), "tree": tree}
    chosen["draft_model"] = None if draft_model is None else type(draft_model).__name__
    [options] = parse_arms(draft_options(drafter, gamma, **chosen), exact=exact)
    for name, value in (("batch_size", batch_size), ("max_new_tokens", max_new_tokens)):
        if not isinstance(value, int) or value < 1:
            raise OptionError(f"{name} must be at least 1, got {value!r}")
    prefix_bytes = parse_bytes("prefix_cache", prefix_cache)
    if prompts is None:
        raise RequestError("there are no prompts; pass prompts=TEXT or a list")
    model, tokenizer = model_and_tokenizer(model, tokenizer)
    stops = [stop] if isinstance(stop, str) else list(stop)
    decode: Any = partial(tokenizer.decode, skip_special_tokens=False)
    for name in settings.keys() & _INSTEAD.keys():
        raise RequestError(f"{name} is not supported; use {_INSTEAD[name]} instead")
    builder, on_commit = SequenceBuilder(tokenizer.pad_token_id, decode), put_to(streamer)
    requests = [
        builder.build(model, prompt_ids, settings, max_new_tokens, stops, seed, on_commit=on_commit)
        for prompt_ids in _token_ids(tokenizer, prompts, max_new_tokens, model)
    ]
    if streamer is not None and len(requests) != 1:
        raise OptionError(f"streamer is for one prompt, not {len(requests)}; pass one at a time")
    with one_at_a_time(model, draft_model):
        session = Session(model, tokenizer, [options], exact=exact, rows=batch_size)
        small = DraftModel(checked_draft_model(draft_model), delta) if draft_model else None
        arm = Arm(options, drafter_factory(options), session.prefix_cache(prefix_bytes), small)
        engine = session.engine(arm, batch_size)
        engine.check(requests)
        if streamer is not None:
            streamer.put(torch.tensor([requests[0].prompt_ids]))
        generations = engine.generate(requests)
    if streamer is not None:
        streamer.end()
    pairs = zip(requests, generations, strict=True)
    return [_answer(*pair, stops, decode) for pair in pairs]


def model_and_tokenizer(
    model: Any, tokenizer: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Both loaded, where names of them are given."""
    if not isinstance(model, str | torch.nn.Module):
        raise RequestError(
            f"model is of type {type(model).__name__}; pass a loaded model, or the name of one"
        )
    if tokenizer is None and not isinstance(model, str):
        raise RequestError("a loaded model needs its tokenizer; pass tokenizer=…")
    named = model if tokenizer is None else tokenizer
    if not (isinstance(named, str) or callable(named)):
        raise RequestError(
            f"tokenizer is of type {type(named).__name__}; pass a loaded one, or the name of one"
        )
    hf: Any = transformers
    if isinstance(model, str):
        with loading("model", model, "pass a Hub name, a folder, or a loaded model"):
            model = hf.AutoModelForCausalLM.from_pretrained(model_path(model)).eval()
    if isinstance(named, str):
        with loading("tokenizer", named, "pass tokenizer=NAME of one that fits the model"):
            named = hf.AutoTokenizer.from_pretrained(model_path(named))
    return model, named


def _answer(
    request: Request, generation: types.Generation, stops: Sequence[str], decode: Callable[..., str]
) -> Answer:
    token_ids, spans = generation.token_ids, generation.spans
    text = decode(token_ids, skip_special_tokens=True)
    for stop in stops:
        text = text.partition(stop)[0]
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
            for each in prompt if isinstance(prompt, Sequence) else [prompt]:
                if not isinstance(each, Mapping):
                    raise RequestError(
                        f"prompt {number} is neither text nor a list of messages: it has an "
                        f"item of type {type(each).__name__}; for token ids, use model.generate "
                        "with custom_generate"
                    )
            if not getattr(tokenizer, "chat_template", None):
                raise OptionError("the tokenizer has no chat template; pass texts, not messages")
            render: Any = tokenizer.apply_chat_template
            text = render(list(text), tokenize=False, add_generation_prompt=True)
        token_ids: list[int] = tokenizer(text, add_special_tokens=is_text)["input_ids"]
        if not token_ids:
            raise RequestError(f"prompt {number} is empty; pass at least one token")
        if most is not None and len(token_ids) + max_new_tokens > most:
            raise RequestError(
                f"a prompt of {len(token_ids)} tokens and max_new_tokens={max_new_tokens} exceed "
                f"the model's {most} positions; shorten one of them"
            )
        yield token_ids


def put_to(streamer: Any) -> Callable[[list[int]], None]:
    if streamer is None:
        return lambda token_ids: None
    return lambda token_ids: streamer.put(torch.tensor(token_ids))
