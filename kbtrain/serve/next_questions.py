"""Choice of logged questions to label next: at random, near the gate's threshold, or unlike each other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kbtrain.answers.words import words
from kbtrain.arrays import Floats
from kbtrain.errors import UserError
from kbtrain.gate.card import Threshold, read_gate_json
from kbtrain.gate.trained_on import question_hash
from kbtrain.io.provenance import write_atomically
from kbtrain.serve.audit import Audit, answers_cost, logged_turns

By = Literal["random", "uncertainty", "diversity"]


def choose_next(
    texts: Sequence[str], scores: Floats, n: int, by: By, threshold: float, rng: np.random.Generator
) -> NDArray[np.intp]:
    """Places of ``n`` questions: drawn at random; with the scores nearest to the threshold; or unlike each other in
    their words (``diversity``)."""
    shuffled = rng.permutation(len(scores))
    if by == "uncertainty":
        return shuffled[np.argsort(np.abs(scores[shuffled] - threshold), kind="stable")[:n]]
    if by == "diversity":
        return shuffled[farthest_first([texts[place] for place in shuffled], n)]
    return shuffled[:n]


def farthest_first(texts: Sequence[str], n: int) -> NDArray[np.intp]:
    """Places of ``n`` texts, the first and then always the one least like all before it: cosine of word weights.

    The greedy cover of Gonzalez (1985), which active learning calls a core set (Sener and Savarese 2018).
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    table = TfidfVectorizer(analyzer=words).fit_transform(texts)
    likeness, chosen = np.full(len(texts), -1.0), [0]
    while len(chosen) < min(n, len(texts)):
        likeness = np.maximum(likeness, (table @ table[chosen[-1]].T).toarray()[:, 0])
        likeness[chosen] = np.inf
        chosen.append(int(np.argmin(likeness)))
    return np.array(chosen)


def next_lines(audit: Audit, by: By, output: Path) -> list[str]:
    """Write the chosen questions, a JSON line each, with the rule that chose it; a line about them.

    Beside a rule as many questions are drawn at random: what the rule gains can then be measured. Raises
    :class:`UserError`.
    """
    if output.exists():
        raise UserError(f"{output}: exists already; give another --output")
    gate, turns, left_out = logged_turns(audit)
    texts = list({question_hash(text): (text, score) for text, score in turns}.values())
    noted = read_gate_json(audit.folder).get("thresholds", {}).get(gate)
    if noted is None and by == "uncertainty":
        raise UserError(f"{audit.folder}: gate '{gate}' has no threshold; note one, or remove --by uncertainty")
    threshold = Threshold.model_validate(noted).threshold if noted else 0.0
    rng, scores = np.random.default_rng(audit.seed), np.array([score for _, score in texts])
    chosen = {int(place): by for place in choose_next([text for text, _ in texts], scores, audit.n, by, threshold, rng)}
    if by != "random":
        chosen |= {int(place): "random" for place in rng.permutation(len(texts))[: audit.n] if place not in chosen}
    rows = [{"question": texts[i][0], "chosen_by": rule, "score": texts[i][1]} for i, rule in chosen.items()]
    write_atomically(output, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    counts = ", ".join(f"{list(chosen.values()).count(rule)} by {rule}" for rule in dict.fromkeys(chosen.values()))
    reasons = ", ".join(f"{count} {why}" for why, count in left_out.items()) or "none"
    return [
        f"{gate}: {counts}, of {len(texts)} different questions; skipped: {reasons} -> {output}",
        answers_cost(audit.folder, len(rows)),
    ]
