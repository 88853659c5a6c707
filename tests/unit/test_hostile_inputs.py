"""Whatever is passed, and whatever files are there: an answer, or one line that says what to do."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from in_process import evaluate_into
from lm_eval.api.instance import Instance

from copyspec_eval.errors import CopySpecError, DataError, ModelError, OptionError, RequestError
from copyspec_eval.harness.lm import CopySpecLM


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"drafter": 5}, "drafter must be the name of a drafter, got 5"),
        ({"draft_model": {"a": 1}}, "draft_model must be the name of a model, got {'a': 1}"),
        ({"store": "a\ud800"}, "no such file or folder"),
        ({"store": "a\0b"}, "no such file or folder"),
        ({"store": "a" * 300}, "File name too long"),
        ({"device": 10**30}, "is not available"),
        ({"batch_size": "auto:x"}, "batch_size='auto:x' is neither"),
        ({"batch_size": "²"}, "batch_size='²' is neither"),
        ({"dtype": "floaty"}, "dtype='floaty': use a torch dtype"),
        ({"dtype": "int8"}, "dtype='int8': use a torch dtype"),
        ({"dtype": 5}, "dtype=5: use a torch dtype"),
        ({"device": "nope"}, "device='nope' is not available"),
        ({"device": "meta:x"}, "device='meta:x' is not available"),
        ({"device": "cuda:1"}, "device='cuda:1' is not available (CUDA devices: 0); pass e.g. cpu"),
        ({"device": "mps"}, "device='mps' is not available (Could not run 'aten::empty.memory_fo"),
        ({"max_length": 0}, "max_length=0 is not"),
        ({"max_length": 10**9}, "max_length=1000000000 is more than the 2048 positions"),
        ({"max_length": True}, "max_length=True is not"),
        ({"truncation": "x"}, "truncation must be true or false, got 'x'"),
        ({"parallelize": 1}, "parallelize must be true or false, got 1"),
        ({"peft": "adapter"}, "pip install peft"),
    ],
    ids=str,
)
def test_an_option_that_cannot_be_is_named(options, named, byte_model, monkeypatch):
    monkeypatch.setattr("copyspec_eval.harness.options.find_spec", lambda name: None)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    if options.get("device") == "mps" and torch.backends.mps.is_available():
        pytest.skip("there is one here")
    with pytest.raises(OptionError) as caught:
        CopySpecLM(str(byte_model), **options)
    assert named in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    if len(str(options)) < 100:
        assert len(str(caught.value)) < 250


@pytest.mark.parametrize("model", [5, b"x", ["a"]], ids=str)
def test_what_is_no_model_is_named(model):
    with pytest.raises(OptionError, match=r"^pretrained=.* is neither a model nor the name of one"):
        CopySpecLM(model)


def test_a_context_may_be_longer_by_the_users_word(byte_model):
    longer: Any = {"max_length": 4096, "max_position_embeddings": 4096, "device": "cpu"}
    assert CopySpecLM(str(byte_model), **longer).max_length == 4096


def test_a_small_context_is_refused_or_leaves_a_warning(byte_model, caplog):
    lm = CopySpecLM(str(byte_model), dtype="float64", device="cpu", exact=False, max_length=10)

    def answer(most: int) -> None:
        settings = {"until": [], "max_gen_toks": most}
        instance = Instance("generate_until", {}, ("a prompt of many", settings), 0, ("t", 0, 1))
        lm.generate_until([instance], disable_tqdm=True)

    with pytest.raises(RequestError, match="max_gen_toks=40 does not leave room"):
        answer(40)
    assert "Left truncation" not in caplog.text
    answer(4)
    assert "Left truncation applied" in caplog.text


UNREACHABLE = (
    """We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find
them in the cached files.""".replace("\n", " ")
    + "\n"
    + "Check your internet connection. " * 20
)


@pytest.mark.parametrize("option", ["pretrained", "tokenizer", "draft_model"])
def test_what_cannot_be_fetched_is_one_short_line(option, byte_model, monkeypatch):
    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError(UNREACHABLE)

    kind = "AutoTokenizer" if option == "tokenizer" else "AutoConfig"
    read = getattr(transformers, kind).from_pretrained

    def fetch(name: Any, **kwargs: Any) -> Any:
        return fail() if name == "no/such" else read(name, **kwargs)

    monkeypatch.setattr(f"transformers.{kind}.from_pretrained", fetch)
    given = {"pretrained": str(byte_model)} | {option: "no/such"}
    with pytest.raises(ModelError, match=f"^{option}='no/such' cannot be loaded: We cou") as caught:
        CopySpecLM(**given)
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def change(**changes: Any) -> Callable[[Path], object]:
    return lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", Path.unlink),
        ("model.safetensors", cut),
        ("model.safetensors", lambda path: path.write_bytes(b"")),
        ("model.safetensors", lambda path: path.write_bytes(b"\xff" * 99)),
        ("config.json", Path.unlink),
        ("config.json", cut),
        ("config.json", lambda path: path.write_text("[]")),
        ("config.json", change(hidden_size="x")),
        ("config.json", change(hidden_size=48)),
        ("tokenizer.json", Path.unlink),
        ("tokenizer.json", cut),
        ("tokenizer.json", lambda path: path.write_text("{}")),
        ("tokenizer_config.json", cut),
    ],
)
def test_damaged_files_of_a_model_are_one_line(name, damage, byte_model, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(byte_model, folder)
    damage(folder / name)
    blamed = "tokenizer" if name.startswith("tokenizer") else "pretrained"
    with pytest.raises(ModelError, match=f"^{blamed}='{folder}' cannot be loaded") as caught:
        CopySpecLM(str(folder), dtype="float32")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"until": 5}, "until=5 is neither"),
        ({"until": [None]}, r"until=\[None\] is neither"),
        ({"until": ["a", "\ud800"]}, r"until='\\ud800' has a lone surrogate"),
        ({"max_gen_toks": float("nan")}, "max_gen_toks.*nan"),
        ({"max_gen_toks": 10**30}, "does not leave room"),
        ({"do_sample": True, "temperature": "hot"}, "temperature.*hot"),
    ],
    ids=str,
)
def test_a_request_that_cannot_be_is_named(settings, named, byte_model, our_questions, tmp_path):
    with pytest.raises(CopySpecError, match=named) as caught:
        evaluate_into(tmp_path, byte_model, "dtype=float32,exact=false", gen_kwargs=settings)
    assert len(str(caught.value).splitlines()) == 1
    assert not list(tmp_path.rglob("turns*.jsonl"))


def test_half_a_character_is_named_with_its_document(byte_model, tmp_path, monkeypatch):
    data = tmp_path / "data" / "mt_bench"
    data.mkdir(parents=True)
    row: dict[str, Any] = {"question_id": 7, "category": "x", "turns": ["Half: \ud800.", "Again."]}
    (data / "question_redundant.jsonl").write_text(json.dumps(row) + "\n")
    monkeypatch.setenv("COPYSPEC_DATA_DIR", str(data.parent))
    with pytest.raises(DataError, match=r"question_redundant.jsonl:1: .*lone surrogate"):
        evaluate_into(tmp_path / "run", byte_model, "dtype=float32,exact=false")
    lm = CopySpecLM(str(byte_model), dtype="float32", exact=False)
    instance = Instance("generate_until", {}, (row["turns"][0], {"until": []}), 0, ("other", 5, 1))
    with pytest.raises(RequestError, match=r"document 5 of other: its prompt has a lone surr"):
        lm.generate_until([instance], disable_tqdm=True)
