"""Abilities of a model server, found by a few short requests, and the configuration that fits them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from kbtrain.credentials import check_url, key_from_environment
from kbtrain.errors import UserError, did_you_mean, strike_all
from kbtrain.installation import as_typed
from kbtrain.llm.openai_llm import protocol, token_logprobs
from kbtrain.llm.server_requests import PASSING, NoReply, Retry, ask_once, message
from kbtrain.servers import retry_after, whole_json

Endpoint = Literal["chat", "completions"]
_PATHS: dict[Endpoint, str] = {"chat": "chat/completions", "completions": "completions"}
_ASK = "Name any town of the world. Answer with its name alone."
_TOKENS = 16
_WAITS = Retry(tries=3, first=1.0, patience=30.0)
SECONDS = 60.0  # longest silence of a server that is asked


@dataclass(frozen=True)
class Checked:
    """Abilities of a server. ``refused``: endpoint -> its words; ``extra``: fields to take out of or put into requests.

    ``answers``: choices of a request for two; ``seeds``: None where drawn answers tell nothing.
    """

    url: str
    model: str
    owner: str
    endpoint: Endpoint
    refused: Mapping[str, str]
    answers: int
    logprobs: bool
    usage: bool
    seeds: bool | None
    key_env: str
    n_requests: int
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """Keys of a sampling configuration."""
        found: dict[str, Any] = {
            "backend": "openai",
            "model": self.model,
            "server_url": self.url,
            "server_endpoint": self.endpoint,
            "server_n": self.answers > 1,
            "server_logprobs": self.logprobs,
        }
        if self.key_env != "OPENAI_API_KEY":
            found["server_key_env"] = self.key_env
        return found | self._fields()

    def _fields(self) -> dict[str, Any]:
        """The keys of ``extra``: another name of the limit is one of its own, so that ``max_new_tokens`` sets it."""
        extra = dict(self.extra)
        found: dict[str, Any] = {}
        if extra.pop("max_completion_tokens", None) is not None:
            del extra["max_tokens"]
            found["server_limit"] = "max_completion_tokens"
        return found | ({"server_extra": extra} if extra else {})

    def lines(self) -> list[str]:
        """A line for each ability."""
        ends = [f"{name}: {self.refused.get(name, 'yes')}" for name in _PATHS]
        n = "2 answers in one request" if self.answers > 1 else "one answer a request: as many requests as answers"
        seeds = {
            True: "same seed, same answer",
            False: "ignored: stored answers stay, but could not be drawn again",
            None: "not to be told: all answers were alike",
        }[self.seeds]
        found = {
            "server": f"{self.url} ({self.owner}), model {self.model}",
            "endpoint": f"{'; '.join(ends)} -> server_endpoint: {self.endpoint}",
            "n": n,
            "logprobs": "yes" if self.logprobs else "no: 0 is stored for them",
            "seeds": seeds,
            "usage": self._usage(),
        }
        if self.extra:
            found["fields"] = "; ".join(f"{key}: {json.dumps(value)}" for key, value in self._fields().items())
        return [f"{name:<9} {text}" for name, text in found.items()]

    def _usage(self) -> str:
        if not self.usage:
            return "no: lengths of answers are estimated"
        shared = self.answers > 1 and not self.logprobs
        return "yes" + (", for all answers of a reply together: shared out by their texts" if shared else "")


class _Refused(Exception):
    """A reply of another status than 200, or one without an answer in it."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"status {status} ({said})")
        self.status = status


class _Probe:
    """Posts small requests and counts them."""

    def __init__(self, url: str, key_env: str, seconds: float) -> None:
        key = key_from_environment(key_env)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.url, self.key_env, self.n = url.rstrip("/"), key_env, 0
        self.headers, self.seconds = headers, seconds

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The JSON of a reply; a passing fault (busy, starting) is waited for a little.

        Raises :class:`_Refused`, and :class:`UserError` without a connection or a key.
        """
        where = f"server {self.url}"
        for failed in range(1, _WAITS.tries + 1):
            self.n += 1
            try:
                reply, text = ask_once(self.url, method, path, self.headers, self.seconds, body)
            except NoReply as error:
                raise UserError(f"{where}: no connection ({error}); is it running, is the address right?") from None
            if reply.status_code not in PASSING or failed == _WAITS.tries:
                break
            patience = min(_WAITS.patience, self.seconds)
            time.sleep(_WAITS.seconds(failed, retry_after(reply.headers.get("retry-after"), patience)))
        if reply.status_code in {401, 403}:
            said = f"status {reply.status_code} ({message(reply, text)})"
            raise UserError(f"{where}: {said}; set the key in the environment variable {self.key_env}, or name another "
                            "one by --key-env")  # fmt: skip
        if reply.status_code != 200:
            raise _Refused(reply.status_code, message(reply, text))
        try:
            found, _ = whole_json(strike_all(json.loads(text)))  # what is found is shown and written: text alone can be
        except (ValueError, RecursionError):
            raise UserError(f"{where}: does not speak OpenAI's protocol; does the address end in /v1?") from None
        return found if isinstance(found, dict) else {"data": found}

    def answer(self, endpoint: Endpoint, body: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON of a reply with an answer in it. Raises :class:`_Refused` for one that tells of an error instead."""
        found = self.send("POST", _PATHS[endpoint], body)
        if isinstance(found.get("choices"), list) and found["choices"]:
            return found
        said = found.get("error") or found.get("message") or "a reply without choices"
        raise _Refused(200, str(said.get("message") if isinstance(said, dict) else said)[:200])


