"""A cross-encoder that reads question (or dialogue) and snippet together and scores how well they fit.

The snippet is never cut: what is too long loses its oldest turns, or the query's beginning.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbtrain.errors import UserError, at
from kbtrain.gates.encoder.gate import has_segments, like_length, open_encoder
from kbtrain.prompts.context import first_kept, turn_text
from kbtrain.records import Hit, Utterance
from kbtrain.retrieval.base import Searcher

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from kbtrain.training.classifier_rows import ClassifierRow

RANKER = "ranker.json"
TOKENS_PER_BATCH = 8192


class Ranker:
    """Score = log-odds that the snippet is the one to use; higher = better."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.max_length = max_length
        self._seen: dict[str, list[int]] = {}

    @classmethod
    def load(cls, folder: Path | str, dtype: str = "auto", device: str = "auto") -> Ranker:
        """Open the folder of a finished training. Raises :class:`UserError`."""
        path = Path(folder) / RANKER
        try:
            settings: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(f"{at(path)}: no such file; is '{folder}' the folder of a finished training?") from None
        except json.JSONDecodeError as error:
            raise UserError(f"{at(path)}: broken JSON ({error})") from None
        model, tokenizer = open_encoder(str(folder), dtype, device)
        return cls(model, tokenizer, int(settings["max_length"]))

    def row(self, context: Sequence[Utterance] | str, title: str, text: str, need: float = 0.0) -> ClassifierRow:
        """``[CLS] context [SEP] title text [SEP]`` of at most ``max_length`` tokens.

        Raises :class:`UserError` if the snippet alone does not fit.
        """
        from kbtrain.training.classifier_rows import ClassifierRow

        tokenizer: Any = self.tokenizer
        cls_, sep = int(tokenizer.cls_token_id), int(tokenizer.sep_token_id)
        snippet = self._ids(f"{title} {text}".strip())
        room = self.max_length - 3 - len(snippet)
        if room < 1:
            raise UserError(
                f"snippet '{title:.40}': {len(snippet)} tokens leave no room for a query in max_length "
                f"{self.max_length}; raise it, or cut the knowledge into shorter snippets"
            )
        asked = self._query(context, room)
        ids = (cls_, *asked, sep, *snippet, sep)
        return ClassifierRow(ids, (0,) * (len(asked) + 2) + (1,) * (len(snippet) + 1), need=need)

    def _query(self, context: Sequence[Utterance] | str, room: int) -> list[int]:
        """The newest whole turns; the newest alone loses its beginning."""
        turns = [context] if isinstance(context, str) else [turn_text(utterance) for utterance in context]
        known = [self._ids(turn) for turn in turns]
        kept = first_kept([len(ids) for ids in known], room)
        return [token for ids in known[kept:] for token in ids] or known[-1][-room:]

    def _ids(self, text: str) -> list[int]:
        """Turns and snippets come again and again: each is tokenised once."""
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

        from kbtrain.training.classifier_rows import ClassifierCollator

        pad = self.tokenizer.pad_token_id
        batch = ClassifierCollator(pad if isinstance(pad, int) else 0, has_segments(self.model)).inputs(rows)
        with torch.no_grad():
            logits = self.model(**{k: v.to(self.model.device) for k, v in batch.items()}).logits
        return [float(value) for value in logits[:, 0].float()]

    def best(self, context: Sequence[Utterance] | str, hits: Sequence[Hit], k: int) -> tuple[Hit, ...]:
        """The ``k`` best of some candidates with this ranker's scores; equal scores by id."""
        scores = self.score([self.row(context, hit.title, hit.text) for hit in hits])
        ranked = [Hit(h.passage_id, h.title, h.text, round(s, 6)) for h, s in zip(hits, scores, strict=True)]
        return tuple(sorted(ranked, key=lambda hit: (-hit.score, hit.passage_id))[:k])


class RankedSearch:
    """A searcher whose first ``pool`` hits the ranker puts into a new order; a drop-in for BM25 or TF-IDF."""

    def __init__(self, first: Searcher, ranker: Ranker, pool: int = 50) -> None:
        self.first = first
        self.ranker = ranker
        self.pool = pool

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
        """At most ``k`` hits for each query, best first."""
        if k > self.pool:
            raise UserError(f"k = {k}: the ranker orders {self.pool} hits; raise its pool")
        found = self.first.search(queries, self.pool)
        return [self.ranker.best(query, hits, k) for query, hits in zip(queries, found, strict=True)]
