"""A small real folder of every kind of gate, as its recipe leaves it: tiny random models, weights fitted to nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tiny_kbm import make_folder, make_tokenizer
from tiny_turns import bert_folder, turn

from kbtrain.records import Target

KEYS = ("mastery", "certainty", "benefit")


def kbm(folder: Path) -> None:
    from kbtrain.gates.kbm.gate import KBMCard
    from kbtrain.prompts.kbm import kbm_fingerprint

    make_folder(folder)
    KBMCard(
        base_model="tiny", keys=KEYS, prompt_fingerprint=kbm_fingerprint(make_tokenizer(), KEYS), max_length=512,
        dtype="fp32", method="full", labels="soft",
    ).write(folder)  # fmt: skip


def probe(folder: Path) -> None:
    import numpy as np

    from kbtrain.gates.probe.gate import WEIGHTS, LayerFigures, ProbeCard, save_heads
    from kbtrain.gates.probe.head import Head
    from kbtrain.models.adapters import base_fingerprint
    from kbtrain.prompts.kbm import answer_fingerprint

    base = str(make_folder(folder / "base"))
    weight = np.linspace(-1, 1, 32, dtype=np.float32)[None]
    save_heads(folder / WEIGHTS, {key: Head((1,), weight * (i + 1), 0.0) for i, key in enumerate(KEYS)})
    figures = (LayerFigures(layer=1, held_out=0.5, auroc=0.5, penalty=1.0, used=True),)
    ProbeCard(
        base_model=base, base_fingerprint=base_fingerprint(base), dtype="fp32", condition="llm", method="logistic",
        prompt_fingerprint=answer_fingerprint(make_tokenizer()), labels="soft", keys=KEYS,
        heads=dict.fromkeys(KEYS, figures),
    ).write(folder)  # fmt: skip


def draft_probe(folder: Path) -> None:
    import json

    import numpy as np

    from kbtrain.gates.probe.gate import WEIGHTS, DraftProbeCard, ProbeCard, save_heads
    from kbtrain.gates.probe.head import Head

    probe(folder)
    weight = np.linspace(-1, 1, 3 * 32, dtype=np.float32)[None]
    save_heads(folder / WEIGHTS, {key: Head((1,), weight * (i + 1), 0.0) for i, key in enumerate(KEYS)})
    noted = json.loads(ProbeCard.read(folder).model_dump_json(exclude={"kind", "condition", "weights_sha256"}))
    DraftProbeCard(**noted, tokens=4).write(folder)


def encoder(folder: Path) -> None:
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    from kbtrain.gate.card import ClassifierCard

    base = bert_folder(folder.parent / "bert")
    tokenizer = AutoTokenizer.from_pretrained(base)
    config = AutoConfig.from_pretrained(base, num_labels=2)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    reads = {"max_length": 64}
    ClassifierCard(kind="encoder", base_model=None, reads=reads, labels="hard", seed=0).write(folder)


def encoder_probe(folder: Path) -> None:
    from serve_support import probe_folder

    probe_folder(folder, threshold=None)


def features(folder: Path) -> None:
    import numpy as np

    from kbtrain.gates.features.additive import Additive, FeatureCurve
    from kbtrain.gates.features.gate import FeaturesCard
    from kbtrain.gates.features.question import Frequencies
    from kbtrain.retrieval.tokens import Tokens

    folder.mkdir()
    Frequencies(Tokens(), np.arange(9, dtype=np.uint32), np.ones(9, dtype=np.float16)).save(folder)
    curve = FeatureCurve(knots=(0.0, 10.0), values=(-1.0, 1.0))
    model = Additive(intercept=0.0, curves={"words": curve}, strength=1.0)
    FeaturesCard(keys=("mastery",), labels="soft", name_rule="cased", models={"mastery": model}).write(folder)


def by_source(folder: Path) -> None:
    from kbtrain.gates.simple import BySourceCard

    BySourceCard(means={"source shop": 0.9, "asks who": 0.4}, overall=0.5).write(folder)


def decision_model(folder: Path, url: str = "http://127.0.0.1:9/v1") -> None:
    from kbtrain.gates.decision_model import DecisionModelCard, DecisionServer

    DecisionModelCard(server=DecisionServer(url=url, name="tiny", tries=1)).write(folder)


def seakr(folder: Path) -> None:
    from kbtrain.gates.seakr.engine import SeakrSettings
    from kbtrain.gates.seakr.gate import SeaKR, SeakrCard
    from kbtrain.models.load import load_model
    from kbtrain.prompts.kbm import answer_fingerprint

    base = str(make_folder(folder / "base"))
    gate = SeaKR(*load_model(base, "fp32"), SeakrSettings(k=2, max_new_tokens=2, max_prompt_tokens=512))
    fingerprint = answer_fingerprint(gate.engine.tokenizer)
    SeakrCard(base_model=base, dtype="fp32", prompt_fingerprint=fingerprint, settings=gate.engine.settings).write(
        folder
    )


def draft(folder: Path) -> None:
    from kbtrain.gates.draft import DraftCard
    from kbtrain.prompts.kbm import answer_fingerprint

    base, fingerprint = make_folder(folder / "base"), answer_fingerprint(make_tokenizer())
    card = DraftCard(
        base_model=str(base), dtype="fp32", prompt_fingerprint=fingerprint, signal="draft_margin", tokens=2
    )
    card.write(folder)


def draft_of_server(folder: Path, url: str) -> None:
    """``url``: of a model that is served, see served_model.py."""
    from kbtrain.gates.draft import DraftCard, DraftServer
    from kbtrain.prompts.own import asked_fingerprint

    DraftCard(
        base_model="tiny", dtype="auto", tokens=2, signal="draft_margin", server=DraftServer(url=url, name="tiny"),
        prompt_fingerprint=asked_fingerprint(None, None),
    ).write(folder)  # fmt: skip


def ragate_mha(folder: Path) -> None:
    import torch

    from kbtrain.gate.card import ClassifierCard
    from kbtrain.gates.ragate.mha import MHAInput, train_tokenizer
    from kbtrain.gates.ragate.mha_model import RagateMHAConfig, RagateMHAModel

    tokenizer = train_tokenizer([turn(i) for i in range(8)], "contx", 300)
    reader = MHAInput(tokenizer, 64, "contx")
    torch.manual_seed(0)
    config = RagateMHAConfig(vocab_size=len(tokenizer), d_model=16, n_layers=1, n_heads=2, attends_to="self")
    RagateMHAModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    ClassifierCard(kind="ragate_mha", base_model=None, reads=reader.settings, labels="hard", seed=0).write(folder)


def ragate_peft(folder: Path) -> None:
    from peft import LoraConfig, get_peft_model

    from kbtrain.gate.card import ADAPTER
    from kbtrain.gates.ragate.peft import RagatePeftCard, peft_fingerprint
    from kbtrain.models.adapters import base_fingerprint
    from kbtrain.models.load import load_model

    base = str(make_folder(folder / "base"))
    model, tokenizer = load_model(base, "fp32")
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"]))
    adapted.save_pretrained(folder / ADAPTER)
    tokenizer.save_pretrained(folder)
    RagatePeftCard(
        base_model=base, base_fingerprint=base_fingerprint(base), method="lora", features=(), max_length=512,
        prompt_fingerprint=peft_fingerprint(tokenizer, ()), dtype="fp32", seed=0,
    ).write(folder)  # fmt: skip


def dialogue_state(folder: Path) -> None:
    from kbtrain.gates.turns import DialogueStateGate

    card = DialogueStateGate.fit([turn(i) for i in range(40)]).card
    assert card is not None
    card.write(folder)


def stack(folder: Path, key: Target = "mastery") -> None:
    from kbtrain.gates.stack import Input, Linear, Member, StackCard

    folder.mkdir(parents=True)
    features(folder / "one")
    member = Member(folder="one", scores=("features_mastery",), stage="question")
    read = {"one/features_mastery": Input(low=0.0, high=1.0, log_odds=True, slope=2.0)}
    model = Linear(intercept=0.1, inputs=read, strength=1.0)
    StackCard(keys=(key,), members=(member,), labels="soft", models={key: model}).write(folder)


FOLDERS: dict[str, Callable[[Path], None]] = {
    build.__name__: build
    for build in (
        kbm, probe, draft_probe, encoder, encoder_probe, features, by_source, decision_model, seakr, draft, ragate_mha,
        ragate_peft, dialogue_state, stack,
    )
}  # fmt: skip
