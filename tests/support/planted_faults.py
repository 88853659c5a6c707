"""Faults of inference engines, each with the verdict that an audit has to give on it."""

from collections.abc import Callable
from dataclasses import dataclass

from engine_server import END, Engine, Logits, Request, logits, random_of, ranked

_CONTEXTS: dict[str, tuple[str, Callable[[Request, int], Logits]]] = {}
_CHOICES: dict[str, tuple[str, Callable[[Request, int, Logits], str]]] = {}
_TEXTS: dict[str, tuple[str, Callable[[Request, int, str], str]]] = {}


@dataclass
class FaultyEngine(Engine):
    """An engine with the fault of that name, for prompts that have `where` in them."""

    fault: str
    noise: float = 0.0
    where: str = ""

    def logits(self, request: Request) -> Logits:
        place = self._place(request)
        if self.fault in _CONTEXTS and place <= len(request.tokens):
            return _CONTEXTS[self.fault][1](request, place)
        return super().logits(request)

    def choose(self, request: Request, values: Logits) -> str:
        place = self._place(request)
        if self.fault in _CHOICES and place <= len(request.tokens):
            return _CHOICES[self.fault][1](request, place, values)
        return super().choose(request, values)

    def generate(self, request: Request) -> tuple[str, str]:
        is_hit = self.where in request.prompt
        if self.fault == "the stop strings are lost" and is_hit:
            request.stops = ()
        if self.fault == "one token less than the budget" and is_hit:
            request.max_tokens -= 1
        text, reason = super().generate(request)
        if self.fault in _TEXTS and is_hit:
            text = _TEXTS[self.fault][1](request, self._place(request), text)
        return text, reason

    def _place(self, request: Request) -> int:
        return place_of(request.prompt) if self.where in request.prompt else 10**6


_PLACES: dict[str, int] = {}


def place_of(prompt: str) -> int:
    """The first token, from the fourth on, whose runner-up is likely, but no near-tie."""
    if prompt not in _PLACES:
        tokens = list[str]()
        while True:
            values = logits(prompt, tokens)
            first, second, third, *_ = ranked(values)
            gap, wider = values[first] - values[second], values[first] - values[third]
            if len(tokens) > 2 and first != END and gap > 0.4 and wider < 4:
                break
            if first == END:
                return _PLACES.setdefault(prompt, 3)
            tokens.append(first)
        _PLACES[prompt] = len(tokens)
    return _PLACES[prompt]


def _context(kind: str, name: str) -> Callable[..., None]:
    return lambda function: _CONTEXTS.update({name: (kind, function)})


def _choice(kind: str, name: str) -> Callable[..., None]:
    return lambda function: _CHOICES.update({name: (kind, function)})


def _text(kind: str, name: str) -> Callable[..., None]:
    return lambda function: _TEXTS.update({name: (kind, function)})


_context("corruption", "stale state after a rejection")(
    lambda r, k: logits(r.prompt, [*r.tokens[: k - 2], *r.tokens[k:]])
)
_context("corruption", "positions off by one")(lambda r, k: logits(r.prompt, r.tokens[1:]))
_context("corruption", "a block of another prompt's cache")(
    lambda r, k: logits(f"another {r.prompt[:3]}", r.tokens)
)
_context("corruption", "the beginning of the prompt is lost")(
    lambda r, k: logits(r.prompt[10:], r.tokens)
)
_context("corruption", "logits that are no numbers")(
    lambda r, k: {" !": 0.0} if len(r.tokens) < 25 else {END: 0.0}
)
_context("corruption", "another adapter")(lambda r, k: logits(f"adapter {r.prompt}", r.tokens))
# The same neighbour has gone on when the request is asked again.
_context("unstable", "two requests share a cache")(
    lambda r, k: logits(f"{r.times} {r.previous}", r.tokens)
)
_context("unstable", "memory that nobody wrote")(
    lambda r, k: logits(f"{r.number} {r.prompt}", r.tokens)
)
_context("unstable", "every second answer")(
    lambda r, k: logits(f"{r.times % 2} {r.prompt}", r.tokens)
)
_context("unstable", "a race in the first prefill")(
    lambda r, k: logits(r.prompt if r.times else f"raced {r.prompt}", r.tokens)
)


def _at_place(instead: Callable[[Request, Logits], str]) -> Callable[[Request, int, Logits], str]:
    return lambda r, k, v: instead(r, v) if len(r.tokens) == k else ranked(v)[0]


for fault, kind, instead in (
    ("a rejected draft is accepted", "divergence", lambda r, v: ranked(v)[1]),
    ("the wrong sibling of a draft tree", "divergence", lambda r, v: ranked(v)[2]),
    ("penalties of another request", "divergence", lambda r, v: ranked(v)[1]),
    (
        "sampled from the best three",
        "divergence",
        lambda r, v: ranked(v)[random_of(r.prompt).randint(1, 2)],
    ),
    ("an accepted token too many", "corruption", lambda r, v: f" w{4000 + len(r.prompt)}"),
    ("a token twice", "corruption", lambda r, v: r.tokens[-1]),
    ("another request's token", "corruption", lambda r, v: ranked(logits("other", r.tokens))[0]),
    ("the least likely token", "corruption", lambda r, v: ranked(v)[-1]),
):
    _choice(kind, fault)(_at_place(instead))
_choice("divergence", "lossy acceptance from here on")(lambda r, k, v: ranked(v)[1])
_choice("stop", "the end is ignored")(lambda r, k, v: next(t for t in ranked(v) if t != END))


def _without(text: str, place: int) -> str:
    words = text.split(" ")
    return " ".join(words[: place + 1] + words[place + 2 :])


def _swapped(text: str, place: int) -> str:
    words = text.split(" ")
    words[place], words[place + 1] = words[place + 1], words[place]
    return " ".join(words)


for fault, kind, change in (
    ("a token is skipped", "corruption", lambda r, k, t: _without(t, k)),
    ("two tokens change places", "corruption", lambda r, k, t: _swapped(t, k)),
    ("a character is cut in two", "corruption", lambda r, k, t: f"{t[:9]}\ufffd\ufffd{t[9:]}"),
    ("bytes that are no text", "corruption", lambda r, k, t: f"{t[:9]}\x00{t[9:]}"),
    ("spaces are lost", "corruption", lambda r, k, t: t.replace(" ", "")),
    ("the last token is lost", "stop", lambda r, k, t: t.rpartition(" ")[0]),
    ("a token after the end", "stop", lambda r, k, t: f"{t} w7"),
    ("off by one at the end", "stop", lambda r, k, t: t[:-1]),
    ("the end is shown", "stop", lambda r, k, t: f"{t}<|im_end|>"),
    ("a parser strips spaces", "stop", lambda r, k, t: t.strip()),
    ("a parser takes everything", "stop", lambda r, k, t: ""),
    ("the stop string stays", "stop", lambda r, k, t: t + "".join(r.stops)),
):
    _text(kind, fault)(change)

FAULTS: dict[str, str] = {
    "the stop strings are lost": "stop",
    "one token less than the budget": "stop",
    **{name: kind for name, (kind, _) in (_CONTEXTS | _CHOICES | _TEXTS).items()},
}
"""Kinds of faults, and the verdict on each."""
