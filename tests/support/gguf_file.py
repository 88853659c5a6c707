"""A Llama and its tokenizer as a GGUF file, as llama.cpp writes it."""

from pathlib import Path
from typing import Any

import pytest


def save_gguf_model(folder: Path, path: Path, quantized: bool = False) -> None:
    """Save what is in a transformers folder, in float32, or its matrices as Q8_0.

    Without the package gguf the test is skipped.
    """
    gguf = pytest.importorskip("gguf", reason="NOT TESTED without gguf: pip install gguf==0.19.0")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    auto: Any = AutoModelForCausalLM
    model, tokenizer = auto.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    writer = gguf.GGUFWriter(path, "llama")
    _add_config(writer, model.config)
    _add_tokenizer(writer, tokenizer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, model.config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        values, kind = _permuted(name, weight, model.config).contiguous().numpy(), None
        if quantized and values.ndim > 1:
            kind = gguf.GGMLQuantizationType.Q8_0
            values = gguf.quants.quantize(values, kind)
        writer.add_tensor(names.get_name(name, [".weight"]), values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_config(writer: Any, config: Any) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)


def _add_tokenizer(writer: Any, tokenizer: Any) -> None:
    vocabulary = tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    # 1 is a normal token, 3 a control token.
    writer.add_token_types([3 if token in tokenizer.all_special_tokens else 1 for token in tokens])
    # Of which its reader makes merges: none, for no token is made of two others.
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_chat_template(tokenizer.chat_template)


def _permuted(name: str, weight: Any, config: Any) -> Any:
    """Queries and keys in llama.cpp's order, which rotates neighbours in place of halves."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    num_heads = heads.get(name.split(".")[-2])
    if num_heads is None:
        return weight
    halves = weight.reshape(num_heads, 2, -1, weight.shape[-1])
    return halves.transpose(1, 2).reshape(weight.shape)
