"""Abilities of a model server, found by a few short requests, and the configuration that fits them."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from kbtrain.errors import UserError, did_you_mean
from kbtrain.llm.backends import LLMConfig
from kbtrain.llm.base import BYTES_A_TOKEN
from kbtrain.llm.check_thoughts import NOT_TO_THINK, ROOM, Ask, CheckedThoughts, check_thoughts
from kbtrain.llm.dialect import (
    NEUTRAL,
    Dialect,
    KeyHeader,
    LimitName,
    ListedModel,
    Server,
    find_model,
    is_pattern,
    read_models,
)
from kbtrain.llm.replies import LEAST_WINDOW, SEARCHES, choices_of, has_citations, protocol, token_count
from kbtrain.llm.served_states import SHORT_PROMPT, read_reply, state_request
from kbtrain.llm.server_requests import (
    LATE,
    NO_QUOTA,
    PASSING,
    NoReply,
    ServerError,
    ask_once,
    azure_hint,
    read_error,
    whole_reply,
)
from kbtrain.net import Retry, check_url, key_headers, reply_json, retry_after, states_error
from kbtrain.runtime.progress import say_line
from kbtrain.runtime.scripts import as_commands
from kbtrain.show import count_of

Endpoint = Literal["chat", "completions"]
_PATHS: dict[Endpoint, str] = {"chat": "chat/completions", "completions": "completions"}
_ASK = "Name any town of the world. Answer with its name alone."
_ASKS = [f"Name any {thing}. Answer with its name alone." for thing in ("river", "animal", "metal", "colour", "fruit")]
_FILLER = "The road runs along the river to the next town. "
_TOKENS = 16
_WAITS = Retry(tries=3, first=1.0, patience=30.0)
_BUSY = {429: 6, 503: 6, 529: 6}  # tries by status
_OF_FIELDS = frozenset({400, 403, 422, 500, 501})  # by which servers refuse a field, once they answer without it
_OPTIONAL = frozenset({"stop", "max_tokens", "max_completion_tokens"})  # fields that stay out where they are refused
_LONG = 5  # times the longest silence for an output with room for reasoning
_TEMPLATE = 64  # tokens that a chat template may put around a prompt
_GROWS = 1.5  # times the tokens of its half that a long prompt has at least
SECONDS = 60.0  # longest silence of a server that is asked
_LISTS_ALL = frozenset({"vllm", "sglang", "llamacpp", "library"})  # owners whose lists of models are whole
_ALWAYS = ("backend", "model", "server_url", "server_endpoint", "server_n", "server_logprobs", "server_key_env")
_DEFAULTS = {key: LLMConfig.model_fields[key].get_default() for key in ("max_new_tokens", "max_prompt_tokens")}


@dataclass(frozen=True)
class ServerAbilities:
    """Abilities of a server. ``settings``: keys of a sampling configuration. ``refused``: endpoint or field -> its
    words. ``answers``: the most that one request gave. ``cites``: plain answers carry citations. ``states``: layers
    whose hidden states vLLM returns, or the reason why it returns none; None for others. ``read``: tokens that it reads
    of a prompt, where it reads a part of a longer one."""

    model: ListedModel
    settings: Mapping[str, Any]
    refused: Mapping[str, str]
    answers: int
    n_requests: int
    thoughts: CheckedThoughts
    states: str | None
    read: int | None
    cites: bool

    @property
    def problem(self) -> str | None:
        """Reason why answers of this server would be worth nothing; None for a good one."""
        silent = self.thoughts.silent
        if self.cites:
            return SEARCHES
        if self.read is not None:
            return (
                f"it reads {self.read} tokens of a longer prompt, so it does not see all passages; raise its context "
                "(Ollama: num_ctx, llama.cpp: --ctx-size)"
            )
        if silent.is_too_silent():
            return f"{silent.line()}; {silent.advice()}"
        return self.thoughts.alike

    def lines(self) -> list[str]:
        s = self.settings
        ends = [f"{name}: {self.refused.get(name, 'yes')}" for name in _PATHS]
        several = ": several requests a question" * (s["server_n"] is not True)
        abilities = {
            "server": f"{s['server_url']} ({self.model.owner}), model {self.model.name}",
            "endpoint": f"{'; '.join(ends)} -> server_endpoint: {s['server_endpoint']}",
            "n": f"{count_of(self.answers, 'answer')} in one request{several}",
            "logprobs": "yes" if s["server_logprobs"] else "no: 0 is stored for them",
            "reasoning": self.thoughts.line(),
        }
        if self.states is not None:
            abilities["states"] = self.states
        if not s.get("server_greedy", True):
            abilities["greedy"] = "temperature 0 is refused: one more sampled answer replaces the greedy one"
        if fields := [f"{key}: {json.dumps(value)}" for key, value in s.items() if key not in _ALWAYS]:
            abilities["fields"] = "; ".join(fields)
        words = [f"refused   {name}: {text}" for name, text in self.refused.items() if name not in _PATHS]
        return [*(f"{name:<9} {text}" for name, text in abilities.items()), *words]

    def server(self, seconds: float) -> Server:
        """The server as a client that reads states asks it, each request for at most ``seconds``."""
        dialect = Dialect(key_header=self.settings.get("server_key_header", "Authorization"))
        key_env = self.settings.get("server_key_env", "OPENAI_API_KEY")
        url = self.settings["server_url"]
        return Server(url=url, model=self.model.name, key_env=key_env, timeout=seconds, dialect=dialect)


class _Refused(Exception):
    """A reply of another status than 200, or one without an answer in it."""

    def __init__(self, error: ServerError) -> None:
        super().__init__(error.text)
        self.status = error.status


class _Probe:
    """Asks an endpoint with its ``fields``, counts the requests, and finds the header that takes the key. ``refused``:
    endpoint or field -> the server's words; ``refusal``: the newest one of a field."""

    def __init__(self, url: str, key_env: str, seconds: float) -> None:
        self.url, self.key_env, self.seconds, self.n = url.rstrip("/"), key_env, seconds, 0
        self.where = f"server {self.url.partition('?')[0]}"
        self.endpoint: Endpoint = "chat"
        self.fields: dict[str, Any] = {}
        self.refused: dict[str, str] = {}
        self.refusal = _Refused(ServerError(0, ""))
        self.extra: Mapping[str, Any] = {}  # fields without which nothing is answered
        self.hint = ""  # about a name that is not listed
        self.answered = False
        has_key = bool(key_headers(key_env))
        self.headers: list[KeyHeader] = list(get_args(KeyHeader)) if has_key else ["Authorization"]  # the first counts

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> str:
        """The text of a reply; after a passing problem (busy, starting) the request is repeated. Raises
        :class:`_Refused`, and :class:`UserError` without a connection, a key or quota."""
        failed = 0
        first: ServerError | None = None
        while True:
            self.n += 1
            try:
                headers = key_headers(self.key_env, self.headers[0])
                reply, text = ask_once(self.url, method, path, headers, self.seconds, body)
            except NoReply as error:
                message = f"no connection ({error}); is it running, is the address right?"
                if body and str(error) == LATE:
                    size = f"a prompt of about {len(str(body)) / BYTES_A_TOKEN:.0f} tokens"
                    message = (
                        f"no answer within {self.seconds:g} s to {size}; if it is slow: {self._again('timeout 600')}"
                    )
                raise UserError(f"{self.where}: {message}") from None
            failure = _failure(reply.status_code, text)
            if failure is None:
                return text
            if failure.is_quota:
                raise UserError(f"{self.where}: {failure.text}; {NO_QUOTA}")
            fields = {*(body or ())} - {"model", "messages", "prompt"}
            named = any(re.search(rf"\b{name}\b", failure.text) for name in fields)
            # with few fields or none a refusal is the key's
            of_field = failure.status == 403 and (self.answered or named or len(fields) > 1)
            if failure.status in {401, 403} and failure.refusal is None and not of_field:
                first = first or failure
                if len(self.headers) > 1:
                    self.headers.pop(0)
                    continue
                raise UserError(
                    f"{self.where}: {first.text}; set the key in the environment variable {self.key_env}, or name "
                    f"another one: {self._again('key-env NAME')}"
                )
            failed += 1
            if failure.status not in PASSING or failed == _BUSY.get(failure.status, _WAITS.tries):
                raise _Refused(failure)
            patience = min(_WAITS.patience, self.seconds)
            asked_wait = retry_after(reply.headers.get("retry-after"), patience)
            pause = _WAITS.seconds(failed, min(failure.wait or 0.0, patience) if asked_wait is None else asked_wait)
            say_line(f"{self.where}: {failure.text}; the next try in {pause:.1f} s")
            time.sleep(pause)

    def models(self) -> list[ListedModel]:
        """The server's models; empty where it lists none. Raises :class:`UserError` as :meth:`send`."""
        try:
            return read_models(self.send("GET", "models"))
        except _Refused:
            return []
        except ValueError:
            raise self._foreign() from None

    def answer(self, body: Mapping[str, Any], endpoint: Endpoint | None = None) -> dict[str, Any]:
        """The JSON of a reply with an answer in it. Raises :class:`_Refused` for one without."""
        text = self.send("POST", _PATHS[endpoint or self.endpoint], body)
        try:
            reply = whole_reply(text)
        except ValueError:
            raise self._foreign() from None
        if isinstance(reply, dict) and isinstance(reply.get("choices"), list) and reply["choices"]:
            self.answered = True
            return reply
        raise _Refused(ServerError(200, read_error(200, text).message[:100] or "a reply without choices"))

    def ask(self, **changes: Any) -> dict[str, Any] | None:
        """The reply to the fields with these changes (None takes one out); None where one of them is refused."""
        try:
            return self.answer({key: value for key, value in {**self.fields, **changes}.items() if value is not None})
        except _Refused as error:
            if error.status not in _OF_FIELDS:
                raise
            self.refusal = error
            return None

    def _again(self, option: str) -> str:
        check = f"kbtrain check-server {self.url} --{option} --output server.yaml"
        return f"`{check}`, then `kbtrain fit --config server.yaml`"

    def _foreign(self) -> UserError:
        return UserError(f"{self.where}: does not speak OpenAI's protocol; does the address end in /v1?")


