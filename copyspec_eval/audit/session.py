"""A whole audit: from what the command line names to files and figures."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from copyspec_eval import journal
from copyspec_eval.audit import files, findings, sides
from copyspec_eval.audit.asking import Asking, Letter, Side
from copyspec_eval.audit.local import LocalSide, RecordedSide
from copyspec_eval.audit.rescored import rescore
from copyspec_eval.audit.server import ServerSide, SideError
from copyspec_eval.audit.tasks import Tasks, question
from copyspec_eval.errors import DataError, OptionError
from copyspec_eval.redaction import masked
from copyspec_eval.reports.runs import Scores


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be audited, as the command line has it."""

    a: str
    b: str
    tasks: tuple[str, ...]
    limit: int | None
    levels: tuple[int, ...]
    out: Path
    rescore: str | None = None
    tokenizer: str | None = None
    gen_kwargs: str | None = None
    runs_code: bool = False


def audit(order: Order) -> dict[str, Any]:
    """Ask, judge, and write the files into `order.out`; the findings."""
    if not order.levels or min(order.levels) < 1:
        raise OptionError(f"--concurrency {order.levels}: give numbers of at least 1, e.g. 1,8,32")
    a, b = _sides(order)
    with journal.alone(order.out / "replies.jsonl"):
        _check_folder(order)
        facts: dict[Letter, dict[str, Any]] = {"a": a.open(), "b": b.open()}
        asking = Asking(a, b, order.levels, order.out / "replies.jsonl")
        with _named(asking, order.out):
            scores = _answered(order, asking)
        result = findings.findings(asking, facts, scores)
        files.write(asking, result, order.out)
    return result


def _sides(order: Order) -> tuple[Side, Side]:
    batch_size = max(order.levels)
    named = {"--a": order.a, "--b": order.b}
    both = [sides.parse(option, text, batch_size) for option, text in named.items()]
    has_local = any(isinstance(side, LocalSide) for side in both)
    for side in both:
        if isinstance(side, ServerSide):
            side.is_chat = not (has_local or order.tokenizer)
    return both[0], both[1]


def _check_folder(order: Order) -> None:
    """Refuse a folder of another audit; a repeated one goes on there."""
    asked = {
        "a": masked(order.a),
        "b": masked(order.b),
        "tasks": list(order.tasks),
        "limit": order.limit,
        "concurrency": list(order.levels),
        "tokenizer": order.tokenizer,
        "gen_kwargs": order.gen_kwargs,
    }
    path = order.out / "order.json"
    try:
        before = journal.parsed(journal.read(path)) if path.exists() else asked
    except ValueError as error:
        raise DataError(f"{path}: is not JSON ({error}); choose another --out") from error
    if before != asked:
        names = ", ".join(name for name in asked if before.get(name) != asked[name])
        raise DataError(f"{order.out}: its audit has a different {names}; choose another --out")
    journal.replace(path, json.dumps(asked, indent=2))


@contextmanager
def _named(asking: Asking, folder: Path) -> Iterator[None]:
    """Name the side that failed, and what the user does to go on."""
    try:
        yield
    except SideError as error:
        raise SideError(
            f"{error}; {asking.num_replies} answers are saved in {folder}; fix the server and "
            "repeat the command to resume"
        ) from error


def _answered(order: Order, asking: Asking) -> tuple[Scores, Scores]:
    both = asking.sides["a"], asking.sides["b"]
    recorded = next((side for side in both if isinstance(side, RecordedSide)), None)
    if recorded is None:
        if not order.tasks:
            raise OptionError("--tasks is missing; give e.g. --tasks mt_bench")
        render = sides.renderer(both, order.tokenizer)
        tasks = Tasks(order.tasks, order.limit, order.gen_kwargs, order.runs_code, render)
        tasks.ask(asking)
    else:
        _ask_recorded(order, asking, recorded)
    asking.measure()
    if order.rescore:
        rescore(asking, order.rescore)
    if recorded is None:
        texts = [(p.question.key, p.a.text, p.b.text) for p in asking.pairs if p.a and p.b]
        return (
            tasks.scores({key: text for key, text, _ in texts}),
            tasks.scores({key: text for key, _, text in texts}),
        )
    runs = [side.run if isinstance(side, RecordedSide) else None for side in both]
    a, b = (run.scores if run else {} for run in runs)
    return a, b


def _ask_recorded(order: Order, asking: Asking, recorded: RecordedSide) -> None:
    """Ask the other side what the earlier run was asked, turn by turn."""
    answers = [
        answer
        for key, answer in sorted(recorded.answers.items())
        if (not order.tasks or key.task in order.tasks)
        and (order.limit is None or key.doc_id < order.limit)
        and key.repeat == 0
    ]
    if not answers:
        raise DataError(f"{recorded.name}: no answers to {', '.join(order.tasks)}")
    if any(answer.prompt is None for answer in answers):
        raise DataError(f"{recorded.name}: without prompts; run lm_eval with --log_samples")
    for turn in sorted({answer.key.turn for answer in answers}):
        part = [answer for answer in answers if answer.key.turn == turn]
        asking.answer([question(a.key, a.prompt or "", a.gen_kwargs) for a in part])


def exactness_commands(order: Order) -> list[str]:
    """Lines that offer to name the module in which a local model's steps first differ."""
    parsed = [sides.parse(name, text, 1) for name, text in (("--a", order.a), ("--b", order.b))]
    models = [side.pretrained for side in parsed if isinstance(side, LocalSide) and side.is_ours]
    return [
        f"which steps are exact here: copyspec-eval exactness {model}"
        for model in dict.fromkeys(models)
        if model
    ]
