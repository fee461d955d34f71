"""Errors that a client gets, in the form of OpenAI's or Anthropic's, and checks of requests that raise them: JSON
bodies, their fields, and the policy in a request's ``x-kbtrain-*`` headers.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kbtrain.serve.config import ToolRule

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
ANTHROPIC_TYPES = TYPES | {
    404: "not_found_error", 413: "request_too_large", 500: "api_error", 502: "api_error", 503: "overloaded_error",
    504: "timeout_error",
}  # fmt: skip
_SURROGATE = re.compile(rb"\\u[dD][89abAB]|\\u[dD][c-fC-F]")
M = TypeVar("M", bound=BaseModel)


class Refused(Exception):
    """A request that gets no answer. ``code`` is for programs, ``message`` for people; neither repeats a body."""

    def __init__(
        self, status: int, code: str, message: str, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = dict(headers or {})
        self.fields: dict[str, Any] = {}  # beside the error

    def body(self, anthropic: bool = False) -> bytes:
        if anthropic:
            kind = ANTHROPIC_TYPES.get(self.status, "invalid_request_error")
            return json.dumps(
                {"type": "error", "error": {"type": kind, "message": str(self), "code": self.code}}
            ).encode()
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        error: dict[str, Any] = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return json.dumps({"error": error, **self.fields}).encode()


class Busy(Refused):
    """No room: the same request may be sent again after a second."""

    def __init__(self, reason: str) -> None:
        super().__init__(503, "busy", f"{reason}; try again", headers={"retry-after": "1"})


class BadBody(Refused):
    """A body that is invalid; ``field``: where."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(400, "body", message if field is None else f"field '{field}': {message}", field)


def as_json(value: Any) -> bytes:
    """UTF-8, with "?" for halves of surrogate pairs."""
    return json.dumps(value, ensure_ascii=False).encode(errors="replace")


def read_object(data: bytes) -> dict[str, Any]:
    """The object of a JSON body, with any fields.

    Raises :class:`BadBody` for broken JSON, a duplicate key, numbers that JSON does not have, and halves of a surrogate
    pair.
    """
    try:
        value = json.loads(
            data.decode(), parse_constant=_finite, parse_float=_finite, object_pairs_hook=_without_duplicates
        )
    except UnicodeDecodeError:
        raise BadBody("the body is not UTF-8") from None
    except RecursionError:
        raise BadBody("the body is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise BadBody(f"broken JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except ValueError:
        raise BadBody("a number in the body is too long, or not a number of JSON") from None
    if not isinstance(value, dict):
        raise BadBody(f"expected a JSON object, found {type(value).__name__}")
    if _SURROGATE.search(data):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise BadBody("the body holds half of a surrogate pair, which is not text") from None
    return value


def read_fields(kind: type[M], body: Mapping[str, Any]) -> M:
    """A body's fields, checked; each field's description says what is expected. Raises :class:`BadBody`."""
    try:
        return kind.model_validate(body, strict=True)
    except ValidationError as error:
        field, message = _first_problem(kind, error)
    raise BadBody(message, field)


def _first_problem(kind: type[BaseModel], error: ValidationError, prefix: str = "") -> tuple[str | None, str]:
    """The field of an invalid value (None: of several), and what is expected."""
    first = error.errors()[0]
    if not first["loc"]:
        return None, first["msg"].removeprefix("Value error, ")
    field = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        return f"{field:.40}", f"unknown; allowed: {', '.join(prefix + name for name in kind.model_fields)}"
    return field, f"expected {kind.model_fields[field].description}"


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Of a duplicate key servers read the first or the last value: the gate might read another one than the upstream.
    values = dict(pairs)
    if len(values) != len(pairs):
        name = next(key for key, n in Counter(key for key, _ in pairs).items() if n > 1)
        raise Refused(400, "body", f"duplicate key '{name:.40}' in the body", f"{name:.40}")
    return values


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("no number of JSON")
    return number


PREFIX = "x-kbtrain-"  # of headers


class Aim(BaseModel):
    """Aim of a decision: a threshold, or a share of searches; at most one."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    threshold: float | None = Field(None, description="a number")
    budget: float | None = Field(None, ge=0, le=1, description="a share of searches, from 0 to 1")

    @model_validator(mode="after")
    def _is_single(self) -> Aim:
        if sum(getattr(self, name) is not None for name in AIMS) > 1:
            raise ValueError(f"give one of {', '.join(AIMS)}")
        return self

    @property
    def asks_gate(self) -> bool:
        """True if the request itself wants the gate's decision, which wins over the server's policy."""
        wishes = self.model_dump(include={"retrieve", *AIMS}, exclude_unset=True)
        return wishes.pop("retrieve", "") == "auto" or any(value is not None for value in wishes.values())


AIMS = tuple(Aim.model_fields)
NO_AIM = Aim.model_validate({})


class GatePolicy(Aim):
    """What the headers of one request say to the gate, where it is asked alone."""

    source: str = Field("", max_length=200, description="the question's source, as gates have learned it")

    @classmethod
    def read(cls, headers: Iterable[tuple[bytes, bytes]], source: str = "") -> Self:
        """``source``: if no header has it. Raises :class:`Refused` for an unknown header or value."""
        values: dict[str, str] = {}
        for header, value in headers:
            name = header.decode("latin-1")
            key = name.removeprefix(PREFIX)
            if key == name:
                continue
            if key in values:
                raise _refused_header(key, "duplicate")
            text = header_text(value).strip()
            values[key] = text if key == "source" else text.lower()
        try:
            return cls.model_validate({**values, "source": values.get("source") or source})
        except ValidationError as error:
            field, message = _first_problem(cls, error, PREFIX)
        # several aims: the name of one; a header's name may be empty
        raise _refused_header(max(values.keys() & set(AIMS)) if field is None else field, message)


class Policy(GatePolicy):
    """The same of a request that is answered. ``retrieve`` auto: as the gate decides; ``tool`` None: as configured."""

    retrieve: Literal["auto", "always", "never"] = Field("auto", description="auto, always or never")
    tool: ToolRule | None = Field(None, description="keep, remove, allow or force")
    debug: bool = Field(False, description="true or false")


def header_text(value: bytes) -> str:
    """A header's value, in UTF-8 as clients and their libraries send it; other bytes are read as latin-1."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _refused_header(key: str, message: str) -> Refused:
    return Refused(400, "policy", f"{PREFIX}{key:.40}: {message}", f"{PREFIX}{key:.40}")
