"""The forms of the requests that are gated: the question in each, the places for passages, and the client's tools.

A form gives the request a changed copy, so that unknown fields reach the upstream. Read in openai 3.54.0 (chat,
completions, responses) and anthropic 2.14.0 (messages).

Passages enter by one prompt rule. ``background`` puts the text of figures 10 and 12 in front of the user's own text,
and leaves a request without passages as it is. ``trained`` asks with the whole prompts that the gate's labels were made
with: own templates, whose system message takes the place of the request's, or figures 9 and 10. ``auto`` is ``trained``
for a gate of own templates, else ``background``. Passages show their titles by the rule of the gate's card.

Where a request has a search tool, the gate decides about the tool, and no passages enter the prompt. A tool is known by
its name, or by its type where the upstream runs it (``web_search``, ``file_search``).
"""

from __future__ import annotations

import fnmatch
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kbtrain.answers.writing import is_blank, language_of
from kbtrain.gate.gate import Reads
from kbtrain.prompts.kbm import answer_prompt, background, render_chat
from kbtrain.prompts.own import OwnPrompts
from kbtrain.records import Question, TurnExample, Utterance
from kbtrain.serve.config import Injection, PromptRule, ServeConfig, ToolRule
from kbtrain.serve.decide import Input
from kbtrain.serve.problem import BadBody, Refused
from kbtrain.utterances import (
    UtteranceKind,
    input_kind,
    is_client_task,
    is_follow_up,
    last_messages,
    utterance_kind,
)

Body = dict[str, Any]
ToolOutcome = Literal["kept", "removed", "forced"]
CALL = "kbsearch1"  # nine letters and digits: Mistral's models take nothing else
SEARCH = "search"
ABOUT_SEARCH = "The search that was made for the last question. Its results are there; do not call it again."
SEARCH_PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
_SYSTEM = {"system", "developer"}


MOST_MESSAGES = 1000  # of a chat
TEXTS = {"text", "input_text", "output_text"}  # types of text parts in all forms of requests


@dataclass(frozen=True)
class GatedMessage:
    """``value``: the gate's input, and ``query`` the user's last message; both None for ``reason``.

    ``kind``: of a message that needs no search. ``dialogue``: of a follow-up that is not gated by its own words alone;
    ``searched``: the query that then takes the place of ``query``.
    """

    value: Input | None
    query: str | None
    reason: str = ""
    kind: UtteranceKind | None = None
    dialogue: tuple[Utterance, ...] = ()
    searched: str | None = None


def gate_input(
    messages: Any, config: ServeConfig, reads: frozenset[Reads], field: str = "messages", before: int = 0
) -> GatedMessage:
    """The last question, or the dialogue for a gate of turns.

    ``field`` of the request holds the messages, all but the first ``before`` of them. Tool messages, images, chats
    whose last message is not the user's, and requests that a chat window makes for itself pass ungated, with a reason.
    Messages of other roles are passed on. Raises :class:`Refused` for anything but a list of messages.
    """
    checked = _check_messages(messages, MOST_MESSAGES, field, before)
    last = checked[-1]
    if last["role"] in {"tool", "function"}:
        return GatedMessage(None, None, "tool-message")
    if all(message["role"] in {"system", "developer"} for message in checked):
        return GatedMessage(None, None, "system-only")
    if last["role"] != "user":
        return GatedMessage(None, None, "no-user-message" if last["role"] == "assistant" else "other-role")
    parts = last.get("content")
    if isinstance(parts, list) and any(part.get("type") not in TEXTS for part in parts):
        return GatedMessage(None, None, "image-or-file")
    query = text(last).strip()
    if is_blank(query):
        return GatedMessage(None, None, "empty-question")
    system = (text(message) for message in checked if message["role"] in {"system", "developer"})
    if is_client_task((query, *system)):
        return GatedMessage(None, None, "client-task")
    if len(query) > config.max_question_chars:
        return GatedMessage(None, None, "long-question")
    reads_question = config.gated == "question" or (config.gated == "auto" and "question" in reads)
    if reads_question and config.context == "last":
        return GatedMessage(query, query, kind=utterance_kind(query) if config.utterance_rules else None)
    turn = _turn(checked)
    kind = input_kind(turn) if config.utterance_rules else None
    if config.context == "last" or kind is not None or not is_follow_up(turn.context):
        return GatedMessage(query if reads_question else turn, query, kind=kind)
    window = last_messages(turn.context, config.window, config.max_question_chars)
    return GatedMessage(window if reads_question else turn, query, dialogue=turn.context, searched=window)


