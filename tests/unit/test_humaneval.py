"""The programming tasks: their data, their two kinds of prompts, and scores by EvalPlus."""

import gzip
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any
from unittest.mock import Mock

import pytest
from lm_eval.api.model import LM
from lm_eval.loggers import EvaluationTracker
from sandbox_levels import WORKING
from scripted_lm import Scripted, figures

import copyspec_eval
from copyspec_eval.errors import DataError, OptionError, SandboxError
from copyspec_eval.harness.humaneval import HumanEvalTask, MbppTask, read_problems
from copyspec_eval.harness.reference_prompts import stops
from copyspec_eval.sandbox import programs
from copyspec_eval.sandbox.commands import LIMITS, Outcome
from copyspec_eval.scoring.humaneval import scores
from copyspec_eval.scoring.humaneval.scores import ScoredSolution, score_all, score_solution

TASK = "humaneval_evalplus"


TEXTS = ("task_id", "entry_point", "prompt", "canonical_solution")
FIELDS = (*TEXTS, "base_input", "plus_input", "atol")


def problem(*values: Any) -> dict[str, Any]:
    """The values of `FIELDS`, as EvalPlus has them."""
    return dict(zip(FIELDS, values, strict=True)) | {"contract": "", "assertion": ""}


PLUS = [
    problem(
        *("HumanEval/0", "total"),
        "from typing import List\n\n\ndef total(n: List[int]) -> int:\n    '''Sum.'''\n",
        "    return sum(n)\n",
        *([[[1, 2]], [[3]]], [[[]], [[-1, -2]]], 0),
    ),
    problem(
        *("HumanEval/1", "half"),
        'def half(number: float) -> float:\n    """ Half of it. """\n',
        "    return number / 2\n",
        *([[4], [0.5]], [[3], [2**70]], 1e-6),
    ),
]
MBPP = [
    problem(
        *("Mbpp/2", "similar_elements"),
        '"""\nWrite a function to find what two tuples share.\n"""\n',
        "\ndef similar_elements(a, b):\n    return tuple(set(a) & set(b))\n",
        # As tuples, of which JSON has none.
        *([[[3, 4, 5], [5, 4, 7]]], [[[], [1]], [[1, 2], [2, 1]]], 0),
    ),
    problem(
        *("Mbpp/252", "convert"),
        '"""\nWrite a function to convert complex numbers to polar ones.\n"""\n',
        "\nimport cmath\ndef convert(z):\n    return cmath.polar(z)\n",
        *([["(1+0j)"]], [["(3+4j)"]], 1e-6),
    ),
]
BASE: list[dict[str, Any]] = [
    {name: row[name] for name in TEXTS}
    | {"test": f"def check(candidate):\n    assert candidate({given!r}) == {wanted!r}\n"}
    for row, given, wanted in zip(PLUS, ([1, 2], 4), (3, 2), strict=True)
]
CONFIG: dict[str, Any] = {"task": TASK, "test_split": "test"}
BARE = "def total(numbers):\n    return sum(numbers)"
TOTAL = f"Of course:\n```python\n{BARE}\n```\nIt adds."
ROUNDED = "```python\nimport math\n\ndef half(number):\n    return number // 2 or number / 2\n```"
"""Right for 4 and 0.5, wrong for 3."""
SHARED = "```python\ndef similar_elements(a, b):\n    return tuple(x for x in a if x in b)\n```"
LIST = "```python\ndef similar_elements(a, b):\n    return [1] if a == [] else a + b\n```"
POLAR = "```python\nimport cmath\ndef convert(number):\n    return cmath.polar(number)\n```"
REAL = "```python\ndef convert(number):\n    return (number.real, 0.0)\n```"


def write(folder: Path, rows: list[Any], name: str = "HumanEvalPlus.jsonl") -> Path:
    path = folder / ("humaneval" if name.startswith("Human") else "mbpp") / name
    path.parent.mkdir(exist_ok=True)
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def printed(command: list[Any], **variables: str) -> str:
    environment = os.environ | variables
    return subprocess.run(command, env=environment, stdout=-1, text=True, check=True).stdout


def evaluate(lm: LM, **options: Any) -> dict[str, float]:
    return figures(lm, TASK, **({"apply_chat_template": True} | options))


