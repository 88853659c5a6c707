"""Drafters against plain definitions, and the store of earlier answers."""

import itertools
import random
from collections.abc import Sequence

import pytest
from doubles import verdict_on
from hypothesis import given
from hypothesis import strategies as st

from copyspec_eval.drafters.automaton import AnswerStore, StoreMatch
from copyspec_eval.drafters.copyspec import CopySpecDrafter
from copyspec_eval.drafters.registry import drafter_factory
from copyspec_eval.drafters.suffix import SuffixDrafter
from copyspec_eval.drafters.thresholds import StepClock, acceptance_threshold
from copyspec_eval.errors import OptionError
from copyspec_eval.types import Draft, DraftOptions, Verdict

FREE = 100, 0.0
few_tokens = st.lists(st.integers(0, 2), max_size=40)


def by_definition(text: Sequence[int], gamma: int, count: int) -> list[int]:
    """What follows the first earlier occurrence of the last `gamma` tokens."""
    for start in range(len(text) - gamma):
        if list(text[start : start + gamma]) == list(text[len(text) - gamma :]):
            return list(text[start + gamma : start + gamma + count])
    return []


@given(few_tokens, st.lists(few_tokens, max_size=5), st.integers(1, 4), st.integers(1, 12))
def test_copies_what_followed_the_first_occurrence(prompt, chunks, gamma, count):
    drafter = CopySpecDrafter(gamma, count)
    drafter.start(prompt)
    assert not drafter.propose(100, *FREE).token_ids, "no draft in the prefill"
    drafter.observe([], Verdict(0, 0))
    text = list(prompt)
    for chunk in [*chunks, []]:
        draft = drafter.propose(100, *FREE)
        copied = by_definition(text, gamma, count)
        assert list(draft.token_ids) == copied
        assert not copied or text[draft.position : draft.position + len(copied)] == copied
        drafter.observe(chunk, Verdict(0, 0))
        text += chunk


@pytest.mark.parametrize(
    ("gamma", "count", "prompt", "max_tokens", "draft"),
    [
        # Nothing is looked up when fewer than gamma tokens may be generated.
        (3, 10, [1, 2, 3, 4, 5, 1, 2, 3], 2, Draft((4, 5), position=3)),
        (3, 10, [1, 2, 3, 4, 5, 1, 2, 3], 1, Draft()),
        # It may copy nothing.
        (1, 0, [5, 6, 5, 6], 100, Draft(position=2)),
    ],
)
def test_drafts_by_hand(gamma, count, prompt, max_tokens, draft):
    drafter = drafter_factory(DraftOptions("copyspec", gamma=gamma, num_draft_tokens=count))()
    drafter.start(prompt)
    drafter.observe([], Verdict(0, 0))
    assert drafter.propose(max_tokens, *FREE) == draft


@pytest.mark.parametrize("value", [0, -1, "x", 2.5, True])
@pytest.mark.parametrize("name", ["gamma", "num_draft_tokens"])
def test_options_out_of_range_are_named(name, value):
    with pytest.raises(
        OptionError, match=f"{name} must be an integer of at least 1 .*got {value!r}"
    ):
        DraftOptions("suffix", **{name: value})
    with pytest.raises(OptionError, match=r"num_draft_tokens must be .* at least 0 .*got -1"):
        DraftOptions("copyspec", num_draft_tokens=-1)
    with pytest.raises(OptionError, match="tree must be true or false, got 1"):
        DraftOptions("suffix", tree=1)  # type: ignore[arg-type]


tokens = st.integers(0, 4)


