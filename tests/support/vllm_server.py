"""A vLLM server on loopback, in the environment that KBTRAIN_VLLM_PYTHON names (``make test-vllm``)."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kbtrain.models.embedded import path_of
from support.servers import free_port

ROOT = Path(__file__).resolve().parents[2]
VLLM_PYTHON = os.environ.get("KBTRAIN_VLLM_PYTHON")
KEEP_SMALL = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "NO_PROXY": "127.0.0.1"}


@contextmanager
def vllm_server(model: str, *flags: str, dtype: str = "bfloat16") -> Iterator[str]:
    """Serve an embedded model; yields the address. ``flags``: more words of the command line."""
    port = free_port()
    command = [
        str(VLLM_PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(path_of(model)),
        "--served-model-name", model, "--dtype", dtype, "--max-model-len", "512", "--enforce-eager",
        "--host", "127.0.0.1", "--port", str(port), *flags,
    ]  # fmt: skip
    environment = {**os.environ, **KEEP_SMALL, "PYTHONPATH": str(ROOT)}
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet) as process:
        try:
            _wait_for(f"http://127.0.0.1:{port}/health", process)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()


def run_to_end(model: str, flags: Sequence[str], seconds: float = 300.0) -> str:
    """What a vLLM server says that ends by itself, as one that refuses its flags does."""
    command = [str(VLLM_PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(path_of(model)),
               "--port", str(free_port()), "--max-model-len", "512", "--enforce-eager", *flags]  # fmt: skip
    environment = {**os.environ, **KEEP_SMALL, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode != 0
    return done.stdout + done.stderr


def _wait_for(url: str, process: subprocess.Popen[bytes], seconds: float = 300.0) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert process.poll() is None, "the vLLM server ended"
        try:
            with opener.open(url, timeout=5):
                return
        except OSError:
            time.sleep(1)
    raise TimeoutError(url)
