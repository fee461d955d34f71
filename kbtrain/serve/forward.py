"""The upstream's other routes under ``/v1/``: requests sent on as they come, ungated, both ways as streams."""

from __future__ import annotations

import re
from urllib.parse import quote_from_bytes

from kbtrain.serve.exchange import Exchange
from kbtrain.serve.policy import Policy
from kbtrain.serve.problem import Refused
from kbtrain.serve.proxy import pass_on, record_course
from kbtrain.serve.service import Course, Service

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
PREFIX = b"/v1/"
_PRINTABLE = "".join(map(chr, range(33, 127)))
_GROUP = re.compile(r"[a-z][a-z_-]{0,31}")


def passes_all(service: Service) -> bool:
    """True for an upstream whose routes are not known here: a server by its address."""
    return service.upstream is not None and service.upstream.paths is None


async def forward(service: Service, exchange: Exchange, allowed: str | None = None) -> None:
    """Send a request on, ungated. Raises :class:`Refused` (404, 405) where there is no server to send it to.

    ``allowed``: the method of this path that is not sent on.
    """
    method = exchange.scope["method"]
    if method not in METHODS or (allowed is not None and not passes_all(service)):
        methods = [allowed] if allowed is not None else list(METHODS)
        message = f"this route takes {', '.join(methods)}"
        if method == "OPTIONS":
            message += "; OPTIONS is for web pages: name their origins in the server's setting --cors"
        raise Refused(405, "method", message, headers={"allow": ", ".join(methods)})
    path = _path(exchange)
    policy = Policy.read(exchange.headers)
    body = await exchange.upload()
    course = Course(_group(path), reason="ungated-route")
    exchange.moment = "first-token"
    await record_course(service, exchange, policy, course, pass_on(service, exchange, path, body, policy, course))


def _path(exchange: Exchange) -> str:
    """The path behind ``/v1/`` as the client spelt it. Raises :class:`Refused` for one that leads out of ``/v1/``."""
    if not {".", ".."}.isdisjoint(exchange.scope["path"].split("/")):
        raise Refused(400, "path", "the path has a segment '.' or '..'")
    path: bytes = exchange.scope["raw_path"]
    if not path.startswith(PREFIX):  # %2fv1/...
        raise Refused(400, "path", "the path does not begin with /v1/")
    return quote_from_bytes(path.removeprefix(PREFIX), _PRINTABLE)


def _group(path: str) -> str:
    """The first segment of a path, for the log: what a client may write behind it does not stand there."""
    first = path.partition("/")[0]
    return first if _GROUP.fullmatch(first) else "other"
