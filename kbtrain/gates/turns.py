"""The gate ``dialogue_state`` of dialogue turns, without a model: a logistic regression on what was annotated before.

It reads the data set's annotation of the turns before: acts, services and slots, no word and nothing of the turn to
come. Where turns are not annotated, lengths, marks and progress are left: use an encoder there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from kbtrain.dialogue.base import domain_of
from kbtrain.errors import UserError
from kbtrain.gate.card import GateCard
from kbtrain.gate.gate import Gate, Reads, logistic
from kbtrain.gates.registry import FIT_GATE, TURN, Kind
from kbtrain.records import Entity, TurnExample, Utterance

OFFER = "OFFER"  # what people enrich most often: an offer that names something
_SILENCE = Utterance("SYSTEM", "")


def dialogue_features(example: TurnExample) -> dict[str, float]:
    """The features of a turn that is to come, from its context alone: acts, services, slots, progress and lengths.

    Names are ``group=value``, so that a gate can keep those that are frequent enough. A name that is missing counts as
    0; what a data set does not annotate gives no feature.
    """
    context = example.context
    last, before = context[-1], context[-2] if len(context) > 1 else _SILENCE
    service = last.services[-1] if last.services else ""
    of_service = [utterance for utterance in context if service in utterance.services]
    return {
        **_progress(example, service, of_service),
        **_acts(context, last, before),
        **_services(context, last, service, of_service),
        **_slots(context, last, before),
        **_words(context, last, before),
    }


def _progress(example: TurnExample, service: str, of_service: Sequence[Utterance]) -> dict[str, float]:
    """Progress of the dialogue, and of the service that it is currently about."""
    context = example.context
    offers = [i for i, utterance in enumerate(context) if OFFER in utterance.acts]
    run = next((i for i, u in enumerate(reversed(context)) if service and service not in u.services), len(context))
    requests = [utterance for utterance in of_service if utterance.speaker == "SYSTEM" and "REQUEST" in utterance.acts]
    return {
        "turn": float(len(context)), "log_turn": math.log1p(len(context)),
        f"turn={len(context) if len(context) <= 5 else 'later'}": 1.0, "turns_of_service": float(run),
        "offers_of_service": float(sum(OFFER in utterance.acts for utterance in of_service)),
        "requests_of_service": float(len(requests)),
        "turns_since_offer": float(len(context) - offers[-1] if offers else 0), "never_offered": float(not offers),
        "informed_never_offered": float(not offers and "INFORM" in context[-1].acts),
    }  # fmt: skip


def _acts(context: Sequence[Utterance], last: Utterance, before: Utterance) -> dict[str, float]:
    """The acts of the last two turns, one by one and together; and how often each happened."""
    user, system = (
        Counter(act for u in context if u.speaker == speaker for act in u.acts) for speaker in ("USER", "SYSTEM")
    )
    return {
        **_present("user_act", last.acts),
        **_present("system_act", before.acts),
        f"user_acts={_together(last.acts)}": 1.0,
        f"system_acts={_together(before.acts)}": 1.0,
        **{f"user_count={act}": float(n) for act, n in user.items()},
        **{f"system_count={act}": float(n) for act, n in system.items()},
        **_present("system_did", system),
    }


def _services(
    context: Sequence[Utterance], last: Utterance, service: str, of_service: Sequence[Utterance]
) -> dict[str, float]:
    """Current services, new or not, and the domain together with the user's acts and the offers made."""
    earlier = {name for utterance in context[:-1] for name in utterance.services}
    domain = domain_of(service)
    offered = any(OFFER in utterance.acts for utterance in of_service)
    return {
        **_present("service", last.services),
        **_present("domain", map(domain_of, last.services)),
        "new_service": float(bool(set(last.services) - earlier)),
        "services": float(len(earlier | set(last.services))),
        f"domain_user_acts={domain}|{_together(last.acts)}": 1.0,
        f"domain_offered={domain}|{offered}": 1.0,
    }


def _slots(context: Sequence[Utterance], last: Utterance, before: Utterance) -> dict[str, float]:
    """Types of the values named in the last two turns and ever; how many values, and how many of the user's are new."""
    earlier = {_key(entity) for utterance in context[:-1] for entity in utterance.entities}
    return {
        **_present("user_slot", (entity.type for entity in last.entities)),
        **_present("system_slot", (entity.type for entity in before.entities)),
        **_present("slot", (entity.type for utterance in context for entity in utterance.entities)),
        "values": float(len(earlier)),
        "new_values": float(sum(_key(entity) not in earlier for entity in last.entities)),
        "names": float(sum(entity.text[:1].isupper() for entity in last.entities)),
    }


