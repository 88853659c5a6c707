"""The command line: defaults in its help, suggestions, completion, and the doctor."""

import subprocess
import sys
import webbrowser
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded_runs import recorded_run

from copyspec_eval import cli, provenance
from copyspec_eval.cli import main
from copyspec_eval.cli.commands import all_actions
from copyspec_eval.decoding import kernels
from copyspec_eval.decoding.kernels import library


def test_help_names_the_default_of_every_option():
    named = [
        action
        for action in all_actions(cli._parser())
        if action.option_strings and action.nargs != 0 and not action.required
    ]
    assert len(named) > 15
    assert [each.option_strings for each in named if "default" not in (each.help or "")] == []
    for each in named:
        if each.default not in (None, "", []) and not isinstance(each.default, list):
            assert str(each.default) in (each.help or ""), each.option_strings


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("reprot", "invalid choice: 'reprot' (did you mean 'report'?)"),
        ("export fastchta run", "invalid choice: 'fastchta' (did you mean 'fastchat'?)"),
        ("report --fromat=csv", "unrecognized arguments: --fromat (did you mean '--format'?)"),
        ("--verison doctor", "unrecognized arguments: --verison (did you mean '--version'?)"),
        ("report --format xyz", "invalid choice: 'xyz' (choose from table, md, csv, json)"),
    ],
)
def test_a_misspelt_word_gets_a_suggestion(words, message, capsys):
    with pytest.raises(SystemExit) as caught:
        main(words.split())
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_a_report_skips_what_is_no_run(tmp_path, capsys):
    recorded_run(tmp_path / "run", "a")
    (tmp_path / "notes.txt").write_text("no run")
    (tmp_path / "empty").mkdir()
    paths = [str(path) for path in sorted(tmp_path.iterdir())]
    assert main(["report", *paths, "--format", "csv"]) == 0
    shown = capsys.readouterr()
    assert main(["report", str(tmp_path / "run"), "--format", "csv"]) == 0
    assert capsys.readouterr().out == shown.out
    assert f"note: skipped: {tmp_path / 'empty'}: no run of copyspec here or below" in shown.err
    assert f"note: skipped: {tmp_path / 'notes.txt'}: a file, not a run" in shown.err
    for junk in ("empty", "notes.txt"):
        assert main(["report", str(tmp_path / junk)]) == 1
        assert capsys.readouterr().err.count("\n") == 1
    assert main(["report", str(tmp_path / "run"), str(tmp_path / "misspelt")]) == 1
    assert "misspelt: no such folder" in capsys.readouterr().err


@pytest.mark.parametrize("has_browser", [True, False])
def test_a_report_opens_the_page_that_it_wrote(
    has_browser: bool, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    recorded_run(tmp_path / "run", "a")
    opened: list[str] = []

    def browse(address: str) -> bool:
        assert address.startswith("file://")
        opened.append(Path(address.removeprefix("file://")).read_text("utf-8")[:15])
        return has_browser

    monkeypatch.setattr(webbrowser, "open", browse)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    out = tmp_path / "out"
    assert main(["report", str(tmp_path / "run"), "--open", "--out", str(out)]) != has_browser
    assert ("no browser could be started" in capsys.readouterr().err) != has_browser
    assert main(["report", str(tmp_path / "run"), "--open"]) != has_browser
    [page] = tmp_path.glob("copyspec-report-*/report.html")
    assert str(page) in capsys.readouterr().err
    assert opened == ["<!doctype html>"] * 2


def examined(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, str]]:
    code = main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    return code, {line.partition("  ")[0]: line.partition("  ")[2].strip() for line in lines}


@pytest.mark.parametrize("accelerators", [[], ["a GPU"]])
def test_the_doctor_says_what_is_here_and_what_is_missing(accelerators, capsys, monkeypatch):
    machine = provenance.hardware() | {"accelerators": accelerators}
    monkeypatch.setattr(provenance, "hardware", lambda: machine)
    missing = {"shtab": None}
    monkeypatch.setattr("copyspec_eval.cli.doctor.find_spec", lambda name: missing.get(name, 1))
    code, lines = examined(capsys)
    assert code == 0
    assert lines["python"] == sys.version.split()[0]
    assert {"copyspec-eval", "torch", "transformers", "lm-eval", "processor"} <= lines.keys()
    is_ours = kernels.is_available(torch.float32) and not accelerators
    assert lines["exact mode"].startswith("invariant" if is_ours else "fixed width")
    assert lines["devices"].startswith("a GPU" if accelerators else "none")
    assert lines["not installed"].endswith("pip install 'copyspec-eval[completion]'")


def test_the_doctor_without_a_compiler_or_a_sandbox(capsys, monkeypatch):
    kernels.is_available.cache_clear()
    monkeypatch.setattr(library, "compiler", lambda: None)
    machine = provenance.hardware() | {"accelerators": []}
    monkeypatch.setattr(provenance, "hardware", lambda: machine)
    monkeypatch.setenv("COPYSPEC_SANDBOX", "nothing")
    monkeypatch.setenv("COPYSPEC_EVAL_AUTOLOAD", "0")
    code, lines = examined(capsys)
    kernels.is_available.cache_clear()
    assert code == 0, "slower, and some tasks refuse, but runs work"
    assert "install g++" in lines["kernels"]
    assert lines["start-up hook"].endswith("use copyspec-eval run")
    assert lines["exact mode"].startswith("fixed width")
    assert lines["sandbox"].startswith("unknown COPYSPEC_SANDBOX 'nothing'")


def test_the_doctor_fails_for_what_every_run_needs(capsys, monkeypatch):
    versions = {"torch": "2.13.0", "lm-eval": "not installed"}
    monkeypatch.setattr("copyspec_eval.provenance.versions", lambda: versions)
    code, lines = examined(capsys)
    assert code == 1
    assert "broken: lm-eval" in lines


COMPLETE = """
source /dev/stdin
complete_words() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); }
complete_words copyspec-eval re
_shtab_copyspec_eval copyspec-eval re copyspec-eval; echo "${COMPREPLY[@]}"
complete_words copyspec-eval report --
_shtab_copyspec_eval copyspec-eval -- report; echo "${COMPREPLY[@]}"
complete_words copyspec-eval report no
_shtab_copyspec_eval copyspec-eval no report; echo "${COMPREPLY[@]}"
"""


def test_a_shell_completes_commands_options_and_paths(tmp_path, capsys, monkeypatch):
    assert main(["completion", "bash"]) == 0
    script, (_, folder) = capsys.readouterr().out, ("", tmp_path / "notes")
    folder.mkdir()
    shell = ["bash", "--norc", "-c", COMPLETE]
    done = subprocess.run(shell, input=script, cwd=tmp_path, capture_output=True, text=True)
    commands, options, paths = done.stdout.splitlines()
    assert commands.split() == ["replay", "report", "redundant"]
    assert {"--open", "--out"} <= set(options.split())
    assert paths.startswith("notes")
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert "pip install 'copyspec-eval[completion]'" in capsys.readouterr().err