def test_chat_scored_by_evalplus(local_data, tmp_path):
    write(local_data, PLUS)
    lm = Scripted(TOTAL, ROUNDED)
    tracker = EvaluationTracker(output_path=str(tmp_path / "run"))
    wanted = {"answered": 1, "pass@1_base": 1, "pass@1_plus": 0.5}
    assert evaluate(lm, evaluation_tracker=tracker) == wanted
    prompt, settings = lm.asked[1]
    assert prompt.startswith("<user>Write a self-contained Python script")
    assert prompt.endswith(f"```python\n{PLUS[1]['prompt']}```<assistant>")
    assert settings == {"until": [], "do_sample": False, "max_gen_toks": 1024}
    for name, solution in (("samples.jsonl", BARE), ("samples_raw.jsonl", TOTAL)):
        first, _ = map(json.loads, (tmp_path / "run" / name).read_text().splitlines())
        assert first == {"task_id": "HumanEval/0", "solution": solution}


def test_completion_of_the_base_data(local_data):
    """Without EvalPlus's tests there is no figure for them."""
    write(local_data, BASE, "HumanEval.jsonl.gz")
    lm = Scripted("    return sum(n)\n", None)
    wanted = {"answered": 0.5, "pass@1_base": 0.5}
    assert evaluate(lm, apply_chat_template=False) == wanted
    prompt, settings = lm.asked[1]
    assert prompt == PLUS[1]["prompt"]
    assert settings["until"] == stops("humaneval")
    with pytest.raises(ValueError, match="marked as unsafe"):
        evaluate(lm, confirm_run_unsafe_code=False)


@pytest.mark.parametrize(
    ("answers", "base", "plus"), [((SHARED, POLAR), 1, 1), ((LIST, REAL), 0.5, 0)]
)
def test_right_programs_of_mbpp_pass_and_wrong_ones_do_not(local_data, answers, base, plus):
    """The order of what two tuples share is free, and inputs are tuples and complex numbers."""
    write(local_data, MBPP, "MbppPlus.jsonl.gz")
    lm = Scripted(*answers)
    wanted = {"answered": 1, "pass@1_base": base, "pass@1_plus": plus}
    assert figures(lm, "mbpp_evalplus", apply_chat_template=True) == wanted
    assert lm.asked[0][0].startswith("<user>Write a self-contained Python script")


def test_prompts_of_mbpp(local_data):
    write(local_data, MBPP, "MbppPlus.jsonl.gz")
    lm = Scripted(SHARED, POLAR)
    figures(lm, "mbpp_evalplus", predict_only=True)
    figures(lm, "mbpp_evalplus_paper", apply_chat_template=True, predict_only=True)
    (completed, settings), _, (begun, _), _ = lm.asked
    assert (completed, settings["until"]) == (MBPP[0]["prompt"], stops("mbpp"))
    assert begun.endswith("```python\n")


def test_predict_only_runs_nothing(local_data, monkeypatch, tmp_path):
    write(local_data, PLUS)
    monkeypatch.setattr(programs, "run", None)
    lm, tracker = Scripted(TOTAL, TOTAL), EvaluationTracker(output_path=str(tmp_path / "run"))
    options: dict[str, Any] = {"predict_only": True, "apply_chat_template": False}
    options |= {"gen_kwargs": {"until": ["x"]}, "system_instruction": "Brief.", "limit": 1}
    assert evaluate(lm, evaluation_tracker=tracker, **options) == {"bypass": 999}
    assert not (tmp_path / "run").exists()
    [(prompt, settings)] = lm.asked
    assert prompt.startswith("Brief.\n\nfrom typing import List\n")
    assert settings["until"] == ["x"]


def test_without_a_sandbox_nothing_is_answered(local_data, monkeypatch):
    write(local_data, PLUS)
    monkeypatch.delenv(programs.VARIABLE, raising=False)
    monkeypatch.setattr(programs, "trial", lambda level: Outcome("killed", "", "no"))
    task = HumanEvalTask(CONFIG)
    with pytest.raises(OptionError, match="install bubblewrap, or set COPYSPEC_SANDBOX=limits"):
        task.build_all_requests()
    task.override_metric("bypass")
    task.build_all_requests()
    assert len(task.instances) == 2


@pytest.mark.skipif(WORKING[0] == LIMITS, reason="NOT TESTED where no sandbox hides files")
def test_where_right_solutions_would_count_as_wrong_nothing_is_answered(local_data, monkeypatch):
    """One line, with the reason of the process that judges."""
    write(local_data, PLUS)
    monkeypatch.setattr(programs, "INSTALLED", programs.INSTALLED[:1])
    lm = Scripted(TOTAL, TOTAL)
    with pytest.raises(SandboxError, match=r"^.*No module named 'copyspec_eval.*; install.*$"):
        evaluate(lm)
    assert lm.asked == []


