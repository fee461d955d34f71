"""Training of a response generator: counted examples, the trainer, and the end of a run.

Dev's loss per token is measured in full by every rank. At the end the parameters are saved, opened again, and must give
the same losses and responses; then the model card is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from kbtrain.errors import UserError, at
from kbtrain.io.jsonl import read
from kbtrain.io.provenance import package_versions, peak_rss_mb, write_atomically
from kbtrain.models.batching import like_length
from kbtrain.models.forward import fp32_output_layer
from kbtrain.records import Hit, Snippet, Split, TurnExample
from kbtrain.training.answer_trainer import IGNORE, AnswerTrainer, Collator, TrainingRow, answer_loss
from kbtrain.training.config import TrainingConfig
from kbtrain.training.data import check_apart
from kbtrain.training.finish import Ending, steps_of
from kbtrain.training.model_card import table, training_page
from ragate_responses.responder import CARD, Responder, ResponderCard, ResponsePrompts, dialogue_fingerprint
from ragate_responses.responses import reference

if TYPE_CHECKING:
    from transformers import TrainerState

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


def read_dialogue_data(
    path: Path, dev: Path | None, snippets: Path | None, know: Know, k: int, act_values: bool = False
) -> DialogueData:
    """Raises :class:`UserError` for a file without turns of its split, a dialogue in both splits, or turns whose acts
    have no slots and values where they are to be read."""
    text = {s.id: Hit(s.id, s.title, s.text, 1.0) for s in read(Snippet, snippets)} if snippets else {}
    turns: dict[Split, list[TurnExample]] = {
        "train": _read_split(path, "train"),
        "dev": _read_split(dev, "dev") if dev else [],
    }
    if act_values and not any(turn.response_actions for turn in turns["train"]):
        raise UserError(
            f"{at(path)}: no turn has 'response_actions'; collect the turns again (data_gen/collect_turns.py)"
        )
    check_apart(turns["train"], turns["dev"], path, path)
    lessons = {split: tuple(_lessons(split_turns, text, know, k)) for split, split_turns in turns.items()}
    for split, source in (("train", path), ("dev", dev)):
        if source and not lessons[split]:  # type: ignore[index]
            raise UserError(f"{source}: no {split} turn has a response to learn")
    return DialogueData(lessons["train"], lessons["dev"], lacking([*turns["train"], *turns["dev"]], lessons, know))


def _read_split(path: Path, split: Split) -> list[TurnExample]:
    turns = [turn for turn in read(TurnExample, path) if turn.split == split]
    if not turns:
        raise UserError(f"{at(path)}: no turn of split '{split}' in it")
    return turns


def _lessons(turns: Iterable[TurnExample], snippets: Mapping[str, Hit], know: Know, k: int) -> Iterable[Lesson]:
    """Gold snippets first, then the ranker's, at most ``k`` in all."""
    for turn in turns:
        hits: tuple[Hit, ...] = ()
        if know == "all" or (know == "enriched" and turn.label):
            gold = [snippets[name] for name in turn.gold_snippets if name in snippets]
            ranked = [hit for hit in turn.knowledge or () if hit.passage_id not in turn.gold_snippets]
            hits = tuple([*gold, *ranked][:k])
        if reference(turn):
            yield Lesson(turn, hits, reference(turn))


def lacking(turns: Sequence[TurnExample], lessons: Mapping[Split, Sequence[Lesson]], know: Know) -> dict[str, int]:
    """Counts above 0 of missing responses and knowledge, by their description."""
    enriched = [turn for turn in turns if turn.label]
    with_knowledge = {lesson.turn.id for split in lessons.values() for lesson in split if lesson.hits}
    expected = [] if know == "none" else enriched if know == "enriched" else turns
    counts = {
        "turns without a response (skipped)": sum(not reference(turn) for turn in turns),
        "enriched turns without their enriched text (the original is learnt)": sum(
            not turn.enriched_response for turn in enriched
        ),
        "enriched turns that name no gold snippet": sum(not turn.gold_snippets for turn in enriched),
        "turns that should read knowledge and have none": sum(turn.id not in with_knowledge for turn in expected),
    }
    return {name: count for name, count in counts.items() if count}


