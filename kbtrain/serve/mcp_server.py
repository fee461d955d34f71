"""A gate as an MCP server over standard input and output."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field

from kbtrain import __version__
from kbtrain.answers.writing import is_blank
from kbtrain.errors import UserError, require
from kbtrain.gates.registry import folder_of
from kbtrain.prompts.template_marks import break_marks
from kbtrain.serve.config import ServeConfig
from kbtrain.serve.decide import Decider, decide_without_gate
from kbtrain.serve.problem import Refused
from kbtrain.serve.search import Search, find_within, open_search, open_source, search_beside

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

INSTRUCTIONS = (
    "The gate knows which questions the model answers right from memory. Call search with the user's "
    "question as it was asked: it searches only if a search is needed, and otherwise says why."
)

Question = Annotated[str, Field(description="the user's question, as it was asked and understandable on its own")]
Most = Annotated[int | None, Field(ge=1, le=100, description="most passages; null: as configured")]


class SearchJudgement(BaseModel):
    """Answer of ``should_search``. ``score`` is None where the gate failed."""

    retrieve: bool
    reason: str
    gate: str
    score: float | None = None
    probability: float | None = None
    threshold: float | None = None


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


def run(config: ServeConfig, say: Callable[[str], None]) -> None:
    """Serve the tools over standard input and output. Raises :class:`UserError`."""
    require("mcp", "mcp")
    config = config.model_copy(update={"gate": folder_of(config.gate, config.revision)})
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    say(f"opening {config.gate} ...")
    gated = GatedSearch(config)
    search = "none" if gated.search is None else gated.search.name
    say(f"{gated.decider.loaded.name} answers on standard input; search: {search}")
    try:
        mcp_server(gated).run("stdio")
    finally:
        gated.decider.worker.close()


class GatedSearch:
    """A gate for an agent's questions, and a search behind it.

    Raises :class:`UserError` for a gate that reads more than a question, and for no index.
    """

    def __init__(self, config: ServeConfig) -> None:
        source = search_beside(config.gate) if config.search == "auto" else None
        if config.search == "auto" and source is None:
            raise UserError(f"key 'search': no index beside {config.gate}; give --search or none (should_search alone)")
        self.config = config
        self.decider = Decider(config)
        gate = self.decider.loaded.gate
        if "question" not in gate.reads:
            raise UserError(f"gate '{gate.name}': reads dialogues; an MCP tool gets one question")
        if self.decider.loaded.after_search:
            raise UserError(f"gate '{gate.name}': reads what a search found; an agent asks before the search")
        self.decider.warm_up()
        self.search: Search | None = open_search(config) if source is None else open_source(source, config)

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

    async def find(self, question: Question, most: Most = None) -> SearchResult:
        """Passages where the gate asks for them. Raises :class:`Refused`."""
        assert self.search is not None
        judgement = await self.judge(question)
        if not judgement.retrieve:
            return SearchResult(searched=False, reason=judgement.reason, passages=[])
        hits = await find_within(self.search, question, most or self.decider.k, self.config.search_deadline_s)
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

    about = "Decide whether a question needs a search, or the model answers it right from memory."
    add_tool(gated.judge, "should_search", about)
    if gated.search is not None:
        about = "Search for passages on a question, only if the gate says that it needs them."
        add_tool(gated.find, "search", about)
    return server
