"""Small studies: seeds, carried thresholds, rivals, misses, a corpus, other data sets, RAGate-MHA's networks."""

import json
from types import SimpleNamespace
from typing import Any

import asked_turns
import mha_networks
import numpy as np
import pytest
import set_shift
import threshold_margin
from carried_thresholds import TransferSet, carry_threshold, transfer_matrix
from kbm_paper.groups import answer_counts, quantile_groups, ranked_within
from published import fits as ev
from published.sheet import Sheet
from seeds import gain_over_random, summarise_seeds
from support.recipes import Recipe
from tiny_turns import turn
from white_box import disagreement, entropy_cut

from kbtrain.answers.grading import contains
from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.evaluation.outcomes import Correctness
from kbtrain.io.jsonl import write
from kbtrain.metrics.thresholds import Dev, Training
from kbtrain.records import Passage, Question


def test_seeds_that_agree_add_no_variance():
    column = (np.random.default_rng(0).random(200) < 0.4).astype(float)
    found = summarise_seeds([column, column, column], draws=2000)
    assert found.spread == pytest.approx(0)
    assert found.both.low == pytest.approx(found.questions.low) and found.both.high == pytest.approx(
        found.questions.high
    )
    assert found.mean == pytest.approx(column.mean())


def test_seeds_that_differ_widen_the_interval_by_their_spread():
    rng = np.random.default_rng(0)
    seeds = [(rng.random(2000) < p).astype(float) for p in (0.3, 0.4, 0.5)]
    found = summarise_seeds(seeds, draws=4000)
    assert found.by_seed == [s.mean() for s in seeds]
    assert found.spread == pytest.approx(np.std([s.mean() for s in seeds], ddof=1))
    assert found.both.high - found.both.low > 3 * (found.questions.high - found.questions.low)
    # the mean of 3 seeds drawn from 3: standard error = population sd / sqrt(3)
    sd = (found.both.high - found.both.low) / (2 * 1.96)
    assert sd == pytest.approx(np.std(found.by_seed) / 3**0.5, rel=0.25)


def seed_table(rng, n, ratio):
    """(correct, llm, rag, retrieved) of a gate that retrieves by lot."""
    llm, rag = rng.random(n) < 0.3, rng.random(n) < 0.6
    retrieve = rng.random(n) < ratio
    return np.column_stack([np.where(retrieve, rag, llm), llm, rag, retrieve]).astype(float)


def test_the_interval_of_the_gain_holds_the_truth_19_times_in_20():
    """A gate by lot gains 0 in truth; 400 evaluations of 300 questions."""
    rng = np.random.default_rng(1)
    found = [summarise_seeds([seed_table(rng, 300, 0.5)], draws=400, figure=gain_over_random) for _ in range(400)]
    covered = np.mean([one.questions.low <= 0 <= one.questions.high for one in found])
    assert 0.915 <= covered <= 0.975


def part(name, seed, offset=0.0, n_dev=300):
    """Questions whose scores tell which of them retrieval mends; ``offset`` moves all scores."""
    rng = np.random.default_rng(seed)
    scores = rng.random(n_dev + 300)
    llm = (rng.random(len(scores)) > scores).astype(float)
    rag = np.maximum(llm, (rng.random(len(scores)) < 0.7).astype(float))
    scores += offset
    dev, test = slice(0, n_dev), slice(n_dev, None)
    table = Dev(scores[dev], llm[dev], rag[dev], (rag > llm)[dev].astype(float))
    return TransferSet(name, {"gate": table}, {"gate": scores[test]}, Correctness("greedy", llm[test], rag[test]))


def carried(source, target, rule, ratio=0.5):
    of_target = (target.name, target.scores["gate"], target.answers)
    return carry_threshold("gate", (source.name, source.dev["gate"]), of_target, rule, ratio)


def test_a_threshold_holds_where_the_scores_are_alike():
    found = carried(part("a", 0), part("b", 1), "ratio", 0.4)
    assert found.ratio == pytest.approx(0.4, abs=0.12)  # two samples of 300: 3 standard errors
    assert carried(part("a", 0), part("b", 1), "ratio", 0.1).ratio == pytest.approx(0.1, abs=0.08)
    assert found.gain.above_zero
    assert not found.shift.alarming


def test_a_shift_is_found_before_it_does_harm():
    found = carried(part("a", 0), part("b", 1, offset=0.5), "ratio", 0.4)
    assert found.ratio > 0.8
    assert found.shift.alarming
    assert found.shift.statistic == pytest.approx(0.5, abs=0.08)


def test_the_matrix_has_every_pair_and_names_the_parts_without_dev():
    found, without = transfer_matrix(["gate"], [part("a", 0), part("b", 1), part("c", 2, n_dev=0)], "ratio")
    assert [(c.source, c.target) for c in found] == [(s, t) for s in "ab" for t in "abc"]
    assert without == ["c"]


