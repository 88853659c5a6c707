"""Conversations through lm-eval's own evaluator, with a model that answers from a script."""

import json
import math
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import lm_eval
import pytest
import torch
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager
from sample_rows import PAIRED_ROW, with_counts
from scripted_lm import Scripted

from copyspec_eval.errors import DataError, OptionError
from copyspec_eval.harness.multiturn import MAX_TURNS, TurnInstance, render
from copyspec_eval.harness.tasks import QuestionFileTask
from copyspec_eval.paths import tasks_dir
from copyspec_eval.provenance import process_id
from copyspec_eval.records import RecordedText, TurnRecord

assert PAIRED_ROW.baseline is not None
BASELINE = PAIRED_ROW.baseline
QUESTIONS = [["Name a fruit.", "And its colour?"], ["Say one.", "Twice?"], ["Hi", "Bye"]]


def record(run: str, turn: int, text: str, **changes: Any) -> TurnRecord:
    row = replace(PAIRED_ROW, run_id=run, turn=turn, text=text, **changes)
    return with_counts(row, num_tokens=10 * turn, seconds=2.0)


class ScriptedLM(Scripted):
    """Answers `reply to {question}`, with a record if it has a run."""

    def __init__(self, run: str | None = None, **record_changes: Any) -> None:
        super().__init__()
        self.run = run
        self.record_changes = record_changes

    def generate_until(self, requests, disable_tqdm=False):
        answers = []
        for request in requests:
            self.asked.append(request.args)
            answers.append(self.answer(request))
        return answers

    def answer(self, request: Any) -> str | None:
        text = f"reply to {getattr(request, 'question', '')}"
        turn = getattr(request, "turn", 1)
        if self.run is None:
            return text
        return RecordedText(text, record(self.run, turn, text, **self.record_changes))


def write_questions(folder: Path, questions: list[list[str]], name: str = "question") -> None:
    rows = [
        {"question_id": number, "category": "writing", "turns": turns}
        for number, turns in enumerate(questions, start=81)
    ]
    path = folder / "mt_bench" / f"{name}.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(autouse=True)
def questions(tmp_path, monkeypatch):
    """Three two-turn questions, and none of lm-eval's slow look at the machine."""
    monkeypatch.setenv("COPYSPEC_DATA_DIR", str(tmp_path))
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)
    write_questions(tmp_path, QUESTIONS)
    write_questions(tmp_path, QUESTIONS[:2], "question_redundant")


@pytest.fixture(scope="module")
def manager(tmp_path_factory):
    """Our tasks and one of lm-eval's own kind."""
    folder = tmp_path_factory.mktemp("stock")
    (folder / "data.jsonl").write_text('{"question": "1+1?", "answer": "2"}\n')
    (folder / "stock.yaml").write_text(
        f"task: stock\ndataset_path: json\ndataset_kwargs: {{data_files: {folder}/data.jsonl,"
        f" cache_dir: {folder}/cache}}\ntest_split: train\noutput_type: generate_until\n"
        "doc_to_text: '{{question}}'\ndoc_to_target: '{{answer}}'\n"
        "generation_kwargs: {until: ['.']}\nmetric_list: [{metric: bypass, aggregation: bypass,"
        " higher_is_better: true}]\n"
    )
    return TaskManager(include_path=[tasks_dir(), folder], include_defaults=False)


@pytest.fixture
def evaluate(manager):
    def run(lm: LM, tasks: tuple[str, ...] = ("mt_bench",), **options: Any) -> Any:
        return lm_eval.simple_evaluate(lm, tasks=list(tasks), task_manager=manager, **options)

    return run


def figures(results: Any, task: str = "mt_bench") -> dict[str, float]:
    """Reported values by name, without lm-eval's standard errors."""
    values = results["results"][task]
    return {
        key.removesuffix(",none"): value
        for key, value in values.items()
        if key.endswith(",none") and "_stderr" not in key
    }


def test_render_without_template_extends_the_earlier_prompt():
    system = {"role": "system", "content": "Be brief."}
    user, reply = {"role": "user", "content": "Q"}, {"role": "assistant", "content": " A\n"}
    first = render([system, user], None)
    assert first == "Be brief.\n\nUser: Q\n\nAssistant:"
    assert render([system, user, reply, user], None).startswith(first + " A\n")


def test_turns_are_asked_in_phases_with_their_history(evaluate):
    lm = ScriptedLM()
    evaluate(lm)
    prompts = [prompt for prompt, _ in lm.asked]
    assert prompts[:3] == [f"User: {first}\n\nAssistant:" for first, _ in QUESTIONS]
    assert prompts[3:] == [
        f"User: {first}\n\nAssistant:reply to {first}\n\nUser: {second}\n\nAssistant:"
        for first, second in QUESTIONS
    ]


def test_chat_template_and_system_instruction_reach_every_turn(evaluate):
    lm = ScriptedLM(process_id())
    evaluate(lm, limit=1, apply_chat_template=True, system_instruction="Be brief.")
    start = "<system>Be brief.<user>Name a fruit.<assistant>"
    assert [prompt for prompt, _ in lm.asked] == [
        start,
        f"{start}reply to Name a fruit.<user>And its colour?<assistant>",
    ]


