"""How far each way goes: distinct functions and files of kbtrain that a request or a stage enters.

Stages run on a few questions of the atlas with made-up answers; functions that run at imports count, and class bodies
are counted beside them. Requests are the second of their kind, so that what is done once does not count. Another
checkout is counted by its own Python.

Examples:
  python benchmarks/ways.py
  ../other/.venv/bin/python benchmarks/ways.py --root ../other
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from kbtrain.config import Config, run_script


class WaysConfig(Config):
    root: Path = Field(Path(__file__).resolve().parents[1], description="checkout whose ways are counted")


PROFILED = """
import atexit, json, pathlib, runpy, sys, threading
entered, root = set(), {root!r} + "/kbtrain/"
def count(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(root) and code.co_name[0] != "<":
        entered.add((code.co_filename, code.co_qualname, code.co_flags & 1))
def write():
    sys.setprofile(None)
    pathlib.Path({out!r}).write_text(json.dumps(sorted(entered)))
sys.argv = [{script!r}, *{arguments!r}]
sys.path[:0] = [str(pathlib.Path({script!r}).parent), {root!r}]
atexit.register(write)
threading.setprofile(count)
sys.setprofile(count)
runpy.run_path({script!r}, run_name="__main__")
"""

REQUESTS = """
import asyncio, json, pathlib, sys, threading, urllib.request
entered, root, counting = set(), {root!r} + "/kbtrain/", False
sys.path.insert(0, {root!r})
from kbtrain.serve.app import Service
from kbtrain.serve.config import ServeConfig
from kbtrain.serve.server import http_server, listen
def count(frame, event, argument):
    code = frame.f_code
    if counting and event == "call" and code.co_filename.startswith(root):
        if code.co_name[0] != "<":
            entered.add((code.co_filename, code.co_qualname, code.co_flags & 1))
service = Service(ServeConfig(gate={gate!r}, upstream={upstream!r}, port=0, search="none", threshold=0.5))
listening = listen("127.0.0.1", 0)
server = http_server(service)
async def run():
    await server.serve(sockets=[listening])
    await service.close()
threading.setprofile(count)
thread = threading.Thread(target=asyncio.run, args=(run(),))
thread.start()
while not server.started:
    pass
def ask(path, body):
    url = f"http://127.0.0.1:{{listening.getsockname()[1]}}{{path}}"
    sent = urllib.request.Request(url, json.dumps(body).encode(), {{"content-type": "application/json"}})
    urllib.request.urlopen(sent).read()
ways = {{
    "chat decision": ("/v1/chat/completions", "model", "stub"), "/v1/gate": ("/v1/gate", "questions", None)}}
found = {{}}
for name, (path, key, value) in ways.items():
    for number in range(2):
        question = f"What is the capital of place number {{number}}?"
        said = {{"messages": [{{"role": "user", "content": question}}]}} if value else {{}}
        counting = number == 1
        entered.clear()
        ask(path, {{key: value or [question], **said}})
    counting = False
    found[name] = sorted(entered)
pathlib.Path({out!r}).write_text(json.dumps(found))
server.should_exit = True
thread.join()
"""


def stages(folder: Path, root: Path) -> Iterator[tuple[str, list[str]]]:
    """Scripts with their arguments, in the order in which they need each other."""
    run, examples = ["--run", str(folder / "run")], folder / "run" / "examples"
    sets = ["--train", str(examples / "train.jsonl"), "--dev", str(examples / "dev.jsonl")]
    samples = "{train: 4, dev: 2, test: 2}"
    yield "data_gen/collect.py", [*run, "--dataset", "atlas", "--limit", "40", "--pick", "random"]
    yield "data_gen/retrieve.py", run
    yield "data_gen/sample.py", [*run, "--backend", "scripted", "--model", "made-up", "--samples", samples]
    yield "data_gen/label.py", run
    yield "data_gen/build.py", run
    index, features = str(folder / "run" / "bm25"), str(folder / "run" / "features")
    yield "recipes/train_features.py", [*sets, "--index", index, "--output", features]
    yield "eval/score.py", run
    yield "eval/end_to_end.py", [*run, "--bootstrap-draws", "100"]
    fast = ["--output", str(folder / "kbm"), "--epochs", "1", "--dtype", "fp32", "--device", "cpu"]
    model = tiny_model(folder / "model", root)
    yield "recipes/train_kbm.py", [*sets, "--model", str(model), *fast]


def tiny_model(folder: Path, root: Path) -> Path:
    """A random model of two layers."""
    code = f"import tiny_kbm; tiny_kbm.make_folder({str(folder)!r})"
    started(code, folder.parent, {"PYTHONPATH": f"{root}:{root / 'tests'}"})
    return folder


def started(code: str, folder: Path, variables: dict[str, str] | None = None) -> None:
    """Run Python code. Raises RuntimeError with the end of what it wrote if it fails."""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **(variables or {})},
    )  # fmt: skip
    if ended.returncode != 0:
        raise RuntimeError(ended.stderr[-1500:])


def print_row(name: str, entered: list[tuple[str, str, int]]) -> None:
    classes = sum(not optimized for _, _, optimized in entered)
    files = {file for file, _, _ in entered}
    print(f"{name:28} {len(entered) - classes:9} {classes:7} {len(files):6}", flush=True)


def print_requests(folder: Path, root: Path) -> None:
    """Count one request of each kind to a server with the gate ``features`` before a stand-in of a model's server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    stub = subprocess.Popen(
        [sys.executable, str(root / "benchmarks" / "peers" / "serving_stub.py"), str(port), "5", "0"]
    )
    try:
        time.sleep(3)
        out, upstream = folder / "calls.json", f"http://127.0.0.1:{port}/v1"
        gate = str(folder / "run" / "features")
        started(REQUESTS.format(root=str(root), gate=gate, upstream=upstream, out=str(out)), folder)
    finally:
        stub.kill()
        stub.wait()
    for name, entered in json.loads(out.read_text(encoding="utf-8")).items():
        print_row(name, entered)


def main(config: WaysConfig) -> None:
    root = config.root.resolve()
    print(f"{'way':28} {'functions':>9} {'classes':>7} {'files':>6}")
    with tempfile.TemporaryDirectory(prefix="kbtrain-ways-") as name:
        folder = Path(name)
        out = folder / "calls.json"
        for script, arguments in stages(folder, root):
            code = PROFILED.format(root=str(root), script=str(root / script), arguments=arguments, out=str(out))
            started(code, folder)
            print_row(script, json.loads(out.read_text(encoding="utf-8")))
            if script == "eval/end_to_end.py":
                print_requests(folder, root)


if __name__ == "__main__":
    run_script(main, WaysConfig, __doc__)
