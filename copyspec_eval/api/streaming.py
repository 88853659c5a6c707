"""`stream`: an answer's text piece by piece, while it is decoded."""

import queue
import threading
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from copyspec_eval.api.generation import Answer, Prompt, generate, model_and_tokenizer
from copyspec_eval.errors import OptionError, RequestError
from copyspec_eval.session.session import one_at_a_time

_PARTIAL = "\ufffd"
"""What tokens decode to that are not a whole character yet."""


class _Closed(Exception):
    """Ends decoding, because nobody reads what comes of it."""


def stream(
    model: PreTrainedModel | str,
    tokenizer: PreTrainedTokenizerBase | str | None = None,
    prompt: Prompt | None = None,
    *,
    stop: str | Sequence[str] = (),
    **options: Any,
) -> Generator[str, None, Answer]:
    """Answer one prompt, and yield the answer's text in pieces; the tokens are `generate`'s.

    Together the pieces are the answer's `text`. A step of the model gives a piece, unless its
    tokens are no whole character, or may be the beginning of a stop string. The model decodes in
    another thread, ahead of the caller; closing the generator ends that within a step. The answer
    is the generator's value: `answer = yield from stream(…)`.

    Args:
        model, tokenizer, stop: as for `generate`.
        prompt: a text, or a conversation.
        **options: all others of `generate`, but no `streamer`.

    Raises:
        OptionError, ModelError, RequestError: at the first piece, as by `generate`.
    """
    if "streamer" in options:
        raise OptionError("stream yields the text itself; leave streamer out")
    if prompt is None:
        raise RequestError("there is no prompt; pass prompt=TEXT or a conversation")
    model, tokenizer = model_and_tokenizer(model, tokenizer)
    # If this thread is generating with the model, the other one would wait for it for ever.
    with one_at_a_time(model):
        reader = _Reader()
    given = options | {"stop": stop, "streamer": reader}
    arguments = (model, tokenizer, prompt, given)
    thread = threading.Thread(target=reader.run, args=arguments, name="copyspec_eval.stream")
    thread.start()
    stops = [stop] if isinstance(stop, str) else list(stop)
    token_ids: list[int] = []
    length = 0
    try:
        while not isinstance(event := reader.events.get(), Answer):
            if isinstance(event, BaseException):
                raise event
            token_ids += event
            text = str(tokenizer.decode(token_ids, skip_special_tokens=True))
            text = text[: len(text) - _num_unsure(text, stops)]
            if piece := text[length:]:
                length = len(text)
                yield piece
        if piece := event.text[length:]:
            yield piece
        return event
    finally:
        reader.is_closed = True
        thread.join()


def _num_unsure(text: str, stops: Sequence[str]) -> int:
    """Characters at the end that may change, or be cut off with a stop string."""
    partial = len(text) - len(text.rstrip(_PARTIAL))
    for stop in stops:
        if stop in text:
            partial = max(partial, len(text) - text.index(stop))
        begun = (n for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n]))
        partial = max(partial, next(begun, 0))
    return partial


class _Reader:
    """A streamer of transformers: hands tokens over, and the answer or the error after them."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[list[int] | Answer | BaseException] = queue.SimpleQueue()
        self.is_closed = False
        self._is_prompt = True
        kinds = [kind for kind in ("cpu", "cuda", "mps", "xpu") if torch.is_autocast_enabled(kind)]
        # Each thread has its own.
        self._autocast = [torch.autocast(kind, torch.get_autocast_dtype(kind)) for kind in kinds]

    def run(self, model: Any, tokenizer: Any, prompt: Any, options: dict[str, Any]) -> None:
        try:
            with ExitStack() as stack:
                for each in self._autocast:
                    stack.enter_context(each)
                [answer] = generate(model, tokenizer, prompt, **options)
            self.events.put(answer)
        except BaseException as error:
            self.events.put(error)

    def put(self, token_ids: torch.Tensor) -> None:
        if self.is_closed:
            raise _Closed
        if not self._is_prompt:
            self.events.put(token_ids.tolist())
        self._is_prompt = False

    def end(self) -> None:
        """Called by `generate`; the answer itself ends the events."""
