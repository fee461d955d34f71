"""The README.md of every trained folder, filled from the run that made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kbtrain.gate.card import README, THRESHOLD_HEADING, GateCard, kept_thresholds
from kbtrain.io.provenance import write_atomically
from kbtrain.runtime.scripts import as_commands

USE_QUESTION = """import kbtrain

gate = kbtrain.load_gate(".")  # this folder
print(gate.score(["What is the capital of France?"]))
print(gate.decide(["What is the capital of France?"], threshold=0.5))  # without threshold: the one noted below"""
USE_TURN = """import kbtrain
from kbtrain.records import Entity, Hit, TurnExample, Utterance

gate = kbtrain.load_gate(".")  # this folder
said = Utterance("USER", "Tell me about the museum.", services=("Travel_1",), acts=("INFORM_INTENT",))
turn = TurnExample(
    "t1", "d1", "test", 1, (said,), services=("Travel_1",),
    response="It opens at 8.", synthetic_response="It is open.", entities=(Entity("museum", "name", "sgd"),),
    knowledge=(Hit("p1", "Museum", "The museum opens at 8.", 1.0),), source="wikiHow",
)  # skip what the gate does not read
print(gate.score([turn]))
print(gate.decide([turn], threshold=0.5))  # without threshold: the one noted below"""
_NOTHING_NOTED = "None is noted yet: `eval/end_to_end.py` notes one, `eval/calibrate.py` one with its evidence."


@dataclass(frozen=True)
class ModelCard:
    """The parts of the page. ``points``: what is read, which labels were learnt, and how, a line each.

    ``metrics`` is Markdown; ``threshold`` says what decides; ``sections`` are further ones, by their heading.
    """

    title: str
    what: str
    use: str
    points: tuple[str, ...]
    limits: str
    metrics: str
    threshold: str
    run: Mapping[str, object]
    versions: Mapping[str, str]
    n_probe: int
    tags: tuple[str, ...]
    of_dev: str = ""
    base: str | None = None
    library: str = "kbtrain"
    unit: str = "examples"
    quantity: str = "a score"
    sections: Mapping[str, str] = field(default_factory=dict)

    def text(self, worst: float) -> str:
        """The file's content; ``worst`` is the largest difference that the check after saving found."""
        sections = {
            f"## On dev ({self.of_dev})" if self.of_dev else "## On dev": self.metrics,
            THRESHOLD_HEADING: self.threshold,
            **{f"## {heading}": text for heading, text in self.sections.items()},
        }
        checked = f"Saved, opened again and checked on {self.n_probe} {self.unit}"
        points = (*self.points, f"Limits: {self.limits}", f"{checked}: {self.quantity} differs by at most {worst:.1e}.")
        intro = f"{self.what}\n\n```python\n{self.use}\n```\n\n" + "\n".join(f"- {point}" for point in points)
        front = {"library_name": self.library, "base_model": self.base, "tags": f"[{', '.join(self.tags)}]"}
        return _page(front, self.title, intro, sections, self.run, self.versions)


def _page(
    front: Mapping[str, str | None],
    title: str,
    intro: str,
    sections: Mapping[str, str],
    run: Mapping[str, object],
    versions: Mapping[str, str],
) -> str:
    lines = "".join(f"{key}: {value}\n" for key, value in front.items() if value)
    ends = {"## Run": table(run), "## Versions": table(versions)}
    parts = [f"# {title}\n{intro}", *(f"{heading}\n{text}" for heading, text in {**sections, **ends}.items())]
    return as_commands(f"---\n{lines}---\n" + "\n\n".join(parts) + "\n")


def write_made(folder: Path, card: GateCard, what: str, turns: bool = False) -> None:
    """Write the card of a gate that has no dev figures, and its README: what it is, its use, threshold, run, versions.

    ``turns``: it reads dialogue turns, not questions. Thresholds noted in the folder stay where the same gate is made
    again; one that is made of others may be of other ones under the same names.
    """
    thresholds = {} if card.parts() else kept_thresholds(card.model_dump(mode="json"), folder)
    card = card.model_copy(update={"thresholds": {**card.thresholds, **thresholds}})
    lines = "\n".join(threshold.line(name) for name, threshold in card.thresholds.items())
    text = _page(
        {"library_name": "kbtrain", "tags": "[adaptive-retrieval]"},
        f"Retrieval gate (`{card.kind}`)",
        f"{what}\n\n```python\n{USE_TURN if turns else USE_QUESTION}\n```",
        {THRESHOLD_HEADING: lines or _NOTHING_NOTED},
        {"base_model": card.base_model, **card.run} if card.base_model else card.run,
        card.versions,
    )
    write_atomically(folder / README, text)
    card.write(folder)


def table(values: Mapping[str, object]) -> str:
    """A Markdown table of two columns without a heading; empty for no values."""
    if not values:
        return ""
    return "| | |\n|---|---|\n" + "\n".join(f"| {key} | {value} |" for key, value in values.items())
