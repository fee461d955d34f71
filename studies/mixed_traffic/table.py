"""The table of mixed traffic: every gate of a finished run against never, always, the rule by source and the oracle.

Rows with `after` read the passages: they drop passages and save no search. The free prompt is always searching with a
prompt that may ignore the passages (sampling run `free`); each gate is also shown with these answers where it searches.
With --scores the table is made from stored verdicts, prompt tokens and scores of each question, which --store wrote;
thresholds are chosen on dev again: the fewest searches that lose at most five points, with probability 0.9.
Money is searches alone, at 1 and 5 USD a thousand.

Examples:
  python studies/mixed_traffic/table.py --run runs/mixed
  python studies/mixed_traffic/table.py --run runs/mixed --by-source stack_benefit
  python studies/mixed_traffic/table.py --scores studies/mixed_traffic/qwen_scores.jsonl
  python studies/mixed_traffic/table.py --run runs/mixed --name mixed-smollm2 --gold runs/mixed_gold
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from kbtrain.arrays import Floats
from kbtrain.config import Config, run_script
from kbtrain.errors import UserError, did_you_mean
from kbtrain.evaluation.decisions import GateInput
from kbtrain.evaluation.end_to_end import Settings, evaluate
from kbtrain.evaluation.outcomes import grade
from kbtrain.evaluation.results import GateResult, load
from kbtrain.evaluation.run_folder import read_outcomes
from kbtrain.evaluation.scores import ByGate, stored_scores
from kbtrain.io import jsonl
from kbtrain.io.provenance import write_atomically
from kbtrain.io.store import SampleStore
from kbtrain.metrics.significance import interval, resampled_means, widened
from kbtrain.questions.checks import read_questions
from kbtrain.records import Condition, Outcome, Question
from kbtrain.report.words import percent, points, points_interval

HEAD = [
    "gate", "right, %", "searches, %", "area", "against the best of never and always, points",
    "against by source, points", "prompt tokens", "USD at 1 / 5 a thousand searches",
]  # fmt: skip
BESIDE_HEAD = ["run and gate", "questions", "right, %", "searches, %", "against the second run's always, points"]
PILOT_HEAD = ["passages", "prompt", "right, %", "repaired", "broken", "prompt tokens"]
SOURCE_HEAD = ["source", "questions", "never, % right", "always"]  # then the row's name and its searches
NAMES = {
    "by_source": "by source", "features": "`features` with the source", "features_no_source": "`features`, no source",
    "features_after": "`features` after the search", "probe_source": "probe and by source",
    "stack": "stack with the source", "stack_no_source": "stack, no source", "draft_probe": "draft probe",
    "kbm": "KBM, benefit", "kbm_mastery": "KBM, mastery", "prompt": "the model is asked", "seakr": "SeaKR",
    "seakr_residual": "SeaKR, residual stream", "draft_margin": "TARG, margin", "draft_entropy": "TARG, entropy",
    "first_token_entropy": "entropy of the first token", "token_entropy": "entropy of SeaKR's samples",
    "perplexity": "perplexity of SeaKR's samples", "answer_groups": "different answers among SeaKR's samples",
    "eigen_score": "EigenScore of SeaKR's samples", "decision_model": "decision model",
    "probe_after": "probe after the search",
}  # fmt: skip
WITH_FREE = ", free prompt"
GOLD = "always, gold passages"
FREE = "free"  # sampling run of the prompt that may ignore the passages
DRAWS, SEED = 10_000, 0
PRICES = (1.0, 5.0)  # USD for a thousand searches


class TableConfig(Config):
    run: Path = Field(Path("runs/mixed"), description="finished run folder of run.py")
    free: Path | None = Field(None, description="folder of the free prompt's answers; null: run")
    gold: Path | None = Field(None, description="folder of gold.py: also always searching with the gold passages")
    beside: Path | None = Field(None, description="run with another search: both on the test questions of both")
    by_source: str | None = Field(None, description="also a table of this gate by source")
    name: str = Field("mixed", description="name of the table in RUN/mixed.json, for make figures TABLES=")
    store: Path | None = Field(None, description="also write verdicts, prompt tokens and scores there, for --scores")
    scores: Path | None = Field(None, description="a file that --store wrote, instead of a run")

    def writes(self) -> tuple[Path, ...]:
        return (self.run / "mixed.json", *([self.store] if self.store else []))


@dataclass(frozen=True)
class Policy:
    """A row: right or wrong for each test question, whether passages were fetched and read, and the gate's area."""

    name: str
    right: Floats
    searched: Floats
    read: Floats
    area: str = "-"


