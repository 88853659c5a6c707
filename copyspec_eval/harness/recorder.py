"""What a run leaves in its folder: the rows of `turns.jsonl`, the manifest, and the table."""

import gc
import hashlib
import inspect
import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lm_eval.api.instance import Instance
from tqdm import tqdm

from copyspec_eval import provenance, records
from copyspec_eval.decoding.model_copy import weights_hash
from copyspec_eval.errors import report_errors_in_one_line
from copyspec_eval.harness import evaluation
from copyspec_eval.harness.backends import TimedAnswer
from copyspec_eval.harness.recorded import command, recorded
from copyspec_eval.manifest import RunManifest, RunSpec, write_manifest
from copyspec_eval.redaction import masked
from copyspec_eval.reports.tables import run_figures
from copyspec_eval.session.span_characters import span_characters

report_errors_in_one_line()
# Under lm-eval's own logger, so that its verbosity and its handler are ours too.
logger = logging.getLogger("lm_eval.copyspec")
# Fields of their own in a `RunSpec`.
_ELSEWHERE = {"self", "pretrained", "model", "device", "dtype", "batch_size"}


class Asked(NamedTuple):
    """One answer that lm-eval asked for: a repeat of an instance, its prompt and settings."""

    instance: Instance
    repeat: int
    prompt: str
    settings: dict[str, Any]


@dataclass
class RunRecorder:
    """Records a run's rows, in lm-eval's output folder if any; another `RunSpec` is another run."""

    rank: int
    world_size: int
    run_id: str = field(default_factory=provenance.new_run_id)
    rows: list[records.TurnRecord] = field(default_factory=list)
    folder: Path | None = None
    spec: RunSpec | None = None

    def begin(self, spec: RunSpec) -> None:
        """Write the manifest of the evaluation under way; a later call adds its tasks to it."""
        folder, earlier = evaluation.output_folder(), self.spec
        if earlier is not None:
            if (folder, replace(spec, tasks={})) == (self.folder, replace(earlier, tasks={})):
                spec = replace(spec, tasks=earlier.tasks | spec.tasks)
            else:
                self.run_id, self.rows = provenance.new_run_id(), []
        if folder is not None and self.rank == 0 and (folder, spec) != (self.folder, earlier):
            name = command() or Path(sys.argv[0]).name
            settings = (name, spec, evaluation.num_answers())
            write_manifest(folder, RunManifest(self.run_id, provenance.started_at(), *settings))
        self.folder, self.spec = folder, spec

    def add(
        self,
        asked: Asked,
        text: str,
        answer: TimedAnswer,
        decode: Callable[[Sequence[int]], str] | None = None,
        **settings: Any,
    ) -> records.RecordedText:
        """Record an answer, with `settings` of `TurnRecord` and, by `decode`, copies' places."""
        prompt, whole_text, reported = asked.prompt, text, answer._asdict()
        places: tuple[records.SpanCharacters, ...] = ()
        ids = reported.pop("prompt_ids"), answer.token_ids or ()
        if decode is not None:
            prompt, whole_text, places = span_characters(decode, *ids, answer.spans)
        instance, task = asked.instance, asked.instance.task_name or ""
        document = evaluation.document_number(task, instance.doc_id)
        category = instance.doc.get("category", "") if isinstance(instance.doc, dict) else ""
        generation = sorted(recorded(asked.settings).items())
        row = records.TurnRecord(
            run_id=self.run_id,
            rank=self.rank,
            task=task,
            doc_id=-1 if document is None else document,
            turn=getattr(instance, "turn", 1),
            repeat=asked.repeat,
            category=str(category),
            prompt_sha256=hashlib.sha256(asked.prompt.encode()).hexdigest(),
            generation=", ".join(f"{k}={v}" for k, v in generation if k != "until"),
            prompt=prompt,
            text=text,
            answer=whole_text,
            span_characters=places,
            **reported,
            **settings,
        )
        self.rows.append(row)
        if self.folder is not None:
            records.append(records.records_file(self.folder, self.rank), row)
        return records.RecordedText(text, row)

    def report(self) -> dict[str, Any]:
        """Figures of the run's rows, of all ranks if they went to a folder; else this rank's."""
        rows = list(self.rows)
        if self.folder is not None and self.world_size > 1:
            of_run = (r for r in records.read_folder(self.folder, []) if r.run_id == self.run_id)
            rows += [row for row in of_run if row.rank != self.rank]
        if rows:
            evaluation.ended(rows)
        return {"run_id": self.run_id, "figures": run_figures(rows)}