def _words(context: Sequence[Utterance], last: Utterance, before: Utterance) -> dict[str, float]:
    """Lengths and marks, no word itself."""
    words = last.text.split()
    return {
        "words_last": float(len(words)),
        "words_context": float(sum(len(utterance.text.split()) for utterance in context)),
        "question_last": float("?" in last.text),
        "question_before": float("?" in before.text),
        "capitals_last": float(sum(word[:1].isupper() for word in words[1:])),
        "numbers_last": float(sum(any(c.isdigit() for c in word) for word in words)),
    }


def _present(group: str, values: Iterable[str]) -> dict[str, float]:
    return {f"{group}={value}": 1.0 for value in values}


def _together(acts: Iterable[str]) -> str:
    return "+".join(sorted(acts))


def _key(entity: Entity) -> tuple[str, str]:
    return entity.type, entity.text.lower()


def feature_table(rows: Sequence[Mapping[str, float]], least: int) -> tuple[list[str], np.ndarray]:
    """Names and values (rows, names) of the features that are not 0 in at least that number of rows."""
    from sklearn.feature_extraction import DictVectorizer

    counts = Counter(name for row in rows for name, value in row.items() if value)
    frequent = [{name: value for name, value in row.items() if counts[name] >= least} for row in rows]
    if not any(frequent):
        return [], np.zeros((len(rows), 0))
    vectorizer = DictVectorizer(sparse=False)
    values = vectorizer.fit_transform(frequent)
    return vectorizer.get_feature_names_out().tolist(), values


LEAST_TURNS = 3  # a feature that fewer training turns have is skipped
C = 0.004  # inverse of the L2 penalty on standardised features: hundreds of them, and few positive turns


class DialogueStateCard(GateCard):
    """The whole gate, in ``gate.json``: ``intercept`` plus ``weights`` (log odds per unit, by feature name)."""

    ABSENT = frozenset({"base_model", "label_rule", "versions"})
    USES_MODEL = False
    kind: Literal["dialogue_state"] = "dialogue_state"
    intercept: float
    weights: dict[str, float]


class DialogueStateGate(Gate):
    """Score = p(retrieval needed) in [0, 1], at the classes' true shares: the logistic function of the card's weights
    times the turn's features."""

    name = "dialogue_state"
    reads: frozenset[Reads] = frozenset({"turn"})
    unit = "probability"
    card: DialogueStateCard

    def __init__(self, card: DialogueStateCard) -> None:
        self.card = card

    @classmethod
    def fit(
        cls,
        examples: Sequence[TurnExample],
        need: Sequence[float] | None = None,
        c: float = C,
        least_turns: int = LEAST_TURNS,
    ) -> DialogueStateGate:
        """Learn from labelled turns (scikit-learn). Raises :class:`UserError` for a single class."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.preprocessing import StandardScaler

        turns = [turn for turn in examples if need is not None or turn.label is not None]
        labels = [bool(turn.label) for turn in turns] if need is None else [value > 0.5 for value in need]
        if len(set(labels)) < 2:
            raise UserError(f"dialogue_state gate: {len(turns)} labelled turns of one class, nothing to learn")
        names, table = feature_table([dialogue_features(example) for example in turns], least_turns)
        scaler = StandardScaler()
        model = LogisticRegression(C=c, max_iter=1000).fit(scaler.fit_transform(table), labels)
        slopes = model.coef_[0] / scaler.scale_
        facts = {"turns": len(turns), "positive": sum(labels), "c": c, "least_turns": least_turns}
        intercept = float(model.intercept_[0] - slopes @ scaler.mean_)
        weights = dict(zip(names, slopes.tolist(), strict=True))
        return cls(DialogueStateCard(intercept=intercept, weights=weights, run=facts))

    def score_examples(self, examples: Sequence[TurnExample]) -> list[float]:
        weights, intercept = self.card.weights, self.card.intercept
        rows = [dialogue_features(example) for example in examples]
        return [logistic(intercept + math.fsum(weights.get(k, 0.0) * x for k, x in row.items())) for row in rows]

    @classmethod
    def load(cls, folder: Path | str, dtype: str = "auto", device: str = "auto") -> DialogueStateGate:
        return cls(DialogueStateCard.read(folder))


KIND = Kind(DialogueStateCard, DialogueStateGate.load, TURN, FIT_GATE, fit=DialogueStateGate.fit)
