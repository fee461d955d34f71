"""Keys and addresses of servers, waits between tries, and limits for untrusted replies.

Keys come from the environment, are checked, and are never shown. Every secret that is met here is struck from errors,
meta files and stores (:func:`kbtrain.errors.never_show`), since servers echo headers, and a configuration that holds a
key would carry it into each file that says how it was made. What could not be struck without striking results too, a
word or a number, is refused as a key.
"""

from __future__ import annotations

import email.utils
import functools
import ipaddress
import json
import os
import random
import re
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kbtrain.errors import ESCAPED_HALF, HALVES, UserError, is_plain, never_show, strike_all

LARGEST = 64 * 2**20  # bytes of a reply that are read
LONGEST_ASKED = 600.0  # seconds that a server may ask to wait
PLACEHOLDERS = frozenset(
    {"empty", "none", "null", "dummy", "unused", "not-needed", "ollama", "lm-studio", "sk-no-key-required"}
)
PLAIN = (
    "8 or more characters with a letter and a digit or a sign, or 16 or more; a word or a number would have to be "
    "struck out of results too"
)
_BETWEEN = re.compile(r"[?&;#]")  # an address and its parameters, in any place where a server takes them
_SCHEME = re.compile(r"https?://", re.I)
_HOST = re.compile(r"^([a-z]+:)?//", re.I)  # before a host, of any scheme
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY_NAME = re.compile(r"(^|[-_])(api[-_]?key|secret|password|passwd|authorization)$|^(key|token|auth)$", re.I)
_SECRET_NAME = re.compile(
    r"(^|[-_])(api[-_]?key|key|token|secret|password|passwd|auth|authorization|bearer|credentials?|cookie|sig)$", re.I
)


def key_from_environment(variable: str) -> str | None:
    """The key in an environment variable; None if it is not set, or empty.

    Raises :class:`UserError`, without the key's text, for one that no header can carry (a line end from
    ``$(cat file)``, a space) and for a plain one, unless it is what servers without keys are customarily given
    (:data:`PLACEHOLDERS`); and for a text that no variable can be called by, which may be the key itself.
    """
    if not _VARIABLE.fullmatch(variable):
        raise UserError("a key: expected the name of the environment variable that holds it, not its text")
    key = os.environ.get(variable)
    if not key:
        return None
    bad = next((i for i, c in enumerate(key) if not "!" <= c <= "~"), None)
    if bad is not None:
        kind = "a line end" if key[bad] in "\r\n" else "a space" if key[bad].isspace() else "no ASCII character"
        raise UserError(f"environment variable {variable}: character {bad + 1} of the key is {kind}; set it again")
    if key.lower() in PLACEHOLDERS:
        return key
    if is_plain(key):
        raise UserError(
            f"environment variable {variable}: expected a key of {PLAIN}; unset it if the server needs none"
        )
    never_show(key)
    return key


def key_headers(variable: str, header: str = "Authorization") -> dict[str, str]:
    """The header that carries the key of an environment variable; none without a key. Azure's ``api-key`` and its like
    hold the key alone. Raises :class:`UserError` as :func:`key_from_environment` does."""
    key = key_from_environment(variable)
    if key is None:
        return {}
    return {header: f"Bearer {key}" if header == "Authorization" else key}


def check_url(url: str, key: str) -> None:
    """Refuse a name or password in an address, and never show the values of parameters such as ``api_key``.

    ``key`` is the configuration's key that errors name. Raises :class:`UserError`, also for a plain value of those, and
    for what is not an address: a key may be anywhere in it.
    """
    host, *parameters = _BETWEEN.split(url.strip())
    if "@" in urllib.parse.unquote(_HOST.sub("", host).partition("/")[0]):
        raise UserError(f"key '{key}': the address holds a name or a password; give keys by environment variables")
    try:
        parts = urllib.parse.urlsplit(url)
        valid = bool(parts.hostname) and "%" not in parts.netloc and (parts.port is None or parts.port > 0)
    except ValueError:  # open brackets, an invalid port
        valid = False
    if not _SCHEME.match(url.strip()):
        raise UserError(f"key '{key}': an address begins with http:// or https://")
    if not valid:
        raise UserError(f"key '{key}': no valid address")
    for part in parameters:
        name, _, spelt = part.partition("=")
        name = urllib.parse.unquote_plus(name)
        if not spelt.startswith("{"):
            for value in (urllib.parse.unquote_plus(spelt), spelt):
                _hide(name, value, f"key '{key}': parameter '{name}'")


def hide_values(fields: Mapping[str, Any], key: str) -> None:
    """Never show the values of fields whose names say that they are secret (``api_key``, ``token``), at any depth.

    ``key`` is the configuration's key that errors name. Raises :class:`UserError` for a plain value of those.
    """
    _hide_within("", fields, f"key '{key}': field")


