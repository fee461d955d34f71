"""Evaluate all gates end to end from stored answers and scores: no model runs here.

Reads questions.jsonl, samples.db, labels.jsonl and scores/ of the run folder; writes outcomes.jsonl and results.json.
Dev questions choose thresholds (best_accuracy also reads training questions). The gate's folder stores them; a
threshold that eval/calibrate.py chose stays, unless --replace-thresholds. The report's headline is the best gate on dev
at its stored threshold. Rule max_loss is calibrate's: at most max_loss of All-RAG's accuracy lost, with probability
1 - delta. Rule given takes the stored thresholds, or --thresholds.

--yes-no without skips the questions whose reference answer is yes or no, --yes-no only skips all others. The results
are written to results_without_yes_no.json or results_only_yes_no.json; outcomes and thresholds stay unchanged.

Examples:
  kbtrain run end_to_end --run runs/demo
  kbtrain run end_to_end --config end_to_end_public --yes-no without
  kbtrain run end_to_end --run runs/demo --threshold-rule best_accuracy --resample entities
  kbtrain run end_to_end --run runs/demo --threshold-rule given --thresholds "{kbm_mastery: 0.4}"
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import Field, model_validator

from kbtrain.answers.grading import rules_of
from kbtrain.config import check_counts, run_script
from kbtrain.errors import UserError
from kbtrain.evaluation.calibrate import note_thresholds, warn_of_dependence
from kbtrain.evaluation.decisions import GateInput
from kbtrain.evaluation.end_to_end import Settings, evaluate, result_meta
from kbtrain.evaluation.gate_inputs import (
    add_noted,
    baselines,
    in_report_order,
    scored_gates,
    training_of,
    training_texts,
)
from kbtrain.evaluation.outcomes import (
    AccuracyKind,
    answers,
    clusters_of,
    dev_kind,
    drawn_units,
    has_expected,
    summarise,
)
from kbtrain.evaluation.results import GateResult, Results, save
from kbtrain.evaluation.run_folder import (
    ResampleConfig,
    RunFolder,
    StoredAnswersConfig,
    YesNo,
    check_labelled,
    check_sampled,
    read_labels,
    read_run,
)
from kbtrain.evaluation.savings import SavingOptions, savings
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import write_meta
from kbtrain.metrics.ranking import Oracles, oracles
from kbtrain.metrics.thresholds import AnyRule
from kbtrain.records import Evidence, Label, Outcome
from kbtrain.report.summary import text_summary
from kbtrain.utterances import utterance_kind

# keys that are settings of the evaluation under the same name
OF_SETTINGS = ("target_ratio", "bootstrap_draws", "seed", "max_loss", "delta")


class EndToEndConfig(StoredAnswersConfig, ResampleConfig):
    run: Path = Field(Path("runs/demo"), description="run folder")
    yes_no: YesNo = Field(
        "with", description="questions whose reference answer is yes or no: with, without, or only these"
    )
    threshold_rule: AnyRule = Field(
        "ratio", description="0.5, best_f1, best_accuracy, ratio, max_loss, chosen on dev; or given"
    )
    target_ratio: float = Field(0.5, ge=0, le=1, description="retrieval ratio of rule 'ratio' and of the random gate")
    max_loss: float = Field(0.05, gt=0, lt=1, description="rule 'max_loss': largest accuracy lost against All-RAG")
    delta: float = Field(0.1, gt=0, lt=1, description="rule 'max_loss': probability with which the promise may fail")
    thresholds: dict[str, float] = Field({}, description="rule 'given': gate: threshold; null: the stored ones")
    replace_thresholds: bool = Field(False, description="also replace calibrated thresholds")
    keep_thresholds: bool = Field(False, description="keep a stored threshold that another rule chose, as finish does")
    accuracy: AccuracyKind = Field("greedy", description="main figures from greedy answers, or expected (samples)")
    tau_mastery: float | None = Field(
        None, ge=0, le=1, description="mastery above which a question is known; as in the labels"
    )
    bootstrap_draws: int = Field(10_000, ge=100, description="resamples of the questions for the intervals")
    seed: int = Field(0, ge=0, lt=2**31, description="seed of the resamples")

    @model_validator(mode="after")
    def _keys_count(self) -> EndToEndConfig:
        check_counts(self, "threshold_rule", "given", "thresholds")
        check_counts(self, "threshold_rule", "max_loss", "max_loss", "delta")
        return self

    def writes(self) -> tuple[Path, ...]:
        return (self.results(), *([self.run / "outcomes.jsonl"] if self.yes_no == "with" else []))

    def results(self) -> Path:
        """The results' file: one of its own where questions are skipped."""
        return self.run / ("results.json" if self.yes_no == "with" else f"results_{self.yes_no}_yes_no.json")


