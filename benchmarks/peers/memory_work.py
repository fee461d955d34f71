"""Peer of benchmarks/memory.py: one kind of work, batch after batch of ever other lengths, and what the process holds.

Arguments: model folder, kind of work, batches, batches between two looks. Prints a JSON list of bytes, one a look.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from training_data import long_and_short

from kbtrain.gates.kbm.gate import KBM
from kbtrain.gates.kbm.train import KBMTrainer, make_row
from kbtrain.gates.probe.states import prompt_states
from kbtrain.gates.true_false.template import Encoder, kbm_template
from kbtrain.kernels.memory import resident_memory
from kbtrain.llm.base import AnswerRequest, Sampling
from kbtrain.llm.transformers_llm import TransformersLLM
from kbtrain.models.batching import BatchLimits
from kbtrain.models.load import load_model
from kbtrain.prompts.kbm import PAPER_KEYS
from kbtrain.questions.load import load_questions
from kbtrain.records import GateExample
from kbtrain.training.config import TrainingConfig, training_arguments
from kbtrain.training.data import target

ROWS, LONGEST = 4, 250  # rows of a batch, tokens of the longest reference (about)


def trained(folder: str, batches: int) -> Iterator[int]:
    """Steps of the KBM's trainer. Its loop is its own, so that what it held is noted there and told afterwards."""
    held: list[int] = []
    model, tokenizer = load_model(folder, "fp32", "cpu")
    encode = Encoder(tokenizer, kbm_template(PAPER_KEYS), 1580).encode
    rows = [make_row(encode(e), [target(e, key, "hard") for key in PAPER_KEYS]) for e in _examples(batches)]
    with tempfile.TemporaryDirectory() as place:
        epochs = batches * ROWS / len(rows)
        config = TrainingConfig(
            model=folder, train=Path(), output=Path(place), device_batch_size=ROWS, epochs=epochs, select="last"
        )
        arguments = training_arguments(config, "fp32", "cpu", has_dev=False)
        arguments.save_strategy = "no"

        def note(step: int, steps: int, logs: object) -> None:
            if step > len(held):
                held.append(resident_memory())

        KBMTrainer(KBM(model, tokenizer, PAPER_KEYS, 1580), arguments, rows, [], "hard", note).train()
    return iter(held)


def sampled(folder: str, batches: int) -> Iterator[int]:
    """Batches of the sampler: questions with evidence of 0 to :data:`LONGEST` tokens."""
    model, tokenizer = load_model(folder, "fp32", "cpu")
    llm = TransformersLLM(
        folder, model, tokenizer, Sampling(max_new_tokens=8, stop=()), BatchLimits(2 * ROWS, 2048, ROWS)
    )
    questions = itertools.cycle(question for question in load_questions("atlas") if question.form == "open")
    texts = itertools.cycle(example.reference or "None." for example in _examples(batches))
    asked = (AnswerRequest(question, "rag", text, 2) for question, text in zip(questions, texts, strict=False))
    for _ in itertools.islice(llm.answer(asked), batches):
        yield resident_memory()


def scored(folder: str, batches: int) -> Iterator[int]:
    """Passes of the KBM."""
    kbm = KBM(*load_model(folder, "fp32", "cpu"), PAPER_KEYS, 1580)
    for some in _repeated(batches):
        kbm.probabilities(some)
        yield resident_memory()


def extracted(folder: str, batches: int) -> Iterator[int]:
    """Passes that read a probe's states."""
    model, tokenizer = load_model(folder, "fp32", "cpu")
    for some in _repeated(batches):
        prompt_states(model, [tokenizer(f"{one.reference} {one.question}")["input_ids"] for one in some])
        yield resident_memory()


def _examples(batches: int) -> list[GateExample]:
    return long_and_short(min(400, ROWS * batches), LONGEST)


def _repeated(batches: int) -> Iterator[list[GateExample]]:
    examples = itertools.cycle(_examples(batches))
    for _ in range(batches):
        yield list(itertools.islice(examples, ROWS))


WORKS = {"train": trained, "sample": sampled, "score": scored, "states": extracted}

if __name__ == "__main__":
    model_folder, work, n_batches, every = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to stderr
    looks = [held for n, held in enumerate(WORKS[work](model_folder, n_batches), 1) if n % every == 0]
    replies.write(json.dumps(looks) + "\n")
    replies.close()
