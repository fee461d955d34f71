"""Own prompts: templates from files, checked, sent as they are, kept with the run and refused where they differ."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_server import ModelServer
from support import scripts

from kbtrain import jsonl
from kbtrain.config import parse_args
from kbtrain.errors import UserError
from kbtrain.prompts.own import OwnPrompts, read_prompts
from kbtrain.records import Evidence, Hit, Question
from kbtrain.store import SampleStore

SAMPLE = scripts.load("data_gen/sample.py")


def files(
    folder: Path, llm: str = "Q: {question} A:", rag: str = "{evidence}\n{a: 1} Q: {question}"
) -> dict[str, Path]:
    for name, text in (("llm", llm), ("rag", rag), ("system", "Be brief.")):
        (folder / f"{name}.txt").write_text(text + "\n")
    return {name: folder / f"{name}.txt" for name in ("llm", "rag", "system")}


def test_values_are_put_in_and_nothing_else_is_touched(tmp_path: Path) -> None:
    own = read_prompts(files(tmp_path))
    asked = Question("q", "Who is {evidence}?", ("x",), "test", "d")
    assert own is not None and own.system == "Be brief."
    assert own.render(asked, None) == "Q: Who is {evidence}? A:"
    assert own.render(asked, "It {question}.") == "It {question}.\n{a: 1} Q: Who is {evidence}?"
    assert own.render(asked, "") == own.render(asked, None)
    assert OwnPrompts.of(own.noted()) == own and OwnPrompts.of(None) is None
    with pytest.raises(UserError, match="they were changed"):
        OwnPrompts.of({**own.noted(), "llm": "other {question}"})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"llm": "no place"}, r"llm.txt: template 'llm' lacks the placeholder \{question\}"),
        ({"llm": "{question} {evidence}"}, r"placeholder \{evidence\} in template 'llm'; it has \{question\}"),
        ({"rag": "{question}"}, r"template 'rag' lacks the placeholder \{evidence\}"),
        ({"rag": "{question} {context}"}, r"placeholder \{context\} in template 'rag'"),
    ],
)
def test_a_wrong_template_is_one_line(change: dict[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        read_prompts(files(tmp_path, **change))
    with pytest.raises(UserError, match="no template 'rag'"):
        read_prompts({"llm": files(tmp_path)["llm"]})


def test_a_run_is_asked_with_them_keeps_them_and_refuses_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    asked = [Question(f"q{i}", f"Where is {i}?", ("x",), "test", "d") for i in range(2)]
    hits = [(Hit("p", "", "It is here.", 1.0),), ()]
    jsonl.write(tmp_path / "questions.jsonl", asked)
    jsonl.write(tmp_path / "evidence.jsonl", [Evidence(q.id, "b", q.text, h) for q, h in zip(asked, hits, strict=True)])
    found = files(tmp_path)
    given = "{" + ", ".join(f"{name}: {path}" for name, path in found.items()) + "}"

    def sample(*more: str) -> None:
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
            assert own is not None and store.run_meta("main")["own_prompts"] == own.noted()
        with pytest.raises(UserError, match="own_prompts"):
            sample(*address)
        found["llm"].write_text("Other: {question}")
        with pytest.raises(UserError, match="own_prompts"):
            sample(*address, "--prompts", given)
