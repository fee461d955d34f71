"""The search at its best, before anything is trained: the number of passages and the prompt with most right answers.

Hits are ordered, so k passages are the first k of more. Each setting is asked greedily about the same questions. A gate
is worth its cost only against the best setting (:func:`best_setting`). :func:`reach`: what so many questions can show.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.metrics.significance import paired_difference, wilson
from kbtrain.records import Evidence, Question, Split
from kbtrain.show import aligned, count_of

NEVER = "never"
PLAIN = ""  # the form of the prompt that sampling uses without a choice
Effect = Literal["few", "helps", "harms", "both"]
_ADVICE: dict[Effect, tuple[str, str]] = {
    "few": ("A search changes few answers", "A gate cannot gain more than these."),
    "helps": ("A search helps", "Always searching is hard to beat; a gate saves searches."),
    "harms": ("A search harms", "Improve it first, or never search."),
    "both": ("A search repairs some answers and breaks others", "A gate can gain at most {:.1f} points here."),
}


@dataclass(frozen=True)
class SearchSetting:
    """A search, by the file of its hits, how many of them the model reads, and the form of the prompt."""

    candidates: str
    k: int
    form: str = PLAIN

    @property
    def name(self) -> str:
        """Name of its answers in the pilot's store."""
        return f"{self.candidates} {self.k} {self.form}".rstrip()

    @property
    def file_name(self) -> str:
        """Name of the file of its hits in the pilot's folder."""
        return f"{self.candidates}-{self.k}.jsonl"

    @property
    def without(self) -> str:
        """Name of the answers that no search precedes, in the same form of the prompt."""
        return f"{NEVER} {self.form}".rstrip()


@dataclass(frozen=True)
class SettingResult:
    """Right answers with a setting, of ``n`` questions; ``low`` and ``high``: Wilson's 95 % interval of their share.

    ``repaired``: wrong without a search and right with it; ``broken``: the other way round. ``prompt_tokens``: mean.
    """

    setting: SearchSetting
    n: int
    right: int
    low: float
    high: float
    repaired: int
    broken: int
    prompt_tokens: float


def compare_settings(
    settings: Sequence[SearchSetting],
    correct: Mapping[str, Mapping[str, bool | None]],
    prompt_tokens: Mapping[str, Mapping[str, int]],
) -> tuple[dict[str, SettingResult], list[SettingResult]]:
    """Never searching by form of the prompt, and each setting, on the questions that have a verdict under all of them.

    ``correct`` and ``prompt_tokens``: by :attr:`SearchSetting.name` or :attr:`SearchSetting.without` and question id.
    """
    ids = [name for name in next(iter(correct.values())) if all(of.get(name) is not None for of in correct.values())]
    if not ids:
        raise UserError("pilot: no question has a verdict under every setting; check the answers and their columns")

    def result(setting: SearchSetting, name: str) -> SettingResult:
        pairs = [(bool(correct[setting.without][question]), bool(correct[name][question])) for question in ids]
        right = sum(with_search for _, with_search in pairs)
        low, high = wilson(right, len(ids))
        repaired = sum(with_search and not without for without, with_search in pairs)
        broken = sum(without and not with_search for without, with_search in pairs)
        tokens = sum(prompt_tokens[name][question] for question in ids) / len(ids)
        return SettingResult(setting, len(ids), right, low, high, repaired, broken, tokens)

    nevers = {setting.form: result(SearchSetting("", 0, setting.form), setting.without) for setting in settings}
    return nevers, [result(setting, setting.name) for setting in settings]


def best_setting(results: Sequence[SettingResult]) -> SettingResult:
    """Most right answers; of equals the one whose prompts are shortest."""
    return min(results, key=lambda result: (-result.right, result.prompt_tokens))


def table(nevers: Mapping[str, SettingResult], results: Sequence[SettingResult], chosen: SearchSetting) -> list[str]:
    """The settings as lines of text, the chosen one marked."""
    rows = []
    for result in (*nevers.values(), *results):
        setting, right = result.setting, f"{result.right / result.n:.1%} [{result.low:.1%}, {result.high:.1%}]"
        tokens = f"{result.prompt_tokens:.0f}" if result.prompt_tokens else "-"  # some servers count none
        counts = [str(setting.k), right, str(result.repaired), str(result.broken), tokens]
        name = f"{setting.candidates or NEVER} {setting.form}".rstrip()
        rows.append([name, *counts, "<- chosen" * (setting == chosen)])
    head = ("search", "passages", "right with passages", "repaired", "broken", "prompt tokens", "")
    return aligned(head, rows).split("\n")


def effect_of(never: SettingResult, best: SettingResult) -> Effect:
    """What a search does to the answers, as far as these questions show."""
    if best.repaired + best.broken < 0.05 * best.n:
        return "few"
    if not best.broken or (best.low > never.high and best.broken <= 0.02 * best.n):
        return "helps"
    return "harms" if not best.repaired or never.low > best.high else "both"


def advice(never: SettingResult, best: SettingResult) -> str:
    """Whether the search helps at all, in one sentence."""
    before, after = _ADVICE[effect_of(never, best)]
    after = after.format(100 * min(best.repaired, best.broken) / best.n)  # against the better of never and always
    return f"{before}: it repairs {best.repaired} and breaks {best.broken} of {best.n} answers. {after}"


def pick_questions(questions: Iterable[Question], splits: Sequence[Split], most: int | None) -> list[Question]:
    """Questions of the splits with a gold answer, at most ``most`` of each, evenly spaced: a file may be sorted."""
    asked = [question for question in questions if question.split in splits and question.answers]
    if not asked:
        raise UserError(f"pilot: no question of {' or '.join(splits)} has a reference answer to be graded by")
    picked = set[str]()
    for split in splits:
        ids = [question.id for question in asked if question.split == split]
        n = min(len(ids), most or len(ids))
        picked.update(ids[i * len(ids) // n] for i in range(n))
    return [question for question in asked if question.id in picked]


def cut_evidence(candidates: Path, k: int, ids: set[str] | None = None) -> Iterable[Evidence]:
    """The first ``k`` hits of each question (of ``ids``)."""
    for evidence in jsonl.read(Evidence, candidates):
        if ids is None or evidence.question_id in ids:
            yield replace(evidence, hits=evidence.hits[:k])


_GAINED, _LOST = 0.10, 0.04  # answers that a gate changes against always searching, as gates of the demo did


@dataclass(frozen=True)
class Reach:
    """What ``n`` questions can show: ``half``: half the 95 % interval of a difference of right answers, of a gate that
    changes one answer in seven; ``promise``: the smallest loss that can be promised with probability 0.9, where no
    question of dev was lost."""

    n: int
    half: float
    promise: float


def reach(n: int, delta: float = 0.1) -> Reach:
    """The interval by :func:`~kbtrain.metrics.significance.paired_difference`, the promise by Clopper-Pearson."""
    value = paired_difference(round(_GAINED * n), round(_LOST * n), n)
    return Reach(n, (value.high - value.low) / 2, 1 - (delta / 2) ** (1 / n))


def planning_line(n_test: int) -> str:
    """What the test questions of a run can show, in one sentence."""
    n, half, more = count_of(n_test, "test question"), *(100 * reach(k * n_test).half for k in (1, 4))
    if half > 20:
        return f"{n}: too few to say anything; four times as many measure a difference to ±{more:.1f} points"
    return f"{n} measure a difference of right answers to ±{half:.1f} points, four times as many to ±{more:.1f}"
