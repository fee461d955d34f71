"""The forms of the requests that are gated: the question in each, the places for passages, and the client's tools.

A form gives the request a changed copy, so that unknown fields reach the upstream. Read in openai 3.54.0 (chat,
completions, responses) and anthropic 2.14.0 (messages).

Passages enter by one prompt rule. ``background`` puts the text of figures 10 and 12 where ``injection`` says, and
leaves a request without passages as it is. ``trained`` asks with the whole prompts that the gate's labels were made
with: own templates, whose system message takes the place of the request's, or figures 9 and 10. ``auto`` is ``trained``
for a gate of own templates, else ``background``. Passages show their titles by the rule of the gate's card.

Where a request has a search tool, the gate decides about the tool, and no passages enter the prompt. A tool is known by
its name, or by its type where the upstream runs it (``web_search``, ``file_search``).
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from kbtrain.answers.writing import is_blank, language_of
from kbtrain.gate.gate import Reads
from kbtrain.harness import LONGEST_WRAPPED, OwnWords, no_question, own_words
from kbtrain.prompts.kbm import answer_prompt, background, render_chat
from kbtrain.prompts.own import OwnPrompts
from kbtrain.records import Question, TurnExample, Utterance
from kbtrain.serve.config import Injection, PromptRule, ServeConfig, ToolRule
from kbtrain.serve.decide import Input
from kbtrain.serve.problem import BadBody, Refused
from kbtrain.utterances import UtteranceKind, input_kind, is_follow_up, last_messages, utterance_kind

Body = dict[str, Any]
ToolOutcome = Literal["kept", "removed", "forced"]
HOSTED = ("web_search*", "file_search", "google_search*", "bing_*", "azure_ai_search", "x_search", "live_search",
          "enterprise_web_search", "browser_search", "collections_search", "document_library")  # fmt: skip
_SWITCH = re.compile(
    r"(?:(?:enable|use|force)_)?(?:(?:web|online|internet|deep|live)_?)?search(?:_(?:options|parameters|enhancement))?"
    r"|enable_enhancement|data_sources|connectors|grounding"
)
_HOLDER = re.compile(r"extra_body|features|(?:\w+_)?parameters")  # of some providers' own fields
_OFF = ("off", "none", "false", "disabled", "never", "no", "")
WEB_PLUGINS = ("web", "web-search", "web_search", "exa", "search")
CALL = "kbsearch1"  # nine letters and digits: Mistral's models take nothing else
SEARCH = {"name": "search", "description": "The last question's search, with its results there. Do not call it again."}
SEARCH_PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
_SYSTEM = {"system", "developer"}
MOST_SYSTEMS = 32  # the system's messages that are read
NOTHING = OwnWords("", 0, "")
TEXTS = {"text", "input_text", "output_text"}  # types of text parts in all forms of requests


@dataclass(frozen=True)
class GatedMessage:
    """``value``: the gate's input, and ``query`` the user's own words; both None for ``reason``.

    ``asked``: the message that they are of as it came, at ``place`` of the request's messages; ``struck``: the number
    of wrappers in it. ``kind``: of a message that needs no search. ``searched``: the query of a follow-up that is not
    gated by its own words alone, in place of ``query``.
    """

    value: Input | None
    query: str | None
    reason: str = ""
    kind: UtteranceKind | None = None
    searched: str | None = None
    asked: str = ""
    place: int = -1
    struck: int = 0


def gate_input(
    messages: Any, config: ServeConfig, reads: frozenset[Reads], field: str = "messages", before: int = 0
) -> GatedMessage:
    """The last question, or the dialogue for a gate of turns.

    ``field`` of the request holds the messages, all but the first ``before`` of them. The question is the last message
    with words of the user's own: messages of the system, reminders and a begun answer may be behind it. Tool
    messages, images and prompts that are no questions pass ungated, with a reason. Messages of other roles are passed
    on. Raises :class:`Refused` for anything but a list of messages.
    """
    checked = _check_messages(messages, field, before)
    if all(message["role"] in _SYSTEM for message in checked):
        return GatedMessage(None, None, "system-only")
    place, said, reason = _question(checked, config)
    if reason:
        return GatedMessage(None, None, reason)
    systems = [text(message) for message in checked if message["role"] in _SYSTEM][:MOST_SYSTEMS]
    query = said.words
    if len(query) > config.max_question_chars:
        return GatedMessage(None, None, "long-question")
    if no := no_question(said.outside, systems):
        return GatedMessage(None, None, no)
    found = GatedMessage(query, query, asked=text(checked[place]).strip(), place=place - before, struck=said.struck)
    reads_question = config.gated == "question" or (config.gated == "auto" and "question" in reads)
    if reads_question and config.window == 1:
        return replace(found, kind=utterance_kind(query)) if config.utterance_rules else found
    turn = _turn(checked[: place + 1], config)
    kind = input_kind(turn) if config.utterance_rules else None
    if config.window == 1 or kind is not None or not is_follow_up(turn.context):
        return replace(found, value=query if reads_question else turn, kind=kind)
    window = last_messages(turn.context, config.window, config.max_question_chars)
    return replace(found, value=window if reads_question else turn, searched=window)


def _question(messages: Sequence[dict[str, Any]], config: ServeConfig) -> tuple[int, OwnWords, str]:
    """Place and words of the last message with words of the user's own, or the reason why there is none."""
    wrapped = False
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        role, content = message["role"], message.get("content")
        begun = role == "assistant" and "content" in message and not message.get("tool_calls")
        if role in _SYSTEM or (begun and all(later["role"] in _SYSTEM for later in messages[place + 1 :])):
            continue
        if role != "user":
            reasons = {"tool": "tool-message", "function": "tool-message", "assistant": "no-user-message"}
            return place, NOTHING, reasons.get(role, "other-role")
        said = own_words(text(message), config.wrappers)
        if isinstance(content, list) and any(part.get("type") not in TEXTS for part in content):
            return place, said, "image-or-file"
        if not is_blank(said.words):
            return place, said, ""
        if not said.struck:
            return place, said, "empty-question"
        wrapped = True
    return -1, NOTHING, "empty-question" if wrapped else "no-user-message"


