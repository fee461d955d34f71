"""Are there targets to train on? A training set with one class of a target teaches nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from kbtrain.errors import UserError
from kbtrain.prompts.kbm import Key
from kbtrain.records import GateExample


@dataclass
class Targets:
    """Which training examples have all targets that training needs, and how many of each class."""

    keys: Sequence[Key]
    classes: Counter[tuple[bool, Key, bool]] = field(default_factory=Counter)  # (with reference, key, target) -> number
    seen: int = 0  # training examples, with all targets or not

    def complete(self, made: GateExample) -> bool:
        """Whether a training example has every target; if so, it is counted."""
        self.seen += 1
        targets: dict[Key, bool | None] = {key: getattr(made, key) for key in self.keys}
        if None in targets.values():
            return False
        self.classes.update((made.reference is not None, key, bool(target)) for key, target in targets.items())
        return True

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Number of training examples that are True and False, by target."""
        made: dict[str, dict[str, int]] = {}
        for (reference, key, target), n in sorted(self.classes.items()):
            made.setdefault(f"{key} with reference" if reference else key, {})[str(target)] = n
        return made

    def check(self) -> None:
        """Raise :class:`UserError` if there is nothing to train on, or only one class of some target.

        A run without any training question is there to be scored: that is no error.
        """
        if self.seen and not self.classes:
            raise UserError(
                f"no training question has labels for {', '.join(self.keys)}; sample questions of split train"
            )
        for reference, key in sorted({(reference, key) for reference, key, _ in self.classes}):
            true, false = (self.classes[reference, key, target] for target in (True, False))
            if not true or not false:
                kind = f"'{key}' with reference" if reference else f"'{key}'"
                where = "tau_benefit" if key == "benefit" else f"tau_{key} of data_gen/label.py"
                raise UserError(
                    f"target {kind}: all {true or false} training examples are {bool(true)}; change {where} "
                    "or leave the key out of keys"
                )
