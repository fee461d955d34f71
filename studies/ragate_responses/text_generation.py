"""Similarity of generated responses to references (RAGate, tables 3 and 4): BLEU, ROUGE, BERTScore, confidence."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kbtrain.answers.writing import CJK
from kbtrain.arrays import Floats
from kbtrain.errors import UserError
from kbtrain.io.provenance import file_sha256

_ORDERS = 4  # BLEU counts n-grams of 1 to 4 words
_ROUGE = ("rouge1", "rouge2", "rougeL")
_CHINESE = re.compile(rf"([{CJK}])")
_APART = re.compile(rf"([{CJK}\u3001-\u303f\uff01-\uff0f\uff1a-\uff20])")  # Chinese marks, too


@dataclass(frozen=True)
class TextScores:
    """BLEU (corpus, 0 to 100); ROUGE F-measures (mean over responses, 0 to 1), with stemming. Empty responses score 0
    and are not skipped."""

    bleu: float
    rouge1: float
    rouge2: float
    rouge_l: float


def text_parts(responses: Sequence[str], references: Sequence[str]) -> Floats:
    """Sufficient statistics of corpus figures, one row a response: (n, 13), BLEU's matches and totals of 1- to 4-grams,
    the lengths of response and reference, and the three ROUGE F-measures. Any rows' figures: :func:`scores_of`.
    A Chinese character is a word.
    """
    _check(responses, references)
    try:
        from rouge_score.rouge_scorer import RougeScorer
        from rouge_score.tokenizers import DefaultTokenizer
        from sacrebleu.metrics import BLEU
    except ImportError as error:
        raise _missing(error) from None
    bleu = BLEU(effective_order=True)  # counts do not depend on the order
    rouge = RougeScorer(_ROUGE, tokenizer=_RougeWords(DefaultTokenizer(use_stemmer=True)))
    rows = []
    for response, reference in zip(responses, references, strict=True):
        response_words, reference_words = (_APART.sub(r" \1 ", text) for text in (response, reference))
        counts, rouge_scores = bleu.sentence_score(response_words, [reference_words]), rouge.score(reference, response)
        f1 = (rouge_scores[name].fmeasure for name in _ROUGE)
        rows.append([*counts.counts, *counts.totals, counts.sys_len, counts.ref_len, *f1])
    return np.array(rows, dtype=np.float64)


class _RougeWords:
    """ROUGE's words: those of ``plain``, which has the letters a to z and digits alone, and Chinese characters."""

    def __init__(self, plain: Any) -> None:
        self._plain = plain

    def tokenize(self, text: str) -> list[str]:
        pieces = _CHINESE.split(text)  # every second one is a Chinese character
        return [word for i, piece in enumerate(pieces) for word in ([piece] if i % 2 else self._plain.tokenize(piece))]


def scores_of(parts: Floats) -> TextScores:
    """Figures of the responses whose :func:`text_parts` these are: BLEU from summed counts, ROUGE as means."""
    try:
        from sacrebleu.metrics import BLEU
    except ImportError as error:
        raise _missing(error) from None
    total = parts.sum(axis=0)
    lengths = (int(n) for n in total[2 * _ORDERS : 2 * _ORDERS + 2])
    score: Any = BLEU.compute_bleu(
        [int(n) for n in total[:_ORDERS]], [int(n) for n in total[_ORDERS : 2 * _ORDERS]], *lengths, smooth_method="exp"
    )
    return TextScores(float(score.score), *(total[-3:] / len(parts)).tolist())


@functools.cache
def bleu_signature() -> str:
    """Settings and version of BLEU, as sacrebleu prints them."""
    from sacrebleu.metrics import BLEU

    bleu = BLEU()
    bleu.corpus_score(["a"], [["a"]])  # it knows the number of references only then
    return str(bleu.get_signature())


def bert_parts(
    responses: Sequence[str], references: Sequence[str], model: str, layers: int | None = None
) -> tuple[Floats, str]:
    """BERTScore (Zhang et al. 2020) by the package bert-score, without rescaling, of each response: precision, recall
    and F1, (n, 3), 0 for an empty one; and the code.

    ``model`` is an embedded model's name, a folder or a hub id; ``layers`` (1 to the model's number of them) is needed
    for one that bert-score does not know by name.
    The code of a folder has its name and the start of its weights' sha256. Raises :class:`UserError` also for a missing
    model or layer.
    """
    _check(responses, references)
    try:
        from bert_score import score
    except ImportError:
        raise UserError('bert-score is not installed; run: pip install "kbtrain[studies]"') from None
    path, label = _encoder(model, layers)
    empty = np.array([not (a.strip() and b.strip()) for a, b in zip(responses, references, strict=True)])
    # bert-score fails on an empty text beside tokenizers of transformers 5
    filled, gold = (
        ["." if is_empty else text for text, is_empty in zip(texts, empty, strict=True)]
        for texts in (responses, references)
    )
    try:
        tensors, code = score(filled, gold, model_type=path, num_layers=layers, device="cpu", return_hash=True)
    except (OSError, KeyError) as error:
        first = str(error).strip().splitlines()[0]
        raise UserError(f"BERTScore's model '{model}' cannot be opened ({first[:120]})") from None
    except AssertionError as error:  # "Invalid num_layers: num_layers should be between 0 and 6 for ..."
        raise UserError(f"BERTScore's model '{model}', layer {layers}: {str(error).partition(' for ')[0]}") from None
    except OverflowError:
        raise UserError(f"BERTScore's model '{model}': its tokenizer_config.json names no model_max_length") from None
    parts = np.stack([part.double().cpu().numpy() for part in tensors], axis=1)
    parts[empty] = 0.0
    return parts, str(code).replace(path, label, 1)


def _encoder(model: str, layers: int | None) -> tuple[str, str]:
    """Model to open, and its name in the code: the hash of its weights for a folder, whose path means nothing
    elsewhere.
    """
    from kbtrain.models.load import resolve

    path = resolve(model)
    if not Path(path).is_dir():
        return path, path
    if layers is None:
        raise UserError(f"BERTScore's model '{model}': choose one of its layers (--bertscore-layers)")
    weights = [file_sha256(file) for file in sorted(Path(path).glob("*.safetensors"))]
    return path, f"{Path(path).resolve().name}@{weights[0][:12] if weights else 'no-safetensors'}"


def _check(responses: Sequence[str], references: Sequence[str]) -> None:
    if len(responses) != len(references) or not responses:
        raise ValueError(f"{len(responses)} responses and {len(references)} references: need as many of both, above 0")


def _missing(error: ImportError) -> UserError:
    return UserError(f'{error.name} is not installed; run: pip install "kbtrain[studies]"')