@given(
    prompt=st.lists(tokens, min_size=1, max_size=20),
    answer=st.lists(tokens, min_size=1, max_size=30),
    most=st.integers(0, 12),
    threshold=st.sampled_from([0.0006, 0.02, 0.2]),
)
def test_every_draft_is_a_tree_within_its_limits(prompt, answer, most, threshold):
    drafter = SuffixDrafter(tree=True)
    drafter.start(prompt)
    while answer:
        draft = drafter.propose(most, 20, threshold)
        parents = draft.parents or ()
        assert len(draft.token_ids) == len(parents) == len(draft.positions) <= most
        assert all(-1 <= parent < node for node, parent in enumerate(parents))
        assert len({*zip(parents, draft.token_ids, strict=True)}) == len(parents), "like siblings"
        assert [*draft.probabilities] == sorted(draft.probabilities, reverse=True)
        assert all(0 < probability < 1 for probability in draft.probabilities)
        verdict = verdict_on(draft, answer)
        taken, answer = answer[: verdict.num_accepted + 1], answer[verdict.num_accepted + 1 :]
        drafter.observe(taken, verdict)


def test_drafters_of_a_run_share_a_store():
    options = DraftOptions("suffix", store=True)
    make_drafter = drafter_factory(options)
    first, second, other = make_drafter(), make_drafter(), drafter_factory(options)()
    first.start([1])
    first.observe([7, 2, 3], Verdict(0, 7))
    first.finish()
    for drafter, drafted in ((second, (3,)), (other, ())):
        drafter.start([7, 2])
        assert drafter.propose(100, *FREE).token_ids[:1] == drafted


@pytest.mark.parametrize("switch", ["store", "tree"])
@pytest.mark.parametrize("drafter", ["none", "copyspec"])
def test_a_switch_that_a_drafter_lacks_is_refused(drafter, switch):
    message = f"^{switch}=true is not for drafter={drafter}; pass drafter=suffix"
    with pytest.raises(OptionError, match=message):
        drafter_factory(DraftOptions(drafter, **{str(switch): True}))  # type: ignore[arg-type]


LIMITS = 96, 0.05
texts = st.lists(st.integers(0, 2), min_size=1, max_size=40)


def ends_of(text, part):
    ends = range(len(part), len(text) + 1)
    return [end for end in ends if list(text[end - len(part) : end]) == list(part)]


def started(text, store=None, tree=False):
    drafter = SuffixDrafter(store, tree)
    drafter.start(text)
    return drafter


def drafted(text, longest=96, threshold=0.05, budget=1000):
    return started(text).propose(budget, longest, threshold)


@given(texts, st.integers(1, 20))
def test_what_most_often_followed_the_longest_repeat_is_copied(text, limit):
    """Of equals what followed last; at its end the text goes on into the draft itself."""
    draft = drafted(text, 20, 0.0, limit)
    suffixes = (text[start:] for start in range(1, len(text)))
    longest = next((part for part in suffixes if len(ends_of(text, part)) > 1), None)
    if longest is None:
        assert draft == Draft()
        return
    followers = [text[end] for end in ends_of(text, longest)[:-1]]
    most = max(map(followers.count, followers))
    assert draft.token_ids[0] == [t for t in followers if followers.count(t) == most][-1]
    assert len(draft.token_ids) <= limit
    source = [*text, *draft.token_ids][draft.position :][: len(draft.token_ids)]
    assert source == list(draft.token_ids)
    assert text[draft.position - len(longest) : draft.position] == longest


def test_a_draft_goes_on_periodically():
    assert drafted([7, 8, 9] * 3, 12, 0.0).token_ids == (7, 8, 9) * 4


def test_the_length_follows_the_probabilities():
    # 1 2 occurred once before: probabilities 1 / (1 + 2.5 / m) for m = 2, 3, …, multiplied.
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]
    one, two, three = 2 / 4.5, 2 / 4.5 * 3 / 5.5, 2 / 4.5 * 3 / 5.5 * 4 / 6.5
    assert drafted(text).probabilities[:3] == pytest.approx([one, two, three])
    # The third likely goes on, so that it is worth less.
    for threshold, length in ((one, 1), (two, 2), (three, 2), (0.8 * three, 3)):
        assert len(drafted(text, 50, threshold - 1e-9).token_ids) == length
    assert drafted(text, 50, 1.0) == Draft()
    assert len(drafted(text, 2, 0.0).token_ids) == 2


