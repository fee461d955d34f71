import math

import pytest
from tiny_kbm import example, labelled

from kbtrain.gates.kbm.train import dev_metrics


def test_loss_and_auroc_worked_by_hand():
    dev = [labelled(0, "dev"), labelled(1, "dev"), labelled(2, "dev"), example(3)]  # True, False, False, unknown
    found = dev_metrics(dev, {"mastery": [0.6, 0.7, 0.2, 0.9]}, "hard")
    assert found["auroc_mastery"] == 0.5  # of the pairs (True, False): .6 > .2, .6 < .7
    assert found["loss_mastery"] == pytest.approx(-(math.log(0.6) + math.log(0.3) + math.log(0.8)) / 3)
    assert found["loss"] == found["loss_mastery"] and found["auroc"] == 0.5


def test_the_soft_loss_is_the_cross_entropy_against_the_share():
    found = dev_metrics([labelled(0, "dev")], {"mastery": [0.6]}, "soft")
    assert found["loss_mastery"] == pytest.approx(-0.9 * math.log(0.6) - 0.1 * math.log(0.4))
    assert "auroc_mastery" not in found  # one class only


def test_dev_questions_of_one_label_have_a_table_without_the_figures_of_an_order():
    from kbtrain.metrics.turns import intervals_of_examples

    table = intervals_of_examples([example(i) for i in range(4)], [0.0] * 4, [0.1, 0.2, 0.3, 0.9], 0.5)
    assert "| precision | 0.0000 [0.0000, 0.0000] |" in table and "auroc" not in table