def text(message: dict[str, Any]) -> str:
    """The text of a message, its text parts joined by line ends."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(part["text"] for part in content if isinstance(part.get("text"), str))


def _turn(messages: Sequence[dict[str, Any]], config: ServeConfig) -> TurnExample:
    """Words of the user and the assistant so far, as the dialogue before the system's next turn."""
    context, room = list[Utterance](), LONGEST_WRAPPED  # for all of the user's messages, the newest first
    for message in reversed(messages):
        words = text(message).strip()
        if message["role"] == "user":
            room -= len(words)
            if not is_blank(said := own_words(words, config.wrappers).words if room >= 0 else words):
                context.append(Utterance("USER", said))
        elif message["role"] == "assistant" and not is_blank(words):
            context.append(Utterance("SYSTEM", words))
    return TurnExample(id="chat", dialogue_id="chat", split="test", turn=len(context), context=tuple(context[::-1]))


def _check_messages(messages: Any, field: str, before: int) -> list[dict[str, Any]]:
    def refused(message: str) -> Refused:
        return Refused(400, "messages", f"field '{field}': {message}", field)

    if not isinstance(messages, list) or not messages:
        raise refused("expected a list of messages")
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


class RequestForm:
    """Reading and changing the requests of ``/v1/chat/completions``, and of other routes where their own form does
    not differ. Each change is a copy.

    ``field`` holds a text or the messages, the question in the one at ``place``; ``kind`` is the type of a text part.
    """

    field = "messages"
    kind = "text"
    no_call: Any = "none"

    def gate_input(self, body: Body, config: ServeConfig, reads: frozenset[Reads]) -> GatedMessage:
        """The gated part. Raises :class:`Refused` for an invalid body of this form."""
        return gate_input(body.get("messages"), config, reads)

    def replace_question(self, body: Body, prompt: str, system: str | None, place: int) -> Body:
        """The whole prompt in place of the question, and ``system`` in place of the system's message."""
        messages = body[self.field]
        asked_with = prompt if isinstance(messages, str) else _with_content(messages, place, prompt)
        changed = {**body, self.field: asked_with}
        return changed if system is None else self._replace_system(changed, system)

    def _replace_system(self, body: Body, system: str) -> Body:
        return {**body, "messages": [{"role": "system", "content": system}, *_without_system(body["messages"])]}

    def precede_question(self, body: Body, text: str, place: int) -> Body:
        """The text in front of the question."""
        messages = body[self.field]
        if isinstance(messages, str):
            return {**body, self.field: text + messages}
        content = messages[place]["content"]
        before = text + content if isinstance(content, str) else [{"type": self.kind, "text": text}, *content]
        return {**body, self.field: _with_content(messages, place, before)}

    def extend_system(self, body: Body, text: str) -> Body:
        """The text behind the system's message, or as that message."""
        messages = body[self.field]
        # many templates allow one system message alone, in the first place
        first = messages[0] if messages[0].get("role") in _SYSTEM else {"role": "system"}
        system = {**first, "content": _behind(first.get("content"), text, self.kind)}
        return {**body, self.field: [system, *_without_system(messages)]}

    def append_search(self, body: Body, query: str, evidence: str, place: int) -> Body:
        """A call of a search with its result behind the question, and the tool, which strict servers want beside it."""
        messages, tools = body[self.field], body.get("tools") or []
        items = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        call, tool = self._search({"query": query}, evidence)
        changed = {**body, self.field: [*items[: place + 1], *call, *items[place + 1 :]]}
        if not isinstance(tools, list) or search_tools(body, [SEARCH["name"]]):
            return changed
        # the model must not call it where the client has no tools of its own
        choice = {} if tools else {"tool_choice": self.no_call}
        return {**changed, "tools": [*tools, tool], **choice}

    def _search(self, arguments: Body, evidence: str) -> tuple[list[Body], Body]:
        """A call with its result, and the declaration of the tool."""
        function = {"name": SEARCH["name"], "arguments": json.dumps(arguments, ensure_ascii=False)}
        call = {"id": CALL, "type": "function", "function": function}
        result = {"role": "tool", "tool_call_id": CALL, "content": evidence}
        tool = {"type": "function", "function": {**SEARCH, "parameters": SEARCH_PARAMETERS}}
        return [{"role": "assistant", "content": None, "tool_calls": [call]}, result], tool

    def allow(self, tools: Sequence[Body]) -> Any:
        """``tool_choice`` of these tools alone: the list of tools stays as it is, and with it a cached prompt."""
        allowed = {"mode": "auto", "tools": [self.choice(tool) for tool in tools]}
        return {"type": "allowed_tools", "allowed_tools": allowed} if tools else self.no_call

    def choice(self, tool: Body) -> Body:
        """``tool_choice`` that makes the model call the tool."""
        return {"type": "function", "function": {"name": _name(tool)}}


