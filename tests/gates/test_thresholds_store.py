"""Thresholds noted in gate folders: what may replace what, what the README says, and the folder scores name."""

import json
import shutil
from dataclasses import replace

import pytest
from tiny_turns import turn

from kbtrain.gate.card import CARD, Threshold, set_threshold, with_thresholds
from kbtrain.gate.trained_on import sharing_entities, trained_among, write_trained_on
from kbtrain.gates.handles import handle
from kbtrain.gates.kbm.gate import KBMCard
from kbtrain.gates.thresholds_store import missing_reason, note, source_of, sources_of
from kbtrain.records import GateExample

SHARES = {"retrieval_ratio": 0.25, "accuracy": 0.5}
PROMISE = {**SHARES, "guarantee": {"limit": 0.05, "delta": 0.1}}
BY_RULE, CALIBRATED, PROMISED = (
    Threshold(threshold=value, rule=rule, dev_file_sha256="0", n_dev=300, evidence=evidence)
    for value, rule, evidence in ((0.4, "ratio", {}), (0.5, "ratio 0.5", SHARES), (0.6, "max_loss 0.05", PROMISE))
)
WEAKER, OTHER = (
    PROMISED.model_copy(update={"evidence": {**SHARES, "guarantee": {**PROMISE["guarantee"], **more}}})
    for more in ({"limit": 0.1}, {"promise": "answers_changed"})
)


@pytest.fixture
def folder(tmp_path):
    card = KBMCard(
        base_model="m", keys=("mastery", "benefit"), prompt_fingerprint="0", max_length=64, dtype="fp32", method="full",
        labels="hard",
    )  # fmt: skip
    (tmp_path / "run" / "kbm").mkdir(parents=True)
    card.write(tmp_path / "run" / "kbm")
    return tmp_path / "run" / "kbm"


def noted(folder):
    return KBMCard.read(folder).thresholds.get("kbm_mastery")


@pytest.mark.parametrize(
    ("old", "new", "stays"), [ (BY_RULE, CALIBRATED, False), (BY_RULE, PROMISED, False), (CALIBRATED, BY_RULE, True),
    (CALIBRATED, PROMISED, False), (PROMISED, BY_RULE, True), (PROMISED, CALIBRATED, True),
    (PROMISED, PROMISED, False), (PROMISED, WEAKER, True), (WEAKER, PROMISED, False), (PROMISED, OTHER, True), ],
)  # fmt: skip
def test_a_weaker_threshold_replaces_a_stronger_one_only_if_asked(folder, old, new, stays):
    set_threshold(folder, "kbm_mastery", old)
    new = new.model_copy(update={"threshold": 0.7})
    done = note(folder, "kbm_mastery", new)
    assert (done.kept, noted(folder)) == (stays, old if stays else new)
    assert ("keeps its threshold" if stays else "now 0.7000") in done.line("kbm_mastery", folder)
    assert not note(folder, "kbm_mastery", new, replace=True).kept and noted(folder) == new


def test_what_another_rule_chose_stays_where_the_default_is_noted_and_always_has_no_number(folder):
    default = BY_RULE.model_copy(update={"rule": "best_accuracy", "threshold": -0.3, "dev": {"scores": [0.1, 0.9]}})
    set_threshold(folder, "kbm_mastery", BY_RULE)
    assert not note(folder, "kbm_mastery", default, keep=True).kept  # the one of a training
    evaluated = BY_RULE.model_copy(update={"evidence": {"goal": "ratio"}})
    set_threshold(folder, "kbm_mastery", evaluated)
    done = note(folder, "kbm_mastery", default, keep=True)
    assert done.kept and noted(folder) == evaluated
    assert "keeps its threshold 0.4000 (ratio), not always (best_accuracy)" in done.line("kbm_mastery", folder)
    newer = evaluated.model_copy(update={"threshold": 0.7})
    assert not note(folder, "kbm_mastery", newer, keep=True).kept and noted(folder) == newer  # by the same rule
    assert default.line("a").startswith("- `a`: always search (rule best_accuracy")
    assert not default.model_copy(update={"evidence": {"traffic": {"scores": [-0.9, 0.2]}}}).always


