"""A key that a server echoes into every answer is in no file and no line of a whole chain."""

import json

from model_server import ModelServer
from support import scripts
from tiny_kbm import make_folder

from kbtrain.io import jsonl
from kbtrain.records import Question

KEY, PARAMETER, FIELD = "sk-planted-key", "parameter-planted", "field-planted"


def test_a_planted_key_is_found_nowhere_after_a_chain_with_a_server_that_echoes_it(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    run, said = tmp_path / "run", ""
    model = str(make_folder(tmp_path / "model"))

    def say(request, place):
        """Every other question's answer, or Yes where that is asked, and the key."""
        asked = json.dumps(request["messages"], ensure_ascii=False)
        known = [q for q in jsonl.read(Question, run / "questions.jsonl") if json.dumps(q.text)[1:-1] in asked]
        right = known and len(known[0].id) % 2
        said = known[0].answers[0] if right else f"Yes {request.get('seed', 0) + place}"
        return f"{said} {server.requests[-1]['key']}"

    with ModelServer(say=say) as server:
        url = f"{server.url}?api_key={PARAMETER}"
        asked = (
            "--model", model, "--backend", "openai", "--server-url", url, "--server-model", "tiny",
            "--server-endpoint", "chat", "--server-extra", f"{{api_key: {FIELD}}}",
        )  # fmt: skip
        stages = [
            ("data_gen/collect.py", "--config", "collect_demo", "--train", 8, "--dev", 4, "--test", 4),
            ("data_gen/retrieve.py",),
            ("data_gen/sample.py", *asked, "--samples", "{train: 2, dev: 2, test: 2}", "--max-new-tokens", 4),
            ("data_gen/label.py", "--tau-mastery", 0.5, "--tau-certainty", "middle"),
            ("data_gen/build.py", "--keys", "[mastery, certainty]"),
            ("eval/score.py", "--model", model, "--device", "cpu"),
            ("eval/end_to_end.py", "--threshold-rule", "best_accuracy"), ("eval/write_report.py",),
        ]  # fmt: skip
        for script, *arguments in stages:
            done = scripts.here(script, "--run", run, *arguments)
            said += done.stdout + done.stderr
            assert done.returncode == 0, done.stderr[-1000:]
        assert {request["key"] for request in server.requests} == {f"Bearer {KEY}"}
    files = [path for path in run.rglob("*") if path.is_file()]
    assert b"Bearer [secret]" in b"".join(path.read_bytes() for path in files)
    assert (run / "report.html").exists() and len(files) > 20
    for secret in (KEY, PARAMETER, FIELD):
        assert [path.name for path in files if secret.encode() in path.read_bytes()] == [] and secret not in said
