"""``kbtrain push``: a gate's folder to a repository on the Hugging Face hub, with a model card.

The folder is opened as a gate before the first byte is sent. Sent are the files that gates are opened from, weights in
safetensors, those of a stack's parts in folders of their own; settings name no path of this machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from kbtrain.errors import UserError, at
from kbtrain.evaluation.results import load
from kbtrain.gate.card import CARD, README, GateCard, own_files
from kbtrain.gate.hub import FILES, TOKEN, check_name, hub_errors, pickle_in, quiet, token
from kbtrain.gate.trained_on import TRAINED_ENTITIES, TRAINED_ON
from kbtrain.gates.handles import gate_identity
from kbtrain.gates.registry import kind_of, load_gate, package_of, read_card
from kbtrain.io.jsonl import read_json
from kbtrain.io.text_files import read_text
from kbtrain.models.embedded import is_embedded
from kbtrain.models.weights import shapes_in
from kbtrain.report import summary
from kbtrain.report.page import render
from kbtrain.training.model_card import use_of

QUESTION = "What is the capital of France?"  # of the card's snippet
_ORIGINALS = {  # names on the hub of the embedded models' original weights
    "smollm2-135m-instruct": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "all-minilm-l6-v2": "sentence-transformers/all-MiniLM-L6-v2",
}
_SETTINGS = (CARD, "config.json", "generation_config.json", "*_config.json", "probe.json")
_OWN_SECTIONS = ("Run", "Versions")  # of the folder's README: not of interest to others, and full of paths
_TEMPLATES = ("own_prompts", "chat_template")
_PATH = re.compile(r"(?<![\w:./\\<-])(?:~|[A-Za-z]:)?[\\/][^\s\\/]+[\\/]")  # the begin of an absolute one


@dataclass(frozen=True)
class Push:
    """``model``: the answering model's name on the hub, where the card names a folder of this machine; ``private``:
    of a new repository; ``hashes``: those of the training questions are sent."""

    folder: Path
    name: str
    private: bool = False
    dry_run: bool = False
    model: str | None = None
    licence: str | None = None
    hashes: bool = True


def push(settings: Push, say: Callable[[str], None]) -> list[str]:
    """Lines about what was sent, or would be. Raises :class:`UserError`, and then nothing was sent."""
    check_name(settings.name)
    hub_token, folder = token(), settings.folder
    if hub_token is None and not settings.dry_run:
        raise UserError(
            f"no token: set {TOKEN} to one that may write to {settings.name} (huggingface.co/settings/tokens)"
        )
    files = dict(sorted(_files(folder, settings)))
    say(f"opening {folder} ...")
    card, gate = read_card(folder), load_gate(folder)
    is_plain = "question" in gate.reads and not gate.needs_evidence and gate.stage not in ("draft", "search")
    score = f"score {gate.score([QUESTION])[0]:.6g} for the first question" if is_plain else ""
    text = _card_text(settings, card, list(files), score, reads_turns="question" not in gate.reads)
    files[README] = text.encode()
    lines = [f"{len(v) if isinstance(v, bytes) else v.stat().st_size:>14,}  {name}" for name, v in files.items()]
    if settings.dry_run:
        return [*lines, "", *text.splitlines(), "", f"nothing was sent to {settings.name} (--dry-run)"]
    say(f"sending {len(files)} files to {settings.name} ...")
    commit = _send(settings, files, card.kind, hub_token)
    use = f'kbtrain.load_gate("{settings.name}", revision="{commit}")'
    return [*lines, f"sent to {settings.name}; that very commit: {use}"]


def _send(settings: Push, files: dict[str, Path | bytes], kind: str, hub_token: str | None) -> str:
    """Create the repository if it is missing, and one commit of all files; returns the commit.

    A gate's files that an earlier commit had and this one has not are removed by it. Raises :class:`UserError`.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    api, name = HfApi(token=hub_token), settings.name
    with hub_errors(name), quiet():
        api.create_repo(name, private=True if settings.private else None, exist_ok=True)
        if settings.private and not api.model_info(name).private:
            raise UserError(f"{name}: exists already and is public; take another name, or remove --private")
        there = [file for file in api.list_repo_files(name) if any(fnmatch(Path(file).name, one) for one in FILES)]
        operations: list[Any] = [
            *(CommitOperationDelete(file) for file in there if file not in files),
            *(CommitOperationAdd(file, content) for file, content in files.items()),
        ]
        message = f"Gate of kind {kind}, sent by kbtrain"
        return str(api.create_commit(name, operations, commit_message=message).oid)


