"""Score a run's questions by published gates that read the answering model: TARG, Probing-RAG, SEP and UAR.

Reads RUN/examples and RUN/labels.jsonl; writes RUN/scores/GATE.jsonl, so that eval/end_to_end.py sets them beside the
run's own gates: same questions, answers, dev part and threshold rules. Each follows its paper or its public code:

- ``targ``: 20 greedy tokens without passages; mean second to first probability (margin), mean entropy, and the
  disagreement of 3 drafts at temperature 0.7 (arXiv 2511.09803, section 3.1 and table of defaults). Nothing is trained.
- ``probing_rag``: a network for every second layer from a third of the depth on reads the mean state of the draft
  (arXiv 2410.13339 and its code). Here the draft is the beginning of the answer, not a rationale, and answers without
  passages alone are trained on.
- ``sep``: logistic regression on the prompt's last token; the label is high semantic entropy of sampled answers, cut
  where the squared error is least (arXiv 2406.15927). Layers are averaged as in our probe, not concatenated.
- ``uar``: the self-knowledge head, linear on the last layer at the prompt's last token (arXiv 2406.12534 and its code).

Examples:
  python studies/white_box.py --run runs/demo
  python eval/end_to_end.py --run runs/demo --threshold-rule best_accuracy
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kbtrain.arrays import Floats
from kbtrain.config import Config, run_script
from kbtrain.errors import UserError, at
from kbtrain.evaluation.run_folder import read_labels
from kbtrain.gates.answering import first_rows
from kbtrain.gates.probe.gate import Reader
from kbtrain.gates.probe.head import fit_head, fit_layers
from kbtrain.gates.score_file import score_path
from kbtrain.gates.untrained.draft import signals
from kbtrain.io import jsonl
from kbtrain.io.provenance import write_meta
from kbtrain.records import GREEDY, GateExample, GateScore, Label, Split
from kbtrain.training.folds import groups_of

TOKENS, DRAFTS, TEMPERATURE = 20, 3, 0.7  # TARG's defaults
SPLITS: tuple[Split, ...] = ("train", "dev", "test")
States = NDArray[np.float32]


class WhiteBoxConfig(Config):
    run: Path = Field(Path("runs/demo"), description="run folder with examples and labels")
    model: str = Field("smollm2-135m-instruct", description="answering model of the run")

    def writes(self) -> tuple[Path, ...]:
        return tuple(score_path(self.run, name) for name in ("targ", "probing_rag", "sep", "uar"))


def main(config: WhiteBoxConfig) -> None:
    """Read, draft, fit, score, write."""
    from kbtrain.models.load import load_model

    started = time.monotonic()
    parts = {split: read_examples(config.run, split) for split in SPLITS}
    labels = {label.question_id: label for label in read_labels(config.run / "labels.jsonl")[1]}
    reader = Reader(*load_model(config.model, "fp32"), "draft", draft_tokens=TOKENS)
    scored = [*parts["dev"], *parts["test"]]
    taught = [e for e in parts["train"] if e.question_id in labels]
    answered = [e for e in taught if labels[e.question_id].llm.greedy_correct is not None]
    wrong = np.array([not labels[e.question_id].llm.greedy_correct for e in answered], dtype=np.float64)
    read = {
        id(e): states for e, states in zip([*taught, *scored], read_states(reader, [*taught, *scored]), strict=True)
    }
    width = reader.model.config.get_text_config().hidden_size
    layers = range(reader.model.config.get_text_config().num_hidden_layers // 3,
                   reader.model.config.get_text_config().num_hidden_layers, 2)  # fmt: skip

    def states(examples: Sequence[GateExample], layer: int, draft: bool) -> States:
        part = slice(width, 2 * width) if draft else slice(width)
        return np.stack([read[id(e)][layer, part] for e in examples])

    gates: dict[str, dict[str, Floats]] = {
        "targ": targ(reader, scored),
        "probing_rag": {"probing_rag": probing_rag(states, layers, answered, wrong, scored)},
        "sep": {"sep": semantic_entropy_probe(states, layers, taught, labels, scored)},
        "uar": {"uar": self_knowledge(reader, states, answered, wrong, scored)},
    }
    for file, scores in gates.items():
        write_scores(config, file, scored, scores, tokens_spent(reader, file), started)
    print(f"{', '.join(name for scores in gates.values() for name in scores)}: {len(taught)} training questions, "
          f"{len(scored)} scored in {time.monotonic() - started:.0f} s -> {config.run}/scores")  # fmt: skip


def read_examples(run: Path, split: Split) -> list[GateExample]:
    path = run / "examples" / f"{split}.jsonl"
    found = [example for example in jsonl.read(GateExample, path) if example.reference is None]
    if not found:
        raise UserError(f"{at(path)}: no example without a reference; run data_gen/build.py first")
    return found


def read_states(reader: Reader, examples: Sequence[GateExample]) -> list[States]:
    """Each example's states (layers, 3 d): at the prompt's last token, the draft's mean, the draft's last token."""
    return list(reader.read(reader.prompts(examples)))


def targ(reader: Reader, examples: Sequence[GateExample]) -> dict[str, Floats]:
    """TARG's three scores."""
    from kbtrain.llm.base import Sampling
    from kbtrain.llm.sampler.rows import PromptRows
    from kbtrain.llm.sampler.sampler import LockstepSampler

    sampling = Sampling(max_new_tokens=TOKENS, temperature=TEMPERATURE)
    sampler = LockstepSampler(reader.model, reader.tokenizer, sampling)
    prompts = list(zip(examples, reader.prompts(examples), strict=True))
    drawn = [
        [row.tokens for row in first_rows(sampler, [PromptRows(e.id, "llm", tuple(ids), (n,)) for e, ids in prompts])]
        for n in range(DRAFTS)
    ]
    found, _ = drafted_signals(reader, examples)
    return found | {"targ_variance": np.array([disagreement(drafts) for drafts in zip(*drawn, strict=True)])}


