"""Features that a gate reads of its examples, kept in a file: another fit, or another label, extracts none again.

The file holds one row an example and what made them: a hash of the extracting code's file. An example is known again
by all that can be read of it, without labels and ids.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbtrain.errors import UserError, at
from kbtrain.gate.gate import Gate
from kbtrain.io.files import replacing
from kbtrain.io.provenance import file_sha256
from kbtrain.records import Example

if TYPE_CHECKING:
    from numpy import floating
    from numpy.typing import NDArray

    Rows = NDArray[floating[Any]]

Extract = Callable[[Sequence[Any]], Any]  # examples -> (n, d) numbers
EXTRACTED_ANEW = 8  # dev examples on which a fitted gate is compared with one that extracts by itself
WINDOW = 512  # examples extracted between two writings of the file: what a kill loses at most
_NOT_READ = frozenset({
    *("id", "question_id", "split", "label", "mastery", "certainty", "benefit", "change"),
    *("soft_mastery", "soft_certainty", "soft_benefit", "soft_change"),
})  # fmt: skip


class KeptFeatures:
    """Features of examples by ``extract``, read from ``path`` as far as they are there; ``extracted`` counts the rest.

    Raises :class:`UserError` for a file that is none, and for features that are no (n, d) finite numbers.
    """

    def __init__(self, path: Path, extract: Extract, gate: str) -> None:
        self.path, self.extract, self.gate, self.extracted = path, extract, gate, 0
        self.made_by = _code(extract)
        self._rows: dict[str, Rows] = self._read() if path.exists() else {}

    def __len__(self) -> int:
        return len(self._rows)

    def features_of(self, examples: Sequence[Example]) -> Rows:
        """(n, d), in the order of the examples; what is missing is extracted and kept."""
        import numpy as np

        names = [_name(example) for example in examples]
        missing = {name: e for name, e in zip(names, examples, strict=True) if name not in self._rows}
        for start in range(0, len(missing), WINDOW):
            part = dict(list(missing.items())[start : start + WINDOW])
            self._rows.update(zip(part, self._extracted(list(part.values())), strict=True))
            self._write()
        if len({len(self._rows[name]) for name in names}) > 1:
            raise UserError(f"{at(self.path)}: rows of different lengths; delete the file to extract them again")
        return np.stack([self._rows[name] for name in names])

    def _extracted(self, examples: Sequence[Example]) -> Rows:
        import numpy as np

        try:
            found = np.asarray(self.extract(examples))
            found = found if found.dtype == np.float32 else found.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise UserError(f"gate '{self.gate}': its features are no numbers ({str(error)[:80]})") from None
        if found.ndim != 2 or len(found) != len(examples) or not np.isfinite(found).all():
            raise UserError(
                f"gate '{self.gate}': expected features as ({len(examples)}, d) finite numbers, found {found.shape}"
            )
        self.extracted += len(examples)
        return found

    def _read(self) -> dict[str, Rows]:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path, "np") as file:
                facts, rows = file.metadata() or {}, file.get_tensor("features")
            names = json.loads(facts["examples"])
        except (SafetensorError, KeyError, OSError, ValueError) as error:
            raise UserError(f"{at(self.path)}: no kept features ({str(error)[:80]}); delete it") from None
        if facts.get("sha256", _bytes(rows)) != _bytes(rows):
            raise UserError(f"{at(self.path)}: was changed since; delete it to extract the features again")
        if facts.get("made_by") != self.made_by:  # of other code: extracted anew, and written over
            return {}
        return dict(zip(names, rows, strict=False))

    def _write(self) -> None:
        import numpy as np
        from safetensors.numpy import save_file

        rows = np.stack(list(self._rows.values()))
        facts = {"examples": json.dumps(list(self._rows)), "made_by": self.made_by, "sha256": _bytes(rows)}
        with replacing(self.path) as partial:
            save_file({"features": rows}, str(partial), facts)


class ByKept:
    """A gate that takes its features from the file."""

    def __init__(self, gate: Gate, kept: KeptFeatures) -> None:
        self.gate, self.kept = gate, kept

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


def by_kept(gate: Gate, kept: KeptFeatures | None) -> Gate | ByKept:
    """The gate, with kept features where there are such."""
    return gate if kept is None else ByKept(gate, kept)


def _name(example: Example) -> str:
    read = {key: value for key, value in asdict(example).items() if key not in _NOT_READ}
    return hashlib.sha256(json.dumps(read, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _bytes(rows: Rows) -> str:
    return hashlib.sha256(rows.tobytes()).hexdigest()


def _code(extract: Extract) -> str:
    """Name of the function and hash of the file it stands in: features of changed code are not taken."""
    name = f"{getattr(extract, '__module__', '')}.{getattr(extract, '__qualname__', type(extract).__qualname__)}"
    try:
        source = inspect.getsourcefile(inspect.unwrap(extract))
    except TypeError:
        source = None
    return f"{name} {file_sha256(Path(source)) if source else 'unknown'}"
