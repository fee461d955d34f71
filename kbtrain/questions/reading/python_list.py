"""Lists as Python or numpy print them, in a table's cell: ``['a', "b"]``, ``['a' 'b']``, ``array([...], dtype=...)``.

numpy leaves out the commas, and Python reads ``'a' 'b'`` as one text: so the commas are put back between tokens.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from typing import Any

from kbtrain.questions.reading.rows import Row, shown

_ENDS = {tokenize.STRING, tokenize.NUMBER, tokenize.NAME}


def python_list(row: Row, key: str) -> list[Any]:
    """The list in the cell ``key``. Raises :class:`kbtrain.errors.UserError` with file, line and field."""
    text = row.text(key)
    try:
        value = ast.literal_eval(_with_commas(text))
    except (ValueError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError):
        raise row.error(key, f"expected a list like ['a', 'b'], found {shown(text)}") from None
    if not isinstance(value, list):
        raise row.error(key, f"expected a list, found {type(value).__name__} {shown(text)}")
    return value


def _with_commas(text: str) -> str:
    text = re.sub(r"\barray\((\[.*?\]), dtype=\w+\)", r"\1", text, flags=re.DOTALL)
    parts: list[str] = []
    after_value = False
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in {tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}:
            continue
        begins = token.type in _ENDS or token.string in "[{("
        if after_value and begins:
            parts.append(",")
        parts.append(token.string)
        after_value = token.type in _ENDS or token.string in "]})"
    return " ".join(parts)
