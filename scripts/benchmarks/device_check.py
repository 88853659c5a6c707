"""Whether exact mode is exact on a device, and what a step costs there by its width.

Needs torch and transformers, nothing else: neither lm-eval nor an installed copyspec_eval.
"""

import itertools
import random
import statistics
import sys
from collections import abc
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import torch
from transformers import LogitsProcessorList

from benchmarks.models import MEDIUM, QWEN_05B, SMALL, Shape, random_model
from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.exactness import mismatches
from copyspec_eval.decoding.forward import Part, forward
from copyspec_eval.decoding.modules import engine_kernels
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.decoding.stopwatch import wait_for
from copyspec_eval.drafters.registry import DRAFTERS, DrafterFactory, drafter_factory
from copyspec_eval.types import FIXED_WIDTHS, Draft, DraftOptions, ExactMode, Generation, Verdict

_DTYPES = (torch.float32, torch.bfloat16)
_BATCH_SIZES = (1, 4)
_STEP_WIDTHS = (1, 2, 4, 8, 11, 16, 32, 64)
_LONGEST = 32
"""The most draft tokens where widths are measured."""
_CONTEXT, _EXTENT = 1024, 1088
"""Tokens before a timed step, and keys that it attends to, the same at every width."""

_SCRIPTED = ("right", "wrong", "partly_right", "junk")

_Prompt = tuple[int, ...]
_Logits = list[list[torch.Tensor]]
"""`[vocabulary]` by sequence and output token."""
Result = dict[str, Any]
"""A row of the JSON that is printed."""


@dataclass(frozen=True)
class _Sizes:
    """How much to do."""

    shape: Shape
    prompt_lengths: tuple[int, ...]  # more than a batch, so that rows are refilled
    budget: int
    step_shape: Shape
    rounds: int


_SIZES = {
    "cuda": _Sizes(MEDIUM, (5, 33, 700, 120, 300, 64), 40, QWEN_05B, 30),
    "cpu": _Sizes(SMALL, (5, 33, 18, 12, 27), 10, SMALL | {"tie_word_embeddings": True}, 3),
}
DEVICES = tuple(_SIZES)


def check_device(device: str) -> Result:
    """Everything that is checked and timed on one of `DEVICES`; progress goes to stderr.

    1. A random model answers prompts with `drafter=none`, and again with drafts that are right,
       wrong, partly right and junk, and with each drafter of the registry. Every verified logit has
       to be the same bits. `none` against itself is among them: if that differs, the kernels are
       not reproducible at all. The control, `exact=false` with right drafts, is expected to differ.
    2. Where reading a text in several ways differs in bits, as exact mode checks it.
    3. Median seconds of a step's forward by width, on a GPU on the shape of Qwen2.5-0.5B, in
       bfloat16.
    """
    equality, control, exactness = _check_equality(_SIZES[device], device)
    return {
        "ok": all(map(_is_equal, equality)),
        "equality": equality,
        "control_differs": any(row["equal"] < row["compared"] for row in control),
        "control": control,
        "exactness": exactness,
        "float32_allow_tf32": torch.backends.cuda.matmul.allow_tf32,
        "step_cost": _time_steps(_SIZES[device], device),
    }


class _RecordingChooser(TokenChooser):
    """Greedy; keeps the logits of every output token, on their device."""

    is_argmax = False  # else the engine takes the argmax without asking

    def __init__(self) -> None:
        super().__init__(LogitsProcessorList(), do_sample=False)
        self.logits: list[torch.Tensor] = []

    def choose(self, prefix_ids: abc.Sequence[int], logits: torch.Tensor) -> int:
        self.logits.append(logits.clone())
        return super().choose(prefix_ids, logits)


