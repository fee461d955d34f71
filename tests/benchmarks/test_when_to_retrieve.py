"""The open table: rows from files like the public ones, a stranger's score file ranked, errors in one line."""

import json

import numpy as np
import pytest
from support import scripts
from tiny_kbm import make_folder

from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.gates.draft import Draft, DraftCard
from kbtrain.models.load import load_model

FOLDER = "benchmarks/when_to_retrieve"
SETS = ("nq", "hotpotqa")


def row(dataset, split, i):
    """A search gains in every third question, harms in every third, as its first word says."""
    kind = i % 3
    verdict = {"none": int(kind == 1), "one": int(kind == 0), "many": 0}
    return {
        "id": f"{dataset}-{split}-{i}", "dataset": dataset, "split": split, "answers": ["x"],
        "question": f"{('gain', 'harm', 'same')[kind]} number {i} of {dataset}?", "llms": {"m": verdict},
        **({"seakr": {"eigen_score": -float(kind)}} if dataset == "nq" and split == "test" else {}),
    }  # fmt: skip


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    made = [row(dataset, split, i) for dataset in SETS for split in ("train", "test") for i in range(30)]
    path.write_text("".join(json.dumps(one) + "\n" for one in made))
    return path


def table(tmp_path, rows, *gates):
    module = scripts.load(f"{FOLDER}/score_gates.py")
    config = {"rows": [rows], "model": "m", "rivals_of": "m", "gates": list(gates), "out": tmp_path / "table"}
    module.main(build(module.ScoreGatesConfig, None, config))
    return json.loads((tmp_path / "table.json").read_text())["parts"]


def test_a_strangers_csv_is_ranked_beside_fixed_policies_and_published_scores(tmp_path, rows):
    lines = ["id,score,search,tokens"]
    lines += [f"{s}-test-{i},{2 - i % 3 if i % 3 else 3},{i % 3 == 0},{i}" for s in SETS for i in range(30)]
    (tmp_path / "stranger.csv").write_text("\n".join(lines) + "\n")
    parts = table(tmp_path, rows, tmp_path / "stranger.csv")
    whole = parts["all"]
    assert whole["ranking"][0] == "stranger" and (whole["never"], whole["always"]) == pytest.approx((1 / 3, 1 / 3))
    decided = whole["decisions"]["stranger"]
    assert (decided["accuracy"], decided["searched"]) == pytest.approx((2 / 3, 1 / 3))
    assert decided["minus_always"]["mean"] == pytest.approx(1 / 3)
    page = (tmp_path / "table.md").read_text()
    assert "| 1 | `stranger` |" in page and "| 66.7 % | 33.3 % | 0.50 |" in page and page.count("| 14 |") == 2
    assert set(parts) == {"all", "nq"}  # SeaKR's scores are of one data set
    assert "seakr" in parts["nq"]["ranking"] and "seakr" not in whole["ranking"] and parts["nq"]["n"] == 30


