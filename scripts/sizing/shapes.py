"""Sizes of models and devices, each with its source."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Shape:
    """What decides how many weights a decoder has, and how many of them a token needs.

    It is that of Llama, or of Qwen3 with experts: gated MLPs, no biases, two norms per layer.

    Attributes:
        num_layers, hidden, num_heads, num_kv_heads, head_dim, vocabulary: as in its config.
        intermediate: width of the MLP, or of each expert.
        num_experts, experts_per_token: 1 and 1 without experts.
        is_tied: whether the embeddings are the output layer, too.
        has_head_norms: whether queries and keys are normed, by weights of the size of a head.
    """

    num_layers: int
    hidden: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocabulary: int
    num_experts: int = 1
    experts_per_token: int = 1
    is_tied: bool = False
    has_head_norms: bool = False

    @property
    def expert_weights(self) -> int:
        """Of one expert of one layer, or of its MLP."""
        return 3 * self.hidden * self.intermediate

    @property
    def shared_weights(self) -> int:
        """Of one layer without its experts: attention, norms, router."""
        heads = self.num_heads + self.num_kv_heads
        attention = 2 * self.hidden * heads * self.head_dim
        norms = 2 * self.hidden + (2 * self.head_dim if self.has_head_norms else 0)
        router = self.hidden * self.num_experts if self.num_experts > 1 else 0
        return attention + norms + router

    @property
    def head_weights(self) -> int:
        """Of the output layer."""
        return self.hidden * self.vocabulary

    @property
    def num_weights(self) -> int:
        """Of the whole model."""
        embeddings = 0 if self.is_tied else self.head_weights
        return int(self.used_weights(self.num_experts)) + embeddings

    def used_weights(self, num_experts: float) -> float:
        """Of all layers with so many of their experts each, and of the output layer."""
        layer = self.shared_weights + num_experts * self.expert_weights
        return self.num_layers * layer + self.head_weights + self.hidden

    @property
    def cached_values(self) -> int:
        """Numbers of the cache per token: keys and values of all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim


def shape_of(config: Any) -> Shape:
    """The shape in the config of a Llama or Qwen3-MoE model of transformers."""
    num_experts = getattr(config, "num_experts", None) or 1
    return Shape(
        num_layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        intermediate=config.intermediate_size if num_experts == 1 else config.moe_intermediate_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        vocabulary=config.vocab_size,
        num_experts=num_experts,
        experts_per_token=config.num_experts_per_tok if num_experts > 1 else 1,
        is_tied=config.tie_word_embeddings,
        has_head_norms=config.model_type == "qwen3_moe",
    )


@dataclass(frozen=True, slots=True)
class Device:
    """What a step is done on.

    Attributes:
        memory: in bytes.
        bandwidth: of its memory, in bytes per second.
        flops: dense products in bfloat16, in floating-point operations per second.
    """

    memory: float
    bandwidth: float
    flops: float


LLAMA_8B = Shape(32, 4096, 14336, 32, 8, 128, 128256)
LLAMA_70B = Shape(80, 8192, 28672, 64, 8, 128, 128256)
QWEN_235B = Shape(94, 4096, 1536, 64, 4, 128, 151936, 128, 8, has_head_norms=True)

MODELS = {"Llama-3.1-8B": LLAMA_8B, "Llama-3.1-70B": LLAMA_70B, "Qwen3-235B-A22B": QWEN_235B}

H100 = Device(memory=80e9, bandwidth=3.35e12, flops=1979e12 / 2)

SOURCES = (
    "Shapes: `config.json` of meta-llama/Llama-3.1-8B and 70B, and of Qwen/Qwen3-235B-A22B. Their "
    "numbers of weights are computed, equal those of transformers' own models of these configs (a "
    "test compares them), and are what the model cards publish: 8.03, 70.6 and 235 billion, of "
    "which 22 billion are active.",
    "GPU: NVIDIA's data sheet of the H100 SXM: 80 GB, 3.35 TB/s, 1,979 TFLOPS in bfloat16 with "
    "sparsity, of which dense products get half.",
    "CPU: measured, as the section before this says.",
)
