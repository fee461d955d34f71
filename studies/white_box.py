"""Score a run's questions by published gates that read the answering model: TARG, Probing-RAG, SEP and UAR.

Reads RUN/examples and RUN/labels.jsonl; writes RUN/scores/GATE.jsonl, so that eval/end_to_end.py compares them with the
run's own gates: same questions, answers, dev part and threshold rules. Training questions get held-out scores (five
folds), which rule best_accuracy reads. Each gate follows its paper or its public code:

- ``targ``: 20 greedy tokens without passages; mean second to first probability (margin), mean entropy, and the
  disagreement of 3 drafts at temperature 0.7 (arXiv 2511.09803, section 3.1 and table of defaults). Nothing is trained.
  ``_10`` and ``_30``: drafts of 10 and 30 tokens. Its budget rule is rule ratio: on dev it searches for half.
- ``probing_rag``: a network for every second layer from a third of the depth on reads the mean state of the draft
  (arXiv 2410.13339 and its code). Here the draft is the beginning of the answer, not a rationale, and answers without
  passages alone are trained on.
- ``sep``: logistic regression on the prompt's last token; the label is high semantic entropy of sampled answers, cut
  where the squared error is least (arXiv 2406.15927). Layers are averaged as in our probe, not concatenated.
- ``uar``: the self-knowledge head, linear on the last layer at the prompt's last token (arXiv 2406.12534 and its code).

Examples:
  python studies/white_box.py --run runs/demo
  python eval/end_to_end.py --run runs/demo --threshold-rule best_accuracy --resample entities
  python studies/white_box_table.py --run runs/demo --name white-box
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kbtrain.arrays import Floats
from kbtrain.config import Config, run_script
from kbtrain.errors import UserError, at
from kbtrain.evaluation.run_folder import read_labels
from kbtrain.gates.draft import signals
from kbtrain.gates.probe.gate import Reader
from kbtrain.gates.probe.head import fit_head, fit_layers
from kbtrain.gates.scoring import score_path
from kbtrain.io import jsonl
from kbtrain.io.provenance import write_meta
from kbtrain.models.batching import BatchLimits, batches
from kbtrain.records import GREEDY, GateExample, GateScore, Split
from kbtrain.training.folds import folds, groups_of

if TYPE_CHECKING:
    from kbtrain.llm.sampler.observer import Uncertainties

TOKENS, DRAFTS, TEMPERATURE = 20, 3, 0.7  # TARG's defaults
LENGTHS = {10: "_10", TOKENS: "", 30: "_30"}  # TARG's drafts in tokens, with the ends of their gates' names
SPLITS: tuple[Split, ...] = ("train", "dev", "test")
States = NDArray[np.float32]
Fit = Callable[[Sequence[GateExample], Floats, Sequence[GateExample]], Floats]  # training examples, target, scored


class WhiteBoxConfig(Config):
    run: Path = Field(Path("runs/demo"), description="run folder with examples and labels")
    model: str = Field("smollm2-135m-instruct", description="answering model of the run")
    drawn: int = Field(DRAFTS, ge=0, description="drafts of TARG's variance; 0: without it")

    def writes(self) -> tuple[Path, ...]:
        return tuple(score_path(self.run, name) for name in ("targ", "probing_rag", "sep", "uar"))


def main(config: WhiteBoxConfig) -> None:
    """Read, draft, fit, score, write."""
    from kbtrain.models.load import load_model

    started = time.monotonic()
    parts = {split: read_examples(config.run, split) for split in SPLITS}
    labels = {label.question_id: label.llm for label in read_labels(config.run / "labels.jsonl")[1]}
    reader = Reader(*load_model(config.model, "fp32"))
    taught = [example for example in parts["train"] if example.question_id in labels]
    examples = [*taught, *parts["dev"], *parts["test"]]
    shape = reader.model.config.get_text_config()
    width, depth = shape.hidden_size, shape.num_hidden_layers
    layers = [*range(depth // 3, depth, 2)]
    drafts = read_drafts(reader, examples, max(LENGTHS), config.drawn, sorted({*layers, depth - 1}))
    read = {e.id: draft.states for e, draft in zip(examples, drafts, strict=True)}

    def states(examples: Sequence[GateExample], layer: int, draft: bool) -> States:
        part = slice(width, 2 * width) if draft else slice(width)
        return np.stack([read[e.id][layer][part] for e in examples])

    wrong = {e.id: float(not label.greedy_correct) for e in taught
             if (label := labels[e.question_id]).greedy_correct is not None}  # fmt: skip
    entropy = {e.id: (1 - label.certainty) * math.log(label.n) for e in taught
               if (label := labels[e.question_id]).certainty is not None}  # fmt: skip
    trained: dict[str, tuple[Fit, Mapping[str, float]]] = {
        "probing_rag": (probing_rag(states, layers), wrong),
        "sep": (semantic_entropy_probe(states, layers), entropy),
        "uar": (self_knowledge(reader, states), wrong),
    }
    gates = {"targ": targ(drafts)}
    tokens = {n: mean_tokens(drafts, n) for n in LENGTHS}
    for name, (fit, target) in trained.items():
        gates[name] = {name: with_held_out(fit, target, taught, examples)}
    for file, scores in gates.items():
        write_scores(config, file, examples, scores, tokens, started)
    print(f"{', '.join(name for scores in gates.values() for name in scores)}: {len(examples)} questions in "
          f"{time.monotonic() - started:.0f} s -> {config.run}/scores")  # fmt: skip


def read_examples(run: Path, split: Split) -> list[GateExample]:
    path = run / "examples" / f"{split}.jsonl"
    found = [example for example in jsonl.read(GateExample, path) if example.reference is None]
    if not found:
        raise UserError(f"{at(path)}: no example without a reference; run data_gen/build.py first")
    return found


@dataclass(frozen=True)
class Drafts:
    """Drafts of one question: the greedy one's states by layer (prompt's last token, draft's mean, draft's last token)
    and uncertainties, and the tokens of it and of the drawn ones."""

    states: Mapping[int, States]
    greedy: Uncertainties
    tokens: list[list[int]]

    def signals(self, n: int) -> dict[str, float]:
        """Margin and entropy of the first ``n`` tokens."""
        from kbtrain.llm.sampler.observer import Uncertainties

        noted = self.greedy
        return signals(Uncertainties(noted.entropies[:n], noted.surprisals[:n], noted.ratios[:n]))


def read_drafts(
    reader: Reader, examples: Sequence[GateExample], tokens: int, drawn: int = 0, layers: Sequence[int] = (0,)
) -> list[Drafts]:
    """The greedy draft of each example, of at most ``tokens`` tokens, with ``drawn`` others at TARG's temperature.

    States are read of the first :data:`TOKENS` tokens.
    """
    from kbtrain.llm.base import Sampling
    from kbtrain.llm.sampler.hidden_states import StatesObserver
    from kbtrain.llm.sampler.observer import PromptRows, TokenUncertainty
    from kbtrain.llm.sampler.sampler import BatchSampler

    sure, hidden = TokenUncertainty(), StatesObserver(TOKENS, layers, reads=lambda row: row.index == GREEDY)
    sampling = Sampling(max_new_tokens=tokens, temperature=TEMPERATURE)
    sampler = BatchSampler(reader.model, reader.tokenizer, sampling).observed(sure, hidden)
    indices = (GREEDY, *range(drawn))
    prompts = [PromptRows(e.id, "llm", tuple(ids), indices)
               for e, ids in zip(examples, reader.prompts(examples), strict=True)]  # fmt: skip
    found: dict[str, Drafts] = {}
    for batch in batches(prompts, BatchLimits()):
        for prompt, rows in zip(batch, sampler.draw(batch), strict=True):
            states = dict(zip(layers, rows[0].notes[hidden].states(), strict=True))
            found[prompt.question_id] = Drafts(states, rows[0].notes[sure], [row.tokens for row in rows])
    return [found[e.id] for e in examples]


def with_held_out(
    fit: Fit, target: Mapping[str, float], taught: Sequence[GateExample], examples: Sequence[GateExample]
) -> Floats:
    """Scores of the examples by a fit to the training questions with a target; these by fits without their fold."""
    known = [e for e in taught if e.id in target]
    values = np.array([target[e.id] for e in known])
    scores = dict(zip((e.id for e in examples), fit(known, values, examples), strict=True))
    for part, rest in folds(groups_of(known), seed=0):
        held = fit([known[i] for i in part], values[part], [known[i] for i in rest])
        scores |= zip((known[i].id for i in rest), held, strict=True)
    return np.array([scores[e.id] for e in examples])


def targ(drafts: Sequence[Drafts]) -> dict[str, Floats]:
    """TARG's three scores, margin and entropy for each length of the draft."""
    scores = {
        f"targ_{name}{end}": np.array([draft.signals(n)[f"draft_{name}"] for draft in drafts])
        for n, end in LENGTHS.items() for name in ("margin", "entropy")
    }  # fmt: skip
    drawn = [[tokens[:TOKENS] for tokens in draft.tokens[1:]] for draft in drafts]
    return scores | ({"targ_variance": np.array([disagreement(tokens) for tokens in drawn])} if drawn[0] else {})


