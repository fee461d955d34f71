"""Commands that how-tos print, run on a small run folder: made-up answers, tiny random models, stand-in servers."""

import json
import re
import shlex
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
from model_server import EmbeddingServer
from serve_support import serving
from stub_upstream import StubUpstream
from support.files import note_change
from support.scripts import ROOT, here, load, stage_here
from tiny_kbm import make_folder
from torture import world

from kbtrain.cli import main
from kbtrain.config import parse_args
from kbtrain.demo import ChainStep
from kbtrain.io import jsonl
from kbtrain.records import Question
from kbtrain.runtime.scripts import find
from kbtrain.serve.config import ServeConfig

UPSTREAM, EMBEDDINGS = "http://127.0.0.1:8001/v1", "http://127.0.0.1:8002/v1"
MODEL = ("--model", "model", *world.TINY)
SHORT = ("--bootstrap-draws", "100")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The working directory of the commands: ``runs/demo``, its copy ``runs/mine``, ``runs/ketod``, ``model``."""
    place = tmp_path_factory.mktemp("howto")
    runs = place / "runs"
    load("tests/eval/conftest.py").make_run(
        runs / "demo", dict.fromkeys(("train", "dev", "test"), 24), ("train", "dev", "test")
    )
    world._questions(runs / "demo")
    make_folder(place / "model")
    own = [
        {"text": f"{'Who is' if i % 2 else 'How many are the'} thing {i:03}?", "answers": f"x{i}",
         "plain": f"Perhaps x{i * (i % 2)}.", "passages": f"It is x{i * (i % 10 != 1)}."} for i in range(200)
    ]  # fmt: skip
    (place / "logs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in own))
    facts = [{"text": f"thing {i:03} is x{i}."} for i in range(200)]
    (place / "passages.jsonl").write_text("".join(json.dumps(row) + "\n" for row in facts))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setattr(ChainStep, "run", stage_here)
        succeed(here("eval/end_to_end.py", "--run", "runs/demo", *SHORT))
        answers = ("--answers", "{llm: plain, rag: passages}", "--shares", ".3,.4,.3")
        succeed(
            here("data_gen/import_answers.py", "--run", "runs/mine", "--path", "logs.jsonl", "--model", "m", *answers)
        )
        succeed(here("data_gen/retrieve.py", "--run", "runs/mine", "--corpus", "passages.jsonl"))
        for words in page_commands("howto/thresholds-and-cost", "Money")[::2]:
            run_command(words)
        yield place


def succeed(done):
    assert done.returncode == 0, (done.args, done.stdout[-1000:], done.stderr[-3000:])
    return done.stdout


def page_commands(name, section=""):
    """The commands of a page, or of one of its sections."""
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8").replace("\\\n", " ")
    if section:
        page = page.split(f"## {section}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    return [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]


def run_command(words, *more):
    """What a printed command prints. ``more``: options that make it small."""
    if words[0] in ("accelerate", "python"):
        at = next(i for i, word in enumerate(words) if word.endswith(".py"))
        return succeed(here(words[at], *words[at + 1 :], *more))
    if words[1] == "run":
        script = Path(find(words[2], "stages", "recipes", what="script")).relative_to(ROOT)
        return succeed(here(str(script), *words[3:], *more))
    assert main([*words[1:], *more]) == 0, words
    return ""


@contextmanager
def served(words):
    """The server of a printed command, on a free port and in front of a stand-in."""
    given = parse_args(ServeConfig, [f"gate={words[2]}", *words[3:]]).model_dump(exclude_unset=True)
    assert given["upstream"] == UPSTREAM
    with StubUpstream() as stub:
        given |= {"search": given.get("search", "auto"), "upstream": stub.url}
        with serving(given.pop("gate"), **given) as running:
            yield running, stub


def chat(question, **more):
    return {"model": "stub", "messages": [{"role": "user", "content": question}], **more}


def test_the_cost_of_gates(folder):
    commands = page_commands("howto/thresholds-and-cost", "Money")
    assert [words[1] for words in commands] == ["ls", "run", "finish"]
    assert "break-even" in run_command(commands[1])
    assert (folder / "runs/mine/report.html").exists()  # by the commands in the fixture


def test_several_data_sets_are_joined(folder):
    for name in ("mmlu", "xiezhi"):
        (folder / "runs" / name).mkdir()
        shutil.copytree(folder / "runs/mine/examples", folder / "runs" / name / "examples")
        for path in (folder / "runs" / name / "examples").glob("*.jsonl"):
            path.write_text(path.read_text().replace("thing", f"thing of {name}"))
            note_change(path)
    (words,) = page_commands("howto/data", "Several data sets in one training")
    assert "mmlu 50.0%, xiezhi 50.0%" in run_command(words)


def test_gates_are_compared(folder):
    shutil.copytree(folder / "runs/mine", folder / "runs/mine-full")
    asked = jsonl.read(Question, folder / "runs/mine/questions.jsonl")
    rows = [{"id": q.id, "score": i % 7 / 7} for i, q in enumerate(asked)]
    (folder / "decisions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    small = {"end_to_end": SHORT, "learning_curve": ("--sizes", "[20]", "--draws", "1")}
    for words in page_commands("howto/compare-gates"):
        words = [w.replace("draft_probe", "features").replace("runs/demo", "runs/mine") for w in words]
        run_command(words, *small.get(words[2], ()))
    assert "their_gate" in (folder / "runs/mine/compare_scores.json").read_text()


def test_passages_are_found_by_vectors(folder):
    embed, retrieve, serve = page_commands("howto/own-retriever", "Vectors")
    run = folder / "runs" / "vectors"
    run.mkdir()
    shutil.copy(folder / "runs/mine/questions.jsonl", run)
    with EmbeddingServer() as server:
        for words in (embed, retrieve):
            run_command([w.replace(EMBEDDINGS, server.url).replace("runs/mine", "runs/vectors") for w in words])
        assert "thing 006 is x6" in (run / "evidence.jsonl").read_text()
        with served([w.replace("mine/vectors", "vectors/vectors") for w in serve]) as (running, stub):
            body = chat("How many are the thing 006?")
            reply = running.post("/v1/chat/completions", body, {"x-kbtrain-retrieve": "always"})
            assert reply.status == 200 and "thing 006 is x6" in json.dumps(stub.body())


def test_a_search_tool_of_the_client(folder):
    serve, imports, compare = page_commands("howto/search-tools")
    tool = {"type": "function", "function": {"name": "web_search", "parameters": {"type": "object"}}}
    with served(serve) as (running, _):
        for question, rule in (("Who is thing 500?", "removed"), ("How many are the thing 500?", "kept")):
            reply = running.post("/v1/chat/completions", chat(question, tools=[tool]))
            assert reply.headers["x-kbtrain-tool"] == rule
    tested = [q for q in jsonl.read(Question, folder / "runs/mine/questions.jsonl") if q.split == "test"]
    rows = [{"id": q.id, "message": {"tool_calls": [{"name": "web_search"}][: "How" in q.text]}} for q in tested]
    (folder / "calls.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "own_calls, on" in run_command(imports)
    assert "own_calls" in run_command(compare)


@pytest.mark.parametrize(
    ("page", "section"),
    [("../README", "On your questions"), ("tutorials/your-questions", "6. In front of your server")],
)
def test_the_server_that_is_started_first_always_searches_and_then_as_the_gate_says(folder, page, section):
    card = folder / "runs/mine/features/gate.json"
    card.write_text(card.read_text().replace('"prompts"', '"nothing"'))  # as if kbtrain had asked
    for words in page_commands(page, section):
        if words[1] == "calibrate":  # the log of the server before
            run_command(words)
        elif words[1] == "serve":
            with served(words) as (running, _):
                running.post("/v1/gate", {"questions": [f"Who is thing {i:03}?" for i in range(60)]})
                reply = running.post("/v1/chat/completions", chat("Who is thing 005?"))
                assert reply.headers["x-kbtrain-retrieved"] == str(int("always" in words))


def test_seakr(folder):
    small = {
        "make_seakr": (*MODEL, "--k", "3", "--max-new-tokens", "3"),
        "score": ("--only", "[seakr]", *world.TINY), "end_to_end": SHORT, "calibrate": (),
        "run_seakr": ("--limit", "2", "--documents", "1", "--demonstrations", "1", "--max-new-tokens", "2"),
    }  # fmt: skip
    commands = page_commands("explanation/methods/seakr", "Commands")
    assert [words[2] for words in commands] == list(small)
    for words in commands:
        run_command(words, *small[words[2]])
    assert list((folder / "runs/demo/methods").iterdir())
