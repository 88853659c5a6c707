"""A case: a model, what it is asked, and how it drafts, drawn from a seed and a number alone."""

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from copyspec_eval.decoding.row_runner import PREFILL_CHUNK
from copyspec_eval.drafters.registry import DRAFTERS
from copyspec_eval.types import DraftOptions
from fuzzing.doubles import CHAINS, TREE
from fuzzing.models import ALL_MODELS, LIKENESSES, LONGEST, VOCABULARY, ModelName

_LETTERS = "abcdef"


@dataclass(frozen=True, slots=True)
class Range:
    """What cases are drawn from.

    Attributes:
        models, batch_sizes: each as likely.
        draft_models: of `LIKENESSES`.
    """

    models: tuple[ModelName, ...] = ALL_MODELS
    batch_sizes: tuple[int, ...] = (1, 2, 3, 4, 5)
    draft_models: tuple[str, ...] = tuple(LIKENESSES)


@dataclass(frozen=True, slots=True)
class Request:
    """One of the prompts.

    Attributes:
        prompt_ids: its tokens.
        budget: the most tokens of its answer.
        seed: of its random numbers.
    """

    prompt_ids: tuple[int, ...]
    budget: int
    seed: int


@dataclass(frozen=True, slots=True)
class Case:
    """One case.

    Attributes:
        seed, number: what it was drawn from.
        model, batch_size: what answers the requests.
        exact: "invariant" or "fixed width"; None decodes without exact mode.
        double: a drafter that knows the answer, of `doubles`; None takes the one of `options`.
        options: how to draft; `draft_model` is one of `LIKENESSES`.
        slope: by how much a draft token lengthens a step; None names no costs.
        settings: of `model.generate`, from which the logits processors follow.
        eos_ids, stop_strings: what ends an answer.
        records_logits: whether all logits are compared, too, in exact mode.
        reverses: whether the requests are drafted for in reverse order, so that other ones share
            the batch.
        splits: whether they are drafted for in two calls.
        prefix_cache: bytes of the drafting engine's prefix cache; 0 for none.
        requests: what is asked.
    """

    seed: int
    number: int
    model: ModelName
    batch_size: int
    exact: str | None
    double: str | None
    options: DraftOptions
    slope: float | None
    settings: dict[str, Any]
    eos_ids: tuple[int, ...]
    stop_strings: tuple[str, ...]
    records_logits: bool
    reverses: bool
    splits: bool
    prefix_cache: int
    requests: tuple[Request, ...]

    def source(self, *use: object) -> random.Random:
        """Random numbers of this case, of their own for each `use`."""
        return random.Random(f"{self.seed} {self.number} {use}")

    def __str__(self) -> str:
        """One line; of the prompts the lengths, since seed and number give the tokens."""
        facts = asdict(self)
        facts["requests"] = [(len(r.prompt_ids), r.budget) for r in self.requests]
        return json.dumps(facts)


