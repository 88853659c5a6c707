"""The check of exact mode at libraries whose bits depend on shapes: see `simulated_library`."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from asking import asked, engine
from doubles import OracleDrafter, RandomDrafter, RecordingChooser
from simulated_library import AGAIN, LIBRARIES, WIDTH, Library, Linear, simulated_model
from steps import first_mismatch

from copyspec_eval.decoding import exactness
from copyspec_eval.decoding.exactness import exact_mode
from copyspec_eval.drafters.base import NoDrafter
from copyspec_eval.errors import ModelError
from copyspec_eval.types import ExactMode

TEXT = [(7 * index * index + 3 * index) % 127 + 1 for index in range(611)]
PROMPTS = [tuple(TEXT[start : start + length]) for start, length in ((0, 7), (50, 60), (9, 30))]
SEVERAL = 3
"""Rows of a batch."""


def tokenizer(text: str, **options: Any) -> dict[str, list[int]]:
    return {"input_ids": TEXT}


def outcome(library: Library, mode: ExactMode, batch_size: int) -> str:
    """Why the check refuses a mode; "" where it grants it."""
    with library.installed():
        mismatch = first_mismatch(simulated_model(), TEXT, mode, WIDTH - 1, batch_size)
    return "" if mismatch is None else mismatch.what.rpartition(",")[0]


def outcomes(library: Library) -> list[str]:
    fixed = [outcome(library, ExactMode(WIDTH), batch_size) for batch_size in (1, SEVERAL)]
    return [outcome(library, ExactMode(), 1), *fixed]


def verdict(library: Library) -> list[str]:
    return [library.invariant, *library.fixed]


def logits_of(mode: ExactMode | None, make_drafter: Callable[..., Any], batch_size: int) -> Any:
    """Answers, and the bits of each of their positions."""
    sequences: Any = asked(PROMPTS, 16, RecordingChooser)
    made = engine(simulated_model(), make_drafter, mode, WIDTH - 1, batch_size=batch_size)
    answers = [answer.token_ids for answer in made.generate(sequences)]
    return answers, [each.chooser.logits for each in sequences]


def is_exact(
    mode: ExactMode | None, batch_size: int, doubles: Sequence[type[OracleDrafter]]
) -> bool:
    """Whether answers have the tokens and the bits of plain decoding, whatever is drafted."""
    answers, bits = logits_of(mode, NoDrafter, batch_size)
    known = dict(zip(PROMPTS, answers, strict=True))
    for double in doubles:
        make = partial(double, known, simulated_model().config.vocab_size)
        drafted, drafted_bits = logits_of(mode, make, batch_size)
        pairs = [
            (plain[place], other.get(place))
            for plain, other in zip(bits, drafted_bits, strict=True)
            for place in plain
        ]
        if drafted != answers or not all(torch.equal(*pair) for pair in pairs):
            return False
    return True


DOUBLES = (OracleDrafter, RandomDrafter)


@pytest.mark.parametrize("name", LIBRARIES)
def test_what_is_granted_is_exact_and_the_rest_is_refused_for_the_right_reason(name):
    library = LIBRARIES[name]
    assert outcome(library, ExactMode(), 1) == library.invariant
    for batch_size, reason in zip((1, SEVERAL), library.fixed, strict=True):
        with library.installed():
            # No kernels of ours are there, so a fixed width is all that may be chosen.
            choose = partial(exact_mode, simulated_model(), tokenizer, longest=10, needed=0)
            if reason:
                with pytest.raises(ModelError, match=rf"\({reason}, .*, first in .*; pass exact="):
                    choose(batch_size=batch_size)
            else:
                assert choose(batch_size=batch_size) == ExactMode(WIDTH)
                assert is_exact(ExactMode(WIDTH), batch_size, DOUBLES)
    if not library.invariant:
        with library.installed():
            assert is_exact(ExactMode(), 1, DOUBLES)


@pytest.mark.parametrize(
    "name", ["one kernel for a single token", "split-k by the number of tokens"]
)
def test_without_exact_mode_such_a_library_gives_other_bits(name):
    with LIBRARIES[name].installed():
        assert not is_exact(None, 1, [OracleDrafter])


differ, readings = exactness._differ, exactness._readings
read = exactness._Text.read


def last_place(one: torch.Tensor, other: torch.Tensor) -> bool:
    count = min(len(one), len(other))
    return differ(one[count - 1 : count], other[count - 1 : count])


def chosen_tokens(one: torch.Tensor, other: torch.Tensor) -> bool:
    return differ(one.argmax(-1), other.argmax(-1))


def without(*names: str) -> Callable[..., Any]:
    return lambda *given: (each for each in readings(*given) if not each.name.startswith(names))


def first_row(*given: Any, **more: Any) -> list[torch.Tensor]:
    return read(*given, **more)[:1]


DEFECTS: dict[str, tuple[Any, str, Any, str]] = {
    "only the last place is compared": (exactness, "_differ", last_place, "one place of a row"),
    "only the tokens are compared": (exactness, "_differ", chosen_tokens, "the row's tile"),
    "only the first row is compared": (exactness._Text, "read", first_row, "the row's tile"),
    "steps begin at one place in a block of keys": (
        *(exactness, "_readings", without("where a block")),
        "blocks of keys up to the step's end",
    ),
    "no step ends with a block of keys": (
        *(exactness, "_readings", without("where a block of keys ends with")),
        "a block of keys that ends with the step",
    ),
    "all tokens stand at the first places": (
        *(exactness, "_readings", without("at other places", "where a block")),
        "one place of a row",
    ),
    "other rows are empty": (
        *(exactness, "_readings", without("beside other rows")),
        "the largest number of the step",
    ),
    "no other keys are masked": (
        *(exactness, "_readings", without("with more masked keys")),
        "the number of keys",
    ),
}
"""Planted in the check: what is replaced, by what, and the library whose verdict turns."""


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_of_the_check_turns_a_verdict(name, monkeypatch):
    *change, library = DEFECTS[name]
    monkeypatch.setattr(*change)
    assert outcomes(LIBRARIES[library]) != verdict(LIBRARIES[library])


def test_what_changes_after_other_traffic_is_read_again(monkeypatch):
    mode = ExactMode(WIDTH)
    calls: list[Linear] = []

    def note(call: Linear) -> int:
        calls.append(call)
        return 0

    assert outcome(Library(linear=note), mode, 1) == ""
    in_the_last_reading = calls[-10].num_calls
    changing = Library(linear=lambda call: call.num_calls > in_the_last_reading)
    assert outcome(changing, mode, 1) == AGAIN
    monkeypatch.setattr(exactness, "_readings", without(AGAIN))
    assert outcome(changing, mode, 1) == ""
