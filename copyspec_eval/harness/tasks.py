"""The classes that the files in `tasks/` name in `class: !function …`, except EvalPlus's."""

import bisect
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from datasets import load_dataset
from lm_eval.api.model import TemplateLM
from lm_eval.models.api_models import TemplateAPI
from lm_eval.models.utils import normalize_gen_kwargs

from copyspec_eval import sources
from copyspec_eval.errors import DataError, OptionError, needing
from copyspec_eval.harness import reference_prompts
from copyspec_eval.harness.multiturn import MultiTurnTask, TurnInstance
from copyspec_eval.paths import DATA_DIR_VARIABLE, data_dir, tasks_dir
from copyspec_eval.sandbox import programs
from copyspec_eval.scoring import cnn_dailymail, gsm8k
from copyspec_eval.sources import JsonLine

logger = logging.getLogger("lm_eval.copyspec")
QUICKSTART = "copyspec_quickstart"
# For a name that no adapter knows, as in the paper's copy of FastChat
# (`BaseModelAdapter.get_default_conv_template`). FastChat itself takes `one_shot`.
_FALLBACK = "zero_shot"
GSM8K = ("openai/gsm8k", "main", "gsm8k/test.jsonl")
PROGRAM_PROMPTS = (
    "Solve this problem with a Python program:\n\n{question}\n\n"
    "Put the program into a ```python block. It has to print the solution, and nothing else. It "
    "must not ask for input. Neither repeat the problem nor write comments.",
    "Go over the code again. Look for issues that could lead to a wrong final answer. If there are "
    "none, change nothing.",
    "Now give the code that you consider correct, in a ```python block. If the first version was "
    "correct, keep it as it was.",
)
SCORED_TURNS = (1, 3)
CNN_DAILYMAIL = ("abisee/cnn_dailymail", "3.0.0", "cnn_dailymail/*.jsonl")
# The instruction comes last, since lm-eval cuts prompts at the front.
ARTICLE_PROMPT = (
    "Article:\n{article}\n\nPick the 2 or 3 sentences of this article that best sum it up. Copy "
    "them word for word, and write nothing else."
)


class QuestionFileTask(MultiTurnTask):
    """Conversations of a FastChat-style question file, `dataset_kwargs: {questions: FILE}`.

    FILE is one of `copyspec_eval.sources.FILES`, or a path (docs/tasks.md). With
    `prompts: fastchat`, FastChat's template renders the prompts, as in the paper's code.
    """

    def documents(self, dataset_kwargs: dict[str, Any]) -> list[dict[str, Any]]:
        name, prompts = dataset_kwargs.get("questions"), dataset_kwargs.get("prompts")
        is_known = dataset_kwargs.keys() <= {"questions", "prompts"}
        if not isinstance(name, str) or not is_known or prompts not in (None, "fastchat"):
            raise OptionError(
                f"{self.config.task}: dataset_kwargs {dataset_kwargs!r}; give questions: FILE, and "
                "prompts: fastchat or nothing else"
            )
        if prompts:
            template = template_of_run(self.config.metadata or {})
            self.new_request = partial(FastChatInstance, template)
        path = sources.locate(name) if name in sources.FILES else Path(name).expanduser()
        if not path.is_file():
            raise DataError(
                f"{path}: no such file; give a path from the folder that lm_eval is started in, or "
                f"one of {', '.join(file for file in sources.FILES if 'question' in file)}"
            )
        return [dict(question) for question in sources.read_questions(path)]


def template_of_run(metadata: Mapping[str, Any]) -> str:
    """The name of FastChat's conversation template, in which the paper's code asks MT-Bench.

    FastChat's adapters choose it by the model's name, or `--metadata '{"template": "NAME"}'` does:
    a task's `metadata` has the model's arguments too.
    """
    with needing("FastChat", "prompts: fastchat", "judge"):
        from fastchat.conversation import conv_templates
        from fastchat.model.model_adapter import BaseModelAdapter, get_model_adapter

    model = str(metadata.get("pretrained") or metadata.get("model") or "")
    if (name := metadata.get("template")) is None:
        adapter = get_model_adapter(model)
        is_known = type(adapter) is not BaseModelAdapter
        return str(adapter.get_default_conv_template(model).name) if is_known else _FALLBACK
    if name not in conv_templates:
        raise OptionError(
            f"FastChat has no template {name!r}; use one of fastchat.conversation.conv_templates, "
            f"e.g. {_FALLBACK} or qwen-7b-chat"
        )
    return str(name)


