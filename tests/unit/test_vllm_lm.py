"""Drafts for vLLM, which shows rows without names, and `--model copyspec-vllm`, which records."""

import json
import random
import sys
import tracemalloc
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_process import evaluate_into
from pretended_vllm import LLM, NUM_ROWS, pretended
from rows_engine import MOST_LENGTH, Asked, config, serve
from timed_models import CONTEXTS, check_counts, instances, rows

from copyspec_eval.drafters.copyspec import CopySpecDrafter
from copyspec_eval.errors import OptionError
from copyspec_eval.harness.backends import counts_by_source, finish_reason_from
from copyspec_eval.harness.timed import TimedLM
from copyspec_eval.harness.vllm_lm import STOCK, CopySpecVLLM
from copyspec_eval.manifest import read_manifests
from copyspec_eval.records import TurnRecord
from copyspec_eval.serving.proposer import VARIABLE, CopySpecProposer
from copyspec_eval.types import Verdict

TEXTS = [f"{text}, {text}; {text}." for text in CONTEXTS if text.isascii()]
WANTED = [(text + text).encode()[:40].decode("utf-8", "replace") for text in TEXTS]
STORE = "drafter=suffix,store=true"


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pretended(monkeypatch):
        yield


def make(model: Path, options: str = "", max_length: int = 256, **configured: Any) -> Any:
    arguments = f"pretrained={model},max_length={max_length}" + (f",{options}" if options else "")
    return CopySpecVLLM.create_from_arg_string(arguments, {"batch_size": 4} | configured)


def answered(lm: Any, texts: Sequence[str] = TEXTS, **settings: Any) -> list[TurnRecord]:
    return rows(lm.generate_until(instances(settings, contexts=texts), disable_tqdm=True))


def check(recorded: list[TurnRecord]) -> None:
    for row in recorded:
        check_counts(row)
        assert row.counts.drafts == counts_by_source(row.attempts)


@pytest.mark.parametrize("drafter", [STORE, "gamma=2", "drafter=none"])
def test_counts_and_copies_of_every_answer(byte_model: Path, drafter: str) -> None:
    answers = make(byte_model, drafter).generate_until(instances(contexts=TEXTS))
    assert answers == WANTED
    recorded = rows(answers)
    check(recorded)
    for row in recorded:
        assert row.counts.num_tokens == len(row.token_ids or ())
        text = row.prompt + row.answer
        for span, place in zip(row.spans, row.span_characters, strict=True):
            if span.source >= 0:
                copied = row.answer[place.start : place.end]
                assert text[place.source_start :].startswith(copied)
    assert {(row.backend, row.batch_size) for row in recorded} == {("copyspec-vllm", 4)}
    accepted = sum(attempt.num_accepted for row in recorded for attempt in row.attempts)
    assert (accepted > 100) == (drafter != "drafter=none")


def test_an_answer_that_ends_at_a_stop_string_keeps_its_drafts(byte_model: Path) -> None:
    """vLLM's counts come with the end that its engine sees, and this end it does not see."""
    recorded = answered(make(byte_model), [TEXTS[0] * 2], until=[TEXTS[0][-9:-1]])
    assert {row.counts.finish_reason for row in recorded} == {"stop"}
    check(recorded)
    assert all(row.spans for row in recorded)


def test_close_to_the_longest_length_only_drafts_of_ours_are_counted(byte_model: Path) -> None:
    """vLLM asks for none then, and gives the whole batch zeros; the longest row was not seen."""
    recorded = answered(make(byte_model, max_length=max(map(len, TEXTS)) + 40))
    check(recorded)
    attempts = [attempt for row in recorded for attempt in row.attempts]
    assert sum(attempt.num_accepted for attempt in attempts) > 20
    assert all(attempt.num_accepted or attempt.num_drafted < 31 for attempt in attempts)


@pytest.mark.parametrize("settings", [{"do_sample": None}, {"do_sample": True, "temperature": 0.5}])
def test_sampling_drafts_on_a_cpu_is_refused(byte_model: Path, settings: dict[str, Any]) -> None:
    """Of a batch in which one request samples vLLM garbles the greedy answers, too."""
    sampled = instances(settings, contexts=TEXTS[:1])
    given: dict[str, Any] = {"base": "vllm", "pretrained": str(byte_model), "max_length": 256}
    ngram = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 5}}
    drafting, ours = TimedLM.create_from_arg_obj(given | ngram), make(byte_model)
    for lm in (ours, drafting):
        with pytest.raises(OptionError, match=r"=(1\.0|0\.5): .* --gen_kwargs do_sample=false"):
            lm.generate_until([*instances(contexts=TEXTS[1:]), *sampled], disable_tqdm=True)
    [row] = answered(drafting, TEXTS[:1])
    assert row.counts.num_forwards
    assert row.counts.drafts is None, "vLLM drafts, and does not report it"
    ours.model.llm_engine.vllm_config.device_config.device_type = "cuda"
    for lm in (ours, TimedLM.create_from_arg_obj(given)):
        assert lm.generate_until(sampled), "vLLM's, on a GPU or without drafts"


