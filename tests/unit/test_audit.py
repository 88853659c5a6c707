"""Audits of a server with planted faults, and the rules that their verdicts follow."""

import json
from collections import Counter
from pathlib import Path
from statistics import median

import numpy
import pytest
from engine_server import Engine, EngineServer, logits, ranked
from hypothesis import given
from hypothesis import strategies as st
from planted_faults import FAULTS, FaultyEngine

from copyspec_eval.audit.asking import Asking, Pair, shares
from copyspec_eval.audit.findings import findings
from copyspec_eval.audit.replies import Question, Reply, Token, greedy
from copyspec_eval.audit.server import ServerSide, parsed
from copyspec_eval.audit.sides import arguments
from copyspec_eval.audit.verdicts import change, gap_between, is_unstable, judge
from copyspec_eval.records import AnswerKey

QUICK = [
    "stale state after a rejection",
    "an accepted token too many",
    "off by one at the end",
    "two requests share a cache",
    "the stop strings are lost",
    "a rejected draft is accepted",
]
NOISE, NUM_QUESTIONS, NUM_HIT = 0.003, 80, 20


def questions(fault: str = "") -> list[Question]:
    """Every fourth has "bad" in its prompt; with a stop string if the fault needs one."""
    made = []
    for number in range(NUM_QUESTIONS):
        text = f"{'fine' if number % 4 else 'bad'} question {number}"
        tokens, stops = list[str](), tuple[str, ...]()
        if "stop string" in fault:
            while len(tokens) < 9:
                tokens.append(ranked(logits(f"<user>{text}<answer>", tokens))[0])
            stops = (tokens[8],)
        prompt = json.dumps([json.dumps([{"role": "user", "content": text}])])
        budget = 10 if "budget" in fault else 60
        given = {"until": list(stops), "max_gen_toks": budget}
        made.append(greedy(AnswerKey("t", number, 1, 0), prompt, given))
    return made


def audited(
    a: Engine, b: Engine, folder: Path, asked: list[Question], **options: bool
) -> tuple[Asking, int]:
    """The audit of two servers with these engines, and how many requests they answered."""
    with EngineServer(a, **options) as server_a, EngineServer(b, **options) as server_b:
        one, other = (ServerSide(server.url, "M", timeout=5) for server in (server_a, server_b))
        one.open()
        other.open()
        asking = Asking(one, other, [1, 8, 32], folder / "replies.jsonl")
        asking.answer(asked)
        asking.measure()
        return asking, server_a.count + server_b.count


def kinds(pairs: list[Pair], hit: bool) -> Counter[str]:
    return Counter(p.verdict.kind for p in pairs if (p.question.key.doc_id % 4 == 0) is hit)


@pytest.mark.parametrize(
    "fault",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in FAULTS],
)
def test_a_planted_fault_gets_its_verdict(fault, tmp_path):
    faulty = FaultyEngine(fault, NOISE, "bad")
    asking, num_asked = audited(Engine(NOISE), faulty, tmp_path, questions(fault))
    hit = kinds(asking.pairs, True)
    assert hit[FAULTS[fault]] >= NUM_HIT - 1, hit
    assert kinds(asking.pairs, False).keys() <= {"identical", "near_tie"}
    assert num_asked <= 1.3 * 2 * NUM_QUESTIONS


def test_there_are_thirty_kinds_of_faults():
    assert len(FAULTS) >= 30
    assert FAULTS.keys() >= set(QUICK)


@pytest.mark.parametrize(
    "noise", [0.0, *(pytest.param(each, marks=pytest.mark.slow) for each in (0.003, 0.3)), 0.05]
)
@pytest.mark.parametrize("goes_on", [True, False])
def test_honest_engines_differ_by_rounding_alone(noise, goes_on, tmp_path):
    pair = Engine(noise), Engine(noise)
    asking, _ = audited(*pair, tmp_path, questions(), goes_on=goes_on)
    counted = Counter(pair.verdict.kind for pair in asking.pairs)
    assert counted.keys() <= {"identical", "near_tie"}, counted
    assert (counted["near_tie"] > 5) == (noise >= 0.05)


