"""Traces as a page: everything escaped; the choice of questions and of a threshold."""

from dataclasses import replace
from functools import partial

import pytest
from seakr_stand_ins import Script, Shelf, question

from kbtrain.errors import UserError
from kbtrain.rag.seakr_lockstep import answer_all
from kbtrain.rag.seakr_loops import SelfAwareSettings, multi_hop
from kbtrain.rag.seakr_run import choose_questions, first_thoughts, for_ratio
from kbtrain.report.trace_page import render_traces

EVIL = "<script>alert('x')</script>"


def say(ask):
    if ask.kind == "answer":
        return f"Ann {EVIL}", 0.5
    return ("So the answer is: Ann", 0.3) if ask.documents else (f"Guess {EVIL}.", 1.0)


def traces(names=("q0", "q1")):
    shelf = Shelf(**{"Guess_script_alert_x": ("a", EVIL)})
    asked = [question(n, f"Who {EVIL}?") for n in names]
    begin = partial(multi_hop, settings=SelfAwareSettings(0.0))
    return list(answer_all(asked, begin, Script(say), shelf, method="seakr", threshold=0.0))


def test_the_page_escapes_everything_and_is_self_contained():
    page = render_traces(traces(), f"Title {EVIL}")
    assert EVIL not in page and "&lt;script&gt;alert" in page
    assert "<script" not in page and "http" not in page and "src=" not in page
    for part in ("U 1.000", "Query:", "Title a", "rationales", "documents", "final answer", "searches"):
        assert part in page


def test_the_page_says_in_words_what_is_right_and_of_how_many_questions_its_shares_are():
    first, second = traces()
    page = render_traces([replace(first, correct=True), replace(second, answers=())], "t")
    assert "Right: 1.000" in page and "(of the 1 with a gold answer); searched" in page
    assert page.count("right &middot; gold: Ann") == page.count("no gold answer") == 1
    assert 'class="bad"' not in page and "with a gold answer" not in render_traces([first], "t")


def test_a_smaller_limit_chooses_a_part_of_a_larger_one():
    questions = [question(f"q{i}") for i in range(30)]
    few, more = ({q.id for q in choose_questions(questions, "test", n)} for n in (5, 12))
    assert len(few) == 5 and len(more) == 12 and few < more
    assert choose_questions(questions, "dev", 3) == [] and choose_questions(questions, "test", None) == questions


def test_the_threshold_lets_the_wanted_share_of_first_thoughts_pass():
    us = {f"q{i}": float(i) for i in range(10)}
    script = Script(lambda ask: ("x", us[ask.id.split("/")[0]]))
    begin = partial(multi_hop, settings=SelfAwareSettings(0.0))
    found = [thought.uncertainty for thought in first_thoughts([question(n) for n in us], begin, script, 4)]
    assert found == list(us.values()) and script.calls == 3
    assert sum(u > for_ratio(found, 0.3) for u in found) == 3
    with pytest.raises(UserError, match="no dev question"):
        for_ratio([], 0.5)
