"""The seed of a request, for back ends that draw by themselves."""

from __future__ import annotations

import hashlib


def request_seed(seed: str, question_id: str, condition: str) -> int:
    """A number below 2**52 for one question under one condition; sample i of it has this number + i.

    Hashed, so that no two questions share a stretch of seeds; small enough for a server that reads JSON numbers as
    doubles. vLLM itself adds the index when a request asks for n answers, so n requests draw what one request draws.
    """
    key = "\x1f".join((seed, question_id, condition))
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 12