@dataclass
class _ScriptedDrafter:
    """Knows the baseline's answer to each prompt; how much of a draft is right is its `kind`."""

    kind: str
    answers: Mapping[_Prompt, _Prompt]
    vocabulary: int
    longest: int

    def start(
        self, prompt_ids: abc.Sequence[int], earlier: abc.Sequence[abc.Sequence[int]] = ()
    ) -> None:
        self._continuation = list(self.answers[tuple(prompt_ids)])
        self._random = random.Random(str(prompt_ids))

    def propose(self, max_tokens: int, thresholds: abc.Sequence[float]) -> Draft:
        tokens = self._continuation[: min(max_tokens, self.longest)]
        cut = self._random.randint(0, len(tokens))
        if self.kind == "junk":
            return Draft(tuple(self._random.randrange(self.vocabulary) for _ in tokens[:cut]))
        num_right = {"right": len(tokens), "wrong": 0, "partly_right": cut}[self.kind]
        wrong = [(token + 1) % self.vocabulary for token in tokens[num_right:]]
        return Draft((*tokens[:num_right], *wrong))

    def observe(self, token_ids: abc.Sequence[int], verdict: Verdict) -> None:
        del self._continuation[: len(token_ids)]

    def finish(self) -> None:
        """Nothing to keep."""


@dataclass(frozen=True)
class _Setting:
    """A model, and an engine of some steps and batch size, for some prompts."""

    model: Any
    prompts: list[_Prompt]
    budget: int
    longest: int  # draft, in tokens
    batch_size: int
    exact: ExactMode | None

    def compare_with_none(self, drafters: abc.Sequence[str]) -> list[Result]:
        baseline, logits = self._record(drafter_factory(DraftOptions("none")))
        answers = {
            prompt: answer.token_ids for prompt, answer in zip(self.prompts, baseline, strict=True)
        }
        return [self._compare(drafter, answers, logits) for drafter in drafters]

    def _compare(self, drafter: str, answers: Mapping[_Prompt, _Prompt], logits: _Logits) -> Result:
        vocabulary = self.model.config.vocab_size
        make: DrafterFactory = partial(_ScriptedDrafter, drafter, answers, vocabulary, self.longest)
        if drafter not in _SCRIPTED:
            make = drafter_factory(DraftOptions(drafter, gamma=1, num_draft_tokens=self.longest))
        generations, drafted_logits = self._record(make)
        # These choosers are not asked: the engine takes the argmax of all positions at once.
        greedy = [TokenChooser(LogitsProcessorList(), do_sample=False) for _ in self.prompts]
        by_argmax = self._answer(make, greedy)
        attempts = [attempt for generation in generations for attempt in generation.attempts]
        tokens = list(answers.values())
        return {
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "steps": self.exact.name if self.exact else "any",
            "longest_draft": self.longest,
            "batch_size": self.batch_size,
            "drafter": drafter,
            **_compare_logits(logits, drafted_logits),
            "tokens_equal": [generation.token_ids for generation in generations] == tokens,
            "argmax_tokens_equal": [generation.token_ids for generation in by_argmax] == tokens,
            "drafted": sum(attempt.num_drafted for attempt in attempts),
            "accepted": sum(attempt.num_accepted for attempt in attempts),
        }

    def _record(self, make: DrafterFactory) -> tuple[list[Generation], _Logits]:
        choosers = [_RecordingChooser() for _ in self.prompts]
        return self._answer(make, choosers), [chooser.logits for chooser in choosers]

    def _answer(
        self, make: DrafterFactory, choosers: abc.Sequence[TokenChooser]
    ) -> list[Generation]:
        engine = Engine(
            self.model,
            make,
            num_draft_tokens=self.longest,
            exact=self.exact,
            batch_size=self.batch_size,
        )
        # Unequal budgets: rows end, and are refilled, at different steps.
        rules = [StopRule(self.budget + 3 * index) for index in range(len(self.prompts))]
        return engine.generate(list(map(Sequence, self.prompts, rules, choosers)))


def _compare_logits(baseline: _Logits, drafted: _Logits) -> Result:
    compared, mismatches = 0, []
    for request, pair in enumerate(zip(baseline, drafted, strict=True)):
        # Of unequal length only if the tokens differ, which is a failure of its own.
        for token, (a, b) in enumerate(zip(*pair, strict=False)):
            compared += 1
            if not torch.equal(a, b):
                distance = float((a - b).abs().max())
                mismatches.append(
                    {"request": request, "output_token": token, "max_difference": distance}
                )
    first = mismatches[0] if mismatches else None
    return {"compared": compared, "equal": compared - len(mismatches), "first_mismatch": first}


