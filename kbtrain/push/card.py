"""The model card of a gate on the hub: the model it is for, figures with intervals, hashes of its data, a snippet."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from kbtrain.errors import UserError
from kbtrain.evaluation.results import GateResult, Results, load
from kbtrain.gate.card import README, GateCard
from kbtrain.gates.handles import gate_identity
from kbtrain.gates.registry import kind_of, package_of
from kbtrain.io.jsonl import read_json
from kbtrain.io.text_files import read_text
from kbtrain.metrics.significance import Delta
from kbtrain.push.staging import Push, Staged, without_paths
from kbtrain.report.summary import KIND, bootstrap_units, interval
from kbtrain.report.words import by_rule, percent
from kbtrain.show.text_table import number, signed
from kbtrain.training.model_card import USE_QUESTION, USE_TURN

_HERE = Path(__file__).parent
# Names on the hub of the embedded models' original weights.
_ORIGINALS = {
    "smollm2-135m-instruct": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "all-minilm-l6-v2": "sentence-transformers/all-MiniLM-L6-v2",
}
_OWN_SECTIONS = ("Run", "Versions")  # of the folder's README: not of interest to others, and full of paths
HEAD = ("score", "searches for", "accuracy", "against never", "against always", "against random", "area")


def card_text(settings: Push, staged: Staged, card: GateCard, example: str) -> str:
    """The repository's ``README.md``. ``shown``: what the gate said of the snippet's question when it was opened."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    name, folder = settings.name, settings.folder
    results, tested = figures(folder)
    model = staged.model or _answered(results)
    points, sections = _of_readme(folder)
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=False,  # noqa: S701 - Markdown
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    text = environment.get_template("card.md.jinja").render(
        metadata=metadata(name, card.kind, model, tested, settings.licence),
        name=name,
        kind=card.kind,
        model=model,
        snippet=_snippet(name, "question" in kind_of(folder)[1].reads),
        shown=example,
        private=settings.private,
        package=package_of(card.kind),
        points=points,
        tested=table(tested),
        measured=setting_sentence(results) if results else "",
        sections=sections,
        hashes=data_hashes(folder, card),
        files=staged.files,
    )
    return without_paths(text)


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


def table(gates: Sequence[GateResult]) -> str:
    """Markdown: a row a score, differences with their intervals."""
    if not gates:
        return ""
    rows = [
        (
            f"`{gate.gate}`{gate.seen.mark}",
            f"{percent(gate.retrieval_ratio)} %",
            number(gate.accuracy),
            _difference(gate.delta_vs_llm_only),
            _difference(gate.delta_vs_all_rag),
            _difference(gate.delta_vs_random),
            "" if gate.curve.area is None else f"{number(gate.curve.area.mean)} {interval(gate.curve.area)}",
        )
        for gate in gates
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in (HEAD, ("---",) * len(HEAD), *rows))


def _difference(delta: Delta) -> str:
    return f"{signed(delta.mean)} {interval(delta)}"


def data_hashes(folder: Path, card: GateCard) -> dict[str, str]:
    """SHA-256 of the training and dev files, as far as the folder notes them."""
    try:
        recorded = read_json(folder / "environment.json").get("data_sha256", {})
    except UserError:
        recorded = {}
    hashes = (
        {key: value for key, value in recorded.items() if isinstance(value, str)} if isinstance(recorded, dict) else {}
    )
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


def _answered(results: Results | None) -> str | None:
    """The model whose answers the evaluation is about, where it has a name that says something elsewhere."""
    model = results.meta.get("sampling", {}).get("model") if results else None
    return model if isinstance(model, str) and not model.startswith(("/", ".", "~")) else None


def _snippet(name: str, of_questions: bool) -> str:
    use = USE_QUESTION if of_questions else USE_TURN
    return use.replace('load_gate(".")  # this folder', f'load_gate("{name}")  # revision="..." holds one commit')


def _of_readme(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Points about the gate, and the sections with dev's figures and thresholds, of the README in its folder."""
    path = folder / README
    if not path.exists():
        return [], {}
    head, *rest = read_text(path).split("\n## ")
    points = [line for line in re.sub(r"```.*?```", "", head, flags=re.S).splitlines() if line.startswith("- ")]
    sections = {heading.strip(): text.strip() for heading, _, text in (part.partition("\n") for part in rest)}
    return points, {heading: text for heading, text in sections.items() if heading not in _OWN_SECTIONS}
