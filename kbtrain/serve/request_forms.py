"""The forms of the requests that are gated: the question in each, and the places for passages.

A form gives the request a changed copy, so that unknown fields reach the upstream. Read in openai 3.54.0 (chat,
completions, responses) and anthropic 2.14.0 (messages).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from kbtrain.answers.chinese import language_of
from kbtrain.gate.gate import Reads
from kbtrain.prompts.kbm import background, render_chat
from kbtrain.serve.chat import GatedMessage, gate_input
from kbtrain.serve.config import ServeConfig
from kbtrain.serve.problem import Refused

Body = dict[str, Any]
CALL = "kbsearch1"  # nine letters and digits: Mistral's models take nothing else
SEARCH = "search"
ABOUT_SEARCH = "The search that was made for the last question. Its results are there; do not call it again."
SEARCH_PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
_SYSTEM = {"system", "developer"}


class RequestForm(Protocol):
    """Reading and changing the requests of one route; ``body`` is left as it is."""

    def gate_input(self, body: Body, config: ServeConfig, reads: frozenset[Reads]) -> GatedMessage:
        """The gated part. Raises :class:`Refused` for a body that is no request of this form."""
        ...

    def replace_question(self, body: Body, prompt: str, system: str | None) -> Body:
        """The whole prompt in place of the question, and ``system`` in place of the system's message."""
        ...

    def precede_question(self, body: Body, text: str) -> Body:
        """The text in front of the question."""
        ...

    def extend_system(self, body: Body, text: str) -> Body:
        """The text behind the system's message, or as that message."""
        ...

    def append_search(self, body: Body, query: str, evidence: str, declare: bool) -> Body:
        """A call of a search with its result behind the question; the search among the tools if ``declare``."""
        ...


class ChatForm:
    """``/v1/chat/completions``: ``messages`` with roles."""

    def gate_input(self, body: Body, config: ServeConfig, reads: frozenset[Reads]) -> GatedMessage:
        """As in :class:`RequestForm`."""
        return gate_input(body.get("messages"), config, reads)

    def replace_question(self, body: Body, prompt: str, system: str | None) -> Body:
        """As in :class:`RequestForm`."""
        messages = [*body["messages"][:-1], {**body["messages"][-1], "content": prompt}]
        if system is not None:
            messages = [{"role": "system", "content": system}, *_without_system(messages)]
        return {**body, "messages": messages}

    def precede_question(self, body: Body, text: str) -> Body:
        """As in :class:`RequestForm`."""
        return {**body, "messages": _preceded(body["messages"], text, "text")}

    def extend_system(self, body: Body, text: str) -> Body:
        """As in :class:`RequestForm`: many templates allow one system message alone, in the first place."""
        return {**body, "messages": _with_system(body["messages"], text.rstrip("\n"), "text")}

    def append_search(self, body: Body, query: str, evidence: str, declare: bool) -> Body:
        """As in :class:`RequestForm`."""
        function = {"name": SEARCH, "arguments": json.dumps({"query": query}, ensure_ascii=False)}
        call = {"id": CALL, "type": "function", "function": function}
        messages = [
            *body["messages"],
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": CALL, "content": evidence},
        ]
        about = {"name": SEARCH, "description": ABOUT_SEARCH, "parameters": SEARCH_PARAMETERS}
        tool = {"type": "function", "function": about}
        changed = {**body, "messages": messages}
        return _declared(changed, tool, _name_inside, "none") if declare else changed


class CompletionForm:
    """``/v1/completions``: one ``prompt``; passages always stand in front of it."""

    def gate_input(self, body: Body, config: ServeConfig, reads: frozenset[Reads]) -> GatedMessage:
        """As in :class:`RequestForm`."""
        prompt = body.get("prompt")
        if not isinstance(prompt, str | list) or (isinstance(prompt, list) and not prompt):
            raise Refused(400, "body", "field 'prompt': expected text", "prompt")
        if not isinstance(prompt, str):
            return GatedMessage(None, None, "prompt-list")
        return gate_input([{"role": "user", "content": prompt}], config, reads)

    def replace_question(self, body: Body, prompt: str, system: str | None) -> Body:
        """As in :class:`RequestForm`."""
        return {**body, "prompt": render_chat(None, prompt, system)}

    def precede_question(self, body: Body, text: str) -> Body:
        """As in :class:`RequestForm`."""
        return {**body, "prompt": text + body["prompt"]}

    def extend_system(self, body: Body, text: str) -> Body:
        """As in :class:`RequestForm`."""
        return self.precede_question(body, text)

    def append_search(self, body: Body, query: str, evidence: str, declare: bool) -> Body:
        """As in :class:`RequestForm`: a prompt has no place for a call."""
        return self.precede_question(body, background(evidence, language_of(query)))


