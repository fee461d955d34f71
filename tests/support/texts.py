"""BLEU and ROUGE of responses in one call, for tests that compare with them."""

from kbtrain.metrics.text_generation import TextScores, scores_of, text_parts


def text_scores(responses: list[str], references: list[str]) -> TextScores:
    return scores_of(text_parts(responses, references))