def test_a_sandbox_that_does_not_start_is_no_wrong_answer(local_data, monkeypatch):
    """As where the disk is full once the answers are in."""
    write(local_data, PLUS)
    monkeypatch.setenv(programs.VARIABLE, LIMITS.name)

    def fill(requests, **options):
        monkeypatch.setattr("tempfile.tempdir", "/nowhere")
        return [TOTAL, TOTAL]

    lm = Scripted()
    monkeypatch.setattr(lm, "generate_until", fill)
    with pytest.raises(SandboxError, match=r"cannot start the sandbox \(.*/nowhere"):
        evaluate(lm)


def test_the_sandbox_runs_the_package_that_runs_here(tmp_path):
    """Whichever way that was imported: here from a folder on PYTHONPATH."""
    ours, ignored = Path(copyspec_eval.__file__).parent, ignore_patterns("tiny", "__pycache__")
    copytree(ours, tmp_path / "copyspec_eval", ignore=ignored)
    program = (
        "from copyspec_eval.scoring.humaneval.scores import score_solution\n"
        f"print(score_solution({PLUS[0]['prompt'] + PLUS[0]['canonical_solution']!r}, {PLUS[0]!r}))"
    )
    output = printed([sys.executable, "-c", program], PYTHONPATH=str(tmp_path))
    assert "base=True, plus=True" in output


def test_other_ranks_have_files_of_their_own(local_data, monkeypatch, tmp_path):
    write(local_data, BASE, "HumanEval.jsonl.gz")
    task = HumanEvalTask(CONFIG)
    task.build_all_requests(rank=1, world_size=2)
    task.instances[0].resps.append("x")
    module = "copyspec_eval.harness.humaneval"
    monkeypatch.setattr(f"{module}.output_folder", lambda: tmp_path)
    monkeypatch.setattr(f"{module}.score_all", lambda _: [ScoredSolution("x", True, None)])
    task.apply_filters()
    row = {"task_id": "HumanEval/1", "solution": "x"}
    assert json.loads((tmp_path / "samples.rank1.jsonl").read_text()) == row
    assert not (tmp_path / "samples.jsonl").exists()


def test_a_solution_that_is_stuck():
    stuck = "def total(n):\n    if n != []: return sum(n)\n    while True:\n        try: [][0]\n"
    stuck += "        except BaseException: pass"
    assert score_all([(stuck, PLUS[0])]) == [ScoredSolution(stuck, base=True, plus=False)]


def test_what_is_no_solution_fails():
    solutions = ["", "a\0b", "\ud800", "(" * 5000, "import os\nos._exit(0)", "raise SystemExit"]
    solutions.append("def other(numbers):\n    return sum(numbers)")
    assert [each for each in solutions if score_solution(each, BASE[0]).base] == []
    assert not any(scored.base for scored in score_all([(each, BASE[0]) for each in solutions]))


def test_a_worker_that_fails_is_no_silent_zero(caplog):
    broken = PLUS[0] | {"canonical_solution": "    return unknown\n"}
    assert not score_solution(BARE, broken).base
    [message] = caplog.messages
    assert message.startswith("HumanEval/0: tests did not finish, counted as failed (exit ")
    assert "NameError: name 'unknown' is not defined" in message


def test_helpers_of_the_prompt_are_there_for_the_test():
    """As in HumanEval/38, whose test calls a function that the solution need not repeat."""
    row = BASE[0] | {
        "prompt": "def twice(x):\n    return 2 * x\n\ndef half(x):\n    '''Undo `twice`.'''\n",
        "canonical_solution": "    return x // 2\n",
        "entry_point": "half",
        "test": "def check(candidate):\n    assert candidate(twice(3)) == 3\n",
    }
    assert score_solution("def half(x):\n    return x // 2", row).base


def test_only_the_answer_that_ends_the_sanitiser_is_left_as_it_is(monkeypatch):
    """The time of all before it is not held against an answer."""
    starts = []

    def run(command):
        rest = [raw for raw, _ in json.loads(command.stdin)]
        starts.append(rest[0])
        done = itertools.takewhile(lambda raw: raw != "bad", rest[:2])
        lines = "".join(json.dumps(raw.upper()) + "\n" for raw in done)
        return Outcome("timeout", lines + '"cut', "over 60 s of wall time")

    assert score_all([]) == []
    monkeypatch.setattr(programs, "run", run)
    answers = [(raw, "f") for raw in ("a", "b", "c", "bad", "d")]
    assert scores.sanitised(answers) == ["A", "B", "C", "bad", "D"]
    assert starts == ["a", "c", "bad", "d"]


