"""Waits that are long enough to be explained."""

import time

import pytest

from copyspec_eval.announced import announced


def test_only_what_takes_long_is_announced(capsys: pytest.CaptureFixture[str]) -> None:
    @announced("failing")
    def fail() -> None:
        raise ValueError("it fails")

    for _ in range(2):
        with pytest.raises(ValueError, match="it fails"):
            fail()
    stated, deadline = "", time.monotonic() + 60
    with announced("checking"):
        while not stated and time.monotonic() < deadline:
            time.sleep(0.05)
            stated = capsys.readouterr().err
    assert stated == "copyspec-eval: checking ...\n", "failing has ended in time"
    assert capsys.readouterr().err == ""
