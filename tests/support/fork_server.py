"""A process with the slow imports behind it that forks a child for each script: started by ``support.scripts``.

A line of JSON asks, a line answers: ``{"script", "argv", "cwd", "env", "stdout", "stderr"}`` gives the child's process
id, ``{"poll": pid}`` its exit code, or null while it runs. End of input ends the server.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

PRELOADED = (
    "torch",
    "torch._dynamo",
    "transformers.trainer",
    "transformers.models.bert.modeling_bert",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
    "peft",
    "sklearn.feature_extraction.text",
    "sklearn.linear_model",
    "sklearn.metrics",
    "pydantic",
    "jsonschema",
    "bm25s",
    "Stemmer",
    "httpx2",
    "opencc",
    "rouge_score.rouge_scorer",
    "matplotlib.figure",
)


def check_alone() -> None:
    """A fork copies one thread, and the locks of all: only jemalloc's, which knows forks, may run beside this one."""
    tasks = Path("/proc/self/task")
    names = [(task / "comm").read_text().strip() for task in tasks.iterdir()] if tasks.exists() else []
    others = [name for name in names if name != "jemalloc_bg_thd"]
    if threading.active_count() > 1 or len(others) > 1:
        raise RuntimeError(f"threads after the imports: {', '.join(others)}")


def serve() -> dict[str, Any]:
    """Fork a child for each request; returns in the children alone, with the request."""
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        answer: int | None
        if "poll" in request:
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if answer == 0:
                return request
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    sys.exit()


def become(request: dict[str, Any]) -> None:
    """Give this process the streams, folder, environment and arguments of a fresh ``python script argv``."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    streams = os.open(os.devnull, os.O_RDONLY), os.open(request["stdout"], flags), os.open(request["stderr"], flags)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = [request["script"], *request["argv"]]
    sys.path[0] = os.path.dirname(os.path.abspath(request["script"]))


def exit_code(script: str) -> int:
    """Run the script as ``__main__``; its exit code, its error told as Python tells it."""
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        if ended.code is not None and not isinstance(ended.code, int):
            sys.stderr.write(f"{ended.code}\n")
            return 1
        return ended.code or 0
    except BaseException:  # noqa: BLE001 - as Python itself at its top
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    for name in PRELOADED:
        importlib.import_module(name)
    check_alone()
    gc.freeze()
    asked = serve()
    become(asked)
    code = exit_code(asked["script"])
    # as the end of Python, but for the tearing down of 5,000 imported modules: it costs 0.5 s
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