def main(config: EndToEndConfig) -> None:
    started = time.monotonic()
    check_labelled(config.run / "labels.jsonl", config.sampling_run)
    first, labels = read_labels(config.run / "labels.jsonl")
    folder = read_run(config.run, config.sampling_run, config.allow_missing, yes_no=config.yes_no)
    dev, test = folder.dev, folder.test
    gates = gates_of_run(config, folder, labels)
    if config.threshold_rule == "given" and all(gate.given is None for gate in gates):
        raise UserError(
            "threshold rule 'given': no gate has a stored threshold; run eval/calibrate.py, or --thresholds"
        )
    check_sampled([folder], config.accuracy)
    if config.threshold_rule == "max_loss":
        warn_of_dependence(dev.questions)
    tau = first.tau_mastery if config.tau_mastery is None else config.tau_mastery
    alike = {name: getattr(config, name) for name in OF_SETTINGS}
    settings = Settings(tau_mastery=tau, rule=config.threshold_rule, kind=config.accuracy, **alike)
    clusters = clusters_of(config.resample, test.questions)
    gate_results, comparisons = evaluate(dev.outcomes, test.outcomes, gates, settings, clusters)
    meta = result_meta(folder, settings, started)
    meta |= {
        "resample": drawn_units(config.resample, test.questions),
        "yes_no": config.yes_no,
        "dev_entities_in_test": folder.dev_entities_in_test,
        "decided_by_rule": sum(utterance_kind(question.text) is not None for question in test.questions),
    }
    conditions = {condition: summarise(graded) for condition, graded in test.graded.items()}
    best = best_possible(test.outcomes, config.accuracy)
    results = Results(meta=meta, conditions=conditions, gates=gate_results, comparisons=comparisons, oracles=best)
    outcomes, target, all_questions = config.run / "outcomes.jsonl", config.results(), config.yes_no == "with"
    if all_questions:
        jsonl.write(outcomes, [*dev.outcomes, *test.outcomes])
    save(target, results)
    found = config.run / "evidence.jsonl"  # the retriever's own scores are rows, too
    inputs = [config.run / "labels.jsonl", *folder.files, *([found] if path_exists(found) else [])]
    rules = {"rules": rules_of(folder.questions), "cut": folder.cut}
    for path in (outcomes, target) if all_questions else (target,):
        write_meta(path, stage="end_to_end", config=config, inputs=inputs, extra=rules, started=started)
    # Thresholds chosen on a part of the questions would not hold for all of them: they are not noted.
    note_lines = note_chosen(config, folder, gates, gate_results, settings, clusters) if all_questions else []
    print(text_summary(results, [*folder.notes, *note_lines]))
    seconds = time.monotonic() - started
    print(f"evaluated {len(gate_results)} gates on {len(test.outcomes)} questions in {seconds:.0f} s -> {target}")


def gates_of_run(config: EndToEndConfig, folder: RunFolder, labels: Iterable[Label]) -> list[GateInput]:
    """The baselines and the scored gates in the report's order, with noted thresholds and training questions."""
    dev, test = folder.dev, folder.test
    trained = training_texts(folder.questions)
    evidence_file = config.run / "evidence.jsonl"
    evidence = jsonl.read(Evidence, evidence_file) if path_exists(evidence_file) else ()
    taught = [label for label in labels if label.split == "train" and label.question_id in trained]
    sources = {question.id: question.source for question in folder.questions if question.source}
    if "by_source" in folder.stored.by_gate:  # a gate of the run, scored like any other
        sources = {}
    gates = baselines(dev, test, taught, config.seed, trained, evidence, sources)
    gates += scored_gates(folder.stored, dev.ids, test.ids)
    gates = in_report_order(add_noted(gates, folder.stored, config.thresholds))
    kind = dev_kind(dev.outcomes, config.accuracy)
    training = training_of([gate.name for gate in gates], folder.stored, taught, trained, kind)
    return [replace(gate, train=training[gate.name]) for gate in gates]


def best_possible(outcomes: Sequence[Outcome], kind: AccuracyKind) -> Oracles:
    """The figures of gates that know the outcomes, by greedy or expected accuracy."""
    by_answer = answers(outcomes, kind)
    sampled = answers(outcomes, "expected") if has_expected(outcomes) else None
    return oracles(by_answer.llm, by_answer.rag, None if sampled is None else sampled.rag - sampled.llm)


def note_chosen(
    config: EndToEndConfig,
    folder: RunFolder,
    gates: Sequence[GateInput],
    gate_results: Sequence[GateResult],
    settings: Settings,
    clusters: tuple[str, ...] | None,
) -> list[str]:
    """Note the chosen thresholds, with their figures on test, in the gates' folders; what was done, in lines."""
    dev, test, stored = folder.dev, folder.test, folder.stored
    thresholds = {of.gate: (of.threshold, str(of.threshold_rule)) for of in gate_results if of.threshold is not None}
    scores = {gate: stored.by_gate[gate] for gate in thresholds if gate in stored.by_gate}
    options = SavingOptions(
        config.accuracy, seed=config.seed, clusters=clusters, settings=thresholds,
        after_search=stored.meta.get("after_search", {}), training={gate.name: gate.train for gate in gates},
        max_loss=config.max_loss, delta=config.delta, draws=config.bootstrap_draws,
    )  # fmt: skip
    figures = savings(dev.outcomes, test.outcomes, scores, options)
    replacing, keeping = config.replace_thresholds, config.keep_thresholds
    return note_thresholds(folder, gates, gate_results, settings, figures, replacing=replacing, keeping=keeping)


if __name__ == "__main__":
    run_script(main, EndToEndConfig, __doc__)
