"""Generators of damage: what can be wrong with a file, by its kind."""

from __future__ import annotations

import json
import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Damage = Callable[[Path], object]


def _cut(share: float) -> Damage:
    return lambda path: path.write_bytes(path.read_bytes()[: int(len(path.read_bytes()) * share)])


def _text(content: bytes) -> Damage:
    return lambda path: path.write_bytes(content)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


ANY: dict[str, Damage] = {
    **{f"cut at {share}": _cut(share) for share in (0, 0.3, 0.9)},
    **{f"is {content!r}": _text(content) for content in (b"[]", b"null", b"{}", b'{"a": NaN}', b"\xff\xfe\0\xd8")},
    "missing": lambda path: path.unlink(),
    "a folder": _folder,
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


# a folder of the system, which a command may be told to write into: not one that root could write into
SYSTEM = "/etc" if os.geteuid() or not os.path.isdir("/sys/kernel/mm") else "/sys/kernel/mm"
WRONG: tuple[Any, ...] = (None, [], {}, "x", -1, float("nan"), [[]], "../..", SYSTEM, 10**30)


ABSURD: tuple[Any, ...] = (*WRONG, 0, 1, 7, 0.5, 1e300, True, "9" * 400, [1, [2]], {"a": {"b": None}}, "__main__")
CONFIGS = ("config.json", "adapter_config.json", "tokenizer_config.json")  # their values reach other libraries
ADDED: dict[str, dict[str, Any]] = {
    "config.json": {
        "auto_map": {"AutoModelForCausalLM": "os.path--x.Y", "AutoConfig": "x.Y"}, "trust_remote_code": True,
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "quantization_config": {"quant_method": "awq"},
        "rope_scaling": {"rope_type": "x", "factor": "x"}, "tie_word_embeddings": True, "rms_norm_eps": 1.0,
        "attn_implementation": "x", "torch_dtype": "x", "dtype": "int8", "layer_types": ["x"], "vocab_size": 3,
    },
    "adapter_config.json": {
        "base_model_name_or_path": "someone/model", "auto_mapping": {"base_model_class": "x", "parent_library": "this"},
        "peft_type": "IA3", "lora_alpha": 64, "use_rslora": True, "use_dora": True, "rank_pattern": {"q_proj": 4},
        "alpha_pattern": {"q_proj": 99}, "target_modules": ["v_proj"], "modules_to_save": ["lm_head"], "bias": "all",
        "task_type": "SEQ_CLS", "layers_to_transform": [9], "fan_in_fan_out": True, "init_lora_weights": "pissa",
    },
    "tokenizer_config.json": {
        "tokenizer_class": "GPT2Tokenizer", "auto_map": {"AutoTokenizer": ["x.Y", None]}, "padding_side": "left",
        "chat_template": "{{ messages[9]['role'] }}", "add_bos_token": True, "eos_token": "x", "pad_token": [1],
        "model_max_length": -1, "extra_special_tokens": {"a": 1}, "added_tokens_decoder": {"x": {}},
    },
}  # fmt: skip


def _of_json(path: Path, rng: random.Random) -> Iterator[tuple[str, Damage]]:
    """Every field missing or duplicate, and with a wrong value drawn for it; of configurations with each of them."""
    data = json.loads(path.read_text(encoding="utf-8"))
    for key in data if path.name != "tokenizer.json" else ():
        yield f"without {key}", _in_json(lambda found, key: found.pop(key), key)
        for wrong in ABSURD if path.name in CONFIGS else (rng.choice(WRONG),):
            yield f"{key} = {wrong!r:.40}", _in_json(lambda found, key, wrong=wrong: found.update({key: wrong}), key)
        yield f"{key} twice", _twice(key)
    for key, wrong in ADDED.get(path.name, {}).items():
        yield f"{key} = {wrong!r:.40}", _in_json(lambda found, key, wrong=wrong: found.update({key: wrong}), key)
    if path.name == "tokenizer.json":
        yield from _of_tokenizer()


def _of_tokenizer() -> Iterator[tuple[str, Damage]]:
    """Another vocabulary, and parts of the tokenizer that are other or none."""

    def reversed_words(found: dict[str, Any], key: str) -> None:
        words = found["model"]["vocab"]
        ids = sorted(words.values())
        found["model"]["vocab"] = dict(zip(words, reversed(ids), strict=True))

    def halved_words(found: dict[str, Any], key: str) -> None:
        found["model"]["vocab"] = dict(list(found["model"]["vocab"].items())[::2])

    yield "vocabulary reversed", _in_json(reversed_words, "")
    yield "half of the vocabulary", _in_json(halved_words, "")
    for key in ("model", "pre_tokenizer", "decoder", "post_processor", "normalizer", "added_tokens", "truncation"):
        for wrong in (None, [], {}, "x", {"type": "x"}, {"type": "BPE", "vocab": {}, "merges": []}):
            yield f"{key} = {wrong!r:.30}", _in_json(lambda found, key, wrong=wrong: found.update({key: wrong}), key)
    yield "merges = 3", _in_json(lambda found, key: found["model"].update(merges=3), "")
    yield "ids of 10^12", _in_json(lambda found, key: found["model"].update(vocab={"a": 10**12}), "")


def _header(change: Callable[[dict[str, Any]], object]) -> Damage:
    def damage(path: Path) -> None:
        raw = path.read_bytes()
        size = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + size])
        change(header)
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + size :])

    return damage