def test_an_engine_that_rounds_ten_times_as_much_is_no_near_tie(tmp_path):
    asking, _ = audited(Engine(0.003), Engine(0.5), tmp_path, questions())
    counted = Counter(pair.verdict.kind for pair in asking.pairs)
    assert counted["divergence"] + counted["unstable"] > 40, counted


def test_a_side_a_that_differs_from_itself_is_unstable(tmp_path):
    faulty = FaultyEngine("memory that nobody wrote", NOISE, "bad")
    asking, _ = audited(faulty, Engine(NOISE), tmp_path, questions())
    assert kinds(asking.pairs, True)["unstable"] >= NUM_HIT - 1
    assert asking.noise is not None
    assert asking.noise < 0.1, "what is no rounding is no noise"


def test_where_in_the_answers_they_differ_is_counted_by_quarters(tmp_path):
    faulty = FaultyEngine("a token twice", NOISE, "bad")
    asking, _ = audited(Engine(NOISE), faulty, tmp_path, questions())
    places = [
        pair.verdict.position / max(len(pair.a.text), len(pair.b.text))
        for pair in asking.pairs
        if pair.verdict.position is not None
    ]
    where = findings(asking, {"a": {}, "b": {}}, ({}, {}))["where"]
    assert where["median"] == pytest.approx(median(places))
    assert where["by_quarter"] == numpy.histogram(places, [0, 0.25, 0.5, 0.75, 1])[0].tolist()


def test_without_log_probabilities_a_difference_is_unknown(tmp_path):
    faulty = FaultyEngine("a token twice", NOISE, "bad")
    asking, _ = audited(Engine(NOISE), faulty, tmp_path, questions(), lists=False)
    assert kinds(asking.pairs, True) == {"unknown": NUM_HIT}
    assert asking.noise is None


WORDS = st.lists(st.sampled_from([" a", " b", " cat", "s", "\n"]), max_size=6)


def answer(words: list[str]) -> Reply:
    """With readings in which the next word in alphabetical order is 0.1 nats behind."""
    following = {" a": " b", " b": " cat", " cat": "s", "s": "\n", "\n": " a"}
    tokens = tuple(Token(w, w, {w: -0.5, following[w]: -0.6}) for w in words)
    return Reply("".join(words), tokens=tokens)


@given(WORDS, WORDS, st.floats(0, 2))
def test_verdicts_follow_from_the_texts(one, other, noise):
    a, b = answer(one), answer(other)
    gap = gap_between(a, b)
    verdict = judge(a, b, noise, gap)
    assert (verdict.kind == "identical") == (a.text == b.text)
    if verdict.position is not None:
        assert a.text[: verdict.position] == b.text[: verdict.position]
    if verdict.kind == "near_tie":
        assert gap is not None
        assert abs(gap.nats) <= 2 * noise
    if verdict.kind in ("divergence", "corruption"):
        assert not a.text.startswith(b.text)
        assert not b.text.startswith(a.text)
    assert judge(a, b, 2 * noise + 1, gap).kind in (verdict.kind, "near_tie")
    assert not is_unstable(a, b, b, noise)


@pytest.mark.parametrize(
    ("other", "noise", "kind"),
    [
        (" a cat", 0.01, "identical"),
        (" b", 0.06, "near_tie"),
        (" b", 0.04, "divergence"),
        (" b", None, "unknown"),
        (" zebra", 0.06, "corruption"),
        (" a", 0.01, "stop"),
        (" a cats", 0.06, "stop"),
        ("a cat", 0.01, "stop"),
        (" a \ufffd\ufffdt", 0.06, "corruption"),
        (" a c\x07t", 0.06, "corruption"),
    ],
)
def test_a_worked_example(other, noise, kind):
    a = answer([" a", " cat"])
    assert judge(a, Reply(other), noise, gap_between(a, Reply(other))).kind == kind


