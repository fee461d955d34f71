r"""Choose how many passages the model reads, before anything is trained: candidates.jsonl -> evidence.jsonl.

Asks for greedy answers to the dev questions, without a search and with the first k hits for each k, and prints for
each k the right answers, what the search repairs and breaks, and the prompt's tokens. Every later stage uses the k with
the most right answers, unless --k names one. RUN/pilot/ stores the answers: another call requests only missing ones.
For other questions, splits or hits, or another smallest k, delete RUN/pilot first.
First run: retrieve.py with --pilot true. Several searches: --candidates names a file of hits for each. Several prompts:
--forms names templates of each, and sampling uses the best.

Examples:
  kbtrain run retrieve --run runs/mine --corpus passages.jsonl --k 5 --pilot true
  kbtrain run pilot --run runs/mine --model smollm2-135m-instruct
  kbtrain run pilot --run runs/mine --config server.yaml --ks "[1, 3, 5]" --questions 50
  kbtrain run pilot --run runs/mine --config server.yaml --forms "{may ignore: {llm: alone.txt, rag: ignore.txt}}"
  kbtrain run pilot --run runs/mine --model Qwen/Qwen2-7B-Instruct --dry-run
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from pydantic import Field

from kbtrain.config import run_script
from kbtrain.errors import UserError
from kbtrain.evaluation.outcomes import grade
from kbtrain.evaluation.search_pilot import (
    PLAIN,
    SearchSetting,
    advice,
    best_setting,
    compare_settings,
    cut_evidence,
    pick_questions,
    table,
)
from kbtrain.io import jsonl
from kbtrain.io.provenance import Artifact, check_current, check_unchanged, meta_of, write_atomically
from kbtrain.io.store import SampleStore, writing
from kbtrain.llm.backends import LLMConfig, open_llm
from kbtrain.llm.base import AnswerRequest
from kbtrain.llm.forecast import ForecastConfig, forecast
from kbtrain.llm.sample_stage import (
    SamplingJob,
    SamplingPlan,
    Shard,
    answers_of,
    check_files,
    check_passages_replaceable,
)
from kbtrain.prompts.own import Part, read_prompts
from kbtrain.questions.checks import read_questions
from kbtrain.records import Condition, Question, Split
from kbtrain.retrieval.retrieve_stage import EvidenceRule, evidence_of
from kbtrain.runtime.progress import progress_bar
from kbtrain.show import count_of


class PilotConfig(ForecastConfig, LLMConfig):
    run: Path = Field(Path("runs/demo"), description="run folder with questions.jsonl and candidates.jsonl")
    candidates: tuple[Path, ...] = Field((), description="files of hits to compare; empty: RUN/candidates.jsonl")
    ks: tuple[int, ...] = Field((1, 2, 3, 5), min_length=1, description="numbers of passages to compare")
    prompts: dict[Part, Path] = Field({}, description="own templates, as of sample; {}: the project's")
    forms: dict[str, dict[Part, Path]] = Field(
        {}, description="further prompts to compare: {NAME: {llm: FILE, rag: FILE}}; sampling uses the best"
    )
    splits: tuple[Split, ...] = Field(("dev",), min_length=1, description="splits whose questions are asked")
    questions: int | None = Field(None, ge=1, description="questions of each split at most, evenly spaced; null: all")
    k: int | None = Field(
        None, ge=1, description="use this number of passages regardless of the result; null: the best"
    )

    def writes(self) -> tuple[Path, ...]:
        return (self.run / "evidence.jsonl", self.run / "pilot.json")


def main(config: PilotConfig) -> None:
    files = config.candidates or (config.run / "candidates.jsonl",)
    check_unchanged(config.run / "questions.jsonl", *files)
    asked = pick_questions(
        (q for _, q in read_questions(config.run / "questions.jsonl")), config.splits, config.questions
    )
    for file in files:  # hits of other questions would become the run's evidence
        check_current(file, config.run / "questions.jsonl")
        check_files(config.run / "questions.jsonl", file)
    by_name = names_of(files)
    settings = settings_of(config, by_name)
    jobs = jobs_of(config, asked, by_name, settings)
    total = len(asked) * len(jobs)
    n_prompts = 1 + len(config.forms)
    prompts = f", {n_prompts} prompts" * bool(config.forms)
    searches = f"without a search and with {len(settings) // n_prompts} searches"
    print(f"pilot: {len(asked)} questions, {searches}{prompts}: {total} greedy answers")
    if config.dry_run:
        prices = config.price_list()

        def requests() -> Iterator[AnswerRequest]:
            return itertools.chain.from_iterable(job.requests() for job in jobs)

        return print("\n".join(forecast(config, requests).lines(prices)))
    correct, tokens = ask(config, asked, jobs, total)
    nevers, results = compare_settings(settings, correct, tokens)
    best = best_setting(results)
    never = nevers[best.setting.form]
    chosen = best.setting if config.k is None else replace(best.setting, k=config.k)
    write_evidence(config, by_name[chosen.candidates], chosen)
    report = {
        "chosen": asdict(chosen),
        "given": config.k is not None,
        "best": asdict(best),
        "never": asdict(never),
        "settings": [asdict(result) for result in results],
    }
    write_atomically(config.run / "pilot.json", json.dumps(report, indent=2) + "\n")
    print("\n".join([*table(nevers, results, chosen), advice(never, best)]))
    form = f", prompt '{chosen.form}'" * bool(chosen.form)
    print(f"{count_of(chosen.k, 'passage')} a question{form} -> {config.run / 'evidence.jsonl'}")


def names_of(files: Sequence[Path]) -> dict[str, Path]:
    """The files by their names, with their folders' where two have one name. Raises :class:`UserError` for one file
    twice."""
    stems = [path.stem for path in files]
    names = [
        path.stem if stems.count(path.stem) == 1 else f"{path.resolve().parent.name}-{path.stem}" for path in files
    ]
    if len(set(names)) < len(names):
        raise UserError("key 'candidates': two files have the same name and folder name; rename one")
    return dict(zip(names, files, strict=True))


def settings_of(config: PilotConfig, by_name: dict[str, Path]) -> list[SearchSetting]:
    """Every search with every number of passages that its file can give, for each prompt. Raises :class:`UserError`."""
    wanted = max(*config.ks, config.k or 0)
    most = {
        name: max((len(row.hits) for row in cut_evidence(path, wanted)), default=0) for name, path in by_name.items()
    }
    too_few = [name for name, n in most.items() if n < wanted]
    if too_few:
        name = too_few[0]
        raise UserError(
            f"{by_name[name]}: at most {most[name]} hits a question, but keys 'ks' and 'k' ask for {wanted}; "
            f"run retrieve with --k {wanted} --pilot true, or give smaller ones"
        )
    ks = sorted(set(config.ks))
    return [SearchSetting(name, k, form) for form in (PLAIN, *config.forms) for name in by_name for k in ks]


def files_of(config: PilotConfig, form: str) -> dict[Part, Path]:
    """Templates of a form of the prompt; none: the project's."""
    return config.prompts if form == PLAIN else config.forms[form]


