"""An audit of logged turns: draw some, answer them both ways, let them be judged, estimate, propose a threshold.

The run folder of an audit is one like any other: retrieve and sample answer its questions under both arms. Each call
does the next step that is possible, and says the command after it.
"""

from __future__ import annotations

import csv
import io
import json
import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from pydantic_core import to_json

from kbtrain.answers.words import text_key
from kbtrain.answers.writing import language_of
from kbtrain.errors import UserError, at
from kbtrain.evaluation.audit import AuditFigures, JudgedTurns, audit_figures, best_threshold, draw_turns
from kbtrain.evaluation.cost import GateCost, answered_usage, stored_usage, thousand_questions
from kbtrain.evaluation.outcomes import grade
from kbtrain.gate.card import Threshold, promise_text, set_threshold
from kbtrain.gates.decide import read_questions_file
from kbtrain.gates.handles import gate_identity, identity_of
from kbtrain.gates.registry import kind_of, load_gate, read_card
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import (
    check_unchanged,
    meta_of,
    meta_path,
    read_meta,
    sampling_of_labels,
    write_atomically,
    write_meta,
)
from kbtrain.io.store import SampleStore
from kbtrain.labeling.verdicts import QuestionVerdicts
from kbtrain.llm.backends import LLMConfig
from kbtrain.llm.forecast import PRICES, read_prices
from kbtrain.metrics.calibration import kept_scores
from kbtrain.metrics.significance import Delta
from kbtrain.metrics.thresholds import control
from kbtrain.questions.base import Columns
from kbtrain.questions.columns import mapped
from kbtrain.questions.files import data_file
from kbtrain.questions.gold import without_placeholders
from kbtrain.questions.tables import any_rows
from kbtrain.records import Question, SampleSet, TurnExample
from kbtrain.report.page import render
from kbtrain.report.traffic import (
    BY_A_RULE,
    check_one_gate,
    gate_rows,
    interval_cell,
    left_out_text,
    names_of,
    read_log,
)
from kbtrain.report.words import percent, threshold_text, with_interval
from kbtrain.show import aligned
from kbtrain.utterances import input_kind

Goal = Literal["best_accuracy", "max_loss"]
RUN = "main"  # sampling run of an audit
LEAST = 20  # judged turns


@dataclass(frozen=True)
class AuditTurn:
    """A drawn turn: its question's id, and the gate's score."""

    question_id: str
    score: float


@dataclass(frozen=True)
class Audit:
    """Settings of ``kbtrain audit``."""

    folder: Path
    run: Path
    log: Path | None = None
    turns: Path | None = None
    field: str | None = None
    key: str | None = None
    n: int = 100
    seed: int = 0
    gold: Path | None = None
    verdicts: Path | None = None
    judge: Path | None = None
    goal: Goal = "best_accuracy"
    max_loss: float = 0.05
    prices: Path = PRICES
    apply: bool = False
    replace: bool = False
    dry_run: bool = False


def audit_lines(audit: Audit) -> list[str]:
    """Do the next step of an audit; lines about it and about the step after it. Raises :class:`UserError`."""
    lines = []
    if meta_of(audit.run / "questions.jsonl").get("stage") != "audit":
        # turns are noted as an audit's before there are questions: one that was killed while it drew is drawn again
        begun = meta_of(audit.run / "turns.jsonl").get("stage")
        if begun != "audit" and (begun is not None or path_exists(audit.run / "questions.jsonl")):
            raise UserError(f"{audit.run}: a run folder that is not an audit's; give another --run")
        lines = _draw(audit)
    elif read_meta(audit.run / "turns.jsonl").get("scores_of") not in names_of(audit.folder):
        what = "turns of an older version, or with another gate's scores than"
        raise UserError(f"{audit.run}: {what} {audit.folder}; draw in another --run")
    elif audit.log or audit.turns or audit.gold:
        lines = [f"{audit.run}: its turns are drawn; --log, --turns, --gold, --n and --seed are not read again"]
    if not path_exists(meta_path(audit.run / "samples.db")):  # written by the last answer
        return [*lines, *([] if audit.dry_run else _answer_commands(audit))]
    check_unchanged(audit.run / "questions.jsonl")
    questions = {question.id: question for question in jsonl.read(Question, audit.run / "questions.jsonl")}
    answers, left_out = read_answers(audit.run, list(questions.values()))
    people, judges = (read_sheet(path, answers) if path else {} for path in (audit.verdicts, audit.judge))
    judges = judges or gold_verdicts(audit.run, questions, answers)
    if judges and people and not people.keys() <= judges.keys():
        left_out.append("people's verdicts alone count: the judge, or a reference answer, has none on some of these")
        judges = {}
    check_unchanged(audit.run / "turns.jsonl")
    turns = [turn for turn in jsonl.read(AuditTurn, audit.run / "turns.jsonl") if turn.question_id in answers]
    if not people and not audit.judge and sum(turn.question_id in judges for turn in turns) < LEAST:
        return [*lines, *left_out, *_write_sheets(audit, turns, questions, answers)]
    return [*lines, *left_out, *_estimate(audit, turns, people or judges, judges if people else {})]


