"""The back end for servers that speak OpenAI's protocol: many requests at once, as many answers each as the server
gives. ``completions`` sends the token ids the other back ends see; ``chat`` leaves the rendering to the server."""

from __future__ import annotations

import asyncio
import itertools
import sys
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx2

from kbtrain.answers.thoughts import split_thought
from kbtrain.errors import UserError, did_you_mean, strike
from kbtrain.llm.base import AnswerRequest, PromptTooLong, Sampling, cut_to_bytes, prompt_ids, request_seed
from kbtrain.llm.dialect import NEUTRAL, Server, find_model, parts_of, read_models
from kbtrain.llm.outputs import ThoughtTokens
from kbtrain.llm.replies import (
    BYTES_A_TOKEN_AT_MOST,
    OutputRules,
    RepliesSoFar,
    choices_of,
    samples,
    token_count,
    unusable_parts,
)
from kbtrain.llm.server_requests import Forbidden, NoReply, PromptRefusal, ask_once, post, read_error
from kbtrain.net import by_proxy, tls
from kbtrain.prompts.kbm import Judgement, answer_fingerprint, chat_messages, encode
from kbtrain.records import GREEDY, Sample, SampleSet
from kbtrain.runtime.event_loop import EventLoop

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


async def post_all(server: Server, bodies: Sequence[Mapping[str, Any]]) -> list[dict[str, Any] | PromptRefusal]:
    """Replies, or refusals of a prompt, in the order of ``bodies``; at most ``server.concurrency`` under way."""
    gate = asyncio.Semaphore(server.concurrency)

    async def ask(client: httpx2.AsyncClient, body: Mapping[str, Any]) -> dict[str, Any] | PromptRefusal:
        async with gate:
            try:
                return await _post(client, server, body)
            except PromptRefusal as refusal:
                return refusal

    async with _client(server) as client:
        return await asyncio.gather(*(ask(client, body) for body in bodies))


_SHORT_QUESTION = "Name any town of the world."  # a prompt that no server has a reason to refuse
_UNUSABLE = {
    "logprobs": "answers have no log-probabilities that can be used: 0 is stored for them (server_logprobs: false)",
    "usage": "replies have a usage that cannot be read: lengths of answers are estimated",
}


