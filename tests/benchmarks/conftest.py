"""A tiny random model with a byte tokenizer, in a folder."""

import pytest
from tiny_kbm import make_byte_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    model, tokenizer = make_byte_model(initializer_range=0.1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
