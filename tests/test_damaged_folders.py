"""Damaged gate folders: each is opened, or refused in one line that names a file in it; never a traceback or a hang."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny_turns import turn
from torture.folders import KINDS, NOTED, campaign, verdict, without_hashes

from kbtrain.errors import UserError
from kbtrain.gate.card import set_threshold
from kbtrain.gate.trained_on import trained_among
from kbtrain.gates.registry import GATES, load_gate
from kbtrain.io.jsonl import write
from kbtrain.records import Passage
from kbtrain.retrieval.bm25 import BM25, document_frequencies
from kbtrain.retrieval.retrieve_stage import open_index

SEED = 7
INPUT = {"low": 0, "high": 1, "log_odds": False, "slope": 1}
EACH = 1  # damages drawn for each file; `make torture` does all


@pytest.fixture(autouse=True)
def _folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model's path is relative to the working folder: '../..' is a folder of the test."""
    work = tmp_path / "some" / "where"
    work.mkdir(parents=True)
    monkeypatch.chdir(work)


def test_every_kind_of_gate_is_damaged() -> None:
    assert set(KINDS) == {*GATES, "draft_of_server"}


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_folders_open_or_are_refused_in_one_line(kind: str, tmp_path: Path, record_property: Any) -> None:
    tries, broke = campaign(kind, tmp_path, random.Random(SEED), EACH)
    record_property("tries, held, broke", (tries, tries - len(broke), len(broke)))
    assert broke == []


@pytest.mark.parametrize("kind", ["kbm", "ragate_mha", "features", "stack"])  # `make torture` does all
def test_folders_with_hashes_score_as_they_were_made_or_are_refused(kind: str, tmp_path: Path) -> None:
    """Configuration and tokenizer are named in the card, too: another vocabulary scored in silence."""
    tries, broke = campaign(kind, tmp_path, random.Random(SEED), EACH, hashes=True)
    assert tries and broke == []


def _changed(path: Path, **fields: Any) -> None:
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps({**before, **fields}), encoding="utf-8")


@pytest.mark.parametrize(
    ("kind", "file", "field", "says"),
    [
        (
            "kbm",
            "tokenizer_config.json",
            "model_max_length",
            "tokenizer_config.json: not the file that gate.json names",
        ),
        ("encoder", "config.json", "layer_norm_eps", "config.json: not the file that gate.json names"),
        ("ragate_peft", "adapter/adapter_config.json", "lora_alpha", "adapter_config.json: not the file that gate"),
        ("kbm", "added_tokens.json", "x", "added_tokens.json: gate.json names no such file"),
    ],
)
def test_what_scored_otherwise_in_silence_is_one_line(
    kind: str, file: str, field: str, says: str, tmp_path: Path
) -> None:
    KINDS[kind](tmp_path / kind)
    _changed(tmp_path / kind / file, **{field: 3})
    with pytest.raises(UserError, match=says):
        load_gate(tmp_path / kind, dtype="fp32", device="cpu")


@pytest.mark.parametrize(
    ("kind", "file", "fields", "says"),
    [
        ("features", "tokens.json", {"pattern": "("}, "tokens.json: broken"),
        ("features", "tokens.json", {"southeast_asian": "x"}, "tokens.json: broken"),
        ("features", "tokens.json", {"rule": "x"}, "tokens.json: words cut by another rule than today's"),
        ("features", "tokens.json", {"stemmer": 3}, "tokens.json: broken"),
        ("features", "tokens.json", {"stemmer": "x"}, "tokens.json: broken"),
        ("encoder", "tokenizer_config.json", {"pad_token": "x"}, "its tokenizer has tokens up to"),
        ("ragate_mha", "config.json", {"n_heads": 0.5}, "n_heads: expected a whole number"),
        ("structural", "gate.json", {"coefficients": []}, "gate.json: field 'coefficients': "),
        *(
            (
                kind,
                "tokenizer.json",
                {"model": {"type": "BPE", "vocab": {}, "merges": []}},
                f"{kind}.*tokenizer knows no word",
            )
            for kind in ("ragate_peft", "kbm")
        ),
        *(
            (kind, "gate.json", {"base_model": "../.."}, f"{kind}/gate.json: field 'base_model': model '../..': cannot")
            for kind in ("seakr", "draft")
        ),
        *(
            (kind, "gate.json", {"models": {}}, "gate.json: field 'models': .*nothing for key 'mastery'")
            for kind in ("features", "stack")
        ),
        (
            "stack",
            "gate.json",
            {"models": {"mastery": {"intercept": 0, "inputs": {"a/b": INPUT}, "strength": 1}}},
            "gate.json: field 'models': .*'a/b' is not a score of its members",
        ),
    ],
)
def test_what_broke_while_scoring_is_one_line_of_opening(
    kind: str, file: str, fields: dict[str, Any], says: str, tmp_path: Path
) -> None:
    KINDS[kind](tmp_path / kind)
    without_hashes(tmp_path / kind)
    _changed(tmp_path / kind / file, **fields)
    with pytest.raises(UserError, match=says):
        load_gate(tmp_path / kind, dtype="fp32", device="cpu")


