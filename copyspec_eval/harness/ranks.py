"""Processes that share the documents of a run."""

from __future__ import annotations

import os

from lm_eval.models.huggingface import HFLM

from copyspec_eval.errors import OptionError


def split_documents_over_ranks(lm: HFLM) -> None:
    """Make every launched process a rank of its own, on CPUs and over machines too.

    `hf` does so only where it sees several GPUs, and numbers the ranks within each machine.

    Raises:
        OptionError: several were launched, but each takes itself for the only one.
    """
    accelerator = getattr(lm, "accelerator", None)
    launched = int(os.environ.get("WORLD_SIZE") or 1)
    # A model that is loaded already may be evaluated by one rank of a training run.
    if accelerator is None and launched > 1 and isinstance(lm.pretrained, str):
        raise OptionError(
            f"WORLD_SIZE={launched}, but accelerate sees one process, so each would answer all "
            "documents; without GPUs set ACCELERATE_USE_CPU=true, or unset WORLD_SIZE for a run of "
            "this process alone"
        )
    if accelerator is not None and accelerator.num_processes > 1:
        lm._rank = accelerator.process_index
        lm._world_size = accelerator.num_processes
