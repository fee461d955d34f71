"""Plain answers that continue the draft of the decision: the upstream generates the draft once.

For a draft probe, and for the gate ``draft``, the upstream drafts the greedy answer to the plain prompt. A greedy chat
request of the same tokens continues that draft (vLLM's ``continue_final_message`` and ``echo``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kbtrain.errors import UserError
from kbtrain.llm.served_states import StatesServer
from kbtrain.prompts.kbm import TEMPLATE_OPTIONS, apply_template, encode
from kbtrain.prompts.template_marks import break_special_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Body = dict[str, Any]
# Any other field can change a greedy answer, or what a reply says about its tokens.
FIELDS = {"model", "messages", "temperature", "max_tokens", "max_completion_tokens", "stream", "stream_options", "stop",
          "seed", "top_p", "n", "user"}  # fmt: skip
LIMITS = ("max_tokens", "max_completion_tokens")
MOST_DROPPED = 3  # tokens at a draft's end that the template, or the tokenizer behind text, writes otherwise


def continue_draft(body: Body, states: StatesServer) -> Body:
    """A chat request that continues the draft of its prompt; the same object without a draft, or where the answer could
    differ.
    """
    prompt = _prompt(body, states.tokenizer)
    if prompt is None or not _is_greedy(body) or body.get("model") != states.server.model:
        return body
    draft = states.drafts.get(tuple(prompt), [])
    limits = {name: body[name] for name in LIMITS if isinstance(body.get(name), int)}
    for n in range(len(draft), max(0, len(draft) - MOST_DROPPED), -1):
        messages = [*body["messages"], {"role": "assistant", "content": states.tokenizer.decode(draft[:n])}]
        if _tokens(states.tokenizer, messages) == [*prompt, *draft[:n]]:
            break
    else:
        return body
    if any(limit <= n for limit in limits.values()) or _may_stop(messages[-1]["content"], body.get("stop")):
        return body
    more = {"messages": messages, "add_generation_prompt": False, "continue_final_message": True, "echo": True}
    return {**body, **more, **{name: limit - n for name, limit in limits.items()}}


def _prompt(body: Body, tokenizer: PreTrainedTokenizerBase) -> list[int] | None:
    """Token ids of a chat of one question and perhaps a system message; None for any other."""
    messages = body.get("messages") or []
    roles = [message.get("role") for message in messages]
    texts = [message.get("content") for message in messages]
    plain = all(set(message) == {"role", "content"} for message in messages)
    if (
        not tokenizer.chat_template
        or not plain
        or roles not in (["user"], ["system", "user"])
        or not all(isinstance(text, str) for text in texts)
    ):
        return None
    if any(break_special_tokens(tokenizer, text) != text for text in texts):
        return None
    return encode(tokenizer, texts[-1], texts[0] if len(texts) > 1 else None)


def _is_greedy(body: Body) -> bool:
    fields = {name for name, value in body.items() if value is not None}
    return fields <= FIELDS and body.get("temperature") == 0 and body.get("n") in (None, 1)


def _may_stop(text: str, stop: object) -> bool:
    """True if a stop string is in the draft, or may begin in it: the upstream does not look for it there."""
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list) or not all(isinstance(end, str) and end for end in stops):
        return True
    return any(end in text or any(text.endswith(end[:i]) for i in range(1, len(end))) for end in stops)


def _tokens(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]]) -> list[int]:
    options = {**TEMPLATE_OPTIONS, "add_generation_prompt": False, "continue_final_message": True}
    try:
        text = apply_template(tokenizer, messages, **options)
    except UserError:  # a template that cannot continue a message
        return []
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