def test_a_network_that_gives_no_number_does_not_score(tmp_path: Path) -> None:
    KINDS["ragate_mha"](tmp_path / "gate")
    gate: Any = load_gate(tmp_path / "gate", dtype="fp32", device="cpu")
    gate.model.classifier.bias.data.fill_(float("nan"))
    with pytest.raises(UserError, match=r"tensor 'classifier\.bias' holds NaN"):
        gate.score([turn(0), turn(1)])


def test_a_template_that_counts_in_loops_by_another_name_is_refused() -> None:
    from tiny_kbm import make_tokenizer

    from kbtrain.prompts.kbm import render_chat

    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% set r = range(9999) %}" + "{% for a in r %}" * 3 + "x" + "{% endfor %}" * 3
    with pytest.raises(UserError, match="counts in a loop inside another"):
        render_chat(tokenizer, "Who?")


@pytest.mark.parametrize("content", [b'{"kind": "x", "thresholds": []}', b'{"kind": "x", "thresholds": {"a": 1}}'])
def test_thresholds_that_are_none_leave_card_and_readme_as_they_were(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "gate.json").write_bytes(content)
    with pytest.raises(UserError, match=r"gate\.json: field 'thresholds'"):
        set_threshold(tmp_path, "a gate", NOTED)
    assert (tmp_path / "gate.json").read_bytes() == content


def test_a_readme_that_is_no_text_leaves_the_card_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "gate.json").write_text('{"kind": "x"}')
    (tmp_path / "README.md").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"README\.md:1: not UTF-8 text"):
        set_threshold(tmp_path, "a gate", NOTED)
    assert (tmp_path / "gate.json").read_text() == '{"kind": "x"}'


def test_hashes_of_training_questions_that_are_no_text_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "trained_on.txt").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"trained_on\.txt:1: not UTF-8 text"):
        trained_among(tmp_path, [turn(0)])


@pytest.mark.parametrize("share", [0, 0.5, 1])
def test_a_damaged_index_is_built_again(share: float, tmp_path: Path) -> None:
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
def test_a_damaged_index_is_one_line_for_what_cannot_build_it(damage: str, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("kind", "field", "value", "says"),
    [
        ("features", "keys", [], "gate.json: field 'keys': tuple should have at least 1 item"),
        ("probe", "base_fingerprint", "/etc", "was trained on another base"),
        ("seakr", "base_model", "x", "model 'x': cannot be opened"),
        ("draft", "signal", "x", "field 'signal': input should be 'draft_margin'"),
    ],
)
def test_what_a_card_says_wrongly_is_one_line_that_names_the_folder(
    kind: str, field: str, value: object, says: str, tmp_path: Path
) -> None:
    KINDS[kind](tmp_path / "gate")
    card = json.loads((tmp_path / "gate" / "gate.json").read_text(encoding="utf-8"))
    (tmp_path / "gate" / "gate.json").write_text(json.dumps({**card, field: value}), encoding="utf-8")
    assert verdict(tmp_path / "gate") is None
    with pytest.raises(UserError) as caught:
        load_gate(tmp_path / "gate", dtype="fp32", device="cpu")
    assert says in str(caught.value) and str(tmp_path / "gate") in str(caught.value)


@pytest.mark.parametrize("part", ["x\0y", "x" * 300, "x\ny"])
def test_a_part_that_is_no_folder_s_name_is_one_line(part: str, tmp_path: Path) -> None:
    KINDS["stack"](tmp_path / "gate")
    card = json.loads((tmp_path / "gate" / "gate.json").read_text(encoding="utf-8"))
    card["members"].append({**card["members"][0], "folder": part})
    (tmp_path / "gate" / "gate.json").write_text(json.dumps(card), encoding="utf-8")
    with pytest.raises(UserError, match=r"gate\.json: part '.{1,45}' is not a folder's name; remove it"):
        load_gate(tmp_path / "gate")


def test_a_part_that_is_a_link_to_itself_is_one_line(tmp_path: Path) -> None:
    KINDS["stack"](tmp_path / "gate")
    shutil.rmtree(tmp_path / "gate" / "one")
    (tmp_path / "gate" / "gate.json").rename(tmp_path / "gate.json")
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(UserError, match="part 'one' is a link that leads nowhere; take it out"):
        load_gate(tmp_path)
