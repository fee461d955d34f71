"""Gate scores on a real Ray cluster of two nodes: those of one process."""

import json
import os
import re
import shutil
import socket
import sys
from dataclasses import asdict

import pytest
from pydantic_core import from_json, to_json
from support import gate_folders, scripts
from tiny_kbm import QUESTIONS, make_folder, make_tokenizer

from kbtrain.config import parse_args
from kbtrain.distributed.ray_work import RayScoring, ScoreWorker
from kbtrain.errors import UserError
from kbtrain.gate.gate import Gate
from kbtrain.gates.handles import GateHandle, GateOpening, handle, handle_of_prompt
from kbtrain.gates.scoring import Chunk, ScoreFile, chunks_left, local, score_chunks
from kbtrain.gates.seakr.engine import SeakrSettings
from kbtrain.gates.seakr.gate import SeakrCard
from kbtrain.io import jsonl
from kbtrain.io.provenance import read_meta
from kbtrain.prompts.kbm import answer_fingerprint
from kbtrain.records import GateExample, GateScore

SIZES = {"dev": 13, "test": 22}
CHUNK = 3  # 5 chunks of dev, 8 of test


def example(i, split):
    text = QUESTIONS[i % len(QUESTIONS)] + " And why?" * (i % 4)
    return GateExample(f"{split}{i}", f"{split}-q{i}", split, text, "en", None)


EXAMPLES = {split: [example(i, split) for i in range(n)] for split, n in SIZES.items()}


@pytest.fixture(scope="module")
def gates(tmp_path_factory):
    """A folder with one gate of each kind, tiny and random."""
    folder = tmp_path_factory.mktemp("gates")
    for name in ("kbm", "encoder", "ragate_mha"):
        getattr(gate_folders, name)(folder / name)
    make_folder(folder / "prompt")
    SeakrCard(
        base_model=str(folder / "prompt"), dtype="bf16", prompt_fingerprint=answer_fingerprint(make_tokenizer()),
        settings=SeakrSettings(k=3, layer=0, mlp="mlp", max_new_tokens=4),
    ).write(folder / "seakr")  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def score():
    """eval/score.py in this process."""
    module = scripts.load("eval/score.py")
    return lambda folder, *more: module.main(
        parse_args(module.ChoiceConfig, ("--run", str(folder), "--chunk", str(CHUNK), *more))
    )


@pytest.fixture
def make_examples(tmp_path):
    def make(name):
        for split, rows in EXAMPLES.items():
            jsonl.write(tmp_path / name / "examples" / f"{split}.jsonl", rows)
        return tmp_path / name

    return make


def scores(path):
    """{(gate, question): score}; each stands there once."""
    rows = list(jsonl.read(GateScore, path))
    found = {(row.gate, row.question_id): row.score for row in rows}
    assert len(found) == len(rows)
    return found


def scripted():
    """A gate without a model, and its worker. Local: Ray sends its code along."""

    class Scripted(ScoreWorker):
        def open(self, config):
            self.handle, self.dtype = GateHandle(("prompt",), "m", Lengths), "fp32"
            self.gate = self.handle.open()

    class Lengths(Gate):
        name = "prompt"

        def score_examples(self, examples):
            return [len(example.question) / 7 for example in examples]

    return GateHandle(("prompt",), "m", Lengths, opening=GateOpening("m", prompt="prompt")), Scripted


def scored_by(engine, source, path):
    """How many examples each step wrote."""
    with ScoreFile(path, {}) as file:
        written = list(score_chunks(file, source, chunks_left(file, source, EXAMPLES, CHUNK), engine))
        file.finish("score", {}, [], 0.0, source.names)
    return written


@pytest.mark.parametrize("kind", ["prompt", "kbm", "seakr", "encoder", "ragate_mha"])
def test_a_worker_opens_each_kind_from_plain_values_and_scores_as_this_process(kind, gates):
    folder = gates / kind
    source = handle_of_prompt(kind, str(folder), "fp32", "cpu") if kind == "prompt" else handle(folder, "auto", "cpu")
    config = json.dumps({"opening": asdict(source.opening), "identity": source.identity})
    worker = ScoreWorker(config, os.getcwd())
    for split, rows in EXAMPLES.items():
        chunk = Chunk(split, tuple(rows))
        (ours,) = local(source, [chunk])
        theirs = from_json(to_json(worker.do(from_json(to_json(chunk)))))["scored"]
        assert [GateScore(**row) for row in theirs["scores"]] == list(ours.scores)
        assert len({row.score for row in ours.scores}) > 3
        assert (theirs["timing"]["n"], theirs["timing"]["spent"]) == (len(rows), ours.timing.spent)
        assert theirs["timing"]["seconds"] > 0


