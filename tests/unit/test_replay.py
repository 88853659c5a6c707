"""The replay gives the golden values of real answers, and reports errors of a trace file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks import replays

from copyspec_eval.cli import main
from copyspec_eval.cli.replay import replay_turn
from copyspec_eval.drafters.registry import drafter_factory
from copyspec_eval.reports.earlier_runs import Trace
from copyspec_eval.types import DraftCounts, DraftOptions

SLOW = pytest.mark.slow
SETS = (
    *("mt_bench__qwen2.5-7b", "mt_bench__llama3-8b"),
    *("mt_redundant__qwen2.5-7b", "mt_redundant__llama3-8b"),
    *("gsm8k_self_correction__qwen2.5-7b", "humaneval__llama3-8b"),
)
# Tokens per forward of the paper's rule, by gamma; checked against the reference's own logs.
GOLDEN = {
    2: (1.390, 1.428, 1.631, 1.647, 1.903, 1.918),
    3: (1.296, 1.344, 1.524, 1.550, 1.800, 1.759),
    5: (1.186, 1.248, 1.396, 1.429, 1.710, 1.527),
}
# What the best rules tried before reach, each draft token costing a hundredth of a forward.
AT_LEAST = {
    "": (1.554, 1.613, 1.874, 1.893, 2.281, 2.437),
    "store=true": (1.631, 1.696, 1.961, 2.000, 2.890, 2.834),
    "tree=true": (1.665, 1.713, 1.996, 2.003, 2.427, 2.594),
    "store=true,tree=true": (1.807, 1.865, 2.158, 2.190, 3.374, 3.288),
}
MOST_COST = 0.603
"""Of a token of the first four sets with no switches, in forwards of one token."""


@pytest.fixture
def total(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Replays a trace file, in full or by its name, and gives the total."""

    def replayed(name: str | Path, drafter: str, options: str = "", *more: str) -> Any:
        path = data_dir / "traces" / f"{name}.jsonl" if isinstance(name, str) else name
        arguments = [f"--drafter={drafter}", f"--drafter-args={options}", f"--traces={path}"]
        assert main(["replay", *arguments, "--json", *more]) == 0
        figures = json.loads(capsys.readouterr().out)
        for group in ("by_turn", "by_category"):
            parts = figures[group].values()
            assert sum(part["tokens"] for part in parts) == figures["total"]["tokens"]
        return figures["total"] | {"groups": (len(figures["by_turn"]), len(figures["by_category"]))}

    return replayed


@pytest.mark.parametrize("gamma", [pytest.param(2, marks=SLOW), 3, pytest.param(5, marks=SLOW)])
def test_golden_tokens_per_forward(gamma, total):
    actual = [total(name, "copyspec", f"gamma={gamma}")["tokens_per_forward"] for name in SETS]
    assert tuple(round(each, 3) for each in actual) == GOLDEN[gamma]


@pytest.mark.parametrize(
    "switches", [pytest.param(each, marks=SLOW if each else ()) for each in AT_LEAST]
)
def test_suffix_is_as_good_as_the_best_rules_known(switches, total):
    actual = [total(name, "suffix", switches, "--token-cost", "0.01") for name in SETS]
    for name, figures, least in zip(SETS, actual, AT_LEAST[switches], strict=True):
        assert figures["tokens_per_forward"] >= least, name
    if not switches:
        file = Path(__file__).parents[2] / "results" / "replays" / "replays.json"
        committed = replays.read(file)
        for name, figures in zip(SETS, actual, strict=True):
            written = committed[replays.Replay("suffix", switches, name)]["total"]
            assert round(figures["tokens_per_forward"], 4) == written, "run scripts/replays"
        assert sum(figures["cost_per_token"] for figures in actual[:4]) / 4 <= MOST_COST


# Of turn 2 of MT-Redundant, with the same model's answers to turn 2 of MT-Bench as earlier ones:
# another question about the same first answer.
AFTER_ANOTHER_PROMPT = {
    "": {"qwen2.5-7b": 3.06, "llama3-8b": 3.00},
    "tree=true,": {"qwen2.5-7b": 3.56, "llama3-8b": 3.44},
}


