"""Training of a response generator: counted examples, the trainer, and the end of a run.

Dev's loss per token is measured in full by every rank. At the end the weights are saved, opened again, and must give
the same losses and responses; then the model card is written.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import PreTrainedTokenizerBase, TrainingArguments

from kbtrain.dialogue.responder import CARD, Responder, ResponderCard, ResponsePrompts
from kbtrain.dialogue.responses import reference
from kbtrain.errors import UserError, at
from kbtrain.jsonl import read
from kbtrain.kernels.fp32_output_layer import fp32_output_layer
from kbtrain.models.batching import like_length
from kbtrain.prompts.ragate import dialogue_fingerprint
from kbtrain.provenance import package_versions, peak_rss_mb, write_atomically, write_meta
from kbtrain.records import Hit, Snippet, Split, TurnExample
from kbtrain.training.answer_trainer import IGNORE, AnswerTrainer, Collator, Row, answer_loss
from kbtrain.training.base_trainer import Watch
from kbtrain.training.run import write_run_files

Know = Literal["none", "enriched", "all"]  # which turns read knowledge while training


@dataclass(frozen=True)
class Lesson:
    """A turn, the knowledge that it reads, and the response that is to be learnt."""

    turn: TurnExample
    hits: tuple[Hit, ...]
    response: str


@dataclass(frozen=True)
class DialogueData:
    """``lacking``: what the data does not have, with how many turns of train and dev it concerns."""

    train: tuple[Lesson, ...]
    dev: tuple[Lesson, ...]
    lacking: dict[str, int]


def read_dialogue_data(path: Path, dev: Path | None, snippets: Path | None, know: Know, k: int) -> DialogueData:
    """Raises :class:`UserError` for a file without turns of its split, or a dialogue in both splits."""
    text = {s.id: Hit(s.id, s.title, s.text, 1.0) for s in read(Snippet, snippets)} if snippets else {}
    turns: dict[Split, list[TurnExample]] = {"train": _of(path, "train"), "dev": _of(dev, "dev") if dev else []}
    held_out = {turn.dialogue_id for turn in turns["dev"]}
    both = next((turn.dialogue_id for turn in turns["train"] if turn.dialogue_id in held_out), None)
    if both is not None:
        raise UserError(f"{at(path)}: dialogue '{both}' stands in train and in dev")
    lessons = {split: tuple(_lessons(found, text, know, k)) for split, found in turns.items()}
    for split, source in (("train", path), ("dev", dev)):
        if source and not lessons[split]:  # type: ignore[index]
            raise UserError(f"{source}: no {split} turn has a response to learn")
    return DialogueData(lessons["train"], lessons["dev"], lacking([*turns["train"], *turns["dev"]], lessons, know))


def _of(path: Path, split: Split) -> list[TurnExample]:
    found = [turn for turn in read(TurnExample, path) if turn.split == split]
    if not found:
        raise UserError(f"{at(path)}: no turn of split '{split}' in it")
    return found


def _lessons(turns: Iterable[TurnExample], snippets: Mapping[str, Hit], know: Know, k: int) -> Iterable[Lesson]:
    """Gold snippets first, then the ranker's, at most ``k`` in all."""
    for turn in turns:
        hits: tuple[Hit, ...] = ()
        if know == "all" or (know == "enriched" and turn.label):
            gold = [snippets[name] for name in turn.gold_snippets if name in snippets]
            found = [hit for hit in turn.knowledge or () if hit.passage_id not in turn.gold_snippets]
            hits = tuple([*gold, *found][:k])
        if reference(turn):
            yield Lesson(turn, hits, reference(turn))


def lacking(turns: Sequence[TurnExample], lessons: Mapping[Split, Sequence[Lesson]], know: Know) -> dict[str, int]:
    """Only what is there to be said: names with a count above 0."""
    enriched = [turn for turn in turns if turn.label]
    given = {lesson.turn.id for split in lessons.values() for lesson in split if lesson.hits}
    wanted = [] if know == "none" else enriched if know == "enriched" else turns
    counts = {
        "turns without a response (left out)": sum(not reference(turn) for turn in turns),
        "enriched turns without their enriched text (the original is learnt)": sum(
            not turn.enriched_response for turn in enriched
        ),
        "enriched turns that name no gold snippet": sum(not turn.gold_snippets for turn in enriched),
        "turns that should read knowledge and have none": sum(turn.id not in given for turn in wanted),
    }
    return {name: count for name, count in counts.items() if count}


