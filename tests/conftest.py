"""What all tests share: no network, local data, and the switch for slow tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Before any test imports huggingface_hub, which reads it once.
os.environ["HF_HUB_OFFLINE"] = "1"
# Models of this size are slower on two threads; tests that need more ask torch for them.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--runslow", action="store_true", help="also run the tests marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--runslow"):
        return
    skip = pytest.mark.skip(reason="slow: run with --runslow")
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of the local copies of the public data sets; without one the test is skipped."""
    value = os.environ.get("COPYSPEC_DATA_DIR")
    if not value:
        pytest.skip("NOT TESTED without data: set COPYSPEC_DATA_DIR to a folder of the data sets")
    return Path(value)
