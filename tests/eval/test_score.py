"""eval/score.py with a scripted model: resumes, repeats nothing, and notices changed inputs."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support import gate_folders
from support.scripts import here

from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.evaluation.cost import asking_of
from kbtrain.evaluation.results import load
from kbtrain.evaluation.scores import Seen, stored_scores
from kbtrain.evaluation.scoring import within_answer
from kbtrain.gate.card import Threshold, set_threshold
from kbtrain.gate.gate import Gate
from kbtrain.gate.trained_on import write_trained_on
from kbtrain.gates import scoring
from kbtrain.gates.handles import GateHandle, GateOpening, gate_identity, handle, handle_of_prompt
from kbtrain.gates.kbm.gate import KBM, KBMCard
from kbtrain.gates.registry import GATES
from kbtrain.gates.stack import Linear, Member, StackCard
from kbtrain.gates.thresholds_store import source_of
from kbtrain.io import jsonl
from kbtrain.io.provenance import read_meta, write_meta
from kbtrain.io.store import SampleStore
from kbtrain.labeling.examples import example
from kbtrain.prompts.kbm import kbm_fingerprint
from kbtrain.records import GateExample, GateScore, Question


@pytest.fixture
def run_folder(run_folder):
    """A run that is not scored yet."""
    shutil.rmtree(run_folder / "scores")
    return run_folder


class Scripted(Gate):
    """Scores by the question's length; can be interrupted after some calls. ``folder``: where it says it lies."""

    name = "kbm_mastery"
    folder: Path | None = None

    def __init__(self, stop_after=10**9, depends="weights-1"):
        self.calls = 0
        self.opened = 0
        self.stop_after = stop_after
        self.depends = depends

    def handle(self):
        opening = None if self.folder is None else GateOpening(str(self.folder))
        return GateHandle(("kbm_mastery", "kbm_benefit"), self.depends, self._open, opening, name="kbm")

    def _open(self):
        self.opened += 1
        return self

    def score_examples(self, examples):
        return self.score_all(examples)["kbm_mastery"]

    def score_all(self, examples):
        if self.calls == self.stop_after:
            raise KeyboardInterrupt
        self.calls += 1
        shares = [len(e.question) / 100 for e in examples]
        return {"kbm_mastery": shares, "kbm_benefit": [1 - s for s in shares]}


@pytest.fixture(autouse=True)
def _in_batches_alone(monkeypatch):
    monkeypatch.setattr(scoring, "ALONE", 0)


def run(script, folder, model, monkeypatch, **settings):
    module = script("score")
    monkeypatch.setattr(module, "choose_gates", lambda config, asked: [model.handle()])
    module.main(build(module.ChoiceConfig, None, {"run": folder, "chunk": 32, **settings}))


def test_an_interrupted_scoring_goes_on_to_the_same_bytes(script, run_folder, monkeypatch):
    scores = run_folder / "scores" / "kbm.jsonl"
    run(script, run_folder, Scripted(), monkeypatch)
    undisturbed = scores.read_bytes()
    scores.unlink()
    with pytest.raises(KeyboardInterrupt):
        run(script, run_folder, Scripted(stop_after=4), monkeypatch)
    with open(scoring.chunks_path(scores), "a") as file:
        file.write('{"scores": [{"question_id": "dev-1", "ga')  # killed while writing
    again = Scripted()
    run(script, run_folder, again, monkeypatch)
    assert scores.read_bytes() == undisturbed
    assert again.calls == 10 - 4  # 80 dev and 200 test questions: 3 + 7 chunks
    idle = Scripted()
    run(script, run_folder, idle, monkeypatch)
    assert (idle.opened, scores.read_bytes()) == (0, undisturbed)


