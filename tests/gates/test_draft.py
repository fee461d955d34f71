"""The gate ``draft``: the uncertainty of a greedy answer's first tokens, here, behind vLLM and behind an API."""

import math
import shutil

import numpy as np
import pytest
import torch
from support import scripts
from support.served_model import serving
from support.snippets import run_snippet
from tiny_kbm import make_folder, make_model, make_tokenizer

import kbtrain
from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.gate.card import Threshold, set_threshold
from kbtrain.gate.gate import Gate
from kbtrain.gates.draft import SIGNALS, Draft, DraftCard, draft_signals
from kbtrain.gates.handles import handle
from kbtrain.llm.check_server import write_config
from kbtrain.llm.dialect import Dialect
from kbtrain.prompts.kbm import encode
from kbtrain.prompts.own import asked_text
from kbtrain.records import GateExample

ASKED = [GateExample.ask(f"What is the {what} of place {i}{', and why' * (i % 3)}?")
         for i, what in enumerate(("capital", "currency", "language", "capital", "river"))]  # fmt: skip
CARD = {"base_model": "x", "dtype": "fp32", "prompt_fingerprint": "x"}


@pytest.fixture(scope="module")
def opened():
    tokenizer = make_tokenizer()
    return make_model(vocabulary=len(tokenizer) + 8), tokenizer


@pytest.fixture
def served(opened):
    with serving(*opened) as server:
        yield server


def drafts(opened, signal="draft_margin", tokens=4):
    return Draft(*opened, DraftCard(signal=signal, tokens=tokens, **CARD))


def make(folder, **settings):
    module = scripts.load("recipes/make_draft.py")
    here = {} if {"server_url", "server_config"} & settings.keys() else {"dtype": "fp32", "device": "cpu"}
    settings = {"output": folder / "draft", **here, **settings}
    module.main(build(module.MakeDraftConfig, None, settings))


def make_served(folder, server, **settings):
    make(folder, **{"model": "tiny", "server_url": server.url, "server_model": "tiny", "tokens": 4, **settings})


def draft_by_hand(model, ids, tokens, stopper):
    """Greedy tokens one by one, without a cache: (ratios, entropies)."""
    ids, drawn, ratios, entropies = list(ids), [], [], []
    while len(drawn) < tokens:
        with torch.no_grad():
            p = model(torch.tensor([ids])).logits[0, -1].double().softmax(-1)
        best, second = p.topk(2).values.tolist()
        ratios.append(second / best)
        entropies.append(float(-(p * p.log()).sum()))
        drawn.append(int(p.argmax()))
        ids.append(drawn[-1])
        if stopper.finish(drawn) is not None:
            break
    return ratios, entropies


def test_a_draft_s_margin_and_entropy_by_hand(opened):
    model, tokenizer = opened
    gate = drafts(opened)
    found = gate.score_all(ASKED)
    made = 0
    for i, example in enumerate(ASKED):
        ids = encode(tokenizer, asked_text(example, None))
        ratios, entropies = draft_by_hand(model, ids, 4, gate._samplers[4].stopper)
        assert found["draft_margin"][i] == pytest.approx(np.mean(ratios), abs=1e-5)
        assert found["draft_entropy"][i] == pytest.approx(np.mean(entropies), abs=1e-5)
        assert found["first_token_entropy"][i] == pytest.approx(entropies[0], abs=1e-5)
        made += len(ratios)
    assert gate.spent == {"requests": 5, "tokens": made}
    first = drafts(opened, "first_token_entropy")
    assert first.score(ASKED) == pytest.approx(found["first_token_entropy"], abs=1e-6)
    assert first.spent == {"requests": 5, "tokens": 5}  # no other token is generated