class ResponsesForm:
    """``/v1/responses``: ``input`` (text or items) and ``instructions``.

    Earlier turns behind ``previous_response_id`` or ``conversation`` are with the upstream: no gate sees them.
    """

    def gate_input(self, body: Body, config: ServeConfig, reads: frozenset[Reads]) -> GatedMessage:
        """As in :class:`RequestForm`."""
        given, instructions = body.get("input"), body.get("instructions")
        if not isinstance(instructions, str | None):
            raise Refused(400, "body", "field 'instructions': expected text", "instructions")
        system = [] if instructions is None else [{"role": "system", "content": instructions}]
        if given is None:
            return GatedMessage(None, None, "no-user-message")  # a stored prompt, or a conversation alone
        if isinstance(given, str):
            given = [{"role": "user", "content": given}]
        elif not isinstance(given, list) or not given:
            raise Refused(400, "messages", "field 'input': expected text or a list of items", "input")
        return gate_input([*system, *map(_message_of_item, given)], config, reads, "input", before=len(system))

    def replace_question(self, body: Body, prompt: str, system: str | None) -> Body:
        """As in :class:`RequestForm`."""
        given = body["input"]
        items = prompt if isinstance(given, str) else [*given[:-1], {**given[-1], "content": prompt}]
        if system is None:
            return {**body, "input": items}
        kept = items if isinstance(items, str) else _without_system(items)
        return {**body, "instructions": system, "input": kept}

    def precede_question(self, body: Body, text: str) -> Body:
        """As in :class:`RequestForm`."""
        given = body["input"]
        return {**body, "input": text + given if isinstance(given, str) else _preceded(given, text, "input_text")}

    def extend_system(self, body: Body, text: str) -> Body:
        """As in :class:`RequestForm`: the upstream does not keep ``instructions`` for the next response."""
        given, instructions, text = body["input"], body.get("instructions"), text.rstrip("\n")
        if not instructions and isinstance(given, list) and given[0].get("role") in _SYSTEM:
            return {**body, "input": _with_system(given, text, "input_text")}
        return {**body, "instructions": "\n\n".join(filter(None, (instructions, text)))}

    def append_search(self, body: Body, query: str, evidence: str, declare: bool) -> Body:
        """As in :class:`RequestForm`."""
        given = body["input"]
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        arguments = json.dumps({"query": query}, ensure_ascii=False)
        call = {"type": "function_call", "call_id": CALL, "name": SEARCH, "arguments": arguments}
        result = {"type": "function_call_output", "call_id": CALL, "output": evidence}
        changed = {**body, "input": [*items, call, result]}
        about = {"name": SEARCH, "description": ABOUT_SEARCH, "parameters": SEARCH_PARAMETERS, "strict": False}
        return _declared(changed, {"type": "function", **about}, _name_of, "none") if declare else changed


