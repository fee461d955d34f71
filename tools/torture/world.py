"""A small world on which every script of the project ends well: its files, and a command for each script.

The files are made by the library in seconds: a run folder with made-up answers, dialogues, tiny random models. What
one script reads of another's is made by that other's command (:attr:`Sound.after`).
"""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from support import scripts
from tiny_kbm import make_folder
from tiny_turns import bert_folder, snippets, turn

from kbtrain.io import jsonl
from kbtrain.labeling.examples import example
from kbtrain.rag.seakr_traces import Spent, Trace
from kbtrain.records import Entity, Evidence, Hit, Label, Passage, Question, TurnExample

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("data_gen", "recipes", "eval")
SERVER = "http://server.invalid/v1"  # stands for the address of a server, in commands and in files of the world
TINY = ("--dtype", "fp32", "--device", "cpu")
TINY_WORDS = " ".join(TINY)
DATA = "--train qa/examples/train.jsonl --dev qa/examples/dev.jsonl"
KEYS = "--keys '[mastery, benefit]'"  # of which the made-up labels have both classes
MODEL = f"--model model {TINY_WORDS}"
TRAINED = f"{MODEL} {DATA} --output out {KEYS}"
TURNS = "--train turns/turns.jsonl --dev turns/turns.jsonl --output out"
FEW = "--bootstrap-draws 100"


@dataclass(frozen=True)
class Sound:
    """A command that ends well in the world. ``after``: scripts whose commands come first."""

    argv: tuple[str, ...]
    after: tuple[str, ...] = ()


def _sound(words: str, *after: str) -> Sound:
    return Sound(tuple(shlex.split(words)), after)


MORE = {
    name: (script, tuple(shlex.split(words)))
    for name, script, words in (
        ("candidates", "data_gen/retrieve.py", "--run qa2 --k 2 --pilot true"),
        ("draft", "recipes/make_draft.py", f"{MODEL} --output qa/draft"),
        ("features", "recipes/train_features.py", f"{DATA} --index qa/bm25 --output qa/features {KEYS}"),
        ("scores", "eval/score.py", f"--run qa --only '[features, draft]' --splits '[train, dev]' {TINY_WORDS}"),
    )
}
RETRIEVED, SCORED = "data_gen/retrieve.py", "eval/end_to_end.py"
CONFIGS = {name: ROOT / name / "configs" for name in FOLDERS}