def _is_equal(row: Result) -> bool:
    same_tokens: bool = row["tokens_equal"] and row["argmax_tokens_equal"]
    return same_tokens and row["equal"] == row["compared"] > 0


def _prompts(lengths: abc.Sequence[int], vocabulary: int) -> list[_Prompt]:
    """Each repeats its first half."""
    source = random.Random(0)
    halves = [[source.randrange(vocabulary) for _ in range((n + 1) // 2)] for n in lengths]
    return [tuple((half + half)[:n]) for half, n in zip(halves, lengths, strict=True)]


def _check_equality(sizes: _Sizes, device: str) -> tuple[list[Result], ...]:
    """Rows of exact mode, which have to be equal, of the control, which should not be, and of what
    differs where a text is read in several ways.
    """
    prompts = _prompts(sizes.prompt_lengths, sizes.shape["vocab_size"])
    equality, control, exactness = [], [], []
    for dtype in _DTYPES:
        model = random_model(sizes.shape, dtype, device)
        for batch_size in _BATCH_SIZES:
            modes = [ExactMode(), *map(ExactMode, FIXED_WIDTHS)]
            for exact in modes:
                longest = exact.num_draft_tokens or _LONGEST
                exactness.append(_exactness(model, prompts[2], exact, longest, batch_size))
                _log("exactness", exactness[-1])
                if exact.width is None and exactness[-1]["differs"]:
                    continue
                setting = _Setting(model, prompts, sizes.budget, longest, batch_size, exact)
                for row in setting.compare_with_none([*_SCRIPTED, *DRAFTERS]):
                    equality.append(row)
                    _log("equal" if _is_equal(row) else "NOT EQUAL", row)
            inexact = _Setting(model, prompts, sizes.budget, 7, batch_size, exact=None)
            control += inexact.compare_with_none(["right"])
            _log("control", control[-1])
    return equality, control, exactness


def _exactness(
    model: Any, token_ids: _Prompt, exact: ExactMode, longest: int, batch_size: int
) -> Result:
    actual = mismatches(model, token_ids, exact, longest, batch_size)
    return {
        "dtype": str(model.dtype).removeprefix("torch."),
        "batch_size": batch_size,
        "width": exact.width,
        "differs": [f"{what}, first in {module}" for what, module in actual],
    }


@torch.inference_mode()
def _time_steps(sizes: _Sizes, device: str) -> list[Result]:
    """Rows of median seconds; the widths take turns, so that drift hits all of them."""
    model = random_model(sizes.step_shape, torch.bfloat16, device)
    synchronize = partial(wait_for, torch.device(device))
    rows = []
    for batch_size in _BATCH_SIZES:
        cache = RowCache(batch_size, _EXTENT)
        ids = torch.randint(model.config.vocab_size, (batch_size, _CONTEXT)).tolist()
        seconds: dict[int, list[float]] = {width: [] for width in _STEP_WIDTHS}
        with engine_kernels(model, exact=True):
            context = [Part(row, 0, ids[row]) for row in range(batch_size)]
            forward(model, cache, context, _CONTEXT, logits_to_keep=1)
            for _, width in itertools.product(range(2 + sizes.rounds), _STEP_WIDTHS):
                synchronize()
                started = perf_counter()
                parts = [Part(row, _CONTEXT, ids[row][:width]) for row in range(batch_size)]
                forward(model, cache, parts, _EXTENT)
                synchronize()
                seconds[width].append(perf_counter() - started)
        # The first two rounds warm up.
        medians = {width: statistics.median(times[2:]) for width, times in seconds.items()}
        for width, median in medians.items():
            row = {"batch_size": batch_size, "width": width, "median_seconds": round(median, 6)}
            rows.append({**row, "ratio_to_width_1": round(median / medians[1], 3)})
            _log("step", rows[-1])
    return rows


def _log(what: str, row: Result) -> None:
    print(what, *(f"{name}={value}" for name, value in row.items()), file=sys.stderr, flush=True)
