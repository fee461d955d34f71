"""Text metrics against values worked by hand and other implementations."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from ragate_responses.text_generation import TextScores, bert_parts, scores_of, text_parts

from kbtrain.errors import UserError

pytest.importorskip("sacrebleu", reason="needs the extra 'studies'")
pytest.importorskip("rouge_score", reason="needs the extra 'studies'")


def text_scores(responses: list[str], references: list[str]) -> TextScores:
    return scores_of(text_parts(responses, references))


def weights_hash(folder: str) -> str:
    return hashlib.sha256((Path(folder) / "model.safetensors").read_bytes()).hexdigest()[:12]


def matched(folder: str, response: str, reference: str, layer: int) -> list[float]:
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


def longest_common(a: list[str], b: list[str]) -> int:
    """Length of the longest common subsequence, the plain recursion with a table."""
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a, 1):
        for j, y in enumerate(b, 1):
            table[i][j] = table[i - 1][j - 1] + 1 if x == y else max(table[i - 1][j], table[i][j - 1])
    return table[-1][-1]


def own_bleu(responses: list[list[str]], references: list[list[str]]) -> float:
    """Corpus BLEU from its definition (Papineni et al. 2002), for texts that share n-grams of every order."""
    logs = 0.0
    for order in range(1, 5):
        hits = total = 0
        for made, wanted in zip(responses, references, strict=True):
            grams = [
                Counter(tuple(side[i : i + order]) for i in range(len(side) - order + 1)) for side in (made, wanted)
            ]
            hits += (grams[0] & grams[1]).total()
            total += grams[0].total()
        logs += math.log(hits / total) / 4
    lengths = [sum(map(len, side)) for side in (responses, references)]
    return 100 * math.exp(logs + min(0.0, 1 - lengths[1] / lengths[0]))


def test_random_texts_give_what_the_definitions_give() -> None:
    rng = random.Random(0)
    for _ in range(5):
        pairs = [[[rng.choice("abcde") for _ in range(rng.randint(4, 12))] for _ in range(2)] for _ in range(40)]
        made, wanted = [made for made, _ in pairs], [wanted for _, wanted in pairs]
        found = text_scores([" ".join(x) for x in made], [" ".join(x) for x in wanted])
        assert found.bleu == pytest.approx(own_bleu(made, wanted))
        shared = [(Counter(a) & Counter(b)).total() for a, b in pairs]
        f1 = [2 * n / (len(a) + len(b)) for n, (a, b) in zip(shared, pairs, strict=True)]
        assert found.rouge1 == pytest.approx(sum(f1) / 40)
        assert found.rouge_l == pytest.approx(sum(2 * longest_common(a, b) / (len(a) + len(b)) for a, b in pairs) / 40)


def test_a_chinese_character_is_a_word() -> None:
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


def test_bertscore_of_equal_texts_is_1_of_an_empty_one_0_and_its_code_names_the_model(tmp_path) -> None:
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
