"""Conversations through lm-eval's own evaluator, with a model that answers from a script."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import lm_eval
import pytest
import torch
from sample_rows import PAIRED_ROW, with_counts
from scripted_lm import Scripted, counting, evaluated, figures, figures_in

from copyspec_eval.errors import DataError, OptionError
from copyspec_eval.harness.multiturn import MAX_TURNS
from copyspec_eval.harness.tasks import QuestionFileTask
from copyspec_eval.provenance import process_id
from copyspec_eval.records import RecordedText

assert PAIRED_ROW.baseline is not None
OURS, EARLIER = {"run_id": process_id()}, {"run_id": "another-run"}
IDENTICAL = {"baseline": replace(PAIRED_ROW.baseline, difference=None)}
QUESTIONS = [["Name a fruit.", "And its colour?"], ["Say one.", "Twice?"], ["Hi", "Bye"]]


class ScriptedLM(Scripted):
    """Answers `reply to {question}`, with a record of these changes in turn, or none."""

    def __init__(self, *changes: dict[str, Any] | None) -> None:
        super().__init__()
        self.changes = changes or (None,)

    def generate_until(self, requests, disable_tqdm=False):
        self.asked += [request.args for request in requests]
        return [self.answer(request) for request in requests]

    def answer(self, request: Any) -> str | None:
        text = f"reply to {getattr(request, 'question', '')}"
        changes = self.changes[request.doc_id % len(self.changes)]
        if changes is None:
            return text
        row = replace(PAIRED_ROW, turn=request.turn, text=text, **changes)
        return RecordedText(text, with_counts(row, num_tokens=10 * request.turn, seconds=2.0))


def write_questions(folder: Path, questions: list[list[str]], name: str = "question") -> None:
    rows = [
        {"question_id": number, "category": "writing", "turns": turns}
        for number, turns in enumerate(questions, start=81)
    ]
    path = folder / "mt_bench" / f"{name}.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(autouse=True)
def questions(local_data):
    write_questions(local_data, QUESTIONS)
    write_questions(local_data, QUESTIONS[:2], "question_redundant")


DEFAULT = {"until": [], "do_sample": False, "max_gen_toks": 1024}


def test_turns_are_asked_in_phases_with_their_history():
    lm = ScriptedLM()
    evaluated(lm, "mt_bench")
    assert lm.asked[:3] == [(f"User: {first}\n\nAssistant:", DEFAULT) for first, _ in QUESTIONS]
    assert [prompt for prompt, _ in lm.asked[3:]] == [
        f"User: {first}\n\nAssistant:reply to {first}\n\nUser: {second}\n\nAssistant:"
        for first, second in QUESTIONS
    ]


def test_what_the_caller_sets_reaches_every_turn():
    lm = ScriptedLM(OURS)
    options: dict[str, Any] = {"limit": 1, "gen_kwargs": {"max_gen_toks": 8}}
    options |= {"apply_chat_template": True, "system_instruction": "Be brief."}
    evaluated(lm, "mt_bench", **options)
    start = "<system>Be brief.<user>Name a fruit.<assistant>"
    second = f"{start}reply to Name a fruit.<user>And its colour?<assistant>"
    assert lm.asked == [(prompt, DEFAULT | {"max_gen_toks": 8}) for prompt in (start, second)]


def test_other_backends_report_the_answered_share_only():
    lm: Any = ScriptedLM()
    lm.answer = lambda request: None if (request.doc_id, request.turn) == (0, 1) else "x"
    assert figures(lm, "mt_bench") == {"answered": pytest.approx(5 / 6)}
    second = "User: Name a fruit.\n\nAssistant:\n\nUser: And its colour?\n\nAssistant:"
    assert lm.asked[3][0] == second


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        # Of each document 10 + 20 tokens in 2 + 2 s, and a token a second by plain decoding.
        ([OURS], {"speedup": 7.5, "identical": 0}),
        ([EARLIER], {"identical": 0}),  # its counts are kept, its times are not
        ([{**OURS, "baseline": None}], {}),
        ([None, OURS, EARLIER | IDENTICAL], {"speedup": 7.5, "identical": 0.5}),
    ],
)
def test_figures_are_over_what_is_known(changes, wanted):
    assert figures(ScriptedLM(*changes), "mt_bench") == {"answered": 1, **wanted}


def test_results_and_samples_of_a_paired_run():
    results = evaluated(ScriptedLM(OURS), "mt_bench", bootstrap_iters=10)
    assert results["results"]["mt_bench"]["speedup_stderr,none"] == "N/A"
    assert results["higher_is_better"]["mt_bench"]["speedup"] is True
    sample = results["samples"]["mt_bench"][0]
    assert sample["arguments"][1][0].endswith("User: And its colour?\n\nAssistant:")
    assert sample["resps"] == [["reply to Name a fruit."], ["reply to And its colour?"]]
    assert json.loads(json.dumps(sample["speedup"])) == [[10, 2, 10, 10], [20, 2, 10, 10]]


def test_predict_only():
    results = evaluated(ScriptedLM(OURS), "mt_bench", predict_only=True)
    assert figures_in(results, "mt_bench") == {"bypass": 999}
    assert len(results["samples"]["mt_bench"][0]["resps"]) == 2


def test_cache_requests_serves_another_model(tmp_path, monkeypatch):
    monkeypatch.setattr("lm_eval.caching.cache.PATH", str(tmp_path / "requests"))
    options = {"cache_requests": True, "apply_chat_template": True}
    evaluated(ScriptedLM(), "mt_bench", **options)
    monkeypatch.setattr(QuestionFileTask, "construct_requests", None)  # so they come from the cache
    second: Any = ScriptedLM()
    second.apply_chat_template = lambda *_, **__: "another"
    evaluated(second, "mt_bench", limit=2, **options)
    assert len(list((tmp_path / "requests").iterdir())) == 1
    assert [prompt for prompt, _ in second.asked] == ["another"] * 4


def test_group_write_out_and_stock_task_together():
    lm = ScriptedLM()
    results = evaluated(lm, "copyspec_mt", counting(), limit=2, write_out=True)
    assert len(lm.asked) == 2 * 2 + 2 * 2 + 2
    assert results["group_subtasks"]["copyspec_mt"] == ["mt_bench", "mt_redundant"]
    assert figures_in(results, "mt_redundant")["answered"] == 1
    assert figures_in(results, "counting") == {"bypass": 999}
    assert lm_eval.utils.make_table(results)


class RankLM(ScriptedLM):
    """One of two ranks, run one after the other; `gathered` carries what rank 1 sent to rank 0."""

    def __init__(self, rank: int, gathered: list[Any], changes: dict[str, Any] | None) -> None:
        super().__init__(changes)
        self._rank, self._world_size = rank, 2
        self._device = torch.device("cpu")
        self.gathered = gathered

    def all_gather(self, tensor):
        return torch.tensor([4, 2])  # requests per rank: three documents, two turns

    def gather_object(self, obj, dst=0):
        if self.rank:
            return self.gathered.append(obj)
        return [obj, self.gathered.pop(0)]


@pytest.mark.parametrize("others", [None, EARLIER, OURS])
@pytest.mark.parametrize("ours", [None, OURS])
def test_ranks_report_together_whatever_their_caches_held(ours, others):
    gathered: list[Any] = []
    padded = RankLM(1, gathered, others)
    assert evaluated(padded, "mt_bench") is None
    assert len(padded.asked) == 1 + 2 + 1  # the one document's first turn, twice more as padding
    values = figures(RankLM(0, gathered, ours), "mt_bench")
    wanted = {"speedup": 7.5, "identical": 0} if ours else {}
    assert values == {"answered": 1, **wanted}


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ([["a", "b"], ["a"]], "2: 1 turns, but the first question has 2"),
        ([["a"] * (MAX_TURNS + 1)], f"9 turns in a document; give 1 to {MAX_TURNS}"),
    ],
)
def test_bad_documents(local_data, turns, message):
    write_questions(local_data, turns)
    with pytest.raises(DataError, match=message):
        evaluated(ScriptedLM(), "mt_bench")


def config(**changes: Any) -> dict[str, Any]:
    questions = {"questions": "mt_bench/question.jsonl"}
    rest = {"dataset_kwargs": questions, "generation_kwargs": {"until": []}, "test_split": "test"}
    return {"task": "mt_bench", "class": QuestionFileTask, **rest, **changes}


@pytest.mark.parametrize("change", [{"repeats": 2}, {"num_fewshot": 3}, {"gen_prefix": "Sure"}])
def test_settings_that_do_not_go_with_turns(change):
    [name] = change
    with pytest.raises(OptionError, match=f"^mt_bench: {name}: .* is not possible with turns; rem"):
        QuestionFileTask(config(**change))


def test_description_joins_the_system_message():
    task = QuestionFileTask(config(description="You are {{category}}."))
    task.build_all_requests(limit=1, system_instruction="Be brief.")
    prompt, _ = task.instances[0].args
    assert prompt.startswith("Be brief.\n\nYou are writing.\n\nUser: Name a fruit.")
