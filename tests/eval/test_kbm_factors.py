"""What a KBM has learnt beside other gates: figures by hand, and trainings whose figures are kept."""

import json
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
from support import scripts
from support.recipes import Recipe
from tiny_kbm import make_folder

from kbtrain import jsonl
from kbtrain.config import build, parse_args
from kbtrain.errors import UserError
from kbtrain.evaluation.run_folder import read_run
from kbtrain.labeling.examples import example
from kbtrain.metrics.ranking import normalised_area
from kbtrain.records import GateExample, GateScore, Label, Question

factors = scripts.load("benchmarks/kbm_factors.py")


@pytest.fixture
def run(sampled_run):
    """The run folder with labels in its training and dev examples, and the KBM's scores in their place."""
    questions = {q.id: q for q in jsonl.read(Question, sampled_run / "questions.jsonl")}
    rows = [example(questions[la.question_id], la) for la in jsonl.read(Label, sampled_run / "labels.jsonl")]
    for split in ("train", "dev"):
        jsonl.write(sampled_run / "examples" / f"{split}.jsonl", [row for row in rows if row.split == split])
    scores = list(jsonl.read(GateScore, sampled_run / "scores.jsonl"))
    jsonl.write(sampled_run / "scores" / "kbm.jsonl", [one for one in scores if one.gate != "prompt"])
    return sampled_run


def printed(capsys):
    """Cells of the table's rows, by the first two."""
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    return {(row[0], row[1]): row[2:] for row in rows[1:]}


def test_figures_are_those_of_the_labels_the_scores_and_the_answers(run, capsys):
    factors.main(build(factors.KBMFactorsConfig, None, {"run": run}))
    found = printed(capsys)
    assert list(found) == [("kbm", "mastery"), ("kbm", "certainty"), ("kbm", "benefit")]
    scores = factors.scores_of(run, "kbm")
    dev = list(jsonl.read(GateExample, run / "examples" / "dev.jsonl"))
    labels, p = (np.array([value(e) for e in dev]) for value in (lambda e: e.soft_mastery,
                 lambda e: scores["mastery"][e.question_id]))  # fmt: skip
    assert found["kbm", "mastery"][:4] == [
        "40", f"{labels.std():.3f}", f"{p.std():.3f}", f"{np.corrcoef(labels, p)[0, 1]:.3f}"
    ]  # fmt: skip
    asked = read_run(run, scores=False).test.outcomes
    llm, rag = (np.array([float(getattr(o, side)) for o in asked]) for side in ("llm_correct", "rag_correct"))
    # mastery speaks against retrieval, benefit for it
    against = np.array([1 - scores["mastery"][o.question_id] for o in asked])
    speaks = np.array([scores["benefit"][o.question_id] for o in asked])
    assert found["kbm", "mastery"][-1] == f"{normalised_area(against, llm, rag):.3f}"
    assert found["kbm", "benefit"][-1] == f"{normalised_area(speaks, llm, rag):.3f}"


def test_a_factor_is_trained_once_a_seed_and_its_figures_are_kept(run, tmp_path, capsys, monkeypatch):
    """The recipe itself trains a tiny model, in this process."""
    folder, trained = make_folder(tmp_path / "model"), []
    settings = tmp_path / "tiny.yaml"
    settings.write_text(f"model: {folder}\nlabels: soft\ndtype: fp32\nselect: last\n")

    def here(command, **options):
        trained.append(command)
        Recipe("kbm")(command[2:])
        return CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("subprocess.run", here)
    given = {"run": run, "train": ("alone",), "seeds": 2, "kbm_config": str(settings), "output": tmp_path / "out"}
    config = build(factors.KBMFactorsConfig, None, given)
    factors.main(config)
    first = printed(capsys)
    assert [command[command.index("--seed") + 1] for command in trained] == ["0", "1"]
    assert all("[benefit]" in command for command in trained)  # the factor's own change
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["alone-0.json", "alone-1.json"]  # no weights
    areas = [json.loads((tmp_path / "out" / f"alone-{seed}.json").read_text())["benefit"]["area"] for seed in (0, 1)]
    cells = first["KBM alone", "benefit"]
    assert cells[-2] == f"{np.mean(areas):.3f} sd {np.std(areas, ddof=1):.3f}"
    factors.main(config)
    assert len(trained) == 2 and printed(capsys) == first


def test_balanced_labels_weigh_true_and_false_alike_and_predictions_come_back(run, tmp_path, monkeypatch):
    """Their mean says nothing any more; a gate that predicts a label's balanced value is read as the label."""
    train = list(jsonl.read(GateExample, run / "examples" / "train.jsonl"))
    shares = factors.means(train)
    made = [factors.balanced(e, shares) for e in train]
    for key, share in shares.items():
        soft = [(getattr(e, f"soft_{key}"), getattr(m, f"soft_{key}")) for e, m in zip(train, made, strict=True)]
        true, false = (sum(mass for mass in part) for part in zip(*((s * (1 - share), (1 - s) * share)
                       for s, _ in soft), strict=True))  # fmt: skip
        assert true == pytest.approx(false)
        assert all(m == pytest.approx(s * (1 - share) / (s * (1 - share) + (1 - s) * share)) for s, m in soft)
        assert all(factors.weighed(m, 1 - share) == pytest.approx(s) for s, m in soft)
    folder = make_folder(tmp_path / "model")
    settings = tmp_path / "tiny.yaml"
    settings.write_text(f"model: {folder}\nlabels: soft\ndtype: fp32\nselect: last\n")
    given = []

    def here(command, **options):
        given.extend(jsonl.read(GateExample, Path(command[command.index("--train") + 1])))
        Recipe("kbm")(command[2:])
        return CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("subprocess.run", here)
    asked = {"run": run, "train": ("balanced",), "seeds": 1, "kbm_config": str(settings), "output": tmp_path / "out"}
    factors.main(build(factors.KBMFactorsConfig, None, asked))
    assert given == made
    kept = json.loads((tmp_path / "out" / "balanced-0.json").read_text())
    assert kept["mastery"]["labels_spread"] == pytest.approx(
        np.std([e.soft_mastery for e in jsonl.read(GateExample, run / "examples" / "dev.jsonl")])
    )  # measured on labels as they are


@pytest.mark.parametrize("factor", factors.FACTORS)
def test_a_factor_is_in_place_of_what_it_changes(run, factor, tmp_path, monkeypatch):
    """The recipe takes every factor's command; a training that fails is one line."""
    recipe = Recipe("kbm")

    def failed(command, **options):
        config = parse_args(recipe.config, command[2:])
        assert config.epochs == {"epochs_2": 2, "epochs_4": 4, "prompt_epochs_4": 4}.get(factor, 0.5)
        return CompletedProcess(command, 2, "", "")

    monkeypatch.setattr("subprocess.run", failed)
    given = {"run": run, "train": (factor,), "epochs": 0.5, "output": tmp_path / "out"}
    with pytest.raises(UserError, match=f"factor '{factor}', seed 0: its training ended with the error above"):
        factors.main(build(factors.KBMFactorsConfig, None, given))


def test_dev_questions_without_labels_are_one_line(run):
    path = run / "examples" / "dev.jsonl"
    jsonl.write(path, [example(q, None) for q in jsonl.read(Question, run / "questions.jsonl") if q.split == "dev"])
    with pytest.raises(UserError, match="key 'mastery': no dev question has both a score and a soft label"):
        factors.main(build(factors.KBMFactorsConfig, None, {"run": run}))
