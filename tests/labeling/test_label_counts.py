"""Labels of a run: what is counted and warned of, and how tau is chosen."""

import dataclasses
import re
from collections import Counter

import numpy as np
import pytest

from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.io.store import SampleStore
from kbtrain.labeling.indicators import quantile
from kbtrain.labeling.label import LabelRule
from kbtrain.labeling.label_stage import (
    LabelCounts,
    Quantile,
    choose_tau,
    common_answers,
    label_questions,
    refuse_unequal,
)
from kbtrain.labeling.verdicts import Aligned, QuestionVerdicts
from kbtrain.records import Question, Sample, SampleSet


@pytest.fixture
def store(tmp_path):
    with SampleStore(tmp_path / "samples.db") as opened:
        opened.begin("main", {})
        yield opened


@pytest.fixture
def dev(capital):
    return dataclasses.replace(capital, id="q9", split="dev")


def cut(made, n):
    """The same with its last ``n`` answers cut at the token limit."""
    keep = len(made.samples) - n
    ended = [dataclasses.replace(s, finish="length") if i >= keep else s for i, s in enumerate(made.samples)]
    return dataclasses.replace(made, samples=tuple(ended))


def test_tau_sees_the_training_questions_alone(store, capital, dev, answered):
    store.put("main", [answered("Paris", "Rome"), answered("Paris", "Paris", question="q9")])
    tally = LabelCounts()
    made = list(label_questions(store, "main", [capital, dev], tally))
    assert [one.llm.mastery for one in made] == [0.5, 1.0]
    assert dict(tally.mastery) == {0.5: 1} and dict(tally.certainty) == {0.0: 1}


def test_one_answer_is_no_label_and_the_reason_is_counted(store, capital, dev, answered):
    greedy = SampleSet("q9", "llm", (), Sample(-1, "Paris", 2, "eos", -1.0), 20)
    store.put("main", [answered("Paris"), greedy])
    tally = LabelCounts()
    assert not list(label_questions(store, "main", [capital, dev], tally))
    assert (tally.counts["llm_single_sample"], tally.counts["llm_greedy_only"]) == (1, 1)
    assert tally.counts["questions_without_llm_samples"] == 2
    (one,) = label_questions(store, "main", [dev], LabelCounts(LabelRule(by="greedy")))
    assert one.llm.mastery == 1.0 and one.llm.certainty is None


@pytest.mark.parametrize(("n", "warned"), [(1, 0), (2, 1)])
def test_answers_cut_at_the_limit_are_counted_and_more_than_5_percent_are_warned_of(
    store, capital, answered, n, warned
):
    store.put("main", [cut(answered(*["Paris"] * 20), n)])
    tally = LabelCounts()
    list(label_questions(store, "main", [capital], tally))
    assert tally.counts["llm_answers_cut"] == n and tally.cut_shares() == {"llm": n / 20}
    lines = tally.warnings()
    assert len(lines) == warned and all("10.0% of the answers under 'llm'" in line for line in lines)


def test_a_greedy_answer_that_is_cut_is_not_counted_as_a_judge_s_abstention(store, capital):
    store.put("main", [SampleSet("q1", "llm", (), Sample(-1, "Paris", 2, "length", -1.0), 20)])
    tally = LabelCounts(LabelRule(by="greedy", cut="drop"))
    assert not list(label_questions(store, "main", [capital], tally))
    assert tally.counts["llm_too_few_whole_answers"] == 1 and not tally.counts["llm_judge_abstained"]


