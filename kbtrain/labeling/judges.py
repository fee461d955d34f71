"""Judges of answers: the rules of :mod:`kbtrain.answers.grading`, or a language model.

A judge gives True, False, or None: it abstains, which is counted and never becomes a number.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from kbtrain.answers import grading
from kbtrain.answers.grading import is_correct, is_empty
from kbtrain.answers.mask import gold_texts
from kbtrain.answers.thoughts import without_thought
from kbtrain.config import check_counts
from kbtrain.errors import UserError, at
from kbtrain.io import jsonl
from kbtrain.io.artifact import Artifact
from kbtrain.io.provenance import meta_of
from kbtrain.llm.backends import LLMConfig, open_llm
from kbtrain.llm.base import LLM, AnswerRequest
from kbtrain.metrics.significance import wilson
from kbtrain.prompts.kbm import (
    ClaimsJudgement,
    Judged,
    Judgement,
    answer_fingerprint,
    answer_prompt,
    judge_fingerprint,
    judge_prompt_facts,
    judge_reply,
    render_chat,
)
from kbtrain.questions.reading.rows import plain
from kbtrain.records import Grading, Language, Question

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_REPLY = re.compile(r"^\W*([01])(?!\d|\.\d)")


@dataclass(frozen=True)
class Opinion:
    """``right`` None: the judge abstains. ``p_right`` in [0, 1] where the judge has a probability, else None."""

    right: bool | None
    p_right: float | None = None


class Judge(Protocol):
    """Judge of answers as right or wrong; ``name`` is noted in every result."""

    name: str

    def facts(self) -> dict[str, Any]:
        """Settings that its verdicts depend on."""
        ...

    def judge(self, cases: Sequence[tuple[Question, str]]) -> list[Opinion]:
        """One opinion per (question, answer), in their order."""
        ...


class RuleJudge:
    """One rule for all questions: ``exact``, ``contains``, ``option``; None: each question's own.

    It abstains where ``option`` is asked of a question without options, and from an answer to a yes/no question in
    which no rule can read either.
    """

    def __init__(self, rule: Grading | None = None) -> None:
        self.rule = rule
        self.name = rule or "rules"

    def facts(self) -> dict[str, Any]:
        return {"judge": self.name, "normalisation": grading.NORMALISATION}

    def judge(self, cases: Sequence[tuple[Question, str]]) -> list[Opinion]:
        return [Opinion(self._right(question, answer)) for question, answer in cases]

    def _right(self, question: Question, answer: str) -> bool | None:
        if self.rule is None or self.rule == question.grading:
            return grading.rule_verdict(question, answer)
        if self.rule == "option":
            return None
        by_text = dataclasses.replace(question, grading=self.rule, answers=gold_texts(question))
        return grading.rule_verdict(by_text, answer)


class LLMJudge:
    """Figure 13's prompt, by anything that implements :class:`~kbtrain.llm.base.LLM`; its reply is read as 1 or 0.

    ``votes`` 0: the greedy reply decides. Else that many sampled replies vote; a tie, and a reply that is neither 1
    nor 0, is an abstention (``p_right`` is the share of 1 among the replies that could be read). ``judged``: what it is
    asked about, whose prompt its facts are to tell.
    """

    def __init__(self, llm: LLM, votes: int = 0, judged: Judged = "answers") -> None:
        self.llm = llm
        self.votes = votes
        self.judged: Judged = judged
        self.name = f"llm:{llm.name}"

    def facts(self) -> dict[str, Any]:
        return {"judge": self.name, "votes": self.votes, **self.llm.facts(), **judge_prompt_facts(self.judged)}

    def judge(self, cases: Sequence[tuple[Question, str]]) -> list[Opinion]:
        return self.judge_prompts([judgement(*case, case[0].id, self.judged) for case in cases])

    def judge_prompts(self, questions: Sequence[Question]) -> list[Opinion]:
        """One opinion per question that asks for 1 or 0 itself, in their order."""
        requests = [
            AnswerRequest(dataclasses.replace(question, id=str(i)), "llm", None, self.votes, not self.votes)
            for i, question in enumerate(questions)
        ]
        opinions: dict[int, Opinion] = {}
        for answered in (answered for group in self.llm.answer(requests) for answered in group):
            replies = answered.samples if self.votes else [answered.greedy] if answered.greedy else []
            opinions[int(answered.question_id)] = self._opinion([reply.text for reply in replies])
        return [opinions[i] for i in range(len(questions))]

    def _opinion(self, replies: Sequence[str]) -> Opinion:
        read = [verdict for verdict in map(parse_reply, replies) if verdict is not None]
        if not read:
            return Opinion(None)
        share = sum(read) / len(read)
        return Opinion(None if share == 0.5 else share > 0.5, share if self.votes else None)


TOKENS_PER_BATCH = 8192  # padding counted
Row = tuple[tuple[int, ...], int, int]  # tokens before the reply, the token of "1", the token of "0"


class TokenJudge:
    """Implements :class:`~kbtrain.labeling.judges.Judge` with a transformers model, one forward pass an answer.

    ``p_right`` = p(1) / (p(1) + p(0)). It abstains if that is within ``margin`` of one half (0: only at one half).
    ``judged``: what it is asked about, whose prompt its facts are to tell.
    """

    def __init__(
        self,
        name: str,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        margin: float = 0.0,
        judged: Judged = "answers",
    ) -> None:
        self.name = f"token:{name}"
        self.model = model
        self.tokenizer = tokenizer
        self.margin = margin
        self.judged: Judged = judged

    @classmethod
    def load(
        cls, name: str, dtype: str = "auto", device: str = "auto", margin: float = 0.0, judged: Judged = "answers"
    ) -> TokenJudge:
        """Open a model by embedded name, folder or hub id. Raises :class:`UserError`."""
        from kbtrain.models.load import load_model

        return cls(name, *load_model(name, dtype, device), margin, judged)

    def facts(self) -> dict[str, Any]:
        """Settings that its verdicts depend on."""
        from kbtrain.models.load import name_of

        chat = "chat template" if self.tokenizer.chat_template else "plain"
        prompts = {"prompts": judge_fingerprint(self.tokenizer), "rendering": chat, **judge_prompt_facts(self.judged)}
        return {"judge": self.name, "margin": self.margin, "dtype": name_of(self.model.dtype), **prompts}

    def judge(self, cases: Sequence[tuple[Question, str]]) -> list[Opinion]:
        """One opinion per (question, answer), in their order. Raises :class:`UserError`: the model gives no number."""
        return self.judge_prompts([judgement(question, answer, question.id) for question, answer in cases])

    def judge_prompts(self, questions: Sequence[Question]) -> list[Opinion]:
        """One opinion per question that asks for 1 or 0 itself. Raises as :meth:`judge`."""
        import torch

        from kbtrain.kernels.fp32_output_layer import fp32_output_layer
        from kbtrain.llm.sampler.prefill import prefill

        rows = [self._row(question) for question in questions]
        opinions: dict[int, Opinion] = {}
        for batch in _like_length(rows):
            ids = sorted({token for i in batch for token in rows[i][1:]})
            with torch.inference_mode(), fp32_output_layer(self.model, ids):
                _, logits = prefill(self.model, [rows[i][0] for i in batch])
            for place, i in enumerate(batch):
                yes, no = (float(logits[place, ids.index(token)]) for token in rows[i][1:])
                opinions[i] = self._opinion(float(torch.sigmoid(torch.tensor(yes - no, dtype=torch.float64))))
        return [opinions[i] for i in range(len(rows))]

    def _opinion(self, p_right: float) -> Opinion:
        from kbtrain.models.weights import no_numbers

        if p_right != p_right:
            raise no_numbers(self.model, f"judge {self.name}: the model gives no number; try dtype fp32")
        unsure = abs(p_right - 0.5) <= self.margin
        return Opinion(None if unsure else p_right > 0.5, p_right)

    def _row(self, question: Question) -> Row:
        """Token ids of prompt and reply; the whole text is tokenised, as some tokenizers join the reply with the
        prompt.
        """
        text = render_chat(self.tokenizer, answer_prompt(question, "llm"))
        plain = not self.tokenizer.chat_template
        yes, no = (
            self.tokenizer(text + judge_reply(right), add_special_tokens=plain)["input_ids"] for right in (True, False)
        )
        place = next((i for i, (a, b) in enumerate(zip(yes, no, strict=False)) if a != b), None)
        if not place:
            raise UserError(f"judge {self.name}: the tokenizer does not tell 1 from 0")
        return tuple(yes[:place]), yes[place], no[place]


def _like_length(rows: Sequence[Row]) -> Iterator[list[int]]:
    """Indices in batches of like length, longest first."""
    batch: list[int] = []
    for i in sorted(range(len(rows)), key=lambda i: -len(rows[i][0])):
        if batch and (len(batch) + 1) * len(rows[batch[0]][0]) > TOKENS_PER_BATCH:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def judgement(question: Question, answer: str, name: str, judged: Judged = "answers") -> Question:
    """An answer as a question to a judge; for multiple choice the gold is the option's text."""
    if judged == "claims":
        texts = (answer.strip(), *gold_texts(question))
        return ClaimsJudgement(name, question.text, texts, question.split, question.dataset, question.language)
    return Judgement(name, answer.strip(), gold_texts(question), question.split, question.dataset, question.language)


