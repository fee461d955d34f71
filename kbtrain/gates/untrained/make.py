"""Making of the gates that are not trained: their cards, after a look at the model or a question to the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from kbtrain.gates.untrained.card import UntrainedCard
from kbtrain.gates.untrained.draft import SIGNALS as DRAFT_SIGNALS
from kbtrain.gates.untrained.draft import DraftCard
from kbtrain.gates.untrained.p_yes import SIGNALS as YES_SIGNALS
from kbtrain.gates.untrained.p_yes import PYesCard
from kbtrain.gates.untrained.server import SIGNALS as SERVER_SIGNALS
from kbtrain.gates.untrained.server import ServerCard, ServerGate, connect, server_fingerprint
from kbtrain.prompts.own import OwnPrompts, asked_fingerprint

Name = Literal["p_yes", "draft", "server"]
WHAT: Mapping[Name, str] = {
    "p_yes": "Asks the answering model whether it can answer; nothing is trained, one forward pass a question.",
    "draft": "Reads how sure the answering model is of the first tokens of its greedy answer; nothing is trained.",
    "server": "Asks a server whether its model can answer, and how sure it is of its answer's first tokens, by the top "
    "log-probabilities that it gives; nothing is trained.",
}
SIGNALS: Mapping[Name, tuple[str, ...]] = {"p_yes": YES_SIGNALS, "draft": DRAFT_SIGNALS, "server": SERVER_SIGNALS}


def cards_of_model(
    chosen: Mapping[Name, str],
    about: Mapping[str, Any],
    templates: OwnPrompts | None,
    tokens: int,
    dtype: str,
    device: str,
) -> dict[Name, UntrainedCard]:
    """Cards of the gates that open the model, after a look at it. Raises :class:`UserError`.

    ``chosen``: the deciding signals; ``about``: what all cards say, ``base_model`` among it; ``tokens`` of a draft.
    """
    from kbtrain.gates.untrained.forward import answer_ids
    from kbtrain.models.load import load_model, name_of
    from kbtrain.prompts.yes_no import yes_no_fingerprint

    model, tokenizer = load_model(about["base_model"], dtype, device)
    answer_ids(tokenizer)
    about, cards = {**about, "dtype": name_of(model.dtype)}, dict[Name, UntrainedCard]()
    if "p_yes" in chosen:
        prompts = yes_no_fingerprint(tokenizer)
        cards["p_yes"] = PYesCard(signal=chosen["p_yes"], prompt_fingerprint=prompts, **about)
    if "draft" in chosen:
        prompts = asked_fingerprint(tokenizer, templates)
        cards["draft"] = DraftCard(signal=chosen["draft"], prompt_fingerprint=prompts, tokens=tokens, **about)
    return cards


def with_server_prompts(card: ServerCard, templates: OwnPrompts | None) -> ServerCard:
    """The card with its prompts' fingerprint, after one question to the server.

    Raises :class:`UserError` for a server without top log-probabilities.
    """
    llm = connect(card)
    ServerGate(llm, card).score_all(["What is the capital of France?"])
    return card.model_copy(update={"prompt_fingerprint": server_fingerprint(llm.tokenizer, templates)})
