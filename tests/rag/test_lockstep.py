"""Questions in lockstep: how many are in work, one search call for each k, each question's own costs and figures."""

from dataclasses import replace

import pytest
from seakr_stand_ins import Script, Shelf, question

from kbtrain.rag.seakr_lockstep import PipelineOutcome, answer_all
from kbtrain.rag.seakr_loops import SelfAwareSettings, single_hop

UNSURE = Script(lambda ask: ("Ann", 1.0))


class Calls(Shelf):
    """A shelf that notes its calls."""

    def __init__(self, **found):
        super().__init__(**found)
        self.calls = []

    def search(self, queries, k):
        self.calls.append((tuple(queries), k))
        return super().search(queries, k)


def test_no_more_than_at_once_are_in_work_and_the_next_one_begins_when_one_is_finished():
    working, most = set(), []

    def begin(asked):
        working.add(asked.id)
        most.append(len(working))
        return single_hop(asked, SelfAwareSettings(0.0))

    for trace in answer_all(
        [question(f"q{i}") for i in range(5)], begin, UNSURE, Shelf(), method="m", threshold=0.0, at_once=2
    ):
        working.remove(trace.question_id)
    assert most == [1, 2, 1, 2, 1]  # both of a pair are finished in one round


def test_searches_with_one_k_share_a_call_and_each_question_counts_its_own():
    def asking(k):
        def coroutine():
            hits = yield ("it", k)
            return PipelineOutcome(f"{len(hits)} hits", "done")

        return coroutine()

    wanted = {"a": 1, "b": 3, "c": 1}
    shelf = Calls(it=("x", "y", "z"))
    begin = lambda asked: asking(wanted[asked.id])  # noqa: E731
    traces = list(answer_all([question(n) for n in wanted], begin, UNSURE, shelf, method="m", threshold=0.0))
    assert shelf.calls == [(("it", "it"), 1), (("it",), 3)]
    assert {t.question_id: t.answer for t in traces} == {"a": "1 hits", "b": "3 hits", "c": "1 hits"}
    assert [t.spent.searches for t in traces] == [1, 1, 1] and all(t.retrieved for t in traces)


@pytest.mark.parametrize(
    ("said", "figures"),
    [("Ann", (True, 1.0, 1.0)), ("It is Ann", (True, 0.0, 0.5)), ("Bob", (False, 0.0, 0.0))],
)
def test_correct_is_by_the_question_s_rule_and_exact_match_and_f1_beside_it(said, figures):
    asked = replace(question(), grading="contains")
    begin = lambda one: single_hop(one, SelfAwareSettings(0.0))  # noqa: E731
    (trace,) = answer_all([asked], begin, Script(lambda ask: (said, -1.0)), Shelf(), method="m", threshold=0.0)
    assert (trace.correct, trace.exact_match, trace.f1) == figures