def text(message: dict[str, Any]) -> str:
    """The text of a message, its text parts joined by line ends."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(part["text"] for part in content if isinstance(part.get("text"), str))


def _turn(messages: Sequence[dict[str, Any]]) -> TurnExample:
    """Words of the user and the assistant so far, as the dialogue before the system's next turn."""
    speakers = {"user": "USER", "assistant": "SYSTEM"}
    turns = [(speakers[m["role"]], text(m).strip()) for m in messages if m["role"] in speakers]
    context = tuple(Utterance(speaker, words) for speaker, words in turns if words)  # type: ignore[arg-type]
    return TurnExample(id="chat", dialogue_id="chat", split="test", turn=len(context), context=context)


def _check_messages(messages: Any, most: int, field: str, before: int) -> list[dict[str, Any]]:
    def refused(message: str) -> Refused:
        return Refused(400, "messages", f"field '{field}': {message}", field)

    if not isinstance(messages, list) or not messages:
        raise refused("expected a list of messages")
    if len(messages) - before > most:
        raise refused(f"{len(messages) - before} messages; at most {most}")
    for place, message in enumerate(messages, -before):
        where = f"message {place}: " if place >= 0 else ""
        if not isinstance(message, dict):
            raise refused(f"{where}expected an object")
        if not isinstance(message.get("role"), str):
            raise refused(f"{where}field 'role': expected text")
        content = message.get("content")
        if content is not None and not isinstance(content, str | list):
            raise refused(f"{where}field 'content': expected text or a list of parts")
        for part in content if isinstance(content, list) else ():
            if not isinstance(part, dict):
                raise refused(f"{where}field 'content': each part is an object")
            kind = part.get("type")
            if kind is not None and not isinstance(kind, str):
                raise refused(f"{where}field 'content': the type of a part is text")
            if kind in TEXTS and not isinstance(part.get("text"), str):
                raise refused(f"{where}field 'content': a text part has no text")
    return messages


class RequestForm(ABC):
    """Reading and changing the requests of one route. Each change is a copy.

    ``field`` holds a text or the messages, the question in the last one; ``kind`` is the type of a text part.
    """

    field = "messages"
    kind = "text"
    no_call: Any = "none"

    def gate_input(self, body: Body, config: ServeConfig, reads: frozenset[Reads]) -> GatedMessage:
        """The gated part. Raises :class:`Refused` for an invalid body of this form."""
        return gate_input(body.get("messages"), config, reads)

    def replace_question(self, body: Body, prompt: str, system: str | None) -> Body:
        """The whole prompt in place of the question, and ``system`` in place of the system's message."""
        messages = body[self.field]
        asked_with = prompt if isinstance(messages, str) else [*messages[:-1], {**messages[-1], "content": prompt}]
        changed = {**body, self.field: asked_with}
        return changed if system is None else self._replace_system(changed, system)

    @abstractmethod
    def _replace_system(self, body: Body, system: str) -> Body: ...

    def precede_question(self, body: Body, text: str) -> Body:
        """The text in front of the question."""
        messages = body[self.field]
        if isinstance(messages, str):
            return {**body, self.field: text + messages}
        content = messages[-1]["content"]
        before = text + content if isinstance(content, str) else [{"type": self.kind, "text": text}, *content]
        return {**body, self.field: [*messages[:-1], {**messages[-1], "content": before}]}

    @abstractmethod
    def extend_system(self, body: Body, text: str) -> Body:
        """The text behind the system's message, or as that message."""

    def append_search(self, body: Body, query: str, evidence: str, declare: bool) -> Body:
        """A call of a search with its result behind the question; the search among the tools if ``declare``, which
        strict servers want beside a call.
        """
        messages, tools = body[self.field], body.get("tools") or []
        items = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        call, tool = self._search(query, evidence)
        changed = {**body, self.field: [*items, *call]}
        if not declare or not isinstance(tools, list) or search_tools(body, [SEARCH]):
            return changed
        # the model must not call it where the client has no tools of its own
        choice = {} if tools else {"tool_choice": self.no_call}
        return {**changed, "tools": [*tools, tool], **choice}

    @abstractmethod
    def _search(self, query: str, evidence: str) -> tuple[list[Body], Body]:
        """A call with its result, and the declaration of the tool."""

    def choice(self, tool: Body) -> Body:
        """``tool_choice`` that makes the model call the tool."""
        return {"type": "function", "function": {"name": _name(tool)}}


