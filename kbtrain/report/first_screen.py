"""First screen of a report: the run in a line, savings of the gate that is best on dev, and their certainty."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbtrain.evaluation.results import GateResult, Results
from kbtrain.evaluation.savings import Saving
from kbtrain.provenance import short_name
from kbtrain.records import Question
from kbtrain.report.summary import KIND, drawn
from kbtrain.report.words import chosen_by, gate_name, percent, percent_interval, points, points_interval

HEAD = (
    "gate", "searches saved, %", "right answers, %", "against always searching, points", "against chance, points",
    "set for right answers, points",
)  # fmt: skip


@dataclass(frozen=True)
class FirstScreen:
    """``sentences``: what is saved; the same with intervals; whether it is certain; at the threshold for right answers;
    when All-RAG is reached.

    ``rows``: name and figures with their intervals, under :data:`HEAD`.
    """

    subtitle: str
    sentences: list[str]
    certain: bool
    rows: list[list[str]]
    note: str


def first_screen(
    results: Results, found: Sequence[Saving], questions: Sequence[Question], gate: GateResult | None
) -> FirstScreen:
    """``found``: best on dev first; ``gate``: the one to speak of."""
    saving = next((one for one in found if gate is not None and one.gate == gate.gate), None)
    text = sentences(results, saving, len(found), best=bool(found) and saving is found[0])
    return FirstScreen(
        subtitle=subtitle(results.meta, questions),
        sentences=text,
        certain=saving is not None and saving.certain,
        rows=table(results, found),
        note=_note(saving, results),
    )


def subtitle(meta: dict[str, Any], questions: Sequence[Question]) -> str:
    """Model, data sets with their numbers of questions, retriever and its number of passages, date; the kind of
    accuracy where it is not that of greedy answers."""
    model = short_name(meta.get("sampling", {}).get("model", "unknown model"))
    counted = Counter(question.dataset for question in questions)
    data = ", ".join(f"{n} {meta['split']} questions of {name}" for name, n in sorted(counted.items()))
    search = meta.get("stages", {}).get("evidence.jsonl", {}).get("config", {})
    k = search.get("k")
    passages = "" if k is None else f", {k} passage{'s' * (k != 1)} a question"
    retriever = [f"retriever {search['retriever']}{passages}"] if "retriever" in search else []
    kind = [KIND["expected"]] if meta.get("accuracy_kind") == "expected" else []
    return " · ".join([f"model {model}", data, *retriever, *([meta["date"]] if meta.get("date") else []), *kind])


def sentences(results: Results, saving: Saving | None, candidates: int, best: bool = True) -> list[str]:
    """The first is the news; the last says where the accuracy of always searching is reached."""
    if saving is None:
        return ["No gate with scores of the dev and test questions was evaluated."]
    named = {g.gate: g for g in results.gates}
    name, always = gate_name(saving.gate), named["all_rag"].accuracy
    who = f"{name}, the best of {candidates} gates on dev," if best and candidates > 1 else name
    limit = percent(saving.limit, 0)
    if saving.dev_saved <= 0:
        return [
            f"Always search: on {saving.n_dev} dev questions {who} saves no search at a loss of at most {limit} "
            "points.",
            _reaches(saving, always),
        ]
    lost = -saving.change.mean
    cost = f"for {percent(lost)} points of accuracy" if lost > 0 else f"and gains {percent(-lost)} points of accuracy"
    return [
        f"{who} saves {percent(saving.saved.mean)} % of the searches {cost}: {percent(saving.accuracy)} % right, "
        f"{percent(always)} % when always searching, {percent(named['llm_only'].accuracy)} % without search.",
        f"On {saving.n} test questions, 95 % intervals: {percent_interval(saving.saved)} % of the searches saved, "
        f"accuracy {points_interval(saving.change)} points.",
        _certainty(saving),
        _rightest(saving),
        _reaches(saving, always),
    ]


def rule_of(saving: Saving | None, gate: GateResult) -> str:
    """Origin of the threshold of a gate's decisions."""
    if saving is None:
        return chosen_by(str(gate.threshold_rule), gate.n_dev)
    limit = percent(saving.limit, 0)
    return f"the one that saves most on {saving.n_dev} dev questions at a loss of at most {limit} points there"


def _certainty(saving: Saving) -> str:
    """The difference to leaving out as many searches at random, and the loss that was allowed on dev."""
    gain = f"{points(saving.over_random.mean)} points, {points_interval(saving.over_random)}"
    limit = f"{percent(saving.limit, 0)} points"
    if saving.change.low >= -saving.limit:
        loss = f"A loss of more than {limit} is ruled out."
    elif saving.change.mean >= -saving.limit:
        loss = f"A loss of more than {limit} is not ruled out."
    else:
        loss = f"More was lost than the {limit} allowed on {saving.n_dev} dev questions: take more of them."
    if saving.certain:
        return f"This is certain: leaving out as many searches at random would cost more ({gain}). {loss}"
    if saving.over_random.high < -1e-12:  # rounding errors aside
        return f"This is worse than chance: leaving out as many searches at random would cost less ({gain}). {loss}"
    return f"This is NOT certain: leaving out as many searches at random may do as well ({gain}). {loss}"


