"""Damaged gate folders: each is opened, or refused in one line that names a file in it; never a traceback or a hang."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import gate_folders
from tiny_turns import turn

from kbtrain.errors import UserError
from kbtrain.gate_folder import Threshold, set_threshold, trained_among
from kbtrain.gates.average import AverageCard
from kbtrain.gates.registry import handle, load_gate
from kbtrain.jsonl import write
from kbtrain.records import Passage
from kbtrain.retrieval.retrieve_stage import open_index

SEED = 7
EACH = 2  # damages drawn for each file, of all that there are
NOTED = Threshold(threshold=0.5, rule="given", dev_file_sha256="0", n_dev=9)
Damage = Callable[[Path], object]


KINDS: dict[str, Callable[[Path], None]] = {
    name: gate_folders.FOLDERS[name] for name in ("kbm", "p_yes", "encoder", "features", "dialogue_state", "average")
}


def _cut(share: float) -> Damage:
    return lambda path: path.write_bytes(path.read_bytes()[: int(len(path.read_bytes()) * share)])


def _text(content: bytes) -> Damage:
    return lambda path: path.write_bytes(content)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


ANY: dict[str, Damage] = {
    **{f"cut at {share}": _cut(share) for share in (0, 0.3, 0.9)},
    **{f"is {content!r}": _text(content) for content in (b"[]", b"null", b"{}", b'{"a": NaN}', b"\xff\xfe\0\xd8")},
    "missing": lambda path: path.unlink(),
    "a folder": _folder,
    "a pipe": _pipe,
    "a link to itself": _loop,
}


def _in_json(change: Callable[[dict[str, Any], str], object], key: str) -> Damage:
    def damage(path: Path) -> None:
        data = json.loads(path.read_text(encoding="utf-8"))
        change(data, key)
        path.write_text(json.dumps(data), encoding="utf-8")

    return damage


def _twice(key: str) -> Damage:
    def damage(path: Path) -> None:
        text = path.read_text(encoding="utf-8").strip()
        path.write_text(f'{{"{key}": null, {text[1:]}', encoding="utf-8")

    return damage


WRONG: tuple[Any, ...] = (None, [], {}, "x", -1, float("nan"), [[]], "../..", "/etc", 10**30)


def _of_json(path: Path, rng: random.Random) -> Iterator[tuple[str, Damage]]:
    """Every field left out or twice, and with a wrong value drawn for it."""
    data = json.loads(path.read_text(encoding="utf-8"))
    for key in data if path.name != "tokenizer.json" else ():
        yield f"without {key}", _in_json(lambda found, key: found.pop(key), key)
        wrong = rng.choice(WRONG)
        yield f"{key} = {wrong!r}", _in_json(lambda found, key, wrong=wrong: found.update({key: wrong}), key)
        yield f"{key} twice", _twice(key)


def _header(change: Callable[[dict[str, Any]], object]) -> Damage:
    def damage(path: Path) -> None:
        raw = path.read_bytes()
        size = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + size])
        change(header)
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + size :])

    return damage


def _of_weights(path: Path) -> Iterator[tuple[str, Damage]]:
    """Tensors described wrongly, left out, of another shape or no numbers."""
    from safetensors.numpy import load_file, save_file

    first = next(iter(load_file(path)))

    def saved(change: Callable[[dict[str, Any]], object]) -> Damage:
        def damage(path: Path) -> None:
            tensors = load_file(path)
            change(tensors)
            save_file(tensors, path, {"format": "pt"})

        return damage

    for wrong in (None, 3, {}, {"shape": "x"}, {"shape": [1], "data_offsets": [0]}):
        yield f"header of {first} = {wrong!r}", _header(lambda header, wrong=wrong: header.update({first: wrong}))
    yield "negative place", _header(lambda header: header[first].update(data_offsets=[-4, 10**18]))
    yield f"without {first}", saved(lambda tensors: tensors.pop(first))
    yield f"{first} of another shape", saved(lambda tensors: tensors.update({first: tensors[first].reshape(-1)[:1]}))
    yield (
        f"{first} no numbers",
        saved(lambda tensors: tensors.update({first: (tensors[first] * float("nan")).astype(tensors[first].dtype)})),
    )


def _of_text(path: Path) -> Iterator[tuple[str, Damage]]:
    for text in ("{{ messages[9]['role'] }}", "{% for", "{{ 1 / 0 }}", "{% for i in range(10 ** 9) %}x{% endfor %}"):
        yield f"is {text}", _text(text.encode())


def _damages(path: Path, rng: random.Random) -> list[tuple[str, Damage]]:
    own: list[tuple[str, Damage]] = []
    if path.suffix == ".json":
        own = list(_of_json(path, rng))
    elif path.suffix == ".safetensors":
        own = list(_of_weights(path))
    elif path.suffix == ".jinja":
        own = list(_of_text(path))
    return [*ANY.items(), *own]


OUTSIDE = ("/etc", "../../..", "..", ".", "nowhere", "../nowhere", "one/../..", "x\ny")


def _weight_index(folder: Path, name: str) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": {"a": name}}))
    (folder / "model.safetensors").unlink()


def _of_folder(kind: str) -> Iterator[tuple[str, Damage]]:
    """What is wrong with a folder as a whole."""
    if kind == "average":
        for name in OUTSIDE:
            yield f"member {name!r}", lambda folder, name=name: AverageCard(members=("one", name)).write(folder)
        text = '{"kind": "average", "members": []}'
        yield "no members", lambda folder: (folder / "gate.json").write_text(text)
    if kind in ("kbm", "encoder"):
        for name in ("/etc/passwd", "../x.safetensors", "nowhere.safetensors"):
            yield f"weights in {name}", lambda folder, name=name: _weight_index(folder, name)
        yield (
            "an adapter without its base",
            lambda folder: (
                (folder / "config.json").rename(folder / "adapter_config.json"),
                (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "someone/model"}'),
            ),
        )
    if kind == "p_yes":
        yield "without its base", lambda folder: shutil.rmtree(folder / "base")


def _without_hashes(folder: Path) -> None:
    """Folders made before weights were named by their hashes: what reads the weights must notice by itself."""
    for path in folder.rglob("gate.json"):
        data = json.loads(path.read_text(encoding="utf-8"))
        data.pop("weights_sha256", None)
        path.write_text(json.dumps(data, ensure_ascii=False, indent=1), encoding="utf-8")


def _used(folder: Path) -> None:
    """All that is done with a folder before anything is scored."""
    handle(folder)
    trained_among(folder, [turn(0)])
    load_gate(folder, dtype="fp32", device="cpu")
    set_threshold(folder, "some", NOTED)


def _verdict(folder: Path) -> str | None:
    """None if the folder was opened or refused as promised; else what came instead."""
    try:
        _used(folder)
    except UserError as error:
        said = str(error)
        return None if str(folder.parent) in said and "\n" not in said and len(said) < 600 else f"said: {said}"
    except Exception as error:  # noqa: BLE001 - what the test counts
        return f"{type(error).__name__}: {error}"[:200]
    return None


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_folders_open_or_are_refused_in_one_line(kind: str, tmp_path: Path, record_property: Any) -> None:
    rng, whole = random.Random(SEED), tmp_path / "whole" / kind
    whole.parent.mkdir()
    KINDS[kind](whole)
    (whole / "README.md").write_text("# A gate\n", encoding="utf-8")
    (whole / "trained_on.txt").write_text("0123456789abcdef\n", encoding="utf-8")
    _without_hashes(whole)
    assert _verdict(shutil.copytree(whole, tmp_path / "sound")) is None
    counts, broke = Counter[str](), []
    tries = [("", name, damage) for name, damage in _of_folder(kind)]
    for path in sorted(path for path in whole.rglob("*") if path.is_file()):
        place, found = path.relative_to(whole).as_posix(), _damages(path, rng)
        tries += [(place, *one) for one in rng.sample(found, min(EACH, len(found)))]
    for number, (place, name, damage) in enumerate(tries):
        folder = shutil.copytree(whole, tmp_path / str(number) / kind)
        damage(folder / place)
        problem = _verdict(folder)
        counts["held" if problem is None else "broke"] += 1
        broke += [] if problem is None else [f"{place} {name} -> {problem}"]
        shutil.rmtree(folder)
    record_property("tries, held, broke", (len(tries), counts["held"], counts["broke"]))
    assert broke == []


@pytest.mark.parametrize("content", [b'{"kind": "x", "thresholds": []}', b'{"kind": "x", "thresholds": {"a": 1}}'])
def test_thresholds_that_are_none_leave_card_and_readme_as_they_were(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "gate.json").write_bytes(content)
    with pytest.raises(UserError, match=r"gate\.json: field 'thresholds'"):
        set_threshold(tmp_path, "a gate", NOTED)
    assert (tmp_path / "gate.json").read_bytes() == content


def test_a_readme_that_is_no_text_leaves_the_card_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "gate.json").write_text('{"kind": "x"}')
    (tmp_path / "README.md").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"README\.md: not UTF-8 text"):
        set_threshold(tmp_path, "a gate", NOTED)
    assert (tmp_path / "gate.json").read_text() == '{"kind": "x"}'


def test_hashes_of_training_questions_that_are_no_text_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "trained_on.txt").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"trained_on\.txt: not UTF-8 text"):
        trained_among(tmp_path, [turn(0)])


@pytest.mark.parametrize("kind", ["bm25", "tfidf"])
@pytest.mark.parametrize("share", [0, 0.5])
def test_a_damaged_index_is_built_again(kind: Any, share: float, tmp_path: Path) -> None:
    corpus, folder = tmp_path / "passages.jsonl", tmp_path / "index"
    write(corpus, [Passage(str(i), f"Town {i}", f"A town of {i} people by a river.") for i in range(9)])
    sought = open_index(kind, corpus, folder).search(["town of 3 people"], 2)
    files = [path for path in sorted(folder.iterdir()) if path.stat().st_size > 1]
    assert len(files) > 4
    for path in files:
        whole = path.read_bytes()
        path.write_bytes(whole[: int(len(whole) * share)])
        assert open_index(kind, corpus, folder).search(["town of 3 people"], 2) == sought
    made = folder.stat().st_mtime_ns
    open_index(kind, corpus, folder)
    assert folder.stat().st_mtime_ns == made
