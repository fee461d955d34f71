"""Do the back ends draw the same answers? The same run, sampled by each, compared question by question.

Sample the same questions into one store for each back end first (data_gen/sample.py --backend ...; vLLM's own
environment will do, with PYTHONPATH=.), then compare the stores: every row against the first.

Examples:
  python benchmarks/backends.py --questions runs/demo/questions.jsonl --stores "[a/samples.db, b/samples.db]"
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from pydantic import Field

from kbtrain import jsonl
from kbtrain.config import Config, run_script
from kbtrain.errors import UserError, at
from kbtrain.labeling.agreement import AnswerMeasures, answers, difference, same_greedy, shared_questions
from kbtrain.metrics.significance import Delta
from kbtrain.records import CONDITIONS, Question
from kbtrain.store import SampleStore
from kbtrain.text_table import aligned, number, signed

HEAD = ("store", "questions", "mastery", "- first", "95 %", "log-prob.", "- first", "95 %", "tokens", "same greedy")


class BackendsConfig(Config):
    questions: Path = Field(Path("runs/demo/questions.jsonl"), description="the questions that were asked")
    stores: tuple[Path, ...] = Field(
        description="sample stores; the first is the one that the others are compared with"
    )
    sampling_run: str = Field("main", description="name of the sampling run in each store")


def row(name: str, one: AnswerMeasures, other: AnswerMeasures) -> list[str]:
    """One line of the table: means, and differences from ``one``."""
    cells = [name, str(len(other.greedy))]
    for measure, digits in (("mastery", 3), ("logprob", 2)):
        cells.append(number(other.mean(measure), digits))
        cells += ["", ""] if one is other else shown(difference(one, other, measure), digits)
    share = None if one is other else same_greedy(one, other)
    return [*cells, f"{other.mean('n_tokens'):.1f}", "" if share is None else f"{share:.0%}"]


def shown(found: Delta, digits: int) -> list[str]:
    return [signed(found.mean, digits), f"[{signed(found.low, digits)}, {signed(found.high, digits)}]"]


def main(config: BackendsConfig) -> None:
    if len(config.stores) < 2:
        raise UserError("key 'stores': name at least two")
    with ExitStack() as stack:
        stores = [stack.enter_context(SampleStore(path, read_only=True)) for path in config.stores]
        n_compared = 0
        for condition in CONDITIONS:
            ids = shared_questions(stores, config.sampling_run, condition)
            asked = [q for q in jsonl.read(Question, config.questions) if q.id in ids]
            if len(asked) < 2:
                continue
            n_compared += len(asked)
            found = [answers(store, config.sampling_run, asked, condition) for store in stores]
            names = [path.parent.name for path in config.stores]
            print(f"condition {condition}")
            print(aligned(HEAD, [row(name, found[0], other) for name, other in zip(names, found, strict=True)]))
    if not n_compared:
        raise UserError(f"{at(config.questions)}: no two questions of it are sampled in all stores")


if __name__ == "__main__":
    run_script(main, BackendsConfig, __doc__)
