"""Break one line of the package at a time, and see that a test fails: the mutants that survive are holes in the suite.

Each mutant is a file, a text that stands there once, another one, and the tests that must notice; these pass without it.
It is made in a copy of the package; the working tree stays as it is.

Examples:
  python benchmarks/mutants.py
  python benchmarks/mutants.py --only thresholds      (mutants whose file's path contains this)
"""

# ruff: noqa: E501 - a mutant is one line

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.errors import UserError

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Mutant:
    """``old`` in ``file`` (below kbtrain/) becomes ``new``; one of ``tests`` (below tests/) must fail then."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def of(file: str, tests: str, *changes: tuple[str, str]) -> list[Mutant]:
    """Mutants of one file that the same tests must notice."""
    return [Mutant(file, old, new, tuple(tests.split())) for old, new in changes]


MUTANTS = [
    *of(
        "metrics/thresholds.py", "metrics/test_risk_control.py metrics/test_thresholds.py",
        ("upper_bounds(lost, n, delta / 2, exact)", "upper_bounds(lost, n, delta, exact)"),
        ("upper_bounds(n - saved, n, delta / 2, exact)", "upper_bounds(n - saved, n, delta, exact)"),
        ("return (lost - saved) / n, upper - lower", "return (lost - saved) / n, upper"),
        ("beta.ppf(1 - delta, inner + 1, n - inner)", "beta.ppf(1 - delta, inner + 1, n - inner + 1)"),
        ("goodness = 2 * _cumulated(dev.scores, dev.needed) / (searches + total)", "goodness = _cumulated(dev.scores, dev.needed) / (searches + total + 1)"),
        ("goodness = -np.abs(searches / len(dev.scores) - target_ratio)", "goodness = -np.abs(searches / len(dev.scores) - 0.5)"),
        ("retrieved = dev.scores > value", "retrieved = dev.scores >= value"),
        ("[[values[0] + 1], middle, [values[-1] - 1]]", "[[values[0]], middle, [values[-1] - 1]]"),
        ("won[-1] - won <= limit + 1e-9", "won[-1] - won <= 2 * limit + 1e-9"),
        ("np.ceil(totals - 1e-9)", "np.floor(totals - 1e-9)"),
    ),
    *of(
        "metrics/significance.py", "metrics/test_significance.py metrics/test_hypothesis_tests.py",
        ("np.quantile(draws, [0.025, 0.975])", "np.quantile(draws, [0.05, 0.95])"),
        ("yield counts[:, of_question]", "yield counts[:, np.sort(of_question)]"),
        ("np.arange(len(values), 0, -1))", "np.arange(len(values), 0, -1) ** 0)"),
        ("(1 + np.count_nonzero(drawn >= observed - 1e-12)) / (1 + len(drawn))", "np.count_nonzero(drawn >= observed - 1e-12) / len(drawn)"),
        ("drawn >= observed - 1e-12", "drawn > observed + 1e-12"),
        ("centre = share + weight / 2", "centre = share"),
        ("math.sqrt(share * (1 - share) / n + weight / (4 * n))", "math.sqrt(share * (1 - share) / n)"),
        ("math.hypot(after - low_after, high_before - before)", "math.hypot(after - low_after, before - low_before)"),
        ("binomtest(only_first, n, 0.5)", "binomtest(only_first, n, 0.5, alternative='greater')"),
        ("np.einsum(\"ij,ij->i\", size, gained) / 2", "np.einsum(\"ij,ij->i\", size, gained)"),
    ),
    *of(
        "metrics/ranking.py", "metrics/test_auroc.py metrics/test_curves.py metrics/test_score_order.py",
        ("_, block = np.unique(-scores, return_inverse=True)\n", "_, block = np.unique(scores, return_inverse=True)\n"),
        ("(self.accuracy[1:] + self.accuracy[:-1]) / 2", "self.accuracy[1:]"),
        ("return (retrieval_curve(scores, llm, rag).area - chance) / best", "return retrieval_curve(scores, llm, rag).area / best"),
        ("return retrieval_curve(rag - llm, llm, rag)", "return retrieval_curve(rag, llm, rag)"),
        ("np.diff(recall, axis=1) * precision", "np.diff(recall, axis=1)"),
    ),
    *of(
        "metrics/classification.py", "metrics/test_classification.py",
        ("precision = hits / n_retrieved if n_retrieved", "precision = hits / n_positive if n_retrieved"),
        ("recall=hits / n_positive if", "recall=hits / max(1, n_retrieved) if"),
        ("f1=2 * hits / (n_positive + n_retrieved)", "f1=hits / (n_positive + n_retrieved)"),
        ("fdr=None if precision is None else 1 - precision", "fdr=None if precision is None else precision"),
        ("-t * math.log(p) - (1 - t) * math.log(1 - p)", "-t * math.log(p)"),
        ("f1=2 * share * ratio / total", "f1=share * ratio / total"),
    ),
    *of(
        "labeling/certainty.py", "labeling/test_certainty.py labeling/test_intervals.py",
        ("min(1.0, max(0.0, 1 - entropy / math.log(scale)))", "min(1.0, max(0.0, 1 - entropy / math.log(n)))"),
        ("math.comb(n - size, drawn - k))", "math.comb(n - size, drawn - k) * 2)"),
        ("range(max(1, drawn - n + size), min(size, drawn) + 1)", "range(max(1, drawn - n + size), min(size, drawn))"),
        ("return 1.0  # the sum", "return 0.999999  # the sum"),
        ("shares = np.array([*sizes, 1]) / (n + 1)", "shares = np.array([*sizes, 0]) / n"),
        ("- resampled.mean()", "- value"),
        ("value + min(0.0, float(low))", "value"),
    ),
    *of(
        "labeling/label.py", "labeling/test_label.py labeling/test_tau.py labeling/test_effect.py labeling/test_certainty.py",
        ("return rag.mastery - llm.mastery, interval", "return llm.mastery - rag.mastery, interval"),
        ("value > tau", "value >= tau"),
        ("graded.n_empty <= rule.max_empty * graded.n", "True"),
        ("if cut != \"drop\" or answer.finish != \"length\"", "if True"),
        ("return text[: found.end()] if found else text", "return text"),
        ("known_rag=None if made.rag is None else _above(made.rag.mastery, tau_mastery)", "known_rag=_above(made.llm.mastery, tau_mastery)"),
        ("llm.n - llm.n_abstained", "llm.n"),
    ),
    *of(
        "evaluation/groups.py", "metrics/test_grouped.py metrics/test_knowledge_frequency.py",
        ("(below + upto) / 2 / max(1, len(at))", "upto / max(1, len(at))"),
        ("if value is not None and sets[i] == name]", "if value is not None]"),
        ("known = retrieve < 0.5", "known = retrieve > 0.5"),
        ("side=\"left\"", "side=\"right\""),
        ("gains[gate] = accuracy - ((1 - ratio) * plain + ratio * always)", "gains[gate] = accuracy - plain"),
        ("if 0 < len(words) <= _LONGEST", "if 0 < len(words)"),
    ),
    *of(
        "gate_folder.py", "gates/test_noted.py gates/test_decide.py",
        ("return 1 / (1 + math.exp(-log_odds)) if log_odds >= 0", "return 1 / (1 + math.exp(log_odds)) if log_odds >= 0"),
        ("float(chosen), score > chosen)", "float(chosen), score >= chosen)"),
    ),
    *of(
        "gates/noted.py", "gates/test_noted.py",
        ("calibrated = old is not None and bool(old.evidence) and not chosen.evidence", "calibrated = False"),
        ("guaranteed(old) and not guaranteed(chosen)", "guaranteed(old)"),
        ("and not replace and", "and"),
        ("if card_hash(source.folder) != source.card:", "if False:"),
        ("{**said, \"name\": own.get(name, name)}", "{**said, \"name\": name}"),
    ),
    *of(
        "gates/seakr/uncertainty.py", "gates/test_seakr.py",
        ("z = z - z.mean(axis=1, keepdims=True)", "z = z - z.mean(axis=0, keepdims=True)"),
        ("return float(value) / len(g)", "return float(value)"),
        ("g + alpha * np.eye(len(g))", "g + np.eye(len(g))"),
        ("np.maximum(np.linalg.eigvalsh(g), 0.0) + alpha", "np.maximum(np.linalg.eigvalsh(g), 1.0) + alpha"),
        ("math.log(k * squared_norm + alpha)", "math.log(squared_norm + alpha)"),
        ("return floor(self.low, self.k, self.alpha)", "return floor(self.mean, self.k, self.alpha)"),
        ("if threshold < self.floor:", "if threshold > self.floor:"),
        ("(z.shape[1] - 1)", "z.shape[1]"),
        ("(high - value) * (high - low_k) / (high - low)", "(high - value)"),
        (".var(axis=0).mean()", ".var(axis=1).mean()"),
    ),
    *of(
        "gates/ragate/mha_model.py", "gates/test_ragate_mha.py",
        ("other, keys = self._embedded(knowledge_ids), knowledge_mask", "other, keys = None, attention_mask"),
        ("linear(other, weight[d:], bias[d:])", "linear(x, weight[d:], bias[d:])"),
        ("mean = (x * weight).sum(1) / weight.sum(1)", "mean = x.mean(1)"),
        ("scaled = self.embedding(ids) * math.sqrt(d)", "scaled = self.embedding(ids)"),
        ("torch.relu(self.up(x))", "torch.tanh(self.up(x))"),
        ("keys = self._embedded(knowledge_ids), knowledge_mask", "keys = self._embedded(knowledge_ids), torch.ones_like(knowledge_mask)"),
    ),
    *of(
        "llm/hidden_states.py", "llm/sampler/test_state_sampler.py",
        ("found.mlp = _last(output)", "found.mlp = None"),
        ("self._mlp.register_forward_hook(of_mlp)", "self._block.register_forward_hook(of_mlp)"),
        ("return max(0, n_layers // 2 - 1)", "return n_layers // 2"),
    ),
    *of(
        "models/adapters.py", "training/test_lean_adapters.py",
        ("            lora_alpha=self.alpha,\n", ""),
        ("r=self.rank", "r=2 * self.rank"),
    ),
    *of(
        "gates/seakr/engine.py", "gates/test_seakr_gate.py",
        ("\"top_p\", \"max_new_tokens\", \"stop\"", "\"top_p\", \"stop\""),
        ("(GREEDY, *range(self.settings.k))", "(GREEDY, *range(self.settings.k - 1))"),
    ),
    *of(
        "training/answer_trainer.py", "recipes/test_logged_loss.py",
        ("(batch[\"labels\"] != IGNORE)", "(batch[\"labels\"][:, 1:] != IGNORE)"),
    ),
    *of(
        "answers/grading.py",
        "answers/test_normalise.py answers/test_option_letter.py labeling/test_mastery.py metrics/test_text_generation.py",
        ("return any(contains(answer, gold) for gold in question.answers)", "return all(contains(answer, gold) for gold in question.answers)"),
        ("return 2 * common / (len(said) + len(wanted))", "return common / (len(said) + len(wanted))"),
        ("return next(iter(found)) if len(found) == 1 else None", "return next(iter(found)) if found else None"),
        (".casefold().replace(", ".replace("),
        ("if not _denied(text, option)}", "if True}"),
        ("f\" {needle} \" in f\" {hay} \"", "needle in hay"),
    ),
]  # fmt: skip


def passes(tests: tuple[str, ...], copy: Path) -> bool:
    """True if these tests pass with the copy of the package."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    named = [str(copy / "tests" / name) for name in tests]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", *named]
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True).returncode == 0