# Drawing turns


def _draw(audit: Audit) -> list[str]:
    if audit.n < LEAST:
        raise UserError(f"command line: --n {audit.n}: at least {LEAST} turns are needed")
    gate, turns, left_out = logged_turns(audit)
    rng = np.random.default_rng(audit.seed)
    places = draw_turns(np.array([score for _, score in turns]), audit.n, rng)
    drawn = [turns[place] for place in rng.permutation(places)]  # the sheet's order: its begin is a random part
    gold = {} if audit.gold is None else _read_gold(audit.gold)
    questions, rows = {}, list[AuditTurn]()
    for text, score in drawn:  # a question that was asked often may be drawn twice: it is judged once, and counts twice
        name = identity_of(text_key(text))
        answers = gold.get(name, ())
        questions[name] = Question(
            name, text, answers, "test", "audit", language_of(text), gold="given" if answers else "none"
        )
        rows.append(AuditTurn(name, score))
    counts = f"{gate}: {len(drawn)} of {len(turns)} turns drawn, {len(questions)} different questions"
    if audit.gold is not None:
        counts += f", {sum(bool(question.answers) for question in questions.values())} with a reference answer"
    line = f"{counts}; skipped: {left_out_text(left_out)}"
    if audit.dry_run:
        nothing = f"dry run: nothing was written; {2 * len(questions)} answers would be generated and judged"
        return [line, nothing, answers_cost(audit.folder, len(questions), audit.prices)]
    audit.run.mkdir(parents=True, exist_ok=True)
    extra = {"gate": gate, "turns": len(turns), "drawn": len(drawn), "left_out": dict(left_out),
             "scores_of": f"{gate}@{gate_identity(audit.folder)}"}  # fmt: skip
    options = {"folder": str(audit.folder), "n": audit.n, "seed": audit.seed}
    for name, records in (("turns.jsonl", rows), ("questions.jsonl", list(questions.values()))):
        jsonl.write(audit.run / name, records)
        write_meta(audit.run / name, stage="audit", config=options, inputs=[], extra=extra)
    return [line]


def logged_turns(audit: Audit) -> tuple[str, list[tuple[str, float]], Counter[str]]:
    """The gate's name, the logged turns with their scores, and rows that are skipped, by reason."""
    if (audit.log is None) == (audit.turns is None):
        raise UserError(
            f"{audit.run}: nothing drawn yet: give one of --log (a decision log) and --turns (a file of questions)"
        )
    reads = getattr(read_card(audit.folder), "reads", None) or {}
    if "question" not in kind_of(audit.folder).reads or reads.get("dialogue_state"):
        raise UserError(f"{at(audit.folder)}: reads dialogues; an audit answers questions without their dialogue")
    turns, left_out, gates = list[tuple[str, float]](), Counter[str](), Counter[str]()
    if audit.turns is not None:
        gate = load_gate(audit.folder, audit.key)
        read = list(read_questions_file(audit.turns, audit.field))
        questions = [one for one in read if not isinstance(one, TurnExample)]
        asked = [one for one in questions if input_kind(one) is None]
        left_out += Counter({"dialogues": len(read) - len(questions), BY_A_RULE: len(questions) - len(asked)})
        texts = [one if isinstance(one, str) else one.question for one in asked]
        bare = [one if isinstance(one, str) else replace(one, reference=None, hits=()) for one in asked]
        scores = gate.score(texts if gate.needs_evidence else bare) if asked else []
        turns = list(zip(texts, scores, strict=True))
        gates[gate.name] += len(turns)
    else:
        assert audit.log is not None
        for row in gate_rows(read_log(audit.log), names_of(audit.folder, audit.key), left_out):
            if (text := row.get("question")) is None:
                left_out["without the question's text (start the server with --log-text)"] += 1
            else:
                gates[str(row["gate"]).partition("@")[0]] += 1
                turns.append((text, float(row["score"])))
    check_one_gate(gates, audit.log)
    if len(turns) < LEAST:
        what = f"{len(turns)} turns to audit (skipped: {left_out_text(left_out)})"
        raise UserError(f"{at(audit.turns or audit.log or audit.run)}: {what}; at least {LEAST} are needed")
    return next(iter(gates)), turns, left_out


