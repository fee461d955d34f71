"""Names and figures as a reader says them: gates in words, shares in percent, differences in points."""

from __future__ import annotations

from kbtrain.metrics.significance import Delta
from kbtrain.metrics.thresholds import READ_NO_DEV
from kbtrain.records import Condition

_WHOLE = {
    "llm_only": "never search", "all_rag": "always search", "one_step_rag": "always search",
    "random": "search at random", "oracle": "oracle (knows both answers)", "prompt": "asking the model itself",
    "relation_only": "kind of question alone", "form_only": "form of the question alone",
    "by_source": "never or always by source", "retriever_score": "retriever's top score alone",
    "retriever_gap": "gap of the retriever's two best scores",
}  # fmt: skip
_PARTS = {"kbm": "KBM", "seakr": "SeaKR", "ragate": "RAGate", "mha": "MHA", "peft": "PEFT"}


CONDITION_NAMES: dict[Condition, str] = {"llm": "LLM only", "rag": "All RAG", "mask": "MASK RAG"}


def gate_name(name: str) -> str:
    """``KBM, mastery`` for ``kbm_mastery``; a gate of another kind by its name without underscores."""
    if name in _WHOLE:
        return _WHOLE[name]
    parts = [_PARTS.get(part, part) for part in name.split("_") if part]
    if len(parts) > 1 and name.split("_")[0] in _PARTS:
        return f"{parts[0]}, {' '.join(parts[1:])}"
    return " ".join(parts) or name


def percent(share: float | None, digits: int = 1) -> str:
    """``45.9`` for 0.459; a dash for None."""
    return "-" if share is None else f"{round(100 * share, digits) + 0.0:.{digits}f}"


def area(value: float | None) -> str:
    """``0.38``: an area, where random order is 0 and the oracle's is 1."""
    return "-" if value is None else f"{round(value, 2) + 0.0:.2f}"


def by_rule(rule: str, dev: str = "dev") -> str:
    """``by rule 'ratio' on dev``; ``by rule '0.5'`` of a rule that reads no dev question."""
    return f"by rule '{rule}'" + ("" if rule in READ_NO_DEV else f" on {dev}")


def chosen_by(rule: str, n_dev: object) -> str:
    """``chosen on 150 dev questions by rule 'ratio'``; ``by rule '0.5'`` of a rule that reads none of them, as those
    of logged and of audited turns."""
    return ("" if rule in READ_NO_DEV or " of " in rule else f"chosen on {n_dev} dev questions ") + f"by rule '{rule}'"


def threshold_text(threshold: float, searched: float) -> str:
    """Three digits; words in their place where all or none of the questions are ``searched`` for."""
    return "always search" if searched == 1 else f"{threshold:.3g}" if searched else "never search"


def points(difference: float | None) -> str:
    """``+5.1`` for 0.051."""
    text = percent(difference)
    return text if text.startswith("-") else f"+{text}"


def points_interval(delta: Delta) -> str:
    """``[+3.0, +7.3]``."""
    return f"[{points(delta.low)}, {points(delta.high)}]"


def with_interval(delta: Delta) -> str:
    """``+5.1 [+3.0, +7.3]``."""
    return f"{points(delta.mean)} {points_interval(delta)}"


def percent_interval(delta: Delta) -> str:
    """``[18.2, 26.8]``."""
    return f"[{percent(delta.low)}, {percent(delta.high)}]"