class ChatForm(RequestForm):
    """``/v1/chat/completions``: ``messages`` with roles."""

    def _replace_system(self, body: Body, system: str) -> Body:
        return {**body, "messages": [{"role": "system", "content": system}, *_without_system(body["messages"])]}

    def extend_system(self, body: Body, text: str) -> Body:
        return {**body, "messages": _with_system(body["messages"], text.rstrip("\n"), "text")}

    def _search(self, query: str, evidence: str) -> tuple[list[Body], Body]:
        function = {"name": SEARCH, "arguments": json.dumps({"query": query}, ensure_ascii=False)}
        call = {"id": CALL, "type": "function", "function": function}
        result = {"role": "tool", "tool_call_id": CALL, "content": evidence}
        about = {"name": SEARCH, "description": ABOUT_SEARCH, "parameters": SEARCH_PARAMETERS}
        message: Body = {"role": "assistant", "content": None, "tool_calls": [call]}
        return [message, result], {"type": "function", "function": about}


class CompletionForm(ChatForm):
    """``/v1/completions``: one ``prompt``, with all passages in front of it, which has no place for a call."""

    field = "prompt"

    def gate_input(self, body: Body, config: ServeConfig, reads: frozenset[Reads]) -> GatedMessage:
        prompt = body.get("prompt")
        if not isinstance(prompt, str | list) or (isinstance(prompt, list) and not prompt):
            raise BadBody("expected text", "prompt")
        if not isinstance(prompt, str):
            return GatedMessage(None, None, "prompt-list")
        return gate_input([{"role": "user", "content": prompt}], config, reads)

    def replace_question(self, body: Body, prompt: str, system: str | None) -> Body:
        return {**body, "prompt": render_chat(None, prompt, system)}

    def extend_system(self, body: Body, text: str) -> Body:
        return self.precede_question(body, text)

    def append_search(self, body: Body, query: str, evidence: str, declare: bool) -> Body:
        return self.precede_question(body, background(evidence, language_of(query)))