@dataclass(frozen=True)
class Cut:
    """Tokens cut from responses and knowledge, and old turns skipped, over all rows."""

    responses_cut: int
    knowledge_cut: int
    turns_cut: int

    def __str__(self) -> str:
        return (
            f"cut: {self.turns_cut} old turns, {self.knowledge_cut} tokens of knowledge, {self.responses_cut} of "
            "responses"
        )


def lesson_rows(prompts: ResponsePrompts, lessons: Iterable[Lesson]) -> tuple[list[TrainingRow], Cut]:
    """Loss at the response's tokens and the end token only."""
    rows, cuts = [], [0, 0, 0]
    for lesson in lessons:
        prompt = prompts.prompt(lesson.turn, lesson.hits)
        answer, cut = prompts.response(lesson.response)
        rows.append(TrainingRow((*prompt.ids, *answer), answer, (0,) * len(answer), (1.0,) * len(answer)))
        cuts = [a + b for a, b in zip(cuts, (cut, prompt.knowledge_cut, prompt.turns_cut), strict=True)]
    return rows, Cut(*cuts)


TOKENS_PER_BATCH = 4096


class DialogueTrainer(AnswerTrainer):
    """``dev``: rows; their mean loss a token is the figure ``loss``."""

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Nats a response token, end token counted."""
        with self.accelerator.autocast():
            losses = row_losses(self.inner, self.dev)
        return self.log_dev_metrics({"loss": mean_loss(losses, self.dev)}, metric_key_prefix)


def answer_tokens(row: TrainingRow) -> int:
    """Tokens of a row that have a label."""
    return sum(label != IGNORE for label in row.labels)


def mean_loss(losses: Sequence[float], rows: Sequence[TrainingRow]) -> float:
    """Over all tokens of all rows."""
    return sum(losses) / max(1, sum(map(answer_tokens, rows)))


def row_losses(model: Any, rows: Sequence[TrainingRow]) -> list[float]:
    """Each row's summed loss in nats, in their order."""
    losses, was_training = [0.0] * len(rows), model.training
    collator = Collator(0)  # padding is masked: any token will do
    model.train(False)
    with torch.no_grad(), fp32_output_layer(model):
        for batch in like_length([len(row.ids) for row in rows], TOKENS_PER_BATCH):
            inputs = {k: v.to(model.device) for k, v in collator([rows[i] for i in batch]).items()}
            labels, other_labels, weight = (inputs.pop(name) for name in ("labels", "other", "weight"))
            logits = model(**inputs, logits_to_keep=labels.shape[1], use_cache=False).logits
            for i, *inputs_of_row in zip(batch, logits, labels, other_labels, weight, strict=True):
                losses[i] = float(answer_loss(*inputs_of_row))
    model.train(was_training)
    return losses


TOLERANCE = 1e-5  # nats a token, between the trained model and the one opened from its folder
_PROBE, _SHOWN = 24, 4  # rows whose loss is compared, and turns whose responses are