class OpenAILLM:
    """Implements :class:`~kbtrain.llm.base.LLM`; ``tokenizer`` is None for the chat endpoint, whose prompts' tokens are
    estimated from their bytes. ``logprob`` is what the server gives (vLLM's: before temperature and filters, unless it
    was started with ``--logprobs-mode processed_logprobs``), and 0 where it is not asked for."""

    def __init__(
        self, name: str, tokenizer: PreTrainedTokenizerBase | None, sampling: Sampling, server: Server
    ) -> None:
        self.name = name
        self.tokenizer = tokenizer
        self.sampling = sampling
        self.server = server
        self._most = server.dialect.most or sys.maxsize  # answers to ask for in one request
        self._accepted = 1  # the most answers that a reply has had
        self._answered: set[str] = set()  # fields with which the server has answered
        self._gate: asyncio.Semaphore | None = None
        self._proof: asyncio.Lock | None = None
        self._unusable = Counter[str]()
        self._so_far = RepliesSoFar(f"server {server.base}")
        self._sends_stop = sampling.max_thought_tokens == 0
        self._n_opened = 0  # outputs that end reasoning which their prompt has opened
        self._thoughts = None if tokenizer is None else ThoughtTokens(tokenizer)

    @classmethod
    def connect(cls, name: str, sampling: Sampling, server: Server) -> OpenAILLM:
        """Open after a look at the list of models the server has: a wrong address or name is one line at once."""
        kind, root = _server_kind(server)
        tokenizer = None
        if not server.chat:
            from kbtrain.models.load import load_tokenizer

            try:
                tokenizer = load_tokenizer(name)
            except UserError as error:
                raise UserError(f"{error}; a chat model needs no tokenizer: server_endpoint: chat") from None
            if server.model != name and root != name and not server.alias:
                raise UserError(
                    f"key 'server_model': prompts would be cut into tokens by '{name}' and sent as ids to "
                    f"'{server.model}', another model; set server_endpoint: chat, or model: {server.model}, or "
                    "server_alias: true where both are the same model"
                )
        neutral = dict(NEUTRAL.get(kind, {}))
        if kind == "vllm" and tokenizer is not None and ThoughtTokens(tokenizer).special:
            neutral = {**neutral, "skip_special_tokens": False}  # or reasoning and its answer come as one text
        return cls(name, tokenizer, sampling, replace(server, neutral=neutral, kind=kind))

    def facts(self) -> dict[str, Any]:
        return {"device": "server", "prompts": answer_fingerprint(self.tokenizer)}

    def answer(
        self, requests: Iterable[AnswerRequest], done: Collection[tuple[str, str]] = frozenset()
    ) -> Iterator[list[SampleSet]]:
        """As :meth:`kbtrain.llm.base.LLM.answer`; each question-condition as soon as it is whole."""
        missing = (request for request in requests if (request.question.id, request.condition) not in done)
        pending: set[asyncio.Task[SampleSet]] = set()
        with EventLoop() as loop:
            client = _client(self.server)
            self._gate, self._proof = asyncio.Semaphore(self.server.concurrency), asyncio.Lock()
            try:
                while True:
                    for request in itertools.islice(missing, self.server.concurrency - len(pending)):
                        pending.add(loop.create_task(self._ask(client, request)))
                    if not pending:
                        return
                    finished, pending = loop.run(asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED))
                    failures = [error for task in finished if (error := task.exception())]
                    yield [task.result() for task in finished if not task.exception()]
                    if failures:
                        raise failures[0]
            finally:
                loop.run(_close(client, pending))
                self._warn()

    def _warn(self) -> None:
        """Warn of parts that could not be used, and of reasoning that was not declared."""
        for part, n in self._unusable.items():
            if n:
                warnings.warn(f"server {self.server.base}: {n} {_UNUSABLE[part]}", stacklevel=2)
        self._unusable.clear()
        if self._n_opened and not self.server.opened and self.tokenizer is None:
            warnings.warn(
                f"server {self.server.url}: its template opens the reasoning in the prompt; set server_thought_opened: "
                "true, or cut reasoning counts as an answer",
                stacklevel=2,
            )
            self._n_opened = 0

    async def _ask(self, client: httpx2.AsyncClient, request: AnswerRequest) -> SampleSet:
        """All answers to a request; without any, and with the reason, where the server refuses its prompt."""
        key = (request.question.id, request.condition)
        n_tokens = cut = n_counted = 0
        plain = request.condition == "llm" and not isinstance(request.question, Judgement)
        greedy: Sample | None = None
        try:
            prompt, n_tokens, cut = self._prompt(request)
            if request.greedy:
                how = {"temperature": 0.0} if self.server.dialect.greedy else self._how(request, GREEDY)
                (greedy, *_), n_counted = await self._draw(client, {**prompt, **how}, GREEDY, 1, plain)
            drawn, n_counted_of_drawn = await self._draw_samples(client, request, prompt, plain)
        except (PromptRefusal, PromptTooLong) as refusal:
            return SampleSet(*key, (), None, n_tokens, cut, refused=strike(str(refusal)))
        n_counted = max(n_counted, n_counted_of_drawn)
        # a chat's tokens are unknown: those that its bytes are at least
        n_bytes = 0 if n_tokens else sum(len(message["content"].encode()) for message in prompt["messages"])
        self._so_far.add_prompt(n_tokens or n_bytes / BYTES_A_TOKEN_AT_MOST, n_counted)
        return SampleSet(*key, drawn, greedy, n_tokens or n_counted, cut)

    async def _draw_samples(
        self, client: httpx2.AsyncClient, request: AnswerRequest, prompt: Mapping[str, Any], plain: bool
    ) -> tuple[tuple[Sample, ...], int]:
        """The drawn answers, numbered from 0, in as many requests as the server needs for them."""
        drawn: dict[int, Sample] = {}
        most, token_count = self._most, 0
        while missing := [i for i in range(request.n) if i not in drawn]:
            parts = list(parts_of(missing, most))
            draws = (self._draw(client, {**prompt, **self._how(request, i)}, i, n, plain) for i, n in parts)
            for (_, n), outcome in zip(parts, await asyncio.gather(*draws, return_exceptions=True), strict=True):
                if isinstance(outcome, PromptRefusal) and outcome.kind == "other" and n > self._accepted:
                    most = min(most, max(1, n // 2))  # the number of answers may be what it refuses
                elif isinstance(outcome, BaseException):
                    raise outcome
                else:
                    drawn |= {sample.index: sample for sample in outcome[0]}
                    token_count = outcome[1]
                    most = min(most, len(outcome[0])) if len(outcome[0]) < n else most
        self._most = min(self._most, most)
        return tuple(drawn[i] for i in range(request.n)), token_count

    def _how(self, request: AnswerRequest, index: int) -> dict[str, Any]:
        """Fields by which an answer is drawn; ``index`` is that of the first one of a request."""
        s = self.sampling
        # a sampled answer in place of the greedy one has a seed of its own, however many others are asked for
        of = request.condition if index >= 0 else f"{request.condition} greedy"
        seed = request_seed(s.seed, request.question.id, of) + max(index, 0)
        return {"temperature": s.temperature, "top_p": s.top_p, "seed": seed} | ({"top_k": s.top_k} if s.top_k else {})

    async def _draw(
        self, client: httpx2.AsyncClient, body: Mapping[str, Any], first: int, n: int, plain: bool
    ) -> tuple[list[Sample], int]:
        """``n`` answers or fewer, numbered from ``first``, and how many tokens the server counted in the prompt;
        ``plain``: they should be the model's own."""
        if n > 1:
            body = {**body, "n": n}
        opened = self.server.opened if self._thoughts is None else self._thoughts.is_opened_by(body["prompt"])
        unstopped = {name: value for name, value in body.items() if name != "stop"}
        sends_stop = self._sends_stop and "stop" in body and "stop" not in self.server.dialect.extra
        reply = await self._reply(client, body if sends_stop else unstopped)
        if sends_stop and self._is_stopped_early(reply, opened):
            reply = await self._reply(client, unstopped)
            self._sends_stop &= self._is_stopped_early(reply, opened)
        if plain:
            self._so_far.add_plain(reply)
        self._n_opened += sum(choice.is_opened_by_prompt() for choice in choices_of(reply))
        split = split_thought if self._thoughts is None else self._thoughts.split
        how = OutputRules(self.sampling.stop, opened, split)
        drawn = samples(reply, first, n, how, self.tokenizer)
        self._unusable += unusable_parts(reply, self.server.dialect.logprobs)
        self._accepted = max(self._accepted, len(drawn))
        return drawn, token_count(reply, "prompt_tokens") or 0

    async def _reply(self, client: httpx2.AsyncClient, body: Mapping[str, Any]) -> dict[str, Any]:
        """The reply to a request. Raises :class:`PromptRefusal`, and :class:`UserError` where the server also refuses a
        short question with these fields, asked once: the fields are wrong, not the prompt."""
        assert self._gate is not None and self._proof is not None
        # whose values may make a server refuse a request: not those of one prompt or draw
        fields = repr(sorted(item for item in body.items() if item[0] not in ("prompt", "messages", "seed", "n")))
        async with self._gate:
            try:
                reply = await _post(client, self.server, body)
            except Forbidden as forbidden:
                if not await self._answers_short(client, body):
                    raise
                raise PromptRefusal("other", forbidden.message) from None
            except PromptRefusal as refusal:
                async with self._proof:
                    if fields not in self._answered and not await self._answers_short(client, body):
                        raise UserError(
                            f"server {self.server.base}: {refusal.message}; it refuses a short question too: "
                            "`kbtrain check-server` finds the fields that it takes"
                        ) from None
                    self._answered.add(fields)
                raise
            self._answered.add(fields)
            return reply

    async def _answers_short(self, client: httpx2.AsyncClient, body: Mapping[str, Any]) -> bool:
        """True if the server answers a short question with the fields of a request: what it refused was the prompt."""
        short = {name: value for name, value in body.items() if name != "n"}
        try:
            await _post(client, self.server, {**short, **self._prompt_of(_SHORT_QUESTION, None)})
        except (Forbidden, PromptRefusal):
            return False
        return True

    def _is_stopped_early(self, reply: Mapping[str, Any], opened: bool) -> bool:
        """True if a stop string ended an output before its answer: most servers apply them to reasoning, too."""
        return any(choice.is_stopped_early(OutputRules(self.sampling.stop, opened)) for choice in choices_of(reply))

    def _prompt(self, request: AnswerRequest) -> tuple[dict[str, Any], int, int]:
        """Fields of all HTTP requests for these answers, the number of prompt tokens (0: unknown), and the cut."""
        s = self.sampling
        body: dict[str, Any] = {"model": self.server.model, "max_tokens": s.max_output_tokens}
        if s.stop:
            body["stop"] = list(s.stop)
        if self.server.dialect.logprobs:
            # of the drawn tokens alone vLLM gives them by 0; elsewhere that asks for none
            body["logprobs"] = True if self.tokenizer is None else int(self.server.kind != "vllm")
        if self.tokenizer is None:
            evidence, cut = cut_to_bytes(request, s.max_prompt_tokens)
            return {**body, **self._prompt_of(request.text(evidence), request.system)}, 0, cut
        ids, cut = prompt_ids(self.tokenizer, request, s.max_prompt_tokens)
        return {**body, "prompt": ids}, len(ids), cut

    def _prompt_of(self, text: str, system: str | None) -> dict[str, Any]:
        if self.tokenizer is not None:
            return {"prompt": encode(self.tokenizer, text, system)}
        return {"messages": chat_messages(text, system)}


def _client(server: Server) -> httpx2.AsyncClient:
    """Without a key in the environment no header is sent: a server of one's own needs none."""
    limits = httpx2.Limits(max_connections=server.concurrency, max_keepalive_connections=server.concurrency)
    timeout = httpx2.Timeout(server.timeout, connect=min(30.0, server.timeout), pool=None)
    return httpx2.AsyncClient(
        base_url=server.base, params=server.query, headers=server.headers(), limits=limits, timeout=timeout,
        verify=tls(), trust_env=by_proxy(server.base),
    )  # fmt: skip


def _server_kind(server: Server) -> tuple[str, str | None]:
    """Kind of the server and what it calls its model's files, as far as its list of models shows it (vLLM does)."""
    where, seconds = f"server {server.base}", min(30.0, server.timeout)
    try:
        response, text = ask_once(server.url, "GET", "models", server.headers(), seconds)
    except NoReply as error:
        raise UserError(f"{where}: no connection ({error}); is it running, is server_url right?") from None
    if response.status_code in {401, 403}:
        raise UserError(f"{where}: {read_error(response.status_code, text).text}; set the key in {server.key_env}")
    try:
        listed = read_models(text) if response.status_code == 200 else []
    except ValueError:
        raise UserError(f"{where}: does not speak OpenAI's protocol; does server_url end in /v1?") from None
    model = find_model(server.model, listed)
    kind = model.owner if model else listed[0].owner if listed else "unknown"
    if kind == "vllm" and model is None:
        hint = did_you_mean(server.model, [listed_model.name for listed_model in listed])
        raise UserError(f"key 'server_model': {where} has no model '{server.model}'; {hint}")
    return kind, None if model is None else model.root


async def _post(client: httpx2.AsyncClient, server: Server, body: Mapping[str, Any]) -> dict[str, Any]:
    return await post(client, server.path, server.dialect.write(body, server.neutral), server.retry, server.holds)


async def _close(client: httpx2.AsyncClient, tasks: Iterable[asyncio.Task[SampleSet]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await client.aclose()
