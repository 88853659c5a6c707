"""Every architecture that transformers has is decoded as `generate` decodes it, or refused."""

from pathlib import Path

import pytest
import torch
from matrix import table
from matrix.outcomes import outcome
from matrix.shapes import architectures

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "results" / "ARCHITECTURES.md").read_text()


def rows_of_installed() -> list[str]:
    if f"transformers {table.versions()['transformers']}," not in TEXT:
        pytest.skip("NOT TESTED: results/ARCHITECTURES.md is of another version of transformers")
    return table.rows(TEXT)


def test_the_table_is_of_the_pinned_transformers() -> None:
    pin = (ROOT / "constraints.txt").read_text().partition("\ntransformers==")[2].split(";")[0]
    assert f"with transformers {pin.strip()}," in TEXT, "run scripts/architectures"


def test_the_table_has_every_architecture() -> None:
    shown = [table.architecture(row) for row in rows_of_installed()]
    assert shown == architectures(), "run scripts/architectures"


@pytest.mark.slow
def test_every_architecture_is_served_or_refused() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        outcomes = [outcome(architecture) for architecture in architectures()]
    finally:
        torch.set_num_threads(threads)
    assert [item for item in outcomes if item.kind in ("wrong", "crashed")] == []
    actual = table.rows(table.render(outcomes))
    assert actual == rows_of_installed(), "run scripts/architectures"
