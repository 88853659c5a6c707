"""Ratings of answers by a judge model behind an OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tqdm import tqdm

from copyspec_eval import journal
from copyspec_eval.errors import DataError, OptionError
from copyspec_eval.redaction import redacted_text
from copyspec_eval.scoring.mt_bench import Grading, is_rating, judgement_row, parse_rating

KEY_VARIABLE = "OPENAI_API_KEY"

# The client doubles its wait before each retry, or waits as long as the server asks.
MAX_RETRIES = 5
# Of a judgement, retries included, however slowly a server sends it; --help names it.
TIMEOUT_SECONDS = 300.0
MAX_BYTES = 2**20
# Servers are not deterministic even at temperature 0, so another judgement may have a rating.
NUM_JUDGEMENTS = 3
WAIT_SECONDS = 1.0

MAX_TOKENS = 2048  # as FastChat

AnswerTurn = tuple[int, int]
"""A question_id, and a turn counted from 1."""


class UnjudgedError(Exception):
    """An answer got no rating; the message, one line, is the reason."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The ratings of one task's answers.

    Attributes:
        gradings: all answers.
        scores: ratings of the judged answers, from this run or an earlier one.
        reasons: why each other answer has no rating.
        notes: one message per line of the judgement file that was skipped.
    """

    gradings: Sequence[Grading]
    scores: dict[AnswerTurn, float]
    reasons: dict[AnswerTurn, str]
    notes: list[str]


class Judge:
    """A chat model that rates answers.

    Args:
        name: of the model, as the server knows it.
        base_url: of the server; None for `$OPENAI_BASE_URL`, by default OpenAI's.

    Raises:
        OptionError: `openai` is not installed, `base_url` is not an HTTP URL, or there is no key
            for OpenAI's server.
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
        self._base_url = base_url

    def rate(self, grading: Grading) -> tuple[str, float]:
        """The judgement, and the rating in it.

        Raises:
            UnjudgedError: all retries failed, or no judgement has a rating.
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
        """The judge's answer; "" if the completion has none."""
        try:
            return self._without_key(_content(asyncio.run(self._completion(grading))))
        except asyncio.TimeoutError:
            raise UnjudgedError(
                f"no judgement in {TIMEOUT_SECONDS:g} s, retries included"
            ) from None
        except self._openai.APIStatusError as error:
            raise UnjudgedError(
                self._line(f"HTTP {error.status_code}: {error.response.text}")
            ) from None
        except UnjudgedError:
            raise
        except Exception as error:  # of the client, and of its transport, whichever it uses
            reason = self._line(str(error)) or type(error).__name__
            raise UnjudgedError(reason) from None

    async def _completion(self, grading: Grading) -> bytes:
        """The server's answer, JSON if all is well."""
        client = self._openai.AsyncOpenAI(
            api_key=self._key or "EMPTY",  # the client requires one
            base_url=self._base_url,
            timeout=TIMEOUT_SECONDS,
            max_retries=MAX_RETRIES,
        )

        async def body() -> bytes:
            async with client.chat.completions.with_streaming_response.create(
                model=self.name,
                messages=[
                    {"role": "system", "content": grading.system},
                    {"role": "user", "content": grading.user},
                ],
                temperature=0,
                max_tokens=MAX_TOKENS,
            ) as response:
                content = bytearray()
                async for chunk in response.iter_bytes():
                    content += chunk
                    if len(content) > MAX_BYTES:
                        raise UnjudgedError(f"a judgement of over {MAX_BYTES} bytes")
                return bytes(content)

        async with client:
            return await asyncio.wait_for(body(), TIMEOUT_SECONDS)

    def _line(self, text: str) -> str:
        """`text` as one line of at most 200 characters, without secrets, which servers may echo."""
        return " ".join(redacted_text(self._without_key(text)).split())[:200]

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, f"${KEY_VARIABLE}") if self._key else text


def judge_all(
    rate: Callable[[Grading], tuple[str, float]],
    gradings: Sequence[Grading],
    path: Path,
    model: str,
    judge: str,
    concurrency: int,
) -> Judged:
    """Rate those of `gradings` that `path` has no rating of yet, `concurrency` at a time.

    Each judgement is appended to `path` at once, so that a kill loses none.

    Args:
        rate: as `Judge.rate`.
        gradings: of one task, each answer once.
        path: FastChat's `model_judgment/<judge>_single.jsonl`.
        model: name of the model that answered.
        judge: name of the judge.
        concurrency: number of parallel requests.

    Raises:
        OptionError: `concurrency` is below 1.
        DataError: as `read_scores`, or `path` cannot be written, or another judge is writing it.
    """
    if concurrency < 1:
        raise OptionError(f"concurrency {concurrency}; give 1 or more")
    with journal.alone(path):
        scores, notes = read_scores(path, gradings, model, judge)
        reasons: dict[AnswerTurn, str] = {}

        def rate_one(grading: Grading) -> None:
            answer = grading.question_id, grading.turn
            try:
                judgement, score = rate(grading)
            except UnjudgedError as error:
                reasons[answer] = str(error)
            else:
                row = judgement_row(grading, model, judge, judgement, score, time.time())
                journal.append(path, json.dumps(row).encode())
                scores[answer] = score

        unrated = [each for each in gradings if (each.question_id, each.turn) not in scores]
        pool = ThreadPoolExecutor(concurrency)
        try:
            futures = [pool.submit(rate_one, grading) for grading in unrated]
            for future in tqdm(as_completed(futures), "Judging", len(futures), unit="answer"):
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)
        return Judged(gradings, scores, reasons, notes)


def read_scores(
    path: Path, gradings: Sequence[Grading], model: str, judge: str
) -> tuple[dict[AnswerTurn, float], list[str]]:
    """Ratings in a judgement file, and a note on each line that is skipped as no judgement.

    Raises:
        DataError: the file cannot be read, or judges an answer that is not in `gradings`: means
            that FastChat computes from it would not be this run's.
    """
    expected = {
        (each.question_id, each.turn): (model, [judge, each.template], each.user)
        for each in gradings
    }
    scores: dict[AnswerTurn, float] = {}
    notes: list[str] = []
    for number, content in journal.lines(path) if path.exists() else ():
        try:
            row = json.loads(content)
            answer = row["question_id"], row["turn"]
            is_ours = expected.get(answer) == (row["model"], row["judge"], row["user_prompt"])
            score = float(row["score"])
        except (ArithmeticError, KeyError, RecursionError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            notes.append(f"{path}:{number}: skipped, not a judgement ({reason}); remove the line")
            continue
        if not is_ours:
            raise DataError(
                f"{path}:{number}: judges another answer than this run's; move the file away"
            )
        if is_rating(score):
            scores[answer] = score
        elif score != -1:  # FastChat's mark of no rating
            notes.append(f"{path}:{number}: skipped, {score} is no rating; remove the line")
    return scores, notes


def _content(completion: bytes) -> str:
    """The text of a chat completion; "" if there is none, or if it is none."""
    try:
        content = json.loads(completion)["choices"][0]["message"]["content"]
    except (LookupError, TypeError, ValueError, RecursionError):
        return ""
    return content if isinstance(content, str) else ""


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise OptionError(f"base URL {url!r}; give one such as http://localhost:8000/v1")


def _key() -> str:
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise OptionError(f"{KEY_VARIABLE} has characters that no key has; set it again")
    return key
