"""Build the rows of the open table from two public repositories: six data sets, four models, no row is in the project.

Reads local clones at fixed commits by ``git show``, so that a file's content is that of its commit:
s-nlp/AdaRAGUE (MIT; Llama's answers, gold answers, question texts, scores of Adaptive-RAG's T5 and of SeaKR) and
JinyanSu1/Flare-Aug (Apache-2.0; verdicts on GPT-4o and Flan-T5). Llama's answers are graded by containment and by
exact match; Flare-Aug's verdicts are by exact match. Questions and answers keep their own licences; what the models
wrote falls under theirs: for measuring only. Writes one JSON line a question (README.md has the fields).

Examples:
  git clone https://github.com/s-nlp/AdaRAGUE && git clone https://github.com/JinyanSu1/Flare-Aug
  python benchmarks/when_to_retrieve/outcome_rows.py --adarague AdaRAGUE --flare-aug Flare-Aug --out rows.jsonl
"""

from __future__ import annotations

import json
import re
import string
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.errors import UserError, at
from kbtrain.io.provenance import write_atomically

ADARAGUE = "31c3428c37b294fb7b55292fcef10601047b8001"
FLARE_AUG = "d4aeb0379b21a285d003d9ac428d60977547c694"
SETS = ("nq", "squad", "hotpotqa", "trivia", "2wikimultihopqa", "musique")
PARTS = {"train": ("dev_500", "train"), "test": ("test", "valid")}  # split -> their folder, their file
LLAMA, OTHERS = "llama-3-8b-instruct", {"gpt-4o": "gpt4o", "flan-t5-xl": "flan_t5_xl", "flan-t5-xxl": "flan_t5_xxl"}
RETRIEVALS = {"none": "nor", "one": "oner", "many": "ircot"}
LABELS = {"none": "zero", "one": "one", "many": "multiple"}
SETTINGS = {"nor": "", "oner": "___bm25_retrieval_count__15___distractor_count__1",
            "ircot": "___bm25_retrieval_count__6___distractor_count__1"}  # fmt: skip
T5 = "Adaptive_Rag/predictions/classifier/t5-large/llama_8b_it/epoch/25/2024_11_28/14_25_04"
DIRECT = {"nq": "nq", "squad": "sq", "trivia": "tq"}  # SeaKR scored these before a search
LAST_STEP = {"hotpotqa": "hotpot", "2wikimultihopqa": "2wiki", "musique": "music"}  # and these after the last step


class OutcomeRowsConfig(Config):
    adarague: Path = Field(description="clone of s-nlp/AdaRAGUE")
    flare_aug: Path = Field(description="clone of JinyanSu1/Flare-Aug")
    out: Path = Field(Path("runs/when_to_retrieve/rows.jsonl"), description="file of the rows")

    def writes(self) -> tuple[Path, ...]:
        return (self.out,)


