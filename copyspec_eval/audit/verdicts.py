"""Of what kind the first difference of two answers is. Pure functions of texts and readings.

A reading is a `Token`: the log-probabilities that side A lists for a place in its own answer. Up to
the first difference both answers are the same, so A's reading there is of the common prefix.
"""

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from copyspec_eval.audit.replies import Reply, Token
from copyspec_eval.types import first_difference

Kind = Literal[
    "identical",
    "near_tie",  # rounding, as measured on A, can turn the choice
    "divergence",  # B's token is likely, but further from A's than rounding explains
    "corruption",  # B's token is not likely by A's reading, or a text is no text
    "stop",  # one answer is the beginning of the other, or only spaces at the ends differ
    "unstable",  # a side differs from itself when asked again, by more than rounding
    "unknown",  # no reading of the place
]
KINDS: tuple[Kind, ...] = get_args(Kind)
FAULTS: frozenset[Kind] = frozenset({"divergence", "corruption", "stop", "unstable"})

LIKELY = 3e-4
"""Probability from which a token is likely: the smallest cutoff suggested for epsilon sampling
(arXiv 2210.15191; `epsilon_cutoff` in transformers' GenerationConfig)."""

_FRAGMENT = re.compile("\N{REPLACEMENT CHARACTER}" + r"|^bytes:|\\x[0-9a-f]{2}|<0x[0-9A-F]{2}>")
"""In names of tokens that are a part of a character."""

_END = re.compile(r"|</s>|<eos>|<end_of_turn>|\[EOS\]|<\|[^|<>]*\|>")
"""Names under which servers list the token that ends an answer."""


@dataclass(frozen=True, slots=True)
class Gap:
    """How much likelier, in nats, A's token is by A's reading than the one that B must have had."""

    index: int  # of A's token
    nats: float  # if B's token is not listed, the least that it can be
    other: str | None  # B's token as A lists it; None if it is not listed
    probability: float  # of B's token; if it is not listed, the most that it can be


@dataclass(frozen=True, slots=True)
class Verdict:
    kind: Kind
    position: int | None = None  # of the first character that differs
    gap: Gap | None = None
    noise: float | None = None  # the largest change of a log-probability on A, in nats
    reason: str = ""


def judge(a: Reply, b: Reply, noise: float | None, gap: Gap | None) -> Verdict:
    """The verdict on two answers to one prompt, before either side is asked again.

    `noise` is None if it could not be measured, `gap` if A cannot be asked for it.
    """
    position = first_difference(a.text, b.text)
    if position is None:
        return Verdict("identical")
    for side, (text, other) in {"A": (a.text, b.text), "B": (b.text, a.text)}.items():
        if (strange := no_text(text, position)) and not no_text(other, 0):
            return Verdict("corruption", position, None, noise, f"{side} has {strange}")
    if gap and noise is not None and abs(gap.nats) <= 2 * noise:  # both can move
        return Verdict("near_tie", position, gap, noise)
    is_listed = gap is not None and gap.other is not None
    if position in (len(a.text), len(b.text)) or (not is_listed and _only_spaces(a.text, b.text)):
        short = "A" if len(a.text) < len(b.text) else "B"
        return Verdict("stop", position, gap, noise, f"{short} ends where the other goes on")
    if gap is None:
        return Verdict("unknown", position, None, noise, "A lists no log-probabilities there")
    if not is_listed:
        return Verdict("corruption", position, gap, noise, "A does not list B's token")
    if gap.probability < LIKELY:
        reason = f"B's token has a probability of {gap.probability:.1g}"
        return Verdict("corruption", position, gap, noise, reason)
    if noise is None:
        return Verdict("unknown", position, gap, None, "A's noise could not be measured")
    reason = f"{abs(gap.nats):.2g} nats apart, where rounding explains {2 * noise:.2g}"
    return Verdict("divergence", position, gap, noise, reason)


def _only_spaces(a: str, b: str) -> bool:
    """Whether only one of the texts has spaces around it, or one has more of them at its start.

    >>> _only_spaces(" a b", "a b"), _only_spaces(" a c", "a d"), _only_spaces(" a", "b")
    (True, True, False)
    """
    starts = [len(text) - len(text.lstrip()) for text in (a, b)]
    return a.strip() == b.strip() or (starts[0] != starts[1] and a.split()[:1] == b.split()[:1])


def gap_between(a: Reply, b: Reply, reading: Token | None = None) -> Gap | None:
    """The smallest of the gaps that the texts allow; None without a reading of the place.

    `reading` is of the token after the common prefix, for where A's answer lists none.

    >>> the = Token(" the", " the", {" the": -0.7, " then": -0.8, " a": -2.0})
    >>> cat = Token(" cat", " cat", {" cat": -0.5, " dog": -1.5})
    >>> answer = Reply(" the cat", tokens=(the, cat))
    >>> [gap_between(answer, Reply(text)).other for text in (" the dog", " then", " a cat")]
    [' dog', ' then', ' a']
    """
    position = first_difference(a.text, b.text)
    if position is None:
        return None
    candidates, start = list[Gap](), 0
    for index, token in enumerate(a.tokens):
        candidates += _reaching(token, index, b.text[start:], beyond=position - start)
        if not b.text.startswith(a.text[: start + len(token.text)]) or _ends(a, index):
            break
        start += len(token.text)
    else:
        if reading is None:
            return None
        index, start, token = len(a.tokens), position, reading
    ended = position == len(b.text) == start
    for name, logprob in token.listed.items():
        is_end = bool(_END.fullmatch(name))
        fits = is_end if ended else not is_end and _may_begin(name, b.text[start:])
        if fits and name != token.name:
            candidates.append(_gap(index, token, name, logprob))
    if candidates:
        return min(candidates, key=lambda gap: abs(gap.nats))
    return _unlisted(index, token)