def _files(folder: Path, settings: Push, prefix: str = "") -> Iterator[tuple[str, Path | bytes]]:
    """What a gate is opened from by its place in the repository, parts of a stack in folders of their own; settings as
    bytes. Raises :class:`UserError` for a gate of a server, a folder of pickles, and parts of one name."""
    card, kind = read_card(folder), kind_of(folder)
    if card.asks_server:
        raise UserError(f"{at(folder / CARD)}: this gate names your server and the variable of its key; it is not sent")
    parts = {part: Path(part).name for part in card.parts()}
    if len(set(parts.values())) < len(parts):
        raise UserError(f"{at(folder / CARD)}: two of its parts have folders of one name; rename one, make it again")
    model = _named_model(folder, card, settings.model, is_part=bool(prefix))
    renamed = {**parts, **({card.base_model: model} if card.base_model and model else {})}
    for path in own_files(folder, "*", "*/*"):
        place = path.relative_to(folder)
        if place.parts[0].startswith((".", "saving")) or place.parts[0] in parts or not path.is_file():
            continue
        if pickle_in([place.as_posix()]):
            raise UserError(f"{at(path)}: a pickle; a gate is sent in safetensors only: remove it")
        if path.suffix == ".safetensors":
            shapes_in(path)  # a pickle under this name is refused
        is_hash = place.name in (TRAINED_ON, TRAINED_ENTITIES) and not settings.hashes
        # the card of a folder inside is another library's: an adapter's
        is_other = place.name == README or (place.name == CARD and len(place.parts) > 1)
        if not is_hash and not is_other and any(fnmatch(place.name, name) for name in (*FILES, *kind.files)):
            content: Path | bytes = path
            if any(fnmatch(place.name, name) for name in _SETTINGS):
                value = without_paths(read_json(path), renamed)
                value.get("run", {}).pop("config", None)
                content = (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode()
            yield f"{prefix}{place.as_posix()}", content
    for part, name in parts.items():
        yield from _files(folder / part, settings, f"{prefix}{name}/")


def without_paths(value: Any, renamed: Mapping[str, str]) -> Any:
    """A value of JSON in which some texts are ``renamed``, and each text with an absolute path is its last name.
    Templates of prompts stay as they are: they may hold a slash."""
    if isinstance(value, dict):
        return {key: row if key in _TEMPLATES else without_paths(row, renamed) for key, row in value.items()}
    if isinstance(value, list):
        return [without_paths(inner, renamed) for inner in value]
    if not isinstance(value, str) or not (value in renamed or _PATH.search(value)):
        return value
    return renamed.get(value) or re.split(r"[\\/]", value.rstrip("\\/"))[-1]


def _named_model(folder: Path, card: GateCard, model: str | None, is_part: bool = False) -> str | None:
    """The answering model's name for others: ``model``, of a part only where it is a folder of this machine (parts may
    read other models). Raises :class:`UserError` for such a folder without ``model``."""
    name = card.base_model
    is_here = (
        name is not None
        and not is_embedded(name)
        and (Path(name).expanduser().exists() or name.startswith((".", "/", "~")) or name.count("/") > 1)
    )
    if model is not None and (is_here or not is_part):
        return model
    if is_here:
        raise UserError(
            f"{at(folder / CARD, field='base_model')}: '{name}' is a folder of this machine; give the model's name on "
            "the hub: --base-model USER/MODEL"
        )
    return name


def _card_text(settings: Push, card: GateCard, files: list[str], score: str, reads_turns: bool) -> str:
    """The repository's ``README.md``. ``score``: of the snippet's question when the folder was opened."""
    from huggingface_hub import ModelCardData

    folder, model = settings.folder, _named_model(settings.folder, card, settings.model)
    base = _ORIGINALS.get(model or "", model)
    base = base if base and re.fullmatch(r"[\w.-]+/[\w.-]+", base) else None
    tags = ["adaptive-retrieval", "retrieval-gate", card.kind]
    about = ModelCardData(base_model=base, library_name="kbtrain", license=settings.licence, tags=tags)
    points, sections = _of_readme(folder)
    use = use_of(card, reads_turns)
    opened = f'load_gate("{settings.name}")  # revision="..." holds one commit'
    hashes = {key.removesuffix("_sha256"): value for key, value in card.run.items() if key.endswith("_sha256")}
    return render(
        "gate_card.md.j2", False, metadata=str(about.to_yaml()).rstrip(), name=settings.name, kind=card.kind,
        model=model, snippet=use.replace('load_gate(".")  # this folder', opened), shown=score, files=files,
        private=settings.private, package=package_of(card.kind), points=points, tested=_tested(folder),
        sections=sections, hashes=hashes,
    )  # fmt: skip


def _tested(folder: Path) -> str:
    """Markdown: caption and rows of the run folder's evaluation about this very gate; empty without."""
    path = folder.resolve().parent / "results.json"
    if not path.exists():
        return ""
    results, identity = load(path), gate_identity(folder)
    sources = [stage.get("gates", {}) for stage in results.meta.get("stages", {}).values() if isinstance(stage, dict)]
    names = {name for gates in sources for name, source in gates.items() if source.get("identity") == identity}
    rows = [summary.row(gate) for gate in results.gates if gate.gate in names]
    table = [" | ".join(row) for row in (summary.HEAD, ("---",) * len(summary.HEAD), *rows)]
    return "\n".join([summary.caption(results) + ".", "", *(f"| {row} |" for row in table)]) if rows else ""


def _of_readme(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Points about the gate, and the sections with dev's figures and thresholds, of the README in its folder; a line
    that names an absolute path is skipped."""
    text = read_text(folder / README) if (folder / README).exists() else ""
    head, *rest = "\n".join(line for line in text.splitlines() if not _PATH.search(line)).split("\n## ")
    sections = dict(part.split("\n", 1) for part in rest if "\n" in part)
    points = [line for line in head.splitlines() if line.startswith("- ")]
    return points, {name: text.strip() for name, text in sections.items() if name not in _OWN_SECTIONS}
