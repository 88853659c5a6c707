"""Models as people load them: whatever was drafted, the answers are those of the baseline."""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from byte_model import save_byte_model
from gguf_file import save_gguf_model
from in_process import evaluate_into, rows_in
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, TorchAoConfig

from copyspec_eval.errors import ModelError
from copyspec_eval.harness.lm import CopySpecLM

Options = dict[str, Any]
Load = Callable[[Path, Path], Options]


def needs(package: str, version: str) -> None:
    how = f"NOT TESTED without {package}: pip install {package}=={version}"
    pytest.importorskip(package, reason=how)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wide enough for blocks of 64 weights."""
    folder = tmp_path_factory.mktemp("model")
    save_byte_model(folder, hidden_size=64)
    return folder


def saved_quantized(model: Path, config: Any, folder: Path) -> Options:
    auto: Any = AutoModelForCausalLM
    loaded = auto.from_pretrained(model, quantization_config=config, dtype=torch.bfloat16)
    loaded.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return {"pretrained": str(folder)}


def gguf(quantized: bool) -> Load:
    def load(model: Path, folder: Path) -> Options:
        folder.mkdir()
        save_gguf_model(model, folder / "some.gguf", quantized)
        dtype = "bfloat16" if quantized else "float32"
        return {"pretrained": str(folder), "gguf_file": "some.gguf", "dtype": dtype}

    return load


def torchao(bits: int) -> Load:
    """Four bits in eight: `Int4WeightOnlyConfig` itself has no kernels for a CPU."""

    def load(model: Path, folder: Path) -> Options:
        needs("torchao", "0.18.0")
        from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig, PerGroup

        four_bits = torch.int4  # type: ignore[attr-defined]
        four = IntxWeightOnlyConfig(weight_dtype=four_bits, granularity=PerGroup(32))
        config = Int8WeightOnlyConfig() if bits == 8 else four
        return saved_quantized(model, TorchAoConfig(config), folder)

    return load


def bitsandbytes(**config: Any) -> Load:
    def load(model: Path, folder: Path) -> Options:
        needs("bitsandbytes", "0.50.2")
        return saved_quantized(model, BitsAndBytesConfig(**config), folder)

    return load


def lora(model: Path, folder: Path) -> Options:
    needs("peft", "0.21.2")
    from peft import LoraConfig, get_peft_model

    auto: Any = AutoModelForCausalLM
    torch.manual_seed(0)
    config = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    get_peft_model(auto.from_pretrained(model), config).save_pretrained(str(folder))
    return {"peft": str(folder), "dtype": "bfloat16"}


def offload(model: Path, folder: Path) -> Options:
    """All that is beyond 100 kB lies on the disk."""
    limit = {"max_cpu_memory": "100KB", "offload_folder": str(folder)}
    return {"parallelize": True, **limit, "dtype": "float32"}


CONFIGURATION = """\
from transformers import LlamaConfig
class OwnConfig(LlamaConfig):
    model_type = 'own'
"""
MODELING = """\
from transformers import LlamaForCausalLM
from .configuration_own import OwnConfig
class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


def own_code(model: Path, folder: Path) -> Options:
    copytree(model, folder)
    (folder / "configuration_own.py").write_text(CONFIGURATION)
    (folder / "modeling_own.py").write_text(MODELING)
    config = json.loads((folder / "config.json").read_text()) | {
        "model_type": "own",
        "architectures": ["OwnForCausalLM"],
        "auto_map": {
            "AutoConfig": "configuration_own.OwnConfig",
            "AutoModelForCausalLM": "modeling_own.OwnForCausalLM",
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    return {"pretrained": str(folder), "trust_remote_code": True, "dtype": "float32"}


SAME_ANSWERS: dict[str, Load] = {"gguf": gguf(False), "offload": offload, "own code": own_code}
"""Those whose answers are the model's own in float32; the others have weights of their own."""
OTHER_ANSWERS: dict[str, Load] = {
    "quantized gguf": gguf(True),
    "torchao int8": torchao(8),
    "torchao int4": torchao(4),
    "bitsandbytes int8": bitsandbytes(load_in_8bit=True, llm_int8_threshold=0.0),
    "bitsandbytes nf4": bitsandbytes(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
    "lora": lora,
}
LOADS = {"float16": lambda *_: {"dtype": "float16"}, **SAME_ANSWERS, **OTHER_ANSWERS}


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("name", LOADS)
def test_answers_are_the_baselines(name, batch_size, model, our_questions, tmp_path):
    options = {"paired": True, **LOADS[name](model, tmp_path / "load")}

    def answers(folder: Path, options: Options) -> list[str]:
        figures = evaluate_into(folder, model, options, batch_size=batch_size, limit=4)
        rows = rows_in(folder)
        drafts = [each for row in rows for each in (row.counts.drafts or {}).values()]
        assert sum(each.num_accepted for each in drafts) > 50, "else nothing was drafted"
        assert figures["identical,none"] == 1 or not options.get("exact", True)
        assert not any(row.baseline and row.baseline.agreement == "diverged" for row in rows)
        return [row.answer for row in sorted(rows, key=lambda row: (row.doc_id, row.turn))]

    actual = answers(tmp_path / "exact", options)
    answers(tmp_path / "not exact", options | {"exact": False})
    dtype = options.get("dtype", "bfloat16")
    plain = answers(tmp_path / "plain", {"paired": True, "dtype": dtype})
    if name != "float16":
        assert (actual == plain) is (name in SAME_ANSWERS), "a load changes what it is to change"


@pytest.mark.slow
def test_what_is_beyond_the_memory_lies_on_the_disk(model, tmp_path):
    lm = CopySpecLM(str(model), device="cpu", **offload(model, tmp_path))
    assert "meta" in {weight.device.type for weight in lm.model.parameters()}


@pytest.mark.slow
def test_int8_with_outliers_is_refused(model, tmp_path):
    """They are columns of a step, so that a draft changes the numbers of the tokens before it."""
    load = bitsandbytes(load_in_8bit=True, llm_int8_threshold=1.0)
    options = load(model, tmp_path / "load")
    auto: Any = AutoModelForCausalLM
    loaded = auto.from_pretrained(tmp_path / "load")
    ids = torch.arange(48)[None]
    with torch.inference_mode():
        whole, cut = (loaded(input_ids=part).logits[0, :20] for part in (ids, ids[:, :20]))
    assert not torch.equal(whole, cut), "else there was nothing to refuse"
    for pretrained in (options["pretrained"], loaded):
        with pytest.raises(ModelError, match=r"\A.*llm_int8_threshold=1.0 makes .* 0.0.*\Z"):
            CopySpecLM(pretrained, tokenizer=str(model), device="cpu")


def test_code_that_nobody_trusts_is_not_run(model, tmp_path):
    options = own_code(model, tmp_path / "load") | {"trust_remote_code": None}
    for file in (tmp_path / "load").glob("*.py"):
        file.write_text("raise SystemExit('this ran')\n")
    with pytest.raises(ModelError, match=r"custom code.*trust_remote_code=True") as refusal:
        CopySpecLM(**options)
    assert "\n" not in str(refusal.value)
