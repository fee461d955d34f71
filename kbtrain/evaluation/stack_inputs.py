"""Scores in a run folder as the inputs of a stack: its members, and a column of numbers for each of their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from kbtrain.errors import UserError, did_you_mean
from kbtrain.evaluation.run_folder import read_scores
from kbtrain.gate.card import STAGES
from kbtrain.gates.handles import GateHandle, gate_identity
from kbtrain.gates.registry import read_card
from kbtrain.gates.stack.gate import Member, make_members
from kbtrain.gates.stack.linear import Columns
from kbtrain.io.provenance import meta_of
from kbtrain.records import GateExample

HOW = 'run eval/score.py --splits "[train, dev, test]" (a gate without held-out scores: set fit_on to dev)'


def stack_members(
    output: Path, handles: Mapping[Path, GateHandle], leave_out: Sequence[str] = ()
) -> tuple[Member, ...]:
    """The members with the scores that are read. Raises :class:`UserError` for an unknown name to skip."""
    stored_names = {folder: {stored: name for name, stored in gate.stored.items()} for folder, gate in handles.items()}
    scores = [name for gate in handles.values() for name in gate.names]
    for name in leave_out:
        if name not in scores:
            raise UserError(f"key 'leave_out': no score '{name}'; {did_you_mean(name, scores)}")
    names = {
        folder: [stored_names[folder].get(name, name) for name in gate.names if name not in leave_out]
        for folder, gate in handles.items()
    }
    read = [folder for folder in handles if names[folder]]
    stages = {folder: max(map(read_card(folder).stage_of, names[folder]), key=STAGES.index) for folder in read}
    return make_members(output, read, names, stages)


def _check_of_member(file: Path, member: GateHandle) -> None:
    """Raise :class:`UserError` where a file notes another gate behind its scores than the one that will be asked."""
    folder = member.folder or Path()
    identities = {gate.get("identity") for name, gate in meta_of(file).get("gates", {}).items() if name in member.names}
    if identities - {gate_identity(folder)}:
        raise UserError(
            f"{file}: scores of another gate than {folder} holds; run eval/score.py again, by its name there"
        )


class StoredColumns:
    """Scores of a run by the names under which a stack knows them.

    Raises :class:`UserError` for a gate without a score file, for scores of another gate than the member (an older one,
    or one with its folder's name), and for scores of questions it was trained on.
    """

    def __init__(self, members: Sequence[Member], handles: Sequence[GateHandle], files: Sequence[Path]) -> None:
        self.columns: dict[str, tuple[Path, Mapping[str, float]]] = {}
        by_folder = {g.folder.name: (g, file) for g, file in zip(handles, files, strict=True) if g.folder}
        for member in members:
            g, file = by_folder[Path(member.folder).name]
            if not file.exists():
                raise UserError(f"{file}: no such file; {HOW}")
            _check_of_member(file, g)
            trained = meta_of(file).get("trained_on")
            if trained:
                raise UserError(
                    f"{file}: scores of questions that gate '{g.name}' was trained on ({trained}) teach nothing; "
                    "leave it out, or set fit_on to dev and score without allow_trained"
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
