"""Which models are served: what cache and attention do, and which defects the trial finds."""

import copy
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from accelerate import disk_offload
from asking import asked, engine, generated, model_from
from matrix.outcomes import Outcome, outcome
from matrix.shapes import tiny_config as tiny_shape
from matrix.shapes import tiny_model as tiny_architecture
from steps import first_mismatch
from tiny_models import ARCHITECTURES, prompts, skip_if_refused, tiny_config, tiny_model
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, causal_mask_function

from copyspec_eval.decoding import attention, model_support, repeated_steps, row_runner
from copyspec_eval.decoding import forward as forward_module
from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.forward import Part
from copyspec_eval.decoding.modules import experts
from copyspec_eval.decoding.row_runner import PREFILL_CHUNK
from copyspec_eval.decoding.trial import check_cache
from copyspec_eval.errors import ModelError, RequestError
from copyspec_eval.types import DraftOptions, ExactMode


def test_attention_with_a_tensor_that_it_does_not_know_is_refused() -> None:
    states, mask = torch.ones(1, 1, 1, 8), torch.ones(1, 1, 1, 1, dtype=torch.bool)
    place = torch.zeros(1, dtype=torch.long)
    with attention.masked_as(forward_module._step([Part(0, 0, [0])], place, place, place, 1)):
        attend = partial(attention.attend, torch.nn.Identity(), states, states, states, mask)
        attend(position_ids=torch.zeros(1, 1), sliding_window=4, position_bias=None)
        with pytest.raises(ModelError, match="attention with 'position_bias' is not supported"):
            attend(position_bias=torch.ones(1))


def answer(model: Any, prompt: tuple[int, ...], budget: int, exact: bool = True) -> list[int]:
    options, mode = DraftOptions("copyspec", gamma=1), ExactMode(16) if exact else None
    [made] = engine(model, options, mode).generate(asked([prompt], budget))
    return [*made.token_ids]


@pytest.mark.parametrize("exact", [True, False])
def test_a_prompt_longer_than_a_chunk(exact: bool) -> None:
    model = model_from(tiny_config("gemma2", max_position_embeddings=4 * PREFILL_CHUNK))
    prompt = (prompts()[1] * 40)[: 2 * PREFILL_CHUNK + 7]
    assert answer(model, prompt, 12, exact) == generated(model, prompt, 12)


def test_answers_may_end_at_the_last_position_of_the_model() -> None:
    """Padding then stands where a learned position embedding has no row."""
    model, prompt = tiny_model("gpt2"), (prompts()[1] * 10)[:240]
    assert answer(model, prompt, 16) == generated(model, prompt, 16)


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [
        ("bloom", "does not use transformers' attention interface"),
        ("qwen3_next", "layers of type linear_attention"),
        ("rwkv", "a recurrent state"),
    ],
)
def test_architectures_that_need_their_model_cache(architecture: str, reason: str) -> None:
    assert reason in model_support.needs_model_cache(tiny_shape(architecture))


def test_int8_with_outliers_and_encoder_decoders_are_refused() -> None:
    config = tiny_config("llama")
    make = partial(hf.BitsAndBytesConfig, load_in_8bit=True)
    config.quantization_config = make(llm_int8_threshold=0.0)
    model_support.check_config(config)
    for given in (make(llm_int8_threshold=6.0), make(llm_int8_threshold=6.0).to_dict()):
        config.quantization_config = given
        with pytest.raises(ModelError, match=r"llm_int8_threshold=6.0 .* set it to 0.0"):
            model_support.check_config(config)
    with pytest.raises(ModelError, match=r"an encoder-decoder.*use --model hf"):
        model_support.check_config(hf.BartConfig())


