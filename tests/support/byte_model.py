"""A small random Llama on disk whose tokens are bytes, so that any text can be put to it."""

from pathlib import Path
from typing import Any

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def loaded(folder: Path) -> tuple[Any, Any]:
    """A model and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    auto: Any = AutoModelForCausalLM
    words: Any = AutoTokenizer
    return auto.from_pretrained(folder).eval(), words.from_pretrained(folder)


def save_byte_model(folder: Path, eos_factor: float = 1.0, hidden_size: int = 32) -> None:
    """Save model and tokenizer; 2,048 positions. Its answers repeat themselves, and do not end.

    With an `eos_factor`, of the EOS token's logit, of 1.7 they end after some 50 to 250 tokens.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer_class: Any = PreTrainedTokenizerFast
    fast = tokenizer_class(
        tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>", model_max_length=2048
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    shape: dict[str, Any] = {"hidden_size": hidden_size, "intermediate_size": 2 * hidden_size}
    shape |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    ids = {"eos_token_id": fast.eos_token_id, "pad_token_id": fast.pad_token_id}
    shape |= {"max_position_embeddings": 2048, "initializer_range": 0.1, "bos_token_id": None}
    config = LlamaConfig(vocab_size=len(fast), **shape, **ids)
    model = LlamaForCausalLM(config)
    model.lm_head.weight.data[fast.eos_token_id] *= eos_factor
    model.save_pretrained(folder)
