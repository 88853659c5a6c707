"""The harness model against stock `hf`: same answers, log-likelihoods, and clear refusals."""

import gc
import inspect
import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import pooch
import pytest
import torch
from byte_model import loaded
from in_process import evaluate_into
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.loggers import EvaluationTracker
from lm_eval.models.huggingface import HFLM
from timed_models import CONTEXTS, check_counts, instances, rows
from transformers import GenerationConfig

from copyspec_eval import generate
from copyspec_eval.errors import CopySpecError, DataError, ModelError, OptionError, RequestError
from copyspec_eval.harness.lm import CopySpecLM
from copyspec_eval.harness.options import OUR_OPTIONS
from copyspec_eval.manifest import read_manifests
from copyspec_eval.sources import FILES


def make(kind: Any, folder: Path, options: str = "", **configured: Any) -> Any:
    arguments = f"pretrained={folder},dtype=float64,{options}"
    return kind.create_from_arg_string(arguments, {"device": "cpu", **configured})


def answers_of(lm: Any, settings: dict[str, Any] | None = None, **more: Any) -> list[str]:
    return list(lm.generate_until(instances(settings, **more), disable_tqdm=True))


def of_both(folder: Path, options: str) -> list[str]:
    """Answers of stock `hf` and ours, which are the same."""
    theirs, ours = (answers_of(make(kind, folder, options)) for kind in (HFLM, CopySpecLM))
    assert theirs == ours
    return ours


@pytest.fixture(scope="module")
def stock(byte_model: Path) -> Any:
    return make(HFLM, byte_model)


@pytest.fixture(scope="module")
def stock_answers(stock: Any) -> list[tuple[dict[str, Any], list[str]]]:
    """What it answers, by settings."""
    full = answers_of(stock)
    stops = [full[0][7:9], full[2][12:13]]
    ways: list[dict[str, Any]] = [{}, {"until": stops}, {"until": stops[0], "max_gen_toks": 9}]
    return [(settings, answers_of(stock, settings)) for settings in ways]


@pytest.mark.parametrize("batch_size", [1, 4, "auto"])
@pytest.mark.parametrize(
    ("drafter", "options"),
    [
        ("none", "drafter=none"),
        ("suffix", ""),
        ("copyspec", "gamma=2,exact=false"),
        ("copyspec", "num_draft_tokens=40,gamma=1,exact=false"),
    ],
)
def test_answers_are_those_of_hf(byte_model, stock_answers, drafter, options, batch_size):
    ours = make(CopySpecLM, byte_model, options, batch_size=batch_size)
    for settings, wanted in stock_answers:
        answers = answers_of(ours, settings)
        assert answers == wanted
        assert {row.drafter for row in rows(answers)} == {drafter}
    assert "stop" in {row.counts.finish_reason for row in rows(answers)}


def test_generation_config_of_the_model_is_honoured(byte_model, stock, tmp_path, our_questions):
    folder = tmp_path / "penalised"
    shutil.copytree(byte_model, folder)
    unpenalised = answers_of(stock)
    eos = [int(stock.tokenizer.eos_token_id), stock.tok_encode(unpenalised[1])[15]]
    GenerationConfig(repetition_penalty=1.3, eos_token_id=eos).save_pretrained(folder)
    assert of_both(folder, "") != unpenalised
    evaluate_into(tmp_path / "run", folder, "exact=false", limit=1, gen_kwargs="max_gen_toks=2")
    [run] = read_manifests(tmp_path / "run", []).values()
    processors = run.spec.tasks["mt_redundant"]["logits_processors"]
    assert processors == ["RepetitionPenaltyLogitsProcessor"]


@pytest.mark.parametrize("marker", ["{id}", "'{text}'"])
def test_thinking_is_cut_as_hf_cuts_it(byte_model, stock, marker):
    answers = answers_of(stock)
    text = next(c for c in "".join(answers) if c.isascii() and c.isprintable() and c not in ",='")
    [identifier] = stock.tok_encode(text)
    option = "think_end_token=" + marker.format(id=identifier, text=text)
    assert of_both(byte_model, option) != answers


def test_prompts_are_cut_from_the_left_or_begin_with_the_prefix_token(byte_model):
    answers = of_both(byte_model, "max_length=50")
    assert [row.counts.num_prompt_tokens for row in rows(answers)][2] == 10
    [row] = rows(answers_of(make(CopySpecLM, byte_model), {"max_gen_toks": 3}, contexts=[""]))
    assert row.counts.num_prompt_tokens == 1


