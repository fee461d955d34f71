import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_kbm import make_folder

from kbtrain.gates.probe.gate import DraftProbe, DraftProbeCard, Probe, ProbeCard, Reader
from kbtrain.gates.probe.head import Head
from kbtrain.gates.probe.reuse import plain_answers, reads_its_model
from kbtrain.llm.base import AnswerRequest, Sampling
from kbtrain.llm.transformers_llm import TransformersLLM
from kbtrain.models.adapters import base_fingerprint
from kbtrain.models.batching import BatchLimits
from kbtrain.rag.three_steps import ThreeSteps
from kbtrain.records import Hit, Question

QUESTIONS = [
    Question(f"q{i}", f"Where is place {i}?" + " It is far away, they say." * (i % 4), ("here",), "test", "x")
    for i in range(12)
]


def answer(questions, *steps, **settings):
    return ThreeSteps(*steps, **settings).answer(questions)


class Finder:
    def __init__(self) -> None:
        self.asked: list[str] = []

    def search(self, queries, k):
        self.asked += queries
        return [(Hit("p", "Place", f"It is near {query[-9:]}", 1.0),) for query in queries]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def llm(request, tmp_path_factory):
    folder = make_folder(tmp_path_factory.mktemp("model") / "model", request.param, num_hidden_layers=3)
    sampling = Sampling(max_new_tokens=6)
    return TransformersLLM.load(str(folder), sampling, "fp32", "cpu", BatchLimits(rows=5, prompt_tokens=2000))


@pytest.fixture
def gate(llm):
    rng = np.random.default_rng(0)
    head = Head((0, 2), rng.normal(size=(2, 32)).astype(np.float32), 0.1)
    card = ProbeCard(
        base_model=llm.name, base_fingerprint=base_fingerprint(llm.name), dtype="fp32", prompt_fingerprint="",
        condition="llm", method="ridge", labels="soft", keys=("mastery",), heads={"mastery": ()},
    )  # fmt: skip
    return Probe(Reader(llm.model, llm.tokenizer), {"mastery": head}, "ridge", card)


def test_the_answers_own_prefill_gives_the_scores_and_the_answers_of_known_questions_go_on_from_it(llm, gate):
    from kbtrain.labeling.examples import example

    expected = gate.score([example(question, None) for question in QUESTIONS])
    threshold = float(np.median(expected))
    first = plain_answers(QUESTIONS, gate, threshold, llm)
    scores, said = first.scores, first.said
    assert scores == pytest.approx(expected, abs=1e-4)
    known = [question for question, score in zip(QUESTIONS, expected, strict=True) if score <= threshold]
    assert set(said) == {question.id for question in known} and len(known) == 6
    plain = {
        one.question_id: one for group in llm.answer(AnswerRequest(q, "llm", None, 0) for q in known) for one in group
    }
    for name, one in said.items():
        assert (one.greedy.text, one.greedy.n_tokens) == (plain[name].greedy.text, plain[name].greedy.n_tokens)
        assert one.greedy.logprob == pytest.approx(plain[name].greedy.logprob, abs=1e-4)


def test_prompts_that_are_prefilled_one_by_one_give_the_same(llm, gate, monkeypatch):
    together = plain_answers(QUESTIONS, gate, 0.0, llm).scores
    if not llm.shared_prefix:
        pytest.skip("this model's prompts are prefilled together")
    monkeypatch.setattr("kbtrain.llm.sampler.prefill.pays", lambda model, length: True)
    monkeypatch.setattr("kbtrain.llm.sampler.prefill._ALONE", 1)
    alone = plain_answers(QUESTIONS, gate, 0.0, llm).scores
    assert alone == pytest.approx(together, abs=1e-4)


def test_three_steps_ask_the_probe_within_the_answer(llm, gate, monkeypatch):
    finder = Finder()
    scores = gate.score([question.text for question in QUESTIONS])
    threshold = float(np.median(scores))
    monkeypatch.setattr(gate.reader, "states", lambda *given: pytest.fail("a pass of its own"))
    assert reads_its_model(gate, llm)
    found = answer(QUESTIONS, gate, threshold, llm, finder, k=1)
    assert [one.question_id for one in found] == [question.id for question in QUESTIONS]
    assert [one.score for one in found] == pytest.approx(scores, abs=1e-4)
    assert [one.retrieved for one in found] == [score > threshold for score in scores]
    assert len(finder.asked) == 6 and all(one.hits for one in found if one.retrieved)


def test_a_probe_of_another_model_passes_its_own(llm, gate):
    gate.card, own = gate.card.model_copy(update={"answered_by": "another"}), gate.card
    assert not reads_its_model(gate, llm)  # its labels are of another model's answers
    other = own.model_copy(update={"base_fingerprint": "00000000-00000000"})
    gate.card = other
    assert not reads_its_model(gate, llm)
    assert len(answer(QUESTIONS, gate, 0.0, llm, Finder(), k=1)) == 12


def test_all_searched_and_none_searched(llm, gate):
    none = plain_answers(QUESTIONS, gate, -1e9, llm)
    assert none.said == {} and len(none.scores) == 12
    assert len(plain_answers(QUESTIONS, gate, 1e9, llm).said) == 12


