"""The paper's drafter: where the last γ tokens occurred before, copy what followed."""

from collections.abc import Sequence

from copyspec_eval.drafters.base import Drafter
from copyspec_eval.types import Draft, Verdict


class CopySpecDrafter(Drafter):
    """CopySpec (arXiv 2502.08923, section 3) with the choices of its published code.

    The last `gamma` tokens of prompt and output are looked up among all earlier runs of `gamma`
    tokens; the FIRST occurrence wins, and up to `num_draft_tokens` tokens after it are drafted, cut
    at the end of the context. Nothing is looked up for the prefill, nor when fewer than `gamma`
    tokens may still be generated. Runs are looked up by their tokens, so two runs are never
    confused. Each token costs O(gamma) time and memory.

    >>> drafter = CopySpecDrafter(gamma=2, num_draft_tokens=3)
    >>> drafter.start([5, 6, 7, 8, 9, 5])
    >>> drafter.observe([6], Verdict(0, 6))  # now 5 6 7 8 9 5 6, and "5 6" first occurred at 0
    >>> draft = drafter.propose(budget=100, longest=100, threshold=0.0)
    >>> draft.token_ids, draft.position
    ((7, 8, 9), 2)
    """

    def __init__(self, gamma: int, num_draft_tokens: int) -> None:
        self._gamma, self._num_draft_tokens = gamma, num_draft_tokens
        self._token_ids: list[int] = []
        self._end_of_first: dict[tuple[int, ...], int] = {}
        self._has_output = False

    def start(self, prompt_ids: Sequence[int], earlier: Sequence[Sequence[int]] = ()) -> None:
        self._append(prompt_ids)  # the paper knows no earlier answers

    def propose(self, budget: int, longest: int, threshold: float) -> Draft:
        if not self._has_output or budget + 1 < self._gamma:
            return Draft()
        suffix = tuple(self._token_ids[-self._gamma :])
        if (position := self._end_of_first.get(suffix)) is None:
            return Draft()
        end = position + min(self._num_draft_tokens, budget)
        return Draft(tuple(self._token_ids[position:end]), position)

    def observe(self, token_ids: Sequence[int], verdict: Verdict) -> None:
        self._has_output = True
        self._append(token_ids)

    def _append(self, token_ids: Sequence[int]) -> None:
        # A run is indexed when the token after it arrives: the current suffix never matches itself.
        tokens, gamma = self._token_ids, self._gamma
        first_end = max(len(tokens), gamma)
        tokens.extend(token_ids)
        for end in range(first_end, len(tokens)):
            self._end_of_first.setdefault(tuple(tokens[end - gamma : end]), end)
