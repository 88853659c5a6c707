"""Asks both sides, within a budget of requests; every reply is written down as it arrives."""

import hashlib
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy
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

EXTRA = 0.3
"""Requests beyond the answers themselves, as a share of these; and at least `_LEAST`."""
_LEAST = 4
_SOUND = ("identical", "near_tie")
_NEEDS_NOISE = ("divergence", "unknown", "stop")
"""Verdicts that a better reading, or more noise, can change."""


@dataclass(slots=True)
class Pair:
    """Both sides' answers to a question; `level` is how many requests were under way at a time."""

    question: Question
    level: int
    a: Reply
    b: Reply
    verdict: Verdict = field(default_factory=lambda: Verdict("unknown"))
    reading: Token | None = None  # A's after the common prefix, where its answer lists none
    again: dict[str, list[Reply]] = field(default_factory=lambda: {"a": [], "b": []})
    timed: dict[str, Reply] = field(default_factory=dict)  # those in `again` without readings
    rescored: tuple[Gap, float] | None = None  # by a local model: the gap and its noise


class _Row(msgspec.Struct):
    side: str  # "a" or "b"
    purpose: str
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
        repeated: the largest change of a log-probability, in nats, in each answer that A repeated.
        read_again: that in each place that A read by another way through the model.
        num_asked: requests answered for this audit, by purpose.
    """

    def __init__(self, a: Side, b: Side, levels: Sequence[int], path: Path) -> None:
        self.sides: dict[str, Side] = {"a": a, "b": b}
        self._levels, self._path = sorted(set(levels)), path
        self.pairs: list[Pair] = []
        self.repeated = list[float]()
        self.read_again = list[float]()
        self.num_asked: dict[str, int] = {}
        self._random = random.Random(0)
        self._by_document: dict[tuple[str, int], int] = {}
        self._rows = {row.place: row for row in _read(path)}

    @property
    def noise(self) -> float | None:
        """The largest change of a log-probability when A was asked the same again, in nats.

        None if it could not be measured: a server that answers one by one repeats its bits, which
        says nothing of its rounding.
        """
        if not self.read_again and not any(self.repeated):
            return None
        return max([*self.repeated, *self.read_again])

    def answer(self, questions: Sequence[Question]) -> list[Pair]:
        """Both sides' answers to the same turn of several documents."""
        self._allot(questions)
        jobs = [(q, self._by_document[q.key.task, q.key.doc_id]) for q in questions]
        a, b = (self._answers(letter, jobs) for letter in self.sides)
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
            levels = numpy.repeat(self._levels, shares(len(numbers), self._levels)).tolist()
            random.Random(task).shuffle(levels)
            self._by_document |= {(task, n): c for n, c in zip(numbers, levels, strict=True)}

    def _answers(self, letter: str, jobs: Sequence[tuple[Question, int]]) -> list[Reply]:
        side = self.sides[letter]
        if isinstance(side, RecordedSide):
            return [side.reply(question) for question, _ in jobs]
        return self._ask(letter, "answer", jobs, listing=letter == "a")

    def _ask(
        self,
        letter: str,
        purpose: str,
        jobs: Sequence[tuple[Question, int]],
        listing: bool = False,
        cold: bool = False,
    ) -> list[Reply]:
        """A reply for each job, level by level, from the journal where it is there."""
        side = self.sides[letter]
        assert not isinstance(side, RecordedSide)
        self.num_asked[purpose] = self.num_asked.get(purpose, 0) + len(jobs)
        places = [(letter, purpose, q.key, _digest(q)) for q, _ in jobs]
        missing = [index for index, place in enumerate(places) if place not in self._rows]
        what = f"{letter.upper()}, {purpose}"
        with tqdm(total=len(missing), desc=what, unit="answer", disable=not missing) as bar:
            for level in sorted({jobs[index][1] for index in missing}):
                part = [index for index in missing if jobs[index][1] == level]
                asked = [jobs[index][0] for index in part]
                for number, reply in side.ask(asked, level, listing, cold):
                    question = asked[number]
                    row = _Row(letter, purpose, question.key, _digest(question), level, reply)
                    journal.append(self._path, msgspec.json.encode(row))
                    self._rows[row.place] = row
                    bar.update()
        return [self._rows[place].reply for place in places]

    @property
    def num_replies(self) -> int:
        return len(self._rows)

    def measure(self) -> None:
        """Ask again, within the budget: for the noise, for what it does not explain, for speed."""
        self.judge()
        live = [name for name, side in self.sides.items() if not isinstance(side, RecordedSide)]
        left = max(_LEAST, math.floor(EXTRA * len(live) * len(self.pairs)))
        part = math.ceil(left / 4)
        if "a" in live:
            left -= self._measure_noise(part)
            left -= self._read_again(part)
        # B is the one in doubt, unless A was already seen to differ from itself.
        is_unsteady = any(pair.verdict.kind == "unstable" for pair in self.pairs)
        for letter in live if is_unsteady else reversed(live):
            left -= self._ask_again(letter, left)
        if len(live) == 2:
            self._time(left // 2)
        self.judge()

    def judge(self) -> None:
        """Give each pair its verdict, by what is known so far."""
        for pair in self.pairs:
            gap, noise = pair.rescored or (gap_between(pair.a, pair.b, pair.reading), self.noise)
            pair.verdict = judge(pair.a, pair.b, noise, gap)
            for letter, first in (("a", pair.a), ("b", pair.b)):
                if any(is_unstable(pair.a, first, each, noise) for each in pair.again[letter]):
                    reason = f"{letter.upper()} gave a different answer when asked again"
                    pair.verdict = replace(
                        pair.verdict, kind="unstable", noise=noise, reason=reason
                    )

    @property
    def unexplained(self) -> list[Pair]:
        return [pair for pair in self.pairs if pair.verdict.kind not in _SOUND]

    def _measure_noise(self, most: int) -> int:
        """Ask A answers again, at another level and in another order, half without its cache."""
        listed = [pair for pair in self.pairs if pair.a.tokens]
        self._random.shuffle(listed)
        listed.sort(key=lambda pair: pair.verdict.kind in _SOUND)  # the others first
        chosen = listed[:most]
        for cold in (True, False):
            part = chosen[cold::2]
            jobs = [(pair.question, self._other(pair)) for pair in part]
            replies = self._ask("a", "noise", jobs, True, cold)
            for pair, reply in zip(part, replies, strict=True):
                pair.again["a"].append(reply)
                if measured := changes(pair.a.tokens, reply.tokens):
                    self.repeated.append(max(measured))
        self.judge()
        return len(chosen)

    def _read_again(self, most: int) -> int:
        """Ask A for the token after the common prefix, which it reads at once this time."""
        listed = [
            (pair, pair.a.tokens, gap.index if (gap := pair.verdict.gap) else len(pair.a.tokens))
            for pair in self.unexplained
            if pair.a.tokens and pair.verdict.kind in _NEEDS_NOISE
        ]
        self._random.shuffle(listed)
        chosen = listed[:most]
        jobs = []
        for pair, tokens, index in chosen:
            begun = "".join(token.text for token in tokens[:index])
            settings = pair.question.settings | {"max_gen_toks": 1, "until": []}
            jobs.append((replace(pair.question, settings=settings, begun=begun), 1))
        replies = self._ask("a", "reading", jobs, listing=True)
        for (pair, tokens, index), reply in zip(chosen, replies, strict=True):
            for token in reply.tokens[:1]:
                if index == len(tokens):
                    pair.reading = token
                elif (measured := change(tokens[index], token)) is not None:
                    self.read_again.append(measured)
        self.judge()
        return len(chosen)

    def _ask_again(self, letter: str, most: int) -> int:
        chosen = [
            pair
            for pair in self.unexplained
            if not pair.again[letter] and pair.verdict.kind != "unstable"
        ][:most]
        self._random.shuffle(chosen)
        jobs = [(pair.question, self._other(pair)) for pair in chosen]
        for pair, reply in zip(chosen, self._ask(letter, "again", jobs), strict=True):
            pair.again[letter].append(reply)
        self.judge()
        return len(chosen)

    def _time(self, most: int) -> None:
        """Ask both again without log-probabilities, which take time: for the speed."""
        chosen = self._random.sample(self.pairs, min(max(0, most), len(self.pairs)))
        jobs = [(pair.question, pair.level) for pair in chosen]
        for letter in self.sides:
            for pair, reply in zip(chosen, self._ask(letter, "timed", jobs), strict=True):
                pair.timed[letter] = reply
                pair.again[letter].append(reply)

    def _other(self, pair: Pair) -> int:
        """Another level than that of the pair's first answers, if there is one."""
        index = self._levels.index(pair.level) + 1
        return self._levels[index % len(self._levels)]


_Place = tuple[str, str, AnswerKey, str]


def _digest(question: Question) -> str:
    text = question.prompt + question.begun
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


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
