"""Chains of stages: the demo on the atlas (``kbtrain demo``, ``make demo``), own questions, published and public ones.

questions -> evidence -> answers -> labels -> examples -> gates -> scores -> figures -> report. Each stage is a process
of its own and resumes where it was, so the whole chain does when it is started again. Gates that are fitted in
seconds come first: their table stands before the KBM's training begins.
"""

from __future__ import annotations

import itertools
import json
import math
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from kbtrain.errors import UserError
from kbtrain.io.provenance import meta_path
from kbtrain.models import embedded
from kbtrain.runtime.scripts import find, launch_command
from kbtrain.runtime.stage_process import ProcessResult, run_to_end

Size = Literal["tiny", "demo", "full"]
Say = Callable[[str], None]
MODEL = "smollm2-135m-instruct"
_ON_CPU = ("--device", "cpu")  # the demo's figures are those of a laptop
_GREEDY = 1.0  # weight of the greedy answers in the benefit of own questions, as in the demo
CLOSING = 7  # lines of the block that the report's stage ends with


@dataclass(frozen=True)
class ChainStep:
    """One stage; ``minutes``: about, on 2 cores. ``launch``: launch file of a training; ``later``: arguments that
    follow from the results of earlier stages.
    """

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

    def run(self) -> ProcessResult:
        return run_to_end(self.command())


@dataclass(frozen=True)
class _Scale:
    """Differences between the sizes; ``more``: script -> further arguments."""

    suffix: str
    epochs: int
    sampling: float
    training: float
    scoring: float
    more: dict[str, tuple[str, ...]]


_SCALES: dict[Size, _Scale] = {
    "tiny": _Scale(
        "_demo", 1, 0.2, 0.2, 0.1,
        {
            "collect": ("--train", "24", "--dev", "6", "--test", "6"),  # a probe needs 20
            # at temperature 1 no two of four answers agree: certainty would be 0 for all of so few questions
            "sample": (
                "--samples", "{train: 4, dev: 2, test: 0}", "--mask-questions", "{train: 1, dev: 0, test: 1}",
                "--max-new-tokens", "17", "--temperature", "0.3",
            ),
            "label": ("--tau-mastery", "middle", "--tau-certainty", "middle"),
        },
    ),
    "demo": _Scale("_demo", 1, 6, 3, 0.4, {}),
    "full": _Scale("_demo_full", 1, 25, 5, 0.5, {}),
}  # fmt: skip


def run_folder(size: Size) -> Path:
    """Run folder of the chain, relative to the current folder."""
    return Path("runs") / ("demo" if size == "demo" else f"demo-{size}")


def chain(size: Size = "demo") -> list[ChainStep]:
    """All stages in their order. The KBM reads every question once."""
    scale, run = _SCALES[size], run_folder(size)
    at_run = ("--run", str(run))
    data = ("--train", f"{run}/examples/train.jsonl", "--dev", f"{run}/examples/dev.jsonl")
    measured = [
        ChainStep("score", "every gate's score of every question", scale.scoring, ("--config", "score_demo", *at_run)),
        ChainStep("end_to_end", "accuracy against searches", 0.1, ("--config", "end_to_end_demo", *at_run)),
    ]
    steps = [
        ChainStep("collect", "questions of the atlas", 0.1, ("--config", f"collect{scale.suffix}", *at_run)),
        ChainStep("retrieve", "passages for each question", 0.1, ("--config", "retrieve_demo", *at_run)),
        ChainStep(
            "sample", "answers with and without them", scale.sampling, ("--config", f"sample{scale.suffix}", *at_run)
        ),
        ChainStep("label", "what the model masters", 0.1, ("--config", "label_demo", *at_run)),
        ChainStep("build", "training examples", 0.1, ("--config", "build_demo", *at_run)),
        ChainStep("train_probe", "a gate that reads the model's states", 0.2,
             ("--config", "probe_smollm2", "--states", f"{run}/states/llm", *data, "--output", f"{run}/probe")),
        ChainStep("train_probe", "one that reads on while the model begins its answer", 0.2,
             ("--config", "draft_probe_smollm2", "--states", f"{run}/states/draft", *data,
              "--output", f"{run}/draft_probe")),
        ChainStep("train_features", "a gate that reads how it is asked", 0.1,
             ("--config", "features_demo", *data, "--index", f"{run}/bm25", "--output", f"{run}/features")),
        ChainStep("score", "these gates' scores of every question", 2 * scale.scoring,
             ("--config", "score_demo", "--splits", "[train, dev, test]", "--only", "[probe, draft_probe, features]",
              *at_run)),
        ChainStep("train_stack", "all of them as one", 0.1,
             ("--config", "stack_demo", *at_run, *data, "--output", f"{run}/stack")),
        *measured,
        ChainStep("train_kbm", "a gate of its own weights", scale.training,
             ("--config", "kbm_smollm2", "--epochs", str(scale.epochs), *_ON_CPU, *data, "--output", f"{run}/kbm")),
        *(_double_judgement(run) if size == "full" else ()),
        *measured,
        ChainStep("classify", "precision and recall", 0.1, at_run),
        *(_figure_8(run) if size == "full" else ()),
        ChainStep("write_report", "the report", 0.1, at_run),
    ]  # fmt: skip
    return [replace(step, arguments=(*step.arguments, *scale.more.get(step.script, ()))) for step in steps]


