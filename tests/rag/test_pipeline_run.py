"""A pipeline's run over a folder: settings reach the loop, what answers depend on is noted, the threshold is shared."""

from dataclasses import replace
from functools import partial

import pytest
from seakr_stand_ins import Script, Shelf, question
from tiny_kbm import make_folder

from kbtrain.errors import UserError
from kbtrain.gates.seakr.engine import SeakrSettings
from kbtrain.gates.seakr.gate import SeakrCard
from kbtrain.io import jsonl
from kbtrain.rag import seakr_run as library
from kbtrain.rag.seakr_lockstep import answer_all
from kbtrain.rag.seakr_loops import SelfAwareSettings, multi_hop
from kbtrain.rag.seakr_run import (
    SeakrPipelineConfig,
    SeakrRun,
    choose_questions,
    first_thoughts,
    for_ratio,
    open_thinking,
)
from kbtrain.records import Passage, Question
from kbtrain.report.page import render_traces

OTHER = {
    "documents": 4, "no_rerank": True, "no_reason": True, "max_steps": 3, "max_documents": 2, "word_confidence": 0.8,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    questions = [
        Question(f"{split}{i}", "Who wrote it?", ("Ann",), split, "d") for split in ("dev", "test") for i in range(4)
    ]
    jsonl.write(tmp_path / "questions.jsonl", questions)
    jsonl.write(tmp_path / "passages.jsonl", [Passage("p", "T", "text")])
    (tmp_path / "seakr").mkdir()
    card = SeakrCard(base_model="tiny", dtype="fp32", prompt_fingerprint="0", settings=SeakrSettings())
    card.write(tmp_path / "seakr")
    return tmp_path


@pytest.fixture
def script(monkeypatch):
    """Sure of every second question (by the last digit of its id)."""
    made = Script(lambda ask: ("So the answer is: Ann.", float(int(ask.id.split("/")[0][-1]) % 2)))
    monkeypatch.setattr(library, "open_thinking", lambda config: made)
    monkeypatch.setattr(library, "open_search", lambda run: Shelf())
    return made


def test_the_split_is_answered_once_and_other_settings_are_refused(folder, script):
    config = SeakrPipelineConfig(run=folder, limit=2)
    assert len(list(SeakrRun(config, "m").answer())) == 2
    asked = len(script.asks)
    assert SeakrRun(config, "m").n_left == 0 and not list(SeakrRun(config, "m").answer())
    assert len(script.asks) == asked
    with open(folder / "methods" / "m.jsonl", "a") as torn:  # killed in the middle of the third
        torn.write('{"question_id": "te')
    whole = SeakrRun(SeakrPipelineConfig(run=folder), "m")
    assert whole.n_left == 2 and len(list(whole.answer())) == 2
    assert [trace.question_id for trace in whole.traces()] == [f"test{i}" for i in range(4)]
    for name, value in (OTHER | {"signal": "perplexity", "demonstrations": 3, "chain_tokens": 9}).items():
        with pytest.raises(UserError, match=f"begun with {name} = "):
            SeakrRun(SeakrPipelineConfig(run=folder, **{name: value}), "m")


def test_stored_traces_are_graded_by_todays_rules_and_not_answered_again(folder, script):
    run = SeakrRun(SeakrPipelineConfig(run=folder), "m")
    made = list(run.answer())
    assert all(trace.correct for trace in made)
    jsonl.write(run.out, [replace(trace, correct=False, exact_match=0.0, f1=0.0) for trace in made])  # by older rules
    again = SeakrRun(SeakrPipelineConfig(run=folder), "m")
    assert again.n_left == 0 and again.traces() == sorted(made, key=lambda trace: trace.question_id)


def test_variants_share_a_threshold_unless_the_first_thought_differs(folder, script):
    def thresholds(name, **changes):
        list(SeakrRun(SeakrPipelineConfig(run=folder, **changes), name).answer())
        return len(list((folder / "methods").glob(f"threshold_{'?' * 12}.json")))

    assert thresholds("plain") == 1
    assert thresholds("few", documents=1) == thresholds("untried", no_rerank=True) == 1
    for n, changes in enumerate(
        ({"signal": "perplexity"}, {"demonstrations": 3}, {"max_new_tokens": 9}, {"ratio": 0.25}), 2
    ):
        assert thresholds(f"v{n}", **changes) == n


def test_the_threshold_is_the_one_of_dev_or_the_given_one(folder, script):
    chosen = list(SeakrRun(SeakrPipelineConfig(run=folder), "dev").answer())
    assert {trace.threshold for trace in chosen} == {0.5}  # half of dev at 0, half at 1
    given = list(SeakrRun(SeakrPipelineConfig(run=folder, threshold=-2.0), "given").answer())
    assert {trace.threshold for trace in given} == {-2.0}


@pytest.mark.parametrize("key", ["no_reason", "max_steps", "chain_tokens"])
def test_keys_that_one_hop_never_reads_are_refused(folder, key):
    with pytest.raises(ValueError, match=f"key '{key}'"):
        SeakrPipelineConfig(run=folder, method="single_hop", **{key: 2 if "_" in key and key != "no_reason" else True})


def test_the_gate_s_model_thinks_with_the_run_s_own_settings(tmp_path):
    model = make_folder(tmp_path / "model")
    (tmp_path / "seakr").mkdir()
    SeakrCard(
        base_model=str(model), dtype="fp32", prompt_fingerprint="0",
        settings=SeakrSettings(k=3, max_prompt_tokens=1200),
    ).write(tmp_path / "seakr")  # fmt: skip
    config = SeakrPipelineConfig(run=tmp_path, signal="perplexity", max_new_tokens=7, demonstrations=1, chain_tokens=9)
    opened = open_thinking(config)
    settings = opened.engine.settings
    assert (settings.signal, settings.max_new_tokens, settings.k) == ("perplexity", 7, 3)
    assert (opened.demonstrations, opened.chain_tokens) == (1, 9)
    assert open_thinking(config.model_copy(update={"signal": None})).engine.settings.signal == "seakr"


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
    assert "Right: 1.000" in page and "(of the 1 with a reference answer); searches" in page
    assert page.count("right &middot; gold: Ann") == page.count("no gold answer") == 1
    assert 'class="bad"' not in page and "with a reference answer" not in render_traces([first], "t")


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
