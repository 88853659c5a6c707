"""Processes that share the documents of a run."""

from __future__ import annotations

from lm_eval.models.huggingface import HFLM


def split_documents_over_ranks(lm: HFLM) -> None:
    """Make every launched process a rank of its own, on CPUs and over machines too.

    `hf` does so only where it sees several GPUs, and numbers the ranks within each machine.
    """
    accelerator = getattr(lm, "accelerator", None)
    if accelerator is not None and accelerator.num_processes > 1:
        lm._rank = accelerator.process_index
        lm._world_size = accelerator.num_processes
