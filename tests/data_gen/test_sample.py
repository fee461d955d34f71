"""The sampling stage on a tiny model of a real class: resumable under kill -9, and clear about bad input."""

import contextlib
import dataclasses
import os
import random
import signal
import sqlite3
import sys
import threading
import time

import pytest
import torch
from support import scripts
from tiny_kbm import make_folder
from tqdm import tqdm

from kbtrain.config import parse_args
from kbtrain.io import jsonl
from kbtrain.io.provenance import write_meta
from kbtrain.io.store import SampleStore
from kbtrain.records import Evidence, Hit, Question

N_QUESTIONS = 12


@pytest.fixture
def run(tmp_path):
    questions = [
        Question(f"q{i}", f"Where is town {i}{' and so' * (i % 5)}?", ("Peru",), ("train", "test")[i % 2], "t")
        for i in range(N_QUESTIONS)
    ]
    hits = (Hit("p", "T", "The town is in Peru.", 1.0),)
    jsonl.write(tmp_path / "questions.jsonl", questions)
    jsonl.write(tmp_path / "evidence.jsonl", [Evidence(q.id, "bm25", q.text, hits) for q in questions])
    return tmp_path


def arguments(run, model, *more):
    return [
        "--run", str(run), "--model", str(model), "--samples", "{train: 4, test: 0}", "--max-prompt-tokens", "200",
        "--max-new-tokens", "8", "--batch-rows", "10", "--dtype", "fp32", "--conditions", "[llm, rag, mask]",
        "--allow-empty", "true", *more,
    ]  # fmt: skip


def sample(*command):
    return scripts.here("data_gen/sample.py", *command)


def rows(path):
    """Everything in a store that a stage reads, in a fixed order."""
    with SampleStore(path, read_only=True) as store:
        return sorted(dataclasses.astuple(s) for s in store.iterate("main"))


def stage():
    """data_gen/sample.py as a module."""
    return scripts.load("data_gen/sample.py")


def in_a_child(script, argv):
    """Fork, run the stage in the child; returns its pid. Torch and the model classes are imported already."""
    pid = os.fork()
    if pid:
        return pid
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    sys.argv = ["sample.py", *argv]
    tqdm.set_lock(threading.RLock())  # its own lock is shared with the parent: a child killed with it would block all
    code = 1
    try:
        script.main(parse_args(script.SampleConfig, argv))
        code = 0
    finally:  # never back into the test's own process
        os._exit(code)


def test_kill_9_at_eight_moments_loses_nothing_and_ends_in_the_same_rows(tmp_path, tiny_model, run):
    torch.set_num_threads(1)
    script = stage()
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    for name in ("questions.jsonl", "evidence.jsonl"):
        (undisturbed / name).write_bytes((run / name).read_bytes())
    few = ("--max-new-tokens", "2")  # the moments lie between the batches, whose number stays
    start = time.monotonic()
    assert os.waitpid(in_a_child(script, arguments(undisturbed, tiny_model, *few)), 0)[1] == 0
    whole = time.monotonic() - start

    moments, kills, before = random.Random(0), 0, 0
    while kills < 8:
        pid = in_a_child(script, arguments(run, tiny_model, *few))
        time.sleep(moments.uniform(0.05, 0.7) * whole)  # opening model and store, and sampling
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        kills += os.WIFSIGNALED(status)
        now = stored(run / "samples.db")
        assert now >= before  # what was finished stays
        before = now
        if now == N_QUESTIONS * 3 and kills < 8:  # it got through between the kills: begin again
            for file in run.glob("samples.db*"):
                file.unlink(missing_ok=True)
            before = 0
    assert os.waitpid(in_a_child(script, arguments(run, tiny_model, *few)), 0)[1] == 0
    assert rows(run / "samples.db") == rows(undisturbed / "samples.db")


def stored(path):
    if not path.exists():
        return 0
    with contextlib.closing(sqlite3.connect(path)) as db:  # closing may remove the -wal file: not at some later time
        try:
            return int(db.execute("SELECT count(*) FROM sets").fetchone()[0])
        except sqlite3.OperationalError:  # killed before the tables were made
            return 0


