"""Data, weights, loss and rates of gates that classify."""

import math
from dataclasses import replace

import pytest
import torch
from tiny_kbm import example as question
from tiny_turns import turn

from kbtrain.errors import UserError
from kbtrain.io.jsonl import write
from kbtrain.metrics.turns import best_f1_threshold, classifier_metrics
from kbtrain.training.classifier_trainer import (
    ClassifierCollator,
    ClassifierRow,
    ClassifierTrainer,
    Objective,
    classifier_loss,
    need_logit,
    parameter_groups,
)
from kbtrain.training.config import ClassifierConfig, training_arguments
from kbtrain.training.data import Labelled, act_targets, class_weights, common_acts, need, read_classifier_data
from kbtrain.training.finish import DevScores, checked_test, dev_metrics


def turns_file(path, turns):
    write(path, turns)
    return path


def test_retrieval_is_needed_for_enriched_turns_and_unmastered_questions():
    assert [need(turn(i)) for i in (0, 1)] == [1.0, 0.0]
    known = question(0, mastery=True, soft_mastery=0.9, benefit=True, soft_benefit=0.6)
    assert (need(known), need(known, "benefit")) == (0.0, 1.0)
    assert need(known, "mastery", "soft") == pytest.approx(0.1)
    assert need(known, "certainty") is None


def test_train_and_dev_may_stand_in_one_file_and_unlabelled_turns_are_counted(tmp_path):
    path = turns_file(tmp_path / "t.jsonl", [turn(0), turn(1), turn(2, label=None), turn(4, "dev"), turn(5, "dev")])
    data = read_classifier_data(path, path)
    assert (len(data.train), len(data.dev), data.unlabelled) == (2, 2, {"train": 1, "dev": 0})


@pytest.mark.parametrize(
    ("turns", "words"),
    [
        ([turn(0), turn(1)], "no example of split 'dev'"),
        ([turn(1), turn(2), turn(4, "dev"), turn(5, "dev")], "all 2 train examples are of one class"),
        (
            [turn(0), turn(1), replace(turn(0, "dev"), dialogue_id="train1"), turn(5, "dev")],
            "dialogue 'train1' is in train and in dev",
        ),
        ([turn(0), turn(0), turn(4, "dev"), turn(5, "dev")], "duplicate id 'train0:1'"),
        ([turn(0, label=None), turn(4, "dev"), turn(5, "dev")], "no train example has a hard label"),
    ],
)
def test_data_that_teaches_nothing_or_leaks_is_refused(tmp_path, turns, words):
    path = turns_file(tmp_path / "t.jsonl", turns)
    with pytest.raises(UserError, match=words):
        read_classifier_data(path, path)


def test_test_turns_of_trained_dialogues_are_refused(tmp_path):
    path = turns_file(tmp_path / "t.jsonl", [turn(0), turn(1), turn(4, "dev"), turn(5, "dev")])
    config = ClassifierConfig(model="m", train=path, dev=path, output=tmp_path, test=tmp_path / "test.jsonl")
    turns_file(config.test, [turn(7, "test"), replace(turn(0, "test"), dialogue_id="train1")])
    with pytest.raises(UserError, match=r"t\.jsonl: dialogue 'train1' is in train and in test"):
        checked_test(config, read_classifier_data(path, path))


def test_class_weights_are_inverse_to_the_shares():
    rows = [Labelled(turn(0), 1.0)] + [Labelled(turn(1), 0.0)] * 3
    assert class_weights(rows) == (0.25, 0.75)
    assert class_weights(rows, 0) == (0.5, 0.5)
    assert class_weights(rows, 0.5) == pytest.approx((0.5 / (0.5 + 0.75**0.5), 0.75**0.5 / (0.5 + 0.75**0.5)))


def test_acts_foreseen_are_those_of_training_turns():
    rows = [Labelled(turn(i), 0.0) for i in range(4)]
    assert common_acts(rows) == ("NOTIFY_SUCCESS", "OFFER")
    assert common_acts(rows, least=0.5) == ("NOTIFY_SUCCESS",)
    assert act_targets(turn(0), ("NOTIFY_SUCCESS", "OFFER")) == (0.0, 1.0)
    assert act_targets(turn(0, response_acts=()), ("OFFER",)) is None


def test_loss_is_the_weighted_mean_by_hand():
    logits = torch.tensor([[0.0], [2.0]])
    found = classifier_loss(logits, torch.tensor([1.0, 0.0]), torch.empty(2, 0), Objective((0.25, 0.75)))
    expected = (0.75 * math.log(2) + 0.25 * math.log(1 + math.exp(2))) / 1.0
    assert float(found) == pytest.approx(expected, rel=1e-6)


def test_two_classes_and_one_logit_say_the_same():
    two = torch.tensor([[0.3, 1.5], [-1.0, 2.0]])
    one = need_logit(two, 2)[:, None]
    args = (torch.tensor([1.0, 0.25]), torch.empty(2, 0))
    of_two = float(classifier_loss(two, *args, Objective((0.3, 0.7), 2)))
    assert of_two == pytest.approx(float(classifier_loss(one, *args, Objective((0.3, 0.7)))))
    cross = torch.nn.functional.cross_entropy(two, torch.tensor([[0.0, 1.0], [0.75, 0.25]]), reduction="none")
    weight = torch.tensor([0.7, 0.25 * 0.7 + 0.75 * 0.3])
    assert of_two == pytest.approx(float((cross * weight).sum() / weight.sum()))


