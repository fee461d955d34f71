"""Location of the stage scripts, and the commands that run them, which are the same in a clone and after pip.

In a clone the scripts lie in the repository; an installed package carries them in ``_scripts/``. Texts in the source
name them by their path; :func:`as_commands` turns it into the command that a user types.
"""

from __future__ import annotations

import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
SHIPPED = PACKAGE / "_scripts"
FOLDERS = ("data_gen", "recipes", "eval")

_FOLDER = rf"(?<![\w/.'-])(?P<tick>`?)(?P<python>python )?(?P<folder>{'|'.join(FOLDERS)})"  # not of somebody's own path
_SCRIPT = re.compile(rf"{_FOLDER}/(?P<name>\w+)\.py(?![\w:])(?P<option> --)?")
_CONFIG = re.compile(rf"{_FOLDER}/configs/(?P<name>\w+)\.yaml")


def home() -> Path:
    """Folder of data_gen/, recipes/, eval/ and ds_configs/: ``_scripts/`` of the package, or the repository."""
    return SHIPPED if SHIPPED.is_dir() else PACKAGE.parent


def as_commands(text: str) -> str:
    """``text`` with scripts as the commands that run them, and configurations by their names.

    Within a sentence a command stands in backquotes. Files that are not shipped keep their names.
    """
    return _CONFIG.sub(lambda match: f"{match['tick']}{match['name']}", _SCRIPT.sub(_command, text))


def _command(match: re.Match[str]) -> str:
    if not (home() / match["folder"] / f"{match['name']}.py").is_file():
        return match[0]
    command = f"{match['tick']}kbtrain run {match['name']}{match['option'] or ''}"
    return command if match["tick"] or match["python"] or match["option"] else f"`{command}`"
