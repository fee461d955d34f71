"""Gates on published verdicts: held-out scores see no fold of their own, and figures are those worked by hand."""

import json

import numpy as np
import pytest
from published import fits as ev
from support import scripts
from tiny_kbm import make_folder
from tiny_turns import bert_folder

from kbtrain.evaluation.decisions import GateDecisions, GateInput, measure
from kbtrain.evaluation.outcomes import Correctness

NONE = np.array([1.0, 0.0, 0.0, 1.0])
ONE = np.array([0.0, 1.0, 1.0, 1.0])


def test_decisions_are_beside_never_always_and_random_by_hand():
    made = ev.at_decisions(np.array([0.0, 1.0, 1.0, 0.0]), NONE, ONE, 0.5)
    assert (made.accuracy, made.searched) == (1.0, 0.5)
    assert made.minus_never.mean == pytest.approx(0.5)  # two mended of four
    assert made.minus_always.mean == pytest.approx(0.25)  # one broken one kept
    assert made.minus_random.mean == pytest.approx(0.5 - 0.5 * 0.25)  # half of always' gain
    spread = float(np.std([0.625, 0.375, 0.375, 0.125], ddof=1))  # gain and share around their means
    assert made.questions_for_two_points == int(np.ceil((2.8016 * spread / 0.02) ** 2))


def test_random_searches_as_often_as_the_gate_does_in_each_draw():
    """A share that is taken for known gives another interval where always searching gains much."""
    rng = np.random.default_rng(5)
    none, one = (rng.random(400) < 0.2).astype(float), (rng.random(400) < 0.8).astype(float)
    searches = (rng.random(400) < 0.5).astype(float)
    found = ev.at_decisions(searches, none, one).minus_random
    gate = GateDecisions(GateInput("g", searches, searches), searches, None)
    known = Correctness("greedy", none, one)
    (beside,) = measure(known, [gate], draws=ev.DRAWS, seed=ev.SEED)
    expected = beside.point.delta_vs_random
    assert (found.mean, found.low, found.high) == pytest.approx((expected.mean, expected.low, expected.high))
    spread = float(np.std((searches - searches.mean()) * (one - none - (one - none).mean()), ddof=1))
    assert ev.at_decisions(searches, none, one).questions_for_two_points == int(np.ceil((2.8016 * spread / 0.02) ** 2))


def test_held_out_scores_come_from_fits_without_the_question():
    seen: list[tuple[set[int], set[int]]] = []

    def fit(places, gains, scored):
        seen.append((set(places), set(scored)))
        return np.array([float(place) for place in scored])

    places = list(range(100, 120))
    groups = [0, *range(19)]  # the first two are of one text
    assert ev.held_out(fit, places, np.zeros(20), groups).tolist() == [float(place) for place in places]
    assert len(seen) == 5 and all(not fitted & scored for fitted, scored in seen)
    assert all(({100, 101} & scored) in (set(), {100, 101}) for _, scored in seen)


def test_a_gate_that_knows_the_gain_is_certainly_above_the_set_and_kappa_of_equals_is_one():
    rng = np.random.default_rng(0)
    gains = rng.integers(-1, 2, 400).astype(float)
    vectors = np.stack([gains + 0.3 * rng.normal(size=400), rng.normal(size=400)], axis=1).astype(np.float32)
    none, one = (gains < 0).astype(float), (gains > 0).astype(float)
    fit, train, test = ev.of_vectors([vectors]), list(range(200)), list(range(200, 400))
    scores = {"ours": fit(train, gains[:200], test), "chance": rng.normal(size=200)}
    found = ev.areas(scores, none[200:], one[200:])
    assert found["ours"].area.mean > 0.8 and found["ours"].minus["chance"].low > 0
    assert found["chance"].minus["ours"].high < 0
    assert ev.kappa(none, none).mean == pytest.approx(1.0)
    assert abs(ev.kappa(none[:200], rng.integers(0, 2, 200).astype(float)).mean) < 0.2
    held, outer = ev.stacked([gains[:200]], [gains[200:]], gains[:200], range(200))
    assert np.corrcoef(held, gains[:200])[0, 1] > 0.9 and np.corrcoef(outer, gains[200:])[0, 1] > 0.9