def _failure(status: int, text: str) -> ServerError | None:
    """The error of a reply, also of one of status 200 that holds an error and no answer; None for any other reply."""
    if status != 200:
        return read_error(status, text)
    try:
        reply = reply_json(text)
    except ValueError:
        return None
    states = isinstance(reply, dict) and states_error(reply) and not reply.get("choices") and not reply.get("data")
    return read_error(200, text) if states else None


def check_server(
    url: str,
    model: str | None = None,
    key_env: str = "OPENAI_API_KEY",
    seconds: float = SECONDS,
    samples: int = 30,
    max_new_tokens: int = _DEFAULTS["max_new_tokens"],
) -> ServerAbilities:
    """Try, field by field, what sampling ``samples`` answers of ``max_new_tokens`` will ask for, each request for at
    most ``seconds`` of silence. Raises :class:`UserError` where nothing can be asked, and for other protocols."""
    check_url(url, "server_url")
    probe = _Probe(url, key_env, seconds)
    with protocol():
        try:
            return _check_fields(probe, _model(probe, model), samples, max_new_tokens)
        except _Refused as error:
            raise UserError(f"{probe.where}: it answered first, then failed: {error}; try again later") from None


def _check_fields(probe: _Probe, model: ListedModel, samples: int, max_new_tokens: int) -> ServerAbilities:
    reply = _find_endpoint(probe, model)
    limit: LimitName = "max_completion_tokens" if "max_completion_tokens" in probe.fields else "max_tokens"
    greedy, length = _greedy(probe, limit, max_new_tokens)
    asks = [_prompt(probe.endpoint, question) for question in _ASKS]
    thoughts = check_thoughts(_asker(probe), limit, length, probe.endpoint == "chat", model.context, asks)
    extra: dict[str, Any] = dict.fromkeys({*_sampling_fields(model), limit} - probe.fields.keys())
    if limit != "max_tokens":
        del extra["max_tokens"]
    extra |= {**probe.extra, **thoughts.extra}
    probe.fields = {key: value for key, value in {**probe.fields, **thoughts.extra}.items() if value is not None}
    logprobs = _gives_logprobs(probe)
    states = _states(probe, model) if model.owner == "vllm" else None
    answers = _answers(probe, samples)
    most = length + thoughts.settings.get("max_thought_tokens", 0)
    room = _DEFAULTS["max_prompt_tokens"]
    if model.context is not None:
        room = min(room, max(32, model.context - most - _TEMPLATE))
    read = _read_of_long(probe, room)
    dialect = Dialect(limit=limit, greedy=greedy, extra=dict(sorted(extra.items())), key_header=probe.headers[0])
    found = {
        "server_key_env": probe.key_env, **{f"server_{key}": value for key, value in dialect.model_dump().items()},
        "max_new_tokens": length, "max_prompt_tokens": room if read is None else min(room, max(32, read - _TEMPLATE)),
    }  # fmt: skip
    defaults = {key: field.get_default() for key, field in LLMConfig.model_fields.items()}
    settings = {
        "backend": "openai", "model": model.name, "server_url": probe.url, "server_endpoint": probe.endpoint,
        "server_n": True if answers >= samples else answers if answers > 1 else False, "server_logprobs": logprobs,
        **{key: value for key, value in found.items() if key in defaults and value != defaults[key]},
        **thoughts.settings,
    }  # fmt: skip
    cites = has_citations(reply)
    return ServerAbilities(model, settings, probe.refused, answers, probe.n, thoughts, states, read, cites)