def _double_judgement(run: Path) -> list[ChainStep]:
    """A second KBM, trained with and without passages: it can judge again when it has read what was found."""
    examples, at_run = run / "examples_double", ("--run", str(run))
    data = ("--train", f"{examples}/train.jsonl", "--dev", f"{examples}/dev.jsonl", "--output", f"{run}/kbm_double")
    config = ("--config", "kbm_smollm2", "--keys", "[mastery, certainty]", "--epochs", "1", *_ON_CPU)
    return [
        ChainStep("build", "training examples with passages", 0.1, ("--config", "build_double_judgement", *at_run)),
        ChainStep("train_kbm", "a gate that judges what was found, too", 12, (*config, *data)),
    ]


def _figure_8(run: Path) -> list[ChainStep]:
    at_run, tables = ("--run", str(run)), ("--runs", _folder_list(run), "--out", f"{run}/tables")
    return [
        ChainStep("score_reference", "the second judgement", 2, (*at_run, "--kbm", f"{run}/kbm_double")),
        ChainStep("tables", "double judgement", 0.1, ("--config", "figure8", *tables, *_BY_ENTITY)),
    ]


def own_chain(run: Path, prices: str | None = None) -> list[ChainStep]:
    """From sampled answers of one's own questions to a gate and its report, without a model: seconds on any machine.

    Without accepted answers the gate skips searches that change no answer. ``prices``: the report's price list.
    """
    at_run = ("--run", str(run))
    data = ("--train", f"{run}/examples/train.jsonl", "--dev", f"{run}/examples/dev.jsonl")
    # a search of the user's own leaves no index, and the gate reads the questions' form alone
    index = ("--index", f"{run}/bm25") if (run / "bm25").exists() else ()
    if without_gold(run):
        keys: Callable[[], tuple[str, ...]] = lambda: ("--keys", "[change]")  # noqa: E731
        targets = keys
        label = ChainStep(
            "label", "what passages change", 0.1, (*at_run, "--tau-change", "middle"),
            later=lambda: ("--by", "greedy") if greedy_only(run) else ("--tau-certainty", "middle"),
        )  # fmt: skip
        figures = ChainStep(
            "fidelity", "searches skipped against answers that differ", 0.1, at_run,
            later=lambda: ("--max-change", f"{attainable_change(run):g}"),
        )  # fmt: skip
    else:
        keys = lambda: ("--keys", "[mastery]" if benefit_tau(run) is None else "[mastery, benefit]")  # noqa: E731

        def targets() -> tuple[str, ...]:
            # benefit says more of whether a search pays (docs/lab/demo.md); not all models' answers differ with
            # passages
            tau = benefit_tau(run)
            of_benefit = ("--benefit-greedy", f"{_GREEDY:g}", "--benefit-tail", "0.05", "--tau-benefit", repr(tau))
            return (*keys(), *(() if tau is None else of_benefit))

        halves = ("--tau-mastery", "middle", "--tau-certainty", "middle")
        one_each = ("--tau-mastery", "middle", "--by", "greedy")  # one answer has no certainty
        label = ChainStep(
            "label", "what the model masters", 0.1, at_run, later=lambda: one_each if greedy_only(run) else halves
        )
        figures = ChainStep(
            "end_to_end", "accuracy against searches", 0.1, (*at_run, "--threshold-rule", "best_accuracy")
        )
    gate = (*data, *index, "--output", f"{run}/features")
    return [
        label,
        ChainStep("build", "training examples", 0.1, at_run, later=targets),
        ChainStep("train_features", "a gate from the questions' form and words", 0.1, gate, later=keys),
        ChainStep("score", "every gate's score of every question", 0.1, at_run),
        figures,
        ChainStep("write_report", "the report", 0.1, (*at_run, *(("--prices", prices) if prices else ()))),
    ]


