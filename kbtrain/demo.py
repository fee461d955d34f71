"""Chains of stages: the demo on the atlas (``kbtrain demo``, ``make demo``), own questions and studies.

questions -> evidence -> answers -> labels -> examples -> gates -> scores -> figures -> report. Each stage is a process
of its own and resumes where it was, so the whole chain does when it is started again. Gates that are fitted in
seconds come first: their table is printed before the KBM's training begins.
"""

from __future__ import annotations

import itertools
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kbtrain.errors import UserError, at
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import meta_of, meta_path
from kbtrain.io.store import SampleStore
from kbtrain.models import embedded
from kbtrain.questions.base import NO_GOLD
from kbtrain.records import Evidence, Label, Question
from kbtrain.runtime.scripts import find, launch_command
from kbtrain.runtime.stage_process import run_to_end
from kbtrain.show import count_of

Size = Literal["tiny", "demo", "full"]
Say = Callable[[str], None]
MODEL = "smollm2-135m-instruct"
FEATURES = "features"
_GREEDY = 1.0  # weight of the greedy answers in the benefit of own questions, as in the demo
CLOSING = 7  # lines of the block that the report's stage ends with


@dataclass(frozen=True)
class ChainStep:
    """One stage; ``minutes``: about, on 2 cores with AVX-512 BF16. ``launch``: launch file of a training; ``later``:
    arguments that follow from the results of earlier stages."""

    script: str
    does: str
    minutes: float
    arguments: tuple[str, ...]
    launch: str | None = None
    later: Callable[[], tuple[str, ...]] | None = None

    def command(self) -> list[str]:
        script = find(self.script, "stages", "recipes", what="script")
        arguments = (*self.arguments, *(self.later() if self.later else ()))
        if self.launch:
            return launch_command(script, find(self.launch, "launch", what="launch file"), arguments)
        return [sys.executable, str(script), *arguments]

    def run(self) -> tuple[int, str]:
        return run_to_end(self.command())


def chain_step(
    script: str, does: str, minutes: float, later: Callable[[], tuple[str, ...]] | None = None, /, **keys: object
) -> ChainStep:
    """A stage with the keys of its script; None is skipped."""
    pairs = ((f"--{key.replace('_', '-')}", str(value)) for key, value in keys.items() if value is not None)
    return ChainStep(script, does, minutes, tuple(itertools.chain.from_iterable(pairs)), later=later)


# Size -> suffix of the configurations, minutes of sampling, training and scoring, and a script's further keys.
_SCALES: dict[Size, tuple[str, float, float, float, dict[str, dict[str, object]]]] = {
    "tiny": (
        "_demo", 0.2, 0.2, 0.1,
        {
            "collect": {"train": 24, "dev": 6, "test": 6},  # a probe needs 20
            # at temperature 1 no two of four answers agree: certainty would be 0 for all of so few questions
            "sample": {"samples": "{train: 4, dev: 2, test: 0}", "mask_questions": "{train: 1, dev: 0, test: 1}",
                       "max_new_tokens": 17, "temperature": 0.3},
            "end_to_end": {"max_loss": 0.8},  # what two dev questions with verdicts can promise
            "label": {"tau_mastery": "middle", "tau_certainty": "middle"},
        },
    ),
    "demo": ("_demo", 6, 3, 0.4, {}),
    "full": ("_demo_full", 25, 5, 0.5, {}),
}  # fmt: skip


def run_folder(size: Size) -> Path:
    """Run folder of the chain, relative to the current folder."""
    return Path("runs") / ("demo" if size == "demo" else f"demo-{size}")


def _examples(folder: Path) -> dict[str, Path]:
    return {"train": folder / "train.jsonl", "dev": folder / "dev.jsonl"}


