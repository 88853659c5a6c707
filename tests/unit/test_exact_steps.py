"""What exact mode measures of a model is kept, checked again at each load, and recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from copyspec_eval.harness.width_classes import class_lines, format_widths, step_kind
from transformers import AutoModelForCausalLM, AutoTokenizer

from copyspec_eval.decoding import exact_steps as kept
from copyspec_eval.decoding.exactness import fixed_steps, measure_exact_steps
from copyspec_eval.errors import ModelError, OptionError
from copyspec_eval.types import ExactSteps

_measurements: dict[tuple[int, int], ExactSteps | None] = {}
"""Of the one model, by widest width and batch size: a measurement takes seconds."""


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Batch sizes that were measured, in an empty cache."""
    monkeypatch.setattr("pooch.os_cache", lambda name: tmp_path / "cache" / name)
    log: list[int] = []

    def watched(model: Any, token_ids: Any, widest: int, batch_size: int) -> ExactSteps | None:
        log.append(batch_size)
        if (widest, batch_size) not in _measurements:
            steps = measure_exact_steps(model, token_ids, widest, batch_size)
            _measurements[widest, batch_size] = steps
        return _measurements[widest, batch_size]

    monkeypatch.setattr(kept, "measure_exact_steps", watched)
    return log


def steps(folder: Path, longest: int = 10, needed: int = 0, batch_size: int = 1) -> ExactSteps:
    auto: Any = AutoModelForCausalLM
    return kept.exact_steps(
        auto.from_pretrained(folder).eval(),
        AutoTokenizer.from_pretrained(folder),
        longest=longest,
        needed=needed,
        batch_size=batch_size,
    )


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").rglob("*.json"))


def test_steps_are_measured_once_for_every_drafter_and_each_batch_size(
    byte_model: Path, measured: list[int], tmp_path: Path
) -> None:
    first = steps(byte_model)
    assert steps(byte_model, longest=96) == first, "a longer draft has the same bits"
    assert measured == [1]
    steps(byte_model, batch_size=3)
    assert measured == [1, 3]
    assert len(files(tmp_path)) == 2
    steps(byte_model, longest=200, needed=200)
    assert measured == [1, 3, 1], "none of the widths kept is that wide"


def test_other_threads_and_settings_are_another_measurement(
    byte_model: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps(byte_model)
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    steps(byte_model)
    with torch.autocast("cpu", torch.bfloat16):
        steps(byte_model)
    assert measured == [1, 1, 1]


@pytest.mark.parametrize("text", ["", "{", '{"steps": {"kind": "three rows"}}', "[]", "\0"])
def test_a_torn_file_is_measured_anew(
    text: str, byte_model: Path, measured: list[int], tmp_path: Path
) -> None:
    first = steps(byte_model)
    [file] = files(tmp_path)
    file.write_text(text)
    assert steps(byte_model) == first
    assert measured == [1, 1]
    assert json.loads(file.read_text())["steps"]["kind"] == first.kind


def test_kept_steps_that_do_not_hold_are_measured_anew(
    byte_model: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a kernel had changed that nothing in the file's name shows."""
    first = steps(byte_model)
    assert {5, 10} < set(first.widths)
    load = AutoModelForCausalLM.from_pretrained

    def other_kernel(module: Any, inputs: Any, logits: torch.Tensor) -> torch.Tensor:
        return logits + (logits.shape[1] == 10)

    def loaded(folder: Path) -> Any:
        model = load(folder)
        model.lm_head.register_forward_hook(other_kernel)
        return model

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", loaded)
    _measurements.clear()
    assert set(first.widths) - set(steps(byte_model).widths) == {10}
    assert measured == [1, 1]
    _measurements.clear()


def test_without_a_place_to_keep_them_they_are_measured_each_time(
    byte_model: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("pooch.os_cache", lambda name: tmp_path / "file" / name)
    assert steps(byte_model) == steps(byte_model)
    assert measured == [1, 1]


def test_a_fixed_width_is_the_way_out_and_later_tokens_must_not_matter_there(
    byte_model: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "measure_exact_steps", lambda *arguments: None)
    assert steps(byte_model) == fixed_steps(10)
    assert steps(byte_model, longest=96).widths == (16,)
    assert steps(byte_model, longest=20, needed=20).widths == (32,)
    with pytest.raises(OptionError, match=r"num_draft_tokens=40 is over 31.*exact=false"):
        steps(byte_model, longest=40, needed=40)
    monkeypatch.setattr(kept, "check_exact_steps", lambda *arguments: False)
    with pytest.raises(ModelError, match="computes a token's logits from what follows"):
        steps(byte_model)


def test_the_command_names_every_width_once(byte_model: Path) -> None:
    lines = list(class_lines(str(byte_model), {"dtype": "float32"}, 20, [1, 2]))
    assert lines[0].startswith(f"{byte_model}, float32, cpu, ")
    for batch_size, line in zip((1, 2), lines[2:], strict=True):
        assert line.startswith(f"batch {batch_size}: ")
        widths = line.partition(": ")[2].partition(" (")[0].replace("|", ",").split(", ")
        named: list[int] = []
        for part in widths:
            first, _, last = part.strip().partition("-")
            named += range(int(first), int(last or first) + 1)
        assert sorted(named) == list(range(1, 21))
    with pytest.raises(OptionError, match="widest=7 is under 8"):
        next(class_lines(str(byte_model), {}, 7, [1]))


def test_widths_are_written_in_runs() -> None:
    assert format_widths((1,)) == "1"
    assert format_widths((2, 3, 5, 6, 7, 11)) == "2-3, 5-7, 11"
    assert step_kind([(1, 3), (2, 8)]) == "two rows"
    assert step_kind([(1, 2, 8)]) == "one row"
    assert step_kind([(1,), (2,), (3, 8)]) == "fixed width"
