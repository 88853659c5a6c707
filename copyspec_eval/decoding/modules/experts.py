"""Mixture-of-experts layers whose bits do not depend on how other tokens are routed.

The stock implementations group tokens by expert, so that a draft token changes the shapes that its
neighbours are computed in. Our kernels are immune: with `ROUTED`, each expert computes its tokens.
With other kernels, `DENSE` has every expert compute every token, and the routing weights decide
what counts.
"""

from typing import Any

import torch
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

ROUTED, DENSE = "copyspec_routed", "copyspec_dense"
"""Names in transformers' experts interface."""


def compute_routed_tokens(
    self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """As `compute_every_expert`, of the tokens that are routed to each expert alone."""
    output = torch.zeros_like(hidden_states)
    for expert in sorted({*top_k_index.flatten().tolist()}):
        if expert >= self.num_experts:
            continue
        tokens, places = torch.where(top_k_index == expert)
        weight = top_k_weights[tokens, places, None]
        contribution = _expert(self, expert, hidden_states[tokens]) * weight
        output[tokens] += contribution.to(output.dtype)
    return output


def compute_every_expert(
    self: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Sum of weight x output over all experts in order, each at full width.

    `hidden_states` and the result are `[tokens, hidden]`; indices and weights `[tokens, k]`.
    """
    output = torch.zeros_like(hidden_states)
    for expert in range(self.num_experts):
        chosen = top_k_index == expert
        weight = torch.where(chosen, top_k_weights, 0).sum(-1, keepdim=True)
        contribution = _expert(self, expert, hidden_states) * weight
        # Unchosen tokens are masked, not multiplied by 0: an overflow there must not become NaN.
        contribution = torch.where(chosen.any(-1, keepdim=True), contribution, 0)
        output += contribution.to(output.dtype)
    return output


def _expert(self: Any, expert: int, hidden_states: torch.Tensor) -> torch.Tensor:
    if self.has_gate:
        gate_up = _linear(self, "gate_up_proj", expert, hidden_states)
        hidden = self._apply_gate(gate_up)
    else:
        hidden = self.act_fn(_linear(self, "up_proj", expert, hidden_states))
    return _linear(self, "down_proj", expert, hidden)


def _linear(self: Any, name: str, expert: int, hidden_states: torch.Tensor) -> torch.Tensor:
    weight = getattr(self, name)[expert]
    bias = getattr(self, f"{name}_bias")[expert] if self.has_bias else None
    return torch.nn.functional.linear(
        hidden_states, weight.T if self.is_transposed else weight, bias
    )


ALL_EXPERTS_FUNCTIONS.register(ROUTED, compute_routed_tokens)
ALL_EXPERTS_FUNCTIONS.register(DENSE, compute_every_expert)
