"""Keys of servers and services: taken from the environment, checked, and never shown.

Every secret that is met here is struck from errors, meta files and stores (:func:`kbtrain.errors.never_show`), since
servers echo headers, and a configuration that holds a key would carry it into each file that says how it was made.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Mapping
from typing import Any

from kbtrain.errors import UserError, never_show

_SECRET_NAME = re.compile(r"(^|[-_])(api[-_]?key|key|token|secret|password|passwd|auth|authorization|sig)$", re.I)


def key_from_environment(variable: str) -> str | None:
    """The key in an environment variable; None if it is not set, or empty.

    Raises :class:`UserError` for one that no header can carry (a line end from ``$(cat file)``, a space), without its
    text.
    """
    key = os.environ.get(variable)
    if not key:
        return None
    never_show(key)
    never_show(key.strip())
    bad = next((i for i, c in enumerate(key) if not "!" <= c <= "~"), None)
    if bad is not None:
        kind = "a line end" if key[bad] in "\r\n" else "a space" if key[bad].isspace() else "no ASCII character"
        raise UserError(f"environment variable {variable}: character {bad + 1} of the key is {kind}; set it again")
    return key


def check_url(url: str, key: str) -> None:
    """Refuse a name or password in an address, and never show the values of parameters such as ``api_key``.

    ``key`` is the configuration's key that errors name. Raises :class:`UserError`.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        user, password = parts.username, parts.password
    except ValueError:
        raise UserError(f"key '{key}': no valid address") from None
    if user or password:
        for secret in filter(None, (password, user)):
            never_show(secret)
            never_show(urllib.parse.unquote(secret))
        raise UserError(f"key '{key}': the address holds a name or a password; give keys by environment variables")
    for name, value in urllib.parse.parse_qsl(parts.query):
        if _SECRET_NAME.search(name) and not value.startswith("{"):
            never_show(value)
            never_show(urllib.parse.quote(value, safe=""))


def hide_values(fields: Mapping[str, Any]) -> None:
    """Never show the values of fields whose names say that they are secret (``api_key``, ``token``), at any depth."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            hide_values(value)
        elif isinstance(value, str) and _SECRET_NAME.search(name):
            never_show(value)
