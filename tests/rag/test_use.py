"""kbtrain.rag.answer: plain functions or the project's parts, with the prompts of sampling."""

from typing import Any

import pytest

from kbtrain import rag
from kbtrain.errors import UserError
from kbtrain.gate.card import GateCard, Threshold
from kbtrain.gate.gate import Gate
from kbtrain.prompts.kbm import answer_prompt, evidence_text
from kbtrain.prompts.own import OwnPrompts
from kbtrain.records import Question, Sample, SampleSet
from kbtrain.retrieval.base import hit_of


class Digits(Gate):
    """The digit at a question's end, over 10."""

    name = "digits"

    def score_examples(self, examples):
        return [int(example.question[-1]) / 10 for example in examples]


class WithPassages(Digits):
    needs_evidence = True


class LastFirst:
    """A model that answers the last question first, as a batch may come back, with its condition and evidence."""

    def facts(self):
        return {}

    def answer(self, requests):
        for request in reversed(requests):
            greedy = Sample(-1, f"{request.condition}:{request.evidence}", 3, "eos", 0.0)
            yield [SampleSet(request.question.id, request.condition, (), greedy, 10)]


def echo(prompt):
    return prompt


def question(text):
    return Question("q", text, ("x",), "test", "d")


def test_plain_functions_get_the_very_prompts_of_sampling():
    asked = []

    def search(text, k):
        asked.append((text, k))
        return ["It is blue.", {"text": "It is far.", "title": "Sky"}, "third"][:k] if "7" in text else []

    texts = ["number 2", "number 7", "number 9"]
    found = rag.answer(texts, Digits(), llm=echo, search=search, k=2, threshold=0.5)
    assert [one.retrieved for one in found] == [False, True, True] and asked == [("number 7", 2), ("number 9", 2)]
    hits = [hit_of("It is blue.", 1), hit_of({"text": "It is far.", "title": "Sky"}, 2)]
    evidence = evidence_text([hit for hit in hits if hit is not None])
    assert found[0].text == answer_prompt(question("number 2"), "llm")
    assert found[1].text == answer_prompt(question("number 7"), "rag", evidence) and len(found[1].hits) == 2
    assert found[2].text == answer_prompt(question("number 9"), "llm")  # nothing found: as if not searched for
    assert rag.answer(["number 9"], Digits(), llm=echo, search=lambda text: ["one"], threshold=0.5)[0].hits


def test_answers_are_in_the_order_of_the_questions():
    texts = ["number 5", "number 8", "nothing 9"]
    found = rag.answer(
        texts, Digits(), llm=LastFirst(), search=lambda text: [] if "nothing" in text else [text], threshold=0.5
    )
    assert [one.text for one in found] == ["llm:None", "rag:number 8", "llm:None"]  # 0.5 is not above 0.5
    decided = [(one.retrieved, one.score, len(one.hits)) for one in found]
    assert decided == [(False, 0.5, 0), (True, 0.8, 1), (True, 0.9, 0)]


def test_a_function_s_answer_is_what_follows_its_thought():
    said = {"number 1": "<think>\nTwo?\n</think>\n\nThree", "number 2": "<think>\nTwo"}
    found = rag.answer(
        list(said), Digits(), llm=lambda prompt: said[prompt[prompt.index("number") :][:8]], search=lambda text: [],
        threshold=0.5,
    )  # fmt: skip
    assert [one.text for one in found] == ["Three", ""]


