"""Files of an audit: the page, JUnit's XML for CI, and the bundle for a bug report."""

import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jinja2

from copyspec_eval import journal, provenance
from copyspec_eval.audit import findings
from copyspec_eval.audit.asking import Asking, Pair
from copyspec_eval.audit.server import ServerSide
from copyspec_eval.redaction import shareable, without_secrets

_CASES = 5  # of a bundle, the worst first
_AROUND = 4  # tokens before and after the difference whose log-probabilities a bundle has
_FIXED_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip has, so that bundles compare


def write(asking: Asking, result: dict[str, Any], folder: Path) -> None:
    """Write `findings.json`, `audit.html`, `junit.xml` and, if answers differ, `bug_report.zip`."""
    journal.replace(folder / "findings.json", json.dumps(result, indent=2, ensure_ascii=False))
    journal.replace(folder / "audit.html", page(result))
    journal.replace(folder / "junit.xml", junit(result))
    if pairs := findings.worst(asking.pairs)[:_CASES]:
        journal.replace(folder / "bug_report.zip", bundle(asking, result, pairs))


def page(result: dict[str, Any]) -> str:
    """One HTML file that works offline."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["percent"] = lambda value: f"{value:.1%}"
    return environment.from_string(_source("page.html")).render(
        result=result,
        lines=findings.lines(result, Path())[2:-1],
        headline=findings.lines(result, Path())[0],
        names=findings.NAMES,
        style=(resources.files("copyspec_eval.reports.page") / "style.css").read_text("utf-8"),
    )


def _source(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def junit(result: dict[str, Any]) -> str:
    """A test case per task and concurrency: it fails if broken, and is an error if undecided."""
    suites = ElementTree.Element("testsuites", name="copyspec-eval audit")
    for task in dict.fromkeys(each["task"] for each in result["settings"]):
        cases = [each for each in result["settings"] if each["task"] == task]
        verdicts = [each["verdict"] for each in cases]
        suite = ElementTree.SubElement(
            suites,
            "testsuite",
            name=str(task),
            tests=str(len(cases)),
            failures=str(verdicts.count("broken")),
            errors=str(verdicts.count("undecided")),
        )
        for each in cases:
            name = f"concurrency {each['concurrency']}"
            element = ElementTree.SubElement(suite, "testcase", classname=str(task), name=name)
            tag = {"broken": "failure", "undecided": "error"}.get(each["verdict"])
            counts = {kind: count for kind, count in each["counts"].items() if count}
            if tag:
                text = ", ".join(f"{count} {kind}" for kind, count in counts.items())
                ElementTree.SubElement(element, tag, message=text).text = _cases(result, each)
    ElementTree.indent(suites)
    text = ElementTree.tostring(suites, encoding="unicode", xml_declaration=True)
    return "".join(c for c in text if c.isprintable() or c in "\n\t") + "\n"


def _cases(result: dict[str, Any], setting: dict[str, Any]) -> str:
    named = [
        f"doc {each['doc_id']} turn {each['turn']}: {each['kind']} ({each['reason']}): "
        f"A {each['a']!a}, B {each['b']!a}"
        for each in result["cases"]
        if (each["task"], each["concurrency"]) == (setting["task"], setting["concurrency"])
        and each["kind"] != "near_tie"
    ]
    return "\n".join(named)


def bundle(asking: Asking, result: dict[str, Any], pairs: Sequence[Pair]) -> bytes:
    """The zip: cases with prompts, answers and readings, both sides, versions, `reproduce.py`."""
    known = {name: result[name] for name in ("verdict", "a", "b", "counts", "noise", "requests")}
    known |= {"versions": provenance.versions(), "settings": result["settings"]}
    cases = [_whole(asking, pair) for pair in pairs]
    files = {
        "README.txt": _README,
        # A folder's name can reveal too much; but a request has to stay what it was.
        "audit.json": "\n".join(map(shareable, json.dumps(known, indent=2).split("\n"))),
        "cases.json": without_secrets(json.dumps(cases, indent=2)),
        "reproduce.py": _source("reproduce.py"),
    }
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name, _FIXED_DATE), text)
    return content.getvalue()


_README = """A bug report by `copyspec-eval audit`: two engines, one model, other greedy answers.

cases.json    prompts, both answers, A's log-probabilities around the first difference, the verdict
audit.json    both sides as far as they are known, versions, counts, A's noise
reproduce.py  sends the first case's request again: python reproduce.py [URL of A] [URL of B]
"""


def _whole(asking: Asking, pair: Pair) -> dict[str, Any]:
    whole = findings.case(pair) | {"prompt": pair.question.prompt, "requests": {}}
    for letter, reply in (("a", pair.a), ("b", pair.b)):
        side = asking.sides[letter]
        if isinstance(side, ServerSide):
            path, body = side.request(pair.question)
            whole["requests"][letter] = {"base_url": side.address, "path": path, "body": body}
        whole[f"answer_{letter}"] = reply.text
        whole[f"finish_reason_{letter}"] = reply.finish_reason
        whole[f"answers_again_{letter}"] = [each.text for each in pair.again[letter]]
    gap = pair.verdict.gap
    if gap:
        part = pair.a.tokens[max(0, gap.index - _AROUND) : gap.index + _AROUND + 1]
        whole["readings"] = [asdict(token) for token in part]
    return whole