COMMANDS: dict[str, Sound] = {
    "data_gen/build.py": _sound(f"--run qa {KEYS}"),
    "data_gen/collect.py": _sound("--run new --dataset jsonl --path own.jsonl --shares .5,.25,.25"),
    "data_gen/collect_turns.py": _sound("--run new --dataset jsonl --path told/turns.jsonl"),
    "data_gen/embed.py": _sound(f"--run qa --server-url {SERVER} --server-model e --server-timeout 3"),
    "data_gen/export.py": _sound("--store qa/samples.db --output samples.jsonl"),
    "data_gen/import_answers.py": _sound(
        f"--config {CONFIGS['data_gen'] / 'import_llama3.yaml'} --run new --path answers.jsonl"
    ),
    "data_gen/join.py": _sound("--runs '[qa, qa2]' --output joined"),
    "data_gen/judge.py": _sound("--run qa --judge rules"),
    "data_gen/label.py": _sound("--run qa --tau-mastery .2 --tau-certainty .6"),
    "data_gen/merge.py": _sound("--run sharded"),
    "data_gen/pilot.py": _sound(f"--run qa2 {MODEL} --ks '[1, 2]' --questions 2 --max-new-tokens 2", "candidates"),
    "data_gen/retrieve.py": _sound("--run qa --k 2"),
    "data_gen/sample.py": _sound(
        f"--run qa2 {MODEL} --samples '{{train: 2, dev: 1, test: 0}}' --max-new-tokens 2 --allow-empty true"
    ),
    "data_gen/turn_features.py": _sound("--run turns --corpus turns/snippets.jsonl --k 2"),
    "recipes/fit_gate.py": _sound(f"--gate dialogue_state {TURNS}"),
    "recipes/make_seakr.py": _sound(f"{MODEL} --output qa2/seakr --k 3 --max-new-tokens 3"),
    "recipes/make_decision_model.py": _sound(f"--url {SERVER} --name m --output out --tries 2 --timeout 3"),
    "recipes/make_draft.py": _sound(f"{MODEL} --output out"),
    "recipes/train_encoder.py": _sound(f"{TURNS} {TINY_WORDS} --epochs 1 --model bert --max-length 64"),
    "recipes/train_features.py": _sound(f"{DATA} --index qa/bm25 --output out {KEYS}", RETRIEVED),
    "recipes/train_kbm.py": _sound(f"{TRAINED} --epochs 1"),
    "recipes/train_probe.py": _sound(TRAINED),
    "recipes/train_ragate_mha.py": _sound(
        f"{TURNS} {TINY_WORDS} --epochs 1 --layers 1 --heads 2 --d-model 16 --vocabulary 300 --max-length 64"
    ),
    "recipes/train_ragate_peft.py": _sound(f"{TURNS} {MODEL} --epochs 1 --method lora --max-length 900"),
    "recipes/train_stack.py": _sound(
        f"{DATA} --run qa --members '[features, draft]' --fit-on dev {KEYS} --output qa/stack",
        *(RETRIEVED, "draft", "features", "scores"),
    ),
    "eval/calibrate.py": _sound("--run qa --gate kbm_mastery --folder kbm", SCORED),
    "eval/classify.py": _sound("--run qa", SCORED),
    "eval/compare_scores.py": _sound("--run qa", SCORED),
    "eval/cost.py": _sound(f"--run qa --prices {CONFIGS['eval'] / 'prices.yaml'}", SCORED),
    "eval/double_judgement.py": _sound(
        "--run qa2 --gates '[kbm_mastery]'", "data_gen/sample.py", "eval/score_reference.py"
    ),
    "eval/end_to_end.py": _sound(f"--run qa {FEW}"),
    "eval/import_decisions.py": _sound("--run qa --path decisions.jsonl --gate theirs --column score"),
    "eval/learning_curve.py": _sound("--run qa --gates '[features]' --sizes '[20]' --draws 1", RETRIEVED),
    "eval/run_seakr.py": _sound(
        "--run qa2 --method single_hop --limit 2 --threshold 0 --demonstrations 1 --max-new-tokens 2 --documents 1",
        "recipes/make_seakr.py",
    ),
    "eval/score.py": _sound(f"--run qa --only '[prompt, draft]' {MODEL}", "draft"),
    "eval/score_reference.py": _sound(f"--run qa2 --kbm kbm --chunk 4 {TINY_WORDS}"),
    "eval/write_report.py": _sound("--run qa", SCORED),
    # commands of kbtrain that read what others have made
    "decide": _sound("decide kbm --file own.jsonl --key mastery --threshold .5"),
    "push": _sound("push kbm someone/gate --dry-run"),
}


def all_scripts() -> list[str]:
    """Every script of the three folders, by its path."""
    return [f"{name}/{path.name}" for name in FOLDERS for path in sorted((ROOT / name).glob("*.py"))]


def make(folder: Path, models: bool = True) -> Path:
    """The world without what a script makes of it; ``models``: also what commands of tiny models need."""
    made_run = scripts.load("tests/eval/conftest.py").make_run
    _questions(made_run(folder / "qa", {"train": 24, "dev": 24, "test": 24}, ("train", "dev", "test")))
    _few(folder / "qa2")
    _sharded(folder / "sharded")
    _dialogues(folder)
    _own(folder)
    if models:
        make_folder(folder / "model")
        bert_folder(folder / "bert")
        write_kbm(folder / "kbm")
    return folder


def _questions(run: Path) -> None:
    """Labels in the examples, and passages."""
    labels = {label.question_id: label for label in jsonl.read(Label, run / "labels.jsonl")}
    for split in ("train", "dev", "test"):
        asked = [q for q in jsonl.read(Question, run / "questions.jsonl") if q.split == split]
        jsonl.write(run / "examples" / f"{split}.jsonl", [example(q, labels[q.id]) for q in asked])
    jsonl.write(run / "passages.jsonl", [Passage(f"p{i}", f"Fact {i}", f"Fact {i} of train is so.") for i in range(9)])