def _read_gold(path: Path) -> dict[str, tuple[str, ...]]:
    """Reference answers by the question's key, read as in a questions file; of several rows of a question all."""
    gold: dict[str, tuple[str, ...]] = {}
    for row in any_rows(data_file(path)):
        pairs = (("question", "text"), ("answers", "answer"))  # no other column matters here
        names = [name for pair in pairs for name in ([one for one in pair if row.has(one)][:1] or pair)]
        read = row.having({name: row.data[name] for name in names if name in row.data})
        question = without_placeholders(mapped(read, Columns(), "gold", "audit", "test")).question
        key = identity_of(text_key(question.text))
        gold[key] = (*gold.get(key, ()), *question.answers)
    return gold


_OF_A_RUN = frozenset({"run", "batch"})  # settings of a search that say nothing of what it finds


def answer_steps(audit: Audit) -> list[tuple[str, list[str]]]:
    """Stages, with their options, that answer the drawn turns as the gate's run folder was answered.

    Empty where that folder has no sampled answers, or a search that is not computed from a corpus or a service. The
    settings of the answers are written to ``answer.yaml``.
    """
    source, run = audit.folder.parent, ["--run", str(audit.run)]
    retrieved, sampled = meta_of(source / "evidence.jsonl"), sampling_of_labels(source)
    search = {name: value for name, value in retrieved.get("config", {}).items() if value not in (None, {})}
    if not sampled or search.get("retriever") not in ("bm25", "web"):
        return []
    if search["retriever"] != "web":
        search.setdefault("corpus", str(source / "passages.jsonl"))
    words = [
        word
        for name, value in search.items()
        if name not in _OF_A_RUN
        for word in (f"--{name.replace('_', '-')}", value if isinstance(value, str) else json.dumps(value))
    ]
    settings = {
        name: sampled[name]
        for name, field in LLMConfig.model_fields.items()
        if name in sampled and sampled[name] != json.loads(to_json(field.get_default()))
    }
    settings |= {"model": sampled["model"], "prompts": sampled.get("prompts", {})}
    config = audit.run / "answer.yaml"
    write_atomically(config, "# settings of the answers of the gate's run folder\n" + yaml.safe_dump(settings))
    answers = ["--config", str(config), *run, "--samples", "{train: 0, dev: 0, test: 0}"]
    return [("retrieve", [*run, *words]), ("sample", answers)]


def _answer_commands(audit: Audit) -> list[str]:
    commands = [shlex.join(["kbtrain", "run", name, *words]) for name, words in answer_steps(audit)]
    if commands:
        line = "as the gate's run folder was answered; --answer does it all:"
    else:
        line = "with the model and passages in use (--dry-run: the cost):"
        run = shlex.quote(str(audit.run))
        commands = [
            f"kbtrain run retrieve --run {run} --corpus PASSAGES",
            f'kbtrain run sample --config server.yaml --run {run} --samples "{{train: 0, dev: 0, test: 0}}"',
        ]
    head = f"next: answer them with and without passages, {line}"
    return [head, *(f"  {command}" for command in (*commands, _command(audit)))]


