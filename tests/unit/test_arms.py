"""Several arms in one run, and paired decoding: both in turn, with the same tokens."""

import functools
import json
import math
import os
import shutil
from functools import partial
from itertools import pairwise, product
from time import perf_counter
from typing import Any
from unittest import mock

import pytest
import torch
from asking import asked, sampling
from changed_steps import put_in_place
from doubles import RecordingChooser
from in_process import evaluate_into, rows_in
from paired_answers import BUDGET, copying, engine_of, pairs_of
from tiny_models import prompts, tiny_model
from transformers import RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper
from ways import EXACT_WAYS, WAYS

from copyspec_eval.cli import main
from copyspec_eval.decoding.forward import forward
from copyspec_eval.decoding.given import read_again
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.base import Drafter, NoDrafter
from copyspec_eval.drafters.registry import drafter_factory
from copyspec_eval.errors import DataError, OptionError
from copyspec_eval.manifest import read_manifests
from copyspec_eval.pairs.differences import NOISE_WINDOW
from copyspec_eval.reports.leaderboard import leaderboard
from copyspec_eval.reports.recorded import read_recorded
from copyspec_eval.reports.runs import read_arms, read_run
from copyspec_eval.session.settings import parse_arms
from copyspec_eval.types import DraftOptions

ARMS = "none:copyspec+gamma=1:copyspec+gamma=2+num_draft_tokens=0:suffix+store"


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        ("copyspek", r"unknown drafter 'copyspek' \(did you mean 'copyspec'\?\)"),
        ("copyspec+gama=3", r"unknown setting of the arm copyspec 'gama' \(did you mean 'gamma'"),
        ("copyspec+tree", "tree=true is not for drafter=copyspec; pass drafter=suffix"),
        ("copyspec:none:copyspec", "arms=copyspec:none:copyspec: copyspec is listed twice"),
        ("none", "arms=none: only the baseline; add a drafter, e.g. suffix"),
        ("suffix+store=runs/a", "an arm cannot copy from earlier runs"),
        (["copyspec", 3], r"arms=\['copyspec', 3\] is not a list of drafters"),
        (3, "arms=3 is not a list of drafters"),
    ],
)
def test_wrong_arms_are_refused(arms, message):
    with pytest.raises(OptionError, match=message):
        parse_arms(DraftOptions(), arms)


def test_no_arms_without_answers_or_beside_a_drafter(byte_model, tmp_path):
    (tmp_path / "turns.jsonl").touch()
    with pytest.raises(DataError, match="no sample logs"):
        read_run(tmp_path)
    with pytest.raises(OptionError, match="names the drafters; leave drafter=suffix out"):
        evaluate_into(tmp_path, byte_model, "arms=copyspec,drafter=suffix")


@pytest.fixture(scope="module")
def run(tmp_path_factory, byte_model, questions):
    folder = tmp_path_factory.mktemp("arms")
    options: dict[str, Any] = {"limit": 2, "use_cache": str(folder / "answers")}
    with mock.patch.dict(os.environ, COPYSPEC_DATA_DIR=str(questions)):
        evaluate_into(folder / "run", byte_model, f"arms={ARMS}", **options)
        shutil.copytree(folder / "run", folder / "continued")
        evaluate_into(folder / "continued", byte_model, f"arms={ARMS}", **options)
    return folder / "run"


@pytest.mark.parametrize("name", ["run", "continued"])
def test_arms_are_lines_with_equal_scores(run, name):
    """What the first start answered comes from lm-eval's cache in the second."""
    recorded = read_recorded(run.with_name(name))
    assert recorded.cut_short == {}
    lines = leaderboard([recorded]).lines
    names = ["copyspec, gamma=1, num_draft_tokens=10", "copyspec, gamma=2, num_draft_tokens=0"]
    assert sorted(lines["drafter"]) == [*names, "suffix + store"]
    for column, wanted in (("turns", 4), ("runs", 1), ("identical", 1.0)):
        assert lines[column].tolist() == [wanted] * 3
    assert len(set(lines["baseline_tokens_per_second"])) == 1


def test_each_arm_is_a_run_that_answers_every_request(run):
    rows = rows_in(run)
    answered = sorted((row.run_id, row.doc_id, row.turn) for row in rows)
    assert answered == sorted(product({row.run_id for row in rows}, range(2), (1, 2)))
    assert all(row.baseline and row.token_ids == row.baseline.token_ids for row in rows)
    assert not any(row.baseline and row.baseline.difference for row in rows)
    baselines = {(row.doc_id, row.turn, str(row.baseline.counts)) for row in rows if row.baseline}
    assert len(baselines) == 4, "one baseline for all arms"
    drafts = {row.run_id: row.counts.drafts for row in rows if row.drafter == "copyspec"}
    assert [*map(bool, drafts.values())] == [True, False], "looking alone copies nothing"
    drafting = [manifest.spec.drafting for manifest in read_manifests(run, []).values()]
    settings = [(each["drafter"], each["gamma"]) for each in drafting]
    assert settings == [("copyspec", 1), ("copyspec", 2), ("suffix", 3)]
    assert drafting[1]["num_draft_tokens"] == 0
    assert all(each["arms"] == ["copyspec", "copyspec", "suffix + store"] for each in drafting)


