"""The cells of the paper's tables, from the runs that a table needs, in the order of its plan."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy
from pandas import Series, concat, cut

from copyspec_eval.errors import needing
from copyspec_eval.paper import plan
from copyspec_eval.paper.plan import TASKS, PlannedRun
from copyspec_eval.reports import tables
from copyspec_eval.reports.leaderboard import Leaderboard
from copyspec_eval.reports.leaderboard_forms import RATING, documents, scores
from copyspec_eval.reports.runs import read_run
from copyspec_eval.reports.summary import figures_by
from copyspec_eval.reports.tables import Column, figure, interval_column, metric_column

_SOURCE = (
    "The paper (arXiv 2502.08923): Llama-3.1-8B-Instruct in float32 on an A100; speed-ups of its "
    "abstract are the best of its models and categories. Of the 160 answers behind its base speed "
    "on MT-Redundant, 147 ran to 1,024 tokens, most of them into invented further turns."
)

# As the authors report it: Llama-3.1-8B, MT-Redundant, both turns; with copying by γ.
_PLAIN_TOKENS_PER_SECOND = 35.5
_BY_GAMMA = {3: 49.2, 5: 47.4, 10: 44.2}
# By task and turn.
_BEST_SPEEDUPS = {
    (plan.CNN_DAILYMAIL, 1): 2.35,
    (plan.GSM8K, 3): 2.66,
    (plan.MT_REDUNDANT, 2): 3.08,
}
_COPYING_OVER_DRAFT_MODEL = 0.49  # on turn 2 of MT-Redundant, over all categories

_SIZE, _EPOCHS = 300, 10  # of word2vec
_SIMILARITY_GAMMAS = range(2, 30)

_PROMPT_LENGTHS = (0, 128, 256, 512, 1024, 2048, 10**9)


class Answered(NamedTuple):
    run: PlannedRun
    board: Leaderboard

    @property
    def name(self) -> str:
        """That of its task in the paper."""
        return TASKS[self.run.task].name

    def line(self, **drafting: Any) -> Any:
        settings = self.board.settings[[f"drafting.{name}" for name in drafting]]
        [line] = settings.index[(settings == [*drafting.values()]).all(axis=1)]
        return line

    def figures(self, line: Any, turn: int | None = None, category: str = "") -> "Series[Any]":
        if turn is None:
            return self.board.lines.loc[line]
        place = (line, turn, category) if category else (line, turn)
        table = self.board.by_category if category else self.board.by_turn
        return table.loc[place] if place in table.index else Series(math.nan, table.columns)

    def cells(self, line: Any, columns: Sequence[Column]) -> list[object]:
        """The cells of a line, each on its column's turn."""
        return [column.cell(self.figures(line, column.turn)) for column in columns]

    def category_rows(self, lines: Sequence[Any], columns: Sequence[Column]) -> "_Rows":
        """A row per category, and one for all together; each column's cell is of its own line."""
        names = self.board.by_category.loc[lines[0]].index.get_level_values("category")
        by_line = list(zip(lines, columns, strict=True))
        return [
            [name or "average", *(c.cell(self.figures(line, c.turn, name)) for line, c in by_line)]
            for name in (*sorted({*names}), "")
        ]


_Rows = list[list[object]]


class Table(NamedTuple):
    """A table, and notes to read it with, a sentence each."""

    headers: list[str]
    rows: _Rows
    notes: list[str]


_BASE = metric_column("baseline_tokens_per_second", ".2f", "base tokens/s")
_SPEED = metric_column("tokens_per_second", ".2f", "tokens/s")
_SPEEDUP = metric_column("speedup", ".2f")
_INTERVAL = interval_column("speedup")
_COPIED = metric_column("copied_share", ".2%", "% copied")
_ROUNDED_COPIED = metric_column("copied_share", ".1%", "% copied")
_ENDED = (
    interval_column("speedup_ended"),
    metric_column("cut_share", ".0%"),
    metric_column("looped_share", ".1%"),
)
"""What says how much of a speed-up comes from answers that loop until the budget ends them."""
_TAU = metric_column("accepted_per_attempt", ".2f", "τ")
_IDENTICAL = metric_column("identical", ".1%")
_COPYSPEC = _SPEED._replace(heading="CopySpec")
_EMPTY = Column("", lambda _: "")


def _on_turns(turns: Sequence[int], *columns: Column) -> list[Column]:
    """The columns on each turn, which the first one's heading names."""
    all_columns = []
    for turn in turns:
        first, *others = (column._replace(turn=turn) for column in columns)
        all_columns += [first._replace(heading=f"turn {turn}: {first.heading}"), *others]
    return all_columns


_ARM = (
    *(_SPEED, _INTERVAL, *_on_turns((1, 2), _SPEED, _SPEEDUP)),
    *(_COPIED, _TAU, _IDENTICAL, *_ENDED),
)


