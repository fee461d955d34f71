"""A gate as an MCP server over standard input and output: with tools of its own, or in front of another MCP server."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import shlex
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import httpx2
from pydantic import BaseModel, Field, create_model

from kbtrain import __version__
from kbtrain.answers.writing import is_blank
from kbtrain.config import Config
from kbtrain.errors import UserError, require
from kbtrain.gates.registry import folder_of
from kbtrain.net import check_url
from kbtrain.prompts.template_marks import break_marks
from kbtrain.serve.config import SEARCH_TOOLS, ServeConfig, parse_command
from kbtrain.serve.decide import Decider, decide_without_gate
from kbtrain.serve.problem import Refused
from kbtrain.serve.request_forms import fits
from kbtrain.serve.search import Search, find_within, open_search, open_source, search_beside

if TYPE_CHECKING:
    from mcp import Client
    from mcp.server.lowlevel import Server
    from mcp.server.mcpserver import MCPServer

USAGE = """Offer a gate to agents: an MCP server over standard input and output, with tools should_search and search.

With --wrap the gate stands in front of another MCP server: calls of its search tools pass only where they are needed.

Examples:
  kbtrain mcp runs/mine/features
  kbtrain mcp runs/mine/features --search passages.jsonl --k 5
  kbtrain mcp runs/mine/features --wrap "npx -y my-search-server"
  kbtrain mcp runs/mine/features --wrap https://search.example/mcp
"""
KEYS = (
    "gate", "revision", "key", "dtype", "device", "threshold", "utterance_rules", "needs_knowledge", "search",
    "search_mapping", "k", "search_deadline_s", "on_gate_failure", "gate_deadline_s", "max_question_chars",
)  # fmt: skip
INSTRUCTIONS = (
    "The gate knows which questions the model answers right from memory. Call search with the user's question as it "
    "was asked: it searches only where that is needed, and says why otherwise."
)
QUERY_NAMES = ("query", "question", "q", "search_query", "text")
NOT_NEEDED = "No search needed ({reason}): answer from what you know."


Question = Annotated[str, Field(description="the user's question, as it was asked and understandable on its own")]
Most = Annotated[int | None, Field(ge=1, le=100, description="most passages; null: as configured")]


class WrapConfig(Config):
    wrap: str | None = Field(
        None, description="another MCP server, in front of which the gate stands: a command, or an http(s) address"
    )
    wrap_key_env: str = Field("MCP_API_KEY", description="environment variable with the bearer token for that address")
    search_tool: list[str] = Field(
        list(SEARCH_TOOLS), description="names (patterns) of the wrapped server's search tools; other tools pass"
    )
    query_argument: str | None = Field(
        None, description="argument of these tools that holds the question; null: query, question, q, or the only text"
    )


class SearchJudgement(BaseModel):
    """Answer of ``should_search``. ``score`` is None where the gate failed."""

    retrieve: bool
    reason: str
    gate: str
    score: float | None = None
    probability: float | None = None
    threshold: float | None = None


class AgentGate:
    """A gate for an agent's questions before a search. Raises :class:`UserError` for a gate that reads more."""

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        self.decider = Decider(config)
        gate = self.decider.loaded.gate
        if "question" not in gate.reads:
            raise UserError(f"gate '{gate.name}': reads dialogues; an MCP tool gets one question")
        if self.decider.loaded.after_search:
            raise UserError(f"gate '{gate.name}': reads what a search found; an agent asks before the search")
        self.decider.warm_up()

    async def judge(self, question: Question) -> SearchJudgement:
        """Decision about a question. A gate that fails decides by ``on_gate_failure``. Raises :class:`Refused`."""
        if is_blank(question) or len(question) > self.config.max_question_chars:
            raise Refused(400, "question", f"question: expected 1 to {self.config.max_question_chars} characters")
        try:
            (decision,) = await self.decider.decide([question])
        except Exception as error:  # noqa: BLE001 - a gate may raise any, the agent gets an answer
            retrieve = decide_without_gate(error, self.config.on_gate_failure)
            return SearchJudgement(retrieve=retrieve, reason="gate-failed", gate=self.decider.loaded.name)
        return SearchJudgement.model_validate(decision, from_attributes=True)


def first_error(error: Exception) -> Exception:
    """The first error inside nested groups."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


async def serve_wrapped(gate: AgentGate, config: WrapConfig, say: Callable[[str], None]) -> None:
    """Serve the wrapped server's tools over standard input and output. Raises :class:`UserError`."""
    from mcp.server.stdio import stdio_server

    async with open_wrapped(config) as client:
        gated = await gated_tools(client, config)
        say(f"{gate.decider.loaded.name} answers on standard input in front of: {', '.join(gated)}")
        server = wrapper(gate, client, config)
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())