def chain(size: Size = "demo") -> list[ChainStep]:
    """All stages in their order. The KBM reads every question once."""
    (suffix, sampling, training, scoring, more), run = _SCALES[size], run_folder(size)
    data, double, tabled = _examples(run / "examples"), list[ChainStep](), list[ChainStep]()
    measured = [
        chain_step("score", "every gate's score of every question", scoring, config="score_demo", run=run),
        chain_step("end_to_end", "accuracy against searches", 0.1, run=run, config="end_to_end_demo",
                   **more.get("end_to_end", {})),
    ]  # fmt: skip
    kbm = {"config": "kbm_smollm2", "epochs": 1, "device": "cpu"}  # the demo's figures are those of a laptop
    if size == "full":  # a second KBM, trained with and without passages: it can judge what was found
        double = [
            chain_step("build", "training examples with passages", 0.1, config="build_double_judgement", run=run),
            chain_step("train_kbm", "a gate that also judges the passages", 12, **kbm, keys="[mastery, certainty]",
                       **_examples(run / "examples_double"), output=run / "kbm_double"),
        ]  # fmt: skip
        tabled = [
            chain_step("score_reference", "the second judgement", 2, run=run, kbm=run / "kbm_double"),
            chain_step("double_judgement", "a second judgement with the passages", 0.1, run=run, resample="entities",
                       config="kbm_double_judgement"),
        ]  # fmt: skip
    return [
        chain_step("collect", "questions of the atlas", 0.1, config=f"collect{suffix}", run=run,
                   **more.get("collect", {})),
        chain_step("retrieve", "passages for each question", 0.1, config="retrieve_demo", run=run),
        chain_step("pilot", "which number of passages gives most right answers", 1, config="pilot_demo", run=run),
        chain_step("sample", "answers with and without them", sampling, config=f"sample{suffix}", run=run,
                   **more.get("sample", {})),
        chain_step("label", "what the model masters", 0.1, config="label_demo", run=run, **more.get("label", {})),
        chain_step("build", "training examples", 0.1, config="build_demo", run=run),
        chain_step("train_probe", "a gate that reads the model's hidden states", 0.2, config="probe_smollm2",
                   states=run / "states/llm", **data, output=run / "probe"),
        chain_step("train_probe", "the same, also on the beginning of the answer", 0.2,
                   config="draft_probe_smollm2", states=run / "states/draft", **data, output=run / "draft_probe"),
        chain_step("train_features", "a gate that reads the form of the question", 0.1, config="features_demo", **data,
                   index=run / "bm25", output=run / "features"),
        chain_step("score", "these gates' scores of every question", 2 * scoring, config="score_demo",
                   splits="[train, dev, test]", only="[probe, draft_probe, features]", run=run),
        chain_step("train_stack", "all of them as one", 0.1, config="stack_demo", run=run, **data,
                   output=run / "stack"),
        *(measured if size != "tiny" else []),  # a table that is printed before the KBM's training begins
        chain_step("train_kbm", "a fine-tuned model as a gate", training, **kbm, **data, output=run / "kbm"),
        *double,
        *measured,
        chain_step("classify", "precision and recall", 0.1, run=run),
        *tabled,
        *report_steps(run),
    ]  # fmt: skip


def own_chain(run: Path, prices: str | None = None, gate: str = FEATURES) -> list[ChainStep]:
    """From sampled answers of one's own questions to a gate and its report, without a model: seconds on any machine.

    ``prices``: the report's price list; ``gate``: one that can be fitted to examples, beside ``features``.
    """
    data = _examples(run / "examples")
    # a search of the user's own leaves no index, and the gate reads the questions' form alone
    index = run / "bm25" if (run / "bm25").exists() else None

    def keys() -> tuple[str, ...]:
        learnt = ["mastery"] * _mastery_varies(run) + ["benefit"] * (benefit_tau(run) is not None)
        if not learnt:
            raise UserError(f"{at(run)}: mastery and benefit are missing or the same for all training questions")
        return ("--keys", f"[{', '.join(learnt)}]")

    def targets() -> tuple[str, ...]:
        # benefit says more of whether a search pays (studies/notes/demo.md); some models answer alike with passages
        if (tau := benefit_tau(run)) is None:
            return keys()
        return (*keys(), "--benefit-greedy", f"{_GREEDY:g}", "--benefit-tail", "0.05", "--tau-benefit", repr(tau))

    def halves() -> tuple[str, ...]:
        by = ("--by", "greedy") if greedy_only(run) else ("--tau-certainty", "middle")  # one answer has no certainty
        return (*by, "--verdicts") if path_exists(run / "verdicts.jsonl") else by

    return [
        chain_step("label", "what the model masters", 0.1, halves, run=run, tau_mastery="middle"),
        chain_step("build", "training examples", 0.1, targets, run=run, on_leak="drop"),
        chain_step("train_features", "a gate from the questions' form and words", 0.1, keys, **data, index=index,
                   output=run / "features"),
        *([] if gate == FEATURES else [chain_step("fit_gate", f"gate {gate}", 1, gate=gate, run=run)]),
        chain_step("score", "every gate's score of every question", 0.1, run=run),
        chain_step("end_to_end", "accuracy against searches", 0.1, run=run, threshold_rule="best_accuracy",
                   keep_thresholds="true"),
        *report_steps(run, prices),
    ]  # fmt: skip