def _headers(columns: Sequence[Column]) -> list[str]:
    return [column.heading for column in columns]


def _arm_rows(answered: Answered, labels: Mapping[Any, str], columns: Sequence[Column]) -> _Rows:
    """A row for each labelled line, under one for the baseline that all arms have in common."""
    base = [
        _BASE._replace(turn=column.turn) if column.cell is _SPEED.cell else _EMPTY
        for column in columns
    ]
    first = ["base model", *answered.cells(next(iter(labels)), base)]
    return [first, *([label, *answered.cells(n, columns)] for n, label in labels.items())]


def main_results(runs: Sequence[Answered]) -> Table:
    """The paper's main table: a column per data set, a row per variant and metric."""
    base = _BASE._replace(heading="tokens/s")
    metrics = [
        ("both", Column("documents", documents)),
        ("both", Column("score", _score)),
        ("base model", base),
        *(("CopySpec", each) for each in (_COPIED, _SPEED, _INTERVAL, _TAU, _IDENTICAL, *_ENDED)),
    ]
    for turn in range(1, 1 + max(TASKS[each.run.task].num_turns for each in runs)):
        for variant, each in (("base model", base), ("CopySpec", _SPEED), ("CopySpec", _SPEEDUP)):
            heading = f"{each.heading}, turn {turn}"
            metrics.append((variant, each._replace(heading=heading, turn=turn)))
    lines = [(each, each.line(drafter="copyspec")) for each in runs]
    rows: _Rows = [
        [variant, column.heading, *(column.cell(run.figures(n, column.turn)) for run, n in lines)]
        for variant, column in metrics
    ]
    notes = [
        f"{TASKS[task].name}, turn {turn}: the paper's best speed-up is {best}"
        for (task, turn), best in _BEST_SPEEDUPS.items()
    ]
    return Table(["variant", "metric", *(each.name for each in runs)], rows, [*notes, _SOURCE])


def _score(line: "Series[Any]") -> object:
    """The paper's score of a task; of conversations a judge's rating, if there is one."""
    name = TASKS[line["task"]].score
    return scores(line).get(name, "") if name else RATING.cell(line)


def categories(runs: Sequence[Answered]) -> Table:
    """A row per category: on each turn base model, copying, speed-up, copied share and score."""
    score = RATING._replace(heading="score")
    columns = _on_turns((1, 2), _BASE, _COPYSPEC, _SPEEDUP, _ROUNDED_COPIED, *_ENDED, score)
    rows: _Rows = []
    for each in runs:
        lines = [each.line(drafter="copyspec")] * len(columns)
        rows += [[each.name, *row] for row in each.category_rows(lines, columns)]
    best = _BEST_SPEEDUPS[plan.MT_REDUNDANT, 2]
    notes = [f"the paper's best category of MT-Redundant has {best} on turn 2", _SOURCE]
    return Table(["data set", "category", *_headers(columns)], rows, notes)


def gammas(runs: Sequence[Answered]) -> Table:
    """A row per γ, under the base model's."""
    plain = _PLAIN_TOKENS_PER_SECOND
    paper = {f"γ = {gamma}": f"{speed} ({speed / plain:.2f})" for gamma, speed in _BY_GAMMA.items()}
    paper["base model"] = f"{plain}"
    rows = [
        [*row, paper.get(str(row[1]), "") if row[0] == TASKS[plan.MT_REDUNDANT].name else ""]
        for row in _rows_by(runs, "gamma", "γ = {}")
    ]
    return Table(["data set", "", *_headers(_ARM), "paper (×)"], rows, [_SOURCE])


def numbers_copied(runs: Sequence[Answered]) -> Table:
    """A row per number of copied tokens, under the base model's; 0 is what looking alone costs."""
    rows = _rows_by(runs, "num_draft_tokens", "{}")
    return Table(["data set", "tokens copied", *_headers(_ARM)], rows, [])


def _rows_by(runs: Sequence[Answered], setting: str, label: str) -> _Rows:
    rows: _Rows = []
    for each in runs:
        values = each.board.settings[f"drafting.{setting}"].astype(int).sort_values()
        labels = {line: label.format(value) for line, value in values.items()}
        rows += [[each.name, *row] for row in _arm_rows(each, labels, _ARM)]
    return rows