def check_answered(run: Path) -> None:
    """Raise :class:`UserError` for too few answered questions without gold, before a stage leaves a gate behind."""
    if not without_gold(run):
        return
    from kbtrain.evaluation.fidelity import read_changes
    from kbtrain.io import jsonl
    from kbtrain.questions.collect import lacking_for_change
    from kbtrain.records import Question

    path = run / "questions.jsonl"
    train = sum(question.split == "train" for question in jsonl.read(Question, path))
    changes = read_changes(run)
    if few := lacking_for_change({"train": train, "dev": len(changes["dev"].questions)}):
        raise UserError(f"{path}: {few}; collect and sample more (kbtrain run collect)")
    differ = [differs for split in changes.values() for differs in split.differ]
    check_changes(run, len(differ), any(differ))


def check_passages(run: Path) -> list[str]:
    """A warning where many questions have no passages.

    Raises :class:`UserError` where none has any, and where all answers are the same with and without passages: a gate
    of such answers skips every search.
    """
    from kbtrain.io import jsonl
    from kbtrain.io.store import SampleStore
    from kbtrain.records import Evidence
    from kbtrain.retrieval.retrieve_stage import missing_hits

    with_hits = [bool(evidence.hits) for evidence in jsonl.read(Evidence, run / "evidence.jsonl")]
    lines = missing_hits(len(with_hits), with_hits.count(False))
    with SampleStore(run / "samples.db", read_only=True) as store:
        stored = itertools.groupby(store.iterate("main"), key=lambda answers: answers.question_id)
        texts = (
            {answers.condition: answers.greedy and answers.greedy.text for answers in group} for _, group in stored
        )
        both = [pair for pair in texts if pair.get("llm") is not None and pair.get("rag") is not None]
    check_changes(run, len(both), any(pair["llm"] != pair["rag"] for pair in both))
    return lines


def check_changes(run: Path, n: int, differ: bool) -> None:
    """Raise :class:`UserError` where passages change none of ``n`` answers."""
    if n and not differ:
        raise UserError(
            f"{run / 'samples.db'}: {n} questions have the same answer with and without passages, and none has two; "
            "check that the prompt shows the passages and that the model reads them"
        )


def without_gold(run: Path) -> bool:
    """True where no question of some split has an accepted answer: nothing can be called right there."""
    from kbtrain.io import jsonl
    from kbtrain.records import Question

    path = run / "questions.jsonl"
    questions = list(jsonl.read(Question, path)) if path.exists() else []
    return len({q.split for q in questions if q.answers}) < len({q.split for q in questions})


def attainable_change(run: Path) -> float:
    """The share of answers that may differ: the smallest that so few dev questions can promise, at least 5 %."""
    from kbtrain.evaluation.fidelity import read_changes
    from kbtrain.questions.collect import LEAST_DEV

    n = len(read_changes(run)["dev"].questions)
    return min((share for share, least in LEAST_DEV.items() if n >= least), default=max(LEAST_DEV))


