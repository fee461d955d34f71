"""A process with the slow imports behind it that forks a child for each script: started by ``support.scripts``.

It listens at a socket (its place is on the command line), says so in one line, and imports; who asks meanwhile waits.
A client, one for each process of the suite, writes lines of JSON, and each is answered by a line: ``{"script", "argv",
"cwd", "env", "stdout", "stderr"}`` gives the child's process id, ``{"poll": pid}`` its exit code, or null while it
runs, ``{"cpu": true}`` the processor time of this process and all ended children, in ms. End of input ends the server.

With ``"python"`` (a copy of ``forked_python.py``) what the script itself starts as ``sys.executable`` is a fork, too:
that program hands its arguments, environment, folder and streams to the socket. Killed, it takes its fork along; asked
to end (SIGTERM), it asks its fork. The processes of the suite are such forks themselves (``tests/conftest.py``), and so
are further servers: that of the environment with the wheel, which goes over to the Python named behind the socket's
place (else empty), and Ray's, with the names of more modules behind that.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
import weakref
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

HUGE = 2**21  # bytes of a huge page
MADV_COLLAPSE = 25  # Linux 6.1 and newer
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
    "requests",  # Ray's, as are the messages: each of its workers imports it
    "google.protobuf.json_format",
    "tabulate",  # torch._dynamo's, at the end of every process
    # what most scripts import of kbtrain; not kbtrain.cli, which is run as a module itself
    "kbtrain.gates.handles",
    "kbtrain.gates.kbm.train",
    "kbtrain.training.finish",
    "kbtrain.training.classifier_trainer",
    "kbtrain.llm.sample_stage",
    "kbtrain.llm.transformers_llm",
    "kbtrain.labeling.label_stage",
    "kbtrain.retrieval.retrieve_stage",
    "kbtrain.retrieval.vectors",
    "kbtrain.distributed.ray_work",
    "kbtrain.evaluation.scoring",
    "kbtrain.llm.forecast",
    "kbtrain.training.checks",
    "kbtrain.evaluation.end_to_end",
    "kbtrain.report.page",
    "kbtrain.fit_questions",
)
IF_THERE = (  # needed by parts that are not always installed
    "deepspeed",  # transformers imports it wherever a model is saved or trained (0.35 s)
    "kbtrain.serve.app",  # 0.25 s in each process that serves, and in those of the suite
)


def check_alone() -> None:
    """A fork copies one thread, and the locks of all: only jemalloc's, which knows forks, may run beside this one."""
    tasks = Path("/proc/self/task")
    names = [(task / "comm").read_text().strip() for task in tasks.iterdir()] if tasks.exists() else []
    others = [name for name in names if name != "jemalloc_bg_thd"]
    if threading.active_count() > 1 or len(others) > 1:
        raise RuntimeError(f"threads after the imports: {', '.join(others)}")