def test_the_recipe_s_folder_opens_with_the_model_it_names(tmp_path):
    model, folder = str(make_folder(tmp_path / "model")), tmp_path / "draft"
    make(tmp_path, model=model, tokens=3, signal="first_token_entropy")
    gate = kbtrain.load_gate(folder)
    assert handle(folder).names == SIGNALS
    assert (gate.name, gate.unit, gate.stage) == ("first_token_entropy", None, "prefill")
    assert kbtrain.load_gate(folder).score_all(ASKED) == gate.score_all(ASKED)
    assert gate.decide(["What is it?"], threshold=-1.0)[0].retrieve
    assert run_snippet(folder)[0] == str(gate.score(["What is the capital of France?"]))
    noted = Threshold(threshold=0.25, rule="ratio", dev_file_sha256="0", n_dev=9)
    assert "search if score" not in (folder / "README.md").read_text()
    set_threshold(folder, gate.name, noted)
    assert noted.line(gate.name) in (folder / "README.md").read_text()
    for tokens, kept in ((3, 0.25), (4, None)):  # the same gate made again keeps it, another draft has none
        make(tmp_path, model=model, tokens=tokens, signal="first_token_entropy")
        assert kbtrain.load_gate(folder).threshold == kept
        assert (noted.line("first_token_entropy") in (folder / "README.md").read_text()) == (kept == 0.25)


def test_bad_input_is_one_line(opened, tmp_path):
    make(tmp_path, model=str(make_folder(tmp_path / "model")))
    card = tmp_path / "draft" / "gate.json"
    card.write_text(card.read_text().replace('"prompt_fingerprint": "', '"prompt_fingerprint": "0'))
    with pytest.raises(
        UserError, match=r"prompt fingerprint .* in the chat template of .*model.: .* make and calibrate it again"
    ):
        kbtrain.load_gate(tmp_path / "draft")
    with pytest.raises(UserError, match=r"prompt of \d+ tokens; room for 2048"):
        drafts(opened).score([GateExample.ask("Why? " * 3000)])
    broken = make_model(vocabulary=len(opened[1]) + 8)
    broken.model.norm.weight.data[:] = 3e38  # numbers, whose sums are none
    with pytest.raises(UserError, match=r"not numbers; try dtype fp32"):
        drafts((broken, opened[1])).score(ASKED)


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_a_served_model_gives_the_scores_of_the_opened_one(opened, served, tmp_path, endpoint):
    model = tmp_path / "model"
    for part in opened:
        part.save_pretrained(model)
    more = {"server_endpoint": endpoint, "model": str(model), "top": 1000}
    if endpoint == "completions":
        usual = served.reply
        listed = {"data": [{"id": str(model), "owned_by": "test"}]}
        served.reply = lambda asked: (200, listed) if asked.method == "GET" else usual(asked)
        more["server_model"] = str(model)
    make_served(tmp_path, served, **more)
    gate = kbtrain.load_gate(tmp_path / "draft")
    scores = gate.score_all(ASKED)
    assert tuple(scores) == SIGNALS == handle(tmp_path / "draft").names and handle(tmp_path / "draft").server
    for name, values in drafts(opened).score_all(ASKED).items():
        assert scores[name] == pytest.approx(values, abs=1e-4)
    assert gate.score(ASKED) == pytest.approx(scores["draft_margin"], abs=1e-6)
    # what its requests are paid by: this server's chat does not say how much it read
    assert (gate.spent["prompt_tokens"] > 2 * len(ASKED)) == (endpoint == "completions")
    assert gate.spent["requests"] == 2 * len(ASKED) and gate.stage == "draft"


def test_own_prompts_are_asked_with_and_refused_when_they_were_changed(served, tmp_path):
    files = {"llm": "Reply shortly: {question}", "rag": "{evidence}\nReply: {question}", "system": "You are terse."}
    for part, text in files.items():
        (tmp_path / f"{part}.txt").write_text(text)
    make_served(tmp_path, served, prompts={part: tmp_path / f"{part}.txt" for part in files})
    served.asked.clear()
    kbtrain.load_gate(tmp_path / "draft").score(["Why?"])
    assert [m["content"] for m in served.asked[0]["messages"]] == ["You are terse.", "Reply shortly: Why?"]
    card = tmp_path / "draft" / "gate.json"
    card.write_text(card.read_text().replace("Reply shortly", "Reply at length"))
    with pytest.raises(UserError, match=r"gate\.json: own prompts: the fingerprint does not fit"):
        kbtrain.load_gate(tmp_path / "draft")


def test_signals_of_top_log_probabilities_by_hand():
    yes, no, other = ("Yes", math.log(0.2)), (" no", math.log(0.1)), ("Paris", math.log(0.5))
    margin, entropy, first = draft_signals([[yes, no, other], [other]], 3)
    both = -sum(p * math.log(p) for p in (0.5, 0.2, 0.1, 0.2))  # the last 0.2 is what the three leave over
    assert first == pytest.approx(both)
    assert margin == pytest.approx((0.2 / 0.5 + 0) / 2) and entropy == pytest.approx((both + math.log(2)) / 2)
    assert draft_signals([], 20) == (1.0, math.log(21), math.log(21))  # nothing said: search