class MessagesForm:
    """``/v1/messages``, Anthropic's: ``messages`` with content blocks, ``system`` beside them."""

    def gate_input(self, body: Body, config: ServeConfig, reads: frozenset[Reads]) -> GatedMessage:
        """As in :class:`RequestForm`."""
        messages, system = body.get("messages"), body.get("system")
        if not isinstance(system, str | list | None):
            raise Refused(400, "body", "field 'system': expected text or a list of text blocks", "system")
        if not isinstance(messages, list) or not messages:
            return gate_input(messages, config, reads)
        first = [] if system is None else [{"role": "system", "content": system}]
        return gate_input([*first, *map(_with_tool_role, messages)], config, reads, before=len(first))

    def replace_question(self, body: Body, prompt: str, system: str | None) -> Body:
        """As in :class:`RequestForm`."""
        messages = [*body["messages"][:-1], {**body["messages"][-1], "content": prompt}]
        return {**body, "messages": messages, **({} if system is None else {"system": system})}

    def precede_question(self, body: Body, text: str) -> Body:
        """As in :class:`RequestForm`."""
        return {**body, "messages": _preceded(body["messages"], text, "text")}

    def extend_system(self, body: Body, text: str) -> Body:
        """As in :class:`RequestForm`."""
        system, text = body.get("system"), text.rstrip("\n")
        if isinstance(system, list):
            return {**body, "system": [*system, {"type": "text", "text": text}]}
        return {**body, "system": "\n\n".join(filter(None, (system, text)))}

    def append_search(self, body: Body, query: str, evidence: str, declare: bool) -> Body:
        """As in :class:`RequestForm`. A model that thinks takes no call without the thoughts before it: there
        passages stand in front of the question.
        """
        thinking = body.get("thinking")
        if isinstance(thinking, dict) and thinking.get("type") != "disabled":
            return self.precede_question(body, background(evidence, language_of(query)))
        call = {"type": "tool_use", "id": CALL, "name": SEARCH, "input": {"query": query}}
        result = {"type": "tool_result", "tool_use_id": CALL, "content": evidence}
        messages = [
            *body["messages"],
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ]
        tool = {"name": SEARCH, "description": ABOUT_SEARCH, "input_schema": SEARCH_PARAMETERS}
        changed = {**body, "messages": messages}
        return _declared(changed, tool, _name_of, {"type": "none"}) if declare else changed


FORMS: Mapping[str, RequestForm] = {
    "chat/completions": ChatForm(),
    "completions": CompletionForm(),
    "responses": ResponsesForm(),
    "messages": MessagesForm(),
}


def _message_of_item(item: Any) -> Any:
    """An item of ``input`` as a message of a chat; calls and thoughts are the model's, outputs a tool's."""
    kind = item.get("type") or "message" if isinstance(item, dict) else "message"
    if kind == "message" or not isinstance(kind, str):
        return item
    if kind == "item_reference":
        return {"role": kind}
    return {"role": "tool" if kind.endswith("_output") else "assistant"}


def _with_tool_role(message: Any) -> Any:
    """A message of Anthropic's with the role ``tool`` where it carries a tool's result."""
    content = message.get("content") if isinstance(message, dict) else None
    results = isinstance(content, list) and any(isinstance(b, dict) and b.get("type") == "tool_result" for b in content)
    return {**message, "role": "tool"} if results else message


def _preceded(messages: list[Body], text: str, kind: str) -> list[Body]:
    last = messages[-1]
    content = last["content"]
    before = text + content if isinstance(content, str) else [{"type": kind, "text": text}, *content]
    return [*messages[:-1], {**last, "content": before}]


def _without_system(messages: list[Body]) -> list[Body]:
    return messages[1:] if messages[0].get("role") in _SYSTEM else messages


def _with_system(messages: list[Body], text: str, kind: str) -> list[Body]:
    first, *rest = messages
    if first.get("role") not in _SYSTEM:
        return [{"role": "system", "content": text}, *messages]
    content = first.get("content")
    if isinstance(content, list):
        return [{**first, "content": [*content, {"type": kind, "text": text}]}, *rest]
    return [{**first, "content": "\n\n".join(filter(None, (content, text)))}, *rest]


def _declared(body: Body, tool: Body, name: Callable[[Any], Any], no_call: Any) -> Body:
    """The request with the search among its tools, which strict servers want beside a call; the model is not to call it
    where the client has no tools of its own.
    """
    tools = body.get("tools") or []
    if not isinstance(tools, list) or any(name(one) == SEARCH for one in tools):
        return body
    choice = {} if tools else {"tool_choice": no_call}
    return {**body, "tools": [*tools, tool], **choice}


def _name_of(tool: Any) -> Any:
    return tool.get("name") if isinstance(tool, dict) else None


def _name_inside(tool: Any) -> Any:
    return _name_of(tool.get("function")) if isinstance(tool, dict) else None
