"""``kbtrain push``: a gate's folder to a repository on the Hugging Face hub, with a model card.

Everything is checked before the first byte is sent: the files that would be sent are opened as a gate. These are the
folder's own files alone, weights in safetensors, without a path of this machine.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from kbtrain.errors import UserError, at
from kbtrain.evaluation.results import GateResult, Results, load
from kbtrain.gate.card import CARD, README, GateCard
from kbtrain.gate.gate import Gate
from kbtrain.gate.hub import FILES, TOKEN, check_name, hub_errors, pickle_in, quiet, token
from kbtrain.gate.trained_on import TRAINED_ENTITIES, TRAINED_ON
from kbtrain.gates.handles import gate_identity
from kbtrain.gates.registry import check_parts, kind_of, load_gate, package_of, read_card
from kbtrain.io.jsonl import read_json
from kbtrain.io.text_files import read_text
from kbtrain.models.embedded import is_embedded
from kbtrain.models.weights import header_of
from kbtrain.report.page import render
from kbtrain.report.summary import KIND, bootstrap_units, interval
from kbtrain.report.tables import difference
from kbtrain.report.words import by_rule, percent
from kbtrain.show import number
from kbtrain.training.model_card import USE_QUESTION, USE_TURN

QUESTION = "What is the capital of France?"  # of the card's snippet
# Names on the hub of the embedded models' original weights.
_ORIGINALS = {
    "smollm2-135m-instruct": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "all-minilm-l6-v2": "sentence-transformers/all-MiniLM-L6-v2",
}
_OWN_SECTIONS = ("Run", "Versions")  # of the folder's README: not of interest to others, and full of paths
# vocabularies, in which a path would be a token
_NOT_SETTINGS = ("tokenizer.json", "vocab.json", "added_tokens.json", "*.index.json")
_PATH = re.compile(r"(?:~|[A-Za-z]:)[\\/].+|/[^/\n]+/[^\n]+")
_PATH_WITHIN = re.compile(r"(?<![\w:./\\<-])(?:~|[A-Za-z]:)?[\\/][^\s\\/]+[\\/]")
_LARGEST_TEXT = 5_000_000  # bytes of a text that is searched for paths
HEAD = ("score", "searches for", "accuracy", "against never", "against always", "against random", "area")


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


@dataclass(frozen=True)
class Staged:
    """``files``: what would be sent, by its place in the repository; ``left``: files of the folder that stay here."""

    folder: Path
    files: tuple[str, ...]
    left: tuple[str, ...]
    model: str | None


def push(settings: Push, say: Callable[[str], None]) -> list[str]:
    """Lines about what was sent, or would be. Raises :class:`UserError`, and then nothing was sent."""
    check_name(settings.name)
    hub_token = token()
    if hub_token is None and not settings.dry_run:
        raise UserError(
            f"no token: set {TOKEN} to one that may write to {settings.name} (huggingface.co/settings/tokens)"
        )
    with tempfile.TemporaryDirectory(prefix="kbtrain-push-") as place:
        staged = stage(settings.folder, Path(place) / "gate", settings.model, settings.hashes)
        say("opening what would be sent ...")
        # the same files, but for the answering model's name: the one of this machine need not be fetched
        tried = Path(place) / "tried"
        try:
            example = _snippet_score(load_gate(stage(settings.folder, tried, local=True).folder))
        except UserError as error:
            raise UserError(str(error).replace(str(tried), str(settings.folder))) from None
        text = card_text(settings, staged, example)
        (staged.folder / README).write_text(text, encoding="utf-8")
        _check_no_machine(staged.folder, (Path.home(), Path.cwd(), settings.folder, Path(place)))
        sizes = {file: (staged.folder / file).stat().st_size for file in (*staged.files, README)}
        lines = [f"{size:>14,}  {file}" for file, size in sizes.items()]
        lines.append(f"not sent: {', '.join(staged.left) or 'nothing'}")
        if settings.dry_run:
            return [*lines, "", *text.splitlines(), "", f"nothing was sent to {settings.name} (--dry-run)"]
        say(f"sending {len(sizes)} files to {settings.name} ...")
        commit = _send(settings, staged, hub_token)
    use = f'kbtrain.load_gate("{settings.name}", revision="{commit}")'
    return [*lines, f"sent to {settings.name}; that very commit: {use}"]


def _snippet_score(gate: Gate) -> str:
    """The score of the snippet's question, for gates that need nothing else; empty for others."""
    if "question" not in gate.reads or gate.needs_evidence or gate.stage in ("draft", "search"):
        return ""
    threshold = "" if gate.threshold is None else f", threshold {gate.threshold:.6g}"
    return f"score {gate.score([QUESTION])[0]:.6g} for the first question{threshold}"


