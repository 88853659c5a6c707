"""Sends the first request of cases.json again, to side A and to side B; needs Python alone.

    python reproduce.py [URL of A] [URL of B]

By default the servers of the audit are asked. A key is read from OPENAI_API_KEY.
"""

import itertools
import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any


def text_of(reply: dict[str, Any]) -> str:
    choice = reply["choices"][0]
    message = choice.get("message") or {"content": choice.get("text")}
    names = ("reasoning_content", "reasoning", "content")
    return "".join(message.get(name) or "" for name in names)


def ask(url: str, body: dict[str, Any]) -> str:
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as response:
        return text_of(json.load(response))


def main() -> int:
    """Exit code 1 if the two answers differ, 2 if there are not two servers to ask."""
    [case, *_] = json.loads(Path(__file__).with_name("cases.json").read_text("utf-8"))
    print(f"{case['task']} document {case['doc_id']} turn {case['turn']}: {case['kind']}")
    answers = {}
    for letter, given in zip("ab", [*sys.argv[1:], None, None], strict=False):
        request = case["requests"].get(letter)
        if request is None:
            print(f"{letter.upper()} was no server: ask it the prompt in cases.json")
            return 2
        url = f"{given or request['base_url']}/{request['path']}"
        answers[letter] = ask(url, request["body"])
        same = answers[letter] == case[f"answer_{letter}"]
        print(f"{letter.upper()}: {'as in the audit' if same else 'NOT as in the audit'}")
        print(answers[letter])
    if answers["a"] == answers["b"]:
        print("both answers are the same this time")
        return 0
    equal = itertools.takewhile(
        lambda both: both[0] == both[1], zip(*answers.values(), strict=False)
    )
    position = len(list(equal))
    print(f"they differ from character {position} on")
    return 1


if __name__ == "__main__":
    sys.exit(main())
