"""From a file of questions to a decision: does the search help, does a gate pay? (``kbtrain fit``, ``kbtrain.fit``)

A chain of stages that exist, each of which resumes: collect or import_answers, retrieve, pilot, sample, then the chain
of ``kbtrain finish``. No question is asked before its forecast was agreed to, which RUN/fit.json notes.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kbtrain.demo import FEATURES, ChainStep, Say, chain_step, check_passages, finish_own, follow
from kbtrain.errors import UserError, at
from kbtrain.evaluation import search_pilot
from kbtrain.evaluation.calibrate import at_threshold, stored_dev
from kbtrain.evaluation.outcomes import grade
from kbtrain.evaluation.results import GateResult, Results, load
from kbtrain.evaluation.savings import LIMIT
from kbtrain.evaluation.search_pilot import SearchSetting, SettingResult, compare_settings
from kbtrain.gate.gate import Gate
from kbtrain.gates.features.additive import LEAST
from kbtrain.gates.registry import kind_to_fit, load_gate
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import file_sha256, write_atomically
from kbtrain.io.store import SampleStore
from kbtrain.io.text_files import plain_name
from kbtrain.labeling.verdicts import QuestionVerdicts
from kbtrain.llm.backends import read_llm_config
from kbtrain.llm.base import AnswerRequest
from kbtrain.llm.check_server import check_server, write_config
from kbtrain.llm.dialect import bare_name
from kbtrain.llm.forecast import PRICES, forecast, read_prices
from kbtrain.metrics.significance import Delta, paired_difference, share
from kbtrain.metrics.thresholds import Dev, fewest_questions, promised
from kbtrain.prompts.kbm import evidence_text
from kbtrain.questions.checks import read_questions
from kbtrain.questions.columns import propose_columns
from kbtrain.questions.tables import PARQUET, TABLES
from kbtrain.records import Condition, Evidence, Split
from kbtrain.report.words import percent, percent_interval, points, points_interval
from kbtrain.retrieval import corpus as passages
from kbtrain.runtime.progress import say_line
from kbtrain.show import aligned_block, count_of

PROMISED, AT_MOST = 0.05, 0.1  # share of right answers that a threshold with a promise may lose; if that saves nothing
KS = (1, 2, 3, 5)  # numbers of passages that the pilot compares
SHARES = "0.5,0.25,0.25"
MEASURED = 2  # prompts of each stage that are asked to forecast the time


@dataclass(frozen=True)
class Fit:
    """Options of a fit; ``columns`` and ``answers`` as the scripts read them (YAML).

    With ``answers`` (condition -> column) nothing is asked; else ``corpus`` is searched, and the model asked that
    ``server`` (an address) or ``config`` (of data_gen/sample.py) names. ``group_by``: column whose equal values stay in
    one split; ``pilot``: questions asked first; ``samples``: answers drawn to each question of train and dev; ``yes``:
    begin without a question; ``go_on``: also where nothing is to be gained.
    """

    file: Path
    run: Path
    server: str | None = None
    config: Path | None = None
    corpus: Path | None = None
    answers: str | None = None
    columns: str | None = None
    group_by: str | None = None
    model: str | None = None
    gate: str = FEATURES
    pilot: int = 50
    samples: int = 10
    prices: Path = PRICES
    yes: bool = False
    go_on: bool = False

    def check(self) -> None:
        """Raise :class:`UserError` for options that leave open what is to be done."""
        if self.answers is not None:
            asking = ("server", "config", "samples", "pilot")
            if given := [f"--{name}" for name in asking if getattr(self, name) != getattr(Fit, name)]:
                raise UserError(f"command line: --answers: fit then sends no requests; remove {', '.join(given)}")
        elif self.corpus is None or (self.server is None) == (self.config is None):
            raise UserError("command line: give --corpus and --server (or --config), or --answers")
        if self.config is not None and self.model is not None:
            raise UserError(f"command line: --model: {self.config} names the model; remove --model")
        kind_to_fit(self.gate, "command line: --gate")


@dataclass(frozen=True)
class Fitted:
    """The decision in words, the gate and all results; gate and results are None if a search always or never helps."""

    decision: str
    gate: Gate | None = None
    results: Results | None = None


def fit(file: Path | str, run: Path | str, **options: Any) -> Fitted:
    """As ``kbtrain fit``, with the options of :class:`Fit`; ``answers`` and ``columns`` may be mappings.

    Prints to stderr what the command prints. Raises :class:`UserError`, also after the forecast if ``yes`` is missing
    and there is no terminal to ask.
    """
    paths = {key: Path(options[key]) for key in ("config", "corpus", "prices") if options.get(key)}
    maps = {key: options[key] for key in ("answers", "columns") if isinstance(options.get(key), Mapping)}
    texts = {key: json.dumps(columns, ensure_ascii=False) for key, columns in maps.items()}
    settings = Fit(Path(file), Path(run), **{**options, **paths, **texts})
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return fit_questions(settings, say_line)
    except SystemExit:
        raise UserError(f"{at(settings.run)}: a stage failed; chain.log shows why") from None


def fit_questions(settings: Fit, say: Say) -> Fitted:
    """Follow the chain as far as it pays. Raises :class:`UserError`, or SystemExit where a stage failed."""
    settings.check()
    run = settings.run
    of_models = {part.strip() for part in re.split(r"[{}:,\"']", settings.answers or "")}
    questions = settings.columns or json.dumps(propose_columns(settings.file, of_models), ensure_ascii=False)
    say(f"columns of the questions: {questions}")
    if settings.corpus is not None and (proposed := passages.propose_columns(settings.corpus)):
        say(f"columns of the corpus: {json.dumps(proposed, ensure_ascii=False)}")
    if settings.answers is not None:
        follow(_import_steps(settings, questions), run, say, "questions.jsonl", lambda _: [_planned(settings)])
        check_passages(run)  # answers that are all the same say nothing of a search
        effect = compare_answers(run)
    else:
        steps = _search_steps(settings, questions)
        follow(steps[:1], run, say, "questions.jsonl", lambda _: [_planned(settings)])
        follow(steps[1:], run, say, "candidates.jsonl", lambda _: [])  # reads the corpus before the server is asked
        config = server_config(settings, say)
        splits, most = _piloted(settings)
        paces = agree(settings, config, say)
        minutes = _minutes(settings, "pilot", paces)
        asking = chain_step("pilot", "does your search help?", minutes, run=run, config=config,
                            splits=json.dumps(splits), questions=most, ks=json.dumps(KS))  # fmt: skip
        follow([asking], run, say, "pilot.json", lambda _: [])
        effect = read_pilot(run)
    _tell(*search_lines(*effect))
    if (found := search_pilot.effect_of(*effect)) != "both" and not settings.go_on:
        saves = "nothing; or the same command with --continue, for a gate that saves searches"
        _tell(f"next: {_no_search(settings) if found == 'harms' else saves}")
        return Fitted(search_pilot.advice(*effect))
    if settings.answers is None:
        drawn = json.dumps({"train": settings.samples, "dev": settings.samples, "test": 0})
        minutes = _minutes(settings, "sample", paces)
        sampling = chain_step("sample", "answers with and without passages", minutes, run=run, config=config,
                              samples=drawn)  # fmt: skip
        follow([sampling], run, say, "samples.db", lambda _: [])
    finish_own(run, say, None if settings.prices == PRICES else str(settings.prices), settings.gate)
    gate, results = load_gate(run / settings.gate), load(run / "results.json")
    named = {result.gate: result for result in results.gates}
    stored = at_threshold(run, named[gate.name], gate.threshold_or(None))  # calibrate may have chosen it since
    decided = decision(stored, named["llm_only"], named["all_rag"])
    follows = next_command(settings, stored, stored_dev(run, gate.name), gate.promise, decided.startswith("Use"))
    follows = _no_search(settings) if decided.startswith("Never") else follows
    rule, shown = named.get("by_source"), {"decision": decided}
    if rule is not None:
        searches = f"{percent(rule.retrieval_ratio)} % of the searches"
        shown["by source"] = f"never or always by source alone: {percent(rule.accuracy)} % right, {searches}"
    _tell(*aligned_block(shown | {"next": follows}))
    return Fitted(decided, gate, results)


def _import_steps(settings: Fit, columns: str) -> list[ChainStep]:
    step = chain_step("import_answers", "questions and both answers", 0.1, run=settings.run, path=settings.file,
                      model=settings.model or "unnamed", columns=columns, answers=settings.answers,
                      shares=SHARES, group_by=settings.group_by)  # fmt: skip
    return [step] if settings.corpus is None else [step, _retrieval(settings)]


def _search_steps(settings: Fit, columns: str) -> list[ChainStep]:
    is_table = plain_name(settings.file.name).lower().endswith((*TABLES, PARQUET))
    return [
        chain_step("collect", "your questions", 0.1, run=settings.run, dataset="csv" if is_table else "jsonl",
                   path=settings.file, shares=SHARES, columns=columns, group_by=settings.group_by),
        _retrieval(settings, k=max(KS), pilot="true"),
    ]  # fmt: skip


def _retrieval(settings: Fit, **keys: object) -> ChainStep:
    assert settings.corpus is not None
    proposed = passages.propose_columns(settings.corpus)
    return chain_step("retrieve", "passages for each question", 0.1, run=settings.run, corpus=settings.corpus,
                      columns=json.dumps(proposed, ensure_ascii=False) if proposed else None, **keys)  # fmt: skip


def _planned(settings: Fit) -> str:
    """What the questions can show. Raises :class:`UserError` where too few train a gate, or none tests it."""
    n = Counter(q.split for _, q in read_questions(settings.run / "questions.jsonl") if q.answers)
    if n["train"] < LEAST or not n["dev"] or not n["test"]:
        few = f"{n['train']} of {n.total()} questions train the gate; fit needs {LEAST} of these at least"
        raise UserError(f"{at(settings.file)}: {few}, so {3 * LEAST} questions or more; name another --run for them")
    enough = fewest_questions(PROMISED, 0.1)
    few = f"; {n['dev']} dev questions cannot promise to lose at most {percent(PROMISED, 0)} points, {enough} may"
    return search_pilot.planning_line(n["test"]) + few * (n["dev"] < enough)


def server_config(settings: Fit, say: Say) -> Path:
    """The configuration of the model that is asked: the one given, or RUN/server.yaml, written by its first check."""
    if settings.config is not None:
        return settings.config
    assert settings.server is not None
    path = settings.run / "server.yaml"
    if not path_exists(path):
        say(f"checking {settings.server}")
        checked = check_server(settings.server, settings.model, samples=settings.samples)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_config(checked.settings, path)
        _tell(*checked.lines())
    elif (found := read_llm_config(path)).server_url != settings.server.rstrip("/"):
        raise UserError(f"{at(path)}: is of server {found.server_url}; name that one, or another folder by --run")
    elif settings.model and bare_name(settings.model) not in map(bare_name, (found.model, found.server_model or "")):
        raise UserError(f"{at(path)}: is of model {found.model}; name that one, or another folder by --run")
    return path


def agree(settings: Fit, config: Path, say: Say) -> Mapping[str, float]:
    """Show the forecast of all that will be asked, once, and ask whether to begin; RUN/fit.json notes the answer.
    Measured seconds of an answer by stage: the pilot's come one a request, the others several.

    Raises :class:`UserError` if the user declines, or if there is no terminal to ask on.
    """
    files = (settings.run / "questions.jsonl", settings.run / "candidates.jsonl", config)
    key = {"pilot": settings.pilot, "samples": settings.samples, **{path.name: file_sha256(path) for path in files}}
    note = settings.run / "fit.json"
    noted = jsonl.read_json(note) if path_exists(note) else {}
    if noted.get("agreed") == key:
        return dict(noted.get("paces", {}))
    begun, answers = noted.get("agreed", key).get("samples"), settings.run / "samples.db"
    if begun != settings.samples and path_exists(answers):
        raise UserError(f"{at(answers)}: begun with --samples {begun}; give that, or name another folder by --run")
    prices = settings.prices.name, read_prices(settings.prices)
    say(f"{MEASURED} prompts of each stage are sent to measure the time")
    model = read_llm_config(config)
    expected = {stage: forecast(model, partial(_requests, settings, stage), MEASURED) for stage in ("pilot", "sample")}
    for stage, part in expected.items():
        _tell(f"forecast of the stage {stage}, without what is stored:", *part.lines(prices))
    if not settings.yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise UserError("stopped after the forecast: there is no terminal to ask; run the same command with --yes")
        if input("Begin? [y/N] ").strip().lower() not in ("y", "yes"):
            raise UserError("stopped after the forecast; the same command asks again")
    paces = {stage: (part.seconds or 0.0) / max(part.answers, 1) for stage, part in expected.items()}
    write_atomically(note, json.dumps({"agreed": key, "paces": paces}))
    return paces


def _minutes(settings: Fit, stage: str, paces: Mapping[str, float]) -> float:
    """How long what a stage still asks takes, at so many seconds an answer."""
    return sum(request.n + request.greedy for request in _requests(settings, stage)) * paces.get(stage, 0.0) / 60


def _piloted(settings: Fit) -> tuple[tuple[Split, ...], int]:
    """Splits of the pilot and the number of questions of each: of dev alone if there are enough, else of train too."""
    n_dev = sum(q.split == "dev" and bool(q.answers) for _, q in read_questions(settings.run / "questions.jsonl"))
    most = max(-(-settings.pilot // 2), settings.pilot - n_dev)
    return (("dev",), settings.pilot) if n_dev >= settings.pilot else (("train", "dev"), most)


def _requests(settings: Fit, stage: str) -> Iterator[AnswerRequest]:
    """What pilot or sampling ask and have not stored, the latter with as many passages as the pilot's most."""
    rows = [question for _, question in read_questions(settings.run / "questions.jsonl")]
    piloted = {question.id for question in search_pilot.pick_questions(rows, *_piloted(settings))}
    done = _stored(settings.run / ("pilot/samples.db" if stage == "pilot" else "samples.db"))
    names = {k: SearchSetting("candidates", k).name if k else search_pilot.NEVER for k in (0, *KS)}
    for question, found in zip(rows, jsonl.read(Evidence, settings.run / "candidates.jsonl"), strict=True):
        n = settings.samples if stage == "sample" and question.split != "test" else 0
        for k, name in (names if stage == "pilot" else {0: "main", KS[-1]: "main"}).items():
            condition: Condition = "rag" if k else "llm"
            if (question.id in piloted or stage == "sample") and (question.id, condition) not in done.get(name, ()):
                text = evidence_text(found.hits[:k], found.titles)
                yield AnswerRequest(question, condition, text, n, greedy=stage == "pilot" or question.id not in piloted)