def test_scores_of_train_questions_choose_the_threshold(tmp_path, rows):
    names = [(s, split, i) for s in SETS for split in ("train", "test") for i in range(30)]
    found = [{"id": f"{s}-{split}-{i}", "score": -float(i % 3 == 1)} for s, split, i in names]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(one) + "\n" for one in found))
    decided = table(tmp_path, rows, tmp_path / "mine.jsonl")["all"]["decisions"]["mine"]
    assert (decided["accuracy"], decided["searched"]) == pytest.approx((2 / 3, 2 / 3))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"id": "nq-test-0", "score": 1}'], "29 of 30 test questions of 'nq' have no score; score them all, or none"),
        (['{"id": "nq-test-0", "score": 1}'] * 2, r"bad\.jsonl:2: field 'id': duplicate 'nq-test-0', first on line 1"),
        (['{"id": "other", "score": 1}'], r"bad\.jsonl:1: field 'id': the table has no question 'other'; leave"),
        (['{"id": "nq-test-0", "score": "high"}'], r"bad\.jsonl:1: field 'score': expected a number"),
    ],
)
def test_a_bad_score_file_is_one_line(tmp_path, rows, lines, message):
    (tmp_path / "bad.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match=message):
        table(tmp_path, rows, tmp_path / "bad.jsonl")


def test_rivals_write_files_that_the_table_reads(tmp_path, rows, monkeypatch):
    module = scripts.load(f"{FOLDER}/rivals.py")
    vectors = np.array([[float(i % 3 == k) for k in range(3)] for _ in range(4) for i in range(30)])
    monkeypatch.setattr(module, "kept_embeddings", lambda *_: vectors)
    module.main(build(module.RivalsConfig, None, {"rows": rows, "model": "m", "out": tmp_path / "rivals"}))
    whole = table(tmp_path, rows, tmp_path / "rivals")["all"]
    assert set(whole["ranking"]) == {"data_set", "length", "tf_idf", "nearest_neighbours", "adaptive_rag_labels"}
    assert whole["gates"]["nearest_neighbours"]["area"]["mean"] == pytest.approx(1.0)
    assert whole["decisions"]["tf_idf"]["accuracy"] == pytest.approx(2 / 3)


def test_signals_of_a_small_model_are_those_of_the_gates_and_the_budget_is_half(tmp_path, monkeypatch):
    module, model = scripts.load(f"{FOLDER}/signals.py"), str(make_folder(tmp_path / "model"))
    questions = [("train", "Who wrote Hamlet?"), ("train", "Which river flows through Rome?"),
                 ("test", "What is the capital of France?"), ("test", "Who was the 9th mayor of Nyk?")]  # fmt: skip
    asked = [{**row("nq", split, i), "id": f"q{i}", "question": text} for i, (split, text) in enumerate(questions)]
    (tmp_path / "few.jsonl").write_text("".join(json.dumps(one) + "\n" for one in asked))
    config = {"rows": tmp_path / "few.jsonl", "reader": model, "out": tmp_path / "signals"}
    opened = load_model(model, "fp32")
    monkeypatch.setattr("kbtrain.models.load.load_model", lambda *_: opened)
    module.main(build(module.SignalsConfig, None, config))
    found = {path.stem: [json.loads(line) for line in path.read_text().splitlines()]
             for path in (tmp_path / "signals").iterdir()}  # fmt: skip
    assert set(found) == {"prompt", "targ_margin", "targ_entropy"}
    assert all([line["id"] for line in lines] == ["q2", "q3"] for lines in found.values())
    assert all(line["search"] == (line["score"] > 0.5) for line in found["prompt"])
    card = DraftCard(signal="draft_margin", tokens=20, base_model=model, dtype="fp32", prompt_fingerprint="x")
    gate = Draft(*opened, card)
    margins = gate.score_all([text for _, text in questions])["draft_margin"]
    assert [line["score"] for line in found["targ_margin"]] == pytest.approx(margins[2:], abs=1e-5)
    budget = np.median(margins[:2])  # half of the train questions lie above it
    assert [line["search"] for line in found["targ_margin"]] == [int(margin > budget) for margin in margins[2:]]
    gate.spent.clear()
    gate.score_all([text for _, text in questions[2:]])
    mean = gate.spent["tokens"] / 2
    assert {line["tokens"] for line in found["targ_entropy"]} == {mean}


def test_tables_of_the_page_order_gates_by_their_mean_area(tmp_path, rows):
    tables = scripts.load(f"{FOLDER}/tables.py")
    found = [{"id": one["id"], "score": -float(one["llms"]["m"]["none"])} for one in map(json.loads, rows.open())]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(one) + "\n" for one in found))
    table(tmp_path, rows, tmp_path / "mine.jsonl")
    for model in tables.MODELS:
        (tmp_path / f"table-{model}.json").write_text((tmp_path / "table.json").read_text())
    tables.main(build(tables.TablesConfig, None, {"folder": tmp_path}))
    stored = json.loads((tmp_path / "tables.json").read_text())["tables"]
    assert [line[0] for line in stored["open-areas"]["rows"]] == ["`mine`", "`data_set`"]
    assert (
        stored["open-areas"]["rows"][0][1].startswith("**0.") and stored["open-right"]["rows"][0][1] == "66.7 %, 1.00"
    )
    assert [line[0] for line in stored["open-right"]["rows"][2:]] == ["never", "always", "oracle"]
