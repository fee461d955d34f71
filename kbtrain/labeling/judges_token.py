"""A judge that can only say 1 or 0: figure 13's prompt, decided by the probabilities of these two tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from kbtrain.errors import UserError
from kbtrain.kernels.fp32_output_layer import fp32_output_layer
from kbtrain.labeling.judges import Opinion, judgement
from kbtrain.llm.sampler.prefill import prefill
from kbtrain.models.weights import no_numbers
from kbtrain.prompts.kbm import (
    Judged,
    answer_prompt,
    judge_fingerprint,
    judge_prompt_facts,
    judge_reply,
    render_chat,
)
from kbtrain.records import Question

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

    @torch.inference_mode()
    def judge_prompts(self, questions: Sequence[Question]) -> list[Opinion]:
        """One opinion per question that asks for 1 or 0 itself. Raises as :meth:`judge`."""
        rows = [self._row(question) for question in questions]
        opinions: dict[int, Opinion] = {}
        for batch in _like_length(rows):
            ids = sorted({token for i in batch for token in rows[i][1:]})
            with fp32_output_layer(self.model, ids):
                _, logits = prefill(self.model, [rows[i][0] for i in batch])
            for place, i in enumerate(batch):
                yes, no = (float(logits[place, ids.index(token)]) for token in rows[i][1:])
                opinions[i] = self._opinion(float(torch.sigmoid(torch.tensor(yes - no, dtype=torch.float64))))
        return [opinions[i] for i in range(len(rows))]

    def _opinion(self, p_right: float) -> Opinion:
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
