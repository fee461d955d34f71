"""The back ends and the config keys of every script that uses a language model; each is imported when it is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from kbtrain.config import Config, build, read_yaml
from kbtrain.errors import did_you_mean
from kbtrain.llm.base import LLM, Sampling, ScriptedLLM
from kbtrain.llm.dialect import Dialect, KeyHeader, LimitName, Server
from kbtrain.models.batching import BatchLimits
from kbtrain.models.files_read import digest
from kbtrain.net import LONGEST_ASKED, Retry, check_url, hide_values
from kbtrain.records import DtypeName


@dataclass(frozen=True)
class Backend:
    """A back end: how it opens a model, and what its users can rely on. ``model_files``: the model's files are read on
    this machine; their hashes are noted with the answers. ``server``: another process answers, paid by the token.
    ``passes``: the model's passes run in this process and can be observed. ``states``: hidden states can be read.
    ``only_keys``: keys of this back end alone."""

    description: str
    open: Callable[[LLMConfig], LLM]
    model_files: bool = False
    server: bool = False
    passes: bool = False
    states: bool = False
    only_keys: tuple[str, ...] = ()


def _open_transformers(config: LLMConfig) -> LLM:
    from kbtrain.llm.transformers_llm import TransformersLLM

    return TransformersLLM.load(config.model, config.sampling(), config.dtype, config.device, config.limits())


def _open_vllm(config: LLMConfig) -> LLM:
    from kbtrain.llm.vllm_llm import VllmLLM

    return VllmLLM.load(config.model, config.sampling(), config.dtype, config.tensor_parallel, config.vllm_extra)


def _open_server(config: LLMConfig) -> LLM:
    from kbtrain.llm.openai_llm import OpenAILLM

    server = Server(
        url=config.server_url, model=config.served_name, chat=config.server_endpoint == "chat",
        asked_at_once=config.server_concurrency, opened=config.server_thought_opened, alias=config.server_alias,
        timeout=config.server_timeout, key_env=config.server_key_env, dialect=config.dialect(),
        retry=Retry(tries=config.server_tries, patience=config.server_patience),
    )  # fmt: skip
    return OpenAILLM.connect(config.model, config.sampling(), server)


BACKENDS: dict[str, Backend] = {
    "transformers": Backend("transformers", _open_transformers, model_files=True, passes=True, states=True),
    "vllm": Backend("vllm", _open_vllm, model_files=True, states=True, only_keys=("vllm_extra",)),
    "openai": Backend(
        "openai (a server that speaks its protocol)", _open_server, server=True, states=True,
        only_keys=("server_url", "server_model", "server_extra")),
    "scripted": Backend("scripted (no model)", lambda config: ScriptedLLM(config.model, config.sampling())),
}  # fmt: skip


class LLMConfig(Config):
    """Model, back end and sampling settings. A script's own config inherits them."""

    model: str = Field("smollm2-135m-instruct", description="embedded name, local folder or hub id")
    backend: str = Field("transformers", description=", ".join(kind.description for kind in BACKENDS.values()))
    dtype: DtypeName = Field("auto", description="auto: by the processor; vllm: the model's own")
    device: str = Field("auto", description="transformers: auto, cpu, cuda, cuda:1, ...")
    seed: str = Field("0", description="seed of the run's random numbers")
    temperature: float = Field(1.0, gt=0, description="sampling temperature")
    top_k: int = Field(0, ge=0, description="keep the k most probable tokens; 0: all")
    top_p: float = Field(1.0, gt=0, le=1, description="keep the most probable tokens up to this mass")
    max_new_tokens: int = Field(
        64, ge=1, description="longest answer, in tokens; label warns if 5 % of the answers are cut"
    )
    max_thought_tokens: int = Field(
        0, ge=0, description="additional tokens for a model that reasons before it answers; labels count what is cut"
    )
    max_prompt_tokens: int = Field(2048, ge=32, description="longer prompts lose evidence at the end")
    stop: tuple[str, ...] = Field(("\n",), description="strings that end an answer")
    batch_rows: int = Field(248, ge=1, description="answers sampled at once")
    batch_prompt_tokens: int = Field(16384, ge=32, description="prompt tokens prefilled at once, including padding")
    window: int = Field(256, ge=1, description="prompts handled together; also the unit of shards and of Ray tasks")
    tensor_parallel: int = Field(1, ge=1, description="vllm: GPUs that share one model")
    vllm_extra: dict[str, Any] = Field({}, description="additional arguments of vllm.LLM, e.g. {enforce_eager: true}")
    server_url: str = Field("http://127.0.0.1:8000/v1", description="openai: address up to and with /v1")
    server_model: str | None = Field(None, description="openai: the model's name on the server; null: as in model")
    server_endpoint: Literal["completions", "chat"] = Field(
        "completions",
        description="openai: completions (prompt made here, as token ids) or chat (the server's template)",
    )
    server_thought_opened: bool = Field(
        False,
        description="openai, chat: the server's template opens the reasoning; text without its end mark is reasoning",
    )
    server_alias: bool = Field(
        False, description="openai, completions: server_model is another name of model itself, with its tokenizer"
    )
    server_concurrency: int | None = Field(
        None, ge=1, description="openai: requests in progress at once; null: 128 of vLLM, which is then full, else 32"
    )
    server_n: bool | Annotated[int, Field(ge=1)] = Field(
        True, description="openai: answers in one request: true (all), false (one), or the most that the server returns"
    )
    server_logprobs: bool = Field(True, description="openai: ask for log-probabilities; false: they are stored as 0")
    server_tries: int = Field(8, ge=1, description="openai: number of tries for a failing request")
    server_timeout: float = Field(600.0, gt=0, description="openai: seconds to wait for an answer")
    server_patience: float = Field(
        LONGEST_ASKED, ge=0, description="openai: longest wait that the server may ask for (Retry-After), in seconds"
    )
    server_key_env: str = Field("OPENAI_API_KEY", description="openai: environment variable that holds the key")
    server_key_header: KeyHeader = Field("Authorization", description="openai: header that carries the key")
    server_limit: LimitName = Field(
        "max_tokens", description="openai: the server's name for the longest answer, which is max_new_tokens"
    )
    server_greedy: bool = Field(
        True, description="openai: temperature 0 for the greedy answer; false: one more sampled answer replaces it"
    )
    server_refused: float = Field(
        0.2, ge=0, le=1, description="openai: share of refused prompts above which sampling stops"
    )
    server_extra: dict[str, Any] = Field(
        {}, description="openai: additional fields of each request; null removes a field"
    )

    @property
    def kind(self) -> Backend:
        return BACKENDS[self.backend]

    @property
    def sees_prompts(self) -> bool:
        """True if prompts are rendered here, with the model's own tokenizer; a server's chat endpoint renders them."""
        return self.kind.model_files or (self.kind.server and self.server_endpoint != "chat")

    @property
    def served_name(self) -> str:
        return self.server_model or self.model

    def dialect(self) -> Dialect:
        n = self.server_n
        most = n if not isinstance(n, bool) else None if n else 1
        return Dialect(
            limit=self.server_limit, greedy=self.server_greedy, most=most, logprobs=self.server_logprobs,
            extra=self.server_extra, key_header=self.server_key_header,
        )  # fmt: skip

    @field_validator("backend")
    @classmethod
    def _check_backend(cls, name: str) -> str:
        if name not in BACKENDS:
            raise ValueError(f"unknown '{name}'; {did_you_mean(name, BACKENDS)}")
        return name

    @model_validator(mode="after")
    def _possible(self) -> LLMConfig:
        check_url(self.server_url, "server_url")
        hide_values(self.server_extra, "server_extra")
        # by value: a copy of a config, as workers get it, has every key
        changed = {key for key, field in LLMConfig.model_fields.items() if getattr(self, key) != field.get_default()}
        for name, kind in BACKENDS.items():
            for key in kind.only_keys if name != self.backend else ():
                if key in changed:
                    raise ValueError(f"key '{key}': applies only with backend: {name}; set that, or remove this key")
        for key in ("temperature", "top_p", "top_k"):
            if key in changed and self.server_extra.get(key, "") is None:
                raise ValueError(f"key '{key}': server_extra takes it out of every request; set one of the two")
        if "" in self.stop:
            raise ValueError("key 'stop': expected strings that are not empty (for none: [])")
        return self

    def sampling(self) -> Sampling:
        return Sampling(**self.model_dump(include=set(Sampling.__dataclass_fields__)))

    def limits(self) -> BatchLimits:
        return BatchLimits(self.batch_rows, self.batch_prompt_tokens, self.window)

    def run_settings(self) -> dict[str, Any]:
        """The keys that change answers, as JSON values: a run that is continued must have the same. Keys that were
        added after the first stores were written appear only when they are not at their defaults."""
        dumped = self.model_dump(mode="json")
        settings = {key: dumped[key] for key in ("model", "batch_rows", "batch_prompt_tokens")}
        settings["sampling"] = {key: dumped[key] for key in Sampling.__dataclass_fields__ if key not in _LATER}
        return settings | {key: dumped[key] for key, default in later_defaults().items() if dumped[key] != default}

    def depends(self) -> dict[str, Any]:
        """All that answers depend on, as JSON values: :meth:`run_settings`, and the model's files if they are here."""
        return {**self.run_settings(), "files": digest(self.model)}


def read_llm_config(path: Path) -> LLMConfig:
    """The keys of a language model in a file that is made for sampling, too."""
    values, _ = read_yaml(path)
    return build(LLMConfig, None, {key: value for key, value in values.items() if key in LLMConfig.model_fields})


def later_defaults() -> dict[str, Any]:
    """The keys that a run's settings hold only when they are not at these values."""
    return {key: LLMConfig.model_fields[key].get_default() for key in _LATER}


_LATER = (
    "backend", "max_thought_tokens", "window", "vllm_extra", "server_model", "server_endpoint", "server_thought_opened",
    "server_logprobs", "server_limit", "server_greedy", "server_extra",
)  # fmt: skip


def open_llm(config: LLMConfig) -> LLM:
    """The language model that a config describes, ready to answer. Raises :class:`~kbtrain.errors.UserError`."""
    return config.kind.open(config)