def _send(settings: Push, staged: Staged, hub_token: str | None) -> str:
    """Create the repository if it is missing, and one commit of all files; returns the commit.

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


def stage(folder: Path, target: Path, model: str | None = None, hashes: bool = True, local: bool = False) -> Staged:
    """Put into ``target`` what a gate is opened from, parts of a stack in folders of their own.

    ``model``: the answering model's name on the hub, in place of a folder of this machine that the card names.
    ``hashes``: those of the training questions are sent, too. ``local``: the copy is for this machine, and names the
    answering model as the folder does. Raises :class:`UserError` for a gate of a server, and for a folder that is
    incomplete or holds pickles.
    """
    card, kind = read_card(folder), kind_of(folder)[1]
    if kind.server:
        what = f"a gate of kind '{card.kind}' is an address of yours and a key; it is not sent"
        raise UserError(f"{at(folder / CARD)}: {what}")
    check_parts(folder, card)
    if pickle := pickle_in(path.relative_to(folder).as_posix() for path in _own_files(folder)):
        raise UserError(f"{at(folder / pickle)}: a pickle; a gate is sent in safetensors only: remove it")
    card.check_weights(folder, full=True)
    named = card.base_model if local else _named_model(folder, card, model)
    parts = {part: Path(part).name for part in card.parts()}
    if len(set(parts.values())) < len(parts):
        raise UserError(f"{at(folder / CARD)}: two of its parts have folders of one name; rename one, make it again")
    renamed = {**parts, **({card.base_model: named} if card.base_model and named else {})}
    files, left = [], []
    for path in _own_files(folder, parts):
        place = path.relative_to(folder)
        hashed, inside = place.name in (TRAINED_ON, TRAINED_ENTITIES), len(place.parts) > 1
        sent = len(place.parts) <= 2 and any(fnmatch(place.name, name) for name in (*FILES, *kind.files))
        # the card of a folder inside is another library's: an adapter's
        if not sent or (inside and place.name == CARD) or place.name == README or (hashed and not hashes):
            left.append(place.as_posix())
            continue
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        _copy(path, target / place, renamed)
        files.append(place.as_posix())
    for part, name in parts.items():
        inner = stage(folder / part, target / name, model, hashes, local)
        named = named or inner.model
        files += [f"{name}/{file}" for file in inner.files]
        left += [f"{name}/{file}" for file in inner.left]
    return Staged(target, tuple(sorted(files)), tuple(left), named)


def _own_files(folder: Path, parts: Iterable[str] = ()) -> Iterator[Path]:
    """Files of a gate's folder and of the folders in it, but for checkpoints, hidden ones, and those of its ``parts``,
    which may lie inside it: a pair's do, and all that came from the hub."""
    others = {(folder / part).resolve() for part in parts}
    for path in sorted(folder.rglob("*")):
        names = path.relative_to(folder).parts
        hidden = any(name.startswith(".") for name in names)
        place = path.parent.resolve()  # not the file's: in the hub's cache that is a link to elsewhere
        sent = not hidden and not names[0].startswith(("checkpoint", "saving"))
        if sent and path.is_file() and others.isdisjoint((place, *place.parents)):
            yield path


