"""KBM's double judgement (section 5.4): chunks are passed on only if the gate can answer with them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kbtrain.arrays import Floats
from kbtrain.evaluation import outcomes as oc
from kbtrain.evaluation.cost import Usage, usage
from kbtrain.evaluation.decisions import DevRule, GateInput, decide
from kbtrain.evaluation.outcomes import Correctness, Resample
from kbtrain.evaluation.run_folder import RunFolder
from kbtrain.evaluation.scores import ByGate, in_order
from kbtrain.metrics.significance import Delta, draw_policies
from kbtrain.metrics.thresholds import Dev, Training, choose

DRAWS, SEED, NO_TRAINING = 5_000, 20_243, Training()


@dataclass(frozen=True)
class AnswerPolicy:
    """Accuracy, share of questions with a search, share whose chunks were passed on, and prompt tokens read in all
    (None: those of some answers are not known).

    ``gain``: accuracy minus that of as many chunks passed on at random.
    """

    name: str
    accuracy: float
    searched: float
    passed_on: float
    tokens: int | None
    gain: Delta


@dataclass(frozen=True)
class DoubleJudgement:
    """Five ways to answer the same ``n`` questions: LLM Only, All RAG, one judgement of the gate, two judgements, and
    as many chunks passed on as by two judgements, at random.

    ``threshold`` and ``second_threshold`` are those of the scores without and with the reference. ``second_gain``:
    accuracy of two judgements minus that of one.
    """

    gate: str
    n: int
    threshold: float
    second_threshold: float
    ways: tuple[AnswerPolicy, ...]
    second_gain: Delta


def second_threshold(rule: str, searched: NDArray[np.bool_], with_reference: Floats, answers: Correctness) -> float:
    """Chosen on the dev questions that the first judgement searches for: chunks are dropped if the score with them
    is above it. Chunks of a part are dropped only where that gives more right answers than passing on all or none, by
    two standard errors. Rule ``0.5`` needs no dev; without a searched dev question it is 0.5 as well."""
    if rule == "0.5" or not searched.any():
        return 0.5
    # "retrieve" of the rule, which prefers few of them, is "pass the chunks on" here: the scores change their sign
    passed_on = Dev(-with_reference[searched], answers.llm[searched], answers.rag[searched])
    # passed on: -score > value; judge_twice passes on what is not above the second threshold
    return float(np.nextafter(-choose("best_accuracy", passed_on).value, -np.inf))


def judge_twice(
    gate: str, first: Floats, with_reference: Floats, answers: Correctness, used: Usage, thresholds: tuple[float, float]
) -> DoubleJudgement:
    """``first``: scores of the plain questions; ``with_reference``: of the same questions with their chunks;
    ``thresholds`` of both."""
    threshold, second = thresholds
    searched = first > threshold
    passed_on = searched & (with_reference <= second)
    none, everything = np.zeros_like(searched), np.ones_like(searched)
    chosen = {
        "LLM Only": (none, none),
        "All RAG": (everything, everything),
        "gate": (searched, searched),
        "double judgement": (searched, passed_on),
    }
    retrieve = [passed.astype(np.float64) for _, passed in chosen.values()]
    drawn = draw_policies(answers.llm, answers.rag, retrieve, DRAWS, SEED, answers.clusters)
    ways = [
        AnswerPolicy(
            name,
            accuracy=float(of.accuracy[0]),
            searched=float(is_searched.mean()),
            passed_on=float(of.ratio[0]),
            tokens=_read(used, passed.astype(np.float64)),
            gain=of.over_chance,
        )
        for of, (name, (is_searched, passed)) in zip(drawn, chosen.items(), strict=True)
    ]
    ways.append(_random(float(passed_on.mean()), answers, used))
    gain = drawn[3].accuracy_over(drawn[2])
    return DoubleJudgement(gate, len(first), threshold, second, tuple(ways), gain)


def _random(share: float, answers: Correctness, used: Usage) -> AnswerPolicy:
    """As many chunks passed on, of randomly drawn questions, the only ones with a search: expected figures."""
    accuracy = (1 - share) * answers.llm.mean() + share * answers.rag.mean()
    return AnswerPolicy("random", float(accuracy), share, share, _read(used, share), Delta(0.0, 0.0, 0.0))


def _read(used: Usage, passed: Floats | float) -> int | None:
    """Prompt tokens, where ``passed`` is the probability of passing the chunks of a question on."""
    tokens = ((1 - passed) * used.llm_in + passed * used.rag_in).sum()
    return round(float(tokens)) if used.has_tokens.all() else None


def judge_double(
    run: RunFolder, referenced: ByGate, gate: str, cut: DevRule, resample: Resample, train: Training = NO_TRAINING
) -> DoubleJudgement:
    """``referenced``: the scores that the gate gives when it sees the chunks; ``resample``: what intervals draw;
    ``train``: training questions, for the first threshold by rule ``best_accuracy``."""
    _, plain = run.stored.scores_of(gate)
    path, parts = run.stored.path, (run.dev, run.test)
    (dev_first, first), (dev_second, second) = (
        [np.array(in_order(gate, scores, part.ids, path)) for part in parts] for scores in (plain, referenced[gate])
    )
    chosen = decide(GateInput(gate, dev_first, first, train=train), run.dev.outcomes, cut).threshold
    threshold = chosen.value if chosen else 0.5
    dev = oc.answers(run.dev.outcomes, oc.dev_kind(run.dev.outcomes, cut.kind))
    test, used = oc.answers(run.test.outcomes, cut.kind), usage(run.test.graded["llm"], run.test.graded["rag"])
    other = second_threshold(cut.rule, dev_first > threshold, dev_second, dev)
    clusters = oc.clusters_of(resample, run.test.questions)
    return judge_twice(gate, first, second, replace(test, clusters=clusters), used, (threshold, other))