def answers_cost(folder: Path, n: int, prices: Path = PRICES) -> str:
    """Cost of answering ``n`` questions with and without passages, by the answers of the gate's run folder."""
    run = folder.parent
    if (used := answered_usage(run)) is None:
        return f"cost: {n} searches and {2 * n} answers; tokens are unknown, since {run} has no counted answers"
    read, written = (used.llm_in + used.rag_in).mean(), (used.llm_out + used.rag_out).mean()
    price = read_prices(prices)
    money = price.search + (read * price.million_tokens_in + written * price.million_tokens_out) / 1e6
    seconds = read * price.seconds_per_1000_tokens_in + written * price.seconds_per_1000_tokens_out
    return (
        f"cost: {n} searches and {2 * n} answers, {n * read:,.0f} prompt and {n * written:,.0f} completion tokens, "
        f"{n * (price.search_seconds + seconds / 1000):,.0f} s, {n * money:,.2f} {price.currency} (mean answers of "
        f"{run}; times and prices of the price list)"
    )


# Verdicts

Answers = Mapping[str, tuple[SampleSet, SampleSet]]  # by question: without and with passages
Verdicts = Mapping[str, tuple[float, float]]


def read_answers(run: Path, questions: Sequence[Question]) -> tuple[Answers, list[str]]:
    """Stored answers of the questions that have both, and a line about the others."""
    answers: dict[str, tuple[SampleSet, SampleSet]] = {}
    with SampleStore(run / "samples.db", read_only=True) as store:
        for question in questions:
            llm, rag = (store.get(RUN, question.id, condition) for condition in ("llm", "rag"))
            if llm is not None and rag is not None and llm.greedy is not None and rag.greedy is not None:
                answers[question.id] = (llm, rag)
    missing = len(questions) - len(answers)
    if not answers:
        raise UserError(f"{run / 'samples.db'}: no question with an answer under llm and under rag; run sample again")
    return answers, [f"skipped: {missing} questions without both answers"] if missing else []


def gold_verdicts(run: Path, questions: Mapping[str, Question], answers: Answers) -> Verdicts:
    """Verdicts by the reference answers: a judge's (``verdicts.jsonl`` of the run), else those of the grading rule."""
    path = run / "verdicts.jsonl"
    rows = jsonl.read(QuestionVerdicts, path) if path_exists(path) else ()
    by_judge = {verdict.question_id: verdict.right for verdict in rows}
    verdicts = {}
    for name, both in answers.items():
        if questions[name].answers:
            right = [grade(questions[name], answer, by_judge.get(name)).correct for answer in both]
            if None not in right:
                verdicts[name] = (float(bool(right[0])), float(bool(right[1])))
    return verdicts


def _plain_first(name: str) -> bool:
    """True if the sheet shows the plain answer as answer A: judges must not know which one had passages."""
    return int(name[-1], 16) % 2 == 0


def read_sheet(path: Path, answers: Answers) -> Verdicts:
    """Verdicts of a filled sheet: columns ``id``, ``a_right`` and ``b_right``; a row without both is not judged.

    Raises :class:`UserError` with file, line and column.
    """
    verdicts = {}
    for row in any_rows(data_file(path)):
        name = row.identifier("id")
        cells = [row.data.get(column) for column in ("a_right", "b_right")]
        if any(cell is None or not str(cell).strip() for cell in cells):
            continue
        if name not in answers:
            raise row.error("id", f"no answered question {name!r:.40} in this audit")
        if name in verdicts:
            raise row.error("id", f"duplicate {name!r:.40}")
        a, b = (float(row.flag(column)) for column in ("a_right", "b_right"))
        verdicts[name] = (a, b) if _plain_first(name) else (b, a)
    if not verdicts:
        raise UserError(f"{at(path)}: no row has both verdicts; fill in a_right and b_right with 1 or 0")
    return verdicts


def _write_sheets(
    audit: Audit, turns: Sequence[AuditTurn], questions: Mapping[str, Question], answers: Answers
) -> list[str]:
    """Write the sheet as CSV and as a page, in the random order of the turns: a part of it is a random part."""
    rows = []
    for name in dict.fromkeys(turn.question_id for turn in turns):
        texts = [answer.greedy.text if answer.greedy else "" for answer in answers[name]]
        a, b = texts if _plain_first(name) else reversed(texts)
        rows.append({"id": name, "question": questions[name].text, "answer_a": a, "answer_b": b})
    sheet, page = audit.run / "sheet.csv", audit.run / "sheet.html"
    if audit.dry_run:
        return [f"dry run: {sheet} and {page} would be written, {len(rows)} questions"]
    if path_exists(sheet):
        return [f"{sheet} is there already; filled in: {_command(audit, '--verdicts', sheet)}"]
    text = io.StringIO()
    table = csv.DictWriter(text, ["id", "question", "answer_a", "answer_b", "a_right", "b_right"])
    table.writeheader()
    formula = ("=", "+", "-", "@")  # a spreadsheet takes such a text for one
    table.writerows({k: f"'{cell}" if cell.startswith(formula) else cell for k, cell in row.items()} for row in rows)
    write_atomically(page, render("audit_sheet.html.j2", autoescape=True, rows=rows, title="Right or wrong?"))
    write_atomically(sheet, text.getvalue())  # last: where it is there, both are
    return [
        f"wrote {sheet} and {page}: {len(rows)} questions with two answers each, in random order",
        f"judge some or all of them (1 right, 0 wrong), from the top; then: {_command(audit, '--verdicts', sheet)}",
    ]


