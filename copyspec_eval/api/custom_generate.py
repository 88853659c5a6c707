"""For transformers: `model.generate(…, custom_generate=copyspec_eval.custom_generate)`."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedModel, StoppingCriteriaList
from transformers.generation.logits_process import LogitsProcessor, LogitsProcessorList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

from copyspec_eval.api.generation import put_to
from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.sequence import Sequence as Request
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.registry import drafter_factory
from copyspec_eval.errors import RequestError
from copyspec_eval.session.requests import check_mode
from copyspec_eval.session.session import Arm, Session, one_at_a_time
from copyspec_eval.session.settings import check_bool, draft_options, parse_arms
from copyspec_eval.types import FinishReason

_KNOWN = {
    *("attention_mask", "position_ids", "past_key_values", "cache_params"),
    *("cache_position", "logits_to_keep", "use_cache"),  # for transformers' own forwards
}


def custom_generate(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    synced_gpus: bool = False,
    streamer: Any = None,
    drafter: str | None = None,
    gamma: int | None = None,
    num_draft_tokens: int | None = None,
    store: bool = False,
    tree: bool = False,
    **model_kwargs: Any,
) -> GenerateDecoderOnlyOutput | torch.Tensor:
    """The decoding loop of `model.generate`, greedy or sampled, with drafts.

    The sequences are those of plain `generate`, and sampling takes the same random numbers from
    torch's generator. They can differ only at near-ties, since a forward of several tokens
    rounds differently from a forward of one. Scores and logits of a row that has ended are zeros.

    Args:
        model, logits_processor, generation_config, synced_gpus: as transformers passes them.
        input_ids: `[rows, tokens]`, int64, padded on the left.
        stopping_criteria: transformers'; any but length and EOS work for a single row only.
        streamer: receives a single row's tokens as they are generated.
        drafter, gamma, num_draft_tokens, store, tree: as in `copyspec_eval.generate`.
        **model_kwargs: what transformers prepared for the model's forward.

    Returns:
        `[rows, tokens]`, int64, prompts included and padded on the right; with
        `return_dict_in_generate` an output without attentions, hidden states and cache.

    Raises:
        RequestError, OptionError, ModelError: the request, an option or the model is not supported.
    """
    check_mode(generation_config)
    for name in ("output_attentions", "output_hidden_states"):
        if getattr(generation_config, name) and generation_config.return_dict_in_generate:
            raise RequestError(f"{name}=True is not supported; leave it or custom_generate out")
    # `generate` does not pass all of its arguments on to a callable.
    caller = sys._getframe(1)
    arguments = caller.f_locals if caller.f_code.co_name == "generate" else {}
    _check_inputs({**model_kwargs, "assistant_model": arguments.get("assistant_model")})
    prompts = _prompts(
        input_ids, model_kwargs.get("attention_mask"), model_kwargs.get("position_ids")
    )
    streamer = streamer or arguments.get("streamer")
    if streamer is not None and len(prompts) > 1:
        raise RequestError(f"streamer is for one prompt, not {len(prompts)}; leave it out")
    chosen: dict[str, Any] = {"num_draft_tokens": num_draft_tokens, "tree": tree}
    chosen["store"] = check_bool("store", store)
    [options] = parse_arms(draft_options(drafter, gamma, **chosen))
    is_sampling = generation_config.do_sample
    replay = MultinomialReplay(len(prompts), input_ids.device) if is_sampling else None
    is_wanted = generation_config.output_scores or generation_config.output_logits
    keeps = bool(is_wanted and generation_config.return_dict_in_generate)
    processors, requests = [], []
    for row, prompt in enumerate(prompts):
        padding = input_ids[:, : input_ids.shape[1] - len(prompt)]
        processors.append(processor := RowProcessor(logits_processor, padding, row, keeps))
        scores = processor.scores if keeps and generation_config.output_scores else None
        rule = CriteriaRule(stopping_criteria, input_ids, scores)
        used = LogitsProcessorList([processor] if logits_processor or keeps else [])
        draw = partial(replay.draw, row) if replay else None
        chooser = TokenChooser(used, do_sample=False, draw=draw)
        requests.append(Request(prompt, rule, chooser, on_commit=put_to(streamer)))
    with one_at_a_time(model):
        arm, rows = Arm(options, drafter_factory(options)), len(prompts)
        session = Session(model, None, [options], exact=False, rows=rows, needs_rows=False)
        engine = session.engine(arm, 1 if session.reason else rows)
        outputs = [generation.token_ids for generation in engine.generate(requests)]
    if replay is not None:
        replay.rewind(max(map(len, outputs)))
    if streamer is not None:
        streamer.end()
    return _output(input_ids, outputs, processors, generation_config)


def _check_inputs(model_kwargs: Mapping[str, Any]) -> None:
    for name, value in model_kwargs.items():
        if name not in _KNOWN and value is not None:
            raise RequestError(f"{name} is not supported; leave it or custom_generate out")
    for name in ("past_key_values", "cache_params"):
        cache = model_kwargs.get(name)
        if cache is not None and hasattr(cache, "get_seq_length") and cache.get_seq_length():
            raise RequestError(
                f"{name} holds tokens already, but copyspec reads the prompt itself; leave it out"
            )


def _prompts(
    input_ids: torch.Tensor, mask: torch.Tensor | None, position_ids: torch.Tensor | None
) -> list[list[int]]:
    """Each row's tokens without the padding on their left.

    Where they are given, the mask has to mark just these, and positions, `[…, rows or 1, columns]`,
    to count them from 0.
    """
    if not input_ids.numel():
        raise RequestError("input_ids are empty; pass a prompt of at least one token")
    if mask is None:
        mask = torch.ones_like(input_ids)
    lengths = mask.sum(-1, keepdim=True, dtype=torch.int64)
    columns = input_ids.shape[1]
    counted = torch.arange(-columns, 0, device=lengths.device) + lengths
    is_token = counted >= 0
    if mask.shape != input_ids.shape or not lengths.all() or not (mask == is_token).all():
        raise RequestError(
            "attention_mask is not, in each row, zeros for padding followed by a one for each "
            "token; pad prompts on the left, and leave rows without a token out"
        )
    if position_ids is not None and (
        position_ids.shape[-1] != columns or not ((position_ids == counted) | ~is_token).all()
    ):
        raise RequestError(
            "position_ids do not count each prompt's tokens from 0; leave them out, or "
            "custom_generate"
        )
    rows = zip(input_ids.tolist(), lengths.flatten().tolist(), strict=True)
    return [tokens[-length:] for tokens, length in rows]


def _output(
    input_ids: torch.Tensor,
    outputs: Sequence[tuple[int, ...]],
    processors: "Sequence[RowProcessor]",
    config: GenerationConfig,
) -> GenerateDecoderOnlyOutput | torch.Tensor:
    lengths = list(map(len, outputs))
    token = 0 if config._pad_token_tensor is None else int(config._pad_token_tensor)
    tokens = pad_sequence(list(map(input_ids.new_tensor, outputs)), True, token)
    sequences = torch.cat([input_ids, tokens], dim=-1)
    if not config.return_dict_in_generate:
        return sequences

    def steps(rows: Iterable[list[torch.Tensor]]) -> tuple[torch.Tensor, ...]:
        """`[rows, vocabulary]` of every step, from the `[vocabulary]` of each row's steps."""
        cut = [torch.stack(row[:n]) for row, n in zip(rows, lengths, strict=True)]
        return tuple(pad_sequence(cut))

    output: Any = GenerateDecoderOnlyOutput
    return output(  # type: ignore[no-any-return]
        sequences=sequences,
        scores=steps(each.scores for each in processors) if config.output_scores else None,
        logits=steps(each.logits for each in processors) if config.output_logits else None,
    )


