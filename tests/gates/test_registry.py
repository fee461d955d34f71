"""The one list of gates: cards are read and written back, handles name inputs, packages add kinds."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_turns import turn

import kbtrain
from kbtrain.errors import UserError
from kbtrain.gate.card import Threshold, set_threshold
from kbtrain.gates.handles import handle, handle_of_prompt
from kbtrain.gates.registry import kind_named, kinds, read_card
from kbtrain.gates.turns import DialogueStateGate

ROOT = Path(__file__).parents[2]

# gate.json by kind, as a card writes it
CARDS = {
    "seakr": {
        "schema_version": 1, "kind": "seakr", "base_model": "m", "dtype": "bf16", "prompt_fingerprint": "0",
        "settings": {
            "signal": "seakr", "k": 20, "alpha": 0.001, "layer": 3, "mlp": "mlp", "temperature": 1.0, "top_k": 50,
            "top_p": 0.9, "max_new_tokens": 24, "stop": ["\n"], "max_prompt_tokens": 2048, "seed": "seakr",
        },
        "thresholds": {}, "run": {"n": 1}, "versions": {"torch": "2"},
    },
    "kbm": {
        "schema_version": 1, "kind": "kbm", "base_model": "m", "keys": ["mastery", "benefit"],
        "prompt_fingerprint": "0", "max_length": 512, "dtype": "bf16", "method": "full", "labels": "soft",
        "merged": True, "base_fingerprint": None, "thresholds": {}, "label_rule": {}, "run": {}, "versions": {},
    },
    "ragate_mha": {
        "schema_version": 1, "kind": "ragate_mha", "base_model": None, "reads": {"max_length": 9}, "labels": "hard",
        "key": "mastery", "base": None, "seed": 0, "thresholds": {}, "label_rule": {}, "run": {}, "versions": {},
    },
    "ragate_peft": {
        "schema_version": 1, "kind": "ragate_peft", "base_model": "m", "base_fingerprint": "a-b", "method": "qlora",
        "features": ["know"], "prompt_fingerprint": "0", "max_length": 512, "dtype": "bf16", "seed": 0,
        "merged": False, "thresholds": {}, "label_rule": {}, "run": {}, "versions": {},
    },
    "dialogue_state": {
        "schema_version": 1, "kind": "dialogue_state", "intercept": 0.5, "weights": {"turn": 0.25}, "thresholds": {},
        "run": {"turns": 9},
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", CARDS)
def test_a_card_is_read_and_written_back_to_the_byte(kind, tmp_path):
    text = json.dumps(CARDS[kind], ensure_ascii=False, indent=1) + "\n"
    (tmp_path / "gate.json").write_text(text, encoding="utf-8")
    card = read_card(tmp_path)
    assert type(card) is kind_named(kind).card and card.kind == kind
    card.write(tmp_path)
    assert (tmp_path / "gate.json").read_text(encoding="utf-8") == text


def test_names_come_from_kind_and_folder(tmp_path):
    for folder in ("kbm", "lora", "other"):
        kind = {"lora": "kbm", "other": "ragate_mha"}.get(folder, folder)
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "gate.json").write_text(json.dumps(CARDS[kind]))
    assert handle(tmp_path / "kbm").names == ("kbm_mastery", "kbm_benefit")
    assert handle(tmp_path / "lora").names == ("lora_mastery", "lora_benefit")
    assert handle(tmp_path / "lora", name="kbm").names == ("kbm_mastery", "kbm_benefit")
    assert handle(tmp_path / "other").names == ("other",)


def test_scores_depend_on_card_and_weights_but_not_on_thresholds(tmp_path):
    DialogueStateGate.fit([turn(i) for i in range(40)]).card.write(tmp_path / "a")
    before = handle(tmp_path / "a").identity
    set_threshold(tmp_path / "a", "dialogue_state", Threshold(threshold=0, rule="x", dev_file_sha256="0", n_dev=1))
    assert handle(tmp_path / "a").identity == before
    (tmp_path / "a" / "model.safetensors").write_bytes(b"other")
    assert handle(tmp_path / "a").identity != before


def test_an_unknown_kind_is_one_line_with_the_nearest(tmp_path):
    (tmp_path / "gate.json").write_text('{"kind": "ragate_mh"}')
    with pytest.raises(UserError, match="unknown kind 'ragate_mh'; did you mean 'ragate_mha'"):
        kbtrain.load_gate(tmp_path)
    for text, says in (("[]", "expected a JSON object"), ("{}", "field 'kind'"), ("{", "broken JSON")):
        (tmp_path / "gate.json").write_text(text)
        with pytest.raises(UserError, match=says):
            kbtrain.load_gate(tmp_path)


@pytest.mark.parametrize(
    ("card", "what"),
    [('{"kind": "p_yes"}', "of kind 'p_yes'"), ('{"kind": "features", "keys": ["change"]}', "for key 'change'")],
)
def test_what_was_removed_is_said_with_its_version(tmp_path, card, what):
    (tmp_path / "gate.json").write_text(card)
    with pytest.raises(UserError, match=rf"gates {what} were removed before 0\.1\.0 \(CHANGELOG\.md\)"):
        kbtrain.load_gate(tmp_path)


def test_the_gate_of_the_contributing_page_is_registered_fitted_and_opened_as_it_is_printed(tmp_path):
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    if importlib.util.find_spec("ruff"):
        told = [sys.executable, "-m", "ruff", "format", "--check", "--stdin-filename", str(ROOT / "length.py")]
        assert subprocess.run(told, input=code, capture_output=True, text=True, cwd=ROOT).returncode == 0
    shutil.copytree(ROOT / "kbtrain", tmp_path / "kbtrain", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "kbtrain" / "gates" / "length.py").write_text(code, encoding="utf-8")
    (line,) = re.findall(r"the line `([^`]*)` in `GATES`", page)
    registry = tmp_path / "kbtrain" / "gates" / "registry.py"
    text, start = registry.read_text(encoding="utf-8"), "GATES: dict[str, str] = {"
    registry.write_text(text.replace(start, f"{start}\n    {line}", 1), encoding="utf-8")
    script = """
