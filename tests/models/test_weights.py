"""Weights that are missing, foreign, of another shape or pickled are refused in one line; whole ones are opened."""

import json
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_kbm import make_folder
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from kbtrain.errors import UserError
from kbtrain.models.adapters import base_fingerprint, open_body, save_adapter
from kbtrain.models.files_read import hashes_of
from kbtrain.models.load import load_model, load_tokenizer
from kbtrain.models.weights import open_adapter, open_weights, opening

FIRST = "model.layers.0.mlp.down_proj.weight"


@pytest.fixture
def folder(tmp_path):
    tiny = LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=50)
    torch.manual_seed(0)
    LlamaForCausalLM(tiny).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def changed(folder, change, name="model.safetensors"):
    tensors = load_file(folder / name)
    change(tensors)
    save_file(tensors, folder / name, metadata={"format": "pt"})
    return folder


def opened(folder):
    return open_weights(AutoModelForCausalLM, str(folder), "tiny")


def test_a_whole_model_is_opened_with_its_own_weights(folder):
    assert torch.equal(opened(folder).state_dict()[FIRST], load_file(folder / "model.safetensors")[FIRST])


def test_missing_tensors_are_refused_not_drawn_at_random(folder, capfd):
    changed(folder, lambda tensors: [tensors.pop(name) for name in list(tensors) if ".layers.1." in name])
    with pytest.raises(UserError, match=r"model 'tiny': lacks 9 tensors \(model\.layers\.1\.input_layernorm"):
        opened(folder)
    assert "MISSING" not in "".join(capfd.readouterr())


def test_a_pickle_is_refused_by_its_name(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"pytorch_model\.bin is a pickle"):
        opened(folder)


def test_a_new_classifier_may_be_missing_but_the_body_may_not(tmp_path):
    tiny = BertConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=50)
    BertModel(tiny).save_pretrained(tmp_path)
    kind = AutoModelForSequenceClassification
    open_weights(kind, str(tmp_path), "tiny", new_head=True)
    with pytest.raises(UserError, match=r"lacks 2 tensors \(classifier\.bias, classifier\.weight\)"):
        open_weights(kind, str(tmp_path), "tiny")
    changed(tmp_path, lambda tensors: tensors.pop("encoder.layer.0.output.dense.weight"))
    for auto_class, name in ((kind, r"bert\.encoder"), (AutoModel, "encoder")):
        with pytest.raises(UserError, match=rf"lacks 1 tensor \({name}\.layer\.0\.output\.dense\.weight\)"):
            open_weights(auto_class, str(tmp_path), "tiny", new_head=True)


def test_a_body_is_taken_from_under_another_head_and_needs_no_pooler(tmp_path):
    tiny = BertConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=50)
    BertForMaskedLM(tiny).save_pretrained(tmp_path)
    open_weights(AutoModel, str(tmp_path), "tiny", new_head=True)
    with pytest.raises(UserError, match=r"lacks 2 tensors \(pooler\.dense\.bias"):
        open_weights(AutoModel, str(tmp_path), "tiny")


@pytest.fixture
def adapter(folder):
    from peft import LoraConfig, get_peft_model

    get_peft_model(opened(folder), LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(folder / "adapter")
    return folder / "adapter"


def test_an_adapter_must_be_whole(folder, adapter):
    open_adapter(opened(folder), adapter)
    changed(adapter, lambda tensors: tensors.pop(next(iter(tensors))), "adapter_model.safetensors")
    with pytest.raises(UserError, match=r"adapter_model\.safetensors: the adapter lacks 1 tensor"):
        open_adapter(opened(folder), adapter)


def test_an_adapter_is_opened_with_the_base_that_its_own_configuration_names(tmp_path):
    from peft import LoraConfig, get_peft_model

    whole, _ = load_model(str(make_folder(tmp_path / "base")), "fp32", "cpu")
    beside: Any = get_peft_model(whole, LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    beside.save_pretrained(tmp_path / "adapter")
    ids = torch.tensor([[1, 2, 3]])
    expected = beside.eval()(ids).logits
    merged, tokenizer = load_model(str(tmp_path / "adapter"), "fp32", "cpu")
    assert torch.allclose(merged(ids).logits, expected, atol=1e-5)
    assert tokenizer("a b").input_ids == load_tokenizer(str(tmp_path / "adapter"))("a b").input_ids
    base, whole = (hashes_of(str(tmp_path / name)) for name in ("base", "adapter"))
    assert {f"base/{name}": value for name, value in base.items()}.items() < whole.items()
    one, other = (base_fingerprint(str(tmp_path / name)).split("-") for name in ("adapter", "base"))
    assert one[0] == other[0] and one[1] != other[1]
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"adapter_config\.json: field 'base_model_name_or_path': names no model"):
        load_model(str(tmp_path / "adapter"))


def test_an_adapter_that_asks_for_another_package_is_one_line(folder, adapter):
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "megatron_config": {"a": 1}}))
    with pytest.raises(UserError, match=r"adapter_config\.json: asks for a package that is not installed \(.*megatron"):
        open_adapter(opened(folder), adapter)