def test_a_finished_run_says_so_and_loads_no_model(run, tiny_model):
    first = sample(*arguments(run, tiny_model))
    assert first.returncode == 0, first.stderr
    assert f"{N_QUESTIONS * 3} question-conditions, {N_QUESTIONS * 3} of them now" in first.stdout
    again = sample(*arguments(run, tiny_model))
    assert again.returncode == 0 and "are in" in again.stdout and "already" in again.stdout


def scripted(run, conditions, *more):
    done = sample("--run", str(run), "--backend", "scripted", "--conditions", conditions, *more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_answers_under_other_conditions_do_not_stand_for_those_that_are_asked_for(run):
    """As many were stored as were asked for: "all are in it already" was said, and none under mask were ever made."""
    numbers, mask = ("--samples", "{train: 2}"), ("--mask-questions", "{train: 2}")
    assert "24 question-conditions, 24 of them now" in scripted(run, "[llm, rag]", *numbers)
    assert "14 question-conditions, 2 of them now" in scripted(run, "[llm, mask]", *numbers, *mask)
    assert "all 14 question-conditions are in" in scripted(run, "[llm, mask]", *numbers, *mask)
    assert "12 question-conditions, 10 of them now" in scripted(run, "[mask]", *numbers)
    with SampleStore(run / "samples.db", read_only=True) as store:
        assert store.counts("main") == {"llm": 12, "rag": 12, "mask": 12}


def test_other_settings_for_a_run_are_refused_begun_or_finished(run, tiny_model):
    assert sample(*arguments(run, tiny_model, "--conditions", "[llm]")).returncode == 0
    for more in (("--conditions", "[llm]"), ("--conditions", "[llm, rag]")):
        changed = sample(*arguments(run, tiny_model, *more, "--seed", "7"))
        assert changed.returncode == 2 and "Loading" not in changed.stderr
        assert changed.stderr.startswith("error: ") and "begun with sampling" in changed.stderr


def test_passages_that_were_searched_for_other_questions_are_refused(run):
    source, evidence = run / "questions.jsonl", run / "evidence.jsonl"
    write_meta(evidence, stage="retrieve", config=None, inputs=[source])
    jsonl.write(source, [dataclasses.replace(one, text=f"Who rules {one.id}?") for one in jsonl.read(Question, source)])
    done = sample(*arguments(run, run / "none"))
    assert done.returncode == 2 and not (run / "samples.db").exists()
    assert done.stderr == f"error: {evidence}: made from another questions.jsonl; run `kbtrain run retrieve` again\n"


def test_dry_run_says_what_would_be_done_and_does_nothing(run, tiny_model):
    done = sample(*arguments(run, tiny_model), "--dry-run")
    assert done.stdout.startswith(f"model {tiny_model}, transformers; answers to a prompt: train 5, test 1\n")
    default = scripts.here("data_gen/sample.py", "--run", run, "--dry-run").stdout.splitlines()[0]
    assert default.startswith("model smollm2-135m-instruct (the default: name yours by --config server.yaml or")
    assert done.returncode == 0 and f"{N_QUESTIONS * 3} question-conditions" in done.stdout
    assert not (run / "samples.db").exists()


@pytest.mark.parametrize(("chat", "own", "told"), [(False, False, 1), (False, True, 0), (True, False, 0)])
def test_a_base_model_is_told_to_need_examples(tmp_path, run, monkeypatch, chat, own, told):
    folder = make_folder(tmp_path / "base", "gemma3")
    if not chat:
        (folder / "chat_template.jinja").unlink()
    (tmp_path / "llm.txt").write_text("Q: Where is Rome?\nA: Italy\nQ: {question}\nA:")
    (tmp_path / "rag.txt").write_text("Q: Where is Rome?\nA: Italy\n{evidence}\nQ: {question}\nA:")
    prompts = ("--prompts", f"{{llm: {tmp_path}/llm.txt, rag: {tmp_path}/rag.txt}}") if own else ()
    done = scripts.run("data_gen/sample.py", *arguments(run, folder, "--conditions", "[llm, rag]", *prompts))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("no chat template") == told
    assert len(rows(run / "samples.db")) == 2 * N_QUESTIONS
