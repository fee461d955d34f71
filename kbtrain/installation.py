"""Location of the stage scripts, and the commands that start them as the user of this installation types them.

In a clone the scripts lie in the repository and are run by path; an installed package carries them in ``_scripts/`` and
runs them by name. Texts in the source are written for a clone; :func:`as_typed` turns them for the others.
"""

from __future__ import annotations

import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
SHIPPED = PACKAGE / "_scripts"
FOLDERS = ("data_gen", "recipes", "eval")

_FOLDER = rf"(?:{'|'.join(FOLDERS)})"
_ALONE = r"(?<![\w/.-])"  # not the end of a longer path, which would be somebody's own file
_LAUNCHED = re.compile(
    rf"{_ALONE}accelerate launch(?P<options>(?: --?\w+ \S+)*?) (?:\\\n\s*)?(?P<script>{_FOLDER}/\w+\.py)"
)
_CONFIG = re.compile(rf"{_ALONE}(?P<config>{_FOLDER}/configs/\w+\.yaml)")
_LAUNCH_FILE = re.compile(r"(?:--config_file )?(?<![\w/.-])ds_configs/accelerate_(?P<name>\w+)\.yaml")
_LAUNCH_FOLDER = re.compile(rf"{_ALONE}ds_configs/(?P<file>\w+\.json)?")


def home() -> Path:
    """Folder of data_gen/, recipes/, eval/ and ds_configs/: ``_scripts/`` of the package, or the repository."""
    return SHIPPED if SHIPPED.is_dir() else PACKAGE.parent


def as_typed(text: str) -> str:
    """``text`` with every script, configuration and launch file named as this installation's user types it.

    Unchanged in a clone. After pip ``python data_gen/sample.py`` becomes ``kbtrain run sample``, and a path such as
    ``recipes/configs/kbm_smollm2.yaml`` the name ``kbm_smollm2``. Files that are not shipped keep their names.
    """
    if not SHIPPED.is_dir():
        return text
    text = _LAUNCHED.sub(lambda m: _launched(m) if _is_shipped(m["script"]) else m[0], text)
    text = _CONFIG.sub(lambda m: Path(m["config"]).stem if _is_shipped(m["config"]) else m[0], text)
    text = _LAUNCH_FILE.sub(lambda m: f"--launch {m['name']}", text)
    return as_commands(_LAUNCH_FOLDER.sub(lambda m: f"{SHIPPED / 'ds_configs'}/{m['file'] or ''}", text))


_SCRIPT = re.compile(
    rf"(?<![\w./'-])(?P<tick>`?)(?P<whole>python )?(?P<script>{_FOLDER}/(?P<name>\w+)\.py)(?![\w:])"
    r"(?P<options>(?: --[\w-]+(?: (?:\"[^\"]*\"|(?!(?:again|first|and|or|to|for|with)\b)[^\s;,()]+))?)*)"
)


def as_commands(message: str) -> str:
    """A message whose scripts are named by the command that also runs them outside of the clone.

    ``python SCRIPT OPTIONS`` is a command to copy; a script within a sentence becomes one in backquotes.
    """

    def command(match: re.Match[str]) -> str:
        if not (home() / match["script"]).is_file():
            return match[0]
        text = f"{match['tick']}kbtrain run {match['name']}{match['options']}"
        return text if match["whole"] or match["tick"] else f"`{text}`"

    return _SCRIPT.sub(command, message)


def program(script: Path) -> str:
    """Command that starts ``script``: its file's name, or for a shipped script ``kbtrain run NAME``."""
    shipped = SHIPPED.is_dir() and script.resolve().is_relative_to(SHIPPED)
    return f"kbtrain run {script.stem}" if shipped else script.name


def _is_shipped(path: str) -> bool:
    return (SHIPPED / path).is_file()


def _launched(match: re.Match[str]) -> str:
    options = match["options"]
    if options and not _LAUNCH_FILE.search(options):
        return match[0]  # options of accelerate's own, which `kbtrain run` does not take
    return f"kbtrain run {Path(match['script']).stem}{_LAUNCH_FILE.sub(lambda m: '--launch ' + m['name'], options)}"
