"""One shape for every kind of gate in the registry, on small real folders: load, score, decide, threshold, card."""

from pathlib import Path

import pytest
from support import gate_folders
from support.served_model import serving
from tiny_kbm import make_model, make_tokenizer
from tiny_turns import turn

import kbtrain
from kbtrain.errors import UserError
from kbtrain.gate.card import BestKey, GateCard, KeyedCard, Threshold, set_best, set_threshold
from kbtrain.gate.gate import Gate, logistic
from kbtrain.gates.handles import handle
from kbtrain.gates.registry import GATES, QUESTION, TURN, kind_named, kinds
from kbtrain.records import Decision, GateExample

TEXTS = ["Who wrote it?", "What is the capital of place 3, and who said that of it in the long run?"]
# These cannot be asked a bare text: a turn is decided from the dialogue before it, its services, acts and entities.
TURNS_ONLY = {"ragate_peft", "dialogue_state"}


SERVED = {"draft_of_server": gate_folders.draft_of_server, "decision_model": gate_folders.decision_model}


@pytest.fixture(scope="module")
def url():
    tokenizer = make_tokenizer()
    with serving(make_model(vocabulary=len(tokenizer) + 8), tokenizer) as served:
        yield served.url


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory, url):
    made: dict[str, Path] = {}

    def build(kind):
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(kind) / kind.removesuffix("_of_server")
            if kind in SERVED:
                SERVED[kind](made[kind], url)
            else:
                gate_folders.FOLDERS[kind](made[kind])
        return made[kind]

    return build


@pytest.fixture(params=[*GATES, "draft_of_server"])
def opened(request, folder_of):
    """Name of the kind, its folder, and the gate opened from it by the one function."""
    folder = folder_of(request.param)
    return request.param.removesuffix("_of_server"), folder, kbtrain.load_gate(folder)


def inputs(gate):
    return list(TEXTS) if "question" in gate.reads else [turn(i) for i in (0, 1)]


def noted(value):
    return Threshold(threshold=value, rule="given", dev_file_sha256="0", n_dev=9)


def test_every_kind_has_a_folder_here_and_says_what_it_reads():
    assert set(gate_folders.FOLDERS) == set(GATES)
    assert {name for name, kind in kinds().items() if not kind.reads & QUESTION} == TURNS_ONLY
    assert all(kind.reads <= QUESTION | TURN for kind in kinds().values())


def test_it_is_a_gate_with_its_card_and_one_score_an_input(opened):
    kind, folder, gate = opened
    assert isinstance(gate, Gate) and isinstance(gate.card, GateCard) and gate.card.kind == kind
    assert gate.name in gate.card.names() == handle(folder).names
    asked = inputs(gate)
    scores = gate.score(asked)
    assert len(scores) == 2 and all(isinstance(value, float) for value in scores)
    assert gate.score_all(asked)[gate.name] == pytest.approx(scores, abs=1e-6)
    if "question" in gate.reads:
        assert gate.score([GateExample.ask(text) for text in TEXTS]) == pytest.approx(scores, abs=1e-6)
    if "turn" in gate.reads:
        assert len(gate.score([turn(0)])) == 1


def test_it_decides_by_the_threshold_that_its_card_notes(opened):
    _, folder, gate = opened
    asked = inputs(gate)
    with pytest.raises(UserError, match=f"gate '{gate.name}': no threshold in its gate.json; choose one on dev"):
        gate.decide(asked)
    scores = gate.score(asked)
    cut = (min(scores) + max(scores)) / 2
    card = (folder / "gate.json").read_text()
    try:
        set_threshold(folder, gate.name, noted(cut))
        again = kbtrain.load_gate(folder)
        assert (gate.threshold, again.threshold) == (None, cut)
        decided = again.decide(asked)
        assert all(type(one) is Decision and isinstance(one.retrieve, bool) for one in decided)
        assert [one.score for one in decided] == pytest.approx(scores, abs=1e-6)
        assert [(one.threshold, one.retrieve) for one in decided] == [(cut, one.score > cut) for one in decided]
        stated = {"probability": lambda x: x, "log odds": logistic, None: lambda x: None}[gate.unit]
        assert [one.probability for one in decided] == [stated(one.score) for one in decided]
        assert again.needs_retrieval(asked[0]) is decided[0].retrieve
        assert [again.needs_retrieval(asked[0], cut) for cut in (1e6, -1e6)] == [False, True]
    finally:
        (folder / "gate.json").write_text(card)


def test_a_wrong_argument_is_one_line(opened):
    kind, folder, gate = opened
    wrong = [("Who wrote it?", "put it in a list"), (None, "expected a list"), ([3], "found int at place 0")]
    if "question" in gate.reads:
        wrong += [([" "], "text 0 is empty"), ([TEXTS[0], ""], "text 1 is empty")]
    else:  # the reason is said: it reads turns
        wrong += [([TEXTS[0]], "reads records TurnExample"), ([GateExample.ask("Why?")], "reads records TurnExample")]
    if "turn" not in gate.reads:
        wrong += [([turn(0)], "reads texts or records GateExample")]
    for argument, says in wrong:
        for ask in (gate.score, gate.decide, gate.score_all):
            with pytest.raises(UserError) as error:
                ask(argument, *([0.5] if ask == gate.decide else []))
            assert says in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(UserError) as error:
        kbtrain.load_gate(folder, key="nothing")
    keyed = issubclass(kind_named(kind).card, KeyedCard)
    assert ("has no key 'nothing'" if keyed else "has no keys; remove it") in str(error.value)


@pytest.mark.parametrize("kind", [name for name, kind in kinds().items() if issubclass(kind.card, KeyedCard)])
def test_a_key_is_chosen_by_its_name_and_else_by_what_was_best_on_dev(kind, folder_of):
    folder: Path = folder_of(kind)
    text = (folder / "gate.json").read_text()
    card = kbtrain.load_gate(folder).card
    assert isinstance(card, KeyedCard)
    try:
        for key, name in zip(card.keys, card.names(), strict=True):
            assert kbtrain.load_gate(folder, key=key).name == name
            set_best(folder, BestKey(key=key, rule="largest area on dev", n_dev=9, areas={}))
        assert kbtrain.load_gate(folder).name == card.names()[-1]
    finally:
        (folder / "gate.json").write_text(text)
