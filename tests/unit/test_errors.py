"""An error is one line, whatever is in its text, by every door."""

import subprocess
import sys

import pytest

from copyspec_eval.cli import main

HOOK = """
import sys
from copyspec_eval.errors import DataError, report_errors_in_one_line
report_errors_in_one_line()
report_errors_in_one_line()
raise KIND("a\\nb: \\x1b[2Jno such file\\x07\\ud800")
"""
PATHS = ("a\nb", "\x1b[2J\x1b]0;x\x07", "x" * 300, "\udcff", "loop", "loop/below")
COMMANDS = (
    "report PATH",
    "report PATH --out PATH",
    "compare PATH",
    "compare PATH PATH",
    "export turns PATH --out PATH",
    "replay --drafter suffix --traces PATH",
    "replay --drafter suffix --drafter-args store=PATH --traces PATH",
    "judge PATH --model J --base-url http://127.0.0.1:9",
    "redundant PATH --out PATH --model J --base-url http://127.0.0.1:9",
)


@pytest.mark.parametrize("path", PATHS, ids=ascii)
def test_an_error_is_one_line_that_is_harmless_to_a_terminal(path, tmp_path, capsys):
    (tmp_path / "loop").symlink_to("loop")
    for command in COMMANDS:
        words = [word.replace("PATH", str(tmp_path / path)) for word in command.split()]
        assert main(words) == 1, command
        error = capsys.readouterr().err
        assert error.startswith("copyspec-eval: error: "), command
        assert error.removesuffix("\n").isprintable(), command


def test_an_error_of_ours_alone_is_one_line_behind_lm_evals_door():
    ours = "copyspec-eval: error: a\\nb: \\u001b[2Jno such file\\u0007\\ud800\n"
    for kind, begins in (("DataError", ours), ("OSError", "Traceback")):
        command = [sys.executable, "-c", HOOK.replace("KIND", kind)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stderr[: len(begins)]) == (1, begins)
