"""``kbtrain push``: a gate's folder to a repository on the Hugging Face hub.

Everything is checked before the first byte is sent: what would be sent is opened as a gate from its own folder.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from kbtrain.errors import UserError
from kbtrain.gate.card import README
from kbtrain.gate.gate import Gate
from kbtrain.gate.hub import FILES, TOKEN, check_name, hub_errors, quiet, token
from kbtrain.gates.registry import load_gate, read_card
from kbtrain.push.card import card_text
from kbtrain.push.staging import Push, Staged, check_no_machine, stage

ASKED = "What is the capital of France?"  # the snippet's question


def push(settings: Push, say: Callable[[str], None]) -> list[str]:
    """Lines about what was sent, or would be. Raises :class:`UserError`, and then nothing was sent."""
    check_name(settings.name)
    hub_token = token()
    if hub_token is None and not settings.dry_run:
        raise UserError(
            f"no token: set {TOKEN} to one that may write to {settings.name} (huggingface.co/settings/tokens)"
        )
    with tempfile.TemporaryDirectory(prefix="kbtrain-push-") as place:
        target = Path(place) / "gate"
        staged = stage(settings.folder, target, settings.model, settings.hashes)
        say("opening what would be sent ...")
        # the same files, but for the answering model's name: it lies here, and need not be fetched to be tried
        example = tried_here(settings.folder, Path(place) / "tried")
        card = read_card(target)
        text = card_text(settings, staged, card, example)
        (target / README).write_text(text, encoding="utf-8")
        check_no_machine(target, settings.folder, Path(place))
        lines = listing(staged)
        if settings.dry_run:
            return [*lines, "", *text.splitlines(), "", f"nothing was sent to {settings.name} (--dry-run)"]
        say(f"sending {len(staged.files) + 1} files to {settings.name} ...")
        commit = send(settings, staged, hub_token)
    use = f'kbtrain.load_gate("{settings.name}", revision="{commit}")'
    return [*lines, f"sent to {settings.name}; that very commit: {use}"]


def tried_here(folder: Path, copy: Path) -> str:
    """As :func:`tried`, of the folder's copy; errors name the folder."""
    try:
        return try_snippet(load_gate(stage(folder, copy, local=True).folder))
    except UserError as error:
        raise UserError(str(error).replace(str(copy), str(folder))) from None


def try_snippet(gate: Gate) -> str:
    """The decision on the snippet's question, for gates that need nothing else. Raises :class:`UserError`."""
    if "question" not in gate.reads or gate.needs_evidence or gate.stage in ("draft", "search"):
        return ""
    score = gate.score([ASKED])[0]
    if gate.threshold is None:
        return f"score {score:.6g} for the first question"
    return f"score {score:.6g} for the first question, threshold {gate.threshold:.6g}"


def listing(staged: Staged) -> list[str]:
    """The files that are sent, with sizes, and those of the folder that are not."""
    sizes = {file: (staged.folder / file).stat().st_size for file in (*staged.files, README)}
    lines = [f"{size:>14,}  {file}" for file, size in sizes.items()]
    return [*lines, f"not sent: {', '.join(staged.left) or 'nothing'}"]


def send(settings: Push, staged: Staged, hub_token: str | None) -> str:
    """Make the repository if it is not there, and one commit of all files; returns the commit.

    A gate's files that an earlier commit had and this one has not are removed by it. Raises :class:`UserError`.
    """
    from huggingface_hub import HfApi

    api = HfApi(token=hub_token)
    with hub_errors(settings.name), quiet():
        api.create_repo(settings.name, private=True if settings.private else None, exist_ok=True)
        if settings.private and not api.model_info(settings.name).private:
            raise UserError(f"{settings.name}: is there already, and public; take another name, or leave --private out")
        commit = api.upload_folder(
            repo_id=settings.name,
            folder_path=staged.folder,
            allow_patterns=[*staged.files, README],
            delete_patterns=[pattern for name in FILES for pattern in (name, f"*/{name}")],
            commit_message=f"Gate of kind {read_card(staged.folder).kind}, sent by kbtrain",
        )
        return str(commit.oid)
