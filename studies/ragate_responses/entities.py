"""Named entities of dialogue turns, the feature ``ner``.

Entities are those that spaCy or GLiNER find in the incoming (generated) response, as in the paper, or SGD's slot spans
of the context, kbtrain's variant.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from kbtrain.errors import UserError
from kbtrain.records import Entity, TurnExample

Finder = Literal["sgd", "spacy", "gliner"]
Find = Callable[[Sequence[str]], list[tuple[Entity, ...]]]
_INSTALL = {
    "spacy": "pip install spacy, or name slots of the context: ner: [sgd]",
    "gliner": "pip install gliner",
}
_GLINER_TYPES = ["person", "organisation", "place", "event", "work of art", "product", "date"]


def read_text(example: TurnExample) -> str:
    """The text for spaCy and GLiNER: the synthetic response (RAGate's "entities within the incoming responses") or,
    before one was generated, the user's last utterance. Never the real response: it is in the future.
    """
    return example.context[-1].text if example.synthetic_response is None else example.synthetic_response


def annotated(example: TurnExample) -> tuple[Entity, ...]:
    """The data set's own slot spans in the context, each once, the latest first."""
    entities = (entity for utterance in reversed(example.context) for entity in utterance.entities)
    return tuple(dict.fromkeys(entities))


def spacy_finder(model: str) -> Find:
    """A spaCy pipeline by package name or folder. Raises :class:`UserError` if spaCy or the model is missing."""
    spacy = _import_optional("spacy", _INSTALL["spacy"])
    try:
        pipeline: Any = spacy.load(model)
    except OSError:
        raise UserError(f"spaCy model '{model}': not installed; install its package, or give a folder") from None
    source = f"spacy:{pipeline.meta['lang']}_{pipeline.meta['name']}"

    def find(texts: Sequence[str]) -> list[tuple[Entity, ...]]:
        return [_distinct((e.text, e.label_, source) for e in doc.ents) for doc in pipeline.pipe(texts)]

    return find


def gliner_finder(model: str) -> Find:
    """A GLiNER model by folder or hub id. Raises :class:`UserError` if GLiNER is missing."""
    loaded: Any = _import_optional("gliner", _INSTALL["gliner"]).GLiNER.from_pretrained(model)

    def find(texts: Sequence[str]) -> list[tuple[Entity, ...]]:
        predictions = (loaded.predict_entities(text, _GLINER_TYPES) for text in texts)
        return [_distinct((e["text"], e["label"], f"gliner:{model}") for e in entities) for entities in predictions]

    return find


def finders_for(responses: bool) -> tuple[Finder, ...]:
    """RAGate's ``ner`` where there are responses to read, the data set's slots of the context where there are none."""
    return ("spacy",) if responses else ("sgd",)


def check_finders(finders: Sequence[Finder]) -> None:
    """Raise :class:`UserError` for one whose package is missing, before responses are generated for it."""
    for name in finders:
        if name != "sgd":
            _import_optional(name, _INSTALL[name])


def entities_of(finders: Sequence[Finder]) -> str:
    """The finders in words: ``ner`` is the paper's only if no slot of the context is among what they find."""
    parts = [
        "slots of the context (kbtrain's own)" if name == "sgd" else f"entities of the response ({name})"
        for name in finders
    ]
    return " and ".join(parts) or "none"


def with_entities(
    examples: Sequence[TurnExample], finders: Sequence[Finder], models: Mapping[str, str]
) -> list[TurnExample]:
    """The examples with what these finders find, in the order of the finders; ``models`` by finder's name."""
    open_finder = {"spacy": spacy_finder, "gliner": gliner_finder}
    by_example = [annotated(example) if "sgd" in finders else () for example in examples]
    for name in finders:
        if name != "sgd":
            more = open_finder[name](models[name])([read_text(example) for example in examples])
            by_example = [(*a, *b) for a, b in zip(by_example, more, strict=True)]
    return [replace(example, entities=entities) for example, entities in zip(examples, by_example, strict=True)]


def _distinct(parts: Iterable[tuple[str, str, str]]) -> tuple[Entity, ...]:
    return tuple(dict.fromkeys(Entity(*part) for part in parts))


def _import_optional(package: str, command: str) -> Any:
    """An optional package, imported."""
    if importlib.util.find_spec(package) is None:
        raise UserError(f"package '{package}' is needed and not installed: {command}")
    return importlib.import_module(package)