def test_it_resumes_behind_a_substitution():
    def step(drafter, accepted, native):
        draft = drafter.propose(100, *LIMITS)
        drafter.observe([*draft.token_ids[:accepted], native], Verdict(accepted, native))
        return drafter.propose(100, *LIMITS)

    source = list(range(10, 40))
    drafter = started([*source, 1, *source[:5]])
    resumed = step(drafter, accepted=4, native=99)  # 15 16 17 18, and 99 for 19
    assert resumed.token_ids[:3] == (20, 21, 22)
    assert resumed.position == source.index(20)
    # Substituted again after two tokens, it resumes again; after none, it gives up.
    assert step(drafter, accepted=2, native=98).token_ids[:2] == (23, 24)
    assert step(drafter, accepted=0, native=97) == Draft()


numbers = st.tuples(st.integers(1, 64), st.integers(0, 999), st.floats(0, 10))


@given(st.lists(numbers, max_size=60), st.integers(1, 64))
def test_a_threshold_is_a_probability(steps, num_rows):
    clock = StepClock()
    for step in steps:
        clock.add(*step)
    assert 0 < clock.threshold(num_rows) <= 1


@pytest.mark.parametrize("num_rows", [1, 8])
@pytest.mark.parametrize("cost", [0.0, 0.004, 0.02, 0.4])
def test_a_step_clock_learns_what_a_draft_token_costs(cost, num_rows):
    """In spite of noise, of other costs before, and of rows that cost more than draft tokens."""
    clock, source = StepClock(), random.Random(0)
    for _ in range(15):
        clock.add(1, source.randint(0, 30), 1.0)
    assert clock.threshold(1) == 0.03, "too few steps"
    for _ in range(2000):
        rows, drafted = source.randint(1, num_rows), source.randint(0, 30)
        seconds = (1 + 0.1 * rows) * (1 + cost * drafted * 1.8 / (1 + 0.1 * rows))
        clock.add(rows, drafted, seconds * source.uniform(0.99, 1.01))
    wanted = acceptance_threshold(num_rows * cost * 1.8 / (1 + 0.1 * num_rows))
    assert clock.threshold(num_rows) == pytest.approx(wanted, rel=0.1, abs=0.004)


def test_a_step_that_was_held_up_says_nothing_of_drafts():
    """A pause of 400 steps' time, in one with drafts, as the garbage collector makes them."""
    clock, source = StepClock(), random.Random(0)
    for number in range(400):
        drafted = source.choice((0, 0, 4, 20))
        clock.add(1, drafted, 1 + 0.02 * drafted + (400 if number == 200 else 0))
        assert clock.threshold(1) == 0.03


def test_a_machine_that_others_have_most_of_the_time_says_nothing_of_drafts():
    """It runs for half a second and then waits for two: long steps are held up most often."""
    clock, source, left = StepClock(), random.Random(0), 0.5
    wanted = acceptance_threshold(8 * 0.004 / 0.07)
    for number in range(600):
        drafted = source.choice((0, 0, 1, 2, 4, 8, 20, 40))
        seconds = (0.07 + 0.004 * drafted) * source.uniform(1, 1.3)
        left, waited = left - seconds, 0.0
        while left < 0:
            left, waited = left + 0.5, waited + 2
        clock.add(8, drafted, seconds + waited)
        assert number < 100 or clock.threshold(8) == pytest.approx(wanted, rel=0.15)


def test_a_machine_that_is_slow_for_a_while_says_nothing_of_drafts():
    """Half as fast for 40 steps at a time, in which more happens to be drafted."""
    clock, source = StepClock(), random.Random(0)
    for number in range(400):
        is_slow = number // 40 % 2
        drafted = source.randint(4, 12) if is_slow else source.randint(0, 8)
        clock.add(1, drafted, (1 + is_slow) * (1 + 0.02 * drafted) * source.uniform(0.98, 1.02))
        assert clock.threshold(1) == pytest.approx(0.03, rel=0.5)


