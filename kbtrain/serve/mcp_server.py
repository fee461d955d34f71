"""A gate as an MCP server over standard input and output: with tools of its own, or in front of another MCP server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, create_model

from kbtrain import __version__
from kbtrain.config import Config, parse_args
from kbtrain.errors import UserError, require
from kbtrain.gates.registry import folder_of
from kbtrain.prompts.template_marks import break_marks
from kbtrain.serve.config import ServeConfig
from kbtrain.serve.mcp_wrapper import AgentGate, SearchJudgement, WrapConfig, run_wrapped
from kbtrain.serve.problem import Refused
from kbtrain.serve.search import Search, index_beside, open_search

if TYPE_CHECKING:
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
logger = logging.getLogger("kbtrain.serve")


McpConfig: type[Config] = create_model(
    "McpConfig",
    __base__=WrapConfig,
    __module__=__name__,
    **{name: (ServeConfig.model_fields[name].annotation, ServeConfig.model_fields[name]) for name in KEYS},  # type: ignore[call-overload]
)
Question = Annotated[str, Field(description="the user's question, as it was asked and understandable on its own")]


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
    words = list(arguments)
    if words and not words[0].startswith("-") and "=" not in words[0]:
        words[0] = f"gate={words[0]}"
    given: Any = parse_args(McpConfig, words, USAGE, "kbtrain mcp FOLDER")
    require("mcp", "mcp")
    if given.wrap is not None and given.model_fields_set & {"search", "search_mapping", "k", "search_deadline_s"}:
        raise UserError("key 'wrap': the wrapped server searches; remove the keys of the search")
    config = ServeConfig(**{name: getattr(given, name) for name in given.model_fields_set if name in KEYS})
    config = config.model_copy(update={"gate": folder_of(config.gate, config.revision)})
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    say(f"opening {config.gate} ...")
    if given.wrap is not None:
        gate = AgentGate(config)
        try:
            run_wrapped(gate, given, say)
        finally:
            gate.decider.close()
        return
    gated = GatedSearch(config)
    say(f"{gated.decider.loaded.name} answers on standard input; search: {gated.search_name}")
    try:
        mcp_server(gated).run("stdio")
    finally:
        gated.decider.close()


class GatedSearch(AgentGate):
    """A gate and a search behind it. Raises :class:`UserError` also for no index."""

    def __init__(self, config: ServeConfig) -> None:
        if config.search == "auto":
            index = index_beside(config.gate)
            if index is None:
                raise UserError(f"key 'search': no index beside {config.gate}; give one, or none (should_search alone)")
            config = config.model_copy(update={"search": index})
        super().__init__(config)
        self.search: Search | None = open_search(config)

    @property
    def search_name(self) -> str:
        """Name of the search; ``none`` without one."""
        return "none" if self.search is None else self.search.name

    async def find(self, question: str, most: int | None) -> SearchResult:
        """Passages where the gate asks for them. Raises :class:`Refused`."""
        assert self.search is not None
        judgement = await self.judge(question)
        if not judgement.retrieve:
            return SearchResult(searched=False, reason=judgement.reason, passages=[])
        try:
            async with asyncio.timeout(self.config.search_deadline_s):
                hits = await self.search.find(question, most or self.config.k)
        except TimeoutError:
            raise Refused(504, "search_failed", f"the search took over {self.config.search_deadline_s:g} s") from None
        except Exception as error:  # noqa: BLE001 - of a service or of a function of the user's
            logger.warning("search: %s", type(error).__name__)
            raise Refused(502, "search_failed", "the search failed") from None
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

    async def should_search(question: Question) -> SearchJudgement:
        try:
            return await gated.judge(question)
        except Refused as refused:
            raise ToolError(str(refused)) from None

    async def search(
        question: Question,
        most: Annotated[int | None, Field(ge=1, le=100, description="most passages; null: as configured")] = None,
    ) -> SearchResult:
        try:
            return await gated.find(question, most)
        except Refused as refused:
            raise ToolError(str(refused)) from None

    about = "Decide if a question needs a search, or if the model answers it right from memory."
    server.tool(description=about, annotations=read_only, structured_output=True)(should_search)
    if gated.search is not None:
        about = "Search for passages on a question, only where the gate says that it needs them."
        server.tool(description=about, annotations=read_only, structured_output=True)(search)
    return server