@contextlib.asynccontextmanager
async def open_wrapped(config: WrapConfig) -> AsyncIterator[Client]:
    """A client of the wrapped server. Raises :class:`UserError` where it cannot be started or reached."""
    from mcp import Client, StdioServerParameters
    from mcp.client.streamable_http import streamable_http_client

    assert config.wrap is not None
    async with contextlib.AsyncExitStack() as stack:
        server: Any
        if config.wrap.startswith(("http://", "https://")):
            check_url(config.wrap, "wrap")
            token = os.environ.get(config.wrap_key_env)
            headers = {"authorization": f"Bearer {token}"} if token else {}
            timeout = httpx2.Timeout(30, read=300)  # the SDK's own: a search may stream its answer
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=timeout))
            server = streamable_http_client(config.wrap, http_client=http)
        else:
            try:
                command, *words = shlex.split(config.wrap)
            except ValueError as error:
                raise UserError(f"key 'wrap': expected a command or an address ({error})") from None
            # the SDK passes a few variables alone; the agent sets the wrapped server's keys for this process
            server = StdioServerParameters(command=command, args=words, env=dict(os.environ))
        try:
            client = await stack.enter_async_context(Client(server))
        except Exception as error:  # noqa: BLE001 - of a command or a network: the SDK documents no type
            cause = first_error(error)
            raise UserError(f"key 'wrap': no MCP server answers there ({type(cause).__name__}: {cause})") from None
        yield client


async def gated_tools(client: Client, config: WrapConfig) -> list[str]:
    """Names of the tools whose calls the gate decides.

    Raises :class:`UserError` for none, and for one without an argument that holds a question.
    """
    tools, cursor = [], None
    while True:
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        if (cursor := page.next_cursor) is None:
            break
    gated = [tool for tool in tools if fits(tool.name, config.search_tool)]
    if not gated:
        names = ", ".join(tool.name for tool in tools) or "none"
        raise UserError(f"key 'search_tool': no tool of the wrapped server has such a name; its tools: {names}")
    for tool in gated:
        schemas = tool.input_schema.get("properties", {})
        texts = {name: "" for name, schema in schemas.items() if schema.get("type") == "string"}
        if query_of(texts, config.query_argument) is None:
            names = ", ".join(schemas) or "none"
            raise UserError(f"key 'query_argument': name the question's argument of tool '{tool.name}': {names}")
    return [tool.name for tool in gated]


def query_of(arguments: Mapping[str, Any], name: str | None) -> str | None:
    """The question among a call's arguments: of that name, of a usual one, or the only text; None without one."""
    texts = {key: value for key, value in arguments.items() if isinstance(value, str)}
    if name is not None:
        return texts.get(name)
    usual = next((texts[key] for key in QUERY_NAMES if key in texts), None)
    return next(iter(texts.values())) if usual is None and len(texts) == 1 else usual


def wrapper(gate: AgentGate, client: Client, config: WrapConfig) -> Server[Any]:
    """The server that an agent sees: tools, prompts and resources of the wrapped one."""
    from mcp.server.lowlevel import Server
    from mcp.types import CallToolResult, TextContent

    session, has = client.session, client.server_capabilities

    async def list_tools(context: Any, params: Any) -> Any:
        page = await session.list_tools(params=params)
        tools = [
            tool.model_copy(update={"output_schema": None}) if fits(tool.name, config.search_tool) else tool
            for tool in page.tools
        ]
        return page.model_copy(update={"tools": tools})

    async def call_tool(context: Any, params: Any) -> Any:
        arguments = params.arguments or {}
        query = query_of(arguments, config.query_argument) if fits(params.name, config.search_tool) else None
        if query is not None:
            try:
                judgement = await gate.judge(query)
            except Refused as refused:
                return CallToolResult(content=[TextContent(type="text", text=str(refused))], is_error=True)
            if not judgement.retrieve:
                text = TextContent(type="text", text=NOT_NEEDED.format(reason=judgement.reason))
                return CallToolResult(content=[text], structured_content=judgement.model_dump())
        return await session.call_tool(
            params.name,
            arguments,
            input_responses=params.input_responses,
            request_state=params.request_state,
            allow_input_required=True,
        )

    handlers: dict[str, Callable[[Any, Any], Any]] = {"on_list_tools": list_tools, "on_call_tool": call_tool}
    if has.resources is not None:
        handlers["on_list_resources"] = lambda context, params: session.list_resources(params=params)
        handlers["on_list_resource_templates"] = lambda context, params: session.list_resource_templates(params=params)
        handlers["on_read_resource"] = lambda context, params: session.read_resource(params.uri)
    if has.prompts is not None:
        handlers["on_list_prompts"] = lambda context, params: session.list_prompts(params=params)
        handlers["on_get_prompt"] = lambda context, params: session.get_prompt(params.name, params.arguments)
    return Server("kbtrain", version=__version__, instructions=client.instructions, **handlers)