def drafted_signals(reader: Reader, examples: Sequence[GateExample]) -> tuple[dict[str, Floats], float]:
    """Margin and entropy of each example's greedy draft, and the mean number of its tokens."""
    from kbtrain.llm.base import Sampling
    from kbtrain.llm.sampler.rows import PromptRows
    from kbtrain.llm.sampler.sampler import LockstepSampler
    from kbtrain.llm.sampler.token_uncertainty import TokenUncertainty

    observer = TokenUncertainty()
    sampler = LockstepSampler(reader.model, reader.tokenizer, Sampling(max_new_tokens=TOKENS)).observed(observer)
    prompts = zip(examples, reader.prompts(examples), strict=True)
    rows = first_rows(sampler, [PromptRows(e.id, "llm", tuple(ids), (GREEDY,)) for e, ids in prompts])
    found = [signals(row.notes[observer]) for row in rows]
    scores = {f"targ_{name}": np.array([one[f"draft_{name}"] for one in found]) for name in ("margin", "entropy")}
    return scores, float(np.mean([len(row.tokens) for row in rows]))


def disagreement(drafts: Sequence[Sequence[int]]) -> float:
    """Mean over the steps of 1 - the share of drafts with the most frequent token; a draft that has ended has none."""
    steps = max(map(len, drafts))
    rows = [[*draft, *[-1] * (steps - len(draft))] for draft in drafts]
    most = [max(column.count(token) for token in column) for column in zip(*rows, strict=True)]
    return 1 - sum(most) / (steps * len(drafts)) if steps else 0.0


def probing_rag(
    states: Any, layers: Sequence[int], taught: Sequence[GateExample], wrong: Floats, scored: Sequence[GateExample]
) -> Floats:
    """Sum over the layers of p(wrong) - p(right)."""
    import torch
    from torch import nn

    rng = np.random.default_rng(0)
    n = int(min(wrong.sum(), (1 - wrong).sum()))
    if not n:
        raise UserError("probing_rag: the training questions' answers are all right or all wrong; nothing to learn")
    balanced = np.concatenate([rng.permutation(np.flatnonzero(wrong == value))[:n] for value in (0, 1)])
    target, total = torch.tensor(wrong[balanced], dtype=torch.long), np.zeros(len(scored))
    for layer in layers:
        torch.manual_seed(layer)
        inner, outer = (torch.from_numpy(states(part, layer, True)) for part in (taught, scored))
        inner, width = inner[balanced], inner.shape[1]
        net = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 512), nn.SiLU(), nn.Dropout(0.1), nn.Linear(512, 512), nn.SiLU(),
            nn.Dropout(0.1), nn.Linear(512, 2),
        )  # fmt: skip
        train(net, inner, target, torch.optim.AdamW(net.parameters(), lr=1e-4), batch=8, epochs=2, decay=0.995)
        with torch.inference_mode():
            chance = torch.softmax(net.eval()(outer), dim=1)
        total += (chance[:, 1] - chance[:, 0]).numpy()
    return total


