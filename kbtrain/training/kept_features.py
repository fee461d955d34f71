"""Features of a gate's examples, kept in a file: another fit, or another label, extracts none again.

The file holds a row for each example. It depends on the extracting code's file. An example is identified by a hash of
all that can be read of it, without labels and ids.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kbtrain.errors import UserError
from kbtrain.gate.gate import Gate
from kbtrain.io import jsonl
from kbtrain.io.artifact import Records
from kbtrain.io.provenance import file_sha256
from kbtrain.records import Example

Rows = NDArray[np.floating[Any]]
Extract = Callable[[Sequence[Any]], Any]  # examples -> (n, d) numbers
EXTRACTED_AGAIN = 8  # dev examples on which a fitted gate is compared with one that extracts by itself
WINDOW = 512  # examples extracted between two writes to the file: what a kill loses at most
_NOT_READ = frozenset({
    *("id", "question_id", "split", "label", "mastery", "certainty", "benefit", "change"),
    *("soft_mastery", "soft_certainty", "soft_benefit", "soft_change"),
})  # fmt: skip


@dataclass(frozen=True)
class FeatureRow:
    """Features of an example in the file."""

    example: str
    dtype: str
    features: list[float]


class KeptFeatures:
    """Features of examples by ``extract``, read from ``path`` as far as they are there; ``extracted`` counts the rest.

    Raises :class:`UserError` for features that are not (n, d) finite numbers.
    """

    def __init__(self, path: Path, extract: Extract, gate: str) -> None:
        self.path, self.extract, self.gate, self.extracted = path, extract, gate, 0
        self._file = Records(path, {"code": _code(extract)}, growing=True)
        rows = jsonl.read(FeatureRow, path)
        self._rows: dict[str, Rows] = {row.example: np.array(row.features, dtype=row.dtype) for row in rows}

    def __len__(self) -> int:
        return len(self._rows)

    def features_of(self, examples: Sequence[Example]) -> Rows:
        """(n, d), in the order of the examples; what is missing is extracted and kept."""
        names = [_name(example) for example in examples]
        missing = {name: e for name, e in zip(names, examples, strict=True) if name not in self._rows}
        for start in range(0, len(missing), WINDOW):
            part = dict(list(missing.items())[start : start + WINDOW])
            rows = dict(zip(part, self._extracted(list(part.values())), strict=True))
            self._file.add(*(FeatureRow(name, str(row.dtype), row.tolist()) for name, row in rows.items()))
            self._rows |= rows
        return np.stack([self._rows[name] for name in names])

    def _extracted(self, examples: Sequence[Example]) -> Rows:
        try:
            features = np.asarray(self.extract(examples))
            features = features if features.dtype == np.float32 else features.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise UserError(f"gate '{self.gate}': its features are not numbers ({str(error)[:80]})") from None
        if features.ndim != 2 or len(features) != len(examples) or not np.isfinite(features).all():
            expected = f"({len(examples)}, d) finite numbers"
            raise UserError(f"gate '{self.gate}': expected features as {expected}, found {features.shape}")
        self.extracted += len(examples)
        return features


class StoredFeaturesGate:
    """A gate that takes its features from the file."""

    def __init__(self, gate: Gate, stored: KeptFeatures) -> None:
        self.gate, self.kept = gate, stored

    @property
    def name(self) -> str:
        """The gate's."""
        return self.gate.name

    def score(self, examples: Sequence[Any]) -> list[float]:
        """One score per example. Raises :class:`UserError` for a gate that cannot score features."""
        scores = getattr(self.gate, "score_features", None)
        if scores is None:
            raise UserError(f"gate '{self.kept.gate}': names features but has no score_features(features)")
        return [float(value) for value in scores(self.kept.features_of(examples))]


def with_stored_features(gate: Gate, stored: KeptFeatures | None) -> Gate | StoredFeaturesGate:
    """The gate, with kept features where there are such."""
    return gate if stored is None else StoredFeaturesGate(gate, stored)


def _name(example: Example) -> str:
    read = {key: value for key, value in asdict(example).items() if key not in _NOT_READ}
    return hashlib.sha256(json.dumps(read, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _code(extract: Extract) -> str:
    """Name of the function and hash of the file it stands in: features of changed code are not taken."""
    name = f"{getattr(extract, '__module__', '')}.{getattr(extract, '__qualname__', type(extract).__qualname__)}"
    try:
        source = inspect.getsourcefile(inspect.unwrap(extract))
    except TypeError:
        source = None
    return f"{name} {file_sha256(Path(source)) if source else 'unknown'}"