class ResponsesForm(RequestForm):
    """``/v1/responses``: ``input`` (text or items) and ``instructions``.

    Earlier turns behind ``previous_response_id`` or ``conversation`` are with the upstream: no gate sees them.
    """

    field = "input"
    kind = "input_text"

    def gate_input(self, body: Body, config: ServeConfig, reads: frozenset[Reads]) -> GatedMessage:
        items, instructions = body.get("input"), body.get("instructions")
        if not isinstance(instructions, str | None):
            raise BadBody("expected text", "instructions")
        system = [] if instructions is None else [{"role": "system", "content": instructions}]
        if items is None:
            return GatedMessage(None, None, "no-user-message")  # a stored prompt, or a conversation alone
        if isinstance(items, str):
            items = [{"role": "user", "content": items}]
        elif not isinstance(items, list) or not items:
            raise Refused(400, "messages", "field 'input': expected text or a list of items", "input")
        return gate_input([*system, *map(_message_of_item, items)], config, reads, "input", before=len(system))

    def _replace_system(self, body: Body, system: str) -> Body:
        items = body["input"]
        return {**body, "instructions": system, "input": items if isinstance(items, str) else _without_system(items)}

    def extend_system(self, body: Body, text: str) -> Body:
        # the upstream does not store ``instructions`` for the next response
        items, instructions, text = body["input"], body.get("instructions"), text.rstrip("\n")
        if not instructions and isinstance(items, list) and items[0].get("role") in _SYSTEM:
            return {**body, "input": _with_system(items, text, "input_text")}
        return {**body, "instructions": _join(instructions, text)}

    def _search(self, query: str, evidence: str) -> tuple[list[Body], Body]:
        arguments = json.dumps({"query": query}, ensure_ascii=False)
        call = {"type": "function_call", "call_id": CALL, "name": SEARCH, "arguments": arguments}
        result = {"type": "function_call_output", "call_id": CALL, "output": evidence}
        about = {"name": SEARCH, "description": ABOUT_SEARCH, "parameters": SEARCH_PARAMETERS, "strict": False}
        return [call, result], {"type": "function", **about}

    def choice(self, tool: Body) -> Body:
        return {"type": "function", "name": _name(tool)} if tool.get("type") == "function" else {"type": tool["type"]}


class MessagesForm(RequestForm):
    """``/v1/messages``, Anthropic's: ``messages`` with content blocks, ``system`` beside them."""

    no_call: Any = {"type": "none"}  # noqa: RUF012 - never changed

    def gate_input(self, body: Body, config: ServeConfig, reads: frozenset[Reads]) -> GatedMessage:
        messages, system = body.get("messages"), body.get("system")
        if not isinstance(system, str | list | None):
            raise BadBody("expected text or a list of text blocks", "system")
        if not isinstance(messages, list) or not messages:
            return gate_input(messages, config, reads)
        first = [] if system is None else [{"role": "system", "content": system}]
        return gate_input([*first, *map(_with_tool_role, messages)], config, reads, before=len(first))

    def _replace_system(self, body: Body, system: str) -> Body:
        return {**body, "system": system}

    def extend_system(self, body: Body, text: str) -> Body:
        system, text = body.get("system"), text.rstrip("\n")
        if isinstance(system, list):
            return {**body, "system": [*system, {"type": "text", "text": text}]}
        return {**body, "system": _join(system, text)}

    def append_search(self, body: Body, query: str, evidence: str, declare: bool) -> Body:
        # A model that thinks takes no call without the thoughts before it.
        thinking = body.get("thinking")
        if isinstance(thinking, dict) and thinking.get("type") != "disabled":
            return self.precede_question(body, background(evidence, language_of(query)))
        return super().append_search(body, query, evidence, declare)

    def _search(self, query: str, evidence: str) -> tuple[list[Body], Body]:
        call = {"type": "tool_use", "id": CALL, "name": SEARCH, "input": {"query": query}}
        result = {"type": "tool_result", "tool_use_id": CALL, "content": evidence}
        tool = {"name": SEARCH, "description": ABOUT_SEARCH, "input_schema": SEARCH_PARAMETERS}
        return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}], tool

    def choice(self, tool: Body) -> Body:
        return {"type": "tool", "name": _name(tool)}


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


def _without_system(messages: list[Body]) -> list[Body]:
    return messages[1:] if messages[0].get("role") in _SYSTEM else messages


def _with_system(messages: list[Body], text: str, kind: str) -> list[Body]:
    # many templates allow one system message alone, in the first place
    first, *rest = messages
    if first.get("role") not in _SYSTEM:
        return [{"role": "system", "content": text}, *messages]
    content = first.get("content")
    if isinstance(content, list):
        return [{**first, "content": [*content, {"type": kind, "text": text}]}, *rest]
    return [{**first, "content": _join(content, text)}, *rest]


