"""The policy of one request, from its ``x-kbtrain-*`` headers; an unknown header or value is refused by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kbtrain.serve.config import ToolRule
from kbtrain.serve.problem import Refused

Retrieve = Literal["auto", "always", "never"]
PREFIX = "x-kbtrain-"


class Aim(BaseModel):
    """Aim of a decision: a threshold, a share of searches, the gain that a search must exceed, or the worth of one more
    right answer in money, tokens or milliseconds; at most one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    threshold: float | None = Field(None, description="a number")
    budget: float | None = Field(None, ge=0, le=1, description="a share of searches, from 0 to 1")
    price: float | None = Field(None, ge=-1, le=1, description="a share of right answers, from -1 to 1")
    worth: str | None = Field(None, description="an amount such as '0.05 USD'")

    @model_validator(mode="after")
    def _is_single(self) -> Aim:
        if sum(getattr(self, name) is not None for name in AIMS) > 1:
            raise ValueError(f"give one of {', '.join(AIMS)}")
        return self


AIMS = tuple(Aim.model_fields)
NO_AIM = Aim.model_validate({})


class Policy(Aim):
    """``retrieve`` auto: as the gate decides. ``tool``: of a search tool; None: the configuration's."""

    retrieve: Retrieve = "auto"
    tool: ToolRule | None = None
    debug: bool = False

    @classmethod
    def read(cls, headers: Iterable[tuple[bytes, bytes]]) -> Policy:
        """Raises :class:`Refused` with what is allowed."""
        values: dict[str, str] = {}
        for header, value in headers:
            name = header.decode("latin-1")
            key = name.removeprefix(PREFIX)
            if key == name:
                continue
            if key not in cls.model_fields:
                raise _refused(key, f"unknown header; allowed: {', '.join(PREFIX + name for name in _CHOICES)}")
            if key in values:
                raise _refused(key, "given twice")
            text = value.decode("latin-1").strip()
            values[key] = text if key in AIMS else text.lower()
        for key, allowed in _CHOICES.items():
            if allowed and values.get(key, allowed[0]) not in allowed:
                raise _refused(key, f"allowed: {', '.join(allowed)}")
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
        if not first["loc"]:
            raise _refused(max(values.keys() & set(AIMS)), first["msg"].removeprefix("Value error, "))
        key = str(first["loc"][0])
        raise _refused(key, f"expected {cls.model_fields[key].description}")


# values of each header; none: any that its type takes
_CHOICES: dict[str, tuple[str, ...]] = {
    "retrieve": get_args(Retrieve),
    **dict.fromkeys(AIMS, ()),
    "tool": get_args(ToolRule),
    "debug": ("true", "false", "1", "0"),
}


def _refused(key: str, message: str) -> Refused:
    return Refused(400, "policy", f"{PREFIX}{key:.40}: {message}", f"{PREFIX}{key:.40}")
