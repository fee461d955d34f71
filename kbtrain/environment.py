"""Software, devices, memory and caches of this machine, as a report of a fault needs them."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from kbtrain.installation import PACKAGE, SHIPPED
from kbtrain.io.provenance import git_state, package_versions
from kbtrain.models import embedded

OPTIONAL = ("ray", "wandb", "tensorboard", "jieba", "psutil")
_LITELLM = "LiteLLM callback (kbtrain/adapters/kbtrain_litellm.py): "
SECRETS = ("OPENAI_API_KEY", "QDRANT_API_KEY", "HF_TOKEN", "KBTRAIN_KEY")
MEANING = {
    "KBTRAIN_CACHE": "folder of fetched models; ~/.cache/kbtrain without it",
    "KBTRAIN_CUDA_GRAPHS": "0: decode steps are not replayed as CUDA graphs on a GPU",
    "OPENAI_API_KEY": "key of a model server; another name by --server-key-env or --upstream-key-env",
    "QDRANT_API_KEY": "key of a Qdrant server; another name by --store-key-env",
    "HF_TOKEN": "Hugging Face: token for kbtrain push",
    "HF_HOME": "Hugging Face: folder of the cache",
    "HF_HUB_OFFLINE": "Hugging Face: 1 forbids the network",
    "RAY_ADDRESS": "a running Ray cluster",
    "CUDA_VISIBLE_DEVICES": "GPUs that a process may use",
    "OMP_NUM_THREADS": "threads of a process on CPUs; without it the number of cores",
    "OMP_WAIT_POLICY": "whether idle threads of OpenMP wait actively",
    "GOMP_SPINCOUNT": "how long idle threads of GNU's OpenMP spin; kbtrain sets it where it is not set",
    "DS_ACCELERATOR": "accelerator that DeepSpeed uses; cpu without a GPU",
    "TOKENIZERS_PARALLELISM": "whether tokenizers use threads",
    "KBTRAIN_TEST_DATA": "folder of the public data that make evidence and some tests read",
    "KBTRAIN_URL": _LITELLM + "address of kbtrain serve",
    "KBTRAIN_KEY": _LITELLM + "key of kbtrain serve",
    "KBTRAIN_TIMEOUT_S": _LITELLM + "seconds for a decision",
    "KBTRAIN_VECTOR_STORES": _LITELLM + "vector stores of a request that is searched for, separated by commas",
    "KBTRAIN_SEARCH_MODEL": _LITELLM + "model of a request that is searched for",
    "KBTRAIN_ON_FAILURE": _LITELLM + "leave, retrieve or plain, where the gate does not answer",
}
_GIB = 2**30


def environment_text() -> str:
    """Name and value a line; variables that are not set and packages that are not installed are skipped."""
    rows = [*_software(), *_machine()]
    rows += [(name, "set" if name in SECRETS else os.environ[name]) for name in MEANING if name in os.environ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _software() -> Iterator[tuple[str, str]]:
    versions = package_versions()
    yield (
        "kbtrain",
        f"{versions.pop('kbtrain', '?')}, {'installed with pip' if SHIPPED.is_dir() else 'a clone'}: {PACKAGE}",
    )
    if commit := git_state().get("git_commit"):
        yield "commit", str(commit)
    yield "python", f"{platform.python_version()}: {sys.executable}"
    yield "system", platform.platform()
    for name in OPTIONAL:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    yield from sorted(versions.items())


def _machine() -> Iterator[tuple[str, str]]:
    import psutil
    import torch
    from huggingface_hub.constants import HF_HUB_CACHE

    cores, threads = psutil.cpu_count(logical=False), psutil.cpu_count()
    yield "processor", f"{cores} cores, {threads} threads; torch uses {torch.get_num_threads()}"
    yield "instructions", torch.backends.cpu.get_cpu_capability()
    memory = psutil.virtual_memory()
    yield "memory", f"{memory.total / _GIB:.1f} GiB, {memory.available / _GIB:.1f} free"
    yield "disk", f"{shutil.disk_usage(Path.cwd()).free / _GIB:.1f} GiB free in {Path.cwd()}"
    if not torch.cuda.is_available():
        yield "GPUs", "none that torch can use"
    for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        gpu = torch.cuda.get_device_properties(i)
        yield f"cuda:{i}", f"{gpu.name}, {gpu.total_memory / _GIB:.1f} GiB"
    ready = [name for name in embedded.EMBEDDED if embedded.is_ready(name)]
    yield "cache", f"{embedded.cache_dir()}: {', '.join(ready) or 'no model yet'}"
    yield "hub cache", HF_HUB_CACHE