def _join(first: str | None, second: str) -> str:
    return "\n\n".join(filter(None, (first, second)))


@dataclass(frozen=True)
class Placement:
    """The place for passages in requests. ``own``: the gate's templates; ``tools``: the upstream takes declarations."""

    rule: PromptRule
    injection: Injection = "user"
    own: OwnPrompts | None = None
    tools: bool = True

    # True if requests are asked with the whole prompts that the gate's labels were made with
    is_whole_prompt: bool = field(init=False)

    def __post_init__(self) -> None:
        whole = self.rule == "trained" or (self.rule == "auto" and self.own is not None)
        object.__setattr__(self, "is_whole_prompt", whole)


def with_evidence(form: RequestForm, body: Body, query: str, evidence: str | None, place: Placement) -> Body:
    """The request with the passages in it; the same object if there is nothing to change."""
    language = language_of(query)
    if place.is_whole_prompt:
        question = Question("request", query, (), "test", "request", language)
        if place.own is not None:
            return form.replace_question(body, place.own.render(question, evidence), place.own.system)
        prompt = answer_prompt(question, "llm" if evidence is None else "rag", evidence)
        return form.replace_question(body, prompt, None)
    if evidence is None:
        return body
    if place.injection == "tool":
        return form.append_search(body, query, evidence, place.tools)
    put = form.extend_system if place.injection == "system" else form.precede_question
    return put(body, background(evidence, language))


def search_tools(body: Body, patterns: Sequence[str]) -> list[Body]:
    """The tools of a request whose name or type fits a pattern."""
    tools = body.get("tools")
    listed = tools if isinstance(tools, list) else []
    return [tool for tool in listed if isinstance(tool, dict) and _fits(_name(tool), patterns)]


def steer_tools(path: str, body: Body, tools: Sequence[Body], needed: bool, rule: ToolRule) -> tuple[Body, ToolOutcome]:
    """The request after the gate's decision, and the outcome.

    ``remove``: without the tools where no search is needed. ``force``: also, the model must call the first of them
    elsewhere. A client's own choice of a tool stays, and tools that the dialogue has called: servers want them
    declared.
    """
    own_choice = body.get("tool_choice") not in (None, "auto", {"type": "auto"})
    if rule == "keep" or own_choice:
        return body, "kept"
    if needed:
        return ({**body, "tool_choice": FORMS[path].choice(tools[0])}, "forced") if rule == "force" else (body, "kept")
    if _has_calls(body):
        return body, "kept"
    rest = [tool for tool in body["tools"] if not any(tool is search for search in tools)]
    without = {name: value for name, value in body.items() if name not in ("tools", "tool_choice")}
    if not rest:
        without.pop("parallel_tool_calls", None)
        return without, "removed"
    return {**body, "tools": rest}, "removed"


def _name(tool: Body) -> str:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else tool.get("name")
    return name if isinstance(name, str) else str(tool.get("type", ""))


def _fits(name: str, patterns: Sequence[str]) -> bool:
    """True if the name fits one of the patterns; case does not count."""
    return any(fnmatch.fnmatchcase(name.lower(), pattern.lower()) for pattern in patterns)


def _has_calls(body: Body) -> bool:
    """True if the dialogue holds a call of a tool or its result."""
    turns = body.get("messages") or body.get("input")
    for turn in turns if isinstance(turns, list) else ():
        if not isinstance(turn, dict):
            continue
        content = turn.get("content")
        kinds = {block.get("type") for block in content if isinstance(block, dict)} if isinstance(content, list) else {}
        kind = str(turn.get("type", ""))
        if turn.get("tool_calls") or turn.get("role") == "tool" or "tool_use" in kinds or "tool_result" in kinds:
            return True
        if kind.endswith(("_call", "_call_output")):
            return True
    return False