def _asker(probe: _Probe) -> Ask:
    """Ask as :meth:`_Probe.ask`, each time with another seed. A limit or a stop string that is refused stays out."""
    seconds, numbers = probe.seconds, itertools.count(1)

    def ask(changes: Mapping[str, Any]) -> dict[str, Any] | None:
        accepted = {key: value for key, value in changes.items() if key in probe.fields or key not in _OPTIONAL}
        if "seed" in probe.fields:
            accepted["seed"] = probe.fields["seed"] + next(numbers)
        long = any((accepted.get(key) or 0) >= ROOM for key in ("max_tokens", "max_completion_tokens"))
        probe.seconds = seconds * (_LONG if long else 1)  # reasoning comes in one piece, after minutes
        try:
            return probe.ask(**accepted)
        finally:
            probe.seconds = seconds

    return ask


def _model(probe: _Probe, name: str | None) -> ListedModel:
    listed = probe.models()
    deployed = re.search(r"/deployments/([^/?]+)", probe.url)  # Azure's older addresses name the model themselves
    if not listed and (name is not None or deployed):
        return ListedModel(deployed[1] if name is None and deployed else str(name))
    if name is not None:
        if (model := find_model(name, listed)) is not None:
            return model
        hint = did_you_mean(name, [model.name for model in listed])
        if listed[0].owner in _LISTS_ALL:
            raise UserError(f"--model {name}: the server has none of that name; {hint}")
        probe.hint = f"; the server's list of models has no '{name}': {hint}"
        return ListedModel(name, listed[0].owner)
    models = [model for model in listed if not is_pattern(model.name)]
    if len(models) == 1:
        return models[0]
    if not models:
        raise UserError(f"{probe.where}: lists no models; name one by --model (does the address end in /v1?)")
    listed_names = ", ".join(sorted(model.name for model in models)[:10]) + (", ..." if len(models) > 10 else "")
    raise UserError(f"{probe.where}: has {len(models)} models; choose one by --model: {listed_names}")