@pytest.mark.parametrize("every", [33, pytest.param(1, marks=pytest.mark.slow)])
def test_canonical_solutions_pass_and_empty_ones_do_not(data_dir, every):
    rows = [*read_problems(data_dir / "humaneval" / "HumanEval.jsonl.gz").values()]
    assert len(rows) == 164
    for row in rows[::every]:
        scored = score_solution(row["prompt"] + row["canonical_solution"], row)
        assert (scored.base, scored.plus) == (True, None), row["task_id"]
        assert not score_solution(row["prompt"] + "    pass\n", row).base


@pytest.mark.slow
def test_evalplus_itself_reads_the_samples(local_data, tmp_path):
    path = write(local_data, PLUS)
    tracker = EvaluationTracker(output_path=str(tmp_path / "run"))
    evaluate(Scripted(TOTAL, ROUNDED), evaluation_tracker=tracker)
    samples = tmp_path / "run" / "samples.jsonl"
    program = Path(sys.executable).with_name("evalplus.evaluate")
    output = printed(
        [program, "--dataset", "humaneval", "--samples", samples],
        HUMANEVAL_OVERRIDE_PATH=str(path),
        XDG_CACHE_HOME=str(tmp_path / "cache"),
    )
    assert re.findall(r"^pass@1:\s*(\S+)", output, re.MULTILINE) == ["1.000", "0.500"]


NO_OBJECT = r"not a JSON object \(.*\); copy the file again"


def test_the_better_file_is_taken(local_data):
    for name in ("HumanEval.jsonl.gz", "HumanEvalPlus.jsonl.gz", "HumanEvalPlus.jsonl"):
        write(local_data, [row | {"prompt": name, "test": ""} for row in PLUS], name)
        assert {doc["prompt"] for doc in HumanEvalTask(CONFIG).test_docs()} == {name}
    for name in ("HumanEvalPlus.jsonl.gz", "HumanEvalPlus.jsonl"):
        path = write(local_data, PLUS, name)
        assert read_problems(path) == {row["task_id"]: row for row in PLUS}


def second(**changes: Any) -> bytes:
    """A file whose second row is changed."""
    return b"\n".join(json.dumps(row).encode() for row in (PLUS[0], PLUS[1] | changes))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("HumanEvalPlus.jsonl", second(base_input=None), ":2: base_input is None; give a list"),
        ("HumanEvalPlus.jsonl", second(atol="0"), ":2: atol is '0'; give a int or float"),
        ("HumanEvalPlus.jsonl", second(prompt=3), ":2: prompt is 3; give a str"),
        ("HumanEvalPlus.jsonl", second(task_id="HumanEval/0"), ":2: .*/0 occurs twice; remove one"),
        ("HumanEvalPlus.jsonl", b"", ": the file is empty; copy it again"),
        ("HumanEvalPlus.jsonl", b"[1]\n", f":1: {NO_OBJECT}"),
        ("HumanEvalPlus.jsonl", b'{"a": \n', f":1: {NO_OBJECT}"),
        ("HumanEvalPlus.jsonl", b"\xff\n", f":0: {NO_OBJECT}"),
        ("HumanEval.jsonl.gz", b"{}", f":0: {NO_OBJECT}"),
        ("HumanEval.jsonl.gz", gzip.compress(b"{}" * 99, mtime=0)[:-9], rf":\d: {NO_OBJECT}"),
        ("HumanEval.jsonl.gz", gzip.compress(b"{}", mtime=0), ":1: task_id is None; give a str"),
    ],
)
def test_bad_files_are_named(local_data, name, content, message):
    path = write(local_data, [], name)
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"^{path}{message}$"):
        HumanEvalTask(CONFIG)


@pytest.mark.parametrize("task", [HumanEvalTask, MbppTask])
def test_missing_file(local_data, task):
    names = rf"{task.benchmark}: none of \w+Plus\.jsonl, \w+Plus\.jsonl\.gz.* unset COPYSPEC_DATA"
    with pytest.raises(DataError, match=names):
        task(CONFIG)


def test_without_local_data_evalplus_downloads(monkeypatch):
    monkeypatch.delenv("COPYSPEC_DATA_DIR", raising=False)
    load = Mock(return_value={row["task_id"]: row for row in PLUS})
    monkeypatch.setattr("evalplus.data.get_human_eval_plus", load)
    assert len(HumanEvalTask(CONFIG).test_docs()) == 2
    load.side_effect = ConnectionError("no network")
    with pytest.raises(DataError, match=r"^cannot download humaneval \(no network\); copy it"):
        HumanEvalTask(CONFIG)


def test_without_evalplus_the_remedy_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "evalplus", None)
    with pytest.raises(OptionError, match=r"^.*pip install 'copyspec-eval\[humaneval\]'$"):
        HumanEvalTask(CONFIG)