def test_a_server_without_top_log_probabilities_and_one_that_moved(opened, served, tmp_path):
    served.silent = True
    with pytest.raises(UserError, match="gives no top log-probabilities"):
        make_served(tmp_path, served)
    assert not (tmp_path / "draft").exists()
    served.silent = False
    make_served(tmp_path, served)
    assert len(run_snippet(tmp_path / "draft")) == 2  # its README's lines, asked of the server
    card = DraftCard.read(tmp_path / "draft")
    moved = card.model_copy(update={"server": card.server.model_copy(update={"url": "http://127.0.0.1:1/v1"})})
    assert moved.depends() == card.depends()  # its scores stay
    other = card.model_copy(update={"server": card.server.model_copy(update={"top": 3})})
    assert other.depends() != card.depends()
    shutil.copytree(tmp_path / "draft", tmp_path / "moved")
    moved.write(tmp_path / "moved")
    with pytest.raises(UserError, match="no connection"):
        kbtrain.load_gate(tmp_path / "moved")


class Both(Gate):
    name = "both"

    def __init__(self, gates):
        self.gates = gates

    def score_examples(self, examples):
        raise NotImplementedError


def test_where_someone_waits_a_server_that_fails_is_tried_twice_at_once(served, tmp_path):
    make_served(tmp_path, served)
    gate, asked = kbtrain.load_gate(tmp_path / "draft"), []

    def busy(request):
        asked.append(request.path)
        return 503, {}, {"Retry-After": "600"}

    served.reply = busy
    both = Both([gate, gate])  # whatever it is a part of
    both.answer_within(5.0)
    with pytest.raises(UserError, match="2 times"):
        gate.score(["Why?"])
    assert len(asked) == 2 and gate.server.timeout == 5.0


def test_the_gate_asks_by_what_check_server_writes(served, tmp_path):
    path = tmp_path / "server.yaml"
    settings = {"backend": "openai", "model": "tiny", "server_url": served.url, "server_endpoint": "chat",
                "server_n": 4, "server_logprobs": True, "server_alias": True,
                "server_extra": {"user": "me", "stop": None}}  # fmt: skip
    write_config({**settings, "server_tries": 3, "server_timeout": 9.0}, path)
    make(tmp_path, model="tiny", tokens=4, server_config=path, server_timeout=7.0)
    gate = kbtrain.load_gate(tmp_path / "draft")
    asked = gate.card.server
    assert (asked.url, asked.name, asked.chat, asked.alias) == (served.url, "tiny", True, True)
    assert (asked.tries, asked.timeout) == (3, 7.0)  # the file's, and what stands beside it
    path.write_text("backend: transformers\nmodel: tiny\n")
    with pytest.raises(UserError, match=r"server\.yaml: backend transformers is not a server"):
        make(tmp_path, model="tiny", server_config=path)
    assert asked.dialect == Dialect(extra={"user": "me", "stop": None}, most=4)
    assert gate.server.dialect.write(gate._body(ASKED[0], 4))["user"] == "me"
    refusing = asked.dialect.model_copy(update={"greedy": False, "limit": "max_completion_tokens"})
    gate.asked = asked.model_copy(update={"dialect": refusing})
    body = refusing.write(gate._body(ASKED[0], 4))
    assert body["max_completion_tokens"] == 4 and not {"temperature", "max_tokens"} & set(body)


def test_a_prompt_that_the_server_refuses_says_to_search_and_is_counted(served, tmp_path):
    make_served(tmp_path, served)
    gate = kbtrain.load_gate(tmp_path / "draft")
    usual, refused = served.reply, {"error": {"message": "filtered", "code": "content_filter"}}
    gate.score_all(ASKED)
    left = [1]
    served.reply = lambda asked: (400, refused) if asked.method == "POST" and left and left.pop() else usual(asked)
    scores = gate.score_all(ASKED[:1])
    assert gate.spent["refused"] == 1 and all(math.isfinite(value) for (value,) in scores.values())
    again = kbtrain.load_gate(tmp_path / "draft")
    served.reply = lambda asked: (400, refused)
    with pytest.raises(UserError, match="filtered"):
        again.score_all(ASKED)