def main(config: OutcomeRowsConfig) -> None:
    verdicts = {split: others_verdicts(config.flare_aug, file) for split, (_, file) in PARTS.items()}
    rows = [
        row for split in PARTS for dataset in SETS for row in set_rows(config.adarague, dataset, split, verdicts[split])
    ]
    write_atomically(config.out, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    print(f"{len(rows)} questions of {len(SETS)} data sets -> {config.out}")


def set_rows(
    clone: Path, dataset: str, split: str, verdicts: Mapping[str, Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """The questions of a data set with every verdict, and with the rivals' scores on test."""
    answers = {name: read_json(clone, ADARAGUE, prediction(dataset, split, name)) for name in RETRIEVALS}
    gold = read_json(clone, ADARAGUE, prediction(dataset, split, "none").replace("/prediction__", "/ground_truth__"))
    chains = read_file(clone, ADARAGUE, prediction(dataset, split, "none").replace(".json", "_chains.txt"))
    texts = dict(block.split("\n")[:2] for block in chains.strip().split("\n\n") if block.count("\n"))
    rivals = rival_scores(clone, dataset, list(gold)) if split == "test" else {}
    for name, accepted in gold.items():
        known = [one for one in map(normalised, accepted) if one]
        llama = {}
        for retrievals in RETRIEVALS:
            said = answers[retrievals][name]
            answer = normalised(said if isinstance(said, str) else " ".join(said))
            llama[retrievals] = int(any(one in answer for one in known))
            llama[f"em_{retrievals}"] = int(any(answer == normalised(one) for one in accepted))
        others = {
            model: {retrievals: int(label in verdicts[model].get(name, ())) for retrievals, label in LABELS.items()}
            for model in OTHERS
        }
        yield {
            "id": name, "dataset": dataset, "split": split, "question": texts[name], "answers": accepted,
            "llms": {LLAMA: llama, **others}, **rivals.get(name, {}),
        }  # fmt: skip


def prediction(dataset: str, split: str, retrievals: str) -> str:
    kind, (folder, _) = RETRIEVALS[retrievals], PARTS[split]
    run = f"{kind}_qa_llama_8b_it_{dataset}____prompt_set_1{SETTINGS[kind]}"
    return f"Adaptive_Rag/predictions/{folder}/{run}/prediction__{dataset}_to_{dataset}__{folder}_subsampled.json"


def others_verdicts(clone: Path, file: str) -> dict[str, dict[str, list[str]]]:
    """By model and question: with which retrievals the answer is right; a question without a right answer is absent."""
    return {
        model: {
            row["id"]: row["total_answer"]
            for row in read_json(clone, FLARE_AUG, f"classifier/data/{folder}/{file}.json")
        }
        for model, folder in OTHERS.items()
    }


def rival_scores(clone: Path, dataset: str, ids: list[str]) -> dict[str, dict[str, Any]]:
    """By question: probabilities of Adaptive-RAG's classifier, and SeaKR's score where it was published."""
    found: dict[str, dict[str, Any]] = {}
    for name, one in read_json(clone, ADARAGUE, f"{T5}/{dataset}/{dataset}_option_with_probas.json").items():
        chances = zip(("pA", "pB", "pC"), map(float, one["probas"].split(",")), strict=True)
        found[name] = {"adaptive_rag_t5": dict(chances) | {"option": one["option"]}}
    if dataset in DIRECT:  # without ids, in the order of the questions
        file = f"SeaKR/results/outputs_{DIRECT[dataset]}_ours_3_1/direct.jsonl"
        lines = [json.loads(line) for line in read_file(clone, ADARAGUE, file).splitlines()]
        if len(lines) != len(ids):
            raise UserError(f"{file}: {len(lines)} lines, but {len(ids)} questions; use the commit that is named here")
        scores = {name: {"eigen_score": line["eigen_score"]} for name, line in zip(ids, lines, strict=True)}
    else:
        kind = LAST_STEP[dataset]
        lines = [
            json.loads(line)
            for line in read_file(clone, ADARAGUE, f"SeaKR/results/{kind}_3_1/scores_{kind}.json").splitlines()
        ]
        scores = {line["qid"]: {"last_step_eigen_score": line["last_step_eigen_score"]} for line in lines}
    for name, score in scores.items():
        found[name]["seakr"] = score
    return found


def normalised(text: str) -> str:
    """Small letters without punctuation and articles, as the sources grade (SQuAD's evaluation)."""
    plain = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def read_json(clone: Path, commit: str, path: str) -> Any:
    return json.loads(read_file(clone, commit, path))


def read_file(clone: Path, commit: str, path: str) -> str:
    """A file as a commit has it. Raises :class:`UserError` for a folder that is no clone with this commit."""
    try:
        command = ["git", "-C", str(clone), "show", f"{commit}:{path}"]
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise UserError("git is not installed; install it") from error
    if done.returncode:
        last = (done.stderr.decode(errors="replace").strip() or "no message").splitlines()[-1]
        raise UserError(f"{at(clone)}: {path} of commit {commit[:12]} is missing ({last:.200}); clone the repository")
    return done.stdout.decode()


if __name__ == "__main__":
    run_script(main, OutcomeRowsConfig, __doc__)