def test_few_drafts_among_many_steps_tell_what_a_token_costs():
    """They are no disturbance; and rows that were never seen cost what draft tokens do."""
    clock, source = StepClock(), random.Random(0)
    for number in range(64):
        drafted = number % 16 and source.choice((0, 0, 0, 0, 0, 0, 3, 7, 16))
        clock.add(1, drafted, (0.94 + 0.06 * (1 + drafted)) * source.uniform(0.99, 1.01))
    assert clock.threshold(1) == pytest.approx(acceptance_threshold(0.06), rel=0.2)
    cost = 8 * 0.06 / (0.94 + 8 * 0.06)
    assert clock.threshold(8) == pytest.approx(acceptance_threshold(cost), rel=0.2)


def test_a_cost_that_stopped_drafting_falls_until_some_is_drafted_again():
    clock, thresholds = StepClock(), []
    for number in range(64):
        clock.add(1, number % 8, 1 + 0.9 * (number % 8))
    for _ in range(6000):
        thresholds.append(clock.threshold(1))
        clock.add(1, 0, 1.0)
    assert thresholds == sorted(thresholds, reverse=True)
    assert (thresholds[0], thresholds[-1]) == (acceptance_threshold(0.9), 0.03)
    assert any(0.7 < each < 0.9 for each in thresholds)


answers = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), max_size=30)


def store_of(answers, capacity=2**20):
    store = AnswerStore(capacity)
    for answer in answers:
        store.add(answer)
    return store


@given(answers, st.integers(10, 60))
def test_the_latest_answers_are_kept_within_bounds(added, most_tokens):
    store = store_of(added, most_tokens)
    longest = 1 + max(map(len, added), default=0)
    remaining = sum(len(automaton.token_ids) for automaton in store.automata)
    assert remaining <= max(most_tokens, 2 * longest)
    size = 0
    for answer in reversed(added):
        size += len(answer) + 1
        if size >= most_tokens // 2:
            break
        matches = [StoreMatch(automaton, answer).length for automaton in store.automata]
        assert max(matches) == len(answer)


@given(answers)
def test_nothing_is_matched_across_the_end_of_an_answer(added):
    [automaton] = store_of(added).automata
    together = [*itertools.chain(*added)]
    ends = [together[start:] for start in range(len(together))]
    wanted = [len(end) for end in ends if any(ends_of(answer, end) for answer in added)]
    assert StoreMatch(automaton, together).length == max(wanted, default=0)


def test_a_request_goes_on_while_its_store_drops_answers():
    store = store_of([[5, 6, 7, 8, 9]], 20)
    drafter = started([1, 5, 6], store)
    for number in range(10):
        store.add([20 + number] * 5)
    assert drafter.propose(10, 20, 0.01).token_ids == (7, 8, 9)
    drafter.observe([7], Verdict(1, 8))
    assert started([1, 5, 6], store).propose(10, 20, 0.01).token_ids == ()


def test_both_halves_are_copied_from():
    store = store_of([[5, 6, 7, 8], [1, 2, 3, 4], [9, 9, 9]], 20)
    assert len(store.automata) == 2
    for begin, following in (([0, 5, 6], (7, 8)), ([0, 1, 2], (3, 4))):
        for tree in (False, True):
            draft = started(begin, store, tree=tree).propose(10, *LIMITS)
            assert (draft.token_ids[:2], draft.source) == (following, "store")


@pytest.mark.parametrize("is_right", [True, False])
def test_drafters_of_a_run_learn_from_each_other(is_right):
    prompt = [*range(10, 50), 10, 11]

    def first_draft(drafter):
        drafter.start(prompt)
        draft = drafter.propose(100, 32, 0.02)
        taken = [*draft.token_ids, 99] if is_right else [99]
        drafter.observe(taken, Verdict(len(taken) - 1, 99))
        return draft

    make_drafter, make_other = (drafter_factory(DraftOptions("suffix")) for _ in range(2))
    drafts = [first_draft(make_drafter()) for _ in range(20)]
    lengths = [len(draft.token_ids) for draft in drafts]
    likely = [draft.probabilities[0] for draft in drafts if draft.probabilities]
    for values in (lengths, likely):
        assert values == sorted(values, reverse=not is_right)
        assert values[0] != values[-1]
    assert first_draft(make_other()) == drafts[0]