def test_equal_requests_share_out_their_records(byte_model: Path) -> None:
    """With a store later ones copy the answer of the first, and so more of it."""
    requests = instances(repeats=8, contexts=TEXTS[:1])
    recorded = rows(make(byte_model, STORE, batch_size="auto").generate_until(requests))
    assert len({row.token_ids for row in recorded}) == 1
    assert len({row.spans for row in recorded}) > 1, "not one record for all"


def test_vllm_fills_up_its_own_batch(byte_model: Path) -> None:
    lm = make(byte_model, batch_size="auto")
    lm.ask = mock.Mock(wraps=lm.ask)
    recorded = answered(lm)
    asked = [len(call.args[0]) for call in lm.ask.call_args_list]
    assert asked == [1, len(TEXTS)], "a warm-up, and all at once"
    assert {row.batch_size for row in recorded} == {NUM_ROWS}
    times = {(row.counts.latency_seconds, row.counts.prefill_seconds) for row in recorded}
    assert times == {(3.0, None)}, "without the wait"


@pytest.mark.usefixtures("our_questions")
def test_the_manifest_has_what_vllm_has_loaded(byte_model: Path, tmp_path: Path) -> None:
    evaluate_into(tmp_path, byte_model, "gamma=3,max_length=256", "copyspec-vllm", limit=1)
    [run] = read_manifests(tmp_path, []).values()
    assert (run.spec.device, run.spec.dtype, run.spec.quantization) == ("cpu", "bfloat16", None)
    assert run.spec.drafting.items() >= {"drafter": "copyspec", "gamma": 3}.items()


def test_a_paired_run_has_both_answers(byte_model: Path) -> None:
    lm = make(byte_model, "paired=true")
    drafting, plain = LLM.made
    assert "speculative_config" not in plain.options
    assert {one.options["gpu_memory_utilization"] for one in (drafting, plain)} == {0.45}
    recorded = answered(lm)
    for row in recorded:
        baseline: Any = row.baseline
        assert (baseline.agreement, baseline.token_ids) == ("identical", row.token_ids)
        assert baseline.counts.num_forwards == row.counts.num_tokens
    assert any(row.attempts for row in recorded)
    drafting.wrong_after = 7
    answers = lm.generate_until(instances(contexts=TEXTS))
    assert answers == WANTED == [row.text for row in rows(answers)], "the baseline's"
    for row in rows(answers):
        baseline = row.baseline
        assert baseline.difference.position == 7
        assert baseline.agreement == "diverged", "nothing says that it is a near-tie"


@pytest.mark.usefixtures("our_questions")
def test_a_stock_arm_shows_what_the_older_runner_costs(byte_model: Path, tmp_path: Path) -> None:
    """The baseline has the runner and the scheduling of the drafts, and the stock arm vLLM's."""
    evaluate_into(
        tmp_path, byte_model, "paired=true,stock=true,max_length=256", "copyspec-vllm", limit=2
    )
    assert {one.options["gpu_memory_utilization"] for one in LLM.made} == {0.3}
    configs = [one.llm_engine.vllm_config for one in LLM.made]
    assert [each.use_v2_model_runner for each in configs] == [False, False, True]
    assert [each.scheduler_config.async_scheduling for each in configs] == [False, False, True]
    # The pretended times are none that a record may have.
    written = map(json.loads, (tmp_path / "turns.jsonl").read_text().splitlines())
    by_arm: defaultdict[str, list[Any]] = defaultdict(list)
    for row in written:
        by_arm[row["drafter"]].append(row)
    assert len(by_arm["suffix"]) == len(by_arm[STOCK]) == 4
    for row in by_arm[STOCK]:
        assert (row["baseline"]["difference"], row["attempts"]) == (None, [])
    runs = read_manifests(tmp_path, [])
    names = {arm: rows[0]["run_id"] for arm, rows in by_arm.items()}
    runners = {arm: runs[name].spec.environment["vllm.runner"] for arm, name in names.items()}
    assert runners == {"suffix": "V1", STOCK: "V2"}
    results = json.loads(next(tmp_path.rglob("results_*.json")).read_text())["config"]["copyspec"]
    assert [arm["run_id"] for arm in results["other_arms"]] == [names[STOCK]]