def test_generation_settings_reach_every_turn(evaluate):
    lm = ScriptedLM()
    evaluate(lm, limit=1)
    evaluate(lm, limit=1, gen_kwargs={"max_gen_toks": 8})
    default = {"until": [], "do_sample": False, "max_gen_toks": 1024}
    assert [settings for _, settings in lm.asked] == [default] * 2 + [
        default | {"max_gen_toks": 8}
    ] * 2


def test_limit_samples_and_number_of_requests(evaluate):
    for options, asked in (({"limit": 2}, [0, 1]), ({"samples": {"mt_bench": [0, 2]}}, [0, 2])):
        lm = ScriptedLM()
        results = evaluate(lm, **options)
        assert [prompt for prompt, _ in lm.asked[:2]] == [
            f"User: {QUESTIONS[index][0]}\n\nAssistant:" for index in asked
        ]
        assert len(lm.asked) == 4
        assert [sample["doc_id"] for sample in results["samples"]["mt_bench"]] == asked


def test_other_backends_report_the_answered_share_only(evaluate):
    class Mute(ScriptedLM):
        def answer(self, request):
            return None if request.turn == 1 and request.doc["question_id"] == 81 else "x"

    lm = Mute()
    results = evaluate(lm)
    assert figures(results) == {"answered": pytest.approx(5 / 6)}
    assert (
        lm.asked[3][0] == "User: Name a fruit.\n\nAssistant:\n\nUser: And its colour?\n\nAssistant:"
    )


def test_answers_of_a_paired_run_report_speedup_and_agreement(evaluate):
    results = evaluate(ScriptedLM(process_id()))
    assert figures(results) == {
        "answered": 1,
        "speedup": ((10 + 20) / (2 + 2)) / ((10 + 10) / (10 + 10)),
        "identical": 0,
    }
    assert results["results"]["mt_bench"]["speedup_stderr,none"] == "N/A"
    assert results["higher_is_better"]["mt_bench"]["speedup"] is True


def test_samples_hold_prompts_answers_and_pairs(evaluate):
    sample = evaluate(ScriptedLM(process_id()), limit=1)["samples"]["mt_bench"][0]
    assert sample["arguments"][1][0].endswith("User: And its colour?\n\nAssistant:")
    assert sample["resps"] == [["reply to Name a fruit."], ["reply to And its colour?"]]
    assert json.loads(json.dumps(sample["speedup"])) == [[10, 2, 10, 10], [20, 2, 10, 10]]
    assert sample["doc"]["category"] == "writing"


@pytest.mark.parametrize(
    ("lm", "reported"),
    [
        (ScriptedLM("another-run"), {"identical"}),  # its counts are kept, its times are not
        (ScriptedLM(process_id(), baseline=None), set()),
    ],
    ids=["earlier run", "not paired"],
)
def test_what_is_not_known_is_left_out(evaluate, lm, reported):
    assert figures(evaluate(lm)).keys() == {"answered", *reported}


def test_mixed_answers_count_what_is_known(evaluate):
    class Mixed(ScriptedLM):
        def answer(self, request):
            number = request.doc["question_id"]
            self.run = {81: None, 82: process_id(), 83: "another-run"}[number]
            self.record_changes = {83: {"baseline": replace(BASELINE, difference=None)}}.get(
                number, {}
            )
            return super().answer(request)

    values = figures(evaluate(Mixed()))
    assert (values["speedup"], values["identical"]) == (7.5, 1 / 2)
    assert values["answered"] == 1
    assert not any(math.isnan(value) for value in values.values())


def test_predict_only(evaluate):
    results = evaluate(ScriptedLM(process_id()), predict_only=True)
    assert figures(results) == {"bypass": 999}
    assert len(results["samples"]["mt_bench"][0]["resps"]) == 2


def test_use_cache_resumes_in_the_middle_of_a_conversation(evaluate, tmp_path):
    class Killed(ScriptedLM):
        def answer(self, request):
            if request.turn == 2 and request.doc["question_id"] == 82:
                raise InterruptedError
            answer = super().answer(request)
            self.cache_hook.add_partial("generate_until", request.args, answer)
            return answer

    cache = str(tmp_path / "answers")
    with pytest.raises(InterruptedError):
        evaluate(Killed("another-run"), use_cache=cache)
    resumed, again = ScriptedLM(process_id()), ScriptedLM(process_id())
    results = evaluate(resumed, use_cache=cache)
    for (prompt, _), (_, second) in zip(resumed.asked, QUESTIONS[1:], strict=True):
        assert prompt.endswith(f"User: {second}\n\nAssistant:")
    assert figures(results)["speedup"] == 10, "of the second turns alone"
    evaluate(again, use_cache=cache)
    assert again.asked == []


