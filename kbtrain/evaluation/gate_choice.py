"""Gates that score a run folder: those whose folders lie in it, prompted models, and those fitted in place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pydantic import Field, field_validator, model_validator

from kbtrain.errors import UserError, did_you_mean
from kbtrain.evaluation.scoring_inputs import ScoringInputs, ScoringInputsConfig
from kbtrain.gate.card import CARD
from kbtrain.gate.trained_on import write_trained_on
from kbtrain.gates.average import AverageGate
from kbtrain.gates.fit_kind import fit_and_write
from kbtrain.gates.handles import GateHandle, gate_identity, handle, handle_of_prompt, handle_of_replies
from kbtrain.gates.prompted import PROMPTED
from kbtrain.gates.registry import GATES, load_gate
from kbtrain.gates.scoring import gates_of_run
from kbtrain.gates.simple import Always
from kbtrain.io.artifact import Artifact
from kbtrain.io.files import path_exists, writing
from kbtrain.io.provenance import meta_path, read_meta
from kbtrain.llm.backends import read_llm_config
from kbtrain.records import GATE_NAME
from kbtrain.training.data import unnamed_in_both

FIT = "fit"  # stage of the gates that are fitted here


class ChoiceConfig(ScoringInputsConfig):
    """Keys that say which gates score."""

    only: tuple[str, ...] = Field((), description="names of the gates to score; without it all")
    gates: dict[str, Path] = Field({}, description="name: folder of gates that lie elsewhere")
    model: str | None = Field(None, description="language model of the prompted gates; without it they are skipped")
    prompt_llm: Path | None = Field(
        None, description="YAML as of data_gen/sample.py: model, back end, server that gate prompt asks, not model"
    )
    prompt_samples: int = Field(10, ge=1, description="prompt_llm: replies to each question; the score is their share")
    states: Path | None = Field(
        None, description="YAML of kbtrain check-server: vLLM that gives the states which probes read, not a copy here"
    )
    members: tuple[Path, ...] = Field((), description="gate average, of turns: gate folders, relative to the run")

    @field_validator("only", "members", mode="before")
    @classmethod
    def _as_tuple(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _here(self) -> ChoiceConfig:
        if self.prompt_llm is not None and self.engine == "ray":
            raise ValueError("key 'prompt_llm': its model is asked from this process; use engine: local")
        return self


def choose_gates(config: ChoiceConfig, inputs: ScoringInputs) -> list[GateHandle]:
    """The gates asked for, each opened only if something is left to score. Raises :class:`UserError` for none."""
    gates = _select_named(_possible(config, inputs), config.only)
    if not gates:
        raise UserError(f"nothing to score: no {config.run}/*/{CARD}, and no --model for the prompt baseline")
    _check_score_names(gates, config.run)
    return gates


def _possible(config: ChoiceConfig, inputs: ScoringInputs) -> list[GateHandle]:
    """All gates that can score what is asked; those of turns that need no recipe are made."""
    model, dtype, device = config.model, config.dtype, config.device
    states = None if config.states is None else str(config.states)
    gates = [] if model is None else [
        handle_of_prompt(name, model, dtype, device) for name, kind in PROMPTED.items()
        if inputs.reads in kind.reads and (name in config.only if name.endswith("_know") else True)
    ]  # fmt: skip
    if config.prompt_llm is not None:
        gates.append(handle_of_replies(read_llm_config(config.prompt_llm), config.prompt_samples))
    if inputs.reads == "turn":
        gates.append(
            GateHandle(("always",), "", Always, name="always", reads=Always.reads, stored={"all_rag": "always"})
        )
        make_turn_gates(config, inputs)
    elif config.members:  # a gate of several keys scores by the best one, which a threshold noted later may change
        raise UserError(
            "key 'members': averages are made in runs of turns alone; combine gates of questions by a stack "
            "(recipes/train_stack.py), or leave the key out"
        )
    gates += gates_of_run(config.run, dtype, device, states)
    gates += [handle(folder, dtype, device, name, states) for name, folder in config.gates.items()]
    return list({gate.name: gate for gate in gates if inputs.reads in gate.reads}.values())


def _select_named(gates: list[GateHandle], only: Sequence[str]) -> list[GateHandle]:
    """Those with one of these names, or a score with it; without names all."""
    if not only:
        return gates
    names = {name for gate in gates for name in (gate.name, *gate.names)}
    for name in only:
        if name not in names:
            missing = " (give its --model)" if name in PROMPTED else ""
            raise UserError(f"key 'only': no gate '{name}'{missing}; {did_you_mean(name, names)}")
    return [gate for gate in gates if {gate.name, *gate.names} & set(only)]


def _check_score_names(gates: Sequence[GateHandle], run: Path) -> None:
    """Raise :class:`UserError` for a name that results cannot hold, or that two gates give to their scores."""
    if wrong := [name for gate in gates for name in gate.names if not re.fullmatch(GATE_NAME, name)]:
        raise UserError(
            f"{run}: scores would be named '{wrong[0]}', after a gate's folder: results hold no such name; "
            "name it by small letters, digits and _"
        )
    twice = [name for i, gate in enumerate(gates) for name in gate.names if any(name in o.names for o in gates[:i])]
    if twice:
        raise UserError(f"{run}: two gates score under the name '{twice[0]}'; rename the folder of one")


def make_turn_gates(config: ChoiceConfig, inputs: ScoringInputs) -> None:
    """Fit the gates that need no recipe, as far as they are asked for and not there yet, to what recipes fit to."""
    source, labelled = inputs.files["turns.jsonl"], [turn for turn in inputs.train if turn.label is not None]
    for name, kind in GATES.items():
        requested = name in config.only or (not config.only and bool(labelled)) or name in map(str, config.members)
        target = config.run / name / CARD
        gate = Artifact(target, FIT, {"gate": name}, [source], edited=True)
        if not kind.unasked or not requested:
            continue
        if path_exists(meta_path(target)) and read_meta(target).get("stage") != FIT:
            continue  # a recipe made it: it is the user's
        if not gate.is_current():
            with writing(target.parent):
                shared = unnamed_in_both(labelled, inputs.dev, source)
                train = [turn for turn in labelled if turn.dialogue_id not in shared]
                fit_and_write(name, train, target.parent)
                write_trained_on(target.parent, train)
                gate.finish()
    if config.members:
        make_average(config)


def make_average(config: ChoiceConfig) -> None:
    """Make the gate ``average`` of the members, unless it is there of the very same ones: then it keeps its threshold.

    Their thresholds do not count, all else in their cards does.
    """
    folders, target = [config.run / member for member in config.members], config.run / "average" / CARD
    made_of = {"gate": "average", "members": [[str(part), gate_identity(config.run / part)] for part in config.members]}
    average = Artifact(target, FIT, made_of, edited=True)
    if not average.is_current():
        with writing(target.parent):
            AverageGate.from_members(
                target.parent, folders, partial(load_gate, dtype=config.dtype, device=config.device)
            )
            average.finish()