def settle() -> None:
    """Make what was imported cheap to fork: no child searches it for garbage or finalizes it at its end (45 of the
    100 ms of an empty script), and its memory lies in huge pages, whose tables are quickly copied (20 ms)."""
    gc.freeze()
    for one in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        one.atexit = False  # whatever a script makes itself is finalized
    maps = Path("/proc/self/maps")
    collapse = getattr(ctypes.CDLL(None), "madvise", None)
    for line in maps.read_text().splitlines() if maps.exists() else ():
        place, mode, *_, name = (*line.split(maxsplit=5), "")[:6]
        start, end = (int(number, 16) for number in place.split("-"))
        first, last = -(-start // HUGE) * HUGE, end // HUGE * HUGE
        if mode == "rw-p" and name in ("", "[heap]") and first < last and collapse is not None:
            collapse(ctypes.c_void_p(first), ctypes.c_size_t(last - first), MADV_COLLAPSE)  # a kernel may refuse


def listen(place: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(place)
    listener.listen(64)
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    return listener


def go_over(python: str) -> None:
    """Go on as the Python of another environment: its kbtrain comes anew; all else that was imported is its, too."""
    code = "import json, sys; print(json.dumps([sys.path, sys.prefix, sys.executable]))"
    told = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, check=True)
    sys.path[:], sys.prefix, sys.executable = json.loads(told.stdout)
    sys.exec_prefix = sys.prefix
    for name in [name for name in sys.modules if name.partition(".")[0] == "kbtrain"]:
        del sys.modules[name]
    found = importlib.import_module("kbtrain").__file__ or ""
    if not found.startswith(sys.prefix):
        raise RuntimeError(f"{found}: not the kbtrain of {python}")


def serve(listener: socket.socket) -> dict[str, Any]:
    """Fork a child for each request; returns in the children alone, with the request."""
    waiting = selectors.DefaultSelector()
    waiting.register(sys.stdin, selectors.EVENT_READ, _end)
    waiting.register(listener, selectors.EVENT_READ, _connection)
    while True:
        for key, _ in waiting.select():
            request: dict[str, Any] | None = key.data(key.fileobj, waiting)
            if request is not None:
                for entry in list(waiting.get_map().values()):  # of other requests
                    os.close(entry.fd) if isinstance(entry.fileobj, int) else entry.fileobj.close()
                waiting.close()
                return request


def _end(stdin: Any, _: selectors.BaseSelector) -> None:
    if not os.read(stdin.fileno(), 1):
        sys.exit()


def _connection(listener: Any, waiting: selectors.BaseSelector) -> None:
    waiting.register(listener.accept()[0], selectors.EVENT_READ, _first)


def _first(asking: Any, waiting: selectors.BaseSelector) -> dict[str, Any] | None:
    """A client's first line, or a request of ``forked_python.py``, which brings its streams."""
    text, streams, _, _ = socket.recv_fds(asking, 1 << 20, 3)
    waiting.unregister(asking)
    if streams:
        return _streaming(asking, text, streams, waiting)
    waiting.register(asking, selectors.EVENT_READ, _line)
    return _line(asking, waiting, text)


def _line(client: Any, waiting: selectors.BaseSelector, line: bytes = b"") -> dict[str, Any] | None:
    """One line of a client; the request in a child, None in the server."""
    line = line or client.recv(1 << 20)  # the client waits for each answer: one line at a time
    while line and not line.endswith(b"\n"):
        line += client.recv(1 << 20)
    if not line:
        waiting.unregister(client)
        client.close()
        return None
    request: dict[str, Any] = json.loads(line)
    answer: int | None
    if "poll" in request:
        pid, status = os.waitpid(request["poll"], os.WNOHANG)
        answer = os.waitstatus_to_exitcode(status) if pid else None
    elif "cpu" in request:
        answer = round(1000 * sum(os.times()[:4]))
    else:
        answer = os.fork()
        if answer == 0:
            return request
    client.sendall(json.dumps(answer).encode() + b"\n")
    return None


def _streaming(asking: Any, text: bytes, streams: list[int], waiting: selectors.BaseSelector) -> dict[str, Any] | None:
    """A fork with the streams of who asks: the answers are its process id and its exit code, once there is one."""
    while not text.endswith(b"\n"):
        more = asking.recv(1 << 20)
        if not more:  # who asked was killed
            for end in streams:
                os.close(end)
            return asking.close()
        text += more
    pid = os.fork()
    if pid == 0:
        asking.close()
        return {**json.loads(text), "streams": streams}
    for stream in streams:
        os.close(stream)
    with suppress(OSError):  # who asked was killed
        asking.sendall(f"{pid}\n".encode())
    ended = os.pidfd_open(pid)

    def killed(*_: object) -> None:
        if asking.fileno() != -1:  # else both ended at the same moment, and the fork was seen first
            waiting.unregister(asking)
            os.kill(pid, signal.SIGKILL)

    def over(*_: object) -> None:
        waiting.unregister(ended)
        os.close(ended)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with suppress(KeyError):
            waiting.unregister(asking)
        with suppress(OSError):  # who asked was killed
            asking.sendall(f"{code}\n".encode())
        asking.close()

    waiting.register(asking, selectors.EVENT_READ, killed)  # it never writes again: its end is what can be read
    waiting.register(ended, selectors.EVENT_READ, over)
    return None


def become(request: dict[str, Any]) -> None:
    """Give this process the streams, folder, environment and arguments of a fresh ``python script argv``."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    streams = request.get("streams") or (
        os.open(os.devnull, os.O_RDONLY), os.open(request["stdout"], flags), os.open(request["stderr"], flags)
    )  # fmt: skip
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - the server's has read ahead
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.executable = request.get("python") or sys.executable
    sys.argv = [request["script"], *request["argv"]]
    if "PYTHONSAFEPATH" not in os.environ:
        sys.path[0] = os.path.dirname(os.path.abspath(request["script"]))


def exit_code(script: str) -> int:
    """Run the script, the code after ``-c`` or the module after ``-m`` as ``__main__``; tell errors as Python does."""
    try:
        if script == "-c":
            sys.modules["__main__"] = main = ModuleType("__main__")
            sys.path[0], code = "", sys.argv.pop(1)
            exec(code, main.__dict__)
        elif script == "-m":
            if "PYTHONSAFEPATH" not in os.environ:
                sys.path[0] = os.getcwd()
            del sys.argv[0]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
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
    place = listen(sys.argv[1])
    gc.disable()  # what is imported stays
    if sys.argv[2]:
        go_over(sys.argv[2])
    first = sys.path[0]
    os.environ["DS_ACCELERATOR"] = "cpu"  # in this process alone: else DeepSpeed looks for one
    for name in (*PRELOADED, *sys.argv[3:]):
        importlib.import_module(name)
    for name in IF_THERE:
        with suppress(ImportError):
            importlib.import_module(name)
    provenance = importlib.import_module("kbtrain.io.provenance")  # what each script's metadata would ask for anew
    provenance.git_state(), provenance.package_versions()
    importlib.import_module("kbtrain.llm.server_requests").tls()  # 25 ms in each script that asks a server
    sys.path.remove(first)  # Ray puts itself before it
    sys.path.insert(0, first)
    check_alone()
    settle()
    gc.enable()
    asked = serve(place)
    become(asked)
    code = exit_code(asked["script"])
    # as the end of Python, but for the tearing down of 5,000 imported modules: it costs 0.5 s
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
