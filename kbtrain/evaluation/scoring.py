"""Gates that score a run folder, the examples that they score, and scores of gates made of others' stored scores.

Gates are those whose folders lie in the run, and prompted models. A stack whose members'
scores a run holds asks no model again.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from kbtrain.distributed.ray_work import ScoringConfig
from kbtrain.errors import UserError, did_you_mean
from kbtrain.evaluation.scores import split_hashes
from kbtrain.gate.card import CARD, STAGES
from kbtrain.gate.gate import ByName, Reads
from kbtrain.gates.handles import PROMPTS, GateHandle, gate_identity, handle, handle_of_prompt
from kbtrain.gates.registry import kind_named, read_card
from kbtrain.gates.scoring import (
    Chunk,
    Engine,
    ScoredChunk,
    Timing,
    gates_of_run,
    plain_examples,
    score_path,
    scored_id,
)
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import file_sha256, meta_of, read_meta
from kbtrain.records import GATE_NAME, Example, GateExample, GateScore, Split, TurnExample
from kbtrain.training.data import label_rule, own_prompts

if TYPE_CHECKING:
    from kbtrain.gates.stack import Columns, Member


def within_answer(run: Path, gate: GateHandle, dtype: str) -> bool:
    """True if plain answers begin with the pass of a gate whose pass can be theirs: those of the run are drawn in the
    number format in which it scores.

    ``dtype``: of the scoring; auto: the card's. A server's states are those of its own passes.
    """
    path = run / "samples.db"
    if gate.within_answer is None or gate.opening is None or gate.opening.states or not path_exists(path):
        return gate.within_answer is not None
    from kbtrain.io.store import SampleStore

    with SampleStore(path, read_only=True) as store:
        formats = {store.run_meta(name).get("dtype") for name in store.runs()}
    return formats <= {None, gate.within_answer if dtype == "auto" else dtype}


class ChoiceConfig(ScoringConfig):
    """Keys that say which examples are scored, and by which gates."""

    run: Path = Field(Path("runs/demo"), description="run folder with examples/ or turns.jsonl")
    turns: Path | None = Field(None, description="another file of turns, e.g. turns_features.jsonl of the run")
    allow_trained: bool = Field(
        False,
        description="score questions that a gate was trained on, or that dev shares with test; all tables count them",
    )
    allow_entities: bool = Field(
        False,
        description="score questions about entities of a gate's training, or that dev shares with test; all "
        "tables count them",
    )
    only: tuple[str, ...] = Field((), description="names of the gates to score; null: all")
    gates: dict[str, Path] = Field({}, description="name: folder, for gates in other folders")
    model: str | None = Field(None, description="language model of the gates that prompt one; null: they are skipped")
    states: Path | None = Field(
        None,
        description="YAML of kbtrain check-server: a vLLM server that returns the probes' hidden states, instead "
        "of a local copy",
    )

    @field_validator("only", mode="before")
    @classmethod
    def _as_tuple(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value


@dataclass(frozen=True)
class ScoringInputs:
    """Questions or turns to score by split, and their files by the name under which the hash is stored."""

    reads: Reads
    examples: Mapping[Split, Sequence[Example]]
    files: Mapping[str, Path]

    def split_hashes(self) -> dict[Split, str]:
        """Hashes of the questions, as the scores' metadata note them; empty for turns."""
        rows = [row for split in self.examples.values() for row in split if isinstance(row, GateExample)]
        return split_hashes((row.split, row.question_id, row.question) for row in rows)


def read_inputs(config: ChoiceConfig) -> ScoringInputs:
    """Turns where the run folder has turns.jsonl, else questions without a reference."""
    source = config.turns or config.run / "turns.jsonl"
    if not path_exists(source) and config.turns is None:
        files = {f"{split}.jsonl": config.run / "examples" / f"{split}.jsonl" for split in config.splits}
        examples = {split: plain_examples(files[f"{split}.jsonl"], split) for split in config.splits}
        return ScoringInputs("question", examples, files)
    turns = list(jsonl.read(TurnExample, source))
    rows = {split: [turn for turn in turns if turn.split == split] for split in config.splits}
    if not any(rows.values()):
        raise UserError(f"{source}: no {' or '.join(config.splits)} turn to score")
    return ScoringInputs("turn", rows, {"turns.jsonl": source})


def check_own_prompts(inputs: ScoringInputs, gates: Sequence[GateHandle]) -> None:
    """Raise :class:`UserError` for a gate of a folder that is about answers to other prompts than the run's."""
    path = next(iter(inputs.files.values()))
    rule = label_rule(path)
    if inputs.reads != "question" or not rule:
        return
    answered = own_prompts(rule, path)
    for gate in gates:
        if (card := gate.card) is None:
            continue
        if (card.label_rule or hasattr(card, "prompt_fingerprint")) and card.own_prompts() != answered:
            of_gate, of_run = (p.fingerprint() if p else "the project's" for p in (card.own_prompts(), answered))
            raise UserError(
                f"{gate.folder}: gate '{gate.name}' is about answers to prompts {of_gate}, the run's answers "
                f"are to {of_run}; make the gate from this run, or remove it (only)"
            )


