"""The gate ``server``: a real tiny model behind HTTP gives the scores that it gives when it is opened."""

import math
import shutil

import pytest
from support import scripts
from support.served_model import serving
from support.snippets import run_snippet
from tiny_kbm import make_model, make_tokenizer

import kbtrain
from kbtrain.errors import UserError
from kbtrain.gates.average import AverageGate
from kbtrain.gates.handles import handle
from kbtrain.gates.untrained import draft
from kbtrain.gates.untrained.server import SIGNALS, ServerCard, draft_signals, p_no
from kbtrain.llm.check_server import ServerAbilities, write_config
from kbtrain.llm.check_thoughts import CheckedThoughts
from kbtrain.llm.dialect import Dialect
from kbtrain.llm.outputs import SilentAnswers
from kbtrain.records import GateExample

ASKED = [GateExample.ask(f"What is the {what} of place {i}{', and why' * (i % 3)}?")
         for i, what in enumerate(("capital", "currency", "language", "capital", "river"))]  # fmt: skip


@pytest.fixture(scope="module")
def opened():
    tokenizer = make_tokenizer()
    return make_model(vocabulary=len(tokenizer) + 8), tokenizer


@pytest.fixture
def served(opened):
    with serving(*opened) as server:
        yield server


def make(folder, server, *more):
    return scripts.run(
        "recipes/make_untrained.py", "--output", folder, "--gates", "[server]", "--server-url", server.url,
        "--server-model", "tiny", "--tokens", "4", *more,
    )  # fmt: skip


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_a_served_model_gives_the_scores_of_the_opened_one(opened, served, tmp_path, endpoint):
    model = tmp_path / "model"
    for part in opened:
        part.save_pretrained(model)
    more = ["--server-endpoint", endpoint, "--model", str(model), "--top", "1000"]
    if endpoint == "completions":
        served.RequestHandlerClass.do_GET = lambda self: self.reply({"data": [{"id": str(model), "owned_by": "test"}]})
        more += ["--server-model", str(model)]
    done = make(tmp_path, served, *more)
    assert done.returncode == 0, done.stderr
    gate = kbtrain.load_gate(tmp_path / "server")
    found = gate.score_all(ASKED)
    card = draft.DraftCard(signal="draft_margin", tokens=4, base_model="x", dtype="fp32", prompt_fingerprint="x")
    local = draft.Draft(*opened, card).score_all(ASKED)
    assert tuple(found) == SIGNALS == handle(tmp_path / "server").names
    for name, values in local.items():
        assert found[f"server_{name}"] == pytest.approx(values, abs=1e-4)
    assert gate.score(ASKED) == pytest.approx(found["server_draft_margin"], abs=1e-6)
    # what its requests are paid by: this server's chat does not say how much it read
    assert (gate.spent["prompt_tokens"] > 3 * len(ASKED)) == (endpoint == "completions")
    assert gate.spent["requests"] == 3 * len(ASKED) and gate.stage == "draft"


def test_own_prompts_are_asked_with_and_refused_when_they_were_changed(served, tmp_path):
    files = {"llm": "Reply shortly: {question}", "rag": "{evidence}\nReply: {question}", "system": "You are terse."}
    for part, text in files.items():
        (tmp_path / f"{part}.txt").write_text(text)
    own = "{" + ", ".join(f"{part}: {tmp_path / part}.txt" for part in files) + "}"
    assert make(tmp_path, served, "--model", "tiny", "--prompts", own).returncode == 0
    served.asked.clear()
    kbtrain.load_gate(tmp_path / "server").score(["Why?"])
    assert [m["content"] for m in served.asked[0]["messages"]] == ["You are terse.", "Reply shortly: Why?"]
    card = tmp_path / "server" / "gate.json"
    card.write_text(card.read_text().replace("Reply shortly", "Reply at length"))
    with pytest.raises(UserError, match=r"gate\.json: own prompts: the fingerprint does not fit"):
        kbtrain.load_gate(tmp_path / "server")


def test_signals_by_hand():
    yes, no, other = ("Yes", math.log(0.2)), (" no", math.log(0.1)), ("Paris", math.log(0.5))
    assert p_no([yes, no, other]) == pytest.approx(0.1 / 0.3)
    assert p_no([other]) == 0.5  # neither is said
    margin, entropy, first = draft_signals([[yes, no, other], [other]], 3)
    both = -sum(p * math.log(p) for p in (0.5, 0.2, 0.1, 0.2))  # the last 0.2 is what the three leave over
    assert first == pytest.approx(both)
    assert margin == pytest.approx((0.2 / 0.5 + 0) / 2) and entropy == pytest.approx((both + math.log(2)) / 2)
    assert draft_signals([], 20) == (1.0, math.log(21), math.log(21))  # nothing said: search