class FastChatInstance(TurnInstance):
    """The request for one turn, whose prompt is the whole text of FastChat's template.

    Earlier answers are put in as the reference does: cut at the template's stop string, stripped.
    """

    def __init__(self, template: str, *args: Any) -> None:
        super().__init__(*args)
        self.template = template

    def prompt(self) -> str:
        from fastchat.conversation import get_conv_template

        if self.chat_template and not isinstance(self.chat_template(self.messages()), str):
            raise OptionError(
                "FastChat's template renders the whole prompt, which a chat server does not take; "
                "use a backend that takes text, or the task without _paper"
            )
        conversation = get_conv_template(self.template)
        stops = conversation.stop_str or []
        for message in self.messages():
            role, text = message["role"], message["content"]
            if role == "system":
                conversation.set_system_message(text)
            elif role == "user":
                conversation.append_message(conversation.roles[0], text)
                conversation.append_message(conversation.roles[1], None)
            else:  # up to the first stop string that is not at its beginning
                ends = map(text.find, [stops] if isinstance(stops, str) else stops)
                cut = min((end for end in ends if end > 0), default=None)
                conversation.update_last_message(text[:cut].strip())
        return str(conversation.get_prompt())


class GSM8KSelfCorrectionTask(MultiTurnTask):
    """Three turns per problem; the programs of the first and the last one are run, all at the end.

    `dataset_kwargs: {prompts: reference}` asks in the words of the paper's own code.
    """

    def documents(self, dataset_kwargs: dict[str, Any]) -> list[dict[str, Any]]:
        is_reference = reference_prompts.is_reference(dataset_kwargs)
        self._prompts = reference_prompts.gsm8k_prompts() if is_reference else PROGRAM_PROMPTS
        problems = []
        for where, row in read_test_split(*GSM8K, ("question", "answer")):
            try:
                gsm8k.gold_number(row["answer"])
            except ValueError as error:
                raise DataError(
                    f"{where}: answer does not end in #### and a number; copy the file again"
                ) from error
            problems.append(row)
        return problems

    def user_turns(self, doc: dict[str, Any]) -> list[str]:
        return [prompt.replace("{question}", doc["question"]) for prompt in self._prompts]

    def doc_to_target(self, doc: dict[str, Any], doc_to_target: Any = None) -> str:
        return str(gsm8k.gold_number(doc["answer"]))

    def score_names(self) -> dict[str, bool]:
        higher_is_better = {"acc_turn1": True, "acc_turn3": True, "wrong_to_right": True}
        return super().score_names() | higher_is_better | {"right_to_wrong": False}

    def check_scoring(self) -> None:
        programs.level()

    def prepare_scores(self) -> None:
        scored = [each for each in self._instances if each.turn in SCORED_TURNS]
        answers = [(i, str(text or "")) for i in scored for text in i.filtered_resps.values()]
        sources = [source for _, text in answers if (source := gsm8k.extract_program(text))]
        self._outcomes = dict(zip(sources, programs.run_all(sources), strict=True))
        verdicts = {turn: Counter[str]() for turn in SCORED_TURNS}
        for instance, answer in answers:
            verdicts[instance.turn][self._verdict(instance.doc, answer)] += 1
        for turn, counts in verdicts.items():
            listed = ", ".join(f"{count} {reason}" for reason, count in counts.most_common(10))
            logger.info("programs of turn %d: %s", turn, listed)

    def score(self, doc: dict[str, Any], answers: list[str]) -> dict[str, float]:
        verdicts = [self._verdict(doc, answers[turn - 1]) for turn in SCORED_TURNS]
        first, last = (verdict == gsm8k.RIGHT for verdict in verdicts)
        return super().score(doc, answers) | {
            "acc_turn1": float(first),
            "acc_turn3": float(last),
            "right_to_wrong": float(first and not last),
            "wrong_to_right": float(last and not first),
        }

    def _verdict(self, doc: dict[str, Any], answer: str) -> str:
        program = gsm8k.extract_program(answer)
        outcome = None if program is None else self._outcomes[program]
        return gsm8k.verdict(outcome, gsm8k.gold_number(doc["answer"]))


class CnnDailyMailTask(MultiTurnTask):
    """One turn: an article, and what to do with it; scored by ROUGE and by what is verbatim.

    `dataset_kwargs: {prompts: reference}` asks in the words of the paper's own code, and adds ROUGE
    as that code takes it.
    """

    def documents(self, dataset_kwargs: dict[str, Any]) -> list[dict[str, Any]]:
        self._is_reference = reference_prompts.is_reference(dataset_kwargs)
        self._prompt = reference_prompts.summary_prompt() if self._is_reference else ARTICLE_PROMPT
        articles = read_test_split(*CNN_DAILYMAIL, ("id", "article", "highlights"))
        return [article.fields for article in articles]

    def user_turns(self, doc: dict[str, Any]) -> list[str]:
        return [self._prompt.replace("{article}", doc["article"])]

    def doc_to_target(self, doc: dict[str, Any], doc_to_target: Any = None) -> str:
        return str(doc["highlights"])

    def score_names(self) -> dict[str, bool]:
        return dict.fromkeys(cnn_dailymail.SCORES, True)

    def score(self, doc: dict[str, Any], answers: list[str]) -> dict[str, float]:
        [summary] = answers
        texts = summary, doc["article"], doc["highlights"]
        return cnn_dailymail.score_summary(*texts, unstemmed=self._is_reference)

    def build_all_requests(self, **kwargs: Any) -> None:
        """As `MultiTurnTask`; then cut the ends of articles that do not fit the model's context."""
        super().build_all_requests(**kwargs)
        # lm-eval shows a task this method of the model, and nothing else.
        lm = getattr(kwargs.get("chat_template"), "__self__", None)
        # lm-eval does not know the context of a server's model: it says 2,048 tokens for all.
        if isinstance(lm, TemplateLM) and not isinstance(lm, TemplateAPI):
            for instance in self._instances:
                _cut_to_fit(instance, lm, self._prompt)