def _length(length: int) -> Damage:
    return lambda path: path.write_bytes(length.to_bytes(8, "little") + path.read_bytes()[8:])


def _overlapping(header: dict[str, Any]) -> None:
    """Two tensors of one size at one place."""
    for one in header.values():
        for other in header.values():
            if one is not other and "shape" in one and one["shape"] == other.get("shape"):
                other["data_offsets"] = one["data_offsets"]
                return


def _of_weights(path: Path) -> Iterator[tuple[str, Damage]]:
    """Tensors described wrongly, skipped, of another shape or no numbers."""
    from safetensors.numpy import load_file, save_file

    first = next(iter(load_file(path)))

    def saved(change: Callable[[dict[str, Any]], object]) -> Damage:
        def damage(path: Path) -> None:
            tensors = load_file(path)
            change(tensors)
            save_file(tensors, path, {"format": "pt"})

        return damage

    for name, length in {"0": 0, "2^63": 2**63, "2^64 - 1": 2**64 - 1, "the file's": path.stat().st_size}.items():
        yield f"header of length {name}", _length(length)
    for name, data in {"no UTF-8": b"\xff\xfe", "no JSON": b"{'a'", "deep": b"[" * 10**5, "spaces": b" " * 64}.items():
        yield f"header {name}", _text(len(data).to_bytes(8, "little") + data + bytes(64))
    for dtype in ("F64", "F16", "BF16", "I64", "U8", "BOOL", "F8_E4M3", "x", 3, None):
        yield f"{first} of type {dtype}", _header(lambda header, dtype=dtype: header[first].update(dtype=dtype))
    for shape in ([], [0], [-1], [10**12], [1.5], ["x"], [1] * 99, None):
        yield f"{first} of shape {shape!r:.30}", _header(lambda header, shape=shape: header[first].update(shape=shape))
    yield "overlapping places", _header(_overlapping)
    yield "a hole between places", _header(lambda header: header[first]["data_offsets"].reverse())
    yield "bytes behind the last place", lambda path: path.write_bytes(path.read_bytes() + b"\0" * 64)
    yield "metadata of another format", _header(lambda header: header.update(__metadata__={"format": "tf"}))
    yield "metadata that is none", _header(lambda header: header.update(__metadata__=[1]))
    yield f"{first} under another name", _header(lambda header: header.update({"x": header.pop(first)}))
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
    loops = "{% for a in r %}{% for b in r %}{% for c in r %}x{% endfor %}{% endfor %}{% endfor %}"
    for text in (
        *("{{ messages[9]['role'] }}", "{% for", "{{ 1 / 0 }}", "{% for i in range(10 ** 9) %}x{% endfor %}"),
        *("{{ 'x' * 10 ** 11 }}", "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "{% include 'x' %}"),
        *("{{ messages }}", "{{ raise_exception('no') }}", "{{ ''.__class__.__mro__ }}", "x", "{{ 2 ** 10 ** 8 }}"),
        *("{{ x.y.z }}", "{% set r = range(9999) %}" + loops, loops.replace(" r ", " range(9999) ")),
    ):
        yield f"is {text}", _text(text.encode())


def _of_lines(path: Path, rng: random.Random) -> Iterator[tuple[str, Damage]]:
    """One record with a field missing, duplicate or of a wrong value; what is in no line of text."""
    lines = path.read_text(encoding="utf-8").splitlines()
    at = rng.randrange(len(lines))

    def line(text: str) -> Damage:
        return lambda path: path.write_text("\n".join([*lines[:at], text, *lines[at + 1 :]]) + "\n", encoding="utf-8")

    for text in ("", "{", "[]", "null", "3", '"a"', "[" * 5000, '{"a": 1' + "0" * 5000 + "}", "\ufeff{}", "a\tb\tc"):
        yield f"line {at + 1} is {text[:20]!r}", line(text)
    yield "no end of the last line", _text("\n".join(lines).encode()[:-2])
    yield "twice", lambda path: path.write_bytes(path.read_bytes() * 2)
    yield "Windows line ends", lambda path: path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    yield "a zero byte", lambda path: path.write_bytes(path.read_bytes().replace(b":", b":\0", 1))
    if path.suffix != ".jsonl" or not isinstance(record := json.loads(lines[at]), dict):
        return
    for key in record:
        without = {name: value for name, value in record.items() if name != key}
        yield f"line {at + 1} without {key}", line(json.dumps(without))
        wrong = rng.choice(WRONG)
        yield f"line {at + 1}: {key} = {wrong!r}", line(json.dumps({**record, key: wrong}))
        yield f"line {at + 1}: {key} twice", line(f'{{"{key}": null, {lines[at].strip()[1:]}')
        yield f"line {at + 1}: {key} has a lone surrogate", line(json.dumps({**record, key: "\ud800"}))


def _of_store(path: Path) -> Iterator[tuple[str, Damage]]:
    """A database with a table or a column of it gone, with other types, or with rows missing."""

    def done(command: str) -> Damage:
        def damage(path: Path) -> None:
            with sqlite3.connect(path, isolation_level=None) as opened:
                opened.execute("PRAGMA foreign_keys = OFF")
                opened.execute(command)
            opened.close()

        return damage

    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as opened:
        tables = [name for (name,) in opened.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = {name: opened.execute(f"PRAGMA table_info({name})").fetchall() for name in tables}
        columns = {
            name: [column for _, column, kind, _, _, key in found if not (key and kind == "INTEGER")]  # SQLite refuses
            for name, found in rows.items()
        }
    opened.close()
    yield "other application", done("PRAGMA user_version = 99")
    for name in tables:
        if name.startswith("sqlite_"):
            continue
        yield f"no table {name}", done(f"DROP TABLE {name}")
        yield f"table {name} empty", done(f"DELETE FROM {name}")
        yield f"table {name} halved", _halved(name)
        for column in columns[name]:
            for value in ("x'ff00'", "NULL", "'x'", "-1"):
                yield f"{name}.{column} = {value}", done(f"UPDATE OR IGNORE {name} SET {column} = {value}")


def _halved(table: str) -> Damage:
    """Every other row skipped, of a table with or without row ids."""

    def damage(path: Path) -> None:
        with sqlite3.connect(path, isolation_level=None) as opened:
            opened.execute("PRAGMA foreign_keys = OFF")
            columns = [row[1] for row in opened.execute(f"PRAGMA table_info({table})")]
            rows = opened.execute(f"SELECT * FROM {table}").fetchall()
            opened.execute(f"DELETE FROM {table}")
            opened.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", rows[::2])
        opened.close()

    return damage


def damages(path: Path, rng: random.Random) -> list[tuple[str, Damage]]:
    """All damages of a file, by what is done; wrong values are drawn."""
    own: list[tuple[str, Damage]] = []
    if path.suffix == ".json":
        own = list(_of_json(path, rng))
    elif path.suffix == ".safetensors":
        own = list(_of_weights(path))
    elif path.suffix == ".jinja":
        own = list(_of_text(path))
    elif path.suffix in (".jsonl", ".tsv", ".csv"):
        own = list(_of_lines(path, rng))
    elif path.suffix == ".db":
        own = list(_of_store(path))
    return [*ANY.items(), *own]
