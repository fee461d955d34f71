"""Tiny random models of real classes, tokenizers trained on a few lines, and examples: shared by tests of gates."""

import functools

from kbtrain.prompts.kbm import kbm_answer, kbm_prompt, need_prompt
from kbtrain.records import GateExample

CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
KINDS = ("llama", "qwen2", "gemma", "gemma3", "mistral")
QUESTIONS = [f"What is the {what} of place {i}?" for i in range(20) for what in ("capital", "currency", "language")]


@functools.cache
def _trained(merging: bool, texts: tuple[str, ...]) -> str:
    """The trained tokenizer as JSON: training takes ten times as long as reading it again."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not merging)
    made.decoder = decoders.ByteLevel()
    special = ["<|im_start|>", "<|im_end|>", "<s>"]
    answers = [kbm_answer({"mastery": m, "certainty": c}) for m in (True, False) for c in (True, False)] * 5
    lines = [kbm_prompt(q, None, "en") + a for q in QUESTIONS for a in answers] + [need_prompt("q", "zh")]
    lines += ["system user assistant", *texts]
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    if merging:
        lines = ['"True"', '"False"'] * 9
    made.train_from_iterator(lines, trainer)
    return made.to_str()


def make_tokenizer(chat: bool = True, merging: bool = False, bos: bool = False, texts: tuple[str, ...] = ()):
    """Byte-level BPE. ``merging``: no word boundaries, and quotes with True and False become one token. ``texts``: what
    it is trained on besides the KBM's prompts; text of other words becomes a token a letter."""
    from tokenizers import Tokenizer, processors
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer.from_str(_trained(merging, texts))
    if bos:
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>", bos_token="<s>")
    if chat:
        wrapped.chat_template = CHAT
    return wrapped


def make_model(kind: str = "llama", vocabulary: int = 1000, seed: int = 0, **changes):
    """Two layers, 32 wide, fp32, weights drawn wide enough that probabilities differ."""
    import torch
    import transformers as t

    configs = {
        "llama": (t.LlamaConfig, {}), "qwen2": (t.Qwen2Config, {}), "gemma": (t.GemmaConfig, {"head_dim": 8}),
        "gemma3": (t.Gemma3TextConfig, {"head_dim": 8, "sliding_window": 128}),
        "gemma2": (t.Gemma2Config, {"head_dim": 8, "sliding_window": 128, "final_logit_softcapping": 2.0}),
        "mistral": (t.MistralConfig, {"sliding_window": 128}),
    }  # fmt: skip
    cls, special = configs[kind]
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 2, "max_position_embeddings": 4096, "vocab_size": vocabulary}
    config = cls(**{**shape, "initializer_range": 0.2, **special, **changes})
    config.eos_token_id, config.pad_token_id, config.bos_token_id = 1, None, 2
    torch.manual_seed(seed)
    return t.AutoModelForCausalLM.from_config(config).eval()


def make_folder(path, kind: str = "llama", texts: tuple[str, ...] = (), **changes):
    """A model folder with tokenizer, as a user would name it; ``changes`` of the model's config."""
    tokenizer = make_tokenizer(texts=texts)
    make_model(kind, len(tokenizer) + 8, **changes).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def example(i: int, split: str = "dev", reference: str | None = None, **labels) -> GateExample:
    """The i-th question; labels as given."""
    text = QUESTIONS[i % len(QUESTIONS)] + ("" if split == "train" else f" ({split})")
    return GateExample(f"{split}{i}", f"q{i}", split, text, "en", reference, **labels)


def labelled(i: int, split: str = "train", reference: str | None = None) -> GateExample:
    """The i-th question with all labels; capitals are known."""
    known = i % 3 == 0
    soft = 0.9 if known else 0.1
    return example(
        i, split, reference, mastery=known, certainty=known, benefit=not known,
        soft_mastery=soft, soft_certainty=soft, soft_benefit=1 - soft,
    )  # fmt: skip


def make_byte_model(initializer_range: float):
    """A random Llama over bytes (no merges), and its tokenizer, without a chat template."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.set_num_threads(1)
    torch.manual_seed(0)
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator([], trainers.BpeTrainer(special_tokens=["<eos>"], initial_alphabet=alphabet))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>")
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096, bos_token_id=None, eos_token_id=0,
        initializer_range=initializer_range,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval(), tokenizer