def _cut_to_fit(instance: TurnInstance, lm: TemplateLM, prompt: str) -> None:
    """Cut words off the article's end until the prompt fits `lm`'s context; the first one stays."""
    _, settings = instance.args
    room = lm.max_length - normalize_gen_kwargs(settings, lm.max_gen_toks)["max_gen_toks"]
    article = instance.doc["article"]
    ends = [word.end() for word in re.finditer(r"\S+", article)]

    def tokens_with(num_words: int) -> int:
        instance.question = prompt.replace("{article}", article[: ends[num_words - 1]])
        return len(lm.tok_encode(instance.args[0]))

    if tokens_with(len(ends)) > room:
        fitting = bisect.bisect_right(range(1, len(ends)), room, key=tokens_with)
        tokens_with(max(1, fitting))


def read_test_split(
    name: str, config: str, files: str, fields: Sequence[str]
) -> Iterator[JsonLine]:
    """Each row's `fields`, none blank: from `files` below `$COPYSPEC_DATA_DIR`, or the Hub."""
    rows: Iterable[JsonLine]
    if folder := data_dir():
        if not (paths := sorted(folder.glob(files))):
            raise DataError(
                f"{folder / files}: no such file; put a copy of the test split of {name} there, or "
                f"unset {DATA_DIR_VARIABLE} to download it"
            )
        rows = chain.from_iterable(map(sources.read_jsonl, paths))
    else:
        try:
            loaded = load_dataset(name, config, split="test")
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise DataError(
                f"cannot download {name} ({reason:.200}); copy its test split to FOLDER/{files} "
                f"and set {DATA_DIR_VARIABLE}=FOLDER"
            ) from error
        rows = (JsonLine(f"{name}:{number}", row) for number, row in enumerate(loaded, start=1))
    for where, row in rows:
        for field in fields:
            if not (isinstance(value := row.get(field), str) and value.strip()):
                raise DataError(f"{where}: {field} is {value!r:.60}; give a non-empty string")
        yield JsonLine(where, {field: row[field] for field in fields})


class QuickstartTask(MultiTurnTask):
    """Documents with `turns` and the right `answers`, `dataset_kwargs: {documents: NAME}`.

    Figures: `exact_turn{k}`, the share of right answers, ignoring spaces around them.
    """

    def documents(self, dataset_kwargs: dict[str, Any]) -> list[dict[str, Any]]:
        path = tasks_dir() / QUICKSTART / f"{dataset_kwargs['documents']}.jsonl"
        return [row.fields for row in sources.read_jsonl(path)]

    # Takes precedence over GSM8K's, which asks in its own words.
    user_turns = MultiTurnTask.user_turns

    def doc_to_target(self, doc: dict[str, Any], doc_to_target: Any = None) -> str:
        return str(doc["answers"][-1])

    def score_names(self) -> dict[str, bool]:
        exact = {f"exact_turn{turn + 1}": True for turn in range(self.num_turns)}
        return super().score_names() | exact

    def score(self, doc: dict[str, Any], answers: list[str]) -> dict[str, float]:
        figures = super().score(doc, answers)
        for turn, (answer, right) in enumerate(zip(answers, doc["answers"], strict=True), 1):
            figures[f"exact_turn{turn}"] = float(answer.strip() == right)
        return figures


class QuickstartSelfCorrectionTask(QuickstartTask, GSM8KSelfCorrectionTask):
    """Three turns, with programs that run as GSM8K's do."""


class QuickstartExtractiveTask(QuickstartTask):
    """One turn; also the share of sentences that are in the article word for word."""

    def score_names(self) -> dict[str, bool]:
        return super().score_names() | {"verbatim": True}

    def score(self, doc: dict[str, Any], answers: list[str]) -> dict[str, float]:
        verbatim = cnn_dailymail.verbatim_share(answers[0], doc["article"])
        return super().score(doc, answers) | {"verbatim": verbatim}
