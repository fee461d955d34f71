"""docs/howto/audit.md, followed to the letter: from pages and questions alone to a threshold in service."""

import hashlib
import io
import itertools
import json
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from model_server import ModelServer
from serve_support import serving
from support import scripts
from support.files import judge
from support.servers import wait_until

from kbtrain.cli import main
from kbtrain.config import parse_args
from kbtrain.gate.card import read_gate_json
from kbtrain.report.traffic import read_log
from kbtrain.serve.config import ServeConfig

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "howto" / "audit.md").read_text(encoding="utf-8").replace("\\\n", " ")
COMMANDS = [
    shlex.split(line)
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    for line in ([] if language else block.splitlines())
]
N, TURNS = 100, 62  # fewer questions than the page's reader has: the commands are the same
HERE = {"value", "audit"}  # commands that run in this process; an audit that answers starts stages


def question(i):
    """Every second one is known without pages."""
    name = hashlib.sha256(str(i).encode()).hexdigest()[:6]
    return f"What is the {'capital of the famous city' if i % 2 else 'code of the internal form'} {name}?"


GUESSES = itertools.count()  # a model that does not know says another thing each time
GOLD = {question(i): f"ans{i}" for i in range(N + TURNS)}  # never shown to the project


def say(body, place):
    """A model that knows the famous cities, and reads the rest in its passages."""
    prompt = body["messages"][-1]["content"]
    asked = next((text for text in GOLD if text in prompt), None)
    if asked is None:
        return f"town {body.get('seed')}"
    return GOLD[asked] if "famous" in asked or f"is {GOLD[asked]}." in prompt else f"guess {next(GUESSES)}"


def page_file(folder):
    pages = folder / "handbook"
    pages.mkdir()
    sections = (f"## {text[12:-1]}\nThe {text[12:-1]} is {gold}.\n" for text, gold in GOLD.items())
    (pages / "all.md").write_text("# Handbook\n" + "\n".join(sections))
    rows = ({"question": question(i)} for i in range(N))
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def ask_all(config, explored):
    """Traffic through the server; in service each answer gets a verdict."""
    with serving(config.pop("gate"), **{"search": "auto", **config}) as running:
        for i in range(N, N + TURNS):
            body = {"model": "tiny", "messages": [{"role": "user", "content": question(i)}], "max_tokens": 20}
            reply = running.post("/v1/chat/completions", body)
            assert reply.status == 200, reply.body
            if explored:
                said = reply.json["choices"][0]["message"]["content"]
                right = {"id": reply.headers["x-kbtrain-request-id"], "right": said == GOLD[question(i)]}
                assert running.post("/v1/outcomes", right).status == 200
        wait_until(lambda: sum(1 for _ in read_log(config["log"])) >= TURNS * (1 + explored))


def run_command(words, folder):
    """What a command prints."""
    if words[0] in HERE and "--answer" not in words:
        with redirect_stdout(io.StringIO()) as printed:
            assert main(words) == 0, (words, printed.getvalue())
        return printed.getvalue()
    done = scripts.run("-m", "kbtrain.cli", *words, cwd=folder, nested=True)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """Folder, and what each command printed."""
    folder, shown = tmp_path_factory.mktemp("page"), []
    model = ModelServer(logprobs=False, missing=("completions",), say=say)
    with pytest.MonkeyPatch.context() as patch, model as server:
        patch.chdir(folder)
        patch.setenv("NO_PROXY", "127.0.0.1")
        page_file(folder)
        for words in COMMANDS:
            words = [word.replace("http://127.0.0.1:8001/v1", server.url) for word in words[1:]]
            if words[0] == "serve":
                config = parse_args(ServeConfig, [f"gate={words[1]}", *words[2:]])
                ask_all(config.model_dump(exclude_unset=True), bool(config.explore))
                continue
            shown.append(run_command(words, folder))
            if "sheet.html" in shown[-1]:
                judge("runs/audit/sheet.csv", right=lambda row: GOLD[row["question"]])
        yield folder, shown


def test_every_command_of_the_page_runs_and_the_threshold_rests_on_the_judgements(followed):
    folder, shown = followed
    assert len(COMMANDS) == 15
    noted = read_gate_json(folder / "runs" / "mine" / "features")["thresholds"]["features_certainty"]
    assert noted["rule"] == "best_accuracy of 60 audited turns"
    table = next(text for text in shown if "judged by people" in text)
    always = re.search(r"right, always searching +([\d.]+) ", table)
    never = re.search(r"right, never searching +([\d.]+) ", table)
    assert always and float(always[1]) > 95 and never and 35 < float(never[1]) < 65
    missed = re.search(r"missed, of the others +([\d.]+) \[[\d.]+, [\d.]+\] +([\d.]+) \[", table)
    assert missed and float(missed[2]) == 0.0  # the proposed threshold searches for every internal form
    back = next(text for text in shown if " again; " in text)
    assert re.search(r"\(best_f1[^)]*\) again", back)
    value = next(text for text in shown if "explored decisions with a verdict" in text)
    assert "features_certainty, threshold noted" in value


def test_the_commands_that_the_page_names_are_the_tested_ones():
    assert {words[1] for words in COMMANDS} == {"check-server", "run", "serve", "audit", "value"}