def test_questions_that_a_gate_was_trained_on_are_refused_or_counted(script, run_folder, tmp_path, monkeypatch, capsys):
    test = list(jsonl.read(GateExample, run_folder / "examples" / "test.jsonl"))
    spelled = [replace(example, question=example.question.upper() + " ?") for example in test[5:7]]
    write_trained_on(tmp_path, [*spelled, GateExample.ask("Another one?")])
    gate = opened_from(tmp_path)
    with pytest.raises(UserError, match=r"gate 'kbm' was trained on 2 of 200 test questions \(the first: 'test-5'\)"):
        run(script, run_folder, gate, monkeypatch)
    assert gate.calls == 0
    run(script, run_folder, gate, monkeypatch, allow_trained=True)
    assert "kbm: trained on 2 test questions" in capsys.readouterr().out
    meta = read_meta(run_folder / "scores" / "kbm.jsonl")
    assert meta["trained_on"] == {"test": 2}
    run(script, run_folder, gate, monkeypatch, splits=("dev",))  # of other splits: what is known of test stays
    after = read_meta(run_folder / "scores" / "kbm.jsonl")
    assert (after["trained_on"], after["seen"]["kbm_benefit"]["test"]) == (
        {"test": 2},
        meta["seen"]["kbm_benefit"]["test"],
    )
    behind = source_of(run_folder, meta, "kbm_benefit")
    assert behind is not None and (behind.folder, behind.name) == (tmp_path, "kbm_benefit")
    assert behind.identity == gate_identity(tmp_path)


def test_entities_that_a_gate_was_trained_on_are_refused_or_counted_in_every_row(
    script, run_folder, tmp_path, monkeypatch, capsys
):
    about(run_folder, "test", {3: "Q3", 4: "Q4", 5: "Q5"})
    asked = list(jsonl.read(GateExample, run_folder / "examples" / "test.jsonl"))
    other = replace(GateExample.ask("Where does it lie?"), entities=("Q4",))
    write_trained_on(tmp_path, [asked[3], other])  # one question itself, and another about Q4
    gate = opened_from(tmp_path)
    message = r"trained on entities of 1 of 200 test questions \(the first: 'test-4'\).*allow_entities"
    with pytest.raises(UserError, match=message):
        run(script, run_folder, gate, monkeypatch, allow_trained=True)
    assert gate.calls == 0
    run(script, run_folder, gate, monkeypatch, allow_trained=True, allow_entities=True)
    module = script("end_to_end")
    module.main(module.EndToEndConfig(run=run_folder, bootstrap_draws=100))
    mark = "(in training: 1 questions, 1 by entity)"
    assert f"kbm_benefit {mark}" in capsys.readouterr().out
    by_name = {found.gate: found for found in load(run_folder / "results.json").gates}
    assert by_name["kbm_benefit"].seen == by_name["kbm_mastery"].seen == Seen(1, 1)
    assert by_name["all_rag"].seen == Seen()
    module = script("write_report")
    module.main(module.ReportConfig(run=run_folder))
    text = (run_folder / "report.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| KBM, benefit")]
    assert len(rows) > 5 and all(mark in row for row in rows)
    module = script("classify")
    module.main(module.ClassifyConfig(run=run_folder))
    assert f"kbm_benefit {mark}" in capsys.readouterr().out


def test_dev_questions_that_stand_in_test_or_share_its_entities_are_refused_or_counted(
    script, run_folder, monkeypatch, capsys
):
    about(run_folder, "dev", {7: "Q7", 8: "Q8"})
    about(run_folder, "test", {1: "Q8"})
    with pytest.raises(UserError, match=r"1 of 80 dev questions share their entities with test \(the first: 'dev-8'\)"):
        run(script, run_folder, Scripted(), monkeypatch)
    run(script, run_folder, Scripted(), monkeypatch, allow_entities=True)
    module = script("end_to_end")
    module.main(module.EndToEndConfig(run=run_folder, bootstrap_draws=100))
    assert "1 dev questions share an entity with test" in capsys.readouterr().out
    meta = load(run_folder / "results.json").meta
    assert (meta["dev_entities_in_test"], meta["decided_by_rule"]) == (1, 0)
    rows = list(jsonl.read(GateExample, run_folder / "examples" / "dev.jsonl"))
    test = next(jsonl.read(GateExample, run_folder / "examples" / "test.jsonl"))
    jsonl.write(run_folder / "examples" / "dev.jsonl", [replace(rows[0], question=test.question), *rows[1:]])
    with pytest.raises(UserError, match=r"1 of 80 dev questions stand in test too .*allow_trained"):
        run(script, run_folder, Scripted(), monkeypatch, allow_entities=True)


def about(run_folder, split, entities):
    """The questions at these places ask about an entity, in questions.jsonl and in the examples."""
    names = {f"{split}-{place}": (entity,) for place, entity in entities.items()}
    path = run_folder / "questions.jsonl"
    questions = [replace(one, entities=names.get(one.id, one.entities)) for one in jsonl.read(Question, path)]
    jsonl.write(path, questions)
    write_meta(path, stage="made-up", config=None, inputs=[])
    rows = [example(question, None) for question in questions if question.split == split]
    jsonl.write(run_folder / "examples" / f"{split}.jsonl", rows)


