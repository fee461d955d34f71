"""Which back ends there are, and how each is opened from a config. Nothing heavy is imported before it is asked for."""

from __future__ import annotations

from collections.abc import Callable

from kbtrain.llm.base import LLM
from kbtrain.llm.settings import LLMConfig


def open_llm(config: LLMConfig) -> LLM:
    """The language model that a config describes, ready to answer. Raises :class:`~kbtrain.errors.UserError`."""
    return BACKENDS[config.backend](config)


def _transformers(config: LLMConfig) -> LLM:
    from kbtrain.models.batching import BatchLimits
    from kbtrain.llm.transformers_llm import TransformersLLM

    limits = BatchLimits(config.batch_rows, config.batch_prompt_tokens, config.window)
    return TransformersLLM.load(config.model, config.sampling(), config.dtype, config.device, limits)


def _vllm(config: LLMConfig) -> LLM:
    from kbtrain.llm.vllm_llm import VllmLLM

    return VllmLLM.load(
        config.model, config.sampling(), config.dtype, config.tensor_parallel, config.batch_rows, config.window,
        config.vllm_extra,
    )  # fmt: skip


def _openai(config: LLMConfig) -> LLM:
    from kbtrain.llm.openai_llm import OpenAILLM, Server
    from kbtrain.llm.server_requests import Retry

    server = Server(
        url=config.server_url,
        model=config.server_model or config.model,
        chat=config.server_endpoint == "chat",
        concurrency=config.server_concurrency,
        n_in_one=config.server_n,
        logprobs=config.server_logprobs,
        timeout=config.server_timeout,
        key_env=config.server_key_env,
        extra=config.server_extra,
        retry=Retry(tries=config.server_tries),
    )
    return OpenAILLM.connect(config.model, config.sampling(), server)


def _scripted(config: LLMConfig) -> LLM:
    from kbtrain.llm.scripted import ScriptedLLM

    return ScriptedLLM(config.model, config.sampling())


BACKENDS: dict[str, Callable[[LLMConfig], LLM]] = {
    "transformers": _transformers,
    "vllm": _vllm,
    "openai": _openai,
    "scripted": _scripted,
}
