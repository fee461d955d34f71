"""First screen of a report: four tiles, the two by two, five rows and a curve of the gate that is best on dev; the same
in sentences, with its certainty, and a row for every gate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbtrain.evaluation.results import GateResult, Results
from kbtrain.evaluation.savings import LIMIT, FourFold, Saving, ThresholdSaving
from kbtrain.gates.simple import RETRIEVER_SCORES
from kbtrain.io.provenance import short_name
from kbtrain.metrics.significance import share
from kbtrain.records import Question
from kbtrain.report.curves import SlidingCurve
from kbtrain.report.summary import KIND, bootstrap_units
from kbtrain.report.words import chosen_by, gate_name, percent, percent_interval, points, points_interval, with_interval
from kbtrain.show import aligned_block, count_of

HEAD = (
    "gate", "searches skipped, %", "right answers, %", "against always searching, points", "against chance, points",
)  # fmt: skip


AFTER_SEARCH = (
    "This gate reads the passages: the system searches for every question, and the gate drops the passages of some "
    "from the prompt. It saves tokens and wrong answers, but no searches."
)


FIVE_HEAD = ("", "searches", "right, %", "against always, points")


@dataclass(frozen=True)
class Tile:
    """A figure that is read first, what it is, and what it is measured by, with its 95 % interval."""

    name: str
    figure: str
    measure: str


@dataclass(frozen=True)
class FirstScreen:
    """``news``: what is saved, in one sentence; ``certainty``: whether chance does as well. Without a gate there are no
    ``tiles``.

    ``sentences``: what is saved; the same with intervals; the verdict; at the threshold for right answers, where
    another is noted. ``rows``: name and figures of every gate, under :data:`HEAD`.
    """

    subtitle: str
    news: str
    certainty: str
    sentences: list[str]
    certain: bool
    tiles: list[Tile]
    counts: FourFold | None
    five: list[list[str]]
    rows: list[list[str]]
    note: str
    curve: SlidingCurve | None = None


def first_screen(
    results: Results,
    savings: Sequence[Saving],
    questions: Sequence[Question],
    gate: GateResult | None,
    counts: FourFold | None,
) -> FirstScreen:
    """``savings``: best on dev first; ``gate``: the one to speak of; ``counts``: of its decisions."""
    saving = next((entry for entry in savings if gate is not None and entry.gate == gate.gate), None)
    text = sentences(results, saving, len(savings), best=bool(savings) and saving is savings[0])
    saves = saving is not None and saving.noted.dev_saved > 0
    news = text[0].partition(": ")[0] + "." if saves else text[0]
    return FirstScreen(
        subtitle=subtitle(results.meta, questions), news=news[:1].upper() + news[1:],
        certainty=text[2] if saves else "", sentences=text, certain=saving is not None and saving.certain,
        tiles=tiles(results, saving, counts) if saving is not None and counts is not None else [], counts=counts,
        five=five_rows(results, savings, saving), rows=table(results, savings), note=_note(saving, results),
    )  # fmt: skip


def tiles(results: Results, saving: Saving, counts: FourFold) -> list[Tile]:
    """Searches, right answers, breaks avoided, repairs kept."""
    setting, always = saving.noted, next(g.accuracy for g in results.gates if g.gate == "all_rag")
    left = round(saving.n * (1 - setting.saved.mean))
    skipped = f"{percent(setting.saved.mean)} % skipped {percent_interval(setting.saved)}"
    gain = f"{points(setting.change.mean)} points {points_interval(setting.change)}"
    return [
        Tile(saving.saves, f"{saving.n} \N{RIGHTWARDS ARROW} {left}", skipped),
        Tile("right answers", f"{percent(always)} \N{RIGHTWARDS ARROW} {percent(setting.accuracy)} %", gain),
        _part("breaks avoided", counts.spared, counts.spared + counts.broken),
        _part("repairs kept", counts.searched_well, counts.searched_well + counts.missed),
    ]


def _part(name: str, n: int, of: int) -> Tile:
    """A count with Wilson's interval of its share."""
    if of == 0:
        return Tile(name, "0 of 0", "there were none")
    return Tile(name, f"{n} of {of}", f"{percent(n / of)} % {percent_interval(share(n, of))}")


def five_rows(results: Results, savings: Sequence[Saving], saving: Saving | None) -> list[list[str]]:
    """Never, always, the question's source (else its kind) alone, the gate to speak of, and the best on dev that calls
    no model; under :data:`FIVE_HEAD`."""
    named = {gate.gate: gate for gate in results.gates}
    rows = []
    alone = next((name for name in ("by_source", "relation_only", "form_only") if name in named), "")
    for gate in (named[name] for name in ("llm_only", "all_rag", alone) if name in named):
        change = "-" if gate.gate == "all_rag" else with_interval(gate.delta_vs_all_rag)
        rows.append([gate_name(gate.gate), f"{round(gate.n * gate.retrieval_ratio)}", percent(gate.accuracy), change])
    plain = next((entry for entry in savings if entry.gate.startswith("features")), None)
    for entry in dict.fromkeys(entry.gate for entry in (saving, plain) if entry is not None):
        (found,) = (one for one in savings if one.gate == entry)
        searched = 1 if found.saves == "passages" else 1 - found.noted.saved.mean
        rows.append([
            gate_name(entry) + named[entry].seen.mark, f"{round(found.n * searched)}",
            percent(found.noted.accuracy), with_interval(found.noted.change),
        ])  # fmt: skip
    return rows


