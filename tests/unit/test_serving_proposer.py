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
        prompt = [100 + which, *source.choices(range(9), k=source.randint(3, 40))]
        answer = source.choices(range(9), k=source.randint(1, 20))
        at = source.randrange(len(prompt))
        made.append(Asked(prompt, answer + prompt[at : at + 20] + answer[:5]))
    return made


ROWS = given(st.integers(0, 10**6), st.integers(1, 5))


def attempts(requests: list[Asked], seed: int, num_rows: int, max_length: int) -> list[Any]:
    """Each of `requests`, served by a proposer, with the attempts that this reports of it."""
    proposer = CopySpecProposer(config(max_length=max_length))
    proposer.restart(is_recording=True)
    serve(proposer, requests, num_rows, random.Random(seed), max_length=max_length)
    drafted = proposer.requests.take_drafted([(one.prompt_ids, one.output_ids) for one in requests])
    return [(one, each.attempts) for one, each in zip(requests, drafted, strict=True)]


@ROWS
def test_answers_are_taken_up_whole_and_in_their_own_request(seed: int, num_rows: int) -> None:
    """Rows change places or are left out, requests preempted, drafts cut, prompts read in parts."""
    for one, made in attempts(asked(seed, 8), seed, num_rows, MOST_LENGTH):
        accepted = sum(each for _, each in one.verified)
        assert sum(attempt.num_accepted for attempt in made) == accepted


@ROWS
def test_close_to_the_longest_length_it_counts_what_it_was_asked(seed: int, num_rows: int) -> None:
    """vLLM gives all rows zeros then; those that go on are the same requests afterwards."""
    limit, requests = 60, asked(seed, 8)
    for one in requests:
        one.answer_ids = one.answer_ids[: limit - len(one.prompt_ids)]
    for one, made in attempts(requests, seed, num_rows, limit):
        assert sum(attempt.num_accepted for attempt in made) == sum(each for _, each in one.ours)
        # Where the last token is the next of the draft, the draft may not have been verified.
        assert len(one.ours) - len(made) in (0, 1)


def test_a_draft_is_that_of_the_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the paper's rule, which goes by the context alone."""
    monkeypatch.setenv(VARIABLE, "drafter=copyspec,gamma=2,num_draft_tokens=6")
    num_drafts = 0
    for seed in range(20):
        requests = asked(seed, 6)
        serve(CopySpecProposer(config()), requests, 3, random.Random(seed))
        for request in requests:
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
    first, second = (Asked(prompt, [*range(100, 130)]) for prompt in ([1, 2, 3], [4, 5, 6]))
    serve(proposer, [first, second], 1, random.Random(0))
    assert not any(first.drafts)
    assert any(second.drafts)


def test_a_server_remembers_no_request_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "drafter=none")
    length, used = 20_000, []
    proposer = CopySpecProposer(config(max_length=2 * length))
    text = numpy.arange(1000, 1000 + length, dtype=numpy.int32)
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


@pytest.mark.parametrize(
    ("options", "message"),
    [("drafter=sufix", "unknown drafter 'sufix'"), ("drafter=suffix,tree=true", "only chains")],
)
def test_what_is_refused(options: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, options)
    with pytest.raises(OptionError, match=message):
        CopySpecProposer(config())


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0, 10)), max_size=60), st.integers(1, 64))
def test_thresholds_are_probabilities(steps: list[tuple[int, float]], num_rows: int) -> None:
    clock = StepClock()
    for step in steps:
        clock.add(*step)
    thresholds = clock.thresholds(num_rows, longest=4)
    assert len(thresholds) == 4
    assert all(0 < least <= 1 for least in thresholds)