def _hide_within(name: str, value: Any, place: str) -> None:
    """``name``: of the field, or of the secret one that holds it, as ``{api_key: {value: ...}}``."""
    if isinstance(value, Mapping):
        for inner, held in value.items():
            _hide_within(name if _SECRET_NAME.search(name) else str(inner), held, place)
    elif isinstance(value, list):
        for held in value:
            _hide_within(name, held, place)
    elif isinstance(value, str):
        _hide(name, value, f"{place} '{name}'")


def _hide(name: str, value: str, place: str) -> None:
    """Names such as ``eos_token`` or ``cache_key`` may have plain values; those are no secrets."""
    if _KEY_NAME.search(name) and value and is_plain(value) and value.lower() not in PLACEHOLDERS:
        raise UserError(f"{place}: expected a key of {PLAIN}")
    if _SECRET_NAME.search(name) and value.lower() not in PLACEHOLDERS:
        for secret in (value, *value.split()):  # "Bearer KEY": a server may repeat the key alone
            never_show(secret)


@dataclass(frozen=True)
class Retry:
    """Number of tries and the pauses between them: ``first`` seconds, doubled each time up to ``longest``, times a
    random number between 1/2 and 1 (so that clients which failed together do not come back together).

    A server's ``Retry-After`` counts as the least wait, up to ``patience`` seconds.
    """

    tries: int = 8
    first: float = 1.0
    longest: float = 60.0
    patience: float = LONGEST_ASKED

    def seconds(self, failed: int, requested: float | None) -> float:
        """Seconds to wait after ``failed`` tries; ``requested`` is the server's own wish."""
        wait = min(self.longest, self.first * 2.0 ** min(failed - 1, 30)) * random.uniform(0.5, 1.0)
        return max(wait, min(requested or 0.0, self.patience))


def retry_after(text: str | None, most: float) -> float | None:
    """Seconds from a ``Retry-After`` header (a number or a date), at most ``most``; None if it is neither."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return None if seconds != seconds else min(most, max(0.0, seconds))


def split_query(url: str) -> tuple[str, dict[str, str]]:
    """An address without its query, and the query: Azure's ``?api-version=...`` follows the path of every request."""
    address, _, query = url.partition("?")
    return address.rstrip("/"), dict(urllib.parse.parse_qsl(query.partition("#")[0], keep_blank_values=True))


def whole_text(text: str) -> tuple[str, int]:
    """``text`` with halves of surrogate pairs replaced by U+FFFD, and their number: no file or store can hold them."""
    return HALVES.subn("�", text)


def reply_json(text: str) -> Any:
    """The JSON of a reply without secrets, since a server may echo its caller's headers; no store can hold halves of
    surrogate pairs, so these are U+FFFD. Raises ValueError."""
    try:
        value = strike_all(json.loads(text))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return json.loads(whole_text(json.dumps(value, ensure_ascii=False))[0]) if ESCAPED_HALF.search(text) else value


ERROR_EVENTS = ("error", "exception", "response.failed", "response.error")  # names or types of a stream's events
_FINE = (0, 200, "0", "200", "ok", "success")  # codes that state no error


def states_error(reply: Mapping[str, Any]) -> bool:
    """True for a server's JSON object that states an error: in a field, by its type, or by a code with its message."""
    if any(reply.get(key) for key in ("error", "Error", "errors", "error_message")) or reply.get("object") == "error":
        return True
    inner, base = reply.get("response") or reply.get("Response"), reply.get("base_resp")  # OpenAI, Tencent; MiniMax
    statuses = [reply.get("status"), inner.get("status") if isinstance(inner, Mapping) else None]
    if reply.get("type") in ERROR_EVENTS or not {"failed", "error"}.isdisjoint(map(str, statuses)):
        return True
    if isinstance(inner, Mapping) and (inner.get("error") or inner.get("Error")):
        return True
    if isinstance(base, Mapping) and base.get("status_code"):
        return True
    codes = [reply[key] for key in ("code", "error_code", "errcode") if reply.get(key) not in (None, "", *_FINE)]
    told = any(key in reply for key in ("message", "msg", "error_msg", "errmsg"))
    return "choices" not in reply and ((bool(codes) and told) or set(reply) == {"detail"})


@functools.cache
def tls() -> Any:
    """The context of every encrypted connection; made once: reading the certificates takes longer than asking."""
    import httpx2

    return httpx2.create_ssl_context()


def by_proxy(url: str) -> bool:
    """True where the environment's proxy may stand before an address: it cannot reach this machine's own."""
    return not is_loopback(urllib.parse.urlsplit(url).hostname or "")


@functools.lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """True for addresses that only this machine reaches."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