def main(config: TableConfig) -> None:
    if config.scores is not None:
        return print("\n".join("| " + " | ".join(row) + " |" for row in (HEAD, *stored_table(config.scores))))
    outcomes = [outcome for outcome in read_outcomes(config.run) if outcome.split == "test"]
    free_run = config.free or config.run
    policies, tokens = read_policies(config.run, outcomes, free_run), prompt_tokens(config.run, outcomes, free_run)
    if config.gold is not None:
        policies.insert(2, with_gold(right_answers(config.gold, "main", outcomes)))
        tokens = (*tokens, tokens_of(config.gold, "main", outcomes, "rag"))
    tables = {config.name: {"columns": HEAD, "rows": gate_rows(policies, tokens)}}
    if config.by_source is not None:
        by_name = {policy.name: policy for policy in policies}
        if config.by_source not in by_name:
            raise UserError(f"key 'by_source': no row '{config.by_source}'; {did_you_mean(config.by_source, by_name)}")
        rows = source_rows(by_name[config.by_source], outcomes, questions_of(config.run))
        columns = [*SOURCE_HEAD, row_name(config.by_source), "searches, %"]
        tables[f"{config.name}-by-source"] = {"columns": columns, "rows": rows}
    if config.beside is not None:
        other = [outcome for outcome in read_outcomes(config.beside) if outcome.split == "test"]
        there = read_policies(config.beside, other, config.beside)
        rows = common_rows((outcomes, policies), (other, there), (config.run.name, config.beside.name))
        tables[f"{config.name}-beside"] = {"columns": BESIDE_HEAD, "rows": rows}
    if (config.run / "pilot.json").exists():
        tables[f"{config.name}-pilot"] = {"columns": PILOT_HEAD, "rows": pilot_rows(config.run / "pilot.json")}
    for table in tables.values():
        print("\n".join("| " + " | ".join(row) + " |" for row in (table["columns"], *table["rows"])), end="\n\n")
    write_atomically(config.run / "mixed.json", json.dumps({"tables": tables}, indent=1) + "\n")
    if config.store is not None:
        rows = stored_rows(config.run, config.gold)
        write_atomically(config.store, "".join(json.dumps(row) + "\n" for row in rows))
    return None


def with_gold(right: Floats) -> Policy:
    return Policy(GOLD, right, np.ones_like(right), np.ones_like(right))


def stored_rows(run: Path, gold: Path | None) -> Iterator[dict[str, Any]]:
    """Verdicts, prompt tokens and scores of each dev and test question: the table, but for the free prompt."""
    outcomes = [outcome for outcome in read_outcomes(run) if outcome.split != "train"]
    by_gate, questions = stored_scores(run).by_gate, questions_of(run)
    test = [outcome for outcome in outcomes if outcome.split == "test" and gold is not None]
    of_gold = dict[str, tuple[float, float]]()
    if gold is not None:
        answered = right_answers(gold, "main", test), tokens_of(gold, "main", test, "rag")
        of_gold = {outcome.question_id: found for outcome, *found in zip(test, *answered, strict=True)}
    for outcome, llm, rag in zip(outcomes, *prompt_tokens(run, outcomes, run)[:2], strict=True):
        name = outcome.question_id
        yield {
            "question": name, "split": outcome.split, "source": questions[name].source,
            "right": outcome.llm_correct, "right_with_passages": outcome.rag_correct,
            "prompt_tokens": [int(llm), int(rag)],
            **({"gold": [int(value) for value in of_gold[name]]} if name in of_gold else {}),  # right, prompt tokens
            "scores": {gate: round(of[name], 6) for gate, of in sorted(by_gate.items()) if name in of},
        }  # fmt: skip


