"""Asks both sides, within a budget of requests; every reply is written down as it arrives."""

import hashlib
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec
from tqdm import tqdm

from copyspec_eval import journal
from copyspec_eval.audit.local import LocalSide, RecordedSide
from copyspec_eval.audit.replies import Question, Reply, Token
from copyspec_eval.audit.server import ServerSide
from copyspec_eval.audit.verdicts import (
    Gap,
    Verdict,
    change,
    changes,
    gap_between,
    is_unstable,
    judge,
)
from copyspec_eval.records import AnswerKey

Side = ServerSide | LocalSide | RecordedSide
Letter = Literal["a", "b"]
Purpose = Literal["answer", "noise", "reading", "again", "timed"]

EXTRA = 0.3
"""Requests beyond the answers themselves, as a share of these; and at least `_LEAST`."""
_LEAST = 4
_SOUND = ("identical", "near_tie", "not_comparable", "missing")
_NEEDS_NOISE = ("divergence", "unknown", "stop")
"""Verdicts that a better reading, or more noise, can change."""


@dataclass(slots=True)
class Pair:
    """Both sides' answers to a question; `level` is how many requests were under way at a time."""

    question: Question
    level: int
    a: Reply | None
    b: Reply | None
    verdict: Verdict = field(default_factory=lambda: Verdict("missing"))
    reading: Token | None = None  # A's after the common prefix, where its answer lists none
    again: dict[Letter, list[Reply]] = field(default_factory=lambda: {"a": [], "b": []})
    timed: dict[Letter, Reply] = field(default_factory=dict)
    rescored: tuple[Gap, float] | None = None  # by a local model: the gap and its noise


class _Row(msgspec.Struct):
    side: Letter
    purpose: Purpose
    key: AnswerKey
    prompt_sha256: str
    level: int
    reply: Reply

    @property
    def place(self) -> "_Place":
        return self.side, self.purpose, self.key, self.prompt_sha256


def shares(count: int, levels: Sequence[int]) -> list[int]:
    """How many of `count` documents each level gets: half in equal parts, half in proportion to it.

    So each level has some, and higher ones have enough for as many requests at a time.

    >>> shares(20, [1, 8, 32]), shares(2, [1, 8, 32]), shares(5, [4])
    ([4, 5, 11], [0, 1, 1], [5])
    """
    parts = [count / 2 / len(levels) + count / 2 * level / sum(levels) for level in levels]
    ends = [round(sum(parts[: index + 1])) for index in range(len(parts))]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