@pytest.mark.parametrize(
    ("change", "said"), [ ({"texts": "number 7"}, "put it in a list"),
    ({"texts": ["number 7", " "]}, "text 1 is not a question"),
    ({"texts": {"number 7": 1}}, "expected a list of questions, found {'number 7'"),
    ({"gate": None}, r"gate: expected a gate \(kbtrain.load_gate\) or its folder, found None"),
    ({"gate": "nowhere"}, "nowhere/gate.json: no such file"),
    ({"threshold": float("nan")}, "threshold: expected a finite number, found nan"),
    ({"k": 0}, "k: expected a number of passages from 1, found 0"),
    ({"k": "3"}, "k: expected a number of passages from 1, found '3'"),
    ({"gate": WithPassages()}, "gate 'digits' needs retrieved text"),
    ({"llm": "gpt"}, "llm: expected a function of a prompt, or a model of kbtrain.llm, found 'gpt'"),
    ({"llm": lambda: "x"}, r"llm: the function takes other arguments \(too many .*\); expected ask\(prompt\)"),
    ({"search": 3}, "search: expected a function of a question, or a search of kbtrain.retrieval, found 3"),
    ({"search": lambda: []}, r"search: the function takes other arguments \(.*\); expected find\(question\) or"), (
    {"search": lambda text: [{"text": "a", "score": "high"}]}, "passage 0 is neither a text nor .* 'score': 'high'", ),
    ({"threshold": None}, "no threshold in its gate.json"),
    ({"llm": lambda prompt: None}, "gave NoneType, expected the answer's text"),
    ({"search": lambda text, k: "a text"}, "gave str, expected a list of passages"),
    ({"search": lambda text, k: [3]}, "passage 0 is neither a text"), ],
)  # fmt: skip
def test_a_wrong_argument_is_one_line(change, said):
    given: dict[str, Any] = {"texts": ["number 7"], "llm": echo, "search": lambda text, k: ["a"], "threshold": 0.5}
    given |= change
    with pytest.raises(UserError, match=said):
        rag.answer(given.pop("texts"), given.pop("gate", Digits()), **given)


def test_a_search_gets_k_only_where_it_is_meant():
    def by_name(text, lang="en", k=9):
        return [f"{lang} {k}"]

    def other_default(text, lang="en"):
        return [lang]

    def keyword(text, *, k):
        return [str(k)]

    def anything(*texts):
        return [str(len(texts))]

    found = {
        find: rag.answer(["number 9"], Digits(), llm=echo, search=find, k=2, threshold=0.5)[0].hits[0].text
        for find in (by_name, other_default, keyword, anything)
    }
    assert list(found.values()) == ["en 2", "en", "2", "1"]


def test_a_gate_trained_with_own_prompts_asks_with_them():
    own = OwnPrompts("Ask: {question}", "Read {evidence}. Ask: {question}", "Be brief.")
    gate = Digits()
    gate.card = GateCard(kind="digits", label_rule={"own_prompts": own.as_record()})
    found = rag.answer(["a 1", "b 9"], gate, llm=echo, search=lambda text: ["it"], threshold=0.5)
    assert [one.text for one in found] == ["Be brief.\nAsk: a 1", "Be brief.\nRead it. Ask: b 9"]
    gate.card = GateCard(
        kind="digits", label_rule={"own_prompts": {**own.as_record(), "rag": "{evidence} {question}!"}}
    )
    with pytest.raises(UserError, match="they were changed"):
        rag.answer(["b 9"], gate, llm=echo, search=lambda text: ["it"], threshold=0.5)


def test_the_gate_s_own_threshold_holds_unless_one_is_given():
    gate = Digits()
    noted = Threshold(threshold=0.65, rule="ratio 0.5", dev_file_sha256="0", n_dev=9)
    gate.card = GateCard(kind="digits", thresholds={"digits": noted})
    texts = ["number 6", "number 7"]
    for threshold, searched in ((None, [False, True]), (0.5, [True, True]), (0.8, [False, False])):
        found = rag.answer(texts, gate, llm=echo, search=lambda text: ["it"], threshold=threshold)
        assert [one.retrieved for one in found] == searched


def test_titles_are_shown_as_in_the_answers_that_the_gate_is_about():
    gate, hits = Digits(), [{"text": "Sky is far.", "title": "Sky"}]
    for rule, shown in (("always", True), ("missing", False)):
        gate.card = GateCard(kind="digits", label_rule={"titles": rule})
        (found,) = rag.answer(["b 9"], gate, llm=echo, search=lambda text: hits, threshold=0.5)
        assert ("Sky: Sky is far." in found.text) == shown