def opened_from(folder, prompt="0"):
    """A scripted gate whose card lies in the folder."""
    KBMCard(
        base_model="m", keys=("mastery", "benefit"), prompt_fingerprint=prompt, max_length=512, dtype="fp32",
        method="full", labels="soft",
    ).write(folder)  # fmt: skip
    gate = Scripted()
    gate.folder = folder
    return gate


def test_bad_input_is_refused_before_a_model_is_opened(script, run_folder, monkeypatch):
    module = script("score")
    with pytest.raises(UserError, match="nothing to score"):
        module.main(build(module.ChoiceConfig, None, {"run": run_folder}))
    dev = run_folder / "examples" / "dev.jsonl"
    dev.write_text(dev.read_text().replace('"dev"', '"test"', 1))
    with pytest.raises(UserError, match="is of split 'test', expected 'dev'"):
        run(script, run_folder, Scripted(), monkeypatch)
    dev.write_text("")
    with pytest.raises(UserError, match="no example without a reference"):
        run(script, run_folder, Scripted(), monkeypatch)


def test_a_folder_whose_name_no_result_holds_is_told_before_anything_is_scored(script, run_folder):
    """Its scores were written, and read to the end of the evaluation."""
    opened_from(run_folder / "KBM-2")
    module = script("score")
    with pytest.raises(UserError, match=r"scores would be named 'KBM-2_mastery', .* lowercase letters, digits"):
        module.main(build(module.ChoiceConfig, None, {"run": run_folder}))


def test_a_kbm_folder_and_the_prompt_baseline_are_scored_like_the_gates_alone(script, sampled_run, capsys):
    import torch
    from tiny_kbm import make_folder, make_tokenizer

    torch.set_num_threads(1)
    folder = make_folder(sampled_run / "kbm")
    opened_from(folder, kbm_fingerprint(make_tokenizer(), ("mastery", "benefit")))
    module = script("score")
    config = build(module.ChoiceConfig, None, {"run": sampled_run, "model": str(folder), "dtype": "fp32"})
    module.main(config)
    assert "prompt, kbm_mastery, kbm_benefit" in capsys.readouterr().out
    scores = {
        (s.gate, s.question_id): s.score
        for name in ("prompt", "kbm")
        for s in jsonl.read(GateScore, sampled_run / "scores" / f"{name}.jsonl")
    }
    assert len(scores) == 3 * 100
    examples = list(jsonl.read(GateExample, sampled_run / "examples" / "dev.jsonl"))[:5]
    kbm = KBM.load(folder, "fp32")
    for gate in (handle_of_prompt("prompt", str(folder), "fp32").open(), kbm.gate("mastery"), kbm.gate("benefit")):
        expected = gate.score(examples)
        assert [scores[gate.name, e.question_id] for e in examples] == pytest.approx(expected, abs=1e-5)
    # a threshold noted later does not make the scores stale, other weights do
    set_threshold(folder, "kbm_benefit", Threshold(threshold=0.5, rule="0.5", dev_file_sha256="0", n_dev=1))
    module.main(config)
    assert "replaced" not in capsys.readouterr().out
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    with pytest.raises(UserError, match=r"not the weights that gate.json names"):
        module.main(config)
    KBMCard.read(folder).write(folder)  # other weights, and named: a gate trained again
    module.main(config)
    assert "replaced" in capsys.readouterr().out


def test_scores_of_other_inputs_stay_until_all_new_ones_are_there(script, run_folder, monkeypatch):
    scores = run_folder / "scores" / "kbm.jsonl"
    run(script, run_folder, Scripted(), monkeypatch)
    finished = scores.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        run(script, run_folder, Scripted(stop_after=4, depends="weights-2"), monkeypatch)
    assert scores.read_bytes() == finished
    idle = Scripted()
    run(script, run_folder, idle, monkeypatch)  # the first gate again: its scores are there
    assert (idle.opened, scores.read_bytes()) == (0, finished)
    again = Scripted(depends="weights-2")
    run(script, run_folder, again, monkeypatch)
    assert again.calls == 10 - 4 and scores.read_bytes() == finished  # this gate's scores are the same numbers
    assert not list(scores.parent.glob("*.new*"))


