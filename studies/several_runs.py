"""A gate's scores and decisions on the questions of several runs, of one model or of several."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence

import numpy as np

from kbtrain.errors import UserError, did_you_mean
from kbtrain.evaluation.decisions import DevRule, GateDecisions, GateInput, decide
from kbtrain.evaluation.run_folder import RunFolder
from kbtrain.evaluation.scores import in_order
from kbtrain.questions.checks import leak_key


def gate_input(runs: Sequence[RunFolder], gate: str, answers_of: Sequence[RunFolder] | None = None) -> GateInput:
    """One gate's scores on the dev and test questions of all runs, in their order: each question's from its own run,
    since several models' runs may ask the same questions.

    ``answers_of``: runs of another model whose test questions are decided by the scores of ``runs`` (a plug-in gate).
    Raises :class:`UserError` for a gate without scores, or without one for some questions (count, first ids), and,
    with ``answers_of``, for two test questions of one id.
    """
    names = {name for run in runs for name in run.stored.by_gate}
    if gate not in names:
        where = ", ".join(str(run.stored.path) for run in runs)
        raise UserError(f"{where}: no scores of gate '{gate}'; {did_you_mean(gate, names)}")
    asked, others = dict[str, str](), (q for run in (*runs, *(answers_of or ())) for q in run.test.questions)
    if answers_of and (other := next((q.id for q in others if asked.setdefault(q.id, leak_key(q)) != leak_key(q)), "")):
        raise UserError(f"question '{other}' is another one in each of two runs; give their questions ids")
    of_runs = [run.stored.by_gate.get(gate, {}) for run in runs]
    # a plug-in gate's scores of one question are the same in all runs that have it
    of_test = of_runs if answers_of is None else [ChainMap(*map(dict, of_runs))] * len(answers_of)
    dev = [in_order(gate, scores, run.dev.ids, run.stored.path) for run, scores in zip(runs, of_runs, strict=True)]
    tested = zip(answers_of or runs, of_test, strict=True)
    test = [in_order(gate, scores, run.test.ids, runs[0].stored.path) for run, scores in tested]
    return GateInput(gate, np.concatenate(dev), np.concatenate(test))


def decision(
    runs: Sequence[RunFolder], gate: str, cut: DevRule, answers_of: Sequence[RunFolder] | None = None
) -> GateDecisions:
    """One gate's decision; the threshold comes from the dev questions of ``runs``."""
    dev = [outcome for run in runs for outcome in run.dev.outcomes]
    return decide(gate_input(runs, gate, answers_of), dev, cut)
