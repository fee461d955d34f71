import math

import pytest
import torch
from tiny_kbm import KINDS, example, make_model, make_tokenizer

from kbtrain.gates.kbm.train import make_row
from kbtrain.gates.true_false import Encoder, kbm_template
from kbtrain.kernels.training_attention import Span, attention_for_training
from kbtrain.training.answer_trainer import IGNORE, Collator, TrainingRow, answer_loss, packed, pays

KEYS = ("mastery", "certainty")
ENCODER = Encoder(make_tokenizer(), kbm_template(KEYS), 4000)
ENCODED = [ENCODER.encode(example(i, reference="word " * (5 * i) or None)) for i in range(4)]


def test_targets_stand_at_the_value_positions_and_eos_is_learned():
    row = make_row(ENCODED[0], [1.0, 0.0])
    assert row.labels == ENCODED[0].answer((True, False))
    assert row.labels[-1] == ENCODER.tokenizer.eos_token_id
    assert set(row.weight) == {1.0}
    soft = make_row(ENCODED[0], [0.7, 0.2])
    assert soft.ids == row.ids
    first, second = ENCODED[0].tree.places[()], ENCODED[0].tree.places[True,]
    assert soft.weight[first.position] == 0.7 and soft.other[first.position] == first.false_id
    assert soft.weight[second.position] == 0.8 and soft.other[second.position] == second.true_id
    assert [w for w in soft.weight if w != 1.0] == [0.7, 0.8]


def test_an_unknown_label_costs_nothing_at_its_value_and_the_rest_is_learned():
    row = make_row(ENCODED[0], [1.0, None])
    answer = ENCODED[0].answer((True, False))
    place = ENCODED[0].tree.places[True,].position
    assert row.labels[place] == IGNORE
    assert [a for i, a in enumerate(row.labels) if i != place] == [a for i, a in enumerate(answer) if i != place]


def test_the_loss_is_that_of_a_value_worked_by_hand():
    logits = torch.tensor([[[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]]])
    labels = torch.tensor([[IGNORE, 2]])
    other, weight = torch.tensor([[0, 0]]), torch.tensor([[1.0, 0.75]])
    norm = math.log(math.e + math.e**2 + math.e**3)
    expected = 0.75 * (norm - 3) + 0.25 * (norm - 1)
    assert answer_loss(logits, labels, other, weight).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_left_padded_batch_costs_what_its_rows_cost_alone(kind):
    """Second implementation: transformers' own loss over the whole row, with the prompt's labels ignored."""
    model = make_model(kind, len(ENCODER.tokenizer))
    rows = [make_row(e, [1.0, float(i % 2)]) for i, e in enumerate(ENCODED)]
    batch = Collator(0)(rows)
    with torch.no_grad():
        logits = model(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], position_ids=batch["position_ids"],
            logits_to_keep=batch["labels"].shape[1], use_cache=False,
        ).logits  # fmt: skip
        assert logits.shape[1] == max(len(row.labels) for row in rows)  # never the whole row's
        together = answer_loss(logits, batch["labels"], batch["other"], batch["weight"]).item()
        alone = 0.0
        for row in rows:
            ids = torch.tensor([row.ids])
            labels = ids.clone()
            labels[0, : len(row.ids) - len(row.labels)] = -100
            alone += model(input_ids=ids, labels=labels).loss.item() * len(row.labels)
    assert together == pytest.approx(alone, rel=1e-5)


def losses_and_gradients(model, batch, spans=None):
    """The batch's summed loss as the trainer computes it, and every weight's gradient."""
    model.zero_grad()
    with attention_for_training(model, batch["attention_mask"], False, spans):
        logits = model(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], position_ids=batch["position_ids"],
            logits_to_keep=batch.get("kept", batch["labels"].shape[1]), use_cache=False,
        ).logits  # fmt: skip
    loss = answer_loss(logits, batch["labels"], batch["other"], batch["weight"])
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", ["llama", "qwen2", "mistral"])
@pytest.mark.parametrize("long", [False, True], ids=["without references", "one of 200 tokens"])
def test_rows_end_to_end_cost_what_they_cost_beside_each_other(kind, long):
    model = make_model(kind, len(ENCODER.tokenizer), sliding_window=None)
    references = [None, None, None, "word " * 60 if long else None]
    encoded = [ENCODER.encode(example(i, reference=reference)) for i, reference in enumerate(references)]
    rows = [make_row(e, [0.7, float(i % 2)]) for i, e in enumerate(encoded)]
    batch = packed(rows)
    spans = [Span(*line) for line in batch["spans"].tolist()]
    assert batch["input_ids"].shape[1] < sum(len(row.ids) - 1 for row in rows)
    loss, gradients = losses_and_gradients(model, batch, spans)
    expected, of_each = losses_and_gradients(model, Collator(0)(rows))
    assert loss == pytest.approx(expected, rel=1e-5)
    assert gradients.keys() == of_each.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, of_each[name], atol=1e-4, rtol=1e-4)


def test_a_packed_batch_by_hand():
    rows = [TrainingRow((7, 8, 1, 2, 3, 9), (3, 9), (0, 5), (1.0, 0.5)), TrainingRow((7, 8, 4, 9), (9,), (0,), (1.0,))]
    batch = {name: values.tolist() for name, values in packed(rows).items()}
    assert batch["input_ids"] == [[7, 8, 1, 2, 3, 4]] and batch["attention_mask"] == [[1] * 6]
    assert batch["position_ids"] == [[0, 1, 2, 3, 4, 2]]
    assert (batch["labels"], batch["kept"]) == ([[3, 9, 9]], [3, 4, 5])
    assert (batch["other"], batch["weight"]) == ([[0, 5, 0]], [[1.0, 0.5, 1.0]])
    assert batch["spans"] == [[0, 0, 2, 0], [0, 2, 5, 2], [0, 5, 6, 2]]


def test_rows_are_packed_only_where_that_spares_a_tenth_of_the_tokens():
    def row(start, length):
        return TrainingRow((*range(start), *range(100, 100 + length - start), 9), (9,), (0,), (1.0,))

    assert pays([row(20, 100), TrainingRow((*range(20), *[5] * 80, 9), (9,), (0,), (1.0,))])  # 20 of 200
    assert not pays([row(19, 100), TrainingRow((*range(19), *[5] * 81, 9), (9,), (0,), (1.0,))])
    assert not pays([row(50, 100)])
    assert pays([row(0, 100), TrainingRow((5,) * 80 + (9,), (9,), (0,), (1.0,))])  # 20 of padding
    rows = [make_row(e, [1.0, 1.0]) for e in ENCODED[:1] * 3]
    assert "kept" in Collator(0, packs=True)(rows) and "kept" not in Collator(0)(rows)