def _stored(path: Path) -> dict[str, set[tuple[str, str]]]:
    """Question and condition of the answers in a store, by run; empty without a store."""
    if not path_exists(path):
        return {}
    with SampleStore(path, read_only=True) as store:
        return {run: store.done(run) for run in store.runs()}


def read_pilot(run: Path) -> tuple[SettingResult, SettingResult]:
    """Never searching and the best search, as the pilot found them."""
    path = run / "pilot.json"
    found = jsonl.read_json(path)
    return jsonl.parsed(SettingResult, found["never"], at(path)), jsonl.parsed(SettingResult, found["best"], at(path))


def compare_answers(run: Path) -> tuple[SettingResult, SettingResult]:
    """The same of imported answers to the questions of train and dev; the test questions stay for the gate."""
    by_id = {q.id: q for _, q in read_questions(run / "questions.jsonl") if q.split != "test" and q.answers}
    setting = SearchSetting("passages", 0)
    names = {"llm": search_pilot.NEVER, "rag": setting.name}
    correct: dict[str, dict[str, bool | None]] = {name: {} for name in names.values()}
    path = run / "verdicts.jsonl"  # a judge's, by which the gate's labels are graded, too
    judged = {one.question_id: one.right for one in jsonl.read(QuestionVerdicts, path)} if path_exists(path) else None
    with SampleStore(run / "samples.db", read_only=True) as store:
        for row in store.iterate("main"):
            if row.question_id in by_id and row.condition in names:
                verdicts = None if judged is None else judged.get(row.question_id, {})
                correct[names[row.condition]][row.question_id] = grade(by_id[row.question_id], row, verdicts).correct
    nevers, results = compare_settings([setting], correct, {name: dict.fromkeys(by_id, 0) for name in correct})
    return nevers[search_pilot.PLAIN], results[0]


