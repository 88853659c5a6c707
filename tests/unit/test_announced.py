"""Waits that are long enough to be explained."""

import time

import pytest

from copyspec_eval.announced import announced


def test_what_takes_long_is_said_once_while_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    stated, deadline = "", time.monotonic() + 60
    with announced("checking"):
        while not stated and time.monotonic() < deadline:
            time.sleep(0.05)
            stated = capsys.readouterr().err
    assert stated == "copyspec-eval: checking ...\n"
    assert capsys.readouterr().err == ""


def test_what_is_done_soon_is_not_said(capsys: pytest.CaptureFixture[str]) -> None:
    @announced("failing")
    def fail() -> None:
        raise ValueError("it fails")

    for _ in range(2):
        with pytest.raises(ValueError, match="it fails"):
            fail()
    time.sleep(2.3)
    assert capsys.readouterr().err == ""
