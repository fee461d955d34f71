"""Lay out RAGate's tables 1 to 4 and figures 3 and 4 from stored responses and scores: no model generates here.

Reads turns.jsonl, the responses of studies/respond.py and the gates' scores; writes dialogue.json, .md
and the figures as SVG. Table 1: Recall@1 and @3 of the rankers; 2: precision, recall, F1, AUC, AP, FDR of the gates
(several folders of a gate are its seeds); 3 and 4: BLEU, ROUGE, BERTScore and confidence of No-Aug, each gate (its
first seed), Random-Aug of its size, Human-label and Aug-All; figures 3 and 4: augmented turns by position and domain.
BERTScore is computed if a model is given for it. What the data lacks is named with counts.

Examples:
  python studies/ragate_tables.py --run runs/ketod --gates "{rule: [gates/rule], encoder: [encoder]}"
  python studies/ragate_tables.py --run runs/ketod --gates "{mha: [mha]}" --ranker ranker --bertscore roberta-large
  python studies/ragate_tables.py --run runs/ketod --gates "{mha: [mha]}" --bertscore all-minilm-l6-v2 \\
      --bertscore-layers 6
"""

from __future__ import annotations

import time
from pathlib import Path

from pydantic import Field
from ragate_responses.evaluation import DialogueInputs, Draws, read_dialogue
from ragate_responses.responses import NONE
from ragate_responses.tables import BertScored, dialogue_markdown, dialogue_svgs, evaluate_dialogue
from ragate_responses.text_generation import bert_parts

from kbtrain.config import Config, run_script
from kbtrain.errors import UserError, did_you_mean
from kbtrain.evaluation.scores import read_labelled_turns, score_file, seed_scores, seen_in_files
from kbtrain.io.provenance import write_atomically, write_result
from kbtrain.report.tables import as_text


class DialogueConfig(Config):
    run: Path = Field(Path("runs/ketod"), description="run folder with turns.jsonl")
    responses: Path | None = Field(None, description="folder of studies/respond.py (default: RUN/responses)")
    gates: dict[str, list[Path]] = Field(description="name: gates' names or folders, one a seed; relative to the run")
    ranker: str | None = Field(None, description="ranker of table 3 (default: the first by name); table 4 has all")
    random_draws: int = Field(20, ge=2, description="draws of Random-Aug")
    draws: int = Field(2000, ge=100, description="bootstrap draws of table 2")
    seed: int = Field(0, ge=0, lt=2**31, description="of all draws")
    bertscore: str | None = Field(None, description="model of BERTScore: roberta-large, all-minilm-l6-v2, a folder")
    bertscore_layers: int | None = Field(None, ge=1, description="its layer, for one that bert-score does not know")
    out: Path | None = Field(None, description="folder of the results (default: RUN)")

    def writes(self) -> tuple[Path, ...]:
        return ((self.out or self.run) / "dialogue.json",)


def main(config: DialogueConfig) -> None:
    started, source = time.monotonic(), config.run / "turns.jsonl"
    turns = read_labelled_turns(source, "dev", "test")
    inputs = read_dialogue(config.responses or config.run / "responses", source, turns["test"])
    rankers = [recall.ranker for recall in inputs.recalls]
    ranker = config.ranker or rankers[0]
    if ranker not in rankers:
        raise UserError(f"key 'ranker': no responses of '{ranker}'; {did_you_mean(ranker, rankers)}")
    files = {name: [score_file(config.run, path) for path in paths] for name, paths in config.gates.items()}
    runs = {
        name: [seed_scores(path, {**turns, "test": inputs.turns}) for path in paths] for name, paths in files.items()
    }
    draws = Draws(config.random_draws, config.draws, config.seed)
    result = evaluate_dialogue(inputs, runs, ranker, bert(config, inputs), draws)
    result.notes.extend(seen_in_files(files))
    target = (config.out or config.run) / "dialogue.json"
    write_atomically(target.with_suffix(".md"), dialogue_markdown(result))
    for name, svg in dialogue_svgs(result).items():
        write_atomically(target.with_name(f"dialogue_{name}.svg"), svg)
    read = [source, *inputs.files, *(path for paths in files.values() for path in paths)]
    write_result(target, result.to_json(), stage="dialogue", config=config, inputs=read, started=started)
    print("\n\n".join(map(as_text, result.tables)))
    print("", *result.notes, *(f"missing: {text}" for text in result.lacking), sep="\n")
    print(f"dialogue: {result.n} test turns, {len(inputs.responses) - 1} augmentations, {len(runs)} gates -> {target}, "
          ".md, figures")  # fmt: skip


def bert(config: DialogueConfig, inputs: DialogueInputs) -> BertScored:
    """F1 of every response; or the reason why it is missing."""
    model = config.bertscore
    if model is None:
        return BertScored("BERTScore skipped: no model was given for it (--bertscore)")
    try:
        scored = {name: bert_parts([r.text for r in responses], inputs.references, model, config.bertscore_layers)
                 for name, responses in inputs.responses.items()}  # fmt: skip
    except UserError as error:
        return BertScored(f"BERTScore skipped: {error}")
    return BertScored(f"BERTScore: {scored[NONE][1]}", {name: parts[:, 2] for name, (parts, _) in scored.items()})


if __name__ == "__main__":
    run_script(main, DialogueConfig, __doc__)