def test_cache_requests_serves_another_model(evaluate, tmp_path, monkeypatch):
    monkeypatch.setattr("lm_eval.caching.cache.PATH", str(tmp_path / "requests"))
    options = {"cache_requests": True, "apply_chat_template": True}
    first, second = ScriptedLM(), ScriptedLM()
    evaluate(first, **options)
    monkeypatch.setattr(QuestionFileTask, "construct_requests", None)  # so they come from the cache
    second.apply_chat_template = lambda *_, **__: "other template"  # type: ignore[method-assign]
    evaluate(second, limit=2, **options)
    assert len(list((tmp_path / "requests").iterdir())) == 1
    assert [prompt for prompt, _ in second.asked] == ["other template"] * 4


def test_pickling_leaves_the_model_behind():
    lm = ScriptedLM()
    first = TurnInstance({}, "Q1", None, {"until": []}, ("task", 0, 1))
    second = TurnInstance({}, "Q2", first, {"until": []}, ("task", 0, 1))
    second.chat_template = lm.apply_chat_template
    first.resps.append("A")
    copied = pickle.loads(pickle.dumps(second))
    assert copied.chat_template is None
    assert copied.args == ("User: Q1\n\nAssistant:A\n\nUser: Q2\n\nAssistant:", {"until": []})
    assert (copied.turn, copied.request_type, copied.idx) == (2, "generate_until_turn2", 1)


def test_group_write_out_and_stock_task_together(evaluate):
    lm = ScriptedLM()
    results = evaluate(lm, ("copyspec_mt", "stock"), limit=2, write_out=True)
    assert len(lm.asked) == 2 * 2 + 2 * 2 + 1
    assert results["group_subtasks"]["copyspec_mt"] == ["mt_bench", "mt_redundant"]
    assert figures(results, "mt_redundant")["answered"] == 1
    assert figures(results, "stock") == {"bypass": 999}
    assert lm_eval.utils.make_table(results)


class RankLM(ScriptedLM):
    """One of two ranks, run one after the other; `gathered` carries what rank 1 sent to rank 0."""

    def __init__(self, rank: int, gathered: list[Any], run: str | None) -> None:
        super().__init__(run)
        self._rank, self._world_size = rank, 2
        self._device = torch.device("cpu")
        self.gathered = gathered

    def all_gather(self, tensor):
        return torch.tensor([4, 2])  # requests per rank: three documents, two turns

    def gather_object(self, obj, dst=0):
        if self.rank:
            return self.gathered.append(obj)
        return [obj, self.gathered.pop(0)]


@pytest.mark.parametrize("others_run", [None, "another-run", "this run"])
@pytest.mark.parametrize("own_run", [None, "this run"])
def test_ranks_report_together_whatever_their_caches_held(evaluate, own_run, others_run):
    gathered: list[Any] = []
    native, other = (process_id() if run == "this run" else run for run in (own_run, others_run))
    padded = RankLM(1, gathered, other)
    assert evaluate(padded) is None
    assert len(padded.asked) == 1 + 2 + 1  # the one document's first turn, twice more as padding
    values = figures(evaluate(RankLM(0, gathered, native)))
    assert values["answered"] == 1
    assert ("identical" in values) == (native is not None)
    if native:
        assert values["speedup"] == 7.5


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ([["a", "b"], ["a"]], "2: 1 turns, but the first question has 2"),
        ([["a"] * (MAX_TURNS + 1)], f"9 turns in a document; give 1 to {MAX_TURNS}"),
    ],
)
def test_bad_documents(evaluate, tmp_path, turns, message):
    write_questions(tmp_path, turns)
    with pytest.raises(DataError, match=message):
        evaluate(ScriptedLM())


def config(**changes: Any) -> dict[str, Any]:
    return {
        "task": "mt_bench",
        "class": QuestionFileTask,
        "dataset_kwargs": {"questions": "mt_bench/question.jsonl"},
        "test_split": "test",
        "generation_kwargs": {"until": []},
    } | changes


def test_documents_of_another_length_are_refused_on_the_rank_that_has_them():
    class Uneven(QuestionFileTask):
        def user_turns(self, doc):
            return ["a"] * (2 if doc["question_id"] == 81 else 3)

    task = Uneven(config())
    task.build_all_requests(limit=1)
    with pytest.raises(DataError, match="document 1 has 3 turns, the first has 2; give every"):
        task.build_all_requests()


@pytest.mark.parametrize("change", [{"repeats": 2}, {"num_fewshot": 3}, {"gen_prefix": "Sure"}])
def test_settings_that_do_not_go_with_turns(change):
    name = next(iter(change))
    with pytest.raises(OptionError, match=f"^mt_bench: {name}: .* is not possible with turns; rem"):
        QuestionFileTask(config(**change))


def test_description_joins_the_system_message():
    task = QuestionFileTask(config(description="You are {{category}}."))
    task.build_all_requests(limit=1, system_instruction="Be brief.")
    prompt, _ = task.instances[0].args
    assert prompt.startswith("Be brief.\n\nYou are writing.\n\nUser: Name a fruit.")
