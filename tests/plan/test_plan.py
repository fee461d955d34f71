"""`kbtrain plan`: sizes, memory and time against public figures, hand-worked sums, real tensors and a real process."""

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support import scripts
from tiny_kbm import labelled, make_folder, make_model

from kbtrain.cli import main
from kbtrain.errors import UserError
from kbtrain.io.jsonl import write
from kbtrain.models.adapters import Adapter
from kbtrain.models.files_read import config_of, parameters_of
from kbtrain.training.plan import Plan, make_plan, planned_work, read_planned, ways_to_fit
from kbtrain.training.plan_memory import Batch, Weights, activations, needs

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "recipes" / "configs"


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        ("Qwen/Qwen2-7B-Instruct", 7_615_616_512),
        ("meta-llama/Llama-2-7b-hf", 6_738_415_616),
        ("meta-llama/Llama-2-13b-chat-hf", 13_015_864_320),
    ],
)
def test_known_models_have_their_published_sizes(model, weights):
    assert parameters_of(config_of(model)) == weights


def test_states_by_zero_stage_worked_by_hand():
    """1,000 weights on 4 devices; the bucket is two times 2 bytes a weight."""
    found = {name: needs(name, Weights(0, 1000), 4, 0, context=0) for name in ("none", "zero1", "zero2", "zero3")}
    sums = {name: (n.weights, n.gradients, n.optimizer, n.stepping) for name, n in found.items()}
    assert sums["none"] == (4000, 4000, 8000, 0)
    assert sums["zero1"] == (2000, 2000, 3000, 0)
    assert sums["zero2"] == (2000, 500, 3000, 500)
    assert sums["zero3"] == (500, 500, 3000, 500)
    assert found["zero2"].peak == 2000 + 500 + 3000 + 500 + 4000
    offload = needs("zero2_offload", Weights(0, 1000), 4, 10, context=0)
    assert (offload.weights, offload.optimizer, offload.host) == (2000, 0, 18_000)


def test_our_states_stay_below_deepspeeds_own_upper_bound():
    estimator = pytest.importorskip("deepspeed.runtime.zero.stage_1_and_2", reason="deepspeed is not installed")
    _, theirs = estimator.estimate_zero2_model_states_mem_needs(
        total_params=7_615_616_512, num_gpus_per_node=4, num_nodes=1, cpu_offload=False, additional_buffer_factor=1.5
    )
    n = needs("zero2", Weights(0, 7_615_616_512), 4, 0)
    assert 0.6 * theirs < n.weights + n.gradients + n.optimizer < theirs


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
@pytest.mark.parametrize("adapter", [None, Adapter(4, 8, 0.1, 0)])
@pytest.mark.parametrize("lean", [True, False])
def test_kept_bytes_are_those_of_real_tensors(kind, adapter, lean):
    """The same pass on tensors with memory, all layers at once: the plan only ever runs one and two."""
    torch.set_num_threads(1)
    model = make_model(kind, num_hidden_layers=5).train()
    planned = activations(model.config, Batch(2, 40, 8, bits=32), adapter, lean).total_bytes(False)
    model = adapter(model).train() if adapter else model
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    from kbtrain.kernels.fp32_output_layer import fp32_output_layer
    from kbtrain.kernels.lean_training import lean_layers

    layers = lean_layers(model) if lean else nullcontext()
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    mask = torch.ones(2, 1, 40, 40, dtype=torch.bool)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t), fp32_output_layer(model), layers:
        logits = model(
            input_ids=torch.zeros(2, 40, dtype=torch.long), attention_mask=mask, logits_to_keep=8, use_cache=False,
            position_ids=torch.zeros(2, 40, dtype=torch.long),
        ).logits  # fmt: skip
        chosen = logits.gather(-1, torch.zeros(2, 8, 1, dtype=torch.long))[..., 0]
        (logits.logsumexp(-1) - chosen).sum()
    real = sum(t.untyped_storage().nbytes() for key, t in kept.items() if key not in weights)
    assert planned == pytest.approx(real, rel=0.02)


def test_checkpointing_keeps_a_layers_input_only():
    config = make_model("llama", num_hidden_layers=6).config
    found = activations(config, Batch(2, 64, 8, bits=32))
    assert found.layer_input == 2 * 64 * 32 * 4
    assert found.total_bytes(True) == found.rest + 6 * found.layer_input + found.layer < found.total_bytes(False)


