"""Own prompts: templates from files, checked, sent as they are, kept with the run and refused where they differ."""

import json
import shutil

import pytest
from model_server import ModelServer
from support import scripts
from support.recipes import Recipe
from tiny_kbm import make_folder, make_tokenizer

import kbtrain
from kbtrain import rag
from kbtrain.config import parse_args
from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.io.provenance import write_meta
from kbtrain.io.store import SampleStore
from kbtrain.labeling.examples import example
from kbtrain.llm.backends import LLMConfig, open_llm
from kbtrain.llm.base import AnswerRequest, prompt_ids
from kbtrain.prompts.own import OwnPrompts, read_prompts
from kbtrain.records import Evidence, GateExample, Hit, Question
from kbtrain.serve.request_forms import FORMS, GatedMessage, with_evidence

SAMPLE = scripts.load("data_gen/sample.py")


def files(folder, llm="Q: {question} A:", rag="{evidence}\n{a: 1} Q: {question}"):
    for name, text in (("llm", llm), ("rag", rag), ("system", "Be brief.")):
        (folder / f"{name}.txt").write_text(text + "\n")
    return {name: folder / f"{name}.txt" for name in ("llm", "rag", "system")}


def test_values_are_put_in_and_nothing_else_is_touched(tmp_path):
    own = read_prompts(files(tmp_path))
    asked = Question("q", "Who is {evidence}?", ("x",), "test", "d")
    assert own is not None and own.system == "Be brief."
    assert own.render(asked, None) == "Q: Who is {evidence}? A:"
    assert own.render(asked, "It {question}.") == "It {question}.\n{a: 1} Q: Who is {evidence}?"
    assert own.render(asked, "") == own.render(asked, None)
    for file in files(tmp_path).values():  # as Windows saves them
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    assert read_prompts({name: tmp_path / f"{name}.txt" for name in ("llm", "rag", "system")}) == own
    assert OwnPrompts.from_record(own.as_record()) == own and OwnPrompts.from_record(None) is None
    with pytest.raises(UserError, match="they were changed"):
        OwnPrompts.from_record({**own.as_record(), "llm": "other {question}"})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"llm": "no place"}, r"llm.txt: template 'llm' lacks the placeholder \{question\}"),
        ({"llm": "{question} {evidence}"}, r"placeholder \{evidence\} in template 'llm'; it has \{question\}"),
        ({"rag": "{question}"}, r"template 'rag' lacks the placeholder \{evidence\}"),
        ({"rag": "{question} {context}"}, r"placeholder \{context\} in template 'rag'"),
    ],
)
def test_a_wrong_template_is_one_line(change, said, tmp_path):
    with pytest.raises(UserError, match=said):
        read_prompts(files(tmp_path, **change))
    with pytest.raises(UserError, match="no template 'rag'"):
        read_prompts({"llm": files(tmp_path)["llm"]})