def test_auxiliary_targets_count_where_they_are_known():
    rows = [ClassifierRow((5, 6), need=1.0, auxiliary=(1.0, 0.0)), ClassifierRow((7,))]
    batch = ClassifierCollator(0, n_auxiliary=2)(rows)
    assert batch["auxiliary"].tolist() == [[1, 0], [-1, -1]]
    logits = torch.zeros(2, 3)
    base = classifier_loss(logits, batch["need"], batch["auxiliary"], Objective((0.5, 0.5)))
    with_acts = classifier_loss(logits, batch["need"], batch["auxiliary"], Objective((0.5, 0.5), auxiliary_weight=2.0))
    assert float(with_acts - base) == pytest.approx(2 * math.log(2))


def test_rows_are_padded_on_the_right_with_a_mask():
    rows = [ClassifierRow((5, 6, 7), (0, 0, 1), (9,)), ClassifierRow((8,), (0,))]
    batch = ClassifierCollator(0, with_segments=True).inputs(rows)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["token_type_ids"].tolist() == [[0, 0, 1], [0, 0, 0]]
    assert batch["knowledge_ids"].tolist() == [[9], [0]]


def test_threshold_is_the_best_f1_of_dev_with_the_fewest_retrievals():
    scores = [0.9, 0.8, 0.4, 0.2, 0.1]
    assert best_f1_threshold([1, 1, 0, 0, 0], scores).value == pytest.approx(0.6)
    metrics = classifier_metrics([1, 1, 0, 0, 0], scores)
    assert (metrics["f1"], metrics["auroc"], metrics["average_precision"]) == (1, 1, 1)
    assert metrics["loss"] == pytest.approx(-sum(map(math.log, (0.9, 0.8, 0.6, 0.8, 0.9))) / 5)


def test_soft_labels_are_taught_and_dev_is_measured_by_the_hard_ones(tmp_path):
    """A weak model: no mastery above .4, known above .2."""
    masteries = [0.0, 0.1, 0.2, 0.3, 0.4, 0.4]
    for split in ("train", "dev"):
        rows = [question(i, split, mastery=mastery > 0.2, soft_mastery=mastery) for i, mastery in enumerate(masteries)]
        write(tmp_path / f"{split}.jsonl", rows)
    data = read_classifier_data(tmp_path / "train.jsonl", tmp_path / "dev.jsonl", "mastery", "soft")
    assert [row.need for row in data.train] == pytest.approx([1 - m for m in masteries])
    assert [row.is_needed for row in data.dev] == [True, True, True, False, False, False]

    class Gate:
        name = "gate"

        def score(self, examples):
            return [0.9, 0.8, 0.7, 0.3, 0.2, 0.1]

    found = DevScores.from_scores("gate", Gate().score([]), data.dev, tmp_path / "dev.jsonl")
    assert found.threshold.threshold == pytest.approx(0.5)
    assert found.counts() == "6 examples, 3 positive; 95 % intervals"
    assert found.metrics["auroc"] == 1.0
    losses = [-(1 - m) * math.log(s) - m * math.log(1 - s) for m, s in zip(masteries, found.scores, strict=True)]
    assert found.metrics["loss"] == pytest.approx(sum(losses) / 6)
    assert dev_metrics(Gate(), data)() == found.metrics


def small_bert():
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, num_labels=1
    )
    return BertForSequenceClassification(config)


def test_new_layers_learn_at_their_own_rate_and_biases_do_not_decay():
    model = small_bert()
    groups = parameter_groups(model, 1.0, 7.0, 0.01)
    by_parameter = {id(p): g for g in groups for p in g["params"]}
    rates = {name: by_parameter[id(p)]["lr"] for name, p in model.named_parameters()}
    assert rates["bert.encoder.layer.0.output.dense.weight"] == 1.0
    assert rates["classifier.weight"] == rates["bert.pooler.dense.bias"] == 7.0
    assert by_parameter[id(model.classifier.bias)]["weight_decay"] == 0
    assert len(by_parameter) == len(list(model.parameters()))


def test_deepspeed_s_own_optimizer_is_refused(tmp_path, monkeypatch):
    """It took the encoder's rate for the head, too."""
    monkeypatch.setattr("kbtrain.training.classifier_trainer.names_optimizer", lambda accelerator: True)
    config = ClassifierConfig(model="m", train=tmp_path, dev=tmp_path, output=tmp_path / "out")
    arguments = training_arguments(config, "fp32", "cpu", has_dev=True)
    parts = (ClassifierCollator(0), Objective((0.5, 0.5), head_rate=7.0), dict)
    with pytest.raises(UserError, match="launcher: offload is not for a classifier"):
        ClassifierTrainer(small_bert(), arguments, [ClassifierRow((5, 6))], *parts)