def parse_reply(text: str) -> bool | None:
    """Verdict in a reply to figure 13: it begins with 1 or 0, behind a thought if there is one; None otherwise ("10",
    "yes", "")."""
    match = _REPLY.match(without_thought(text))
    return None if match is None else match[1] == "1"


ModelJudge = Literal["token", "llm"]
PromptJudge: TypeAlias = "LLMJudge | TokenJudge"  # asked for 1 or 0
JUDGE_AGAIN = "move or delete this file to judge again"  # remedy for verdicts that were paid for


class ModelJudgeConfig(LLMConfig):
    """Settings of a judge by a model; a script's own config says which one it is, and what it is asked about."""

    JUDGED: ClassVar[Judged] = "answers"
    votes: int = Field(0, ge=0, description="llm: replies that vote; 0: the greedy reply decides")
    margin: float = Field(0.0, ge=0, lt=0.5, description="token: abstain if p(1) is within this of one half")

    @property
    def judged(self) -> Judged:
        """Subject of the judge's prompt."""
        return self.JUDGED

    @model_validator(mode="after")
    def _counts_for_its_judge(self) -> ModelJudgeConfig:
        """Refuse what the judge that is asked for would not heed: other verdicts than were wanted would be paid for."""
        check_counts(self, "judge", "llm", "votes")
        check_counts(self, "judge", "token", "margin")
        if getattr(self, "judge", "") == "token" and not self.kind.passes:
            raise ValueError(
                "key 'backend': judge token opens its model here, by transformers; set judge: llm, or leave the key out"
            )
        return self


