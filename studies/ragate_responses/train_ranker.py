"""End of a ranker's training: its folder, and ranks.json with its recall on dev and test beside TF-IDF's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from kbtrain.io.provenance import file_sha256, package_versions, write_atomically
from kbtrain.records import Split, TurnExample
from kbtrain.training.config import TrainingConfig
from kbtrain.training.finish import Ending, largest_difference, save_checked, steps_of
from kbtrain.training.model_card import table, training_page
from ragate_responses.ranker import RANKER, Candidates, Ranker, TfIdfRank, read_snippets, recall

if TYPE_CHECKING:
    from kbtrain.training.classifier_trainer import ClassifierTrainer

RANKS = "ranks.json"
TOLERANCE = 1e-5  # of a log-odds, between the trained ranker and the one opened from its folder
_PROBE = 64  # pairs whose scores are compared


class RankerConfig(TrainingConfig):
    """Keys of a ranker's data."""

    train: Path = Field(description="turns of all splits (turns.jsonl)")
    dev: Path | None = Field(None, description="no other file: the dev turns are those of train's")
    snippets: Path = Field(description="their knowledge (snippets.jsonl)")


class RankerEnding(Ending):
    """The end of a ranker's training: saved in fp32, measured as opened from its folder.

    Some of the training pairs are scored to compare.
    """

    data = ("train", "snippets")
    last = RANKS
    stage = "train_ranker"
    tolerance = TOLERANCE

    def __init__(
        self,
        config: RankerConfig,
        turns: Mapping[Split, Sequence[TurnExample]],
        candidates: Candidates,
        ranker: Ranker,
        trainer: ClassifierTrainer,
        run: Mapping[str, Any],
    ) -> None:
        super().__init__(config, trainer.state)
        self.base_model, self.snippets, self.turns, self.candidates = config.model, config.snippets, turns, candidates
        self.ranker, rows = ranker, trainer.rows
        self.rows = rows[:_PROBE]
        ranker.model.float()
        self.kept = ranker.score(self.rows)
        self.facts = {"pairs": len(rows), **steps_of(trainer.state, config.epochs)}
        self.run = {**run, **self.facts}
        self.trained_on = f"{len(rows)} pairs"
        self.ranks: dict[str, Any] = {}

    def write(self, folder: Path) -> None:
        """As in the base class."""
        ranker = self.ranker
        ranker.model.save_pretrained(folder)
        ranker.tokenizer.save_pretrained(folder)
        settings = {"kind": "ranker", "base_model": self.base_model, "max_length": ranker.max_length}
        text = json.dumps({**settings, "run": self.run, "versions": package_versions()})
        write_atomically(folder / RANKER, text + "\n")

    def difference(self, folder: Path) -> float:
        """As in the base class; measures the ranker of the folder."""
        reloaded = Ranker.load(folder, device=str(self.ranker.model.device))
        self.ranks = measure_recall(reloaded, self.turns, self.candidates, self.snippets)
        self.figures = self.ranks["dev"]["ranker"]
        return largest_difference(self.kept, reloaded.score(self.rows))

    def readme(self, worst: float) -> str:
        """As in the base class."""
        checked = f"{len(self.rows)} pairs: a score differs by at most {worst:.1e}"
        return _page(self.base_model, self.ranker.max_length, self.ranks, self.run, checked)

    def save(self) -> float:
        """As in the base class; ``ranks.json`` marks the folder as whole."""
        worst = save_checked(self, RANKER)
        write_atomically(self.config.output / RANKS, json.dumps(self.ranks, indent=1) + "\n")
        return worst

    def lines(self) -> list[str]:
        """Recall of the ranker and of TF-IDF on dev and test, in words."""
        return [
            f"{split} ({self.ranks[split]['turns']} turns): {name}: "
            + ", ".join(f"{key} {value:.3f}" for key, value in self.ranks[split][name].items())
            for split in ("dev", "test")
            for name in ("ranker", "tfidf")
        ]


def measure_recall(
    ranker: Ranker, turns: Mapping[Split, Sequence[TurnExample]], candidates: Candidates, snippets: Path
) -> dict[str, Any]:
    """Recall of the ranker and of TF-IDF on dev and test."""
    tfidf = TfIdfRank(read_snippets(snippets))
    by_split: dict[str, Any] = {}
    splits: tuple[Split, ...] = ("dev", "test")
    for split in splits:
        ranker_recall = recall(turns[split], candidates, lambda example, hits, k: ranker.best(example.context, hits, k))
        by_split[split] = {
            "turns": len(turns[split]),
            "ranker": ranker_recall,
            "tfidf": recall(turns[split], candidates, tfidf),
        }
    by_split["snippets_sha256"] = file_sha256(snippets)
    return by_split


def _page(base: str, max_length: int, ranks: Mapping[str, Any], run: Mapping[str, object], checked: str) -> str:
    dev = {f"{name} {key}": f"{value:.4f}" for name in ("ranker", "tfidf") for key, value in ranks["dev"][name].items()}
    return training_page(
        title=f"Ranker of knowledge snippets on {base}",
        what="Orders a dialogue's knowledge snippets by how well they fit its next turn. Score: log-odds that the "
        "snippet is the one to use.",
        use="""from kbtrain.records import Hit
from ragate_responses.ranker import Ranker

ranker = Ranker.load(".")  # this folder; `studies/respond.py` searches with it
hits = [Hit("p1", "Museum", "The museum opens at 8.", 1.0), Hit("p2", "Park", "The park has a lake.", 1.0)]
print(ranker.best("Tell me about the museum.", hits, k=1))""",
        points=(f"Reads: context and one snippet, at most {max_length} tokens; the oldest turns are skipped.",),
        limits="trained on the dialogues named below; other domains and languages were not tried.",
        dev={f"On dev ({ranks['dev']['turns']} turns)": table(dev)},
        checked=checked,
        threshold="None: it orders.",
        run=run,
        versions=package_versions(),
        base=base,
    )
