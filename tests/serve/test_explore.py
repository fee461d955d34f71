"""Exploration, verdicts on answers, and the value of other policies, on the wire and from a log."""

import json
import shutil

import numpy as np
import pytest
from serve_support import NEEDS, serving
from stub_upstream import StubUpstream
from support.servers import wait_until

from kbtrain.cli import main
from kbtrain.errors import UserError
from kbtrain.gate.trained_on import write_trained_on
from kbtrain.gates.handles import gate_identity
from kbtrain.records import GateExample
from kbtrain.report.traffic import read_log, read_outcomes, value_lines
from kbtrain.serve.app import INSTRUCTIONS
from kbtrain.serve.config import ServeConfig


def test_a_coin_decides_a_share_and_verdicts_join_their_decisions(gate, tmp_path):
    log, body = tmp_path / "log.jsonl", {"messages": [{"role": "user", "content": NEEDS}]}
    with StubUpstream() as stub:
        settings = {"upstream": stub.url, "search": "serve_support:echo", "log": log, "explore": 0.5}
        with serving(gate, **settings) as running:
            shop = {"x-kbtrain-source": "shop"}
            replies = [running.post("/v1/chat/completions", body, shop) for _ in range(40)]
            forced = running.post("/v1/chat/completions", body, {"x-kbtrain-retrieve": "always"})
            names = [reply.headers["x-kbtrain-request-id"] for reply in replies]
            first = {"id": names[0], "right": True, "source": "thumb"}
            assert running.post("/v1/outcomes", first).json == {"id": names[0], "right": 1.0}
            assert running.post("/v1/outcomes", {**first, "right": 0.25}).status == 200
            for wrong in ({"id": "", "right": 1}, {"id": "a"}, {"id": "a", "right": 2}, {**first, "why": "x"}):
                assert running.post("/v1/outcomes", wrong).status == 400
            wait_until(lambda: log.read_text().count("\n") == 41)
    kept = [json.loads(line) for line in (tmp_path / "log-outcomes.jsonl").read_text().splitlines()]
    assert [row["right"] for row in kept] == [1.0, 0.25] and "outcome_of" not in log.read_text()
    rows = {row["id"]: row for row in read_log(log)}
    assert len(set(names)) == 40 and set(names) < set(rows)  # verdicts are no decisions
    assert read_outcomes(log) == {names[0]: 0.25}  # the last one counts
    assert rows[forced.headers["x-kbtrain-request-id"]]["propensity"] is None  # nothing was left to chance
    drawn = [rows[name] for name in names]
    for row, reply in zip(drawn, replies, strict=True):
        assert row["propensity"] == (0.75 if row["searched"] == row["retrieve"] else 0.25)
        assert reply.headers["x-kbtrain-retrieved"] == str(int(row["searched"]))
        assert (row["reason"], row["source"]) == (reply.headers["x-kbtrain-reason"], "shop")
    assert {row["reason"] for row in drawn} == {"explored", "above-threshold"}
    assert {row["searched"] for row in drawn if row["reason"] == "explored"} == {True, False}


def test_verdicts_on_what_nobody_asked_take_no_decision_away(gate, tmp_path):
    log = tmp_path / "log.jsonl"
    with serving(gate, log=log, log_max_mb=0.002) as running:
        (asked,) = running.post("/v1/gate", {"questions": [NEEDS]}).json["decisions"]
        for i in range(60):
            assert running.post("/v1/outcomes", {"id": f"unknown-{i}", "right": 1}).status == 200
    assert [row["id"] for row in read_log(log)] == [asked["id"]]
    assert len(list(tmp_path.glob("log-outcomes.jsonl.*"))) > 1  # they rotate each other


CHAT = {"messages": [{"role": "user", "content": NEEDS}]}
PREDICATE = {"type": "predicate", "instructions": INSTRUCTIONS}
ROUTES = {
    "completions": {"prompt": NEEDS}, "responses": {"input": NEEDS}, "messages": {**CHAT, "max_tokens": 9},
    "gate": {"questions": [NEEDS]}, "decisions": {"input": NEEDS, "questions": [PREDICATE]},
}  # fmt: skip


