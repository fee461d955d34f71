"""RAGate's tables 3 and 4 from stored responses: the augmented response where the gate retrieves, else the plain one.

Reads turns, responses and rankers' hits of a run folder; missing ones are counted and named. Nothing is generated here.
Also how often snippets of augmented turns are useful (appendix B), and if confidence goes with them: a turn's snippets
are useful if a gold snippet is among them, which is known where people named one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

import numpy as np

from kbtrain.arrays import Bools, Floats
from kbtrain.errors import UserError, at
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import check_unchanged, file_sha256, meta_of
from kbtrain.metrics.significance import Delta, cluster_counts, interval, wilson
from kbtrain.records import Evidence, Hit, TurnExample
from kbtrain.show import first_ids
from ragate_responses.ranker import Candidates, recall
from ragate_responses.responder import ResponderCard, deviations, read_responder_card
from ragate_responses.responses import (
    NONE,
    WAYS,
    AugmentedResponse,
    read_key,
    reference,
    responses_path,
)
from ragate_responses.text_generation import scores_of, text_parts

EVIDENCE = ".evidence.jsonl"


@dataclass(frozen=True)
class Recall:
    """Table 1, over the ``turns`` that name gold snippets; ``reason``: why it has no figures."""

    ranker: str
    turns: int
    recall_1: float | None
    recall_3: float | None
    reason: str | None = None


@dataclass(frozen=True)
class DialogueInputs:
    """``turns``: test turns that have a reference; responses by augmentation, in their order; ``lacking``: what the
    data does not have, in words, with counts; ``deviations``: of the generator from KETOD's; ``relevance``: by ranker,
    its score of (turn, snippet)."""

    turns: list[TurnExample]
    references: list[str]
    responses: dict[str, list[AugmentedResponse]]
    recalls: list[Recall]
    lacking: list[str]
    files: list[Path]
    deviations: list[str] = field(default_factory=list)
    relevance: dict[str, dict[tuple[str, str], float]] = field(default_factory=dict)


def read_dialogue(folder: Path, source: Path, turns: Sequence[TurnExample]) -> DialogueInputs:
    """``folder``: of studies/respond.py; ``turns``: the labelled test turns of ``source``. Raises :class:`UserError`
    if responses are missing (count, first ids), of several models, or of another file of turns, and for
    what was changed since it was made."""
    complete = [turn for turn in turns if reference(turn)]
    if not complete:
        raise UserError(f"none of the {len(turns)} labelled test turns has a response to compare with")
    rankers = sorted(path.name.removesuffix(EVIDENCE) for path in folder.glob(f"*{EVIDENCE}"))
    names = [f"{ranker}_{way}" for ranker in rankers for way in WAYS]
    files = [responses_path(folder, name) for name in [NONE, *names]]
    files = [path for path in files if path_exists(path) or path.stem == NONE]
    responses = {path.stem: _in_order(path, complete) for path in files}
    _check_keys(files, source)
    found_in = [folder / f"{ranker}{EVIDENCE}" for ranker in rankers]
    check_unchanged(*files, *found_in)
    if len(files) == 1:
        raise UserError(f"{at(folder)}: no response with knowledge there; run studies/respond.py with a ranker")
    evidence = {
        ranker: {searched.question_id: searched.hits for searched in jsonl.read(Evidence, path)}
        for ranker, path in zip(rankers, found_in, strict=True)
    }
    recalls = [recall_of(ranker, complete, hits) for ranker, hits in evidence.items()]
    notes = [*count_missing(turns), *(note for name, rows in responses.items() for note in _notes(name, rows))]
    files += found_in
    relevance = {
        ranker: {(turn, hit.passage_id): hit.score for turn, turn_hits in hits.items() for hit in turn_hits}
        for ranker, hits in evidence.items()
    }
    references = [reference(turn) for turn in complete]
    differing = deviations(_card(responses_path(folder, NONE)), _read_setting(source, "history"))
    return DialogueInputs(complete, references, responses, recalls, notes, files, differing, relevance)


def _card(path: Path) -> ResponderCard | None:
    """The generator that made these responses, if its folder is still there."""
    model = _read_setting(path, "model")
    try:
        return None if model is None else read_responder_card(model)
    except UserError:
        return None


def _read_setting(path: Path, key: str) -> str | None:
    """A setting that a file's metadata note."""
    value = meta_of(path).get("config", {}).get(key)
    return None if value is None else str(value)