def _few(run: Path) -> None:
    """A run whose answers are still to be sampled."""
    asked = [
        Question(f"{split}{i}", f"What is the capital of {split} place {i}?", (f"x{i}",), split, "t", relation="t")
        for split, n in (("train", 4), ("dev", 4), ("test", 3)) for i in range(n)
    ]  # fmt: skip
    jsonl.write(run / "questions.jsonl", asked)
    hit = Hit("p1", "A town", "The capital of place 1 is x1.", 1.0)
    jsonl.write(run / "evidence.jsonl", [Evidence(q.id, "bm25", q.text, (hit,), True) for q in asked])
    jsonl.write(
        run / "passages.jsonl", [Passage(f"p{i}", f"Place {i}", f"The capital is x{i}. " * 5) for i in range(9)]
    )
    for split in ("train", "dev", "test"):
        jsonl.write(run / "examples" / f"{split}.jsonl", [example(q, None) for q in asked if q.split == split])


def _sharded(run: Path) -> None:
    _few(run)
    for i in range(2):
        done = scripts.run(
            "data_gen/sample.py", "--run", run, "--backend", "scripted", "--samples", "{train: 2, dev: 1, test: 0}",
            "--conditions", "[llm, rag, mask]", "--window", "7", "--shard", f"{i + 1}/2",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


def _dialogues(folder: Path) -> None:
    """turns/: what recipes learn from; told/: the same as a data set of one's own; talked/: a pipeline's traces."""
    sizes = {"train": 16, "dev": 8, "test": 8}
    every = [_turn(i, split) for split, n in sizes.items() for i in range(n)]
    known = [one for split, n in sizes.items() for i in range(n) for one in snippets(i, split)]
    for name in ("turns", "told"):
        jsonl.write(folder / name / "turns.jsonl", every)
        jsonl.write(folder / name / "snippets.jsonl", known)
    spent = Spent(1, 3, 4, 80, 100, 200, 1.0)
    traces = [
        Trace(q.id, "?", ("yes",), "m", 0.0, (), (), "final answer", "yes", True, 1.0, 1.0, spent)
        for q in jsonl.read(Question, folder / "qa" / "questions.jsonl") if q.split == "test"
    ]  # fmt: skip
    shutil.copytree(folder / "qa", folder / "talked")
    jsonl.write(folder / "talked" / "methods" / "seakr_multi_hop.jsonl", traces)


def _turn(i: int, split: str) -> TurnExample:
    hit = Hit(f"{split}{i}/0", "museum", "The museum opens at 8.", 1.0)
    more = {"gold_snippets": (f"{split}{i}/{i // 4 % 4}",), "enriched_response": "It opens."} if i % 4 == 0 else {}
    return turn(
        i,
        split,
        synthetic_response="Let me see.",
        entities=(Entity("museum", "name", "sgd"),),
        knowledge=(hit,),
        **more,
    )


def _own(folder: Path) -> None:
    """Files of a user's own: questions, answers, decisions, grades, verdicts."""

    def lines(name: str, rows: list[dict[str, object]]) -> None:
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    asked = list(jsonl.read(Question, folder / "qa" / "questions.jsonl"))
    lines("own.jsonl", [{"id": q.id, "text": q.text, "answers": ["yes"]} for q in asked])
    native = scripts.load("tests/data_gen/test_import_answers.py").native
    lines("answers.jsonl", [native(i) for i in range(40)])
    lines("decisions.jsonl", [{"id": q.id, "score": i % 7 / 7} for i, q in enumerate(asked)])
    grades = (("Paris", True), ("Lyon", False))
    lines("graded.jsonl", [{"id": p, "answers": ["Paris"], "prediction": p, "right": r} for p, r in grades])


def write_kbm(folder: Path) -> None:
    """A KBM of random weights."""
    from tiny_kbm import make_tokenizer

    from kbtrain.gates.kbm.gate import KBMCard
    from kbtrain.prompts.kbm import kbm_fingerprint

    keys = ("mastery", "certainty", "benefit")
    make_folder(folder)
    fingerprint = kbm_fingerprint(make_tokenizer(), keys)
    KBMCard(
        base_model="tiny", keys=keys, prompt_fingerprint=fingerprint, max_length=512, dtype="fp32", method="full",
        labels="soft",
    ).write(folder)  # fmt: skip