def _sampling_fields(model: ListedModel) -> dict[str, Any]:
    """The fields of a drawn answer besides model and prompt, as sampling sends them."""
    neutral = NEUTRAL.get(model.owner, {})
    return {"max_tokens": _TOKENS, "temperature": 1.0, "top_p": 1.0, "stop": ["\n"], "seed": 7, **neutral}


def _find_endpoint(probe: _Probe, model: ListedModel) -> dict[str, Any]:
    """Let the probe ask the first endpoint that answers (chat before completions) with the fields that it takes; a
    reply."""
    reply: dict[str, Any] | None = None
    for endpoint in _PATHS:
        prompt = {"model": model.name, **_prompt(endpoint, _ASK)}
        try:
            if reply is None:
                probe.endpoint = endpoint
                reply = _take_fields(probe, prompt, _sampling_fields(model))
            else:
                probe.answer({**prompt, **probe.extra, "max_tokens": _TOKENS}, endpoint)
        except _Refused as error:
            probe.refused[endpoint] = str(error)
    if reply is None:
        refusals = "; ".join(f"{name}: {text}" for name, text in probe.refused.items() if name in _PATHS)
        other = ", does it want other fields" if re.search(r"status (400|422)", refusals) else ""
        raise UserError(
            f"{probe.where}: answers neither chat nor completions ({refusals}); are address and model right{other}?"
            + (probe.hint or azure_hint(probe.url))
        )
    return reply


def _prompt(endpoint: Endpoint, text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]} if endpoint == "chat" else {"prompt": text}