def test_operations_worked_by_hand():
    config = make_model("llama", 100, num_hidden_layers=2).config  # 32 wide, head and embedding of 3,200 weights

    def plan(weights: Weights, checkpointing: bool) -> Plan:
        batch = {"device_batch_size": 4, "gradient_accumulation_steps": 2, "gradient_checkpointing": checkpointing}
        return Plan(SimpleNamespace(epochs=2, **batch), config, weights, 2, ())

    full = planned_work(plan(Weights(0, 10_000), False), 50, 20)
    assert (full.steps, full.tokens) == (8, 2000)
    assert full.operations == 6 * (10_000 - 6400) * 2000 + 3 * 2 * 20 * 32 * 2 * 2000
    adapters = planned_work(plan(Weights(10_000, 10), True), 50, 20)
    assert adapters.operations == 6 * (10_000 - 6400) * 2000 + 4 * 2 * 20 * 32 * 2 * 2000
    assert full.hours(1e6, 4) == pytest.approx(full.operations / 4e6 / 3600)


def test_the_papers_machine_fits_and_a_small_gpu_is_told_what_would():
    config = read_planned(CONFIGS / "kbm_qwen2_7b.yaml")
    plan = make_plan(config, 4, layouts=["zero2"])
    assert plan.need("zero2").peak < 80e9
    larger = make_plan(read_planned(CONFIGS / "kbm_llama2_13b.yaml"), 4, layouts=["zero2"])
    assert larger.need("zero2").peak < 80 * 2**30  # 80 GB of an A100 are GiB
    small = make_plan(config, 1, layouts=["none"])
    assert small.need("none").peak > 24e9
    texts = [text for text, _, _ in ways_to_fit(small, "none", 24e9)]
    assert "method: qlora" in texts and all("device_batch_size" not in text for text in texts)
    adapters = make_plan(read_planned(CONFIGS / "kbm_qwen2_7b_qlora.yaml"), 1, layouts=["none"])
    assert adapters.weights.trained == 40_370_176  # rank 16 on seven linear layers of 28
    assert adapters.need("none").weights == pytest.approx(0.5 * 6.526e9 + 2 * 1.09e9, rel=0.08)


def test_the_command_prints_memory_steps_and_hours(tmp_path, capsys):
    make_folder(tmp_path / "model")
    write(tmp_path / "train.jsonl", [labelled(i) for i in range(6)])
    config = tmp_path / "c.yaml"
    config.write_text(f"model: {tmp_path / 'model'}\ndevice_batch_size: 2\nmax_length: 256\nepochs: 1\n")
    given = ["plan", str(config), "--gpus", "2", "--gpu-memory", "8", "--train", str(tmp_path / "train.jsonl")]
    assert main([*given, "--rate", "0.001"]) == 0
    out = capsys.readouterr().out
    assert "6 examples: 2 steps" in out and "ZeRO-2 + offload" in out and "hours at 0.001 TFLOP/s a GPU" in out
    assert "fits with ZeRO-2" in out
    assert main([*given, "--set", "epochs=3"]) == 0
    assert "6 steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--set", "epochs=lots"], "key 'epochs'"),
        (["--set", "epochs"], "unknown argument 'epochs'"),
        (["--rate", "fast"], "give a number of TFLOP/s, or measure"),
        (["--gpus", "0"], "must be above 0"),
        (["--gpu-memory", "0.5"], "no change of batch, ZeRO stage or method makes it fit"),
    ],
)
def test_bad_input_of_the_command_is_one_line(tmp_path, capsys, extra, message):
    make_folder(tmp_path / "model")
    (tmp_path / "c.yaml").write_text(f"model: {tmp_path / 'model'}\n")
    capsys.readouterr()
    assert main(["plan", str(tmp_path / "c.yaml"), *extra]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_an_unknown_key_and_an_unknown_model_are_named(tmp_path):
    (tmp_path / "c.yaml").write_text("model: x\nepoch: 3\n")
    with pytest.raises(UserError, match="did you mean 'epochs'"):
        read_planned(tmp_path / "c.yaml")
    with pytest.raises(UserError, match="no such folder"):
        config_of("/no/such/model")


SHAPE = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 8, "num_attention_heads": 8}
SHAPE |= {"num_key_value_heads": 8, "vocab_size": 4000, "tie_word_embeddings": True}


@pytest.fixture(scope="module")
def peaks():
    """Bytes by method that one process took for fp32 AdamW steps of a 7 M Llama, over what the libraries take."""
    done = scripts.run("tests/plan/measured_training.py", json.dumps(SHAPE))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_real_process_takes_at_most_what_the_plan_says_and_no_fifth_less(tmp_path, peaks, method):
    from transformers import LlamaConfig

    LlamaConfig(**SHAPE).save_pretrained(tmp_path)
    (tmp_path / "c.yaml").write_text(
        f"model: {tmp_path}\nmax_length: 256\ndevice_batch_size: 8\ndtype: fp32\nmethod: {method}\n"
    )
    need = make_plan(read_planned(tmp_path / "c.yaml"), 1, context=0.0, layouts=["none"]).need("none")
    assert peaks[method] <= need.peak <= 1.2 * peaks[method]
