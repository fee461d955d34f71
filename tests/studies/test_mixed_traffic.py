"""Mixed traffic: its chains take their commands, published verdicts become a table, rows are counted as said."""

import json
from pathlib import Path

import numpy as np
import pytest
from support import scripts
from support.snippets import run_snippet

from kbtrain.config import parse_args
from kbtrain.records import Outcome, Question

GATES = Path(__file__).parents[2] / "studies/mixed_traffic/gates"
WORDS = {"shop": "Which aisle sells {}?", "exam": "What is the derivative of {}?"}


@pytest.mark.parametrize("name", ["make_data", "run"])
def test_every_stage_takes_its_keys(tmp_path, name):
    study = scripts.load(f"studies/mixed_traffic/{name}.py")
    if name == "run":
        config = study.MixedConfig(run=tmp_path, model="some/model", ks=(1, 3))
        free = study.write_free_prompts(tmp_path)
        steps = [study.pilot_step(config, free), *study.answering(config, free), *study.gates(config, json.dumps(free))]
    else:
        config = study.MixedDataConfig(data=tmp_path, run=tmp_path / "mixed")
        steps = [*study.collecting(config, tmp_path / "c.csv"), *study.pooling(config, tmp_path / "corpus.jsonl")]
    for step in steps:
        stage = parse_args(scripts.config_class(Path(step.command()[1])), step.arguments)
        assert not {*config.writes()} & {*stage.writes()}  # a stage would wait for its own parent


def test_published_verdicts_become_a_table(tmp_path, capsys):
    """The shop's questions need a search, the exam's are broken by one: the rule by source knows it."""
    study, rows = scripts.load("studies/mixed_traffic/published_answers.py"), []
    for i in range(240):
        source = "shop" if i % 2 else "exam"
        right = {"none": source == "exam", "one": source == "shop"}
        models = ("gpt-4o", "gpt-4o-mini", "llama-3-8b-instruct", "flan-t5-xl", "flan-t5-xxl")
        split = "test" if i % 3 == 0 else "train"
        row = {"id": f"q{i}", "dataset": source, "split": split, "question": WORDS[source].format(i)}
        rows.append({**row, "llms": dict.fromkeys(models, right)})
    path = tmp_path / "outcomes.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    study.main(study.PublishedConfig(path=(path,), out=tmp_path / "figures.json", bootstrap_draws=100))
    figures = json.loads((tmp_path / "figures.json").read_text())["models"]["gpt-4o"]
    assert figures["n"]["test"] == 80
    assert (figures["by_source"]["accuracy"], figures["by_source"]["searches"]) == (1.0, 0.5)
    assert "| by source | 100.0 | 50 |" in capsys.readouterr().out


def test_rows_count_searches_tokens_and_money():
    study = scripts.load("studies/mixed_traffic/table.py")
    llm, rag = np.array([1.0, 0.0, 0.0, 1.0]), np.array([0.0, 1.0, 1.0, 1.0])
    none, every, half = np.zeros(4), np.ones(4), np.array([0.0, 1.0, 1.0, 0.0])
    policies = [
        study.Policy("never", llm, none, none), study.Policy("always", rag, every, every),
        study.Policy("by_source", np.maximum(llm, rag), half, half), study.Policy("features_after", rag, every, half),
    ]  # fmt: skip
    rows = {row[0]: row for row in study.gate_rows(policies, (np.full(4, 10.0), np.full(4, 30.0)))}
    assert rows["by source"][1:3] == ["100.0", "50"] and rows["by source"][6:] == ["20", "0.50 / 2.50"]
    assert rows["`features` after the search"][6:] == ["20", "1.00 / 5.00"]
    assert rows["always"][4] == "-" and rows["never"][4].startswith("-25.0")
    outcomes = [Outcome(f"q{i}", "test", None, bool(llm[i]), bool(rag[i]), None, None, 0, 0) for i in range(4)]
    questions = {f"q{i}": Question(f"q{i}", "?", ("a",), "test", "d", source="ab"[i // 2]) for i in range(4)}
    assert study.source_rows(policies[2], outcomes, questions) == [
        ["a", "2", "50.0", "50.0", "100.0", "50"], ["b", "2", "50.0", "100.0", "100.0", "50"],
    ]  # fmt: skip


def test_the_pilot_of_the_run_becomes_a_table(tmp_path):
    study = scripts.load("studies/mixed_traffic/table.py")
    never, one, free = ({"candidates": "c", "k": k, "form": form} for k, form in ((0, ""), (1, ""), (1, "free")))
    counts = {"n": 8, "low": 0.1, "high": 0.9, "repaired": 3, "broken": 1, "prompt_tokens": 80.4}
    results = [{**counts, "setting": setting, "right": right} for setting, right in ((never, 2), (one, 4), (free, 5))]
    (tmp_path / "pilot.json").write_text(json.dumps({"chosen": free, "never": results[0], "settings": results[1:]}))
    assert study.pilot_rows(tmp_path / "pilot.json") == [
        ["no search", "plain", "25.0 [10.0, 90.0]", "3", "1", "80"],
        ["1", "plain", "50.0 [10.0, 90.0]", "3", "1", "80"],
        ["1, chosen", "free", "62.5 [10.0, 90.0]", "3", "1", "80"],
    ]


def test_two_searches_are_compared_on_common_questions():
    study = scripts.load("studies/mixed_traffic/table.py")

    def run(names, right):
        outcomes = [Outcome(name, "test", None, False, True, None, None, 0, 0) for name in names]
        return outcomes, [study.Policy("always", np.array(right), np.ones(3), np.ones(3))]

    rows = study.common_rows(run("abc", [1.0, 0.0, 0.0]), run("cab", [1.0, 1.0, 1.0]), ("one", "three"))
    assert [row[:4] for row in rows] == [["one: always", "3", "33.3", "100"], ["three: always", "3", "100.0", "100"]]
    assert rows[0][4].startswith("-66.7") and rows[1][4] == "-"


def test_the_measured_gates_decide_as_their_page_says():
    printed, page = run_snippet(GATES), (GATES / "README.md").read_text(encoding="utf-8")
    assert len(printed) == 2 and all(f"# {line}\n" in page for line in printed)


def test_tables_of_stored_scores_are_those_of_their_pages():
    for name, page, n in (("kbm_scores", "studies/notes/kbm.md", 8), ("qwen_scores", "docs/results/mixed.md", 26)):
        rows = scripts.load("studies/mixed_traffic/table.py").stored_table(GATES.parent / f"{name}.jsonl")
        text = (GATES.parents[2] / page).read_text(encoding="utf-8")
        assert len(rows) == n and all(f"| {' | '.join(row)} |" in text for row in rows)
