import pytest
from tiny_kbm import labelled, make_folder, make_model, make_tokenizer
from transformers import AutoTokenizer

from kbtrain.errors import UserError
from kbtrain.gates.kbm.train import make_row
from kbtrain.gates.true_false import Encoder, kbm_template
from kbtrain.models.adapters import base_fingerprint, check_base_of_adapter
from kbtrain.training.answer_trainer import IGNORE, Collator, TrainingRow, check_rows
from kbtrain.training.checks import check_base, check_fits, n_steps, states_bytes
from kbtrain.training.config import LanguageModelConfig


def training(folder, model="m", **keys):
    return LanguageModelConfig(model=model, train=folder / "t", output=folder / "o", **keys)


def test_fp16_is_refused_for_qwen2_and_on_a_cpu_before_weights_are_opened(tmp_path):
    make_folder(tmp_path / "q", "qwen2")
    (tmp_path / "q" / "model.safetensors").unlink()
    with pytest.raises(UserError, match="Qwen2 overflows in fp16"):
        check_base(str(tmp_path / "q"), "full", "fp16", "cuda")
    with pytest.raises(UserError, match="fp16 training needs a GPU"):
        check_base(str(tmp_path / "q"), "full", "fp16", "cpu")


def test_a_padding_token_beyond_the_vocabulary_is_named(tmp_path):
    tokenizer = make_tokenizer()
    make_model(vocabulary=len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    tokenizer.save_pretrained(tmp_path)
    n = len(tokenizer) - 1
    with pytest.raises(UserError, match=f"pad token has id {n}, but the model knows ids below {n}"):
        check_base(str(tmp_path), "full", "fp32", "cpu")


def test_padding_with_the_end_token_still_teaches_the_end():
    """Where pad and EOS are one token, masking labels by the token's id would unlearn when to stop."""
    tokenizer = make_tokenizer()
    encode = Encoder(tokenizer, kbm_template(("mastery",)), 500).encode
    rows = [make_row(encode(labelled(0)), [1.0]), make_row(encode(labelled(1, reference="It is so. " * 9)), [0.0])]
    batch = Collator(tokenizer.eos_token_id)(rows)
    assert (batch["labels"][:, -1] == tokenizer.eos_token_id).all()
    assert batch["attention_mask"][0, 0] == 0 and batch["input_ids"][0, 0] == tokenizer.eos_token_id


def test_adapters_need_a_base_whose_head_is_saved(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = make_folder(tmp_path / "m")
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    for method in ("lora", "qlora"):
        with pytest.raises(UserError, match=r"no output layer \(lm_head.weight\)"):
            check_base(str(folder), method, "fp32", "cpu")
    check_base(str(folder), "full", "fp32", "cpu")


def test_a_row_without_any_label_is_named():
    good, bad = TrainingRow((1, 2), (2,), (0,), (1.0,)), TrainingRow((1, 2), (IGNORE,), (0,), (1.0,))
    check_rows([good], ["a"])
    with pytest.raises(UserError, match="example 'b': no token of its answer has a label"):
        check_rows([good, bad], ["a", "b"])


def test_a_batch_that_cannot_fit_is_refused_before_weights_are_opened(tmp_path, monkeypatch):
    make_folder(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").unlink()
    config = training(tmp_path, model=str(tmp_path / "m"), device_batch_size=64, dtype="fp32")
    monkeypatch.setattr("kbtrain.training.checks.device_memory", lambda device: 9e12)
    check_fits(config, "cpu", 4000, 1)
    with monkeypatch.context() as machine, pytest.warns(UserWarning, match="0.2 GB are available: the system may end"):
        machine.setattr("kbtrain.training.checks.available_memory", lambda: 2e8)
        check_fits(config, "cpu", 4000, 1)
    monkeypatch.setattr("kbtrain.training.checks.device_memory", lambda device: 2e8)
    check_fits(config, "cpu", 100, 1)
    with pytest.raises(UserError, match=r"64 rows of 4000 tokens need about \d+\.\d GB on a device of 0\.2 GB"):
        check_fits(config, "cpu", 4000, 1)


def test_states_worked_by_hand(tmp_path, monkeypatch):
    """16 bytes of a trained weight, 2 of a frozen one; ZeRO-2 splits 18 over the processes, or offloads them."""
    make_folder(tmp_path / "m")
    config = training(tmp_path, model=str(tmp_path / "m"))
    total = sum(p.numel() for p in make_model(vocabulary=len(make_tokenizer()) + 8).parameters())
    assert states_bytes(config, 1) == 16 * total
    adapters = training(tmp_path, model=str(tmp_path / "m"), method="lora", lora_rank=1)
    trained = (states_bytes(adapters, 1) - 2 * total) / 16
    assert 0 < trained < total / 10 and trained == int(trained)
    pytest.importorskip("deepspeed")
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    for name, expected in (("zero2", 2 * total + int(18 * total / 4)), ("zero2_offload", 2 * total)):
        monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", f"ds_configs/{name}.json")
        assert states_bytes(config, 4) == expected


def test_steps_of_a_training(tmp_path):
    config = training(tmp_path, device_batch_size=4, gradient_accumulation_steps=2, epochs=2.5)
    assert n_steps(config, rows=33, processes=2) == 8  # 3 an epoch


def test_an_adapter_knows_its_base(tmp_path):
    one = str(make_folder(tmp_path / "one"))
    tokenizer = AutoTokenizer.from_pretrained(one)
    make_model(vocabulary=len(tokenizer) + 8, seed=1).save_pretrained(tmp_path / "other")
    make_model(vocabulary=len(tokenizer) + 8, num_hidden_layers=3).save_pretrained(tmp_path / "deeper")
    found = base_fingerprint(one)
    assert len(found) == 17 and found == base_fingerprint(one)
    check_base_of_adapter(one, found, "gate.json")
    check_base_of_adapter(one, None, "gate.json")  # a gate saved before fingerprints were
    for other in ("other", "deeper"):
        with pytest.raises(UserError, match="the adapter was trained on another base"):
            check_base_of_adapter(str(tmp_path / other), found, "gate.json")
    check_base_of_adapter(one, found[:9] + "-", "gate.json")  # its files were not here then
