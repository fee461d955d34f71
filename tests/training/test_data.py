import dataclasses
import math

import pytest
from tiny_kbm import example, labelled

from kbtrain.errors import UserError
from kbtrain.gates.kbm.train import dev_metrics
from kbtrain.io.jsonl import write
from kbtrain.training.data import check_dev, read_data, target
from kbtrain.training.data import labelled_examples as with_label

KEYS = ("mastery", "certainty", "benefit")


@pytest.fixture
def files(tmp_path):
    def make(train, dev=None):
        write(tmp_path / "train.jsonl", train)
        if dev is not None:
            write(tmp_path / "dev.jsonl", dev)
        return tmp_path / "train.jsonl", None if dev is None else tmp_path / "dev.jsonl"

    return make


TRAIN = [labelled(i) for i in range(6)]


def test_what_has_no_label_is_left_out_and_counted(files):
    partly = dataclasses.replace(labelled(6, reference="r"), benefit=None, soft_benefit=None)
    data = read_data(*files([*TRAIN, example(7, "train"), partly]), KEYS, "hard")
    assert [e.id for e in data.train] == [e.id for e in [*TRAIN, partly]]
    assert data.unlabelled == 1
    assert data.partial == {"benefit": 1}


def test_targets_are_hard_labels_or_sampled_shares():
    item = labelled(0)
    assert [target(item, key, "hard") for key in KEYS] == [1.0, 1.0, 0.0]
    assert [target(item, key, "soft") for key in KEYS] == pytest.approx([0.9, 0.9, 0.1])
    assert target(example(0), "mastery", "hard") is None


@pytest.mark.parametrize(
    ("train", "dev", "message"), [ ([], None, "train.jsonl: no examples in it"),
    ([example(0, "train")], None, "none of its 1 examples has a hard label"),
    ([labelled(0), labelled(3)], None, "key 'mastery' is True in all 2 labelled examples"),
    ([labelled(0), labelled(0)], None, "duplicate id 'train0'"),
    ([labelled(0, "dev")], None, "of split 'dev', expected 'train'"),
    (TRAIN, [labelled(0)], "of split 'train', expected 'dev'"), ( TRAIN,
    [dataclasses.replace(labelled(1, "dev"), question="what is THE currency of place 0??")],
    "example 'train1' asks the same as 'dev1'", ),
    ([dataclasses.replace(e, benefit=None) for e in TRAIN], None, "no example has a hard label 'benefit'"), ],
)  # fmt: skip
def test_what_cannot_be_trained_on_is_one_line(files, train, dev, message):
    with pytest.raises(UserError, match=message) as caught:
        read_data(*files(train, dev), KEYS, "hard")
    assert "\n" not in str(caught.value)


def test_plain_questions_decide_on_dev_if_there_are_any():
    plain, read = labelled(0, "dev"), labelled(1, "dev", reference="r")
    assert with_label([plain, read, example(2)], "mastery", "hard") == [plain]
    assert with_label([read, example(2)], "mastery", "hard") == [read]


@pytest.mark.parametrize(
    ("dev", "select", "message"),
    [
        (None, "loss", "'loss' needs a dev file"),
        ([example(0)], "loss", "no example has a hard label for 'mastery'"),
        ([labelled(0, "dev")], "auroc", "only one class of 'mastery'"),
    ],
)
def test_dev_examples_that_cannot_choose_a_checkpoint_are_refused(files, dev, select, message):
    train, path = files(TRAIN, dev)
    data = read_data(train, path, KEYS, "hard")
    with pytest.raises(UserError, match=message):
        check_dev(data, KEYS, "hard", select, path)
    check_dev(data, KEYS, "hard", "last", path)


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
