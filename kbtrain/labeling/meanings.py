"""Groups of answers that say the same, by a model: for answers of several sentences, which no string rule compares.

Each answer is compared with the first one of every group, and joins the first group that says the same (semantic
entropy's grouping: Kuhn et al. 2023, arXiv 2302.09664). Answers that the grading rule calls the same need no model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from kbtrain.answers import grading
from kbtrain.errors import UserError
from kbtrain.io.store import SampleStore
from kbtrain.labeling.change import MeaningGroups
from kbtrain.labeling.judges import LLMJudge
from kbtrain.labeling.verdicts import distinct_answers
from kbtrain.prompts.kbm import AnswerPair, query_text
from kbtrain.records import Question

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Pair = tuple[Question, str, str]


class PairJudge(Protocol):
    """A model that says if two answers to a question say the same."""

    name: str

    def facts(self) -> dict[str, Any]:
        """Settings that its verdicts depend on."""
        ...

    def same(self, pairs: Sequence[Pair]) -> list[bool | None]:
        """A verdict on each pair; None: it abstains."""
        ...


class LLMPairJudge:
    """A language model that is asked for 1 or 0."""

    def __init__(self, judge: LLMJudge) -> None:
        self.judge, self.name = judge, judge.name

    def facts(self) -> dict[str, Any]:
        return self.judge.facts()

    def same(self, pairs: Sequence[Pair]) -> list[bool | None]:
        prompts = [
            AnswerPair(q.id, q.text, (first.strip(), second.strip()), q.split, q.dataset, q.language, q.form, q.grading,
                       q.options)
            for q, first, second in pairs
        ]  # fmt: skip
        return [opinion.right for opinion in self.judge.judge_prompts(prompts)]


class EntailmentJudge:
    """A local classifier of entailment: two answers say the same where each, behind its question, entails the other."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
        self.model, self.tokenizer, self.name = model, tokenizer, f"entailment:{name}"
        self.label = entailment_label(dict(model.config.id2label or {}), name)

    @classmethod
    def load(cls, name: str, dtype: str, device: str) -> EntailmentJudge:
        """Raises :class:`UserError` for a model that cannot be opened, or names no class of entailment."""
        from kbtrain.models.adapters import open_encoder

        return cls(*open_encoder(name, dtype, device), name)

    def facts(self) -> dict[str, Any]:
        return {"judge": self.name, "rule": "each entails the other"}

    def same(self, pairs: Sequence[Pair]) -> list[bool | None]:
        texts = [[f"{query_text(question)} {answer.strip()}" for answer in both] for question, *both in pairs]
        forward, back = (self._entailed([pair[::step] for pair in texts]) for step in (1, -1))
        return [first and second for first, second in zip(forward, back, strict=True)]

    def _entailed(self, texts: Sequence[Sequence[str]]) -> list[bool]:
        import torch

        if not texts:
            return []
        first, second = ([pair[place] for pair in texts] for place in (0, 1))
        inputs = self.tokenizer(first, second, padding=True, truncation="longest_first", return_tensors="pt")
        with torch.inference_mode():
            logits = self.model(**inputs.to(self.model.device)).logits
        return [int(place) == self.label for place in logits.argmax(dim=-1)]


def entailment_label(names: Mapping[Any, str], model: str) -> int:
    """The class of entailment by its name. Raises :class:`UserError` where none, or several, are named so."""
    places = [place for place, name in names.items() if name.casefold() in ("entailment", "entail", "entails")]
    if len(places) != 1:
        classes = ", ".join(map(str, names.values()))
        raise UserError(
            f"model '{model}': no class 'entailment' among its classes ({classes}); give a model of entailment"
        )
    return int(places[0])


@dataclass
class _Question:
    """A question whose answers are being grouped: the answers left, and the first answer of each group."""

    question: Question
    left: list[tuple[str, str]]  # normalised answer, its first spelling
    group: dict[str, int] = field(default_factory=dict)
    firsts: list[str] = field(default_factory=list)
    next_group: int = 0  # to compare the first of ``left`` with

    def pair(self) -> Pair | None:
        """The next pair for the model; None where all answers have a group."""
        while self.left:
            key, text = self.left[0]
            places = range(len(self.firsts)) if self.next_group == 0 else ()
            same = next((i for i in places if grading.is_same(self.question, text, self.firsts[i])), None)
            if same is not None:
                self._assign(key, same)
            elif self.next_group < len(self.firsts):
                return self.question, self.firsts[self.next_group], text
            else:
                self.firsts.append(text)
                self._assign(key, len(self.firsts) - 1)
        return None

    def note(self, same: bool | None) -> None:
        """The model's verdict on :meth:`pair`; an abstention counts as different."""
        if same:
            self._assign(self.left[0][0], self.next_group)
        else:
            self.next_group += 1

    def _assign(self, key: str, group: int) -> None:
        self.group[key] = group
        self.left.pop(0)
        self.next_group = 0


@dataclass
class PairCounts:
    """Pairs that a model compared, and those on which it abstained."""

    pairs: int = 0
    abstained: int = 0


def meaning_groups(
    store: SampleStore, run: str, questions: Iterable[Question], judge: PairJudge, batch: int, counts: PairCounts
) -> Iterator[MeaningGroups]:
    """Groups of each question's distinct answers, in the questions' order; those of ``batch`` questions at once."""
    waiting: list[_Question] = []
    for question in questions:
        answers = {} if question.grading == "option" else distinct_answers(store, run, question)
        waiting.append(_Question(question, list(answers.items())))
        if len(waiting) == batch:
            yield from _grouped(waiting, judge, counts)
            waiting = []
    yield from _grouped(waiting, judge, counts)


def _grouped(waiting: Sequence[_Question], judge: PairJudge, counts: PairCounts) -> Iterator[MeaningGroups]:
    while open_pairs := [(state, pair) for state in waiting if (pair := state.pair()) is not None]:
        for (state, _), same in zip(open_pairs, judge.same([pair for _, pair in open_pairs]), strict=True):
            counts.pairs += 1
            counts.abstained += same is None
            state.note(same)
    for state in waiting:
        yield MeaningGroups(state.question.id, state.group)