@pytest.mark.parametrize("switches", ["", pytest.param("tree=true,", marks=SLOW)])
def test_answers_to_a_variant_of_the_prompt_save_forwards(switches, data_dir, tmp_path, total):
    for model, least in AFTER_ANOTHER_PROMPT[switches].items():
        names = (f"{task}__{model}.jsonl" for task in ("mt_redundant", "mt_bench"))
        traces, store = paths = [tmp_path / name for name in names]
        for path in paths:
            lines = (data_dir / "traces" / path.name).read_text().splitlines(keepends=True)
            path.write_text("".join(line for line in lines if json.loads(line)["turn"] == 2))
        without, after = (
            total(traces, "suffix", f"{switches}store={value}") for value in ("true", store)
        )
        assert after["tokens_per_forward"] >= least
        assert after["earlier_share"] > 0.05
        assert after["forwards"] < 0.97 * without["forwards"]


def test_plain_decoding_makes_a_forward_per_token(total):
    assert total("mt_redundant__qwen2.5-7b", "none") == {
        **{"groups": (2, 8), "turns": 160, "tokens": 65717, "forwards": 65717},
        **{"tokens_per_forward": 1.0, "copied_share": 0.0, "drafted_per_token": 0.0},
        **{"cost_per_token": 1.0, "attempts": 0, "accepted_per_attempt": None},
    }


def test_replay_by_hand():
    # 1 2 3 4 | 1 2 3 9: 1 by the prefill, 2 alone, then "1 2" copies "3 4", half of it right.
    trace = Trace("c", 1, (1, 2, 3, 4), (1, 2, 3, 9))
    counts = replay_turn(trace, drafter_factory(DraftOptions(gamma=2))(), longest=2, threshold=0.0)
    drafts = {"context": DraftCounts(num_attempts=1, num_drafted=2, num_accepted=1)}
    assert (counts.num_forwards, counts.drafts) == (3, drafts)


NO_TURNS: tuple[Any, ...] = (None, "1", 1.5, 0, 10**30, [1], True, float("inf"))
NO_TOKENS: tuple[Any, ...] = (None, "12", {"1": 2}, [[1]], ["1"], [1.5], [True], [-1], [10**30])


def trace(**changes: Any) -> bytes:
    given: dict[str, Any] = {"category": "c", "turn": 1, "prompt_ids": [1], "answer_ids": [1]}
    return json.dumps(given | changes).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((trace(category=odd), "$.category") for odd in (None, 5, ["c"])),
        *((trace(turn=odd), "$.turn") for odd in NO_TURNS),
        *((trace(prompt_ids=odd), "$.prompt_ids") for odd in NO_TOKENS),
        *((trace(answer_ids=odd), "$.answer_ids") for odd in ([], *NO_TOKENS)),
        (trace(prompt_ids=[7] * 2**20 + [7]), "$.prompt_ids"),
        (trace().decode().encode("utf-16"), "not UTF-8"),
        (b"\xef\xbb\xbf" + trace(), "not JSON"),
        (b'{"a":' * 10**5, "not JSON that can be read"),
        (b"9" * 10**7, "not JSON that can be read"),
        (None, "Is a directory"),
        (b"", "no rows in it"),
        (b'{"category": "c", "turn": 1, "prompt_ids": [1]}', "answer_ids"),
    ],
    ids=lambda value: repr(value[:90]) if isinstance(value, bytes) else None,
)
def test_whatever_lies_in_the_file_is_one_line(content, message, tmp_path, capsys):
    path = tmp_path / "t.jsonl"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    assert main(["replay", "--drafter", "suffix", "--traces", str(path)]) == 1
    check_line(capsys, message, str(path))


def check_line(capsys, *parts):
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert all(part in printed.err for part in parts)


def test_table_for_people(tmp_path, capsys):
    (tmp_path / "t.jsonl").write_bytes(trace())
    assert main(["replay", "--drafter", "none", "--traces", str(tmp_path / "t.jsonl")]) == 0
    assert "tokens_per_forward" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--drafter=nope"], "unknown drafter 'nope'"),
        (["--drafter-args=gamma=0"], "gamma must be an integer"),
        (["--drafter-args=gamma=x"], "gamma must be an integer"),
        (["--drafter-args=gama=3"], "did you mean 'gamma'"),
        ([], "No such file"),
        *([[f"--token-cost={n}"], "--token-cost must be at least 0"] for n in ("nan", "inf", "-1")),
    ],
)
def test_bad_arguments_are_one_line(arguments, message, capsys):
    assert main(["replay", "--drafter=copyspec", "--traces=missing.jsonl", *arguments]) == 1
    check_line(capsys, message)