def test_arms_are_compared_one_by_one_and_one_wrong_arm_fails(run, tmp_path, capsys):
    assert list(read_arms(read_run(run))) == [
        "copyspec, gamma=1, num_draft_tokens=10, delta=5",
        "copyspec, gamma=2, num_draft_tokens=0, delta=5",
        "suffix + store, gamma=3, num_draft_tokens=96, delta=5",
    ]
    assert main(["compare", str(run)]) == 0
    assert capsys.readouterr().out.count("identical") >= 3
    forged = tmp_path / "forged"
    shutil.copytree(run, forged)
    rows = [json.loads(line) for line in (forged / "turns.jsonl").read_text().splitlines()]
    rows[-1]["token_ids"][0] += 1
    (forged / "turns.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["compare", str(forged)]) == 1


@functools.cache
def plain_tokens() -> list[tuple[int, ...]]:
    alone = engine_of(tiny_model("qwen2"), NoDrafter).generate(asked(prompts(), BUDGET))
    return [each.token_ids for each in alone]


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize(
    ("drafter", "exact"),
    [*((name, False) for name in WAYS), *((name, True) for name in EXACT_WAYS)],
)
def test_every_drafter_is_as_its_baseline(drafter: str, exact: bool, batch_size: int) -> None:
    model = tiny_model("qwen2")
    maker = drafter_factory(WAYS[drafter])
    started = perf_counter()
    actual = pairs_of(model, maker, exact, batch_size)
    elapsed = perf_counter() - started
    both = [answer.counts for pair in actual for answer in (pair.drafted, pair.baseline)]
    assert 0 < sum(counts.seconds or math.inf for counts in both) <= elapsed
    for pair, wanted in zip(actual, plain_tokens(), strict=True):
        assert pair.agreement == "identical"
        plain = pair.baseline
        assert pair.drafted.token_ids == plain.token_ids == wanted
        assert plain.counts.num_forwards == len(plain.token_ids), "one token counts of a forward"
        assert plain.batch_size == batch_size


@pytest.mark.parametrize(
    "processor", [RepetitionPenaltyLogitsProcessor(1.3), TemperatureLogitsWarper(2.0)]
)
def test_both_arms_draw_the_same_tokens_after_the_same_processors(processor: Any) -> None:
    draw = partial(sampling, processor, seed=5)
    actual = pairs_of(tiny_model("llama"), copying(), make_chooser=draw)
    assert {pair.agreement for pair in actual} == {"identical"}
    assert len({pair.drafted.token_ids for pair in actual}) == len(actual)


def test_arms_take_turns_and_the_baseline_is_fed_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[object] = []

    def watched(model: Any, cache: Any, parts: Any, **options: Any) -> Any:
        log.append(tuple(len(part.token_ids) for part in parts))
        return forward(model, cache, parts, **options)

    def drafter() -> Drafter:
        log.append("draft")
        return copying()()

    put_in_place(monkeypatch, watched)
    pairs_of(tiny_model("qwen2"), drafter, batch_size=2, asked=[(3, 4, 5)] * 16)
    assert {*log} == {"draft", (16, 16)}, "at a fixed width, the baseline's steps have it, too"
    begun = [index for index, each in enumerate(log) if each == "draft"][::2]
    steps = [end - start - 2 for start, end in pairwise([*begun, len(log)])]
    drafted, plain = steps[0], BUDGET - 1
    assert drafted < plain
    # Two groups of four batches: AB, BA. Within a group, rows are refilled.
    assert steps == [*[drafted] * 3, drafted + 8 * plain, *[drafted] * 4]


@pytest.mark.parametrize("length", [0, 1, NOISE_WINDOW - 1, NOISE_WINDOW, NOISE_WINDOW + 17])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_reading_an_answer_again_gives_the_bits_that_chose_it(length: int, batch_size: int) -> None:
    model = tiny_model("qwen2", torch.bfloat16)
    chooser = RecordingChooser()
    sequence = Sequence(prompts()[1], StopRule(100), chooser)
    wide = engine_of(model, copying(), batch_size=batch_size)
    [answer] = wide.generate([sequence])
    read = read_again(wide, sequence, answer.token_ids[:length], NOISE_WINDOW)
    assert len(read) == min(NOISE_WINDOW, length + 1)
    for back, logits in enumerate(reversed(read)):
        observed = chooser.logits[len(sequence.prompt_ids) + length - back]
        assert torch.equal(logits, observed.float())