@dataclass(frozen=True)
class Lengths:
    """Tokens cut from responses and knowledge, and old turns left out, over all rows of both splits."""

    responses_cut: int
    knowledge_cut: int
    turns_cut: int


def lesson_rows(prompts: ResponsePrompts, lessons: Iterable[Lesson]) -> tuple[list[Row], Lengths]:
    """Loss at the response's tokens and the end token only."""
    rows, cuts = [], [0, 0, 0]
    for lesson in lessons:
        prompt = prompts.prompt(lesson.turn, lesson.hits)
        answer, cut = prompts.response(lesson.response)
        # transformers counts a step's labels from the second on, as if they were yet to be shifted: one goes before
        labels = (IGNORE, *answer)
        rows.append(Row((*prompt.ids, *answer), labels, (0,) * len(labels), (1.0,) * len(labels)))
        cuts = [a + b for a, b in zip(cuts, (cut, prompt.knowledge_cut, prompt.turns_cut), strict=True)]
    return rows, Lengths(*cuts)


TOKENS_PER_BATCH = 4096


class DialogueTrainer(AnswerTrainer):
    """``dev``: rows; their mean loss a token is the figure ``loss``."""

    def __init__(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        args: TrainingArguments,
        rows: Sequence[Row],
        dev: Sequence[Row],
        watch: Watch = lambda step, steps, logs: None,
    ) -> None:
        super().__init__(model, tokenizer, args, rows, dev)
        self.dev = dev
        self.watched_by(watch)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Nats a response token, end token counted."""
        with self.accelerator.autocast():
            losses = row_losses(self.inner, self.dev)
        return self.told({"loss": mean_loss(losses, self.dev)}, metric_key_prefix)


def answer_tokens(row: Row) -> int:
    """Tokens of a row that have a label."""
    return sum(label != IGNORE for label in row.labels)


def mean_loss(losses: Sequence[float], rows: Sequence[Row]) -> float:
    """Over all tokens of all rows."""
    return sum(losses) / max(1, sum(map(answer_tokens, rows)))


def row_losses(model: Any, rows: Sequence[Row]) -> list[float]:
    """Each row's summed loss in nats, in their order."""
    losses, was_training = [0.0] * len(rows), model.training
    collator = Collator(0)  # padding is masked: any token will do
    model.train(False)
    with torch.no_grad(), fp32_output_layer(model):
        for batch in like_length([len(row.ids) for row in rows], TOKENS_PER_BATCH):
            inputs = {k: v.to(model.device) for k, v in collator([rows[i] for i in batch]).items()}
            labels, other, weight = (inputs.pop(name) for name in ("labels", "other", "weight"))
            logits = model(**inputs, logits_to_keep=labels.shape[1], use_cache=False).logits
            for i, *one in zip(batch, logits, labels, other, weight, strict=True):
                losses[i] = float(answer_loss(*one))
    model.train(was_training)
    return losses


TOLERANCE = 1e-5  # nats a token, between the trained model and the one opened from its folder
_PROBE, _SHOWN = 24, 4  # rows whose loss is compared, and turns whose responses are

_TEXT = """---
library_name: transformers
base_model: {base}
tags: [dialogue, retrieval-augmented-generation, ragate]
---
# Response generator on {base}
Writes the next system turn of a task-oriented dialogue, with or without knowledge snippets (after KETOD's
SimpleTOD-plus). `data_gen/respond.py` generates with it, `eval/dialogue.py` compares gates by its responses.

- Reads `<|context|> USER: ... {acts}<|knowledge|> ... <|response|>`: at most {max_length} tokens with the response, the
  oldest turns are left out; at most {knowledge_tokens} tokens of knowledge.
- Loss at the response's tokens and its end alone. Knowledge while training: {know}, at most {k} snippets.
- Saved and opened again: losses of {n_probe} rows differ by at most {worst:.1e} nats a token, {n_shown} responses are
  the same.
- Limits: trained on the dialogues named below; other domains and languages were not tried.

## What the data lacks
{lacking}

## Run
{run}

## Versions
{versions}
"""


