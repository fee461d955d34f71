"""Abilities of a model server, found by a few short requests, and the configuration that fits them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from kbtrain.errors import UserError, did_you_mean, strike_all
from kbtrain.installation import as_typed
from kbtrain.llm.backends import LLMConfig
from kbtrain.llm.check_thoughts import ROOM, CheckedThoughts, check_thoughts
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
from kbtrain.llm.replies import protocol, usable_logprobs
from kbtrain.llm.served_states import LAST_STATE, SHORT_PROMPT, read_last_state, read_reply, state_request
from kbtrain.llm.server_requests import NO_QUOTA, PASSING, NoReply, ServerError, ask_once, holds_error, read_error
from kbtrain.net import Retry, check_url, key_headers, retry_after, whole_json

Endpoint = Literal["chat", "completions"]
_PATHS: dict[Endpoint, str] = {"chat": "chat/completions", "completions": "completions"}
_ASK = "Name any town of the world. Answer with its name alone."
_TOKENS = 16
_WAITS = Retry(tries=3, first=1.0, patience=30.0)
_OF_FIELDS = frozenset({400, 422, 500, 501})  # statuses by which servers refuse a field, once they answer without it
_OPTIONAL = frozenset({"stop", "max_tokens", "max_completion_tokens"})  # fields that stay out where they are refused
_LONG = 5  # times the longest silence for an output with room for a thought
_TEMPLATE = 64  # tokens that a chat template may put around a prompt
SECONDS = 60.0  # longest silence of a server that is asked
_DEFAULTS = {key: LLMConfig.model_fields[key].get_default() for key in ("max_new_tokens", "max_prompt_tokens")}


@dataclass(frozen=True)
class ServerAbilities:
    """Abilities of a server. ``refused``: endpoint or field -> its words.

    ``states``: layers whose hidden states vLLM or SGLang returns, or the reason why it returns none; None for others.

    ``answers``: the most that one request gave, of ``samples`` asked for; ``seeds``: None where drawn answers tell
    nothing; ``length``: the longest answer it took; ``room``: tokens of a prompt that fit, where it states its context.
    """

    url: str
    model: str
    owner: str
    endpoint: Endpoint
    refused: Mapping[str, str]
    dialect: Dialect
    samples: int
    answers: int
    usage: bool
    seeds: bool | None
    key_env: str
    n_requests: int
    length: int
    thoughts: CheckedThoughts
    room: int | None = None
    states: str | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """Keys of a sampling configuration."""
        n = True if self.dialect.most is None else False if self.dialect.most == 1 else self.dialect.most
        keys: dict[str, Any] = {
            "backend": "openai",
            "model": self.model,
            "server_url": self.url,
            "server_endpoint": self.endpoint,
            "server_n": n,
            "server_logprobs": self.dialect.logprobs,
        }
        if self.key_env != "OPENAI_API_KEY":
            keys["server_key_env"] = self.key_env
        return keys | self._fields()

    def _fields(self) -> dict[str, Any]:
        """Keys that are not at their defaults."""
        dialect = self.dialect.model_dump(exclude={"most", "logprobs"}, exclude_defaults=True)
        keys = {f"server_{key}": value for key, value in dialect.items()}
        if self.length != _DEFAULTS["max_new_tokens"]:
            keys["max_new_tokens"] = self.length
        if self.room is not None and self.room < _DEFAULTS["max_prompt_tokens"]:
            keys["max_prompt_tokens"] = self.room
        return keys | dict(self.thoughts.settings)

    def lines(self) -> list[str]:
        """A line for each ability."""
        ends = [f"{name}: {self.refused.get(name, 'yes')}" for name in _PATHS]
        seeds = {
            True: "yes: the same seed gives the same answer",
            False: "no: a seed does not repeat an answer; stored answers are kept",
            None: "unknown: all test answers were the same",
        }[self.seeds]
        abilities = {
            "server": f"{self.url} ({self.owner}), model {self.model}",
            "endpoint": f"{'; '.join(ends)} -> server_endpoint: {self.endpoint}",
            "n": self._answers(),
            "logprobs": "yes" if self.dialect.logprobs else "no: 0 is stored for them",
            "seeds": seeds,
            "usage": self._usage(),
            "thoughts": self.thoughts.line(),
        }
        if self.states is not None:
            abilities["states"] = self.states
        if not self.dialect.greedy:
            abilities["greedy"] = "temperature 0 is refused: one more sampled answer takes the place of the greedy one"
        if fields := self._fields():
            abilities["fields"] = "; ".join(f"{key}: {json.dumps(value)}" for key, value in fields.items())
        words = [
            f"refused   {name}: {words_of_server}"
            for name, words_of_server in self.refused.items()
            if name not in _PATHS
        ]
        return [*(f"{name:<9} {text}" for name, text in abilities.items()), *words]

    def server(self, seconds: float) -> Server:
        """The server as a client that reads states asks it, each request for at most ``seconds``."""
        dialect = Dialect(key_header=self.dialect.key_header)
        return Server(url=self.url, model=self.model, key_env=self.key_env, timeout=seconds, dialect=dialect)

    def _answers(self) -> str:
        if self.answers == 1:
            return "one answer a request: as many requests as answers"
        if self.dialect.most is None:
            return f"{self.answers} answers in one request"
        return f"{self.answers} answers in one request ({self.samples} were requested): several requests a question"

    def _usage(self) -> str:
        if not self.usage:
            return "no: lengths of answers are estimated"
        shared = self.answers > 1 and not self.dialect.logprobs
        return "yes" + (
            ", one count for all answers of a reply: divided by the lengths of their texts" if shared else ""
        )


class _Refused(Exception):
    """A reply of another status than 200, or one without an answer in it."""

    def __init__(self, error: ServerError) -> None:
        super().__init__(error.text)
        self.status = error.status


class _Probe:
    """Posts small requests and counts them; finds the header that takes the key."""

    def __init__(self, url: str, key_env: str, seconds: float) -> None:
        self.url, self.key_env, self.seconds, self.n = url.rstrip("/"), key_env, seconds, 0
        self.where = f"server {self.url.partition('?')[0]}"
        has_key = bool(key_headers(key_env))
        self._headers: list[KeyHeader] = list(get_args(KeyHeader)) if has_key else ["Authorization"]

    @property
    def header(self) -> KeyHeader:
        """The header that carries the key."""
        return self._headers[0]

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> str:
        """The text of a reply; a passing fault (busy, starting) is waited for a little.

        Raises :class:`_Refused`, and :class:`UserError` without a connection, a key or quota.
        """
        failed = 0
        first: ServerError | None = None
        while True:
            self.n += 1
            try:
                headers = key_headers(self.key_env, self.header)
                reply, text = ask_once(self.url, method, path, headers, self.seconds, body)
            except NoReply as error:
                message = f"{self.where}: no connection ({error}); is it running, is the address right?"
                raise UserError(message) from None
            failure = _failure(reply.status_code, text)
            if failure is None:
                return text
            if failure.is_quota:
                raise UserError(f"{self.where}: {failure.text}; {NO_QUOTA}")
            if failure.status in {401, 403} and failure.refusal is None:
                first = first or failure
                if len(self._headers) > 1:
                    self._headers.pop(0)
                    continue
                raise UserError(
                    f"{self.where}: {first.text}; set the key in the environment variable {self.key_env}, or name "
                    "another one by --key-env"
                )
            failed += 1
            if failure.status not in PASSING or failed == _WAITS.tries:
                raise _Refused(failure)
            patience = min(_WAITS.patience, self.seconds)
            asked_wait = retry_after(reply.headers.get("retry-after"), patience)
            time.sleep(_WAITS.seconds(failed, min(failure.wait or 0.0, patience) if asked_wait is None else asked_wait))

    def models(self) -> list[ListedModel]:
        """The server's models; empty where it lists none. Raises :class:`UserError` as :meth:`send`."""
        try:
            return read_models(self.send("GET", "models"))
        except _Refused:
            return []
        except ValueError:
            raise self._foreign() from None

    def answer(self, endpoint: Endpoint, body: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON of a reply with an answer in it. Raises :class:`_Refused` for one without."""
        text = self.send("POST", _PATHS[endpoint], body)
        try:
            reply, _ = whole_json(strike_all(json.loads(text)))  # what is found is shown and written: text alone can be
        except (ValueError, RecursionError):
            raise self._foreign() from None
        if isinstance(reply, dict) and isinstance(reply.get("choices"), list) and reply["choices"]:
            return reply
        raise _Refused(ServerError(200, read_error(200, text).message[:100] or "a reply without choices"))

    def _foreign(self) -> UserError:
        return UserError(f"{self.where}: does not speak OpenAI's protocol; does the address end in /v1?")


def _failure(status: int, text: str) -> ServerError | None:
    """The error of a reply, also of one of status 200 that holds an error and no answer; None for any other reply."""
    if status != 200:
        return read_error(status, text)
    try:
        reply = json.loads(text)
    except (ValueError, RecursionError):
        return None
    states = isinstance(reply, dict) and holds_error(reply) and not reply.get("choices") and not reply.get("data")
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
    most ``seconds`` of silence.

    Raises :class:`UserError` where nothing can be asked, and for replies that do not follow the protocol.
    """
    check_url(url, "server_url")
    probe = _Probe(url, key_env, seconds)
    with protocol():
        try:
            return _check_fields(probe, model, samples, max_new_tokens)
        except _Refused as error:
            raise UserError(f"{probe.where}: it answered first, then failed: {error}; try again later") from None


def _check_fields(probe: _Probe, model_name: str | None, samples: int, max_new_tokens: int) -> ServerAbilities:
    model = _model(probe, model_name)
    endpoint, fields, refused, reply = _endpoint(probe, model)
    limit: LimitName = "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens"
    greedy, length = _greedy(probe, endpoint, fields, limit, max_new_tokens, refused)
    thoughts = check_thoughts(_Asker(probe, endpoint, fields), limit, length, endpoint == "chat", model.context)
    fields = {key: value for key, value in {**fields, **thoughts.extra}.items() if value is not None}
    alike = _seeds(probe, endpoint, fields, reply)
    logprobs = _logprobs(probe, endpoint, fields)
    states = _states(probe, model) if model.owner in ("vllm", "sglang") else None
    usage = isinstance((reply.get("usage") or {}).get("completion_tokens"), int)
    answers = _answers(probe, endpoint, fields, samples)
    tried_fields = {*_sampling_fields(model), limit} - {"max_tokens" if limit != "max_tokens" else ""}
    extra: dict[str, Any] = {**{key: None for key in tried_fields if key not in fields}, **thoughts.extra}
    most = length + thoughts.settings.get("max_thought_tokens", 0)
    room = None if model.context is None else max(32, model.context - most - _TEMPLATE)
    dialect = Dialect(
        limit=limit, greedy=greedy, most=None if answers >= samples else answers, logprobs=logprobs,
        extra=dict(sorted(extra.items())), key_header=probe.header,
    )  # fmt: skip
    return ServerAbilities(
        probe.url, model.name, model.owner, endpoint, refused, dialect, samples, answers, usage, alike, probe.key_env,
        probe.n, length, thoughts, room, states,
    )  # fmt: skip


class _Asker:
    """Asks an endpoint with changed fields, each time with another seed."""

    def __init__(self, probe: _Probe, endpoint: Endpoint, fields: Mapping[str, Any]) -> None:
        self._probe, self._endpoint, self._fields, self._n = probe, endpoint, dict(fields), 0
        self._seconds = probe.seconds

    def __call__(self, change: Mapping[str, Any]) -> dict[str, Any] | None:
        """The reply; None where the endpoint refuses a field. A limit or a stop string that it refuses stays out."""
        self._n += 1
        changes = {key: value for key, value in change.items() if key in self._fields or key not in _OPTIONAL}
        seed = {"seed": self._fields["seed"] + self._n} if "seed" in self._fields else {}
        body = {key: value for key, value in {**self._fields, **seed, **changes}.items() if value is not None}
        long = any((body.get(key) or 0) >= ROOM for key in ("max_tokens", "max_completion_tokens"))
        self._probe.seconds = self._seconds * (_LONG if long else 1)  # a thought comes in one piece, after minutes
        try:
            return self._probe.answer(self._endpoint, body)
        except _Refused as error:
            if error.status not in _OF_FIELDS:
                raise
            return None
        finally:
            self._probe.seconds = self._seconds


def _model(probe: _Probe, name: str | None) -> ListedModel:
    """The model to be asked."""
    listed = probe.models()
    deployed = re.search(r"/deployments/([^/?]+)", probe.url)  # Azure's older addresses name the model themselves
    if name is None and deployed and not listed:
        return ListedModel(deployed[1])
    if name is not None:
        if not listed:
            return ListedModel(name)
        model = find_model(name, listed)
        if model is None:
            hint = did_you_mean(name, [model.name for model in listed])
            raise UserError(f"--model {name}: the server has none of that name; {hint}")
        return model
    names = [model for model in listed if not is_pattern(model.name)]
    if len(names) == 1:
        return names[0]
    if not names:
        raise UserError(f"{probe.where}: lists no models; name one by --model (does the address end in /v1?)")
    listed_names = ", ".join(sorted(model.name for model in names)[:10]) + (", ..." if len(names) > 10 else "")
    raise UserError(f"{probe.where}: has {len(names)} models; choose one by --model: {listed_names}")


def _sampling_fields(model: ListedModel) -> dict[str, Any]:
    """The fields of a drawn answer besides model and prompt, as sampling sends them."""
    neutral = NEUTRAL.get(model.owner, {})
    return {"max_tokens": _TOKENS, "temperature": 1.0, "top_p": 1.0, "stop": ["\n"], "seed": 7, **neutral}


def _prompt(endpoint: Endpoint, model: ListedModel) -> dict[str, Any]:
    ask = {"messages": [{"role": "user", "content": _ASK}]} if endpoint == "chat" else {"prompt": _ASK}
    return {"model": model.name, **ask}


def _endpoint(probe: _Probe, model: ListedModel) -> tuple[Endpoint, dict[str, Any], dict[str, str], dict[str, Any]]:
    """The first endpoint that answers (chat before completions), the fields that it takes, the words on what was
    refused, and a reply."""
    refused: dict[str, str] = {}
    first: tuple[Endpoint, dict[str, Any], dict[str, Any]] | None = None
    for endpoint in _PATHS:
        try:
            if first is None:
                first = (endpoint, *_fields(probe, endpoint, model, refused))
            else:
                probe.answer(endpoint, {**_prompt(endpoint, model), "max_tokens": _TOKENS})
        except _Refused as error:
            refused[endpoint] = str(error)
    if first is None:
        refusals = "; ".join(f"{name}: {text}" for name, text in refused.items() if name in _PATHS)
        other = ", does it want other fields" if re.search(r"status (400|422)", refusals) else ""
        raise UserError(
            f"{probe.where}: answers neither chat nor completions ({refusals}); are address and model right{other}?"
        )
    return first[0], first[1], refused, first[2]


def _fields(
    probe: _Probe, endpoint: Endpoint, model: ListedModel, refused: dict[str, str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of a request that the endpoint takes, found one by one where it refuses them together, and a reply.

    Raises :class:`_Refused` where it takes none.
    """
    prompt, optional = _prompt(endpoint, model), _sampling_fields(model)
    try:
        return {**prompt, **optional}, probe.answer(endpoint, {**prompt, **optional})
    except _Refused as error:
        if error.status not in _OF_FIELDS:
            raise
    fields, reply, words = _limit(probe, endpoint, prompt)
    for key, value in optional.items():
        if key == "max_tokens":
            continue
        try:
            reply = probe.answer(endpoint, {**fields, key: value})
            fields[key] = value
        except _Refused as error:
            if error.status not in _OF_FIELDS:
                raise
            words[key] = str(error)
    refused |= words
    return fields, reply


def _limit(
    probe: _Probe, endpoint: Endpoint, prompt: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """A request with the server's name for the longest answer, or without any; its reply, and the words on the others.

    Raises the first :class:`_Refused` where all are refused.
    """
    words: dict[str, str] = {}
    first: _Refused | None = None
    limits: tuple[dict[str, int], ...] = ({"max_tokens": _TOKENS}, {"max_completion_tokens": _TOKENS}, {})
    for limit in limits:
        try:
            return {**prompt, **limit}, probe.answer(endpoint, {**prompt, **limit}), words
        except _Refused as error:
            first = first or error
            if error.status not in _OF_FIELDS:
                break
            words |= {name: str(error) for name in limit}
    assert first is not None
    raise first


def _greedy(
    probe: _Probe,
    endpoint: Endpoint,
    fields: Mapping[str, Any],
    limit: LimitName,
    length: int,
    refused: dict[str, str],
) -> tuple[bool, int]:
    """True if temperature 0 is taken, and the longest answer that is, of ``length`` tokens or fewer."""
    plain = {**fields, "temperature": 0.0} if "temperature" in fields else dict(fields)
    long: dict[str, int] = {limit: length} if limit in fields else {}
    try:
        probe.answer(endpoint, {**plain, **long})
        return True, length
    except _Refused as error:
        if error.status not in _OF_FIELDS:
            raise
        words = str(error)
    greedy = _is_taken(probe, endpoint, plain)
    if not greedy:
        refused["temperature 0"] = words
        plain = dict(fields)
    for tokens in (length, length // 2, _TOKENS):
        if _is_taken(probe, endpoint, {**plain, **dict.fromkeys(long, tokens)}):
            return greedy, tokens
        refused[limit] = words
    return greedy, _TOKENS


def _is_taken(probe: _Probe, endpoint: Endpoint, body: Mapping[str, Any]) -> bool:
    """True if the endpoint answers; False where it refuses a field."""
    try:
        probe.answer(endpoint, body)
    except _Refused as error:
        if error.status not in _OF_FIELDS:
            raise
        return False
    return True


def _seeds(probe: _Probe, endpoint: Endpoint, fields: Mapping[str, Any], reply: Mapping[str, Any]) -> bool | None:
    """True if equal seeds give equal answers; None where all answers are alike."""
    if "seed" not in fields:
        return False
    texts = [_text(reply), *(_text(probe.answer(endpoint, {**fields, "seed": seed})) for seed in (7, 8, 9))]
    return None if len(set(texts)) < 2 else texts[0] == texts[1]


def _logprobs(probe: _Probe, endpoint: Endpoint, fields: Mapping[str, Any]) -> bool:
    try:
        reply = probe.answer(endpoint, {**fields, "logprobs": True if endpoint == "chat" else 1})
    except _Refused:
        return False
    return usable_logprobs(reply["choices"][0]) is not None


def _states(probe: _Probe, model: ListedModel) -> str:
    """Layers whose hidden states an engine returns, or the reason why it returns none."""
    body = {"model": model.name, "prompt": SHORT_PROMPT, "max_tokens": 1}
    try:
        if model.owner == "sglang":
            width = len(read_last_state(probe.answer("completions", {**body, **LAST_STATE})))
            return f"of the last layer, after the final norm, {width} numbers; no gate reads them"
        body["kv_transfer_params"] = state_request(0)
        layers = read_reply(probe.answer("completions", body), SHORT_PROMPT).layers
    except (_Refused, UserError) as error:
        return f"no: {error}"
    return f"of layers {', '.join(map(str, layers))}"


def _answers(probe: _Probe, endpoint: Endpoint, fields: Mapping[str, Any], samples: int) -> int:
    """The most answers that one request gives, ``samples`` or fewer."""
    for n in (samples, *(n for n in (16, 8, 4, 2) if n < samples)):
        if n < 2:
            break
        try:
            return min(n, len(probe.answer(endpoint, {**fields, "n": n})["choices"]))
        except _Refused as error:
            if error.status not in _OF_FIELDS:
                raise
    return 1


def _text(reply: Mapping[str, Any]) -> str:
    choice = (reply.get("choices") or [{}])[0]
    return str((choice.get("message") or {}).get("content") or choice.get("text") or "")


def write_config(checked: ServerAbilities, path: Path) -> None:
    """A configuration of data_gen/sample.py, and of every other script that asks a model.

    Raises :class:`UserError` for a file that is there.
    """
    text = f"# {checked.model} on a server, as kbtrain check-server found it: to sample, or to judge.\n"
    text += f"#   kbtrain run sample --config {path.name} --run RUN\n"
    text += f"#   kbtrain run judge --config {path.name} --run RUN --judge llm\n"
    try:
        with path.open("x", encoding="utf-8") as out:
            out.write(as_typed(text) + yaml.safe_dump(checked.settings, sort_keys=False, allow_unicode=True))
    except FileExistsError:
        raise UserError(f"{path}: exists already; give another name by --output") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None
