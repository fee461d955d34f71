"""Prompts that a server refuses: stored with the reason, counted in each summary, excluded from labels; a run ends."""

import json
import re

import pytest
from model_server import DialectServer
from support import scripts

from kbtrain.config import parse_args
from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.io.store import SampleStore
from kbtrain.records import Evidence, Hit, Question, Sample, SampleSet

SAMPLE = scripts.load("data_gen/sample.py")
N = 40


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-a-key-of-azures-1234")


@pytest.fixture
def run(tmp_path):
    """A run folder; the questions of these numbers hold what a filter refuses, the passages of those others."""

    def make(bombs, in_passages=()):
        questions = [
            Question(f"q{i}", f"Who is {'BOMB ' * (i in bombs)}{i}?", ("Ann",), ("train", "dev", "test")[i % 3], "t")
            for i in range(N)
        ]
        hits = [(Hit("p", "T", f"It is {'BOMB' if i in in_passages else 'Ann'}.", 1.0),) for i in range(N)]
        jsonl.write(tmp_path / "questions.jsonl", questions)
        found = [Evidence(q.id, "bm25", q.text, hit) for q, hit in zip(questions, hits, strict=True)]
        jsonl.write(tmp_path / "evidence.jsonl", found)
        return tmp_path

    return make


def said(body, place):
    """Right with the passage, and in a share of the answers that is the question's own without."""
    prompt = body["messages"][-1]["content"]
    number = re.search(r"Who is (?:BOMB )?(\d+)", prompt)
    return "Ann" if "Ann" in prompt or (number and place < int(number[1]) % 5) else "Bob"


def sample(folder, server, *more):
    given = ["--run", str(folder), "--model", "m", "--backend", "openai", "--server-url", server.url,
             "--server-endpoint", "chat", "--samples", "{train: 4, dev: 4, test: 0}"]  # fmt: skip
    if server.maker.key_header:
        given += ["--server-key-header", server.maker.key_header]
    SAMPLE.main(parse_args(SAMPLE.SampleConfig, [*given, *more]))


def stored(folder):
    with SampleStore(folder / "samples.db", read_only=True) as store:
        return {(made.question_id, made.condition): made for made in store.iterate("main")}


def test_a_refused_question_is_stored_counted_and_left_out_of_labels(run, capsys):
    folder = run((0, 1), in_passages=(4,))
    with DialectServer("azure", say=said) as server:
        sample(folder, server)
        n_requests = len(server.requests)
        sample(folder, server)  # the same command does not ask again
        assert len(server.requests) == n_requests
    first, second = (line for line in capsys.readouterr().out.splitlines() if line.startswith("refused by the server"))
    assert first == second
    assert "so without answers and labels: 5 (content_filter 5; first: 'q" in first
    found = stored(folder)
    refused = {key: made for key, made in found.items() if made.refused is not None}
    assert len(found) == 2 * N and {(i, c) for i, c in refused} == {
        ("q0", "llm"), ("q0", "rag"), ("q1", "llm"), ("q1", "rag"), ("q4", "rag")
    }  # fmt: skip
    assert all(not made.samples and made.greedy is None for made in refused.values())
    reason = refused["q0", "llm"].refused or ""
    assert reason.startswith("content_filter: status 400 (The response was filtered due to the prompt triggering Azure")

    taus = ("--tau-mastery", "{quantile: 0.3}", "--tau-certainty", "0.6")
    done = scripts.here("data_gen/label.py", "--run", str(folder), *taus)
    assert "refused by the server 2 under 'llm', 3 under 'rag'" in done.stdout
    labels = {label["question_id"]: label for label in map(json.loads, (folder / "labels.jsonl").open())}
    assert not {"q0", "q1"} & set(labels) and labels["q4"]["rag"] is None
    counts = json.loads((folder / "labels.jsonl.meta.json").read_text())["counts"]
    assert (counts["llm_refused"], counts["rag_refused"]) == (2, 3)


def test_a_run_of_which_only_a_refused_question_is_left_ends(run):
    """Nothing that the second process asks is answered: a short question shows that the fields are right."""
    folder = run((7,))
    with DialectServer("azure", say=said) as server:
        sample(folder, server, "--conditions", "[llm]")
        whole, path = stored(folder), folder / "samples.db"
        with SampleStore(path, read_only=True) as store:
            meta = store.run_meta("main")
        path.unlink()
        with SampleStore(path) as store:
            store.begin("main", meta)
            store.put("main", [made for made in whole.values() if made.refused is None])
        server.requests.clear()
        sample(folder, server, "--conditions", "[llm]")
        assert [body["messages"][0]["content"] for body in server.requests[1:]] == ["Name any town of the world."]
    assert stored(folder) == whole and whole["q7", "llm"].refused is not None


def test_too_many_refusals_are_one_line(run):
    folder = run(tuple(range(0, N, 3)))
    with DialectServer("azure", say=said) as server:
        for _ in range(2):  # the second time before anything is asked
            with pytest.raises(UserError, match=r"key 'server_refused': .*content_filter \d+; .*20%") as caught:
                sample(folder, server)
            assert "\n" not in str(caught.value)
        sample(folder, server, "--server-refused", "0.5")
    assert len(stored(folder)) == 2 * N


def test_fields_that_the_server_refuses_are_no_refused_questions(run):
    folder = run(())
    with DialectServer("fastapi", say=said) as server:
        with pytest.raises(UserError, match=r"status 422 \(stop: Extra inputs .* it refuses a short question too"):
            sample(folder, server)
        assert stored(folder) == {}
        sample(folder, server, "--server-extra", "{stop: null}")
    assert len(stored(folder)) == 2 * N


def test_an_answer_that_a_filter_removes_is_refused(run):
    folder = run(())
    choice = {"index": 0, "message": {"role": "assistant", "content": None}, "finish_reason": "content_filter"}
    with DialectServer("azure", say=said, failures=((200, {"choices": [choice]}),)) as server:
        sample(folder, server)
    (reason,) = {made.refused for made in stored(folder).values() if made.refused}
    assert reason == "content_filter: finish reason content_filter"


def test_a_refusal_is_part_of_exports(tmp_path):
    path = tmp_path / "s.db"
    refused = SampleSet("q", "llm", (), None, 0, 3, "context_length: too long")
    with SampleStore(path) as store:
        store.begin("main", {})
        store.put("main", [refused])
        assert store.get("main", "q", "llm") == refused and store.refusals("main") == [("q", "llm", refused.refused)]
        assert store.cut_prompts("main") == 1 and store.set_sizes("main") == {0: 1}
        assert jsonl.write(tmp_path / "s.jsonl", store.iterate("main")) == 1
        with pytest.raises(ValueError, match="could not be read back"):
            store.put("main", [SampleSet("r", "llm", (), Sample(-1, "Ann", 1, "eos", 0.0), 0, 0, "other: no")])
    (line,) = jsonl.read(SampleSet, tmp_path / "s.jsonl")
    assert line == refused