def test_a_run_over_one_split_keeps_the_scores_of_the_other(script, run_folder, monkeypatch):
    scores = run_folder / "scores" / "kbm.jsonl"
    run(script, run_folder, Scripted(), monkeypatch, splits=("dev",))
    alone = scores.read_bytes()
    run(script, run_folder, Scripted(), monkeypatch)
    both = scores.read_bytes()
    assert both.startswith(alone) and len(both) > len(alone)
    run(script, run_folder, Scripted(), monkeypatch, splits=("dev",))
    assert scores.read_bytes() == both


def test_some_test_questions_are_timed_alone_and_paid_for_by_no_bill(script, run_folder, monkeypatch):
    class Slow(Scripted):
        """A fixed cost a call: alone a question takes it whole."""

        def score_all(self, examples):
            sizes.append(len(examples))
            time.sleep(0.02)
            self.spent["requests"] += len(examples)
            return super().score_all(examples)

    sizes: list[int] = []
    monkeypatch.setattr(scoring, "ALONE", 3)
    run(script, run_folder, Slow(), monkeypatch)
    assert sizes == [32, 32, 16, 32, 1, 1, 1, 32, 32, 32, 32, 32, 8]
    stored = stored_scores(run_folder)
    assert stored.took("kbm_mastery", "spent_per_question") == {"requests": 1.0}
    alone, busy = stored.took("kbm_benefit", "seconds_alone"), stored.took("kbm_benefit")
    assert alone is not None and alone > 0.02 > 10 * busy
    assert asking_of(stored, "kbm_mastery").latency == alone and asking_of(stored, "kbm_mastery").seconds == busy


@pytest.mark.parametrize(("answered", "scored", "within"), [("fp32", "auto", True), ("bf16", "auto", False),
                                                            ("bf16", "bf16", True), (None, "auto", True)])  # fmt: skip
def test_a_pass_is_within_the_answer_where_both_are_in_one_number_format(tmp_path, answered, scored, within):
    """A probe that reads in fp32 beside answers in bf16 has its own pass for every question."""
    gate_folders.probe(tmp_path / "probe")
    gate = handle(tmp_path / "probe")
    assert within_answer(tmp_path, gate, "auto")  # of answers that are not here
    with SampleStore(tmp_path / "samples.db") as store:
        store.begin("main", {} if answered is None else {"dtype": answered})
    assert within_answer(tmp_path, gate, scored) == within


@pytest.mark.parametrize(("members", "within"), [
    (["features"], False), (["probe", "features"], True), (["probe", "draft_probe"], True), (["draft"], True),
    (["probe", "kbm"], False), (["probe", "decision_model"], False),
])  # fmt: skip
def test_a_stack_s_passes_are_the_answer_s_if_those_of_all_its_members_are(tmp_path, members, within):
    (tmp_path / "stack").mkdir()
    for name in members:
        gate_folders.FOLDERS[name](tmp_path / "stack" / name)
    of = tuple(Member(folder=name, scores=(name,), stage="question") for name in members)
    model = Linear(intercept=0.0, inputs={}, strength=1.0)
    StackCard(keys=("benefit",), members=of, labels="soft", models={"benefit": model}).write(tmp_path / "stack")
    assert within_answer(tmp_path, handle(tmp_path / "stack"), "auto") == within


def test_an_edited_score_is_refused_where_it_is_scored_and_where_it_is_read(script, run_folder, monkeypatch):
    run(script, run_folder, Scripted(), monkeypatch)
    scores = run_folder / "scores" / "kbm.jsonl"
    lines = scores.read_text().splitlines(keepends=True)
    first = GateScore("dev-0", "kbm_mastery", 123.0)
    scores.write_text("".join([jsonl.dump(first) + "\n", *lines[1:]]))
    with pytest.raises(UserError, match=r"kbm\.jsonl: was changed since it was scored; delete it to score again"):
        run(script, run_folder, Scripted(), monkeypatch)
    with pytest.raises(UserError, match=r"kbm\.jsonl: was changed since score made it"):
        stored_scores(run_folder)
    write_meta(scores, stage="score", config={}, inputs=[])
    with pytest.raises(UserError, match=r"kbm\.jsonl: made by an older version of kbtrain; delete it and run again"):
        run(script, run_folder, Scripted(), monkeypatch)
    scores.unlink()
    run(script, run_folder, Scripted(), monkeypatch)
    assert scores.read_text() == "".join(lines)