def survives(mutant: Mutant, copy: Path) -> bool:
    """True if its tests pass all the same. Raises :class:`ValueError` if its text does not stand in its file once."""
    path = copy / "kbtrain" / mutant.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.file}: {mutant.old!r} stands there {text.count(mutant.old)} times, expected once")
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        return passes(mutant.tests, copy)
    finally:
        path.write_text(text, encoding="utf-8")


class MutantsConfig(Config):
    only: str = Field("", description="mutants whose file's path contains this")


def main(config: MutantsConfig) -> None:
    """Try all, print each, and end with their number; status 1 if any survived."""
    wanted = [mutant for mutant in MUTANTS if config.only in mutant.file]
    left = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        ignored = shutil.ignore_patterns(".git", ".venv*", "runs", "shared", "__pycache__")
        shutil.copytree(ROOT, copy, ignore=ignored)
        broken = [tests for tests in dict.fromkeys(mutant.tests for mutant in wanted) if not passes(tests, copy)]
        if broken:
            raise UserError(f"{', '.join(broken[0])}: fail without any mutant")
        for mutant in wanted:
            alive = survives(mutant, copy)
            left += [mutant] if alive else []
            print(f"{'SURVIVES' if alive else 'killed  '} {mutant.file}: {mutant.old!r} -> {mutant.new!r}", flush=True)
    print(f"{len(wanted)} mutants, {len(left)} survived")
    raise SystemExit(bool(left))


if __name__ == "__main__":
    run_script(main, MutantsConfig, __doc__)
