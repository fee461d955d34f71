"""States kept while sampling are those that a probe would read later, and answers do not notice."""

import dataclasses
import os
import shutil
import signal

import numpy as np
import pytest
import torch
from support.scripts import load, run
from tiny_kbm import KINDS, QUESTIONS, labelled, make_folder, make_model, make_tokenizer

from kbtrain.config import parse_args
from kbtrain.errors import UserError
from kbtrain.gates.probe.gate import DRAFT_TOKENS, Reader, draft_facts, state_facts, state_folder
from kbtrain.gates.probe.sampled_states import KeptStates
from kbtrain.gates.probe.states import StateStore, prompt_key, stored_dtype
from kbtrain.gates.probe.train import HeadSettings, fit
from kbtrain.io import jsonl
from kbtrain.io.store import SampleStore
from kbtrain.llm.base import Sampling
from kbtrain.llm.sampler.observer import PromptRows
from kbtrain.llm.sampler.sampler import BatchSampler
from kbtrain.models.adapters import base_fingerprint
from kbtrain.models.load import load_model
from kbtrain.records import GREEDY, Evidence, GateExample, Hit, Question

TEXTS = [f"Which {a} is near the {b}{' and so on' * (i % 3)}?" for i, a in enumerate("abcd") for b in ("lake", "bay")]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def examples():
    return [GateExample(f"q{i}", f"q{i}", "train", text, "en", None) for i, text in enumerate(TEXTS)]


def drawn_by_both(model, tokenizer):
    """Answers of the plain sampler and of the keeping one, what the latter kept, and the plain prompts."""
    sampling = Sampling(max_new_tokens=DRAFT_TOKENS + 5)
    prompts = Reader(model, tokenizer, "draft").prompts(examples())
    batch = [
        PromptRows(f"q{i}", condition, tuple(ids), (GREEDY, 0, 1, 2))
        for condition in ("llm", "rag")
        for i, ids in enumerate(prompts)
    ]
    kept = {}
    asked = {f"q{i}" for i in range(len(TEXTS) - 1)}
    plain = BatchSampler(model, tokenizer, sampling)
    store = KeptStates.__new__(KeptStates)
    store.add = lambda _, ids, states: kept.setdefault(tuple(ids), []).append(states)
    keeping = plain.observed(store.observer(asked))
    replica, rag = keeping.replica(), batch[len(prompts) :]
    assert replica.stopper.tokenizer is replica.tokenizer is not tokenizer  # threads share none
    watched = keeping.sample(batch), replica.sample(rag)
    return plain.sample(batch), watched, kept, prompts


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_is_what_a_draft_reader_reads_and_answers_stay_the_same(kind):
    tokenizer = make_tokenizer()
    model = make_model(kind, len(tokenizer))
    plain, (watched, of_replica), kept, prompts = drawn_by_both(model, tokenizer)
    assert watched == plain and of_replica == plain[len(prompts) :]
    assert sorted(kept) == sorted(map(tuple, prompts[:-1]))  # of those that were named, plain, once each
    expected = Reader(model, tokenizer, "draft").read(prompts)
    for ids, states in zip(prompts[:-1], expected, strict=False):
        (found,) = kept[tuple(ids)]
        assert found == pytest.approx(states, abs=1e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("kept") / "model", num_hidden_layers=3)


@pytest.fixture
def home(tmp_path):
    splits = ("train", "test", "train", "dev") * 2
    asked = [Question(f"q{i}", text, ("Peru",), splits[i], "t") for i, text in enumerate(TEXTS)]
    hits = (Hit("p", "T", "The town is in Peru.", 1.0),)
    jsonl.write(tmp_path / "questions.jsonl", asked)
    jsonl.write(tmp_path / "evidence.jsonl", [Evidence(q.id, "bm25", q.text, hits) for q in asked])
    return tmp_path


def sample(home, folder, *more):
    return run(
        "data_gen/sample.py", "--run", str(home), "--model", str(folder), "--samples", "{train: 2, test: 0}",
        "--dtype", "fp32", "--max-new-tokens", "20", *more,
    )  # fmt: skip


def answers(home, name):
    with SampleStore(home / "samples.db", read_only=True) as store:
        return sorted(dataclasses.astuple(one) for one in store.iterate(name))