def _command(audit: Audit, *words: str | Path) -> str:
    return shlex.join(["kbtrain", "audit", *map(str, (audit.folder, "--run", audit.run, *words))])


# Figures and the proposal


def n_reached(turns: Sequence[AuditTurn], truth: Verdicts) -> int:
    """The turns before the question that follows the last judged one of the sheet. Of a sheet that is judged in part,
    the others' verdicts would be of questions that are asked often."""
    order = list(dict.fromkeys(turn.question_id for turn in turns))
    behind = order[1 + max(place for place, name in enumerate(order) if name in truth) :]
    return next((place for place, turn in enumerate(turns) if turn.question_id in behind), len(turns))


def judged_turns(turns: Sequence[AuditTurn], truth: Verdicts, judge: Verdicts, reached: int) -> JudgedTurns:
    """The turns with their verdicts; a turn that only the judge labelled has NaN from people.

    With a judge only turns that it labelled are taken: people's others have nothing to be compared with. ``reached``:
    turns that people judged, as far as they did.
    """
    nothing = (math.nan, math.nan)
    people = [(turn, truth.get(turn.question_id, nothing) if i < reached else nothing) for i, turn in enumerate(turns)]
    used = [(turn, said) for turn, said in people if (turn.question_id in judge if judge else not math.isnan(said[0]))]
    columns = [np.array([said[arm] for _, said in used]) for arm in (0, 1)]
    columns += [np.array([judge[turn.question_id][arm] for turn, _ in used]) for arm in (0, 1) if judge]
    return JudgedTurns(np.array([turn.score for turn, _ in used]), *columns)


def _estimate(audit: Audit, turns: Sequence[AuditTurn], truth: Verdicts, judge: Verdicts) -> list[str]:
    judged = judged_turns(turns, truth, judge, n_reached(turns, truth) if audit.verdicts or audit.judge else len(turns))
    n = int(judged.judged.sum())
    if n < LEAST:
        raise UserError(f"{audit.run}: {n} judged turns; at least {LEAST} are needed")
    gate = str(read_meta(audit.run / "questions.jsonl")["gate"])
    old = read_card(audit.folder).thresholds.get(gate)
    value, rests_on, guarantee, gain = _choose(audit, judged)
    figures = [audit_figures(judged, threshold) for threshold in (*((old.threshold,) if old else ()), value)]
    shown = gain is None or gain.low > 0
    words = ("now", "proposed" if shown else "best on these turns")[-len(figures) :]
    places = [threshold_text(row.threshold, row.searched) for row in figures]
    names = [f"{place}, {word}" for place, word in zip(places, words, strict=True)]
    source = "people" if audit.verdicts else "the judge" if audit.judge else "the reference answers"
    with_judge = f", and {len(judged.scores)} by a judge that they correct" if judge else ""
    ids = [turn.question_id for turn in turns]
    used, prices = stored_usage(audit.run, RUN, ids), read_prices(audit.prices)
    asking = GateCost(0.0, after_search=read_card(audit.folder).stage == "search")
    scores = np.array([turn.score for turn in turns])
    lines = [
        f"{gate}: {n} of {len(turns)} drawn turns judged by {source}{with_judge}",
        aligned(("share of the turns, in %", *names), _rows(figures)),
        f"{'proposed' if shown else 'do not apply: no gain is shown'}: {rests_on}",
        *(f"{name}: {thousand_questions(used, (scores > row.threshold).astype(float), prices, asking)}"
          for name, row in zip(names, figures, strict=True)),
        "The gate's own cost is not in these.",
    ]  # fmt: skip
    proposal = {
        "gate": gate, "judged": n, "drawn": len(turns), "by": source, "judge": len(judged.scores) if judge else 0,
        "rests_on": rests_on, "guarantee": guarantee, "figures": [asdict(row) for row in figures],
    }  # fmt: skip
    if audit.dry_run:
        return [*lines, "dry run: nothing was written"]
    out = audit.run / "proposal.json"
    write_atomically(out, json.dumps(proposal, ensure_ascii=False, indent=1) + "\n")
    lines.append(f"-> {out}")
    now, new = figures[0].difference, figures[-1].difference
    if old and now.high < 0:
        lines.append(
            f"warning: the stored threshold {old.threshold:.4g} is certainly worse than always searching "
            f"({with_interval(now)} points); replace it, or serve without the gate"
        )
    obstacle = ""
    if old and new.mean < now.mean - 1e-9 and not guarantee:
        obstacle = "the proposal has fewer right answers than the current threshold"
    elif old and old.promise and not guarantee:
        obstacle = f"this promise would end: {old.promise}"
    elif gain and not shown:
        obstacle = f"no gain is shown, {with_interval(gain)} points against always searching; judge more turns"
    if not audit.apply:
        stores = "the same command with --apply stores this threshold; --rollback restores the previous one"
        step = f"keep the threshold: {obstacle} (--apply --replace stores this one anyway)" if obstacle else stores
        return [*lines, f"next: {step}"]
    if obstacle and not audit.replace:
        return [*lines, f"not applied: {obstacle}; --replace notes it anyway"]
    return [*lines, _apply(audit, gate, old, proposal, value, scores)]


