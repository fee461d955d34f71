"""The gate of turns without a model: features by hand, and scikit-learn's own scores."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from tiny_turns import turn

import kbtrain
from kbtrain.errors import UserError
from kbtrain.gate.card import Threshold, set_threshold
from kbtrain.gates.turns import DialogueStateGate, dialogue_features
from kbtrain.records import Entity, Utterance

CONTEXT = (
    Utterance("USER", "Any film?", ("Media_3",), ("INFORM_INTENT",)),
    Utterance("SYSTEM", "How about Alien?", ("Media_3",), ("OFFER",), (Entity("Alien", "title", "sgd"),)),
    Utterance(
        "USER", "Rather one by Ridley Scott, and a bus to Rome", ("Media_3", "Buses_1"), ("REQUEST_ALTS", "INFORM"),
        (Entity("Ridley Scott", "directed_by", "sgd"), Entity("alien", "title", "sgd")),
    ),
)  # fmt: skip


def example(**changes):
    return turn(0, turn=3, context=CONTEXT, services=("Media_3", "Buses_1"), **changes)


def test_the_features_of_a_turn_by_hand():
    assert dialogue_features(example()) == {
        "turn": 3, "log_turn": pytest.approx(np.log(4)), "turn=3": 1,
        "turns_of_service": 1, "offers_of_service": 0, "requests_of_service": 0,  # the service it is about: Buses_1
        "turns_since_offer": 2, "never_offered": 0, "informed_never_offered": 0,
        "user_act=REQUEST_ALTS": 1, "user_act=INFORM": 1, "user_acts=INFORM+REQUEST_ALTS": 1,
        "system_act=OFFER": 1, "system_acts=OFFER": 1, "system_count=OFFER": 1, "system_did=OFFER": 1,
        "user_count=INFORM_INTENT": 1, "user_count=REQUEST_ALTS": 1, "user_count=INFORM": 1,
        "service=Media_3": 1, "service=Buses_1": 1, "domain=media": 1, "domain=buses": 1, "new_service": 1,
        "services": 2,
        "domain_user_acts=buses|INFORM+REQUEST_ALTS": 1, "domain_offered=buses|False": 1,
        "user_slot=directed_by": 1, "user_slot=title": 1, "system_slot=title": 1, "slot=title": 1,
        "slot=directed_by": 1,
        "values": 1, "new_values": 1, "names": 1,  # the user's "alien" was named before, and is no capital
        "words_last": 10, "words_context": 15, "question_last": 0, "question_before": 1, "capitals_last": 3,
        "numbers_last": 0,
    }  # fmt: skip


def test_scores_are_those_of_scikit_learn_and_survive_a_folder(tmp_path):
    examples = [turn(i) for i in range(60)]
    gate = DialogueStateGate.fit(examples, c=0.1, least_turns=1)
    rows = DictVectorizer(sparse=False).fit_transform([dialogue_features(one) for one in examples])
    scaled = StandardScaler().fit_transform(rows)
    model = LogisticRegression(C=0.1, max_iter=1000).fit(scaled, [bool(one.label) for one in examples])
    assert gate.score(examples) == pytest.approx(model.predict_proba(scaled)[:, 1], abs=1e-6)
    gate.card.write(tmp_path)
    opened = kbtrain.load_gate(tmp_path)
    assert opened.card == gate.card and opened.score(examples) == gate.score(examples)
    cut = Threshold(threshold=0.3, rule="best_f1", dev_file_sha256="0" * 64, n_dev=4)
    set_threshold(tmp_path, "dialogue_state", cut)
    assert kbtrain.load_gate(tmp_path).card.thresholds == {"dialogue_state": cut}


def test_rare_features_are_left_out_and_unknown_ones_weigh_nothing():
    examples = [turn(i) for i in range(20)] + [replace(example(), label=True)]
    gate = DialogueStateGate.fit(examples, least_turns=2)
    assert "user_slot=name" in gate.card.weights and "user_slot=directed_by" not in gate.card.weights
    assert gate.card.run == {"turns": 21, "positive": 6, "c": 0.004, "least_turns": 2}
    odd = replace(CONTEXT[2], services=("Media_3", "Buses_1"), entities=(Entity("Ridley Scott", "never_seen", "sgd"),))
    same = replace(odd, entities=(Entity("Ridley Scott", "nor_this", "sgd"),))
    one, other = (replace(example(), context=(*CONTEXT[:2], last)) for last in (odd, same))
    assert gate.score([one]) == gate.score([other])


def test_one_class_or_a_broken_file_is_one_line(tmp_path):
    with pytest.raises(UserError, match="2 labelled turns of one class"):
        DialogueStateGate.fit([turn(0), turn(4)])
    (tmp_path / "gate.json").write_text('{"kind": "dialogue_state"}')
    with pytest.raises(UserError, match=r"gate.json: field 'intercept': missing"):
        kbtrain.load_gate(tmp_path)