def search_lines(never: SettingResult, best: SettingResult) -> list[str]:
    """Does the search help? Counts with their 95 % intervals, and how many questions would decide."""
    n, change = best.n, paired_difference(best.repaired, best.broken, best.n)
    k = best.setting.k
    search = f", with {count_of(k, 'passage')} (the best of {', '.join(map(str, KS))})" if k else ""
    asked = f"{count_of(n, 'question')}, none of test, both answers with a verdict{search}"
    lines = {
        "does your search help?": f"{asked}; 95 % intervals",
        "never searching": _share(never.right, n) + " right",
        "always searching": _share(best.right, n) + " right",
        "repaired by a search": f"{count_of(best.repaired, 'answer')}, {_share(best.repaired, n)}",
        "broken by a search": f"{count_of(best.broken, 'answer')}, {_share(best.broken, n)}",
        "difference": f"{points(change.mean)} points {points_interval(change)}; {needed_questions(change, n)}",
        "answer": search_pilot.advice(never, best),
    }
    return aligned_block(lines)


def _share(count: int, n: int) -> str:
    value = share(count, n)
    return f"{percent(value.mean)} % {percent_interval(value)}"


def needed_questions(change: Delta, n: int, of_none: str = "no number of questions decides a difference of 0") -> str:
    """How many questions decide a difference that stays as it is; ``of_none``: what to say of none."""
    if change.low > 0 or change.high < 0:
        return "decided by these questions"
    if abs(change.mean) < 1e-9:  # rounding errors aside
        return of_none
    needed = math.ceil(n * ((change.high - change.low) / 2 / change.mean) ** 2)
    return f"about {max(1, needed):,} questions would decide it"