McpConfig: type[Config] = create_model(
    "McpConfig",
    __base__=WrapConfig,
    __module__=__name__,
    **{name: (ServeConfig.model_fields[name].annotation, ServeConfig.model_fields[name]) for name in KEYS},  # type: ignore[call-overload]
)


class FoundPassage(BaseModel):
    """A passage that was found."""

    id: str
    title: str
    text: str


class SearchResult(BaseModel):
    """Answer of ``search``; without a search there are no passages."""

    searched: bool
    reason: str
    passages: list[FoundPassage]


def mcp_command(arguments: Sequence[str], say: Callable[[str], None]) -> None:
    """``kbtrain mcp FOLDER [--key value ...]``. Raises :class:`UserError`."""
    settings: Any = parse_command(McpConfig, arguments, USAGE, "kbtrain mcp FOLDER")
    require("mcp", "mcp")
    if settings.wrap is not None and settings.model_fields_set & {"search", "search_mapping", "k", "search_deadline_s"}:
        raise UserError("key 'wrap': the wrapped server searches; remove the keys of the search")
    config = ServeConfig(**{name: getattr(settings, name) for name in settings.model_fields_set if name in KEYS})
    config = config.model_copy(update={"gate": folder_of(config.gate, config.revision)})
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    say(f"opening {config.gate} ...")
    if settings.wrap is not None:
        gate = AgentGate(config)
        try:
            asyncio.run(serve_wrapped(gate, settings, say))
        except ExceptionGroup as group:  # the SDK's client wraps errors
            raise first_error(group) from None
        finally:
            gate.decider.close()
        return
    gated = GatedSearch(config)
    search = "none" if gated.search is None else gated.search.name
    say(f"{gated.decider.loaded.name} answers on standard input; search: {search}")
    try:
        mcp_server(gated).run("stdio")
    finally:
        gated.decider.close()


class GatedSearch(AgentGate):
    """A gate and a search behind it. Raises :class:`UserError` also for no index."""

    def __init__(self, config: ServeConfig) -> None:
        source = search_beside(config.gate) if config.search == "auto" else None
        if config.search == "auto" and source is None:
            raise UserError(f"key 'search': no index beside {config.gate}; give one, or none (should_search alone)")
        super().__init__(config)
        self.search: Search | None = open_search(config) if source is None else open_source(source, config)

    async def find(self, question: Question, most: Most = None) -> SearchResult:
        """Passages where the gate asks for them. Raises :class:`Refused`."""
        assert self.search is not None
        judgement = await self.judge(question)
        if not judgement.retrieve:
            return SearchResult(searched=False, reason=judgement.reason, passages=[])
        hits = await find_within(self.search, question, most or self.config.k, self.config.search_deadline_s)
        passages = [
            FoundPassage(id=hit.passage_id, title=break_marks(hit.title), text=break_marks(hit.text)) for hit in hits
        ]
        return SearchResult(searched=True, reason=judgement.reason if hits else "no-passages", passages=passages)


def mcp_server(gated: GatedSearch) -> MCPServer[Any]:
    """The server with its tools; without a search ``should_search`` alone."""
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import ToolAnnotations

    server: MCPServer[Any] = MCPServer("kbtrain", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING")
    read_only = ToolAnnotations(read_only_hint=True, idempotent_hint=True)

    def add_tool(function: Callable[..., Any], name: str, about: str) -> None:
        @functools.wraps(function)
        async def answer(*arguments: Any, **named: Any) -> Any:
            try:
                return await function(*arguments, **named)
            except Refused as refused:  # the SDK hides the words of any other error than its own
                raise ToolError(str(refused)) from None

        server.add_tool(answer, name, description=about, annotations=read_only, structured_output=True)

    about = "Decide if a question needs a search, or if the model answers it right from memory."
    add_tool(gated.judge, "should_search", about)
    if gated.search is not None:
        about = "Search for passages on a question, only where the gate says that it needs them."
        add_tool(gated.find, "search", about)
    return server