class Asking:
    """An audit's requests.

    Attributes:
        pairs: in the order in which they were asked.
        noise: the largest change of a log-probability when A was asked the same again, in nats;
            None if it could not be measured.
        num_asked: requests answered for this audit, by purpose.
    """

    def __init__(self, a: Side, b: Side, levels: Sequence[int], path: Path) -> None:
        self.sides: dict[Letter, Side] = {"a": a, "b": b}
        self._levels, self._path = sorted(set(levels)), path
        self.pairs: list[Pair] = []
        self.noise: float | None = None
        self.num_readings = 0  # that were comparable, by another way through the model
        self.num_repeated = 0  # answers of A that the noise was measured on
        self.num_asked: dict[Purpose, int] = {}
        self._random = random.Random(0)
        self._by_document: dict[tuple[str, int], int] = {}
        self._rows = {row.place: row for row in _read(path)}

    def answer(self, questions: Sequence[Question]) -> list[Pair]:
        """Both sides' answers to the same turn of several documents."""
        self._allot(questions)
        jobs = [(q, self._by_document[q.key.task, q.key.doc_id]) for q in questions]
        a = self._ask("a", "answer", jobs, listing=True)
        b = self._ask("b", "answer", jobs)
        new = [Pair(*job, x, y) for job, x, y in zip(jobs, a, b, strict=True)]
        self.pairs += new
        return new

    def _allot(self, questions: Iterable[Question]) -> None:
        """Give each new document its level, at random, since neighbours may be alike."""
        documents: dict[str, list[int]] = {}
        for task, doc_id, *_ in dict.fromkeys(question.key for question in questions):
            if (task, doc_id) not in self._by_document:
                documents.setdefault(task, []).append(doc_id)
        for task, numbers in documents.items():
            levels = [
                level
                for level, count in zip(
                    self._levels, shares(len(numbers), self._levels), strict=True
                )
                for _ in range(count)
            ]
            random.Random(task).shuffle(levels)
            self._by_document |= {(task, n): c for n, c in zip(numbers, levels, strict=True)}

    def _ask(
        self,
        letter: Letter,
        purpose: Purpose,
        jobs: Sequence[tuple[Question, int]],
        listing: bool = False,
        cold: bool = False,
    ) -> list[Reply | None]:
        """A reply for each job, level by level, from the journal where it is there."""
        side = self.sides[letter]
        if isinstance(side, RecordedSide):
            return [side.reply(question) if purpose == "answer" else None for question, _ in jobs]
        self.num_asked[purpose] = self.num_asked.get(purpose, 0) + len(jobs)
        places = [(letter, purpose, q.key, _digest(q.prompt)) for q, _ in jobs]
        missing = [index for index, place in enumerate(places) if place not in self._rows]
        what = f"{letter.upper()}, {purpose}"
        with tqdm(total=len(missing), desc=what, unit="answer", disable=not missing) as bar:
            for level in sorted({jobs[index][1] for index in missing}):
                part = [index for index in missing if jobs[index][1] == level]
                asked = [jobs[index][0] for index in part]
                for number, reply in side.ask(asked, level, listing, cold):
                    question = asked[number]
                    digest = _digest(question.prompt)
                    self._write(_Row(letter, purpose, question.key, digest, level, reply))
                    bar.update()
        return [self._rows[place].reply for place in places]

    def _write(self, row: _Row) -> None:
        journal.append(self._path, msgspec.json.encode(row))
        self._rows[row.place] = row

    @property
    def num_replies(self) -> int:
        return len(self._rows)

    def measure(self) -> None:
        """Ask again, within the budget: for the noise, for what it does not explain, for speed."""
        self.judge()
        live = [each for each in self.sides if self.sides[each].can_ask]
        left = max(_LEAST, math.floor(EXTRA * len(live) * len(self.pairs))) if live else 0
        part = math.ceil(left / 4)
        if "a" in live:
            left -= self._measure_noise(part)
            left -= self._read_again(part)
        # B is the one in doubt, unless A was already seen to differ from itself.
        for letter in live if self._is_unsteady else reversed(live):
            left -= self._ask_again(letter, left)
        if len(live) == 2:
            self._time(left // 2)
        self.judge()

    def judge(self) -> None:
        """Give each pair its verdict, by what is known so far."""
        for pair in self.pairs:
            if pair.a is None or pair.b is None:
                continue
            gap, noise = pair.rescored or (gap_between(pair.a, pair.b, pair.reading), self.noise)
            pair.verdict = judge(pair.a, pair.b, noise, gap)
            again = {each: [*pair.again[each], *_one(pair.timed.get(each))] for each in pair.again}
            for letter, first in (("A", pair.a), ("B", pair.b)):
                replies = again["a" if letter == "A" else "b"]
                if any(is_unstable(pair.a, first, each, noise) for each in replies):
                    reason = f"{letter} gave a different answer when asked again"
                    position, gap = pair.verdict.position, pair.verdict.gap
                    pair.verdict = Verdict("unstable", position, gap, noise, reason)

    @property
    def _is_unsteady(self) -> bool:
        return any(pair.verdict.kind == "unstable" for pair in self.pairs)

    @property
    def unexplained(self) -> list[Pair]:
        return [pair for pair in self.pairs if pair.verdict.kind not in _SOUND]

    def _measure_noise(self, most: int) -> int:
        """Ask A answers again, at another level and in another order, half without its cache."""
        listed = [pair for pair in self.pairs if pair.a and pair.a.tokens]
        self._random.shuffle(listed)
        listed.sort(key=lambda pair: pair.verdict.kind in _SOUND)  # the others first
        chosen = listed[:most]
        for cold in (True, False):
            part = chosen[cold::2]
            jobs = [(pair.question, self._other(pair)) for pair in part]
            replies = self._ask("a", "noise", jobs, True, cold)
            for pair, reply in zip(part, replies, strict=True):
                assert pair.a is not None
                assert reply is not None
                pair.again["a"].append(reply)
                if measured := changes(pair.a.tokens, reply.tokens):
                    self.num_repeated += 1
                    self._raise_noise(max(measured))
        self._forget_silence()
        self.judge()
        return len(chosen)

    def _raise_noise(self, measured: float) -> None:
        self.noise = max(self.noise or 0.0, measured)

    def _forget_silence(self) -> None:
        """A server that answers one by one repeats its bits; that says nothing of its rounding."""
        if not self.num_readings and self.noise == 0:
            self.noise = None

    def _read_again(self, most: int) -> int:
        """Ask A for the token after the common prefix, which it reads at once this time."""
        listed = [
            pair
            for pair in self.unexplained
            if pair.a and pair.a.tokens and pair.verdict.kind in _NEEDS_NOISE
        ]
        self._random.shuffle(listed)
        for pair in listed[:most]:
            assert pair.a is not None
            gap = pair.verdict.gap
            index = gap.index if gap else len(pair.a.tokens)
            for token in self._next_token(pair, index):
                if index == len(pair.a.tokens):
                    pair.reading = token
                elif (measured := change(pair.a.tokens[index], token)) is not None:
                    self.num_readings += 1
                    self._raise_noise(measured)
        self.num_asked["reading"] = len(listed[:most])
        self._forget_silence()
        self.judge()
        return len(listed[:most])

    def _next_token(self, pair: Pair, index: int) -> Sequence[Token]:
        """A's reading of what follows its first `index` tokens, if it gives one."""
        side, question = self.sides["a"], pair.question
        assert pair.a is not None
        assert not isinstance(side, RecordedSide)
        begun = "".join(token.text for token in pair.a.tokens[:index])
        digest = _digest(question.prompt + begun)
        place: _Place = "a", "reading", question.key, digest
        if place not in self._rows:
            token = side.next_token(question, begun)
            reply = Reply("", tokens=(token,) if token else ())
            self._write(_Row("a", "reading", question.key, digest, 1, reply))
        return self._rows[place].reply.tokens

    def _ask_again(self, letter: Letter, most: int) -> int:
        chosen = [
            pair
            for pair in self.unexplained
            if not pair.again[letter] and pair.verdict.kind != "unstable"
        ][:most]
        self._random.shuffle(chosen)
        jobs = [(pair.question, self._other(pair)) for pair in chosen]
        for pair, reply in zip(chosen, self._ask(letter, "again", jobs), strict=True):
            pair.again[letter] += _one(reply)
        self.judge()
        return len(chosen)

    def _time(self, most: int) -> None:
        """Ask both again without log-probabilities, which take time: for the speed."""
        whole = [pair for pair in self.pairs if pair.a and pair.b]
        chosen = self._random.sample(whole, min(max(0, most), len(whole)))
        jobs = [(pair.question, pair.level) for pair in chosen]
        for letter in self.sides:
            for pair, reply in zip(chosen, self._ask(letter, "timed", jobs), strict=True):
                if reply:
                    pair.timed[letter] = reply

    def _other(self, pair: Pair) -> int:
        """Another level than that of the pair's first answers, if there is one."""
        index = self._levels.index(pair.level) + 1
        return self._levels[index % len(self._levels)]


_Place = tuple[Letter, Purpose, AnswerKey, str]


def _digest(prompt: str) -> str:
    return hashlib.sha256(prompt.encode(errors="surrogatepass")).hexdigest()


def _one(reply: Reply | None) -> list[Reply]:
    return [reply] if reply else []


def _read(path: Path) -> list[_Row]:
    """The rows that an earlier, interrupted audit left; a torn one is left out."""
    rows = list[_Row]()
    decoder = msgspec.json.Decoder(_Row)
    for _, line in journal.lines(path) if path.exists() else ():
        try:
            rows.append(decoder.decode(line))
        except ValueError:
            continue
    return rows
