"""An audit of a log, step by step: the draw, the blind sheet, figures by hand, the threshold and its way back."""

import json
import os
import re
import shutil

import numpy as np
import pytest
from serve_support import probe_folder
from support.files import judge

from kbtrain.cli import main
from kbtrain.errors import UserError
from kbtrain.evaluation.audit import JudgedTurns, audit_figures, best_threshold, draw_turns
from kbtrain.gate.card import Threshold, read_gate_json, set_threshold
from kbtrain.gates.handles import gate_identity
from kbtrain.io import jsonl
from kbtrain.io.provenance import write_atomically, write_meta
from kbtrain.io.store import SampleStore
from kbtrain.metrics.significance import Delta
from kbtrain.records import GREEDY, Question, Sample, SampleSet
from kbtrain.report.audit import AuditTurn, judged_turns, n_reached, read_sheet

N = 300


@pytest.fixture(scope="module")
def gate(tmp_path_factory):
    return probe_folder(tmp_path_factory.mktemp("audit") / "probe", dev_scores=[i / 100 for i in range(1, 100)])


@pytest.fixture
def folder(gate, tmp_path):
    return shutil.copytree(gate, tmp_path / "probe")


@pytest.fixture
def log(folder, tmp_path):
    """Turns with scores 0 to 1; one without a text, and one of another gate."""
    name, path = f"encoder_probe@{gate_identity(folder)}", tmp_path / "log.jsonl"
    rows = [{"time": i, "gate": name, "score": i / N, "question": f"=question {i}?"} for i in range(N)]
    rows += [{"time": 0, "gate": name, "score": 0.5}, {**rows[0], "gate": "other@0"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def is_right(name, run):
    """Plain answers are right below 0.6, those with passages above 0.2."""
    score = next(turn.score for turn in jsonl.read(AuditTurn, run / "turns.jsonl") if turn.question_id == name)
    return score < 0.6, score > 0.2


def answer(run):
    """Stored answers under both arms, as sample writes them: "good" or "bad"."""
    questions = list(jsonl.read(Question, run / "questions.jsonl"))
    with SampleStore(run / "samples.db") as store:
        store.begin("main", {"model": "m"})
        sets = []
        for question in questions:
            for condition, right in zip(("llm", "rag"), is_right(question.id, run), strict=True):
                greedy = Sample(GREEDY, "good" if right else "bad", 1, "eos", 0.0)
                sets.append(SampleSet(question.id, condition, (), greedy, 10))
        store.put("main", sets)
    write_meta(run / "samples.db", stage="sample", config={}, inputs=[])
    return questions


def run_audit(capsys, *words):
    assert main(["audit", *map(str, words)]) == 0
    return capsys.readouterr().out


def test_an_audit_leads_from_a_log_to_a_threshold_and_back(folder, log, tmp_path, capsys):
    run, before = tmp_path / "audit", read_gate_json(folder)["thresholds"]
    with pytest.raises(UserError, match="--n 19: at least 20 turns are needed"):
        main_raises("audit", folder, "--log", log, "--run", run, "--n", 19)
    for idle, needed in ((["--max-loss", 0.1], "--goal max_loss"), (["--replace"], "--apply")):
        with pytest.raises(UserError, match=f"{idle[0]}: applies only with {needed}"):
            main_raises("audit", folder, "--log", log, "--run", run, *idle)
    shown = run_audit(capsys, folder, "--log", log, "--run", run, "--n", 60, "--dry-run")
    assert "60 of 300 turns drawn" in shown and "120 answers would be" in shown and not run.exists()
    shown = run_audit(capsys, folder, "--log", log, "--run", run, "--n", 60)
    assert "1 of other gates or versions" in shown and "1 without the question's text" in shown
    assert f"kbtrain run retrieve --run {run}" in shown
    scores = [turn.score for turn in jsonl.read(AuditTurn, run / "turns.jsonl")]
    assert sorted(int(score * 60) for score in scores) == list(range(60))  # one of each block
    answer(run)
    assert "wrote" in run_audit(capsys, folder, "--run", run)
    assert "is there already" in run_audit(capsys, folder, "--run", run)  # verdicts in it are never overwritten
    rows = judge(run / "sheet.csv")
    assert rows[0]["question"].startswith("'=question")  # no formula
    assert {"llm", "rag", "score"}.isdisjoint(rows[0]) and len({row["answer_a"] for row in rows}) == 2
    page = (run / "sheet.html").read_text()
    assert page.count("<section") == 60 and "=question" in page
    verdicts = ("--verdicts", run / "sheet.csv")
    shown = run_audit(capsys, folder, "--run", run, *verdicts)
    assert "60 of 60 drawn turns judged by people" in shown
    at = {line.split("  ")[0]: line.split("  ") for line in shown.splitlines()}
    figures = {name: [cell.strip() for cell in cells[1:] if cell.strip()] for name, cells in at.items()}
    right = np.array([is_right(row["id"], run) for row in rows])
    assert figures["right, never searching"][0].startswith(f"{100 * right[:, 0].mean():.1f} [")
    # at 0.5: of those above, a sixth to a fifth is known without a search; below, nothing is missed
    assert figures["missed, of the others"][0].startswith("0.0 [0.0, ")
    assert figures["needless, of the searched"][0].startswith(
        f"{100 * right[np.array(scores_of(rows, run)) > 0.5, 0].mean():.1f} ["
    )
    assert read_gate_json(folder)["thresholds"] == before  # nothing is noted without --apply
    proposal = json.loads((run / "proposal.json").read_text())
    assert proposal["figures"][1]["gate"]["mean"] == 1.0  # searches above 0.6 alone: all right
    shown = run_audit(capsys, folder, "--run", run, *verdicts, "--apply")
    assert "not applied" not in shown, shown
    noted = read_gate_json(folder)["thresholds"]["encoder_probe"]
    assert noted["rule"] == "best_accuracy of 60 audited turns" and 0.2 <= noted["threshold"] <= 0.6
    assert "was 0.5 (given), is" in shown
    again = run_audit(capsys, folder, "--run", run, *verdicts, "--apply", "--replace")
    assert "(best_accuracy of 60 audited turns); reload" in again  # one rollback takes both back
    assert "would be 0.5 (given) again" in run_audit(capsys, folder, "--rollback", "--dry-run")
    assert "is 0.5 (given) again" in run_audit(capsys, folder, "--rollback")
    given = {"rule": "given", "dev_file_sha256": "", "n_dev": 1, "evidence": {"dev_scores": [0.1]}}
    set_threshold(folder, "encoder_probe", Threshold.model_validate({**given, "threshold": -0.9}))
    assert "  always search, now" in run_audit(capsys, folder, "--run", run, *verdicts)
    set_threshold(folder, "encoder_probe", Threshold.model_validate({**given, "threshold": 9.0}))  # never searches
    worse = run_audit(capsys, folder, "--run", run, *verdicts)
    assert "warning: the stored threshold 9 is certainly worse than always searching (-" in worse
    set_threshold(folder, "encoder_probe", Threshold.model_validate(before["encoder_probe"]))
    assert read_gate_json(folder)["thresholds"] == before
    assert "certainly worse" not in shown
    with pytest.raises(UserError, match="nothing to roll back"):
        main_raises("audit", folder, "--rollback")


def scores_of(rows, run):
    known = {turn.question_id: turn.score for turn in jsonl.read(AuditTurn, run / "turns.jsonl")}
    return [known[row["id"]] for row in rows]


def main_raises(*words):
    from kbtrain.cli import _arguments

    args = _arguments([str(word) for word in words])
    args.run(args)


class Killed(BaseException):
    """The end of the process, at a write."""


@pytest.mark.parametrize("place", range(1, 7))
def test_an_audit_that_was_killed_while_it_wrote_is_drawn_and_laid_out_by_the_same_command(
    folder, log, tmp_path, capsys, monkeypatch, place
):
    run, command = tmp_path / "audit", (folder, "--log", log, "--run", tmp_path / "audit", "--n", 60)
    writes, move = [], os.replace

    def moved(source, target):
        writes.append(target)
        if len(writes) == place:
            raise Killed
        move(source, target)

    def dying(*words):
        try:
            with monkeypatch.context() as patched:
                patched.setattr(os, "replace", moved)
                main(["audit", *map(str, words)])
        except Killed:
            return

    dying(*command)
    run_audit(capsys, *command)
    answer(run)
    dying(folder, "--run", run)
    run_audit(capsys, folder, "--run", run)
    assert (run / "sheet.csv").exists() and (run / "sheet.html").read_text().count("<section") == 60
    assert len(list(jsonl.read(AuditTurn, run / "turns.jsonl"))) == 60


def test_a_folder_with_turns_of_another_run_is_refused(folder, log, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "turns.jsonl").write_text("{}\n")
    write_meta(tmp_path / "run" / "turns.jsonl", stage="collect_turns", config={}, inputs=[])
    assert main(["audit", str(folder), "--log", str(log), "--run", str(tmp_path / "run")]) == 2
    assert "a run folder that is not an audit's; give another --run" in capsys.readouterr().err
    assert (tmp_path / "run" / "turns.jsonl").read_text() == "{}\n"


def test_applied_twice_or_rolled_back_twice_the_first_threshold_is_back(folder, log, tmp_path, capsys, monkeypatch):
    run, before = tmp_path / "audit", read_gate_json(folder)["thresholds"]
    (folder / "README.md").write_text("# A gate\n\n## Threshold\n")
    set_threshold(folder, "encoder_probe", Threshold.model_validate(before["encoder_probe"]))
    page = (folder / "README.md").read_text()
    run_audit(capsys, folder, "--log", log, "--run", run, "--n", 60)
    answer(run)
    run_audit(capsys, folder, "--run", run)
    judge(run / "sheet.csv")
    command = (folder, "--run", run, "--verdicts", run / "sheet.csv", "--apply")
    with monkeypatch.context() as patched:
        patched.setattr("kbtrain.report.audit.best_threshold", lambda judged: (0.6, Delta(0.01, -0.02, 0.04)))
        shown = run_audit(capsys, *command)
        assert "next: keep the threshold: no gain is shown, +1.0 [" in run_audit(capsys, *command[:-1])
    assert "proposed" not in shown and "do not apply: no gain is shown: the most right" in shown
    assert "not applied: no gain is shown, +1.0 [-2.0, +4.0] points" in shown
    for _ in range(2):
        run_audit(capsys, *command, "--replace")
    assert page != (folder / "README.md").read_text()
    with monkeypatch.context() as patched:  # killed between the two files
        patched.setattr("kbtrain.gate.card.write_atomically", write_then_die)
        with pytest.raises(Killed):
            main(["audit", str(folder), "--rollback"])
    assert "is 0.5 (given) again" in run_audit(capsys, folder, "--rollback")
    assert read_gate_json(folder)["thresholds"] == before and (folder / "README.md").read_text() == page


def write_then_die(path, text):
    write_atomically(path, text)
    raise Killed


def test_a_judge_labels_all_and_people_a_part(folder, log, tmp_path, capsys):
    run = tmp_path / "audit"
    run_audit(capsys, folder, "--log", log, "--run", run, "--n", 120)
    answer(run)
    run_audit(capsys, folder, "--run", run)
    shutil.copy(run / "sheet.csv", run / "judge.csv")
    judge(run / "judge.csv")
    judge(run / "sheet.csv", 40)
    alone = width(run_audit(capsys, folder, "--run", run, "--verdicts", run / "sheet.csv"))
    shown = run_audit(capsys, folder, "--run", run, "--verdicts", run / "sheet.csv", "--judge", run / "judge.csv")
    assert "40 of 120 drawn turns judged by people, and 120 by a judge that they correct" in shown
    assert width(shown) < 0.8 * alone
    by_judge = run_audit(capsys, folder, "--run", run, "--judge", run / "sheet.csv")
    assert "40 of 120 drawn turns judged by the judge" in by_judge


def width(shown):
    line = next(line for line in shown.splitlines() if line.startswith("right, always"))
    low, high = line.split("[")[1].split("]")[0].split(", ")
    return float(high) - float(low)


def test_accepted_answers_judge_without_people_and_promise(folder, log, tmp_path, capsys):
    run, gold = tmp_path / "audit", tmp_path / "gold.csv"
    gold.write_text("question,answers\n" + "".join(f"=question {i}?,good\n=question {i}?,N/A\n" for i in range(N)))
    shown = run_audit(capsys, folder, "--log", log, "--run", run, "--n", 100, "--gold", gold)
    assert "100 with a reference answer" in shown
    answer(run)
    other = shutil.copytree(folder, tmp_path / "other")
    (other / "more.safetensors").write_bytes(b"")
    assert main(["audit", str(other), "--run", str(run)]) == 2
    assert "or with another gate's scores than" in capsys.readouterr().err
    shown = run_audit(capsys, folder, "--run", run, "--goal", "max_loss", "--max-loss", "0.1", "--apply")
    assert "judged by the reference answers" in shown
    guarantee = read_gate_json(folder)["thresholds"]["encoder_probe"]["evidence"]["guarantee"]
    assert guarantee["limit"] == 0.1 and guarantee["bound"] <= 0.1 and guarantee["n"] == 100


def test_few_questions_that_repeat_are_judged_by_their_reference_answers(folder, log, tmp_path, capsys):
    run, gold, faq = (tmp_path / name for name in ("audit", "gold.jsonl", "faq.jsonl"))
    faq.write_text(re.sub(r"question (\d+)\?", lambda found: f"question {int(found[1]) % 15}?", log.read_text()))
    rows = ({"question": f"=question {i}?", "answer": "good" if i < 15 else None} for i in range(16))
    gold.write_text("\n".join(map(json.dumps, rows)))
    run_audit(capsys, folder, "--log", faq, "--run", run, "--n", 60, "--gold", gold)
    answer(run)
    assert "60 of 60 drawn turns judged by the reference answers" in run_audit(capsys, folder, "--run", run)


def test_of_a_sheet_judged_in_part_the_turns_count_up_to_the_first_row_that_was_not_reached():
    turns = [AuditTurn(name, 0.5) for name in "aabaca"]
    said = {"a": (1.0, 1.0), "b": (0.0, 1.0)}
    assert n_reached(turns, said) == 4 and n_reached(turns, said | {"c": (0.0, 0.0)}) == 6
    assert list(judged_turns(turns, said, {}, 4).llm) == [1, 1, 0, 1]
    with_judge = judged_turns(turns, said, dict.fromkeys("abc", (1.0, 0.0)), 4)
    assert list(with_judge.judged) == [True] * 4 + [False] * 2 and with_judge.judge_rag.sum() == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,a_right,b_right\nx1,1,0\n", r":2: field .id.: no answered question 'x1' in this audit"),
        ("id,a_right,b_right\na2,maybe,0\n", r":2: field .a_right.: expected true, false, 1 or 0"),
        ("id,a_right,b_right\na2,1,0\na2,1,0\n", r":3: field .id.: duplicate 'a2'"),
        ("id,a_right,b_right\na2,1,\n", r"no row has both verdicts"),
    ],
)
def test_a_sheet_with_a_fault_is_refused_by_line(tmp_path, text, message):
    (tmp_path / "sheet.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        read_sheet(tmp_path / "sheet.csv", {"a2": None})


def test_figures_by_hand():
    turns = JudgedTurns(np.arange(8) / 8, np.array([1, 0, 1, 0, 1, 0, 0, 1.0]), np.array([0, 1, 1, 1, 1, 0, 1, 1.0]))
    found = audit_figures(turns, 0.45)  # the last four are searched for
    assert (found.searched, found.gate.mean, found.always.mean, found.never.mean) == (0.5, 5 / 8, 6 / 8, 4 / 8)
    assert found.difference.mean == pytest.approx((1 - 2) / 8)  # one answer gained, two lost
    assert found.needless is not None and found.missed is not None
    assert (found.needless.mean, found.missed.mean) == (2 / 4, 2 / 4)


def test_every_turn_has_the_same_chance():
    rng, counts = np.random.default_rng(0), np.zeros(50)
    for _ in range(4000):
        np.add.at(counts, draw_turns(np.zeros(50), 10, rng), 1)
    assert counts.min() > 650 and counts.max() < 950  # 800 of each


def test_a_threshold_that_changes_no_judged_answer_keeps_an_interval():
    turns = JudgedTurns(np.arange(30) / 30, np.where(np.arange(30) < 15, 1.0, 0.0), np.ones(30))
    threshold, difference = best_threshold(turns)
    assert 14 / 30 <= threshold < 15 / 30 and difference.mean == 0.0
    assert difference.low < -0.05 and difference.high > 0.05  # of fifteen turns that are not searched for
