"""Exact mode: not only the tokens, every logit is the same bits whatever was drafted."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from asking import asked, engine
from byte_model import loaded
from doubles import AdversarialDrafter, OracleDrafter, RandomDrafter, RecordingChooser
from steps import TEXT, exact_mode_of, first_mismatch
from tiny_models import ARCHITECTURES, larger_model, prompts, skip_if_refused, tiny_model
from ways import EXACT_WAYS

from copyspec_eval.decoding import kernels
from copyspec_eval.decoding.exactness import exact_mode
from copyspec_eval.drafters.base import NoDrafter
from copyspec_eval.drafters.registry import drafter_factory
from copyspec_eval.errors import ModelError, OptionError
from copyspec_eval.types import ExactMode

BUDGET = 24


def logits_of(model, make_drafter, batch_size, longest, order=1):
    """Output and the logits of every verified position, per prompt."""
    mode = exact_mode_of(model, batch_size, longest)
    sequences: Any = asked(prompts()[::order], BUDGET, RecordingChooser)
    made = engine(model, make_drafter, mode, longest, batch_size=batch_size)
    answers = [answer.token_ids for answer in made.generate(sequences)]
    return answers[::order], [each.chooser.logits for each in sequences][::order]


def check_same_bits(one, other, name=""):
    assert one[0] == other[0], name
    for expected, actual in zip(one[1], other[1], strict=True):
        assert actual.keys() == expected.keys(), name
        for position, bits in expected.items():
            assert torch.equal(actual[position], bits), f"{name}: position {position}"


def check_every_drafter(model, batch_size, longest=10):
    plain = logits_of(model, NoDrafter, batch_size, longest)
    answers = dict(zip(prompts(), plain[0], strict=True))
    makers = {name: drafter_factory(options) for name, options in EXACT_WAYS.items()}
    for double in (OracleDrafter, AdversarialDrafter, RandomDrafter):
        makers[double.__name__] = partial(double, answers, model.config.vocab_size)
    # A resumed run has other requests left, so other neighbours.
    check_same_bits(plain, logits_of(model, NoDrafter, batch_size, longest, order=-1))
    for name, make_drafter in makers.items():
        check_same_bits(plain, logits_of(model, make_drafter, batch_size, longest), name)


@pytest.mark.usefixtures("threads", "either_kernels")
@pytest.mark.parametrize(
    ("dtype", "batch_size"), [(torch.float32, 1), (torch.bfloat16, 4)], ids=str
)
def test_logits_are_the_same_bits(dtype, batch_size):
    check_every_drafter(larger_model(dtype), batch_size)


@pytest.mark.parametrize("num_draft_tokens", [3, 32])
def test_logits_are_the_same_bits_at_every_width(num_draft_tokens):
    check_every_drafter(larger_model(torch.bfloat16), 4, num_draft_tokens)


@pytest.mark.parametrize("model_type", ["mixtral", "gpt_oss", "gemma2", "gpt2"])
def test_the_same_bits_for_experts_windows_and_caps(model_type):
    check_every_drafter(tiny_model(model_type, torch.bfloat16), batch_size=4)


def defect(model, name, change):
    """Of a layer's output, `[rows, tokens, size]`; within the context that this gives."""
    layer = model.get_submodule(name)
    return layer.register_forward_hook(lambda _, given, output: change(output))


def flipped(output, place):
    output = output.clone()
    output[:, place] = torch.nextafter(output[:, place], torch.tensor(torch.inf))
    return output


UP, DOWN = "model.layers.1.mlp.up_proj", "model.layers.0.mlp.down_proj"
OUT = "model.layers.0.self_attn.o_proj"
DEFECTS = {
    "a token in a wide tile": (UP, lambda it: flipped(it, 2) if it.shape[1] > 2 else it),
    "the last of an odd number": ("lm_head", lambda it: flipped(it, -1) if it.shape[1] % 2 else it),
    "another order of sums in wide steps": (OUT, lambda it: it * 3 / 3 if it.shape[1] > 4 else it),
    "a single token": ("model.norm", lambda it: flipped(it, 0) if it.shape[1] == 1 else it),
    "what is beside a token": (DOWN, lambda it: it + it.mean() * 1e-6),
}
"""By what they depend on; where they are, and what they do."""
PLACES = {place: (DOWN, partial(flipped, place=place)) for place in (1, 3, 7, 11)}
"""Of a fixed width, with other bits."""


@pytest.mark.parametrize(
    ("layer", "change", "mode", "batch_size"),
    [
        *((*each, ExactMode(), size) for each in DEFECTS.values() for size in (1, 4)),
        *((*each, ExactMode(16), 2) for each in PLACES.values()),
    ],
    ids=[*(f"{name}-{size}" for name in DEFECTS for size in (1, 4)), *map(str, PLACES)],
)
def test_a_defect_is_seen_and_its_module_named(layer, change, mode, batch_size):
    model, longest = copy.deepcopy(larger_model(torch.float32)), (mode.width or 33) - 1
    assert first_mismatch(model, TEXT, mode, longest, batch_size) is None
    with defect(model, layer, change):
        outcome: Any = first_mismatch(model, TEXT, mode, longest, batch_size)
        assert outcome.module == layer
    assert first_mismatch(model, TEXT, mode, longest, batch_size) is None


attend = kernels.attend


def leaking(query, key, value, mask, *others, **more):
    """Each token sees the one behind it, too."""
    return attend(query, key, value, mask | mask.roll(1, dims=-1), *others, **more)


def rounding(query, key, *others, **more):
    output = attend(query, key, *others, **more)
    return output * 3 / 3 if key.shape[2] > 256 else output


@pytest.mark.usefixtures("our_kernels")
@pytest.mark.parametrize(
    ("defect", "mode", "what"),
    [
        (leaking, ExactMode(), ""),
        (leaking, ExactMode(16), ""),
        (rounding, ExactMode(), "in steps of 2"),  # after a prompt with fewer keys
    ],
)
def test_masked_keys_that_count_are_seen(defect, mode, what, monkeypatch):
    monkeypatch.setattr(kernels, "attend", defect)
    # Steps that were recorded before call the kernel that they recorded.
    model = copy.deepcopy(larger_model(torch.float32))
    outcome: Any = first_mismatch(model, TEXT, mode, 15, 1)
    assert outcome.what.startswith(what)


def test_where_widths_differ_every_step_has_one_or_the_model_is_refused(byte_model):
    model, tokenizer = loaded(byte_model)
    ways = partial(exact_mode, model, tokenizer, longest=10, batch_size=1)
    assert ways(needed=0).width in (None, 16)
    with defect(model, *DEFECTS["a single token"]):
        assert ways(needed=0) == ExactMode(16)
        assert ways(needed=20) == ExactMode(32)
        with pytest.raises(OptionError, match=r"num_draft_tokens=40 is over 31.*exact=false"):
            ways(needed=40)
    with (
        defect(model, *DEFECTS["what is beside a token"]),
        pytest.raises(ModelError, match=r"first in model.layers.0.mlp.down_proj\); pass exact=fa"),
    ):
        ways(needed=0)


@pytest.mark.usefixtures("our_kernels", "threads")
@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_kernels_compute_tokens_alone(model_type, dtype, batch_size):
    """Sizes are such that torch's own code for the last values would be met."""
    skip_if_refused(model_type)
    assert first_mismatch(tiny_model(model_type, dtype), TEXT, ExactMode(), 32, batch_size) is None