def _in_order(path: Path, turns: Sequence[TurnExample]) -> list[AugmentedResponse]:
    stored = {response.turn_id: response for response in jsonl.read(AugmentedResponse, path)}
    missing = [turn.id for turn in turns if turn.id not in stored]
    if missing:
        names = first_ids(missing, "turn")
        raise UserError(f"{at(path)}: no response of {names}; run studies/respond.py again to resume")
    return [stored[turn.id] for turn in turns]


def _check_keys(files: Sequence[Path], source: Path) -> None:
    """Responses that are put side by side must differ in their knowledge alone."""
    turns, model = file_sha256(source), None
    for path in files:
        key = read_key(path)
        if lacking := {"turns", "model"} - set(key):
            raise UserError(f"{at(path)}.key: field '{min(lacking)}': missing; run studies/respond.py again")
        if key["turns"] != turns:
            raise UserError(f"{at(path)}: responses of another turns.jsonl than {source}; generate them again")
        if model not in (None, key["model"]):
            raise UserError(f"{at(path)}: responses of another model than {files[0].name}'s; generate them again")
        model = key["model"]


def recall_of(ranker: str, turns: Sequence[TurnExample], hits: Mapping[str, Sequence[Hit]]) -> Recall:
    """Mean share of a turn's gold snippets among the first one and three."""
    gold = [turn for turn in turns if turn.gold_snippets]
    if not gold:
        return Recall(ranker, 0, None, None, "no test turn names a gold snippet")
    if ranker == "bm25":
        return Recall(ranker, 0, None, None, "it searches a corpus, whose passages are no gold snippets")
    shares = recall(gold, Candidates([]), lambda turn, _, k: hits.get(turn.id, ()))
    return Recall(ranker, len(gold), shares["recall@1"], shares["recall@3"])


def count_missing(turns: Sequence[TurnExample]) -> list[str]:
    """Features that test turns lack, each with a count; complete ones are skipped."""
    enriched = [turn for turn in turns if turn.label]
    of, of_enriched = f"of {len(turns)} test turns", f"of {len(enriched)} enriched test turns"
    return _lines_of(
        (sum(not reference(t) for t in turns), f"{of} have no response text and are skipped"),
        (sum(not t.enriched_response for t in enriched),
         f"{of_enriched} have no enriched text: their reference is the original response"),
        (sum(not t.gold_snippets for t in enriched), f"{of_enriched} name no gold snippet: table 1 leaves them out"),
        (sum(t.position is None for t in turns), f"{of} have no position: figure 3 leaves them out"),
        (sum(not t.services for t in turns), f"{of} name no service: figure 4 calls their domain none"),
    )  # fmt: skip


def _lines_of(*counts: tuple[int, str]) -> list[str]:
    return [f"{count} {text}" for count, text in counts if count]


def _notes(name: str, rows: Sequence[AugmentedResponse]) -> list[str]:
    """Gaps in the responses of one augmentation."""
    n = len(rows)
    lines = _lines_of(
        (sum(not r.snippets for r in rows) if name != NONE else 0,
         f"of {n} turns found no snippet: their response is that without knowledge"),
        (sum(not r.text for r in rows), f"of {n} responses are empty: they score 0 and have no confidence"),
        (sum(r.turns_cut > 0 for r in rows), f"of {n} turns read less than the whole dialogue"),
        (sum(r.knowledge_cut > 0 for r in rows), f"of {n} turns read snippets that were cut"),
    )  # fmt: skip
    return [f"{name}: {line}" for line in lines]


@dataclass(frozen=True)
class TextStats:
    """One augmentation's responses to all turns: ``text`` (n, 13), see ``text_parts``; ``least`` (n, 2): minimum logit
    and probability, NaN where a response is empty; ``bert`` (n,): BERTScore's F1, None if it was not computed."""

    text: Floats
    least: Floats
    bert: Floats | None = None


@dataclass(frozen=True)
class Figures:
    """BLEU 0 to 100; ROUGE F and BERTScore F1 0 to 1; confidence as mean least logit and mean least probability over
    the responses that have a token; changes against No-Aug as shares (-0.01: one percent less)."""

    bleu: float
    rouge1: float
    rouge2: float
    rouge_l: float
    bert: float | None
    minimum_logit: float | None
    logit_change: float | None
    minimum_probability: float | None
    probability_change: float | None


