"""Drafts for an engine that shows rows without names: each is of the right request."""

import random
import tracemalloc
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows_engine import MOST_LENGTH, Asked, config, serve

from copyspec_eval.drafters.copyspec import CopySpecDrafter
from copyspec_eval.errors import OptionError
from copyspec_eval.serving.proposer import VARIABLE, CopySpecProposer, StepClock
from copyspec_eval.types import Verdict


def asked(seed: int, number: int) -> list[Asked]:
    source = random.Random(seed)
    made = []
    for which in range(number):
        prompt = [100 + which, *(source.randrange(9) for _ in range(source.randint(3, 40)))]
        answer = [source.randrange(9) for _ in range(source.randint(1, 20))]
        at = source.randrange(len(prompt))
        made.append(Asked(prompt, answer + prompt[at : at + 20] + answer[:5]))
    return made


def recording(vllm_config: Any) -> CopySpecProposer:
    proposer = CopySpecProposer(vllm_config)
    proposer.restart(is_recording=True)
    return proposer


def drafted(proposer: CopySpecProposer, requests: list[Asked]) -> list[list[tuple[int, int]]]:
    """Tokens drafted and accepted of each attempt that the proposer reports of each request."""
    answers = [(one.prompt_ids, one.output_ids) for one in requests]
    return [
        [(attempt.num_drafted, attempt.num_accepted) for attempt in each.attempts]
        for each in proposer.requests.take_drafted(answers)
    ]


@given(st.integers(0, 10**6), st.integers(1, 5))
def test_answers_are_taken_up_whole_and_in_their_own_request(seed: int, num_rows: int) -> None:
    """Rows change places or are left out, requests preempted, drafts cut, prompts read in parts."""
    proposer = recording(config())
    requests = asked(seed, 8)
    serve(proposer, requests, num_rows, random.Random(seed))
    for attempts, one in zip(drafted(proposer, requests), requests, strict=True):
        assert sum(accepted for _, accepted in attempts) == sum(each for _, each in one.verified)


@given(st.integers(0, 10**6), st.integers(1, 5))
def test_close_to_the_longest_length_it_counts_what_it_was_asked(seed: int, num_rows: int) -> None:
    """vLLM gives all rows zeros then; those that go on are the same requests afterwards."""
    limit = 60
    proposer = recording(config(longest=10, max_length=limit))
    requests = asked(seed, 8)
    for one in requests:
        one.answer_ids = one.answer_ids[: limit - len(one.prompt_ids)]
    serve(proposer, requests, num_rows, random.Random(seed), longest=10, max_length=limit)
    for attempts, one in zip(drafted(proposer, requests), requests, strict=True):
        assert sum(accepted for _, accepted in attempts) == sum(each for _, each in one.ours)
        # Where the last token is the next of the draft, the draft may not have been verified.
        assert len(one.ours) - len(attempts) in (0, 1)


def test_a_draft_is_that_of_the_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the paper's rule, which goes by the context alone."""
    monkeypatch.setenv(VARIABLE, "drafter=copyspec,gamma=2,num_draft_tokens=6")
    num_drafts = 0
    for seed in range(20):
        requests = asked(seed, 6)
        serve(CopySpecProposer(config()), requests, 3, random.Random(seed))
        for request in requests:
            assert len(request.drafts) == len(request.lengths)
            for draft, length in zip(request.drafts, request.lengths, strict=True):
                alone = CopySpecDrafter(gamma=2, num_draft_tokens=6)
                alone.start(request.prompt_ids)
                output_ids = request.answer_ids[:length]
                alone.observe(output_ids, Verdict(0, output_ids[-1]))
                assert draft == list(alone.propose(6, [0.01] * 6).token_ids)
                num_drafts += bool(draft)
    assert num_drafts > 100


def test_an_answer_can_be_copied_by_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "drafter=suffix,store=true")
    proposer = CopySpecProposer(config())
    answer = list(range(100, 130))
    first, second = Asked([1, 2, 3], answer), Asked([4, 5, 6], answer)
    serve(proposer, [first, second], 1, random.Random(0))
    assert not any(first.drafts)
    assert any(second.drafts)


def test_a_server_remembers_no_request_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "drafter=none")
    length = 20_000
    proposer = CopySpecProposer(config(max_length=2 * length))
    text = numpy.arange(1000, 1000 + length, dtype=numpy.int32)
    used = []
    tracemalloc.start()
    for number in range(40):
        text[0] = number
        proposer.propose([[1]], numpy.array([length]), text[None])
        used.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert used[-1] < used[3] + 1e6


def test_a_row_that_is_full_is_left_alone() -> None:
    proposer = CopySpecProposer(config(max_length=20))
    request = Asked([1, 2] * 8, [1, 2] * 2)
    serve(proposer, [request], 1, random.Random(0))
    assert request.drafts[-1] == []
    assert all(len(draft) < 20 - 16 for draft in request.drafts)
    assert MOST_LENGTH > 20


def test_an_unknown_option_or_a_tree_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, message in (
        ("drafter=sufix", "unknown drafter 'sufix'"),
        ("gama=3", "unknown drafter argument 'gama'"),
        ("drafter=suffix,tree=true", "only chains"),
    ):
        monkeypatch.setenv(VARIABLE, text)
        with pytest.raises(OptionError, match=message):
            CopySpecProposer(config())


def test_tokens_cost_what_steps_have_shown() -> None:
    clock = StepClock()
    assert len(clock.thresholds(num_rows=1, longest=5)) == 5, "before any step"
    for number in range(200):
        tokens = 4 + number % 20
        clock.add(tokens, seconds=0.02 + 0.0001 * tokens)
    alone, among_many = (clock.thresholds(rows, longest=3)[0] for rows in (1, 16))
    assert alone == pytest.approx(1.5 * 0.0001 / 0.0201, rel=0.01)
    assert among_many == pytest.approx(1.5 * 16 * 0.0001 / (0.02 + 0.0016), rel=0.01)


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0, 10)), max_size=60), st.integers(1, 64))
def test_thresholds_are_probabilities(steps: list[tuple[int, float]], num_rows: int) -> None:
    clock = StepClock()
    for tokens, seconds in steps:
        clock.add(tokens, seconds)
    assert all(0 < least <= 1 for least in clock.thresholds(num_rows, longest=4))
