"""The sampling stage on a tiny model of a real class: what it says, and which answers it counts as there."""

import pytest
from support import scripts
from support.sample_sets import stored_rows, towns
from tiny_kbm import make_folder

from kbtrain.io.store import SampleStore

N_QUESTIONS = 12


@pytest.fixture
def run(tmp_path):
    return towns(tmp_path, N_QUESTIONS)


def arguments(run, model, *more):
    return [
        "--run", str(run), "--model", str(model), "--samples", "{train: 4, test: 0}", "--max-prompt-tokens", "200",
        "--max-new-tokens", "8", "--batch-rows", "10", "--dtype", "fp32", "--conditions", "[llm, rag, mask]",
        "--allow-empty", "true", *more,
    ]  # fmt: skip


def sample(*command):
    return scripts.here("data_gen/sample.py", *command)


def test_a_finished_run_says_so_and_loads_no_model(run, tiny_model):
    first = sample(*arguments(run, tiny_model))
    assert first.returncode == 0, first.stderr
    assert f"{N_QUESTIONS * 3} prompts, {N_QUESTIONS * 3} of them now" in first.stdout
    again = sample(*arguments(run, tiny_model))
    assert again.returncode == 0 and "are in" in again.stdout and "already" in again.stdout


def scripted(run, conditions, *more):
    done = sample("--run", str(run), "--backend", "scripted", "--conditions", conditions, *more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_answers_under_other_conditions_do_not_stand_for_those_that_are_asked_for(run):
    """As many were stored as were asked for: "all are in it already" was said, and none under mask were ever made."""
    numbers, mask = ("--samples", "{train: 2}"), ("--mask-questions", "{train: 2}")
    assert "24 prompts, 24 of them now" in scripted(run, "[llm, rag]", *numbers)
    assert "14 prompts, 2 of them now" in scripted(run, "[llm, mask]", *numbers, *mask)
    assert "all 14 prompts are in" in scripted(run, "[llm, mask]", *numbers, *mask)
    assert "12 prompts, 10 of them now" in scripted(run, "[mask]", *numbers)
    with SampleStore(run / "samples.db", read_only=True) as store:
        assert store.counts("main") == {"llm": 12, "rag": 12, "mask": 12}


def test_dry_run_says_what_would_be_done_and_does_nothing(run, tiny_model):
    done = sample(*arguments(run, tiny_model), "--dry-run")
    assert done.stdout.startswith(f"model {tiny_model}, transformers; answers to a prompt: train 5, test 1\n")
    default = scripts.here("data_gen/sample.py", "--run", run, "--dry-run").stdout.splitlines()[0]
    assert default.startswith("model smollm2-135m-instruct (the default: name yours by --config server.yaml or")
    assert done.returncode == 0 and f"{N_QUESTIONS * 3} prompts" in done.stdout
    assert not (run / "samples.db").exists()


@pytest.mark.parametrize(("chat", "own", "told"), [(False, False, 1), (False, True, 0), (True, False, 0)])
def test_a_base_model_is_told_to_need_examples(tmp_path, run, monkeypatch, chat, own, told):
    folder = make_folder(tmp_path / "base", "gemma3")
    if not chat:
        (folder / "chat_template.jinja").unlink()
    (tmp_path / "llm.txt").write_text("Q: Where is Rome?\nA: Italy\nQ: {question}\nA:")
    (tmp_path / "rag.txt").write_text("Q: Where is Rome?\nA: Italy\n{evidence}\nQ: {question}\nA:")
    prompts = ("--prompts", f"{{llm: {tmp_path}/llm.txt, rag: {tmp_path}/rag.txt}}") if own else ()
    done = scripts.run("data_gen/sample.py", *arguments(run, folder, "--conditions", "[llm, rag]", *prompts))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("no chat template") == told
    assert len(stored_rows(run / "samples.db")) == 2 * N_QUESTIONS
