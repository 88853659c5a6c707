"""When an output ends: EOS, a stop string, or the token budget."""

from collections.abc import Callable, Collection, Sequence

from copyspec_eval.types import FinishReason


class StopRule:
    """Whether the output ends with its last token, and why.

    Every committed token is checked, so a stop string cannot hide inside an accepted draft. (A
    check after each step that looks at a fixed number of last tokens misses it.)

    Args:
        max_new_tokens: the budget, which drafts never exceed.
        decode: text of output ids, special tokens included; stop strings need it.
        length: ends the output after this many tokens of the budget; None for all of it.
    """

    def __init__(
        self,
        max_new_tokens: int,
        eos_ids: Collection[int] = (),
        stop_strings: Sequence[str] = (),
        decode: Callable[[Sequence[int]], str] | None = None,
        length: int | None = None,
    ) -> None:
        if stop_strings and decode is None:
            raise ValueError("stop strings need a decoder")
        self.max_new_tokens = max_new_tokens
        self._length = max_new_tokens if length is None else length
        self._eos_ids = frozenset(eos_ids)
        self._stop_strings = tuple(stop_strings)
        self._decode = decode
        # Every token carries at least one byte of text or none at all; the margin covers the latter
        # and characters whose bytes began before the window.
        longest = max((len(text.encode()) for text in stop_strings), default=0)
        self._window = longest + 8

    def reason(self, output_ids: Sequence[int]) -> FinishReason | None:
        """Why the output ends with its last token, or None if it continues."""
        if output_ids[-1] in self._eos_ids:
            return "eos"
        if self._stop_strings and self._completes_stop_string(output_ids):
            return "stop"
        return "length" if len(output_ids) >= self._length else None

    def _completes_stop_string(self, output_ids: Sequence[int]) -> bool:
        assert self._decode is not None
        # A window can begin inside a character or word; the whole output decides.
        for token_ids in (output_ids[-self._window :], output_ids):
            text = self._decode(token_ids)
            if not any(stop in text for stop in self._stop_strings):
                return False
        return True