@dataclass(frozen=True)
class FigureRow:
    """One line of a table: ``kind`` sd is the spread of the line above it; ``beaten``: draws of Random-Aug of the same
    size with a lower BLEU."""

    augmentation: str
    variant: str
    n_augmented: int
    figures: Figures
    kind: Literal["value", "sd"] = "value"
    beaten: str | None = None


@dataclass(frozen=True)
class Draws:
    """``random``: of Random-Aug; ``bootstrap``: of table 2, over dialogues."""

    random: int = 20
    bootstrap: int = 2000
    seed: int = 0


def parts_of(
    responses: Sequence[AugmentedResponse], references: Sequence[str], bert: Floats | None = None
) -> TextStats:
    """From one augmentation's responses, in the order of the turns."""
    least = [[r.minimum_logit, r.minimum_probability] for r in responses]
    return TextStats(text_parts([r.text for r in responses], references), np.array(least, dtype=np.float64), bert)


def mix_parts(none: TextStats, augmented: TextStats, chosen: Bools) -> TextStats:
    """The augmented response where ``chosen``."""
    bert = None
    if none.bert is not None and augmented.bert is not None:
        bert = np.where(chosen, augmented.bert, none.bert)
    column = chosen[:, None]
    return TextStats(np.where(column, augmented.text, none.text), np.where(column, augmented.least, none.least), bert)


def figures(parts: TextStats, base: Figures | None = None) -> Figures:
    """Of all turns together; ``base``: No-Aug's, which changes are measured against."""
    text = scores_of(parts.text)
    logit, probability = (_mean(column) for column in parts.least.T)
    return Figures(
        bleu=text.bleu,
        rouge1=text.rouge1,
        rouge2=text.rouge2,
        rouge_l=text.rouge_l,
        bert=None if parts.bert is None else float(parts.bert.mean()),
        minimum_logit=logit,
        logit_change=_change(logit, None if base is None else base.minimum_logit),
        minimum_probability=probability,
        probability_change=_change(probability, None if base is None else base.minimum_probability),
    )


def table_rows(
    name: str, none: TextStats, augmented: TextStats, gates: Mapping[str, Bools], labels: Bools, draws: Draws
) -> list[FigureRow]:
    """All variants of one augmentation in the paper's order: the gates, Random-Aug of each gate's size (mean and
    spread over the draws, the same turns in every block), Human-label, Aug-All."""
    base = figures(none)
    rows, random_rows, n = [], [], len(labels)
    sizes: dict[int, list[Figures]] = {}
    for gate, chosen in gates.items():
        size = int(chosen.sum())
        if size not in sizes:
            rng = np.random.default_rng([draws.seed, size])
            sizes[size] = [
                figures(mix_parts(none, augmented, draw_mask(rng, n, size)), base) for _ in range(draws.random)
            ]
            variant = f"Random-Aug ({draws.random} draws)"
            mean, spread = summary(sizes[size])
            random_rows.append(FigureRow(name, variant, size, mean))
            random_rows.append(FigureRow(name, f"{variant}: spread", size, spread, "sd"))
        of_gate = figures(mix_parts(none, augmented, chosen), base)
        won = sum(of_gate.bleu > drawn.bleu for drawn in sizes[size])
        rows.append(FigureRow(name, gate, size, of_gate, beaten=f"{won}/{draws.random}"))
    human = FigureRow(name, "Human-label", int(labels.sum()), figures(mix_parts(none, augmented, labels), base))
    return [*rows, *random_rows, human, FigureRow(name, "Aug-All", n, figures(augmented, base))]


def draw_mask(rng: np.random.Generator, n: int, size: int) -> Bools:
    """Exactly ``size`` of ``n`` turns."""
    chosen = np.zeros(n, dtype=bool)
    chosen[rng.choice(n, size, replace=False)] = True
    return chosen


def summary(draws: Sequence[Figures]) -> tuple[Figures, Figures]:
    """Mean and standard deviation (n - 1; 0 for one draw) of each figure; None where it is not defined."""
    columns = {field.name: [getattr(draw, field.name) for draw in draws] for field in fields(Figures)}
    defined = {name: None if None in column else np.array(column, dtype=float) for name, column in columns.items()}
    mean = {name: None if c is None else float(c.mean()) for name, c in defined.items()}
    spread = {name: None if c is None else _spread(c) for name, c in defined.items()}
    return Figures(**mean), Figures(**spread)  # type: ignore[arg-type]


