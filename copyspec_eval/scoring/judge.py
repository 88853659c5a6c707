"""A judge behind an OpenAI-compatible server: asked again where that can help, never twice else."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tqdm import tqdm

from copyspec_eval.errors import DataError, OptionError
from copyspec_eval.scoring.mt_bench import Grading, judgement_row, parse_rating

KEY_VARIABLE = "OPENAI_API_KEY"

# The client waits before each, twice as long as before the last, or as long as the server says.
MAX_RETRIES = 5
TIMEOUT_SECONDS = 300.0
# Servers may answer the same request in other words, even at temperature 0.
NUM_JUDGEMENTS = 3
WAIT_SECONDS = 1.0

MAX_TOKENS = 2048  # as FastChat

AnswerTurn = tuple[int, int]
"""A question_id, and a turn from 1."""


class UnjudgedError(Exception):
    """There is no rating; the text, one line, says why."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What came of the answers of one task.

    Attributes:
        gradings: all of them.
        scores: ratings of those that were judged, now or before.
        reasons: why the others were not.
    """

    gradings: Sequence[Grading]
    scores: dict[AnswerTurn, float]
    reasons: dict[AnswerTurn, str]


class Judge:
    """A chat model that rates answers.

    Args:
        name: the model's, as the server knows it.
        base_url: the server; None for OpenAI's, or `$OPENAI_BASE_URL`.

    Raises:
        OptionError: `openai` is not installed, `base_url` is no such thing, or the server needs a
            key and there is none.
    """

    def __init__(self, name: str, base_url: str | None = None) -> None:
        try:
            import openai
        except ImportError as error:
            raise OptionError(
                "judging needs the package openai; pip install 'copyspec-eval[judge]'"
            ) from error
        self.name = name
        self._key = _key()
        if not self._key and not base_url:
            raise OptionError(f"{KEY_VARIABLE} is not set; set it, or give --base-url of a server")
        if base_url:
            _check_url(base_url)
        self._openai = openai
        self._client = openai.OpenAI(
            api_key=self._key or "EMPTY",  # the client insists on one
            base_url=base_url,
            timeout=TIMEOUT_SECONDS,
            max_retries=MAX_RETRIES,
        )

    def rate(self, grading: Grading) -> tuple[str, float]:
        """The judgement and the rating in it.

        Raises:
            UnjudgedError: no answer after all tries, or none with a rating.
        """
        for attempt in range(NUM_JUDGEMENTS):
            if attempt:
                time.sleep(WAIT_SECONDS * 2 ** (attempt - 1))
            judgement = self._ask(grading)
            rating = parse_rating(judgement)
            if rating is not None:
                return judgement, rating
        raise UnjudgedError(f"no rating in {NUM_JUDGEMENTS} judgements")

    def _ask(self, grading: Grading) -> str:
        """The judge's answer; "" for none."""
        try:
            completion = self._client.chat.completions.create(
                model=self.name,
                messages=[
                    {"role": "system", "content": grading.system},
                    {"role": "user", "content": grading.user},
                ],
                temperature=0,
                max_tokens=MAX_TOKENS,
            )
        except self._openai.APIStatusError as error:
            raise UnjudgedError(
                self._line(f"HTTP {error.status_code}: {error.response.text}")
            ) from None
        except (self._openai.OpenAIError, ValueError) as error:
            raise UnjudgedError(self._line(str(error))) from None
        try:
            content: object = completion.choices[0].message.content
        except (AttributeError, IndexError, TypeError):  # not checked by the client
            return ""
        return content if isinstance(content, str) else ""

    def _line(self, text: str) -> str:
        """`text` in one line of at most 200 characters; servers can repeat the key."""
        shown = text.replace(self._key, f"${KEY_VARIABLE}") if self._key else text
        return " ".join(shown.split())[:200]


def judge_all(
    rate: Callable[[Grading], tuple[str, float]],
    gradings: Sequence[Grading],
    path: Path,
    model: str,
    judge: str,
    concurrency: int,
) -> Judged:
    """Have `gradings` rated, `concurrency` at a time, except those that `path` has already.

    Each judgement is appended to `path` as it comes, so that a kill loses none.

    Args:
        rate: as `Judge.rate`.
        gradings: of one task, each answer once.
        path: FastChat's `model_judgment/<judge>_single.jsonl`.
        model: whose answers these are.
        judge: the judge's name.
        concurrency: how many requests run side by side.

    Raises:
        OptionError: `concurrency` is below 1.
        DataError: `path` is broken, cannot be written, or has judgements of other answers.
    """
    if concurrency < 1:
        raise OptionError(f"concurrency {concurrency}; give 1 or more")
    scores = read_scores(path, gradings, model, judge)
    reasons: dict[AnswerTurn, str] = {}

    def rate_one(grading: Grading) -> None:
        answer = grading.question_id, grading.turn
        try:
            judgement, score = rate(grading)
        except UnjudgedError as error:
            reasons[answer] = str(error)
        else:
            _append(path, judgement_row(grading, model, judge, judgement, score, time.time()))
            scores[answer] = score

    left = [grading for grading in gradings if (grading.question_id, grading.turn) not in scores]
    pool = ThreadPoolExecutor(concurrency)
    try:
        futures = [pool.submit(rate_one, grading) for grading in left]
        for future in tqdm(as_completed(futures), "Judging", len(futures), unit="answer"):
            future.result()
    finally:
        pool.shutdown(cancel_futures=True)
    return Judged(gradings, scores, reasons)


def read_scores(
    path: Path, gradings: Sequence[Grading], model: str, judge: str
) -> dict[AnswerTurn, float]:
    """Ratings in a judgement file; a last line that a kill cut off is removed from it.

    Raises:
        DataError: the file is broken, or has judgements of something else than `gradings`: means
            that FastChat computes from it would not be this run's.
    """
    wanted = {(each.question_id, each.turn): (each.template, each.user) for each in gradings}
    scores: dict[AnswerTurn, float] = {}
    for number, line in enumerate(_whole_lines(path), start=1):
        try:
            row = json.loads(line)
            answer = row["question_id"], row["turn"]
            found = row["model"], row["judge"][0], (row["judge"][1], row["user_prompt"])
            score = float(row["score"])
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{path}:{number}: not a judgement ({error!r}); remove the line"
            ) from error
        if found != (model, judge, wanted.get(answer)):
            raise DataError(
                f"{path}:{number}: judges another answer than this run's; move the file away"
            )
        if score >= 0:  # FastChat's -1 stands for none
            scores[answer] = score
    return scores


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        right = False
    if not right:
        raise OptionError(f"base URL {url!r}; give one such as http://localhost:8000/v1")


def _key() -> str:
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise OptionError(f"{KEY_VARIABLE} has characters that no key has; set it again")
    return key


def _whole_lines(path: Path) -> list[bytes]:
    try:
        content = path.read_bytes() if path.exists() else b""
        end = content.rfind(b"\n") + 1
        if end < len(content):
            os.truncate(path, end)
    except OSError as error:
        raise _unusable(path, error) from error
    return content[:end].splitlines()


def _append(path: Path, row: dict[str, Any]) -> None:
    """In one write, so that threads do not mix lines and a kill leaves whole ones."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            file.write(json.dumps(row).encode() + b"\n")
    except OSError as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: OSError) -> DataError:
    return DataError(f"{path}: {error.strerror}; make it a file that can be written")