class ResponderEnding(Ending):
    """The end of a response generator's training; weights are saved in fp32.

    ``rows`` are those whose loss is compared: dev's, or train's without dev.
    """

    data = ("train", "dev", "snippets")
    last = CARD
    compared = "responses the same, losses equal"
    tolerance = TOLERANCE

    def __init__(
        self,
        config: TrainingConfig,
        responder: Responder,
        data: DialogueData,
        rows: Sequence[TrainingRow],
        state: TrainerState,
        run: Mapping[str, Any],
    ) -> None:
        super().__init__(config, state)
        dev = [log["eval_loss"] for log in state.log_history if "eval_loss" in log]
        self.facts = {
            "lacking": data.lacking,
            "train_turns": len(data.train),
            "dev_turns": len(data.dev),
            **steps_of(state, config.epochs),
            "dev_loss": min(dev) if dev else None,
        }
        self.figures = {"loss": min(dev)} if dev else {}
        self.run = {**run, **self.facts, "peak_rss_mb": peak_rss_mb()}
        self.card = ResponderCard(
            base_model=config.model,
            reads=responder.prompts.reads,
            prompt_fingerprint=dialogue_fingerprint(),
            seed=config.seed,
            run=self.run,
            versions=package_versions(),
        )
        self.trained_on = f"{len(data.train)} turns"
        self.responder, self.model = responder, responder.model.float().eval()
        self.rows = sorted(rows, key=lambda row: len(row.ids))[:_PROBE]
        lessons = (data.dev or data.train)[:_SHOWN]
        self.prompts = [responder.prompts.prompt(lesson.turn, lesson.hits).ids for lesson in lessons]

    def write(self, folder: Path) -> None:
        """As in the base class."""
        self.model.save_pretrained(folder)
        self.responder.tokenizer.save_pretrained(folder)
        write_atomically(folder / CARD, self.card.model_dump_json(indent=1) + "\n")

    def difference(self, folder: Path) -> float:
        """As in the base class, of losses. Raises :class:`UserError` where a response differs."""
        reloaded = Responder.load(folder, "fp32", self.model.device.type)
        if self.responder.respond(self.prompts) != reloaded.respond(self.prompts):
            raise UserError(f"{folder}: the saved model responds differently from the trained one; nothing was kept")
        losses = zip(row_losses(self.model, self.rows), row_losses(reloaded.model, self.rows), self.rows, strict=True)
        return max(abs(first - second) / answer_tokens(row) for first, second, row in losses)

    def readme(self, worst: float) -> str:
        """As in the base class."""
        checked = f"{len(self.rows)} rows: a loss (nats a token) differs by at most {worst:.1e}"
        return _page(self.card, self.facts, checked, len(self.prompts))


def _page(card: ResponderCard, facts: Mapping[str, Any], checked: str, n_shown: int) -> str:
    reads, loss = card.reads, facts["dev_loss"]
    acts = ("<|action|> acts with slots and values " if reads.act_values else "<|action|> ... ") if reads.acts else ""
    lacking = "\n".join(f"- {k}: {n}" for k, n in facts["lacking"].items()) or "Nothing."
    on_dev = "No dev turns were given." if loss is None else table({"loss (nats a token)": f"{loss:.4f}"})
    return training_page(
        title=f"Response generator on {card.base_model}",
        what="Writes the next system turn of a task-oriented dialogue, with or without knowledge snippets (after "
        "KETOD's SimpleTOD-plus).",
        use="""from ragate_responses.responder import Responder

responder = Responder.load(".")  # this folder; `studies/respond.py` generates with it
turn = TurnExample("t1", "d1", "test", 1, (Utterance("USER", "Tell me about the museum."),))
print(responder.respond([responder.prompts.prompt(turn).ids])[0].text)""",
        points=(
            f"Reads `<|context|> USER: ... {acts}<|knowledge|> ... <|response|>`: at most {reads.max_length} tokens "
            f"with the response, the oldest turns are skipped; at most {reads.knowledge_tokens} tokens of knowledge.",
            "Loss at the response's tokens and its end alone. Knowledge while training: "
            f"{card.run['know']}, at most {card.run['k']} snippets.",
            f"{n_shown} responses of the saved model are those of the trained one.",
        ),
        limits="trained on the dialogues named below; other domains and languages were not tried.",
        dev={"On dev": on_dev, "What the data lacks": lacking},
        checked=checked,
        threshold="None: it generates; `studies/ragate_tables.py` compares gates by its responses.",
        run=card.run,
        versions=card.versions,
        base=card.base_model,
    )
