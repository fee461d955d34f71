"""Cross-encoder that scores how well a snippet fits a question or dialogue, its training data, and its recall.

The snippet is never cut: what is too long loses its oldest turns, or the query's beginning.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kbtrain.errors import UserError, at
from kbtrain.io.files import path_exists
from kbtrain.io.jsonl import read, read_json
from kbtrain.models.adapters import has_segments, open_encoder, pad_id
from kbtrain.models.batching import like_length
from kbtrain.prompts.ragate import context_text, first_kept, turn_text
from kbtrain.records import Hit, Snippet, Split, TurnExample, Utterance
from kbtrain.retrieval.tokens import Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from kbtrain.training.classifier_trainer import ClassifierRow

RANKER = "ranker.json"
TOKENS_PER_BATCH = 8192


class Ranker:
    """Score = log-odds that the snippet is the one to use; higher = better."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.max_length = max_length
        if tokenizer.cls_token_id is None or tokenizer.sep_token_id is None:
            name = f"model '{tokenizer.name_or_path}'"
            raise UserError(f"{name}: its tokenizer has no cls_token or no sep_token, which every row of a ranker has")
        self._seen: dict[str, list[int]] = {}

    @classmethod
    def load(cls, folder: Path | str, dtype: str = "auto", device: str = "auto") -> Ranker:
        """Open the folder of a finished training. Raises :class:`UserError`."""
        path = Path(folder) / RANKER
        if not path_exists(path):
            raise UserError(f"{at(path)}: no such file; is '{folder}' the folder of a finished training?")
        max_length = read_json(path).get("max_length")
        if type(max_length) is not int or max_length < 1:
            raise UserError(f"{at(path, field='max_length')}: expected a number of tokens, found {max_length!r:.40}")
        model, tokenizer = open_encoder(str(folder), dtype, device)
        return cls(model, tokenizer, max_length)

    def row(self, context: Sequence[Utterance] | str, title: str, text: str, need: float = 0.0) -> ClassifierRow:
        """``[CLS] context [SEP] title text [SEP]`` of at most ``max_length`` tokens.

        Raises :class:`UserError` if the snippet alone does not fit.
        """
        from kbtrain.training.classifier_trainer import ClassifierRow

        tokenizer: Any = self.tokenizer
        cls_, sep = int(tokenizer.cls_token_id), int(tokenizer.sep_token_id)
        snippet = self._ids(f"{title} {text}".strip())
        room = self.max_length - 3 - len(snippet)
        if room < 1:
            raise UserError(
                f"snippet '{title:.40}': {len(snippet)} tokens leave no room for a query in max_length "
                f"{self.max_length}; raise it, or cut the knowledge into shorter snippets"
            )
        query = self._query(context, room)
        ids = (cls_, *query, sep, *snippet, sep)
        return ClassifierRow(ids, (0,) * (len(query) + 2) + (1,) * (len(snippet) + 1), need=need)

    def _query(self, context: Sequence[Utterance] | str, room: int) -> list[int]:
        """The newest whole turns; the newest alone loses its beginning."""
        turns = [context] if isinstance(context, str) else [turn_text(utterance) for utterance in context]
        token_ids = [self._ids(turn) for turn in turns]
        first = first_kept([len(ids) for ids in token_ids], room)
        return [token for ids in token_ids[first:] for token in ids] or token_ids[-1][-room:]

    def _ids(self, text: str) -> list[int]:
        """Token ids of a text, tokenised once: turns and snippets repeat."""
        if text not in self._seen:
            ids: list[int] = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
            self._seen[text] = ids
        return self._seen[text]

    def score(self, rows: Sequence[ClassifierRow]) -> list[float]:
        """One score per row, in their order."""
        scores = [0.0] * len(rows)
        was_training = self.model.training
        self.model.train(False)
        for batch in like_length([len(row.ids) for row in rows], TOKENS_PER_BATCH):
            for i, score in zip(batch, self._logits([rows[i] for i in batch]), strict=True):
                scores[i] = score
        self.model.train(was_training)
        return scores

    def _logits(self, rows: Sequence[ClassifierRow]) -> list[float]:
        import torch

        from kbtrain.training.classifier_trainer import ClassifierCollator

        batch = ClassifierCollator(pad_id(self.tokenizer), has_segments(self.model)).inputs(rows)
        with torch.no_grad():
            logits = self.model(**{k: v.to(self.model.device) for k, v in batch.items()}).logits
        return [float(value) for value in logits[:, 0].float()]

    def best(self, context: Sequence[Utterance] | str, hits: Sequence[Hit], k: int) -> tuple[Hit, ...]:
        """The ``k`` best of some candidates with this ranker's scores; equal scores by id."""
        scores = self.score([self.row(context, hit.title, hit.text) for hit in hits])
        ranked = [Hit(h.passage_id, h.title, h.text, round(s, 6)) for h, s in zip(hits, scores, strict=True)]
        return tuple(sorted(ranked, key=lambda hit: (-hit.score, hit.passage_id))[:k])


