"""A gate's worst errors: the retrievals it was surest of and that were in vain, the ones it was surest to spare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kbtrain import jsonl
from kbtrain.evaluation.results import GateResult
from kbtrain.prompts.kbm import query_text
from kbtrain.records import Condition, Evidence, Hit, Outcome, Question
from kbtrain.report.selection import Dimension
from kbtrain.store import SampleStore

SHOWN = 25
TEXT = 1_500  # characters of a passage shown


@dataclass(frozen=True)
class Card:
    """One question with its passages and both answers side by side."""

    question: Question
    text: str
    score: float
    llm_answer: str
    rag_answer: str
    llm_correct: bool
    rag_correct: bool
    hits: tuple[Hit, ...]
    places: dict[str, str]


@dataclass(frozen=True)
class Errors:
    """One kind of error: what it means, how many there are, and the worst of them first."""

    name: str
    meaning: str
    n: int
    cards: list[Card]


def ranked(
    gate: GateResult, outcomes: Sequence[Outcome], scores: Mapping[str, float]
) -> dict[str, tuple[str, list[Outcome]]]:
    """Name -> (meaning, all errors of the kind, worst first). Harm first: a retrieval that breaks a right answer is
    worse than one that changes nothing."""
    cut = gate.threshold if gate.threshold is not None else 0.0
    needed = {o.question_id: o.rag_correct and not o.llm_correct for o in outcomes}
    vain = [o for o in outcomes if scores[o.question_id] > cut and not needed[o.question_id]]
    spared = [o for o in outcomes if scores[o.question_id] <= cut and needed[o.question_id]]
    vain.sort(key=lambda o: (not (o.llm_correct and not o.rag_correct), -scores[o.question_id], o.question_id))
    spared.sort(key=lambda o: (scores[o.question_id], o.question_id))
    return {
        "False positives": ("retrieved although it was not needed; those that broke a right answer first", vain),
        "False negatives": ("not retrieved although it was needed; lowest score first", spared),
    }


def worst_errors(
    run: Path,
    sampling_run: str,
    gate: GateResult,
    questions: Sequence[Question],
    outcomes: Sequence[Outcome],
    scores: Mapping[str, float],
    dimensions: Sequence[Dimension],
) -> list[Errors]:
    """The errors with their texts from the run folder; ``questions`` and ``outcomes`` in the same order."""
    found = ranked(gate, outcomes, scores)
    place = {question.id: i for i, question in enumerate(questions)}
    wanted = {o.question_id for _, errors in found.values() for o in errors[:SHOWN]}
    hits = {e.question_id: e.hits for e in _evidence(run / "evidence.jsonl") if e.question_id in wanted}
    with SampleStore(run / "samples.db", read_only=True) as store:

        def card(outcome: Outcome) -> Card:
            i = place[outcome.question_id]
            return Card(
                question=questions[i],
                text=query_text(questions[i]),
                score=scores[outcome.question_id],
                llm_answer=_greedy(store, sampling_run, outcome.question_id, "llm"),
                rag_answer=_greedy(store, sampling_run, outcome.question_id, "rag"),
                llm_correct=outcome.llm_correct,
                rag_correct=outcome.rag_correct,
                hits=hits.get(outcome.question_id, ()),
                places={d.name: d.labels[d.places[i]] for d in dimensions if d.places[i] >= 0},
            )

        return [
            Errors(name, meaning, len(errors), [card(o) for o in errors[:SHOWN]])
            for name, (meaning, errors) in found.items()
        ]


def _evidence(path: Path) -> Iterator[Evidence]:
    """None where the answers were made elsewhere (data_gen/import_answers.py): what was read is not known then."""
    return jsonl.read(Evidence, path) if path.exists() else iter(())


def _greedy(store: SampleStore, run: str, question_id: str, condition: Condition) -> str:
    made = store.get(run, question_id, condition)
    return made.greedy.text.strip() if made is not None and made.greedy is not None else ""