def subtitle(meta: dict[str, Any], questions: Sequence[Question]) -> str:
    """Model, data sets with their numbers of questions, retriever and its number of passages, date; the kind of
    accuracy where it is not that of greedy answers."""
    model = short_name(meta.get("sampling", {}).get("model", "unknown model"))
    counted = Counter(question.dataset for question in questions)
    named = [(n, "" if name == "questions" else f" of {name}") for name, n in sorted(counted.items())]
    data = ", ".join(f"{n} {meta['split']} questions{of}" for n, of in named)
    evidence = meta.get("stages", {}).get("evidence.jsonl", {})
    search, chosen = evidence.get("config", {}), " (chosen on dev)" if evidence.get("chosen_by") == "pilot" else ""
    k = search.get("k")
    passages = "" if k is None else f", {count_of(k, 'passage')} a question{chosen}"
    form = f", prompt '{evidence['form']}'{chosen}" if evidence.get("form") else ""
    retriever = [f"retriever {search['retriever']}{passages}{form}"] if "retriever" in search else []
    kind = [KIND["expected"]] if meta.get("accuracy_kind") == "expected" else []
    return " · ".join([f"model {model}", data, *retriever, *([meta["date"]] if meta.get("date") else []), *kind])


def sentences(results: Results, saving: Saving | None, candidates: int, best: bool = True) -> list[str]:
    """The first is the news."""
    if saving is None:
        return ["No gate with scores of the dev and test questions was evaluated."]
    named = {g.gate: g for g in results.gates}
    name, always = gate_name(saving.gate), named["all_rag"].accuracy
    who = f"{name}, the best of {candidates} gates on dev," if best and candidates > 1 else name
    setting = saving.noted
    if setting.dev_saved <= 0:
        start = "Always search: on" if always >= named["llm_only"].accuracy else "More answers are right without. On"
        return [
            f"{start} {saving.n_dev} dev questions {who} skips no search at its threshold (rule {saving.rule}).",
            *_promised(saving),
        ]
    lost = -setting.change.mean
    cost = f"for {percent(lost)} points of accuracy" if lost > 0 else f"and gains {percent(-lost)} points of accuracy"
    return [
        f"{who} skips {percent(setting.saved.mean)} % of the {saving.saves} {cost}: {percent(setting.accuracy)} % "
        f"right, {percent(always)} % when always searching, {percent(named['llm_only'].accuracy)} % without search.",
        f"On {saving.n} test questions, 95 % intervals: {percent_interval(setting.saved)} % of the {saving.saves} "
        f"skipped, accuracy {points_interval(setting.change)} points. "
        f"The threshold is {setting.threshold:.3g} (rule {saving.rule}).",
        _certainty(saving),
        *([] if saving.other is None else [_at_most_right(saving, saving.other)]),
        *_promised(saving),
        *([AFTER_SEARCH] if saving.saves == "passages" else []),
    ]


def rule_of(saving: Saving | None, gate: GateResult) -> str:
    """Origin of the threshold of a gate's decisions."""
    if saving is None:
        return chosen_by(str(gate.threshold_rule), gate.n_dev)
    return chosen_by(saving.rule, saving.n_dev)


def _certainty(saving: Saving) -> str:
    """The difference to skipping as many searches at random, and if a small loss is ruled out."""
    setting = saving.noted
    if setting.saved.mean == 0:
        return "Not shown: the gate skips no search on the test questions."
    gain = f"{points(setting.over_random.mean)} points, {points_interval(setting.over_random)}"
    limit = f"{percent(LIMIT, 0)} points"
    if setting.change.low >= -LIMIT:
        loss = f"A loss of more than {limit} is ruled out."
    elif setting.change.mean >= -LIMIT:
        loss = f"A loss of more than {limit} is not ruled out."
    else:
        loss = f"It lost more than {limit}."
    if saving.certain:
        return f"Yes, on these questions: skipping the same number of searches at random costs more ({gain}). {loss}"
    if setting.over_random.high < -1e-12:  # rounding errors aside
        return f"This is worse than chance: skipping the same number of searches at random costs less ({gain}). {loss}"
    return f"Not shown by these questions: skipping the same number at random may do as well ({gain}). {loss}"


def _at_most_right(saving: Saving, setting: ThresholdSaving) -> str:
    """The gate at the threshold with the most right answers on dev."""
    if setting.saved.mean == 0:
        return f"For the most right answers on dev it always searches: {percent(setting.accuracy)} % are right."
    gain = f"{points(setting.change.mean)} points, {points_interval(setting.change)}"
    return (
        f"At the threshold with the most right answers on dev ({setting.threshold:.3g}) it skips "
        f"{percent(setting.saved.mean)} % of the {saving.saves}, and {percent(setting.accuracy)} % are right: {gain}, "
        "against always searching."
    )


