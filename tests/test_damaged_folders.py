"""Damaged gate folders: each is opened, or refused in one line that names a file in it; never a traceback or a hang."""

import json
import random
import shutil
from typing import Any

import pytest
from tiny_turns import turn
from torture.folders import KINDS, NOTED, campaign, without_hashes

from kbtrain.errors import UserError
from kbtrain.gate.card import set_threshold
from kbtrain.gates.registry import load_gate
from kbtrain.io.jsonl import write
from kbtrain.records import Passage
from kbtrain.retrieval.bm25 import BM25, document_frequencies
from kbtrain.retrieval.retrieve_stage import open_index

SEED = 7
INPUT = {"low": 0, "high": 1, "log_odds": False, "slope": 1}
EACH = 1  # damages drawn for each file; `make torture` does all


@pytest.fixture(autouse=True)
def _folder_of_its_own(tmp_path, monkeypatch):
    """A model's path is relative to the working folder: '../..' is a folder of the test."""
    work = tmp_path / "some" / "where"
    work.mkdir(parents=True)
    monkeypatch.chdir(work)


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_folders_open_or_are_refused_in_one_line(kind, tmp_path, record_property):
    tries, broke = campaign(kind, tmp_path, random.Random(SEED), EACH)
    record_property("tries, held, broke", (tries, tries - len(broke), len(broke)))
    assert broke == []


@pytest.mark.parametrize("kind", ["kbm", "ragate_mha", "features", "stack"])  # `make torture` does all
def test_folders_with_hashes_score_as_they_were_made_or_are_refused(kind, tmp_path):
    """Configuration and tokenizer are named in the card, too: another vocabulary scored in silence."""
    tries, broke = campaign(kind, tmp_path, random.Random(SEED), EACH, hashes=True)
    assert tries and broke == []


def _changed(path, **fields):
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps({**before, **fields}), encoding="utf-8")


TOKENIZER = {"model": {"type": "BPE", "vocab": {}, "merges": []}}
OF_OTHER_MEMBERS = {"mastery": {"intercept": 0, "inputs": {"a/b": INPUT}, "strength": 1}}
HASHED = [  # (kind, file, what it says instead, the error's line): what gate.json names the hashes of
    ("kbm", "tokenizer_config.json", {"model_max_length": 3}, "tokenizer_config.json: not the file that gate.json"),
    ("encoder", "config.json", {"layer_norm_eps": 3}, "config.json: not the file that gate.json names"),
    ("ragate_peft", "adapter/adapter_config.json", {"lora_alpha": 3}, "adapter_config.json: not the file that gate"),
    ("kbm", "added_tokens.json", {"x": 3}, "added_tokens.json: gate.json names no such file"),
    ("features", "gate.json", {"keys": []}, "gate.json: field 'keys': tuple should have at least 1 item"),
    ("probe", "gate.json", {"base_fingerprint": "/etc"}, "was trained on another base"),
    ("seakr", "gate.json", {"base_model": "x"}, "model 'x': cannot be opened"),
    ("draft", "gate.json", {"signal": "x"}, "field 'signal': input should be 'draft_margin'"),
    ("stack", "gate.json", {"members": [{"folder": "x\0y"}]}, "gate.json: "),
    ("features", "gate.json", {"keys": True}, "field 'keys'"),
    ("encoder_probe", "gate.json", {"reads": {"max_length": -1}}, "max_length: expected a number of tokens"),
    ("ragate_mha", "gate.json", {"reads": {"max_length": 9, "inputs": 0}}, "inputs: expected one of contx"),
]
UNHASHED = [  # the same of folders without hashes, as older versions made them
    ("features", "tokens.json", {"pattern": "("}, "tokens.json: broken"),
    ("features", "tokens.json", {"southeast_asian": "x"}, "tokens.json: broken"),
    ("features", "tokens.json", {"rule": "x"}, "tokens.json: words were split by another rule"),
    ("features", "tokens.json", {"stemmer": 3}, "tokens.json: broken"),
    ("features", "tokens.json", {"stemmer": "x"}, "tokens.json: broken"),
    ("encoder", "tokenizer_config.json", {"pad_token": "x"}, "its tokenizer has tokens up to"),
    ("ragate_mha", "config.json", {"n_heads": 0.5}, "n_heads: expected a whole number"),
    ("ragate_peft", "tokenizer.json", TOKENIZER, "ragate_peft.*tokenizer knows no word"),
    ("kbm", "tokenizer.json", TOKENIZER, "kbm.*tokenizer knows no word"),
    ("seakr", "gate.json", {"base_model": "../.."}, "gate.json: field 'base_model': model '../..': cannot"),
    ("draft", "gate.json", {"base_model": "../.."}, "gate.json: field 'base_model': model '../..': cannot"),
    ("features", "gate.json", {"models": {}}, "gate.json: field 'models': .*nothing for key 'mastery'"),
    ("stack", "gate.json", {"models": {}}, "gate.json: field 'models': .*nothing for key 'mastery'"),
    ("stack", "gate.json", {"models": OF_OTHER_MEMBERS}, "field 'models': .*'a/b' is not a score of its members"),
]