def test_samples_repeat_with_the_seed_and_not_with_the_drafter(byte_model):
    settings = {"do_sample": True, "temperature": 0.9, "top_p": 0.9, "top_k": 20}

    def sample(seed: int = 1, options: str = "gamma=1", batch_size: int = 1) -> list[str]:
        torch.manual_seed(seed)
        model = make(CopySpecLM, byte_model, options, batch_size=batch_size)
        return [str(text) for text in answers_of(model, settings, repeats=2, contexts=CONTEXTS[:2])]

    first = sample()
    assert sample(options="drafter=none") == sample(batch_size=4) == sample() == first
    assert sample(seed=2) != first
    assert first[0] != first[1], "repeats of a document are different samples"


def test_records_add_up(byte_model):
    requests = instances()
    ours = make(CopySpecLM, byte_model, "gamma=2", batch_size=2)
    started = perf_counter()
    answers = ours.generate_until([*requests, requests[-1], requests[-1]], disable_tqdm=True)
    seconds = perf_counter() - started
    figures = ours.get_model_info()["copyspec"]["figures"]["task"]["turn 1"]
    assert figures["turns"] == len(CONTEXTS), "without what was repeated as padding"
    assert answers[-1] is answers[-2] is answers[-3]
    recorded = rows(answers[:-2])
    assert sum(row.counts.seconds or 0 for row in recorded) <= seconds
    for row in recorded:
        counts = row.counts
        check_counts(row)
        assert counts.seconds == (counts.prefill_seconds or 0) + (counts.decode_seconds or 0)
        assert 0 < counts.seconds <= (counts.latency_seconds or 0) <= seconds
        assert counts.num_prefill_tokens == 1
        assert row.token_ids is not None
        assert counts.num_tokens == len(row.token_ids)
        accepted = sum(source.num_accepted for source in (counts.drafts or {}).values())
        assert accepted == sum(attempt.num_accepted for attempt in row.attempts)
        text_ids = (*ours.tok_encode(CONTEXTS[row.doc_id]), *row.token_ids)
        for start, length, source in row.spans:
            copied = row.token_ids[start : start + length]
            assert text_ids[source : source + length] == copied
        characters = row.prompt + row.answer
        for start, end, source_start, source_end in row.span_characters:
            assert row.answer[start:end] == characters[source_start:source_end]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_gen_toks": 2048}, r"max_gen_toks=2048 does not leave room .* of 2048 tokens"),
        ({"max_gen_toks": 0}, r"max_gen_toks=0"),
        ({"prompt_lookup_num_tokens": 5}, r"assisted generation"),
        ({"num_return_sequences": 2}, r"num_return_sequences in .*; use the task's repeats"),
        ({"stop_strings": ["x"]}, r"stop_strings in .*; use until"),
        ({"nonsense": 1}, r"unknown generation setting 'nonsense'; see transformers"),
        ({"do_sample": True, "temperature": 0.0}, r"temperature"),
    ],
)
def test_requests_that_cannot_be_served(byte_model, settings, message):
    with pytest.raises(RequestError, match=message) as refusal:
        answers_of(make(CopySpecLM, byte_model), settings)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("gamma=0", r"gamma must be an integer of at least 1 \(usual: 3\), got 0"),
        ("drafter=suffix,gamma=2", "gamma=2 has no effect on drafter=suffix; leave one of them"),
        ("exact=maybe", r"exact must be true or false, got 'maybe'"),
        ("gama=3", r"unknown model_arg 'gama' \(did you mean 'gamma'\?\)"),
        ("attn_implementation=sdpa", r"attn_implementation='sdpa' is not used: .* leave it out"),
        ("load_in_8bit=true", r"load_in_8bit=True would quantize nothing; .* saved quantized"),
        ("load_in_4bit=true", r"load_in_4bit=True would quantize nothing; .* saved quantized"),
        ("bnb_4bit_quant_type=nf4", r"bnb_4bit_quant_type='nf4' .* saved quantized"),
        ("quantization_config=x", r"quantization_config='x' .* saved quantized"),
        ("tp_plan=auto", r"tp_plan='auto' is not supported; pass parallelize=True"),
        ("max_memory=1GB", r"max_memory='1GB' is not read by lm-eval; pass max_memory_per_gpu or"),
        ("device_map=auto", r"device_map needs parallelize=True"),
        ("prefix_cache=2XB", r"prefix_cache must be a size, e\.g\. 2GB, or 0 for none, got '2XB'"),
        ("store=1", r"store must be true, false or the folder of an earlier run, got 1"),
        ("store=runs/nowhere", r"store=runs/nowhere: no such file or folder; pass true, false"),
        ("store=a:", r"store must be true, false or the folder of an earlier run, got 'a:'"),
        ("drafter=none,store=runs/a", r"store=runs/a is not for drafter=none; pass drafter=suf"),
        ("tree=true", r"tree=True .* pass exact=False"),
        ("draft_model=x,delta=0", r"delta must be an integer .*got 0"),
        ("delta=3", r"delta=3 has no effect without draft_model; leave it out"),
    ],
)
def test_model_arguments_are_refused_before_loading(byte_model, tmp_path, options, message):
    folder = tmp_path / "without_weights"
    shutil.copytree(byte_model, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(OptionError, match=message) as refusal:
        make(CopySpecLM, folder, options)
    assert "\n" not in str(refusal.value)


def test_every_option_is_recorded_so_that_runs_which_differ_in_it_share_no_line(
    byte_model, our_questions, tmp_path
):
    options = inspect.signature(CopySpecLM.__init__).parameters.keys() | OUR_OPTIONS
    assert options - {"self", "pretrained", "kwargs"} == OUR_OPTIONS
    given: Any = "dtype=float64,arms=none:copyspec:suffix,exact=false,prefix_cache=1MB"
    evaluate_into(tmp_path, byte_model, given, gen_kwargs="max_gen_toks=2", limit=1)
    settings = next(iter(read_manifests(tmp_path, []).values())).spec.drafting
    assert settings.keys() >= OUR_OPTIONS
    assert (settings["exact"], settings["paired"]) == (False, True)
    assert (settings["prefix_cache"], settings["arms"]) == (10**6, ["copyspec", "suffix"])


def test_what_is_an_option_of_the_command_is_no_model_argument():
    with pytest.raises(OptionError, match="pass device as --device, not in --model_args"):
        simple_evaluate("copyspec", "pretrained=x,device=cpu", tasks=["any"], device="cpu")


def test_an_output_folder_that_cannot_be_written_is_refused_before_loading(tmp_path):
    folder, nowhere = tmp_path / "new" / "output", tmp_path / "nowhere"
    tracker = EvaluationTracker(output_path=str(folder))
    evaluate = partial(simple_evaluate, "copyspec", f"pretrained={nowhere}", tasks=["any"])
    with pytest.raises(ModelError, match=r"nowhere.*cannot be loaded: .*pass a Hub name or a f"):
        evaluate(evaluation_tracker=tracker)
    assert not folder.parent.exists(), "checked, and nothing left there"
    folder.parent.touch()
    with pytest.raises(DataError, match=r"new: cannot be written \(Not a directory\); choose"):
        evaluate(evaluation_tracker=tracker)


def test_a_draft_model_with_the_targets_weights_is_always_right(byte_model, stock):
    options = f"drafter=none,draft_model={byte_model},delta=4"
    answers = answers_of(make(CopySpecLM, byte_model, options, batch_size=2))
    assert answers == answers_of(stock)
    for row in rows(answers):
        assert row.drafter == f"none + draft_model={byte_model.name} + delta=4"
        [(source, drafts)] = (row.counts.drafts or {}).items()
        assert (source, drafts.num_accepted) == ("model", drafts.num_drafted)
        assert row.counts.num_forwards == 1 + -(-((row.counts.num_tokens or 0) - 1) // 5)
        assert row.spans == ()


def test_a_draft_model_of_another_vocabulary_is_refused(byte_model, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(byte_model, other, ignore=shutil.ignore_patterns("*.safetensors"))
    words = json.loads((other / "tokenizer.json").read_text())
    numbers = words["model"]["vocab"]
    numbers["A"], numbers["B"] = numbers["B"], numbers["A"]
    (other / "tokenizer.json").write_text(json.dumps(words))
    with pytest.raises(ModelError, match=r"different vocabulary .* of which 2 have another id"):
        make(CopySpecLM, byte_model, f"draft_model={other}")
    with pytest.raises(ModelError, match=r"draft_model='.*nowhere' cannot be loaded"):
        make(CopySpecLM, byte_model, f"draft_model={tmp_path / 'nowhere'}")


def test_no_answer_waits_until_all_that_was_loaded_is_looked_through(byte_model, monkeypatch):
    """Python's collector leaves it alone while answering; and only then, so that models go."""
    ours = make(CopySpecLM, byte_model)
    record, frozen = ours._record, list[int]()

    def watched(*args: Any) -> Any:
        frozen.append(gc.get_freeze_count())
        return record(*args)

    monkeypatch.setattr(ours, "_record", watched)
    answers_of(ours, contexts=["abcdefghij"])
    assert frozen[0] > 100_000
    assert gc.get_freeze_count() == 0


def test_the_warm_up_is_not_copied_from(byte_model):
    ours = make(CopySpecLM, byte_model, "drafter=suffix,store=true")
    [row] = rows(answers_of(ours, contexts=["abcdefghij"]))
    assert all(source != "store" for _, _, source in row.attempts)


def test_log_likelihoods_cost_what_they_cost_with_hf(byte_model, capfd):
    """Not a forward more, and nothing is printed of it: decoding is checked where there is any."""
    requests = [
        Instance("loglikelihood", {}, (context, " and so on"), 0, ("task", doc, 1))
        for doc, context in enumerate(CONTEXTS[:3])
    ]
    made, outcomes = [], []
    for kind in (HFLM, CopySpecLM):
        model, tokenizer = loaded(byte_model)
        forwards: list[None] = []
        # On a module inside, which a copy of the model shares its hooks with.
        model.get_input_embeddings().register_forward_hook(lambda *_, to=forwards: to.append(None))
        capfd.readouterr()
        made.append(kind(pretrained=model, tokenizer=tokenizer, device="cpu"))
        scores = made[-1].loglikelihood(requests, disable_tqdm=True)
        outcomes.append((scores, len(forwards), capfd.readouterr().err))
    ours = made[1]
    assert outcomes[0] == outcomes[1] == (scores, 3, "")
    assert ours.get_model_info()["copyspec"]["figures"] == {}
    answers_of(ours, contexts=CONTEXTS[:1])
    assert len(forwards) > 20, "it is checked before the first answer"
    assert ours.loglikelihood(requests, disable_tqdm=True) == scores, "and leaves them be"


def test_a_model_that_cannot_be_exact_is_refused_before_its_first_answer(byte_model):
    """A layer whose scale is that of all tokens of a step."""
    model, tokenizer = loaded(byte_model)
    model.model.layers[0].mlp.forward = lambda hidden: hidden * hidden.abs().mean()
    lm = CopySpecLM(pretrained=model, tokenizer=tokenizer, device="cpu")
    with pytest.raises(CopySpecError, match=r"exact=false|--model hf") as refusal:
        answers_of(lm)
    assert "\n" not in str(refusal.value)
    assert not lm.get_model_info()["copyspec"]["figures"]


def test_no_chat_template(byte_model, tmp_path):
    folder = tmp_path / "plain"
    shutil.copytree(byte_model, folder, ignore=shutil.ignore_patterns("chat_template*"))
    with pytest.raises(ModelError, match=r"has no chat template; leave --apply_chat_template out"):
        make(CopySpecLM, folder).chat_template(True)


PROMPT = "to be or not to be, that is the question: to be or not to"


def garbage(folder: Path) -> None:
    """Under the names of kernels, and folders in the place of files."""
    for path, public in FILES.items():
        (folder / public.sha256[:12] / Path(path).name).mkdir(parents=True)
    (folder / "kernels").mkdir(mode=0o700)
    for kernel in Path(pooch.os_cache("copyspec_eval")).glob("kernels/*.so"):
        (folder / "kernels" / kernel.name).write_bytes(b"\x7fELF")


def no_permission(folder: Path) -> None:
    garbage(folder)
    for path in (*folder.rglob("*"), folder):
        path.chmod(0)


def through_both_doors(model: Path) -> list[str]:
    lm = CopySpecLM(str(model), device="cpu", dtype="float32")
    [answer] = generate(loaded(model)[0], lm.tokenizer, PROMPT, max_new_tokens=12)
    return [*answers_of(lm, {"max_gen_toks": 12}, contexts=[PROMPT]), answer.text]


def written(folder: Path) -> list[Any]:
    """What lies there, but for compiled kernels."""
    paths = [folder, *(path for path in sorted(folder.rglob("*")) if path.suffix != ".so")]
    return [(path, path.lstat().st_mode) for path in paths]


FILLS: dict[str, Any] = {"garbage": garbage, "no permission": no_permission}
FILLS["file"] = lambda folder: folder.write_bytes(b"\x00 no folder")
FILLS["link to itself"] = lambda folder: folder.symlink_to(folder)


@pytest.mark.parametrize(
    ("fill", "is_new_process"),
    [("no permission", False), *(pytest.param(f, True, marks=pytest.mark.slow) for f in FILLS)],
)
def test_no_cache_folder_stops_a_run(fill, is_new_process, byte_model, tmp_path, monkeypatch):
    wanted, folder = through_both_doors(byte_model), tmp_path / "copyspec_eval"
    FILLS[fill](folder)
    before = written(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if is_new_process:  # it loads its kernels anew
        code = "import sys, pathlib, json, test_lm as test\n"
        code += "print(json.dumps(test.through_both_doors(pathlib.Path(sys.argv[1]))))"
        paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        command = ["env", f"PYTHONPATH={paths}", sys.executable, "-c", code, str(byte_model)]
        output = subprocess.check_output(command)
        assert json.loads(output.splitlines()[-1]) == wanted
    else:
        assert through_both_doors(byte_model) == wanted
    assert written(folder) == before
