"""Shards that lm-eval answered are, together, the run that answers all."""

from in_process import evaluate_into

from copyspec_eval.reports.leaderboard import leaderboard
from copyspec_eval.reports.recorded import read_runs
from copyspec_eval.reports.summary import METRICS

TIMED = {metric.name for metric in METRICS if metric.timed}


def test_two_shards_are_the_whole(byte_model, our_questions, tmp_path):
    options = "dtype=float64,paired=true"
    evaluate_into(tmp_path / "whole", byte_model, options)
    for number in range(2):
        asked = {"mt_redundant": list(range(number, 6, 2))}
        evaluate_into(tmp_path / f"shard{number}", byte_model, options, samples=asked)
    folders = [tmp_path / "shard0", tmp_path / "shard1"], [tmp_path / "whole"]
    split, whole = (leaderboard(read_runs(each)) for each in folders)
    assert not [note for note in split.notes if "exact mode" not in note]
    untimed = [name for name in whole.lines if name not in TIMED | {"date"}]
    assert "tokens_per_forward" in untimed
    assert split.lines[untimed].equals(whole.lines[untimed])
    assert split.settings.equals(whole.settings)