def test_disagreement_of_drafts_is_one_minus_the_mode_s_share():
    assert disagreement([[1, 2], [1, 3], [1]]) == pytest.approx((0 + 2 / 3) / 2)  # an ended draft is its own token
    assert disagreement([[4], [4], [4]]) == 0.0 == disagreement([[], [], []])


def test_the_cut_of_semantic_entropy_parts_its_two_groups():
    assert entropy_cut(np.array([0.0, 0.1, 0.1, 1.2, 1.3])) == pytest.approx(0.1)
    with pytest.raises(UserError, match="the same semantic entropy"):
        entropy_cut(np.zeros(3))


@pytest.mark.parametrize("nested", [False, True])
def test_no_rule_misses_where_a_search_always_helps(tmp_path, nested):
    rows = [
        {"id": f"{split}{i}", "dataset": "nq", "split": split, "question": f"q {split} {i}?", "answers": ["x"],
         "llms": {"m": {"none": 0, "one": 1, "many": 1}}}
        for split in ("train", "test") for i in range(400)
    ]  # fmt: skip
    path, folder = tmp_path / "rows.jsonl", tmp_path / "scores" / "m"
    folder.mkdir(parents=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    scores = [json.dumps({"id": row["id"], "score": i % 7}) for i, row in enumerate(rows)]
    (folder / "g.jsonl").write_text("\n".join(scores) + "\n")
    config = {"path": [path], "scores": folder.parent, "gate": "g", "splits": 3, "nested": nested, "out": tmp_path}
    threshold_margin.main(build(threshold_margin.ThresholdMarginConfig, None, config))
    tables = json.loads((tmp_path / f"margin{'-nested' if nested else ''}.json").read_text())["tables"]
    mean = tables["margin-nested" if nested else "margin"]["rows"][0]
    assert mean == ["mean", *["0.0 %"] * 9]
    (cell,) = tables["margin-cells-nested" if nested else "margin-cells"]["rows"]
    assert cell[:3] == ["m", "nq", "+100.0"]


def test_half_is_searched_for_where_never_and_always_are_level():
    scores, none = np.arange(4.0), Training()
    assert threshold_margin.half_where_level(scores, np.array([1.0, 0.0, 0.0, -1.0]), none) == 1.5
    assert threshold_margin.half_where_level(scores, np.ones(4), none) < 0  # a search always helps


def asked(*answers, form="open"):
    return Question("q", "?", answers, "test", "made-up", form="choice" if form == "choice" else "open")


PASSAGES = [
    Passage("1", "Paris", "Paris is the capital of France."),
    Passage("2", "France", "The Battle of Hastings was in 1066, in England."),
    Passage("3", "Lyon", "Lyon is in France, near paris?"),
]


def test_passages_are_counted_once_whatever_the_alias_and_words_are_whole():
    questions = [
        asked("Paris"), asked("France", "french republic"), asked("10"), asked("Battle of Hastings"), asked("A"),
    ]  # fmt: skip
    assert answer_counts(questions, PASSAGES) == [2, 3, 0, 1, 0]


def test_the_count_is_that_of_the_grading_rule():
    for gold in ("Paris", "capital of France", "in", "1066", "Lyon is in France"):
        expected = sum(contains(f"{p.title} . {p.text}", gold) for p in PASSAGES)
        assert answer_counts([asked(gold)], PASSAGES) == [expected], gold


def test_both_errors_of_the_margin_fall_and_rise_with_it():
    """A perfect gate of a search that helps half of the questions and harms the other; and one that says nothing."""
    scores = np.arange(200) / 200
    gains = np.where(scores < 0.5, -1.0, 1.0)
    shy, bold = (threshold_margin.both_errors(scores, gains, 60, margin, 60) for margin in (2.0, 0.0))
    assert bold[0] > 0.75 and shy[0] < 0.2  # chance finds some cut; two standard errors are rarely beaten
    assert shy[1] == bold[1] == 0 and shy[2] == pytest.approx(0.5, abs=0.03)  # half of the answers are won
    small = np.where(scores < 0.55, np.where(scores < 0.45, -0.05, 0.0), 0.05)
    assert threshold_margin.both_errors(scores, small, 60, 9.0, 20)[1] == 1.0


def test_quantiles_keep_equal_values_together_and_name_their_ends():
    assert quantile_groups([1, 2, 3, 4], 2) == ["1 (low)", "1 (low)", "2 (high)", "2 (high)"]
    assert quantile_groups([0, 0, 0, 0, 5, None], 3) == ["1 (low)"] * 4 + ["2 (high)", None]
    assert quantile_groups([7, 7, 7], 3) == ["1", "1", "1"]
    assert quantile_groups([None, None], 3) == [None, None]
    groups = quantile_groups(np.random.default_rng(0).random(1000).tolist(), 5)
    assert {groups.count(name) for name in set(groups)} == {200}


def test_ranks_within_a_data_set_know_no_units_and_leave_ties_alike():
    found = ranked_within([5.0, 0.1, None, 9000.0, 0.1, 7000.0], ["a", "b", "a", "a", "b", "a"])
    assert found == [pytest.approx(1 / 6), 0.5, None, pytest.approx(5 / 6), 0.5, 0.5]


def test_common_cues_hold_and_cues_of_one_set_do_not(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    sets = ["nq", "squad"] * 60
    gains = rng.integers(-1, 2, 120)
    sign = np.where(np.arange(120) % 2 == 0, 1, -1)  # a cue that means the contrary in the other set
    columns = {"features": gains, "encoder": sign * gains, "reader": rng.normal(size=120)}
    fits = {name: ev.of_vectors([np.stack([values, rng.normal(size=120)], axis=1).astype(np.float32)])
            for name, values in columns.items()}  # fmt: skip
    rows: Any = [SimpleNamespace(right={("m", "published"): {"none": gain < 0, "one": gain > 0}}) for gain in gains]
    sheet = Sheet(rows, [*range(80)], [*range(80, 120)], sets, [*range(120)], fits)
    monkeypatch.setattr(set_shift, "sheet_of", lambda *_: sheet)
    monkeypatch.setattr(set_shift, "DRAWS", 50)
    config = {"path": ["rows.jsonl"], "corpus": "passages.jsonl", "out": tmp_path}
    set_shift.main(build(set_shift.SetShiftConfig, None, config))
    tables = json.loads((tmp_path / "set_shift.json").read_text())["tables"]
    (model, own, features, encoder, *_), overall = tables["set-shift"]["rows"]
    assert (model, own, features, encoder) == ("m", "1.000", "1.000", "-1.000") and overall[0] == "all 2"
    assert [line[:2] for line in tables["set-shift-cells"]["rows"]] == [["m", "nq"], ["m", "squad"]]
    assert [line[0] for line in tables["set-shift-differences"]["rows"]] == [
        "stack minus features", "back-off minus stack", "stack minus own stack",
    ]  # fmt: skip


def test_inputs_are_trained_with_each_seed_by_the_recipe_and_compared_on_test(tmp_path, monkeypatch, capsys):
    sizes = {"train": 24, "dev": 12, "test": 12}
    write(tmp_path / "turns.jsonl", [turn(i, split) for split, n in sizes.items() for i in range(n)])

    class Done:
        returncode = 0

    def run(command, check):
        Recipe("ragate_mha")(command[2:])
        return Done

    monkeypatch.setattr(mha_networks, "subprocess", SimpleNamespace(run=run))
    keys = {"epochs": 1, "vocabulary": 300, "max_length": 64, "device": "cpu"}
    config = mha_networks.MhaNetworksConfig(
        turns=tmp_path / "turns.jsonl", test=True, output=tmp_path / "out", layers=(1,), heads=(2,), sizes=(8,),
        inputs=("contx", "contx+resp"), seeds=(0, 1), recipe=keys,
    )  # fmt: skip
    mha_networks.main(config)
    rows = json.loads((tmp_path / "out" / "networks.json").read_text())
    named = [("contx", 0), ("contx+resp", 0), ("contx", 1), ("contx+resp", 1)]
    assert [(row["inputs"], row["seed"]) for row in rows] == named
    assert all(row["run"]["best_epoch"] == 1 for row in rows)
    text = (tmp_path / "out" / "networks.md").read_text()
    assert text.count("h(2)-l(1)-emb(8)") == 2 and "contx - contx+resp" in text and " sd " in text
    capsys.readouterr()
    mha_networks.main(config)
    assert capsys.readouterr().out.count("finished already") == 4
    assert (tmp_path / "out" / "networks.md").read_text() == text


def test_asked_models_are_compared_on_the_turns_that_have_scores(tmp_path, capsys):
    write(tmp_path / "turns.jsonl", [turn(i, label=i % 3 == 0) for i in range(12)])
    ids = [json.loads(line)["id"] for line in (tmp_path / "turns.jsonl").read_text().splitlines()]
    rows = [{"turn": name, "one": 0.6, "two": 0.9 - 0.3 * (i % 3)} for i, name in enumerate(ids[:9])]
    (tmp_path / "scores.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = asked_turns.AskedTurnsConfig(turns=tmp_path / "turns.jsonl", scores=tmp_path / "scores.jsonl")
    asked_turns.main(config)
    assert "9 turns, 3 of them enriched" in (said := capsys.readouterr().out) and "two - one, AUC: 0.5000 [" in said