@pytest.mark.parametrize(
    "architecture",
    # Masks of the model, rotations by complex numbers, no recurrent layer in a class that has them.
    [
        *("qwen2_moe", "phimoe", "gemma4_text", "doge", "afmoe"),
        *("llama4_text", "granitemoehybrid, attention only"),
    ],
)
def test_unusual_models_that_the_engines_cache_serves(architecture: str) -> None:
    assert outcome(architecture) == Outcome(architecture, "equal", cache="copyspec")


def test_experts_are_found_in_the_modules() -> None:
    names = ["mixtral", "aria_text", "dbrx", "doge, with experts"]
    names += ["qwen2", "doge", "gemma3n_text", "granitemoehybrid, attention only"]
    models = [tiny_architecture(tiny_shape(name)) for name in names]
    assert [*map(model_support.has_experts, models)] == [True] * 4 + [False] * 4


def test_a_model_that_is_kept_on_disk_is_served(tmp_path: Path) -> None:
    model = copy.deepcopy(tiny_model("llama"))
    disk_offload(model, tmp_path, execution_device=torch.device("cpu"))
    assert model.device == torch.device("meta")
    check_cache(model, "copyspec", exact=True)


@pytest.mark.usefixtures("torchs_kernels")
def test_exact_mode_refuses_experts_that_cannot_be_switched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_model("mixtral")
    model_support.check_exact(model)
    monkeypatch.setattr(type(model), "_can_set_experts_implementation", lambda *_: False)
    with pytest.raises(ModelError, match=r"routes tokens to experts.*exact=false"):
        model_support.check_exact(model)


