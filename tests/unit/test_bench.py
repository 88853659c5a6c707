"""The scripts that measure speed, on small models: their figures add up and make their pages."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks import decoders, engine_pairs, one_token_step, report, side_by_side
from benchmarks.side_by_side import ENGINE_ARMS, answer_all, figures, peak_memory, prepare
from recorded_runs import MADE
from tiny_models import tiny_model

from copyspec_eval.audit.verdicts import KINDS
from copyspec_eval.errors import CopySpecError
from copyspec_eval.reports.earlier_runs import Trace

PROMPTS = [tuple(range(2 + start, 22 + start)) for start in (0, 30)]
TRACES = [Trace("x", 2, prompt, (*prompt[:15], 99, 98, *prompt[:10])) for prompt in PROMPTS]


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]


def test_all_ways_give_the_recorded_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "_CONTEXT", 256)
    model = copy.deepcopy(tiny_model("llama"))  # forcing changes it for good
    bench = prepare(model, TRACES)
    answers: dict[str, list[Any]] = {}
    for name, answer in answer_all(bench, TRACES):
        answers.setdefault(name, []).append(answer)
    assert len(answers) == len(ENGINE_ARMS) + 3
    assert {len(by_arm) for by_arm in answers.values()} == {len(TRACES)}
    arms = {name: figures(by_arm, answers["hf greedy"]) for name, by_arm in answers.items()}
    assert {arms[name]["tokens_per_forward"] for name in ("hf greedy", "none")} == {1}
    assert arms["hf greedy"]["decode_speedup_over_hf_greedy"] == 1
    assert arms["suffix"]["tokens_per_forward"] > 2

    peaks = peak_memory(model, bench, TRACES)
    assert all(size > 10**8 for size in peaks.values())
    config = {"dtype": "bfloat16", "device": "cpu", "threads": 2}
    result = {
        "arms": {name: arms[name] | {"peak_bytes": peaks[name]} for name in arms},
        "traces": {"file": "F", "turn": 2, "count": 2},
        "manifest": {"command": "bench --traces F", "config": config, **MADE},
    }
    text = report.render(result)
    assert "2 answers of turn 2 in F, 54 tokens" in text
    assert "bfloat16, batch 1; P, 2 threads; torch 2; 2026-01-02" in text
    assert text.count("\n|") == 2 + len(arms)

    other = replace(TRACES[0], answer_ids=(*TRACES[0].answer_ids[:-1], 50))
    with pytest.raises(CopySpecError, match="another answer than trace 0"):
        list(answer_all(bench, [other]))


def test_steps_copies_and_choices_of_a_model_are_measured(our_kernels: None) -> None:
    model = copy.deepcopy(tiny_model("llama"))
    result = one_token_step.measure(model, rounds=2)
    assert result["weight_bytes"] == sum(weight.nbytes for weight in model.parameters())
    assert len(result["figures"]) == 2 + 3 + 1 + 3
    assert all(value > 0 for value in result["figures"].values())
    shown = {"step": 40.0, "reading of the step": 0.5}
    made = {"command": "one_token_step", "threads": 2, **MADE}
    text = one_token_step.render(result | {"figures": shown, "manifest": made})
    assert "P, 2 threads; torch 2; 2026-01-02" in text
    assert cells(text)[-2:] == [["step, ms", "40.00"], ["reading of the step", "50.0%"]]


def row(decoder: str, rates: list[float], batch_size: int = 1, **options: Any) -> dict[str, Any]:
    command = f"conversations --model /tmp/x/M {decoder}"
    shown = {"tokens_per_second": rates, "version": "1.2", "command": command}
    return {"decoder": decoder, "options": options, "batch_size": batch_size, **shown}


SUFFIX: dict[str, Any] = {"method": "suffix", "num_speculative_tokens": 15}
WITHOUT_STORE = SUFFIX | {"suffix_decoding_max_cached_requests": 0}
ROWS = [
    row("hf", [30.0, 31.0]),
    *(row("vllm", [60.0 + n, 61.0 + n]) for n in (6, 0, 1)),
    row("vllm", [100.0, 400.0], **SUFFIX),
    *(row("copyspec", [122.0 + n, 122.0 + n], drafter="none") for n in (10, 0)),
    row("copyspec", [100.0, 200.4], drafter="suffix"),
    *(row("copyspec", [500.0 + n, 600.0 + n], batch_size=8, drafter="suffix") for n in (0, 100)),
    row("vllm", [400.0, 350.0], batch_size=8, **WITHOUT_STORE),
    row("copyspec", [150.0, 500.0], drafter="suffix", store=True),
]


def test_the_file_says_where_and_what_and_each_cell_is_a_median() -> None:
    table = decoders.table(ROWS)
    assert cells(table)[0] == ["tokens/s on turn 1, turn 2", "runs", "batch 1", "batch 8", "spread"]
    assert cells(table)[2:] == [
        ["`generate`", "1", "30, 31", "", ""],
        ["vLLM", "3", "61, 62", "", "8%"],
        ["vLLM, suffix", "1", "100, 400", "", ""],
        ["vLLM, suffix without its store", "1", "", "400, 350", ""],
        ["ours, `none`", "2", "127, 127", "", "4%"],
        ["ours, `suffix`", "1 to 2", "100, 200", "550, 650", "9%"],
        ["ours, `suffix` with a store", "1", "150, 500", "", ""],
    ]
    manifest = {"threads": 2, **MADE}
    what = {"model": "M", "dtype": "float32", "conversations": "40 chats"}
    result = {**what, "manifest": manifest}
    text = decoders.render(result, ROWS)
    assert "M in float32, 40 chats, at most" in text
    assert "P, 2 threads; copyspec-eval 1.2, transformers 1.2, vllm 1.2; 2026-01-02" in text
    assert table in text
    assert decoders.ratios(ROWS) in text
    timed = {"load_seconds": 9.0, "first_answer_seconds": 1.0, "long_prompt_seconds": 0.5}
    *_, of_load, of_prompt = cells(decoders.table([*ROWS[:1], ROWS[2] | timed]))[-1]
    assert (of_load, of_prompt) == ("9.0, 1.0", "0.50")
    shared = json.loads(decoders.shared(json.dumps(ROWS[0])))
    assert shared["command"] == "conversations --model M hf", "no folder"


def test_each_pass_of_ours_is_set_beside_the_same_pass_of_theirs() -> None:
    """The last one beside a run that was made once, in the last pass."""
    assert cells(decoders.ratios(ROWS))[2:] == [
        ["our `suffix` with a store by our `none`", "1.14, 3.79", ""],
        ["our `none` by vLLM", "2.02 (2.00 to 2.03), 1.99 (1.97 to 2.00)", ""],
        ["our `suffix` by vLLM's, both with a store", "1.50, 1.25", ""],
        ["our `suffix` by vLLM's, both without", "", "1.50, 2.00"],
    ]


def test_arms_that_are_compared_run_in_turn() -> None:
    """Those that are enough once run on their own, in the last pass."""
    groups = list(decoders.commands([1, 8], passes=2, with_vllm=True, made=[]))
    sizes = [5, 5, 5, 5, 7, 4]  # `generate` has no batches
    assert [len(group) for group in groups] == sizes
    names = {(arm.decoder, arm.options): name for name, arm in decoders.ARMS.items()}
    for group in groups:
        together = {names[command[0], command[1]] for command in group}
        [batch_size] = {int(command[-1]) for command in group}
        for pair in map(set, decoders.COMPARED.values()):
            has_both = all(batch_size in decoders.ARMS[name].batch_sizes for name in pair)
            assert len(together & pair) != 1 or not has_both
    without = decoders.commands([1, 8], passes=1, with_vllm=False, made=[])
    assert not any("vllm" in command[0] for group in without for command in group)


def test_runs_that_were_made_are_not_made_again() -> None:
    everything, rest = (
        [tuple(c) for group in decoders.commands([1], 2, True, made) for c in group]
        for made in ([], ROWS)
    )
    assert len(everything) - len(rest) == 8
    assert ("copyspec", "drafter=none", "--batch-size", "1") not in rest, "two of two"
    store = ("copyspec", "drafter=suffix,store=true", "--batch-size", "1")
    assert (everything.count(store), rest.count(store)) == (2, 1)


def test_pairs_of_engines_are_a_row_each_and_a_sum() -> None:
    counts = dict.fromkeys(KINDS, 0) | {"answers": 40}
    rounding = counts | {"identical": 37, "near_tie": 3}
    broken = counts | {"identical": 39, "corruption": 1}
    results = {
        "vllm-batch": {"counts": rounding, "noise": {"nats": 0.51}, "verdict": "rounding"},
        "llama.cpp-itself": {"counts": broken, "noise": {"nats": None}, "verdict": "broken"},
    }
    facts = {"a": {"version": {"version": "9.9"}}, "requests": {"answer": 80}, "cases": ["private"]}
    pairs = {name: engine_pairs.brief(each | facts) for name, each in results.items()}
    result = {
        "model": "M",
        "manifest": {"hardware": {"processor": "P", "processors": 2}},
        "pairs": pairs,
    }
    assert "private" not in json.dumps(result)
    page = " ".join(engine_pairs.render(result).split())
    assert "| vllm-batch | 40 | 37 | 3 | | 0.51 | rounding |" in page
    assert "| all | 80 | 76 | 3 | 1 | | |" in page
    assert "* vllm-batch: vLLM 9.9, --max-num-seqs 1 against --max-num-seqs 8" in page
    assert "* llama.cpp-itself: llama.cpp 9.9, no options against no options" in page


@pytest.mark.parametrize("name", engine_pairs.PAIRS)
def test_both_sides_of_a_pair_serve_the_same_model(name: str) -> None:
    pair = engine_pairs.PAIRS[name]
    a, b = (engine_pairs.server(Path("env/bin"), "MODEL", pair, side) for side in (pair.a, pair.b))
    assert "MODEL" in a
    assert a[: len(a) - len(pair.a)] == b[: len(b) - len(pair.b)]


def test_an_interrupted_pair_goes_on_with_the_same_ports(tmp_path: Path) -> None:
    assert engine_pairs.earlier_ports(tmp_path) == []
    _, _, a, _, b, *_ = engine_pairs.audit(4001, 4002, 20, 300, tmp_path)
    (tmp_path / "order.json").write_text(json.dumps({"a": a, "b": b}))
    assert engine_pairs.earlier_ports(tmp_path) == [4001, 4002]