def _promised(saving: Saving) -> list[str]:
    """The gate at the fewest searches with a promised loss, and what more dev questions would allow."""
    promise, setting = saving.promise, saving.promised
    loss = f"at most {percent(promise.limit)} points lost, promised with probability {1 - promise.delta:g}"
    if setting is None or saving.rule.startswith("max_loss"):
        return [promise.more] if promise.more else []
    if setting.dev_saved <= 0:
        return [f"With {loss}, it skips nothing. {promise.more}".rstrip()]
    return [
        f"With {loss}, it skips {percent(setting.saved.mean)} % of the {saving.saves}, and "
        f"{percent(setting.accuracy)} % are right: {with_interval(setting.change)} points against always searching. "
        f"{promise.more}".rstrip()
    ]


def table(results: Results, savings: Sequence[Saving]) -> list[list[str]]:
    """The two ways without a gate, then every gate, best on dev first."""
    rows = []
    named = {g.gate: g for g in results.gates}
    for name in ("llm_only", "all_rag"):
        if name in named:
            gate = named[name]
            rows.append([gate_name(name), percent(1 - gate.retrieval_ratio), percent(gate.accuracy),
                         points(gate.delta_vs_all_rag.mean) if name != "all_rag" else "-", "-"])  # fmt: skip
    for gate in (named[name] for name in RETRIEVER_SCORES if name in named):
        rows.append([
            f"{gate_name(gate.gate)} (saves passages)", percent(1 - gate.retrieval_ratio), percent(gate.accuracy),
            *map(with_interval, (gate.delta_vs_all_rag, gate.delta_vs_random)),
        ])  # fmt: skip
    for saving in savings:
        setting = saving.noted
        rows.append([
            gate_name(saving.gate) + (" (saves passages)" if saving.saves == "passages" else "")
            + named[saving.gate].seen.mark,
            f"{percent(setting.saved.mean)} {percent_interval(setting.saved)}",
            percent(setting.accuracy),
            with_interval(setting.change),
            with_interval(setting.over_random),
        ])  # fmt: skip
    return rows


def _note(saving: Saving | None, results: Results) -> str:
    if saving is None:
        return ""
    return (
        f"Shares are in percent of the {saving.n} {results.meta['split']} questions, differences in points, with 95 % "
        f"intervals (bootstrap over {bootstrap_units(results.meta)}). Each gate uses the threshold in its folder, or "
        f"else the evaluation's (the first gate's: rule {saving.rule}). Gates are ordered by area on dev. Against "
        "chance: accuracy minus that of skipping the same number of searches at random."
    )


def closing_block(
    results: Results,
    savings: Sequence[Saving],
    gate: GateResult | None,
    questions: Sequence[Question],
    report: Path,
    use: str = "",
    cost: str = "-",
) -> list[str]:
    """Seven lines for a terminal: tested, without search, always searching, gate, certainty, cost, next command.

    ``use``: the command that decides by this gate, with a word after it; ``cost``: the bill of a thousand questions.
    """
    saving = next((entry for entry in savings if gate is not None and entry.gate == gate.gate), None)
    named = {g.gate: g for g in results.gates}
    best = bool(savings) and saving is savings[0]
    texts = sentences(results, saving, len(savings), best=best)
    line, real = texts[0], "no search is skipped, so there is nothing to test; add dev questions"
    if saving is not None and saving.noted.dev_saved > 0:
        found = _reached(saving.noted, f" of the {saving.saves}", "accuracy ")
        line, real = f"{gate_name(saving.gate)}, {'best on' if best else 'by'} dev: {found}", texts[2]
        if saving.other is not None:
            line += f"; for most right answers: {_reached(saving.other)}"
        sure = saving.promised
        if sure is not None and sure.dev_saved > 0 and not saving.rule.startswith("max_loss"):
            line += f"; at most {percent(saving.promise.limit)} points lost, promised: {_reached(sure)}"
        line += f". {saving.promise.more}" if saving.promise.more else ""
    right = [f"{percent(named[name].accuracy)} % right" for name in ("llm_only", "all_rag")]
    lines = (subtitle(results.meta, questions), *right, line, real, cost, f"{use}open {report.resolve()}")
    names = ("tested", "without search", "always searching", "with the gate", "is that real?", "cost", "next")
    return aligned_block(dict(zip(names, lines, strict=True)))


def _reached(setting: ThresholdSaving, of: str = "", accuracy: str = "") -> str:
    if setting.saved.mean == 0:
        return "always search"
    change = f"{points(setting.change.mean)} points, {points_interval(setting.change)}"
    return f"{percent(setting.saved.mean)} %{of} skipped, {accuracy}{percent(setting.accuracy)} % ({change})"
