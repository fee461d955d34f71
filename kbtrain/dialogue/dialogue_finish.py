"""The end of a response generator's training: weights to disk, opened again, same losses and responses; its card."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kbtrain.dialogue.dialogue_trainer import answer_tokens, row_losses
from kbtrain.dialogue.responder import CARD, Responder, ResponderCard
from kbtrain.dialogue.train_responder import DialogueData, Lesson
from kbtrain.errors import UserError
from kbtrain.prompts.dialogue_prompts import dialogue_fingerprint
from kbtrain.provenance import package_versions, peak_rss_mb, write_atomically, write_meta
from kbtrain.training.rows import Row
from kbtrain.training.run_files import write_run_files

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