def test_a_run_is_asked_with_them_keeps_them_and_refuses_others(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    asked = [Question(f"q{i}", f"Where is {i}?", ("x",), "test", "d") for i in range(2)]
    hits = [(Hit("p", "", "It is here.", 1.0),), ()]
    jsonl.write(tmp_path / "questions.jsonl", asked)
    jsonl.write(tmp_path / "evidence.jsonl", [Evidence(q.id, "b", q.text, h) for q, h in zip(asked, hits, strict=True)])
    found = files(tmp_path)
    given = "{" + ", ".join(f"{name}: {path}" for name, path in found.items()) + "}"

    def sample(*more):
        SAMPLE.main(parse_args(SAMPLE.SampleConfig, ["--run", str(tmp_path), "--samples", "{test: 0}", *more]))

    with ModelServer(logprobs=False) as server:
        address = ("--backend", "openai", "--server-url", server.url, "--server-model", "tiny", "--model", "tiny",
                   "--server-endpoint", "chat", "--server-n", "false", "--server-logprobs", "false")  # fmt: skip
        sample(*address, "--prompts", given)
        sent = sorted(tuple(m["content"] for m in request["messages"]) for request in server.requests)
        plain = [("Be brief.", f"Q: Where is {i}? A:") for i in range(2)]
        assert sent == sorted([*plain, plain[1], ("Be brief.", "It is here.\n{a: 1} Q: Where is 0?")])
        n = len(server.requests)
        sample(*address, "--prompts", given)
        assert len(server.requests) == n
        with SampleStore(tmp_path / "samples.db", read_only=True) as store:
            own = read_prompts(found)
            assert own is not None and store.run_meta("main")["own_prompts"] == own.as_record()
        with pytest.raises(UserError, match="own_prompts"):
            sample(*address)
        found["llm"].write_text("Other: {question}")
        with pytest.raises(UserError, match="own_prompts"):
            sample(*address, "--prompts", given)


OWN = OwnPrompts("Say where: {question}", "Read {evidence} and say where: {question}", "Be brief.")
PLACES = [Question(f"q{i}", f"Where is place {i}?", ("x",), "test", "d") for i in range(3)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(make_folder(tmp_path_factory.mktemp("own") / "model", num_hidden_layers=2))


@pytest.fixture(scope="module")
def probe(model, tmp_path_factory):
    """Trained on labels of answers to own prompts."""
    home = tmp_path_factory.mktemp("probe")
    rows = [
        GateExample(f"t{i}", f"t{i}", "train", f"Where is {i}?", "en", None, mastery=i % 2 == 0, soft_mastery=i % 2)
        for i in range(24)
    ]
    jsonl.write(home / "train.jsonl", rows)
    rule = {"label_rule": {"own_prompts": OWN.as_record()}}
    write_meta(home / "train.jsonl", stage="build", config={}, inputs=[], extra=rule, started=0.0)
    Recipe("probe")(["--model", model, "--train", str(home / "train.jsonl"), "--output", str(home / "probe"),
                     "--keys", "[mastery]", "--dtype", "fp32", "--device", "cpu"])  # fmt: skip
    return home / "probe"


def test_a_probe_reads_the_states_of_the_own_prompt(model, probe):
    gate = kbtrain.load_gate(probe)
    assert gate.card.own_prompts() == OWN
    for question in PLACES:
        expected, _ = prompt_ids(gate.reader.tokenizer, AnswerRequest(question, "llm", None, 0, prompts=OWN), 999)
        assert gate.reader.prompts([example(question, None)]) == [expected]
        plain, _ = prompt_ids(gate.reader.tokenizer, AnswerRequest(question, "llm", None, 0), 999)
        assert plain != expected


def test_the_chain_asks_and_decides_by_one_prompt(model, probe):
    gate = kbtrain.load_gate(probe)
    llm = open_llm(LLMConfig(model=model, dtype="fp32", device="cpu", max_new_tokens=3))
    scores = gate.score([question.text for question in PLACES])
    middle = sorted(scores)[1]
    texts = [question.text for question in PLACES]
    found = rag.answer(texts, gate, llm=llm, search=lambda text: ["It is here."], threshold=middle)
    assert [one.score for one in found] == pytest.approx(scores, abs=1e-5)
    for question, one in zip(PLACES, found, strict=True):
        evidence = "It is here." if one.retrieved else None
        asked = AnswerRequest(question, "rag" if one.retrieved else "llm", evidence, 0, prompts=OWN)
        ((said,),) = llm.answer([asked])
        assert said.greedy is not None and said.greedy.text == one.text


@pytest.mark.parametrize("change", [{"llm": "Other: {question}"}, {"fingerprint": "0"}])
def test_a_gate_whose_templates_were_changed_is_refused_in_one_line(change, probe, tmp_path):
    shutil.copytree(probe, tmp_path / "probe")
    card = json.loads((tmp_path / "probe" / "gate.json").read_text())
    card["label_rule"]["own_prompts"] |= change
    (tmp_path / "probe" / "gate.json").write_text(json.dumps(card))
    with pytest.raises(UserError, match=r"gate.json: own prompts: the fingerprint does not fit .* changed$"):
        kbtrain.load_gate(tmp_path / "probe")
    card["label_rule"]["own_prompts"] = OwnPrompts("A {question}", "B {question} {evidence}").as_record()
    (tmp_path / "probe" / "gate.json").write_text(json.dumps(card))
    with pytest.raises(UserError, match=r"gate.json: prompt fingerprint .* trained with other prompts"):
        kbtrain.load_gate(tmp_path / "probe")


def test_serving_asks_by_the_gate_s_templates():
    body = {"messages": [{"role": "system", "content": "You are."}, {"role": "user", "content": "Where?"}]}
    chat, asked = FORMS["chat/completions"], GatedMessage("Where?", "Where?")
    for rule in ("auto", "trained"):
        found = with_evidence(chat, body, asked, "It is here.", rule, OWN)["messages"]
        assert [m["content"] for m in found] == ["Be brief.", "Read It is here. and say where: Where?"]
        plain = with_evidence(FORMS["completions"], {"prompt": "Where?"}, asked, None, rule, OWN)
        assert plain["prompt"] == "Be brief.\nSay where: Where?"
    assert with_evidence(chat, body, asked, None, "auto", None) is body
    assert with_evidence(chat, body, asked, None, "background", OWN) is body


@pytest.mark.parametrize("room", range(1, 8))
def test_a_cut_within_a_character_takes_the_whole_character(room):
    tokenizer = make_tokenizer()
    ask = AnswerRequest(Question("q", "Where?", ("x",), "test", "d"), "rag", "\u4ed6\u4f4f\u5728\u5317\u4eac" * 20, 0)
    whole, _ = prompt_ids(tokenizer, ask, 10_000)
    ids, cut = prompt_ids(tokenizer, ask, len(whole) - room)
    assert len(ids) <= len(whole) - room and cut >= room and "\ufffd" not in tokenizer.decode(ids)