def decision(gate: GateResult, never: GateResult, always: GateResult) -> str:
    """What to do, in words: by the test questions, against the better of never and always searching."""
    over_always, over_never = gate.delta_vs_all_rag, gate.delta_vs_llm_only
    saves = f"it skips {percent(1 - gate.retrieval_ratio)} % of the searches"
    gains = (
        f"{points(over_always.mean)} points {points_interval(over_always)} against always searching, "
        f"{points(over_never.mean)} {points_interval(over_never)} against never, {count_of(gate.n, 'test question')}"
    )
    if gate.retrieval_ratio == 1 and always.accuracy >= never.accuracy:
        return "Always search: the gate does the same for every question."
    if over_always.above_zero and over_never.above_zero:
        return f"Use the gate: {saves}, and more answers are right ({gains})."
    if never.accuracy >= max(gate.accuracy, always.accuracy):
        return f"Never search: {percent(never.accuracy)} % are right without; the gate is not better ({gains})."
    loss = f"a loss of more than {percent(LIMIT, 0)} points is"
    if over_always.low >= -LIMIT and over_never.mean > 0:
        return f"Use the gate to save searches: {saves}, and {loss} ruled out ({gains})."
    better = "never" if never.accuracy > always.accuracy else "always"
    if over_always.high < 0:
        return f"Always search: the gate loses right answers ({gains})."
    needs = needed_questions(over_always, gate.n, f"{loss} not ruled out by these questions")
    return f"Not decided, {better} search so far: {saves} ({gains}); {needs}."


