"""The gate ``decision_model``: a server is asked whether answering needs retrieval, told what the search covers.

It speaks OpenAI's Decisions (``/v1/decisions``) and System One (``/v1/systemone``), which kbtrain's own server answers
too, or asks a chat model, whose yes and no are read from the log-probabilities of the reply's first token. Nothing is
trained: it is the rival that needs no data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field

from kbtrain.errors import UserError
from kbtrain.gate.card import GateCard
from kbtrain.gates.registry import QUESTION, Kind
from kbtrain.gates.server_gate import AskedServer, ServerGate
from kbtrain.llm.dialect import Server
from kbtrain.net import Retry
from kbtrain.prompts.kbm import INSTRUCTIONS
from kbtrain.records import GateExample

Route = Literal["decisions", "systemone", "chat"]
NAME = "needs_retrieval"  # of the question, in the routes that name questions
TOP = 20  # log-probabilities of a chat model's first token
_CHAT = "{instructions}\nAnswer yes or no, nothing else.\n\nMessage: {question}"


class DecisionServer(AskedServer):
    """What it is asked by."""

    route: Route = Field("chat", description="decisions, systemone, or chat: a chat model's yes or no")


class DecisionModelCard(GateCard):
    """The content of ``gate.json``. ``about``: what the search covers, in a sentence; empty: the model is not told."""

    USES_MODEL = False
    ABSENT = frozenset({"base_model"})
    kind: Literal["decision_model"] = "decision_model"
    server: DecisionServer
    about: str = ""

    def answering_models(self) -> tuple[str, ...]:
        return (self.server.name,)

    @property
    def instructions(self) -> str:
        """The question about each message."""
        return f"{INSTRUCTIONS} The search covers: {self.about}" if self.about else INSTRUCTIONS


@dataclass(frozen=True)
class _RoutedServer(Server):
    route: Route = "chat"

    @property
    def path(self) -> str:
        return super().path if self.route == "chat" else self.route

    @property
    def holds(self) -> str:
        return super().holds if self.route == "chat" else "answers"


class DecisionModel(ServerGate):
    """Score = the server's probability in [0, 1] that answering needs retrieval; 1 where it refuses or says neither.

    ``spent`` counts requests, ``refused`` ones, and replies of a chat model that say ``neither`` yes nor no.
    """

    name = "decision_model"
    unit = "probability"

    def __init__(self, card: DecisionModelCard) -> None:
        asked = card.server
        self.card: DecisionModelCard = card
        self.server = _RoutedServer(
            url=asked.url, model=asked.name, chat=True, key_env=asked.key_env, timeout=asked.timeout,
            retry=Retry(tries=asked.tries), route=asked.route,
        )  # fmt: skip

    @classmethod
    def load(cls, folder: Path | str, dtype: str = "auto", device: str = "auto") -> Self:
        """Open a folder; the server is first asked with the first question."""
        return cls(DecisionModelCard.read(folder))

    def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
        """Raises :class:`UserError` where the server answers none of them, or in another form."""
        return [self._probability(reply) for reply in self.replies([self._body(e.question) for e in examples])]

    def _body(self, question: str) -> dict[str, Any]:
        asked = self.card.server
        if asked.route == "decisions":
            predicate = {"type": "predicate", "name": NAME, "instructions": self.card.instructions}
            return {"model": asked.name, "input": question, "questions": [predicate]}
        if asked.route == "systemone":
            noul = {"type": "noul", "instructions": self.card.instructions}
            return {"model": asked.name, "state": question, "questions": {NAME: noul}}
        prompt = _CHAT.format(instructions=self.card.instructions, question=question)
        return {
            "model": asked.name, "messages": [{"role": "user", "content": prompt}], "max_tokens": 1, "temperature": 0.0,
            "logprobs": True, "top_logprobs": TOP,
        }  # fmt: skip

    def _probability(self, reply: Mapping[str, Any] | None) -> float:
        if reply is None:
            return 1.0
        if self.card.server.route == "chat":
            return self._yes_share(reply)
        try:
            answers = reply["answers"]
            value = answers[NAME]["noul"] if isinstance(answers, Mapping) else answers[0]["probability"]
            if not 0 <= float(value) <= 1:
                raise ValueError(f"a probability of {value}")
        except (KeyError, IndexError, TypeError, ValueError) as error:
            where = f"server {self.server.base}/{self.server.path}"
            raise UserError(f"{where}: expected a probability in its answer to '{NAME}' ({error!r})") from None
        return float(value)

    def _yes_share(self, reply: Mapping[str, Any]) -> float:
        """Probability of yes among yes and no, in any spelling or in Chinese, at the reply's first token."""
        from kbtrain.llm.replies import top_logprobs

        yes = no = 0.0
        for token, logprob in (top_logprobs(reply) or [[]])[0]:
            word = token.strip(" \t\n\"'*.。").lower()
            yes += math.exp(logprob) if word in ("yes", "是", "是的", "需要") else 0.0
            no += math.exp(logprob) if word in ("no", "否", "不", "不是", "不需要") else 0.0
        if yes + no == 0:
            self.spent["neither"] += 1
            return 1.0
        return yes / (yes + no)


KIND = Kind(DecisionModelCard, DecisionModel.load, QUESTION, "recipes/make_decision_model.py")