@pytest.mark.parametrize(
    ("text", "gold", "answers", "said"),
    [
        ("Are both singers American?", "yes", ("Yes", "No", "Both are American.", "singers", "singer"),
         "2 of 5 answers to yes/no questions under 'llm' say neither yes nor no in a form that a rule can"),
        ("Who painted it?", "Paul Gauguin", ("Paul Gauguin", "Al", "Bo", "Gauguin", "No one says it is Paul Gauguin"),
         "2 of 5 answers to open or multiple-choice questions under 'llm' may be right or wrong, as far as rules can"),
    ],
)  # fmt: skip
def test_answers_without_a_verdict_are_counted_and_named_in_a_warning(store, answered, text, gold, answers, said):
    asked = Question("q1", text, (gold,), "train", "made")
    store.put("main", [answered(*answers)])
    tally = LabelCounts()
    (made,) = label_questions(store, "main", [asked], tally)
    assert (made.llm.n, made.llm.n_abstained) == (5, 2)
    (line,) = tally.warnings()
    assert line.startswith(f"warning: {said}")
    assert f" read, such as {answers[3]!r} for {gold!r} (question q1); they count " in line and "judge.py" in line
    store.put("main", [answered(*answers[:1], *answers[3:], question="q2")])
    few = LabelCounts()
    assert not list(label_questions(store, "main", [dataclasses.replace(asked, id="q2")], few))
    assert few.counts["llm_no_verdict"] == 1


def test_a_judge_s_verdicts_grade_where_there_are_any(store, capital, answered, tmp_path):
    store.put("main", [answered("Lutetia", "Rome", greedy="Lutetia")])
    path = tmp_path / "verdicts.jsonl"
    jsonl.write(path, [QuestionVerdicts("q1", {"lutetia": True, "rome": False})])
    (judged,) = label_questions(store, "main", [capital], LabelCounts(), Aligned(QuestionVerdicts, path))
    assert judged.llm.mastery == 0.5 and judged.llm.greedy_correct is True
    (ruled,) = label_questions(store, "main", [capital], LabelCounts())
    assert ruled.llm.mastery == 0.0 and ruled.llm.greedy_correct is False


def test_the_common_scale_is_the_fewest_answers_that_a_split_was_to_have(store, answered):
    store.put("main", [answered("a", "b", "c", question=f"q{i}") for i in range(2)])
    store.put("main", [answered("a", "b", "c", "d", question="q7"), answered("a", question="q8")])
    assert common_answers(store, "main") == 3  # the run does not say: the number that most questions have
    store.begin("said", {"samples": {"train": 30, "dev": 10, "test": 1}})
    assert common_answers(store, "said") == 10  # a split with greedy answers alone has no certainty


def test_certainty_on_the_paper_s_own_scale_needs_equal_numbers_of_answers(store, capital, dev, answered):
    store.put("main", [answered("Paris", "Rome"), answered("Paris", "Rome", "Oslo", question="q9")])
    tally = LabelCounts()
    list(label_questions(store, "main", [capital], tally))
    refuse_unequal(tally)  # one split: nothing to be unequal to
    list(label_questions(store, "main", [capital, dev], tally))
    with pytest.raises(UserError, match=r"differs between the questions \(train 2, dev 3\)"):
        refuse_unequal(tally)


@pytest.mark.parametrize("condition", ["llm", "rag"])
def test_it_needs_them_inside_a_split_and_under_both_conditions_too(store, capital, answered, condition):
    """Before, the most answers of each split were compared, so that unequal numbers in one split passed."""
    store.put("main", [answered("Paris", "Rome", question=f"q{i}") for i in (1, 2, 3)])
    store.put("main", [answered("Paris", "Rome", question=f"q{i}", condition="rag") for i in (1, 2, 3)])
    more = answered("Paris", "Rome", "Oslo", question="q4", condition=condition)
    store.put("main", [more, *([answered("Paris", "Rome", question="q4")] if condition == "rag" else [])])
    asked = [dataclasses.replace(capital, id=f"q{i}") for i in (1, 2, 3, 4)]
    tally = LabelCounts()
    list(label_questions(store, "main", asked[:3], tally))
    refuse_unequal(tally)
    list(label_questions(store, "main", asked[3:], tally))
    with pytest.raises(UserError, match=r"\(train 2 to 3\), so no tau fits"):
        refuse_unequal(tally)


def silent(made, *finishes):
    """The same with further answers without text that ended so, the greedy answer too."""
    first = len(made.samples)
    more = [Sample(first + i, "", 9, finish, -1.0) for i, finish in enumerate(finishes)]
    return dataclasses.replace(made, samples=(*made.samples, *more), greedy=dataclasses.replace(more[-1], index=-1))