def _take_fields(probe: _Probe, prompt: Mapping[str, Any], optional: Mapping[str, Any]) -> dict[str, Any]:
    """Give the probe the fields that its endpoint takes, found one by one where it refuses them together; a reply.
    Raises :class:`_Refused` where it takes none."""
    probe.fields = {**prompt, **optional}
    if (reply := probe.ask()) is not None:
        return reply
    words: dict[str, str] = {}
    first: _Refused | None = None
    # the server's name for the longest answer, or a request without any
    for limit in ("max_tokens", "max_completion_tokens", ""):
        probe.fields = {**prompt, **({limit: _TOKENS} if limit else {})}
        if (reply := probe.ask()) is not None:
            break
        first, words[limit] = first or probe.refusal, str(probe.refusal)
    else:
        assert first is not None
        return _take_with_switch(probe, prompt, optional, first)
    for key, value in optional.items():
        if key == "max_tokens":
            continue
        if (changed := probe.ask(**{key: value})) is None:
            words[key] = str(probe.refusal)
        else:
            probe.fields[key], reply = value, changed
    probe.refused |= words
    return reply


def _take_with_switch(
    probe: _Probe, prompt: Mapping[str, Any], optional: Mapping[str, Any], first: _Refused
) -> dict[str, Any]:
    """As :func:`_take_fields`, of a server that answers only with a field that asks its model not to think, or only by
    a stream. Raises ``first`` where none of these fields helps."""
    about_switches = re.search("think|reason|stream|思考|推理|流式|http call", str(first), re.I)
    for extra in (*NOT_TO_THINK, {"stream": True}) if about_switches and not probe.extra else ():
        probe.extra = extra
        try:
            return _take_fields(probe, {**prompt, **extra}, optional)
        except _Refused:
            probe.extra = {}
    raise first


def _greedy(probe: _Probe, limit: LimitName, length: int) -> tuple[bool, int]:
    """True if temperature 0 is taken, and the longest answer that is, of ``length`` tokens or fewer."""
    greedy = {"temperature": 0.0} if "temperature" in probe.fields else {}
    long: dict[str, Any] = {limit: length} if limit in probe.fields else {}
    if probe.ask(**greedy, **long) is not None:
        return True, length
    words = str(probe.refusal)
    is_taken = probe.ask(**greedy) is not None
    if not is_taken:
        probe.refused["temperature 0"], greedy = words, {}
    for tokens in (length, length // 2, _TOKENS):
        if probe.ask(**greedy, **dict.fromkeys(long, tokens)) is not None:
            return is_taken, tokens
        probe.refused[limit] = words
    return is_taken, _TOKENS


def _read_of_long(probe: _Probe, room: int) -> int | None:
    """Tokens that the server counts in a prompt of about ``room``, if it reads no more of it than of its half. None
    where it reads the whole, refuses it in words, or does not count."""
    counts = []
    for tokens in (room // 2, room):
        text = _FILLER * round(tokens * BYTES_A_TOKEN / len(_FILLER)) + _ASK
        try:
            reply = probe.ask(**_prompt(probe.endpoint, text))
        except _Refused:
            return None
        counts.append(token_count(reply, "prompt_tokens") if reply else None)
    half, whole = counts
    return whole if half and whole and LEAST_WINDOW <= whole < _GROWS * half else None


def _gives_logprobs(probe: _Probe) -> bool:
    try:
        reply = probe.answer({**probe.fields, "logprobs": True if probe.endpoint == "chat" else 1})
    except _Refused:
        return False
    return choices_of(reply)[0].usable_logprobs() is not None


def _states(probe: _Probe, model: ListedModel) -> str:
    """Layers whose hidden states an engine returns, or the reason why it returns none."""
    body = {"model": model.name, "prompt": SHORT_PROMPT, "max_tokens": 1, "kv_transfer_params": state_request(0)}
    try:
        layers = read_reply(probe.answer(body, "completions"), SHORT_PROMPT).layers
    except (_Refused, UserError) as error:
        return f"no: {error}"
    return f"of layers {', '.join(map(str, layers))}"


def _answers(probe: _Probe, samples: int) -> int:
    """The most answers that one request gives, ``samples`` or fewer."""
    for n in (samples, *(n for n in (16, 8, 4, 2) if n < samples)):
        if n > 1 and (reply := probe.ask(n=n)) is not None:
            return min(n, len(reply["choices"]))
    return 1


def write_config(settings: Mapping[str, Any], path: Path) -> None:
    """Write a configuration of every script that asks a model, into a new file."""
    text = f"# {settings['model']} on a server, as kbtrain check-server found it: to sample, or to judge.\n"
    text += f"#   kbtrain run sample --config {path.name} --run RUN\n"
    text += f"#   kbtrain run judge --config {path.name} --run RUN --judge llm\n"
    with path.open("x", encoding="utf-8") as out:
        out.write(as_commands(text) + yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True))