def greedy_only(run: Path) -> bool:
    """True where no question has two sampled answers: imported answers, or a sampling of greedy ones alone."""
    from kbtrain.io.store import SampleStore

    with SampleStore(run / "samples.db", read_only=True) as store:
        return max(store.set_sizes("main"), default=0) < 2


def benefit_tau(run: Path) -> float | None:
    """Benefit above which a search counts as helpful: 0, or the middle of the range where all training questions lie
    on one side of it. None where benefit cannot be learnt: it is missing in train or dev, or has one value.
    """
    from kbtrain.io import jsonl
    from kbtrain.labeling.examples import BenefitTarget
    from kbtrain.records import Label

    path, target = run / "labels.jsonl", BenefitTarget(greedy=_GREEDY)
    labels = list(jsonl.read(Label, path)) if path.exists() else []
    by_split = {split: [target.gain(label) for label in labels if label.split == split] for split in ("train", "dev")}
    gains, in_dev = ([gain for gain in by_split[split] if gain is not None] for split in ("train", "dev"))
    if not gains or not in_dev or min(gains) == max(gains):
        return None
    return 0.0 if min(gains) <= 0 < max(gains) else (min(gains) + max(gains)) / 2


def finish_own(run: Path, say: Say, prices: str | None = None) -> None:
    """Run :func:`own_chain`. Raises :class:`UserError` for a run folder without what it needs, with the command."""
    if not run.is_dir():
        beside = sorted(path.parent.name for path in run.parent.glob("*/questions.jsonl"))
        others = f"; run folders in {run.parent}: {', '.join(beside)}" if beside else ""
        raise UserError(f"{run}: no such folder{others}")
    for name, stage in (("questions.jsonl", "collect"), ("evidence.jsonl", "retrieve"), ("samples.db", "sample")):
        if not (run / name).exists():
            model = " --config server.yaml (from kbtrain check-server)" if stage == "sample" else ""
            raise UserError(
                f"{run / name}: missing; run first: kbtrain run {stage} --run {shlex.quote(str(run))}{model}"
            )
    if not meta_path(run / "samples.db").exists():  # written by the last answer
        raise UserError(
            f"{run / 'samples.db'}: not all answers are in it; give the command that began it again: kbtrain run "
            f"sample --run {shlex.quote(str(run))} with its --config or --model{_answers_stored(run)}"
        )
    warned = check_passages(run)
    check_answered(run)
    follow(own_chain(run, prices), run, say)
    sys.stdout.write("".join(f"{line}\n" for line in warned))


def _answers_stored(run: Path) -> str:
    """Number of question-conditions in a run's store and the model of their answers, in brackets."""
    from kbtrain.io.store import SampleStore

    with SampleStore(run / "samples.db", read_only=True) as store:
        if "main" not in store.runs():
            return ""
        n, model = sum(store.counts("main").values()), store.run_meta("main").get("model")
    return f" ({n} question-conditions of {model} are stored)"


def run_demo(size: Size, say: Say) -> None:
    """Run the chain in the current folder. Raises :class:`UserError`, or SystemExit where a stage failed.

    Of each stage its bar and its last line are shown; ``chain.log`` of the run folder has its whole output. The last
    stage's closing block is shown whole.
    """
    embedded.path_of(MODEL, say)
    follow(chain(size), run_folder(size), say)


_PUBLIC = {  # run folder -> (data set, its file in the folder of data)
    "openbookqa": ("commonsense", "openbookqa_test_nonnative.json"),
    "mmlu": ("mmlu", "mmlu.zip"),
    "popqa": ("popqa", "popqa.json"),
    "squad": ("squad", "squad2.dev-v2.0.json"),
    "nq": ("nq_open", "nq-open-oracle_gold_passage.jsonl.gz"),
    "hotpotqa": ("hotpotqa", "hotpot_dev_v1_simplified.json"),
}
_CHINESE = {
    "squad_zh": ("squad_zh", "squad-zh.dev-v1.1.json"),
    "ceval": ("ceval", "ceval.zip"),
    "xiezhi": ("xiezhi", "xiezhi_train_chn.v1.1.json"),
}
_BY_ENTITY = ("--resample", "entities")  # as the evaluation's intervals
_TABLED = (
    "[kbm_mastery, kbm_certainty, kbm_benefit, probe_benefit, draft_probe_benefit, stack_benefit, p_yes, draft_margin, "
    "seakr, prompt]"
)