def row(i, rng):
    """A question of one of two sets, whose word "old" says that a search mends the answers of both models."""
    old = bool(rng.random() < 0.5)
    dataset, mends = ("nq", "hotpotqa")[i % 2], old and rng.random() < 0.9
    right = {"none": int(not mends and rng.random() < 0.7), "one": int(mends or rng.random() < 0.5), "many": 1}
    flipped = {name: 1 - value if rng.random() < 0.2 else value for name, value in right.items()}
    seakr = {"last_step_eigen_score": float(-old)} if dataset == "hotpotqa" else {"eigen_score": float(old)}
    return {
        "id": f"q{i}", "dataset": dataset, "split": "test" if i % 3 == 0 else "train", "answers": ["Ann"],
        "question": f"who wrote the {'old' if old else 'new'} book number {i} of the town?",
        "llms": {"big": {**right, **{f"em_{name}": value for name, value in right.items()}}, "small": flipped},
        "seakr": seakr, "adaptive_rag_t5": {"pA": float(rng.random()), "pB": 0.4, "pC": 0.1},
    }  # fmt: skip


def test_the_script_writes_its_page_and_uses_what_it_kept_only_for_the_same_inputs(tmp_path, capsys, monkeypatch):
    rng = np.random.default_rng(2)
    path, corpus, out = tmp_path / "outcomes.jsonl", tmp_path / "passages.jsonl", tmp_path / "out"
    more = tmp_path / "more" / "outcomes.jsonl"
    more.parent.mkdir()
    rows = [row(i, rng) for i in range(150)]
    path.write_text("".join(json.dumps(one) + "\n" for one in rows if one["dataset"] == "nq"))
    more.write_text("".join(json.dumps(one) + "\n" for one in rows if one["dataset"] != "nq"))
    corpus.write_text("".join(json.dumps({"id": f"p{i}", "title": f"T{i}", "text": f"the old town {i}"}) + "\n"
                              for i in range(20)))  # fmt: skip
    module = scripts.load("studies/evidence.py")
    reader = make_folder(tmp_path / "reader", num_hidden_layers=2)
    encoder = bert_folder(tmp_path / "bert")
    settings = {"path": [path, more], "corpus": corpus, "reader": str(reader), "encoder": str(encoder), "model": "big",
                "sizes": [40], "draws": 1, "out": out}  # fmt: skip
    monkeypatch.setattr(ev, "DRAWS", 60)
    config = module.EvidenceConfig.model_validate(settings)
    module.main(config)
    assert "100 training and 50 test questions" in capsys.readouterr().out
    found = json.loads((out / "evidence.json").read_text())
    main = found["tables"]["big"]
    pooled = main["parts"]["all"]["gates"]
    assert pooled["features"]["area"]["low"] > 0 and pooled["features"]["auroc_needed"] > 0.7  # "old" is rare, and read
    assert set(main["parts"]) == {"all", "nq", "hotpotqa", "with_direct_seakr"}
    assert set(found["tables"]) == set(found["models"]["transfer"]) == {"big", "small"}
    assert ev.RIVAL in main["parts"]["nq"]["decisions"]
    compared = [(one["model"], one["part"], one["minus"]) for one in found["claims"]["chosen"]]
    fixed = ["data_set", "never", "always"]
    assert [minus for *of, minus in compared if of == ["big", "nq"]] == [fixed[0], ev.RIVAL, "seakr", *fixed[1:]]
    assert [minus for *of, minus in compared if of == ["big", "with_direct_seakr"]] == ["seakr"]
    assert [minus for *of, minus in compared if of[0] == "small"] == fixed * 3
    assert all(one["p_holm"] >= one["p"] for family in found["claims"].values() for one in family)
    assert {point["n"] for point in found["learning_curve"]} == {40, 100}
    lines = [json.loads(line) for line in (out / "scores/big/features.jsonl").read_text().splitlines()]
    assert len(lines) == 150 and set(lines[0]) == {"id", "score"} and not (out / "scores/big/data_set.jsonl").exists()
    page = (out / "evidence.md").read_text()
    assert f"| big | `{main['chosen']}` | " in page and (out / "transfer.svg").exists()
    assert page.count("\n## ") == 10 and "| big | hotpotqa | 25 | " in page

    kept = {p.name for p in out.glob("*-*") if ".meta." not in p.name}
    with corpus.open("a") as file:
        file.write(json.dumps({"id": "p", "title": "T", "text": "another passage"}) + "\n")
    module.sheet_of([path, more], corpus, config.reader, config.encoder, out, config.model)
    new = {p.name for p in out.glob("*-*") if ".meta." not in p.name} - kept
    assert len(kept) == 2 and [name.partition("-")[0] for name in new] == ["bm25"]  # embeddings are those of before