class CompletionForm(RequestForm):
    """``/v1/completions``: one ``prompt``, with the passages in front of it."""

    field = "prompt"

    def gate_input(self, body: Body, config: ServeConfig, reads: frozenset[Reads]) -> GatedMessage:
        prompt = body.get("prompt")
        if body.get("suffix"):
            return GatedMessage(None, None, "fill-in")
        if not isinstance(prompt, str | list) or (isinstance(prompt, list) and not prompt):
            raise BadBody("expected text", "prompt")
        if not isinstance(prompt, str):
            return GatedMessage(None, None, "prompt-list")
        return gate_input([{"role": "user", "content": prompt}], config, reads)

    def replace_question(self, body: Body, prompt: str, system: str | None, place: int) -> Body:
        return {**body, "prompt": render_chat(None, prompt, system)}


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
        items, instructions = body["input"], body.get("instructions")
        if not instructions and isinstance(items, list) and items[0].get("role") in _SYSTEM:
            return super().extend_system(body, text)
        # the upstream does not store ``instructions`` for the next response
        return {**body, "instructions": _behind(instructions, text)}

    def _search(self, arguments: Body, evidence: str) -> tuple[list[Body], Body]:
        text = json.dumps(arguments, ensure_ascii=False)
        call = {"type": "function_call", "call_id": CALL, "name": SEARCH["name"], "arguments": text}
        result = {"type": "function_call_output", "call_id": CALL, "output": evidence}
        return [call, result], {"type": "function", **SEARCH, "parameters": SEARCH_PARAMETERS, "strict": False}

    def allow(self, tools: Sequence[Body]) -> Any:
        chosen = super().allow(tools)
        return {"type": "allowed_tools", **chosen["allowed_tools"]} if tools else chosen

    def choice(self, tool: Body) -> Body:
        by_name = tool.get("type", "function") == "function"
        return {"type": "function", "name": _name(tool)} if by_name else {"type": tool["type"]}


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
        return {**body, "system": _behind(body.get("system"), text)}

    def _search(self, arguments: Body, evidence: str) -> tuple[list[Body], Body]:
        call = {"type": "tool_use", "id": CALL, "name": SEARCH["name"], "input": arguments}
        result = {"type": "tool_result", "tool_use_id": CALL, "content": evidence}
        messages = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        return messages, {**SEARCH, "input_schema": SEARCH_PARAMETERS}

    def choice(self, tool: Body) -> Body:
        return {"type": "tool", "name": _name(tool)}


