"""Models as people load them: whatever was drafted, the answers are those of the baseline."""

import json
from importlib.util import find_spec
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


def needs(package: str, version: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"NOT TESTED without {package}: pip install {package}=={version}")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wide enough for blocks of 64 weights."""
    folder = tmp_path_factory.mktemp("model")
    save_byte_model(folder, hidden_size=64)
    return folder


def saved_quantized(model: Path, config: Any, folder: Path) -> Options:
    auto: Any = AutoModelForCausalLM
    auto.from_pretrained(model, quantization_config=config, dtype=torch.bfloat16).save_pretrained(
        folder
    )
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return {"pretrained": str(folder)}


def float16(model: Path, folder: Path) -> Options:
    return {"dtype": "float16"}


def gguf(model: Path, folder: Path) -> Options:
    folder.mkdir()
    save_gguf_model(model, folder / "whole.gguf")
    return {"pretrained": str(folder), "gguf_file": "whole.gguf", "dtype": "float32"}


def quantized_gguf(model: Path, folder: Path) -> Options:
    folder.mkdir()
    save_gguf_model(model, folder / "q8.gguf", quantized=True)
    return {"pretrained": str(folder), "gguf_file": "q8.gguf", "dtype": "bfloat16"}


def torchao_int8(model: Path, folder: Path) -> Options:
    needs("torchao", "0.18.0")
    from torchao.quantization import Int8WeightOnlyConfig

    return saved_quantized(model, TorchAoConfig(Int8WeightOnlyConfig()), folder)


def torchao_int4(model: Path, folder: Path) -> Options:
    """Four bits in eight: `Int4WeightOnlyConfig` itself has no kernels for a CPU."""
    needs("torchao", "0.18.0")
    from torchao.quantization import IntxWeightOnlyConfig, PerGroup

    four_bits = torch.int4  # type: ignore[attr-defined]
    config = IntxWeightOnlyConfig(weight_dtype=four_bits, granularity=PerGroup(32))
    return saved_quantized(model, TorchAoConfig(config), folder)


def bitsandbytes_int8(model: Path, folder: Path) -> Options:
    needs("bitsandbytes", "0.50.2")
    config = BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0)
    return saved_quantized(model, config, folder)


def bitsandbytes_nf4(model: Path, folder: Path) -> Options:
    needs("bitsandbytes", "0.50.2")
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    return saved_quantized(model, config, folder)


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


def own_code(model: Path, folder: Path) -> Options:
    copytree(model, folder)
    (folder / "configuration_own.py").write_text(
        "from transformers import LlamaConfig\n\n\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own'\n"
    )
    (folder / "modeling_own.py").write_text(
        "from transformers import LlamaForCausalLM\nfrom .configuration_own import OwnConfig\n\n\n"
        "class OwnForCausalLM(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "own"
    config["architectures"] = ["OwnForCausalLM"]
    config["auto_map"] = {
        "AutoConfig": "configuration_own.OwnConfig",
        "AutoModelForCausalLM": "modeling_own.OwnForCausalLM",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return {"pretrained": str(folder), "trust_remote_code": True, "dtype": "float32"}


SAME_ANSWERS = (gguf, offload, own_code)
"""Those whose answers are the model's own in float32; the others have weights of their own."""


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize(
    "load",
    [
        float16,
        gguf,
        quantized_gguf,
        torchao_int8,
        torchao_int4,
        bitsandbytes_int8,
        bitsandbytes_nf4,
        lora,
        offload,
        own_code,
    ],
    ids=lambda load: load.__name__,
)
def test_answers_are_the_baselines(load, batch_size, model, our_questions, tmp_path):
    options = load(model, tmp_path / "load")

    def answers(name: str, options: Options) -> list[str]:
        options = {"paired": True} | options
        figures = evaluate_into(tmp_path / name, model, options, batch_size=batch_size, limit=4)
        rows = rows_in(tmp_path / name)
        drafts = [each for row in rows for each in (row.counts.drafts or {}).values()]
        assert sum(each.num_accepted for each in drafts) > 50, "else nothing was drafted"
        assert figures["identical,none"] == 1 or not options.get("exact", True)
        assert not any(row.baseline and row.baseline.agreement == "diverged" for row in rows)
        return [row.answer for row in sorted(rows, key=lambda row: (row.doc_id, row.turn))]

    actual = answers("exact", options)
    answers("not exact", options | {"exact": False})
    plain = answers("plain", {"dtype": options.get("dtype", "bfloat16")})
    if load in SAME_ANSWERS:
        assert actual == plain
    elif load is not float16:
        assert actual != plain, "else the load has changed nothing"


@pytest.mark.slow
def test_what_is_beyond_the_memory_lies_on_the_disk(model, tmp_path):
    lm = CopySpecLM(str(model), device="cpu", **offload(model, tmp_path))
    assert "meta" in {weight.device.type for weight in lm.model.parameters()}


@pytest.mark.slow
def test_int8_with_outliers_is_refused(model, tmp_path):
    """They are columns of a step, so that a draft changes the numbers of the tokens before it."""
    needs("bitsandbytes", "0.50.2")
    config = BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=1.0)
    options = saved_quantized(model, config, tmp_path / "load")
    auto: Any = AutoModelForCausalLM
    loaded = auto.from_pretrained(tmp_path / "load")
    ids = torch.arange(48)[None]
    with torch.inference_mode():
        whole, cut = (loaded(input_ids=part).logits[0, :20] for part in (ids, ids[:, :20]))
    assert not torch.equal(whole, cut), "else there was nothing to refuse"
    for pretrained in (options["pretrained"], loaded):
        with pytest.raises(
            ModelError, match=r"llm_int8_threshold=1.0 makes .* set it to 0.0"
        ) as no:
            CopySpecLM(pretrained, tokenizer=str(model), device="cpu")
        assert "\n" not in str(no.value)


def test_code_that_nobody_trusts_is_not_run(model, tmp_path):
    options = own_code(model, tmp_path / "load") | {"trust_remote_code": None}
    for file in (tmp_path / "load").glob("*.py"):
        file.write_text("raise SystemExit('this ran')\n")
    with pytest.raises(ModelError, match=r"custom code.*trust_remote_code=True") as refusal:
        CopySpecLM(**options)
    assert "\n" not in str(refusal.value)
