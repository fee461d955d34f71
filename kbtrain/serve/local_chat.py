"""A chat as the model in this process reads it: the text that its chat template makes of the messages.

Templates leave out what they have no words for, calls of tools or whole roles, and say nothing. A server behind the
gate would be the one to know; here such a chat is refused by name, since its answer would be to another chat.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kbtrain.prompts.kbm import TEMPLATE_OPTIONS
from kbtrain.prompts.template_marks import break_special_tokens
from kbtrain.serve.chat import text
from kbtrain.serve.problem import Refused
from kbtrain.servers import whole_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEXT = {None, "text", "input_text"}  # types of a message's parts that hold text
UNREAD = ("function_call", "audio", "refusal")  # words of an assistant that no template looks for

Turn = dict[str, Any]


def chat_text(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, Any]]) -> str:
    """The chat template's text of messages of OpenAI's protocol, their joined texts where the model has no template.

    Arguments of tools' calls are given to it as objects, as most templates expect them, or, where it fails on those, as
    JSON's text, which others join to their own. Raises :class:`Refused` for what is no text, and for a message that the
    template fails on or leaves out, in whole or in part.
    """
    turns = [_turn(place, message) for place, message in enumerate(messages)]
    if tokenizer.chat_template:  # as in the prompts of labels (render_chat)
        turns = [{**turn, "content": break_special_tokens(tokenizer, turn["content"])} for turn in turns]
    try:
        rendered = _rendered(tokenizer, turns)
    except Refused:
        turns = [_with_texts(turn) for turn in turns]
        rendered = _rendered(tokenizer, turns)
    marks: dict[str, tuple[int, str]] = {}
    marked = _rendered(tokenizer, [_marked(place, turn, marks) for place, turn in enumerate(turns)])
    for mark, (place, field) in marks.items():
        if mark not in marked:
            role = turns[place]["role"]
            raise _refused(place, f"role '{role}', field '{field}': the model's chat template leaves it out")
    return rendered


def _turn(place: int, message: Mapping[str, Any]) -> Turn:
    """A message for the template: its fields without empty ones, its content as one text."""
    parts = message["content"] if isinstance(message.get("content"), list) else ()
    if not all(isinstance(part.get("text"), str) and part.get("type") in TEXT for part in parts):
        raise _refused(place, "this model reads text alone")
    field = next((name for name in UNREAD if message.get(name)), None)  # clients send empty ones along
    if field is not None:
        raise _refused(place, f"field '{field}': nothing this model's chat template reads")
    turn = {name: value for name, value in message.items() if value is not None} | {"content": text(dict(message))}
    calls = turn.pop("tool_calls", [])
    if not isinstance(calls, list) or not all(_is_call(call) for call in calls):
        raise _refused(place, "field 'tool_calls': expected calls of functions, each with a name and arguments")
    return turn | ({"tool_calls": [_called(call, _arguments(call)) for call in calls]} if calls else {})


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return (
        isinstance(function, dict)
        and isinstance(function.get("name"), str)
        and isinstance(function.get("arguments"), str | dict)
    )


def _called(call: Mapping[str, Any], arguments: Any, **changed: str) -> dict[str, Any]:
    return {**call, "function": {**call["function"], "arguments": arguments, **changed}}


def _arguments(call: Mapping[str, Any]) -> Any:
    """The object that a call's arguments are in JSON; a model may have written other text, which stays as it is."""
    given = call["function"]["arguments"]
    try:
        value, _ = whole_json(json.loads(given or "{}")) if isinstance(given, str) else (given, 0)
    except (ValueError, RecursionError):
        return given
    return value if isinstance(value, dict) else given


def _with_texts(turn: Turn) -> Turn:
    calls = [_called(call, _json(call["function"]["arguments"])) for call in turn.get("tool_calls", ())]
    return {**turn, "tool_calls": calls} if calls else turn


def _json(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _marked(place: int, turn: Turn, marks: dict[str, tuple[int, str]]) -> Turn:
    """The turn with a word of its own in place of each text, by which it is found again whatever is quoted."""

    def mark(field: str) -> str:
        word = f"mark{len(marks)}of{place}"
        marks[word] = place, field
        return word

    made = dict(turn)
    if turn["content"].strip():
        made["content"] = mark("content")
    if "tool_calls" in turn:
        made["tool_calls"] = list(_marked_calls(turn["tool_calls"], mark))
    return made


def _marked_calls(calls: Sequence[Mapping[str, Any]], mark: Callable[[str], str]) -> Iterator[dict[str, Any]]:
    for call in calls:
        given, word = call["function"]["arguments"], "tool_calls"
        marked = {name: mark(word) for name in given} if isinstance(given, dict) else given and mark(word)
        yield _called(call, marked, name=mark(word))


def _rendered(tokenizer: PreTrainedTokenizerBase, turns: Sequence[Turn]) -> str:
    if not tokenizer.chat_template:
        return "\n".join(turn["content"] for turn in turns)
    try:
        return str(tokenizer.apply_chat_template(list(turns), tokenize=False, **TEMPLATE_OPTIONS))
    except Exception:  # noqa: BLE001 - templates raise what they like
        raise Refused(400, "messages", "the model's chat template takes no such messages", "messages") from None


def _refused(place: int, what: str) -> Refused:
    return Refused(400, "unsupported", f"field 'messages': message {place}: {what}", "messages")
