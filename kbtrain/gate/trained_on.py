"""Training questions as a gate's folder notes them: hashes of them and of their entities, and held-out scores.

By them a gate is never scored unnoticed on what it was trained on, in any run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from kbtrain.answers.words import is_empty, normalise
from kbtrain.gate.gate import logistic
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import write_atomically
from kbtrain.io.text_files import read_text
from kbtrain.records import Example, GateExample, GateScore

TRAINED_ON = "trained_on.txt"  # hashes of the training questions, one a line
TRAINED_ENTITIES = "trained_entities.txt"  # hashes of the entities that these ask about, one a line
HELD_OUT = "held_out.jsonl"  # scores of training questions by gates fitted without them, by the questions' hashes


def question_hash(text: str) -> str:
    """16 hexadecimal digits of a normalised question: equal for spellings that count as the same question."""
    return _digest(normalise(text))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def example_hash(example: Example) -> str:
    """:func:`question_hash` of a question; of a turn: that of its dialogue's id and all that was said before it.

    What was said alone is not enough: many dialogues begin alike.
    """
    if isinstance(example, GateExample):
        return question_hash(example.question)
    utterances = (f"{utterance.speaker} {utterance.text}" for utterance in example.context)
    return question_hash("\n".join([example.dialogue_id, *utterances]))


def entity_hashes(example: Example) -> frozenset[str]:
    """16 hexadecimal digits for each entity that a question asks about; of a turn: one for its dialogue.

    Spellings that count as the same entity are equal (:func:`normalise`), as of questions. A dialogue is known
    by its id and its first utterance: data sets number their dialogues alike.
    """
    if isinstance(example, GateExample):
        names = tuple(normalise(name) for name in example.entities if not is_empty(name))
    else:
        names = ("\n".join([example.dialogue_id, *(utterance.text for utterance in example.context[:1])]),)
    return frozenset(map(_digest, names))


def asked_about(example: Example) -> tuple[str, str]:
    """Key and name of what an example asks about: a question's first entity, else its text; of a turn, its dialogue.

    The key is a hash, equal for spellings that count as the same (:func:`entity_hashes`).
    """
    if not isinstance(example, GateExample):
        return f"dialogue {next(iter(entity_hashes(example)))}", example.dialogue_id
    entity = next((name for name in example.entities if not is_empty(name)), None)
    if entity is None:
        return f"question {question_hash(example.question)}", example.question
    return f"entity {question_hash(entity)}", entity


def write_trained_on(folder: Path, examples: Iterable[Example], others: Iterable[Path] = ()) -> None:
    """Note the questions or turns a gate was trained on, and their entities or dialogues, so that it is never scored on
    them unnoticed in another run.

    ``others``: folders of gates that it is made of, whose questions count as well. Notes of a training before go.
    """
    rows, folders = list(examples), list(others)
    by_file = {TRAINED_ON: map(example_hash, rows), TRAINED_ENTITIES: (d for row in rows for d in entity_hashes(row))}
    for name, digests in by_file.items():
        hashes = set(digests).union(*(_noted_hashes(other, name) for other in folders))
        if hashes:
            write_atomically(folder / name, "".join(f"{digest}\n" for digest in sorted(hashes)))
        else:
            (folder / name).unlink(missing_ok=True)


def trained_among(folder: Path | str, examples: Iterable[Example]) -> list[Example]:
    """The questions or turns that a folder's gate (or one inside it) was trained on; none where no folder says."""
    hashes = _noted_hashes(folder, TRAINED_ON)
    return [example for example in examples if hashes and example_hash(example) in hashes]


def sharing_entities(folder: Path | str, examples: Iterable[Example]) -> list[Example]:
    """The questions about an entity (or turns of a dialogue) that a folder's gate was trained on, trained on or not."""
    hashes = _noted_hashes(folder, TRAINED_ENTITIES)
    return [example for example in examples if hashes and not hashes.isdisjoint(entity_hashes(example))]


def _noted_hashes(folder: Path | str, name: str) -> set[str]:
    return {digest for path in Path(folder).rglob(name) for digest in read_text(path).split()}


HeldOut = tuple[str, float]  # a question's hash and a score of it


def held_out_rows(questions: Sequence[GateExample], log_odds: Sequence[float]) -> list[HeldOut]:
    """Probabilities by the questions' hashes."""
    return [(question_hash(q.question), logistic(value)) for q, value in zip(questions, log_odds, strict=True)]


def write_held_out(folder: Path, scores: Mapping[str, Iterable[HeldOut]]) -> None:
    """Keep scores of training questions, by name, that gates fitted without these questions gave them."""
    jsonl.write(
        folder / HELD_OUT, (GateScore(digest, name, value) for name in scores for digest, value in scores[name])
    )


def read_held_out(folder: Path | str) -> dict[str, dict[str, float]]:
    """The scores that :func:`write_held_out` kept, by name and question's hash; empty where there are none."""
    by_name: dict[str, dict[str, float]] = {}
    path = Path(folder) / HELD_OUT
    for row in jsonl.read(GateScore, path) if path_exists(path) else ():
        by_name.setdefault(row.gate, {})[row.question_id] = row.score
    return by_name