def stored_table(path: Path) -> list[list[str]]:
    """Rows under :data:`HEAD` of the test questions with a verdict on both answers."""
    rows = [jsonl.value(line, path, number) for number, line in jsonl.lines(path)]
    rows = [row for row in rows if None not in (row["right"], row["right_with_passages"])]
    dev, test = ([row for row in rows if row["split"] == split] for split in ("dev", "test"))
    gates = [
        GateInput(name, *(np.array([row["scores"][name] for row in part]) for part in (dev, test)))
        for name in test[0]["scores"]
    ]
    chosen_on, outcomes = (
        [Outcome(row["question"], row["split"], None, row["right"], row["right_with_passages"], None, None, 0, 0)
         for row in part]
        for part in (dev, test)
    )  # fmt: skip
    results, _ = evaluate(chosen_on, outcomes, gates, Settings(tau_mastery=0.8, rule="max_loss"))
    scores = {gate.name: {row["question"]: row["scores"][gate.name] for row in test} for gate in gates}
    policies, tokens = policies_of(outcomes, results, scores), np.array([row["prompt_tokens"] for row in test]).T
    if "gold" in test[0]:
        right, spent = np.array([row["gold"] for row in test], dtype=np.float64).T
        return gate_rows([*policies[:2], with_gold(right), *policies[2:]], (*tokens, tokens[1], spent))
    return gate_rows(policies, tuple(tokens))


def questions_of(run: Path) -> dict[str, Question]:
    return {question.id: question for _, question in read_questions(run / "questions.jsonl")}


def read_policies(run: Path, outcomes: Sequence[Outcome], free_run: Path) -> list[Policy]:
    results, scores = load(run / "results.json").gates, stored_scores(run).by_gate
    return policies_of(outcomes, results, scores, free_prompt(free_run, outcomes))


def policies_of(
    outcomes: Sequence[Outcome], results: Sequence[GateResult], scores: ByGate, free: Floats | None = None
) -> list[Policy]:
    """Every gate whose decisions are stored, the two fixed ones, the free prompt and the oracle."""
    llm, rag = (
        np.array([getattr(o, name) for o in outcomes], dtype=np.float64) for name in ("llm_correct", "rag_correct")
    )
    none, every = np.zeros_like(llm), np.ones_like(llm)
    policies = [Policy("never", llm, none, none), Policy("always", rag, every, every)]
    if free is not None:
        policies.append(Policy("always, free prompt", free, every, every))
    gates = [gate for gate in results if gate.gate in scores and gate.threshold is not None]
    gates.sort(key=lambda gate: -(gate.oracle_normalised_area or 0.0))
    plain = [policy_of(gate, scores[gate.gate], outcomes, llm, rag) for gate in gates]
    policies += plain
    if free is not None:
        policies += [
            replace(policy, name=policy.name + WITH_FREE, right=np.where(policy.read > 0, free, llm), area="-")
            for policy in plain
        ]
    needed = np.maximum(rag - llm, 0.0)
    return [*policies, Policy("oracle", np.maximum(llm, rag), needed, needed)]


def policy_of(
    gate: GateResult, scores: Mapping[str, float], outcomes: Sequence[Outcome], llm: Floats, rag: Floats
) -> Policy:
    """The gate's decisions at its threshold; one after the search fetches for every question."""
    read = np.array([scores[o.question_id] > gate.threshold for o in outcomes], dtype=np.float64)
    searched = np.ones_like(read) if "after" in gate.gate else read
    area = gate.curve and gate.curve.area
    shown = f"{area.mean:.2f} [{area.low:.2f}, {area.high:.2f}]" if area else "-"
    return Policy(gate.gate, np.where(read > 0, rag, llm), searched, read, shown)


def free_prompt(run: Path, outcomes: Sequence[Outcome]) -> Floats | None:
    """Right answers of the sampling run :data:`FREE`, or None without one."""
    with SampleStore(run / "samples.db", read_only=True) as store:
        if FREE not in store.runs():
            return None
    return right_answers(run, FREE, outcomes)


def right_answers(run: Path, sampling_run: str, outcomes: Sequence[Outcome]) -> Floats:
    """1 for each right answer with passages; 0 without a verdict."""
    questions = questions_of(run)
    with SampleStore(run / "samples.db", read_only=True) as store:
        answers = [store.get(sampling_run, o.question_id, "rag") for o in outcomes]
    return np.array([bool(a and grade(questions[a.question_id], a).correct) for a in answers], dtype=np.float64)


def prompt_tokens(run: Path, outcomes: Sequence[Outcome], free_run: Path) -> tuple[Floats, ...]:
    """Tokens of each question's prompt without and with passages, and of the free one with them."""
    asked: tuple[tuple[Path, str, Condition], ...] = (
        (run, "main", "llm"), (run, "main", "rag"), (free_run, FREE, "rag")
    )  # fmt: skip
    return tuple(tokens_of(folder, sampling_run, outcomes, condition) for folder, sampling_run, condition in asked)