def test_every_route_explores_and_logs_its_propensity(gate, tmp_path):
    log, times, names = tmp_path / "log.jsonl", 12, dict[str, list[tuple[str, bool]]]()
    with StubUpstream() as stub:
        settings = {"upstream": stub.url, "search": "serve_support:echo", "log": log, "explore": 0.5}
        with serving(gate, **settings) as running:
            for route, body in ROUTES.items():
                replies = [running.post(f"/v1/{route}", body) for _ in range(times)]
                if route == "gate":
                    shown = [reply.json["decisions"][0] for reply in replies]
                elif route == "decisions":
                    shown = [reply.json["kbtrain"] for reply in replies]
                else:
                    heads = [reply.headers for reply in replies]
                    shown = [{"id": head["x-kbtrain-request-id"], "retrieve": head["x-kbtrain-retrieved"] == "1"}
                             for head in heads]  # fmt: skip
                names[route] = [(one["id"], one["retrieve"]) for one in shown]
            wait_until(lambda: log.read_text().count("\n") == times * len(ROUTES))
            tool = {"type": "function", "function": {"name": "web_search", "parameters": {"type": "object"}}}
            loaded = running.service.decider.loaded
            line = f'kbtrain_decisions_total{{decision="search",gate="{loaded.name}",reason="above-threshold"}}'
            before = running.metric(line)
            heads = [running.post("/v1/chat/completions", {**CHAT, "tools": [tool]}).headers for _ in range(times)]
            assert {head["x-kbtrain-reason"] for head in heads} == {"above-threshold"}  # the model decides: no draw
            assert running.metric(line) == before + times
    rows = {row["id"]: row for row in read_log(log)}
    steered = [row for row in rows.values() if row["tool"]]
    assert {(row["searched"], row["would_search"], row["propensity"]) for row in steered} == {(False, True, None)}
    for route, answers in names.items():
        for name, retrieve in answers:
            row = rows[name]
            assert row["route"] == route and row["searched"] == retrieve
            assert row["propensity"] == (0.75 if row["searched"] == row["retrieve"] else 0.25)
    assert {rows[name]["reason"] for answers in names.values() for name, _ in answers} == {
        "explored",
        "above-threshold",
    }


def test_verdicts_need_a_log_and_exploration_a_search(gate):
    with serving(gate) as running:
        assert running.post("/v1/outcomes", {"id": "a", "right": 1}).status == 409
    proxied = {"upstream": "http://127.0.0.1:1/v1", "search": "none"}
    for more in ({}, {"log": "l", "policy": "pass"}, {"log": "l", **proxied}):
        with pytest.raises(ValueError, match="key 'explore': needs log and a search"):
            ServeConfig(**{"gate": gate, "explore": 0.1, "search": "auto", **more})


def explored(path, gate, n=600, texts=False):
    """A log in which a search is right where the score is above 0.7, and never else; half is explored."""
    rng, lines = np.random.default_rng(0), []
    for i in range(n):
        score = float(rng.random())
        decided = score > 0.5
        searched = bool(rng.random() < 0.5) if rng.random() < 0.5 else decided
        row = {"id": str(i), "time": i, "gate": gate, "score": score, "retrieve": decided, "searched": searched}
        text = {"question": f"question {i}"} if texts else {}
        lines += [{**row, "propensity": 0.75 if searched == decided else 0.25, **text}]
        lines += [{"outcome_of": str(i), "right": float(searched == (score > 0.7))}]
    lines += [{**row, "id": "late", "propensity": 0.75}, {**row, "propensity": None}, {**row, "gate": "other@0"}]
    lines += [{**row, "searched": None, "propensity": 0.75}, {**row, "propensity": 0.75}]  # the last one's id again
    lines += [{"outcome_of": "no such request", "right": 1}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_value_estimates_any_threshold(gate, tmp_path, capsys):
    folder = shutil.copytree(gate, tmp_path / "probe")
    log = explored(tmp_path / "log.jsonl", f"encoder_probe@{gate_identity(folder)}")
    assert main(["value", str(folder), "--log", str(log), "--threshold", "0.7"]) == 0
    shown = capsys.readouterr().out.splitlines()
    rows = {line.split("  ")[0]: line for line in shown}
    best = rows["encoder_probe, threshold 0.7"].split("  ")
    figures = [float(cell.split(" [")[0]) for cell in best if "[" in cell]
    assert figures == [100.0]  # whatever it does is right
    never = next(float(cell.split(" [")[0]) for cell in rows["never"].split("  ") if "[" in cell)
    assert never == pytest.approx(70, abs=6)
    assert "600 explored decisions with a verdict" in shown[-3]
    assert "1 decided without exploration, 1 of other gates or versions, 1 verdicts whose id" in shown[-3]
    assert "the log does not have, 1 without 'searched', 2 without a verdict" in shown[-3]
    with pytest.raises(UserError, match=r"0 decisions to value .*600 without the question's text \(--log-text\)"):
        value_lines(folder, log, others=[folder])
    with pytest.raises(UserError, match=r"0 explored decisions with a verdict .*report 50 more verdicts"):
        value_lines(folder, explored(tmp_path / "none.jsonl", "other@1", 3))


def test_another_gate_is_valued_on_questions_that_it_was_not_trained_on(gate, tmp_path):
    folder = shutil.copytree(gate, tmp_path / "probe")
    log = explored(tmp_path / "log.jsonl", f"encoder_probe@{gate_identity(folder)}", 90, texts=True)
    other = shutil.copytree(gate, tmp_path / "other")
    write_trained_on(other, [GateExample.ask(f"question {i}") for i in range(20)])
    table, counted, *_ = value_lines(folder, log, others=[other])
    assert f"encoder_probe of {other}, noted, 0.5 " in table and f"encoder_probe of {other}, 25% searched, " in table
    assert counted.startswith("70 explored decisions") and "20 on which a gate of --gate was trained" in counted
    write_trained_on(other, [GateExample.ask(f"question {i}") for i in range(50)])
    with pytest.raises(UserError, match=r"40 decisions to value .*50 on which a gate of --gate was trained"):
        value_lines(folder, log, others=[other])
