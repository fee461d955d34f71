"""kbtrain finish without accepted answers: every sentence is true on data whose gold was hidden."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import scripts

from kbtrain.commands import decide
from kbtrain.demo import attainable_change, finish_own, own_chain, without_gold
from kbtrain.gates.registry import load_gate, read_card
from kbtrain.io import jsonl
from kbtrain.records import GateExample, Label, Question
from kbtrain.serve.decide import LoadedGate
from kbtrain.serve.server import startup_lines

N = 260


def rows() -> list[dict[str, str]]:
    """Questions of two kinds: the model knows the capitals without passages, and reads the codes in them.

    ``gold`` is never shown to the project. One answer in eight with passages is wrong: always searching is not right.
    """
    found = []
    for i in range(N):
        name, known = hashlib.sha256(str(i).encode()).hexdigest()[:6], i % 2 == 0
        kind = "capital of the famous city" if known else "code of the internal form"
        rag = f"It is ans{i}." if i % 8 > 1 else f"It is wrong{i}."
        llm = (f"ans{i}" if i % 8 > 1 else f"wrong{i}") if known else f"guess{i % 5}"
        found.append({"question": f"What is the {kind} {name}?", "plain": llm, "passages": rag, "gold": f"ans{i}"})
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The run folder, and what finish printed."""
    folder = tmp_path_factory.mktemp("hidden")
    logs, corpus, run = folder / "logs.jsonl", folder / "passages.jsonl", folder / "run"
    shown = [{name: row[name] for name in ("question", "plain", "passages")} for row in rows()]
    logs.write_text("".join(json.dumps(row) + "\n" for row in shown))
    corpus.write_text("".join(json.dumps({"id": str(i), "title": "", "text": row["question"]}) + "\n"
                              for i, row in enumerate(rows())))  # fmt: skip
    imported = scripts.run(
        "data_gen/import_answers.py", "--run", str(run), "--path", str(logs), "--model", "m", "--shares", ".4,.3,.3",
        "--without-gold", "true", "--answers", "{llm: plain, rag: passages}",
    )  # fmt: skip
    assert imported.returncode == 0, imported.stderr
    assert "right" not in imported.stdout and f"{N} questions (train " in imported.stdout
    assert scripts.run("data_gen/retrieve.py", "--run", str(run), "--corpus", str(corpus)).returncode == 0
    import io
    from contextlib import redirect_stdout

    with redirect_stdout(io.StringIO()) as said:
        finish_own(run, lambda line: None)
    return run, said.getvalue()


def test_the_chain_learns_change_alone(finished: tuple[Path, str]) -> None:
    run, _ = finished
    assert without_gold(run) and "fidelity" in [step.script for step in own_chain(run)]
    labels = list(jsonl.read(Label, run / "labels.jsonl"))
    assert len(labels) == N and {label.known for label in labels} == {None}
    truth = {row["question"]: not row["passages"].endswith(f" {row['plain']}.") for row in rows()}
    texts = {question.id: question.text for question in jsonl.read(Question, run / "questions.jsonl")}
    assert {label.question_id: label.changes for label in labels} == {name: truth[text] for name, text in texts.items()}
    assert read_card(run / "features").keys == ("change",)
    assert not (run / "results.json").exists()


