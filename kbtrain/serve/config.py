"""Settings of ``kbtrain serve``; the command line wins over a YAML file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, create_model, model_validator

from kbtrain.answers.words import LISTS
from kbtrain.config import C, Config, parse_args
from kbtrain.llm.dialect import KeyHeader
from kbtrain.net import check_url, hide_values, is_loopback
from kbtrain.records import DtypeName

OnGateFailure = Literal["retrieve", "plain", "error"]
OnSearchFailure = Literal["plain", "error"]
Injection = Literal["user", "system", "tool"]
PromptRule = Literal["auto", "background", "trained"]
StatesFrom = Literal["auto", "upstream", "here", "any"]
GatedInput = Literal["auto", "question", "turn"]
ToolRule = Literal["keep", "remove", "allow", "force"]
ServerPolicy = Literal["gate", "always", "never", "pass"]
NO_SEARCH = frozenset({"never", "pass"})  # policies
ASK_IT = "ask the gate from your own program (docs/howto/own-program.md)"
SEARCH_TOOLS = tuple(sorted(LISTS["server"]["search_tools"]))
_ROUTES = "chat/completions|completions|responses|messages|gate|decisions|systemone"
ModelOrRoute = Annotated[str, StringConstraints(pattern=rf"^([^/].*|/v1/({_ROUTES}))$")]
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/?#\s]+")


class ServeConfig(Config):
    gate: Path = Field(..., description="the gate's folder, or USER/NAME on the hub")
    revision: str | None = Field(None, description="branch, tag or commit of a gate on the hub; null: its main branch")
    key: str | None = Field(
        None, description="which label of a gate with several decides, e.g. mastery; null: the best on dev"
    )
    dtype: DtypeName = Field("auto", description="of the gate; auto: as saved")
    device: str = Field("auto", description="of the gate: auto, cpu or cuda")
    threshold: float | None = Field(None, description="threshold to use instead of the stored one")
    gated: GatedInput = Field("auto", description="what the gate reads of a chat: the last question, or the dialogue")
    window: int = Field(
        1, ge=1, le=20, description="number of the user's last messages by which a follow-up is gated and searched"
    )
    sources: dict[ModelOrRoute, Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]] = Field(
        {},
        description="source of a request without the header x-kbtrain-source, by the model in a chat's body, else by "
        "its route, as {support-bot: support, /v1/gate: batch}",
    )
    utterance_rules: bool = Field(
        True, description="never search for greetings, thanks, instructions about a text and arithmetic, at any score"
    )

    upstream: str | None = Field(None, description="address of an OpenAI-compatible server, up to and with /v1")
    upstream_key_env: str = Field("OPENAI_API_KEY", description="environment variable that holds the upstream's key")
    upstream_key_header: KeyHeader = Field("Authorization", description="header that carries the upstream's key")
    upstream_timeout_s: float = Field(600, gt=0, description="longest wait for the upstream, in seconds")
    model: str | None = Field(
        None, description="instead of an upstream, a model in this process: name, folder or hub id"
    )

    states: StatesFrom = Field(
        "auto",
        description="source of a probe's hidden states: upstream (vLLM with the flags of kbtrain vllm-args) or here (a "
        "copy of the model in this process); auto: the upstream, if there is one; any: as auto, even if the upstream's "
        "model has another name",
    )

    search: str = Field(
        "auto",
        description="none; atlas; an index folder (BM25 or vectors); a corpus (.jsonl, .tsv, .csv, a folder of "
        ".md and .txt); http(s)://...{query}; module:function; auto. "
        "auto takes the web search or the index of the gate's run folder, and without one the atlas for a model in "
        "this process",
    )
    columns: dict[Literal["id", "title", "text"], str] = Field(
        {},
        description="columns of a corpus: our field -> your column, as {text: body}; without an id, lines are counted",
    )
    search_mapping: dict[str, Any] = Field({}, description="HTTP search: results, id, title, text, score, headers")
    k: int | None = Field(
        None,
        ge=1,
        le=100,
        description="number of passages in the prompt; null: the number that the gate was trained with, or 3",
    )
    search_deadline_s: float = Field(2.0, gt=0, description="seconds after which the model answers without passages")
    prompt: PromptRule = Field(
        "auto",
        description="background: passages before the user's own text, as in the KBM paper's figure 10. trained: the "
        "prompts of the gate's labels, that is your templates or its figures 9 and 10. auto: trained for a gate "
        "with your templates, else background",
    )
    search_tool: list[str] = Field(
        list(SEARCH_TOOLS),
        description="names (patterns) of clients' search tools. A request with such a tool, or with a field that makes "
        "the upstream search, gets no passages; the gate decides about the tool. []: tools are ignored",
    )
    tool: ToolRule = Field(
        "remove",
        description="what happens to a search tool. remove: it leaves the request if no search is needed (a changed "
        "list of tools invalidates the upstream's prompt cache); allow: tool_choice excludes it instead (none or "
        "allowed_tools, for upstreams that know these); force: as remove, and the model must call it if a "
        "search is needed; keep: the decision is only in headers and log",
    )
    wrappers: list[re.Pattern[str]] = Field(
        [],
        description="regular expressions of text that clients put around the user's words, in addition to known ones; "
        "it is removed before gating and searching ((?s) lets a dot match line ends)",
    )
    injection: Injection = Field("user", description="message that takes the passages: user, system or tool (a result)")

    on_gate_failure: OnGateFailure = Field("retrieve", description="retrieve, plain or error")
    on_search_failure: OnSearchFailure = Field("plain", description="plain or error")
    gate_deadline_s: float = Field(10.0, gt=0, description="seconds after which the gate counts as failed")
    batch: int = Field(32, ge=1, description="questions scored at once")
    queue: int = Field(256, ge=1, description="questions that may wait; further ones get 503 with Retry-After")

    policy: ServerPolicy = Field(
        "gate",
        description="gate: the gate decides; always, never: search always or never; pass: requests are forwarded "
        "unchanged. The log says what the gate would do. A request's headers x-kbtrain-retrieve, -threshold "
        "and -budget override always and never",
    )
    log: Path | None = Field(None, description="decision log, JSON lines")
    explore: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the gated requests, and of the decisions of /v1/gate, that are decided at random, so "
        "that kbtrain value can estimate other gates and thresholds; needs log and a search",
    )
    log_text: bool = Field(False, description="log the questions as text; otherwise only their hashes")
    log_max_mb: float = Field(100.0, gt=0, description="size at which the log is rotated")

    host: str = Field(
        "127.0.0.1", description="address to listen on; an address other than this machine's own needs keys"
    )
    port: int = Field(8000, ge=0, le=65535, description="port; 0: any free one")
    keys: Path | None = Field(None, description="file with the accepted API keys, one per line")
    cors: list[str] = Field(
        [], description="origins of web pages that may ask, such as https://chat.example; *: all, which needs keys"
    )
    max_body_mb: float = Field(
        8.0, gt=0, description="larger requests pass ungated to the upstream; without an upstream they get 413"
    )
    max_question_chars: int = Field(20_000, ge=1, description="a longer question passes ungated")
    read_timeout_s: float = Field(10.0, gt=0, description="time for a request's head, and again for its body")
    max_inflight: int = Field(1000, ge=1, description="requests in progress; further ones get 503 with Retry-After")

    @model_validator(mode="after")
    def _check_together(self) -> ServeConfig:
        if self.upstream is not None:
            check_url(self.upstream, "upstream")
        if self.upstream is not None and self.model is not None:
            raise ValueError("key 'model': give an upstream or a model in this process, not both")
        hide_values(self.search_mapping, "search_mapping")
        if self.search_mapping and not self.search.startswith(("http://", "https://")):
            raise ValueError("key 'search_mapping': is for a search by HTTP (search: https://...{query})")
        answers = self.upstream is not None or self.model is not None
        if self.explore and (self.log is None or self.policy != "gate" or (answers and self.search == "none")):
            raise ValueError("key 'explore': needs log and a search, and policy: gate: it changes what is done")
        if not is_loopback(self.host) and self.keys is None:
            raise ValueError(f"key 'host': {self.host} can be reached by others; name a file of API keys (--keys FILE)")
        for origin in self.cors:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(f"key 'cors': expected an origin such as https://chat.example, found {origin!r:.60}")
        if "*" in self.cors and self.keys is None:
            raise ValueError("key 'cors': * lets every web page ask; name a file of API keys (--keys FILE)")
        return self


# The command lines are read here: their help opens nothing of a gate.
SERVE = """Put a gate in front of a model: an OpenAI-compatible server that searches only where it is needed.