def with_evidence(
    run: Path, gate: GateHandle, inputs: ScoringInputs, hashes: Mapping[str, str]
) -> tuple[ScoringInputs, Mapping[str, str]]:
    """Examples and hashes as the gate needs them: with what was found, where it is asked after the search."""
    if gate.stage != "search" or inputs.reads != "question":
        return inputs, hashes
    from kbtrain.retrieval.base import attach_hits

    source = run / "evidence.jsonl"
    examples = {split: attach_hits(rows, source) for split, rows in inputs.examples.items()}
    files = {**inputs.files, "evidence.jsonl": source}
    return replace(inputs, examples=examples, files=files), {**hashes, "evidence.jsonl": file_sha256(source)}


def choose_gates(config: ChoiceConfig, inputs: ScoringInputs) -> list[GateHandle]:
    """The gates asked for, each opened only if something is left to score. Raises :class:`UserError` for none, for a
    name that results cannot hold, and for one that two gates give to their scores."""
    gates = _possible(config, inputs)
    gates = _select_named(gates, config.only) if config.only else gates
    if not gates:
        raise UserError(f"nothing to score: no {config.run}/*/{CARD}, and no --model for the prompt baseline")
    if wrong := [name for gate in gates for name in gate.names if not re.fullmatch(GATE_NAME, name)]:
        raise UserError(
            f"{config.run}: scores would be named '{wrong[0]}', after a gate's folder: results hold no such name; "
            "name it by lowercase letters, digits and _"
        )
    twice = [name for i, gate in enumerate(gates) for name in gate.names if any(name in o.names for o in gates[:i])]
    if twice:
        raise UserError(f"{config.run}: two gates score under the name '{twice[0]}'; rename the folder of one")
    return gates


def _possible(config: ChoiceConfig, inputs: ScoringInputs) -> list[GateHandle]:
    """All gates that can score what is asked."""
    model, dtype, device = config.model, config.dtype, config.device
    states = None if config.states is None else str(config.states)
    gates = [] if model is None else [
        handle_of_prompt(name, model, dtype, device) for name in PROMPTS
        if name in config.only or not name.endswith("_know")
    ]  # fmt: skip
    if inputs.reads == "turn":
        from kbtrain.gates.simple import Always

        gates.append(
            GateHandle(("always",), "", Always, name="always", reads=Always.reads, stored={"all_rag": "always"})
        )
    gates += gates_of_run(config.run, dtype, device, states)
    gates += [handle(folder, dtype, device, name, states) for name, folder in config.gates.items()]
    return list({gate.name: gate for gate in gates if inputs.reads in gate.reads}.values())


def _select_named(gates: list[GateHandle], only: Sequence[str]) -> list[GateHandle]:
    """Those with one of these names, or a score with it."""
    names = {name for gate in gates for name in (gate.name, *gate.names)}
    for name in only:
        if name not in names:
            missing = " (give its --model)" if name in PROMPTS else ""
            raise UserError(f"key 'only': no gate '{name}'{missing}; {did_you_mean(name, names)}")
    return [gate for gate in gates if {gate.name, *gate.names} & set(only)]


FromMembers = Callable[[Sequence[ByName]], dict[str, list[float]]]


@dataclass(frozen=True)
class _Stored:
    """A member's scores by (name, id), the names that it gives them itself; what one example took."""

    names: dict[str, str]  # its own name -> the stored one
    scores: dict[tuple[str, str], float]
    costs: Mapping[str, Any]  # as the scores' metadata have them
    model: str | None  # whose plain prompt and draft it reads, in one pass with others

    def scores_of(self, chunk: Chunk) -> ByName:
        return {
            score: [self.scores[name, scored_id(example)] for example in chunk.examples]
            for score, name in self.names.items()
        }

    def alone(self, chunk: Chunk) -> float | None:
        """Seconds of an example by itself, if they were measured."""
        of_gate: Mapping[str, float] = self.costs.get("seconds_alone", {}).get(next(iter(self.names.values())), {})
        return of_gate.get(chunk.split)

    def took(self, chunk: Chunk) -> tuple[float, dict[str, float]]:
        """Seconds and spent of the chunk; a gate that notes nothing spent makes a request each."""
        name, n = next(iter(self.names.values())), len(chunk.examples)
        seconds, spent = (self.costs[f"{what}_per_question"][name][chunk.split] for what in ("seconds", "spent"))
        return n * seconds, {what: n * value for what, value in (spent or {"requests": 1.0}).items()}


def from_members(gate: GateHandle, run: Path, stored: Callable[[GateHandle], bool]) -> Engine | None:
    """An engine of a stack, if ``stored`` says of each member that its scores are in ``run``.

    None for gates of other kinds, and where a member's scores are missing. Costs are the sum of the members'; of those
    that read one pass the dearest's.
    """
    of_members = None if gate.card is None else kind_named(gate.card.kind).of_members
    if gate.card is None or gate.folder is None or gate.opening is None or of_members is None:
        return None
    score: FromMembers = partial(of_members, gate.card)
    members = []
    for part in gate.card.parts():
        member = handle(gate.folder / part, gate.opening.dtype, states=gate.opening.states)
        if not stored(member):
            return None
        members.append(_read(member, run))

    def engine(gate: GateHandle, chunks: Sequence[Chunk]) -> Iterator[ScoredChunk]:
        for chunk in chunks:
            yield _scored(score, members, gate, chunk)

    return engine


