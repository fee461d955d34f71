"""Features of a dialogue before its next turn, as named numbers: acts, services, slots and progress.

Read from the context alone; names are ``group=value``, so that a gate can keep those that are frequent enough. What
a data set does not annotate gives no feature.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from kbtrain.dialogue.base import domain_of
from kbtrain.records import Entity, Speaker, TurnExample, Utterance

OFFER = "OFFER"  # what people enrich most often: an offer that names something
_SILENCE = Utterance("SYSTEM", "")


def dialogue_features(example: TurnExample) -> dict[str, float]:
    """The features of a turn that is to come; a name that is missing counts as 0."""
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
        "turn": float(example.turn),
        "log_turn": math.log1p(example.turn),
        f"turn={example.turn if example.turn <= 5 else 'later'}": 1.0,
        "turns_of_service": float(run),
        "offers_of_service": float(sum(OFFER in utterance.acts for utterance in of_service)),
        "requests_of_service": float(len(requests)),
        "turns_since_offer": float(len(context) - offers[-1] if offers else 0),
        "never_offered": float(not offers),
        "informed_never_offered": float(not offers and "INFORM" in context[-1].acts),
    }


def _acts(context: Sequence[Utterance], last: Utterance, before: Utterance) -> dict[str, float]:
    """The acts of the last two turns, one by one and together; and how often each happened."""
    features = {
        **_present("user_act", last.acts),
        **_present("system_act", before.acts),
        f"user_acts={_together(last.acts)}": 1.0,
        f"system_acts={_together(before.acts)}": 1.0,
    }
    speakers: tuple[tuple[Speaker, str], ...] = (("USER", "user_count"), ("SYSTEM", "system_count"))
    for speaker, name in speakers:
        features |= {f"{name}={act}": float(n) for act, n in _counts(context, speaker).items()}
    return features | {f"system_did={act}": 1.0 for act in _counts(context, "SYSTEM")}


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


def _counts(context: Sequence[Utterance], speaker: Speaker) -> Counter[str]:
    return Counter(act for utterance in context if utterance.speaker == speaker for act in utterance.acts)


def _present(group: str, values: Iterable[str]) -> dict[str, float]:
    return {f"{group}={value}": 1.0 for value in values}


def _together(acts: Iterable[str]) -> str:
    return "+".join(sorted(acts))


def _key(entity: Entity) -> tuple[str, str]:
    return entity.type, entity.text.lower()