FORMS: Mapping[str, RequestForm] = {
    "chat/completions": RequestForm(),
    "completions": CompletionForm(),
    "responses": ResponsesForm(),
    "messages": MessagesForm(),
}


def _message_of_item(item: Any) -> Any:
    """An item of ``input`` as a message of a chat; calls and reasoning are the model's, outputs a tool's, and
    anything else is a setting."""
    kind = item.get("type") or "message" if isinstance(item, dict) else "message"
    if kind == "message" or not isinstance(kind, str):
        return item
    if kind == "item_reference":
        return {"role": kind}
    if kind.endswith(("_output", "_response")):
        return {"role": "tool"}
    return {"role": "assistant" if kind == "reasoning" or kind.endswith(("_call", "_request")) else "developer"}


def _with_tool_role(message: Any) -> Any:
    """A message of Anthropic's with the role ``tool`` where it carries a tool's result."""
    content = message.get("content") if isinstance(message, dict) else None
    results = isinstance(content, list) and any(isinstance(b, dict) and b.get("type") == "tool_result" for b in content)
    return {**message, "role": "tool"} if results else message


def _with_content(messages: list[Body], place: int, content: Any) -> list[Body]:
    return [{**m, "content": content} if m is messages[place] else m for m in messages]


def brings_documents(body: Body) -> bool:
    """True for a request with passages in a field of its own, as vLLM, Cohere and Open WebUI have it."""
    holders = (body, body.get("extra_body"), body.get("chat_template_kwargs"))
    return any(isinstance(holder, dict) and (holder.get("documents") or holder.get("files")) for holder in holders)


def thinks(body: Body) -> bool:
    """True for a request that asks the model to reason: such models take no forced tool, no call without reasoning."""
    thinking = body.get("thinking")
    asked = isinstance(thinking, dict) and thinking.get("type") != "disabled"
    return asked or body.get("enable_thinking") is True


def _without_system(messages: list[Body]) -> list[Body]:
    return messages[1:] if messages[0].get("role") in _SYSTEM else messages


def _behind(content: Any, text: str, kind: str = "text") -> Any:
    if isinstance(content, list):
        return [*content, {"type": kind, "text": text}]
    return "\n\n".join(filter(None, (content, text)))


def asks_whole(rule: PromptRule, own: OwnPrompts | None) -> bool:
    """True if requests are asked with the whole prompts that the gate's labels were made with."""
    return rule == "trained" or (rule == "auto" and own is not None)