def test_the_scores_are_those_of_one_process(cluster, gates, make_examples, score, monkeypatch, tmp_path, capsys):
    one, many = make_examples("one"), make_examples("many")
    asked = ("--gates", f"{{seakr: {gates / 'seakr'}}}", "--splits", "[test]")
    score(one, *asked)
    monkeypatch.chdir(tmp_path)  # where the cluster was not started: names still mean what they mean here
    (tmp_path / "seakr").symlink_to(gates / "seakr")
    score("many", "--gates", "{seakr: seakr}", "--splits", "[test]", "--engine", "ray")
    assert "scored 22 questions with seakr" in capsys.readouterr().out
    assert scores(many / "scores" / "seakr.jsonl") == scores(one / "scores" / "seakr.jsonl")
    local_meta, ray_meta = read_meta(one / "scores" / "seakr.jsonl"), read_meta(many / "scores" / "seakr.jsonl")
    assert ray_meta["spent_per_question"] == local_meta["spent_per_question"]
    assert ray_meta["spent_per_question"]["seakr"]["test"]["samples"] == 3
    assert (ray_meta["device"], ray_meta["sha256"] != "") == ("cpu", True)
    assert ray_meta["seconds_per_question"]["seakr"]["test"] > 0


def raising(error):
    """A function whose code Ray sends along."""

    def do():
        raise error

    return do


@pytest.mark.parametrize(
    ("do", "line"),
    [
        (raising(UserError("example 'dev3': the model gives no number")), "example 'dev3': the model gives no number"),
        (
            raising(RuntimeError("CUDA error: out of room")),
            r"ray: RuntimeError: CUDA error: out of room; what was finished is kept: .+",
        ),
        (lambda: os._exit(1), r"ray: .+; what was finished is kept: see ray's log, then run the same command again"),
    ],
)
def test_a_worker_that_fails_is_one_line_with_its_cause_and_not_tried_for_ever(
    cluster, tmp_path, monkeypatch, do, line
):
    monkeypatch.setattr("kbtrain.distributed.ray_cluster._DEATHS", 1)  # each costs seconds
    source, worker = scripted()

    class Failing(worker):
        def do(self, row):
            do()

    with pytest.raises(UserError) as caught:  # one actor, as each of its deaths costs the start of a process
        scored_by(RayScoring(actors=1, worker=Failing), source, tmp_path / "many")
    assert re.fullmatch(line, str(caught.value))


def test_a_machine_with_other_weights_is_refused_by_name(cluster, tmp_path):
    source = GateHandle(
        ("prompt",), "weights-1", lambda: None, opening=GateOpening("weights-2", "fp32", prompt="prompt")
    )
    with pytest.raises(UserError) as caught:
        scored_by(RayScoring(actors=1), source, tmp_path / "many")
    where = f"(on machine {socket.gethostname()})"
    assert str(caught.value) == f"weights-2: other parameters or settings here than where scoring was started {where}"


def test_another_base_is_refused_here_in_the_words_of_one_process(tmp_path, monkeypatch):
    probe = tmp_path / "probe"
    gate_folders.probe(probe)
    note_base(probe, "00000000-00000000")
    source, chunk = handle(probe, "auto", "cpu"), Chunk("dev", tuple(EXAMPLES["dev"]))
    monkeypatch.setitem(sys.modules, "ray", None)  # no cluster is looked for
    refused = []
    for engine in (local, RayScoring()):
        with pytest.raises(UserError, match="the probe was trained on another base than") as caught:
            list(engine(source, [chunk]))
        refused.append(str(caught.value))
    assert refused[0] == refused[1]
    shutil.rmtree(probe / "base")  # here it is not: a machine of the cluster may have it
    with pytest.raises(UserError, match="Ray is not installed"):
        list(RayScoring()(source, [chunk]))


def note_base(folder, fingerprint):
    """As if the gate had been trained beside a base of this fingerprint."""
    card = json.loads((folder / "gate.json").read_text())
    (folder / "gate.json").write_text(json.dumps(card | {"base_fingerprint": fingerprint}))


def test_machines_that_measure_other_number_formats_are_not_mixed(cluster, tmp_path):
    source, worker = scripted()

    class Measuring(worker):
        def do(self, row):
            self.dtype = "fp32" if row["split"] == "dev" else "bf16"
            return super().do(row)

    with pytest.raises(UserError, match="key 'dtype': auto means bf16 and fp32 on different machines; name one"):
        scored_by(RayScoring(actors=1, worker=Measuring), source, tmp_path / "many")


def test_without_ray_or_a_cluster_it_is_one_line(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    ray.shutdown()  # the last test of this file
    source, _ = scripted()
    with pytest.raises(UserError, match=r"no cluster at '127.0.0.1:1'"):
        scored_by(RayScoring(address="127.0.0.1:1"), source, tmp_path / "many")
    # undone here: the hook behind the folder's last test imports ray
    with monkeypatch.context() as patched, pytest.raises(UserError) as caught:
        patched.setitem(sys.modules, "ray", None)
        scored_by(RayScoring(), source, tmp_path / "many")
    assert str(caught.value) == 'engine ray: Ray is not installed here; pip install "kbtrain[ray]"'
