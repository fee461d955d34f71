"""The README.md of every trained folder, filled from the run that made it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from kbtrain.gate.card import README, THRESHOLD_HEADING, GateCard, kept_notes
from kbtrain.io.provenance import write_atomically
from kbtrain.runtime.scripts import as_commands

USE_QUESTION = """import kbtrain

gate = kbtrain.load_gate(".")  # this folder
print(gate.score(["What is the capital of France?"]))
print(gate.decide(["What is the capital of France?"], threshold=0.5))  # without threshold: the stored one"""
USE_FOUND = USE_QUESTION.replace("\n\n", "\nfrom kbtrain.records import GateExample, Hit\n\n", 1).replace(
    '["What is the capital of France?"]',
    '[GateExample.ask("What is the capital of France?", hits=[Hit("p1", "France", "Its capital is Paris.", 9.0)])]',
)
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
print(gate.decide([turn], threshold=0.5))  # without threshold: the stored one"""
_NOTHING_NOTED = "None is stored yet: `eval/end_to_end.py` stores one, `eval/calibrate.py` one with its evidence."


NO_DEV = "No dev examples were given."
NOT_SET = "None is set by training. `eval/calibrate.py` chooses one on dev and writes it into `gate.json`."


def training_page(
    title: str, what: str, points: Sequence[str], limits: str, dev: Mapping[str, str], checked: str,
    run: Mapping[str, object], versions: Mapping[str, str], *, base: str | None = None, use: str = USE_QUESTION,
    threshold: str = NOT_SET,
) -> str:  # fmt: skip
    """The page of what was trained.

    ``points``: what is read, which labels were learnt, and how, a line each. ``dev``: Markdown by heading. ``checked``:
    what was compared when the folder was opened again, and by how much it differs. ``threshold``: what decides.
    """
    lines = (*points, f"Limits: {limits}", f"Saved, opened again and checked on {checked}.")
    intro = f"{what}\n\n```python\n{use}\n```\n\n" + "\n".join(f"- {line}" for line in lines)
    sections = {**{f"## {heading}": text for heading, text in dev.items()}, THRESHOLD_HEADING: threshold}
    return _page(base, title, intro, sections | _run_sections(run, versions))


def _run_sections(run: Mapping[str, object], versions: Mapping[str, str]) -> dict[str, str]:
    return {"## Run": table(run), "## Versions": table(versions)}


def _page(base: str | None, title: str, intro: str, sections: Mapping[str, str]) -> str:
    front = "library_name: kbtrain\n" + (f"base_model: {base}\n" if base else "") + "tags: [adaptive-retrieval]\n"
    parts = [f"# {title}\n{intro}", *(f"{heading}\n{text}" for heading, text in sections.items())]
    return as_commands(f"---\n{front}---\n" + "\n\n".join(parts) + "\n")


def write_made(folder: Path, card: GateCard, what: str) -> None:
    """Write the card of a gate that has no dev figures, and its README: what it is, its use, threshold, run, versions.

    Thresholds noted in the folder stay where the same gate is made again.
    """
    card = card.model_copy(update={"thresholds": kept_notes(card.model_dump(mode="json"), folder)[0]})
    lines = "\n".join(threshold.line(name) for name, threshold in card.thresholds.items())
    run = {"base_model": card.base_model, **card.run} if card.base_model else card.run
    sections = {THRESHOLD_HEADING: lines or _NOTHING_NOTED, **_run_sections(run, card.versions)}
    intro = f"{what}\n\n```python\n{USE_QUESTION}\n```"
    write_atomically(folder / README, _page(None, f"Retrieval gate (`{card.kind}`)", intro, sections))
    card.write(folder)


def use_of(card: GateCard, reads_turns: bool) -> str:
    """Python that opens and asks the gate."""
    return USE_TURN if reads_turns else USE_FOUND if card.stage == "search" else USE_QUESTION


def table(values: Mapping[str, object]) -> str:
    """A Markdown table of two columns without a heading; empty for no values."""
    if not values:
        return ""
    return "| | |\n|---|---|\n" + "\n".join(f"| {key} | {value} |" for key, value in values.items())