@dataclass(frozen=True)
class PublicRun:
    """A run of white-box gates on public questions of which ``model`` knows 15 % (docs/lab/public.md).

    ``data``: the folder of their files. ``answers``: to each training question under each condition; a third of them
    to each dev question. ``prompts``: own templates as at sampling. ``yes_no`` False: no question whose gold answer is
    yes or no.
    """

    data: Path
    run: Path
    model: str
    chinese: bool
    answers: int = 30
    prompts: str | None = None
    yes_no: bool = True

    def sets(self) -> dict[str, tuple[str, str]]:
        """By the folder's name each data set's name and file."""
        return {**_PUBLIC, **(_CHINESE if self.chinese else {})}


def public_chain(public: PublicRun) -> list[ChainStep]:
    """The stages. The data sets' own folders are beside the run's folder, the screening is in its folder ``screen``."""
    data, run, chinese, answers = public.data, public.run, public.chinese, public.answers
    sets, screen, at_run = public.sets(), run / "screen", ("--run", str(run))
    pool = ("--config", "pool_public" if chinese else "pool_public_en",
            "--runs", _folder_list(*(run.parent / name for name in sets)),
            *(() if public.yes_no else ("--yes-no", "without")))  # fmt: skip
    corpus = ("--corpus", str(data / "passages.jsonl"), "--k", "1")
    model, screened = ("--model", public.model), ("--run", str(screen), "--conditions", "[llm]")
    put = (*model, *(("--prompts", public.prompts) if public.prompts else ()))  # stages that render prompts
    examples = ("--train", f"{run}/examples/train.jsonl", "--dev", f"{run}/examples/dev.jsonl")
    members = "[probe, draft_probe, features, p_yes, draft]"
    measured = [
        ChainStep("score", "every gate's score of every question", 15, (*at_run, *model)),
        ChainStep("end_to_end", "accuracy against searches", 0.2, ("--config", "end_to_end_public", *at_run)),
    ]
    return [
        *(ChainStep("collect", f"questions of {name}", 0.1,
               ("--run", str(run.parent / name), "--dataset", dataset, "--path", str(data / file), "--pick", "random",
                "--impossible", "drop", "--near-duplicates", "ignore")) for name, (dataset, file) in sets.items()),
        ChainStep("pool", "training questions of each group, to see which ones the model knows", 0.1,
             (*pool, "--output", str(screen), "--train", "550" if chinese else "350", "--dev", "0", "--test", "0")),
        ChainStep("retrieve", "a passage for each", 0.5, ("--run", str(screen), *corpus)),
        ChainStep("sample", "one answer to each", 3,
             (*screened, *put, "--samples", "{train: 0, dev: 0, test: 0}", "--max-new-tokens", "32")),
        ChainStep("pool", "questions of the groups it knows", 0.1,
             (*pool, "--output", str(run), "--screened", str(screen))),
        ChainStep("retrieve", "a passage for each", 0.5, (*at_run, *corpus)),
        ChainStep("sample", "answers with and without it", 10 + 50 * answers / 30,
             ("--config", "sample_public", *at_run, *put,
              "--samples", f"{{train: {answers}, dev: {max(2, math.ceil(answers / 3))}, test: 0}}")),
        ChainStep("label", "what the model masters", 0.1, ("--config", "label_demo", *at_run)),
        ChainStep("build", "training examples", 0.1, ("--config", "build_demo", *at_run, "--on-leak", "drop")),
        ChainStep("train_probe", "a gate that reads the model's states", 0.3,
             ("--config", "probe_smollm2", *model, "--states", f"{run}/states/llm", *examples,
              "--output", f"{run}/probe")),
        ChainStep("train_probe", "a gate that reads the states of its draft, too", 0.5,
             ("--config", "draft_probe_smollm2", *model, "--states", f"{run}/states/draft", *examples,
              "--output", f"{run}/draft_probe")),
        ChainStep("train_features", "a gate that reads how it is asked", 0.1,
             ("--config", "features_demo", *examples, "--index", f"{run}/bm25", "--output", f"{run}/features")),
        ChainStep("make_untrained", "gates without training", 0.1, (*put, "--output", str(run))),
        ChainStep("score", "their scores of every question", 8,
             (*at_run, *model, "--splits", "[train, dev, test]", "--only", members)),
        ChainStep("train_stack", "all five as one", 0.1,
             (*at_run, "--members", members, *examples, "--output", f"{run}/stack")),
        *measured,
        ChainStep("train_kbm", "a gate of its own weights", 10,
             ("--config", "kbm_smollm2", *model, "--epochs", "1", *examples, "--output", f"{run}/kbm"), launch="cpu"),
        ChainStep("make_seakr", "the scale of the model's uncertainty", 2,
             ("--config", "seakr_smollm2", *put, "--questions", f"{run}/questions.jsonl",
              "--output", f"{run}/seakr")),
        *measured,
        ChainStep("end_to_end", "the same without questions of yes or no", 0.2,
             ("--config", "end_to_end_public", *at_run, "--yes-no", "without")),
        ChainStep("compare_scores", "which answers will be wrong", 0.1,
             (*at_run, "--reference", "stack_mastery", *_BY_ENTITY)),
        ChainStep("analyse", "figures 1 to 3 by data set", 0.3, ("--runs", _folder_list(run))),
        ChainStep("tables", "table 1 by data set", 0.1,
             ("--layout", "table1", "--runs", _folder_list(run), "--gates", _TABLED, "--threshold-rule", "ratio",
              "--out", f"{run}/tables", *_BY_ENTITY)),
        ChainStep("cost", "money and seconds", 0.1, at_run),
        ChainStep("write_report", "the report", 0.1, at_run),
    ]  # fmt: skip


