"""The Python of a folder's README, run as a reader would: in the folder, as it stands there."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path


def run_snippet(folder: Path) -> list[str]:
    """Lines that the only snippet of ``README.md`` prints. Raises whatever it raises."""
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), flags=re.S)
    printed = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        exec(compile(code, str(folder / "README.md"), "exec"), {})
    return printed.getvalue().splitlines()