def _may_begin(name: str, text: str) -> bool:
    is_part = bool(_FRAGMENT.search(name)) and not text[:1].isascii()
    return is_part or bool(name and text.startswith(name))


def _ends(a: Reply, index: int) -> bool:
    """Whether the token ended the answer by itself, and not as a part of a stop string."""
    token = a.tokens[index]
    is_last = index == len(a.tokens) - 1 and a.finish_reason == "stop"
    return is_last and not token.text and bool(_END.fullmatch(token.name))


def _reaching(token: Token, index: int, text: str, beyond: int) -> Iterable[Gap]:
    """Of listed tokens with which `text` begins, those that reach over its first `beyond`."""
    for name, logprob in token.listed.items():
        if len(name) > beyond >= 0 and name != token.name and text.startswith(name):
            yield _gap(index, token, name, logprob)


def _gap(index: int, token: Token, name: str, logprob: float) -> Gap:
    return Gap(index, token.logprob - logprob, name, math.exp(logprob))


def _unlisted(index: int, token: Token) -> Gap:
    """A bound: a token that is not listed is at most as likely as the last, or as what is left."""
    rest = max(0.0, 1.0 - math.fsum(map(math.exp, token.listed.values())))
    most = min(rest, math.exp(min(token.listed.values()))) if len(token.listed) > 1 else rest
    nats = token.logprob - math.log(most) if most else math.inf
    return Gap(index, nats, None, most)


def no_text(text: str, start: int) -> str:
    """What in a text from `start` on is no text, in words; "" if nothing is.

    A token budget may cut a character in two, so a replacement character at the very end counts
    as text.

    >>> no_text("fine, one\\ttab\\n", 0), no_text("cut \\ufffd", 0), no_text("a\\ufffdb", 0)
    ('', '', 'a broken character (U+FFFD)')
    >>> no_text("a\\x00b", 0)
    'a character that no text has (U+0000)'
    """
    for character in text.rstrip("\N{REPLACEMENT CHARACTER}")[start:]:
        if character == "\N{REPLACEMENT CHARACTER}":
            return "a broken character (U+FFFD)"
        if character not in "\t\n\r\f\v" and unicodedata.category(character) in ("Cc", "Cn", "Cs"):
            return f"a character that no text has (U+{ord(character):04X})"
    return ""


def change(first: Token, again: Token) -> float | None:
    """By how many nats a likely token's log-probability changed; None if it is another reading.

    It is, not by rounding, if the likeliest token of one is not likely in the other.
    """
    for one, other in ((first, again), (again, first)):
        top = max(one.listed, key=lambda name: one.listed[name])
        bound = _unlisted(0, other).probability
        if math.exp(other.listed[top]) < LIKELY if top in other.listed else bound < LIKELY:
            return None
    both = first.listed.keys() & again.listed.keys()
    pairs = [(first.listed[name], again.listed[name]) for name in both]
    return max((abs(x - y) for x, y in pairs if math.exp(max(x, y)) >= LIKELY), default=0.0)


def changes(first: Sequence[Token], again: Sequence[Token]) -> list[float] | None:
    """The `change` in each place before the first at which the answers have other tokens.

    That place itself does not count: of a side that differs from itself by a fault it would hide
    the fault.

    None if one of them is another reading: then what was asked again is no noise.
    """
    measured = list[float]()
    for x, y in zip(first, again, strict=False):
        if (changed := change(x, y)) is None:
            return None
        if x.name != y.name:
            break
        measured.append(changed)
    return measured


def is_unstable(a: Reply, first: Reply, again: Reply, noise: float | None) -> bool:
    """Whether a side gave another answer the second time that rounding does not explain.

    `a` is the answer with A's readings: the side's own, or that of the side it is compared with.
    Past their first difference to `a`, nothing is known of two answers.
    """
    position, differs = (first_difference(first.text, text) for text in (again.text, a.text))
    if position is None:
        return False
    if differs is not None:
        if position >= _end_of_token(a, first, differs):
            return False
        position = min(position, differs)
    departing = [each for each in (first, again) if first_difference(a.text, each.text) == position]
    kinds = {judge(a, each, noise, gap_between(a, each)).kind for each in departing}
    return bool(kinds - {"near_tie", "unknown"})


def _end_of_token(a: Reply, reply: Reply, start: int) -> int:
    """Where the token that differs in `reply` ends: after a word, or the longest that A lists."""
    rest = reply.text[start:]
    word = re.search(r"\s|$", rest[1:])
    gap = gap_between(a, reply)
    listed = a.tokens[gap.index].listed if gap and gap.index < len(a.tokens) else {" ": 0.0}
    return start + min(1 + (word.start() if word else 0), max(map(len, listed)))