def test_every_sentence_is_true_of_the_hidden_answers(finished: tuple[Path, str]) -> None:
    run, said = finished
    report = (run / "report.md").read_text()
    by_text = {row["question"]: row for row in rows()}
    test = list(jsonl.read(GateExample, run / "examples" / "test.jsonl"))
    gate = load_gate(run / "features")
    searched = [decision.retrieve for decision in gate.decide(test)]
    differ = [not by_text[e.question]["passages"].endswith(f" {by_text[e.question]['plain']}.") for e in test]
    wrong = [different and not search for different, search in zip(differ, searched, strict=True)]
    skips = re.search(
        r"skips ([\d.]+) % of the searches, and ([\d.]+) % \\\[([\d.]+), ([\d.]+)\\\] of the answers", report
    )
    assert skips is not None
    assert float(skips[1]) == pytest.approx(100 * (1 - sum(searched) / len(test)), abs=0.051)
    assert float(skips[2]) == pytest.approx(100 * sum(wrong) / len(test), abs=0.051)
    assert 40 < float(skips[1]) < 60  # it found the capitals
    never = re.search(r"Without any search ([\d.]+) % of the (\d+) answers differ", report)
    assert never is not None and int(never[2]) == len(test)
    assert float(never[1]) == pytest.approx(100 * sum(differ) / len(test), abs=0.051)
    limit = re.search(r"at most ([\d.]+) % of the answers differ, with probability 0.9", report)
    assert limit is not None and float(limit[1]) == pytest.approx(100 * attainable_change(run))
    assert sum(wrong) / len(test) <= float(limit[1]) / 100
    for line in report.splitlines():  # a share of right answers is unknown here
        assert "right" not in line or "is not known" in line, line
    block = dict(re.split(r"  +", line, maxsplit=1) for line in said.splitlines())
    names = ["tested", "without search", "always searching", "with the gate", "is that real?", "cost", "next"]
    assert list(block) == names
    searches = round(1000 * sum(searched) / len(test))
    assert block["cost"].startswith(
        f"A thousand questions: {searches} searches. Tokens, time and money are not known: "
    )
    assert block["always searching"].startswith("no answer changes; which of them are right is not known")
    assert block["with the gate"].replace("[", "\\[").replace("]", "\\]") in report
    assert block["is that real?"].startswith("Yes, on these questions")


def test_decide_and_serve_say_the_promise(finished: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(finished[0] / "features")
    given = {"key": None, "dtype": "auto", "device": "cpu", "verify": False, "revision": None, "file": None,
             "field": None, "texts": ["What is the capital of the famous city abc?"]}  # fmt: skip
    decide(argparse.Namespace(folder=folder, threshold=None, **given))
    said = capsys.readouterr()
    limit = f"{100 * attainable_change(finished[0]):g}"
    promise = f"at most {limit} % of the answers differ from always searching, with probability 0.9"
    assert said.err == f"features_change: its threshold promises: {promise}\n"
    assert json.loads(said.out)["threshold"] == load_gate(folder).threshold
    decide(argparse.Namespace(folder=folder, threshold=0.5, **given))
    assert capsys.readouterr().err == ""  # another threshold promises nothing
    loaded = LoadedGate(load_gate(folder), "0")
    for threshold, lines in ((None, [f"promised: {promise}"]), (0.5, [])):
        service: Any = SimpleNamespace(
            config=SimpleNamespace(threshold=threshold, upstream=None, gate=folder),
            decider=SimpleNamespace(loaded=loaded, threshold=lambda one: one.gate.threshold),
            upstream=None,
            second=None,
        )
        assert [line for line in startup_lines(service) if line.startswith("promised")] == lines


def test_the_noted_threshold_says_its_promise(finished: tuple[Path, str]) -> None:
    card = (finished[0] / "features" / "README.md").read_text()
    assert re.search(
        r"rule max_change [\d.]+ with probability 0.9, \d+ dev questions: [\d.]+% of the searches skipped", card
    )
    assert "% of the answers differ from always searching, with probability 0.9)" in card
    page = (finished[0] / "report.html").read_text()
    assert "Searches skipped although passages change the answer" in page and "<svg" in page


def test_figures_of_a_limit_that_the_folder_does_not_take_say_so(finished: tuple[Path, str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished[0], run)
    assert scripts.run("eval/fidelity.py", "--run", str(run), "--max-change", "0.5").returncode == 0
    kept = json.loads((run / "fidelity.json").read_text())["meta"]["kept_thresholds"]["features_change"]
    stored = load_gate(run / "features").threshold
    assert f"keeps its calibrated threshold {stored:.4f} (max_change {attainable_change(run):g}" in kept
    assert scripts.run("eval/write_report.py", "--run", str(run)).returncode == 0
    assert "keeps its calibrated threshold" in (run / "report.md").read_text()
    assert scripts.run("eval/fidelity.py", "--run", str(run), "--max-change", "0.5",
                       "--replace-thresholds", "true").returncode == 0  # fmt: skip
    assert json.loads((run / "fidelity.json").read_text())["meta"]["kept_thresholds"] == {}
