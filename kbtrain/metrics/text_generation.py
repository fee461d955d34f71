"""How close generated responses come to written ones (RAGate, tables 3 and 4): BLEU, ROUGE, BERTScore, confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kbtrain.errors import UserError


@dataclass(frozen=True)
class TextScores:
    """BLEU (corpus, 0 to 100) with sacrebleu's signature; ROUGE F-measures (mean over responses, 0 to 1), with
    stemming. ``n_empty`` counts empty responses: they score 0 and are not left out."""

    n: int
    n_empty: int
    bleu: float
    bleu_signature: str
    rouge1: float
    rouge2: float
    rouge_l: float


@dataclass(frozen=True)
class BertScores:
    """Means over the responses of BERTScore's precision, recall and F1; ``code`` names model, layer and versions."""

    precision: float
    recall: float
    f1: float
    code: str


@dataclass(frozen=True)
class Confidence:
    """Means over the responses of the least logit and of the least probability among a response's chosen tokens.

    RAGate's text and table differ about which of the two it reports. ``n_without`` responses have no token.
    """

    n: int
    n_without: int
    minimum_logit: float | None
    minimum_probability: float | None


def text_scores(responses: Sequence[str], references: Sequence[str]) -> TextScores:
    """Compare each response with its one reference. Raises :class:`UserError` if sacrebleu or rouge-score is missing,
    ValueError if there is nothing to compare."""
    _check(responses, references)
    try:
        from rouge_score.rouge_scorer import RougeScorer
        from sacrebleu.metrics import BLEU
    except ImportError as error:
        raise UserError(f'{error.name} is not installed; run: pip install "kbtrain[dialogue]"') from None
    bleu = BLEU()
    score = bleu.corpus_score(list(responses), [list(references)])
    names = ("rouge1", "rouge2", "rougeL")
    scorer = RougeScorer(names, use_stemmer=True)
    found = [scorer.score(reference, response) for response, reference in zip(responses, references, strict=True)]
    rouge1, rouge2, rouge_l = (sum(one[name].fmeasure for one in found) / len(found) for name in names)
    empty = sum(not response.strip() for response in responses)
    return TextScores(len(found), empty, float(score.score), str(bleu.get_signature()), rouge1, rouge2, rouge_l)


def bert_scores(
    responses: Sequence[str], references: Sequence[str], model: str, layers: int | None = None, device: str = "cpu"
) -> BertScores:
    """BERTScore (Zhang et al. 2020) by the package bert-score, without rescaling.

    ``model`` is a folder or hub id; ``layers`` is needed for one that bert-score does not know by name. Raises
    :class:`UserError` if bert-score is missing.
    """
    _check(responses, references)
    try:
        from bert_score import score
    except ImportError:
        raise UserError('bert-score is not installed; run: pip install "kbtrain[bertscore]"') from None
    found, code = score(
        list(responses), list(references), model_type=model, num_layers=layers, device=device, return_hash=True
    )
    precision, recall, f1 = (float(part.mean()) for part in found)
    return BertScores(precision, recall, f1, str(code))


def confidence(logits: Sequence[Sequence[float]], probabilities: Sequence[Sequence[float]]) -> Confidence:
    """From each response's chosen tokens' logits and probabilities."""
    least = [(min(a), min(b)) for a, b in zip(logits, probabilities, strict=True) if len(a)]
    n, without = len(least), len(logits) - len(least)
    if not least:
        return Confidence(0, without, None, None)
    return Confidence(n, without, sum(a for a, _ in least) / n, sum(b for _, b in least) / n)


def _check(responses: Sequence[str], references: Sequence[str]) -> None:
    if len(responses) != len(references) or not responses:
        raise ValueError(f"{len(responses)} responses and {len(references)} references: need as many, and at least one")