def report_steps(run: Path, prices: str | None = None) -> list[ChainStep]:
    """The report; before it the bill again, if a run has one, by its price list: new results are another's."""
    billed = meta_of(run / "cost.json").get("config", {}).get("prices")
    again = [chain_step("cost", "what it costs", 0.1, run=run, prices=prices or billed)] if billed else []
    return [*again, chain_step("write_report", "the report", 0.1, run=run, prices=prices)]


def check_gold(path: Path) -> None:
    """Raise :class:`UserError` where no question of some split has a reference answer."""
    splits, with_gold = set[str](), set[str]()
    for question in jsonl.read(Question, path):
        splits.add(question.split)
        with_gold |= {question.split} if question.answers else set()
    if lacking := sorted(splits - with_gold):
        raise UserError(
            f"{path}: no reference answers in {', '.join(lacking)}, so no answer there can be graded; {NO_GOLD}"
        )


def check_passages(run: Path) -> list[str]:
    """A warning where many questions have no passages.

    Raises :class:`UserError` where none has any, and where all answers are the same with and without passages: no
    search can help there.
    """
    from kbtrain.retrieval.retrieve_stage import missing_hits

    lines: list[str] = []
    if path_exists(run / "evidence.jsonl"):  # imported answers may come without their passages
        with_hits = [bool(evidence.hits) for evidence in jsonl.read(Evidence, run / "evidence.jsonl")]
        web = bool(meta_of(run / "evidence.jsonl").get("config", {}).get("web"))
        lines = missing_hits(len(with_hits), with_hits.count(False), web)
    with SampleStore(run / "samples.db", read_only=True) as store:
        stored = itertools.groupby(store.iterate("main"), key=lambda answers: answers.question_id)
        texts = (
            {answers.condition: answers.greedy and answers.greedy.text for answers in group} for _, group in stored
        )
        both = [pair for pair in texts if pair.get("llm") is not None and pair.get("rag") is not None]
    if both and all(pair["llm"] == pair["rag"] for pair in both):
        shown = "check that the prompt shows the passages and that the model reads them"
        shown = "both columns hold the same text; name the two columns by --answers" if imported(run) else shown
        same = f"{len(both)} questions have the same answer with and without passages, and none has two"
        raise UserError(f"{run / 'samples.db'}: {same}; {shown}")
    return lines


def greedy_only(run: Path) -> bool:
    """True where no question has two sampled answers: imported answers, or a sampling of greedy ones alone."""
    with SampleStore(run / "samples.db", read_only=True) as store:
        return max(store.set_sizes("main"), default=0) < 2


def benefit_tau(run: Path) -> float | None:
    """Benefit above which a search counts as helpful: 0, or the middle of the range where all training questions lie
    on one side of it. None where benefit cannot be learnt: it is missing in train or dev, or has one value."""
    from kbtrain.labeling.examples import BenefitTarget

    path, target = run / "labels.jsonl", BenefitTarget(greedy=_GREEDY)
    labels = list(jsonl.read(Label, path)) if path.exists() else []
    known = [(label.split, gain) for label in labels if (gain := target.gain(label)) is not None]
    gains, in_dev = ([gain for split, gain in known if split == wanted] for wanted in ("train", "dev"))
    if not gains or not in_dev or min(gains) == max(gains):
        return None
    return 0.0 if min(gains) <= 0 < max(gains) else (min(gains) + max(gains)) / 2