def finish_dialogue(
    config: Any, responder: Responder, data: DialogueData, rows: Sequence[Row], state: Any, run: Any
) -> str:
    """Save ``responder`` into ``config.output``; ``state`` is transformers' trainer state, ``rows`` those whose loss
    is compared (dev's, or train's without dev). Returns what is to be said of it."""
    output: Path = config.output
    state.save_to_json(str(output / "trainer_state.json"))
    dev = [log["eval_loss"] for log in state.log_history if "eval_loss" in log]
    facts = {**run, "lacking": data.lacking, "train_turns": len(data.train), "dev_turns": len(data.dev)}
    facts |= {"steps": state.global_step, "best_step": state.best_global_step, "peak_rss_mb": peak_rss_mb()}
    facts |= {"dev_loss": min(dev) if dev else None}
    card = ResponderCard(
        base_model=config.model,
        reads=responder.prompts.reads,
        prompt_fingerprint=dialogue_fingerprint(),
        seed=config.seed,
        run=facts,
        versions=package_versions(),
    )
    worst = save_responder(output, responder, card, rows, data.dev or data.train, config)
    write_run_files(output, config, ("train", "dev", "snippets"), state.log_history)
    files = {path for path in (config.train, config.dev, config.snippets) if path}
    write_meta(output / CARD, stage="train", config=facts, inputs=sorted(files))
    if not config.keep_checkpoints:
        shutil.rmtree(output / "checkpoints")
    loss = f"dev loss {min(dev):.3f} nats a token; " if dev else ""
    return (
        f"{len(data.train)} turns, {state.global_step} steps in {run['seconds']} s ({run['compute']}); {loss}"
        f"saved, opened again, losses equal (to {worst:.0e}) and responses the same -> {output}"
    )


def save_responder(
    output: Path, responder: Responder, card: ResponderCard, rows: Sequence[Row], turns: Sequence[Lesson], config: Any
) -> float:
    """Weights (fp32), tokenizer, model card and ``dialogue.json``, which arrives last: a folder that has it is whole.

    Returns the largest difference of a loss (nats a token); raises :class:`UserError` above 1e-5, or if a response
    differs, and leaves the folder without a generator.
    """
    staging = output / "saving"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    model = responder.model.float().eval()
    model.save_pretrained(staging)
    responder.tokenizer.save_pretrained(staging)
    write_atomically(staging / CARD, card.model_dump_json(indent=1) + "\n")
    again = Responder.load(staging, "fp32", model.device.type)
    probe = sorted(rows, key=lambda row: len(row.ids))[:_PROBE]
    one, two = (row_losses(one.model, probe) for one in (responder, again))
    worst = max(abs(a - b) / answer_tokens(row) for a, b, row in zip(one, two, probe, strict=True))
    prompts = [responder.prompts.prompt(lesson.turn, lesson.hits).ids for lesson in turns[:_SHOWN]]
    if not worst <= TOLERANCE or responder.respond(prompts) != again.respond(prompts):
        raise UserError(
            f"{staging}: the saved model differs from the trained one (loss by up to {worst:.2g}, or a response); "
            "nothing was put into the output folder"
        )
    text = _card_text(card, config, worst, len(probe), len(prompts))
    (staging / "README.md").write_text(text, encoding="utf-8")
    for path in sorted(staging.iterdir(), key=lambda p: p.name == CARD):
        os.replace(path, output / path.name)
    staging.rmdir()
    return worst


def _card_text(card: ResponderCard, config: Any, worst: float, n_probe: int, n_shown: int) -> str:
    return _TEXT.format(
        base=card.base_model,
        acts="<|action|> ... " if card.reads.acts else "",
        max_length=card.reads.max_length,
        knowledge_tokens=card.reads.knowledge_tokens,
        know=config.know,
        k=config.k,
        n_probe=n_probe,
        n_shown=n_shown,
        worst=worst,
        lacking="\n".join(f"- {name}: {n}" for name, n in card.run["lacking"].items()) or "Nothing.",
        run=_table(card.run),
        versions=_table(card.versions),
    )


def _table(values: Mapping[str, object]) -> str:
    return "| | |\n|---|---|\n" + "\n".join(f"| {key} | {value} |" for key, value in values.items())
