"""Judges by a model: their settings, their opening, and, before anything is opened, if stored verdicts are theirs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from kbtrain.config import check_counts
from kbtrain.io.artifact import Artifact
from kbtrain.io.provenance import meta_of
from kbtrain.labeling.judges import LLMJudge
from kbtrain.llm.backends import LLMConfig, open_llm
from kbtrain.prompts.kbm import Judged, answer_fingerprint, judge_fingerprint, judge_prompt_facts

if TYPE_CHECKING:
    from kbtrain.labeling.judges_token import TokenJudge

ModelJudge = Literal["token", "llm"]
ANEW = "move or delete this file to judge again"  # remedy for verdicts that were paid for


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
        from kbtrain.labeling.judges_token import TokenJudge

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