def _choose(audit: Audit, judged: JudgedTurns) -> tuple[float, str, dict[str, Any] | None, Delta | None]:
    """The proposed threshold, what it rests on, and its guarantee, or else its corrected gain over always searching."""
    if audit.goal == "max_loss":
        chosen = control(judged.dev(), audit.max_loss)
        guarantee = asdict(chosen)
        return chosen.threshold, f"the fewest searches with the promise: {promise_text(guarantee)}", guarantee, None
    value, gain = best_threshold(judged)
    sure = "more" if gain.low > 0 else "fewer" if gain.high < 0 else "not certainly more or fewer"
    reason = (
        "the most right answers on the judged turns; corrected for this choice, against always searching: "
        f"{with_interval(gain)} points, {sure} right answers"
    )
    return value, reason, None, gain


def _rows(figures: Sequence[AuditFigures]) -> list[list[str]]:
    rows = {
        "searched": [percent(row.searched) for row in figures],
        "right, never searching": [interval_cell(row.never) for row in figures],
        "right, always searching": [interval_cell(row.always) for row in figures],
        "right, with the gate": [interval_cell(row.gate) for row in figures],
        "gate minus always, points": [with_interval(row.difference) for row in figures],
        "needless, of the searched": [interval_cell(row.needless) for row in figures],
        "missed, of the others": [interval_cell(row.missed) for row in figures],
    }
    return [[name, *cells] for name, cells in rows.items()]


def _apply(
    audit: Audit, gate: str, old: Threshold | None, proposal: Mapping[str, Any], value: float, scores: Any
) -> str:
    hashed = read_meta(audit.run / "turns.jsonl")["sha256"]
    before = None if old is None else old.model_dump(mode="json")
    if old and old.dev_file_sha256 == hashed:  # this very audit, with more verdicts or as it was
        before = old.evidence.get("before")
    evidence = {
        "traffic": {"n": len(scores), "scores": kept_scores(scores)},
        "audit": proposal,
        "before": before,
        **({"guarantee": proposal["guarantee"]} if proposal["guarantee"] else {}),
    }
    rule = f"{audit.goal} of {proposal['judged']} audited turns"
    entry = Threshold(
        threshold=value, rule=rule, dev_file_sha256=hashed, n_dev=proposal["judged"], evidence=evidence,
        dev=old.dev if old else {},
    )  # fmt: skip
    set_threshold(audit.folder, gate, entry)
    lost = "; the promise of the previous threshold no longer holds" if old and old.promise else ""
    was = "none" if old is None else old.shown
    return f"{audit.folder}: threshold of {gate} was {was}, is {entry.shown}{lost}; reload the server (SIGHUP)"