def test_a_template_that_cannot_be_read_is_not_passed_over(folder):
    """Without it a model of chats would be asked in plain text."""
    path = folder / "chat_template.jinja"
    path.mkdir()
    with pytest.raises(UserError, match=r"chat_template\.jinja: is a folder, expected a file"), opening(folder, "tiny"):
        pass
    path.rmdir()
    path.symlink_to(path.name)
    with pytest.raises(UserError, match=r"chat_template\.jinja: "), opening(folder, "tiny"):
        pass


def test_an_adapter_of_no_numbers_is_told_by_its_file(folder, adapter):
    tensors = load_file(adapter / "adapter_model.safetensors")
    name = sorted(tensors)[1]
    tensors[name].view(-1)[3] = float("inf")
    save_file(tensors, adapter / "adapter_model.safetensors")
    with pytest.raises(UserError, match=rf"adapter_model\.safetensors: tensor '{name}' holds NaN or infinite values"):
        open_adapter(opened(folder), adapter)


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, b"\x02\0\0\0\0\0\0\0[]"])
def test_a_broken_adapter_file_is_one_line(folder, adapter, content):
    (adapter / "adapter_model.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"adapter_model\.safetensors: not a safetensors file, or a truncated one"):
        open_adapter(opened(folder), adapter)


def test_tensors_that_transformers_itself_ignores_are_no_reason_to_refuse(tmp_path):
    """A base model that was published with its vision tower and its heads for several tokens at once."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    tiny = Qwen3_5TextConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        head_dim=16, vocab_size=50, layer_types=["full_attention"],
    )  # fmt: skip
    Qwen3_5ForCausalLM(tiny).save_pretrained(tmp_path)
    more = {"model.visual.blocks.0.mlp.weight": torch.ones(2), "mtp.layers.0.weight": torch.ones(2)}
    changed(tmp_path, lambda tensors: tensors.update(more))
    assert opened(tmp_path).config.vocab_size == 50
    changed(tmp_path, lambda tensors: tensors.update(foreign=torch.ones(2)))
    with pytest.raises(UserError, match=r"has no place for 1 tensor \(foreign\)"):
        opened(tmp_path)


def test_an_adapter_is_saved_with_the_same_configuration_whatever_the_order_of_its_modules(folder):
    """PEFT keeps them as a set, whose order follows the process."""
    from peft import LoraConfig, get_peft_model

    names = ["q_proj", "v_proj", "up_proj", "down_proj", "o_proj"]
    model = get_peft_model(opened(folder), LoraConfig(r=2, target_modules=names))
    for place, order in (("one", names), ("other", names[::-1])):
        model.peft_config["default"].target_modules = order
        save_adapter(model, folder / place)
        open_adapter(opened(folder), folder / place)
    one, other = ((folder / place / "adapter_config.json").read_text() for place in ("one", "other"))
    assert one == other and json.loads(one)["target_modules"] == sorted(names)
    assert not (folder / "one" / "README.md").exists()


@pytest.mark.parametrize(
    "opened",
    [load_model, load_tokenizer, lambda folder: open_body(folder, "fp32", "cpu")],
    ids=["model", "tokenizer", "body"],
)
def test_a_tokenizer_without_a_vocabulary_is_told_at_opening(opened, tmp_path):
    """Its prompts would be empty, and what torch says of them names nothing."""
    folder = make_folder(tmp_path / "model")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"] = {"type": "BPE", "vocab": {}, "merges": []}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(UserError, match=rf"^model '{folder}': cannot be opened \(its tokenizer knows no word\)$"):
        opened(str(folder))