def test_the_warm_up_is_not_copied_from(byte_model: Path) -> None:
    [row] = answered(make(byte_model, STORE, batch_size=1), ["abcdefghij"])
    assert all(source != "store" for _, _, source in row.attempts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("tensor_paralel_size=2", "unknown model_arg 'tensor_paralel_size'"),
        ("exact=true", "unknown model_arg 'exact'"),
        ("base=hf", "base is set by copyspec-vllm itself"),
        ("paired=1", "paired must be true or false, got 1"),
        ("stock=true", "stock=True is an arm of a paired run; pass paired=True"),
        ("data_parallel_size=2", "data_parallel_size=2: lm-eval would load the model within"),
        ("store=nowhere", "store=nowhere: no such file"),
    ],
)
def test_what_is_refused_before_loading(byte_model: Path, options: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make(byte_model, options)
    assert not LLM.made


def test_without_vllm_it_says_what_to_install(byte_model: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(OptionError, match=r"pip install 'copyspec-eval\[vllm\]'"):
        make(byte_model)


def test_a_stop_without_a_string_is_an_eos() -> None:
    ends = [("stop", None), ("stop", 7), ("stop", "s"), ("length", None), (None, None)]
    assert [finish_reason_from(*end) for end in ends] == ["eos", "eos", "stop", "length", None]


def asked(seed: int, number: int) -> list[Asked]:
    source = random.Random(seed)
    made = []
    for which in range(number):
        prompt = [100 + which, *source.choices(range(9), k=source.randint(3, 40))]
        answer = source.choices(range(9), k=source.randint(1, 20))
        at = source.randrange(len(prompt))
        made.append(Asked(prompt, answer + prompt[at : at + 20] + answer[:5]))
    return made


@given(st.integers(0, 10**6), st.integers(1, 5), st.sampled_from([60, MOST_LENGTH]))
def test_answers_are_taken_up_whole_and_in_their_own_request(seed, num_rows, limit) -> None:
    """Rows change places or are left out, requests preempted, drafts cut, prompts read in parts.

    Close to the limit vLLM gives all rows zeros; those that go on are the same requests afterwards.
    """
    requests, proposer = asked(seed, 8), CopySpecProposer(config(max_length=limit))
    for one in requests:
        one.answer_ids = one.answer_ids[: limit - len(one.prompt_ids)]
    proposer.restart(is_recording=True)
    serve(proposer, requests, num_rows, random.Random(seed), max_length=limit)
    drafted = proposer.requests.take_drafted([(one.prompt_ids, one.output_ids) for one in requests])
    for one, (attempts, _) in zip(requests, drafted, strict=True):
        accepted = sum(attempt.num_accepted for attempt in attempts)
        assert accepted == sum(each for _, each in one.ours)
        # Where the last token is the next of the draft, the draft may not have been verified.
        assert limit == MOST_LENGTH or len(one.ours) - len(attempts) in (0, 1)


def test_a_draft_is_that_of_the_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "drafter=copyspec,gamma=2,num_draft_tokens=6")
    num_drafts = 0
    for seed in range(20):
        requests = asked(seed, 6)
        serve(CopySpecProposer(config()), requests, 3, random.Random(seed))
        for request in requests:
            for draft, length in zip(request.drafts, request.lengths, strict=True):
                alone = CopySpecDrafter(gamma=2, num_draft_tokens=6)
                alone.start(request.prompt_ids)
                output_ids = request.answer_ids[:length]
                alone.observe(output_ids, Verdict(0, output_ids[-1]))
                assert draft == list(alone.propose(6, 6, 0.01).token_ids)
                num_drafts += bool(draft)
    assert num_drafts > 100


def test_a_server_remembers_no_request_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "drafter=none")
    length, used = 20_000, []
    proposer = CopySpecProposer(config(max_length=2 * length))
    text = numpy.arange(1000, 1000 + length, dtype=numpy.int32)
    tracemalloc.start()
    for number in range(40):
        text[0] = number
        proposer.propose([[1]], numpy.array([length]), text[None])
        used.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert used[-1] < used[3] + 1e6


def test_a_row_that_is_full_is_left_alone() -> None:
    request = Asked([1, 2] * 8, [1, 2] * 2)
    serve(CopySpecProposer(config(max_length=20)), [request], 1, random.Random(0))
    assert request.drafts[-1] == []
    assert all(len(draft) < 20 - 16 for draft in request.drafts)


def test_what_a_proposer_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {
        "gama=3": "unknown drafter argument 'gama'",
        "drafter=suffix,tree=true": "only chains",
    }
    for options, message in refused.items():
        monkeypatch.setenv(VARIABLE, options)
        with pytest.raises(OptionError, match=message):
            CopySpecProposer(config())
