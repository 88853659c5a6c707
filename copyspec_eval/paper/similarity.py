"""γ by cosine similarity: how alike a word and the γ words before it are."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy

from copyspec_eval.errors import OptionError
from copyspec_eval.paper.layouts import Answered, Table
from copyspec_eval.paper.plan import GAMMAS, TASKS
from copyspec_eval.reports.runs import read_run

_SIZE, _EPOCHS = 300, 10


def similarity_table(runs: Sequence[Answered]) -> Table:
    """A row per γ and data set."""
    rows: list[list[object]] = []
    for each in runs:
        texts = list(conversations(each.folder))
        for gamma in GAMMAS:
            similarity = mean_similarity(texts, gamma)
            rows.append([TASKS[each.run.task].name, str(gamma), f"{similarity:.4f}"])
    notes = [
        "As in the paper's `find_best_k`: words of questions and answers; for each γ vectors of "
        "word2vec, trained on every word with the γ before it. There they begin as those of Google "
        "News, here at random."
    ]
    return Table(["data set", "γ", "mean cosine similarity"], rows, notes)


def conversations(folder: Path) -> Iterator[list[str]]:
    """The words of each conversation of a run: all questions, then all answers."""
    by_document: dict[int, list[str]] = {}
    for answer in read_run(folder).answers.values():
        texts = by_document.setdefault(answer.doc_id, [" ".join((answer.doc or {})["turns"])])
        texts.append(answer.text)
    for texts in by_document.values():
        yield " ".join(texts).split()


def mean_similarity(texts: Sequence[Sequence[str]], gamma: int) -> float:
    """The mean cosine similarity of a word and the mean of the `gamma` words before it."""
    vectors = _vectors(texts, gamma)
    similarities: list[float] = []
    for words in texts:
        if len(words) <= gamma:
            continue
        rows = numpy.stack([vectors[word] for word in words])
        for place in range(gamma, len(words)):
            before, word = rows[place - gamma : place].mean(axis=0), rows[place]
            norm = float(numpy.linalg.norm(before) * numpy.linalg.norm(word))
            similarities.append(float(before @ word) / norm if norm else 0.0)
    return float(numpy.mean(similarities)) if similarities else 0.0


def _vectors(texts: Sequence[Sequence[str]], gamma: int) -> Any:
    try:
        from gensim.models import Word2Vec
    except ImportError as error:
        needed = "the table similarity needs gensim; pip install 'copyspec-eval[similarity]'"
        raise OptionError(needed) from error
    samples = []
    for words in texts:
        samples += [list(words[end - gamma : end + 1]) for end in range(gamma, len(words))]
    # One worker, so that the same texts give the same vectors.
    model = Word2Vec(
        samples, vector_size=_SIZE, window=gamma, min_count=1, workers=1, seed=0, epochs=_EPOCHS
    )
    return model.wv
