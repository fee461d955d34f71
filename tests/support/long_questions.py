"""A folder of a real gate that is made in no time: a search for questions of more characters than ``middle``."""

from dataclasses import replace
from pathlib import Path
from typing import Any


def long_question_gate(folder: Path, middle: int = 30, steep: float = 3.0, run: dict[str, Any] | None = None) -> Path:
    """A gate of kind ``features`` with its card, words, a threshold of .5, hashes and the files that lie beside it."""
    import numpy as np

    from kbtrain.gate.card import Threshold
    from kbtrain.gate.trained_on import write_held_out, write_trained_on
    from kbtrain.gates.features.additive import Additive, FeatureCurve
    from kbtrain.gates.features.gate import FeaturesCard
    from kbtrain.gates.features.question import Frequencies
    from kbtrain.records import GateExample
    from kbtrain.retrieval.tokens import Tokens

    folder.mkdir(parents=True)
    curve = FeatureCurve(knots=(0, 2 * middle), values=(-steep, steep))
    threshold = Threshold(threshold=0.5, rule="ratio", dev_file_sha256="d" * 64, n_dev=3)
    card = FeaturesCard(
        keys=("mastery",), labels="soft", name_rule="cased",
        models={"mastery": Additive(intercept=0, curves={"characters": curve}, strength=1.0)},
        thresholds={"features_mastery": threshold}, run=run or {},
    )  # fmt: skip
    Frequencies(Tokens(), np.array([1, 5], dtype=np.uint32), np.array([1, 2], dtype=np.float16)).save(folder)
    asked = replace(GateExample.ask("Which river runs behind our office?"), entities=("Q1",))
    write_trained_on(folder, [asked])
    write_held_out(folder, {"features_mastery": [("0123456789abcdef", 0.5)]})
    card.write(folder)
    return folder