def draft_models(runs: Sequence[Answered]) -> Table:
    """A row per δ and category: on each turn base model, draft model, and copying before it.

    Speed-ups of ended answers, and shares, are those of copying with γ = 3 before it.
    """
    headings = [f"copying (γ = {gamma}) + draft model" for gamma in (3, 5)]
    speeds = [_SPEED._replace(heading=heading) for heading in ("draft model", *headings)]
    columns = _on_turns((1, 2), _BASE, *speeds, *_ENDED)
    rows: _Rows = []
    notes: list[str] = []
    for each in runs:
        alone = each.line(drafter="none")
        copying = [each.line(drafter="copyspec", gamma=gamma) for gamma in (3, 5)]
        lines = [alone, alone, *copying, *copying[:1] * len(_ENDED)] * 2
        delta = each.board.settings.at[alone, "drafting.delta"]
        rows += [[each.name, str(delta), *row] for row in each.category_rows(lines, columns)]
        for turn in (1, 2):
            fast, slow = (each.figures(n, turn)["tokens_per_second"] for n in (copying[0], alone))
            gain = f"{fast / slow - 1:+.0%} over the draft model alone"
            notes.append(
                f"{each.name}, δ = {delta}, turn {turn}: copying (γ = 3) + draft model is {gain}"
            )
    notes.append(f"the paper has {_COPYING_OVER_DRAFT_MODEL:+.0%} on turn 2, on average")
    return Table(["data set", "δ", "category", *_headers(columns)], rows, notes)


def self_correction(runs: Sequence[Answered]) -> Table:
    """A row per variant: on each turn copied share, speed, τ of copies, and of the draft model."""
    [answered] = runs
    tau = _TAU._replace(heading="τ1")
    model_tau = metric_column("model_accepted_per_attempt", ".2f", "τ2")
    columns = [*_on_turns((1, 2, 3), _COPIED, _SPEED, _SPEEDUP, tau, model_tau), *_ENDED]
    lines = answered.board.lines
    rows = _arm_rows(answered, lines["drafter"].to_dict(), columns)
    right = [figure(lines.iloc[0], f"score_acc_turn{turn}", ".3f") for turn in (1, 3)]
    notes = [f"right after turn 1: {right[0]}, after turn 3: {right[1]}"] if all(right) else []
    notes.append(f"the paper's best speed-up on turn 3 is {_BEST_SPEEDUPS[plan.GSM8K, 3]}")
    headers, rows = tables.without_empty_columns(["variant", *_headers(columns)], rows)
    return Table(headers, rows, [*notes, _SOURCE])


def context_lengths(runs: Sequence[Answered]) -> Table:
    """A row per range of prompt lengths, over both data sets."""
    columns = (_BASE, _COPYSPEC, _INTERVAL, _ROUNDED_COPIED, *_ENDED)
    turns = concat([each.board.turns for each in runs], ignore_index=True)
    turns["conversation"] = turns.groupby(["task", "doc_id"], sort=False).ngroup()
    turns["length"] = cut(turns["num_prompt_tokens"], [*_PROMPT_LENGTHS], right=False)
    figures = figures_by(turns.dropna(subset=["length"]), ["length"])
    rows: _Rows = []
    for lengths, part in figures.iterrows():
        if part["turns"]:
            end = f"to {lengths.right - 1}" if lengths.right < 10**9 else "up"
            cells = [column.cell(part) for column in columns]
            rows.append([f"{lengths.left} {end}", str(part["turns"]), *cells])
    return Table(["tokens of the prompt", "answers", *_headers(columns)], rows, [])


def similarity_table(runs: Sequence[Answered]) -> Table:
    """A row per γ and data set: how alike a word and the γ words before it are."""
    rows: list[list[object]] = []
    for each in runs:
        by_document: dict[int, list[str]] = {}  # all questions, then all answers
        for key, answer in read_run(each.run.folder).answers.items():
            questions = " ".join((answer.doc or {})["turns"])
            by_document.setdefault(key.doc_id, [questions]).append(answer.text)
        texts = [" ".join(parts).split() for parts in by_document.values()]
        for gamma in _SIMILARITY_GAMMAS:
            similarity = mean_similarity(texts, gamma)
            rows.append([each.name, str(gamma), f"{similarity:.4f}"])
    notes = [
        "As in the paper's `find_best_k`: words of questions and answers; for each γ vectors of "
        "word2vec, trained on every word with the γ before it. There they begin as those of Google "
        "News, here at random."
    ]
    return Table(["data set", "γ", "mean cosine similarity"], rows, notes)


def mean_similarity(texts: Sequence[Sequence[str]], gamma: int) -> float:
    """The mean cosine similarity of a word and the mean of the `gamma` words before it."""
    with needing("gensim", "the table similarity", "similarity"):
        from gensim.models import Word2Vec
    samples = [
        list(words[end - gamma : end + 1]) for words in texts for end in range(gamma, len(words))
    ]
    # One worker, so that the same texts give the same vectors.
    model = Word2Vec(
        samples, vector_size=_SIZE, window=gamma, min_count=1, workers=1, seed=0, epochs=_EPOCHS
    )
    similarities = [model.wv.n_similarity(before, [word]) for *before, word in samples]
    return float(numpy.mean(similarities))
