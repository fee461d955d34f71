"""The full-size configurations with the real DeepSpeed on two CPU ranks and tiny models of the real classes."""

import json
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
import torch
import yaml
from safetensors.torch import load_file
from support import scripts
from support.recipes import Recipe, losses
from support.servers import free_port
from tiny_kbm import labelled, make_folder

import kbtrain
from kbtrain.io.jsonl import write

ROOT = Path(__file__).parents[2]
DS_CONFIGS = ROOT / "ds_configs"
pytestmark = pytest.mark.skipif(
    find_spec("deepspeed") is None, reason='deepspeed is not installed: pip install "kbtrain[train]"'
)
HAS_4_BITS = find_spec("bitsandbytes") is not None
RUNS = {  # recipe's config, ZeRO file, tiny model of the class that the config names
    "qwen2_zero2": ("kbm_qwen2_7b", "zero2", "qwen2"),
    "llama_offload": ("kbm_llama2_13b", "zero2_offload", "llama"),
    "qwen2_lora": ("kbm_qwen2_7b_lora", "zero2", "qwen2"),
    **({"qwen2_qlora": ("kbm_qwen2_7b_qlora", "zero2", "qwen2")} if HAS_4_BITS else {}),
}
RESUMED = ("qwen2_lora",)  # qwen2_zero2: killed, see below


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Models, data, and all trainings of RUNS done; those of RESUMED also stopped at step 3 and done again, and
    one that was started by its launch file and killed."""
    made = tmp_path_factory.mktemp("deepspeed")
    for kind in ("qwen2", "llama"):
        make_folder(made / kind, kind)
    write(made / "train.jsonl", [labelled(i, reference="It is so. " * i if i % 4 == 3 else None) for i in range(24)])
    write(made / "uneven.jsonl", [labelled(i, reference="It is so. " * i if i % 4 == 3 else None) for i in range(21)])
    write(made / "dev.jsonl", [labelled(i, "dev", "It is so. " * i) for i in range(9)])
    killed(made)
    jobs = [job(made, name, name) for name in RUNS]
    jobs.append(job(made, "qwen2_zero2", "killed"))
    jobs += [job(made, name, f"{name}_again", stop_at=stop) for name in RESUMED for stop in (3, None)]
    jobs.append(job(made, "qwen2_zero2", "fp32_zero2", dtype="fp32", learning_rate=1e-3))
    uneven = {"dtype": "fp32", "learning_rate": 1e-3, "train": made / "uneven.jsonl"}
    jobs.append(job(made, "qwen2_zero2", "uneven_zero2", **uneven))
    names = [f"{one['name']}#{i}" for i, one in enumerate(jobs)]
    jobs = [one | {"name": name} for one, name in zip(jobs, names, strict=True)]
    ranks(made, jobs)
    return made


def arguments(made, name, output, **changes):
    config, _, kind = RUNS[name]
    keys = {"config": ROOT / "recipes/configs" / f"{config}.yaml", "model": made / kind, "output": made / output}
    keys |= {"train": made / "train.jsonl", "dev": made / "dev.jsonl", "device": "cpu", "epochs": 1, "save_steps": 2}
    keys |= {"gradient_accumulation_steps": 1, **changes}
    return [part for key, value in keys.items() for part in (f"--{key.replace('_', '-')}", str(value))]


def job(made, name, output, stop_at=None, **changes):
    zero = DS_CONFIGS / f"{RUNS[name][1]}.json"
    values = json.loads(zero.read_text())
    if "optimizer" in values:  # torch's AdamW on the CPU: DeepSpeed would compile its own first, for minutes
        values["optimizer"]["params"]["torch_adam"] = True
        zero = made / zero.name
        zero.write_text(json.dumps(values))
    given = arguments(made, name, output, **changes)
    return {"name": output, "zero": str(zero), "arguments": given, "stop_at": stop_at}


def ranks(made, jobs):
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    shared |= {"ACCELERATE_USE_DEEPSPEED": "true", "DS_ACCELERATOR": "cpu"}
    given = json.dumps({"jobs": jobs, "out": str(made)})
    processes = [
        scripts.start("tests/recipes/deepspeed_ranks.py", given, env={**shared, "RANK": rank, "LOCAL_RANK": rank})
        for rank in ("0", "1")
    ]
    codes = [process.wait(timeout=500) for process in processes]
    said = "\n".join(process.stdout + process.stderr for process in processes)
    (made / "log.txt").write_text(said)
    assert codes == [0, 0], said[-6000:]


def seen(made, name):
    return [
        next(
            found
            for key, found in json.loads((made / f"rank{rank}.json").read_text()).items()
            if key.startswith(name + "#")
        )
        for rank in (0, 1)
    ]


@pytest.mark.parametrize("name", RUNS)
def test_every_config_trains_three_steps_together_on_different_rows(folder, name):
    first, second = seen(folder, name)
    assert first["worlds"] == second["worlds"] == [[2, 2, 2]]  # accelerate, transformers and torch agree
    assert len(losses(folder / name)) == 3 and all(loss > 0 for loss in losses(folder / name))
    whole = first["rows"] + second["rows"]
    assert len(whole) == len(set(whole)) == 24  # every row once
    run = json.loads((folder / name / "gate.json").read_text())["run"]
    assert (run["processes"], run["compute"]) == (2, "bf16")


@pytest.mark.parametrize("name", RUNS)
def test_the_saved_gate_scores_as_the_trained_one(folder, name):
    gate = kbtrain.load_gate(folder / name)
    dev = [labelled(i, "dev", "It is so. " * i) for i in range(9)]
    found = gate.probabilities(dev)
    assert all(0 < p < 1 for column in found.values() for p in column)
    assert "saved, opened again, scores equal" in (folder / "log.txt").read_text()


@pytest.mark.parametrize("name", RESUMED)
def test_stopped_and_resumed_it_has_the_same_losses_and_weights(folder, name):
    assert losses(folder / f"{name}_again") == losses(folder / name)
    weights = [load_file(folder / made / "model.safetensors") for made in (name, f"{name}_again")]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    assert f"resumes from {folder / f'{name}_again'}" in (folder / "log.txt").read_text()


def test_zero2_equals_one_process(folder):
    alone(arguments(folder, "qwen2_zero2", "one_fp32", device_batch_size=8, dtype="fp32", learning_rate=1e-3))
    assert losses(folder / "fp32_zero2") == pytest.approx(losses(folder / "one_fp32"), rel=1e-4)
    one, two = (load_file(folder / made / "model.safetensors") for made in ("one_fp32", "fp32_zero2"))
    assert all(torch.allclose(one[name], two[name], atol=1e-4) for name in one)


def test_a_last_step_that_is_not_full_counts_each_row_once(folder):
    """21 rows by eight: accelerate would repeat three of them."""
    options = {"dtype": "fp32", "learning_rate": 1e-3, "train": folder / "uneven.jsonl"}
    alone(arguments(folder, "qwen2_zero2", "one_uneven", device_batch_size=8, **options))
    assert losses(folder / "uneven_zero2") == pytest.approx(losses(folder / "one_uneven"), rel=1e-4)
    one, two = (load_file(folder / made / "model.safetensors") for made in ("one_uneven", "uneven_zero2"))
    assert all(torch.allclose(one[name], two[name], atol=1e-4) for name in one)


def alone(given):
    """The recipe in this process, without DeepSpeed."""
    Recipe("kbm")(given)


def killed(made):
    """kill -9 of the launcher and both ranks of accelerate_zero2_cpu2.yaml, once the checkpoint of step 2 is there."""
    process = scripts.start(
        "-m", "accelerate.commands.launch", "--main_process_port", free_port(),
        "--config_file", "ds_configs/accelerate_zero2_cpu2.yaml",
        "recipes/train_kbm.py", *arguments(made, "qwen2_zero2", "killed"), env={"DS_ACCELERATOR": "cpu"}, nested=True,
    )  # fmt: skip
    mark, begin = made / "killed" / "checkpoints" / "checkpoint-2" / "complete", time.monotonic()
    while process.poll() is None and not mark.exists() and time.monotonic() - begin < 300:
        time.sleep(0.005)
    launcher = psutil.Process(process.pid) if process.poll() is None else None
    family = [launcher, *launcher.children(recursive=True)] if launcher else []
    for one in family:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()
    assert mark.exists() and len(family) >= 3, (process.stdout + process.stderr)[-3000:]
    assert not (made / "killed" / "gate.json").exists()


def test_started_by_its_launch_file_and_killed_it_ends_with_the_same_losses_and_weights(folder):
    assert losses(folder / "killed") == losses(folder / "qwen2_zero2")
    weights = [load_file(folder / made / "model.safetensors") for made in ("qwen2_zero2", "killed")]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    assert f"resumes from {folder / 'killed'}" in (folder / "log.txt").read_text()
    first, second = seen(folder, "killed")
    # the last step only; none where the kill came after its checkpoint
    assert len(first["rows"]) == len(second["rows"]) and len(first["rows"]) in (0, 4)


def test_launch_files_name_their_machines_and_a_zero_file_that_exists():
    found = {path.stem: yaml.safe_load(path.read_text()) for path in DS_CONFIGS.glob("accelerate_*.yaml")}
    sizes = {name: (values["num_machines"], values["num_processes"]) for name, values in found.items()}
    assert sizes == {
        "accelerate_cpu": (1, 1), "accelerate_1gpu": (1, 1), "accelerate_zero2_4gpu": (1, 4),
        "accelerate_zero2_offload_1gpu": (1, 1), "accelerate_zero2_offload_4gpu": (1, 4),
        "accelerate_zero2_2nodes": (2, 8), "accelerate_zero2_cpu2": (1, 2),
    }  # fmt: skip
    for name, values in found.items():
        if "zero" in name:
            assert values["distributed_type"] == "DEEPSPEED"
            assert (ROOT / values["deepspeed_config"]["deepspeed_config_file"]).exists()
        assert f"ds_configs/{name}.yaml" in (DS_CONFIGS / f"{name}.yaml").read_text()