def with_evidence(
    form: RequestForm,
    body: Body,
    gated: GatedMessage,
    evidence: str | None,
    rule: PromptRule,
    own: OwnPrompts | None,
    injection: Injection = "user",
) -> Body:
    """The request with the passages in it; the same object if there is nothing to change. ``own``: the gate's."""
    if gated.query is None or (evidence is None and (gated.kind is not None or not asks_whole(rule, own))):
        return body
    language = language_of(gated.query)
    if evidence is not None and not asks_whole(rule, own):
        if injection == "tool" and not thinks(body) and form.field != "prompt":
            return form.append_search(body, gated.searched or gated.query, evidence, gated.place)
        text = background(evidence, language)
        if injection == "system" and form.field != "prompt":
            return form.extend_system(body, text.rstrip("\n"))
        return form.precede_question(body, text, gated.place)
    question = Question("request", gated.asked or gated.query, (), "test", "request", language)
    if own is not None:
        return form.replace_question(body, own.render(question, evidence), own.system, gated.place)
    prompt = answer_prompt(question, "llm" if evidence is None else "rag", evidence)
    return form.replace_question(body, prompt, None, gated.place)


def search_tools(body: Body, patterns: Sequence[str]) -> list[Body]:
    """The tools of a request whose name fits a pattern, and those of a type that the upstream runs as a search.

    The tool that finds tools is none of them.
    """
    tools = body.get(_tools_field(body)) if patterns else None
    listed = tools if isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools) else []
    return [tool for tool in listed if _searches(tool, patterns)]


def _tools_field(body: Body) -> str:
    """``functions`` in requests of OpenAI's first form of tools."""
    return "functions" if body.get("functions") and not body.get("tools") else "tools"


def search_fields(body: Body, patterns: Sequence[str]) -> Body:
    """The fields by which a request makes the upstream search, each with its value without that; None: left out."""
    if not patterns:
        return {}
    off = any(body.get(name) is False for name in ("enable_search", "web_search"))  # its options then say nothing
    found: Body = {name: None for name, value in body.items() if _is_switched_on(name, value)
                   and not (off and name.endswith("_options"))}  # fmt: skip
    for holder, inner in body.items():
        if holder not in found and isinstance(inner, dict) and _HOLDER.fullmatch(holder):
            rest = {name: value for name, value in inner.items() if not _is_switched_on(name, value)}
            found |= {holder: rest or None} if len(rest) < len(inner) else {}
    if isinstance(plugins := body.get("plugins"), list):
        others = [p for p in plugins if not (isinstance(p, dict) and str(p.get("id")).lower() in WEB_PLUGINS)
                  or p.get("enabled") is False]  # fmt: skip
        if len(others) < len(plugins):
            found["plugins"] = others or None
    model = body.get("model")
    if isinstance(model, str) and model.endswith(":online"):
        found["model"] = model.removesuffix(":online")
    return found


def _is_switched_on(name: str, value: Any) -> bool:
    """True for a field that makes the upstream search, by a name and a value of any provider's."""
    if (not value and value != {}) or not _SWITCH.fullmatch(plain_name(name)):
        return False
    if isinstance(value, dict):
        value = next((value[key] for key in ("mode", "type", "enable", "enabled") if key in value), True)
    return bool(value) and not (isinstance(value, str) and value.lower() in _OFF)


def steer_tools(
    path: str, body: Body, tools: Sequence[Body], fields: Body, needed: bool, rule: ToolRule
) -> tuple[Body, ToolOutcome]:
    """The request after the gate's decision, and the outcome.

    ``remove``: without the tools, or the fields, where no search is needed; ``allow``: with them, out of the model's
    choice. ``force``: as ``remove``, and elsewhere the model must call the first of them, unless it thinks. A client's
    own choice of a tool stays, and tools that the dialogue has called: servers want them declared.
    """
    field = _tools_field(body)
    choice = body.get("tool_choice", body.get("function_call"))
    options = choice if isinstance(choice, dict) and choice.get("type") == "auto" else {}
    allowed = _allowed(choice)
    chosen = tools and not (options or allowed or choice in (None, "auto"))
    if rule == "keep" or (chosen and (needed or not fields)):
        return body, "kept"
    if needed:
        if rule != "force" or not tools or thinks(body) or allowed or field == "functions":
            return body, "kept"
        rest = {name: value for name, value in options.items() if name != "type"}
        return {**body, "tool_choice": {**FORMS[path].choice(tools[0]), **rest}}, "forced"
    changed = {name: value for name, value in {**body, **fields}.items() if name not in fields or value is not None}
    if not tools or chosen:
        return changed, "removed"
    rest_tools = [tool for tool in body[field] if not any(tool is search for search in tools)]
    # Anthropic's wire names no allowed tools
    if field == "tools" and (allowed or (rule == "allow" and not (rest_tools and path == "messages"))):
        kept = [tool for tool in rest_tools if not allowed or _name(tool) in allowed]
        return {**changed, "tool_choice": FORMS[path].allow(kept)}, "removed"
    if _has_calls(body):
        return changed, "removed" if fields else "kept"
    if rest_tools:
        return {**changed, field: rest_tools}, "removed"
    for name in (field, "tool_choice", "function_call", "parallel_tool_calls"):
        changed.pop(name, None)
    return changed, "removed"