def open_judge(kind: ModelJudge, config: ModelJudgeConfig) -> TokenJudge | LLMJudge:
    """A judge of the project; its model is the user's choice. Raises :class:`~kbtrain.errors.UserError`."""
    if kind == "token":
        return TokenJudge.load(config.model, config.dtype, config.device, config.margin, config.judged)
    return LLMJudge(open_llm(config), config.votes, config.judged)


def is_judged(verdicts: Artifact, config: ModelJudgeConfig) -> bool:
    """True if verdicts are current whose key has, under "judge", the facts of a judge of the same settings and prompts.
    False also where only the open model can tell: then its facts are to be compared.

    ``auto`` of ``dtype`` and ``device`` stays what it was when the verdicts were made, as in sampling.
    """
    meta = meta_of(verdicts.path)
    key, options = meta.get("key"), meta.get("config")
    if not (isinstance(key, dict) and isinstance(options, dict) and isinstance(key.get("judge"), dict)):
        return False
    same = config.model_dump(mode="json", include={"judge", "votes", "margin", "dtype", "device"})
    if any(options.get(name) != value for name, value in same.items()):
        return False
    facts, words = key["judge"], judge_prompt_facts(config.judged)
    by_same = dataclasses.replace(verdicts, key={**(verdicts.key or {}), "judge": facts})
    if facts.get("judge_prompt") != words.get("judge_prompt") or not by_same.is_current():
        return False
    return bool(facts.get("prompts") == _prompts(same["judge"], config))


def _prompts(kind: ModelJudge, config: ModelJudgeConfig) -> str:
    """Fingerprint of the prompts as the model's part of the judge's facts has it."""
    if kind == "llm" and not config.sees_prompts:
        return answer_fingerprint(None)
    from kbtrain.models.load import load_tokenizer

    tokenizer = load_tokenizer(config.model)
    return judge_fingerprint(tokenizer) if kind == "token" else answer_fingerprint(tokenizer)


