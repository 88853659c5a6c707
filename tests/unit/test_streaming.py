"""`stream`: the pieces of `generate`'s answer, an end when nobody reads on, and its errors."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from byte_model import loaded

from copyspec_eval import Answer, generate, stream
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.errors import OptionError, RequestError

TEXT = "to be or not to be, that is the question: to be or not to"


@pytest.fixture(scope="module")
def given(byte_model: Path) -> tuple[Any, Any]:
    return loaded(byte_model)


def read(generator: Any) -> tuple[list[str], Answer]:
    """All pieces, and the answer after them."""
    pieces = []
    while True:
        try:
            pieces.append(next(generator))
        except StopIteration as end:
            return pieces, end.value


@pytest.mark.parametrize(
    "options",
    [{}, {"drafter": "none"}, {"do_sample": True, "seed": 3, "temperature": 3.0}, {"stop": ""}],
    ids=str,
)
def test_the_pieces_are_the_text_of_generate(
    given: tuple[Any, Any], options: dict[str, Any]
) -> None:
    options = {"max_new_tokens": 60} | options
    if "stop" in options:  # in the middle, and of several tokens, some of which it must hold back
        [whole] = generate(*given, TEXT, max_new_tokens=60)
        options["stop"] = [whole.text[20:24], "never in it"]
    [expected] = generate(*given, TEXT, **options)
    pieces, answer = read(stream(*given, TEXT, **options))
    assert "".join(pieces) == answer.text == expected.text
    assert answer.token_ids == expected.token_ids
    assert all(pieces)
    assert len(pieces) > 3


def test_a_character_of_several_tokens_is_one_piece(
    given: tuple[Any, Any], monkeypatch: Any
) -> None:
    model, tokenizer = given
    [answer] = generate(model, tokenizer, TEXT, max_new_tokens=11, drafter="none")
    shown, decode = tokenizer("aé€😀b")["input_ids"], tokenizer.decode
    assert len(shown) == 11, "a token is a byte"

    def show(token_ids: Any, **options: Any) -> Any:
        """As if the answer had been that text."""
        is_answer = answer.token_ids[: len(token_ids)] == tuple(token_ids)
        return decode(shown[: len(token_ids)] if is_answer else token_ids, **options)

    monkeypatch.setattr(tokenizer, "decode", show)
    pieces, _ = read(stream(model, tokenizer, TEXT, max_new_tokens=11, drafter="none"))
    assert pieces == [*"aé€😀b"]


def is_decoding() -> bool:
    return any(thread.name == "copyspec_eval.stream" for thread in threading.enumerate())


def test_closing_ends_decoding(given: tuple[Any, Any]) -> None:
    forwards: list[int] = []
    handle = given[0].get_input_embeddings().register_forward_hook(lambda *_: forwards.append(1))
    pieces = stream(*given, TEXT, max_new_tokens=1500, drafter="none", exact=False)
    next(pieces)
    assert is_decoding()
    pieces.close()
    handle.remove()
    assert not is_decoding()
    assert 0 < len(forwards) < 1000
    assert generate(*given, TEXT, max_new_tokens=4), "the model is free again"


def test_errors_reach_the_caller(given: tuple[Any, Any], monkeypatch: Any) -> None:
    for options, message in (
        ({"drafter": "nope"}, "unknown drafter 'nope'"),
        ({"streamer": object()}, "leave streamer out"),
    ):
        with pytest.raises(OptionError, match=message):
            next(stream(*given, TEXT, **options))
    with pytest.raises(RequestError, match="there is no prompt; pass prompt="):
        next(stream("no/such"))
    with pytest.raises(OptionError, match="is for one prompt, not 2"):
        next(stream(*given, [TEXT, TEXT]))  # type: ignore[list-item]

    def fail(*_: Any) -> None:
        raise ZeroDivisionError("in the middle")

    pieces = stream(*given, TEXT, max_new_tokens=500, drafter="none")
    next(pieces)
    monkeypatch.setattr(Sequence, "commit", fail)
    with pytest.raises(ZeroDivisionError, match="in the middle"):
        list(pieces)
    monkeypatch.undo()
    assert generate(*given, TEXT, max_new_tokens=4), "the model is free again"


def test_a_streamer_cannot_stream_from_its_own_model(given: tuple[Any, Any]) -> None:
    within = SimpleNamespace(put=lambda token_ids: next(stream(*given, TEXT)), end=lambda: None)
    with pytest.raises(RequestError, match="generating already, in this thread"):
        generate(*given, TEXT, max_new_tokens=9, streamer=within)


def test_another_thread_may_read_on(given: tuple[Any, Any]) -> None:
    """As a web server does, which takes a thread for each piece."""
    pieces, rest = stream(*given, TEXT, max_new_tokens=30), list[str]()
    first = next(pieces)
    thread = threading.Thread(target=lambda: rest.extend(pieces))
    thread.start()
    thread.join()
    assert first + "".join(rest) == generate(*given, TEXT, max_new_tokens=30)[0].text


def test_autocast_is_the_callers(given: tuple[Any, Any]) -> None:
    model, tokenizer = given
    with torch.autocast("cpu", torch.bfloat16):
        [expected] = generate(model, tokenizer, TEXT, max_new_tokens=5, exact=False)
        types: list[torch.dtype] = []
        head = model.get_output_embeddings()
        hook = head.register_forward_hook(lambda _, __, output: types.append(output.dtype))
        assert read(stream(model, tokenizer, TEXT, max_new_tokens=5, exact=False))[1] is not None
        hook.remove()
    assert expected.text is not None
    assert set(types) == {torch.bfloat16}