def _allowed(choice: Any) -> list[str]:
    """Names of the tools that a client lets the model choose from; empty for any other choice."""
    inner = choice.get("allowed_tools", choice) if isinstance(choice, dict) else {}
    if not isinstance(inner, dict) or inner.get("mode") != "auto" or not isinstance(inner.get("tools"), list):
        return []
    return [_name(tool) for tool in inner["tools"] if isinstance(tool, dict)]


def _name(tool: Body) -> str:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else tool.get("name")
    return name if isinstance(name, str) else str(tool.get("type", ""))


def plain_name(name: str) -> str:
    """A name in small letters, with underscores between its words: of webSearch, web-search and $web_search."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return re.sub(r"[^\w*]+", "_", words).strip("_")


def _searches(tool: Body, patterns: Sequence[str]) -> bool:
    """True if the tool's name fits one of the patterns, or its type is a search of the upstream's; the way of writing
    does not count, nor the name of a server before the tool's (``mcp__docs__search``)."""
    name, kind = _name(tool), str(tool.get("type", ""))
    if plain_name(name).startswith("tool_search") or kind.startswith(("tool_search", "namespace")):
        return False
    if any(isinstance(inner, dict) and inner.get("enable", inner.get("enabled")) is False for inner in tool.values()):
        return False
    return _fits([name], patterns) or _fits([kind, *tool], HOSTED)  # {"google_search": {}} has no type


_BARE = ("search", "retrieve", "retrieval", "query")  # of a mailbox or a shop as well
_SEARCHING = re.compile(
    r"exa|tavily\w*|brave|docs?|kb\w*|web\w*|rag\w*|knowledge\w*|\w*search|serp\w*|perplexity\w*|bing|wiki\w*|vector\w*"
)


def _fits(names: Sequence[str], patterns: Sequence[str]) -> bool:
    """True if one of the names, or its part behind the last ``__``, ``.``, ``:`` or ``/``, fits one of the patterns; a
    bare word behind another name than a search's does not count."""
    parts = list(names)
    for name in names:
        *server, tool = re.split(r"__|[.:/]", name)
        words = plain_name("_".join(server)).split("_")
        if server and (tool.lower() not in _BARE or any(map(_SEARCHING.fullmatch, words)) or words[-1] == "google"):
            parts.append(tool)
    written = {*map(str.lower, parts), *map(plain_name, parts)}
    return any(fnmatch.fnmatchcase(one, pattern.lower()) for one in written for pattern in patterns)


def _has_calls(body: Body) -> bool:
    """True if the dialogue holds a call of a tool or its result."""
    turns = body.get("messages") or body.get("input")
    for turn in turns if isinstance(turns, list) else ():
        if not isinstance(turn, dict):
            continue
        content = turn.get("content")
        blocks = [turn, *content] if isinstance(content, list) else [turn]
        kinds = [str(block.get("type")) for block in blocks if isinstance(block, dict)]
        if turn.get("tool_calls") or turn.get("function_call") or turn.get("role") in ("tool", "function"):
            return True
        if any(kind.endswith(("_call", "_call_output", "tool_use", "tool_result")) for kind in kinds):
            return True
    return False