def test_new_scores_that_a_kill_left_beside_the_older_inputs_are_not_taken_for_the_older(tmp_path, monkeypatch):
    def made(gate, score):
        with scoring.ScoreFile(tmp_path / "g.jsonl", {"gate": gate}) as file:
            if not file.done:
                timing = scoring.Timing(("g",), "dev", 1, 0.1)
                file.append(scoring.ScoredChunk((GateScore("q", "g", score),), timing))
            file.finish("score", {}, [], 0.0, ["g"])
        return next(jsonl.read(GateScore, tmp_path / "g.jsonl")).score

    def killed(*_, **__):
        raise KeyboardInterrupt

    assert made("old", 1.0) == 1.0
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(scoring, "write_meta", killed)
        made("new", 2.0)
    assert made("old", 1.0) == 1.0


@pytest.mark.parametrize("killed", [0, 1, 2])
def test_costs_are_those_of_an_unkilled_scoring_whatever_was_written_of_a_chunk(tmp_path, killed):
    """A chunk was counted twice, or not at all, after a kill between its scores and its costs."""

    def chunk(number):
        scores = [GateScore(f"q{4 * number + i}", name, 0.5) for i in range(2) for name in ("a", "b")]
        timing = scoring.Timing(("a", "b"), "dev", 2, 0.1, {"tokens": 10 + number})
        return scoring.ScoredChunk(tuple(scores), timing)

    def score(path):
        with scoring.ScoreFile(path, {"gate": "g"}) as file:
            for number in range(3):
                if any((one.gate, one.question_id) not in file.done for one in chunk(number).scores):
                    file.append(chunk(number))
            file.finish("score", {}, [], 0.0, ["a"])
        spent: dict[str, float] = read_meta(path)["spent_per_question"]["a"]["dev"]
        return spent

    with scoring.ScoreFile(tmp_path / "g.jsonl", {"gate": "g"}) as file:
        for number in range(killed):
            file.append(chunk(number))
    with open(scoring.chunks_path(tmp_path / "g.jsonl"), "a") as torn:
        torn.write(jsonl.dump(chunk(killed))[:-9])
    assert score(tmp_path / "g.jsonl") == score(tmp_path / "unkilled.jsonl") == {"tokens": 33 / 6}
    assert (tmp_path / "g.jsonl").read_bytes() == (tmp_path / "unkilled.jsonl").read_bytes()


def test_a_new_gate_is_fitted_scored_and_evaluated_in_a_run_folder(run_folder, monkeypatch):
    monkeypatch.setitem(GATES, "length", "support.length_gate:KIND")
    fit = ["--gate", "length", "--labels", "hard", "--output", run_folder / "length"]
    for split in ("train", "dev"):  # short questions are mastered: one digit, and not the first, which is long
        path = run_folder / f"labelled_{split}.jsonl"
        rows = jsonl.read(GateExample, run_folder / "examples" / f"{split}.jsonl")
        jsonl.write(path, [replace(row, mastery=0 < int(row.question_id.split("-")[1]) < 10) for row in rows])
        fit += [f"--{split}", path]
    for script, *arguments in (
        ("recipes/fit_gate.py", *fit),
        ("eval/score.py", "--run", run_folder),
        ("eval/end_to_end.py", "--run", run_folder, "--bootstrap-draws", 100),
    ):
        done = here(script, *arguments)
        assert done.returncode == 0, done.stderr
    test = list(jsonl.read(GateExample, run_folder / "examples" / "test.jsonl"))
    stored = {row.question_id: row.score for row in jsonl.read(GateScore, run_folder / "scores" / "length.jsonl")}
    assert [stored[row.question_id] for row in test] == pytest.approx([len(row.question) for row in test])
    gates = {gate.gate: gate for gate in load(run_folder / "results.json").gates}
    assert gates["length"].n == 200
    relabelled = [replace(row, mastery=True) for row in jsonl.read(GateExample, run_folder / "examples" / "dev.jsonl")]
    jsonl.write(run_folder / "examples" / "dev.jsonl", relabelled)
    assert here("eval/end_to_end.py", "--run", run_folder, "--bootstrap-draws", 100).returncode == 0
    questions = list(jsonl.read(Question, run_folder / "questions.jsonl"))
    for split in ("dev", "test"):
        one = next(question for question in questions if question.split == split)
        changed = [replace(q, text=f"Now: {q.text}") if q is one else q for q in questions]
        jsonl.write(run_folder / "questions.jsonl", changed)
        with pytest.raises(UserError, match=r"length\.jsonl: its questions are others than those of questions"):
            stored_scores(run_folder)
