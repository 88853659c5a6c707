"""`docs/hub/`, as transformers loads it from the Hub or from a folder."""

import functools
import re
from pathlib import Path
from typing import Any

import pytest
import transformers.dynamic_module_utils
from byte_model import loaded

import copyspec_eval
from copyspec_eval.errors import RequestError

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "hub"
GIVEN = {"max_new_tokens": 30, "custom_generate": str(FOLDER), "trust_remote_code": True}


@pytest.fixture(autouse=True)
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """`gamma` of each call of our loop."""
    made: list[Any] = []
    decode = copyspec_eval.custom_generate

    @functools.wraps(decode)  # transformers reads the names of its arguments
    def counted(*args: Any, **kwargs: Any) -> Any:
        made.append(kwargs.get("gamma"))
        return decode(*args, **kwargs)

    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.setattr(copyspec_eval, "custom_generate", counted)
    return made


def test_the_folder_is_loaded_by_generate(byte_model: Path, calls: list[Any]) -> None:
    model, tokenizer = loaded(byte_model)
    inputs = tokenizer("abcabcab", return_tensors="pt", return_token_type_ids=False)
    expected = model.generate(**inputs, max_new_tokens=30).tolist()
    assert calls == []
    assert model.generate(**inputs, **GIVEN, gamma=2).tolist() == expected
    assert calls == [2]
    with pytest.raises(RequestError, match="beam search"):
        model.generate(**inputs, **GIVEN, num_beams=2)
    with pytest.raises(ValueError, match="trust_remote_code"):
        model.generate(**inputs, **GIVEN | {"trust_remote_code": False})


def test_the_cards_code_runs(byte_model: Path, calls: list[Any]) -> None:
    [code] = re.findall(
        r"```python\n(.+?)```", (FOLDER / "README.md").read_text("utf-8"), re.DOTALL
    )
    for name, value in {"Qwen/Qwen2.5-0.5B-Instruct": byte_model, "REPOSITORY": FOLDER}.items():
        assert name in code
        code = code.replace(name, str(value))
    made: dict[str, Any] = {}
    exec(code, made)
    assert made["outputs"].shape[1] > made["inputs"]["input_ids"].shape[1]
    assert calls == [None]


def test_the_requirement_is_this_package() -> None:
    [line] = (FOLDER / "custom_generate" / "requirements.txt").read_text().splitlines()
    name, version = line.split(">=")
    assert name == "copyspec-eval"
    assert version.split(".") <= copyspec_eval.__version__.split(".")