Examples:
  kbtrain serve runs/demo/stack --model smollm2-135m-instruct
  kbtrain serve runs/mine/features --upstream http://127.0.0.1:8001/v1 --port 8080
  kbtrain serve runs/mine/features --config serve.yaml
"""
MCP = """Offer a gate to agents: an MCP server over standard input and output, with tools should_search and search.

Examples:
  kbtrain mcp runs/mine/features
  kbtrain mcp runs/mine/features --search passages.jsonl --k 5
"""
OF_MCP = (
    "gate", "revision", "key", "dtype", "device", "threshold", "utterance_rules", "search", "search_mapping", "k",
    "search_deadline_s", "on_gate_failure", "gate_deadline_s", "max_question_chars",
)  # fmt: skip
_OTHERWISE_IN_MCP = {  # no model answers there
    "search": "none; atlas; an index folder (BM25 or vectors); a corpus (.jsonl, .tsv, .csv, a folder of .md and "
    ".txt); http(s)://...{query}; module:function; auto: the web search or the index of the gate's run folder",
    "search_deadline_s": "seconds after which the tool `search` fails",
    "max_question_chars": "a longer question is an error of the tool",
}


def _mcp_field(name: str) -> Any:
    field = copy(ServeConfig.model_fields[name])
    field.description = _OTHERWISE_IN_MCP.get(name, field.description)
    return field


McpConfig: type[Config] = create_model(
    "McpConfig",
    __base__=Config,
    __module__=__name__,
    **{name: (ServeConfig.model_fields[name].annotation, _mcp_field(name)) for name in OF_MCP},  # type: ignore[call-overload]
)


def serve_settings(arguments: Sequence[str]) -> ServeConfig:
    """Settings of ``kbtrain serve FOLDER [--key value ...]``. Raises :class:`UserError`."""
    return _parse(ServeConfig, arguments, SERVE, "kbtrain serve FOLDER")


def mcp_settings(arguments: Sequence[str]) -> ServeConfig:
    """Settings of ``kbtrain mcp FOLDER [--key value ...]``. Raises :class:`UserError`."""
    settings = _parse(McpConfig, arguments, MCP, "kbtrain mcp FOLDER")
    return ServeConfig(**{name: getattr(settings, name) for name in settings.model_fields_set})


def _parse(kind: type[C], arguments: Sequence[str], usage: str, command: str) -> C:
    words = list(arguments)
    if words and not words[0].startswith("-") and "=" not in words[0]:
        words[0] = f"gate={words[0]}"
    return parse_args(kind, words, usage, command)
