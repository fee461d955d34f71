"""Score the dev and test questions, or dialogue turns, of a run folder with every gate that lies in it.

Gates are found by themselves, RUN/*/gate.json; --model adds the gates that prompt an untrained language model. In a run
folder with turns.jsonl the gates always, structural and dialogue_state need no recipe: they are fitted to the train
turns here; --members makes the average of gates. Writes RUN/scores/<gate>.jsonl (higher = retrieval more needed) with
the seconds per gate in its .meta.json. Scores stay as long as what they depend on is the same: run it again after an
interruption, or with another gate. --engine ray spreads the work over a Ray cluster.

Examples:
  python eval/score.py --run runs/demo --model smollm2-135m-instruct
  python eval/score.py --run runs/demo --only kbm --dtype fp32
  python eval/score.py --run runs/qwen2 --only prompt --prompt-llm data_gen/configs/sample_server.yaml
  python eval/score.py --run runs/ketod --members "[dialogue_state, encoder]"
  python eval/score.py --run runs/ketod --only ragate_prompt_in_context --model smollm2-135m-instruct
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from kbtrain import jsonl
from kbtrain.config import build, read_yaml, run_script
from kbtrain.distributed.scoring import ScoringConfig
from kbtrain.errors import UserError, did_you_mean
from kbtrain.files import writing
from kbtrain.gate_folder import CARD, Reads, example_hash, trained_among
from kbtrain.gates.average import AverageGate
from kbtrain.gates.noted import sources_of
from kbtrain.gates.registry import (
    GATES,
    PROMPTED,
    GateHandle,
    fitted,
    handle,
    load_gate,
    prompted,
    prompted_by_replies,
    read_card,
)
from kbtrain.gates.score_stage import (
    ScoreFile,
    attach_hits,
    chunks_left,
    examples_left,
    found_gates,
    note_best_f1,
    plain_examples,
    score_chunks,
    score_path,
    take_over,
    with_run,
)
from kbtrain.gates.simple import Always
from kbtrain.llm.backends import LLMConfig
from kbtrain.llm.forecast import duration
from kbtrain.llm.prices import ForecastConfig, price_of
from kbtrain.progress import progress_bar
from kbtrain.provenance import check_unchanged, file_sha256, made_before, meta_path, read_meta, write_meta
from kbtrain.records import Example, Split, TurnExample
from kbtrain.training.data import label_rule, own_prompts

FIT = "fit"  # stage of the gates that are fitted here


class ScoreConfig(ForecastConfig, ScoringConfig):
    """Settings of this script."""

    run: Path = Field(Path("runs/demo"), description="run folder with examples/ or turns.jsonl")
    only: tuple[str, ...] = Field((), description="names of the gates to score; without it all")
    gates: dict[str, Path] = Field({}, description="name: folder of gates that lie elsewhere")
    model: str | None = Field(None, description="language model of the prompted gates; without it they are left out")
    prompt_llm: Path | None = Field(
        None, description="YAML as of data_gen/sample.py: model, back end, server that gate prompt asks, not model"
    )
    prompt_samples: int = Field(10, ge=1, description="prompt_llm: replies to each question; the score is their share")
    members: tuple[Path, ...] = Field((), description="gate average: gate folders, relative to the run")
    allow_trained: bool = Field(False, description="score questions that a gate was trained on; they are counted")
    turns: Path | None = Field(None, description="another file of turns, e.g. turns_features.jsonl of the run")

    @field_validator("only", "members", mode="before")
    @classmethod
    def _one(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _here(self) -> ScoreConfig:
        if self.prompt_llm is not None and self.engine == "ray":
            raise ValueError("prompt_llm: its model is asked from this process; use engine: local")
        return self


@dataclass(frozen=True)
class Asked:
    """Questions or turns to score by split, and their files by the name under which the hash is stored."""

    reads: Reads
    examples: Mapping[Split, Sequence[Example]]
    files: Mapping[str, Path]
    train: Sequence[TurnExample] = ()


def main(config: ScoreConfig) -> None:
    """Read examples, score what is not scored yet, write a file for each gate."""
    started = time.monotonic()
    asked = read_asked(config)
    check_unchanged(*asked.files.values())
    gates = chosen(config, asked)
    check_own_prompts(asked, gates)
    hashes = {name: file_sha256(file) for name, file in asked.files.items()}
    if config.dry_run:
        return look_ahead(config, asked, gates, hashes)
    notes = []
    for gate in gates:
        with writing(score_path(config.run, gate.name)):  # other gates of the run may be scored meanwhile
            notes.append(score(config, asked, gate, hashes))
    total, names = sum(map(len, asked.examples.values())), [name for gate in gates for name in gate.names]
    note = "; scores of other inputs were replaced" if any(notes) else ""
    print(
        f"scored {total} {asked.reads}s with {', '.join(names)} in {time.monotonic() - started:.0f} s "
        f"-> {score_path(config.run, '*')}{note}"
    )


def check_own_prompts(asked: Asked, gates: Sequence[GateHandle]) -> None:
    """Raise :class:`UserError` for a gate of a folder that is about answers to other prompts than the run's."""
    path = next(iter(asked.files.values()))
    rule = label_rule(path)
    if asked.reads != "question" or not rule:
        return
    wanted = own_prompts(rule, path)
    for gate in gates:
        if gate.opening is None or gate.opening.prompt is not None:
            continue
        card = read_card(gate.opening.model)
        if (card.label_rule or hasattr(card, "prompt_fingerprint")) and card.own_prompts() != wanted:
            theirs, ours = (one.fingerprint() if one else "the project's" for one in (card.own_prompts(), wanted))
            raise UserError(
                f"{gate.opening.model}: gate '{gate.name}' is about answers to prompts {theirs}, the run's answers are "
                f"to {ours}; make the gate from this run, or leave it out (only)"
            )