def self_knowledge(
    reader: Reader, states: Any, taught: Sequence[GateExample], wrong: Floats, scored: Sequence[GateExample]
) -> Floats:
    """Logit of wrong minus logit of right, read from the last layer behind the final norm."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    depth = reader.model.config.get_text_config().num_hidden_layers
    norm = getattr(reader.model.get_decoder(), "norm", nn.Identity())
    with torch.inference_mode():
        inner, outer = (norm(torch.from_numpy(states(part, depth - 1, False))).float() for part in (taught, scored))
    head = nn.Linear(inner.shape[1], 2, bias=False)
    target = torch.tensor(wrong, dtype=torch.long)
    train(head, inner.clone(), target, torch.optim.AdamW(head.parameters(), lr=5e-5), batch=32, epochs=10)
    with torch.inference_mode():
        logits = head(outer.clone())
    return np.asarray((logits[:, 1] - logits[:, 0]).numpy(), dtype=np.float64)


def train(net: Any, inputs: Any, target: Any, optimizer: Any, batch: int, epochs: int, decay: float = 1.0) -> None:
    """Cross-entropy on random batches; the learning rate falls by ``decay`` at each step."""
    import torch

    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, decay)
    for _ in range(epochs):
        for rows in torch.randperm(len(target)).split(batch):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(inputs[rows]), target[rows]).backward()
            optimizer.step()
            schedule.step()


def semantic_entropy_probe(
    states: Any,
    layers: Sequence[int],
    taught: Sequence[GateExample],
    labels: Mapping[str, Label],
    scored: Sequence[GateExample],
) -> Floats:
    """Log odds of a high semantic entropy."""
    certain = [(e, labels[e.question_id].llm) for e in taught]
    known = [(e, (1 - one.certainty) * math.log(one.n)) for e, one in certain if one.certainty is not None]
    examples, entropy = [e for e, _ in known], np.array([value for _, value in known])
    high = (entropy > entropy_cut(entropy)).astype(np.float64)
    read = lambda layer: states(examples, layer, False).astype(np.float64)  # noqa: E731
    (fits,) = fit_layers("logistic", layers, read, [high], groups_of(examples))
    head = fit_head("logistic", fits, None, read, high)
    return head.predict(np.stack([states(scored, layer, False) for layer in head.layers], axis=1))


def entropy_cut(entropy: Floats) -> float:
    """The cut whose two sides have the least squared error from their own means."""
    cuts = np.unique(entropy)[:-1]
    if not len(cuts):
        raise UserError("sep: all training questions have the same semantic entropy; sample more answers")
    errors = [sum(((side - side.mean()) ** 2).sum() for side in (entropy[entropy <= cut], entropy[entropy > cut]))
              for cut in cuts]  # fmt: skip
    return float(cuts[int(np.argmin(errors))])


def tokens_spent(reader: Reader, file: str) -> dict[str, Any]:
    """Requests and generated tokens of a question, and whether the plain answer goes on from them."""
    mean = reader.spent["tokens"] / reader.spent["requests"]
    drafted = mean if file in ("targ", "probing_rag") else 0.0
    return {"requests": 1.0, "tokens": drafted}


def write_scores(
    config: WhiteBoxConfig,
    file: str,
    examples: Sequence[GateExample],
    scores: Mapping[str, Floats],
    spent: Mapping[str, float],
    started: float,
) -> None:
    """A score file of a run with its costs; the drafts of ``targ_variance`` are no beginnings of the answer."""
    path = score_path(config.run, file)
    rows = [GateScore(e.question_id, gate, float(value)) for gate, values in scores.items()
            for e, value in zip(examples, values, strict=True)]  # fmt: skip
    jsonl.write(path, rows)
    times = {gate: DRAFTS if gate == "targ_variance" else 1 for gate in scores}
    each = {gate: {key: n * value for key, value in spent.items()} for gate, n in times.items()}
    inputs = [config.run / "labels.jsonl", *(config.run / "examples" / f"{split}.jsonl" for split in SPLITS)]
    extra = {
        "spent_per_question": {gate: {split: each[gate] for split in ("dev", "test")} for gate in scores},
        "within_answer": {gate: n == 1 for gate, n in times.items()},
    }
    write_meta(path, stage="white_box", config=config, inputs=inputs, extra=extra, started=started)


if __name__ == "__main__":
    run_script(main, WhiteBoxConfig, __doc__)
