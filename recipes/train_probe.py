"""Train a probe: linear heads on the answering model's hidden states, at the last token of its prompt.

Reads examples made by data_gen/build.py, and runs the answering model: one prefill for each question, stored in
--states, so that another method or key is fitted in seconds. Cross-validation on the training questions chooses layers
and penalties. Writes a gate folder (kbtrain.load_gate opens it) of some kilobytes; a finished folder stays unchanged.

The prompts are those of the sampling, with your own templates if the examples were made with such.

With --answered-by, for models behind an API, the model is a small one that only reads the questions, and the labels
describe another model's answers. The card says so. A decision costs one pass of the reader.

--keys may also name time_sensitive, as of UAR's heads (arXiv 2406.12534), if the data set has FreshQA's kinds of
facts. UAR's self-knowledge is mastery with --labels hard.

With condition draft the model also begins its answer, and the probe also reads the hidden states at the tokens of this
draft: they say more than those of the prompt. The gate decides after the draft of at most --tokens tokens. With
condition rag it reads question and passages: it decides after the search, and drops the passages that mislead.

Examples:
  kbtrain run train_probe --config probe_smollm2 --train runs/demo/examples/train.jsonl \\
      --dev runs/demo/examples/dev.jsonl --states runs/demo/states/llm --output runs/demo/probe
  kbtrain run train_probe --model Qwen/Qwen2-7B-Instruct --method logistic --labels hard \\
      --train runs/qwen2/examples/train.jsonl --states runs/qwen2/states/llm --output runs/qwen2/probe
  kbtrain run train_probe --config probe_smollm2 --train runs/demo/examples/train.jsonl --condition rag \\
      --evidence runs/demo/evidence.jsonl --output runs/demo/probe_after --dry-run
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from kbtrain.config import check_counts, check_each_once, run_script
from kbtrain.gate.card import CARD
from kbtrain.gates.probe.gate import DRAFT_TOKENS, Asked
from kbtrain.gates.probe.head import Method
from kbtrain.io.provenance import file_sha256
from kbtrain.prompts.kbm import DEFAULT_KEYS
from kbtrain.prompts.own import OwnPrompts
from kbtrain.records import DtypeName, GateExample, Target
from kbtrain.retrieval.base import attach_hits
from kbtrain.training.config import RecipeConfig
from kbtrain.training.data import Labels, label_rule, own_prompts, read_data
from kbtrain.training.recipe import Recipe

if TYPE_CHECKING:
    from kbtrain.gates.probe.gate import ProbeCard, Reader
    from kbtrain.gates.probe.states import StateStore
    from kbtrain.gates.probe.train import FittedHead


class TrainProbeConfig(RecipeConfig):
    not_part_of_a_run = RecipeConfig.not_part_of_a_run | {"states", "evidence"}

    model: str = Field(description="the model that answers: embedded name, local folder or hub id")
    answered_by: str | None = Field(
        None, description="the model whose answers made the labels, if model only reads the question; null: model"
    )
    dev: Path | None = Field(None, description="dev examples (JSONL), only for figures")
    states: Path | None = Field(None, description="folder where hidden states are stored; null: OUTPUT/states")
    condition: Asked = Field("llm", description="read the plain prompt, or also a draft (draft) or the passages (rag)")
    evidence: Path | None = Field(None, description="condition rag: evidence.jsonl of these questions")
    tokens: int = Field(DRAFT_TOKENS, ge=1, le=64, description="condition draft: longest draft, in tokens")
    keys: tuple[Target, ...] = Field(DEFAULT_KEYS, description="labels that get a head, in this order")
    labels: Labels = Field("soft", description="soft: the sampled shares; hard: True/False")
    method: Method = Field("ridge", description="ridge or logistic")
    average: int | None = Field(
        None,
        ge=1,
        description="average the heads of the best layers, this number of them; null: 1, 2, 4 or 8 by cross-validation",
    )
    layers: tuple[int, ...] | None = Field(None, min_length=1, description="layers to try, from 0; null: all")
    dtype: DtypeName = Field("auto", description="number format of scores; auto: fp32 on a CPU, else the model's own")

    @model_validator(mode="after")
    def _possible(self) -> TrainProbeConfig:
        check_counts(self, "condition", "draft", "tokens")
        check_counts(self, "condition", "rag", "evidence")
        if self.condition == "rag" and self.evidence is None:
            raise ValueError("key 'evidence': condition rag reads passages; name RUN/evidence.jsonl")
        check_each_once("keys", self.keys)
        return self


def main(config: TrainProbeConfig) -> None:
    recipe = Recipe("train_probe", config)
    from kbtrain.gates.probe.train import HeadSettings, ProbeEnding, fit, used_examples

    data, found = read_data(config.train, config.dev, config.keys, config.labels), {}
    if config.evidence is not None:
        train, dev = (tuple(attach_hits(part, config.evidence)) for part in (data.train, data.dev))
        data, found = replace(data, train=train, dev=dev), {"evidence_sha256": file_sha256(config.evidence)}
    rule = label_rule(config.train)
    prompts_own = own_prompts(rule, config.train)
    examples, draft = used_examples([*data.train, *data.dev]), config.condition == "draft"
    if config.dry_run:
        passes = f"{len(examples)} {'drafts' if draft else 'prefills'} of {config.model} at most"
        return recipe.say(f"{passes}, {len(config.keys)} heads; nothing is loaded")
    if not recipe.claim(CARD, **found):
        return None
    from kbtrain.gates.probe.gate import DraftProbe, Probe
    from kbtrain.runtime.progress import progress_bar

    taught = used_examples(data.train)
    reader, store, dtype = states_of(recipe, config, taught, prompts_own)
    with progress_bar(total=len(config.keys), desc="heads", unit="heads") as bar:
        settings = HeadSettings(config.keys, config.labels, config.method, config.average, config.layers)
        heads = fit(reader, store, taught, settings, bar.update)
    fitted = {key: head_fit.head for key, head_fit in heads.items()}
    gate = (DraftProbe if draft else Probe)(reader, fitted, config.method)
    card = card_of(config, reader, store.facts["model"], dtype, heads).model_copy(update={"label_rule": rule})
    run = recipe.facts(states_dtype=store.facts["dtype"])
    recipe.say(ProbeEnding(config, gate, card, data, heads, run).finish())
    return None


def states_of(
    recipe: Recipe, config: TrainProbeConfig, taught: Sequence[GateExample], prompts_own: OwnPrompts | None
) -> tuple[Reader, StateStore, str]:
    """The reader of the model's states, a store that has those of all training questions, and the scores' format."""
    from kbtrain.gates.probe.gate import Reader, dtype_in_use, state_facts
    from kbtrain.gates.probe.states import StateStore, prompt_key, read_all, stored_dtype
    from kbtrain.models.adapters import base_fingerprint
    from kbtrain.models.load import load_model, name_of

    model, tokenizer = load_model(config.model, dtype_in_use(config.dtype, recipe.device), recipe.device)
    reader = Reader(model, tokenizer, config.condition, prompts_own, config.tokens)
    dtype, folder = recipe.compute(lambda: name_of(model.dtype)), config.states or config.output / "states"
    states_dtype = stored_dtype(folder) or dtype  # those of the answers' own passes are in the answers' format
    store = StateStore(folder, state_facts(base_fingerprint(config.model), states_dtype, config.model) | reader.facts)
    extractor, prompts = reader, reader.prompts(taught)
    if states_dtype != dtype and any(prompt_key(ids) not in store for ids in prompts):
        reader_model = load_model(config.model, states_dtype, recipe.device)
        extractor = Reader(*reader_model, config.condition, prompts_own, config.tokens)
    read_all(store.extract(extractor.model, prompts, extractor.read), len(taught))
    return reader, store, dtype


def card_of(
    config: TrainProbeConfig, reader: Reader, fingerprint: str, dtype: str, heads: Mapping[Target, FittedHead]
) -> ProbeCard:
    """The card of a gate with these heads, without the rule of its labels and the run."""
    from kbtrain.gates.probe.gate import DraftProbeCard, ProbeCard
    from kbtrain.prompts.own import asked_fingerprint

    draft = config.condition == "draft"
    return (DraftProbeCard if draft else ProbeCard)(
        base_model=config.model,
        base_fingerprint=fingerprint,
        dtype=dtype,
        prompt_fingerprint=asked_fingerprint(reader.tokenizer, reader.own),
        heads={key: head_fit.layers for key, head_fit in heads.items()},
        **({"tokens": config.tokens} if draft else {}),
        **config.model_dump(include={"answered_by", "condition", "method", "labels", "keys"}),
    )


if __name__ == "__main__":
    run_script(main, TrainProbeConfig, __doc__)
