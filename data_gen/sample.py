"""Sample a model's answers with and without retrieval: questions.jsonl + evidence.jsonl -> samples.db.

Every finished batch is durable; an interrupted run, started again, ends in the same bytes as an undisturbed one.

Examples:
  python data_gen/sample.py --run runs/demo --model smollm2-135m-instruct
  python data_gen/sample.py --config data_gen/configs/sample_demo.yaml
  python data_gen/sample.py --run runs/qwen --model Qwen/Qwen2-7B-Instruct --conditions "[llm, rag]" --dry-run true
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from pydantic import Field
from tqdm import tqdm

from kbtrain.config import Config, run_script
from kbtrain.llm.plan import Plan, check_files
from kbtrain.provenance import file_sha256, write_meta
from kbtrain.records import Condition, Split


class SampleConfig(Config):
    run: Path = Field(Path("runs/demo"), description="run folder with questions.jsonl and evidence.jsonl")
    sampling_run: str = Field("main", description="name of this sampling run in the store")
    model: str = Field("smollm2-135m-instruct", description="embedded name, local folder or hub id")
    dtype: str = Field("auto", description="auto (measured), bf16, fp32, fp16")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, ...")
    conditions: tuple[Condition, ...] = Field(("llm", "rag", "mask"), description="llm, rag, mask")
    samples: dict[Split, int] = Field({"train": 30, "dev": 30, "test": 30}, description="answers sampled per question")
    mask_questions: dict[Split, int] | None = Field(None, description="first questions asked under mask; null: all")
    seed: str = Field("0", description="names the run's random numbers")
    temperature: float = Field(1.0, gt=0, description="sampling temperature")
    top_k: int = Field(0, ge=0, description="keep the k most probable tokens; 0: all")
    top_p: float = Field(1.0, gt=0, le=1, description="keep the most probable tokens up to this mass")
    max_new_tokens: int = Field(24, ge=1, description="longest answer, in tokens")
    max_prompt_tokens: int = Field(2048, ge=32, description="longer prompts lose evidence from their tail")
    stop: tuple[str, ...] = Field(("\n",), description="strings that end an answer")
    batch_rows: int = Field(248, ge=1, description="answers drawn at once")
    batch_prompt_tokens: int = Field(16384, ge=32, description="prompt tokens prefilled at once, padding counted")
    dry_run: bool = Field(False, description="check the input, say what would be done, and stop")


def main(config: SampleConfig) -> None:
    started = time.time()
    questions, evidence = config.run / "questions.jsonl", config.run / "evidence.jsonl"
    counts = check_files(questions, evidence)
    plan = Plan(questions, evidence, config.conditions, dict(config.samples), config.mask_questions)
    total = plan.total(counts)
    print(f"{sum(counts.values())} questions, {total} question-conditions under {', '.join(config.conditions)}")
    if config.dry_run:
        return

    from kbtrain.store import SampleStore

    target, settings = config.run / "samples.db", asked(config, plan)
    with SampleStore(target) as store:
        if config.sampling_run in store.runs():  # refuse other settings before a model is loaded
            store.begin(config.sampling_run, {**store.run_meta(config.sampling_run), **settings})
        if config.sampling_run in store.runs() and len(store.done(config.sampling_run)) == total:
            print(f"all {total} question-conditions are in {target} already")
        else:
            generate(config, store, plan, total, settings)
        key = {"questions": file_sha256(questions), "run_meta": store.run_meta(config.sampling_run)}
    write_meta(target, stage="sample", config=config.model_dump(mode="json"), inputs=[questions, evidence],
               extra=key, started=started)  # fmt: skip


def asked(config: SampleConfig, plan: Plan) -> dict[str, Any]:
    """What a run's answers depend on, as far as it is known without the model."""
    from kbtrain.llm.base import Sampling

    dumped = config.model_dump(mode="json")
    files = {"questions": file_sha256(plan.questions), "evidence": file_sha256(plan.evidence)}
    plain = {key: dumped[key] for key in ("model", "samples", "batch_rows", "batch_prompt_tokens")}
    return {**plain, **files, "sampling": {key: dumped[key] for key in Sampling.__dataclass_fields__}}


def generate(config: SampleConfig, store: Any, plan: Plan, total: int, settings: dict[str, Any]) -> None:
    from kbtrain.llm.base import Sampling
    from kbtrain.llm.batching import BatchLimits
    from kbtrain.llm.precision import name_of
    from kbtrain.llm.transformers_llm import TransformersLLM
    from kbtrain.prompts import answer_fingerprint

    run = config.sampling_run
    limits = BatchLimits(rows=config.batch_rows, prompt_tokens=config.batch_prompt_tokens)
    sampling = Sampling(**config.model_dump(include=set(Sampling.__dataclass_fields__)))
    # a begun run keeps its precision: 'auto' measures, and could measure otherwise on a busy machine
    begun = config.dtype == "auto" and run in store.runs()
    dtype = store.run_meta(run)["dtype"] if begun else config.dtype
    llm = TransformersLLM.load(config.model, sampling, dtype, config.device, limits)
    store.begin(run, {
        **settings, "dtype": name_of(llm.model.dtype), "device": llm.model.device.type,
        "prompts": answer_fingerprint(llm.tokenizer), "shared_prefix": llm.shared_prefix,
    })  # fmt: skip
    done = store.done(run)
    with tqdm(total=total, initial=len(done), desc="sample", unit=" question-conditions", smoothing=0.05) as bar:
        for sets in llm.answer(plan.asks(), done):
            store.put(run, sets)
            bar.update(len(sets))
    print(f"{total} question-conditions, {total - len(done)} of them now -> {store.path}")


if __name__ == "__main__":
    run_script(main, SampleConfig, __doc__)