def look_ahead(config: ScoreConfig, asked: Asked, gates: Sequence[GateHandle], hashes: Mapping[str, str]) -> None:
    """Print what is left to score for each gate, and with ``measure`` its time and the price of its machine."""
    price = price_of(config.prices)
    for gate in gates:
        rows = examples_left(config.run, gate, inputs_of(config, gate, hashes), asked.examples)
        total = sum(map(len, asked.examples.values()))
        line = f"{gate.name}: {len(rows)} of {total} {asked.reads}s to score, a forward pass each unless it samples"
        if rows and config.measure:
            some = rows[:: max(1, len(rows) // config.measure)][: config.measure]
            opened = gate.open()
            begun = time.perf_counter()
            gate.scores(opened, some)
            seconds = (time.perf_counter() - begun) * len(rows) / len(some)
            line += f"; about {duration(seconds)} by {len(some)} of them, {price.currency} "
            line += f"{seconds / 3600 * price.hour:,.2f} of machine time by {price.source}"
        elif rows:
            line += "; time not measured: --measure 8"
        print(line)


def inputs_of(config: ScoreConfig, gate: GateHandle, hashes: Mapping[str, str]) -> dict[str, str]:
    """Inputs that a gate's stored scores depend on."""
    return {**hashes, "gate": gate.depends, "dtype": config.dtype, "chunk": str(config.chunk)}


def read_asked(config: ScoreConfig) -> Asked:
    """Turns where the run folder has turns.jsonl, else questions without a reference."""
    source = config.turns or config.run / "turns.jsonl"
    if not source.exists() and config.turns is None:
        files = {f"{split}.jsonl": config.run / "examples" / f"{split}.jsonl" for split in config.splits}
        examples = {split: plain_examples(files[f"{split}.jsonl"], split) for split in config.splits}
        return Asked("question", examples, files)
    turns = list(jsonl.read(TurnExample, source))
    rows = {split: [turn for turn in turns if turn.split == split] for split in config.splits}
    if not any(rows.values()):
        raise UserError(f"{source}: no {' or '.join(config.splits)} turn to score")
    return Asked("turn", rows, {"turns.jsonl": source}, [turn for turn in turns if turn.split == "train"])


def chosen(config: ScoreConfig, asked: Asked) -> list[GateHandle]:
    """The gates asked for, each opened only if something is left to score. Raises :class:`UserError` for none."""
    model, dtype, device = config.model, config.dtype, config.device
    found = [] if model is None else [
        prompted(name, model, dtype, device) for name, kind in PROMPTED.items()
        if asked.reads in kind.reads and (name in config.only if name.endswith("_know") else True)
    ]  # fmt: skip
    if config.prompt_llm is not None:
        found.append(prompted_by_replies(llm_of(config.prompt_llm), config.prompt_samples))
    if asked.reads == "turn":
        found.append(
            GateHandle(("always",), "", Always, name="always", reads=Always.reads, stored={"all_rag": "always"})
        )
        make_turn_gates(config, asked)
    found += found_gates(config.run, dtype, device)
    found += [handle(folder, dtype, device, name) for name, folder in config.gates.items()]
    found = list({gate.name: gate for gate in found if asked.reads in gate.reads}.values())
    known = {gate.name: gate for gate in found} | {name: gate for gate in found for name in gate.names}
    for name in config.only:
        if name not in known:
            missing = " (give its --model)" if name in PROMPTED else ""
            raise UserError(f"key 'only': no gate '{name}'{missing}; {did_you_mean(name, known)}")
    found = [gate for gate in found if not config.only or {gate.name, *gate.names} & set(config.only)]
    if not found:
        raise UserError(f"nothing to score: no {config.run}/*/{CARD}, and no --model for the prompt baseline")
    twice = [name for i, gate in enumerate(found) for name in gate.names if any(name in o.names for o in found[:i])]
    if twice:
        raise UserError(f"{config.run}: two gates score under the name '{twice[0]}'; rename the folder of one")
    return found


def llm_of(path: Path) -> LLMConfig:
    """The keys of a language model in a file that is made for sampling, too."""
    values, _ = read_yaml(path)
    return build(LLMConfig, None, {key: value for key, value in values.items() if key in LLMConfig.model_fields})


def make_turn_gates(config: ScoreConfig, asked: Asked) -> None:
    """Fit the gates that need no recipe, as far as they are asked for and not there yet."""
    source, labelled = asked.files["turns.jsonl"], any(turn.label is not None for turn in asked.train)
    for name, kind in GATES.items():
        wanted = name in config.only or (not config.only and labelled) or name in map(str, config.members)
        target = config.run / name / CARD
        if kind.fit and "turn" in kind.reads and wanted and to_fit(target, name, source):
            with writing(target.parent):
                fitted(name, asked.train, target.parent)
                write_meta(target, stage=FIT, config={"gate": name}, inputs=[source])
    if config.members:
        folders = [config.run / member for member in config.members]
        open_member = partial(load_gate, dtype=config.dtype, device=config.device)
        AverageGate.of(config.run / "average", folders, open_member)


def to_fit(target: Path, name: str, source: Path) -> bool:
    """True unless the gate was fitted to these turns already, or a recipe made it: that one is the user's."""
    if meta_path(target).exists() and read_meta(target).get("stage") != FIT:
        return False
    return not made_before(target, {"gate": name}, [source], noted_later=True)


def trained_on(config: ScoreConfig, asked: Asked, gate: GateHandle) -> dict[str, int]:
    """Number of questions or turns of each split that the gate was trained on; refused unless that is allowed."""
    if gate.opening is None or gate.opening.prompt is not None:
        return {}
    known = set.intersection(*({*gate.held_out.get(name, ())} for name in gate.names))  # scored without them
    found = {
        split: [row for row in trained_among(gate.opening.model, rows) if example_hash(row) not in known]
        for split, rows in asked.examples.items()
    }
    first = next((row for rows in found.values() for row in rows), None)
    counts = {split: len(rows) for split, rows in found.items() if rows}
    if first is not None and not config.allow_trained:
        told = " and ".join(
            f"{n} of {len(asked.examples[split])} {split} {asked.reads}s" for split, n in counts.items()
        )
        raise UserError(
            f"{gate.opening.model}: gate '{gate.name}' was trained on {told} (the first: '{first.id}'), so its scores "
            "of them say nothing; leave them out of the run, or set allow_trained to score and count them"
        )
    if counts:
        print(f"{gate.name}: trained on " + ", ".join(f"{n} {split} {asked.reads}s" for split, n in counts.items()))
    return counts


def with_hits(run: Path, asked: Asked, hashes: Mapping[str, str]) -> tuple[Asked, dict[str, str]]:
    """The questions with the passages that were found for them, and all hashes."""
    source = run / "evidence.jsonl"
    examples = {split: attach_hits(rows, source) for split, rows in asked.examples.items()}
    files = {**asked.files, "evidence.jsonl": source}
    return replace(asked, examples=examples, files=files), {**hashes, "evidence.jsonl": file_sha256(source)}


def score(config: ScoreConfig, asked: Asked, gate: GateHandle, hashes: Mapping[str, str]) -> bool:
    """One gate's file; True if it takes the place of scores of other inputs."""
    begun, out, splits = time.monotonic(), score_path(config.run, gate.name), config.splits
    if gate.stage == "search" and asked.reads == "question":
        asked, hashes = with_hits(config.run, asked, hashes)
    trained = trained_on(config, asked, gate)
    inputs = inputs_of(config, gate, hashes)
    take_over(config.run, gate, inputs)
    with ScoreFile(out, inputs) as scores:
        chunks = chunks_left(scores, gate, asked.examples, config.chunk)
        total = sum(len(chunk.examples) for chunk in chunks)
        with progress_bar(desc=gate.name, unit=f"{asked.reads}s", total=total, disable=not chunks) as bar:
            for n in score_chunks(scores, with_run(gate, config.run), chunks, config.scoring()):
                bar.update(n)
        extra: dict[str, Any] = {
            "seconds_per_question": {name: {s: scores.seconds(name, s) for s in splits} for name in gate.names},
            "spent_per_question": {name: {s: scores.spent(name, s) for s in splits} for name in gate.names},
            "model": _model(config) if gate.name in PROMPTED else None,
            "device": scores.device(),
            "trained_on": trained,
            "gates": sources_of(gate, config.run),
        }
        scores.finish()
    settings, files = config.model_dump(mode="json"), list(asked.files.values())
    write_meta(out, stage="score", config=settings, inputs=files, extra=extra, started=begun)
    if asked.reads == "turn" and gate.opening and gate.opening.prompt is None and "dev" in splits:
        note_best_f1(Path(gate.opening.model), gate, out, asked.examples["dev"], asked.files["turns.jsonl"])
    return scores.restarted


def _model(config: ScoreConfig) -> str | None:
    return config.model if config.prompt_llm is None else llm_of(config.prompt_llm).model


if __name__ == "__main__":
    run_script(main, ScoreConfig, __doc__)