def _no_search(settings: Fit) -> str:
    swapped = "; should passages help? Then see that --answers does not name its two columns the wrong way round"
    return "do not search" + swapped * (settings.answers is not None)


def next_command(settings: Fit, gate: GateResult, dev: Dev, promise: str = "", use: bool = True) -> str:
    """The trial that loses nothing: search always, and log what the gate would do; then its decisions, where they are
    of ``use``. For a gate that always searches: a threshold with a promise, unless its own has one (``promise``)."""
    then = "after a trial --policy gate" if use else "these questions do not show that the gate should decide"
    trial = f"--policy always --log decisions.jsonl; {then}"
    folder, upstream = shlex.quote(str(settings.run / settings.gate)), f"--upstream {settings.server or 'URL'}"
    if gate.retrieval_ratio == 1:
        stored = f"the threshold with a promise is stored: {promise}"
        return f"for fewer searches: {stored if promise else _promising(settings.run, gate.gate, dev)}"
    if settings.answers is not None:  # of prompts that are not known here
        return f"ask the gate before your own search (docs/howto/own-program.md): kbtrain serve {folder} {trial}"
    if settings.config is not None:
        model = read_llm_config(settings.config)
        upstream = f"--upstream {model.server_url}" if model.kind.server else f"--model {model.model}"
    return f"kbtrain serve {folder} {upstream} --prompt trained {trial}"


def _promising(run: Path, gate: str, dev: Dev) -> str:
    """The command that skips searches at the smallest promised loss, and what more dev questions would allow."""
    ways = [promised(dev, limit) for limit in (PROMISED, AT_MOST)]
    more, few = ways[0].more, ways[0].fewest - ways[0].n
    if few > 0:
        more += f" Add about {4 * few} questions, and name another folder by --run."
    for sure in (way.guarantee for way in ways):
        if sure is not None and sure.ratio < 1:
            command = f"kbtrain run calibrate --run {shlex.quote(str(run))} --gate {gate}"
            command += f" --goal max_loss --max-loss {sure.limit:g}"
            promise = f"at most {percent(sure.limit, 0)} points lost with probability {1 - sure.delta:g}"
            return f"{command} ({percent(1 - sure.ratio)} % skipped on dev, {promise}). {more}".rstrip()
    return more or f"none can be promised with at most {percent(AT_MOST, 0)} points lost"


def _tell(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
