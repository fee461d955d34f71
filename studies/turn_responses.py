"""Generate a response for each dialogue turn (RAGate's syn-resp): RUN/turns_responses.jsonl.

Reads RUN/turns_features.jsonl where it is (data_gen/turn_features.py), else RUN/turns.jsonl. Any back end answers. Only
what was said before a turn is read; finished responses are kept in RUN/responses.jsonl: a killed run resumes.

Examples:
  python studies/turn_responses.py --run runs/ketod --model smollm2-135m-instruct
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field

from kbtrain.config import run_script
from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import MODEL_FILES, Records, check_unchanged, file_sha256, write_meta
from kbtrain.llm.backends import LLMConfig, open_llm
from kbtrain.llm.base import LLM, AnswerRequest
from kbtrain.models.files_read import hashes_of
from kbtrain.prompts.ragate import first_kept, turn_text
from kbtrain.records import Question, TurnExample
from kbtrain.runtime.progress import progress_bar


class TurnResponsesConfig(LLMConfig):
    run: Path = Field(Path("runs/ketod"), description="run folder with turns.jsonl")
    context_words: int = Field(400, ge=16, description="words of the dialogue that the model reads; older turns go")
    max_new_tokens: int = Field(48, ge=1, description="longest response, in tokens")

    def writes(self) -> tuple[Path, ...]:
        return (self.run / "turns_responses.jsonl",)


def main(config: TurnResponsesConfig) -> None:
    started, (target,) = time.monotonic(), config.writes()
    features = config.run / "turns_features.jsonl"
    source = features if path_exists(features) else config.run / "turns.jsonl"
    check_unchanged(source)
    turns = list(jsonl.read(TurnExample, source))
    key = {"turns": file_sha256(source), "words": config.context_words, "llm": config.run_settings()}
    key |= {MODEL_FILES: hashes_of(config.model)}
    with progress_bar(total=len(turns), desc="responses", unit="turns") as bar:
        path, words = config.run / "responses.jsonl", config.context_words
        texts = all_responses(path, key, lambda: open_llm(config), turns, words, bar.update)
    jsonl.write(target, (replace(turn, synthetic_response=texts[turn.id]) for turn in turns))
    silent = sum(not texts[turn.id] for turn in turns)
    extra = {"empty": {"responses": silent}}
    write_meta(target, stage="turn_responses", config=config, inputs=[source], extra=extra, started=started)
    print(f"{len(turns)} turns; empty responses {silent} -> {target}")


def history_question(example: TurnExample, words: int) -> Question:
    """The dialogue so far, its oldest turns cut away so that at most about that many words are left."""
    texts = [turn_text(utterance) for utterance in example.context]
    first = min(first_kept([len(text.split()) for text in texts], words), len(texts) - 1)
    return Question(example.id, "\n".join(texts[first:]), (), example.split, example.dialogue_id, form="turn")


def generated(llm: LLM, examples: Sequence[TurnExample], words: int) -> Iterator[dict[str, str]]:
    """Greedy responses by example id, as they are finished; empty where the server refuses the dialogue.

    Raises :class:`UserError` if one is missing.
    """
    requests: Iterable[AnswerRequest] = (
        AnswerRequest(history_question(example, words), "llm", None, 0) for example in examples
    )
    missing = {example.id for example in examples}
    for group in llm.answer(requests):
        texts = {answers.question_id: answers.greedy.text.strip() for answers in group if answers.greedy is not None}
        refused = {answers.question_id: answers.refused for answers in group if answers.refused is not None}
        for name, reason in refused.items():
            warnings.warn(f"example '{name}': refused by the server ({reason}); its response is empty", stacklevel=2)
        texts |= dict.fromkeys(refused, "")
        missing -= set(texts)
        yield texts
    if missing:
        raise UserError(f"example '{min(missing)}' (and {len(missing) - 1} more): the model gave no response")


@dataclass(frozen=True)
class Response:
    """A generated response of one turn."""

    id: str
    text: str


def all_responses(
    path: Path,
    key: Mapping[str, Any],
    open_model: Callable[[], LLM],
    examples: Sequence[TurnExample],
    words: int,
    watch: Callable[[int], object] = lambda n: None,
) -> dict[str, str]:
    """Every example's response by id: stored ones, and the rest generated and stored. ``watch`` is called with the
    number of new ones.

    Raises :class:`UserError` for stored responses of another ``key``.
    """
    with Records(path, key, "move or delete this file to generate again", growing=True) as file:
        stored = {response.id: response.text for response in jsonl.read(Response, path)}
        missing = [example for example in examples if example.id not in stored]
        watch(len(examples) - len(missing))
        for texts in generated(open_model(), missing, words) if missing else ():
            file.add(*(Response(name, text) for name, text in texts.items()))
            stored |= texts
            watch(len(texts))
    return stored


if __name__ == "__main__":
    run_script(main, TurnResponsesConfig, __doc__)
