"""A whole audit: from what the command line names to files and figures."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance

from copyspec_eval import journal
from copyspec_eval.audit import files, findings, sides
from copyspec_eval.audit.asking import Asking
from copyspec_eval.audit.local import RecordedSide
from copyspec_eval.audit.replies import greedy
from copyspec_eval.audit.verdicts import Gap
from copyspec_eval.errors import DataError, OptionError
from copyspec_eval.harness.answering import have_answered, without_unsafe
from copyspec_eval.harness.rescoring import rescore
from copyspec_eval.openai_api import NoReplyError
from copyspec_eval.records import AnswerKey
from copyspec_eval.redaction import masked
from copyspec_eval.reports.comparison import compare_answers
from copyspec_eval.reports.runs import Answer, Run, Scores


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
    a = sides.parse("--a", order.a, max(order.levels))
    b = sides.parse("--b", order.b, max(order.levels))
    if isinstance(a, RecordedSide) and isinstance(b, RecordedSide):
        raise OptionError(
            f"--a {order.a} and --b {order.b} are both earlier runs, which cannot be asked; use "
            "copyspec-eval compare"
        )
    with journal.alone(order.out / "replies.jsonl"):
        _check_folder(order)
        asking = Asking(a, b, order.levels, order.out / "replies.jsonl")
        try:
            facts = {"a": a.open(), "b": b.open()}
            scores = _answered(order, asking)
        except NoReplyError as error:
            raise DataError(
                f"{error}; {asking.num_replies} answers are saved in {order.out}; fix the server "
                "and repeat the command to resume"
            ) from error
        result = findings.findings(asking, facts, scores)
        files.write(asking, result, order.out)
    return result


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


def _answered(order: Order, asking: Asking) -> tuple[Scores, Scores]:
    """Have both sides answer, and judge the answers; the scores of A's and of B's."""
    both = asking.sides.values()
    if recorded := [side for side in both if isinstance(side, RecordedSide)]:
        scores = _answer_recorded(order, asking, recorded[0])
    else:
        scores = _answer_tasks(order, asking)
    asking.measure()
    if order.rescore:
        _rescore(asking, order.rescore)
    return scores


def _answer_tasks(order: Order, asking: Asking) -> tuple[Scores, Scores]:
    """Conversations go on from A's answers. Tasks whose programs may not be run get no scores."""
    if not order.tasks:
        raise OptionError("--tasks is missing; give e.g. --tasks mt_bench")
    render = sides.renderer([*asking.sides.values()], order.tokenizer)
    answered = partial(have_answered, render=render, limit=order.limit, gen_kwargs=order.gen_kwargs)

    def ask(requests: Sequence[Instance]) -> list[str]:
        questions = [greedy(_key(each), str(each.args[0]), each.args[1]) for each in requests]
        return [pair.a.text for pair in asking.answer(questions)]

    answered(order.tasks, ask, is_scored=False)
    names = order.tasks if order.runs_code else without_unsafe(order.tasks)

    def scores(texts: Mapping[AnswerKey, str]) -> Scores:
        def recall(requests: Sequence[Instance]) -> list[str]:
            return [texts[_key(request)] for request in requests]

        if not names:
            return {}
        return answered(names, recall, is_scored=True, confirm_run_unsafe_code=order.runs_code)

    return (
        scores({pair.question.key: pair.a.text for pair in asking.pairs}),
        scores({pair.question.key: pair.b.text for pair in asking.pairs}),
    )


def _key(request: Instance) -> AnswerKey:
    return AnswerKey(request.task_name or "", request.doc_id or 0, getattr(request, "turn", 1), 0)


def _answer_recorded(order: Order, asking: Asking, recorded: RecordedSide) -> tuple[Scores, Scores]:
    """Ask the other side what the earlier run was asked, turn by turn; nothing is scored."""
    answers = [
        answer
        for key, answer in sorted(recorded.run.answers.items())
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
        asking.answer([greedy(a.key, a.prompt or "", a.gen_kwargs) for a in part])
    return {}, {}


def _rescore(asking: Asking, pretrained: str) -> None:
    """Have model `pretrained` read the pairs that are undecided, and judge them anew."""
    undecided = {pair.question.key: pair for pair in asking.pairs if pair.verdict.kind == "unknown"}
    runs = Run(Path(), {}, {}), Run(Path(), {}, {})
    for key, pair in undecided.items():
        for run, reply in zip(runs, (pair.a, pair.b), strict=True):
            prompt, settings = pair.question.prompt, pair.question.settings
            run.answers[key] = Answer(key, prompt, "", reply.text, reply.token_ids, settings)
    for rescored in rescore(compare_answers(*runs), pretrained, ()):
        difference = rescored.difference
        if difference is not None:
            nats = math.inf if difference.margin is None else difference.margin
            # Of greedy answers the margin is how much likelier the other token is.
            gap = Gap(difference.position, nats, None, math.exp(-nats))
            undecided[rescored.key].rescored = gap, difference.noise
    asking.judge()