def mean_tokens(drafts: Sequence[Drafts], n: int) -> float:
    """Mean number of tokens of greedy drafts of at most ``n``."""
    return float(np.mean([min(len(draft.tokens[0]), n) for draft in drafts]))


def disagreement(drafts: Sequence[Sequence[int]]) -> float:
    """Mean over the steps of 1 - the share of drafts with the most frequent token; a draft that has ended has none."""
    steps = max(map(len, drafts))
    rows = [[*draft, *[-1] * (steps - len(draft))] for draft in drafts]
    most = [max(column.count(token) for token in column) for column in zip(*rows, strict=True)]
    return 1 - sum(most) / (steps * len(drafts)) if steps else 0.0


def probing_rag(states: Any, layers: Sequence[int]) -> Fit:
    """Sum over the layers of p(wrong) - p(right)."""

    def fit(taught: Sequence[GateExample], wrong: Floats, scored: Sequence[GateExample]) -> Floats:
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

    return fit


def self_knowledge(reader: Reader, states: Any) -> Fit:
    """Logit of wrong minus logit of right, read from the last layer behind the final norm."""

    def fit(taught: Sequence[GateExample], wrong: Floats, scored: Sequence[GateExample]) -> Floats:
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

    return fit


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


def semantic_entropy_probe(states: Any, layers: Sequence[int]) -> Fit:
    """Log odds of a high semantic entropy."""

    def fit(taught: Sequence[GateExample], entropy: Floats, scored: Sequence[GateExample]) -> Floats:
        high = (entropy > entropy_cut(entropy)).astype(np.float64)
        read = lambda layer: states(taught, layer, False).astype(np.float64)  # noqa: E731
        (fits,) = fit_layers("logistic", layers, read, [high], groups_of(taught))
        head = fit_head("logistic", fits, None, read, high)
        return head.predict(np.stack([states(scored, layer, False) for layer in head.layers], axis=1))

    return fit