@pytest.mark.parametrize(
    ("hashes", "kind", "file", "fields", "says"),
    [*((True, *row) for row in HASHED), *((False, *row) for row in UNHASHED)],
)
def test_what_would_score_otherwise_or_break_while_scoring_is_one_line_of_opening(
    hashes, kind, file, fields, says, tmp_path
):
    KINDS[kind](tmp_path / kind)
    if not hashes:
        without_hashes(tmp_path / kind)
    _changed(tmp_path / kind / file, **fields)
    with pytest.raises(UserError, match=says) as caught:
        load_gate(tmp_path / kind, dtype="fp32", device="cpu")
    assert f"/{kind}" in str(caught.value) and "\n" not in str(caught.value)


def test_a_network_that_gives_no_number_does_not_score(tmp_path):
    KINDS["ragate_mha"](tmp_path / "gate")
    gate: Any = load_gate(tmp_path / "gate", dtype="fp32", device="cpu")
    gate.model.classifier.bias.data.fill_(float("nan"))
    with pytest.raises(UserError, match=r"tensor 'classifier\.bias' holds NaN"):
        gate.score([turn(0), turn(1)])


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("gate.json", b'{"kind": "x", "thresholds": []}', r"gate\.json: field 'thresholds'"),
        ("gate.json", b'{"kind": "x", "thresholds": {"a": 1}}', r"gate\.json: field 'thresholds'"),
        ("README.md", b"\xff", r"README\.md:1: not UTF-8 text"),
    ],
)
def test_a_threshold_that_cannot_be_noted_leaves_card_and_readme_as_they_were(tmp_path, file, content, says):
    (tmp_path / "gate.json").write_text('{"kind": "x"}')
    (tmp_path / file).write_bytes(content)
    before = (tmp_path / "gate.json").read_bytes()
    with pytest.raises(UserError, match=says):
        set_threshold(tmp_path, "a gate", NOTED)
    assert (tmp_path / "gate.json").read_bytes() == before


@pytest.mark.parametrize("share", [0, 0.5, 1])
def test_a_damaged_index_is_built_again(share, tmp_path):
    """Cut, or (1) of the same size with other bytes at its end."""
    corpus, folder = tmp_path / "passages.jsonl", tmp_path / "index"
    write(corpus, [Passage(str(i), f"Town {i}", f"A town of {i} people by a river.") for i in range(9)])
    sought = open_index(corpus, folder).search(["town of 3 people"], 2)
    files = [path for path in sorted(folder.iterdir()) if path.stat().st_size > 1]
    assert len(files) > 4
    for path in files:
        whole = path.read_bytes()
        path.write_bytes(whole[: int(len(whole) * share)] if share < 1 else whole[:-4] + b"\1\2\1\2"[: len(whole)])
        assert open_index(corpus, folder).search(["town of 3 people"], 2) == sought
    made = folder.stat().st_mtime_ns
    open_index(corpus, folder)
    assert folder.stat().st_mtime_ns == made


@pytest.mark.parametrize("damage", ["cut", "a byte", "gone"])
def test_a_damaged_index_is_one_line_for_what_cannot_build_it(damage, tmp_path):
    """A server, and a gate's words and their frequencies."""
    corpus, folder = tmp_path / "passages.jsonl", tmp_path / "index"
    write(corpus, [Passage(str(i), f"Town {i}", f"A town of {i} people by a river.") for i in range(9)])
    open_index(corpus, folder)
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        path.write_bytes(whole[:-9] if damage == "cut" else whole[:-9] + b"7" + whole[-8:])
        if damage == "gone":
            path.unlink()
        for read in (BM25.load, document_frequencies):
            with pytest.raises(
                UserError, match=r"/index: was changed since index made it; run data_gen/retrieve.py with"
            ):
                read(folder)
        path.write_bytes(whole)


def test_a_part_that_is_a_link_to_itself_is_one_line(tmp_path):
    KINDS["stack"](tmp_path / "gate")
    shutil.rmtree(tmp_path / "gate" / "one")
    (tmp_path / "gate" / "gate.json").rename(tmp_path / "gate.json")
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(UserError, match="part 'one' is a link that leads nowhere; remove it"):
        load_gate(tmp_path)