def test_an_end_that_is_nearly_as_likely_is_a_near_tie():
    end = Token("", "</s>", {"</s>": -0.7, " b": -0.71})
    a = Reply(" a", "stop", (*answer([" a"]).tokens, end))
    assert judge(a, Reply(" a b"), 0.01, gap_between(a, Reply(" a b"))).kind == "near_tie"
    going_on = Token(" b", " b", {" b": -0.7, "<|im_end|>": -0.71})
    a = Reply(" a b", "stop", (*answer([" a"]).tokens, going_on))
    assert judge(a, Reply(" a"), 0.01, gap_between(a, Reply(" a"))).kind == "near_tie"


def test_a_part_of_a_character_may_begin_any_other():
    token = Token(" a", " a", {" a": -0.7, "\ufffd": -0.71})
    a = Reply(" a", tokens=(token,))
    assert judge(a, Reply("é"), 0.01, gap_between(a, Reply("é"))).kind == "near_tie"


def test_another_reading_is_no_noise():
    token = Token(" a", " a", {" a": -0.1, " b": -3.0})
    assert change(token, Token(" a", " a", {" a": -0.15, " b": -2.0})) == pytest.approx(1.0)
    assert change(token, Token(" x", " x", {" x": -0.001, " y": -9.0})) is None


@given(st.integers(0, 500), st.lists(st.integers(1, 64), min_size=1, max_size=5, unique=True))
def test_every_document_has_a_level(count, levels):
    parts = shares(count, levels)
    assert sum(parts) == count
    assert min(parts) >= 0
    if count >= 4 * len(levels):
        assert min(parts) > 0


def test_tokens_of_all_forms_of_log_probabilities():
    def place(token: str, content: bytes) -> dict[str, object]:
        return {"token": token, "logprob": -1, "bytes": list(content), "top_logprobs": []}

    smile = "😀".encode()
    chat = [
        place(" a", b" a"),
        place("\\xf0", smile[:2]),
        place("\\x9f", smile[2:]),
        place("", b""),
    ]
    choice = {"message": {"content": " a😀"}, "logprobs": {"content": chat}}
    assert [each.text for each in parsed({"choices": [choice]}).tokens] == [" a", "", "😀", ""]
    listed = {"tokens": ["\u2581a", "?", "?"], "token_logprobs": [-1, -1, -1], "top_logprobs": None}
    choice = {"text": " a😀", "logprobs": listed | {"text_offset": [7, 9, 9]}}
    assert [each.text for each in parsed({"choices": [choice]}).tokens] == [" a", "", "😀"]
    del listed["top_logprobs"]
    assert parsed({"choices": [{"text": "b", "logprobs": listed}]}).tokens == ()


def test_arguments_may_be_json():
    text = 'pretrained=M,speculative_config={"method":"ngram","n":[1,2]},enforce_eager=true'
    assert arguments(text) == {
        "pretrained": "M",
        "speculative_config": {"method": "ngram", "n": [1, 2]},
        "enforce_eager": True,
    }


def test_drafts_are_read_as_vllm_and_as_llama_cpp_report_them():
    steps = {"per_step_drafted": [4, 4], "per_step_accepted": [4, 1]}
    vllm = {"metrics": {"speculative_decoding": steps}, "usage": {"completion_tokens": 8}}
    for more in (vllm, {"timings": {"draft_n": 8, "draft_n_accepted": 5}}):
        counts = parsed({"choices": [{"text": "a"}], **more}).counts
        [drafts] = (counts.drafts or {}).values()
        assert (drafts.num_drafted, drafts.num_accepted) == (8, 5)
    assert parsed({"choices": [{"text": "a"}], "timings": {}}).counts.drafts is None


def test_a_chats_messages_go_to_the_chat_and_a_text_is_completed():
    side, key = ServerSide("http://127.0.0.1:1/v1", "M", timeout=5), AnswerKey("t", 0, 1, 0)
    messages = [{"role": "user", "content": "Hi"}]
    path, body = side.request(greedy(key, json.dumps([json.dumps(messages)]), {}))
    assert (path, body["messages"]) == ("chat/completions", messages)
    path, body = side.request(greedy(key, "Hi", {"until": ["", "."]}))
    assert (path, body["prompt"], body["stop"]) == ("completions", "Hi", ["."])