@dataclass
class RowProcessor(LogitsProcessor):
    """A batch's processors, for the tokens of one `row`; some depend on its number.

    They also read `padding`, `[rows, tokens]` before the row's prompt. `keeps` collects `logits`
    and `scores`, `[vocabulary]` of each choice.
    """

    processors: LogitsProcessorList
    padding: torch.Tensor
    row: int
    keeps: bool
    logits: list[torch.Tensor] = field(default_factory=list)
    scores: list[torch.Tensor] = field(default_factory=list)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores `[1, vocabulary]` after `input_ids`, `[1, tokens]`, of the row."""
        num_rows = len(self.padding)
        rows = input_ids.to(self.padding.device).expand(num_rows, -1)
        input_ids = torch.cat([self.padding, rows], dim=-1)
        # Repeated, because a processor may write into its input.
        processed = self.processors(input_ids, scores.repeat(num_rows, 1))  # type: ignore[arg-type]
        chosen: torch.Tensor = processed[self.row : self.row + 1]
        if self.keeps:
            self.logits.append(scores[0].clone())
            self.scores.append(chosen[0].clone())
        return chosen


class CriteriaRule(StopRule):
    """Ends a row's output by transformers' criteria, one of which must limit its length.

    `input_ids` are `[rows, tokens]` with padding; `scores` gains a `[vocabulary]` per choice. Other
    criteria are refused for several rows: there, plain `generate` may continue a row that has ended
    until all have.
    """

    def __init__(
        self,
        criteria: StoppingCriteriaList,
        input_ids: torch.Tensor,
        scores: Sequence[torch.Tensor] | None = None,
    ) -> None:
        num_rows, num_tokens = input_ids.shape
        lengths = [each.max_length for each in criteria if type(each) is MaxLengthCriteria]
        others = {type(each) for each in criteria} - {MaxLengthCriteria, EosTokenCriteria}
        if not lengths:
            raise RequestError("nothing limits the answer's length; pass max_new_tokens")
        if others and num_rows > 1:
            raise RequestError(
                f"stopping_criteria other than length and EOS ({others.pop().__name__}) are for "
                f"one prompt; input_ids have {num_rows}, so leave them out"
            )
        eos = [each.eos_token_id for each in criteria if type(each) is EosTokenCriteria]
        eos_ids = {token for ids in eos for token in ids.flatten().tolist()}
        # transformers checks the length only after it has added a token.
        super().__init__(max(1, min(lengths) - num_tokens), eos_ids)
        self._criteria = criteria if others else None
        self._input_ids, self._scores = input_ids, scores

    def reason(self, output_ids: Sequence[int]) -> FinishReason | None:
        if self._criteria is None:
            return super().reason(output_ids)
        output = self._input_ids.new_tensor([list(output_ids)])
        scores: Any = None
        if self._scores is not None:  # those of a verified draft may already be there
            scores = tuple(row[None] for row in self._scores[: len(output_ids)])
        ends = self._criteria(torch.cat([self._input_ids, output], -1), scores).any()
        return "stop" if ends else super().reason(output_ids)


class MultinomialReplay:
    """The random numbers that `torch.multinomial` would take from torch's generator, step by step.

    It draws a token as the argmax of probability / noise. The noise is exponentially distributed,
    `[rows, vocabulary]` a step, so rows at different steps still get their step's numbers.
    Source: `multinomial_out` in ATen's Distributions.cpp.
    """

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self._num_rows, self._device = num_rows, device
        self._steps: list[dict[int, torch.Tensor]] = []
        self._states: list[torch.Tensor] = []
        is_cpu = device.type == "cpu"
        self._random: Any = torch if is_cpu else torch.get_device_module(device)
        self._place = () if is_cpu else (device,)

    def draw(self, row: int, scores: torch.Tensor, position: int) -> int:
        """Draw a token of a row from its scores, `[vocabulary]`, at a position of the output."""
        while len(self._steps) <= position:
            self._states.append(self._random.get_rng_state(*self._place))
            noise = torch.empty(self._num_rows, len(scores), device=self._device)
            self._steps.append(dict(enumerate(noise.exponential_(1))))
        probabilities = scores.to(self._device).softmax(-1)
        return int((probabilities / self._steps[position].pop(row)).argmax())

    def rewind(self, num_steps: int) -> None:
        """Leave torch's generator as after that many steps, if there were more."""
        if num_steps < len(self._states):
            self._random.set_rng_state(self._states[num_steps], *self._place)