def test_cut_and_thought_only_answers_are_left_out_and_counted_and_empty_ones_are_wrong(store, capital, answered):
    store.put("main", [silent(answered("Paris", "Paris", "Rome"), "eos", "length", "thought")])
    tally = LabelCounts()
    (made,) = label_questions(store, "main", [capital], tally)
    assert (made.llm.n, made.llm.mastery, made.llm.n_empty) == (4, 0.5, 1)  # two of Paris, Paris, Rome and ""
    assert (made.llm.n_cut, made.llm.n_thought_only, made.llm.greedy_correct) == (1, 1, None)
    assert (tally.counts["llm_answers_left_out_cut"], tally.counts["llm_answers_left_out_thought_only"]) == (1, 1)
    skipped = "2 answers under 'llm' are skipped: 1 were cut before they began, 1 are reasoning alone"
    assert skipped in tally.warnings()[0]


def test_a_question_most_of_whose_answers_are_left_out_has_no_label(store, capital, answered):
    store.put("main", [silent(answered("Paris", "Paris"), "length", "length", "thought")])
    tally = LabelCounts()
    assert not list(label_questions(store, "main", [capital], tally))  # its short thoughts alone would count
    assert tally.counts["llm_too_few_whole_answers"] == 1


def test_left_out_answers_leave_certainty_its_common_scale(store, capital, answered):
    store.put("main", [answered(*["Paris"] * 9, "Rome")])
    assert common_answers(store, "main") == 10
    store.put("main", [silent(answered(*["Paris"] * 9, question="q9"), "length")])
    assert common_answers(store, "main") == 5
    dev = dataclasses.replace(capital, id="q9")
    made = list(label_questions(store, "main", [capital, dev], LabelCounts(LabelRule(certainty_answers=5))))
    assert [one.llm.certainty is not None for one in made] == [True, True]


def test_quantile_equals_numpys_inverted_cdf():
    values = np.random.default_rng(0).integers(0, 31, size=500) / 30
    counted = Counter(float(value) for value in values)
    for share in (0.01, 0.25, 0.3, 0.5, 0.77, 0.99):
        assert quantile(counted, share) == np.quantile(values, share, method="inverted_cdf")


@pytest.mark.parametrize(
    ("setting", "values", "which"),
    [
        (0.8, Counter({0.0: 70, 1 / 30: 20, 0.4: 10}), "none"),
        (0.1, Counter({0.2: 70, 1 / 3: 30}), "all"),
        (Quantile(quantile=0.99), Counter({0.0: 50, 0.5: 50}), "none"),
    ],
)
def test_an_empty_class_is_one_line_with_the_distribution_and_a_tau_that_works(setting, values, which):
    with pytest.raises(UserError) as caught:
        choose_tau("tau_mastery", setting, values)
    message = str(caught.value)
    assert message.startswith(f"key 'tau_mastery': {which} of 100 training questions lie above") and "\n" not in message
    assert f"range from {min(values):.3g} to {max(values):.3g}" in message
    advice = re.search(r"tau_mastery: (\S+) would put (\d+)% above$", message)
    assert advice is not None
    tau = float(advice[1])
    assert choose_tau("tau_mastery", tau, values) == tau
    assert sum(n for value, n in values.items() if value > tau) == int(advice[2])


def test_the_middle_is_the_cut_nearest_to_halves_whatever_the_ties():
    for values, tau in (
        (Counter({0.0: 10, 0.859: 39, 1.0: 51}), 0.859),
        (Counter({0.0: 90, 0.5: 5, 1.0: 5}), 0.0),
        (Counter({0.2: 49, 0.4: 2, 0.6: 49}), 0.2),
    ):
        assert choose_tau("tau_mastery", "middle", values) == tau
    with pytest.raises(UserError, match="no tau can separate them"):
        choose_tau("tau_mastery", 0.5, Counter({1.0: 9}))
    with pytest.raises(UserError, match=r"^key 'tau_mastery': a quantile needs labelled training questions"):
        choose_tau("tau_mastery", Quantile(quantile=0.5), Counter())
    for name in ("tau_certainty", "tau_mastery"):  # the other targets can be learnt
        assert choose_tau(name, "middle", Counter({0.0: 54})) == 0.0