def test_a_server_without_top_log_probabilities_and_one_that_moved(opened, served, tmp_path):
    served.silent = True
    done = make(tmp_path, served, "--model", "tiny")
    assert done.returncode == 2 and "server: gives no top log-probabilities" in done.stderr
    assert not (tmp_path / "server").exists()
    served.silent = False
    assert make(tmp_path, served, "--model", "tiny").returncode == 0
    assert len(run_snippet(tmp_path / "server")) == 2  # its README's lines, asked of the server
    card = ServerCard.read(tmp_path / "server")
    moved = card.model_copy(update={"url": "http://127.0.0.1:1/v1"})
    assert moved.depends() == card.depends()  # its scores stay
    shutil.copytree(tmp_path / "server", tmp_path / "moved")
    moved.write(tmp_path / "moved")
    with pytest.raises(UserError, match="no connection"):
        kbtrain.load_gate(tmp_path / "moved")
    done = scripts.run("recipes/make_untrained.py", "--model", "tiny", "--output", tmp_path, "--gates", "[server]")
    assert done.returncode == 2 and "server_url" in done.stderr


def test_where_someone_waits_a_server_that_fails_is_tried_twice_at_once(served, tmp_path):
    """Before, 'kbtrain serve' waited up to a minute between tries, with all questions behind the one that failed."""
    assert make(tmp_path, served, "--model", "tiny").returncode == 0
    gate, asked = kbtrain.load_gate(tmp_path / "server"), []

    def busy(answer):
        asked.append(answer.path)
        answer.send_response(503)
        answer.send_header("Retry-After", "600")
        answer.send_header("Content-Length", "0")
        answer.end_headers()

    served.RequestHandlerClass = type("Busy", (served.RequestHandlerClass,), {"do_POST": busy})
    both = AverageGate([gate, gate])  # whatever it is a part of
    both.answer_within(5.0)
    with pytest.raises(UserError, match="2 times"):
        gate.score(["Why?"])
    assert len(asked) == 2 and gate.llm.server.timeout == 5.0


def test_each_score_has_the_stage_at_which_it_is_known():
    card = ServerCard(base_model="m", served="m", url="http://x", signal="server_p_yes", prompt_fingerprint="0")
    assert card.stage == "question" == card.stage_of("server_p_yes")
    drafted = ("server_first_token_entropy", "server_draft_margin", "server_draft_entropy")
    stages = [card.stage_of(name) for name in drafted]
    assert stages == ["prefill", "draft", "draft"]


def test_the_gate_asks_by_what_check_server_writes(served, tmp_path):
    found = ServerAbilities(
        url=served.url, model="tiny", owner="x", endpoint="chat", refused={}, samples=30, answers=4, usage=True,
        dialect=Dialect(extra={"user": "me", "stop": None}, most=4), seeds=True, key_env="OPENAI_API_KEY",
        n_requests=9, length=64, thoughts=CheckedThoughts({}, {}, SilentAnswers(), ""),
    )  # fmt: skip
    path = tmp_path / "server.yaml"
    write_config(found, path)
    given = ("--model", "tiny", "--output", tmp_path, "--gates", "[server]", "--tokens", "4")
    done = scripts.run("recipes/make_untrained.py", *given, "--server-config", path)
    assert done.returncode == 0, done.stderr
    card = ServerCard.read(tmp_path / "server")
    assert (card.url, card.served, card.chat) == (served.url, "tiny", True)
    assert card.dialect == Dialect(extra={"user": "me", "stop": None}, most=4)
    gate = kbtrain.load_gate(tmp_path / "server")
    assert gate.llm.server.dialect.write(gate._body("Who?", 4))["user"] == "me"
    refusing = card.dialect.model_copy(update={"greedy": False, "limit": "max_completion_tokens"})
    gate.card = card.model_copy(update={"dialect": refusing})
    body = refusing.write(gate._body("Who?", 4))
    assert body["max_completion_tokens"] == 4 and not {"temperature", "max_tokens"} & set(body)
    done = scripts.run("recipes/make_untrained.py", *given, "--server-config", path, "--server-url", served.url)
    assert done.returncode == 2 and "key 'server_url': server_config gives it" in done.stderr


def test_a_prompt_that_the_server_refuses_says_to_search_and_is_counted(served, tmp_path):
    make(tmp_path, served, "--model", "tiny")
    gate = kbtrain.load_gate(tmp_path / "server")
    usual = served.RequestHandlerClass.do_POST

    def refusing(self):
        if served.refuses:
            served.refuses -= 1
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(400)
            data = b'{"error": {"message": "filtered", "code": "content_filter"}}'
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        else:
            usual(self)

    served.RequestHandlerClass.do_POST, served.refuses = refusing, 0
    try:
        gate.score_all(ASKED)
        served.refuses = 1
        found = gate.score_all(ASKED[:1])
        assert gate.spent["refused"] == 1 and all(math.isfinite(value) for (value,) in found.values())
        served.refuses = 100
        again = kbtrain.load_gate(tmp_path / "server")
        with pytest.raises(UserError, match="filtered"):
            again.score_all(ASKED)
    finally:
        served.RequestHandlerClass.do_POST = usual