def _spread(values: Floats) -> float:
    return 0.0 if (values == values[0]).all() else float(values.std(ddof=1))


def _mean(column: Floats) -> float | None:
    return None if np.isnan(column).all() else float(np.nanmean(column))


def _change(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else (value - base) / abs(base)


_LEAST = 3  # responses from which on a correlation is more than a line through two points


@dataclass(frozen=True)
class Usefulness:
    """Of one gate's augmented turns: ``judged`` name a gold snippet, ``useful`` of them read one (with Wilson's
    interval; None: nothing is judged). RAGate, appendix B, asks people about 50 turns: 54 % useful."""

    gate: str
    augmentation: str
    augmented: int
    judged: int
    useful: int
    share: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Correlation:
    """Spearman's rho of a response's confidence (least probability of its tokens) and its snippets' relevance.

    ``n`` responses; the 95 % interval draws dialogues. ``rho`` None: one of the two does not vary.
    """

    augmentation: str
    relevance: str
    n: int
    rho: Delta | None


def usefulness(
    gate: str,
    augmentation: str,
    turns: Sequence[TurnExample],
    responses: Sequence[AugmentedResponse],
    chosen: Bools,
) -> Usefulness:
    """``chosen``: the turns that the gate augments; those that name a gold snippet are judged by it."""
    picked = [(t, r) for t, r, c in zip(turns, responses, chosen, strict=True) if c]
    judged = [reads_gold(t, r) for t, r in picked if t.gold_snippets]
    n, useful = len(judged), sum(judged)
    low, high = wilson(useful, n) if n else (None, None)
    return Usefulness(gate, augmentation, len(picked), n, useful, useful / n if n else None, low, high)


def reads_gold(turn: TurnExample, response: AugmentedResponse) -> bool:
    """True if a gold snippet of the turn is among those that its response read."""
    return bool(set(turn.gold_snippets) & set(response.snippets))


def correlations(
    turns: Sequence[TurnExample],
    responses: Mapping[str, Sequence[AugmentedResponse]],
    scores: Mapping[str, Mapping[tuple[str, str], float]],
    draws: Draws,
) -> list[Correlation]:
    """Of each augmentation: with its ranker's score of the best snippet read, and with a gold snippet being read.

    ``scores``: by ranker, of (turn, snippet).
    """
    rows = []
    for name, read in responses.items():
        of, pairs = scores.get(name.rpartition("_")[0], {}), list(zip(turns, read, strict=True))
        best = [max((of[t.id, s] for s in r.snippets if (t.id, s) in of), default=None) for t, r in pairs]
        gold = [float(reads_gold(t, r)) if t.gold_snippets and r.snippets else None for t, r in pairs]
        for relevance, values in (("ranker's score", best), ("a gold snippet is read", gold)):
            rows.append(_correlation(name, relevance, pairs, values, draws))
    return rows


def _correlation(
    name: str,
    relevance: str,
    pairs: Sequence[tuple[TurnExample, AugmentedResponse]],
    values: Sequence[float | None],
    draws: Draws,
) -> Correlation:
    from scipy.stats import rankdata  # a second to import

    rows = [
        (turn.dialogue_id, response.minimum_probability, value)
        for (turn, response), value in zip(pairs, values, strict=True)
        if value is not None and response.minimum_probability is not None
    ]
    if len(rows) < _LEAST or len({row[1] for row in rows}) < 2 or len({row[2] for row in rows}) < 2:
        return Correlation(name, relevance, len(rows), None)
    confidence, relevant = (np.asarray(rankdata([row[i] for row in rows]), dtype=np.float64) for i in (1, 2))
    weights = cluster_counts([row[0] for row in rows], draws.bootstrap, draws.seed)
    rho = _weighted(confidence, relevant, weights)
    return Correlation(name, relevance, len(rows), interval(rho))


def _weighted(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Pearson's correlation of ranks under each row of ``weights``: (rows,); NaN where one of them does not vary."""
    total = weights.sum(axis=1)
    means = [weights @ values / total for values in (x, y)]
    covariance = weights @ (x * y) / total - means[0] * means[1]
    variances = [weights @ values**2 / total - mean**2 for values, mean in zip((x, y), means, strict=True)]
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation: Floats = covariance / np.sqrt(np.maximum(variances[0], 0.0) * np.maximum(variances[1], 0.0))
    return correlation
