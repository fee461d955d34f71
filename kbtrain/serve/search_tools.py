"""Search tools that a request brings along: the gate decides about the tool, and no passages are put into the prompt.

A tool is known by its name, or by its type where the upstream runs it (``web_search``, ``file_search``).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Any, Literal

Body = dict[str, Any]
ToolRule = Literal["keep", "remove", "force"]
ToolOutcome = Literal["kept", "removed", "forced"]
DEFAULT_NAMES = ("*search*", "*retriev*")


def search_tools(body: Body, patterns: Sequence[str]) -> list[Body]:
    """The tools of a request whose name or type fits a pattern."""
    tools = body.get("tools")
    found = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    return [tool for tool in found if fits(_name(tool), patterns)]


def steer_tools(path: str, body: Body, tools: Sequence[Body], needed: bool, rule: ToolRule) -> tuple[Body, ToolOutcome]:
    """The request after the gate's decision, and the outcome.

    ``remove``: the tools leave where no search is needed. ``force``: also, the first of them must be called where one
    is. A client's own choice of a tool stays, and so do tools that the dialogue has called: servers want them declared.
    """
    own_choice = body.get("tool_choice") not in (None, "auto", {"type": "auto"})
    if rule == "keep" or own_choice:
        return body, "kept"
    if needed:
        return ({**body, "tool_choice": _choice(path, tools[0])}, "forced") if rule == "force" else (body, "kept")
    if _has_calls(body):
        return body, "kept"
    rest = [tool for tool in body["tools"] if not any(tool is one for one in tools)]
    without = {name: value for name, value in body.items() if name not in ("tools", "tool_choice")}
    if not rest:
        without.pop("parallel_tool_calls", None)
        return without, "removed"
    return {**body, "tools": rest}, "removed"


def _name(tool: Body) -> str:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else tool.get("name")
    return name if isinstance(name, str) else str(tool.get("type", ""))


def fits(name: str, patterns: Sequence[str]) -> bool:
    """True if the name fits one of the patterns, whatever its case."""
    return any(fnmatch.fnmatchcase(name.lower(), pattern.lower()) for pattern in patterns)


def _choice(path: str, tool: Body) -> Body:
    """``tool_choice`` that makes the model call the tool, in the route's form."""
    if path == "messages":
        return {"type": "tool", "name": _name(tool)}
    if path == "responses":
        return {"type": "function", "name": _name(tool)} if tool.get("type") == "function" else {"type": tool["type"]}
    return {"type": "function", "function": {"name": _name(tool)}}


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
