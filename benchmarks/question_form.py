"""Gates on HotpotQA and 2WikiMultiHopQA with and without yes/no questions, beside a gate that knows the form alone.

Reads what eval/evidence.py reads and keeps. Yes/no questions: those whose gold answer is yes or no. The Llama's answers
are graded by the file and by the project's rules.

Examples:
  python benchmarks/question_form.py --corpus $KBTRAIN_TEST_DATA/passages.jsonl --path \\
      "[$KBTRAIN_TEST_DATA/llm_outcomes/outcomes.jsonl, $KBTRAIN_TEST_DATA/llm_outcomes_more/outcomes.jsonl]"
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from pydantic import Field

from kbtrain.answers.grading import is_correct, is_yes_no
from kbtrain.arrays import Floats
from kbtrain.config import Config, run_script
from kbtrain.evaluation import evidence as ev
from kbtrain.evaluation.evidence_sheet import sheet_of
from kbtrain.evaluation.evidence_tables import models_of
from kbtrain.gates.features.question import question_form

LLAMA = "llama-3-8b-instruct"


class QuestionFormConfig(Config):
    path: tuple[Path, ...] = Field(min_length=1, description="JSON Lines files of questions and verdicts")
    corpus: Path = Field(description="passages (JSONL) whose words' frequencies the gate features reads")
    reader: str = Field("smollm2-135m-instruct", description="small language model, not used here")
    encoder: str = Field("all-minilm-l6-v2", description="small encoder that reads the question")
    out: Path = Field(Path("runs/evidence"), description="folder of kept states and index")


def main(config: QuestionFormConfig) -> None:
    sheet = sheet_of(config.path, config.corpus, config.reader, config.encoder, config.out, LLAMA)
    raw = {}
    for path in config.path:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            raw[row["id"]] = row["llms"][LLAMA]
    asked = [row.question for row in sheet.rows]

    def graded(retrievals: str) -> Floats:
        return np.array([float(is_correct(one, raw[one.id][f"answer_{retrievals}"])) for one in asked])

    verdicts = {name: [sheet.right(name, "published", r) for r in ("none", "one")] for name in models_of(sheet)}
    verdicts["llama, graded here"] = [graded(r) for r in ("none", "one")]
    fits = {"form": ev.of_set([question_form(one.text) for one in asked])}
    fits |= {name: sheet.fits[name] for name in ("features", "encoder")}
    polar, sets = np.array([is_yes_no(one) for one in asked]), np.array(sheet.data_sets)
    for name in ("hotpotqa", "2wikimultihopqa"):
        for model, (none, one) in verdicts.items():
            for label, kept in (("all", sets == name), ("without yes/no", (sets == name) & ~polar)):
                train, test = ([i for i in part if kept[i]] for part in (sheet.train, sheet.test))
                gains = (one - none)[train]
                scores = {gate: fit(train, gains, test) for gate, fit in fits.items()}
                print(name, model, label, len(test), ev.areas(scores, none[test], one[test]))


if __name__ == "__main__":
    run_script(main, QuestionFormConfig, __doc__)
