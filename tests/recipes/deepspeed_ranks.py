"""Run by the test as each of two ranks: several trainings one after the other, so that libraries load only once.

JSON on the command line: ``{"jobs": [{"name", "zero" (a file), "arguments", "stop_at"}], "out": folder}``. Each rank
writes what it saw: the rows of every forward pass, and how many processes trained together.
"""

import gc
import hashlib
import json
import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]


class Stopped(Exception):
    """A process that ends in the middle of a training."""


def main():
    given = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    spec = spec_from_file_location("train_kbm_of_ranks", ROOT / "recipes" / "train_kbm.py")
    recipe = module_from_spec(spec)
    sys.modules[spec.name] = recipe
    spec.loader.exec_module(recipe)
    seen = {}
    for job in given["jobs"]:
        seen[job["name"]] = run(recipe, job)
        gc.freeze()  # what is imported by now: transformers collects garbage in every training
    Path(given["out"], f"rank{os.environ['RANK']}.json").write_text(json.dumps(seen))


def run(recipe, job):
    from accelerate.state import AcceleratorState, GradientState, PartialState

    from kbtrain.config import parse_args
    from kbtrain.gates.kbm.train import KBMTrainer

    os.environ["ACCELERATE_DEEPSPEED_CONFIG_FILE"] = job["zero"]
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    rows, worlds = [], set()
    compute_loss, log = KBMTrainer.compute_loss, KBMTrainer.log

    def noting(self, model, inputs, *args, **kwargs):
        worlds.add((self.accelerator.num_processes, self.args.world_size, torch.distributed.get_world_size()))
        for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True):
            rows.append(hashlib.sha256(str(ids[mask.bool()].tolist()).encode()).hexdigest()[:12])
        return compute_loss(self, model, inputs, *args, **kwargs)

    def stopping(self, logs, start_time=None):
        log(self, logs, start_time)
        if job["stop_at"] and self.state.global_step >= job["stop_at"]:
            raise Stopped

    KBMTrainer.compute_loss, KBMTrainer.log = noting, stopping
    try:
        recipe.main(parse_args(recipe.TrainKBMConfig, job["arguments"]))
    except Stopped:
        pass
    finally:
        KBMTrainer.compute_loss, KBMTrainer.log = compute_loss, log
    return {"rows": rows, "worlds": sorted(worlds)}


if __name__ == "__main__":
    main()