def tokens_of(folder: Path, sampling_run: str, outcomes: Sequence[Outcome], condition: Condition) -> Floats:
    with SampleStore(folder / "samples.db", read_only=True) as store:
        answers = [store.get(sampling_run, o.question_id, condition) for o in outcomes]
    return np.array([answer.prompt_tokens if answer else 0 for answer in answers], dtype=np.float64)


def gate_rows(policies: Sequence[Policy], tokens: Sequence[Floats]) -> list[list[str]]:
    by_name = {policy.name: policy for policy in policies}
    fixed = [by_name[name].right for name in ("never", "always", "always, free prompt") if name in by_name]
    best, by_source = max(fixed, key=lambda right: right.mean()), by_name.get("by_source")
    rows = []
    for policy in policies:
        with_passages = tokens[3 if policy.name == GOLD else 2 if policy.name.endswith(WITH_FREE) else 1]
        spent = np.where(policy.read > 0, with_passages, tokens[0]).mean()
        searches = policy.searched.mean()
        against = "-" if by_source is None else difference(policy.right, by_source.right)
        rows.append([
            row_name(policy.name), percent(policy.right.mean()), percent(searches, 0), policy.area,
            difference(policy.right, best), against,
            f"{spent:.0f}", " / ".join(f"{searches * price:.2f}" for price in PRICES),
        ])  # fmt: skip
    return rows


def row_name(policy: str) -> str:
    gate = policy.removesuffix(WITH_FREE).removesuffix("_benefit")
    return NAMES.get(gate, gate) + WITH_FREE * policy.endswith(WITH_FREE)


def difference(right: Floats, other: Floats) -> str:
    """Points with their 95 % interval; a dash where no question differs."""
    change = right - other
    if not change.any():
        return "-"
    delta = widened(interval(resampled_means(change[:, None], DRAWS, SEED)[:, 0]), change)
    return f"{points(change.mean())} {points_interval(delta)}"


def pilot_rows(file: Path) -> list[list[str]]:
    """Never searching, then each number of passages and prompt, on the pilot's questions."""
    pilot, rows = json.loads(file.read_text(encoding="utf-8")), []
    for result in (pilot["never"], *pilot["settings"]):
        setting, share = result["setting"], [percent(result[key]) for key in ("low", "high")]
        mark = ", chosen" * (setting == pilot["chosen"])
        counts = [str(result["repaired"]), str(result["broken"]), f"{result['prompt_tokens']:.0f}"]
        right = f"{percent(result['right'] / result['n'])} [{share[0]}, {share[1]}]"
        rows.append([f"{setting['k'] or 'no search'}{mark}", setting.get("form") or "plain", right, *counts])
    return rows


def common_rows(
    first: tuple[Sequence[Outcome], Sequence[Policy]],
    second: tuple[Sequence[Outcome], Sequence[Policy]],
    names: tuple[str, str],
) -> list[list[str]]:
    """Every policy of two runs on the questions that both have, against always searching of the second."""
    places = [{outcome.question_id: i for i, outcome in enumerate(outcomes)} for outcomes, _ in (first, second)]
    common = [question for question in places[0] if question in places[1]]
    at = [[place[question] for question in common] for place in places]
    always = next(policy.right for policy in second[1] if policy.name == "always")[at[1]]
    rows = []
    for (_, policies), asked, run in zip((first, second), at, names, strict=True):
        for policy in policies:
            right, searched = policy.right[asked], policy.searched[asked]
            shares = [str(len(common)), percent(right.mean()), percent(searched.mean(), 0)]
            rows.append([f"{run}: {row_name(policy.name)}", *shares, difference(right, always)])
    return rows


def source_rows(policy: Policy, outcomes: Sequence[Outcome], questions: Mapping[str, Question]) -> list[list[str]]:
    places: dict[str, list[int]] = defaultdict(list)
    for place, outcome in enumerate(outcomes):
        places[questions[outcome.question_id].source or "none"].append(place)
    rows = []
    for source, of in sorted(places.items()):
        llm, rag = (np.mean([getattr(outcomes[i], name) for i in of]) for name in ("llm_correct", "rag_correct"))
        shares = (llm, rag, policy.right[of].mean())
        rows.append([source, str(len(of)), *map(percent, shares), percent(policy.searched[of].mean(), 0)])
    return rows


if __name__ == "__main__":
    run_script(main, TableConfig, __doc__)
