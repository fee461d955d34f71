"""Which snippets a turn's ranker chooses from, what it is trained on, and how often it finds the right ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kbtrain.errors import UserError, at
from kbtrain.jsonl import read
from kbtrain.prompts.context import context_text
from kbtrain.records import Hit, Snippet, Split, TurnExample
from kbtrain.retrieval.tokens import Tokens

Rank = Callable[[TurnExample, Sequence[Hit], int], Sequence[Hit]]


class Candidates:
    """A dialogue's own snippets and those that belong to none."""

    def __init__(self, snippets: Sequence[Snippet]) -> None:
        self._own: dict[str | None, list[Hit]] = {}
        for snippet in snippets:
            hit = Hit(snippet.id, snippet.title, snippet.text, 0.0)
            self._own.setdefault(snippet.dialogue_id, []).append(hit)

    def of(self, example: TurnExample) -> list[Hit]:
        """In the order of the file; empty where the dialogue has none."""
        return [*self._own.get(example.dialogue_id, []), *self._own.get(None, [])]


@dataclass(frozen=True)
class Pair:
    """A turn with one snippet, and whether that is a right one."""

    example: TurnExample
    hit: Hit
    right: bool


def read_ranker_data(turns: Path, snippets: Path) -> tuple[dict[Split, list[TurnExample]], Candidates]:
    """Turns with gold snippets by split. Raises :class:`UserError` if a gold snippet is not among the candidates."""
    candidates = Candidates(list(read(Snippet, snippets)))
    found: dict[Split, list[TurnExample]] = {"train": [], "dev": [], "test": []}
    for example in read(TurnExample, turns):
        if not example.gold_snippets:
            continue
        missing = set(example.gold_snippets) - {hit.passage_id for hit in candidates.of(example)}
        if missing:
            raise UserError(f"{at(turns)}: example '{example.id}': its snippet '{min(missing)}' is not in {snippets}")
        found[example.split].append(example)
    return found, candidates


def training_pairs(examples: Sequence[TurnExample], candidates: Candidates, negatives: int, seed: int) -> list[Pair]:
    """Each gold snippet of a turn with ``negatives`` wrong ones drawn from the same candidates (fewer if there are
    fewer); a function of (seed, example) alone."""
    pairs = []
    for example in examples:
        pool = candidates.of(example)
        gold = [hit for hit in pool if hit.passage_id in example.gold_snippets]
        wrong = [hit for hit in pool if hit.passage_id not in example.gold_snippets]
        draw = random.Random(f"{seed}/{example.id}")
        for hit in gold:
            pairs.append(Pair(example, hit, True))
            pairs += [Pair(example, other, False) for other in draw.sample(wrong, min(negatives, len(wrong)))]
    return pairs


def recall(
    examples: Sequence[TurnExample], candidates: Candidates, rank: Rank, cuts: Sequence[int] = (1, 3)
) -> dict[str, float]:
    """``recall@k``: share of a turn's gold snippets among the first k, mean over turns (RAGate, table 1); and ``mrr``,
    one over the place of the first right one."""
    totals = dict.fromkeys([f"recall@{k}" for k in cuts] + ["mrr"], 0.0)
    for example in examples:
        pool = candidates.of(example)
        ids = [hit.passage_id for hit in rank(example, pool, len(pool))]
        gold = set(example.gold_snippets)
        for k in cuts:
            totals[f"recall@{k}"] += len(gold & set(ids[:k])) / len(gold)
        places = [i for i, name in enumerate(ids, 1) if name in gold]
        totals["mrr"] += 1 / places[0] if places else 0.0
    return {name: total / max(1, len(examples)) for name, total in totals.items()}


class TfIdfRank:
    """TF-IDF with cosine similarity among a turn's candidates; the query is the whole context, and no response."""

    def __init__(self, snippets: Sequence[Snippet], tokens: Tokens | None = None) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        self._place: Mapping[str, int] = {snippet.id: i for i, snippet in enumerate(snippets)}
        self._vectorizer = TfidfVectorizer(analyzer=(tokens or Tokens()).words)
        self._matrix = self._vectorizer.fit_transform([f"{s.title} {s.text}" for s in snippets])

    def __call__(self, example: TurnExample, hits: Sequence[Hit], k: int) -> list[Hit]:
        """The ``k`` best; equal scores by id."""
        if not hits:
            return []
        query = self._vectorizer.transform([context_text(example.context)])
        scores = (self._matrix[[self._place[hit.passage_id] for hit in hits]] @ query.T).toarray()[:, 0]
        found = [Hit(h.passage_id, h.title, h.text, round(float(s), 6)) for h, s in zip(hits, scores, strict=True)]
        return sorted(found, key=lambda hit: (-hit.score, hit.passage_id))[:k]