class Answers:
    """The answers to one `generate_until`, each `asked` once; the bar shows their speed."""

    def __init__(self, lm: Any, requests: Sequence[Instance], disable_bar: bool) -> None:
        self._lm = lm
        self._disable_bar = disable_bar or lm.rank != 0
        # lm-eval lists an instance `repeats` times, and the last one again for each document that
        # other ranks have more; these get the answer that is there.
        times: Counter[int] = Counter()
        self._keys: list[tuple[int, int]] = []
        asked: dict[tuple[int, int], Asked] = {}
        for request in requests:
            key = id(request), times[id(request)] % (request.repeats or 1)
            if key not in asked:
                prompt, settings, *_ = request.args
                if not isinstance(prompt, str):  # a chat API's messages
                    prompt = json.dumps(prompt, ensure_ascii=False)
                asked[key] = Asked(request, key[1], prompt, settings)
            self._keys.append(key)
            times[id(request)] += 1
        self.asked = list(asked.values())
        self._texts: dict[tuple[int, int], records.RecordedText] = {}
        self._tokens, self._seconds = 0, 0.0

    @contextmanager
    def bar(self) -> Iterator[None]:
        """Show how many are answered, while none waits until all that was loaded is looked through.

        Python's collector does that now and then: 0.4 s with what lm-eval loads, within one answer.
        """
        total, disable = len(self.asked), self._disable_bar
        gc.freeze()
        try:
            with tqdm(total=total, disable=disable, desc="Answering", unit="answer") as self._bar:
                yield
        finally:
            gc.unfreeze()

    def add(self, asked: Asked, text: records.RecordedText) -> None:
        """One more answer; lm-eval's `--use_cache` writes it at once, so that no kill loses it."""
        self._texts[id(asked.instance), asked.repeat] = text
        cache = self._lm.cache_hook
        cache.add_partial("generate_until", asked.instance.args, text)
        if cache.dbdict is not None:
            cache.dbdict.commit(blocking=True)
        counts = text.record.counts
        if counts.num_tokens and counts.seconds:
            self._tokens += counts.num_tokens
            self._seconds += counts.seconds
            self._bar.set_postfix_str(
                f"{self._tokens / self._seconds:,.0f} tokens/s", refresh=False
            )
        self._bar.update()

    def texts(self) -> list[str]:
        return [self._texts[key] for key in self._keys]


def run_spec(
    lm: Any,
    model: object,
    arguments: Mapping[str, Any],
    asked: Iterable[Asked],
    processors: Callable[[dict[str, Any]], Collection[str] | None],
    drafting: Mapping[str, Any] | None = None,
    **settings: Any,
) -> RunSpec:
    """What `lm`, which loaded `model` by the user's `arguments`, is asked in this evaluation."""
    loaded = getattr(lm, "model", None)
    config = getattr(loaded, "config", None)
    requests = {each.instance.task_name or "": each.settings for each in asked}
    tasks = evaluation.task_settings(set(requests))
    for task, requested in requests.items():
        tasks[task] = tasks.get(task, {}) | {"logits_processors": processors(requested)}
    return RunSpec(
        model=masked(model) if isinstance(model, str) else f"({type(loaded).__name__})",
        model_args=_resolved(lm, arguments, config, _ELSEWHERE | set(drafting or ())),
        drafting=_plain(dict(drafting or {})),
        device=str(getattr(lm, "device", "unknown")),
        dtype=str(getattr(loaded, "dtype", "unknown")).removeprefix("torch."),
        weights=weights_hash(loaded) if isinstance(loaded, torch.nn.Module) else None,
        quantization=_plain(getattr(config, "quantization_config", None)),
        ranks=lm.world_size,
        threads=torch.get_num_threads(),
        hardware=provenance.hardware(),
        environment=provenance.kernel_environment(),
        versions=provenance.versions(),
        code=provenance.code_commit(),
        evaluation=_plain(evaluation.evaluation_settings()),
        tasks=_plain({task: tasks[task] for task in requests}),
        **settings,
    )


def _resolved(
    lm: Any, arguments: Mapping[str, Any], config: Any, without: Collection[str]
) -> dict[str, Any]:
    """Every argument of the model's class: what it became in loading, was given, or its default."""
    defaults: dict[str, Any] = {}
    for each in reversed(type(lm).__mro__):
        if each is not object and (constructor := vars(each).get("__init__")):
            parameters = inspect.signature(constructor).parameters.values()
            defaults |= {p.name: p.default for p in parameters if p.default is not p.empty}
    values = {**defaults, **arguments}
    for name in values:
        attribute = inspect.getattr_static(lm, name, None)
        if attribute is not None and not callable(attribute):
            resolved = getattr(lm, name)
            if resolved is None or isinstance(resolved, str | int | float | torch.dtype):
                values[name] = resolved
    shown = {name: _plain(value) for name, value in sorted(values.items()) if name not in without}
    return recorded(shown, {*defaults, *getattr(config, "__dict__", ())})


def _plain(value: Any) -> Any:
    """A JSON value; an object becomes its `to_dict`, or the name of its type."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.dtype | torch.device | Path):
        return str(value).removeprefix("torch.")
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return _plain(value.to_dict()) if hasattr(value, "to_dict") else f"({type(value).__name__})"
