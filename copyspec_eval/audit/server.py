"""A side that is an OpenAI-compatible server: vLLM, SGLang, llama.cpp, TGI, LMDeploy and others."""

import codecs
import itertools
import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import replace
from typing import Any

from copyspec_eval import openai_api
from copyspec_eval.audit.replies import Question, Reply, Token
from copyspec_eval.harness.answering import chat_of
from copyspec_eval.harness.backends.servers import reported
from copyspec_eval.openai_api import NoReplyError, RefusedError, one_line
from copyspec_eval.redaction import address, looks_secret, masked, without_secrets
from copyspec_eval.types import DraftCounts, TurnCounts

_LISTED = (20, 5, 0)
"""Log-probabilities to ask for in each place: limits of vLLM, of OpenAI's completions, none."""
# Where servers tell their version and settings; those of vLLM, SGLang, llama.cpp and TGI.
_FACTS = ("version", "get_server_info", "props", "info")
_FACTS_SECONDS = 5.0
_COLD: dict[str, dict[str, Any]] = {"llamacpp": {"cache_prompt": False}, "vllm": {"cache_salt": ""}}
"""By the owner of its models, what makes a server read a prompt without its prefix cache."""
_GO_ON = {"add_generation_prompt": False, "continue_final_message": True}
"""Has vLLM and SGLang go on with the last message; llama.cpp does so by itself."""
_ATTEMPTS = itertools.count(1)


class ServerSide:
    """`base_url` is the one that OpenAI's clients take, with `/v1`.

    Args:
        timeout: seconds for an answer, retries included.
    """

    def __init__(self, base_url: str, model: str, timeout: float) -> None:
        base_url = openai_api.checked_url(base_url)
        for end in ("/chat/completions", "/completions"):
            base_url = base_url.removesuffix(end)
        self._url, self._model, self._timeout = base_url, model, timeout
        self.address = address(base_url)
        self.name = f"{self.address} {model}"
        self._listed = list(_LISTED)
        self._owner = ""

    def open(self) -> dict[str, Any]:
        """What the server tells of itself, without secrets; refuses one that does not answer."""
        facts: dict[str, Any] = {"base_url": self.address, "model": self._model}
        with suppress(RefusedError):
            models = self._call("models", None, self._timeout)
            facts["models"] = models
            with suppress(LookupError, TypeError):
                self._owner = str(models["data"][0]["owned_by"]).lower().replace(".", "")
        root = self._url.removesuffix("/v1")
        for path in _FACTS:
            with suppress(NoReplyError):
                facts[path] = self._call(f"{root}/{path}", None, _FACTS_SECONDS)
        return dict(_harmless(facts))

    def ask(
        self, questions: Sequence[Question], concurrency: int, listing: bool, cold: bool = False
    ) -> Iterator[tuple[int, Reply]]:
        """Index and answer of each question as it arrives, `concurrency` under way at a time."""
        failure: BaseException | None = None
        with ThreadPoolExecutor(concurrency) as pool:
            futures = {
                pool.submit(self._answer, question, listing, cold): index
                for index, question in enumerate(questions)
            }
            try:
                for future in as_completed(futures):
                    if future.cancelled():
                        continue
                    if error := future.exception():  # answers that are under way still count
                        failure = failure or error
                        pool.shutdown(wait=False, cancel_futures=True)
                    else:
                        yield futures[future], future.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
        if failure:
            raise failure

    def request(self, question: Question) -> tuple[str, dict[str, Any]]:
        """Path and body: messages, which the server renders, or a text to complete."""
        settings, path = question.settings, "completions"
        body: dict[str, Any] = {"model": self._model}
        if messages := chat_of(question.prompt):
            path = "chat/completions"
            if question.begun:
                messages.append({"role": "assistant", "content": question.begun})
            body |= _GO_ON if messages[-1]["role"] == "assistant" else {}
            body["messages"] = messages
        else:
            body["prompt"] = question.prompt + question.begun
        body |= {"max_tokens": settings["max_gen_toks"], "temperature": 0, "seed": 0}
        return path, body | ({"stop": settings["until"]} if settings["until"] else {})

    def _answer(self, question: Question, listing: bool, cold: bool) -> Reply:
        path, body = self.request(question)
        if cold:
            body |= _COLD.get(self._owner, {})
            if "cache_salt" in body:
                body["cache_salt"] = f"audit-{os.getpid()}-{next(_ATTEMPTS)}"
        while True:
            count = self._listed[0] if listing else 0
            of_chat = {"logprobs": True, "top_logprobs": count}
            asked = of_chat if "messages" in body else {"logprobs": count}
            started = time.perf_counter()
            try:
                reply = self._call(path, body | (asked if count else {}), self._timeout)
            except RefusedError:
                if not count and question.begun:
                    return Reply("")  # it cannot go on with an answer
                if not count:
                    raise
                if self._listed[0] == count:  # no other thread has learnt it meanwhile
                    self._listed.remove(count)
                continue
            try:
                return parsed(reply, time.perf_counter() - started)
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                shown = one_line(json.dumps(reply))
                raise NoReplyError(
                    f"{self.name}: its reply is not a completion: {shown}"
                ) from error

    def _call(self, path: str, body: dict[str, Any] | None, seconds: float) -> Any:
        """As `openai_api.request`; errors name this side."""
        url = path if "://" in path else f"{self._url}/{path}"
        try:
            return openai_api.request(url, body, seconds)
        except NoReplyError as error:
            raise type(error)(f"{self.name}: {error}") from error