def _rightest(saving: Saving) -> str:
    """The other threshold, for who wants right answers first."""
    one = saving.most_right
    gain = f"{points(one.change.mean)} points, {points_interval(one.change)}"
    return (
        f"At the threshold with the most right answers on dev ({one.threshold:.6g}) it saves "
        f"{percent(one.saved.mean)} % of the searches, and {percent(one.accuracy)} % are right: {gain}, against always "
        "searching."
    )


def _reaches(saving: Saving, always: float) -> str:
    whole = saving.as_all_rag > 1 - 1e-9
    where = "only by searching for all" if whole else f"with {percent(saving.as_all_rag)} % of the searches"
    return (
        f"In the order of its scores it reaches the accuracy of always searching ({percent(always)} %) {where}, and "
        f"that minus {percent(saving.limit, 0)} points with {percent(saving.within)} % (read off the test questions)."
    )


def table(results: Results, found: Sequence[Saving]) -> list[list[str]]:
    """The two ways without a gate, then every gate, best on dev first."""
    rows = []
    named = {g.gate: g for g in results.gates}
    for name in ("llm_only", "all_rag"):
        if name in named:
            one = named[name]
            rows.append([gate_name(name), percent(1 - one.retrieval_ratio), percent(one.accuracy),
                         points(one.delta_vs_all_rag.mean) if name != "all_rag" else "-", "-", "-"])  # fmt: skip
    for saving in found:
        rows.append([
            gate_name(saving.gate) + named[saving.gate].seen.mark,
            f"{percent(saving.saved.mean)} {percent_interval(saving.saved)}",
            percent(saving.accuracy),
            f"{points(saving.change.mean)} {points_interval(saving.change)}",
            f"{points(saving.over_random.mean)} {points_interval(saving.over_random)}",
            f"{points(saving.most_right.change.mean)} {points_interval(saving.most_right.change)}",
        ])  # fmt: skip
    return rows


def _note(saving: Saving | None, results: Results) -> str:
    if saving is None:
        return ""
    return (
        f"In percent of the {saving.n} {results.meta['split']} questions and in points, with 95 % intervals (bootstrap "
        f"over {drawn(results.meta)}). Each gate's threshold leaves out the most searches on {saving.n_dev} dev "
        f"questions that cost at most {percent(saving.limit, 0)} points of always searching's accuracy there. Set "
        "for right answers: against always searching, at the threshold with the most right answers on dev (the "
        "searches that it saves: on the gate's page). Gates stand in the order of their area on dev. "
        "Against chance: accuracy minus that of leaving out as many at random."
    )


def closing_block(
    results: Results,
    found: Sequence[Saving],
    gate: GateResult | None,
    questions: Sequence[Question],
    report: Path,
    use: str = "",
    cost: str = "-",
) -> list[str]:
    """Seven lines for a terminal: tested, without search, always searching, gate, certainty, cost, next command.

    ``use``: the command that decides by this gate, with a word after it; ``cost``: the bill of a thousand questions.
    """
    saving = next((one for one in found if gate is not None and one.gate == gate.gate), None)
    named = {g.gate: g for g in results.gates}
    saves = saving is not None and saving.dev_saved > 0
    best = bool(found) and saving is found[0]
    said = sentences(results, saving, len(found), best=best)
    gate_line, real = said[0], "nothing is saved, so there is nothing to be sure of; take more dev questions"
    if saving is not None and saves:
        other = saving.most_right
        gate_line = (
            f"{gate_name(saving.gate)}, {'best on' if best else 'by'} dev: {percent(saving.saved.mean)} % of the "
            f"searches saved, accuracy {percent(saving.accuracy)} % ({points(saving.change.mean)} points, "
            f"{points_interval(saving.change)}); set for right answers: {percent(other.saved.mean)} % saved, "
            f"{percent(other.accuracy)} % ({points(other.change.mean)} points, {points_interval(other.change)})"
        )
        real = said[2]
    lines = {
        "tested": subtitle(results.meta, questions),
        "without search": f"{percent(named['llm_only'].accuracy)} % right",
        "always searching": f"{percent(named['all_rag'].accuracy)} % right",
        "with the gate": gate_line,
        "is that real?": real,
        "cost": cost,
        "next": f"{use}open {report.resolve()}",
    }
    return aligned_block(lines)


def aligned_block(lines: Mapping[str, str]) -> list[str]:
    """Names in one column, what is said of each beside it."""
    width = max(map(len, lines))
    return [f"{name.ljust(width)}  {text}" for name, text in lines.items()]
