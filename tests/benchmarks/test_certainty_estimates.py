"""Estimates of certainty from fewer answers than there are: values by hand, and a run on a store."""

import math

import numpy as np
import pytest
from support import scripts

from kbtrain import jsonl
from kbtrain.errors import UserError
from kbtrain.records import Question, Sample, SampleSet
from kbtrain.store import SampleStore

made = scripts.load("benchmarks/certainty_estimates.py")


def test_the_corrected_entropies_by_hand():
    # four answers, three groups: U = 1.5 ln 2 by the shares 1/2, 1/4, 1/4, and (3 - 1) / 8 for the bias
    assert made.miller_madow((2, 1, 1)) == pytest.approx(1.5 * math.log(2) + 0.25)
    # half of the answers are alone, so shares are halved: 1/4 and twice 1/8, each over its chance to be seen
    quarter, eighth = 0.25 * math.log(4) / (1 - 0.75**4), 0.125 * math.log(8) / (1 - 0.875**4)
    assert made.chao_shen((2, 1, 1)) == pytest.approx(quarter + 2 * eighth)
    assert made.chao_shen((3,)) == 0.0 and math.isfinite(made.chao_shen((1, 1, 1)))


def test_a_row_says_how_far_the_mean_moves_and_how_many_labels_stay():
    found = {2: np.array([[0.0, 1.0], [1.0, 1.0]]), 4: np.array([[0.2], [0.8]])}
    # means .75 and .5, spread .3; tau .5: of four estimates from two answers three are on their question's side
    assert made.row("x", found) == "| x | 0.750 | 0.500 | 0.83 | 75.0% |"


@pytest.fixture
def run(tmp_path):
    questions = [Question(f"q{i}", "Where?", ("Rome",), "train", "t") for i in range(6)]
    jsonl.write(tmp_path / "questions.jsonl", questions)
    with SampleStore(tmp_path / "samples.db") as store:
        store.begin("main", {})
        for i, question in enumerate(questions):
            texts = ["Rome" if j % 6 < i else f"Town {j}" for j in range(12)]
            samples = tuple(Sample(j, text, 2, "eos", -1.0) for j, text in enumerate(texts))
            store.put("main", [SampleSet(question.id, "llm", samples, None, 9)])
    return tmp_path


def test_the_labels_rule_keeps_its_mean_where_the_paper_s_grows(run, capsys):
    made.main(made.CertaintyEstimatesConfig(run=run, answers=(4, 12), draws=400, out=run / "table.md"))
    said = capsys.readouterr().out
    assert said.startswith("6 questions with 12 answers under 'llm'")
    table = (run / "table.md").read_text()
    paper, _, _, labels = ([float(cell) for cell in line.split("|")[2:4]] for line in table.splitlines()[2:])
    assert paper[0] == labels[0] and paper[1] - paper[0] > 0.03 > 0.02 > abs(labels[1] - labels[0])
    made.main(made.CertaintyEstimatesConfig(run=run, answers=(4, 12), least=0.3, draws=2))
    assert capsys.readouterr().out.startswith("3 questions")


def test_too_few_answers_are_one_line(run):
    with pytest.raises(UserError, match=r"samples.db: no question with 30 answers under 'llm'; sample more"):
        made.main(made.CertaintyEstimatesConfig(run=run))
    with pytest.raises(UserError, match="key 'answers': two numbers from 2 on"):
        made.main(made.CertaintyEstimatesConfig(run=run, answers=(1, 12)))
