"""Passages put into a request, by the project's one prompt rule.

``background`` puts what figures 10 and 12 say before the question in front of the user's own text, and leaves a
request without passages as it is. ``trained`` asks with the whole prompts that the gate's labels were made with: own
templates, whose system message takes the place of the request's, or figures 9 and 10. ``auto`` is ``trained`` for a
gate of own templates, else ``background``. Passages show their titles by the rule that the gate's card notes.
"""

from __future__ import annotations

import json
from typing import Any

from kbtrain.answers.chinese import language_of
from kbtrain.prompts.kbm import answer_prompt, background, render_chat
from kbtrain.prompts.own import OwnPrompts
from kbtrain.records import Question
from kbtrain.serve.config import Injection, PromptRule

CALL = "kbsearch1"  # nine letters and digits: Mistral's models take nothing else
SEARCH = "search"
DECLARED = {
    "type": "function",
    "function": {
        "name": SEARCH,
        "description": "The search that was made for the last question. Its results are there; do not call it again.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}


def chat_with(
    body: dict[str, Any],
    query: str,
    evidence: str | None,
    rule: PromptRule,
    injection: Injection,
    own: OwnPrompts | None = None,
) -> dict[str, Any]:
    """The request with the passages in it; the same object if there is nothing to change. ``own``: the gate's."""
    messages = list(body["messages"])
    if asks_whole(rule, own):
        messages[-1] = _replaced(messages[-1], whole_prompt(query, evidence, own))
        if own is not None and own.system is not None:
            kept = messages[1:] if messages[0]["role"] in {"system", "developer"} else messages
            messages = [{"role": "system", "content": own.system}, *kept]
    elif evidence is None:
        return body
    elif injection == "user":
        messages[-1] = _preceded(messages[-1], background(evidence, language_of(query)))
    elif injection == "system":
        _into_system(messages, background(evidence, language_of(query)).rstrip("\n"))
    else:
        messages += _tool_call(query, evidence)
    return {**body, "messages": messages}


def with_search_declared(body: dict[str, Any]) -> dict[str, Any]:
    """The request with the search among its tools, which strict servers want beside a call; the model is not to call it
    where the client has no tools of its own.
    """
    tools = body.get("tools") or []
    if not isinstance(tools, list) or any(_name(tool) == SEARCH for tool in tools):
        return body
    choice = {} if tools else {"tool_choice": "none"}
    return {**body, "tools": [*tools, DECLARED], **choice}


def _name(tool: Any) -> Any:
    function = tool.get("function") if isinstance(tool, dict) else None
    return function.get("name") if isinstance(function, dict) else None


def completion_with(
    body: dict[str, Any], query: str, evidence: str | None, rule: PromptRule, own: OwnPrompts | None = None
) -> dict[str, Any]:
    """As :func:`chat_with`, of a request with one ``prompt``."""
    if asks_whole(rule, own):
        system = None if own is None else own.system
        return {**body, "prompt": render_chat(None, whole_prompt(query, evidence, own), system)}
    if evidence is None:
        return body
    return {**body, "prompt": background(evidence, language_of(query)) + body["prompt"]}


def asks_whole(rule: PromptRule, own: OwnPrompts | None) -> bool:
    """True if requests are asked with the whole prompts that the gate's labels were made with."""
    return rule == "trained" or (rule == "auto" and own is not None)


def whole_prompt(query: str, evidence: str | None, own: OwnPrompts | None = None) -> str:
    """Own templates, or figures 9 and 10."""
    question = Question("request", query, (), "test", "request", language_of(query))
    if own is not None:
        return own.render(question, evidence)
    return answer_prompt(question, "llm" if evidence is None else "rag", evidence)


def _preceded(message: dict[str, Any], text: str) -> dict[str, Any]:
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": text + content}
    return {**message, "content": [{"type": "text", "text": text}, *content]}


def _replaced(message: dict[str, Any], text: str) -> dict[str, Any]:
    return {**message, "content": text}


def _into_system(messages: list[dict[str, Any]], text: str) -> None:
    """Append to the system message that stands first, or put one there: many templates allow one alone."""
    first = messages[0]
    if first["role"] not in {"system", "developer"}:
        messages.insert(0, {"role": "system", "content": text})
    elif isinstance(first.get("content"), list):
        messages[0] = {**first, "content": [*first["content"], {"type": "text", "text": text}]}
    else:
        messages[0] = {**first, "content": "\n\n".join(filter(None, (first.get("content"), text)))}


def _tool_call(query: str, evidence: str) -> list[dict[str, Any]]:
    """A call of a search that has been answered, behind the user's message."""
    function = {"name": SEARCH, "arguments": json.dumps({"query": query}, ensure_ascii=False)}
    call = {"id": CALL, "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": CALL, "content": evidence},
    ]
