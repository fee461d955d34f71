"""A tiny model folder, example files, and the recipe as a user runs it."""

import pytest
from support.recipes import Recipe
from tiny_kbm import labelled, make_folder

from kbtrain.io.jsonl import write


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A folder with model/, train.jsonl (20 examples) and dev.jsonl (9)."""
    folder = tmp_path_factory.mktemp("train_kbm")
    make_folder(folder / "model")
    write(folder / "train.jsonl", [labelled(i, reference="It is so. " * i if i % 4 == 3 else None) for i in range(20)])
    write(folder / "dev.jsonl", [labelled(i, "dev") for i in range(9)])
    return folder


@pytest.fixture
def arguments(data, tmp_path):
    """Command line of a training of 3 epochs of 5 steps in fp32; further keys are added or replaced."""

    return lambda **changes: words_of(data, **{"output": tmp_path / "kbm", **changes})


def words_of(data, **changes):
    keys = {"model": data / "model", "train": data / "train.jsonl", "dev": data / "dev.jsonl"}
    keys |= {"epochs": 3, "learning_rate": 3e-3, "dtype": "fp32", "device": "cpu", "save_steps": 3, **changes}
    return [part for key, value in keys.items() for part in (f"--{key.replace('_', '-')}", str(value))]


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """The folder of a training of a KBM that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "kbm"
    Recipe("kbm")(words_of(data, output=folder))
    return folder