def text_of(token_ids: Sequence[int]) -> str:
    """What stop strings are looked for in: a letter or two per token."""
    base = len(_LETTERS)
    texts = (_LETTERS[token % base] + _LETTERS[: token // base % 2] for token in token_ids)
    return "".join(texts)


def draw(seed: int, number: int, among: Range | None = None) -> Case:
    """Case `number` of `seed`."""
    among = among or Range()
    source = random.Random(f"{seed} {number}")
    exact = source.choice(("invariant", "invariant", "fixed width", None, None))
    double = None
    if source.random() < 0.5:
        double = source.choice(CHAINS if exact else (*CHAINS, TREE, TREE))
    eos_ids = tuple(source.sample(range(VOCABULARY), source.choice((0, 0, 1, 3))))
    case = Case(
        seed=seed,
        number=number,
        model=source.choice(among.models),
        batch_size=source.choice(among.batch_sizes),
        exact=exact,
        double=double,
        options=_draw_options(source, among, exact is not None, double is not None),
        slope=source.choice((None, None, 0.0, 0.02, 0.2)),
        settings=_draw_settings(source, eos_ids),
        eos_ids=eos_ids,
        stop_strings=_draw_stop_strings(source),
        records_logits=source.random() < 0.5,
        reverses=source.random() < 0.3,
        splits=source.random() < 0.2,
        prefix_cache=source.choice((0, 2**14, 2**30)),
        requests=_draw_requests(source),
    )
    return case if case.model.cache == "copyspec" else _within_model_cache(case)


def _within_model_cache(case: Case) -> Case:
    """The case without what a model's own cache cannot do; what drafts for it is another model."""
    likeness = case.options.draft_model
    if likeness in ("same", "noisy"):
        likeness = "of fewer tokens"
    return replace(
        case,
        batch_size=1,
        exact=None,
        double="junk" if case.double == TREE else case.double,
        options=replace(case.options, tree=False, draft_model=likeness),
        prefix_cache=0,
    )


def _draw_options(
    source: random.Random, among: Range, is_exact: bool, is_double: bool
) -> DraftOptions:
    name = "none" if is_double else source.choice(sorted(DRAFTERS))
    switches = sorted(DRAFTERS[name].switches - ({"tree"} if is_exact else set()))
    length: int | None = source.randint(1, source.choice((4, 12, LONGEST)))
    if not is_double and source.random() < 0.2:
        length = None
    # Without a drafter there is nothing to check but a draft model.
    has_draft_model = (name == "none" and not is_double) or source.random() < 0.25
    return DraftOptions(
        drafter=name,
        gamma=source.choice((1, 1, 2, 3, 6)),
        num_draft_tokens=length,
        draft_model=source.choice(among.draft_models) if has_draft_model else None,
        delta=source.choice((1, 2, 5, 8)),
        **{name: source.random() < 0.6 for name in switches},
    )


def _draw_settings(source: random.Random, eos_ids: tuple[int, ...]) -> dict[str, Any]:
    """Half of the cases are greedy, half of them without any processor."""
    banned = source.sample(range(VOCABULARY), 5)
    processors: dict[str, Any] = {
        "repetition_penalty": source.choice((0.8, 1.1, 1.5)),
        "no_repeat_ngram_size": source.choice((2, 3)),
        "suppress_tokens": banned[:3],
        "bad_words_ids": [banned[3:4], banned[4:] + banned[:1]],
        "sequence_bias": [[banned[:2], 3.0], [banned[2:3], 1.5]],
    }
    if eos_ids:
        processors["min_new_tokens"] = source.randint(1, 8)
        processors["exponential_decay_length_penalty"] = (source.randint(1, 5), 1.2)
    warpers: dict[str, Any] = {
        "temperature": source.choice((0.3, 0.7, 1.5, 3.0)),
        "top_k": source.choice((2, 5, 20)),
        "top_p": source.choice((0.5, 0.9)),
        "min_p": source.choice((0.02, 0.2)),
    }
    settings: dict[str, Any] = {"do_sample": source.random() < 0.5}
    if source.random() < 0.5:
        settings |= _some(source, processors)
    if settings["do_sample"]:
        settings |= _some(source, warpers)
    if eos_ids:
        settings["eos_token_id"] = list(eos_ids)
    return settings


def _some(source: random.Random, settings: dict[str, Any]) -> dict[str, Any]:
    names = source.sample(sorted(settings), source.randint(1, 3))
    return {name: settings[name] for name in names}


def _draw_stop_strings(source: random.Random) -> tuple[str, ...]:
    if source.random() < 0.75:
        return ()
    lengths = [source.choice((2, 3, 3, 5)) for _ in range(source.randint(1, 2))]
    return tuple("".join(source.choices(_LETTERS, k=length)) for length in lengths)


def _draw_requests(source: random.Random) -> tuple[Request, ...]:
    """Few of them if their answers are long; a prompt in fifty about fills a prefill's chunk."""
    count = source.randint(1, 6)
    most = source.choice((3, 12, 40 // count + 5))
    prompts: list[tuple[int, ...]] = []
    for _ in range(count):
        if prompts and source.random() < 0.25:
            further = source.choice((0, 0, 5, 40))
            prompts.append((*source.choice(prompts), *_draw_prompt(source, further)))
            continue
        length = source.randint(1, source.choice((4, 30, 150)))
        if source.random() < 1 / 50:
            chunks = source.choice((1, 2)) * PREFILL_CHUNK
            length = source.randint(chunks - 60, chunks + 20)
        prompts.append(_draw_prompt(source, length))
    return tuple(
        Request(prompt, source.randint(1, most), source.randrange(3)) for prompt in prompts
    )


def _draw_prompt(source: random.Random, length: int) -> tuple[int, ...]:
    """A passage over and over, with a token changed here and there."""
    passage = [source.randrange(VOCABULARY) for _ in range(source.randint(1, 16))]
    tokens = [passage[index % len(passage)] for index in range(length)]
    for _ in range(length // 20):
        tokens[source.randrange(length)] = source.randrange(VOCABULARY)
    return tuple(tokens)