@pytest.fixture(params=[3, 16], ids=["cut", "whole"])
def draft_gate(request, llm):
    """Drafts of 3 tokens, or longer than any answer of 6."""
    rng = np.random.default_rng(0)
    head = Head((0, 2), rng.normal(size=(2, 3 * 32)).astype(np.float32), 0.1)
    card = DraftProbeCard(
        base_model=llm.name, base_fingerprint=base_fingerprint(llm.name), dtype="fp32", prompt_fingerprint="",
        method="ridge", labels="soft", keys=("mastery",), heads={"mastery": ()}, tokens=request.param,
    )  # fmt: skip
    reader = Reader(llm.model, llm.tokenizer, "draft", draft_tokens=min(request.param, 6))
    return DraftProbe(reader, {"mastery": head}, "ridge", card)


def test_a_draft_that_is_not_searched_for_goes_on_as_the_answer_and_another_one_ends(llm, draft_gate):
    expected = draft_gate.score([question.text for question in QUESTIONS])
    threshold = float(np.median(expected))
    first = plain_answers(QUESTIONS, draft_gate, threshold, llm)
    assert first.scores == pytest.approx(expected, abs=1e-4)
    known = [question for question, score in zip(QUESTIONS, expected, strict=True) if score <= threshold]
    assert set(first.said) == {question.id for question in known} and len(known) == 6
    plain = {
        one.question_id: one for group in llm.answer(AnswerRequest(q, "llm", None, 0) for q in known) for one in group
    }
    for name, one in first.said.items():
        assert (one.greedy.text, one.greedy.n_tokens) == (plain[name].greedy.text, plain[name].greedy.n_tokens)
        assert one.greedy.logprob == pytest.approx(plain[name].greedy.logprob, abs=1e-4)
    assert set(first.drafted) == {question.id for question in QUESTIONS} - set(first.said)
    assert all(0 < n <= draft_gate.reader.draft_tokens for n in first.drafted.values())


def test_three_steps_count_the_drafts_of_searched_questions(llm, draft_gate, monkeypatch):
    scores = draft_gate.score([question.text for question in QUESTIONS])
    monkeypatch.setattr(draft_gate.reader, "read", lambda *given: pytest.fail("a draft of its own"))
    assert reads_its_model(draft_gate, llm)
    found = answer(QUESTIONS, draft_gate, float(np.median(scores)), llm, Finder(), k=1)
    assert [one.retrieved for one in found] == [score > float(np.median(scores)) for score in scores]
    assert all(one.llm_requests == 1 + one.retrieved for one in found)
    longest = draft_gate.reader.draft_tokens
    assert all(one.generated_tokens > (longest if one.retrieved and longest == 3 else 0) for one in found)


@pytest.mark.parametrize("changes", [{"max_new_tokens": 2}, {"stop": ()}, {"stop": ("\n", ".")}])
def test_an_answer_that_does_not_begin_with_the_draft_leaves_the_probe_a_draft_of_its_own(llm, draft_gate, changes):
    texts = [question.text for question in QUESTIONS]
    scores, drafts = draft_gate.score(texts), draft_gate.spent["requests"]
    other = copy.copy(llm)
    other.sampling = replace(llm.sampling, **changes)
    assert reads_its_model(draft_gate, llm) and not reads_its_model(draft_gate, other)
    found = answer(QUESTIONS, draft_gate, float(np.median(scores)), other, Finder(), k=1)
    assert [one.score for one in found] == pytest.approx(scores, abs=1e-5)
    assert draft_gate.spent["requests"] == 2 * drafts


def test_longer_answers_begin_with_the_draft(llm, draft_gate):
    other = copy.copy(llm)
    other.sampling = replace(llm.sampling, max_new_tokens=40, temperature=0.5)
    assert reads_its_model(draft_gate, other)


def test_in_another_number_format_and_in_sixteen_bits_a_probe_passes_its_own(tmp_path):
    folder = make_folder(tmp_path / "model", num_hidden_layers=3)
    rng = np.random.default_rng(0)
    head = Head((0, 2), rng.normal(size=(2, 32)).astype(np.float32), 0.1)
    opened = {dtype: TransformersLLM.load(str(folder), Sampling(max_new_tokens=6), dtype, "cpu", BatchLimits(rows=5))
              for dtype in ("fp32", "bf16")}  # fmt: skip
    gates = {}
    for dtype, llm in opened.items():
        card = ProbeCard(
            base_model=llm.name, base_fingerprint=base_fingerprint(llm.name), dtype=dtype, prompt_fingerprint="",
            condition="llm", method="ridge", labels="soft", keys=("mastery",), heads={"mastery": ()},
        )  # fmt: skip
        gates[dtype] = Probe(Reader(llm.model, llm.tokenizer), {"mastery": head}, "ridge", card)
    pairs = [(own, other) for own in gates for other in opened if reads_its_model(gates[own], opened[other])]
    assert pairs == [("fp32", "fp32")]
    scores = gates["bf16"].score([question.text for question in QUESTIONS])
    found = answer(QUESTIONS, gates["bf16"], float(np.median(scores)), opened["bf16"], Finder(), k=1)
    assert [one.score for one in found] == scores  # what is measured is what is used, to the last bit
