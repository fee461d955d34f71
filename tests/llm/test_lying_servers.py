"""Servers that lie (``lying_server.py``): right answers after all, or one line about the server; no key is shown."""

import json
from types import SimpleNamespace

import lying_server as servers
import pytest
from tiny_kbm import make_tokenizer

from kbtrain.errors import UserError
from kbtrain.gates.draft import DraftCard, DraftOfServer, DraftServer
from kbtrain.llm.base import AnswerRequest, Sampling
from kbtrain.llm.check_server import check_server
from kbtrain.llm.dialect import Server
from kbtrain.llm.openai_llm import OpenAILLM
from kbtrain.net import Retry

SLOW = {"a drip of bytes", "a drip of headers", "silence"}  # end by the client's own time alone
DEAR = {"a body without end", "a compressed body without end"}
LIES = {lie.name: lie for lie in (*servers.CONTENT, *servers.TRANSPORT)}


@pytest.fixture(scope="module")
def liar():
    with servers.Liar() as running:
        yield running
        running.lies(None)


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", servers.KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("kbtrain.llm.check_server.time", SimpleNamespace(sleep=lambda seconds: None))


@pytest.fixture(params=["chat", "completions"])
def answers(request, liar, question):
    """Answers to two questions; ``patient`` for lies that the client's own time ends, on a busy machine too."""
    tokenizer = make_tokenizer() if request.param == "completions" else None

    def ask(patient=False):
        retry = Retry(tries=40 if patient else 3, first=0.0, longest=0.0, patience=0.0)
        how = Server(liar.url, "tiny", chat=tokenizer is None, timeout=0.3 if patient else 60.0, retry=retry)
        llm = OpenAILLM("tiny", tokenizer, Sampling(), how)
        asked = [AnswerRequest(question(name), "llm", None, 3) for name in ("a", "b")]
        return sorted((made for group in llm.answer(asked) for made in group), key=lambda made: made.question_id)

    return ask


@pytest.mark.parametrize("name", [lie.name for lie in servers.TRANSPORT if lie.name not in DEAR])
def test_a_lie_that_nobody_can_believe_changes_no_answer(name, liar, answers, request):
    truth = liar.truth(request.node.callspec.params["answers"], answers)
    liar.lies(LIES[name], servers.TO["the first question"])
    try:
        found = answers(name in SLOW)
    except UserError as error:  # what passes is asked again; what the user must mend is said
        assert str(error).startswith(f"server {liar.url}") and servers.KEY not in str(error)
        assert "status " in str(error), "only a status may end it"
    else:
        refused = {made.question_id: made.refused for made in found if made.refused is not None}
        assert [made for made in found if made.question_id not in refused] == [
            made for made in truth if made.question_id not in refused
        ]
        assert "status 400" in name or not refused, "only a status may refuse a prompt"
        assert servers.KEY not in json.dumps(refused)


@pytest.mark.parametrize("lie", servers.CONTENT, ids=lambda lie: lie.name[:20])
def test_a_lie_about_the_answers_is_kept_whole_or_said(lie, liar, answers):
    liar.lies(lie, servers.TO["every question"])
    try:
        found = answers()
    except UserError as error:
        assert str(error).startswith("server") and servers.KEY not in str(error)
    else:
        text = json.dumps([[sample.text for sample in made.samples] for made in found], ensure_ascii=False)
        assert servers.KEY not in text and text.encode() and all(len(made.samples) == 3 for made in found)


LISTS = ("a body without end", "is b'[[[[[[[[[[[['", "no HTTP", "a redirection to itself", "no answer at all")


@pytest.mark.parametrize("name", LISTS)
def test_the_list_of_models_is_bounded_too(name, liar):
    liar.lies(LIES[name], servers.TO["the list of models"])
    for look in (
        lambda: OpenAILLM.connect("tiny", Sampling(), Server(liar.url, "tiny", chat=True)),
        lambda: check_server(liar.url),
    ):
        try:
            look()
        except UserError as error:
            assert str(error).startswith(f"server {liar.url}")


def test_a_drip_ends_with_the_time_that_is_set(liar):
    liar.lies(LIES["a drip of bytes"])
    for look in (
        lambda: OpenAILLM.connect("tiny", Sampling(), Server(liar.url, "tiny", chat=True, timeout=0.2)),
        lambda: check_server(liar.url, seconds=0.2),
    ):
        with pytest.raises(UserError, match=r"no connection \(no whole answer in time\)"):
            look()


@pytest.mark.parametrize("seed", range(8))
def test_a_field_out_of_place_is_an_answer_or_a_line(seed, liar, answers):
    liar.lies(servers.field(seed), servers.TO["every question"])
    for ask in (answers, lambda: check_server(liar.url, "tiny")):
        try:
            ask()
        except UserError as error:
            assert str(error).startswith("server") and servers.KEY not in str(error) and "\n" not in str(error)


@pytest.fixture(params=["chat", "completions"])
def gate(request, liar, monkeypatch):
    """A gate of the server, that tries three times without a pause."""
    chat = request.param == "chat"
    tokenizer = None if chat else make_tokenizer()
    retry = Retry(tries=3, first=0.0, longest=0.0, patience=0.0)
    llm = OpenAILLM("tiny", tokenizer, Sampling(), Server(liar.url, "tiny", chat=chat, retry=retry))
    asked = DraftServer(url=liar.url, name="tiny", chat=chat, top=2)
    card = DraftCard(
        base_model="tiny", dtype="auto", tokens=2, signal="draft_margin", prompt_fingerprint="", server=asked
    )
    return DraftOfServer(llm, card)


@pytest.mark.parametrize("name", [lie.name for lie in servers.TRANSPORT if lie.name not in SLOW | DEAR])
def test_a_gate_of_a_server_takes_no_lie_for_a_reply(name, liar, gate, request):
    truth = liar.truth(("gate", request.node.callspec.params["gate"]), lambda: gate.score_all(["Who?", "What?"]))
    liar.lies(LIES[name], servers.TO["the first question"])
    try:
        assert gate.score_all(["Who?", "What?"]) == truth or ("status 400" in name and gate.spent["refused"] == 1)
    except UserError as error:
        assert str(error).startswith("server") and servers.KEY not in str(error) and "\n" not in str(error)
