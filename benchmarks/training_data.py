"""Long references and short answers: KBM examples whose reference has a wanted number of the atlas' passages."""

from __future__ import annotations

import itertools
import random

from sampling_prompts import read_atlas

from kbtrain.records import GateExample


def long_and_short(count: int, longest: int) -> list[GateExample]:
    """``count`` labelled examples; references of 0 to about ``longest`` tokens (4 letters a token), evenly spread."""
    questions, passages = read_atlas()
    draw = random.Random(0)
    made = []
    for i, question in enumerate(draw.sample(questions, count)):
        room, start = 4 * longest * i // max(1, count - 1), draw.randrange(len(passages))
        texts, used = [], 0
        for text in itertools.cycle(passages[start:] + passages[:start]):
            if used + len(text) > room:
                break
            texts.append(text)
            used += len(text)
        known = i % 2 == 0
        reference = "\n".join(texts) or None
        made.append(
            GateExample(
                question.id, question.id, "train", question.text, "en", reference, mastery=known, certainty=known
            )
        )
    draw.shuffle(made)
    return made
