"""Repeated cross-validation of turn gates over dialogues: which to take, its figures, and for how many dialogues.

Reads labelled turns (data_gen/collect_turns.py); train and dev together are split by dialogue, five folds three times.
Candidates read a dialogue's state, a frozen encoder's embeddings of what was said, or both, or are averages of two; a
fine-tuned encoder is not among them: it takes minutes a fold. Writes OUT/cross_validation.json (the choice, figures
with intervals over dialogues, the chosen one's corrected for its choice, calibration, a learning curve), .md and .svg.
Test turns are not read: --test true, in a second call, scores them by what the first call chose. A killed run resumes
with the folds that are missing.

Examples:
  python studies/cross_validate.py --turns runs/ketod/turns.jsonl
  python studies/cross_validate.py --turns runs/ketod/turns.jsonl --test true
  python studies/cross_validate.py --turns runs/talk/turns.jsonl --repeats 5 --sizes "[50, 100]" --out runs/talk/cv
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated

import cross_validation as cv
from cross_validation_page import figure, markdown
from published.frozen_texts import kept_embeddings
from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.errors import UserError, at
from kbtrain.io import jsonl
from kbtrain.io.provenance import check_unchanged, file_sha256, read_meta, write_atomically, write_result
from kbtrain.models.files_read import digest
from kbtrain.records import TurnExample
from kbtrain.runtime.progress import progress_bar

RESULT, TEST = "cross_validation.json", "test.json"


class CrossValidateConfig(Config):
    turns: Path = Field(Path("runs/ketod/turns.jsonl"), description="labelled turns with splits")
    encoder: str = Field("all-minilm-l6-v2", description="encoder that embeds utterances: embedded name, folder or id")
    repeats: int = Field(3, ge=1, description="times that the dialogues are split again")
    folds: int = Field(5, ge=2, description="outer folds: their turns are scored by fits to all other dialogues")
    inner: int = Field(3, ge=2, description="folds inside, for thresholds and the choice of a candidate")
    sizes: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (50, 100, 150, 200), description="dialogues of the learning curve, as far as a fold has them"
    )
    seed: int = Field(0, ge=0, lt=2**31, description="of the splits and draws")
    test: bool = Field(False, description="score the test turns by what a call without this chose")
    out: Path | None = Field(None, description="folder of the results; null: cross_validation beside the turns")

    @property
    def folder(self) -> Path:
        return self.out or self.turns.parent / "cross_validation"

    def writes(self) -> tuple[Path, ...]:
        return (self.folder,)


def main(config: CrossValidateConfig) -> None:
    """Split, fit, choose, measure, write, say; or score the test turns by the choice that is written."""
    started, folder = time.monotonic(), config.folder
    check_unchanged(config.turns)
    if config.test:
        return test(config, started)
    table = table_of(config, ("train", "dev"))
    counts = (config.repeats, config.folds, config.inner)
    made_of = file_sha256(config.turns) + config.encoder + digest(config.encoder)
    with progress_bar(total=config.repeats * config.folds, desc="cross-validation", unit="folds") as bar:
        repeats = list(cv.cross_validated(table, counts, config.seed, folder, made_of, bar.update))
    held_out = cv.candidates_held_out(table, repeats)
    draws = cv.drawn_figures(table.truth, table.dialogues, held_out)
    figures = cv.figures_of_candidates(table.truth, held_out, draws)
    plain = [name for name, parts in cv.CANDIDATES.items() if not any(part.annotated for part in parts)]
    best_name, text = cv.best(list(cv.CANDIDATES), figures), cv.best(plain, figures)
    inflations = cv.nested_inflations(table, repeats, draws)
    corrected = {
        name: cv.corrected(names, draws, inflations)
        for name, names in ((text, plain), (best_name, list(cv.CANDIDATES)))
    }
    shown_names, most = list(dict.fromkeys((best_name, text))), cv.fewest_dialogues(table, repeats)
    sizes, beyond = ([size for size in config.sizes if (size > most) == above] for above in (False, True))
    document = {
        "dialogues": len(set(table.dialogues)),
        "turns": len(table.truth),
        "positive": int(table.truth.sum()),
        "chosen": best_name,
        "chosen_without_annotation": text,
        "corrected": {
            name: {figure: dataclasses.asdict(value) for figure, value in values.items()}
            for name, values in corrected.items()
        },
        "inflation": {name: inflations[name] for name in shown_names},
        "encoder_files": digest(config.encoder),
        "thresholds": {name: cv.threshold(table, held_out[name]) for name in shown_names},
        "candidates": {name: dataclasses.asdict(candidate) for name, candidate in figures.items()},
        "calibration": {name: cv.calibrated(table, held_out[name]) for name in shown_names},
        "by_dialogues": {name: cv.by_dialogues(table, name, repeats, sizes, config.seed) for name in shown_names},
    }
    write_atomically(folder / "cross_validation.md", markdown(document))
    write_atomically(folder / "cross_validation.svg", figure(document))
    inputs = [config.turns]
    write_result(folder / RESULT, document, stage="cross_validate", config=config, inputs=inputs, started=started)
    print(markdown(document))
    if beyond:
        print(f"excluded from the learning curve: {', '.join(map(str, beyond))}; a fold has {most} dialogues to fit to")
    n, seconds = document["dialogues"], time.monotonic() - started
    print(f"{len(table.truth)} turns of {n} dialogues in {seconds:.0f} s -> {folder}")


def table_of(config: CrossValidateConfig, splits: Sequence[str], skipped: Collection[str] = ()) -> cv.TurnTable:
    """The labelled turns of these splits, with embeddings that are kept; those of dialogues that are ``skipped`` about,
    which files without names of dialogues may have in several splits, are skipped with a warning.

    Raises :class:`UserError` for none.
    """
    labelled = [t for t in jsonl.read(TurnExample, config.turns) if t.label is not None and t.split in splits]
    turns = [turn for turn in labelled if turn.dialogue_id not in skipped]
    if n_skipped := len(labelled) - len(turns):
        message = f"{at(config.turns)}: {n_skipped} turns of {' and '.join(splits)} continue dialogues of test: skipped"
        warnings.warn(message, stacklevel=2)
    if not turns:
        raise UserError(f"{at(config.turns)}: no labelled turn of {' or '.join(splits)}; collect some")
    texts = sorted({utterance.text for turn in turns for utterance in turn.context})
    vectors = kept_embeddings(config.encoder, config.folder, texts, cv.MAX_LENGTH)
    return cv.TurnTable(turns, dict(zip(texts, vectors, strict=True)), vectors.shape[1])


def test(config: CrossValidateConfig, started: float) -> None:
    """Figures on the test turns of the chosen candidates, fitted to all other dialogues, at their noted thresholds.

    Raises :class:`UserError` where nothing was chosen from these turns, with this encoder, yet.
    """
    source, remedy = config.folder / RESULT, "call this without --test again"
    document_of_choice, meta = jsonl.read_value(source, "call this without --test first", remedy), read_meta(source)
    if meta["inputs"].get(config.turns.name) != file_sha256(config.turns):
        raise UserError(f"{at(source)}: chosen from other turns than {config.turns}; {remedy}")
    settings = meta.get("config")
    encoder = settings.get("encoder") if isinstance(settings, dict) else None
    if encoder != config.encoder:
        raise UserError(f"{at(source)}: chosen with encoder '{encoder}', not '{config.encoder}'; {remedy}")
    files = digest(config.encoder)
    if document_of_choice.get("encoder_files", files) != files:  # earlier results do not store it
        raise UserError(f"{at(source)}: chosen with other files of encoder '{config.encoder}'; {remedy}")
    test_table = table_of(config, ("test",))
    table = table_of(config, ("train", "dev"), set(test_table.dialogues))
    names = dict.fromkeys((document_of_choice["chosen"], document_of_choice["chosen_without_annotation"]))
    scores = {name: [cv.applied(name, document_of_choice["thresholds"][name], table, test_table)] for name in names}
    figures = cv.figures_of_candidates(
        test_table.truth, scores, cv.drawn_figures(test_table.truth, test_table.dialogues, scores)
    )
    document = {
        "dialogues": len(set(test_table.dialogues)),
        "turns": len(test_table.truth),
        "positive": int(test_table.truth.sum()),
        "candidates": {name: dataclasses.asdict(candidate) for name, candidate in figures.items()},
        "calibration": {name: cv.calibrated(test_table, runs) for name, runs in scores.items()},
    }
    inputs = [config.turns, source]
    write_result(config.folder / TEST, document, stage="cross_validate", config=config, inputs=inputs, started=started)
    write_atomically(config.folder / "test.md", markdown(document))
    print(markdown(document))
    print(f"{len(test_table.truth)} test turns of {document['dialogues']} dialogues -> {config.folder / TEST}")


if __name__ == "__main__":
    run_script(main, CrossValidateConfig, __doc__)