def test_a_run_s_probes_find_their_states_after_sampling(home, folder):
    assert sample(home, folder, "--keep-states", "true").returncode == 0
    assert sample(home, folder, "--sampling-run", "plain").returncode == 0
    assert answers(home, "main") == answers(home, "plain")
    model, tokenizer = load_model(str(folder), "fp32", "cpu")
    facts = state_facts(base_fingerprint(str(folder)), "fp32", str(folder))
    for condition, reader, more in (
        ("llm", Reader(model, tokenizer), {}),
        ("draft", Reader(model, tokenizer, "draft"), draft_facts(DRAFT_TOKENS)),
    ):
        store = StateStore(state_folder(home, condition), facts | more)
        prompts = reader.prompts(examples())
        others = {prompt_key(ids) for ids in prompts[1::2]}
        assert not any(key in store for key in others)  # a probe scores dev and test by passes of its own
        prompts = prompts[::2]
        assert list(store.extract(model, prompts, reader.read)) == []  # nothing is missing
        found = store.layers([prompt_key(ids) for ids in prompts], range(3))
        expected = torch.from_numpy(reader.read(prompts)).bfloat16().float().numpy()
        assert np.abs(found - expected).max() < 0.02


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--backend", "scripted"), "a backend with a model, and engine local, read states"),
        (("--engine", "ray"), "a backend with a model, and engine local, read states"),
        (("--backend", "openai"), "of a server name its number format (dtype: bf16, fp16 or fp32)"),
        (("--backend", "openai", "--dtype", "bf16", "--server-endpoint", "chat"), "ask its completions endpoint"),
        (("--conditions", "[rag]"), "the states are those of condition llm, which is not sampled"),
        (("--max-new-tokens", "16"), "a draft has 16 tokens and stops at a line's end: so must answers, and be longer"),
        (("--stop", "['.']"), "a draft has 16 tokens and stops at a line's end: so must answers, and be longer"),
    ],
)
def test_what_cannot_be_kept_is_one_line(more, told):
    with pytest.raises(UserError, match="key 'keep_states': ") as raised:
        parse_args(load("data_gen/sample.py").SampleConfig, ["--keep-states", "true", *more])
    assert told in str(raised.value)


N_QUESTIONS = 28
KILLS = (  # by a call of this method; the run has seven batches
    ("put", 1, "before"),
    ("add", 1, "after"),  # states of the prompt, not yet those of the draft
    ("add", 2, "after"),
    ("put", 2, "after"),
    ("put", 1, "after"),
)


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """A run folder whose questions are those that ``labelled`` labels."""
    home = tmp_path_factory.mktemp("asked")
    hits = (Hit("p", "T", "The place is in Peru.", 1.0),)
    questions = [Question(f"q{i}", QUESTIONS[i], ("Peru",), "train", "t") for i in range(N_QUESTIONS)]
    jsonl.write(home / "questions.jsonl", questions)
    jsonl.write(home / "evidence.jsonl", [Evidence(q.id, "bm25", q.text, hits) for q in questions])
    return home


def sample_in_a_child(home, folder, kill=None):
    """Exit status of the sampling stage in a forked process, which kills itself with signal 9 where ``kill`` says."""
    pid = os.fork()
    if pid == 0:
        try:
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), 1)
                os.dup2(nowhere.fileno(), 2)
            script = load("data_gen/sample.py")
            more = ["--run", str(home), "--model", str(folder), "--samples", "{train: 3}", "--dtype", "fp32"]
            more += ["--max-new-tokens", "17", "--conditions", "[llm]", "--batch-rows", "16", "--keep-states", "true"]
            if kill is not None:
                die(*kill)
            script.main(parse_args(script.SampleConfig, more))
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1]


def die(name, n, when):
    """Kill this process before or after the n-th call of a method."""
    of = {"put": SampleStore, "add": StateStore}[name]
    real, calls = getattr(of, name), []

    def called(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == n and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = real(self, *args, **kwargs)
        if len(calls) == n:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    setattr(of, name, called)


def fitted_scores(home, folder, condition):
    """Weights and held-out scores of a probe's head on the run's states; nothing is read beside these."""
    model, tokenizer = load_model(str(folder), "fp32", "cpu")
    opened = Reader(model, tokenizer, condition)
    facts = state_facts(base_fingerprint(str(folder)), "fp32", str(folder)) | opened.facts
    store = StateStore(state_folder(home, condition), facts)
    found = fit(opened, store, [labelled(i) for i in range(N_QUESTIONS)], HeadSettings(["mastery"], average=1))[
        "mastery"
    ]
    return found.head.weight.tobytes(), found.head.intercept, found.left_out


@pytest.fixture(scope="module")
def unkilled(asked, folder, tmp_path_factory):
    """The run folder after sampling, and the scores that are fitted to its states."""
    home = shutil.copytree(asked, tmp_path_factory.mktemp("unkilled") / "run")
    assert sample_in_a_child(home, folder) == 0
    return home, {condition: fitted_scores(home, folder, condition) for condition in ("llm", "draft")}


def check_equal(home, folder, unkilled):
    whole, scores = unkilled
    assert answers(home, "main") == answers(whole, "main")
    for condition, expected in scores.items():
        assert fitted_scores(home, folder, condition) == expected


def test_scores_of_a_run_that_was_killed_are_those_of_an_unkilled_one_to_the_bit(asked, unkilled, folder, tmp_path):
    killed = shutil.copytree(asked, tmp_path / "killed")
    for kill in KILLS:
        assert os.WTERMSIG(sample_in_a_child(killed, folder, kill)) == signal.SIGKILL
    assert sample_in_a_child(killed, folder) == 0
    check_equal(killed, folder, unkilled)


def test_states_that_are_missing_are_drawn_again_in_their_own_batches(unkilled, folder, tmp_path):
    """Deleted by hand, or of answers that were sampled without them."""
    again = shutil.copytree(unkilled[0], tmp_path / "again")
    gone = sorted((again / "states").rglob("*.safetensors"))[::2]
    assert len(gone) > 1
    for path in gone:
        path.unlink()
    assert sample_in_a_child(again, folder) == 0
    check_equal(again, folder, unkilled)
    shutil.rmtree(again / "states")  # the run still says in which format there were states
    assert [stored_dtype(state_folder(again, name)) for name in ("llm", "draft", "rag")] == ["fp32", "fp32", None]