def _harmless(value: Any, name: str = "") -> Any:
    """A server's own words without what may be secret."""
    if isinstance(value, dict):
        shown = {str(key): _harmless(inner, str(key)) for key, inner in value.items()}
        return {key: inner for key, inner in shown.items() if not looks_secret(key)}
    if isinstance(value, list):
        return [_harmless(inner) for inner in value]
    return masked(value) if isinstance(value, str) else value


def parsed(reply: dict[str, Any], seconds: float | None = None) -> Reply:
    """A completion as a `Reply`; any of LookupError, TypeError and ValueError if it is none."""
    choice = reply["choices"][0]
    if "message" in choice:
        message = choice["message"]
        names = "reasoning_content", "reasoning", "content"
        text = "".join(message.get(name) or "" for name in names)
    else:
        text = choice["text"]
    if not isinstance(text, str):
        raise TypeError("a text is expected")
    known = reported(reply, TurnCounts(latency_seconds=seconds))
    counts, timings = known.counts, reply.get("timings") or {}  # llama.cpp's
    if drafted := timings.get("draft_n"):
        drafts = DraftCounts(0, drafted, timings.get("draft_n_accepted") or 0)
        counts = replace(counts, drafts={"unknown": drafts})
    return Reply(
        text=without_secrets(text),
        finish_reason=choice.get("finish_reason"),
        tokens=_tokens(choice.get("logprobs") or {}, text),
        token_ids=known.token_ids,
        counts=counts,
    )


def _tokens(logprobs: dict[str, Any], text: str) -> tuple[Token, ...]:
    """The tokens of `text`, as chats list them or as completions do; empty if they do not fit."""
    if logprobs.get("content"):
        places = logprobs["content"]
        names = [place["token"] for place in places]
        listed = [
            {top["token"]: float(top["logprob"]) for top in (*place.get("top_logprobs", ()), place)}
            for place in places
        ]
        pieces = _pieces(places, text)
    else:
        names, chosen = logprobs.get("tokens") or [], logprobs.get("token_logprobs") or []
        tops = logprobs.get("top_logprobs") or [None] * len(names)
        listed = [
            {**(top or {}), name: float(logprob)}
            for name, logprob, top in zip(names, chosen, tops, strict=True)
        ]
        pieces = _visible(names, text) or _by_offset(logprobs.get("text_offset") or [], text)
    if len(pieces) != len(names) or not names:
        return ()
    if pieces[0] != names[0] and pieces[0] == names[0].lstrip():  # a tokenizer that adds a space
        names[0] = names[0].lstrip()
        listed[0] = {name.lstrip(): logprob for name, logprob in listed[0].items()}
    return tuple(map(Token, pieces, names, listed))


def _pieces(places: Sequence[dict[str, Any]], text: str) -> list[str]:
    """What each token adds to `text`: a character of several tokens comes with the last one."""
    if all(place.get("bytes") is not None for place in places):
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return _visible([decoder.decode(bytes(place["bytes"])) for place in places], text)
    return _visible([place["token"] for place in places], text)


def _visible(names: Sequence[str], text: str) -> list[str]:
    """Names, up to the end of `text`; then "" for ends and stop strings; empty if they differ.

    >>> _visible(["a", " b", "</s>"], "a b"), _visible([" a", "b"], "ab"), _visible(["c"], "ab")
    (['a', ' b', ''], ['a', 'b'], [])
    """
    pieces, start = list[str](), 0
    for name in names:
        piece = name if start or text.startswith(name) else name.lstrip()
        if not text.startswith(piece, start):
            piece = text[start:] if piece.startswith(text[start:]) else ""
            if start + len(piece) < len(text):
                return []
        pieces.append(piece)
        start += len(piece)
    return pieces if start == len(text) else []


def _by_offset(offsets: Sequence[int], text: str) -> list[str]:
    starts = [offset - offsets[0] for offset in offsets]
    return [text[i:j] for i, j in itertools.pairwise([*starts, len(text)])]
