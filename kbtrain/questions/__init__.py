"""Questions from anywhere: one loader per native format, all of them giving :class:`kbtrain.records.Question`."""

from __future__ import annotations

from kbtrain.questions.catalogue import DATA_SETS
from kbtrain.questions.data_set import Reading
from kbtrain.questions.data_sets.atlas import atlas_passages
from kbtrain.questions.load import load, load_questions, sources

__all__ = ["DATA_SETS", "Reading", "atlas_passages", "load", "load_questions", "sources"]
