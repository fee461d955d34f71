"""Follow-ups by the three settings of ``kbtrain serve --context``, on dialogues about the atlas's test questions.

A dialogue has two turns of the user (a question, then one about the same place by a pronoun, or "And Kenya?") or three
(a question, "And Kenya?", then a question about Kenya by a pronoun). What its last turn means is a question of the
atlas, so that each setting can be compared with it: does the gate decide as on that question, does the search find its
gold passage. ``condense`` asks the model given, through this process.

Examples:
  python benchmarks/follow_ups.py --gate runs/demo/features
  python benchmarks/follow_ups.py --gate runs/demo/features --condense-with smollm2-135m-instruct --most 60
"""

from __future__ import annotations

import random
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

import kbtrain
from kbtrain.config import Config, run_script
from kbtrain.io import jsonl
from kbtrain.questions.catalogue import atlas_file, atlas_passages
from kbtrain.records import Question, Utterance
from kbtrain.retrieval.bm25 import BM25
from kbtrain.show import aligned
from kbtrain.utterances import is_follow_up, last_messages

KINDS = ("pronoun", "other entity", "three turns")
WINDOW, LONGEST = 3, 20_000  # serve's defaults


class FollowUpsConfig(Config):
    gate: Path = Field(description="folder of a gate of questions, with a threshold")
    condense_with: str | None = Field(None, description="model that writes the question; null: without this setting")
    tokens: int = Field(100, ge=1, description="most tokens of that question, as serve's condense_tokens")
    most: int = Field(100, ge=1, description="dialogues of each kind")
    k: int = Field(3, ge=1, description="passages searched for")
    seed: int = Field(0, description="of the choice of dialogues")


@dataclass(frozen=True)
class Case:
    """A dialogue of one of :data:`KINDS` whose last turn means ``question``."""

    kind: str
    dialogue: tuple[Utterance, ...]
    question: Question


def cases(most: int, seed: int) -> list[Case]:
    """At most ``most`` dialogues of each kind, from the test questions about well-known places and elements."""
    titles = {passage.id: passage.title for passage in atlas_passages()}
    about: dict[str, list[Question]] = defaultdict(list)
    for question in jsonl.read(Question, atlas_file("questions", "atlas_known")):
        title = titles[question.gold_passages[0]]
        if question.split == "test" and question.text.count(title) == 1:
            about[title].append(question)
    rng, made = random.Random(seed), []
    first = [(title, question) for title, questions in about.items() for question in questions]
    rng.shuffle(first)
    for title, question in first:
        others = [other for other in about[title] if other.relation != question.relation]
        same = [(t, q) for t, q in first if q.relation == question.relation and t != title]
        if others:
            other = rng.choice(others)
            made.append(Case("pronoun", (*turn(question), said(by_pronoun(other.text, title))), other))
        if same:
            name, other = rng.choice(same)
            made.append(Case("other entity", (*turn(question), said(f"And {name}?")), other))
            last = [one for one in about[name] if one.relation != other.relation]
            if last:
                third = rng.choice(last)
                between = (said(f"And {name}?"), Utterance("SYSTEM", f"{other.answers[0]}."))
                whole = (*turn(question), *between, said(by_pronoun(third.text, name)))
                made.append(Case("three turns", whole, third))
    return [case for kind in KINDS for case in [one for one in made if one.kind == kind][:most]]


def said(text: str) -> Utterance:
    """A turn of the user."""
    return Utterance("USER", text)


def turn(question: Question) -> tuple[Utterance, Utterance]:
    """A question and its answer."""
    return said(question.text), Utterance("SYSTEM", f"{question.answers[0]}.")


def by_pronoun(text: str, title: str) -> str:
    """The question with "it" in place of the name: "And on which continent is it?"."""
    name = rf"(?:the (?:city|country|element) of )?{re.escape(title)}"
    text = re.sub(rf"{name}['’]s\b", "its", text)
    text = re.sub(rf"{name}\b", "it", text)
    return f"And {text[0].lower()}{text[1:]}"


def condenser(model: str, tokens: int) -> Callable[[Sequence[Utterance]], str | None]:
    """A dialogue's last turn as a question of the model's; None for an empty reply, and one that was cut."""
    sys.path.append(str(Path(__file__).resolve().parents[1] / "studies"))
    from ragate_responses.responder import greedy

    from kbtrain.models.load import load_model
    from kbtrain.prompts.kbm import condense_prompt, encode

    body, tokenizer = load_model(model)

    def condense(dialogue: Sequence[Utterance]) -> str | None:
        (reply,) = greedy(body, tokenizer, [encode(tokenizer, condense_prompt(dialogue, "en"))], tokens)
        text = " ".join(reply.text.split()).strip('"“” ')
        return None if not text or reply.n_tokens >= tokens else text

    return condense


def main(config: FollowUpsConfig) -> None:
    """Read each dialogue by each setting, decide, search, compare."""
    gate = kbtrain.load_gate(config.gate)
    index, rows = BM25.build(atlas_passages()), []
    condense = None if config.condense_with is None else condenser(config.condense_with, config.tokens)
    found = cases(config.most, config.seed)
    missed = sum(not is_follow_up(case.dialogue) for case in found)
    print(f"{len(found)} dialogues; {missed} whose last turn is not taken for a follow-up: gated by its own words")

    def texts(case: Case) -> dict[str, str]:
        last = case.dialogue[-1].text
        window = last_messages(case.dialogue, WINDOW, LONGEST) if is_follow_up(case.dialogue) else last
        settings = {"last": last, "window": window}
        if condense is not None:
            settings["condense"] = (condense(case.dialogue) or window) if window != last else last
        return settings

    read = [(case, {"alone": case.question.text, **texts(case)}) for case in found]
    for kind in KINDS:
        part = [(case, settings) for case, settings in read if case.kind == kind]
        outcome = {}
        for setting in part[0][1]:
            asked = [settings[setting] for _, settings in part]
            decisions = [decision.retrieve for decision in gate.decide(asked)]
            hits = index.search(asked, config.k)
            gold = [
                case.question.gold_passages[0] in {hit.passage_id for hit in row}
                for (case, _), row in zip(part, hits, strict=True)
            ]
            outcome[setting] = decisions, gold
        alone = outcome.pop("alone")
        for setting, (decisions, gold) in outcome.items():
            same = [
                f"{sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(part):.2f}"
                for ours, theirs in zip((decisions, gold), alone, strict=True)
            ]
            shares = [f"{sum(values) / len(part):.2f}" for values in (gold, alone[1])]
            rows.append([kind, str(len(part)), setting, *same, *shares])
    head = ["dialogue", "n", "context", "same decision", "same gold", "gold found", "gold found alone"]
    print(aligned(head, rows))


if __name__ == "__main__":
    run_script(main, FollowUpsConfig, __doc__)