import kbtrain, sys
from pathlib import Path
from kbtrain.gates.registry import kinds
examples = [kbtrain.GateExample.ask(text) for text in ("a", "abc")]
fitted = kinds()[sys.argv[2]].fit(examples, [0.0, 1.0])
fitted.card.write(Path(sys.argv[1]))
print(fitted.score_examples(examples), kbtrain.load_gate(sys.argv[1]).score(["a", "abc"]), kbtrain.__file__)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "gate"), "length"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("] ") == ["[1.0, 3.0", "[1.0, 3.0", f"{tmp_path / 'kbtrain' / '__init__.py'}\n"]


def test_a_broken_entry_point_is_one_line(monkeypatch):
    from importlib.metadata import EntryPoint

    for point, says in (
        (EntryPoint("kbm", "json:dumps", "kbtrain.gates"), "kbtrain has a gate of that name"),
        (EntryPoint("mine", "json:nothing", "kbtrain.gates"), "cannot be loaded"),
        (EntryPoint("mine", "json:dumps", "kbtrain.gates"), "expected a kbtrain.gates.registry.Kind, found function"),
    ):
        monkeypatch.setattr("kbtrain.gates.registry.entry_points", lambda group, point=point: [point])
        with pytest.raises(UserError, match=says):
            kinds()


@pytest.mark.parametrize(
    ("name", "where"),
    [("prompt", "kbtrain.prompts.kbm._NEED"), ("ragate_prompt_in_context", "kbtrain.prompts.ragate._INPUT")],
)
def test_scores_of_a_prompted_gate_are_made_again_when_its_prompt_has_other_words(name, where, monkeypatch):
    before = handle_of_prompt(name, "m").identity
    assert handle_of_prompt(name, "m").identity == before != handle_of_prompt(name, "other").identity
    new = {"en": "other {query}", "zh": "other {query}"} if name == "prompt" else "other {context}"
    monkeypatch.setattr(where, new)
    assert handle_of_prompt(name, "m").identity != before
