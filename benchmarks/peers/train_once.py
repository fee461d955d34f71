"""Peer of benchmarks/training.py: one training in a process of its own, so that its peak memory is its own.

Argument: JSON with who (kbtrain, kbtrain_padded, trl_defaults, trl_best), method (full, qlora), model, data (JSONL),
batch, epochs, dtype, learning_rate, max_length, folder. The last line is JSON: seconds and tokens of the last epoch,
losses, peak memory, the loss of the trained model on all examples, computed the same way for every peer, and (full) the
least time the epoch's products take at the rate of this machine, measured after the training.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from training_limit import least_seconds

from kbtrain.gates.kbm.gate import KBM
from kbtrain.gates.kbm.train import KBMTrainer, make_row
from kbtrain.gates.true_false import Encoder, kbm_template
from kbtrain.io.jsonl import read
from kbtrain.io.provenance import peak_rss_mb
from kbtrain.models.adapters import Adapter, open_base
from kbtrain.prompts.kbm import PAPER_KEYS, kbm_answer, kbm_prompt, render_chat
from kbtrain.records import GateExample
from kbtrain.training.answer_trainer import Collator, TrainingRow, answer_loss, n_common_start
from kbtrain.training.base_trainer import LikeLengthSampler
from kbtrain.training.config import TrainingConfig, training_arguments
from kbtrain.training.data import target


def main(job: dict[str, Any]) -> dict[str, Any]:
    from transformers import TrainerCallback

    base, tokenizer = open_base(job["model"], job["method"], "cpu", job["dtype"])
    examples = list(read(GateExample, Path(job["data"])))
    encode = Encoder(tokenizer, kbm_template(PAPER_KEYS), job["max_length"]).encode
    rows = [make_row(encode(e), [target(e, key, "hard") for key in PAPER_KEYS]) for e in examples]
    trainer = (ours if job["who"].startswith("kbtrain") else trl)(job, base, tokenizer, examples, rows)
    times: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            times.append(time.perf_counter())

    trainer.add_callback(Clock())
    trainer.train()
    epoch = math.ceil(len(rows) / job["batch"])
    seconds = time.perf_counter() - times[-epoch]  # the epochs before warm up: all shapes have been seen
    peak = peak_rss_mb()
    losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
    model = trainer.accelerator.unwrap_model(trainer.model)
    lengths = [len(row.ids) for row in rows]
    loss, answer_tokens = final_loss(model, tokenizer, rows)
    shared = (len(rows) - epoch) * n_common_start(rows)
    least = least_seconds(model, lengths, answer_tokens, job["dtype"], shared) if job["method"] == "full" else None
    return {"seconds": seconds, "steps": len(times), "tokens": sum(lengths), "losses": losses, "peak_rss_mb": peak,
            "final_loss": loss, "least_seconds": least}  # fmt: skip


def arguments(job: dict[str, Any]) -> Any:
    config = TrainingConfig(
        model=job["model"], train=Path(job["data"]), output=Path(job["folder"]), epochs=job["epochs"],
        device_batch_size=job["batch"], learning_rate=job["learning_rate"], schedule="constant", warmup_share=0,
        select="last",
    )  # fmt: skip
    made = training_arguments(config, job["dtype"], "cpu", has_dev=False)
    made.save_strategy = "no"
    return made


def ours(job: dict[str, Any], base: Any, tokenizer: Any, examples: list[GateExample], rows: list[TrainingRow]) -> Any:
    model = Adapter(16, 64, 0.1, 0)(base) if job["method"] == "qlora" else base
    trainer = KBMTrainer(KBM(model, tokenizer, PAPER_KEYS, job["max_length"]), arguments(job), rows, [], "hard")
    if job["who"] == "kbtrain_padded":
        trainer.data_collator.packs = False
    return trainer


def trl(job: dict[str, Any], base: Any, tokenizer: Any, examples: list[GateExample], rows: list[TrainingRow]) -> Any:
    """``trl_best``: what helps here: no gradient checkpointing, and rows of like length together, the very batches
    that ours has (TRL's own switch for it gives others, so that losses would differ by their order)."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    class LikeLengths(SFTTrainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return LikeLengthSampler([len(row.ids) for row in rows], job["batch"], self.args.seed, lambda: 0)

    lines = [
        {
            "prompt": render_chat(tokenizer, kbm_prompt(e.question, e.reference, e.language)),
            "completion": kbm_answer({"mastery": bool(e.mastery), "certainty": bool(e.certainty)}) + "<|im_end|>",
        }
        for e in examples
    ]
    best = job["who"] == "trl_best"
    options = {"gradient_checkpointing": False} if best else {}
    given = arguments(job)
    config = SFTConfig(
        output_dir=job["folder"], num_train_epochs=job["epochs"], per_device_train_batch_size=job["batch"],
        use_cpu=True, learning_rate=job["learning_rate"], lr_scheduler_type="constant", bf16=given.bf16,
        logging_steps=1, save_strategy="no", report_to="none", max_length=job["max_length"],
        completion_only_loss=True, **options,
    )  # fmt: skip
    adapter = None
    if job["method"] == "qlora":
        from peft import LoraConfig

        adapter = LoraConfig(r=16, lora_alpha=64, lora_dropout=0.1, target_modules="all-linear", task_type="CAUSAL_LM")
    return (LikeLengths if best else SFTTrainer)(
        model=base, args=config, train_dataset=Dataset.from_list(lines), processing_class=tokenizer, peft_config=adapter
    )


def final_loss(model: Any, tokenizer: Any, rows: list[TrainingRow]) -> tuple[float, int]:
    """Mean over all answer tokens of all examples, without dropout, in fp32 where weights are; and their number."""
    import torch

    model.eval()
    collate, total, count = Collator(tokenizer.eos_token_id), 0.0, 0
    with torch.no_grad():
        for i in range(0, len(rows), 4):
            batch = collate(rows[i : i + 4])
            inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "position_ids")}
            logits = model(**inputs, logits_to_keep=batch["labels"].shape[1], use_cache=False).logits
            total += float(answer_loss(logits, batch["labels"], batch["other"], batch["weight"]))
            count += int((batch["labels"] != -100).sum())
    return total / count, count


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    print(json.dumps(main(json.loads(sys.argv[1]))))