def _copy(path: Path, target: Path, renamed: Mapping[str, str]) -> None:
    """Link what is sent as it is; rewrite settings without paths of this machine."""
    if path.suffix == ".safetensors":
        header_of(path)  # a pickle under this name is refused
    if path.suffix == ".json" and not any(fnmatch(path.name, name) for name in _NOT_SETTINGS):
        try:
            data = json.loads(read_text(path))
        except ValueError as error:
            raise UserError(f"{at(path)}: broken JSON ({str(error)[:80]}); copy the whole folder again") from None
        changed = _mapped(data, lambda text: renamed.get(text) or last_name(text))
        if changed != data:
            target.write_text(json.dumps(changed, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
            return
    target.symlink_to(path.resolve())


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """``value`` of JSON with every text in it changed; keys stay."""
    if isinstance(value, list):
        return [_mapped(item, change) for item in value]
    if isinstance(value, dict):
        return {key: _mapped(item, change) for key, item in value.items()}
    return change(value) if isinstance(value, str) else value


def last_name(text: str) -> str:
    """The last name of an absolute path; any other text unchanged."""
    return re.split(r"[\\/]", text.rstrip("\\/"))[-1] if _PATH.fullmatch(text) else text


def _named_model(folder: Path, card: GateCard, model: str | None) -> str | None:
    """The answering model's name for others. Raises :class:`UserError` where only this machine knows it."""
    name = card.base_model
    if model is not None or name is None or is_embedded(name):
        return model or name
    if Path(name).expanduser().exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UserError(
            f"{at(folder / CARD, field='base_model')}: '{name}' is a folder of this machine; give the model's name on "
            "the hub: --base-model USER/MODEL"
        )
    return name


def _check_no_machine(staged: Path, folders: Iterable[Path]) -> None:
    """Raise :class:`UserError` where a text that would be sent holds one of these folders' paths."""
    paths = {str(path.expanduser().absolute()) for path in folders}
    paths |= {str(Path(path).resolve()) for path in paths}
    # a short one such as /root or /app with its slash: without it the text may be a word
    needles = sorted(path if path.count("/") > 1 else f"{path}/" for path in paths if path != "/")
    for path in sorted(staged.rglob("*")):
        vocabulary = any(fnmatch(path.name, name) for name in _NOT_SETTINGS)
        if not path.is_file() or path.suffix == ".safetensors" or vocabulary or path.stat().st_size > _LARGEST_TEXT:
            continue
        text = read_text(path)
        if needle := next((needle for needle in needles if needle in text), None):
            raise UserError(f"{path.relative_to(staged)}: would tell '{needle}', a path of this machine; take it out")


def card_text(settings: Push, staged: Staged, example: str) -> str:
    """The repository's ``README.md``. ``example``: the score of the snippet's question when it was opened."""
    folder, card = settings.folder, read_card(staged.folder)
    results, tested = figures(folder)
    answering = results.meta.get("sampling", {}).get("model") if results else None
    if not isinstance(answering, str) or answering.startswith(("/", ".", "~")):  # a name of this machine alone
        answering = None
    model = staged.model or answering
    points, sections = _of_readme(folder)
    use = USE_QUESTION if "question" in kind_of(folder)[1].reads else USE_TURN
    return render(
        "gate_card.md.j2",
        False,
        metadata=metadata(settings.name, card.kind, model, tested, settings.licence),
        name=settings.name,
        kind=card.kind,
        model=model,
        snippet=use.replace(
            'load_gate(".")  # this folder', f'load_gate("{settings.name}")  # revision="..." holds one commit'
        ),
        shown=example,
        private=settings.private,
        package=package_of(card.kind),
        points=points,
        tested=figures_table(tested),
        measured=setting_sentence(results) if results else "",
        sections=sections,
        hashes=data_hashes(folder, card),
        files=staged.files,
    )


def figures(folder: Path) -> tuple[Results | None, list[GateResult]]:
    """The run folder's evaluation, and its rows about this very gate; none without such a file or row."""
    path = folder.resolve().parent / "results.json"
    if not path.exists():
        return None, []
    results, identity = load(path), gate_identity(folder)
    sources = [stage.get("gates", {}) for stage in results.meta.get("stages", {}).values() if isinstance(stage, dict)]
    names = {name for gates in sources for name, source in gates.items() if source.get("identity") == identity}
    return results, [gate for gate in results.gates if gate.gate in names]


def setting_sentence(results: Results) -> str:
    """The questions, kind of accuracy, rule of the thresholds and intervals of the table."""
    meta = results.meta
    draws = (
        f", {meta['bootstrap_draws']} bootstrap draws of {bootstrap_units(meta)}" if "bootstrap_draws" in meta else ""
    )
    return (
        f"{meta['n']} {meta['split']} questions; {KIND[meta['accuracy_kind']]}, thresholds "
        f"{by_rule(meta['threshold_rule'])}; differences and area (1: oracle, 0: random) with 95 % intervals{draws}."
    )


def figures_table(gates: Sequence[GateResult]) -> str:
    """Markdown: a row a score, differences with their intervals; empty without gates."""
    if not gates:
        return ""
    rows = [
        (
            f"`{gate.gate}`{gate.seen.mark}",
            f"{percent(gate.retrieval_ratio)} %",
            number(gate.accuracy),
            *map(difference, (gate.delta_vs_llm_only, gate.delta_vs_all_rag, gate.delta_vs_random)),
            "" if gate.curve.area is None else f"{number(gate.curve.area.mean)} {interval(gate.curve.area)}",
        )
        for gate in gates
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in (HEAD, ("---",) * len(HEAD), *rows))


def data_hashes(folder: Path, card: GateCard) -> dict[str, str]:
    """SHA-256 of the training and dev files, as far as the folder notes them."""
    try:
        recorded = read_json(folder / "environment.json").get("data_sha256", {})
    except UserError:
        recorded = {}
    recorded = recorded if isinstance(recorded, dict) else {}
    hashes = {key: value for key, value in recorded.items() if isinstance(value, str)}
    hashes |= {key.removesuffix("_sha256"): value for key, value in card.run.items() if key.endswith("_sha256")}
    dev = {chosen.dev_file_sha256 for chosen in card.thresholds.values()} - {"", *hashes.values()}
    return hashes | {f"dev (threshold{f' {i}' if i else ''})": value for i, value in enumerate(sorted(dev))}


def metadata(name: str, kind: str, model: str | None, tested: Sequence[GateResult], licence: str | None = None) -> str:
    """The card's head, YAML, as the hub reads it; ``base_model`` only where it is a name on the hub."""
    from huggingface_hub import EvalResult, ModelCardData

    base = _ORIGINALS.get(model or "", model)
    results = [
        EvalResult(
            task_type="text-classification",
            task_name=f"retrieval needed ({gate.gate})",
            dataset_type="test",
            dataset_name=f"the run's test questions ({gate.n})",
            metric_type=metric,
            metric_name=metric,
            metric_value=round(value, 4),
        )
        for gate in tested
        for metric, value in (
            ("auroc", gate.auroc),
            ("accuracy", gate.accuracy),
            ("share of searches", gate.retrieval_ratio),
        )
        if value is not None
    ]
    data = ModelCardData(
        base_model=base if base and re.fullmatch(r"[\w.-]+/[\w.-]+", base) else None,
        library_name="kbtrain",
        license=licence,
        tags=["adaptive-retrieval", "retrieval-gate", kind],
        model_name=name,
        eval_results=results or None,
    )
    return str(data.to_yaml()).rstrip()


def _of_readme(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Points about the gate, and the sections with dev's figures and thresholds, of the README in its folder.

    A line that names an absolute path is skipped.
    """
    path = folder / README
    if not path.exists():
        return [], {}
    text = "\n".join(line for line in read_text(path).splitlines() if not _PATH_WITHIN.search(line))
    head, *rest = text.split("\n## ")
    points = [line for line in re.sub(r"```.*?```", "", head, flags=re.S).splitlines() if line.startswith("- ")]
    sections = {heading.strip(): text.strip() for heading, _, text in (part.partition("\n") for part in rest)}
    return points, {heading: text for heading, text in sections.items() if heading not in _OWN_SECTIONS}