def jobs_of(
    config: PilotConfig, asked: list[Question], by_name: dict[str, Path], settings: list[SearchSetting]
) -> list[SamplingJob]:
    """Samplings of greedy answers, for each prompt without a search and for each setting; what they read is in
    RUN/pilot."""
    folder = config.run / "pilot" / ("forecast" * config.dry_run)  # a look ahead leaves what sampling compares
    folder.mkdir(parents=True, exist_ok=True)
    questions, ids = folder / "questions.jsonl", {question.id for question in asked}
    jsonl.write(questions, asked)
    read = {(s.candidates, s.k): folder / s.file_name for s in settings}
    for (candidates, k), evidence in read.items():
        jsonl.write(evidence, cut_evidence(by_name[candidates], k, ids))
    prompts = {form: read_prompts(files_of(config, form)) for form in (PLAIN, *config.forms)}
    jobs: dict[str, SamplingJob] = {}
    for setting in settings:
        asking: dict[str, Condition] = {setting.without: "llm", setting.name: "rag"}
        for name, condition in asking.items():
            if name not in jobs:
                evidence = read[setting.candidates, setting.k]
                plan = SamplingPlan(questions, evidence, (condition,), {}, prompts=prompts[setting.form])
                jobs[name] = SamplingJob.from_config(config, name, plan, Shard(), len(asked))
    return list(jobs.values())


def ask(
    config: PilotConfig, asked: list[Question], jobs: list[SamplingJob], total: int
) -> tuple[dict[str, dict[str, bool | None]], dict[str, dict[str, int]]]:
    """Verdicts and prompt tokens of the greedy answers, by job and question; what is stored is not asked again."""
    target = config.run / "pilot" / "samples.db"
    correct: dict[str, dict[str, bool | None]] = {}
    tokens: dict[str, dict[str, int]] = {}
    by_id = {question.id: question for question in asked}
    with writing(target, "pilot"), SampleStore(target) as store:
        try:
            stored = [job.n_stored(store) for job in jobs]
        except UserError as error:
            raise UserError(f"{error}, or delete {target.parent} to begin this pilot again") from None
        llm = open_llm(config) if sum(stored) < total else None
        with progress_bar(total=total, initial=sum(stored), desc="pilot", unit="answers") as bar:
            for job, n in zip(jobs, stored, strict=True):
                if llm is not None and n < job.total:
                    for more in job.sample(store, lambda at, windows, done: answers_of(llm, at, windows, done)):
                        bar.update(more)
                rows = list(store.iterate(job.run))
                correct[job.run] = {row.question_id: grade(by_id[row.question_id], row).correct for row in rows}
                tokens[job.run] = {row.question_id: row.prompt_tokens for row in rows}
    return correct, tokens


def write_evidence(config: PilotConfig, candidates: Path, chosen: SearchSetting) -> None:
    """The hits of the chosen setting as the run's evidence, noted as the search that found them with its k, and the
    templates of the chosen prompt."""
    target, found = config.run / "evidence.jsonl", meta_of(candidates)
    templates = {part: str(path.resolve()) for part, path in files_of(config, chosen.form).items()}
    search = {**found.get("config", {}), "k": chosen.k, "pilot": False}
    evidence = Artifact(target, found.get("stage", "retrieve"), search, [config.run / "questions.jsonl", candidates])
    noted = {"chosen_by": "pilot", "form": chosen.form, "prompts": templates}
    current = evidence.is_current()
    if not current:
        check_passages_replaceable(evidence)
        questions = (question for _, question in read_questions(config.run / "questions.jsonl"))
        rows = zip(questions, cut_evidence(candidates, chosen.k), strict=True)
        made = (evidence_of(q, row.hits, EvidenceRule(row.retriever, row.titles)) for q, row in rows)
        jsonl.write(target, made)
    if not current or any(meta_of(target).get(key) != value for key, value in noted.items()):
        evidence.finish(noted)


if __name__ == "__main__":
    run_script(main, PilotConfig, __doc__)