def _folder_list(*runs: Path) -> str:
    return json.dumps([str(run) for run in runs], ensure_ascii=False)


def run_public(public: PublicRun, say: Say) -> None:
    """Run :func:`public_chain`. Raises :class:`UserError` for a folder without its files."""
    for name in (*(file for _, file in public.sets().values()), "passages.jsonl"):
        if not (public.data / name).exists():
            raise UserError(f"{public.data / name}: not there; docs/lab/public.md says where each file comes from")
    follow(public_chain(public), public.run, say)


def follow(
    steps: Sequence[ChainStep],
    run: Path,
    say: Say,
    result: str = "report.html",
    closing: Callable[[Path], list[str]] | None = None,
) -> None:
    """Run the steps one after the other, as described at :func:`run_demo`.

    ``closing``: the last lines, of the file ``result``; else the last ones of the last step.
    """
    started = time.monotonic()
    say(f"{len(steps)} stages, {_about(sum(step.minutes for step in steps))} on 2 cores -> {run.resolve()}")
    run.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    with (run / "chain.log").open("w", encoding="utf-8") as log:
        for number, step in enumerate(steps, 1):
            say(f"[{number}/{len(steps)}] {step.script}: {step.does} ({_about(step.minutes)})")
            process = step.run()
            log.write(f"[{number}/{len(steps)}] {step.script}\n{process.output}")
            log.flush()
            lines = process.output.splitlines()
            if process.code != 0:  # the stage has reported its error
                sys.stdout.write(process.output)
                raise SystemExit(process.code if process.code > 0 else 128 - process.code)
            if number < len(steps) or closing:
                say("\n".join(f"       {line}" for line in lines[-1:]))
    report = (run / result).resolve()
    if not report.is_file():
        raise UserError(f"{report}: not written")
    say(f"done in {(time.monotonic() - started) / 60:.0f} minutes; all that the stages wrote: {run / 'chain.log'}")
    sys.stdout.write("\n".join(closing(report) if closing else lines[-CLOSING:]) + "\n")
    sys.stdout.flush()


def _about(minutes: float) -> str:
    return f"about {minutes:.0f} minutes" if minutes >= 1.5 else "about a minute" if minutes >= 0.75 else "seconds"
