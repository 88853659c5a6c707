"""What the paper's authors report, as far as their published repository and abstract tell."""

from __future__ import annotations

SOURCE = (
    "The paper (arXiv 2502.08923): Llama-3.1-8B-Instruct in float32 on an A100; speed-ups of its "
    "abstract are the best of its models and categories."
)

PLAIN_TOKENS_PER_SECOND = 35.5
"""Llama-3.1-8B, MT-Redundant, both turns."""

BY_GAMMA = {3: 49.2, 5: 47.4, 10: 44.2}
"""The same with copying: tokens per second by γ, both turns."""

BEST_SPEEDUPS = {
    ("cnn_dailymail_extractive_paper", 1): 2.35,
    ("gsm8k_self_correction_paper", 3): 2.66,
    ("mt_redundant_paper", 2): 3.08,
}
"""By task and turn."""

COPYING_OVER_DRAFT_MODEL = 0.49
"""On turn 2 of MT-Redundant, over all categories."""
