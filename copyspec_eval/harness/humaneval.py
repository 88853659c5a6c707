"""The tasks `humaneval_evalplus` and `mbpp_evalplus`: functions to write, tested by EvalPlus."""

import gzip
import importlib
import json
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from copyspec_eval import journal
from copyspec_eval.errors import DataError, needing
from copyspec_eval.harness.evaluation import output_folder
from copyspec_eval.harness.multiturn import MultiTurnTask, TurnInstance
from copyspec_eval.harness.reference_prompts import evalplus_prompt, is_reference, stops
from copyspec_eval.paths import DATA_DIR_VARIABLE, data_dir
from copyspec_eval.scoring.humaneval.scores import as_samples, check, score_all
from copyspec_eval.sources import JsonLine

Benchmark = Literal["humaneval", "mbpp"]
# OpenAI's HumanEval, which has the base tests alone.
BASE_FILE = "HumanEval.jsonl.gz"
_FILES: dict[Benchmark, tuple[str, ...]] = {
    "humaneval": ("HumanEvalPlus.jsonl", "HumanEvalPlus.jsonl.gz", BASE_FILE),
    "mbpp": ("MbppPlus.jsonl", "MbppPlus.jsonl.gz"),
}

_QUESTION = """\
Write a self-contained Python script that solves the problem below. Give the whole script, imports \
included, in one Markdown block that begins with ```python.

```python
{prompt}
```"""
_TEXTS = ("task_id", "prompt", "canonical_solution", "entry_point")
_FIELDS: dict[str, tuple[type, ...]] = dict.fromkeys(_TEXTS, (str,))
_BASE_FIELDS = _FIELDS | {"test": (str,)}
_PLUS_FIELDS = _FIELDS | {"base_input": (list,), "plus_input": (list,), "atol": (int, float)}


class ProblemInstance(TurnInstance):
    """The request for one problem: a question in a chat, otherwise code to continue."""

    def __init__(self, benchmark: Benchmark, is_reference: bool, *args: Any) -> None:
        super().__init__(*args)
        self.benchmark, self.is_reference = benchmark, is_reference

    def settings(self) -> dict[str, Any]:
        settings = super().settings()
        if self.chat_template is not None:
            return settings
        return settings | {"until": settings.get("until") or stops(self.benchmark)}

    def prompt(self) -> str:
        if self.chat_template is None:
            return "\n\n".join(filter(None, (self.system, self._beginning)))
        if self.is_reference:
            return evalplus_prompt(self._beginning, self.chat_template, self.system)
        return super().prompt()

    @property
    def raw_solution(self) -> str:
        """The answer; if it is a completion, after the code that it completes."""
        answer = str(self.resps[0] or "")
        if self.chat_template is None:
            return self._beginning + answer
        if not self.is_reference:
            return answer
        # Where the paper's code asks, nothing stops the model, and the text is cut afterwards.
        ends = [end for end in map(answer.find, stops(None)) if end >= 0]
        return answer[: min(ends, default=None)]

    @property
    def _beginning(self) -> str:
        return f"{self.doc['prompt'].strip()}\n"


