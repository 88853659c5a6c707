"""Processes that share the documents, and those that do not know of each other."""

from types import SimpleNamespace
from typing import Any

import pytest

from copyspec_eval.errors import OptionError
from copyspec_eval.harness.backends.hf import split_documents_over_ranks


def test_each_process_is_a_rank_over_all_machines():
    accelerator = SimpleNamespace(num_processes=4, process_index=3, local_process_index=1)
    lm: Any = SimpleNamespace(accelerator=accelerator, pretrained="M")
    split_documents_over_ranks(lm)
    assert (lm._rank, lm._world_size) == (3, 4)


def test_processes_that_take_themselves_for_the_only_one_are_refused(monkeypatch):
    lm: Any = SimpleNamespace(pretrained="M")
    split_documents_over_ranks(lm)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(OptionError, match=r"WORLD_SIZE=2.*ACCELERATE_USE_CPU=true"):
        split_documents_over_ranks(lm)
    # One rank of a training run may evaluate the model that it holds.
    split_documents_over_ranks(SimpleNamespace(pretrained=object()))