Text = Annotated[str, BeforeValidator(plain)]  # a number is read as people write it


@dataclass(frozen=True)
class LabelledAnswer:
    """One line of the file: an answer, the gold answers, and whether a person calls it right."""

    id: Text
    answers: tuple[Text, ...]
    prediction: Text
    right: bool
    question: str = ""
    language: Language = "en"
    grading: Grading = "contains"
    options: tuple[Text, ...] = ()

    def as_question(self) -> Question:
        form: Literal["open", "choice"] = "choice" if self.options else "open"
        return Question(
            self.id, self.question or self.id, self.answers, "dev", "labelled", self.language, form, self.grading,
            self.options,
        )  # fmt: skip


@dataclass(frozen=True)
class Agreement:
    """One judge against people. Accuracy and kappa are over the answers it judged; ``n_abstained`` is listed beside
    them.

    ``accuracy_all`` counts every abstention as a disagreement. ``kappa`` (Cohen) is None if both sides know one class
    only. ``false_right``: the judge says right, people say wrong.
    """

    judge: str
    n: int
    n_abstained: int
    accuracy: float | None
    accuracy_low: float | None
    accuracy_high: float | None
    accuracy_all: float
    kappa: float | None
    false_right: int
    false_wrong: int


def read_labelled(path: Path) -> list[LabelledAnswer]:
    """Raises :class:`UserError` for a broken record, an id twice, no record, or a record without a gold answer."""
    by_id: dict[str, LabelledAnswer] = {}
    for number, row in jsonl.read_numbered(LabelledAnswer, path):
        if row.id in by_id:
            raise UserError(f"{at(path, number, 'id')}: duplicate '{row.id}'")
        if not row.answers or any(map(is_empty, row.answers)):
            raise UserError(f"{at(path, number, 'answers')}: no answer, or an empty one")
        by_id[row.id] = row
    if not by_id:
        raise UserError(f"{at(path)}: no labelled answers in it")
    return list(by_id.values())


def agreement(judge: Judge, rows: Sequence[LabelledAnswer]) -> Agreement:
    """Let a judge grade what people have graded; multiple choice is graded by its own rule, as in labels."""
    cases = [(row.as_question(), row.prediction) for row in rows]
    judged = iter(judge.judge([case for case in cases if case[0].grading != "option"]))
    opinions = [is_correct(*case) if case[0].grading == "option" else next(judged).right for case in cases]
    pairs = [(row.right, verdict) for row, verdict in zip(rows, opinions, strict=True) if verdict is not None]
    same = sum(human == verdict for human, verdict in pairs)
    low, high = wilson(same, len(pairs)) if pairs else (None, None)
    return Agreement(
        judge=judge.name,
        n=len(rows),
        n_abstained=len(rows) - len(pairs),
        accuracy=same / len(pairs) if pairs else None,
        accuracy_low=low,
        accuracy_high=high,
        accuracy_all=same / len(rows),
        kappa=_kappa(pairs),
        false_right=sum(verdict and not human for human, verdict in pairs),
        false_wrong=sum(human and not verdict for human, verdict in pairs),
    )


def _kappa(pairs: Sequence[tuple[bool, bool]]) -> float | None:
    """Undefined (0 / 0) where both sides give the same single class throughout."""
    if len({value for pair in pairs for value in pair}) < 2:
        return None
    from sklearn.metrics import cohen_kappa_score

    return float(cohen_kappa_score(*zip(*pairs, strict=True)))


def line(a: Agreement) -> str:
    """One line for a terminal."""
    if a.accuracy is None:
        return f"{a.judge}: abstained from all {a.n} labelled answers"
    kappa = "undefined" if a.kappa is None else f"{a.kappa:.3f}"
    return (
        f"{a.judge}: agrees with people in {a.accuracy:.3f} [{a.accuracy_low:.3f}, {a.accuracy_high:.3f}] "
        f"of {a.n - a.n_abstained} labelled answers, kappa {kappa}; {a.false_right} wrong ones called right, "
        f"{a.false_wrong} right ones called wrong; abstained from {a.n_abstained} of {a.n}"
    )