def entropy_cut(entropy: Floats) -> float:
    """The cut whose two sides have the least squared error from their own means."""
    cuts = np.unique(entropy)[:-1]
    if not len(cuts):
        raise UserError("sep: all training questions have the same semantic entropy; sample more answers")
    errors = [sum(((side - side.mean()) ** 2).sum() for side in (entropy[entropy <= cut], entropy[entropy > cut]))
              for cut in cuts]  # fmt: skip
    return float(cuts[int(np.argmin(errors))])


def write_scores(
    config: WhiteBoxConfig,
    file: str,
    examples: Sequence[GateExample],
    scores: Mapping[str, Floats],
    tokens: Mapping[int, float],
    started: float,
) -> None:
    """A score file of a run with its costs; the drafts of ``targ_variance`` are no beginnings of the answer."""
    path = score_path(config.run, file)
    rows = [GateScore(e.question_id, gate, float(value)) for gate, values in scores.items()
            for e, value in zip(examples, values, strict=True)]  # fmt: skip
    jsonl.write(path, rows)
    spent = {}
    for gate in scores:
        times = config.drawn if gate == "targ_variance" else 1
        length = next((n for n, end in LENGTHS.items() if end and gate.endswith(end)), TOKENS)
        drafted = file in ("targ", "probing_rag")
        each = {"requests": float(times), "tokens": times * tokens[length] if drafted else 0.0}
        spent[gate] = dict.fromkeys(("dev", "test"), each)
    inputs = [config.run / "labels.jsonl", *(config.run / "examples" / f"{split}.jsonl" for split in SPLITS)]
    extra = {
        "spent_per_question": spent,
        "within_answer": {gate: gate != "targ_variance" for gate in scores},
    }
    write_meta(path, stage="white_box", config=config, inputs=inputs, extra=extra, started=started)


if __name__ == "__main__":
    run_script(main, WhiteBoxConfig, __doc__)
