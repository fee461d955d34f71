"""Text metrics against other implementations, and rows of RAGate's tables 3 and 4 worked by hand."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from ragate_responses.evaluation import Draws, figures, parts_of, table_rows
from ragate_responses.responses import AugmentedResponse
from ragate_responses.text_generation import bert_parts, scores_of, text_parts

from kbtrain.errors import UserError

sacrebleu = pytest.importorskip("sacrebleu", reason="needs the extra 'studies'")
pytest.importorskip("rouge_score", reason="needs the extra 'studies'")


def text_scores(responses, references):
    return scores_of(text_parts(responses, references))


def weights_hash(folder):
    return hashlib.sha256((Path(folder) / "model.safetensors").read_bytes()).hexdigest()[:12]


def matched(folder, response, reference, layer):
    """Precision, recall and F1 of greedily matched hidden states (BERTScore, section 3); end marks count nothing."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    states, counted = [], []
    for text in (response, reference):
        read = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            found = model(**read, output_hidden_states=True).hidden_states[layer][0]
        states.append(torch.nn.functional.normalize(found, dim=-1))
        counted.append(~torch.isin(read.input_ids[0], torch.tensor([tokenizer.cls_token_id, tokenizer.sep_token_id])))
    alike = states[0] @ states[1].T
    precision, recall = (float(alike.amax(dim=1 - i)[counted[i]].mean()) for i in (0, 1))
    return [precision, recall, 2 * precision * recall / (precision + recall)]


def test_a_chinese_character_is_a_word():
    from sacrebleu.metrics import BLEU

    said, wanted = (
        ["博物馆九点开门，Wi-Fi 免费。", "酒店已经订好了。"],
        ["博物馆早上九点开门，Wi-Fi 免费。", "酒店已经订好了。"],
    )
    found = text_scores(said, wanted)
    assert found.bleu == pytest.approx(BLEU(tokenize="zh").corpus_score(said, [wanted]).score)
    same = 2 * 11 / (11 + 13)  # nine characters, "wi" and "fi"; two characters are missing
    assert (found.rouge1, found.rouge_l) == pytest.approx(((same + 1) / 2, (same + 1) / 2))
    assert text_scores(wanted, wanted).rouge2 == 1


def test_bertscore_of_equal_texts_is_1_of_an_empty_one_0_and_its_code_names_the_model(tmp_path):
    pytest.importorskip("bert_score", reason="needs the extra 'studies'")
    from tiny_turns import bert_folder

    model = str(bert_folder(tmp_path / "bert"))
    with pytest.raises(UserError, match="names no model_max_length"):
        bert_parts(["a"], ["a"], model, layers=2)
    settings = tmp_path / "bert" / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"model_max_length": 128}))
    texts = ["tell me about the park", "", "book 3 tickets"]
    parts, code = bert_parts(texts, ["tell me about the park", "done", "find me a bus"], model, layers=2)
    assert parts[0] == pytest.approx([1, 1, 1], abs=1e-5) and parts[1].tolist() == [0, 0, 0]
    assert parts[2, 2] < 0.99 and code.startswith(f"bert@{weights_hash(model)}_L2")
    assert model not in code  # where the folder lies on this machine is nobody's business
    other = bert_parts(texts, ["tell me about the park", "done", "find me a bus"], model, layers=1)[0]
    for layer, found in ((1, other), (2, parts)):
        assert found[2] == pytest.approx(matched(model, texts[2], "find me a bus", layer), abs=1e-5)
    assert not np.allclose(other[2], parts[2])


REFERENCES = ["the museum opens at nine every day", "it is a large park", "your table is booked for two", "done"]
PLAIN = ["the museum opens at ten", "it is a park", "your table is booked", ""]
AUGMENTED = ["the museum opens at nine every day", "it is a large green park", "a table", "done"]
LEAST = [(9.0, 0.5), (8.0, 0.4), (7.0, 0.3), (None, None)]
LEAST_AUGMENTED = [(6.0, 0.2), (5.0, 0.1), (4.0, 0.6), (3.0, 0.7)]


def stored(texts, least, name):
    return [
        AugmentedResponse(f"t{i}", name, text, len(text.split()), *pair)
        for i, (text, pair) in enumerate(zip(texts, least, strict=True))
    ]


@pytest.fixture
def none():
    return parts_of(stored(PLAIN, LEAST, "none"), REFERENCES, np.array([0.1, 0.2, 0.3, 0.4]))


@pytest.fixture
def augmented():
    return parts_of(stored(AUGMENTED, LEAST_AUGMENTED, "x_top3"), REFERENCES, np.array([0.5, 0.6, 0.7, 0.8]))


def test_a_gate_s_row_is_the_per_turn_mix_of_stored_responses(none, augmented):
    chosen = np.array([True, False, True, False])
    row = table_rows("x_top3", none, augmented, {"gate": chosen}, np.array([True, True, False, False]), Draws(20))[0]
    texts = [AUGMENTED[0], PLAIN[1], AUGMENTED[2], PLAIN[3]]
    expected = scores_of(text_parts(texts, REFERENCES))
    found = row.figures
    assert (row.variant, row.n_augmented) == ("gate", 2)
    assert found.bleu == pytest.approx(sacrebleu.corpus_bleu(texts, [REFERENCES]).score, abs=1e-9)
    assert (found.rouge1, found.rouge2, found.rouge_l) == pytest.approx(
        (expected.rouge1, expected.rouge2, expected.rouge_l)
    )
    assert found.bert == pytest.approx((0.5 + 0.2 + 0.7 + 0.4) / 4)
    assert found.minimum_logit == pytest.approx((6 + 8 + 4) / 3)  # the fourth response is empty
    assert found.logit_change == pytest.approx((6 - 8) / 8)  # No-Aug: (9 + 8 + 7) / 3 = 8
    assert found.minimum_probability == pytest.approx((0.2 + 0.4 + 0.6) / 3)
    assert found.probability_change == pytest.approx(0.0)  # No-Aug: 0.4


def test_all_variants_stand_in_the_paper_s_order_and_random_has_the_gate_s_size(none, augmented):
    gates = {"one": np.array([True, False, False, False]), "two": np.array([True, True, True, False])}
    rows = table_rows("x_top3", none, augmented, gates, np.array([False, True, False, True]), Draws(20))
    assert [(row.variant, row.n_augmented, row.kind) for row in rows] == [
        ("one", 1, "value"), ("two", 3, "value"),
        ("Random-Aug (20 draws)", 1, "value"), ("Random-Aug (20 draws): spread", 1, "sd"),
        ("Random-Aug (20 draws)", 3, "value"), ("Random-Aug (20 draws): spread", 3, "sd"),
        ("Human-label", 2, "value"), ("Aug-All", 4, "value"),
    ]  # fmt: skip
    assert rows[-1].figures.bleu == figures(augmented).bleu
    # choosing one of four turns changes ROUGE-1 by a quarter of that turn's difference: the mean over all draws
    gains = (augmented.text[:, 10] - none.text[:, 10]) / 4
    base = figures(none).rouge1
    assert base + gains.min() <= rows[2].figures.rouge1 <= base + gains.max()
    assert rows[3].figures.rouge1 <= gains.max() - gains.min()
    assert rows[0].beaten is not None and rows[0].beaten.endswith("/20")