def _mastery_varies(run: Path) -> bool:
    labels = jsonl.read(Label, run / "labels.jsonl") if path_exists(run / "labels.jsonl") else ()
    return len({label.llm.mastery for label in labels if label.split == "train"}) != 1


def finish_own(run: Path, say: Say, prices: str | None = None, gate: str = FEATURES) -> None:
    """Run :func:`own_chain`. Raises :class:`UserError` for a run folder without what it needs, with the command."""
    if not run.is_dir():
        beside = sorted(path.parent.name for path in run.parent.glob("*/questions.jsonl"))
        others = f"; run folders in {run.parent}: {', '.join(beside)}" if beside else ""
        raise UserError(f"{run}: no such folder{others}")
    for name, stage in (("questions.jsonl", "collect"), ("evidence.jsonl", "retrieve"), ("samples.db", "sample")):
        if not (run / name).exists() and not (stage == "retrieve" and imported(run)):
            model = " --config server.yaml (from kbtrain check-server)" if stage == "sample" else ""
            raise UserError(
                f"{run / name}: missing; run first: kbtrain run {stage} --run {shlex.quote(str(run))}{model}"
            )
    if not meta_path(run / "samples.db").exists():  # written by the last answer
        raise UserError(
            f"{run / 'samples.db'}: some answers are missing in it; repeat the command that began it: kbtrain run "
            f"sample --run {shlex.quote(str(run))} with its --config or --model"
        )
    warned = check_passages(run)
    check_gold(run / "questions.jsonl")
    follow(own_chain(run, prices, gate), run, say)
    sys.stdout.write("".join(f"{line}\n" for line in warned))


def imported(run: Path) -> bool:
    return meta_of(run / "samples.db").get("stage") == "import_answers"


def run_demo(size: Size, say: Say) -> None:
    """Run the chain in the current folder. Raises :class:`UserError`, or SystemExit where a stage failed.

    Of each stage its bar, its warnings and its last line are shown; ``chain.log`` of the run folder has its whole
    output. The last stage's closing block is shown whole.
    """
    embedded.path_of(MODEL, say)
    follow(chain(size), run_folder(size), say)


def follow(
    steps: Sequence[ChainStep],
    run: Path,
    say: Say,
    result: str = "report.html",
    closing: Callable[[Path], list[str]] | None = None,
) -> None:
    """Run the steps one after the other, as described at :func:`run_demo`.

    ``closing``: the last lines, of the file ``result``; else the last ones of the last step. A run folder's chains
    share ``chain.log``. The minutes shown follow the pace of the last long stage.
    """
    started, pace = time.monotonic(), 1.0
    say(f"{count_of(len(steps), 'stage')}, {_about(sum(step.minutes for step in steps))} -> {run.resolve()}")
    run.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    with (run / "chain.log").open("a", encoding="utf-8") as log:
        for number, step in enumerate(steps, 1):
            say(f"[{number}/{len(steps)}] {step.script}: {step.does} ({_about(pace * step.minutes)})")
            begun = time.monotonic()
            code, output = step.run()
            spent = (time.monotonic() - begun) / 60
            if step.minutes >= 0.75 and spent > step.minutes / 2:  # a stage that was done before says nothing
                pace = spent / step.minutes
            log.write(f"[{number}/{len(steps)}] {step.script}\n{output}")
            log.flush()
            lines = output.splitlines()
            if code != 0:  # the stage has reported its error
                sys.stdout.write(output)
                raise SystemExit(code if code > 0 else 128 - code)
            if number < len(steps) or closing:
                warned = [line for line in lines[:-1] if line.startswith("warning: ")]
                say("\n".join(f"       {line}" for line in (*warned, *lines[-1:])))
    if not (report := (run / result).resolve()).is_file():
        raise UserError(f"{report}: not written")
    passed = _about((time.monotonic() - started) / 60).removeprefix("about ")
    say(f"done in {passed}; the stages' output: {run / 'chain.log'}")
    sys.stdout.write("".join(f"{line}\n" for line in (closing(report) if closing else lines[-CLOSING:])))
    sys.stdout.flush()


def _about(minutes: float) -> str:
    return f"about {minutes:.0f} minutes" if minutes >= 1.5 else "about a minute" if minutes >= 0.75 else "seconds"