Rank = Callable[[TurnExample, Sequence[Hit], int], Sequence[Hit]]


class Candidates:
    """A dialogue's own snippets and those that belong to none."""

    def __init__(self, snippets: Sequence[Snippet]) -> None:
        self._own: dict[str | None, list[Hit]] = {}
        for snippet in snippets:
            hit = Hit(snippet.id, snippet.title, snippet.text, 0.0)
            self._own.setdefault(snippet.dialogue_id, []).append(hit)

    def hits_of(self, example: TurnExample) -> list[Hit]:
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
    by_split: dict[Split, list[TurnExample]] = {"train": [], "dev": [], "test": []}
    for example in read(TurnExample, turns):
        if not example.gold_snippets:
            continue
        missing = set(example.gold_snippets) - {hit.passage_id for hit in candidates.hits_of(example)}
        if missing:
            raise UserError(f"{at(turns)}: example '{example.id}': its snippet '{min(missing)}' is not in {snippets}")
        by_split[example.split].append(example)
    return by_split, candidates


def training_pairs(examples: Sequence[TurnExample], candidates: Candidates, negatives: int, seed: int) -> list[Pair]:
    """Each gold snippet of a turn with ``negatives`` wrong ones drawn from the same candidates (fewer if there are
    fewer); a function of (seed, example) alone."""
    pairs = []
    for example in examples:
        pool = candidates.hits_of(example)
        gold = [hit for hit in pool if hit.passage_id in example.gold_snippets]
        negative_hits = [hit for hit in pool if hit.passage_id not in example.gold_snippets]
        draw = random.Random(f"{seed}/{example.id}")
        for hit in gold:
            pairs.append(Pair(example, hit, True))
            pairs += [
                Pair(example, negative, False)
                for negative in draw.sample(negative_hits, min(negatives, len(negative_hits)))
            ]
    return pairs


_CUTS = (1, 3)


def recall(examples: Sequence[TurnExample], candidates: Candidates, rank: Rank) -> dict[str, float]:
    """``recall@k``: share of a turn's gold snippets among the first k, mean over turns (RAGate, table 1); and ``mrr``,
    one over the place of the first right one."""
    totals = dict.fromkeys([f"recall@{k}" for k in _CUTS] + ["mrr"], 0.0)
    for example in examples:
        pool = candidates.hits_of(example)
        ids = [hit.passage_id for hit in rank(example, pool, len(pool))]
        gold = set(example.gold_snippets)
        for k in _CUTS:
            totals[f"recall@{k}"] += len(gold & set(ids[:k])) / len(gold)
        places = [i for i, name in enumerate(ids, 1) if name in gold]
        totals["mrr"] += 1 / places[0] if places else 0.0
    return {name: total / max(1, len(examples)) for name, total in totals.items()}


def read_snippets(path: Path) -> list[Snippet]:
    """Snippets of a file. Raises :class:`UserError` where none of them has a word: nothing could be ranked."""
    snippets = list(read(Snippet, path))
    if not any(Tokens().words(f"{snippet.title} {snippet.text}") for snippet in snippets):
        raise UserError(f"{at(path)}: no snippet with words in it; data_gen/collect_turns.py writes the file")
    return snippets


class TfIdfRank:
    """TF-IDF with cosine similarity among a turn's candidates; the query is the whole context, and no response."""

    def __init__(self, snippets: Sequence[Snippet]) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        self._place: Mapping[str, int] = {snippet.id: i for i, snippet in enumerate(snippets)}
        self._vectorizer = TfidfVectorizer(analyzer=Tokens().words)
        self._matrix = self._vectorizer.fit_transform([f"{s.title} {s.text}" for s in snippets])

    def __call__(self, example: TurnExample, hits: Sequence[Hit], k: int) -> list[Hit]:
        """The ``k`` best; equal scores by id."""
        if not hits:
            return []
        query = self._vectorizer.transform([context_text(example.context)])
        scores = (self._matrix[[self._place[hit.passage_id] for hit in hits]] @ query.T).toarray()[:, 0]
        # of thousands of candidates few come near the k best; what rounding may make equal is among them
        least = np.partition(scores, -k)[-k] - 1e-6 if k < len(hits) else -np.inf
        candidates = [(hits[i], round(float(scores[i]), 6)) for i in np.flatnonzero(scores >= least).tolist()]
        ranked = [Hit(hit.passage_id, hit.title, hit.text, score) for hit, score in candidates]
        return sorted(ranked, key=lambda hit: (-hit.score, hit.passage_id))[:k]