def test_a_rotary_embedding_that_changes_with_length_is_kept_below_its_limit() -> None:
    most = {"original_max_position_embeddings": 64}
    config = tiny_config("phi3", **most)
    config.rope_parameters = {"rope_type": "longrope", "rope_theta": 1e4, **most}
    config.rope_parameters |= {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    model = model_from(config, std=None)
    assert len(answer(model, prompts()[0], 64 - 5 - 15)) == 44
    with pytest.raises(RequestError, match=r"up to 65 positions, but past 64 .*longrope"):
        answer(model, prompts()[0], 64 - 5 - 14)


OTHER_LOGITS = "gives other logits through the engine's cache"
FROM_THE_STEP = "computes a token's logits differently with other tokens in its step"
HALVES = (torch.float16, torch.bfloat16)
check = partial(check_cache, cache="copyspec")


def windowed(window: int) -> Any:
    return model_from(tiny_config("mistral", sliding_window=window), std=None)


@pytest.mark.parametrize("batch_size", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize(
    ("model_type", "dtype"),
    [
        *((name, torch.float32) for name in ARCHITECTURES),
        *((name, torch.float64) for name in ("qwen2", "gemma2")),  # torch has no experts in it
        *((name, dtype) for name in ("qwen2", "gemma2", "mixtral", "gpt_oss") for dtype in HALVES),
    ],
)
def test_sound_models_pass(model_type: str, dtype: torch.dtype, batch_size: int) -> None:
    skip_if_refused(model_type)
    for exact in (True, False):
        check(tiny_model(model_type, dtype), exact=exact, batch_size=batch_size)


def test_the_model_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def state() -> Any:
        return vars(model.config).copy(), [vars(module).copy() for module in model.modules()]

    model = windowed(4096)
    before = state()
    check(model, exact=False)
    monkeypatch.setattr(row_runner, "forward", failing)
    with pytest.raises(ModelError):
        check(model, exact=False)
    assert state() == before


def scaled(over: tuple[int, ...], _: Any, given: tuple[torch.Tensor]) -> torch.Tensor:
    scale = given[0].abs().amax(over, keepdim=True) / 127
    return (given[0] / scale).round() * scale


@pytest.mark.parametrize("over", [(0, 1, 2), (2,)], ids=["per tensor", "per token"])
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_a_scale_per_tensor(dtype: torch.dtype, over: tuple[int, ...]) -> None:
    model = copy.deepcopy(tiny_model("qwen2", dtype=dtype))
    for layer in model.model.layers:
        layer.mlp.down_proj.register_forward_pre_hook(partial(scaled, over))
    model.is_quantized = True
    is_sound = over == (2,)
    with nullcontext() if is_sound else pytest.raises(ModelError, match=FROM_THE_STEP):
        check(model, exact=False)
    assert is_sound != bool(first_mismatch(model, range(1, 60), ExactMode(16), 15, 1))


def unrestricted(**given: Any) -> Any:
    return attention.make_mask(**given | {"mask_function": causal_mask_function})


def other_experts(*given: Any, expert: Any = experts._expert) -> Any:
    return expert(*given) * 3


def looking_ahead(*given: Any, step: Any = forward_module._step) -> Any:
    _, _, slots, _, extent = given
    visible = (torch.arange(extent) <= slots[:, None] + 1)[None, None]
    return replace(step(*given), visible=visible)


def shifted(*given: Any, update: Any = RowCache.update, **options: Any) -> Any:
    keys, values = (states.clone() for states in update(*given, **options))
    if keys.shape[2] > 16:
        keys[:, :, 14] = keys[:, :, 13]
    return keys, values


def without_trees(parts: Any, *rest: Any, step: Any = forward_module._step) -> Any:
    return step([part._replace(parents=None) for part in parts], *rest)


def biased(model: Any, cache: Any, parts: Any, **options: Any) -> torch.Tensor:
    logits = forward_module.forward(model, cache, parts, **options)
    is_wide = parts[0].start and len(parts[0].token_ids) > 1
    return logits + 0.02 * logits.std() if is_wide else logits


def failing(*given: Any, **options: Any) -> Any:
    raise IndexError("too\nfar")


QWEN2 = partial(tiny_model, "qwen2")
AHEAD = (forward_module, "_step", looking_ahead, False, f"{FROM_THE_STEP}|{OTHER_LOGITS}")
MASKS = (ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, attention.NAME, unrestricted)


@pytest.mark.usefixtures("torchs_kernels")
@pytest.mark.parametrize(
    ("make", "owner", "name", "defect", "exact", "message"),
    [
        (partial(windowed, 12), *MASKS, False, OTHER_LOGITS),
        (partial(windowed, 4096), *MASKS, False, OTHER_LOGITS),
        (partial(tiny_model, "mixtral"), experts, "_expert", other_experts, True, OTHER_LOGITS),
        *((partial(QWEN2, each), *AHEAD) for each in (torch.float32, *HALVES)),
        (QWEN2, RowCache, "update", shifted, False, OTHER_LOGITS),
        (QWEN2, forward_module, "_step", without_trees, False, f"{OTHER_LOGITS}.*in a tree"),
        (QWEN2, repeated_steps, "forward", biased, False, f"{OTHER_LOGITS}.*in a step"),
        (QWEN2, RowCache, "update", failing, False, r"cache \(IndexError: too far\); use --model"),
    ],
)
def test_a_defect_is_found(
    make: Any, owner: Any, name: str, defect: Any, exact: bool, message: str, monkeypatch: Any
) -> None:
    model = make()
    check(model, exact=exact)
    replaced = monkeypatch.setitem if isinstance(owner, dict) else monkeypatch.setattr
    replaced(owner, name, defect)
    with pytest.raises(ModelError, match=message):
        check(model, exact=exact)


def test_compiled_models_are_refused() -> None:
    model = copy.deepcopy(tiny_model("qwen2"))
    with pytest.raises(ModelError, match="pass the module within"):
        check(torch.compile(model), exact=False)  # type: ignore[arg-type]
    model.compile()
    with pytest.raises(ModelError, match="pass one that is not"):
        check(model, exact=False)


def test_a_model_whose_own_forward_fails_is_refused_in_a_line() -> None:
    model = copy.deepcopy(tiny_model("llama"))
    model.lm_head.forward = failing
    with pytest.raises(ModelError, match=r"fails in its own forward \(IndexError: too far\); che"):
        check(model, exact=True)
