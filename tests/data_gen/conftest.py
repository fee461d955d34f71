"""A run folder with questions and stored samples, and the stage scripts as modules."""

from pathlib import Path

import pytest
from support import scripts

from kbtrain.io import jsonl
from kbtrain.io.store import SampleStore
from kbtrain.records import Evidence, GateExample, Hit, Label, Question, Sample, SampleSet, Split

N = 10


@pytest.fixture(scope="session")
def stage():
    """Loads a stage's script by its name."""
    return lambda name: scripts.load(f"data_gen/{name}.py")


@pytest.fixture(scope="session")
def script():
    """Runs a stage in this process."""
    return lambda name, *arguments: scripts.here(f"data_gen/{name}.py", *arguments)


def question(i, split):
    return Question(f"{split}-{i}", f"Who wrote {split} book {i}?", (f"Author {i}",), split, "books",
                    relation=("novel", "poem")[i % 2])  # fmt: skip


def sample_set(asked, condition, n_right, n=N):
    texts = [asked.answers[0]] * n_right + ["Nobody"] * (n - n_right)
    samples = tuple(Sample(i, text, 3, "eos", -1.0) for i, text in enumerate(texts))
    return SampleSet(asked.id, condition, samples, Sample(-1, "Nobody", 2, "eos", -0.5), 30)


def fill(run, n_train=20, n_held_out=5):
    """Question i of train is right in i of 10 answers (at most 10) without retrieval, and in 10 - i with it."""
    questions = [question(i, "train") for i in range(n_train)]
    held_out: list[tuple[Split, int]] = [(split, i) for split in ("dev", "test") for i in range(n_held_out)]
    questions += [question(i, split) for split, i in held_out]
    jsonl.write(run / "questions.jsonl", questions)
    jsonl.write(run / "evidence.jsonl", (
        Evidence(asked.id, "bm25", asked.text, (Hit("p", "t", f"Passage about {asked.id}.", 1.0),))
        for asked in questions
    ))  # fmt: skip
    with SampleStore(run / "samples.db") as store:
        store.begin("main", {"model": "tiny", "n": N})
        sets: list[SampleSet] = []
        for i, asked in enumerate(questions):
            right, n = i % (N + 1), N if asked.split == "train" else 0
            sets += [sample_set(asked, "llm", min(right, n), n), sample_set(asked, "rag", min(N - right, n), n)]
            if len(sets) >= 100:  # few transactions, and little memory
                store.put("main", sets)
                sets = []
        store.put("main", sets)


class Books:
    """The questions of these tests and their samples."""

    question = staticmethod(question)
    sample_set = staticmethod(sample_set)
    fill = staticmethod(fill)


@pytest.fixture(scope="session")
def books():
    return Books


@pytest.fixture(scope="session")
def label():
    """Runs data_gen/label.py on a run folder and reads what it wrote."""
    module = scripts.load("data_gen/label.py")

    def run(folder, **settings):
        given = {"run": folder, "tau_mastery": 0.2, "tau_certainty": 0.8, **settings}
        module.main(module.LabelConfig.model_validate(given))
        return list(jsonl.read(Label, folder / "labels.jsonl"))

    return run


@pytest.fixture(scope="session")
def build():
    """Runs data_gen/build.py on a run folder and reads what it wrote."""
    module = scripts.load("data_gen/build.py")

    def run(folder, **settings):
        module.main(module.BuildConfig.model_validate({"run": folder, **settings}))
        written = {path.stem: path for path in (folder / "examples").glob("*.jsonl")}
        assert set(written) == {"train", "dev", "test"}
        return {name: list(jsonl.read(GateExample, path)) for name, path in written.items()}

    return run


@pytest.fixture
def run_folder(tmp_path):
    folder = tmp_path / "run"
    fill(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A random Llama with its tokenizer, saved as a user's folder would be, without a chat template."""
    from tiny_kbm import make_folder

    folder = make_folder(tmp_path_factory.mktemp("model"))
    (folder / "chat_template.jinja").unlink()
    return Path(folder)