def _read(member: GateHandle, run: Path) -> _Stored:
    path = score_path(run, member.name)
    scores = {(row.gate, row.question_id): row.score for row in jsonl.read(GateScore, path)}
    card, is_here = member.card, member.opening is not None and member.opening.states is None
    reads_pass = is_here and card is not None and card.statistics and "end_states" not in card.statistics
    return _Stored(member.own_names, scores, read_meta(path), card.base_model if card and reads_pass else None)


def _passes(members: Sequence[_Stored], chunk: Chunk) -> list[_Stored]:
    """Members whose costs count: of those that read one pass the dearest."""
    dearest: dict[object, _Stored] = {}
    for member in sorted(members, key=lambda member: member.took(chunk)[0]):
        dearest[member.model or id(member)] = member
    return list(dearest.values())


def _scored(score: FromMembers, members: Sequence[_Stored], gate: GateHandle, chunk: Chunk) -> ScoredChunk:
    by_name = gate.name_scores(score([member.scores_of(chunk) for member in members]), chunk.examples)
    scores = [GateScore(scored_id(e), n, by_name[n][i]) for n in gate.names for i, e in enumerate(chunk.examples)]
    seconds, spent = 0.0, Counter[str]()
    paid = _passes(members, chunk)
    for member in paid:
        took, used = member.took(chunk)
        seconds += took
        spent.update({what: round(value) for what, value in used.items()})
    device = ", ".join(sorted({member.costs["device"] for member in members}))
    alone = [member.alone(chunk) for member in paid]
    took_alone = None if None in alone else sum(value or 0.0 for value in alone)
    timing = Timing(gate.names, chunk.split, len(chunk.examples), seconds, dict(spent), device, took_alone)
    return ScoredChunk(tuple(scores), timing)


HOW = 'run eval/score.py --splits "[train, dev, test]" (a gate without held-out scores: set fit_on to dev)'


def stack_members(output: Path, handles: Mapping[Path, GateHandle]) -> tuple[Member, ...]:
    """The members of a stack in ``output``, by their folders. Raises :class:`UserError` for a single score, and for two
    folders of one name."""
    from kbtrain.gates.stack import Member

    if sum(len(gate.names) for gate in handles.values()) < 2:
        raise UserError("a stack needs at least two scores; name more members")
    if len({folder.name for folder in handles}) < len(handles):
        raise UserError("key 'members': two folders have the same name; rename one")
    members = []
    for folder, gate in handles.items():
        names, place = tuple(gate.own_names), Path(os.path.relpath(folder, output)).as_posix()
        members.append(
            Member(folder=place, scores=names, stage=max(map(read_card(folder).stage_of, names), key=STAGES.index))
        )
    return tuple(members)


class StoredColumns:
    """Scores of a run by the names under which a stack knows them.

    Raises :class:`UserError` for a gate without a score file, for scores of another gate than the member (an older one,
    or one with its folder's name), and for scores of questions it was trained on.
    """

    def __init__(self, members: Sequence[Member], handles: Sequence[GateHandle], files: Sequence[Path]) -> None:
        from kbtrain.evaluation.scores import read_scores

        self.columns: dict[str, tuple[Path, Mapping[str, float]]] = {}
        by_folder = {g.folder.name: (g, file) for g, file in zip(handles, files, strict=True) if g.folder}
        for member in members:
            g, file = by_folder[Path(member.folder).name]
            if not file.exists():
                raise UserError(f"{file}: no such file; {HOW}")
            meta = meta_of(file)
            noted = {gate.get("identity") for name, gate in meta.get("gates", {}).items() if name in g.names}
            if noted - {gate_identity(g.folder or Path())}:
                raise UserError(
                    f"{file}: scores of another gate than {g.folder} holds; run eval/score.py again, by its name there"
                )
            if trained := meta.get("trained_on"):
                raise UserError(
                    f"{file}: scores of questions that gate '{g.name}' was trained on ({trained}) teach nothing; "
                    "remove it; or remove its scores, score without allow_trained, and set fit_on to dev"
                )
            scores = read_scores(file)
            for score, name in member.inputs().items():
                self.columns[name] = (file, scores.get(g.stored.get(score, score), {}))

    def columns_of(self, questions: Sequence[GateExample]) -> Columns:
        """Scores of these questions. Raises :class:`UserError` for one that has none."""
        columns: dict[str, list[float]] = {}
        for name, (file, scores) in self.columns.items():
            missing = next((q for q in questions if q.question_id not in scores), None)
            if missing is not None:
                raise UserError(f"{file}: no score of {missing.split} question '{missing.question_id}'; {HOW}")
            columns[name] = [scores[question.question_id] for question in questions]
        return columns