def test_a_threshold_that_is_given_again_stays_with_what_is_known_of_it(folder):
    given = Threshold(threshold=BY_RULE.threshold, rule="given", dev_file_sha256="1", n_dev=9)
    for old in (BY_RULE, CALIBRATED, PROMISED):
        set_threshold(folder, "kbm_mastery", old)
        done = note(folder, "kbm_mastery", given.model_copy(update={"threshold": old.threshold}))
        assert noted(folder) == old and done.line("kbm_mastery", folder) == ""
    near = given.model_copy(update={"threshold": PROMISED.threshold + 1e-6})
    said = note(folder, "kbm_mastery", near).line("kbm_mastery", folder)
    assert "keeps its threshold 0.6 (max_loss 0.05), not 0.600001 (given)" in said


def test_scores_name_their_gate_wherever_the_run_is_moved_and_no_other(folder, tmp_path):
    run = folder.parent
    meta = {"gates": sources_of(handle(folder), run)}
    assert set(meta["gates"]) == {"kbm_mastery", "kbm_benefit"} and meta["gates"]["kbm_benefit"]["folder"] == "kbm"
    set_threshold(folder, "kbm_mastery", BY_RULE)  # a threshold changes no score
    moved = shutil.move(run, tmp_path / "moved")
    found = source_of(moved, json.loads(json.dumps(meta)), "kbm_benefit")
    assert (found.folder, found.name, missing_reason(found)) == (moved / "kbm", "kbm_benefit", "")
    card = json.loads((moved / "kbm" / CARD).read_text())
    (moved / "kbm" / CARD).write_text(json.dumps({**card, "run": {"seconds": 1.5, "peak_rss_mb": 900}}))
    assert missing_reason(found) == ""  # how long it took makes no other gate
    (moved / "kbm" / CARD).write_text(json.dumps({**card, "max_length": card["max_length"] + 1}))
    assert "holds another gate than the one that made the scores" in missing_reason(found)
    shutil.rmtree(moved / "kbm")
    assert "no longer exists" in missing_reason(found)
    assert source_of(moved, meta, "prompt") is None


def test_scores_of_a_second_folder_are_noted_under_the_gate_s_own_names(folder):
    made = sources_of(handle(shutil.copytree(folder, folder.parent / "lora")), folder.parent)
    assert {name: said["name"] for name, said in made.items()} == {
        "lora_mastery": "kbm_mastery", "lora_benefit": "kbm_benefit"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("# G\n\n## Threshold\nNone is set.\n\nMore.\n\n## Run\nr\n", "# G\n\n{}\n\n## Run\nr\n"),
        ("# G\n\nThreshold: none.\n\n## Run\nr\n", "# G\n\nThreshold: none.\n\n{}\n\n## Run\nr\n"),
        ("# G\n", "# G\n\n{}\n"),
        ("# G\n\n## Threshold\nOld.\n", "# G\n\n{}\n"),
    ],
)
def test_the_readme_says_the_thresholds_once(before, after):
    text = (
        "## Threshold\n"
        "- `kbm_mastery`: search if score > 0.4 (rule ratio, 300 dev questions)\n"
        "- `kbm_benefit`: search if score > 0.6 (rule max_loss 0.05, 300 dev questions: 25.0% searched, accuracy "
        "0.500; promised: at most 5 points of right answers lost against always searching, with probability 0.9)"
    )
    made = with_thresholds(before, {"kbm_mastery": BY_RULE, "kbm_benefit": PROMISED})
    assert made == after.format(text)
    assert with_thresholds(made, {"kbm_mastery": BY_RULE, "kbm_benefit": PROMISED}) == made


def test_turns_trained_on_are_known_by_their_dialogue_and_what_was_said(tmp_path):
    train = [turn(i) for i in range(4)]
    write_trained_on(tmp_path, train)
    respelled = replace(train[1], id="x", context=tuple(replace(u, text=u.text.upper()) for u in train[1].context))
    others = [replace(train[0], dialogue_id="another"), replace(train[2], context=train[2].context[:1]), turn(5)]
    assert trained_among(tmp_path, [train[0], respelled, *others]) == [train[0], respelled]


def test_an_entity_is_the_same_in_another_spelling(tmp_path):
    """Before, their hashes kept the case, so that a set in other letters shared no entity with the training's."""
    asked = [replace(GateExample.ask(f"Where is it, {i}?"), entities=(name,)) for i, name in
             enumerate(("New York", "NEW  YORK", "new york", "York"))]  # fmt: skip
    write_trained_on(tmp_path, asked[:1])
    assert sharing_entities(tmp_path, asked) == asked[:3]