def check_server(
    url: str, model: str | None = None, key_env: str = "OPENAI_API_KEY", seconds: float = SECONDS
) -> Checked:
    """Ask the server a few short questions, each for at most ``seconds`` of silence.

    Raises :class:`UserError` where nothing can be asked, and for replies that do not follow the protocol.
    """
    check_url(url, "server_url")
    with protocol():
        try:
            return _checked(_Probe(url, key_env, seconds), model)
        except _Refused as error:
            raise UserError(f"server {url}: {error}, after it had answered; try again when it is well") from None


def _checked(probe: _Probe, model: str | None) -> Checked:
    name, owner = _model(probe, model)
    fields: dict[str, Any] = {"model": name, "max_tokens": _TOKENS, "temperature": 0.0, "stop": ["\n"]}
    endpoint, refused, extra = _endpoint(probe, fields)
    fields = {k: v for k, v in {**fields, "temperature": 1.0, **extra}.items() if v is not None}
    ask = _asked(endpoint, fields)
    replies, seeded = [], True
    for seed in (7, 7, 8, 9):
        try:
            replies.append(probe.answer(endpoint, {**ask, "seed": seed}))
        except _Refused:
            extra, seeded = {**extra, "seed": None}, False
            replies.append(probe.answer(endpoint, ask))
            break
    logprobs = _logprobs(probe, endpoint, ask)
    answers = _answers(probe, endpoint, ask)
    texts = [_text(reply) for reply in replies]
    alike = None if len(set(texts)) < 2 else texts[0] == texts[1]
    usage = all("completion_tokens" in (reply.get("usage") or {}) for reply in replies)
    return Checked(probe.url, name, owner, endpoint, refused, answers, logprobs, usage, alike if seeded else False,
                   probe.key_env, probe.n, extra)  # fmt: skip


def _model(probe: _Probe, wanted: str | None) -> tuple[str, str]:
    """Name and owner of the model to be asked."""
    try:
        listed = probe.send("GET", "models").get("data") or []
    except _Refused:
        listed = []
    owners = {str(m["id"]): str(m.get("owned_by", "unknown")) for m in listed if isinstance(m, dict) and "id" in m}
    if wanted is not None:
        if owners and wanted not in owners:
            raise UserError(f"--model {wanted}: the server has none of that name; {did_you_mean(wanted, owners)}")
        return wanted, owners.get(wanted, "unknown")
    if len(owners) == 1:
        return next(iter(owners.items()))
    if not owners:
        raise UserError(f"server {probe.url}: lists no models; name one by --model (does the address end in /v1?)")
    shown = ", ".join(sorted(owners)[:10]) + (", ..." if len(owners) > 10 else "")
    raise UserError(f"server {probe.url}: has {len(owners)} models; choose one by --model: {shown}")


def _asked(endpoint: Endpoint, fields: Mapping[str, Any]) -> dict[str, Any]:
    ask: dict[str, Any] = {"messages": [{"role": "user", "content": _ASK}]} if endpoint == "chat" else {"prompt": _ASK}
    return {**fields, **ask}


def _endpoint(probe: _Probe, fields: Mapping[str, Any]) -> tuple[Endpoint, dict[str, str], dict[str, Any]]:
    """The first endpoint that answers (chat before completions), what the other said, and fields it wants changed."""
    changes: tuple[dict[str, Any], ...] = (
        {}, {"stop": None}, {"max_tokens": None, "max_completion_tokens": _TOKENS},
        {"max_tokens": None, "max_completion_tokens": _TOKENS, "stop": None},
    )  # fmt: skip
    refused: dict[str, str] = {}
    found: dict[Endpoint, dict[str, Any]] = {}
    for endpoint in _PATHS:
        for change in changes:
            try:
                body = {k: v for k, v in {**_asked(endpoint, fields), **change}.items() if v is not None}
                probe.answer(endpoint, body)
            except _Refused as error:
                refused.setdefault(endpoint, str(error))
                if error.status != 400:
                    break
            else:
                refused.pop(endpoint, None)
                found[endpoint] = change
                break
    if not found:
        said = "; ".join(f"{name}: {text}" for name, text in refused.items())
        other = ", does it want other fields" if any("status 400" in text for text in refused.values()) else ""
        raise UserError(
            f"server {probe.url}: answers neither chat nor completions ({said}); are address and model right{other}?"
        )
    chosen: Endpoint = "chat" if "chat" in found else "completions"
    return chosen, refused, found[chosen]


def _logprobs(probe: _Probe, endpoint: Endpoint, ask: Mapping[str, Any]) -> bool:
    try:
        reply = probe.answer(endpoint, {**ask, "logprobs": True if endpoint == "chat" else 1})
    except _Refused:
        return False
    return token_logprobs(reply["choices"][0]) is not None


def _answers(probe: _Probe, endpoint: Endpoint, ask: Mapping[str, Any]) -> int:
    try:
        return len(probe.answer(endpoint, {**ask, "n": 2})["choices"])
    except _Refused:
        return 1


def _text(reply: Mapping[str, Any]) -> str:
    choice = (reply.get("choices") or [{}])[0]
    return str((choice.get("message") or {}).get("content") or choice.get("text") or "")


def write_config(checked: Checked, path: Path) -> None:
    """A configuration of data_gen/sample.py, and of every other script that asks a model.

    Raises :class:`UserError` for a file that is there.
    """
    text = f"# {checked.model} on a server, as kbtrain check-server found it: to sample, or to judge.\n"
    text += f"#   python data_gen/sample.py --config {path.name} --run RUN\n"
    text += f"#   python data_gen/judge.py --config {path.name} --run RUN --judge llm\n"
    try:
        with path.open("x", encoding="utf-8") as out:
            out.write(as_typed(text) + yaml.safe_dump(checked.settings, sort_keys=False, allow_unicode=True))
    except FileExistsError:
        raise UserError(f"{path}: exists already; give another name by --output") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None