class EvalPlusTask(MultiTurnTask):
    """One turn: a problem. All answers are tested together, once the last is in.

    `dataset_kwargs: {prompts: reference}` asks a chat as EvalPlus, and so the paper's code, does.
    Figures: `pass@1_base`, and `pass@1_plus` where the data has EvalPlus's tests. lm-eval's output
    folder gets the programs as `evalplus.evaluate --samples` reads them: `samples.jsonl` as
    sanitised and tested, `samples_raw.jsonl` as answered; other ranks than 0 write
    `samples.rank1.jsonl` … Under `--predict_only` nothing is run or written.
    """

    benchmark: ClassVar[Benchmark]

    def documents(self, dataset_kwargs: dict[str, Any]) -> list[dict[str, Any]]:
        """The problems without their tests, which fit no table."""
        with needing("EvalPlus", f"the task {self.benchmark}_evalplus", "humaneval"):
            importlib.import_module("evalplus")
        self.new_request = partial(ProblemInstance, self.benchmark, is_reference(dataset_kwargs))
        self._problems = _problems(self.benchmark)
        return [{name: row[name] for name in _TEXTS} for row in self._problems.values()]

    def user_turns(self, doc: dict[str, Any]) -> list[str]:
        return [_QUESTION.format(prompt=doc["prompt"].strip())]

    def doc_to_target(self, doc: dict[str, Any], doc_to_target: Any = None) -> str:
        return str(doc["canonical_solution"])

    def score_names(self) -> dict[str, bool]:
        return {"pass@1_base": True, "pass@1_plus": True}

    def check_scoring(self) -> None:
        check()

    def prepare_scores(self) -> None:
        raw = {instance.doc["task_id"]: instance.raw_solution for instance in self._instances}
        answers = [(text, self._problems[task_id]) for task_id, text in raw.items()]
        self._scored = dict(zip(raw, score_all(answers), strict=True))
        if (folder := output_folder()) is not None:
            rank = f".rank{self._rank}" if self._rank else ""
            tested = ((task_id, verdict.solution) for task_id, verdict in self._scored.items())
            journal.replace(folder / f"samples{rank}.jsonl", as_samples(tested))
            journal.replace(folder / f"samples_raw{rank}.jsonl", as_samples(raw.items()))

    def score(self, doc: dict[str, Any], answers: list[str]) -> dict[str, float]:
        verdict = self._scored[doc["task_id"]]
        plus = {} if verdict.plus is None else {"pass@1_plus": float(verdict.plus)}
        return {"pass@1_base": float(verdict.base)} | plus


class HumanEvalTask(EvalPlusTask):
    benchmark = "humaneval"


class MbppTask(EvalPlusTask):
    benchmark = "mbpp"


def _problems(benchmark: Benchmark) -> dict[str, dict[str, Any]]:
    """The problems by `task_id`, from `$COPYSPEC_DATA_DIR`, else as EvalPlus downloads them."""
    from evalplus.data import get_human_eval_plus, get_mbpp_plus
    from evalplus.data.mbpp import mbpp_serialize_inputs

    names, data = _FILES[benchmark], data_dir()
    if data is not None:
        folder = data / benchmark
        for path in map(folder.joinpath, names):
            if path.is_file():
                return read_problems(path)
        raise DataError(
            f"{folder}: none of {', '.join(names)} is there; put a copy there, or "
            f"unset {DATA_DIR_VARIABLE} to download it"
        )
    problems: dict[str, dict[str, Any]]
    try:
        problems = get_human_eval_plus() if benchmark == "humaneval" else get_mbpp_plus()
    except OSError as error:
        raise DataError(
            f"cannot download {benchmark} ({error}); copy it to "
            f"FOLDER/{benchmark}/{names[1]} and set {DATA_DIR_VARIABLE}=FOLDER"
        ) from error
    if benchmark == "mbpp":
        for task_id, problem in problems.items():
            for inputs in ("base_input", "plus_input"):
                problem[inputs] = mbpp_serialize_inputs(task_id, problem[inputs])
    return problems


def read_problems(path: Path) -> dict[str, dict[str, Any]]:
    """Problems by `task_id`, of EvalPlus's HumanEval+ or MBPP+, or of OpenAI's HumanEval."""
    fields = _BASE_FIELDS if path.name == BASE_FILE else _PLUS_FIELDS
    problems: dict[str, dict[str, Any]] = {}
    for where, problem in _rows(path):
        for name, kinds in fields.items():
            if not isinstance(value := problem.get(name), kinds):
                wanted = " or ".join(kind.__name__ for kind in kinds)
                raise DataError(f"{where}: {name} is {value!r:.60}; give a {wanted}")
        if problem["task_id"] in problems:
            raise DataError(f"{where}: task_id {problem['task_id']} occurs twice; remove one")
        problems[problem["task_id"]] = problem
    if not problems:
        raise DataError(f"{path}: the file is empty; copy it again")
    return problems


def _rows(path: Path) -> Iterator[JsonLine]:
    number = 0
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield JsonLine(f"{path}:{number}", dict(json.loads(line)))
    except (OSError, EOFError, zlib.error, TypeError, ValueError) as error:
        raise DataError(
            f"{path}:{number}: not a JSON object ({error}); copy the file again"
        ) from error
